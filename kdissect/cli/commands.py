"""The commands. `kdissect CAPTURE...` needs none: arguments that do not start with a command's name are read as
captures."""

from __future__ import annotations

from collections import UserDict
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

import click

from kdissect.cli.confinement.sandbox import confinable
from kdissect.cli.opening import CHOSEN, name_captures, open_capture, small
from kdissect.cli.options import (
    EXCHANGE_FORMATS,
    capture_arguments,
    comma_list,
    order_options,
    record_options,
    selection_options,
    slow_option,
    table_output_options,
    time_options,
    written_as,
)
from kdissect.cli.printing import terminal

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

PROGRAM = "kdissect"
COMPLETION = "_KDISSECT_COMPLETE"
"""Environment variable by which a shell asks for completions."""
READ = "CAPTURE..."
"""Name of the command that needs no name; no file is called like this by accident."""
EXAMPLES = """\
Examples:
  kdissect --demo                                    the first screen of a capture that ships with kdissect
  kdissect broker.pcap                               who, what, how slow, what went wrong
  kdissect broker.pcap --table exchanges --where "latency_ms > 500"
  kdissect broker.pcap --table fetches --columns client_id,latency_ms,hold --format csv -o fetches.csv
  kdissect broker.pcap --messages Fetch.response --format jsonl
  kdissect broker.pcap --table records --topic orders --offset 100..200 --reveal
  kdissect broker.pcap --html report.html            the report, for a browser
  kdissect broker.pcap -o tables/                    every table as Parquet
  kdissect why broker.pcap 1                         the evidence of finding 1 of the first screen
  kdissect slowest broker.pcap                       the slowest exchanges, agreed waits left out
  kdissect show broker.pcap --frame 42               every byte of an exchange explained
  kdissect cut broker.pcap --frame 42 -o small.pcap  a smaller capture with that exchange, for Wireshark
  kdissect redact broker.pcap -o safe.pcap           a copy without records, credentials, addresses of clients
  kdissect timeline broker.pcap                      what happened, in order of time
  kdissect sessions broker.pcap                      whose fetch sessions push out whose
  kdissect latency broker.pcap --by client,topic     exact quantiles; long polls separated from slow brokers
  kdissect stream broker.pcap --client shop          its requests and responses, one per line
  kdissect sql broker.pcap "select api, max(latency_ms) from exchanges group by api"
  kdissect diff before.pcap after.pcap               what got slower
  kdissect spark broker.pcap -o tables/              many captures, on all cores or a cluster, with Spark
  kdissect top broker.pcap --once                    the live view once; -i eth0 for traffic as it comes
  kdissect annotate broker.pcap -o shown.pcapng      the same packets, with comments for Wireshark
  kdissect wireshark install --folder plugins/       Wireshark dissects every API and version of Kafka
  kdissect schema Fetch 12 request                   a layout on the wire
  tcpdump -i eth0 -w - port 9092 | kdissect -        a capture from standard input
"""


class Commands(UserDict[str, click.Command]):
    """Commands by name, each confined. One that lies in a module of its own is imported when it is asked for."""

    def __setitem__(self, name: str, command: click.Command) -> None:
        self.data[name] = confinable(name, command)

    def declare(self, name: str, place: str) -> None:
        """A command that is `place`: `module:name`."""
        self.data[name] = cast("Any", place)

    def __getitem__(self, name: str) -> click.Command:
        found: Any = self.data[name]
        if isinstance(found, str):
            module, _, inside = found.partition(":")
            found = self.data[name] = confinable(name, getattr(import_module(module), inside))
        return cast("click.Command", found)


COMMANDS = Commands()


class Main(click.Group):
    """The command group: without a command's name, arguments belong to the reading command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the nameless command in front of captures and options."""
        if not args or args[0] not in self.commands:
            args = [READ, *args]
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Commands in the order in which they were added, without the nameless one."""
        return [name for name in self.commands if name != READ]


class Read(click.Command):
    """The nameless command: its help is the program's help."""

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Both ways to start."""
        formatter.write_usage(PROGRAM, "CAPTURE... [OPTIONS]")
        formatter.write_usage(PROGRAM, "COMMAND ...", prefix="       ")

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The commands, then examples as they are."""
        with formatter.section("Commands (a file of such a name is reached as ./NAME)"):
            formatter.write_dl([(name, main.commands[name].get_short_help_str(60)) for name in main.list_commands(ctx)])
        formatter.write_paragraph()
        formatter.write(EXAMPLES)


def captures_or_commands(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """For shell completion: files, and command names where the first word is wanted."""
    from click.shell_completion import CompletionItem

    items = [CompletionItem(incomplete, type="file")]
    if not ctx.params.get("captures") and not ctx.params.get("demo"):
        items += [CompletionItem(name) for name in main.list_commands(ctx) if name.startswith(incomplete)]
    return items


def table_names(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Tables whose names begin so, for shell completion."""
    from kdissect.tables.declaration import TABLES

    return [name for name in TABLES if name.startswith(incomplete)]


@click.group(cls=Main, add_help_option=False, commands=COMMANDS)
def main() -> None:
    """Turn captures of Kafka traffic into tables."""


@main.command(READ, cls=Read)
@capture_arguments(captures_or_commands)
@click.option("--table", metavar="NAME", shell_complete=table_names, help="Print one table (see: kdissect tables).")
@click.option("--columns", metavar="A,B", callback=comma_list, help="Only these columns.")
@click.option("--where", metavar="EXPRESSION", help="Only rows like this: \"api = 'Fetch' and latency_ms > 500\".")
@selection_options
@record_options
@order_options
@click.option("--messages", metavar="API.SIDE", help="Print full messages, such as Fetch.response.")
@table_output_options
@click.option("--top", type=click.IntRange(0), metavar="N", help="Rows of each block of the first screen.")
@click.option("--by", type=click.Choice(["api", "client", "broker", "version"]), help="Group latencies by this.")
@click.option(
    "--html", type=click.Path(), metavar="FILE", help="Write the report, a page for any browser (- for stdout)."
)
@time_options
@slow_option
@click.option(
    "--follow",
    is_flag=True,
    help="Go on reading: a pipe, a file that grows, a directory that gets files.",
)
@click.option("--version", is_flag=True, help="Versions of kdissect and of what it rests on.")
def read(
    captures: tuple[str, ...],
    demo: bool,
    table: str | None,
    columns: list[str] | None,
    where: str | None,
    partition: tuple[int, ...],
    offset: tuple[int | None, int | None] | None,
    reveal: bool,
    sort: list[str] | None,
    limit: int | None,
    messages: str | None,
    form: str | None,
    csv_safe: bool,
    output: str | None,
    top: int | None,
    by: str | None,
    html: str | None,
    local: bool,
    follow: bool,
    version: bool,
    **settings: Any,
) -> None:
    """Read captures of Kafka traffic: pcap or pcapng, compressed or not, - for standard input.

    Without --table, --messages or -o it prints the first screen: findings, who talked to whom with which API versions,
    how slow, and what could not be read.
    """
    if version:
        from kdissect.cli.about import versions

        terminal.print_plain(versions())
        return
    if table is not None and messages is not None:
        raise click.UsageError("--table and --messages exclude each other")
    if form in EXCHANGE_FORMATS:
        if messages is not None or table not in (None, "exchanges"):
            raise click.UsageError(f"--format {form} writes exchanges: it goes with no other table and no --messages")
        table = "exchanges"
    if table is None and (columns is not None or where is not None):
        raise click.UsageError("--columns and --where need --table NAME")
    if table is None and (sort is not None or limit is not None):
        raise click.UsageError("--sort and --limit need --table NAME")
    if table is None and (partition or offset is not None or reveal):
        raise click.UsageError("--partition, --offset and --reveal need --table NAME, such as records")
    if html is not None:
        if follow or any(one is not None for one in (table, messages, output, form)):
            raise click.UsageError("--html writes the report alone: no --table, --messages, --format, -o or --follow")
        from kdissect.cli.answers import write_report

        write_report(open_capture(captures, demo=demo, **settings), html, name_captures(captures, demo))
        return
    if follow and output is not None and table is None and messages is None:
        raise click.UsageError("--follow appends to one table: -o FILE needs --table NAME or --messages API.SIDE")
    follower = None
    if follow:
        from kdissect.cli.following import Follower

        follower = click.get_current_context().with_resource(Follower(screens=table is None and messages is None))
        follower.await_beginning(captures)
        settings |= {"follow": follower, "progress": follower.progress}
    if table is None and messages is None:
        if form is not None:
            raise click.UsageError("--format needs --table NAME or --messages API.SIDE")
        if output is not None:
            from kdissect.cli.answers import save

            save(open_capture(captures, demo=demo, **settings), output)
            return
        from kdissect.cli.answers import first_screen

        capture = open_capture(captures, demo=demo, **settings)
        filtered = any(settings.get(name) for name in (*CHOSEN, "start", "end"))
        first_screen(capture, name_captures(captures, demo), by=by or "api", top=top, local=local, filtered=filtered,
                     follower=follower)  # fmt: skip
        return
    from kdissect.cli import answers

    if table is not None:
        form = written_as(form, output)
        chosen = answers.table_columns(table, columns, form, output, where, sort)
        if reveal and table != "records":
            raise click.UsageError("--reveal needs --table records")
        rows = answers.narrowed(table, where, partition, offset)
        if where is not None:
            from kdissect.cli.known_values import say_impossible_values

            say_impossible_values(table, where)
        capture = open_capture(captures, demo=demo, **settings)
        answers.print_table(
            capture, table, chosen, rows, form, output, small(capture), columns is not None, reveal,
            growing=follow, sort=sort, limit=limit, csv_safe=csv_safe,
        )  # fmt: skip
    elif messages is not None:
        api, direction = answers.message_name(messages)
        capture = open_capture(captures, demo=demo, **settings)
        answers.print_messages(
            capture, api, direction, written_as(form, output, "jsonl"), output, growing=follow, csv_safe=csv_safe
        )


COMMANDS.declare("why", "kdissect.cli.subcommands.evidence.why_command:why")
COMMANDS.declare("slowest", "kdissect.cli.subcommands.evidence.everyday_questions:slowest")
COMMANDS.declare("errors", "kdissect.cli.subcommands.evidence.everyday_questions:errors")
COMMANDS.declare("gaps", "kdissect.cli.subcommands.evidence.everyday_questions:gaps")
COMMANDS.declare("show", "kdissect.cli.subcommands.questions:show")
COMMANDS.declare("sessions", "kdissect.cli.subcommands.questions:sessions")
COMMANDS.declare("timeline", "kdissect.cli.subcommands.questions:timeline")
COMMANDS.declare("latency", "kdissect.cli.subcommands.questions:latency")
COMMANDS.declare("budget", "kdissect.cli.subcommands.questions:budget")
COMMANDS.declare("diff", "kdissect.cli.subcommands.questions:diff")
COMMANDS.declare("schema", "kdissect.cli.subcommands.reference:schema")
COMMANDS.declare("tables", "kdissect.cli.subcommands.reference:tables")
COMMANDS.declare("stream", "kdissect.cli.subcommands.conversation:stream")
COMMANDS.declare("sql", "kdissect.cli.subcommands.asking:sql")
COMMANDS.declare("traffic", "kdissect.cli.subcommands.traffic:traffic")
COMMANDS.declare("hops", "kdissect.cli.subcommands.hops:hops")
COMMANDS.declare("otlp", "kdissect.cli.telemetry.otlp_command:otlp")
COMMANDS.declare("whatif", "kdissect.cli.subcommands.whatif:whatif")
COMMANDS.declare("cut", "kdissect.cli.subcommands.copies:cut")
COMMANDS.declare("redact", "kdissect.cli.subcommands.copies:redact")
COMMANDS.declare("crosscheck", "kdissect.cli.subcommands.crosschecking:crosscheck")
COMMANDS.declare("spark", "kdissect.cli.subcommands.bulk:spark")
COMMANDS.declare("top", "kdissect.cli.live.top_command:top")
COMMANDS.declare("annotate", "kdissect.cli.wireshark.annotate_command:annotate")
COMMANDS.declare("wireshark", "kdissect.cli.wireshark.plugin_command:wireshark")
COMMANDS.declare("man", "kdissect.cli.subcommands.manual:man")
COMMANDS.declare("completion", "kdissect.cli.subcommands.reference:completion")

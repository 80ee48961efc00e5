"""`show`, `sessions`, `timeline`, `latency`, `budget`, `diff`: what is asked of captures beyond their tables."""

from __future__ import annotations

import glob
import os
import re
from typing import Any

import click

from kdissect.cli.opening import STDIN, name_captures, open_capture
from kdissect.cli.options import (
    capture_arguments,
    comma_list,
    engine_options,
    memory_option,
    order_options,
    output_options,
    reveal_option,
    seconds,
    selection_options,
    slow_option,
    time_options,
)
from kdissect.cli.printing import terminal

EXCHANGE_ID = re.compile(r"[0-9a-fA-F]+:r?[0-9]+")
"""The id of a connection, or its beginning, and the exchange's number on it."""


@click.command(short_help="Every byte of one exchange explained.")
@click.argument("words", nargs=-1, metavar="CAPTURE... EXCHANGE_ID")
@click.option("--demo", is_flag=True, help="Use the capture that ships with kdissect.")
@click.option(
    "--frame", type=click.IntRange(1), metavar="N", help="The exchange whose request or response ends in frame N."
)
@click.option("--wireshark", is_flag=True, help="Print how to find the exchange in Wireshark and tshark instead.")
@reveal_option
@time_options
@engine_options
def show(
    words: tuple[str, ...], demo: bool, frame: int | None, wireshark: bool, reveal: bool, local: bool, **settings: Any
) -> None:
    """Explain every byte of one exchange, request and response.

    EXCHANGE_ID is as a table prints it; a unique beginning of the connection's id is enough. Without an id it lists the
    ten slowest exchanges.
    """
    wanted = list(words)
    exchange_id = wanted.pop() if frame is None and wanted and _is_exchange_id(wanted[-1]) else None
    capture = open_capture(wanted, demo=demo, **settings)
    if exchange_id is None and frame is None:
        from kdissect.cli.subcommands.evidence.everyday_questions import print_slowest

        terminal.page(print_slowest(capture, name_captures(wanted, demo), terminal.row_width(), local=local))
        return
    if wireshark:
        from kdissect.cli.wireshark_hints import lines

        terminal.print_plain(
            line for shown in capture.show(exchange_id, frame) for line in lines(capture, shown.exchange)
        )
        return
    from kdissect.cli.answers import show_exchange

    show_exchange(capture, exchange_id, frame, local=local, reveal=reveal)


def _is_exchange_id(word: str) -> bool:
    """Whether a word is an exchange's id rather than a file: raises UsageError where it is neither."""
    if EXCHANGE_ID.fullmatch(word):
        return not os.path.exists(word)
    if (
        not os.path.exists(word)
        and word != STDIN
        and not glob.has_magic(word)
        and os.sep not in word
        and "." not in word
    ):
        raise click.UsageError(f"{word!r} is neither a file nor an exchange id (such as 3f2a:12); or use --frame N")
    return False


@click.command(short_help="Fetch sessions: alive, created, evicted, refused.")
@capture_arguments()
@selection_options
@click.option("--top", type=click.IntRange(0), metavar="N", help="Clients of each broker that are listed.")
@click.option("--slots", type=click.IntRange(0), metavar="N", help="What if each broker's cache had N slots?")
@order_options
def sessions(
    captures: tuple[str, ...], demo: bool, top: int | None, slots: int | None, sort: list[str] | None,
    limit: int | None, **settings: Any,
) -> None:  # fmt: skip
    """Print what happened to fetch sessions (KIP-227), broker by broker.

    How many were alive over time, who created them and who reused them, whose new sessions pushed out those of
    others, which requests were refused; share sessions (KIP-932) too. The sessions themselves: --table
    fetch_sessions. With --sort the clients are in order of created, reused, ended, left_open, refused, lost or
    epoch_errors. Option --slots N replays the same sessions with N slots on each broker
    (max.incremental.fetch.session.cache.slots) and prints who would have lost one.
    """
    from kdissect.cli.answers import print_sessions, print_slots

    if slots is not None:
        print_slots(open_capture(captures, demo=demo, **settings), slots, top if limit is None else limit)
        return
    print_sessions(open_capture(captures, demo=demo, **settings), top if limit is None else limit, sort)


@click.command(short_help="The findings in order of time.")
@capture_arguments()
@selection_options
@slow_option
@time_options
def timeline(captures: tuple[str, ...], demo: bool, local: bool, **settings: Any) -> None:
    """Print the findings of a capture as an account, in order of time.

    Findings of one incident stand together: the cause, its consequences, and advice. Each has the number that
    `kdissect why CAPTURE N` takes. The findings themselves: --table findings; what each means: docs/findings.md.
    """
    from kdissect.cli.answers import print_timeline

    print_timeline(open_capture(captures, demo=demo, **settings), name_captures(captures, demo), local)


@click.command(short_help="Latencies by API, client, broker, topic, over time.")
@capture_arguments()
@selection_options
@click.option(
    "--by",
    metavar="A,B",
    callback=comma_list,
    help="Group by any of api, version, client, broker, topic, status, hold, capture, cluster; api when not given. "
    "Deliveries by any of topic, partition, reader, group, client, producer, broker, follower, waited_for, cluster; "
    "topic,reader when not given.",
)
@click.option(
    "--of",
    type=click.Choice(["exchanges", "deliveries"]),
    default="exchanges",
    help="Of requests until their answers, or of record batches until each reader had them.",
)
@click.option("--every", metavar="TIME", callback=seconds, help="A row for each stretch of time: 1s, 500ms, 5m.")
@click.option("--where", metavar="EXPRESSION", help="Only rows of `--of` like this: \"api = 'Fetch'\".")
@order_options
@output_options
@time_options
def latency(
    captures: tuple[str, ...], demo: bool, by: list[str] | None, of: str, every: float | None, where: str | None,
    sort: list[str] | None, limit: int | None, form: str | None, csv_safe: bool, output: str | None, local: bool,
    **settings: Any,
) -> None:  # fmt: skip
    """Print counts, exact quantiles and rates of exchanges, or counts and quantiles of deliveries.

    excess is what brokers took beyond the wait that a fetch had agreed to: a long poll is not a slow broker.
    """
    from kdissect.cli.answers import print_latency

    if where is not None:
        from kdissect.cli.known_values import say_impossible_values

        say_impossible_values(of, where)
    opened = open_capture(captures, demo=demo, **settings)
    print_latency(opened, of, by, every, where, form, output, local, sort, limit, csv_safe)


@click.command(short_help="Where the time went: broker, network, client, waits.")
@capture_arguments()
@selection_options
@click.option(
    "--by", metavar="A,B", callback=comma_list, help="By any of client, broker, group, topic; client when not given."
)
@click.option("--every", metavar="TIME", callback=seconds, help="A row for each stretch of time: 1s, 500ms, 5m.")
@output_options
@time_options
def budget(
    captures: tuple[str, ...], demo: bool, by: list[str] | None, every: float | None, form: str | None, csv_safe: bool,
    output: str | None, local: bool, start: str | None, end: str | None, **settings: Any,
) -> None:  # fmt: skip
    """Print where the time of each client (or broker, group, topic) went, each moment counted once.

    The column agreed has the waits that fetches asked for, broker the time beyond it. The column own has the client's
    time between an answer with records and its next fetch, idle the time without a request. --from and --to say which
    span.
    """
    from kdissect.cli.answers import print_budget

    opened = open_capture(captures, demo=demo, **settings)
    print_budget(opened, by or ["client"], every, (start, end), form, output, local, csv_safe)


@click.command(short_help="Two captures compared.")
@click.argument("a", type=click.Path(), metavar="A")
@click.argument("b", type=click.Path(), metavar="B")
@click.option("--by", metavar="A,B", callback=comma_list, help="Group latencies by this, as in latency.")
@click.option("--top", type=click.IntRange(0), metavar="N", help="Rows of each block.")
@order_options
@selection_options
@memory_option
@engine_options
def diff(
    a: str, b: str, by: list[str] | None, top: int | None, sort: list[str] | None, limit: int | None, **settings: Any
) -> None:
    """Compare two captures: before and after a change, or the same traffic at the client and at the broker.

    It prints APIs that got slower, and API versions and errors that changed. For exchanges found in both it prints
    the network's time between the two places. --sort orders latencies, by change_own_ms, p_value, counted_a,
    own_p99_ms_b and such.
    """
    from kdissect.cli.answers import print_diff

    sides = open_capture([a], **settings), open_capture([b], **settings)
    print_diff(*sides, by or ["api"], top if limit is None else limit, sort)

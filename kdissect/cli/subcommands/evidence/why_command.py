"""`why`: the evidence of a finding, and what was looked for where there is none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from kdissect.cli.opening import named, open_capture
from kdissect.cli.options import (
    capture_arguments,
    output_options,
    selection_options,
    slow_option,
    time_options,
    written_as,
)
from kdissect.cli.printing import terminal
from kdissect.problems import UsageError

if TYPE_CHECKING:
    from kdissect.cli.opening import Capture
    from kdissect.summary.account import Handle


@click.command(short_help="The evidence of a finding of the first screen.")
@capture_arguments()
@click.option("--rows", is_flag=True, help="Print all rows of the evidence.")
@click.option("--command", is_flag=True, help="Print the command that selects these rows.")
@selection_options
@slow_option
@output_options
@time_options
def why(
    captures: tuple[str, ...], demo: bool, rows: bool, command: bool, form: str | None, csv_safe: bool,
    output: str | None, local: bool, **settings: Any,
) -> None:  # fmt: skip
    """Show why a finding is there: kdissect why CAPTURE N, with its number on the first screen.

    It prints the sentence, the stretch of time as a drawing (client, network, broker), five rows that prove it, and
    what was ruled out and by what. Without N it lists all findings; where there is none, what was looked for and the
    longest silences. --rows prints all rows of the evidence, --command the filter that selects them.
    """
    given = list(captures)
    number = int(given.pop()) if given and (len(given) > 1 or demo) and given[-1].isdecimal() else None
    if number is None and (rows or command or form is not None or output is not None):
        raise click.UsageError("say which finding: kdissect why CAPTURE N")
    capture = open_capture(given, demo=demo, **settings)
    target = named(given, demo)
    handles = capture.analysis.numbered_findings()
    if number is None or not handles:
        from kdissect.cli.subcommands.evidence import calm_screen

        if handles:
            terminal.page(calm_screen.list_findings(handles, target, terminal.width(), local=local))
        else:
            silences = capture.analysis.silences()
            terminal.page(calm_screen.nothing_found(silences, target, terminal.width(), local=local))
        return
    if not 1 <= number <= len(handles):
        raise UsageError(f"no finding has the number {number}: this capture has findings 1 to {len(handles)}")
    _show(capture, handles[number - 1], target, rows or form is not None or output is not None, command,
          (form, output, csv_safe), local)  # fmt: skip


def _show(
    capture: Capture, handle: Handle, target: list[str], rows: bool, command: bool,
    written: tuple[str | None, str | None, bool], local: bool,
) -> None:  # fmt: skip
    finding = handle.row
    if command:
        from kdissect.cli.printing.next_steps import evidence

        terminal.put([evidence(finding, target)])
    elif rows:
        from kdissect.cli import answers
        from kdissect.cli.opening import small

        form, output, csv_safe = written
        form = written_as(form, output)
        where = finding["filter"] or None
        columns = answers.table_columns(finding["table"], None, form, output, where)
        answers.print_table(capture, finding["table"], columns, where, form, output, small(capture), csv_safe=csv_safe)
    else:
        from kdissect.cli.subcommands.evidence import why_screen

        explained = capture.analysis.explain(finding)
        lines = why_screen.render(explained, handle, target, terminal.width(), local=local, plain=terminal.ascii_only())
        terminal.page(lines)

"""`why`: the evidence of a finding, and what was looked for where there is none."""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from kdissect.cli.opening import name_captures, open_capture
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
    from kdissect.engine.capture import Capture
    from kdissect.summary.account import Handle


@click.command(short_help="The evidence of a finding of the first screen.")
@capture_arguments()
@click.option("--rows", is_flag=True, help="Print all rows of the evidence.")
@click.option("--command", is_flag=True, help="Print the command that selects these rows.")
@click.option("--finding", metavar="JSON", hidden=True, help="A row of findings instead of N: what the live view asks.")
@selection_options
@slow_option
@output_options
@time_options
def why(
    captures: tuple[str, ...], demo: bool, rows: bool, command: bool, finding: str | None, form: str | None,
    csv_safe: bool, output: str | None, local: bool, **settings: Any,
) -> None:  # fmt: skip
    """Show why a finding is there: kdissect why CAPTURE N, with its number on the first screen.

    It prints the sentence, the stretch of time as a drawing (client, network, broker), five rows that prove it, and
    the causes that were ruled out. Without N it lists all findings. If none is an incident, it prints what rules look
    for, the longest silences and the widest gap between two topics. Option --rows prints all rows of the evidence,
    --command the filter that selects them.
    """
    if finding is not None:
        _explain_row(open_capture(captures, demo=demo, **settings), finding, local)
        return
    given = list(captures)
    number = int(given.pop()) if given and (len(given) > 1 or demo) and given[-1].isdecimal() else None
    if number is None and (rows or command or form is not None or output is not None):
        raise click.UsageError("say which finding: kdissect why CAPTURE N")
    capture = open_capture(given, demo=demo, **settings)
    target = name_captures(given, demo)
    from kdissect.summary.account import number_findings, quiet

    summary = capture.summary()
    some = summary.findings_of is not None
    handles = number_findings(capture.table("findings").to_pylist() if some else summary.findings)
    if number is None or not handles:
        from rich.text import Text

        from kdissect.cli.subcommands.evidence import calm_screen

        width = terminal.width()
        lines = calm_screen.list_findings(handles, target, width, local=local) if handles else []
        if all(quiet(one.row) for one in handles):
            silences = capture.analysis.silences() if summary.exchanges else None  # which reads the capture again
            many = silences is not None and silences.num_rows  # as many exchanges leave silences
            gap = capture.analysis.topic_gap() if many else None
            unusual = calm_screen.nothing_found(silences, gap, target, width, local=local, quiet=bool(handles))
            lines += [*([Text()] if lines else []), *unusual]
        terminal.page(lines)
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

        terminal.print_plain([evidence(finding, target)])
    elif rows:
        from kdissect.cli import answers
        from kdissect.cli.opening import small

        form, output, csv_safe = written
        form = written_as(form, output)
        where = finding["filter"] or None
        columns = answers.table_columns(finding["table"], None, form, output, where)
        answers.print_table(capture, finding["table"], columns, where, form, output, small(capture), csv_safe=csv_safe)
    else:
        from kdissect.cli.subcommands.evidence.why_screen import rows_command

        _print(capture, handle, rows_command(target, handle.number), terminal.page_lines(), local)


def _print(capture: Capture, handle: Handle, command: str, lines: int | None, local: bool) -> None:
    """Print the explanation of a finding with the command that gives its rows, in at most so many lines."""
    from kdissect.cli.subcommands.evidence import why_screen

    explained = capture.analysis.explain(handle.row)
    plain = terminal.ascii_only()
    terminal.page(why_screen.render(explained, handle, command, terminal.width(), lines, local=local, plain=plain))


def _explain_row(capture: Capture, finding: str, local: bool) -> None:
    """Print the explanation of a row of `findings`, which may be of an earlier look at the same packets."""
    from kdissect.cli.printing.next_steps import evidence
    from kdissect.summary.account import Handle
    from kdissect.tables.declaration import SCHEMAS

    try:
        given = json.loads(finding)
        row = {name: given.get(name) for name in SCHEMAS["findings"].names}
        for name in ("first_at", "last_at"):
            row[name] = None if row[name] is None else datetime.fromisoformat(row[name])
        number = int(given.get("number", 1))
    except (ValueError, TypeError, AttributeError):
        raise click.UsageError("--finding takes a row of findings as JSON") from None
    _print(capture, Handle(number, row, follows=False), evidence(row, ["FILE"]), None, local)

"""The output of `why` about one finding, in as many lines as the smallest terminal has."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.text import Text

from kdissect.analysis.questions.explanation import Explanation
from kdissect.cli.analyses import rows_of
from kdissect.cli.printing import words
from kdissect.cli.printing.accounts import headline_lines
from kdissect.cli.printing.next_steps import PIPE
from kdissect.cli.printing.screen import PAGE
from kdissect.cli.subcommands.evidence.stretch_drawing import LEAST_LINES, draw_stretch
from kdissect.summary.account import Handle

if TYPE_CHECKING:
    import pyarrow as pa

KEPT = 4
"""Columns of the rows that no width leaves out."""
MOST_RULED_OUT = 4
INDENT = "  "


def render(
    explained: Explanation, handle: Handle, command: str, width: int, lines: int | None = PAGE, *, local: bool = False,
    plain: bool = False,
) -> list[Text]:  # fmt: skip
    """The finding, its stretch of time, its proof, what was ruled out, what to do, the capture
    that would settle the cause, `command`, which gives all rows (empty: none).

    At most `lines` (None: any number) are left. Blank lines go first, then the capture, then what to do, then lanes
    that are not always there. The causes that were ruled out and the end of a long sentence go last.
    """
    finding = explained.finding
    head = headline_lines(handle, width, local=local)
    said = [Text(line) for line in words.wrapped(str(finding["text"]), width)]
    drawing = draw_stretch(explained, width, local=local, plain=plain)
    proof = _proof(explained, width, local)
    ruled = _ruled_out(explained.ruled_out[:MOST_RULED_OUT], width)
    advice = (
        [Text(line, "italic") for line in words.wrapped(str(finding["advice"]), width)] if finding["advice"] else []
    )
    settled = _next_capture(finding, width)
    footer = [Text(line, "dim") for line in words.command_lines(command, width)] if command else []
    blocks = [head, said, drawing, proof, ruled, advice, settled, footer]
    room = math.inf if lines is None else max(PAGE, lines)
    for droppable in (settled, advice):
        if sum(map(len, blocks)) > room:
            blocks = [block for block in blocks if block is not droppable]
    if sum(map(len, blocks)) > room:
        drawing[:] = draw_stretch(explained, width, LEAST_LINES, local=local, plain=plain)
    for shortened, least in ((ruled, 0), (said, 1)):
        over = int(max(0, sum(map(len, blocks)) - room))
        del shortened[max(least, len(shortened) - over) :]
    blank = sum(map(len, blocks)) + len([block for block in blocks[1:] if block]) - 1 <= room
    shown: list[Text] = []
    for n, block in enumerate(blocks):
        shown += [*([Text()] if blank and n > 1 and block else []), *block]
    return shown


def _ruled_out(reasons: Sequence[str], width: int) -> list[Text]:
    """Lines of other causes that were ruled out, and by what; all but the first are indented."""
    lines: list[str] = []
    for reason in reasons:
        lines += words.wrapped(reason if lines else f"Ruled out: {reason}", width - len(INDENT))
    return [Text(INDENT * (n > 0) + line) for n, line in enumerate(lines)]


def rows_command(target: Sequence[str], number: int) -> str:
    """The command that prints all rows of a finding; empty for a pipe, which cannot be read again."""
    return "" if PIPE in target else f"kdissect why {' '.join(target)} {number} --rows"


def _next_capture(finding: Mapping[str, Any], width: int) -> list[Text]:
    """The command of a further capture that would settle the cause; nothing where the cause is sure."""
    if not finding["next_capture"]:
        return []
    sure = "likely, not proved" if finding["certainty"] == "likely" else "not known"
    command, _, where = str(finding["next_capture"]).partition("  # ")
    head = f"Its cause is {sure}. A capture that would settle it, {where}:"
    lines = words.command_lines(command, width)
    return [*(Text(line) for line in words.wrapped(head, width)), *(Text(line, "dim") for line in lines)]


def _proof(explained: Explanation, width: int, local: bool) -> list[Text]:
    """The rows that prove it, with the columns that differ between them first to stay."""
    from kdissect.tables.declaration import TABLES

    rows: pa.Table = explained.proof
    if not rows.num_rows:
        return []
    table = TABLES[str(explained.finding["table"])]
    shown = [name for name in table.shown or rows.column_names if rows[name].null_count < rows.num_rows]
    shown = shown or rows.column_names[:KEPT]
    total = explained.finding["count"] or rows.num_rows
    title = f"{words.number_of(total, 'row')} of {table.name}"
    if total > rows.num_rows:
        title += f", {rows.num_rows} of them"
    return [Text(title, "bold"), *rows_of(rows, shown, width, shown[: KEPT - 1 : -1], local=local, short=True)]

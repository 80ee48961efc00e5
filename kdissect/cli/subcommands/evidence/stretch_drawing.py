"""A stretch of time as lanes, one character a moment: requests of clients, the network, answers of brokers."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from rich.text import Text

from kdissect.analysis.questions.explanation import Explanation
from kdissect.arrays.arrow import NULL_TIME, Int64s, ints, reals, times
from kdissect.cli.printing import words
from kdissect.cli.printing.sparkline import sparkline

LABEL = 9
"""Columns of a lane's name."""
LEGEND = 30
"""Columns of what a lane counts."""
MOST_CELLS = 90
"""Cells of a lane: more are no easier to read."""


def draw_stretch(explained: Explanation, width: int, *, local: bool = False, plain: bool = False) -> list[Text]:
    """At most seven lines; none where the finding has no time, or nothing to draw."""
    finding = explained.finding
    if explained.begin is None or explained.end is None:
        return []
    low, high = (round(at.timestamp() * 1_000_000) for at in (explained.begin, explained.end))
    cells = max(10, min(width - LABEL - LEGEND, MOST_CELLS))
    exchanges, connections = explained.exchanges, explained.connections
    asked, answered = times(exchanges, "request_first_at"), times(exchanges, "response_first_at")
    again = np.nan_to_num(reals(exchanges, "request_resent_ms")) + np.nan_to_num(reals(exchanges, "response_resent_ms"))
    refused = _refused(explained)
    counted: list[tuple[str, Int64s, str, str]] = [
        ("client", _counts(asked, low, high, cells), "request sent", "cyan"),
        ("network", _counts(asked[again > 0], low, high, cells), "message sent again", "yellow"),
        ("broker", _counts(answered, low, high, cells), "answer", "cyan"),
        ("broker", _counts(times(connections, "started_at")[refused], low, high, cells), "connection refused", "red"),
        ("broker", _counts(answered[ints(exchanges, "error_code", 0) > 0], low, high, cells), "error", "red"),
    ]
    lanes = [(label, counts, noun, style) for label, counts, noun, style in counted
             if counts.any() or noun in ("request sent", "answer")]  # fmt: skip
    if not exchanges.num_rows and not refused.any():
        return []
    lines = [_axis(low, high, cells, local)]
    for label, counts, noun, style in lanes:
        lane = sparkline(counts.tolist(), cells, plain=plain)
        said = words.number_of(int(counts.sum()), noun, "connections refused" if "refused" in noun else _plural(noun))
        lines.append(Text.assemble((f"{label:<{LABEL}}", "dim"), (f"{lane:<{cells}}", style), f"  {said}"))
    first, last = finding["first_at"], finding["last_at"] or finding["first_at"]
    begin, end = (_cell(round(at.timestamp() * 1_000_000), low, high, cells) for at in (first, last))
    band = " " * begin + "=" * max(1, end - begin + 1)
    length = (last - first).total_seconds() * 1000
    lines.append(Text.assemble((f"{'finding':<{LABEL}}", "dim"), (f"{band:<{cells}}", "bold"),
                               f"  {words.milliseconds(length)}" if length else "  one instant"))  # fmt: skip
    return lines


def _plural(noun: str) -> str:
    head, _, rest = noun.partition(" ")
    return f"{head}s {rest}".rstrip()


def _refused(explained: Explanation) -> npt.NDArray[np.bool_]:
    """Connections that were answered by a reset before any byte."""
    connections = explained.connections
    reason = np.array([name == "rst" for name in connections["end_reason"].to_pylist()], np.bool_)
    flags: npt.NDArray[np.bool_] = reason & (ints(connections, "bytes", 0) == 0)
    return flags


def _counts(at: Int64s, low: int, high: int, cells: int) -> Int64s:
    at = at[(at != NULL_TIME) & (at >= low) & (at <= high)]
    places = np.minimum((at - low) * cells // max(1, high - low), cells - 1)
    found: Int64s = np.bincount(places, minlength=cells).astype(np.int64)
    return found


def _cell(at: int, low: int, high: int, cells: int) -> int:
    return int(min(max(0, (at - low) * cells // max(1, high - low)), cells - 1))


def _axis(low: int, high: int, cells: int, local: bool) -> Text:
    begin, end = (words.time_of_day(at, local=local) for at in (low, high))
    return Text(" " * LABEL + begin + " " * max(1, cells - len(begin) - len(end)) + end, "dim")

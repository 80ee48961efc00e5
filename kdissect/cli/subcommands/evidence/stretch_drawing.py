"""A stretch of time as lanes, one character a moment: requests, and whose the time was by the ledger."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from rich.text import Text

from kdissect.analysis.findings.evidence import resent_ms
from kdissect.analysis.questions.explanation import Explanation
from kdissect.arrays.arrow import NULL_TIME, Int64s, ints, times
from kdissect.cli.printing import words
from kdissect.cli.printing.grid import fit
from kdissect.cli.printing.sparkline import share_bars, sparkline
from kdissect.escaping import visible

LABEL = 9
"""Columns of a lane's name."""
LEGEND = 30
"""Columns of what a lane adds up to."""
NARROW = 70
"""Columns below which lanes have no legend."""
MOST_CELLS = 90
"""Cells of a lane: more are no easier to read."""
LEAST_LINES, MOST_LINES = 6, 8
"""The axis, requests, client, network, broker and the finding always have a line; others where there is room."""
OF_CLIENT, OF_NETWORK = ("own", "silent"), ("network",)
OF_BROKER = ("broker", "replication", "transaction", "throttled")
"""Owners of time in the ledger by lane; `gone` is in the lane of what is gone."""
OF_OTHERS = ("agreed", "idle", "unknown")
"""They have lanes of their own where room is left, those with most time first."""
Floats = npt.NDArray[np.float64]


def draw_stretch(
    explained: Explanation, width: int, most: int = MOST_LINES, *, local: bool = False, plain: bool = False
) -> list[Text]:
    """At most `most` lines (LEAST_LINES or more); none where the finding has no time, or nothing to draw.

    Lanes of owners show which share of a moment was theirs: as high as a line is all of it. Below the axis stands the
    number of requests, at the end how long the finding lasted.
    """
    finding = explained.finding
    refused = _refused(explained)
    something = explained.exchanges.num_rows or explained.ledger.num_rows or refused.any()
    if explained.begin is None or explained.end is None or not something:
        return []
    low, high = (round(at.timestamp() * 1_000_000) for at in (explained.begin, explained.end))
    cells = min(width - LABEL - (LEGEND if width >= NARROW else 0), MOST_CELLS)
    first, last = finding["first_at"], finding["last_at"] or finding["first_at"]
    begin, end = (_cell(round(at.timestamp() * 1_000_000), low, high, cells) for at in (first, last))
    length = (last - first).total_seconds() * 1000
    band = " " * begin + "=" * max(1, end - begin + 1)
    lines = [
        _axis(low, high, cells, local, _subjects(explained.ledger)),
        _requests(explained, low, high, cells, plain),
        *_owners(explained.ledger, low, high, cells, plain),
    ]
    lines += _events(explained, refused, low, high, cells, plain)[: most - 1 - len(lines)]
    lines += _other_owners(explained.ledger, low, high, cells, plain)[: most - 1 - len(lines)]
    lines.append(_lane("finding", band, "bold", words.milliseconds(length) if length else "one instant", cells))
    if width < NARROW:
        for line in lines:
            line.truncate(LABEL + cells)
    return lines


def _lane(label: str, drawn: str, style: str, said: str, cells: int) -> Text:
    legend = fit(said, LEGEND - 2)
    return Text.assemble((f"{label:<{LABEL}}", "dim"), (f"{drawn:<{cells}}", style), f"  {legend}")


def _axis(low: int, high: int, cells: int, local: bool, whose: str) -> Text:
    begin, end = (words.time_of_day(at, local=local) for at in (low, high))
    blank = " " * max(1, cells - len(begin) - len(end))
    return Text(f"{' ' * LABEL}{begin}{blank}{end}  {fit(whose, LEGEND - 2)}".rstrip(), "dim")


def _subjects(ledger: pa.Table) -> str:
    """Whose time the lanes of owners are."""
    names = dict.fromkeys(zip(ledger["subject"].to_pylist(), ledger["client_ip"].to_pylist(), strict=True))
    kind = ledger["by"][0].as_py() if ledger.num_rows else ""
    if len(names) == 1:
        return f"time of {kind} {visible(next(iter(names))[0] or '')}"
    return f"time of {words.number_of(len(names), kind)}" if names else ""


def _requests(explained: Explanation, low: int, high: int, cells: int, plain: bool) -> Text:
    asked, answered = (
        _counts(times(explained.exchanges, name), low, high, cells)
        for name in ("request_first_at", "response_first_at")
    )
    said = f"{words.count(int(asked.sum()))} sent, {words.count(int(answered.sum()))} answered"
    return _lane("requests", sparkline(asked.tolist(), cells, plain=plain), "cyan", said, cells)


def _owners(ledger: pa.Table, low: int, high: int, cells: int, plain: bool) -> list[Text]:
    """The lanes of client, network and broker; none where no subject is known."""
    if not ledger.num_rows:
        return []
    gone_broker = ledger["by"][0].as_py() == "broker"
    lanes = (
        ("client", OF_CLIENT if gone_broker else (*OF_CLIENT, "gone"), "cyan"),
        ("network", OF_NETWORK, "yellow"),
        ("broker", (*OF_BROKER, "gone") if gone_broker else OF_BROKER, "magenta"),
    )
    return [_owned(ledger, label, owners, style, low, high, cells, plain) for label, owners, style in lanes]


def _other_owners(ledger: pa.Table, low: int, high: int, cells: int, plain: bool) -> list[Text]:
    spent = {owner: ms for owner, ms in _spent(ledger).items() if owner in OF_OTHERS}
    return [_owned(ledger, owner, (owner,), "dim", low, high, cells, plain) for owner in spent]


def _owned(
    ledger: pa.Table, label: str, owners: Sequence[str], style: str, low: int, high: int, cells: int, plain: bool
) -> Text:
    """A lane with the share of each moment that was these owners', and how long each had."""
    whose = np.array(ledger["owner"].to_pylist(), object)
    begin, end = times(ledger, "at"), times(ledger, "until")
    said = ", ".join(f"{'' if owner == label else owner + ' '}{words.milliseconds(ms)}"
                     for owner, ms in _spent(ledger).items() if owner in owners)  # fmt: skip
    subjects = len(set(zip(ledger["subject"].to_pylist(), ledger["client_ip"].to_pylist(), strict=True)))
    mine = np.isin(whose, list(owners))
    edges = np.linspace(low, high, cells + 1)
    covered = np.diff(_time_before(begin[mine], end[mine], edges)) / max(1.0, (high - low) / cells * subjects)
    return _lane(label, share_bars(covered.tolist(), plain=plain), style, said or "nothing", cells)


def _spent(ledger: pa.Table) -> dict[str, float]:
    """Milliseconds of each owner, the most first."""
    took = pa.array((times(ledger, "until") - times(ledger, "at")) / 1000)
    rows = pa.table({"owner": ledger["owner"], "ms": took}).group_by("owner").aggregate([("ms", "sum")])
    spent = {row["owner"]: row["ms_sum"] for row in rows.to_pylist() if row["ms_sum"] > 0}
    return dict(sorted(spent.items(), key=lambda one: -one[1]))


def _time_before(begin: Int64s, end: Int64s, instants: Floats) -> Floats:
    """How much of the intervals lies before each instant, all added up; microseconds."""
    parts = []
    for ends in (begin, end):
        ordered = np.sort(ends)
        count = np.searchsorted(ordered, instants)
        parts.append(count * instants - np.append(0.0, np.cumsum(ordered.astype(np.float64)))[count])
    lasted: Floats = parts[0] - parts[1]
    return lasted


def _events(
    explained: Explanation, refused: npt.NDArray[np.bool_], low: int, high: int, cells: int, plain: bool
) -> list[Text]:
    """Lanes of what is counted where there is any: connections that were refused, errors, messages sent again."""
    exchanges = explained.exchanges
    asked, answered = times(exchanges, "request_first_at"), times(exchanges, "response_first_at")
    again = resent_ms(exchanges)
    counted = (
        ("refused", times(explained.connections, "started_at")[refused], "connection", "red"),
        ("errors", answered[ints(exchanges, "error_code", 0) > 0], "answer", "red"),
        ("resent", asked[again > 0], "message", "yellow"),
    )
    lanes = []
    for label, at, noun, style in counted:
        counts = _counts(at, low, high, cells)
        if counts.any():
            said = words.number_of(int(counts.sum()), noun)
            lanes.append(_lane(label, sparkline(counts.tolist(), cells, plain=plain), style, said, cells))
    return lanes


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

"""A record's way from its producer to its readers, a line a hop, on a common axis of time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from rich.text import Text

from kdissect.cli.printing import words
from kdissect.cli.printing.grid import Header, grid_by_cluster, gridded
from kdissect.escaping import visible

if TYPE_CHECKING:
    import pyarrow as pa

AXIS = 32
"""Cells of the axis of time."""
HOPS = (
    ("buffered", "buffered_ms", "producer"),
    ("sent", "produce_ms", "network"),
    ("committed", "commit_ms", "replication"),
    ("transaction", "transaction_ms", "transaction"),
    ("no fetch", "absent_ms", "reader"),
    ("served", "served_ms", "broker"),
    ("received", "transfer_ms", "network"),
)
"""What a hop is called, its column in `deliveries`, and whom `waited_for` names for it."""


def waterfall(
    rows: Sequence[Mapping[str, Any]], exchanges: Mapping[str, Mapping[str, Any]], width: int
) -> Iterator[Text]:
    """Lines for rows of `deliveries`: a heading for each batch, then its readers with their hops.

    `exchanges`: rows of `exchanges` by id, with request_frame, response_frame and their files.
    """
    batch = None
    several = len({row["cluster"] for row in rows}) > 1
    for row in rows:
        key = row["cluster"], row["topic"], row["topic_id"], row["partition"], row["base_offset"]
        if key != batch:
            if batch is not None:
                yield Text()
            yield Text(_heading(row, several), "bold")
        batch = key
        yield Text(f"  {_reader(row)}")
        yield from _hops(row, exchanges, width)


def _heading(row: Mapping[str, Any], several: bool) -> str:
    """The batch; its cluster, where rows are of several."""
    offsets = str(row["base_offset"])
    if row["last_offset"] != row["base_offset"]:
        offsets += f" to {row['last_offset']}"
    text = f"{row['topic'] or row['topic_id']}:{row['partition']}  offset {offsets}"
    if row["records"] is not None:
        text += f", {words.number_of(row['records'], 'record')}"
    text += f", {words.size(row['record_bytes'])}"
    if row["codec"] not in (None, "none"):
        text += f", {row['codec']}"
    if row["is_transactional"]:
        text += ", transactional"
    if row["times_written"] is not None and row["times_written"] > 1:
        text += f", sent {row['times_written']} times"
    if several:
        text += f", cluster {row['cluster'] or '-'}"
    return visible(text)


def _reader(row: Mapping[str, Any]) -> str:
    who = row["client_id"] or "a client without an id"
    if row["group_id"] is not None:
        who = f"group {row['group_id']} ({who})"
    elif row["is_follower"]:
        who = f"follower {who}"
    took = (
        "its Produce request was not captured" if row["produce_exchange_id"] is None
        else "one of its times was not captured" if row["delivery_ms"] is None
        else f"{words.milliseconds(row['delivery_ms'])} after it was sent; waited for: {row['waited_for']}"
    )  # fmt: skip
    again = "" if row["times"] <= 1 else f"; read {row['times']} times"
    return visible(f"{who}, from broker {row['broker']}: {took}{again}")


def _hops(row: Mapping[str, Any], exchanges: Mapping[str, Mapping[str, Any]], width: int) -> Iterator[Text]:
    """The hops of one delivery; the answer alone where the rest is not known."""
    if row["delivery_ms"] is None:
        yield Text(f"     {_evidence(row['fetch_exchange_id'], exchanges, 'response')}", "dim")
        return
    begin = row["produced_at"] - timedelta(milliseconds=row["buffered_ms"] or 0.0)
    whole = row["delivery_ms"] + (row["buffered_ms"] or 0.0)
    lines, passed = [], 0.0
    for name, column, cause in HOPS:
        took = row[column]
        if not took:
            continue
        mark = "*" if cause == row["waited_for"] else ""
        at = words.time_of_day(begin + timedelta(milliseconds=passed))
        evidence = ""
        if name == "sent":
            evidence = _evidence(row["produce_exchange_id"], exchanges, "request")
        elif name == "received":
            evidence = _evidence(row["fetch_exchange_id"], exchanges, "response")
        cells = ("   ", name, _bar(passed, took, whole), words.milliseconds(took), mark, at, evidence)
        lines.append(cells)
        passed += took
    headers = [
        Header(""), Header("hop"), Header("", style="cyan"), Header("took", right=True), Header(""),
        Header("at", drop=2), Header("open", drop=1, style="dim"),
    ]  # fmt: skip
    yield from gridded(headers, lines, width, titles=False)


def _bar(begin: float, took: float, total: float) -> str:
    """The stretch on the axis, one cell at least."""
    if total <= 0:
        return ""
    first = min(int(begin / total * AXIS), AXIS - 1)
    last = max(first + 1, min(round((begin + took) / total * AXIS), AXIS))
    return " " * first + "█" * (last - first) + " " * (AXIS - last)


def _evidence(exchange_id: str | None, exchanges: Mapping[str, Mapping[str, Any]], side: str) -> str:
    """The frame that completed the message, for `show --frame` and Wireshark; else the exchange."""
    known = None if exchange_id is None else exchanges.get(exchange_id)
    if exchange_id is None or known is None or known[f"{side}_frame"] is None:
        return exchange_id or ""
    return f"frame {known[f'{side}_frame']}"


def summary_lines(table: pa.Table, width: int) -> Iterator[Text]:
    """Rows of `delivery_summary.SUMMARY` as aligned text."""
    headers = [
        Header("Topic", style="cyan"), Header("reader"), Header("batches", right=True, drop=3),
        Header("p50", right=True), Header("p99", right=True), Header("worst", right=True, drop=2),
        Header("waited for"), Header("read again", right=True, drop=1),
    ]  # fmt: skip
    every = table.to_pylist()
    rows = [
        (
            row["topic"] or "-", _summary_reader(row), words.count(row["deliveries"]),
            words.milliseconds(row["p50_ms"]), words.milliseconds(row["p99_ms"]), words.milliseconds(row["max_ms"]),
            "" if row["waited_for"] is None else f"{row['waited_for']} ({row['waited_share']:.0%})",
            words.count(row["again"]) if row["again"] else "",
        )
        for row in every
    ]  # fmt: skip
    return grid_by_cluster(headers, rows, [row["cluster"] for row in every], width)


def _summary_reader(row: Mapping[str, Any]) -> str:
    return f"follower {row['reader'] or '-'}" if row["is_follower"] else row["reader"] or "-"

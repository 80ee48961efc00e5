"""Findings of large captures: they are looked at span by span of their time, each like a capture of its own.

All exchanges of a span are there, and of connections what a capture of that span would tell: those that were open, from
its begin to its end. So a finding of a span is as true as one of a capture that was started late and stopped early.
Nothing is seen that lasts longer than a span, such as a silence of minutes among very many exchanges. Rules of
lifetimes and of few rows, such as those of fetch sessions, see all of them at once.

Where a capture is cut depends on how many rows it has when. So it does not matter who cuts it, or in which parts rows
come.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from kdissect.analysis.cluster_split import cluster_codes
from kdissect.analysis.findings.finders import LIFETIMES
from kdissect.arrays.arrow import NULL_TIME, Int64s, ints, times
from kdissect.arrays.from_numpy import arrow_array
from kdissect.problems import Kind
from kdissect.tables.declaration.model import TIME_KEY
from kdissect.tables.order import order

SPAN_ROWS = 1 << 19
"""Rows about requests of a cluster in a span: exchanges, fetches, their partitions and so on. As many belong to 150,000
exchanges of small frames, and some 75 MB of them are kept."""
COUNTED = frozenset({"exchanges", "fetches", "fetch_partitions", "produces", "offset_commits"})
"""Tables whose rows are counted. Those of `record_batches` are a sample, which depends on who reads what."""
MOST_ROWS = 4 * SPAN_ROWS
"""Rows of a span that are looked at: requests of one instant cannot be told apart by it."""
SECOND = 1_000_000
"""Microseconds."""
MOST_PARTS = 64
"""Counts that are kept before they are added up."""
INSTANTS = {"groups": "at", "leaders": "at", "producers": "sent_at", "deliveries": "delivered_at"}
"""Of tables that are not ordered by their requests' time the column that says when."""
OPEN = "open"
"""How a connection ends that was open when the capture ended."""
Cuts = Sequence[int]
"""The instants (µs) at which spans end, but for the last one, which has no end; ascending."""
Counts = tuple[Int64s, Int64s]
"""Seconds since the epoch, and a number for each."""


class SecondCounts:
    """How many rows of each cluster are of requests that began in each second."""

    def __init__(self) -> None:
        self._counts: dict[str | None, list[Counts]] = {}

    def add_rows(self, name: str, table: pa.Table) -> None:
        """All rows of a table, with the time that they are ordered by; nothing of those that are not in COUNTED. Rows
        without a time are of the first span."""
        if name not in COUNTED or TIME_KEY not in table.column_names:
            return
        codes, clusters = cluster_codes(table)
        at = ints(table, TIME_KEY, NULL_TIME)
        for code in np.unique(codes).tolist():
            mine = at[(codes == code) & (at != NULL_TIME)]
            self.add(None if code < 0 else clusters[code], *np.unique(mine // SECOND, return_counts=True))

    def add(self, cluster: str | None, seconds: Int64s, counts: Int64s) -> None:
        """Add rows of a cluster that were counted: how many are of each of these seconds."""
        parts = self._counts.setdefault(cluster, [])
        parts.append((seconds, counts))
        if len(parts) > MOST_PARTS:
            parts[:] = [_add_up(parts)]

    @property
    def clusters(self) -> list[str | None]:
        """The clusters of the rows."""
        return list(self._counts)

    def counted(self) -> Iterator[tuple[str | None, int, int]]:
        """Cluster, second and number of rows."""
        for cluster, parts in self._counts.items():
            seconds, counts = _add_up(parts)
            for second, count in zip(seconds.tolist(), counts.tolist(), strict=True):
                yield cluster, second, count

    def cuts(self, cluster: str | None, only_cluster: bool) -> tuple[int, ...]:
        """Where a cluster is cut. `only_cluster`: no others are searched, so rows without a cluster are of it, too."""
        every = [part for parts in self._counts.values() for part in parts]
        parts = every if only_cluster else self._counts.get(cluster, [])
        return cut(*_add_up(parts)) if parts else ()


def _add_up(parts: Sequence[Counts]) -> Counts:
    seconds, counts = (np.concatenate(some) for some in zip(*parts, strict=True))
    every, place = np.unique(seconds, return_inverse=True)
    return every, np.bincount(place, weights=counts, minlength=len(every)).astype(np.int64)


def cut(seconds: Int64s, counts: Int64s) -> tuple[int, ...]:
    """The instants (µs) at which spans of about SPAN_ROWS end, but for the last one. A second that has more is cut into
    equal parts."""
    found: list[int] = []
    total = 0
    for second, count in zip(seconds.tolist(), counts.tolist(), strict=True):
        if total and total + count > SPAN_ROWS:
            found.append(second * SECOND)
            total = 0
        parts = -(-count // SPAN_ROWS)
        found += [second * SECOND + SECOND * part // parts for part in range(1, parts)]
        total = count // parts if parts > 1 else total + count
    return tuple(found)


def deal_rows(name: str, table: pa.Table, cuts: Cuts) -> Iterator[tuple[int, pa.Table]]:
    """Each span that sees any of these rows of a table: its number, and the rows."""
    if not cuts:
        yield 0, table
    elif name in LIFETIMES:
        for number in range(len(cuts) + 1):
            seen = rows_in_span(name, table, cuts, number)
            if seen.num_rows:
                yield number, seen
    else:
        span = _spans_of(name, table, cuts)
        for number in np.unique(span).tolist():
            yield number, table.filter(arrow_array(span == number))


def rows_in_span(name: str, table: pa.Table, cuts: Cuts, number: int) -> pa.Table:
    """The rows of a table that the span of that number sees."""
    if not cuts:
        return table
    if name == "connections":
        return _open_connections(table, *_edges(cuts, number))
    if name in LIFETIMES:
        return table
    return table.filter(arrow_array(_spans_of(name, table, cuts) == number))


def spans_between(cuts: Cuts, first: int, last: int) -> range:
    """The numbers of the spans that have instants from `first` to `last` (µs)."""
    begin, end = np.searchsorted(np.array(cuts, np.int64), [first, last], "right").tolist()
    return range(begin, end + 1)


def instants_of(name: str, table: pa.Table) -> Int64s:
    """When each row is, µs; NULL_TIME where that is not known."""
    return times(table, INSTANTS[name]) if name in INSTANTS else ints(table, TIME_KEY, NULL_TIME)


def _spans_of(name: str, table: pa.Table, cuts: Cuts) -> Int64s:
    """The number of each row's span: the first one for rows without an instant."""
    at = instants_of(name, table)
    return np.searchsorted(np.array(cuts, np.int64), at, "right").astype(np.int64)


def _edges(cuts: Cuts, number: int) -> tuple[int | None, int | None]:
    return cuts[number - 1] if number else None, cuts[number] if number < len(cuts) else None


def _open_connections(connections: pa.Table, begin: int | None, end: int | None) -> pa.Table:
    """The connections that were open between two instants (None: at any time), as a capture of that time has them."""
    began, ended = times(connections, "started_at"), times(connections, "ended_at")
    there = np.ones(len(began), np.bool_)
    if begin is not None:
        there &= (ended >= begin) | (ended == NULL_TIME)
    if end is not None:
        there &= began < end
    table = connections.filter(arrow_array(there))
    began, ended = began[there], ended[there]
    changed: dict[str, pa.Array] = {}
    if begin is not None:
        before = began < begin
        changed["started_at"] = arrow_array(np.maximum(began, begin), mask=_unknown(began))
        changed["start_seen"] = pc.and_(table["start_seen"], arrow_array(~before))
    if end is not None:
        goes_on = (ended >= end) | (ended == NULL_TIME)
        changed["ended_at"] = arrow_array(np.minimum(ended, end), mask=_unknown(ended))
        changed["end_reason"] = pc.if_else(arrow_array(goes_on), OPEN, table["end_reason"].cast(pa.string()))
        none = pa.scalar(None, pa.string())
        changed["closed_by"] = pc.if_else(arrow_array(goes_on), none, table["closed_by"].cast(pa.string()))
    for name, column in changed.items():
        at = table.schema.get_field_index(name)
        field = table.schema.field(at)
        kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        table = table.set_column(at, field.with_type(kind), column.cast(kind))
    return order("connections", table)


def _unknown(at: Int64s) -> npt.NDArray[np.bool_] | None:
    unknown = at == NULL_TIME
    return unknown if unknown.any() else None


def cuts_of(tables: Mapping[str, pa.Table], cluster: str | None) -> tuple[int, ...]:
    """Where the tables of one cluster are cut."""
    if sum(tables[name].num_rows for name in COUNTED if name in tables) <= SPAN_ROWS:
        return ()
    counts = SecondCounts()
    for name, table in tables.items():
        counts.add_rows(name, table)
    return counts.cuts(cluster, only_cluster=True)


def leave_out(rows: int) -> dict[str, str]:
    """A row of `problems`: a span had so many rows."""
    detail = (
        f"{rows:,} rows are of requests that began at nearly the same instant: findings look at {MOST_ROWS:,} of them"
    )
    return {"kind": Kind.BUFFER_LIMIT.name.lower(), "where": "findings", "detail": detail}


__all__ = [
    "MOST_ROWS",
    "SPAN_ROWS",
    "SecondCounts",
    "cuts_of",
    "deal_rows",
    "instants_of",
    "leave_out",
    "rows_in_span",
    "spans_between",
]

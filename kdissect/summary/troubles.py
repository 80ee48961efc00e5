"""Problems by kind, apart from those that nothing is wrong with. These are answers to requests from before the capture,
the rest of a frame that started before it, and a broker's padding of down-converted records.

The connection distinguishes the effects of a late start from losses: its opening was not captured, no byte of it is
missing, and requests of it were captured too. Answers keep the order of requests, so one without a request answers what
was asked before.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from kdissect.summary.model import ProblemLine
from kdissect.tables.order import order

PADDING = "padding of a down-converted response"
"""How `detail` begins where a broker filled up a response after down-conversion (KIP-283: it must be as long as was
announced); readers skip it."""
LATE = ("orphan_response", "ambiguous", "resynchronised")
"""Kinds that a late start can explain."""
MOST_LATE = 100_000
"""Rows (connection x kind) that are looked at for that, some 20 MB; beyond them problems are called problems."""
COLUMNS = ("kind", "bytes", "detail", "at", "exchange_id", "connection_id")


class Troubles:
    """Gathers rows of `problems`, and of `connections` those whose opening was not captured."""

    def __init__(self) -> None:
        self._right = _Kinds()
        self._wrong = _Kinds()
        self._late: list[pa.Table] = []
        self._rows = 0
        self._begun: list[pa.Table] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """Rows of `problems`."""
        rows = pa.table([batch.column(name) for name in COLUMNS], list(COLUMNS))
        rows = order("problems", rows.set_column(3, "at", rows["at"].cast(pa.int64())))
        kind, detail = rows["kind"].cast(pa.string()), rows["detail"].cast(pa.string())
        padding = pc.fill_null(pc.and_(pc.equal(kind, "records"), pc.starts_with(detail, PADDING)), False)
        self._right.add(_summed(rows.filter(padding), ["kind"]))
        inferred = pc.match_substring(rows["exchange_id"].cast(pa.string()), ":r")  # of a response without a request
        late = pc.and_(pc.is_in(kind, pa.array(LATE)), pc.is_valid(rows["connection_id"]))
        late = pc.and_(late, pc.or_(pc.not_equal(kind, "ambiguous"), pc.fill_null(inferred, False)))
        if self._rows >= MOST_LATE:
            late = pa.array([False] * rows.num_rows, pa.bool_())
        some = _summed(rows.filter(late), ["kind", "connection_id"])
        self._late.append(some)
        self._rows += some.num_rows
        self._wrong.add(_summed(rows.filter(pc.invert(pc.or_(padding, late))), ["kind"]))

    def connected(self, batch: pa.RecordBatch) -> None:
        """Rows of `connections`, where they say how they began."""
        if {"start_seen", "missing_bytes", "exchanges", "is_kafka"}.issubset(batch.schema.names):
            rows = pa.Table.from_batches([batch]).select(["connection_id", "exchanges", "start_seen", "missing_bytes",
                                                          "is_kafka"])  # fmt: skip
            flags = pc.and_(rows["is_kafka"], pc.invert(rows["start_seen"]))
            flags = pc.and_(flags, pc.equal(rows["missing_bytes"], 0))
            rows = rows.filter(pc.fill_null(flags, False)).select(["connection_id", "exchanges"])
            self._begun.append(rows.set_column(0, "connection_id", rows["connection_id"].cast(pa.string())))

    def finish(self, cut: bool) -> tuple[list[ProblemLine], list[ProblemLine]]:
        """The problems, and those that are explained; each the most frequent kind first. `cut`: packets were cut, so
        requests may be missing without a byte being missing."""
        if self._late:
            late = pa.concat_tables(self._late, promote_options="permissive")
            explained = pc.is_in(late["connection_id"].cast(pa.string()), self._explained(late, cut))
            self._right.add(late.filter(explained))
            self._wrong.add(late.filter(pc.invert(explained)))
            self._late = []
        return self._wrong.lines(), self._right.lines()

    def _explained(self, late: pa.Table, cut: bool) -> pa.Array:
        """Connections that began before the capture, miss nothing, and have more than orphans in it."""
        if cut or not self._begun:
            return pa.array([], pa.string())
        begun = pa.concat_tables(self._begun)
        orphans = late.filter(pc.equal(late["kind"].cast(pa.string()), "orphan_response"))
        alone = pa.table([orphans["connection_id"].cast(pa.string()), orphans["count"]], ["connection_id", "count"])
        alone = alone.group_by("connection_id", use_threads=False).aggregate([("count", "sum")])
        at = pc.index_in(begun["connection_id"], alone["connection_id"].combine_chunks())
        count = pc.fill_null(alone["count_sum"].combine_chunks().take(pc.cast(at, pa.int64()).combine_chunks()), 0)
        both_ways = pc.greater(begun["exchanges"].combine_chunks(), count)
        return begun["connection_id"].combine_chunks().filter(both_ways)


def _summed(rows: pa.Table, keys: list[str]) -> pa.Table:
    """How many rows in order, and bytes of them, by these columns, with what stands first."""
    others = [name for name in ("at", "exchange_id", "connection_id", "detail") if name not in keys]
    firsts = [(name, "first", pc.ScalarAggregateOptions(skip_nulls=False)) for name in others]
    grouped = rows.group_by(keys, use_threads=False).aggregate([("kind", "count"), ("bytes", "sum"), *firsts])
    names = [*keys, "count", "bytes", *others]
    columns = [*keys, "kind_count", "bytes_sum", *(f"{name}_first" for name in others)]
    return grouped.select(columns).rename_columns(names)


class _Kinds:
    """Counts, bytes and the earliest example of each kind."""

    def __init__(self) -> None:
        self._of: dict[str, tuple[int, int | None, str]] = {}
        self._earliest: dict[str, tuple[Any, ...]] = {}
        """By kind, what the example of it is ordered by: pieces of `problems` come in any order."""

    def add(self, summed: pa.Table) -> None:
        """Rows of `_summed`."""
        for row in summed.to_pylist():
            kind = row["kind"]
            key = tuple((row[name] is None, row[name]) for name in ("at", "exchange_id", "connection_id"))
            count, size, example = self._of.get(kind, (0, None, ""))
            if kind not in self._earliest or key < self._earliest[kind]:
                self._earliest[kind], example = key, row["detail"] or ""
            if row["bytes"] is not None:
                size = (size or 0) + row["bytes"]
            self._of[kind] = (count + row["count"], size, example)

    def lines(self) -> list[ProblemLine]:
        """The most frequent kind first."""
        found = (ProblemLine(kind, *values) for kind, values in self._of.items())
        return sorted(found, key=lambda one: (-one.count, one.kind))

"""Lots: what the analysis works on, cut so that a later stage can take a broker's rows in order of time, bit by bit.

Of exchanges they hold the few that the analysis reads itself (`FEW`). The others have rows in `fetches` and `produces`,
and what the analysis finds in these goes back to where the exchanges were decoded (`found_holds`).

A lot holds all rows of its exchanges, of every table that the analysis reads; it is known by its first instant. Lots
are short, because a task that reads those of many partitions in order of their first instants holds back about one of
each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kdissect.analysis.exchange_keys import keys_of, locate
from kdissect.arrays.arrow import NULL_TIME, Coder, ints, reals, times
from kdissect.arrays.dictionaries import unified
from kdissect.arrays.growing import runs
from kdissect.arrays.rows import Rows
from kdissect.schema.apikeys import ApiKey
from kdissect.spark.cells.coded_cells import pack_fetches, pack_rows, split_rows
from kdissect.spark.cells.table_cells import Cell, cell, rows
from kdissect.tables.coded_rows import Later, produce_rows
from kdissect.tables.declaration.model import ACKS_KEY
from kdissect.tables.fetch_rows import NamedFetches
from kdissect.tables.table_block import READ_ASIDE

Words = npt.NDArray[np.int64]

GATHERED_ROWS = 1 << 17
"""Rows of all tables that are gathered before they are cut into lots, some 60 MB."""
GATHERED_BYTES = 64 << 20
WAITING = 1 << 17
"""Rows of a broker that lots of all partitions together may hold: what whoever reads them in order has to keep."""
LEAST, MOST = 1 << 10, 1 << 15
"""Rows of a lot, at least and at most: each of its tables costs some hundred microseconds, however few its rows are."""
INSTANTS = ("request_last_at", "response_first_at")
FEW = "few exchanges"
"""How staged rows name those exchanges of `exchanges` that the analysis reads."""
READ = np.array(
    [ApiKey.LIST_OFFSETS, ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP, ApiKey.SHARE_FETCH, ApiKey.SHARE_ACKNOWLEDGE]
)
"""API keys of them: ListOffsets tells high watermarks; JoinGroup, SyncGroup, ShareFetch and ShareAcknowledge wait for
something themselves or belong to sessions. Responses that announce a throttle window matter whatever they are, and so
do the later exchanges of their connections."""


class Lots:
    """Rows of several tables until there are enough of them.

    `brokers`: for rows of the table that has all exchanges a code each, and what the codes stand for. `partitions`: how
    many tasks make lots of the same brokers. `origin`: see STAGED.
    """

    def __init__(
        self, brokers: Callable[[pa.Table], tuple[Words, list[str]]], partitions: int, origin: int = 0
    ) -> None:
        self._brokers = brokers
        self._origin = origin
        self._most = min(max(WAITING // max(partitions, 1), LEAST), MOST)
        self._kept: dict[str, list[pa.RecordBatch]] = {}
        self._coded: list[tuple[str, Rows]] = []
        """Rows that do not come as tables, by the table that they are of."""
        self._aside: list[NamedFetches] = []
        """Fetches that were read aside."""
        self._rows = self._bytes = 0
        self._number = 0
        self._throttled = np.zeros(0, np.int64)
        """First parts of the keys of connections with a throttle window."""
        self.weights: dict[str, int] = {}
        """Broker -> rows so far."""

    def take(
        self, tables: Mapping[str, pa.RecordBatch], coded_tables: Mapping[str, Rows | Later] | None = None,
        fetches: NamedFetches | None = None,
    ) -> Iterator[pa.RecordBatch]:  # fmt: skip
        """All rows of some exchanges; staged rows when there are enough. `coded_tables`: tables whose rows come as
        codes, for the analysis alone reads them. Then `exchanges` have ACKS_KEY, and rows of `produces` are made of
        them. `fetches`: those that were read aside."""
        given = {name: batch for name, batch in tables.items() if batch.num_rows}
        if any(name in self._kept and self._kept[name][0].schema != batch.schema for name, batch in given.items()):
            yield from self.rest()
        for name, batch in given.items():
            self._kept.setdefault(name, []).append(batch)
            self._rows += batch.num_rows
            self._bytes += batch.nbytes
        for name, piece in (coded_tables or {}).items():
            for part in piece.made() if isinstance(piece, Later) else [piece]:
                if part.num_rows:
                    self._coded.append((name, part))
                    self._rows += part.num_rows
        if fetches is not None and fetches.num_rows:
            self._aside.append(fetches)
            self._rows += fetches.num_rows
        if self._rows >= GATHERED_ROWS or self._bytes >= GATHERED_BYTES:
            yield from self.rest()

    def rest(self) -> Iterator[pa.RecordBatch]:
        """Staged rows of everything that is left."""
        kept, self._kept, self._rows, self._bytes = self._kept, {}, 0, 0
        coded, self._coded = self._coded, []
        aside, self._aside = self._aside, []
        if not kept:
            return
        tables = {name: unified(pa.Table.from_batches(batches)) for name, batches in kept.items()}
        base = tables["exchanges"] if "exchanges" in tables else tables["fetches"]
        keys = keys_of(base)
        owners = {
            name: np.arange(len(keys[0])) if table is base else locate(keys_of(table), keys)
            for name, table in tables.items()
        }
        codes, brokers = self._brokers(base)
        if ACKS_KEY in base.column_names:
            if (produces := produce_rows(Rows.of(base), Coder())).num_rows:
                coded.append(("produces", produces))
            base = tables["exchanges"] = base.drop_columns([ACKS_KEY])
        packing: list[tuple[str, Any, Words, Callable[[Any], bytes]]] = [
            *((name, piece, locate(keys_of(piece), keys), pack_rows) for name, piece in coded),
            *((READ_ASIDE, piece, locate(piece.keys, keys), pack_fetches) for piece in aside),
        ]
        if "exchanges" in tables:
            read, self._throttled = few(base, self._throttled)
            del tables["exchanges"], owners["exchanges"]
            if len(read):
                tables[FEW], owners[FEW] = base.take(pa.array(read)), read
        weights = np.zeros(len(codes), np.int64)
        for owner in (*owners.values(), *(owner for _, _, owner, _ in packing)):
            weights += np.bincount(owner[owner >= 0], minlength=len(codes))
        lots, order, first = _cut(codes, weights, self._most)
        since = _instants(base)[order]
        at = np.minimum.reduceat(since, first).tolist()
        of = [brokers[code] for code in codes[order[first]].tolist()]
        for broker, weight in zip(of, np.add.reduceat(weights[order], first).tolist(), strict=True):
            self.weights[broker] = self.weights.get(broker, 0) + weight
        for name, table in tables.items():
            made = []
            for lot, part in _parts(table, lots[owners[name]]):
                made.append(Cell(name, of[lot], cell(part), at[lot], self._number + lot, self._origin))
            yield rows(made)
        for name, piece, owner, pack in packing:
            made = []
            for lot, part in split_rows(piece, lots[owner]):
                made.append(Cell(name, of[lot], pack(part), at[lot], self._number + lot, self._origin))
            yield rows(made)
        self._number += len(first)


def few(exchanges: pa.Table, throttled: Words) -> tuple[Words, Words]:
    """The rows of `exchanges` that the analysis reads; all, where the columns that say so were not asked for. And
    `throttled`, the connections with a throttle window (first parts of keys, ascending), with those of these rows."""
    names = exchanges.column_names
    if "api_key" not in names:
        return np.arange(exchanges.num_rows), throttled
    read = np.isin(ints(exchanges, "api_key"), READ)
    if "throttle_ms" in names:
        connection = keys_of(exchanges)[0]
        muting = np.nan_to_num(reals(exchanges, "throttle_ms")) > 0
        throttled = np.union1d(throttled, connection[muting])
        read |= np.isin(connection, throttled)
    return np.flatnonzero(read), throttled


def _cut(codes: Words, weights: Words, most: int) -> tuple[Words, Words, Words]:
    """Lots of one broker each that weigh about `most`: lot of each row, rows in order of lots, where lots begin."""
    order = np.argsort(codes, kind="stable")
    mine = codes[order]
    begins = np.flatnonzero(np.diff(mine, prepend=mine[0] - 1))
    before = np.cumsum(weights[order]) - weights[order]
    sizes = np.diff(np.append(begins, len(order)))
    within = (before - np.repeat(before[begins], sizes)) // most
    new = np.ones(len(order), np.bool_)
    new[1:] = (mine[1:] != mine[:-1]) | (within[1:] != within[:-1])
    lots = np.empty(len(order), np.int64)
    lots[order] = np.cumsum(new) - 1
    return lots, order, np.flatnonzero(new)


def _instants(table: pa.Table) -> Words:
    """The first instant of each exchange; of those without any the earliest there is."""
    last = np.iinfo(np.int64).max
    first = np.full(table.num_rows, last)
    for name in INSTANTS:
        if name in table.column_names:
            found = times(table, name)
            first = np.minimum(first, np.where(found == NULL_TIME, last, found))
    return np.where(first == last, NULL_TIME, first)


def _parts(table: pa.Table, lots: Words) -> Iterator[tuple[int, pa.Table]]:
    """A table cut by the lots of its rows, which keep their order."""
    if (lots[1:] < lots[:-1]).any():
        order = np.argsort(lots, kind="stable")
        table, lots = table.take(pa.array(order)), lots[order]
    for begin, end in runs(lots):
        yield int(lots[begin]), table.slice(begin, end - begin)

"""Giant connections: most of their exchanges are decoded by other tasks than the one that follows the connection.

A connection's packets are put in order and cut into frames by one task, for that goes byte by byte. Once a connection
has had `Plan.giant` bytes of frames, its fetches and produces leave this task undecoded, as units of `Plan.unit` bytes.
They are what makes a connection large. A unit has requests and responses as they were paired (so the headers that a
response needs come with it), with the places of their bytes in the files. Any task reads and decodes a unit, by the
engine's own completion. All other exchanges, which may tell something about their connection, are decoded where they
are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kdissect.arrays.growing import grown
from kdissect.arrays.typed_values import dumped, loaded
from kdissect.engine.books import Books
from kdissect.engine.pipeline import RunPart
from kdissect.kafka.exchanges.completion import Completion
from kdissect.kafka.exchanges.detached import Detached, DetachedCompletion, detach, detachable, join_detached, sizes
from kdissect.kafka.streams.dissector import Harvest
from kdissect.kafka.streams.ledger import CarriedConnections, Ledger
from kdissect.schema.apikeys import ApiKey
from kdissect.spark.stages.partition_capture import Files, Gathered
from kdissect.spark.stages.plan import Plan
from kdissect.tables.sights import Copies, Sights, hidden_connections, sights_of_part

Words = npt.NDArray[np.int64]

UNIT = "unit"
"""Name of staged rows that are units; their `broker` is a number, by which they are spread over tasks."""
ROWS = 1 << 16
"""Exchanges of one unit at most: a third of those that the engine completes in one go."""


@dataclass(slots=True)
class Unit:
    """Exchanges of giant connections of one capture."""

    capture: int
    exchanges: Detached
    """Their connections count from 0 within `connections`; their places through the capture's files, one behind the
    other."""
    connections: CarriedConnections
    """As `Ledger.carried`."""
    names: list[str]
    """Client ids by code."""
    copies: Copies | None
    """What other captures have of these exchanges; None for nothing."""

    def packed(self) -> bytes:
        """As bytes."""
        return dumped(self, Unit)


def unit(data: bytes) -> Unit:
    """A unit as it was packed. Raises UnreadableValue for other bytes."""
    made: Unit = loaded(data, Unit)
    return made


class Departures:
    """Exchanges that leave the task which follows their connections."""

    def __init__(self, plan: Plan, ledger: Ledger, sights: Sights | None) -> None:
        self._plan = plan
        self._ledger = ledger
        self._copies = None if sights is None else sights.copies
        self._seen: Words = np.zeros(0, np.int64)
        """Bytes of frames by row of connections."""
        self._capture = -1
        self._names: list[str] = []
        self._waiting: list[Detached] = []
        self._count = self._bytes = 0
        self._ready: list[bytes] = []

    def take_giants(self, harvest: Harvest, completion: Completion, capture: Gathered) -> tuple[Words, Words, Words]:
        """Take out of a harvest what is to leave: (its row of connections, number and client, -1 for none) of each."""
        if self._capture != self._ledger.capture:
            self._cut()
            self._capture = self._ledger.capture
        rows = harvest.exchanges
        nothing: Words = np.zeros(0, np.int64)
        if not len(rows) or not capture.rereadable:
            return nothing, nothing, nothing
        connection = rows["connection"] + self._ledger.base
        size = sizes(rows)
        self._seen = grown(self._seen, int(connection.max()) + 1)
        np.add.at(self._seen, connection, size)
        leaves = self._seen[connection] > self._plan.giant
        if not leaves.any():
            return nothing, nothing, nothing
        leaves &= np.isin(rows["api"], [ApiKey.PRODUCE, ApiKey.FETCH]) & detachable(rows)
        taken, which = detach(harvest, completion.dissector, self._ledger, np.flatnonzero(leaves))
        if len(which):
            taken.pieces[:, 1] = capture.physical(taken.pieces[:, 1])
            self._waiting.append(taken)
            self._names = completion.dissector.client_ids
            self._count += len(which)
            self._bytes += int(size[which].sum())
        return connection[which], rows["n"][which], rows["client"][which]

    def ready(self, last: bool = False) -> list[bytes]:
        """Units that are full, each once; `last`: also those that are not. Their connections have been entered."""
        if last or self._bytes >= self._plan.unit or self._count >= ROWS:
            self._cut()
        ready, self._ready = self._ready, []
        return ready

    def _cut(self) -> None:
        if not self._count:
            return
        everything = join_detached(self._waiting)
        ends = np.cumsum(everything.sizes)
        begin = 0
        while begin < len(ends):
            most = self._plan.unit + (int(ends[begin - 1]) if begin else 0)
            end = min(max(begin + 1, int(np.searchsorted(ends, most, side="right"))), begin + ROWS)
            part = everything.part(begin, end)
            rows, numbers = np.unique(part.connections, return_inverse=True)
            connections = self._ledger.carried(rows)
            copies = self._copies
            if copies is not None:
                ids = self._ledger.connections.id[part.connections]
                copies = copies.part(ids, part.rows["n"], part.rows["orphan"] == 1)
                copies = copies if len(copies.ids) else None
            mine = Unit(self._capture, part.with_connections(numbers), connections, list(self._names), copies)
            self._ready.append(mine.packed())
            begin = end
        self._waiting = []
        self._count = self._bytes = 0


def rows_of_units(books: Books, plan: Plan, units: Iterable[bytes]) -> Iterator[RunPart]:
    """The rows of the units' exchanges; after those of each unit empty ones."""
    completion = DetachedCompletion(books.decoder, plan.unit)
    opened: dict[int, Files] = {}
    hidden_in: list[npt.NDArray[np.uint64]] = []
    for data in units:
        one = unit(data)
        if one.capture not in opened:
            opened[one.capture] = Files(plan.sources[one.capture])
        files = opened[one.capture]
        books.ledger.begin(one.capture)
        books.ledger.add(one.connections)
        books.builder.sights = None
        if one.copies is not None:
            books.builder.sights = sights_of_part(one.copies)
            hidden_in.append(one.copies.ids[one.copies.hidden])
        for done in completion.complete(one.exchanges, one.names, books.ledger, files, files.read_ranges):
            yield from books.rows_of(done)
        books.builder.block_ended()
        yield RunPart({})
    for files in opened.values():
        files.close()
    hidden = np.unique(np.concatenate([np.zeros(0, np.uint64), *hidden_in]))
    books.builder.sights = hidden_connections(hidden) if len(hidden) else None

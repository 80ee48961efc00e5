"""Giant connections: most of their exchanges are decoded by other tasks than the one that follows the connection.

A connection's packets are put in order and cut into frames by one task, for that goes byte by byte. Once a connection
has had `Plan.giant` bytes of frames, its fetches and produces, which are what makes a connection large, leave this task
undecoded as units of `Plan.unit` bytes: requests and responses as they were paired (so the headers that a response
needs come with it), with the places of their bytes in the files. Any task reads and decodes a unit, by the engine's
own completion. All other exchanges, which may tell something about their connection, are decoded where they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kdissect.arrays.growing import grown
from kdissect.arrays.packed import packed, unpacked
from kdissect.capture.window import EXTRA, Window
from kdissect.engine.run import Run
from kdissect.kafka.exchanges.completed import Completed
from kdissect.kafka.exchanges.completion import Completion
from kdissect.kafka.streams.dissector import Dissector, Harvest
from kdissect.kafka.streams.ledger import Ledger
from kdissect.kafka.streams.state import EXCHANGE_WIDTH, SIDES, TOKEN, X_BASE, Exchange
from kdissect.kernels.structs import Records, Words, offsets, record, structs, words
from kdissect.schema.apikeys import ApiKey
from kdissect.schema.fit import Programs
from kdissect.spark.stages.partition_capture import Files, Gathered
from kdissect.spark.stages.plan import Plan
from kdissect.tcp.layout import CONTROL, Connection, Node, Problem, control_at

NODE = offsets(Node)

UNIT = "unit"
"""Name of staged rows that are units; their `broker` is a number, by which they are spread over tasks."""
ROWS = 1 << 16
"""Exchanges of one unit at most: a third of those that the engine completes in one go."""
MARGIN = 1 << 12
"""Behind a unit's bytes in the window: no kernel reads past a slot's end."""


@dataclass(slots=True)
class Unit:
    """Exchanges of giant connections of one capture."""

    capture: int
    exchanges: Words
    """Words of `Exchange`, int64[n, EXCHANGE_WIDTH]; `connection` counts from 0 within `connections`."""
    pieces: Words
    """Where the frames' bytes lie behind their length prefix, int64[k, 3]: frame (2 * exchange + side), offset in the
    capture's files one behind the other, length. Frame by frame, in order."""
    connections: Mapping[str, Any]
    """As `Ledger.carried`."""
    names: list[str]
    """Client ids by code."""

    def packed(self) -> bytes:
        """As bytes."""
        return packed(self)


def unit(data: bytes) -> Unit:
    """A unit as it was packed."""
    made = unpacked(data)
    assert isinstance(made, Unit)
    return made


class Departures:
    """Exchanges that leave the task which follows their connections."""

    def __init__(self, plan: Plan, ledger: Ledger) -> None:
        self._plan = plan
        self._ledger = ledger
        self._seen: Words = np.zeros(0, np.int64)
        """Bytes of frames by row of connections."""
        self._capture = -1
        self._names: list[str] = []
        self._exchanges: list[Records] = []
        self._pieces: list[Words] = []
        self._count = self._bytes = 0
        self._ready: list[bytes] = []

    def take(self, harvest: Harvest, dissector: Dissector, capture: Gathered) -> Records:
        """Take out of a harvest what is to leave: `Exchange` rows; their `connection` is a row of the ledger's."""
        if self._capture != self._ledger.capture:
            self._cut()
            self._capture = self._ledger.capture
        rows = harvest.exchanges
        nothing: Records = rows[:0]
        if not len(rows) or not capture.rereadable:
            return nothing
        connection = rows["connection"] + self._ledger.base
        size = _bytes(rows)
        self._seen = grown(self._seen, int(connection.max()) + 1)
        np.add.at(self._seen, connection, size)
        leaves = self._seen[connection] > self._plan.giant
        if not leaves.any():
            return nothing
        leaves &= np.isin(rows["api"], [ApiKey.PRODUCE, ApiKey.FETCH]) & (rows["orphan"] == 0)
        leaves &= rows["status"] != TOKEN
        for side in SIDES:
            leaves &= (rows[side]["missing"] == 0) & (rows[side]["cut"] == 0)
        which = np.flatnonzero(leaves)
        pieces = _pieces(dissector.M, rows[which])
        elsewhere = np.unique(pieces[(pieces[:, 1] < 0) | (pieces[:, 1] >= EXTRA), 0] >> 1)  # not in files
        if len(elsewhere):
            which = np.delete(which, elsewhere)
            pieces = _pieces(dissector.M, rows[which])
        if not len(which):
            return nothing
        pieces[:, 1] = capture.physical(pieces[:, 1])
        pieces[:, 0] += 2 * self._count
        taken = rows[which]
        taken["connection"] = connection[which]
        self._exchanges.append(taken)
        self._pieces.append(pieces)
        self._names = dissector.client_ids
        self._count += len(which)
        self._bytes += int(size[which].sum())
        # As bare tokens are: not looked into, and no row of any table.
        rows["status"][which] = TOKEN
        rows["orphan"][which] = 1
        return taken

    def ready(self, last: bool = False) -> list[bytes]:
        """Units that are full, each once; `last`: also those that are not. Their connections have been entered."""
        if last or self._bytes >= self._plan.unit or self._count >= ROWS:
            self._cut()
        ready, self._ready = self._ready, []
        return ready

    def _cut(self) -> None:
        if not self._count:
            return
        exchanges, pieces = np.concatenate(self._exchanges), np.concatenate(self._pieces)
        ends = np.cumsum(_bytes(exchanges))
        begin = 0
        while begin < len(exchanges):
            most = self._plan.unit + (int(ends[begin - 1]) if begin else 0)
            end = min(max(begin + 1, int(np.searchsorted(ends, most, side="right"))), begin + ROWS)
            first, last = np.searchsorted(pieces[:, 0], [2 * begin, 2 * end])
            mine, part = exchanges[begin:end], pieces[first:last]
            part[:, 0] -= 2 * begin
            rows, mine["connection"] = np.unique(mine["connection"], return_inverse=True)
            connections = self._ledger.carried(rows)
            self._ready.append(Unit(self._capture, words(mine), part, connections, list(self._names)).packed())
            begin = end
        self._exchanges, self._pieces = [], []
        self._count = self._bytes = 0


def _bytes(rows: Records) -> Words:
    """Bytes of the frames of each exchange."""
    sizes: Words = sum(np.maximum(rows[side]["bytes"], 0) for side in SIDES)
    return sizes


def _pieces(M: Words, rows: Records) -> Words:
    """Pieces of the frames of these exchanges, as in `Unit.pieces`."""
    found = []
    for side, name in enumerate(SIDES):
        frames = rows[name]
        frame = 2 * np.arange(len(rows)) + side
        there = frames["bytes"] >= 0
        whole = there & (frames["at"] >= 0)
        found.append(np.stack([frame, frames["at"], frames["length"]], axis=1)[whole])
        frame, node = frame[there], frames["head"][there]
        while len(node := node[more := node >= 0]):
            frame = frame[more]
            found.append(np.stack([frame, M[node + NODE.at], M[node + NODE.length]], axis=1))
            node = M[node + NODE.next]
    pieces = np.concatenate(found)
    ordered: Words = pieces[np.argsort(pieces[:, 0], kind="stable")]
    return ordered


class _Frames(Dissector):
    """A dissector that follows no connections: exchanges are put into it, with their frames in the window."""

    def put(self, exchanges: Words, names: list[str]) -> Harvest:
        """What a harvest of these would be."""
        self._aim()
        self._names = names
        count = len(exchanges)
        self.M[X_BASE : X_BASE + count * EXCHANGE_WIDTH] = exchanges.ravel()
        control_at(self.M, CONTROL).out = count
        rows = structs(Exchange, self.M, X_BASE, count)
        return Harvest(rows, np.zeros(0, record(Connection)), np.zeros(0, record(Problem)))


class UnitRun(Run):
    """A run over units."""

    units: Iterable[bytes]
    plan: Plan

    def completed(self) -> Iterator[Completed]:
        """The units' exchanges."""
        window = Window(self.plan.unit + MARGIN, 1)
        dissector = _Frames(window, Programs(self.decoder.table, self.decoder.flexible, self.decoder.skim()))
        opened: dict[int, Files] = {}
        for data in self.units:
            one = unit(data)
            if one.capture not in opened:
                opened[one.capture] = Files(self.plan.sources[one.capture])
            files = opened[one.capture]
            self.ledger.begin(one.capture)
            self.ledger.add(one.connections)
            total = int(one.pieces[:, 2].sum())
            if total + MARGIN > window.slot_bytes:
                dissector.window = window = Window(total + MARGIN, 1)
            window.reset()
            window.advance(0, 0, 0)
            self._read(one, files, window.data[: window.slot_bytes])
            window.grow(total)
            completion = Completion(dissector, self.decoder, self.ledger, files)
            yield from completion.complete(dissector.put(one.exchanges, one.names))
            self.block += 1
            self.builder.block_ended()
        for files in opened.values():
            files.close()

    def _read(self, one: Unit, files: Files, slot: npt.NDArray[np.uint8]) -> None:
        """Bytes of the frames into the slot, each in one piece; the exchanges' places are those in the slot."""
        frame, at, length = one.pieces.T
        place = np.cumsum(length) - length
        exchanges = one.exchanges.view(record(Exchange))[:, 0]
        starts = np.flatnonzero(np.diff(frame, prepend=-1))
        for side, name in enumerate(SIDES):
            frames = exchanges[name]
            frames["at"] = -1
            frames["head"] = -1
            mine = starts[frame[starts] & 1 == side]
            frames["at"][frame[mine] >> 1] = place[mine]
            frames["length"] = frames["bytes"] - 4
        order = np.argsort(at, kind="stable")
        files.read_ranges(at[order], length[order], slot, place[order])

"""Exchanges that are completed elsewhere than where their connections are followed.

The process that follows a connection pairs its requests with its responses. `detach` copies what was paired, with the
places of the frames' bytes in the input, so that another process, which reads those bytes itself, can complete the
exchanges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kdissect.capture.window import EXTRA, Window
from kdissect.kafka.completed import Completed
from kdissect.kafka.exchanges.completion import Completion
from kdissect.kafka.exchanges.frame_bytes import Reader
from kdissect.kafka.exchanges.messages import Decoder
from kdissect.kafka.streams.dissector import Dissector, Harvest
from kdissect.kafka.streams.ledger import Ledger
from kdissect.kafka.streams.state import SIDES, TOKEN, Exchange
from kdissect.kernels.structs import Records, Words, offsets, record, words
from kdissect.tcp.layout import Node

NODE = offsets(Node)
MARGIN = 1 << 12
"""Behind the frames' bytes in the window: no kernel reads past a slot's end."""

Fill = Callable[[Words, Words, npt.NDArray[np.uint8], Words], None]
"""Copies `sizes[i]` bytes at place `at[i]` of the input to `target[places[i]:]`, for all i, `at` rising."""


@dataclass(slots=True)
class Detached:
    """Exchanges apart from the stream that they were found in."""

    exchanges: Words
    """Words of `Exchange`, int64[n, words]. `connection` is a row of the ledger that `complete` is given."""
    pieces: Words
    """Where the frames' bytes lie behind their length prefix, int64[k, 3]: frame (2 * exchange + side), place in the
    input, length. Frame by frame, in order."""

    @property
    def connections(self) -> Words:
        """The connection of each."""
        found: Words = self.rows["connection"]
        return found

    @property
    def sizes(self) -> Words:
        """Bytes of the frames of each."""
        return sizes(self.rows)

    @property
    def rows(self) -> Records:
        """`Exchange` records, a view."""
        rows: Records = self.exchanges.view(record(Exchange))[:, 0]
        return rows

    def part(self, begin: int, end: int) -> Detached:
        """Some of them (copies)."""
        first, last = np.searchsorted(self.pieces[:, 0], [2 * begin, 2 * end])
        pieces = self.pieces[first:last].copy()
        pieces[:, 0] -= 2 * begin
        return Detached(self.exchanges[begin:end].copy(), pieces)

    def with_connections(self, rows: Words) -> Detached:
        """These exchanges with other connection numbers."""
        self.rows["connection"] = rows
        return self


def join_detached(parts: Sequence[Detached]) -> Detached:
    """Several as one."""
    before = np.cumsum([0, *(len(part.exchanges) for part in parts)])
    pieces = [part.pieces + np.array([2 * n, 0, 0]) for n, part in zip(before, parts, strict=False)]
    return Detached(np.concatenate([part.exchanges for part in parts]), np.concatenate(pieces))


def sizes(exchanges: Records) -> Words:
    """Bytes of the frames of each exchange."""
    found: Words = sum(np.maximum(exchanges[side]["bytes"], 0) for side in SIDES)
    return found


def detachable(exchanges: Records) -> npt.NDArray[np.bool_]:
    """Those whose frames are all there, and that are no bare tokens."""
    whole: npt.NDArray[np.bool_] = (exchanges["orphan"] == 0) & (exchanges["status"] != TOKEN)
    for side in SIDES:
        whole &= (exchanges[side]["missing"] == 0) & (exchanges[side]["cut"] == 0)
    return whole


def detach(harvest: Harvest, dissector: Dissector, ledger: Ledger, exchanges: Words) -> tuple[Detached, Words]:
    """(copies of these exchanges of a harvest, which of them they are): those whose bytes lie in the input. In the
    harvest they are left without bodies, as bare tokens are: not looked into, and no row of any table."""
    rows = harvest.exchanges
    pieces = _pieces(dissector.M, rows[exchanges])
    elsewhere = np.unique(pieces[(pieces[:, 1] < 0) | (pieces[:, 1] >= EXTRA), 0] >> 1)
    if len(elsewhere):
        exchanges = np.delete(exchanges, elsewhere)
        pieces = _pieces(dissector.M, rows[exchanges])
    taken = Detached(words(rows[exchanges].copy()), pieces)
    taken.with_connections(rows["connection"][exchanges] + ledger.base)
    rows["status"][exchanges] = TOKEN
    rows["orphan"][exchanges] = 1
    return taken, exchanges


def _pieces(M: Words, rows: Records) -> Words:
    """Pieces of the frames of these exchanges, as in `Detached.pieces`."""
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


class DetachedCompletion:
    """Completes detached exchanges. `room`: bytes of their frames that are expected at a time; more is taken where it
    is needed."""

    def __init__(self, decoder: Decoder, room: int) -> None:
        self._decoder = decoder
        self._window = Window(room + MARGIN, 1)
        programs = decoder.programs()
        self._dissector = Dissector(self._window, programs)  # which follows no connections

    def complete(
        self, detached: Detached, names: list[str], ledger: Ledger, reader: Reader, fill: Fill
    ) -> Iterator[Completed]:
        """The exchanges, their bytes copied by `fill`. `names`: client ids by code."""
        total = int(detached.pieces[:, 2].sum())
        if total + MARGIN > self._window.slot_bytes:
            self._dissector.window = self._window = Window(total + MARGIN, 1)
        window = self._window
        window.reset()
        window.advance(0, 0, 0)
        _place(detached, window.data[: window.slot_bytes], fill)
        window.grow(total)
        completion = Completion(self._dissector, self._decoder, ledger, reader)
        yield from completion.complete(self._dissector.load_exchanges(detached.exchanges, names))


def _place(detached: Detached, slot: npt.NDArray[np.uint8], fill: Fill) -> None:
    """Bytes of the frames into the slot, each in one piece; the exchanges' places are those in the slot."""
    frame, at, length = detached.pieces.T
    place = np.cumsum(length) - length
    starts = np.flatnonzero(np.diff(frame, prepend=-1))
    for side, name in enumerate(SIDES):
        frames = detached.rows[name]
        frames["at"] = -1
        frames["head"] = -1
        mine = starts[frame[starts] & 1 == side]
        frames["at"][frame[mine] >> 1] = place[mine]
        frames["length"] = frames["bytes"] - 4
    order = np.argsort(at, kind="stable")
    fill(at[order], length[order], slot, place[order])

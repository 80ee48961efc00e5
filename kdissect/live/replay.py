"""A finished capture, given on as fast as it was captured, or so many times faster."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from kdissect.capture.block import Block
from kdissect.capture.pcap import PACKET

STEP_S = 0.05
"""How often packets are given on."""


class Replay:
    """Gives blocks in pieces, each when it is due. `speed`: seconds of the capture in a second.

    `clock` and `sleep` stand in for those of the system in tests.
    """

    def __init__(
        self, speed: float, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self.speed = speed
        self.late_s = 0.0
        """How far behind its time the piece was that was given last."""
        self.now_ns = 0
        """The capture's time: never beyond the packet that comes next."""
        self._clock, self._sleep = clock, sleep
        self._began = 0.0
        self._first = -1

    def pieces(self, blocks: Iterable[Block]) -> Iterator[Block]:
        """The blocks' packets in their order; idle blocks while none is due."""
        for block in blocks:
            rows = block.packets
            if not len(rows):
                yield block
                continue
            times = np.maximum.accumulate(rows[:, PACKET.time])
            if self._first < 0:
                self._first, self._began = int(times[0]), self._clock()
            given = 0
            while given < len(rows):
                due = self._first + int((self._clock() - self._began) * self.speed * 1e9)
                upto = int(np.searchsorted(times, due, side="right"))
                if upto > given:
                    self.late_s = max(0.0, (due - int(times[given])) / 1e9 / self.speed - STEP_S)
                    self.now_ns = int(times[upto - 1])
                    yield block._replace(packets=rows[given:upto])
                    given = upto
                else:
                    self.late_s = 0.0
                    self.now_ns = due
                    self._sleep(min(STEP_S, (int(times[given]) - due) / 1e9 / self.speed))
                    yield block._replace(packets=rows[:0])

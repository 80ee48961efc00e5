"""Places where the clock of a capture steps back, told from packet rows.

Rule. A packet whose time is more than CLOCK_STEP before that of the packet before it on the same interface. Receive
queues deliver packets out of order by a few ms, so a smaller delay is nothing; to correct a clock by less, hosts let it
run slower instead. Interfaces are compared each with itself, for each may have a clock of its own, and those of another
section, which may be another recording, with nothing that came before.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kdissect.capture import pcap as r
from kdissect.capture.pcap import PACKET

INTERFACE_SHIFT = 16
"""Of a packet row's LINK."""
FILE_SHIFT = 40
"""Of a packet's number in a capture: the file's index stands above it."""
MAX_STEPS = 1000
"""Steps that exchanges are held against: a clock that steps more often tells nothing anywhere."""
MAX_INTERFACES = 1 << 16
"""Interfaces of a section that are looked at: what a packet names beyond them was not described."""


class Step(NamedTuple):
    """A step back: the packet that follows it, its time (ns), and by how many ns."""

    packet: int
    at: int
    back: int


class Steps:
    """Looks for steps in the packet rows of one file, walk by walk."""

    def __init__(self) -> None:
        self._time: NDArray[np.int64] = np.zeros(1, np.int64)
        """Time of the latest packet by interface, and its number, 0 none."""
        self._number: NDArray[np.int64] = np.zeros(1, np.int64)
        self._counted = self._untimed = 0

    def look(self, rows: NDArray[np.int64], walked: r.File, described: list[int] | None) -> list[Step]:
        """Steps in the rows of a walk; `walked` is the file's state. `described`: positions of the interface
        descriptions that lie among them, None where they are not known: then no step is reported."""
        stepped, self._counted = walked.steps > self._counted, int(walked.steps)
        untimed, self._untimed = int(walked.untimed) - self._untimed, int(walked.untimed)
        if untimed:  # packets of unknown interfaces, which are left out, or others
            untimed -= int(np.count_nonzero(rows[:, PACKET.link] & r.UNKNOWN_LINK == r.UNKNOWN_LINK))
        if described is None or untimed > 0:  # which packets got another one's time is not known
            self._number[:] = 0
            return []
        cuts = np.searchsorted(rows[:, PACKET.at], described).tolist()
        one = walked.interfaces == 1 and not walked.unknown_interface
        found: list[Step] = []
        for number, (first, stop) in enumerate(zip([0, *cuts], [*cuts, len(rows)], strict=True)):
            if number:  # with an interface a section may have begun
                self._number[:] = 0
            if first < stop:
                found += (
                    self._steps_of_one_interface(rows[first:stop], stepped)
                    if one
                    else self._several(rows[first:stop], stepped)
                )
        return found

    def _steps_of_one_interface(self, rows: NDArray[np.int64], stepped: bool) -> list[Step]:
        """Steps in rows of the only interface. They are looked for only where the walk counted any."""
        found = self._between(rows, np.zeros(len(rows), np.int64)) if stepped else []
        self._time[0], self._number[0] = rows[-1, PACKET.time], rows[-1, PACKET.number]
        return found

    def _several(self, rows: NDArray[np.int64], stepped: bool) -> list[Step]:
        """The same in rows of several interfaces."""
        of = rows[:, PACKET.link] >> INTERFACE_SHIFT
        known = (rows[:, PACKET.link] & r.UNKNOWN_LINK != r.UNKNOWN_LINK) & (of < MAX_INTERFACES)
        if not known.all():
            rows, of = rows[known], of[known]
            if not len(rows):
                return []
        most = int(of.max()) + 1
        if most > len(self._time):
            more = np.zeros(most - len(self._time), np.int64)
            self._time, self._number = np.append(self._time, more), np.append(self._number, more)
        found = self._between(rows, of) if stepped else []
        # Of each interface the last is kept.
        self._time[of], self._number[of] = rows[:, PACKET.time], rows[:, PACKET.number]
        return found

    def _between(self, rows: NDArray[np.int64], of: NDArray[np.int64]) -> list[Step]:
        seen = np.flatnonzero(self._number)
        times = np.concatenate([self._time[seen], rows[:, PACKET.time]])
        numbers = np.concatenate([self._number[seen], rows[:, PACKET.number]])
        order = np.argsort(np.concatenate([seen, of]), kind="stable")
        interface = np.concatenate([seen, of])[order]
        times, numbers = times[order], numbers[order]
        back = times[:-1] - times[1:]
        places = np.flatnonzero((back > r.CLOCK_STEP) & (interface[1:] == interface[:-1]))
        found = [Step(int(numbers[i + 1]), int(times[i + 1]), int(back[i])) for i in places.tolist()]
        return sorted(found, key=lambda step: step.packet)

"""Finds flows that several captures have: a pass over their packets' headers, before any stream is put together.

A flow is the same by its 4-tuple. Behind NAT it is the same by the two initial sequence numbers that a SYN-ACK holds,
or by the sequence numbers and sizes of some of its segments. A match is only worth a closer look.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from kdissect.analysis.sights.both_ends import ENDPOINTS
from kdissect.arrays.mixing import mixed
from kdissect.capture import CaptureSet
from kdissect.engine.readahead import read
from kdissect.engine.timings import Timings
from kdissect.kafka.completed import Connections
from kdissect.net.scanner import Scanner
from kdissect.net.segment import ACK_FLAG, SEGMENT, SYN

if TYPE_CHECKING:
    from kdissect.engine.settings import Settings

Words = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]

SAMPLED = 63
"""Of this many and one sequence numbers one is kept, the same ones in every capture."""
HEADERS = [SEGMENT.flow, SEGMENT.flags, SEGMENT.seq, SEGMENT.ack, SEGMENT.wire]
"""Columns of segment rows that are looked at."""
MOST = 1 << 20
"""Marks kept of a capture: 16 MB."""


def endpoints(connections: Connections, rows: Words) -> Words:
    """[n, 6]: ENDPOINTS of these connections."""
    return np.stack([getattr(connections, name)[rows].astype(np.int64) for name in ENDPOINTS], axis=1)


def hashes(rows: Words) -> Hashes:
    """A number for each row that tells it from others."""
    return mixed(*rows.T)


def among(segments: Words, flows: Words, flow_hashes: Hashes) -> npt.NDArray[np.bool_]:
    """Flags of segment rows that are of these flows; `flows` as the scanner numbers them."""
    used, place = np.unique(segments[:, SEGMENT.flow] >> 1, return_inverse=True)
    found: npt.NDArray[np.bool_] = np.isin(hashes(flows[used]), flow_hashes)[place.reshape(-1)]
    return found


class Look(NamedTuple):
    """The result of a pass over one capture's headers."""

    flows: Hashes
    """Flows with payload: hashes of their rows in the scanner's table."""
    marks: Hashes
    """Of some segments, what tells them."""
    marked: Hashes
    """The flow of each of these."""


def in_common(looks: Sequence[Look]) -> list[Hashes]:
    """By capture, the flows that another one may have too."""
    flows = _of_several([look.flows for look in looks])
    marks = _of_several([look.marks for look in looks])
    shared = []
    for look in looks:
        by_marks = look.marked[np.isin(look.marks, marks)]
        shared.append(np.union1d(look.flows[np.isin(look.flows, flows)], by_marks))
    return shared


def _of_several(parts: Sequence[Hashes]) -> Hashes:
    """The hashes that stand in two parts at least."""
    found, count = np.unique(np.concatenate([np.unique(part) for part in parts]), return_counts=True)
    return found[count > 1]


def looked_at(capture: CaptureSet, settings: Settings) -> Look:
    """One pass over the headers of a capture's packets."""
    quiet = replace(settings, progress=None, timings=Timings())
    window, scanner, looking = capture.window(), Scanner(capture, settings.after, settings.before), Looking()
    with read(capture, window, scanner, quiet) as reading:
        for segments in reading:
            rows, flows = segments[:, HEADERS], len(scanner.flows)
            reading.go_on()
            looking.add_rows(rows, flows)
    return looking.look(hashes(scanner.flows))


class Looking:
    """Collects a `Look` from the headers of segments."""

    def __init__(self) -> None:
        self._carrying = np.zeros(1024, np.bool_)
        self._marks: list[Words] = []
        self._count = 0

    def add_rows(self, rows: Words, flows: int) -> None:
        """Add segments: `rows` has their columns HEADERS. `flows`: the number of flows that are known."""
        if flows > len(self._carrying):
            self._carrying = np.concatenate([self._carrying, np.zeros(2 * flows - len(self._carrying), np.bool_)])
        self._carrying[rows[rows[:, 4] > 0, 0] >> 1] = True
        if self._count < MOST:
            self._marks.append(_marks(rows))
            self._count += len(self._marks[-1])

    def look(self, flows: Hashes) -> Look:
        """The look at all segments that were added; `flows`: the hash of each flow, by its number."""
        found = np.concatenate(self._marks) if self._marks else np.zeros((0, 3), np.int64)
        return Look(flows[self._carrying[: len(flows)]], hashes(found[:, :2]), flows[found[:, 2]])


def _marks(rows: Words) -> Words:
    """Two numbers that tell a segment from others, and its flow, of SYN-ACKs and a sample of those with payload."""
    flow, flags, seq, ack, wire = rows.T
    both = SYN | ACK_FLAG
    opened = np.flatnonzero(flags & both == both)
    sent = np.flatnonzero((wire > 0) & (flags & SYN == 0))
    sent = sent[hashes(seq[sent, None]) & np.uint64(SAMPLED) == 0]
    begun = np.stack([ack[opened] - 1 & 0xFFFFFFFF, seq[opened], flow[opened] >> 1], axis=1)
    return np.concatenate([begun, np.stack([-wire[sent], seq[sent], flow[sent] >> 1], axis=1)])

"""Two interfaces of one pcapng that saw the same connections at different places: both ends in one file.

Interfaces of one host see copies of a packet within microseconds, and so does mergecap where two captures are of one
host. Of these the first copy counts, from either place (`kdissect.tcp`). Only where both ways together took longer than
that for nearly all exchanges are interfaces sights of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np
import numpy.typing as npt

from kdissect.analysis.sights.both_ends import Ends
from kdissect.analysis.sights.clocks import LEAST, SOONEST, Place
from kdissect.capture import Block, CaptureSet
from kdissect.capture.pcap import PACKET
from kdissect.engine.readahead import read
from kdissect.engine.settings import Settings
from kdissect.engine.sights.interfaces import Views, interfaces
from kdissect.engine.sights.shared_flows import Hashes, hashes
from kdissect.engine.sights.survey import put_together, seen_in
from kdissect.engine.timings import Timings
from kdissect.net.scanner import Scanner
from kdissect.net.segment import FILE_SHIFT, SEGMENT
from kdissect.tables.sights import Ids, Sights

Words = npt.NDArray[np.int64]
APART_NS = 50_000
"""What both ways take together between two places, at least."""
MOST = 8
"""Interfaces that are held against each other."""


def sights_of_interfaces(capture: CaptureSet, settings: Settings) -> tuple[Sights, Views] | None:
    """The sights of two interfaces of a capture at different places; None where that is nothing."""
    views, interface = _views(capture, settings)
    pairs = [
        (np.intersect1d(views[one], views[other]), one, other) for one, other in combinations(list(views)[:MOST], 2)
    ]
    shared, *both = max(pairs, key=lambda pair: len(pair[0]), default=(np.zeros(0, np.uint64), 0, 0))
    if not len(shared):
        return None
    parts, names = [], interfaces(capture)
    for view in both:
        seen, ends = seen_in(capture, shared, settings, view)
        parts.append((seen, replace(ends, places=[Place(capture.name, name_of(names, interface[view]))])))
    found = put_together(parts)
    if found is None or found.ways.num_rows < LEAST:
        return None
    copies = found.copies
    if len(copies.up) < LEAST or np.quantile(copies.up + copies.down, SOONEST) < APART_NS:
        return None
    hidden = copies.ids[copies.hidden]
    left = {view: _flows(ends, hidden) for view, (_, ends) in zip(both, parts, strict=True)}
    return found, Views(left)


def name_of(names: Sequence[str], interface: int) -> str:
    """The name of an interface, out of those that the first file describes."""
    return names[interface] if interface < len(names) else str(interface)


def _flows(ends: Ends, hidden: Ids) -> Hashes:
    """The flows of these connections."""
    return np.unique(flow_hashes(ends.endpoints[np.isin(ends.id, hidden)]))


def flow_hashes(endpoints: Words) -> Hashes:
    """Hashes of each connection's flow, by its ENDPOINTS: the same as `hashes` of the scanner's table."""
    client, broker = (endpoints[:, columns].view(np.uint64) for columns in ([0, 1, 4], [2, 3, 5]))
    order = np.zeros(len(client), np.int64)
    for column in (2, 1, 0):
        one, other = client[:, column], broker[:, column]
        order = np.where(one < other, -1, np.where(one > other, 1, order))
    low, high = (np.where((order <= 0)[:, None], *pair) for pair in ((client, broker), (broker, client)))
    ports = low[:, 2] << np.uint64(16) | high[:, 2]
    rows = np.column_stack([low[:, :2], high[:, :2], ports]).astype(np.int64)
    return hashes(rows)


class Viewpoints(Scanner):
    """A scanner that notes the interface of each viewpoint."""

    def __init__(self, capture: CaptureSet, settings: Settings) -> None:
        super().__init__(capture, settings.after, settings.before)
        self.interface: dict[int, int] = {}

    def scan(self, block: Block) -> Words:
        """See Scanner."""
        interfaces, numbers = block.packets[:, PACKET.link] >> 16, block.packets[:, PACKET.number].copy()
        segments = super().scan(block)
        for view, at in zip(*np.unique(segments[:, SEGMENT.viewpoint], return_index=True), strict=True):
            number = segments[at, SEGMENT.packet] & ((1 << FILE_SHIFT) - 1)
            self.interface.setdefault(int(view), int(interfaces[np.searchsorted(numbers, number)]))
        return segments


def carrying(segments: Words) -> Words:
    """Viewpoint and direction of those segments that carry something, each once."""
    found: Words = np.unique(segments[segments[:, SEGMENT.wire] > 0][:, [SEGMENT.viewpoint, SEGMENT.flow]], axis=0)
    return found


def _views(capture: CaptureSet, settings: Settings) -> tuple[dict[int, Hashes], dict[int, int]]:
    """By viewpoint, the flows that were seen there with payload in both directions, the viewpoint with most first; and
    the number of its interface."""
    quiet = replace(settings, progress=None, timings=Timings())
    window, scanner = capture.window(), Viewpoints(capture, settings)
    met: list[Words] = [np.zeros((0, 2), np.int64)]
    with read(capture, window, scanner, quiet) as reading:
        for segments in reading:
            met.append(carrying(segments))
            reading.go_on()
    rows = np.unique(np.concatenate(met), axis=0)
    table = hashes(scanner.flows)
    both = (rows[1:, 0] == rows[:-1, 0]) & (rows[1:, 1] == rows[:-1, 1] + 1) & (rows[1:, 1] & 1 == 1)
    rows = rows[1:][both]
    found = {int(view): table[np.unique(rows[rows[:, 0] == view, 1] >> 1)] for view in np.unique(rows[:, 0])}
    return dict(sorted(found.items(), key=lambda item: (-len(item[1]), item[0]))), scanner.interface

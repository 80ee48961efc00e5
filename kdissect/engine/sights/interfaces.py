"""The interfaces of a pcapng file, and which of them tells a flow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from kdissect.capture import Block, CaptureSet
from kdissect.capture.magic import recognise
from kdissect.engine.inputs import Segments
from kdissect.net.segment import SEGMENT
from kdissect.problems import CaptureError

if TYPE_CHECKING:
    from kdissect.engine.sights.shared_flows import Hashes

Words = npt.NDArray[np.int64]
Order = Literal["big", "little"]
HEAD = 1 << 16
"""Bytes of a file in which its interfaces are looked for: they are described before the first packet."""
INTERFACE, PACKETS = 1, (2, 3, 6)
"""Types of pcapng blocks."""
NAME = 2
"""The option of an interface's block that has its name (if_name)."""


class Views(NamedTuple):
    """Flows whose packets on one interface are also on another interface: by viewpoint, hashes, ascending."""

    of: Mapping[int, Hashes]

    def rows(self, segments: Words, flows: Words) -> Words:
        """The segment rows without theirs."""
        from kdissect.engine.sights.shared_flows import among

        keep = np.ones(len(segments), np.bool_)
        for view, left in self.of.items():
            mine = np.flatnonzero(segments[:, SEGMENT.viewpoint] == view)
            keep[mine] = ~among(segments[mine], flows, left)
        return segments if keep.all() else segments[keep]


class OneSight:
    """Segments without those that another interface tells."""

    def __init__(self, segments: Segments, views: Views) -> None:
        self._segments = segments
        self._views = views

    def __getattr__(self, name: str) -> Any:
        return getattr(self._segments, name)

    def scan(self, block: Block) -> Words:
        """See Segments."""
        return self._views.rows(self._segments.scan(block), self._segments.flows)


def interfaces(capture: CaptureSet) -> list[str]:
    """The interfaces that a capture's first file describes before its first packet, by name, or by number where they
    have none; empty for a file that is no pcapng."""
    if not capture.members[0].regular:
        return []
    try:
        stream = capture.members[0].open()
    except CaptureError:  # told where it is read
        return []
    try:
        data = np.zeros(HEAD, np.uint8)
        head = data[: stream.readinto(memoryview(data))].tobytes()
    finally:
        stream.close()
    form = recognise(head)
    if form is None or form.name != "pcapng":
        return []
    order: Order = "big" if form.big else "little"
    at = 0
    found: list[str] = []
    while at + 8 <= len(head):
        kind, size = (int.from_bytes(head[at + o : at + o + 4], order) for o in (0, 4))
        if kind in PACKETS or size < 12:
            break
        if kind == INTERFACE:
            found.append(_name(head[at + 16 : at + size - 4], order) or str(len(found)))
        at += size
    return found


def _name(options: bytes, order: Order) -> str:
    """The name in the options of an interface's block; "" for none."""
    at = 0
    while at + 4 <= len(options):
        code, size = (int.from_bytes(options[at + o : at + o + 2], order) for o in (0, 2))
        if code == NAME:
            return options[at + 4 : at + 4 + size].decode(errors="replace")
        at += 4 + size + -size % 4
    return ""

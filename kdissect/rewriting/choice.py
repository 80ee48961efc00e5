"""Selects packets of a capture: by time, or those of one connection from one packet to another.

A connection's packets are those of its 4-tuple from its first packet to the first packet of the next connection with
the same 4-tuple. Behind the last packet wanted, the next packet from the other side is taken along, which acknowledges
it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kdissect.capture import Block
from kdissect.capture.pcap import PACKET, packet_at
from kdissect.kernels.kernel import kernel
from kdissect.kernels.memory import be32
from kdissect.net import segment as sg
from kdissect.net.headers import ETHERTYPE, IP, PIECE, ip_header, link_layer, under_ethertype
from kdissect.net.packets import FRAGMENT
from kdissect.net.scanner import Scanner
from kdissect.net.segment import SEGMENT, flow_at

Words = NDArray[np.int64]
HANDSHAKE = 3
"""Packets of TCP's handshake (RFC 9293, 3.5)."""


@dataclass(slots=True)
class Stretch:
    """Packets of one connection. Times in ns; packets are numbers | file << 40."""

    flow: tuple[int, int, int, int, int]
    """The 4-tuple as in the scanner's flow table."""
    first: int
    """Time of the connection's first packet."""
    following: int | None = None
    """Time of the first packet of the next connection with this 4-tuple."""
    begin: int | None = None
    """Leave out what came before this time, but for the handshake."""
    end: int | None = None
    """The last packet wanted; None: to the connection's end."""

    number: int = -1
    begun: bool = False
    seen: int = 0
    ended: bool = False
    side: int = -1
    """Direction of the last packet wanted, once it was seen."""
    syn: bool = False
    between: tuple[int, int] | None = None
    """Positions among the packets of the current block, for fragments."""

    def rows(self, segments: Words, flows: Words) -> NDArray[np.bool_]:
        """The selected ones of a block's segment rows."""
        self.between = None
        none = np.zeros(len(segments), np.bool_)
        if self.ended:
            return none
        if self.number < 0:
            found = np.flatnonzero((flows == np.array(self.flow, np.int64)).all(axis=1))
            if not len(found):
                return none
            self.number = int(found[0])
        mine = np.flatnonzero(segments[:, SEGMENT.flow] >> 1 == self.number)
        if not self.begun:
            start = np.flatnonzero(segments[mine, SEGMENT.time] == self.first)
            if not len(start):
                return none
            self.begun = True
            mine = mine[start[0] :]
        if self.following is not None:
            stop = np.flatnonzero(segments[mine, SEGMENT.time] == self.following)
            if len(stop):
                self.ended = True
                mine = mine[: stop[0]]
        if not len(mine):
            return none
        keep = np.ones(len(mine), np.bool_)
        place = self.seen + np.arange(len(mine))
        if place[0] == 0:
            self.syn = bool(segments[mine[0], SEGMENT.flags] & sg.SYN)
        self.seen += len(mine)
        if self.begin is not None:
            keep = (segments[mine, SEGMENT.time] >= self.begin) | (self.syn & (place < HANDSHAKE))
        if self.end is not None:
            keep &= self._until(segments[mine], self.end)
        none[mine[keep]] = True
        return none

    def _until(self, mine: Words, end: int) -> NDArray[np.bool_]:
        """Packets up to the last one wanted, and the one that acknowledges it."""
        keep: NDArray[np.bool_] = mine[:, SEGMENT.packet] <= end
        if keep.any():
            last = mine[keep][-1]
            if last[SEGMENT.packet] == end:
                self.side = int(last[SEGMENT.flow] & 1)
        if not keep.all() and self.side >= 0:
            back = np.flatnonzero(~keep & (mine[:, SEGMENT.flow] & 1 != self.side))
            if len(back):
                keep[back[0]] = True
                self.ended = True
        return keep


class Choice:
    """The packets wanted of one capture: of `stretches` (None: of everything), with after <= time <= before."""

    def __init__(self, stretches: list[Stretch] | None, after: int | None, before: int | None) -> None:
        self.stretches = stretches
        self.after = after
        self.before = before

    @property
    def over(self) -> bool:
        """Whether nothing more can come."""
        return self.stretches is not None and all(stretch.ended for stretch in self.stretches)

    def of(self, block: Block, scanner: Scanner) -> Words:
        """The block's packet rows that are wanted."""
        packets = block.packets
        keep = np.ones(len(packets), np.bool_)
        if self.after is not None:
            keep &= packets[:, PACKET.time] >= self.after
        if self.before is not None:
            keep &= packets[:, PACKET.time] <= self.before
        if self.stretches is not None:
            keep &= self._connections(block, scanner)
        return packets[keep]

    def _connections(self, block: Block, scanner: Scanner) -> NDArray[np.bool_]:
        packets = block.packets
        numbers = packets[:, PACKET.number]
        plain = packets.copy()  # scanning rewrites the rows of packets in tunnels
        fragments = int(scanner.kinds[block.file, FRAGMENT])
        segments = scanner.scan(block)
        wanted = np.zeros(len(packets), np.bool_)
        flows = scanner.flows
        for stretch in self.stretches or ():
            rows = segments[stretch.rows(segments, flows)]
            wanted[np.searchsorted(numbers, rows[:, SEGMENT.packet] & ((1 << 40) - 1))] = True
            if scanner.kinds[block.file, FRAGMENT] > fragments and stretch.begun and (len(rows) or not stretch.ended):
                fragments_between(block.window.data, plain, np.array(stretch.flow, np.int64), wanted)
        packets[:] = plain
        return wanted


@kernel("const u1[:] i8[:,:] i8[:] b1[:]")
def fragments_between(b: NDArray[np.uint8], packets: Words, flow: Words, selected: NDArray[np.bool_]) -> None:
    """Mark the IP fragments between the two addresses of a flow: nothing else says whose they are."""
    ends = flow_at(flow, 0)
    for i in range(packets.shape[0]):
        packet = packet_at(packets, i)
        p = packet.at
        e = p + packet.captured
        layer, p, kind, view = link_layer(b, p, e, packet.link & 0xFFFF, np.int64(0))
        if layer == ETHERTYPE:
            layer, p, kind, view = under_ethertype(b, p, e, kind, view)
        if layer != IP:
            continue
        h = p
        protocol, p, e, _ = ip_header(b, p, e, e)
        if protocol != PIECE:
            continue
        ah = np.int64(0)
        bh = np.int64(0)
        if b[h] >> 4 == 4:
            al = (0xFFFF << 32) | be32(b, h + 12)
            bl = (0xFFFF << 32) | be32(b, h + 16)
        else:
            ah = be32(b, h + 8) << 32 | be32(b, h + 12)
            al = be32(b, h + 16) << 32 | be32(b, h + 20)
            bh = be32(b, h + 24) << 32 | be32(b, h + 28)
            bl = be32(b, h + 32) << 32 | be32(b, h + 36)
        there = ah == ends.a_high and al == ends.a_low and bh == ends.b_high and bl == ends.b_low
        back = ah == ends.b_high and al == ends.b_low and bh == ends.a_high and bl == ends.a_low
        if there or back:
            selected[i] = True

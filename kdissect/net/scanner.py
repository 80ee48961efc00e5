"""Blocks of packets become TCP segment rows; flows get their numbers here.

Rules. Every TCP packet gives one row, in the order of the file. Packets that the kernel hands back are IP fragments, which are
joined, and layers that it does not know, which scapy looks at; both come back to the kernel as plain IP packets and their rows
take the place of the packet that completed them. Everything else is counted by kind, per file.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kdissect.capture import Block, CaptureSet, link_name
from kdissect.capture import records as r
from kdissect.net import packets as k
from kdissect.net.fragments import Reassembler
from kdissect.net.rare import MAX_RARE, Rare
from kdissect.net.segment import FLOW_COLUMNS, PACKET, PORTS, SEGMENT_COLUMNS
from kdissect.problems import Kind

MAX_FRAGMENTS = 200_000
"""Fragments looked at in one capture: at about 20 µs each that is 4 s. More of them are counted only."""
ODD_ROWS = 4096
"""Packets that the kernel hands back at once."""
MAX_DEPTH = 4
"""Fragmented packets inside fragmented packets: two happen (a tunnel with a small MTU), four end it."""
IP_LINK = 101
BEGIN, END = -(1 << 63), (1 << 63) - 1


class Scanner:
    """Scans one capture set. `after`, `before`: only packets with after <= time <= before, in ns.

    `kinds`: int64[files, kinds], packets by kind (`kdissect.net.packets.KINDS`). Problem rows go to the capture set.
    """

    def __init__(self, capture: CaptureSet, after: int | None = None, before: int | None = None) -> None:
        self.capture = capture
        self.after = BEGIN if after is None else after
        self.before = END if before is None else before
        self.kinds: NDArray[np.int64] = np.zeros((len(capture.members), len(k.KINDS)), np.int64)
        self._flows: NDArray[np.int64] = np.zeros((1024, FLOW_COLUMNS), np.int64)
        self._table: NDArray[np.int32] = np.full(4096, -1, np.int32)
        self._free: NDArray[np.int64] = np.zeros(64, np.int64)
        self._state: NDArray[np.int64] = np.zeros(k.SCAN_SIZE, np.int64)
        self._rows: NDArray[np.int64] = np.empty((0, SEGMENT_COLUMNS), np.int64)
        self._odd: NDArray[np.int64] = np.empty((ODD_ROWS, k.ODD_COLUMNS), np.int64)
        self._reassembler = Reassembler()
        self._rare = Rare()
        self._rare_seen = self._fragments_seen = 0
        self._unknown: dict[tuple[int, int], int] = {}  # (file, link type): packets that nothing could read

    @property
    def flows(self) -> NDArray[np.int64]:
        """int64[flows, 5] by flow number, columns in `kdissect.net.segment`; a view, valid until the next scan."""
        return self._flows[: self._state[k.FLOWS]]

    def forget(self, flows: NDArray[np.int64]) -> None:
        """These flows ended: their numbers may be given to new ones."""
        flows = flows[self._flows[flows, PORTS] >= 0]
        count = int(self._state[k.FREE])
        if count + flows.size > self._free.size:
            self._free = np.concatenate([self._free, np.zeros(max(self._free.size, flows.size), np.int64)])
        self._free[count : count + flows.size] = flows
        self._state[k.FREE] += flows.size
        self._state[k.TOMBS] += flows.size
        self._flows[flows, PORTS] = -1

    def scan(self, block: Block) -> NDArray[np.int64]:
        """The block's segment rows, int64[n, 10], columns in `kdissect.net.segment`; valid until the next scan."""
        count = len(block.packets)
        if len(self._rows) < count:
            self._rows = np.empty((count, SEGMENT_COLUMNS), np.int64)
        first = n = 0
        late: list[NDArray[np.int64]] = []
        while first < count:
            first, n, odd = self._take_apart(block, block.packets, first, block.delta, self._rows, n)
            if odd:
                late += self._odd_packets(block, block.packets, self._odd[:odd].tolist(), block.delta)
        rows = self._rows[:n]
        if late:
            rows = np.concatenate([rows, *late])
            rows = rows[np.argsort(rows[:, PACKET], kind="stable")]
        return rows

    def finish(self) -> None:
        """The capture was read to its end: report what stayed unread."""
        self._reassembler.finish()
        if self._reassembler.given_up:
            self.capture.add_problem(
                0,
                0,
                0,
                "IP fragments",
                f"{self._reassembler.given_up} fragmented IP packets never became whole",
                kind=Kind.CAPTURE,
            )
        if self._fragments_seen > MAX_FRAGMENTS:
            self.capture.add_problem(
                0,
                0,
                0,
                "IP fragments",
                f"{self._fragments_seen - MAX_FRAGMENTS} IP fragments beyond {MAX_FRAGMENTS} were not joined",
            )
        for (file, link), packets in self._unknown.items():
            why = self._rare.missing or (
                "too many for scapy" if self._rare_seen > MAX_RARE else "scapy finds no IP in them"
            )
            name = "an interface that is not described" if link == r.UNKNOWN_LINK else link_name(link)
            self.capture.add_problem(file, 0, 0, "link layer", f"{packets} packets of {name} were not decoded: {why}")

    def _take_apart(
        self, block: Block, packets: NDArray[np.int64], first: int, delta: int, rows: NDArray[np.int64], n: int
    ) -> tuple[int, int, int]:
        """Run the kernel until it is done or has odd packets; next packet, rows, odd packets."""
        while True:
            first, n, odd, why = k.take_apart(
                block.window.data, packets, first, delta, block.file, self.after, self.before, self._flows, self._table,
                self._free, self._state, self.kinds[block.file], rows, n, self._odd,
            )  # fmt: skip
            if why == k.FLOWS_FULL:
                self._grow()
            if odd or why != k.FLOWS_FULL:
                return first, n, odd

    def _grow(self) -> None:
        """Room for twice the flows in use; dead entries of the table go."""
        used = int(self._state[k.FLOWS])
        alive = used - int(self._state[k.FREE])
        if self._state[k.FREE] == 0 and used * 2 > len(self._flows):
            self._flows = np.concatenate([self._flows, np.zeros_like(self._flows)])
        size = self._table.size
        while alive * 4 >= size:
            size *= 2
        self._table = np.full(size, -1, np.int32)
        self._state[k.TOMBS] = 0
        k.rehash(self._flows, used, self._table)

    def _odd_packets(
        self, block: Block, packets: NDArray[np.int64], odd: list[list[int]], delta: int, depth: int = 0
    ) -> list[NDArray[np.int64]]:
        """Rows of fragments that became whole and of packets that scapy could read."""
        out: list[NDArray[np.int64]] = []
        kinds = self.kinds[block.file]
        for i, verdict, header, view in odd:
            time, at, captured, original, link, number = packets[i].tolist()
            end = at + captured
            if verdict == k.FRAGMENT:
                self._fragments_seen += 1
                if self._fragments_seen > MAX_FRAGMENTS:
                    continue
                whole = self._reassembler.add(block.window.data[header:end].tobytes(), view, time)
                if whole is None:
                    continue
                kinds[k.REJOINED] += 1
                out += self._again(block, whole[0], whole[1], view, time, number, depth)
                continue
            self._rare_seen += 1
            inner = None
            if depth == 0 and self._rare_seen <= MAX_RARE:
                inner = self._rare.ip_header(block.window.data[at:end].tobytes(), link & 0xFFFF)
            if inner is None:
                key = block.file, link & 0xFFFF
                self._unknown[key] = self._unknown.get(key, 0) + 1
                continue
            kinds[k.UNDECODED] -= 1
            kinds[k.BY_SCAPY] += 1
            view = k.seen_through(view, 13, 0)
            start = block.window.data[at:end].tobytes().rfind(inner)
            if start < 0:  # scapy undid an encoding: the bytes stand nowhere in the file
                out += self._again(block, inner, len(inner), view, time, number, depth)
                continue
            row = [time, at + start, len(inner), max(original - start, len(inner)), IP_LINK | view << 16, number]
            out += self._once_more(block, np.array([row], np.int64), delta, depth)
        return out

    def _again(
        self, block: Block, packet: bytes, original: int, view: int, time: int, number: int, depth: int
    ) -> list[NDArray[np.int64]]:
        """Rows of an IP packet that stands nowhere in the input in one piece."""
        logical = block.window.extra(packet)
        if logical < 0:
            self.kinds[block.file, k.MALFORMED] += 1
            return []
        place = block.window.locate(logical, len(packet))
        row = [time, place, len(packet), original, IP_LINK | view << 16, number]
        return self._once_more(block, np.array([row], np.int64), logical - place, depth)

    def _once_more(self, block: Block, packets: NDArray[np.int64], delta: int, depth: int) -> list[NDArray[np.int64]]:
        rows = np.empty((1, SEGMENT_COLUMNS), np.int64)
        _, n, odd = self._take_apart(block, packets, 0, delta, rows, 0)
        if odd and depth < MAX_DEPTH:
            return self._odd_packets(block, packets, self._odd[:odd].tolist(), delta, depth + 1)
        return [rows[:n]] if n else []

"""Blocks of packets become TCP segment rows; flows get their numbers here.

Rules. Every TCP packet gives one row, in the order of the file. The kernel hands back IP fragments, which are joined,
and layers that it does not know, which scapy looks at. Both come back to the kernel as plain IP packets, and their rows
take the place of the packet that completed them. Everything else is counted by kind, per file.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kdissect.arrays.growing import lazy_zeros
from kdissect.capture import Block, CaptureSet, link_name
from kdissect.capture import pcap as r
from kdissect.kernels.keyed_hash import new_secret
from kdissect.kernels.structs import width
from kdissect.net import packets as k
from kdissect.net.fragments import Reassembler
from kdissect.net.headers import seen_through
from kdissect.net.rare import MAX_RARE, Rare
from kdissect.net.segment import FLOW, FLOW_COLUMNS, SEGMENT, SEGMENT_COLUMNS
from kdissect.net.tunnels import IP_LINK, unwrap

MAX_FRAGMENTS = 200_000
"""Fragments looked at in one capture: at about 20 µs each that is 4 s. More of them are counted only."""
ODD_ROWS = 4096
"""Packets that the kernel hands back at once."""
MAX_DEPTH = 4
"""Fragmented packets inside fragmented packets: two happen (a tunnel with a small MTU), four end it."""
BEGIN, END = -(1 << 63), (1 << 63) - 1


class Tally(NamedTuple):
    """The counts of a scan of some files, so that scans of a capture's files apart from one another can be put
    together. `kinds` as in `Scanner`; `unknown`: (file, link type) -> packets that nothing could read."""

    kinds: NDArray[np.int64]
    fragments: int
    given_up: int
    rare: int
    unknown: dict[tuple[int, int], int]


class CarriedScan(NamedTuple):
    """Flows and unfinished packets that a scanner knows when one file ends and the next begins."""

    flows: NDArray[np.int64]
    table: NDArray[np.int32]
    free: NDArray[np.int64]
    state: NDArray[np.int64]
    tunnels: bool
    reassembler: Reassembler
    rare_seen: int
    fragments_seen: int


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
        self._state: NDArray[np.int64] = np.zeros(width(k.Scanning), np.int64)
        self._scanning = k.scanning_at(self._state, 0)
        self._scanning.key[:] = new_secret().tolist()
        self._rows: NDArray[np.int64] = np.empty((0, SEGMENT_COLUMNS), np.int64)
        self._other: NDArray[np.int64] | None = None
        """Where rows go in turns with `_rows`."""
        self._odd: NDArray[np.int64] = np.empty((ODD_ROWS, k.ODD_COLUMNS), np.int64)
        self._tunnels = False  # whether packets in tunnels were met
        self._reassembler = Reassembler()
        self._rare = Rare()
        self._rare_seen = self._fragments_seen = 0
        self._unknown: dict[tuple[int, int], int] = {}  # (file, link type): packets that nothing could read
        self._given_up_elsewhere = 0

    @property
    def flows(self) -> NDArray[np.int64]:
        """int64[flows, 5] by flow number, columns in `kdissect.net.segment`; a view, valid until the next scan."""
        return self._flows[: self._scanning.flows]

    def forget(self, flows: NDArray[np.int64]) -> None:
        """These flows ended: their numbers may be given to new ones."""
        flows = flows[self._flows[flows, FLOW.ports] >= 0]
        count = int(self._scanning.free)
        if count + flows.size > self._free.size:
            self._free = np.concatenate([self._free, np.zeros(max(self._free.size, flows.size), np.int64)])
        self._free[count : count + flows.size] = flows
        self._scanning.free += flows.size
        self._scanning.tombs += flows.size
        self._flows[flows, FLOW.ports] = -1

    def end_input(self) -> None:
        """No more packets come: the flows stay, what finds them and rows of blocks go."""
        self._table = np.zeros(0, np.int32)
        self._rows = np.empty((0, SEGMENT_COLUMNS), np.int64)
        self._other = None

    def carried(self) -> CarriedScan:
        """The state with which another scanner goes on with the capture's next file."""
        return CarriedScan(
            self._flows, self._table, self._free, self._state, self._tunnels, self._reassembler, self._rare_seen,
            self._fragments_seen,
        )  # fmt: skip

    def go_on(self, carried: CarriedScan) -> None:
        """Go on from what another scanner carried."""
        self._flows, self._table, self._free, self._state = carried.flows, carried.table, carried.free, carried.state
        self._scanning = k.scanning_at(self._state, 0)
        self._tunnels, self._reassembler = carried.tunnels, carried.reassembler
        self._rare_seen, self._fragments_seen = carried.rare_seen, carried.fragments_seen

    def alternate(self) -> None:
        """From here on rows are valid until the scan after the next."""
        self._other = np.empty((0, SEGMENT_COLUMNS), np.int64)

    def scan(self, block: Block) -> NDArray[np.int64]:
        """The block's segment rows, int64[n, 10], columns in `kdissect.net.segment`; valid until the next scan.

        Rows of the block's packets which lead through tunnels are rewritten on the way.
        """
        self._count_all_files()
        if self._other is not None:
            self._rows, self._other = self._other, self._rows
        if len(self._rows) < len(block.packets):
            self._rows = np.empty((len(block.packets), SEGMENT_COLUMNS), np.int64)
        return self._scan(block, block.packets, block.delta, self._rows, 0)

    def finish(self) -> None:
        """The capture was read to its end: report what stayed unread."""
        self._count_all_files()
        tally = self.tally()
        given_up = tally.given_up + self._given_up_elsewhere
        if given_up:
            self._problem(0, "IP fragments", f"{given_up} fragmented IP packets never became whole")
        if self._fragments_seen > MAX_FRAGMENTS:
            left = self._fragments_seen - MAX_FRAGMENTS
            self._problem(0, "IP fragments", f"{left} IP fragments beyond {MAX_FRAGMENTS} were not joined")
        for (file, link), packets in self._unknown.items():
            why = self._rare.missing or "scapy finds no IP in them"
            if self._rare_seen > MAX_RARE:
                why = f"only {MAX_RARE} packets of a capture go to scapy"
            name = "an interface that is not described" if link == r.UNKNOWN_LINK else link_name(link)
            self._problem(file, "link layer", f"{packets} packets of {name} were not decoded: {why}")

    def _count_all_files(self) -> None:
        """A set that is followed may have more files than when it was opened."""
        more = len(self.capture.members) - len(self.kinds)
        if more > 0:
            self.kinds = np.concatenate([self.kinds, np.zeros((more, len(k.KINDS)), np.int64)])

    def tally(self) -> Tally:
        """The counts, once every packet was seen."""
        self._reassembler.finish()
        return Tally(self.kinds, self._fragments_seen, self._reassembler.given_up, self._rare_seen, dict(self._unknown))

    def add(self, tally: Tally, file: int) -> None:
        """Count what was counted in one file elsewhere; `file` is its index here."""
        self.kinds[file] += tally.kinds[0]
        self._fragments_seen += tally.fragments
        self._given_up_elsewhere += tally.given_up
        self._rare_seen += tally.rare
        for (_, link), packets in tally.unknown.items():
            self._unknown[file, link] = self._unknown.get((file, link), 0) + packets

    def _problem(self, file: int, where: str, detail: str) -> None:
        self.capture.add_problem(file, 0, 0, where, detail)

    def _scan(
        self, block: Block, packets: NDArray[np.int64], delta: int, rows: NDArray[np.int64], depth: int
    ) -> NDArray[np.int64]:
        """Segment rows of packet rows, in their order; `rows` is where the kernel puts those it makes."""
        data = block.window.data
        unwrapped = self._tunnels
        if unwrapped:
            unwrap(data, packets, 0)
        source = k.PacketSource(block.file, delta, self.after, self.before)
        out = k.PacketRows(self.kinds[block.file], rows, self._odd)
        first = n = 0
        why = k.ODD_FULL
        late: list[NDArray[np.int64]] = []
        while why != k.DONE:
            flow_table = k.FlowTable(self._flows, self._table, self._free, self._state)
            first, n, odd, why = k.take_apart(data, packets, first, unwrapped, source, flow_table, out, n)
            if odd:
                late += self._hand_back(block, packets, self._odd[:odd].tolist(), delta, depth)
            if why == k.FLOWS_FULL:
                self._grow()
            elif why == k.TUNNELS:
                unwrapped = self._tunnels = True
                unwrap(data, packets, first)
        if not late:
            return rows[:n]
        together = np.concatenate([rows[:n], *late])
        return together[np.argsort(together[:, SEGMENT.packet], kind="stable")]

    def _grow(self) -> None:
        """Room for twice the flows in use; dead entries of the table go."""
        used = int(self._scanning.flows)
        alive = used - int(self._scanning.free)
        if self._scanning.free == 0 and used * 2 > len(self._flows):
            flows = lazy_zeros(2 * self._flows.size, np.int64).reshape(-1, FLOW_COLUMNS)
            flows[:used] = self._flows[:used]
            self._flows = flows
        size = self._table.size
        while alive * 8 >= 3 * size:  # the kernel asks for more when the table is half full
            size *= 2
        self._table = np.full(size, -1, np.int32)
        self._scanning.tombs = 0
        k.rehash(self._flows, used, self._table, self._state)

    def _hand_back(
        self, block: Block, packets: NDArray[np.int64], odd: list[list[int]], delta: int, depth: int
    ) -> list[NDArray[np.int64]]:
        """Rows of fragments that became whole and of packets that scapy could read."""
        out: list[NDArray[np.int64]] = []
        if depth > MAX_DEPTH:
            return out
        data = block.window.data
        kinds = self.kinds[block.file]
        for i, verdict, header, view in odd:
            time, at, captured, original, link, number = packets[i].tolist()
            end = at + captured
            if verdict == k.FRAGMENT:
                self._fragments_seen += 1
                if self._fragments_seen > MAX_FRAGMENTS:
                    continue
                whole = self._reassembler.add(data[header:end].tobytes(), view, time)
                if whole is not None:
                    kinds[k.REJOINED] += 1
                    out.append(self._loose(block, whole[0], whole[1], view, time, number, depth))
                continue
            self._rare_seen += 1
            inner = None
            packet = data[at:end].tobytes()
            if self._rare_seen <= MAX_RARE:
                inner = self._rare.ip_header(packet, link & 0xFFFF)
            if not inner:
                key = block.file, link & 0xFFFF
                self._unknown[key] = self._unknown.get(key, 0) + 1
                continue
            kinds[k.UNDECODED] -= 1
            kinds[k.BY_SCAPY] += 1
            view = seen_through(view, 13, 0)
            start = packet.rfind(inner)
            if start < 0:  # scapy undid an encoding: the bytes stand nowhere in the file
                out.append(self._loose(block, inner, len(inner), view, time, number, depth))
                continue
            row = [time, at + start, len(inner), max(original - start, len(inner)), IP_LINK | view << 16, number]
            out.append(self._single(block, row, delta, depth))
        return out

    def _loose(
        self, block: Block, packet: bytes, original: int, view: int, time: int, number: int, depth: int
    ) -> NDArray[np.int64]:
        """Rows of an IP packet that stands nowhere in the input in one piece."""
        logical = block.window.extra(packet)
        place = block.window.locate(logical, len(packet))
        row = [time, place, len(packet), original, IP_LINK | view << 16, number]
        return self._single(block, row, logical - place, depth)

    def _single(self, block: Block, packet: list[int], delta: int, depth: int) -> NDArray[np.int64]:
        rows = np.empty((1, SEGMENT_COLUMNS), np.int64)
        return self._scan(block, np.array([packet], np.int64), delta, rows, depth + 1)

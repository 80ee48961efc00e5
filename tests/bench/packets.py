"""Writes large captures fast: a cycle of packet templates, repeated over many connections with numpy.

A `Cycle` is what one application does in one turn, over one connection or several. All its bytes are fixed but for
times, addresses, sequence numbers, correlation ids and the numbers of its templates, which are filled in for thousands
of cycles at once; a gigabyte takes a few seconds.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.bench.templates import Number, Template, template_of

Bytes = npt.NDArray[np.uint8]

START_S = 1_800_000_000
STEP_US = 5
"""Time between two packets of the file, unless a workload says otherwise."""
HEADERS = 16 + 14 + 20 + 20
"""pcap record, Ethernet, IPv4, TCP."""
CHUNK = 48 << 20
"""Bytes built at a time."""
BROKER_IP, BROKER_PORT = 0x0A000001, 9092
SYN, ACK, FIN = 2, 16, 1


@dataclass(frozen=True, slots=True)
class Packet:
    """One packet of a cycle. `side` 0 is the client's; `correlation_at` is where in the payload its id stands.

    `connection`: which of the application's connections carries it. `after_us`: microseconds that pass before it,
    beside those between any two packets.
    """

    side: int
    payload: bytes
    flags: int = ACK
    correlation_at: int | None = None
    numbers: tuple[Number, ...] = ()
    connection: int = 0
    after_us: int = 0


@dataclass(slots=True)
class Cycle:
    """Packets of one turn of an application, in order; `exchanges` counts its requests. `opening` has the packets that
    come once, before the first turn."""

    packets: list[Packet] = field(default_factory=list)
    exchanges: int = 0
    opening: list[Packet] = field(default_factory=list)

    def ask(self, frame: Template | bytes, segment: int = 1 << 15, connection: int = 0, after_us: int = 0) -> None:
        """Add a request frame, its correlation id patched, in segments of at most that size."""
        self.exchanges += 1
        self.packets += packets_of(0, frame, segment, connection, after_us)

    def answer(self, frame: Template | bytes, segment: int = 1 << 15, connection: int = 0, after_us: int = 0) -> None:
        """Add a response frame."""
        self.packets += packets_of(1, frame, segment, connection, after_us)

    def acknowledge(self, side: int, connection: int = 0, after_us: int = 0) -> None:
        """Add a packet without payload: what TCP sends where a side has nothing to say in time."""
        self.packets.append(Packet(side, b"", connection=connection, after_us=after_us))

    def open(self, request: Template, response: Template, connection: int = 0, after_us: int = 0) -> None:
        """Add an exchange that comes once; its response comes `after_us` after the request."""
        self.opening += packets_of(0, request, 1 << 15, connection, 0)
        self.opening += packets_of(1, response, 1 << 15, connection, after_us)

    @property
    def size(self) -> int:
        """Bytes of the file that one cycle takes."""
        return sum(HEADERS + len(p.payload) for p in self.packets)

    @property
    def width(self) -> int:
        """Connections of an application."""
        return 1 + max(packet.connection for packet in (*self.opening, *self.packets))


def packets_of(side: int, frame: Template | bytes, segment: int, connection: int, after_us: int) -> list[Packet]:
    """Packets of at most `segment` bytes that carry a frame of `side`."""
    whole, packets = template_of(frame), []
    for at in range(0, len(whole), segment):
        piece = whole.cut(at, min(at + segment, len(whole)))
        first = at == 0
        correlation_at = (8, 4)[side] if first else None
        packets.append(
            Packet(side, piece.data, ACK, correlation_at, piece.numbers, connection, after_us if first else 0)
        )
    return packets


@dataclass(frozen=True, slots=True)
class Made:
    """What a generated capture holds."""

    path: Path
    size: int
    packets: int
    exchanges: int
    connections: int


def write(
    path: Path,
    cycle: Cycle,
    size: int,
    connections: int,
    *,
    interleave: int | None = 16,
    loss: float = 0.0,
    fresh: bool = False,
    handshakes: bool = True,
    step_us: int = STEP_US,
    brokers: int = 1,
) -> Made:
    """Write about `size` bytes: `cycle` again and again, dealt to the applications that `connections` make in turn.

    `interleave` cycles of different applications run at the same time, those of all of them where it is None. `loss` is
    the share of packets left out (drawn with a fixed seed). `fresh`: every cycle is a connection of its own, its
    packets include SYN and FIN. Without `handshakes` the connections began before the capture.
    `step_us`: microseconds between packets. `brokers`: addresses that applications go to, in turn.
    """
    total = max(1, round(size / cycle.size))
    copies = min(max(1, connections // cycle.width), total)
    together = copies if interleave is None else interleave if fresh else min(interleave, copies)
    total = max(1, round(total / together)) * together if interleave is None else total + -total % together
    rng = np.random.default_rng(1)
    built = _Builder(cycle, copies, together, fresh, step_us, brokers)
    per_chunk = max(together, CHUNK // cycle.size // together * together)
    packets = 0
    with path.open("wb") as out:
        out.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 262144, 1))
        if handshakes and not fresh:
            out.write(built.handshakes().tobytes())
            packets += 3 * copies * cycle.width
        if cycle.opening:
            data, count = built.openings(loss, rng)
            data.tofile(out)
            packets += count
        for first in range(0, total, per_chunk):
            data, count = built.turns(first, min(per_chunk, total - first), loss, rng)
            data.tofile(out)
            packets += count
        size = out.tell()
    opened = sum(packet.side == 0 for packet in cycle.opening) * copies
    return Made(path, size, packets, total * cycle.exchanges + opened, total if fresh else copies * cycle.width)


class _Streams:
    """How far the connections of an application are, packet by packet of a list that follows `before`."""

    def __init__(self, packets: list[Packet], before: _Streams | None, width: int) -> None:
        self.packets = packets
        self.templates = [_template(packet) for packet in packets]
        self.sent = [list(pair) for pair in before.sent] if before else [[0, 0] for _ in range(width)]
        self.asked = list(before.asked) if before else [0] * width
        began, asked = [list(pair) for pair in self.sent], list(self.asked)
        self.offsets, self.seen, self.ids = [], [], []
        for packet in packets:
            streams = self.sent[packet.connection]
            self.offsets.append(streams[packet.side])
            self.seen.append(streams[1 - packet.side])
            streams[packet.side] += len(packet.payload) + bool(packet.flags & (SYN | FIN))
            self.asked[packet.connection] += packet.correlation_at == 8
            self.ids.append(self.asked[packet.connection])
        self.stride = [
            [now - old for now, old in zip(*pair, strict=True)] for pair in zip(self.sent, began, strict=True)
        ]
        self.requests = [now - old for now, old in zip(self.asked, asked, strict=True)]


class _Builder:
    def __init__(self, cycle: Cycle, copies: int, together: int, fresh: bool, step_us: int, brokers: int) -> None:
        self.step_us, self.brokers = step_us, brokers
        self.cycle, self.copies, self.together, self.fresh = cycle, copies, together, fresh
        self.width = cycle.width
        self.opening = _Streams(cycle.opening, None, self.width)
        self.turn = _Streams(cycle.packets, self.opening, self.width)
        self.clock_us = 0

    def handshakes(self) -> Bytes:
        """SYN, SYN with ACK, ACK of every connection."""
        conn = np.arange(self.copies * self.width)
        rows = []
        for n, (side, flags) in enumerate(((0, SYN), (1, SYN | ACK), (0, ACK))):
            out = np.tile(_template(Packet(side, b"", flags)), (len(conn), 1))
            _patch(
                out,
                side,
                conn,
                (conn * 3 + n) * self.step_us,
                np.full(len(conn), 100 + (n == 2)),
                101 if n else None,
            )
            self._to_broker(out, side, conn // self.width)
            rows.append(out)
        self.clock_us = 3 * len(conn) * self.step_us
        return np.concatenate(rows, axis=1).reshape(-1)

    def openings(self, loss: float, rng: np.random.Generator) -> tuple[Bytes, int]:
        """What comes once, of every application, and how many packets that is."""
        copy = np.arange(self.copies)
        return self._packets(self.opening, copy, np.zeros_like(copy), self.copies, loss, rng)

    def turns(self, first: int, count: int, loss: float, rng: np.random.Generator) -> tuple[Bytes, int]:
        """Cycles [first, first + count), and how many packets these are."""
        index = np.arange(first, first + count)
        if self.fresh:
            return self._packets(self.turn, index, np.zeros_like(index), self.together, loss, rng)
        return self._packets(self.turn, index % self.copies, index // self.copies, self.together, loss, rng)

    def _packets(
        self, streams: _Streams, copy: Any, turn: Any, together: int, loss: float, rng: np.random.Generator
    ) -> tuple[Bytes, int]:
        """The packets of these turns of these copies, of which so many run together."""
        kinds, groups = len(streams.packets), len(copy) // together
        pauses = np.cumsum([packet.after_us for packet in streams.packets])
        lasts = kinds * together * self.step_us + int(pauses[-1])
        rows = np.arange(len(copy))
        began = self.clock_us + rows // together * lasts + rows % together * self.step_us
        parts = []
        for k, (template, sent) in enumerate(zip(streams.templates, streams.packets, strict=True)):
            out = np.tile(template, (len(copy), 1))
            stride = streams.stride[sent.connection]
            opened = 100 if self.fresh else 101
            seq = opened + turn * stride[sent.side] + streams.offsets[k]
            ack = None if sent.flags == SYN else opened + turn * stride[1 - sent.side] + streams.seen[k]
            micros = began + k * together * self.step_us + pauses[k]
            _patch(out, sent.side, copy * self.width + sent.connection, micros, seq, ack)
            self._to_broker(out, sent.side, copy)
            if sent.correlation_at is not None:
                _put(
                    out, HEADERS + sent.correlation_at, turn * streams.requests[sent.connection] + streams.ids[k], ">i4"
                )
            for number in sent.numbers:
                values = number.first + copy * number.copy + turn * number.turn
                _put(out, HEADERS + number.at, values, number.kind)
            parts.append(out.reshape(groups, together * out.shape[1]))
        self.clock_us += groups * lasts
        data = np.concatenate(parts, axis=1)
        if loss:
            sizes = np.repeat([len(template) for template in streams.templates], together)
            kept = rng.random((groups, len(sizes))) >= loss
            return data[np.repeat(kept, sizes, axis=1)], int(kept.sum())
        return data.reshape(-1), len(copy) * kinds

    def _to_broker(self, out: Bytes, side: int, copy: Any) -> None:
        """Fill in the broker's address."""
        _put(out, 16 + 14 + (16 if side == 0 else 12), BROKER_IP + copy % self.brokers, ">u4")


def _template(packet: Packet) -> Bytes:
    size = len(packet.payload)
    record = struct.pack("<IIII", START_S, 0, size + 54, size + 54)
    ethernet = b"\2\0\0\0\0\1\2\0\0\0\0\2\x08\x00"
    ip = struct.pack(">BBHHHBBHII", 0x45, 0, size + 40, 0, 0x4000, 64, 6, 0, BROKER_IP, BROKER_IP)
    tcp = struct.pack(">HHIIBBHHH", BROKER_PORT, BROKER_PORT, 0, 0, 0x50, packet.flags, 65535, 0, 0)
    return np.frombuffer(record + ethernet + ip + tcp + packet.payload, np.uint8)


def _patch(out: Bytes, side: int, conn: Any, micros: Any, seq: Any, ack: Any) -> None:
    """Fill in times (`micros` since the beginning), the client's end, sequence numbers and acknowledgements, where
    there are any."""
    _put(out, 0, START_S + micros // 1_000_000, "<u4")
    _put(out, 4, micros % 1_000_000, "<u4")
    ip = 16 + 14
    _put(out, ip + (12 if side == 0 else 16), 0x0A010000 + conn // 40000, ">u4")
    _put(out, ip + 20 + (0 if side == 0 else 2), 20000 + conn % 40000, ">u2")
    _put(out, ip + 24, seq + _isn(conn, side), ">u4")
    _put(out, ip + 28, 0 if ack is None else ack + _isn(conn, 1 - side), ">u4")


def _isn(conn: Any, side: int) -> Any:
    """Initial sequence numbers of these connections, of each another pair: equal ones are one connection behind NAT."""
    return conn * 2_654_435_761 + side * 1_000_003


def _put(out: Bytes, at: int, values: Any, kind: str) -> None:
    """Write `values` into the rows of `out` at a column: as an integer, or as decimal digits (`S4`)."""
    width = np.dtype(kind).itemsize
    if kind.startswith("S"):
        powers = 10 ** np.arange(width - 1, -1, -1)
        out[:, at : at + width] = np.asarray(values)[:, None] // powers % 10 + ord("0")
        return
    out[:, at : at + width] = np.broadcast_to(values, len(out)).astype(kind).view(np.uint8).reshape(len(out), width)

"""Writes large captures fast: a cycle of packet templates, repeated over many connections with numpy.

A `Cycle` is what one connection does in one turn. All its bytes are fixed but for times, addresses, sequence numbers
and correlation ids, which are filled in for thousands of cycles at once; a gigabyte takes a few seconds.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

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
    """One packet of a cycle. `side` 0 is the client's; `correlation_at` is where in the payload its id stands,
    `session_at` where the id of a fetch session stands."""

    side: int
    payload: bytes
    flags: int = ACK
    correlation_at: int | None = None
    session_at: int | None = None


@dataclass(slots=True)
class Cycle:
    """Packets of one turn of a connection, in order; `exchanges` counts its requests."""

    packets: list[Packet] = field(default_factory=list)
    exchanges: int = 0

    def ask(self, frame: bytes, segment: int = 1 << 15, session_at: int | None = None) -> None:
        """A request frame, its correlation id patched, in segments of at most that size. `session_at`: where the id of
        a fetch session stands, which becomes one of the connection's turn."""
        self.exchanges += 1
        self._frame(0, frame, 8, segment, session_at)

    def answer(self, frame: bytes, segment: int = 1 << 15, session_at: int | None = None) -> None:
        """A response frame."""
        self._frame(1, frame, 4, segment, session_at)

    def _frame(self, side: int, frame: bytes, correlation_at: int, segment: int, session_at: int | None) -> None:
        for at in range(0, len(frame), segment):
            patched = (correlation_at, session_at) if at == 0 else (None, None)
            self.packets.append(Packet(side, frame[at : at + segment], ACK, *patched))

    @property
    def size(self) -> int:
        """Bytes of the file that one cycle takes."""
        return sum(HEADERS + len(p.payload) for p in self.packets)


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
    interleave: int = 16,
    loss: float = 0.0,
    fresh: bool = False,
    handshakes: bool = True,
    step_us: int = STEP_US,
    brokers: int = 1,
) -> Made:
    """Write about `size` bytes: `cycle` again and again, dealt to `connections` in turn.

    `interleave` cycles of different connections run at the same time. `loss` is the share of packets left out (drawn
    with a fixed seed). `fresh`: every cycle is a connection of its own, its packets include SYN and FIN.
    Without `handshakes` the connections began before the capture.
    `step_us`: microseconds between packets. `brokers`: addresses that connections go to, in turn.
    """
    total = max(1, round(size / cycle.size))
    connections = min(connections, total)
    together = interleave if fresh else min(interleave, connections)
    total += -total % together
    rng = np.random.default_rng(1)
    built = _Builder(cycle, connections, together, fresh, step_us, brokers)
    per_chunk = max(together, CHUNK // cycle.size // together * together)
    packets = 0
    with path.open("wb") as out:
        out.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 262144, 1))
        if handshakes and not fresh:
            out.write(built.handshakes().tobytes())
            packets += 3 * connections
        for first in range(0, total, per_chunk):
            data, count = built.chunk(first, min(per_chunk, total - first), packets, loss, rng)
            data.tofile(out)
            packets += count
        size = out.tell()
    return Made(path, size, packets, total * cycle.exchanges, total if fresh else connections)


class _Builder:
    def __init__(self, cycle: Cycle, connections: int, together: int, fresh: bool, step_us: int, brokers: int) -> None:
        self.step_us, self.brokers = step_us, brokers
        self.cycle, self.connections, self.together, self.fresh = cycle, connections, together, fresh
        self.templates = [_template(p) for p in cycle.packets]
        at, self.offsets, self.seen = [0, 0], [], []
        for packet in cycle.packets:
            self.offsets.append(at[packet.side])
            self.seen.append(at[1 - packet.side])
            at[packet.side] += len(packet.payload) + bool(packet.flags & (SYN | FIN))
        self.stride = at

    def handshakes(self) -> Bytes:
        """SYN, SYN with ACK, ACK of every connection."""
        conn = np.arange(self.connections)
        rows = []
        for n, (side, flags) in enumerate(((0, SYN), (1, SYN | ACK), (0, ACK))):
            out = np.tile(_template(Packet(side, b"", flags)), (self.connections, 1))
            _patch(
                out,
                side,
                conn,
                (conn * 3 + n) * self.step_us,
                np.full(len(conn), 100 + (n == 2)),
                101 * bool(n),
            )
            self._to_broker(out, side, conn)
            rows.append(out)
        return np.concatenate(rows, axis=1).reshape(-1)

    def chunk(self, first: int, count: int, packet: int, loss: float, rng: np.random.Generator) -> tuple[Bytes, int]:
        """Cycles [first, first + count), with the file's next packet numbered `packet`."""
        index = np.arange(first, first + count)
        conn = index if self.fresh else index % self.connections
        turn = np.zeros_like(index) if self.fresh else index // self.connections
        kinds, groups = len(self.templates), count // self.together
        place = (index - first) // self.together * (kinds * self.together) + (index - first) % self.together
        parts = []
        for k, (template, sent) in enumerate(zip(self.templates, self.cycle.packets, strict=True)):
            out = np.tile(template, (count, 1))
            opened = 100 if self.fresh else 101
            seq = opened + turn * self.stride[sent.side] + self.offsets[k]
            ack = 0 if sent.flags == SYN else opened + turn * self.stride[1 - sent.side] + self.seen[k]
            ids = turn * self.cycle.exchanges + sum(p.correlation_at == 8 for p in self.cycle.packets[: k + 1])
            micros = (packet + place + k * self.together) * self.step_us
            _patch(out, sent.side, conn, micros, seq, ack)
            self._to_broker(out, sent.side, conn)
            for at, values in ((sent.correlation_at, ids), (sent.session_at, 1 + conn + turn * self.connections)):
                if at is not None:
                    _put(out, HEADERS + at, values, ">i4")
            parts.append(out.reshape(groups, self.together * out.shape[1]))
        data = np.concatenate(parts, axis=1)
        if loss:
            sizes = np.repeat([t.shape[1] for t in (template[None] for template in self.templates)], self.together)
            kept = rng.random((groups, len(sizes))) >= loss
            return data[np.repeat(kept, sizes, axis=1)], int(kept.sum())
        return data.reshape(-1), count * kinds

    def _to_broker(self, out: Bytes, side: int, conn: Any) -> None:
        """Fill in the broker's address."""
        _put(out, 16 + 14 + (16 if side == 0 else 12), BROKER_IP + conn % self.brokers, ">u4")


def _template(packet: Packet) -> Bytes:
    size = len(packet.payload)
    record = struct.pack("<IIII", START_S, 0, size + 54, size + 54)
    ethernet = b"\2\0\0\0\0\1\2\0\0\0\0\2\x08\x00"
    ip = struct.pack(">BBHHHBBHII", 0x45, 0, size + 40, 0, 0x4000, 64, 6, 0, BROKER_IP, BROKER_IP)
    tcp = struct.pack(">HHIIBBHHH", BROKER_PORT, BROKER_PORT, 0, 0, 0x50, packet.flags, 65535, 0, 0)
    return np.frombuffer(record + ethernet + ip + tcp + packet.payload, np.uint8)


def _patch(out: Bytes, side: int, conn: Any, micros: Any, seq: Any, ack: Any) -> None:
    """Fill in times (`micros` since the beginning), the client's end, sequence numbers and acknowledgements."""
    _put(out, 0, START_S + micros // 1_000_000, "<u4")
    _put(out, 4, micros % 1_000_000, "<u4")
    ip = 16 + 14
    _put(out, ip + (12 if side == 0 else 16), 0x0A010000 + conn // 40000, ">u4")
    _put(out, ip + 20 + (0 if side == 0 else 2), 20000 + conn % 40000, ">u2")
    _put(out, ip + 24, seq, ">u4")
    _put(out, ip + 28, ack, ">u4")


def _put(out: Bytes, at: int, values: Any, kind: str) -> None:
    width = int(kind[-1])
    out[:, at : at + width] = np.broadcast_to(values, len(out)).astype(kind).view(np.uint8).reshape(len(out), width)

"""A play in steps for the stream core: what client and broker send, what of it is captured, and what becomes of it.

    talk(request(1), hole(3), response(1)) == ["partial"]

A step is one packet, or a change of the one before it. `talk` gives the statuses of exchanges in the order of their
requests, `play` all that came out. Messages are Heartbeat version 0 (key 12) unless said otherwise: a group,
a generation and a member; an error code.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from kdissect.capture.window import Window
from kdissect.kafka.completed import Status
from kdissect.kafka.exchanges.messages import Decoder
from kdissect.kafka.streams.dissector import Dissector
from kdissect.kafka.streams.state import TOKEN
from kdissect.kernels.structs import offsets, record
from kdissect.net.segment import ACK_FLAG, FIN, RST, SYN, Segment
from kdissect.problems import Kind
from kdissect.schema.fit import Programs
from kdissect.tcp.layout import HEAP, OUT, Control

PRODUCE, HEARTBEAT, HANDSHAKE, CONTROLLED_SHUTDOWN = 0, 12, 17, 7
MS = 1_000_000
ISN = (1000, 70_000)
CLIENT, BROKER = 0, 1
_PROGRAMS: list[Programs] = []


@dataclass(frozen=True)
class Packet:
    """One packet: `data` was sent from `side`, of which `captured` bytes are there (None: all)."""

    side: int
    data: bytes = b""
    flags: int = ACK_FLAG
    captured: int | None = None
    seen: bool = True
    """False: never captured."""
    again: int | None = None
    """Its position instead of the next one: as many bytes before it."""
    after: float = 1.0
    """Milliseconds after the packet before."""
    viewpoint: int = 0
    ident: int = 0
    window: int = 1000
    acknowledges: bool = True
    late: int = 0
    """How many packets later it was captured."""
    seq: int | None = None


@dataclass(frozen=True)
class Change:
    """Changes the step before it."""

    change: Any


@dataclass(frozen=True)
class Hole:
    """The last bytes of the step before it were never captured."""

    size: int


Step = Packet | Change | Hole | list[Any]


def framed(body: bytes) -> bytes:
    """With the length prefix."""
    return struct.pack(">i", len(body)) + body


def text(value: str | None) -> bytes:
    """A string of the old encoding."""
    return struct.pack(">h", -1) if value is None else struct.pack(">h", len(value)) + value.encode()


def request_bytes(
    n: int, *, api: int = HEARTBEAT, version: int = 0, client: str | None = "app", body: bytes | None = None
) -> bytes:
    """A request's frame."""
    if body is None:
        body = text("group") + struct.pack(">i", 5) + text("member")
    return framed(struct.pack(">hhi", api, version, n) + text(client) + body)


def response_bytes(n: int, body: bytes = b"\0\0") -> bytes:
    """A response's frame."""
    return framed(struct.pack(">i", n) + body)


def request(n: int, **how: Any) -> Packet:
    """A packet with a request of correlation id `n`."""
    return Packet(CLIENT, request_bytes(n, **how))


def response(n: int, body: bytes = b"\0\0") -> Packet:
    """A packet with the response to it."""
    return Packet(BROKER, response_bytes(n, body))


def sends(side: int, *data: bytes) -> list[Any]:
    """Bytes, a packet each."""
    return [Packet(side, one) for one in data]


def cut_up(packet: Packet, *sizes: int) -> list[Any]:
    """Its bytes in packets of these sizes and one of the rest."""
    data, out = packet.data, []
    for size in sizes:
        out.append(replace(packet, data=data[:size]))
        data = data[size:]
    return [*out, replace(packet, data=data)]


def acknowledges(side: int, **how: Any) -> Packet:
    """A packet without bytes."""
    return Packet(side, **how)


def quiet(count: int, side: int = CLIENT) -> list[Any]:
    """So many packets without news."""
    return [Packet(side, acknowledges=False) for _ in range(count)]


def opening(broker: bool = True) -> list[Any]:
    """The handshake."""
    return [
        Packet(CLIENT, flags=SYN), *([Packet(BROKER, flags=SYN | ACK_FLAG)] if broker else []), Packet(CLIENT),
    ]  # fmt: skip


def changed(**fields: Any) -> Change:
    """The step before it, with these fields."""
    return Change(lambda packet: replace(packet, **fields))


def hole(size: int) -> Hole:
    """The last bytes of the step before it were never captured."""
    return Hole(size)


def lost() -> Change:
    """The packet before it was never captured."""
    return changed(seen=False)


def snapped(captured: int) -> Change:
    """Of the packet before it so many bytes are there: a snap length cut the others."""
    return changed(captured=captured)


def late(count: int) -> Change:
    """The packet before it was captured so many packets later."""
    return changed(late=count)


def closing(side: int) -> Packet:
    """A FIN."""
    return Packet(side, flags=FIN | ACK_FLAG)


def reset(side: int) -> Packet:
    """A RST."""
    return Packet(side, flags=RST)


@dataclass
class Played:
    """What came out, in the order of requests."""

    exchanges: list[Any] = field(default_factory=list)
    tokens: list[Any] = field(default_factory=list)
    problems: list[tuple[Kind, int]] = field(default_factory=list)
    """Kind and bytes."""
    connections: list[Any] = field(default_factory=list)
    dissector: Dissector | None = None

    @property
    def statuses(self) -> list[str]:
        """By name."""
        return [Status(int(row["status"])).name.lower() for row in self.exchanges]

    @property
    def kinds(self) -> list[str]:
        """Kinds of problems."""
        return [kind.name.lower() for kind, _ in self.problems]

    @property
    def connection(self) -> Any:
        """The only one."""
        (one,) = self.connections
        return one


def programs() -> Programs:
    """The layouts that bodies are tried against."""
    if not _PROGRAMS:
        decoder = Decoder({})
        _PROGRAMS.append(decoder.programs())
    return _PROGRAMS[0]


def _flat(steps: Sequence[Step]) -> list[Packet]:
    out: list[Packet] = []
    _flatten(steps, out)
    return out


def _flatten(steps: Sequence[Step], out: list[Packet]) -> None:
    for step in steps:
        if isinstance(step, list):
            _flatten(step, out)
        elif isinstance(step, Change):
            out[-1] = step.change(out[-1])
        elif isinstance(step, Hole):
            whole = out.pop()
            kept = len(whole.data) - step.size
            out.append(replace(whole, data=whole.data[:kept]))
            out.append(replace(whole, data=whole.data[kept:], seen=False))
        else:
            out.append(step)


def segments_of(
    steps: Sequence[Step], data: bytearray, position: list[int], begin: float = 1.0, first: int = 0
) -> np.ndarray[Any, Any]:
    """Segment rows of these steps, whose bytes are appended to `data`; `position` is where each side's stream is."""
    now = begin
    rows: list[tuple[float, Any]] = []
    for number, packet in enumerate(_flat(steps)):
        now += packet.after
        row = np.zeros(1, record(Segment))[0]
        seq = position[packet.side] - (packet.again or 0)
        if packet.seq is not None:
            seq = packet.seq
        have = len(packet.data) if packet.captured is None else packet.captured
        row.time, row.flow, row.seq = int(now * MS), packet.side, seq & 0xFFFFFFFF
        row.ack = (
            position[1 - packet.side] & 0xFFFFFFFF
            if packet.acknowledges and packet.flags & ACK_FLAG
            else ISN[1 - packet.side]
        )
        row.flags = packet.flags | packet.window << 8 | packet.ident << 24
        row.at, row.len, row.wire = len(data), have, len(packet.data)
        row.packet, row.viewpoint = first + number + 1, packet.viewpoint
        if packet.again is None and packet.seq is None:
            position[packet.side] += len(packet.data) + bool(packet.flags & (SYN | FIN))
        if packet.seen:
            data += packet.data[:have]
            rows.append((number + packet.late + (0.5 if packet.late else 0), row))
    rows.sort(key=lambda pair: pair[0])
    out = np.zeros(len(rows), record(Segment))
    for i, (_, row) in enumerate(rows):
        out[i] = row
    return out.view(np.int64).reshape(len(rows), -1)


def play(*steps: Step, blocks: Sequence[Sequence[Step]] = (), finish: bool = True, unsealer: Any = None) -> Played:
    """Drive one connection's packets through a dissector. `blocks`: more of it, each given in a call of its own.
    Without an unsealer it is done twice, the second time without the fast lane: what is on the heap then is the same,
    word for word. With the end it is done once more, where what the last block finishes comes with it: the same
    comes."""
    played = _played(steps, blocks, finish, unsealer, True)
    if unsealer is None:
        slow = _played(steps, blocks, finish, None, False)
        assert np.array_equal(_heap(played), _heap(slow))
        assert (played.statuses, played.problems) == (slow.statuses, slow.problems)
        if finish:
            assert _told(_played(steps, blocks, finish, None, True, together=True)) == _told(played)
    return played


def _told(played: Played) -> Any:
    fields = ["connection", "n", "orphan", "correlation", "api", "version", "status"]
    rows = [[row[name] for name in fields] for row in (*played.exchanges, *played.tokens)]
    return rows, played.problems, [one.tobytes() for one in played.connections]


def _heap(played: Played) -> np.ndarray[Any, Any]:
    assert played.dissector is not None
    words: np.ndarray[Any, Any] = played.dissector.M.copy()
    words[offsets(Control).lane] = 0
    words[OUT:HEAP] = 0  # what came last by the other way
    return words


def _played(
    steps: Sequence[Step], blocks: Sequence[Sequence[Step]], finish: bool, unsealer: Any, lane: bool,
    together: bool = False,
) -> Played:  # fmt: skip
    data = bytearray()
    position = list(ISN)
    parts: list[Any] = []
    for block in [steps, *blocks]:
        begin = float(parts[-1][-1, 0]) / MS if parts else 1.0
        if block:
            parts.append(segments_of(block, data, position, begin, sum(map(len, parts))))
    window = Window(max(len(data), 1 << 12), 2)
    window.reset()
    window.advance(0, 0, 0)
    window.data[: len(data)] = np.frombuffer(bytes(data), np.uint8)
    window.grow(len(data))
    dissector = Dissector(window, programs(), unsealer)
    dissector.M[offsets(Control).lane] = lane
    played = Played(dissector=dissector)

    def take(harvest: Any) -> None:
        for row in harvest.exchanges.copy():
            (played.tokens if row["status"] == TOKEN else played.exchanges).append(row)
        played.problems += [(Kind(int(row["kind"])), int(row["bytes"])) for row in harvest.problems]
        played.connections += list(harvest.ended)
        dissector.used()

    for number, rows in enumerate(parts, start=1):
        for harvest in dissector.feed(rows, 1, last=together and number == len(parts)):
            take(harvest)
    if finish:
        for harvest in dissector.finish():
            take(harvest)
    played.exchanges.sort(key=lambda row: (row["connection"], row["orphan"], row["n"]))
    return played


def in_lane(*steps: Step) -> int:
    """How many of the packets took the fast lane, after a handshake, a request and its response."""
    before, after = (play(*opening(), request(0), response(0), *more, finish=False).dissector for more in ((), steps))
    assert before is not None
    assert after is not None
    lane = offsets(Control).lane
    return int(after.M[lane] - before.M[lane])


def talk(*steps: Step) -> list[str]:
    """Statuses of the exchanges, in the order of their requests, orphans last."""
    return play(*opening(), *steps).statuses


def field_of(connection: Any, side: int, name: str) -> int:
    """A word of a direction of a finished connection."""
    return int(connection["directions"][side][name])

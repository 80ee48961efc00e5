"""`cut`: a smaller capture of one exchange, of connections or a stretch of time.

Two passes where an exchange or a connection is wanted: the first finds it and says which packets it is made of, the
second copies packet records. Both stream, for any size of the input.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from kdissect.capture import CaptureSet
from kdissect.engine.books import Books
from kdissect.engine.extracts.showing import Wanted, parse_target
from kdissect.engine.run import Run
from kdissect.engine.settings import Settings
from kdissect.kafka.completed import FILE_SHIFT, STATUS, Completed, Connections
from kdissect.net.scanner import Scanner
from kdissect.output import whole_seekable
from kdissect.problems import UsageError
from kdissect.rewriting.choice import Choice, Stretch
from kdissect.rewriting.packetfile import PacketFile

OPEN = frozenset({"unanswered", "pending", "partial"})
"""Statuses that later packets of the connection decide: all of them are taken."""
MOST = 64
"""Connections told apart by their ids' beginning."""

_CONNECTION = re.compile(r"[0-9a-fA-F]{1,16}")


@dataclass(frozen=True, slots=True)
class Written:
    """The counts of a capture that was written."""

    packets: int
    bytes: int
    """Captured bytes, without the records' headers."""
    format: str
    """pcap or pcapng."""


@dataclass(frozen=True, slots=True)
class Part:
    """The part to cut out. At most one of `exchange`, `frame`, `connection`; times in ns, both inclusive."""

    exchange: str | None = None
    frame: int | None = None
    connection: str | None = None
    start: int | None = None
    end: int | None = None
    alone: bool = False
    """Of an exchange: its own packets and the handshake, not what its connection did before."""
    connections: frozenset[int] | None = None
    """Ids of connections, all packets of which are wanted; None where they were not asked for."""


@dataclass(slots=True)
class _Found:
    """An exchange: its place among connections, when its first byte came, the packet that completed it, its status."""

    connection: int
    name: str
    first: int
    last: int
    status: str


def cut(captures: Sequence[CaptureSet], settings: Settings, part: Part, target: str | Path | BinaryIO) -> Written:
    """Write the packets of `part` to a path (which appears when it is whole) or an open binary file.

    Raises UsageError for contradicting wishes and for what is not there, OutputError.
    """
    asked = [x for x in (part.exchange, part.frame, part.connection, part.connections) if x is not None]
    if len(asked) > 1:
        raise UsageError("cut one thing: an exchange, a frame's exchange, a connection, or those of clients, topics...")
    if not asked and part.start is None and part.end is None:
        raise UsageError("say what to cut: an exchange, a frame's exchange, a connection, or a time from or to")
    if part.alone and part.exchange is None and part.frame is None:
        raise UsageError("an exchange or a frame is needed where its own packets alone are wanted")
    if asked and not all(capture.rereadable or capture.regular for capture in captures):
        raise UsageError("a pipe can be read only once, and this needs two passes: save it to a file first")
    chosen = _find_stretches(captures, settings, part) if asked else dict.fromkeys(range(len(captures)))
    with whole_seekable(target) as stream:
        file: PacketFile | None = None
        for number, stretches in chosen.items():
            capture = captures[number]
            choice = Choice(stretches, part.start, part.end)
            window = capture.window()
            scanner = Scanner(capture)
            done = 0
            for block in capture.blocks(window):
                file = file or PacketFile(stream, capture.secrets)
                file.write(window.data, choice.of(block, scanner))
                done += len(block.packets)
                if settings.progress is not None:
                    settings.progress(window.end, capture.size)
                if choice.over:
                    break
        file = file or PacketFile(stream)
        file.finish()
    return Written(file.packets, file.bytes, "pcapng" if file.pcapng else "pcap")


def _find_stretches(captures: Sequence[CaptureSet], settings: Settings, part: Part) -> dict[int, list[Stretch] | None]:
    """By capture, the stretches of connections that are wanted."""
    books = Books(captures, {}, replace(settings, after=None, before=None))
    whole = part.connection is not None or part.connections is not None
    asked = None if whole else parse_target(part.exchange, part.frame)
    found: list[_Found] = []
    for done in Run(books).completed():
        if asked is not None:
            found += _matching(done, books.ledger.connections, asked)
    table = books.ledger.connections
    if asked is None:
        if part.connections is not None:
            ids = np.array(sorted(part.connections), np.uint64)
            rows = np.flatnonzero(np.isin(table.id, ids)).tolist()
        else:
            rows = _connections(table, str(part.connection))
        return _by_capture(table, [(row, None, None) for row in rows])
    if not found:
        what = f"frame {part.frame} completes no Kafka request or response"
        raise UsageError(what if part.exchange is None else f"{part.exchange} is no exchange of this capture")
    if asked.frame < 0 and len(found) > 1:
        raise UsageError(
            f"{part.exchange} fits {len(found)} connections: {', '.join(exchange.name for exchange in found[:4])}"
        )
    wishes: list[tuple[int, int | None, int | None]] = []
    for row in sorted({exchange.connection for exchange in found}):
        mine = [exchange for exchange in found if exchange.connection == row]
        begin = min(exchange.first for exchange in mine) if part.alone else None
        open_ended = any(exchange.status in OPEN for exchange in mine)
        wishes.append((row, begin, None if open_ended else max(exchange.last for exchange in mine)))
    return _by_capture(table, wishes)


def _matching(done: Completed, table: Connections, target: Wanted) -> list[_Found]:
    if target.frame >= 0:
        packets = np.stack([done.request_packet, done.response_packet], axis=1)
        rows = np.flatnonzero(((packets >= 0) & ((packets & ((1 << FILE_SHIFT) - 1)) == target.frame)).any(axis=1))
    else:
        begins = _begins(table.id[done.conn], target.connection)
        rows = np.flatnonzero(begins & (done.n == target.n) & (done.is_orphan == target.orphan))
    return [
        _Found(
            int(done.conn[i]),
            f"{int(table.id[done.conn[i]]):016x}:{'r' if done.is_orphan[i] else ''}{int(done.n[i])}",
            int(done.response_first[i] if done.is_orphan[i] else done.request_first[i]),
            int(max(done.request_packet[i], done.response_packet[i])),
            STATUS[int(done.status[i])],
        )
        for i in rows.tolist()
    ]


def _begins(ids: npt.NDArray[np.uint64], prefix: str) -> npt.NDArray[np.bool_]:
    begins: npt.NDArray[np.bool_] = (ids >> np.uint64(64 - 4 * len(prefix))) == np.uint64(int(prefix, 16))
    return begins


def _connections(table: Connections, prefix: str) -> list[int]:
    if not _CONNECTION.fullmatch(prefix):
        raise UsageError(f"{prefix!r} is no connection id, such as 3f2a09c1d4e5b678 or the beginning of one")
    rows = np.flatnonzero(_begins(table.id, prefix)).tolist()
    if not rows:
        raise UsageError(f"{prefix} is no connection of this capture")
    if len(rows) > 1:
        names = ", ".join(f"{int(table.id[row]):016x}" for row in rows[:4])
        raise UsageError(f"{prefix} fits {len(rows)} connections: {names}")
    return [int(row) for row in rows]


def _by_capture(
    table: Connections, wishes: list[tuple[int, int | None, int | None]]
) -> dict[int, list[Stretch] | None]:
    """Stretches of (connection, time to begin at, last packet)."""
    out: dict[int, list[Stretch] | None] = {}
    for row, begin, end in wishes:
        later = table.started[_same_endpoints(table, row) & (np.arange(len(table)) > row)]
        following = int(later.min()) if len(later) else None
        stretch = Stretch(_flow(table, row), int(table.started[row]), following, begin, end)
        stretches = out.setdefault(int(table.capture[row]), [])
        assert stretches is not None
        stretches.append(stretch)
    return out


def _ends(table: Connections) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    """Client and broker of every connection, as (address's halves, port)."""
    client = [table.client_hi, table.client_lo, table.client_port.astype(np.uint64)]
    broker = [table.broker_hi, table.broker_lo, table.broker_port.astype(np.uint64)]
    return np.stack(client, axis=1), np.stack(broker, axis=1)


def _same_endpoints(table: Connections, row: int) -> npt.NDArray[np.bool_]:
    """Connections of the same capture and 4-tuple, whichever side asks."""
    client, broker = _ends(table)
    same = (client == client[row]).all(axis=1) & (broker == broker[row]).all(axis=1)
    same |= (client == broker[row]).all(axis=1) & (broker == client[row]).all(axis=1)
    found: npt.NDArray[np.bool_] = same & (table.capture == table.capture[row])
    return found


def _flow(table: Connections, row: int) -> tuple[int, int, int, int, int]:
    """A connection's row in the scanner's flow table: the smaller address and port comes first."""
    client, broker = _ends(table)
    a, b = sorted((tuple(client[row].tolist()), tuple(broker[row].tolist())))
    words = np.array([*a[:2], *b[:2]], np.uint64).view(np.int64).tolist()
    return words[0], words[1], words[2], words[3], int(a[2]) << 16 | int(b[2])

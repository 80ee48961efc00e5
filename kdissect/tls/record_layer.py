"""One direction of a TLS connection, cut into records (RFC 8446, section 5; RFC 5246, section 6.2).

A record is five bytes (type, version, length) and that many more. It arrives when its last byte does. Bytes missing
inside a record cost that record alone, because its length says where the next one begins. A hole that swallows a
record's beginning ends the reading: the number of the next record, which its key needs, is not known any more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

CHANGE_CIPHER_SPEC, ALERT, HANDSHAKE, APPLICATION_DATA, HEARTBEAT = 20, 21, 22, 23, 24
HEADER = 5
MAX_BODY = (1 << 14) + 2048
"""Bytes behind the header: 16 KiB of plaintext, and what TLS 1.2 allows for encryption (RFC 5246, 6.2.3)."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """When bytes came: time (ns) and number of the packet that completed them, and the state of its connection then."""

    time: int
    packet: int
    count: int
    rounds: tuple[int, int, int, int] = (-1, -1, -1, -1)
    """Round trips of both directions then, and how they were found."""

    def after(self, arrival: Arrival) -> Arrival:
        """The later of two, by each measure."""
        rounds = self.rounds if self.count >= arrival.count else arrival.rounds
        return Arrival(
            max(self.time, arrival.time), max(self.packet, arrival.packet), max(self.count, arrival.count), rounds
        )


@dataclass(frozen=True, slots=True)
class Record:
    """A record; `whole` is False when bytes of its body were never captured (zeros stand there)."""

    type: int
    version: int
    header: bytes
    body: bytes
    arrival: Arrival
    whole: bool = True


class Records:
    """Cuts one direction into records. `broken` says why reading ended, None while it goes on."""

    def __init__(self) -> None:
        self.broken: str | None = None
        self._buffer = bytearray()
        self._arrival: Arrival | None = None
        self._whole = True

    def feed(self, data: bytes, arrival: Arrival) -> Iterator[Record]:
        """The records that `data` completes."""
        if self.broken is not None or not data:
            return
        buffer = self._buffer
        buffer += data
        since = arrival if self._arrival is None else arrival.after(self._arrival)
        begin = 0
        while len(buffer) - begin >= HEADER:
            kind, major, size = buffer[begin], buffer[begin + 1], int.from_bytes(buffer[begin + 3 : begin + 5], "big")
            if not CHANGE_CIPHER_SPEC <= kind <= HEARTBEAT or major != 3 or size > MAX_BODY:
                self.broken = "what follows is no TLS record"
                buffer.clear()
                return
            end = begin + HEADER + size
            if end > len(buffer):
                break
            header, body = bytes(buffer[begin : begin + HEADER]), bytes(buffer[begin + HEADER : end])
            yield Record(kind, int.from_bytes(header[1:3], "big"), header, body, since, self._whole)
            begin, since, self._whole = end, arrival, True
        del buffer[:begin]
        self._arrival = since if buffer else None

    def lose(self, size: int, arrival: Arrival) -> Iterator[Record]:
        """`size` bytes were never captured."""
        if self.broken is not None or size <= 0:
            return
        buffer = self._buffer
        left = HEADER + int.from_bytes(buffer[3:5], "big") - len(buffer) if len(buffer) >= HEADER else 0
        if size > left:
            self.broken = f"{size} bytes are missing, and with them the beginning of a record"
            buffer.clear()
            return
        self._whole = False
        yield from self.feed(bytes(size), arrival)

"""Captures in which every text and every bytes field of every message says what a test wants it to say.

kio encodes the messages (its classes are made from Kafka's own definitions); `texts` and `blobs` give what stands in
their string and bytes fields, one after the other. Every exchange has a connection of its own, so that a login in one
of them changes nothing for the others.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from tests.oracle.kio_messages import EVERYTHING, Maker, classes
from tests.oracle.pcap import ACK, FIN, Talk, framed, pcap

Kind = tuple[int, int]
"""API key and version."""


class Planter(Maker):
    """Makes messages whose strings, bytes and record sets come from two sources."""

    def __init__(self, salt: tuple[int, int, int], texts: Callable[[], str], blobs: Callable[[], bytes]) -> None:
        super().__init__(EVERYTHING, salt)
        self.texts, self.blobs = texts, blobs

    def scalar(self, kind: str) -> Any:
        if kind == "string":
            return self.texts()
        return self.blobs() if kind in ("bytes", "records") else super().scalar(kind)


def kinds() -> list[Kind]:
    """Every API and version that kio has both directions of."""
    known = classes()
    return sorted((key, version) for key, side, version in known if not side and (key, 1, version) in known)


def message(
    key: int, side: int, version: int, correlation: int, texts: Callable[[], str], blobs: Callable[[], bytes]
) -> bytes:
    """One framed message with its header."""
    from kio.serial import entity_writer

    cls = classes()[key, side, version]
    out = io.BytesIO()
    entity_writer(cls)(out, Planter((key, side, version), texts, blobs).struct(cls)[0])
    tags = b"\0" if cls.__flexible__ else b""
    if side:
        return framed(struct.pack(">i", correlation) + (b"" if key == 18 else tags) + out.getvalue())
    client = texts().encode()
    named = b"" if (key, version) == (7, 0) else struct.pack(">h", len(client)) + client
    return framed(struct.pack(">hhi", key, version, correlation) + named + tags + out.getvalue())


def talks(of: Iterable[Kind], texts: Callable[[], str], blobs: Callable[[], bytes]) -> Iterator[Talk]:
    """A connection for each API and version: handshake, request, response, end."""
    for n, (key, version) in enumerate(of):
        talk = Talk(client=(f"10.0.{n >> 8 & 255}.{n & 255}", 40000 + (n >> 16)), broker=("10.9.0.2", 9092))
        at = n * 20.0
        talk.handshake(at)
        request = message(key, 0, version, n, texts, blobs)
        response = message(key, 1, version, n, texts, blobs)
        _send(talk, at + 1, 0, request)
        _send(talk, at + 5, 1, response)
        talk.put(at + 9, 0, len(request), b"", FIN | ACK)
        talk.put(at + 9.1, 1, len(response), b"", FIN | ACK)
        yield talk


def _send(talk: Talk, ms: float, side: int, data: bytes) -> None:
    for n, at in enumerate(range(0, len(data), 1400)):
        talk.put(ms + n / 1000, side, at, data[at : at + 1400])


def capture(of: Iterable[Kind], texts: Callable[[], str], blobs: Callable[[], bytes]) -> bytes:
    """A pcap of `talks`."""
    return pcap([packet for talk in talks(of, texts, blobs) for packet in talk.packets])

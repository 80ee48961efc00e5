"""Captures of one connection that carries given record sets."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from tests.bench import frames
from tests.oracle.pcap import Talk, pcap

PIECE = 60_000
"""Bytes of a frame in one packet."""


def capture(*sets: bytes, produced: Sequence[bytes] = (), piece: int = PIECE) -> bytes:
    """A pcap with a Produce of each of `produced` (topic orders, partition 4) and a Fetch whose response has one
    partition for each of `sets`."""
    return pcap(packets(*sets, produced=produced, piece=piece))


def packets(
    *sets: bytes, produced: Sequence[bytes] = (), piece: int = PIECE, begin: float = 0.0, port: int = 50000
) -> list[tuple[int, bytes]]:
    """Its packets; the connection begins so many ms after the start."""
    talk = Talk(("10.0.0.1", port))
    talk.handshake(begin)
    at = [0, 0]
    pairs = [(frames.produce_request(records).data, frames.produce_response().data) for records in produced]
    if sets:
        pairs.append((frames.fetch_request(len(sets)).data, frames.fetch_response(list(sets)).data))
    time = begin + 10.0
    for number, (asked, answered) in enumerate(pairs):
        asked = asked[:8] + struct.pack(">i", number) + asked[12:]
        answered = answered[:4] + struct.pack(">i", number) + answered[8:]
        for side, data in enumerate((asked, answered)):
            for start in range(0, len(data), piece):
                talk.put(time, side, at[side], data[start : start + piece])
                at[side] += len(data[start : start + piece])
                time += 0.01
    return talk.packets

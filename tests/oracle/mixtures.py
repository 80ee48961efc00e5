"""Damage of every kind, drawn by seed, alone and mixed: what a capture in the field has suffered.

A `Mixture` is a damaged copy of a clean recording, with the frames that it lacks and those whose ends it lacks.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.oracle.damage import records

KINDS = (
    "loss", "bursts", "late start", "cut at a packet", "cut at a byte", "reordering", "duplication", "truncation",
)  # fmt: skip
SHARES = (0.001, 0.003, 0.01, 0.03, 0.1)
"""Of packets lost."""
HEADERS = 14 + 20 + 32
"""Ethernet, IPv4, TCP with timestamps: what any snap length leaves."""


@dataclass(slots=True)
class Mixture:
    """A damaged copy. `gone`: frames of the clean recording that are not in it; `cut`: those that lack bytes."""

    data: bytes
    kinds: tuple[str, ...]
    gone: frozenset[int]
    cut: frozenset[int] = field(default_factory=frozenset)


def kinds_of(seed: int) -> tuple[str, ...]:
    """Seeds 0 to 7 draw one kind each, later ones two or three."""
    if seed < len(KINDS):
        return (KINDS[seed],)
    return tuple(random.Random(seed).sample(KINDS, 2 + seed % 2))


def mixture(seed: int, name: str) -> Mixture:
    """A damaged copy of a clean capture, drawn by seed."""
    draw, kinds = random.Random(f"{name} {seed}"), kinds_of(seed)
    header, packets = records(name)
    total = len(packets)
    numbers = range(1, total + 1)
    gone: set[int] = set()
    if "loss" in kinds:
        share = draw.choice(SHARES)
        gone |= {n for n in numbers if draw.random() < share}
    if "bursts" in kinds:
        for start in (draw.randrange(1, total) for _ in range(draw.choice((1, 2, 5)))):
            gone |= set(range(start, min(total, start + draw.choice((2, 5, 20, 60)))))
    if "late start" in kinds:
        gone |= set(range(1, draw.randrange(2, total)))
    if "cut at a packet" in kinds:
        gone |= set(range(draw.randrange(total // 8, total), total + 1))
    left = [(n, packets[n - 1]) for n in numbers if n not in gone]
    cut: set[int] = set()
    if "truncation" in kinds:
        snap = draw.choice((HEADERS, HEADERS + 4, HEADERS + 30, 128, 200, 500, draw.randrange(HEADERS, 1600)))
        cut = {n for n, packet in left if len(packet) - 16 > snap}
        left = [(n, _truncated(packet, snap)) for n, packet in left]
    if "reordering" in kinds:
        places = [place + draw.uniform(0, draw.choice((1, 3, 8))) for place in range(len(left))]
        left = [left[place] for place in sorted(range(len(left)), key=places.__getitem__)]
    if "duplication" in kinds:
        left = _doubled(left, draw)
    data = b"".join(packet for _, packet in left)
    if "cut at a byte" in kinds and left:
        end = draw.randrange(len(data) // 8, len(data))
        data, left = data[:end], list(_whole(left, end))
    here = {n for n, _ in left}
    return Mixture(header + data, kinds, frozenset(set(numbers) - here), frozenset(cut & here))


def _truncated(packet: bytes, snap: int) -> bytes:
    kept = min(snap, len(packet) - 16)
    return packet[:8] + struct.pack("<I", kept) + packet[12 : 16 + kept]


def _doubled(left: list[tuple[int, bytes]], draw: random.Random) -> list[tuple[int, bytes]]:
    """Copies of some packets, 20 microseconds later and at most three places behind them."""
    share = draw.choice((0.05, 0.5, 1.0))
    placed = [(float(place), one) for place, one in enumerate(left)]
    for place, (n, packet) in enumerate(left):
        if draw.random() < share:
            seconds, part = struct.unpack_from("<II", packet)
            time = struct.pack("<II", seconds + (part + 20) // 10**6, (part + 20) % 10**6)
            placed.append((place + draw.uniform(0.001, 3), (n, time + packet[8:])))
    return [one for _, one in sorted(placed, key=lambda item: item[0])]


def _whole(left: Iterable[tuple[int, bytes]], end: int) -> Iterable[tuple[int, bytes]]:
    """The packets that end before byte `end`."""
    at = 0
    for n, packet in left:
        at += len(packet)
        if at > end:
            return
        yield n, packet

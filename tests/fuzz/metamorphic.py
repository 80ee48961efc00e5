"""What else is in a capture, and how it is read, changes nothing: `python -m tests.fuzz.metamorphic SECONDS [SEED]`.

A seed makes a capture: a piece of a recorded one, its packets damaged, dropped, said twice, moved, cut. TOGETHER of
them, each under addresses of its own, are one file, side by side in time: one alone costs ten times as much, and
each is what else is in the capture to the others. The file is read as it is. Then each of `CHANGES` writes it or reads
it in another way, and the same rows must come out of it. What differs is made smaller, as far as one seed where that
shows it, and kept in `tests/fuzz/found/`.
"""

from __future__ import annotations

import io
import itertools
import random
import re
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import kdissect
from kdissect.capture.captureset import CaptureSet
from kdissect.capture.window import Window
from tests.fuzz.campaign import Tally, keep
from tests.oracle.material import CAPTURES
from tests.oracle.pcap import pcap

Packet = tuple[int, bytes, int]
"""ns since the epoch, bytes, length on the wire."""
Input = tuple[int, str, list[Packet]]
"""Number of the seed, name of the origin, packets."""
Rows = dict[str, list[str]]
SEEDS = (
    "base_tiny.pcap", "raw_ids.pcap", "raw_errors.pcap", "raw_cuts.pcap", "sasl_old.pcap", "raw_reuse.pcap",
    "era_0_8_2.pcap", "k4_share_group.pcap", "k4_transactions.pcap", "k4_follower_sessions.pcap", "sweep_0110.pcap",
    "k4_mtu1500.pcap", "zoo_franz_go.pcap", "not_kafka.pcap", "tls12.pcap", "k4_fetch_sessions_raw.pcap",
)  # fmt: skip
COLUMNS: dict[str, list[str]] = {
    "exchanges": [
        "exchange_id", "client_ip", "client_port", "broker_port", "api", "api_version", "correlation_id", "client_id",
        "status", "error_code", "error_count", "request_first_at", "request_last_at", "response_first_at",
        "response_last_at", "latency_ms", "queued_ms", "broker_ms", "throttle_ms", "request_bytes", "response_bytes",
        "in_flight", "api_inferred", "decoded", "hold",
    ],
    "fetch_partitions": ["exchange_id", "topic", "partition", "fetch_offset", "high_watermark", "error_code"],
    "groups": ["exchange_id", "group_id", "member_id", "event", "error"],
    "connections": ["connection_id", "is_kafka", "client_id", "group_id", "exchanges", "missing_bytes", "end_reason"],
    "problems": ["connection_id", "exchange_id", "kind", "detail", "bytes"],
}  # fmt: skip
"""What must not change: all but frame numbers and the sizes of files."""
TOGETHER = 50
"""Captures in a file; a byte of their addresses tells them apart."""
BEGIN, APART = 1_700_000_000 * 10**9, 50_000_000
"""When the first of them begins (ns since the epoch), and how long after one another they do: they overlap."""


def packets_of(data: bytes) -> list[Packet]:
    """The packets of a little-endian pcap of microseconds."""
    out, at = [], 24
    while at + 16 <= len(data):
        seconds, micros, size, original = struct.unpack_from("<IIII", data, at)
        out.append((seconds * 10**9 + micros * 1000, data[at + 16 : at + 16 + size], original))
        at += 16 + size
    return out


def written(packets: list[Packet]) -> bytes:
    """A pcap of nanoseconds."""
    out = [pcap([])]
    for when, data, original in packets:
        out.append(struct.pack("<IIII", when // 10**9, when % 10**9, len(data), max(original, len(data))) + data)
    return b"".join(out)


def written_ng(packets: list[Packet]) -> bytes:
    """A pcapng of nanoseconds, a section header and an interface."""

    def block(kind: int, body: bytes) -> bytes:
        body += bytes(-len(body) % 4)
        size = struct.pack("<I", len(body) + 12)
        return struct.pack("<I", kind) + size + body + size

    out = [block(0x0A0D0D0A, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1))]
    out.append(block(1, struct.pack("<HHI", 1, 0, 0) + struct.pack("<HHB3xHH", 9, 1, 9, 0, 0)))
    for when, data, original in packets:
        head = struct.pack("<IIIII", 0, when >> 32, when & 0xFFFFFFFF, len(data), max(original, len(data)))
        out.append(block(6, head + data))
    return b"".join(out)


def damaged(packets: list[Packet], chance: random.Random) -> list[Packet]:
    """What networks and capturing programs do to packets, and a flipped byte now and then."""
    out = list(packets)
    match chance.randrange(12):
        case 0:
            rate = chance.choice((0.01, 0.03, 0.05, 0.2))
            out = [packet for packet in out if chance.random() >= rate]
        case 1:
            snap = chance.choice((64, 74, 96, 128, 200))
            out = [(when, data[:snap], original) for when, data, original in out]
        case 2:  # of a host, or of a port of it, nothing
            side = chance.choice(out)[1][26:36]
            out = [packet for packet in out if packet[1][26:36] != side]
    for _ in range(chance.randint(0, 6)):
        if len(out) < 4:
            break
        at = chance.randrange(len(out))
        when, data, original = out[at]
        match chance.randrange(6):
            case 0:
                del out[at]
            case 1:
                out.insert(min(at + chance.randint(1, 5), len(out)), (when, data, original))
            case 2:
                other = min(at + chance.randint(1, 3), len(out) - 1)
                first, second = out[at], out[other]
                out[at], out[other] = (first[0], *second[1:]), (second[0], *first[1:])
            case 3:
                out[at] = when, data[: chance.choice((60, 96, 128, 200))], original
            case 4:
                if len(data) > 60:
                    place = chance.randrange(54, len(data))
                    out[at] = when, data[:place] + bytes([chance.randrange(256)]) + data[place + 1 :], original
            case _:
                del out[at : at + chance.randint(1, 8)]
    return out


def side_by_side(captures: list[list[Packet]]) -> list[Packet]:
    """One capture of many, each of hosts of its own; they begin APART after one another."""
    placed = []
    for number, packets in enumerate(captures):
        latest = 0
        if not packets:
            continue
        for at, (when, data, original) in enumerate(packets):
            latest = max(latest, when)
            begun = BEGIN + number * APART - packets[0][0]
            named = data[:27] + bytes([number]) + data[28:31] + bytes([number]) + data[32:]
            placed.append((latest + begun, number, at, (when + begun, named, original)))
    return [packet for *_, packet in sorted(placed)]


def rows_of(source: Any, **options: Any) -> Rows:
    """The rows of COLUMNS as text, in order; numbers of frames, which further packets change, left out."""
    out = {}
    for name, table in kdissect.open(source, **options).tables(COLUMNS).items():
        rows = [repr(row) for row in zip(*(column.to_pylist() for column in table.columns), strict=True)]
        out[name] = sorted(re.sub(r"\bframe \d+", "frame", row) for row in rows) if name == "problems" else sorted(rows)
    return out


@contextmanager
def small_blocks() -> Iterator[None]:
    """Blocks of some kilobytes."""
    before = CaptureSet.window
    CaptureSet.window = lambda self: Window(1 << 17, 3)  # type: ignore[method-assign]
    try:
        yield
    finally:
        CaptureSet.window = before  # type: ignore[method-assign]


def with_filler(packets: list[Packet], chance: random.Random) -> list[Packet]:
    """Traffic of others between the packets: UDP, ARP, and TCP of another connection."""
    out: list[Packet] = []
    for packet in packets:
        for _ in range(chance.choice((0, 0, 1, 3))):
            body = chance.randbytes(chance.randint(8, 900))
            ip = struct.pack(
                ">BBHHHBBH4s4s", 0x45, 0, 20 + len(body), 0, 0, 64, 17, 0, b"\x0a\x63\0\1", b"\x0a\x63\0\2"
            )
            frame = b"\2" * 12 + (b"\x08\x00" + ip if chance.random() < 0.8 else b"\x08\x06") + body
            out.append((packet[0], frame, len(frame)))
        out.append(packet)
    return out


def padded(packets: list[Packet], chance: random.Random) -> list[Packet]:
    """Bytes behind the IP packet, as short Ethernet frames and switches have them; cut packets stay."""
    out = []
    for when, data, original in packets:
        behind = bytes(chance.randint(1, 9)) if len(data) == original else b""
        out.append((when, data + behind, original + len(behind)))
    return out


Change = Callable[[list[Packet], random.Random, Path], Rows]


def _in_file(data: bytes, folder: Path, **options: Any) -> Rows:
    path = folder / "capture"
    path.write_bytes(data)
    return rows_of(path, **options)


def _small(packets: list[Packet], chance: random.Random, folder: Path) -> Rows:
    with small_blocks():
        return _in_file(written(packets), folder)


def _pipe(packets: list[Packet], chance: random.Random, folder: Path) -> Rows:
    file = io.BytesIO(written(packets))
    file.name = "capture"  # type: ignore[misc]
    return rows_of(file)


def _compressed(packets: list[Packet], chance: random.Random, folder: Path) -> Rows:
    import zstandard

    return _in_file(zstandard.compress(written(packets), 1), folder)


CHANGES: dict[str, Change] = {
    "small blocks": _small,
    "a pipe": _pipe,
    "compressed": _compressed,
    "pcapng": lambda packets, chance, folder: _in_file(written_ng(packets), folder),
    "two threads": lambda packets, chance, folder: _in_file(written(packets), folder, jobs=2),
    "filler": lambda packets, chance, folder: _in_file(written(with_filler(packets, chance)), folder),
    "padding": lambda packets, chance, folder: _in_file(written(padded(packets, chance)), folder),
}


def differences(packets: list[Packet], seed: int, only: str | None = None) -> list[str]:
    """What differs, a line each."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        want = _in_file(written(packets), Path(folder))
        for name, change in CHANGES.items():
            if only not in (None, name):
                continue
            got = change(packets, random.Random(seed), Path(folder))
            for table, rows in want.items():
                if got[table] != rows:
                    odd = sorted(set(got[table]) ^ set(rows))
                    found.append(f"{name}: {table}: {odd[:2] or 'another number of equal rows'}")
    return found


def inputs(seed: int) -> Iterator[Input]:
    """Captures without end."""
    whole = {name: packets_of((CAPTURES / name).read_bytes()) for name in SEEDS}
    for number in itertools.count(seed):
        chance = random.Random(number)
        name = chance.choice(SEEDS)
        first = chance.randrange(max(1, len(whole[name]) - 200))
        yield number, name, damaged(whole[name][first : first + 200], chance)


def campaign(seconds: float, seed: int = 1, most: int = 10**9, together: int = TOGETHER) -> Tally:
    """Captures for so long, at most so many, `together` in a file; each counts once for every change. Raises
    AssertionError for a difference."""
    tally, started = Tally(), time.monotonic()
    every = itertools.islice(inputs(seed), most)
    while (lot := list(itertools.islice(every, together))) and time.monotonic() - started < seconds:
        found = differences(side_by_side([packets for *_, packets in lot]), lot[0][0])
        if found:
            lot = smaller(lot)
            keep(lot[0][0], lot[0][1], written(side_by_side([packets for *_, packets in lot])))
        assert not found, f"seeds {[number for number, *_ in lot]}, {lot[0][1]}: {found}"
        tally.inputs += len(lot) * len(CHANGES)
        tally.read += len(lot)
    tally.seconds = time.monotonic() - started
    return tally


def smaller(lot: list[Input]) -> list[Input]:
    """The captures of a file that differs without those that it differs without."""
    for size in (len(lot) // 2, len(lot) // 8, 1):
        for first in range(0, len(lot), max(size, 1)):
            some = lot[first : first + max(size, 1)]
            if len(some) < len(lot) and differences(side_by_side([packets for *_, packets in some]), lot[0][0]):
                return smaller(some)
    return lot


def main() -> None:
    tally = campaign(float(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1)
    print(f"{tally.read} captures, {tally.inputs} changes in {tally.seconds:.0f} s: no difference")


if __name__ == "__main__":
    main()

"""What is recovered of damaged captures: `python -m tests.bench.recovery [CAPTURE...]`.

Each capture is read whole; those of its exchanges that were answered are the truth. Then it is damaged: begun late,
packets lost one by one or in bursts, cut to a snap length, one direction left out. An exchange could be recovered when
the segment with its request's header is there, and as many of its bytes as the header has (14), and the same of its
answer (8); where requests are left out nothing could. What is found and was not there before is invented: another API,
version, correlation id or client for the same request.
"""

from __future__ import annotations

import random
import struct
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kdissect
from tests.fuzz.metamorphic import Packet, packets_of, written
from tests.oracle.material import CAPTURES

NAMES = ("base_short.pcap", "era_2_8_2.pcap", "era_3_9_1_kraft.pcap", "zoo_sarama_010.pcap")
SNAPS = (64, 96, 128, 200, 65535)
LOSSES = (0.0, 0.01, 0.03, 0.05)
BURST = 12
REQUEST_HEADER, RESPONSE_HEADER = 14, 8
COLUMNS = [
    "client_ip", "client_port", "broker_port", "api_key", "api_version", "correlation_id", "request_first_at",
    "response_first_at", "request_frame", "status", "api_inferred",
]  # fmt: skip

Damage = tuple[str, float, bool, bool]
"""Name, share of packets lost, whether in bursts, whether requests only."""


@dataclass
class Count:
    """Exchanges of one kind of damage."""

    there: int = 0
    recovered: int = 0
    invented: int = 0


def payload(packet: bytes) -> tuple[tuple[bytes, bytes], int, int] | None:
    """Endpoints, TCP flags and where the payload begins, of TCP over IPv4 or IPv6 in Ethernet; else None."""
    kind = packet[12:14]
    if kind == b"\x08\x00" and packet[23] == 6:
        tcp = 14 + (packet[14] & 15) * 4
        ends = packet[26:30], packet[30:34]
    elif kind == b"\x86\xdd" and packet[20] == 6:
        tcp = 54
        ends = packet[22:38], packet[38:54]
    else:
        return None
    if len(packet) < tcp + 14:
        return None
    source, target = ends[0] + packet[tcp : tcp + 2], ends[1] + packet[tcp + 2 : tcp + 4]
    return (source, target), packet[tcp + 13], tcp + (packet[tcp + 12] >> 4) * 4


def exchanges(path: Path) -> list[dict[str, Any]]:
    """Rows of `exchanges` with a request and of a known API."""
    table = kdissect.open(path, jobs=1).table("exchanges", columns=COLUMNS, where="status != 'orphan'")
    return list(table.to_pylist())


def damages() -> Iterator[Damage]:
    """Name, loss, whether in bursts, whether one direction only; each is also begun late."""
    for loss in LOSSES:
        for bursts in (False, True) if loss else (False,):
            for alone in (False, True):
                name = f"{loss:.0%} lost" + (" in bursts" if bursts else "") + (", requests only" if alone else "")
                yield name, loss, bursts, alone


def lost(packets: list[Packet], chance: random.Random, loss: float, bursts: bool) -> list[Packet]:
    """Without so many of the packets."""
    if not bursts:
        return [packet for packet in packets if chance.random() >= loss]
    out, gone = [], 0
    for packet in packets:
        if not gone and chance.random() < loss / BURST:
            gone = BURST
        if gone:
            gone -= 1
        else:
            out.append(packet)
    return out


def key(row: dict[str, Any]) -> tuple[Any, ...]:
    """What names an exchange: its request's connection and time."""
    return row["client_ip"], row["client_port"], row["broker_port"], row["request_first_at"], row["correlation_id"]


def survived(packets: list[Packet], snap: int) -> dict[tuple[int, bytes], int]:
    """Payload bytes captured of packets, by time (us) and client's port."""
    have: dict[tuple[int, bytes], int] = {}
    for when, data, _ in packets:
        found = payload(data)
        if found is not None:
            (source, _), _, begin = found
            have[when // 1000, source[-2:]] = max(min(len(data), snap) - begin, 0)
    return have


def measure(
    path: Path, snap: int, damage: tuple[str, float, bool, bool], seed: int, folder: Path, count: Count
) -> None:
    """One capture, damaged."""
    name, loss, bursts, alone = damage
    packets = packets_of(path.read_bytes())
    if not packets or any(payload(data) is None for _, data, _ in packets[:3]):
        return
    truth = {key(row): row for row in exchanges(path) if row["status"] in ("ok", "error") and row["request_first_at"]}
    brokers = {row["broker_port"] for row in truth.values()}
    chance = random.Random(f"{path.name} {snap} {name} {seed}")
    kept = [packet for packet in packets[len(packets) // 4 :] if not _flags(packet) & 2]
    kept = lost(kept, chance, loss, bursts)
    if alone:
        kept = [packet for packet in kept if _from_client(packet, brokers)]
    damaged = folder / "damaged.pcap"
    damaged.write_bytes(written([(when, data[:snap], original) for when, data, original in kept]))
    have = survived(kept, snap)
    found = {key(row): row for row in exchanges(damaged)}
    for name_of, row in truth.items():
        port = struct.pack(">H", row["client_port"])
        asked = have.get((_micros(row["request_first_at"]), port), 0) >= REQUEST_HEADER
        answer = have.get((_micros(row["response_first_at"]), struct.pack(">H", row["broker_port"])), 0)
        if asked and (alone or answer >= RESPONSE_HEADER):
            count.there += 1
            mine = found.get(name_of)
            if mine is not None and (alone or mine["response_first_at"] == row["response_first_at"]):
                count.recovered += 1
    for name_of, row in found.items():
        if name_of in truth:
            real = truth[name_of]
            other = row["response_first_at"] not in (None, real["response_first_at"])
            count.invented += other or (row["api_key"], row["api_version"]) != (real["api_key"], real["api_version"])
        else:
            count.invented += not any(key(one) == name_of for one in _others(path))


_ALL: dict[Path, list[dict[str, Any]]] = {}


def _others(path: Path) -> list[dict[str, Any]]:
    """Exchanges that were not answered in the whole capture either."""
    if path not in _ALL:
        _ALL[path] = exchanges(path)
    return _ALL[path]


def _micros(when: Any) -> int:
    return -1 if when is None else int(when.timestamp()) * 10**6 + when.microsecond


def _flags(packet: Packet) -> int:
    found = payload(packet[1])
    return found[1] if found else 0


def _from_client(packet: Packet, brokers: set[int]) -> bool:
    found = payload(packet[1])
    return found is not None and int.from_bytes(found[0][1][-2:], "big") in brokers


def table(paths: list[Path], snaps: tuple[int, ...] = SNAPS) -> dict[tuple[str, int], Count]:
    """Counts by damage and snap length."""
    out = {}
    with tempfile.TemporaryDirectory() as folder:
        for damage in damages():
            for snap in snaps:
                count = Count()
                for seed, path in enumerate(paths):
                    measure(path, snap, damage, seed, Path(folder), count)
                out[damage[0], snap] = count
    return out


def main() -> None:
    paths = [Path(name) for name in sys.argv[1:]] or [CAPTURES / name for name in NAMES]
    made = table(paths)
    print("| begun late, | " + " | ".join(f"{snap} bytes" for snap in SNAPS) + " |")
    print("| --- |" + " --- |" * len(SNAPS))
    for name in dict.fromkeys(name for name, _ in made):
        cells = [made[name, snap] for snap in SNAPS]
        print(f"| {name} | " + " | ".join(f"{one.recovered} of {one.there}, {one.invented}" for one in cells) + " |")


if __name__ == "__main__":
    main()

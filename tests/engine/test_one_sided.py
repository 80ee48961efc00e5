"""Copies of recordings in which one direction is missing: every screen stands, and no finder fails."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import pytest
import zstandard

import kdissect
from kdissect.problems import Kind
from tests.conftest import ROOT
from tests.fuzz.adversary import lines, run
from tests.oracle import wire

FAILED = Kind.FINDER_FAILED.name.lower()
FIRST_YEAR, LAST_YEAR = 1990, 2100
LINKS = (1, 113, 276)
"""Ethernet, SLL, SLL2: what `wire` reads."""


def plain(path: Path) -> bytes:
    """A capture's bytes, decompressed."""
    if path.suffix == ".zst":
        return bytes(zstandard.ZstdDecompressor().decompressobj().decompress(path.read_bytes()))
    return path.read_bytes()


def readable(path: Path) -> bool:
    """Whether `wire` knows its magic and its link type."""
    head = plain(path)[:24]
    order = {b"\xd4\xc3\xb2\xa1": "<", b"\x4d\x3c\xb2\xa1": "<", b"\xa1\xb2\xc3\xd4": ">", b"\xa1\xb2\x3c\x4d": ">"}
    return (
        len(head) == 24
        and head[:4] in order
        and struct.unpack_from(order[head[:4]] + "I", head, 20)[0] & 0xFFFF in LINKS
    )


RECORDED = sorted(
    path
    for folder in ("", "rules")
    for path in (ROOT / "captures" / folder).iterdir()
    if path.name.endswith((".pcap", ".pcap.zst")) and readable(path)
)
SMALL = ROOT / "captures" / "base_tiny.pcap"
ASKS_FOR_ONE_THING = {"show", "cut", "why", "stream"}
"""Commands that end with 2 where the capture does not have the frame, finding or client that they are asked for."""
CAPTURE_SAMPLE = frozenset(
    {"base_tiny", "downconv_282", "era_0_8_2", "field_loss1", "k4_session_eviction", "raw_errors"}
)
WAYS = [(side, share) for side in ("requests", "answers") for share in (0.5, 1.0)]


def one_sided(path: Path, target: Path, side: str, share: float, seed: int) -> Path:
    """A copy without the requests, or the answers, of a share of the clients. `target`: a folder."""
    (target / "whole.pcap").write_bytes(plain(path))
    rows = kdissect.open(target / "whole.pcap").table("connections", columns=["broker_ip", "broker_port"]).to_pylist()
    brokers = {(row["broker_ip"], row["broker_port"]) for row in rows}
    chance = random.Random(seed)
    chosen: dict[wire.Endpoint, bool] = {}
    gone = set()
    for packet in wire.packets(target / "whole.pcap"):
        ends = (packet.source, packet.target) if packet.target in brokers else (packet.target, packet.source)
        mine = chosen.setdefault(ends[0], chance.random() < share)
        if mine and ends[1] in brokers and (packet.target in brokers) == (side == "requests"):
            gone.add(packet.number)
    data = (target / "whole.pcap").read_bytes()
    end = "<" if data[:1] in b"\xd4\x4d" else ">"
    kept, at, number = [data[:24]], 24, 0
    while at + 16 <= len(data):
        (size,) = struct.unpack_from(end + "I", data, at + 8)
        number += 1
        if number not in gone:
            kept.append(data[at : at + 16 + size])
        at += 16 + size
    copy = target / "copy.pcap"
    copy.write_bytes(b"".join(kept))
    return copy


@pytest.mark.parametrize("way", range(len(WAYS)), ids=["-".join(map(str, way)) for way in WAYS])
@pytest.mark.parametrize("path", RECORDED, ids=[path.name.split(".")[0] for path in RECORDED])
def test_a_capture_of_one_direction(path: Path, way: int, tmp_path: Path) -> None:
    """The first screen, findings and account of a copy without requests, or without answers, of half or all clients."""
    side, share = WAYS[way]
    for seed in range(3 if path.stem == "downconv_282" and share < 1 else 1):  # all clients are the same ones each time
        capture = kdissect.open(one_sided(path, tmp_path, side, share, seed=seed))
        capture.summary()
        tables = capture.tables(["findings", "problems"])
        assert FAILED not in tables["problems"]["kind"].to_pylist()
        for row in tables["findings"].to_pylist():
            for name in ("first_at", "last_at"):
                assert row[name] is None or FIRST_YEAR < row[name].year < LAST_YEAR
            assert row["count"] > 0


def try_every_command(path: Path, target: Path) -> None:
    """Runs every command on copies without the requests, and without the answers, of all clients. `redact --check` ends
    with 1: such a copy is not redacted."""
    for side in ("requests", "answers"):
        copy = one_sided(path, target, side, 1.0, seed=0)
        for line in lines(str(copy), str(target), random.Random(path.name)):
            allowed = {0, 2} if line[0] in ASKS_FOR_ONE_THING else {0, 1} if "--check" in line else {0}
            code, shown = run(line)
            assert code in allowed, (side, line, shown[-400:])
            assert "Traceback" not in shown, (side, line, shown[-4000:])
            assert "could not be worked out" not in shown, (side, line)


def test_every_command_reads_one_direction(tmp_path: Path) -> None:
    try_every_command(SMALL, tmp_path)


@pytest.mark.exhaustive
@pytest.mark.parametrize("path", RECORDED, ids=[path.name.split(".")[0] for path in RECORDED])
def test_every_command_reads_one_direction_of_every_recording(path: Path, tmp_path: Path) -> None:
    try_every_command(path, tmp_path)

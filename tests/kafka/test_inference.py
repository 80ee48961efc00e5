"""Captures without their requests: what is said of a response is what its request said, or nothing."""

from __future__ import annotations

import struct
from collections import Counter
from pathlib import Path

import pytest

import kdissect
from tests.oracle import wire
from tests.oracle.material import CAPTURES, material


def answers_only(name: str) -> bytes:
    """The capture without the packets that carry requests."""
    ports = material(name).ports
    data = (CAPTURES / f"{name}.pcap").read_bytes()
    asking = {
        packet.number
        for packet in wire.packets(CAPTURES / f"{name}.pcap")
        if packet.payload and packet.target[1] in ports and packet.source[1] not in ports
    }
    out, at, number = data[:24], 24, 0
    while at < len(data):
        (size,) = struct.unpack_from("<I", data, at + 8)
        number += 1
        if number not in asking:
            out += data[at : at + 16 + size]
        at += 16 + size
    return out


@pytest.mark.parametrize(
    "name", ["base", "zoo_kafka_python", "zoo_franz_go", "sweep_391_kraft", "era_1_1_1", "k4_admin_sweep"]
)
def test_against_the_requests(name: str, tmp_path: Path) -> None:
    path = tmp_path / "answers.pcap"
    path.write_bytes(answers_only(name))
    truth = {
        (r["client_port"], r["response_first_at"], r["correlation_id"]): (r["api"], r["api_version"])
        for r in material(name).exchanges
    }
    tables = kdissect.open(path).tables(["exchanges", "problems"])
    seen: Counter[str] = Counter()
    wrong = []
    for row in tables["exchanges"].to_pylist():
        if row["status"] != "orphan":
            continue
        api, version = truth[row["client_port"], row["response_first_at"], row["correlation_id"]]
        assert row["api_inferred"] == (row["api"] is not None)
        assert row["decoded"] == (row["api_version"] is not None)
        kind = "unknown" if row["api"] is None else "api" if row["api_version"] is None else "both"
        if row["api"] not in (None, api) or row["api_version"] not in (None, version):
            wrong.append((row["api"], row["api_version"], api, version, row["response_bytes"]))
            kind = "wrong"
        seen[kind] += 1
    print(name, dict(seen))
    assert wrong == []
    several = [row for row in tables["problems"].to_pylist() if row["kind"] == "ambiguous"]
    assert len(several) >= seen["api"]
    assert all("it fits " in row["detail"] for row in several)

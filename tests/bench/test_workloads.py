"""The generated captures are what they claim, by the plain reader and by kdissect. No clock is asserted."""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import kdissect
from tests.bench import shares
from tests.bench.floor import floor
from tests.bench.measure import forget, memory_bandwidth, run
from tests.bench.workloads import WORKLOADS
from tests.oracle import wire

SMALL = 3_000_000
LOSSES = {"loss": "chatter", "plain-loss": "plain"}
"""Workloads that lack packets, and those that they are of."""
UNDERSTOOD = (
    "chatter-v11", "chatter-v11-16", "plain", "bulk", "bulk-lz4", "bulk-zstd", "metadata", "sessions", "partitions",
    "giant", "short",
)  # fmt: skip
"""Workloads of which tshark 4.0 knows all versions."""


@pytest.mark.parametrize("name", [name for name in WORKLOADS if name not in LOSSES])
def test_what_is_generated(name: str, tmp_path: Path) -> None:
    made = WORKLOADS[name][1](tmp_path / "made.pcap", SMALL)
    assert made.size == made.path.stat().st_size
    there = wire.requests(made.path, frozenset({9092}))
    assert len(there) == made.exchanges
    assert all(r.response for r in there)
    assert len({r.conversation for r in there}) == made.connections
    rows = kdissect.open(made.path).table("exchanges")
    assert rows.num_rows == made.exchanges
    assert set(rows["status"].to_pylist()) == {"ok"}
    assert all(rows["decoded"].to_pylist())


@pytest.mark.parametrize("name", UNDERSTOOD)
def test_tshark_reads_the_same(name: str, tmp_path: Path) -> None:
    """Every request and response, and nothing malformed."""
    made = WORKLOADS[name][1](tmp_path / "made.pcap", SMALL // 10)
    fields = ("kafka.correlation_id", "kafka.client_id", "_ws.malformed")
    command = ["tshark", "-r", str(made.path), "-Y", "kafka", "-T", "fields", *(w for f in fields for w in ("-e", f))]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    ids, clients, malformed = zip(*(line.split("\t") for line in text.splitlines()), strict=True)
    assert sum(len(one.split(",")) for one in ids) == 2 * made.exchanges
    assert sum(len(one.split(",")) for one in clients if one) == made.exchanges
    assert not any(malformed)


@pytest.mark.parametrize("name", [name for name in WORKLOADS if name.startswith("chatter")])
def test_fetch_sessions_are_those_of_java(name: str, tmp_path: Path) -> None:
    """One full fetch, then epochs in a row; a partition in every second answer, the others implied."""
    made = WORKLOADS[name][1](tmp_path / "made.pcap", SMALL)
    tables = kdissect.open(made.path).tables()
    assert tables["problems"].num_rows == 0
    fetches = tables["fetches"].to_pylist()
    full = [row for row in fetches if row["request_kind"] == "create"]
    rest = [row for row in fetches if row["request_kind"] == "incremental"]
    assert len(full) == made.connections // 2
    assert len(full) + len(rest) == len(fetches)
    assert {row["epoch_status"] for row in rest} == {"ok"}
    assert [row["partitions_returned"] for row in rest].count(1) == len(rest) // 2
    assert {(row["partitions_returned"], row["hold"]) for row in rest} == {(0, "timeout"), (1, "data")}
    assert {row["partitions_sent"] + row["implied_partitions"] for row in rest} == {8}
    assert {row["topic"] for row in tables["fetch_partitions"].to_pylist()} >= {"orders-0000"}
    assert tables["record_batches"].num_rows > 0


def test_shares_are_those_of_the_captures() -> None:
    assert shares.read() == shares.count()


def test_mixed_has_the_shares_and_sizes_of_the_captures(tmp_path: Path) -> None:
    """Of a connection's whole turns, without what comes once; sizes within a twentieth."""
    made = WORKLOADS["mixed"][1](tmp_path / "made.pcap", SMALL)
    tables = kdissect.open(made.path).tables()
    assert tables["problems"].num_rows == 0
    assert set(tables["fetches"]["epoch_status"].to_pylist()) == {"ok", None}
    rows, apart = tables["exchanges"].to_pylist(), made.connections // 3
    said = Counter(dict.fromkeys(shares.APIS, 0))
    asked, answered = Counter(said), Counter(said)
    for api, request_bytes, response_bytes in shares.read():
        said[api] += 1
        asked[api] += request_bytes
        answered[api] += response_bytes
    found = Counter(row["api"] for row in rows)
    once = {"ApiVersions": 3, "Metadata": 3, "Fetch": 1}
    assert {api: count // apart - once.get(api, 0) for api, count in found.items()} == dict(said)
    sent = sum(row["request_bytes"] for row in rows if row["api"] == "Produce") / apart
    fetched = sum(row["response_bytes"] for row in rows if row["api"] == "Fetch") / apart
    assert abs(sent / asked["Produce"] - 1) < 0.05
    assert abs(fetched / answered["Fetch"] - 1) < 0.05


@pytest.mark.parametrize("name", ["plain", "chatter", "chatter-16"])
def test_acknowledged(name: str, tmp_path: Path) -> None:
    """Each packet acknowledges what the other side sent before it, so that holes are seen to be holes."""
    made = WORKLOADS[name][1](tmp_path / "made.pcap", SMALL // 10)
    command = ["tshark", "-r", str(made.path), "-Y", "tcp.analysis.flags", "-T", "fields", "-e", "frame.number"]
    assert not subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("name", LOSSES)
def test_loss(name: str, tmp_path: Path) -> None:
    """About one packet in a hundred is left out, and no exchange is invented."""
    whole = WORKLOADS[LOSSES[name]][1](tmp_path / "whole.pcap", SMALL)
    made = WORKLOADS[name][1](tmp_path / "made.pcap", SMALL)
    assert 0.005 < 1 - made.packets / whole.packets < 0.015
    rows = kdissect.open(made.path).table("exchanges")
    assert 0.9 * made.exchanges < rows.num_rows <= made.exchanges


@pytest.mark.parametrize("name", ["chatter", "plain", "bulk"])
def test_one_pass_sees_every_packet_and_frame(name: str, tmp_path: Path) -> None:
    made = WORKLOADS[name][1](tmp_path / "made.pcap", SMALL)
    found = floor(made.path, times=1)
    assert (found.size, found.packets, found.frames) == (made.size, made.packets, 2 * made.exchanges)
    assert 0 < found.slope < found.size / found.read


def test_measuring(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 100_000)
    forget(path)
    cost = run(["cat", str(path)], cold=path, times=2)
    assert cost.code == 0
    assert cost.peak > 0
    assert memory_bandwidth(1 << 20) > 0


def test_a_peak_is_the_command_s_own() -> None:
    held = np.ones(200 << 20, np.uint8)
    assert run(["cat", "/dev/null"]).peak < held.nbytes
    del held
    assert run(["cat", "/dev/null"]).peak < 200 << 20
    assert run(["sleep", "60"], limit=0.2).code < 0

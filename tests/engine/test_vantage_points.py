"""Several captures of the same traffic at once: each keeps its own exchanges, whatever the order of arguments."""

from __future__ import annotations

from pathlib import Path

import pyarrow.compute as pc

import kdissect
from tests.oracle.material import CAPTURES

TINY = CAPTURES / "base_tiny.pcap"


def test_two_files_are_kept_apart(tmp_path: Path) -> None:
    """Recorded at the client and at the broker: the files have one name in two folders."""
    paths = []
    for place in ("client", "broker"):
        (tmp_path / place).mkdir()
        paths.append(tmp_path / place / "cap.pcap")
        paths[-1].write_bytes(TINY.read_bytes())
    alone = kdissect.open(TINY).table("exchanges")
    both = [kdissect.open(given).table("exchanges") for given in (paths, paths[::-1])]
    assert both[0].equals(both[1])
    rows = both[0].to_pylist()
    assert {row["capture"] for row in rows} == {"client/cap.pcap", "broker/cap.pcap"}
    assert len({row["connection_id"] for row in rows}) == 2 * len(set(alone["connection_id"].to_pylist()))
    told = [name for name in alone.column_names if name not in ("capture", "connection_id", "exchange_id")]
    told = [name for name in told if not name.endswith("_file")]
    for capture in ("client/cap.pcap", "broker/cap.pcap"):
        mine = both[0].filter(pc.equal(both[0]["capture"], capture))
        assert sorted(map(str, mine.select(told).to_pylist())) == sorted(map(str, alone.select(told).to_pylist()))


def test_copies_in_one_capture_count_once() -> None:
    """Both ends of a veth in one file: every packet twice, every exchange once."""
    short = kdissect.open(CAPTURES / "base_short.pcap").table("exchanges", ["api", "correlation_id", "latency_ms"])
    twice = kdissect.open(CAPTURES / "field_duplicates.pcap").tables(["exchanges", "connections"])
    assert twice["exchanges"].select(short.column_names).equals(short)
    assert sum(twice["connections"]["duplicated_packets"].to_pylist()) > 0

"""Several captures of the same traffic at once: each keeps its own exchanges, whatever the order of arguments."""

from __future__ import annotations

import io
from pathlib import Path

import pyarrow.compute as pc
import pytest

import kdissect
from tests.capture.build import enhanced, interface, option, read_pcap, section
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


@pytest.mark.parametrize(("lag_us", "duplicates"), [(20, True), (50_000, True), (250_000, False), (60_000_000, False)])
def test_two_interfaces_of_one_file(lag_us: int, duplicates: bool) -> None:
    """The second sees every packet later: each exchange counts once, with the times of the first."""
    seen = [(time, number, data) for time, data in read_pcap(TINY) for number in (0, 1)]
    rows = sorted((time + number * lag_us * 1000, number, data) for time, number, data in seen)
    nanoseconds = option(9, b"\x09")
    blocks = [section(), interface(options=nanoseconds), interface(options=nanoseconds)]
    blocks += [enhanced(time, data, number=number) for time, number, data in rows]
    told = [
        "client_port",
        "api",
        "correlation_id",
        "status",
        "latency_ms",
        "queued_ms",
        "request_bytes",
        "response_bytes",
    ]
    alone = kdissect.open(TINY).tables({"exchanges": told, "connections": None})
    both = kdissect.open(io.BytesIO(b"".join(blocks))).tables({"exchanges": told, "connections": None})
    assert sorted(map(str, both["exchanges"].to_pylist())) == sorted(map(str, alone["exchanges"].to_pylist()))
    assert both["connections"].num_rows == alone["connections"].num_rows
    copies, again = (
        sum(both["connections"][name].to_pylist()) for name in ("duplicated_packets", "retransmitted_bytes")
    )
    before = sum(alone["connections"]["retransmitted_bytes"].to_pylist())
    assert (copies > 100, again - before < 100) == (duplicates, duplicates)

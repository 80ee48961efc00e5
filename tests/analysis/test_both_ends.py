"""Exchanges that two captures saw: what each way took, and how the clocks stand, on a recording of both ends."""

from __future__ import annotations

import struct
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import zstandard

import kdissect
from kdissect.analysis.both_ends import clock_offsets, ways
from tests.analysis.read import CAPTURES

CLIENT, BROKER = (CAPTURES / "stories" / f"net_delay_{end}.pcap.zst" for end in ("client", "broker"))
DELAYED_AT = datetime(2026, 11, 22, 1, 10, 20, 205_000, tzinfo=UTC)
"""When the way to the broker took 80 ms more, and a moment for what was under way."""


def with_clock(source: Path, target: Path, ms: float, ppm: float) -> Path:
    """The same capture by a clock that shows so much more, and runs so much faster."""
    data = bytearray(zstandard.ZstdDecompressor().stream_reader(source.read_bytes()).read())
    tick = 1 if data[:4] == b"\x4d\x3c\xb2\xa1" else 1000
    at, first = 24, None
    while at < len(data):
        seconds, part, size = struct.unpack_from("<III", data, at)
        now = seconds * 10**9 + part * tick
        first = now if first is None else first
        now += int(ms * 1e6 + (now - first) * ppm / 1e6)
        struct.pack_into("<II", data, at, now // 10**9, now % 10**9 // tick)
        at += 16 + size
    target.write_bytes(data)
    return target


@pytest.mark.parametrize(("ms", "ppm"), [(0.0, 0.0), (37.0, 50.0)])
def test_both_ends_of_a_wire_whose_way_up_became_slow(tmp_path: Path, ms: float, ppm: float) -> None:
    broker = with_clock(BROKER, tmp_path / "broker.pcap", ms, ppm)
    capture = kdissect.open([broker, CLIENT])
    (row,) = capture.table("clock_offsets").to_pylist()
    assert (row["first"], row["second"]) == ("net_delay_client.pcap.zst", "broker.pcap")
    assert row["offset_ms"] == pytest.approx(-ms, abs=0.2)
    assert row["drift_ppm"] == pytest.approx(-ppm, abs=10)
    assert 0 <= row["uncertainty_ms"] < 0.3
    found = capture.analysis.both_ends()
    assert found.num_rows == row["exchanges"] > 1200
    begun = capture.table("exchanges", ["exchange_id", "request_first_at"])
    at = dict(zip(*(column.to_pylist() for column in begun.columns), strict=True))
    late = np.array([at[name] > DELAYED_AT for name in found["first_exchange_id"].to_pylist()])
    assert np.median(np.asarray(found["network_up_ms"])[late]) == pytest.approx(80.2, abs=0.5)
    assert 0.3 <= np.median(np.asarray(found["network_down_ms"])[late]) <= 0.5
    assert np.median(np.asarray(found["network_up_ms"])[~late]) < 0.5
    assert len(set(found["first_exchange_id"].to_pylist())) == found.num_rows


def test_captures_that_share_nothing_and_one_capture() -> None:
    columns = ["exchange_id", "capture", "connection_id", "client_ip", "client_port", "broker_ip", "broker_port",
               "api_key", "correlation_id", "request_bytes", "response_bytes", "request_last_at",
               "response_first_at"]  # fmt: skip
    apart = kdissect.open([CAPTURES / "base_tiny.pcap", CAPTURES / "raw_reuse.pcap"]).table("exchanges", columns)
    alone = kdissect.open(CAPTURES / "base_tiny.pcap").table("exchanges", columns)
    for table in (apart, alone, alone.slice(0, 0)):
        assert clock_offsets(table).num_rows == ways(table).num_rows == 0
    assert isinstance(ways(alone), pa.Table)

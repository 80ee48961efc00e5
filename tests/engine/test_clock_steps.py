"""A clock that steps back while exchanges go on: they are named, and no others."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

import kdissect
from tests.capture.build import CAPTURES, pcap, pcapng, read_pcap

HOUR = 3600 * 10**9
PACKETS = read_pcap(CAPTURES / "base_tiny.pcap")


def touched(made: Any, step: int, back: int) -> tuple[set[str], set[str], list[dict[str, Any]]]:
    """Exchanges that a clock set back by `back` ns from packet `step` on (counted from 1) should touch, by the table of
    exchanges; those that problems name; and the problem of the capture itself."""
    data = made((time - back * (i + 1 >= step), packet) for i, (time, packet) in enumerate(PACKETS))
    tables = kdissect.open(io.BytesIO(data)).tables(["exchanges", "problems"])
    rows = [row for row in tables["problems"].to_pylist() if row["kind"] == "clock_step"]
    exchanges = {
        row["exchange_id"]
        for row in tables["exchanges"].to_pylist()
        if row["request_frame"] and row["response_frame"] and row["request_frame"] < step <= row["response_frame"]
    }
    named = [row["exchange_id"] for row in rows if row["exchange_id"]]
    assert len(named) == len(set(named))
    return exchanges, set(named), [row for row in rows if not row["exchange_id"]]


@pytest.mark.parametrize("back", [HOUR, 10**9])
@pytest.mark.parametrize("made", [pcap, pcapng])
def test_exchanges_that_a_step_touches(made: Any, back: int) -> None:
    seen = 0
    for step in range(20, len(PACKETS), 13):
        exchanges, named, (own,) = touched(made, step, back)
        assert named == exchanges
        assert (own["frame"], own["where"], own["connection_id"]) == (step, "clock", None)
        seen += len(exchanges)
    assert seen > 5


def test_by_threads_too(tmp_path: Path) -> None:
    path = tmp_path / "stepped.pcap"
    path.write_bytes(pcap((time - HOUR * (i >= 100), packet) for i, (time, packet) in enumerate(PACKETS)))
    alone, shared = (kdissect.open(path, jobs=jobs).table("problems").to_pylist() for jobs in (1, 2))
    assert alone == shared
    assert [row["kind"] for row in alone].count("clock_step") > 1


def test_without_a_step_there_is_no_row() -> None:
    assert touched(pcap, len(PACKETS) + 1, 0) == (set(), set(), [])
    assert touched(pcap, 100, 50_000_000)[1:] == (set(), [])

"""Where the time went: every moment is some layer's, and what went through is what the tables say."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pyarrow.compute as pc
import pytest

import kdissect
from kdissect.engine.timings import LAYERS, NET, TCP, WAITING, Timings


def test_every_moment_is_some_layers(captures: Path) -> None:
    began = time.perf_counter()
    capture = kdissect.open(captures / "k4_transactions.pcap")
    found = capture.tables(["exchanges", "capture_quality"])
    timings = capture.timings
    table = timings.table()
    took = time.perf_counter() - began
    assert table["layer"].to_pylist() == list(LAYERS)
    assert min(timings.seconds) > 0
    assert 0 < sum(table["cpu_seconds"].to_pylist()) <= time.thread_time()
    assert 0 < sum(table["seconds"].to_pylist()) <= took
    assert sum(table["share"].to_pylist()) == pytest.approx(1)
    rows = found["exchanges"]
    sides = [pc.sum(pc.is_valid(rows[name])).as_py() for name in ("request_bytes", "response_bytes")]
    assert timings.frames == sum(sides)
    quality = {row["measure"]: row["value"] for row in found["capture_quality"].to_pylist()}
    assert timings.packets == quality["packets"]
    assert timings.bytes == (captures / "k4_transactions.pcap").stat().st_size
    assert kdissect.open(captures / "base.pcap").timings.table()["ns_per_packet"].null_count == len(LAYERS)


def test_threads_add_up_and_none_counts_for_another() -> None:
    """A clock that was made by one thread and is used by another counts from the other's first call on."""
    whole, other = Timings(), Timings()

    def work() -> None:
        for layer in (NET, TCP, WAITING):
            other.at(layer)
            sum(range(100_000))

    thread = threading.Thread(target=work)
    before = time.process_time()
    thread.start()
    thread.join()
    whole.merge(other)
    assert whole.cpu_seconds[NET] > 0
    assert whole.cpu_seconds[TCP] > 0
    assert sum(whole.cpu_seconds) <= time.process_time() - before

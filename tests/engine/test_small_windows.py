"""Frames in many pieces, put together from a window much smaller than what they take to arrive: their bytes are right,
as the brokers' own checksums over the record batches in them say."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kdissect
from kdissect.capture import open_captures
from kdissect.capture.captureset import CaptureSet
from kdissect.capture.window import Window
from kdissect.engine.books import Books
from kdissect.engine.run import Run
from kdissect.engine.settings import Settings
from kdissect.kafka.exchanges import completion, outcome
from kdissect.kafka.recordsets.batches import walk
from kdissect.kafka.recordsets.verification import verify
from kdissect.tables.recordsets import record_sets
from tests.bench import frames
from tests.oracle.pcap import Talk, api_versions_request, api_versions_response, pcap


@pytest.mark.parametrize("name", ["k4_slow_and_throttled", "base", "mtu1500_2_3_1"])
@pytest.mark.parametrize(("slots", "wide"), [(2, 1), (2, 3), (3, 1), (3, 3), (8, 1)])
def test_bytes_of_frames(captures: Path, monkeypatch: pytest.MonkeyPatch, name: str, slots: int, wide: int) -> None:
    monkeypatch.setattr(CaptureSet, "window", lambda self: Window(1 << 17, slots, wide=wide))
    run = Run(Books(open_captures(captures / f"{name}.pcap"), {"record_batches": None}, Settings()))
    right = 0
    for done in run.completed():
        assert done.data is not None
        sets = record_sets(run.books.builder.block(done))
        batches = walk(done.data, sets.at, sets.size)
        verify(batches)
        assert not (batches.crc_ok == 0).any()
        assert not len(batches.problems())
        right += int((batches.crc_ok == 1).sum())
    assert right > 80


def large_answers(connections: int, size: int) -> bytes:
    """A capture of connections that receive an answer to a Fetch at the same time."""
    packets: list[tuple[int, bytes]] = []
    talks = [Talk(("10.0.0.1", 40000 + number), packets=packets) for number in range(connections)]
    body = frames.fetch_response([frames.batch([np.random.default_rng(1).bytes(size)])]).data
    begin = len(api_versions_response(1))
    for number, talk in enumerate(talks):
        talk.handshake(number)
    for number, talk in enumerate(talks):
        asked = [api_versions_request(1), frames.fetch_request(1).data]
        talk.put(100 + number, 0, 0, asked[0])
        talk.put(101 + number, 1, 0, api_versions_response(1))
        talk.put(102 + number, 0, len(asked[0]), asked[1])
    for at in range(0, len(body), 60_000):
        for number, talk in enumerate(talks):
            talk.put(200 + at / 1000 + number / 100, 1, begin + at, body[at : at + 60_000])
    return pcap(packets)


@pytest.mark.parametrize("limit", [256 << 20, 8 << 20])
def test_what_a_pipe_cannot_keep_is_given_up(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limit the bulk of unfinished frames goes: they are paired and timed, and the problem is named."""
    monkeypatch.setattr(CaptureSet, "window", lambda self: Window(1 << 20, 3))
    monkeypatch.setattr("kdissect.kafka.streams.dissector.KEPT_LIMIT", limit)
    data = large_answers(6, 4 << 20)
    asked = {"exchanges": None, "problems": None, "record_batches": ["crc_ok"]}
    found = kdissect.open(io.BytesIO(data)).tables(asked)
    rows = found["exchanges"].to_pylist()
    fetches = [row for row in rows if row["api"] == "Fetch"]
    assert len(rows) == 12
    assert {row["response_bytes"] for row in fetches} == {fetches[0]["response_bytes"]}
    assert all(row["latency_ms"] > 4000 for row in fetches)
    checks = found["record_batches"]["crc_ok"].to_pylist()
    problems = found["problems"].to_pylist()
    if limit > len(data):
        assert checks == [True] * 6
        assert not problems
        return
    assert {row["status"] for row in fetches} == {"partial"}
    assert not checks
    assert {(row["kind"], row["where"]) for row in problems} == {("buffer_limit", "response body")}
    assert sorted(row["exchange_id"] for row in problems) == sorted(row["exchange_id"] for row in fetches)


@pytest.mark.parametrize("name", ["k4_mtu1500", "mtu1500_2_3_1", "k4_slow_and_throttled"])
@pytest.mark.parametrize("tables", [["exchanges"], ["exchanges", "fetches", "offset_commits"]])
def test_frames_that_stay_in_pieces(
    captures: Path, monkeypatch: pytest.MonkeyPatch, name: str, tables: list[str]
) -> None:
    """What is told of them is the same: whether Fetch is read by a kernel of its own, or made columns."""
    path, apart = captures / f"{name}.pcap", 0

    def gather(*given: Any) -> tuple[int, ...]:
        nonlocal apart
        found: tuple[int, ...] = outcome.gather(*given)
        apart += found[-1]
        return found

    expected = kdissect.open(path).tables(tables)
    monkeypatch.setattr(completion, "gather", gather)
    monkeypatch.setattr(completion.Completion, "LARGE", 0)
    found = kdissect.open(path).tables(tables)
    assert apart > 20
    assert all(found[table].equals(expected[table]) for table in tables)

"""A plain reader's account of each clean capture (`tests.oracle.wire`) against `exchanges`, row by row."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import zstandard

from tests.oracle import wire
from tests.oracle.material import CAPTURES, ENCRYPTED, LOGGED, material

pytestmark = pytest.mark.oracle

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
CLEAN = [name for name in LOGGED if name not in ENCRYPTED]


def instant(ns: int | None) -> datetime | None:
    return None if ns is None else EPOCH + timedelta(microseconds=ns // 1000)


@pytest.mark.parametrize("name", CLEAN)
def test_every_request_on_the_wire_is_an_exchange(name: str) -> None:
    it = material(name)
    there = Counter(
        (
            r.client,
            r.broker,
            r.key if r.key >= 0 else None,  # a negative key is no API: unknown
            r.version,
            r.correlation_id,
            r.client_id,
            r.frame.size,
            r.frame.last_packet,
            instant(r.frame.first),
            instant(r.frame.last),
            r.response.size if r.response else None,
            r.response.last_packet if r.response else None,
            instant(r.response.first) if r.response else None,
            instant(r.response.last) if r.response else None,
        )
        for r in wire.requests(it.path, it.ports)
        if not r.begun
    )
    rows = [r for r in it.exchanges if r["status"] not in ("orphan", "partial")]
    have = Counter(
        (
            (r["client_ip"], r["client_port"]),
            (r["broker_ip"], r["broker_port"]),
            r["api_key"],
            r["api_version"],
            r["correlation_id"],
            r["client_id"],
            r["request_bytes"],
            r["request_frame"],
            r["request_first_at"],
            r["request_last_at"],
            r["response_bytes"],
            r["response_frame"],
            r["response_first_at"],
            r["response_last_at"],
        )
        for r in rows
    )
    missing, invented = there - have, have - there
    assert not missing, f"{sum(missing.values())} of {len(rows)} requests missing or different, first: " + "\n".join(
        f"\nwire {key}\nours {near(key, have)}" for key in list(missing)[:3]
    )
    assert not invented, f"{sum(invented.values())} invented, first: {next(iter(invented))}"


@pytest.mark.parametrize("name", CLEAN)
def test_answers_begun_and_not_finished_are_partial(name: str) -> None:
    """And nothing else is, where no packet was lost, but requests that were cut off themselves."""
    it = material(name)
    begun = Counter((r.client, r.correlation_id) for r in wire.requests(it.path, it.ports) if r.begun)
    rows = [r for r in it.exchanges if r["status"] == "partial" and r["request_last_at"] is not None]
    assert Counter(((r["client_ip"], r["client_port"]), r["correlation_id"]) for r in rows) == begun
    for row in rows:
        assert row["response_first_at"] is not None
        assert row["response_last_at"] is None


@pytest.mark.parametrize("name", [name for name in CLEAN if name != "sasl_old"])  # there tokens are answered too
def test_responses_without_a_request_are_orphans(name: str) -> None:
    """Connections that were open before the capture began: the answers to earlier requests come first."""
    it = material(name)
    there = Counter(
        (client, number, frame.size, frame.last_packet, instant(frame.first), instant(frame.last))
        for client, number, frame in wire.orphans(it.path, it.ports)
    )
    have = Counter(
        (
            (r["client_ip"], r["client_port"]),
            r["correlation_id"],
            r["response_bytes"],
            r["response_frame"],
            r["response_first_at"],
            r["response_last_at"],
        )
        for r in it.exchanges
        if r["status"] == "orphan"
    )
    assert have == there


def near(key: tuple[Any, ...], rows: Counter[tuple[Any, ...]]) -> tuple[Any, ...] | None:
    return next((row for row in rows if row[:5] == key[:5]), None)


@pytest.mark.parametrize("name", ["base", "base_short", "base_tiny"])
def test_exchanges_of_base(name: str) -> None:
    """The account that was written when base was recorded, by another plain reader."""
    it = material(name)
    truth = [json.loads(line) for line in read_lines(name)]
    rows = {(r["client_port"], r["api_key"], r["correlation_id"]): r for r in it.exchanges}
    assert len(rows) == len(truth)
    for want in truth:
        row = rows[want["client_port"], want["api_key"], want["correlation_id"]]
        assert (row["api_version"], row["client_id"]) == (want["api_version"], want["client_id"])
        for side in ("request", "response"):
            span = want[side]
            if span is None:
                assert row[f"{side}_bytes"] is None or row["status"] == "partial"
                continue
            assert row[f"{side}_bytes"] == span["bytes"]
            assert row[f"{side}_frame"] == span["last_frame"]
            assert row[f"{side}_first_at"] == instant(span["first_at_us"] * 1000)
            assert row[f"{side}_last_at"] == instant(span["last_at_us"] * 1000)


def read_lines(name: str) -> list[str]:
    with (CAPTURES / f"{name}.exchanges.jsonl.zst").open("rb") as source:
        return zstandard.ZstdDecompressor().stream_reader(source).read().decode().splitlines()

"""Rows on a terminal: what is shown at which width, whole sentences, times of day."""

from __future__ import annotations

import io
import sys
from datetime import timedelta

import pyarrow as pa
import pytest

from kdissect.cli.printing import table_rows
from kdissect.tables.declaration import TABLES
from tests.cli.standin import START, exchange, rows


def shown(table: str, data: pa.Table, width: int) -> list[str]:
    """Lines of a table on a terminal of that width."""
    names = list(TABLES[table].shown)
    stream = io.StringIO()
    data = data.select(names)
    table_rows._aligned(data.schema, data.to_batches(), stream, width)
    return stream.getvalue().splitlines()


def test_exchanges_show_when_and_why() -> None:
    data = rows("exchanges", [
        exchange(0, "Fetch", 501.0, hold="timeout", broker_ms=500.9, response_bytes=70),
        exchange(1, "Produce", 7.0, status="error", error="NOT_LEADER_OR_FOLLOWER", hold="error", response_bytes=60),
    ])  # fmt: skip
    for width in (80, 120):
        lines = shown("exchanges", data, width)
        assert max(map(len, lines)) <= width
        assert {"exchange_id", "request_first_at", "latency_ms", "hold", "error"} <= set(lines[0].split())
        assert lines[1].split()[:2] == ["3f2a0123:0", "04:20:01.250000"]
    assert "response_bytes" in lines[0]


def test_times_of_several_days_keep_their_day() -> None:
    data = rows("exchanges", [exchange(0), exchange(1, request_first_at=START + timedelta(days=1))])
    assert "2026-11-22T04:20:01.250000Z" in shown("exchanges", data, 120)[2]


def test_connections_show_what_was_sent_again() -> None:
    names = shown("connections", rows("connections", [{
        "connection_id": "0" * 16, "started_at": START, "client_id": "shop", "bytes": 9, "exchanges": 3,
        "end_reason": "fin", "retransmitted_bytes": 4,
    }]), 120)[0].split()  # fmt: skip
    assert {"started_at", "bytes", "retransmitted_bytes", "end_reason"} <= set(names)


def test_sentences_wrap() -> None:
    text = "A finding of many words, which no width of a terminal may cut, and which says what it has to say. " * 3
    data = rows("findings", [{"id": "x", "severity": "high", "text": text.strip(), "count": 3}])
    for width in (60, 80, 200):
        lines = shown("findings", data, width)
        assert max(map(len, lines)) <= width
        assert text.strip() in " ".join(" ".join(lines[1:]).split()).replace("high ", "", 1).replace(" 3 ", " ", 1)


def test_ids_that_share_their_beginning_stay_whole() -> None:
    one, two = "3f2a012300000000:1", "3f2a012311111111:1"
    data = rows("exchanges", [exchange(0, exchange_id=one), exchange(1, exchange_id=two)])
    assert shown("exchanges", data, 120)[1].startswith(one)


def test_what_was_asked_for_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """A filter's column in which rows differ is among the first; one with a single value in all of them is not."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    known = list(TABLES["exchanges"].shown)

    def first(where: str | None, sort: list[str] | None = None) -> list[str]:
        return table_rows.choose("exchanges", [*known, "connection_id"], None, "table", None, where, sort)[:4]

    usual = ["exchange_id", "request_first_at", "api", "latency_ms"]
    assert first(None) == first("not a filter") == first("hold = 'timeout'") == usual
    assert first("client_id = 'a' and throttle_ms > 0") == ["exchange_id", "request_first_at", "throttle_ms", "api"]
    assert first("error_code in (3, 6)") == ["exchange_id", "request_first_at", "error", "api"]
    assert first(None, ["-response_bytes"])[2] == "response_bytes"
    assert table_rows.choose("exchanges", known, ["api"], "table", None, "broker_ms > 1") == ["api"]

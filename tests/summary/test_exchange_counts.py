"""Exchanges counted by numbers and keys: the same as by names and ids."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import kdissect
from kdissect.analysis.exchange_keys import exchange_keys
from kdissect.summary import Summarizer
from kdissect.summary.gathering import GROUPINGS, WANTED
from kdissect.tables.declaration.model import EXCHANGE_KEYS
from kdissect.tables.declaration.readers import FIRST_SCREEN_COUNTS
from tests.conftest import ROOT

CAPTURES = ["base_tiny.pcap", "k4_session_eviction.pcap", "k4_share_group.pcap", "stories/quotas.pcap.zst"]


@pytest.fixture(scope="module")
def exchanges() -> pa.Table:
    """Rows of several captures, in no order, with everything that may be null, and durations of the same length."""
    tables = [kdissect.open(str(ROOT / "captures" / name)).table("exchanges") for name in CAPTURES]
    table = pa.concat_tables(tables).combine_chunks()
    random = np.random.default_rng(3)
    table = table.take(pa.array(random.permutation(table.num_rows)))
    for name in ("client_id", "broker", "api_version", "latency_ms", "queued_ms", "request_first_at", "hold"):
        mask = pa.array(random.random(table.num_rows) < 0.05)
        column = pc.if_else(mask, pa.scalar(None, table[name].type), table[name])
        table = table.set_column(table.column_names.index(name), name, column)
    rounded = pc.round(table["latency_ms"], 1)
    return table.set_column(table.column_names.index("latency_ms"), "latency_ms", rounded)


@pytest.mark.parametrize("by", GROUPINGS)
@pytest.mark.parametrize("parts", [1, 7])
def test_what_is_counted_by_numbers_is_what_names_say(by: str, parts: int, exchanges: pa.Table) -> None:
    named, counted = Summarizer(by), Summarizer(by)
    for rows in np.array_split(np.arange(exchanges.num_rows), parts):
        part = exchanges.take(pa.array(rows)).combine_chunks()
        named.feed("exchanges", part.select(WANTED["exchanges"]).to_batches()[0])
        coded = part.select(FIRST_SCREEN_COUNTS.tables["exchanges"])
        for name in ("client_id", "broker", "status", "hold", "cluster"):
            coded = coded.set_column(coded.column_names.index(name), name, part[name].dictionary_encode())
        for name, column in zip(EXCHANGE_KEYS, exchange_keys(part["exchange_id"]), strict=True):
            coded = coded.append_column(name, pa.array(column))
        counted.count(coded.combine_chunks().to_batches()[0])
    one, other = named.finish(), counted.finish()
    assert len({line.name for line in one.latencies}) > 1
    assert other == one


def test_exchanges_without_names() -> None:
    """All null but for what is always known; none at all."""
    summarizer = Summarizer()
    texts, numbers = pa.nulls(2, pa.string()).dictionary_encode(), pa.nulls(2, pa.int32())
    columns = {
        "client_id": texts, "broker": texts, "api_key": numbers, "api_version": numbers,
        "status": pa.array(["orphan", "orphan"]).dictionary_encode(), "error_code": numbers,
        "latency_ms": pa.nulls(2, pa.float64()), "hold": texts, "queued_ms": pa.nulls(2, pa.float64()),
        "request_first_at": pa.nulls(2, pa.timestamp("us", "UTC")), EXCHANGE_KEYS[0]: pa.array([1, -1]),
        EXCHANGE_KEYS[1]: pa.array([-1, -2]),
    }  # fmt: skip
    batch = pa.record_batch(columns)
    summarizer.count(batch)
    summarizer.count(batch.slice(0, 0))
    summary = summarizer.finish()
    assert [(line.name, line.exchanges, line.answered, line.slowest) for line in summary.latencies] == [
        ("(unknown)", 2, 0, None)
    ]
    assert summary.statuses == {"orphan": 2}

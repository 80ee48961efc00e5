import pyarrow as pa
import pytest

from kdissect.problems import UsageError
from kdissect.tables.builder import TableBuilder
from kdissect.tables.declaration import SCHEMAS
from kdissect.tables.order import order
from kdissect.tables.where import parse
from tests.tables.made import START, completed, connections

SCHEMA = SCHEMAS["exchanges"]


def test_a_filter_early_and_late():
    done = completed(
        *[
            {"n": i, "api_key": i % 3, "request_first": START + i * 1000, "response_last": START + i * 2000}
            for i in range(9)
        ]
    )
    where = parse("api = 'Fetch' and latency_ms > 0.001", SCHEMA)
    builder = TableBuilder(connections(), {"exchanges": ["exchange_id", "api", "latency_ms"]})
    batch = builder.feed(done)["exchanges"]
    early = builder.prefilter_rows("exchanges", batch, where)
    assert early.num_rows == 2
    for part in (batch, early):
        table = builder.finished("exchanges", [part], where, ["exchange_id"])
        assert table.column_names == ["exchange_id"]
        assert [text[-2:] for text in table["exchange_id"].to_pylist()] == [":4", ":7"]
        assert builder.resolved("exchanges", part, where, ["api"]).to_pylist() == [{"api": "Fetch"}] * 2


def test_a_filter_on_what_is_known_at_the_end_keeps_rows():
    builder = TableBuilder(connections(), {"exchanges": ["broker"]})
    batch = builder.feed(completed({}))["exchanges"]
    where = parse("broker = '7'", SCHEMA)
    assert builder.prefilter_rows("exchanges", batch, where).num_rows == 1
    assert builder.finished("exchanges", [batch], where).num_rows == 0
    builder.brokers.claim("a.pcap", 7, "10.0.0.9", 9092, "a.pcap\t10.0.0.8:9092")
    assert builder.finished("exchanges", [batch], where).num_rows == 1


def test_unknown_columns():
    with pytest.raises(UsageError, match="did you mean 'latency_ms'"):
        TableBuilder(connections(), {"exchanges": ["latency"]})


def test_order_of_other_tables():
    table = pa.table({"at": pa.array([2, None, 1, 1], pa.timestamp("us", "UTC")), "exchange_id": ["a", "b", "d", "c"]})
    assert order("groups", table)["exchange_id"].to_pylist() == ["c", "d", "a", "b"]
    assert order("findings", table).equals(table)
    rows = pa.table({"session_key": ["b", "a", "a"], "topic": ["x", None, "t"], "topic_id": [None, "i", "i"]})
    assert order("session_partitions", rows)["topic"].to_pylist() == ["t", None, "x"]

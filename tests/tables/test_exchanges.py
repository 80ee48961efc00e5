"""Exchanges with hand-computed times: exact to the nanosecond."""

import numpy as np
import pyarrow as pa

from kdissect.kafka.completed import FILE_SHIFT, NULL_TIME
from kdissect.tables.builder import TableBuilder
from tests.tables.made import START, completed, connections, status


def rows_of(done, made=None, columns=None):
    builder = TableBuilder(made or connections(), {"exchanges": columns})
    return builder.finished("exchanges", [builder.feed(done)["exchanges"]]).to_pylist()


def test_the_four_instants_are_exact():
    done = completed(
        {
            "request_first": START + 1,
            "request_last": START + 2_000_001,
            "response_first": START + 10_000_002,
            "response_last": START + 12_500_010,
            "queued_from": START + 5_000_003,
            "request_bytes": 100,
            "response_bytes": 2000,
            "request_packet": 7,
            "response_packet": 9 | 1 << FILE_SHIFT,
            "throttle_ms": 3,
            "error_code": 0,
            "client": 1,
            "correlation_id": -5,
            "in_flight": 2,
        },
        client_ids=("", "c1"),
    )
    (row,) = rows_of(done, connections(files=[["a.pcap0", "a.pcap1"]]))
    assert row["request_transfer_ms"] == 2.0
    assert row["queued_ms"] == 3.000002
    assert row["broker_ms"] == (10_000_002 - 2_000_001 - 3_000_002) / 1e6 == 4.999999
    assert row["response_transfer_ms"] == 2.500008
    assert row["latency_ms"] == 12.500009
    assert row["request_first_at"].isoformat() == "2023-11-14T22:13:20+00:00"
    assert row["response_last_at"].isoformat() == "2023-11-14T22:13:20.012500+00:00"
    assert row["exchange_id"] == "000000000000abc0:0"
    assert (row["connection_id"], row["capture"]) == ("000000000000abc0", "a.pcap")
    assert (row["client_ip"], row["client_port"], row["broker_ip"], row["broker_port"]) == (
        "10.0.0.1",
        50000,
        "10.0.0.9",
        9092,
    )
    assert row["broker"] == "10.0.0.9:9092"
    assert (row["api_key"], row["api"], row["api_version"], row["correlation_id"]) == (1, "Fetch", 12, -5)
    assert (row["client_id"], row["status"], row["in_flight"], row["throttle_ms"]) == ("c1", "ok", 2, 3.0)
    assert (row["request_file"], row["request_frame"]) == ("a.pcap0", 7)
    assert (row["response_file"], row["response_frame"]) == ("a.pcap1", 9)
    assert (row["request_bytes"], row["response_bytes"]) == (100, 2000)
    assert (row["error_code"], row["error"], row["error_count"]) == (0, None, 0)
    assert row["hold"] is None
    assert row["decoded"] is True
    assert row["api_inferred"] is False


def test_a_request_that_waited_for_nothing_queues_zero():
    first = {"request_first": START, "request_last": START, "response_first": START + 5_000_000, "response_bytes": 9}
    later = first | {"n": 1, "queued_from": START - 1}
    for row in rows_of(completed(first, later)):
        assert row["queued_ms"] == 0.0
        assert row["broker_ms"] == 5.0
        assert row["latency_ms"] is None
        assert row["response_last_at"] is None


def test_no_response():
    (row,) = rows_of(
        completed(
            {
                "request_first": START,
                "request_last": START + 1000,
                "queued_from": START + 9,
                "status": status("unanswered"),
                "error_count": -1,
                "in_flight": -1,
            }
        )
    )
    assert row["status"] == "unanswered"
    assert row["request_transfer_ms"] == 0.001
    for name in (
        "queued_ms",
        "broker_ms",
        "latency_ms",
        "response_transfer_ms",
        "throttle_ms",
        "response_bytes",
        "response_frame",
        "response_file",
        "response_first_at",
        "error_code",
        "error",
        "error_count",
        "client_id",
        "in_flight",
    ):
        assert row[name] is None, name


def test_an_orphan():
    (row,) = rows_of(
        completed(
            {
                "is_orphan": True,
                "n": 12,
                "api_key": -1,
                "api_version": -1,
                "response_first": START,
                "response_last": START + 500,
                "response_bytes": 10,
                "status": status("orphan"),
                "error_count": -1,
                "decoded": False,
            }
        )
    )
    assert row["exchange_id"] == "000000000000abc0:r12"
    assert (row["api_key"], row["api"], row["api_version"]) == (None, None, None)
    assert (row["queued_ms"], row["broker_ms"], row["latency_ms"]) == (None, None, None)
    assert row["response_transfer_ms"] == 0.0005


def test_errors_name_the_top_level_one_else_the_first():
    done = completed(
        {"n": 0, "error_code": 70, "error_first": 3, "error_count": 2, "status": status("error")},
        {"n": 1, "error_code": 0, "error_first": 3, "error_count": 1, "status": status("error")},
        {"n": 2, "error_first": -1, "error_count": 4, "status": status("error")},
        {"n": 3, "error_first": 999, "error_count": 1, "status": status("error")},
        {"n": 4},
        {"n": 5, "api_key": 2999, "error_count": -1},
    )
    rows = rows_of(done)
    assert [row["error_code"] for row in rows] == [70, 3, -1, 999, 0, None]
    assert [row["error"] for row in rows][:3] == [
        "FETCH_SESSION_ID_NOT_FOUND",
        "UNKNOWN_TOPIC_OR_PARTITION",
        "UNKNOWN_SERVER_ERROR",
    ]
    assert "999" in rows[3]["error"]
    assert rows[4]["error"] is None
    assert rows[5]["api"] == "key 2999"


def test_order_is_first_time_then_exchange_id_as_text():
    done = completed(
        {"n": 3, "request_first": START + 2500},
        {"n": 10, "request_first": START + 1000},
        {"n": 9, "request_first": START + 1999},  # the same microsecond as 10
        {"n": 0, "is_orphan": True},
    )
    assert [row["exchange_id"].split(":")[1] for row in rows_of(done, columns=["exchange_id"])] == [
        "10",
        "9",
        "3",
        "r0",
    ]


def test_only_the_columns_asked_for():
    builder = TableBuilder(connections(), {"exchanges": ["latency_ms", "api"]})
    table = builder.finished("exchanges", [builder.feed(completed({}))["exchanges"]])
    assert table.column_names == ["latency_ms", "api"]
    assert builder.message_paths == {}


def test_ids_of_many_connections():
    size = 300
    ids = np.random.default_rng(1).integers(0, 2**64, size, dtype=np.uint64)
    made = connections(*[{"id": int(value), "client": (f"10.0.{i % 7}.1", i)} for i, value in enumerate(ids)])
    order = np.random.default_rng(2).integers(0, size, 2000)
    done = completed(
        *[{"conn": int(c), "n": 10 ** (i % 18), "request_first": START + i * 1000} for i, c in enumerate(order)]
    )
    rows = rows_of(done, made, ["exchange_id", "client_ip", "client_port", "connection_id"])
    for i, (conn, row) in enumerate(zip(order.tolist(), rows, strict=True)):
        assert row["exchange_id"] == f"{ids[conn]:016x}:{10 ** (i % 18)}"
        assert row["connection_id"] == f"{ids[conn]:016x}"
        assert (row["client_ip"], row["client_port"]) == (f"10.0.{conn % 7}.1", conn)


def test_batches_are_plain_and_typed():
    builder = TableBuilder(connections(), {"exchanges": None})
    batch = builder.resolved("exchanges", builder.feed(completed({"request_first": NULL_TIME}, {}))["exchanges"])
    assert isinstance(batch, pa.RecordBatch)
    assert batch.num_rows == 2
    assert not any(pa.types.is_dictionary(kind) for kind in batch.schema.types)
    empty = builder.feed(completed())["exchanges"]
    assert builder.finished("exchanges", [empty]).num_rows == 0
    assert builder.resolved("exchanges", empty).num_rows == 0

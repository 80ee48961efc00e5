"""list_offsets, producer_ids, groups, api_versions, problems, capture_quality."""

import struct
from datetime import UTC, datetime

import numpy as np

from kdissect.kafka.completed import FILE_SHIFT, NULL_TIME, Problems, Quality
from kdissect.problems import Kind
from kdissect.tables.builder import TableBuilder
from tests.tables.made import START, completed, connections


def rows_of(name, done, made=None):
    builder = TableBuilder(made or connections(), {name: None})
    return builder.finished(name, [builder.feed(done)[name]]).to_pylist()


def test_list_offsets_joined():
    asked = [(0, -1), (1, -2), (1, 1_600_000_000_000), (2, -99), (3, -6)]
    given = [(1, 0, 5, -1), (0, 3, -1, -1), (1, 0, 77, 1_600_000_000_001)]
    done = completed(
        {"api_key": 2, "request_first": START, "response_last": START + 1_000_000},
        {"api_key": 2, "n": 1, "request_first": START + 5000},
        messages={
            (2, 0): {
                0: {
                    "replica_id": -1,
                    "isolation_level": 1,
                    "topics": [
                        {
                            "name": "t",
                            "partitions": [
                                {"partition_index": p, "timestamp": t, "current_leader_epoch": 6} for p, t in asked
                            ],
                        }
                    ],
                },
                1: {
                    "replica_id": -1,
                    "isolation_level": None,
                    "topics": [{"name": "old", "partitions": [{"partition_index": 0, "timestamp": -1}]}],
                },
            },
            (2, 1): {
                0: {
                    "topics": [
                        {
                            "name": "t",
                            "partitions": [
                                {
                                    "partition_index": p,
                                    "error_code": e,
                                    "offset": o,
                                    "timestamp": t,
                                    "leader_epoch": 6,
                                    "old_style_offsets": None,
                                }
                                for p, e, o, t in given
                            ],
                        }
                    ]
                },
                1: {
                    "topics": [
                        {
                            "name": "old",
                            "partitions": [
                                {
                                    "partition_index": 0,
                                    "error_code": 0,
                                    "offset": None,
                                    "timestamp": None,
                                    "leader_epoch": None,
                                    "old_style_offsets": [9, 0],
                                }
                            ],
                        }
                    ]
                },
            },
        },
    )
    rows = rows_of("list_offsets", done)
    picked = ("topic", "partition", "asked", "offset", "error_code")
    assert [tuple(row[name] for name in picked) for row in rows] == [
        ("t", 1, "earliest", 5, 0),
        ("t", 0, "latest", -1, 3),
        ("t", 1, "timestamp", 77, 0),
        ("t", 2, "special -99", None, None),
        ("t", 3, "earliest_pending_upload", None, None),
        ("old", 0, "latest", None, 0),
    ]
    assert rows[2]["timestamp_asked"] == datetime(2020, 9, 13, 12, 26, 40, tzinfo=UTC)
    assert rows[2]["timestamp"] == datetime(2020, 9, 13, 12, 26, 40, 1000, tzinfo=UTC)
    assert [row["timestamp_asked"] is None for row in rows] == [True, True, False, True, True, True]
    assert (rows[0]["timestamp"], rows[0]["leader_epoch"], rows[0]["current_leader_epoch"]) == (None, 6, 6)
    assert (rows[0]["isolation_level"], rows[0]["replica_id"], rows[0]["latency_ms"]) == (1, -1, 1.0)
    assert rows[5]["offsets"] == [9, 0]
    assert rows[0]["offsets"] is None


def test_a_time_outside_the_calendar_is_null_and_a_problem():
    def body(ms):
        return {
            "replica_id": -1,
            "isolation_level": 0,
            "topics": [{"name": "t", "partitions": [{"partition_index": 0, "timestamp": ms}]}],
        }

    builder = TableBuilder(connections(), {"list_offsets": None, "problems": None, "connections": None})
    done = completed({"api_key": 2, "request_last": START, "request_packet": 4}, messages={(2, 0): {0: body(2**62)}})
    batch = builder.feed(done)["list_offsets"]
    (row,) = builder.finished("list_offsets", [batch]).to_pylist()
    assert (row["timestamp_asked"], row["asked"]) == (None, "timestamp")
    made = builder.finish()
    assert made["connections"]["problems"].to_pylist() == [1]
    (problem,) = made["problems"].to_pylist()
    assert (problem["kind"], problem["exchange_id"], problem["frame"]) == ("timestamp", "000000000000abc0:0", 4)
    assert problem["where"] == "list_offsets.timestamp_asked"
    assert str(2**62) in problem["detail"]


def test_producer_ids():
    done = completed(
        {"api_key": 22, "request_first": START, "response_last": START + 2_000_000},
        {"api_key": 22, "n": 1, "request_first": START + 5000},
        messages={
            (22, 0): {
                0: {"transactional_id": "tx", "transaction_timeout_ms": 60000, "producer_id": -1, "producer_epoch": -1},
                1: {"transactional_id": None, "transaction_timeout_ms": 1, "producer_id": None, "producer_epoch": None},
            },
            (22, 1): {0: {"error_code": 0, "producer_id": 2**40, "producer_epoch": 3}},
        },
    )
    assert rows_of("producer_ids", done) == [
        {
            "exchange_id": "000000000000abc0:0",
            "connection_id": "000000000000abc0",
            "client_id": None,
            "transactional_id": "tx",
            "transaction_timeout_ms": 60000,
            "producer_id_asked": -1,
            "producer_epoch_asked": -1,
            "producer_id": 2**40,
            "producer_epoch": 3,
            "error_code": 0,
            "latency_ms": 2.0,
            "cluster": None,
        },
        {
            "exchange_id": "000000000000abc0:1",
            "connection_id": "000000000000abc0",
            "client_id": None,
            "transactional_id": None,
            "transaction_timeout_ms": 1,
            "producer_id_asked": None,
            "producer_epoch_asked": None,
            "producer_id": None,
            "producer_epoch": None,
            "error_code": None,
            "latency_ms": None,
            "cluster": None,
        },
    ]


def assignment(*topics, user=b"", version=1):
    out = struct.pack(">hi", version, len(topics))
    for name, parts in topics:
        out += struct.pack(">h", len(name)) + name.encode() + struct.pack(f">i{len(parts)}i", len(parts), *parts)
    return out + struct.pack(">i", len(user)) + user


def test_group_events():
    at = {"request_first": START, "error_count": 0}
    done = completed(
        at | {"api_key": 11, "n": 0, "client": 0},
        at | {"api_key": 14, "n": 1},
        at | {"api_key": 12, "n": 2},
        at | {"api_key": 12, "n": 3, "error_code": 27, "error_count": 1},
        at | {"api_key": 13, "n": 4, "error_first": 25, "error_count": 1},
        at | {"api_key": 8, "n": 5},
        at | {"api_key": 9, "n": 6, "error_first": 16, "error_count": 1},
        at | {"api_key": 68, "n": 7},
        at | {"api_key": 68, "n": 8, "error_code": 110, "error_count": 1},
        at | {"api_key": 1, "n": 9},
        {"api_key": 11, "is_orphan": True, "n": 0, "response_first": START + 9, "error_count": -1},
        client_ids=("c",),
        messages={
            (11, 0): {0: {"group_id": "g", "member_id": "", "protocol_type": "consumer"}},
            (11, 1): {
                0: {"member_id": "m-1", "generation_id": 4, "protocol_type": None, "protocol_name": "range"},
            },
            (14, 0): {
                1: {
                    "group_id": "g",
                    "member_id": "m-1",
                    "generation_id": 4,
                    "protocol_type": None,
                    "protocol_name": None,
                }
            },
            (14, 1): {1: {"protocol_type": None, "protocol_name": None, "assignment": assignment(("orders", [0, 1]))}},
            (12, 0): {i: {"group_id": "g", "member_id": "m-1", "generation_id": 4} for i in (2, 3)},
            (13, 0): {4: {"group_id": "g", "member_id": None, "members": [{"member_id": "m-1"}, {"member_id": "m-2"}]}},
            (13, 1): {4: {"members": [{"member_id": "m-2", "error_code": 25}, {"member_id": "m-1", "error_code": 0}]}},
            (8, 0): {5: {"group_id": "g", "member_id": "m-1", "generation_id_or_member_epoch": 4}},
            (9, 0): {
                6: {
                    "group_id": None,
                    "groups": [
                        {"group_id": "g", "member_id": None, "member_epoch": -1},
                        {"group_id": "h", "member_id": "x", "member_epoch": 7},
                    ],
                }
            },
            (9, 1): {6: {"groups": [{"group_id": "g", "error_code": 16}, {"group_id": "h", "error_code": 0}]}},
            (68, 0): {
                i: {"group_id": "n", "member_id": "u", "member_epoch": 5, "server_assignor": "uniform"} for i in (7, 8)
            },
            (68, 1): {
                7: {
                    "member_id": "u",
                    "member_epoch": 6,
                    "assignment": {"topic_partitions": [{"topic_id": "BxqN3Zk9QpWk2v9s8d7f6g", "partitions": [3]}]},
                },
                8: {"member_id": None, "member_epoch": 0, "assignment": None},
            },
        },
    )
    rows = rows_of("groups", done)
    picked = ("event", "group_id", "member_id", "client_id", "protocol", "generation", "error")
    assert [tuple(row[name] for name in picked) for row in rows] == [
        ("join", "g", "m-1", "c", "classic", 4, None),
        ("sync", "g", "m-1", None, "classic", 4, None),
        ("heartbeat", "g", "m-1", None, "classic", 4, "REBALANCE_IN_PROGRESS"),
        ("leave", "g", "m-1", None, "classic", None, None),
        ("leave", "g", "m-2", None, "classic", None, "UNKNOWN_MEMBER_ID"),
        ("offset_commit", "g", "m-1", None, None, 4, None),
        ("offset_fetch", "g", None, None, None, -1, "NOT_COORDINATOR"),
        ("offset_fetch", "h", "x", None, None, 7, None),
        ("consumer_heartbeat", "n", "u", None, "consumer", 6, None),
        ("consumer_heartbeat", "n", "u", None, "consumer", 5, "FENCED_MEMBER_EPOCH"),
        ("join", None, None, None, "classic", None, None),
    ]
    assert (rows[0]["assignor"], rows[0]["protocol_type"], rows[8]["assignor"]) == ("range", "consumer", "uniform")
    assert rows[1]["assigned_partitions"] == [{"topic": "orders", "topic_id": None, "partitions": [0, 1]}]
    assert rows[8]["assigned_partitions"] == [{"topic": None, "topic_id": "BxqN3Zk9QpWk2v9s8d7f6g", "partitions": [3]}]
    assert [row["assigned_partitions"] for i, row in enumerate(rows) if i not in (1, 8)] == [None] * 9
    assert rows[10]["exchange_id"].endswith(":r0")
    assert rows[10]["at"] == datetime.fromtimestamp(START // 10**9, UTC)
    assert (rows[0]["error_code"], rows[10]["error_code"]) == (0, None)


def test_topics_of_assignments_are_named():
    builder = TableBuilder(connections(), {"groups": ["assigned_partitions", "group_id"]})
    topic_id = "BxqN3Zk9QpWk2v9s8d7f6g"
    part = builder.feed(
        completed(
            {"api_key": 68},
            {"api_key": 68, "n": 1},
            {"api_key": 19, "n": 2},
            messages={
                (68, 1): {
                    0: {"assignment": None},
                    1: {"assignment": {"topic_partitions": [{"topic_id": topic_id, "partitions": [3]}]}},
                },
                (19, 1): {2: {"topics": [{"name": "orders", "topic_id": topic_id}]}},
            },
        )
    )["groups"]
    rows = builder.finished("groups", [part]).to_pylist()
    assert [row["assigned_partitions"] for row in rows] == [
        None,
        [{"topic": "orders", "topic_id": topic_id, "partitions": [3]}],
    ]


def offers(*versions, error=0):
    return {
        "error_code": error,
        "api_keys": [dict(zip(("api_key", "min_version", "max_version"), v, strict=True)) for v in versions],
    }


def test_api_versions():
    made = connections({}, {"broker": ("10.0.0.8", 9092)})
    builder = TableBuilder(made, {"api_versions": None})
    builder.feed(
        completed(
            {"api_key": 18, "api_version": 3, "response_last": START},
            {"api_key": 18, "api_version": 5, "n": 1, "response_last": START + 1},
            {"api_key": 1, "api_version": 12, "n": 2},
            {"api_key": 1, "api_version": 7, "n": 3},
            {"api_key": 1, "api_version": 17, "n": 0, "conn": 1},
            {"api_key": 999, "api_version": 300, "n": 1, "conn": 1},
            {"api_key": 1, "api_version": 18, "is_orphan": True},
            messages={(18, 1): {0: offers((1, 0, 11), (18, 0, 3)), 1: offers((18, 0, 4), error=35)}},
        )
    )
    builder.feed(
        completed(
            {"api_key": 18, "api_version": 0, "n": 9, "response_last": START + 5},
            messages={(18, 1): {0: offers((1, 4, 18))}},
        )
    )
    rows = builder.finish()["api_versions"].to_pylist()
    assert [tuple(row.values()) for row in rows] == [
        ("10.0.0.8:9092", 1, "Fetch", None, None, 17, 17, None),
        ("10.0.0.8:9092", 999, "key 999", None, None, 300, 300, None),
        ("10.0.0.9:9092", 1, "Fetch", 4, 18, 7, 12, None),
        ("10.0.0.9:9092", 18, "ApiVersions", 0, 3, 0, 5, None),
    ]


def test_problems_and_quality():
    made = connections({}, {"id": 0xF}, files=[["one", "two"]])
    found = Problems(
        kind=np.array([Kind.MISSING_BYTES, Kind.CAPTURE, Kind.TLS], np.int8),
        capture=np.array([-1, 0, -1], np.int32),
        conn=np.array([1, -1, 0], np.int32),
        n=np.array([7, -1, -1], np.int64),
        is_orphan=np.array([True, False, False]),
        at=np.array([START + 2000, NULL_TIME, START]),
        packet=np.array([5 | 1 << FILE_SHIFT, 0, -1]),
        where=np.array([0, -1, -1], np.int32),
        detail=np.array([1, 1, -1], np.int32),
        bytes=np.array([100, -1, -1]),
        texts=["response", "a hole"],
    )
    builder = TableBuilder(made, {"problems": None, "capture_quality": None})
    made_at_end = builder.finish([found], [Quality("a.pcap", None, "packets", 5.0, None)])
    assert [tuple(row.values()) for row in made_at_end["problems"].to_pylist()] == [
        (
            "a.pcap",
            "000000000000abc0",
            None,
            datetime.fromtimestamp(START // 10**9, UTC),
            None,
            None,
            "tls",
            None,
            None,
            None,
            None,
        ),
        (
            "a.pcap",
            "000000000000000f",
            "000000000000000f:r7",
            datetime.fromtimestamp(START // 10**9, UTC).replace(microsecond=2),
            "two",
            5,
            "missing_bytes",
            "response",
            "a hole",
            100,
            None,
        ),
        ("a.pcap", None, None, None, "one", None, "capture", None, "a hole", None, None),
    ]
    assert made_at_end["capture_quality"].to_pylist() == [
        {"capture": "a.pcap", "file": None, "measure": "packets", "value": 5.0, "text": None, "cluster": None}
    ]

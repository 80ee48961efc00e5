import pyarrow as pa

from kdissect.tables.builder import TableBuilder
from tests.kafka.records.building import batch as record_batch
from tests.tables.made import START, completed, connections, status

TOPIC_ID = "BxqN3Zk9QpWk2v9s8d7f6g"
OTHER_ID = "CxqN3Zk9QpWk2v9s8d7f6g"


def part(number, **more):
    return {
        "partition": number,
        "current_leader_epoch": 4,
        "fetch_offset": 100 + number,
        "last_fetched_epoch": -1,
        "log_start_offset": -1,
        "partition_max_bytes": 1000,
        **more,
    }


def back(number, **more):
    return {
        "partition_index": number,
        "error_code": 0,
        "high_watermark": 110,
        "last_stable_offset": 109,
        "log_start_offset": 5,
        "aborted_transactions": None,
        "preferred_read_replica": -1,
        "records_bytes": 0,
        "diverging_epoch": {"epoch": -1, "end_offset": -1},
        "current_leader": {"leader_id": -1, "leader_epoch": -1},
        **more,
    }


def request(topics, session=(0, -1), forgotten=(), by_id=False, **more):
    def topic(name, partitions):
        return {"topic": None if by_id else name, "topic_id": name if by_id else None, "partitions": partitions}

    return {
        "replica_id": -1,
        "replica_state": None,
        "max_wait_ms": 500,
        "min_bytes": 1,
        "max_bytes": 1 << 20,
        "isolation_level": 1,
        "session_id": session[0],
        "session_epoch": session[1],
        "topics": [topic(name, parts) for name, parts in topics],
        "forgotten_topics_data": [topic(name, list(parts)) for name, parts in forgotten],
        "rack_id": "r",
        **more,
    }


def response(topics, session=0, by_id=False, error=0):
    return {
        "error_code": error,
        "session_id": session,
        "responses": [
            {"topic": None if by_id else name, "topic_id": name if by_id else None, "partitions": parts}
            for name, parts in topics
        ],
    }


def tables(done, names=("fetches", "fetch_partitions")):
    builder = TableBuilder(connections(), dict.fromkeys(names))
    raw = builder.feed(done)
    return {name: builder.finished(name, [raw[name]]).to_pylist() for name in names}


def answered(n, **more):
    return {
        "n": n,
        "request_first": START + n * 1_000_000,
        "request_last": START + n * 1_000_000,
        "response_first": START + n * 1_000_000 + 500_000,
        "response_last": START + n * 1_000_000 + 600_000,
        "request_bytes": 50,
        "response_bytes": 60,
        "error_code": 0,
        **more,
    }


def test_wire_columns_of_a_fetch():
    done = completed(
        {"api_key": 3},
        answered(1, throttle_ms=7, client=0),
        client_ids=("reader",),
        messages={
            (1, 0): {1: request([("a", [part(0), part(1)]), ("b", [part(0)])], (77, 3), [("c", [4, 5])])},
            (1, 1): {1: response([("b", [back(0, records_bytes=300), back(9, error_code=1)])], 77)},
        },
    )
    (row,) = tables(done)["fetches"]
    expected = {
        "exchange_id": "000000000000abc0:1",
        "connection_id": "000000000000abc0",
        "broker": "10.0.0.9:9092",
        "client_id": "reader",
        "api_version": 12,
        "status": "ok",
        "replica_id": -1,
        "is_follower": False,
        "is_raft": False,
        "max_wait_ms": 500,
        "min_bytes": 1,
        "max_bytes": 1 << 20,
        "isolation_level": 1,
        "rack_id": "r",
        "request_session_id": 77,
        "session_epoch": 3,
        "request_kind": "incremental",
        "response_session_id": 77,
        "topics": ["a", "b", "c"],
        "partitions_sent": 3,
        "partitions_forgotten": 2,
        "partitions_returned": 2,
        "partitions_with_records": 1,
        "partitions_with_error": 1,
        "record_bytes": 300,
        "latency_ms": 0.6,
        "queued_ms": 0.0,
        "broker_ms": 0.5,
        "throttle_ms": 7.0,
        "error_code": 0,
        "request_bytes": 50,
        "response_bytes": 60,
    }
    assert {name: row[name] for name in expected} == expected
    for name in ("expected_epoch", "epoch_status", "session_outcome", "session_key", "hold", "excess_ms"):
        assert row[name] is None


def test_kinds_of_request_and_replicas():
    sessions = {"sessionless": (0, -1), "create": (0, 0), "replace": (9, 0), "close": (9, -1), "incremental": (9, 5)}
    bodies = {i: request([], session) for i, session in enumerate(sessions.values())}
    bodies[5] = request([], (9, 5), replica_id=None, replica_state={"replica_id": 3, "replica_epoch": 1})
    bodies[6] = request([("AAAAAAAAAAAAAAAAAAAAAQ", [part(0)])], by_id=True, replica_id=2)
    old = answered(7, api_version=4)
    bodies[7] = request([], (None, None), replica_id=1)
    done = completed(*[answered(i) for i in range(7)], old, answered(8), messages={(1, 0): bodies})
    rows = tables(done)["fetches"]
    assert [row["request_kind"] for row in rows] == [*sessions, "incremental", "sessionless", "sessionless", None]
    assert [row["is_follower"] for row in rows] == [False] * 5 + [True, True, True, None]
    assert [row["replica_id"] for row in rows][5:] == [3, 2, 1, None]
    assert [row["is_raft"] for row in rows] == [False] * 6 + [True, False, None]
    assert rows[8]["partitions_sent"] is None
    assert rows[0]["partitions_returned"] is None
    assert rows[0]["record_bytes"] is None


def test_both_sides_of_a_fetch_joined():
    sent = record_batch(b"", 0, base=5) + record_batch(b"", 0, base=6)
    done = completed(
        answered(0),
        messages={
            (1, 0): {0: request([("a", [part(0), part(1)]), ("b", [part(0)])], (77, 3), [("c", [4]), ("b", [0])])},
            (1, 1): {
                0: response(
                    [
                        ("b", [back(7, records_bytes=len(sent), records_at=0)]),
                        ("a", [back(1, high_watermark=150, aborted_transactions=[{"producer_id": 1}])]),
                    ],
                    77,
                )
            },
        },
        data=sent,
    )
    rows = tables(done)["fetch_partitions"]
    picked = ("topic", "partition", "position", "in_request", "in_response", "forgotten", "implied")
    assert [tuple(row[name] for name in picked) for row in rows] == [
        ("b", 7, 0, False, True, False, True),
        ("a", 1, 1, True, True, False, False),
        ("a", 0, None, True, False, False, False),
        ("b", 0, None, True, False, True, False),
        ("c", 4, None, False, False, True, False),
    ]
    assert rows[1]["lag"] == 150 - 101
    assert [row["lag"] for row in rows] == [None, 49, None, None, None]
    assert [row["batches"] for row in rows] == [2, 0, None, None, None]
    assert [row["record_bytes"] for row in rows] == [len(sent), 0, None, None, None]
    assert [row["fetch_offset"] for row in rows] == [None, 101, 100, 100, None]
    assert [row["error_code"] for row in rows] == [0, 0, None, None, None]
    assert [row["aborted_transactions"] for row in rows] == [None, 1, None, None, None]
    assert (rows[1]["current_leader_epoch"], rows[1]["log_start_offset"], rows[1]["broker_log_start_offset"]) == (
        4,
        -1,
        5,
    )
    assert (rows[1]["last_stable_offset"], rows[1]["preferred_read_replica"], rows[1]["diverging_epoch"]) == (
        109,
        -1,
        -1,
    )
    assert rows[0]["reason"] is None


def test_a_top_level_error_counts_for_every_partition():
    done = completed(
        answered(0, error_code=71, error_count=1, status=status("error")),
        answered(1, error_count=-1, error_code=-(2**31)),
        messages={
            (1, 0): {0: request([("a", [part(0), part(1)])], (5, 2)), 1: request([("a", [part(2)])], (5, 2))},
            (1, 1): {0: response([], 0, error=71)},
        },
    )
    made = tables(done)
    assert [row["error_code"] for row in made["fetches"]] == [71, None]
    rows = made["fetch_partitions"]
    assert [row["error_code"] for row in rows] == [71, 71, None]
    assert [row["in_response"] for row in rows] == [False, False, None]
    assert [row["implied"] for row in rows] == [False, False, None]
    assert [row["lag"] for row in rows] == [None, None, None]


def test_topic_ids_become_names_told_later():
    builder = TableBuilder(connections(), {"fetch_partitions": ["topic", "partition", "in_request"], "topics": None})
    first = builder.feed(
        completed(
            answered(0, api_version=13),
            messages={
                (1, 0): {0: request([(TOPIC_ID, [part(0)]), (OTHER_ID, [part(1)])], by_id=True)},
                (1, 1): {0: response([(TOPIC_ID, [back(0)])], by_id=True)},
            },
        )
    )["fetch_partitions"]
    before = builder.resolved("fetch_partitions", first).to_pylist()
    assert [row["topic"] for row in before] == [None, None]
    builder.feed(
        completed(
            answered(1, api_key=3),
            messages={
                (3, 1): {
                    0: {"topics": [{"name": "orders", "topic_id": TOPIC_ID, "partitions": [{"error_code": 0}] * 3}]}
                }
            },
        )
    )
    after = builder.finished("fetch_partitions", [first]).to_pylist()
    assert [(row["topic"], row["partition"], row["in_request"]) for row in after] == [
        ("orders", 0, True),
        (None, 1, True),
    ]
    known = builder.finish()["topics"].to_pylist()
    assert [(row["topic_id"], row["topic"], row["partitions"], row["source"]) for row in known] == [
        (TOPIC_ID, "orders", 3, "Metadata"),
        (OTHER_ID, None, None, "Fetch"),
    ]


def test_topics_of_a_fetch_by_name_and_by_id():
    """Names that are told later stand in place of ids, in lists that were cut, too; ids that none names stay."""
    builder = TableBuilder(connections(), {"fetches": ["topics"], "topics": None})
    fed = builder.feed(
        completed(
            answered(0),
            answered(1, api_version=13),
            answered(2, api_version=13),
            answered(3),
            answered(4),
            messages={
                (1, 0): {
                    1: request([(OTHER_ID, [part(1)])], (7, 3), [(TOPIC_ID, [0])], by_id=True),
                    2: request([], (7, 4), by_id=True),
                    3: request([("a", [part(0)]), ("a", [part(1)]), (TOPIC_ID, [])], forgotten=[("b", [])]),
                },
                (1, 1): {
                    1: response([(TOPIC_ID, [back(0)]), (OTHER_ID, [back(1)])], by_id=True),
                    2: response([], by_id=True),
                    4: response([("c", [back(0)])]),
                },
            },
        )
    )["fetches"]
    told = {"topics": [{"name": "orders", "topic_id": TOPIC_ID, "partitions": [{"error_code": 0}]}]}
    before = builder.resolved("fetches", fed).column("topics").to_pylist()
    builder.feed(completed(answered(5, api_key=3), messages={(3, 1): {0: told}}))
    expected = [None, [OTHER_ID, "orders"], [], ["a", TOPIC_ID, "b"], ["c"]]
    assert before == [None, [OTHER_ID, TOPIC_ID], [], ["a", TOPIC_ID, "b"], ["c"]]
    assert builder.finished("fetches", [fed])["topics"].to_pylist() == expected
    assert builder.finished("fetches", [fed.slice(1, 3)])["topics"].to_pylist() == expected[1:4]


def test_a_partition_named_twice_pairs_in_turn():
    done = completed(
        answered(0),
        answered(1),
        messages={
            (1, 0): {
                0: request([("a", [part(3, fetch_offset=1), part(3, fetch_offset=2)])]),
                1: request([("a", [part(3)])]),
            },
            (1, 1): {0: response([("a", [back(3, high_watermark=7), back(3, high_watermark=8)])])},
        },
    )
    rows = tables(done)["fetch_partitions"]
    assert [(row["fetch_offset"], row["high_watermark"], row["lag"]) for row in rows] == [
        (1, 7, 6),
        (2, 8, 6),
        (103, None, None),
    ]


def test_hostile_partition_numbers():
    done = completed(
        answered(0),
        messages={
            (1, 0): {0: request([("a", [part(2**31 - 1), part(-(2**31)), part(0)])])},
            (1, 1): {0: response([("a", [back(-(2**31)), back(2**31 - 1)])])},
        },
    )
    rows = tables(done)["fetch_partitions"]
    assert [(row["partition"], row["in_request"], row["in_response"]) for row in rows] == [
        (-(2**31), True, True),
        (2**31 - 1, True, True),
        (0, True, False),
    ]


def test_a_response_without_its_request():
    done = completed(
        answered(0, is_orphan=True, api_inferred=True, status=status("orphan"), request_first=-(2**63)),
        messages={(1, 1): {0: response([("a", [back(0)])])}},
    )
    made = tables(done)
    assert made["fetches"][0]["partitions_sent"] is None
    assert made["fetches"][0]["partitions_returned"] == 1
    (row,) = made["fetch_partitions"]
    assert (row["in_request"], row["in_response"], row["implied"], row["forgotten"]) == (None, True, None, None)


def test_nothing_at_all():
    builder = TableBuilder(
        connections(), {"fetches": None, "fetch_partitions": None, "list_offsets": None, "groups": None}
    )
    for name, batch in builder.feed(completed({"api_key": 0})).items():
        table = builder.finished(name, [batch])
        assert table.num_rows == 0
        assert not any(pa.types.is_dictionary(kind) for kind in table.schema.types)
        assert builder.finished(name, []).schema.equals(table.schema, check_metadata=True)


def test_projection_asks_only_for_what_is_read():
    builder = TableBuilder(connections(), {"fetches": ["exchange_id", "record_bytes", "max_wait_ms"]})
    assert builder.message_paths == {
        (1, 0): frozenset({"max_wait_ms"}),
        (1, 1): frozenset({"responses.partitions.records"}),
    }


def test_any_split_into_blocks_gives_the_same_tables():
    count = 6
    rows = [answered(i, client=i % 2) for i in range(count)]
    asked = {i: request([("a", [part(0), part(i)])], (7, i)) for i in range(count)}
    given = {i: response([("a", [back(i)])], 7) for i in range(count)}
    made = []
    for size in (1, 2, 5, 6):
        builder = TableBuilder(connections(), {"exchanges": None, "fetches": None, "fetch_partitions": None})
        parts: dict[str, list[pa.RecordBatch]] = {name: [] for name in builder.columns}
        for start in reversed(range(0, count, size)):
            inside = range(start, min(start + size, count))
            done = completed(
                *[rows[i] for i in inside],
                client_ids=("x", "y"),
                messages={
                    (1, 0): {i - start: asked[i] for i in inside},
                    (1, 1): {i - start: given[i] for i in inside},
                },
            )
            for name, batch in builder.feed(done).items():
                parts[name].append(batch)
        made.append({name: builder.finished(name, found) for name, found in parts.items()})
    for other in made[1:]:
        for name, table in made[0].items():
            assert table.equals(other[name]), name

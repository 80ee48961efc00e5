"""Connections: who the client is, and the rest of the table."""

from datetime import UTC, datetime

import communityid

from kdissect.tables.builder import TableBuilder
from tests.tables.made import START, S, completed, connections


def table(builder):
    return builder.finish()["connections"].to_pylist()


COMMUNITY_ID = communityid.CommunityID().calc(communityid.FlowTuple.make_tcp("10.0.0.1", "10.0.0.9", 50000, 9092))


def test_what_the_engine_counted():
    made = connections(
        {
            "id": 0x1234,
            "started": START + 1999,
            "lasted": 3 * S - 1999,
            "end_reason": 2,
            "closed_by": 2,
            "tls": 1,
            "packets": 10,
            "bytes": 2000,
            "retransmitted_bytes": 5,
            "duplicated_packets": 1,
            "out_of_order_packets": 2,
            "missing_bytes": 3,
            "zero_window_ns": 1_500_000,
            "rtt_ns": 250_001,
            "rtt_min_ns": 125_001,
            "rtt_max_ns": 80_000_001,
            "client_rtt_ns": 30_001,
            "rtt_kind": 3,
            "lost_segments": 7,
            "exchanges": 4,
            "problems": 6,
            "start_seen": False,
        },
        {"id": 0x0FFF, "started": START, "protocol": -1, "is_kafka": False},
    )
    made.sni[0] = "broker.example"
    builder = TableBuilder(made, {"connections": None})
    other, row = table(builder)
    assert other["connection_id"] == "0000000000000fff"
    assert (other["protocol"], other["tls"], other["rtt_ms"], other["is_kafka"]) == (None, None, None, False)
    assert row == {
        "connection_id": "0000000000001234",
        "capture": "a.pcap",
        "client_ip": "10.0.0.1",
        "client_port": 50000,
        "broker_ip": "10.0.0.9",
        "broker_port": 9092,
        "broker": "10.0.0.9:9092",
        "client_name": None,
        "broker_name": None,
        "community_id": COMMUNITY_ID,
        "started_at": datetime.fromtimestamp(START // S, UTC).replace(microsecond=1),
        "ended_at": datetime.fromtimestamp(START // S + 3, UTC),
        "start_seen": False,
        "end_reason": "rst",
        "closed_by": "broker",
        "is_kafka": True,
        "protocol": "Kafka",
        "client_id": None,
        "client_software_name": None,
        "client_software_version": None,
        "group_id": None,
        "sasl_mechanism": None,
        "principal": None,
        "tls": "TLS 1.3",
        "sni": "broker.example",
        "packets": 10,
        "bytes": 2000,
        "retransmitted_bytes": 5,
        "duplicated_packets": 1,
        "out_of_order_packets": 2,
        "missing_bytes": 3,
        "zero_window_ms": 1.5,
        "rtt_ms": 0.25,
        "rtt_min_ms": 0.125,
        "rtt_max_ms": 80.0,
        "client_rtt_ms": 0.03,
        "rtt_kind": "proven",
        "lost_segments": 7,
        "sights": [],
        "exchanges": 4,
        "problems": 6,
        "cluster": None,
    }


def test_the_first_that_tells_counts_whatever_the_order_of_blocks():
    software = [
        {"client_software_name": name, "client_software_version": v} for name, v in (("java", "4.3.1"), ("go", "1"))
    ]
    late = completed(
        {"api_key": 18, "n": 5, "client": 0},
        {"api_key": 17, "n": 6, "client": -1},
        client_ids=("late",),
        messages={(18, 0): {0: software[1]}, (17, 0): {1: {"mechanism": "SCRAM-SHA-256"}}},
    )
    early = completed(
        {"api_key": 18, "n": 1, "client": 1},
        {"api_key": 18, "n": 0, "client": -1},
        client_ids=("x", "early"),
        messages={(18, 0): {0: software[0], 1: {"client_software_name": None, "client_software_version": None}}},
    )
    for blocks in ((late, early), (early, late)):
        made = connections({}, {})
        made.principal[0] = "alice"
        made.sasl_mechanism.update({0: "PLAIN", 1: "PLAIN"})
        builder = TableBuilder(made, {"connections": None})
        for block in blocks:
            builder.feed(block)
        rows = table(builder)
        assert rows[0]["client_id"] == "early"
        assert (rows[0]["client_software_name"], rows[0]["client_software_version"]) == ("java", "4.3.1")
        assert [row["sasl_mechanism"] for row in rows] == ["SCRAM-SHA-256", "PLAIN"]
        assert [row["principal"] for row in rows] == ["alice", None]


def test_groups_by_own_requests_else_by_address_and_client_id():
    same, elsewhere = ("10.0.0.1", 1), ("10.0.0.2", 1)
    made = connections(
        {"client": same}, {"client": same}, {"client": elsewhere}, {"client": same}, {"client": same}, {"client": same}
    )
    done = completed(
        {"api_key": 11, "conn": 0, "client": 0},  # joins g1 as c1
        {"api_key": 1, "conn": 1, "client": 0},  # fetches from the same place as c1
        {"api_key": 1, "conn": 2, "client": 0},  # c1 of another host
        {"api_key": 9, "conn": 3, "client": 1},  # two groups
        {"api_key": 1, "conn": 4, "client": 1},
        {"api_key": 28, "conn": 5, "client": 2},  # a producer
        client_ids=("c1", "admin", "producer"),
        messages={
            (11, 0): {0: {"group_id": "g1"}},
            (9, 0): {3: {"group_id": None, "groups": [{"group_id": "g1"}, {"group_id": "g2"}]}},
            (28, 0): {5: {"group_id": "g1"}},
        },
    )
    builder = TableBuilder(made, {"connections": None})
    builder.feed(done)
    found = {row["connection_id"][-1]: row["group_id"] for row in table(builder)}
    assert [found[f"{0xABC0 + i:x}"[-1]] for i in range(6)] == ["g1", "g1", None, None, None, None]

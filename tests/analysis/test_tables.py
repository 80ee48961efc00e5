"""Latency, findings, comparison, membership and limits on recorded captures and small tables."""

from __future__ import annotations

import datetime
import io
import uuid
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from kdissect.analysis.cluster_stages import Stages
from kdissect.analysis.diff import diff, match, network, slower, versions
from kdissect.analysis.findings import FINDERS, LIMITS, findings
from kdissect.analysis.findings.finders import Seen
from kdissect.analysis.latency import latency
from kdissect.analysis.sessions import session_rules
from kdissect.analysis.sessions.membership import implied
from kdissect.analysis.sessions.shares import sessions_of, uses
from kdissect.analysis.sessions.tracker import SessionTracker
from kdissect.analysis.stage import Stage
from kdissect.arrays.rows import Rows
from kdissect.problems import UsageError
from kdissect.tables.declaration import SCHEMAS
from kdissect.tables.declaration.readers import FINDINGS
from kdissect.tables.where import parse
from tests.analysis.model import Broker, topics_bytes
from tests.analysis.read import analysed, rows
from tests.analysis.test_sessions import tracked
from tests.analysis.wire import made

NAME = "k4_slow_and_throttled"


@pytest.mark.parametrize("by", [(), ("api",), ("client", "broker"), ("api", "version", "hold"), ("topic",)])
def test_quantiles_are_numpys(by: tuple[str, ...]) -> None:
    found = analysed(NAME)
    table = latency(found["exchanges"], found["fetch_partitions"], by, None, found["fetches"])
    names = {"api": "api", "client": "client_id", "broker": "broker", "version": "api_version", "hold": "hold"}
    if by == ("topic",):
        assert sum(table["exchanges"].to_pylist()) >= found["exchanges"].num_rows
        return
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in found["exchanges"].to_pylist():
        groups.setdefault(tuple(row[names[name]] for name in by), []).append(row)
    assert table.num_rows == len(groups)
    for row in table.to_pylist():
        mine = groups[tuple(row[names[name]] for name in by)]
        values = [one["latency_ms"] for one in mine if one["latency_ms"] is not None]
        assert (row["exchanges"], row["answered"]) == (len(mine), len(values))
        if values:
            assert row["p99_ms"] == pytest.approx(np.quantile(values, 0.99))
            assert row["p50_ms"] == pytest.approx(np.quantile(values, 0.5))
            assert row["mean_ms"] == pytest.approx(np.mean(values))


def test_time_buckets_hold_every_exchange() -> None:
    exchanges = analysed(NAME)["exchanges"]
    table = latency(exchanges, by=("api",), every=1)
    assert sum(table["exchanges"].to_pylist()) == exchanges.num_rows
    assert all(at.microsecond == 0 for at in table["at"].to_pylist())
    assert latency(exchanges.slice(0, 0), every=1).num_rows == 0
    with pytest.raises(UsageError):
        latency(exchanges, by=("nothing",))


CAUSES = ("client", "network", "broker", "follower", "settings", "security", "capture", "unknown")


@pytest.mark.parametrize("name", [NAME, "k4_session_eviction", "k4_transactions", "k4_fetch_sessions_raw", "base"])
def test_a_findings_filter_shows_its_evidence(name: str) -> None:
    found = analysed(name)
    assert found["findings"].schema == SCHEMAS["findings"]
    for row in found["findings"].to_pylist():
        table = found[row["table"]].cast(
            pa.schema([SCHEMAS[row["table"]].field(column) for column in found[row["table"]].column_names])
        ) if row["table"] not in ("fetches", "fetch_partitions") else found[row["table"]]  # fmt: skip
        shown = table.filter(parse(row["filter"], SCHEMAS[row["table"]]).expression)
        assert shown.num_rows == row["count"] > 0
        assert row["severity"] in ("high", "medium", "low", "info")
        assert row["cause"] in CAUSES
        assert row["first_at"] is None or row["first_at"] <= row["last_at"]
        assert row["severity"] == "info" or row["incident"] is not None
        if row["first_exchange_id"] is not None:
            ids = [name for name in shown.column_names if name.endswith("exchange_id")]
            assert any(row["first_exchange_id"] in shown[name].to_pylist() for name in ids)


def test_finders_need_no_more_than_they_say() -> None:
    """With the columns that they are declared to read the findings are the same; without any table there are none."""
    whole = analysed(NAME)
    less = {
        name: table.select(
            [column for column in table.column_names if column in FINDINGS.tables.get(name, table.column_names)]
        )
        for name, table in whole.items()
    }
    assert findings(less).findings.equals(whole["findings"])
    assert findings({}).findings.num_rows == 0
    for finder in FINDERS:
        assert Seen({}, LIMITS).find(finder) == []


def exchange(n: int, **more: Any) -> dict[str, Any]:
    return {"exchange_id": f"{n % 50:016x}:{n}", "connection_id": f"{n % 50:016x}", "client_id": "c"} | more


def test_findings_about_clients() -> None:
    exchanges = [exchange(n, api_key=0, api="Produce", error_code=6, error="NOT_LEADER_OR_FOLLOWER") for n in range(3)]
    exchanges.append(exchange(3, api_key=3, api="Metadata", error_code=35))
    exchanges += [exchange(9 + n, api_key=18, api="ApiVersions", error_code=35, client_id=f"c{n}") for n in range(3)]
    exchanges.append(exchange(4, api_key=22, api="InitProducerId", error_code=90, client_id="it's"))
    exchanges.append(
        exchange(5, api_key=1, api="Fetch", response_transfer_ms=900.0, response_frame=77, response_file="a.pcap")
    )
    connections = [
        {
            "connection_id": f"{n:016x}", "client_ip": "10.0.0.1", "client_id": "c", "start_seen": True,
            "is_kafka": True, "end_reason": "fin", "exchanges": 2, "started_at": n, "ended_at": n + 1000,
            "zero_window_ms": 400.0 if n == 5 else 0.0, "client_port": n,
            "retransmitted_bytes": 4000 if n == 5 else 0,
        }
        for n in range(30)
    ]  # fmt: skip
    found = findings(
        {"exchanges": made("exchanges", exchanges), "connections": made("connections", connections)}
    ).findings
    asked = [row for row in found.to_pylist() if row["id"] == "unsupported_version"]
    assert [(row["severity"], row["count"]) for row in asked] == [("low", 1), ("info", 3)]
    assert asked[1]["text"].startswith("3 clients (c0, c1 and c2) asked 3 times for a version of ApiVersions")
    texts = {row["id"]: row for row in reversed(found.to_pylist())}
    assert (texts["stale_leader"]["count"], texts["stale_leader"]["client_id"]) == (3, "c")
    assert texts["stale_leader"]["text"] == "NOT_LEADER_OR_FOLLOWER: 3 answers (3 Produce of c)."
    assert texts["producer_fenced"]["filter"] == "client_id = 'it''s' and error_code in (47, 52, 90)"
    assert texts["short_connections"]["count"] == 30
    assert "frame 77 of a.pcap" in texts["network_stall"]["text"]
    assert found["id"][0].as_py() == "producer_fenced"


def test_findings_about_those_who_do_not_get_in() -> None:
    exchanges = [exchange(n, api_key=36, error_code=58, error="SASL_AUTHENTICATION_FAILED") for n in range(2)]
    exchanges.append(exchange(2, api_key=17, error_code=33, error="UNSUPPORTED_SASL_MECHANISM"))
    exchanges.append(exchange(3, api_key=3, error_code=29, error="TOPIC_AUTHORIZATION_FAILED", client_id=None))

    def connection(n: int, port: int, **more: Any) -> dict[str, Any]:
        shape = {
            "connection_id": f"{n:016x}", "client_ip": "10.0.0.1", "broker_ip": "10.0.0.2", "broker_port": port,
            "broker": f"10.0.0.2:{port}", "start_seen": True, "end_reason": "rst", "bytes": 0, "is_kafka": False,
        }  # fmt: skip
        return shape | more

    connections = [connection(n, 9092) for n in range(3)]  # SYN, RST
    connections.append(connection(3, 9092, bytes=99, is_kafka=True, exchanges=1, rtt_ms=1.0))
    connections.append(connection(4, 9092, rtt_ms=1.0))  # was accepted, and closed without a word
    connections.append(connection(5, 80))  # no broker
    connections.append(connection(6, 9093, broker="2"))  # named by metadata
    connections.append(connection(7, 9092, bytes=517, rtt_ms=1.0, protocol="tls"))
    connections.append(connection(8, 443, bytes=517, rtt_ms=1.0, protocol="tls"))
    tables = {"exchanges": made("exchanges", exchanges), "connections": made("connections", connections)}
    found = [(row["id"], row["count"], row["text"]) for row in findings(tables).findings.to_pylist()]
    assert [one[:2] for one in found] == [
        ("connections_refused", 3), ("connections_refused", 1), ("tls_to_plaintext", 1), ("login_failed", 3),
        ("not_authorized", 1),
    ]  # fmt: skip
    assert found[0][2].startswith("Port 9092 of 10.0.0.2 refused 3 connections: nothing listened there")
    assert found[1][2].startswith("Port 9093 of 10.0.0.2 (broker 2) refused 1 connection:")
    assert "SASL_AUTHENTICATION_FAILED and UNSUPPORTED_SASL_MECHANISM" in found[3][2]
    assert found[4][2].startswith("A client without an id was refused once for lack of permission")
    alone = findings({"connections": made("connections", [connection(0, 9092), connection(1, 80)])}).findings
    assert [(row["id"], row["count"]) for row in alone.to_pylist()] == [("connections_refused", 1)] * 2


def test_findings_about_members_of_groups() -> None:
    def beat(n: int, ms: float, connection: int, **more: Any) -> dict[str, Any]:
        shape = {"connection_id": f"{connection:016x}", "client_id": "c", "api": "JoinGroup", "api_key": 11}
        at = {"request_first_at": int(ms * 1000)}
        return shape | at | {"exchange_id": f"{connection:016x}:{n}", "error_code": 0} | more

    often = [beat(n, n * 1000, 1) for n in range(6)] + [beat(6, 6500, 1, error_code=79)]
    once = [beat(0, n, 10 + n, client_id="many") for n in range(20)]  # twenty members, each joined once
    shared = [beat(n, n, 40, client_id=f"shared-{n}") for n in range(20)]  # one connection, as through a proxy
    loop = [beat(n, n * 2, 2, api="Heartbeat", api_key=12) for n in range(100)]
    calm = [beat(n, n * 3000, 3, api="Heartbeat", api_key=12) for n in range(100)]
    unseen = [beat(n, 0, 4, request_first_at=None) for n in range(9)]
    tables = {"exchanges": made("exchanges", [*calm, *once, *shared, *often, *unseen, *loop])}
    found = [(row["id"], row["text"]) for row in findings(tables).findings.to_pylist()]
    assert [one[0] for one in found] == ["group_rebalances", "heartbeat_loop", "passing_error"]
    assert "Client c joined its group 6 times within 5.0 s" in found[0][1]
    assert "99 times less than 50 ms after" in found[1][1]


def test_findings_about_polling_and_lag() -> None:
    fetches, parts = [], []
    for n in range(300):
        at = 1_790_000_000_000_000 + n * 10_000
        fetches.append(
            exchange(n, broker="1", requested_at=at, request_last_at=at, response_first_at=at + 500, latency_ms=0.6,
                     broker_ms=0.5, record_bytes=0, error_code=0, is_follower=False, isolation_level=0, max_bytes=100,
                     partitions_with_error=0)
        )  # fmt: skip
        parts.append(
            exchange(n, topic="t", partition=0, lag=n * 50, high_watermark=100 + n * 50, record_bytes=10,
                     partition_max_bytes=10)
        )  # fmt: skip
    found = findings(
        {"fetches": made("fetches", fetches), "fetch_partitions": made("fetch_partitions", parts)}
    ).findings
    ids = [row["id"] for row in found.to_pylist()]
    assert {"empty_polling", "growing_lag", "limited_by_partition_max_bytes"} <= set(ids)


def test_the_same_capture_differs_in_nothing() -> None:
    found = analysed(NAME)
    tables = diff(found, found)
    assert tables["versions"].num_rows == 0
    assert {value for value in tables["latency"]["change_p50_ms"].to_pylist() if value is not None} <= {0.0}
    known = [key for key in found["exchanges"]["api_key"].to_pylist() if key is not None]
    assert sum(tables["network"]["exchanges"].to_pylist()) == len(known)


def test_two_vantage_points() -> None:
    """Near the client everything takes 4 ms longer, and its clock runs an hour behind."""
    hour = 3_600_000_000
    far, near = [], []
    for n in range(20):
        at = 1_790_000_000_000_000 + n * 10_000
        row = {
            "client_ip": "10.0.0.1", "client_port": 5000, "broker_ip": "10.0.0.2", "broker_port": 9092, "api_key": 1,
            "api": "Fetch", "api_version": 13, "correlation_id": n % 7, "client_id": "c", "broker": "1",
        }  # fmt: skip
        near.append(exchange(0, **row, request_first_at=at, request_last_at=at, broker_ms=6.0, latency_ms=6.5))
        there = at + hour + 2000
        far.append(exchange(1, **row, request_first_at=there, request_last_at=there, broker_ms=2.0, latency_ms=2.5))
    a, b = made("exchanges", near), made("exchanges", far)
    assert len(match(a, b)[0]) == 20
    (row,) = network(a, b).to_pylist()
    assert (row["exchanges"], row["nearer_to_client"]) == (20, "a")
    assert (row["round_trip_p50_ms"], row["latency_p50_ms"]) == (4.0, 4.0)
    assert row["clock_offset_ms"] == 3_600_000.0
    assert network(b, a).to_pylist()[0]["nearer_to_client"] == "b"
    assert network(a, a).to_pylist()[0]["nearer_to_client"] is None
    assert len(match(a, b.slice(0, 19))[0]) < 20


def test_what_got_slower_and_who_changed_versions() -> None:
    def side(ms: float, version: int) -> dict[str, pa.Table]:
        at = 1_790_000_000_000_000
        row = {"api": "Fetch", "api_key": 1, "api_version": version, "latency_ms": ms, "request_first_at": at}
        return {"exchanges": made("exchanges", [exchange(n, **row) for n in range(5)])}

    (row,) = slower(side(2.0, 12), side(5.0, 13)).to_pylist()
    assert (row["change_p50_ms"], row["ratio_p50"], row["exchanges_a"]) == (3.0, 2.5, 5)
    assert versions(side(2.0, 12), side(5.0, 13)).to_pylist() == [
        {"client_id": "c", "api": "Fetch", "versions_a": [12], "versions_b": [13]}
    ]


def test_implied_lists_what_is_not_named() -> None:
    broker = Broker()
    keys = [("t", None, n) for n in range(6)]
    number = broker.ask(0, 0, dict.fromkeys(keys[:5], 0), version=11, new_id=7)
    broker.ask(number, 1, {keys[5]: 0, keys[0]: 4}, [keys[1]], version=11)
    broker.ask(number, 2, {}, [keys[2]], version=11)
    fetches, parts = broker.rows.tables()
    found = tracked([(fetches, parts, None)])
    for row in found["fetches"].to_pylist()[1:]:
        table = implied(row["exchange_id"], found["fetches"], found["partitions"], found["stays"])
        assert table.num_rows == row["implied_partitions"]
    assert sorted(table["partition"].to_pylist()) == [0, 3, 4, 5]
    with pytest.raises(UsageError):
        implied("x:1", found["fetches"], found["partitions"], found["stays"])


def test_bytes_avoided_are_those_of_an_encoder() -> None:
    """The Topics field of kio's full request, byte for byte."""
    from kio.serial import entity_writer
    from kio.static.primitive import i32, i32Timedelta, i64

    for version in (12, 13, 17):
        module = __import__(f"kio.schema.fetch.v{version}.request", fromlist=["x"])
        sizes = []
        for count in (0, 200):
            parts = tuple(
                module.FetchPartition(
                    partition=i32(n), fetch_offset=i64(1), log_start_offset=i64(-1), partition_max_bytes=i32(1)
                )
                for n in range(count)
            )
            named = {"topic_id": uuid.uuid4()} if version >= 13 else {"topic": "topic-name"}
            topics = (module.FetchTopic(partitions=parts, **named),) if count else ()
            more = {} if version >= 15 else {"replica_id": i32(-1)}

            wait = i32Timedelta.parse(datetime.timedelta(milliseconds=500))
            request = module.FetchRequest(
                max_wait=wait, min_bytes=i32(1), session_id=i32(1), session_epoch=i32(1), topics=topics,
                forgotten_topics_data=(), rack_id="", **more,
            )  # fmt: skip
            out = io.BytesIO()
            entity_writer(module.FetchRequest)(out, request)
            sizes.append(out.tell())
        keys = [("topic-name", "x" if version >= 13 else None, n) for n in range(200)]
        assert sizes[1] - sizes[0] == topics_bytes(version, keys) - topics_bytes(version, [])


def test_memory_is_bounded_by_giving_up_what_is_unused(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker()
    ids = [broker.ask(0, 0, {("t", None, n): 0 for n in range(10)}, version=11, new_id=100 + k) for k in range(50)]
    broker.ask(ids[0], 1, version=11)
    broker.ask(ids[-1], 1, version=11)
    fetches, parts = broker.rows.tables()
    monkeypatch.setattr(session_rules, "MAX_LIVE_SESSIONS", 20)
    monkeypatch.setattr(session_rules, "MAX_LIVE_PARTITIONS", 100)
    tracker = SessionTracker()
    found = tracker.feed(Rows.of(fetches), Rows.of(parts))
    count = tracker.state.count
    assert count.live_sessions <= 20
    assert count.live_stays <= 100
    last = found.fetches.table().to_pylist()[-2:]
    assert [row["epoch_status"] for row in last] == ["unknown_start", "ok"]
    assert [row["implied_partitions"] for row in last] == [None, 10]
    ended = found.sessions.table().to_pylist() + tracker.finish().sessions.table().to_pylist()
    assert len(ended) == 51
    assert {row["end_reason"] for row in ended} == {"open"}


def test_share_sessions_end_in_every_way() -> None:
    """Created, replaced, lost with the connection, unknown to the broker, left open."""
    sent = [
        # connection, epoch, error
        (1, 0, 0), (1, 1, 0), (1, 0, 0), (2, 1, 0), (2, 2, 122), (2, 0, 133), (2, 0, 0), (2, 5, 123), (2, 1, 0),
    ]  # fmt: skip
    exchanges, requests, responses = [], [], []
    for n, (connection, epoch, error) in enumerate(sent):
        name = f"{connection:016x}:{n}"
        exchanges.append({"exchange_id": name, "broker": "1", "request_last_at": 1_790_000_000_000_000 + n})
        requests.append({"exchange_id": name, "group_id": "g", "member_id": "m", "share_session_epoch": epoch})
        responses.append({"exchange_id": name, "error_code": error})
    messages = {
        ("ShareFetch", "request"): pa.Table.from_pylist(requests),
        ("ShareFetch", "response"): pa.Table.from_pylist(responses),
    }
    table = sessions_of([uses(made("exchanges", exchanges), messages)]).to_pylist()
    assert [(row["first_epoch"], row["last_epoch"], row["requests"], row["end_reason"]) for row in table] == [
        (0, 1, 3, "replaced"), (0, 0, 1, "disconnected"), (1, 1, 2, "evicted"), (0, 1, 3, "open"),
    ]  # fmt: skip


def test_a_stage_asks_for_what_it_needs() -> None:
    assert Stage({"exchanges": ["exchange_id"], "fetches": ["latency_ms"]}).idle
    assert not Stage({"fetches": ["hold"]}).idle
    for asked in ({"fetches": ["session_key"]}, {"exchanges": ["hold"]}, {"fetch_sessions": None}, {"findings": None}):
        stage = Stages(asked)
        tables = {
            name: analysed(NAME)[name].select(sorted(columns & set(SCHEMAS[name].names)))
            for name, columns in stage.tables.items()
        }
        out = stage.analyse_tables(tables)
        for name in asked:
            assert out[name].num_rows
    assert rows(NAME, "fetch_sessions")

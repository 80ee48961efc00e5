"""What the TOMLs of the hand-made captures (`raw_*`, `sasl_*`, `not_kafka`) say, as the tables say it."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from typing import Any

import pytest

from tests.oracle.material import material

pytestmark = pytest.mark.oracle

Row = dict[str, Any]


def exchanges(name: str) -> list[Row]:
    """In order of the request's arrival, pipelined ones as they stood."""
    return sorted(material(name).exchanges, key=lambda r: (r["request_first_at"] or datetime.max, _ordinal(r)))


def _ordinal(row: Row) -> tuple[str, int]:
    connection, _, n = row["exchange_id"].partition(":")
    return connection, int(n.lstrip("r"))


def table(name: str, which: str) -> list[Row]:
    rows: list[Row] = material(name).capture.table(which).to_pylist()
    return rows


def test_acks_0() -> None:
    rows = exchanges("raw_acks0")
    assert len(rows) == 210
    assert sum(r["response_bytes"] is not None for r in rows) == 7
    produced = [r for r in rows if r["api"] == "Produce"]
    assert len(produced) == 204
    assert {r["api_version"] for r in produced} == {7}
    answered = [r["correlation_id"] for r in produced if r["status"] != "no_response"]
    assert answered == [1201]
    assert {r["status"] for r in produced} <= {"no_response", "ok"}
    by_id = {r["correlation_id"]: r for r in rows if r["correlation_id"] >= 1000}
    assert [by_id[n]["response_bytes"] is not None for n in range(1200, 1204)] == [False, True, False, True]
    assert sum(1000 <= r["correlation_id"] < 1200 for r in produced) == 200
    assert by_id[1300]["status"] == "no_response"


def test_cuts() -> None:
    rows = exchanges("raw_cuts")
    whole = [r for r in rows if r["status"] == "ok"]
    assert [r["correlation_id"] for r in whole if r["client_id"] != "raw-setup"] == [2, 3, 4, 5, 6, 7, 8]
    dribble = next(r for r in rows if r["client_id"] == "raw-dribble")
    assert (dribble["api"], dribble["api_version"], dribble["request_bytes"]) == ("Produce", 7, 145)
    assert dribble["request_transfer_ms"] > 0
    half = next(r for r in rows if r["client_id"] == "raw-half-close")
    assert half["status"] == "ok"
    gone = [r for r in rows if r["correlation_id"] == 9]
    assert all(r["status"] == "partial" and r["request_last_at"] is None for r in gone)
    assert any(p["kind"] == "unfinished_frame" for p in table("raw_cuts", "problems")) or gone


def test_errors() -> None:
    rows = exchanges("raw_errors")
    connections = table("raw_errors", "connections")
    assert sum(c["exchanges"] > 0 for c in connections) >= 22
    second = [r for r in rows if r["correlation_id"] == 2 and r["client_id"] == "raw-errors"]
    refused = {(r["api"], r["api_version"]) for r in second if r["status"] == "unanswered"}
    assert {("Metadata", 99), ("Produce", 0), ("Fetch", 0), ("key 999", 0), ("LeaderAndIsr", 7), ("Vote", 0)} <= refused
    (versions,) = [r for r in rows if r["api"] == "ApiVersions" and r["api_version"] == 99]
    assert (versions["error_code"], versions["error"]) == (35, "UNSUPPORTED_VERSION")
    (answer,) = [
        m
        for m in material("raw_errors").capture.messages("ApiVersions", "response").to_pylist()
        if m["exchange_id"] == versions["exchange_id"]
    ]
    assert [(k["api_key"], k["min_version"], k["max_version"]) for k in answer["api_keys"]] == [(18, 0, 4)]
    errors = {(r["api"], r["error_code"]) for r in second if r["status"] == "error"}
    assert {("Produce", 2), ("Produce", 3), ("Fetch", 1), ("ListOffsets", 3), ("Metadata", 17)} <= errors
    (left_over,) = [p for p in table("raw_errors", "problems") if p["kind"] == "trailing_bytes"]
    (trailing,) = [r for r in rows if r["exchange_id"] == left_over["exchange_id"]]
    assert (trailing["api"], trailing["status"], left_over["bytes"]) == ("Metadata", "ok", 14)
    assert trailing["response_bytes"] is not None
    lengths = [p for p in table("raw_errors", "problems") if p["kind"] == "bad_length"]
    assert len(lengths) >= 3, "frame lengths 200000000, -1, 2147483647 (0 closes the connection too)"
    assert all((r["request_bytes"] or 0) < 10_000 for r in rows), "a lying length is no request"


def test_ids() -> None:
    rows = exchanges("raw_ids")
    zero = [r for r in rows if r["client_id"] == "raw-zero"]
    asked = [("ApiVersions", 2), ("Metadata", 5), ("ListOffsets", 2), ("Fetch", 11), ("Metadata", 5)]
    assert [(r["api"], r["api_version"]) for r in zero] == asked
    assert {(r["correlation_id"], r["request_frame"]) for r in zero} == {(0, 15)}
    answers = [r["response_frame"] for r in zero]
    assert answers == sorted(answers)
    assert {r["status"] for r in zero} == {"ok"}
    wrap = [-5, -1, -(2**31), 2**31 - 2, 2**31 - 1, -(2**31), -(2**31) + 1]
    assert [r["correlation_id"] for r in rows if r["client_id"] == "raw-wrap"] == [*wrap, *wrap[-4:]]
    clients = {r["client_id"] for r in rows}
    assert {None, "", "клиент-日本-✓", "x" * 300, "with\nnewline\tand\0nul"} <= clients
    assert any(c and c.endswith("raw") and "\ufffd" in c for c in clients), "bytes that are no text are shown as such"
    pipeline = [r for r in rows if r["client_id"] == "raw-pipeline"]
    assert [r["correlation_id"] for r in pipeline] == list(range(100, 120))
    assert {r["request_frame"] for r in pipeline} == {136}
    assert max(r["in_flight"] for r in pipeline) == 20


def test_reuse() -> None:
    connections = [c for c in table("raw_reuse", "connections") if c["client_port"] == 39099]
    assert len(connections) == 5
    assert len({c["connection_id"] for c in connections}) == 5
    assert all(c["start_seen"] for c in connections)
    by_connection: dict[str, list[Row]] = {}
    for row in exchanges("raw_reuse"):
        by_connection.setdefault(row["connection_id"], []).append(row)
    assert sum(map(len, by_connection.values())) == 8
    seen = []
    for n, connection in enumerate(sorted(connections, key=lambda c: c["started_at"])):
        mine = by_connection[connection["connection_id"]]
        assert {r["client_id"] for r in mine} == {f"raw-reuse-{n}"}
        assert {r["status"] for r in mine} <= {"ok", "error"}
        seen.append([r["correlation_id"] for r in mine])
    assert seen == [[500, 600], [501, 601], [502, 602], [503], [504]]


def test_zero_window() -> None:
    (row,) = [r for r in exchanges("raw_zerowindow") if r["correlation_id"] == 1 and r["api"] == "Fetch"]
    assert row["response_bytes"] in (405904, 405908)
    assert 2900 < row["response_transfer_ms"] < 3200
    (connection,) = table("raw_zerowindow", "connections")
    assert 2500 < connection["zero_window_ms"] < 3200
    assert connection["retransmitted_bytes"] > 0


def test_not_kafka() -> None:
    connections = table("not_kafka", "connections")
    assert len(connections) == 40
    assert not any(c["is_kafka"] for c in connections)
    assert sum(c["broker_port"] == 9092 for c in connections) == 20
    assert exchanges("not_kafka") == []
    known = {c["protocol"] for c in connections if c["protocol"]}
    assert "Kafka" not in known


def test_sasl_logins() -> None:
    rows = exchanges("sasl_logins")
    logins = [r for r in rows if r["api"] == "SaslHandshake"]
    assert Counter(r["api_version"] for r in logins) == {1: 23}
    assert len({r["connection_id"] for r in logins}) == 23
    assert {r["api_version"] for r in rows if r["api"] == "SaslAuthenticate"} == {1, 2}
    connections = [c for c in table("sasl_logins", "connections") if c["sasl_mechanism"]]
    assert len(connections) == 23
    trips = Counter(r["connection_id"] for r in rows if r["api"] == "SaslAuthenticate")
    for connection in connections:
        scram = connection["sasl_mechanism"] == "SCRAM-SHA-256"
        assert trips[connection["connection_id"]] == (2 if scram else 1)
        if connection["principal"] is not None:
            people = {"PLAIN": "alice", "SCRAM-SHA-256": "bob", "OAUTHBEARER": "carol"}
            assert connection["principal"] == people[connection["sasl_mechanism"]]
    answers = material("sasl_logins").capture.messages("SaslAuthenticate", "response").to_pylist()
    mechanism = {c["connection_id"]: c["sasl_mechanism"] for c in connections}
    for answer in answers:
        assert answer["auth_bytes"] is None
        bearer = mechanism[answer["exchange_id"].partition(":")[0]] == "OAUTHBEARER"
        assert (answer["session_lifetime_ms"] > 0) is bearer


def test_sasl_old() -> None:
    rows = exchanges("sasl_old")
    logins = [r for r in rows if r["api"] == "SaslHandshake"]
    assert Counter(r["api_version"] for r in logins) == {0: 10}
    assert len({r["connection_id"] for r in logins}) == 10
    assert all(r["api"] and not r["api"].startswith("key") for r in rows), "no token is taken for a request"
    plain = [r for r in rows if r["client_id"] == "raw-v0-plain"]
    assert [r["api"] for r in plain] == ["SaslHandshake", "Metadata", "Produce"]
    assert [r["correlation_id"] for r in plain] == [1, 2, 3]
    scram = [r["api"] for r in rows if r["client_id"] == "raw-v0-scram"]
    assert scram[:2] == ["ApiVersions", "SaslHandshake"]
    assert {r["status"] for r in rows} <= {"ok", "error"}
    mechanisms = {c["sasl_mechanism"] for c in table("sasl_old", "connections") if c["sasl_mechanism"]}
    assert mechanisms == {"PLAIN", "SCRAM-SHA-256"}


SECRETS = [b"alice-test", b"bob-test", b"carol-test", b"test-password"]


@pytest.mark.parametrize("name", ["sasl_logins", "sasl_old", "k4_admin_sweep", "sweep_391_kraft", "tls12"])
def test_no_secret_is_shown(name: str) -> None:
    """No password of the recordings stands in any table."""
    text = repr([t.to_pylist() for t in material(name).capture.tables().values()]).encode()
    for secret in SECRETS:
        assert secret not in text

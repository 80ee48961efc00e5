"""What the TOMLs of the cluster's captures (`k4_*`) and of the clients say, as tables and messages say it."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

import pytest

from tests.oracle.material import material

pytestmark = pytest.mark.oracle

Row = dict[str, Any]


@cache
def messages(name: str, api: str, side: str) -> list[Row]:
    """Messages with what `exchanges` knows of them, in order of arrival."""
    rows = {r["exchange_id"]: r for r in material(name).exchanges}
    found = material(name).capture.messages(api, side).to_pylist()
    found = [m | {"row": rows[m["exchange_id"]]} for m in found]
    return sorted(found, key=lambda m: m["row"]["request_first_at"] or m["row"]["response_first_at"])


def codes(value: Any) -> Counter[int]:
    """Every error code in a message that is not 0."""
    out: Counter[int] = Counter()
    if isinstance(value, dict):
        for name, item in value.items():
            if name.endswith("error_code"):
                out += Counter([item] if item else [])
            elif name != "row":
                out += codes(item)
    elif isinstance(value, list):
        for item in value:
            out += codes(item)
    return out


def errors(name: str, api: str) -> Counter[int]:
    return sum((codes(m) for m in messages(name, api, "response")), Counter())


SAID = [
    (name, key.split(" ")[0], int(key.split(" ")[6]), n)
    for name in (
        "k4_admin_sweep", "k4_fetch_sessions_raw", "k4_follower_sessions", "k4_java_classic", "k4_list_offsets_raw",
        "k4_mtu1500", "k4_python_kafka", "k4_session_eviction", "k4_share_group", "k4_slow_and_throttled",
        "k4_transactions",
    )
    for key, n in material(name).toml["shows"].items()
    if "answers or partitions with error" in key
]  # fmt: skip


@pytest.mark.parametrize(("name", "api", "code", "times"), SAID)
def test_errors_answered(name: str, api: str, code: int, times: int) -> None:
    """As often as the brokers' log says, but for what they logged of answers that this capture does not have."""
    entries, unlogged = logged(name)
    found = sum(codes(m)[code] for m in messages(name, api, "response") if m["exchange_id"] not in unlogged)
    outside = sum(codes(m["response"])[code] for m in entries if m["api"] == api and m["outside"])
    assert found == times - outside


@cache
def logged(name: str) -> tuple[list[Row], frozenset[str]]:
    """Logged answers, whether the capture lacks them (forwarded, early, late); and exchanges that are not logged."""
    from tests.oracle.test_request_logs import matched

    it = material(name)
    names = {r["api_key"]: r["api"] for r in it.exchanges}
    result = matched(it)
    pairs = [(e, row["response_last_at"] is None) for e, row in result.pairs] + [(e, True) for e in result.logged_only]
    entries = [{"api": names.get(e.key), "response": e.response or {}, "outside": outside} for e, outside in pairs]
    return entries, frozenset(row["exchange_id"] for row in result.wire_only)


def test_sessions_by_hand() -> None:
    name = "k4_fetch_sessions_raw"
    asked = [m for m in messages(name, "Fetch", "request") if (m["row"]["client_id"] or "").startswith("raw-")]
    answers = {m["exchange_id"]: m for m in messages(name, "Fetch", "response")}
    for version in range(7, 19):
        mine = [m for m in asked if m["row"]["client_id"] == f"raw-v{version}" and m["api_version"] == version]
        created = [m for m in mine if (m["session_id"], m["session_epoch"]) == (0, 0)]
        assert created
        assert any(answers[m["exchange_id"]]["session_id"] > 0 for m in created)
    top = Counter(
        a["error_code"] for a in answers.values() if a["row"]["client_id"] in {m["row"]["client_id"] for m in asked}
    )
    assert (top[71], top[70]) == (12, 28)
    assert top[106] == 2
    unanswered = [r for r in material(name).exchanges if r["api"] == "Fetch" and r["api_version"] == 99]
    assert [r["status"] for r in unanswered] == ["unanswered"]
    mix = [r for r in material(name).exchanges if r["client_id"] == "raw-mix" and r["api"] == "Fetch"]
    assert len({r["request_frame"] for r in mix}) < len(mix), "three requests in one segment"
    (versions,) = [r for r in material(name).exchanges if (r["api"], r["api_version"]) == ("ApiVersions", 99)]
    assert (versions["error_code"], versions["response_bytes"]) == (35, 20)


def test_list_offsets_by_hand() -> None:
    rows = [r for r in material("k4_list_offsets_raw").exchanges if r["api"] == "ListOffsets"]
    counts = Counter(r["api_version"] for r in rows)
    assert set(counts) == set(range(1, 12))
    assert all(counts[v] in (10, 11) for v in range(1, 11))
    assert counts[11] == 12
    table = material("k4_list_offsets_raw").capture.table("list_offsets").to_pylist()
    refused = [r for r in table if r["error_code"] == 35]
    assert refused
    assert {r["offset"] for r in refused} == {-1}
    assert {42, 75, 6} <= {r["error_code"] for r in table}
    assert {r["asked"] for r in table if r["asked"]} >= {"earliest", "latest", "max_timestamp"}


def test_classic_consumers() -> None:
    name = "k4_java_classic"
    assert errors(name, "JoinGroup")[79] == 2
    assert errors(name, "Heartbeat")[27] == 2
    closed = Counter(m["row"]["client_id"] for m in messages(name, "Fetch", "request") if m["session_epoch"] == -1)
    assert closed == {"jc-consumer-1": 3, "jc-static": 3, "jc-assign": 3, "jc-consumer-2": 1}
    forgotten = [m for m in messages(name, "Fetch", "request") if m["forgotten_topics_data"]]
    assert sum(m["row"]["client_id"] == "jc-assign" for m in forgotten) == 1
    notes = [
        (topic["name"], part["partition_index"], part["committed_offset"], part["committed_metadata"])
        for m in messages(name, "OffsetCommit", "request")
        if m["row"]["client_id"] == "jc-consumer-1"
        for topic in m["topics"]
        for part in topic["partitions"]
        if part["committed_metadata"] == "half-way note"
    ]
    assert [note[1:3] for note in notes] == [(0, 50)]


def test_share_group() -> None:
    name = "k4_share_group"
    begun = [m for m in messages(name, "ShareFetch", "request") if m["share_session_epoch"] == 0]
    ended = [m for m in messages(name, "ShareAcknowledge", "request") if m["share_session_epoch"] == -1]
    assert (len(begun), len(ended)) == (4, 4)
    assert len({m["row"]["connection_id"] for m in begun}) == 4
    types = [
        batch["acknowledge_types"]
        for api in ("ShareFetch", "ShareAcknowledge")
        for m in messages(name, api, "request")
        for topic in m["topics"]
        for part in topic["partitions"]
        for batch in part["acknowledgement_batches"]
    ]
    assert [1, 2, 3, 1, 1, 1, 2, 3, 1, 1] in types
    assert types.count([4]) == 1
    assert errors(name, "ShareGroupDescribe")[69] >= 1


def test_slow_and_throttled() -> None:
    name = "k4_slow_and_throttled"
    rows = material(name).exchanges
    throttled = [r for r in rows if r["client_id"] == "sl-throttled" and r["api"] == "Fetch" and r["throttle_ms"]]
    assert len(throttled) == 11
    assert all(400 <= r["throttle_ms"] <= 1100 for r in throttled)
    produced = [r["throttle_ms"] for r in rows if r["client_id"] == "sl-thr-producer" and r["api"] == "Produce"]
    assert sorted(t for t in produced if t) == [6053, 14018]
    assert all(r["status"] == "no_response" for r in rows if r["client_id"] == "sl-acks0" and r["api"] == "Produce")
    deleted = [r for r in rows if r["client_id"] == "sl-deleted-topic" and r["api"] == "Fetch"]
    assert {r["api_version"] for r in deleted} == {12, 18}
    fallen = next(n for n, r in enumerate(deleted) if r["error_code"] == 106)
    assert {r["api_version"] for r in deleted[: fallen + 1]} == {18, 12}
    assert sum(r["error_code"] == 3 for r in deleted[fallen:]) > 15
    sizes = [
        part["records_bytes"] or 0
        for m in messages(name, "Fetch", "response")
        for topic in m["responses"]
        for part in topic["partitions"]
    ]
    assert max(sizes) == 400740


def test_transactions() -> None:
    name = "k4_transactions"
    aborted = {
        (part["partition_index"], gone["first_offset"])
        for m in messages(name, "Fetch", "response")
        if m["row"]["client_id"] == "tx-read-committed"
        for topic in m["responses"]
        for part in topic["partitions"]
        for gone in part["aborted_transactions"] or []
    }
    assert aborted >= {(0, 4), (1, 3), (1, 5), (0, 11), (0, 13), (0, 15)}
    assert errors(name, "Produce")[47] >= 1
    adders = {m["row"]["client_id"] for m in messages(name, "AddPartitionsToTxn", "request")}
    assert all(client.startswith("AddPartitionsManager") for client in adders)


def test_follower_sessions() -> None:
    name = "k4_follower_sessions"
    given = {m["session_id"] for m in messages(name, "Fetch", "response")}
    assert given >= {796715330, 1395107572, 465876338, 111934873, 901970875, 573676980, 200372921, 348221720}
    raft = [m for m in messages(name, "Fetch", "request") if m["row"]["broker_port"] in (19094, 19095, 19096)]
    assert {(m["session_id"], m["session_epoch"]) for m in raft} == {(0, -1)}
    assert {t["topic_id"] for m in raft for t in m["topics"]} == {"AAAAAAAAAAAAAAAAAAAAAQ"}
    assert any(r["api"] == "Envelope" for r in material(name).exchanges)


def test_evictions() -> None:
    name = "k4_session_eviction"
    fill = [m for m in messages(name, "Fetch", "response") if m["row"]["client_id"] == "raw-evict-fill"]
    given = [m["session_id"] for m in fill if m["session_id"]]
    assert len(fill) == 14
    assert sorted(given) == [
        226464021, 363077208, 570616887, 806469621, 1337494639, 1485889109, 1663065288, 1900192278,
    ]  # fmt: skip
    more = [m for m in messages(name, "Fetch", "response") if m["row"]["client_id"] == "raw-evict-more"]
    assert sum(m["error_code"] == 70 for m in more) == 8


def test_mtu() -> None:
    rows = material("k4_mtu1500").exchanges
    assert {r["status"] for r in rows} <= {"ok", "error"}
    assert all(r["response_bytes"] for r in rows)


@pytest.mark.parametrize(
    ("name", "committed"),
    [
        ("zoo_franz_go", {42, 58}), ("zoo_kafka_python", {34, 66}), ("zoo_kafkajs", {41, 59}),
        ("zoo_librdkafka", {36, 64}), ("zoo_sarama_010", {49, 51}),
    ],
)  # fmt: skip
def test_clients(name: str, committed: set[int]) -> None:
    offsets = {
        part["committed_offset"]
        for m in messages(name, "OffsetCommit", "request")
        for topic in m["topics"]
        for part in topic["partitions"]
    }
    assert committed <= offsets
    software = {c["client_software_name"] for c in material(name).capture.table("connections").to_pylist()}
    if name == "zoo_franz_go":
        assert "kgo" in software
        asked = [r for r in material(name).exchanges if r["api"] == "ApiVersions" and r["api_version"] == 5]
        assert [r["error_code"] for r in asked] == [35] * 4

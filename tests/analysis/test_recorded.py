"""Real sessions and real waits: the recorded captures against their TOML and the brokers' own log."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

import numpy as np
import pytest

from tests.analysis.read import CAPTURES, analysed, rows
from tests.oracle.agreement import match
from tests.oracle.request_log import Entry, read

RANKED = (
    "k4_fetch_sessions_raw", "k4_session_eviction", "k4_follower_sessions", "k4_slow_and_throttled", "k4_share_group",
    "k4_java_classic", "k4_transactions", "k4_admin_sweep", "era_2_8_2", "era_3_9_1_kraft", "downconv_282",
)  # fmt: skip
"""Captures with 100 logged fetches and a log that has bodies and times."""
EARLY_MS = 2.0


def fetch_entries(name: str) -> dict[tuple[tuple[str, int], int], tuple[Entry, dict[str, Any]]]:
    """Logged fetches by client and correlation id; those whose correlation id repeats are left out."""
    found: dict[tuple[tuple[str, int], int], tuple[Entry, dict[str, Any]]] = {}
    seen: Counter[tuple[tuple[str, int], int]] = Counter()
    for entry in read(CAPTURES / f"{name}.requests.log.zst"):
        if entry.key == 1 and entry.has_json:
            key = (entry.client, entry.correlation_id)
            seen[key] += 1
            found[key] = (entry, json.JSONDecoder().raw_decode(entry.line[entry.line.index('{"') :])[0])
    return {key: value for key, value in found.items() if seen[key] == 1}


def logged(name: str) -> list[tuple[dict[str, Any], Entry, dict[str, Any]]]:
    """Fetches that were answered, with their log entries."""
    entries = fetch_entries(name)
    exchanges = analysed(name)["exchanges"].select(["exchange_id", "client_ip", "client_port", "correlation_id"])
    place = {row["exchange_id"]: row for row in exchanges.to_pylist()}
    fetched = {row["exchange_id"] for row in rows(name, "fetches")}
    seen = Counter(
        ((row["client_ip"], row["client_port"]), row["correlation_id"])
        for row in place.values()
        if row["exchange_id"] in fetched
    )
    found = []
    for row in rows(name, "fetches"):
        at = place[row["exchange_id"]]
        key = ((at["client_ip"], at["client_port"]), at["correlation_id"])
        if row["broker_ms"] is not None and key in entries and seen[key] == 1:
            found.append((row, *entries[key]))
    return found


def ranks(values: list[float]) -> np.ndarray:
    array = np.asarray(values)
    _, inverse, counts = np.unique(array, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[inverse]


def fitting(row: dict[str, Any], entry: Entry, data: dict[str, Any]) -> set[str]:
    """The holds that the broker's own times allow."""
    assert entry.request is not None
    assert entry.response is not None
    parts = [part for topic in entry.response["responses"] for part in topic["partitions"]]
    size = sum(part.get("records_bytes") or 0 for part in parts)
    remote, most = data["remoteTimeMs"], entry.request["max_wait_ms"]
    if entry.response.get("error_code") or any(part["error_code"] for part in parts):
        return {"error"}
    waited = most > 0 and remote >= most - EARLY_MS and not size
    if row["broker_ms"] >= entry.total_ms + 100:  # the channel was muted: the broker's clock had not started
        return {"throttled"}
    if entry.throttle_ms > 0:
        return {"throttled", "timeout"} if waited else {"throttled"}
    if waited:
        return {"timeout"}
    return {"immediate", "data"} if remote < 5 else {"data"}


@pytest.mark.oracle
@pytest.mark.parametrize("name", RANKED)
def test_the_brokers_own_times_agree(name: str) -> None:
    found = logged(name)
    assert len(found) >= 100
    broker, total = ranks([row["broker_ms"] for row, _, _ in found]), ranks([e.total_ms for _, e, _ in found])
    spearman = float(np.corrcoef(broker, total)[0, 1])
    fits = [row["hold"] in fitting(row, entry, data) for row, entry, data in found]
    share = sum(fits) / len(fits)
    print(f"{name}: {len(found)} fetches, Spearman {spearman:.4f}, hold agrees in {share:.2%}")
    assert spearman >= 0.9
    assert share >= 0.98


def logged_exchanges(name: str) -> list[tuple[dict[str, Any], Entry]]:
    """Answered exchanges with their log entries."""
    columns = ("exchange_id", "client_ip", "client_port", "broker_ip", "broker_port", "api", "api_key", "api_version",
               "correlation_id", "broker_ms", "agreed_ms", "throttled_ms")  # fmt: skip
    exchanges = analysed(name)["exchanges"].select(columns).to_pylist()
    pairs = match(read(CAPTURES / f"{name}.requests.log.zst"), exchanges).pairs
    return [(row, entry) for entry, row in pairs if row["broker_ms"] is not None]


def test_a_share_fetch_waits_as_long_as_its_broker_says() -> None:
    """remoteTimeMs is how long the broker kept the request on purpose; 48 ShareFetches waited 21 s."""
    found = [(row, entry) for row, entry in logged_exchanges("k4_share_group") if row["api"] == "ShareFetch"]
    remote = [float(re.findall(r'"remoteTimeMs":([0-9.]+)', entry.line)[0]) for _, entry in found]
    agreed = [row["agreed_ms"] for row, _ in found]
    assert len(found) == 48
    assert sum(agreed) == pytest.approx(sum(remote), rel=0.005)
    assert max(abs(a - b) for a, b in zip(agreed, remote, strict=True)) < 20


def test_what_a_quota_took_is_what_the_brokers_clock_lacks() -> None:
    """A broker reads the next request when the window is over: only then its totalTimeMs begins."""
    found = [(row, entry) for row, entry in logged_exchanges("k4_slow_and_throttled") if row["throttled_ms"]]
    lacking = [row["broker_ms"] - entry.total_ms for row, entry in found]
    assert sum(lacking) > 2900
    assert [row["throttled_ms"] for row, _ in found] == pytest.approx(lacking, abs=1)
    others = [row["broker_ms"] - entry.total_ms for row, entry in logged_exchanges("k4_slow_and_throttled")
              if not row["throttled_ms"]]  # fmt: skip
    assert max(others) < 20


def test_a_session_goes_on_after_a_wrong_epoch() -> None:
    """k4_fetch_sessions_raw: 42 where 9 is due answers 71 and leaves the session usable with epoch 9."""
    name = "k4_fetch_sessions_raw"
    wrong = rows(name, "fetches", session_outcome="epoch_error")
    assert len(wrong) == 12
    for row in wrong:
        assert (row["session_epoch"], row["expected_epoch"], row["epoch_status"]) == (42, 9, "gap")
        after = [r for r in rows(name, "fetches", session_key=row["session_key"]) if r["session_epoch"] == 9]
        assert [r["epoch_status"] for r in after] == ["ok"]
    assert len(rows(name, "fetches", session_outcome="evicted_or_unknown")) == 28
    assert len(rows(name, "fetches", session_outcome="topic_id_error")) == 2


@pytest.mark.parametrize("version", [*range(7, 19)])
def test_every_version_has_its_session(version: int) -> None:
    found = [r for r in rows("k4_fetch_sessions_raw", "fetch_sessions") if r["client_ids"] == [f"raw-v{version}"]]
    assert found
    assert all(row["first_epoch"] == 0 and not row["left_censored"] for row in found)
    replaced = [row for row in found if row["end_reason"] == "replaced"]
    assert len(replaced) == (1 if version in (9, 12, 15, 18) else 0)
    for row in replaced:
        assert [other["predecessor"] for other in found].count(row["session_key"]) == 1
    assert all((row["shard"] is not None) == (version >= 17) for row in found)  # nobody asked for its versions


def test_pipelined_requests_follow_one_another() -> None:
    mixed = rows("k4_fetch_sessions_raw", "fetches", client_id="raw-mix")
    mixed = [row for row in mixed if row["session_epoch"] in range(2, 6)]
    assert [row["epoch_status"] for row in mixed[:4]] == ["ok"] * 4


def test_evictions_and_refusals() -> None:
    """k4_session_eviction: 8 slots; larger sessions push out the first eight after 120 s."""
    name = "k4_session_eviction"
    fill = rows(name, "fetches", client_id="raw-evict-fill", request_kind="create")
    assert Counter(row["session_outcome"] for row in fill) == {"created": 8, "refused": 6}
    more = rows(name, "fetches", client_id="raw-evict-more")
    assert Counter(row["session_outcome"] for row in more) == {"created": 8, "refused": 6, "evicted_or_unknown": 8}
    assert {row["session_outcome"] for row in rows(name, "fetches", client_id="raw-evict-all")} == {"refused"}
    ids = {226464021, 363077208, 570616887, 806469621, 1337494639, 1485889109, 1663065288, 1900192278}
    first = [row for row in rows(name, "fetch_sessions") if row["session_id"] in ids]
    assert {row["end_reason"] for row in first} == {"evicted"}
    assert sorted(row["shard"] for row in first) == [0, 1, 2, 3, 4, 5, 6, 7]
    ranking = rows(name, "findings", id="session_evictor")
    assert "raw-evict-more" in str(ranking[0]["text"])
    lost = rows(name, "findings", id="sessions_lost")
    assert [row["count"] for row in lost] == [8]


def test_followers() -> None:
    name = "k4_follower_sessions"
    sizes = {
        796715330: 16, 1395107572: 9, 465876338: 1, 111934873: 1, 901970875: 17, 573676980: 11,
    }  # fmt: skip
    for number, topics in sizes.items():
        created = rows(name, "fetches", response_session_id=number, session_outcome="created")
        assert len(created) == 1
        assert created[0]["is_follower"]
        stays = rows(name, "session_partitions", session_key=created[0]["session_key"], from_epoch=0)
        assert len({row["topic_id"] for row in stays}) == topics
    raft = rows(name, "fetches", is_raft=True)
    assert {row["request_kind"] for row in raft} == {"sessionless"}
    incremental = rows(name, "fetches", request_kind="incremental", is_follower=True)
    assert sum(row["partitions_forgotten"] > 0 for row in incremental) == 14  # node 2 logged eleven, then it stopped


def test_throttling_and_long_polls() -> None:
    name = "k4_slow_and_throttled"
    long_polls = rows(name, "fetches", client_id="sl-longpoll-500", request_kind="incremental")
    assert {row["hold"] for row in long_polls} == {"timeout"}
    assert all(0 <= row["excess_ms"] < 50 for row in long_polls)
    throttled = {str(row["text"]).split()[1]: row["count"] for row in rows(name, "findings", id="throttled_client")}
    assert throttled == {"sl-throttled": 11, "sl-req": 12, "sl-thr-producer": 2, "sl-mutations": 1}
    assert rows(name, "fetches", session_outcome="topic_id_error")[0]["client_id"] == "sl-deleted-topic"


def test_a_session_of_three_thousand_partitions() -> None:
    """raw_sessions: opened by correlation 10, seven incremental fetches, closed by correlation 20."""
    name = "raw_sessions"
    (session,) = rows(name, "fetch_sessions")
    assert (session["session_id"], session["end_reason"], session["last_epoch"]) == (302113188, "closed", 7)
    assert (session["max_partitions"], session["epoch_gaps"]) == (3000, 1)
    fetches = rows(name, "fetches")
    assert [row["hidden_partitions"] for row in fetches[1:3]] == [3000, 2997]
    assert fetches[1]["implied_partitions"] == 3000
    forgotten = [r for r in rows(name, "session_partitions") if r["to_epoch"] is not None]
    assert [int(str(row["partition"])) for row in forgotten] == [*range(500, 510), 3007]
    again = rows(name, "session_partitions", partition=505, to_epoch=None)
    assert [row["from_epoch"] for row in again] == [5]


def test_share_sessions() -> None:
    found = rows("k4_share_group", "share_sessions")
    assert [(row["first_epoch"], row["end_reason"]) for row in found] == [(0, "closed")] * 4
    explicit = [row for row in found if row["renewed"]]
    assert [(row["accepted"], row["released"], row["rejected"], row["renewed"]) for row in explicit] == [(12, 2, 2, 4)]
    assert [(row["refused"], row["redelivered"]) for row in explicit] == [(0, 2)]
    assert {row["session_key"] for row in found} == {
        f"{row['cluster']}/{row['broker']}/{row['group_id']}/{row['member_id']}/1" for row in found
    }
    polls = rows("k4_share_group", "exchanges", api="ShareFetch")
    assert {row["connection_id"] for row in found} == {row["connection_id"] for row in polls}


def test_an_open_transaction_holds_readers_back() -> None:
    (found,) = rows("k4_transactions", "findings", id="held_back_by_transaction")
    assert "tx-out" in str(found["text"])
    fenced = rows("k4_transactions", "findings", id="producer_fenced")
    assert {str(row["text"]).split()[1] for row in fenced} == {"tx-hang", "tx-producer-1", "tx-producer-2"}


@pytest.mark.parametrize(
    "name", ["field_to_broker", "field_to_client", "field_snap96", "field_midstream", "field_loss5"]
)
def test_nothing_is_invented_in_damaged_captures(name: str) -> None:
    found = analysed(name)
    answered = {row["exchange_id"] for row in found["fetches"].to_pylist() if row["error_code"] is not None}
    for row in found["fetches"].to_pylist():
        if row["exchange_id"] not in answered:
            assert row["session_outcome"] is None
            assert row["request_kind"] != "incremental" or row["implied_partitions"] is None
    if not answered:
        assert not found["fetch_sessions"].num_rows
    base = {row["session_id"] for row in rows("base", "fetch_sessions")}
    assert {row["session_id"] for row in found["fetch_sessions"].to_pylist()} <= base


def test_refused_acknowledgements_are_not_accepted_ones() -> None:
    """A member held records for 4 s under locks of 2 s: what it acknowledged then was refused, and went to another."""
    found = rows("stories/share_slow", "share_sessions")
    figures = [[row[name] for name in ("records_acquired", "accepted", "refused", "lock_ms")] for row in found]
    assert sorted(figures) == [[52, 2, 50, 2000.0], [133, 133, 0, 2000.0]]
    assert sum(int(str(row["redelivered"])) for row in found) == 2

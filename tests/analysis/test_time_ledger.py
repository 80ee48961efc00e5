"""The ledger of time: no gaps, no overlaps, counts that hold, and sums that are the budget's, over the recordings."""

from __future__ import annotations

import re
from collections import defaultdict
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import kdissect
from kdissect.analysis.budget import BOXES, SUBJECTS, time_budget
from kdissect.analysis.findings.catalogue import KINDS as CATALOGUE
from kdissect.analysis.findings.catalogue import error_texts
from kdissect.analysis.holds.throttle_windows import Answers, throttle_windows
from kdissect.analysis.ledger.interval_sweep import Spans, sweep
from kdissect.analysis.ledger.time_ledger import KINDS, Ledger, time_ledger
from kdissect.analysis.ledger.time_owners import EVIDENCE, LABELS, OWNERS, RANKED
from kdissect.arrays.arrow import NULL_TIME, Int64s, times
from kdissect.tables.declaration.readers import BUDGET, BUDGET_TOPICS
from tests.analysis.read import CAPTURES
from tests.analysis.test_kept_apart import APART
from tests.analysis.wire import START, made

RECORDED = tuple(
    sorted(
        str(path.relative_to(CAPTURES))
        for folder in ("", "stories", "rules", "lab")
        for path in (CAPTURES / folder).glob("*.pcap*")
        if not path.name.startswith(("field_", "era_", "sweep_"))
    )
)
"""Recordings; `field_*` are copies of one of them, `era_*` and `sweep_*` alike."""
ALIKE = tuple(
    sorted(
        str(path.relative_to(CAPTURES))
        for kind in ("era_*.pcap", "sweep_*.pcap", "deliveries/*.pcap*", "others/*.pcap*")
        for path in CAPTURES.glob(kind)
    )
)
COLUMNS = {
    **BUDGET.tables, **BUDGET_TOPICS.tables, "connections": [*BUDGET.tables["connections"], "broker", "exchanges"],
    "findings": ["id", "text", "client_id", "broker", "severity", "cause", "first_at", "last_at"],
}  # fmt: skip
A, B = "00000000000000aa", "00000000000000bb"


def owners_at(subject: Int64s, spans: Spans, low: Int64s, high: Int64s) -> list[tuple[int, int, str, str]]:
    """(subject, instant, owner, evidence) of every microsecond, by looking at all spans."""
    found = []
    for s in range(len(low)):
        for at in range(int(low[s]), int(high[s])):
            over = spans.rank[(subject == s) & (spans.begin <= at) & (at < spans.end)]
            found.append((s, at, *RANKED[int(over.min(initial=len(RANKED) - 1))]))
    return found


@pytest.mark.parametrize("seed", range(30))
def test_the_sweep_is_what_a_look_at_every_instant_says(seed: int) -> None:
    random = np.random.default_rng(seed)
    n, subjects = int(random.integers(0, 40)), int(random.integers(1, 4))
    subject = random.integers(0, subjects, n)
    begin = random.integers(0, 60, n)
    row = random.integers(-1, 8, n)
    spans = Spans(
        row, begin, begin + random.integers(0, 15, n), random.integers(0, len(RANKED) - 1, n), np.full(n, NULL_TIME)
    )
    connection = np.where(row < 0, 0, row % 3)
    low, high = random.integers(0, 20, subjects), random.integers(30, 80, subjects)
    found = sweep(subject, spans, connection, low, high)
    swept = [
        (s, at, *LABELS[label])
        for s, begin_at, end_at, label in zip(found.subject, found.begin, found.end, found.label, strict=True)
        for at in range(begin_at, end_at)
    ]
    assert swept == owners_at(subject, spans, low, high)
    for i in range(len(found.label)):
        label = np.array([LABELS.index(RANKED[rank]) for rank in spans.rank], np.int64)
        inside = (subject == found.subject[i]) & (label == found.label[i]) & (row >= 0) & (spans.end > spans.begin)
        inside &= (spans.begin < found.end[i]) & (spans.end > found.begin[i])
        assert found.exchanges[i] == inside.sum()  # each span counts as an exchange here: none names an earlier one
        assert found.connections[i] == len(set(connection[inside].tolist()))
        started = np.maximum(spans.begin, low[subject])
        over = np.flatnonzero(inside & (started <= found.begin[i]))
        assert found.first[i] in (row[over[started[over] == started[over].min()]] if len(over) else [-1])


def test_an_exchange_counts_once_in_an_interval() -> None:
    """Its way up and its way down hang together where the network of another one lies between them."""
    row, rank = np.array([0, 1, 0]), np.array([RANKED.index(("network", "ack"))] * 3)
    spans = Spans(row, np.array([0, 2, 6]), np.array([3, 7, 9]), rank, np.array([NULL_TIME, NULL_TIME, 3]))
    found = sweep(np.zeros(3, np.int64), spans, row, np.array([0]), np.array([9]))
    assert (found.exchanges.tolist(), found.connections.tolist()) == ([2], [2])


def check(tables: dict[str, pa.Table]) -> None:
    """Holds a ledger against its rules and its sums."""
    ledger = time_ledger(tables, (*KINDS, "group", "topic"))
    assert set(ledger["owner"].to_pylist()) <= set(OWNERS)
    assert set(ledger["evidence"].to_pylist()) <= EVIDENCE.keys()
    at, until = times(ledger, "at"), times(ledger, "until")
    assert (until > at).all()
    keys = list(zip(*(ledger[name].to_pylist() for name in ("by", "subject", "client_ip")), strict=True))
    labels = list(zip(ledger["owner"].to_pylist(), ledger["evidence"].to_pylist(), strict=True))
    follows = np.array([a == b for a, b in pairwise(keys)], np.bool_)
    assert (at[1:][follows] == until[:-1][follows]).all()
    assert not any(a == b for (a, b), same in zip(pairwise(labels), follows, strict=True) if same)
    sums: dict[tuple[Any, ...], dict[str, int]] = {}
    for key, (owner, _), spent in zip(keys, labels, (until - at).tolist(), strict=True):
        boxes = sums.setdefault(key, dict.fromkeys(BOXES, 0))
        boxes[f"{owner}_ms"] += spent
    for row in time_budget(tables, SUBJECTS).to_pylist():
        boxes = sums[row["by"], row["subject"], row["client_ip"]]
        assert {box: round(row[box] * 1000) for box in BOXES} == boxes
        assert round(row["wall_ms"] * 1000) == sum(boxes.values())


UNSETTLED = ("network", "unknown")
"""Owners of what was on its way, or may have been."""
STATED = {
    "broker_stalled": (r"answered nothing for ([\d.]+) (ms|s|min)", ("broker",)),
    "throttled_client": (r"(?:times|once|twice), ([\d.]+) (ms|s|min) in all", ("throttled",)),
    "client_paused": (r"(?:times|once|twice), ([\d.]+) (ms|s|min) of", ("own", "silent", "idle")),
    "slow_followers": (r"\(([\d.]+) (ms|s|min) in all", ("replication",)),
    "segments_lost": (r"sent again, ([\d.]+) (ms|s|min) in all", ("network",)),
    "slow_fetches": (r"\(([\d.]+) (ms|s|min) together", ("broker",)),
    "slow_requests": (r"or more: ([\d.]+) (ms|s|min) together", ("broker", "replication", "transaction", *UNSETTLED)),
    "network_stall": (r": ([\d.]+) (ms|s|min), complete in frame", ("throttled", "own", "broker", *UNSETTLED)),
    "network_silent": (r"for ([\d.]+) (ms|s|min) from", ("silent", "gone", *UNSETTLED)),
    "clients_paused_together": (r"sent nothing for ([\d.]+) (ms|s|min)", ("own", "silent", "idle")),
    "consumer_silent": (r"connection for ([\d.]+) (ms|s|min)", ("own", "silent", "idle")),
    "producer_silent": (r"connection for ([\d.]+) (ms|s|min)", ("own", "silent", "idle")),
}
"""Findings that state how long somebody had a subject's time, and who it was."""
OF_SOME = {"client_paused", "segments_lost", "slow_fetches", "slow_requests", "network_stall"}
"""Those that state a part of it: pauses that are long enough, messages that were sent again, those that were slow, the
slowest one."""
OF_BROKERS = {"broker_stalled", "slow_fetches"}
"""Those that state a broker's time; `network_stall` states a connection's, others a client's. Time of `slow_requests`
is that of the clients that waited: at the broker another one's long poll goes before a request beside it."""
NOBODYS = {
    "broker_stopped": "a broker without connections has no time in a capture",
    "window_closed": "a window is closed while nothing is in flight, too; what waits for it is `network_stall`'s",
    "requests_given_up": "of one request, whose parts are its cause",
    "connections_reset": "from the first reset to the last",
    "group_rebalances": "in which a member joined so often",
    "rebalances": "of members that wait for one another",
    "member_thrown_out": "without a heartbeat, whatever else the client did",
    "member_without_partitions": "without partitions, whatever else the client did",
    "no_leader": "without a Produce or Fetch: its requests for metadata are answered meanwhile",
    "metadata_in_vain": "without a Produce: its requests for metadata are answered meanwhile",
    "leader_moved": "in which refusals came",
    "held_back_by_transaction": "of a partition's stable offset",
    "transaction_timed_out": "from a producer's last batch to its next request",
    "commits_stopped": "in which a client fetched on", "commit_per_record": "of a rate", "empty_polling": "of a rate",
    "tiny_batches": "of a rate", "heartbeat_loop": "between two heartbeats", "short_connections": "a limit",
    "share_locks_ran_out": "a setting", "round_trip_rose": "a median", "mostly_round_trip": "a median",
    "slow_topic": "a median", "late_records": "of records", "growing_lag": "of records",
    "commits_fall_behind": "of records", "clocks_disagree": "between clocks",
}  # fmt: skip
"""Findings whose durations are no part of a subject's time, and what they are."""
MS_OF = {"ms": 1.0, "s": 1000.0, "min": 60_000.0}
CARRIES = {
    "broker": ("broker", "replication", "transaction", "unknown"),
    "follower": ("replication", "unknown"),
    "network": ("network", "silent", "gone", "own", "idle", "unknown"),
    "client": ("own", "idle", "silent", "gone", "agreed", "unknown"),
    "settings": ("throttled", "agreed", "idle", "gone", "unknown"),
}
"""Owners of time that may have what a finding of a cause states. From a broker's end a client that the network gave
nothing looks like one that asks for nothing, or holds its records: `idle` and `own`."""
BLAMES = ("broker", "replication", "transaction", "network", "throttled", "own")
"""Owners whose time is somebody's doing: the time of another one contradicts a cause."""
DURATION = re.compile(r"\d (?:ms|s|min)\b")
NO_WAIT = {
    *error_texts.KINDS,
    *(name for name, what in NOBODYS.items() if what in ("of a rate", "a limit", "a setting", "between clocks")),
}
"""Findings whose durations nobody waited for."""


def _subject(finding: dict[str, Any]) -> tuple[str, str | None]:
    """The kind and the name of the subject whose time a finding states."""
    if finding["id"] == "network_stall":
        return "connection", finding["text"].partition(" on connection ")[2].partition(" ")[0]
    return ("broker", finding["broker"]) if finding["id"] in OF_BROKERS else ("client", finding["client_id"])


def test_every_finding_that_states_a_duration_is_held_against_the_ledger_or_says_of_what_it_is() -> None:
    stating = {
        name
        for name, kind in CATALOGUE.items()
        for text in ([kind.sentence] if isinstance(kind.sentence, str) else kind.sentence.values())
        if ":ms}" in text + "".join(kind.parts.values())
    }
    assert not STATED.keys() & NOBODYS.keys()
    assert stating - error_texts.KINDS.keys() == STATED.keys() | NOBODYS.keys()  # errors: from the first to the last


def check_findings(tables: dict[str, pa.Table]) -> None:
    """Holds the seconds of findings against the ledger of their subject and span."""
    ledger = Ledger(tables)
    for finding in tables["findings"].to_pylist():
        pattern, owners = STATED.get(finding["id"], ("", ()))
        found = re.search(pattern, finding["text"]) if pattern else None
        if found is None or found[1] is None:
            continue
        stated = float(found[1]) * MS_OF[found[2]]
        kind, name = _subject(finding)
        if name is None and finding["id"] != "slow_requests":
            continue  # one of several, and which is not known
        subjects = ledger.subjects(kind, None if name is None else [name])
        if finding["id"] != "throttled_client":  # a quota mutes for longer than the answers that say so
            low, high = (round(finding[at].timestamp() * 1e6) for at in ("first_at", "last_at"))
            subjects.low, subjects.high = np.maximum(subjects.low, low), np.minimum(subjects.high, high)
        intervals = ledger.intervals(kind, subjects)
        mine = np.array([LABELS[label].owner in owners for label in intervals.label], np.bool_)
        had = float((intervals.end - intervals.begin)[mine].sum()) / 1000
        wrong = f"{finding['id']}: {finding['text']} The ledger has {had:.0f} ms."
        assert stated <= 1.05 * had + 50, wrong
        assert finding["id"] in OF_SOME or stated >= 0.95 * had - 50, wrong


def _connections_of(finding: dict[str, Any], connections: list[dict[str, Any]]) -> list[str]:
    """Connections of the client, or of those that the sentence names, to the broker where it has one."""
    named = {
        row["client_id"] for row in connections
        if row["client_id"] and re.search(rf"(?<![\w.-]){re.escape(row['client_id'])}(?![\w-])", finding["text"])
    }  # fmt: skip
    clients = {finding["client_id"]} if finding["client_id"] else named
    return [
        row["connection_id"] for row in connections
        if row["exchanges"] and (not clients or row["client_id"] in clients)
        and finding["broker"] in (None, row["broker"])
    ]  # fmt: skip


def check_causes(tables: dict[str, pa.Table]) -> None:
    """Holds the cause of each finding above info that states a wait against the ledger of the connections that it is
    about, in its span: those whom the cause leaves out have no more of it than those who may have it."""
    ledger, connections = Ledger(tables), tables["connections"].to_pylist()
    for finding in tables["findings"].to_pylist():
        if finding["severity"] == "info" or finding["cause"] not in CARRIES or finding["id"] in NO_WAIT:
            continue
        if not DURATION.search(finding["text"]):
            continue
        subjects = ledger.subjects("connection", _connections_of(finding, connections))
        low, high = (round(finding[at].timestamp() * 1e6) for at in ("first_at", "last_at"))
        subjects.low, subjects.high = np.maximum(subjects.low, low), np.minimum(subjects.high, high)
        intervals = ledger.intervals("connection", subjects)
        had: dict[str, int] = defaultdict(int)
        for label, lasted in zip(intervals.label.tolist(), (intervals.end - intervals.begin).tolist(), strict=True):
            had[LABELS[label].owner] += max(lasted, 0)
        may = CARRIES[finding["cause"]]
        others = sum(had[owner] for owner in BLAMES if owner not in may)
        assert others <= sum(had[owner] for owner in may), f"{finding['cause']}: {finding['text']} {dict(had)}"


def check_recording(path: Path) -> None:
    tables = dict(kdissect.open(path).tables(COLUMNS))
    check(tables)
    check_findings(tables)
    check_causes(tables)


@pytest.mark.parametrize("name", RECORDED)
def test_ledgers_have_no_gaps_budgets_are_their_sums_and_findings_state_their_seconds(name: str) -> None:
    check_recording(CAPTURES / name)


@pytest.mark.exhaustive
@pytest.mark.parametrize("path", [*(CAPTURES / name for name in ALIKE), *APART], ids=lambda path: path.name)
def test_the_same_of_all_releases_and_of_recordings_kept_apart(path: Path) -> None:
    check_recording(path)


def test_a_cause_that_the_ledger_contradicts_is_noticed() -> None:
    tables = dict(kdissect.open(CAPTURES / "stories" / "slow_broker.pcap.zst").tables(COLUMNS))
    check_causes(tables)
    rows = tables["findings"].to_pylist()
    stalled = [row | {"cause": "network"} for row in rows if row["id"] == "broker_stalled"]
    with pytest.raises(AssertionError, match="network: Broker 3 answered nothing"):
        check_causes(tables | {"findings": pa.Table.from_pylist(stalled)})


def test_a_ledger_begins_with_the_first_packet_and_ends_with_the_last() -> None:
    capture = kdissect.open(CAPTURES / "base_short.pcap")
    ledger, connections = capture.table("time_ledger"), capture.table("connections")
    rows = ledger.filter(pc.equal(ledger["by"], "connection"))
    spans = {
        (row["subject"], row["at_min"], row["until_max"])
        for row in rows.group_by("subject").aggregate([("at", "min"), ("until", "max")]).to_pylist()
    }
    kafka = [row for row in connections.to_pylist() if row["exchanges"]]
    assert spans == {(row["connection_id"], row["started_at"], row["ended_at"]) for row in kafka}


def tables_of(exchanges: list[dict[str, Any]]) -> dict[str, pa.Table]:
    connections = [{"connection_id": name, "started_at": START, "ended_at": START + 10_000_000} for name in (A, B)]
    return {
        "exchanges": made("exchanges", exchanges), "fetches": made("fetches", []),
        "connections": made("connections", connections),
    }  # fmt: skip


def exchange(n: int, at: float, took: float, connection: str = A, **more: Any) -> dict[str, Any]:
    """A Produce of client c at broker 1, `at` ms after the start, that the broker worked on for all of its time."""
    begun = START + int(at * 1000)
    return {
        "exchange_id": f"{connection}:{n}", "connection_id": connection, "client_ip": "::1", "client_id": "c",
        "broker": "1", "api_key": 0, "status": "ok", "network_kind": "handshake", "request_first_at": begun,
        "response_first_at": begun + int(took * 1000), "response_last_at": begun + int(took * 1000), "broker_ms": took,
    } | more  # fmt: skip


def spent(tables: dict[str, pa.Table], kind: str = "client") -> list[tuple[str, str, float]]:
    rows = time_ledger(tables, (kind,)).to_pylist()
    return [(row["owner"], row["evidence"], (row["until"] - row["at"]).total_seconds() * 1000) for row in rows]


def test_a_muted_connection_is_throttled_requests_sent_meanwhile_included() -> None:
    """KIP-219: the broker answers at once and reads nothing for throttle_time_ms."""
    rows = [exchange(0, 0, 10, throttle_ms=1000.0), exchange(1, 500, 520)]
    assert spent(tables_of(rows))[:3] == [
        ("broker", "remainder", 10), ("throttled", "throttle_time", 1000), ("broker", "remainder", 10),
    ]  # fmt: skip
    answered = [rows[0], exchange(1, 500, 20)]  # a broker that did not mute it
    assert [row for row in spent(tables_of(answered)) if row[0] == "throttled"] == []
    windows, before = throttle_windows(made("exchanges", rows), np.zeros(2, np.int64))
    assert (windows.row.tolist(), before.tolist()) == ([0], [-1, 0])
    assert (windows.begin - START, windows.end - START) == (10_000, 1_010_000)


def test_muted_time_of_a_stretch_counts_only_windows_that_no_answer_contradicts() -> None:
    """Answers of two connections in two parts: 7 is muted for 100 ms twice, 8 is answered in the middle of its window,
    which a broker before 2.0 does."""
    answers = Answers()
    answers.add(*part([(7, 0, 100), (8, 0, 100), (8, 50, 0), (9, 0, 0)]))
    answers.add(*part([(7, 200, 100), (7, 400, 0)]))
    muted = answers.muted()
    connection = np.array([7, 7, 8, 9])
    begin, end = np.array([0, 50, 0, 0]) * 1000, np.array([500, 250, 500, 500]) * 1000
    assert (muted.within(connection, begin, end) / 1000).tolist() == [200, 100, 0, 0]
    assert Answers().muted().within(connection, begin, end).tolist() == [0] * 4


def part(rows: list[tuple[int, int, int]]) -> tuple[Int64s, Int64s, Any]:
    """Connection, when an answer left (ms) and how long it throttles (ms)."""
    connection, left, length = np.array(rows).T
    return connection, left * 1000, length.astype(np.float64)


@pytest.mark.parametrize("client", ["aiokafka", "kafka_python", "librdkafka"])
def test_a_connection_is_throttled_for_as_long_as_its_answers_say(client: str) -> None:
    """The union of the windows of a connection, within 2 %; each request in one has its part of it."""
    capture = kdissect.open(CAPTURES / "lab" / f"throttled_{client}.pcap.zst")
    tables = capture.tables({"exchanges": None, "connections": None})
    ended = {row["connection_id"]: row["ended_at"] for row in tables["connections"].to_pylist()}
    windows: dict[str, list[tuple[Any, Any]]] = defaultdict(list)
    inside: dict[str, float] = defaultdict(float)
    for row in tables["exchanges"].sort_by("response_first_at").to_pylist():
        name = row["connection_id"]
        inside[name] += row["throttled_ms"] or 0.0
        if row["throttle_ms"]:
            since = row["response_first_at"]
            until = min(since + timedelta(milliseconds=row["throttle_ms"]), ended[name])
            windows[name].append((max([since, *(end for _, end in windows[name])]), until))
    found: dict[str, float] = defaultdict(float)
    for row in capture.analysis.time_ledger(by=["connection"]).to_pylist():
        if row["owner"] == "throttled":
            found[row["subject"]] += (row["until"] - row["at"]).total_seconds() * 1000
    named = {name: sum(max((b - a).total_seconds(), 0) * 1000 for a, b in each) for name, each in windows.items()}
    assert sum(named.values()) > 10_000
    assert found == pytest.approx(named, rel=0.02)
    assert all(inside[name] <= found[name] + 1 for name in found)


def share_fetch(n: int, at: float, hold: str) -> dict[str, Any]:
    """A ShareFetch that took 10 ms."""
    return exchange(n, at, 10, api_key=78, hold=hold, agreed_ms=10.0)


def test_records_of_a_share_fetch_are_the_members_to_work_on() -> None:
    """Until its next ShareFetch. `immediate` is an answer with records only where ShareFetches ask to wait."""
    rows = [share_fetch(0, 0, "data"), share_fetch(1, 110, "timeout"), share_fetch(2, 220, "immediate")]
    rows.append(share_fetch(3, 330, "data"))
    waits, polls = rows, [{**row, "hold": "immediate", "agreed_ms": 0.0} for row in rows]
    pauses = [row for row in spent(tables_of(waits)) if row[0] in ("own", "idle")][:3]
    assert pauses == [("own", "records_held", 100), ("idle", "nothing_asked", 100), ("own", "records_held", 100)]
    assert "own" not in {row[0] for row in spent(tables_of(polls))}
    confirmed = [*waits, exchange(4, 440, 10, api_key=79), exchange(5, 550, 10, api_key=79)]
    own = [row for row in spent(tables_of(confirmed)) if row[0] == "own"]
    assert own == [("own", "records_held", 100)] * 3


def test_a_member_of_a_share_group_that_works_on_its_records_owns_the_time() -> None:
    """The pauses between its ShareFetches, where the one before was answered with records."""
    capture = kdissect.open(CAPTURES / "stories" / "share_slow.pcap.zst")
    full = {
        row["exchange_id"]
        for row in capture.messages("ShareFetch", "response").to_pylist()
        if any((part["records_bytes"] or 0) > 0 for topic in row["responses"] for part in topic["partitions"])
    }
    fetches = [row for row in capture.table("exchanges").to_pylist() if row["api"] == "ShareFetch"]
    fetches.sort(key=lambda row: (row["connection_id"], row["request_first_at"]))
    pauses = {
        (a["connection_id"], a["response_last_at"], b["request_first_at"])
        for a, b in pairwise(fetches)
        if a["connection_id"] == b["connection_id"] and a["exchange_id"] in full
    }
    had = dict.fromkeys(OWNERS, timedelta())
    for row in capture.analysis.time_ledger(by=["connection"]).to_pylist():
        for name, begin, end in pauses:
            if name == row["subject"]:
                had[row["owner"]] += max(min(end, row["until"]) - max(begin, row["at"]), timedelta())
    assert len(pauses) > 40
    assert had["own"] > timedelta(seconds=4)  # the rest are ShareAcknowledges, which have other owners
    assert not had["idle"]


def test_what_no_acknowledgement_measures_is_unknown_but_for_what_was_agreed() -> None:
    row = exchange(0, 0, 700, api_key=1, agreed_ms=500.0, network_kind=None)
    assert spent(tables_of([row]))[:2] == [("agreed", "max_wait", 500), ("unknown", "no_acknowledgement", 200)]


def test_a_wait_while_the_network_was_gone_is_unknown_beyond_what_was_agreed() -> None:
    """The answer to the long poll may have been lost: requests of the same two hosts were not acknowledged."""
    poll = exchange(0, 0, 5000, api_key=1, agreed_ms=500.0)
    lost = exchange(1, 2000, 3010, B, network_kind="silence", network_ms=3000.0, broker_ms=10.0)
    polled = [row for row in spent(tables_of([poll, lost]), "connection") if row[0] != "idle"]
    assert polled == [
        ("agreed", "max_wait", 500), ("broker", "remainder", 1500), ("unknown", "no_acknowledgement", 3000),
        ("network", "silence", 3000), ("broker", "remainder", 10),
    ]  # fmt: skip
    tables = tables_of([poll, lost])
    elsewhere = pa.array(["::2", "::3"])
    tables["connections"] = tables["connections"].drop_columns("broker_ip").append_column("broker_ip", elsewhere)
    assert spent(tables, "connection")[:2] == [("agreed", "max_wait", 500), ("broker", "remainder", 4500)]


def test_a_lost_answer_is_unknown_until_a_later_request_of_its_connection_was_answered() -> None:
    lost = exchange(0, 0, 0, status="unanswered", response_first_at=None, response_last_at=None, broker_ms=None)
    assert spent(tables_of([lost, exchange(1, 100, 10)])) == [
        ("unknown", "no_answer", 100), ("broker", "remainder", 10), ("idle", "nothing_asked", 9890),
    ]  # fmt: skip
    assert spent(tables_of([lost])) == [("unknown", "no_answer", 10_000)]


def test_the_rest_of_an_answer_that_never_came_is_unknown_too() -> None:
    begun = exchange(0, 0, 10, status="partial", response_last_at=None)
    assert spent(tables_of([begun, exchange(1, 100, 10)])) == [
        ("broker", "remainder", 10), ("unknown", "no_answer", 90), ("broker", "remainder", 10),
        ("idle", "nothing_asked", 9890),
    ]  # fmt: skip
    assert spent(tables_of([begun])) == [("broker", "remainder", 10), ("unknown", "no_answer", 9990)]


def test_between_connections_a_process_is_gone() -> None:
    tables = tables_of([exchange(0, 0, 10), exchange(0, 5000, 10, B)])
    connections = [
        {"connection_id": A, "started_at": START, "ended_at": START + 10_000},
        {"connection_id": B, "started_at": START + 5_000_000, "ended_at": START + 5_010_000},
    ]
    assert spent(tables | {"connections": made("connections", connections)}) == [
        ("broker", "remainder", 10), ("gone", "no_connection", 4990), ("broker", "remainder", 10),
    ]  # fmt: skip


def test_an_answer_to_a_closed_window_is_the_receivers() -> None:
    row = exchange(0, 0, 10, response_transfer_ms=3000.0)
    connections = [{"connection_id": A, "started_at": START, "ended_at": START + 3_010_000, "zero_window_ms": 2500.0}]
    closed = tables_of([row]) | {"connections": made("connections", connections)}
    assert spent(closed) == [("broker", "remainder", 10), ("own", "closed_window", 3000)]
    assert spent(closed, "broker") == [("broker", "remainder", 10), ("idle", "nothing_asked", 3000)]


def test_two_addresses_with_one_client_id_are_two_processes() -> None:
    tables = tables_of([exchange(0, 0, 10), exchange(0, 0, 20, B, client_ip="::2")])
    ledger = Ledger(tables)
    subjects = ledger.subjects("client")
    assert (subjects.names, subjects.addresses) == (["c", "c"], ["::1", "::2"])
    assert [row["broker_ms"] for row in time_budget(tables).to_pylist()] == [10, 20]


def test_the_order_of_rows_does_not_matter() -> None:
    tables = dict(kdissect.open(CAPTURES / "base_short.pcap").tables(BUDGET.tables))
    turned = {
        name: table.take(pa.array(np.random.default_rng(1).permutation(table.num_rows)))
        for name, table in tables.items()
    }
    assert time_ledger(turned).equals(time_ledger(tables))

"""What findings say of everything: `no answer`, `nothing`, `all connections`. Each such sentence has a query here, over
whole tables and not over the rows that its finder saw; it is asked of every recording whose cause is known."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import kdissect
from kdissect.analysis.findings.catalogue import KINDS
from kdissect.tables.declaration.readers import FINDINGS
from tests.analysis.test_judged import EVERY, evidence, tables_of
from tests.analysis.test_kept_apart import APART

Row = dict[str, Any]
Tables = dict[str, list[Row]]
READ = ("exchanges", "fetches", "connections", "groups", "offset_commits", "producer_ids", "topics")
MS_OF = {"ms": 1.0, "s": 1000.0, "min": 60_000.0}
EDGE = timedelta(milliseconds=300)
"""What a broker itself sent so close to the ends of its silence is left out, as in the rule."""
STROKE = timedelta(milliseconds=200)
WITHIN = timedelta(microseconds=1)
BACK = timedelta(seconds=3)
"""A member that left did not join again for so long."""
UNIVERSAL = re.compile(r"\b(no|not|nothing|never|none|all|every|each|only|at once)\b", re.IGNORECASE)
OF_ITS_ROWS = {
    "batches_written_twice", "capture_began_late", "capture_one_way", "capture_without_acks", "commit_per_record",
    "limited_by_max_bytes", "login_failed", "not_authorized", "requests_cut_off", "login_cut_off", "rebalances",
    "session_slots", "sessions_lost", "sessions_refused", "short_connections", "throttled_client", "tiny_batches",
    "unsupported_version", "window_closed", "group_rebalances", "member_without_partitions", "slow_followers",
    "segments_lost", "mostly_round_trip", "several_addresses", "empty_polling",
}  # fmt: skip
"""They say it of the rows that their filter selects, which test_judged.py counts, or of what is always so."""
ELSEWHERE = {
    "client_paused": "test_time_ledger.py", "round_trip_rose": "test_near_misses.py",
    "clocks_disagree": "test_delivery_findings.py", "late_records": "test_delivery_findings.py",
    "held_back_by_transaction": "test_hanging_transactions.py", "member_thrown_out": "test_judged.py",
    "records_given_again": "test_delivery_findings.py", "records_passed_over": "test_delivery_findings.py",
    "commits_fall_behind": "test_near_misses.py",
}  # fmt: skip
"""Where their sentences are tested."""


def inside(at: datetime | None, one: Row, edge: timedelta = WITHIN) -> bool:
    """Whether an instant lies between the ends of a finding's span."""
    return at is not None and one["first_at"] + edge < at < one["last_at"] - edge


def clients_of(one: Row) -> set[str]:
    """The clients that a sentence begins with, or that its column names."""
    listed = re.match(r"Clients? (.+?)(?: at | sent )", one["text"])
    return {one["client_id"]} if one["client_id"] else set(re.split(", | and ", listed[1])) if listed else set()


def requests(one: Row, tables: Tables, *apis: str) -> list[Row]:
    """What the finding's clients asked for in its span, of these APIs alone where they are given."""
    clients = clients_of(one)
    assert clients, one
    return [
        row for row in tables["exchanges"]
        if row["client_id"] in clients and inside(row["request_first_at"], one) and (not apis or row["api"] in apis)
    ]  # fmt: skip


def due(one: Row, tables: Tables) -> list[Row]:
    """What the finding's clients had asked for before its span, and were answered within it."""
    return [
        row for row in tables["exchanges"]
        if row["client_id"] in clients_of(one) and row["request_first_at"] is not None
        and row["request_first_at"] <= one["first_at"] and inside(row["response_first_at"], one, STROKE)
    ]  # fmt: skip


def answered_nothing(one: Row, tables: Tables) -> list[Row]:
    if one["broker"] is None or " times" in one["headline"] or "twice" in one["headline"]:
        return []  # spans between which it answered
    own = [
        row for row in tables["fetches"]
        if "sent no fetches" in one["text"] and str(row["replica_id"]) == one["broker"]
        and inside(row["requested_at"], one, EDGE)
    ]  # fmt: skip
    return own + [
        row for row in tables["exchanges"] if row["broker"] == one["broker"] and inside(row["response_first_at"], one)
    ]


def wrote(one: Row, tables: Tables, shown: list[Row]) -> list[Row]:
    """What a client wrote while it asked for metadata, if it never wrote nothing for as long as is said."""
    said = re.search(r"for ([\d.]+) (ms|s|min) at a time", one["text"])
    assert said, one["text"]
    written = requests(one, tables, "Produce")
    at = [one["first_at"], *sorted(row["request_first_at"] for row in written), one["last_at"]]
    longest = max(after - before for before, after in pairwise(at))
    return [] if longest >= timedelta(milliseconds=0.95 * float(said[1]) * MS_OF[said[2]]) else written


def connections_of(one: Row, tables: Tables, shown: list[Row]) -> list[Row]:
    """Connections with Kafka to the ports of the evidence."""
    ports = {(row["broker_ip"], row["broker_port"]) for row in shown}
    return [row for row in tables["connections"] if (row["broker_ip"], row["broker_port"]) in ports]


def outlived(one: Row, tables: Tables, shown: list[Row]) -> list[Row]:
    """Connections of a broker that stopped which did not end with the others, or began before it was back."""
    used = [row for row in connections_of(one, tables, shown) if row["is_kafka"] and row["exchanges"]]
    back = one["last_at"] if "served again" in one["text"] else datetime.max.replace(tzinfo=one["first_at"].tzinfo)
    return [
        row for row in used
        if row["started_at"] < one["first_at"] < row["ended_at"] - STROKE
        or one["first_at"] < row["started_at"] < back - WITHIN or (row["closed_by"] == "client" and row in shown)
    ]  # fmt: skip


def listened(one: Row, tables: Tables, shown: list[Row]) -> list[Row]:
    return [row for row in connections_of(one, tables, shown) if inside(row["started_at"], one) and row["bytes"]]


def refused(one: Row, tables: Tables, shown: list[Row]) -> list[Row]:
    return [
        row for row in connections_of(one, tables, shown)
        if row["end_reason"] == "rst" and not row["bytes"] and row["start_seen"] and inside(row["started_at"], one)
    ]  # fmt: skip


def silent(one: Row, tables: Tables, shown: list[Row]) -> list[Row]:
    ended = [
        row for row in tables["connections"] if row["client_id"] in clients_of(one) and inside(row["ended_at"], one)
    ]
    return [*requests(one, tables), *due(one, tables), *(ended if "stayed open" in one["text"] else ())]


def committed(one: Row, tables: Tables, shown: list[Row]) -> list[Row]:
    return [
        row for row in tables["offset_commits"]
        if row["client_id"] == one["client_id"] and row["group_id"] == one["group_id"] and inside(row["at"], one)
    ]  # fmt: skip


def joined(one: Row, tables: Tables, shown: list[Row]) -> list[Row]:
    if "did not join again" not in one["text"]:
        return []
    left = max(row["at"] for row in shown)
    return [
        row for row in tables["groups"]
        if row["client_id"] == one["client_id"] and row["group_id"] == one["group_id"] and row["event"] == "join"
        and left < row["at"] < left + BACK
    ]  # fmt: skip


def described(one: Row, tables: Tables, shown: list[Row]) -> list[Row]:
    said = re.search(r"no answer describes topics? ([^;]+?)\.(?: |$)", one["text"])
    names = set(re.split(", | and ", said[1])) if said else set()
    return [row for row in tables["topics"] if row["topic"] in names and row["partitions"]]


def other_producers(one: Row, tables: Tables, shown: list[Row]) -> list[Row]:
    if "No other producer" not in one["text"]:
        return []
    asked = [row for row in tables["producer_ids"] if row["transactional_id"] == one["transactional_id"]]
    owner = {row["exchange_id"]: row["client_id"] for row in tables["exchanges"]}
    return [row for row in asked if owner.get(row["exchange_id"]) not in (one["client_id"], None)]


QUERIES: dict[str, Callable[[Row, Tables, list[Row]], list[Row]]] = {
    "broker_stalled": lambda one, tables, shown: answered_nothing(one, tables),
    "broker_stopped": outlived,
    "clients_paused_together": lambda one, tables, shown: [
        row for row in requests(one, tables) if row["request_first_at"] < one["last_at"] - STROKE
    ],
    "commits_stopped": committed,
    "connections_refused": listened,
    "connections_reset": refused,
    "consumer_silent": silent,
    "producer_silent": silent,
    "member_left": joined,
    "metadata_in_vain": wrote,
    "network_silent": lambda one, tables, shown: (
        requests(one, tables) if "sent no further requests" in one["text"] else []
    ),
    "no_leader": lambda one, tables, shown: (
        requests(one, tables, "Fetch" if "could not read" in one["headline"] else "Produce")
    ),
    "producer_fenced": other_producers,
    "transaction_timed_out": other_producers,
    "sessions_never_reused": lambda one, tables, shown: [
        row for row in tables["fetches"]
        if (row["client_id"], row["broker"], row["request_kind"]) == (one["client_id"], one["broker"], "incremental")
    ],
    **dict.fromkeys(
        ("member_unknown", "missing_topic", "offset_out_of_range", "passing_error", "records_refused", "request_failed",
         "request_refused", "retriable_error", "stale_leader"), described,
    ),
}  # fmt: skip
"""By kind: what contradicts its sentence, of all rows of the recording."""


def test_every_sentence_about_everything_has_its_query() -> None:
    for name, kind in KINDS.items():
        texts = [
            one
            for texts in (kind.headline, kind.sentence)
            for one in ([texts] if isinstance(texts, str) else texts.values())
        ]
        if any(UNIVERSAL.search(re.sub(r"\{[^}]*\}", "", text)) for text in texts):
            assert name in {*QUERIES, *OF_ITS_ROWS, *ELSEWHERE}, name


def check_universals(tables: dict[str, pa.Table]) -> None:
    found = [row for row in tables["findings"].to_pylist() if row["id"] in QUERIES]
    rows = {table: tables[table].to_pylist() for table in READ} if found else {}
    for one in found:
        assert not QUERIES[one["id"]](one, rows, evidence(tables, one).to_pylist()), one["text"]


@pytest.mark.parametrize("name", EVERY)
def test_nothing_in_a_recording_contradicts_what_is_said_of_everything(name: str) -> None:
    check_universals(tables_of(name))


@pytest.mark.parametrize("path", APART, ids=lambda path: path.name)
def test_nothing_in_a_recording_kept_apart_does(path: Path) -> None:
    check_universals(dict(kdissect.open(path).tables([*FINDINGS.tables, "findings"])))

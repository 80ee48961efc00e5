"""Findings judged on recordings whose cause is known: what must be said, what must not, that every number fits its
evidence, and that nothing above `info` is said where nothing is wrong."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import kdissect
from kdissect.analysis.findings.catalogue import KINDS
from kdissect.analysis.findings.phrases import clock, duration
from kdissect.kafka.completed import CLOSERS
from kdissect.tables.declaration import SCHEMAS
from kdissect.tables.declaration.readers import FINDINGS
from kdissect.tables.where import parse
from tests.conftest import ROOT

CAPTURES = ROOT / "captures"
JUDGED: dict[str, dict[str, Any]] = {}
for name, entry in tomllib.loads((Path(__file__).parent / "judged.toml").read_text()).items():
    if name in ("stories", "rules", "lab"):
        JUDGED |= {f"{name}/{one}": judged for one, judged in entry.items()}
    else:
        JUDGED[name] = entry
HEALTHY = (
    "base", "k4_java_classic", "k4_mtu1500", "k4_python_kafka", "k4_share_group", "raw_acks0", "raw_ids", "raw_reuse",
    "sasl_logins", "sasl_old", "tls12", "tls13", "zoo_franz_go", "zoo_kafka_python", "zoo_kafkajs", "zoo_librdkafka",
    "lab/healthy_kafka_python", "lab/healthy_aiokafka", "lab/healthy_librdkafka", "lab/killed_kafka_python",
    "lab/killed_aiokafka", "lab/killed_librdkafka", "lab/closed_kafka_python", "lab/closed_aiokafka",
    "lab/closed_librdkafka", "lab/healthy_franz_go", "lab/healthy_sarama", "lab/healthy_kafkajs", "lab/killed_franz_go",
    "lab/closed_sarama", "lab/closed_java", "lab/wired_kafkajs_broker", "lab/first_refused_kafka_python",
    "zoo_sarama_010", "stories/healthy", "stories/kip848", "not_kafka",
)  # fmt: skip
"""Recordings without mischief, or with what clients are made for (a process that ends and is started again): clients
and releases of all eras, each recorded by itself."""
BEFORE = {
    "era_0_8_2": "2026-11-21T02:28:49Z", "k4_admin_sweep": "2026-11-21T03:00:51Z",
    "k4_follower_sessions": "2026-11-21T02:32:51Z", "k4_slow_and_throttled": "2026-11-21T02:39:59Z",
    "stories/leader_move": "2026-11-22T01:04:46Z", "stories/net_delay_client": "2026-11-22T01:10:20Z",
    "stories/quotas": "2026-11-22T01:03:38Z", "stories/share_slow": "2026-11-22T01:11:54Z",
    "stories/slow_broker": "2026-11-22T01:02:51Z", "stories/slow_consumer": "2026-11-22T01:03:09Z",
    "stories/txn_timeout": "2026-11-22T01:05:28Z",
}  # fmt: skip
"""Spans of recordings before their mischief begins, fifty exchanges or more."""
AS_MET = (
    "field_loss1", "field_snap200", "field_two_interfaces", "field_midstream", "field_duplicates", "field_jittered",
    "field_reordered", "field_rotated_C", "field_vxlan", "field_to_broker", "field_ip_fragments", "field_rotated_G",
)  # fmt: skip
"""Healthy traffic as it is met in the field: one recording, damaged in many ways."""
AT = timedelta(seconds=0.2)
LASTS = 0.05


def place(name: str) -> Path:
    folder = CAPTURES / name
    return folder if folder.is_dir() else next(iter(sorted(folder.parent.glob(f"{folder.name}.pcap*"))))


@cache
def tables_of(name: str) -> dict[str, pa.Table]:
    return dict(kdissect.open(place(name)).tables([*FINDINGS.tables, "findings"]))


def said(name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = tables_of(name)["findings"].to_pylist()
    return rows


def fits(row: dict[str, Any], statement: dict[str, Any]) -> bool:
    """Whether a finding makes a statement."""
    for key, value in statement.items():
        if key == "says":
            if not all(part in row["text"] for part in value):
                return False
        elif key == "at":
            if row["first_at"] is None:
                return False
            clocked = datetime.strptime(value, "%H:%M:%S.%f").time()
            if abs(row["first_at"] - datetime.combine(row["first_at"].date(), clocked, UTC)) > AT:
                return False
        elif key == "lasts":
            if abs((row["last_at"] - row["first_at"]).total_seconds() - value) > LASTS * value:
                return False
        elif row[key] != value:
            return False
    return True


def verdict(name: str) -> str:
    rows, judged = said(name), JUDGED[name]
    if any(fits(row, statement) for statement in judged["forbidden"] for row in rows):
        return "wrong"
    named = [any(fits(row, statement) for row in rows) for statement in judged["named"]]
    return "named" if all(named) else "half" if any(named) else "unsaid"


@pytest.mark.every_capture
@pytest.mark.parametrize("name", sorted(JUDGED))
def test_the_cause_is_named_and_nothing_else(name: str) -> None:
    rows, judged = said(name), JUDGED[name]
    for statement in judged["named"]:
        assert any(fits(row, statement) for row in rows), (statement, [row["text"] for row in rows])
    for statement in judged["forbidden"]:
        assert not [row["text"] for row in rows if fits(row, statement)], statement


@pytest.mark.exhaustive
def test_the_confusion_table(capsys: pytest.CaptureFixture[str]) -> None:
    """Prints how many of the recordings are named, half named, unsaid and wrong."""
    verdicts = {name: verdict(name) for name in JUDGED}
    counts = Counter(verdicts.values())
    with capsys.disabled():
        print()
        for name, one in verdicts.items():
            print(f"{one:<7} {name:<28} {JUDGED[name]['cause']}")
        print(", ".join(f"{counts[kind]} {kind}" for kind in ("named", "half", "unsaid", "wrong")))
    assert counts["wrong"] == 0
    assert counts["named"] >= 0.9 * len(JUDGED)


@pytest.mark.every_capture
@pytest.mark.parametrize("name", [*HEALTHY, *AS_MET])
def test_nothing_above_info_where_nothing_is_wrong(name: str) -> None:
    assert [row["text"] for row in said(name) if row["severity"] != "info"] == []


@pytest.mark.parametrize("name", BEFORE)
def test_nothing_above_info_before_anything_is_wrong(name: str) -> None:
    tables = kdissect.open(place(name), end=BEFORE[name]).tables({"exchanges": ["exchange_id"], "findings": None})
    assert tables["exchanges"].num_rows >= 50
    assert [row["text"] for row in tables["findings"].to_pylist() if row["severity"] != "info"] == []


def test_there_are_enough_healthy_ones() -> None:
    assert len({*HEALTHY, *BEFORE}) >= 30


ABOUT_NO_ERROR = ("capture_one_way", "slow_requests", "slow_fetches", "broker_stalled", "client_paused")
"""They may select rows with errors, and do not speak of them."""
SOME = (*JUDGED, "k4_fetch_sessions_raw", "sweep_0110", "sweep_391_kraft", "sweep_440_kraft", "raw_sessions", "base",
        "era_3_9_1_kraft", "field_snap96", "field_to_broker", "field_midstream", "raw_cuts",
        "rules/addresses", "rules/slots")  # fmt: skip


NO_CAPTURES = {"field_empty", "field_half_header", "field_wrong_magic"}


def recorded() -> list[Any]:
    """Every recording: SOME as they are, the others for a whole run."""
    names = set()
    for path in CAPTURES.rglob("*"):
        name = path.relative_to(CAPTURES).as_posix()
        if path.is_dir() and path.name.startswith("field_rotated"):
            names.add(name)
        elif ".pcap" in path.name and path.is_file() and not path.parent.name.startswith("field_rotated"):
            names.add(name.split(".pcap")[0])
    names -= NO_CAPTURES
    assert names >= set(SOME)
    return [*SOME, *(pytest.param(name, marks=pytest.mark.whole) for name in sorted(names - set(SOME)))]


EVERY = recorded()


@pytest.mark.parametrize("name", EVERY)
def test_every_error_is_told(name: str) -> None:
    """No (API, error code) of an answer lies outside all findings."""
    tables = tables_of(name)
    rows = tables["exchanges"]
    pairs = {
        (row["api"], row["error_code"]): set()
        for row in rows.select(["api", "error_code"]).to_pylist()
        if row["error_code"]
    }
    told: set[tuple[str, int]] = set()
    for one in said(name):
        if one["table"] not in ("exchanges", "fetches") or one["id"] in ABOUT_NO_ERROR:
            continue
        shown = evidence(tables, one)
        ids = shown["exchange_id"].cast(pa.string())
        named = rows.filter(pc.is_in(rows["exchange_id"].cast(pa.string()), ids))
        told |= {(row["api"], row["error_code"]) for row in named.select(["api", "error_code"]).to_pylist()}
    assert set(pairs) - told == set()


def evidence(tables: dict[str, pa.Table], one: dict[str, Any]) -> pa.Table:
    """The rows that the filter of a finding selects."""
    table = tables[one["table"]]
    schema = SCHEMAS[one["table"]]
    plain = pa.table(
        {
            column: table[column].cast(schema.field(column).type)
            for column in table.column_names
            if column in schema.names and not column.startswith("_")
        }
    )
    return plain.filter(parse(one["filter"], schema).expression)


NUMBER = re.compile(r"(?<![\w.])(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?: (?:ms|s|min)\b)?")
INSTANT = re.compile(r"\d\d:\d\d:\d\d\.\d{3}")
CONSTANTS = {
    "short_connections": {"2.0 s", "5"}, "network_stall": {"200 ms"}, "slow_requests": {"1.0 s"},
    "slow_fetches": {"1.0 s"}, "slow_followers": {"1.0 s"}, "late_records": {"1.0 s"}, "heartbeat_loop": {"50 ms"},
    "member_left": {"3 s"}, "session_slots": {"1,000", "125"}, "limited_by_max_bytes": {"50"},
    "unsupported_version": {"3"},
}  # fmt: skip
"""Thresholds and Kafka's defaults that a sentence names; docs/findings.md has them."""


BY_THE_LEDGER = ("client_paused", "segments_lost", "throttled_client")
"""Their seconds are unions of time, which test_time_ledger.py holds against the ledger."""


@pytest.mark.parametrize("name", EVERY)
def test_every_number_fits_its_evidence(name: str) -> None:
    """Each number of each sentence is a count, a sum, an extreme, a time or a difference of times of the rows that the
    filter selects, or of those that its page names."""
    tables = tables_of(name)
    for one in said(name):
        shown = evidence(tables, one)
        assert shown.num_rows == one["count"], one
        if one["id"] in BY_THE_LEDGER:
            continue
        text = _without_names(one, shown, tables)
        for moment in INSTANT.findall(text):
            assert moment in _instants(one, shown, tables), (moment, one["text"])
        known = _numbers(one, shown, tables) | CONSTANTS.get(one["id"], set()) | _delivery_shares(shown)
        for number in NUMBER.findall(INSTANT.sub("", text)):
            assert number in known, (number, one["id"], one["text"])


def _without_names(one: dict[str, Any], shown: pa.Table, tables: dict[str, pa.Table]) -> str:
    """The sentence without names of clients, brokers, topics, ids and files."""
    names: set[str] = set()
    for table in (
        shown,
        tables["fetch_partitions"].select(["topic"]),
        tables["connections"],
        tables["exchanges"],
        tables["producer_ids"],
    ):
        for column in table.column_names:
            if pa.types.is_string(table.schema.field(column).type) or pa.types.is_dictionary(
                table.schema.field(column).type
            ):
                names |= {
                    str(value) for value in pc.unique(table[column].cast(pa.string())).to_pylist()
                    if value and not str(value).isdigit() and value not in CLOSERS
                }  # fmt: skip
    text = str(one["text"])
    for value in sorted(names, key=len, reverse=True):
        text = re.sub(rf"(?<!\w){re.escape(value)}(?!\w)", "_", text)
    return re.sub(r"(?i)\b(?:brokers?|port|partition|producer|frame|on) (?:\d+(?:, | and )?)+", "", text)


def _spans(shown: pa.Table) -> list[int]:
    return [
        value
        for column in shown.column_names
        if pa.types.is_timestamp(shown.schema.field(column).type)
        for value in shown[column].drop_null().cast(pa.int64()).to_pylist()
    ]


def _instants(one: dict[str, Any], shown: pa.Table, tables: dict[str, pa.Table]) -> set[str]:
    """Times of day of the evidence, and of what its page names beside it."""
    found = {clock(at) for at in _spans(shown)} | {clock(_micro(one[name])) for name in ("first_at", "last_at")}
    if (
        "producer_ids" in KINDS[one["id"]].needs
        or "exchanges" in KINDS[one["id"]].needs
        or one["id"] in ("client_paused", "growing_lag")
    ):
        found |= {clock(at) for at in _spans(tables["exchanges"])}
    return found


def _micro(at: datetime) -> int:
    return round(at.timestamp() * 1_000_000)


def _delivery_shares(shown: pa.Table) -> set[str]:
    """Per cent of the time of deliveries that waited most for the same."""
    if "delivery_ms" not in shown.column_names:
        return set()
    spent = shown.group_by("waited_for").aggregate([("delivery_ms", "sum")])["delivery_ms_sum"].to_pylist()
    known = [one for one in spent if one]
    return {f"{one / sum(known):.0%}"[:-1] for one in known}


def _numbers(one: dict[str, Any], shown: pa.Table, tables: dict[str, pa.Table]) -> set[str]:
    """What sentences may say of the evidence."""
    plain: set[float] = {one["count"]}
    times: set[float] = set()
    for column in shown.column_names:
        values = shown[column].drop_null()
        kind = shown.schema.field(column).type
        if pa.types.is_nested(kind) or not len(values):
            continue
        distinct = len(pc.unique(values))
        plain |= {distinct} | {distinct - most for most in range(1, 6)}
        if pa.types.is_integer(kind) or pa.types.is_floating(kind):
            figures = {pc.sum(values).as_py(), pc.min(values).as_py(), pc.max(values).as_py()}
            figures.add(float(np.median(values.to_numpy())))
            plain |= figures
            times |= figures if column.endswith("_ms") else set()
        elif not pa.types.is_timestamp(kind) and not pa.types.is_boolean(kind):
            counts = pc.value_counts(values.cast(pa.string())).field("counts").to_pylist()
            plain |= set(counts)
    pairs = [name for name in ("api", "client_id") if name in shown.column_names]
    if len(pairs) == 2:
        grouped = shown.group_by(pairs).aggregate([([], "count_all")])
        plain |= {*grouped["count_all"].to_pylist(), grouped.num_rows - 4}
    instants = _spans(shown)
    if instants:
        times |= {(max(instants) - min(instants)) / 1000}
        for column in ("request_first_at", "requested_at", "at"):
            if column in shown.column_names:
                own = shown[column].drop_null().cast(pa.int64()).to_pylist()
                times |= {(max(own) - min(own)) / 1000} if own else set()
    if one["first_at"] is not None:
        times.add((one["last_at"] - one["first_at"]).total_seconds() * 1000)
    more_plain, more_times, more_texts = _beside(one, tables)
    return (
        more_texts
        | {f"{value:,.0f}" for value in plain | more_plain}
        | {duration(value) for value in times | more_times}
        | {f"{value / 1000:.1f} s" for value in times}
    )


def _beside(one: dict[str, Any], tables: dict[str, pa.Table]) -> tuple[set[float], set[float], set[str]]:
    """Counts, milliseconds and shares of other rows, those that its page names for a kind of finding."""
    plain: set[float] = set()
    times: set[float] = set()
    texts: set[str] = set()
    if one["id"] == "held_back_by_transaction":
        ids = pc.unique(evidence(tables, one)["exchange_id"].cast(pa.string()))
        rows = tables["exchanges"].filter(pc.is_in(tables["exchanges"]["exchange_id"].cast(pa.string()), ids))
        answered = rows["response_first_at"].drop_null().cast(pa.int64()).to_numpy()
        times.add((answered.max() - answered.min()) / 1000)
    if one["id"] == "client_paused":
        gaps = _pauses(tables["fetches"], one["client_id"])
        own = tables["exchanges"].filter(pc.equal(tables["exchanges"]["client_id"].cast(pa.string()), one["client_id"]))
        joins = own.filter(pc.field("api_key") == 11)["request_first_at"].cast(pa.int64()).to_pylist()
        cut = [(min([at for at in joins if begin < at < end] or [end]) - begin) / 1000 for begin, end in gaps]
        long = [length for length in cut if length >= 1000]
        some = [group for n in range(1, len(long) + 1) for group in combinations(long, n)]  # those after records
        plain = {len(group) for group in some}
        times = {_span(evidence(tables, one)), *(sum(group) for group in some), *long}
    elif one["id"] == "empty_polling":
        shown = evidence(tables, one)
        at = shown["requested_at"].cast(pa.int64()).to_pylist()
        plain |= {round(shown.num_rows / ((max(at) - min(at)) / 1e6))}
        times |= {float(pc.max(shown["max_wait_ms"]).as_py())}
    elif one["id"] in ("sessions_never_reused", "sessions_left_open"):
        rows = tables["fetches"].filter(pc.equal(tables["fetches"]["client_id"].cast(pa.string()), one["client_id"]))
        plain.add(sum((row["request_session_id"] != 0 and row["request_kind"] in ("replace", "close"))
                      or (row["request_kind"] == "incremental" and row["session_outcome"] == "closed")
                      for row in rows.to_pylist() if row["broker"] == one["broker"]))  # fmt: skip
    elif one["id"] == "tiny_batches":
        shown = evidence(tables, one)
        at = shown["sent_at"].cast(pa.int64()).to_pylist()
        sizes = pc.subtract(shown["last_sequence"], shown["base_sequence"]).to_numpy() + 1
        plain |= {round(shown.num_rows / ((max(at) - min(at)) / 1e6)), int(np.median(sizes))}
    elif one["id"] == "transaction_timed_out":
        ids = tables["producer_ids"].filter(pc.field("transactional_id") == one["transactional_id"])
        times |= set(ids["transaction_timeout_ms"].to_pylist())
        ours = tables["producers"].filter(pc.is_in(tables["producers"]["producer_id"], ids["producer_id"]))
        when = _micro(one["first_at"])
        times.add((when - max(at for at in ours["sent_at"].cast(pa.int64()).to_pylist() if at < when)) / 1000)
    elif one["id"] == "held_back_by_transaction":
        plain |= set(tables["producer_ids"]["producer_id"].to_pylist())
    elif one["id"] == "network_stall":
        connections = tables["connections"]
        plain |= set(connections["lost_segments"].to_pylist())
        times |= {value for value in connections["zero_window_ms"].to_pylist() if value}
    elif one["id"] == "window_closed":
        shown = evidence(tables, one)
        times |= {value for value in tables["connections"]["zero_window_ms"].to_pylist() if value}
        plain |= {len(pc.unique(shown["connection_id"])), *_unfinished(shown)}
        plain |= {sum((row[f"{side}_transfer_ms"] or 0) >= 200 for row in shown.to_pylist())
                  for side in ("request", "response")}  # fmt: skip
    elif one["id"] == "unsupported_version":
        apis = set(evidence(tables, one)["api"].to_pylist())
        offered = tables["api_versions"].filter(pc.is_in(tables["api_versions"]["api"], pa.array(apis)))
        plain |= {*offered["min_version"].to_pylist(), *offered["max_version"].to_pylist()}
    elif one["id"] == "metadata_in_vain":
        at = sorted(evidence(tables, one)["request_first_at"].cast(pa.int64()).to_pylist())
        times |= {(after - before) / 1000 for before, after in combinations(at, 2)}
    elif one["id"] == "slow_topic":
        others = tables["produces"].filter(
            pc.invert(
                pc.is_in(
                    tables["produces"]["exchange_id"].cast(pa.string()),
                    evidence(tables, one)["exchange_id"].combine_chunks(),
                )
            )
        )
        first = [row["broker_ms"] for row in others.to_pylist() if int(row["exchange_id"].partition(":")[2]) < 100]
        times.add(float(np.median([value for value in first if value is not None])))
    elif one["id"] in ("slow_requests", "requests_given_up"):
        shown = evidence(tables, one)
        plain |= _shares(shown.filter((pc.field("latency_ms") >= 1000) & (pc.field("api_key") != 1)))
    elif one["id"] == "session_evictor":
        outcome = tables["fetches"]["session_outcome"].cast(pa.string())
        lost = tables["fetches"].filter(pc.equal(outcome, "evicted_or_unknown"))
        plain |= {lost.num_rows, *range(1, 6)}
    elif one["id"] == "session_savings":
        sessions = tables["fetch_sessions"]
        names = ("full_request_bytes_avoided", "request_bytes")
        plain |= {sessions.num_rows, *(pc.sum(sessions[name]).as_py() for name in names)}
    elif one["id"] == "leader_moved":
        shown = evidence(tables, one)
        plain |= {*shown["partition"].to_pylist(), shown.num_rows - 4}
        moved = {round(at / 1e6) for at in _spans(shown)}
        rows = tables["exchanges"].filter(
            pc.is_in(tables["exchanges"]["error_code"], pa.array([6, 74, 75], pa.int32()))
        )
        for client in pc.unique(rows["client_id"]).to_pylist():
            mine = rows.filter(pc.equal(rows["client_id"].cast(pa.string()), client))
            for broker in pc.unique(mine["broker"]).to_pylist():
                own = mine.filter(pc.equal(mine["broker"].cast(pa.string()), broker))["request_first_at"]
                at = [value for value in own.cast(pa.int64()).to_pylist()
                      if any(abs(value / 1e6 - when) <= 6 for when in moved)]  # fmt: skip
                times |= {(max(at) - min(at)) / 1000} if at else set()
    elif one["id"] == "rebalances":
        shown = evidence(tables, one)
        answers = tables["exchanges"].select(["exchange_id", "response_first_at"]).to_pylist()
        ended = {row["exchange_id"]: row["response_first_at"] and _micro(row["response_first_at"]) for row in answers}
        asked: dict[tuple[Any, Any], int] = {}
        for row in sorted(shown.to_pylist(), key=lambda row: row["at"]):
            key = (row["member_id"], row["generation"])
            if row["event"] == "join":
                asked.setdefault(key, _micro(row["at"]))
            elif row["event"] == "sync" and key in asked and ended[row["exchange_id"]]:
                times.add((ended[row["exchange_id"]] - asked[key]) / 1000)
        plain |= set(range(len({row["generation"] for row in shown.to_pylist()})))
    elif one["id"] == "commit_per_record":
        shown = evidence(tables, one)
        seconds = (one["last_at"] - one["first_at"]).total_seconds()
        asked_for = len(pc.unique(shown["exchange_id"]))
        parts = shown.group_by(["topic", "partition"]).aggregate([("offset", "min"), ("offset", "max")]).to_pylist()
        plain |= {round(asked_for / seconds), len(parts), sum(one["offset_max"] - one["offset_min"] for one in parts)}
    elif one["id"] in ("requests_cut_off", "login_cut_off"):
        plain |= set(range(1, one["count"] + 1))
    elif one["id"] == "batches_written_twice":
        crcs = evidence(tables, one)["crc"]
        rows = tables["exchanges"]
        late = rows.filter(pc.and_(pc.fill_null(rows["abandoned"], False), pc.equal(rows["error_code"], 0)))
        batches = tables["record_batches"].filter(pc.is_in(tables["record_batches"]["crc"], crcs.combine_chunks()))
        ids = late["exchange_id"].cast(pa.string()).combine_chunks()
        twice = pc.sum(pc.is_in(batches["exchange_id"].cast(pa.string()), ids)).as_py() or 0
        plain |= {twice, one["count"] - twice}
    elif one["id"] == "recompressed":
        rows = evidence(tables, one).to_pylist()
        sent = set(tables["producers"]["exchange_id"].to_pylist())
        keys = ("topic", "partition", "producer_id", "producer_epoch", "base_sequence", "records")
        codecs: list[dict[tuple[Any, ...], str]] = [{}, {}]
        for row in rows:
            codecs[row["exchange_id"] in sent][tuple(row[key] for key in keys)] = row["codec"]
        for codec in {row["codec"] for row in rows}:
            compared = [key for key in codecs[0].keys() & codecs[1].keys() if codecs[1][key] == codec]
            plain |= {len(compared), len([key for key in compared if codecs[0][key] != codec])}
    elif one["id"] == "mostly_round_trip":
        ids = evidence(tables, one)["connection_id"].to_pylist()
        own = tables["exchanges"].filter(
            pc.is_in(tables["exchanges"]["connection_id"].cast(pa.string()), pa.array(ids))
        )
        far = [
            (row["network_ms"], row["latency_ms"])
            for row in own.select(["exchange_id", "network_ms", "latency_ms"]).to_pylist()
            if row["exchange_id"].split(":")[1].isdigit() and int(row["exchange_id"].split(":")[1]) < 100
            and row["latency_ms"] and (row["network_ms"] or 0) >= max(20, row["latency_ms"] / 2)
        ]  # fmt: skip
        if "Produce" in one["text"]:  # from the broker's end: with the way to the client
            ways = {row["connection_id"]: row["client_rtt_ms"] for row in evidence(tables, one).to_pylist()}
            rows = own.filter(pc.equal(own["api"].cast(pa.string()), "Produce")).to_pylist()
            first = [row for row in rows if int(row["exchange_id"].split(":")[1]) < 100]
            pairs = [(ways[row["connection_id"]], row["latency_ms"]) for row in first]
            far = [(way, way + took) for way, took in pairs if way >= (way + took) / 2]
        plain |= {len(far), 100}
        times |= {float(np.median([pair[n] for pair in far])) for n in (0, 1)}
    elif one["id"] == "round_trip_rose":
        ids = evidence(tables, one)["connection_id"].to_pylist()
        own = tables["exchanges"].filter(
            pc.is_in(tables["exchanges"]["connection_id"].cast(pa.string()), pa.array(ids))
        )
        way = np.nan_to_num(own["network_ms"].to_numpy(zero_copy_only=False), nan=10.0)
        for part in (way[way <= 4], way[way >= 20]):  # the finder's medians are those of a sample
            times |= set(np.linspace(0.9, 1.1, 101) * np.median(part)) if len(part) else set()
        if "asked again" in one["text"]:
            times |= set(np.arange(0.0, 4.1, 0.1))  # of a sample, too
    elif one["id"] in ("growing_lag", "commits_fall_behind"):
        plain |= set(evidence(tables, one)["lag"].drop_null().to_pylist())
        times |= {(_micro(one["last_at"]) - at) / 1000 for at in _spans(tables["fetches"])}
    elif one["id"] == "segments_lost":
        shown = evidence(tables, one)
        again = sum(np.nan_to_num(shown[f"{side}_resent_ms"].to_numpy()) for side in ("request", "response"))
        times |= {float(again.sum()), float(again.max())}
        mine = [row for row in tables["connections"].to_pylist()
                if (row["client_id"], row["broker"]) == (one["client_id"], one["broker"])]  # fmt: skip
        lost, packets = (sum(row[name] or 0 for row in mine) for name in ("lost_segments", "packets"))
        plain |= {lost, packets}
        texts |= {f"{100 * lost / packets:.1f}"}
    elif one["id"] == "broker_stalled":
        plain.add(0)
        text = str(one["text"])
        plain |= {text.count(",") - n for n in range(10)}
    return plain, times, texts


def _unfinished(shown: pa.Table) -> set[int]:
    """How many requests, and how many responses, began and did not end."""
    return {
        pc.sum(pc.and_(pc.is_valid(shown[f"{side}_first_at"]), pc.is_null(shown[f"{side}_last_at"]))).as_py() or 0
        for side in ("request", "response")
    }


def _shares(shown: pa.Table) -> set[float]:
    """Which share of requests' measured time was the network's, followers' or the broker's, in percent."""
    rows = shown.to_pylist()

    def total(name: str) -> float:
        return sum(row[name] or 0.0 for row in rows)

    known = total("latency_ms") - total("queued_ms")
    followers = sum(min(row["replication_ms"] or 0.0, row["broker_ms"] or 0.0) for row in rows)
    way = total("network_ms") + total("request_transfer_ms") + total("response_transfer_ms")
    parts = (way, followers, total("broker_ms") - followers)
    return {100 * min(part / known, 1) for part in parts} if known else set()


def _pauses(fetches: pa.Table, client: str) -> list[tuple[int, int]]:
    """Silences of a client: when the last answer came, when the next fetch was sent."""
    mine = fetches.filter(pc.equal(fetches["client_id"].cast(pa.string()), client)).sort_by("requested_at")
    asked, given = (mine[name].cast(pa.int64()).to_pylist() for name in ("requested_at", "response_first_at"))
    found, latest = [], None
    for begin, end in zip(asked, given, strict=True):
        if begin is None or end is None:
            continue
        if latest is not None and begin > latest:
            found.append((latest, begin))
        latest = end if latest is None else max(latest, end)
    return found


def _span(mine: pa.Table) -> float:
    mine = mine.filter(pc.is_valid(mine["response_first_at"]))
    asked, given = (mine[name].cast(pa.int64()).to_pylist() for name in ("requested_at", "response_first_at"))
    return (max(given) - min(at for at in asked if at is not None)) / 1000

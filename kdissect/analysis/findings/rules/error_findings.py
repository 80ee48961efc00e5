"""Errors: every error code of every API is reported, by its meaning for the client that got it.

Errors that have a sentence of their own elsewhere (logins, permissions, fenced producers, fetch sessions, versions) are
left to it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from kdissect.analysis.exchange_keys import exchange_keys, locate
from kdissect.analysis.findings import evidence as ev
from kdissect.analysis.findings import row_filters
from kdissect.analysis.findings.finders import EVERY_ROW, finder
from kdissect.analysis.findings.limits import Limits
from kdissect.analysis.findings.rules.access_findings import PERMISSION
from kdissect.analysis.findings.rules.transaction_findings import FENCED, UNSUPPORTED_VERSION
from kdissect.analysis.grouping import group
from kdissect.arrays.arrow import MILLI, NULL_TIME, Int64s, distinct, earliest, ints, span, times
from kdissect.arrays.from_numpy import arrow_array
from kdissect.schema.apikeys import ApiKey

SESSION_ERRORS = {"FETCH_SESSION_ID_NOT_FOUND": 70, "INVALID_FETCH_SESSION_EPOCH": 71}
PASSING = {
    "LEADER_NOT_AVAILABLE": 5,
    "COORDINATOR_LOAD_IN_PROGRESS": 14,
    "COORDINATOR_NOT_AVAILABLE": 15,
    "NOT_COORDINATOR": 16,
    "REBALANCE_IN_PROGRESS": 27,
    "NOT_CONTROLLER": 41,
    "CONCURRENT_TRANSACTIONS": 51,
    "MEMBER_ID_REQUIRED": 79,
    "ELECTION_NOT_NEEDED": 84,
    "DUPLICATE_BROKER_REGISTRATION": 101,
    "FETCH_SESSION_TOPIC_ID_ERROR": 106,
    "REBOOTSTRAP_REQUIRED": 129,
}
"""Errors that clients and brokers meet as they start, move or wait their turn, and go on from by themselves."""
PASSING_MS = 30_000.0
"""Longer than this (request.timeout.ms, delivery retries) an error of that kind does not pass."""
AGAIN_MS = 5000.0
"""From one such answer to a client to its next one, for both to be one wait: clients ask again within seconds
(retry.backoff.max.ms is one), and members heartbeat every three."""
MOVED = {"NOT_LEADER_OR_FOLLOWER": 6, "FENCED_LEADER_EPOCH": 74, "UNKNOWN_LEADER_EPOCH": 75}
"""What clients and followers are told that have not heard of a new leader yet."""
MISSING = {"UNKNOWN_TOPIC_OR_PARTITION": 3, "UNKNOWN_TOPIC_ID": 100}
MISSING_COUNT = 10
"""Answers that something is missing before it is more than a topic being created or deleted: clients ask again after
retry.backoff.ms, 100 ms, so that is a second of it."""
LOST_PLACE = {"ILLEGAL_GENERATION": 22, "UNKNOWN_MEMBER_ID": 25, "FENCED_INSTANCE_ID": 82, "FENCED_MEMBER_EPOCH": 110,
              "UNRELEASED_INSTANCE_ID": 111, "STALE_MEMBER_EPOCH": 113}  # fmt: skip
OUT_OF_RANGE = 1
RETRIED = {
    "CORRUPT_MESSAGE": 2,
    "REQUEST_TIMED_OUT": 7,
    "NETWORK_EXCEPTION": 13,
    "NOT_ENOUGH_REPLICAS": 19,
    "NOT_ENOUGH_REPLICAS_AFTER_APPEND": 20,
    "KAFKA_STORAGE_ERROR": 56,
    "OFFSET_NOT_AVAILABLE": 78,
    "THROTTLING_QUOTA_EXCEEDED": 89,
    **MOVED,
    **MISSING,
    **PASSING,
}
"""Errors after which clients try again (RetriableException in Kafka's Errors)."""
OLDEST_FETCH, OLDEST_PRODUCE = 4, 3
"""Brokers that read no Fetch below this version read no Produce below that one (KIP-896, Kafka 4.0), though they say 0:
librdkafka takes its compression from that."""
DATA_APIS = (
    ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.LIST_OFFSETS, ApiKey.METADATA, ApiKey.OFFSET_COMMIT, ApiKey.OFFSET_FETCH,
    ApiKey.FIND_COORDINATOR, ApiKey.JOIN_GROUP, ApiKey.HEARTBEAT, ApiKey.LEAVE_GROUP, ApiKey.SYNC_GROUP,
    ApiKey.API_VERSIONS, ApiKey.INIT_PRODUCER_ID, ApiKey.OFFSET_FOR_LEADER_EPOCH, ApiKey.ADD_PARTITIONS_TO_TXN,
    ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.END_TXN, ApiKey.TXN_OFFSET_COMMIT, ApiKey.CONSUMER_GROUP_HEARTBEAT,
    ApiKey.SHARE_GROUP_HEARTBEAT, ApiKey.SHARE_FETCH, ApiKey.SHARE_ACKNOWLEDGE, ApiKey.STREAMS_GROUP_HEARTBEAT,
)  # fmt: skip
"""APIs by which applications read and write. The others are asked by people, tools and brokers, and their errors
are answers to these."""


@finder(
    exchanges=row_filters.failed, fetch_partitions=row_filters.failed, topics=EVERY_ROW, producers=EVERY_ROW,
    record_batches=row_filters.without_producer_id,
)  # fmt: skip
def errors(tables: ev.Tables, limits: Limits) -> list[ev.Finding]:
    """Every error of every API, one sentence for each error and what kind of harm it does."""
    exchanges = ev.get(tables, "exchanges")
    code, api = ints(exchanges, "error_code", 0), ints(exchanges, "api_key")
    wrong = (code != 0) & ~_told_elsewhere(code, api)
    rows = np.flatnonzero(wrong)
    if not len(rows):
        return []
    failed = exchanges.take(arrow_array(rows))
    code, api = code[rows], api[rows]
    asked = np.isin(api, DATA_APIS)
    found = []
    for number in distinct(code).tolist():
        for data in (True, False):
            mine = np.flatnonzero((code == number) & (asked == data))
            if len(mine):
                found += _report_error(tables, failed.take(arrow_array(mine)), number, api[mine], data)
    return found


def _told_elsewhere(code: Int64s, api: Int64s) -> npt.NDArray[np.bool_]:
    known = [*row_filters.LOGIN.values(), *PERMISSION.values(), *FENCED.values(), UNSUPPORTED_VERSION]
    session = (api == ApiKey.FETCH) & np.isin(code, list(SESSION_ERRORS.values()))
    elsewhere: npt.NDArray[np.bool_] = np.isin(code, known) | session
    return elsewhere


def _report_error(tables: ev.Tables, rows: pa.Table, code: int, api: Int64s, data: bool) -> list[ev.Finding]:
    name = rows["error"][0].as_py() or f"error {code}"
    begin = times(rows, "request_first_at")
    first, lasted = earliest(begin), span(begin) / MILLI
    groups = group(rows, ["api", "client_id"])
    counts = groups.count()
    apis_of, clients_of = (groups.keys[column].to_pylist() for column in ("api", "client_id"))
    asked = [
        {"answers": int(counts[at]), "api": apis_of[at], "client": clients_of[at]}
        for at in np.argsort(-counts, kind="stable").tolist()
    ]
    names = pc.unique(rows["client_id"].cast(pa.string())).to_pylist()
    whole = rows.filter(arrow_array(~ev.equal(rows, "status", "partial") | pc.is_valid(rows["client_id"]).to_numpy()))
    followers = all(str(one).startswith(row_filters.BROKERS) for one in pc.unique(whole["client_id"]).to_pylist())
    kind, severity = judged(code, api, data, len(rows), _longest_wait(rows), followers)
    apis = pc.unique(rows["api"].cast(pa.string())).to_pylist()
    condition = ev.both(f"error_code = {code}", "" if None in apis else ev.among("api", sorted(apis)))
    about = _only(rows)
    told = rows if code in MISSING.values() else _of_clients(rows)
    fetched, produced = _fetched_in_vain(tables, told, code), _written_in_vain(tables, told)
    named = sorted({*fetched, *produced})
    undescribed = _never_described(tables) if code == MISSING["UNKNOWN_TOPIC_OR_PARTITION"] else []
    existed = code in MISSING.values() and bool(named) and not undescribed and _had_ids(tables, named)
    unknown = [] if named else undescribed
    topics = named or unknown
    about |= {"topic": topics[0]} if len(topics) == 1 else {}
    about |= {"cause": "unknown"} if existed else {}
    for_long = first is not None and lasted >= 1
    values = {
        "error": name, "answers": len(rows), "asked": asked, "clients": sorted(names, key=str), "topics": topics,
        "at": None if for_long else first, "since": first if for_long else None, "took": lasted,
        "fetched": fetched, "produced": produced, "undescribed": unknown, "existed": existed,
    }  # fmt: skip
    return ev.finding(tables, kind, severity, "exchanges", condition, values, **about)


def _longest_wait(rows: pa.Table) -> float:
    """Milliseconds for which one client got these answers, each within AGAIN_MS of the one before."""
    at, code = times(rows, "request_first_at"), group(rows, ["client_id"]).code
    order = np.lexsort((at, code))
    order = order[at[order] != NULL_TIME]
    if not len(order):
        return 0.0
    at, code = at[order], code[order]
    new = np.append(True, (np.diff(code) != 0) | (np.diff(at) > AGAIN_MS * MILLI))
    begins = np.flatnonzero(new)
    ends = np.append(begins[1:], len(at)) - 1
    return float((at[ends] - at[begins]).max()) / MILLI


def _of_clients(rows: pa.Table) -> pa.Table:
    """Those that no follower sent: it fetches all that its leader has, whatever the topic."""
    names = rows["client_id"].cast(pa.string())
    follows = [
        name for name in pc.unique(names).to_pylist() if name is not None and name.startswith(row_filters.BROKERS)
    ]
    return rows.filter(pc.invert(pc.is_in(names, pa.array(follows, pa.string()))))


def _fetched_in_vain(tables: ev.Tables, exchanges: pa.Table, code: int) -> list[str]:
    """Topics that Fetch answers of these exchanges say this error of, as far as their names are known."""
    partitions = ev.get(tables, "fetch_partitions")
    some = partitions.filter(arrow_array(ints(partitions, "error_code", 0) == code))
    return ev.names(some["topic"].filter(arrow_array(_rows_of(some, exchanges) >= 0)))


def _written_in_vain(tables: ev.Tables, exchanges: pa.Table) -> list[str]:
    """Topics that the Produce requests among these exchanges wrote to; none where one of them wrote to several, of
    which any may have the error."""
    topics: set[tuple[int, str]] = set()
    written = exchanges.filter(arrow_array(ints(exchanges, "api_key") == ApiKey.PRODUCE))
    for name in ("producers", "record_batches") if written.num_rows else ():
        batches = ev.get(tables, name)
        at = _rows_of(batches, written)
        mine = np.flatnonzero(at >= 0)
        topics |= set(zip(at[mine].tolist(), batches["topic"].take(arrow_array(mine)).to_pylist(), strict=True))
    names = {topic for _, topic in topics}
    return sorted(names) if len({row for row, _ in topics}) == len(topics) and None not in names else []


def _rows_of(table: pa.Table, exchanges: pa.Table) -> Int64s:
    """Of each row the number of its exchange among these, -1 for another one."""
    return locate(exchange_keys(table["exchange_id"]), exchange_keys(exchanges["exchange_id"]))


def _had_ids(tables: ev.Tables, topics: list[str]) -> bool:
    """Whether each of these topics was there: a Fetch that got such an error names it by an id, and one of its
    partitions. A client has an id from an answer."""
    partitions, known = ev.get(tables, "fetch_partitions"), ev.get(tables, "topics")
    counts = dict(zip(known["topic_id"].to_pylist(), ints(known, "partitions", 0).tolist(), strict=True))
    told = partitions.filter(arrow_array(np.isin(ints(partitions, "error_code", 0), list(MISSING.values()))))
    asked = group(told, ["topic", "topic_id", "partition"]).keys.to_pylist()
    there = {
        one["topic"] for one in asked
        if one["topic_id"] is not None and (one["partition"] or 0) < counts.get(one["topic_id"], 0)
    }  # fmt: skip
    return there.issuperset(topics)


def _never_described(tables: ev.Tables) -> list[str]:
    """Topics that Metadata named, without a partition in any message."""
    topics = ev.get(tables, "topics")
    rows = topics.filter(arrow_array((ints(topics, "partitions", 0) == 0) & ev.equal(topics, "source", "Metadata")))
    return ev.names(rows["topic"])


def judged(code: int, api: Int64s, data: bool, count: int, wait_ms: float, followers: bool) -> tuple[str, str]:
    """(kind, severity) of an error: `data`: of the APIs in DATA_APIS; `wait_ms`: of `_longest_wait`; `followers`:
    brokers alone were told so, or those whose client ids were cut off, which may be brokers."""
    if code in PASSING.values():
        return "passing_error", ev.INFO if wait_ms < PASSING_MS else ev.LOW
    if not data:
        return "request_refused", ev.INFO
    if code in MOVED.values():
        return "stale_leader", ev.INFO if followers else ev.LOW
    if code in MISSING.values():
        produced = bool((api == ApiKey.PRODUCE).any())
        return "missing_topic", ev.MEDIUM if produced or count >= MISSING_COUNT else ev.INFO
    if code in LOST_PLACE.values():
        return "member_unknown", ev.INFO if bool((api == ApiKey.LEAVE_GROUP).all()) else ev.MEDIUM
    if code == OUT_OF_RANGE:
        return "offset_out_of_range", ev.MEDIUM
    if code in RETRIED.values():
        return "retriable_error", ev.MEDIUM
    if bool((api == ApiKey.PRODUCE).any()):
        return "records_refused", ev.HIGH
    return "request_failed", ev.MEDIUM


def _only(rows: pa.Table) -> dict[str, Any]:
    """Client and broker, where all rows have the same one."""
    found = {}
    for name in ("client_id", "broker"):
        values = pc.unique(rows[name].cast(pa.string()))
        if len(values) == 1 and values[0].is_valid:
            found[name] = values[0].as_py()
    return found


def _closed_by_broker(connections: pa.Table, limits: Limits) -> Any:
    """Connections that their broker closed first."""
    return pc.equal(connections["closed_by"], "broker")


@finder(exchanges=row_filters.of_status("unanswered"), connections=_closed_by_broker, api_versions=EVERY_ROW)
def versions_in_vain(tables: ev.Tables, limits: Limits) -> list[ev.Finding]:
    """Requests of a version that their broker lacks, as its own answers to anybody say, and that it closed the
    connection upon.

    Only ApiVersions is answered in another version: of all other APIs a broker cannot read such a request.
    """
    exchanges, offered = ev.get(tables, "exchanges"), ev.get(tables, "api_versions")
    closed = ev.owners(exchanges, ev.get(tables, "connections")) >= 0
    if not closed.any() or not offered.num_rows:
        return []
    names = ("broker", "api_key", "min_version", "max_version")
    ranges = {
        (broker, key): (least, most)
        for broker, key, least, most in zip(*(offered[name].to_pylist() for name in names), strict=True)
        if least is not None and most is not None
    }
    groups = group(exchanges, ["api_key", "api", "api_version", "broker"])
    found: dict[tuple[str | None, int, tuple[int, int]], list[int]] = {}
    for code in np.flatnonzero(groups.count(closed)).tolist():
        key, api, version, broker = (groups.keys[name][code].as_py() for name in groups.keys.column_names)
        supported = _supported(ranges, broker, key)
        if version is not None and supported is not None and not supported[0] <= version <= supported[1]:
            found.setdefault((api, version, supported), []).append(code)
    made: list[ev.Finding] = []
    for (api, version, (least, most)), codes in found.items():
        rows = exchanges.take(arrow_array(np.flatnonzero(np.isin(groups.code, codes))))
        brokers = ev.names(rows["broker"])
        values = {
            "clients": ev.client_ids(rows), "requests": rows.num_rows, "api": api, "version": version,
            "brokers": brokers, "least": least, "most": most,
        }  # fmt: skip
        condition = ev.both(
            ev.equals("api", api), f"api_version = {version}", "status = 'unanswered'", ev.among("broker", brokers)
        )
        made += ev.finding(
            tables, "unsupported_version", ev.HIGH, "exchanges", condition, values, case="closed", **_only(rows)
        )
    return made


def _supported(ranges: dict[tuple[str, int], tuple[int, int]], broker: str | None, key: int) -> tuple[int, int] | None:
    """The least and the highest version of an API that a broker reads, None where it has not said so."""
    if broker is None or (broker, key) not in ranges:
        return None
    least, most = ranges[broker, key]
    fetch = ranges.get((broker, ApiKey.FETCH))
    if key == ApiKey.PRODUCE and fetch is not None and fetch[0] >= OLDEST_FETCH:
        least = max(least, OLDEST_PRODUCE)
    return least, most


@finder(exchanges=row_filters.failed)
def versions(tables: ev.Tables, limits: Limits) -> list[ev.Finding]:
    """Round trips lost to versions that the broker does not have.

    Newer clients ask an older broker so at the start of each connection, by design, for ApiVersions: one line for all.
    """
    exchanges = ev.get(tables, "exchanges")
    refused = ints(exchanges, "error_code", 0) == UNSUPPORTED_VERSION
    first = refused & (ints(exchanges, "api_key") == ApiKey.API_VERSIONS)
    found = []
    groups = group(exchanges, ["api"])
    for code in np.flatnonzero(groups.count(refused)).tolist():
        api = groups.keys["api"][code].as_py()
        rows = exchanges.take(arrow_array(np.flatnonzero(refused & (groups.code == code))))
        clients = sorted(pc.unique(rows["client_id"].cast(pa.string())).to_pylist(), key=str)
        values = {"clients": clients, "client": clients[0], "asked": rows.num_rows, "api": api}
        condition = ev.both(ev.equals("api", api), f"error_code = {UNSUPPORTED_VERSION}")
        severity = ev.INFO if first[refused & (groups.code == code)].all() else ev.LOW
        found += ev.finding(
            tables, "unsupported_version", severity, "exchanges", condition, values,
            case="one" if len(clients) == 1 else "many", **_only(rows),
        )  # fmt: skip
    return found


FINDERS = (errors, versions, versions_in_vain)

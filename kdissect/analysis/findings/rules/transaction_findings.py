"""Findings about transactions: producers that were fenced or timed out, and readers that waited for them."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kdissect.analysis.exchange_keys import exchange_keys, locate
from kdissect.analysis.findings import evidence as ev
from kdissect.analysis.findings import row_filters
from kdissect.analysis.findings.finders import EVERY_ROW, finder
from kdissect.analysis.findings.limits import Limits
from kdissect.analysis.grouping import group
from kdissect.arrays.arrow import MILLI, NULL_TIME, earliest, ints, latest, times
from kdissect.schema.apikeys import ApiKey
from kdissect.tables.topics import topics_or_ids

FENCED = {"INVALID_PRODUCER_EPOCH": 47, "TRANSACTION_COORDINATOR_FENCED": 52, "PRODUCER_FENCED": 90}
INVALID_TXN_STATE = 48
CONCURRENT_TRANSACTIONS = 51
"""The first answer to an InitProducerId while a transaction of its transactional id is open: the coordinator raises
the epoch, aborts the transaction, and lets the new instance ask again."""
UNSUPPORTED_VERSION = 35
HELD_BACK_MS = 1000.0
"""How long a last stable offset stands still behind the high watermark: transactions usually commit within a second."""
OVERDUE_MS = 30_000.0
"""Beyond its timeout a transaction is open until its coordinator looks for it, which it does every 10 s by default
(transaction.abort.timed.out.transaction.cleanup.interval.ms), and its markers are written."""
MOST_PARTITIONS = 10
"""Partitions that get a line of their own; the worst first."""
MOST_CLIENTS = 5
"""Clients that get a sentence each; more are told in one."""
NO_TIMEOUT_MS = 2**31 - 1
"""What idempotent producers without transactions send as their transaction timeout."""


TIMED_OUT = "epoch"
"""The case of a producer whose epoch the coordinator raised when its transaction timed out."""
LATE = {
    TIMED_OUT: ("transaction_timed_out", "end"),
    "taken": ("producer_fenced", "taken"),
    "twin": ("producer_fenced", "twin"),
}
"""Kind and case of a transaction that was over when its producer came to end it, by the case of its reason."""
STARTED = row_filters.of_api(ApiKey.INIT_PRODUCER_ID)
"""Exchanges that `started` reads."""


class Started(NamedTuple):
    """An InitProducerId that was answered with a producer id."""

    at: int
    connection: str
    client: str | None
    transactional_id: str | None
    producer: int
    epoch: int
    timeout_ms: int


def started(tables: ev.Tables) -> list[Started]:
    """Producers as they registered, in order of time."""
    return [one for one in _registrations(tables) if one.producer >= 0]


def _registrations(tables: ev.Tables) -> list[Started]:
    """Producers as they registered, and as they ended another one's transaction to do so (producer -1), in order of
    time."""
    ids, exchanges = ev.get(tables, "producer_ids"), ev.get(tables, "exchanges")
    if not ids.num_rows or not exchanges.num_rows:
        return []
    place = locate(exchange_keys(ids["exchange_id"]), exchange_keys(exchanges["exchange_id"]))
    at = times(exchanges, "request_first_at")
    found = []
    for row, i in zip(ids.to_pylist(), place.tolist(), strict=True):
        if i < 0:
            continue
        producer = -1 if row["producer_id"] is None else row["producer_id"]
        if producer >= 0 or exchanges["error_code"][i].as_py() == CONCURRENT_TRANSACTIONS:
            connection, client = (exchanges[name][i].as_py() for name in ("connection_id", "client_id"))
            found.append(
                Started(
                    int(at[i]), connection, client, row["transactional_id"], producer, row["producer_epoch"] or 0,
                    row["transaction_timeout_ms"] or NO_TIMEOUT_MS,
                )
            )  # fmt: skip
    return sorted(found, key=lambda one: one.at)


@finder(exchanges=(row_filters.failed, STARTED), producer_ids=EVERY_ROW, producers=EVERY_ROW)
def fencing(tables: ev.Tables, limits: Limits) -> list[ev.Finding]:
    """Producers whose epoch is out of date: another instance took their transactional id, or the coordinator raised it
    when their transaction timed out. The text says which of the two where the capture shows it."""
    exchanges = ev.get(tables, "exchanges")
    fenced = np.isin(ints(exchanges, "error_code", 0), list(FENCED.values()))
    if not fenced.any():
        return _outdated(tables)
    groups = group(exchanges, ["client_id"])
    at = times(exchanges, "request_first_at")
    known = _registrations(tables)
    codes = ", ".join(str(number) for number in sorted(FENCED.values()))
    found = []
    clients = np.flatnonzero(groups.count(fenced)).tolist()
    if len(clients) > MOST_CLIENTS:
        values = {
            "clients": groups.keys["client_id"].take(pa.array(clients)).to_pylist(), "answers": int(fenced.sum()),
            "errors": ev.error_names(exchanges, np.flatnonzero(fenced)),
        }  # fmt: skip
        return ev.finding(
            tables, "producer_fenced", ev.HIGH, "exchanges", f"error_code in ({codes})", values, case="many"
        ) + _outdated(tables)
    for code in clients:
        client = groups.keys["client_id"][code].as_py()
        mine = np.flatnonzero(fenced & (groups.code == code))
        reason = _find_reason(tables, client, earliest(at[mine]), known)
        kind = "transaction_timed_out" if reason.case == TIMED_OUT else "producer_fenced"
        values = {"errors": ev.error_names(exchanges, mine), "answers": len(mine), **reason.values}
        condition = ev.both(ev.equals("client_id", client), f"error_code in ({codes})")
        found += ev.finding(
            tables, kind, ev.HIGH, "exchanges", condition, values, case=reason.case, client_id=client,
            transactional_id=reason.transactional_id,
        )  # fmt: skip
    return found + _outdated(tables)


@finder(exchanges=(row_filters.failed, STARTED), producer_ids=EVERY_ROW, producers=EVERY_ROW)
def late_ends(tables: ev.Tables, limits: Limits) -> list[ev.Finding]:
    """Transactions that the coordinator had given up when their producer came to end them: EndTxn is refused as of no
    open transaction where the producer knows no newer epoch. It timed out, or another instance took its id."""
    exchanges = ev.get(tables, "exchanges")
    late = (ints(exchanges, "api_key") == ApiKey.END_TXN) & (ints(exchanges, "error_code", 0) == INVALID_TXN_STATE)
    if not late.any():
        return []
    groups, at = group(exchanges, ["client_id"]), times(exchanges, "request_first_at")
    known = _registrations(tables)
    found = []
    for code in np.flatnonzero(groups.count(late)).tolist()[:MOST_CLIENTS]:
        client = groups.keys["client_id"][code].as_py()
        mine = np.flatnonzero(late & (groups.code == code))
        reason = _find_reason(tables, client, earliest(at[mine]), known)
        if reason.case not in LATE:
            continue  # the error itself is reported
        kind, case = LATE[reason.case]
        values = {"errors": ev.error_names(exchanges, mine), "answers": len(mine), **reason.values}
        condition = ev.both(ev.equals("client_id", client), f"api = 'EndTxn' and error_code = {INVALID_TXN_STATE}")
        found += ev.finding(
            tables, kind, ev.HIGH, "exchanges", condition, values, case=case, client_id=client,
            transactional_id=reason.transactional_id,
        )  # fmt: skip
    return found


class Reason(NamedTuple):
    """Why a producer's epoch is outdated."""

    case: str
    """Of the catalogue's texts."""
    transactional_id: str | None = None
    values: Mapping[str, Any] = {}
    """What the text names."""


def _find_reason(tables: ev.Tables, client: str | None, when: int | None, started: list[Started]) -> Reason:
    """Why a client was fenced at `when` (None: unknown)."""
    if when is None:
        return Reason("unknown")
    own = [
        one for one in started
        if one.client == client and one.at < when and one.transactional_id is not None and one.producer >= 0
    ]  # fmt: skip
    names = {one.transactional_id for one in own}
    if len(names) != 1:
        return Reason("unknown")
    name = own[0].transactional_id
    same = [one for one in started if one.transactional_id == name and one.at < when]
    twin = same[-1]
    if len({one.connection for one in same}) > 1 or twin.client != client:
        return Reason("twin" if twin.client == client else "taken", name, {"by": twin.client, "at": twin.at})
    timeout = own[-1].timeout_ms
    silent = _silent(tables, own[-1].producer, when)
    if silent is not None and silent >= timeout:
        return Reason(TIMED_OUT, name, {"silent": silent, "timeout": timeout})
    return Reason("unseen", name)


def _silent(tables: ev.Tables, producer: int, when: int) -> float | None:
    """Milliseconds from the last batch of a producer before an instant until then."""
    producers = ev.get(tables, "producers")
    at = times(producers, "sent_at")
    at = at[(ints(producers, "producer_id") == producer) & (at < when)]
    last = latest(at)
    return None if last is None else (when - last) / MILLI


def _outdated(tables: ev.Tables) -> list[ev.Finding]:
    """Producers that went on with an epoch which a newer instance had raised."""
    producers = ev.get(tables, "producers")
    fenced, groups = ev.equal(producers, "sequence", "fenced"), group(producers, ["producer_id"])
    counts = groups.count(fenced)
    found = []
    for code in np.flatnonzero(counts).tolist():
        producer = groups.keys["producer_id"][code].as_py()
        values = {"producer": producer, "batches": int(counts[code])}
        condition = ev.both(f"producer_id = {producer}", "sequence = 'fenced'")
        found += ev.finding(tables, "outdated_producer_epoch", ev.HIGH, "producers", condition, values)
    return found


def _with_stable_offset(partitions: pa.Table, limits: Limits) -> Any:
    """Partitions that name their last stable offset."""
    return pc.greater_equal(partitions["last_stable_offset"], 0)


def _transactional(batches: pa.Table, limits: Limits) -> Any:
    """Batches of transactions as brokers have numbered them."""
    return pc.and_(batches["is_transactional"], pc.greater_equal(batches["leader_epoch"], 0))


@finder(
    fetch_partitions=_with_stable_offset,
    fetches=EVERY_ROW,
    record_batches=_transactional,
    exchanges=STARTED,
    producer_ids=EVERY_ROW,
)
def held_back(tables: ev.Tables, limits: Limits) -> list[ev.Finding]:
    """read_committed consumers behind an open transaction.

    A stable offset that moves does not by itself bring a partition into an incremental answer, so a partition that is
    held back is in one answer and then in none. It counts as held back until the next answer that tells another
    offset, or until the last fetch of the capture.

    A transaction that answers still show long after its timeout is hanging (KIP-664): its coordinator does not know it
    any more, or does not end it.
    """
    partitions, fetches = ev.get(tables, "fetch_partitions"), ev.get(tables, "fetches")
    partitions = partitions.append_column("name", topics_or_ids(partitions))
    stable, high = ints(partitions, "last_stable_offset"), ints(partitions, "high_watermark")
    at, when = ev.fetched_at(tables, partitions)
    committed = ev.reads_committed(tables, at)
    good = (ints(partitions, "error_code", 0) == 0) & (when != NULL_TIME) & committed & (stable >= 0)
    groups = group(partitions, ["name", "partition"])
    rows = np.flatnonzero(good)
    rows = groups.sort_rows(rows, when)
    if not len(rows):
        return []
    code, offset, instant = groups.code[rows], stable[rows], when[rows]
    new_topic = np.append(code[1:] != code[:-1], True)
    ends = np.flatnonzero(new_topic | np.append(offset[1:] != offset[:-1], True))
    last = latest(times(fetches, "response_first_at"))
    assert last is not None  # of the good rows at least
    held: list[tuple[float, int, int, bool, float]] = []
    begin = 0
    for end in ends.tolist():
        behind = np.flatnonzero(high[rows[begin : end + 1]] > offset[begin : end + 1]) + begin
        begin = end + 1
        if len(behind):
            released = int(instant[end + 1]) if not new_topic[end] else last
            length = (released - int(instant[behind[0]])) / MILLI
            if length >= HELD_BACK_MS:
                shown = (int(instant[behind[-1]]) - int(instant[behind[0]])) / MILLI
                held.append((length, int(rows[behind[0]]), int(offset[end]), bool(new_topic[end]), shown))
    held.sort(reverse=True)
    found = []
    for length, first, where, still, shown in held[:MOST_PARTITIONS]:
        topic, topic_id, name, partition = (
            partitions[column][first].as_py() for column in ("topic", "topic_id", "name", "partition")
        )
        since = int(when[first])
        writer = _find_writer(tables, name, partition, where)
        client, transaction = (writer.client, writer.transactional_id) if isinstance(writer, Started) else (None, None)
        values: dict[str, Any] = {"offset": where, "still": still, "lasted": length}
        hanging = isinstance(writer, Started) and shown >= writer.timeout_ms + OVERDUE_MS
        if isinstance(writer, Started):
            values |= {"by": [client], "known": writer.producer}
            values |= {"timeout": writer.timeout_ms, "shown": shown} if hanging else {}
        else:
            values["other"] = writer
        condition = ev.both(
            ev.of_topic(topic, topic_id), ev.equals("partition", partition), f"last_stable_offset = {where}",
            "last_stable_offset < high_watermark",
        )  # fmt: skip
        found += ev.finding(
            tables, "held_back_by_transaction", ev.HIGH if hanging else ev.MEDIUM, "fetch_partitions", condition,
            values, case="hanging" if hanging else "open", topic=topic, partition=partition, client_id=client,
            transactional_id=transaction, first_at=since, last_at=since + int(length * MILLI),
        )  # fmt: skip
    return found


def _find_writer(
    tables: ev.Tables, topic: str | None, partition: int | None, offset: int
) -> Started | int | None:  # fmt: skip
    """The producer that wrote the transactional batch at the last stable offset, where a client fetched it; its id
    alone where its start was not captured. `topic`: its name, or its id where no name is known.

    Only brokers number offsets and write their leader epoch: batches in Produce requests have neither.
    """
    batches = ev.get(tables, "record_batches")
    same = (
        (ints(batches, "partition") == partition)
        & (ints(batches, "base_offset") <= offset)
        & (ints(batches, "last_offset") >= offset)
        & (ints(batches, "is_transactional", 0) > 0)
        & (ints(batches, "is_control", 0) == 0)
        & (ints(batches, "leader_epoch") >= 0)
    )
    names = topics_or_ids(batches)
    for row in np.flatnonzero(same).tolist():
        if names[row].as_py() == topic:
            producer = batches["producer_id"][row].as_py()
            known = [one for one in started(tables) if one.producer == producer and one.transactional_id]
            return known[0]._replace(timeout_ms=max(one.timeout_ms for one in known)) if known else producer
    return None


FINDERS = (fencing, late_ends, held_back)

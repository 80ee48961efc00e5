"""Findings about consumers: pauses, throttling, polling and lag."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kdissect.analysis.findings import evidence as ev
from kdissect.analysis.findings import row_filters
from kdissect.analysis.findings.falling_behind import (
    LogEnds,
    Paces,
    each_fallen,
    find_held_back,
    report_fallen,
)
from kdissect.analysis.findings.finders import EVERY_ROW, finder
from kdissect.analysis.findings.limits import Limits
from kdissect.analysis.findings.missing_packets import UnseenRequests
from kdissect.analysis.findings.rules.access_findings import refused_connections
from kdissect.analysis.findings.rules.silence_findings import LOST_SEGMENTS, OF_SILENCES, silences
from kdissect.analysis.findings.standstills import stands_still, standstills
from kdissect.analysis.findings.time_shares import TimeShares
from kdissect.analysis.grouping import group, runs_with_gaps
from kdissect.analysis.holds.throttle_windows import throttle_windows
from kdissect.arrays.arrow import MILLI, NULL_TIME, Int64s, distinct, earliest, ints, latest, reals, span, times
from kdissect.arrays.from_numpy import arrow_array
from kdissect.arrays.growing import runs
from kdissect.schema.apikeys import ApiKey
from kdissect.tables.topics import topics_or_ids

EMPTY_FETCHES = 100
"""Empty answers of one client before its polling is called a loop: a consumer between two batches has a few."""
EMPTY_SHARE = 0.9
"""Of its answered fetches: a client that mostly gets data polls as it should."""
EMPTY_PER_SECOND = 20.0
"""Empty fetches a second: with the usual fetch.max.wait.ms of 500 an idle consumer sends two."""
EMPTY_SECONDS = 1.0
"""For at least so long: a burst of empty answers is a client that catches up with many partitions."""
EMPTY_MS = 10.0
"""Latency of an empty answer that was no long poll."""
PAUSE_MS = 1000.0
"""Silence of a consumer that had records: applications handle a poll's records in milliseconds."""
PAUSE_FETCHES = 5
"""Fetches of a client before its habits are known."""
PAUSED_SHARE = 0.5
"""Of the time: more than half means that the application sets the pace, not the brokers."""
PAUSED_SPAN_MS = 3000.0
"""Of at least so long; shorter spans are a start or an end."""
STOPPED_MS = 2000.0
"""A pause on all connections, rare for the client, that is worth more than information."""
THROTTLED_MS = 1000.0
"""Throttling that is felt; less is how quotas smooth a load."""
VERY_THROTTLED_MS = 60_000.0
"""A minute lost: delivery.timeout.ms is two."""
SMALL_BYTES = (1 << 14) - 1
"""fetch.max.bytes up to which the limit itself is the cause: it holds no full batch of a producer (batch.size)."""
LIMITED = 10
"""Answers cut by a byte limit: single ones happen to every consumer that catches up."""
COMMITS = 100
"""Commits of a partition before they are called too many; a consumer that stops commits once or twice more."""
COMMITS_PER_SECOND = 20.0
"""auto.commit.interval.ms is 5 s; an application that commits after each poll of a busy topic reaches a few."""
HABITUAL_COMMITS = 6
"""Instants at which a client commits before it has a habit."""
STILL_MS = 10_000.0
"""Commits that stand still for less are an application with a slow record, or one that waits for its batch to fill."""
STILL_GAPS = 5.0
"""Times as long as every gap between two commits before."""
PARTS = 4
"""Fetches went on to further records in each of so many parts of that time: else they may have waited for a broker."""
STILL_RECORDS = 20
"""Records at least that it fetched meanwhile: a topic without records needs no commits."""
RECORDS_PER_COMMIT = 1.5
"""Between one and two: a record each, with a few polls that had more."""
MOST_PARTITIONS = 10
"""Partitions that get a line of their own; the worst first."""


def _filled_up(partitions: pa.Table, limits: Limits) -> Any:
    """Partitions with as many bytes of records as the fetch takes of one."""
    return pc.greater_equal(partitions["record_bytes"], partitions["partition_max_bytes"])


def _with_resent_response(exchanges: pa.Table, limits: Limits) -> Any:
    """Exchanges of whose response a part was sent again."""
    return pc.greater(exchanges["response_resent_ms"], 0)


@finder(
    fetches=EVERY_ROW,
    exchanges=(
        row_filters.of_api(ApiKey.JOIN_GROUP),
        _with_resent_response,
        *OF_SILENCES,
    ),
    connections=EVERY_ROW,
)
def paused(tables: ev.Tables, limits: Limits) -> list[ev.Finding]:
    """Consumers that had records and did not ask for more: the application was at work, or stood still.

    A consumer counts as silent between an answer and its next fetch while none of its fetches was open, at any
    broker. A throttled consumer, one that waits for a rebalance, and one that never asked again are left alone. Time
    until an answer was acknowledged is the network's where parts of it were sent again. The part of a pause counts
    that the ledger gives to no broker, no network and no quota. A pause in which the client's host was refused a
    connection is left alone: some clients ask no other broker while they look for one. So is one in which fetches may
    have been sent that were not captured, and one in a standstill. A client that was met in its middle may have asked
    before the capture for as long as its longest pause.
    """
    fetches = ev.get(tables, "fetches")
    begun, answered = times(fetches, "requested_at"), times(fetches, "response_first_at")
    consumer = (ints(fetches, "is_follower", 0) == 0) & (ints(fetches, "is_raft", 0) == 0)
    rows = np.flatnonzero(consumer & (begun != NULL_TIME) & (answered != NULL_TIME))
    if len(rows) < PAUSE_FETCHES:
        return []
    groups = group(fetches, ["client_id", "client_ip" if "client_ip" in fetches.schema.names else "client_id"])
    rows, clients = groups.sort_rows(rows, begun), groups.keys["client_id"].to_pylist()
    visits = [
        (rows[start:end], client)
        for start, end in runs_with_gaps(groups.code[rows], begun[rows], PAUSE_MS * MILLI)
        if end - start >= PAUSE_FETCHES and (client := clients[groups.code[rows[start]]]) is not None
    ]
    if not visits:
        return []
    size, throttle = ints(fetches, "record_bytes", 0), np.nan_to_num(reals(fetches, "throttle_ms"))
    exchanges, connections = ev.get(tables, "exchanges"), ev.get(tables, "connections")
    joins, again, refused = _joins(tables), _sent_again(tables), _refusal_times(connections)
    lossy, requests, still = _with_losses(connections), UnseenRequests(exchanges, connections), standstills(exchanges)
    stopped = [
        one
        for one in silences(exchanges, connections)
        if one.sure and one.end - one.begin >= STOPPED_MS * MILLI and one.client not in lossy
    ]
    ids = fetches["exchange_id"]
    shares = TimeShares(tables)
    begun_here = set(ev.names(connections["client_id"].filter(arrow_array(ints(connections, "start_seen", 0) > 0))))
    found = []
    for mine, client in visits:
        until = np.maximum.accumulate(answered[mine])
        gaps = (begun[mine][1:] - until[:-1]) / MILLI
        last = np.maximum.accumulate(np.where(answered[mine] == until, np.arange(len(mine)), 0))[:-1]
        had = (size[mine][last] > 0) & (throttle[mine][last] == 0)
        pauses: list[tuple[float, int]] = []
        for at in np.flatnonzero(had & (gaps >= PAUSE_MS)).tolist():
            begin, stop = int(until[at]), int(begun[mine[at + 1]])
            turned_away = refused.get(client, NONE)
            if ((turned_away >= begin) & (turned_away < stop)).any():
                continue
            if requests.may_be_missing(client, begin, stop) or stands_still(still, begin, stop):
                continue
            joined = joins.get(client, NONE)
            joined = joined[(joined > begin) & (joined < stop)]
            length = ((stop if (joined_at := earliest(joined)) is None else joined_at) - begin) / MILLI
            spent = shares.spent("client", client, begin, begin + int(length * MILLI))
            length -= max(
                sum(spent.get(owner, 0.0) for owner in OTHERS), again.get(ids[int(mine[last[at]])].as_py(), 0.0)
            )
            if length >= PAUSE_MS:
                pauses.append((length, at))
        if not pauses:
            continue
        span = (int(until[-1]) - int(begun[mine[0]])) / MILLI
        total = sum(length for length, _ in pauses)
        longest, worst = max(pauses)
        unseen = 0.0 if client in begun_here else longest
        bound = total >= PAUSED_SHARE * (span + unseen) and span >= PAUSED_SPAN_MS
        values = {
            "pauses": len(pauses), "total": total, "span": span, "longest": longest, "worst": int(until[worst]),
        }  # fmt: skip
        first = int(until[min(at for _, at in pauses)])
        alone = any(one.client == client and one.end == int(begun[mine[at + 1]]) for one in stopped for _, at in pauses)
        severity = ev.MEDIUM if bound else ev.LOW if alone else ev.INFO
        found += ev.finding(
            tables, "client_paused", severity, "fetches",
            ev.both(ev.equals("client_id", client), f"requested_at >= {ev.instant(int(begun[mine[0]]))}",
                 "(is_follower is null or not is_follower)"),
            values, client_id=client, first_at=first, last_at=int(max(begun[mine[at + 1]] for _, at in pauses)),
        )  # fmt: skip
    return found


OTHERS = ("broker", "replication", "transaction", "network", "throttled", "agreed", "gone")
"""Owners of time in a pause that is not the application's."""
NONE: Int64s = np.empty(0, np.int64)


def _with_losses(connections: pa.Table) -> set[str]:
    """Clients of whose segments several were sent again: their silence may be the network's."""
    rows = connections.filter(arrow_array(ints(connections, "lost_segments", 0) >= LOST_SEGMENTS))
    return set(ev.names(rows["client_id"]))


def _refusal_times(connections: pa.Table) -> dict[str, Int64s]:
    """When the hosts of clients were refused connections, by client id."""
    flags, started = refused_connections(connections), times(connections, "started_at")
    addresses, clients = (connections[name].to_pylist() for name in ("client_ip", "client_id"))
    at_host: dict[str, list[int]] = {}
    for row in np.flatnonzero(flags).tolist():
        at_host.setdefault(addresses[row], []).append(int(started[row]))
    found: dict[str, list[int]] = {}
    for client, address in sorted({*zip(clients, addresses, strict=True)}, key=str) if at_host else ():
        if client is not None and address in at_host:
            found.setdefault(client, []).extend(at_host[address])
    return {client: np.array(when, np.int64) for client, when in found.items()}


def _sent_again(tables: ev.Tables) -> dict[str, float]:
    """Time that answers lost because parts of them were sent again and only then acknowledged, ms by exchange id."""
    exchanges = ev.get(tables, "exchanges")
    lost = np.nan_to_num(reals(exchanges, "response_resent_ms"))
    rows = np.flatnonzero(lost > 0)
    return dict(zip(exchanges["exchange_id"].take(arrow_array(rows)).to_pylist(), lost[rows].tolist(), strict=True))


def _joins(tables: ev.Tables) -> dict[str, Int64s]:
    """When clients asked to join their group, by client id."""
    exchanges = ev.get(tables, "exchanges")
    joined = np.flatnonzero(ints(exchanges, "api_key") == ApiKey.JOIN_GROUP)
    at = times(exchanges, "request_first_at")[joined]
    clients = exchanges["client_id"].take(arrow_array(joined)).to_pylist()
    found: dict[str, list[int]] = {}
    for client, when in zip(clients, at.tolist(), strict=True):
        found.setdefault(client, []).append(when)
    return {client: np.array(sorted(when), np.int64) for client, when in found.items()}


@finder(exchanges=row_filters.throttled, connections=EVERY_ROW)
def throttled(tables: ev.Tables, limits: Limits) -> list[ev.Finding]:
    """Clients that ran into quotas, until the end of the last window in which they were muted."""
    exchanges = ev.get(tables, "exchanges")
    throttle = np.nan_to_num(reals(exchanges, "throttle_ms"))
    groups = group(exchanges, ["client_id"])
    count = groups.count(throttle > 0)
    windows, _ = throttle_windows(exchanges, group(exchanges, ["connection_id"]).code)
    # An answer that opened no window was itself kept back for so long, by brokers before 2.0.
    end = times(exchanges, "response_first_at").copy()
    begin = end - (throttle * MILLI).astype(np.int64)
    begin[windows.row], end[windows.row] = windows.begin, windows.end
    connections = ev.get(tables, "connections")
    closed = np.append(times(connections, "ended_at"), NULL_TIME)[ev.owners(exchanges, connections)]
    end = np.where(closed == NULL_TIME, end, np.minimum(end, closed))
    last = np.maximum(end, times(exchanges, "response_last_at"))
    spans = [np.flatnonzero((groups.code == code) & (throttle > 0)) for code in range(len(count))]
    total = np.array([ev.union_ms(begin[mine], end[mine]) for mine in spans])
    found = []
    for code in np.argsort(-total, kind="stable").tolist():
        if not count[code]:
            break
        client = groups.keys["client_id"][code].as_py()
        values = {"answers": int(count[code]), "total": total[code]}
        condition = ev.both(ev.equals("client_id", client), "throttle_ms > 0")
        severity = ev.HIGH if total[code] >= VERY_THROTTLED_MS else ev.MEDIUM if total[code] >= THROTTLED_MS else ev.LOW
        found += ev.finding(
            tables, "throttled_client", severity, "exchanges", condition, values, client_id=client,
            last_at=latest(last[spans[code]]),
        )  # fmt: skip
    return found


@finder(fetches=EVERY_ROW)
def tight_loops(tables: ev.Tables, limits: Limits) -> list[ev.Finding]:
    """Clients that poll again and again for nothing, without waiting."""
    fetches = ev.get(tables, "fetches")
    followers = (ints(fetches, "is_follower", 0) > 0) | (ints(fetches, "is_raft", 0) > 0)
    answered = ~np.isnan(reals(fetches, "latency_ms")) & ~followers
    empty = (
        answered
        & (ints(fetches, "record_bytes") == 0)
        & (ints(fetches, "error_code", -(2**31)) == 0)
        & (ints(fetches, "partitions_with_error") == 0)
        & (reals(fetches, "latency_ms") < EMPTY_MS)
    )
    begun, longest = times(fetches, "requested_at"), ints(fetches, "max_wait_ms", 0)
    groups = group(fetches, ["client_id", "broker"])
    counts, all_answered = groups.count(empty), groups.count(answered)
    found = []
    for code in np.flatnonzero((counts >= EMPTY_FETCHES) & (counts >= EMPTY_SHARE * all_answered)).tolist():
        rows = (groups.code == code) & empty & (begun != NULL_TIME)
        mine = begun[rows]
        seconds = span(mine) / 1e6
        if seconds < EMPTY_SECONDS or counts[code] / seconds < EMPTY_PER_SECOND:
            continue
        client, broker = groups.keys["client_id"][code].as_py(), groups.keys["broker"][code].as_py()
        wait = float(longest[rows].max())
        early = bool((longest[rows] >= EMPTY_MS).all())
        values = {
            "answers": int(counts[code]), "took": seconds * 1000, "rate": counts[code] / seconds,
            "wait": wait if wait < EMPTY_MS else None, "agreed": wait if early else None,
        }  # fmt: skip
        condition = ev.both(
            ev.equals("client_id", client), ev.equals("broker", broker), "record_bytes = 0 and error_code = 0",
            f"partitions_with_error = 0 and latency_ms < {EMPTY_MS:g}",
        )  # fmt: skip
        found += ev.finding(
            tables, "empty_polling", ev.LOW, "fetches", condition, values, client_id=client, broker=broker,
            cause="unknown" if early else "settings",
        )  # fmt: skip
    return found


@finder(fetches=EVERY_ROW, fetch_partitions=_filled_up)
def limited(tables: ev.Tables, limits: Limits) -> list[ev.Finding]:
    """Responses cut by max_bytes or partition_max_bytes."""
    found = []
    fetches = ev.get(tables, "fetches")
    most = ints(fetches, "max_bytes")
    cut = (most > 0) & (ints(fetches, "record_bytes", 0) >= most)
    groups = group(fetches, ["client_id"])
    for code in np.flatnonzero(groups.count(cut) >= LIMITED).tolist():
        client = groups.keys["client_id"][code].as_py()
        condition = ev.both(ev.equals("client_id", client), "max_bytes > 0 and record_bytes >= max_bytes")
        least = int(most[cut & (groups.code == code)].min())
        severity = ev.LOW if least <= SMALL_BYTES else ev.INFO
        values = {"answers": int(groups.count(cut)[code]), "least": least if severity == ev.LOW else None}
        found += ev.finding(tables, "limited_by_max_bytes", severity, "fetches", condition, values, client_id=client)
    partitions = ev.of_topics_apart(ev.get(tables, "fetch_partitions"))
    most = ints(partitions, "partition_max_bytes")
    cut = (most > 0) & (ints(partitions, "record_bytes", 0) >= most)
    groups = group(partitions, ev.PLACE)
    counts = groups.count(cut)
    for code in np.argsort(-counts, kind="stable")[:MOST_PARTITIONS].tolist():
        if counts[code] < LIMITED:
            break
        topic, topic_id, partition = groups.keys.slice(code, 1).to_pylist()[0].values()
        condition = ev.both(
            ev.of_topic(topic, topic_id), ev.equals("partition", partition),
            "partition_max_bytes > 0 and record_bytes >= partition_max_bytes",
        )  # fmt: skip
        found += ev.finding(
            tables, "limited_by_partition_max_bytes", ev.INFO, "fetch_partitions", condition,
            {"answers": int(counts[code])}, topic=topic, partition=partition,
        )  # fmt: skip
    return found


def _with_lag(partitions: pa.Table, limits: Limits) -> Any:
    """Partitions whose lag is known."""
    return pc.is_valid(partitions["lag"])


@finder(
    fetch_partitions=_with_lag,
    fetches=EVERY_ROW,
    exchanges=(row_filters.slow, row_filters.of_status("partial")),
    connections=EVERY_ROW,
)
def growing_lag(tables: ev.Tables, limits: Limits) -> list[ev.Finding]:
    """Consumers whose fetches fall behind the end of a partition's log, by time."""
    partitions, fetches = ev.of_topics_apart(ev.get(tables, "fetch_partitions")), ev.get(tables, "fetches")
    at, when = ev.fetched_at(tables, partitions)
    follower = np.append(ints(fetches, "is_follower", 0) > 0, False)[at]
    committed = ev.reads_committed(tables, at)
    clients = arrow_array(at, mask=at < 0)
    partitions = partitions.append_column("client_id", fetches["client_id"].take(clients))
    groups = group(partitions, ["client_id", *ev.PLACE])
    lag, high, stable = (ints(partitions, name) for name in ("lag", "high_watermark", "last_stable_offset"))
    rows = np.flatnonzero((lag >= 0) & (high >= 0) & (when != NULL_TIME) & ~follower)
    # A reader of committed records cannot read beyond the last stable offset.
    end = np.where(committed & (stable >= 0), stable, high)
    lag = np.maximum(lag - (high - end), 0)
    some = list(each_fallen(groups, rows, when, lag, end, LogEnds(partitions, when)))
    if not some:
        return []
    paces, names = Paces(tables), groups.keys["client_id"].to_pylist()
    some = [one for one in some if not paces.were_set_by_others(names[one.code], one.since, one.until)]
    return report_fallen(tables, "growing_lag", "fetch_partitions", groups.keys, some)


@finder(
    offset_commits=EVERY_ROW,
    fetches=EVERY_ROW,
    fetch_partitions=_with_lag,
    exchanges=(row_filters.slow, row_filters.of_status("partial")),
    connections=EVERY_ROW,
)
def commits(tables: ev.Tables, limits: Limits) -> list[ev.Finding]:
    """Clients that commit after each record, and clients whose commits fall behind the end of the log, by time."""
    rows = ev.get(tables, "offset_commits")
    at = times(rows, "at")
    good = np.flatnonzero((at != NULL_TIME) & (ints(rows, "error_code", -1) == 0))
    rows, at = ev.of_topics_apart(rows.take(arrow_array(good))), at[good]
    if not rows.num_rows:
        return []
    found = _each_record(tables, rows, at)
    groups = group(rows, ["group_id", "client_id", *ev.PLACE])
    lag, end = ints(rows, "lag", -1), ints(rows, "high_watermark", -1)
    known = np.flatnonzero((lag >= 0) & (end >= 0))
    partitions = ev.of_topics_apart(ev.get(tables, "fetch_partitions"))
    ends = LogEnds(partitions, ev.fetched_at(tables, partitions)[1])
    some = list(each_fallen(groups, known, at, lag, end, ends))
    if not some:
        return found
    paces, held = Paces(tables), find_held_back(tables)
    places, clients = ev.places(groups.keys), groups.keys["client_id"].to_pylist()
    some = [
        one
        for one in some
        if places[one.code] not in held and not paces.were_set_by_others(clients[one.code], one.since, one.until)
    ]
    return found + report_fallen(tables, "commits_fall_behind", "offset_commits", groups.keys, some)


@finder(offset_commits=EVERY_ROW, fetches=EVERY_ROW, fetch_partitions=_with_lag, connections=EVERY_ROW)
def commits_stopped(tables: ev.Tables, limits: Limits) -> list[ev.Finding]:
    """Clients that committed at a pace, and then not at all, while they fetched the records of the partitions on.

    A library that fetches ahead, or that has no limit between two polls, hides an application that stands still.
    Requests to commit count, answered or not. The connection of the last commit stayed open meanwhile.
    """
    rows = ev.get(tables, "offset_commits")
    at = times(rows, "at")
    known = np.flatnonzero(at != NULL_TIME)
    rows, at = ev.of_topics_apart(rows.take(arrow_array(known))), at[known]
    readers = group(rows, ["group_id", "client_id"])
    if not rows.num_rows:
        return []
    found, positions = list[ev.Finding](), FetchPositions(tables)
    clients = readers.keys["client_id"].to_pylist()
    order = readers.sort_rows(np.arange(len(at)), at)
    for begin_row, end_row in runs(readers.code[order]):
        mine = order[begin_row:end_row]
        code = int(readers.code[mine[0]])
        client = clients[code]
        instants = np.append(at[mine], max(positions.last_of(client), int(at[mine[-1]])))
        if len(mine) < HABITUAL_COMMITS or (np.diff(instants) < STILL_MS * MILLI).all():
            continue
        instants = distinct(instants)
        gaps = np.diff(instants)
        place = int(np.argmax(gaps))
        begin, end = int(instants[place]), int(instants[place + 1])
        if place + 1 < HABITUAL_COMMITS or gaps[place] < max(STILL_MS * MILLI, STILL_GAPS * int(gaps[:place].max())):
            continue
        whole = rows.take(arrow_array(mine))
        if not _stayed_open(tables, whole.filter(arrow_array(at[mine] == begin)), end):
            continue
        before = whole.filter(arrow_array(at[mine] <= begin))
        parts = set(ev.places(before))
        steps = positions.moved(client, parts, begin, end)
        records = sum(steps)
        if records < STILL_RECORDS or not all(steps):
            continue
        name = readers.keys["group_id"][code].as_py()
        values = {
            "gap": float(np.median(gaps[:place])) / MILLI, "stopped": begin, "took": (end - begin) / MILLI,
            "records": records, "topics": ev.names(topics_or_ids(before)),
        }  # fmt: skip
        condition = ev.both(ev.equals("group_id", name), ev.equals("client_id", client), f"at <= {ev.instant(end)}")
        found += ev.finding(
            tables, "commits_stopped", ev.MEDIUM, "offset_commits", condition, values, client_id=client, group_id=name,
            first_at=begin, last_at=end,
        )  # fmt: skip
    return found


def _each_record(tables: ev.Tables, rows: pa.Table, at: Int64s) -> list[ev.Finding]:
    """Clients that commit after each record: as many requests as offsets that their commits went on by."""
    found = []
    offset = ints(rows, "offset", -1)
    clients = group(rows, ["group_id", "client_id"])
    parts = group(rows, ["group_id", "client_id", *ev.PLACE])
    low, high = np.full(len(parts), np.iinfo(np.int64).max), np.full(len(parts), -1, np.int64)
    np.minimum.at(low, parts.code, offset)
    np.maximum.at(high, parts.code, offset)
    for code in np.flatnonzero(clients.count() >= COMMITS).tolist():
        mine = np.flatnonzero(clients.code == code)
        asked = len(pc.unique(rows["exchange_id"].take(arrow_array(mine))))
        seconds = span(at[mine]) / 1e6
        own = distinct(parts.code[mine])
        records = int((high[own] - low[own]).sum())
        if asked < COMMITS or asked < COMMITS_PER_SECOND * seconds or records > RECORDS_PER_COMMIT * asked:
            continue
        name, client = clients.keys["group_id"][code].as_py(), clients.keys["client_id"][code].as_py()
        values = {
            "requests": asked, "took": seconds * 1000, "rate": asked / seconds, "records": records,
            "partitions": len(own),
        }  # fmt: skip
        condition = ev.both(ev.equals("group_id", name), ev.equals("client_id", client), "error_code = 0")
        found += ev.finding(
            tables, "commit_per_record", ev.LOW, "offset_commits", condition, values, client_id=client, group_id=name
        )
    return found


class FetchPositions:
    """How far each client has fetched, by what its answered fetches asked for."""

    def __init__(self, tables: ev.Tables) -> None:
        partitions, fetches = ev.of_topics_apart(ev.get(tables, "fetch_partitions")), ev.get(tables, "fetches")
        row, when = ev.fetched_at(tables, partitions)
        lag, high = ints(partitions, "lag", -1), ints(partitions, "high_watermark", -1)
        good = np.flatnonzero((row >= 0) & (when != NULL_TIME) & (lag >= 0) & (high >= 0))
        good = good[np.argsort(when[good], kind="stable")]
        self._at, self._offset = when[good], high[good] - lag[good]
        clients = group(fetches.select(["client_id"]).take(arrow_array(row[good])), ["client_id"])
        self._of = dict(zip(clients.keys["client_id"].to_pylist(), clients.rows(), strict=True))
        """By client its rows, in order of time."""
        self._parts = group(partitions.select(ev.PLACE).take(arrow_array(good)), ev.PLACE)

    def last_of(self, client: str | None) -> int:
        """When the last fetch of a client was answered; microseconds, NULL_TIME for none."""
        mine = self._at[self._of.get(client, NONE)]
        return int(mine[-1]) if len(mine) else NULL_TIME

    def moved(self, client: str | None, parts: set[tuple[Any, ...]], begin: int, end: int) -> list[int]:
        """By how many records a client's fetches of these partitions went on in each of the PARTS of a span. `parts`:
        PLACE of each."""
        rows = self._of.get(client, NONE)
        rows = rows[(self._at[rows] >= begin) & (self._at[rows] <= end)]
        found = np.zeros(PARTS, np.int64)
        for code in distinct(self._parts.code[rows]).tolist():
            if ev.places(self._parts.keys.slice(code, 1))[0] not in parts:
                continue
            mine = rows[self._parts.code[rows] == code]
            part = np.minimum((self._at[mine][1:] - begin) * PARTS // max(end - begin, 1), PARTS - 1)
            np.add.at(found, part, np.maximum(np.diff(self._offset[mine]), 0))
        return [int(one) for one in found]


def _stayed_open(tables: ev.Tables, commits: pa.Table, until: int) -> bool:
    """Whether a connection with one of these commits was open at an instant."""
    connections = ev.get(tables, "connections")
    names = ev.names(commits["exchange_id"])
    ids = {name.partition(":")[0] for name in names}
    mine = np.array([one in ids for one in connections["connection_id"].to_pylist()], bool)
    return bool((mine & (times(connections, "ended_at") >= until)).any())


FINDERS = (commits, commits_stopped, paused, throttled, tight_loops, limited, growing_lag)

"""Findings about brokers: requests that took long."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kdissect.analysis.exchange_keys import exchange_keys, locate
from kdissect.analysis.findings import evidence as ev
from kdissect.analysis.findings import row_filters
from kdissect.analysis.findings.finders import EVERY_ROW, finder
from kdissect.analysis.findings.limits import Limits
from kdissect.analysis.findings.network_gaps import (
    EXPLAINED,
    explained_by_gaps,
    may_share_a_gap,
    maybe_long_on_the_way,
    possible_gaps,
)
from kdissect.analysis.findings.rules.window_findings import MOST_OF_TIME, on_closed_windows, percent_in_line
from kdissect.analysis.findings.standstills import MOSTLY, common_standstills, standstills, within_standstills
from kdissect.analysis.grouping import group
from kdissect.analysis.holds.throttle_windows import Muted, throttle_windows
from kdissect.arrays.arrow import MILLI, Int64s, distinct, ints, reals, times
from kdissect.arrays.from_numpy import arrow_array
from kdissect.schema.apikeys import ApiKey

WAITING_APIS = (
    ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP, ApiKey.CREATE_TOPICS, ApiKey.DELETE_TOPICS, ApiKey.DELETE_RECORDS,
    ApiKey.CREATE_PARTITIONS, ApiKey.ELECT_LEADERS, ApiKey.ALTER_PARTITION_REASSIGNMENTS, ApiKey.BROKER_HEARTBEAT,
    ApiKey.SHARE_FETCH,
)  # fmt: skip
"""APIs whose answers wait for others by design."""
NO_ACKS = -2
MOST_NAMED = 20
"""Connections that a filter names one by one."""
SAMPLES = 50
"""Produce requests of a topic before their median is its habit."""
SLOW_WRITE_MS = 10.0
"""A broker appends to the page cache in less than a millisecond; longer medians are a disk that it waits for."""
SLOWER = 2.0
"""Times as long as for the other topics, by the median and by the first quartile: what all topics share, such as a busy
host, is no topic's."""


@finder(
    exchanges=(row_filters.slow, row_filters.throttled, row_filters.first_and_last_of_clients),
    produces=row_filters.slow, connections=EVERY_ROW,
)  # fmt: skip
def slow(tables: ev.Tables, limits: Limits) -> list[ev.Finding]:
    """Requests of every API that took `limits.slow_ms` and more, but for those that wait by design or were throttled.

    Fetches are judged by what they took beyond the agreed wait. A request for most of whose time a quota muted its
    connection was throttled, though it was still being sent when that began. One that spent most of its time in a
    standstill is left alone, unless the network had that time.
    """
    exchanges = ev.get(tables, "exchanges")
    latency, key = reals(exchanges, "latency_ms"), ints(exchanges, "api_key")
    late = (latency >= limits.slow_ms) & (key != ApiKey.FETCH) & ~np.isin(key, WAITING_APIS)
    for hold in ("throttled", "rebalance"):
        late &= ~ev.equal(exchanges, "hold", hold)
    if not late.any():
        return []
    groups = group(exchanges, ["api", "broker"])
    begun = times(exchanges, "request_first_at")
    end = begun + (np.nan_to_num(latency) * MILLI).astype(np.int64)
    connection = group(exchanges, ["connection_id"]).code
    windows, _ = throttle_windows(exchanges, connection)
    muted = Muted(windows, connection).within(connection, begun, end)
    late &= muted < MOST_OF_TIME * (end - begun)
    lost = np.nan_to_num(reals(exchanges, "network_ms")) >= EXPLAINED * latency
    late &= lost | ~within_standstills(common_standstills(exchanges), begun, end, MOST_OF_TIME)
    members = {code: np.flatnonzero(late & (groups.code == code)) for code in distinct(groups.code[late]).tolist()}
    total = {code: ev.union_ms(begun[mine], end[mine]) for code, mine in members.items()}
    found = []
    for code in sorted(members, key=lambda code: -total[code]):
        mine = members[code]
        api, broker = groups.keys["api"][code].as_py(), groups.keys["broker"][code].as_py()
        rows = exchanges.take(arrow_array(mine))
        part, share = largest_part(tables, rows)
        cause = cause_of(part)
        values = {
            "requests": len(mine), "api": api, "slow": limits.slow_ms, "total": total[code],
            "longest": float(latency[mine].max()), "clients": ev.client_ids(rows), f"of_{part}": share,
        }  # fmt: skip
        condition = ev.both(
            ev.equals("broker", broker), ev.equals("api", api), f"latency_ms >= {limits.slow_ms:g}",
            "(hold is null or hold not in ('throttled', 'rebalance'))",
        )  # fmt: skip
        about = _one_client(rows)
        severity = _severity(tables, limits, total[code], broker, about.get("client_id"))
        if cause == "unknown" and ev.equal(rows, "status", "partial").all():
            severity = ev.INFO  # a quota may have held them back: what their answers say of it was cut off
        found += ev.finding(
            tables, "slow_requests", severity, "exchanges", condition, values,
            case="queue" if part == "queue" else "part", cause=cause, broker=broker, **about,
        )  # fmt: skip
    return found


def _severity(tables: ev.Tables, limits: Limits, lost_ms: float, broker: str | None, client: str | None) -> str:
    """Medium for time that is felt by the client that lost it, or by the broker's clients together where they are
    several (None), else info."""
    wall = ev.wall_ms(tables, "broker", broker) if client is None else ev.wall_ms(tables, "client_id", client)
    return ev.MEDIUM if limits.is_felt(lost_ms, wall) else ev.INFO


def acks_of(tables: ev.Tables, exchanges: pa.Table) -> Int64s:
    """What the Produce request of each exchange says of acks, NO_ACKS for others; -1 is all in-sync replicas."""
    produces = ev.get(tables, "produces")
    at = locate(exchange_keys(exchanges["exchange_id"]), exchange_keys(produces["exchange_id"]))
    return np.append(ints(produces, "acks", NO_ACKS), NO_ACKS)[at]


def largest_part(tables: ev.Tables, rows: pa.Table) -> tuple[str, float | None]:
    """(part, percent): the part that most of the measured time of exchanges went to; unknown where none has
    MOST_OF_TIME of it. What one lay queued behind another is that other one's time, and the transfer of one whose
    connection had a closed receive window is the receiver's. It is the queue's where many were sent at once and each
    took its turn. Reads `produces` and `connections` of their time."""
    acks, closed = acks_of(tables, rows), on_closed_windows(rows, ev.get(tables, "connections"))
    in_line = percent_in_line(rows, closed)
    if in_line is not None:
        return "queue", in_line
    network, broker = np.nan_to_num(reals(rows, "network_ms")), reals(rows, "broker_ms")
    bound = np.isnan(reals(rows, "network_ms"))  # broker_ms holds the network's time too
    for side in ("request", "response"):
        network = network + np.where(closed, 0.0, np.nan_to_num(reals(rows, f"{side}_transfer_ms")))
    waited = reals(rows, "replication_ms")
    followers = np.minimum(np.nan_to_num(waited), np.nan_to_num(broker))
    # it may have waited for followers
    unsure = (ints(rows, "api_key") == ApiKey.PRODUCE) & ~np.isin(acks, (0, 1)) & np.isnan(waited)
    own = np.where(unsure | bound, 0.0, np.nan_to_num(broker) - followers)
    known = float((np.nan_to_num(reals(rows, "latency_ms")) - np.nan_to_num(reals(rows, "queued_ms"))).sum())
    for cause, part in (("network", network), ("follower", followers), ("broker", own)):
        if known and float(part.sum()) >= MOST_OF_TIME * known:
            return cause, 100 * min(float(part.sum()) / known, 1)
    return "unknown", None


def cause_of(part: str) -> str:
    """The cause that a part of `largest_part` is: a queue has none that shows."""
    return "unknown" if part == "queue" else part


@finder(
    fetches=EVERY_ROW, exchanges=(maybe_long_on_the_way, row_filters.slow, row_filters.first_and_last_of_clients),
    connections=EVERY_ROW,
)  # fmt: skip
def slow_fetches(tables: ev.Tables, limits: Limits) -> list[ev.Finding]:
    """Fetches that took `limits.slow_ms` and more beyond what they agreed to, but for those that waited while the
    network between the two hosts was gone, or may have been, or in a standstill."""
    fetches, connections = ev.get(tables, "fetches"), ev.get(tables, "connections")
    excess = reals(fetches, "excess_ms")
    late = excess >= limits.slow_ms
    if not late.any():
        return []
    groups = group(fetches, ["broker"])
    worst = groups.quantiles(np.where(late, excess, np.nan), [1.0])[0]
    answered = times(fetches, "response_first_at")
    since = answered - (np.nan_to_num(excess) * MILLI).astype(np.int64)
    exchanges = ev.get(tables, "exchanges")
    gaps = possible_gaps(exchanges, connections)
    still = standstills(exchanges)
    common = [one for one in still if one.is_of_no_single_broker]
    late &= ~within_standstills(common, since, answered, MOSTLY)
    late &= ~explained_by_gaps(gaps, fetches, connections, since, answered)
    late &= ~may_share_a_gap(gaps, fetches, connections, since, answered)
    found = []
    for code in np.flatnonzero(groups.count(late)).tolist():
        broker = groups.keys["broker"][code].as_py()
        mine = np.flatnonzero(late & (groups.code == code))
        total, count, rows = ev.union_ms(since[mine], answered[mine]), len(mine), fetches.take(arrow_array(mine))
        values = {
            "fetches": count, "slow": limits.slow_ms, "total": total, "longest": float(worst[code]),
            "clients": ev.client_ids(rows),
        }  # fmt: skip
        condition = ev.both(ev.equals("broker", broker), f"excess_ms >= {limits.slow_ms:g}")
        about = _one_client(rows)
        severity = _severity(tables, limits, total, broker, about.get("client_id"))
        if within_standstills(still, since[mine], answered[mine], MOSTLY).all():
            about["cause"] = "unknown"
        found += ev.finding(tables, "slow_fetches", severity, "fetches", condition, values, broker=broker, **about)
    return found


def _one_client(rows: pa.Table) -> dict[str, Any]:
    names = pc.unique(rows["client_id"].cast(pa.string())).to_pylist()
    return {"client_id": names[0]} if len(names) == 1 and names[0] is not None else {}


def _slow_replication(produces: pa.Table, limits: Limits) -> Any:
    """Produce requests that waited long for followers."""
    return pc.greater_equal(produces["replication_ms"], limits.slow_ms)


@finder(
    produces=_slow_replication, exchanges=(row_filters.slow, row_filters.first_and_last_of_clients),
    connections=EVERY_ROW,
)  # fmt: skip
def slow_followers(tables: ev.Tables, limits: Limits) -> list[ev.Finding]:
    """Produce requests that waited long for followers, leader by leader, and which followers they waited for. Those
    that waited in a standstill are left alone."""
    produces = ev.get(tables, "produces")
    waited = np.nan_to_num(reals(produces, "replication_ms"))
    slow = waited >= limits.slow_ms
    if not slow.any():
        return []
    answered = times(produces, "response_first_at")
    since = answered - (waited * MILLI).astype(np.int64)
    common = common_standstills(ev.get(tables, "exchanges"))
    slow &= ~within_standstills(common, since, answered, MOSTLY)
    groups = group(produces, ["broker"])
    found = []
    for code in np.flatnonzero(groups.count(slow)).tolist():
        broker = groups.keys["broker"][code].as_py()
        mine = np.flatnonzero(slow & (groups.code == code))
        rows = produces.take(arrow_array(mine))
        followers = Counter(node for nodes in rows["waited_for"].to_pylist() for node in nodes or ())
        clients = sorted({str(name) for name in rows["client_id"].to_pylist() if name is not None})
        total = ev.union_ms(since[mine], answered[mine])
        values = {
            "requests": len(mine), "clients": clients, "slow": limits.slow_ms, "total": total,
            "longest": float(waited[mine].max()),
            "followers": [{"node": node, "waits": count} for node, count in followers.most_common()],
        }  # fmt: skip
        condition = ev.both(ev.equals("broker", broker), f"replication_ms >= {limits.slow_ms:g}")
        wall = ev.wall_ms(tables, "client_id", clients[0]) if len(clients) == 1 else 0.0
        severity = ev.MEDIUM if limits.is_felt(total, wall) else ev.INFO
        found += ev.finding(
            tables, "slow_followers", severity, "produces", condition, values, broker=broker,
            client_id=clients[0] if len(clients) == 1 else None,
        )  # fmt: skip
    return found


def _first_of_connections(produces: pa.Table, limits: Limits) -> Any:
    """Produce requests among the first FIRST_REQUESTS of their connection."""
    return row_filters.among_first(produces)


@finder(produces=_first_of_connections, record_batches=row_filters.without_producer_id, producers=EVERY_ROW)
def slow_topics(tables: ev.Tables, limits: Limits) -> list[ev.Finding]:
    """Topics to which brokers write much more slowly than to others: their disks, or a flush after each message."""
    produces = ev.get(tables, "produces")
    own, acks = reals(produces, "broker_ms"), ints(produces, "acks", NO_ACKS)
    own = np.where(acks == 1, own, own - reals(produces, "replication_ms"))  # of acks=all only where that is known
    pairs = _topics_of(produces, [ev.get(tables, name) for name in ("record_batches", "producers")])
    row = ints(pairs, "row")
    alone = (np.bincount(row, minlength=produces.num_rows)[row] == 1) & ~np.isnan(own[row])
    row, groups = row[alone], group(pairs.filter(arrow_array(alone)), ev.TOPIC)
    named = zip(*(groups.keys[name].to_pylist() for name in ev.TOPIC), strict=True)
    by_topic = {topic: row[mine] for topic, mine in zip(named, groups.rows(), strict=True)}
    figures = {topic: np.quantile(own[rows], (0.25, 0.5)) for topic, rows in by_topic.items() if len(rows) >= SAMPLES}
    found = []
    for topic, (quartile, median) in sorted(figures.items(), key=lambda one: (-one[1][1], str(one[0]))):
        others = [one for name, one in figures.items() if name != topic]
        least, usual = np.median(others, axis=0).tolist() if others else (np.nan, np.nan)
        if not (median >= max(SLOW_WRITE_MS, SLOWER * usual) and quartile >= SLOWER * least):
            continue
        rows = produces.take(arrow_array(by_topic[topic]))
        brokers, clients = ev.names(rows["broker"]), ev.names(rows["client_id"])
        values = {
            "brokers": brokers, "clients": clients, "requests": rows.num_rows, "median": median, "usual": usual,
            "topic": topic[0] or topic[1],
        }  # fmt: skip
        condition = _sampled_requests(rows)
        found += ev.finding(
            tables, "slow_topic", ev.LOW, "produces", condition, values, topic=topic[0],
            broker=brokers[0] if len(brokers) == 1 else None, client_id=clients[0] if len(clients) == 1 else None,
        )  # fmt: skip
    return found


def _topics_of(produces: pa.Table, tables: Sequence[pa.Table]) -> pa.Table:
    """Each `row` of `produces` with each topic (`ev.TOPIC`) that rows of these tables name for its request."""
    ids = produces["exchange_id"].cast(pa.string()).combine_chunks()
    parts = []
    for table in tables:
        row = pc.index_in(table["exchange_id"].cast(pa.string()), value_set=ids)
        apart = ev.of_topics_apart(table)
        topics = [apart[name].cast(pa.string()) for name in ev.TOPIC]
        named = pa.table([row, *topics], ["row", *ev.TOPIC])
        parts.append(named.filter(pc.and_(row.is_valid(), pc.or_(*(one.is_valid() for one in topics)))))
    return group(pa.concat_tables(parts), ["row", *ev.TOPIC]).keys


def _sampled_requests(rows: pa.Table) -> str:
    """The filter for Produce requests among the first of their connections: of each connection from the first to the
    last; of MOST_NAMED connections at most."""
    asked = times(rows, "requested_at")
    owner = np.array(rows["connection_id"].to_pylist(), object)
    parts = []
    for name in ev.names(rows["connection_id"])[:MOST_NAMED]:
        mine = asked[owner == name]
        within = f"requested_at >= {ev.instant(int(mine.min()))} and requested_at <= {ev.instant(int(mine.max()))}"
        parts.append(f"({ev.equals('connection_id', name)} and {within})")
    return parts[0] if len(parts) == 1 else f"({' or '.join(parts)})"


FINDERS = (slow, slow_fetches, slow_followers, slow_topics)

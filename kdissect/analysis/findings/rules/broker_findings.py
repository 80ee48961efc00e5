"""Findings about brokers: those that stood still, and requests that took long."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kdissect.analysis.exchange_keys import exchange_keys, locate
from kdissect.analysis.findings import evidence as ev
from kdissect.analysis.findings import row_filters
from kdissect.analysis.findings.finders import EVERY_ROW, finder
from kdissect.analysis.findings.limits import Limits
from kdissect.analysis.findings.rules.window_findings import on_closed_windows
from kdissect.analysis.findings.time_shares import TimeShares
from kdissect.analysis.grouping import group
from kdissect.arrays.arrow import MILLI, NULL_TIME, Flags, Int64s, ints, reals, times

MOST_OF_TIME = 0.6
"""Share of the time of slow requests that makes a part their cause."""
STALL_MS = 1000.0
"""Silence of a broker that owes answers: garbage collection and slow disks take tenths of a second, a second is felt
by everybody."""
TOGETHER_MS = 200.0
"""Answers that follow the end of a silence this closely had waited for it."""
WAITING_CONNECTIONS = 2
"""Connections that wait at least: what one connection waits for may be its own."""
NETWORK_SHARE = 0.5
"""Of a silence in which the network had requests or answers of the broker: the broker did not stand still then."""
EDGE_MS = 300.0
"""Left out at both ends of a silence when looking for what the broker itself sent meanwhile."""
BEFORE_MS = 10_000.0
"""How far back a broker's own fetches show that they are in the capture at all (replica.fetch.wait.max.ms is 500)."""
WAITING_APIS = (11, 14, 19, 20, 21, 37, 43, 45, 63, 78)
"""APIs whose answers wait for others by design: JoinGroup, SyncGroup, CreateTopics, DeleteTopics, DeleteRecords,
CreatePartitions, ElectLeaders, AlterPartitionReassignments, BrokerHeartbeat, ShareFetch."""
PRODUCE, FETCH = 0, 1
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


class Silence(NamedTuple):
    """A broker that answered nothing although answers were due; microseconds."""

    broker: str
    begin: int
    end: int
    rows: Int64s
    """Exchanges that waited."""


def silences(tables: ev.Tables) -> list[Silence]:
    """Spans of STALL_MS and more in which a broker answered nothing while requests on two connections were due."""
    exchanges = ev.get(tables, "exchanges")
    answered, asked = times(exchanges, "response_first_at"), times(exchanges, "request_last_at")
    known = (answered != NULL_TIME) & (asked != NULL_TIME)
    due = asked + _agreed(tables, exchanges)
    late = known & (answered - due >= STALL_MS * MILLI) & ~np.isin(ints(exchanges, "api_key"), WAITING_APIS)
    late &= ~ev.equal(exchanges, "hold", "throttled")
    if not late.any():
        return []
    groups = group(exchanges, ["broker"])
    connections = group(exchanges, ["connection_id"]).code
    found = []
    for code in np.unique(groups.code[late]).tolist():
        broker = groups.keys["broker"][code].as_py()
        mine = np.unique(answered[known & (groups.code == code)])
        rows = np.flatnonzero(late & (groups.code == code))
        for at in np.flatnonzero(np.diff(mine) >= STALL_MS * MILLI).tolist():
            begin, end = int(mine[at]), int(mine[at + 1])
            waited = rows[
                (due[rows] <= end - STALL_MS * MILLI)
                & (answered[rows] >= end)
                & (answered[rows] <= end + TOGETHER_MS * MILLI)
            ]
            if len(np.unique(connections[waited])) >= WAITING_CONNECTIONS:
                found.append(Silence(broker, max(begin, int(asked[waited].min())), end, waited))
    return found


def _agreed(tables: ev.Tables, exchanges: pa.Table) -> Int64s:
    """How long a broker may keep each request, in microseconds: max_wait_ms of a Fetch, else nothing."""
    fetches = ev.get(tables, "fetches")
    if not fetches.num_rows:
        return np.zeros(exchanges.num_rows, np.int64)
    waits = np.append(np.maximum(ints(fetches, "max_wait_ms", 0), 0) * MILLI, 0)
    return waits[locate(exchange_keys(exchanges["exchange_id"]), exchange_keys(fetches["exchange_id"]))]


def _as_long_as_a_stall(exchanges: pa.Table, limits: Limits) -> Any:
    """Exchanges that took as long as a broker has to be silent to count as stalled."""
    return pc.greater_equal(exchanges["latency_ms"], STALL_MS)


def _first_and_last_answers(exchanges: pa.Table, limits: Limits) -> Any:
    """The first and the last answer of each broker in each slot: longer silences show in them alone."""
    return pa.array(row_filters.first_and_last_in_slots(exchanges, "broker", "response_first_at"))


@finder(exchanges=(_as_long_as_a_stall, _first_and_last_answers), fetches=EVERY_ROW)
def stalled(tables: ev.Tables, limits: Limits) -> list[ev.Finding]:
    """Brokers that stood still: no client got an answer. Whether the process did, its own fetches tell."""
    exchanges = ev.get(tables, "exchanges")
    shares = TimeShares({"exchanges": exchanges, "fetches": ev.get(tables, "fetches")})
    found = []
    for one in silences(tables):
        spent = shares.spent("broker", one.broker, one.begin, one.end)
        if spent.get("network", 0.0) > NETWORK_SHARE * sum(spent.values()):
            continue
        rows = exchanges.take(pa.array(one.rows))
        condition = ev.both(
            ev.equals("broker", one.broker),
            f"request_last_at <= {ev.instant(one.end - int(STALL_MS * MILLI))}",
            f"response_first_at >= {ev.instant(one.end)}",
            f"response_first_at <= {ev.instant(one.end + int(TOGETHER_MS * MILLI))}",
        )
        own = _own_fetches(tables, one)
        values = {
            "connections": len(pc.unique(rows["connection_id"])), "clients": ev.names(rows["client_id"]),
            "silent": own == 0, "fetching": bool(own), "unseen": own is None, "others": _others(exchanges, one),
        }  # fmt: skip
        found += ev.finding(
            tables, "broker_stalled", ev.HIGH, "exchanges", condition, values, broker=one.broker, first_at=one.begin,
            last_at=one.end, cause="broker" if own == 0 else "unknown",
        )  # fmt: skip
    return found


def _own_fetches(tables: ev.Tables, one: Silence) -> int | None:
    """Fetches that the broker sent as a follower during its silence; None where none of its are in the capture."""
    fetches = ev.get(tables, "fetches")
    if not one.broker.isdigit():
        return None
    at = times(fetches, "requested_at")
    mine = at[(ints(fetches, "replica_id") == int(one.broker)) & (at != NULL_TIME)]
    if not ((mine >= one.begin - BEFORE_MS * MILLI) & (mine <= one.begin + EDGE_MS * MILLI)).any():
        return None
    return int(((mine > one.begin + EDGE_MS * MILLI) & (mine < one.end - EDGE_MS * MILLI)).sum())


def _others(exchanges: pa.Table, one: Silence) -> list[str]:
    """Brokers that answered during the silence of this one."""
    answered = times(exchanges, "response_first_at")
    rows = exchanges.filter(pa.array((answered > one.begin) & (answered < one.end)))
    names = {str(name) for name in pc.unique(rows["broker"].cast(pa.string())).to_pylist() if name}
    return sorted(names - {one.broker})


@finder(exchanges=row_filters.slow, produces=row_filters.slow, connections=EVERY_ROW)
def slow(tables: ev.Tables, limits: Limits) -> list[ev.Finding]:
    """Requests of every API that took `limits.slow_ms` and more, but for those that wait by design or were throttled.

    Fetches are judged by what they took beyond the agreed wait.
    """
    exchanges = ev.get(tables, "exchanges")
    latency, key = reals(exchanges, "latency_ms"), ints(exchanges, "api_key")
    late = (latency >= limits.slow_ms) & (key != FETCH) & ~np.isin(key, WAITING_APIS)
    for hold in ("throttled", "rebalance"):
        late &= ~ev.equal(exchanges, "hold", hold)
    groups = group(exchanges, ["api", "broker"])
    begun = times(exchanges, "request_first_at")
    end = begun + (np.nan_to_num(latency) * MILLI).astype(np.int64)
    members = {code: np.flatnonzero(late & (groups.code == code)) for code in np.unique(groups.code[late]).tolist()}
    total = {code: ev.union_ms(begun[mine], end[mine]) for code, mine in members.items()}
    found = []
    for code in sorted(members, key=lambda code: -total[code]):
        mine = members[code]
        api, broker = groups.keys["api"][code].as_py(), groups.keys["broker"][code].as_py()
        rows = exchanges.take(pa.array(mine))
        closed = on_closed_windows(rows, ev.get(tables, "connections"))
        cause, share = _largest_part(rows, acks_of(tables, rows), closed)
        values = {
            "requests": len(mine), "api": api, "slow": limits.slow_ms, "total": total[code],
            "longest": float(latency[mine].max()), "clients": _clients(rows), f"of_{cause}": share,
        }  # fmt: skip
        condition = ev.both(
            ev.equals("broker", broker), ev.equals("api", api), f"latency_ms >= {limits.slow_ms:g}",
            "(hold is null or hold not in ('throttled', 'rebalance'))",
        )  # fmt: skip
        about = _one_client(rows)
        severity = _severity(tables, limits, total[code], broker, about.get("client_id"))
        found += ev.finding(
            tables, "slow_requests", severity, "exchanges", condition, values, cause=cause, broker=broker, **about
        )
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


def _largest_part(rows: pa.Table, acks: Int64s, closed: Flags) -> tuple[str, float | None]:
    """(cause, percent) by the part that most of the measured time of exchanges went to; unknown where none has
    MOST_OF_TIME of it. What one lay queued behind another is that other one's time, and the transfer of one whose
    connection had a `closed` receive window (bool [rows]) is the receiver's."""
    network, broker = np.nan_to_num(reals(rows, "network_ms")), reals(rows, "broker_ms")
    bound = np.isnan(reals(rows, "network_ms"))  # broker_ms holds the network's time too
    for side in ("request", "response"):
        network = network + np.where(closed, 0.0, np.nan_to_num(reals(rows, f"{side}_transfer_ms")))
    followers = np.minimum(np.nan_to_num(reals(rows, "replication_ms")), np.nan_to_num(broker))
    unsure = (ints(rows, "api_key") == PRODUCE) & ~np.isin(acks, (0, 1))  # it may have waited for followers
    own = np.where(unsure | bound, 0.0, np.nan_to_num(broker) - followers)
    known = float((np.nan_to_num(reals(rows, "latency_ms")) - np.nan_to_num(reals(rows, "queued_ms"))).sum())
    for cause, part in (("network", network), ("follower", followers), ("broker", own)):
        if known and float(part.sum()) >= MOST_OF_TIME * known:
            return cause, 100 * min(float(part.sum()) / known, 1)
    return "unknown", None


@finder(fetches=EVERY_ROW, connections=EVERY_ROW)
def slow_fetches(tables: ev.Tables, limits: Limits) -> list[ev.Finding]:
    """Fetches that took `limits.slow_ms` and more beyond what they agreed to."""
    fetches = ev.get(tables, "fetches")
    excess = reals(fetches, "excess_ms")
    late = excess >= limits.slow_ms
    groups = group(fetches, ["broker"])
    worst = groups.quantiles(np.where(late, excess, np.nan), [1.0])[0]
    answered = times(fetches, "response_first_at")
    since = answered - (np.nan_to_num(excess) * MILLI).astype(np.int64)
    found = []
    for code in np.flatnonzero(groups.count(late)).tolist():
        broker = groups.keys["broker"][code].as_py()
        mine = np.flatnonzero(late & (groups.code == code))
        total, count, rows = ev.union_ms(since[mine], answered[mine]), len(mine), fetches.take(pa.array(mine))
        values = {
            "fetches": count, "slow": limits.slow_ms, "total": total, "longest": float(worst[code]),
            "clients": _clients(rows),
        }  # fmt: skip
        condition = ev.both(ev.equals("broker", broker), f"excess_ms >= {limits.slow_ms:g}")
        about = _one_client(rows)
        severity = _severity(tables, limits, total, broker, about.get("client_id"))
        found += ev.finding(tables, "slow_fetches", severity, "fetches", condition, values, broker=broker, **about)
    return found


def _clients(rows: pa.Table) -> list[str | None]:
    """Client ids, in order, None last."""
    return sorted({name or None for name in pc.unique(rows["client_id"]).to_pylist()}, key=lambda one: (not one, one))


def _one_client(rows: pa.Table) -> dict[str, Any]:
    names = pc.unique(rows["client_id"].cast(pa.string())).to_pylist()
    return {"client_id": names[0]} if len(names) == 1 and names[0] is not None else {}


def _slow_replication(produces: pa.Table, limits: Limits) -> Any:
    """Produce requests that waited long for followers."""
    return pc.greater_equal(produces["replication_ms"], limits.slow_ms)


@finder(produces=_slow_replication, connections=EVERY_ROW)
def slow_followers(tables: ev.Tables, limits: Limits) -> list[ev.Finding]:
    """Produce requests that waited long for followers, leader by leader, and which followers they waited for."""
    produces = ev.get(tables, "produces")
    waited = np.nan_to_num(reals(produces, "replication_ms"))
    slow = waited >= limits.slow_ms
    if not slow.any():
        return []
    groups = group(produces, ["broker"])
    found = []
    for code in np.flatnonzero(groups.count(slow)).tolist():
        broker = groups.keys["broker"][code].as_py()
        mine = np.flatnonzero(slow & (groups.code == code))
        rows = produces.take(pa.array(mine))
        followers = Counter(node for nodes in rows["waited_for"].to_pylist() for node in nodes or ())
        clients = sorted({str(name) for name in rows["client_id"].to_pylist() if name is not None})
        answered = times(rows, "response_first_at")
        total = ev.union_ms(answered - (waited[mine] * MILLI).astype(np.int64), answered)
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
    topics: dict[str, set[str]] = {}
    for name in ("record_batches", "producers"):
        batches = ev.get(tables, name)
        for exchange, topic in zip(batches["exchange_id"].to_pylist(), batches["topic"].to_pylist(), strict=True):
            topics.setdefault(exchange, set()).add(topic)
    by_topic: dict[str, list[int]] = {}
    for row, exchange in enumerate(produces["exchange_id"].to_pylist()):
        names = topics.get(exchange, set()) - {None}
        if len(names) == 1 and not np.isnan(own[row]):
            by_topic.setdefault(next(iter(names)), []).append(row)
    figures = {topic: np.quantile(own[rows], (0.25, 0.5)) for topic, rows in by_topic.items() if len(rows) >= SAMPLES}
    found = []
    for topic, (quartile, median) in sorted(figures.items(), key=lambda one: (-one[1][1], one[0])):
        others = [one for name, one in figures.items() if name != topic]
        least, usual = np.median(others, axis=0).tolist() if others else (np.nan, np.nan)
        if not (median >= max(SLOW_WRITE_MS, SLOWER * usual) and quartile >= SLOWER * least):
            continue
        rows = produces.take(pa.array(by_topic[topic]))
        brokers, clients = ev.names(rows["broker"]), ev.names(rows["client_id"])
        values = {
            "brokers": brokers, "clients": clients, "requests": rows.num_rows, "median": median, "usual": usual,
        }  # fmt: skip
        condition = _sampled_requests(rows)
        found += ev.finding(
            tables, "slow_topic", ev.LOW, "produces", condition, values, topic=topic,
            broker=brokers[0] if len(brokers) == 1 else None, client_id=clients[0] if len(clients) == 1 else None,
        )  # fmt: skip
    return found


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


FINDERS = (stalled, slow, slow_fetches, slow_followers, slow_topics)

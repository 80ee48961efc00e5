"""Findings about fetching: latency, throttling, polling, transactions and lag."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from kdissect.analysis.exchange_keys import exchange_keys, locate
from kdissect.analysis.findings.evidence import (
    HIGH,
    LOW,
    MEDIUM,
    Finding,
    Tables,
    both,
    duration,
    equals,
    finding,
    get,
    many,
    who,
)
from kdissect.analysis.grouping import group
from kdissect.arrays.arrow import MILLI, NULL_TIME, Int64s, ints, reals, times

SLOW_MS = 100.0
"""Excess of a fetch that is worth a line: brokers answer from the page cache in a few milliseconds, a tenth of a second
is felt by whoever waits for the data."""
VERY_SLOW_MS = 1000.0
"""Excess that makes it severe: clients start to time out within the order of magnitude (request.timeout.ms)."""
EMPTY_FETCHES = 100
"""Empty answers of one client before its polling is called a loop: a consumer between two batches has a few."""
EMPTY_SHARE = 0.9
"""Of its answered fetches: a client that mostly gets data polls as it should."""
EMPTY_PER_SECOND = 20.0
"""Empty fetches a second: with the usual fetch.max.wait.ms of 500 an idle consumer sends two."""
EMPTY_MS = 10.0
"""Latency of an empty answer that was no long poll."""
LIMITED = 10
"""Answers cut by a byte limit: single ones happen to every consumer that catches up."""
HELD_BACK_MS = 1000.0
"""How long a last stable offset stands still behind the high watermark: transactions usually commit within a second."""
LAG_SAMPLES = 5
"""Lags of a partition needed to speak of a trend."""
LAG_GROWTH = 1000
"""Records that a lag grew by, and it doubled at least: small consumers swing by a batch."""
LAG_TREND = 0.8
"""Share of steps at which the lag grew."""
MOST_PARTITIONS = 10
"""Partitions that get a line of their own; the worst first."""


def slow(tables: Tables) -> list[Finding]:
    """Fetches that were slow although they had nothing to wait for."""
    fetches = get(tables, "fetches")
    excess = reals(fetches, "excess_ms")
    late = excess >= SLOW_MS
    groups = group(fetches, ["broker"])
    worst = groups.quantiles(excess, [1.0])[0]
    waited = groups.count(reals(fetches, "broker_ms") >= SLOW_MS)
    found = []
    for code in np.flatnonzero(groups.count(late)).tolist():
        broker = groups.keys["broker"][code].as_py()
        count = int(groups.count(late)[code])
        text = (
            f"Broker {broker} took {duration(SLOW_MS)} or more beyond what was agreed to for "
            f"{many(count, 'fetch', 'fetches')} (at most {duration(worst[code])}); the other {waited[code] - count:,} "
            f"fetches that took as long were long polls, or waited for data."
        )
        condition = both(equals("broker", broker), f"excess_ms >= {SLOW_MS:g}")
        severity = HIGH if worst[code] >= VERY_SLOW_MS else MEDIUM
        found += finding(tables, "slow_fetches", severity, text, "fetches", condition)
    return found


def throttled(tables: Tables) -> list[Finding]:
    """Clients that ran into quotas."""
    exchanges = get(tables, "exchanges")
    throttle = np.nan_to_num(reals(exchanges, "throttle_ms"))
    groups = group(exchanges, ["client_id"])
    total, count = groups.total(throttle), groups.count(throttle > 0)
    found = []
    for code in np.argsort(-total, kind="stable").tolist():
        if not count[code]:
            break
        client = groups.keys["client_id"][code].as_py()
        text = f"{who(client)} was throttled {many(int(count[code]), 'time')}, {duration(total[code])} in all."
        condition = both(equals("client_id", client), "throttle_ms > 0")
        severity = HIGH if total[code] >= 60_000 else MEDIUM
        found += finding(tables, "throttled_client", severity, text, "exchanges", condition)
    return found


def tight_loops(tables: Tables) -> list[Finding]:
    """Clients that poll again and again for nothing, without waiting."""
    fetches = get(tables, "fetches")
    answered = ~np.isnan(reals(fetches, "latency_ms"))
    empty = (
        answered
        & (ints(fetches, "record_bytes") == 0)
        & (ints(fetches, "error_code", -(2**31)) == 0)
        & (reals(fetches, "latency_ms") < EMPTY_MS)
    )
    begun = times(fetches, "requested_at")
    groups = group(fetches, ["client_id", "broker"])
    counts, all_answered = groups.count(empty), groups.count(answered)
    found = []
    for code in np.flatnonzero((counts >= EMPTY_FETCHES) & (counts >= EMPTY_SHARE * all_answered)).tolist():
        mine = begun[(groups.code == code) & empty & (begun != NULL_TIME)]
        seconds = (int(mine.max()) - int(mine.min())) / 1e6 if len(mine) else 0.0
        if seconds <= 0 or counts[code] / seconds < EMPTY_PER_SECOND:
            continue
        client, broker = groups.keys["client_id"][code].as_py(), groups.keys["broker"][code].as_py()
        text = (
            f"{who(client)} polls broker {broker} in a tight loop: {many(int(counts[code]), 'empty answer')} in "
            f"{seconds:.1f} s ({counts[code] / seconds:.0f} a second). A larger max_wait_ms or min_bytes would let the "
            f"broker wait for data."
        )
        condition = both(
            equals("client_id", client), equals("broker", broker), "record_bytes = 0 and error_code = 0",
            f"latency_ms < {EMPTY_MS:g}",
        )  # fmt: skip
        found += finding(tables, "empty_polling", MEDIUM, text, "fetches", condition)
    return found


def limited(tables: Tables) -> list[Finding]:
    """Responses cut by max_bytes or partition_max_bytes."""
    found = []
    fetches = get(tables, "fetches")
    most = ints(fetches, "max_bytes")
    cut = (most > 0) & (ints(fetches, "record_bytes", 0) >= most)
    groups = group(fetches, ["client_id"])
    for code in np.flatnonzero(groups.count(cut) >= LIMITED).tolist():
        client = groups.keys["client_id"][code].as_py()
        text = (
            f"{who(client)} got {many(int(groups.count(cut)[code]), 'fetch response')} filled to its max_bytes: more "
            f"was there than it takes at a time."
        )
        condition = both(equals("client_id", client), "max_bytes > 0 and record_bytes >= max_bytes")
        found += finding(tables, "limited_by_max_bytes", LOW, text, "fetches", condition)
    partitions = get(tables, "fetch_partitions")
    most = ints(partitions, "partition_max_bytes")
    cut = (most > 0) & (ints(partitions, "record_bytes", 0) >= most)
    groups = group(partitions, ["topic", "partition"])
    counts = groups.count(cut)
    for code in np.argsort(-counts, kind="stable")[:MOST_PARTITIONS].tolist():
        if counts[code] < LIMITED:
            break
        topic, partition = groups.keys["topic"][code].as_py(), groups.keys["partition"][code].as_py()
        text = (
            f"{many(int(counts[code]), 'response')} for partition {partition} of topic {topic} were filled to "
            f"partition_max_bytes: a larger max.partition.fetch.bytes would need fewer fetches."
        )
        condition = both(
            equals("topic", topic), equals("partition", partition),
            "partition_max_bytes > 0 and record_bytes >= partition_max_bytes",
        )  # fmt: skip
        found += finding(tables, "limited_by_partition_max_bytes", LOW, text, "fetch_partitions", condition)
    return found


def _when(tables: Tables, partitions: pa.Table) -> tuple[Int64s, Int64s]:
    """Row of `fetches` of each partition row, and the response's first instant."""
    fetches = get(tables, "fetches")
    if not partitions.num_rows or not fetches.num_rows:
        return np.full(partitions.num_rows, -1, np.int64), np.full(partitions.num_rows, NULL_TIME, np.int64)
    at = locate(exchange_keys(partitions["exchange_id"]), exchange_keys(fetches["exchange_id"]))
    answered = np.append(times(fetches, "response_first_at"), NULL_TIME)
    return at, answered[at]


def held_back(tables: Tables) -> list[Finding]:
    """read_committed consumers behind an open transaction.

    A stable offset that moves does not by itself bring a partition into an incremental answer, so a partition that is
    held back is told once and then stays silent: it counts as held back until the next answer that tells another
    offset, or until the last fetch of the capture.
    """
    partitions, fetches = get(tables, "fetch_partitions"), get(tables, "fetches")
    stable, high = ints(partitions, "last_stable_offset"), ints(partitions, "high_watermark")
    at, when = _when(tables, partitions)
    committed = np.append(ints(fetches, "isolation_level", 0) == 1, False)[at]
    good = (ints(partitions, "error_code", 0) == 0) & (when != NULL_TIME) & committed & (stable >= 0)
    groups = group(partitions, ["topic", "partition"])
    rows = np.flatnonzero(good)
    rows = rows[np.lexsort((when[rows], groups.code[rows]))]
    if not len(rows):
        return []
    code, offset, instant = groups.code[rows], stable[rows], when[rows]
    new_topic = np.append(code[1:] != code[:-1], True)
    ends = np.flatnonzero(new_topic | np.append(offset[1:] != offset[:-1], True))
    last = int(times(fetches, "response_first_at").max())
    held: list[tuple[float, int, int, bool]] = []
    begin = 0
    for end in ends.tolist():
        behind = np.flatnonzero(high[rows[begin : end + 1]] > offset[begin : end + 1]) + begin
        begin = end + 1
        if len(behind):
            released = int(instant[end + 1]) if not new_topic[end] else last
            length = (released - int(instant[behind[0]])) / MILLI
            if length >= HELD_BACK_MS:
                held.append((length, int(rows[behind[0]]), int(offset[end]), bool(new_topic[end])))
    held.sort(reverse=True)
    found = []
    for length, first, where, still in held[:MOST_PARTITIONS]:
        topic, partition = partitions["topic"][first].as_py(), partitions["partition"][first].as_py()
        since = pa.scalar(int(when[first]), pa.timestamp("us", "UTC")).as_py()
        whole = ", to the end of the capture" if still else ""
        text = (
            f"read_committed consumers of partition {partition} of topic {topic} were held back at offset {where:,} "
            f"for {duration(length)} (since {since:%Y-%m-%d %H:%M:%S} UTC{whole}) by an open transaction"
            f"{_producer(tables, topic, partition, where)}."
        )
        condition = both(
            equals("topic", topic), equals("partition", partition), f"last_stable_offset = {where}",
            "last_stable_offset < high_watermark",
        )  # fmt: skip
        found += finding(tables, "held_back_by_transaction", MEDIUM, text, "fetch_partitions", condition)
    return found


def _producer(tables: Tables, topic: str | None, partition: int | None, offset: int) -> str:
    """Who wrote the transactional batch at the last stable offset, where somebody fetched it.

    Only brokers number offsets and write their leader epoch: batches in Produce requests have neither.
    """
    batches = get(tables, "record_batches")
    same = (
        (ints(batches, "partition") == partition)
        & (ints(batches, "base_offset") <= offset)
        & (ints(batches, "last_offset") >= offset)
        & (ints(batches, "is_transactional", 0) > 0)
        & (ints(batches, "is_control", 0) == 0)
        & (ints(batches, "leader_epoch") >= 0)
    )
    for row in np.flatnonzero(same).tolist():
        if batches["topic"][row].as_py() == topic:
            return f" of producer {batches['producer_id'][row].as_py()}"
    return ""


def growing_lag(tables: Tables) -> list[Finding]:
    """Lag that grows per client and partition."""
    partitions, fetches = get(tables, "fetch_partitions"), get(tables, "fetches")
    at, when = _when(tables, partitions)
    lag = ints(partitions, "lag")
    follower = np.append(ints(fetches, "is_follower", 0) > 0, False)[at]
    clients = pa.array(at, mask=at < 0)
    partitions = partitions.append_column("client_id", fetches["client_id"].take(clients))
    groups = group(partitions, ["client_id", "topic", "partition"])
    rows = np.flatnonzero((lag >= 0) & (when != NULL_TIME) & ~follower)
    rows = rows[np.lexsort((when[rows], groups.code[rows]))]
    if not len(rows):
        return []
    edges = np.flatnonzero(np.append(groups.code[rows][1:] != groups.code[rows][:-1], True)) + 1
    grown: list[tuple[int, int, int, int]] = []
    begin = 0
    for end in edges.tolist():
        values = lag[rows[begin:end]]
        code = int(groups.code[rows[begin]])
        begin = end
        if len(values) < LAG_SAMPLES:
            continue
        first, last = int(values[0]), int(values[-1])
        up = float((values[1:] >= values[:-1]).mean())
        if last - first >= LAG_GROWTH and last >= 2 * first and up >= LAG_TREND:
            grown.append((last - first, code, first, last))
    grown.sort(reverse=True)
    found = []
    for _, code, first, last in grown[:MOST_PARTITIONS]:
        client, topic = groups.keys["client_id"][code].as_py(), groups.keys["topic"][code].as_py()
        partition = groups.keys["partition"][code].as_py()
        text = (
            f"{who(client)} falls behind on partition {partition} of topic {topic}: its lag grew from {first:,} to "
            f"{last:,} records."
        )
        condition = both(equals("topic", topic), equals("partition", partition), "lag is not null")
        found += finding(tables, "growing_lag", MEDIUM, text, "fetch_partitions", condition)
    return found


FINDERS = (slow, throttled, tight_loops, limited, held_back, growing_lag)

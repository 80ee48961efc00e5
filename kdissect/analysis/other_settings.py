"""What other settings of clients would have meant for what they sent and read: fetch.max.wait.ms and fetch.min.bytes,
linger.ms and batch.size.

What was captured is replayed: records are there when they were answered, or sent, in truth, and a client takes as long
as it took between an answer and its next request.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from kdissect.analysis.cluster_split import each_cluster
from kdissect.analysis.exchange_keys import exchange_keys, locate
from kdissect.analysis.grouping import Groups, group
from kdissect.arrays.arrow import MILLI, NULL_TIME, Int64s, Scalar, ints, reals, times
from kdissect.kernels.kernel import kernel

LEAST_TURN = 100
"""Microseconds that a client takes for a request at least, so that a replay without any wait ends."""
BATCH_HEADER = 61
"""Bytes of a record batch before its records (KIP-98): batches that are one have one of it."""
OVERLAPPING = 0.01
"""Share of a producer's batches to a partition that went out before the one before them was answered. Below, its
application may wait for each answer, and then sends nothing that could join the batch: it is left as it is."""
FETCHING = pa.schema(
    [("client_id", pa.string()), ("broker", pa.string()), ("max_wait_ms", pa.int64()), ("min_bytes", pa.int64()),
     ("fetches", pa.int64()), ("empty", pa.int64()), ("fetches_then", pa.int64()), ("empty_then", pa.int64()),
     ("later_p50_ms", pa.float64()), ("later_max_ms", pa.float64())]
)  # fmt: skip
BATCHING = pa.schema(
    [("client_id", pa.string()), ("broker", pa.string()), ("records", pa.int64()), ("batches", pa.int64()),
     ("batches_then", pa.int64()), ("one_by_one", pa.int64()), ("later_p50_ms", pa.float64()),
     ("later_max_ms", pa.float64())]
)  # fmt: skip


@kernel(
    "const i8[:] const i8[:] const i8[:] const i8[:] const i8[:] const i8[:] const i8[:] const i8[:] i8[:] i8[:] i8[:]"
)
def _polled(
    edges: Int64s, sent_at: Int64s, answered: Int64s, size: Int64s, wait: Int64s, least: Int64s, way: Int64s,
    turn: Int64s, fetches: Int64s, empty: Int64s, delays: Int64s,
) -> None:  # fmt: skip
    """Replay the fetches of each connection, rows edges[c] to edges[c + 1] in order of their answers; `way` is what an
    answer takes besides the broker's own time. Fills in the fetches and the empty ones, and how much later each row's
    records would have come (microseconds)."""
    for c in range(len(edges) - 1):
        at, end = edges[c], edges[c + 1]
        if at == end:
            continue
        until: Scalar = answered[end - 1]
        now: Scalar = sent_at[at]
        while True:
            first, deadline = now + way[c], now + way[c] + wait[c]
            total: Scalar = np.int64(0)
            upto = at
            while upto < end and answered[upto] <= first:
                total += size[upto]
                upto += 1
            when = first
            if total < least[c]:
                when = deadline
                while upto < end and answered[upto] <= deadline:
                    total += size[upto]
                    upto += 1
                    if total >= least[c]:
                        when = answered[upto - 1]
                        break
            if total == 0 and when > until:
                break
            fetches[c] += 1
            if total == 0:
                empty[c] += 1
            for row in range(at, upto):
                delays[row] = when - answered[row]
            at = upto
            now = when + turn[c]
            if at >= end and now > until:
                break


@kernel("const i8[:] const i8[:] const i8[:] const u1[:] i8 i8 i8[:] i8[:]")
def _collected(
    edges: Int64s, at: Int64s, size: Int64s, joins: npt.NDArray[np.uint8], linger: int, most: int, batches: Int64s,
    delays: Int64s,
) -> None:  # fmt: skip
    """Put batches to one partition together, rows edges[g] to edges[g + 1] in order of time, those of which `joins`
    allows it: a batch waits until it is full or for `linger` (microseconds). Fills in the batches, and by how much
    each row would have gone out later."""
    for g in range(len(edges) - 1):
        row, end = edges[g], edges[g + 1]
        while row < end:
            begin = row
            opened, total = at[row], size[row]
            row += 1
            batches[g] += 1
            if not joins[g] or total >= most:
                continue
            close = opened + linger
            while row < end and at[row] <= opened + linger:
                if total + size[row] - BATCH_HEADER > most:
                    close = at[row]
                    break
                total += size[row] - BATCH_HEADER
                row += 1
            for i in range(begin, row):
                delays[i] = close - at[i]


def _by_client(owners: Groups) -> Iterable[tuple[tuple[str | None, str | None], list[int]]]:
    """(client, broker) and its groups, in order of the first."""
    whose = zip(*(owners.keys[name].to_pylist() for name in ("client_id", "broker")), strict=True)
    found: dict[tuple[str | None, str | None], list[int]] = {}
    for number, (client, broker) in enumerate(whose):
        found.setdefault((client, broker), []).append(number)
    return found.items()


def _rows(edges: Int64s, groups: Sequence[int]) -> Int64s:
    """The rows of these groups, each of which has rows edges[g] to edges[g + 1]."""
    return np.concatenate([np.zeros(0, np.int64), *(np.arange(edges[g], edges[g + 1]) for g in groups)])


def with_fetching(fetches: pa.Table, max_wait_ms: int | None, min_bytes: int | None) -> pa.Table:
    """What another fetch.max.wait.ms (milliseconds) and fetch.min.bytes would have meant for consumers, a row for each
    client and broker of a cluster, those with the most empty answers less first; None leaves each client's own.

    Reads connection_id, client_id, broker, requested_at, response_first_at, latency_ms, broker_ms, record_bytes,
    max_wait_ms, min_bytes, error_code, partitions_with_error, is_follower and is_raft of `fetches`. Columns:
    max_wait_ms and min_bytes (medians of what was asked for), fetches and empty (answers without an error, and
    those without records), fetches_then and empty_then, later_p50_ms and later_max_ms (how much later records would
    have been answered; null without records), cluster.
    """
    made = each_cluster({"fetches": fetches}, lambda part: _with_fetching(part["fetches"], max_wait_ms, min_bytes))
    return _most_less_first(made, "empty")


def _with_fetching(fetches: pa.Table, max_wait_ms: int | None, min_bytes: int | None) -> pa.Table:
    """The rows of one cluster, in no order."""
    asked, answered = times(fetches, "requested_at"), times(fetches, "response_first_at")
    good = (asked != NULL_TIME) & (answered != NULL_TIME) & (ints(fetches, "error_code") == 0)
    good &= (ints(fetches, "partitions_with_error", 0) == 0) & (ints(fetches, "record_bytes") >= 0)
    good &= (ints(fetches, "is_follower", 0) == 0) & (ints(fetches, "is_raft", 0) == 0)
    fetches = fetches.filter(pa.array(good))
    asked, answered = asked[good], answered[good]
    owners = group(fetches, ["client_id", "broker", "connection_id"])
    order = np.lexsort((asked, answered, owners.code))
    asked, answered = asked[order], answered[order]
    size = np.maximum(ints(fetches, "record_bytes", 0), 0)[order]
    edges = np.append(0, np.cumsum(owners.count())).astype(np.int64)
    waits, leasts = ints(fetches, "max_wait_ms", 0)[order], ints(fetches, "min_bytes", 0)[order]
    least_way = np.maximum(np.nan_to_num(reals(fetches, "latency_ms") - reals(fetches, "broker_ms")), 0)[order] * MILLI
    wait, least, way, turn = np.zeros((4, len(owners)), np.int64)
    for c in range(len(owners)):
        mine = slice(edges[c], edges[c + 1])
        wait[c] = np.median(waits[mine]) * MILLI if max_wait_ms is None else max_wait_ms * MILLI
        least[c] = np.median(leasts[mine]) if min_bytes is None else min_bytes
        way[c] = least_way[mine].min()
        gaps = asked[mine][1:] - answered[mine][:-1]
        turn[c] = max(LEAST_TURN, int(np.median(gaps)) if len(gaps) else 0)
    then, empty = np.zeros((2, len(owners)), np.int64)
    later = np.zeros(len(order), np.int64)
    _polled(edges, asked, answered, size, np.maximum(wait, 0), np.maximum(least, 0), way, turn, then, empty, later)
    rows = []
    for (client, broker), those in _by_client(owners):
        mine_of = _rows(edges, those)
        delays = later[mine_of][size[mine_of] > 0] / MILLI
        rows.append((
            client, broker, int(np.median(waits[mine_of])), int(np.median(leasts[mine_of])), len(mine_of),
            int((size[mine_of] == 0).sum()), int(then[those].sum()), int(empty[those].sum()),
            float(np.median(delays)) if len(delays) else None, float(delays.max()) if len(delays) else None,
        ))  # fmt: skip
    return pa.table({name: [row[at] for row in rows] for at, name in enumerate(FETCHING.names)}, FETCHING)


def with_batching(produces: pa.Table, partitions: pa.Table, linger_ms: float, batch_size: int) -> pa.Table:
    """What linger.ms (milliseconds) and batch.size (bytes) would have meant for producers beside what they waited in
    truth, a row for each client and broker of a cluster, those with the most batches less first.

    Reads exchange_id, connection_id, client_id, broker, requested_at and response_first_at of `produces`, exchange_id,
    topic, topic_id, partition, batches, records and record_bytes of `produce_partitions`. Columns: records (null where
    batches do not tell), batches, batches_then, one_by_one (of the batches, those of connections to a partition whose
    next batch nearly always came after the answer: they are left as they are), later_p50_ms and later_max_ms (how much
    later batches would have been sent), cluster.
    """
    tables = {"produces": produces, "produce_partitions": partitions}
    made = each_cluster(
        tables, lambda part: _with_batching(part["produces"], part["produce_partitions"], linger_ms, batch_size)
    )
    return _most_less_first(made, "batches")


def _most_less_first(table: pa.Table, count: str) -> pa.Table:
    """The rows, those first whose `count` would have become less by most."""
    less = pc.subtract(table[count], table[f"{count}_then"])
    keys = [("less", "descending"), *((name, "ascending") for name in ("client_id", "broker", "cluster"))]
    return table.append_column("less", less).sort_by(keys).drop_columns("less")


def _with_batching(produces: pa.Table, partitions: pa.Table, linger_ms: float, batch_size: int) -> pa.Table:
    """The rows of one cluster, in no order."""
    at = locate(exchange_keys(partitions["exchange_id"]), exchange_keys(produces["exchange_id"]))
    asked = np.append(times(produces, "requested_at"), NULL_TIME)[at]
    good = (at >= 0) & (asked != NULL_TIME) & (ints(partitions, "batches", 0) > 0)
    some, at, asked = partitions.filter(pa.array(good)), at[good], asked[good]
    for name in ("client_id", "broker", "connection_id"):
        some = some.append_column(name, produces[name].take(pa.array(at)))
    owners = group(some, ["client_id", "broker", "connection_id", "topic", "topic_id", "partition"])
    order = np.lexsort((asked, owners.code))
    asked, answered = asked[order], times(produces, "response_first_at")[at][order]
    size, batches = ints(some, "record_bytes", 0)[order], ints(some, "batches", 0)[order]
    records = ints(some, "records")[order]
    edges = np.append(0, np.cumsum(owners.count())).astype(np.int64)
    before = np.append(NULL_TIME, answered[:-1])  # no answer at all: nobody waited for it
    overlap = (before == NULL_TIME) | (asked < before)
    joins = np.zeros(len(owners), np.uint8)
    for g in range(len(owners)):
        ahead = overlap[edges[g] + 1 : edges[g + 1]]
        joins[g] = len(ahead) > 0 and ahead.mean() >= OVERLAPPING
    made, later = np.zeros(len(owners), np.int64), np.zeros(len(order), np.int64)
    _collected(edges, asked, size, joins, round(linger_ms * MILLI), batch_size, made, later)
    rows = []
    for (client, broker), those in _by_client(owners):
        mine, alone = _rows(edges, those), _rows(edges, [g for g in those if not joins[g]])
        count = int(batches[mine].sum())
        rows.append((
            client, broker, int(records[mine].sum()) if (records[mine] >= 0).all() else None, count,
            count - len(mine) + int(made[those].sum()), int(batches[alone].sum()),
            float(np.median(later[mine])) / MILLI, float(later[mine].max()) / MILLI,
        ))  # fmt: skip
    return pa.table({name: [row[at] for row in rows] for at, name in enumerate(BATCHING.names)}, BATCHING)

"""Session slots: how many a broker's clients would need, and whose new sessions push out those of others."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from kdissect.analysis.cluster_split import each_cluster
from kdissect.analysis.grouping import figures, group
from kdissect.arrays.arrow import NULL_TIME, Coder, Flags, Int64s, distinct, ints, one, times, words
from kdissect.arrays.from_numpy import arrow_array

SECOND = 1_000_000
"""In microseconds."""
FEW_BUCKETS = 600
"""Enough to draw: ten for each cell of a line on a terminal."""
MOST_BUCKETS = 100_000
"""Rows of slot demand per broker and shard at most; the buckets get longer instead."""


def slot_demand(
    fetch_sessions: pa.Table, every: float | None = 1.0, until: int | None = None, by_shard: bool = True
) -> pa.Table:
    """Sessions alive at once, per broker of a cluster, shard and bucket of time: broker, shard, at, live, created,
    cluster.

    A session is alive from its creation until it was closed, replaced, became empty or was found evicted. Sessions
    whose creation was not captured are alive from the capture's first session on, open ones until its end. So with
    `live` slots no session would have been evicted. A client that forgets its sessions keeps them alive: that is its
    demand. `every`: length of a bucket in seconds, None for FEW_BUCKETS in all; `live` is the maximum within it,
    `created` counts creations. Shard is null where a broker's version is not known, and without `by_shard`, where all
    shards of a broker count together. `until`: end of the capture in microseconds since the epoch, the last instant of
    the sessions when None.
    """
    tables = {"fetch_sessions": fetch_sessions}
    return each_cluster(tables, lambda part: _slot_demand(part["fetch_sessions"], every, until, by_shard))


def _slot_demand(fetch_sessions: pa.Table, every: float | None, until: int | None, by_shard: bool) -> pa.Table:
    """The sessions alive at once of one cluster."""
    opened, closed = times(fetch_sessions, "opened_at"), times(fetch_sessions, "closed_at")
    known = np.concatenate([opened[opened != NULL_TIME], closed[closed != NULL_TIME]])
    schema = pa.schema(
        [("broker", pa.string()), ("shard", pa.int32()), ("at", pa.timestamp("us", tz="UTC")), ("live", pa.int64()),
         ("created", pa.int64())]
    )  # fmt: skip
    if not len(known):
        return schema.empty_table()
    begin, end = int(known.min()), max(int(known.max()), until or 0)
    least = (end - begin) // FEW_BUCKETS if every is None else round(every * SECOND)
    width = max(1, least, (end - begin) // MOST_BUCKETS)
    origin = begin // width
    censored = ints(fetch_sessions, "left_censored", 0) > 0
    births = np.where(censored | (opened == NULL_TIME), begin, opened)
    groups = group(fetch_sessions, ["broker", "shard"] if by_shard else ["broker"])
    shards = groups.keys["shard"].to_pylist() if by_shard else [None] * len(groups)
    rows = []
    for code in range(len(groups)):
        mine = groups.code == code
        ended = mine & (closed != NULL_TIME)
        when = np.concatenate([births[mine], closed[ended]])
        step = np.concatenate([np.ones(int(mine.sum()), np.int64), np.full(int(ended.sum()), -1, np.int64)])
        order = np.lexsort((step, when))  # at one instant an end makes room before a beginning takes it
        level = np.cumsum(step[order])
        bucket = when[order] // width - origin
        count = int(end // width - origin) + 1
        most = np.full(count, -1, np.int64)
        np.maximum.at(most, bucket, level)
        last = np.zeros(count, np.int64)
        changed = np.append(bucket[1:] != bucket[:-1], True)
        last[bucket[changed]] = level[changed]
        touched = np.zeros(count, np.bool_)
        touched[bucket] = True
        carried = last[np.maximum.accumulate(np.where(touched, np.arange(count), 0))]
        before = np.concatenate([[0], carried[:-1]])
        live = np.maximum(most, before)
        created = np.bincount(births[mine & ~censored] // width - origin, minlength=count)
        rows.append(
            pa.table(
                {
                    "broker": pa.array([groups.keys["broker"][code].as_py()] * count, pa.string()),
                    "shard": pa.array([shards[code]] * count, pa.int32()),
                    "at": arrow_array((np.arange(count) + origin) * width).cast(schema.field("at").type),
                    "live": arrow_array(live),
                    "created": arrow_array(created.astype(np.int64)),
                },
                schema,
            )
        )
    return pa.concat_tables(rows)


def last_fetch(fetches: pa.Table) -> int | None:
    """The last instant of the table `fetches` in microseconds since the epoch: open sessions are alive until then."""
    last = max(int(times(fetches, name).max(initial=NULL_TIME)) for name in ("request_last_at", "response_first_at"))
    return None if last == NULL_TIME else last


def evictors(fetches: pa.Table) -> pa.Table:
    """Clients by how far their new sessions account for others losing theirs, worst first.

    A broker may answer that a session which was seen alive does not exist any more (`evicted_or_unknown`). Then one of
    the creations on that broker since the session's last use has taken its slot. The capture does not show which one,
    so all of them share it equally, those of the session's own client left out: `evictions` is the sum of a client's
    shares. A client that creates a thousand sessions while others create one each stands out, regardless of who loses.

    Reads exchange_id, broker, client_id, session_outcome, session_key, request_last_at, response_first_at and cluster
    of fetches.

    Columns: broker, client_id, sessions_created, evictions, victims (losses of other clients on that broker),
    share (evictions / victims), first_exchange_id (of its creations), cluster. Clients without any share are left out.
    """
    made = each_cluster({"fetches": fetches}, lambda part: _evictors(part["fetches"]))
    return made.sort_by([("evictions", "descending")])


def _evictors(fetches: pa.Table) -> pa.Table:
    """The evictors in one cluster, worst first."""
    clients, brokers = Coder(), Coder()
    client, broker = clients.column(fetches, "client_id"), brokers.column(fetches, "broker")
    outcome = Coder()
    codes = outcome.column(fetches, "session_outcome")
    created = np.flatnonzero(codes == outcome.code("created"))
    owners = Coder()
    owner = owners.column(fetches, "session_key")
    lost = np.flatnonzero((codes == outcome.code("evicted_or_unknown")) & (owner >= 0))
    used, born = times(fetches, "request_last_at"), times(fetches, "response_first_at")
    last = _last_use(owner, codes == outcome.code("created"), codes == outcome.code("continued"), used, born, lost)
    lost, last = lost[last >= 0], last[last >= 0]
    since = np.where(codes[last] == outcome.code("created"), born[last], used[last])
    rows: list[tuple[int, int, int, float, int, int]] = []
    for place in distinct(broker[lost]).tolist():
        made = created[broker[created] == place]
        made = made[np.argsort(born[made], kind="stable")]
        here = np.flatnonzero(broker[lost] == place)
        victims = lost[here]
        losers = client[last[here]]
        credit = _credit(born[made], client[made], since[here], used[victims], losers)
        for who in distinct(client[made]).tolist():
            mine = client[made] == who
            total = float(credit[mine].sum())
            if total > 0:
                others = int((losers != who).sum())
                rows.append((place, who, int(mine.sum()), total, others, int(made[mine][0])))
    rows.sort(key=lambda row: (-row[3], row[0], row[1]))
    table = np.array([row[:3] + row[4:] for row in rows], np.int64).reshape(-1, 5)
    evictions = np.array([row[3] for row in rows], np.float64)
    names = one(fetches, "exchange_id")
    return pa.table(
        {
            "broker": words(table[:, 0], brokers.texts).cast(pa.string()),
            "client_id": words(table[:, 1], clients.texts).cast(pa.string()),
            "sessions_created": arrow_array(table[:, 2]),
            "evictions": arrow_array(evictions),
            "victims": arrow_array(table[:, 3]),
            "share": figures(evictions / np.maximum(table[:, 3], 1)),
            "first_exchange_id": pa.nulls(0, pa.string()) if names is None else names.take(arrow_array(table[:, 4])),
        }
    )


def _last_use(owner: Int64s, created: Flags, continued: Flags, used: Int64s, born: Int64s, lost: Int64s) -> Int64s:
    """For each loss the row of the last fetch that the session answered, -1 for none."""
    alive = np.flatnonzero((created | continued) & (owner >= 0))
    when = np.where(created, born, used)
    order = alive[np.lexsort((when[alive], owner[alive]))]
    if not len(order):
        return np.full(len(lost), -1, np.int64)
    ends = np.searchsorted(owner[order], owner[lost], side="right")
    last = order[np.maximum(ends - 1, 0)]
    return np.where((ends > 0) & (owner[last] == owner[lost]), last, -1)


def _credit(
    born: Int64s, creator: Int64s, since: Int64s, until: Int64s, loser: Int64s
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Share of each creation (ordered by time) in the losses: each loss is one, split among others' creations."""
    n = len(born)
    low, high = np.searchsorted(born, since, side="right"), np.searchsorted(born, until, side="right")
    low = np.where(since == NULL_TIME, 0, low)
    order = np.lexsort((np.arange(n), creator))
    grouped = creator[order] * (n + 1) + order
    own_low = np.searchsorted(grouped, loser * (n + 1) + low)
    own_high = np.searchsorted(grouped, loser * (n + 1) + high)
    others = (high - low) - (own_high - own_low)
    weight = np.where(others > 0, 1.0 / np.maximum(others, 1), 0.0)
    steps = np.bincount(low, weights=weight, minlength=n + 1) - np.bincount(high, weights=weight, minlength=n + 1)
    own = np.bincount(own_low, weights=weight, minlength=n + 1) - np.bincount(own_high, weights=weight, minlength=n + 1)
    credit = np.cumsum(steps)[:n]
    credit[order] -= np.cumsum(own)[:n]
    return np.where(credit > 1e-9, credit, 0.0)

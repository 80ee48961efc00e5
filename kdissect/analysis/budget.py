"""Where the time of a client, broker, group or topic went: each moment once, whatever was in flight.

Every exchange is laid out on the time axis by its five parts (contract, section 4): each moment of a subject goes to
the first of these that lies over it:

- of the data lane (Fetch, Produce, ShareFetch), then of the background lane (OffsetCommit, Heartbeat, Metadata...: one
  beside a long poll does not outrank it): broker, replication, network and transfers, throttled, agreed wait. The
  broker's part of a Fetch is agreed up to max_wait_ms where it waited for data, and the broker's beyond; while a broker
  answered nobody for STALL_MS though requests on two connections were due, all of it is the broker's. JoinGroup and
  SyncGroup wait for the group: agreed;
- own: from a Fetch answer with records to the next Fetch of that connection; and while neither the data lane of a
  client nor its heartbeats came, which a thread of their own sends: for SILENT_TIMES as long as usual, and SILENT_MS at
  least, its process stood still;
- unknown: a request that was never answered, until its connection ended; one that lay behind its predecessor;
- idle: the rest, nothing was asked for.

Which of the requests in flight a moment goes to is this order, no more: where one request is on the wire while another
is served, the broker has it. The boxes add up to the wall time by construction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kdissect.analysis.exchange_keys import keys_of, locate
from kdissect.analysis.grouping import group
from kdissect.arrays.arrow import NULL_TIME, Coder, Flags, Int64s, distinct, encoded, instants, ints, one, reals, times
from kdissect.problems import UsageError
from kdissect.tables.declaration import SCHEMAS
from kdissect.tables.declaration.model import By
from kdissect.tables.makers import fills
from kdissect.tables.suggestion import near

SCHEMA = SCHEMAS["time_budget"]
"""What a row of a budget is: the subject, the span, and its time in boxes that add up to `wall_ms`."""
SUBJECTS = ("client", "broker", "group", "topic")
"""What a budget can be made by."""
STALL_MS = 1000
"""A broker that answered nobody for so long, with requests due, stood still."""
TOGETHER_MS = 200
"""What was due while a broker stood still is answered within so long of the first answer."""
LEAST_STALLED = 2
"""Connections that must have been due."""
SILENT_MS = 1000
SILENT_TIMES = 3
REGULAR = 5
"""Requests of a kind that tell how often it comes."""
HEARTBEATS = (12, 68, 76)
DATA_LANE = (0, 1, 78)
FETCHES = (1, 78)
REBALANCES = (11, 14)
FRONT = ("resent", "silence")
"""Kinds of network time that lie before the broker had the request."""
BROKER, REPLICATION, NETWORK, THROTTLED, AGREED = range(5)
LANE = 5
OWN, UNKNOWN = 2 * LANE, 2 * LANE + 1
BOXES = ("broker_ms", "replication_ms", "network_ms", "throttled_ms", "agreed_ms")
Spans = tuple[Int64s, Int64s, Int64s, Int64s]
"""Rows of exchanges, begin and end (µs), and the box."""
MOST_BUCKETS = 100_000


def time_budget(
    tables: Mapping[str, pa.Table],
    by: Sequence[str] = ("client",),
    every: float | None = None,
    start: int | None = None,
    end: int | None = None,
) -> pa.Table:
    """Rows of SCHEMA: one per subject, and bucket of `every` seconds, the subjects with most exchanges first.

    `tables`: `exchanges`, `fetches`, `connections`, and for topics `fetch_partitions` and `produce_partitions`, whole,
    with holds. `start`, `end`: the span in µs since the epoch; the subject's own, from its first request to its last
    answer, where None. Raises UsageError for an unknown subject, and where `every` makes too many rows.
    """
    for name in by:
        if name not in SUBJECTS:
            raise UsageError(f"a budget by {name!r}{near(name, SUBJECTS)}: by any of {', '.join(SUBJECTS)}")
    exchanges = tables["exchanges"]
    spans = _spans(tables)
    made = [_by(name, tables, exchanges, spans, every, start, end) for name in by]
    return pa.concat_tables(made) if made else SCHEMA.empty_table()


def _spans(tables: Mapping[str, pa.Table]) -> Spans:
    """Every exchange on the time axis."""
    exchanges, fetches = tables["exchanges"], tables["fetches"]
    n = exchanges.num_rows
    key = ints(exchanges, "api_key")
    lane = np.where(np.isin(key, DATA_LANE), 0, LANE)
    at = locate(keys_of(exchanges), keys_of(fetches)) if n and fetches.num_rows else np.full(n, -1)
    wait = np.append(ints(fetches, "max_wait_ms", 0), 0)[at] if fetches.num_rows else np.zeros(n, np.int64)
    first = times(exchanges, "request_first_at")
    known = (first != NULL_TIME) & ~np.isnan(reals(exchanges, "broker_ms"))

    def micros(name: str) -> Int64s:
        found: Int64s = np.round(np.nan_to_num(reals(exchanges, name)) * 1000).astype(np.int64)
        return found

    network, broker = micros("network_ms"), micros("broker_ms")
    kind = _words(exchanges, "network_kind")
    measured = _reals_or_null(exchanges, "network_up_ms")
    up = np.where(np.isin(kind, FRONT), network, network // 2)
    up = np.where(np.isnan(measured), up, np.minimum(np.nan_to_num(measured) * 1000, network)).astype(np.int64)
    there = first + micros("request_transfer_ms") + up
    begun = there + micros("queued_ms")
    done = begun + broker
    answered = done + network - up
    last = answered + micros("response_transfer_ms")
    hold = _words(exchanges, "hold")
    agreed = np.isin(key, FETCHES) & ~np.isin(hold, ("immediate", "error"))
    until = np.where(agreed, np.minimum(begun + np.maximum(wait, 0) * 1000, done), begun)
    until = np.where(np.isin(key, REBALANCES) | (hold == "throttled"), done, until)
    waited = np.where(hold == "throttled", THROTTLED, AGREED)
    replicated = np.minimum(micros("replication_ms"), broker) if "replication_ms" in exchanges.column_names else 0
    rows = np.flatnonzero(known)
    parts: list[Spans] = []

    def add(begin: Int64s, end: Int64s, box: Int64s | int, which: Int64s = rows) -> None:
        boxes = np.broadcast_to(np.asarray(box, np.int64), (n,))
        parts.append((which, begin[which], end[which], boxes[which]))

    add(first, there, lane + NETWORK)
    add(there, begun, UNKNOWN)
    add(begun, until, lane + waited)
    add(until, done - replicated, lane + BROKER)
    add(done - replicated, done, lane + REPLICATION)
    add(done, last, lane + NETWORK)
    parts.append(_stalled(exchanges, rows, there, done, np.maximum(wait, 0) * 1000, hold, lane))
    parts += [_own(tables, known, last), _silent(exchanges, rows, first, last, lane), _unanswered(tables)]
    joined = [np.concatenate([part[i] for part in parts]) for i in range(4)]
    kept = joined[2] > joined[1]
    return joined[0][kept], joined[1][kept], joined[2][kept], joined[3][kept]


def _words(table: pa.Table, name: str) -> npt.NDArray[np.str_]:
    column = one(table, name)
    if column is None:
        return np.full(table.num_rows, "", "U1")
    codes, used = encoded(column)
    found: npt.NDArray[np.str_] = np.array([*used, ""], np.str_)[codes]
    return found


def stalls(
    exchanges: pa.Table, there: Int64s, done: Int64s, wait: Int64s, counted: Flags
) -> tuple[Int64s, list[tuple[int, int, int]]]:
    """Brokers of the exchanges as codes; code, begin and end (µs) of each time in which a broker answered nobody though
    requests were due.

    `there`, `done`: when each request reached its broker and left it; `wait`: what it had agreed to (µs).
    """
    found = []
    brokers = group(exchanges, ["broker"])
    connection = keys_of(exchanges)[0] if exchanges.num_rows else np.zeros(0, np.int64)
    for code in range(len(brokers)):
        mine = np.flatnonzero((brokers.code == code) & counted)
        answers = np.sort(done[mine])
        for i in np.flatnonzero(np.diff(answers) >= STALL_MS * 1000).tolist():
            low, high = int(answers[i]), int(answers[i + 1])
            together = (done[mine] >= high) & (done[mine] <= high + TOGETHER_MS * 1000)
            due = mine[together & (there[mine] + wait[mine] < high - STALL_MS * 1000)]
            if len(np.unique(connection[due])) >= LEAST_STALLED:
                found.append((code, max(low, int(there[due].min())), high))
    return brokers.code, found


def _stalled(
    exchanges: pa.Table, rows: Int64s, there: Int64s, done: Int64s, wait: Int64s, hold: npt.NDArray[np.str_],
    lane: Int64s,
) -> Spans:  # fmt: skip
    """What was in flight while its broker answered nobody: all of that is the broker's."""
    counted = np.zeros(exchanges.num_rows, np.bool_)
    counted[rows] = True
    counted &= ~np.isin(ints(exchanges, "api_key"), REBALANCES) & (hold != "throttled")
    out: list[Spans] = []
    broker, found = stalls(exchanges, there, done, wait, counted)
    for code, low, high in found:
        held = np.flatnonzero((broker == code) & counted & (there < high) & (done > low))
        out.append((held, np.maximum(there[held], low), np.minimum(done[held], high), lane[held] + BROKER))
    none = np.zeros(0, np.int64)
    if not out:
        return none, none, none, none
    return tuple(np.concatenate([part[i] for part in out]) for i in range(4))  # type: ignore[return-value]


def _own(tables: Mapping[str, pa.Table], known: Flags, last: Int64s) -> Spans:
    """From a Fetch answer with records to the next Fetch of its connection."""
    exchanges, fetches = tables["exchanges"], tables["fetches"]
    none = np.zeros(0, np.int64)
    if not exchanges.num_rows or not fetches.num_rows:
        return none, none, none, none
    at = locate(keys_of(fetches), keys_of(exchanges))
    order = np.flatnonzero(at >= 0)
    row = at[order]
    connection = keys_of(exchanges)[0][row]
    first = times(exchanges, "request_first_at")[row]
    order = order[np.lexsort((first, connection))]
    row = at[order]
    connection = keys_of(exchanges)[0][row]
    full = ints(fetches, "record_bytes", 0)[order] > 0
    follows = np.flatnonzero((connection[1:] == connection[:-1]) & full[:-1] & known[row[:-1]] & known[row[1:]])
    here, there = row[follows], row[follows + 1]
    return here, last[here], times(exchanges, "request_first_at")[there], np.full(len(here), OWN)


def _silent(exchanges: pa.Table, rows: Int64s, first: Int64s, last: Int64s, lane: Int64s) -> Spans:
    """From a client's last answer to its next request, where its data lane and its heartbeats were silent for longer
    than they usually are."""
    none = np.zeros(0, np.int64)
    clients = group(exchanges, ["client_id"]).code if len(rows) else none
    regular = rows[(lane[rows] == 0) | np.isin(ints(exchanges, "api_key")[rows], HEARTBEATS)]
    lanes = 2 * clients[regular] + (lane[regular] > 0) if len(regular) else none
    order = np.lexsort((first[regular], lanes))
    usual = _usual(lanes[order], first[regular][order], 2 * int(clients.max(initial=-1)) + 2)
    longest = usual.reshape(-1, 2).max(axis=1, initial=0)
    mine = rows[np.lexsort((first[rows], clients[rows]))] if len(rows) else none
    if len(mine) < 2:
        return none, none, none, none
    apart = int(last[mine].max() - first[mine].min()) + 1
    base = clients[mine] * apart
    ended = np.maximum.accumulate(last[mine] - first[mine].min() + base) - base + first[mine].min()
    gap = first[mine][1:] - ended[:-1]
    least = np.maximum(SILENT_TIMES * longest[clients[mine[1:]]], SILENT_MS * 1000)
    found = np.flatnonzero((clients[mine[1:]] == clients[mine[:-1]]) & (gap >= least))
    return mine[found + 1], ended[found], first[mine[found + 1]], np.full(len(found), OWN)


def _usual(code: Int64s, at: Int64s, size: int) -> npt.NDArray[np.float64]:
    """By code, the median time between two of its rows, which are in order of (code, at); endless where they are fewer
    than REGULAR."""
    usual = np.full(size, np.inf)
    same = code[1:] == code[:-1]
    between, of = np.diff(at)[same], code[1:][same]
    order = np.lexsort((between, of))
    codes, begin, count = np.unique(of[order], return_index=True, return_counts=True)
    enough = count + 1 >= REGULAR
    usual[codes[enough]] = between[order][(begin + count // 2)[enough]]
    return usual


def _reals_or_null(table: pa.Table, name: str) -> npt.NDArray[np.float64]:
    return reals(table, name) if name in table.column_names else np.full(table.num_rows, np.nan)


def _unanswered(tables: Mapping[str, pa.Table]) -> Spans:
    """Requests that were never answered, until their connections ended."""
    exchanges, connections = tables["exchanges"], tables["connections"]
    none = np.zeros(0, np.int64)
    rows = np.flatnonzero(np.isin(_words(exchanges, "status"), ("unanswered", "pending", "one_way")))
    ended = dict(zip(connections["connection_id"].to_pylist(), times(connections, "ended_at").tolist(), strict=True))
    if not len(rows):
        return none, none, none, none
    first = times(exchanges, "request_first_at")[rows]
    names = exchanges["connection_id"].take(pa.array(rows)).to_pylist()
    end = np.array([ended.get(name, NULL_TIME) for name in names], np.int64)
    return rows, np.where(first == NULL_TIME, end, first), end, np.full(len(rows), UNKNOWN)


def _by(
    name: str, tables: Mapping[str, pa.Table], exchanges: pa.Table, spans: Spans, every: float | None,
    start: int | None, end: int | None,
) -> pa.Table:  # fmt: skip
    subjects, owner, of = _subjects(name, tables)
    count = len(subjects)
    first, last = times(exchanges, "request_first_at")[owner], times(exchanges, "response_last_at")[owner]
    low, high = np.full(count, np.iinfo(np.int64).max), np.full(count, NULL_TIME)
    np.minimum.at(low, of[first != NULL_TIME], first[first != NULL_TIME])
    np.maximum.at(high, of, np.maximum(first, last))
    low = low if start is None else np.full(count, start)
    high = high if end is None else np.full(count, end)
    width = np.int64(2**62) if every is None else np.int64(max(1, round(every * 1e6)))
    buckets = np.where(high > low, -(-(high - low) // width), 0)
    if buckets.sum() > MOST_BUCKETS:
        raise UsageError(
            f"--every makes {int(buckets.sum()):,} rows, more than {MOST_BUCKETS:,}: take longer stretches"
        )
    base = np.concatenate([[0], np.cumsum(buckets)])
    total = int(base[-1])
    subject = np.repeat(np.arange(count), buckets)
    at = low[subject] + (np.arange(total) - base[subject]) * (width if every is not None else 0)
    until = np.minimum(at + width, high[subject]) if every is not None else high[subject]
    cells = _placed(spans, owner, of, low, high, width, base, exchanges.num_rows)
    totals = np.zeros((2 * LANE + 2, total))
    before = np.zeros(total)
    for box in range(2 * LANE + 2):
        covered = _covered([cell[cells[3] <= box] for cell in cells[:3]], total)
        totals[box] = covered - before
        before = covered
    made = {
        "by": pa.array([name] * total, pa.string()),
        "subject": pa.array([subjects[i] for i in subject.tolist()], pa.string()),
        "at": instants(at),
        "until": instants(until),
        "wall_ms": pa.array((until - at) / 1000.0),
    }
    for box, column in enumerate(BOXES):
        made[column] = pa.array((totals[box] + totals[LANE + box]) / 1000.0)
    made["own_ms"], made["unknown_ms"] = pa.array(totals[OWN] / 1000.0), pa.array(totals[UNKNOWN] / 1000.0)
    made["idle_ms"] = pa.array((until - at - before) / 1000.0)
    begun = np.where(first == NULL_TIME, last, first)
    inside = (begun >= low[of]) & (begun <= high[of]) & (high[of] > low[of])
    bucket = base[of[inside]] + np.minimum((begun[inside] - low[of[inside]]) // width, buckets[of[inside]] - 1)
    made["exchanges"] = pa.array(np.bincount(bucket, minlength=total).astype(np.int64))
    return pa.table({field.name: made[field.name] for field in SCHEMA}).cast(SCHEMA)


def _subjects(name: str, tables: Mapping[str, pa.Table]) -> tuple[list[str | None], Int64s, Int64s]:
    """Names of the subjects; pairs of a row of exchanges and the subject that it counts for."""
    exchanges = tables["exchanges"]
    if name == "topic":
        topics = Coder()
        pairs = [np.zeros((0, 2), np.int64)]
        for source in ("fetch_partitions", "produce_partitions"):
            if source in tables and tables[source].num_rows:
                rows = np.stack(
                    [locate(keys_of(tables[source]), keys_of(exchanges)), topics.column(tables[source], "topic")],
                    axis=1,
                )
                pairs.append(rows[(rows >= 0).all(axis=1)])
        made = distinct(np.concatenate(pairs))
        return list(topics.texts), made[:, 0], made[:, 1]
    if name == "group":
        connections = tables["connections"]
        names = dict(zip(connections["connection_id"].to_pylist(), connections["group_id"].to_pylist(), strict=True))
        groups = group(exchanges, ["connection_id"])
        each = [names.get(one_of) for one_of in groups.keys["connection_id"].to_pylist()]
        known = sorted({one_of for one_of in each if one_of is not None})
        place = np.array([known.index(one_of) if one_of is not None else -1 for one_of in each] or [-1], np.int64)
        code = place[groups.code] if exchanges.num_rows else np.zeros(0, np.int64)
    else:
        groups = group(exchanges, ["client_id" if name == "client" else "broker"])
        known = groups.keys.column(0).to_pylist()
        code = np.where(np.array([one_of is not None for one_of in known] or [False])[groups.code], groups.code, -1)
    rows = np.flatnonzero(code >= 0)
    return known, rows, code[rows]


def _placed(
    spans: Spans, owner: Int64s, of: Int64s, low: Int64s, high: Int64s, width: np.int64, base: Int64s, n: int
) -> tuple[Int64s, Int64s, Int64s, Int64s]:
    """Cell (subject and bucket), begin and end within it, and box, of every span clipped to its cells."""
    order = np.argsort(owner, kind="stable")
    begin = np.searchsorted(owner[order], np.arange(n + 1))
    times_each = np.diff(begin)[spans[0]]
    which = np.repeat(np.arange(len(spans[0])), times_each)
    turn = np.arange(len(which)) - np.repeat(np.cumsum(times_each) - times_each, times_each)
    subject = of[order[begin[spans[0][which]] + turn]]
    a = np.maximum(spans[1][which], low[subject])
    b = np.minimum(spans[2][which], high[subject])
    kept = b > a
    a, b, subject, box = (
        a[kept] - low[subject[kept]],
        b[kept] - low[subject[kept]],
        subject[kept],
        spans[3][which][kept],
    )
    pieces = (b - 1) // width - a // width + 1
    which = np.repeat(np.arange(len(a)), pieces)
    bucket = a[which] // width + np.arange(len(which)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    left = np.maximum(a[which], bucket * width) - bucket * width
    right = np.minimum(b[which] - bucket * width, width)
    return base[subject[which]] + bucket, left, right, box[which]


def _covered(cells: Sequence[Int64s], total: int) -> npt.NDArray[np.float64]:
    """µs of each cell that lie under any of its spans."""
    cell, left, right = cells
    out = np.zeros(total)
    if not len(cell):
        return out
    order = np.lexsort((left, cell))
    cell, left, right = cell[order], left[order], right[order]
    apart = int(right.max()) + 1
    end = np.maximum.accumulate(right + cell * apart) - cell * apart
    before = np.where(np.concatenate([[True], cell[1:] != cell[:-1]]), 0, np.concatenate([[0], end[:-1]]))
    new = np.maximum(right - np.maximum(left, before), 0)
    np.add.at(out, cell, new)
    return out


fills(By.BUDGET, lambda: {"time_budget": SCHEMA.names})

"""Watermarks and throttle windows in order of time: what was known to be there when a fetch asked, and what follows."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kdissect.analysis.sessions.session_pools import hashed
from kdissect.arrays.arrow import MILLI, NULL_TIME, Int64s, Scalar
from kdissect.arrays.codes import NULL
from kdissect.kernels.kernel import kernel, part
from kdissect.kernels.signature import fields
from kdissect.kernels.structs import Int
from kdissect.tables import fetch_rows as h
from kdissect.tables.fetch_rows import FetchRow, fetch_at, partition_at

HOLDS = ("data", "timeout", "throttled", "error", "immediate", "unknown", "replication", "rebalance")
DATA, TIMEOUT, THROTTLED, ERROR, IMMEDIATE, UNKNOWN, REPLICATION, REBALANCE = range(8)
EXCESS, AGREED, MUTED = range(3)
"""Rows of `times` of `classify`."""
LATEST = 2**63 - 1
"""Later than any instant."""
ASKED, BEGUN = 1, 2
"""Marks of a fetch that waits for its answer's instant: what was there when it asked is known; what it came into at its
turn."""
EARLY_MS = 2.0
"""A wait this much shorter than max_wait_ms is still a timeout: timers of brokers tick in milliseconds, and both ends
of the interval are read off packets."""
PROMPT_MS = 3.0
"""Brokers log less than that for 19 of 20 fetches that waited for nothing, and more for 19 of 20 that did wait."""
Reals = npt.NDArray[np.float64]
Int8s = npt.NDArray[np.int8]

# A partition's row: broker, topic, partition, high watermark, last stable offset.
H_WIDTH = 5


class HoldEvents(NamedTuple):
    """What happens, in order of time, and the rows that it is told of."""

    order: Int64s
    """Events as `events` makes them: index * 8 + kind, 0 a throttle window, 1 a sighting."""
    fetches: Int64s
    """Rows of `fetch_rows.FetchRow`."""
    firsts: Int64s
    """[fetches + 1]: where the partitions of each begin in `rows`."""
    rows: Int64s
    """Rows of `fetch_rows.PartitionRow`."""
    sighted: Int64s
    """[n, 6]: instant in us, broker, topic, partition, high watermark, last stable offset (-1: not told)."""
    windows: Int64s
    """[n, 4]: instant in us, connection, end of its throttle window in us, and the earliest instant in us at which a
    broker that muted the connection answers its next request."""


class HoldTables(NamedTuple):
    """What earlier events told. Hash tables of 2**n rows; -1 in a row's first column: free."""

    watermarks: Int64s
    """[n, H_WIDTH]: partitions of brokers; an offset of -1: not told yet."""
    muted: Int64s
    """[n, 3]: connections with their throttle windows, as the last two columns of `HoldEvents.windows`."""
    counts: Int64s
    """[2]: rows in use of either table."""
    most_watermarks: Int
    """Rows above which all of `watermarks` are forgotten."""
    most_muted: Int
    """Rows above which all of `muted` are forgotten."""


HOLD_EVENTS = fields(HoldEvents, "const i8[:] const i8[:,:] const i8[:] const i8[:,:] i8[:,:] i8[:,:]")
HOLD_TABLES = fields(HoldTables, "i8[:,:] i8[:,:] i8[:] i8 i8")
"""What kernels that take them declare."""


@part
def place_of(table: Int64s, key: Scalar, a: Scalar, b: Scalar, d: Scalar) -> Scalar:
    """Row of the key (its first `key` columns), or the free one where it would stand. A table has 2**n rows."""
    last = len(table) - 1
    at = hashed(a, b, d) & last
    while table[at, 0] != -1:
        if table[at, 0] == a and (key < 2 or (table[at, 1] == b and table[at, 2] == d)):
            break
        at = (at + 1) & last
    return at


@kernel("i8[:,:] i8[:,:] i8")
def refill(old: Int64s, new: Int64s, key: Scalar) -> None:
    """Move rows to a larger table."""
    for i in range(len(old)):
        if old[i, 0] != -1:
            b = old[i, 1] if key > 1 else 0
            d = old[i, 2] if key > 1 else 0
            at = place_of(new, key, old[i, 0], b, d)
            for q in range(old.shape[1]):
                new[at, q] = old[i, q]


@part
def note_watermark(
    tables: HoldTables, broker: Scalar, topic: Scalar, partition: Scalar, high: Scalar, stable: Scalar
) -> None:
    """A broker tells a partition's high watermark and last stable offset (-1: not told)."""
    watermarks, counts = tables.watermarks, tables.counts
    if broker < 0 or topic < 0:
        return
    at = place_of(watermarks, 3, broker, topic, partition)
    if watermarks[at, 0] == -1:
        if counts[0] >= tables.most_watermarks:
            watermarks[:, 0] = -1
            counts[0] = 0
            at = place_of(watermarks, 3, broker, topic, partition)
        counts[0] += 1
        watermarks[at, 0], watermarks[at, 1], watermarks[at, 2], watermarks[at, 3], watermarks[at, 4] = (
            broker,
            topic,
            partition,
            -1,
            -1,
        )
    if high >= 0:
        watermarks[at, 3] = high
    if stable >= 0:
        watermarks[at, 4] = stable


@part
def note_window(tables: HoldTables, windows: Int64s, i: Scalar) -> None:
    """An answer announces the i-th throttle window of its connection, which replaces an earlier one."""
    muted, counts = tables.muted, tables.counts
    at = place_of(muted, 1, windows[i, 1], 0, 0)
    if muted[at, 0] == -1:
        if counts[1] >= tables.most_muted:
            muted[:, 0] = -1
            counts[1] = 0
            at = place_of(muted, 1, windows[i, 1], 0, 0)
        counts[1] += 1
        muted[at, 0] = windows[i, 1]
    muted[at, 1], muted[at, 2] = windows[i, 2], windows[i, 3]


@kernel("HOLD_EVENTS HOLD_TABLES i8[:] i8[:] i8 -> i8")
def run(happened: HoldEvents, tables: HoldTables, sure: Int64s, until: Int64s, begin: Scalar) -> Scalar:
    """Work on events from place `begin` on. A partition that the request leaves unnamed has the offset of its session.
    Out: per fetch the bytes that were there for sure (`sure`), and the end of the throttle window that it came into, in
    us (`until`). Returns where it stopped for want of room in a table."""
    order, fetches, firsts, rows = happened.order, happened.fetches, happened.firsts, happened.rows
    sighted, windows = happened.sighted, happened.windows
    watermarks, muted, counts = tables.watermarks, tables.muted, tables.counts
    for at_event in range(begin, len(order)):
        kind, i = order[at_event] & 7, order[at_event] >> 3
        new = 0
        if kind == 1:
            new = 1
        elif kind == 2:
            new = firsts[i + 1] - firsts[i]
        need = min(counts[0] + new, tables.most_watermarks) + 1
        if 2 * need > len(watermarks) or 2 * (counts[1] + 2) > len(muted):
            return at_event
        if kind == 0:
            note_window(tables, windows, i)
        elif kind == 1:
            note_watermark(tables, sighted[i, 1], sighted[i, 2], sighted[i, 3], sighted[i, 4], sighted[i, 5])
        elif kind == 2:
            for q in range(firsts[i], firsts[i + 1]):
                given = partition_at(rows, q)
                if given.flags & h.GIVEN:
                    broker = fetch_at(fetches, i).broker
                    note_watermark(tables, broker, given.log, given.partition, given.high, given.stable)
        elif kind == 4:
            if counts[1] > 0:
                fetch = fetch_at(fetches, i)
                at = place_of(muted, 1, fetch.connection, 0, 0)
                if muted[at, 0] != -1 and fetch.answered >= muted[at, 2]:
                    until[i] = muted[at, 1]
        else:
            total = 0
            fetch = fetch_at(fetches, i)
            broker, committed = fetch.broker, fetch.marks & h.COMMITTED
            for q in range(firsts[i], firsts[i + 1]):
                given = partition_at(rows, q)
                offset = given.offset if given.offset >= 0 else given.session_offset
                if given.records <= 0 or offset < 0 or broker < 0 or given.log < 0:
                    continue
                at = place_of(watermarks, 3, broker, given.log, given.partition)
                if watermarks[at, 0] == -1:
                    continue
                limit = watermarks[at, 4] if committed else watermarks[at, 3]
                if offset < limit:
                    now = given.stable if committed else given.high
                    total += given.records if now == limit else 1
            sure[i] = total
    return len(order)


@kernel("const i8[:,:] i8 b1 i8[:] i8[:] i8[:] i8[:] i8[:] -> i8 i8 i8")
def events(
    fetches: Int64s, watermark: Scalar, muted: Scalar, marks: Int64s, firsts: Int64s, due: Int64s, order: Int64s,
    codes: Int64s,
) -> tuple[Scalar, Scalar, Scalar]:  # fmt: skip
    """Fetches whose instants lie before the watermark into `due`, where the partitions of each begin into `firsts`, and
    what happens before the watermark and has not yet, by `marks`: answers of those that are due, requests, and, where
    any connection is `muted` or throttled by these, turns.

    An event is index * 8 + kind: 2 answer, 3 request, 4 request that is next in its connection; its place in order is
    the instant * 8 + kind. Returns how many are due, how many of them were throttled, and how many events `order` and
    `codes`, of three a fetch, have."""
    count, throttled, at = np.int64(0), np.int64(0), np.int64(0)
    firsts[0] = 0
    for i in range(len(fetches)):
        row = fetch_at(fetches, i)
        firsts[i + 1] = firsts[i] + row.partitions
        now = watermark == LATEST or (row.used < watermark and row.answered < watermark)
        if now:
            due[count] = i
            count += 1
            if row.answered != NULL_TIME:
                throttled += row.throttle > 0
                order[at], codes[at] = row.answered * 8 + 2, i * 8 + 2
                at += 1
        if (now or row.used < watermark) and marks[i] & ASKED == 0 and row.used != NULL_TIME:
            marks[i] |= ASKED
            order[at], codes[at] = row.used * 8 + 3, i * 8 + 3
            at += 1
    place = np.int64(0)
    for i in range(len(fetches) if muted or throttled > 0 else 0):
        row = fetch_at(fetches, i)
        now = place < count and due[place] == i
        place += now
        if (now or row.turn < watermark) and marks[i] & BEGUN == 0 and row.used != NULL_TIME:
            marks[i] |= BEGUN
            order[at], codes[at] = row.turn * 8 + 4, i * 8 + 4
            at += 1
    return count, throttled, at


@kernel("i8[:,:] i8[:,:] i8[:,:] const i8[:] -> i8 i8")
def keep(fetches: Int64s, partitions: Int64s, columns: Int64s, due: Int64s) -> tuple[Scalar, Scalar]:
    """Move the fetches that are not due to the end, with their partitions and what is in the columns of `columns`; how
    many of each these are."""
    to, p_to, k = len(fetches), len(partitions), due.size - 1
    p = len(partitions)
    for i in range(len(fetches) - 1, -1, -1):
        if k == i:  # this one is due, and all in front of it
            break
        size = fetch_at(fetches, i).partitions
        p -= size
        if k >= 0 and due[k] == i:
            k -= 1
            continue
        to -= 1
        p_to -= size
        if to == i:
            continue
        for column in range(h.FETCH_WIDTH):
            fetches[to, column] = fetches[i, column]
        for row in range(len(columns)):
            columns[row, to] = columns[row, i]
        for q in range(size - 1, -1, -1):
            for column in range(h.PARTITION_WIDTH):
                partitions[p_to + q, column] = partitions[p + q, column]
    return len(fetches) - to, len(partitions) - p_to


@part
def had_nothing_to_wait_for(row: FetchRow) -> Scalar:
    """Whether a broker had no reason to keep a fetch: it may not wait, or asks for nothing (KRaft's own fetches say
    min_bytes 0 and wait all the same), or the answer sends the client elsewhere."""
    may_not = row.wait == 0 or (row.least == 0 and not row.marks & h.RAFT)
    return may_not or (row.sent == 0 and row.implied == 0) or row.marks & h.REDIRECTED > 0


@kernel("const i8[:] const i8[:,:] const i8[:] const i8[:] i8[:,:] i8[:] f8[:,:]")
def classify(
    due: Int64s, fetches: Int64s, sure: Int64s, until: Int64s, keys: Int64s, hold: Int64s, times: Reals
) -> None:  # fmt: skip
    """Of each that is due its EXCHANGE_KEYS, its place in HOLDS (-1: no response), and as rows of `times` [3, due]
    `excess_ms`, `agreed_ms` and `throttled_ms` (NaN: null), by the rules of `fetch_holds`' head."""
    for k in range(due.size):
        i = due[k]
        row = fetch_at(fetches, i)
        keys[0, k], keys[1, k] = row.connection, row.ordinal
        ms, wait, least, records = row.spent, row.wait, row.least, row.records
        hold[k] = -1
        times[EXCESS, k], times[AGREED, k], times[MUTED, k] = np.nan, np.nan, np.nan
        if np.isnan(ms):
            continue
        raft = row.marks & h.RAFT > 0
        throttle = 0.0 if np.isnan(row.throttle) else row.throttle
        late = wait > 0 and ms >= wait - EARLY_MS
        enough = records >= max(least, 1)
        muted = 0.0
        if row.turn < until[i]:
            muted = min((until[i] - row.turn) / MILLI, ms)
        code = UNKNOWN
        if row.error == NULL:
            code = UNKNOWN
        elif row.error != 0:
            code = ERROR
        elif muted > 0 or (throttle > 0 and records == 0 and not late):
            code = THROTTLED
        elif throttle > 0 and records > 0 and ms >= throttle - EARLY_MS:
            code = THROTTLED
            muted = min(throttle, ms)
        elif row.marks & h.FAILED:
            code = ERROR
        elif (
            (had_nothing_to_wait_for(row) and wait >= 0)
            or (enough and sure[i] >= max(least, 1) and not raft)
            or ((enough or raft) and ms < PROMPT_MS)
        ):
            code = IMMEDIATE
        elif enough:
            code = DATA
        elif late:
            code = TIMEOUT
        elif records > 0 or raft:
            code = DATA
        hold[k] = code
        times[MUTED, k] = muted
        if code in (IMMEDIATE, ERROR):
            times[AGREED, k] = 0.0
        elif wait >= 0:
            times[AGREED, k] = min(float(wait), ms - muted)
        if code == IMMEDIATE or (code == ERROR and row.error != 0):
            times[EXCESS, k] = ms - muted
        elif code == TIMEOUT or (code == DATA and ms > wait and wait >= 0):
            times[EXCESS, k] = max(ms - wait, 0.0)


@kernel("const i8[:] const i8[:] const f8[:] const b1[:] const i8[:] i1[:]")
def name_produces(
    rows: Int64s, acks: Int64s, spent: Reals, muted: npt.NDArray[np.bool_], error: Int64s, hold: Int8s
) -> None:  # fmt: skip
    """Of these rows of exchanges, of Produce of which nobody knows any followers, the place in HOLDS, -1 for none."""
    for row in rows:
        if acks[row] != -1 or np.isnan(spent[row]):
            hold[row] = -1
        elif muted[row]:
            hold[row] = THROTTLED
        else:
            hold[row] = ERROR if error[row] != 0 else UNKNOWN


@kernel(
    "const i8[:] const i8[:] const i8[:] const i8[:] const i8[:] const i1[:] const f8[:,:] i1[:] f8[:,:] i8[:] i8 "
    "-> i8 i8"
)
def take_over(
    high: Int64s, n: Int64s, rows: Int64s, told_high: Int64s, told_n: Int64s, settled: npt.NDArray[np.int8],
    told_waits: Reals, holds: npt.NDArray[np.int8], waits: Reals, missing: Int64s, at: Scalar,
) -> tuple[Scalar, Scalar]:  # fmt: skip
    """Holds and waits [kinds of waits, rows] of these rows, by their keys, out of what is told from the `at`-th on. The
    two stand in the same order, but what is told may lack some. Returns how many are `missing`, and where the next ones
    stand."""
    count = np.int64(0)
    for i in range(rows.size):
        row = rows[i]
        if at < settled.size and told_high[at] == high[row] and told_n[at] == n[row]:
            holds[row] = settled[at]
            for kind in range(len(waits)):
                waits[kind, row] = told_waits[kind, at]
            at += 1
        else:
            missing[count] = row
            count += 1
    return count, at

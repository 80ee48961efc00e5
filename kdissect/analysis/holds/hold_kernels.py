"""Watermarks and throttle windows in order of time: what was known to be there when a fetch asked, and what follows."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kdissect.analysis.sessions.session_pools import hashed
from kdissect.arrays.arrow import MILLI, NULL_TIME, Int64s, Scalar
from kdissect.arrays.rows import NULL
from kdissect.kernels.kernel import kernel, part
from kdissect.kernels.signature import fields
from kdissect.kernels.structs import Int, struct, view
from kdissect.tables import fetch_rows as h
from kdissect.tables.fetch_rows import FetchRow, fetch_at, partition_at

HOLDS = ("data", "timeout", "throttled", "error", "immediate", "unknown", "replication", "rebalance")
DATA, TIMEOUT, THROTTLED, ERROR, IMMEDIATE, UNKNOWN, REPLICATION, REBALANCE = range(8)
WINDOW, SIGHTING, ANSWER, REQUEST, TURN = range(5)
"""Kinds of events: a throttle window is announced, an offset is told, a fetch is answered, it comes, it is its turn in
its connection."""
KINDS = 8
"""An event's code is index * KINDS + kind, its place in order instant * KINDS + kind."""
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


@struct
class Watermark:
    """A partition of a broker, in a hash table."""

    broker: int
    """Code of the broker, -1: the row is free."""
    topic: int
    """Code of the topic."""
    partition: int
    """Its number."""
    high: int
    """The high watermark that was told last, -1: not told yet."""
    stable: int
    """The last stable offset, likewise."""


@struct
class Muted:
    """A connection with a throttle window, in a hash table."""

    connection: int
    """Its id, -1: the row is free."""
    end: int
    """When the window ends, microseconds."""
    earliest: int
    """The earliest instant, in microseconds, at which a broker that muted the connection answers its next request."""


@struct
class Sighting:
    """An answer to ListOffsets tells a partition's offset."""

    at: int
    """When, in microseconds."""
    broker: int
    """Code of the broker."""
    topic: int
    """Code of the topic."""
    partition: int
    """Its number."""
    high: int
    """The high watermark, -1: not told."""
    stable: int
    """The last stable offset, likewise."""


@struct
class Window:
    """A throttle window that an answer announces."""

    at: int
    """When, in microseconds."""
    connection: int
    """Id of the connection."""
    end: int
    """As of `Muted`."""
    earliest: int
    """As of `Muted`."""


@struct
class HoldCounts:
    """Rows in use."""

    watermarks: int
    """Of `HoldTables.watermarks`."""
    muted: int
    """Of `HoldTables.muted`."""


watermark_at, muted_at, sighting_at, window_at = view(Watermark), view(Muted), view(Sighting), view(Window)
hold_counts_of = view(HoldCounts)


class HoldEvents(NamedTuple):
    """What happens, in order of time, and the rows that it is told of."""

    order: Int64s
    """Codes of events."""
    fetches: Int64s
    """Rows of `fetch_rows.FetchRow`."""
    firsts: Int64s
    """[fetches + 1]: where the partitions of each begin in `rows`."""
    rows: Int64s
    """Rows of `fetch_rows.PartitionRow`."""
    sighted: Int64s
    """Rows of `Sighting`."""
    windows: Int64s
    """Rows of `Window`."""


class HoldTables(NamedTuple):
    """What earlier events told. Hash tables have 2**n rows."""

    watermarks: Int64s
    """Rows of `Watermark`."""
    muted: Int64s
    """Rows of `Muted`."""
    counts: Int64s
    """A `HoldCounts`."""
    most_watermarks: Int
    """Rows above which all of `watermarks` are forgotten."""
    most_muted: Int
    """Rows above which all of `muted` are forgotten."""


HOLD_EVENTS = fields(HoldEvents, "const i8[:] const i8[:,:] const i8[:] const i8[:,:] i8[:,:] i8[:,:]")
HOLD_TABLES = fields(HoldTables, "i8[:,:] i8[:,:] i8[:] i8 i8")
"""What kernels that take them declare."""


class HoldTimes(NamedTuple):
    """Durations of fetches in ms, NaN where null; in the order of `fetch_holds.TIMES`."""

    excess: Reals
    """What went beyond the wait that was agreed on."""
    agreed: Reals
    """The wait that was agreed on, as far as it was taken."""
    throttled: Reals
    """What a quota took."""


HOLD_TIMES = fields(HoldTimes, "f8[:] f8[:] f8[:]")
"""What kernels that take it declare."""


@part
def watermark_row(table: Int64s, broker: Scalar, topic: Scalar, partition: Scalar) -> Watermark:
    """The row of a partition, or the free one where it would stand."""
    last = len(table) - 1
    at = hashed(broker, topic, partition) & last
    row = watermark_at(table, at)
    while row.broker != -1 and not (row.broker == broker and row.topic == topic and row.partition == partition):
        at = (at + 1) & last
        row = watermark_at(table, at)
    return row


@part
def muted_row(table: Int64s, connection: Scalar) -> Muted:
    """The row of a connection, or the free one where it would stand."""
    last = len(table) - 1
    at = hashed(connection, 0, 0) & last
    row = muted_at(table, at)
    while row.connection != -1 and row.connection != connection:
        at = (at + 1) & last
        row = muted_at(table, at)
    return row


@kernel("i8[:,:] i8[:,:]")
def refill_watermarks(old: Int64s, new: Int64s) -> None:
    """Move rows to a larger table."""
    for i in range(len(old)):
        known = watermark_at(old, i)
        if known.broker != -1:
            row = watermark_row(new, known.broker, known.topic, known.partition)
            row.broker, row.topic, row.partition = known.broker, known.topic, known.partition
            row.high, row.stable = known.high, known.stable


@kernel("i8[:,:] i8[:,:]")
def refill_muted(old: Int64s, new: Int64s) -> None:
    """Move rows to a larger table."""
    for i in range(len(old)):
        known = muted_at(old, i)
        if known.connection != -1:
            row = muted_row(new, known.connection)
            row.connection, row.end, row.earliest = known.connection, known.end, known.earliest


@part
def note_watermark(
    tables: HoldTables, broker: Scalar, topic: Scalar, partition: Scalar, high: Scalar, stable: Scalar
) -> None:
    """A broker tells a partition's high watermark and last stable offset (-1: not told)."""
    if broker < 0 or topic < 0:
        return
    count = hold_counts_of(tables.counts, 0)
    row = watermark_row(tables.watermarks, broker, topic, partition)
    if row.broker == -1:
        if count.watermarks >= tables.most_watermarks:
            for i in range(len(tables.watermarks)):
                watermark_at(tables.watermarks, i).broker = -1
            count.watermarks = 0
            row = watermark_row(tables.watermarks, broker, topic, partition)
        count.watermarks += 1
        row.broker, row.topic, row.partition, row.high, row.stable = broker, topic, partition, -1, -1
    if high >= 0:
        row.high = high
    if stable >= 0:
        row.stable = stable


@part
def note_window(tables: HoldTables, window: Window) -> None:
    """An answer announces a throttle window of its connection, which replaces an earlier one."""
    count = hold_counts_of(tables.counts, 0)
    row = muted_row(tables.muted, window.connection)
    if row.connection == -1:
        if count.muted >= tables.most_muted:
            for i in range(len(tables.muted)):
                muted_at(tables.muted, i).connection = -1
            count.muted = 0
            row = muted_row(tables.muted, window.connection)
        count.muted += 1
        row.connection = window.connection
    row.end, row.earliest = window.end, window.earliest


@kernel("HOLD_EVENTS HOLD_TABLES i8[:] i8[:] i8 -> i8")
def run(happened: HoldEvents, tables: HoldTables, sure: Int64s, until: Int64s, begin: Scalar) -> Scalar:
    """Work on events from place `begin` on. A partition that the request leaves unnamed has the offset of its session.
    Out: per fetch the bytes that were there for sure (`sure`), and the end of the throttle window that it came into, in
    us (`until`). Returns where it stopped for want of room in a table."""
    order, fetches, firsts, rows = happened.order, happened.fetches, happened.firsts, happened.rows
    count = hold_counts_of(tables.counts, 0)
    for at_event in range(begin, len(order)):
        kind, i = order[at_event] % KINDS, order[at_event] // KINDS
        new = 0
        if kind == SIGHTING:
            new = 1
        elif kind == ANSWER:
            new = firsts[i + 1] - firsts[i]
        need = min(count.watermarks + new, tables.most_watermarks) + 1
        if 2 * need > len(tables.watermarks) or 2 * (count.muted + 2) > len(tables.muted):
            return at_event
        if kind == WINDOW:
            note_window(tables, window_at(happened.windows, i))
        elif kind == SIGHTING:
            told = sighting_at(happened.sighted, i)
            note_watermark(tables, told.broker, told.topic, told.partition, told.high, told.stable)
        elif kind == ANSWER:
            for q in range(firsts[i], firsts[i + 1]):
                given = partition_at(rows, q)
                if given.flags & h.GIVEN:
                    broker = fetch_at(fetches, i).broker
                    note_watermark(tables, broker, given.log, given.partition, given.high, given.stable)
        elif kind == TURN:
            if count.muted > 0:
                fetch = fetch_at(fetches, i)
                muted = muted_row(tables.muted, fetch.connection)
                if muted.connection != -1 and fetch.answered >= muted.earliest:
                    until[i] = muted.end
        else:
            total = 0
            fetch = fetch_at(fetches, i)
            broker, committed = fetch.broker, fetch.marks & h.COMMITTED
            for q in range(firsts[i], firsts[i + 1]):
                given = partition_at(rows, q)
                offset = given.offset if given.offset >= 0 else given.session_offset
                if given.records <= 0 or offset < 0 or broker < 0 or given.log < 0:
                    continue
                known = watermark_row(tables.watermarks, broker, given.log, given.partition)
                if known.broker == -1:
                    continue
                limit = known.stable if committed else known.high
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

    Returns how many are due, how many of them were throttled, and how many events `order` (their places) and `codes`,
    of three a fetch, have."""
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
                order[at], codes[at] = row.answered * KINDS + ANSWER, i * KINDS + ANSWER
                at += 1
        if (now or row.used < watermark) and marks[i] & ASKED == 0 and row.used != NULL_TIME:
            marks[i] |= ASKED
            order[at], codes[at] = row.used * KINDS + REQUEST, i * KINDS + REQUEST
            at += 1
    place = np.int64(0)
    for i in range(len(fetches) if muted or throttled > 0 else 0):
        row = fetch_at(fetches, i)
        now = place < count and due[place] == i
        place += now
        if (now or row.turn < watermark) and marks[i] & BEGUN == 0 and row.used != NULL_TIME:
            marks[i] |= BEGUN
            order[at], codes[at] = row.turn * KINDS + TURN, i * KINDS + TURN
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


@kernel("const i8[:] const i8[:,:] const i8[:] const i8[:] i8[:,:] i8[:] HOLD_TIMES")
def classify(
    due: Int64s, fetches: Int64s, sure: Int64s, until: Int64s, keys: Int64s, hold: Int64s, times: HoldTimes
) -> None:  # fmt: skip
    """Of each that is due its EXCHANGE_KEYS, its place in HOLDS (-1: no response), and its `times`, by the rules of
    `fetch_holds`' head."""
    for k in range(due.size):
        i = due[k]
        row = fetch_at(fetches, i)
        keys[0, k], keys[1, k] = row.connection, row.ordinal
        ms, wait, least, records = row.spent, row.wait, row.least, row.records
        hold[k] = -1
        times.excess[k], times.agreed[k], times.throttled[k] = np.nan, np.nan, np.nan
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
        times.throttled[k] = muted
        if code in (IMMEDIATE, ERROR):
            times.agreed[k] = 0.0
        elif wait >= 0:
            times.agreed[k] = min(float(wait), ms - muted)
        if code == IMMEDIATE or (code == ERROR and row.error != 0):
            times.excess[k] = ms - muted
        elif code == TIMEOUT or (code == DATA and ms > wait and wait >= 0):
            times.excess[k] = max(ms - wait, 0.0)


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

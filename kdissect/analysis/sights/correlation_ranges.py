"""Exchanges that several captures have, found by ranges of correlation ids where captures are read bit by bit.

A range is requests of a connection that follow each other in it, and whose correlation ids go up by one, as clients
number them. So a connection is a row or a few, however many exchanges it has. Two captures saw the same exchange where
both have its correlation id in the same flow (by the 4-tuple: NAT is not seen through), near the same sequence number.

`find_copies` decides which capture's rows count. An exchange that was counted before stays. If captures come together,
the one nearest the broker counts: there answers come soonest. It has most of the broker's traffic, which the analysis
reads. An exchange with its answer counts rather than one without.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kdissect.analysis.grouping import overlapping_spans
from kdissect.analysis.sights.both_ends import SEGMENT
from kdissect.arrays.arrow import encoded, ints, one, stretches
from kdissect.arrays.from_numpy import arrow_array
from kdissect.arrays.mixing import mixed

Int64s = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

RANGES = pa.schema(
    [
        pa.field("capture", pa.string()),
        pa.field("broker", pa.string()),
        pa.field("flow", pa.int64()),
        pa.field("connection", pa.int64()),
        pa.field("n", pa.int64()),
        pa.field("count", pa.int64()),
        pa.field("correlation", pa.int64()),
        pa.field("sequence", pa.int64()),
        pa.field("bytes", pa.int64()),
        pa.field("known", pa.int64()),
        pa.field("took", pa.int64()),
        pa.field("until", pa.int64()),
    ]
)
"""A range: the hash of its flow (the same in every capture) and the id of its connection (which is not); ordinal and
correlation id of its first request, and how many requests it has; the sequence number behind the first one and how many
bytes later the last one ended; how much of these exchanges is known; ns that the answers took in all; and the time of
the last byte (ns, 0 without one). A response whose request was not captured is a range, too: its ordinal is -1 - n, as
in `kdissect.analysis.exchange_keys`, and its sequence number means nothing."""
RESPONSE_ONLY, REQUEST_ONLY, ALL = range(3)
"""What may be known of the exchanges of a range: ALL where no answer is to come."""
COPIES = pa.schema(
    [
        pa.field("capture", pa.string()),
        pa.field("connection", pa.int64()),
        pa.field("n", pa.int64()),
        pa.field("count", pa.int64()),
        pa.field("until", pa.int64()),
    ]
)
"""Exchanges of a connection, by their ordinals, that another capture has, too, and whose rows there count."""
SHARED = pa.schema(
    [
        pa.field("connection", pa.int64()),
        pa.field("other", pa.int64()),
        pa.field("count", pa.int64()),
        pa.field("counted", pa.bool_()),
    ]
)
"""Two sights of a connection: so many exchanges of the first are copies of the `other`, which were `counted` before."""
MOST_PAIRS = 64
"""Pairs of ranges that are compared, by range, in a flow. A client that numbers its requests otherwise has more; there
requests by themselves are compared where they ended at the same sequence number."""
WRAP = np.int64(1) << 32
FAR = np.int64(1) << 40
"""More than any correlation id."""


class Copied(NamedTuple):
    """The copies among some ranges."""

    copies: pa.Table
    """COPIES, each exchange once."""
    shared: pa.Table
    """SHARED: a row for each two ranges."""


def join_ranges(table: pa.Table) -> pa.Table:
    """Ranges, those joined that follow each other."""
    if not table.num_rows:
        return table
    capture = encoded(one(table, "capture"))[0]
    order = np.lexsort((ints(table, "n"), ints(table, "connection"), capture))
    capture, table = capture[order], table.take(arrow_array(order))
    column = {name: ints(table, name) for name in RANGES.names if name not in ("capture", "broker")}
    follows = capture[1:] == capture[:-1]
    for name, step in (("connection", 0), ("known", 0), ("n", column["count"]), ("correlation", column["count"])):
        follows &= column[name][1:] == (column[name] + step)[:-1]
    first = np.flatnonzero(np.concatenate([[True], ~follows]))
    last = np.append(first[1:], len(order)) - 1
    between = np.diff(column["sequence"], prepend=0) - np.concatenate([[0], column["bytes"][:-1]])
    ahead = np.cumsum(column["bytes"] + between % WRAP)  # within a range: how far its last request has come
    made = table.take(arrow_array(first))
    joined = {
        "count": np.add.reduceat(column["count"], first),
        "took": np.add.reduceat(column["took"], first),
        "until": np.maximum.reduceat(column["until"], first),
        "bytes": ahead[last] - ahead[first] + column["bytes"][first],
    }
    for name, values in joined.items():
        made = made.set_column(RANGES.get_field_index(name), RANGES.field(name), arrow_array(values))
    return made


def find_copies(new: pa.Table, counted: pa.Table) -> Copied:
    """The exchanges in the ranges `new` that another capture counts: in `counted`, whose rows were given before, or
    among the new ones."""
    table = pa.concat_tables([counted, new])
    is_new = np.arange(table.num_rows) >= counted.num_rows
    shared_rows = np.flatnonzero(_are_shared(table, is_new))
    table = table.take(arrow_array(shared_rows))
    rows = _Rows(table, ~is_new[shared_rows])
    pairs = _copied(rows)
    copies = _union(rows, pairs)
    at = arrow_array(copies.row)
    columns = [table["capture"].take(at), table["connection"].take(at), arrow_array(copies.n)]
    columns += [arrow_array(copies.size), table["until"].take(at)]
    between = [rows.connection[pairs.row], rows.connection[pairs.other], pairs.end - pairs.begin + 1]
    shared = [arrow_array(column) for column in (*between, rows.counted[pairs.other])]
    return Copied(pa.table(columns, schema=COPIES), pa.table(shared, schema=SHARED))


class _Rows:
    """Columns of ranges, of which some were counted before."""

    def __init__(self, table: pa.Table, counted: Flags) -> None:
        self.capture, self.captures = encoded(one(table, "capture"))
        self.flow = np.unique(ints(table, "flow"), return_inverse=True)[1].reshape(-1).astype(np.int64)
        self.connection, self.n, self.count = (ints(table, name) for name in ("connection", "n", "count"))
        self.correlation, self.sequence = ints(table, "correlation"), ints(table, "sequence")
        self.bytes, self.known = ints(table, "bytes"), ints(table, "known")
        self.counted = counted
        self.rank = self._rank(ints(table, "took"))

    def _rank(self, took: Int64s) -> Int64s:
        """By row, where its capture stands among those of its flow: the one nearest the broker first."""
        by_name = np.argsort(np.argsort(np.array(self.captures, dtype=object))) if self.captures else self.capture
        sight, of = np.unique(self.flow * len(self.captures) + by_name[self.capture], return_inverse=True)
        of = of.reshape(-1)
        answered = np.bincount(of, np.where(self.known == ALL, self.count, 0))
        mean = np.where(answered > 0, np.bincount(of, took) / np.maximum(answered, 1), np.inf)
        rank = np.empty(len(sight), np.int64)
        rank[np.lexsort((sight, mean))] = np.arange(len(sight))
        return rank[of]

    def gives_way(self, row: Int64s, to: Int64s) -> Flags:
        """Whether exchanges in these rows are copies of those in the rows `to`, if they are the same."""
        more, less = self.known[to] > self.known[row], self.known[to] < self.known[row]
        ahead = self.counted[to] | (self.rank[to] < self.rank[row])
        found: Flags = (self.capture[row] != self.capture[to]) & ~self.counted[row] & (more | (ahead & ~less))
        return found

    def are_near(self, row: Int64s, second: Int64s) -> Flags:
        """Whether two ranges lie at the same place of a stream, as far as segments tell."""
        ahead = (self.sequence[second] - self.sequence[row] + WRAP // 2) % WRAP - WRAP // 2
        anywhere = np.maximum(self.bytes[row], self.bytes[second]) >= WRAP // 2
        anywhere |= np.minimum(self.known[row], self.known[second]) == RESPONSE_ONLY
        found: Flags = anywhere | ((ahead >= -self.bytes[second] - SEGMENT) & (ahead <= self.bytes[row] + SEGMENT))
        return found


class _Pairs(NamedTuple):
    """Two ranges each, and the first and the last correlation id that both have."""

    row: Int64s
    other: Int64s
    begin: Int64s
    end: Int64s


def _copied(rows: _Rows) -> _Pairs:
    """Ranges with others that parts of them are copies of."""
    order = np.lexsort((rows.correlation, rows.flow))
    flow, first = rows.flow[order], rows.correlation[order]
    last = first + rows.count[order] - 1
    low = np.searchsorted(np.maximum.accumulate(flow * FAR + last), flow * FAR + first)
    size = np.searchsorted(flow * FAR + first, flow * FAR + last, "right") - low
    several = np.bincount(flow, size)[flow] > MOST_PAIRS * np.bincount(flow)[flow]
    size[several] = 0
    row, other = np.repeat(order, size), order[stretches(low, size)[1]]
    begin_alike = (rows.correlation[row] == rows.correlation[other]) & (rows.sequence[row] == rows.sequence[other])
    begin_alike &= np.minimum(rows.known[row], rows.known[other]) > RESPONSE_ONLY
    repeats = _repeats(rows)
    keep = rows.are_near(row, other) & (begin_alike | ~(repeats[row] | repeats[other]))
    exact = _pairs_of_one_begin(rows, order[several])
    row, other = np.concatenate([row[keep], exact[0]]), np.concatenate([other[keep], exact[1]])
    copied = rows.gives_way(row, other)
    row, other = row[copied], other[copied]
    begin = np.maximum(rows.correlation[row], rows.correlation[other])
    end = np.minimum(rows.correlation[row] + rows.count[row], rows.correlation[other] + rows.count[other])
    return _Pairs(row, other, begin, end - 1)


def _are_shared(table: pa.Table, is_new: Flags) -> Flags:
    """Whether several captures have the flow of each range, and some range of it is new."""
    capture, captures = encoded(one(table, "capture"))
    flows, flow = np.unique(ints(table, "flow"), return_inverse=True)
    sights = np.unique(flow * max(len(captures), 1) + capture) // max(len(captures), 1)
    shared = (np.bincount(sights, minlength=len(flows)) > 1) & (np.bincount(flow, is_new, len(flows)) > 0)
    found: Flags = shared[flow]
    return found


def _repeats(rows: _Rows) -> Flags:
    """Whether a connection has a correlation id of a range in another one, too."""
    connection = np.unique(rows.connection, return_inverse=True)[1].reshape(-1).astype(np.int64)
    order = np.lexsort((rows.correlation, connection))
    first = (connection * FAR + rows.correlation)[order]
    last = np.maximum.accumulate(first + rows.count[order] - 1)
    again = np.zeros(len(order), np.bool_)
    again[1:] = first[1:] <= last[:-1]
    again[:-1] |= again[1:]
    found = np.empty(len(order), np.bool_)
    found[order] = again
    return found


def _pairs_of_one_begin(rows: _Rows, at: Int64s) -> tuple[Int64s, Int64s]:
    """Of these rows those that begin with the same request as others, each with the one that counts."""
    key = mixed(rows.flow[at], rows.correlation[at], rows.sequence[at])
    order = np.lexsort((rows.rank[at], ~rows.counted[at], -rows.known[at], key))
    at, key = at[order], key[order]
    first = np.flatnonzero(np.append(True, key[1:] != key[:-1])[: len(key)])
    return at, np.repeat(at[first], np.diff(np.append(first, len(at))))


class _Parts(NamedTuple):
    """Exchanges of ranges."""

    row: Int64s
    n: Int64s
    """The first one's ordinal."""
    size: Int64s


def _union(rows: _Rows, pairs: _Pairs) -> _Parts:
    """The copies among pairs, each exchange once."""
    order, first = overlapping_spans(pairs.row * FAR + pairs.begin, pairs.row * FAR + pairs.end)
    end = np.maximum.reduceat(pairs.end[order], first) if len(first) else pairs.end
    row, begin = pairs.row[order][first], pairs.begin[order][first]
    return _Parts(row, rows.n[row] + begin - rows.correlation[row], end - begin + 1)

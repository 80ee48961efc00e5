"""Consumers that fall behind the end of the log, by time: how they are found and reported.

Two findings ask: `growing_lag` by what clients fetch, `commits_fall_behind` by what their groups commit.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from kdissect.analysis.findings import evidence as ev
from kdissect.analysis.findings.client_ways import copies_in, host_losses, with_copies
from kdissect.analysis.findings.time_shares import TimeShares
from kdissect.analysis.grouping import Groups, group
from kdissect.arrays.arrow import MILLI, NULL_TIME, Int64s, distinct, ints, reals, times
from kdissect.arrays.from_numpy import arrow_array
from kdissect.arrays.growing import runs

BEHIND_MS = 2000.0
"""A record that waits so long for its reader is late: four polls with the usual fetch.max.wait.ms of 500."""
KEEPS_UP_MS = 1000.0
"""A reader that was so close to the end of the log kept up until then."""
SAMPLES = 3
"""Positions since a reader kept up, needed to speak of a trend."""
TREND = 0.8
"""Share of the steps between them at which it was further behind than before."""
OTHERS_SHARE = 0.5
"""Of the time in which a reader fell behind: answers that were late by so much are the reason, broker or network."""
OTHERS = ("broker", "network", "replication", "throttled", "unknown")
"""Owners of a reader's time that are not the reader, or may be others: an answer that began and never ended is one that
nobody is known to have held."""
NONE: Int64s = np.empty(0, np.int64)


class Falling(NamedTuple):
    """A partition that a reader reads more slowly than it is written."""

    code: int
    """Its group of rows."""
    behind: int
    """Age of the first record that was not read, at the last position; microseconds."""
    since: int
    """When the reader may have kept up last; microseconds."""
    until: int
    """When its last position was known."""
    before: int
    """Records behind at `since`."""
    after: int
    """Records behind at `until`."""


class LogEnds:
    """The end of each partition's log (the offset of the next record) as answers to anybody's fetches showed it."""

    def __init__(self, partitions: pa.Table, at: Int64s) -> None:
        """`partitions`: rows of `fetch_partitions` with their topics apart. `at`: when each was answered, NULL_TIME
        where that is unknown; [rows]."""
        groups = group(partitions, ev.PLACE)
        end = ints(partitions, "high_watermark")
        rows = np.flatnonzero((at != NULL_TIME) & (end >= 0))
        rows = groups.sort_rows(rows, at)
        codes = groups.code[rows]
        places = ev.places(groups.keys)
        self._at, self._end = at[rows], end[rows]
        self._of = {places[codes[begin]]: slice(begin, stop) for begin, stop in runs(codes)}
        """By PLACE its rows of these, in order of time."""

    def times_behind(self, place: tuple[Any, ...], at: Int64s, offset: Int64s) -> Int64s:
        """For how long the record at `offset` of a `place` (PLACE) had been in the log at each instant `at`, at least;
        microseconds [n]. Zero at the end of the log.

        It is time and not records: a hundred records are nothing to a topic of a hundred thousand a second.
        """
        mine = self._of.get(place, slice(0, 0))
        when, end = self._at[mine], np.maximum.accumulate(self._end[mine])
        written = np.append(when, np.iinfo(np.int64).max)[np.searchsorted(end, offset, side="right")]
        found: Int64s = np.maximum(at - np.minimum(written, at), 0)
        return found


class Positions(NamedTuple):
    """How far behind a reader was, over all partitions of a topic."""

    at: Int64s
    """Microseconds, in order, each once; [n]."""
    behind: Int64s
    """Of the partition that was furthest behind; microseconds [n]."""


def _fallen(code: int, at: Int64s, lag: Int64s, behind: Int64s, siblings: Positions) -> Falling | None:
    """How a reader fell behind since it may have kept up last; None where it did not. All in order of time, [n].

    `siblings`: the reader's positions on all partitions of the topic. They count where the partition alone has too few:
    a reader that takes seconds for the records of one answer asks rarely, and for some partitions at a time.
    """
    if len(at) < SAMPLES or lag[-1] <= 0 or lag[-1] < 2 * lag[0] or behind[-1] < BEHIND_MS * MILLI:
        return None
    kept_up = np.flatnonzero(behind <= KEEPS_UP_MS * MILLI)
    begin = int(kept_up[-1]) if len(kept_up) else 0
    steps = np.diff(behind[begin:])
    if len(steps) < SAMPLES:
        steps = np.diff(siblings.behind[siblings.at >= at[begin]])
    if len(steps) < SAMPLES or (steps > 0).mean() < TREND:
        return None
    return Falling(code, int(behind[-1]), int(at[begin]), int(at[-1]), int(lag[begin]), int(lag[-1]))


def _join_positions(some: list[tuple[Int64s, Int64s]]) -> Positions:
    """The positions of all partitions as one sequence. `some`: of each partition the instants and how far behind."""
    at, place = np.unique(np.concatenate([at for at, _ in some]), return_inverse=True)
    behind = np.zeros(len(at), np.int64)
    np.maximum.at(behind, place, np.concatenate([behind for _, behind in some]))
    return Positions(at, behind)


def each_fallen(groups: Groups, rows: Int64s, at: Int64s, lag: Int64s, end: Int64s, ends: LogEnds) -> Iterator[Falling]:
    """Those groups of some rows that fell behind. `end`: how far a reader can read, `lag` behind it; [rows]."""
    rows = groups.sort_rows(rows, at)
    codes = groups.code[rows]
    places = ev.places(groups.keys)
    of_reader = [name for name in groups.keys.column_names if name != "partition"]
    readers = group(groups.keys, of_reader).code
    last = np.flatnonzero(np.append(codes[1:] != codes[:-1], True)[: len(codes)])
    lagging = codes[last[lag[rows[last]] > 0]]
    each = np.flatnonzero(np.isin(readers[codes], readers[lagging]))
    positions: dict[int, dict[int, tuple[Int64s, Int64s]]] = {}
    watched: dict[int, Int64s] = {}
    for begin, stop in runs(codes[each]):
        mine, code = rows[each[begin:stop]], int(codes[each[begin]])
        behind = ends.times_behind(places[code], at[mine], end[mine] - lag[mine])
        behind[lag[mine] <= 0] = 0
        positions.setdefault(int(readers[code]), {})[code] = at[mine], behind
        watched[code] = mine
    for some in positions.values():
        siblings = _join_positions(list(some.values()))
        for code, (when, behind) in some.items():
            mine = watched[code]
            if lag[mine[-1]] > 0 and (one := _fallen(code, when, lag[mine], behind, siblings)):
                yield one


class Paces:
    """What set the pace of each client's fetches."""

    def __init__(self, tables: ev.Tables) -> None:
        fetches = ev.get(tables, "fetches")
        groups = group(fetches, ["client_id"])
        self._shares = TimeShares(tables)
        self._at = times(fetches, "requested_at")
        self._throttled = np.nan_to_num(reals(fetches, "throttle_ms")) > 0
        self._late = np.nan_to_num(reals(fetches, "excess_ms"))
        self._answered_at = times(fetches, "response_first_at")
        self._answered = self._answered_at != NULL_TIME
        self._broker = group(fetches, ["broker"]).code
        self._of = dict(zip(groups.keys["client_id"].to_pylist(), groups.rows(), strict=True))
        self._connections = ev.get(tables, "connections")
        losses = host_losses(self._connections)
        self._behind_losses = {name for one in losses for name in ev.names(one.connections["client_id"])}
        """Clients on hosts that the network loses packets to: an answer that left a broker may not have come."""

    def were_set_by_others(self, client: str | None, since: int, until: int) -> bool:
        """Whether a quota, a broker or the network set the pace of a client's fetches in a span (microseconds)."""
        if client in self._behind_losses:
            return True
        rows = self._of.get(client, NONE)
        at = self._at[rows]
        mine = rows[(at != NULL_TIME) & (at >= since) & (at <= until)]
        late = float(self._late[mine].sum())
        if self._throttled[mine].any() or late * MILLI >= OTHERS_SHARE * (until - since):
            return True
        if self._unanswered(rows, since, until) >= OTHERS_SHARE * (until - since):
            return True
        waited = self._not_asked(rows, since, until)
        if 0 < OTHERS_SHARE * (until - since) <= waited and self._sent_again(client, waited / MILLI):
            return True
        spent = self._shares.spent("client", client, since, until) if client is not None else {}
        return sum(spent.get(owner, 0.0) for owner in OTHERS) * MILLI >= OTHERS_SHARE * (until - since)

    def _not_asked(self, rows: Int64s, since: int, until: int) -> int:
        """For how long at most one of these fetches was the last of its broker after its answer, in a span;
        microseconds."""
        longest, at, brokers = 0, self._at[rows], self._broker[rows]
        answered = self._answered_at[rows]
        for broker in distinct(brokers).tolist():
            mine = (brokers == broker) & (at != NULL_TIME)
            asked, begin = np.append(np.sort(at[mine]), until), answered[mine & self._answered[rows]]
            end = np.minimum(asked[np.searchsorted(asked[:-1], begin, "right")], until)
            longest = max(longest, int((end - np.maximum(begin, since)).max(initial=0)))
        return longest

    def _sent_again(self, client: str | None, span_ms: float) -> bool:
        """Whether segments of one of the client's connections were sent again as often as TCP's timers do in so long.
        An answer that left the broker may not have come."""
        mine = ev.equal(self._connections, "client_id", client or "")
        return bool((mine & with_copies(self._connections, max(copies_in(span_ms), 1))).any())

    def _unanswered(self, rows: Int64s, since: int, until: int) -> int:
        """How long at most a broker owed one of these fetches its answer in a span, and never gave it; microseconds.
        A fetch is owed until the client asks that broker again."""
        longest, at, brokers = 0, self._at[rows], self._broker[rows]
        owed = ~self._answered[rows] & (at != NULL_TIME)
        for broker in distinct(brokers[owed]).tolist():
            asked, begin = np.sort(at[brokers == broker]), at[owed & (brokers == broker)]
            end = np.append(asked, until)[np.searchsorted(asked, begin, "right")]
            longest = max(longest, int((np.minimum(end, until) - np.maximum(begin, since)).max()))
        return longest


def report_fallen(tables: ev.Tables, kind: str, table: str, keys: pa.Table, some: list[Falling]) -> list[ev.Finding]:
    """A finding for each reader and topic, about the partition that is furthest behind and the others with it."""
    by: dict[tuple[Any, ...], list[tuple[Falling, int]]] = {}
    names = [name for name in keys.column_names if name != "partition"]
    for one in sorted(some, key=lambda one: -one.behind):
        row = keys.slice(one.code, 1).to_pylist()[0]
        by.setdefault(tuple(row[name] for name in names), []).append((one, row["partition"]))
    found = []
    for key, mine in by.items():
        about = dict(zip(names, key, strict=True))
        topic_id = about.pop("topic_id")
        partitions = [partition for _, partition in mine]
        worst, _ = mine[0]
        commits = table == "offset_commits"
        readers = ("group_id", "client_id") if commits else ()
        condition = ev.both(
            *(ev.equals(name, about[name]) for name in readers),
            ev.of_topic(about["topic"], topic_id),
            ev.among("partition", sorted(partitions)),
            "error_code = 0" if commits else "lag is not null",
        )
        values = {
            "partitions": partitions, "behind": worst.behind / MILLI, "since": worst.since, "until": worst.until,
            "before": worst.before, "after": worst.after,
        }  # fmt: skip
        found += ev.finding(
            tables, kind, ev.MEDIUM, table, condition, values, **about, partition=partitions[0],
            first_at=min(one.since for one, _ in mine), last_at=max(one.until for one, _ in mine),
        )  # fmt: skip
    return found


def find_held_back(tables: ev.Tables) -> set[tuple[Any, ...]]:
    """Partitions (PLACE) in which open transactions held readers of committed records back."""
    partitions = ev.of_topics_apart(ev.get(tables, "fetch_partitions"))
    at, _ = ev.fetched_at(tables, partitions)
    stable = ints(partitions, "last_stable_offset")
    held = ev.reads_committed(tables, at)
    held &= (stable >= 0) & (stable < ints(partitions, "high_watermark"))
    some = partitions.filter(arrow_array(held))
    return set(ev.places(some))

"""Rows of fetches and their partitions as the tracker's kernel reads them, held back until nothing earlier can come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kdissect.analysis.exchange_keys import keys_of, locate
from kdissect.analysis.sessions import session_layout as c
from kdissect.analysis.sessions.fetch_rules import enter
from kdissect.analysis.sessions.topic_codes import Names
from kdissect.arrays.arrow import (
    NULL_TIME,
    Flags,
    Int64s,
    Room,
    begins,
    in_one_piece,
)
from kdissect.arrays.rows import NULL, Rows
from kdissect.tables import fetch_rows as h
from kdissect.tables.declaration.model import TIME_KEY, UNSEEN_KEY
from kdissect.tables.fetch_rows import (
    FETCH_WIDTH,
    PARTITION_WIDTH,
    READ_COMMITTED,
    FetchRows,
    NamedFetches,
    fetches_of,
    find_turns,
    no_rows,
    partitions_of,
)
from kdissect.tables.order import NEVER, by_request

_NONE = np.zeros(0, np.int64)


class Shown(NamedTuple):
    """What rows of fetches came from, where their reader is given it back."""

    fetches: Rows
    partitions: Rows
    order: Int64s | None
    """[m] row of `partitions` for each row of a partition; None where they are the same."""

    def order_of(self) -> Int64s:
        """`order`, written out."""
        return np.arange(self.partitions.num_rows, dtype=np.int64) if self.order is None else self.order

    def append_rows(self, new: Shown) -> Shown:
        """These rows and new ones behind them."""
        order = None
        if self.order is not None or new.order is not None:
            order = np.concatenate([self.order_of(), new.order_of() + self.partitions.num_rows])
        fetches, partitions = [self.fetches, new.fetches], [self.partitions, new.partitions]
        return Shown(Rows.together(fetches), Rows.together(partitions), order)


class Waiting:
    """Fetches that are not settled yet, with their partitions behind one another."""

    def __init__(
        self, rows: Int64s, partitions: Int64s, firsts: Int64s, uses: Int64s, used: Int64s, created: Int64s,
        shown: Shown | None, kept: FetchRows,
    ) -> None:  # fmt: skip
        self.rows = rows
        """[n, FETCH_WIDTH]"""
        self.partitions = partitions
        """[m, PARTITION_WIDTH], in the order of fetches."""
        self.firsts = firsts
        """[n + 1] rows of `partitions`."""
        self.uses = uses
        """[n, USE_WIDTH] what the tracker found of each."""
        self.used = used
        self.created = created
        """[n] when the use, and the creation, are to be worked on; NEVER where they have been, or there is none."""
        self.shown = shown
        self.kept = kept
        """Settled rows in front of these that the next part of the analysis keeps."""

    @property
    def size(self) -> int:
        """Rows of fetches and of partitions."""
        return len(self.rows) + len(self.partitions)

    @property
    def brokers(self) -> Int64s:
        """Codes of the brokers of fetches: a view."""
        found: Int64s = fetches_of(self.rows)["broker"]
        return found

    def due(self, watermark: int) -> Int64s:
        """Events before the watermark, in order: 2 * row for uses, 2 * row + 1 for creations; they count as done."""
        uses, creations = np.flatnonzero(self.used < watermark), np.flatnonzero(self.created < watermark)
        events = np.concatenate([2 * creations + 1, 2 * uses])
        when = np.concatenate([self.created[creations], self.used[uses]])
        self.used[uses], self.created[creations] = NEVER, NEVER
        order = np.argsort(when, kind="stable")
        events, when = events[order], when[order]
        same = np.flatnonzero(when[1:] == when[:-1])
        if len(same):
            places = np.union1d(same, same + 1)
            tied = events[places]
            row = self.rows[tied >> 1]
            found = fetches_of(row)
            keys = (found["ordinal"], found["connection"], tied & 1 == 0, when[places])
            events[places] = tied[np.lexsort(keys)]
        return events

    def earliest(self) -> int:
        """First among the instants at which these requests were complete."""
        used = fetches_of(self.rows)["used"]
        return int(used[used != NULL_TIME].min(initial=2**63 - 1))

    def settled(self) -> FetchRows:
        """The rows for the next part of the analysis, behind those that it keeps."""
        return FetchRows(
            in_one_piece([self.kept.fetches, self.rows]), in_one_piece([self.kept.partitions, self.partitions])
        )

    def split(self, prompt: bool = False) -> tuple[Waiting, Waiting | None]:
        """The rows that are settled, up to the first that is not, and the others. `prompt`: all that are settled.

        A slice costs nothing, while picking rows copies all their columns. So rows are picked only when most waiting
        rows are settled behind one that is not, or partitions are out of order.
        """
        done = (self.used == NEVER) & (self.created == NEVER)
        if done.all():
            return self, None
        first = int(np.argmin(done))
        shuffled = self.shown is not None and self.shown.order is not None
        if prompt or shuffled or int(done.sum()) - first > len(done) // 2:
            settled, rest = self._part(done), self._part(~done)
        else:
            settled, rest = self._slice(0, first), self._slice(first, len(done))
        settled.kept = self.kept
        return settled, rest

    def _slice(self, begin: int, end: int) -> Waiting:
        inner, outer = int(self.firsts[begin]), int(self.firsts[end])
        shown = self.shown
        if shown is not None:
            fetches, partitions = shown.fetches.slice(begin, end - begin), shown.partitions.slice(inner, outer - inner)
            shown = Shown(fetches, partitions, None)
        return Waiting(
            self.rows[begin:end],
            self.partitions[inner:outer],
            self.firsts[begin : end + 1] - inner,
            self.uses[begin:end],
            self.used[begin:end],
            self.created[begin:end],
            shown,
            no_rows(),
        )

    def _part(self, selected: Flags) -> Waiting:
        at = np.flatnonzero(selected)
        sizes = np.diff(self.firsts)
        members = np.flatnonzero(np.repeat(selected, sizes))
        shown = self.shown
        if shown is not None:
            shown = Shown(shown.fetches.take(at), shown.partitions.take(shown.order_of()[members]), None)
        return Waiting(
            self.rows[at],
            self.partitions[members],
            begins(sizes[at]),
            self.uses[at],
            self.used[at],
            self.created[at],
            shown,
            no_rows(),
        )


class Reading:
    """Puts further rows behind those that wait. `names`: the codes that they get; `hidden`: no caller is given back
    what they came from."""

    def __init__(self, names: Names, hidden: bool = False) -> None:
        self.names = names
        self._fetches, self._partitions = Room(FETCH_WIDTH), Room(PARTITION_WIDTH)
        self.hidden = hidden

    def read(
        self, fetches: Rows, partitions: Rows | None,
        direct_fetches: Sequence[NamedFetches] = (), before: Waiting | None = None,
        settled_rows: FetchRows | None = None,
    ) -> Waiting:  # fmt: skip
        """Rows of the two tables, and `direct_fetches` ones, behind those that wait already. Partitions of exchanges
        that are not among the fetches are left out. Where rows are hidden they stand in the order of their requests.
        `settled_rows`: settled rows that the next part of the analysis keeps."""
        parts = Rows.of(partitions)
        made, order = rows_of_tables(fetches, parts, self.names)
        pieces: list[tuple[FetchRows, tuple[Int64s, Int64s, Int64s, Int64s]]] = [(made, (_NONE,) * 4)]
        for piece in direct_fetches:
            codes = self.names.brokers.taken_over(piece.brokers), self.names.clients.taken_over(piece.clients)
            pieces.append((piece.rows, (*codes, *self.names.topics.of(piece.topics))))
        count, rest = (sum(len(getattr(one, name)) for one, _ in pieces) for name in ("fetches", "partitions"))
        settled_rows, left = (
            settled_rows or no_rows(),
            no_rows() if before is None else FetchRows(before.rows, before.partitions),
        )
        waiting = len(left.fetches), len(left.partitions)
        front = len(settled_rows.fetches), len(settled_rows.partitions)
        rows = self._fetches.behind([settled_rows.fetches, left.fetches], count)
        inner = self._partitions.behind([settled_rows.partitions, left.partitions], rest)
        settled_rows = FetchRows(rows[: front[0]], inner[: front[1]])
        rows, inner = rows[front[0] :], inner[front[1] :]
        firsts, uses = np.zeros(len(rows) + 1, np.int64), np.empty((len(rows), c.USE_WIDTH), np.int64)
        used, created = np.empty((2, len(rows)), np.int64)
        at, q = waiting
        if before is not None:
            firsts[: at + 1], uses[:at], used[:at], created[:at] = (
                before.firsts, before.uses, before.used, before.created,
            )  # fmt: skip
        in_order = sum(len(one.fetches) > 0 for one, _ in pieces) < 2
        for one, codes_ in pieces:
            end, last = at + len(one.fetches), q + len(one.partitions)
            in_order &= enter(
                one.fetches, one.partitions, *codes_, rows[at:end], inner[q:last], firsts[at : end + 1], uses[at:end],
                used[at:end], created[at:end],
            )  # fmt: skip
            at, q = end, last
        if self.hidden and not in_order:
            new, within = slice(waiting[0], None), slice(waiting[1], None)
            _put_in_order(rows[new], inner[within], uses[new], used[new], created[new])
            firsts = starts(rows)
        shown = None if self.hidden else Shown(fetches, parts, order)
        if shown is not None and before is not None and before.shown is not None:
            shown = before.shown.append_rows(shown)
        return Waiting(rows, inner, firsts, uses, used, created, shown, settled_rows)


def starts(fetches: Int64s) -> Int64s:
    """[n + 1]: where the partitions of each fetch begin."""
    return begins(fetches_of(fetches)["partitions"])


def _put_in_order(fetches: Int64s, partitions: Int64s, *besides: npt.NDArray[Any]) -> None:
    """Sort rows by request, in place, and what there is `besides` of each."""
    found = fetches_of(fetches)
    time = found["time"]
    order = by_request(np.where(time == NULL_TIME, NEVER, time), found["connection"], found["ordinal"])
    if order is None:
        return
    firsts, sizes = starts(fetches)[:-1][order], found["partitions"][order]
    members = np.repeat(firsts - begins(sizes)[:-1], sizes) + np.arange(len(partitions))
    fetches[:], partitions[:] = fetches[order], partitions[members]
    for column in besides:
        column[:] = column[order]


def rows_of_tables(fetches: Rows, partitions: Rows, names: Names) -> tuple[FetchRows, Int64s | None]:
    """Rows of `fetches` and `fetch_partitions` as structs, and the row of `partitions` for each (None: in order)."""
    n = fetches.num_rows
    rows = np.empty((n, FETCH_WIDTH), np.int64)
    if not n:
        return FetchRows(rows, np.empty((0, PARTITION_WIDTH), np.int64)), None
    keys, order = keys_of(fetches), None
    counts = np.zeros(n, np.int64)
    if partitions.num_rows:
        owner = locate(keys_of(partitions), keys)
        if (owner < 0).any() or (owner[1:] < owner[:-1]).any():
            kept = np.flatnonzero(owner >= 0)
            order = kept[np.argsort(owner[kept], kind="stable")]
            owner = owner[order]
        counts = np.bincount(owner, minlength=n)
    inner = _partition_rows(partitions, names)
    if order is not None:
        inner = inner[order]
    found = fetches_of(rows)
    found["exchange"], found["partitions"] = fetches.ints(h.ORIGIN), counts
    found["connection"], found["ordinal"] = keys
    found["time"] = fetches.times(TIME_KEY)
    found["broker"] = fetches.codes("broker", names.brokers)
    found["client"] = fetches.codes("client_id", names.clients)
    found["version"], found["size"] = fetches.ints("api_version"), fetches.ints("request_bytes")
    found["used"] = used = fetches.times("request_last_at")
    found["answered"] = answered = fetches.times("response_first_at")
    found["spent"], found["throttle"] = spent, _ = fetches.reals("broker_ms"), fetches.reals("throttle_ms")
    turns = np.empty(n, np.int64)
    find_turns(used, answered, fetches.reals("queued_ms"), spent, turns)
    found["turn"], found["error"] = turns, fetches.ints("error_code", NULL)
    found["wait"], found["least"] = fetches.ints("max_wait_ms"), fetches.ints("min_bytes", 1)
    found["sent"], found["returned"] = fetches.ints("partitions_sent"), fetches.ints("partitions_returned", 0)
    found["records"] = fetches.ints("record_bytes", 0)
    found["session"], found["epoch"] = (fetches.ints(name, NULL) for name in ("request_session_id", "session_epoch"))
    found["given_session"] = fetches.ints("response_session_id", 0)
    found["unseen"] = fetches.ints(UNSEEN_KEY, NULL)
    marks = (fetches.ints("is_raft", 0) > 0) * h.RAFT + (fetches.ints("partitions_with_error", 0) > 0) * h.FAILED
    marks += (fetches.ints("isolation_level", 0) == READ_COMMITTED) * h.COMMITTED
    told = partitions_of(inner)
    redirected = (told["preferred"] >= 0) | (told["diverging"] >= 0)
    if redirected.any():
        marks[np.repeat(np.arange(n), counts)[redirected]] |= h.REDIRECTED
    found["marks"] = marks
    return FetchRows(rows, inner), order


def _partition_rows(partitions: Rows, names: Names) -> Int64s:
    """Rows of `fetch_partitions` as structs, in their order."""
    rows = np.empty((partitions.num_rows, PARTITION_WIDTH), np.int64)
    found = partitions_of(rows)
    topics = names.topics
    codes = partitions.codes("topic", topics.by_name), partitions.codes("topic_id", topics.by_id)
    found["topic"], found["log"] = topics.codes(*codes), topics.logs(*codes)
    found["partition"], found["offset"] = partitions.ints("partition"), partitions.ints("fetch_offset")
    found["flags"] = (
        (partitions.ints("in_request", 0) > 0) * np.int64(h.ASKED)
        + (partitions.ints("in_response", 0) > 0) * np.int64(h.GIVEN)
        + (partitions.ints("forgotten", 0) > 0) * np.int64(h.FORGOTTEN)
    )
    found["error"] = error = partitions.ints("error_code", 0)
    good = error == 0
    found["high"] = np.where(good, partitions.ints("high_watermark"), -1)
    found["stable"] = np.where(good, partitions.ints("last_stable_offset"), -1)
    found["start"], found["records"] = partitions.ints("broker_log_start_offset"), partitions.ints("record_bytes", 0)
    found["preferred"], found["diverging"] = (
        partitions.ints(name) for name in ("preferred_read_replica", "diverging_epoch")
    )
    return rows

"""How far a partition's log reached when a group committed: `high_watermark` and `lag` of `offset_commits`.

A commit goes to the group's coordinator and says nothing of the log. The high watermark is that of the partition's last
Fetch answer whose first byte came before the commit's, in the same capture. Any client may have asked for it, and any
broker may have given it. None seen: null. The lag is what the group would read again, or has not read yet, if it began
there.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from kdissect.analysis.exchange_keys import keys_of, locate
from kdissect.arrays.arrow import NULL_TIME, Coder, Int64s, ints, joined, optional, times, whole, with_columns
from kdissect.tables.declaration.model import COUNT, By
from kdissect.tables.makers import fills

NO_WATERMARK = 2**63 - 1
"""No row comes any more."""
MAX_KNOWN = 1 << 20
"""Notes of high watermarks that are kept, 32 MB: one of each partition and those since the oldest commit that waits.
Beyond them the oldest are forgotten, which leaves nulls."""


CarriedCommits = tuple[Coder, Coder, Int64s, Int64s, list[pa.Table]]
"""What a `CommitTracker` knows between two calls, as `carried` gives it."""


class CommitTracker:
    """Follows high watermarks and fills them in, block by block."""

    def __init__(self) -> None:
        self._topics, self._captures = Coder(), Coder()
        self._notes = np.zeros((0, 5), np.int64)
        self._capture_of = np.zeros((0, 2), np.int64)
        self._waiting: list[pa.Table] = []

    def carried(self) -> CarriedCommits:
        """The state that another tracker goes on from."""
        return self._topics, self._captures, self._notes, self._capture_of, self._waiting

    def go_on(self, before: CarriedCommits) -> None:
        """Begins where another tracker ended. To be called first."""
        self._topics, self._captures, self._notes, self._capture_of, self._waiting = before

    def feed(self, tables: Mapping[str, pa.Table], watermark: int) -> pa.Table:
        """Commits that are settled, filled in: those before `watermark` (µs), which no later row comes before.

        `tables`: exchanges, fetches, fetch_partitions and offset_commits of a block, all rows of an exchange together.
        """
        commits = whole(tables["offset_commits"])
        if watermark == NO_WATERMARK and not commits.num_rows and not self._waiting:
            return self._filled(commits)
        exchanges, fetches, parts = (whole(tables[name]) for name in ("exchanges", "fetches", "fetch_partitions"))
        self._learn(exchanges)
        self._note(fetches, parts)
        if self._waiting:
            commits = joined(self._waiting[0], commits).combine_chunks()
        at = times(commits, "at")
        settled = (at < watermark) | (at == NULL_TIME)
        self._waiting = [commits.filter(pa.array(~settled))] if not settled.all() else []
        done = self._filled(commits.filter(pa.array(settled)))
        self._forget(min([watermark, *at[~settled].tolist()]))
        waiting = [keys_of(rest)[0] for rest in self._waiting]
        self._capture_of = self._capture_of[np.isin(self._capture_of[:, 0], waiting)]  # the others are told again
        return done

    def _learn(self, exchanges: pa.Table) -> None:
        """Notes which capture each connection belongs to."""
        connection = keys_of(exchanges)[0]
        code = self._captures.column(exchanges, "capture")
        found, first = np.unique(connection, return_index=True)
        both = np.concatenate([self._capture_of, np.stack([found, code[first]], axis=1)])
        self._capture_of = both[np.unique(both[:, 0], return_index=True)[1]]

    def _captured(self, connection: Int64s) -> Int64s:
        known = self._capture_of[:, 0]
        if not len(known):
            return np.full(len(connection), -1, np.int64)
        place = np.minimum(np.searchsorted(known, connection), len(known) - 1)
        return np.where(known[place] == connection, self._capture_of[place, 1], -1)

    def _note(self, fetches: pa.Table, parts: pa.Table) -> None:
        keys = keys_of(parts)
        place = locate(keys, keys_of(fetches))
        told = times(fetches, "response_first_at")
        high = ints(parts, "high_watermark", -1)
        topic = self._topics.column(parts, "topic")
        good = (high >= 0) & (place >= 0) & (topic >= 0) & (ints(parts, "error_code", 0) == 0)
        rows = np.flatnonzero(good)
        at = told[place[rows]]
        rows, at = rows[at != NULL_TIME], at[at != NULL_TIME]
        columns = [self._captured(keys[0][rows]), topic[rows], ints(parts, "partition")[rows], at, high[rows]]
        notes = np.concatenate([self._notes, np.stack(columns, axis=1)])
        # Of several answers at one instant the highest.
        self._notes = notes[np.lexsort([notes[:, 4], notes[:, 3], notes[:, 2], _place(notes)])]

    def _forget(self, before: int) -> None:
        """Drop the notes that no commit at `before` or later needs: all but the last one of a partition before it."""
        notes = self._notes
        if not len(notes):
            return
        superseded = np.zeros(len(notes), np.bool_)
        superseded[:-1] = (notes[1:, :3] == notes[:-1, :3]).all(axis=1) & (notes[1:, 3] < before)
        kept = notes[~superseded]
        if len(kept) > MAX_KNOWN:
            kept = kept[np.sort(np.argsort(-kept[:, 3], kind="stable")[:MAX_KNOWN])]
        self._notes = kept

    def _filled(self, commits: pa.Table) -> pa.Table:
        high = np.full(commits.num_rows, -1, np.int64)
        if commits.num_rows and len(self._notes):
            capture = self._captured(keys_of(commits)[0])
            topic = self._topics.column(commits, "topic")
            wanted = np.stack([capture, topic, ints(commits, "partition"), times(commits, "at")], axis=1)
            notes = self._notes
            # Both in one order, commits before the notes of their own instant: the note before a commit is its own.
            rows = np.concatenate([notes[:, :4], wanted])
            kind = np.repeat([1, 0], [len(notes), len(wanted)])
            order = np.lexsort([kind, rows[:, 3], rows[:, 2], _place(rows)])
            is_note = kind[order] == 1
            last = np.maximum.accumulate(np.where(is_note, np.arange(len(order)), -1))
            places = np.flatnonzero(~is_note)
            note = order[last[places]]
            mine = order[places] - len(notes)
            own = (last[places] >= 0) & (notes[np.minimum(note, len(notes) - 1), :3] == wanted[mine, :3]).all(axis=1)
            own &= (wanted[mine, 0] >= 0) & (wanted[mine, 1] >= 0)
            high[mine[own]] = notes[note[own], 4]
        offset = ints(commits, "offset", -1)
        lag = np.where((high >= 0) & (offset >= 0), np.maximum(high - offset, 0), -1)
        return with_columns(commits, {"high_watermark": optional(high, COUNT), "lag": optional(lag, COUNT)})


def _place(rows: Int64s) -> Int64s:
    """Capture and topic of rows as one number: what they are sorted by, in fewer steps."""
    return rows[:, 0] << 32 | rows[:, 1]


def settle(tables: Mapping[str, pa.Table]) -> pa.Table:
    """All of `offset_commits` at once."""
    return CommitTracker().feed(tables, NO_WATERMARK)


fills(By.COMMITS, lambda: {"offset_commits": ("high_watermark", "lag")})

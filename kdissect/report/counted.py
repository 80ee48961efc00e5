"""Sums of rows by keys and stretch of time, in bounded memory, however many rows and however long the capture.

Rows come in parts, in about the order of time, and the length of the capture is not known yet. They are added up by
buckets of time which grow whenever there are too many sums, each width a multiple of the one before. At the end
`stretched` puts buckets together until the rows are as few as a page may hold.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kdissect.analysis.grouping import Float64s, figures, group
from kdissect.arrays.arrow import NULL_TIME, Flags, Int64s, instants, ints, reals, with_columns

ROWS = 6000
"""Of a figure at most, where it has several stretches: about 60 kB in the page."""
ROOM = 40_000
"""Sums that are kept before buckets grow, and rows before they are added up: some MB."""
DAY = 86_400_000_000
WIDTHS = (
    1000, 10_000, 100_000, 1_000_000, 10_000_000, 60_000_000, 600_000_000, 3_600_000_000, 21_600_000_000,
    *(DAY * 10**power for power in range(8)),
)  # fmt: skip
"""Of buckets, in us: each divides the next, and the round lengths that figures have (`bucket_seconds`)."""
BUCKETS = 96
"""Buckets of time in a figure at most: each is still some pixels wide on a laptop's screen."""
NICE = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600)
"""Lengths of buckets that people can add up, in whatever unit."""
OTHERS = "(others)"


def bucket_seconds(first: int, last: int) -> float:
    """Length of a bucket of time: a round number of seconds (or milliseconds) that makes at most BUCKETS of them
    between two instants (us)."""
    least = max((last - first) / 1e6 / (BUCKETS - 1), 1e-3)
    for unit in (1e-3, 1.0, 3600.0, 86_400.0):
        for nice in (n for n in NICE if unit != 1e-3 or n < 1000):
            if nice * unit >= least:
                return nice * unit
    return float(np.ceil(least / 86_400) * 86_400)


class Counted:
    """Adds up `sums` by `keys` and time. Where keys are too many even without time, of those with least `sums[0]` the
    last key becomes OTHERS (it must be a text)."""

    def __init__(self, keys: Sequence[str], sums: Sequence[str], room: int = ROOM) -> None:
        self.keys, self.sums = list(keys), list(sums)
        self._room = room
        self._parts: list[pa.Table] = []
        self._count = 0
        self._place = 0

    @property
    def width(self) -> int:
        """Of its buckets, us."""
        return int(WIDTHS[self._place])

    def add(self, rows: pa.Table, at: Int64s) -> None:
        """Rows with `keys` and `sums` (int64 or float64, no null), and when each was (us; NULL_TIME: unknown)."""
        if not rows.num_rows:
            return
        bucket = pa.array(np.where(at < 0, -1, at // self.width))
        rows = with_columns(rows.select([*self.keys, *self.sums]), {"bucket": bucket})
        self._parts.append(summed(rows, [*self.keys, "bucket"], self.sums))
        self._count += self._parts[-1].num_rows
        if self._count > self._room:
            self._fold()

    def _fold(self) -> None:
        found = summed(pa.concat_tables(self._parts), [*self.keys, "bucket"], self.sums)
        while found.num_rows > self._room // 2 and self._place < len(WIDTHS) - 1:
            grown = WIDTHS[self._place + 1] // self.width
            self._place += 1
            found = summed(_wider(found, grown), [*self.keys, "bucket"], self.sums)
        if found.num_rows > self._room // 2 and self.keys:
            found = summed(self._fewer(found), [*self.keys, "bucket"], self.sums)
        self._parts, self._count = [found], found.num_rows

    def _fewer(self, rows: pa.Table) -> pa.Table:
        """The rows with most stay what they are."""
        kept = np.zeros(rows.num_rows, np.bool_)
        kept[np.argsort(-reals(rows, self.sums[0]), kind="stable")[: self._room // 4]] = True
        name = self.keys[-1]
        column = rows[name].combine_chunks()
        other = pa.array([OTHERS] * rows.num_rows, pa.string())
        return with_columns(rows, {name: pc.if_else(pa.array(kept), column.cast(pa.string()), other)})

    def _folded(self) -> pa.Table | None:
        if len(self._parts) > 1:
            self._fold()
        return self._parts[0] if self._parts else None

    def totals(self) -> pa.Table:
        """Sums by keys over all time: keys, sums."""
        found = self._folded()
        return self._empty() if found is None else summed(found, self.keys, self.sums)

    def by_time(self, every: float) -> tuple[pa.Table, Int64s, int]:
        """Sums by keys and buckets of `every` seconds, or of what was counted where that is longer: the rows, their
        buckets (-1: unknown), and how long these are (us)."""
        found = self._folded()
        width = max(1, round(every * 1e6))
        if found is None:
            return self._empty(), np.zeros(0, np.int64), width
        width = -(-width // self.width) * self.width
        found = summed(_wider(found, width // self.width), [*self.keys, "bucket"], self.sums)
        return found, ints(found, "bucket"), width

    def rows(self, every: float, most: int = ROWS) -> pa.Table:
        """Sums by keys and stretch of time, at least `every` seconds long: keys, at, until, sums; at most `most` rows
        where stretches can be put together."""
        found, bucket, width = self.by_time(every)
        return stretched(found, bucket, width, self.keys, self.sums, most)

    def _empty(self) -> pa.Table:
        kinds = [(name, pa.string()) for name in self.keys] + [(name, pa.int64()) for name in self.sums]
        return pa.schema(kinds).empty_table()


def summed(rows: pa.Table, keys: Sequence[str], sums: Sequence[str]) -> pa.Table:
    """A row for each combination of keys."""
    groups = group(rows, keys)
    columns = {name: groups.keys[name] for name in keys}
    for name in sums:
        total = groups.total(reals(rows, name))
        whole = pa.types.is_integer(rows.schema.field(name).type)
        columns[name] = pa.array(total.astype(np.int64)) if whole else figures(total)
    return pa.table(columns)


def _wider(rows: pa.Table, times: int) -> pa.Table:
    bucket = ints(rows, "bucket")
    return with_columns(rows, {"bucket": pa.array(np.where(bucket < 0, -1, bucket // times))})


def stretched(
    table: pa.Table, bucket: Int64s, width: int, keys: Sequence[str], sums: Sequence[str], most: int = ROWS
) -> pa.Table:
    """Sums of rows by `keys` and stretch of time: keys, at, until, sums; at most `most` rows where stretches can be put
    together. `bucket`: the bucket of each row, `width` us long (below 0: unknown, `at` is null)."""
    known = bucket[bucket >= 0]
    first = int(known.min()) if len(known) else 0
    origin = first * width
    bucket = np.where(bucket < 0, -1, bucket - first)
    table = with_columns(table, {"bucket": pa.array(bucket)}).select([*keys, "bucket", *sums])
    while True:
        table = summed(table, [*keys, "bucket"], sums)
        bucket = ints(table, "bucket")
        if table.num_rows <= most or len(np.unique(bucket[bucket >= 0])) <= 1:
            break
        width *= 2
        table = with_columns(table, {"bucket": pa.array(np.where(bucket < 0, -1, bucket // 2))})
    at = np.where(bucket < 0, NULL_TIME, origin + bucket * width)
    until = np.where(bucket < 0, NULL_TIME, at + width)
    found = with_columns(table, {"at": instants(at), "until": instants(until)})
    return found.select([*keys, "at", "until", *sums])


def count_flags(flags: Flags) -> pa.Array:
    """Flags as numbers that add up."""
    return pa.array(flags.astype(np.int64))


def amounts(values: Float64s) -> pa.Array:
    """Durations as numbers that add up: what is not known, or below nothing, is nothing."""
    return pa.array(np.maximum(np.nan_to_num(values), 0.0))

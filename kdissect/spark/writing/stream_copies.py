"""Exchanges that several capture sets of a stream have: the rows of one set are written.

Each batch of `follow` brings, for each set, the ranges of correlation ids that its exchanges are
(`kdissect.analysis.sights.correlation_ranges`). The driver compares them with those of other sets, of this batch and of
earlier ones, and tasks leave rows out. Ranges are kept for an hour of capture time behind the set that is furthest
behind, in a file for each batch next to the checkpoint.

Rows about a broker as a whole (sessions, their partitions, findings) come from the sets that do not have most of its
exchanges as copies.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kdissect.analysis.exchange_keys import exchange_keys
from kdissect.analysis.sights.correlation_ranges import COPIES, RANGES, Copied, Flags, find_copies, join_ranges
from kdissect.arrays.arrow import Int64s, ints
from kdissect.arrays.from_numpy import arrow_array
from kdissect.arrays.typed_values import UnreadableValue, dumped, loaded
from kdissect.problems import UsageError
from kdissect.spark.file_system import HadoopFiles
from kdissect.spark.placing import CONNECTION_NUMBER, EXCHANGE_NUMBER
from kdissect.spark.writing.destination import target

FOLDER = "_copies"
"""Below the output: what is known of copies after each batch."""
SECOND = 10**9
WAITED_FOR = 86_400 * SECOND
"""Capture time that a set may be behind the others. What is further behind is compared with an hour of them alone."""
KEPT = 3600 * SECOND
"""Capture time for which ranges are kept behind the set that is furthest behind: clocks may differ by as much."""
WRITTEN = 60 * SECOND
"""Capture time after which the rows of an exchange were written: they wait for ten seconds (`Continued`)."""
MOST_RANGES = 1 << 20
"""Ranges that are kept, the last ones: 90 MB."""
OF_BROKERS = ("fetch_sessions", "session_partitions", "findings")
"""Tables whose rows are about a broker as a whole."""
OF_THE_PLACE = ("network", "capture")
"""Causes of findings that say something of where was captured: each set has its own."""
View = tuple[str, str | None]
"""A capture set and a broker in it."""


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of copies after a batch."""

    ranges: pa.Table
    """RANGES that later ones may be copies of."""
    copies: pa.Table
    """COPIES whose rows were not written yet, or are being written."""
    views: dict[View, bool]
    """Whether a set has most of a broker's exchanges as copies."""
    latest: dict[str, int]
    """By set the last time in its ranges, ns."""


NOTHING = Known(RANGES.empty_table(), COPIES.empty_table(), {}, {})


def learn_ranges(before: Known, new: pa.Table) -> Known:
    """What is known after the ranges of a batch."""
    new = join_ranges(new)
    found = find_copies(new, before.ranges) if _several(before.ranges, new) else Copied(COPIES.empty_table(), {})
    latest = {**before.latest, **_latest(new)}
    horizon = min((at for at in latest.values() if at >= max(latest.values()) - WAITED_FOR), default=0) - KEPT
    ranges = join_ranges(pa.concat_tables([before.ranges, new]))
    ranges = ranges.filter(pc.greater_equal(ranges["until"], horizon))
    if ranges.num_rows > MOST_RANGES:
        newest = np.argsort(ints(ranges, "until"), kind="stable")[-MOST_RANGES:]
        ranges = ranges.take(arrow_array(np.sort(newest)))
    names = before.copies["capture"].to_pylist()
    written = np.array([before.latest.get(name, 0) - WRITTEN for name in names], np.int64)
    waiting = before.copies.filter(arrow_array(ints(before.copies, "until") >= written))
    return Known(ranges, pa.concat_tables([waiting, found.copies]), {**before.views, **found.views}, latest)


def _several(counted: pa.Table, new: pa.Table) -> bool:
    """Whether ranges are of more than one set."""
    return len({*counted["capture"].unique().to_pylist(), *new["capture"].unique().to_pylist()}) > 1


def _latest(ranges: pa.Table) -> dict[str, int]:
    found = ranges.group_by("capture").aggregate([("until", "max")])
    return dict(zip(found["capture"].to_pylist(), found["until_max"].to_pylist(), strict=True))


class RowsOnce:
    """Leaves out rows that another set's rows stand for."""

    def __init__(self, known: Known) -> None:
        self._views = {view for view, copy in known.views.items() if copy}
        self._copies: dict[str, _Exchanges] = {}
        for capture in known.copies["capture"].unique().to_pylist():
            self._copies[capture] = _Exchanges(known.copies.filter(pc.equal(known.copies["capture"], capture)))

    def of(self, name: str, capture: str, rows: pa.Table) -> pa.Table:
        """Those rows of a set that count, of a table as it is written."""
        copies = self._copies.get(capture)
        if EXCHANGE_NUMBER.name in rows.column_names and copies is not None and name != "problems":
            copied = copies.have(ints(rows, CONNECTION_NUMBER.name), ints(rows, EXCHANGE_NUMBER.name))
            return rows.filter(arrow_array(~copied)) if copied.any() else rows
        if name not in OF_BROKERS or not any(one == capture for one, _ in self._views):
            return rows
        copied = np.array([(capture, broker) in self._views for broker in rows["broker"].to_pylist()], np.bool_)
        if name == "findings":
            if copies is not None and "first_exchange_id" in rows.column_names:
                copied |= copies.have(*exchange_keys(rows["first_exchange_id"]))
            if "cause" in rows.column_names:
                copied &= ~np.isin(rows["cause"].to_pylist(), OF_THE_PLACE)
        return rows.filter(arrow_array(~copied)) if copied.any() else rows


class _Exchanges:
    """Exchanges of one set, by their ordinals."""

    def __init__(self, copies: pa.Table) -> None:
        connection, n, count = (ints(copies, name) for name in ("connection", "n", "count"))
        order = np.lexsort((n, connection))
        self._connections = np.unique(connection)
        self._first = self._place(connection, n)[order]
        self._last = self._first + count[order] - 1

    def _place(self, connection: Int64s, n: Int64s) -> Int64s:
        return np.searchsorted(self._connections, connection) << 40 | n

    def have(self, connection: Int64s, n: Int64s) -> Flags:
        """Whether these exchanges are among them."""
        at = np.searchsorted(self._connections, connection)
        known = self._connections[np.minimum(at, len(self._connections) - 1)] == connection
        place = at << 40 | np.maximum(n, 0)
        before = np.maximum(np.searchsorted(self._first, place, "right") - 1, 0)
        found: Flags = known & (n >= 0) & (self._first[before] <= place) & (place <= self._last[before])
        return found


class KnownCopies:
    """What a query knows of copies after each of its batches, below `output`."""

    def __init__(self, files: HadoopFiles, output: str, query: str) -> None:
        self._files = files
        self._folder = target(output, FOLDER)
        self._query = query

    def before(self, number: int) -> Known:
        """What was known before this batch. Raises UsageError."""
        earlier = [found for found in self._numbers() if found < number]
        if not earlier:
            return NOTHING
        try:
            known: Known = loaded(self._files.read(self._place(max(earlier))), Known)
        except UnreadableValue:
            raise UsageError(
                f"{self._folder} is damaged, or of another version of kdissect: begin with a new checkpoint"
            ) from None
        return known

    def keep(self, number: int, after: Known) -> None:
        """Keep what is known after this batch. It may run again, so what was known before it stays."""
        place = self._place(number)
        if not self._files.exists(place):
            self._files.write(place, dumped(after, Known))

    def forget(self, number: int) -> None:
        """A batch was written: what was known before the last ones is not needed."""
        for found in self._numbers()[:-2]:
            if found < number:
                self._files.delete(self._place(found))

    def _place(self, number: int) -> str:
        return f"{self._folder}/{self._query}-{number:09}"

    def _numbers(self) -> list[int]:
        prefix = f"{self._query}-"
        names = self._files.names(self._folder)
        return sorted(int(name.removeprefix(prefix)) for name in names if name.startswith(prefix))

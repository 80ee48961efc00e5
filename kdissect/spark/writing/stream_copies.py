"""Exchanges that several capture sets of a stream have: the rows of one set are written.

Each batch of `follow` brings, for each set, the ranges of correlation ids that its exchanges are
(`kdissect.analysis.sights.correlation_ranges`). The driver compares them with those of other sets, of this batch and of
earlier ones, and tasks leave rows out. Ranges are kept for an hour of capture time behind the set that is furthest
behind, in a file for each batch next to the checkpoint.

A connection that several sets have belongs to one of them: to the one whose exchanges were written first, and else to
the one nearest the broker. Its row, and rows about more than one exchange (sessions, their partitions, findings) come
from there.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kdissect.analysis.exchange_keys import exchange_keys
from kdissect.analysis.sights.both_ends import join_pairs
from kdissect.analysis.sights.correlation_ranges import COPIES, RANGES, Flags, find_copies, join_ranges
from kdissect.arrays.arrow import Int64s, ints
from kdissect.arrays.from_numpy import arrow_array
from kdissect.arrays.typed_values import OtherVersion, UnreadableValue, dumped, loaded
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
OF_SESSIONS = ("fetch_sessions", "session_partitions")
NETWORK, CAPTURE = "network", "capture"
"""Causes of findings that say something of where was captured: only one of the sets may have seen it."""
SUBJECT = ("id", "broker", "client_id")
"""Findings that agree in these columns are about the same."""
FOUND = pa.schema([pa.field(name, pa.string()) for name in ("capture", *SUBJECT)])
"""What findings of a batch are about."""
CONNECTIONS = pa.schema(
    [
        pa.field("connection", pa.int64()),
        pa.field("capture", pa.string()),
        pa.field("broker", pa.string()),
        pa.field("count", pa.int64()),
        pa.field("until", pa.int64()),
        pa.field("owner", pa.int64()),
    ]
)
"""Connections: how many exchanges they have, the time of the last one (ns), and whose they are."""
NOBODY_ELSES, OWN, ANOTHERS = range(3)
"""What `owner` says: no other set has it, this set's sight counts, another's does."""


log = logging.getLogger("kdissect.spark")


@dataclass(frozen=True, slots=True)
class Known:
    """The knowledge about copies: in a batch, and behind it (`prune_known`)."""

    ranges: pa.Table
    """RANGES that later ones may be copies of."""
    copies: pa.Table
    """COPIES whose rows were not written yet, or are being written."""
    connections: pa.Table
    """CONNECTIONS in order of their ids."""
    latest: dict[str, int]
    """By set the last time in its ranges, ns."""


NOTHING = Known(RANGES.empty_table(), COPIES.empty_table(), CONNECTIONS.empty_table(), {})
FORGOTTEN = (
    "another version of kdissect wrote the batches before this one: exchanges of theirs that another set has now are "
    "there twice"
)
FIRST = 1 << 20
"""What an exchange that was counted before weighs against one of the same batch."""


def learn_ranges(before: Known, new: pa.Table) -> Known:
    """The knowledge in a batch that brings these ranges."""
    new = join_ranges(new)
    found = find_copies(new, before.ranges)
    names = before.copies["capture"].to_pylist()
    written = np.array([before.latest.get(name, 0) - WRITTEN for name in names], np.int64)
    waiting = before.copies.filter(arrow_array(ints(before.copies, "until") >= written))
    return Known(
        join_ranges(pa.concat_tables([before.ranges, new])),
        pa.concat_tables([waiting, found.copies]),
        _share_connections(before.connections, new, found.shared),
        {**before.latest, **_latest(new)},
    )


def prune_known(in_batch: Known, open_connections: pa.Table) -> Known:
    """The knowledge that later batches need. `open_connections`: OPEN at the end of the batch. Rows of a connection may
    come until it has ended, and its sessions, however long they are silent."""
    latest = in_batch.latest
    horizon = min((at for at in latest.values() if at >= max(latest.values()) - WAITED_FOR), default=0) - KEPT
    connections = in_batch.connections
    read = pc.is_in(connections["capture"], open_connections["capture"].unique())
    still = pc.is_in(connections["connection"], open_connections["connection"].combine_chunks())
    awaited = pc.and_(pc.equal(connections["owner"], ANOTHERS), pc.or_(pc.invert(read), still))
    connections = connections.filter(pc.or_(awaited, pc.greater_equal(connections["until"], horizon)))
    ranges = in_batch.ranges.filter(pc.greater_equal(in_batch.ranges["until"], horizon))
    return Known(_newest(ranges), in_batch.copies, _newest(connections), latest)


def _newest(table: pa.Table) -> pa.Table:
    """The last rows where they are too many."""
    if table.num_rows <= MOST_RANGES:
        return table
    return table.take(arrow_array(np.sort(np.argsort(ints(table, "until"), kind="stable")[-MOST_RANGES:])))


def _share_connections(before: pa.Table, new: pa.Table, shared: pa.Table) -> pa.Table:
    """CONNECTIONS after new ranges. `shared`: those that several sets have."""
    fresh = new.select(["connection", "capture", "broker", "count", "until"])
    fresh = fresh.append_column("owner", arrow_array(np.full(new.num_rows, NOBODY_ELSES, np.int64)))
    several = pa.TableGroupBy(pa.concat_tables([before, fresh.cast(CONNECTIONS)]), "connection", use_threads=False)
    told = [("capture", "first"), ("broker", "last"), ("count", "sum"), ("until", "max"), ("owner", "max")]
    table = pa.table(several.aggregate(told).columns, schema=CONNECTIONS).sort_by("connection")
    if not shared.num_rows:
        return table
    ids, owner = ints(table, "connection"), ints(table, "owner").copy()
    row, other = (np.searchsorted(ids, ints(shared, name)) for name in ("connection", "other"))
    conversation = join_pairs(row, other, len(ids))
    count = ints(shared, "count") * np.where(np.asarray(shared["counted"]), FIRST, 1)
    counting = np.bincount(other, count, len(ids)) - np.bincount(row, count, len(ids))
    counting[owner == OWN] = np.inf
    mine = np.unique(np.concatenate([row, other]))
    mine = mine[np.lexsort((mine, -counting[mine], conversation[mine]))]
    first = np.append(True, np.diff(conversation[mine]) != 0)
    owner[mine[first]] = np.maximum(owner[mine[first]], OWN)
    owner[mine[~first]] = ANOTHERS
    return table.set_column(CONNECTIONS.get_field_index("owner"), CONNECTIONS.field("owner"), arrow_array(owner))


def _latest(ranges: pa.Table) -> dict[str, int]:
    found = ranges.group_by("capture").aggregate([("until", "max")])
    return dict(zip(found["capture"].to_pylist(), found["until_max"].to_pylist(), strict=True))


class RowsOnce:
    """Leaves out rows that another set's rows stand for. `sessions`, `findings`: SESSIONS and FOUND of the
    batch whose rows these are."""

    def __init__(self, known: Known, sessions: pa.Table, findings: pa.Table) -> None:
        self._copies = _Exchanges(known.copies)
        others = known.connections.filter(pc.equal(known.connections["owner"], ANOTHERS))
        self._connections = ints(others, "connection")
        left_out = sessions.filter(arrow_array(np.isin(ints(sessions, "connection"), self._connections)))
        self._sessions = {*zip(*(left_out[name].to_pylist() for name in ("capture", "session_key")), strict=True)}
        self._brokers = _copied_brokers(known.connections)
        self._found: dict[tuple[str | None, ...], set[str]] = {}
        """By SUBJECT, the sets that have such a finding."""
        for capture, *subject in zip(*(findings[name].to_pylist() for name in FOUND.names), strict=True):
            self._found.setdefault(tuple(subject), set()).add(capture)

    @property
    def leaves_out(self) -> bool:
        """Whether there is anything to leave out."""
        return bool(self._copies.any or len(self._connections))

    def of(self, name: str, capture: str, rows: pa.Table) -> pa.Table:
        """Those rows of a set that count, of a table as it is written."""
        if name == "findings":
            copied = self._are_findings_of_others(capture, rows)
        elif name in OF_SESSIONS:
            keys = rows["session_key"].to_pylist()
            copied = np.array([(capture, key) in self._sessions for key in keys], np.bool_)
        elif name == "connections":
            copied = np.isin(ints(rows, CONNECTION_NUMBER.name), self._connections)
        elif name != "problems" and EXCHANGE_NUMBER.name in rows.column_names:
            numbers = (ints(rows, field.name) for field in (CONNECTION_NUMBER, EXCHANGE_NUMBER))
            copied = self._copies.have(*numbers)
        else:
            return rows
        return rows.filter(arrow_array(~copied)) if copied.any() else rows

    def _are_findings_of_others(self, capture: str, findings: pa.Table) -> Flags:
        """Whether findings are about a connection of another set, or about a broker whose connections mostly are."""
        ids, brokers = findings["first_exchange_id"], findings["broker"].to_pylist()
        about = np.array([(capture, broker) in self._brokers for broker in brokers], np.bool_)
        found: Flags = np.where(np.asarray(ids.is_valid()), np.isin(exchange_keys(ids)[0], self._connections), about)
        subjects = zip(*(findings[name].to_pylist() for name in SUBJECT), strict=True)
        alone = np.array([self._found[subject] == {capture} for subject in subjects], np.bool_)
        causes = np.array(findings["cause"].to_pylist(), object)
        found &= (causes != CAPTURE) & ~(alone & (causes == NETWORK))
        return found


def _copied_brokers(connections: pa.Table) -> set[tuple[str, str]]:
    """Sets, and brokers of whose exchanges these have most on connections of other sets."""
    count = ints(connections, "count")
    copied = np.where(ints(connections, "owner") == ANOTHERS, count, 0)
    sums = connections.select(["capture", "broker"]).append_column("more", arrow_array(2 * copied - count))
    found = sums.group_by(["capture", "broker"]).aggregate([("more", "sum")])
    found = found.filter(pc.and_(pc.greater(found["more_sum"], 0), found["broker"].is_valid()))
    return {*zip(found["capture"].to_pylist(), found["broker"].to_pylist(), strict=True)}


class _Exchanges:
    """Exchanges of connections, by their ordinals."""

    def __init__(self, copies: pa.Table) -> None:
        connection, n, count = (ints(copies, name) for name in ("connection", "n", "count"))
        order = np.lexsort((n, connection))
        self._connections = np.unique(connection)
        self.any = bool(len(connection))
        self._first = self._place(connection, n)[order]
        self._last = self._first + count[order] - 1

    def _place(self, connection: Int64s, n: Int64s) -> Int64s:
        """A number for each exchange, in order of connections and ordinals. Some ordinals are below 0."""
        return (np.searchsorted(self._connections, connection) << 40) + n

    def have(self, connection: Int64s, n: Int64s) -> Flags:
        """Whether these exchanges are among them."""
        if not self.any:
            return np.zeros(len(connection), np.bool_)
        at = np.searchsorted(self._connections, connection)
        known = self._connections[np.minimum(at, len(self._connections) - 1)] == connection
        place = self._place(connection, n)
        before = np.maximum(np.searchsorted(self._first, place, "right") - 1, 0)
        found: Flags = known & (self._first[before] <= place) & (place <= self._last[before])
        return found


class KnownCopies:
    """The knowledge of a query after each of its batches, below `output`."""

    def __init__(self, files: HadoopFiles, output: str, query: str) -> None:
        self._files = files
        self._folder = target(output, FOLDER)
        self._query = query

    def before(self, number: int) -> Known:
        """The knowledge before this batch, NOTHING where another version of kdissect left it. Raises UsageError."""
        earlier = [found for found in self._numbers() if found < number]
        if not earlier:
            return NOTHING
        try:
            known: Known = loaded(self._files.read(self._place(max(earlier))), Known)
        except OtherVersion:
            log.warning(FORGOTTEN)
            return NOTHING
        except UnreadableValue:
            raise UsageError(f"{self._folder} is damaged: begin with a new checkpoint") from None
        return known

    def keep(self, number: int, after: Known) -> None:
        """Keep what is known behind this batch. It may run again, so what was known before it stays."""
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

"""The ledger of time as intervals: who owned each instant of a client process, broker or connection, and evidence."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import pyarrow as pa

from kdissect.analysis.cluster_split import each_cluster
from kdissect.analysis.exchange_keys import keys_of
from kdissect.analysis.ledger import time_owners as o
from kdissect.analysis.ledger.exchange_spans import TimedExchanges, exchange_spans
from kdissect.analysis.ledger.interval_sweep import Intervals, Spans, sweep
from kdissect.analysis.ledger.silent_spans import silent_spans
from kdissect.analysis.ledger.subjects import SUBJECTS, Subjects, find_subjects, gone_spans
from kdissect.arrays.arrow import NULL_TIME, Int64s, instants, stretches, words
from kdissect.problems import UsageError
from kdissect.tables.declaration import SCHEMAS
from kdissect.tables.declaration.model import By
from kdissect.tables.makers import fills
from kdissect.tables.suggestion import near

SCHEMA = SCHEMAS["time_ledger"]
KINDS = ("client", "broker", "connection")
"""The kinds of subjects in the table `time_ledger`."""
CLIENTS_OWN = tuple(o.rank_of(label, lane) for label in (o.HELD, o.UNREAD_ANSWER) for lane in (False, True))
"""Ranks that a client's own time has. To a broker it is time in which nothing was asked."""


class Ledger:
    """The spans of all exchanges, from which intervals of any subject are made.

    `tables`: `exchanges`, `fetches`, `connections` with the columns that `readers.BUDGET` names, and for topics
    `fetch_partitions` and `produce_partitions`, with holds.
    """

    def __init__(self, tables: Mapping[str, pa.Table], spans: Spans | None = None) -> None:
        """`spans`: those of the exchanges, where these are not all of their connections and brokers."""
        self.tables = tables
        self.rows = TimedExchanges(tables)
        found = exchange_spans(self.rows) if spans is None else spans
        # In the order of the table, whatever order the rows are in, so that what begins together is named alike.
        high, n = keys_of(self.rows.exchanges) if self.rows.count else (self.rows.asked, self.rows.asked)
        self._place = np.empty(self.rows.count, np.int64)
        self._place[np.lexsort((n, high, self.rows.asked))] = np.arange(self.rows.count)
        order = np.argsort(self._place[found.row], kind="stable")
        self.spans = Spans(*(column[order] for column in found))

    def subjects(self, kind: str, only: Collection[str] | None = None) -> Subjects:
        """The subjects of a kind; those with one of the names `only`, where it is given. Raises UsageError for an
        unknown kind."""
        if kind not in SUBJECTS:
            raise UsageError(f"a budget by {kind!r}{near(kind, SUBJECTS)}: by any of {', '.join(SUBJECTS)}")
        found = find_subjects(kind, self.rows, self.tables)
        if only is None:
            return found
        kept = np.array([name in only for name in found.names], np.bool_)
        mine = kept[found.subject]
        return Subjects(
            [name for name, keep in zip(found.names, kept, strict=True) if keep],
            [name for name, keep in zip(found.addresses, kept, strict=True) if keep],
            found.row[mine], (np.cumsum(kept) - 1)[found.subject[mine]], found.low[kept], found.high[kept],
        )  # fmt: skip

    def intervals(self, kind: str, subjects: Subjects) -> Intervals:
        """The intervals of these subjects, each from `low` to `high`."""
        subject, spans, connection = self._spans_of(kind, subjects)
        return sweep(subject, spans, connection, subjects.low, subjects.high)

    def _spans_of(self, kind: str, subjects: Subjects) -> tuple[Int64s, Spans, Int64s]:
        """A span of a subject each, and the code of its connection."""
        order = np.argsort(self._place[subjects.row], kind="stable")
        places = self._place[self.spans.row]
        begin = np.searchsorted(places, self._place[subjects.row[order]])
        each = np.searchsorted(places, self._place[subjects.row[order]], side="right") - begin
        which, at = stretches(begin, each)
        if kind == "broker":
            kept = ~np.isin(self.spans.rank[at], CLIENTS_OWN)
            which, at = which[kept], at[kept]
        parts = [(subjects.subject[order[which]], Spans(*(column[at] for column in self.spans)))]
        parts.append(_plain_spans(*gone_spans(subjects, self.rows), o.rank_of(o.GONE)))
        if kind == "client":
            process = np.full(self.rows.count, -1, np.int64)
            process[subjects.row] = subjects.subject
            parts.append(_plain_spans(*silent_spans(self.rows, process), o.rank_of(o.SILENT)))
        spans = Spans(*(np.concatenate([one[1][column] for one in parts]) for column in range(5)))
        connection = np.append(self.rows.connection, 0)[spans.row]
        return np.concatenate([one[0] for one in parts]), spans, connection

    def table(self, kind: str, subjects: Subjects) -> pa.Table:
        """The intervals of these subjects as rows of SCHEMA."""
        found = self.intervals(kind, subjects)
        names = np.array([*subjects.names, None], object)[found.subject]
        addresses = np.array([*subjects.addresses, None], object)[found.subject]
        ids = self.rows.exchanges["exchange_id"].cast(pa.string())
        first = pa.array(found.first, mask=found.first < 0)
        made = {
            "by": pa.array([kind] * len(found.subject), pa.string()),
            "subject": pa.array(names, pa.string()),
            "client_ip": pa.array(addresses, pa.string()),
            "at": instants(found.begin),
            "until": instants(found.end),
            "owner": words(found.label, [label.owner for label in o.LABELS]).cast(pa.string()),
            "evidence": words(found.label, [label.evidence for label in o.LABELS]).cast(pa.string()),
            "connections": pa.array(found.connections),
            "exchanges": pa.array(found.exchanges),
            "first_exchange_id": ids.take(first),
            "cluster": pa.nulls(len(found.subject), pa.string()),
        }
        return pa.table({field.name: made[field.name] for field in SCHEMA}).cast(SCHEMA)


def _plain_spans(subject: Int64s, begin: Int64s, end: Int64s, rank: int) -> tuple[Int64s, Spans]:
    """Spans of subjects that are no exchange's."""
    count = len(subject)
    none = np.full(count, -1, np.int64)
    return subject, Spans(none, begin, end, np.full(count, rank, np.int64), np.full(count, NULL_TIME))


def time_ledger(
    tables: Mapping[str, pa.Table], by: Sequence[str] = KINDS, start: int | None = None, end: int | None = None,
    only: Collection[str] | None = None,
) -> pa.Table:  # fmt: skip
    """Rows of SCHEMA, ordered by kind of subject, subject and time. Their intervals have no gaps from a subject's first
    packet to its last one, or within `start` and `end` (µs since the epoch).

    `tables`: see `Ledger`. `only`: the names of the subjects to look at. Raises UsageError for an unknown subject.
    """
    return each_cluster(tables, lambda part: _time_ledger(part, by, start, end, only))


def _time_ledger(
    tables: Mapping[str, pa.Table], by: Sequence[str], start: int | None, end: int | None, only: Collection[str] | None
) -> pa.Table:
    """The intervals of one cluster's subjects."""
    ledger = Ledger(tables)
    parts = []
    for kind in by:
        subjects = ledger.subjects(kind, only)
        subjects.low = subjects.low if start is None else np.maximum(subjects.low, start)
        subjects.high = subjects.high if end is None else np.minimum(subjects.high, end)
        parts.append(ledger.table(kind, subjects))
    return pa.concat_tables(parts) if parts else SCHEMA.empty_table()


fills(By.LEDGER, lambda: {"time_ledger": SCHEMA.names})

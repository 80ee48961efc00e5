"""Whose time a ledger holds: client processes, brokers and connections; groups and topics for budgets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kdissect.analysis.exchange_keys import keys_of, locate
from kdissect.analysis.grouping import group
from kdissect.analysis.ledger.exchange_spans import TimedExchanges
from kdissect.arrays.arrow import NULL_TIME, Coder, Int64s, distinct, one, times

SUBJECTS = ("client", "broker", "connection", "group", "topic")
"""What subjects can be."""
PROCESS = ("client_ip", "client_id")
"""A client process: an address and a client id."""


@dataclass(slots=True)
class Subjects:
    """Subjects of one kind, and the exchanges that count for each."""

    names: list[str]
    addresses: list[str | None]
    """Of client processes, where they run; None for others."""
    row: Int64s
    """Exchanges, by their row; one that counts for several subjects stands several times."""
    subject: Int64s
    """The subject that each of them counts for."""
    low: Int64s
    high: Int64s
    """First and last packet of all connections of each subject; [subjects]."""


def find_subjects(kind: str, rows: TimedExchanges, tables: Mapping[str, pa.Table]) -> Subjects:
    """The subjects of a kind, in order of their names.

    `tables`: for topics `fetch_partitions` and `produce_partitions`.
    """
    if kind == "topic":
        topics = Coder()
        pairs = [np.zeros((0, 2), np.int64)]
        for source in ("fetch_partitions", "produce_partitions"):
            if source in tables and tables[source].num_rows:
                at = locate(keys_of(tables[source]), keys_of(rows.exchanges))
                found = np.stack([at, topics.column(tables[source], "topic")], axis=1)
                pairs.append(found[(found >= 0).all(axis=1)])
        made = distinct(np.concatenate(pairs))
        return _with_spans(list(topics.texts), [None] * len(topics.texts), made[:, 0], made[:, 1], rows)
    columns = _columns(kind, rows)
    groups = group(columns, columns.column_names)
    keys = [groups.keys[name].to_pylist() for name in columns.column_names] if len(groups) else [[]]
    names = keys[-1]
    addresses = keys[0] if len(keys) > 1 else [None] * len(names)
    named = np.array([name is not None for name in names], np.bool_)
    place = np.cumsum(named) - 1
    mine = np.flatnonzero(named[groups.code])
    kept = np.flatnonzero(named).tolist()
    return _with_spans(
        [names[i] for i in kept], [addresses[i] for i in kept], mine, place[groups.code[mine]].astype(np.int64), rows
    )


def _columns(kind: str, rows: TimedExchanges) -> pa.Table:
    """The columns that name the subject of each exchange; the last one is its name."""
    exchanges = rows.exchanges
    if kind == "client":
        return pa.table({name: _filled(rows, name) for name in PROCESS})
    if kind == "group":
        return pa.table({"group_id": _of_connection(rows, "group_id")})
    name = {"broker": "broker", "connection": "connection_id"}[kind]
    return pa.table({name: exchanges[name]})


def _filled(rows: TimedExchanges, name: str) -> pa.Array:
    """A text column of the exchanges; that of their connection where it is null."""
    column = one(rows.exchanges, name)
    theirs = _of_connection(rows, name)
    return theirs if column is None else pc.coalesce(column.cast(pa.string()), theirs)


def _of_connection(rows: TimedExchanges, name: str) -> pa.Array:
    """A text column of each exchange's connection."""
    column = one(rows.connections, name)
    if column is None:
        return pa.nulls(rows.count, pa.string())
    return column.cast(pa.string()).take(pa.array(rows.on, mask=rows.on < 0))


def _with_spans(
    names: list[str], addresses: list[str | None], row: Int64s, subject: Int64s, rows: TimedExchanges
) -> Subjects:
    """Subjects with their first and last packets: those of their connections, or of exchanges without one."""
    low, high = np.full(len(names), np.iinfo(np.int64).max), np.full(len(names), NULL_TIME)
    starts, ends = times(rows.connections, "started_at"), times(rows.connections, "ended_at")
    on = rows.on[row]
    answered = times(rows.exchanges, "response_last_at")
    for instants in (np.append(starts, NULL_TIME)[on], rows.asked[row], rows.answered[row]):
        known = instants != NULL_TIME
        np.minimum.at(low, subject[known], instants[known])
    for instants in (np.append(ends, NULL_TIME)[on], rows.asked[row], rows.answered[row], answered[row]):
        np.maximum.at(high, subject, instants)
    low = np.where(low > high, high, low)
    return Subjects(names, addresses, row, subject, low, high)


def gone_spans(subjects: Subjects, rows: TimedExchanges) -> tuple[Int64s, Int64s, Int64s]:
    """Subject, begin and end (µs) of the times in which none of a subject's connections was open, before its first and
    after its last one too."""
    pairs = distinct(np.stack([subjects.subject, rows.on[subjects.row]], axis=1))
    subject, on = pairs[:, 0], pairs[:, 1]
    begin = np.append(times(rows.connections, "started_at"), NULL_TIME)[on]
    end = np.append(times(rows.connections, "ended_at"), NULL_TIME)[on]
    unknown = np.unique(subject[(begin == NULL_TIME) | (end == NULL_TIME)])
    kept = ~np.isin(subject, unknown)
    subject, begin, end = subject[kept], begin[kept], end[kept]
    order = np.lexsort((begin, subject))
    subject, begin, end = subject[order], begin[order], end[order]
    if not len(subject):
        return subject, begin, end
    since = int(begin.min())
    base = subject * (int(end.max()) - since + 1)
    reach = np.maximum.accumulate(end - since + base) - base + since
    apart = np.flatnonzero((subject[1:] == subject[:-1]) & (begin[1:] > reach[:-1]))
    first = np.flatnonzero(np.append(True, subject[1:] != subject[:-1]))
    last = np.append(first[1:], len(subject)) - 1
    return (
        np.concatenate([subject[first], subject[apart], subject[last]]),
        np.concatenate([np.full(len(first), NULL_TIME), reach[apart], reach[last]]),
        np.concatenate([begin[first], begin[apart + 1], np.full(len(last), np.iinfo(np.int64).max)]),
    )

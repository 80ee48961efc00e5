"""Spans of many subjects as intervals without gaps: one sweep through their begins and ends, in a kernel."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kdissect.analysis.ledger.time_owners import LABELS, RANKED
from kdissect.arrays.arrow import NULL_TIME, Int64s, Scalar
from kdissect.kernels.kernel import kernel, part
from kdissect.kernels.structs import rows_of, struct, view, width

IDLE_RANK = len(RANKED) - 1
LABEL_OF_RANK: Int64s = np.array([LABELS.index(label) for label in RANKED], np.int64)


@struct
class SubjectRow:
    """A subject."""

    low: int
    """When its span begins, microseconds."""
    high: int
    """When it ends."""
    first_span: int
    """The first row among the spans that is its own."""


@struct
class SpanRow:
    """A span of a subject; rows are -1 where there is none."""

    begin: int
    """When it begins, microseconds."""
    end: int
    """When it ends."""
    rank: int
    """Its rank: the lowest of those that are open says whose an instant is."""
    row: int
    """The exchange, -1 for none."""
    before: int
    """See `Spans`."""
    connection: int
    """Code of the exchange's connection."""
    by_end: int
    """Row of the span that has this place in the order by end, which has nothing to do with the other fields."""
    next: int
    """The next open span of its label."""
    prior: int
    """The one before it."""


@struct
class LabelRow:
    """The open spans of a label."""

    open_exchanges: int
    """Spans of exchanges."""
    open_connections: int
    """Connections that have any."""
    new_exchanges: int
    """Spans that were opened at this instant."""
    new_connections: int
    """Connections of which the first one was."""
    head: int
    """The first of the open spans, -1 none."""
    tail: int
    """The last of them, -1 none."""


@struct
class ConnectionRow:
    """A connection under one label."""

    open: int
    """Open spans."""
    left_at: int
    """When the last one closed, NULL_TIME none did."""


@struct
class IntervalRow:
    """An interval; fields as in `Intervals`."""

    subject: int
    """The subject."""
    at: int
    """When it begins."""
    until: int
    """When it ends."""
    label: int
    """Its label."""
    connections: int
    """Connections in it."""
    exchanges: int
    """Exchanges in it."""
    first: int
    """The first of them."""


subject_at, span_at, label_at = view(SubjectRow), view(SpanRow), view(LabelRow)
connection_at, interval_at = view(ConnectionRow), view(IntervalRow)


class Spans(NamedTuple):
    """Spans of time, each of one rank, as columns of the same length; instants in microseconds."""

    row: Int64s
    """The exchange; -1 for none."""
    begin: Int64s
    end: Int64s
    rank: Int64s
    before: Int64s
    """When an earlier span of this exchange with the same label ended, NULL_TIME where there is none: an exchange
    counts once in an interval."""


class Intervals(NamedTuple):
    """Intervals without gaps, ordered by subject and time, as columns of the same length."""

    subject: Int64s
    begin: Int64s
    end: Int64s
    label: Int64s
    """Index into `time_owners.LABELS`."""
    connections: Int64s
    exchanges: Int64s
    first: Int64s
    """The exchange (row) that was the first of them; -1 for none."""


@kernel("i8[:,:] i8[:,:] const i8[:] i8[:,:] i8[:] i8[:,:] i8[:,:] -> i8")
def _sweep(
    subjects: Int64s, spans: Int64s, label_of: Int64s, on_connection: Int64s, of_rank: Int64s, labels: Int64s,
    intervals: Int64s,
) -> Scalar:  # fmt: skip
    """Writes the intervals of each subject and returns how many they are.

    `subjects`, one more than there are, `spans`: by subject, then by begin, all within their subject's span, none
    empty. `label_of` [ranks]. Working memory: `on_connection`, of each connection a row for each label; `of_rank`
    [ranks], `labels`.
    """
    count: Scalar = np.int64(0)
    idle = len(of_rank) - 1
    for s in range(len(subjects) - 1):
        subject = subject_at(subjects, s)
        i, j, last = subject.first_span, subject.first_span, subject_at(subjects, s + 1).first_span
        for q in range(len(labels)):
            fresh = label_at(labels, q)
            fresh.open_exchanges = fresh.open_connections = fresh.new_exchanges = fresh.new_connections = 0
            fresh.head = fresh.tail = -1
        for q in range(len(of_rank)):
            of_rank[q] = 0
        at, high = subject.low, subject.high
        current: Scalar = np.int64(-1)
        since = at
        while at < high:
            # Begins come before ends, so that a connection or exchange that goes on is not new.
            while i < last and span_at(spans, i).begin == at:
                _open(i, spans, label_of, on_connection, of_rank, labels, since)
                i += 1
            while j < last and span_at(spans, span_at(spans, j).by_end).end == at:
                _close(span_at(spans, j).by_end, spans, label_of, on_connection, of_rank, labels, at)
                j += 1
            until = high
            if i < last:
                until = min(until, span_at(spans, i).begin)
            if j < last:
                until = min(until, span_at(spans, span_at(spans, j).by_end).end)
            winner = idle
            for q in range(idle):
                if of_rank[q] > 0:
                    winner = q
                    break
            number = label_of[winner]
            label = label_at(labels, number)
            if number == current:
                interval = interval_at(intervals, count - 1)
                interval.exchanges += label.new_exchanges
                interval.connections += label.new_connections
            else:
                current, since = number, at
                interval = interval_at(intervals, count)
                interval.subject, interval.at, interval.label = s, at, number
                interval.connections, interval.exchanges = label.open_connections, label.open_exchanges
                interval.first = span_at(spans, label.head).row if label.head >= 0 else -1
                count += 1
            interval.until = until
            for q in range(len(labels)):
                label_at(labels, q).new_exchanges = label_at(labels, q).new_connections = 0
            at = until
        for k in range(subject.first_span, last):  # for the next subject
            span = span_at(spans, k)
            if span.row >= 0:
                known = connection_at(on_connection, span.connection * len(labels) + label_of[span.rank])
                known.open, known.left_at = 0, NULL_TIME
    return count


@part
def _open(
    i: Scalar, spans: Int64s, label_of: Int64s, on_connection: Int64s, of_rank: Int64s, labels: Int64s, since: Scalar
) -> None:
    """A span begins; `since`: when the present interval began."""
    span = span_at(spans, i)
    number = label_of[span.rank]
    of_rank[span.rank] += 1
    if span.row < 0:
        return
    label = label_at(labels, number)
    span.next, span.prior = -1, label.tail
    if label.tail >= 0:
        span_at(spans, label.tail).next = i
    else:
        label.head = i
    label.tail = i
    label.open_exchanges += 1
    label.new_exchanges += span.before <= since
    connection = connection_at(on_connection, span.connection * len(labels) + number)
    if connection.open == 0:
        label.open_connections += 1
        label.new_connections += connection.left_at <= since
    connection.open += 1


@part
def _close(
    k: Scalar, spans: Int64s, label_of: Int64s, on_connection: Int64s, of_rank: Int64s, labels: Int64s, at: Scalar
) -> None:
    """A span ends."""
    span = span_at(spans, k)
    number = label_of[span.rank]
    of_rank[span.rank] -= 1
    if span.row < 0:
        return
    label = label_at(labels, number)
    if span.prior >= 0:
        span_at(spans, span.prior).next = span.next
    else:
        label.head = span.next
    if span.next >= 0:
        span_at(spans, span.next).prior = span.prior
    else:
        label.tail = span.prior
    label.open_exchanges -= 1
    connection = connection_at(on_connection, span.connection * len(labels) + number)
    connection.open -= 1
    connection.left_at = at
    label.open_connections -= connection.open == 0


def sweep(subject: Int64s, spans: Spans, connection: Int64s, low: Int64s, high: Int64s) -> Intervals:
    """The intervals of subjects from `low` to `high` (µs, [subjects]).

    `subject`, `spans`, `connection`: a span of a subject each; the code of its exchange's connection. Where no span
    lies an interval is idle.
    """
    begin, end = np.maximum(spans.begin, low[subject]), np.minimum(spans.end, high[subject])
    kept = np.flatnonzero(end > begin)
    kept = kept[np.lexsort((begin[kept], subject[kept]))]
    owner = subject[kept]
    matrix = np.empty((len(kept), width(SpanRow)), np.int64)
    rows = rows_of(SpanRow, matrix)
    for name, values in (("begin", begin), ("end", end), ("rank", spans.rank), ("row", spans.row),
                         ("before", spans.before), ("connection", connection)):  # fmt: skip
        rows[name] = values[kept]
    rows["by_end"] = np.lexsort((rows["end"], owner))
    subjects = np.empty((len(low) + 1, width(SubjectRow)), np.int64)
    of_subject = rows_of(SubjectRow, subjects)
    of_subject["low"], of_subject["high"] = np.append(low, 0), np.append(high, 0)
    of_subject["first_span"] = np.searchsorted(owner, np.arange(len(low) + 1))
    connections = (int(connection.max(initial=0)) + 1) * len(LABELS)
    on_connection = np.zeros((connections, width(ConnectionRow)), np.int64)
    rows_of(ConnectionRow, on_connection)["left_at"] = NULL_TIME
    # An interval ends where a span begins or ends, or where its subject's span does.
    intervals = np.empty((2 * len(kept) + len(low) + 1, width(IntervalRow)), np.int64)
    count = _sweep(
        subjects, matrix, LABEL_OF_RANK, on_connection, np.zeros(len(RANKED), np.int64),
        np.zeros((len(LABELS), width(LabelRow)), np.int64), intervals,
    )  # fmt: skip
    return Intervals(*np.ascontiguousarray(intervals[: int(count)].T))

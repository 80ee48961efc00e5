"""Spans of many subjects as intervals without gaps: one sweep through their begins and ends, in a kernel."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kdissect.analysis.ledger.time_owners import LABELS, RANKED
from kdissect.arrays.arrow import NULL_TIME, Int64s, Scalar
from kdissect.kernels.kernel import kernel

IDLE_RANK = len(RANKED) - 1
LABEL_OF_RANK: Int64s = np.array([LABELS.index(label) for label in RANKED], np.int64)

LOW, HIGH, FIRST_SPAN = range(3)
"""Columns of subjects: their span in µs, and their first row among the spans."""
BEGIN, END, RANK, ROW, BEFORE, CONNECTION, BY_END, NEXT, PRIOR = range(9)
"""Columns of spans; BY_END is their order by end, NEXT and PRIOR make the list of open spans of a label."""
OPEN_EXCHANGES, OPEN_CONNECTIONS, NEW_EXCHANGES, NEW_CONNECTIONS, HEAD, TAIL = range(6)
"""Columns of labels: what is open, what was opened at this instant, and the list of open spans."""
OPEN, LEFT_AT = range(2)
"""Of a connection and label: open spans, and when the last one closed."""
SUBJECT, AT, UNTIL, LABEL, CONNECTIONS, EXCHANGES, FIRST = range(7)
"""Columns of intervals."""


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


@kernel("const i8[:,:] i8[:,:] const i8[:] i8[:,:,:] i8[:] i8[:,:] i8[:,:] -> i8")
def _sweep(
    subjects: Int64s, spans: Int64s, label_of: Int64s, on_connection: Int64s, of_rank: Int64s, labels: Int64s,
    intervals: Int64s,
) -> Scalar:  # fmt: skip
    """Writes the intervals of each subject and returns how many they are.

    `subjects` [subjects + 1, 3], `spans` [spans, 9]: by subject, then by begin, all within their subject's span, none
    empty. `label_of` [ranks]. Working memory: `on_connection` [connections, labels, 2], zeros and NULL_TIME; `of_rank`
    [ranks], `labels` [labels, 6].
    """
    count: Scalar = np.int64(0)
    idle = len(of_rank) - 1
    for s in range(len(subjects) - 1):
        i, j, last = subjects[s, FIRST_SPAN], subjects[s, FIRST_SPAN], subjects[s + 1, FIRST_SPAN]
        for q in range(len(labels)):
            for column in range(HEAD):
                labels[q, column] = 0
            labels[q, HEAD] = -1
            labels[q, TAIL] = -1
        for q in range(len(of_rank)):
            of_rank[q] = 0
        at, high = subjects[s, LOW], subjects[s, HIGH]
        current: Scalar = np.int64(-1)
        since = at
        while at < high:
            # Begins come before ends, so that a connection or exchange that goes on is not new.
            while i < last and spans[i, BEGIN] == at:
                label = label_of[spans[i, RANK]]
                of_rank[spans[i, RANK]] += 1
                if spans[i, ROW] >= 0:
                    tail = labels[label, TAIL]
                    spans[i, NEXT] = -1
                    spans[i, PRIOR] = tail
                    if tail >= 0:
                        spans[tail, NEXT] = i
                    else:
                        labels[label, HEAD] = i
                    labels[label, TAIL] = i
                    labels[label, OPEN_EXCHANGES] += 1
                    if spans[i, BEFORE] <= since:
                        labels[label, NEW_EXCHANGES] += 1
                    c = spans[i, CONNECTION]
                    if on_connection[c, label, OPEN] == 0:
                        labels[label, OPEN_CONNECTIONS] += 1
                        if on_connection[c, label, LEFT_AT] <= since:
                            labels[label, NEW_CONNECTIONS] += 1
                    on_connection[c, label, OPEN] += 1
                i += 1
            while j < last and spans[spans[j, BY_END], END] == at:
                k = spans[j, BY_END]
                label = label_of[spans[k, RANK]]
                of_rank[spans[k, RANK]] -= 1
                if spans[k, ROW] >= 0:
                    before, after = spans[k, PRIOR], spans[k, NEXT]
                    if before >= 0:
                        spans[before, NEXT] = after
                    else:
                        labels[label, HEAD] = after
                    if after >= 0:
                        spans[after, PRIOR] = before
                    else:
                        labels[label, TAIL] = before
                    labels[label, OPEN_EXCHANGES] -= 1
                    c = spans[k, CONNECTION]
                    on_connection[c, label, OPEN] -= 1
                    on_connection[c, label, LEFT_AT] = at
                    if on_connection[c, label, OPEN] == 0:
                        labels[label, OPEN_CONNECTIONS] -= 1
                j += 1
            until = high
            if i < last and spans[i, BEGIN] < until:
                until = spans[i, BEGIN]
            if j < last and spans[spans[j, BY_END], END] < until:
                until = spans[spans[j, BY_END], END]
            winner = idle
            for q in range(idle):
                if of_rank[q] > 0:
                    winner = q
                    break
            label = label_of[winner]
            if label == current:
                intervals[count - 1, EXCHANGES] += labels[label, NEW_EXCHANGES]
                intervals[count - 1, CONNECTIONS] += labels[label, NEW_CONNECTIONS]
            else:
                current, since = label, at
                intervals[count, SUBJECT] = s
                intervals[count, AT] = at
                intervals[count, LABEL] = label
                intervals[count, CONNECTIONS] = labels[label, OPEN_CONNECTIONS]
                intervals[count, EXCHANGES] = labels[label, OPEN_EXCHANGES]
                head = labels[label, HEAD]
                intervals[count, FIRST] = spans[head, ROW] if head >= 0 else -1
                count += 1
            intervals[count - 1, UNTIL] = until
            for q in range(len(labels)):
                labels[q, NEW_EXCHANGES] = 0
                labels[q, NEW_CONNECTIONS] = 0
            at = until
        for k in range(subjects[s, FIRST_SPAN], last):  # for the next subject
            if spans[k, ROW] >= 0:
                on_connection[spans[k, CONNECTION], label_of[spans[k, RANK]], OPEN] = 0
                on_connection[spans[k, CONNECTION], label_of[spans[k, RANK]], LEFT_AT] = NULL_TIME
    return count


def sweep(subject: Int64s, spans: Spans, connection: Int64s, low: Int64s, high: Int64s) -> Intervals:
    """The intervals of subjects from `low` to `high` (µs, [subjects]).

    `subject`, `spans`, `connection`: a span of a subject each; the code of its exchange's connection. Where no span
    lies an interval is idle.
    """
    begin, end = np.maximum(spans.begin, low[subject]), np.minimum(spans.end, high[subject])
    kept = np.flatnonzero(end > begin)
    kept = kept[np.lexsort((begin[kept], subject[kept]))]
    owner = subject[kept]
    matrix = np.empty((len(kept), 9), np.int64)
    for column, values in ((BEGIN, begin), (END, end), (RANK, spans.rank), (ROW, spans.row), (BEFORE, spans.before),
                           (CONNECTION, connection)):  # fmt: skip
        matrix[:, column] = values[kept]
    matrix[:, BY_END] = np.lexsort((matrix[:, END], owner))
    subjects = np.empty((len(low) + 1, 3), np.int64)
    subjects[:, LOW], subjects[:, HIGH] = np.append(low, 0), np.append(high, 0)
    subjects[:, FIRST_SPAN] = np.searchsorted(owner, np.arange(len(low) + 1))
    on_connection = np.zeros((int(connection.max(initial=0)) + 1, len(LABELS), 2), np.int64)
    on_connection[:, :, LEFT_AT] = NULL_TIME
    # An interval ends where a span begins or ends, or where its subject's span does.
    intervals = np.empty((2 * len(kept) + len(low) + 1, 7), np.int64)
    count = _sweep(
        subjects, matrix, LABEL_OF_RANK, on_connection, np.zeros(len(RANKED), np.int64),
        np.zeros((len(LABELS), 6), np.int64), intervals,
    )  # fmt: skip
    return Intervals(*np.ascontiguousarray(intervals[: int(count)].T))

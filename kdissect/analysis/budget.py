"""Where the time of a client, broker, group or topic went: the sums of the ledger of time by owner.

Each instant of a subject has one owner (`kdissect.analysis.ledger`), so the boxes add up to the wall time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import pyarrow as pa

from kdissect.analysis.cluster_split import each_cluster
from kdissect.analysis.ledger.interval_sweep import Intervals
from kdissect.analysis.ledger.subjects import Subjects
from kdissect.analysis.ledger.time_ledger import Ledger
from kdissect.analysis.ledger.time_owners import LABELS, OWNERS
from kdissect.arrays.arrow import MILLI, NULL_TIME, Int64s, instants, stretches
from kdissect.problems import UsageError
from kdissect.tables.declaration import SCHEMAS
from kdissect.tables.declaration.model import By
from kdissect.tables.makers import fills
from kdissect.tables.suggestion import near

SCHEMA = SCHEMAS["time_budget"]
"""What a row of a budget is: the subject, the span, and its time in boxes that add up to `wall_ms`."""
SUBJECTS = ("client", "broker", "group", "topic")
"""What a budget can be made by."""
BOXES = tuple(f"{owner}_ms" for owner in OWNERS)
"""The boxes, a column each."""
MOST_BUCKETS = 100_000
_OWNER_OF_LABEL: Int64s = np.array([OWNERS.index(label.owner) for label in LABELS], np.int64)


def time_budget(
    tables: Mapping[str, pa.Table], by: Sequence[str] = ("client",), every: float | None = None,
    start: int | None = None, end: int | None = None, only: Collection[str] | None = None,
) -> pa.Table:  # fmt: skip
    """Rows of SCHEMA: one per subject of a cluster, and bucket of `every` seconds, in order of their names.

    `tables`: as `ledger.time_ledger.Ledger` takes them. `start`, `end`: the span in µs since the epoch; the subject's
    own, from its first packet to its last one, where None. `only`: the names of the subjects to look at. Raises
    UsageError for an unknown subject, and where `every` makes too many rows.
    """
    for name in by:
        if name not in SUBJECTS:
            raise UsageError(f"a budget by {name!r}{near(name, SUBJECTS)}: by any of {', '.join(SUBJECTS)}")
    return each_cluster(tables, lambda part: _budget(part, by, every, start, end, only))


def _budget(
    tables: Mapping[str, pa.Table], by: Sequence[str], every: float | None, start: int | None, end: int | None,
    only: Collection[str] | None,
) -> pa.Table:  # fmt: skip
    """The budgets of one cluster's subjects."""
    ledger = Ledger(tables)
    made = []
    for name in by:
        subjects = ledger.subjects(name, only)
        subjects.low = subjects.low if start is None else np.full(len(subjects.names), start)
        subjects.high = subjects.high if end is None else np.full(len(subjects.names), end)
        made.append(sums(name, ledger, subjects, every))
    return pa.concat_tables(made) if made else SCHEMA.empty_table()


def sums(kind: str, ledger: Ledger, subjects: Subjects, every: float | None = None) -> pa.Table:
    """The rows of one kind of subjects; `every`: see `time_budget`."""
    low, high = subjects.low, subjects.high
    width = np.int64(2**62) if every is None else np.int64(max(1, round(every * 1e6)))
    buckets = np.where(high > low, -(-(high - low) // width), 0)
    if buckets.sum() > MOST_BUCKETS:
        raise UsageError(
            f"--every makes {int(buckets.sum()):,} rows, more than {MOST_BUCKETS:,}: take longer stretches"
        )
    base = np.concatenate([[0], np.cumsum(buckets)])
    total = int(base[-1])
    subject = np.repeat(np.arange(len(low)), buckets)
    at = low[subject] + (np.arange(total) - base[subject]) * (width if every is not None else 0)
    until = np.minimum(at + width, high[subject]) if every is not None else high[subject]
    spent = _spent(ledger.intervals(kind, subjects), low, width, base)
    made = {
        "by": pa.array([kind] * total, pa.string()),
        "subject": pa.array([subjects.names[i] for i in subject.tolist()], pa.string()),
        "client_ip": pa.array([subjects.addresses[i] for i in subject.tolist()], pa.string()),
        "at": instants(at),
        "until": instants(until),
        "wall_ms": pa.array((until - at) / MILLI),
    }
    for owner, box in enumerate(BOXES):
        made[box] = pa.array(spent[owner] / MILLI)
    asked = ledger.rows.asked[subjects.row]
    begun = np.where(asked == NULL_TIME, ledger.rows.answered[subjects.row], asked)
    of = subjects.subject
    inside = (begun >= low[of]) & (begun <= high[of]) & (high[of] > low[of])
    bucket = base[of[inside]] + np.minimum((begun[inside] - low[of[inside]]) // width, buckets[of[inside]] - 1)
    made["exchanges"] = pa.array(np.bincount(bucket, minlength=total).astype(np.int64))
    made["cluster"] = pa.nulls(len(made["subject"]), pa.string())
    return pa.table({field.name: made[field.name] for field in SCHEMA}).cast(SCHEMA)


def _spent(intervals: Intervals, low: Int64s, width: np.int64, base: Int64s) -> Int64s:
    """Microseconds of each owner in each bucket; [owners, buckets]."""
    a, b = intervals.begin - low[intervals.subject], intervals.end - low[intervals.subject]
    pieces = (b - 1) // width - a // width + 1
    which, bucket = stretches(a // width, pieces)
    begin = np.maximum(a[which], bucket * width)
    end = np.where(bucket == (b[which] - 1) // width, b[which], (bucket + 1) * width)
    spent = np.zeros((len(BOXES), int(base[-1])), np.int64)
    cell = base[intervals.subject[which]] + bucket
    np.add.at(spent, (_OWNER_OF_LABEL[intervals.label[which]], cell), end - begin)
    return spent


fills(By.BUDGET, lambda: {"time_budget": SCHEMA.names})

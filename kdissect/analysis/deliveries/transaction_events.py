"""Messages about transactions, in order of time, and which transaction each of them is about.

The requests of one producer id and epoch belong together. A transaction begins with the first of them that adds
partitions or offsets, or writes transactional batches (KIP-890: nothing else tells of it), after an EndTxn that was not
refused. Requests that were refused add nothing. Markers name the producer id alone. Their epoch is the transaction's,
or the next one: the coordinator raises it when it ends a transaction by itself, and with KIP-890 always. Of the two
transactions a marker is about the one that had been ended, else about the earlier one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from kdissect.analysis.deliveries.delivery_columns import UNKNOWN, dense
from kdissect.analysis.exchange_keys import keys_of, locate
from kdissect.arrays.arrow import NULL_TIME, Coder, Flags, Int64s, ints, times, whole
from kdissect.schema.apikeys import ApiKey

STEPS = ("add_partitions", "add_offsets", "commit_offsets", "end", "markers", "verify")
ADD_PARTITIONS, ADD_OFFSETS, COMMIT_OFFSETS, END, MARKERS, VERIFY = range(len(STEPS))
BATCH = len(STEPS)
"""Kind of event: a transactional batch in a Produce request."""
NEVER = 2**63 - 1


@dataclass(slots=True, eq=False, repr=False)
class TransactionEvents:
    """Messages about transactions, in order of time. `exchange`: row of `exchanges`; times in microseconds."""

    exchange: Int64s
    kind: Int64s
    producer: Int64s
    epoch: Int64s
    id: Int64s
    """Code of the transactional id, UNKNOWN for none."""
    committed: Int64s
    """1 commit, 0 abort, UNKNOWN where it says neither."""
    topic: Int64s
    partition: Int64s
    group: Int64s
    sequence: Int64s
    records: Int64s
    size: Int64s
    begin: Int64s
    end: Int64s
    error: Int64s
    """UNKNOWN without a response."""

    def pick_rows(self, rows: Int64s) -> TransactionEvents:
        """These of them."""
        return TransactionEvents(*(getattr(self, name)[rows] for name in self.__dataclass_fields__))


class NamedTexts:
    """Texts that events name."""

    def __init__(self) -> None:
        self.ids, self.topics, self.groups = Coder(), Coder(), Coder()


def read_events(tables: Mapping[str, pa.Table], exchanges: pa.Table, texts: NamedTexts) -> TransactionEvents:
    """All events, in order of time. `tables`: those of `readers.TRANSACTIONS`, resolved; `texts` gets their texts."""
    among = keys_of(exchanges)
    steps, batches, produces = (whole(tables[name]) for name in ("transaction_steps", "record_batches", "produces"))
    known = Coder()
    for text in STEPS:
        known.code(text)
    written = np.flatnonzero((ints(batches, "is_transactional", 0) == 1) & (ints(batches, "is_control", 0) != 1))
    batches = batches.take(pa.array(written))
    at = locate(keys_of(batches), among)
    of_produce = np.append(ints(exchanges, "api_key"), UNKNOWN)[at] == ApiKey.PRODUCE
    batches, at = batches.filter(pa.array(of_produce)), at[of_produce]
    sender = locate(keys_of(batches), keys_of(produces))
    named = np.append(texts.ids.column(produces, "transactional_id"), UNKNOWN)[sender]
    none, nothing = np.full(steps.num_rows, UNKNOWN, np.int64), np.full(len(at), UNKNOWN, np.int64)
    topic = texts.topics.column(batches, "topic")
    topic = np.where(topic >= 0, topic, texts.topics.column(batches, "topic_id"))
    pairs = [
        (locate(keys_of(steps), among), at),
        (known.column(steps, "step"), np.full(len(at), BATCH, np.int64)),
        (ints(steps, "producer_id"), ints(batches, "producer_id")),
        (ints(steps, "producer_epoch"), ints(batches, "producer_epoch")),
        (texts.ids.column(steps, "transactional_id"), named),
        (ints(steps, "committed"), nothing),
        (texts.topics.column(steps, "topic"), topic),
        (ints(steps, "partition"), ints(batches, "partition")),
        (texts.groups.column(steps, "group_id"), nothing),
        (none, ints(batches, "base_sequence")),
        (none, ints(batches, "records", 0)),
        (none, ints(batches, "compressed_bytes", 0)),
    ]
    columns = [np.concatenate(pair) for pair in pairs]
    begin, end = times(exchanges, "request_first_at"), times(exchanges, "response_last_at")
    good = np.flatnonzero((columns[0] >= 0) & (columns[2] >= 0) & (columns[1] != VERIFY))
    row = columns[0][good]
    columns = [column[good] for column in columns]
    found = TransactionEvents(*columns, begin[row], end[row], ints(exchanges, "error_code")[row])  # type: ignore[call-arg]
    there = np.flatnonzero(found.begin != NULL_TIME)
    return found.pick_rows(there[np.lexsort([found.exchange[there], found.begin[there]])])


def number_transactions(events: TransactionEvents) -> tuple[Int64s, int]:
    """The number of each event's transaction, UNKNOWN for what belongs to none; and how many there are."""
    refused = (events.error > 0) & (events.kind != END)
    inside = (events.kind != END) & (events.kind != MARKERS) & ~refused
    ends = (events.kind == END) & (events.error <= 0)
    ours = np.flatnonzero(inside | ends)
    stream = dense(events.producer, events.epoch)
    ours = ours[np.argsort(stream[ours], kind="stable")]
    mine, opening = stream[ours], inside[ours]
    ended = np.cumsum(ends[ours])
    # The number of ends before the last request inside, in the same stream.
    last = np.maximum.accumulate(np.where(opening, np.arange(len(ours)), -1))
    before = np.concatenate([[-1], last[:-1]]) if len(ours) else last
    same = (before >= 0) & (mine[before] == mine)
    new = opening & (~same | (ended != ended[before]))
    first = np.ones(len(ours), np.bool_)
    first[1:] = mine[1:] != mine[:-1]
    ends_again = np.zeros(len(ours), np.bool_)
    ends_again[1:] = ends[ours][1:] & ends[ours][:-1] & (events.error[ours][:-1] == 0)
    new |= ~opening & (first | ends_again)  # an end of what began before the capture, or was not captured
    number = np.cumsum(new) - 1
    of = np.full(len(events.kind), UNKNOWN, np.int64)
    of[ours] = number
    # Refused ends, and refused requests, are evidence of the transaction that they came too late for.
    late = np.flatnonzero((refused | ((events.kind == END) & (events.error > 0))) & (events.kind != MARKERS))
    of[late] = _last_before(events, of, np.flatnonzero(new), ours, late, stream)
    count = int(number[-1]) + 1 if len(number) else 0
    heads, marks = np.flatnonzero(new), np.flatnonzero(events.kind == MARKERS)
    own = _last_before(events, of, heads, ours, marks, stream)
    earlier = dense(events.producer, events.epoch - (events.kind == MARKERS))
    bumped = _last_before(events, of, heads, ours, marks, earlier)
    some = _last_before(events, of, heads, ours, marks, events.producer)
    asked = np.append(least_by(events.begin, of, (of >= 0) & (events.kind == END), count), NEVER)
    ended_before = (own >= 0) & (asked[own] <= events.begin[marks])
    of[marks] = np.where(ended_before, own, np.where(bumped >= 0, bumped, np.where(own >= 0, own, some)))
    lost = marks[of[marks] < 0]
    if len(lost):
        alone = dense(events.producer[lost], events.epoch[lost], events.committed[lost])
        of[lost] = count + alone
        count += int(alone.max()) + 1
    return of, count


def _last_before(events: TransactionEvents, of: Int64s, new: Int64s, ours: Int64s, rows: Int64s, key: Int64s) -> Int64s:
    """For events (`rows`) the last transaction of the same key that began before; UNKNOWN for none."""
    heads = ours[new]
    if not len(heads) or not len(rows):
        return np.full(len(rows), UNKNOWN, np.int64)
    both = np.concatenate([heads, rows])
    order = np.lexsort([np.repeat([0, 1], [len(heads), len(rows)]), both, key[both]])
    is_head = order < len(heads)
    last = np.maximum.accumulate(np.where(is_head, np.arange(len(order)), -1))
    head = order[np.maximum(last, 0)]
    good = (last >= 0) & (key[both[np.minimum(head, len(both) - 1)]] == key[both[order]])
    found = np.full(len(both), UNKNOWN, np.int64)
    found[order] = np.where(good, of[both[head]], UNKNOWN)
    return found[len(heads) :]


def least_by(values: Int64s, of: Int64s, rows: Flags, count: int) -> Int64s:
    """[count]: by transaction the least of its values in these rows; NEVER for none."""
    found = np.full(count, NEVER, np.int64)
    np.minimum.at(found, of[rows], values[rows])
    return found


def most_by(values: Int64s, of: Int64s, rows: Flags, count: int) -> Int64s:
    """[count]: by transaction the greatest of its values in these rows; NULL_TIME for none."""
    found = np.full(count, NULL_TIME, np.int64)
    np.maximum.at(found, of[rows], values[rows])
    return found

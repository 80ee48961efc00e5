"""`record_batches`, `records` and `producers` block by block: what is read of record sets, and when.

Batch headers are enough for rows of `record_batches`. Checksums, sizes without compression and records cost more: they
are read only where something asks for them (`Reading`). A filter that names topics, partitions, exchanges or offsets
keeps everything else from being looked at.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from kdissect.arrays.dictionaries import unified
from kdissect.kafka.completed import Problems, Status
from kdissect.kafka.recordsets import batch_layout as bl
from kdissect.kafka.recordsets.batch_layout import FIELDS
from kdissect.kafka.recordsets.batches import Batches, doubtful, walk
from kdissect.schema.apikeys import ApiKey
from kdissect.tables.declaration import SCHEMAS
from kdissect.tables.declaration.model import TIME_KEY
from kdissect.tables.declaration.readers import FIRST_BATCHES, FIRST_REQUESTS, ONE_BATCH_IN
from kdissect.tables.nest import Int64s
from kdissect.tables.order import order
from kdissect.tables.recordsets import (
    RecordSets,
    fetch_batches,
    record_problems,
    record_rows,
    record_sets,
    sent_records,
)
from kdissect.tables.table_block import Block
from kdissect.tables.topics import Topics
from kdissect.tables.where import Filter, Limit

Flags = npt.NDArray[np.bool_]

EQUAL = ("=", "==", "in")
MOST_OFFSET = 2**63 - 2
SENT = ("exchange_id", "topic", "topic_id", "partition", "producer_id", "producer_epoch", "base_sequence",
        "base_offset", "last_offset", "cluster", TIME_KEY)  # fmt: skip
"""What is kept of each batch that a producer sent, for the table `producers`."""


NO_LIMITS: Mapping[str, tuple[Limit, ...]] = {}


class Reading(NamedTuple):
    """How far record batches are read beyond their headers.

    `checksums` and `sizes` fill in `crc_ok` and `uncompressed_bytes`; `verify` does both and looks at every record.
    `reveal` shows keys, values and headers of `records`. `limits`: by table, what holds for all rows that are wanted.
    """

    checksums: bool = False
    sizes: bool = False
    verify: bool = False
    reveal: bool = False
    traced: bool = False
    """Trace contexts are looked for in the headers of `records`."""
    only_traced: bool = False
    """Rows of `records` without a trace context are dropped as soon as they are read."""
    evidence: bool = False
    """Of `record_batches` only what findings look at is wanted: the first ones, what was written within transactions,
    and what may have been sent twice."""
    most_sent: int | None = None
    """The table `producers` holds no more than about so many batches, the first ones."""
    limits: Mapping[str, tuple[Limit, ...]] = NO_LIMITS

    def with_columns(
        self, tables: Mapping[str, Sequence[str] | None], filters: Mapping[str, Filter | None], reveal: bool = False
    ) -> "Reading":
        """This reading, with what the named columns of tables (None: none by name) and their filters need."""
        named = set[str]()
        for name in ("record_batches", "records"):
            found = filters.get(name)
            named |= {*(tables.get(name) or ()), *(() if found is None else found.columns)}
        return self._replace(
            checksums=self.checksums or "crc_ok" in named,
            sizes=self.sizes or "uncompressed_bytes" in named,
            reveal=self.reveal or reveal,
            traced=self.traced or not named.isdisjoint(("trace_id", "span_id")),
            limits={name: one.limits for name, one in filters.items() if one is not None},
        )


class Recorder:
    """Reads the record sets of one block after the other for the tables asked for (name -> columns)."""

    def __init__(self, columns: Mapping[str, Sequence[str]], reading: Reading, topics: Topics) -> None:
        self.columns = columns
        self.reading = reading
        self.topics = topics
        self.problems: list[Problems] = []
        """What was found wrong so far."""
        self.narrow(columns)
        self._watched = "problems" in columns or "problems" in columns.get("connections", ())
        self._followed = "producers" in columns
        self.idle = not (
            self._counted or self._weighed or self._watched or self._listed or self._read or self._followed
        )
        """Nothing that was asked for needs a look at record sets."""
        self._sent: list[pa.RecordBatch] = []
        self._count = 0
        self.full = False
        """Whether enough is known of what producers sent."""
        self._walked = 0
        """Batches that were walked, as far as anybody counts them."""
        self.sampling = False
        """Whether the first FIRST_BATCHES batches were walked: of later ones evidence may be enough."""
        self._block: Block | None = None
        self._sets: RecordSets | None = None
        self._batches: Batches | None = None

    def narrow(self, columns: Mapping[str, Sequence[str]]) -> None:
        """From the next block on only these columns are made (name -> columns) of tables that come block by block."""
        self._counted = "batches" in columns.get("fetch_partitions", ())
        self._weighed = any(
            not {"batches", "records"}.isdisjoint(columns.get(name, ())) for name in ("produces", "produce_partitions")
        )
        self._listed = "record_batches" in columns
        self._read = "records" in columns

    @property
    def _only_watched(self) -> bool:
        """Nothing of record sets is wanted but what is wrong with their headers, and what producers with an id sent."""
        reading = self.reading
        made = self._counted or self._weighed or self._listed or self._read
        return not (made or reading.checksums or reading.verify or reading.sizes)

    def begin(self, block: Block) -> tuple[Int64s | None, Int64s | None]:
        """Walk the batch headers of a block. Returns the number of batches of each partition of its Fetch responses,
        and [n, 2] batches and records of each of its Produce requests, in wire order; None where no table needs them or
        the bytes are not there."""
        data = block.done.data
        self._batches = None
        if self.idle or data is None:
            return None, None
        only = self._only_watched
        followed = self._followed and not self.full

        def told_size(key: int, at: Int64s, size: Int64s) -> Int64s:
            return doubtful(data, at, size, followed and key == ApiKey.PRODUCE)

        sets = record_sets(block, told_size if only else None)
        if only and not len(sets):
            return None, None
        if not (self._counted or self._weighed or self._watched or self._followed):
            wanted = np.zeros(len(sets), np.bool_)
            for name in ("record_batches", "records"):
                if name in self.columns:
                    wanted |= self._within(name, block, sets)
            if not wanted.all():
                sets = sets.pick_sets(np.flatnonzero(wanted))
        self._block, self._sets, self._batches = block, sets, walk(data, sets.at, sets.size)
        fetched = fetch_batches(block, sets, self._batches) if self._counted else None
        return fetched, sent_records(block, sets, self._batches) if self._weighed else None

    def parts(self, columns: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Unresolved rows of the block walked last: records in chunks, then the batches. `columns`: those to make."""
        block, sets, batches = self._block, self._sets, self._batches
        if block is None or sets is None or batches is None:
            return
        reading = self.reading
        both = self._read and (self._listed or self._watched)
        if len(batches) and (reading.checksums or reading.verify or both):
            from kdissect.kafka.recordsets.verification import verify

            verify(batches)
        if len(batches) and (self._read or reading.verify):
            yield from self._records(block, sets, batches, columns)
        if len(batches) and (reading.sizes or reading.verify or (self._read and self._listed)):
            from kdissect.kafka.recordsets.verification import measure

            measure(batches)
        if self._listed and "record_batches" in columns:
            names = columns["record_batches"]
            picked = _evidence(block, sets, batches) if reading.evidence and self.sampling else None
            self._walked += len(batches)
            found = batches.table(["owner", *names], picked)
            yield "record_batches", record_rows("record_batches", block, sets, found, names)
        if self._followed:
            self._follow(block, sets, batches)
        if self._watched:
            found = record_problems(block, sets, batches)
            if len(found):
                self.problems.append(found)
        self._block = self._sets = self._batches = None

    def _records(
        self, block: Block, sets: RecordSets, batches: Batches, columns: Mapping[str, Sequence[str]]
    ) -> Iterator[tuple[str, pa.RecordBatch]]:
        from kdissect.kafka.recordsets.records import records

        offsets, picked = None, None
        if self._read and not self.reading.verify:
            offsets = span(self.reading.limits.get("records", ()))
            picked = np.flatnonzero(self._within("records", block, sets)[batches.owner])
        read, reading = self._read, self.reading
        found = records(
            batches, reveal=read and reading.reveal, traced=read and reading.traced, offsets=offsets, picked=picked
        )
        for chunk in found:
            if reading.only_traced:
                chunk = chunk.filter(chunk.column("trace_id").is_valid())
            if self._read and chunk.num_rows:
                yield "records", record_rows("records", block, sets, chunk, columns["records"])

    def _within(self, name: str, block: Block, sets: RecordSets) -> Flags:
        """Sets that can hold rows of a table which its filter keeps, as far as that is known by now."""
        kept = np.ones(len(sets), np.bool_)
        for limit in self.reading.limits.get(name, ()):
            if limit.column == "partition":
                kept &= _compared(sets.partition, limit)
            elif limit.column == "topic" and limit.operator in EQUAL:
                topic = self.topics.resolve(sets.topic, sets.topic_id)
                known = pc.is_in(
                    topic, value_set=pa.array([v for v in limit.values if isinstance(v, str)], pa.string())
                )
                unnamed = pc.and_(topic.is_null(), sets.topic_id.is_valid())  # a later message may name it
                kept &= pc.or_(known, unnamed).to_numpy(zero_copy_only=False)
            elif limit.column == "exchange_id" and limit.operator in EQUAL:
                names = pa.array([v for v in limit.values if isinstance(v, str)], pa.string())
                rows = pc.is_in(block.exchange_id, value_set=names).to_numpy(zero_copy_only=False)
                kept &= rows[sets.row]
        return kept

    def _follow(self, block: Block, sets: RecordSets, batches: Batches) -> None:
        """Keep what producers with an id sent."""
        if self.full:
            return
        rows = batches.rows
        ours = np.flatnonzero((rows[:, FIELDS.producer_id] >= 0) & (sets.key[rows[:, FIELDS.owner]] == ApiKey.PRODUCE))
        if len(ours):
            names = ["owner", *(name for name in SENT if name in SCHEMAS["record_batches"].names)]
            self._sent.append(record_rows("record_batches", block, sets, batches.table(names, ours), SENT))
            self._count += len(ours)

    def block_ended(self) -> None:
        """A block is done, in all its parts."""
        self.full = self.reading.most_sent is not None and self._count >= self.reading.most_sent
        self.sampling = self._walked >= FIRST_BATCHES

    def agree(self, parent: "Recorder") -> None:
        """Make as many rows from here on as one that learns from this one does."""
        self.full, self.sampling = parent.full, parent.sampling

    def learn(self, other: "Recorder") -> None:
        """Take over what producers sent by another part of the same block, which is done, and its count of batches."""
        self._sent += other._sent
        self._count += other._count
        self._walked += other._walked
        other._sent, other._count, other._walked = [], 0, 0
        self.block_ended()

    def sent(self) -> pa.Table | None:
        """The batches of producers with an id, not resolved; None for nothing."""
        if not self._sent:
            return None
        return unified(pa.concat_tables([pa.Table.from_batches([part]) for part in self._sent]))

    def producers(self) -> pa.Table:
        """The table `producers`."""
        sent = self.sent()
        return SCHEMAS["producers"].empty_table() if sent is None else producers_table(sent, self.topics)


def resolve_sent(sent: pa.Table, topics: Topics) -> pa.Table:
    """The rows of `Recorder.sent` with the names of clusters and topics that are known now. Idempotent."""
    cluster = topics.brokers.resolve_clusters(sent["cluster"])
    topic = topics.resolve(sent["topic"], sent["topic_id"], cluster)
    for name, column in (("cluster", cluster), ("topic", topic)):
        sent = sent.set_column(sent.column_names.index(name), name, column)
    return sent


def producers_table(sent: pa.Table, topics: Topics) -> pa.Table:
    """The table `producers` of what `Recorder.sent` gave, of one run or of several."""
    from kdissect.kafka.recordsets.producers import producers

    table = order("record_batches", resolve_sent(sent, topics))
    sent_at = table[TIME_KEY].cast(SCHEMAS["producers"].field("sent_at").type)
    return producers(table.append_column("sent_at", sent_at)).cast(SCHEMAS["producers"])


def _evidence(block: Block, sets: RecordSets, batches: Batches) -> Int64s:
    """Rows of batches that findings look at. Some have records of a transaction, not its markers. Some were sent by
    producers without an id, in requests that got no answer in time, or in the first ones of a connection: there they
    are sent again. The others are a sample of all, by sequence number and offset, and batches of older formats: brokers
    may have rewritten them."""
    rows, done = batches.rows, block.done
    bits = np.where(rows[:, FIELDS.magic] == 2, np.maximum(rows[:, FIELDS.attributes], 0), 0)
    kept: Flags = (bits & (bl.TRANSACTIONAL_BIT | bl.CONTROL_BIT)) == bl.TRANSACTIONAL_BIT
    left = (done.abandoned > 0) | (done.status == Status.UNANSWERED) | (done.n < FIRST_REQUESTS)
    sent = (sets.key == ApiKey.PRODUCE) & left[sets.row]
    more = sent[rows[:, FIELDS.owner]] & (rows[:, FIELDS.producer_id] < 0)
    sequence = rows[:, FIELDS.base_sequence]
    more |= (sequence >= 0) & (sequence % ONE_BATCH_IN == 0) & (rows[:, FIELDS.magic] == 2)
    stored = (rows[:, FIELDS.base_offset] > 0) & (rows[:, FIELDS.base_offset] % ONE_BATCH_IN == 0)
    more |= (sets.key == ApiKey.FETCH)[rows[:, FIELDS.owner]] & ((rows[:, FIELDS.magic] < 2) | stored)
    if more.any():
        real = np.zeros(len(rows), np.bool_)
        real[batches.real] = True
        kept |= real & more
    return np.flatnonzero(kept)


def _compared(numbers: Int64s, limit: Limit) -> Flags:
    values = [value for value in limit.values if isinstance(value, int | float)]
    kept = np.zeros(len(numbers), np.bool_)
    for value in values:
        if limit.operator in EQUAL:
            kept |= numbers == value
        else:
            kept |= _ORDER[limit.operator](numbers, value) if limit.operator in _ORDER else True
    return kept


_ORDER = {"<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal}


def span(limits: Sequence[Limit]) -> tuple[int, int] | None:
    """First and last offset that limits leave, both included; None where they say nothing of offsets."""
    first, last = -MOST_OFFSET, MOST_OFFSET
    for limit in limits:
        values = [
            int(min(max(value, -MOST_OFFSET), MOST_OFFSET)) for value in limit.values if isinstance(value, int | float)
        ]
        if limit.column != "offset" or not values:
            continue
        if limit.operator in EQUAL or limit.operator in (">", ">="):
            first = max(first, min(values))
        if limit.operator in EQUAL or limit.operator in ("<", "<="):
            last = min(last, max(values) + 1)  # a fraction lies between two offsets
    return None if (first, last) == (-MOST_OFFSET, MOST_OFFSET) else (first, last)

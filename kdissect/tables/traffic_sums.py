"""What clients write and read of each partition in a block, added up: for whoever wants the sums and none of the rows.

The sums are those of `produce_partitions` and `fetch_partitions` by client, topic and partition, with the lag that was
told last; what is named without any bytes has a row too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from kdissect.arrays.arrow import Scalar
from kdissect.arrays.lending import Lender
from kdissect.arrays.rows import NULL, Rows
from kdissect.kernels.kernel import kernel, part
from kdissect.kernels.structs import rows_of, struct, view, width
from kdissect.schema.apikeys import ApiKey
from kdissect.tables.coded_rows import SEED, Topics, fields
from kdissect.tables.fetch_kernels import ROWS_OF_PARTITIONS, PartitionColumns  # noqa: F401  (named in a signature)
from kdissect.tables.fetch_rows import GIVEN, NamedFetches, fetch_at, partition_at
from kdissect.tables.table_block import Block

Int64s = npt.NDArray[np.int64]

LAST = 2**63 - 1
"""When a lag of unknown time was told."""


@struct
class Sum:
    """A row of sums, -1 where unknown."""

    asker: int
    """Code of who asked whom."""
    topic: int
    """Code of the topic."""
    partition: int
    """Its number."""
    written: int
    """Bytes written."""
    read: int
    """Bytes read."""
    lag: int
    """The lag that was told last."""
    at: int
    """When, in microseconds, LAST for an unknown time."""
    high: int
    """By the exchange with these keys: its connection's id."""
    n: int
    """Its ordinal there."""


@struct
class Known:
    """A list of sums."""

    count: int
    """How many there are."""
    latest: int
    """Which of them was used last."""


sum_at, known_at = view(Sum), view(Known)
WIDTH = width(Sum)


@dataclass(frozen=True, slots=True, eq=False)
class Sums:
    """Sums of a block, by client, broker and topic: codes of texts, of topics of (name, id), either of which may be
    None."""

    rows: Int64s
    """[n, WIDTH]"""
    client: Int64s
    broker: Int64s
    """[n]: of each sum, -1 for none."""
    clients: Sequence[str]
    clusters: Sequence[str | None]
    """By the broker's code; the broker, `capture<TAB>ip:port`, until names are known."""
    topics: Sequence[tuple[str | None, str | None]]

    def with_names(self, names: Mapping[str, str], clusters: Sequence[str | None]) -> Sums:
        """The same with names of topics by their ids, as far as they are known, and these clusters."""
        topics = [(names.get(known or "") if name is None else name, known) for name, known in self.topics]
        return replace(self, clusters=clusters, topics=topics)

    @property
    def num_rows(self) -> int:
        """How many there are."""
        return len(self.rows)


@part
def _place(
    asker: Scalar, topic: Scalar, partition: Scalar, sums: Int64s, table: Int64s, lookup: Int64s, seed: Scalar
) -> Scalar:
    """The sum for these, a new one where there is none."""
    known = known_at(lookup, 0)
    at = known.latest
    if at < known.count and _belongs_to(sum_at(sums, at), asker, topic, partition):
        return at
    mixed: Scalar = (seed ^ asker) * np.int64(1099511628211)
    mixed = (mixed ^ (mixed >> 31) ^ topic) * np.int64(1099511628211)
    mixed = (mixed ^ (mixed >> 29) ^ partition) * np.int64(1099511628211)
    mask = table.size - 1
    place = (mixed ^ (mixed >> 32)) & mask
    while table[place] >= 0:
        at = table[place]
        if _belongs_to(sum_at(sums, at), asker, topic, partition):
            known.latest = at
            return at
        place = (place + 1) & mask
    at = known.count
    known.count, known.latest = at + 1, at
    table[place] = at
    new = sum_at(sums, at)
    new.asker, new.topic, new.partition = asker, topic, partition
    new.written, new.read, new.lag, new.at, new.high, new.n = -1, -1, -1, -1, 0, 0
    return at


@part
def _belongs_to(entry: Sum, asker: Scalar, topic: Scalar, partition: Scalar) -> Scalar:
    return entry.partition == partition and entry.topic == topic and entry.asker == asker


@part
def _digits(n: Scalar) -> Scalar:
    """Digits of a number, none negative."""
    digits, power = np.int64(1), np.int64(10)
    while digits < 18 and n >= power:
        digits += 1
        power *= 10
    return digits


@part
def _behind(high: Scalar, n: Scalar, other_high: Scalar, other_n: Scalar) -> Scalar:
    """Whether an exchange stands behind another one, or is the same, in the order of ids as text (no orphans)."""
    if high != other_high:
        return np.uint64(high) > np.uint64(other_high)
    more, less = n, other_n
    one, two = _digits(n), _digits(other_n)
    for _ in range(two - one):
        more *= 10
    for _ in range(one - two):
        less *= 10
    return more > less or (more == less and one >= two)


@part
def _note_lag(lag: Scalar, time: Scalar, high: Scalar, n: Scalar, entry: Sum) -> None:
    """Keep a lag where it is the last one, of one instant that of the last exchange id."""
    when: Scalar = np.int64(LAST) if time == NULL else time
    last = entry.lag < 0 or when > entry.at
    if not last and when == entry.at:
        last = _behind(high, n, entry.high, entry.n)
    if last:
        entry.lag, entry.at, entry.high, entry.n = lag, when, high, n


@part
def lag_of(high: Scalar, offset: Scalar) -> Scalar:
    """How many records a partition has behind the offset that was asked for."""
    return max(high - offset, np.int64(0))


@part
def _read(records: Scalar, entry: Sum) -> None:
    entry.read = records if entry.read < 0 else entry.read + records


@kernel("const i8[:,:] const i8[:,:] const i8[:] const i8[:] i8[:,:] i8[:] i8[:] i8")
def add_read(
    fetches: Int64s, partitions: Int64s, askers: Int64s, codes: Int64s, sums: Int64s, table: Int64s, lookup: Int64s,
    seed: Scalar,
) -> None:  # fmt: skip
    """Partitions of fetches that were read aside (`fetch_rows.NamedFetches`). `codes`: of topics, by those of the
    rows."""
    q = np.int64(0)
    for i in range(len(fetches)):
        row = fetch_at(fetches, i)
        asker = askers[row.exchange]
        for _ in range(row.partitions):
            named = partition_at(partitions, q)
            entry = sum_at(sums, _place(asker, codes[named.topic], named.partition, sums, table, lookup, seed))
            if named.flags & GIVEN:
                _read(named.records, entry)
            if named.high >= 0 and named.offset >= 0:
                _note_lag(lag_of(named.high, named.offset), row.time, row.connection, row.ordinal, entry)
            q += 1


@kernel("const i8[:] const i8[:] ROWS_OF_PARTITIONS i8[:,:] i8[:] i8[:] i8")
def add_fetched(
    row: Int64s, askers: Int64s, partitions: PartitionColumns, sums: Int64s, table: Int64s, lookup: Int64s, seed: Scalar
) -> None:
    """Partitions of fetches as `fetch_kernels.fill_partitions` has made them; `row`: of each its exchange."""
    for q in range(row.size):
        topic, partition = partitions.topic[q], partitions.partition[q]
        entry = sum_at(sums, _place(askers[row[q]], topic, partition, sums, table, lookup, seed))
        if partitions.given[q] == 1:
            _read(partitions.records[q], entry)
        high, offset = partitions.highest[q], partitions.offset[q]
        if partitions.error[q] == 0 and high >= 0 and offset >= 0:
            _note_lag(lag_of(high, offset), partitions.time[q], partitions.high[q], partitions.n[q], entry)


@kernel("const i8[:] const i8[:] const i8[:] const i8[:] const i8[:] const i8[:] const i8[:] i8[:,:] i8[:] i8[:] i8")
def add_produced(
    rows: Int64s, askers: Int64s, topic_begin: Int64s, begin: Int64s, topics: Int64s, numbers: Int64s, sizes: Int64s,
    sums: Int64s, table: Int64s, lookup: Int64s, seed: Scalar,
) -> None:  # fmt: skip
    """Partitions that messages about producing name, whose exchanges are `rows`; `sizes`: of their records, of requests
    (none: what answers name)."""
    for body in range(rows.size):
        asker = askers[rows[body]]
        for t in range(topic_begin[body], topic_begin[body + 1]):
            for a in range(begin[t], begin[t + 1]):
                entry = sum_at(sums, _place(asker, topics[t], numbers[a], sums, table, lookup, seed))
                if sizes.size:
                    entry.written = max(entry.written, np.int64(0)) + max(sizes[a], np.int64(0))


def traffic(
    block: Block, topics: Topics, partitions: Rows, direct_fetches: NamedFetches | None, memory: Lender
) -> Sums:
    """Sums of a block. `partitions`: its rows of `fetch_partitions` as `coded_rows.rows_as_codes` has made them, with
    `topics`; `direct_fetches`: the fetches that were read aside. `memory` is lent meanwhile."""
    done, said = block.done, topics.fetched(block)
    asked, given = topics.produced(block.nest(ApiKey.PRODUCE, 0), block.nest(ApiKey.PRODUCE, 1))
    most = sum(len(one.partitions) for one in (asked, given, said.asked, said.gone, said.given))
    most += 0 if direct_fetches is None else len(direct_fetches.rows.partitions)
    sums, table = memory.arrays([((most, WIDTH), np.int64), ((2 << most.bit_length(),), np.int64)])
    table[:] = -1
    brokers = block.directory.brokers.texts
    asked_by = (done.client.astype(np.int64) + 1) * (len(brokers) + 1) + block.directory.broker_codes(done.conn) + 1
    known = np.zeros(width(Known), np.int64)
    for named, side in ((asked, 0), (given, 1)):
        number, *size = fields(named.partitions, ("index",) if side else ("index", "records_bytes"))
        sizes = size[0] if size else np.zeros(0, np.int64)
        add_produced(
            block.bodies(ApiKey.PRODUCE, side), asked_by, named.topic_begin, named.begin, named.code, number, sizes,
            sums, table, known, SEED,
        )  # fmt: skip
    if partitions.num_rows:
        add_fetched(said.row, asked_by, PartitionColumns(*partitions.matrix), sums, table, known, SEED)
    if direct_fetches is not None:
        codes = topics.lookup_codes(direct_fetches.topics)
        add_read(direct_fetches.rows.fetches, direct_fetches.rows.partitions, asked_by, codes, sums, table, known, SEED)
    rows = sums[: known_at(known, 0).count].copy()
    client, broker = np.divmod(rows_of(Sum, rows)["asker"], len(brokers) + 1)
    return Sums(rows, client - 1, broker - 1, done.client_ids, list(brokers), list(topics.codes))

"""One block of finished exchanges, with the columns that several tables share made once."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kdissect.arrays.from_numpy import arrow_array
from kdissect.kafka.completed import FILE_SHIFT, NULL_TIME, STATUS, Completed, Connections
from kdissect.kernels.kernel import kernel
from kdissect.kernels.signature import fields
from kdissect.tables.declaration import TABLES
from kdissect.tables.declaration.model import ANSWERED_KEY, CODE, COUNT, EXCHANGE_KEYS, FLAG, MS, TIME, TIME_KEY
from kdissect.tables.identity import Directory, constant, dictionary, exchange_ids
from kdissect.tables.nest import Level, optional
from kdissect.tables.timestamps import OddTimes

Int64s = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Column = Callable[[], pa.Array]
Rows = tuple[Mapping[str, Column], int]
"""The columns of rows, each made when it is asked for, and how many rows there are."""

SECOND = 1 << FILE_SHIFT
"""The least packet number of a second file."""
PACKET_MASK = (1 << FILE_SHIFT) - 1

READ_ASIDE = "fetches read aside"
"""The name of `kdissect.tables.fetch_rows.NamedFetches` among the rows of a block."""
MADE_LATER = "produce_partitions"
"""The table whose rows are `kdissect.tables.coded_rows.Later` where they are `coded`."""


class Block:
    """One `Completed` and what its tables have in common. Columns are per exchange; tables take the rows they need."""

    def __init__(self, completed: Completed, directory: Directory) -> None:
        self.done = completed
        self.batches: Int64s | None = None
        """Number of record batches of each partition of the Fetch responses, in wire order, where they were counted."""
        self.sent: Int64s | None = None
        """[n, 2]: record batches and records of each partition of the Produce requests, in wire order, where they were
        counted."""
        self.odd = OddTimes()
        """Timestamps of messages that are outside the calendar."""
        self.directory = directory
        self.connections: Connections = directory.connections
        self._nests: dict[tuple[int, int], Level] = {}

    def __len__(self) -> int:
        return len(self.done)

    @cached_property
    def exchange_id(self) -> pa.Array:
        """Exchange ids of all rows."""
        return exchange_ids(self.directory.ids(self.done.conn), self.done.n, self.done.is_orphan)

    @cached_property
    def keys(self) -> tuple[Int64s, Int64s]:
        """Exchange ids of all rows as numbers: the connection's id as int64, the ordinal; -1 - ordinal of orphans."""
        done = self.done
        return self.connections.id[done.conn].view(np.int64), np.where(done.is_orphan, -1 - done.n, done.n)

    def key_columns(self, rows: Int64s | slice = slice(None)) -> dict[str, Column]:
        """The columns EXCHANGE_KEYS of these rows."""
        return {name: lambda i=i: arrow_array(self.keys[i][rows], COUNT) for i, name in enumerate(EXCHANGE_KEYS)}  # type: ignore[misc]

    def cluster(self, rows: Int64s | slice = slice(None)) -> pa.Array:
        """The cluster of these rows, not resolved yet: their broker's `capture<TAB>ip:port`."""
        return self.directory.broker(self.done.conn[rows])

    @cached_property
    def client_id(self) -> pa.Array:
        """Client ids of all rows."""
        return dictionary(self.done.client, self.done.client_ids)

    @cached_property
    def status(self) -> pa.Array:
        """Status names of all rows."""
        return dictionary(self.done.status, STATUS)

    @cached_property
    def answered(self) -> npt.NDArray[np.bool_]:
        """A response, or a part of one, was captured."""
        flags: npt.NDArray[np.bool_] = (self.done.response_bytes >= 0) | (self.done.response_first != NULL_TIME)
        return flags

    @cached_property
    def parts(self) -> "Parts":
        """The five parts of each exchange's latency (contract, section 4)."""
        return Parts.of(self.done, self.answered)

    def latency_ms(self) -> pa.Array:
        """Response's last byte - request's first byte."""
        return elapsed(self.done.request_first, self.done.response_last)

    @cached_property
    def on_wire(self) -> Int64s:
        """When each exchange was first on the wire, ns: the request's first byte, the response's where the request was
        not captured; NULL_TIME where neither has a time."""
        first = self.done.request_first
        return np.where(first != NULL_TIME, first, self.done.response_first)

    def time_columns(self, rows: Int64s | slice = slice(None)) -> dict[str, Column]:
        """The columns TIME_KEY and ANSWERED_KEY of these rows."""
        first = self.done.request_first
        return {
            TIME_KEY: lambda: microseconds(first[rows]),
            ANSWERED_KEY: lambda: microseconds(np.where(first == NULL_TIME, self.on_wire, NULL_TIME)[rows]),
        }

    def rows(self, *api_keys: int) -> Int64s:
        """Rows of these APIs."""
        mask = self.done.api_key == api_keys[0]
        for key in api_keys[1:]:
            mask |= self.done.api_key == key
        return np.flatnonzero(mask).astype(np.int64)

    def nest(self, key: int, side: int) -> Level:
        """The decoded bodies of an API's side; none when nothing of it was decoded in this block."""
        where = (key, side)
        if where not in self._nests:
            message = self.done.messages.get(where)
            batch = pa.record_batch({}) if message is None else message.batch
            self._nests[where] = Level.root(batch)
        return self._nests[where]

    def bodies(self, key: int, side: int) -> Int64s:
        """For each body of an API's side, its row in this block."""
        message = self.done.messages.get((key, side))
        return np.zeros(0, np.int64) if message is None else np.asarray(message.rows, np.int64)

    def body_of(self, key: int, side: int) -> Int64s:
        """For each row of this block its body in `nest(key, side)`, -1 where there is none."""
        index = np.full(len(self), -1, np.int64)
        bodies = self.bodies(key, side)
        index[bodies] = np.arange(len(bodies))
        return index


class Parts(NamedTuple):
    """What each exchange's time went to, ns, and where that is known: they add up to the latency, and none is negative.

    An answer that begins before the request ended (a broker refuses it, or two interfaces have two clocks) ends the
    request's transfer: no moment counts twice.
    """

    request: Int64s
    network: Int64s
    queued: Int64s
    broker: Int64s
    response: Int64s
    sent: Flags
    """Where the request's transfer is known."""
    split: Flags
    """Where the time between request and response is: `queued` and `broker`."""
    told: Flags
    """Where the network's share is."""
    received: Flags
    """Where the response's transfer is."""

    @staticmethod
    def of(done: Completed, answered: Flags) -> "Parts":
        """Of a block's exchanges; `answered`: those of which a response, or a part of one, was captured."""
        first, last, begun, ended, network, queued = (
            np.require(one, np.int64, ["C", "A"]) for one in (
                done.request_first, done.request_last, done.response_first, done.response_last, done.network,
                done.queued_from,
            )
        )  # fmt: skip
        parts = Parts(*np.empty((5, len(done)), np.int64), *np.empty((4, len(done)), np.bool_))
        _divide(first, last, begun, ended, network, queued, np.ascontiguousarray(answered), parts)
        return parts


PARTS = fields(Parts, "i8[:] i8[:] i8[:] i8[:] i8[:] b1[:] b1[:] b1[:] b1[:]")
"""What kernels that take them declare."""


@kernel("const i8[:] const i8[:] const i8[:] const i8[:] const i8[:] const i8[:] const b1[:] PARTS")
def _divide(
    firsts: Int64s, lasts: Int64s, begins: Int64s, ends: Int64s, networks: Int64s, behind: Int64s, answered: Flags,
    parts: Parts,
) -> None:  # fmt: skip
    """Write `parts`."""
    for i in range(firsts.size):
        first, last, begun, ended = firsts[i], lasts[i], begins[i], ends[i]
        split = answered[i] and last != NULL_TIME and begun != NULL_TIME
        received = begun != NULL_TIME and ended != NULL_TIME
        sent = first != NULL_TIME and last != NULL_TIME
        told = split and networks[i] >= 0
        asked, answer, between, network, queued = last, begun, np.int64(0), np.int64(0), np.int64(0)
        if split:
            if first != NULL_TIME:
                asked = max(min(last, begun), first)
            answer = max(begun, asked)
            if ended != NULL_TIME:
                answer = min(answer, max(ended, asked))
            between = answer - asked
            if told:
                network = min(networks[i], between)
            if behind[i] != NULL_TIME:
                queued = min(max(behind[i] - asked - network, np.int64(0)), between - network)
        parts.request[i] = asked - first if sent else 0
        parts.network[i], parts.queued[i], parts.broker[i] = network, queued, between - network - queued
        parts.response[i] = ended - answer if received else 0
        parts.sent[i], parts.split[i], parts.told[i], parts.received[i] = sent, split, told, received


def milliseconds(ns: Int64s, is_known: Flags) -> pa.Array:
    """Durations in milliseconds, null where not known."""
    return optional(ns / 1e6, is_known, MS)


def elapsed(begin: Int64s, end: Int64s) -> pa.Array:
    """Milliseconds from begin to end (int64 ns), null where either is unknown."""
    return optional((end - begin) / 1e6, (begin != NULL_TIME) & (end != NULL_TIME), MS)


def instant(ns: Int64s) -> pa.Array:
    """Nanoseconds since the epoch as timestamps of microseconds (rounded down), null where NULL_TIME."""
    return microseconds(ns).cast(TIME)


def microseconds(ns: Int64s) -> pa.Array:
    """Nanoseconds since the epoch as int64 of microseconds (rounded down), null where NULL_TIME."""
    return optional(ns // 1000, ns != NULL_TIME, COUNT)


def code(values: npt.NDArray[Any], null: int = -1) -> pa.Array:
    """A small-number column, null where the value is `null`."""
    return optional(values, values != null, CODE)


def count(values: npt.NDArray[Any], null: int = -1) -> pa.Array:
    """An int64 column, null where the value is `null`."""
    return optional(values, values != null, COUNT)


def flag(values: npt.NDArray[np.bool_], present: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    """A boolean column."""
    return arrow_array(values, FLAG, mask=None if present is None else ~present)


def packet_file(block: Block, packet: Int64s, rows: Int64s | slice = slice(None)) -> pa.Array:
    """File that a packet is in."""
    picked = packet[rows]
    files = block.connections.files
    if len(files) == 1 and len(files[0]) == 1 and len(picked) and 0 <= int(picked.min()) <= int(picked.max()) < SECOND:
        return constant(files[0][0], len(picked))
    file = np.where(picked >= 0, picked >> FILE_SHIFT, -1)
    return block.directory.file(block.connections.capture[block.done.conn[rows]], file)


def packet_number(packet: Int64s) -> pa.Array:
    """Packet's number in its file."""
    return optional(packet & PACKET_MASK, packet >= 0, COUNT)


def assemble(name: str, columns: Mapping[str, Column], column_names: Sequence[str], rows: int) -> pa.RecordBatch:
    """The wanted columns of a table as a record batch; those that the analysis fills are null.

    Strings may be dictionary-encoded; `finished` makes them plain. Columns beginning with `_` are helpers.
    """
    arrays = []
    for column in column_names:
        make = columns.get(column)
        array = pa.nulls(rows, TABLES[name].by_name[column].type) if make is None else make()
        arrays.append(array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array)
    return pa.RecordBatch.from_arrays(arrays, names=list(column_names))

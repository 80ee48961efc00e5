"""Kernels over records: those of magic-2 batches, and the messages of magic 0 and 1.

A segment is a stretch of bytes that holds the records of one batch: of the capture itself where nothing is
compressed, else of a buffer that a codec fills. A segment may be open: more of its bytes are to come, the kernel
stops before the first record that is not whole and says how many bytes it needs. Rows go into columns `out`; a kernel
that finds them full returns FULL with everything it needs to go on in `segments` and `state` (`Progress`).

Sources: DefaultRecord, LegacyRecord, AbstractLegacyRecordBatch (KIP-31, KIP-32, KIP-98).
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kdissect.kafka.recordsets import batch_layout as bl
from kdissect.kernels.kernel import kernel, part
from kdissect.kernels.memory import copy_bytes, int16_at, int32_at, int64_at
from kdissect.kernels.signature import fields
from kdissect.kernels.structs import struct, view

Bytes = npt.NDArray[np.uint8]
Int64s = npt.NDArray[np.int64]
Number = Any
"""An int64 of numba, whatever Python makes of it."""

CLOSED, OPEN, LOST, FINISHED = range(4)
"""State of a segment: all bytes are here; more will come; the rest will never come (stop silently); nothing more is to
be read."""


@struct
class Stretch:
    """A segment."""

    begin: int
    """Where it begins: moves on with what was read."""
    end: int
    """Where it ends."""
    batch: int
    """Row of its batch."""
    done: int
    """Records read so far."""
    state: int
    """CLOSED to FINISHED."""
    base: int
    """Base of relative offsets (legacy only)."""
    need: int
    """Bytes that the first unread record needs (open segments)."""


@struct
class Progress:
    """How far segments were read."""

    segment: int
    """The next segment."""
    rows: int
    """Rows of records that are filled."""


@struct
class Inner:
    """The messages of a wrapper."""

    count: int
    """How many there are."""
    first: int
    """Offset of the first."""
    last: int
    """Offset of the last."""
    first_time: int
    """Timestamp of the first."""
    max_time: int
    """The largest timestamp."""
    broken: int
    """1: one has a length that nothing can have."""


stretch_at, progress_at, inner_at = view(Stretch), view(Progress), view(Inner)


class RecordColumns(NamedTuple):
    """Records, columns of the same length; the last four are empty where nothing is revealed."""

    batch: Int64s
    """Row of its batch."""
    offset: Int64s
    """Its offset."""
    time: Int64s
    """Microseconds since the epoch, NULL for none."""
    key_bytes: Int64s
    """Bytes of the key, -1 null."""
    value_bytes: Int64s
    """Bytes of the value, -1 null."""
    control: Int64s
    """Type of a control record, -1 none."""
    key_at: Int64s
    """Where the key is, -1 not shown."""
    value_at: Int64s
    """Where the value is, -1 not shown."""
    headers_at: Int64s
    """Where the headers are."""
    headers: Int64s
    """How many there are, -1 not shown."""


def empty_columns(capacity: int, revealed: bool) -> RecordColumns:
    """Columns for so many records."""
    return RecordColumns(*np.empty((6, capacity), np.int64), *np.empty((4, capacity if revealed else 0), np.int64))


def cut_columns(columns: RecordColumns, begin: int, end: int) -> RecordColumns:
    """The columns of these records alone."""
    return RecordColumns(*(column[begin:end] for column in columns))


RECORD_COLUMNS = fields(RecordColumns, " ".join(["i8[:]"] * 10))
"""What kernels that take them declare."""

GIANT = 1 << 20
"""A record of an open segment larger than this is not waited for where only its sizes are asked: the row is made from
its beginning, and `begin` lies behind `end` by as much as is to be thrown away of what follows."""
MOST_SHOWN = 32 << 20
"""A record larger than this is not shown, only its sizes are: nobody reads it, and as text it takes several times the
room. Brokers take 1 MB unless they are told otherwise (message.max.bytes)."""
LONGEST_VARINT = 10
DONE, FULL = 0, 1
KNOWN_CONTROLS = len(bl.CONTROL_TYPES)


@part
def varint(s: Bytes, p: Number, end: Number) -> tuple[Number, Number]:
    """(value, position behind it) of a zigzag varint; position -1 where the bytes end inside it, -2 where it has no
    end."""
    if p < end:
        byte = np.int64(s[np.uint64(p)])
        if byte < 128:
            return (byte >> 1) ^ -(byte & 1), p + 1
        if p + 1 < end:  # two bytes hold lengths and differences below 8192: nearly all others
            second = np.int64(s[np.uint64(p + 1)])
            if second < 128:
                byte = (byte & 0x7F) | (second << 7)
                return (byte >> 1) ^ -(byte & 1), p + 2
    value = np.uint64(0)
    shift = np.uint64(0)
    while p < end:
        digit = np.uint64(s[np.uint64(p)])
        p += 1
        value |= (digit & np.uint64(0x7F)) << shift
        if digit < np.uint64(128):
            half = np.int64(value >> np.uint64(1))
            return half ^ -np.int64(value & np.uint64(1)), p
        shift += np.uint64(7)
        if shift > np.uint64(63):
            return 0, -2
    return 0, -1


@part
def _micros(time: Number) -> Number:
    """µs of milliseconds; NULL for none (-1) and for what is outside years 1-9999."""
    if time == -1 or time < bl.FIRST_MS or time > bl.LAST_MS:
        return bl.NULL
    return time * 1000


@part
def skip_headers(s: Bytes, p: Number, end: Number, count: Number) -> Number:
    """Position behind `count` headers, -1 where they do not fit."""
    for _ in range(count):
        size, p = varint(s, p, end)
        if p < 0 or size < 0 or size > end - p:
            return -1
        p += size
        size, p = varint(s, p, end)
        if p < 0 or size < -1 or size > end - p:
            return -1
        p += max(size, 0)
    return p


@kernel("const u1[:] i8[:,:] i8[:,:] i8[:] RECORD_COLUMNS i8 i8 -> i8")
def read_records(
    s: Bytes, rows: Int64s, segments: Int64s, state: Int64s, out: RecordColumns, first: Number, last: Number
) -> Number:
    """Records of magic-2 batches with offsets in first..last; DONE or FULL. Problems go into `rows` [., PROBLEMS]."""
    progress = progress_at(state, 0)
    n: Number = progress.rows
    i: Number = progress.segment
    capacity, reveal = out.batch.size, out.key_at.size > 0
    while i < segments.shape[0]:
        segment = stretch_at(segments, i)
        p: Number = segment.begin
        end, kind = segment.end, segment.state
        done: Number = segment.done
        batch = bl.batch_at(rows, segment.batch)
        attributes, base = batch.attributes, batch.base_offset
        least_delta = np.int64(0)
        most_delta = batch.last_offset - base
        base_time, max_time = batch.first_time, batch.max_time
        appended = (attributes & bl.LOG_APPEND_BIT) != 0
        control = (attributes & bl.CONTROL_BIT) != 0
        count = batch.records
        problems: Number = np.int64(0)
        segment.need = 0
        over = kind != OPEN
        while done < count:
            if n >= capacity:
                segment.begin, segment.done = p, done
                batch.problems |= problems
                progress.segment, progress.rows = i, n
                return FULL
            if p >= end:
                if kind == CLOSED:
                    problems |= bl.P_COUNT
                break
            length, q = varint(s, p, end)
            giant = kind == OPEN and q >= 0 and length > (MOST_SHOWN if reveal else GIANT) and length > end - q
            if q == -1 or (q >= 0 and length >= bl.LEAST_RECORD - 1 and length > end - q and not giant):
                if kind == OPEN:
                    segment.need = q - p + length if q >= 0 else end - p + 1
                elif kind == CLOSED:
                    problems |= bl.P_RECORD_LENGTH
                break
            if q == -2 or length < bl.LEAST_RECORD - 1:
                problems |= bl.P_RECORD_LENGTH
                over = True
                break
            this = p
            p = q + length  # the next record; of a giant beyond the bytes
            stop = min(p, end)
            done += 1
            if s[np.uint64(q)] != 0:
                problems |= bl.P_RECORD_BITS
            time, q = varint(s, q + 1, stop)
            if q < 0:
                problems |= bl.P_RECORD
                continue
            delta, q = varint(s, q, stop)
            if q < 0:
                problems |= bl.P_RECORD
                continue
            key, q = varint(s, q, stop)
            if q < 0 or key < -1 or key > p - q:
                problems |= bl.P_RECORD
                continue
            key_at = q
            q += max(key, 0)
            if giant and q > end - LONGEST_VARINT:
                segment.need = p - this
                p = this
                done -= 1
                break
            value, q = varint(s, q, stop)
            if q < 0 or value < -1 or value > p - q:
                problems |= bl.P_RECORD
                continue
            value_at = q
            q += max(value, 0)
            headers, headers_at = np.int64(0), q
            if not giant:
                headers, q = varint(s, q, stop)
                if q < 0 or headers < 0 or headers > (p - q) >> 1:
                    problems |= bl.P_RECORD
                    continue
                headers_at = q
                if headers > 0:
                    q = skip_headers(s, q, p, headers)
                if q != p:
                    problems |= bl.P_RECORD
                    if q < 0:
                        continue
            if delta < least_delta or delta > most_delta:
                problems |= bl.P_OFFSET
            offset = base + delta
            if offset < first or offset > last:
                continue
            out.batch[n] = segment.batch
            out.offset[n] = offset
            stamp = max_time if appended else base_time + time
            micros = _micros(stamp)
            if micros == bl.NULL and stamp != -1:
                problems |= bl.P_TIME
            out.time[n] = micros
            out.key_bytes[n] = key
            out.value_bytes[n] = value
            name = np.int64(-1)
            if control:
                if key >= 4:
                    name = int16_at(s, key_at + 2)
                if name < 0 or name >= KNOWN_CONTROLS:
                    problems |= bl.P_CONTROL
                    name = np.int64(-1)
            out.control[n] = name
            if reveal:
                out.key_at[n] = key_at
                out.value_at[n] = value_at
                out.headers_at[n] = headers_at
                out.headers[n] = headers
                if length > MOST_SHOWN:
                    out.key_at[n] = -1
                    out.value_at[n] = -1
                    out.headers[n] = -1
                    problems |= bl.P_GIANT
            n += 1
        if done >= count and p <= end:
            over = True
            if p < end:
                problems |= bl.P_TRAILING
        if over:
            segment.state = FINISHED
        segment.begin, segment.done = p, done
        batch.problems |= problems
        i += 1
    progress.segment, progress.rows = i, n
    return DONE


@kernel("const u1[:] i8[:,:] i8[:,:] i8[:] RECORD_COLUMNS i8 i8 -> i8")
def read_messages(
    s: Bytes, rows: Int64s, segments: Int64s, state: Int64s, out: RecordColumns, first: Number, last: Number
) -> Number:
    """Messages of magic 0 and 1: of runs, or of what a wrapper held (then `base` is added to their offsets)."""
    progress = progress_at(state, 0)
    n: Number = progress.rows
    i: Number = progress.segment
    capacity, reveal = out.batch.size, out.key_at.size > 0
    while i < segments.shape[0]:
        segment = stretch_at(segments, i)
        p: Number = segment.begin
        end, kind = segment.end, segment.state
        done: Number = segment.done
        batch = bl.batch_at(rows, segment.batch)
        magic = batch.magic
        inner = (batch.attributes & bl.CODEC_MASK) != bl.NONE
        appended = inner and magic == 1 and (batch.attributes & bl.LOG_APPEND_BIT) != 0
        problems: Number = np.int64(0)
        segment.need = 0
        over = kind != OPEN
        while p < end:
            if n >= capacity:
                segment.begin, segment.done = p, done
                batch.problems |= problems
                progress.segment, progress.rows = i, n
                return FULL
            size = int32_at(s, p + 8) if end - p >= bl.PREFIX else 0
            giant = kind == OPEN and size > (MOST_SHOWN if reveal else GIANT) and size > end - p - bl.PREFIX
            if end - p < bl.PREFIX or (size >= bl.LEAST_LENGTH and size > end - p - bl.PREFIX and not giant):
                if kind == OPEN:
                    segment.need = bl.PREFIX + size
                elif kind == CLOSED:
                    problems |= bl.P_RECORD_LENGTH
                break
            if size < bl.LEAST_LENGTH:
                problems |= bl.P_RECORD_LENGTH
                over = True
                break
            q = p
            p += bl.PREFIX + size  # the next message
            done += 1
            attributes = np.int64(s[q + 17])
            if np.int64(s[q + 16]) != magic:
                problems |= bl.P_INNER_MAGIC
                continue
            if inner and (attributes & bl.CODEC_MASK) != bl.NONE:
                problems |= bl.P_NESTED
                continue
            if magic == 1 and size < bl.LEAST_LENGTH_V1:
                problems |= bl.P_RECORD_LENGTH
                continue
            stamp: Number = np.int64(-1)
            key_at = q + 22
            if magic == 1:
                stamp = batch.max_time if appended else int64_at(s, q + 18)
                key_at = q + 30
            key = int32_at(s, key_at - 4)
            if key < -1 or key > p - key_at - 4:
                problems |= bl.P_RECORD
                continue
            value_at = key_at + max(key, 0) + 4
            if giant and value_at > end:
                segment.need = p - q
                p = q
                done -= 1
                break
            value = int32_at(s, value_at - 4)
            if value < -1 or value > p - value_at:
                problems |= bl.P_RECORD
                continue
            if value_at + max(value, 0) != p:
                problems |= bl.P_RECORD
            offset = int64_at(s, q) + segment.base
            if offset < first or offset > last:
                continue
            out.batch[n] = segment.batch
            out.offset[n] = offset
            micros = _micros(stamp)
            if micros == bl.NULL and stamp != -1:
                problems |= bl.P_TIME
            out.time[n] = micros
            out.key_bytes[n] = key
            out.value_bytes[n] = value
            out.control[n] = -1
            if reveal:
                out.key_at[n] = key_at
                out.value_at[n] = value_at
                out.headers_at[n] = p
                out.headers[n] = -1  # a format without headers
                if size > MOST_SHOWN:
                    out.key_at[n] = -1
                    out.value_at[n] = -1
                    problems |= bl.P_GIANT
            n += 1
        if over:
            segment.state = FINISHED
        segment.begin, segment.done = p, done
        batch.problems |= problems
        i += 1
    progress.segment, progress.rows = i, n
    return DONE


@kernel("const u1[:] i8 i8 i8[:] -> i8")
def span(s: Bytes, begin: Number, end: Number, inner: Int64s) -> Number:
    """Count the messages in s[begin:end] on into `inner`, a struct `Inner`.

    Looks at the first 26 bytes of each only. Returns where the next message begins, which may lie beyond `end`, or its
    first bytes before it. A length that nothing can have sets `broken`. Start with zeros.
    """
    p, found = begin, inner_at(inner, 0)
    while p <= end - bl.PREFIX - bl.LEAST_LENGTH:
        size = int32_at(s, p + 8)
        if size < bl.LEAST_LENGTH:
            found.broken = 1
            break
        offset = int64_at(s, p)
        time: Number = int64_at(s, p + 18) if s[p + 16] == 1 and size >= bl.LEAST_LENGTH_V1 else np.int64(-1)
        if found.count == 0:
            found.first, found.first_time, found.max_time = offset, time, time
        found.count += 1
        found.last = offset
        found.max_time = max(found.max_time, time)
        p += bl.PREFIX + size
    return p


@kernel("const u1[:] i8[:] i8[:] i4[:] u1[:]")
def gather(s: Bytes, at: Int64s, size: Int64s, offsets: npt.NDArray[np.int32], into: Bytes) -> None:
    """Copy s[at[i] : at[i] + size[i]] (size -1: nothing) one behind the other; `offsets` [n + 1] says where each
    begins."""
    o = np.int64(0)
    for i in range(at.shape[0]):
        offsets[i] = np.int32(o)
        if size[i] > 0 and at[i] >= 0 and size[i] <= s.shape[0] - at[i] and size[i] <= into.shape[0] - o:
            copy_bytes(into, o, s, at[i], size[i])
            o += size[i]
    offsets[at.shape[0]] = np.int32(o)


@kernel("const u1[:] i8[:] i8[:] i8[:,:] -> i8")
def header_places(s: Bytes, at: Int64s, count: Int64s, places: Int64s) -> Number:
    """Where keys and values of headers are: `places` [4, n] (key at, key size, value at, value size); returns how many.

    `at` and `count` are what `read_records` found, so they fit.
    """
    n = 0
    for i in range(at.shape[0]):
        p = at[i]
        for _ in range(count[i]):
            size, p = varint(s, p, s.shape[0])
            if p < 0 or n >= places.shape[1]:
                return n
            places[0, n] = p
            places[1, n] = size
            p += max(size, 0)
            size, p = varint(s, p, s.shape[0])
            if p < 0:
                return n
            places[2, n] = p
            places[3, n] = size
            p += max(size, 0)
            n += 1
    return n

"""Kernels over records: those of magic-2 batches, and the messages of magic 0 and 1.

A segment is a stretch of bytes that holds the records of one batch: of the capture itself where nothing is
compressed, else of a buffer that a codec fills. A segment may be open: more of its bytes are to come, the kernel
stops before the first record that is not whole and says how many bytes it needs. Rows go into a matrix `out`
[columns, capacity]; a kernel that finds it full returns FULL with everything it needs to go on in `segments` and
`state`.

Sources: DefaultRecord, LegacyRecord, AbstractLegacyRecordBatch (KIP-31, KIP-32, KIP-98).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from kdissect.kafka.recordsets import batch_layout as bl
from kdissect.kernels.kernel import kernel, part
from kdissect.kernels.memory import copy_bytes, int16_at, int32_at, int64_at

Bytes = npt.NDArray[np.uint8]
Int64s = npt.NDArray[np.int64]
Number = Any
"""An int64 of numba, whatever Python makes of it."""

S_BEGIN, S_END, S_BATCH, S_DONE, S_STATE, S_BASE, S_NEED = range(7)
SEGMENT_WIDTH = 7
"""Begin (moves on with what was read), end, row of the batch, records read so far, state, base of relative offsets
(legacy only), bytes that the first unread record needs (open segments)."""
CLOSED, OPEN, LOST, FINISHED = range(4)
"""S_STATE: all bytes are here; more will come; the rest will never come (stop silently); nothing more is to be read."""

O_BATCH, O_OFFSET, O_TIME, O_KEY_BYTES, O_VALUE_BYTES, O_CONTROL = range(6)
O_KEY_AT, O_VALUE_AT, O_HEADERS_AT, O_HEADERS = range(6, 10)
HIDDEN_WIDTH, REVEALED_WIDTH = 6, 10
"""Rows of `out`: batch row, offset, µs since the epoch or NULL, sizes (-1 null), control type (-1 none); where keys and
values are to be shown also where they are, and where the headers are and how many."""

GIANT = 1 << 20
"""A record of an open segment larger than this is not waited for where only its sizes are asked: the row is made from
its beginning, and `S_BEGIN` lies behind `S_END` by as much as is to be thrown away of what follows."""
MOST_SHOWN = 32 << 20
"""A record larger than this is not shown, only its sizes are: nobody reads it, and as text it takes several times the
room. Brokers take 1 MB unless they are told otherwise (message.max.bytes)."""
LONGEST_VARINT = 10
DONE, FULL = 0, 1
SEGMENT, ROWS = 0, 1
"""Places in `state`: the next segment, rows filled."""
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


@kernel("const u1[:] i8[:,:] i8[:,:] i8[:] i8[:,:] i8 i8 -> i8")
def read_records(
    s: Bytes, rows: Int64s, segments: Int64s, state: Int64s, out: Int64s, first: Number, last: Number
) -> Number:
    """Records of magic-2 batches with offsets in first..last; DONE or FULL. Problems go into `rows` [., PROBLEMS]."""
    n = state[ROWS]
    capacity = out.shape[1]
    reveal = out.shape[0] > HIDDEN_WIDTH
    i = state[SEGMENT]
    while i < segments.shape[0]:
        p = segments[i, S_BEGIN]
        end = segments[i, S_END]
        b = segments[i, S_BATCH]
        done = segments[i, S_DONE]
        kind = segments[i, S_STATE]
        attributes = rows[b, bl.ATTRIBUTES]
        base = rows[b, bl.BASE_OFFSET]
        least_delta = np.int64(0)
        most_delta = rows[b, bl.LAST_OFFSET] - base
        base_time = rows[b, bl.FIRST_TIME]
        max_time = rows[b, bl.MAX_TIME]
        appended = (attributes & bl.LOG_APPEND_BIT) != 0
        control = (attributes & bl.CONTROL_BIT) != 0
        count = rows[b, bl.RECORDS]
        problems = np.int64(0)
        segments[i, S_NEED] = 0
        over = kind != OPEN
        while done < count:
            if n >= capacity:
                segments[i, S_BEGIN] = p
                segments[i, S_DONE] = done
                rows[b, bl.PROBLEMS] |= problems
                state[SEGMENT] = i
                state[ROWS] = n
                return FULL
            if p >= end:
                if kind == CLOSED:
                    problems |= bl.P_COUNT
                break
            length, q = varint(s, p, end)
            giant = kind == OPEN and q >= 0 and length > (MOST_SHOWN if reveal else GIANT) and length > end - q
            if q == -1 or (q >= 0 and length >= bl.LEAST_RECORD - 1 and length > end - q and not giant):
                if kind == OPEN:
                    segments[i, S_NEED] = q - p + length if q >= 0 else end - p + 1
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
                segments[i, S_NEED] = p - this
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
            out[O_BATCH, n] = b
            out[O_OFFSET, n] = offset
            stamp = max_time if appended else base_time + time
            micros = _micros(stamp)
            if micros == bl.NULL and stamp != -1:
                problems |= bl.P_TIME
            out[O_TIME, n] = micros
            out[O_KEY_BYTES, n] = key
            out[O_VALUE_BYTES, n] = value
            name = np.int64(-1)
            if control:
                if key >= 4:
                    name = int16_at(s, key_at + 2)
                if name < 0 or name >= KNOWN_CONTROLS:
                    problems |= bl.P_CONTROL
                    name = np.int64(-1)
            out[O_CONTROL, n] = name
            if reveal:
                out[O_KEY_AT, n] = key_at
                out[O_VALUE_AT, n] = value_at
                out[O_HEADERS_AT, n] = headers_at
                out[O_HEADERS, n] = headers
                if length > MOST_SHOWN:
                    out[O_KEY_AT, n] = -1
                    out[O_VALUE_AT, n] = -1
                    out[O_HEADERS, n] = -1
                    problems |= bl.P_GIANT
            n += 1
        if done >= count and p <= end:
            over = True
            if p < end:
                problems |= bl.P_TRAILING
        if over:
            segments[i, S_STATE] = FINISHED
        segments[i, S_BEGIN] = p
        segments[i, S_DONE] = done
        rows[b, bl.PROBLEMS] |= problems
        i += 1
    state[SEGMENT] = i
    state[ROWS] = n
    return DONE


@kernel("const u1[:] i8[:,:] i8[:,:] i8[:] i8[:,:] i8 i8 -> i8")
def read_messages(
    s: Bytes, rows: Int64s, segments: Int64s, state: Int64s, out: Int64s, first: Number, last: Number
) -> Number:
    """Messages of magic 0 and 1: of runs, or of what a wrapper held (then S_BASE is added to their offsets)."""
    n = state[ROWS]
    capacity = out.shape[1]
    reveal = out.shape[0] > HIDDEN_WIDTH
    i = state[SEGMENT]
    while i < segments.shape[0]:
        p = segments[i, S_BEGIN]
        end = segments[i, S_END]
        b = segments[i, S_BATCH]
        done = segments[i, S_DONE]
        kind = segments[i, S_STATE]
        magic = rows[b, bl.MAGIC]
        inner = (rows[b, bl.ATTRIBUTES] & bl.CODEC_MASK) != bl.NONE
        appended = inner and magic == 1 and (rows[b, bl.ATTRIBUTES] & bl.LOG_APPEND_BIT) != 0
        problems = np.int64(0)
        segments[i, S_NEED] = 0
        over = kind != OPEN
        while p < end:
            if n >= capacity:
                segments[i, S_BEGIN] = p
                segments[i, S_DONE] = done
                rows[b, bl.PROBLEMS] |= problems
                state[SEGMENT] = i
                state[ROWS] = n
                return FULL
            size = int32_at(s, p + 8) if end - p >= bl.PREFIX else 0
            giant = kind == OPEN and size > (MOST_SHOWN if reveal else GIANT) and size > end - p - bl.PREFIX
            if end - p < bl.PREFIX or (size >= bl.LEAST_LENGTH and size > end - p - bl.PREFIX and not giant):
                if kind == OPEN:
                    segments[i, S_NEED] = bl.PREFIX + size
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
            stamp = np.int64(-1)
            key_at = q + 22
            if magic == 1:
                stamp = rows[b, bl.MAX_TIME] if appended else int64_at(s, q + 18)
                key_at = q + 30
            key = int32_at(s, key_at - 4)
            if key < -1 or key > p - key_at - 4:
                problems |= bl.P_RECORD
                continue
            value_at = key_at + max(key, 0) + 4
            if giant and value_at > end:
                segments[i, S_NEED] = p - q
                p = q
                done -= 1
                break
            value = int32_at(s, value_at - 4)
            if value < -1 or value > p - value_at:
                problems |= bl.P_RECORD
                continue
            if value_at + max(value, 0) != p:
                problems |= bl.P_RECORD
            offset = int64_at(s, q) + segments[i, S_BASE]
            if offset < first or offset > last:
                continue
            out[O_BATCH, n] = b
            out[O_OFFSET, n] = offset
            micros = _micros(stamp)
            if micros == bl.NULL and stamp != -1:
                problems |= bl.P_TIME
            out[O_TIME, n] = micros
            out[O_KEY_BYTES, n] = key
            out[O_VALUE_BYTES, n] = value
            out[O_CONTROL, n] = -1
            if reveal:
                out[O_KEY_AT, n] = key_at
                out[O_VALUE_AT, n] = value_at
                out[O_HEADERS_AT, n] = p
                out[O_HEADERS, n] = -1  # a format without headers
                if size > MOST_SHOWN:
                    out[O_KEY_AT, n] = -1
                    out[O_VALUE_AT, n] = -1
                    problems |= bl.P_GIANT
            n += 1
        if over:
            segments[i, S_STATE] = FINISHED
        segments[i, S_BEGIN] = p
        segments[i, S_DONE] = done
        rows[b, bl.PROBLEMS] |= problems
        i += 1
    state[SEGMENT] = i
    state[ROWS] = n
    return DONE


I_COUNT, I_FIRST, I_LAST, I_FIRST_TIME, I_MAX_TIME, I_BROKEN = range(6)
INNER_WIDTH = 6


@kernel("const u1[:] i8 i8 i8[:] -> i8")
def span(s: Bytes, begin: Number, end: Number, inner: Int64s) -> Number:
    """Count the messages in s[begin:end] on into `inner` (count, first and last offset, first and largest timestamp).

    Looks at the first 26 bytes of each only. Returns where the next message begins, which may lie beyond `end`, or its
    first bytes before it. A length that nothing can have sets `inner[I_BROKEN]`. Start with zeros.
    """
    p = begin
    while p <= end - bl.PREFIX - bl.LEAST_LENGTH:
        size = int32_at(s, p + 8)
        if size < bl.LEAST_LENGTH:
            inner[I_BROKEN] = 1
            break
        offset = int64_at(s, p)
        time = int64_at(s, p + 18) if s[p + 16] == 1 and size >= bl.LEAST_LENGTH_V1 else np.int64(-1)
        if inner[I_COUNT] == 0:
            inner[I_FIRST] = offset
            inner[I_FIRST_TIME] = time
            inner[I_MAX_TIME] = time
        inner[I_COUNT] += 1
        inner[I_LAST] = offset
        inner[I_MAX_TIME] = max(inner[I_MAX_TIME], time)
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

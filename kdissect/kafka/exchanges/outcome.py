"""Finished exchanges as columns: found in the order of their requests before their bodies are decoded, and how each of
them ended once the bodies were.

Rows of 37 words are read once: a pass over them costs more than the work, and a column at a time costs it again for
each column. All that comes after it goes over columns.
"""

import enum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kdissect.kafka.completed import NO_CODE, NULL_TIME, Status
from kdissect.kafka.exchanges.frame_bytes import (  # noqa: F401  (TARGET is named in a signature)
    TARGET,
    Target,
    behind_header,
    located,
    set_apart,
)
from kdissect.kafka.streams.state import EXCHANGE_WIDTH, TOKEN, X_BASE, Exchange, Frame, exchange_at, frame_of
from kdissect.kernels.kernel import kernel, part
from kdissect.kernels.memory import as_int16, fetch
from kdissect.kernels.signature import fields
from kdissect.kernels.structs import Bytes, Flags, Int, Words
from kdissect.schema.apikeys import ApiKey

Codes = npt.NDArray[np.int32]
Tiny = npt.NDArray[np.int8]
Shorts = npt.NDArray[np.int16]

LOGIN = 1
"""Mark of an exchange that may tell who logs in: SASL's messages."""
VERSIONS = 2
"""Mark of an ApiVersions exchange whose answer may have the layout of version 0."""
UNHEARD = 3
"""Mark of an exchange of an API that no layout is known of."""
AHEAD = 4
"""Rows between asking for memory and using it."""
NEVER = 0x7FFFFFFFFFFFFFFF
"""Behind every time."""
ROW_BITS, DIGIT_BITS = 20, 11
DIGITS = 1 << DIGIT_BITS
FAR = 1 << 42
"""Microseconds within which rows are put in order by the digits of their times: 50 days."""


class Long(enum.IntEnum):
    """Columns of `Completed` that are int64, in the order in which they are written; the others alike."""

    N = 0
    REQUEST_FIRST = 1
    REQUEST_LAST = 2
    RESPONSE_FIRST = 3
    RESPONSE_LAST = 4
    REQUEST_BYTES = 5
    RESPONSE_BYTES = 6
    REQUEST_PACKET = 7
    RESPONSE_PACKET = 8
    QUEUED_FROM = 9
    MISSING_REQUEST = 10
    MISSING_RESPONSE = 11
    NETWORK = 12
    REQUEST_RESENT = 13
    RESPONSE_RESENT = 14
    THINK = 15
    NETWORK_DOWN = 16
    UNSEEN_UNTIL = 17


class Word(enum.IntEnum):
    """The int32 columns."""

    CONN = 0
    CORRELATION_ID = 1
    CLIENT = 2
    IN_FLIGHT = 3
    THROTTLE_MS = 4
    ERROR_CODE = 5
    ERROR_FIRST = 6
    ERROR_COUNT = 7


class Short(enum.IntEnum):
    """The int16 columns."""

    API_KEY = 0
    API_VERSION = 1


class Flag(enum.IntEnum):
    """The columns of bytes: flags, the status, the network's kind, and flags that may be unknown."""

    STATUS = 0
    IS_ORPHAN = 1
    DECODED = 2
    API_INFERRED = 3
    NETWORK_KIND = 4
    ABANDONED = 5


class Work(NamedTuple):
    """Finished exchanges on their way to columns, in the order of their requests; what has two rows has one for the
    requests and one for the responses."""

    rows: Words
    """[n]: which of the harvest's exchanges they are."""
    need: Flags
    """[2, n]: which frames to look into."""
    program: Codes
    """[2, n]: the layout of each body, -1 none."""
    unknown: Flags
    """[2, n]: a version that is newer than any known layout."""
    begin: Words
    """[2, n]: where the bodies begin; of those whose header was not read yet, where the frame does."""
    end: Words
    """[2, n]: where the bodies end."""
    marks: Bytes
    """[n]: LOGIN, VERSIONS, UNHEARD, 0 none of them."""
    longs: Words
    """[Long, n]: columns of `Completed`; the next three alike."""
    ints: Codes
    """[Word, n]."""
    shorts: Shorts
    """[Short, n]."""
    flags: Tiny
    """[Flag, n]."""

    def part(self, first: int, upto: int) -> "Work":
        """Some of the exchanges: a copy, unless it is all of them."""
        if first == 0 and upto == len(self.rows):
            return self
        cut: Any = (np.ascontiguousarray(column[..., first:upto]) for column in self[1:])
        return Work(self.rows[first:upto], *cut)


class Layouts(NamedTuple):
    """The layouts that messages are decoded with."""

    table: Codes
    """[API key, version, side]: the program of each layout, -1 none."""
    newest: Words
    """[API key, side]: the newest version with a layout, -1 none."""
    scattered: Flags
    """By program, whether its bytes may stay in several pieces."""


WORK = fields(Work, "i8[:] b1[:,:] i4[:,:] b1[:,:] i8[:,:] i8[:,:] u1[:] i8[:,:] i4[:,:] i2[:,:] i1[:,:]")
LAYOUTS = fields(Layouts, "i4[:,:,:] i8[:,:] b1[:]")
"""What kernels that take them declare."""


@kernel("i8[:] i8 i8[:] i8[:] i8[:] -> i8 i8 i8")
def arrivals(M: Words, n: Int, times: Words, rows: Words, tokens: Words) -> tuple[Int, Int, Int]:
    """Finds which of the first n rows are exchanges (`rows`), with the first microsecond of each request, by which they
    are ordered (`times`: NEVER where there is none), and which are bare tokens that were sent (`tokens`), which are no
    exchanges. Returns how many there are of either, and how many other rows have frames in several pieces."""
    exchanges = np.int64(0)
    bare = np.int64(0)
    pieces = np.int64(0)
    for i in range(n):
        exchange = exchange_at(M, X_BASE + i * EXCHANGE_WIDTH)
        if exchange.status == TOKEN:
            if exchange.request.head >= 0 or exchange.response.head >= 0:
                pieces += 1
            if exchange.orphan != 1:
                tokens[bare] = i
                bare += 1
            continue
        first = exchange.request.first
        times[exchanges] = first // 1000 if first != 0 and first != NULL_TIME else NEVER
        rows[exchanges] = i
        exchanges += 1
    return exchanges, bare, pieces


@kernel("i8[:] i8[:] i8[:] i8[:] -> b1")
def by_time(times: Words, rows: Words, scratch: Words, counts: Words) -> bool:
    """Put `rows`, which ascend, in the order of their `times`, equal ones as they are. `times` and `scratch`, of the
    same size, are used up; `counts` has DIGITS. False, and nothing was done, where the times are too far apart."""
    n = times.size
    low, high = np.int64(NEVER), np.int64(-NEVER)
    for i in range(n):
        if times[i] != NEVER:
            low, high = min(low, times[i]), max(high, times[i])
    if high < low:
        return True
    never = high - low + 1
    if never <= 0 or never > FAR or rows[n - 1] >> ROW_BITS != 0:
        return False
    for i in range(n):
        since = times[i] - low if times[i] != NEVER else never
        times[i] = (since << ROW_BITS) | rows[i]
    shift = np.int64(ROW_BITS)
    while never > 0:
        for digit in range(DIGITS):
            counts[digit] = 0
        for i in range(n):
            counts[(times[i] >> shift) & (DIGITS - 1)] += 1
        place = np.int64(0)
        for digit in range(DIGITS):
            place += counts[digit]
            counts[digit] = place - counts[digit]
        for i in range(n):
            digit = (times[i] >> shift) & (DIGITS - 1)
            scratch[counts[digit]] = times[i]
            counts[digit] += 1
        times, scratch = scratch, times
        shift += DIGIT_BITS
        never >>= DIGIT_BITS
    for i in range(n):
        rows[i] = times[i] & ((1 << ROW_BITS) - 1)
    return True


@part
def _is_whole(frame: Frame) -> bool:
    """Whether there is such a frame, and all of it."""
    return frame.bytes >= 0 and frame.missing == 0 and frame.cut == 0


@part
def _time(time: Int) -> Int:
    """NULL_TIME where a packet carried no time (pcapng's simple packets): the reader leaves those at the epoch."""
    return time if time != 0 else NULL_TIME


@part
def _layout(table: Codes, newest: Words, key: Int, version: Int, side: Int) -> tuple[Int, bool]:
    """The program to read a whole message with, -1 none, and whether its version is newer than any known layout: then
    it is that of the newest."""
    if key < 0 or key >= table.shape[0]:
        return np.int64(-1), False
    found = np.int64(-1)
    if version >= 0 and version < table.shape[1]:
        found = np.int64(table[key, version, side])
    last = newest[key, side]
    if found < 0 and last >= 0 and version > last:
        return np.int64(table[key, last, side]), True
    return found, False


@part
def _mark(newest: Words, key: Int, version: Int) -> Int:
    """LOGIN, VERSIONS or UNHEARD, 0 none of them."""
    if key >= newest.shape[0] or (key >= 0 and newest[key, 0] < 0):
        return np.int64(UNHEARD)
    if key == ApiKey.SASL_HANDSHAKE or key == ApiKey.SASL_AUTHENTICATE:
        return np.int64(LOGIN)
    return np.int64(VERSIONS) if key == ApiKey.API_VERSIONS and version > 0 else np.int64(0)


@part
def _write(exchange: Exchange, base: Int, work: Work, j: Int) -> None:
    """Writes an exchange's own fields as columns."""
    request, response = exchange.request, exchange.response
    longs, ints, shorts, flags = work.longs, work.ints, work.shorts, work.flags
    longs[Long.N, j] = exchange.n
    longs[Long.REQUEST_FIRST, j] = _time(request.first)
    longs[Long.REQUEST_LAST, j] = _time(request.last)
    longs[Long.RESPONSE_FIRST, j] = _time(response.first)
    longs[Long.RESPONSE_LAST, j] = _time(response.last)
    longs[Long.REQUEST_BYTES, j] = request.bytes
    longs[Long.RESPONSE_BYTES, j] = response.bytes
    longs[Long.REQUEST_PACKET, j] = request.packet
    longs[Long.RESPONSE_PACKET, j] = response.packet
    longs[Long.QUEUED_FROM, j] = _time(exchange.queued_from)
    longs[Long.MISSING_REQUEST, j] = request.missing
    longs[Long.MISSING_RESPONSE, j] = response.missing
    longs[Long.NETWORK, j] = exchange.network
    longs[Long.REQUEST_RESENT, j] = exchange.request_resent
    longs[Long.RESPONSE_RESENT, j] = exchange.response_resent
    longs[Long.THINK, j] = exchange.think
    longs[Long.NETWORK_DOWN, j] = exchange.network_down
    longs[Long.UNSEEN_UNTIL, j] = exchange.unseen_until
    ints[Word.CONN, j] = exchange.connection + base
    ints[Word.CORRELATION_ID, j] = exchange.correlation
    ints[Word.CLIENT, j] = exchange.client
    ints[Word.IN_FLIGHT, j] = exchange.in_flight
    shorts[Short.API_KEY, j] = as_int16(exchange.api)
    shorts[Short.API_VERSION, j] = as_int16(exchange.version)
    flags[Flag.STATUS, j] = exchange.status
    flags[Flag.IS_ORPHAN, j] = exchange.orphan == 1
    flags[Flag.API_INFERRED, j] = exchange.orphan == 1 and exchange.api >= 0
    flags[Flag.NETWORK_KIND, j] = exchange.network_kind
    flags[Flag.ABANDONED, j] = exchange.abandoned


@kernel("i8[:] const u1[:] const u1[:] WORK i8 i8 TARGET i8 LAYOUTS i8[:,:] i8 i8[:,:] -> i8 i8 i8 i8 i8 i8")
def gather(
    M: Words, b: Bytes, A: Bytes, work: Work, first: Int, n: Int, target: Target, base: Int, layouts: Layouts,
    absent: Words, large: Int, apart: Words,
) -> tuple[Int, Int, Int, Int, Int, Int]:  # fmt: skip
    """Exchanges first..n-1 of `work` as columns, but for what their bodies tell, and their frames brought together, see
    `located`. `base` is added to the numbers of connections.

    Returns the exchange it stopped at for want of room, then five counts. Rows of `absent`; frames whose header was not
    read; orphans to look into; frames in several pieces, looked into or not; rows of `apart`. Those are the places of
    pieces of frames from `large` bytes on that may be scattered: they stay there, see `vm.count`.
    """
    rows, need, program, begin, end, marks = work.rows, work.need, work.program, work.begin, work.end, work.marks
    w = target.place
    missing = np.int64(0)
    pieces_apart = np.int64(0)
    unread = np.int64(0)
    orphans = np.int64(0)
    pieces = np.int64(0)
    for j in range(first, n):
        if j + AHEAD < n:
            for line in range(0, EXCHANGE_WIDTH, 8):
                fetch(M, X_BASE + rows[j + AHEAD] * EXCHANGE_WIDTH + line)
        exchange = exchange_at(M, X_BASE + rows[j] * EXCHANGE_WIDTH)
        key, version, orphan = exchange.api, exchange.version, exchange.orphan == 1
        mark, mark_apart = missing, pieces_apart
        marks[j] = _mark(layouts.newest, key, version)
        for side in range(2):
            found, newer = np.int64(-1), False
            frame = frame_of(exchange, side)
            whole = _is_whole(frame)
            if frame.head >= 0:
                pieces += 1
            if whole:
                found, newer = _layout(layouts.table, layouts.newest, key, version, side)
            need[side, j] = found >= 0 or (side == 1 and orphan and whole)
            program[side, j] = found
            work.unknown[side, j] = newer
            begin[side, j] = 0
            end[side, j] = 0
        for side in range(2):
            if need[side, j]:
                frame = frame_of(exchange, side)
                found = np.int64(program[side, j])
                if frame.head >= 0 and frame.at < 0 and frame.bytes >= large and frame.body >= 0 and not (
                    target.together or found < 0 or marks[j] != 0 or orphan
                ) and layouts.scattered[found]:  # fmt: skip
                    o, w, missing, pieces_apart = set_apart(
                        M, b, A, frame, target, w, absent, missing, apart, pieces_apart
                    )
                else:
                    o, w, missing = located(M, b, A, frame, target, w, absent, missing)
                if o < 0:
                    return j, mark, unread, orphans, pieces, mark_apart
                end[side, j] = o + frame.bytes - 4
                begin[side, j] = o + max(frame.body, np.int64(0))
                if frame.body < 0:
                    unread += 1
                if side == 1 and orphan:
                    orphans += 1
        _write(exchange, base, work, j)
    return n, missing, unread, orphans, pieces, pieces_apart


@kernel("i8[:] i8[:] b1[:,:] const u1[:] i8[:,:] i8[:,:] i4[:,:]")
def headers(M: Words, rows: Words, need: Flags, s: Bytes, begin: Words, end: Words, program: Codes) -> None:
    """Move `begin` behind headers that were not read yet; -1 where one cannot be read, and no program then."""
    for j in range(rows.size):
        exchange = exchange_at(M, X_BASE + rows[j] * EXCHANGE_WIDTH)
        for side in range(2):
            if need[side, j] and frame_of(exchange, side).body < 0:
                start, stop = begin[side, j], end[side, j]
                begin[side, j] = behind_header(M, s, side, start, stop, exchange.api, exchange.version)
                if begin[side, j] < 0:
                    program[side, j] = -1


@kernel("i4[:,:] b1[:,:] u1[:] i1[:] b1[:] i4[:] i8[:] i8[:,:] i4[:,:] i1[:,:] b1[:] -> i8")
def outcomes(
    program: Codes, unknown: Flags, marks: Bytes, status: Tiny, ambiguous: Flags, seen: Codes, leftover: Words,
    longs: Words, ints: Codes, flags: Tiny, odd: Flags,
) -> Int:  # fmt: skip
    """Fills the columns that `gather` left out, from the bodies of exchanges, and their final status.

    `status`, `ambiguous` and `seen` (see `vm.count`) are what the decoder says of the requests, then of the responses.
    `leftover` is how many bytes of each request are left over (0 and less: none). `odd` marks the
    rows that `problems` has something to say of; returns how many these are.
    """
    m = program.shape[1]
    strange = np.int64(0)
    for j in range(m):
        fit0 = program[0, j] >= 0 and status[j] == 0
        fit1 = program[1, j] >= 0 and status[m + j] == 0
        misfit = (program[0, j] >= 0 and not fit0 and not unknown[0, j]) or (
            program[1, j] >= 0 and not fit1 and not unknown[1, j]
        )
        ended = np.int64(flags[Flag.STATUS, j])
        count = np.int64(-1)
        throttle = np.int64(-1)
        code = np.int64(NO_CODE)
        first = np.int64(0)
        if fit1:
            told = 4 * (m + j)
            code = np.int64(seen[told])
            first = np.int64(seen[told + 1])
            count = np.int64(seen[told + 2])
            throttle = np.int64(seen[told + 3])
        if ended == Status.OK:
            if misfit:
                ended = np.int64(Status.UNDECODABLE)
            elif count > 0:
                ended = np.int64(Status.ERROR)
        ints[Word.THROTTLE_MS, j] = throttle
        ints[Word.ERROR_CODE, j] = code
        ints[Word.ERROR_FIRST, j] = first
        ints[Word.ERROR_COUNT, j] = count
        flags[Flag.STATUS, j] = ended
        no_request, no_response = longs[Long.REQUEST_BYTES, j] < 0, longs[Long.RESPONSE_BYTES, j] < 0
        flags[Flag.DECODED, j] = (fit0 or no_request) and (fit1 or no_response) and (fit0 or fit1)
        unheard = marks[j] == UNHEARD
        odd[j] = misfit or unheard or unknown[0, j] or unknown[1, j] or ambiguous[j] or ambiguous[m + j]
        odd[j] = odd[j] or leftover[j] > 0
        if odd[j]:
            strange += 1
    return strange

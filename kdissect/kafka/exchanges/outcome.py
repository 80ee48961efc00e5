"""What became of each finished exchange: which layouts to read it with, and how it ended once they were tried.

One pass over the rows before the bodies are decoded and one after, each writing whole columns: rows of 37 words read a
column at a time cost several times as much.
"""

from __future__ import annotations

import enum

import numpy as np
import numpy.typing as npt

from kdissect.kafka.exchanges.completed import NO_CODE, NULL_TIME, Status
from kdissect.kafka.streams.state import EXCHANGE_WIDTH, TOKEN, Frame, exchange_at, frame_of
from kdissect.kernels.kernel import kernel, part
from kdissect.kernels.memory import fetch
from kdissect.kernels.structs import Bytes, Flags, Int, Words
from kdissect.schema.apikeys import ApiKey

Codes = npt.NDArray[np.int32]
Tiny = npt.NDArray[np.int8]

LOGIN = 1
"""Mark of a row that may tell who logs in: SASL's messages and bare tokens."""
VERSIONS = 2
"""Mark of an ApiVersions exchange whose answer may have the layout of version 0."""
BARE = 4
"""Mark of a bare token, which is no exchange."""
AHEAD = 4
"""Rows between asking for memory and using it."""


class Long(enum.IntEnum):
    """Columns of `Completed` that are int64, in the order in which `outcomes` writes them; the others alike."""

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


class Word(enum.IntEnum):
    """Those that are int32."""

    CONN = 0
    CORRELATION_ID = 1
    CLIENT = 2
    IN_FLIGHT = 3
    THROTTLE_MS = 4
    ERROR_CODE = 5
    ERROR_FIRST = 6
    ERROR_COUNT = 7


class Short(enum.IntEnum):
    """Those that are int16."""

    API_KEY = 0
    API_VERSION = 1


class Flag(enum.IntEnum):
    """Those that are bytes: flags, but for the status, the network's kind, and what may be unknown."""

    STATUS = 0
    IS_ORPHAN = 1
    DECODED = 2
    API_INFERRED = 3
    NETWORK_KIND = 4
    ABANDONED = 5


@kernel("i8[:,:] i4[:,:,:] i8[:,:] b1[:,:] i8[:,:] b1[:,:] u1[:] i8[:]")
def plan(
    rows: Words, table: Codes, newest: Words, need: Flags, program: Words, unknown: Flags, marks: Bytes, times: Words
) -> None:
    """Which frames to look into (`need`), with which programs, and which of them have a version that is not known.

    `need`, `program` and `unknown` have a column a side. `times` gets the request's first microsecond, by which rows
    are ordered; the largest int64 where there is none.
    """
    for i in range(rows.shape[0]):
        exchange = exchange_at(rows, i)
        key = exchange.api
        version = exchange.version
        token = exchange.status == TOKEN
        orphan = exchange.orphan == 1
        mark = np.uint8(0)
        for side in range(2):
            whole = _whole(frame_of(exchange, side))
            found = np.int64(-1)
            newer = False
            if key >= 0 and key < table.shape[0] and not token and whole:
                if version >= 0 and version < table.shape[1]:
                    found = np.int64(table[key, version, side])
                last = newest[key, side]
                if found < 0 and last >= 0 and version > last:
                    newer = True
                    found = np.int64(table[key, last, side])
            program[i, side] = found
            unknown[i, side] = newer
            need[i, side] = found >= 0 or (side == 1 and orphan and not token and whole)
        if token:
            mark |= np.uint8(BARE)
            if not orphan:
                mark |= np.uint8(LOGIN)
        elif key == ApiKey.SASL_HANDSHAKE or key == ApiKey.SASL_AUTHENTICATE:
            mark |= np.uint8(LOGIN)
        elif key == ApiKey.API_VERSIONS and version > 0:
            mark |= np.uint8(VERSIONS)
        marks[i] = mark
        first = exchange.request.first
        times[i] = first // 1000 if first != 0 and first != NULL_TIME else np.int64(0x7FFFFFFFFFFFFFFF)


@part
def _whole(frame: Frame) -> bool:
    """Whether there is such a frame, and all of it."""
    return frame.bytes >= 0 and frame.missing == 0 and frame.cut == 0


@part
def _time(time: Int) -> Int:
    """NULL_TIME where a packet carried no time (pcapng's simple packets): the reader leaves those at the epoch."""
    return time if time != 0 else NULL_TIME


@kernel("i8[:] i8[:,:] i8[:,:] i8[:,:] i8[:] i8[:] i4[:]")
def arrange(
    order: Words, begin: Words, end: Words, program: Words, begins: Words, ends: Words, programs: Codes
) -> None:
    """Bodies as the decoder takes them: those of the requests in `order`, then those of the responses."""
    m = order.size
    for side in range(2):
        for j in range(m):
            i = order[j]
            begins[side * m + j] = begin[i, side]
            ends[side * m + j] = end[i, side]
            programs[side * m + j] = program[i, side]


@kernel("i8[:,:] i8[:] i8 i8[:,:] i8[:,:] b1[:,:] i1[:] b1[:] i4[:] i8[:,:] i4[:,:] i2[:,:] i1[:,:] b1[:]")
def outcomes(
    rows: Words, order: Words, base: Int, newest: Words, program: Words, unknown: Flags, status: Tiny, ambiguous: Flags,
    seen: Codes, longs: Words, ints: Codes, shorts: npt.NDArray[np.int16], flags: Tiny, odd: Flags,
) -> None:  # fmt: skip
    """The columns of `Completed` (`Long`, `Word`, `Short`, `Flag`), for the exchanges of `rows` that `order` lists.

    `status`, `ambiguous` and `seen` (see `vm.count`) are what the decoder says of the requests in `order`, then of the
    responses. `odd` marks the rows that `problems` has something to say of.
    """
    m = order.size
    for j in range(m):
        if j + AHEAD < m:
            for line in range(0, EXCHANGE_WIDTH, 8):
                fetch(rows, order[j + AHEAD] * EXCHANGE_WIDTH + line)
        i = order[j]
        exchange = exchange_at(rows, i)
        request, response = exchange.request, exchange.response
        key = exchange.api
        fit0 = program[i, 0] >= 0 and status[j] == 0
        fit1 = program[i, 1] >= 0 and status[m + j] == 0
        misfit = (program[i, 0] >= 0 and not fit0 and not unknown[i, 0]) or (
            program[i, 1] >= 0 and not fit1 and not unknown[i, 1]
        )
        ended = exchange.status
        if ended == Status.OK and misfit:
            ended = Status.UNDECODABLE
        code, first, count, throttle = (
            seen[4 * (m + j)],
            seen[4 * (m + j) + 1],
            seen[4 * (m + j) + 2],
            seen[4 * (m + j) + 3],
        )
        if ended == Status.OK and fit1 and count > 0:
            ended = Status.ERROR
        orphan = exchange.orphan == 1
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
        ints[Word.CONN, j] = exchange.connection + base
        ints[Word.CORRELATION_ID, j] = exchange.correlation
        ints[Word.CLIENT, j] = exchange.client
        ints[Word.IN_FLIGHT, j] = exchange.in_flight
        ints[Word.THROTTLE_MS, j] = throttle if fit1 else -1
        ints[Word.ERROR_CODE, j] = code if fit1 else NO_CODE
        ints[Word.ERROR_FIRST, j] = first if fit1 else 0
        ints[Word.ERROR_COUNT, j] = count if fit1 else -1
        shorts[Short.API_KEY, j] = key
        shorts[Short.API_VERSION, j] = exchange.version
        flags[Flag.STATUS, j] = ended
        flags[Flag.IS_ORPHAN, j] = orphan
        flags[Flag.DECODED, j] = (fit0 or request.bytes < 0) and (fit1 or response.bytes < 0) and (fit0 or fit1)
        flags[Flag.API_INFERRED, j] = orphan and key >= 0
        flags[Flag.NETWORK_KIND, j] = exchange.network_kind
        flags[Flag.ABANDONED, j] = exchange.abandoned
        unheard = key >= newest.shape[0] or (key >= 0 and newest[key, 0] < 0)
        odd[j] = misfit or unheard or unknown[i, 0] or unknown[i, 1] or ambiguous[j] or ambiguous[m + j]

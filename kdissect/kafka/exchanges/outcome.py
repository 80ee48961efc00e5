"""What became of each finished exchange: which layouts to read it with, and how it ended once they were tried.

One pass over the rows before the bodies are decoded and one after, each writing whole columns: rows of 31 words read a
column at a time cost several times as much.
"""

from __future__ import annotations

import numpy as np

from kdissect.kafka.exchanges.completed import ERROR, NO_CODE, NULL_TIME, OK, UNDECODABLE
from kdissect.kafka.streams.pairing import API_VERSIONS, SASL_HANDSHAKE
from kdissect.kafka.streams.state import (
    TOKEN,
    X_API,
    X_CLIENT,
    X_CONNECTION,
    X_CORRELATION,
    X_F_BYTES,
    X_F_CUT,
    X_F_LAST,
    X_F_MISSING,
    X_F_PACKET,
    X_IN_FLIGHT,
    X_N,
    X_ORPHAN,
    X_QUEUED_FROM,
    X_REQUEST,
    X_RESPONSE,
    X_STATUS,
    X_VERSION,
)
from kdissect.kernels.kernel import kernel, part

SASL_AUTHENTICATE = 36

LOGIN = 1
"""Mark of a row that may tell who logs in: SASL's messages and bare tokens."""
VERSIONS = 2
"""Mark of an ApiVersions exchange whose answer may have the layout of version 0."""
BARE = 4
"""Mark of a bare token, which is no exchange."""

LONGS = (
    "n", "request_first", "request_last", "response_first", "response_last", "request_bytes", "response_bytes",
    "request_packet", "response_packet", "queued_from", "missing_request", "missing_response",
)  # fmt: skip
"""Columns of `Completed` that are int64, in the order in which `outcomes` writes them; the others alike."""
INTS = ("conn", "correlation_id", "client", "in_flight", "throttle_ms", "error_code", "error_first", "error_count")
SHORTS = ("api_key", "api_version")
BYTES = ("status", "is_orphan", "decoded", "api_inferred")


@kernel("i8[:,:] i4[:,:,:] i8[:,:] b1[:,:] i8[:,:] b1[:,:] u1[:] i8[:]")
def plan(rows, table, newest, need, program, unknown, marks, times):  # type: ignore[no-untyped-def]
    """Which frames to look into (`need`), with which programs, and which of them have a version that is not known.

    `need`, `program` and `unknown` have a column a side. `times` gets the request's first microsecond, by which rows
    are ordered; the largest int64 where there is none.
    """
    for i in range(rows.shape[0]):
        key = rows[i, X_API]
        version = rows[i, X_VERSION]
        token = rows[i, X_STATUS] == TOKEN
        orphan = rows[i, X_ORPHAN] == 1
        mark = np.uint8(0)
        for side in range(2):
            f = X_REQUEST if side == 0 else X_RESPONSE
            whole = rows[i, f + X_F_BYTES] >= 0 and rows[i, f + X_F_MISSING] == 0 and rows[i, f + X_F_CUT] == 0
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
        elif key in (SASL_HANDSHAKE, SASL_AUTHENTICATE):
            mark |= np.uint8(LOGIN)
        elif key == API_VERSIONS and version > 0:
            mark |= np.uint8(VERSIONS)
        marks[i] = mark
        first = rows[i, X_REQUEST]
        times[i] = first // 1000 if first != 0 and first != NULL_TIME else np.int64(0x7FFFFFFFFFFFFFFF)


@part
def _time(time):  # type: ignore[no-untyped-def]
    """NULL_TIME where a packet carried no time (pcapng's simple packets): the reader leaves those at the epoch."""
    return time if time != 0 else np.int64(NULL_TIME)


@kernel(
    "i8[:,:] i8[:] i8 i8[:,:] i8[:,:] b1[:,:] i1[:] b1[:] i4[:] i4[:] i4[:] i4[:] i8[:,:] i4[:,:] i2[:,:] i1[:,:] b1[:]"
)
def outcomes(  # type: ignore[no-untyped-def]
    rows, order, base, newest, program, unknown, status, ambiguous, codes, firsts, counts, throttles, longs, ints,
    shorts, flags, odd,
):  # fmt: skip
    """The columns of `Completed`, for the rows in `order`.

    `status`, `ambiguous`, `codes`, `firsts`, `counts` (of error codes) and `throttles` are what the decoder says of the
    requests in `order`, then of the responses. `odd` marks the rows that `problems` has something to say of.
    """
    m = order.size
    for j in range(m):
        i = order[j]
        key = rows[i, X_API]
        fit0 = program[i, 0] >= 0 and status[j] == 0
        fit1 = program[i, 1] >= 0 and status[m + j] == 0
        misfit = (program[i, 0] >= 0 and not fit0 and not unknown[i, 0]) or (
            program[i, 1] >= 0 and not fit1 and not unknown[i, 1]
        )
        ended = rows[i, X_STATUS]
        if ended == OK and misfit:
            ended = np.int64(UNDECODABLE)
        if ended == OK and fit1 and counts[m + j] > 0:
            ended = np.int64(ERROR)
        longs[0, j] = rows[i, X_N]
        for side in range(2):
            f = X_REQUEST if side == 0 else X_RESPONSE
            longs[1 + 2 * side, j] = _time(rows[i, f])
            longs[2 + 2 * side, j] = _time(rows[i, f + X_F_LAST])
            longs[5 + side, j] = rows[i, f + X_F_BYTES]
            longs[7 + side, j] = rows[i, f + X_F_PACKET]
            longs[10 + side, j] = rows[i, f + X_F_MISSING]
        longs[9, j] = _time(rows[i, X_QUEUED_FROM])
        ints[0, j] = rows[i, X_CONNECTION] + base
        ints[1, j] = rows[i, X_CORRELATION]
        ints[2, j] = rows[i, X_CLIENT]
        ints[3, j] = rows[i, X_IN_FLIGHT]
        ints[4, j] = throttles[m + j] if fit1 else -1
        ints[5, j] = codes[m + j] if fit1 else NO_CODE
        ints[6, j] = firsts[m + j] if fit1 else 0
        ints[7, j] = counts[m + j] if fit1 else -1
        shorts[0, j] = key
        shorts[1, j] = rows[i, X_VERSION]
        orphan = rows[i, X_ORPHAN] == 1
        flags[0, j] = ended
        flags[1, j] = orphan
        flags[2, j] = (
            (fit0 or rows[i, X_REQUEST + X_F_BYTES] < 0)
            and (fit1 or rows[i, X_RESPONSE + X_F_BYTES] < 0)
            and (fit0 or fit1)
        )
        flags[3, j] = orphan and key >= 0
        unheard = key >= newest.shape[0] or (key >= 0 and newest[key, 0] < 0)
        odd[j] = misfit or unheard or unknown[i, 0] or unknown[i, 1] or ambiguous[j] or ambiguous[m + j]

"""The kernels that make rows of Fetch for the analysis alone: a pass over each list that was decoded.

Lists of a message are where they begin: those of element i are [begin[i], begin[i + 1]).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kdissect.arrays.arrow import Scalar
from kdissect.arrays.codes import NULL
from kdissect.kafka.completed import NO_CODE
from kdissect.kernels.kernel import kernel, part
from kdissect.kernels.signature import fields
from kdissect.tables.fetch_rows import micros

Int64s = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
Int16s = npt.NDArray[np.int16]
Int8s = npt.NDArray[np.int8]
Flags = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]
Reals = npt.NDArray[np.float64]

# Rows of the matrices made here, in the order of the columns of `coded_rows`.
(
    HIGH, N, TIME, BROKER, USED, ANSWERED, QUEUED, SPENT, VERSION, SESSION, EPOCH, GIVEN_SESSION, REPLICA, RAFT, WAIT,
    LEAST, ISOLATION, SENT, RETURNED, FAILED, RECORDS, THROTTLE, ERROR, CLIENT, BYTES, UNSEEN,
) = range(26)  # fmt: skip
FETCH_WIDTH = 26
(
    P_HIGH, P_N, P_TIME, P_TOPIC, P_TOPIC_ID, P_PARTITION, P_ASKED, P_GIVEN, P_GONE, P_OFFSET, P_ERROR, P_HIGHEST,
    P_STABLE, P_START, P_RECORDS, P_PREFERRED, P_DIVERGING,
) = range(17)  # fmt: skip
PARTITION_WIDTH = 17
# Fields of a request, of a partition that it names, and of one that is given.
ASK_SESSION, ASK_EPOCH, ASK_WAIT, ASK_LEAST, ASK_ISOLATION, ASK_REPLICA, ASK_STATE = range(7)
ASKED_PARTITION, ASKED_OFFSET = range(2)
G_PARTITION, G_ERROR, G_HIGHEST, G_STABLE, G_START, G_RECORDS, G_PREFERRED, G_DIVERGING = range(8)


class ExchangeColumns(NamedTuple):
    """What a block's exchanges tell of their fetches, a row each. Instants in ns since the epoch, NULL_TIME unknown."""

    high: Int64s
    """The connection's id as int64."""
    n: Int64s
    """Ordinal of the request in its connection; of an orphan -1 - ordinal among those."""
    first: Int64s
    """Instant of the request's first byte."""
    last: Int64s
    """Instant of the request's last byte."""
    answer: Int64s
    """Instant of the response's first byte."""
    queued: Int64s
    """ns that it waited behind the requests before it."""
    spent: Int64s
    """ns that the broker took."""
    split: Flags
    """Whether `queued` and `spent` are known."""
    version: Int16s
    """Version of the API, -1 unknown."""
    throttle: Int32s
    """ThrottleTimeMs of the response in ms, -1 null."""
    error: Int32s
    """Top-level error code of the response; NO_CODE none, 0 no error."""
    errors: Int32s
    """Error codes of the response that are not 0; -1: it was not read."""
    broker: Int32s
    """Code of the broker."""
    client: Int32s
    """Code of the client id, -1 null."""
    size: Int64s
    """Bytes of the request with its length prefix, -1 null."""
    unseen: Int64s
    """Instant up to which requests before it may not have been captured; NULL_TIME: all were."""


class RequestLists(NamedTuple):
    """Requests to fetch as they were decoded."""

    body: Int64s
    """By exchange, which of them is its request; -1 none."""
    head: Int64s
    """[ASK_SESSION to ASK_STATE, requests], NULL where null."""
    topic_begin: Int64s
    """Where each one's topics begin."""
    begin: Int64s
    """Where each topic's partitions begin."""
    metadata: Flags
    """Whether a topic is KRaft's log."""


class ResponseLists(NamedTuple):
    """Responses to fetches as they were decoded."""

    body: Int64s
    """By exchange, which of them is its response; -1 none."""
    session: Int64s
    """SessionId of each, NULL where null."""
    topic_begin: Int64s
    """Where each one's topics begin."""
    begin: Int64s
    """Where each topic's partitions begin."""
    parts: Int64s
    """[G_PARTITION to G_DIVERGING, partitions], NULL where null."""


class NamedPartitions(NamedTuple):
    """The partitions that requests ask for and forget, and that responses give."""

    requested_topic: Int64s
    """Code of each one's topic; the next two alike."""
    forgotten_topic: Int64s
    returned_topic: Int64s
    requested: Int64s
    """[ASKED_PARTITION and ASKED_OFFSET, partitions], NULL where null."""
    forgotten: Int64s
    """Numbers of the partitions."""
    returned: Int64s
    """[G_PARTITION to G_DIVERGING, partitions], NULL where null."""


EXCHANGES = fields(
    ExchangeColumns,
    "const i8[:] const i8[:] const i8[:] const i8[:] const i8[:] const i8[:] const i8[:] const b1[:] const i2[:] "
    "const i4[:] const i4[:] const i4[:] const i4[:] const i4[:] const i8[:] const i8[:]",
)
REQUESTS = fields(RequestLists, "const i8[:] const i8[:,:] const i8[:] const i8[:] const b1[:]")
RESPONSES = fields(ResponseLists, "const i8[:] const i8[:] const i8[:] const i8[:] const i8[:,:]")
PARTITIONS = fields(NamedPartitions, "const i8[:] const i8[:] const i8[:] const i8[:,:] const i8[:] const i8[:,:]")
"""What kernels that take them declare."""


@part
def _hash(text: Bytes, begin: Scalar, end: Scalar, value: Scalar) -> Scalar:
    for at in range(begin, end):
        value = (value ^ np.int64(text[at])) * np.int64(1099511628211)
    return value


@part
def _equal(text: Bytes, begin_a: Scalar, begin_b: Scalar, size: Scalar) -> Scalar:
    same = 0
    while same < size and text[begin_a + same] == text[begin_b + same]:
        same += 1
    return same >= size


@kernel("const i4[:] const u1[:] const b1[:] const i4[:] const u1[:] const b1[:] i8[:] i8[:] i8[:] i8 -> i8")
def distinct_topics(
    name_begin: Int32s, names: Bytes, has_name: Flags, id_begin: Int32s, ids: Bytes, has_id: Flags, table: Int64s,
    firsts: Int64s, codes: Int64s, seed: Scalar,
) -> Scalar:  # fmt: skip
    """Of each topic its place among the different ones, whose first elements go to `firsts`; how many there are.

    Names and ids as Arrow has texts; without any of either, one offset or none. `has_name`, `has_id`: where they are
    not null; empty where none is. `table`: -1 throughout, at least twice as long as there are topics, a power of two.
    `seed`: what nobody can foresee who chooses names.
    """
    mask = table.size - 1
    count = np.int64(0)
    for i in range(codes.size):
        a, b, c, d = np.int64(0), np.int64(-1), np.int64(0), np.int64(-1)
        if name_begin.size > 1 and (has_name.size == 0 or has_name[i]):
            a, b = np.int64(name_begin[i]), np.int64(name_begin[i + 1])
        if id_begin.size > 1 and (has_id.size == 0 or has_id[i]):
            c, d = np.int64(id_begin[i]), np.int64(id_begin[i + 1])
        at = _hash(ids, c, d, _hash(names, a, b, seed))
        at = (at ^ (at >> 29)) & mask
        code: Scalar = np.int64(-1)
        while table[at] >= 0 and code < 0:
            j = firsts[table[at]]
            e, f, g, h = np.int64(0), np.int64(-1), np.int64(0), np.int64(-1)
            if name_begin.size > 1 and (has_name.size == 0 or has_name[j]):
                e, f = np.int64(name_begin[j]), np.int64(name_begin[j + 1])
            if id_begin.size > 1 and (has_id.size == 0 or has_id[j]):
                g, h = np.int64(id_begin[j]), np.int64(id_begin[j + 1])
            if f - e == b - a and h - g == d - c and _equal(names, a, e, b - a) and _equal(ids, c, g, d - c):
                code = table[at]
            else:
                at = (at + 1) & mask
        if code < 0:
            code = count
            table[at] = code
            firsts[code] = i
            count += 1
        codes[i] = code
    return count


@kernel("const i8[:] const i8[:] const i8[:] const i8[:] i8[:] i8[:]")
def spread(
    rows: Int64s, topic_begin: Int64s, begin: Int64s, topics: Int64s, row: Int64s, topic: Int64s
) -> None:  # fmt: skip
    """Of each partition its exchange's row and its topic; `rows` are those of the bodies."""
    for body in range(rows.size):
        for t in range(topic_begin[body], topic_begin[body + 1]):
            for at in range(begin[t], begin[t + 1]):
                row[at], topic[at] = rows[body], topics[t]


@part
def head_of(i: Scalar, row: Scalar, e: ExchangeColumns, out: Int64s, real: Reals) -> None:
    """HIGH to SPENT."""
    out[HIGH, i], out[N, i], out[TIME, i] = e.high[row], e.n[row], micros(e.first[row])
    out[BROKER, i], out[USED, i], out[ANSWERED, i] = e.broker[row], micros(e.last[row]), micros(e.answer[row])
    real[QUEUED, i] = e.queued[row] / 1e6 if e.split[row] else np.nan
    real[SPENT, i] = e.spent[row] / 1e6 if e.split[row] else np.nan


@kernel("const i8[:] EXCHANGES REQUESTS RESPONSES i8[:,:] f8[:,:]")
def fill_fetches(
    rows: Int64s, e: ExchangeColumns, requests: RequestLists, responses: ResponseLists, out: Int64s, real: Reals
) -> None:
    """Rows of fetches into `out`, whose memory is `real`'s too. `rows`: the exchanges."""
    for i in range(rows.size):
        row = rows[i]
        head_of(i, row, e, out, real)
        real[THROTTLE, i] = np.float64(e.throttle[row]) if e.throttle[row] >= 0 else np.nan
        out[VERSION, i] = NULL if e.version[row] == -1 else np.int64(e.version[row])
        out[CLIENT, i], out[BYTES, i] = e.client[row], NULL if e.size[row] == -1 else e.size[row]
        out[UNSEEN, i] = micros(e.unseen[row])
        code = np.int64(NULL)
        if e.errors[row] >= 0:
            code = np.int64(0) if e.error[row] == NO_CODE else np.int64(e.error[row])
        out[ERROR, i] = code
        body = requests.body[row]
        if body < 0:
            for column in (SESSION, EPOCH, REPLICA, RAFT, WAIT, LEAST, ISOLATION, SENT):
                out[column, i] = NULL
        else:
            head, topic_begin = requests.head, requests.topic_begin
            out[SESSION, i], out[EPOCH, i] = head[ASK_SESSION, body], head[ASK_EPOCH, body]
            out[WAIT, i], out[LEAST, i], out[ISOLATION, i] = (
                head[ASK_WAIT, body], head[ASK_LEAST, body], head[ASK_ISOLATION, body],
            )  # fmt: skip
            follower = head[ASK_REPLICA, body]
            if follower == NULL:
                follower = head[ASK_STATE, body]
            out[REPLICA, i] = np.int64(-1) if follower == NULL else follower
            out[RAFT, i] = 0
            for t in range(topic_begin[body], topic_begin[body + 1]):
                if requests.metadata[t]:
                    out[RAFT, i] = 1
            out[SENT, i] = requests.begin[topic_begin[body + 1]] - requests.begin[topic_begin[body]]
        body = responses.body[row]
        if body < 0:
            for column in (GIVEN_SESSION, RETURNED, FAILED, RECORDS):
                out[column, i] = NULL
        else:
            out[GIVEN_SESSION, i] = responses.session[body]
            begun, ended = (
                responses.begin[responses.topic_begin[body]],
                responses.begin[responses.topic_begin[body + 1]],
            )
            failed, records = np.int64(0), np.int64(0)
            for at in range(begun, ended):
                if responses.parts[G_ERROR, at] != 0 and responses.parts[G_ERROR, at] != NULL:
                    failed += 1
                records += max(responses.parts[G_RECORDS, at], 0)
            out[RETURNED, i], out[FAILED, i], out[RECORDS, i] = ended - begun, failed, records


@kernel("const i8[:,:] i8 const i8[:] const i8[:] const i8[:] const i4[:] PARTITIONS i8[:,:]")
def fill_partitions(
    pairs: Int64s, count: Scalar, high: Int64s, n: Int64s, first: Int64s, error: Int32s, partitions: NamedPartitions,
    out: Int64s,
) -> None:  # fmt: skip
    """Rows of partitions into `out`: `count` that were put together as `pairs` says (`partition_pairs.pair`). A row
    that was not read has index -1. `high` to `error` as in `ExchangeColumns`."""
    requested, returned = partitions.requested, partitions.returned
    for i in range(count):
        row, a, g, v = pairs[0, i], pairs[1, i], pairs[2, i], pairs[3, i]
        out[P_HIGH, i], out[P_N, i], out[P_TIME, i] = high[row], n[row], micros(first[row])
        out[P_ASKED, i], out[P_GONE, i], out[P_GIVEN, i] = a >= 0, g >= 0, v >= 0
        if a >= 0:
            out[P_TOPIC, i], out[P_PARTITION, i] = partitions.requested_topic[a], requested[ASKED_PARTITION, a]
        elif v >= 0:
            out[P_TOPIC, i], out[P_PARTITION, i] = partitions.returned_topic[v], returned[G_PARTITION, v]
        else:
            out[P_TOPIC, i], out[P_PARTITION, i] = partitions.forgotten_topic[g], partitions.forgotten[g]
        out[P_TOPIC_ID, i] = out[P_TOPIC, i]
        out[P_OFFSET, i] = requested[ASKED_OFFSET, a] if a >= 0 else NULL
        code = np.int64(NULL)
        if v >= 0:
            code = returned[G_ERROR, v]
            out[P_HIGHEST, i], out[P_STABLE, i], out[P_START, i] = (
                returned[G_HIGHEST, v], returned[G_STABLE, v], returned[G_START, v],
            )  # fmt: skip
            out[P_RECORDS, i] = max(returned[G_RECORDS, v], 0)
            out[P_PREFERRED, i], out[P_DIVERGING, i] = returned[G_PREFERRED, v], returned[G_DIVERGING, v]
        else:
            for column in (P_HIGHEST, P_STABLE, P_START, P_RECORDS, P_PREFERRED, P_DIVERGING):
                out[column, i] = NULL
        if error[row] != NO_CODE and error[row] != 0:
            code = np.int64(error[row])
        out[P_ERROR, i] = code

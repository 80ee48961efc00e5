"""The kernels that make rows of Fetch for the analysis alone: a pass over each list that was decoded.

Lists of a message are where they begin: those of element i are [begin[i], begin[i + 1]).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kdissect.arrays.arrow import Scalar
from kdissect.arrays.rows import NULL
from kdissect.kafka.completed import NO_CODE
from kdissect.kernels.kernel import kernel, part
from kdissect.kernels.signature import fields
from kdissect.tables.fetch_rows import micros
from kdissect.tables.partition_pairs import PAIRS, Pairs  # noqa: F401  (PAIRS is named in a signature)

Int64s = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
Int16s = npt.NDArray[np.int16]
Int8s = npt.NDArray[np.int8]
Flags = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]
Reals = npt.NDArray[np.float64]


class FetchColumns(NamedTuple):
    """Fetches, a row each, NULL where null; in the order of `coded_rows.FETCH_COLUMNS`, which says what they are."""

    high: Int64s
    n: Int64s
    time: Int64s
    broker: Int64s
    used: Int64s
    answered: Int64s
    queued: Reals
    spent: Reals
    version: Int64s
    session: Int64s
    epoch: Int64s
    given_session: Int64s
    replica: Int64s
    raft: Int64s
    wait: Int64s
    least: Int64s
    isolation: Int64s
    sent: Int64s
    returned: Int64s
    failed: Int64s
    records: Int64s
    throttle: Reals
    error: Int64s
    client: Int64s
    bytes: Int64s
    unseen: Int64s


class PartitionColumns(NamedTuple):
    """Partitions of fetches, likewise, in the order of `coded_rows.PARTITION_COLUMNS`."""

    high: Int64s
    n: Int64s
    time: Int64s
    topic: Int64s
    topic_id: Int64s
    partition: Int64s
    asked: Int64s
    given: Int64s
    gone: Int64s
    offset: Int64s
    error: Int64s
    highest: Int64s
    stable: Int64s
    start: Int64s
    records: Int64s
    preferred: Int64s
    diverging: Int64s


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
    session: Int64s
    """SessionId of each, NULL where null, as the next six."""
    epoch: Int64s
    """SessionEpoch."""
    wait: Int64s
    """MaxWaitMs."""
    least: Int64s
    """MinBytes."""
    isolation: Int64s
    """IsolationLevel."""
    replica: Int64s
    """ReplicaId, up to version 14."""
    follower: Int64s
    """ReplicaId of ReplicaState, from then on."""
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
    error: Int64s
    """ErrorCode of each partition, NULL where null."""
    records: Int64s
    """Bytes of its records, likewise."""


class NamedPartitions(NamedTuple):
    """The partitions that requests ask for and forget, and that responses give; numbers are NULL where null."""

    requested_topic: Int64s
    """Code of each one's topic; the next two alike."""
    forgotten_topic: Int64s
    returned_topic: Int64s
    requested: Int64s
    """Number of each partition; the next two alike."""
    forgotten: Int64s
    returned: Int64s
    offset: Int64s
    """FetchOffset of those that are asked for."""
    error: Int64s
    """ErrorCode of those that are given; so are all that follow."""
    highest: Int64s
    """HighWatermark."""
    stable: Int64s
    """LastStableOffset."""
    start: Int64s
    """LogStartOffset."""
    records: Int64s
    """Bytes of the records."""
    preferred: Int64s
    """PreferredReadReplica."""
    diverging: Int64s
    """Epoch of DivergingEpoch."""


EXCHANGES = fields(
    ExchangeColumns,
    "const i8[:] const i8[:] const i8[:] const i8[:] const i8[:] const i8[:] const i8[:] const b1[:] const i2[:] "
    "const i4[:] const i4[:] const i4[:] const i4[:] const i4[:] const i8[:] const i8[:]",
)
REQUESTS = fields(RequestLists, "const i8[:] " * 10 + "const b1[:]")
RESPONSES = fields(ResponseLists, "const i8[:] " * 6)
PARTITIONS = fields(NamedPartitions, "const i8[:] " * 14)
FETCHES = fields(FetchColumns, "i8[:] " * 6 + "f8[:] " * 2 + "i8[:] " * 13 + "f8[:] " + "i8[:] " * 4)
ROWS_OF_PARTITIONS = fields(PartitionColumns, "i8[:] " * 17)
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


@kernel("const i8[:] EXCHANGES REQUESTS RESPONSES FETCHES")
def fill_fetches(
    rows: Int64s, e: ExchangeColumns, requests: RequestLists, responses: ResponseLists, out: FetchColumns
) -> None:
    """Rows of fetches into `out`. `rows`: the exchanges."""
    for i in range(rows.size):
        row = rows[i]
        out.high[i], out.n[i], out.time[i] = e.high[row], e.n[row], micros(e.first[row])
        out.broker[i], out.used[i], out.answered[i] = e.broker[row], micros(e.last[row]), micros(e.answer[row])
        out.queued[i] = e.queued[row] / 1e6 if e.split[row] else np.nan
        out.spent[i] = e.spent[row] / 1e6 if e.split[row] else np.nan
        out.throttle[i] = np.float64(e.throttle[row]) if e.throttle[row] >= 0 else np.nan
        out.version[i] = NULL if e.version[row] == -1 else np.int64(e.version[row])
        out.client[i], out.bytes[i] = e.client[row], NULL if e.size[row] == -1 else e.size[row]
        out.unseen[i] = micros(e.unseen[row])
        code = np.int64(NULL)
        if e.errors[row] >= 0:
            code = np.int64(0) if e.error[row] == NO_CODE else np.int64(e.error[row])
        out.error[i] = code
        _fill_request(i, requests.body[row], requests, out)
        _fill_response(i, responses.body[row], responses, out)


@part
def _fill_request(i: Scalar, body: Scalar, requests: RequestLists, out: FetchColumns) -> None:
    """Write what a request tells of a fetch; `body` -1: nothing."""
    if body < 0:
        out.session[i], out.epoch[i], out.wait[i], out.least[i], out.isolation[i] = NULL, NULL, NULL, NULL, NULL
        out.replica[i], out.raft[i], out.sent[i] = NULL, NULL, NULL
        return
    topic_begin = requests.topic_begin
    out.session[i], out.epoch[i] = requests.session[body], requests.epoch[body]
    out.wait[i], out.least[i], out.isolation[i] = requests.wait[body], requests.least[body], requests.isolation[body]
    follower = requests.replica[body]
    if follower == NULL:
        follower = requests.follower[body]
    out.replica[i] = np.int64(-1) if follower == NULL else follower
    out.raft[i] = 0
    for t in range(topic_begin[body], topic_begin[body + 1]):
        if requests.metadata[t]:
            out.raft[i] = 1
    out.sent[i] = requests.begin[topic_begin[body + 1]] - requests.begin[topic_begin[body]]


@part
def _fill_response(i: Scalar, body: Scalar, responses: ResponseLists, out: FetchColumns) -> None:
    """Write what a response tells of a fetch; `body` -1: nothing."""
    if body < 0:
        out.given_session[i], out.returned[i], out.failed[i], out.records[i] = NULL, NULL, NULL, NULL
        return
    out.given_session[i] = responses.session[body]
    begun = responses.begin[responses.topic_begin[body]]
    ended = responses.begin[responses.topic_begin[body + 1]]
    failed, records = np.int64(0), np.int64(0)
    for at in range(begun, ended):
        if responses.error[at] != 0 and responses.error[at] != NULL:
            failed += 1
        records += max(responses.records[at], 0)
    out.returned[i], out.failed[i], out.records[i] = ended - begun, failed, records


@kernel("PAIRS const i8[:] const i8[:] const i8[:] const i4[:] PARTITIONS ROWS_OF_PARTITIONS")
def fill_partitions(
    pairs: Pairs, high: Int64s, n: Int64s, first: Int64s, error: Int32s, partitions: NamedPartitions,
    out: PartitionColumns,
) -> None:  # fmt: skip
    """Rows of partitions into `out`, as `pairs` says. `high` to `error` as in `ExchangeColumns`."""
    for i in range(pairs.row.size):
        row, a, g, v = pairs.row[i], pairs.asked[i], pairs.gone[i], pairs.given[i]
        out.high[i], out.n[i], out.time[i] = high[row], n[row], micros(first[row])
        out.asked[i], out.gone[i], out.given[i] = a >= 0, g >= 0, v >= 0
        if a >= 0:
            out.topic[i], out.partition[i] = partitions.requested_topic[a], partitions.requested[a]
        elif v >= 0:
            out.topic[i], out.partition[i] = partitions.returned_topic[v], partitions.returned[v]
        else:
            out.topic[i], out.partition[i] = partitions.forgotten_topic[g], partitions.forgotten[g]
        out.topic_id[i] = out.topic[i]
        out.offset[i] = partitions.offset[a] if a >= 0 else NULL
        code = np.int64(NULL)
        if v >= 0:
            code = partitions.error[v]
            out.highest[i], out.stable[i], out.start[i] = (
                partitions.highest[v],
                partitions.stable[v],
                partitions.start[v],
            )
            out.records[i] = max(partitions.records[v], 0)
            out.preferred[i], out.diverging[i] = partitions.preferred[v], partitions.diverging[v]
        else:
            out.highest[i], out.stable[i], out.start[i], out.records[i] = NULL, NULL, NULL, NULL
            out.preferred[i], out.diverging[i] = NULL, NULL
        if error[row] != NO_CODE and error[row] != 0:
            code = np.int64(error[row])
        out.error[i] = code

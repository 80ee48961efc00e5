"""What tells why fetches were answered when they were, as two matrices of integers: a row a fetch, a row a partition
that its answer lists.

Fetches of which nothing depends on another one (no session, no follower) go this way straight from the messages to
`kdissect.analysis.holds`: most of a capture's, often.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kdissect.arrays.arrow import MILLI, Coder, Scalar
from kdissect.arrays.codes import NULL
from kdissect.kafka.exchanges.completed import NO_CODE, NULL_TIME
from kdissect.kernels.kernel import kernel, part
from kdissect.tables.identity import SEPARATOR

Int64s = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
Int16s = npt.NDArray[np.int16]
Flags = npt.NDArray[np.bool_]
Reals = npt.NDArray[np.float64]

# Columns of a fetch; SPENT (milliseconds at the broker) and THROTTLE as the bits of numbers, instants in microseconds.
(
    CONNECTION, ORDINAL, TIME, BROKER, USED, ANSWERED, TURN, SPENT, WAIT, LEAST, RECORDS, ERROR, THROTTLE, MARKS,
) = range(14)  # fmt: skip
WIDTH = 14
RAFT, NOTHING, FAILED, COMMITTED = 1, 2, 4, 8
"""Bits of MARKS: KRaft's own fetch; nothing to wait for; a partition with an error; of what is committed alone."""
# Columns of a partition of its answer; -1: not told.
P_TOPIC, P_PARTITION, P_OFFSET, P_HIGH, P_STABLE, P_RECORDS, P_GIVEN = range(7)
P_WIDTH = 7
# A fetch whose bodies were read aside: the exchange, max_wait_ms, min_bytes, partitions asked for, bytes of records,
# MARKS as far as bodies tell them, whether the layout knows sessions.
S_ROW, S_WAIT, S_LEAST, S_SENT, S_RECORDS, S_MARKS, S_SESSION = range(7)
S_WIDTH = 7
MOST_COMPARED = 64
"""Partitions of an exchange of which each is compared with each."""
FIRST_SESSION_VERSION = 7


@dataclass(slots=True, eq=False)
class HoldRows:
    """Fetches and the partitions that their answers list: those of fetch i are partitions[firsts[i]:firsts[i + 1]].
    Brokers and topics are codes of texts, of topics (name, id)."""

    fetches: Int64s
    """[n, WIDTH]"""
    firsts: Int64s
    partitions: Int64s
    """[m, P_WIDTH]"""
    brokers: Sequence[str | None]
    topics: Sequence[tuple[str | None, str | None]]
    broker_codes: Int64s | None = None
    topic_codes: Int64s | None = None
    """Of rows that are `resolved`: what stands for each code in the rows, codes of `brokers` both, and -1 behind."""

    @property
    def num_rows(self) -> int:
        """Rows of both."""
        return len(self.fetches) + len(self.partitions)

    def resolved(self, brokers: Mapping[str, str], topics: Mapping[str, str], lasting: Coder) -> HoldRows:
        """The same with the names of `brokers` and `topics` by what they stand for, as codes of `lasting`: brokers by
        name, topics by name where it is known, else by id."""
        names = [text and brokers.get(text, text.rpartition(SEPARATOR)[2]) for text in self.brokers]
        called = [topics.get(known or "", known) if name is None else name for name, known in self.topics]
        codes = (codes_among(texts, lasting) for texts in (names, called))
        return HoldRows(self.fetches, self.firsts, self.partitions, lasting.texts, (), *codes)

    def codes_of(self, brokers: Coder, topics: Coder) -> tuple[Int64s, Int64s]:
        """What is to stand in place of the codes of brokers and topics of `resolved` rows: the codes that their texts
        have there."""
        return brokers.taken_over(self.brokers)[self.broker_codes], topics.taken_over(self.brokers)[self.topic_codes]


def codes_among(texts: Sequence[str | None], lasting: Coder) -> Int64s:
    """The codes of some texts, and -1 behind them."""
    return np.array([*(-1 if text is None else lasting.code(text) for text in texts), -1], np.int64)


@part
def micros(ns: Scalar) -> Scalar:
    """Nanoseconds since the epoch as microseconds, rounded down."""
    return NULL if ns == NULL_TIME else ns // 1000


@part
def micros_of(ms: Scalar) -> Scalar:
    """Milliseconds as whole microseconds, 0 for NaN."""
    return np.int64(0) if np.isnan(ms) else np.int64(ms * MILLI)


@part
def turn_of(used: Scalar, answered: Scalar, queued: Scalar, spent: Scalar) -> Scalar:
    """See `fetch_holds.turns`."""
    turn = used + micros_of(queued)
    if answered != NULL_TIME and not np.isnan(spent):
        turn = max(turn, answered - micros_of(spent))
    return turn


@kernel("const i8[:] const i8[:] const i8[:] const i2[:] const i8[:,:] const i8[:] const i8[:] i8 -> i8")
def alone(
    rows: Int64s, asked: Int64s, used: Int64s, version: Int16s, head: Int64s, topic_begin: Int64s, begin: Int64s,
    gone: Scalar,
) -> Scalar:  # fmt: skip
    """Whether none of these fetches is of a session, or a follower's, or names very many partitions. `head`: session
    id, session epoch and two fields that name a follower."""
    if gone > 0:
        return 0
    for i in range(rows.size):
        body = asked[rows[i]]
        if body < 0:
            continue
        follower = head[2, body]
        if follower == NULL:
            follower = head[3, body]
        if follower != NULL and follower >= 0:
            return 0
        if begin[topic_begin[body + 1]] - begin[topic_begin[body]] > MOST_COMPARED:
            return 0
        old = 0 <= version[rows[i]] < FIRST_SESSION_VERSION and used[rows[i]] != NULL_TIME
        known = head[0, body] != NULL and head[1, body] != NULL
        if not old and known and not (head[0, body] == 0 and head[1, body] == -1):
            return 0
    return 1


@part
def head_of(
    i: Scalar, row: Scalar, high: Int64s, n: Int64s, first: Int64s, last: Int64s, answer: Int64s, queued: Int64s,
    spent: Int64s, split: Flags, throttle: Int32s, error: Int32s, errors: Int32s, broker: Int32s, out: Int64s,
    real: Reals,
) -> Scalar:  # fmt: skip
    """What of fetch i an exchange tells without its messages; the error of its answer as a whole."""
    used, answered = micros(last[row]), micros(answer[row])
    waited: Scalar = np.nan
    took: Scalar = np.nan
    if split[row]:
        waited, took = queued[row] / 1e6, spent[row] / 1e6
    out[i, CONNECTION], out[i, ORDINAL], out[i, BROKER] = high[row], n[row], broker[row]
    out[i, TIME] = micros(first[row])
    out[i, USED], out[i, ANSWERED], out[i, TURN] = used, answered, turn_of(used, answered, waited, took)
    real[i, SPENT] = took
    real[i, THROTTLE] = np.float64(throttle[row]) if throttle[row] >= 0 else np.nan
    top = np.int64(0) if error[row] == NO_CODE else np.int64(error[row])
    out[i, ERROR] = top if errors[row] >= 0 else np.int64(NULL)
    return top


@kernel(
    "const i8[:] const i8[:] const i8[:] const i8[:] const i8[:] const i8[:] const i8[:] const i8[:] const i8[:] "
    "const i8[:] const b1[:] const i2[:] const i4[:] const i4[:] const i4[:] const i4[:] const i8[:,:] const i8[:] "
    "const i8[:] const i8[:] const b1[:] const i8[:,:] const i8[:] const i8[:] const i8[:] const i8[:,:] b1[:] "
    "i8[:,:] f8[:,:] i8[:] i8[:,:]"
)
def fill_holds(
    rows: Int64s, asked: Int64s, given: Int64s, high: Int64s, n: Int64s, first: Int64s, last: Int64s, answer: Int64s,
    queued: Int64s, spent: Int64s, split: Flags, version: Int16s, throttle: Int32s, error: Int32s, errors: Int32s,
    broker: Int32s, head: Int64s, topic_begin: Int64s, begin: Int64s, topics: Int64s, metadata: Flags, wanted: Int64s,
    given_topic_begin: Int64s, given_begin: Int64s, given_topics: Int64s, parts: Int64s, taken: Flags, out: Int64s,
    real: Reals, firsts: Int64s, out_parts: Int64s,
) -> None:  # fmt: skip
    """Rows of fetches that stand `alone`, whose memory is `real`'s too, and of the partitions of their answers.

    `rows`: the exchanges, of which all columns up to `broker` are; `asked`, `given`: their bodies, -1 for none. `head`:
    session id and epoch, two more, max_wait_ms, min_bytes, isolation level; `wanted`: number and offset of partitions
    asked for; `parts`: number, error, high watermark, last stable offset, size of records, preferred replica and
    diverging epoch of partitions given. `taken`: False throughout, for each partition asked for.
    """
    at = np.int64(0)
    firsts[0] = 0
    for i in range(rows.size):
        row = rows[i]
        top = head_of(
            i, row, high, n, first, last, answer, queued, spent, split, throttle, error, errors, broker, out, real
        )
        wait, least, sent, isolation, marks = np.int64(-1), np.int64(1), np.int64(-1), np.int64(0), np.int64(0)
        begun, ended = np.int64(0), np.int64(0)
        implied = np.int64(-1)
        body = asked[row]
        if 0 <= version[row] < FIRST_SESSION_VERSION and last[row] != NULL_TIME:
            implied = np.int64(0)
        if body >= 0:
            wait = head[4, body] if head[4, body] != NULL else np.int64(-1)
            least = head[5, body] if head[5, body] != NULL else np.int64(1)
            isolation = head[6, body]
            begun, ended = begin[topic_begin[body]], begin[topic_begin[body + 1]]
            sent = ended - begun
            if head[0, body] != NULL and head[1, body] != NULL:
                implied = np.int64(0)
            for t in range(topic_begin[body], topic_begin[body + 1]):
                if metadata[t]:
                    marks |= RAFT
        if isolation == 1:
            marks |= COMMITTED
        if wait == 0 or (least == 0 and not marks & RAFT) or (sent == 0 and implied == 0):
            marks |= NOTHING
        records: Scalar = np.int64(0)
        body = given[row]
        if body >= 0:
            for t in range(given_topic_begin[body], given_topic_begin[body + 1]):
                topic = given_topics[t]
                for v in range(given_begin[t], given_begin[t + 1]):
                    offset: Scalar = np.int64(NULL)
                    a, u = begun, np.int64(0)
                    if begun < ended:
                        u = topic_begin[asked[row]]
                    while a < ended:
                        while a >= begin[u + 1]:
                            u += 1
                        if wanted[0, a] == parts[0, v] and topics[u] == topic and not taken[a]:
                            taken[a] = True
                            offset = wanted[1, a]
                            break
                        a += 1
                    own = parts[1, v]
                    if own != 0 and own != NULL:
                        marks |= FAILED
                    if parts[5, v] >= 0 or parts[6, v] >= 0:
                        marks |= NOTHING
                    good = top == 0 and (own == 0 or own == NULL)
                    size: Scalar = max(parts[4, v], np.int64(0))
                    records += size
                    out_parts[at, P_TOPIC], out_parts[at, P_PARTITION] = topic, parts[0, v]
                    out_parts[at, P_OFFSET] = max(offset, -1)
                    out_parts[at, P_HIGH] = parts[2, v] if good and parts[2, v] != NULL else np.int64(-1)
                    out_parts[at, P_STABLE] = parts[3, v] if good and parts[3, v] != NULL else np.int64(-1)
                    out_parts[at, P_RECORDS], out_parts[at, P_GIVEN] = size, 1
                    at += 1
        out[i, WAIT], out[i, LEAST], out[i, RECORDS], out[i, MARKS] = wait, least, records, marks
        firsts[i + 1] = at


@kernel(
    "const i8[:,:] const i8[:] const i8[:] const i8[:] const i8[:] const i8[:] const i8[:] const i8[:] const i8[:] "
    "const b1[:] const i4[:] const i4[:] const i4[:] const i4[:] i8[:,:] f8[:,:] i8[:,:]"
)
def fill_read(
    said: Int64s, firsts: Int64s, high: Int64s, n: Int64s, first: Int64s, last: Int64s, answer: Int64s, queued: Int64s,
    spent: Int64s, split: Flags, throttle: Int32s, error: Int32s, errors: Int32s, broker: Int32s, out: Int64s,
    real: Reals, partitions: Int64s,
) -> None:  # fmt: skip
    """The same of fetches whose bodies were read aside (`kdissect.tables.fetch_bodies`), whose `partitions` are filled
    in already: only what answers that failed as a whole tell of them goes."""
    for i in range(len(said)):
        row = said[i, S_ROW]
        top = head_of(
            i, row, high, n, first, last, answer, queued, spent, split, throttle, error, errors, broker, out, real
        )
        if top != 0:
            for q in range(firsts[i], firsts[i + 1]):
                partitions[q, P_HIGH] = partitions[q, P_STABLE] = -1
        wait, least, marks = said[i, S_WAIT], said[i, S_LEAST], said[i, S_MARKS]
        implied = said[i, S_SESSION] > 0 or last[row] != NULL_TIME
        if wait == 0 or (least == 0 and not marks & RAFT) or (said[i, S_SENT] == 0 and implied):
            marks |= NOTHING
        out[i, WAIT], out[i, LEAST], out[i, RECORDS], out[i, MARKS] = wait, least, said[i, S_RECORDS], marks


@kernel("const i8[:,:] const i8[:] const i8[:,:] const i8[:] const i8[:] const i8[:] i8[:,:] i8[:] i8[:,:] i8")
def put(
    fetches: Int64s, firsts: Int64s, partitions: Int64s, order: Int64s, brokers: Int64s, topics: Int64s, out: Int64s,
    out_firsts: Int64s, out_parts: Int64s, at: Scalar,
) -> None:  # fmt: skip
    """Rows in this order (empty: their own) behind the first `at` of `out`, with codes by what stands at them in
    `brokers` and `topics` (empty: the same); -1 stays."""
    q = out_firsts[at]
    for j in range(len(fetches)):
        i = order[j] if order.size else np.int64(j)
        for column in range(WIDTH):
            out[at, column] = fetches[i, column]
        if brokers.size and out[at, BROKER] >= 0:
            out[at, BROKER] = brokers[out[at, BROKER]]
        for p in range(firsts[i], firsts[i + 1]):
            for column in range(P_WIDTH):
                out_parts[q, column] = partitions[p, column]
            if topics.size and out_parts[q, P_TOPIC] >= 0:
                out_parts[q, P_TOPIC] = topics[out_parts[q, P_TOPIC]]
            q += 1
        at += 1
        out_firsts[at] = q

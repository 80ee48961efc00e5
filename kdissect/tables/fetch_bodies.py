"""Bodies of Fetch, and of requests to produce, read in one pass as far as `hold` asks: no columns in between.

A `BodyReader` stands beside the decoder where only the analysis reads fetches, and sums of topics. It takes the
exchanges of which nothing depends on another one (no session, no follower), which are plain (no tags, few partitions
asked for) and whose two bodies were found to fit their layouts; the decoder writes out the others. Where fields lie
follows from the schema: a row of numbers for each version (`fetch_plans`).

Where record sets are asked for it takes only answers whose record sets need no further look, and says which partitions
no answer names: then these rows tell what topics carry, too.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kdissect.arrays.arrow import Scalar
from kdissect.arrays.codes import NULL
from kdissect.arrays.lending import Lender
from kdissect.kafka.exchanges.bodies import READ_ASIDE, Type
from kdissect.kafka.recordsets.batch_kernels import sound
from kdissect.kernels import memory
from kdissect.kernels.kernel import kernel, part
from kdissect.kernels.memory import fetch, fingerprint, int16_at, int32_at, int64_at, same_bytes
from kdissect.schema import opcodes as k
from kdissect.schema.library import Library
from kdissect.schema.model import SCALARS
from kdissect.schema.vm import more
from kdissect.tables import fetch_plans as f
from kdissect.tables import hold_rows as h
from kdissect.tables.fetch_plans import plans
from kdissect.tables.fetches import FETCH, METADATA_TOPIC
from kdissect.tables.produces import PRODUCE

Int64s = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
Int8s = npt.NDArray[np.int8]
Bytes = npt.NDArray[np.uint8]

READS: Mapping[Type, frozenset[str]] = {
    (FETCH, 0): frozenset({
        "forgotten_topics_data.partitions", "forgotten_topics_data.topic", "forgotten_topics_data.topic_id",
        "isolation_level", "max_wait_ms", "min_bytes", "replica_id", "replica_state.replica_id", "session_epoch",
        "session_id", "topics.partitions.fetch_offset", "topics.partitions.partition", "topics.topic",
        "topics.topic_id",
    }),
    (FETCH, 1): frozenset({
        "node_endpoints.host", "node_endpoints.node_id", "node_endpoints.port",
        "responses.partitions.current_leader.leader_epoch", "responses.partitions.current_leader.leader_id",
        "responses.partitions.diverging_epoch.epoch", "responses.partitions.error_code",
        "responses.partitions.high_watermark", "responses.partitions.last_stable_offset",
        "responses.partitions.log_start_offset", "responses.partitions.partition_index",
        "responses.partitions.preferred_read_replica", "responses.partitions.records", "responses.topic",
        "responses.topic_id", "session_id", "responses.partitions.records@",
    }),
}  # fmt: skip
"""The paths that may be wanted of messages that are read here: what is not taken over is not there in those taken."""
ACKS = frozenset({"acks"})
PLACES = "responses.partitions.records@"
"""The path by which record sets are asked for."""

MOST_TOPICS = 1 << 12
"""Different topics of a block that are read here."""
MOST_PROBES = 32
AHEAD = 8
"""Exchanges between asking for memory and using it."""
_METADATA = np.frombuffer(METADATA_TOPIC.encode(), np.uint8).copy()
ID_SIZE = SCALARS["uuid"]


@dataclass(slots=True, eq=False)
class Bodies:
    """What was read of a block's messages."""

    said: Int64s
    """[n, h.S_WIDTH]: fetches, in the order of exchanges."""
    firsts: Int64s
    """[n + 1]"""
    partitions: Int64s
    """[m, P_WIDTH] of `hold_rows`: those that the answer of fetch i lists are [firsts[i], firsts[i + 1]). Offsets that
    a broker told are there whatever the answer's own error is."""
    topics: list[tuple[str | None, str | None]]
    """(name, id), of which P_TOPIC are codes."""
    unanswered: Int64s
    """[k, 3]: the exchange, topic and number of partitions that were asked for and that the answer does not name, where
    record sets are asked for."""
    acks: Int64s | None
    """[exchanges]: of requests to produce, NULL where they were not read; None: none was."""


class BodyReader:
    """Reads bodies before they are written out as columns. Of one thread; what it gives may be kept."""

    def __init__(self) -> None:
        self._memory = Lender()
        self._rows, self._work = Lender(), Lender()
        self._seed = int.from_bytes(os.urandom(7), "little")
        self._plans: tuple[Int32s, Int64s] | None = None
        self._bodies: Bodies | None = None

    def read(
        self, wanted: Mapping[Type, Collection[str] | None], library: Library, s: Bytes, begin: Int64s, end: Int64s,
        program: Int32s, status: Int8s,
    ) -> Int8s:  # fmt: skip
        """Take what can be taken of these bodies, requests and behind them as many responses, of which `status` says
        whether they fit. Returns `status` with READ_ASIDE for bodies that need not be written out."""
        if any((paths := wanted.get(kind)) is None or not known.issuperset(paths) for kind, known in READS.items()):
            return status
        if self._plans is None:
            self._plans = plans(library)
        n = len(begin) // 2
        sends = frozenset(wanted.get((PRODUCE, 0)) or ()) == ACKS
        walked = PLACES in (wanted[FETCH, 1] or ())
        kind = np.int64
        said, firsts, acks = self._memory.arrays(
            [((n, h.S_WIDTH), kind), ((n + 1,), kind), ((n if sends else 0,), kind)]
        )
        partitions, unanswered = self._rows.arrays([((n + 1024, h.P_WIDTH), kind), ((n * walked + 1024, 3), kind)])
        table, topics, scratch = self._work.arrays(
            [((4 * MOST_TOPICS,), kind), ((MOST_TOPICS, 4), kind), ((3, h.MOST_COMPARED), kind)]
        )
        table[:], acks[:], firsts[0], topics[0] = -1, NULL, 0, -1
        left, state = status.copy(), np.zeros(7, np.int64)
        while not read_bodies(
            s, begin, end, program, left, *self._plans, self._seed, walked, table, topics, scratch, said, firsts,
            partitions, unanswered, acks, state,
        ):  # fmt: skip
            partitions, unanswered = _doubled(partitions), _doubled(unanswered)
        _, fetches, count, named, produces, _, others = state.tolist()
        if not fetches and not produces:
            return status
        names = [_topic(s[at : at + size].tobytes(), by_id) for at, size, by_id, _ in topics[:named].tolist()]
        self._bodies = Bodies(
            said[:fetches], firsts[: fetches + 1], partitions[:count], names, unanswered[:others],
            acks if produces else None,
        )  # fmt: skip
        return left

    def taken(self) -> Bodies | None:
        """What was read since this was asked last."""
        bodies, self._bodies = self._bodies, None
        return bodies


def _doubled(rows: Int64s) -> Int64s:
    made = np.empty((2 * len(rows), rows.shape[1]), np.int64)
    made[: len(rows)] = rows
    return made


def _topic(text: bytes, by_id: int) -> tuple[str | None, str | None]:
    if by_id:
        from base64 import urlsafe_b64encode

        return None, urlsafe_b64encode(text).decode()[:22]  # as Kafka writes ids
    return text.decode("utf-8", "replace"), None


@part
def _count(s: Bytes, o: Scalar, limit: Scalar, flexible: Scalar) -> tuple[Scalar, Scalar]:
    """(elements of a list, -1 for null; where they begin)."""
    if flexible:
        n = np.int64(s[o])
        o += 1
        if n >= 128:
            n, o = more(s, o, limit, n)
        return n - 1, o
    return int32_at(s, o), o + 4


@part
def _length(s: Bytes, o: Scalar, limit: Scalar, flexible: Scalar) -> tuple[Scalar, Scalar]:
    """(bytes of a text, -1 for null; where they begin)."""
    if flexible:
        return _count(s, o, limit, flexible)
    return int16_at(s, o), o + 2


@part
def _code(
    s: Bytes, o: Scalar, size: Scalar, by_id: Scalar, seed: Scalar, table: Int64s, topics: Int64s, state: Int64s
) -> Scalar:
    """The code of a topic by its name or id; -1 where there are too many."""
    t = state[5]  # the one before, often
    if topics[t, 1] == size and topics[t, 2] == by_id and same_bytes(s, topics[t, 0], s, o, size):
        return t
    mask = table.size - 1
    value = (fingerprint(s, o, size) ^ seed) * memory.FACTOR  # type: ignore[no-untyped-call]
    at = (value ^ (value >> 29)) & mask
    for _ in range(MOST_PROBES):
        t = table[at]
        if t < 0:
            if state[3] >= len(topics):
                return np.int64(-1)
            t = state[3]
            state[3] += 1
            table[at] = t
            topics[t, 0], topics[t, 1], topics[t, 2] = o, size, by_id
            if by_id:
                metadata = int64_at(s, o) == 0 and int64_at(s, o + 8) == 1
            else:
                metadata = size == _METADATA.size and same_bytes(s, o, _METADATA, np.int64(0), size)
            topics[t, 3] = 1 if metadata else 0
            state[5] = t
            return t
        if topics[t, 1] == size and topics[t, 2] == by_id and same_bytes(s, topics[t, 0], s, o, size):
            state[5] = t
            return t
        at = (at + 1) & mask
    return np.int64(-1)


@part
def _entered(
    s: Bytes, o: Scalar, limit: Scalar, flexible: Scalar, by_id: Scalar, seed: Scalar, table: Int64s, topics: Int64s,
    state: Int64s,
) -> tuple[Scalar, Scalar, Scalar]:  # fmt: skip
    """(code of the topic that an entry begins with, -1 where it is not to be read here; its partitions, -1 for null;
    where they begin)."""
    length = np.int64(ID_SIZE)
    if not by_id:
        length, o = _length(s, o, limit, flexible)
    if length < 0:
        return np.int64(-1), np.int64(-1), o
    topic = _code(s, o, length, by_id, seed, table, topics, state)
    partitions, o = _count(s, o + length, limit, flexible)
    return topic, partitions, o


@part
def _ask(
    s: Bytes, o: Scalar, limit: Scalar, plan: Int64s, p: Scalar, seed: Scalar, table: Int64s, topics: Int64s,
    scratch: Int64s, state: Int64s,
) -> tuple[Scalar, Scalar]:  # fmt: skip
    """(partitions that a request names, -1 where it is not to be read here; RAFT where it is KRaft's own). They go to
    `scratch`: topic, number, offset."""
    flexible, by_id = plan[p, f.FLEXIBLE], plan[p, f.BY_ID]
    none, marks = np.int64(-1), np.int64(0)
    if plan[p, f.REPLICA] >= 0 and int32_at(s, o + plan[p, f.REPLICA]) >= 0:
        return none, marks
    if plan[p, f.SESSION] >= 0 and (
        int32_at(s, o + plan[p, f.SESSION]) != 0 or int32_at(s, o + plan[p, f.EPOCH]) != -1
    ):
        return none, marks
    number, size = plan[p, f.PARTITION], plan[p, f.SIZE]
    offset = plan[p, f.OFFSET]
    count = np.int64(0)
    left, o = _count(s, o + plan[p, f.HEAD], limit, flexible)
    if left < 0:
        return none, marks
    while left > 0:
        left -= 1
        topic, partitions, o = _entered(s, o, limit, flexible, by_id, seed, table, topics, state)
        if topic < 0 or partitions < 0 or count + partitions > h.MOST_COMPARED:
            return none, marks
        if topics[topic, 3]:
            marks = np.int64(h.RAFT)
        for _ in range(partitions):
            scratch[0, count], scratch[1, count], scratch[2, count] = (
                topic,
                int32_at(s, o + number),
                int64_at(s, o + offset),
            )
            count += 1
            o += size
            if flexible:
                if s[o] != 0:
                    return none, marks
                o += 1
        if flexible:
            if s[o] != 0:
                return none, marks
            o += 1
    if plan[p, f.GONE] > 0:
        left, o = _count(s, o, limit, flexible)
        if left != 0:
            return none, marks
    if plan[p, f.RACK] > 0:
        length, o = _length(s, o, limit, flexible)
        o += max(length, np.int64(0))
    if flexible:
        if s[o] != 0:
            return none, marks
        o += 1
    return (count if o == limit else none), marks


@part
def _give(
    s: Bytes, o: Scalar, limit: Scalar, plan: Int64s, p: Scalar, seed: Scalar, walked: Scalar, table: Int64s,
    topics: Int64s, scratch: Int64s, count: Scalar, out: Int64s, at: Scalar, state: Int64s,
) -> tuple[Scalar, Scalar, Scalar, Scalar]:  # fmt: skip
    """The partitions of an answer behind the first `at` of `out`, with the offsets of the `count` in `scratch` that
    were asked for: (how many `out` has then, -1 where the answer is not to be read here, -2 for want of room; bytes of
    records; marks; the bits of those that it names). `walked`: record sets are asked for."""
    flexible, by_id, size = plan[p, f.FLEXIBLE], plan[p, f.BY_ID], plan[p, f.SIZE]
    index_at, error_at, high_at, stable_at = plan[p, f.INDEX], plan[p, f.ERROR], plan[p, f.HIGH], plan[p, f.STABLE]
    none, records, marks, taken = np.int64(-1), np.int64(0), np.int64(0), np.int64(0)
    left, o = _count(s, o + plan[p, f.HEAD], limit, flexible)
    if left < 0:
        return none, records, marks, taken
    while left > 0:
        left -= 1
        topic, partitions, o = _entered(s, o, limit, flexible, by_id, seed, table, topics, state)
        if topic < 0 or partitions < 0:
            return none, records, marks, taken
        if at + partitions > len(out):
            return np.int64(-2), records, marks, taken
        for _ in range(partitions):
            number, error = int32_at(s, o + index_at), int16_at(s, o + error_at)
            good = error == 0
            out[at, h.P_TOPIC], out[at, h.P_PARTITION], out[at, h.P_GIVEN] = topic, number, 1
            out[at, h.P_HIGH] = int64_at(s, o + high_at) if good else np.int64(-1)
            out[at, h.P_STABLE] = int64_at(s, o + stable_at) if good and stable_at >= 0 else np.int64(-1)
            if not good:
                marks |= h.FAILED
            o += size
            if plan[p, f.ABORTED] >= 0:
                elements, o = _count(s, o, limit, flexible)
                for _ in range(elements):
                    o += plan[p, f.ABORTED]
                    if flexible:
                        if s[o] != 0:
                            return none, records, marks, taken
                        o += 1
            if plan[p, f.PREFERRED] > 0:
                if int32_at(s, o) >= 0:
                    marks |= h.NOTHING
                o += plan[p, f.PREFERRED]
            bytes_, o = _count(s, o, limit, flexible)
            bytes_ = max(bytes_, np.int64(0))
            if walked and not sound(s, o, o + bytes_, False):
                return none, records, marks, taken
            o += bytes_
            records += bytes_
            if flexible:
                if s[o] != 0:
                    return none, records, marks, taken
                o += 1
            offset = np.int64(-1)
            for a in range(count):
                if scratch[1, a] == number and scratch[0, a] == topic and taken & (np.int64(1) << a) == 0:
                    taken |= np.int64(1) << a
                    offset = max(scratch[2, a], np.int64(-1))
                    break
            out[at, h.P_OFFSET], out[at, h.P_RECORDS] = offset, bytes_
            at += 1
        if flexible:
            if s[o] != 0:
                return none, records, marks, taken
            o += 1
    if flexible:
        if s[o] != 0:
            return none, records, marks, taken
        o += 1
    return (at if o == limit else none), records, marks, taken


@kernel(
    "const u1[:] const i8[:] const i8[:] const i4[:] i1[:] const i4[:] const i8[:,:] i8 b1 i8[:] i8[:,:] i8[:,:] "
    "i8[:,:] i8[:] i8[:,:] i8[:,:] i8[:] i8[:] -> i8"
)
def read_bodies(
    s: Bytes, begin: Int64s, end: Int64s, program: Int32s, status: Int8s, plan_of: Int32s, plan: Int64s, seed: Scalar,
    walked: Scalar, table: Int64s, topics: Int64s, scratch: Int64s, said: Int64s, firsts: Int64s, out: Int64s,
    unanswered: Int64s, acks: Int64s, state: Int64s,
) -> Scalar:  # fmt: skip
    """Read what can be read of bodies that fit, see `BodyReader.read`. `topics`: where a topic's name or id lies, how
    long it is, whether it is an id, whether it is that of KRaft's log. `acks`: empty where nobody asks. `state`:
    exchanges looked at, fetches and partitions that were read, topics, requests to produce, the topic named last
    (`topics` begins with a size of none), `unanswered` ones. 0: more room is needed in `out` or for these, to go on."""
    n = begin.size // 2
    for j in range(state[0], n):
        if j + AHEAD < n:
            fetch(s, begin[j + AHEAD])
            fetch(s, begin[j + AHEAD] + 64)
            fetch(s, begin[n + j + AHEAD])
            fetch(s, begin[n + j + AHEAD] + 64)
        if program[j] < 0 or status[j] != k.OK:
            continue
        p = np.int64(plan_of[program[j]])
        if p < 0:
            continue
        o = begin[j]
        if plan[p, f.KIND] == f.SENDING:
            if acks.size:
                o += plan[p, f.HEAD]
                if plan[p, f.NAMED]:
                    length, o = _length(s, o, end[j], plan[p, f.FLEXIBLE])
                    o += max(length, np.int64(0))
                acks[j] = int16_at(s, o)
                status[j] = READ_ASIDE
                state[4] += 1
            continue
        if program[n + j] < 0 or status[n + j] != k.OK or plan[p, f.KIND] != f.ASKING:
            continue
        q = np.int64(plan_of[program[n + j]])
        if q < 0 or plan[q, f.KIND] != f.GIVING:
            continue
        count, raft = _ask(s, o, end[j], plan, p, seed, table, topics, scratch, state)
        if count < 0:
            continue
        at, records, marks, taken = _give(
            s, begin[n + j], end[n + j], plan, q, seed, walked, table, topics, scratch, count, out, state[2], state
        )
        if at == -2 or (walked and state[6] + count > len(unanswered)):
            state[0] = j
            return np.int64(0)
        if at < 0:
            continue
        for a in range(count if walked else 0):
            if (taken >> a) & 1 == 0:
                unanswered[state[6], 0] = j
                unanswered[state[6], 1], unanswered[state[6], 2] = scratch[0, a], scratch[1, a]
                state[6] += 1
        i = state[1]
        if plan[p, f.ISOLATION] >= 0 and s[o + plan[p, f.ISOLATION]] == 1:
            marks |= h.COMMITTED
        said[i, h.S_ROW] = j
        said[i, h.S_WAIT], said[i, h.S_LEAST] = int32_at(s, o + plan[p, f.WAIT]), int32_at(s, o + plan[p, f.LEAST])
        said[i, h.S_SENT], said[i, h.S_RECORDS], said[i, h.S_MARKS] = count, records, marks | raft
        said[i, h.S_SESSION] = 1 if plan[p, f.SESSION] >= 0 else 0
        firsts[i + 1] = at
        state[1], state[2] = i + 1, at
        status[j] = status[n + j] = READ_ASIDE
    state[0] = n
    return np.int64(1)

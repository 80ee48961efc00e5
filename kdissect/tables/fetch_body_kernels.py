"""The kernel that reads bodies of Fetch and of Produce by plans (`kdissect.tables.fetch_plans`)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from kdissect.arrays.arrow import Scalar
from kdissect.arrays.rows import NULL
from kdissect.kafka.exchanges.bodies import READ_ASIDE
from kdissect.kafka.recordsets.batch_kernels import sound
from kdissect.kernels import memory
from kdissect.kernels.kernel import kernel, part
from kdissect.kernels.memory import fetch as prefetch
from kdissect.kernels.memory import fingerprint, int16_at, int32_at, int64_at, same_bytes
from kdissect.kernels.structs import struct, view
from kdissect.schema import opcodes as k
from kdissect.schema.model import SCALARS
from kdissect.schema.vm import more
from kdissect.tables import fetch_plans as f
from kdissect.tables import fetch_rows as h
from kdissect.tables.fetch_plans import Plan, plan_at
from kdissect.tables.fetch_rows import FetchRow, fetch_at, partition_at
from kdissect.tables.fetches import METADATA_TOPIC
from kdissect.tables.sent_rows import sent_at

Int64s = npt.NDArray[np.int64]
Int8s = npt.NDArray[np.int8]
Bytes = npt.NDArray[np.uint8]

MOST_PROBES = 32
"""Places of a hash table that are tried for a topic."""
MOST_COMPARED = 64
"""Partitions that a request names, or forgets, of which each is compared with each of the answer."""
AHEAD = 8
"""Exchanges between asking for memory and using it."""
_METADATA = np.frombuffer(METADATA_TOPIC.encode(), np.uint8).copy()
ID_SIZE = SCALARS["uuid"]


@struct
class Topic:
    """A topic that bodies name, and a slot of the hash table of all of them."""

    at: int
    """Where its name or id lies among the bytes that are kept."""
    size: int
    """Bytes of it."""
    by_id: int
    """1: it is an id."""
    raft: int
    """1: it is KRaft's log."""
    slot: int
    """The topic at this place of the hash table, of which each row of topics is one; -1 none."""


@struct
class Named:
    """A partition that a request names."""

    topic: int
    """Code of its topic."""
    partition: int
    """Its number."""
    offset: int
    """The offset asked for; of a forgotten one -1."""
    answered: int
    """1: the answer, or an earlier entry of the request, has taken it."""


@struct
class Reading:
    """How far bodies were read, and how many topics are known."""

    exchanges: int
    """Exchanges that were looked at."""
    fetches: int
    """Fetches that were read."""
    partitions: int
    """Rows of their partitions."""
    topics: int
    """Different topics so far, those of earlier blocks among them."""
    text: int
    """Bytes of their names and ids."""
    latest: int
    """The topic that was named last."""
    produces: int
    """Requests to produce that were read."""
    sent: int
    """Rows of their partitions."""
    sends: int
    """1: these are asked for, else `acks` alone."""
    asked: int
    """Partitions that the fetch at hand asks for: the first ones of `named`."""
    gone: int
    """Partitions that it forgets: behind MOST_COMPARED of `named`."""
    seed: int
    """What nobody can foresee who chooses names of topics."""
    walked: int
    """1: record sets are asked for."""


topic_at, named_at, reading_at = view(Topic), view(Named), view(Reading)


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
def _untagged(s: Bytes, o: Scalar, flexible: Scalar) -> tuple[Scalar, Scalar]:
    """(whether a struct that ends here has no tags, what follows)."""
    if not flexible:
        return True, o
    return s[o] == 0, o + 1


@part
def _code(s: Bytes, o: Scalar, size: Scalar, by_id: Scalar, topics: Int64s, text: Bytes, state: Int64s) -> Scalar:
    """The code of a topic by its name or id; -1 where there are too many."""
    reading = reading_at(state, 0)
    latest = topic_at(topics, reading.latest)
    if latest.size == size and latest.by_id == by_id and same_bytes(text, latest.at, s, o, size):
        return reading.latest
    mask = np.int64(len(topics) - 1)
    value = (fingerprint(s, o, size) ^ reading.seed) * memory.FACTOR  # type: ignore[no-untyped-call]
    place = (value ^ (value >> 29)) & mask
    for _ in range(MOST_PROBES):
        t = topic_at(topics, place).slot
        if t < 0:
            if 2 * reading.topics >= len(topics) or size > text.size - reading.text:
                return np.int64(-1)
            t = reading.topics
            topic_at(topics, place).slot = t
            new = topic_at(topics, t)
            new.at, new.size, new.by_id, new.raft = reading.text, size, by_id, 0
            for i in range(size):
                text[new.at + i] = s[o + i]
            reading.topics += 1
            reading.text += size
            if by_id:
                if int64_at(s, o) == 0 and int64_at(s, o + 8) == 1:
                    new.raft = 1
            elif size == _METADATA.size and same_bytes(s, o, _METADATA, np.int64(0), size):
                new.raft = 1
            reading.latest = t
            return t
        known = topic_at(topics, t)
        if known.size == size and known.by_id == by_id and same_bytes(text, known.at, s, o, size):
            reading.latest = t
            return t
        place = (place + 1) & mask
    return np.int64(-1)


@part
def _entered(
    s: Bytes, o: Scalar, limit: Scalar, plan: Plan, topics: Int64s, text: Bytes, state: Int64s
) -> tuple[Scalar, Scalar, Scalar]:
    """(code of the topic that an entry begins with, -1 where it is not to be read here; its partitions, -1 for null;
    where they begin)."""
    length = np.int64(ID_SIZE)
    if not plan.by_id:
        length, o = _length(s, o, limit, plan.flexible)
    if length < 0:
        return np.int64(-1), np.int64(-1), o
    topic = _code(s, o, length, plan.by_id, topics, text, state)
    partitions, o = _count(s, o + length, limit, plan.flexible)
    return topic, partitions, o


@part
def _name(
    s: Bytes, o: Scalar, limit: Scalar, plan: Plan, row: FetchRow, forgotten: Scalar, requested: Int64s, topics: Int64s,
    text: Bytes, state: Int64s,
) -> tuple[Scalar, Scalar]:  # fmt: skip
    """(how many partitions a list of topics names, those that are asked for or the `forgotten` ones, -1 where it is not
    to be read here; what follows). They go to `requested`."""
    none, count = np.int64(-1), np.int64(0)
    first = np.int64(MOST_COMPARED) if forgotten else np.int64(0)
    left, o = _count(s, o, limit, plan.flexible)
    if left < 0:
        return none, o
    while left > 0:
        left -= 1
        topic, partitions, o = _entered(s, o, limit, plan, topics, text, state)
        if topic < 0 or partitions < 0 or count + partitions > MOST_COMPARED:
            return none, o
        if not forgotten and topic_at(topics, topic).raft:
            row.marks |= h.RAFT
        for _ in range(partitions):
            entry = named_at(requested, first + count)
            entry.topic, entry.offset, entry.answered = topic, -1, 0
            count += 1
            if forgotten:
                entry.partition = int32_at(s, o)
                o += 4
                continue
            entry.partition = int32_at(s, o + plan.partition)
            entry.offset = int64_at(s, o + plan.offset)
            plain, o = _untagged(s, o + plan.size, plan.flexible)
            if not plain:
                return none, o
        plain, o = _untagged(s, o, plan.flexible)
        if not plain:
            return none, o
    return count, o


@part
def _ask(
    s: Bytes, o: Scalar, limit: Scalar, plan: Plan, row: FetchRow, requested: Int64s, topics: Int64s, text: Bytes,
    state: Int64s,
) -> Scalar:  # fmt: skip
    """Whether a request was read: into `row`, and the partitions that it names into `requested`."""
    reading, begin = reading_at(state, 0), o
    if plan.replica >= 0 and int32_at(s, o + plan.replica) >= 0:
        return False
    row.wait, row.least, row.marks = int32_at(s, o + plan.wait), int32_at(s, o + plan.least), 0
    row.session, row.epoch = NULL, NULL
    if plan.session >= 0:
        row.session, row.epoch = int32_at(s, o + plan.session), int32_at(s, o + plan.epoch)
    if plan.isolation >= 0 and s[o + plan.isolation] == 1:
        row.marks |= h.COMMITTED
    count, o = _name(s, o + plan.head, limit, plan, row, False, requested, topics, text, state)
    if count < 0:
        return False
    reading.asked, reading.gone, row.sent = count, 0, count
    if plan.gone > 0:
        count, o = _name(s, o, limit, plan, row, True, requested, topics, text, state)
        if count < 0:
            return False
        reading.gone = count
    if plan.rack > 0:
        length, o = _length(s, o, limit, plan.flexible)
        o += max(length, np.int64(0))
    plain, o = _untagged(s, o, plan.flexible)
    return plain and o == limit and begin <= o


@part
def _first_named(requested: Int64s, first: Scalar, count: Scalar, topic: Scalar, partition: Scalar) -> Scalar:
    """The first of these partitions with this topic and number that nothing has taken yet, which is taken then; -1."""
    for at in range(first, first + count):
        entry = named_at(requested, at)
        if entry.partition == partition and entry.topic == topic and not entry.answered:
            entry.answered = 1
            return at
    return np.int64(-1)


@part
def _enter(row: Any, topic: Scalar, partition: Scalar, flags: Scalar, offset: Scalar) -> None:
    """A partition of which no answer tells anything yet."""
    row.topic, row.log, row.partition, row.flags, row.offset = topic, -1, partition, flags, offset
    row.error, row.high, row.stable, row.start, row.records = 0, -1, -1, -1, 0
    row.preferred, row.diverging, row.reason, row.session_offset = -1, -1, -1, -1


@part
def _give(
    s: Bytes, o: Scalar, limit: Scalar, plan: Plan, row: FetchRow, requested: Int64s, out: Int64s, topics: Int64s,
    text: Bytes, state: Int64s,
) -> Scalar:  # fmt: skip
    """Write the partitions of an answer behind those that `out` has, and behind them what the request names besides.
    How many `out` has then, -1 where the answer is not to be read here, -2 for want of room."""
    reading, begin = reading_at(state, 0), o
    at: Scalar = reading.partitions
    none = np.int64(-1)
    row.given_session = int32_at(s, o + plan.session) if plan.session >= 0 else 0
    row.returned, row.records = 0, 0
    left, o = _count(s, o + plan.head, limit, plan.flexible)
    if left < 0:
        return none
    while left > 0:
        left -= 1
        topic, partitions, o = _entered(s, o, limit, plan, topics, text, state)
        if topic < 0 or partitions < 0:
            return none
        if at + partitions + reading.asked + reading.gone > len(out):
            return np.int64(-2)
        for _ in range(partitions):
            given = partition_at(out, at)
            number, flags, offset = int32_at(s, o + plan.partition), h.GIVEN, -1
            asked = _first_named(requested, np.int64(0), reading.asked, topic, number)
            if asked >= 0:
                flags |= h.ASKED
                offset = named_at(requested, asked).offset
            if _first_named(requested, np.int64(MOST_COMPARED), reading.gone, topic, number) >= 0:
                flags |= h.FORGOTTEN
            _enter(given, topic, number, flags, offset)
            given.error = int16_at(s, o + plan.error)
            if given.error == 0:
                given.high = int64_at(s, o + plan.high)
                if plan.stable >= 0:
                    given.stable = int64_at(s, o + plan.stable)
            else:
                row.marks |= h.FAILED
            if plan.start >= 0:
                given.start = int64_at(s, o + plan.start)
            o += plan.size
            if plan.aborted >= 0:
                elements, o = _count(s, o, limit, plan.flexible)
                for _ in range(elements):
                    plain, o = _untagged(s, o + plan.aborted, plan.flexible)
                    if not plain:
                        return none
            if plan.preferred > 0:
                given.preferred = int32_at(s, o)
                if given.preferred >= 0:
                    row.marks |= h.REDIRECTED
                o += plan.preferred
            size, o = _count(s, o, limit, plan.flexible)
            size = max(size, np.int64(0))
            if reading.walked and not sound(s, o, o + size, False):
                return none
            given.records = size
            row.records += size
            row.returned += 1
            plain, o = _untagged(s, o + size, plan.flexible)
            if not plain:
                return none
            at += 1
        plain, o = _untagged(s, o, plan.flexible)
        if not plain:
            return none
    plain, o = _untagged(s, o, plan.flexible)
    if not plain or o != limit or o < begin:
        return none
    if at + reading.asked + reading.gone > len(out):
        return np.int64(-2)
    for a in range(reading.asked):
        entry = named_at(requested, a)
        if not entry.answered:
            flags = h.ASKED
            if _first_named(requested, np.int64(MOST_COMPARED), reading.gone, entry.topic, entry.partition) >= 0:
                flags |= h.FORGOTTEN
            _enter(partition_at(out, at), entry.topic, entry.partition, flags, entry.offset)
            at += 1
    for a in range(MOST_COMPARED, MOST_COMPARED + reading.gone):
        entry = named_at(requested, a)
        if not entry.answered:
            _enter(partition_at(out, at), entry.topic, entry.partition, np.int64(h.FORGOTTEN), np.int64(-1))
            at += 1
    return at


@part
def _send(
    s: Bytes, o: Scalar, limit: Scalar, plan: Plan, exchange: Scalar, sent: Int64s, topics: Int64s, text: Bytes,
    state: Int64s,
) -> Scalar:  # fmt: skip
    """Write the partitions of a request to produce, from its list of topics on, behind the rows that `sent` has. How
    many it has then, -1 where the request is not to be read here, -2 for want of room."""
    reading, begin, none = reading_at(state, 0), o, np.int64(-1)
    at: Scalar = reading.sent
    left, o = _count(s, o, limit, plan.flexible)
    if left < 0:
        return none
    while left > 0:
        left -= 1
        topic, partitions, o = _entered(s, o, limit, plan, topics, text, state)
        if topic < 0 or partitions < 0 or at - reading.sent + partitions > MOST_COMPARED:
            return none
        if at + partitions > len(sent):
            return np.int64(-2)
        for _ in range(partitions):
            number = int32_at(s, o + plan.partition)
            if _sent_before(sent, reading.sent, at, topic, number) >= 0:
                return none
            row = sent_at(sent, at)
            row.exchange, row.topic, row.partition = exchange, topic, number
            row.answered, row.base_offset, row.error = 0, NULL, NULL
            at += 1
            size, o = _count(s, o + plan.size, limit, plan.flexible)
            plain, o = _untagged(s, o + max(size, np.int64(0)), plan.flexible)
            if not plain:
                return none
        plain, o = _untagged(s, o, plan.flexible)
        if not plain:
            return none
    plain, o = _untagged(s, o, plan.flexible)
    return at if plain and o == limit and begin <= o else none


@part
def _sent_before(sent: Int64s, first: Scalar, end: Scalar, topic: Scalar, partition: Scalar) -> Scalar:
    """The row of this partition among these, -1 for none."""
    for at in range(first, end):
        row = sent_at(sent, at)
        if row.partition == partition and row.topic == topic:
            return at
    return np.int64(-1)


@part
def _confirm(
    s: Bytes, o: Scalar, limit: Scalar, plan: Plan, exchange: Scalar, end: Scalar, sent: Int64s, topics: Int64s,
    text: Bytes, state: Int64s,
) -> Scalar:  # fmt: skip
    """What an answer to Produce says of the partitions of its request, the rows up to `end`; behind them those that it
    names alone. As `_send`."""
    reading, begin, none = reading_at(state, 0), o, np.int64(-1)
    left, o = _count(s, o + plan.head, limit, plan.flexible)
    if left < 0:
        return none
    while left > 0:
        left -= 1
        topic, partitions, o = _entered(s, o, limit, plan, topics, text, state)
        if topic < 0 or partitions < 0 or end - reading.sent + partitions > 2 * MOST_COMPARED:
            return none
        if end + partitions > len(sent):
            return np.int64(-2)
        for _ in range(partitions):
            number = int32_at(s, o + plan.partition)
            at = _sent_before(sent, reading.sent, end, topic, number)
            if at < 0:
                at, end = end, end + 1
                sent_at(sent, at).answered = 0
            row = sent_at(sent, at)
            if row.answered:
                return none
            row.exchange, row.topic, row.partition, row.answered = exchange, topic, number, 1
            row.error, row.base_offset = int16_at(s, o + plan.error), int64_at(s, o + plan.offset)
            o += plan.size
            if plan.explained:
                refused, o = _count(s, o, limit, plan.flexible)
                if refused > 0:
                    return none
                length, o = _length(s, o, limit, plan.flexible)
                o += max(length, np.int64(0))
            plain, o = _untagged(s, o, plan.flexible)
            if not plain:
                return none
        plain, o = _untagged(s, o, plan.flexible)
        if not plain:
            return none
    plain, o = _untagged(s, o + plan.tail, plan.flexible)
    return end if plain and o == limit and begin <= o else none


@kernel(
    "const u1[:] const i8[:,:] i1[:] const i8[:,:] i8[:,:] u1[:] i8[:,:] i8[:,:] i8[:,:] i8[:,:] i8[:] i8[:,:] -> i8"
)
def read_bodies(
    s: Bytes, bodies: Int64s, status: Int8s, plans: Int64s, topics: Int64s, text: Bytes, requested: Int64s,
    fetches: Int64s, partitions: Int64s, sent: Int64s, acks: Int64s, state: Int64s,
) -> Scalar:  # fmt: skip
    """Read what can be read of bodies that fit, see `BodyReader.read`. `bodies`: where each begins and ends, and its
    program. `topics`, `requested`, `state`: structs of this module; `topics`, a power of two of them, begins with one
    of no size, and their names and ids lie in `text`. `acks`: empty where no caller asks. 0: more room is needed for
    partitions, to go on."""
    n = bodies.shape[1] // 2
    reading = reading_at(state, 0)
    for j in range(reading.exchanges, n):
        if j + AHEAD < n:
            prefetch(s, bodies[0, j + AHEAD])
            prefetch(s, bodies[0, j + AHEAD] + 64)
            prefetch(s, bodies[0, n + j + AHEAD])
            prefetch(s, bodies[0, n + j + AHEAD] + 64)
        program, answer = bodies[2, j], bodies[2, n + j]
        if program < 0 or status[j] != k.OK:
            continue
        answered = answer >= 0 and status[n + j] == k.OK
        asking = plan_at(plans, program)
        o, limit = bodies[0, j], bodies[1, j]
        if asking.kind == f.SENDING:
            if acks.size == 0:
                continue
            o += asking.head
            if asking.named:
                length, o = _length(s, o, limit, asking.flexible)
                o += max(length, np.int64(0))
            if reading.sends:
                if asking.listed < 0:
                    continue
                at = _send(s, o + asking.listed, limit, asking, j, sent, topics, text, state)
                if at >= 0 and answered:
                    giving = plan_at(plans, answer)
                    if giving.kind != f.SENT:
                        continue
                    at = _confirm(
                        s, bodies[0, n + j], bodies[1, n + j], giving, j, at, sent, topics, text, state
                    )  # fmt: skip
                if at == -2:
                    reading.exchanges = j
                    return np.int64(0)
                if at < 0:
                    continue
                reading.sent = at
                if answered:
                    status[n + j] = READ_ASIDE
            acks[j] = int16_at(s, o)
            status[j] = READ_ASIDE
            reading.produces += 1
            continue
        if not answered or asking.kind != f.ASKING:
            continue
        giving = plan_at(plans, answer)
        if giving.kind != f.GIVING:
            continue
        row = fetch_at(fetches, reading.fetches)
        if not _ask(s, o, limit, asking, row, requested, topics, text, state):
            continue
        at = _give(s, bodies[0, n + j], bodies[1, n + j], giving, row, requested, partitions, topics, text, state)
        if at == -2:
            reading.exchanges = j
            return np.int64(0)
        if at < 0:
            continue
        row.exchange, row.partitions = j, at - reading.partitions
        reading.fetches += 1
        reading.partitions = at
        status[j] = status[n + j] = READ_ASIDE
    reading.exchanges = n
    return np.int64(1)

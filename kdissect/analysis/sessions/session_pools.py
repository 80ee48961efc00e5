"""Kernels over the tracker's pools: finding, adding and removing sessions, partitions, and members of lists."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from kdissect.analysis.sessions.session_layout import (
    NOT_SENT,
    POOLS,  # noqa: F401  (named in signatures)
    Counts,
    Pools,
    Session,
    counts_of,
    listed_at,
    remembered_at,
    session_at,
    session_topic_at,
    stay_at,
)
from kdissect.analysis.sessions.session_rules import MAX_NAMES, MAX_REMEMBERED
from kdissect.arrays.arrow import Int64s, Scalar
from kdissect.kernels.kernel import kernel, part

Int32s = npt.NDArray[np.int32]


@part
def hashed(a: Scalar, b: Scalar, d: Scalar) -> Scalar:
    """A well-mixed non-negative integer out of three."""
    value = np.uint64(a) * np.uint64(0x9E3779B97F4A7C15) ^ np.uint64(b) * np.uint64(0xC2B2AE3D27D4EB4F)
    value ^= np.uint64(d) * np.uint64(0x165667B19E3779F9)
    value = (value ^ (value >> np.uint64(32))) * np.uint64(0xBF58476D1CE4E5B9)
    return np.int64((value ^ (value >> np.uint64(29))) >> np.uint64(1))


@part
def session_bucket(broker: Scalar, number: Scalar, by_id: Int32s) -> Scalar:
    """The bucket of a session of this broker with this id."""
    return hashed(broker, number, 1) & (len(by_id) - 1)


@part
def stay_bucket(session: Scalar, topic: Scalar, partition: Scalar, by_partition: Int32s) -> Scalar:
    """The bucket of a partition of a session."""
    return hashed(session, topic, partition) & (len(by_partition) - 1)


@part
def topic_bucket(session: Scalar, topic: Scalar, by_topic: Int32s) -> Scalar:
    """The bucket of a topic of a session."""
    return hashed(session, topic, 2) & (len(by_topic) - 1)


@part
def varint_bytes(value: Scalar) -> Scalar:
    """Bytes of an unsigned varint."""
    size = 1
    while value >= 128:
        value >>= 7
        size += 1
    return size


@part
def find_session(state: Pools, broker: Scalar, number: Scalar) -> Scalar:
    """Row of a live session, -1."""
    at: Scalar = state.by_id[session_bucket(broker, number, state.by_id)]
    while at >= 0:
        session = session_at(state.sessions, at)
        if session.id == number and session.broker == broker:
            return at
        at = session.chain
    return -1


@part
def find_stay(state: Pools, session: Scalar, topic: Scalar, partition: Scalar) -> Scalar:
    """Row of a partition in a session, -1."""
    at: Scalar = state.by_partition[stay_bucket(session, topic, partition, state.by_partition)]
    while at >= 0:
        stay = stay_at(state.stays, at)
        if stay.session == session and stay.partition == partition and stay.topic == topic:
            return at
        at = stay.chain
    return -1


@part
def put_first(buckets: Int32s, bucket: Scalar, at: Scalar) -> Scalar:
    """A row becomes the first of its bucket; which was, -1 none."""
    before: Scalar = buckets[bucket]
    buckets[bucket] = at
    return before


def _unchaining(row_at: Callable[[Any, Any], Any]) -> Callable[[Int64s, Int32s, Scalar, Scalar], None]:
    """A part that takes a row out of its bucket, of the pool whose structs `row_at` gives."""

    @part
    def unchain(pool: Int64s, buckets: Int32s, bucket: Scalar, at: Scalar) -> None:
        here: Scalar = buckets[bucket]
        following = row_at(pool, at).chain
        if here == at:
            buckets[bucket] = following
            return
        while here >= 0:
            row = row_at(pool, here)
            if row.chain == at:
                row.chain = following
                return
            here = row.chain

    return unchain


unchain_session, unchain_stay, unchain_topic = map(_unchaining, (session_at, stay_at, session_topic_at))


@kernel("i8[:,:] i4[:] i4[:]")
def rehash_sessions(sessions: Int64s, old: Int32s, new: Int32s) -> None:
    """Move all live sessions to a larger table."""
    for bucket in range(len(old)):
        at: Scalar = old[bucket]
        while at >= 0:
            session = session_at(sessions, at)
            following, place = session.chain, session_bucket(session.broker, session.id, new)
            session.chain = put_first(new, place, at)
            at = following


@kernel("i8[:,:] i4[:] i4[:]")
def rehash_stays(stays: Int64s, old: Int32s, new: Int32s) -> None:
    """Move all live partitions to a larger table."""
    for bucket in range(len(old)):
        at: Scalar = old[bucket]
        while at >= 0:
            stay = stay_at(stays, at)
            following, place = stay.chain, stay_bucket(stay.session, stay.topic, stay.partition, new)
            stay.chain = put_first(new, place, at)
            at = following


@kernel("i8[:,:] i4[:] i4[:]")
def rehash_topics(topics: Int64s, old: Int32s, new: Int32s) -> None:
    """Move all live topics to a larger table."""
    for bucket in range(len(old)):
        at: Scalar = old[bucket]
        while at >= 0:
            topic = session_topic_at(topics, at)
            following, place = topic.chain, topic_bucket(topic.session, topic.topic, new)
            topic.chain = put_first(new, place, at)
            at = following


@part
def _place_of_key(table: Int64s, key: Scalar) -> Scalar:
    """Where a key of ended sessions stands in the table of those remembered, or belongs."""
    at = hashed(key, 0, 3) & (len(table) - 1)
    while remembered_at(table, at).key >= 0 and remembered_at(table, at).key != key:
        at = (at + 1) & (len(table) - 1)
    return at


@part
def _packed(broker: Scalar, number: Scalar) -> Scalar:
    return broker << 32 | (number & 0xFFFFFFFF)


@kernel("i8[:,:] i8[:,:]")
def rehash_remembered(old: Int64s, new: Int64s) -> None:
    """Move the remembered ids to a larger table."""
    for i in range(len(old)):
        known = remembered_at(old, i)
        if known.key >= 0:
            moved = remembered_at(new, _place_of_key(new, known.key))
            moved.key, moved.incarnations = known.key, known.incarnations


@part
def incarnations(table: Int64s, broker: Scalar, number: Scalar) -> Scalar:
    """How many sessions of that broker and id have ended, as far as remembered."""
    known = remembered_at(table, _place_of_key(table, _packed(broker, number)))
    return known.incarnations if known.key >= 0 else 0


@part
def remember(table: Int64s, count: Counts, session: Session) -> None:
    """A session has ended."""
    if count.remembered >= MAX_REMEMBERED:
        table[:, :] = -1
        count.remembered = 0
    key = _packed(session.broker, session.id)
    known = remembered_at(table, _place_of_key(table, key))
    count.remembered += known.key < 0
    known.key, known.incarnations = key, session.incarnation


@part
def list_member(state: Pools, first: Scalar, value: Scalar) -> Scalar:
    """The first row of a list of clients or connections that has this one too: added once, in order of appearance."""
    count, at = counts_of(state.counts, 0), first
    last: Scalar = np.int64(-1)
    length = 0
    while at >= 0:
        member = listed_at(state.listed, at)
        if member.value == value:
            return first
        last, at = at, member.next
        length += 1
    if length >= MAX_NAMES:
        return first
    new = count.free_listed
    member = listed_at(state.listed, new)
    count.free_listed = member.next
    count.listed_left -= 1
    member.value, member.next = value, -1
    if last < 0:
        return new
    listed_at(state.listed, last).next = new
    return first


@part
def unlink_session(sessions: Int64s, count: Counts, session: Session) -> None:
    """Take a session out of the list that is ordered by last use."""
    if session.older >= 0:
        session_at(sessions, session.older).newer = session.newer
    else:
        count.oldest = session.newer
    if session.newer >= 0:
        session_at(sessions, session.newer).older = session.older
    else:
        count.newest = session.older


@part
def link_newest(sessions: Int64s, count: Counts, at: Scalar) -> None:
    """Put a session at the recent end of that list."""
    session = session_at(sessions, at)
    session.older, session.newer = count.newest, -1
    if count.newest >= 0:
        session_at(sessions, count.newest).newer = at
    else:
        count.oldest = at
    count.newest = at


@part
def topic_of(state: Pools, at: Scalar, topic: Scalar, name_bytes: Scalar) -> Scalar:
    """The row of a session's topic, a new one when it has none; `at`: the session's."""
    count, bucket = counts_of(state.counts, 0), topic_bucket(at, topic, state.by_topic)
    row: Scalar = state.by_topic[bucket]
    while row >= 0:
        known = session_topic_at(state.topics, row)
        if known.session == at and known.topic == topic:
            return row
        row = known.chain
    row = count.free_topic
    new = session_topic_at(state.topics, row)
    count.free_topic = new.next
    count.topics_left -= 1
    new.session, new.topic, new.count = at, topic, 0
    new.stamp, new.named, new.chain = -1, 0, put_first(state.by_topic, bucket, row)
    session = session_at(state.sessions, at)
    session.topics += 1
    session.plain += name_bytes
    session.compact += name_bytes + varint_bytes(name_bytes + 1)
    session.counts += 1
    return row


@part
def leave_topic(state: Pools, row: Scalar, name_bytes: Scalar) -> None:
    """One partition less of a topic; its row goes with the last."""
    topic, count = session_topic_at(state.topics, row), counts_of(state.counts, 0)
    session, had = session_at(state.sessions, topic.session), topic.count
    topic.count = had - 1
    session.counts += varint_bytes(had) - varint_bytes(had + 1)
    if had > 1:
        return
    bucket = topic_bucket(topic.session, topic.topic, state.by_topic)
    unchain_topic(state.topics, state.by_topic, bucket, row)
    topic.next = count.free_topic
    count.free_topic = row
    count.topics_left += 1
    session.topics -= 1
    session.plain -= name_bytes
    session.compact -= name_bytes + varint_bytes(name_bytes + 1)
    session.counts -= 1


@part
def add_stay(state: Pools, at: Scalar, topic: Scalar, partition: Scalar, epoch: Scalar, name_bytes: Scalar) -> Scalar:
    """A partition enters the session of this row (epoch -1: when is not known). Its row."""
    session, count = session_at(state.sessions, at), counts_of(state.counts, 0)
    newest = session.first_stay
    if newest >= 0 and stay_at(state.stays, newest).topic == topic:  # partitions of a topic come together
        of_topic = stay_at(state.stays, newest).of_topic
    else:
        of_topic = topic_of(state, at, topic, name_bytes)
    entered = session_topic_at(state.topics, of_topic)
    had = entered.count
    entered.count = had + 1
    session.counts += varint_bytes(had + 2) - varint_bytes(had + 1)
    row = count.free_stay
    stay = stay_at(state.stays, row)
    count.free_stay = stay.next
    count.stays_left -= 1
    count.live_stays += 1
    stay.session, stay.topic, stay.partition = at, topic, partition
    stay.from_epoch, stay.to_epoch, stay.of_topic, stay.stamp = epoch, -1, of_topic, -1
    stay.chain = put_first(state.by_partition, stay_bucket(at, topic, partition, state.by_partition), row)
    stay.previous, stay.next = -1, newest
    if newest >= 0:
        stay_at(state.stays, newest).previous = row
    session.first_stay = row
    session.size += 1
    stay.offset, stay.high, stay.start = -1, NOT_SENT, NOT_SENT
    return row


@part
def remove_stay(state: Pools, row: Scalar, epoch: Scalar, name_bytes: Scalar) -> None:
    """A partition leaves its session by the request of that epoch (-1: with the session); its stay has ended."""
    stay, count = stay_at(state.stays, row), counts_of(state.counts, 0)
    session = session_at(state.sessions, stay.session)
    bucket = stay_bucket(stay.session, stay.topic, stay.partition, state.by_partition)
    unchain_stay(state.stays, state.by_partition, bucket, row)
    if stay.previous >= 0:
        stay_at(state.stays, stay.previous).next = stay.next
    else:
        session.first_stay = stay.next
    if stay.next >= 0:
        stay_at(state.stays, stay.next).previous = stay.previous
    leave_topic(state, stay.of_topic, name_bytes)
    session.size -= 1
    count.live_stays -= 1
    stay.to_epoch, stay.next = epoch, -1
    if count.ended_stays == 0:
        count.ended_stay = row
    else:
        stay_at(state.stays, count.last_ended_stay).next = row
    count.last_ended_stay = row
    count.ended_stays += 1


@part
def release_set(state: Pools, session: Session, name_bytes: Int64s) -> None:
    """All partitions leave a session."""
    while session.first_stay >= 0:
        remove_stay(state, session.first_stay, -1, name_bytes[stay_at(state.stays, session.first_stay).topic])


@part
def end_session(state: Pools, at: Scalar, reason: Scalar, when: Scalar, name_bytes: Int64s) -> None:
    """A session is over: its row waits to be collected."""
    session, count = session_at(state.sessions, at), counts_of(state.counts, 0)
    release_set(state, session, name_bytes)
    bucket = session_bucket(session.broker, session.id, state.by_id)
    unchain_session(state.sessions, state.by_id, bucket, at)
    unlink_session(state.sessions, count, session)
    remember(state.remembered, count, session)
    session.end, session.closed, session.next = reason, when, -1
    count.live_sessions -= 1
    if count.ended_sessions == 0:
        count.ended_session = at
    else:
        session_at(state.sessions, count.last_ended_session).next = at
    count.last_ended_session = at
    count.ended_sessions += 1


@kernel("POOLS i8[:] i8[:]")
def list_ended(state: Pools, sessions: Int64s, stays: Int64s) -> None:
    """Write the rows of sessions that ended, and of partitions that left, in this order: there is room for all."""
    count = counts_of(state.counts, 0)
    at = count.ended_session
    for i in range(count.ended_sessions):
        sessions[i] = at
        at = session_at(state.sessions, at).next
    at = count.ended_stay
    for i in range(count.ended_stays):
        stays[i] = at
        at = stay_at(state.stays, at).next


@part
def _free_list(state: Pools, first: Scalar) -> None:
    """Rows of a list of clients or connections are free again."""
    count = counts_of(state.counts, 0)
    while first >= 0:
        member = listed_at(state.listed, first)
        following = member.next
        member.next = count.free_listed
        count.free_listed = first
        count.listed_left += 1
        first = following


@kernel("POOLS")
def free_ended(state: Pools) -> None:
    """Collected rows are free again."""
    count = counts_of(state.counts, 0)
    at = count.ended_stay
    for _ in range(count.ended_stays):
        stay = stay_at(state.stays, at)
        following = stay.next
        stay.next = count.free_stay
        count.free_stay = at
        at = following
    at = count.ended_session
    for _ in range(count.ended_sessions):
        session = session_at(state.sessions, at)
        following = session.next
        _free_list(state, session.clients)
        _free_list(state, session.connections)
        session.next = count.free_session
        count.free_session = at
        at = following
    count.stays_left += count.ended_stays
    count.sessions_left += count.ended_sessions
    count.ended_stay = count.last_ended_stay = count.ended_session = count.last_ended_session = -1
    count.ended_stays = count.ended_sessions = 0

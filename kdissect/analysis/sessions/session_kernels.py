"""The session tracker's kernel: uses and creations in order, rules and transitions in `session_rules`."""

from __future__ import annotations

from typing import NamedTuple

from kdissect.analysis.sessions import session_rules as r
from kdissect.analysis.sessions.session_layout import (
    NOT_KNOWN,
    NOT_SENT,
    POOLS,  # noqa: F401  (named in signatures)
    Pools,
    Session,
    SessionUse,
    counts_of,
    forgotten_at,
    session_at,
    session_topic_at,
    stay_at,
    use_at,
)
from kdissect.analysis.sessions.session_pools import (
    add_stay,
    end_session,
    find_session,
    find_stay,
    hashed,
    incarnations,
    link_newest,
    list_member,
    put_first,
    release_set,
    remove_stay,
    session_bucket,
    unlink_session,
    varint_bytes,
)
from kdissect.arrays.arrow import NULL_TIME, Int64s, Scalar
from kdissect.kernels.kernel import kernel, part
from kdissect.kernels.signature import fields
from kdissect.tables import fetch_rows as h
from kdissect.tables.fetch_rows import FetchRow, fetch_at, partition_at

TRANSITIONS = r.TRANSITIONS


class TopicNames(NamedTuple):
    """What is known of topics, by their codes."""

    name_of: Int64s
    """Code of its name, -1 unknown."""
    name_bytes: Int64s
    """Bytes of the name in a request; 0 for ids."""


TOPIC_NAMES = fields(TopicNames, "i8[:] i8[:]")
"""What kernels that take it declare."""


@part
def _named_bytes(
    version: Scalar, topics: Scalar, plain: Scalar, compact: Scalar, counts: Scalar, partitions: Scalar
) -> Scalar:
    """Bytes of the Topics field of a Fetch request: so many topics, bytes of their names, partitions."""
    if version >= r.FIRST_TOPIC_ID_VERSION:
        return varint_bytes(topics + 1) + topics * 17 + counts + partitions * 33
    if version >= r.FIRST_FLEXIBLE_VERSION:
        return varint_bytes(topics + 1) + compact + topics + counts + partitions * 33
    return 4 + plain + topics * 6 + partitions * (28 if version >= 9 else 24)


@part
def _next_epoch(epoch: Scalar) -> Scalar:
    """The epoch that the broker expects after this one."""
    return 1 if epoch >= r.LAST_EPOCH else epoch + 1


@part
def _compare_epochs(epoch: Scalar, expected: Scalar, last: Scalar, wraps: Scalar) -> Scalar:
    """Status of an epoch where another (or the same) was expected."""
    if epoch == expected:
        return r.WRAPPED if epoch == 1 and last > 0 else r.OK
    if wraps == 0 and not (expected == 1 and last > 0):
        return r.GAP if epoch > expected else r.REPEAT
    ahead = (epoch - expected) % r.LAST_EPOCH
    return r.GAP if ahead < r.LAST_EPOCH // 2 else r.REPEAT


@part
def open_session(
    state: Pools, broker: Scalar, number: Scalar, when: Scalar, epoch: Scalar, name_bytes: Int64s
) -> Scalar:
    """A new session; that of the same id, should there be one, must have been evicted. Its row."""
    count = counts_of(state.counts, 0)
    same = find_session(state, broker, number)
    if same >= 0:
        end_session(state, same, r.ENDED_EVICTED, when, name_bytes)
    if count.live_sessions >= count.most_sessions:
        count.dropped_sessions += 1
        end_session(state, count.oldest, r.STILL_OPEN, NULL_TIME, name_bytes)
    at = count.free_session
    session = session_at(state.sessions, at)
    count.free_session = session.next
    count.sessions_left -= 1
    count.live_sessions += 1
    state.sessions[at, :] = 0
    session.broker, session.id = broker, number
    session.incarnation = incarnations(state.remembered, broker, number) + 1
    session.serial = count.serial
    count.serial += 1
    session.opened, session.used, session.closed = when, when, NULL_TIME
    session.first_epoch, session.last_epoch, session.expected = epoch, epoch, _next_epoch(epoch)
    session.longest_idle, session.end, session.old_id, session.next = -1, -1, -1, -1
    session.first_stay, session.clients, session.connections = -1, -1, -1
    session.chain = put_first(state.by_id, session_bucket(broker, number, state.by_id), at)
    link_newest(state.sessions, count, at)
    return at


@part
def make_room(state: Pools, keep: Scalar, need: Scalar, name_bytes: Int64s) -> Scalar:
    """See to it that `need` partitions may enter; sets unused for longest are given up, never that of `keep`."""
    count = counts_of(state.counts, 0)
    if count.live_stays + need <= count.most_stays:
        return True
    goal = max(count.most_stays * 3 // 4 - need, 0)
    at = count.oldest
    while at >= 0 and count.live_stays > goal:
        session = session_at(state.sessions, at)
        if at != keep and session.size > 0:
            release_set(state, session, name_bytes)
            session.unknown = 1
            count.dropped_sets += 1
        at = session.newer
    return count.live_stays + need <= count.most_stays


@part
def note_forgotten(state: Pools, Q: Int64s, begin: Scalar, end: Scalar, session: Scalar, name_of: Int64s) -> Scalar:
    """Put the session's forgotten partitions of a request into the table of these by name; its size, 0 when none."""
    count = 0
    for q in range(begin, end):
        item = partition_at(Q, q)
        if item.flags & h.FORGOTTEN:
            count += 1
    if count == 0:
        return 0
    size = 2 * count
    for at in range(size):
        forgotten_at(state.forgotten, at).name = -1
    for q in range(begin, end):
        item = partition_at(Q, q)
        name = name_of[item.topic]
        if not item.flags & h.FORGOTTEN or name < 0:
            continue
        if find_stay(state, session, item.topic, item.partition) < 0:
            continue
        at = hashed(name, item.partition, 4) % size
        while forgotten_at(state.forgotten, at).name >= 0:
            at = (at + 1) % size
        known = forgotten_at(state.forgotten, at)
        known.name, known.partition, known.topic = name, item.partition, item.topic
    return size


@part
def was_forgotten(forgotten: Int64s, size: Scalar, name: Scalar, partition: Scalar, topic: Scalar) -> Scalar:
    """The same request forgets a partition of that name and number under another topic id."""
    if size == 0 or name < 0:
        return False
    at = hashed(name, partition, 4) % size
    while forgotten_at(forgotten, at).name >= 0:
        known = forgotten_at(forgotten, at)
        if known.name == name and known.partition == partition and known.topic != topic:
            return True
        at = (at + 1) % size
    return False


@part
def update_set(
    state: Pools, Q: Int64s, begin: Scalar, end: Scalar, row_of_session: Scalar, epoch: Scalar, row: FetchRow,
    names: TopicNames, out: SessionUse,
) -> None:  # fmt: skip
    """What an accepted request does to the set, and what it leaves unnamed: added, altered and replaced of `out`.

    `row.implied` is what remains unnamed after the request; the caller says when that is no answer.
    """
    session, count = session_at(state.sessions, row_of_session), counts_of(state.counts, 0)
    name_of, name_bytes = names.name_of, names.name_bytes
    known = session.unknown == 0
    count.stamp = (count.stamp + 1) & 0x7FFFFFFF
    stamp = count.stamp
    added = altered = replaced = removed = distinct = 0
    topics = plain = compact = counts = named = 0
    forgotten = 0
    room = True
    if end > begin:
        asked = 0
        for q in range(begin, end):
            asked += partition_at(Q, q).flags & h.ASKED
        if asked:
            room = make_room(state, row_of_session, asked, name_bytes)
            if not room:
                session.unknown = 1
                known = False
            if epoch > 0:
                forgotten = note_forgotten(state, Q, begin, end, row_of_session, name_of)
    for q in range(begin, end):
        item = partition_at(Q, q)
        if not item.flags & h.ASKED:
            continue
        topic, partition = item.topic, item.partition
        at = find_stay(state, row_of_session, topic, partition)
        if at < 0:
            if not room:
                continue
            from_epoch = epoch if known else -1
            at = add_stay(state, row_of_session, topic, partition, from_epoch, name_bytes[topic])
            if not known:
                stay_at(state.stays, at).high, stay_at(state.stays, at).start = NOT_KNOWN, NOT_KNOWN
            if was_forgotten(state.forgotten, forgotten, name_of[topic], partition, topic):
                replaced += 1
            else:
                added += 1
        else:
            altered += 1
        stay = stay_at(state.stays, at)
        stay.offset = item.offset
        if stay.stamp != stamp:
            stay.stamp = stamp
            distinct += 1
        of_topic = session_topic_at(state.topics, stay.of_topic)
        if of_topic.stamp != stamp:
            of_topic.stamp, of_topic.named = stamp, 0
            topics += 1
            plain += name_bytes[topic]
            compact += name_bytes[topic] + varint_bytes(name_bytes[topic] + 1)
            counts += 1
        before = of_topic.named
        of_topic.named = before + 1
        counts += varint_bytes(before + 2) - varint_bytes(before + 1)
        named += 1
    for q in range(begin, end):
        item = partition_at(Q, q)
        if not item.flags & h.FORGOTTEN:
            continue
        at = find_stay(state, row_of_session, item.topic, item.partition)
        if at >= 0:
            if stay_at(state.stays, at).stamp == stamp:
                distinct -= 1
            remove_stay(state, at, epoch, name_bytes[item.topic])
            removed += 1
        elif not known:
            removed += 1
    if epoch > 0:
        session.churn += removed + (added + replaced if known else 0)
        whole = _named_bytes(
            row.version, session.topics, session.plain, session.compact, session.counts, session.size
        )  # fmt: skip
        session.avoided += max(0, whole - _named_bytes(row.version, topics, plain, compact, counts, named))
    session.most = max(session.most, session.size)
    if known:
        out.added, out.altered, out.replaced = added, altered, replaced
        row.implied = session.size - distinct


@part
def read_answer(
    state: Pools, Q: Int64s, begin: Scalar, end: Scalar, row_of_session: Scalar, full: Scalar, name_bytes: Int64s
) -> Scalar:
    """What an answer returns and, when it is not a full one, why; it is remembered as sent. How many it returned."""
    session, count = session_at(state.sessions, row_of_session), counts_of(state.counts, 0)
    returned = 0
    for q in range(begin, end):
        item = partition_at(Q, q)
        if not item.flags & h.GIVEN:
            continue
        returned += 1
        topic, partition = item.topic, item.partition
        at = find_stay(state, row_of_session, topic, partition)
        if at < 0 and session.unknown and count.live_stays < count.most_stays:
            at = add_stay(state, row_of_session, topic, partition, -1, name_bytes[topic])
            stay_at(state.stays, at).high, stay_at(state.stays, at).start = NOT_KNOWN, NOT_KNOWN
        high = start = NOT_KNOWN
        if at >= 0:
            stay = stay_at(state.stays, at)
            high, start = stay.high, stay.start
            item.session_offset = stay.offset
            stay.high = NOT_SENT if item.error != 0 else item.high
            stay.start = item.start
        if full:
            item.reason = r.FULL
        elif item.error != 0:
            item.reason = r.PARTITION_ERROR
        elif item.records > 0:
            item.reason = r.RECORDS
        elif item.diverging >= 0:
            item.reason = r.DIVERGING
        elif item.preferred >= 0:
            item.reason = r.PREFERRED
        elif high != NOT_KNOWN and high != item.high:
            item.reason = r.HIGH_WATERMARK
        elif start != NOT_KNOWN and start != item.start:
            item.reason = r.LOG_START
        else:
            item.reason = r.UNKNOWN_REASON
    session.most = max(session.most, session.size)
    return returned


@part
def touch(state: Pools, at: Scalar, when: Scalar) -> None:
    """An accepted use."""
    session, count = session_at(state.sessions, at), counts_of(state.counts, 0)
    session.longest_idle = max(session.longest_idle, when - session.used)
    session.used = when
    if count.newest != at:
        unlink_session(state.sessions, count, session)
        link_newest(state.sessions, count, at)


@part
def identify(session: Session, out: SessionUse) -> None:
    """The fetch belongs to this session."""
    out.serial, out.id, out.incarnation = session.serial, session.id, session.incarnation


@part
def count_request(state: Pools, session: Session, row: FetchRow) -> None:
    """A request names (or created) the session."""
    session.requests += 1
    session.bytes += max(row.size, 0)
    session.version = max(session.version, row.version)
    if row.client >= 0:
        session.clients = list_member(state, session.clients, row.client)
    session.connections = list_member(state, session.connections, row.connection)


@kernel("i8[:] i8[:,:] i8[:] i8[:,:] i8[:,:] POOLS TOPIC_NAMES b1")
def run(
    events: Int64s, R: Int64s, firsts: Int64s, Q: Int64s, uses: Int64s, state: Pools, names: TopicNames,
    partitions_known: Scalar,
) -> None:  # fmt: skip
    """Uses (2 * row) and creations (2 * row + 1) in order. Partitions of row i are Q[firsts[i]:firsts[i + 1]].

    Outputs: `uses` and `implied` of each row; of each partition its reason in an answer and the session's offset.
    """
    name_bytes = names.name_bytes
    for event in events:
        i = event >> 1
        row, out = fetch_at(R, i), use_at(uses, i)
        outcome, begin, end = row.outcome, firsts[i], firsts[i + 1]
        if event & 1:
            at = open_session(state, row.broker, row.given_session, row.answered, 0, name_bytes)
            session = session_at(state.sessions, at)
            if not partitions_known:
                session.unknown = 1
            if out.serial >= 0:
                session.old_id, session.old_incarnation = out.id, out.incarnation
            update_set(state, Q, begin, end, at, 0, row, names, out)
            row.implied = 0
            read_answer(state, Q, begin, end, at, True, name_bytes)
            count_request(state, session, row)
            identify(session, out)
            continue
        at = find_session(state, row.broker, row.session)
        action = TRANSITIONS[row.kind, outcome]
        if row.kind == r.INCREMENTAL:
            if outcome == r.EPOCH_ERROR and row.given_session == row.session:
                action = r.ACCEPT
            accepted = action == r.ACCEPT or action == r.ACCEPT_EMPTY
            epoch, status = row.epoch, r.UNKNOWN_START
            if at < 0:
                out.status = status
                if not accepted:
                    if action != r.ASSUME:
                        out.added, out.altered, out.replaced = 0, 0, 0
                    continue
                at = open_session(state, row.broker, row.session, row.used, epoch, name_bytes)
                session = session_at(state.sessions, at)
                session.unknown, session.censored = 1, 1
            else:
                session = session_at(state.sessions, at)
                status = _compare_epochs(epoch, session.expected, session.last_epoch, session.wraps)
                if status == r.GAP and row.unseen != NULL_TIME and session.used <= row.unseen:
                    status = r.NOT_CAPTURED
                out.expected, out.status = session.expected, status
                session.gaps += status == r.GAP
                session.not_captured += status == r.NOT_CAPTURED
                session.repeats += status == r.REPEAT
            count_request(state, session, row)
            identify(session, out)
            due = status == r.OK or status == r.WRAPPED
            if accepted or (action == r.ASSUME and due):
                if status == r.GAP or status == r.REPEAT or status == r.NOT_CAPTURED:
                    session.unknown = 1
                session.wraps += status == r.WRAPPED
                session.expected = _next_epoch(epoch)
                if status != r.UNKNOWN_START:
                    touch(state, at, row.used)
                update_set(state, Q, begin, end, at, epoch, row, names, out)
            if accepted:
                session.last_epoch = epoch
                if outcome == r.CONTINUED:
                    held = session.size
                    returned = read_answer(state, Q, begin, end, at, False, name_bytes)
                    if not session.unknown:
                        session.held += held
                        session.returned += returned
                        out.hidden = held - returned
                elif outcome == r.EPOCH_ERROR:
                    row.implied = -1
                if action == r.ACCEPT_EMPTY:
                    row.implied = 0
                    end_session(state, at, r.ENDED_EMPTY, row.used, name_bytes)
                continue
            row.implied = -1
            if action == r.ASSUME:
                out.added, out.altered, out.replaced = -1, -1, -1
                continue
            out.added, out.altered, out.replaced = 0, 0, 0
            if action == r.END_EVICTED:
                end_session(state, at, r.ENDED_EVICTED, row.used, name_bytes)
            elif due and outcome == r.EPOCH_ERROR:
                session.unknown = 1
        elif at >= 0 and action != r.NOTHING:
            session = session_at(state.sessions, at)
            count_request(state, session, row)
            identify(session, out)
            reason = r.ENDED_REPLACED if action == r.END_REPLACED else r.ENDED_CLOSED
            end_session(state, at, reason, row.used, name_bytes)


@kernel("POOLS i8[:]")
def end_all(state: Pools, name_bytes: Int64s) -> None:
    """The capture has ended: what lives is open."""
    count = counts_of(state.counts, 0)
    while count.oldest >= 0:
        end_session(state, count.oldest, r.STILL_OPEN, NULL_TIME, name_bytes)

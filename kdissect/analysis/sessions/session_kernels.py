"""The session tracker's kernel: uses and creations in order, rules and transitions in `session_rules`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kdissect.analysis.sessions import session_layout as c
from kdissect.analysis.sessions import session_rules as r
from kdissect.analysis.sessions.session_epochs import compare, named_bytes, next_epoch
from kdissect.analysis.sessions.session_layout import POOLS, use_at  # noqa: F401  (POOLS is named in signatures)
from kdissect.analysis.sessions.session_pools import (
    add_partition,
    end_session,
    find_partition,
    find_session,
    hashed,
    incarnations,
    link_newest,
    note_member,
    release_set,
    remove_partition,
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
def open_session(
    state: c.Pools, broker: Scalar, number: Scalar, when: Scalar, epoch: Scalar, name_bytes: Int64s
) -> Scalar:
    """A new session; that of the same id, should there be one, must have been evicted. Its row."""
    S, SH, M = state.S, state.SH, state.M
    same = find_session(S, SH, broker, number)
    if same >= 0:
        end_session(state, same, r.ENDED_EVICTED, when, name_bytes)
    if M[c.M_LIVE_S] >= M[c.M_MAX_S]:
        M[c.M_DROPPED_SESSIONS] += 1
        end_session(state, M[c.M_OLDEST], r.STILL_OPEN, NULL_TIME, name_bytes)
    at = M[c.M_FREE_S]
    M[c.M_FREE_S] = S[at, c.S_NEXT]
    M[c.M_LEFT_S] -= 1
    M[c.M_LIVE_S] += 1
    S[at, :] = 0
    S[at, c.S_BROKER], S[at, c.S_ID] = broker, number
    S[at, c.S_INCARNATION] = incarnations(state.D, broker, number) + 1
    S[at, c.S_SERIAL] = M[c.M_SERIAL]
    M[c.M_SERIAL] += 1
    S[at, c.S_OPENED], S[at, c.S_USED], S[at, c.S_CLOSED] = when, when, NULL_TIME
    S[at, c.S_FIRST], S[at, c.S_LAST], S[at, c.S_EXPECTED] = epoch, epoch, next_epoch(epoch)
    S[at, c.S_IDLE], S[at, c.S_END], S[at, c.S_OLD_ID], S[at, c.S_NEXT] = -1, -1, -1, -1
    S[at, c.S_FIRST_PARTITION], S[at, c.S_CLIENTS], S[at, c.S_CONNECTIONS] = -1, -1, -1
    bucket = hashed(broker, number, 1) & (len(SH) - 1)
    S[at, c.S_CHAIN] = SH[bucket]
    SH[bucket] = at
    link_newest(S, M, at)
    return at


@part
def make_room(state: c.Pools, keep: Scalar, need: Scalar, name_bytes: Int64s) -> Scalar:
    """See to it that `need` partitions may enter; sets unused for longest are given up, never that of `keep`."""
    S, M = state.S, state.M
    if M[c.M_LIVE_P] + need <= M[c.M_MAX_P]:
        return True
    goal = max(M[c.M_MAX_P] * 3 // 4 - need, 0)
    at = M[c.M_OLDEST]
    while at >= 0 and M[c.M_LIVE_P] > goal:
        if at != keep and S[at, c.S_SIZE] > 0:
            release_set(state, at, name_bytes)
            S[at, c.S_UNKNOWN] = 1
            M[c.M_DROPPED_SETS] += 1
        at = S[at, c.S_NEWER]
    return M[c.M_LIVE_P] + need <= M[c.M_MAX_P]


@part
def note_forgotten(state: c.Pools, Q: Int64s, begin: Scalar, end: Scalar, session: Scalar, name_of: Int64s) -> Scalar:
    """Put the session's forgotten partitions of a request into the scratch table by name; its size, 0 when none."""
    P, PH, X = state.P, state.PH, state.X
    count = 0
    for q in range(begin, end):
        item = partition_at(Q, q)
        if item.flags & h.FORGOTTEN:
            count += 1
    if count == 0:
        return 0
    size = 2 * count
    X[:size, 0] = -1
    for q in range(begin, end):
        item = partition_at(Q, q)
        name = name_of[item.topic]
        if not item.flags & h.FORGOTTEN or name < 0:
            continue
        if find_partition(P, PH, session, item.topic, item.partition) < 0:
            continue
        at = hashed(name, item.partition, 4) % size
        while X[at, 0] >= 0:
            at = (at + 1) % size
        X[at, 0], X[at, 1], X[at, 2] = name, item.partition, item.topic
    return size


@part
def was_forgotten(X: Int64s, size: Scalar, name: Scalar, partition: Scalar, topic: Scalar) -> Scalar:
    """The same request forgets a partition of that name and number under another topic id."""
    if size == 0 or name < 0:
        return False
    at = hashed(name, partition, 4) % size
    while X[at, 0] >= 0:
        if X[at, 0] == name and X[at, 1] == partition and X[at, 2] != topic:
            return True
        at = (at + 1) % size
    return False


@part
def update_set(
    state: c.Pools, Q: Int64s, begin: Scalar, end: Scalar, session: Scalar, epoch: Scalar, row: FetchRow,
    names: TopicNames, out: c.SessionUse,
) -> None:  # fmt: skip
    """What an accepted request does to the set, and what it leaves unnamed: added, altered and replaced of `out`.

    `row.implied` is what remains unnamed after the request; the caller says when that is no answer.
    """
    S, P, V, T, PH, M = state.S, state.P, state.V, state.T, state.PH, state.M
    name_of, name_bytes = names.name_of, names.name_bytes
    known = S[session, c.S_UNKNOWN] == 0
    M[c.M_STAMP] = (M[c.M_STAMP] + 1) & 0x7FFFFFFF
    stamp = M[c.M_STAMP]
    added = altered = replaced = removed = distinct = 0
    topics = plain = compact = counts = named = 0
    scratch = 0
    room = True
    if end > begin:
        asked = 0
        for q in range(begin, end):
            asked += partition_at(Q, q).flags & h.ASKED
        if asked:
            room = make_room(state, session, asked, name_bytes)
            if not room:
                S[session, c.S_UNKNOWN] = 1
                known = False
            if epoch > 0:
                scratch = note_forgotten(state, Q, begin, end, session, name_of)
    for q in range(begin, end):
        item = partition_at(Q, q)
        if not item.flags & h.ASKED:
            continue
        topic, partition = item.topic, item.partition
        at = find_partition(P, PH, session, topic, partition)
        if at < 0:
            if not room:
                continue
            from_epoch = epoch if known else -1
            at = add_partition(state, session, topic, partition, from_epoch, name_bytes[topic])
            if not known:
                V[at, c.V_HIGH], V[at, c.V_START] = c.NOT_KNOWN, c.NOT_KNOWN
            if was_forgotten(state.X, scratch, name_of[topic], partition, topic):
                replaced += 1
            else:
                added += 1
        else:
            altered += 1
        V[at, c.V_OFFSET] = item.offset
        if P[at, c.P_STAMP] != stamp:
            P[at, c.P_STAMP] = stamp
            distinct += 1
        of_topic = P[at, c.P_OF_TOPIC]
        if T[of_topic, c.T_STAMP] != stamp:
            T[of_topic, c.T_STAMP], T[of_topic, c.T_NAMED] = stamp, 0
            topics += 1
            plain += name_bytes[topic]
            compact += name_bytes[topic] + varint_bytes(name_bytes[topic] + 1)
            counts += 1
        of = np.int64(T[of_topic, c.T_NAMED])
        T[of_topic, c.T_NAMED] = of + 1
        counts += varint_bytes(of + 2) - varint_bytes(of + 1)
        named += 1
    for q in range(begin, end):
        item = partition_at(Q, q)
        if not item.flags & h.FORGOTTEN:
            continue
        at = find_partition(P, PH, session, item.topic, item.partition)
        if at >= 0:
            if P[at, c.P_STAMP] == stamp:
                distinct -= 1
            remove_partition(state, at, epoch, name_bytes[item.topic])
            removed += 1
        elif not known:
            removed += 1
    if epoch > 0:
        S[session, c.S_CHURN] += removed + (added + replaced if known else 0)
        whole = named_bytes(
            row.version, S[session, c.S_TOPICS], S[session, c.S_PLAIN], S[session, c.S_COMPACT], S[session, c.S_COUNTS],
            S[session, c.S_SIZE],
        )  # fmt: skip
        S[session, c.S_AVOIDED] += max(0, whole - named_bytes(row.version, topics, plain, compact, counts, named))
    S[session, c.S_MOST] = max(S[session, c.S_MOST], S[session, c.S_SIZE])
    if known:
        out.added, out.altered, out.replaced = added, altered, replaced
        row.implied = S[session, c.S_SIZE] - distinct


@part
def read_answer(
    state: c.Pools, Q: Int64s, begin: Scalar, end: Scalar, session: Scalar, full: Scalar, name_bytes: Int64s
) -> Scalar:
    """What an answer returns and, when it is not a full one, why; it is remembered as sent. How many it returned."""
    S, P, V, PH, M = state.S, state.P, state.V, state.PH, state.M
    returned = 0
    for q in range(begin, end):
        item = partition_at(Q, q)
        if not item.flags & h.GIVEN:
            continue
        returned += 1
        topic, partition = item.topic, item.partition
        at = find_partition(P, PH, session, topic, partition)
        if at < 0 and S[session, c.S_UNKNOWN] and M[c.M_LIVE_P] < M[c.M_MAX_P]:
            at = add_partition(state, session, topic, partition, -1, name_bytes[topic])
            V[at, c.V_HIGH], V[at, c.V_START] = c.NOT_KNOWN, c.NOT_KNOWN
        high, start = np.int64(c.NOT_KNOWN), np.int64(c.NOT_KNOWN)
        if at >= 0:
            high, start = V[at, c.V_HIGH], V[at, c.V_START]
            item.session_offset = V[at, c.V_OFFSET]
            V[at, c.V_HIGH] = c.NOT_SENT if item.error != 0 else item.high
            V[at, c.V_START] = item.start
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
        elif high != c.NOT_KNOWN and high != item.high:
            item.reason = r.HIGH_WATERMARK
        elif start != c.NOT_KNOWN and start != item.start:
            item.reason = r.LOG_START
        else:
            item.reason = r.UNKNOWN_REASON
    S[session, c.S_MOST] = max(S[session, c.S_MOST], S[session, c.S_SIZE])
    return returned


@part
def touch(S: Int64s, M: Int64s, at: Scalar, when: Scalar) -> None:
    """An accepted use."""
    S[at, c.S_IDLE] = max(S[at, c.S_IDLE], when - S[at, c.S_USED])
    S[at, c.S_USED] = when
    if M[c.M_NEWEST] != at:
        unlink_session(S, M, at)
        link_newest(S, M, at)


@part
def identify(S: Int64s, at: Scalar, out: c.SessionUse) -> None:
    """The fetch belongs to this session."""
    out.serial, out.id, out.incarnation = S[at, c.S_SERIAL], S[at, c.S_ID], S[at, c.S_INCARNATION]


@part
def count_request(S: Int64s, N: Int64s, M: Int64s, at: Scalar, row: FetchRow) -> None:
    """A request names (or created) the session."""
    S[at, c.S_REQUESTS] += 1
    S[at, c.S_BYTES] += max(row.size, 0)
    S[at, c.S_VERSION] = max(S[at, c.S_VERSION], row.version)
    if row.client >= 0:
        note_member(S, N, M, at, c.S_CLIENTS, row.client)
    note_member(S, N, M, at, c.S_CONNECTIONS, row.connection)


@kernel("i8[:] i8[:,:] i8[:] i8[:,:] i8[:,:] POOLS TOPIC_NAMES b1")
def run(
    events: Int64s, R: Int64s, firsts: Int64s, Q: Int64s, uses: Int64s, state: c.Pools, names: TopicNames,
    partitions_known: Scalar,
) -> None:  # fmt: skip
    """Uses (2 * row) and creations (2 * row + 1) in order. Partitions of row i are Q[firsts[i]:firsts[i + 1]].

    Outputs: `uses` and `implied` of each row; of each partition its reason in an answer and the session's offset.
    """
    S, SH, M, N, name_bytes = state.S, state.SH, state.M, state.N, names.name_bytes
    for event in events:
        i = event >> 1
        row, out = fetch_at(R, i), use_at(uses, i)
        broker, outcome = row.broker, row.outcome
        begin, end = firsts[i], firsts[i + 1]
        if event & 1:
            at = open_session(state, broker, row.given_session, row.answered, 0, name_bytes)
            if not partitions_known:
                S[at, c.S_UNKNOWN] = 1
            if out.serial >= 0:
                S[at, c.S_OLD_ID], S[at, c.S_OLD_INCARNATION] = out.id, out.incarnation
            update_set(state, Q, begin, end, at, 0, row, names, out)
            row.implied = 0
            read_answer(state, Q, begin, end, at, True, name_bytes)
            count_request(S, N, M, at, row)
            identify(S, at, out)
            continue
        at = find_session(S, SH, broker, row.session)
        kind = row.kind
        action = TRANSITIONS[kind, outcome]
        if kind == r.INCREMENTAL:
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
                at = open_session(state, broker, row.session, row.used, epoch, name_bytes)
                S[at, c.S_UNKNOWN], S[at, c.S_CENSORED] = 1, 1
            else:
                status = compare(epoch, S[at, c.S_EXPECTED], S[at, c.S_LAST], S[at, c.S_WRAPS])
                if status == r.GAP and row.unseen != NULL_TIME and S[at, c.S_USED] <= row.unseen:
                    status = r.NOT_CAPTURED
                out.expected, out.status = S[at, c.S_EXPECTED], status
                S[at, c.S_GAPS] += status == r.GAP
                S[at, c.S_UNSEEN] += status == r.NOT_CAPTURED
                S[at, c.S_REPEATS] += status == r.REPEAT
            count_request(S, N, M, at, row)
            identify(S, at, out)
            due = status == r.OK or status == r.WRAPPED
            if accepted or (action == r.ASSUME and due):
                if status == r.GAP or status == r.REPEAT or status == r.NOT_CAPTURED:
                    S[at, c.S_UNKNOWN] = 1
                S[at, c.S_WRAPS] += status == r.WRAPPED
                S[at, c.S_EXPECTED] = next_epoch(epoch)
                if status != r.UNKNOWN_START:
                    touch(S, M, at, row.used)
                update_set(state, Q, begin, end, at, epoch, row, names, out)
            if accepted:
                S[at, c.S_LAST] = epoch
                if outcome == r.CONTINUED:
                    held = S[at, c.S_SIZE]
                    returned = read_answer(state, Q, begin, end, at, False, name_bytes)
                    if not S[at, c.S_UNKNOWN]:
                        S[at, c.S_HELD] += held
                        S[at, c.S_RETURNED] += returned
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
                S[at, c.S_UNKNOWN] = 1
        elif at >= 0 and action != r.NOTHING:
            count_request(S, N, M, at, row)
            identify(S, at, out)
            reason = r.ENDED_REPLACED if action == r.END_REPLACED else r.ENDED_CLOSED
            end_session(state, at, reason, row.used, name_bytes)


@kernel("POOLS i8[:]")
def end_all(state: c.Pools, name_bytes: Int64s) -> None:
    """The capture has ended: what lives is open."""
    M = state.M
    while M[c.M_OLDEST] >= 0:
        end_session(state, M[c.M_OLDEST], r.STILL_OPEN, NULL_TIME, name_bytes)

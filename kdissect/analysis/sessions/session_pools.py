"""Kernels over the tracker's pools: finding, adding and removing sessions, partitions, and members of lists."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kdissect.analysis.sessions import session_layout as c
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
def varint_bytes(value: Scalar) -> Scalar:
    """Bytes of an unsigned varint."""
    size = 1
    while value >= 128:
        value >>= 7
        size += 1
    return size


@part
def find_session(S: Int64s, SH: Int32s, broker: Scalar, number: Scalar) -> Scalar:
    """Row of a live session, -1."""
    at = np.int64(SH[hashed(broker, number, 1) & (len(SH) - 1)])
    while at >= 0:
        if S[at, c.S_ID] == number and S[at, c.S_BROKER] == broker:
            return at
        at = S[at, c.S_CHAIN]
    return -1


@part
def find_partition(P: Int32s, PH: Int32s, session: Scalar, topic: Scalar, partition: Scalar) -> Scalar:
    """Row of a partition in a session, -1."""
    at = np.int64(PH[hashed(session, topic, partition) & (len(PH) - 1)])
    while at >= 0:
        if P[at, c.P_SESSION] == session and P[at, c.P_PARTITION] == partition and P[at, c.P_TOPIC] == topic:
            return at
        at = np.int64(P[at, c.P_CHAIN])
    return -1


@part
def unchain(pool: Int32s | Int64s, H: Int32s, column: Scalar, bucket: Scalar, at: Scalar) -> None:
    """Take a row out of its bucket."""
    here = np.int64(H[bucket])
    if here == at:
        H[bucket] = pool[at, column]
        return
    while here >= 0:
        following = np.int64(pool[here, column])
        if following == at:
            pool[here, column] = pool[at, column]
            return
        here = following


@kernel("i8[:,:] i4[:] i4[:]")
def rehash_sessions(S: Int64s, old: Int32s, new: Int32s) -> None:
    """Move all live sessions to a larger table."""
    for bucket in range(len(old)):
        at = np.int64(old[bucket])
        while at >= 0:
            following = S[at, c.S_CHAIN]
            place = hashed(S[at, c.S_BROKER], S[at, c.S_ID], 1) & (len(new) - 1)
            S[at, c.S_CHAIN] = new[place]
            new[place] = at
            at = following


@kernel("i4[:,:] i4[:] i4[:]")
def rehash_partitions(P: Int32s, old: Int32s, new: Int32s) -> None:
    """Move all live partitions to a larger table."""
    for bucket in range(len(old)):
        at = np.int64(old[bucket])
        while at >= 0:
            following = np.int64(P[at, c.P_CHAIN])
            place = hashed(P[at, c.P_SESSION], P[at, c.P_TOPIC], P[at, c.P_PARTITION]) & (len(new) - 1)
            P[at, c.P_CHAIN] = new[place]
            new[place] = at
            at = following


@kernel("i4[:,:] i4[:] i4[:]")
def rehash_topics(T: Int32s, old: Int32s, new: Int32s) -> None:
    """Move all live topics to a larger table."""
    for bucket in range(len(old)):
        at = np.int64(old[bucket])
        while at >= 0:
            following = np.int64(T[at, c.T_CHAIN])
            place = hashed(T[at, c.T_SESSION], T[at, c.T_TOPIC], 2) & (len(new) - 1)
            T[at, c.T_CHAIN] = new[place]
            new[place] = at
            at = following


@kernel("i8[:,:] i8[:,:]")
def rehash_remembered(old: Int64s, new: Int64s) -> None:
    """Move the remembered ids to a larger table."""
    for i in range(len(old)):
        if old[i, 0] >= 0:
            at = hashed(old[i, 0], 0, 3) & (len(new) - 1)
            while new[at, 0] >= 0:
                at = (at + 1) & (len(new) - 1)
            new[at, 0], new[at, 1] = old[i, 0], old[i, 1]


@part
def incarnations(D: Int64s, broker: Scalar, number: Scalar) -> Scalar:
    """How many sessions of that broker and id have ended, as far as remembered."""
    key = broker << 32 | (number & 0xFFFFFFFF)
    at = hashed(key, 0, 3) & (len(D) - 1)
    while D[at, 0] >= 0:
        if D[at, 0] == key:
            return D[at, 1]
        at = (at + 1) & (len(D) - 1)
    return 0


@part
def remember(D: Int64s, M: Int64s, broker: Scalar, number: Scalar, incarnation: Scalar) -> None:
    """A session has ended."""
    if M[c.M_REMEMBERED] >= MAX_REMEMBERED:
        D[:, 0] = -1
        M[c.M_REMEMBERED] = 0
    key = broker << 32 | (number & 0xFFFFFFFF)
    at = hashed(key, 0, 3) & (len(D) - 1)
    while D[at, 0] >= 0:
        if D[at, 0] == key:
            D[at, 1] = incarnation
            return
        at = (at + 1) & (len(D) - 1)
    D[at, 0], D[at, 1] = key, incarnation
    M[c.M_REMEMBERED] += 1


@part
def note_member(S: Int64s, N: Int64s, M: Int64s, session: Scalar, column: Scalar, value: Scalar) -> None:
    """Add a client or connection to a session's list, once, in order of appearance."""
    at = S[session, column]
    last: Scalar = np.int64(-1)
    length = 0
    while at >= 0:
        if N[at, c.N_VALUE] == value:
            return
        last = at
        at = N[at, c.N_NEXT]
        length += 1
    if length >= MAX_NAMES:
        return
    new = M[c.M_FREE_N]
    M[c.M_FREE_N] = N[new, c.N_NEXT]
    M[c.M_LEFT_N] -= 1
    N[new, c.N_VALUE], N[new, c.N_NEXT] = value, -1
    if last < 0:
        S[session, column] = new
    else:
        N[last, c.N_NEXT] = new


@part
def unlink_session(S: Int64s, M: Int64s, at: Scalar) -> None:
    """Take a session out of the list that is ordered by last use."""
    older, newer = S[at, c.S_OLDER], S[at, c.S_NEWER]
    if older >= 0:
        S[older, c.S_NEWER] = newer
    else:
        M[c.M_OLDEST] = newer
    if newer >= 0:
        S[newer, c.S_OLDER] = older
    else:
        M[c.M_NEWEST] = older


@part
def link_newest(S: Int64s, M: Int64s, at: Scalar) -> None:
    """Put a session at the recent end of that list."""
    S[at, c.S_OLDER], S[at, c.S_NEWER] = M[c.M_NEWEST], -1
    if M[c.M_NEWEST] >= 0:
        S[M[c.M_NEWEST], c.S_NEWER] = at
    else:
        M[c.M_OLDEST] = at
    M[c.M_NEWEST] = at


@part
def topic_of(state: c.Pools, session: Scalar, topic: Scalar, name_bytes: Scalar) -> Scalar:
    """The session's row for a topic, a new one when it has none."""
    S, T, TH, M = state.S, state.T, state.TH, state.M
    bucket = hashed(session, topic, 2) & (len(TH) - 1)
    at = np.int64(TH[bucket])
    while at >= 0:
        if T[at, c.T_SESSION] == session and T[at, c.T_TOPIC] == topic:
            return at
        at = np.int64(T[at, c.T_CHAIN])
    at = M[c.M_FREE_T]
    M[c.M_FREE_T] = T[at, c.T_NEXT]
    M[c.M_LEFT_T] -= 1
    T[at, c.T_SESSION], T[at, c.T_TOPIC], T[at, c.T_COUNT] = session, topic, 0
    T[at, c.T_STAMP], T[at, c.T_NAMED], T[at, c.T_CHAIN] = -1, 0, TH[bucket]
    TH[bucket] = at
    S[session, c.S_TOPICS] += 1
    S[session, c.S_PLAIN] += name_bytes
    S[session, c.S_COMPACT] += name_bytes + varint_bytes(name_bytes + 1)
    S[session, c.S_COUNTS] += 1
    return at


@part
def leave_topic(state: c.Pools, at: Scalar, name_bytes: Scalar) -> None:
    """One partition less of a topic; its row goes with the last."""
    S, T, TH, M = state.S, state.T, state.TH, state.M
    session, count = np.int64(T[at, c.T_SESSION]), np.int64(T[at, c.T_COUNT])
    T[at, c.T_COUNT] = count - 1
    S[session, c.S_COUNTS] += varint_bytes(count) - varint_bytes(count + 1)
    if count > 1:
        return
    unchain(T, TH, c.T_CHAIN, hashed(session, T[at, c.T_TOPIC], 2) & (len(TH) - 1), at)
    T[at, c.T_NEXT] = M[c.M_FREE_T]
    M[c.M_FREE_T] = at
    M[c.M_LEFT_T] += 1
    S[session, c.S_TOPICS] -= 1
    S[session, c.S_PLAIN] -= name_bytes
    S[session, c.S_COMPACT] -= name_bytes + varint_bytes(name_bytes + 1)
    S[session, c.S_COUNTS] -= 1


@part
def add_partition(
    state: c.Pools, session: Scalar, topic: Scalar, partition: Scalar, epoch: Scalar, name_bytes: Scalar
) -> Scalar:
    """A partition enters a session (epoch -1: when is not known). Its row."""
    S, P, V, T, PH, M = state.S, state.P, state.V, state.T, state.PH, state.M
    newest = S[session, c.S_FIRST_PARTITION]
    if newest >= 0 and P[newest, c.P_TOPIC] == topic:  # partitions of a topic come together
        of_topic = np.int64(P[newest, c.P_OF_TOPIC])
    else:
        of_topic = topic_of(state, session, topic, name_bytes)
    count = np.int64(T[of_topic, c.T_COUNT])
    T[of_topic, c.T_COUNT] = count + 1
    S[session, c.S_COUNTS] += varint_bytes(count + 2) - varint_bytes(count + 1)
    at = M[c.M_FREE_P]
    M[c.M_FREE_P] = np.int64(P[at, c.P_NEXT])
    M[c.M_LEFT_P] -= 1
    M[c.M_LIVE_P] += 1
    bucket = hashed(session, topic, partition) & (len(PH) - 1)
    P[at, c.P_SESSION], P[at, c.P_TOPIC], P[at, c.P_PARTITION] = session, topic, partition
    P[at, c.P_FROM], P[at, c.P_TO], P[at, c.P_OF_TOPIC], P[at, c.P_STAMP] = epoch, -1, of_topic, -1
    P[at, c.P_CHAIN] = PH[bucket]
    PH[bucket] = at
    first = S[session, c.S_FIRST_PARTITION]
    P[at, c.P_PREVIOUS], P[at, c.P_NEXT] = -1, first
    if first >= 0:
        P[first, c.P_PREVIOUS] = at
    S[session, c.S_FIRST_PARTITION] = at
    S[session, c.S_SIZE] += 1
    V[at, c.V_OFFSET], V[at, c.V_HIGH], V[at, c.V_START] = -1, c.NOT_SENT, c.NOT_SENT
    return at


@part
def remove_partition(state: c.Pools, at: Scalar, epoch: Scalar, name_bytes: Scalar) -> None:
    """A partition leaves its session by the request of that epoch (-1: with the session); its stay has ended."""
    S, P, PH, M = state.S, state.P, state.PH, state.M
    session = np.int64(P[at, c.P_SESSION])
    bucket = hashed(session, P[at, c.P_TOPIC], P[at, c.P_PARTITION]) & (len(PH) - 1)
    unchain(P, PH, c.P_CHAIN, bucket, at)
    before, following = np.int64(P[at, c.P_PREVIOUS]), np.int64(P[at, c.P_NEXT])
    if before >= 0:
        P[before, c.P_NEXT] = following
    else:
        S[session, c.S_FIRST_PARTITION] = following
    if following >= 0:
        P[following, c.P_PREVIOUS] = before
    leave_topic(state, np.int64(P[at, c.P_OF_TOPIC]), name_bytes)
    S[session, c.S_SIZE] -= 1
    M[c.M_LIVE_P] -= 1
    P[at, c.P_TO], P[at, c.P_NEXT] = epoch, -1
    if M[c.M_ENDED_P] < 0:
        M[c.M_ENDED_P] = at
    else:
        P[M[c.M_ENDED_P_LAST], c.P_NEXT] = at
    M[c.M_ENDED_P_LAST] = at


@part
def release_set(state: c.Pools, session: Scalar, name_bytes: Int64s) -> None:
    """All partitions leave a session."""
    S, P = state.S, state.P
    at = S[session, c.S_FIRST_PARTITION]
    while at >= 0:
        following = np.int64(P[at, c.P_NEXT])
        remove_partition(state, at, -1, name_bytes[P[at, c.P_TOPIC]])
        at = following


@part
def end_session(state: c.Pools, at: Scalar, reason: Scalar, when: Scalar, name_bytes: Int64s) -> None:
    """A session is over: its row waits to be collected."""
    S, SH, M = state.S, state.SH, state.M
    release_set(state, at, name_bytes)
    unchain(S, SH, c.S_CHAIN, hashed(S[at, c.S_BROKER], S[at, c.S_ID], 1) & (len(SH) - 1), at)
    unlink_session(S, M, at)
    remember(state.D, M, S[at, c.S_BROKER], S[at, c.S_ID], S[at, c.S_INCARNATION])
    S[at, c.S_END], S[at, c.S_CLOSED], S[at, c.S_NEXT] = reason, when, -1
    M[c.M_LIVE_S] -= 1
    if M[c.M_ENDED_S] < 0:
        M[c.M_ENDED_S] = at
    else:
        S[M[c.M_ENDED_S_LAST], c.S_NEXT] = at
    M[c.M_ENDED_S_LAST] = at


@kernel("i4[:,:] i8 i8 i8[:] -> i8", "i8[:,:] i8 i8 i8[:] -> i8")
def chain(pool: Int32s | Int64s, first: Scalar, column: Scalar, rows: Int64s) -> int:
    """Write the rows of a linked list to `rows`, as many as there is room for; returns how many there are."""
    count = 0
    at = np.int64(first)
    while at >= 0:
        if count < rows.size:
            rows[count] = at
        count += 1
        at = np.int64(pool[at, column])
    return count


@kernel("i8[:,:] i4[:,:] i8[:,:] i8[:]")
def free_ended(S: Int64s, P: Int32s, N: Int64s, M: Int64s) -> None:
    """Collected rows are free again."""
    at = M[c.M_ENDED_P]
    while at >= 0:
        following = np.int64(P[at, c.P_NEXT])
        P[at, c.P_NEXT] = M[c.M_FREE_P]
        M[c.M_FREE_P] = at
        M[c.M_LEFT_P] += 1
        at = following
    at = M[c.M_ENDED_S]
    while at >= 0:
        following = S[at, c.S_NEXT]
        for column in (c.S_CLIENTS, c.S_CONNECTIONS):
            member = S[at, column]
            while member >= 0:
                after = N[member, c.N_NEXT]
                N[member, c.N_NEXT] = M[c.M_FREE_N]
                M[c.M_FREE_N] = member
                M[c.M_LEFT_N] += 1
                member = after
        S[at, c.S_NEXT] = M[c.M_FREE_S]
        M[c.M_FREE_S] = at
        M[c.M_LEFT_S] += 1
        at = following
    M[c.M_ENDED_P], M[c.M_ENDED_P_LAST], M[c.M_ENDED_S], M[c.M_ENDED_S_LAST] = -1, -1, -1, -1

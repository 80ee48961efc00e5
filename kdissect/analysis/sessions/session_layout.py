"""State of the session tracker: pools of rows as matrices, linked by indices, which its kernels work on.

Rows of a pool are free, live or ended; a row's NEXT links it in its list, -1 ends a list. Hash tables are arrays of
first rows, rows of one bucket linked by CHAIN; their lengths are powers of two. Kernels never grow anything: `reserve`
sees to it that what a call can need at most is free.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kdissect.analysis.sessions import session_rules as rules
from kdissect.arrays.arrow import Int64s
from kdissect.kernels.signature import fields
from kdissect.kernels.structs import Records, rows_of, struct, view, width

Int32s = npt.NDArray[np.int32]


@struct
class SessionUse:
    """What the tracker found of a fetch, -1 null."""

    expected: int
    """The epoch that was expected."""
    status: int
    """What the epoch is to that: a place in EPOCH_STATUS."""
    serial: int
    """Serial number of the session."""
    id: int
    """Its id."""
    incarnation: int
    """Which of several sessions with that id it is."""
    added: int
    """Partitions that the request added."""
    altered: int
    """Partitions that it named and that were there."""
    replaced: int
    """Partitions that it added in place of others of the same name, under another topic id."""
    hidden: int
    """Partitions of the session that the answer does not have."""


use_at = view(SessionUse)
USE_WIDTH = width(SessionUse)


def uses_of(matrix: Int64s) -> Records:
    """What was found of fetches by the names of fields: a view."""
    return rows_of(SessionUse, matrix)


# Columns of a session (S, int64).
(
    S_BROKER, S_ID, S_INCARNATION, S_SERIAL, S_OPENED, S_CLOSED, S_FIRST, S_LAST, S_EXPECTED, S_UNKNOWN, S_CENSORED,
    S_REQUESTS, S_GAPS, S_REPEATS, S_WRAPS, S_MOST, S_CHURN, S_IDLE, S_USED, S_RETURNED, S_HELD, S_END, S_OLD_ID,
    S_OLD_INCARNATION, S_BYTES, S_AVOIDED, S_SIZE, S_TOPICS, S_PLAIN, S_COMPACT, S_COUNTS, S_FIRST_PARTITION,
    S_CLIENTS, S_CONNECTIONS, S_VERSION, S_OLDER, S_NEWER, S_CHAIN, S_NEXT, S_UNSEEN,
) = range(40)  # fmt: skip
S_WIDTH = 40
"""S_PLAIN, S_COMPACT, S_COUNTS: bytes of the names of its topics (classic and compact form) and of their counts of
partitions as varints: with S_TOPICS and S_SIZE they say how long a full request would be."""

# Columns of a partition in a session: P (int32) and V (int64).
P_SESSION, P_TOPIC, P_PARTITION, P_FROM, P_TO, P_OF_TOPIC, P_STAMP, P_PREVIOUS, P_CHAIN, P_NEXT = range(10)
P_WIDTH = 10
V_OFFSET, V_HIGH, V_START = range(3)
V_WIDTH = 3
NOT_SENT = -1
"""V_HIGH, V_START: nothing was sent yet, or an error was."""
NOT_KNOWN = -2
"""What was sent last is not known: the session's beginning was not captured."""

# Columns of a topic in a session (T, int32).
T_SESSION, T_TOPIC, T_COUNT, T_STAMP, T_NAMED, T_CHAIN, T_NEXT = range(7)
T_WIDTH = 7

# Columns of a member of a list of clients or connections (N, int64).
N_VALUE, N_NEXT = range(2)
N_WIDTH = 2

# Meta values (M, int64).
(
    M_FREE_S, M_FREE_P, M_FREE_T, M_FREE_N, M_LIVE_S, M_LIVE_P, M_OLDEST, M_NEWEST, M_ENDED_S, M_ENDED_S_LAST,
    M_ENDED_P, M_ENDED_P_LAST, M_SERIAL, M_REMEMBERED, M_STAMP, M_LEFT_S, M_LEFT_P, M_LEFT_T, M_LEFT_N, M_MAX_S,
    M_MAX_P, M_DROPPED_SETS, M_DROPPED_SESSIONS,
) = range(23)  # fmt: skip
M_WIDTH = 23


def _pool(rows: int, width: int, link: int, dtype: type) -> Any:
    matrix: npt.NDArray[Any] = np.full((rows, width), -1, dtype)
    matrix[:-1, link] = np.arange(1, rows)
    return matrix


FIRST_ROWS = 256
"""Rows of a new pool, and of hash tables; it doubles when full."""


class Pools(NamedTuple):
    """The pools, hash tables and counts of a `State`, as kernels take them."""

    S: Int64s
    """[n, S_WIDTH]: sessions."""
    P: Int32s
    """[n, P_WIDTH]: partitions of sessions."""
    V: Int64s
    """[n, V_WIDTH]: what was asked for and sent last of the partitions of P."""
    T: Int32s
    """[n, T_WIDTH]: topics of sessions."""
    N: Int64s
    """[n, N_WIDTH]: members of lists of clients and connections."""
    SH: Int32s
    """Rows of S by broker and id: the first of each bucket, -1 none."""
    PH: Int32s
    """Rows of P by session, topic and partition, likewise."""
    TH: Int32s
    """Rows of T by session and topic, likewise."""
    D: Int64s
    """[n, 2]: ended sessions: packed (broker, id), -1 free, and incarnations so far; open addressing."""
    X: Int64s
    """[n, 3]: scratch, forgotten partitions of one request: name, -1 free, partition, topic; open addressing."""
    M: Int64s
    """[M_WIDTH]: counts, and first and last rows of lists."""


POOLS = fields(Pools, "i8[:,:] i4[:,:] i8[:,:] i4[:,:] i8[:,:] i4[:] i4[:] i4[:] i8[:,:] i8[:,:] i8[:]")
"""What kernels that take them declare."""


class State:
    """Everything that the tracker carries from one call to the next, but for fetches held back."""

    def __init__(self) -> None:
        self.S: Int64s = _pool(FIRST_ROWS, S_WIDTH, S_NEXT, np.int64)
        self.P: Int32s = _pool(FIRST_ROWS, P_WIDTH, P_NEXT, np.int32)
        self.V: Int64s = np.full((FIRST_ROWS, V_WIDTH), -1, np.int64)
        self.T: Int32s = _pool(FIRST_ROWS, T_WIDTH, T_NEXT, np.int32)
        self.N: Int64s = _pool(FIRST_ROWS, N_WIDTH, N_NEXT, np.int64)
        self.SH: Int32s = np.full(FIRST_ROWS, -1, np.int32)
        self.PH: Int32s = np.full(FIRST_ROWS, -1, np.int32)
        self.TH: Int32s = np.full(FIRST_ROWS, -1, np.int32)
        self.D: Int64s = np.full((FIRST_ROWS, 2), -1, np.int64)
        """Ended sessions: packed (broker, id), incarnations so far; open addressing."""
        self.X: Int64s = np.full((FIRST_ROWS, 3), -1, np.int64)
        """Scratch: forgotten partitions of one request by (name, partition); open addressing."""
        self.M: Int64s = _meta()

    def go_on(self, pools: Pools) -> None:
        """Begins with what another state's pools were."""
        self.S, self.P, self.V, self.T, self.N, self.SH, self.PH, self.TH, self.D, self.X, self.M = pools

    @property
    def pools(self) -> Pools:
        """All of it, valid until a pool or table grows."""
        return Pools(self.S, self.P, self.V, self.T, self.N, self.SH, self.PH, self.TH, self.D, self.X, self.M)

    def reserve(self, sessions: int, partitions: int, names: int) -> None:
        """See to it that so many rows are free; hash tables stay at most as full as they are long."""
        self.S = _grown(self.S, self.M, M_FREE_S, M_LEFT_S, S_NEXT, sessions)
        before = len(self.P)
        self.P = _grown(self.P, self.M, M_FREE_P, M_LEFT_P, P_NEXT, partitions)
        if len(self.P) > before:
            self.V = np.concatenate([self.V, np.full((len(self.P) - before, V_WIDTH), -1, np.int64)])
        self.T = _grown(self.T, self.M, M_FREE_T, M_LEFT_T, T_NEXT, partitions)
        self.N = _grown(self.N, self.M, M_FREE_N, M_LEFT_N, N_NEXT, names)


def _meta() -> Int64s:
    meta = np.full(M_WIDTH, -1, np.int64)
    for free, left in ((M_FREE_S, M_LEFT_S), (M_FREE_P, M_LEFT_P), (M_FREE_T, M_LEFT_T), (M_FREE_N, M_LEFT_N)):
        meta[free], meta[left] = 0, FIRST_ROWS
    for zero in (M_LIVE_S, M_LIVE_P, M_SERIAL, M_REMEMBERED, M_STAMP, M_DROPPED_SETS, M_DROPPED_SESSIONS):
        meta[zero] = 0
    meta[M_MAX_S], meta[M_MAX_P] = rules.MAX_LIVE_SESSIONS, rules.MAX_LIVE_PARTITIONS
    return meta


def _grown(pool: npt.NDArray[Any], meta: Int64s, free: int, remaining: int, link: int, need: int) -> npt.NDArray[Any]:
    missing = need - int(meta[remaining])
    if missing <= 0:
        return pool
    old = len(pool)
    new = max(2 * old, old + missing)
    more = np.full((new - old, pool.shape[1]), -1, pool.dtype)
    more[:-1, link] = np.arange(old + 1, new)
    more[-1, link] = meta[free]
    meta[free] = old
    meta[remaining] += new - old
    return np.concatenate([pool, more])

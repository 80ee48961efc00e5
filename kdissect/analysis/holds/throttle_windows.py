"""When quotas muted connections: from an answer with throttle_time_ms on, the broker reads nothing of a connection."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kdissect.arrays.arrow import MILLI, NULL_TIME, Int64s, reals, times

EARLY = 0.1
"""Share of a window before whose end the next answer may come: the window is the broker's, its instants are ours."""
EARLY_MS = 20.0
"""At least: brokers unmute connections by a timer, and the answer that opened the window was on its way."""


class Windows(NamedTuple):
    """Throttle windows as columns of the same length, ordered by connection and time; instants in microseconds."""

    row: Int64s
    """The exchange whose answer opened the window."""
    begin: Int64s
    end: Int64s


def window_ends(begin: Int64s, length: npt.NDArray[np.float64]) -> tuple[Int64s, Int64s]:
    """When windows end that begin at these instants and last so many milliseconds, and the earliest instant at which a
    broker that muted the connection answers its next request; both in microseconds.

    An earlier answer says that the broker did not mute it: before 2.0 brokers kept the answer back instead."""
    end = begin + (length * MILLI).astype(np.int64)
    return end, end - (np.maximum(EARLY * length, EARLY_MS) * MILLI).astype(np.int64)


def throttle_windows(exchanges: pa.Table, connection: Int64s) -> tuple[Windows, Int64s]:
    """The windows in which connections were muted (KIP-219), and the window before each exchange, -1 for none; [rows].

    `exchanges`: response_first_at and throttle_ms; `connection`: the code of each one's connection. A window begins
    with the answer's first byte and lasts throttle_time_ms. There is none where a later answer of the connection says
    that the broker did not mute it (`window_ends`).
    """
    answered = times(exchanges, "response_first_at")
    length = np.nan_to_num(reals(exchanges, "throttle_ms"))
    window_before = np.full(exchanges.num_rows, -1, np.int64)
    order = np.flatnonzero(answered != NULL_TIME)
    if not (length[order] > 0).any():
        none = np.zeros(0, np.int64)
        return Windows(none, none, none), window_before
    order = order[np.lexsort((answered[order], connection[order]))]
    begin = answered[order]
    end, least = window_ends(begin, length[order])
    follows = np.append(connection[order][1:] == connection[order][:-1], False)
    after = np.where(follows, np.append(begin[1:], 0), np.iinfo(np.int64).max)
    muted = (length[order] > 0) & (after >= least)
    end = np.minimum(end, after)
    number = np.cumsum(muted) - 1
    window_before[order[1:]] = np.where(follows[:-1] & muted[:-1], number[:-1], -1)
    return Windows(order[muted], begin[muted], end[muted]), window_before

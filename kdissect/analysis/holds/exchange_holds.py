"""`exchanges.hold` and `replication_ms`: why a broker answered when it did, for every API that may wait."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kdissect.analysis.exchange_keys import keys_of, locate
from kdissect.analysis.holds import hold_kernels as hk
from kdissect.analysis.holds.fetch_holds import turns
from kdissect.arrays.arrow import MILLI, NULL_TIME, Flags, Int64s, encoded, ints, one, reals, times, words
from kdissect.arrays.codes import Codes
from kdissect.arrays.dictionaries import no_values
from kdissect.tables.declaration.model import ACKS_KEY, MS, By
from kdissect.tables.makers import fills

JOIN_GROUP, SYNC_GROUP = 11, 14


def hold_columns(codes: npt.NDArray[np.int8], waits: npt.NDArray[np.float64]) -> dict[str, pa.Array]:
    """What is filled in of `exchanges`, from places in HOLDS and milliseconds (NaN: unknown)."""
    unknown = np.isnan(waits)
    told = no_values(len(waits), MS) if unknown.all() else pa.array(waits, MS, mask=unknown)
    return {"hold": words(codes, hk.HOLDS), "replication_ms": told}


def coded(column: pa.Array) -> npt.NDArray[np.int8]:
    """A column of words of HOLDS as places in it, -1 where null."""
    codes, used = encoded(column)
    place = np.array([*(hk.HOLDS.index(word) for word in used), -1], np.int8)
    found: npt.NDArray[np.int8] = place[codes]
    return found


def told_holds(rows: pa.Table) -> npt.NDArray[np.int8]:
    """`hold` of rows of fetches or produces as places in HOLDS, -1 where null."""
    return rows.ints("hold", -1).astype(np.int8) if isinstance(rows, Codes) else coded(one(rows, "hold"))


def hold_codes(
    exchanges: pa.Table, messages: Mapping[tuple[str, str], pa.Table], throttled: pa.Table
) -> npt.NDArray[np.int8]:
    """`hold` as places in HOLDS, -1 for none; without those of Fetch and Produce, which are told in their own tables.

    JoinGroup and SyncGroup wait for the `rebalance`; ShareFetch is judged by its own wait. `messages`: nested tables by
    API and side, read where they are there: ("ShareFetch", "request"): max_wait_ms, min_bytes; ("ShareFetch",
    "response"): responses. Without them it has no hold, nor have APIs that wait for nothing. `throttled`: exchanges
    whose throttle windows count.
    """
    hold = np.full(exchanges.num_rows, -1, np.int8)
    if not len(hold):
        return hold
    share = messages.get(("ShareFetch", "request"))
    key = ints(exchanges, "api_key")
    waits = (key == JOIN_GROUP) | (key == SYNC_GROUP)
    shared = share is not None and share.num_rows > 0
    if not shared and not waits.any():
        return hold
    broker_ms = reals(exchanges, "broker_ms")
    answered = ~np.isnan(broker_ms)
    waits &= answered
    keys, error = keys_of(exchanges), ints(exchanges, "error_code", 0)
    held_back = muted(exchanges, keys[0], throttled)
    usual = np.where(error != 0, hk.ERROR, np.where(held_back, hk.THROTTLED, -1)).astype(np.int8)
    hold[waits] = np.where(usual[waits] >= 0, usual[waits], hk.REBALANCE)
    if share is not None and shared:
        at = locate(keys, keys_of(share))
        rows = np.flatnonzero((at >= 0) & answered)
        wait, least = ints(share, "max_wait_ms")[at[rows]], ints(share, "min_bytes")[at[rows]]
        acquired = _acquired(messages.get(("ShareFetch", "response")), (keys[0][rows], keys[1][rows]))
        own = np.select(
            [(wait == 0) | (least == 0), acquired > 0, broker_ms[rows] >= wait - hk.EARLY_MS],
            [hk.IMMEDIATE, hk.DATA, hk.TIMEOUT],
            hk.UNKNOWN,
        )
        hold[rows] = np.where(usual[rows] >= 0, usual[rows], own)
    return hold


def name_apart(exchanges: pa.Table, rows: Int64s, throttled: pa.Table, hold: npt.NDArray[np.int8]) -> None:
    """Fill in `hold`, places in HOLDS, of the Produces at these rows of exchanges with ACKS_KEY, of which nobody knows
    how many replicas their partitions have: nothing that is still to come says more of them."""
    told = [ints(exchanges, name, 0) for name in (ACKS_KEY, "error_code")]
    held_back = muted(exchanges, keys_of(exchanges)[0], throttled)
    hk.name_produces(rows, told[0], reals(exchanges, "broker_ms"), held_back, told[1], hold)


def muted(exchanges: pa.Table, connections: Int64s, throttled: pa.Table) -> Flags:
    """Requests that a broker could begin with only inside the throttle window of the response before them."""
    found = np.zeros(exchanges.num_rows, np.bool_)
    if not throttled.num_rows:
        return found
    start = times(throttled, "response_first_at")
    length = (np.nan_to_num(reals(throttled, "throttle_ms")) * MILLI).astype(np.int64)
    kept = np.flatnonzero((start != NULL_TIME) & (length > 0))
    if not len(kept):
        return found
    used, begun = times(exchanges, "request_last_at"), turns(exchanges)
    start, length = start[kept], length[kept]
    owner = keys_of(throttled)[0][kept]
    distinct, owner = np.unique(owner, return_inverse=True)
    place = np.minimum(np.searchsorted(distinct, connections), len(distinct) - 1)
    mine = np.flatnonzero((distinct[place] == connections) & (used != NULL_TIME))
    if not len(mine):
        return found
    # (connection, time) as one number: connections are few, times small once counted from the earliest.
    low = min(int(start.min()), int(begun[mine].min()))
    width = max(int(start.max()), int(begun[mine].max())) - low + 2
    order = np.lexsort((start, owner))
    windows = owner[order] * width + (start[order] - low)
    asked = place[mine] * width + (begun[mine] - low)
    last = np.searchsorted(windows, asked, side="right") - 1
    window = order[np.maximum(last, 0)]
    inside = (last >= 0) & (owner[window] == place[mine]) & (begun[mine] < start[window] + length[window])
    found[mine] = inside
    return found


def _acquired(response: pa.Table | None, keys: tuple[Int64s, Int64s]) -> Int64s:
    """Bytes of records per exchange of ShareFetch responses."""
    found = np.zeros(len(keys[0]), np.int64)
    if response is None or not response.num_rows:
        return found
    at = locate(keys, keys_of(response))
    column = response["responses"].to_pylist()
    sizes = np.array(
        [
            sum(max(part.get("records_bytes") or 0, 0) for topic in topics or () for part in topic["partitions"] or ())
            for topics in column
        ]
        + [0],
        np.int64,
    )
    return sizes[at]


fills(By.EXCHANGE_HOLDS, lambda: {"exchanges": hold_columns(np.zeros(0, np.int8), np.zeros(0))})

"""Why a broker answered when it did, for every API that may wait, and which parts of `broker_ms` were not its own:
`exchanges.hold`, `replication_ms`, `agreed_ms`, `throttled_ms`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kdissect.analysis.exchange_keys import keys_of, locate
from kdissect.analysis.holds import hold_kernels as hk
from kdissect.analysis.holds.fetch_holds import turns
from kdissect.analysis.holds.throttle_windows import window_ends
from kdissect.arrays.arrow import MILLI, NULL_TIME, Coder, Int64s, begins, ints, words
from kdissect.arrays.dictionaries import no_values
from kdissect.arrays.from_numpy import arrow_array
from kdissect.arrays.rows import Rows
from kdissect.schema.apikeys import ApiKey
from kdissect.tables.declaration.model import ACKS_KEY, MS, By
from kdissect.tables.makers import fills

WAITS = ("replication_ms", "agreed_ms", "throttled_ms")
"""Parts of `broker_ms` that are told of exchanges, in the order of the rows of matrices of them."""
REPLICATION, AGREED, THROTTLED = range(3)
TOLD_ELSEWHERE = (ApiKey.FETCH, ApiKey.PRODUCE)
"""Fetch and Produce: their holds are told in tables of their own."""
CLOSING = -1
"""Epoch of a ShareFetch that ends its session."""
_PLACES = Coder()
_PLACES.taken_over(hk.HOLDS)
"""Words of HOLDS by their places in it."""

Reals = npt.NDArray[np.float64]
Held = tuple[npt.NDArray[np.int8], Reals]
"""Of exchanges: places in HOLDS, -1 for none, and milliseconds [WAITS, rows], NaN where unknown."""


def hold_columns(codes: npt.NDArray[np.int8], waits: Reals) -> dict[str, pa.Array]:
    """Columns of `exchanges` that holds fill in, from the arrays of `Held`."""
    unknown = np.isnan(waits)
    told = {
        name: no_values(len(codes), MS) if missing.all() else arrow_array(ms, MS, mask=missing)
        for name, ms, missing in zip(WAITS, waits, unknown, strict=True)
    }
    return {"hold": words(codes, hk.HOLDS), **told}


def told_holds(rows: Rows) -> Held:
    """The holds in rows of `fetches`, `produces` or `exchanges`."""
    return rows.codes("hold", _PLACES).astype(np.int8), np.stack([rows.reals(name) for name in WAITS])


def no_waits(broker_ms: Reals) -> Reals:
    """[WAITS, rows] of exchanges without a known wait: a quota held back none of those that were answered."""
    waits = np.full((len(WAITS), len(broker_ms)), np.nan)
    waits[THROTTLED] = np.where(np.isnan(broker_ms), np.nan, 0.0)
    return waits


def exchange_holds(exchanges: Rows, messages: Mapping[tuple[str, str], pa.Table], throttled: Rows) -> Held:
    """Holds and waits of exchanges; Fetch and Produce get `throttled_ms` alone, since their own tables have the rest.

    JoinGroup and SyncGroup wait for the `rebalance`; ShareFetch is judged by its own wait. `messages`: nested tables by
    API and side, read where they are there: ("ShareFetch", "request"): max_wait_ms, min_bytes, share_session_epoch,
    is_renew_ack; ("ShareFetch", "response"): responses. Without them ShareFetch has no hold, nor have APIs that wait
    for nothing. `throttled`: exchanges whose throttle windows count.
    """
    hold, broker_ms = np.full(exchanges.num_rows, -1, np.int8), exchanges.reals("broker_ms")
    waits = no_waits(broker_ms)
    if not len(hold):
        return hold, waits
    share = messages.get(("ShareFetch", "request"))
    key = exchanges.ints("api_key")
    grouped = ((key == ApiKey.JOIN_GROUP) | (key == ApiKey.SYNC_GROUP)) & ~np.isnan(broker_ms)
    shared = share is not None and share.num_rows > 0
    if not shared and not throttled.num_rows and not grouped.any():
        return hold, waits
    keys, error = keys_of(exchanges), exchanges.ints("error_code", 0)
    held_back = throttled_times(exchanges, keys[0], throttled)
    waits[THROTTLED] = np.where(np.isnan(broker_ms), np.nan, held_back)
    usual = np.where(error != 0, hk.ERROR, np.where(held_back > 0, hk.THROTTLED, -1)).astype(np.int8)
    hold[grouped] = np.where(usual[grouped] >= 0, usual[grouped], hk.REBALANCE)
    waits[AGREED, grouped] = (broker_ms - held_back)[grouped]
    if share is not None and shared:
        at = locate(keys, keys_of(share))
        rows = np.flatnonzero((at >= 0) & ~np.isnan(broker_ms))
        records = _record_bytes(messages.get(("ShareFetch", "response")), (keys[0][rows], keys[1][rows]))
        hold[rows], waits[AGREED, rows] = _share_fetches(
            share.take(arrow_array(at[rows])), records, broker_ms[rows] - held_back[rows], usual[rows]
        )
    return hold, waits


def _share_fetches(
    requests: pa.Table, records: Int64s, spent: Reals, usual: npt.NDArray[np.int8]
) -> tuple[npt.NDArray[np.int8], Reals]:
    """`hold` as places in HOLDS and `agreed_ms` of ShareFetches: by the rules of `fetch_holds`, as far as their
    requests and answers have what these go by.

    `requests`: requests; `records`: bytes of records of their answers; `spent`: what a quota left of `broker_ms`;
    `usual`: the hold that goes before others, -1 for none. [rows] each.
    """
    wait, least = ints(requests, "max_wait_ms"), np.maximum(ints(requests, "min_bytes", 1), 0)
    renews = np.asarray(requests["is_renew_ack"].fill_null(False))
    nothing = (wait == 0) | (least == 0) | renews | (ints(requests, "share_session_epoch", 0) == CLOSING)
    enough = records >= np.maximum(least, 1)
    own = np.select(
        [nothing | (enough & (spent < hk.PROMPT_MS)), enough, spent >= wait - hk.EARLY_MS, records > 0],
        [hk.IMMEDIATE, hk.DATA, hk.TIMEOUT, hk.DATA],
        hk.UNKNOWN,
    )
    hold = np.where(usual >= 0, usual, own).astype(np.int8)
    agreed = np.where(np.isin(hold, (hk.IMMEDIATE, hk.ERROR)), 0.0, np.minimum(wait, spent))
    return hold, np.where(wait < 0, np.nan, agreed)


def name_apart(exchanges: Rows, rows: Int64s, throttled: Rows, hold: npt.NDArray[np.int8]) -> None:
    """Fill in `hold`, places in HOLDS, of the Produces at these rows of exchanges with ACKS_KEY. How many replicas
    their partitions have is unknown, and no later row says more of them."""
    told = [exchanges.ints(name, 0) for name in (ACKS_KEY, "error_code")]
    held_back = throttled_times(exchanges, keys_of(exchanges)[0], throttled) > 0
    hk.name_produces(rows, told[0], exchanges.reals("broker_ms"), held_back, told[1], hold)


def throttled_times(exchanges: Rows, connections: Int64s, throttled: Rows) -> Reals:
    """Milliseconds of `broker_ms` until the end of the throttle window of the response before each request; 0 for none.

    `connections`: the first part of each exchange's key; `throttled`: see `exchange_holds`."""
    found = np.zeros(exchanges.num_rows)
    if not throttled.num_rows:
        return found
    start, length = throttled.times("response_first_at"), np.nan_to_num(throttled.reals("throttle_ms"))
    kept = np.flatnonzero((start != NULL_TIME) & (length > 0))
    if not len(kept):
        return found
    answered, begun = exchanges.times("response_first_at"), turns(exchanges)
    spent = np.nan_to_num(exchanges.reals("broker_ms"))
    start = start[kept]
    end, least = window_ends(start, length[kept])
    owner = keys_of(throttled)[0][kept]
    distinct, owner = np.unique(owner, return_inverse=True)
    place = np.minimum(np.searchsorted(distinct, connections), len(distinct) - 1)
    mine = np.flatnonzero((distinct[place] == connections) & (answered != NULL_TIME) & (begun != NULL_TIME))
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
    inside = (last >= 0) & (owner[window] == place[mine]) & (answered[mine] >= least[window])
    left = np.clip((end[window] - begun[mine]) / MILLI, 0.0, spent[mine])
    found[mine] = np.where(inside, left, 0.0)
    return found


def _record_bytes(response: pa.Table | None, keys: tuple[Int64s, Int64s]) -> Int64s:
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


fills(By.EXCHANGE_HOLDS, lambda: {"exchanges": hold_columns(np.zeros(0, np.int8), np.zeros((len(WAITS), 0)))})


class HeldExchanges:
    """The exchanges of a block, until the holds of all its Fetches and Produces are known."""

    def __init__(
        self, rows: Rows, keys: tuple[Int64s, Int64s], codes: npt.NDArray[np.int8], waits: npt.NDArray[np.float64],
        waiting: tuple[Int64s, ...],
    ) -> None:  # fmt: skip
        self.rows = rows
        self.keys = keys
        self.codes = codes
        self.waits = waits
        """As `Held` says."""
        self.waiting = waiting
        """Rows whose hold is not told yet, for each of TOLD_ELSEWHERE."""

    @property
    def count_waiting(self) -> int:
        """How many rows wait."""
        return sum(map(len, self.waiting))

    @classmethod
    def join_blocks(cls, blocks: Sequence[HeldExchanges]) -> HeldExchanges:
        """Blocks of rows as one."""
        rows = Rows.together([block.rows for block in blocks])
        codes = np.concatenate([block.codes for block in blocks])
        waits = np.concatenate([block.waits for block in blocks], axis=1)
        keys = np.concatenate([block.keys[0] for block in blocks]), np.concatenate([block.keys[1] for block in blocks])
        first = begins(np.array([len(block.codes) for block in blocks]))[:-1].tolist()
        waiting = tuple(
            np.concatenate([block.waiting[where] + at for block, at in zip(blocks, first, strict=True)])
            for where in range(len(TOLD_ELSEWHERE))
        )
        return cls(rows, keys, codes, waits, waiting)

    def settle(
        self, where: int, keys: tuple[Int64s, Int64s], holds: npt.NDArray[np.int8], waits: npt.NDArray[np.float64],
        at: int,
    ) -> tuple[int, int]:  # fmt: skip
        """Take over the holds of rows by these keys, which stand in the order of exchanges, from the `at`-th on.
        Returns how many were found, and where the next block's begin."""
        rows = self.waiting[where]
        if not len(rows):
            return 0, at
        left = np.empty(len(rows), np.int64)
        count, at = hk.take_over(*self.keys, rows, *keys, holds, waits, self.codes, self.waits, left, at)
        self._wait(where, left[:count])
        return len(rows) - count, at

    def look_up(
        self, where: int, keys: tuple[Int64s, Int64s], holds: npt.NDArray[np.int8], waits: npt.NDArray[np.float64]
    ) -> None:
        """Takes over holds as `settle` does, by keys in any order."""
        rows = self.waiting[where]
        at = locate((self.keys[0][rows], self.keys[1][rows]), keys)
        told = at >= 0
        self.codes[rows[told]], self.waits[:, rows[told]] = holds[at[told]], waits[:, at[told]]
        self._wait(where, rows[~told])

    def _wait(self, where: int, rows: Int64s) -> None:
        self.waiting = (*self.waiting[:where], rows, *self.waiting[where + 1 :])

    def with_holds(self) -> Rows:
        """The rows with their hold."""
        return self.rows.with_arrays(hold_columns(self.codes, self.waits))

    def split(self) -> tuple[HeldExchanges, HeldExchanges]:
        """The rows that are settled, and those that wait."""
        rest = np.zeros(len(self.codes), np.bool_)
        for rows in self.waiting:
            rest[rows] = True
        place = np.cumsum(rest) - 1
        none = np.zeros(0, np.int64)
        parts = [
            HeldExchanges(
                self.rows.take(rows), (self.keys[0][rows], self.keys[1][rows]), self.codes[rows],
                self.waits.take(rows, axis=1), waiting,
            )
            for rows, waiting in (
                (np.flatnonzero(~rest), (none, none)),
                (np.flatnonzero(rest), tuple(place[rows] for rows in self.waiting)),
            )
        ]  # fmt: skip
        return parts[0], parts[1]

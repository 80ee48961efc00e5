"""The slowest exchanges, by the time that no client had asked to wait for."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from kdissect.arrays.arrow import reals

AS_AGREED = ("timeout", "data", "rebalance")
"""Holds that the client asked for: a long poll that ran out or got its data, a join that waited for its group."""
COLUMNS = (
    "exchange_id", "request_first_at", "api", "client_id", "broker", "latency_ms", "hold", "status", "error", "cluster",
)  # fmt: skip
"""Of `exchanges`, in the answer."""


def find_slowest(tables: Mapping[str, pa.Table]) -> pa.Table:
    """Exchanges with `beyond_ms`, the largest first: columns COLUMNS and beyond_ms (double, milliseconds).

    `tables`: exchanges with COLUMNS; fetches with exchange_id and excess_ms. beyond_ms is `excess_ms` of a fetch whose
    wait is known, else the latency. Exchanges without an answer, and waits that the client asked for, are left out.
    """
    exchanges = tables["exchanges"].select(list(COLUMNS))
    latency = reals(exchanges, "latency_ms")
    beyond = np.where(_waited_as_agreed(exchanges), np.nan, latency)
    ids = exchanges["exchange_id"].cast(pa.string()).combine_chunks()
    rows = pc.index_in(tables["fetches"]["exchange_id"].cast(pa.string()), ids)
    excess = reals(tables["fetches"], "excess_ms")
    known = ~np.isnan(excess) & np.asarray(pc.is_valid(rows))
    beyond[np.asarray(rows.filter(pa.array(known)), dtype=np.int64)] = excess[known]
    table = exchanges.append_column("beyond_ms", pa.array(beyond, pa.float64(), from_pandas=True))
    table = table.filter(pa.array(beyond > 0))
    return table.sort_by([("beyond_ms", "descending"), ("request_first_at", "ascending")])


def _waited_as_agreed(exchanges: pa.Table) -> npt.NDArray[np.bool_]:
    held = pc.is_in(exchanges["hold"].cast(pa.string()), value_set=pa.array(AS_AGREED))
    return np.asarray(pc.fill_null(held, False), np.bool_)

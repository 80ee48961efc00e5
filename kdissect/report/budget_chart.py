"""The rows of the page's chart of time budgets: where the time of clients went, by stretches of time."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kdissect.analysis.budget import time_budget
from kdissect.analysis.exchange_keys import key_names
from kdissect.analysis.grouping import group
from kdissect.arrays.arrow import NULL_TIME, reals, times
from kdissect.arrays.dictionaries import join_tables
from kdissect.tables.declaration import SCHEMAS
from kdissect.tables.declaration.readers import BUDGET

BOXES = (
    "broker", "replication", "transaction", "throttled", "network", "unknown", "agreed", "own", "silent", "idle",
    "gone",
)  # fmt: skip
"""What a client's time went into, in the order in which it is stacked: what others took of it first."""
CLIENTS = 12
"""Clients that are drawn."""
STRETCHES = 200
"""Stretches of time that are told apart at most: those of the page's time axis, and some behind it for late answers."""
WAITS = ("timeout", "data", "rebalance")
MOST = 30_000
"""Exchanges, the first ones, and connections that budgets are made of: some 10 MB."""


class BudgetRows:
    """The rows for `client_budgets`, read part by part, of the first MOST exchanges."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self.exchanges = 0
        """Exchanges that were kept."""
        self.whole = True
        """Nothing was left out."""
        self._parts: dict[str, list[pa.Table]] = {name: [] for name in BUDGET.tables}

    def add_rows(self, part: Mapping[str, pa.Table]) -> None:
        """Rows of exchanges with their fetches, and pieces of connections; other tables aside."""
        for name, columns in BUDGET.tables.items():
            if name not in part or not part[name].num_rows:
                continue
            keys = key_names(part[name]) if name != "connections" else []
            wanted = {*columns, *keys, "latency_ms"}
            rows = part[name].select([one for one in part[name].column_names if one in wanted])
            kept = sum(one.num_rows for one in self._parts[name])
            if name == "exchanges":
                self.whole = self.whole and kept + rows.num_rows <= self._most
                rows = rows.slice(0, max(0, self._most - kept))
                self.exchanges += rows.num_rows
            room = max(0, min(rows.num_rows, self._most - kept))
            if room:
                self._parts[name].append(rows.take(pa.array(np.arange(room))))  # copied: a slice keeps what it is of

    def tables(self) -> dict[str, pa.Table]:
        """The rows that were kept, which `time_ledger` reads."""
        return {name: join_tables(parts or [SCHEMAS[name].empty_table()]) for name, parts in self._parts.items()}

    @property
    def last_us(self) -> int | None:
        """When the last exchange that was kept began, if others were left out."""
        if self.whole or not self._parts["exchanges"]:
            return None
        return max(int(times(part, "request_first_at").max()) for part in self._parts["exchanges"])

    def rows(self, every: float) -> pa.Table:
        """See `client_budgets`."""
        return client_budgets(self.tables(), every)


def client_budgets(tables: Mapping[str, pa.Table], every: float) -> pa.Table:
    """Per client and stretch of `every` seconds: client_id, at, until, and milliseconds of each of BOXES, which add up
    to the stretch. The CLIENTS clients whose answers took longest, without waits that were asked for, come first.

    `tables`: what `time_budget` reads for clients. All clients have the same stretches, from the first request of the
    capture to its last answer.
    """
    exchanges = tables["exchanges"]
    begun, ended = times(exchanges, "request_first_at"), times(exchanges, "response_last_at")
    known = begun[begun != NULL_TIME]
    width = max(1, round(every * 1e6))
    start = int(known.min()) // width * width if len(known) else 0
    last = max(int(known.max()), int(ended.max())) if len(known) else 0
    end = start + min(-(-(last + 1 - start) // width), STRETCHES) * width
    found = SCHEMAS["time_budget"].empty_table()
    order: list[str] = []
    if len(known):
        order = _worst(exchanges)
        found = time_budget(tables, ("client",), every, start, end, order)
    place = pc.index_in(found["subject"], pa.array(order, pa.string()))
    made = {"client_id": found["subject"], "at": found["at"], "until": found["until"]}
    made |= {box: found[f"{box}_ms"] for box in BOXES}
    rows = np.lexsort((times(found, "at"), np.asarray(place.combine_chunks()))) if len(order) else np.zeros(0, np.int64)
    return pa.table(made).take(pa.array(rows))


def _worst(exchanges: pa.Table) -> list[str]:
    """The CLIENTS client ids whose answers took longest together, without waits that were asked for."""
    groups = group(exchanges, ["client_id"])
    names = groups.keys["client_id"].to_pylist()
    waited = np.asarray(pc.fill_null(pc.is_in(exchanges["hold"].cast(pa.string()), pa.array(WAITS)), False))
    took = np.nan_to_num(reals(exchanges, "latency_ms")) - np.nan_to_num(reals(exchanges, "queued_ms"))
    total = groups.total(np.where(waited, 0.0, took))
    ranked = np.lexsort((-groups.count(), -total)).tolist()
    return [names[code] for code in ranked if names[code] is not None][:CLIENTS]

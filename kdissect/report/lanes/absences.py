"""Who was there and who was not: a lane for each broker, and for the clients that were away longest."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from kdissect.analysis.ledger import time_owners as o
from kdissect.analysis.ledger.time_ledger import time_ledger
from kdissect.arrays.arrow import NULL_TIME, Int64s, instants, times

LEAST_US = 1_000_000
"""Shorter absences are not drawn."""
LEAST_SHARE = 200
"""Nor are those shorter than this part of the whole: no eye sees them, and rows stay few."""
BROKERS, CLIENTS = 9, 8
"""Lanes of brokers and of clients at most."""
STATES = ("there", "idle", "silent", "stalled", "gone")
"""`there`: something of it is under way; `idle`: nothing was asked of it, or by it; `silent`: a client process stood
still; `stalled`: a broker answered nobody though requests were due; `gone`: it had no open connection."""
THERE, IDLE, SILENT, STALLED, GONE = range(len(STATES))
COLUMNS = ("by", "subject", "client_ip", "state", "at", "until")
SCHEMA = pa.schema([(name, pa.timestamp("us", "UTC") if name in ("at", "until") else pa.string()) for name in COLUMNS])


class _Lane(NamedTuple):
    """One subject's states in order of time; microseconds."""

    name: tuple[str, str, str | None]
    """Kind, name, address."""
    state: Int64s
    begin: Int64s
    end: Int64s

    def away(self) -> int:
        """How long it was not there."""
        return int((self.end - self.begin)[self.state > IDLE].sum())

    def idle(self) -> int:
        """How long nothing was asked."""
        return int((self.end - self.begin)[self.state == IDLE].sum())


def absences(tables: Mapping[str, pa.Table], last_us: int | None = None) -> pa.Table:
    """Rows of SCHEMA: by, subject, client_ip, state (of STATES), at, until; a lane after the other in order of time.

    Brokers come first, in order of their names, then the CLIENTS client processes that were away longest. Neighbouring
    stretches of one state are one row, and states other than `there` that last less than a second are part of it. A
    broker whose last connection ended is gone until the end of the capture. `tables`: those that `time_ledger` reads.
    `last_us`: nothing is known after this instant; None: everything is.
    """
    ledger = time_ledger(tables, ("broker", "client"), end=last_us)
    if not ledger.num_rows:
        return SCHEMA.empty_table()
    end_of_all = int(times(ledger, "until").max())
    least = max(LEAST_US, (end_of_all - int(times(ledger, "at").min())) // LEAST_SHARE)
    lanes = _lanes(ledger, least)
    brokers = [_until_the_end(one, end_of_all) for one in lanes if one.name[0] == "broker"][:BROKERS]
    clients = sorted((one for one in lanes if one.name[0] == "client"), key=lambda one: (-one.away(), -one.idle()))
    shown = [*brokers, *clients[:CLIENTS]]
    columns = zip(*[one.name for one in shown for _ in one.state], strict=True)
    named = dict(zip(("by", "subject", "client_ip"), columns, strict=True))
    state = np.concatenate([one.state for one in shown]).tolist()
    at, until = (instants(np.concatenate([one[place] for one in shown])) for place in (2, 3))
    made = {**named, "state": [STATES[code] for code in state], "at": at, "until": until}
    return pa.table({name: made[name] for name in COLUMNS}, SCHEMA)


def _lanes(ledger: pa.Table, least: int) -> list[_Lane]:
    """The lane of each subject, in the order of the ledger, without absences shorter than `least` microseconds."""
    owner, evidence = ledger["owner"].to_pylist(), ledger["evidence"].to_pylist()
    code = {"idle": IDLE, "silent": SILENT, "gone": GONE}
    state = np.array(
        [STALLED if kind == o.STALL.evidence else code.get(who, THERE)
         for who, kind in zip(owner, evidence, strict=True)], np.int64,
    )  # fmt: skip
    keys = list(zip(*(ledger[name].to_pylist() for name in ("by", "subject", "client_ip")), strict=True))
    begin, end = times(ledger, "at"), times(ledger, "until")
    edges = [0, *(n for n in range(1, len(keys)) if keys[n] != keys[n - 1]), len(keys)]
    found = []
    for low, high in itertools.pairwise(edges):
        by, subject, address = keys[low]
        mine = np.where((state[low:high] == STALLED) & (by == "client"), THERE, state[low:high])
        found.append(_Lane((by, subject, address), *_join_neighbours(mine, begin[low:high], end[low:high], least)))
    return found


def _join_neighbours(state: Int64s, begin: Int64s, end: Int64s, least: int) -> tuple[Int64s, Int64s, Int64s]:
    """Neighbours of one state as one; short ones of another state than THERE are THERE."""
    for _ in range(2):  # equal neighbours first, for an absence may consist of several intervals
        first = np.flatnonzero(np.append(True, state[1:] != state[:-1]))
        state, begin = state[first], begin[first]
        end = end[np.append(first[1:] - 1, len(end) - 1)]
        state = np.where(end - begin < least, THERE, state)
    first = np.flatnonzero(np.append(True, state[1:] != state[:-1]))
    return state[first], begin[first], end[np.append(first[1:] - 1, len(end) - 1)]


def _until_the_end(lane: _Lane, end_of_all: int) -> _Lane:
    """The lane of a broker with the time after its last connection."""
    last = int(lane.end.max(initial=NULL_TIME))
    if end_of_all - last < LEAST_US:
        return lane
    added = (np.append(lane.state, GONE), np.append(lane.begin, last), np.append(lane.end, end_of_all))
    return _Lane(lane.name, *added)

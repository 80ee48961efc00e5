"""Findings about fetch sessions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from kdissect.analysis.findings import evidence as ev
from kdissect.analysis.findings import row_filters
from kdissect.analysis.findings.finders import EVERY_ROW, finder
from kdissect.analysis.findings.limits import Limits
from kdissect.analysis.grouping import group
from kdissect.analysis.sessions.session_rules import DEFAULT_SLOTS, SHARDS
from kdissect.analysis.sessions.slots import evictors, slot_demand
from kdissect.arrays.arrow import NULL_TIME, Coder, Flags, ints, times
from kdissect.arrays.from_numpy import arrow_array

NEVER_REUSED = 10
"""Sessions a client opens on one broker and leaves there without ever using one again: some tools fetch once and go,
ten times is a habit (and the field's case: a client that sends epoch 0 at every poll)."""
LEFT_OPEN = 20
"""Sessions a client leaves open on one broker: an honest consumer holds one, after failures a few."""
LEFT_OPEN_SHARE = 0.5
"""Of the sessions it opened: a client that closes most of them is only busy."""
NAMED_EVICTORS = 5
"""How many clients the ranking of evictors names."""
EVICTIONS = 1.0
"""Share in others' losses from which a client is named: one whole session."""
DEMAND_SHARE = 0.8
"""Of the default slots of a broker or shard: above, one more group of consumers makes evictions likely."""
REFUSALS = 3
"""Refused sessions of a broker worth a line: one or two happen while a cache is being cleaned up."""


def of_outcome(fetches: pa.Table, outcome: str) -> Flags:
    """Rows with that session outcome."""
    coder = Coder()
    flags: Flags = coder.column(fetches, "session_outcome") == coder.codes.get(outcome, -2)
    return flags


@finder(fetches=row_filters.telling_of_sessions)
def reuse(tables: ev.Tables, limits: Limits) -> list[ev.Finding]:
    """Clients that never reuse sessions, and clients that open them faster than they close them."""
    fetches = ev.get(tables, "fetches")
    created = of_outcome(fetches, "created")
    kinds = Coder()
    kind = kinds.column(fetches, "request_kind")
    incremental = kind == kinds.codes.get("incremental", -2)
    ended = (
        ((kind == kinds.codes.get("replace", -2)) | (kind == kinds.codes.get("close", -2)))
        & (ints(fetches, "request_session_id", 0) != 0)
    ) | (incremental & of_outcome(fetches, "closed"))
    groups = group(fetches, ["client_id", "broker"])
    opened, again, over = groups.count(created), groups.count(incremental), groups.count(ended)
    found = []
    for code in np.argsort(-opened, kind="stable").tolist():
        client, broker = groups.keys["client_id"][code].as_py(), groups.keys["broker"][code].as_py()
        condition = ev.both(ev.equals("client_id", client), ev.equals("broker", broker), "session_outcome = 'created'")
        whose = {"client_id": client, "broker": broker}
        values = {"opened": int(opened[code]), "closed": int(over[code])}
        left = int(opened[code] - over[code])
        if left >= NEVER_REUSED and not again[code]:
            found += ev.finding(tables, "sessions_never_reused", ev.MEDIUM, "fetches", condition, values, **whose)
        elif left >= LEFT_OPEN and left >= LEFT_OPEN_SHARE * opened[code]:
            found += ev.finding(tables, "sessions_left_open", ev.LOW, "fetches", condition, values, **whose)
    return found


@finder(fetches=row_filters.telling_of_sessions)
def evictions(tables: ev.Tables, limits: Limits) -> list[ev.Finding]:
    """Ranking of evictors."""
    ranked = evictors(ev.get(tables, "fetches")).to_pylist()
    found = []
    for place, row in enumerate([row for row in ranked if row["evictions"] >= EVICTIONS][:NAMED_EVICTORS], start=1):
        values = {
            "rank": place, "created": row["sessions_created"], "evictions": row["evictions"], "victims": row["victims"],
        }  # fmt: skip
        condition = ev.both(
            ev.equals("client_id", row["client_id"]), ev.equals("broker", row["broker"]), "session_outcome = 'created'"
        )
        severity = ev.HIGH if row["share"] >= LEFT_OPEN_SHARE else ev.MEDIUM
        found += ev.finding(
            tables, "session_evictor", severity, "fetches", condition, values, client_id=row["client_id"],
            broker=row["broker"],
        )  # fmt: skip
    fetches = ev.get(tables, "fetches")
    lost = of_outcome(fetches, "evicted_or_unknown")
    groups = group(fetches, ["broker"])
    for code in np.flatnonzero(groups.count(lost)).tolist():
        broker = groups.keys["broker"][code].as_py()
        values = {"answers": int(groups.count(lost)[code])}
        condition = ev.both(ev.equals("broker", broker), "session_outcome = 'evicted_or_unknown'")
        found += ev.finding(tables, "sessions_lost", ev.LOW, "fetches", condition, values, broker=broker)
    return found


@finder(fetches=row_filters.telling_of_sessions)
def refusals(tables: ev.Tables, limits: Limits) -> list[ev.Finding]:
    """Brokers that answer requests for a session without one."""
    fetches = ev.get(tables, "fetches")
    refused = of_outcome(fetches, "refused")
    groups = group(fetches, ["broker"])
    found = []
    for code, count in enumerate(groups.count(refused).tolist()):
        if count < REFUSALS:
            continue
        broker = groups.keys["broker"][code].as_py()
        condition = ev.both(ev.equals("broker", broker), "session_outcome = 'refused'")
        found += ev.finding(
            tables, "sessions_refused", ev.LOW, "fetches", condition, {"requests": count}, broker=broker
        )
    return found


@finder(fetch_sessions=EVERY_ROW)
def demand(tables: ev.Tables, limits: Limits) -> list[ev.Finding]:
    """Session slots needed per broker, and in shards of brokers that have enough in all, against what Kafka ships."""
    sessions = ev.get(tables, "fetch_sessions")
    slots = DEFAULT_SLOTS // SHARDS
    if sessions.num_rows < DEMAND_SHARE * slots:
        return []
    found: list[ev.Finding] = []
    for (broker,), most in _most_alive(sessions, ["broker"]).items():
        if most >= DEMAND_SHARE * DEFAULT_SLOTS:
            of_broker = {"sessions": most, "slots": DEFAULT_SLOTS}
            found += _lacks_slots(tables, "broker", broker, of_broker, ev.equals("broker", broker))
    sharded = sessions.filter(arrow_array(ints(sessions, "shard") >= 0))
    short = {one.broker for one in found if one.severity == ev.HIGH}
    full: dict[Any, dict[Any, int]] = {}
    for (broker, shard), most in _most_alive(sharded, ["broker", "shard"]).items():
        if most >= DEMAND_SHARE * slots and broker not in short:
            full.setdefault(broker, {})[shard] = most
    for broker, shards in full.items():
        values = {"sessions": max(shards.values()), "slots": slots, "shards": [str(shard) for shard in sorted(shards)]}
        condition = ev.both(ev.equals("broker", broker), ev.among("shard", sorted(shards)))
        found += _lacks_slots(tables, "shards", broker, values, condition)
    return found


def _most_alive(sessions: pa.Table, by: Sequence[str]) -> dict[tuple[Any, ...], int]:
    """How many sessions were alive at once, at most, by these columns."""
    table = slot_demand(sessions, every=None, by_shard="shard" in by)
    groups = group(table, list(by))
    most = np.zeros(len(groups), np.int64)
    np.maximum.at(most, groups.code, ints(table, "live", 0))
    places = zip(*(groups.keys[name].to_pylist() for name in by), strict=True)
    return dict(zip(places, most.tolist(), strict=True))


def _lacks_slots(
    tables: ev.Tables, case: str, broker: str | None, values: Mapping[str, Any], condition: str
) -> list[ev.Finding]:
    severity = ev.HIGH if values["sessions"] > values["slots"] else ev.MEDIUM
    return ev.finding(tables, "session_slots", severity, "fetch_sessions", condition, values, case=case, broker=broker)


@finder(fetches=EVERY_ROW)
def epoch_errors(tables: ev.Tables, limits: Limits) -> list[ev.Finding]:
    """Epoch errors, and how many of them follow a reconnect."""
    fetches = ev.get(tables, "fetches")
    wrong = of_outcome(fetches, "epoch_error")
    if not wrong.any():
        return []
    keys, connections = Coder(), Coder()
    owner, connection = keys.column(fetches, "session_key"), connections.column(fetches, "connection_id")
    when = times(fetches, "request_last_at")
    order = np.lexsort((when, owner))
    order = order[(owner[order] >= 0) & (when[order] != NULL_TIME)]
    moved = np.zeros(len(wrong), np.bool_)
    same = owner[order][1:] == owner[order][:-1]
    moved[order[1:][same & (connection[order][1:] != connection[order][:-1])]] = True
    groups = group(fetches, ["client_id"])
    all_wrong, after = groups.count(wrong), int(groups.count(wrong & moved).sum())
    clients = [groups.keys["client_id"][code].as_py() for code in np.flatnonzero(all_wrong).tolist()]
    values = {"clients": clients, "answers": int(wrong.sum()), "after": after or None}
    whose = {"client_id": clients[0]} if len(clients) == 1 else {}
    severity = ev.MEDIUM if after else ev.LOW
    return ev.finding(
        tables, "session_epoch_errors", severity, "fetches", "session_outcome = 'epoch_error'", values, **whose
    )


@finder(fetch_sessions=EVERY_ROW)
def savings(tables: ev.Tables, limits: Limits) -> list[ev.Finding]:
    """Bytes that sessions saved."""
    sessions = ev.get(tables, "fetch_sessions")
    saved = int(ints(sessions, "full_request_bytes_avoided", 0).sum())
    if saved <= 0:
        return []
    sent = int(ints(sessions, "request_bytes", 0).sum())
    values = {"sessions": sessions.num_rows, "saved": saved, "sent": sent}
    return ev.finding(tables, "session_savings", ev.INFO, "fetch_sessions", "full_request_bytes_avoided > 0", values)


FINDERS = (reuse, evictions, refusals, demand, epoch_errors, savings)

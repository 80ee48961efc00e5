"""Findings about groups: what set rebalances off, members that join or heartbeat in a loop, locks that ran out."""

from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kdissect.analysis.findings import evidence as ev
from kdissect.analysis.findings import row_filters
from kdissect.analysis.findings.finders import EVERY_ROW, RowFilter, finder
from kdissect.analysis.findings.limits import Limits
from kdissect.analysis.grouping import group, most_first
from kdissect.arrays.arrow import MILLI, NULL_TIME, ints, span, times
from kdissect.arrays.from_numpy import arrow_array
from kdissect.schema.apikeys import ApiKey

SET_OFF = 0.5
"""Share of a group's rebalances that others set off, before a member that joins again is not who it is about."""
REJOINS = 5
"""Times that one member (a member keeps one connection to its coordinator) was let into its group: its own start, and
a few others that come and go, take fewer."""
HEARTBEATS = {
    "Heartbeat": ApiKey.HEARTBEAT,
    "ConsumerGroupHeartbeat": ApiKey.CONSUMER_GROUP_HEARTBEAT,
    "ShareGroupHeartbeat": ApiKey.SHARE_GROUP_HEARTBEAT,
    "StreamsGroupHeartbeat": ApiKey.STREAMS_GROUP_HEARTBEAT,
}
SIGNS_OF_LIFE = (ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP, *HEARTBEATS.values())
"""APIs by which a member stays in its group."""
EVENT_COLUMNS = ["exchange_id", "group_id", "member_id", "client_id", "event", "generation"]
WAITED_MS = 10_000.0
"""A member that waited for its partitions for longer: the others took their session.timeout.ms or poll interval."""
POLL_TIMEOUT = "poll timeout"
"""In the reason of a Java client whose application did not poll within max.poll.interval.ms."""
WITHOUT_MS = 1000.0
"""A member without partitions for longer is worth telling; a heartbeat's interval is some seconds at most."""
GAP_MS = 6000.0
"""Between heartbeats of a member that had to be thrown out: brokers allow no shorter session.timeout.ms
(group.min.session.timeout.ms), and members send one every heartbeat.interval.ms, 3 s."""
COMMITS = (ApiKey.OFFSET_COMMIT, ApiKey.TXN_OFFSET_COMMIT)
"""OffsetCommit, TxnOffsetCommit: what a member may send first when it comes back."""
THROWN_OUT = {"ILLEGAL_GENERATION": 22, "UNKNOWN_MEMBER_ID": 25, "FENCED_MEMBER_EPOCH": 110}
"""What a member is told that comes back to a group which went on without it."""
AWAY_MS = 3000.0
"""A member that stays away for so long and still has its connection then did not end: libraries close connections
within milliseconds of leaving."""
MOST_NAMED = 20
"""Requests that a filter names one by one."""
LOOP_MS = 50.0
"""A heartbeat this soon after the one before it on its connection: Kafka's own intervals are seconds, and a member
sends one at once only where its assignment or subscription changes."""
LOOP_COUNT = 50
"""Of them on one connection, what changes of assignment do not explain."""


@cache
def _of_event(*names: str) -> RowFilter:
    """Rows of `groups` with one of these events."""

    def holds(groups: pa.Table, limits: Limits) -> Any:
        return pc.is_in(groups["event"].cast(pa.string()), pa.array(names))

    return holds


def _with_assignment(groups: pa.Table, limits: Limits) -> Any:
    """Rows of `groups` that name the partitions a member has."""
    return pc.is_valid(groups["assigned_partitions"])


@finder(exchanges=row_filters.of_api(ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP), groups=_of_event("join", "sync", "leave"))
def rejoins(tables: ev.Tables, limits: Limits) -> list[ev.Finding]:
    """Members of classic groups that join again and again: each time the whole group stops to rebalance.

    Where others set most of the group's rebalances off, by joining or leaving, they are who it is about.
    """
    exchanges = ev.get(tables, "exchanges")
    joined = (ints(exchanges, "api_key") == ApiKey.JOIN_GROUP) & (ints(exchanges, "error_code", -1) == 0)
    rows = np.flatnonzero(joined & (times(exchanges, "request_first_at") != NULL_TIME))
    if len(rows) < REJOINS:
        return []
    joins = exchanges.take(rows)
    at = times(joins, "request_first_at")
    members, clients = group(joins, ["connection_id", "client_id"]), group(joins, ["client_id"])
    often = (members.count() >= REJOINS)[members.code]
    counts = clients.count(often)
    events = ev.get(tables, "groups")
    group_of = dict(zip(events["exchange_id"].to_pylist(), events["group_id"].to_pylist(), strict=True))
    rebalanced = _rebalances(tables)
    found = []
    for code in most_first(counts):
        client = clients.keys["client_id"][code].as_py()
        member = int(np.argmax(members.count(often & (clients.code == code))))
        mine = np.flatnonzero(members.code == member)
        connection = members.keys["connection_id"][member].as_py()
        name = next((group_of[one] for one in joins["exchange_id"].take(mine).to_pylist() if one in group_of), None)
        told = rebalanced.get(name, []) if name else []
        others = [one for one in told if client not in one.by]
        by = sorted({who or "" for one in others for who in one.by})
        set_off = len(others) > SET_OFF * len(told)
        values = {
            "joins": len(mine), "took": span(at[mine]) / MILLI, "member": client, "by": by, "theirs": len(others),
            "each": len(told),
        }  # fmt: skip
        condition = ev.both(
            ev.equals("connection_id", connection),
            ev.equals("client_id", client),
            "api = 'JoinGroup' and error_code = 0",
        )
        found += ev.finding(
            tables, "group_rebalances", ev.MEDIUM, "exchanges", condition, values, case="others" if set_off else "own",
            group_id=name, client_id=client if not set_off else by[0] if len(by) == 1 else None,
        )  # fmt: skip
    return found


@finder(exchanges=row_filters.of_api(*HEARTBEATS.values()))
def heartbeat_loops(tables: ev.Tables, limits: Limits) -> list[ev.Finding]:
    """Members that send heartbeats without a pause."""
    exchanges = ev.get(tables, "exchanges")
    if exchanges.num_rows < LOOP_COUNT:
        return []
    beat = np.isin(ints(exchanges, "api_key"), list(HEARTBEATS.values()))
    rows = np.flatnonzero(beat)
    if len(rows) < LOOP_COUNT:
        return []
    beats = exchanges.take(rows)
    groups = group(beats, ["connection_id", "client_id", "api"])
    at = times(beats, "request_first_at")
    order = np.lexsort((at, groups.code))
    same = np.diff(groups.code[order]) == 0
    quick = np.zeros(len(rows), bool)
    quick[order[1:]] = same & (np.diff(at[order]) <= LOOP_MS * MILLI)
    counts = groups.count(quick)
    found = []
    for code in most_first(counts, LOOP_COUNT):
        client, connection, api = (groups.keys[name][code].as_py() for name in ("client_id", "connection_id", "api"))
        values = {"api": api, "beats": int(counts[code]), "gap": LOOP_MS}
        condition = ev.both(ev.equals("connection_id", connection), ev.equals("api", api))
        found += ev.finding(tables, "heartbeat_loop", ev.MEDIUM, "exchanges", condition, values, client_id=client)
    return found


@finder(exchanges=(row_filters.of_api(*SIGNS_OF_LIFE), row_filters.failed), groups=EVERY_ROW, connections=EVERY_ROW)
def thrown_out(tables: ev.Tables, limits: Limits) -> list[ev.Finding]:
    """Members that a group went on without after they had sent no heartbeat: on one connection, from the last request
    that was taken to the first that was refused."""
    exchanges, events = ev.get(tables, "exchanges"), ev.get(tables, "groups")
    key, code = ints(exchanges, "api_key"), ints(exchanges, "error_code", -1)
    beat = np.isin(key, list(HEARTBEATS.values()))
    out = (beat | np.isin(key, COMMITS)) & np.isin(code, list(THROWN_OUT.values()))
    if not out.any():
        return []
    connections = ev.get(tables, "connections")
    holed = connections["connection_id"].filter(arrow_array(ints(connections, "missing_bytes", 0) > 0)).to_pylist()
    rows = np.flatnonzero(out | np.isin(key, SIGNS_OF_LIFE))
    some = exchanges.take(arrow_array(rows))
    owner, asked = group(some, ["connection_id", "client_id"]), times(some, "request_first_at")
    order = np.lexsort((asked, owner.code))
    names = dict(zip(events["exchange_id"].to_pylist(), events["group_id"].to_pylist(), strict=True))
    found = []
    for before, after in pairwise(order.tolist()):
        if owner.code[before] != owner.code[after] or out[rows[before]] or not out[rows[after]]:
            continue
        begin, end = int(asked[before]), int(asked[after])
        if end - begin < GAP_MS * MILLI or begin == NULL_TIME:
            continue
        last = some.slice(after, 1).to_pylist()[0]
        if last["connection_id"] in holed:
            continue  # heartbeats may lie in what was not captured
        mine = some["exchange_id"].filter(arrow_array(owner.code == owner.code[after])).to_pylist()
        name = next((names[one] for one in mine if names.get(one)), None)
        condition = ev.both(
            ev.equals("connection_id", last["connection_id"]), f"request_first_at >= {ev.instant(begin)}",
            f"request_first_at <= {ev.instant(end)}", _of_apis(some["api"][before].as_py(), last["api"]),
        )  # fmt: skip
        found += ev.finding(
            tables, "member_thrown_out", ev.MEDIUM, "exchanges", condition, {"error": last["error"]},
            client_id=last["client_id"], group_id=name, broker=last["broker"], first_at=begin, last_at=end,
        )  # fmt: skip
    return found


def _of_apis(sign_of_life: str, refused: str) -> str:
    """The filter for a member's last sign of life and the request that was refused after it: of commits those alone
    that were refused."""
    if refused in HEARTBEATS:
        return ev.among("api", sorted({sign_of_life, refused}))
    return f"({ev.equals('api', sign_of_life)} or ({ev.equals('api', refused)} and error_code != 0))"


@finder(groups=_of_event("leave"))
def departures(tables: ev.Tables, limits: Limits) -> list[ev.Finding]:
    """Members that left with a reason of their own (KIP-800)."""
    groups = ev.get(tables, "groups")
    left = ev.equal(groups, "event", "leave") & pc.is_valid(groups["reason"]).to_numpy()
    if not left.any():
        return []
    rows = groups.take(arrow_array(np.flatnonzero(left)))
    by = group(rows, ["group_id", "client_id", "reason"])
    counts, at = by.count(), times(rows, "at")
    found = []
    for code in most_first(counts):
        name, client, reason = (by.keys[column][code].as_py() for column in ("group_id", "client_id", "reason"))
        late = POLL_TIMEOUT in reason
        when = [one for one in sorted(at[by.code == code].tolist()) if one != NULL_TIME]
        condition = ev.both(
            ev.equals("group_id", name),
            ev.equals("client_id", client),
            "event = 'leave'",
            f"reason = {ev.literal(reason)}",
        )
        told = ev.finding(
            tables, "member_left", ev.MEDIUM if late else ev.INFO, "groups", condition,
            {"leaves": int(counts[code]), "when": when, "reason": reason}, case="reason", client_id=client,
            group_id=name,
        )  # fmt: skip
        found += told if late else [one._replace(advice=None) for one in told]
    return found


@finder(groups=_of_event("leave", "join"), connections=EVERY_ROW)
def stayed_away(tables: ev.Tables, limits: Limits) -> list[ev.Finding]:
    """Members that left without a reason though they went on living: as libraries do whose application does not poll.

    A client that ends closes its connection to the coordinator at once, one that subscribes anew joins again. That it
    was still open a packet of it says, be it that which closes it: where none is seen, it may have been left out of the
    capture.
    """
    groups, connections = ev.get(tables, "groups"), ev.get(tables, "connections")
    event, at = groups["event"].cast(pa.string()).to_pylist(), times(groups, "at")
    silent = ev.equal(groups, "event", "leave") & ~pc.is_valid(groups["reason"]).to_numpy() & (at != NULL_TIME)
    if not silent.any():
        return []
    over = dict(zip(connections["connection_id"].to_pylist(), times(connections, "ended_at").tolist(), strict=True))
    ids = [str(one).partition(":")[0] for one in groups["exchange_id"].to_pylist()]
    members = {one for one, what in zip(ids, event, strict=True) if what == "join"}
    silent &= np.array([one in members for one in ids], bool)  # others remove members, as tools do
    until = np.array([over.get(one, NULL_TIME) for one in ids], np.int64)
    by = group(groups, ["group_id", "client_id"])
    joined = np.array([one == "join" for one in event], bool)
    found = []
    for code in np.flatnonzero(by.count(silent)).tolist():
        mine = np.flatnonzero(silent & (by.code == code) & (until >= at + round(AWAY_MS * MILLI)))
        joins = at[joined & (by.code == code)]
        again = np.array([((joins >= at[row]) & (joins < at[row] + AWAY_MS * MILLI)).any() for row in mine], bool)
        mine = mine[~again]
        name, client = (by.keys[column][code].as_py() for column in ("group_id", "client_id"))
        if not len(mine) or client is None:
            continue
        condition = ev.both(
            ev.equals("group_id", name), ev.equals("client_id", client), "event = 'leave' and reason is null",
            ev.among("exchange_id", groups["exchange_id"].take(arrow_array(mine[:MOST_NAMED])).to_pylist()),
        )  # fmt: skip
        found += ev.finding(
            tables, "member_left", ev.MEDIUM, "groups", condition,
            {"leaves": len(mine), "when": sorted(at[mine].tolist())}, case="stayed", client_id=client, group_id=name,
        )  # fmt: skip
    return found


@finder(groups=_with_assignment)
def without_partitions(tables: ev.Tables, limits: Limits) -> list[ev.Finding]:
    """Members of KIP-848 groups that waited for their partitions."""
    groups = ev.get(tables, "groups")
    told = ev.equal(groups, "protocol", "consumer") & pc.is_valid(groups["assigned_partitions"]).to_numpy()
    rows = groups.take(arrow_array(np.flatnonzero(told)))
    by = group(rows, ["group_id", "client_id", "member_id"])
    at = times(rows, "at")
    owned = np.array(
        [sum(len(one["partitions"] or ()) for one in given) for given in rows["assigned_partitions"].to_pylist()]
    )
    order = np.lexsort((at, by.code))
    found = []
    waits: dict[int, list[tuple[float, int]]] = {}
    for before, after in zip(order[:-1].tolist(), order[1:].tolist(), strict=True):
        length = (int(at[after]) - int(at[before])) / MILLI
        if by.code[before] == by.code[after] and not owned[before] and owned[after] and length >= WITHOUT_MS:
            waits.setdefault(int(by.code[before]), []).append((length, int(at[before])))
    for code, spans in waits.items():
        name, client, member = (by.keys[column][code].as_py() for column in ("group_id", "client_id", "member_id"))
        condition = ev.both(
            ev.equals("group_id", name), ev.equals("member_id", member), "assigned_partitions is not null"
        )
        severity = ev.LOW if max(length for length, _ in spans) >= WAITED_MS else ev.INFO
        found += ev.finding(
            tables, "member_without_partitions", severity, "groups", condition,
            {"total": sum(length for length, _ in spans)}, client_id=client, group_id=name, first_at=spans[0][1],
            last_at=spans[-1][1] + int(spans[-1][0] * MILLI),
        )  # fmt: skip
    return found


@finder(groups=_of_event("join", "sync", "leave"), exchanges=row_filters.of_api(ApiKey.SYNC_GROUP))
def rebalances(tables: ev.Tables, limits: Limits) -> list[ev.Finding]:
    """Rebalances of classic groups: what set each off, and for how long members waited for partitions."""
    found = []
    for name, told in _rebalances(tables).items():
        longest = max(one.wait_ms for one in told)
        values = {"each": [{"at": one.begin, one.did: list(one.by)} for one in told], "longest": longest}
        condition = ev.both(ev.equals("group_id", name), "event in ('join', 'sync', 'leave') and protocol = 'classic'")
        found += ev.finding(
            tables, "rebalances", ev.LOW if longest >= WAITED_MS else ev.INFO, "groups", condition, values,
            group_id=name, first_at=told[0].begin, last_at=told[-1].end,
        )  # fmt: skip
    return found


class Rebalance(NamedTuple):
    """One rebalance of a group: from the first JoinGroup that led to a generation to its last SyncGroup answer."""

    begin: int
    """Microseconds, as `end`."""
    end: int
    by: tuple[str | None, ...]
    """Client ids of who set it off."""
    did: str
    """What they did: left, joined, gone (without a word), again (joined again)."""
    wait_ms: float
    """The longest that a member waited for its partitions."""


def _rebalances(tables: ev.Tables) -> dict[str, list[Rebalance]]:
    """The rebalances of each classic group that had any, by time. The first generation that is seen of a group is its
    beginning, or the capture's, and no rebalance."""
    groups, exchanges = ev.get(tables, "groups"), ev.get(tables, "exchanges")
    classic = ev.equal(groups, "protocol", "classic") & (ints(groups, "error_code", -1) == 0)
    events = groups.take(arrow_array(np.flatnonzero(classic & (times(groups, "at") != NULL_TIME))))
    syncs = exchanges.filter(arrow_array(ints(exchanges, "api_key") == ApiKey.SYNC_GROUP))
    answered = dict(zip(syncs["exchange_id"].to_pylist(), times(syncs, "response_first_at").tolist(), strict=True))
    by_group: dict[str, list[dict[str, Any]]] = {}
    for row, at in zip(events.select(EVENT_COLUMNS).to_pylist(), times(events, "at").tolist(), strict=True):
        by_group.setdefault(row["group_id"], []).append({**row, "at": at, "end": answered.get(row["exchange_id"])})
    found = {}
    for name, mine in by_group.items():
        told = _rebalances_in(sorted(mine, key=lambda one: (one["at"], one["exchange_id"], one["member_id"] or "")))
        if told:
            found[name] = told
    return found


def _rebalances_in(events: list[dict[str, Any]]) -> list[Rebalance]:
    """The rebalances of one group; `events` in order of time."""
    generations: dict[int, list[dict[str, Any]]] = {}
    for event in events:
        if event["event"] in ("join", "sync") and event["generation"] is not None and event["generation"] >= 0:
            generations.setdefault(event["generation"], []).append(event)
    found = []
    for before, generation in pairwise(sorted(generations)):
        joins = [one for one in generations[generation] if one["event"] == "join"]
        syncs = [one for one in generations[generation] if one["event"] == "sync" and one["end"] is not None]
        was = {one["member_id"]: one["client_id"] for one in generations[before]}
        if generation != before + 1 or not joins or not syncs or not was:
            continue
        begin, end = joins[0]["at"], max(one["end"] for one in syncs)
        since = max(one["at"] for one in generations[before])
        left = [one for one in events if one["event"] == "leave" and since <= one["at"] <= end]
        here = {one["member_id"] for one in joins}
        asked = {one["member_id"]: one["at"] for one in reversed(joins)}
        waits = [one["end"] - asked[one["member_id"]] for one in syncs if one["member_id"] in asked]
        first = joins[0]
        gone = [client for member, client in was.items() if member not in here]
        if left and left[0]["at"] <= begin:
            by, did = (left[0]["client_id"],), "left"
        elif first["member_id"] not in was:
            by, did = (first["client_id"],), "joined"
        elif gone and not left:
            by, did = tuple(gone), "gone"
        else:
            by, did = (first["client_id"],), "again"
        if waits:
            found.append(Rebalance(begin, end, by, did, max(waits) / MILLI))
    return found


@finder(share_sessions=EVERY_ROW, groups=_of_event("share_heartbeat"))
def locks(tables: ev.Tables, limits: Limits) -> list[ev.Finding]:
    """Members of share groups whose acknowledgements were refused: their locks had run out."""
    sessions, groups = ev.get(tables, "share_sessions"), ev.get(tables, "groups")
    refused = ints(sessions, "refused", 0)
    if not (refused > 0).any():
        return []
    clients = dict(zip(groups["member_id"].to_pylist(), groups["client_id"].to_pylist(), strict=True))
    found = []
    for row in sessions.filter(arrow_array(refused > 0)).to_pylist():
        client = clients.get(row["member_id"])
        values = {"member": row["member_id"], "records": row["refused"], "lock": row["lock_ms"] or None}
        condition = ev.both(ev.equals("session_key", row["session_key"]), "refused > 0")
        found += ev.finding(
            tables, "share_locks_ran_out", ev.MEDIUM, "share_sessions", condition, values, client_id=client,
            group_id=row["group_id"], broker=row["broker"], first_at=ev.micro(row["opened_at"]),
            last_at=ev.micro(row["closed_at"] or row["opened_at"]),
        )  # fmt: skip
    return found


FINDERS = (rejoins, rebalances, thrown_out, locks, heartbeat_loops, departures, stayed_away, without_partitions)

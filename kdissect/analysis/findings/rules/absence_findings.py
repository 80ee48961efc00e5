"""Findings about one process that was away: a broker that stood still or whose connections all ended, a consumer that
stopped asking."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kdissect.analysis.exchange_keys import exchange_keys, locate
from kdissect.analysis.findings import evidence as ev
from kdissect.analysis.findings import row_filters
from kdissect.analysis.findings.client_ways import copies_in, with_copies
from kdissect.analysis.findings.finders import EVERY_ROW, finder
from kdissect.analysis.findings.limits import Limits
from kdissect.analysis.findings.network_gaps import NetworkGap, explained_by_gaps, network_gaps, possible_gaps
from kdissect.analysis.findings.rules.access_findings import refused_connections
from kdissect.analysis.findings.rules.broker_findings import WAITING_APIS, acks_of
from kdissect.analysis.findings.rules.reset_findings import split_strokes
from kdissect.analysis.findings.rules.silence_findings import OF_SILENCES, Silence, silences
from kdissect.analysis.findings.standstills import STANDSTILL_MS, Standstill, stands_still, standstills
from kdissect.analysis.findings.time_shares import TimeShares
from kdissect.analysis.grouping import group
from kdissect.arrays.arrow import MILLI, NULL_TIME, Flags, Int64s, distinct, ints, reals, times
from kdissect.arrays.from_numpy import arrow_array
from kdissect.schema.apikeys import ApiKey

STOPPED_MS = 2000.0
"""Silence of a consumer that is reported: several polls with the usual fetch.max.wait.ms of 500."""
TOGETHER = 0.7
"""Share of the longer of two silences, of clients or of brokers, in which both were silent, for one reason to explain
both."""
FETCHES = 20
"""Fetches of a client before its rhythm is known."""
RESUMED = 5
"""Fetches after the silence: a client that only closes then had ended its work."""
PRODUCES = 20
"""Produce requests of a client before its rhythm is known, of the first and the last in each slot of 100 ms."""
STEADY = 4.0
"""The longest other wait between two requests of a producer, as a multiple of the median one: a clock's waits differ by
less, those of events that come by chance by more."""
RHYTHM = 8
"""The silence is this many times as long as any other wait of the client between two requests, at least: a consumer
whose application is slow now and then has other long waits."""
STROKE_MS = 200.0
"""From the first to the last end of a broker's connections: a process that stops ends them all at once."""
CLIENTS = 2
"""Clients whose connections ended: those of one may be its own decision."""
AWAY_MS = 2000.0
"""For so long nobody was served at the broker's port: twice reconnect.backoff.max.ms, 1 s by default."""
IDLE_MS = 60_000.0
"""One of the connections was used within this time: brokers and clients close idle ones after nine minutes and more
(connections.max.idle.ms)."""
MOST_NAMED = 20
"""Connections that a filter names one by one."""
STALLED_MS = 1000.0
"""Silence of a broker that owes answers: garbage collection and slow disks take tenths of a second, a second is felt
by everybody."""
ANSWERED_MS = 200.0
"""Answers that follow the end of a silence this closely had waited for it."""
WAITING_CONNECTIONS = 2
"""Connections that wait at least: what one connection waits for may be its own."""
NETWORK_SHARE = 0.5
"""Of a silence in which the network had requests or answers of the broker: the broker did not stand still then."""
FOLLOWER_SHARE = 0.5
"""Of the time of a Produce request that its broker waited for followers: less is not why it was late."""
AGAIN_MS = 10_000.0
"""From the end of a broker's silence to the next one, for both to be one story: what makes a process stand still (a
slow disk, a full heap) does so again and again."""
EDGE_MS = 300.0
"""Left out at both ends of a silence when looking for what the broker itself, or others, sent meanwhile."""
BEFORE_MS = 10_000.0
"""How far back a broker's own fetches show that they are in the capture at all (replica.fetch.wait.max.ms is 500)."""
FOR_EVER = 10**15
"""Microseconds: longer than any capture."""
REPLICATED_APIS = (
    ApiKey.OFFSET_COMMIT, ApiKey.INIT_PRODUCER_ID, ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.ADD_OFFSETS_TO_TXN,
    ApiKey.END_TXN, ApiKey.TXN_OFFSET_COMMIT, ApiKey.DELETE_GROUPS, ApiKey.OFFSET_DELETE,
)  # fmt: skip
"""APIs whose answers wait until followers have what they wrote."""


class Stall(NamedTuple):
    """A broker that answered nothing although answers were due; microseconds."""

    broker: str
    begin: int
    end: int
    rows: Int64s
    """Exchanges that waited."""
    sure: bool = True
    """The network to all who waited is known to have been there. False: it may have been gone."""


def stalls(tables: ev.Tables) -> list[Stall]:
    """Spans of STALLED_MS and more in which a broker answered nothing while requests on two connections were due.

    A connection waits whose foremost request is due: what lies behind it may lie behind a long poll.
    """
    exchanges = ev.get(tables, "exchanges")
    answered, asked = times(exchanges, "response_first_at"), times(exchanges, "request_last_at")
    known = (answered != NULL_TIME) & (asked != NULL_TIME)
    due = asked + _agreed(tables, exchanges)
    own_due = due + (np.nan_to_num(reals(exchanges, "queued_ms")) * MILLI).astype(np.int64)
    late = known & (answered - due >= STALLED_MS * MILLI) & ~np.isin(ints(exchanges, "api_key"), WAITING_APIS)
    late &= ~ev.equal(exchanges, "hold", "throttled")
    if not late.any():
        return []
    groups = group(exchanges, ["broker"])
    connections = group(exchanges, ["connection_id"]).code
    found = []
    for code in distinct(groups.code[late]).tolist():
        broker = groups.keys["broker"][code].as_py()
        mine = distinct(answered[known & (groups.code == code)])
        rows = np.flatnonzero(late & (groups.code == code))
        for at in np.flatnonzero(np.diff(mine) >= STALLED_MS * MILLI).tolist():
            begin, end = int(mine[at]), int(mine[at + 1])
            waited = rows[
                (due[rows] <= end - STALLED_MS * MILLI)
                & (answered[rows] >= end)
                & (answered[rows] <= end + ANSWERED_MS * MILLI)
            ]
            foremost = waited[own_due[waited] <= end - STALLED_MS * MILLI]
            waited = waited[np.isin(connections[waited], connections[foremost])]
            if len(distinct(connections[waited])) >= WAITING_CONNECTIONS:
                found.append(Stall(broker, max(begin, int(asked[waited].min())), end, waited))
    return found


def _agreed(tables: ev.Tables, exchanges: pa.Table) -> Int64s:
    """How long a broker may keep each request, in microseconds: max_wait_ms of a Fetch, for ever where it was cut off,
    else nothing."""
    fetches = ev.get(tables, "fetches")
    waits = np.append(np.maximum(ints(fetches, "max_wait_ms", FOR_EVER // MILLI), 0) * MILLI, FOR_EVER)
    found = waits[locate(exchange_keys(exchanges["exchange_id"]), exchange_keys(fetches["exchange_id"]))]
    return np.where(ints(exchanges, "api_key") == ApiKey.FETCH, found, 0)


def _as_long_as_a_stall(exchanges: pa.Table, limits: Limits) -> Any:
    """Exchanges that took as long as a broker has to be silent to count as stalled; those of gaps of the network took
    longer."""
    return pc.greater_equal(exchanges["latency_ms"], STALLED_MS)


def _first_and_last_answers(exchanges: pa.Table, limits: Limits) -> Any:
    """The first and the last answer of each broker in each slot: longer silences show in them alone."""
    return arrow_array(row_filters.first_and_last_in_slots(exchanges, "broker", "response_first_at"))


@finder(
    exchanges=(_as_long_as_a_stall, _first_and_last_answers, row_filters.first_and_last_of_clients),
    fetches=EVERY_ROW, connections=EVERY_ROW, produces=_as_long_as_a_stall,
)  # fmt: skip
def stalled(tables: ev.Tables, limits: Limits) -> list[ev.Finding]:
    """Brokers that stood still: nobody got an answer. Whether the process did, its own fetches tell.

    A silence while the network to all who waited was gone is told as that (`network_silent`). Where it may have been
    gone, and nothing else tells, the silence is information. So is a standstill: no single broker is its cause.
    """
    exchanges, connections = ev.get(tables, "exchanges"), ev.get(tables, "connections")
    still, silent = standstills(exchanges), stalls(tables)
    reported = [one for one in still if one.is_of_no_single_broker]
    if not (reported or silent):
        return []
    gaps, maybe = network_gaps(exchanges, connections), possible_gaps(exchanges, connections)
    shares = TimeShares({"exchanges": exchanges, "fetches": ev.get(tables, "fetches")})
    own: list[Stall] = []
    waiting: list[Stall] = []
    for one in silent:
        around = [other for other in still if _is_within(one, other)]
        if around:
            reported += [other for other in around if other not in reported]
            continue
        spent = shares.spent("broker", one.broker, one.begin, one.end)
        if spent.get("network", 0.0) > NETWORK_SHARE * sum(spent.values()):
            continue
        rows = exchanges.take(arrow_array(one.rows))
        begin, end = (np.full(rows.num_rows, at, np.int64) for at in (one.begin, one.end))
        if explained_by_gaps(gaps, rows, connections, begin, end).all():
            continue
        one = one._replace(sure=not explained_by_gaps(maybe, rows, connections, begin, end).all())
        (waiting if _may_wait_for_followers(tables, rows).all() else own).append(one)
    found = []
    for standstill in reported:
        found += _report_standstill(tables, standstill, gaps)
    for some in _in_a_row(own):
        found += _report_stalls(tables, some)
    alike: dict[tuple[str, ...], list[Stall]] = {}
    for one in waiting:
        beside = [other for other in own + waiting if other.broker != one.broker and _overlap(one, other)]
        if any(other in own or other.broker < one.broker for other in beside):
            continue  # it waits for that one, or is told with it
        alike.setdefault(tuple(sorted({other.broker for other in beside})), []).append(one)
    for names, those in alike.items():
        for some in _in_a_row(those):
            found += _report_stalls(tables, some, names, replicated=True)
    return found


def _is_within(stall: Stall, standstill: Standstill) -> bool:
    """Whether most of a broker's silence is a standstill, or all but its edges if no other broker owed answers."""
    if standstill.is_of_no_single_broker:
        return stands_still([standstill], stall.begin, stall.end)
    edge = EDGE_MS * MILLI
    return standstill.begin <= stall.begin + edge and standstill.end >= stall.end - edge


def _report_standstill(tables: ev.Tables, standstill: Standstill, gaps: list[NetworkGap]) -> list[ev.Finding]:
    """The finding about a standstill, unless the network is known to have been gone."""
    if any(gap.begin < standstill.end and gap.end > standstill.begin for gap in gaps):
        return []
    rows = ev.get(tables, "exchanges").take(arrow_array(standstill.rows))
    condition = ev.both(
        ev.among("broker", standstill.brokers), f"request_first_at <= {ev.instant(standstill.begin)}",
        f"response_first_at >= {ev.instant(standstill.end)}", f"latency_ms >= {STANDSTILL_MS:g}",
    )  # fmt: skip
    values = {
        "brokers": standstill.brokers, "connections": len(pc.unique(rows["connection_id"])),
        "clients": ev.names(rows["client_id"]),
    }  # fmt: skip
    return ev.finding(
        tables, "broker_stalled", ev.INFO, "exchanges", condition, values, case="standstill", cause="unknown",
        first_at=standstill.begin, last_at=standstill.end,
    )  # fmt: skip


def _in_a_row(every: list[Stall]) -> list[list[Stall]]:
    """Silences of one broker of which each begins within AGAIN_MS of the end of the one before."""
    rows: list[list[Stall]] = []
    for one in sorted(every, key=lambda one: (one.broker, one.begin)):
        last = rows[-1][-1] if rows else None
        if last is not None and last.broker == one.broker and one.begin - last.end <= AGAIN_MS * MILLI:
            rows[-1].append(one)
        else:
            rows.append([one])
    return sorted(rows, key=lambda some: some[0].begin)


def _may_wait_for_followers(tables: ev.Tables, rows: pa.Table) -> Flags:
    """Which requests a broker answers when its followers have them, unless it is known that it waited for them for less
    than half of the time; bool [rows]."""
    followers = np.nan_to_num(reals(rows, "replication_ms"), nan=np.inf)
    late = followers >= FOLLOWER_SHARE * np.nan_to_num(reals(rows, "latency_ms"))
    produces = (ints(rows, "api_key") == ApiKey.PRODUCE) & ~np.isin(acks_of(tables, rows), (0, 1)) & late
    flags: Flags = produces | np.isin(ints(rows, "api_key"), REPLICATED_APIS)
    return flags


def _overlap(one: Stall | Silence, other: Stall | Silence) -> bool:
    """Whether two silences are mostly the same time."""
    shared = min(one.end, other.end) - max(one.begin, other.begin)
    return shared >= TOGETHER * max(one.end - one.begin, other.end - other.begin)


def _report_stalls(
    tables: ev.Tables, stalls: list[Stall], beside: Sequence[str] = (), replicated: bool = False
) -> list[ev.Finding]:
    """The finding about silences of one broker. `beside`: brokers that were silent too, each of which may have waited
    for another as its follower. `replicated`: only requests for which it waits for followers were due."""
    exchanges = ev.get(tables, "exchanges")
    rows = exchanges.take(arrow_array(np.concatenate([one.rows for one in stalls])))
    broker, begin, end = stalls[0].broker, stalls[0].begin, stalls[-1].end
    spans = " or ".join(
        ev.both(
            f"request_last_at <= {ev.instant(one.end - int(STALLED_MS * MILLI))}",
            f"response_first_at >= {ev.instant(one.end)}",
            f"response_first_at <= {ev.instant(one.end + int(ANSWERED_MS * MILLI))}",
        )
        for one in stalls[:MOST_NAMED]
    )
    condition = ev.both(ev.equals("broker", broker), spans if len(stalls) == 1 else f"({spans})")
    fetched = [count for one in stalls if (count := _own_fetches(tables, one)) is not None]
    proven = sum(_acknowledged(exchanges.take(arrow_array(one.rows)), one) for one in stalls)
    alone = not beside
    unseen = alone and not fetched
    values = {
        "connections": len(pc.unique(rows["connection_id"])), "clients": ev.names(rows["client_id"]),
        "name": broker, "with": beside, "silent": alone and bool(fetched) and not any(fetched),
        "fetching": alone and any(fetched), "acknowledged": unseen and bool(proven) and not replicated,
        "waiting": unseen and bool(proven) and replicated, "unseen": unseen and not proven,
        "others": sorted(
            {name for one in stalls for name in _brokers_that_answered(exchanges, one)} - {broker, *beside}
        ),
        "stalls": len(stalls), "longest": max(one.end - one.begin for one in stalls) / MILLI,
    }  # fmt: skip
    known = not alone or values["silent"] or values["acknowledged"]
    measured = any(one.sure for one in stalls) or any(values[which] for which in ("silent", "fetching", "acknowledged"))
    return ev.finding(
        tables, "broker_stalled", ev.HIGH if measured else ev.INFO, "exchanges", condition, values,
        broker=broker if alone else None, first_at=begin, last_at=end, cause="broker" if known else "unknown",
        case="once" if len(stalls) == 1 else "again",
    )  # fmt: skip


def _acknowledged(rows: pa.Table, stall: Stall) -> bool:
    """Whether TCP acknowledged a request that was sent during a silence soon, without any answer to carry it."""
    inside = times(rows, "request_last_at") > stall.begin + EDGE_MS * MILLI
    soon = np.nan_to_num(reals(rows, "network_ms"), nan=np.inf) <= EDGE_MS
    return bool((inside & soon & ev.equal(rows, "network_kind", "ack")).any())


def _own_fetches(tables: ev.Tables, stall: Stall) -> int | None:
    """Fetches that the broker sent as a follower during its silence; None where none of its are in the capture."""
    fetches = ev.get(tables, "fetches")
    if not stall.broker.isdigit():
        return None
    at = times(fetches, "requested_at")
    mine = at[(ints(fetches, "replica_id") == int(stall.broker)) & (at != NULL_TIME)]
    if not ((mine >= stall.begin - BEFORE_MS * MILLI) & (mine <= stall.begin + EDGE_MS * MILLI)).any():
        return None
    return int(((mine > stall.begin + EDGE_MS * MILLI) & (mine < stall.end - EDGE_MS * MILLI)).sum())


def _brokers_that_answered(exchanges: pa.Table, stall: Stall) -> list[str]:
    """Brokers that answered during the silence of this one. Answers at its edges do not count: all brokers may have
    fallen silent."""
    answered, edge = times(exchanges, "response_first_at"), int(EDGE_MS * MILLI)
    rows = exchanges.filter(arrow_array((answered > stall.begin + edge) & (answered < stall.end - edge)))
    names = {str(name) for name in pc.unique(rows["broker"].cast(pa.string())).to_pylist() if name}
    return sorted(names - {stall.broker})


@finder(exchanges=(*OF_SILENCES, row_filters.of_api(ApiKey.METADATA)), fetches=EVERY_ROW, connections=EVERY_ROW)
def silent_alone(tables: ev.Tables, limits: Limits) -> list[ev.Finding]:
    """Consumers and producers that worked steadily, then sent nothing on any connection, and went on, each alone.

    No answer was due to them, their connections stayed open, and segments were not sent again and again: the host of a
    process that stands still acknowledges. A producer may have had nothing to send, so its silence is low.
    """
    exchanges = ev.get(tables, "exchanges")
    connections = ev.get(tables, "connections")
    every = silences(exchanges, connections)
    alone = [
        one for one in every if one.sure and one.end - one.begin >= STOPPED_MS * MILLI and not _in_company(one, every)
    ]
    if not alone:
        return []
    fetches = ev.get(tables, "fetches")
    found = []
    for one in alone:
        reads = _reads_steadily(fetches, one)
        if not (reads or _writes_steadily(exchanges, fetches, one)) or _used_others(exchanges, connections, one.client):
            continue
        if not _stayed(connections, one) or _sent_again(connections, one):
            continue
        condition = ev.both(
            ev.equals("client_id", one.client),
            f"request_first_at in ({ev.instant(one.asked)}, {ev.instant(one.end)})",
        )
        found += ev.finding(
            tables, "consumer_silent" if reads else "producer_silent", ev.MEDIUM if reads else ev.LOW, "exchanges",
            condition, client_id=one.client, first_at=one.begin, last_at=one.end,
        )  # fmt: skip
    return found


def _in_company(silence: Silence, every: list[Silence]) -> bool:
    """Whether another client was, or may have been, silent for much the same time: then the reason may be a common
    one."""
    return any(other.client != silence.client and _overlap(silence, other) for other in every)


def _reads_steadily(fetches: pa.Table, silence: Silence) -> bool:
    """Whether the client sent FETCHES fetches, RESUMED of them behind the silence, and other waits between two of them
    were short."""
    mine = ev.equal(fetches, "client_id", silence.client) & (ints(fetches, "is_follower", 0) == 0)
    asked = np.sort(times(fetches, "requested_at")[mine])
    before = int(np.searchsorted(asked, silence.begin, side="right"))
    if len(asked) < FETCHES or before == 0 or len(asked) - before < RESUMED:
        return False
    waits = np.delete(np.diff(asked), before - 1)
    return int(waits.max()) * RHYTHM <= silence.end - silence.begin


def _writes_steadily(exchanges: pa.Table, fetches: pa.Table, silence: Silence) -> bool:
    """Whether the client wrote in a rhythm and never fetched. It sent PRODUCES requests before the silence and RESUMED
    behind it. Its other waits between two requests were short and alike: it writes by a clock, or all the time."""
    mine = ev.equal(exchanges, "client_id", silence.client) & (times(exchanges, "request_first_at") != NULL_TIME)
    written = times(exchanges, "request_first_at")[mine & (ints(exchanges, "api_key") == ApiKey.PRODUCE)]
    before, after = int((written <= silence.begin).sum()), int((written >= silence.end).sum())
    if before < PRODUCES or after < RESUMED or ev.equal(fetches, "client_id", silence.client).any():
        return False
    waits = np.diff(np.sort(times(exchanges, "request_first_at")[mine])) / MILLI
    waits = np.delete(waits, int(np.argmax(waits)))  # the silence is the longest
    longest = float(waits.max())
    alike = longest <= max(STEADY * float(np.median(waits)), 2 * row_filters.SLOT_MS)
    return alike and longest * RHYTHM <= (silence.end - silence.begin) / MILLI


def _used_others(exchanges: pa.Table, connections: pa.Table, client: str) -> bool:
    """Whether a client has connections that the capture lacks: one of its own began here, and it never asked for
    metadata, from which alone clients know where to fetch and to write."""
    began = ev.equal(connections, "client_id", client) & (ints(connections, "start_seen", 0) > 0)
    asked = ev.equal(exchanges, "client_id", client) & (ints(exchanges, "api_key") == ApiKey.METADATA)
    return bool(began.any()) and not bool(asked.any())


def _stayed(connections: pa.Table, silence: Silence) -> bool:
    """Whether a connection of the client was open all the time, and none ended or began meanwhile."""
    mine = ev.equal(connections, "client_id", silence.client)
    started, ended = times(connections, "started_at"), times(connections, "ended_at")
    stayed = mine & (started <= silence.begin) & (ended >= silence.end)
    inside = mine & (
        ((started > silence.begin) & (started < silence.end)) | ((ended > silence.begin) & (ended < silence.end))
    )
    return bool(stayed.any()) and not bool(inside.any())


def _sent_again(connections: pa.Table, silence: Silence) -> bool:
    """Whether a connection of the client has as many copies of segments as retransmission timers send in that time. A
    host whose process stands still acknowledges, one behind a dead network does not (RFC 6298)."""
    mine = ev.equal(connections, "client_id", silence.client) & (times(connections, "ended_at") >= silence.begin)
    return bool((mine & with_copies(connections, copies_in((silence.end - silence.begin) / MILLI))).any())


@finder(exchanges=row_filters.first_and_last_of_clients, connections=EVERY_ROW)
def broker_stopped(tables: ev.Tables, limits: Limits) -> list[ev.Finding]:
    """Brokers all of whose connections ended at one instant, and that served no client for a while, though their
    clients went on with other brokers.

    Clients that stop by themselves do not go on elsewhere, or close first; a device that cuts connections leaves a
    broker that serves the next ones. Ports that refused a connection meanwhile are left to `connections_refused`.
    """
    connections = ev.get(tables, "connections")
    used = (ints(connections, "is_kafka", 0) > 0) & (ints(connections, "exchanges", 0) > 0)
    started, ended = times(connections, "started_at"), times(connections, "ended_at")
    used &= (started != NULL_TIME) & (ended != NULL_TIME)
    over = used & (ev.equal(connections, "end_reason", "fin") | ev.equal(connections, "end_reason", "rst"))
    if not over.any():
        return []
    by_client = ev.equal(connections, "closed_by", "client")
    refused = refused_connections(connections)
    last_use = _last_use(ev.get(tables, "exchanges"), connections)
    end_of_capture = int(ended.max())
    ports = group(connections, ["broker_ip", "broker_port"]).code
    clients = group(connections, ["client_ip", "client_id"]).code
    named = pc.is_valid(connections["client_id"]).to_numpy()  # of others it is unknown whether they are one client
    found = []
    for port in distinct(ports[over]).tolist():
        at_port = ports == port
        for rows in split_strokes(np.flatnonzero(over & at_port), ended, STROKE_MS):
            begin, end = int(ended[rows[0]]), int(ended[rows[-1]])
            if len(distinct(clients[rows])) < CLIENTS or by_client[rows].any():
                continue
            open_then = used & at_port & (started < begin) & (ended >= begin)
            back = started[at_port & used & (started > begin)]
            until = int(back.min()) if len(back) else end_of_capture
            tried = refused & at_port & (started >= begin) & (started <= max(until, end))
            if open_then.sum() != len(rows) or until - end < AWAY_MS * MILLI or tried.any():
                continue
            if (last_use[rows] < begin - IDLE_MS * MILLI).all():
                continue
            went_on = named & used & ~at_port & (started < until) & (last_use >= end + AWAY_MS * MILLI / 2)
            if not np.isin(clients[rows], clients[went_on]).all():
                continue
            found += _report_stop(tables, connections.take(arrow_array(rows)), begin, until if len(back) else None)
    return found


def _last_use(exchanges: pa.Table, connections: pa.Table) -> Int64s:
    """The last of these requests on each connection, NULL_TIME where there is none; microseconds [connections]."""
    found = np.full(connections.num_rows, NULL_TIME, np.int64)
    owner = ev.owners(exchanges, connections)
    known = owner >= 0
    np.maximum.at(found, owner[known], times(exchanges, "request_first_at")[known])
    return found


def _report_stop(tables: ev.Tables, rows: pa.Table, at: int, back: int | None) -> list[ev.Finding]:
    ids, brokers = ev.names(rows["connection_id"]), ev.names(rows["broker"])
    values = {
        "brokers": brokers, "connections": ids, "clients": ev.names(rows["client_id"]), "back": back,
        "away": None if back is None else (back - at) / MILLI,
    }  # fmt: skip
    condition = ev.among("connection_id", ids[:MOST_NAMED])
    return ev.finding(
        tables, "broker_stopped", ev.MEDIUM, "connections", condition, values, first_at=at, last_at=back or at,
        broker=brokers[0] if len(brokers) == 1 else None,
    )  # fmt: skip


FINDERS = (stalled, broker_stopped, silent_alone)

"""Findings about connections: short ones, and messages that the network held up."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kdissect.analysis.findings import evidence as ev
from kdissect.analysis.findings import row_filters
from kdissect.analysis.findings.client_ways import client_distance_ms, copies_in, host_losses, longer_ways
from kdissect.analysis.findings.finders import EVERY_ROW, finder
from kdissect.analysis.findings.limits import Limits
from kdissect.analysis.findings.missing_packets import ONE_WAY, one_way, without_bare_packets
from kdissect.analysis.findings.rules.broker_findings import WAITING_APIS, cause_of, largest_part
from kdissect.analysis.findings.rules.window_findings import STALL_MS, slow_transfer, window_explains
from kdissect.analysis.grouping import Float64s, group
from kdissect.arrays.arrow import MILLI, Coder, Flags, Int64s, distinct, earliest, ints, latest, reals, times
from kdissect.arrays.from_numpy import arrow_array
from kdissect.schema.apikeys import ApiKey
from kdissect.tables.declaration.readers import FIRST_REQUESTS

SHORT_CONNECTIONS = 20
"""Short connections from one client: more than reconnects after a failure, each costs a handshake and two round trips
before the first useful request."""
SHORT_SECONDS = 2.0
"""A connection that lived no longer."""
SHORT_EXCHANGES = 5
"""And carried no more than ApiVersions, a login, Metadata and a request or two."""
LOGINS = (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)
"""SaslHandshake and SaslAuthenticate."""
MOST_NAMED = 20
"""Connections that a filter names one by one."""
ROSE_MS = 20.0
"""A round trip that is felt: within one site it is a millisecond, between sites some tens."""
PROVEN_MS = 60.0
"""No host delays an acknowledgement for so long."""
FLAT_MS = 4.0
"""And was not before: queues on the way make a long round trip longer now and then."""
MEASURED = ("ack", "timestamps", "proven")
"""Values of `network_kind` of exchanges whose own packets were measured."""
STEP_ROWS = 8
"""Exchanges before and after a rise of the way on one connection: fewer may be a queue that filled."""
STEP_SLOT_MS = 1000
"""Of the exchanges of a connection in one such slot two are enough to find a rise."""
STEP_SHARE = 0.9
"""Of the exchanges before are short, and of those after are long."""
STEP_MS = 2000.0
"""For at least so long."""
ROSE_CONNECTIONS = 2
"""Connections to a broker on which it rose; of one alone the client's own host may be slow to acknowledge."""
STALLED_MS = 1000.0
"""Time lost to it on one connection that is felt."""
FAR_MS = 20.0
"""A round trip beyond one site: requests of a client wait for it one after the other."""
FAR_REQUESTS = 20
"""Requests of a client that spent most of their time on the way, before it is its habit."""
FAR_SHARE = 0.5
"""Most of a request's time, and most of the requests."""
RESENT_REQUESTS = 5
"""Messages that waited for segments that were sent again: single ones wait so after any suspended host."""
RESENT_SHARE = 0.01
"""Of a client's exchanges with a broker: less is lost among everything else."""


def _steps_on_the_way(exchanges: pa.Table, limits: Limits) -> Any:
    """Of the exchanges with a long round trip the first and the last request and answer of each connection in each
    slot: they show since when, and until when, it was long."""
    long = pc.fill_null(pc.greater_equal(exchanges["network_ms"], ROSE_MS / 2), False).to_numpy()
    some = exchanges.filter(arrow_array(long))
    long[long] = row_filters.first_and_last_in_slots(some, "connection_id", "request_first_at", "response_first_at")
    return arrow_array(long)


def _measured_ways(exchanges: pa.Table, limits: Limits) -> Any:
    """Of the exchanges whose own packets measured the network, the first and the last of each connection in each slot:
    they show when it rose."""
    kinds = pc.is_in(exchanges["network_kind"].cast(pa.string()), value_set=pa.array(MEASURED))
    own = pc.fill_null(pc.and_kleene(pc.is_valid(exchanges["network_ms"]), kinds), False).to_numpy().copy()
    some = exchanges.filter(arrow_array(own))
    own[own] = row_filters.first_and_last_in_slots(some, "connection_id", "request_first_at", slot_ms=STEP_SLOT_MS)
    return arrow_array(own)


def _far(exchanges: pa.Table, limits: Limits) -> Any:
    """Exchanges, of the first FIRST_REQUESTS of their connection, that spent most of their time on the network."""
    way, whole = exchanges["network_ms"], exchanges["latency_ms"]
    most = pc.greater_equal(way, pc.multiply(whole, FAR_SHARE))
    return pc.and_(row_filters.among_first(exchanges), pc.and_(pc.greater_equal(way, FAR_MS), most))


@finder(connections=EVERY_ROW, exchanges=row_filters.refused_login)
def short_connections(tables: ev.Tables, limits: Limits) -> list[ev.Finding]:
    """Clients that connect again and again. If half of these connections ended at a refused login, `login_failed`
    reports them."""
    connections, answers = ev.get(tables, "connections"), ev.get(tables, "exchanges")
    ended = Coder()
    reason = ended.column(connections, "end_reason")
    over = (reason == ended.codes.get("fin", -2)) | (reason == ended.codes.get("rst", -2))
    exchanges = ints(connections, "exchanges", 0)
    lived = (times(connections, "ended_at") - times(connections, "started_at")) / 1e6
    short = (
        over
        & (ints(connections, "start_seen", 0) > 0)
        & (ints(connections, "is_kafka", 0) > 0)
        & (exchanges <= SHORT_EXCHANGES)
        & (lived <= SHORT_SECONDS)
    )
    refused = np.zeros(connections.num_rows + 1, np.bool_)
    refused[ev.owners(answers.filter(row_filters.refused_login(answers, limits)), connections)] = True
    groups = group(connections, ["client_ip", "client_id"])
    counts = groups.count(short)
    unexplained = 2 * groups.count(short & refused[:-1]) < counts
    found = []
    for code in np.flatnonzero((counts >= SHORT_CONNECTIONS) & unexplained).tolist():
        ip, client = groups.keys["client_ip"][code].as_py(), groups.keys["client_id"][code].as_py()
        values = {
            "ip": ip, "connections": int(counts[code]), "most": SHORT_EXCHANGES, "lived": SHORT_SECONDS * 1000,
        }  # fmt: skip
        condition = ev.both(
            ev.equals("client_ip", ip), ev.equals("client_id", client), "start_seen and is_kafka",
            "end_reason in ('fin', 'rst')", f"exchanges <= {SHORT_EXCHANGES}",
        )  # fmt: skip
        found += ev.finding(tables, "short_connections", ev.LOW, "connections", condition, values, client_id=client)
    return found


@finder(
    exchanges=(slow_transfer, row_filters.of_status(*ONE_WAY)), connections=EVERY_ROW, capture_quality=EVERY_ROW
)  # fmt: skip
def stalls(tables: ev.Tables, limits: Limits) -> list[ev.Finding]:
    """Messages whose transfer stood still on connections that retransmitted. A receiver that closed its window is not
    the network (`closed_windows`); what TCP sends again to it are probes. Connections are left out if the capture lacks
    the packets that would tell so. Nor is the network shown if fewer segments were sent again than half of what TCP's
    timers send in so long. The first copy of the others may have been lost before the capture point."""
    exchanges, connections = ev.get(tables, "exchanges"), ev.get(tables, "connections")
    slow = np.maximum(
        np.nan_to_num(reals(exchanges, "request_transfer_ms")), np.nan_to_num(reals(exchanges, "response_transfer_ms"))
    )
    stalled = slow >= STALL_MS
    if stalled.any():
        lacking = np.append(_lacking_packets(tables), False)
        stalled &= ~lacking[ev.owners(exchanges, connections)]
    if not stalled.any():
        return []
    took = (slow * MILLI).astype(np.int64)
    of_response = np.nan_to_num(reals(exchanges, "response_transfer_ms")) == slow
    begun = np.where(of_response, times(exchanges, "response_first_at"), times(exchanges, "request_first_at"))
    resent, closed = ints(connections, "retransmitted_bytes", 0), np.nan_to_num(reals(connections, "zero_window_ms"))
    names, lost = connections["connection_id"].to_pylist(), ints(connections, "lost_segments", 0)
    of = dict(zip(names, zip(resent.tolist(), closed.tolist(), lost.tolist(), strict=True), strict=True))
    found = []
    groups = group(exchanges, ["connection_id"])
    for code in np.flatnonzero(groups.count(stalled)).tolist():
        connection = groups.keys["connection_id"][code].as_py()
        rows = np.flatnonzero(stalled & (groups.code == code))
        total = ev.union_ms(begun[rows], begun[rows] + took[rows])
        resent_bytes, closed_ms, segments = of.get(connection, (0, 0.0, 0))
        if not resent_bytes or window_explains(closed_ms, total):
            continue
        worst = exchanges.slice(int(rows[np.argmax(slow[rows])]), 1).to_pylist()[0]
        response = (worst["response_transfer_ms"] or 0) >= (worst["request_transfer_ms"] or 0)
        side = "response" if response else "request"
        values = {
            "messages": len(rows), "connection": connection, "stall": STALL_MS, "segments": segments, "side": side,
            "api": worst["api"], "exchange": worst["exchange_id"], "longest": float(slow[rows].max()),
            "frame": worst[f"{side}_frame"], "file": worst[f"{side}_file"],
        }  # fmt: skip
        condition = ev.both(
            f"connection_id = {ev.literal(connection)}",
            f"(request_transfer_ms >= {STALL_MS:g} or response_transfer_ms >= {STALL_MS:g})",
        )
        severity = ev.MEDIUM if total >= STALLED_MS else ev.LOW
        lossy = 2 * segments >= sum(copies_in(ms) for ms in slow[rows].tolist())
        found += ev.finding(
            tables, "network_stall", severity, "exchanges", condition, values, case="lost" if lossy else "paused",
            cause="network" if lossy else "unknown", client_id=worst["client_id"], broker=worst["broker"],
        )  # fmt: skip
    return found


@finder(connections=EVERY_ROW, exchanges=_steps_on_the_way)
def round_trips(tables: ev.Tables, limits: Limits) -> list[ev.Finding]:
    """Brokers to which the network's round trip rose while a connection lasted: proven by acknowledgements."""
    connections = ev.get(tables, "connections")
    least, most = reals(connections, "rtt_min_ms"), reals(connections, "rtt_ms")
    rose = _rose(connections)
    groups = group(connections, ["broker"])
    counts = groups.count(rose)
    found = []
    for code in np.flatnonzero(counts >= ROSE_CONNECTIONS).tolist():
        broker = groups.keys["broker"][code].as_py()
        rows = np.flatnonzero(rose & (groups.code == code))
        before, after = float(np.median(least[rows])), float(np.median(most[rows]))
        exchanges = ev.get(tables, "exchanges")
        network = reals(exchanges, "network_ms")
        ids = connections["connection_id"].take(arrow_array(rows)).cast(pa.string())
        on_them = pc.is_in(exchanges["connection_id"].cast(pa.string()), value_set=ids.combine_chunks()).to_numpy()
        high = np.flatnonzero(on_them & (np.nan_to_num(network) >= after / 2))
        first_at = earliest(times(exchanges, "request_first_at")[high])
        last_at = latest(times(exchanges, "response_first_at")[high])
        about: dict[str, Any] = {}
        if first_at is not None and last_at is not None:
            about = {"first_at": first_at, "last_at": last_at}
        values = {
            "before": before, "after": after, "connections": len(rows), "since": about.get("first_at"),
            "clients": ev.client_ids(connections.take(arrow_array(rows))),
        }  # fmt: skip
        condition = ev.both(
            ev.equals("broker", broker),
            f"is_kafka and (rtt_kind = 'proven' or rtt_kind = 'ack' and rtt_ms >= {PROVEN_MS:g})",
            f"rtt_ms >= {ROSE_MS:g}",
            f"rtt_min_ms <= {FLAT_MS:g}",
        )  # fmt: skip
        found += ev.finding(
            tables,
            "round_trip_rose",
            ev.MEDIUM,
            "connections",
            condition,
            values,
            case="broker",
            broker=broker,
            **about,
        )
    return found


def _rose(connections: pa.Table) -> Flags:
    """On which connections most round trips were long, after short ones; bool [rows]."""
    least, most = reals(connections, "rtt_min_ms"), reals(connections, "rtt_ms")
    with np.errstate(invalid="ignore"):
        rose: Flags = (most >= ROSE_MS) & (least <= FLAT_MS) & (ints(connections, "is_kafka", 0) > 0)
    surely = ev.equal(connections, "rtt_kind", "ack") & (most >= PROVEN_MS)
    rose &= ev.equal(connections, "rtt_kind", "proven") | surely
    return rose


@finder(connections=EVERY_ROW, exchanges=_measured_ways)
def slower_ways(tables: ev.Tables, limits: Limits) -> list[ev.Finding]:
    """Brokers to which the way became longer at one moment, by what each exchange's own packets measured.

    TCP timestamps show a rise of one direction, and one in the second half of a connection, whose round trip says
    nothing of it.
    """
    connections, exchanges = ev.get(tables, "connections"), ev.get(tables, "exchanges")
    found = _longer_ways_to_clients(tables)
    network, asked = reals(exchanges, "network_ms"), times(exchanges, "request_first_at")
    short = network <= FLAT_MS
    long = network >= np.where(ev.equal(exchanges, "network_kind", "ack"), PROVEN_MS, ROSE_MS)
    if np.count_nonzero(long) < STEP_ROWS:
        return found
    groups = group(exchanges, ["connection_id", "broker"])
    known = group(connections, ["broker"])
    told = {
        known.keys["broker"][code].as_py()
        for code in np.flatnonzero(known.count(_rose(connections)) >= ROSE_CONNECTIONS)
    }
    steps: dict[str, list[tuple[int, Int64s, Int64s]]] = {}
    for code in np.flatnonzero((groups.count(short) >= STEP_ROWS) & (groups.count(long) >= STEP_ROWS)).tolist():
        rows = np.flatnonzero(groups.code == code)
        rows = rows[np.argsort(asked[rows], kind="stable")]
        at = _step(short[rows], long[rows])
        before, after = rows[:at], rows[at:]
        if (
            min(len(before), len(after)) >= STEP_ROWS
            and short[before].mean() >= STEP_SHARE
            and long[after].mean() >= STEP_SHARE
            and asked[after[-1]] - asked[after[0]] >= STEP_MS * MILLI
        ):
            broker = groups.keys["broker"][code].as_py()
            steps.setdefault(broker, []).append((int(asked[after[0]]), before, after))
    for broker, of in sorted(steps.items()):
        if len(of) < ROSE_CONNECTIONS or broker in told:
            continue
        since = min(at for at, _, _ in of)
        before, after = (np.concatenate([one[n] for one in of]) for n in (1, 2))
        some = exchanges.take(arrow_array(after))
        values = {
            "before": float(np.median(network[before])), "after": float(np.median(network[after])),
            "connections": len(of), "since": since, "clients": ev.names(some["client_id"]),
        }  # fmt: skip
        condition = ev.among("connection_id", ev.names(some["connection_id"])[:MOST_NAMED])
        found += ev.finding(
            tables, "round_trip_rose", ev.MEDIUM, "connections", condition, values, case="broker", broker=broker,
            first_at=since, last_at=latest(times(exchanges, "response_first_at")[after]),
        )  # fmt: skip
    return found


def _longer_ways_to_clients(tables: ev.Tables) -> list[ev.Finding]:
    """Brokers at whose end the way to clients became longer."""
    connections, exchanges = ev.get(tables, "connections"), ev.get(tables, "exchanges")
    rises = longer_ways(exchanges, connections, FLAT_MS, ROSE_MS)
    brokers = np.array([connections["broker"][one.connection].as_py() for one in rises], object)
    found = []
    for broker in sorted({name for name in brokers if name is not None}):
        of = [one for one, name in zip(rises, brokers, strict=True) if name == broker]
        if len(of) < ROSE_CONNECTIONS:
            continue
        some = connections.take(pa.array([one.connection for one in of]))
        since = min(one.since for one in of)
        values = {
            "before": float(np.median([one.before for one in of])), "since": since, "connections": len(of),
            "after": float(np.median(reals(some, "client_rtt_ms"))), "clients": ev.client_ids(some),
        }  # fmt: skip
        condition = ev.among("connection_id", ev.names(some["connection_id"])[:MOST_NAMED])
        found += ev.finding(
            tables, "round_trip_rose", ev.MEDIUM, "connections", condition, values, case="client", broker=broker,
            first_at=since, last_at=max(one.until for one in of),
        )  # fmt: skip
    return found


def _lacking_packets(tables: ev.Tables) -> Flags:
    """Whether the capture lacks each connection's acknowledgements without bytes, or one direction; bool
    [connections]."""
    connections = ev.get(tables, "connections")
    filtered = without_bare_packets(connections, ev.get(tables, "capture_quality"))
    return filtered | one_way(ev.get(tables, "exchanges"), connections)


def _step(short: Flags, long: Flags) -> int:
    """Where a sequence goes over from short to long: short ones before and long ones from there on are the most."""
    before = np.concatenate([[0], np.cumsum(short)])
    after = int(long.sum()) - np.concatenate([[0], np.cumsum(long)])
    return int(np.argmax(before + after))


@finder(connections=EVERY_ROW, exchanges=(_far, row_filters.first_produces))
def mostly_way(tables: ev.Tables, limits: Limits) -> list[ev.Finding]:
    """Clients whose requests spend most of their time on the way to a broker and back."""
    connections, exchanges = ev.get(tables, "connections"), ev.get(tables, "exchanges")
    found = _far_clients(tables, limits)
    distant = (reals(connections, "rtt_ms") >= FAR_MS) & (ints(connections, "is_kafka", 0) > 0)
    distant &= ~ev.equal(connections, "rtt_kind", "bound")
    if not distant.any():
        return found
    slow = exchanges.filter(pc.fill_null(_far(exchanges, limits), False))
    groups = group(connections, ["client_id", "broker"])
    of = np.append(np.where(distant, groups.code, -1), -1)[ev.owners(slow, connections)]
    asked = groups.total(np.where(distant, np.minimum(ints(connections, "exchanges", 0), FIRST_REQUESTS), 0))
    way, whole = reals(slow, "network_ms"), reals(slow, "latency_ms")
    begun, ended = times(slow, "request_first_at"), times(slow, "response_first_at")
    count = np.bincount(of[of >= 0], minlength=len(groups))
    spent: Float64s = np.zeros(len(groups))
    np.add.at(spent, of[of >= 0], np.nan_to_num(way[of >= 0]))
    for code in _most((count >= FAR_REQUESTS) & (count >= FAR_SHARE * asked), spent):
        mine = np.flatnonzero(of == code)
        client, broker = groups.keys["client_id"][code].as_py(), groups.keys["broker"][code].as_py()
        values = {
            "way": float(np.median(way[mine])), "whole": float(np.median(whole[mine])), "requests": len(mine),
            "sampled": FIRST_REQUESTS,
        }  # fmt: skip
        condition = ev.both(
            ev.equals("client_id", client), ev.equals("broker", broker), f"is_kafka and rtt_ms >= {FAR_MS:g}",
            "rtt_kind != 'bound'",
        )  # fmt: skip
        found += ev.finding(
            tables, "mostly_round_trip", ev.LOW, "connections", condition, values, case="broker", client_id=client,
            broker=broker, first_at=earliest(begun[mine]), last_at=latest(ended[mine]),
        )  # fmt: skip
    return found


def _far_clients(tables: ev.Tables, limits: Limits) -> list[ev.Finding]:
    """Producers whose requests spend most of their time on the way, seen from the broker's end: there it is no part of
    an exchange. Fetches may wait for records, so they do not tell."""
    connections, exchanges = ev.get(tables, "connections"), ev.get(tables, "exchanges")
    trip = client_distance_ms(connections, FAR_MS)
    if not trip.any():
        return []
    produces = exchanges.filter(pc.fill_null(row_filters.first_produces(exchanges, limits), False))
    owner = ev.owners(produces, connections)
    way, took = np.append(trip, 0.0)[owner], np.nan_to_num(reals(produces, "latency_ms"), nan=np.inf)
    groups = group(produces, ["client_id", "broker"])
    mostly = (way > 0) & (way >= FAR_SHARE * (way + took))
    count, every = groups.count(mostly), groups.count()
    begun, ended = times(produces, "request_first_at"), times(produces, "response_first_at")
    found = []
    on_the_way = groups.total(np.where(mostly, way, 0.0))
    for code in _most((count >= FAR_REQUESTS) & (count >= FAR_SHARE * every), on_the_way):
        client, broker = groups.keys["client_id"][code].as_py(), groups.keys["broker"][code].as_py()
        mine = np.flatnonzero(mostly & (groups.code == code))
        values = {
            "way": float(np.median(way[mine])), "whole": float(np.median((way + took)[mine])), "requests": len(mine),
            "sampled": FIRST_REQUESTS,
        }  # fmt: skip
        condition = ev.both(
            ev.equals("client_id", client), ev.equals("broker", broker),
            f"is_kafka and start_seen and client_rtt_ms >= {FAR_MS:g}",
        )  # fmt: skip
        found += ev.finding(
            tables, "mostly_round_trip", ev.LOW, "connections", condition, values, case="client", client_id=client,
            broker=broker, first_at=earliest(begun[mine]), last_at=latest(ended[mine]),
        )  # fmt: skip
    return found


def _most(chosen: Flags, ms: Float64s) -> list[int]:
    """Of the chosen groups those with the most milliseconds, as many as are listed."""
    codes = np.flatnonzero(chosen)
    found: list[int] = codes[np.argsort(-ms[codes], kind="stable")][: ev.MOST_OF_A_KIND].tolist()
    return found


def _with_resent(exchanges: pa.Table, limits: Limits) -> Any:
    """Exchanges with messages that waited until segments were sent again."""
    return arrow_array(ev.resent_ms(exchanges) > 0)


@finder(
    exchanges=(_with_resent, row_filters.of_status(*ONE_WAY)),
    connections=EVERY_ROW,
    capture_quality=EVERY_ROW,
)
def losses(tables: ev.Tables, limits: Limits) -> list[ev.Finding]:
    """Clients and brokers between which segments were lost: messages waited until they were sent again."""
    exchanges, connections = ev.get(tables, "exchanges"), ev.get(tables, "connections")
    again = ev.resent_ms(exchanges)
    rows = np.flatnonzero(again > 0)
    if not len(rows):
        return _losses_of_hosts(tables, set())
    some, waited = exchanges.take(arrow_array(rows)), again[rows]
    ended = np.maximum(times(some, "response_first_at"), times(some, "response_last_at"))
    groups, every = group(some, ["client_id", "broker"]), group(connections, ["client_id", "broker"])
    pairs = zip(every.keys["client_id"].to_pylist(), every.keys["broker"].to_pylist(), strict=True)
    numbers = {pair: number for number, pair in enumerate(pairs)}
    found = []
    for code in np.flatnonzero(groups.count() >= RESENT_REQUESTS).tolist():
        client, broker = groups.keys["client_id"][code].as_py(), groups.keys["broker"][code].as_py()
        mine = np.flatnonzero(groups.code == code)
        if (client, broker) not in numbers:
            continue
        on = every.code == numbers[client, broker]
        asked, lost, packets = (
            int(ints(connections, name, 0)[on].sum()) for name in ("exchanges", "lost_segments", "packets")
        )
        if not packets or len(mine) < RESENT_SHARE * asked:
            continue
        total = ev.union_ms(ended[mine] - (waited[mine] * MILLI).astype(np.int64), ended[mine])
        values = {
            "messages": len(mine), "total": total, "longest": float(waited[mine].max()), "lost": lost,
            "packets": packets, "percent": f"{100 * lost / packets:.1f}",
        }  # fmt: skip
        condition = ev.both(
            ev.equals("client_id", client),
            ev.equals("broker", broker),
            "(request_resent_ms > 0 or response_resent_ms > 0 or "
            f"(request_resent_ms is null and {ev.equals('network_kind', ev.RESENT)}))",
        )
        found += ev.finding(
            tables, "segments_lost", ev.MEDIUM if total >= STALLED_MS else ev.LOW, "exchanges", condition, values,
            case="messages", client_id=client, broker=broker,
        )  # fmt: skip
    return found + _losses_of_hosts(tables, {(one.client_id, one.broker) for one in found})


def _losses_of_hosts(tables: ev.Tables, reported: set[tuple[str | None, str | None]]) -> list[ev.Finding]:
    """Hosts between which segments were sent again and no exchange shows what that cost. A capture at the broker's end
    has the first copy of each answer at its time. Where packets are missing, those that were sent again are too large a
    share of the others. `reported`: pairs of client and broker that have a finding."""
    connections = ev.get(tables, "connections").filter(arrow_array(~_lacking_packets(tables)))
    found = []
    for one in host_losses(connections):
        of = zip(one.connections["client_id"].to_pylist(), one.connections["broker"].to_pylist(), strict=True)
        if reported.intersection(of):
            continue
        clients, brokers = ev.names(one.connections["client_id"]), ev.names(one.connections["broker"])
        values = {
            "lost": one.copies, "packets": one.packets, "percent": f"{100 * one.copies / one.packets:.1f}",
            "clients": clients, "brokers": brokers, "client_ip": one.client_ip, "broker_ip": one.broker_ip,
        }  # fmt: skip
        condition = ev.both(ev.equals("client_ip", one.client_ip), ev.equals("broker_ip", one.broker_ip), "is_kafka")
        found += ev.finding(
            tables, "segments_lost", ev.LOW, "connections", condition, values, case="hosts",
            client_id=clients[0] if len(clients) == 1 else None, broker=brokers[0] if len(brokers) == 1 else None,
        )  # fmt: skip
    return found


@finder(
    exchanges=(row_filters.abandoned, row_filters.of_status("unanswered")), produces=row_filters.slow,
    connections=EVERY_ROW,
)  # fmt: skip
def given_up(tables: ev.Tables, limits: Limits) -> list[ev.Finding]:
    """Requests that a client gave up: it had closed the connection when the answer came.

    What had most of the time of answers that were slow is the cause, as of `slow_requests`; where none was slow the
    client's patience is. Requests that wait by design say nothing of it.
    """
    exchanges = ev.get(tables, "exchanges")
    late = ints(exchanges, "abandoned", 0) > 0
    if not late.any():
        return []
    connections = group(exchanges, ["connection_id"])
    left = late | (ev.equal(exchanges, "status", "unanswered") & (connections.count(late) > 0)[connections.code])
    groups = group(exchanges, ["client_id", "broker"])
    found = []
    for code in np.flatnonzero(groups.count(late)).tolist():
        client, broker = groups.keys["client_id"][code].as_py(), groups.keys["broker"][code].as_py()
        rows = exchanges.take(arrow_array(np.flatnonzero(left & (groups.code == code))))
        produced = bool((ints(rows, "api_key") == ApiKey.PRODUCE).any())
        names = ev.names(rows["connection_id"])
        waits = np.isin(ints(rows, "api_key"), (ApiKey.FETCH, *WAITING_APIS))
        took = np.where(waits, 0.0, np.nan_to_num(reals(rows, "latency_ms")))
        slow = rows.filter(arrow_array(took >= limits.slow_ms))
        part, share = largest_part(tables, slow) if slow.num_rows else ("client", None)
        values = {
            "requests": rows.num_rows, "apis": ev.names(rows["api"]), "connections": names, "produced": produced,
            "longest": float(took.max()) or None, f"of_{part}": share,
        }  # fmt: skip
        condition = ev.both(ev.among("connection_id", names), "(abandoned or status = 'unanswered')")
        found += ev.finding(
            tables, "requests_given_up", ev.MEDIUM if produced else ev.INFO, "exchanges", condition, values,
            cause=cause_of(part), client_id=client, broker=broker,
        )  # fmt: skip
    return found


@finder(exchanges=(row_filters.of_status("unanswered"), row_filters.abandoned), connections=EVERY_ROW)
def cut_off(tables: ev.Tables, limits: Limits) -> list[ev.Finding]:
    """Requests whose connection ended before any answer came, and logins among them.

    Connections that gave other requests up are left to `given_up`.
    """
    exchanges = ev.get(tables, "exchanges")
    connections = ev.get(tables, "connections")
    left = ev.equal(exchanges, "status", "unanswered")
    if not left.any():
        return []
    late = exchanges.filter(arrow_array(ints(exchanges, "abandoned", 0) > 0))["connection_id"]
    exchanges = exchanges.filter(arrow_array(left))
    owners = group(exchanges, ["connection_id"])
    ids = owners.keys["connection_id"].to_pylist()
    given = set(pc.unique(late.cast(pa.string())).to_pylist())
    some = connections.filter(pc.is_in(connections["connection_id"].cast(pa.string()), pa.array(ids, pa.string())))
    ended = dict(zip(some["connection_id"].to_pylist(), some["end_reason"].to_pylist(), strict=True))
    closer = dict(zip(some["connection_id"].to_pylist(), some["closed_by"].to_pylist(), strict=True))
    reason = np.array([None if name in given else ended.get(name) for name in ids], object)
    reset, over = (reason == "rst")[owners.code], ((reason == "fin") | (reason == "rst"))[owners.code]
    by = np.array([closer.get(name) for name in ids], object)[owners.code]
    login = np.isin(ints(exchanges, "api_key"), LOGINS)
    found = []
    groups = group(exchanges, ["client_id", "broker"])
    for some, kind, severity in (
        (over & login, "login_cut_off", ev.MEDIUM),
        (over & ~login, "requests_cut_off", ev.INFO),
    ):
        for code in np.flatnonzero(groups.count(some)).tolist():
            client, broker = groups.keys["client_id"][code].as_py(), groups.keys["broker"][code].as_py()
            mine = np.flatnonzero(some & (groups.code == code))
            rows = exchanges.take(arrow_array(mine))
            apis = ev.names(rows["api"])
            names = ev.names(rows["connection_id"])
            values = {
                "requests": len(mine), "apis": apis, "connections": names,
                "resets": len(distinct(owners.code[mine[reset[mine]]])) or None,
                "own": len(distinct(owners.code[mine[by[mine] == "client"]])) or None,
            }  # fmt: skip
            if len(names) > MOST_NAMED:
                names, which = [], ev.both(ev.equals("client_id", client), ev.equals("broker", broker))
            else:
                which = ev.both(
                    ev.equals("client_id", client), ev.equals("broker", broker), ev.among("connection_id", names)
                )
            named = f"({ev.among('api', apis)}{' or api is null' if rows['api'].null_count else ''})" if apis else ""
            condition = ev.both(which, "status = 'unanswered'", named)
            about: dict[str, Any] = {"client_id": client, "broker": broker}
            if kind == "login_cut_off" and (by[mine] == "broker").all():
                about["case"] = "closed"
            elif kind == "login_cut_off":
                about |= {"case": "ended", "cause": "unknown"}
            found += ev.finding(tables, kind, severity, "exchanges", condition, values, **about)
    return found


@finder(connections=EVERY_ROW)
def addresses(tables: ev.Tables, limits: Limits) -> list[ev.Finding]:
    """Client ids that come from several addresses."""
    connections = ev.get(tables, "connections")
    rows = np.flatnonzero((ints(connections, "is_kafka", 0) > 0) & pc.is_valid(connections["client_id"]).to_numpy())
    some = connections.take(arrow_array(rows))
    groups, pairs = group(some, ["client_id"]), group(some, ["client_id", "client_ip"])
    several, found = Counter(pairs.keys["client_id"].to_pylist()), []
    for client in groups.keys["client_id"].to_pylist():
        count = several[client]
        if count < 2:
            continue
        condition = ev.both(ev.equals("client_id", client), "is_kafka")
        found += ev.finding(
            tables, "several_addresses", ev.INFO, "connections", condition, {"addresses": count}, client_id=client
        )
    return found


FINDERS = (cut_off, addresses, short_connections, stalls, losses, round_trips, slower_ways, mostly_way, given_up)

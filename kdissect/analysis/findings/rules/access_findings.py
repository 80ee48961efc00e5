"""Findings about clients that do not get in: refused connections, TLS where there is none, logins, permissions."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from kdissect.analysis.findings import evidence as ev
from kdissect.analysis.findings import row_filters
from kdissect.analysis.findings.finders import EVERY_ROW, finder
from kdissect.analysis.findings.limits import Limits
from kdissect.analysis.grouping import Groups, group, most_first
from kdissect.arrays.arrow import MILLI, Coder, Flags, Int64s, distinct, encoded, ints, reals, times
from kdissect.arrays.from_numpy import arrow_array

PERMISSION = {
    "TOPIC_AUTHORIZATION_FAILED": 29,
    "GROUP_AUTHORIZATION_FAILED": 30,
    "CLUSTER_AUTHORIZATION_FAILED": 31,
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": 53,
    "DELEGATION_TOKEN_AUTHORIZATION_FAILED": 65,
}
MOST_CLIENTS = 5
"""Clients that get a sentence each; more are told in one."""
REPEATED = 3
"""Refused connections to a port of which nothing is known, where no other address served the client: a client of Kafka
tries for ever (reconnect.backoff.ms)."""
SERVED_MS = 2000.0
"""A client of Kafka goes to the next address of its list at once, or asks several at a time; reconnect.backoff.max.ms
is 1 s by default."""
SCANNED = 20
"""Endpoints that are no known broker's and refused one address, or all together where the capture holds no Kafka. More
of them are a scan: a bootstrap.servers names a few, and brokers that metadata names are known."""
REFUSED = "start_seen and end_reason = 'rst' and bytes = 0 and rtt_ms is null"
"""A SYN answered by a reset: nothing listened. A handshake would have given a round trip."""


@finder(connections=EVERY_ROW)
def refused(tables: ev.Tables, limits: Limits) -> list[ev.Finding]:
    """Brokers whose port nothing listened on: stopped, killed, or not up yet.

    Of ports that are known as a broker's (Kafka was seen there, or metadata names it and no other broker tried it); of
    all, where the capture holds no Kafka: the broker may have been down all the time. Of other ports where the refused
    client's address speaks Kafka elsewhere, if it was served there at once or goes on trying. Scans are told at once.
    """
    connections = ev.get(tables, "connections")
    tried = refused_connections(connections)
    if not tried.any():
        return []
    groups = group(connections, ["broker_ip", "broker_port", "broker"])
    kafka = groups.count(ints(connections, "is_kafka", 0) > 0)
    none_known = not kafka.any()
    node = [name if name is not None and name.isdigit() else None for name in groups.keys["broker"].to_pylist()]
    known = (kafka > 0) | np.array([name is not None for name in node], bool)
    client, address = encoded(connections["client_ip"].combine_chunks())
    scanner = _scanners(client * (not none_known), groups.code, tried & ~known[groups.code])
    speakers, rows_of = _Speakers(connections), groups.rows()
    of_brokers = np.where(tried & known[groups.code], client, -1)
    found = _scans(tables, scanner, groups, of_brokers, None if none_known else speakers)
    scanned = tried & (scanner >= 0)
    tried &= scanner < 0
    counts, others = groups.count(tried), groups.count(scanned)
    served_by = _ports_by_address(groups, kafka > 0)
    for code in np.flatnonzero(counts).tolist():
        ip, port, broker = (groups.keys[name][code].as_py() for name in ("broker_ip", "broker_port", "broker"))
        values = {"port": port, "ip": ip, "node": node[code], "attempts": int(counts[code])}
        condition = ev.both(ev.equals("broker_ip", ip), ev.equals("broker_port", port), REFUSED)
        if others[code]:
            scanners = distinct(client[rows_of[code][scanned[rows_of[code]]]]).tolist()
            condition = ev.both(condition, f"not ({ev.among('client_ip', [address[one] for one in scanners])})")
        rows = rows_of[code][tried[rows_of[code]]]
        clients, served, unserved = speakers.look_up(rows)
        by_brokers = any(name.isdigit() or name.startswith(row_filters.BROKERS) for name in clients)
        if kafka[code] or none_known or (node[code] is not None and not by_brokers):
            found += ev.finding(
                tables, "connections_refused", ev.HIGH, "connections", condition, values, case="broker", broker=broker
            )
            continue
        went_on = unserved >= REPEATED or not served
        if by_brokers or not clients or (went_on and len(rows) < REPEATED):
            continue  # brokers try listeners of their own, such as the controllers'
        hosts = ev.names(connections["client_ip"].take(arrow_array(rows)))
        ports = served_by.get(ip)
        values |= {"hosts": hosts, "clients": clients, "served": not went_on, "tried": went_on, "ports": ports}
        # a host that serves Kafka on other ports: rather a wrong port than a host that is down
        cause = {"cause": "settings", "certainty": "likely"} if went_on and ports else {"cause": "unknown"}
        found += ev.finding(
            tables, "connections_refused", ev.MEDIUM if went_on else ev.LOW, "connections", condition, values,
            case="elsewhere", broker=broker, client_id=clients[0] if len(clients) == 1 else None, **cause,
        )  # fmt: skip
    return found


def _scanners(client: Int64s, endpoint: Int64s, tried: Flags) -> Int64s:
    """The client of each connection that was `tried` in vain, if more than SCANNED endpoints refused it, else -1;
    [rows]. `client`, `endpoint`: codes."""
    pairs = np.unique(np.stack([client[tried], endpoint[tried]]), axis=1)
    clients, counts = np.unique(pairs[0], return_counts=True)
    scanner: Int64s = np.where(tried & np.isin(client, clients[counts > SCANNED]), client, -1)
    return scanner


def _scans(
    tables: ev.Tables, scanner: Int64s, groups: Groups, of_brokers: Int64s, speakers: _Speakers | None
) -> list[ev.Finding]:
    """A finding for each scanner whose address speaks Kafka; one for all scanners without `speakers`, where the capture
    holds no Kafka. `of_brokers`: the client of each connection that a known broker refused, else -1."""
    connections = ev.get(tables, "connections")
    found = []
    order = np.argsort(scanner, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(scanner[order])) + 1):
        if not len(rows) or scanner[rows[0]] < 0 or (speakers is not None and not speakers.look_up(rows)[0]):
            continue
        some = connections.take(arrow_array(rows))
        hosts, targets = ev.names(some["client_ip"]), ev.names(some["broker_ip"])
        values = {
            "attempts": len(rows), "hosts": hosts, "endpoints": len(distinct(groups.code[rows])),
            "ip": targets[0] if len(targets) == 1 else None, "addresses": len(targets),
        }  # fmt: skip
        condition = REFUSED if speakers is None else ev.both(ev.among("client_ip", hosts), REFUSED)
        for code in distinct(groups.code[of_brokers == scanner[rows[0]]]).tolist():
            ip, port = (groups.keys[name][code].as_py() for name in ("broker_ip", "broker_port"))
            broker = ev.both(ev.equals("broker_ip", ip), ev.equals("broker_port", port))
            condition = ev.both(condition, f"not ({broker})")
        found += ev.finding(
            tables, "connections_refused", ev.LOW, "connections", condition, values, case="scan", cause="unknown"
        )
    return found


def _ports_by_address(groups: Groups, chosen: Flags) -> dict[str, list[str]]:
    """The ports of each address among the chosen groups of address and port, in order."""
    found: dict[str, list[int]] = {}
    some = groups.keys.filter(arrow_array(chosen))
    for ip, port in zip(some["broker_ip"].to_pylist(), some["broker_port"].to_pylist(), strict=True):
        found.setdefault(ip, []).append(port)
    return {ip: [str(port) for port in sorted(set(ports))] for ip, ports in found.items()}


def refused_connections(connections: pa.Table) -> Flags:
    """Which connections are a SYN that a reset answered; bool [rows]. A handshake would have given a round trip."""
    asked = (ints(connections, "start_seen", 0) > 0) & (ints(connections, "bytes", -1) == 0)
    flags: Flags = asked & ev.equal(connections, "end_reason", "rst") & np.isnan(reals(connections, "rtt_ms"))
    return flags


class _Speakers:
    """Connections of clients that speak Kafka, by address and time. They are put in order once: hostile captures have
    as many refused ports as connections."""

    def __init__(self, connections: pa.Table) -> None:
        self._clients, self._started = connections["client_id"], times(connections, "started_at")
        self._address = encoded(connections["client_ip"].combine_chunks())[0]
        rows = np.flatnonzero((ints(connections, "is_kafka", 0) > 0) & (ints(connections, "exchanges", 0) > 0))
        self._rows = rows[np.lexsort([self._started[rows], self._address[rows]])]
        self._instants = distinct(self._started[rows])
        self._keys = self._key(self._rows)

    def _key(self, rows: Int64s) -> Int64s:
        """Numbers in the order of address and time: below or equal to those of connections that began later."""
        rank: Int64s = np.searchsorted(self._instants, self._started[rows])
        keys: Int64s = self._address[rows] * (len(self._instants) + 1) + rank
        return keys

    def look_up(self, refused: Int64s) -> tuple[list[str], bool, int]:
        """Clients that speak Kafka from the addresses that were refused; whether a broker served each of these
        addresses around its last attempt; and at how many attempts no broker did."""
        order = refused[np.lexsort([self._started[refused], self._address[refused]])]
        address, started, keys = self._address[order], self._started[order], self._key(order)
        last = np.append(address[1:] != address[:-1], True)
        behind = np.searchsorted(self._keys, keys)
        near = np.zeros(len(order), bool)
        for at in (behind - 1, behind):
            there = (at >= 0) & (at < len(self._rows))
            one = self._rows[at[there]]
            near[there] |= (self._address[one] == address[there]) & (
                np.abs(self._started[one] - started[there]) <= SERVED_MS * MILLI
            )
        size = len(self._instants) + 1
        begin, end = (np.searchsorted(self._keys, (address[last] + more) * size) for more in (0, 1))
        rows = np.concatenate([self._rows[:0], *(self._rows[x:y] for x, y in zip(begin, end, strict=True) if x < y)])
        names = ev.names(self._clients.take(arrow_array(rows)))
        return names, bool(near[last].all()), int(np.count_nonzero(~near))


@finder(connections=EVERY_ROW)
def tls_to_plaintext(tables: ev.Tables, limits: Limits) -> list[ev.Finding]:
    """Clients that speak TLS to a port on which others speak plaintext Kafka."""
    connections = ev.get(tables, "connections")
    coder = Coder()
    sealed = (coder.column(connections, "protocol") == coder.codes.get("tls", -2)) & (
        ints(connections, "is_kafka", 0) == 0
    )
    if not sealed.any():
        return []
    versions = Coder()
    plain = (ints(connections, "is_kafka", 0) > 0) & (ints(connections, "exchanges", 0) > 0)
    plain &= versions.column(connections, "tls") < 0
    ports = group(connections, ["broker_ip", "broker_port"])
    mixed = (ports.count(plain) > 0)[ports.code]
    wrong = sealed & mixed
    groups = group(connections, ["client_ip", "broker_ip", "broker_port", "broker"])
    found = []
    for code in np.flatnonzero(groups.count(wrong)).tolist():
        client, ip, port, broker = (
            groups.keys[name][code].as_py() for name in ("client_ip", "broker_ip", "broker_port", "broker")
        )
        values = {"ip": client, "port": port, "connections": int(groups.count(wrong)[code])}
        condition = ev.both(
            ev.equals("client_ip", client), ev.equals("broker_ip", ip), ev.equals("broker_port", port),
            "protocol = 'tls'", "not is_kafka",
        )  # fmt: skip
        found += ev.finding(tables, "tls_to_plaintext", ev.HIGH, "connections", condition, values, broker=broker)
    return found


@finder(connections=EVERY_ROW)
def plaintext_to_tls(tables: ev.Tables, limits: Limits) -> list[ev.Finding]:
    """Clients without TLS on a port for TLS: no request of theirs is ever answered."""
    connections = ev.get(tables, "connections")
    coder = Coder()
    refused = coder.column(connections, "tls") == coder.codes.get("expected", -2)
    if not refused.any():
        return []
    groups = group(connections, ["client_ip", "broker"])
    found = []
    for code in np.flatnonzero(groups.count(refused)).tolist():
        ip, broker = groups.keys["client_ip"][code].as_py(), groups.keys["broker"][code].as_py()
        values = {"ip": ip, "connections": int(groups.count(refused)[code])}
        condition = ev.both(ev.equals("client_ip", ip), ev.equals("broker", broker), "tls = 'expected'")
        found += ev.finding(tables, "plaintext_to_tls", ev.HIGH, "connections", condition, values, broker=broker)
    return found


@finder(exchanges=row_filters.failed)
def logins(tables: ev.Tables, limits: Limits) -> list[ev.Finding]:
    """Clients whose login was refused."""
    return _refusals(tables, "login_failed", row_filters.LOGIN)


@finder(exchanges=row_filters.failed)
def permissions(tables: ev.Tables, limits: Limits) -> list[ev.Finding]:
    """Clients that asked for what they have no permission to."""
    return _refusals(tables, "not_authorized", PERMISSION)


def _refusals(tables: ev.Tables, kind: str, codes_of: dict[str, int]) -> list[ev.Finding]:
    """A finding for each client that got one of these errors, one for all of them where they are many."""
    exchanges = ev.get(tables, "exchanges")
    wrong: Flags = np.isin(ints(exchanges, "error_code", 0), list(codes_of.values()))
    if not wrong.any():
        return []
    groups = group(exchanges, ["client_id"])
    counts = groups.count(wrong)
    codes = f"error_code in ({', '.join(str(number) for number in sorted(codes_of.values()))})"
    clients = most_first(counts)
    if len(clients) > MOST_CLIENTS:
        values = {
            "clients": [groups.keys["client_id"][code].as_py() for code in clients], "refusals": int(counts.sum()),
            "errors": ev.error_names(exchanges, np.flatnonzero(wrong)),
        }  # fmt: skip
        return ev.finding(tables, kind, ev.HIGH, "exchanges", codes, values, case="many")
    found = []
    for code in clients:
        client = groups.keys["client_id"][code].as_py()
        names = ev.error_names(exchanges, np.flatnonzero(wrong & (groups.code == code)))
        values = {"refusals": int(counts[code]), "errors": names}
        condition = ev.both(ev.equals("client_id", client), codes)
        found += ev.finding(tables, kind, ev.HIGH, "exchanges", condition, values, case="one", client_id=client)
    return found


FINDERS = (refused, tls_to_plaintext, plaintext_to_tls, logins, permissions)

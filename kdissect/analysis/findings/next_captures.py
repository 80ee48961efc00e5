"""How sure a finding is of its cause, and which further capture would settle it.

A finding is `sure` where its evidence proves the cause, `likely` where the catalogue names a place whose capture would
settle it, and neither where its cause is unknown. The capture is a command to paste on the host that its comment names.
It contains addresses, ports and numbers only: names from a capture have no place in a command.
"""

from __future__ import annotations

import pyarrow as pa

from kdissect.analysis.findings.catalogue import BOTH, BROKER, CONTROLLER, KINDS
from kdissect.analysis.findings.evidence import INFO, Finding, equal, names
from kdissect.arrays.arrow import distinct, ints
from kdissect.arrays.from_numpy import arrow_array

LEAST_SECONDS = 120
"""What happens once comes again within minutes at best."""
LONGER = 3
"""A capture lasts this many times as long as the finding did."""
MOST_SECONDS = 3600
MOST_HOSTS = 4
"""Hosts that a filter and a comment name."""


COLUMNS = ("is_kafka", "broker", "client_id", "broker_ip", "client_ip", "broker_port")
"""Columns of `connections` that are read."""


def state_certainty(finding: Finding, connections: pa.Table) -> Finding:
    """The finding with `certainty` and `next_capture`. `connections`: the table, of all connections.

    A cause is sure or likely where the rule says so, and sure where it measured another one than the catalogue's.
    """
    place = KINDS[finding.id].settled_at
    known = finding.cause != "unknown"
    measured = finding.certainty == "sure" or finding.cause != KINDS[finding.id].cause
    if known and (place is None or measured):
        return finding._replace(certainty=finding.certainty or "sure")
    certainty = "likely" if known else None
    if place is None or finding.severity == INFO:
        return finding._replace(certainty=certainty)
    return finding._replace(certainty=certainty, next_capture=_command(finding, connections, place))


def _command(finding: Finding, connections: pa.Table, place: str) -> str | None:
    """A capture at that place of the traffic that the finding is about; None where no connection is known."""
    mine = ints(connections, "is_kafka", 0) > 0
    for column, value in (("broker", finding.broker), ("client_id", finding.client_id)):
        if value is not None:
            mine &= equal(connections, column, value)
    rows = connections.filter(arrow_array(mine))
    brokers, clients = names(rows["broker_ip"]), names(rows["client_ip"])
    ports = [int(port) for port in distinct(ints(rows, "broker_port", 0)).tolist() if port]
    if not brokers or not clients or not ports:
        return None
    chosen = [f"tcp port {' or '.join(map(str, ports[:MOST_HOSTS]))}"] if len(ports) <= MOST_HOSTS else ["tcp"]
    if place == CONTROLLER:
        chosen, there = ["tcp"], f"{_list_hosts(brokers)}, the brokers, and the hosts of the controllers"
    elif place == BROKER:
        chosen += _hosts(clients)
        there = f"{_list_hosts(brokers)}, the host of the broker"
    else:
        chosen += _hosts(brokers)
        there = f"{_list_hosts(clients)}, the host of the client"
        if place == BOTH:
            there += f", and on {_list_hosts(brokers)}, the host of the broker, at the same time"
    lasted = 0
    if finding.first_at is not None and finding.last_at is not None:
        lasted = (finding.last_at - finding.first_at) // 1_000_000
    seconds = min(max(LEAST_SECONDS, LONGER * lasted), MOST_SECONDS)
    filtered = " and ".join(f"({one})" if " or " in one else one for one in chosen)
    return f"timeout {seconds} tcpdump -i any -s 0 -w next.pcap '{filtered}'  # on {there}"


def _hosts(addresses: list[str]) -> list[str]:
    """A filter on these hosts; none where they are many."""
    return [f"host {' or '.join(addresses)}"] if len(addresses) <= MOST_HOSTS else []


def _list_hosts(addresses: list[str]) -> str:
    more = len(addresses) - MOST_HOSTS
    return " and ".join(addresses[:MOST_HOSTS]) + (f" and {more} more" if more > 0 else "")

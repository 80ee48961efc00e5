"""Findings about producers, connections and the network."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from kdissect.analysis.findings.evidence import (
    HIGH,
    LOW,
    MEDIUM,
    Finding,
    Tables,
    both,
    duration,
    equals,
    error_names,
    finding,
    get,
    literal,
    many,
    who,
)
from kdissect.analysis.grouping import Groups, group, most_first
from kdissect.arrays.arrow import Coder, ints, reals, times

RETRIABLE = {
    "NOT_LEADER_OR_FOLLOWER": 6,
    "REQUEST_TIMED_OUT": 7,
    "LEADER_NOT_AVAILABLE": 5,
    "NOT_ENOUGH_REPLICAS": 19,
    "NOT_ENOUGH_REPLICAS_AFTER_APPEND": 20,
    "UNKNOWN_TOPIC_OR_PARTITION": 3,
    "KAFKA_STORAGE_ERROR": 56,
    "NETWORK_EXCEPTION": 13,
    "CORRUPT_MESSAGE": 2,
    "UNKNOWN_LEADER_EPOCH": 75,
    "FENCED_LEADER_EPOCH": 74,
    "THROTTLING_QUOTA_EXCEEDED": 89,
}
"""Errors after which producers send a batch again (RetriableException in Kafka's Errors)."""
FENCED = {"INVALID_PRODUCER_EPOCH": 47, "TRANSACTION_COORDINATOR_FENCED": 52, "PRODUCER_FENCED": 90}
UNSUPPORTED_VERSION = 35
API_VERSIONS = 18
SHORT_CONNECTIONS = 20
"""Short connections from one client: more than reconnects after a failure, each costs a handshake and two round trips
before the first useful request."""
SHORT_SECONDS = 2.0
"""A connection that lived no longer."""
SHORT_EXCHANGES = 5
"""And carried no more than ApiVersions, a login, Metadata and a request or two."""
STALL_MS = 200.0
"""Transfer of one message that took longer while its connection retransmitted or had no window: the smallest
retransmission timeout of Linux is 200 ms."""


def retries(tables: Tables) -> list[Finding]:
    """Produce requests that failed with an error after which clients try again, and batches sent twice."""
    exchanges = get(tables, "exchanges")
    produce = ints(exchanges, "api_key") == 0
    failed = produce & np.isin(ints(exchanges, "error_code", 0), list(RETRIABLE.values()))
    groups = group(exchanges, ["client_id"])
    found = []
    for code in np.flatnonzero(groups.count(failed)).tolist():
        client = groups.keys["client_id"][code].as_py()
        rows = np.flatnonzero(failed & (groups.code == code))
        kinds = error_names(exchanges, rows)
        text = (
            f"{many(len(rows), 'Produce request')} of {who(client)} failed with errors that make producers send again"
            + (f" ({', '.join(kinds)})." if kinds else ".")
        )
        codes = ", ".join(str(number) for number in sorted(RETRIABLE.values()))
        condition = both("api = 'Produce'", equals("client_id", client), f"error_code in ({codes})")
        found += finding(tables, "produce_retries", MEDIUM, text, "exchanges", condition)
    return found + _sent_again(tables)


def _sent_again(tables: Tables) -> list[Finding]:
    """Batches of idempotent producers that were sent more than once: a sequence number seen before (KIP-98)."""
    producers = get(tables, "producers")
    groups, again = _by_producer(producers, "repeat")
    counts = groups.count(again)
    found = []
    for code in most_first(counts):
        producer = groups.keys["producer_id"][code].as_py()
        rows = np.flatnonzero(again & (groups.code == code))
        partitions = len(group(producers.take(pa.array(rows)), ["topic", "topic_id", "partition"]))
        text = (
            f"Producer {producer} sent {many(int(counts[code]), 'batch', 'batches')} to "
            f"{many(partitions, 'partition')} again (a sequence number that it had used): the answer was an error, "
            f"late, or lost."
        )
        condition = both(f"producer_id = {producer}", "sequence = 'repeat'")
        found += finding(tables, "batches_sent_again", MEDIUM, text, "producers", condition)
    return found


def _by_producer(producers: pa.Table, what: str) -> tuple[Groups, npt.NDArray[np.bool_]]:
    """The rows of `producers` by producer, and whose sequence is what is asked for."""
    flags = pc.fill_null(pc.equal(producers["sequence"].cast(pa.string()), what), False)
    return group(producers, ["producer_id"]), flags.to_numpy()


def fencing(tables: Tables) -> list[Finding]:
    """Producers that a newer instance has fenced."""
    exchanges = get(tables, "exchanges")
    fenced = np.isin(ints(exchanges, "error_code", 0), list(FENCED.values()))
    groups = group(exchanges, ["client_id"])
    found = []
    for code in np.flatnonzero(groups.count(fenced)).tolist():
        client = groups.keys["client_id"][code].as_py()
        text = (
            f"{who(client)} was fenced {many(int(groups.count(fenced)[code]), 'time')}: another producer with its "
            f"transactional id, or the coordinator, has moved on to a newer epoch."
        )
        codes = ", ".join(str(number) for number in sorted(FENCED.values()))
        condition = both(equals("client_id", client), f"error_code in ({codes})")
        found += finding(tables, "producer_fenced", HIGH, text, "exchanges", condition)
    return found + _outdated(tables)


def _outdated(tables: Tables) -> list[Finding]:
    """Producers that went on with an epoch which a newer instance had raised."""
    groups, fenced = _by_producer(get(tables, "producers"), "fenced")
    counts = groups.count(fenced)
    found = []
    for code in np.flatnonzero(counts).tolist():
        producer = groups.keys["producer_id"][code].as_py()
        text = (
            f"Producer {producer} sent {many(int(counts[code]), 'batch', 'batches')} with an epoch older than one that "
            f"was used before: two instances write with the same transactional id."
        )
        condition = both(f"producer_id = {producer}", "sequence = 'fenced'")
        found += finding(tables, "outdated_producer_epoch", HIGH, text, "producers", condition)
    return found


def unsupported(tables: Tables) -> list[Finding]:
    """Round trips lost to versions that the broker does not have.

    Newer clients ask an older broker so at the start of each connection, by design, for ApiVersions: one line for all.
    """
    exchanges = get(tables, "exchanges")
    refused = ints(exchanges, "error_code", 0) == UNSUPPORTED_VERSION
    first = refused & (ints(exchanges, "api_key") == API_VERSIONS)
    found = []
    groups = group(exchanges, ["client_id", "api"])
    for code in np.flatnonzero(groups.count(refused & ~first)).tolist():
        client, api = groups.keys["client_id"][code].as_py(), groups.keys["api"][code].as_py()
        count = int(groups.count(refused)[code])
        text = f"{who(client)} asked {many(count, 'time')} for a version of {api} that the broker does not support."
        condition = both(equals("client_id", client), equals("api", api), f"error_code = {UNSUPPORTED_VERSION}")
        found += finding(tables, "unsupported_version", MEDIUM, text, "exchanges", condition)
    clients = np.flatnonzero(groups.count(first))
    if len(clients):
        one_of_them = groups.keys["client_id"][int(clients[0])].as_py()
        asked = who(one_of_them) if len(clients) == 1 else many(len(clients), "client")
        text = (
            f"{asked} asked {many(int(first.sum()), 'time')} for a version of ApiVersions that the broker does not "
            f"support."
        )
        condition = both("api = 'ApiVersions'", f"error_code = {UNSUPPORTED_VERSION}")
        found += finding(tables, "unsupported_version", LOW, text, "exchanges", condition)
    return found


def short_connections(tables: Tables) -> list[Finding]:
    """Clients that connect again and again."""
    connections = get(tables, "connections")
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
    groups = group(connections, ["client_ip", "client_id"])
    found = []
    for code in np.flatnonzero(groups.count(short) >= SHORT_CONNECTIONS).tolist():
        ip, client = groups.keys["client_ip"][code].as_py(), groups.keys["client_id"][code].as_py()
        text = (
            f"{who(client)} at {ip} opened {many(int(groups.count(short)[code]), 'connection')} that lived no longer "
            f"than {SHORT_SECONDS:g} s and carried at most {SHORT_EXCHANGES} exchanges each."
        )
        condition = both(
            equals("client_ip", ip), equals("client_id", client), "start_seen and is_kafka",
            "end_reason in ('fin', 'rst')", f"exchanges <= {SHORT_EXCHANGES}",
        )  # fmt: skip
        found += finding(tables, "short_connections", MEDIUM, text, "connections", condition)
    return found


def stalls(tables: Tables) -> list[Finding]:
    """Messages whose transfer stood still while TCP retransmitted or a window was closed."""
    exchanges, connections = get(tables, "exchanges"), get(tables, "connections")
    slow = np.maximum(
        np.nan_to_num(reals(exchanges, "request_transfer_ms")), np.nan_to_num(reals(exchanges, "response_transfer_ms"))
    )
    stalled = slow >= STALL_MS
    if not stalled.any():
        return []
    causes: dict[str, str] = {}
    for row in connections.select(
        ["connection_id", "retransmitted_bytes", "zero_window_ms", "client_ip", "client_port"]
    ).to_pylist():
        parts = []
        if row["zero_window_ms"]:
            parts.append(f"a closed receive window ({duration(row['zero_window_ms'])})")
        if row["retransmitted_bytes"]:
            parts.append(f"retransmissions ({row['retransmitted_bytes']:,} bytes)")
        if parts:
            causes[row["connection_id"]] = " and ".join(parts)
    found = []
    groups = group(exchanges, ["connection_id"])
    for code in np.flatnonzero(groups.count(stalled)).tolist():
        connection = groups.keys["connection_id"][code].as_py()
        if connection not in causes:
            continue
        rows = np.flatnonzero(stalled & (groups.code == code))
        worst = exchanges.slice(int(rows[np.argmax(slow[rows])]), 1).to_pylist()[0]
        response = (worst["response_transfer_ms"] or 0) >= (worst["request_transfer_ms"] or 0)
        side = "response" if response else "request"
        text = (
            f"{many(len(rows), 'message')} on connection {connection} took {duration(STALL_MS)} or more to get "
            f"through, with {causes[connection]} on it; the worst is the {side} of {worst['api']} "
            f"{worst['exchange_id']} "
            f"({duration(float(slow[rows].max()))}, complete in frame {worst[side + '_frame']} of "
            f"{worst[side + '_file']})."
        )
        condition = both(
            f"connection_id = {literal(connection)}",
            f"(request_transfer_ms >= {STALL_MS:g} or response_transfer_ms >= {STALL_MS:g})",
        )
        found += finding(tables, "network_stall", MEDIUM, text, "exchanges", condition)
    return found


def plaintext_to_tls(tables: Tables) -> list[Finding]:
    """Clients without TLS on a port for TLS: no request of theirs is ever answered."""
    connections = get(tables, "connections")
    coder = Coder()
    refused = coder.column(connections, "tls") == coder.codes.get("expected", -2)
    groups = group(connections, ["client_ip", "broker"])
    found = []
    for code in np.flatnonzero(groups.count(refused)).tolist():
        ip, broker = groups.keys["client_ip"][code].as_py(), groups.keys["broker"][code].as_py()
        text = (
            f"a client at {ip} speaks plaintext to a port of broker {broker} that expects TLS: "
            f"{many(int(groups.count(refused)[code]), 'connection')} ended with a TLS alert (security.protocol)."
        )
        condition = both(equals("client_ip", ip), equals("broker", broker), "tls = 'expected'")
        found += finding(tables, "plaintext_to_tls", HIGH, text, "connections", condition)
    return found


FINDERS = (plaintext_to_tls, retries, fencing, unsupported, short_connections, stalls)

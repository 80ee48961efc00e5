"""Filters of rows that several finders state. A filter of a single finder stands next to it."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kdissect.analysis.findings.evidence import equal
from kdissect.analysis.findings.finders import RowFilter
from kdissect.analysis.findings.limits import Limits
from kdissect.analysis.grouping import group
from kdissect.arrays.arrow import MILLI, NULL_TIME, Flags, times
from kdissect.arrays.from_numpy import arrow_array
from kdissect.schema.apikeys import ApiKey
from kdissect.tables.declaration.readers import FIRST_REQUESTS

BROKERS = ("broker-", "raft-client-", "ReplicaFetcherThread-")
"""How client ids of brokers begin that fetch from others."""
LOGIN = {"UNSUPPORTED_SASL_MECHANISM": 33, "ILLEGAL_SASL_STATE": 34, "SASL_AUTHENTICATION_FAILED": 58}
"""Errors of a login that was refused."""
SLOT_MS = 100
"""Of rows in one slot of time the first and the last are enough to find silences and steps."""
ID_LENGTH = 17 + len(str(FIRST_REQUESTS - 1))
"""Characters of the longest id of an exchange among the first FIRST_REQUESTS."""


def telling_of_sessions(fetches: pa.Table, limits: Limits) -> Any:
    """Fetches that did something else with their session than go on with it. Of those that went on the last one of each
    session: the session was still alive then."""
    goes_on = equal(fetches, "session_outcome", "continued")
    sessions = group(fetches, ["session_key"])
    rows = sessions.sort_rows(np.flatnonzero(goes_on), times(fetches, "request_last_at"))
    owner = sessions.code[rows]
    last = np.ones(len(rows), bool)
    last[:-1] = owner[1:] != owner[:-1]
    kept = ~(goes_on | equal(fetches, "request_kind", "sessionless"))
    kept[rows[last]] = True
    return arrow_array(kept)


FEW = frozenset({telling_of_sessions})
"""Filters that leave so few rows of a capture of any size that they are looked at together, however long it is."""


def failed(table: pa.Table, limits: Limits) -> Any:
    """Rows with an error code."""
    return pc.not_equal(table["error_code"], 0)


def refused_login(exchanges: pa.Table, limits: Limits) -> Any:
    """Exchanges whose answer refused a login."""
    codes = exchanges["error_code"]
    return pc.is_in(codes, pa.array(list(LOGIN.values()), codes.type))


def abandoned(exchanges: pa.Table, limits: Limits) -> Any:
    """Exchanges whose answer came after the client had closed."""
    return exchanges["abandoned"]


def throttled(exchanges: pa.Table, limits: Limits) -> Any:
    """Exchanges whose answer names a throttle time."""
    return pc.greater(exchanges["throttle_ms"], 0)


def slow(exchanges: pa.Table, limits: Limits) -> Any:
    """Exchanges that took as long as is called slow."""
    return pc.greater_equal(exchanges["latency_ms"], limits.slow_ms)


@cache
def of_status(*names: str) -> RowFilter:
    """Exchanges with one of these values of `status`."""

    def holds(exchanges: pa.Table, limits: Limits) -> Any:
        return pc.is_in(exchanges["status"].cast(pa.string()), pa.array(names))

    return holds


@cache
def of_api(*keys: int) -> RowFilter:
    """Exchanges with one of these API keys."""

    def holds(exchanges: pa.Table, limits: Limits) -> Any:
        return pc.is_in(exchanges["api_key"], pa.array(keys, exchanges["api_key"].type))

    return holds


def among_first(rows: pa.Table) -> pa.ChunkedArray:
    """Which rows are of exchanges among the first FIRST_REQUESTS of their connection: by the length of their id. Their
    number behind the connection's 16 digits and the colon has at most two digits."""
    return pc.less_equal(pc.binary_length(rows["exchange_id"].cast(pa.string())), ID_LENGTH)


def first_produces(exchanges: pa.Table, limits: Limits) -> Any:
    """Produce requests among the first FIRST_REQUESTS of their connection."""
    return pc.and_(pc.equal(exchanges["api_key"], ApiKey.PRODUCE), among_first(exchanges))


def without_producer_id(batches: pa.Table, limits: Limits) -> Any:
    """Batches that no broker can tell from ones that it has: no producer id (KIP-98), and not read back.

    A producer numbers its records from 0. Some libraries write 0 for the leader's epoch (librdkafka, sarama, KafkaJS,
    kafka-python), others -1. A batch that was read back is among these only where its partition begins with it.
    """
    unknown = pc.less(pc.fill_null(batches["producer_id"], -1), 0)
    sent = pc.or_(
        pc.less(pc.fill_null(batches["leader_epoch"], -1), 0), pc.equal(pc.fill_null(batches["base_offset"], -1), 0)
    )
    return pc.and_(pc.and_(unknown, pc.is_valid(batches["crc"])), sent)


def first_and_last_in_slots(table: pa.Table, by: str, *columns: str, slot_ms: int = SLOT_MS) -> Flags:
    """Which rows are the first or the last in their slot of `slot_ms` by one of these times, for each value of column
    `by`, and those of the same instants; bool [rows]. Rows whose time is null are not."""
    code = group(table, [by]).code
    kept = np.zeros(table.num_rows, bool)
    for at in (times(table, name) for name in columns):
        order = np.lexsort((at, code))
        order = order[at[order] != NULL_TIME]
        slot = at[order] // (slot_ms * MILLI)
        new = np.ones(len(order), bool)
        new[1:] = (slot[1:] != slot[:-1]) | (code[order][1:] != code[order][:-1])
        begins = np.flatnonzero(new)
        sizes = np.diff(np.append(begins, len(order)))
        instants = at[order]
        first, last = np.repeat(instants[begins], sizes), np.repeat(instants[begins + sizes - 1], sizes)
        kept[order[(instants == first) | (instants == last)]] = True
    return kept


def first_and_last_of_clients(exchanges: pa.Table, limits: Limits) -> Any:
    """The first and the last request and answer of each client in each slot: longer gaps show in them alone."""
    return arrow_array(first_and_last_in_slots(exchanges, "client_id", "request_first_at", "response_first_at"))


def unfinished(exchanges: pa.Table, side: str) -> Flags:
    """Whether the first byte of the request (or response) arrived and the last did not; bool [rows]."""
    begun, ended = (times(exchanges, f"{side}_{which}_at") != NULL_TIME for which in ("first", "last"))
    flags: Flags = begun & ~ended
    return flags

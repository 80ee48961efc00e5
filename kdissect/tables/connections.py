"""The `connections` table, made at the end of a run, piece by piece."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kdissect.kafka.completed import CLOSERS, END_REASONS, NETWORK_KINDS, NULL_TIME
from kdissect.tables.clients import NEVER, Clients, pick_texts
from kdissect.tables.declaration.model import MS, PLACES
from kdissect.tables.identity import ConnectionEnds, Directory, connection_ids, dictionary
from kdissect.tables.nest import Int64s, optional
from kdissect.tables.table_block import Column, code, count, flag, instant

if TYPE_CHECKING:
    from kdissect.tables.sights import Sights

PIECE = 1 << 16
"""Rows made at a time: some tens of MB."""
SORTED = 1 << 14
"""Rows of the same or neighbouring times that are put in order at a time."""


def connections_tables(
    directory: Directory,
    clients: Clients,
    names: Sequence[str],
    selected: npt.NDArray[np.bool_] | None = None,
    sights: Sights | None = None,
) -> Iterator[pa.Table]:
    """These columns of all connections of a run, or those `selected`, in order of (started_at, connection_id), in
    pieces, at least one. `broker` is not resolved yet. `sights`: connections that several places hold."""
    table = directory.connections
    size = len(table)
    rows = _in_order(table.started[:size], table.id[:size])
    if selected is not None:
        rows = rows[selected[rows]]
    for first in range(0, max(len(rows), 1), PIECE):
        made = columns(directory, clients, rows[first : first + PIECE].astype(np.int64), sights)
        yield pa.table({name: made[name]() for name in names})


def _in_order(started: Int64s, ids: npt.NDArray[np.uint64]) -> npt.NDArray[np.integer[Any]]:
    """Rows by their start in microseconds, of equal ones by id. Starts mostly ascend, ids are random: only where starts
    are equal are ids worth sorting by."""
    when = started // 1000
    when[started == NULL_TIME] = NEVER
    kind: type[np.integer[Any]] = np.int32 if len(when) < 1 << 31 else np.int64
    rows: npt.NDArray[np.integer[Any]]
    if (when[1:] >= when[:-1]).all():
        rows = np.arange(len(when), dtype=kind)
    else:
        rows = np.argsort(when, kind="stable").astype(kind)
        when = when[rows]
    begins = np.flatnonzero(np.diff(when, prepend=when[:1] - 1))
    first = 0
    while first < len(rows):  # whole runs of equal starts, some thousands of rows at a time: they fit in a cache
        after = np.searchsorted(begins, first + SORTED)
        end = int(begins[after]) if after < len(begins) else len(rows)
        some = rows[first:end]
        rows[first:end] = some[np.lexsort((ids[some], when[first:end]))]
        first = end
    return rows


def columns(directory: Directory, clients: Clients, rows: Int64s, sights: Sights | None = None) -> dict[str, Column]:
    """The columns of `connections` for these rows of the run's."""
    table = directory.connections
    client_id = clients.client_id.codes(rows)
    ends = ConnectionEnds(table, rows)

    def address_codes() -> npt.NDArray[np.int32]:
        """Codes of client addresses, -1 of connections without a client id."""
        codes, named = np.full(len(rows), -1, np.int32), client_id >= 0
        codes[named] = directory.client_codes(rows[named])
        return codes

    return {
        "connection_id": lambda: connection_ids(table.id[rows]),
        "capture": lambda: directory.capture(rows),
        "client_ip": lambda: ends.clients.column,
        "client_port": lambda: code(table.client_port[rows]),
        "broker_ip": lambda: ends.brokers.column,
        "broker_port": lambda: code(table.broker_port[rows]),
        "broker": lambda: ends.unresolved_brokers,
        "client_name": lambda: ends.clients.unresolved_hosts,
        "broker_name": lambda: ends.brokers.unresolved_hosts,
        "community_id": lambda: ends.community_ids,
        "cluster": lambda: ends.unresolved_brokers,
        "started_at": lambda: instant(table.started[rows]),
        "ended_at": lambda: instant(_ended(table.started[rows], table.lasted[rows])),
        "start_seen": lambda: flag(table.start_seen[rows]),
        "end_reason": lambda: dictionary(table.end_reason[rows], END_REASONS),
        "closed_by": lambda: dictionary(table.closed_by[rows] - 1, CLOSERS),
        "is_kafka": lambda: flag(table.is_kafka[rows]),
        "protocol": lambda: dictionary(table.protocol[rows], table.protocols),
        "client_id": lambda: dictionary(client_id, clients.client_id.texts.texts),
        "client_software_name": lambda: clients.software.column(rows),
        "client_software_version": lambda: clients.version.column(rows),
        "group_id": lambda: clients.groups(rows, table.capture[rows], address_codes(), client_id),
        "sasl_mechanism": lambda: clients.mechanism.column(rows, table.sasl_mechanism),
        "principal": lambda: pick_texts(rows, table.principal),
        "tls": lambda: dictionary(table.tls[rows], table.protocols),
        "sni": lambda: pick_texts(rows, table.sni),
        "packets": lambda: count(table.packets[rows]),
        "bytes": lambda: count(table.bytes[rows]),
        "retransmitted_bytes": lambda: count(table.retransmitted_bytes[rows]),
        "duplicated_packets": lambda: count(table.duplicated_packets[rows]),
        "out_of_order_packets": lambda: count(table.out_of_order_packets[rows]),
        "missing_bytes": lambda: count(table.missing_bytes[rows]),
        "zero_window_ms": lambda: optional(table.zero_window_ns[rows] / 1e6, np.ones(len(rows), np.bool_), MS),
        "rtt_ms": lambda: _round_trip(table.rtt_ns[rows]),
        "rtt_min_ms": lambda: _round_trip(table.rtt_min_ns[rows]),
        "rtt_max_ms": lambda: _round_trip(table.rtt_max_ns[rows]),
        "client_rtt_ms": lambda: _round_trip(table.client_rtt_ns[rows]),
        "rtt_kind": lambda: dictionary(table.rtt_kind[rows], NETWORK_KINDS),
        "lost_segments": lambda: count(table.lost_segments[rows]),
        "sights": lambda: _other_places(sights, table.id[rows]),
        "exchanges": lambda: count(table.exchanges[rows]),
        "problems": lambda: count(table.problems[rows]),
    }


def _ended(started: Int64s, lasted: Int64s) -> Int64s:
    """Times of last packets; a first one without a time lies at the epoch."""
    return np.where(lasted < 0, NULL_TIME, np.where(started == NULL_TIME, 0, started) + lasted)


def _other_places(sights: Sights | None, ids: npt.NDArray[np.uint64]) -> pa.ListArray:
    if sights is None:
        return pa.ListArray.from_arrays(np.zeros(len(ids) + 1, np.int32), pa.array([], PLACES.value_type), type=PLACES)
    return sights.other_places(ids)


def _round_trip(noted: Int64s) -> pa.Array:
    return optional((noted - 1) / 1e6, noted > 0, MS)

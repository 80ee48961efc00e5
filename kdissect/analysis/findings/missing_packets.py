"""Packets that a capture lacks: their bytes, or one direction, on purpose, and those that were dropped. Findings that
need them ask here."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kdissect.analysis.findings import evidence as ev
from kdissect.arrays.arrow import NULL_TIME, Flags, ints, reals, times
from kdissect.arrays.from_numpy import arrow_array

ONE_WAY = ("one_way", "orphan")
"""Status of exchanges of which the other direction is missing."""


def without_bare_packets(connections: pa.Table, quality: pa.Table) -> Flags:
    """Whether the capture of each connection has no acknowledgement without bytes, on any Kafka connection; bool
    [connections].

    Every handshake ends with one, so a filter on payload (`tshark -Y 'tcp.len>0'`) removed them. It removes refusals
    and ends of connections, too. `quality`: the table `capture_quality`.
    """
    counts: dict[str, dict[str, float]] = {"kafka_connections": {}, "connections_without_bare_acks": {}}
    values = np.nan_to_num(reals(quality, "value")).tolist()
    for capture, measure, value in zip(
        quality["capture"].to_pylist(), quality["measure"].to_pylist(), values, strict=True
    ):
        if measure in counts:
            counts[measure][capture] = value
    bare, every = counts["connections_without_bare_acks"], counts["kafka_connections"]
    filtered = {capture for capture, count in bare.items() if count and count == every.get(capture)}
    flags: Flags = np.array([capture in filtered for capture in connections["capture"].to_pylist()], bool)
    return flags


def one_way(exchanges: pa.Table, connections: pa.Table) -> Flags:
    """Whether one direction of each connection is missing: all exchanges, two or more, have a request without an answer
    or an answer without a request; bool [connections]. Acknowledgements and receive windows of a direction are in the
    packets of the other one."""
    owner = ev.owners(exchanges, connections)
    alone = pc.is_in(exchanges["status"].cast(pa.string()), pa.array(ONE_WAY)).to_numpy() & (owner >= 0)
    counts = np.bincount(owner[alone], minlength=connections.num_rows)
    flags: Flags = counts >= np.maximum(ints(connections, "exchanges", 0), 2)
    return flags


class UnseenRequests:
    """Connections on which clients may have sent requests that were not captured, and when."""

    def __init__(self, exchanges: pa.Table, connections: pa.Table) -> None:
        holed = np.flatnonzero((ints(connections, "is_kafka", 0) > 0) & (ints(connections, "missing_bytes", 0) > 0))
        owner, answered = ev.owners(exchanges, connections), times(exchanges, "response_first_at")
        orphans = np.flatnonzero(ev.equal(exchanges, "status", "orphan") & (answered != NULL_TIME) & (owner >= 0))
        rows = np.concatenate([holed, owner[orphans]])
        self._begin = np.concatenate([times(connections, "started_at")[holed], answered[orphans]])
        self._end = np.concatenate([times(connections, "ended_at")[holed], answered[orphans]])
        self._connections, self._of_unseen = connections, connections.take(arrow_array(rows))
        self._nameless = self._of_unseen["client_id"].is_null().to_numpy()

    def may_be_missing(self, client: str, begin: int, end: int) -> bool:
        """Whether requests of a client may be missing between two instants (microseconds): a connection that was open
        then lacks bytes, or a broker answered a request that was not captured.

        At which instant a connection lost bytes is not known. A connection without a client id may be of any client at
        its host."""
        near = (self._begin < end) & (self._end > begin)
        if not near.any():
            return False
        if (near & ev.equal(self._of_unseen, "client_id", client)).any():
            return True
        near &= self._nameless
        if not near.any():
            return False
        own = ev.equal(self._connections, "client_id", client)
        hosts = ev.names(self._connections["client_ip"].filter(arrow_array(own)))
        return not set(hosts).isdisjoint(ev.names(self._of_unseen["client_ip"].filter(arrow_array(near))))

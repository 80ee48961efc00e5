"""What a capture lacks on purpose: packets without bytes, or one direction. Findings that need them ask here."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kdissect.analysis.findings import evidence as ev
from kdissect.arrays.arrow import Flags, ints, reals

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

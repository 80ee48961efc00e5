"""Owners of the connections that a partition has followed, by which written rows get their capture and broker."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kdissect.tables.identity import Directory

OWNERS = "_owners"
"""Staged rows with an `Owned`, for the driver."""


@dataclass(frozen=True, slots=True)
class Owned:
    """Connections of one partition."""

    ids: npt.NDArray[np.uint64]
    codes: npt.NDArray[np.int32]
    """For each connection the number of its broker in `places`."""
    places: list[str]
    """Brokers that are not resolved yet: `capture<TAB>ip:port`."""


def owned(directory: Directory, settled: bool = True) -> Owned:
    """All Kafka connections of a run, or all connections before it is `settled` which those are."""
    connections = directory.connections
    mine = np.flatnonzero(connections.is_kafka) if settled else np.arange(len(connections))
    codes = directory.broker_codes(mine) if len(mine) else np.zeros(0, np.int32)
    return Owned(connections.id[mine].astype(np.uint64), codes, directory.brokers.texts)

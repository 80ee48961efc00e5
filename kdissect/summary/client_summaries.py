"""The totals of each client's exchanges: errors, the slowest, time lost. Clients in trouble come first, brokers
last."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa

from kdissect.arrays.arrow import EPOCH, Int64s, encoded, numbers
from kdissect.summary.joint_codes import tallied
from kdissect.summary.model import ClientLine

LOST_FROM_MS = 100.0
"""An answer that kept its client waiting this long, without having been asked to, cost it time."""
WAITING = ("timeout", "data", "rebalance")
"""Values of `hold` with which a request waits for something other than the broker's work."""
FETCHING = ("Fetch", "ShareFetch")
"""APIs whose requests may wait for data: without a `hold` nobody knows whether they did."""
JUDGED = ("ok", "error", "no_response")
"""Values of `status` with which it is known whether there was an error (where no answer was asked for, none came)."""
BROKERS_OWN = re.compile(r"(broker|controller)-\d+-.+|raft-client-\d+|\d+|(ReplicaFetcher|AddPartitionsManager).*")
"""Client ids by which brokers talk to each other (ReplicaFetcherThread, KafkaRaftClient, the controller's channels)."""
NEVER = 2**63 - 1


class Tally:
    """Figures of one client so far."""

    def __init__(self) -> None:
        self.exchanges = 0
        self.errors = 0
        self.judged = 0
        self.lost_ms = 0.0
        self.slowest_ms: float | None = None
        self.slowest_at: datetime | None = None


def waited(batch: pa.RecordBatch) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Flags of rows of `exchanges`: True if one waited for something other than the broker's work, or may have."""
    hold, api = encoded(batch.column("hold")), encoded(batch.column("api"))
    return _among(hold, WAITING) | (_among(hold, (None, "unknown")) & _among(api, FETCHING))


def _among(
    column: tuple[Int64s, list[Any]], values: Collection[str | None]
) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Flags of texts of a column, as `encoded` gives it: True for one of these values."""
    codes, texts = column
    return np.array([text in values for text in (*texts, None)])[codes]


class Tallies:
    """Figures by client id. Orphan responses name no client and are left out."""

    def __init__(self) -> None:
        self.of: dict[str | None, Tally] = defaultdict(Tally)

    def add(self, batch: pa.RecordBatch, slow: np.ndarray[tuple[int], np.dtype[np.float64]]) -> None:
        """Take rows of `exchanges` with their durations that were no waiting (NaN where they were)."""
        status = encoded(batch.column("status"))
        codes, names = encoded(batch.column("client_id"))
        codes, clients = codes + 1, [None, *names]
        marks = np.array([[text in ones for text in (*status[1], None)] for ones in (("orphan",), ("error",), JUDGED)])
        counts, times = np.zeros((4, len(clients)), np.int64), np.zeros((2, len(clients)))
        times[1] = -np.inf
        counts[3] = NEVER
        if "request_first_at" in batch.schema.names:
            at = numbers(batch.column("request_first_at"), NEVER)
        else:
            at = np.full(len(codes), NEVER)
        tallied(np.where(status[0] < 0, len(status[1]), status[0]), codes, slow, at, marks, LOST_FROM_MS, counts, times)
        (counted, errors, judged, firsts), (lost, most) = counts, times
        for code in np.flatnonzero(counted).tolist():
            tally = self.of[clients[code]]
            tally.exchanges += int(counted[code])
            tally.errors += int(errors[code])
            tally.judged += int(judged[code])
            tally.lost_ms += float(lost[code])
            if most[code] > (-np.inf if tally.slowest_ms is None else tally.slowest_ms):
                tally.slowest_ms = float(most[code])
                first = int(firsts[code])
                tally.slowest_at = None if first == NEVER else EPOCH + timedelta(microseconds=first)


def in_order(clients: list[ClientLine]) -> list[ClientLine]:
    """Those with errors, those that lost time, brokers among themselves with either, the other clients, brokers."""

    def place(line: ClientLine) -> tuple[int, int, float, int, str]:
        trouble = line.errors > 0 or line.lost_ms > 0
        if line.broker_itself:
            rank = 2 if trouble else 4
        else:
            rank = 0 if line.errors else 1 if trouble else 3
        return (rank, -line.errors, -line.lost_ms, -line.exchanges, line.client_id or "")

    return sorted(clients, key=place)


def broker_itself(client_id: str | None) -> bool:
    """Whether a client id is one that brokers use among themselves."""
    return client_id is not None and BROKERS_OWN.fullmatch(client_id) is not None

"""A simulated fleet: 3,000 consumers, 1,000 slots, one client that never reuses its sessions."""

from __future__ import annotations

import random
import zlib
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from kdissect.analysis.findings import findings
from kdissect.analysis.sessions.slots import evictors, slot_demand
from kdissect.analysis.sessions.tracker import SessionTracker
from kdissect.arrays.rows import Rows
from tests.analysis.wire import START, made

CONSUMERS, SLOTS, SECONDS = 3000, 1000, 60
BAD = "poller-without-sessions"
SECOND = 1_000_000


class Fleet:
    """Consumers that poll every two seconds, and a broker whose cache gives up the session unused for longest."""

    def __init__(self) -> None:
        self.rng = random.Random(11)
        self.rows: list[dict[str, Any]] = []
        self.cache: dict[int, int] = {}
        self.live: dict[int, tuple[int, int | None]] = {}
        """Session id -> (created, told that it is gone), as slots are needed."""
        self.ordinals: dict[str, int] = {}
        self.next_id = 1

    def fetch(self, at: int, client: str, number: int, epoch: int) -> tuple[int, int]:
        """(session id, next epoch) after one fetch."""
        error = told = 0
        if epoch == 0:
            if len(self.cache) >= SLOTS:
                del self.cache[min(self.cache, key=self.cache.__getitem__)]
            told = self.next_id
            self.next_id += 1
            self.cache[told] = at
            self.live[told] = (at + 200, None)
        elif number in self.cache:
            told = number
            self.cache[number] = at
        else:
            error = 70
            self.live[number] = (self.live[number][0], at)
        connection = f"{zlib.crc32(client.encode()):016x}"
        n = self.ordinals[connection] = self.ordinals.get(connection, -1) + 1
        self.rows.append(
            {
                "exchange_id": f"{connection}:{n}", "connection_id": connection, "broker": "1", "client_id": client,
                "api_version": 13, "requested_at": at, "request_last_at": at, "response_first_at": at + 200,
                "request_session_id": number, "session_epoch": epoch, "response_session_id": told, "error_code": error,
                "throttle_ms": 0.0, "partitions_returned": 1 if epoch == 0 else 0, "request_bytes": 100,
            }
        )  # fmt: skip
        return (0, 0) if error else (told, epoch + 1)

    def run(self) -> None:
        state = {f"consumer-{i}": (0, 0) for i in range(CONSUMERS)}
        turns = [(START + self.rng.randrange(2 * SECOND), name) for name in state]
        events = [(at + k * 2 * SECOND, name) for at, name in turns for k in range(SECONDS // 2)]
        events += [(START + 10 * SECOND + k * 20_000, BAD) for k in range((SECONDS - 10) * 50)]
        for at, name in sorted(events):
            if name == BAD:
                self.fetch(at, BAD, 0, 0)
            elif state[name][1] == 0 and int(name.rpartition("-")[2]) >= SLOTS - 100 and at < START + 1 * SECOND:
                continue
            else:
                state[name] = self.fetch(at, name, *state[name])

    def demand(self, at: int) -> int:
        return sum(begin <= at and (end is None or at < end) for begin, end in self.live.values())


@pytest.fixture(scope="module")
def fleet() -> Fleet:
    made_fleet = Fleet()
    made_fleet.run()
    return made_fleet


def test_the_misbehaving_client_is_named_first(fleet: Fleet) -> None:
    tracker = SessionTracker()
    found = tracker.feed(Rows.of(made("fetches", fleet.rows)), None)
    rest = tracker.finish()
    ranking = evictors(found.fetches.table()).to_pylist()
    assert ranking[0]["client_id"] == BAD
    assert ranking[0]["sessions_created"] == (SECONDS - 10) * 50
    text = findings({"fetches": found.fetches.table(), "fetch_sessions": rest.sessions.table()}).findings
    worst = next(row for row in text.to_pylist() if row["id"] == "session_evictor")
    assert BAD in worst["text"]
    assert worst["count"] == (SECONDS - 10) * 50
    reuse = [row for row in text.to_pylist() if row["id"] == "sessions_never_reused"]
    assert [BAD in row["text"] for row in reuse][:1] == [True]


def test_slot_demand_is_the_simulations(fleet: Fleet) -> None:
    tracker = SessionTracker()
    found = tracker.feed(Rows.of(made("fetches", fleet.rows)), None)
    rest = tracker.finish()
    sessions = Rows.together([found.sessions, rest.sessions]).table()
    table = slot_demand(sessions, every=1.0)
    starts = np.array(table["at"].cast(pa.int64()))
    instants = sorted({t for pair in fleet.live.values() for t in pair if t is not None})
    steps = dict.fromkeys(instants, 0)
    for begin, end in fleet.live.values():
        steps[begin] += 1
        if end is not None:
            steps[end] -= 1
    level, levels = 0, []
    for at in instants:
        level += steps[at]
        levels.append(level)
    marks = np.array(instants)
    for row, begin in zip(table.to_pylist(), starts.tolist(), strict=True):
        inside = [levels[i] for i in np.flatnonzero((marks >= begin) & (marks < begin + SECOND))]
        before = np.flatnonzero(marks < begin)
        inside += [levels[before[-1]]] if len(before) else []
        assert row["live"] == max(inside)
    assert int(np.array(table["created"]).sum()) == len(fleet.live)

"""Refused connections beside those that speak Kafka: looked up by address and time, against a plain count."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from kdissect.analysis.findings.rules.access_findings import SERVED_MS, _Speakers


def test_speakers_are_looked_up_as_they_are_counted() -> None:
    random = np.random.default_rng(1)
    for _ in range(100):
        count = int(random.integers(1, 100))
        address = [None if random.random() < 0.05 else f"10.0.0.{random.integers(0, 8)}" for _ in range(count)]
        client, started = [f"c{n}" for n in random.integers(0, 5, count)], random.integers(0, 20_000_000, count)
        kafka, exchanges = random.random(count) < 0.4, random.integers(0, 3, count)
        connections = pa.table({
            "client_ip": pa.array(address, pa.string()), "client_id": client,
            "started_at": pa.array(started, pa.timestamp("us", "UTC")), "is_kafka": kafka, "exchanges": exchanges,
        })  # fmt: skip
        refused = np.sort(random.choice(count, int(random.integers(1, count + 1)), replace=False))
        speaks = [row for row in range(count) if kafka[row] and exchanges[row]]
        near = {
            row: any(
                address[one] == address[row] and abs(started[one] - started[row]) <= SERVED_MS * 1000 for one in speaks
            )
            for row in refused.tolist()
        }
        tried = {address[row] for row in refused.tolist()}
        last = [max((started[row], near[row]) for row in refused.tolist() if address[row] == one) for one in tried]
        names, served, unserved = _Speakers(connections).look_up(refused)
        assert names == sorted({client[row] for row in speaks if address[row] in tried})
        assert (served, unserved) == (all(here for _, here in last), list(near.values()).count(False))

"""The two topics that are furthest apart in how long writing to them takes."""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

SAMPLES = 20
"""Answered Produce requests of a topic before its median says something."""


class TopicGap(NamedTuple):
    """Two topics, by the median latency of the Produce requests that write to them."""

    slow: str
    slow_ms: float
    slow_requests: int
    fast: str
    fast_ms: float
    fast_requests: int


def find_topic_gap(latencies: pa.Table) -> TopicGap | None:
    """The topics with the longest and the shortest median of Produce requests; None for fewer than two topics with
    SAMPLES answers. `latencies`: rows of `latency` by api and topic."""
    produces = pc.equal(latencies["api"].cast(pa.string()), "Produce")
    known = pc.and_(pc.is_valid(latencies["topic"]), pc.greater_equal(latencies["answered"], SAMPLES))
    rows = latencies.filter(pc.and_(produces, known))
    rows = rows.sort_by([("p50_ms", "descending"), ("topic", "ascending")]).to_pylist()
    if len(rows) < 2:
        return None
    slow, fast = rows[0], rows[-1]
    return TopicGap(slow["topic"], slow["p50_ms"], slow["answered"], fast["topic"], fast["p50_ms"], fast["answered"])

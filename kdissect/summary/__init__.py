"""The first screen as data: what an on-call engineer asks first, gathered in one pass over a few columns.

Feed a `Summarizer` batches of the tables named in `WANTED` (any order, any size), then `finish()`. Memory grows with
the number of APIs, clients, brokers and connections, not with the number of exchanges. Latencies are kept one by one
while they are few and as a histogram beyond.

Rules: an exchange counts as an error when its status is `error`. Quantiles are over exchanges with a known
`latency_ms`, by linear interpolation. Nothing that is unknown is counted as zero.
"""

from __future__ import annotations

from kdissect.summary.gathering import GROUPINGS, WANTED, Summarizer, summarize
from kdissect.summary.model import (
    BrokerLine,
    ClientLine,
    DeliveryLine,
    ErrorLine,
    LatencyLine,
    Pace,
    ProblemLine,
    SessionLine,
    Summary,
    TopicLine,
)

__all__ = [
    "GROUPINGS",
    "WANTED",
    "BrokerLine",
    "ClientLine",
    "DeliveryLine",
    "ErrorLine",
    "LatencyLine",
    "Pace",
    "ProblemLine",
    "SessionLine",
    "Summarizer",
    "Summary",
    "TopicLine",
    "summarize",
]

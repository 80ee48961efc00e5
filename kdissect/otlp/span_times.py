"""When the parts of exchanges began and ended: the spans below an exchange's own.

The borders are those of the ledger of time (`analysis.ledger.exchange_spans`), each exchange by itself.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from kdissect.analysis.ledger.exchange_spans import TimedExchanges, exchange_borders
from kdissect.arrays.arrow import NULL_TIME, Int64s, times
from kdissect.tables.declaration import SCHEMAS

NAMES = (
    "request transfer", "network up", "queued", "throttled", "agreed wait", "broker", "replication", "network down",
    "response transfer",
)  # fmt: skip
"""What the parts are called, in order of time."""


class SpanTimes(NamedTuple):
    """Instants of exchanges in microseconds; [rows]."""

    begin: Int64s
    """NULL_TIME if neither request nor response has a time."""
    end: Int64s
    borders: Int64s
    """[len(NAMES) + 1, rows]: the ends of the parts, in order of NAMES."""


def span_times(exchanges: pa.Table, fetches: pa.Table) -> SpanTimes:
    """Times of exchanges. `exchanges`, `fetches`: columns as `readers.BUDGET` names them, with holds.

    An exchange with both messages lasts from its request's first byte to its response's last byte. Else it lasts as
    long as the message that was captured.
    """
    none = SCHEMAS["connections"].empty_table()
    rows = TimedExchanges({"exchanges": exchanges, "fetches": fetches, "connections": none})
    sent, answered = times(exchanges, "request_last_at"), times(exchanges, "response_last_at")
    asked = rows.asked != NULL_TIME
    begin = np.where(asked, rows.asked, rows.answered)
    end = np.where(asked, sent, answered)
    end = np.where(asked & (answered != NULL_TIME), answered, end)
    end = np.where(end == NULL_TIME, begin, np.maximum(end, begin))
    borders = np.stack(exchange_borders(rows))
    borders = np.where(rows.known, np.minimum(borders, end), NULL_TIME)
    return SpanTimes(begin, end, borders)

"""How long records took to each reader of a topic, for the first screen."""

from __future__ import annotations

import pyarrow as pa

from kdissect.analysis.deliveries.delivery_summary import summarise
from kdissect.summary.model import DeliveryLine


def delivery_lines(deliveries: pa.Table) -> list[DeliveryLine]:
    """A line for each topic and consumer group (else client), the slowest first. `deliveries`: rows of the table."""
    rows = [row for row in summarise(deliveries).to_pylist() if not row["is_follower"] and row["p50_ms"] is not None]
    return [DeliveryLine(**{name: row[name] for name in DeliveryLine._fields}) for row in rows]

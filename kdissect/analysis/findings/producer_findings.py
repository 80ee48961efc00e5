"""Findings about producers: what was written again, and how."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from kdissect.analysis.findings.evidence import LOW, Finding, Tables, both, equal, finding, get, many
from kdissect.analysis.grouping import group, most_first


def sent_again(tables: Tables) -> list[Finding]:
    """Batches of idempotent producers that were sent more than once: a sequence number seen before (KIP-98)."""
    producers = get(tables, "producers")
    again = equal(producers, "sequence", "repeat")
    groups = group(producers, ["producer_id"])
    counts = groups.count(again)
    found = []
    for code in most_first(counts):
        producer = groups.keys["producer_id"][code].as_py()
        rows = np.flatnonzero(again & (groups.code == code))
        partitions = len(group(producers.take(pa.array(rows)), ["topic", "topic_id", "partition"]))
        text = (
            f"Producer {producer} sent {many(int(counts[code]), 'batch', 'batches')} to "
            f"{many(partitions, 'partition')} again (a sequence number that it had used): the answer was an error, "
            f"late, or lost."
        )
        condition = both(f"producer_id = {producer}", "sequence = 'repeat'")
        found += finding(tables, "batches_sent_again", LOW, text, "producers", condition)
    return found


FINDERS = (sent_again,)

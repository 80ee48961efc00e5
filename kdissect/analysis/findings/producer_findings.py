"""Findings about producers: what was written again, and how."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from kdissect.analysis.findings.evidence import LOW, Finding, Tables, both, duration, equal, finding, get, many, who
from kdissect.analysis.findings.transaction_findings import started
from kdissect.analysis.grouping import group, most_first
from kdissect.arrays.arrow import ints, times

TINY_RECORDS = 1
"""Records of a batch: linger.ms makes more of them as soon as records come close together."""
TINY_BATCHES = 500
"""Batches of a producer before it is a habit."""
TINY_PER_SECOND = 100.0
"""Batches a second that records this close together would not need: 10 ms of linger.ms halve them."""
TINY_SECONDS = 1.0
"""For at least so long."""


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


def tiny_batches(tables: Tables) -> list[Finding]:
    """Producers that send each record alone, again and again: a request, an append and a fetch for each."""
    producers, known = get(tables, "producers"), {one.producer: one for one in started(tables)}
    groups, sizes = (
        group(producers, ["producer_id"]),
        ints(producers, "last_sequence") - ints(producers, "base_sequence") + 1,
    )
    at = times(producers, "sent_at")
    found = []
    for code in np.flatnonzero(groups.count() >= TINY_BATCHES).tolist():
        mine = np.flatnonzero(groups.code == code)
        seconds = (int(at[mine].max()) - int(at[mine].min())) / 1e6
        records = float(np.median(sizes[mine]))
        if seconds < TINY_SECONDS or len(mine) / seconds < TINY_PER_SECOND or records > TINY_RECORDS:
            continue
        producer = groups.keys["producer_id"][code].as_py()
        one = known.get(producer)
        client = who(one.client) if one is not None else "a producer"
        text = (
            f"{client} (producer {producer}) sent {many(len(mine), 'batch', 'batches')} of "
            f"{many(int(records), 'record')} (median) in {duration(seconds * 1000)}, "
            f"{len(mine) / seconds:.0f} a second: each costs a request."
        )
        found += finding(
            tables, "tiny_batches", LOW, text, "producers", f"producer_id = {producer}",
            client_id=one.client if one is not None else None,
        )  # fmt: skip
    return found


FINDERS = (sent_again, tiny_batches)

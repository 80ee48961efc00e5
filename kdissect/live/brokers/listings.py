"""Metadata answers, which list the brokers that are alive."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from kdissect.kafka.completed import Completed
from kdissect.live.moment import Listing
from kdissect.schema.apikeys import ApiKey
from kdissect.tables.builder import TableBuilder
from kdissect.tables.declaration.model import CODE

METADATA = (ApiKey.METADATA, 1)
"""The answer's API and side."""


def read_listings(done: Completed, builder: TableBuilder) -> list[Listing]:
    """The Metadata answers among exchanges that were finished."""
    if METADATA not in done.messages:
        return []
    block = builder.block(done)
    rows = block.bodies(*METADATA)
    brokers = block.nest(*METADATA).each("brokers")
    if not len(brokers):
        return []
    nodes = np.asarray(brokers.column("node_id", CODE).fill_null(-1)).astype(str)
    senders = builder.resolve("exchanges", pa.table({"broker": block.directory.broker(done.conn[rows])}))["broker"]
    listed = np.split(nodes, np.searchsorted(brokers.body, np.arange(1, len(rows))))
    return [
        Listing(sender, asked // 1000, answered // 1000, frozenset(names.tolist()))
        for sender, asked, answered, names in zip(
            senders.to_pylist(), done.request_first[rows].tolist(), done.response_last[rows].tolist(), listed,
            strict=True,
        )
        if asked > 0 and answered > 0 and len(names)
    ]  # fmt: skip

"""Every maker of rows by name: what makes the rows of a table from a block, and what the other makers fill.

Importing this module in a checkout holds all of them against the declaration (`kdissect.tables.makers`). The analysis
registers its own makers where they are.
"""

from __future__ import annotations

import numpy as np

from kdissect.kafka.completed import Problems, Quality
from kdissect.kafka.recordsets import batch_columns, batch_layout, producers
from kdissect.tables import (
    commits,
    connections,
    exchanges,
    fetches,
    groups,
    offsets,
    partitions,
    producer_ids,
    produces,
    transaction_steps,
)
from kdissect.tables.clients import Clients
from kdissect.tables.declaration.model import By
from kdissect.tables.leaders import leader_columns
from kdissect.tables.makers import BLOCK_MAKERS, HELD, Probe, complete, fills, nothing
from kdissect.tables.quality import problem_columns
from kdissect.tables.recordsets import OF_A_SET
from kdissect.tables.sights import OFFSETS
from kdissect.tables.topics import topic_columns
from kdissect.tables.versions import COLUMNS


def _hold_against_the_declaration() -> None:
    """Hold every maker against the declaration. Raises DeclarationError."""
    from kdissect.kafka.recordsets import record_columns

    directory = Probe().directory
    rows = np.zeros(0, np.int64)
    batches = batch_columns.columns(np.zeros((0, batch_layout.WIDTH), np.int64), np.zeros(0, np.int8), rows)
    hidden = ("owner", "batch")  # numbers that tables do not show
    fills(
        By.RECORD_SETS,
        lambda: {
            "record_batches": {*OF_A_SET, *batches}.difference(hidden),
            "records": {*OF_A_SET, *record_columns.SCHEMA.names}.difference(hidden),
        },
    )
    fills(By.END, lambda: {"connections": connections.columns(directory, Clients(), rows)})
    fills(By.NOTED, lambda: {"problems": problem_columns(nothing(Problems), directory)})
    fills(By.SENT, lambda: {"producers": producers.SCHEMA.names})
    fills(By.LEARNED, lambda: {
        "api_versions": COLUMNS, "topics": [*topic_columns([]), "cluster"], "leaders": leader_columns([]),
        "capture_quality": [*Quality._fields, "cluster"], "clock_offsets": OFFSETS,
    })  # fmt: skip
    complete()


if HELD:
    _hold_against_the_declaration()

__all__ = [
    "BLOCK_MAKERS", "commits", "exchanges", "fetches", "groups", "offsets", "partitions", "producer_ids", "produces",
    "transaction_steps",
]  # fmt: skip

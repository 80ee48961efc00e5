"""Checks the batches of idempotent producers, partition by partition: duplicates and sequences out of order
(KIP-98)."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kdissect.arrays.from_numpy import arrow_array
from kdissect.kafka.recordsets import sequence_kernels
from kdissect.kafka.recordsets.sequence_kernels import GAP, NUMBERS, STATUSES

COLUMNS = (
    "exchange_id", "sent_at", "topic", "topic_id", "partition", "producer_id", "producer_epoch", "base_sequence",
    "base_offset", "last_offset", "cluster",
)  # fmt: skip
"""Columns of `record_batches` that are looked at, and `sent_at`, when the request's first byte arrived."""

SCHEMA = pa.schema(
    [
        ("exchange_id", pa.string()),
        ("sent_at", pa.timestamp("us", tz="UTC")),
        ("topic", pa.string()),
        ("topic_id", pa.string()),
        ("partition", pa.int32()),
        ("producer_id", pa.int64()),
        ("producer_epoch", pa.int32()),
        ("base_sequence", pa.int32()),
        ("last_sequence", pa.int32()),
        ("expected_sequence", pa.int32()),
        ("sequence", pa.string()),
        ("missing", pa.int64()),
        ("cluster", pa.string()),
    ]
)
"""`sequence`: first (seen), ok, gap, repeat (a retry), reset (the producer's epoch was raised), fenced (an older
epoch); `expected_sequence` is null for first, reset and fenced; `missing`: numbers left out before a gap, else 0."""


def producers(record_batches: pa.Table) -> pa.Table:
    """One row per batch with a producer id, in order of partition, producer and time.

    `record_batches` has COLUMNS, is in order of time and comes from Produce requests alone (fetched batches carry their
    producers' numbers too).
    """
    table = record_batches.select(COLUMNS)
    mask = pc.and_kleene(pc.greater_equal(table["producer_id"], 0), pc.greater_equal(table["base_sequence"], 0))
    table = table.filter(pc.fill_null(mask, False))
    place = pc.binary_join_element_wise(
        pc.fill_null(pc.coalesce(table["topic"].cast(pa.string()), table["topic_id"].cast(pa.string())), ""),
        table["partition"].cast(pa.string()),
        table["producer_id"].cast(pa.string()),
        pc.fill_null(table["cluster"].cast(pa.string()), ""),
        "\0",
    )
    stream = pc.dictionary_encode(place.combine_chunks()).indices.to_numpy(zero_copy_only=False).astype(np.int64)
    order = np.argsort(stream, kind="stable")
    table = table.take(arrow_array(order))
    epoch, first, base, last = (
        pc.fill_null(table[name], 0).to_numpy().astype(np.int64)
        for name in ("producer_epoch", "base_sequence", "base_offset", "last_offset")
    )
    span = np.maximum(last - base + 1, 1)
    status = np.empty(len(table), np.int8)
    expected = np.empty(len(table), np.int64)
    sequence_kernels.follow(stream[order], epoch, first, span, status, expected)
    return pa.Table.from_arrays(
        [
            table["exchange_id"].cast(pa.string()),
            table["sent_at"],
            table["topic"].cast(pa.string()),
            table["topic_id"].cast(pa.string()),
            table["partition"],
            table["producer_id"],
            table["producer_epoch"],
            table["base_sequence"],
            arrow_array(((first + span - 1) % NUMBERS).astype(np.int32)),
            arrow_array(expected.astype(np.int32), mask=expected < 0),
            pa.array(STATUSES).take(arrow_array(status)),
            arrow_array(np.where(status == GAP, (first - expected) % NUMBERS, 0)),
            table["cluster"].cast(pa.string()),
        ],
        schema=SCHEMA,
    )

"""Checks the batches of idempotent producers, partition by partition: duplicates and sequences out of order
(KIP-98)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from kdissect.arrays.from_numpy import arrow_array
from kdissect.kafka.recordsets import sequence_kernels
from kdissect.kafka.recordsets.sequence_kernels import FENCED, GAP, NUMBERS, REPEAT, STATUSES, Int64s

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


def _sequence_ranges(table: pa.Table) -> tuple[Int64s, Int64s]:
    """The first sequence number of each batch, and how many it takes."""
    first, base, last = (
        pc.fill_null(table[name], 0).to_numpy().astype(np.int64)
        for name in ("base_sequence", "base_offset", "last_offset")
    )
    return first, np.maximum(last - base + 1, 1)


def _check_sequences(
    table: pa.Table, stream: Int64s, first: Int64s, span: Int64s
) -> tuple[npt.NDArray[np.int8], Int64s]:
    """Status of each batch and the sequence that was expected, of streams that stand together. `first`, `span`: as of
    `_sequence_ranges`."""
    epoch = pc.fill_null(table["producer_epoch"], 0).to_numpy().astype(np.int64)
    status, expected = np.empty(len(table), np.int8), np.empty(len(table), np.int64)
    sequence_kernels.follow(stream, epoch, first, span, status, expected)
    return status, expected


def _order_as_sent(table: pa.Table, stream: Int64s) -> Int64s:
    """Rows by stream and time, those of a connection in its own order.

    Where the network loses a segment, a later request is captured before the earlier one that is sent again; the broker
    reads them as they were sent. So a request counts from when the last one before it on its connection came.
    """
    pattern = r"^(?P<connection>.*):(?P<ordinal>[0-9]{1,18})$"
    place = pc.extract_regex(table["exchange_id"].cast(pa.string()), pattern).combine_chunks()
    ordinal = pc.fill_null(place.field("ordinal").cast(pa.int64()), 0).to_numpy()
    connection = pc.dictionary_encode(place.field("connection")).indices.fill_null(-1).to_numpy().astype(np.int64)
    at = pc.fill_null(table["sent_at"].cast(pa.int64()), 0).to_numpy()
    since = at - at.min(initial=0)
    apart = int(since.max(initial=0)) + 1
    by = np.lexsort((ordinal, connection))
    reached = np.maximum.accumulate(since[by] + (connection[by] + 1) * apart)
    since[by] = reached - (connection[by] + 1) * apart
    return np.lexsort((ordinal, since, stream))


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
    table, stream = table.take(arrow_array(order)), stream[order]
    first, span = _sequence_ranges(table)
    status, expected = _check_sequences(table, stream, first, span)
    if np.isin(status, (REPEAT, FENCED)).any():
        order = _order_as_sent(table, stream)
        table, first, span = table.take(arrow_array(order)), first[order], span[order]
        status, expected = _check_sequences(table, stream, first, span)
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

"""Rows of batches as Arrow columns of the table `record_batches`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kdissect.arrays.dictionaries import coded
from kdissect.arrays.from_numpy import arrow_array
from kdissect.kafka.recordsets import batch_layout as bl
from kdissect.kafka.recordsets.batch_layout import FIELDS

Int64s = npt.NDArray[np.int64]

UNKNOWN = -1
"""crc_ok and uncompressed_bytes: not asked, or not to be known."""

TIMES = pa.timestamp("us", tz="UTC")
_NAMES = pa.array(bl.CODECS)
_TIME_TYPES = pa.array(["create_time", "log_append_time"])


def times(ms: Int64s) -> pa.Array:
    """Timestamps of milliseconds; null for NULL, -1, and outside years 1-9999."""
    inside = (ms != -1) & (ms >= bl.FIRST_MS) & (ms <= bl.LAST_MS)
    return arrow_array(np.where(inside, ms, 0) * 1000, pa.int64(), mask=~inside).cast(TIMES)


def numbers(values: npt.NDArray[Any], kind: pa.DataType, null: int = bl.NULL) -> pa.Array:
    """A number column, null where the value is `null`."""
    absent = values == null
    if not absent.any():
        return arrow_array(values).cast(kind) if kind != pa.int64() else arrow_array(np.ascontiguousarray(values))
    return arrow_array(np.where(absent, 0, values), pa.int64(), mask=absent).cast(kind)


def columns(rows: Int64s, crc_ok: npt.NDArray[np.int8], uncompressed: Int64s) -> dict[str, Callable[[], pa.Array]]:
    """Makers of the columns of `record_batches` by name, from rows of `Batches`; a column that no caller asks for is
    not made."""
    attributes = rows[:, FIELDS.attributes]
    unknown = attributes == bl.NULL
    version2 = (rows[:, FIELDS.magic] == 2) & ~unknown

    def count(column: int) -> Any:
        return lambda: numbers(rows[:, column], pa.int64())

    def code(column: int) -> Any:
        return lambda: numbers(rows[:, column], pa.int32())

    def bit(mask: int) -> Any:
        return lambda: arrow_array((attributes & mask) != 0, mask=~version2)

    def codec() -> pa.Array:
        index = attributes & bl.CODEC_MASK
        return coded(index.astype(np.int8), _NAMES, unknown | (index >= len(bl.CODECS)))

    def time_type() -> pa.Array:
        has = ~unknown & (rows[:, FIELDS.magic] > 0)
        index = ((attributes & bl.LOG_APPEND_BIT) != 0).astype(np.int8)
        return coded(index, _TIME_TYPES, ~has)

    return {
        "owner": lambda: arrow_array(np.ascontiguousarray(rows[:, FIELDS.owner])),
        "base_offset": count(FIELDS.base_offset),
        "last_offset": count(FIELDS.last_offset),
        "magic": code(FIELDS.magic),
        "codec": codec,
        "is_transactional": bit(bl.TRANSACTIONAL_BIT),
        "is_control": bit(bl.CONTROL_BIT),
        "timestamp_type": time_type,
        "first_timestamp": lambda: times(rows[:, FIELDS.first_time]),
        "max_timestamp": lambda: times(rows[:, FIELDS.max_time]),
        "producer_id": count(FIELDS.producer_id),
        "producer_epoch": code(FIELDS.producer_epoch),
        "base_sequence": code(FIELDS.base_sequence),
        "leader_epoch": code(FIELDS.leader_epoch),
        "records": count(FIELDS.records),
        "compressed_bytes": count(FIELDS.wire),
        "uncompressed_bytes": lambda: numbers(uncompressed, pa.int64(), UNKNOWN),
        "crc": count(FIELDS.crc),
        "crc_ok": lambda: arrow_array(crc_ok == 1, mask=crc_ok == UNKNOWN),
        "truncated": lambda: arrow_array(rows[:, FIELDS.cut] != bl.WHOLE),
    }

"""Rows of partitions that were produced to, as `kdissect.tables.fetch_bodies` reads them from bodies."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kdissect.arrays.rows import Rows
from kdissect.kernels.kernel import kernel
from kdissect.kernels.signature import fields
from kdissect.kernels.structs import Records, rows_of, struct, view, width
from kdissect.tables.declaration.model import EXCHANGE_KEYS, TIME_KEY
from kdissect.tables.fetch_rows import micros, plain
from kdissect.tables.table_block import Block

Int64s = npt.NDArray[np.int64]

COLUMNS = (*EXCHANGE_KEYS, TIME_KEY, "topic", "topic_id", "partition", "base_offset", "error_code")
"""What rows are made of these, in the order of `SentColumns`."""


@struct
class SentRow:
    """A partition that a request to produce, or the answer, names."""

    exchange: int
    """Row of the exchange in its block."""
    topic: int
    """Code of the topic."""
    partition: int
    """Number of the partition."""
    base_offset: int
    """Offset of the first record, NULL where no answer has it."""
    error: int
    """Error code, NULL likewise."""
    answered: int
    """1: the answer has it."""


sent_at = view(SentRow)
SENT_WIDTH = width(SentRow)


class SentColumns(NamedTuple):
    """COLUMNS of rows."""

    high: Int64s
    n: Int64s
    time: Int64s
    topic: Int64s
    topic_id: Int64s
    partition: Int64s
    base_offset: Int64s
    error: Int64s


SENT_COLUMNS = fields(SentColumns, "i8[:] " * 8)
"""What kernels that take them declare."""


def sent_of(matrix: Int64s) -> Records:
    """Rows by the names of their fields: a view."""
    return rows_of(SentRow, matrix)


def codes_of(block: Block) -> Rows:
    """`produce_partitions` of the Produces of a block that were read aside, as codes; topics are not resolved."""
    aside = block.done.aside
    out = np.empty((len(COLUMNS), len(aside.sent)), np.int64)
    write_columns(aside.sent, *block.keys, plain(block.done.request_first, np.int64), SentColumns(*out))
    texts = {"topic": [name for name, _ in aside.topics], "topic_id": [known for _, known in aside.topics]}
    return Rows.in_one(out, {name: texts.get(name, int) for name in COLUMNS})


@kernel("const i8[:,:] const i8[:] const i8[:] const i8[:] SENT_COLUMNS")
def write_columns(sent: Int64s, high: Int64s, n: Int64s, first: Int64s, out: SentColumns) -> None:
    """COLUMNS of rows into `out`; `high`, `n`, `first`: keys and instants, in nanoseconds, of exchanges."""
    for i in range(len(sent)):
        row = sent_at(sent, i)
        at = row.exchange
        out.high[i], out.n[i], out.time[i] = high[at], n[at], micros(first[at])
        out.topic[i] = out.topic_id[i] = row.topic
        out.partition[i], out.base_offset[i], out.error[i] = row.partition, row.base_offset, row.error

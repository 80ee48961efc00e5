"""The batches of record sets, from their headers alone.

`walk` hops over headers. More expensive work is in `verification`: `verify` computes checksums, `measure` decompresses;
both add to what `walk` found. Each fault of a batch is a bit in its row and becomes a row of `problems` through
`Batches.problems`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kdissect.kafka.recordsets import batch_columns, batch_kernels
from kdissect.kafka.recordsets import batch_layout as bl
from kdissect.kafka.recordsets.batch_columns import UNKNOWN
from kdissect.kafka.recordsets.batch_layout import FIELDS
from kdissect.problems import Kind

Bytes = npt.NDArray[np.uint8]
Int64s = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


class Batches:
    """The batches of some record sets. `rows` is an int64 matrix [n, WIDTH] (`batch_layout`), in order of the sets.

    `crc_ok` int8 [n]: 1, 0 or UNKNOWN; `uncompressed` int64 [n]: bytes of the records without compression, or UNKNOWN.
    `s` is the buffer that the rows point into: it must not change while its columns are still read. (No dataclass: with
    methods of their own those take milliseconds to make, at each start.)
    """

    __slots__ = ("crc_ok", "details", "rows", "s", "uncompressed")

    def __init__(self, s: Bytes, rows: Int64s) -> None:
        self.s = s
        self.rows = rows
        self.crc_ok: npt.NDArray[np.int8] = np.full(len(rows), UNKNOWN, np.int8)
        self.uncompressed: Int64s = np.full(len(rows), UNKNOWN, np.int64)
        self.details: dict[tuple[int, int], str] = {}
        """(row, problem bit) -> what exactly, where more is known than the problem's text."""

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def owner(self) -> Int64s:
        """For each row the index of its record set."""
        return self.rows[:, FIELDS.owner]

    @property
    def real(self) -> Int64s:
        """Indices of the rows that are batches: neither padding nor bytes that are none."""
        kind = self.rows[:, FIELDS.kind]
        return np.flatnonzero((kind != bl.PADDING) & (kind != bl.DAMAGED)).astype(np.int64)

    def flag(self, row: int, problem: int, detail: str = "") -> None:
        """Note a problem of a row."""
        self.rows[row, FIELDS.problems] |= problem
        if detail:
            self.details[row, problem] = detail

    def problems(self, partial_is_legal: Flags | None = None) -> Problems:
        """The faults, a row for each batch and kind, padding included.

        `partial_is_legal` (one flag a record set): its last batch may be cut by the sender, as in Fetch responses;
        without it every set may be.
        """
        bits = self.rows[:, FIELDS.problems]
        rows, kinds, texts = [], [], []
        for bit, text in enumerate(bl.PROBLEM_TEXTS):
            for row in np.flatnonzero(bits & (1 << bit)).tolist() if bits.any() else ():
                rows.append(row)
                kinds.append(int(Kind.TIMESTAMP if 1 << bit == bl.P_TIME else Kind.RECORDS))
                detail = self.details.get((row, 1 << bit))
                texts.append(f"{text}: {detail}" if detail else text)
        if partial_is_legal is not None and len(self):
            cut = (self.rows[:, FIELDS.cut] == bl.CUT_BY_SENDER) & (self.rows[:, FIELDS.kind] != bl.PADDING)
            for row in np.flatnonzero(cut & ~partial_is_legal[self.owner]).tolist():
                rows.append(row)
                kinds.append(int(Kind.RECORDS))
                texts.append("record set ends inside a batch")
        where = np.asarray(rows, np.int64)
        return Problems(where, self.owner[where], np.asarray(kinds, np.int8), texts, self.rows[where][:, FIELDS.wire])

    def table(self, columns: Sequence[str] | None = None, picked: Int64s | None = None) -> pa.RecordBatch:
        """The columns of `record_batches` which batches themselves know, of the rows in `real`, in order; or of those
        `picked`."""
        rows = self.real if picked is None else picked
        makers = batch_columns.columns(self.rows[rows], self.crc_ok[rows], self.uncompressed[rows])
        names = list(makers) if columns is None else [name for name in columns if name in makers]
        return pa.RecordBatch.from_arrays([makers[name]() for name in names], names=names)


class Problems:
    """Problems of batches: arrays of equal length. `rows`: rows of `Batches`; `owner`: their record sets; `kind`:
    `kdissect.problems.Kind`; `texts`: what is wrong; `bytes`: size of the batch on the wire."""

    def __init__(
        self, rows: Int64s, owner: Int64s, kind: npt.NDArray[np.int8], texts: list[str], bytes: Int64s
    ) -> None:
        self.rows = rows
        self.owner = owner
        self.kind = kind
        self.texts = texts
        self.bytes = bytes

    def __len__(self) -> int:
        return len(self.rows)

    def first(self, most: int) -> Problems:
        """At most so many of them."""
        if len(self) <= most:
            return self
        return Problems(self.rows[:most], self.owner[:most], self.kind[:most], self.texts[:most], self.bytes[:most])


def doubtful(s: Bytes, at: Int64s, size: Int64s, followed: bool = False) -> Int64s:
    """The record sets s[at[i] : at[i] + size[i]], all captured, that may have a fault as far as `walk` can see, in
    order. Where they are `followed` also those with batches of a producer with an id."""
    found = np.empty(len(at), np.bool_)
    at, size = np.ascontiguousarray(at, np.int64), np.ascontiguousarray(size, np.int64)
    batch_kernels.doubtful(s, at, size, followed, found)
    return np.flatnonzero(found).astype(np.int64)


def walk(s: Bytes, at: Int64s, size: Int64s, captured: Int64s | None = None) -> Batches:
    """Batches of the record sets s[at[i] : at[i] + size[i]] (uint8 buffer, int64 arrays), from their headers alone.

    `captured[i]` says how many bytes at the start of the set were captured (all, if not given): a batch that goes
    beyond is cut by the capture. Nothing raises; for any bytes, the sets are covered by rows from their beginning on.
    """
    at, size = np.ascontiguousarray(at, np.int64), np.ascontiguousarray(size, np.int64)
    there = size if captured is None else np.ascontiguousarray(captured, np.int64)
    count = batch_kernels.walk(s, at, size, there, np.empty((0, bl.WIDTH), np.int64))
    rows = np.empty((count, bl.WIDTH), np.int64)
    if count:
        batch_kernels.walk(s, at, size, there, rows)
    return Batches(s, rows)

"""Arrow columns as integer arrays, and back: what every analysis does before and after its kernels.

Columns may be plain or dictionary-encoded, chunked or not; a column that is missing counts as all null.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from kdissect.arrays.dictionaries import coded, unified_column
from kdissect.arrays.from_numpy import arrow_array

Int64s = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
N = TypeVar("N", bound=np.generic)
Scalar = Any
"""An integer or flag inside a kernel: Python's there, numpy's where it was read from an array."""

NULL_TIME = -(2**63)
"""No such instant (microseconds as int64)."""
MILLI = 1000
"""Microseconds in a millisecond."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
"""What instants are counted from; an instant that Arrow makes loads time zones."""


def whole(data: pa.Table | pa.RecordBatch | None, like: pa.Schema | None = None) -> pa.Table:
    """The data as a table; an empty one of that schema for None."""
    if data is None:
        return (like or pa.schema([])).empty_table()
    return pa.Table.from_batches([data]) if isinstance(data, pa.RecordBatch) else data


def joined(before: pa.Table, after: pa.Table) -> pa.Table:
    """Both, one behind the other. An empty table has no dictionaries, so its types may differ."""
    if not before.num_rows:
        return after
    return pa.concat_tables([before, after], promote_options="default") if after.num_rows else before


def distinct(values: npt.NDArray[N]) -> npt.NDArray[N]:
    """The different values of a vector, the different rows of a matrix, in order.

    numpy loads its masked arrays for this, which takes longer than to read a small capture, unless counts are asked
    for too."""
    found: npt.NDArray[N] = np.unique(values, axis=0, return_counts=True)[0]
    return found


def begins(sizes: Int64s) -> Int64s:
    """[n + 1]: where stretches of these sizes begin that stand behind one another, and where the last one ends."""
    found = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=found[1:])
    return found


def stretches(first: Int64s, sizes: Int64s) -> tuple[Int64s, Int64s]:
    """The numbers of stretches that begin at `first` and have these sizes, one stretch behind the other: which stretch
    each is of, and the numbers."""
    which = np.repeat(np.arange(len(sizes)), sizes)
    return which, first[which] + np.arange(len(which)) - begins(sizes)[which]


def one(table: pa.Table, name: str) -> pa.Array | None:
    """A column in one piece, None where the table has none of that name."""
    at = table.schema.get_field_index(name)
    if at < 0:
        return None
    column = table.column(at)
    if pa.types.is_dictionary(column.type) and column.num_chunks > 1:
        column = unified_column(column)
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def ints(table: pa.Table, name: str, null: int = -1) -> Int64s:
    """An integer, boolean or timestamp column (in its own unit) as int64; `null` where null or missing."""
    column = one(table, name)
    if column is None:
        return np.full(table.num_rows, null, np.int64)
    return numbers(column, null)


def numbers(column: pa.Array, null: int = -1) -> Int64s:
    """An integer, boolean or timestamp array as int64, `null` where null."""
    kind = column.type
    if pa.types.is_null(kind):
        return np.full(len(column), null, np.int64)
    if pa.types.is_boolean(kind):
        column = column.cast(pa.int8())
    elif pa.types.is_timestamp(kind):
        if kind.unit != "us":
            column = column.cast(pa.timestamp("us", tz=kind.tz), safe=False)
        column = column.view(pa.int64())
    missing = column.null_count
    if not missing:
        found: Int64s = column.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
        return found
    width = np.dtype(column.type.to_pandas_dtype())
    raw = np.frombuffer(column.buffers()[1], width, len(column) + column.offset)[column.offset :].astype(np.int64)
    raw[~valid(column)] = null
    return raw


def valid(column: pa.Array) -> Flags:
    """Where a column is not null."""
    if not column.null_count:
        return np.ones(len(column), np.bool_)
    flags: Flags = column.is_valid().to_numpy(zero_copy_only=False)
    return flags


def times(table: pa.Table, name: str) -> Int64s:
    """A timestamp column as microseconds, NULL_TIME where null."""
    return ints(table, name, NULL_TIME)


def earliest(instants: Int64s) -> int | None:
    """The least of these instants (NULL_TIME: unknown), None where none is known."""
    known = instants[instants != NULL_TIME]
    return int(known.min()) if len(known) else None


def latest(instants: Int64s) -> int | None:
    """The greatest of these instants (NULL_TIME: unknown), None where none is known."""
    known = instants[instants != NULL_TIME]
    return int(known.max()) if len(known) else None


def span(instants: Int64s) -> int:
    """From the earliest to the latest of these instants, in their unit; 0 where fewer than two are known."""
    first, last = earliest(instants), latest(instants)
    return 0 if first is None or last is None else last - first


def reals(table: pa.Table, name: str) -> npt.NDArray[np.float64]:
    """A number column as float64, NaN where null."""
    column = one(table, name)
    if column is None or pa.types.is_null(column.type):
        return np.full(table.num_rows, np.nan)
    if not pa.types.is_float64(column.type):
        column = column.cast(pa.float64())
    found: npt.NDArray[np.float64] = column.to_numpy(zero_copy_only=False)
    return found


def encoded(column: pa.Array) -> tuple[Int64s, list[Any]]:
    """A text column as codes into its distinct values; -1 where null."""
    if not pa.types.is_dictionary(column.type):
        column = pc.dictionary_encode(column)
    return numbers(column.indices), column.dictionary.to_pylist()


def equal(table: pa.Table, column: str, value: str) -> Flags:
    """Where a text column has this value, as flags; a table without the column has it nowhere."""
    found = one(table, column)
    if found is None or not len(found):
        return np.zeros(table.num_rows, np.bool_)
    codes, values = encoded(found)
    flags: Flags = np.append(np.array([text == value for text in values], np.bool_), False)[codes]
    return flags


class Growing:
    """Columns of int64 that are worked out once of each value of lists that grow: of a list that begins as one of the
    last few lists did, only the values behind are looked at.

    It does not keep the function that works them out: a method would keep its owner, who keeps this, until Python looks
    for cycles.
    """

    __slots__ = ("_known",)
    MOST = 4
    """Lists that are known."""

    def __init__(self) -> None:
        self._known: list[tuple[Sequence[Any], int, Int64s]] = []
        """Lists, how many values of them were looked at, and [columns, values + 1]."""

    def of(self, values: Sequence[Any], work: Callable[[Sequence[Any]], Int64s]) -> Int64s:
        """[columns, values + 1], -1 behind the values. `work` gives [columns, values] of some values."""
        count, found = 0, _and_none(work(()))
        for place, (before, looked_at, columns) in enumerate(self._known):
            if looked_at <= len(values) and (before is values or before[:looked_at] == values[:looked_at]):
                count, found = looked_at, columns
                del self._known[place]
                break
        if count < len(values):
            found = np.concatenate([found[:, :-1], _and_none(work(values[count:]))], axis=1)
        self._known.insert(0, (values, len(values), found))
        del self._known[self.MOST :]
        return found

    def forget(self) -> None:
        """Values have other columns from here on."""
        self._known.clear()


def _and_none(columns: Int64s) -> Int64s:
    return np.concatenate([columns, np.full((len(columns), 1), -1, np.int64)], axis=1)


class Coder:
    """Distinct texts with lasting codes, in order of first appearance."""

    __slots__ = ("_taken", "codes", "texts")

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.codes: dict[str, int] = {}
        self._taken = Growing()

    def code(self, text: str) -> int:
        """The code of a text, a new one for a new text."""
        found = self.codes.setdefault(text, len(self.texts))
        if found == len(self.texts):
            self.texts.append(text)
        return found

    def rename(self, old: str, new: str) -> tuple[int, int] | None:
        """Give the code of one text to another one. If that has a code of its own both keep theirs: returns the old
        text's and the new one's."""
        if old not in self.codes:
            return None
        if new in self.codes:
            return self.codes[old], self.codes[new]
        code = self.codes[new] = self.codes.pop(old)
        self.texts[code] = new
        self._taken.forget()
        return None

    def column(self, table: pa.Table, name: str) -> Int64s:
        """Codes of a text column; -1 where null or missing."""
        column = one(table, name)
        if column is None or pa.types.is_null(column.type):
            return np.full(table.num_rows, -1, np.int64)
        local, values = encoded(column)
        lasting = list(map(self.codes.get, values))
        if None in lasting:
            lasting = [-1 if text is None else self.code(str(text)) for text in values]
        return np.array([*lasting, -1], np.int64)[local]

    def taken_over(self, texts: Sequence[str | None]) -> Int64s:
        """The codes that these texts have here, -1 for None and behind them; the list may grow between two calls."""
        found: Int64s = self._taken.of(texts, self._codes_of)[0]
        return found

    def _codes_of(self, texts: Sequence[str | None]) -> Int64s:
        return np.array([[-1 if text is None else self.code(text) for text in texts]], np.int64)


PIECE = 1 << 14
"""Rows worked on at a time: what is made of them stays in the processor's cache, and its memory is used again."""


def matrix(
    table: pa.Table, width: int, columns: Callable[[pa.Table], Sequence[Int64s]], into: Int64s | None = None
) -> Int64s:
    """[n, width] of int64: `columns` makes them of a part of the table, as many as `width`."""
    rows = np.empty((table.num_rows, width), np.int64) if into is None else into
    for begin in range(0, len(rows), PIECE):
        piece = rows[begin : begin + PIECE]
        for at, column in enumerate(columns(table.slice(begin, PIECE))):
            piece[:, at] = column
    return rows


class Room:
    """Memory for rows [n, width] that wait while others come behind them: used again, and seldom moved."""

    def __init__(self, width: int) -> None:
        self._rows: Int64s = np.empty((0, width), np.int64)

    def behind(self, parts: Sequence[Int64s], more: int) -> Int64s:
        """The rows of these parts, with room for `more` behind them. All other arrays that were made here are gone."""
        rows, room = in_one_piece(parts), self._rows
        count = len(rows)
        begin = _place(rows, room) if rows.base is room else -1
        if begin < 0 or begin + count + more > len(room):
            if count + more > len(room):
                room = np.empty((2 * (count + more), room.shape[1]), np.int64)
            begin = 0
            room[:count] = rows
            self._rows = room
        return room[begin : begin + count + more]


def in_one_piece(parts: Sequence[Int64s]) -> Int64s:
    """Rows of matrices behind one another, at least one: a view where they lie so in memory, else a copy."""
    parts = [part for part in parts if len(part)] or list(parts[:1])
    first, memory = parts[0], parts[0].base
    if len(parts) == 1:
        return first
    if isinstance(memory, np.ndarray) and all(part.base is memory for part in parts):
        at = [_place(part, memory) for part in parts]
        if all(begin + len(part) == following for begin, part, following in zip(at, parts, at[1:], strict=False)):
            found: Int64s = memory[at[0] : at[-1] + len(parts[-1])]
            return found
    return np.concatenate(parts)


def _place(rows: Int64s, memory: npt.NDArray[Any]) -> int:
    """The row of a matrix that some of its rows begin with."""
    return int((rows.ctypes.data - memory.ctypes.data) // (memory.itemsize * memory.shape[1]))


def words(codes: npt.NDArray[Any], names: Sequence[str]) -> pa.Array:
    """A text column from codes (negative: null), dictionary-encoded."""
    return coded(codes.astype(np.int32), pa.array(names, pa.string()))


def optional(values: npt.NDArray[Any], kind: pa.DataType, null: int = -1) -> pa.Array:
    """An array of `kind`, null where the value is `null`."""
    missing = values == null
    made = arrow_array(np.where(missing, 0, values), mask=missing) if missing.any() else arrow_array(values)
    return made if made.type == kind else made.cast(kind, safe=False)


def instants(microseconds: Int64s) -> pa.Array:
    """Microseconds as timestamps in UTC, null where NULL_TIME."""
    return optional(microseconds, pa.int64(), NULL_TIME).cast(pa.timestamp("us", tz="UTC"))


def with_columns(table: pa.Table, columns: Mapping[str, pa.Array]) -> pa.Table:
    """The table with these columns in place of those of their names, new ones at the end."""
    for name, column in columns.items():
        at = table.schema.get_field_index(name)
        table = table.append_column(name, column) if at < 0 else table.set_column(at, name, column)
    return table

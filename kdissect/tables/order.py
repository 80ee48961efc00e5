"""The order of rows: the request's first time, then exchange id as text; rows of one exchange stay as they are.

Tables that are about something else have another key in their declaration, or none where they are made in order. Times
compare in microseconds, as they are shown, so that sorting a shown table gives the same order. Nulls come last.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from kdissect.arrays.arrow import Scalar
from kdissect.arrays.dictionaries import join_tables
from kdissect.arrays.from_numpy import arrow_array
from kdissect.arrays.rows import Rows
from kdissect.kernels.kernel import kernel, part
from kdissect.tables.declaration import SCHEMAS, TABLES
from kdissect.tables.declaration.model import BY_REQUEST, EXCHANGE_KEYS, TIME_KEY

POWERS = 10 ** np.arange(19, dtype=np.int64)


def sort_columns(name: str) -> tuple[str, ...]:
    """The columns by which rows of a table are ordered; needed by `order`, whatever else is asked for."""
    return TABLES[name].key


def order(name: str, table: pa.Table) -> pa.Table:
    """The table in the contract's order. Stable."""
    return order_rows(name, Rows.of(table)).table()


def order_rows(name: str, rows: Rows) -> Rows:
    """Rows of a table in the contract's order. Stable."""
    if rows.num_rows < 2:
        return rows
    if TABLES[name].key == BY_REQUEST and rows.has(TIME_KEY) and rows.has(EXCHANGE_KEYS[0]):
        found = by_request(rows.ints(TIME_KEY, NEVER), *(rows.ints(key) for key in EXCHANGE_KEYS))
        return rows if found is None else rows.take(found)
    return Rows.of(_order_table(name, rows.table()))


def _order_table(name: str, table: pa.Table) -> pa.Table:
    """Rows in the order of the columns in their table's key that they have."""
    present = table.schema.names
    keys = [key for key in sort_columns(name) if key in present]
    if not keys:
        return table
    first, *rest = keys
    times = table[first]
    if times.num_chunks == 1:
        times = times.chunk(0)
    if pa.types.is_timestamp(times.type):
        times = times.cast(pa.int64())
    if pa.types.is_integer(times.type):
        values = (times.fill_null(NEVER) if times.null_count else times).to_numpy()
        if (values[1:] >= values[:-1]).all() and _ascend(rest, table, values[1:] == values[:-1]):
            return table
        return table.take(arrow_array(_by_first(values, table.select(rest))))
    indices = pc.sort_indices(_plain(table.select(keys)), sort_keys=[(key, "ascending") for key in keys])
    return table.take(indices)


def order_parts(parts: Mapping[str, Sequence[pa.Table]], names: Iterable[str]) -> dict[str, pa.Table]:
    """Tables in the contract's order, each of its parts; those of `names` that have no parts have no rows."""
    made = {name: order(name, join_tables(pieces)) for name, pieces in parts.items() if pieces}
    return {name: made[name] if name in made else SCHEMAS[name].empty_table() for name in names} | made


NEVER = np.iinfo(np.int64).max
"""The time of rows without one."""
FIRST = np.iinfo(np.int64).min


LONG = 10**17
"""Ordinals from here on are not compared by `ascending`."""


@part
def _text(number: Scalar) -> tuple[Scalar, Scalar]:
    """A number below LONG as 18 digits of which it is the first ones, and how many it has: they compare as its text."""
    digits = np.int64(0)
    rest = number
    while rest > 0:
        digits += 1
        rest //= 10
    for _ in range(digits, 18):
        number *= 10
    return number, digits


@part
def stands_behind(
    before: Scalar, before_high: Scalar, before_n: Scalar, time: Scalar, high: Scalar, n: Scalar
) -> Scalar:  # fmt: skip
    """Whether the second of two rows stands behind the first, or is of the same exchange, for sure: by time and keys,
    in the order of `by_request`."""
    if time > before:
        return True
    one, other = before_high ^ FIRST, high ^ FIRST  # compare without a sign
    if time < before or one > other:
        return False
    if one < other or before_n == n:
        return True
    if (before_n < 0) != (n < 0):
        return n < 0
    a, b = before_n, n
    if a < 0:
        a, b = -1 - a, -1 - b
    return a < LONG and b < LONG and _text(a) <= _text(b)


@kernel("const i8[:] const i8[:] const i8[:] -> i8")
def ascending(times: npt.NDArray[np.int64], high: npt.NDArray[np.int64], n: npt.NDArray[np.int64]) -> Scalar:
    """Whether rows stand in the order of `by_request` for sure."""
    for i in range(1, times.size):
        if not stands_behind(times[i - 1], high[i - 1], n[i - 1], times[i], high[i], n[i]):
            return 0
    return 1


def by_request(times: npt.NDArray[np.int64], high: npt.NDArray[np.int64], n: npt.NDArray[np.int64]) -> Any:
    """int64 [rows]: the order of rows of exchanges by time and exchange id, the latter as numbers; None where they
    stand in it."""
    times, high, n = (np.ascontiguousarray(column, np.int64) for column in (times, high, n))
    if ascending(times, high, n):
        return None
    found = None if (times[1:] >= times[:-1]).all() else np.argsort(times, kind="stable")
    ordered = times if found is None else times[found]
    tied = np.flatnonzero(ordered[1:] == ordered[:-1])
    if len(tied):
        one, other = (tied, tied + 1) if found is None else (found[tied], found[tied + 1])
        crowded = ordered[tied[(high[one] != high[other]) | (n[one] != n[other])]]
        if len(crowded):
            found = np.arange(len(times)) if found is None else found
            places = np.flatnonzero(np.isin(ordered, crowded))
            among = found[places]
            # As text: an orphan's `r` stands behind digits, a number before those that it is the beginning of.
            number = np.where(n[among] < 0, -1 - n[among], n[among])
            digits = np.searchsorted(POWERS, number, side="right")
            text = number * POWERS[len(POWERS) - 1 - digits]
            keys = (digits, text, n[among] < 0, high[among].view(np.uint64), ordered[places])
            found[places] = among[np.lexsort(keys)]
    return found


def _ascend(names: list[str], table: pa.Table, tied: np.ndarray) -> bool:
    """Whether rows with the time of the row before them have its id, or one behind it, which is all that is left to
    compare."""
    if not tied.any():
        return True
    if len(names) != 1:
        return False
    ids = _plain_column(table[names[0]])
    return bool(pc.greater_equal(ids[1:], ids[:-1]).fill_null(False).to_numpy()[tied].all())


def _by_first(values: np.ndarray, columns: pa.Table) -> np.ndarray:
    """Indices by these values, and where they are equal by the columns of `columns`. Those are compared only there, and
    are put in order only where they differ: ids are long, and several exchanges of one time are rare."""
    found = np.argsort(values, kind="stable")
    ordered = values[found]
    same = np.flatnonzero(ordered[1:] == ordered[:-1])
    if not len(same):
        return found
    above, below = (_plain(columns.take(arrow_array(found[at]))) for at in (same, same + 1))
    differs = np.zeros(len(same), np.bool_)
    for one, other in zip(above.columns, below.columns, strict=True):
        differs |= pc.not_equal(one, other).fill_null(True).to_numpy()
    places = np.flatnonzero(np.isin(ordered, ordered[same[differs]]))
    if len(places):
        part = _plain(columns.take(arrow_array(found[places]))).append_column("value", arrow_array(ordered[places]))
        keys = [("value", "ascending"), *((name, "ascending") for name in columns.schema.names)]
        found[places] = found[places][pc.sort_indices(part, sort_keys=keys)]
    return found


def _plain(table: pa.Table) -> pa.Table:
    return pa.table({name: _plain_column(table[name]) for name in table.schema.names})


def _plain_column(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column

"""Rows in the contract's order that are more than memory holds: sorted parts on disk, merged when all are there.

Parts come nearly in order, for exchanges finish soon after they began. Each is sorted and cut into pieces, in the order
of their first rows; whatever precedes the first row of the next piece is final. So that a few early rows do not pull a
whole part into memory, the rows of a part that precede the last row of those before it are cut off into small pieces,
and so are rows without a time: what waits at any time is one piece that is in order, and one small piece of each part
that reaches back so far.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from kdissect.engine.bounds.spool import Place, Spool, together
from kdissect.tables.identity import dictionary
from kdissect.tables.nest import numbers
from kdissect.tables.order import order, sort_columns

PIECE = 1 << 14
"""Rows that are read back at a time; some 4 MB of the widest table."""
LATE_PIECE = 1 << 9
"""The same of rows that come late, and of those without a time, which may be of any part: of all parts of a capture of
8 GB of small frames at once some 70 MB."""
AT_ONCE = 1 << 15
"""Rows that are sorted at a time, at least."""

TEXTS = pa.dictionary(pa.int32(), pa.string())
"""The type of texts with a dictionary that may be long; those with shorter indices are not."""

Key = tuple[tuple[bool, Any], ...]


@dataclass(frozen=True, slots=True)
class _Piece:
    first: Key
    number: int
    place: Place


class Merge:
    """The rows of one table on their way to be ordered."""

    def __init__(self, name: str, spool: Spool) -> None:
        self.name = name
        self.rows = 0
        self.held = 0
        """The largest number of rows that waited in memory."""
        self._spool = spool
        self._pieces: list[_Piece] = []
        self._last: Key | None = None
        """The last key of the parts so far, those without a value in its first column left out."""

    def add(self, part: pa.Table) -> None:
        """Rows, resolved, in any order; those of an exchange in the order that they shall have."""
        if not part.num_rows:
            return
        self.rows += part.num_rows
        table = order(self.name, part)
        keys = _Keys(self.name, table)
        known = table.num_rows - keys.unknown
        late = 0 if self._last is None else keys.before(self._last, known)
        for begin, end, size in ((0, late, LATE_PIECE), (late, known, PIECE), (known, table.num_rows, LATE_PIECE)):
            for at in range(begin, end, size):
                rows = compact(table.slice(at, min(size, end - at)))
                self._pieces.append(_Piece(keys.at(at), len(self._pieces), self._spool.put(rows)))
        if known > late:
            self._last = keys.at(known - 1)

    def ordered(self) -> Iterator[pa.Table]:
        """All rows, in order, some at a time."""
        pieces = sorted(self._pieces, key=lambda piece: (piece.first, piece.number))
        waiting: list[pa.Table] = []
        fresh = last = 0
        for at, piece in enumerate(pieces):
            waiting.append(self._spool.get(piece.place))
            fresh += waiting[-1].num_rows
            last = max(last, piece.number)
            self.held = max(self.held, sum(part.num_rows for part in waiting))
            if at + 1 == len(pieces):
                break
            if fresh < AT_ONCE:
                continue
            table = self._sorted(waiting)
            following = pieces[at + 1]
            # Rows of one exchange are equal: those that came before the next piece are final too.
            done = _Keys(self.name, table).before(following.first, table.num_rows, last < following.number)
            if done:
                yield table.slice(0, done)
            # A copy: a slice would keep all of it in memory.
            waiting = [compact(table.take(pa.array(np.arange(done, table.num_rows))))] if done < table.num_rows else []
            fresh = 0
        if waiting:
            yield self._sorted(waiting)

    def _sorted(self, parts: list[pa.Table]) -> pa.Table:
        table = together(parts)
        assert table is not None
        return order(self.name, table)


class _Keys:
    """What the rows of a table in order are ordered by."""

    def __init__(self, name: str, table: pa.Table) -> None:
        self._columns = [table[column] for column in sort_columns(name) if column in table.column_names]

    @property
    def unknown(self) -> int:
        """Rows, the last ones, without a value in the first column."""
        return int(self._columns[0].null_count) if self._columns else 0

    def at(self, row: int) -> Key:
        """The key of a row; nulls come last."""
        return tuple(_comparable(column[row]) for column in self._columns)

    def before(self, key: Key, end: int, equal: bool = False) -> int:
        """How many of the first `end` rows come before this key; with `equal`, those that have it too."""
        low, high = 0, end
        while low < high:
            middle = (low + high) // 2
            here = self.at(middle)
            if here < key or (equal and here == key):
                low = middle + 1
            else:
                high = middle
        return low


def compact(table: pa.Table) -> pa.Table:
    """The table, its dictionaries without the values that no row has, where these may be most of them."""
    for at, column in enumerate(table.columns):
        if column.type == TEXTS and column.num_chunks == 1:
            chunk = column.chunk(0)
            if len(chunk.dictionary) > len(chunk):
                smaller = dictionary(numbers(chunk.indices, -1), chunk.dictionary)
                table = table.set_column(at, table.schema.field(at), smaller)
    return table


def _comparable(value: pa.Scalar) -> tuple[bool, Any]:
    if not value.is_valid:
        return True, 0
    return False, value.value if pa.types.is_timestamp(value.type) else value.as_py()

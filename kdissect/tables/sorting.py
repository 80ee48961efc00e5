"""Sorting and limits: rows in the order wanted, at most so many, in memory that depends on these alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from kdissect.problems import UsageError
from kdissect.tables.suggestion import near

if TYPE_CHECKING:
    import pyarrow as pa

HELD = 1 << 16
"""Rows held beyond the limit before the largest are picked out of them again."""


class Key(NamedTuple):
    """A column to order by. Null comes last either way, as in pandas."""

    column: str
    descending: bool


def sort_keys(names: Sequence[str] | None, schema: pa.Schema) -> list[Key]:
    """The columns to order by, `-` before a name for the largest first. Raises
    UsageError for one that is not there or has no order."""
    import pyarrow as pa

    keys = [Key(text.removeprefix("-"), text.startswith("-")) for text in names or ()]
    for key in keys:
        if key.column not in schema.names:
            raise UsageError(f"cannot sort by {key.column!r}: no such column{near(key.column, schema.names)}")
        if pa.types.is_nested(schema.field(key.column).type):
            raise UsageError(f"cannot sort by {key.column!r}: lists have no order")
    return keys


def ordered(
    schema: pa.Schema, batches: Iterable[pa.RecordBatch], keys: Sequence[Key], limit: int | None
) -> Iterator[pa.RecordBatch]:
    """Batches of `schema` in the order of the keys, equal rows as they came, at most `limit` rows. Without keys rows
    pass as they come; with keys and a limit no more than the limit and HELD rows are held."""
    import pyarrow as pa

    if not keys:
        left = limit
        for batch in batches:
            if left is None:
                yield batch
                continue
            if left:
                yield batch.slice(0, left)
            left -= min(left, batch.num_rows)
            if not left:
                return
        return
    held: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        held.append(batch)
        rows += batch.num_rows
        if limit is not None and rows > limit + HELD:
            held = _sorted(pa.Table.from_batches(held, schema), keys, limit).to_batches()
            rows = sum(one.num_rows for one in held)
    yield from _sorted(pa.Table.from_batches(held, schema), keys, limit).to_batches()


def arranged(table: pa.Table, sort: Sequence[str] | None, limit: int | None) -> pa.Table:
    """A table's rows in the order of `sort` (as in `sort_keys`), at most `limit`. Raises UsageError as that does."""
    import pyarrow as pa

    keys = sort_keys(sort, table.schema)
    return pa.Table.from_batches(ordered(table.schema, table.to_batches(), keys, limit), table.schema)


def _sorted(table: pa.Table, keys: Sequence[Key], limit: int | None) -> pa.Table:
    import pyarrow.compute as pc

    wanted = [(key.column, "descending" if key.descending else "ascending") for key in keys]
    order = pc.sort_indices(table, sort_keys=wanted)  # stable, null last
    return table.take(order if limit is None else order.slice(0, limit))

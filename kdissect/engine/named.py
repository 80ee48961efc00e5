"""The names in arguments of the Python interface: of columns, tables and groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kdissect.problems import UsageError
from kdissect.tables.declaration import columns_of


def list_names(names: str | Iterable[str]) -> list[str]:
    """The names as a list; a text is one name. Raises UsageError for what is none."""
    if isinstance(names, str):
        return [names]
    try:
        listed = list(names)
    except TypeError:
        raise UsageError(f"names are texts in a list, not {names!r}") from None
    for name in listed:
        if not isinstance(name, str):
            raise UsageError(f"a name is a text, not {name!r}")
    return listed


def choose_columns(table: str, columns: str | Iterable[str] | None) -> list[str] | None:
    """The names of columns of a table, in the order asked for; None for all. Raises UsageError for an unknown table or
    column, and for a column that is named twice: no table has two columns of one name."""
    if columns is None:
        columns_of(table)
        return None
    listed = columns_of(table, list_names(columns))
    for at, name in enumerate(listed):
        if name in listed[:at]:
            raise UsageError(f"column {name!r} of table {table!r} is named twice")
    return listed


def choose_columns_of_each(
    tables: str | Iterable[str] | Mapping[str, Sequence[str] | None],
) -> dict[str, list[str] | None]:
    """The columns of each table that is named; None for all of them. Raises UsageError as `choose_columns` does."""
    asked = tables if isinstance(tables, Mapping) else dict.fromkeys(list_names(tables))
    return {name: choose_columns(name, columns) for name, columns in asked.items()}

"""Makers, registered under the names of the declaration, and held against it when they are.

    @makes("fetches")                                  # By.BLOCK: a row maker
    def fetches(block): return columns, rows

    fills(By.FETCH_HOLDS, lambda: {"fetches": ["hold", ...]})  # any other: the columns that it fills, table by table

A column that is declared and filled by nobody, one that is filled and declared nowhere, and a message field that a
maker reads and no `reads` names are errors when makers are imported (`kdissect.tables.registered`); so are fields that
a column names and its maker does not read. What is installed was held against it when it was built.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING
from typing import Any

import numpy as np
import pyarrow as pa

from kdissect.kafka.completed import Completed, Connections
from kdissect.kernels.native import in_checkout
from kdissect.tables.declaration import TABLES
from kdissect.tables.declaration.model import By, DeclarationError, Gathering, Path, Reads
from kdissect.tables.identity import Directory
from kdissect.tables.nest import Int64s, Level
from kdissect.tables.table_block import Block, Column, Rows

Maker = Callable[[Block], Rows]
"""A block to rows of a table. Columns whose names begin with `_` are helpers, which no declaration has."""

PLACE = "kdissect/tables/declaration"
BLOCK_MAKERS: dict[str, Maker] = {}
"""By table."""
HELD = in_checkout()
"""Whether makers are held against the declaration: sources that may have changed."""
_filled: set[By] = set()


def makes(name: str) -> Callable[[Maker], Maker]:
    """Register the row maker of a table; `complete` tries it out."""

    def register(maker: Maker) -> Maker:
        BLOCK_MAKERS[name] = maker
        return maker

    return register


def fills(by: By, columns: Callable[[], Mapping[str, Iterable[str]]]) -> None:
    """Register a maker by all columns that it fills, by table. In a checkout raises DeclarationError where the
    declaration says otherwise."""
    _filled.add(by)
    if HELD:
        tables = columns()
        for name in tables:
            _check_declared(name, str(by))
        for name in TABLES:
            _same(by, name, tables.get(name, ()))


def complete() -> None:
    """Try all row makers on a block without exchanges. Raises DeclarationError where one does not do what its table's
    declaration says, and for tables that a module of `kdissect.tables` should make and none does."""
    for name, maker in BLOCK_MAKERS.items():
        _check_declared(name, f"{maker.__module__}.{maker.__name__}")
        probe = Probe()
        columns, _ = maker(probe)
        _same(By.BLOCK, name, columns)
        _reads(name, columns, probe)
    for name, table in TABLES.items():
        if table.made is By.BLOCK and name not in BLOCK_MAKERS:
            raise DeclarationError(f"table {name!r}: no row maker is registered (`@makes({name!r})`)")
        if not table.made.analysis and table.made is not By.BLOCK and table.made not in _filled:
            raise DeclarationError(f"table {name!r}: nobody fills it, no maker is registered as {table.made!r}")


def _check_declared(name: str, who: str) -> None:
    if name not in TABLES:
        raise DeclarationError(f"table {name!r}, which {who!r} makes, is not declared ({PLACE})")


def _same(by: By, name: str, columns: Iterable[str]) -> None:
    declared = TABLES[name].filled(by)
    made = {column for column in columns if not column.startswith("_")}
    for column in sorted(declared - made):
        raise DeclarationError(
            f"table {name!r}, column {column!r}: it is declared ({PLACE}) and nobody fills it: the {str(by)!r} of "
            f"{name!r} makes no such column"
        )
    for column in sorted(made - declared):
        raise DeclarationError(
            f"table {name!r}, column {column!r}: the {str(by)!r} of {name!r} fills it and it is not declared ({PLACE})"
        )


def _reads(name: str, columns: Mapping[str, Column], probe: Probe) -> None:
    """Hold what a maker reads against `reads`: what it read to know its rows, then column by column."""
    table = TABLES[name]
    rows = _paths(table.reads)
    _covered(name, None, probe.drain_files(), rows, table.reads)
    for column in table.columns:
        if column.name not in columns:
            continue
        columns[column.name]()
        read = probe.drain_files()
        _covered(name, column.name, read, rows | _paths(column.reads), table.reads)
        for one in sorted(_paths(column.reads)):
            if not any(_is(one, path) for path in read):
                raise DeclarationError(
                    f"{_place(name, column.name)}: `reads` names {_said(one)} ({PLACE}), and its maker does not read it"
                )


def _paths(reads: Reads) -> frozenset[Path]:
    return frozenset(one for one in reads if isinstance(one, Path))


def _covered(name: str, column: str | None, read: Iterable[Path], declared: frozenset[Path], rows: Reads) -> None:
    if any(isinstance(one, Gathering) for one in rows):
        return  # the fields of what is gathered are the gatherer's own affair
    for path in sorted(read):
        if not any(_is(one, path) for one in declared):
            raise DeclarationError(
                f"{_place(name, column)}: its maker reads {_said(path)}, and `reads` does not name it ({PLACE})"
            )


def _place(name: str, column: str | None) -> str:
    return f"table {name!r}, " + ("its rows" if column is None else f"column {column!r}")


def _said(path: Path) -> str:
    return f"{path.path!r} of the {('request', 'response')[path.side]} of API {path.key}"


def _is(declared: Path, read: Path) -> bool:
    """Reading `read` is reading the declared field, its size or its place, or a list that it lies in."""
    if declared[:2] != read[:2]:
        return False
    path = read.path.removesuffix("_bytes").removesuffix("_at")
    return declared.path in (read.path, path) or declared.path.startswith(f"{read.path}.")


class Probe(Block):
    """A block without exchanges that notes which fields of which messages are read."""

    def __init__(self) -> None:
        connections = nothing(Connections)
        super().__init__(nothing(Completed), Directory(connections))
        self._read: set[Path] = set()

    def drain_files(self) -> set[Path]:
        """What was read since the last call."""
        found = set(self._read)
        self._read.clear()
        return found

    def nest(self, key: int, side: int) -> Level:
        """Bodies of an API's side, none, which note what is read of them."""
        return _Noting(key, side, "", self._read)


class _Noting(Level):
    """A level without elements, at a path of a message."""

    def __init__(self, key: int, side: int, path: str, read: set[Path]) -> None:
        self._at = Path(key, side, path)
        self._read = read

    def _note(self, path: str = "") -> None:
        whole = ".".join(filter(None, (self._at.path, path)))
        if whole:
            self._read.add(self._at._replace(path=whole))

    @property
    def body(self) -> Int64s:  # type: ignore[override]
        """None: the list itself is read."""
        self._note()
        return np.zeros(0, np.int64)

    @property
    def parent(self) -> Int64s:  # type: ignore[override]
        """None: the list itself is read."""
        self._note()
        return np.zeros(0, np.int64)

    def get(self, path: str) -> pa.Array | None:
        """None: the column is read."""
        self._note(path)
        return None

    def each(self, path: str) -> Level:
        """The elements of a list, none."""
        return _Noting(self._at.key, self._at.side, ".".join(filter(None, (self._at.path, path))), self._read)

    @property
    def values(self) -> pa.Array | None:
        """None: the elements are read."""
        self._note()
        return None


def nothing(kind: type[Any]) -> Any:
    """A dataclass of arrays, lists and maps, all empty."""
    types = {"Ints": np.int64, "Flags": np.bool_}
    values: dict[str, Any] = {
        name: np.zeros(0, types[field.type]) for name, field in kind.__dataclass_fields__.items() if field.type in types
    }
    lists: dict[str, Any] = {
        name: []
        for name, field in kind.__dataclass_fields__.items()
        if name not in values and "list" in field.type and field.default_factory is MISSING
    }
    return kind(**values, **lists)

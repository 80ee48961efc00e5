"""DuckDB over the Parquet files of one folder. A query reaches no other file, no network, no extension and no setting,
and has bounded memory and time.

A query is text that somebody may have sent, or a model may have written. DuckDB by itself reads and writes every file
that its user may, and loads extensions from the network. Here external access is off before anything is asked, and the
configuration is locked (DuckDB's page "Securing DuckDB"). `files` allows files; extensions stay off.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from kdissect.installed_copy import install_command
from kdissect.problems import JobFailed, UsageError
from kdissect.tables.formats import write_parquet

if TYPE_CHECKING:
    import pyarrow as pa

PROCESS = 190_000_000
"""Bytes that Python, its libraries and what reading left behind take besides the query."""
LEAST = 64_000_000
"""Bytes that a query gets at least: below, DuckDB cannot sort a table in parts."""
A_THREAD = 60_000_000
"""Bytes of its memory that DuckDB wants for a thread: with less, sorts and joins cannot spill to disk."""
ROWS = 1 << 15
"""Rows of a batch of the result. DuckDB's own default, a million, takes a GB for wide tables."""
CLOSED = {
    "allow_community_extensions": "false",
    "allow_persistent_secrets": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
}
"""Settings of every database here. DuckDB has all of them since 1.1."""
PLANNED = ".planned.parquet"
"""End of the names of files without rows, over which queries are planned."""
WITHOUT_SCAN = ("EMPTY_RESULT", "COLUMN_DATA_SCAN")
"""Operators that may stand where a scan of rows would: DuckDB answers `count(*)` by a file's metadata."""
TABLE_PLACE = r'(?:\b(?:from|join|pivot|unpivot|pivot_wider|table|show|describe|summarize)\b|,)[\s("]*(?:main"?\.)?"?'
"""What stands before the name of a table."""


class SealedDatabase:
    """A database for one query over Parquet files in `folder`; to be used in a `with`.

    `memory`: bytes that the whole process may take, about; None leaves DuckDB its own limit, 80 % of the machine's.
    `seconds`: how long DuckDB may work, the time in which somebody reads its result not counted. `files`: the query may
    read and write files.

    Methods raise UsageError for what DuckDB says of a query, in one line, and JobFailed for a query that needs more
    time or memory.
    """

    def __init__(self, folder: Path, memory: int | None, seconds: float, files: bool = False) -> None:
        try:
            import duckdb
        except ImportError:
            raise UsageError(f"kdissect sql needs DuckDB: {install_command('sql')}") from None
        self._folder = folder
        self._files = files
        self._error = duckdb.Error
        self._seconds = self._left = seconds
        self._over = False
        limits = {"temp_directory": str(folder)}
        if memory is not None:
            share = max(LEAST, (memory - PROCESS) // 3)  # the rest: rows on their way to and from the query
            threads = max(1, min(os.cpu_count() or 1, share // A_THREAD))
            limits |= {"memory_limit": f"{share}B", "threads": str(threads)}
        self._connection = duckdb.connect(config={**CLOSED, **limits})
        self._views: dict[str, list[str]] = {}
        """By table, what its view selects from a file with all columns of its schema that the query reads."""

    def __enter__(self) -> SealedDatabase:
        settings = ["timezone = 'UTC'", "python_enable_replacements = false"]
        if not self._files:
            settings += [f"allowed_directories = [{_quoted(str(self._folder))}]", "enable_external_access = false"]
        for setting in (*settings, "lock_configuration = true"):
            self._connection.execute(f"set {setting}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()

    def tables_of(self, query: str, tables: Collection[str]) -> list[str]:
        """The names of tables that a query reads, in lower case and in order: those of `tables`, and those that DuckDB
        would not find. A query that DuckDB cannot bind without the tables gives those that it may read."""
        with self._working():
            kinds = [statement.type.name for statement in self._connection.extract_statements(query)]
        if "LOAD" in kinds:
            raise UsageError("SQL: a query installs and loads no extensions")
        try:
            with self._limited():
                found = self._connection.get_table_names(query)
        except self._error as error:
            standing = {name for name in tables if re.search(rf"{TABLE_PLACE}{name}\b", query, re.IGNORECASE)}
            if not standing:
                raise self._failure(error) from None
            return sorted(standing)
        if self._files:
            found = {name for name in found if name.lower() in tables or re.fullmatch(r"\w+", name)}
        return sorted({name.lower() if name.lower() in tables else name for name in found})

    def plan(
        self, query: str, schemas: Mapping[str, pa.Schema], null: Mapping[str, Collection[str]]
    ) -> dict[str, list[str]]:
        """By table, the columns that the query reads, at least one. `schemas`: of the tables that it names; `null`:
        columns of each that are not read, but null.

        DuckDB plans the query over files without rows, and its scans name their columns; a column of two tables is read
        of both. All columns are read for what is no single select, and where the plan has no scan because there are no
        rows.
        """
        with self._working():
            kinds = [statement.type.name for statement in self._connection.extract_statements(query)]
            for name, schema in schemas.items():
                path = self._folder / f"{name}{PLANNED}"
                write_parquet(schema, [], path)
                self._connection.execute(f"create view {name} as from read_parquet({_quoted(str(path))})")
            plan = self._connection.execute(f"explain (format json) {query}").fetchall() if kinds == ["SELECT"] else []
            leaves = [leaf for _, text in plan for leaf in _leaves(json.loads(text))]
            wide = not leaves or any(leaf["name"].strip() in WITHOUT_SCAN for leaf in leaves)
            words = set(re.findall(r"\w+", json.dumps([leaf.get("extra_info") for leaf in leaves])))
            read = {}
            for name, schema in schemas.items():
                wanted = [column for column in schema.names if column not in null[name]]
                read[name] = [column for column in wanted if wide or column in words] or wanted[:1]
                types = self._connection.execute(f"describe {name}").fetchall()
                self._views[name] = [
                    f'"{column}"'
                    if column in read[name]
                    else f'{"null" if column in null[name] else _not_read(column)}::{kind} as "{column}"'
                    for column, kind, *_ in types
                ]
        return read

    def show(self) -> None:
        """Make the files `NAME.parquet` of the folder the tables of `plan`. A column that is not in its file is an
        error for a query that looks at it."""
        with self._working():
            for name, columns in self._views.items():
                path = _quoted(str(self._folder / f"{name}.parquet"))
                self._connection.execute(
                    f"create or replace view {name} as select {', '.join(columns)} from read_parquet({path})"
                )

    def answer(self, query: str) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """The result of a query: its schema, in the types of `result_columns`, and its batches, once."""
        import pyarrow as pa

        from kdissect.cli.subcommands.result_columns import plain_schema

        with self._working():
            relation = self._connection.sql(query)
            if relation is None and self._files:  # a file was written; DuckDB 1 says no more of that
                return pa.schema([]), iter(())
            if relation is None:
                raise UsageError("SQL: this gives no rows; ask with select")
            # DuckDB 1 has the second name alone, and 2 calls it deprecated.
            read = getattr(relation, "to_arrow_reader", None) or relation.fetch_arrow_reader
            reader = read(ROWS)
        schema = plain_schema(reader.schema)
        return schema, self._batches(reader, schema)

    def _batches(self, reader: pa.RecordBatchReader, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The batches of a result, which may fail as late as here (a division, a cast)."""
        from kdissect.cli.subcommands.result_columns import plain_batch

        while True:
            with self._working():
                try:
                    batch = reader.read_next_batch()
                except StopIteration:
                    return
            yield plain_batch(batch, schema)

    @contextlib.contextmanager
    def _working(self) -> Iterator[None]:
        """DuckDB works on the query: within its time, and with its errors as ours."""
        try:
            with self._limited():
                yield
        except (self._error, OSError, UnicodeError) as error:  # Arrow's reader makes OSErrors of DuckDB's
            raise self._failure(error) from None
        except RuntimeError as error:  # what DuckDB makes of Ctrl-C
            if "interrupted" not in str(error):
                raise
            raise KeyboardInterrupt from None

    @contextlib.contextmanager
    def _limited(self) -> Iterator[None]:
        """Interrupt DuckDB when the query's time is over."""
        timer = threading.Timer(self._left, self._interrupt)
        timer.daemon = True
        began = time.monotonic()
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            self._left = max(0.0, self._left - (time.monotonic() - began))

    def _interrupt(self) -> None:
        self._over = True
        self._connection.interrupt()

    def _failure(self, error: Exception) -> UsageError | JobFailed:
        """The exception for what DuckDB said."""
        text = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        if self._over:
            return JobFailed(f"SQL: the query was stopped after {self._seconds:g} s; --time-limit 30m allows more")
        if "Out of Memory Error" in text:
            return JobFailed("SQL: the query needs more memory than there is; --max-memory 4GB allows more")
        if "Permission Error" in text:
            return UsageError(f"SQL: {text} (--allow-files lets a query read and write files)")
        return UsageError(f"SQL: {text}")


def _leaves(plan: Any) -> Iterator[dict[str, Any]]:
    """The operators of a plan, as DuckDB writes it in JSON, that read no other operator."""
    for node in plan if isinstance(plan, list) else [plan]:
        if node.get("children"):
            yield from _leaves(node["children"])
        else:
            yield node


def _not_read(column: str) -> str:
    """An expression that fails when it is evaluated."""
    return f"error({_quoted(f'column {column} was not read: kdissect took the query not to look at it')})"


def _quoted(text: str) -> str:
    """A text as SQL writes it."""
    return "'" + text.replace("'", "''") + "'"

"""`sql`: the tables of a capture to DuckDB. What a query names is read, in one pass; nothing else is."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kdissect.cli.opening import Capture, open_capture, small
from kdissect.cli.options import capture_arguments, output_options, selection_options, written_as
from kdissect.problems import UsageError

if TYPE_CHECKING:
    import pyarrow as pa

MISSING = "kdissect sql needs DuckDB: pip install 'kdissect[sql]'"


@click.command(short_help="SQL over the tables of a capture.")
@capture_arguments()
@selection_options
@output_options
def sql(
    captures: tuple[str, ...], demo: bool, form: str | None, csv_safe: bool, output: str | None, **settings: Any
) -> None:
    """Answer a query over the tables, the last argument: kdissect sql CAPTURE "select api, count(*) from exchanges
    group by api".

    Names of tables and columns are those of kdissect tables; SQL is DuckDB's. Small captures are held in memory,
    tables of large ones lie in temporary files meanwhile.
    """
    from kdissect.cli.printing import table_rows

    if not captures:
        raise click.UsageError('say what to ask: kdissect sql CAPTURE "select ..."')
    table_rows.refuse_binary(written_as(form, output), output)
    opened = open_capture(captures[:-1], demo=demo, **settings)
    opened.not_input(output)
    with answer(opened, captures[-1]) as (schema, batches):
        table_rows.write(schema, batches, written_as(form, output), output, csv_safe=csv_safe)


@contextlib.contextmanager
def answer(capture: Capture, query: str) -> Iterator[tuple[pa.Schema, Iterator[pa.RecordBatch]]]:
    """The result of a query, as batches that are valid inside the `with`. Raises UsageError for what DuckDB says of a
    query that it cannot run, and for tables that do not exist."""
    try:
        import duckdb
    except ImportError:
        raise UsageError(MISSING) from None
    import pyarrow as pa

    from kdissect.tables.declaration import SCHEMAS, TABLES
    from kdissect.tables.suggestion import near

    with contextlib.ExitStack() as stack:
        connection = stack.enter_context(duckdb.connect(config={"autoinstall_known_extensions": "false"}))
        try:
            connection.execute("set timezone = 'UTC'")
            named = sorted(connection.get_table_names(query))
            unknown = [name for name in named if name not in SCHEMAS]
            if unknown:
                raise UsageError(f"no table {unknown[0]!r}{near(unknown[0], SCHEMAS)}; kdissect tables lists them")
            columns = {
                name: list(SCHEMAS[name].names) if any(one in query for one in TABLES[name].costly) else None
                for name in named
            }
            if small(capture):
                for name, table in capture.tables(columns).items() if named else ():
                    connection.register(name, table)
            else:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kdissect-")))
                for name in named:
                    connection.register(name, _laid_aside(capture, name, columns[name], folder))
            relation = connection.sql(query)
            if relation is None:
                raise UsageError("SQL: this gives no rows; ask with select")
            reader = pa.RecordBatchReader.from_stream(relation)
        except duckdb.Error as error:
            raise UsageError(f"SQL: {_first(error)}") from None
        yield reader.schema, _guarded(reader, duckdb.Error)


def _laid_aside(capture: Capture, name: str, columns: list[str] | None, folder: Path) -> Any:
    """A table in a temporary file, so that memory stays flat."""
    from pyarrow import dataset

    from kdissect.tables.declaration import SCHEMAS
    from kdissect.tables.formats import write_parquet

    path = folder / f"{name}.parquet"
    write_parquet(SCHEMAS[name], capture.batches(name, columns), path)
    return dataset.dataset(path)


def _guarded(reader: Any, kind: type[Exception]) -> Iterator[pa.RecordBatch]:
    """The batches of a result, which may fail as late as here (a division, a cast)."""
    try:
        yield from reader
    except (kind, OSError) as error:
        raise UsageError(f"SQL: {_first(error)}") from None


def _first(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)

"""`sql`: a query over the tables of a capture. The columns that it reads are written to temporary Parquet files in one
pass, and DuckDB reads those: memory stays flat, and no table is cut."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kdissect.cli.opening import open_capture
from kdissect.cli.options import capture_arguments, output_options, seconds, selection_options, written_as
from kdissect.output import scratch
from kdissect.problems import JobFailed, UsageError

if TYPE_CHECKING:
    import pyarrow as pa

    from kdissect.engine.capture import Capture

TIME_LIMIT = "5m"
"""How long a query may take: enough to sort a hundred million rows, and soon enough for a query without an end."""


@click.command(short_help="SQL over the tables of a capture.")
@capture_arguments()
@selection_options
@click.option(
    "--allow-files",
    is_flag=True,
    help="Let the query read and write files: copy ... to, read_csv, attach. Not for queries of others.",
)
@click.option(
    "--time-limit",
    metavar="TIME",
    default=TIME_LIMIT,
    callback=seconds,
    help=f"Stop a query that takes longer ({TIME_LIMIT}); reading the capture does not count.",
)
@output_options
def sql(
    captures: tuple[str, ...], demo: bool, form: str | None, csv_safe: bool, output: str | None, allow_files: bool,
    time_limit: float, **settings: Any,
) -> None:  # fmt: skip
    """Answer a query over the tables, the last argument: kdissect sql CAPTURE "select api, count(*) from exchanges
    group by api".

    Names of tables and columns are those of kdissect tables; SQL is DuckDB's. The query sees these tables and nothing
    else: no files, no network, no extensions, unless --allow-files lets it read and write files. The tables lie in
    temporary files meanwhile. A query over a table that does not fit in memory and cannot be laid aside is refused.
    """
    from kdissect.cli.printing import table_rows

    if not captures:
        raise click.UsageError('say what to ask: kdissect sql CAPTURE "select ..."')
    table_rows.refuse_binary(written_as(form, output), output)
    opened = open_capture(captures[:-1], demo=demo, must_fit=True, **settings)
    opened.not_input(output)
    asked = answer(
        opened,
        captures[-1],
        memory=settings["memory"],
        seconds=time_limit,
        files=allow_files,
        verify=settings["verify"],
    )
    with scratch(), asked as (schema, batches):
        table_rows.write(schema, batches, written_as(form, output), output, csv_safe=csv_safe)


@contextlib.contextmanager
def answer(
    capture: Capture, query: str, *, memory: int | None, seconds: float, files: bool = False, verify: bool = False
) -> Iterator[tuple[pa.Schema, Iterator[pa.RecordBatch]]]:
    """The result of a query, as batches that are valid inside the `with`. `memory`, `seconds`, `files`: as in
    `SealedDatabase`. `verify`: the capture was opened so; columns that cost much are not null then.

    Raises UsageError, with DuckDB's words, for a query that it cannot run, and for tables that do not exist. Raises
    JobFailed for a query that takes too much time or memory and for a table that is not whole.
    """
    from kdissect.cli.subcommands.sealed_database import SealedDatabase
    from kdissect.engine.bounds.spare_memory import Spare
    from kdissect.tables.declaration import SCHEMAS, TABLES
    from kdissect.tables.suggestion import near

    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kdissect-")))
        database = stack.enter_context(SealedDatabase(folder, memory, seconds, files))
        names = database.tables_of(query, SCHEMAS)
        unknown = [name for name in names if name not in SCHEMAS]
        if unknown:
            raise UsageError(f"no table {unknown[0]!r}{near(unknown[0], SCHEMAS)}; kdissect tables lists them")
        named = {name for name in names if verify or any(column in query for column in TABLES[name].costly)}
        columns = database.plan(
            query,
            {name: SCHEMAS[name] for name in names},
            {name: frozenset() if name in named else TABLES[name].costly for name in names},
        )
        if columns:
            capture.save(folder, columns)
            Spare().give_back()  # what reading took is the query's now
        if capture.left_out:
            raise JobFailed(
                f"no answer from a part of a table: {capture.left_out[0]}; --max-memory 4GB allows more, --from and "
                "--to, --client and --topic read less"
            )
        database.show()
        yield database.answer(query)

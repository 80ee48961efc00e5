"""Every table into a Parquet file of its own, in memory that does not grow with the capture.

Rows go through two temporary files in the folder that is written to: as they were read, until every name is known, and
analysed, in parts, until all are there and can be put in order (`AnalysedRun.settled`, `Merge`). Held in memory is what
the engine and the analysis carry, a part of the rows, a row of each connection, what findings are looked for in, and of
each request of a share session some 150 bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa

from kdissect.analysis.findings import findings, limits
from kdissect.arrays.dictionaries import unified
from kdissect.engine.analysed_run import AnalysedRun
from kdissect.engine.saving.evidence_rows import Evidence
from kdissect.engine.saving.sorted_parts import Merge
from kdissect.engine.saving.spool import Spool
from kdissect.kafka.exchanges.completed import Quality
from kdissect.tables import formats
from kdissect.tables.builder import filtered, shown
from kdissect.tables.declaration import SCHEMAS, TABLES
from kdissect.tables.declaration.model import By
from kdissect.tables.order import sort_columns
from kdissect.tables.where import Filter

EVIDENCE = 250_000
"""Rows that findings are looked for in (exchanges in which something stands out, fetches and partitions), and
connections: some 50 MB. Of a larger capture findings are those of its beginning, and `capture_quality` says so."""
ROW_GROUP = 1 << 16
"""Rows of a Parquet row group: made plain at once, some 30 MB with all columns."""


def save(
    run: AnalysedRun, tables: Mapping[str, Sequence[str]], where: Mapping[str, Filter | None], folder: Path
) -> dict[str, int]:
    """Write the tables (name -> columns), rows for which the filters hold, as `folder/TABLE.parquet`; rows by table.

    The temporary files have no names and are gone afterwards, whatever happens. Raises OSError.
    """
    rows: dict[str, int] = {}
    with Spool(folder) as ordered, ExitStack() as files:
        merges = {
            name: Merge(name, ordered) for name in tables
            if (TABLES[name].made is By.NOTED or not TABLES[name].made.at_the_end) and sort_columns(name)
        }  # fmt: skip
        evidence = Evidence(EVIDENCE, run.books.settings.slow)
        with Spool(folder) as unresolved:
            for part in run.settled(unresolved):
                evidence.take(part)
                for name in merges.keys() & part.keys():
                    merges[name].add(_wanted(name, part[name], tables[name], where[name]))
        run.books.quality += _searched(run, evidence)
        made: dict[str, formats.ParquetFile] = {}
        for name, piece in run.books.pieces_at_the_end():
            if TABLES[name].made is By.NOTED:
                merges[name].add(_wanted(name, piece, tables[name], where[name]))
                continue
            table = run.builder.finished(name, [piece])
            evidence.add(name, table)
            if name in tables:
                if name not in made:
                    made[name] = files.enter_context(
                        formats.ParquetFile(folder / f"{name}.parquet", _schema(name, tables[name]))
                    )
                kept = run.builder.finished(name, [table], where[name], tables[name])
                for batch in kept.combine_chunks().to_batches():
                    made[name].write(batch)
        settings = run.books.settings
        found = findings(evidence.tables(settings.topics), limits(settings.slow))
        del evidence
        for name, columns in tables.items():
            if name in made:
                rows[name] = made[name].rows
                continue
            schema = _schema(name, columns)
            parts = merges[name].ordered() if name in merges else iter([found])
            rows[name] = formats.write_parquet(schema, _batches(parts, schema), folder / f"{name}.parquet")
    return rows


def in_order(
    run: AnalysedRun, name: str, columns: Sequence[str], where: Filter | None, folder: Path
) -> Iterator[pa.RecordBatch]:
    """The rows of one table that is made part by part, for which the filter holds, in the contract's order: as `table`
    gives them, in memory that does not grow. The temporary files lie in `folder`. Raises OSError."""
    with Spool(folder) as ordered:
        merge = Merge(name, ordered)
        with Spool(folder) as unresolved:
            for part in run.settled(unresolved):
                if name in part:
                    merge.add(_wanted(name, part[name], columns, where))
        yield from _batches(merge.ordered(), _schema(name, columns))


def _wanted(name: str, table: pa.Table, columns: Sequence[str], where: Filter | None) -> pa.Table:
    """The rows for which the filter holds, with these columns and those that they are ordered by."""
    if where is not None:
        table = filtered(name, table, where)
    kept = {*columns, *sort_columns(name)}
    table = table.select([column for column in table.column_names if column in kept])
    at = table.schema.get_field_index("exchange_id")
    if at >= 0 and pa.types.is_dictionary(table.schema.field(at).type):  # nearly every row has another one
        table = table.set_column(at, "exchange_id", table.column(at).cast(pa.string()))
    return table


def _schema(name: str, columns: Sequence[str]) -> pa.Schema:
    declared = SCHEMAS[name]
    return pa.schema([declared.field(column) for column in columns], metadata=declared.metadata)


def _batches(parts: Iterator[pa.Table], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of the parts, made plain a row group at a time."""
    for group in _groups(parts, ROW_GROUP):
        yield from shown(group, schema).combine_chunks().to_batches()


def _searched(run: AnalysedRun, evidence: Evidence) -> Iterator[Quality]:
    """What to say of findings that were looked for in the beginning only."""
    capture = run.books.captures[0].name
    if not evidence.whole:
        text = f"findings are those of the first {evidence.exchanges:,} exchanges"
        yield Quality(capture, None, "exchanges_searched", float(evidence.exchanges), text)
    if run.builder.sent_in_part:
        text = f"findings about producers are those of the first {evidence.most:,} batches, about"
        yield Quality(capture, None, "batches_searched", float(evidence.most), text)


def _groups(parts: Iterator[pa.Table], size: int) -> Iterator[pa.Table]:
    """The rows of the parts, `size` at a time, and what is left."""
    waiting: list[pa.Table] = []
    count = 0
    for part in parts:
        waiting.append(part)
        count += part.num_rows
        if count < size:
            continue
        table = unified(pa.concat_tables(waiting, promote_options="permissive"))
        for first in range(0, count - count % size, size):
            yield table.slice(first, size)
        count %= size
        waiting = [table.slice(table.num_rows - count)] if count else []
    if waiting:
        yield unified(pa.concat_tables(waiting, promote_options="permissive"))

"""Third stage: the analysis, broker by broker, and the findings.

Fetch sessions, holds and share sessions belong to a broker, whatever connections they were used over: all rows of a
broker come to one partition, with names resolved, and go through the engine's own analysis.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import pyarrow as pa

from kdissect.analysis.findings import findings, limits
from kdissect.analysis.stage import Stage
from kdissect.arrays.dictionaries import unified
from kdissect.spark.stages.decoding import SENT, message_kind
from kdissect.spark.stages.plan import Plan
from kdissect.spark.stages.resolving import Names
from kdissect.spark.stages.table_cells import PIECE_BYTES, cell, opened, rows
from kdissect.tables.builder import TableBuilder, shown
from kdissect.tables.declaration import SCHEMAS, TABLES
from kdissect.tables.declaration.model import By
from kdissect.tables.declaration.readers import FINDINGS
from kdissect.tables.order import order
from kdissect.tables.recording import producers_table

MADE = tuple(name for name, one in TABLES.items() if one.progressive)
"""Tables that come out of this stage, where the analysis takes part in them."""
FOUND_IN = tuple(name for name in FINDINGS.tables if name in MADE)
"""Tables that findings read as they come out of this stage."""
DECODED = tuple(SENT if TABLES[name].made is By.SENT else name for name in FINDINGS.tables if name not in MADE)
"""Staged tables that findings read as they were decoded."""


def asked(tables: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """What to ask of a broker's analysis so that these tables, and the findings if they are among them, can be made."""
    found = {name: list(columns) for name, columns in tables.items() if name != "findings"}
    if "findings" in tables:
        for name in FOUND_IN:
            more = set(FINDINGS.tables[name])
            if name == "exchanges":
                more.add("hold")
            found[name] = list(dict.fromkeys([*found.get(name, ()), *sorted(more)]))
    return found


def analyse(batches: Iterable[pa.RecordBatch], plan: Plan, names: Names) -> Iterator[pa.RecordBatch]:
    """Staged rows in order of broker (resolved) to staged rows of the tables in MADE."""
    builder = names.builder(plan)
    wanted = asked(plan.tables)
    current, parts = None, dict[str, list[pa.Table]]()
    for batch in batches:
        for i in range(batch.num_rows):
            broker, name, data = (batch.column(field)[i].as_py() for field in ("broker", "table", "data"))
            if broker != current:
                yield from _broker(builder, wanted, parts)
                current, parts = broker, {}
            parts.setdefault(name, []).append(opened(data))
    yield from _broker(builder, wanted, parts)


def _broker(
    builder: TableBuilder, wanted: Mapping[str, Sequence[str]], parts: Mapping[str, Sequence[pa.Table]]
) -> Iterator[pa.RecordBatch]:
    if not parts:
        return
    stage = Stage(wanted)
    tables: dict[str, pa.Table] = {}
    messages: dict[tuple[int, int], pa.Table] = {}
    for name in (name for name in stage.tables if name in builder.columns):
        tables[name] = builder.finished(name, [])
    if "api_versions" in tables:
        tables["api_versions"] = builder.offered.table(builder.brokers)
    for name, pieces in parts.items():
        whole = _joined([builder.resolve(name, piece) for piece in pieces])
        if name in SCHEMAS:
            tables[name] = order(name, whole)
        else:
            messages[message_kind(name)] = whole
    for name, table in stage.whole(tables, messages).items():
        if name in MADE:
            for begin, end in _cut(table):
                yield rows([(name, "", cell(table.slice(begin, end - begin)))])


def _joined(pieces: list[pa.Table]) -> pa.Table:
    return unified(pa.concat_tables(pieces, promote_options="none"))


def _cut(table: pa.Table) -> Iterator[tuple[int, int]]:
    """Row ranges of about PIECE_BYTES each."""
    if table.num_rows:
        step = max(1, table.num_rows * PIECE_BYTES // max(table.nbytes, 1))
        for begin in range(0, table.num_rows, step):
            yield begin, min(begin + step, table.num_rows)


def find(batches: Iterable[pa.RecordBatch], plan: Plan, names: Names) -> Iterator[pa.RecordBatch]:
    """Staged rows of the tables in FOUND_IN and DECODED, all of them, to rows of `findings`."""
    parts = _resolved(batches, plan, names)
    tables = {name: order(name, _joined(pieces)) for name, pieces in parts.items() if name != SENT}
    tables["producers"] = _producers(parts, names)
    schema = SCHEMAS["findings"].remove_metadata()
    yield from shown(findings(tables, limits(plan.settings.slow)), schema).select(plan.tables["findings"]).to_batches()


def follow(batches: Iterable[pa.RecordBatch], plan: Plan, names: Names) -> Iterator[pa.RecordBatch]:
    """Staged rows of SENT, all of them, to rows of `producers`."""
    made = _producers(_resolved(batches, plan, names), names)
    yield from shown(made, SCHEMAS["producers"].remove_metadata()).select(plan.tables["producers"]).to_batches()


def _producers(parts: Mapping[str, list[pa.Table]], names: Names) -> pa.Table:
    if not parts.get(SENT):
        return SCHEMAS["producers"].empty_table()
    return producers_table(_joined(parts[SENT]), names.topics)


def _resolved(batches: Iterable[pa.RecordBatch], plan: Plan, names: Names) -> dict[str, list[pa.Table]]:
    """Staged rows by table, with names resolved."""
    builder = names.builder(plan)
    parts: dict[str, list[pa.Table]] = {}
    for batch in batches:
        for i in range(batch.num_rows):
            name, data = batch.column("table")[i].as_py(), batch.column("data")[i].as_py()
            table = names.resolved(builder, name, opened(data))
            parts.setdefault(name, []).append(table)
    return parts

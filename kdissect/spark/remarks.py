"""Remarks: where the tables of a Spark job knowingly differ from those of the engine on one machine.

Each remark is a row of `problems` without a capture, and a line that the command says.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from kdissect.analysis.findings.evidence import instant
from kdissect.analysis.findings.phrases import many
from kdissect.problems import Kind
from kdissect.spark.cells.table_cells import read_cell
from kdissect.spark.schemas import spark_schema
from kdissect.spark.stages.plan import ENDS
from kdissect.tables.declaration import SCHEMAS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Remark(NamedTuple):
    """One row of `problems`."""

    kind: Kind
    where: str
    detail: str


def searched_in_spans(cuts: Sequence[int], cluster: str | None) -> Remark:
    """Findings (of a cluster, where there are others) are looked for in spans of time, cut at these instants (µs)."""
    of = "" if cluster is None else f" of cluster {cluster}"
    why = "there is more evidence than one task searches. Analyse a shorter span (--start, --end) for the rest."
    first = f"findings{of} about connections, groups and producers are those of what came before {instant(cuts[0])}"
    others = f"what requests alone show was looked for in {len(cuts) + 1} spans of time, each by itself"
    return Remark(Kind.BUFFER_LIMIT, "findings", f"{first}, and {others}: {why}")


def seen_twice(staged: DataFrame) -> Remark | None:
    """Connections that several captures seem to have, where captures are not held against each other; None for none.
    `staged`: staged rows of a plan that is `apart`."""
    schema = pa.schema([SCHEMAS["connections"].field(name) for name in ENDS])
    made = staged.where("table = 'connections'").mapInArrow(partial(_ends, schema=schema), spark_schema(schema))
    connections = made.where("is_kafka")
    one, other = connections.alias("one"), connections.alias("other")
    tuple_of = ["client_ip", "client_port", "broker_ip", "broker_port"]
    same = " and ".join(f"one.{name} = other.{name}" for name in tuple_of)
    at_once = "one.started_at <= other.ended_at and other.started_at <= one.ended_at"
    met = one.join(other).where(f"{same} and {at_once} and one.capture < other.capture")
    count = met.select(*(f"one.{name}" for name in (*tuple_of, "started_at"))).distinct().count()
    if not count:
        return None
    said = f"{many(count, 'connection')} seem to be in several captures (same addresses, ports and time)"
    why = "captures that only Spark can read are not held against each other, so exchanges may be counted twice"
    return Remark(Kind.CAPTURE, "captures", f"{said}: {why}. Mount the storage and name the mount to count them once.")


def _ends(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Staged rows of `connections` to these columns of theirs."""
    for batch in batches:
        for data in batch.column("data"):
            table = read_cell(data.as_py())
            columns = [table[field.name].cast(field.type).combine_chunks() for field in schema]
            yield from pa.table(columns, schema=schema.remove_metadata()).to_batches()


def rows_of(remarks: Sequence[Remark]) -> pa.Table:
    """Rows of `problems`."""
    made = [{"kind": one.kind.name.lower(), "where": one.where, "detail": one.detail} for one in remarks]
    return pa.Table.from_pylist(made, SCHEMAS["problems"])

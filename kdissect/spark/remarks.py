"""Remarks: where the tables of a Spark job knowingly differ from those of the engine on one machine.

Each remark is a row of `problems` without a capture, and a line that the command says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa

from kdissect.analysis.findings.evidence import instant
from kdissect.problems import Kind
from kdissect.tables.declaration import SCHEMAS


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


def rows_of(remarks: Sequence[Remark]) -> pa.Table:
    """Rows of `problems`."""
    made = [{"kind": one.kind.name.lower(), "where": one.where, "detail": one.detail} for one in remarks]
    return pa.Table.from_pylist(made, SCHEMAS["problems"])

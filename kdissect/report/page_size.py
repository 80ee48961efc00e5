"""A page of bounded size, for any capture: where names are very long, or lists very wide, less is shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from kdissect.report.figures import Figure, Report

MOST_BYTES = 1_500_000
"""Of the page: a mail and a ticket take it."""
LISTS = frozenset({
    "transactions", "failures", "network", "findings", "latency", "outliers", "session-clients", "evictors",
    "share-sessions", "versions", "offered", "clients", "brokers", "errors", "problems", "quality",
})  # fmt: skip
"""Figures whose rows are listed, those that matter most first: each stands in the page as it is and as data."""
CUT = "\u2026"


@dataclass(frozen=True, slots=True)
class Measure:
    """How much is shown: letters of a text, rows of a list, exchanges with their bytes."""

    letters: int
    rows: int
    exchanges: int


MEASURES = (
    Measure(200, 10_000, 60),
    Measure(200, 10_000, 20),
    Measure(100, 120, 20),
    Measure(60, 40, 6),
    Measure(40, 15, 0),
)
"""Tried one after the other where the whole page is too large."""


def fitted(report: Report, measure: Measure) -> Report:
    """The report with no more than that; figures say so."""
    figures = {name: _fitted(figure, measure) for name, figure in report.figures.items()}
    taken: Mapping[str, Any] = dict(list(report.bytes.items())[: measure.exchanges])
    return replace(report, figures=figures, bytes=taken)


def _fitted(figure: Figure, measure: Measure) -> Figure:
    table, note = figure.table, ""
    if figure.name in LISTS and table.num_rows > measure.rows:
        table, note = table.slice(0, measure.rows), f"The first {measure.rows:,} rows, to keep this file small."
    for at, column in enumerate(table.columns):
        if pa.types.is_list(column.type):
            column = pa.chunked_array([_join_texts(column)])
        if pa.types.is_string(column.type):
            short = pc.utf8_slice_codeunits(column, 0, measure.letters)
            column = pc.if_else(pc.equal(short, column), column, pc.binary_join_element_wise(short, CUT, ""))
        table = table.set_column(at, table.column_names[at], column)
    return replace(figure, table=table, left_out=" ".join(filter(None, (figure.left_out, note))))


def _join_texts(column: pa.ChunkedArray) -> pa.Array:
    texts = [None if value is None else ", ".join(map(str, value)) for value in column.to_pylist()]
    return pa.array(texts, pa.string())

"""The notebook view of captures and tables: small HTML, with everything escaped that comes from a capture."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa

from kdissect.capture import CaptureSet
from kdissect.escaping import visible
from kdissect.tables.declaration import SCHEMAS, TABLES

ROWS, COLUMNS = 8, 16
"""What is shown of a table: enough to see what it is; `.to_pandas()` shows more."""
CHARACTERS = 60
"""Longest text of a cell."""


def in_notebooks() -> None:
    """Where IPython runs, let it show Arrow tables as tables instead of pages of numbers; a formatter that the user has
    set for them stays."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if shell is None:
        return
    html = shell.display_formatter.formatters["text/html"]
    if pa.Table not in html.type_printers:
        html.for_type(pa.Table, table_html)


def capture_html(captures: Sequence[CaptureSet]) -> str:
    """The captures, and how to go on. Nothing is read."""
    names = "".join(f"<li><code>{_escape(visible(one.name))}</code>{_sized(one)}</li>" for one in captures)
    tables = ", ".join(f'<code title="one row per {_escape(TABLES[name].row)}">{name}</code>' for name in SCHEMAS)
    return (
        f"<div><p><b>kdissect.Capture</b></p><ul>{names}</ul>"
        f"<p>Tables for <code>.table(name)</code> and <code>.pandas(name)</code>: {tables}</p></div>"
    )


def table_html(table: pa.Table) -> str:
    """The first rows of an Arrow table."""
    shown, others = table.column_names[:COLUMNS], table.column_names[COLUMNS:]
    kinds = {field.name: str(field.type) for field in table.schema}
    head = "".join(f'<th title="{_escape(kinds[name])}">{_escape(name)}</th>' for name in shown)
    columns = [column.slice(0, ROWS).to_pylist() for column in table.columns[:COLUMNS]]
    rows = "".join(
        "<tr>" + "".join(f"<td>{_cell(value)}</td>" for value in row) + "</tr>" for row in zip(*columns, strict=True)
    )
    count = f"{table.num_rows:,} row{'' if table.num_rows == 1 else 's'} x {table.num_columns} columns"
    more = f"; not shown: {_escape(', '.join(others))}" if others else ""
    return (
        f'<div style="overflow-x: auto"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'
        f"<p>{count}{more}</p></div>"
    )


def _cell(value: Any) -> str:
    if value is None:
        return '<span style="opacity: 0.5">null</span>'
    if isinstance(value, float):
        return f"{value:,.3f}"
    text = value.strftime("%Y-%m-%d %H:%M:%S.%f") if isinstance(value, datetime) else str(value)
    text = visible(text)
    return _escape(text if len(text) <= CHARACTERS else text[: CHARACTERS - 1] + "…")


def _sized(capture: CaptureSet) -> str:
    """How many files and bytes a capture has, where that is known without reading it."""
    files = len(capture.members)
    several = f", {files} files" if files > 1 else ""
    return several + (f", {capture.size:,} bytes" if capture.size is not None else "")


def _escape(text: str) -> str:
    from html import escape  # with all of HTML's entities, which nothing else of a run needs

    return escape(text)

"""`slowest`, `errors`, `gaps`: the questions that come first when something is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from kdissect.cli.opening import open_capture
from kdissect.cli.options import (
    capture_arguments,
    order_options,
    output_options,
    selection_options,
    time_options,
    written_as,
)
from kdissect.cli.printing import terminal, words

if TYPE_CHECKING:
    import pyarrow as pa

    from kdissect.engine.capture import Capture

ROWS = 10
"""Rows on a terminal or in a pipe unless --limit says otherwise; data formats have all."""
NONE_SLOW = "No exchange that could be read took longer than its client had agreed to."
NO_ERRORS = "No answer that could be read has an error."


@click.command(short_help="The slowest exchanges, agreed waits left out.")
@capture_arguments()
@selection_options
@order_options
@output_options
@time_options
def slowest(captures: tuple[str, ...], demo: bool, **settings: Any) -> None:
    """Print the slowest exchanges, by the time beyond the wait that their clients had agreed to.

    A long poll that ran out, and a join that waited for its group, took as long as asked: they are not slow.
    """
    columns = [
        "exchange_id",
        "request_first_at",
        "api",
        "beyond_ms",
        "latency_ms",
        "hold",
        "client_id",
        "broker",
        "error",
    ]
    _answer(captures, demo, "slowest", columns, NONE_SLOW, **settings)


@click.command(short_help="Errors by code, API, client and topic.")
@capture_arguments()
@selection_options
@order_options
@output_options
@time_options
def errors(captures: tuple[str, ...], demo: bool, **settings: Any) -> None:
    """Print errors by code, API, client, broker and topic: how often, the first and the last of each."""
    columns = ["error", "count", "api", "client_id", "broker", "topic", "first_at", "last_at", "first_exchange_id"]
    _answer(captures, demo, "errors", columns, NO_ERRORS, **settings)


@click.command(short_help="The longest silences of clients, brokers, partitions.")
@capture_arguments()
@selection_options
@order_options
@output_options
@time_options
def gaps(captures: tuple[str, ...], demo: bool, **settings: Any) -> None:
    """Print the longest silences: of clients and brokers between two messages, of partitions between records.

    waiting counts requests that were open all the time: with 0 nothing was due.
    """
    columns = ["by", "subject", "silent_ms", "begin_at", "end_at", "waiting", "next_exchange_id"]
    _answer(captures, demo, "silences", columns, "No client or broker sent two messages in what was read.", **settings)


def _answer(
    captures: tuple[str, ...], demo: bool, question: str, columns: Sequence[str], nothing: str, *,
    sort: list[str] | None, limit: int | None, form: str | None, csv_safe: bool, output: str | None, local: bool,
    **settings: Any,
) -> None:  # fmt: skip
    """Ask `Capture.analysis` and print the table, or write its rows."""
    from kdissect.cli.analyses import cluster_column
    from kdissect.cli.printing import table_rows
    from kdissect.tables.sorting import arranged

    table_rows.refuse_binary(written_as(form, output), output)
    capture = open_capture(captures, demo=demo, **settings)
    capture.not_input(output)
    whole = getattr(capture.analysis, question)()
    table = arranged(whole, sort, limit)
    if form in (None, "table") and output is None:
        shown = table if limit is not None else table.slice(0, ROWS)
        more = 0 if limit else whole.num_rows - shown.num_rows
        columns = [*columns[:1], *cluster_column(whole), *columns[1:]]
        terminal.page(format_answer(shown, columns, nothing, more, terminal.row_width(), local=local))
    else:
        table_rows.write(table.schema, table.to_batches(), written_as(form, output), output, csv_safe=csv_safe)


def format_answer(
    table: pa.Table, columns: Sequence[str], nothing: str, more: int, width: int, *, local: bool = False
) -> list[Text]:
    """The rows as aligned text, the last columns left out first where the width is short; a sentence for no row."""
    from kdissect.cli.analyses import rows_of

    if not table.num_rows and not more:
        return [Text(nothing)]
    shown = [name for name in columns if table[name].null_count < table.num_rows]
    lines = (
        rows_of(table, shown, width, shown[:3:-1], local=local, short=terminal.short_rows()) if table.num_rows else []
    )
    return [*lines, *([Text(f"  {words.number_of(more, 'more row')}: --limit N", "dim")] if more else [])]


def print_slowest(capture: Capture, target: Sequence[str], width: int, *, local: bool) -> list[Text]:
    """The slowest exchanges of a capture with the command that shows the first of them."""
    table = capture.analysis.slowest().slice(0, ROWS)
    columns = ["exchange_id", "request_first_at", "api", "beyond_ms", "latency_ms", "client_id", "broker", "error"]
    lines = format_answer(table, columns, NONE_SLOW, 0, width, local=local)
    if table.num_rows:
        command = f"kdissect show {' '.join(target)} {table['exchange_id'][0].as_py()}"
        lines += [Text(), *(Text(line, "dim") for line in words.command_lines(command, width))]
    return lines

"""`traffic`: who writes and reads what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from kdissect.cli.opening import open_capture
from kdissect.cli.options import capture_arguments, order_options, output_options, selection_options, written_as
from kdissect.cli.printing import terminal, words
from kdissect.cli.printing.grid import Header, grid_by_cluster

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa

ROWS = 4096
"""Rows that are Python's values at a time."""


@click.command(short_help="Who writes and reads which partitions, how fast, how far behind.")
@capture_arguments()
@selection_options
@order_options
@output_options
def traffic(
    captures: tuple[str, ...], demo: bool, sort: list[str] | None, limit: int | None, form: str | None, csv_safe: bool,
    output: str | None, **settings: Any,
) -> None:  # fmt: skip
    """Print who writes and reads which topics and partitions: records, bytes, how fast, how far behind.

    behind is the lag of a reader's position (high watermark - fetch offset): at its first answer, at its last, and the
    most. Per topic: kdissect latency --by client,topic.
    """
    from kdissect.cli.printing import table_rows
    from kdissect.tables.sorting import arranged

    table_rows.refuse_binary(written_as(form, output), output)
    capture = open_capture(captures, demo=demo, **settings)
    capture.not_input(output)
    table = arranged(capture.analysis.topic_traffic(), sort, limit)
    if form in (None, "table") and output is None:
        terminal.page(lines(table, terminal.width()))
    else:
        table_rows.write(table.schema, table.to_batches(), written_as(form, output), output, csv_safe=csv_safe)


def lines(table: pa.Table, width: int) -> Iterator[Text]:
    """Rows of `topic_traffic` as aligned text: what is written, then what is read, each with its rate."""
    if not table.num_rows:
        yield Text("No client writes or reads in what was read.")
        return
    headers = [
        Header("Client", style="cyan"), Header("group", drop=4), Header("topic"), Header("partition", right=True),
        Header("written", right=True), Header("B/s", right=True, drop=5), Header("read", right=True),
        Header("B/s", right=True, drop=6), Header("behind", right=True, drop=2), Header("at first", right=True, drop=3),
        Header("most", right=True, drop=1),
    ]  # fmt: skip
    rows = (row for batch in table.to_batches(max_chunksize=ROWS) for row in batch.to_pylist())
    yield from grid_by_cluster(headers, map(_cells, rows), table["cluster"].to_pylist(), width)


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    seconds = (row["last_at"] - row["first_at"]).total_seconds() if row["last_at"] is not None else 0.0
    rates = [words.size(row[name] / seconds) if row[name] and seconds > 0 else ""
             for name in ("produced_bytes", "fetched_bytes")]  # fmt: skip
    records = ["" if row[name] is None else words.count(row[name]) for name in ("produced_records", "fetched_records")]
    lags = ["" if row[name] is None else words.count(row[name]) for name in ("last_lag", "first_lag", "max_lag")]
    return (row["client_id"] or "-", row["group_id"] or "", row["topic"] or row["topic_id"] or "-",
            str(row["partition"]), records[0], rates[0], records[1], rates[1], *lags)  # fmt: skip

"""`whatif`: what other settings of clients would have meant."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from kdissect.cli.opening import open_capture
from kdissect.cli.options import capture_arguments, seconds, selection_options, size
from kdissect.cli.printing import terminal, words
from kdissect.cli.printing.grid import Header, grid_by_cluster
from kdissect.escaping import visible

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

BATCH_SIZE = 16384
"""Kafka's default batch.size."""
ROWS = 12
"""Clients of a block unless --top says otherwise."""


@click.command(short_help="What other waits, sizes and lingers would have meant.")
@capture_arguments()
@selection_options
@click.option("--max-wait", metavar="TIME", callback=seconds, help="fetch.max.wait.ms of consumers.")
@click.option("--min-bytes", metavar="SIZE", callback=size, help="fetch.min.bytes of consumers.")
@click.option("--linger", metavar="TIME", callback=seconds, help="linger.ms of producers.")
@click.option("--batch-size", metavar="SIZE", callback=size, help="batch.size of producers, with --linger (16384).")
@click.option("--top", type=click.IntRange(0), default=ROWS, metavar="N", help="Clients that are listed (12).")
def whatif(
    captures: tuple[str, ...], demo: bool, max_wait: float | None, min_bytes: int | None, linger: float | None,
    batch_size: int | None, top: int, **settings: Any,
) -> None:  # fmt: skip
    """Print what other settings would have meant for the traffic of a capture.

    With --max-wait and --min-bytes it prints how many fetches and empty answers less there would be, and how much
    later records would have come. With --linger and --batch-size it prints batches that would have been one, and how
    much later they would have been sent. The page docs/settings.md has the limits of such a replay. Session slots:
    kdissect sessions --slots N.
    """
    fetching = max_wait is not None or min_bytes is not None
    if not fetching and linger is None:
        raise click.UsageError("say which settings: --max-wait or --min-bytes, or --linger")
    capture = open_capture(captures, demo=demo, **settings)
    blocks = []
    if fetching:
        wait = None if max_wait is None else round(max_wait * 1000)
        blocks.append(fetched(capture.analysis.with_fetching(wait, min_bytes).to_pylist(), terminal.width(), top))
    if linger is not None:
        most = BATCH_SIZE if batch_size is None else batch_size
        blocks.append(batched(capture.analysis.with_batching(linger * 1000, most).to_pylist(), terminal.width(), top))
    terminal.page([line for i, block in enumerate(blocks) for line in ([Text()] if i else []) + block])


def fetched(rows: Sequence[Mapping[str, Any]], width: int, top: int) -> list[Text]:
    """Rows of `with_fetching` as aligned text."""
    if not rows:
        return [Text("No consumer's fetch that was answered in what was read.")]
    total = {name: sum(row[name] for row in rows) for name in ("fetches", "fetches_then", "empty", "empty_then")}
    head = (
        f"{words.number_of(total['fetches_then'], 'fetch', 'fetches')} instead of {words.count(total['fetches'])}, "
        f"{words.count(total['empty_then'])} of them empty instead of {words.count(total['empty'])}."
    )
    headers = [
        Header("Client", style="cyan"), Header("broker"), Header("max wait", right=True, drop=2),
        Header("min bytes", right=True, drop=1), Header("fetches", right=True), Header("then", right=True),
        Header("empty", right=True), Header("then", right=True), Header("later p50", right=True),
        Header("max", right=True),
    ]  # fmt: skip
    cells = [
        [_client(row), visible(row["broker"] or words.UNKNOWN), words.milliseconds(float(row["max_wait_ms"])),
         words.size(row["min_bytes"]),
         *(words.count(row[name]) for name in ("fetches", "fetches_then", "empty", "empty_then")),
         *_later_quantiles(row)]
        for row in rows[:top]
    ]  # fmt: skip
    return [Text(head, "bold"), *_grid(headers, cells, rows, width), *_more(len(rows) - top)]


def batched(rows: Sequence[Mapping[str, Any]], width: int, top: int) -> list[Text]:
    """Rows of `with_batching` as aligned text."""
    if not rows:
        return [Text("No batch that a producer sent in what was read.")]
    total = {name: sum(row[name] for row in rows) for name in ("batches", "batches_then")}
    head = f"{words.number_of(total['batches_then'], 'batch', 'batches')} instead of {words.count(total['batches'])}."
    headers = [
        Header("Client", style="cyan"), Header("broker"), Header("records", right=True, drop=2),
        Header("batches", right=True), Header("then", right=True), Header("one by one", right=True, drop=1),
        Header("later p50", right=True), Header("max", right=True),
    ]  # fmt: skip
    cells = [
        [_client(row), visible(row["broker"] or words.UNKNOWN),
         words.UNKNOWN if row["records"] is None else words.count(row["records"]),
         *(words.count(row[name]) for name in ("batches", "batches_then")),
         words.count(row["one_by_one"]) if row["one_by_one"] else "", *_later_quantiles(row)]
        for row in rows[:top]
    ]  # fmt: skip
    return [Text(head, "bold"), *_grid(headers, cells, rows, width), *_more(len(rows) - top)]


def _grid(
    headers: list[Header], cells: list[list[str]], rows: Sequence[Mapping[str, Any]], width: int
) -> Iterator[Text]:
    """The cells of the first rows, with the clusters that these rows are of."""
    return grid_by_cluster(headers, cells, [row["cluster"] for row in rows[: len(cells)]], width)


def _client(row: Mapping[str, Any]) -> str:
    return "(none)" if row["client_id"] is None else visible(row["client_id"]) or '""'


def _later_quantiles(row: Mapping[str, Any]) -> list[str]:
    return ["" if row[name] is None else words.milliseconds(row[name]) for name in ("later_p50_ms", "later_max_ms")]


def _more(count: int) -> list[Text]:
    return [Text(f"  {words.count(count)} more clients: --top N", "dim")] if count > 0 else []

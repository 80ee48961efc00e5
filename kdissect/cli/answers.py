"""Answers of the commands about an open capture: the first screen, tables, messages, Parquet, one exchange."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kdissect.cli.opening import STDIN
from kdissect.cli.options import EXCHANGE_FORMATS, written_as
from kdissect.cli.printing import terminal
from kdissect.cli.printing.words import number_of, size
from kdissect.output import whole_directory
from kdissect.problems import UsageError

if TYPE_CHECKING:
    from rich.text import Text

    from kdissect.cli.following import Follower
    from kdissect.engine.capture import Capture


def first_screen(
    capture: Capture,
    target: Sequence[str],
    *,
    by: str,
    top: int | None,
    local: bool,
    filtered: bool = False,
    follower: Follower | None = None,
) -> None:
    """Print the first screen. `target` names the captures in the commands that it proposes. `filtered`: clients,
    brokers, topics or a time were asked for. `follower`: the capture is followed."""
    from kdissect.cli.printing import screen

    summary = capture.summary(by=by)

    def show() -> None:
        plain = terminal.ascii_only()
        lines = screen.render(summary, target, terminal.width(), top=top, local=local, filtered=filtered, plain=plain)
        if follower is None:
            terminal.page(lines)
        else:
            _print(lines)

    if follower is not None:
        follower.screen(show)
        return
    show()


def table_columns(
    table: str, selected: Sequence[str] | None, form: str, output: str | None, where: str | None = None,
    sort: Sequence[str] | None = None,
) -> list[str]:  # fmt: skip
    """The columns to print of a table; `where` and `sort` are the question, whose columns a terminal shows. Raises
    UsageError for an unknown table or column, and for a column that is named twice."""
    from kdissect.cli.printing import table_rows
    from kdissect.tables import declaration

    table_rows.refuse_binary(form, output)
    known = declaration.columns_of(table, selected)
    if form in EXCHANGE_FORMATS:
        from kdissect.tables import exchange_formats

        return exchange_formats.columns_for(form, known, selected)
    return table_rows.choose(table, known, selected, form, output, where, sort)


def print_table(
    capture: Capture, table: str, columns: Sequence[str], where: str | None, form: str, output: str | None,
    small: bool, by_name: bool = True, reveal: bool = False, growing: bool = False, sort: Sequence[str] | None = None,
    limit: int | None = None, csv_safe: bool = False,
) -> None:  # fmt: skip
    """Print a table, or write it to a file: in the contract's order where the input is `small`, as read otherwise.

    Some columns cost more than others and are computed where the caller named columns (`by_name`). `reveal`: keys,
    values and headers of records are shown. `growing`: rows are written as soon as they are known, as a capture is
    followed. `sort`, `limit`: as in `ordering`.
    """
    import pyarrow as pa

    from kdissect.cli.printing import table_rows
    from kdissect.tables.declaration import SCHEMAS
    from kdissect.tables.sorting import ordered, sort_keys

    capture.not_input(output)
    keys = sort_keys(sort, SCHEMAS[table])
    if growing and keys:
        raise UsageError("--sort needs all rows, which a capture that is followed never has")
    read = [*columns, *dict.fromkeys(key.column for key in keys if key.column not in columns)]
    schema = pa.schema([SCHEMAS[table].field(column) for column in read])
    wanted = read if by_name or len(columns) < len(SCHEMAS[table]) else None
    if small and not growing:
        batches = capture.ordered(table, columns=wanted, where=where, reveal=reveal)
    else:
        batches = capture.batches(table, columns=wanted, where=where, reveal=reveal)
    if keys or limit is not None:
        batches = (batch.select(columns) for batch in ordered(schema, (b.select(read) for b in batches), keys, limit))
    shown = pa.schema([SCHEMAS[table].field(column) for column in columns])
    table_rows.write(shown, batches, form, output, growing, csv_safe)


def narrowed(
    table: str,
    where: str | None,
    partitions: Sequence[int],
    offsets: tuple[int | None, int | None] | None,
) -> str | None:
    """The filter with partitions and a range of offsets, both ends included, added to it. Batches are kept that
    reach into the range. Raises UsageError where the table has no such columns."""
    from kdissect.tables.declaration import SCHEMAS

    names = set(SCHEMAS[table].names)
    first, last = ("base_offset", "last_offset") if "base_offset" in names else ("offset", "offset")
    parts: list[str] = []
    for given, column, option in (
        (partitions, "partition", "partition"),
        (offsets, last, "offset"),
    ):
        if given and (column not in names or (option == "offset" and table not in ("records", "record_batches"))):
            raise UsageError(f"--{option} does not go with --table {table}; --table records has topics and offsets")
    if partitions:
        parts.append(f"partition in ({', '.join(str(number) for number in partitions)})")
    if offsets is not None:
        parts += [f"{last} >= {offsets[0]}"] * (offsets[0] is not None)
        parts += [f"{first} <= {offsets[1]}"] * (offsets[1] is not None)
    if where is not None:
        parts.insert(0, f"({where})" if parts else where)
    return " and ".join(parts) or None


def message_name(text: str) -> tuple[str, str]:
    """`Fetch.response` as (API, direction). Raises UsageError."""
    api, _, direction = text.rpartition(".")
    if not api or direction not in ("request", "response"):
        raise UsageError(f"{text!r} names no messages: say API.request or API.response, such as Fetch.response")
    return api, direction


def print_messages(
    capture: Capture, api: str, direction: str, form: str, output: str | None, growing: bool = False,
    csv_safe: bool = False,
) -> None:  # fmt: skip
    """Print all messages of one API and direction, a row each."""
    from kdissect.cli.printing import table_rows

    table_rows.refuse_binary(form, output)
    capture.not_input(output)
    batches = capture.message_batches(api, direction)
    first = next(batches)
    table_rows.write(first.schema, itertools.chain([first], batches), form, output, growing, csv_safe)


def save(capture: Capture, output: str) -> None:
    """Write every table as Parquet into a directory and say so."""
    if Path(output).suffix and not output.endswith("/") and not Path(output).is_dir():
        raise UsageError(f"-o {output}: without --table or --messages, -o names a directory; did you mean {output}/ ?")
    with whole_directory(output) as aside:
        written = capture.save(aside)
    filled = sum(1 for count in written.values() if count)
    terminal.say(
        f"{number_of(sum(written.values()), 'row')} in {number_of(len(written), 'table')} ({filled} with rows) "
        f"written to {output.rstrip('/')}/"
    )


def write_report(capture: Capture, path: str, captures: Sequence[str]) -> None:
    """Write the HTML report and say so. `captures`: how the commands in it name them."""
    standard = path == STDIN
    if standard:
        terminal.refuse_binary("the report")
    written = capture.report(sys.stdout.buffer if standard else path, named=" ".join(captures))
    terminal.say(f"the report ({size(written)}) written to {'standard output' if standard else path}")


def show_exchange(
    capture: Capture, exchange_id: str | None, frame: int | None, *, local: bool, reveal: bool = False
) -> None:
    """Print one exchange byte by byte; a frame may complete several."""
    for i, shown in enumerate(capture.show(exchange_id=exchange_id, frame=frame, reveal=reveal)):
        if i:
            sys.stdout.write("\n")
        from kdissect.cli.printing import tree

        terminal.page(tree.render(shown, terminal.width() if sys.stdout.isatty() else 1000, local=local))


def print_sessions(capture: Capture, top: int | None, sort: Sequence[str] | None = None) -> None:
    """Print what happened to fetch and share sessions, the clients that create them in the order of `sort`."""
    from kdissect.cli import analyses
    from kdissect.tables.sorting import arranged

    tables = dict(capture.analysis.sessions(every=None))
    tables["creators"] = arranged(tables["creators"], sort, None)
    terminal.page(analyses.sessions(tables, terminal.width(), top=top, plain=terminal.ascii_only()))


def print_slots(capture: Capture, slots: int, top: int | None) -> None:
    """Print what so many session slots would have meant."""
    from kdissect.cli import analyses

    terminal.page(analyses.slots(capture.analysis.with_slots(slots), slots, terminal.width(), top))


def print_timeline(capture: Capture, target: Sequence[str], local: bool) -> None:
    """Print the account: incidents in order of time."""
    from kdissect.cli.printing.accounts import timeline

    _print(timeline(capture.table("findings").to_pylist(), target, terminal.width(), local))


def print_latency(
    capture: Capture, of: str, by: Sequence[str] | None, every: float | None, where: str | None, form: str | None,
    output: str | None, local: bool, sort: Sequence[str] | None = None, limit: int | None = None,
    csv_safe: bool = False,
) -> None:  # fmt: skip
    """Print latencies by group as text, or write them with all their columns. `of`: exchanges or deliveries."""
    from kdissect.analysis.deliveries import delivery_latency
    from kdissect.analysis.latency import checked
    from kdissect.cli import analyses
    from kdissect.cli.printing import table_rows
    from kdissect.tables.sorting import arranged

    deliveries = of == "deliveries"
    by = by or (delivery_latency.USUAL if deliveries else ["api"])
    columns = delivery_latency.checked(by, every) if deliveries else checked(by, every)
    table_rows.refuse_binary(written_as(form, output), output)
    capture.not_input(output)
    view = capture.analysis
    table = view.delivery_latency(by, every, where) if deliveries else view.latency(by, every, where)
    table = arranged(table, sort, limit)
    if form in (None, "table") and output is None:
        printed = analyses.delivery_latency if deliveries else analyses.latency
        terminal.page(printed(table, columns, terminal.row_width(), local=local))
    else:
        table_rows.write(table.schema, table.to_batches(), written_as(form, output), output, csv_safe=csv_safe)


def print_budget(
    capture: Capture, by: Sequence[str], every: float | None, span: tuple[str | None, str | None], form: str | None,
    output: str | None, local: bool, csv_safe: bool = False,
) -> None:  # fmt: skip
    """Print where the time went as text, or write it."""
    from kdissect.cli import analyses
    from kdissect.cli.printing import table_rows

    table_rows.refuse_binary(written_as(form, output), output)
    capture.not_input(output)
    table = capture.analysis.budget(by, every, *span)
    if form in (None, "table") and output is None:
        _print(analyses.budget(table, terminal.row_width(), several=every is not None, local=local))
    else:
        table_rows.write(table.schema, table.to_batches(), written_as(form, output), output, csv_safe=csv_safe)


def print_diff(a: Capture, b: Capture, by: Sequence[str], top: int | None, sort: Sequence[str] | None = None) -> None:
    """Print how two captures differ, latencies in the order of `sort`."""
    from kdissect.analysis.latency import checked
    from kdissect.cli import analyses
    from kdissect.tables.sorting import arranged

    columns = checked(by)
    tables = dict(a.analysis.diff(b, by))
    tables["latency"] = arranged(tables["latency"], sort, None)
    terminal.page(analyses.diff(tables, columns, terminal.width(), top=top))


def _print(lines: Iterable[Text]) -> None:
    out = terminal.console()
    for line in lines:
        out.print(line)

"""Rows of a table on standard output or in a file: aligned text here, the data formats by `kdissect.tables`.

On a terminal, the text form shows the telling columns of a table that fit its width; piped, asked for by --columns, or
in any other format, all of them. Rows are written as they are read, so that `| head` ends early and memory stays flat.
"""

from __future__ import annotations

import codecs
import contextlib
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import IO, TYPE_CHECKING, BinaryIO, cast

from kdissect.cli.printing import terminal, words
from kdissect.cli.printing.grid import GAP, fit, pad
from kdissect.escaping import formula_safe, visible, visible_column
from kdissect.output import growing_file, whole_file

if TYPE_CHECKING:
    import pyarrow as pa

SAMPLE = 1000
"""Rows looked at before the first is written, to choose widths."""
WIDEST = 60
"""Cells of the widest column on a terminal; longer values are cut there, never in a pipe."""
PROSE = ("text", "detail")
"""Columns of sentences, which a terminal shows whole, in several lines."""
PROSE_LEAST, LEAST_PROSE = 44, 24
"""Cells that sentences get before other columns are left out, and when no other is there to be."""
DIGITS = 8
"""Of a connection's id on a terminal: two of a thousand connections share them once in 9,000 captures."""
SQUEEZED = 12
"""Cells to which a text is cut before its column is left out."""
SHOWN = 1 << 16
"""Bytes of a revealed key or value that a cell shows: escaped they take six times as many. Other formats have all."""
UNKNOWN = "-"
EMPTY = "[]"
LINES = 1 << 12
"""Rows that become text at a time: some MB."""
DAY_END, CLOCK = (10, 11), (11, 26)
"""Of an instant as Arrow writes it, `2026-11-21 02:36:05.000000Z`: the blank, and the time of day."""
LEADING, ALWAYS = 2, 5
"""Columns before those that a question names (what a row is, when it was), and those that any terminal shows."""


def choose(
    table: str, declared: Sequence[str], selected: Sequence[str] | None, form: str, output: str | None,
    where: str | None = None, sort: Sequence[str] | None = None,
) -> list[str]:  # fmt: skip
    """The columns to read: those asked for, the telling ones for a terminal, else all. On a terminal, columns that the
    question names and in which its rows differ (`where`, `sort`) come right behind when a row was, so that they fit."""
    if selected is not None:
        return list(selected)
    if form == "table" and output is None and sys.stdout.isatty():
        from kdissect.tables.declaration import TABLES

        shown = list(TABLES[table].shown or declared)
        told = [
            name for name in _columns_in_question(table, where, sort) if name in declared and name not in shown[:ALWAYS]
        ]
        shown = [name for name in shown if name not in told]
        return [*shown[:LEADING], *told, *shown[LEADING:]]
    return list(declared)


def _columns_in_question(table: str, where: str | None, sort: Sequence[str] | None) -> list[str]:
    """Columns that a filter and an order speak of, without those that have one value in all rows of the filter."""
    from kdissect.tables.declaration import SCHEMAS
    from kdissect.tables.where import parse

    names = [name.removeprefix("-") for name in sort or ()]
    if where is not None:
        with contextlib.suppress(ValueError):  # told where the table is read
            found = parse(where, SCHEMAS[table])
            same = {limit.column for limit in found.limits if limit.operator == "=" and len(limit.values) == 1}
            names += [name for name in SCHEMAS[table].names if name in found.columns - same]
    return list(dict.fromkeys(name.removesuffix("_code") for name in names))  # `error` tells more than its number


def refuse_binary(form: str, output: str | None) -> None:
    """Raise UsageError for a format that no terminal can show, where rows would go to one."""
    if output is None and form in ("arrow", "parquet"):
        terminal.refuse_binary(f"--format {form}")


def write(
    schema: pa.Schema, batches: Iterable[pa.RecordBatch], form: str, output: str | None, growing: bool = False,
    csv_safe: bool = False,
) -> None:  # fmt: skip
    """Write batches of a schema as `form` to a file, or to standard output. `growing`: each batch is to be seen as soon
    as it is there, in a file too. `csv_safe`: no text of a CSV is a formula.

    Data formats are exact in a file or a pipe; on a terminal control characters are shown."""
    if output is not None:
        with growing_file(output) if growing else whole_file(output) as stream:
            _write(schema, batches, form, stream, growing, csv_safe)
    elif form == "table" and sys.stdout.isatty():
        if growing:
            _aligned(schema, batches, sys.stdout, terminal.width(), growing)
            return
        with terminal.Paged() as out, contextlib.suppress(*([BrokenPipeError] if out.paging else [])):
            _aligned(schema, batches, cast("IO[str]", out), terminal.width())
    else:
        refuse_binary(form, output)
        _write(schema, batches, form, sys.stdout.buffer, growing, csv_safe)
        sys.stdout.buffer.flush()


def _write(
    schema: pa.Schema, batches: Iterable[pa.RecordBatch], form: str, stream: IO[bytes], growing: bool, csv_safe: bool
) -> None:
    if growing:
        batches = _flushed(batches, stream)
    if form == "table":
        _aligned(schema, batches, codecs.getwriter("utf-8")(stream), None, growing)
        return
    from kdissect.tables import formats
    from kdissect.tables.exchange_formats import EXCHANGE_FORMATS

    changes = [formula_safe] * csv_safe + [visible_column] * (stream is sys.stdout.buffer and sys.stdout.isatty())
    if form in EXCHANGE_FORMATS:
        hidden = [visible_column] * (visible_column in changes)
        EXCHANGE_FORMATS[form].write(schema, batches, cast("BinaryIO", stream), hidden)
    elif not changes or form == "arrow":
        formats.WRITERS[form](schema, batches, cast("BinaryIO", stream))
    elif form == "csv":
        formats.write_csv(schema, batches, cast("BinaryIO", stream), changes)
    else:
        formats.write_jsonl(schema, batches, cast("BinaryIO", stream), [visible_column] * (visible_column in changes))


def _flushed(batches: Iterable[pa.RecordBatch], stream: IO[bytes]) -> Iterator[pa.RecordBatch]:
    """The batches; when the next one is asked for, the last was written."""
    for batch in batches:
        yield batch
        stream.flush()


def _aligned(
    schema: pa.Schema, batches: Iterable[pa.RecordBatch], stream: IO[str] | codecs.StreamWriter, width: int | None,
    growing: bool = False,
) -> None:  # fmt: skip
    """Rows under their titles. With a width a row takes as many lines as its sentence needs (`PROSE`). Other columns
    are cut to `WIDEST` then, and those that do not fit or hold nothing are left out."""
    source = iter(batches)
    first: list[pa.RecordBatch] = []
    names = schema.names
    sampled = 0
    for batch in source:
        first.append(batch)
        sampled += batch.num_rows
        if sampled >= SAMPLE or growing:
            break
    short = width is not None and _one_day(first)
    sample = [row for batch in first for row in _cells(batch.slice(0, SAMPLE), short)][:SAMPLE]
    right = _right_aligned(schema)
    kept = list(range(len(names)))
    prose = next((i for i in kept if names[i] in PROSE), None)
    cut: Callable[[Sequence[str]], Sequence[str]] = list
    if width is not None:
        if sample and not growing:
            kept = [i for i in kept if any(row[i] != UNKNOWN for row in sample)] or kept[:1]
        prose = prose if prose in kept else None
        cut = _cut_ids(names, kept, sample)
        sample = [tuple(cut(row)) for row in sample]
        widths = [max([len(name), *(len(row[i]) for row in sample)]) for i, name in enumerate(names)]
        widths = [min(cells, WIDEST) if i != prose else cells for i, cells in enumerate(widths)]
        if prose is not None:
            longest, widths[prose] = widths[prose], min(widths[prose], PROSE_LEAST)
        kept = _fitting(widths, kept, right, prose, width)
        if prose is not None:
            widths[prose] = max(LEAST_PROSE, min(longest, widths[prose] + width - _line_width(widths, kept)))
    else:
        widths = [max([len(name), *(len(row[i]) for row in sample)]) for i, name in enumerate(names)]
    if len(kept) < len(names):
        terminal.say(f"{len(names) - len(kept)} columns not shown: --columns a,b chooses, --format jsonl has all")

    def line(row: Sequence[str]) -> str:
        if prose is None or width is None or len(row[prose]) <= widths[prose]:
            return format_row(row)
        texts = words.wrapped(row[prose], widths[prose])
        rest = [""] * len(row)
        lines = [[*row[:prose], texts[0], *row[prose + 1 :]]]
        lines += [[*rest[:prose], text, *rest[prose + 1 :]] for text in texts[1:]]
        return "".join(format_row(cells) for cells in lines)

    def format_row(row: Sequence[str]) -> str:
        cells = [pad(row[i] if width is None else fit(row[i], widths[i]), widths[i], right=right[i]) for i in kept]
        return (" " * GAP).join(cells).rstrip() + "\n"

    stream.write(format_row(names))
    for batch in itertools.chain(first, source):
        if width is None:
            for first_row in range(0, batch.num_rows, LINES):
                stream.write(_padded_lines(batch.slice(first_row, LINES), widths, right))
        else:
            stream.write("".join(line(cut(row)) for row in _cells(batch, short)))


def _padded_lines(batch: pa.RecordBatch, widths: Sequence[int], right: Sequence[bool]) -> str:
    """The rows of a batch, all columns in these widths, texts not cut."""
    columns = [_padded(_texts(column), widths[i], right[i]) for i, column in enumerate(batch.columns)]
    return "".join((" " * GAP).join(row).rstrip() + "\n" for row in zip(*columns, strict=True))


def _padded(texts: Sequence[str], cells: int, right: bool) -> list[str]:
    """Texts filled with blanks to so many terminal cells; a million of ASCII are filled without a call for each."""
    if not all(map(str.isascii, texts)):
        return [pad(text, cells, right=right) for text in texts]
    return [text.rjust(cells) for text in texts] if right else [text.ljust(cells) for text in texts]


def _cut_ids(
    names: Sequence[str], columns: Sequence[int], sample: Sequence[Sequence[str]]
) -> Callable[[Sequence[str]], Sequence[str]]:
    """Shortens ids of connections and exchanges to `DIGITS` digits, where these tell those of the sample apart; every
    command takes a unique beginning."""
    places = [i for i in columns if names[i].endswith(("exchange_id", "connection_id"))]
    ids = {row[i].partition(":")[0] for row in sample for i in places} - {UNKNOWN}
    if len({one[:DIGITS] for one in ids}) < len(ids) or len(sample) >= SAMPLE:
        return list

    def cut(row: Sequence[str]) -> Sequence[str]:
        cells = list(row)
        for i in places:
            connection, colon, ordinal = cells[i].partition(":")
            cells[i] = connection[:DIGITS] + colon + ordinal
        return cells

    return cut


def _fitting(
    widths: list[int], places: Sequence[int], right: Sequence[bool], prose: int | None, width: int
) -> list[int]:
    """The columns that fit, the first ones first, texts cut where that lets them fit; a later one that is narrow may
    find room where one before did not. `widths` become those of cut texts."""
    kept = [places[0] if prose is None else prose]
    for i in places:
        room = width - _line_width(widths, kept) - GAP
        if i in kept:
            continue
        if widths[i] > room >= SQUEEZED and not right[i]:
            widths[i] = room
        if widths[i] <= room:
            kept.append(i)
    return sorted(kept)


def _line_width(widths: Sequence[int], columns: Sequence[int]) -> int:
    return sum(widths[i] for i in columns) + GAP * (len(columns) - 1)


def _one_day(batches: Sequence[pa.RecordBatch]) -> bool:
    """Whether all times of these rows lie on one day: then it need not be said in each."""
    import pyarrow as pa
    import pyarrow.compute as pc

    days = set()
    for batch in batches:
        for column in batch.columns:
            if pa.types.is_timestamp(column.type) and column.null_count < len(column):
                ends = pc.min_max(column).as_py()
                days |= {ends["min"].date(), ends["max"].date()}
    return len(days) == 1


def _cells(batch: pa.RecordBatch, short: bool = False) -> Iterator[tuple[str, ...]]:
    return zip(*(_texts(column, short) for column in batch.columns), strict=True) if batch.num_columns else iter(())


def _texts(column: pa.Array, short: bool = False) -> list[str]:
    """A column's values as text: times in UTC with microseconds (`short`: without their day), numbers of milliseconds
    to a microsecond, durations in the unit that fits, lists as JSON."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    if column.null_count == len(column):
        return [UNKNOWN] * len(column)
    texts = None
    if pa.types.is_timestamp(kind):
        instants = column.cast(pa.timestamp("us", "UTC"), safe=False).cast(pa.string())
        texts = pc.utf8_slice_codeunits(instants, *CLOCK) if short else pc.utf8_replace_slice(instants, *DAY_END, "T")
    elif pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        texts = column.cast(pa.string())
    elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
        texts = visible_column(column)
    if texts is not None:
        found: list[str] = texts.fill_null(UNKNOWN).to_pylist()
        return found
    values = column.to_pylist()
    if pa.types.is_duration(kind):
        return [words.milliseconds(None if v is None else v / timedelta(milliseconds=1)) for v in values]
    if pa.types.is_floating(kind):
        return [UNKNOWN if v is None else f"{v:.3f}" for v in values]
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return [UNKNOWN if v is None else _cut_bytes(v) for v in values]
    if pa.types.is_nested(kind):
        import json

        return [
            UNKNOWN if v is None else visible(json.dumps(v, default=_plain, ensure_ascii=False)) if v else EMPTY
            for v in values
        ]
    return [UNKNOWN if v is None else visible(str(v)) for v in values]


def _cut_bytes(value: bytes) -> str:
    if len(value) <= SHOWN:
        return visible(_bytes(value))
    return f"{visible(_bytes(value[:SHOWN]))}… ({len(value)} bytes)"


def _bytes(value: bytes) -> str:
    """Text where it is UTF-8, else hexadecimal."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.hex()


def _plain(value: object) -> str:
    return _bytes(value) if isinstance(value, bytes) else str(value)


def _right_aligned(schema: pa.Schema) -> list[bool]:
    import pyarrow as pa

    numbers = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_duration)
    return [any(one(kind) for one in numbers) for kind in schema.types]

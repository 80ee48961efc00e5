"""Rows of a table on standard output or in a file: aligned text here, the data formats by `kdissect.tables`.

On a terminal, the text form shows the telling columns (`VIEWS`) that fit its width; piped, asked for by --columns, or
in any other format, all of them. Rows are written as they are read, so that `| head` ends early and memory stays flat.
"""

from __future__ import annotations

import codecs
import itertools
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, TYPE_CHECKING, BinaryIO, cast

from kdissect.cli.printing import terminal, words
from kdissect.cli.printing.grid import GAP, fit, pad
from kdissect.output import growing_file, whole_file

if TYPE_CHECKING:
    import pyarrow as pa

SAMPLE = 1000
"""Rows looked at before the first is written, to choose widths."""
WIDEST = 60
"""Cells of the widest column on a terminal; longer values are cut there, never in a pipe."""
UNKNOWN = "-"

VIEWS = {
    "connections": "connection_id client_ip client_port broker client_id client_software_name "
    "client_software_version exchanges bytes rtt_ms missing_bytes end_reason",
    "exchanges": "exchange_id api api_version status latency_ms client_id broker error broker_ms queued_ms "
    "request_bytes response_bytes request_first_at request_frame response_frame",
    "fetches": "exchange_id client_id broker request_kind session_outcome session_epoch latency_ms hold excess_ms "
    "partitions_sent implied_partitions partitions_returned record_bytes requested_at",
    "fetch_partitions": "exchange_id topic partition fetch_offset high_watermark lag record_bytes error_code "
    "reason implied",
    "fetch_sessions": "session_key client_ids opened_at closed_at requests last_epoch max_partitions churn end_reason",
    "record_batches": "exchange_id topic partition base_offset last_offset records codec compressed_bytes producer_id "
    "is_transactional is_control truncated",
    "records": "exchange_id topic partition offset timestamp key_bytes value_bytes key value headers control_type",
    "producers": "exchange_id topic partition producer_id producer_epoch base_sequence last_sequence sequence missing "
    "expected_sequence sent_at",
    "groups": "at group_id event generation client_id member_id error exchange_id",
    "findings": "severity count text table filter first_exchange_id",
    "capture_quality": "measure value text file",
    "problems": "kind where detail bytes frame exchange_id at",
}
"""Columns of the text form on a terminal, the most telling first; tables without an entry show their own order."""


def choose(table: str, known: Sequence[str], asked: Sequence[str] | None, form: str, output: str | None) -> list[str]:
    """The columns to read: those asked for, the telling ones for a terminal, else all."""
    if asked is not None:
        return list(asked)
    if form == "table" and output is None and sys.stdout.isatty() and table in VIEWS:
        return VIEWS[table].split()
    return list(known)


def write(
    schema: pa.Schema, batches: Iterable[pa.RecordBatch], form: str, output: str | None, growing: bool = False
) -> None:
    """Write batches of a schema as `form` to a file, or to standard output. `growing`: each batch is to be seen as soon
    as it is there, in a file too."""
    if output is not None:
        with growing_file(output) if growing else whole_file(output) as stream:
            _write(schema, batches, form, stream, growing)
    elif form == "table" and sys.stdout.isatty():
        _aligned(schema, batches, sys.stdout, terminal.width(), growing)
    else:
        _write(schema, batches, form, sys.stdout.buffer, growing)
        sys.stdout.buffer.flush()


def _write(schema: pa.Schema, batches: Iterable[pa.RecordBatch], form: str, stream: IO[bytes], growing: bool) -> None:
    if growing:
        batches = _flushed(batches, stream)
    if form == "table":
        _aligned(schema, batches, codecs.getwriter("utf-8")(stream), None, growing)
        return
    from kdissect.tables import formats

    formats.WRITERS[form](schema, batches, cast("BinaryIO", stream))


def _flushed(batches: Iterable[pa.RecordBatch], stream: IO[bytes]) -> Iterator[pa.RecordBatch]:
    """The batches; when the next one is asked for, the last was written."""
    for batch in batches:
        yield batch
        stream.flush()


def _aligned(
    schema: pa.Schema, batches: Iterable[pa.RecordBatch], stream: IO[str] | codecs.StreamWriter, width: int | None,
    growing: bool = False,
) -> None:  # fmt: skip
    """Rows under their titles; with a width, cut columns to `WIDEST` and leave out those that do not fit."""
    source = iter(batches)
    first: list[pa.RecordBatch] = []
    names = schema.names
    sampled = 0
    for batch in source:
        first.append(batch)
        sampled += batch.num_rows
        if sampled >= SAMPLE or growing:
            break
    sample = [row for batch in first for row in _cells(batch.slice(0, SAMPLE))][:SAMPLE]
    right = _right_aligned(schema)
    widths = [max([len(name), *(len(row[i]) for row in sample)]) for i, name in enumerate(names)]
    kept = list(range(len(names)))
    if width is not None:
        widths = [min(cells, WIDEST) for cells in widths]
        while len(kept) > 1 and sum(widths[i] for i in kept) + GAP * (len(kept) - 1) > width:
            kept.pop()
    if len(kept) < len(names):
        terminal.say(f"{len(names) - len(kept)} columns do not fit: --columns a,b chooses, --format jsonl has all")

    def line(row: Sequence[str]) -> str:
        cells = [pad(row[i] if width is None else fit(row[i], widths[i]), widths[i], right=right[i]) for i in kept]
        return (" " * GAP).join(cells).rstrip() + "\n"

    stream.write(line(names))
    for batch in itertools.chain(first, source):
        stream.write("".join(line(row) for row in _cells(batch)))


def _cells(batch: pa.RecordBatch) -> Iterator[tuple[str, ...]]:
    return zip(*(_texts(column) for column in batch.columns), strict=True) if batch.num_columns else iter(())


def _texts(column: pa.Array) -> list[str]:
    """A column's values as text: times in UTC with microseconds, durations to a microsecond, lists as JSON."""
    import pyarrow as pa

    kind = column.type
    values = column.to_pylist()
    if pa.types.is_timestamp(kind):
        return [UNKNOWN if v is None else f"{v:%Y-%m-%dT%H:%M:%S.%f}Z" for v in values]
    if pa.types.is_floating(kind):
        return [UNKNOWN if v is None else f"{v:.3f}" for v in values]
    if pa.types.is_boolean(kind):
        return [UNKNOWN if v is None else "true" if v else "false" for v in values]
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return [UNKNOWN if v is None else words.printable(_bytes(v)) for v in values]
    if pa.types.is_nested(kind):
        import json

        return [
            UNKNOWN if v is None else words.printable(json.dumps(v, default=_plain, ensure_ascii=False)) for v in values
        ]
    return [UNKNOWN if v is None else words.printable(str(v)) for v in values]


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

    return [pa.types.is_integer(kind) or pa.types.is_floating(kind) for kind in schema.types]

"""Tables as files: JSON lines, CSV, Arrow IPC stream, Parquet.

Writers take record batches one after the other, so that memory stays flat, and write to an open binary file; Parquet
goes to a path, aside first and renamed when whole, so that nothing half-written is ever found under the name.

JSON lines: one object a row, times as ISO 8601 in UTC with microseconds, durations as ISO 8601 in seconds (PT8.8S).
Unknown values and floats that are no number are null, binary is base64. CSV: the same texts, nothing for null, lists
and structs as JSON. Arrow and Parquet keep the types of the declaration.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from kdissect.tables.nest import numbers

_ESCAPED = r'["\\\x00-\x1f]'
"""What cannot stand in a JSON string as it is."""


Change = Callable[[pa.Array], pa.Array]
"""What a string column becomes before it is written (`kdissect.escaping`)."""


def write_jsonl(
    schema: pa.Schema, batches: Iterable[pa.RecordBatch], sink: BinaryIO, changes: Sequence[Change] = ()
) -> int:
    """JSON lines. `changes`: done to the JSON texts. Returns the number of rows."""
    heads = [f"{'{' if i == 0 else ','}{json.dumps(name)}:" for i, name in enumerate(schema.names)]
    rows = 0
    for batch in conforming(schema, batches):
        if not batch.num_rows or not schema.names:
            continue
        parts: list[Any] = []
        for head, column in zip(heads, batch.columns, strict=True):
            parts += [head, _changed(json_texts(column), changes)]
        lines = pc.binary_join_element_wise(*parts, "}\n", "")
        sink.write(_bytes(lines))
        rows += batch.num_rows
    return rows


def write_csv(
    schema: pa.Schema, batches: Iterable[pa.RecordBatch], sink: BinaryIO, changes: Sequence[Change] = ()
) -> int:
    """CSV with a header line. `changes`: done to the texts of cells. Returns the number of rows."""
    flat = pa.schema([pa.field(item.name, _csv_type(item.type)) for item in schema])
    rows = 0
    with pa.csv.CSVWriter(sink, flat) as writer:
        for batch in conforming(schema, batches):
            writer.write_batch(
                pa.RecordBatch.from_arrays(
                    [_changed(_csv_column(column), changes) for column in batch.columns], schema=flat
                )
            )
            rows += batch.num_rows
    return rows


def write_arrow(schema: pa.Schema, batches: Iterable[pa.RecordBatch], sink: BinaryIO) -> int:
    """The Arrow IPC stream format. Returns the number of rows."""
    rows = 0
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in conforming(schema, batches):
            writer.write_batch(batch)
            rows += batch.num_rows
    return rows


GROUP = 1 << 17
"""Rows of a Parquet row group at least: fewer make large files that are slow to read."""


def write_parquet_stream(schema: pa.Schema, batches: Iterable[pa.RecordBatch], sink: BinaryIO) -> int:
    """Parquet to an open file, or to a pipe. Returns the number of rows."""
    rows = 0
    waiting: list[pa.RecordBatch] = []
    with pa.parquet.ParquetWriter(pa.PythonFile(sink, mode="w"), schema, compression="zstd") as writer:
        for batch in conforming(schema, batches):
            waiting.append(batch)
            rows += batch.num_rows
            if sum(one.num_rows for one in waiting) >= GROUP:
                writer.write_table(pa.Table.from_batches(waiting, schema))
                waiting = []
        if waiting:
            writer.write_table(pa.Table.from_batches(waiting, schema))
    return rows


WRITERS: Mapping[str, Callable[[pa.Schema, Iterable[pa.RecordBatch], BinaryIO], int]] = MappingProxyType(
    {"jsonl": write_jsonl, "csv": write_csv, "arrow": write_arrow, "parquet": write_parquet_stream}
)
"""Writers to an open file, by format name."""

DIFFERENT = ("exchange_id",)
"""Texts that are different in most rows. They are written as they are: looking for equal ones takes time, and makes
files larger. So are texts that are different in most of the first rows, if these are MANY or more: after a scan of a
network, addresses of connections."""
MANY = 1 << 12
CODED = pa.dictionary(pa.int32(), pa.string())
"""How other texts are handed to Arrow: it writes their codes, and looks at each text once."""
DIFFERENCES = "DELTA_BINARY_PACKED"
"""Encoding of times and of 64-bit numbers, which grow or hardly change from row to row: a third of the time that zstd
takes for the numbers themselves, and a tenth of their size. Spark 3.3, DuckDB, pandas and polars read it."""


def part_path(path: Path, process: int) -> Path:
    """Where a process writes what becomes this file when it is whole."""
    return path.with_name(f".{path.name}.{process}.part")


class ParquetFile:
    """A Parquet file in the making: `write` batches inside a `with`; it appears under its name when that ends well.

    Files of a run are read together (pandas, Spark, DuckDB), so an empty table still gives a file with its columns.
    """

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self.path = path
        self.schema = schema
        self.rows = 0
        self._aside = part_path(path, os.getpid())
        self._coded = schema
        self._sink = pa.OSFile(os.fsencode(self._aside), "wb")  # Arrow makes UTF-8 of paths, which not all of them are
        self._writer: pa.parquet.ParquetWriter | None = None

    def __enter__(self) -> ParquetFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            with self._sink:
                if kind is None or self._writer is not None:
                    self._begin_writer(self.schema.empty_table()).close()
            if kind is None:
                self._aside.replace(self.path)
        finally:
            if self._writer is not None:
                self._writer.is_open = False  # else one that a full disk kept open is closed again when it goes away
            self._aside.unlink(missing_ok=True)

    @property
    def size(self) -> int:
        """Bytes in the file by now."""
        return self._aside.stat().st_size

    def write(self, batch: pa.RecordBatch) -> None:
        """Append rows; texts may have dictionaries. Batches of a few thousand rows or more make good row groups."""
        writer = self._begin_writer(batch)
        arrays = []
        for item in self._coded:
            array = batch.column(item.name)
            if item.type == CODED:
                array = _coded(array)
            arrays.append(array if array.type == item.type else array.cast(item.type))
        writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=self._coded))
        self.rows += batch.num_rows

    def _begin_writer(self, first: pa.RecordBatch | pa.Table) -> pa.parquet.ParquetWriter:
        """The writer, which is made when the first rows are there."""
        if self._writer is not None:
            return self._writer
        texts = [item.name for item in self.schema if pa.types.is_string(item.type) and item.name not in DIFFERENT]
        if first.num_rows >= MANY:
            texts = [name for name in texts if 2 * len(_coded(first.column(name)).dictionary) <= first.num_rows]
        far = [item.name for item in self.schema if item.type == pa.int64() or pa.types.is_timestamp(item.type)]
        self._coded = pa.schema([item.with_type(CODED) if item.name in texts else item for item in self.schema])
        self._writer = pa.parquet.ParquetWriter(
            self._sink, self._coded, compression="zstd", use_dictionary=texts,
            column_encoding=dict.fromkeys(far, DIFFERENCES), store_schema=False,
        )  # fmt: skip
        # What Arrow would store by itself: the schema that rows are read back with has plain texts.
        plain = base64.b64encode(self.schema.serialize()).decode()
        self._writer.add_key_value_metadata({**(self.schema.metadata or {}), "ARROW:schema": plain})
        return self._writer


def write_parquet(schema: pa.Schema, batches: Iterable[pa.RecordBatch], path: Path) -> int:
    """A whole Parquet file. Returns the number of rows."""
    with ParquetFile(path, schema) as file:
        for batch in batches:
            file.write(batch)
    return file.rows


def json_texts(column: pa.Array) -> pa.Array:
    """Each value as JSON text, never null."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return json_texts(column.dictionary).take(column.indices).fill_null("null")
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_decimal(kind):
        return column.cast(pa.string()).fill_null("null")
    if pa.types.is_floating(kind):
        finite = pc.if_else(pc.is_finite(column), column, pa.scalar(None, kind))
        return finite.cast(pa.string()).fill_null("null")
    if pa.types.is_timestamp(kind):
        return _quoted(_iso(column)).fill_null("null")
    if pa.types.is_duration(kind):
        return _quoted(_iso_durations(column)).fill_null("null")
    if pa.types.is_string(kind):
        return _json_strings(column)
    if pa.types.is_null(kind):
        return pa.array(["null"] * len(column), pa.string())
    if pa.types.is_list(kind):
        return _json_lists(column)
    if pa.types.is_struct(kind):
        return _json_structs(column)
    return pa.array([json.dumps(_plain(value), ensure_ascii=False) for value in column.to_pylist()], pa.string())


def conforming(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Batches with exactly the columns and types of the schema, dictionaries made plain."""
    for batch in batches:
        arrays = [batch.column(name) for name in schema.names]
        arrays = [
            array if array.type == item.type else array.cast(item.type)
            for array, item in zip(arrays, schema, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _coded(texts: pa.Array) -> pa.Array:
    """Texts as CODED, each of the dictionary's once, and at most one a row: Arrow goes by their places, and writes all
    of them."""
    if pa.types.is_dictionary(texts.type):
        values = texts.dictionary
        if len(values) <= len(texts) and not values.null_count and len(values.unique()) == len(values):
            return texts.cast(CODED)
        texts = texts.cast(pa.string())
    return texts.cast(pa.string()).dictionary_encode()


def _changed(column: pa.Array, changes: Sequence[Change]) -> pa.Array:
    if pa.types.is_string(column.type):
        for change in changes:
            column = change(column)
    return column


def _json_strings(column: pa.Array) -> pa.Array:
    special = pc.match_substring_regex(column, _ESCAPED)
    if not pc.any(special).as_py():
        return _quoted(column).fill_null("null")
    encoded = column.dictionary_encode()
    texts = [json.dumps(text, ensure_ascii=False) for text in encoded.dictionary.to_pylist()]
    return pa.array(texts, pa.string()).take(encoded.indices).fill_null("null")


def _quoted(texts: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise('"', texts, '"', "")


def _json_lists(column: pa.ListArray) -> pa.Array:
    """Lists as JSON arrays. Their items become texts together, whichever list they are in."""
    sizes = numbers(column.value_lengths().fill_null(0))
    ends = np.concatenate([np.zeros(1, np.int32), np.cumsum(sizes, dtype=np.int32)])
    items = pa.ListArray.from_arrays(ends, json_texts(column.flatten()))
    texts = pc.binary_join_element_wise("[", pc.binary_join(items, ", "), "]", "")
    return pc.if_else(column.is_valid(), texts, "null")


def _json_structs(column: pa.StructArray) -> pa.Array:
    """Structs as JSON objects, their fields in the order of the type."""
    parts: list[Any] = []
    for at, (item, values) in enumerate(zip(column.type, column.flatten(), strict=True)):
        parts += [f"{', ' if at else '{'}{json.dumps(item.name)}: ", json_texts(values)]
    return pc.if_else(column.is_valid(), pc.binary_join_element_wise(*parts, "}", ""), "null")


def _iso(column: pa.Array) -> pa.Array:
    """ISO 8601 with microseconds and Z (needs no time zone database: the values are UTC already)."""
    texts = column.cast(pa.timestamp("us")).cast(pa.string())
    return pc.binary_join_element_wise(pc.replace_substring(texts, " ", "T"), "Z", "")


def _iso_durations(column: pa.Array) -> pa.Array:
    """ISO 8601 durations in seconds, with as many digits as they need."""
    return pa.array([None if value is None else iso_duration(value) for value in column.to_pylist()], pa.string())


def iso_duration(length: timedelta) -> str:
    """A length of time in seconds by ISO 8601: PT8.8S, -PT0.5S."""
    seconds, microseconds = divmod(abs(length) // timedelta(microseconds=1), 1_000_000)
    fraction = f".{microseconds:06d}".rstrip("0") if microseconds else ""
    return f"{'-' if length < timedelta() else ''}PT{seconds}{fraction}S"


def _plain(value: Any) -> Any:
    """A nested value as JSON has it."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float) and (value != value or abs(value) == float("inf")):
        return None
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    return value.isoformat() if hasattr(value, "isoformat") else value


def _csv_type(kind: pa.DataType) -> pa.DataType:
    plain = pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind)
    return kind if plain else pa.string()


def _csv_column(column: pa.Array) -> pa.Array:
    kind = column.type
    if pa.types.is_timestamp(kind):
        return _iso(column)
    if pa.types.is_duration(kind):
        return _iso_durations(column)
    if pa.types.is_decimal(kind) or pa.types.is_date(kind) or pa.types.is_time(kind) or pa.types.is_null(kind):
        return column.cast(pa.string())
    if pa.types.is_binary(kind):
        return pa.array([value and base64.b64encode(value).decode() for value in column.to_pylist()], pa.string())
    if pa.types.is_nested(kind):
        return pc.if_else(column.is_valid(), json_texts(column), pa.scalar(None, pa.string()))
    return column


def _bytes(texts: pa.Array) -> memoryview:
    """The texts of a string column one after the other, without a copy."""
    offsets = numbers(
        pa.Array.from_buffers(pa.int32(), len(texts) + 1, [None, texts.buffers()[1]], offset=texts.offset)
    )
    return memoryview(texts.buffers()[2])[int(offsets[0]) : int(offsets[-1])]

"""Folders of tables that are cut by columns: `date=2026-11-27/cluster=MkU3OEVBNTcwNTJENDM2Qk/`, as Hive names them.

Readers take the columns of folders from these names, and their types from how the values look. So a table is cut by a
column only if each of its rows has a value there which every reader gives back as it is. Else the column stays in the
files, as those of tables that are not cut:

- Null has a name of its own (`__HIVE_DEFAULT_PARTITION__`). But pandas cannot read a table in which some folders have
  it. pyarrow cannot read one in which all have it, and the column is void to Spark then.
- A `cluster` of digits would be a number to all of them, and a year of five digits makes all of `date` text.
- File systems have no names of more than 255 bytes.

Tasks write files by the columns that their own rows can be cut by, for all values are known at the end only.
Then the driver knows the columns that all files of a table have folders by, and `restore_columns` puts the others back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from kdissect.analysis.grouping import group
from kdissect.arrays.from_numpy import arrow_array
from kdissect.output import naming_output
from kdissect.tables.declaration.model import CLUSTER
from kdissect.tables.formats import ParquetFile

Folder = tuple[tuple[str, str], ...]
"""Columns and the texts of their values, in the order of the folders."""
WRITTEN = pa.schema([("table", pa.string()), ("file", pa.string()), ("rows", pa.int64()), ("folder", pa.string())])
"""What tasks tell: the files that they have written, and of which Folder their rows are, as JSON."""
RESTORED = pa.schema([*WRITTEN, ("columns", pa.list_(pa.string()))])
"""Files whose rows shall have only these columns in their folder."""
SPARKS = b"org.apache.spark.sql.parquet.row.metadata"
"""Where Spark looks for a file's schema with the comments of its columns."""
NULL = "__HIVE_DEFAULT_PARTITION__"
LONGEST = 200
"""Bytes of a folder's name."""
ESCAPED = re.compile(r"""[\x00-\x1f"#%'*/:=?\\\x7f{\[\]^]""")
"""What Spark writes as % and two digits (ExternalCatalogUtils.escapePathName). It decodes them byte by byte, so others
stay as they are."""
DAY = re.compile(r"\d{4}-\d\d-\d\d")
WORD = re.compile(r"(?=.*[A-Za-z])(?!\d{4}-)[A-Za-z0-9_.~+@-]+")


class WrittenFile(NamedTuple):
    """A row of WRITTEN."""

    table: str
    file: str
    rows: int
    folder: str = "[]"


def folder_as_text(folder: Folder) -> str:
    """JSON, for WRITTEN."""
    return json.dumps(folder)


def read_folder(text: str) -> Folder:
    """The folder of a text that `folder_as_text` gave."""
    return tuple((column, value) for column, value in json.loads(text))


def folder_path(folder: Folder) -> str:
    """The folders' names below the table's own, with slashes."""
    return "/".join(f"{column}={_escaped(value)}" for column, value in folder)


def cut_table(table: pa.Table, by: Sequence[str]) -> list[tuple[Folder, pa.Table]]:
    """The rows of each folder, one at least, by those of these columns that all rows can be cut by."""
    if not by:
        return [((), table)]
    found = group(table.select(by), by)
    texts = {column: found.keys[column].cast(pa.string()).to_pylist() for column in by}
    cut = [column for column in by if all(_reads_back(column, text) for text in texts[column])]
    if len(cut) < len(by):
        return cut_table(table, cut)
    folders = [tuple(zip(cut, values, strict=True)) for values in zip(*texts.values(), strict=True)]
    if len(folders) == 1:
        return [(folders[0], table)]
    return [(one, table.take(arrow_array(rows))) for one, rows in zip(folders, found.rows(), strict=True)]


def without_columns(schema: pa.Schema, columns: Collection[str]) -> pa.Schema:
    """The schema of files in folders by these columns."""
    if not columns:
        return schema
    told = dict(schema.metadata or {})
    if SPARKS in told:
        known: dict[str, Any] = json.loads(told[SPARKS])
        known["fields"] = [field for field in known["fields"] if field["name"] not in columns]
        told[SPARKS] = json.dumps(known).encode()
    return pa.schema([field for field in schema if field.name not in columns], told or None)


def common_columns(folders: Collection[Folder]) -> list[str]:
    """The columns that all of these have, in order."""
    names = [[column for column, _ in folder] for folder in folders]
    return [column for column in names[0] if all(column in some for some in names)] if names else []


def restore_columns(
    batches: Iterable[pa.RecordBatch], folder: str, schemas: Mapping[str, pa.Schema]
) -> Iterator[pa.RecordBatch]:
    """Copies of files of `folder` (rows of RESTORED), each with the columns that shall not be in its folder, as rows of
    WRITTEN. Raises OutputError where there is no room."""
    place = Path(folder)
    for batch in batches:
        for one in batch.to_pylist():
            values = read_folder(one["folder"])
            left = tuple((column, value) for column, value in values if column in one["columns"])
            schema = without_columns(schemas[one["table"]], one["columns"])
            path = place / f"{uuid4().hex}.parquet"
            with naming_output(place):
                _copy_file(place / one["file"], path, schema, dict(values))
            told = WrittenFile(one["table"], path.name, one["rows"], folder_as_text(left))
            yield pa.RecordBatch.from_pylist([told._asdict()], schema=WRITTEN)


def _copy_file(source: Path, target: Path, schema: pa.Schema, values: dict[str, str]) -> None:
    """Row group by row group; columns that the file has not have these values."""
    with pq.ParquetFile(source) as known, ParquetFile(target, schema) as file:
        there = known.schema_arrow.names
        for number in range(known.num_row_groups):
            for batch in known.read_row_group(number).combine_chunks().to_batches():
                columns = [
                    batch.column(field.name)
                    if field.name in there
                    else pa.repeat(pa.scalar(values[field.name]).cast(field.type), batch.num_rows)
                    for field in schema
                ]
                file.write(pa.RecordBatch.from_arrays(columns, names=schema.names))


def _reads_back(column: str, text: str | None) -> bool:
    """Whether every reader finds this text of a value again in a folder's name."""
    if not text or text == NULL or len(f"{column}={_escaped(text)}".encode()) > LONGEST:
        return False
    if column == "date":
        return DAY.fullmatch(text) is not None
    return column != CLUSTER.name or (WORD.fullmatch(text) is not None and not _is_number(text))


def _is_number(text: str) -> bool:
    try:
        float(text)  # "1e5", "nan" and "infinity" too
    except ValueError:
        return text.lower() in ("null", "epoch")  # DuckDB's words for no value, and for a day
    return True


def _escaped(text: str) -> str:
    return ESCAPED.sub(lambda one: f"%{ord(one[0]):02X}", text)

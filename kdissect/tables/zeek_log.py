r"""`exchanges` as Zeek's kafka.log: tab-separated with Zeek's header lines, or JSON, an object a line.

Rules: Zeek's ASCII writer (docs.zeek.org, frameworks/logging). Times are seconds since the epoch, durations seconds
(`latency_ms` is `latency_seconds`), flags T and F, unset values `-`, an empty text `(empty)`. A byte that would break a
line, and a backslash, are written `\xHH`.
`uid` is `C` and the connection's id; other logs of the flow have the same `community_id`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kdissect.arrays.arrow import numbers
from kdissect.tables.declaration.model import TEXT
from kdissect.tables.formats import conforming, json_texts

ENDS = MappingProxyType(
    {
        "client_ip": ("id.orig_h", "addr"), "client_port": ("id.orig_p", "port"),
        "broker_ip": ("id.resp_h", "addr"), "broker_port": ("id.resp_p", "port"),
    }
)  # fmt: skip
"""Columns that Zeek calls by names of its own, with their types."""
TIMES = ("request_first_at", "response_first_at")
"""`ts` is the first of these that is known."""
REQUIRED = ("connection_id", *ENDS, *TIMES)
"""Columns that every row of the log is made of."""
UNSET, EMPTY = "-", "(empty)"
_SPECIAL = r"[\x00-\x1f\x7f\\]"
_MARKS = MappingProxyType({"": EMPTY, UNSET: r"\x2d", EMPTY: r"\x28empty)"})
"""What stands for texts that Zeek's marks would be mistaken for."""

Fields = Mapping[str, tuple[str, pa.Array]]
"""By name of the field, its Zeek type and its values as texts; null is unset."""
Change = Callable[[pa.Array], pa.Array]


def write_zeek(
    schema: pa.Schema, batches: Iterable[pa.RecordBatch], sink: BinaryIO, changes: Sequence[Change] = ()
) -> int:
    """The log as tab-separated lines. Batches have at least the columns REQUIRED. Returns the number of rows."""
    fields = {name: kind for name, (kind, _) in _fields(pa.RecordBatch.from_pylist([], schema)).items()}
    head = [
        r"#separator \x09", "#set_separator\t,", f"#empty_field\t{EMPTY}", f"#unset_field\t{UNSET}", "#path\tkafka",
        f"#open\t{_now()}", "\t".join(["#fields", *fields]), "\t".join(["#types", *fields.values()]),
    ]  # fmt: skip
    sink.write(("\n".join(head) + "\n").encode())
    rows = 0
    for batch in conforming(schema, batches):
        columns = [
            (_escaped(_changed(values, changes)) if kind == "string" else values).fill_null(UNSET)
            for kind, values in _fields(batch).values()
        ]
        _write_lines(sink, pc.binary_join_element_wise(*columns, "\t"))
        rows += batch.num_rows
    sink.write(f"#close\t{_now()}\n".encode())
    return rows


def write_zeek_json(
    schema: pa.Schema, batches: Iterable[pa.RecordBatch], sink: BinaryIO, changes: Sequence[Change] = ()
) -> int:
    """The log as JSON lines; an unset field is absent. Batches have at least the columns REQUIRED. Returns the number
    of rows."""
    rows = 0
    for batch in conforming(schema, batches):
        parts: list[Any] = ["{"]
        for name, (kind, values) in _fields(batch).items():
            if kind == "bool":
                values = pc.if_else(pc.equal(values, "T"), "true", "false")
            elif kind in ("string", "addr"):
                values = pc.if_else(values.is_valid(), _changed(json_texts(values), changes), pa.scalar(None, TEXT))
            around = (f'"{name}":', ",") if name == "ts" else (("" if name == "uid" else ",") + f'"{name}":', "")
            parts.append(pc.fill_null(pc.binary_join_element_wise(around[0], values, around[1], ""), ""))
        _write_lines(sink, pc.binary_join_element_wise(*parts, "}", ""))
        rows += batch.num_rows
    return rows


def _write_lines(sink: BinaryIO, lines: pa.Array) -> None:
    sink.write("".join(f"{line}\n" for line in lines.to_pylist()).encode())


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d-%H-%M-%S")


def _changed(column: pa.Array, changes: Sequence[Change]) -> pa.Array:
    for change in changes:
        column = change(column)
    return column


def _fields(batch: pa.RecordBatch) -> Fields:
    """The fields of the log, in order: those of every Zeek log first."""
    when = pc.coalesce(*(batch.column(name) for name in TIMES))
    made: dict[str, tuple[str, pa.Array]] = {
        "ts": ("time", _decimal(numbers(when.cast(pa.int64()), 0), 6, when.is_null())),
        "uid": ("string", pc.binary_join_element_wise("C", batch.column("connection_id").cast(TEXT), "")),
    }
    for name, (called, kind) in ENDS.items():
        made[called] = kind, batch.column(name).cast(TEXT)
    for name in batch.schema.names:
        if name not in REQUIRED or name in TIMES:
            made[re.sub("_ms$", "_seconds", name)] = _field(batch.column(name), name.endswith("_ms"))
    return made


def _field(column: pa.Array, milliseconds: bool) -> tuple[str, pa.Array]:
    """The Zeek type of a column and its values as texts. `milliseconds`: they become seconds."""
    kind = column.type
    if milliseconds:
        ns = np.rint(column.fill_null(0.0).to_numpy(zero_copy_only=False) * 1e6).astype(np.int64)
        return "interval", _decimal(ns, 9, column.is_null())
    if pa.types.is_timestamp(kind):
        return "time", _decimal(numbers(column.cast(pa.int64()), 0), 6, column.is_null())
    if pa.types.is_boolean(kind):
        return "bool", pc.if_else(column, "T", "F")
    if pa.types.is_integer(kind):
        return ("int" if kind == pa.int32() else "count"), column.cast(TEXT)
    return "string", column.cast(TEXT)


def _decimal(values: np.ndarray, digits: int, unset: pa.Array) -> pa.Array:
    """Integers of units of 10**-digits as decimal numbers; null where `unset`."""
    whole, rest = np.divmod(np.abs(values), 10**digits)
    sign = pc.if_else(pa.array(values < 0), "-", "")
    fraction = pc.utf8_lpad(pa.array(rest).cast(TEXT), digits, "0")
    number = pc.binary_join_element_wise(sign, pa.array(whole).cast(TEXT), "")
    return pc.if_else(unset, pa.scalar(None, TEXT), pc.binary_join_element_wise(number, fraction, "."))


def _escaped(column: pa.Array) -> pa.Array:
    """Texts as they stand between tabs; null stays null."""
    special = pc.or_(
        pc.match_substring_regex(column, _SPECIAL), pc.is_in(column, value_set=pa.array([*_MARKS], TEXT))
    ).fill_null(False)
    if not pc.any(special).as_py():
        return column
    texts = [_MARKS.get(text) or re.sub(_SPECIAL, _hex, text) for text in column.filter(special).to_pylist()]
    return pc.replace_with_mask(column, special, pa.array(texts, TEXT))


def _hex(match: re.Match[str]) -> str:
    return f"\\x{ord(match[0]):02x}"

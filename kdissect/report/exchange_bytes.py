"""The bytes of an exchange as rows for the page: what `kdissect show` prints, cut to what a person reads there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from kdissect.escaping import visible

ROWS = 120
"""Fields of a message that are listed: more are read with `kdissect show`."""
BYTES, TEXT = 8, 80
"""Bytes of a field in hexadecimal, and characters of its value."""
HEADER = "header."


def bytes_of(
    row: Mapping[str, Any], sides: Sequence[tuple[str, pa.Table | None, bytes]], notes: Sequence[str], name: str
) -> dict[str, Any]:
    """An exchange for the page: title, notes, and for each side a title and rows of depth, offset, bytes, field, type,
    value, meaning. `sides`: for each, its title, its fields as `kdissect.explain` has them, its bytes. Credentials and
    what records hold are hidden in what is given, as `show` does without `reveal`."""
    version = "" if row["api_version"] is None else f" v{row['api_version']}"
    made: list[dict[str, Any]] = []
    for title, explained, data in sides:
        if explained is None:
            made.append({"title": f"{title}: not captured", "rows": []})
            continue
        left = f", the first {ROWS} fields" if explained.num_rows > ROWS else ""
        made.append(
            {
                "title": f"{title}, {len(data):,} bytes{left}",
                "rows": [_field(field, data) for field in explained.slice(0, ROWS).to_pylist()],
            }
        )
    return {"title": visible(f"{name}  {row['api']}{version}  {row['status']}"), "notes": list(notes), "sides": made}


def _field(field: Mapping[str, Any], data: bytes) -> list[Any]:
    path, offset, length = field["path"], field["offset"], field["length"]
    depth = min(12, path.count(".") + path.count("[") - path.count(HEADER))
    raw = data[offset : offset + length] if offset is not None and length else b""
    shown = "(hidden)" if field.get("hidden") else raw[:BYTES].hex(" ") + (" .." if len(raw) > BYTES else "")
    value = None if field["value"] is None else visible(str(field["value"]))
    if value is not None and len(value) > TEXT:
        value = value[:TEXT] + "\u2026"
    return [depth, offset, shown, path.rsplit(".", 1)[-1], field["type"], value, field["meaning"]]

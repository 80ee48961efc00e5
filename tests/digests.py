"""Digests of every table of every capture: to show that a change left all of them as they were.

    python -m tests.digests > before.txt          (in a checkout of the one commit)
    python -m tests.digests > after.txt           (in a checkout of the other)
    diff before.txt after.txt

A line a capture and table: rows and digest. Paths may be given instead of `captures/`; KDISSECT_DIGEST_OPTIONS holds
JSON for `kdissect.open`, such as {"jobs": 2}. It uses nothing but what `import kdissect` gives, so that it runs on any
commit (copy it there if need be).
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pyarrow as pa

import kdissect
from kdissect.tables.declaration import TABLES

ENDINGS = (".pcap", ".pcapng", ".gz", ".zst", ".lz4", ".xz")
BESIDE = (".log.", ".jsonl.", "/field_rotated")
"""Parts of the paths of files that are no captures, or parts of a set."""
AS_MADE = {"findings", "capture_quality"}
"""Tables whose texts may be worded anew: they are told apart in the output, so that a reader can leave them out."""


def captures(paths: list[str]) -> Iterator[str]:
    """The captures in these folders, rotated sets as one, and the files among the paths."""
    for name in paths:
        path = Path(name)
        if not path.is_dir():
            yield name
            continue
        for one in sorted(path.rglob("*")):
            single = one.name.endswith(ENDINGS) and not any(part in one.as_posix() for part in BESIDE)
            if single or (one.is_dir() and one.name.startswith("field_rotated")):
                yield str(one)


def digest(table: pa.Table) -> str:
    """A digest of names and values, whatever the chunks and dictionaries are."""
    found = hashlib.blake2b(digest_size=12)
    for name in table.column_names:
        found.update(name.encode())
        found.update(json.dumps(table[name].to_pylist(), default=plain).encode())
    return found.hexdigest()


def plain(value: object) -> str:
    """A value as text, whatever class of time zones Arrow gives times."""
    return value.isoformat() if isinstance(value, datetime) else repr(value)


def main(paths: list[str]) -> None:
    """Print a line for each capture and table."""
    options = json.loads(os.environ.get("KDISSECT_DIGEST_OPTIONS", "{}"))
    for path in captures(paths):
        try:
            tables = kdissect.open(path, **options).tables(list(TABLES))
        except Exception as error:
            print(f"{path}\t{type(error).__name__}\t{error}")
            continue
        for name, table in tables.items():
            mark = "worded" if name in AS_MADE else "exact"
            print(f"{path}\t{name}\t{mark}\t{table.num_rows}\t{digest(table)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:] or ["captures"])

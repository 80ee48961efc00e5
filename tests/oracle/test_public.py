"""Public captures of other projects, where KDISSECT_PUBLIC_CAPTURES names the folder that they lie in.

`public.tsv` pins them: repository, path, and git's name of the blob. A file is looked for at REPOSITORY/PATH below the
folder, as a checkout of each repository lies there; one with other content is none of them. Nearly all are of other
protocols and give no exchange. Those of Kafka have as many requests and responses as tshark 4.0 shows, told their port.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import kdissect
from kdissect.problems import CaptureError

FOLDER = os.environ.get("KDISSECT_PUBLIC_CAPTURES")
LIST = Path(__file__).with_name("public.tsv")
pytestmark = [
    pytest.mark.oracle,
    pytest.mark.skipif(FOLDER is None, reason="KDISSECT_PUBLIC_CAPTURES names no folder"),
]


class Pinned(NamedTuple):
    """A line of the list."""

    repository: str
    path: str
    blob: str
    requests: int
    responses: int


def pinned() -> Iterator[tuple[Path, Pinned]]:
    """The captures that are there, with what is expected of them."""
    for line in LIST.read_text().splitlines()[1:]:
        repository, path, blob, requests, responses = line.split("\t")
        file = Path(str(FOLDER)) / repository / path
        if file.is_file() and blob_of(file.read_bytes()) == blob:
            yield file, Pinned(repository, path, blob, int(requests), int(responses))


def blob_of(data: bytes) -> str:
    """Git's name of a file's content."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def test_exchanges_of_kafka_and_of_nothing_else() -> None:
    wrong, read, connections = [], 0, 0
    for file, one in pinned():
        try:
            tables = kdissect.open(file, jobs=1).tables(
                {
                    "exchanges": ["connection_id", "request_first_at", "response_first_at"],
                    "connections": ["connection_id", "is_kafka", "exchanges"],
                }
            )
        except CaptureError:  # some are no captures, or of formats that are not read
            continue
        rows = tables["exchanges"].to_pylist()
        found = tuple(sum(row[f"{side}_first_at"] is not None for row in rows) for side in ("request", "response"))
        invented = [r for r in tables["connections"].to_pylist() if r["exchanges"] and not r["is_kafka"]]
        if found != (one.requests, one.responses) or invented:
            wrong.append(f"{one.repository} {one.path}: {found}, expected {one.requests} and {one.responses}")
        read += 1
        connections += tables["connections"].num_rows
    print(f"{read} captures, {connections} connections")
    assert read, f"none of the captures of {LIST.name} is below {FOLDER}"
    assert not wrong, "\n".join(wrong)

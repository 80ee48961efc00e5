"""What a job leaves for the next one, without Spark: rows of settled connections, index rows of open ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import kdissect
from kdissect.capture import open_captures
from kdissect.engine.capture_tables import MADE
from kdissect.engine.settings import Settings
from kdissect.kafka.streams.idle import resting
from kdissect.spark.cells.table_cells import Cell
from kdissect.spark.keep import handover
from kdissect.spark.stages.decoding import coded_tables
from kdissect.spark.stages.indexing import index
from kdissect.spark.stages.plan import Plan, source_of
from kdissect.tables.declaration import columns_of

Row = tuple[str, str, bytes, int, int, int]


def job(
    paths: Any, partitions: int, first: int, before: list[Row], keylog: Path | None, tables: Sequence[str] = MADE
) -> tuple[Plan, list[Row]]:
    """Rows of KEPT that a job makes of one capture's files from number `first` on, after a job that left `before`."""
    sources = [source_of(capture, False) for capture in open_captures(paths)]
    settings = Settings(keylog=None if keylog is None else keylog.read_bytes())
    plan = Plan(sources, {name: columns_of(name) for name in tables}, settings, list(range(partitions)))
    packed = [row for row in before if row[0] == handover.PACKED]
    rows = [*index([(0, file) for file in range(first, len(sources[0].files))], plan)]
    rows += handover.indexed([_batch(packed)], plan, {0: 0})
    made: list[Row] = []
    for bucket in range(partitions):
        mine = [
            batch.slice(i, 1)
            for batch in rows
            for i, at in enumerate(batch.column("bucket").to_pylist())
            if at == bucket
        ]
        mine.sort(key=lambda row: tuple(row.column(name)[0].as_py() for name in ("capture", "file", "chunk")))
        made += _listed(handover.decode(mine, plan))
    return plan, made


def test_connections_that_rest_are_open_too(
    captures: Path, rotate: Any, tabled: Any, equal: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resting, "LIVE", 1)
    test_a_job_goes_on_from_what_another_left(
        captures, rotate, tabled, equal, "k4_fetch_sessions_raw.pcap", 100, 4, settles=True
    )


def _batch(rows: list[Row]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True) if rows else [[] for _ in handover.KEPT]
    return pa.RecordBatch.from_arrays(
        [pa.array(list(column), field.type) for column, field in zip(columns, handover.KEPT, strict=True)],
        schema=handover.KEPT,
    )


def _listed(batches: Iterator[pa.RecordBatch]) -> list[Any]:
    return [tuple(column[i].as_py() for column in batch.columns) for batch in batches for i in range(batch.num_rows)]


@pytest.mark.parametrize(
    ("name", "slower", "known", "settles"),
    [
        ("base.pcap", 1, 3, False),
        ("base.pcap", 100, 2, True),
        ("k4_fetch_sessions_raw.pcap", 100, 4, True),
        ("raw_reuse.pcap", 100, 2, False),  # all of one 4-tuple
        ("tls13.pcap", 100, 3, False),
    ],
)
def test_a_job_goes_on_from_what_another_left(
    captures: Path, rotate: Any, tabled: Any, equal: Any, name: str, slower: int, known: int, settles: bool
) -> None:
    """Connections that ended a minute ago are settled: captures made slower have some."""
    assert settles == gone_on(captures, rotate, tabled, equal, name, slower, known, MADE)


@pytest.mark.parametrize(
    ("name", "known"), [("base.pcap", 2), ("k4_fetch_sessions_raw.pcap", 4), ("raw_reuse.pcap", 2), ("tls13.pcap", 3)]
)
def test_rows_of_the_analysis_alone_are_left_too(
    captures: Path, rotate: Any, tabled: Any, equal: Any, name: str, known: int
) -> None:
    gone_on(captures, rotate, tabled, equal, name, 100, known, ["exchanges"])


def gone_on(
    captures: Path, rotate: Any, tabled: Any, equal: Any, name: str, slower: int, known: int, tables: Sequence[str]
) -> bool:
    """A job for the first `known` files of five of a capture, and one for all that goes on from there: their tables are
    those of one machine. Returns whether the first one left rows of settled connections."""
    folder, keys = rotate(captures / name, 5, slower), captures / name.replace(".pcap", ".keys.log")
    files = sorted(folder.iterdir(), key=lambda path: int(path.suffix[5:] or 0))
    keylog = keys if keys.exists() else None
    _, before = job(files[:known], 3, 0, [], keylog, tables)
    plan, after = job(files, 2, known, before, keylog, tables)
    ids = np.frombuffer(b"".join(data for table, _, data, *_ in before if table == handover.OPEN), np.uint64)
    rows = [row for row in before if not row[0].startswith("_")]
    coded = coded_tables(plan.tables)
    kept = [Cell(*row[:-1]) for row in _listed(handover.settled_rows([_batch(rows)], {0: ids}, coded))]
    assert len(ids)
    notes = [("_learned", data) for table, _, data, *_ in before if table == handover.SETTLED]
    notes += [(table, data) for table, _, data, *_ in [*before, *after] if table == "_file"]
    notes += [(table, data) for table, _, data, *_ in after if table == "_learned"]
    staged = [*kept, *(Cell(*row[:-1]) for row in after if not row[0].startswith("_"))]
    equal(tabled(plan, staged, notes), kdissect.open(folder, keylog=keylog).tables(list(tables)))
    return any(row[0] == "connections" for row in kept)

"""Thousands of small captures: what is done for each does not grow with the others, nor with partitions."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import kdissect
from kdissect.analysis.sights import both_ends
from kdissect.engine.sights import survey
from kdissect.spark.cells import table_cells
from kdissect.spark.cells.table_cells import Cell, cell, join_cells, read_cell
from kdissect.spark.job import BUCKET_BYTES, prepare
from kdissect.spark.partition_numbers import labels
from kdissect.spark.remote_storage import Storage
from kdissect.spark.stages.indexing import index
from kdissect.spark.stages.plan import EXPANDED, MATCHED_BYTES, MOST_READERS, Plan, carry_large
from kdissect.spark.writing.task_files import TableFiles
from kdissect.tables.brokers import Brokers


def copies(captures: Path, folder: Path, count: int, name: str = "base_tiny.pcap") -> Path:
    """So many captures, each by itself."""
    folder.mkdir()
    for number in range(count):
        shutil.copy(captures / name, folder / f"c{number:04d}x.pcap")
    return folder


def begun(plan: Plan) -> set[tuple[int, int]]:
    """The captures that are begun in buckets: (capture, bucket)."""
    rows = index([(number, 0) for number in range(len(plan.sources))], plan)
    return {(row["capture"], row["bucket"]) for batch in rows for row in batch.to_pylist()}


def test_a_small_capture_is_begun_once(captures: Path, tmp_path: Path) -> None:
    """However many partitions there are; and captures are spread over these."""
    job = prepare(copies(captures, tmp_path / "in", 40, "base_short.pcap"), ["exchanges"])
    for count in (4, 32):
        plan = Plan(job.sources, job.columns, job.settings, labels(count), BUCKET_BYTES)
        assert len(begun(plan)) == 40
        assert len({bucket for _, bucket in begun(plan)}) >= count // 2
    everywhere = Plan(job.sources, job.columns, job.settings, labels(32))
    assert len(begun(everywhere)) > 40


def test_buckets_follow_bytes(captures: Path, tmp_path: Path) -> None:
    job = prepare(copies(captures, tmp_path / "in", 1, "base_short.pcap"), ["exchanges"])
    (size,) = job.sources[0].stored
    for each, expected in ((size, 1), (size - 1, 2), (size // 3, 4), (1, 16), (0, 16)):
        found = Plan(job.sources, job.columns, job.settings, labels(16), each).buckets_of(0).tolist()
        assert len(found) == len(set(found)) == expected
        assert set(found) <= set(labels(16))


@pytest.mark.parametrize(("count", "tasks"), [(1, MOST_READERS), (10, MOST_READERS), (30, 2), (60, 1), (200, 1)])
def test_few_tasks_read_a_capture_elsewhere(captures: Path, count: int, tasks: int) -> None:
    """Each of them reads all of its files through a network; captures are dealt in turn."""
    size = MATCHED_BYTES
    job = prepare(captures / "base_tiny.pcap", ["exchanges"])
    far = replace(job.sources[0], remote=True, storage=Storage("s3a://day/"), stored=[size])
    cluster: Any = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=40, master="yarn"))
    plan = replace(job, sources=[far] * count).on(cluster).plan
    assert len(plan.labels) == 80
    dealt = Counter(bucket for number in range(count) for bucket in plan.buckets_of(number).tolist())
    assert sum(dealt.values()) == count * tasks
    assert max(dealt.values()) == -(-count * tasks // 80)
    large = replace(far, stored=[20 * size])  # what others may have is kept in memory
    plan = replace(job, sources=[large] * count).on(cluster).plan
    assert len(plan.buckets_of(0)) == (MOST_READERS if count == 1 else 20)


def test_payloads_of_large_captures_elsewhere_travel(captures: Path) -> None:
    """Where others may have the same exchanges: else many tasks would read them, each twice."""
    (here,) = prepare(captures / "base_tiny.pcap", ["exchanges"]).sources
    small = replace(here, remote=True, storage=Storage("s3a://day/"), stored=[MOST_READERS * MATCHED_BYTES])
    large = replace(small, stored=[MOST_READERS * MATCHED_BYTES + 1])
    several = replace(large, described=["eth0", "eth1"])
    assert [one.ranged for one in carry_large([large])] == [True]
    assert [one.ranged for one in carry_large([several])] == [False]
    near = replace(here, stored=large.stored)
    assert [one.ranged for one in carry_large([small, large, near])] == [True, False, True]


@pytest.mark.parametrize("transport", [None, "ranges", "payload"])
def test_partitions_follow_bytes_of_packets(captures: Path, tmp_path: Path, transport: str | None) -> None:
    """However payloads go, and of compressed files by what they may hold."""
    cluster: Any = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=2, master="yarn"))
    (tmp_path / "a.pcap").write_bytes((captures / "base_tiny.pcap").read_bytes())
    with pa.CompressedOutputStream(str(tmp_path / "b.pcap.gz"), "gzip") as packed:
        packed.write((captures / "base_tiny.pcap").read_bytes())
    for name, times in (("a.pcap", 1), ("b.pcap.gz", EXPANDED)):
        job = prepare(tmp_path / name, ["exchanges"], transport=transport)
        (source,) = job.sources
        assert source.packet_bytes == times * (tmp_path / name).stat().st_size
        sizes = [0] if times > 1 else [10 << 30]
        plan = replace(job, sources=[replace(source, stored=[10 << 30], sizes=sizes)]).on(cluster).plan
        assert len(plan.labels) == 20 * times


def test_partitions_that_are_asked_for_have_all_captures(captures: Path) -> None:
    job, spark = prepare(captures / "base_tiny.pcap", ["exchanges"]), SimpleNamespace()
    assert job.on(spark, 7).plan.bucket_bytes == 0  # type: ignore[arg-type]
    spark.sparkContext = SimpleNamespace(defaultParallelism=2, master="yarn")
    assert job.on(spark).plan.bucket_bytes == BUCKET_BYTES  # type: ignore[arg-type]


def test_small_pieces_are_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows stay in order table by table; large pieces, and tables that come first, are not held back."""
    monkeypatch.setattr(table_cells, "JOINED_ROWS", 100)

    def one(name: str, first: int, count: int) -> Cell:
        text = pa.array([f"from {first}"] * count).dictionary_encode()
        return Cell(name, "", cell(pa.table({"n": range(first, first + count), "text": text})))

    given = [one("a", 0, 100), *(one(name, 100 + 30 * n, 30) for n in range(5) for name in ("a", "b")), one("c", 7, 1)]
    found = [(name, table["n"].to_pylist()) for name, table in join_cells(given, first=("c",))]
    assert [(name, len(rows)) for name, rows in found] == [
        ("a", 100), ("a", 120), ("b", 120), ("c", 1), ("a", 30), ("b", 30),
    ]  # fmt: skip
    for name, first in (("a", 0), ("b", 100)):
        rows = [row for of, some in found for row in some if of == name]
        assert rows == list(range(first, 250))


def test_a_cell_is_one_batch() -> None:
    parts = [pa.record_batch({"n": [n], "text": pa.array([str(n)]).dictionary_encode()}) for n in range(50)]
    found = read_cell(cell(pa.Table.from_batches(parts)))
    assert found["n"].num_chunks == found["text"].num_chunks == 1
    assert found["text"].to_pylist() == [str(n) for n in range(50)]


def test_rows_that_wait_for_their_file_are_measured_once(tmp_path: Path) -> None:
    asked = []

    class Piece:
        num_rows = 1

        @property
        def nbytes(self) -> int:
            asked.append(self)
            return 1

    files = TableFiles(tmp_path, {}, {})
    for _ in range(200):
        files.add("exchanges", Piece())  # type: ignore[arg-type]
    assert len(asked) == 200


def counted(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[Any]:
    """What a function is called with, call by call."""
    calls, known = [], getattr(owner, name)

    def call(*given: Any, **named: Any) -> Any:
        calls.append(given)
        return known(*given, **named)

    monkeypatch.setattr(owner, name, call)
    return calls


def test_names_are_made_once_for_all_rows(captures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each capture has rows and a broker of its own."""
    named = {}
    for count in (10, 40):
        folder = copies(captures, tmp_path / str(count), count)
        with monkeypatch.context() as patched:
            calls = counted(patched, Brokers, "_nodes")
            assert kdissect.open(folder).table("exchanges", ["broker"]).num_rows
            named[count] = len(calls)
    assert named[10] >= 10
    assert named[40] <= 4.2 * named[10]


def test_captures_that_share_nothing_are_not_looked_at_again(
    captures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = copies(captures, tmp_path / "in", 2)
    shutil.copy(captures / "raw_reuse.pcap", folder / "other.pcap")
    expected = kdissect.open(sorted(folder.glob("c*"))).table("exchanges").num_rows
    seen = counted(monkeypatch, survey, "seen_in")
    found = kdissect.open(folder).table("exchanges", ["capture"])
    assert [capture.name for capture, *_ in seen] == ["c0000x.pcap", "c0001x.pcap"]
    counts = dict(zip(*(column.to_pylist() for column in found["capture"].value_counts().flatten()), strict=True))
    assert counts["c0000x.pcap"] == expected
    assert counts["other.pcap"]


def test_requests_meet_their_neighbours_alone() -> None:
    """A request that every capture has is held against the next capture's, not against all."""
    count = 500
    ids, same = np.arange(count, dtype=np.uint64), np.zeros(count, np.uint64)
    places = np.arange(count)
    first, _, _ = both_ends.meetings(same, same, places, ids, places)
    assert len(first) == 2 * (count - 1)

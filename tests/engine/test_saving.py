"""Tables written to Parquet part by part: the rows that `tables` returns, in the same order, and little held."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import kdissect
from kdissect.analysis.findings import spans
from kdissect.analysis.stage import NO_WATERMARK
from kdissect.arrays.rows import Rows
from kdissect.capture.captureset import CaptureSet
from kdissect.capture.window import Window
from kdissect.cli.main import main
from kdissect.engine import analysed_run
from kdissect.engine.analysed_run import LateNames
from kdissect.engine.bounds.spool import Spool
from kdissect.engine.saving import folder as folder_module
from kdissect.engine.saving import ordered_rows, sorted_parts, spooled_evidence
from kdissect.engine.saving.folder import InFlight
from kdissect.engine.saving.ordered_rows import Ordered
from kdissect.engine.saving.sorted_parts import Merge
from kdissect.problems import CaptureError
from kdissect.tables import formats
from tests.bench.workloads import WORKLOADS
from tests.conftest import ROOT

CAPTURES = ROOT / "captures"
SOME = (
    "base.pcap", "k4_session_eviction.pcap", "k4_share_group.pcap", "k4_slow_and_throttled.pcap",
    "k4_transactions.pcap", "k4_follower_sessions.pcap", "field_loss5.pcap", "field_midstream.pcap",
    "field_cut.pcapng", "field_gz.pcap.gz", "sasl_old.pcap", "base_tiny.pcap",
)  # fmt: skip
IDS = ("exchange_id", "connection_id", "capture", "request_file", "response_file", "connections")


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some dozen blocks a capture, parts of a block or a few, and pieces of some rows."""
    monkeypatch.setattr(CaptureSet, "window", lambda self: Window(1 << 17, 4))
    monkeypatch.setattr(analysed_run, "LOT", 50)
    for name, value in (("PIECE", 64), ("LATE_PIECE", 8), ("AT_ONCE", 100)):
        monkeypatch.setattr(sorted_parts, name, value)
    monkeypatch.setattr(folder_module, "ROW_GROUP", 70)


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """How each `save` wrote its rows, in turn."""
    taken: list[str] = []
    for name in ("lots_as_read", "settled_lots"):
        way = getattr(analysed_run.AnalysedRun, name)

        def noted(self: Any, *given: Any, name: str = name, way: Any = way) -> Any:
            taken.append(name)
            return way(self, *given)

        monkeypatch.setattr(analysed_run.AnalysedRun, name, noted)
    return taken


@pytest.fixture
def set_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    """All rows go through temporary files, as those of a pipe."""

    def never(self: Any) -> Any:
        raise LateNames
        yield

    monkeypatch.setattr(analysed_run.AnalysedRun, "lots_as_read", never)


def same(source: Any, folder: Path, **settings: Any) -> None:
    """What is written is what `tables` returns."""
    wanted = kdissect.open(source, **settings).tables()
    rows = kdissect.open(source, **settings).save(folder)
    assert rows == {name: table.num_rows for name, table in wanted.items()}
    assert sorted(os.listdir(folder)) == sorted(f"{name}.parquet" for name in wanted)
    for name, table in wanted.items():
        written = pq.read_table(folder / f"{name}.parquet")
        assert written.schema == table.schema, name
        assert written.equals(table), name


@pytest.mark.parametrize("name", SOME)
def test_written_as_read_at_once(name: str, tmp_path: Path, small_parts: None) -> None:
    same(CAPTURES / name, tmp_path)


@pytest.mark.parametrize("name", SOME)
def test_written_from_temporary_files(name: str, tmp_path: Path, small_parts: None, set_aside: None) -> None:
    same(CAPTURES / name, tmp_path)


@pytest.mark.parametrize(
    ("name", "taken"),
    [
        ("k4_transactions", ["lots_as_read"]),
        ("k4_java_classic", ["lots_as_read", "settled_lots"]),  # names are told when rows were written already
    ],
)
def test_rows_are_set_aside_for_late_names_alone(
    name: str,
    taken: list[str],
    tmp_path: Path,
    small_parts: None,
    ways: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(analysed_run, "LOT", 1)  # nothing is left for the last lot
    same(CAPTURES / f"{name}.pcap", tmp_path)
    assert ways == taken


@pytest.mark.exhaustive
@pytest.mark.parametrize("path", sorted(CAPTURES.glob("*.pcap*")), ids=lambda path: path.name)
def test_every_capture(path: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """In parts as they come, and in many small ones."""
    try:
        kdissect.open(path)
    except CaptureError:
        pytest.skip("no capture")
    (tmp_path / "parts").mkdir()
    same(path, tmp_path / "parts")
    request.getfixturevalue("small_parts")
    (tmp_path / "small").mkdir()
    same(path, tmp_path / "small")
    request.getfixturevalue("set_aside")
    (tmp_path / "aside").mkdir()
    same(path, tmp_path / "aside")


@pytest.mark.whole
def test_several_captures_threads_and_a_topic(tmp_path: Path, small_parts: None) -> None:
    names = [CAPTURES / f"{name}.pcap" for name in ("k4_follower_sessions", "k4_slow_and_throttled")]
    for number, settings in enumerate(({"jobs": 3}, {"jobs": 1})):
        (tmp_path / str(number)).mkdir()
        same(names, tmp_path / str(number), **settings)
    topic = next(name for name in kdissect.open(names[1]).table("fetch_partitions")["topic"].to_pylist() if name)
    (tmp_path / "topic").mkdir()
    same(names[1], tmp_path / "topic", topic=topic)


def test_a_pipe(tmp_path: Path, small_parts: None) -> None:
    """Read once, and yet everything has the names that come later."""
    path = CAPTURES / "k4_slow_and_throttled.pcap"
    read, write = os.pipe()

    def send() -> None:
        with os.fdopen(write, "wb") as stream:
            stream.write(path.read_bytes())

    sender = threading.Thread(target=send)
    sender.start()
    with os.fdopen(read, "rb") as stream:
        kdissect.open(stream).save(tmp_path)
    sender.join()
    for name in ("exchanges", "fetches", "fetch_partitions", "fetch_sessions"):
        tables = pq.read_table(tmp_path / f"{name}.parquet"), kdissect.open(path).table(name)
        # Ids go by the capture's name, and so does the order of rows of one instant.
        own = [column for column in tables[0].column_names if column not in IDS]
        got, want = (sorted(map(str, table.select(own).to_pylist())) for table in tables)
        assert got == want, name


@pytest.mark.whole
def test_rows_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, set_aside: None) -> None:
    """Of ten times the capture not more rows wait in memory, neither between blocks nor while they are put in order."""
    monkeypatch.setattr(CaptureSet, "window", lambda self: Window(1 << 17, 4))
    monkeypatch.setattr(analysed_run, "LOT", 500)
    for name, value in (("PIECE", 128), ("LATE_PIECE", 16), ("AT_ONCE", 256)):
        monkeypatch.setattr(sorted_parts, name, value)
    parts: list[int] = []
    merges: list[Merge] = []
    aside, made = analysed_run.Pieces.spool_all, Merge.__init__

    def counting(self: Any, *given: Any) -> Any:
        parts.append(self.count)
        return aside(self, *given)

    def watched(self: Merge, *given: Any) -> None:
        made(self, *given)
        merges.append(self)

    monkeypatch.setattr(analysed_run.Pieces, "spool_all", counting)
    monkeypatch.setattr(Merge, "__init__", watched)
    held = {}
    for size in (300_000, 3_000_000):
        path = tmp_path / f"{size}.pcap"
        WORKLOADS["plain"][1](path, size)
        parts.clear()
        merges.clear()
        rows = kdissect.open(path).save(tmp_path / str(size))
        held[size] = max(parts), max(merge.held for merge in merges)
        assert rows["exchanges"] > 1.5 * size / 1000
    assert len(parts) > 10
    assert held[3_000_000][0] < 3 * held[300_000][0]
    assert held[3_000_000][1] < 2000 < rows["exchanges"]


@pytest.mark.parametrize("where", ["lots_as_read", "settled_lots", "ordered"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_nothing_is_left_behind(
    where: str,
    error: type[BaseException],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    def broken(self: Any, *given: Any) -> Iterator[Any]:
        yield from ()
        raise error

    monkeypatch.setattr(Merge if where == "ordered" else analysed_run.AnalysedRun, where, broken)
    if where == "settled_lots":
        request.getfixturevalue("set_aside")
    with pytest.raises(error):
        kdissect.open(CAPTURES / "base.pcap").save(tmp_path / "direct")
    left = os.listdir(tmp_path / "direct")
    assert not [name for name in left if name.startswith(".")]
    assert not left


def test_interrupted_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Merge) -> Iterator[pa.Table]:
        yield from ()
        raise KeyboardInterrupt

    monkeypatch.setattr(Merge, "ordered", broken)
    assert main([str(CAPTURES / "base.pcap"), "-o", f"{tmp_path}/"]) != 0
    assert not os.listdir(tmp_path)


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    def full(self: Spool, table: pa.Table) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Spool, "put", full)
    assert main([str(CAPTURES / "base.pcap"), "-o", f"{tmp_path}/"]) == 2
    assert "No space left on device" in capfd.readouterr().err
    assert not os.listdir(tmp_path)


def test_a_disk_that_fills_up_while_rows_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def full(self: formats.ParquetFile, batch: pa.RecordBatch) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(formats.ParquetFile, "write", full)
    assert main([str(CAPTURES / "base.pcap"), "-o", f"{tmp_path}/"]) == 2
    assert "No space left on device" in capfd.readouterr().err
    assert not os.listdir(tmp_path)


def test_findings_of_all_spans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_parts: None) -> None:
    """They are those of the whole capture, by one process and by two."""
    path = CAPTURES / "k4_session_eviction.pcap"
    monkeypatch.setattr(spans, "SPAN_ROWS", 300)
    expected = kdissect.open(path).table("findings")
    assert any("spans of time" in text for text in expected["text"].to_pylist())
    kdissect.open(path).save(tmp_path)
    assert pq.read_table(tmp_path / "findings.parquet").equals(expected)


def test_batches_that_producers_sent_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = CAPTURES / "k4_transactions.pcap"
    assert kdissect.open(path).table("producers").num_rows > 10
    monkeypatch.setattr(CaptureSet, "window", lambda self: Window(1 << 17, 4))
    for most, said in ((10, True), (10**6, False)):
        monkeypatch.setattr(spooled_evidence, "MOST_SENT", most)
        kdissect.open(path).save(tmp_path)
        measures = pq.read_table(tmp_path / "capture_quality.parquet")["measure"].to_pylist()
        assert ("batches_searched" in measures) == said


def table(times: np.ndarray, first: int) -> pa.Table:
    ids = [f"{i:016x}:{i}" for i in range(first, first + len(times))]
    missing = times < 0
    return pa.table(
        {"_time": pa.array(times, mask=missing), "exchange_id": ids, "row": np.arange(first, first + len(times))}
    )


def test_merging(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts that overlap, rows that come very late, ties, rows without a time: as sorted at once."""
    for name, value in (("PIECE", 50), ("LATE_PIECE", 5), ("AT_ONCE", 100)):
        monkeypatch.setattr(sorted_parts, name, value)
    random = np.random.default_rng(1)
    parts, first = [], 0
    for number in range(60):
        times = number * 1000 + random.integers(0, 1100, 200)
        times[random.integers(0, 200, 3)] = random.integers(0, number * 1000 + 1, 3)
        times[:2] = -1
        parts.append(table(times, first))
        first += 200
    with tempfile.TemporaryDirectory() as folder, Spool(Path(folder)) as spool:
        merge = Merge("fetches", spool)
        for part in parts:
            merge.add(part)
        got = pa.concat_tables(list(merge.ordered()))
    every = pa.concat_tables(parts)
    assert got.equals(every.take(pa.array(np.lexsort((every["row"], every["_time"].fill_null(2**62))))))
    assert merge.held < 1000 < every.num_rows


@pytest.mark.parametrize("most", [10**6, 700])
def test_in_order_while_rows_come(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that overlap, ties, rows without a time, an instant that stands still while more wait than may: as sorted at
    once, and most of them before the last have come."""
    monkeypatch.setattr(ordered_rows, "MOST_HELD", most)
    random = np.random.default_rng(1)
    parts, got, early = [], [], 0
    with tempfile.TemporaryDirectory() as folder, Spool(Path(folder)) as spool:
        rows = Ordered("fetches", spool)
        for number in range(60):
            times = number * 1000 + random.integers(0, 1100, 200)
            times[:2] = -1 if number % 7 == 0 else times[2:4]
            parts.append(table(times, 200 * number))
            before = 30_000 if 30 <= number < 50 else 1000 * (number + 1)
            got += [final for final in [rows.add(parts[-1], before)] if final is not None]
        early = sum(part.num_rows for part in got)
        got += rows.drain()
    every = pa.concat_tables(parts)
    assert pa.concat_tables(got).equals(
        every.take(pa.array(np.lexsort((every["row"], every["_time"].fill_null(2**62)))))
    )
    assert early > (5000 if most == 700 else 11_000)


def test_rows_that_come_too_late_to_be_in_order() -> None:
    with tempfile.TemporaryDirectory() as folder, Spool(Path(folder)) as spool:
        rows = Ordered("fetches", spool)
        for times, first, before, final in (
            (np.arange(10), 0, 8, list(range(8))), (np.array([8]), 10, 9, [8, 10])
        ):  # fmt: skip
            got = rows.add(table(times, first), before)
            assert got is not None
            assert got["row"].to_pylist() == final
        with pytest.raises(LateNames):
            rows.add(table(np.array([8]), 11), 20)


def test_exchanges_under_way() -> None:
    """The earliest request of those that went in and have not come back; ties come back one by one."""
    flight = InFlight()
    assert flight.earliest == NO_WATERMARK
    flight.take_off(Rows({}, 0))
    flight.take_off(Rows.of(table(np.array([5, 5, 3, -1, 9]), 0)))
    flight.land(Rows.of(table(np.array([3, 5]), 0)))
    assert flight.earliest == 5
    flight.take_off(Rows.of(table(np.array([4]), 0)))
    assert flight.earliest == 4
    flight.land(Rows.of(table(np.array([9, 5, 4]), 0)))
    assert flight.earliest == NO_WATERMARK


@pytest.mark.parametrize("time", [-1, 7])
def test_merging_rows_of_one_time(time: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of none, as responses alone are: in the order of their ids, of which each part has some of everywhere."""
    for name, value in (("PIECE", 500), ("LATE_PIECE", 5), ("AT_ONCE", 100)):
        monkeypatch.setattr(sorted_parts, name, value)
    random = np.random.default_rng(2)
    rows = random.permutation(10_000)
    with tempfile.TemporaryDirectory() as folder, Spool(Path(folder)) as spool:
        merge = Merge("fetches", spool)
        for first in range(0, 10_000, 250):
            ids = [f"{row:016x}:1" for row in rows[first : first + 250]]
            times = pa.array(np.full(250, time), mask=np.full(250, time < 0))
            merge.add(pa.table({"_time": times, "exchange_id": ids, "row": rows[first : first + 250]}))
        got = pa.concat_tables(list(merge.ordered()))
    assert got["row"].to_pylist() == list(range(10_000))
    assert merge.held < 1000


def test_dictionaries_do_not_grow_with_what_was_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of parts whose rows all have texts of their own, not more texts are held than rows."""
    for name, value in (("PIECE", 50), ("LATE_PIECE", 5), ("AT_ONCE", 100)):
        monkeypatch.setattr(sorted_parts, name, value)
    with tempfile.TemporaryDirectory() as folder, Spool(Path(folder)) as spool:
        merge = Merge("fetches", spool)
        for number in range(40):
            part = table(np.arange(200) + 190 * number, 200 * number)
            merge.add(part.append_column("text", part["exchange_id"].dictionary_encode()))
        parts = list(merge.ordered())
    assert sum(part.num_rows for part in parts) == 8000
    for part in parts:
        assert max(len(chunk.dictionary) for chunk in part["text"].chunks) <= 2 * merge.held < 1000
        assert part["text"].cast(pa.string()).equals(part["exchange_id"])

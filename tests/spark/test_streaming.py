"""Exchanges out of a directory that captures are rotated into."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from traceback import format_exception
from typing import Any

import pytest

import kdissect
import kdissect.spark
from kdissect.capture.captureset import Member
from kdissect.engine import resumption
from kdissect.engine.resumption import STREAMED, columns
from kdissect.engine.settings import Settings
from kdissect.problems import UsageError

pytest.importorskip("pyspark")

from kdissect.spark.placing import schema_of
from kdissect.spark.source.file_stream import LATE, FileStream, Watched, after, offset_of
from kdissect.spark.source.placed_rows import NOTES_CELL
from kdissect.spark.source.streaming import Work
from kdissect.spark.source.watched_folders import LocalFolder
from kdissect.spark.workers import reason
from kdissect.spark.writing import streamed_tables
from tests.conftest import CAPTURES
from tests.spark.conftest import later, moved, numbers_of
from tests.spark.test_stream_copies import both_ends

ENDED = ("pending", "unanswered", "no_response", "one_way", "partial", "orphan")
"""States of exchanges that may wait for the end of the capture."""
on_spark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]


@pytest.fixture
def pieces(captures: Path, rotate: Any) -> list[Path]:
    """A capture in six files."""
    folder: Path = rotate(captures / "base.pcap", 6)
    return [folder / ("cut.pcap" + (str(i) if i else "")) for i in range(6)]


def names(rows: Any) -> list[str]:
    return [row[1] for row in rows]


def test_the_file_that_is_being_written_is_left_alone(pieces: list[Path], tmp_path: Path) -> None:
    files = Watched(str(tmp_path))
    assert files.complete() == []
    shutil.copy(pieces[0], tmp_path)
    assert files.complete() == []
    (tmp_path / "notes.txt").write_text("no capture")
    os.mkfifo(tmp_path / "pipe.pcap")
    shutil.copy(pieces[1], tmp_path)
    assert names(files.complete()) == ["cut.pcap"]
    shutil.copy(pieces[2], tmp_path)
    begun = offset_of(files.complete(), {})
    assert [row[0] for row in files.complete()] == ["cut.pcap"] * 2
    assert [row for row in files.complete() if after(row, begun)] == []
    shutil.copy(pieces[3], tmp_path)
    assert names(row for row in files.complete() if after(row, begun)) == ["cut.pcap2"]


def test_names_come_round(pieces: list[Path], tmp_path: Path) -> None:
    """`tcpdump -W` writes into the same file again: it is another one by its first packet."""
    for number, piece in enumerate(pieces[:3]):
        shutil.copy(piece, tmp_path / f"cut.pcap{number}")
    files, at = FileStream(str(tmp_path), None), {}
    for number, complete in ((None, ["cut.pcap0", "cut.pcap1"]), (0, ["cut.pcap2"]), (1, ["cut.pcap0"])):
        if number is not None:
            with (tmp_path / f"cut.pcap{number}").open("r+b") as file:
                file.truncate()
                file.write(pieces[3 + number].read_bytes())
        end = files.latestOffset(at)
        (batch,) = files.partitions(at, end)
        assert names(row for row in batch.rows if not row[2].startswith(LATE)) == complete
        at = end


def test_a_quiet_file_is_complete(pieces: list[Path], tmp_path: Path) -> None:
    shutil.copy(pieces[0], tmp_path)
    os.utime(tmp_path / "cut.pcap", (1, 1))
    assert names(Watched(str(tmp_path), 60.0).complete()) == ["cut.pcap"]
    assert names(Watched(str(tmp_path), 1e12).complete()) == []


def test_a_compressed_copy_is_the_same_file(pieces: list[Path], tmp_path: Path) -> None:
    for piece in pieces[:2]:
        shutil.copy(piece, tmp_path)
    begun = offset_of(Watched(str(tmp_path)).complete(), {})
    (tmp_path / "cut.pcap.gz").write_bytes(gzip.compress(pieces[0].read_bytes()))
    assert names(Watched(str(tmp_path)).complete()) == ["cut.pcap"]
    (tmp_path / "cut.pcap").unlink()
    assert [row for row in Watched(str(tmp_path)).complete() if after(row, begun)] == []
    shutil.copy(pieces[2], tmp_path / "cut.pcap")  # the ring comes round (`tcpdump -W 2 -z gzip`)
    assert names(Watched(str(tmp_path)).complete()) == ["cut.pcap.gz", "cut.pcap1"]


def test_folders_hold_sets_of_their_own(pieces: list[Path], tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "rack" / "b1", tmp_path / ".hidden"):
        folder.mkdir(parents=True, exist_ok=True)
        for piece in pieces[:2]:
            shutil.copy(piece, folder)
    found = Watched(str(tmp_path)).complete()
    assert sorted((row[0], row[1]) for row in found) == [("cut.pcap", "cut.pcap"), ("rack/b1/cut.pcap", "cut.pcap")]


def test_a_file_that_went_away_after_it_was_planned_is_told(pieces: list[Path], tmp_path: Path) -> None:
    for piece in pieces:
        shutil.copy(piece, tmp_path)
    files = FileStream(str(tmp_path), None)
    end = files.latestOffset({})
    (tmp_path / "cut.pcap2").unlink()
    again = FileStream(str(tmp_path), None)  # after a restart
    (batch,) = again.partitions({}, end)
    assert [row[1] for row in batch.rows] == ["cut.pcap", *(f"cut.pcap{i}" for i in range(1, 5))]
    wanted = columns("problems", None)
    made = list(Work({"problems": wanted}).do("cut.pcap", [row[1:3] for row in batch.rows], None))
    where = [row["where"] for _, table in made[:-1] for row in table.to_pylist()]  # type: ignore[misc]
    assert "cut.pcap2" in where


def test_rows_that_are_written_have_their_place(pieces: list[Path]) -> None:
    """Every table of `follow` has the columns behind its own, as the batch job writes them."""
    wanted = {name: columns(name) for name in STREAMED}
    state, found = None, {name: list[Any]() for name in wanted}
    for piece in pieces:
        *made, state = Work(wanted, Settings(dated=True)).do("cut.pcap", [(piece.name, str(piece))], state)  # type: ignore[assignment]
        for name, table in made:  # type: ignore[misc]
            if name not in wanted:
                continue
            assert table.column_names == schema_of(name, wanted[name]).names
            found[name] += table.to_pylist()
    exchanges = {row["exchange_id"]: row for row in found["exchanges"]}
    for name in ("fetches", "fetch_partitions", "list_offsets", "groups"):
        assert found[name], name
    for name, rows in found.items():
        for row in rows:
            assert (row["capture"], row["date"]) == ("cut.pcap", row["at"] and row["at"].date()), name
            if "exchange_id" in wanted[name]:
                assert (row["connection_number"], row["exchange_number"]) == numbers_of(row), name
            other = exchanges.get(row.get("exchange_id") or "")
            if other is not None:
                assert row["broker"] == other["broker"], name
                assert "at" in wanted[name] or row["at"] == other["request_first_at"], name


def test_what_waits_comes_when_a_set_is_over(pieces: list[Path]) -> None:
    wanted = {name: columns(name) for name in ("exchanges", "fetch_sessions")}
    work = Work(wanted, Settings(dated=True))
    *made, state = work.do("cut.pcap", [(piece.name, str(piece)) for piece in pieces], None)
    assert isinstance(state, bytes)
    tables = [one for one in made if isinstance(one, tuple)]
    waited = list(work.end("cut.pcap", state))
    local = kdissect.open(pieces).tables(wanted)
    came = [table.num_rows for name, table in tables if name == "exchanges"]
    assert 0 < sum(came) < local["exchanges"].num_rows
    for name, expected in local.items():
        assert sum(table.num_rows for one, table in (*tables, *waited) if one == name) == expected.num_rows, name


def test_batches_are_bounded(pieces: list[Path], tmp_path: Path) -> None:
    limits = pytest.importorskip("pyspark.sql.streaming.datasource")
    for piece in pieces:
        shutil.copy(piece, tmp_path)
    files = FileStream(str(tmp_path), None, 2)
    seen, at = [], files.initialOffset()
    files.prepareForTriggerAvailableNow()
    while (end := files.latestOffset(at, files.getDefaultReadLimit())) != at:
        (batch,) = files.partitions(at, end)
        seen.append(names(batch.rows))
        at = end
    assert seen == [["cut.pcap", "cut.pcap1"], ["cut.pcap2", "cut.pcap3"], ["cut.pcap4"]]
    assert files.latestOffset({}, limits.ReadAllAvailable())["cut.pcap"]["file"] == "cut.pcap4"


def test_a_set_that_ended_is_forgotten_once(pieces: list[Path], tmp_path: Path) -> None:
    for piece in pieces[:3]:
        shutil.copy(piece, tmp_path)
    files = FileStream(str(tmp_path), None, forget=0.0)
    read = files.latestOffset({})
    over = files.latestOffset(read)
    (batch,) = files.partitions(read, over)
    assert [row[:3] for row in batch.rows] == [("cut.pcap", "", "")]
    assert files.latestOffset(over) == over
    shutil.copy(pieces[3], tmp_path)
    (again,) = files.partitions(over, files.latestOffset(over))
    assert names(again.rows) == ["cut.pcap2"]
    assert FileStream(str(tmp_path), None).latestOffset(read)["cut.pcap"]["file"] == "cut.pcap2"


def test_another_process_looks_into_new_files_only(
    pieces: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched, kept = tmp_path / "in", tmp_path / "kept"
    watched.mkdir()
    for piece in pieces[:3]:
        shutil.copy(piece, watched)
    files = FileStream(str(watched), None, looks=str(kept))
    assert files.latestOffset(files.latestOffset({}))["cut.pcap"]["file"] == "cut.pcap1"
    looked: list[str] = []
    first_packets = LocalFolder.first_packets

    def noting(self: LocalFolder, paths: Sequence[str]) -> Iterator[float]:
        looked.extend(Path(path).name for path in paths)
        return first_packets(self, paths)

    monkeypatch.setattr(LocalFolder, "first_packets", noting)
    assert Watched(str(watched), looks=str(kept)).complete() == files._files.complete()
    assert looked == []
    shutil.copy(pieces[3], watched)
    (watched / "cut.pcap1").touch()
    assert FileStream(str(watched), None, looks=str(kept)).latestOffset({})["cut.pcap"]["file"] == "cut.pcap2"
    assert looked == ["cut.pcap1", "cut.pcap3"]
    kept.write_bytes(kept.read_bytes()[:-9])
    assert len(Watched(str(watched), looks=str(kept)).complete()) == 3
    assert len(looked) == 6


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_a_file_that_grows_after_it_was_read_is_told(pieces: list[Path], tmp_path: Path, ending: str) -> None:
    """It was quiet for long enough to be taken as complete."""
    path = tmp_path / f"cut.pcap{ending}"
    whole = pieces[0].read_bytes() + pieces[1].read_bytes()[24:]
    written = gzip.compress(whole) if ending else whole
    rest = written[len(written) // 2 :]
    path.write_bytes(written[: len(written) // 2])
    os.utime(path, (1, 1))
    files = FileStream(str(tmp_path), 60.0)
    at, end = {}, files.latestOffset({})
    wanted = {name: columns(name) for name in ("exchanges", "problems")}
    said, state = [], None
    for more in (b"", rest[:1000], b"", rest[1000:]):
        (batch,) = files.partitions(at, end)
        *made, state = Work(wanted, Settings(dated=True)).do("cut.pcap", [row[1:3] for row in batch.rows], state)
        tables = dict(one for one in made if isinstance(one, tuple))
        said.append(tables[NOTES_CELL]["why"].to_pylist() if NOTES_CELL in tables else [])
        with path.open("ab") as file:
            file.write(more)
        os.utime(path, (1, 1))
        at, end = end, files.latestOffset(end)
    grown = "grew by {:,} bytes after it had been read, so these were not"
    assert said == [[], [], [grown.format(1000)], []]
    assert names(files.partitions(at, end)[0].rows) == [path.name]


def test_a_file_that_comes_after_later_ones_is_read_apart(pieces: list[Path], tmp_path: Path) -> None:
    """And one that was read, and was touched, renamed or compressed since, is not read again."""
    for piece in (pieces[0], *pieces[2:4]):
        shutil.copy(piece, tmp_path)
    files = FileStream(str(tmp_path), None)
    read = files.latestOffset({})
    assert files.latestOffset(read) == read
    time.sleep(0.05)  # a file's own time is that of the last tick
    (tmp_path / "cut.pcap").touch()
    (tmp_path / "cut.pcap2.gz").write_bytes(gzip.compress((tmp_path / "cut.pcap2").read_bytes()))
    (tmp_path / "cut.pcap2").unlink()
    shutil.copy(pieces[0], tmp_path / "cut.pcap01")
    shutil.copy(pieces[1], tmp_path)  # it may still be written to
    end = files.latestOffset(read)
    (touched,) = files.partitions(read, end)
    told = ["cut.pcap", "cut.pcap01", "cut.pcap2.gz"]
    assert sorted(row[1:3] for row in touched.rows) == [(name, f"{LATE}{tmp_path / name}") for name in told]
    assert files.latestOffset(end) == end
    shutil.copy(pieces[4], tmp_path)
    (more,) = files.partitions(end, files.latestOffset(end))
    assert [row[1:3] for row in more.rows] == [
        ("cut.pcap3", str(tmp_path / "cut.pcap3")), ("cut.pcap1", f"{LATE}{tmp_path / 'cut.pcap1'}"),
    ]  # fmt: skip
    rows = [row[1:3] for row in (*touched.rows, more.rows[1])]
    wanted = {name: columns(name) for name in ("exchanges", "problems", "findings")}
    work = Work(wanted, Settings(dated=True))
    *_, state = work.do("cut.pcap", [(piece.name, str(piece)) for piece in (pieces[0], pieces[2])], None)
    for told in (["cut.pcap1"], []):
        assert isinstance(state, bytes)
        *made, state = work.do("cut.pcap", rows, state)
        tables = dict(one for one in made if isinstance(one, tuple) and one[1].num_rows)
        assert [row["where"] for row in _rows(made, "problems") if row["detail"] == resumption.LATE] == told
        assert (tables[NOTES_CELL]["file"].to_pylist() if told else []) == told
        found = {row["request_first_at"]: row["status"] for row in _rows(made, "exchanges")}
        whole = kdissect.open(pieces).table("exchanges").to_pylist()
        alone = {row["request_first_at"] for row in kdissect.open(pieces[1]).table("exchanges").to_pylist()}
        expected = {at: row["status"] for row in whole if (at := row["request_first_at"]) in alone and at is not None}
        answered = {at for at, status in found.items() if status == "ok"}
        assert len(answered) >= 10 * len(told)
        assert {at: expected[at] for at in answered} == {at: found[at] for at in answered}
        assert found.keys() - {None} == (expected.keys() if told else set())
        assert "capture_began_late" not in {row["id"] for row in _rows(made, "findings")}


def test_numbers_of_incidents_go_on(captures: Path, rotate: Any) -> None:
    """From file to file, from a late one that is read apart, and where a set begins again."""
    folder = rotate(captures / "k4_fetch_sessions_raw.pcap", 4)
    pieces = [folder / ("cut.pcap" + (str(i) if i else "")) for i in range(4)]
    work = Work({"findings": columns("findings")}, Settings(dated=True))
    state: bytes | None = None
    last = 0
    for number, late in ((0, False), (2, False), (1, True), (3, False)):
        name, path = pieces[number].name, pieces[number]
        *made, left = work.do("cut.pcap", [(name, f"{LATE}{path}" if late else str(path))], state)
        assert isinstance(left, bytes)
        state = resumption.end_state(left) if late else left
        numbers = {row["incident"] for row in _rows(made, "findings")} - {None}
        assert numbers == set(range(last + 1, last + 1 + len(numbers)))
        assert numbers
        last += len(numbers)


def _rows(made: Iterable[object], name: str) -> list[dict[str, Any]]:
    """The rows of a table among what was made of files."""
    return [row for one in made if isinstance(one, tuple) and one[0] == name for row in one[1].to_pylist()]


def test_an_update_of_kdissect_goes_on_with_the_next_file(
    captures: Path, rotate: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It knows which files were read, and brings columns and a table that are new."""
    folder = rotate(captures / "k4_session_eviction.pcap", 6)
    pieces = [folder / ("cut.pcap" + (str(i) if i else "")) for i in range(4)]
    settings, tables = Settings(dated=True), ["exchanges", "connections", "findings", "problems"]
    with monkeypatch.context() as older:
        older.setattr(resumption, "__version__", "0.0.9")
        work = Work({name: columns(name)[:-1] for name in tables}, settings)
        *first, state = work.do("cut.pcap", [(piece.name, str(piece)) for piece in pieces[:2]], None)
    assert isinstance(state, bytes)
    with pytest.raises(UsageError, match="this state is damaged"):
        resumption.Continued("cut.pcap", {}, settings, state[:-100])
    work = Work({name: columns(name) for name in (*tables, "fetches")}, settings)
    told = resumption.UPDATED.format(before="0.0.9", after=kdissect.__version__)
    files = [(f"{pieces[1].name}.gz", f"{LATE}{pieces[1]}"), (pieces[2].name, str(pieces[2]))]
    *made, state = work.do("cut.pcap", files, state)
    notes = dict(one for one in made if isinstance(one, tuple))[NOTES_CELL]
    assert notes.to_pylist() == [{"capture": "cut.pcap", "file": "cut.pcap1", "why": told}]
    assert [row["where"] for row in _rows(made, "problems") if row["detail"] == told] == ["cut.pcap1"]
    assert "capture_began_late" not in {row["id"] for row in _rows(made, "findings")}
    rows = _rows(made, "exchanges")
    assert not {row["exchange_id"] for row in rows} & {row["exchange_id"] for row in _rows(first, "exchanges")}
    alone = kdissect.open(pieces[2]).table("exchanges").to_pylist()
    assert len(rows) > 200
    assert set(map(_answer, rows)) <= set(map(_answer, alone))
    *made, state = work.do("cut.pcap", [(pieces[3].name, str(pieces[3]))], state)
    assert not _rows(made, "problems")
    assert len(_rows(made, "fetches")) > 300


def _answer(exchange: dict[str, Any]) -> tuple[object, ...]:
    return tuple(exchange[name] for name in ("request_first_at", "status", "latency_ms", "correlation_id"))


def test_a_file_that_was_written_over_is_told(pieces: list[Path], tmp_path: Path) -> None:
    """A ring of files goes round between planning and reading: the newer file has its own turn."""
    for piece in pieces[:4]:
        shutil.copy(piece, tmp_path)
    files = FileStream(str(tmp_path), None)
    end = files.latestOffset({})
    (batch,) = files.partitions({}, end)
    begins = {name: first for _, name, _, first in batch.rows}
    shutil.copy(pieces[4], tmp_path / "cut.pcap")
    work = Work({name: columns(name) for name in ("exchanges", "problems")}, Settings(dated=True))
    *made, state = work.do("cut.pcap", [row[1:3] for row in batch.rows], None, begins)
    assert isinstance(state, bytes)
    told = {row["where"]: row["detail"] for row in _rows(made, "problems") if row["kind"] == "capture"}
    assert told == {"cut.pcap": resumption.REPLACED}
    shutil.copy(pieces[5], tmp_path)
    (batch,) = files.partitions(end, files.latestOffset(end))
    assert names(batch.rows) == ["cut.pcap3", "cut.pcap"]
    begins = {name: first for _, name, _, first in batch.rows}
    *more, state = work.do("cut.pcap", [row[1:3] for row in batch.rows], state, begins)
    assert not [row for row in _rows(more, "problems") if row["kind"] == "capture"]
    assert isinstance(state, bytes)
    found = {row["request_first_at"] for row in _rows([*made, *more, *work.end("cut.pcap", state)], "exchanges")}
    for piece, part in ((pieces[0], False), (pieces[2], True), (pieces[3], True)):
        rows = kdissect.open(piece).table("exchanges").to_pylist()
        answered = {row["request_first_at"] for row in rows if row["status"] == "ok"}
        assert (answered <= found) == part


def test_a_late_file_of_a_set_that_is_over_is_read_apart(pieces: list[Path], tmp_path: Path) -> None:
    """And those that were read stay known."""
    for piece in (pieces[0], *pieces[2:4]):
        shutil.copy(piece, tmp_path)
    read = FileStream(str(tmp_path), None).latestOffset({})
    forgetful = FileStream(str(tmp_path), None, forget=0.0)
    over = forgetful.latestOffset(read)
    (batch,) = forgetful.partitions(read, over)
    assert names(batch.rows) == [""]
    assert forgetful.latestOffset(over) == over
    time.sleep(0.05)  # a file's own time is that of the last tick
    (tmp_path / "cut.pcap").touch()
    shutil.copy(pieces[1], tmp_path)
    shutil.copy(pieces[4], tmp_path / "cut.pcap4")
    (tmp_path / "cut.pcap4").touch()
    end = FileStream(str(tmp_path), None).latestOffset(over)
    (batch,) = FileStream(str(tmp_path), None).partitions(over, end)
    assert sorted(names(batch.rows)) == ["cut.pcap", "cut.pcap1", "cut.pcap3"]
    work = Work({name: columns(name) for name in ("exchanges", "problems")}, Settings(dated=True))
    *_, state = work.do("cut.pcap", [(piece.name, str(piece)) for piece in (pieces[0], pieces[2])], None)
    assert isinstance(state, bytes)
    *made, state = work.do("cut.pcap", [row[1:3] for row in batch.rows], resumption.end_state(state))
    told = [row["where"] for row in _rows(made, "problems") if row["detail"] == resumption.LATE]
    assert told == ["cut.pcap1"]
    read_apart = {row["request_first_at"] for row in _rows(made, "exchanges")}
    first = {row["request_first_at"] for row in kdissect.open(pieces[0]).table("exchanges").to_pylist()}
    assert read_apart - first
    assert not (read_apart - {None}) & first


def test_a_link_that_comes_late_is_read_apart(pieces: list[Path], tmp_path: Path) -> None:
    for piece in (pieces[0], *pieces[2:4]):
        (tmp_path / piece.name).symlink_to(piece)
    files = FileStream(str(tmp_path), None)
    read = files.latestOffset({})
    time.sleep(0.05)
    for piece in (pieces[1], pieces[4]):
        (tmp_path / piece.name).symlink_to(piece)
        time.sleep(0.05)
    (batch,) = files.partitions(read, files.latestOffset(read))
    assert sorted(row[1:3] for row in batch.rows) == [
        ("cut.pcap1", f"{LATE}{tmp_path / 'cut.pcap1'}"), ("cut.pcap3", str(tmp_path / "cut.pcap3")),
    ]  # fmt: skip


@pytest.mark.parametrize("name", [b"caf\xe9.pcap", b"a\tb.pcap"])
def test_any_name_of_a_file(captures: Path, tmp_path: Path, name: bytes) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name))
    shutil.copy(captures / "base_tiny.pcap", path)
    files = FileStream(str(tmp_path), 0.0)
    (batch,) = files.partitions({}, json.loads(json.dumps(files.latestOffset({}))))
    ((row,),) = [rows.to_pylist() for rows in files.read(batch)]
    assert row["capture"] == row["file"] == name.decode("utf-8", "backslashreplace").replace("\t", "\\x09")
    work = Work({name: columns(name) for name in ("exchanges", "connections")}, Settings(dated=True))
    *made, _ = work.do(row["capture"], [(row["file"], row["path"])], None, {row["file"]: row["first"]})
    assert len(_rows(made, "exchanges")) > 5
    assert kdissect.open(path).table("connections").num_rows > 0


def test_the_file_at_which_a_stream_stops_is_named(pieces: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """By a defect of kdissect: without this file the others are read."""
    blocks = resumption.Continued._blocks

    def failing(self: resumption.Continued, member: Member, number: int) -> Iterator[None]:
        if member.name == "cut.pcap1":
            raise KeyError("key")
        return blocks(self, member, number)

    monkeypatch.setattr(resumption.Continued, "_blocks", failing)
    work = Work({"exchanges": columns("exchanges")}, Settings(dated=True))
    with pytest.raises(KeyError) as raised:
        list(work.do("rack1/cut.pcap", [(piece.name, str(piece)) for piece in pieces[:3]], None))
    assert reason(RuntimeError("".join(format_exception(raised.value)))) == "rack1/cut.pcap1: 'key' (KeyError)"


def test_files_that_rotation_renames_are_known(pieces: list[Path], tmp_path: Path) -> None:
    """Each has the name of another one, of another size, and then one grows."""
    work = Work({"problems": columns("problems")}, Settings(dated=True))
    files = [(piece.name, str(piece)) for piece in pieces[:3]]
    *_, state = work.do("cut.pcap", files, None)
    for i in range(3):
        shutil.copy(pieces[i], tmp_path / f"cut.pcap{i + 1}")
    late = [(f"cut.pcap{i}", f"{LATE}{tmp_path / f'cut.pcap{i}'}") for i in (1, 2, 3)]
    for grown in ([], [], ["cut.pcap2"], []):
        if grown:
            with (tmp_path / grown[0]).open("ab") as file:
                file.write(pieces[4].read_bytes()[24:])
        assert isinstance(state, bytes)
        *made, state = work.do("cut.pcap", late, state)
        assert [row["where"] for row in _rows(made, "problems") if "grew by" in str(row["detail"])] == grown
        assert not any(row["detail"] == resumption.LATE for row in _rows(made, "problems"))


def test_files_are_read_where_the_clock_stepped_back(pieces: list[Path], tmp_path: Path) -> None:
    """Each file behind the step begins before those that were read."""
    wanted = {name: columns(name) for name in ("exchanges", "problems")}
    work = Work(wanted, Settings(dated=True))
    late = [moved(piece.read_bytes(), -1800) for piece in pieces[2:4]]
    *first, state = work.do("cut.pcap", [(piece.name, str(piece)) for piece in pieces[:2]], None)
    counts = [len(_rows(first, "exchanges"))]
    for i, data in enumerate(late):
        path = tmp_path / f"cut.pcap{i + 2}"
        path.write_bytes(data)
        assert isinstance(state, bytes)
        *made, state = work.do("cut.pcap", [(path.name, f"{LATE}{path}")], state)
        counts.append(len(_rows(made, "exchanges")))
        assert [row["where"] for row in _rows(made, "problems") if row["detail"] == resumption.LATE] == [path.name]
    assert all(count > 10 for count in counts), counts


def test_what_is_wrong_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not a directory"):
        kdissect.spark.stream(None, tmp_path / "nowhere")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="complete at the end only"):
        kdissect.spark.stream(None, tmp_path, "topics")  # type: ignore[arg-type]


class TestOnSpark:
    pytestmark = on_spark

    def test_every_exchange_once_through_stops_and_a_failure(
        self, spark: Any, pieces: list[Path], captures: Path, tmp_path: Path
    ) -> None:
        folder, out, state = (tmp_path / name for name in ("in", "out", "state"))
        folder.mkdir()
        spark.conf.set("spark.sql.shuffle.partitions", "2")

        def run(wrong: bool = False) -> None:
            frame = kdissect.spark.stream(spark, folder)
            if wrong:
                frame = frame.where("raise_error('a sink that fails') is null")
            query = (
                frame.writeStream.trigger(availableNow=True)
                .option("checkpointLocation", str(state))
                .start(str(out), "parquet")
            )
            query.awaitTermination()

        for piece in pieces[:3]:
            shutil.copy(piece, folder)
        shutil.copy(captures / "base_tiny.pcap", folder / "other-1700000001.pcap")  # a second set, still being written
        run()
        assert spark.read.parquet(str(out)).count() > 0
        for piece in pieces[3:5]:
            shutil.copy(piece, folder)
        with pytest.raises(Exception, match="a sink that fails"):
            run(wrong=True)
        run()
        shutil.copy(pieces[5], folder)
        pieces[5].with_name("cut.pcap6").write_bytes(later(pieces[5]))
        shutil.copy(pieces[5].with_name("cut.pcap6"), folder)
        run()
        found = spark.read.parquet(str(out)).toArrow().to_pylist()
        expected = {row["exchange_id"]: row for row in kdissect.open(pieces).table("exchanges").to_pylist()}
        assert {row["capture"] for row in found} == {"cut.pcap"}
        assert len({row["exchange_id"] for row in found}) == len(found)
        for row in found:
            other = expected.pop(row["exchange_id"])
            assert {**row, "broker": 0} == {**{name: other[name] for name in row}, "broker": 0}
        waiting = [row["response_first_at"] for row in expected.values() if row["status"] not in ENDED]
        assert all(at > max(row["response_first_at"] for row in found) for at in waiting)

    def test_several_tables_by_one_query(
        self, spark: Any, pieces: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:  # fmt: skip
        """One batch fails when one of its tables is written, and is written once when it comes again."""
        folder, out = tmp_path / "in", tmp_path / "out"
        folder.mkdir()
        spark.conf.set("spark.sql.shuffle.partitions", "2")
        names = ["exchanges", "fetch_partitions", "problems"]

        def run() -> Any:
            query = kdissect.spark.follow(spark, folder, str(out), names).trigger(availableNow=True).start()
            query.awaitTermination()
            return query

        for piece in pieces[:3]:
            shutil.copy(piece, folder)
        with caplog.at_level("INFO", "kdissect.spark"):
            run()
        assert re.fullmatch(r"cut\.pcap: batch 0: \d+ exchanges, \d+ fetch_partitions", caplog.messages[0])
        for piece in pieces[3:]:
            shutil.copy(piece, folder)
        with monkeypatch.context() as patched:
            failing = _failing_at("fetch_partitions", streamed_tables._put_in_place)
            patched.setattr(streamed_tables, "_put_in_place", failing)
            with pytest.raises(Exception, match="a disk that is full"):
                run()
        (left,) = kdissect.spark.lag(run(), folder)
        assert (left["capture"], left["files"], left["bytes"]) == ("cut.pcap", 1, pieces[5].stat().st_size)
        assert left["seconds"] > 0
        expected: dict[str, list[Any]] = {name: [] for name in names}
        state, wanted = None, {name: columns(name, None) for name in names}
        for piece in pieces[:5]:
            *made, state = Work(wanted, Settings(dated=True)).do("cut.pcap", [(piece.name, str(piece))], state)
            for name, table in made:
                if name in wanted:
                    expected[name] += table.to_pylist()
        for name, rows in expected.items():
            found = spark.read.parquet(str(out / name)).drop("batch", "broker").toArrow().to_pylist()
            plain = [{column: value for column, value in row.items() if column != "broker"} for row in rows]
            assert sorted(map(repr, found)) == sorted(map(repr, plain)), name

    def test_what_two_hosts_captured_comes_once(
        self, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The second host's files come a batch later, which fails when one of its tables is written."""
        sets, folder, out = both_ends("stories/lossy_1", tmp_path, [2, 2]), tmp_path / "in", tmp_path / "out"
        spark.conf.set("spark.sql.shuffle.partitions", "2")
        tables = ("exchanges", "fetches", "fetch_sessions")

        def run() -> None:
            query = kdissect.spark.follow(spark, folder, out, tables, quiet=0, forget=0)
            query.trigger(availableNow=True).start().awaitTermination()

        for end, files in sets.items():
            (folder / end).mkdir(parents=True)
            for path in files:
                shutil.copy(path, folder / end)
            with monkeypatch.context() as patched:
                failing = _failing_at("fetches", streamed_tables._put_in_place)
                patched.setattr(streamed_tables, "_put_in_place", failing)
                with pytest.raises(Exception, match="a disk that is full"):
                    run()
            run()
        run()
        local = kdissect.open([CAPTURES / f"stories/lossy_1_{end}.pcap.zst" for end in sets]).tables(tables)
        for name in tables:
            assert spark.read.parquet(str(out / name)).count() == local[name].num_rows, name


def _failing_at(table: str, put: Any) -> Any:
    def failing(place: Path, *rest: Any) -> None:
        if place.parent.name == table:
            raise OSError("a disk that is full")
        put(place, *rest)

    return failing

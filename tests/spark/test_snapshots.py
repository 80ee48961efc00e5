"""Tables of one run in place of those of the last, at once."""

from __future__ import annotations

import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from kdissect.output import OutputError
from kdissect.spark.writing.snapshots import LinkedTables, MovedTables


def run(folder: Path, *tables: str, text: str) -> None:
    made = LinkedTables(folder)
    for table in tables:
        place = Path(made.place(table))
        place.mkdir(parents=True)
        for i in range(3):
            (place / f"{text}-{i}").write_text(text)
    made.commit(tables)


def texts(folder: Path, table: str) -> set[str]:
    return {path.read_text() for path in (folder / table).iterdir()}


def test_a_reader_sees_the_old_or_the_new(tmp_path: Path) -> None:
    run(tmp_path, "exchanges", "groups", text="0")
    over = threading.Event()
    seen: list[tuple[int, int]] = []

    def poll() -> None:
        while not (over.is_set() and seen):
            names = [int(path.name.partition("-")[0]) for path in (tmp_path / "exchanges").iterdir()]
            seen.append((len(names), min(names)))

    reader = threading.Thread(target=poll)
    reader.start()
    for i in range(1, 40):
        run(tmp_path, "exchanges", "groups", text=str(i))
        count = len(seen)
        while len(seen) == count and reader.is_alive():  # who reads longer than two runs take is too late
            time.sleep(0.001)
    over.set()
    reader.join()
    assert {count for count, _ in seen} == {3}
    assert [run for _, run in seen] == sorted(run for _, run in seen)
    assert len(list((tmp_path / "_snapshots").iterdir())) == 3  # newest, what it was before, what it is


def test_a_run_that_fails_changes_nothing(tmp_path: Path) -> None:
    run(tmp_path, "exchanges", text="good")
    broken = LinkedTables(tmp_path)
    Path(broken.place("exchanges")).mkdir(parents=True)
    assert texts(tmp_path, "exchanges") == {"good"}
    after = LinkedTables(tmp_path)  # has its room
    assert after.place("exchanges") != broken.place("exchanges"), "whose run may wake up"
    assert not Path(broken.place("exchanges")).exists()
    assert texts(tmp_path, "exchanges") == {"good"}
    run(tmp_path, "exchanges", text="better")
    assert texts(tmp_path, "exchanges") == {"better"}


def test_a_commit_that_fails_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(tmp_path, "exchanges", text="good")
    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", _refused)
        with pytest.raises(OutputError, match=f"cannot write {tmp_path}.*: "):
            run(tmp_path, "exchanges", text="never seen")
    assert texts(tmp_path, "exchanges") == {"good"}
    run(tmp_path, "exchanges", text="better")
    assert texts(tmp_path, "exchanges") == {"better"}


def test_tables_of_other_runs_stay(tmp_path: Path) -> None:
    old = tmp_path / "topics"  # as a version wrote it that knew no snapshots
    old.mkdir()
    (old / "part").write_text("plain")
    run(tmp_path, "exchanges", "groups", text="1")
    for text in ("2", "3", "4"):
        run(tmp_path, "exchanges", text=text)
        assert (texts(tmp_path, "groups"), texts(tmp_path, "exchanges")) == ({"1"}, {text})
    assert not (tmp_path / "_snapshots" / "000001" / "exchanges").exists()
    assert texts(tmp_path, "topics") == {"plain"}
    run(tmp_path, "topics", text="5")
    assert texts(tmp_path, "topics") == {"5"}
    moved = tmp_path.with_name("moved")
    tmp_path.rename(moved)
    assert texts(moved, "groups") == {"1"}


class Elsewhere:
    """Files of this machine as those of a file system without links; breaks off before the n-th rename."""

    def __init__(self, renames: int = 99) -> None:
        self.renames = renames

    def exists(self, path: str) -> bool:
        return Path(path).exists()

    def names(self, folder: str) -> list[str]:
        return [path.name for path in Path(folder).iterdir()] if Path(folder).is_dir() else []

    def read(self, path: str) -> bytes:
        return Path(path).read_bytes()

    def write(self, path: str, data: bytes) -> None:
        Path(path).write_bytes(data)

    def rename(self, source: str, target: str) -> None:
        self.renames -= 1
        if self.renames < 0:
            raise ConnectionError
        assert not Path(target).exists()
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        Path(source).rename(target)

    def delete(self, path: str) -> None:
        shutil.rmtree(path) if Path(path).is_dir() else Path(path).unlink()


def moved(folder: Path, text: str, renames: int = 99) -> None:
    files: Any = Elsewhere(renames)
    made = MovedTables(files, str(folder))
    for table in ("exchanges", "groups"):
        place = Path(made.place(table))
        place.mkdir(parents=True)
        (place / text).write_text(text)
    made.commit(["exchanges", "groups"])


def test_tables_are_moved_where_there_are_no_links(tmp_path: Path) -> None:
    for text in ("1", "2", "3"):
        moved(tmp_path, text)
        assert (texts(tmp_path, "exchanges"), texts(tmp_path, "groups")) == ({text}, {text})
    assert len(list((tmp_path / "_snapshots").iterdir())) == 1  # what was there before


@pytest.mark.parametrize("renames", range(4))
def test_a_commit_that_was_broken_off_is_finished(tmp_path: Path, renames: int) -> None:
    moved(tmp_path, "1")
    with pytest.raises(ConnectionError):
        moved(tmp_path, "2", renames)
    files: Any = Elsewhere()
    MovedTables(files, str(tmp_path))
    assert (texts(tmp_path, "exchanges"), texts(tmp_path, "groups")) == ({"2"}, {"2"})
    moved(tmp_path, "3")
    assert (texts(tmp_path, "exchanges"), texts(tmp_path, "groups")) == ({"3"}, {"3"})


def _refused(*_: object) -> None:
    raise PermissionError

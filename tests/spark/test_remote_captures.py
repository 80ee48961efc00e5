"""Captures in file systems that only Spark reads."""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import kdissect
from kdissect.problems import CaptureNotFound, CaptureUnreadable, NotACapture
from kdissect.spark.file_system import Listed
from kdissect.spark.source import remote_captures
from kdissect.spark.source.remote_captures import open_remote, split_local


class Remote:
    """A folder of this machine as a file system elsewhere."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def list_files(self, path: str, deep: bool) -> list[Listed]:
        place = self._of(path)
        found = [place] if place.is_file() else sorted(place.glob("**/*" if deep else "*"))
        return [
            Listed(f"far://b/{one.relative_to(self._folder)}", one.stat().st_size, 7) for one in found if one.is_file()
        ]

    def head(self, path: str, most: int) -> bytes:
        return self._of(path).read_bytes()[:most]

    def _of(self, path: str) -> Path:
        return self._folder / path.removeprefix("far://b").lstrip("/")


def test_what_is_here_and_what_is_elsewhere(tmp_path: Path) -> None:
    assert split_local("file:///a/b.pcap") == ("/a/b.pcap", [])
    assert split_local("file:/a/*.pcap") == ("/a/*.pcap", [])
    assert split_local(tmp_path) == (tmp_path, [])
    assert split_local("s3a://b/x") == (None, ["s3a://b/x"])
    assert split_local(["x.pcap", "hdfs://n/x", tmp_path]) == (["x.pcap", tmp_path], ["hdfs://n/x"])
    assert split_local(["odd:name.pcap"]) == (["odd:name.pcap"], [])


def test_sets_are_those_of_local_files(rotate: Any, captures: Path, tmp_path: Path) -> None:
    folder = rotate(captures / "base.pcap", 3)
    for piece in (folder / "cut.pcap", folder / "cut.pcap1", folder / "cut.pcap2"):
        (tmp_path / "day 1").mkdir(exist_ok=True)
        shutil.copy(piece, tmp_path / "day 1")
    (tmp_path / "one.pcap.gz").write_bytes(gzip.compress((captures / "base.pcap").read_bytes()))
    (tmp_path / "notes.txt").write_text("no capture, but long enough to look like one")
    files: Any = Remote(tmp_path)
    found = {one.name: one for one in open_remote(files, ["far://b/"])}
    assert found.keys() == {"cut.pcap", "one.pcap.gz"}
    assert [path for _, path in found["cut.pcap"].files] == [f"far://b/day 1/cut.pcap{n}" for n in ("", 1, 2)]
    assert all(list(one.stored) == [size for size, _ in one.stamps] for one in found.values())
    assert [stamp[0] for stamp in found["cut.pcap"].stamps] == [
        (folder / f"cut.pcap{n}").stat().st_size for n in ("", 1, 2)
    ]
    assert next(left for one in found.values() for left in one.left_out)[0] == "far://b/notes.txt"
    assert [one.name for one in open_remote(files, ["far://b/*.gz", "far://b/one.pcap.gz"])] == ["one.pcap.gz"]


@pytest.mark.parametrize(("codec", "end"), [("zstd", "zst"), ("lz4", "lz4"), ("gzip", "gz")])
def test_compressed_files(captures: Path, tmp_path: Path, codec: str, end: str) -> None:
    """Their first block is larger than what is looked at of others."""
    with pa.CompressedOutputStream(str(tmp_path / f"one.pcap.{end}"), codec) as stream:
        stream.write((captures / "k4_transactions.pcap").read_bytes())
    assert (tmp_path / f"one.pcap.{end}").stat().st_size > 2 * remote_captures.HEAD
    files: Any = Remote(tmp_path)
    assert [one.name for one in open_remote(files, [f"far://b/one.pcap.{end}"])] == [f"one.pcap.{end}"]


def test_what_is_wrong_is_one_line(captures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files: Any = Remote(tmp_path)
    (tmp_path / "bad.pcap").write_bytes(b"no capture at all")
    with pytest.raises(CaptureNotFound, match=r"far://b/none\.pcap: no such file"):
        open_remote(files, ["far://b/none.pcap"])
    with pytest.raises(CaptureNotFound, match="no file matches"):
        open_remote(files, ["far://b/*.cap"])
    with pytest.raises(NotACapture, match=r"^far://b/bad\.pcap: not a capture"):
        open_remote(files, ["far://b/bad.pcap"])
    shutil.copy(captures / "base_tiny.pcap", tmp_path)
    monkeypatch.setattr(remote_captures, "WHOLE", 1 << 10)
    with pytest.raises(CaptureUnreadable, match="0 MB in one file, where Spark reads whole files"):
        open_remote(files, ["far://b/base_tiny.pcap"])


@pytest.mark.spark
@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")
def test_files_of_another_file_system(
    spark: Any, rotate: Any, captures: Path, equal: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_captures, "_LOCAL", remote_captures.re.compile("never:"))  # as if it were far away
    folder = rotate(captures / "base.pcap", 3)
    tables = ["exchanges", "fetch_partitions", "capture_quality", "problems"]
    made = kdissect.spark.dissect(spark, folder.as_uri(), tables, partitions=2, keep=tmp_path / "kept")
    equal({name: frame.toArrow() for name, frame in made.items()}, kdissect.open(folder).tables(tables))
    again = kdissect.spark.dissect(spark, folder.as_uri(), tables, partitions=2, keep=tmp_path / "kept")
    assert again.reused == "1 of 1 capture as decoded before, 0 decoded whole"
    with pytest.raises(CaptureUnreadable, match="No FileSystem for scheme"):
        kdissect.spark.dissect(spark, "nosuch://b/x.pcap")

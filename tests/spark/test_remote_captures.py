"""Captures in file systems elsewhere."""

from __future__ import annotations

import gzip
import platform
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest
from pyarrow.fs import LocalFileSystem

import kdissect
from kdissect.capture import CaptureSet, Member
from kdissect.engine.capture_tables import MADE
from kdissect.engine.resumption import columns
from kdissect.output import OutputError
from kdissect.problems import CaptureNotFound, CaptureUnreadable, NotACapture, UsageError
from kdissect.spark import remote_storage
from kdissect.spark.dataset import Dataset
from kdissect.spark.file_system import HadoopFiles, Listed, hadoop_setting
from kdissect.spark.job import prepare
from kdissect.spark.remote_storage import Storage
from kdissect.spark.source import remote_captures
from kdissect.spark.source.file_stream import Watched
from kdissect.spark.source.remote_captures import HEAD, open_remote, split_local, storage_of
from kdissect.spark.source.streaming import Work
from kdissect.spark.stages.plan import Source
from kdissect.spark.whole_dataset import WholeDataset
from tests.spark.range_server import serving

FAR = "far://b/"


@pytest.fixture
def far(tmp_path: Path) -> Iterator[Storage]:
    """A folder of this machine as a file system elsewhere."""
    storage = Storage(FAR, (("secret_key", "hush"),))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(remote_storage, "open_storage", lambda _: (LocalFileSystem(), f"{tmp_path}/"))
        yield storage


def opened(storage: Storage, *paths: str, payload: bool = False) -> list[Source]:
    return open_remote([(path, storage) for path in paths], payload)


def test_what_is_here_and_what_is_elsewhere(tmp_path: Path) -> None:
    assert split_local("file:///a/b.pcap") == ("/a/b.pcap", [])
    assert split_local("file:/a/*.pcap") == ("/a/*.pcap", [])
    assert split_local(tmp_path) == (tmp_path, [])
    assert split_local("s3a://b/x") == (None, ["s3a://b/x"])
    assert split_local(["x.pcap", "hdfs://n/x", tmp_path]) == (["x.pcap", tmp_path], ["hdfs://n/x"])
    assert split_local(["odd:name.pcap"]) == (["odd:name.pcap"], [])


def test_sets_are_those_of_local_files(rotate: Any, captures: Path, tmp_path: Path, far: Storage) -> None:
    folder = rotate(captures / "base.pcap", 3)
    for piece in (folder / "cut.pcap", folder / "cut.pcap1", folder / "cut.pcap2"):
        (tmp_path / "day 1").mkdir(exist_ok=True)
        shutil.copy(piece, tmp_path / "day 1")
    (tmp_path / "one.pcap.gz").write_bytes(gzip.compress((captures / "base.pcap").read_bytes()))
    (tmp_path / "notes.txt").write_text("no capture, but long enough to look like one")
    found = {one.name: one for one in opened(far, FAR)}
    assert found.keys() == {"cut.pcap", "one.pcap.gz"}
    assert [path for _, path in found["cut.pcap"].files] == [f"far://b/day 1/cut.pcap{n}" for n in ("", 1, 2)]
    assert all(one.remote for one in found.values())
    assert found["cut.pcap"].stored == [(folder / f"cut.pcap{n}").stat().st_size for n in ("", 1, 2)]
    assert next(left for one in found.values() for left in one.left_out)[0] == "far://b/notes.txt"
    assert [one.name for one in opened(far, "far://b/*.gz", "far://b/one.pcap.gz")] == ["one.pcap.gz"]
    assert {name: (one.ranged, one.spark_only) for name, one in found.items()} == {
        "cut.pcap": (True, False), "one.pcap.gz": (False, False)
    }  # fmt: skip
    assert not any(one.ranged for one in opened(far, FAR, payload=True))


def test_patterns_in_any_part(captures: Path, tmp_path: Path, far: Storage) -> None:
    for place in ("day/a1/x.pcap", "day/a2/x.pcap", "day/b1/x.pcap", "day/a1/deep/y.pcap", "day/.a3/x.pcap"):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(captures / "base_tiny.pcap", tmp_path / place)

    def found(pattern: str) -> list[str]:
        return sorted(path.removeprefix(FAR) for one in opened(far, FAR + pattern) for _, path in one.files)

    assert found("day/*/x.pcap") == ["day/a1/x.pcap", "day/a2/x.pcap", "day/b1/x.pcap"]
    assert found("d?y/a[2-9]/*") == ["day/a2/x.pcap"]
    assert found("*/a1/deep/y.pcap") == ["day/a1/deep/y.pcap"]
    assert found("day/**/y.pcap") == ["day/a1/deep/y.pcap"]
    assert found("day/a*/**") == ["day/a1/deep/y.pcap", "day/a1/x.pcap", "day/a2/x.pcap"]
    with pytest.raises(CaptureNotFound, match="no file matches"):
        found("day/*/deep")


@pytest.mark.parametrize(("codec", "end"), [("zstd", "zst"), ("lz4", "lz4"), ("gzip", "gz")])
def test_compressed_files(captures: Path, tmp_path: Path, far: Storage, codec: str, end: str) -> None:
    """Their first block is larger than what is looked at of others. They are read as a stream."""
    with pa.CompressedOutputStream(str(tmp_path / f"one.pcap.{end}"), codec) as stream:
        stream.write((captures / "k4_transactions.pcap").read_bytes())
    assert (tmp_path / f"one.pcap.{end}").stat().st_size > 2 * remote_captures.HEAD
    (source,) = opened(far, f"far://b/one.pcap.{end}")
    assert (source.name, source.ranged) == (f"one.pcap.{end}", False)
    read = source.capture()
    packets = sum(len(block.packets) for block in read.blocks(read.window()))
    read.close()
    local = CaptureSet("", [Member("", captures / "k4_transactions.pcap")])
    assert packets == sum(len(block.packets) for block in local.blocks(local.window()))
    local.close()


def test_what_is_wrong_is_one_line(captures: Path, tmp_path: Path, far: Storage) -> None:
    (tmp_path / "bad.pcap").write_bytes(b"no capture at all")
    with pytest.raises(CaptureNotFound, match=r"far://b/none\.pcap: no such file"):
        opened(far, "far://b/none.pcap")
    with pytest.raises(CaptureNotFound, match="no file matches"):
        opened(far, "far://b/*.cap")
    with pytest.raises(NotACapture, match=r"^far://b/bad\.pcap: not a capture"):
        opened(far, "far://b/bad.pcap")
    shutil.copy(captures / "base_tiny.pcap", tmp_path)
    (source,) = opened(far, "far://b/base_tiny.pcap")
    (tmp_path / "base_tiny.pcap").unlink()
    with pytest.raises(CaptureUnreadable, match=rf"^far://b/base_tiny\.pcap: cannot be read on {platform.node()} \("):
        source.member(0).open()


def test_storage_that_nothing_opens_is_said() -> None:
    nobody: Any = None
    with pytest.raises(UsageError, match=r"^nosuch://b/day: nothing in Python opens this file system"):
        storage_of("nosuch://b/day", {})
    with pytest.raises(UsageError, match=r"^s3a://b/x: of other file systems only tables are made\. Mount"):
        kdissect.spark.messages(nobody, "s3a://b/x", "Metadata", "request")


def test_a_stream_reads_a_file_again_that_could_not_be_read(
    rotate: Any, captures: Path, tmp_path: Path, far: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is gone is a problem; one that its storage does not give now makes the task fail."""
    pieces = sorted(rotate(captures / "base.pcap", 3).iterdir())[:2]
    for piece in pieces:
        shutil.copy(piece, tmp_path)
    work = Work({"exchanges": columns("exchanges"), "problems": columns("problems")}, storage=far)
    files = [(piece.name, f"{FAR}{piece.name}") for piece in pieces]
    made = [one[0] for one in work.do("cut.pcap", files, None) if isinstance(one, tuple)]
    assert "exchanges" in made
    with monkeypatch.context() as patch:
        patch.setattr(remote_storage, "open_storage", lambda _: (Stopping(), f"{tmp_path}/"))
        with pytest.raises(OSError, match=r"far://b/cut\.pcap: denied to whoever says \.\.\.$"):
            list(work.do("cut.pcap", files, None))
    (tmp_path / pieces[0].name).unlink()
    problems = [
        one[1] for one in work.do("cut.pcap", files[:1], None) if isinstance(one, tuple) and one[0] == "problems"
    ]
    assert "cannot be read" in problems[0]["detail"][0].as_py()


def test_a_look_into_a_bucket_fails_as_a_whole(
    rotate: Any, captures: Path, tmp_path: Path, far: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is passed over would come behind later ones."""
    pieces = sorted(rotate(captures / "base.pcap", 3).iterdir())
    for piece in pieces:
        shutil.copy(piece, tmp_path)
    (tmp_path / "notes.txt").write_text("no capture")
    watched = Watched(FAR, storage=far)
    assert [row[:3] for row in watched.complete()] == [
        ("cut.pcap", piece.name, f"{FAR}{piece.name}") for piece in pieces[:2]
    ]
    assert watched.sizes[f"{FAR}cut.pcap2"] == pieces[2].stat().st_size
    with monkeypatch.context() as patch:
        patch.setattr(Storage, "open", lambda *_: Stopping())
        with pytest.raises(CaptureUnreadable, match="denied to whoever says"):
            Watched(FAR, storage=far).complete()
    (tmp_path / "notes.txt").unlink()
    with monkeypatch.context() as patch:
        patch.setattr(Storage, "list_files", lambda *_, **__: [Listed(f"{FAR}gone.pcap", 7, 7)])
        assert Watched(FAR, storage=far).present() == []


class Stopping:
    """A file system whose files give nothing."""

    def __enter__(self) -> Stopping:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def open_input_file(self, path: str) -> Any:
        return self

    def size(self) -> int:
        return 1 << 20

    def read_at(self, count: int, offset: int) -> bytes:
        raise OSError("denied to whoever says hush")

    def close(self) -> None:
        pass


def test_only_whole_files_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    files = HadoopFiles.__new__(HadoopFiles)
    monkeypatch.setattr(
        HadoopFiles, "list_files", lambda self, path, deep: [Listed(path, remote_captures.WHOLE + 1, 7)]
    )
    with pytest.raises(CaptureUnreadable, match=r"^x://b/a\.pcap: 512 MB in one file, where Spark reads whole files"):
        open_remote([("x://b/a.pcap", files)], False)


def test_no_secret_is_in_an_error(tmp_path: Path, far: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    class Denying(LocalFileSystem):
        def get_file_info(self, path: Any) -> Any:
            raise OSError("denied to whoever says hush\nand more")

    monkeypatch.setattr(remote_storage, "open_storage", lambda _: (Denying(), "/"))
    with pytest.raises(CaptureUnreadable) as raised:
        opened(far, "far://b/x.pcap")
    assert str(raised.value) == "far://b/x.pcap: cannot be read (denied to whoever says ...)."
    assert "hush" not in repr(far)


@pytest.mark.spark
@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")
@pytest.mark.parametrize("whole", [False, True])
def test_files_of_another_file_system(
    spark: Any, rotate: Any, captures: Path, equal: Any, monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    """Read by ranges, and as whole files where nothing in Python opens the file system."""
    monkeypatch.setattr(remote_captures, "_LOCAL", remote_captures.re.compile("never:"))  # as if it were far away
    if whole:
        monkeypatch.setattr(remote_captures, "open_storage", _unopened)
    folder = rotate(captures / "base.pcap", 3)
    tables = ["exchanges", "fetch_partitions", "capture_quality", "problems"]
    made = kdissect.spark.dissect(spark, folder.as_uri(), tables, partitions=2)
    assert [(one.ranged, one.spark_only) for one in made.plan.sources] == [(not whole, whole)]
    equal({name: frame.toArrow() for name, frame in made.items()}, kdissect.open(folder).tables(tables))
    pattern = f"{folder.parent.as_uri()}/{folder.name[:-1]}[{folder.name[-1]}]/cut.pcap*"
    assert [len(one.files) for one in prepare(pattern, ["exchanges"], spark).sources] == [3]
    with pytest.raises(CaptureUnreadable, match="No FileSystem for scheme"):
        kdissect.spark.dissect(spark, "nosuch://b/x.pcap")


@pytest.mark.spark
@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")
def test_all_ways_read_what_is_elsewhere(
    spark: Any, rotate: Any, captures: Path, tmp_path: Path, equal: Any, bucket_settings: Any
) -> None:
    """The data source, messages, and streams, whose files come to a bucket."""
    pieces = sorted(rotate(captures / "base.pcap", 5).iterdir())
    day, out = tmp_path / "bucket" / "day" / "in", tmp_path / "out"
    day.mkdir(parents=True)
    for piece in pieces[:3]:
        shutil.copy(piece, day)
    with serving(tmp_path / "bucket") as (endpoint, gets):
        bucket_settings(endpoint)
        kdissect.spark.register(spark)
        source = spark.read.format("kdissect")
        packets = source.option("table", "packets")
        here = packets.load([str(piece) for piece in pieces[:3]]).count()
        assert packets.load("s3a://day/in").count() == here > 100
        local = kdissect.open(pieces[:3])
        rows = source.option("table", "exchanges").option("per_capture", True).load("s3a://day/in/cut.*")
        equal({"exchanges": rows.toArrow()}, {"exchanges": local.table("exchanges")})
        answers = [
            kdissect.spark.messages(spark, paths, "Metadata", "response").count()
            for paths in ("s3a://day/in", [str(piece) for piece in pieces[:3]])
        ]
        assert answers[0] == answers[1] > 0
        spark.conf.set("spark.sql.shuffle.partitions", "2")

        def append() -> Any:
            query = kdissect.spark.follow(spark, "s3a://day/in", str(out), ["exchanges", "problems"])
            query = query.trigger(availableNow=True).start()
            query.awaitTermination()
            return query

        append()
        for piece in pieces[3:]:
            shutil.copy(piece, day)
        gets.clear()
        query = append()
        assert gets.count(HEAD) == 2  # of the new files: what is known of others is below the output
        (left,) = kdissect.spark.lag(query, "s3a://day/in")
        assert (left["capture"], left["files"], left["bytes"]) == ("cut.pcap", 1, pieces[4].stat().st_size)
    (tmp_path / "near").mkdir()
    for piece in pieces:
        shutil.copy(piece, tmp_path / "near")
    query = kdissect.spark.follow(spark, tmp_path / "near", str(tmp_path / "other"), ["exchanges", "problems"])
    query.trigger(availableNow=True).start().awaitTermination()
    for name in ("exchanges", "problems"):
        far, near = (spark.read.parquet(str(one / name)).toArrow().drop("batch") for one in (out, tmp_path / "other"))
        equal({name: far}, {name: near})


@pytest.mark.spark
@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")
def test_small_captures_elsewhere_are_read_by_one_task(
    spark: Any, captures: Path, tmp_path: Path, equal: Any, bucket_settings: Any
) -> None:
    """Both ends of connections among them, as files of a bucket and compressed. Or spread over tasks, if asked for."""
    day = tmp_path / "bucket" / "day"
    day.mkdir(parents=True)
    shutil.copy(captures / "base_tiny.pcap", day)
    shutil.copy(captures / "stories" / "net_delay_broker.pcap.zst", day)
    with pa.input_stream(str(captures / "stories" / "net_delay_client.pcap.zst")) as stream:
        (day / "client.pcap").write_bytes(stream.read())
    tables = [*MADE, "clock_offsets"]
    expected = kdissect.open(day).tables(tables)
    assert expected["clock_offsets"].num_rows == 1
    with serving(tmp_path / "bucket") as (endpoint, _):
        bucket_settings(endpoint)
        few = ["exchanges", "clock_offsets"]
        for engine, kind, read in ((None, WholeDataset, tables), ("local", WholeDataset, []), ("spark", Dataset, few)):
            made = kdissect.spark.dissect(spark, "s3a://day/*", read or tables, engine=engine)
            assert type(made) is kind
            equal({name: made[name].toArrow() for name in read}, {name: expected[name] for name in read})
            made.unpersist()
        for wrong in ({"engine": "steam"}, {"engine": "local", "partitions": 3}):
            with pytest.raises(UsageError, match="engine"):
                kdissect.spark.dissect(spark, "s3a://day/*", tables, **wrong)


@pytest.fixture
def bucket_settings(spark: Any) -> Iterator[Any]:
    """What makes the session's client of S3 go to an address."""
    names = []

    def go_to(endpoint: str) -> None:
        for name, value in {
            "access.key": "anyone", "secret.key": "any", "endpoint": endpoint, "endpoint.region": "us-east-1",
            "connection.ssl.enabled": "false", "path.style.access": "true",
        }.items():  # fmt: skip
            names.append(f"spark.hadoop.fs.s3a.{name}")
            spark.conf.set(names[-1], value)

    yield go_to
    for name in names:
        spark.conf.unset(name)
    kdissect.spark.register(spark)


def _unopened(storage: Storage) -> Any:
    raise OSError("no library")


@pytest.mark.spark
def test_a_setting_of_the_session_goes_before_those_of_hadoops_files(spark: Any) -> None:
    """`core-site.xml` is what the JVM's configuration has besides."""
    files = spark._jsc.hadoopConfiguration()
    try:
        files.set("fs.s3a.access.key", "of the files")
        assert hadoop_setting(spark, "fs.s3a.access.key") == "of the files"
        spark.conf.set("spark.hadoop.fs.s3a.access.key", "of the session")
        assert hadoop_setting(spark, "fs.s3a.access.key") == "of the session"
    finally:
        files.unset("fs.s3a.access.key")
        spark.conf.unset("spark.hadoop.fs.s3a.access.key")
    assert hadoop_setting(spark, "fs.s3a.access.key") is None


@pytest.mark.parametrize(
    ("thrown", "told"),
    [
        ("java.io.FileNotFoundException: /a/b (Permission denied)", "/a/b (Permission denied)"),
        (
            "Malformed input or input contains unmappable characters: /a/b",
            "Malformed input or input contains unmappable characters: /a/b",
        ),
        (
            "org.apache.hadoop.security.AccessControlException: Permission denied: user=a\n\tat a.b",
            "Permission denied: user=a",
        ),
    ],
)
def test_the_reason_why_nothing_can_be_written_is_said_whole(
    thrown: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HadoopFiles, "_of", Mock(side_effect=RuntimeError(thrown)))
    with pytest.raises(OutputError) as failed:
        HadoopFiles.__new__(HadoopFiles).try_out("out")
    assert str(failed.value) == f"cannot write out: {told}"

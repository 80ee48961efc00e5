"""Jobs one after the other over captures that grow: tables equal those of the local engine over what is there."""

from __future__ import annotations

import os
import pickle
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import kdissect
import kdissect.spark
from kdissect.problems import CaptureUnreadable, UsageError
from kdissect.spark.keep.store import UNREADABLE, Store

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]
FEW = ["exchanges", "connections", "fetch_sessions", "problems", "capture_quality"]
LEAST = ["exchanges", "problems"]
SOME = [*FEW, "fetches", "fetch_partitions", "session_partitions", "record_batches", "topics", "findings"]
"""Rows of a connection, of what connections have in common, and what is concluded from both."""


@pytest.fixture
def job(spark: Any, tmp_path: Path, equal: Any) -> Callable[..., str]:
    """Run a job over the folder `in`; what it says of earlier ones. Its tables are compared."""
    (tmp_path / "in").mkdir()

    def run(tables: list[str] | None = None, **options: Any) -> str:
        made = kdissect.spark.dissect(spark, tmp_path / "in", tables, keep=tmp_path / "kept", partitions=2, **options)
        found = {name: frame.toArrow() for name, frame in made.items()}
        equal(found, kdissect.open(tmp_path / "in").tables(list(found)))
        return made.reused

    return run


@pytest.mark.exhaustive
def test_files_come_one_after_the_other(captures: Path, rotate: Any, job: Callable[..., str], tmp_path: Path) -> None:
    """A file that is being written, one that has grown, new ones, and none; at last one is gone."""
    folder, files = tmp_path / "in", rotate(captures / "k4_fetch_sessions_raw.pcap", 6, 100)
    shutil.copy(captures / "base.pcap", folder / "other.pcap")
    parts = [(path.name, path.read_bytes()) for path in sorted(files.iterdir())]

    def put(number: int, size: int | None = None) -> None:
        (folder / parts[number][0]).write_bytes(parts[number][1][:size])

    put(0)
    put(1)
    assert job(SOME) == "0 of 2 captures as decoded before, 2 decoded whole"
    put(2, len(parts[2][1]) // 2)  # inside of a record
    assert job(SOME) == (
        "1 of 2 captures as decoded before, 1 with 1 new file and the connections that were open, 0 decoded whole"
    )
    for number in range(2, 6):
        put(number)
    assert job(SOME) == (
        "1 of 2 captures as decoded before, 1 with 4 new files and the connections that were open, 0 decoded whole"
    )
    assert job(SOME) == "2 of 2 captures as decoded before, 0 decoded whole"
    (folder / parts[1][0]).unlink()
    assert job(SOME) == "1 of 2 captures as decoded before, 1 decoded whole"
    (folder / "other.pcap").unlink()
    assert job(SOME) == "1 of 1 capture as decoded before, 0 decoded whole"


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(3))
def test_files_come_in_any_order(
    captures: Path, rotate: Any, job: Callable[..., str], tmp_path: Path, seed: int
) -> None:
    """Files of sets and others that share no connection, one or two a run, later ones of a set before earlier ones."""
    sets = [rotate(captures / "k4_fetch_sessions_raw.pcap", 4, 100), rotate(captures / "base.pcap", 3)]
    files = [(path, f"{n}-{path.name}") for n, folder in enumerate(sets) for path in folder.iterdir()]
    files += [(captures / name, name) for name in ("raw_ids.pcap", "raw_reuse.pcap")]
    chosen = random.Random(seed)
    chosen.shuffle(files)
    while files:
        for path, name in [files.pop() for _ in range(min(len(files), chosen.randint(1, 2)))]:
            shutil.copy(path, tmp_path / "in" / name)
        job(FEW)


def test_what_is_the_same_is_not_read_again(spark: Any, captures: Path, equal: Any, tmp_path: Path) -> None:
    """A file whose middle is other than it was, which only those who read it see."""
    old, new = tmp_path / "old.pcap", tmp_path / "new.pcap"
    shutil.copy(captures / "base_short.pcap", old)
    kdissect.spark.dissect(spark, old, FEW, keep=tmp_path / "kept", partitions=2)["exchanges"].count()
    shutil.copy(captures / "raw_ids.pcap", new)
    expected = kdissect.open([old, new]).tables(FEW)
    found, data = old.stat(), bytearray(old.read_bytes())
    data[6000:-6000] = bytes(len(data) - 12_000)
    old.write_bytes(data)
    os.utime(old, ns=(found.st_atime_ns, found.st_mtime_ns))
    assert kdissect.open(old).table("exchanges").num_rows < expected["exchanges"].num_rows // 2
    made = kdissect.spark.dissect(spark, [old, new], FEW, keep=tmp_path / "kept", partitions=2)
    equal({name: frame.toArrow() for name, frame in made.items()}, expected)


def test_of_a_set_that_grew_only_new_files_are_scanned(spark: Any, captures: Path, rotate: Any, tmp_path: Path) -> None:
    folder = rotate(captures / "k4_fetch_sessions_raw.pcap", 4, 100)
    late = shutil.move(folder / "cut.pcap3", tmp_path / "cut.pcap3")
    kdissect.spark.dissect(spark, folder, FEW, keep=tmp_path / "kept", partitions=2)["exchanges"].count()
    shutil.move(late, folder / "cut.pcap3")
    made = kdissect.spark.dissect(spark, folder, FEW, keep=tmp_path / "kept", partitions=2)
    (work,) = made._works
    index = made._matching.index({0: (work.first, work.skip)})
    scanned = index.where("kind <> 2 and file >= 0").select("file").distinct().collect()
    assert [row.file for row in scanned] == [3]


def test_giant_connections(spark: Any, captures: Path, rotate: Any, equal: Any, tmp_path: Path) -> None:
    folder = rotate(captures / "k4_fetch_sessions_raw.pcap", 4, 100)
    late = shutil.move(folder / "cut.pcap3", tmp_path / "cut.pcap3")
    names = ["exchanges", "fetch_partitions", "connections", "problems", "topics"]
    for more in (False, True):
        if more:
            shutil.move(late, folder / "cut.pcap3")
        made = kdissect.spark.dissect(spark, folder, names, keep=tmp_path / "kept", partitions=2)
        made.plan = replace(made.plan, giant=0, unit=5_000)
        equal({name: frame.toArrow() for name, frame in made.items()}, kdissect.open(folder).tables(names))
    for generation in ("rows-000001", "rows-000002"):
        assert list((tmp_path / "kept" / generation / "table=unit").iterdir())


def test_another_option_reads_everything_again(captures: Path, job: Callable[..., str], tmp_path: Path) -> None:
    shutil.copy(captures / "base_tiny.pcap", tmp_path / "in" / "a.pcap")
    whole, same = (
        "0 of 1 capture as decoded before, 1 decoded whole",
        "1 of 1 capture as decoded before, 0 decoded whole",
    )
    assert [job(LEAST), job(LEAST), job(LEAST, verify=True)] == [whole, same, whole]
    assert len(list((tmp_path / "kept").iterdir())) == 2  # a manifest, and what it names


def test_a_job_that_did_not_end_well(
    captures: Path, job: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "in"
    shutil.copy(captures / "base_tiny.pcap", folder / "a.pcap")
    job(LEAST)
    shutil.copy(captures / "base_short.pcap", folder / "b.pcap")
    with monkeypatch.context() as patched:
        patched.setattr(Store, "put", _interrupted)
        with pytest.raises(InterruptedError):
            job(LEAST)
    assert (tmp_path / "kept" / "rows-000002").is_dir()
    (folder / "b.pcap").unlink()
    shutil.copy(captures / "raw_ids.pcap", folder / "c.pcap")
    assert job(LEAST) == "1 of 2 captures as decoded before, 1 decoded whole"
    shutil.rmtree(tmp_path / "kept" / "rows-000001")
    assert job(LEAST) == "0 of 2 captures as decoded before, 2 decoded whole"


def test_a_planted_pickle_is_not_run(
    spark: Any, captures: Path, job: Callable[..., str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever can write to the folder has no code run by the next job, which decodes everything again."""
    from pyspark.sql.functions import lit

    shutil.copy(captures / "base_tiny.pcap", tmp_path / "in" / "a.pcap")
    job(LEAST)
    trap = tmp_path / "ran"

    class Trap:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(trap),)

    folder, planted = tmp_path / "kept" / "rows-000001", pickle.dumps(Trap())
    kinds = [path.name.removeprefix("table=") for path in folder.iterdir() if path.name.startswith("table=_")]
    assert {"_file", "_learned", "_owners", "_settled"} <= set(kinds)
    for number, kind in enumerate(kinds):
        rows = spark.read.parquet(str(folder / f"table={kind}")).withColumn("data", lit(bytearray(planted)))
        rows.coalesce(1).write.mode("overwrite").parquet(str(tmp_path / f"planted{number}"))
    for number, kind in enumerate(kinds):
        shutil.rmtree(folder / f"table={kind}")
        shutil.move(tmp_path / f"planted{number}", folder / f"table={kind}")
    caplog.clear()
    assert job(LEAST) == "0 of 1 capture as decoded before, 1 decoded whole"
    assert not trap.exists()
    assert [record.getMessage() for record in caplog.records if record.name == "kdissect.spark"] == [
        UNREADABLE % (tmp_path / "kept")
    ]


def test_damage_decodes_everything_again(
    spark: Any, captures: Path, job: Callable[..., str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Of the manifest, its form, and sizes of files: a line, and nothing is known. Of rows: the same tables, too."""
    shutil.copy(captures / "base_tiny.pcap", tmp_path / "in" / "a.pcap")
    job(LEAST)
    kept, store = tmp_path / "kept", Store(spark, str(tmp_path / "kept"))
    assert store.newest().sets

    def manifest() -> Path:
        return max(kept.glob("manifest-*.json"))

    def older() -> None:
        manifest().write_text(manifest().read_text().replace('"form": ', '"form": 1'))

    def no_manifest() -> None:
        manifest().write_bytes(b"\0" * 100)

    def cut(kind: str) -> None:
        for path in next(kept.glob("rows-*")).glob(f"table={kind}/*.parquet"):
            path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
            path.write_bytes(path.read_bytes()[:-20])

    def spoiled() -> None:  # of the same size
        for path in next(kept.glob("rows-*")).glob("table=_file/*.parquet"):
            path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
            path.write_bytes(bytes(path.stat().st_size))

    def said() -> list[str]:
        told = [one.getMessage() for one in caplog.records if one.name == "kdissect.spark"]
        caplog.clear()
        return told

    good = shutil.copytree(kept, tmp_path / "good")
    for damage in (older, no_manifest, partial(cut, "exchanges")):
        damage()
        said()
        assert not store.newest().sets, damage
        assert said() == [UNREADABLE % kept]
        shutil.rmtree(kept)
        shutil.copytree(good, kept)
    spoiled()
    assert job(LEAST) == "0 of 1 capture as decoded before, 1 decoded whole"
    assert said() == [UNREADABLE % kept]
    assert job(LEAST) == "1 of 1 capture as decoded before, 0 decoded whole"


@pytest.mark.exhaustive
def test_what_two_captures_saw_is_told_once(captures: Path, job: Callable[..., str], tmp_path: Path) -> None:
    """Both ends of a conversation, one after the other and at once, beside a capture that shares nothing: findings, too
    (`test_common_connections.py` has it for rows and, with both at once, for all tables)."""

    def put(end: str) -> None:  # plain, so that payloads are read by range
        with pa.input_stream(captures / "stories" / f"net_delay_{end}.pcap.zst") as stream:
            (tmp_path / "in" / f"{end}.pcap").write_bytes(stream.read())

    tables = [*FEW, "clock_offsets", "session_partitions", "findings"]
    shutil.copy(captures / "raw_ids.pcap", tmp_path / "in" / "other.pcap")
    put("client")
    assert job(tables) == "0 of 2 captures as decoded before, 2 decoded whole"
    put("broker")
    assert job(tables) == "1 of 3 captures as decoded before, 2 decoded whole"
    (tmp_path / "in" / "other.pcap").unlink()
    assert job(tables) == "2 of 2 captures as decoded before, 0 decoded whole"


def test_what_is_wrong(spark: Any, captures: Path, tmp_path: Path) -> None:
    path = captures / "base_tiny.pcap"
    with pytest.raises(UsageError, match="whole tables"):
        kdissect.spark.dissect(spark, path, {"exchanges": ["api"]}, keep=tmp_path)
    bad = tmp_path / "bad.pcap"
    bad.write_bytes(b"no capture at all")
    made = kdissect.spark.dissect(spark, [path, bad], ["problems"], keep=tmp_path / "kept")
    assert [row.where for row in made["problems"].collect()].count("bad.pcap") == 1
    with pytest.raises(kdissect.NotACapture):
        kdissect.spark.dissect(spark, [path, bad], ["problems"], strict=True)
    cut = tmp_path / "cut.pcap"
    cut.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(CaptureUnreadable, match=r"cut\.pcap"):
        kdissect.spark.dissect(spark, cut, ["problems"], keep=tmp_path / "kept", strict=True)["problems"]


def _interrupted(*_: Any) -> None:
    raise InterruptedError

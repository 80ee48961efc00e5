"""Tables in Delta, Iceberg and Parquet, whose writers are killed at random points, while somebody reads all the time.

Captures grow file by file. Their tables are made by `kdissect spark`, run again for each file, or by a stream; each run
is killed with -9, with all its processes, somewhere between its begin and a little after it would have ended. The rows
must be those of the files so far, or of some of them and never fewer than before, and a reader that is not Spark must
never have met anything else.

The jars are for some versions of Spark only, so a PySpark of such a version is installed aside; the readers too. Run
with -m exhaustive tests/spark; KDISSECT_KILLS says how many runs are killed.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import kdissect
from tests.conftest import ROOT
from tests.spark.jars import fetched

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(7200)]

PYSPARK = "4.1.4"
PACKAGES = {
    "delta": "io.delta:delta-spark_4.1_2.13:4.4.0",
    "iceberg": "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",
}
"""Pairs that work together."""
SETTINGS = {
    "delta": {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.databricks.delta.snapshotPartitions": "2",
    },
    "iceberg": {
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.type": "hadoop",
    },
    "parquet": {},
}
READERS = ("deltalake", "pyiceberg", "pyarrow")
KILLS = int(os.environ.get("KDISSECT_KILLS", "3"))
HERE = ROOT / "tests" / "spark"


def installed(place: Path, *packages: str) -> Path:
    """A folder with these packages, and what they need where that is more than one."""
    alone = ["--no-deps"] if len(packages) == 1 else []
    command = [sys.executable, "-m", "pip", "install", "-q", *alone, "--target", str(place), *packages]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no registry gives {' '.join(packages)}: {done.stderr.strip().splitlines()[-1:]}")
    return place


@pytest.fixture(scope="session")
def older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a PySpark that there are jars for."""
    return installed(tmp_path_factory.mktemp("pyspark"), f"pyspark=={PYSPARK}")


@pytest.fixture(scope="session")
def readers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with packages that read Delta and Iceberg."""
    return installed(tmp_path_factory.mktemp("readers"), *READERS)


class Tables:
    """Tables of one format below a folder, made of captures in another."""

    def __init__(self, form: str, older: Path, readers: Path, folder: Path) -> None:
        self.form, self._readers = form, readers
        self.captures, self.out, self._state = (folder / name for name in ("in", "out", "state"))
        self.captures.mkdir()
        self._hosts = [self.captures]
        paths = [str(ROOT)] if form == "parquet" else [str(older), str(ROOT)]
        self._environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYSPARK_PYTHON": sys.executable}
        jars = fetched(folder / "jars", [PACKAGES[form]]).glob("*.jar") if form in PACKAGES else []
        packages = {"spark.jars": ",".join(map(str, jars))} if form in PACKAGES else {}
        place = {"spark.sql.catalog.lake.warehouse": str(self.out)} if form == "iceberg" else {}
        self._settings = [f"{name}={value}" for name, value in {**SETTINGS[form], **packages, **place}.items()]

    def capture_twice(self) -> None:
        """From here on another host captures the same: none of its rows are to be written."""
        self._hosts.append(self.captures / "other_host")
        self._hosts[-1].mkdir()

    def add(self, piece: Path) -> None:
        """A file that is captured."""
        for place in self._hosts:
            shutil.copy(piece, place)

    def batch(self) -> list[str]:
        """The command that makes the tables of all captures."""
        command = [sys.executable, "-m", "kdissect", "spark", str(self.captures), "-o", str(self.out)]
        command += ["--format", self.form, "--tables", "exchanges,groups"]
        command += (
            ["--partition-by", "date"] if self.form in PACKAGES else []
        )  # else the workers write files themselves
        command += ["--master", "local[2]", "--conf", "spark.sql.shuffle.partitions=2"]
        return [*command, *(part for one in self._settings for part in ("--conf", one))]

    def stream(self, how: str) -> list[str]:
        """The command that reads what is new."""
        return [
            sys.executable, str(HERE / "lake_writer.py"), self.form, how, str(self.captures), str(self.out),
            str(self._state), *self._settings,
        ]  # fmt: skip

    def begun(self, command: Sequence[str]) -> subprocess.Popen[str]:
        """A run that has planned what to do: a stream says so, others hold their lease."""
        at = time.time()
        process = subprocess.Popen(
            command, env=self._environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            start_new_session=True,
        )  # fmt: skip
        assert process.stderr is not None
        if command == self.batch():
            while process.poll() is None and not any(path.stat().st_mtime >= at for path in self._leases()):
                time.sleep(0.05)
            return process
        said = []
        for line in process.stderr:
            said.append(line)
            if line == "begun\n":
                return process
        raise AssertionError("".join(said))

    def _leases(self) -> list[Path]:
        return [*self.out.glob("_leases/*.json")]

    def whole(self, command: Sequence[str]) -> float:
        """A run to its end; the seconds from when it had planned on."""
        process = self.begun(command)
        begin = time.monotonic()
        _, said = process.communicate()
        assert process.returncode == 0, said
        return time.monotonic() - begin

    def killed(self, command: Sequence[str], after: float) -> float | None:
        """A run that is killed so many seconds after it has planned; None, or after how many seconds it had ended."""
        process = self.begun(command)
        begin, ended = time.monotonic(), None
        with suppress(subprocess.TimeoutExpired):
            process.wait(after)
            ended = time.monotonic() - begin
        with suppress(ProcessLookupError):  # it has ended meanwhile
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return ended

    def rows(self, columns: Sequence[str]) -> Counter[str]:
        """Rows of `exchanges` as they are now."""
        done = subprocess.run(self._reading("rows"), env=self._reader(), capture_output=True)
        assert done.returncode == 0, done.stderr.decode()
        return counted(pa.ipc.open_stream(done.stdout).read_all(), columns)

    @contextmanager
    def polled(self, seen: Path) -> Iterator[None]:
        """While somebody reads the table over and over and writes down what there is."""
        with seen.open("w") as file:
            process = subprocess.Popen(
                self._reading("poll"), env=self._reader(), stdin=subprocess.PIPE, stdout=file, text=True
            )
            try:
                yield
            finally:
                process.communicate()

    def _reader(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(self._readers)}

    def _reading(self, what: str) -> list[str]:
        return [sys.executable, str(HERE / "lake_reader.py"), self.form, str(self.out), what]


def counted(table: pa.Table, columns: Sequence[str]) -> Counter[str]:
    return Counter(map(repr, table.select(list(columns)).to_pylist()))


def streamed(pieces: Sequence[Path]) -> tuple[list[str], list[Counter[str]]]:
    """What a stream gives of the first files, for each number of them, but for names of brokers, which come when they
    come; the columns too."""
    from kdissect.engine.resumption import columns
    from kdissect.spark.source.streaming import Work

    wanted = columns("exchanges")
    state, rows, named = None, [Counter[str]()], [name for name in wanted if name != "broker"]
    for piece in pieces:
        *made, state = Work({"exchanges": wanted}).do("cut.pcap", [(piece.name, str(piece))], state)
        rows.append(sum((counted(table, named) for _, table in made), rows[-1]))
    return named, rows


def run_killed(
    tables: Tables, command: Sequence[str], pieces: list[Path], columns: list[str], expected: list[Counter[str]]
) -> None:
    """Files come one by one, a run is killed for each; the rows are those of `expected`, by the number of files, and
    never of fewer than before."""
    chosen = random.Random(7)
    for piece in pieces[:3]:
        tables.add(piece)
    first = tables.whole(command)
    there, caught, commits = expected.index(tables.rows(columns)), 0, 0
    seen = tables.captures.with_name("seen")
    with tables.polled(seen):
        tables.add(pieces[3])
        span = min(first, tables.whole(command))
        for piece in pieces[4:-1]:
            tables.add(piece)
            ended = tables.killed(command, chosen.uniform(0, 1.1 * span))
            now = tables.rows(columns)
            assert now in expected[there:], (now.total(), [one.total() for one in expected])
            moved = now != expected[there]
            there, caught, commits = expected.index(now, there), caught + (ended is None), commits + moved
            span = (
                min(ended, span) if ended is not None else span * (1 if moved else 1.25)
            )  # runs get slower and faster
        tables.add(pieces[-1])
        tables.whole(command)
        if tables.rows(columns) != expected[-1]:
            tables.whole(command)  # before PySpark 4.2 a stream's run takes up the batch that was broken off, no other
        assert tables.rows(columns) == expected[-1]
        time.sleep(1)
    counts = seen.read_text().split("\n")[:-1]
    runs = len(pieces) - 5
    print(
        f"{caught} of {runs} runs killed before their end, {commits} after they had changed rows; {len(counts)} looks"
    )
    assert [line for line in counts if not line.isdigit()] == []
    assert [int(line) for line in counts] == sorted(map(int, counts))
    assert caught
    assert int(counts[-1]) == expected[-1].total()


@pytest.mark.parametrize("form", SETTINGS)
def test_runs_that_are_killed(
    older: Path, readers: Path, captures: Path, rotate: Any, tmp_path: Path, form: str
) -> None:
    tables = Tables(form, older, readers, tmp_path)
    pieces = sorted(rotate(captures / "base.pcap", KILLS + 5).iterdir(), key=lambda path: (len(path.name), path.name))
    local = [kdissect.open(pieces[:number]).table("exchanges") for number in range(1, len(pieces) + 1)]
    columns = local[0].column_names
    run_killed(tables, tables.batch(), pieces, columns, [Counter(), *(counted(one, columns) for one in local)])


@pytest.mark.parametrize(
    ("form", "how"),
    [("delta", "stream"), ("iceberg", "stream"), ("delta", "follow"), ("iceberg", "follow"), ("parquet", "follow")],
)
def test_streams_that_are_killed(
    older: Path, readers: Path, captures: Path, rotate: Any, tmp_path: Path, form: str, how: str
) -> None:
    tables = Tables(form, older, readers, tmp_path)
    pieces = sorted(rotate(captures / "base.pcap", KILLS + 5).iterdir(), key=lambda path: (len(path.name), path.name))
    columns, expected = streamed(pieces[:-1])  # the last file is being written
    if how == "follow":
        tables.capture_twice()
    run_killed(tables, tables.stream(how), pieces, columns, expected)

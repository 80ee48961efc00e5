"""`kdissect spark` as people start it: in a process, files afterwards."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest

import kdissect
from kdissect.cli.subcommands import bulk
from kdissect.installed_copy import install_command
from kdissect.output import OutputError
from kdissect.problems import JobFailed, UsageError
from kdissect.spark.job import prepare
from tests.conftest import CAPTURES, ROOT
from tests.spark.conftest import moved

CAPTURE = str(CAPTURES / "base.pcap")
LEFT = (
    "left for a later run: 1 file that may still be written to "
    "(--quiet SECONDS takes files that were not written to for so long)"
)


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kdissect", "spark", *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment}, capture_output=True, text=True,
    )  # fmt: skip


class Program:
    """`kdissect spark` line after line in one process: its JVM takes longer to start than most lines take."""

    PROGRAM = """
import json, logging, os, sys
from kdissect.cli.main import main
before, log = dict(os.environ), logging.getLogger("kdissect.spark")
for line in sys.stdin:
    arguments, environment = json.loads(line)
    os.environ.update(environment)
    code = main(["spark", *arguments])
    for name in set(os.environ) - set(before):
        del os.environ[name]
    os.environ.update(before)
    log.handlers.clear()  # of --log
    log.setLevel(logging.NOTSET)
    sys.stderr.flush()
    print(f"\\0{code}", flush=True)
"""

    def __init__(self, errors: Path) -> None:
        """`errors`: a file for what it says on standard error."""
        self._said = errors.open("w+")
        self._running = subprocess.Popen(
            [sys.executable, "-c", self.PROGRAM], env={**os.environ, "PYTHONPATH": str(ROOT), "LC_ALL": "C"},
            cwd=errors.parent, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said.fileno(), text=True,
        )  # fmt: skip

    def __call__(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        assert self._running.stdin is not None
        assert self._running.stdout is not None
        self._said.seek(0)
        self._said.truncate()
        self._running.stdin.write(json.dumps([arguments, environment]) + "\n")
        self._running.stdin.flush()
        told = ""
        for line in self._running.stdout:
            text, zero, code = line.partition("\0")
            told += text
            if zero:
                return subprocess.CompletedProcess(arguments, int(code), told, Path(self._said.name).read_text())
        raise AssertionError(Path(self._said.name).read_text())

    def close(self) -> None:
        with self._said, self._running:
            assert self._running.stdin is not None
            self._running.stdin.close()


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    made = Program(tmp_path_factory.mktemp("program") / "errors")
    yield made
    made.close()


@pytest.mark.spark
def test_tables_as_parquet(program: Program, tmp_path: Path) -> None:
    out = tmp_path / "öut"  # in a C locale
    tables = ["exchanges", "fetch_sessions", "findings"]
    done = program(
        CAPTURE, "-o", str(out), "--master", "local[2]", "--tables", ",".join(tables), "--partition-by", "broker",
        "--partitions", "2",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "exchanges" in done.stdout
    assert "3 tables from 1 file, 702 kB" in done.stderr
    local = kdissect.open(CAPTURE).tables(tables)
    assert (out / "exchanges" / "broker=1").is_dir()
    for name, expected in local.items():
        found = ds.dataset(out / name, partitioning=ds.partitioning(flavor="hive"), format="parquet").to_table()
        if "broker" in found.column_names:
            at = found.schema.get_field_index("broker")
            found = found.set_column(at, "broker", found["broker"].cast("string"))
        found = found.select(expected.column_names) if found.num_rows else found
        assert Counter(map(repr, found.to_pylist())) == Counter(map(repr, expected.to_pylist())), name


@pytest.mark.spark
def test_a_second_run_other_folders_and_what_spark_cannot_do(program: Program, tmp_path: Path) -> None:
    out, bad, cut = tmp_path / "out", tmp_path / "bad.pcap", tmp_path / "cut.pcap"
    bad.write_bytes(b"no capture at all")
    cut.write_bytes(Path(CAPTURE).read_bytes()[:-5])
    local, other = ["--master", "local[2]", "--tables", "problems"], ["-o", str(tmp_path / "other")]
    for arguments, code, said in (
        (["--strict", str(bad)], 1, "bad.pcap: not a capture."),
        (["--strict", str(cut)], 1, "kdissect: cut.pcap: "),
        (["--format", "delta"], 2, "this session of Spark has no format 'delta'"),
        (["-o", "file:///proc/out"], 2, "cannot write file:///proc/out"),
        (["--master", "nowhere"], 2, "Spark did not start: Master must"),
    ):
        kdissect_spark = run if "nowhere" in arguments else program  # what a JVM says that does not start
        failed = kdissect_spark(CAPTURE, *other, *local, *arguments)
        assert failed.returncode == code, failed.stderr
        (line,) = failed.stderr.splitlines()
        assert said in line
    first = program(CAPTURE, "-o", str(out), *local)
    again = program(CAPTURE, str(bad), "-o", str(out), *local, "--partition-by", "date", "--log")
    assert (first.returncode, again.returncode) == (0, 0), again.stderr
    assert "base.pcap: 1 file, 1,293 packets\n" in again.stderr
    found = ds.dataset(out / "problems", format="parquet").to_table()
    assert "bad.pcap" in found["where"].to_pylist()
    expected = kdissect.open(CAPTURE).table("exchanges")
    plain = [CAPTURE, "--master", "local[2]", "--tables", "exchanges"]
    by_date, none = tmp_path / "by_date", tmp_path / "none"
    replacing = [[*plain, "-o", str(none)], [*plain, "-o", str(none), "--partition-by", "none"]]
    for folder, folders, lines in (
        (by_date, ["date", "cluster"], [[*plain, "-o", str(by_date)]]),
        (none, [], replacing),
    ):
        for line in lines:
            done = program(*line)
            assert done.returncode == 0, done.stderr
        (file,) = (folder / "exchanges").rglob("*.parquet")
        assert [part.partition("=")[0] for part in file.relative_to(folder / "exchanges").parts[:-1]] == folders
        table = pd.read_parquet(folder / "exchanges")
        assert len(table) == expected.num_rows
        assert set(table["cluster"]) == set(expected["cluster"].to_pylist())


def test_the_jvm_is_light_where_python_does_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    job = prepare(CAPTURE)
    cases = [("local[2]", True, True), ("local[2]", False, False), ("local[16]", True, False), ("yarn", True, False)]
    assert all(bulk._light(job, master, False) == master.startswith("local") for master, *_ in cases)  # it is small
    monkeypatch.setattr("kdissect.spark.job.FEW_BYTES", 0)
    assert [bulk._light(job, master, plain) for master, plain, _ in cases] == [light for *_, light in cases]


class BrokenSession:
    """A session whose JVM has ended; it is its own context, gateway and process."""

    def __init__(self) -> None:
        self.stopped = False
        self.sparkContext = self._gateway = self._accumulatorServer = self.proc = self

    def wait(self, timeout: float) -> int:
        return -9

    def getConf(self) -> dict[str, str]:
        return {"spark.local.dir": "/spill"}

    def stop(self) -> None:
        self.stopped = True


FULL = "No space left on device"
ENDED = "Spark's JVM ended during the job. See what ended it, such as a lack of memory"


@pytest.mark.parametrize(
    ("raised", "expected", "said"),
    [
        (
            f"Traceback (most recent call last):\nkdissect.output.OutputError: cannot write out/1: {FULL}",
            OutputError,
            f"cannot write out: {FULL}",
        ),
        ("Traceback (most recent call last):\nkdissect.problems.UsageError: no", UsageError, "out: no"),
        (f"Lost task: org.apache.hadoop.fs.FSError: java: {FULL}", OutputError, f"cannot write out: {FULL}"),
        (f"java: {FULL}", JobFailed, f"Spark: java: {FULL} (spark.local.dir: /spill)"),
        (ConnectionRefusedError(111, "Connection refused"), JobFailed, ENDED),
        (EOFError(), JobFailed, ENDED),
    ],
)
def test_why_a_job_failed(
    monkeypatch: pytest.MonkeyPatch, raised: str | Exception, expected: type[Exception], said: str
) -> None:
    """One line; a session whose JVM has ended is not asked to stop."""
    errors = pytest.importorskip("pyspark.errors")
    session = BrokenSession()
    monkeypatch.delenv("SPARK_LOCAL_DIRS", raising=False)
    monkeypatch.setattr(bulk, "_session", lambda *_: session)
    with pytest.raises(expected, match=f"^{re.escape(said)}$"), bulk._started("out", None, []):
        raise errors.PySparkException(raised) if isinstance(raised, str) else raised
    assert session.stopped == isinstance(raised, str)


SHOWN = ["exchange_id", "status", "api_version", "hold"]


@pytest.mark.spark
def test_rows_of_new_files_are_appended(program: Program, tmp_path: Path) -> None:
    """What was written before stays as it is, rows come once, and nobody mixes such tables with others."""
    source, captures, out = CAPTURES / "field_rotated_C", tmp_path / "captures", tmp_path / "out"
    files = sorted(source.iterdir())
    captures.mkdir()
    for path in files[:3]:
        shutil.copy2(path, captures / path.name)
    plain = [str(captures), "-o", str(out), "--master", "local[2]", "--tables", "exchanges,fetches"]
    told = program(*plain, "--append")
    assert told.returncode == 0, told.stderr
    said, *left = told.stderr.splitlines()
    assert re.fullmatch(rf"{re.escape(str(out))}: appended to 2 tables in [\d.]+ s", said)
    assert left == [LEFT]
    before = {path: path.stat().st_mtime_ns for path in out.glob("*/batch=*/*.parquet")}
    for path in files[3:]:
        shutil.copy2(path, captures / path.name)
    late = captures / f"{files[0].name}0"  # with packets before those that were read
    late.write_bytes(moved(files[1].read_bytes(), -1800))
    other = program(*plain[:-1], "fetches", "--append")
    assert other.returncode == 2
    assert "earlier files were read for other tables or columns (exchanges, fetches)" in other.stderr
    append = [*plain, "--append", "--quiet", "0"]
    for line in (append, [*append, "--forget", "0"]):
        more = program(*line)
        assert more.returncode == 0, more.stderr
        assert (f"{late.name} came after later files of its capture" in more.stderr) == (line is append)
        assert LEFT not in more.stderr
    beside = program(*plain)
    assert beside.returncode == 2
    assert "runs with --append have made its tables" in beside.stderr
    assert before.items() < {path: path.stat().st_mtime_ns for path in out.glob("*/batch=*/*.parquet")}.items()
    local = kdissect.open(source)
    for name in ("exchanges", "fetches"):
        written = ds.dataset(out / name, partitioning=ds.partitioning(flavor="hive"), format="parquet").to_table()
        begin = min(local.table("exchanges")["request_first_at"].drop_null().to_pylist())
        rest = pc.greater_equal(written["at"], pa.scalar(begin))
        found = written.filter(pc.fill_null(rest, True))
        assert len(written) > len(found)
        rows = [Counter(map(repr, some.select(SHOWN).to_pylist())) for some in (found, local.table(name))]
        assert rows[0] == rows[1], name


@pytest.mark.spark
def test_a_job_that_fails_says_what_its_worker_said(program: Program, tmp_path: Path) -> None:
    """Workers whose Python has no kdissect."""
    python = tmp_path / "python"
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['kdissect'] = None\n")
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path}:$PYTHONPATH exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    asked = ("-o", str(tmp_path / "out"), "--master", "local[2]", "--tables", "problems")
    failed = program(CAPTURE, *asked, PYSPARK_PYTHON=str(python))
    assert failed.returncode == 1, failed.stderr
    assert failed.stdout == ""
    assert re.fullmatch(r"kdissect: Spark: .*kdissect.* \(ModuleNotFoundError\)\n", failed.stderr), failed.stderr


@pytest.mark.parametrize(
    ("arguments", "environment", "code", "said"),
    [
        (["-o", "out"], {}, 2, "no capture given"),
        ([CAPTURE], {}, 2, "Missing option '-o'"),
        (["no/such/*.pcap", "-o", "out"], {}, 1, "no file matches"),
        ([CAPTURE, "-o", "\udcff"], {}, 2, "\\udcff: Spark takes names in UTF-8 only"),
        ([CAPTURE, "-o", "/proc/out"], {}, 2, "cannot write /proc/out"),
        ([CAPTURE, "-o", "out", "--tables", "exchangs"], {}, 2, "did you mean 'exchanges'"),
        ([CAPTURE, "-o", "out", "--partition-by", "brokr"], {}, 2, "'brokr'"),
        ([CAPTURE, "-o", "out", "--conf", "memory"], {}, 2, "'memory' is no setting"),
        ([".", CAPTURE, "-o", "out", "--append"], {}, 2, "--append takes one directory"),
        ([".", "-o", "out", "--append", "--to", "10:00:00"], {}, 2, "--to does not go with --append"),
        ([".", "-o", "out", "--append", "--tables", "topics"], {}, 2, "a stream makes: connections"),
        (["nowhere", "-o", "out", "--append"], {}, 2, "nowhere: not a directory"),
        ([CAPTURE, "-o", "out", "--quiet", "60"], {}, 2, "--quiet goes with --append"),
        (
            [CAPTURE, "-o", "out", "--engine", "local", "--partitions", "2"],
            {},
            2,
            "--partitions goes with --engine spark",
        ),
        ([CAPTURE, "-o", "out"], {"PATH": "/none", "JAVA_HOME": ""}, 2, "no java on the PATH"),
        ([CAPTURE, "-o", "out"], {"JAVA_HOME": "/none"}, 2, "/none/bin/java cannot be run"),
    ],
)
def test_what_is_wrong_is_one_line(
    program: Program, tmp_path: Path, arguments: list[str], environment: dict[str, str], code: int, said: str
) -> None:
    java = tmp_path / "bin" / "java"  # tests without Java must not fail for want of it
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"17.0.1\"' >&2\n")
    java.chmod(0o755)
    done = program(*arguments, **{"JAVA_HOME": str(tmp_path), **environment})
    assert done.returncode == code
    assert said in done.stderr
    assert done.stderr.startswith("kdissect: ")
    assert len(done.stderr.splitlines()) == 1


def test_without_pyspark(tmp_path: Path) -> None:
    absent = tmp_path / "pyspark" / "__init__.py"
    absent.parent.mkdir()
    absent.write_text("raise ImportError('No module named pyspark')\n")
    done = run(CAPTURE, "-o", str(tmp_path / "out"), PYTHONPATH=os.pathsep.join([str(tmp_path), str(ROOT)]))
    assert done.returncode == 2
    assert done.stderr == f"kdissect: kdissect spark needs pyspark: {install_command('spark')}\n"


def test_appending_needs_a_newer_pyspark(monkeypatch: pytest.MonkeyPatch) -> None:
    pyspark = pytest.importorskip("pyspark")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr(pyspark, "__version__", "3.5.9")
    with pytest.raises(UsageError, match=r"need PySpark 4\.0 or newer, and this is 3\.5\.9: \S+"):
        bulk._append("nowhere", "out", None, "parquet", None, None, None, [])


def test_java_that_is_too_old(tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'java version \"1.8.0_392\"' >&2\n")
    java.chmod(0o755)
    done = run(CAPTURE, "-o", str(tmp_path / "out"), JAVA_HOME=str(tmp_path))
    assert done.returncode == 2
    assert done.stderr == f"kdissect: kdissect spark needs Java 17 or newer: {java} is 8\n"

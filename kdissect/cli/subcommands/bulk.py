"""The command `spark`: captures to Parquet, on the cores of this machine or on a cluster."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import shutil
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from kdissect.cli.options import comma_list, engine_options
from kdissect.cli.printing import terminal, words
from kdissect.cli.printing.grid import Header, grid
from kdissect.cli.printing.hushing import Hushed
from kdissect.cli.printing.stage_progress import Stages
from kdissect.installed_copy import install_command
from kdissect.output import OutputError
from kdissect.problems import JobFailed, KdissectError, UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kdissect.spark.job import Job

LEAST_JAVA = 17
"""What Spark 4 runs on."""
QUIET = Path(__file__).with_name("log4j2.properties")
LIGHT = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""Options of a JVM that has little to do: compiling its code for speed takes it longer than running it, up to half
of all CPU seconds of a run over small captures."""
UNCHECKED = ("-Darrow.enable_unsafe_memory_access=true", "-Darrow.enable_null_check_for_get=false")
"""Properties by which Arrow's Java classes leave out what they check at each access to a value
(https://arrow.apache.org/docs/java/, "Java Properties"): half of what the JVM does to make rows of columns. Spark reads
within the number of rows, and only what is not null."""
NOISE = ("WARNING: Using incubator modules", "Setting default log level to", "To adjust logging level use")
"""Beginnings of lines that Spark's JVM writes whatever the logging is set to."""
PARTITIONS = "spark.sql.shuffle.partitions"
"""Spark's setting of how many parts a streaming query's state has: 200 files a run where it is not set."""
BESIDE_APPEND = frozenset(
    {"captures", "output", "master", "tables", "form", "append", "quiet", "forget", "logged", "conf"}
)
"""Parameters of the command that go with --append."""
ENDING = 5.0
"""Seconds that a JVM which answers no more has to end."""
HADOOPS_DISK = "org.apache.hadoop.fs.FSError"
"""What Hadoop's file system throws where a local disk fails. Tables and checkpoints are written through it, rows that
Spark keeps are not."""
UNDER_SPARK_SUBMIT = "PYSPARK_GATEWAY_PORT"
"""Environment variable that `spark-submit` sets for the programs that it starts."""


@click.command(short_help="Many captures, on all cores or a cluster, with Spark.")
@click.argument("captures", nargs=-1, type=click.Path(), metavar="CAPTURE...")
@click.option("-o", "--output", metavar="DIR", required=True, help="A directory for each table is written there.")
@click.option("--master", metavar="URL", help="Where Spark runs; local[*], all cores of this machine, when not given.")
@click.option("--tables", metavar="A,B", callback=comma_list, help="Only these tables (see: kdissect tables).")
@click.option(
    "--partition-by",
    metavar="A,B",
    callback=comma_list,
    help="Folders by these columns, such as capture, broker and date (UTC), which every table has; none: no folders. "
    "Not given: date,cluster, of Parquet on disks that all share.",
)
@click.option("--format", "form", metavar="NAME", default="parquet", help="Parquet, or what the session has: delta.")
@click.option("--partitions", type=click.IntRange(1), metavar="N", help="Parts that connections are spread over.")
@click.option(
    "--engine",
    type=click.Choice(["local", "spark"]),
    help="One task does it all, or it is spread over all. Not given: one where that is sooner.",
)
@click.option(
    "--transport",
    type=click.Choice(["ranges", "payload"]),
    help="Read payloads again by ranges, or shuffle them. Not given: ranges, but of several captures elsewhere "
    "those of more than 2 GB are shuffled.",
)
@click.option(
    "--append",
    is_flag=True,
    help="Append rows of files that came into the directory CAPTURE since the last such run, and change nothing else. "
    "Without tables that need all captures at once.",
)
@click.option(
    "--quiet",
    type=click.FloatRange(0),
    metavar="SECONDS",
    help="With --append: a file is complete, too, once it was not written to for so long.",
)
@click.option(
    "--forget",
    type=click.FloatRange(0),
    metavar="SECONDS",
    help="With --append: a rotated set without a new file for so long is over, and what waited for its next file is "
    "written. A week when not given.",
)
@click.option("--strict", is_flag=True, help="Stop at a file that cannot be read to its end.")
@click.option("--log", "logged", is_flag=True, help="Say a line for each capture set: what was read, and what was not.")
@click.option("--conf", multiple=True, metavar="KEY=VALUE", help="A setting of Spark; may be repeated.")
@engine_options
def spark(
    captures: tuple[str, ...],
    output: str,
    master: str | None,
    tables: list[str] | None,
    partition_by: list[str] | None,
    form: str,
    partitions: int | None,
    engine: str | None,
    transport: str | None,
    append: bool,
    quiet: float | None,
    forget: float | None,
    strict: bool,
    logged: bool,
    conf: tuple[str, ...],
    **settings: Any,
) -> None:
    """Read any number of captures with Spark and write every table as a directory of Parquet files.

    Rotated files are one capture: connections that cross them stay whole. Tables are those of kdissect CAPTURE -o DIR/.
    Run again, it reads all captures again, and its tables take the place of those before. With --append it reads what
    came into a directory since the last such run, and appends its rows.
    Needs the extra kdissect[spark] and Java 17 or newer.
    """
    if not captures:
        raise click.UsageError("no capture given: try kdissect spark CAPTURE... -o DIR")
    from kdissect.capture.sources import is_utf8

    if strange := [name for name in (*captures, output) if not is_utf8(name)]:
        raise UsageError(f"{strange[0]}: Spark takes names in UTF-8 only; rename it, or set LC_ALL=C.UTF-8")
    from kdissect.spark.file_system import HadoopFiles
    from kdissect.spark.job import prepare
    from kdissect.spark.source.remote_captures import split_local
    from kdissect.spark.writing.destination import check_format, partitioned, shared
    from kdissect.spark.writing.lease import leased
    from kdissect.spark.writing.saving import write

    log = logging.getLogger("kdissect.spark")
    lines = Lines()
    log.addHandler(lines)
    click.get_current_context().call_on_close(partial(log.removeHandler, lines))
    log.setLevel(logging.INFO if logged else logging.WARNING)
    confs = [_setting(text) for text in conf]
    if append:
        _check_append(captures)
        _needs()
        _append(captures[0], output, tables, form, quiet, forget, master, confs)
        return
    if quiet is not None or forget is not None:
        raise UsageError(f"{'--forget' if quiet is None else '--quiet'} goes with --append")
    if engine == "local" and partitions is not None:
        raise UsageError("--partitions goes with --engine spark: the local engine is one task")
    columns = partitioned(tables, [] if partition_by in (None, ["none"]) else partition_by)
    _needs()
    named = partial(prepare, list(captures), tables, transport=transport, strict=strict, **settings)
    begun = time.monotonic()
    here = ":/" not in output
    if here:
        _writable(output)
        _check_earlier_runs(os.path.exists, output)
    with leased(None, output) if here else contextlib.nullcontext() as lease:
        job = None if split_local(captures)[1] else named()  # faults of local files are told before Spark starts
        one_task = form == "parquet" and not partitions and engine != "spark"
        light = job is not None and _light(job, master, one_task)
        with _started(output, master, confs, light) as session:
            check_format(session, form)
            files = HadoopFiles(session)
            if not here:
                _check_earlier_runs(files.exists, output)
            elsewhere = files.local(output) is None
            if elsewhere:
                files.try_out(output)
            shared(session, output)
            with leased(files, output) if elsewhere else contextlib.nullcontext(lease) as mine:
                job = job or named(spark=session)
                made = job.on(session, partitions, engine)
                with Stages(session) as stages:
                    stage = partial(setattr, stages, "name")
                    cut = None if partition_by is None else columns
                    rows = write(made, output, form=form, by=cut, on_start=stage, lease=mine)
                size = sum(made.bytes)
    _print_rows(rows)
    read = words.number_of(len(made.bytes), "file")
    told = f"{words.number_of(len(rows), 'table')} from {read}, {words.size(size)}"
    terminal.say(f"{output}: {told}, in {time.monotonic() - begun:.1f} s")


def _check_append(captures: tuple[str, ...]) -> None:
    """Raise UsageError for what does not go with --append."""
    if len(captures) != 1:
        raise UsageError("--append takes one directory that captures are put into")
    context = click.get_current_context()
    for option in context.command.params:
        name = option.name or ""
        if name not in BESIDE_APPEND and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise UsageError(f"{option.opts[0]} does not go with --append")


def _append(
    directory: str,
    output: str,
    tables: list[str] | None,
    form: str,
    quiet: float | None,
    forget: float | None,
    master: str | None,
    confs: list[tuple[str, str]],
) -> None:
    """Append the rows of the files in a directory that are new and complete to the tables below `output`."""
    import pyspark

    from kdissect.spark.source.registration import check_data_sources

    check_data_sources(pyspark.__version__)
    from kdissect.engine.resumption import STREAMED, columns
    from kdissect.spark.file_system import HadoopFiles
    from kdissect.spark.source.file_stream import Watched
    from kdissect.spark.source.remote_captures import find_storage
    from kdissect.spark.source.streaming import FORGET, followed_folder
    from kdissect.spark.workers import runs_on_this_machine
    from kdissect.spark.writing.destination import check_format, shared
    from kdissect.spark.writing.kept_looks import KeptLooks
    from kdissect.spark.writing.lease import leased
    from kdissect.spark.writing.streamed_tables import follow

    begun = time.monotonic()
    named = list(STREAMED) if tables is None else tables
    for name in named:
        columns(name)
    place = followed_folder(directory)
    here = ":/" not in output
    if here:
        _writable(output)
        _check_earlier_runs(os.path.exists, output, named)
    rows = dict.fromkeys(named, 0)

    def add_counts(of_sets: Mapping[str, Mapping[str, int]]) -> None:
        for counts in of_sets.values():
            for name in rows:
                rows[name] += counts.get(name, 0)

    with (
        leased(None, output) if here else contextlib.nullcontext(),
        _started(output, master, confs, silent=True) as session,
    ):
        check_format(session, form)
        files = HadoopFiles(session)
        if not here:
            _check_earlier_runs(files.exists, output, named)
        shared(session, output)
        if runs_on_this_machine(session) and not session.sparkContext.getConf().contains(PARTITIONS):
            session.conf.set(PARTITIONS, session.sparkContext.defaultParallelism)
        with contextlib.nullcontext() if here else leased(files, output):
            until = FORGET if forget is None else forget
            query = follow(session, directory, output, named, form=form, quiet=quiet, forget=until, on_batch=add_counts)
            query.trigger(availableNow=True).start().awaitTermination()
        watched = Watched(place, quiet, find_storage(session, place), str(KeptLooks(files, output).path))
        unfinished = watched.count_unfinished()
    _print_rows(rows)
    terminal.say(f"{output}: appended to {words.number_of(len(rows), 'table')} in {time.monotonic() - begun:.1f} s")
    if not watched.sizes:
        terminal.say(f"{directory}: no file is there. Check the path, or run it again when captures have come.")
    if unfinished:
        told = f"left for a later run: {words.number_of(unfinished, 'file')} that may still be written to"
        terminal.say(f"{told} (--quiet SECONDS takes files that were not written to for so long)")


def _check_earlier_runs(exists: Callable[[str], bool], output: str, appended: Sequence[str] = ()) -> None:
    """Raise UsageError where runs with --append have made the tables below `output`, and where runs without it have
    made one of those that rows are to be appended to."""
    from kdissect.spark.writing.destination import target
    from kdissect.spark.writing.streamed_tables import CHECKPOINT

    is_followed = exists(target(output, CHECKPOINT))
    if is_followed and not appended:
        way = "with"
    elif not is_followed and any(exists(target(output, name)) for name in appended):
        way = "without"
    else:
        return
    raise UsageError(f"{output}: runs {way} --append have made its tables. Name another directory.")


@contextlib.contextmanager
def _started(
    output: str, master: str | None, confs: list[tuple[str, str]], light: bool = False, silent: bool = False
) -> Iterator[SparkSession]:
    """Around what a session does (`_session`), which ends with it. `silent`: Spark's processes say nothing. Workers of
    a streaming query would tell of each step, and end with tracebacks. Raises as `_explain_failure` says."""
    hushed = Hushed(NOISE)
    session = _session(master, confs, hushed, light)
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    accumulators = getattr(session.sparkContext, "_accumulatorServer", None)
    if accumulators is not None:  # it would print a traceback where the JVM ends
        accumulators.handle_error = lambda *_: None
    if silent:
        hushed.over()
    has_ended = False
    try:
        yield session
    except (PySparkException, Py4JError, ConnectionError, EOFError) as error:
        has_ended = _has_ended(session, error)
        if has_ended:
            raise JobFailed("Spark's JVM ended during the job. See what ended it, such as a lack of memory") from None
        raise _explain_failure(error, session, output) from None
    finally:
        hushed.over()  # Python's workers complain when Spark leaves them
        if not has_ended:
            session.stop()


def _explain_failure(error: Exception, session: SparkSession, output: str) -> KdissectError:
    """JobFailed where Spark fails, UsageError where one of its tasks says that it was asked for something wrong,
    OutputError where the disk of the output is full."""
    from kdissect.spark.workers import name_scratch_folders, reason

    told = reason(error)
    if (wrong := told.removesuffix(f" ({UsageError.__name__})")) != told:
        return UsageError(f"{output}: {wrong}")
    if (wrong := told.removesuffix(f" ({OutputError.__name__})")) != told:
        return OutputError(output, OSError(wrong.rpartition(": ")[2]))
    if not told.endswith(full := os.strerror(errno.ENOSPC)):
        return JobFailed(f"Spark: {told}")
    if output in told or HADOOPS_DISK in str(error):
        return OutputError(output, OSError(full))
    return JobFailed(f"Spark: {told} ({', '.join(name_scratch_folders(session))})")


def _has_ended(session: SparkSession, error: Exception) -> bool:
    """Whether the session's JVM is gone, as far as an exception of a call to it tells."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    if isinstance(error, (PySparkException, Py4JJavaError)):  # it has answered
        return False
    jvm: subprocess.Popen[Any] | None = session.sparkContext._gateway.proc  # type: ignore[union-attr]
    if jvm is None:  # of spark-submit
        return True
    try:
        jvm.wait(ENDING)
    except subprocess.TimeoutExpired:
        return False
    return True


def _print_rows(rows: Mapping[str, int]) -> None:
    """How many rows each table got, on standard output."""
    out = terminal.console()
    counts = [(name, words.count(count)) for name, count in rows.items()]
    for line in grid([Header("table"), Header("rows", right=True)], counts, terminal.width()):
        out.print(line)
    sys.stdout.flush()


class Lines(logging.Handler):
    """Logged lines on standard error, in the form of the others there."""

    def emit(self, record: logging.LogRecord) -> None:
        """One line."""
        terminal.say(record.getMessage())


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise click.BadParameter(f"{text!r} is no setting; say it like spark.executor.memory=4g", param_hint="--conf")
    return name, value


def _writable(output: str) -> None:
    """Raise OutputError when the directory cannot be made or written to."""
    folder = Path(output)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".kdissect-writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise OutputError(output, error) from None


def _needs() -> None:
    """Raise UsageError, saying what to install, when pyspark or Java is missing or Java is too old."""
    try:
        import pyspark  # noqa: F401
    except ImportError:
        raise UsageError(f"kdissect spark needs pyspark: {install_command('spark')}") from None
    if UNDER_SPARK_SUBMIT in os.environ:
        return
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    wanted = f"kdissect spark needs Java {LEAST_JAVA} or newer"
    if java is None:
        raise UsageError(f"{wanted}: no java on the PATH and JAVA_HOME is not set")
    try:
        told = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60).stderr
    except (OSError, subprocess.TimeoutExpired):
        raise UsageError(f"{wanted}: {java} cannot be run") from None
    found = re.search(r'version "(?:1\.)?(\d+)', told)
    if found is None or int(found[1]) < LEAST_JAVA:
        raise UsageError(f"{wanted}: {java} is {found[1] if found else 'of a version that it does not tell'}")


def _light(job: Job, master: str | None, plain: bool) -> bool:
    """Whether the JVM has little to do: for small captures, and where one task of Python does all. `plain`: as Parquet,
    and by as many tasks as that takes."""
    from kdissect.engine.readahead import cores

    found = re.fullmatch(r"local(?:\[(\d+|\*)\])?", master or "local[*]")
    if found is None:
        return False
    count = cores() if found[1] == "*" else int(found[1] or 1)
    return job.by_one_task(count if plain else None)


@contextlib.contextmanager
def _none_left() -> Iterator[None]:
    """Around what starts a JVM: who is interrupted ends it. PySpark takes away the folder in which a JVM says that it
    is there, and one that cannot say so stays for ever."""
    from pyspark import java_gateway

    begun: list[subprocess.Popen[Any]] = []

    class Noted(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            begun.append(self)

    java_gateway.Popen = Noted  # type: ignore[attr-defined]
    try:
        yield
    except KeyboardInterrupt:
        for one in begun:
            one.kill()
            one.wait()
        raise
    finally:
        java_gateway.Popen = subprocess.Popen  # type: ignore[attr-defined]


def _session(master: str | None, confs: list[tuple[str, str]], hushed: Hushed, light: bool = False) -> SparkSession:
    """A session: the one of `spark-submit`, else one of our own, which says nothing but what goes wrong. `light`: its
    JVM has little to do, and need not compile its code for speed."""
    from kdissect.spark.workers import reason, utf8_names, without_current_folder

    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    from pyspark.sql import SparkSession

    built = SparkSession.builder.appName("kdissect").config("spark.sql.session.timeZone", "UTC")
    built = built.config("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    built = built.config("spark.sql.adaptive.advisoryPartitionSizeInBytes", "128m")  # what files by folders grow to
    if UNDER_SPARK_SUBMIT not in os.environ:
        without_current_folder()
        utf8_names()
        built = built.master(master or "local[*]").config("spark.ui.enabled", "false")
        built = built.config("spark.ui.showConsoleProgress", "false")
        options = [f"-Dlog4j2.configurationFile={QUIET}", *UNCHECKED, *(LIGHT if light else [])]
        built = built.config("spark.driver.extraJavaOptions", " ".join(options))
        built = built.config("spark.python.unix.domain.socket.enabled", "true")
        if (master or "local").startswith("local"):
            # A task that waits for a nearer executor is offered again when another one ends only: HDFS makes them hang.
            built = built.config("spark.locality.wait", "0")
    elif master is not None:
        raise UsageError("--master is spark-submit's here: spark-submit --master ...")
    for name, value in confs:
        built = built.config(name, value)
    try:
        with _none_left(), hushed.entered():
            return built.getOrCreate()
    except Exception as error:
        thrown = [line.partition("Exception: ")[2] for line in hushed.said if "Exception: " in line]
        raise UsageError(f"Spark did not start: {next(iter(thrown), reason(error))}") from None

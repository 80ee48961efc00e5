"""Prepares Spark's Python workers, which serve one task after the other, and reads their errors."""

from __future__ import annotations

import gc
import locale
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from kdissect.spark.stages.plan import Plan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_RAISED = re.compile(r"^(?:[a-z_][\w.]*\.)?([A-Za-z_]\w*(?:Error|Exception|Exit|Interrupt)?): (.+)$")
"""The line that ends a traceback: the exception's type, its modules and what it says."""
_THROWN = re.compile(r"^(?:Caused by)?: [\w.$]+: (.+)$")
"""A line of the JVM's stack trace that says what was thrown, or what that was caused by."""
_TRACE = "Traceback (most recent call last)"
_PLACE = "kdissect read "
"""The begin of a note behind that line."""
_SETTLED: set[str] = set()
ASCII = ("ANSI_X3.4-1968", "US-ASCII")
"""What C libraries call it."""


def own_python() -> None:
    """Let Spark's workers run the Python that runs here, unless somebody said which: Spark itself takes what `python3`
    is on the PATH, which outside of an activated environment is another one, without kdissect. Has to come before the
    session begins. A driver that spark-submit started has its Python from there."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ and sys.executable:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def without_current_folder() -> None:
    """Keeps Spark's workers on this machine from modules of the current folder: Spark starts each as `python -m`, which
    looks there first. A driver that looks there itself (`python -m kdissect` in a checkout) keeps that for its workers.
    Has to come before the session begins."""
    if not {"", os.getcwd()} & set(sys.path):
        os.environ.setdefault("PYTHONSAFEPATH", "1")


def utf8_names() -> None:
    """Lets Spark's JVM on this machine name files in UTF-8, as Python does, where the locale has no characters beyond
    ASCII: it would write to other files there. Has to come before the session begins."""
    if locale.getencoding() in ASCII:
        os.environ["LC_ALL"] = "C.UTF-8"


def settled(stage: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches of a stage. A worker collects garbage after every task. That takes half a second where modules and
    kernels are hundreds of thousands of objects, so after a stage's first task these are left out of it for good."""
    yield from batches
    if stage not in _SETTLED:
        _SETTLED.add(stage)
        gc.collect()
        gc.freeze()


def runs_on_this_machine(spark: SparkSession) -> bool:
    """Whether one process on this machine runs all tasks of a session: not so with `local-cluster`, nor for a client of
    Spark Connect."""
    context = getattr(spark, "sparkContext", None)
    return context is not None and str(context.master).partition("[")[0] == "local"


def origin(plan: Plan) -> int:
    """The number that the rows of this task are known by (STAGED): the same where the task is run again."""
    from pyspark import TaskContext

    task = TaskContext.get()
    return plan.labels[0 if task is None else task.partitionId() % len(plan.labels)]


def name_scratch_folders(spark: SparkSession) -> list[str]:
    """Where Spark keeps rows on the driver's machine, by the settings that name the folders."""
    default = spark.sparkContext.getConf().get("spark.local.dir", tempfile.gettempdir())
    return [f"spark.local.dir: {folder}" for folder in os.environ.get("SPARK_LOCAL_DIRS", str(default)).split(",")]


def note_place(error: Exception, name: str) -> None:
    """Note with an exception in a worker what it read, for `reason`."""
    error.add_note(f"{_PLACE}{name}")


def reason(error: Exception) -> str:
    """The reason why a job failed, in one line. For an exception in a Python worker it is its own last line behind the
    name that `note_place` noted, else the first line of Spark's message and the first cause below it. Of an exception
    of the JVM that Python code of the driver got, such as a batch of a stream, it is the latter, too."""
    thrown = getattr(error, "java_exception", None)
    said = (str(error) if thrown is None else str(thrown)).splitlines()
    lines = [line.strip() for line in said]
    traces = [i for i, line in enumerate(lines) if _TRACE in line]
    for begin in sorted(traces, key=lambda i: not lines[i].startswith(_TRACE)):  # behind words it is of Spark's code
        at, raised = next(
            ((i, found) for i, line in enumerate(lines) if i > begin and (found := _RAISED.match(line))), (0, None)
        )
        if raised is not None:
            of_jvm = [found[1] for line in said[at + 1 :] if (found := _THROWN.match(line))]
            if raised[1] == "Py4JJavaError" and of_jvm:
                return _with_cause(of_jvm[0], of_jvm[-1])
            place = lines[at + 1].partition(_PLACE)[2] if at + 1 < len(lines) else ""
            return f"{place}: {raised[2]} ({raised[1]})".removeprefix(": ")
    first = next((line for line in lines if line), type(error).__name__)
    bottom = _find_first_cause(getattr(error, "_origin", None) if thrown is None else thrown)  # PySpark's own errors
    return _with_cause(first, bottom)


def _with_cause(message: str, cause: str | None) -> str:
    return message if cause is None or cause in message else f"{message} {cause}"


def _find_first_cause(thrown: Any) -> str | None:
    """The first line of the message of the JVM's exception that led to this one; None where there is none, or no
    text."""
    below = None if thrown is None else thrown.getCause()
    while below is not None:
        thrown, below = below, below.getCause()
    text = None if thrown is None else thrown.getMessage()
    return None if text is None else str(text).strip().partition("\n")[0]

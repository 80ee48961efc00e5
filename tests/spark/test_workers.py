"""What stopped a job, in one line."""

from __future__ import annotations

import pytest

from kdissect.spark.workers import reason

WORKER = """
  An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "/opt/python/worker.py", line 12, in read
    raise CaptureUnreadable("/data/a.pcap: Permission denied. Look at its mode.")
kdissect.problems.CaptureUnreadable: /data/a.pcap: Permission denied. Look at its mode.

  at org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:581)
"""

BATCH = """
[STREAM_FAILED] Query terminated with exception: Traceback (most recent call last):
  File "/opt/python/writer.py", line 12, in write
    self._jwrite.save(path)
py4j.protocol.Py4JJavaError: An error occurred while calling o332.save.
: org.apache.spark.SparkException: [TASK_WRITE_FAILED] Task failed while writing rows to file:/out. SQLSTATE: 58030
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.taskFailedWhileWritingRowsError(QueryExecutionErrors.scala:784)
\tSuppressed: java.io.IOException: closed
\tCaused by: java.io.IOException: of what was suppressed
Caused by: org.apache.hadoop.fs.FSError: java.io.IOException: No space left on device
Caused by: java.io.IOException: No space left on device
\t... 16 more
"""


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (
            BATCH,
            "[TASK_WRITE_FAILED] Task failed while writing rows to file:/out. SQLSTATE: 58030 No space left on device",
        ),
        (WORKER, "/data/a.pcap: Permission denied. Look at its mode. (CaptureUnreadable)"),
        (
            "\n\nJob aborted due to stage failure: Task 0 lost\n\tat org.apache",
            "Job aborted due to stage failure: Task 0 lost",
        ),
        ("", "RuntimeError"),
        (
            "[ERROR] Failed: Traceback (most recent call last):\nKeyError: 'key'\nkdissect read rack1/b.pcap7\n",
            "rack1/b.pcap7: 'key' (KeyError)",
        ),
    ],
)
def test_reason(said: str, expected: str) -> None:
    assert reason(RuntimeError(said)) == expected


class Thrown:
    """An exception of the JVM, as py4j has it."""

    def __init__(self, text: str | None, cause: Thrown | None = None) -> None:
        self._text, self._cause = text, cause

    def __str__(self) -> str:
        return f"org.apache.spark.SparkException: {self._text}"

    def getCause(self) -> Thrown | None:
        return self._cause

    def getMessage(self) -> str | None:
        return self._text


def test_what_was_at_the_bottom_of_it() -> None:
    full = Thrown("No space left on device")
    written = RuntimeError()
    written.java_exception = Thrown("[TASK_WRITE_FAILED] file:/out", Thrown("a task", full))  # type: ignore[attr-defined]
    expected = "org.apache.spark.SparkException: [TASK_WRITE_FAILED] file:/out No space left on device"
    assert reason(written) == expected
    written.java_exception = Thrown("No space left on device", full)  # type: ignore[attr-defined]
    assert reason(written) == "org.apache.spark.SparkException: No space left on device"
    written.java_exception = Thrown("out of memory", Thrown(None))  # type: ignore[attr-defined]
    assert reason(written) == "org.apache.spark.SparkException: out of memory"
    named = RuntimeError("Error while instantiating the session:\n\nJVM stacktrace: ...")  # of PySpark's own kinds
    named._origin = Thrown("Error while instantiating the session:", Thrown("'abc' is no number"))  # type: ignore[attr-defined]
    assert reason(named) == "Error while instantiating the session: 'abc' is no number"

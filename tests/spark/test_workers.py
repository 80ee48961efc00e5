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


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (WORKER, "/data/a.pcap: Permission denied. Look at its mode. (CaptureUnreadable)"),
        (
            "\n\nJob aborted due to stage failure: Task 0 lost\n\tat org.apache",
            "Job aborted due to stage failure: Task 0 lost",
        ),
        ("", "RuntimeError"),
    ],
)
def test_reason(said: str, expected: str) -> None:
    assert reason(RuntimeError(said)) == expected

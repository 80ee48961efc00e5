"""Findings of the last seconds: the rules of any capture, at work in a process of its own on the files of the ring.

A process of its own, at low priority, because rules of findings look at everything at once: the reader of packets must
lose neither time nor memory to them.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from kdissect.python_process import can_start_python, start_python

EVERY_S = 10.0
LONGEST_S = 60.0
"""A look that takes longer than this is given up: the traffic is more than findings can keep up with."""
NICE = 10
PROGRAM = "from kdissect.cli.entry import run\nrun()"
"""The command line, run by name: no module of the package below it imports it."""
REMEMBERED = 1000
"""Findings that are known not to be new."""
COLUMNS = (
    "id,severity,cause,headline,text,advice,first_at,last_at,broker,client_id,group_id,topic,incident,certainty,"
    "next_capture,table,filter,count"
)
NOT_OURS = ("capture",)
"""Causes that are of the ring, which begins and ends where it happens to."""
SEVERITIES = ("high", "medium", "low", "info")
WHO = ("id", "broker", "client_id", "group_id", "topic")


def explain(rows: Sequence[dict[str, Any]]) -> None:
    """Fill `explained_by` of rows of `findings`: the id of the worst of their incident, and of equal ones the earliest;
    None for that one itself, and where there is no incident."""
    worst: dict[int, dict[str, Any]] = {}
    for row in sorted(rows, key=lambda row: (SEVERITIES.index(row["severity"]), row["first_at"] or "")):
        row["explained_by"] = None
        if row["incident"] is not None and row["cause"] not in NOT_OURS:
            head = worst.setdefault(row["incident"], row)
            row["explained_by"] = None if head is row else head["id"]


class Lookout:
    """Looks for findings now and then. `new_findings` gives those since the last call."""

    def __init__(self, every_s: float = EVERY_S) -> None:
        self._every = every_s
        self._process: subprocess.Popen[bytes] | None = None
        self._output: IO[bytes] | None = None
        self._begun = time.monotonic()
        self._known: dict[tuple[Any, ...], None] = {}
        self.given_up = 0

    @property
    def due(self) -> bool:
        """Whether to look again."""
        return self._process is None and time.monotonic() - self._begun >= self._every

    def look(self, files: Sequence[Path]) -> None:
        """Begin to look in these files, the parts of one capture."""
        self._begun = time.monotonic()
        if not files or not can_start_python():
            return
        try:
            names = [str(file.absolute()) for file in files]  # an absolute name is no option and no command
            arguments = [*names, "--table", "findings", "--columns", COLUMNS, "--format", "jsonl", "--jobs", "1"]
            self._output = tempfile.TemporaryFile()  # noqa: SIM115 - the child writes to it until `new_findings` reads it
            self._process = start_python(PROGRAM, arguments, nice=NICE, stdout=self._output, stderr=subprocess.DEVNULL)
        except OSError:  # no more processes, or no room for files: the next look may succeed
            self.given_up += 1
            self.close()

    def new_findings(self, wait: bool = False) -> list[dict[str, Any]]:
        """New findings, in order of time, when a look has ended. `wait`: until it has. Of those that belong to one
        incident the worst explains the others: they name it in `explained_by`."""
        process = self._process
        if process is None:
            return []
        if wait:
            process.wait()
        if process.poll() is None:
            if time.monotonic() - self._begun > LONGEST_S:
                self.given_up += 1
                self.close()
            return []
        assert self._output is not None
        self._output.seek(0)
        rows = [json.loads(line) for line in self._output] if process.returncode == 0 else []
        self.close()
        explain(rows)
        new = []
        for row in sorted(rows, key=lambda row: row["first_at"] or ""):
            who = tuple(row[name] for name in WHO)
            if row["cause"] in NOT_OURS or who in self._known:
                continue
            if len(self._known) >= REMEMBERED:
                del self._known[next(iter(self._known))]
            self._known[who] = None
            new.append(row)
        return new

    def close(self) -> None:
        """End what still looks."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        if self._output is not None:
            self._output.close()
        self._process = self._output = None


class Explainer:
    """Finds out why a finding is there, in a process of its own on the files of the ring: what `why` prints."""

    def __init__(self, files: Sequence[Path], finding: Mapping[str, Any], width: int) -> None:
        """`finding`: a row of `findings` with columns of COLUMNS. `width`: columns of the text. Raises OSError."""
        names = [str(file.absolute()) for file in files]
        arguments = ["why", *names, "--finding", json.dumps(finding)]
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - the child writes to it until `text` reads it
        self._process = start_python(
            PROGRAM, arguments, environment={"COLUMNS": str(width), "FORCE_COLOR": "1"}, stdout=self._output,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def text(self) -> str | None:
        """The explanation, with the terminal's codes for styles; None while it is not known yet, empty if there is
        none: the packets have left the ring."""
        if self._process.poll() is None:
            return None
        self._output.seek(0)
        return self._output.read().decode() if self._process.returncode == 0 else ""

    def close(self) -> None:
        """End the process."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._output.close()

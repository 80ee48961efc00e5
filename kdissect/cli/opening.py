"""Captures as the command line needs them, and how it opens one."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol, cast

import click

from kdissect.cli.printing import terminal
from kdissect.cli.printing.progress import Progress

if TYPE_CHECKING:
    import pyarrow as pa

    from kdissect.engine.extracts.annotating import Commented
    from kdissect.engine.extracts.checking import Checked
    from kdissect.engine.extracts.cutting import Written
    from kdissect.engine.extracts.redacting import Redacted
    from kdissect.rewriting.standins import StandIns
    from kdissect.summary import Summary

STDIN = "-"
SMALL = 64 << 20
"""Bytes of input up to which rows are printed in order of time: their tables take some tens of MB. Beyond, rows are
printed as their exchanges complete, so that memory stays flat."""


class Shown(Protocol):
    """One exchange, byte by byte."""

    @property
    def exchange(self) -> Mapping[str, Any]:
        """Its row of `exchanges`."""

    @property
    def request(self) -> pa.Table | None:
        """Explanation of the request (offset, length, path, type, value, meaning); None when it was not captured."""

    @property
    def response(self) -> pa.Table | None:
        """Explanation of the response."""

    @property
    def request_data(self) -> bytes:
        """Captured bytes of the request, from its length prefix; offsets count from there."""

    @property
    def response_data(self) -> bytes:
        """Captured bytes of the response."""

    @property
    def owners(self) -> Mapping[str, float]:
        """Whose its time was, ms by owner."""

    @property
    def notes(self) -> Sequence[str]:
        """More that is known of it, a sentence each: bytes missing."""

    @property
    def session(self) -> Mapping[str, Any] | None:
        """Of an incremental Fetch of a known session: session_key, session_epoch, implied_partitions."""

    @property
    def implied(self) -> pa.Table | None:
        """The partitions that such a Fetch covers without naming them."""


class Capture(Protocol):
    """What `kdissect.open` returns, as far as the command line uses it."""

    analysis: Any
    size: int | None
    left_out: list[str]

    def not_input(self, target: object) -> None:
        """Raises UsageError where `target` is a path of a file that is read."""

    def path(self, capture: str, file: str) -> Path | None:
        """Where a file that tables name lies."""

    def summary(self, by: str = "api") -> Summary:
        """The first screen, as data."""

    def table(
        self, name: str, columns: Sequence[str] | None = None, where: str | None = None, *, reveal: bool = False
    ) -> pa.Table:
        """A whole table, in order."""

    def tables(
        self,
        names: Sequence[str] | Mapping[str, Sequence[str] | None] | None = None,
        where: Mapping[str, str] | None = None,
    ) -> dict[str, pa.Table]:
        """Several tables in one pass."""

    def batches(
        self, name: str, columns: Sequence[str] | None = None, where: str | None = None, *, reveal: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """A table in pieces; memory stays flat."""

    def ordered(
        self, name: str, columns: Sequence[str] | None = None, where: str | None = None, *, reveal: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """A whole table, in order, in pieces; memory stays flat."""

    def message_batches(self, api: str, direction: str) -> Iterator[pa.RecordBatch]:
        """Messages of one API and direction in pieces of one schema, at least one."""

    def save(
        self, directory: str | Path, tables: Mapping[str, Sequence[str] | None] | None = None
    ) -> Mapping[str, int]:
        """Every table, or those asked for, as Parquet; returns rows by table."""

    def commented(self, target: str | Path | BinaryIO, comments: pa.Table) -> Commented:
        """Writes the same packets with comments."""

    def cut(
        self,
        target: str | Path | BinaryIO,
        *,
        exchange: str | None = None,
        connection: str | None = None,
        frame: int | None = None,
        start: str | None = None,
        end: str | None = None,
        alone: bool = False,
        client: str | Sequence[str] | None = None,
        topic: str | Sequence[str] | None = None,
        group: str | None = None,
        where: str | None = None,
    ) -> Written:
        """Write a smaller capture."""

    def redact(self, target: str | Path | BinaryIO, *, names: StandIns | None = None, plain: bool = False) -> Redacted:
        """Write a copy that can be shown to others."""

    def check(self, names: StandIns | None = None) -> Checked:
        """Look for what `redact` would replace."""

    def report(self, target: str | Path | BinaryIO, *, named: str | None = None) -> int:
        """Write the HTML report; returns its bytes."""

    def show(
        self, exchange_id: str | None = None, frame: int | None = None, *, reveal: bool = False
    ) -> Sequence[Shown]:
        """Exchanges by id (or unique prefix) or by frame number, with their bytes explained."""


def open_capture(
    captures: Sequence[str], *, demo: bool = False, timings: bool = False, whole: bool = False, **settings: Any
) -> Capture:
    """Open what was named on the command line. `-` is standard input; settings left at None or False are not passed.

    `timings`: when the command ends, standard error says where the time went. `whole`: the command fails where
    something does not fit in memory, and says so; other commands leave it out, and standard error says that.
    """
    if demo and captures:
        raise click.UsageError("--demo is a capture of its own; leave out the others")
    if not demo and not captures:
        raise click.UsageError("no capture given: try kdissect --demo, or kdissect --help")
    given = {name: value for name, value in settings.items() if value not in (None, False, ())}
    source: Any
    if demo:
        from kdissect.demo import CAPTURE

        source = str(CAPTURE)
    elif STDIN in captures:
        if len(captures) > 1:
            raise click.UsageError("standard input (-) cannot be read together with other captures")
        source = sys.stdin.buffer
    else:
        source = list(captures)
    given.setdefault("progress", Progress())
    from kdissect.arrays.lean_arrow import load_arrow_alone

    load_arrow_alone()
    import kdissect

    opened = kdissect.open(source, **given)
    from kdissect.engine.bounds.spare_memory import few_collections, frugal

    frugal()
    few_collections()
    if not whole:
        click.get_current_context().call_on_close(lambda: _say_left_out(opened.left_out))
    if timings:
        from kdissect.cli.printing.timing import say_timings

        click.get_current_context().call_on_close(lambda: say_timings(opened.timings))
    from kdissect.kernels.kernel import compiled_before

    if not compiled_before():
        terminal.say("compiling kernels (once; takes some seconds)")
    return cast("Capture", opened)


def _say_left_out(notes: Sequence[str]) -> None:
    for note in notes:
        terminal.say(f"kdissect: {note}; --max-memory 4GB allows more")


def small(capture: Capture) -> bool:
    """Whether the input is known to be at most `SMALL` bytes, so that its tables can be held and put in order."""
    return capture.size is not None and capture.size <= SMALL


def named(captures: Sequence[str], demo: bool) -> list[str]:
    """How to name the same captures in another command, quoted for a shell. Standard input that is a file has its
    path; a pipe stays `-`."""
    import shlex

    return ["--demo"] if demo else [shlex.quote(_file_of(capture)) for capture in captures]


def _file_of(capture: str) -> str:
    """The path of a regular file that standard input reads (Linux's /proc tells); else as given."""
    if capture != STDIN:
        return capture
    with contextlib.suppress(OSError, ValueError):
        if stat.S_ISREG(os.fstat(sys.stdin.fileno()).st_mode):
            path = os.readlink(f"/proc/self/fd/{sys.stdin.fileno()}")
            if os.path.samestat(os.stat(path), os.fstat(sys.stdin.fileno())):
                return path
    return capture

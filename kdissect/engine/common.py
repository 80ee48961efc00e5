"""The common state of captures that were given together, kept for all passes over them, and whose turn it is to read.
One read comes after the other, for all of them use the same files, and the same places in them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from inspect import isgeneratorfunction
from typing import Any, BinaryIO, TypeVar, cast

from kdissect.capture import CaptureSet
from kdissect.engine.inputs import Segments
from kdissect.problems import UsageError
from kdissect.tables.sights import Sights

F = TypeVar("F", bound=Callable[..., Any])


class Common:
    """Connections that several captures, or two interfaces of one, saw: what `run.find_sights` found."""

    def __init__(self, found: Sights | None = None, given: bool = False) -> None:
        self.found = found
        self.given = given
        """Somebody knows it already: nothing is looked for."""
        self.one_sight: Callable[[Segments], Segments] | None = None
        """Leaves out of segments what another interface tells; None where no interface does."""
        self.of: tuple[int | None, ...] = ()
        """The captures, and the span of time, that it was found in."""

    def drop_copies(self, segments: Segments) -> Segments:
        """Segments without those that another interface tells."""
        return segments if self.one_sight is None else self.one_sight(segments)


class ReadingTurns:
    """The turns of threads that read captures which were opened together. One thread may begin a read within another
    one, as where two tables in pieces take turns. A second thread is refused: it would get rows of half of the file."""

    def __init__(self, captures: Sequence[CaptureSet]) -> None:
        self._lock = threading.Lock()
        self._reads = 0
        """Reads that have begun and not ended, all by one thread."""
        self._thread = 0
        self._files = [
            (capture, member.file, place)
            for capture in captures
            for member in capture.members
            if member.file is not None and (place := _place_in(member.file)) is not None
        ]
        """Open files that can seek, and where they stood when they were given."""

    @contextmanager
    def one_read(self) -> Iterator[None]:
        """Within it the calling thread reads. Raises UsageError while another thread does."""
        thread = threading.get_ident()
        with self._lock:
            if self._reads and self._thread != thread:
                raise UsageError(
                    "another thread is reading this capture, or holds rows of it in pieces: open the capture once for "
                    "each thread"
                )
            if not self._reads:
                self._rewind()
            self._thread = thread
            self._reads += 1
        try:
            yield
        finally:
            with self._lock:
                self._reads -= 1

    def _rewind(self) -> None:
        """Open files that were read before go back to where they stood, so that they can be read again."""
        for capture, file, place in self._files:
            if capture.bases:
                file.seek(place)
                capture.close()
                capture.bases.clear()


def _place_in(file: BinaryIO) -> int | None:
    """Where an open file stands; None for one that cannot seek."""
    try:
        return file.tell() if file.seekable() else None
    except (AttributeError, OSError, ValueError):
        return None


def reads_capture(method: F) -> F:
    """Makes a method of captures one read by `turns`. A generator reads from its first item until it ends or is
    closed."""
    if isgeneratorfunction(method):

        @wraps(method)
        def read_pieces(self: Any, *args: Any, **options: Any) -> Iterator[Any]:
            with self.turns.one_read():
                yield from method(self, *args, **options)

        return cast(F, read_pieces)

    @wraps(method)
    def read_whole(self: Any, *args: Any, **options: Any) -> Any:
        with self.turns.one_read():
            return method(self, *args, **options)

    return cast(F, read_whole)

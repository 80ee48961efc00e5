"""Output files: written aside, renamed when whole, so that nobody finds half a file after Ctrl-C or a full disk.

Rules. An input is never an output, whatever the two are called. A file that is replaced keeps its mode and, where we
may say so, its owner; a link is written through, so that it stays one. What lies aside has the mode of what it will be.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, BinaryIO, cast

from kdissect.problems import KdissectError, UsageError

ASIDE: set[str] = set()
"""Files and directories that lie aside just now, for whoever has to end the process at once."""
FULL = (errno.ENOSPC, errno.EDQUOT)


class OutputError(KdissectError):
    """An output that cannot be written; the message is one line."""

    def __init__(self, path: str | os.PathLike[str], error: OSError) -> None:
        why = os.strerror(error.errno) if error.errno else error  # what libraries say with it differs
        super().__init__(f"cannot write {os.fspath(path)}: {why}")


@contextlib.contextmanager
def naming_output(path: str | os.PathLike[str]) -> Iterator[None]:
    """Raises OutputError, which names the path, for an OSError of what writes below it."""
    try:
        yield
    except OSError as error:
        raise OutputError(path, error) from None


class ScratchFull(KdissectError):
    """No room for temporary files; the message says where they lie."""

    def __init__(self, folder: str | os.PathLike[str], error: OSError) -> None:
        super().__init__(f"no room for temporary files in {os.fspath(folder)}: {error.strerror or error} (TMPDIR names "
                         "another place)")  # fmt: skip


@contextlib.contextmanager
def scratch() -> Iterator[str]:
    """The folder for temporary files, while they are written. Raises ScratchFull where there is no room in it, or no
    such folder."""
    import tempfile  # here and below: few runs write files

    try:
        folder = tempfile.gettempdir()
    except OSError as error:
        raise ScratchFull("any of the usual places", error) from None
    try:
        yield folder
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise ScratchFull(folder, error) from None


def temporary() -> BinaryIO:
    """An open temporary file without a name, which is gone when it is closed. Raises ScratchFull."""
    import tempfile

    with scratch() as folder:
        return cast("BinaryIO", tempfile.TemporaryFile(dir=folder))


def distinct(target: object, inputs: Iterable[str | os.PathLike[str] | BinaryIO | None]) -> None:
    """Raise UsageError where `target`, a path, is one of the inputs (paths or open files), by whatever name: links and
    second names of a file too. Targets that are no path or do not exist yet are none."""
    if not isinstance(target, str | os.PathLike):
        return
    try:
        there = os.stat(target)
    except OSError:
        return
    if not stat.S_ISREG(there.st_mode):
        return
    for source in inputs:
        if source is None:
            continue
        try:
            given = os.stat(source) if isinstance(source, str | os.PathLike) else os.fstat(source.fileno())
        except (OSError, ValueError, AttributeError):  # no file behind it
            continue
        if os.path.samestat(there, given):
            raise UsageError(f"{os.fspath(target)} is read by this command; write to another file")


@contextlib.contextmanager
def whole_file(path: str) -> Iterator[IO[bytes]]:
    """A binary file that appears under its name only when the block ends well. Raises OutputError."""
    target = Path(os.path.realpath(path))
    try:
        before = target.stat() if target.exists() else None
        if before is not None and not stat.S_ISREG(before.st_mode):  # a device or a pipe is written as it is
            with target.open("wb") as stream:
                yield stream
            return
        if before is not None and not os.access(target, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        aside = str(target.with_name(f".{target.name[:100]}.{os.urandom(6).hex()}.part"))
        mode = 0o666 if before is None else stat.S_IMODE(before.st_mode) & 0o777
        handle = os.open(aside, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        ASIDE.add(aside)
    except OSError as error:
        raise OutputError(path, error) from None
    try:
        with os.fdopen(handle, "w+b") as stream:
            yield stream
            if before is not None:
                _as_before(stream.fileno(), before)
        os.replace(aside, target)
    except OSError as error:
        raise OutputError(path, error) from None
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(aside)
        ASIDE.discard(aside)


def _as_before(handle: int, before: os.stat_result) -> None:
    """Owner, as far as we may, and mode of the file that is replaced."""
    with contextlib.suppress(OSError):
        os.fchown(handle, before.st_uid, before.st_gid)
    os.fchmod(handle, stat.S_IMODE(before.st_mode))


@contextlib.contextmanager
def growing_file(path: str) -> Iterator[IO[bytes]]:
    """A binary file under its name from the beginning, for whoever reads it while it grows. Raises OutputError."""
    try:
        with open(path, "wb") as stream:
            yield stream
    except OSError as error:
        raise OutputError(path, error) from None


@contextlib.contextmanager
def whole_seekable(target: str | os.PathLike[str] | BinaryIO) -> Iterator[BinaryIO]:
    """A binary file to write, seek and read back, which reaches `target` (a path, or a file open for writing) only when
    the block ends well. Raises OutputError."""
    if isinstance(target, (str, os.PathLike)):
        path = Path(target)
        if not path.exists() or path.is_file():
            with whole_file(str(path)) as stream:
                yield cast("BinaryIO", stream)
            return
        with whole_file(str(path)) as device, whole_seekable(cast("BinaryIO", device)) as stream:
            yield stream
        return
    import shutil

    with temporary() as aside:
        with scratch():
            yield aside
        aside.seek(0)
        shutil.copyfileobj(aside, target, 1 << 20)
        target.flush()


@contextlib.contextmanager
def whole_directory(path: str) -> Iterator[Path]:
    """A directory to fill; its files move into `path`, replacing namesakes, only when the block ends well."""
    import shutil
    import tempfile

    target = Path(path)
    try:
        target.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=".kdissect-", dir=target))
        ASIDE.add(str(aside))
    except OSError as error:
        raise OutputError(path, error) from None
    try:
        yield aside
        for file in sorted(aside.iterdir()):
            place = Path(os.path.realpath(target / file.name))
            if place.is_file():
                with file.open("rb") as stream:
                    _as_before(stream.fileno(), place.stat())
            os.replace(file, place)
    except OSError as error:
        raise OutputError(path, error) from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)
        ASIDE.discard(str(aside))


def abandon() -> None:
    """Take away what lies aside: the process is about to end without unwinding."""
    import shutil

    for path in list(ASIDE):
        shutil.rmtree(path, ignore_errors=True)
        with contextlib.suppress(OSError):
            os.unlink(path)

"""Output files: written aside, renamed when whole, so that nobody finds half a file after Ctrl-C or a full disk."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, BinaryIO, cast

from kdissect.problems import KdissectError


class OutputError(KdissectError):
    """An output that cannot be written; the message is one line."""

    def __init__(self, path: str | os.PathLike[str], error: OSError) -> None:
        super().__init__(f"cannot write {os.fspath(path)}: {error.strerror or error}")


@contextlib.contextmanager
def whole_file(path: str) -> Iterator[IO[bytes]]:
    """A binary file that appears under its name only when the block ends well. Raises OutputError."""
    target = Path(path)
    try:
        if target.exists() and not target.is_file():  # a device or a pipe is written as it is
            with target.open("wb") as stream:
                yield stream
            return
        handle, aside = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent)
    except OSError as error:
        raise OutputError(path, error) from None
    try:
        with os.fdopen(handle, "w+b") as stream:
            yield stream
        os.chmod(aside, 0o666 & ~_umask())
        os.replace(aside, target)
    except OSError as error:
        raise OutputError(path, error) from None
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(aside)


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
    with tempfile.TemporaryFile() as aside:
        yield cast("BinaryIO", aside)
        aside.seek(0)
        shutil.copyfileobj(aside, target, 1 << 20)
        target.flush()


@contextlib.contextmanager
def whole_directory(path: str) -> Iterator[Path]:
    """A directory to fill; its files move into `path`, replacing namesakes, only when the block ends well."""
    target = Path(path)
    try:
        target.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=".kdissect-", dir=target))
    except OSError as error:
        raise OutputError(path, error) from None
    try:
        yield aside
        for file in sorted(aside.iterdir()):
            os.replace(file, target / file.name)
    except OSError as error:
        raise OutputError(path, error) from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current

"""The files of a directory that captures are put into, here or in storage elsewhere: what `file_stream` looks at."""

from __future__ import annotations

import io
import math
import os
import stat
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol

from kdissect.capture.captureset import Member
from kdissect.capture.sources import first_packet
from kdissect.problems import CaptureNotFound, CaptureUnreadable, UsageError
from kdissect.spark.remote_storage import Storage
from kdissect.spark.source.remote_captures import READERS, head_of


class File(NamedTuple):
    """A file as it is now."""

    folder: str
    """The folders that it lies in below the directory, "" for none, in POSIX's notation."""
    name: str
    path: str
    size: int
    arrived: int
    """When it was put there, or renamed or written to last, ns since the epoch."""
    changed: float
    """When it was written to last, seconds since the epoch."""


class Folder(Protocol):
    """A directory. Hidden files and folders are left out."""

    def files(self) -> Iterator[File]:
        """The files in it and in its folders. Raises UsageError where there is none, CaptureError."""

    def first_packets(self, paths: Sequence[str]) -> Iterator[float]:
        """Of each file the first packet's time in ns since the epoch, infinite for none. Raises CaptureUnreadable where
        storage does not give a file now: without it the others would be read in another order."""


class LocalFolder:
    """One of this machine."""

    def __init__(self, directory: str) -> None:
        self._place = Path(directory)

    def files(self) -> Iterator[File]:
        """See Folder."""
        if not self._place.is_dir():
            raise UsageError(f"{self._place}: not a directory that captures are rotated into")
        for above, folders, names in os.walk(self._place):
            folders[:] = [name for name in folders if not name.startswith(".")]
            inside = Path(above).relative_to(self._place).as_posix()
            for name in names:
                path = Path(above, name)
                with suppress(OSError):  # gone meanwhile
                    found = path.stat()
                    if stat.S_ISREG(found.st_mode) and not name.startswith("."):
                        place = "" if inside == "." else inside, name, str(path.absolute())
                        arrived = max(found.st_ctime_ns, path.lstat().st_ctime_ns)  # of a link its own, too
                        yield File(*place, found.st_size, arrived, found.st_mtime)

    def first_packets(self, paths: Sequence[str]) -> Iterator[float]:
        """See Folder."""
        return (first_packet(Member(Path(path).name, Path(path))) for path in paths)


class RemoteFolder:
    """One in storage elsewhere."""

    def __init__(self, address: str, storage: Storage) -> None:
        self._address = address.rstrip("/")
        self._storage = storage

    def files(self) -> Iterator[File]:
        """See Folder."""
        try:
            found = self._storage.list_files(self._address, deep=True)
        except OSError as error:
            raise CaptureUnreadable(f"{self._address}: cannot be read ({self._storage.explain(error)}).") from None
        for one in found:
            if not one.folder:
                inside, _, name = one.path.removeprefix(f"{self._address}/").rpartition("/")
                arrived = (one.changed + 999) * 10**6  # some storage tells whole seconds
                yield File(inside, name, one.path, one.size, arrived, one.changed / 1000)

    def first_packets(self, paths: Sequence[str]) -> Iterator[float]:
        """See Folder."""
        with ThreadPoolExecutor(READERS) as pool:
            yield from pool.map(self._first_packet, paths)

    def _first_packet(self, path: str) -> float:
        try:
            head = head_of(path, self._storage)
        except CaptureNotFound:  # gone meanwhile
            return math.inf
        return first_packet(Member(path.rpartition("/")[2], file=io.BytesIO(head)))


def folder_of(directory: str, storage: Storage | None) -> Folder:
    """A directory; `storage`: where it lies, None for this machine."""
    return LocalFolder(directory) if storage is None else RemoteFolder(directory, storage)

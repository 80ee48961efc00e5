"""One writer of a folder at a time: a run that writes holds a lease, and a second one is refused before it reads.

    DIR/_leases/2f6c....json    a run that writes: its host, its process; the file's time of change is its heartbeat

Rules.

- A run puts its own file there first and looks for those of others then. So of two runs that begin at the same instant
  at least one sees the other. It goes away again where another run is alive.
- A run makes its file's time now every BEAT seconds. One that has not done so for STALE seconds counts as dead, and its
  file is removed. Times are those of the file system, which are compared with that of the run's own new file: clocks of
  two hosts play no part. One whose time is so far ahead has said nothing since that clock stepped back.
- Of a process of this machine one knows without waiting that it is gone.
- Before a run's tables become the ones that are read, it looks for its own file. A run that was suspended for so long
  that another one took it for dead ends with an error then, and changes nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import threading
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from kdissect.output import OutputError
from kdissect.problems import UsageError

if TYPE_CHECKING:
    from kdissect.spark.file_system import HadoopFiles

LEASES = "_leases"
"""Readers of Spark pass over names that begin like this."""
BEAT = 10.0
"""Seconds between two heartbeats: a file of some bytes each, also where a request costs money."""
STALE = 60.0
"""Seconds after which a run counts as dead: five heartbeats may be lost on a busy machine."""


@dataclass(frozen=True, slots=True)
class Writer:
    """A process that writes. `machine`, `started`: what tells whether it is still there; empty where unknown."""

    host: str
    process: int
    machine: str
    started: str

    @classmethod
    def this(cls) -> Writer:
        """This process."""
        return cls(platform.node(), os.getpid(), _machine(), _started(os.getpid()))

    @property
    def has_ended(self) -> bool:
        """Whether the process is known to have ended: only one of this machine is."""
        return self.machine != "" and self.machine == _machine() and _started(self.process) != self.started


class Folder(Protocol):
    """Where the files of leases lie."""

    def put(self, name: str, data: bytes) -> None:
        """Write a file."""

    def touch(self, name: str, data: bytes) -> None:
        """Make the file's time now, if it is there."""

    def times(self) -> dict[str, float]:
        """Names of the files, and when each changed, in seconds."""

    def read(self, name: str) -> bytes:
        """A file; empty where it is not there any more."""

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""


class LocalFolder:
    """On disks of this machine, or mounted there."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, name: str, data: bytes) -> None:
        """See Folder."""
        self._folder.mkdir(exist_ok=True)
        (self._folder / name).write_bytes(data)

    def touch(self, name: str, data: bytes) -> None:
        """See Folder."""
        with contextlib.suppress(FileNotFoundError):
            os.utime(self._folder / name)

    def times(self) -> dict[str, float]:
        """See Folder."""
        found = {}
        for path in self._folder.glob("*.json"):
            with contextlib.suppress(FileNotFoundError):
                found[path.name] = path.stat().st_mtime
        return found

    def read(self, name: str) -> bytes:
        """See Folder."""
        try:
            return (self._folder / name).read_bytes()
        except FileNotFoundError:
            return b""

    def remove(self, name: str) -> None:
        """See Folder."""
        (self._folder / name).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # others are there, or it is gone
            self._folder.rmdir()


class HadoopFolder:
    """On any file system of Hadoop's that lists what was just written."""

    def __init__(self, files: HadoopFiles, folder: str) -> None:
        self._files, self._folder = files, folder

    def put(self, name: str, data: bytes) -> None:
        """See Folder."""
        self._files.overwrite(f"{self._folder}/{name}", data)

    def touch(self, name: str, data: bytes) -> None:
        """See Folder. Not every file system can change a file's time: it is written again."""
        if self._files.exists(f"{self._folder}/{name}"):
            self.put(name, data)

    def times(self) -> dict[str, float]:
        """See Folder."""
        listed = self._files.list_files(self._folder, deep=False)
        return {one.path.rpartition("/")[2]: one.changed / 1000 for one in listed}

    def read(self, name: str) -> bytes:
        """See Folder."""
        path = f"{self._folder}/{name}"
        return self._files.read(path) if self._files.exists(path) else b""

    def remove(self, name: str) -> None:
        """See Folder."""
        self._files.delete(f"{self._folder}/{name}")


class Lease:
    """The right to write below `output`. Raises UsageError, which names the other run, where one has it; OutputError
    where no file can be written there."""

    def __init__(self, folder: Folder, output: str) -> None:
        self._folder, self._output = folder, output
        self._name = f"{uuid.uuid4().hex}.json"
        self._data = json.dumps(asdict(Writer.this())).encode()
        try:
            folder.put(self._name, self._data)
            self._refuse_second()
        except BaseException as error:
            with contextlib.suppress(OSError):  # as where there is no folder
                folder.remove(self._name)
            if isinstance(error, OSError):
                raise OutputError(output, error) from None
            raise

    def _refuse_second(self) -> None:
        times = self._folder.times()
        now = times.pop(self._name)
        for name, changed in times.items():
            writer = _writer(self._folder.read(name))
            silent = now - changed
            if abs(silent) > STALE or (writer is not None and writer.has_ended):
                self._folder.remove(name)
            elif name in self._folder.times():
                who = "" if writer is None else f": process {writer.process} on {writer.host}"
                raise UsageError(
                    f"another run writes to {self._output}{who}, last heard of {max(silent, 0):.0f} s ago. Wait "
                    f"until it ends, or name another directory. A run that is silent for {STALE:.0f} s counts as dead"
                )

    def beat(self) -> None:
        """Say that this run is alive; nothing where another one has taken its place."""
        self._folder.touch(self._name, self._data)

    def check(self) -> None:
        """Raise OutputError where another run took this one for dead."""
        if self._name not in self._folder.times():
            raise OutputError(self._output, OSError("another run took this one for dead and writes there"))

    def give_up(self) -> None:
        """Let others write."""
        self._folder.remove(self._name)


@contextlib.contextmanager
def lease(folder: Folder, output: str) -> Iterator[Lease]:
    """A lease that is kept alive by a thread until the end of the block. Raises as `Lease`."""
    mine = Lease(folder, output)
    over = threading.Event()

    def beat() -> None:
        while not over.wait(BEAT):
            with contextlib.suppress(Exception):  # a heartbeat that is lost is one of several
                mine.beat()

    beating = threading.Thread(target=beat, name="kdissect lease", daemon=True)
    beating.start()
    try:
        yield mine
    finally:
        over.set()
        beating.join()
        with contextlib.suppress(Exception):  # the session may have ended; then it is stale soon
            mine.give_up()


def leased(files: HadoopFiles | None, output: str) -> contextlib.AbstractContextManager[Lease]:
    """A lease of an output. `files` None: it lies on this machine's disks. Raises as `Lease`."""
    local = Path(output) if files is None else files.local(output)
    if local is None:
        assert files is not None
        return lease(HadoopFolder(files, f"{output.rstrip('/')}/{LEASES}"), output)
    return lease(LocalFolder(local / LEASES), output)


def _writer(data: bytes) -> Writer | None:
    """Who wrote a lease; None where it is gone, or just being written."""
    try:
        return Writer(**json.loads(data))
    except (ValueError, TypeError):
        return None


def _machine() -> str:
    """A text for the scope of this process's number: a boot of a machine, and a namespace; empty where the system does
    not say."""
    try:
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _started(process: int) -> str:
    """When a process of this machine began, in ticks since its boot; empty where there is none."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""

"""The last seconds of packets on disk, in files that are taken away as they age: a rotated set that is a capture.

The folder is locked (flock(2)) as long as its process lives. So another process knows whose folder is left over of a
process that was killed, also where the two number processes differently (containers that share a temporary folder).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import tempfile
from pathlib import Path
from typing import BinaryIO

from kdissect.capture import open_captures
from kdissect.capture.block import Block
from kdissect.capture.pcap import PACKET
from kdissect.output import ASIDE, whole_seekable
from kdissect.rewriting.packetfile import PacketFile

SLICES = 12
"""Files that hold the ring; one more than its length is kept, for the oldest is taken away whole."""
RING_BYTES = 256 << 20
"""Bytes of packets that the ring holds at most."""


PREFIX = "kdissect-locked-ring-"
"""What names of rings' folders begin with, and below NAME those of their files. Earlier versions named theirs
`kdissect-ring-` and did not lock them: one without a lock may be in use, so that these are left alone."""
NAME = "live.pcap"


class Ring:
    """Keeps the packets of the last `seconds`, at most `most` bytes of them, in a folder of its own.

    Folders of this user that processes left which are no more are taken away first. Raises OSError where no folder can
    be made.
    """

    def __init__(self, seconds: float = 60.0, most: int = RING_BYTES) -> None:
        self.seconds = seconds
        self._slice_ns = max(1, int(seconds * 1e9 / (SLICES - 2)))
        self._most = most // SLICES
        remove_stale_rings(Path(tempfile.gettempdir()))
        self._folder, self._lock = _make_folder()
        ASIDE.add(str(self._folder))  # taken away too if the process ends without unwinding
        self._files: list[Path] = []
        self._open: tuple[BinaryIO, PacketFile] | None = None
        self._begun = 0
        self._latest = 0
        self._number = 0
        self.left_out = 0
        """Packets that were not kept, for more came at once than the ring holds."""

    def write(self, block: Block) -> None:
        """Keep the packets of a block."""
        rows = block.packets
        if not len(rows):
            return
        first, self._latest = int(rows[:, PACKET.time].min()), max(self._latest, int(rows[:, PACKET.time].max()))
        if int(rows[:, PACKET.captured].sum()) > self._most:
            self.left_out += len(rows)
            return
        if self._open is None or first - self._begun > self._slice_ns or self._open[1].bytes > self._most:
            self._next(first)
        assert self._open is not None
        self._open[1].write(block.window.data, rows)

    def _next(self, first: int) -> None:
        self._end()
        path = self._folder / f"{NAME}{self._number}"
        self._number += 1
        self._begun = first
        stream = path.open("w+b")
        self._open = (stream, PacketFile(stream))
        self._files.append(path)
        while len(self._files) > SLICES:
            self._files.pop(0).unlink(missing_ok=True)

    def _end(self) -> None:
        if self._open is not None:
            self._open[1].finish()
            self._open[0].close()
            self._open = None

    def files(self) -> list[Path]:
        """The files that are complete, oldest first; the next packets go into another one."""
        self._end()
        return list(self._files)

    def save(self, target: str, seconds: float) -> int:
        """Write the packets of the last `seconds` as one capture; how many. Raises OutputError."""
        since = self._latest - int(seconds * 1e9)
        files = self.files()
        with whole_seekable(target) as stream:
            out = PacketFile(stream)
            for capture in open_captures([str(path) for path in files]) if files else ():
                window = capture.window()
                for block in capture.blocks(window):
                    out.write(window.data, block.packets[block.packets[:, PACKET.time] >= since])
                capture.close()
            out.finish()
        return out.packets

    def close(self) -> None:
        """Take everything away."""
        self._end()
        _remove(self._folder, self._lock)
        os.close(self._lock)
        ASIDE.discard(str(self._folder))


def remove_stale_rings(place: Path) -> None:
    """Take away the rings in a folder that belong to this user and to no process that lives."""
    for folder in place.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # somebody else's, or gone meanwhile
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                if os.fstat(handle).st_uid == os.geteuid():
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    _remove(folder, handle)
            finally:
                os.close(handle)


def _make_folder() -> tuple[Path, int]:
    """A new folder and the descriptor that holds its lock."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        with contextlib.suppress(FileNotFoundError):  # another process took it for a stale one before it was locked
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(handle, fcntl.LOCK_EX)
            if os.path.exists(folder):
                return folder, handle
            os.close(handle)


def _remove(folder: Path, handle: int) -> None:
    """Take away a folder, open as `handle`, with the files of a ring; one with anything else in it stays."""
    with contextlib.suppress(OSError):
        for name in os.listdir(handle):
            if name.startswith(NAME) and stat.S_ISREG(os.stat(name, dir_fd=handle, follow_symlinks=False).st_mode):
                os.unlink(name, dir_fd=handle)
        os.rmdir(folder)

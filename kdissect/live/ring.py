"""The last seconds of packets on disk, in files that are taken away as they age: a rotated set that is a capture."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import BinaryIO

from kdissect.capture import open_captures
from kdissect.capture.block import Block
from kdissect.capture.pcap import CAPTURED, TIME
from kdissect.output import whole_seekable
from kdissect.rewriting.packetfile import PacketFile

SLICES = 12
"""Files that hold the ring; one more than its length is kept, for the oldest is taken away whole."""
RING_BYTES = 256 << 20
"""Bytes of packets that the ring holds at most."""


class Ring:
    """Keeps the packets of the last `seconds`, at most `most` bytes of them, in a folder of its own."""

    def __init__(self, seconds: float = 60.0, most: int = RING_BYTES) -> None:
        self.seconds = seconds
        self._slice_ns = max(1, int(seconds * 1e9 / (SLICES - 2)))
        self._most = most // SLICES
        self._folder = Path(tempfile.mkdtemp(prefix="kdissect-ring-"))
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
        first, self._latest = int(rows[:, TIME].min()), max(self._latest, int(rows[:, TIME].max()))
        if int(rows[:, CAPTURED].sum()) > self._most:
            self.left_out += len(rows)
            return
        if self._open is None or first - self._begun > self._slice_ns or self._open[1].bytes > self._most:
            self._next(first)
        assert self._open is not None
        self._open[1].write(block.window.data, rows)

    def _next(self, first: int) -> None:
        self._end()
        path = self._folder / f"live.pcap{self._number}"
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
                    out.write(window.data, block.packets[block.packets[:, TIME] >= since])
                capture.close()
            out.finish()
        return out.packets

    def close(self) -> None:
        """Take everything away."""
        self._end()
        shutil.rmtree(self._folder, ignore_errors=True)

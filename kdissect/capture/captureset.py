"""A capture set: one file, or the files of one rotated capture in order, read as one stream of blocks.

Rules.

- Files are read one after the other, front to back. Logical offsets run on from file to file, without gaps.
- A damaged place costs a problem row, and reading goes on behind it where records follow one another again.
- Reports and problem rows are up to date after every block.
- A set that is being recorded has more files while it is followed (`later`): once another one has a packet, the last
  one is read to its end. Such files may be gone, or written over, at any time: none of them is read again.
"""

from __future__ import annotations

import bisect
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from kdissect.capture.block import Block
from kdissect.capture.bytestreams import Stream, open_stream, wrap
from kdissect.capture.condition import OVERWRITTEN, Condition, FileReport
from kdissect.capture.window import EXTRA, Window
from kdissect.problems import CaptureUnreadable, NotACapture

MAX_OPEN = 64
"""Files of a rotated set kept open for reading again: far below the usual limit of 1024."""
GAP = 1 << 16
"""Ranges nearer than this are re-read in one go: a seek costs about as much as reading 64 KiB."""
BATCH = 4 << 20
"""Bytes re-read in one go at most."""


class Member:
    """One file of a set: a path, or a binary file that the caller opened. `name` is what tables call it."""

    def __init__(self, name: str, path: Path | None = None, file: BinaryIO | None = None) -> None:
        self.name = name
        self.path = path
        self.file = file

    @property
    def regular(self) -> bool:
        """Whether it is an ordinary file, which can be opened again and again."""
        return self.path is not None and self.path.is_file()

    def open(self) -> Stream:
        """A stream over it; raises CaptureNotFound or CaptureUnreadable."""
        if self.path is not None:
            return open_stream(self.path)
        if self.file is None:
            raise CaptureUnreadable(f"{self.name}: nothing to open.")
        return wrap(self.file)


def refuse(name: str, head: bytes) -> NotACapture:
    """The exception for a file that is no capture, with one line that says what to do."""
    if not head:
        return NotACapture(f"{name}: the file is empty, not a capture. Check the recording.")
    if len(head) < 24 and head[:4] in _STARTS:
        return NotACapture(f"{name}: not a capture: the file header is cut short. Check the recording.")
    return NotACapture(f"{name}: not a capture. Give a pcap or pcapng file (also as gzip, zstd, lz4 or xz).")


_STARTS = {
    bytes.fromhex(m) for m in ("a1b2c3d4", "d4c3b2a1", "a1b23c4d", "4d3cb2a1", "a1b2cd34", "34cdb2a1", "0a0d0d0a")
}


class CaptureSet(Condition):
    """One capture. `name` is what the `capture` column says; `reports` has one row per file, filled as it is read."""

    def __init__(self, name: str, members: list[Member]) -> None:
        super().__init__([member.name for member in members])
        self.name = name
        self.members = members
        self.left_out: list[tuple[str, str]] = []
        """What was named together with this capture and is none, (path, why); each becomes a problem row."""
        self.bases: list[int] = []
        """Logical offset of the first byte of each file begun."""
        self.later: Callable[[], list[Member]] | None = None
        """Gives the files that have begun since it was asked last, in order; None: there will be no others."""
        self._streams: dict[int, Stream] = {}
        self._opening = threading.Lock()
        self._window: Window | None = None

    @property
    def files(self) -> list[str]:
        """The names of its files, in order."""
        return [member.name for member in self.members]

    @property
    def size(self) -> int | None:
        """Bytes in all, None where a pipe or compression hides it."""
        total = 0
        for i, member in enumerate(self.members):
            size = self._stream(i).size if member.regular else None
            if size is None:
                return None
            total += size
        return total

    @property
    def regular(self) -> bool:
        """Whether its files lie there, so that it can be read again: a pipe can be read only once."""
        return all(member.regular for member in self.members)

    @property
    def rereadable(self) -> bool:
        """Whether `read` works for bytes that left the window: plain files only, and never for offsets from EXTRA
        on."""
        if self.later is not None:
            return False
        return all(m.regular and self._stream(i).rereadable for i, m in enumerate(self.members))

    @property
    def overwritten(self) -> list[str]:
        """A sentence for each file that another capture was written over while it was followed, so far."""
        then = "reading ended there" if self.later is None else "reading goes on with the next file that comes"
        return [f"{name}: {OVERWRITTEN}; {then}" for name in self.overwritten_files]

    def window(self) -> Window:
        """A ring that suits this capture's size."""
        return Window.for_size(self.size)

    def blocks(
        self,
        window: Window,
        follow: bool = False,
        stopped: Callable[[], bool] = lambda: False,
        most_packets: int | None = None,
    ) -> Iterator[Block]:
        """Read the capture once, in blocks through `window` (which is reset).

        `follow`: when the last file ends, wait for it to grow until `stopped()`; idle blocks come while it is quiet.
        `most_packets`: stop after that many packets or a few more. Raises NotACapture when a single file turns out to
        be none, and CaptureUnreadable when the capture was read before and cannot be read again.
        """
        from kdissect.capture.pcap import PACKET_COLUMNS
        from kdissect.capture.reader import MAX_PACKETS, POLL_SECONDS, FileReader

        if self.bases and not self.regular:
            raise CaptureUnreadable(f"{self.name}: a pipe can be read only once.")
        window.reset()
        self._window = window
        self._restart()
        for place, why in self.left_out:
            self.add_problem(0, 0, 0, place, why)
        most = min(window.packets or MAX_PACKETS, window.slot_bytes // 16 + 1)
        rows = np.empty((most, PACKET_COLUMNS), np.int64)
        seen = 0
        for i, member in enumerate(self.members):  # which may become more meanwhile
            self.bases.append(window.end)
            last = i == len(self.members) - 1
            try:
                reader = FileReader(self, i, self._stream(i), window)
            except CaptureUnreadable as error:
                if len(self.members) == 1:
                    raise
                self.add_problem(i, 0, 0, member.name, str(error))
                continue
            for block in reader.blocks(rows, follow and last, stopped, self._continued, last and not follow):
                seen += len(block.packets)
                yield block
                if most_packets is not None and seen >= most_packets:
                    return
            if follow and last:
                self._let_go()
            if reader.recognised is None:
                if len(self.members) == 1:
                    raise refuse(member.name, reader.head)
                self.add_problem(i, 0, 0, member.name, str(refuse(member.name, reader.head)))
            if not reader.stream.rereadable or self.later is not None:
                reader.stream.close()
            while follow and self.later is not None and i == len(self.members) - 1 and not reader.stopped:
                if stopped():  # what ends by itself, as a compressed file does, may be followed by others
                    break
                if not self._continued():
                    time.sleep(POLL_SECONDS)

    def _continued(self) -> bool:
        """Whether other files follow the last one by now; they are members from here on."""
        found = [] if self.later is None else self.later()
        self.members += found
        self.reports += [FileReport(member.name) for member in found]
        return bool(found)

    def read_apart(self) -> None:
        """From now on bytes are read again from the files, for another thread fills the window meanwhile."""
        self._window = None

    def end_reading(self) -> None:
        """Let go of the window, of some 100 MB, and of open files: thousands of captures may follow. Bytes that are
        asked for from now on are read again from the files, which open themselves."""
        self._window = None
        self._let_go()

    def _let_go(self) -> None:
        """Close plain files; they open themselves again. The process that stops following may be a copy of the process
        that goes on, and the two must not move one another's place in a file."""
        for i, stream in self._streams.items():
            if self.members[i].regular:
                stream.close()

    def _restart(self) -> None:
        """Back to before the first byte. Compressed streams are opened afresh."""
        self.bases.clear()
        self.forget([member.name for member in self.members])
        for i in [i for i in self._streams if self.members[i].regular]:
            self._streams.pop(i).close()

    def _stream(self, i: int) -> Stream:
        with self._opening:
            stream = self._streams.get(i)
            if stream is None:
                if len(self._streams) >= MAX_OPEN:
                    oldest = next(iter(self._streams))
                    if self._streams[oldest].rereadable:
                        self._streams.pop(oldest).close()
                stream = self._streams[i] = self.members[i].open()
            return stream

    def file_of(self, logical: int) -> tuple[int, int]:
        """File index and offset in that file (as uncompressed) of a logical offset."""
        i = bisect.bisect_right(self.bases, logical) - 1
        return i, logical - self.bases[i]

    def read(self, logical: int, size: int) -> bytes:
        """`size` bytes at a logical offset, from the window or from the file again.

        Shorter when the file lost them meanwhile; raises LookupError when they are gone (a pipe, compression,
        reassembled packets) and left the window.
        """
        out = np.zeros(size, np.uint8)
        got = self._read_into(logical, memoryview(out))
        return out[:got].tobytes()

    def _read_into(self, logical: int, target: memoryview) -> int:
        window = self._window
        if window is not None:
            place = window.locate(logical, len(target))
            if place >= 0:
                target[:] = memoryview(window.data)[place : place + len(target)]
                return len(target)
        i, offset = self.file_of(logical)
        if logical >= EXTRA or i < 0 or not self._stream(i).rereadable:
            raise LookupError(f"{self.name}: bytes at {logical} left the window and cannot be read again")
        return self._stream(i).pread(target, offset)

    def read_many(
        self,
        at: NDArray[np.int64],
        length: NDArray[np.int64],
        out: NDArray[np.uint8],
        place: NDArray[np.int64],
        gap: int = GAP,
    ) -> None:
        """Copy `length[i]` bytes at logical offset `at[i]` to `out[place[i]:]`, for all i, reading ranges at most `gap`
        bytes apart in one go.

        Raises LookupError as `read` does. No range may span two files.
        """
        from kdissect.capture.pcap import scatter

        if not at.size:
            return
        order = np.argsort(at, kind="stable")
        starts, sizes, places = at[order], length[order], place[order]
        ends = np.maximum.accumulate(starts + sizes)
        files = np.searchsorted(np.array(self.bases, np.int64), starts, side="right")
        breaks = (starts[1:] - ends[:-1] > gap) | (files[1:] != files[:-1])
        whole = memoryview(out)
        first = 0
        for stop in [*(np.flatnonzero(breaks) + 1).tolist(), at.size]:
            while first < stop:
                until = first + 1
                if until < stop:
                    until = int(np.searchsorted(ends[first:stop], starts[first] + BATCH, side="right")) + first
                    until = max(until, first + 1)
                base = int(starts[first])
                if until == first + 1:
                    begin, size = int(places[first]), int(sizes[first])
                    if 0 <= begin <= out.size - size:  # by itself: no detour
                        got = self._read_into(base, whole[begin : begin + size])
                        if got < size:
                            out[begin + got : begin + size] = 0
                        first = until
                        continue
                piece = np.empty(int(ends[until - 1]) - base, np.uint8)
                got = self._read_into(base, memoryview(piece))
                piece[got:] = 0
                scatter(piece, starts[first:until] - base, sizes[first:until], out, places[first:until])
                first = until

    def close(self) -> None:
        """Close every file that was opened here."""
        for i, stream in self._streams.items():
            if self.members[i].file is None:
                stream.close()
        self._streams.clear()

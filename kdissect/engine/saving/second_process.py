"""Rows analysed and written by a process of their own, beside the one that reads captures and makes the rows.

Threads of one process take turns at running Python, and both halves run a lot of it. Calls go through a socket, rows as
Arrow's IPC streams in memory that both share: files without names (memfd_create(2)), two in turns, written anew each
time, for to take pages from the system costs ten times what it costs to copy rows. The second process copies rows,
column by column: a few that are kept must not keep all others. Each call is answered, so that whoever calls is a few
ahead at most. A process that dies leaves the other one a closed socket: the second one then takes its files
away and ends; the first one takes them away, and says so.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import pickle
import signal
import socket
import sys
import traceback
import weakref
from collections import deque
from collections.abc import Sequence
from functools import partial
from types import TracebackType
from typing import Any, NoReturn

import pyarrow as pa

from kdissect.arrays.ipc_streams import write_stream
from kdissect.arrays.rows import as_rows, as_tables
from kdissect.engine import timings
from kdissect.engine.analysed_run import Lot
from kdissect.engine.bounds.spare_memory import few_collections, frugal
from kdissect.engine.saving.folder import Folder, Wish
from kdissect.engine.saving.writing import Writing
from kdissect.engine.timings import Timings
from kdissect.problems import KdissectError
from kdissect.python_process import can_start_python, start_python
from kdissect.tables import formats

PROGRAM = """
from kdissect.arrays.lean_arrow import load_arrow_alone
load_arrow_alone()
from kdissect.engine.saving.second_process import serve
serve(int(sys.argv[1]))
"""
"""What the second process runs. pandas, which Arrow would load, is not needed there."""
NEVER_RUN = 0x8
"""MFD_NOEXEC_SEAL of memfd_create(2), which Python has no name for."""
BOXES = 2
"""Files that rows lie in: one is read while the other one is written."""
LARGE = 64 << 20
"""Bytes of rows from which on the memory that they lay in is not used again."""


def possible() -> bool:
    """Whether this system (only Linux is known to do), and whatever Python runs in, allow for a second process."""
    if sys.platform != "linux" or not can_start_python():
        return False
    try:
        os.close(_memory_file())
    except (AttributeError, OSError):  # another C library; forbidden
        return False
    return True


def _memory_file() -> int:
    """A new file in memory. Where the kernel has a flag for that (Linux 6.3), it can never be run as a program."""
    try:
        return os.memfd_create("kdissect", os.MFD_CLOEXEC | NEVER_RUN)
    except OSError:
        return os.memfd_create("kdissect")


class FolderApart:
    """As `Folder`, by another process. What that raises is raised by a later call. To enter it raises OSError where
    no process can be begun."""

    def __init__(self, wish: Wish, clock: Timings) -> None:
        self.wish = wish
        self._clock = clock
        self._sending = Writing(True, 0)  # while the second process works, a call is made ready, and another one begun
        self._unanswered = 0
        self._boxes = deque[_Box]()

    def __enter__(self) -> FolderApart:
        ours, theirs = socket.socketpair()
        self._line = _Line(ours)
        with theirs, contextlib.ExitStack() as opened:
            opened.callback(self._line.close)
            self._process = start_python(PROGRAM, [str(theirs.fileno())], pass_fds=[theirs.fileno()])
            opened.pop_all()
        self._sending.__enter__()
        self._call("begin", self.wish)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._process.terminate()
            self._line.close()  # a call that waits for an answer ends
        self._sending.__exit__(kind, error, trace)
        self._boxes.clear()
        self._line.close()
        if self._process.wait():
            for name in self.wish.tables:
                formats.part_path(self.wish.folder / f"{name}.parquet", self._process.pid).unlink(missing_ok=True)

    def feed(self, lot: Lot) -> None:
        """As `Folder.feed`."""
        tables: dict[Any, pa.Table] = {**as_tables(lot.rows), **lot.messages}
        lot.rows.clear()
        self._call("feed", lot.mark, tables)

    def lots_end(self) -> None:
        """As `Folder.lots_end`."""
        self._call("lots_end")

    def add(self, name: str, table: pa.Table) -> None:
        """As `Folder.add`."""
        self._call("add", name, {name: table})

    def finish(self) -> dict[str, int]:
        """As `Folder.finish`."""
        rows: dict[str, int]
        rows, clock = self._answer("finish")
        self._clock.merge(clock, all_steps=True)
        return rows

    def _call(self, method: str, message: object = None, tables: dict[Any, pa.Table] | None = None) -> None:
        self._clock.at(timings.WAITING)
        self._sending.do(partial(self._send, method, message, tables or {}))
        self._clock.at(timings.REST)

    def _answer(self, method: str) -> Any:
        self._call(method)
        self._clock.at(timings.WAITING)
        self._sending.wait()
        answer = None
        while self._unanswered:
            answer = self._read()
        self._clock.at(timings.REST)
        return answer

    def _send(self, method: str, message: object, tables: dict[Any, pa.Table]) -> None:
        keys = list(tables)
        if keys:
            box = self._boxes.popleft() if len(self._boxes) == BOXES else _Box()
            box.fill(tables)
            if box.size <= LARGE:
                self._boxes.append(box)
        while self._unanswered:  # what is asked next lies there when this is done
            self._read()
        self._line.put((method, message, keys), box.file if keys else None)
        self._unanswered += 1

    def _read(self) -> Any:
        """The answer to the first call that has none yet. Raises what it raised."""
        try:
            answer, _ = self._line.take()
        except EOFError:
            code = self._process.wait()
            told = f"signal {-code}" if code < 0 else f"exit code {code}"
            raise KdissectError(
                f"the process that writes the tables ended by itself: {told} (jobs=1 does without it)"
            ) from None
        self._unanswered -= 1
        if isinstance(answer, BaseException):
            raise answer
        return answer


class _Line:
    """Objects, each with a file or none, to and from another process."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def close(self) -> None:
        """No more."""
        with contextlib.suppress(OSError):
            self._end.shutdown(socket.SHUT_RDWR)
        self._end.close()

    def put(self, message: object, file: int | None = None) -> None:
        """Nothing is said where nobody listens any more: that there is no answer tells."""
        data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            socket.send_fds(self._end, [len(data).to_bytes(8, "little")], [] if file is None else [file])
            self._end.sendall(data)

    def take(self) -> tuple[Any, int | None]:
        """Raises EOFError where there is no more."""
        try:
            size, files, _, _ = socket.recv_fds(self._end, 8, 1)
            data = bytearray(int.from_bytes(size, "little"))
            room = memoryview(data)
            while room and (count := self._end.recv_into(room)):
                room = room[count:]
        except OSError:  # reset, or closed by this process
            raise EOFError from None
        if room or not data:
            raise EOFError
        return pickle.loads(data), files[0] if files else None


class _Box:
    """Memory that another process can map: the file of which it is told."""

    def __init__(self) -> None:
        self.file = _memory_file()
        weakref.finalize(self, os.close, self.file)
        self.size = 0
        self._memory: Any = b""

    def fill(self, tables: dict[Any, pa.Table]) -> None:
        """The tables, one behind the other. They are let go one after the other."""
        counted = pa.MockOutputStream()
        for table in tables.values():
            write_stream(table, counted)
        size = counted.size()
        if size > self.size:
            self.size = size + size // 4
            os.posix_fallocate(self.file, 0, self.size)  # where memory is short this raises, while writing would kill
            self._memory = mmap.mmap(self.file, self.size)
        sink = pa.FixedSizeBufferWriter(pa.py_buffer(self._memory))
        for key in list(tables):
            write_stream(tables.pop(key), sink)


class _Boxes:
    """The memory that is shared, as the process sees it that reads it."""

    def __init__(self) -> None:
        self._maps: dict[int, mmap.mmap] = {}

    def tables(self, file: int | None, keys: Sequence[Any]) -> dict[Any, pa.Table]:
        """Copies of what lies in a file, which is closed."""
        if file is None:
            return {}
        stat = os.fstat(file)
        memory = self._maps.pop(stat.st_ino, None)
        if memory is None or len(memory) < stat.st_size:
            memory = mmap.mmap(file, stat.st_size, prot=mmap.PROT_READ)
        os.close(file)
        while len(self._maps) >= BOXES:
            self._maps.pop(next(iter(self._maps)))
        if stat.st_size <= LARGE:
            self._maps[stat.st_ino] = memory
        source = pa.BufferReader(pa.py_buffer(memory))
        return {key: _copied(pa.ipc.open_stream(source)) for key in keys}


def _copied(reader: pa.RecordBatchReader) -> pa.Table:
    own = pa.default_cpu_memory_manager()
    return pa.Table.from_batches([batch.copy_to(own) for batch in reader], reader.schema)


def serve(end: int) -> None:
    """Do what the first process asks for, until it ends the line."""
    signal.signal(signal.SIGTERM, _stopped)
    frugal()
    few_collections()
    clock = Timings()
    boxes = _Boxes()
    line = _Line(socket.socket(fileno=end))
    try:
        (_, wish, _), _ = line.take()
        line.put(None)
        with Folder(wish, clock) as folder:
            while True:
                clock.at(timings.WAITING)
                (method, given, keys), file = line.take()
                clock.at(timings.REST)
                if method == "finish":
                    answer: object = (folder.finish(), clock)
                    break
                _do(folder, method, given, boxes.tables(file, keys))
                line.put(None)
        clock.at(timings.WAITING)
    except EOFError:
        return  # the first process has ended, or given up
    except Exception as error:
        error.add_note(traceback.format_exc())  # where it was raised, which is not handed on else
        answer = error
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # files are there, or gone: what is left is the end of Python
    line.put(answer)


def _stopped(*_: object) -> NoReturn:
    """Files are taken away, and that is not stopped."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(1)


def _do(folder: Folder, method: str, message: Any, tables: dict[Any, pa.Table]) -> None:
    if method == "lots_end":
        folder.lots_end()
    elif method == "add":
        folder.add(message, tables[message])
    else:
        messages = {key: tables.pop(key) for key in list(tables) if isinstance(key, tuple)}  # others have names
        folder.feed(Lot(as_rows(tables), messages, message))

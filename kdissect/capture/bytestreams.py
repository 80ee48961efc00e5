"""Byte streams under a capture: plain files, pipes, open binary files, and what gzip, zstd, lz4 and xz make of them.

A `Stream` fills buffers in order (`readinto`) and, where the input can be read again, re-reads any range (`pread`).
Compression is recognised by content. A damaged or cut compressed input gives every byte that came before the damage;
`problem` then says what happened.
"""

from __future__ import annotations

import os
import stat
import threading
import zlib
from io import FileIO
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from kdissect.problems import CaptureNotFound, CaptureUnreadable

PIECE = 1 << 16
"""Compressed bytes handed to a decompressor at once."""
ZSTD_PIECE = 1 << 10
"""The same for zstd, which cannot be told to stop: a hostile 1 KiB make at most 32 MiB (128 KiB from each 4 bytes)."""
HEAD = 64
"""Bytes looked at to recognise compression and format."""

MAGICS = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"\x04\x22\x4d\x18": "lz4", b"\xfd7zXZ\x00": "xz"}


class Stream(Protocol):
    """The interface of every kind of input. `size`: bytes in all, None where unknown; `compression`: its name or ''."""

    size: int | None
    rereadable: bool
    compression: str
    problem: str

    def readinto(self, target: memoryview) -> int:
        """Fill `target` from the front; bytes read, fewer than asked for only at the end of the input."""

    def pread(self, target: memoryview, offset: int) -> int:
        """Read again from `offset`; bytes read."""

    def close(self) -> None:
        """Release the file."""


class PlainFile:
    """A regular file. Reading on and reading again do not disturb each other; a closed one opens itself when needed."""

    compression = ""
    rereadable = True
    problem = ""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: FileIO | None = None
        self._at = 0
        self._begin = b""
        self._lock = threading.Lock()
        self.size: int | None = os.fstat(self._open_stream().fileno()).st_size

    def _open_stream(self) -> FileIO:
        if self._file is None:
            self._file = FileIO(self.path)
        return self._file

    def readinto(self, target: memoryview) -> int:
        """As `Stream.readinto`."""
        got = self.pread(target, self._at)
        if len(self._begin) < HEAD:
            self._begin += bytes(target[: min(got, HEAD - len(self._begin))])
        self._at += got
        return got

    def is_overwritten(self) -> bool:
        """Whether the file is not the one that was read so far with more bytes: it is shorter, or begins otherwise."""
        begin = bytearray(len(self._begin))
        got = self.pread(memoryview(begin), 0)
        return got < len(begin) or begin != self._begin or os.fstat(self._open_stream().fileno()).st_size < self._at

    def pread(self, target: memoryview, offset: int) -> int:
        """As `Stream.pread`."""
        done = 0
        try:
            with self._lock:
                file = self._open_stream()
                file.seek(offset)
                while done < len(target):
                    got = file.readinto(target[done:])
                    if not got:
                        break
                    done += got
        except OSError as error:
            self.problem = f"reading stopped: {error.strerror}"
        return done

    def close(self) -> None:
        """As `Stream.close`."""
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self.close()


class OpenFile:
    """A binary file that someone else opened: a pipe, standard input, a socket's file, a BytesIO. Never read again."""

    compression = ""
    rereadable = False
    problem = ""
    size: int | None = None

    def __init__(self, file: BinaryIO, head: bytes = b"", own: bool = False) -> None:
        self.file = file
        self._head = head
        self._own = own
        try:
            self._fd: int | None = file.fileno()
        except (OSError, AttributeError, ValueError):
            self._fd = None

    def readinto(self, target: memoryview) -> int:
        """As `Stream.readinto`."""
        return self._read(target, fill=True)

    def read_some(self, target: memoryview) -> int:
        """Like `readinto`, but returns as soon as anything came (for following a pipe)."""
        return self._read(target, fill=False)

    def waiting(self, seconds: float) -> bool:
        """Whether bytes (or the end) can be read without blocking, waiting up to `seconds`."""
        if self._fd is None or self._head:
            return True
        from select import select

        try:
            return bool(select([self._fd], [], [], seconds)[0])
        except (OSError, ValueError):
            return True

    def _read(self, target: memoryview, fill: bool) -> int:
        done = min(len(self._head), len(target))
        target[:done] = self._head[:done]
        self._head = self._head[done:]
        try:
            while done < len(target):
                # A buffered reader's read1 and a raw file's read return what is there; a plain read would wait for all.
                read = getattr(self.file, "read1", self.file.read)
                piece = read(min(len(target) - done, 1 << 20))
                if not piece:
                    break
                target[done : done + len(piece)] = piece
                done += len(piece)
                if not fill:
                    break
        except (OSError, ValueError) as error:
            self.problem = f"reading stopped: {error}"
        return done

    def pread(self, target: memoryview, offset: int) -> int:
        """As `Stream.pread`."""
        raise CaptureUnreadable("A pipe cannot be read again.")

    def close(self) -> None:
        """As `Stream.close`."""
        if self._own:
            self.file.close()


class Decompressed:
    """The plain bytes of a compressed stream; several members one after the other count as one."""

    rereadable = False
    size: int | None = None

    def __init__(self, source: Stream, compression: str) -> None:
        self.source = source
        self.compression = compression
        self.problem = ""
        self._engine: Any = None
        self._input = b""  # compressed bytes not yet taken
        self._output = b""  # plain bytes not yet given
        self._ended = False
        self._make, self._bounded = _decompressor(compression)

    def readinto(self, target: memoryview) -> int:
        """As `Stream.readinto`."""
        done = 0
        while done < len(target):
            if self._output:
                n = min(len(self._output), len(target) - done)
                target[done : done + n] = self._output[:n]
                self._output = self._output[n:]
                done += n
                continue
            if self._ended:
                break
            self._output = self._step(len(target) - done)
        return done

    def _step(self, most_bytes: int) -> bytes:
        """A piece of plain bytes; empty at a member's end or when more input is needed."""
        fresh = False
        if not self._input and (self._engine is None or self._hungry()):
            piece = bytearray(PIECE if self._bounded else ZSTD_PIECE)
            got = self.source.readinto(memoryview(piece))
            if got == 0:
                self._ended = True
                if self._engine is not None:
                    self.problem = f"the {self.compression} data ends in the middle"
                self.problem = self.source.problem or self.problem
                return b""
            self._input = bytes(piece[:got])
            fresh = True
        if self._engine is None:
            self._engine = self._make()
        try:
            if not self._bounded:
                out: bytes = self._engine.decompress(self._input)
                self._input = b""
            elif self.compression == "gzip":
                out = self._engine.decompress(self._input, most_bytes)
                self._input = self._engine.unconsumed_tail
            else:
                out = self._engine.decompress(self._input, most_bytes)
                self._input = b""
        except Exception as error:  # each library has its own exceptions; all mean damaged data
            self._ended = True
            self.problem = f"the {self.compression} data is damaged: {error}"
            return b""
        if self._engine.eof:
            self._input = self._engine.unused_data or self._input
            self._engine = None
            # What follows a whole member and is none itself is padding (gzip allows zeros) or rubbish.
            if self._input and not self._input.startswith(_magic_of(self.compression)):
                self._ended = True
                if self._input.strip(b"\0"):
                    self.problem = f"bytes that are no {self.compression} follow the compressed data"
        elif not out and not fresh and not self._input and not self._hungry():
            self._ended = True  # the engine neither gives nor takes: never loop on it
            self.problem = f"the {self.compression} data is damaged"
        return out

    def _hungry(self) -> bool:
        return bool(getattr(self._engine, "needs_input", True))

    def pread(self, target: memoryview, offset: int) -> int:
        """As `Stream.pread`."""
        raise CaptureUnreadable("Compressed input cannot be read again.")

    def close(self) -> None:
        """As `Stream.close`."""
        self.source.close()


def _magic_of(compression: str) -> bytes:
    return next(magic for magic, name in MAGICS.items() if name == compression)


def _decompressor(compression: str) -> tuple[Any, bool]:
    """A maker of decompressors, and whether they take a bound on their output."""
    try:
        if compression == "gzip":
            return lambda: zlib.decompressobj(31), True
        if compression == "xz":
            import lzma

            return lambda: lzma.LZMADecompressor(memlimit=1 << 30), True
        if compression == "lz4":
            import lz4.frame

            return lz4.frame.LZ4FrameDecompressor, True
        import zstandard

        return lambda: zstandard.ZstdDecompressor().decompressobj(), False
    except ImportError as error:
        raise CaptureUnreadable(f"Reading {compression} needs the package {error.name}: install it.") from None


def compression_of(head: bytes) -> str:
    """The compression that bytes at the start of a file show: gzip, zstd, lz4, xz or ''."""
    return next((name for magic, name in MAGICS.items() if head.startswith(magic)), "")


def open_stream(path: Path) -> Stream:
    """Open a file or named pipe by path, through any compression that its content shows.

    Raises CaptureNotFound or CaptureUnreadable with one line that says what to do.
    """
    try:
        if stat.S_ISFIFO(os.stat(path).st_mode) or stat.S_ISCHR(os.stat(path).st_mode):
            return wrap(open(path, "rb", buffering=0), own=True)
        plain = PlainFile(path)
    except FileNotFoundError:
        raise CaptureNotFound(f"{path}: no such file. Check the path.") from None
    except PermissionError:
        raise CaptureUnreadable(
            f"{path}: permission denied. Make it readable for you, or run as a user who may read it."
        ) from None
    except OSError as error:
        raise CaptureUnreadable(f"{path}: cannot be read ({error.strerror}).") from None
    opened = decompressed(plain)
    plain.close()  # a thousand may be opened before the first is read on
    return opened


def decompressed(plain: Stream) -> Stream:
    """A file's stream, through any compression that its content shows. Raises CaptureUnreadable where a package is
    missing."""
    head = bytearray(HEAD)
    head = head[: plain.pread(memoryview(head), 0)]
    compression = compression_of(bytes(head))
    return Decompressed(plain, compression) if compression else plain


def wrap(file: BinaryIO, own: bool = False) -> Stream:
    """A stream over an open binary file, from where it stands, through any compression that its content shows."""
    head = b""
    try:
        while len(head) < 6:  # the longest magic number
            piece = file.read(6 - len(head))
            if not piece:
                break
            head += piece
    except OSError as error:
        raise CaptureUnreadable(f"{getattr(file, 'name', 'the input')}: cannot be read ({error}).") from None
    if not isinstance(head, bytes):
        raise CaptureUnreadable("The file is open in text mode: open it with mode 'rb'.")
    stream = OpenFile(file, head, own)
    compression = compression_of(head)
    return Decompressed(stream, compression) if compression else stream

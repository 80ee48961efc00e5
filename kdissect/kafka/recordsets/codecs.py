"""Decompression of record batches, as streams into a buffer of the caller.

A `Reader` returns decompressed bytes piece by piece, so that neither a large batch nor a bomb costs more memory than
one piece. Raw snappy and single snappy blocks are the exception: that format can only be decompressed whole, and
expands 22-fold at most. Codecs read all that Kafka's own clients read. Among it are concatenated gzip members, xerial
and raw snappy, LZ4 frames whose header checksum is the wrong one of magic 0, and several zstd frames in a row.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import Protocol

import lz4.frame
import pyarrow as pa
import zstandard

from kdissect.kafka.recordsets.batch_layout import GZIP, LZ4, SNAPPY, ZSTD
from kdissect.kafka.recordsets.xxhash import xxhash32

MAX_UNCOMPRESSED = 2**31 - 1
"""Most bytes that the records of one batch may decompress to. No legal batch meets it: clients and brokers count the
uncompressed bytes of a batch in an int32 (MemoryRecordsBuilder.uncompressedRecordsSizeInBytes), librdkafka and the
ports allow less. What goes beyond is a bomb."""

EXPANSION, FREE_BYTES = 1032, 16 << 20
"""A batch may decompress to so many times its compressed bytes, and to so many bytes more whatever its size: what
DEFLATE can do at best, and more than the batches that producers make (batch.size, 16 kB unless told otherwise). zstd
repeats a block of 128 kB for 4 bytes; with this, what a capture costs depends on its own size."""

STEP = 1 << 20
"""Bytes asked of a codec in one go where it returns them: large enough that calls cost nothing, small enough to stay in
the processor's cache on the way to the buffer."""

SNAPPY_EXPANSION = 22
"""Snappy's densest element is 3 bytes for 64, so a block that claims more than 22 times its size lies."""

XERIAL_MAGIC = b"\x82SNAPPY\x00"
XERIAL_HEADER = 16
"""Magic, then version and lowest compatible version (int32 each)."""
GZIP_WINDOW = 31
"""zlib's wbits for a gzip header and the largest window."""
LZ4_MAGIC = b"\x04\x22\x4d\x18"
ZSTD_SKIPPABLE = b"\x2a\x4d\x18"
"""Bytes 1-3 of a skippable frame's magic number; byte 0 is 0x50-0x5f."""


class CodecError(ValueError):
    """The compressed bytes do not fit their codec; the message says how. Never leaves the package."""


class Bomb(CodecError):
    """More bytes than `most` allows."""


def most(size: int) -> int:
    """Bytes that a batch of `size` compressed bytes may decompress to."""
    return min(MAX_UNCOMPRESSED, FREE_BYTES + EXPANSION * size)


class Reader(Protocol):
    """Decompressed bytes of one batch, in order."""

    def readinto(self, buffer: memoryview) -> int:
        """Fill the start of `buffer`; returns how many bytes, 0 at the end. Raises CodecError."""


class _Pieces:
    """A reader over an iterator of byte pieces."""

    def __init__(self, pieces: Iterator[bytes | memoryview]) -> None:
        self._pieces = pieces
        self._rest: memoryview = memoryview(b"")

    def readinto(self, buffer: memoryview) -> int:
        done = 0
        while done < len(buffer):
            if not self._rest:
                piece = next(self._pieces, None)
                if piece is None:
                    break
                self._rest = memoryview(piece)
            take = min(len(self._rest), len(buffer) - done)
            buffer[done : done + take] = self._rest[:take]
            self._rest = self._rest[take:]
            done += take
        return done


def _gzip(data: memoryview) -> Iterator[bytes]:
    rest: bytes | memoryview = data
    while True:
        member = zlib.decompressobj(GZIP_WINDOW)
        while not member.eof:
            try:
                piece = member.decompress(rest, STEP)
            except zlib.error as error:
                raise CodecError(f"gzip: {error}") from None
            rest = member.unconsumed_tail
            if piece:
                yield piece
            elif not rest and not member.eof:
                raise CodecError("gzip: data end early")
        rest = member.unused_data
        if rest[:2] != b"\x1f\x8b":  # what follows the last member is ignored, as java.util.zip does
            return


def _snappy_block(data: memoryview) -> memoryview:
    size = _snappy_size(data)
    if size > SNAPPY_EXPANSION * len(data) + 64:
        raise CodecError("snappy: a block claims more than it can hold")
    try:
        return memoryview(pa.Codec("snappy").decompress(data, size)).cast("B")
    except (OSError, ValueError) as error:
        raise CodecError(f"snappy: {_first_line(error)}") from None


def _snappy_size(data: memoryview) -> int:
    """The uncompressed bytes that a block says it has: a varint of 32 bits, the low seven bits first."""
    size = 0
    for place, byte in enumerate(data[:5]):
        size |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return size
    raise CodecError("snappy: a block without its size")


def _snappy(data: memoryview) -> Iterator[memoryview]:
    if data[:8] != XERIAL_MAGIC:
        yield _snappy_block(data)
        return
    at = XERIAL_HEADER
    if at > len(data):
        raise CodecError("snappy: data end early")
    while at < len(data):
        if data[at : at + 8] == XERIAL_MAGIC:  # streams may be concatenated
            at += XERIAL_HEADER
            continue
        size = int.from_bytes(data[at : at + 4], "big")
        at += 4
        if size > len(data) - at:
            raise CodecError("snappy: a block reaches past the end")
        yield _snappy_block(data[at : at + size])
        at += size


def _lz4(data: memoryview) -> Iterator[bytes]:
    frame = lz4.frame.LZ4FrameDecompressor()
    rest: bytes | memoryview = data
    while not frame.eof:
        try:
            piece = frame.decompress(rest, STEP)
        except (RuntimeError, EOFError) as error:
            raise CodecError(f"lz4: {_first_line(error)}") from None
        rest = b""
        if piece:
            yield piece
        elif not frame.eof and frame.needs_input:
            raise CodecError("lz4: data end early")


def mend_lz4(data: memoryview) -> memoryview:
    """An LZ4 frame with the right header checksum instead of its own. Writers of magic 0 included the frame's own magic
    bytes in it (KAFKA-3160), and readers of magic 0 do not look at it. A copy where it had to be mended; the data where
    it was right or is no LZ4 frame."""
    if len(data) < 7 or data[:4] != LZ4_MAGIC:
        return data
    end = 6 + (8 if data[4] & 0x08 else 0) + (4 if data[4] & 0x01 else 0)
    if len(data) <= end:
        return data
    right = (xxhash32(bytes(data[4:end])) >> 8) & 0xFF
    if data[end] == right:
        return data
    mended = bytearray(data)
    mended[end] = right
    return memoryview(mended)


class _Zstd:
    def __init__(self, data: memoryview, decompressor: zstandard.ZstdDecompressor) -> None:
        self._data = data
        self._stream = decompressor.stream_reader(data, read_across_frames=True)

    def readinto(self, buffer: memoryview) -> int:
        try:
            done: int = self._stream.readinto(buffer)
            if done == 0 and len(buffer) and not _zstd_ends(self._data):
                raise CodecError("zstd: data end early")
        except zstandard.ZstdError as error:
            raise CodecError(f"zstd: {_first_line(error)}") from None
        return done


def _zstd_ends(data: memoryview) -> bool:
    """The data end where a zstd frame does (RFC 8878, 3.1.1): the library's stream ends silently where its input
    does."""
    at = 0
    while at < len(data):
        if (
            len(data) - at >= 8 and bytes(data[at + 1 : at + 4]) == ZSTD_SKIPPABLE and data[at] >> 4 == 5
        ):  # skippable frame
            at += 8 + int.from_bytes(data[at + 4 : at + 8], "little")
            continue
        frame = zstandard.get_frame_parameters(data[at:])
        at += zstandard.frame_header_size(data[at:])
        last = False
        while not last:
            header = int.from_bytes(data[at : at + 3], "little")
            if at + 3 > len(data):
                return False
            last = bool(header & 1)
            at += 3 + (1 if (header >> 1) & 3 == 1 else header >> 3)  # a run-length block stores one byte
        at += 4 if frame.has_checksum else 0
    return at == len(data) and at > 0


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:200]


_PIECES: dict[int, Callable[[memoryview], Iterator[bytes | memoryview]]] = {GZIP: _gzip, SNAPPY: _snappy, LZ4: _lz4}


class Limited:
    """A reader that stops with Bomb beyond `limit` bytes."""

    def __init__(self, reader: Reader, limit: int) -> None:
        self._reader = reader
        self._left = limit

    def readinto(self, buffer: memoryview) -> int:
        """As `Reader.readinto`; raises Bomb once more than the limit came out."""
        done = self._reader.readinto(buffer)
        self._left -= done
        if self._left < 0:
            raise Bomb("decompresses to more than its compressed bytes can explain")
        return done


def reader(
    codec: int,
    data: memoryview,
    magic: int = 2,
    limit: int | None = None,
    zstd: zstandard.ZstdDecompressor | None = None,
) -> Reader:
    """A reader of the decompressed bytes of `data` (contiguous bytes), which `codec` (1-4) compressed.

    `limit`: bytes after which it is a bomb (`most`). `magic` is the format of the batch around it: the LZ4 header
    checksum of magic 0 is not looked at. `zstd`: for who reads one batch after the other, as making one takes as long
    as a small batch; its last reader is of no more use.
    Raises CodecError for an unknown codec; bad data raise it from `readinto`.
    """
    limit = most(len(data)) if limit is None else limit
    if codec == ZSTD:
        return Limited(_Zstd(data, zstd or zstandard.ZstdDecompressor()), limit)
    pieces = _PIECES.get(codec)
    if pieces is None:
        raise CodecError(f"codec {codec} is unknown")
    if codec == LZ4 and magic == 0:
        data = mend_lz4(data)
    return Limited(_Pieces(pieces(data)), limit)

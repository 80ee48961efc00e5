"""Decompression in pieces: the forms that clients write, cut and damaged data, the cap."""

from __future__ import annotations

import contextlib
import gzip
import random
import zlib

import cramjam
import lz4.frame
import pytest
import zstandard

from kdissect.kafka.recordsets.batch_layout import GZIP, LZ4, SNAPPY, ZSTD
from kdissect.kafka.recordsets.codecs import Bomb, CodecError, mend_lz4, reader
from kdissect.kafka.recordsets.xxhash import xxhash32
from tests.kafka.records.test_large import _xerial

TEXT = b"".join(b"line %d of some text that repeats itself\n" % i for i in range(20_000))
FORMS = {
    "gzip": (GZIP, gzip.compress(TEXT)),
    "gzip in two members": (GZIP, gzip.compress(TEXT[:5000]) + gzip.compress(TEXT[5000:])),
    "raw snappy": (SNAPPY, bytes(cramjam.snappy.compress_raw(TEXT))),
    "xerial snappy": (SNAPPY, _xerial(TEXT)),
    "two xerial streams": (SNAPPY, _xerial(TEXT[:40_000]) + _xerial(TEXT[40_000:])),
    "lz4 with linked blocks": (LZ4, lz4.frame.compress(TEXT, block_linked=True)),
    "lz4 with checksums": (LZ4, lz4.frame.compress(TEXT, content_checksum=True, block_checksum=True)),
    "lz4 of 4 MB blocks, size not said": (LZ4, lz4.frame.compress(TEXT, block_size=7, store_size=False)),
    "zstd": (ZSTD, zstandard.compress(TEXT)),
    "zstd, size not said": (ZSTD, zstandard.ZstdCompressor(write_content_size=False).compress(TEXT)),
    "zstd in two frames": (ZSTD, zstandard.compress(TEXT[:9]) + zstandard.compress(TEXT[9:])),
}  # fmt: skip


def unpacked(codec: int, data: bytes, magic: int = 2, step: int = 1 << 16, limit: int = 1 << 30) -> bytes:
    source, piece, out = reader(codec, memoryview(data), magic, limit), bytearray(step), bytearray()
    while done := source.readinto(memoryview(piece)):
        out += piece[:done]
    return bytes(out)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("step", [1, 1000, 1 << 22])
def test_forms(form: str, step: int) -> None:
    codec, data = FORMS[form]
    if step == 1:
        assert reader(codec, memoryview(data)).readinto(memoryview(bytearray(1))) == 1
    else:
        assert unpacked(codec, data, step=step) == TEXT


@pytest.mark.parametrize("form", FORMS)
def test_cut_and_damaged(form: str) -> None:
    """Either CodecError, or (without a checksum in the format) other bytes; never anything else."""
    codec, data = FORMS[form]
    with pytest.raises(CodecError):
        unpacked(codec, data[: len(data) // 3 if "two" not in form else 12])
    chance = random.Random(4)
    for _ in range(60):
        damaged = bytearray(data)
        damaged[chance.randrange(min(len(data), 200))] = chance.randrange(256)
        with contextlib.suppress(CodecError):
            unpacked(codec, bytes(damaged), limit=8 << 20)


@pytest.mark.parametrize("form", FORMS)
def test_cap(form: str) -> None:
    codec, data = FORMS[form]
    assert len(unpacked(codec, data, limit=len(TEXT))) == len(TEXT)
    with pytest.raises(Bomb):
        unpacked(codec, data, limit=len(TEXT) - 1)


def test_unknown_codec() -> None:
    with pytest.raises(CodecError, match="codec 6"):
        reader(6, memoryview(b""))


def test_xxhash32() -> None:
    """Values of the reference implementation."""
    assert xxhash32(b"") == 0x02CC5D05
    assert xxhash32(b"a") == 0x550D7456
    assert xxhash32(b"abc") == 0x32D153FF
    with pytest.raises(ValueError):
        xxhash32(b"0" * 16)


@pytest.mark.parametrize("stored", [False, True])
def test_lz4_header_checksum_is_mended(stored: bool) -> None:
    frame = lz4.frame.compress(TEXT, store_size=stored)
    place = 14 if stored else 6
    broken = bytearray(frame)
    broken[place] ^= 0xFF
    assert bytes(mend_lz4(memoryview(bytes(broken)))) == frame
    assert unpacked(LZ4, bytes(broken), magic=0) == TEXT
    with pytest.raises(CodecError):
        unpacked(LZ4, bytes(broken), magic=1)
    for short in range(8):
        mend_lz4(memoryview(frame[:short]))


def test_zlib_streams_are_not_gzip() -> None:
    with pytest.raises(CodecError):
        unpacked(GZIP, zlib.compress(TEXT))

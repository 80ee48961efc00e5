from __future__ import annotations

import gzip
import io
import lzma
import random
import tracemalloc
from pathlib import Path

import lz4.frame
import pytest
import zstandard

from kdissect.capture.bytestreams import Stream, open_stream, wrap

DATA = random.Random(1).randbytes(300_000) + b"tail" * 50_000
COMPRESS = {
    "gzip": gzip.compress,
    "zstd": zstandard.compress,
    "lz4": lz4.frame.compress,
    "xz": lzma.compress,
    "": bytes,
}


def drain(stream: Stream, size: int = 70_001) -> bytes:
    out = bytearray()
    buffer = bytearray(size)
    while got := stream.readinto(memoryview(buffer)):
        out += buffer[:got]
    return bytes(out)


@pytest.mark.parametrize("name", COMPRESS)
def test_whole(name: str, tmp_path: Path) -> None:
    path = tmp_path / "without.extension"
    path.write_bytes(COMPRESS[name](DATA))
    stream = open_stream(path)
    assert stream.compression == name
    assert stream.rereadable is (name == "")
    assert drain(stream) == DATA
    assert stream.problem == ""
    stream.close()
    assert drain(wrap(io.BytesIO(COMPRESS[name](DATA)))) == DATA


@pytest.mark.parametrize("name", [n for n in COMPRESS if n])
def test_several_members(name: str) -> None:
    stream = wrap(
        io.BytesIO(COMPRESS[name](DATA) + COMPRESS[name](b"more") + COMPRESS[name](b"") + COMPRESS[name](b"!"))
    )
    assert drain(stream) == DATA + b"more!"
    assert stream.problem == ""


@pytest.mark.parametrize("name", [n for n in COMPRESS if n])
def test_cut_gives_what_came_before(name: str) -> None:
    whole = COMPRESS[name](DATA)
    stream = wrap(io.BytesIO(whole[: len(whole) * 2 // 3]))
    got = drain(stream)
    assert DATA.startswith(got)
    assert len(got) > len(DATA) // 10 or name == "zstd"  # zstd gives whole blocks only
    assert "ends in the middle" in stream.problem


@pytest.mark.parametrize("name", [n for n in COMPRESS if n])
def test_damage_never_raises(name: str) -> None:
    chance = random.Random(name)
    whole = COMPRESS[name](DATA[:20_000])
    for _ in range(60):
        hurt = bytearray(whole)
        for _ in range(3):
            hurt[chance.randrange(6, len(hurt))] = chance.randrange(256)
        stream = wrap(io.BytesIO(bytes(hurt)))
        drain(stream)


def test_rubbish_after_the_end() -> None:
    stream = wrap(io.BytesIO(gzip.compress(DATA) + bytes(512)))
    assert drain(stream) == DATA
    assert stream.problem == ""
    stream = wrap(io.BytesIO(gzip.compress(DATA) + b"rubbish"))
    assert drain(stream) == DATA
    assert "follow" in stream.problem


@pytest.mark.parametrize("name", [n for n in COMPRESS if n])
def test_bombs_stay_small(name: str) -> None:
    whole = COMPRESS[name](bytes(200 << 20))
    tracemalloc.start()
    stream = wrap(io.BytesIO(whole))
    buffer = bytearray(1 << 20)
    for _ in range(20):
        stream.readinto(memoryview(buffer))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < (80 << 20)


def test_reading_again(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(DATA)
    stream = open_stream(path)
    first = bytearray(1000)
    assert stream.readinto(memoryview(first)) == 1000
    again = bytearray(50)
    assert stream.pread(memoryview(again), 5000) == 50
    assert again == DATA[5000:5050]
    assert drain(stream) == DATA[1000:]
    assert stream.pread(memoryview(again), len(DATA) - 20) == 20
    stream.close()

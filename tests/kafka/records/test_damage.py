"""Damaged and hostile batches: problem rows, nothing raised, nothing without bound."""

from __future__ import annotations

import random
import struct
import tracemalloc

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from kdissect.kafka.recordsets import batch_layout as layout
from kdissect.kafka.recordsets.batches import doubtful, walk
from kdissect.kafka.recordsets.codecs import most
from kdissect.kafka.recordsets.records import records
from kdissect.kafka.recordsets.verification import measure, verify
from tests.kafka.records.building import batch, kafka_python, opened, read, record, rows_of, varint
from tests.kafka.records.test_formats import message, zlib_gzip

SOUND = kafka_python(2, 0, rows_of(2, 8))
PACKED = kafka_python(2, 1, rows_of(2, 8))


def noticed(data: bytes) -> bool:
    """Anything wrong is reported of a record set of a Produce request, where checksums are asked for."""
    batches = opened(data)
    verify(batches)
    return len(batches.problems(np.zeros(1, np.bool_))) > 0


@pytest.mark.parametrize("sound", [SOUND, PACKED])
def test_every_flipped_byte_is_noticed(sound: bytes) -> None:
    """From the magic byte on; base offset and leader epoch lie outside the checksum. So is a flipped length."""
    assert not noticed(sound)
    for place in [*range(8, 12), *range(16, len(sound))]:
        for change in (0x01, 0x80, 0xFF):
            flipped = bytearray(sound)
            flipped[place] ^= change
            assert noticed(bytes(flipped)), (place, change)


def test_a_length_too_large_is_noticed_in_a_response() -> None:
    """A response may end inside a batch, but then its records do not all fit."""
    for sound in (SOUND, PACKED):
        longer = sound[:8] + struct.pack(">i", len(sound) + 100) + sound[12:]
        batches = opened(longer)
        verify(batches)
        assert batches.problems(np.ones(1, np.bool_)).texts == [layout.PROBLEM_TEXTS[4]]
        cut = opened(sound[:-1])
        verify(cut)
        assert not len(cut.problems(np.ones(1, np.bool_)))
        assert cut.table(["crc_ok", "truncated"]).to_pylist() == [{"crc_ok": None, "truncated": True}]


def test_every_cut_of_a_set() -> None:
    """Each prefix of a set has the whole batches that fit, then a truncated row; its sizes sum up."""
    data = SOUND + kafka_python(1, 0, rows_of(1, 3)) + kafka_python(0, 1, rows_of(0, 3))
    for end in range(1, len(data)):
        batches = opened(data[:end])
        rows = batches.table(["compressed_bytes", "truncated"]).to_pylist()
        assert sum(row["compressed_bytes"] for row in rows) == end
        assert [row["truncated"] for row in rows[:-1]] == [False] * (len(rows) - 1)
        verify(batches)
        measure(batches)
        read(batches)
        assert not len(batches.problems())


def test_cut_by_the_capture() -> None:
    """What was captured of a plain batch is read; its size is what the header says."""
    s = np.frombuffer(SOUND, np.uint8)
    batches = walk(s, np.array([0]), np.array([len(s) * 3]), np.array([len(s) - 40]))
    assert batches.table(["truncated", "compressed_bytes"]).to_pylist() == [
        {"compressed_bytes": len(s), "truncated": True}
    ]
    assert read(batches) == rows_of(2, 8)[: len(read(batches))]
    assert len(read(batches)) >= 5


def test_padding_of_a_down_converted_response() -> None:
    """KIP-283: offset -1, a length beyond the response, zeros."""
    for size in (8, 11, 12, 30, 61, 500):
        padding = (struct.pack(">qi", -1, max(size + 1, 61)) + b"\0" * 1000)[:size]
        batches = opened(SOUND, padding)
        assert len(batches.table()) == 1
        assert batches.problems().texts == ["padding of a down-converted response"]


GOOD = record(0, b"k", b"v")
LIES = {
    "count above": (batch(GOOD * 9, 10, last_delta=9), "record count"),
    "count far above": (batch(GOOD, 2**31 - 1), "record count"),
    "count negative": (batch(GOOD, -5, last_delta=0), "record count"),
    "count below": (batch(GOOD * 3, 1), "bytes behind"),
    "last delta negative": (batch(GOOD, 1, last_delta=-1), "last offset"),
    "offset outside": (batch(record(7, b"k", b"v"), 1), "record offset"),
    "record length above": (batch(varint(500) + GOOD[1:] + b"x" * 20, 1), "record length"),
    "record length small": (batch(varint(2) + b"\0" * 20, 1), "record length"),
    "record length negative": (batch(varint(-3) + b"\0" * 20, 1), "record length"),
    "endless varint": (batch(b"\xff" * 30, 1), "record length"),
    "key length above": (batch(varint(8) + b"\0\0\0" + varint(60) + b"\0" * 4, 1), "fields do not fit"),
    "value length negative": (batch(varint(8) + b"\0\0\0\x01" + varint(-7) + b"\0" * 3, 1), "fields do not fit"),
    "header count above": (batch(record(0, b"", b"", headers=varint(1000)), 1), "fields do not fit"),
    "header key null": (batch(record(0, b"", b"", headers=varint(1) + varint(-1) + varint(0)), 1), "fields do not fit"),
    "record attributes": (batch(varint(6) + b"\x01\0\0\x01\x01\0", 1), "record attributes"),
    "unknown bits": (batch(GOOD, 1, attributes=1 << 9), "unknown attribute bits"),
    "unknown codec": (batch(GOOD, 1, attributes=6), "unknown codec"),
    "not gzip": (batch(GOOD, 1, attributes=1), "cannot be decompressed"),
    "not zstd": (batch(GOOD, 1, attributes=4), "cannot be decompressed"),
    "not lz4": (batch(GOOD, 1, attributes=3), "cannot be decompressed"),
    "not snappy": (batch(b"\xff" * 40, 1, attributes=2), "cannot be decompressed"),
    "control without type": (batch(GOOD, 1, attributes=32), "control record"),
    "time far off": (batch(GOOD, 1, first=2**62), "timestamp"),
    "time of a record far off": (batch(record(0, b"", b"", time=2**60), 1), "timestamp"),
    "length below 14": (SOUND[:8] + struct.pack(">i", 3) + SOUND[12:], "batch length below 14"),
    "length below a header": (SOUND[:8] + struct.pack(">i", 30) + SOUND[12:42], "too small for its header"),
    "magic 9": (SOUND[:16] + b"\x09" + SOUND[17:], "magic byte"),
    "zstd in magic 1": (message(1, 0, zstandard.compress(message(1, 0, b"v")), 4), "zstd in a format"),
    "nested": (message(1, 0, zlib_gzip(message(1, 0, zlib_gzip(message(1, 0, b"v")), 1)), 1), "inside a compressed"),
    "inner magic": (message(1, 0, zlib_gzip(message(0, 0, b"v")), 1), "magic of inner"),
    "wrapper offset": (message(1, 2, zlib_gzip(message(1, 0, b"v") + message(1, 5, b"v")), 1), "wrapper offset"),
    "wrapper of nothing": (message(1, 0, None, 1), "cannot be decompressed"),
    "inner length": (message(0, 0, zlib_gzip(message(0, 0, b"v")[:8] + b"\x7f" * 30), 1), "record length"),
}  # fmt: skip


@pytest.mark.parametrize("name", LIES)
def test_lies_become_problems(name: str) -> None:
    data, text = LIES[name]
    batches = opened(data, SOUND)
    verify(batches)
    measure(batches)
    rows = read(batches)
    problems = batches.problems()
    assert any(text in found for found in problems.texts), problems.texts
    assert set(problems.owner.tolist()) == {0}
    assert rows[-8:] == rows_of(2, 8)  # the set behind it is not harmed


def test_zstd_that_lies_about_its_size() -> None:
    frame = bytearray(zstandard.ZstdCompressor(write_content_size=True).compress(GOOD * 60))
    frame[6] ^= 0x3  # the content size of a frame of a few hundred bytes
    batches = opened(batch(bytes(frame), 60, attributes=4))
    read(batches)
    assert batches.problems().texts


def bomb(piece: bytes, times: int) -> bytes:
    return zstandard.compress(piece, 1) * times


def test_a_bomb_costs_little() -> None:
    """More than 2 GiB of zeros, and the same behind the valid beginning of a record."""
    zeros = batch(bomb(b"\0" * (64 << 20), 33), 1, attributes=4)
    start = varint(2**31 - 2) + b"\0\0\0\x01" + varint(2**31 - 30)
    giant = batch(zstandard.compress(start) + zeros[61:], 9, attributes=4)
    batches = opened(zeros, giant, SOUND)
    tracemalloc.start()
    for reveal in (False, True):
        assert sum(chunk.num_rows for chunk in records(batches, reveal=reveal)) >= 8
    measure(batches)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 300 << 20
    assert any("compressed bytes can explain" in text for text in batches.problems().texts)
    assert batches.uncompressed.tolist()[:2] == [-1, -1]


MIXED = b"".join(kafka_python(m, c, rows_of(m, 6)) for m, c in ((0, 1), (1, 2), (1, 0), (2, 3), (2, 0), (2, 4)))


@given(st.integers(0, 2**32))
def test_random_damage_never_raises(seed: int) -> None:
    chance = random.Random(seed)
    data = bytearray(MIXED)
    for _ in range(chance.randrange(1, 40)):
        data[chance.randrange(len(data))] = chance.choice((0, 1, 2, 0x7F, 0x80, 0xFF, chance.randrange(256)))
    s = np.frombuffer(bytes(data), np.uint8)
    at = np.array([0, chance.randrange(len(s)), -5, len(s) + 5, 3])
    size = np.array([chance.randrange(len(s) + 50), len(s), 50, 50, -7])
    batches = walk(s, at, size, np.array([chance.randrange(len(s)), 2**40, 50, 50, 9]))
    verify(batches)
    measure(batches)
    for reveal in (False, True):
        for chunk in records(batches, reveal=reveal):
            chunk.validate(full=True)
    batches.table().validate(full=True)
    batches.problems()


def test_what_a_batch_may_decompress_to_depends_on_its_size() -> None:
    """Records of 7 bytes, more of them than the compressed bytes can explain: rows come up to there, then a problem."""
    record = b"\x0c\0\0\0\x01\x01\0"
    batches = opened(batch(zstandard.compress(record * 5_000_000, 1), 5_000_000, attributes=4), SOUND)
    size = len(zstandard.compress(record * 5_000_000, 1))
    assert most(size) < 35_000_000, "it is a bomb"
    count = sum(chunk.num_rows for chunk in records(batches))
    assert 0 < count <= most(size) // 7 + 10
    assert any("compressed bytes can explain" in text for text in batches.problems().texts)


@pytest.mark.parametrize("codec", [0, 4])
def test_a_record_that_is_too_large_is_a_row_without_its_bytes(codec: int) -> None:
    chance = random.Random(1)
    value = chance.randbytes(33 << 20)
    body = b"\0\0\0" + varint(-1) + varint(len(value)) + value + varint(0)
    small = b"\x10\0\0\x02\x01\x04ok\0"
    data = varint(len(body)) + body + small
    packed = zstandard.compress(data, 1) if codec else data
    batches = opened(batch(packed, 2, attributes=codec))
    rows = [row for one in records(batches, reveal=True) for row in one.to_pylist()]
    assert [(row["value_bytes"], row["value"]) for row in rows] == [(len(value), None), (2, b"ok")]
    assert any("too large to be shown" in text for text in batches.problems().texts)


@pytest.mark.parametrize("seed", range(4))
def test_no_set_with_a_problem_passes_for_sound(seed: int) -> None:
    """Bytes changed, cut, and put behind; whole batches of the present format alone are beyond doubt."""
    chance = random.Random(seed)
    sets = [SOUND, PACKED, SOUND + PACKED, kafka_python(1, 0, rows_of(1, 4)), b"", SOUND[:30]]
    for _ in range(600):
        data = bytearray(chance.choice((SOUND, PACKED, SOUND + PACKED)))
        for _ in range(chance.randrange(3)):
            data[chance.randrange(min(len(data), 80))] = chance.choice((0, 1, 2, 127, 128, 255))
        sets.append(bytes(data[: chance.choice((len(data), chance.randrange(len(data))))]))
    size = np.array([len(one) for one in sets], np.int64)
    at = np.concatenate([[0], np.cumsum(size)[:-1]]).astype(np.int64)
    s = np.frombuffer(b"".join(sets), np.uint8)
    found = doubtful(s, at, size)
    walked = walk(s, at, size)
    wrong = set(walked.problems(np.zeros(len(sets), np.bool_)).owner.tolist())
    assert found.tolist() == sorted(set(found.tolist()))
    assert wrong <= set(found.tolist())
    assert {0, 1, 2, 4}.isdisjoint(found.tolist())
    assert {3, 5} <= set(found.tolist())
    assert 20 < len(found) < len(sets)

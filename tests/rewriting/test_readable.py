"""What counts as readable text, by itself and in record sets; which texts are words of the protocol."""

from __future__ import annotations

import random
import re
import struct
from collections import Counter

import numpy as np
import pytest

from kdissect.rewriting.verification import readable as module
from kdissect.rewriting.verification.readable import (
    Found,
    Texts,
    What,
    distinct_stretches,
    readable,
    readable_in_records,
)
from kdissect.schema.vocabulary import is_protocol_word
from tests.bench.frames import batch


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"\0user\0pas\0password\0", [b"user", b"password"]),
        (b"abc", []),
        (b"xxxxxxxxSecretxxxx", [b"Secret"]),
        (b"\0xxx(xxxxxxxxxxxx\0", []),
        ("\0M\u00fcller\0".encode(), ["M\u00fcller".encode()]),
        ("\u65e5\u672c\u8a9e\u3067\0".encode(), ["\u65e5\u672c\u8a9e\u3067".encode()]),
        (b"\xff\xfe\x80\x81abc", []),
    ],
)  # fmt: skip
def test_stretches(data: bytes, found: list[bytes]) -> None:
    assert list(readable(data)) == found


CHARACTER = rb"[\x20-\x7e]|[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3}"
RUN, FILLER = re.compile(rb"(?:%b){4,}" % CHARACTER), re.compile(rb"x{4,}")


def test_stretches_are_those_of_a_regular_expression(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(5)
    letters = [
        b"a",
        b"bc",
        b"x",
        b"xxxx",
        b"\0",
        b"\xc3\xa9",
        b"\xe6\x97\xa5",
        b"\xf0\x9f\x98\x80",
        b"\xf0\x9f",
        b"\xff",
    ]
    ranges = [b"".join(draw.choices(letters, k=draw.randrange(60))) for _ in range(400)]
    expected: Counter[bytes] = Counter()
    firsts: dict[bytes, int] = {}
    for at, data in enumerate(ranges):
        pieces = [piece.strip(b"x") for run in RUN.findall(data) for piece in FILLER.split(run)]
        pieces = [piece for piece in pieces if len(piece) >= 4]
        assert list(readable(data)) == pieces
        expected.update(pieces)
        for piece in pieces:
            firsts.setdefault(piece, at)
    assert sum(expected.values()) > 1000
    ends = np.cumsum([len(data) for data in ranges])
    begins = ends - [len(data) for data in ranges]
    for room in (1, 7, 1 << 14):
        monkeypatch.setattr(module, "ROOM", room)
        counted: Counter[bytes] = Counter()
        first: dict[bytes, int] = {}
        for text, at, count in distinct_stretches(np.frombuffer(b"".join(ranges), np.uint8), begins, ends):
            counted[text] += count
            first.setdefault(text, at)
        assert (counted, first) == (expected, firsts)


def test_headers_of_batches_are_numbers() -> None:
    one = bytearray(batch([b"a value", b"x" * 40]))
    one[17:21] = b"CRC!"
    assert list(readable_in_records(bytes(one + one))) == [b"a value"] * 2
    assert list(readable_in_records(bytes(one + one[:30]))) == [b"a value"]
    assert list(readable_in_records(b"no batch at all")) == [b"no batch at all"]
    message = (
        struct.pack(">qi4sbb", 0, 30, b"CRC!", 0, 0)
        + struct.pack(">i", 4)
        + b"key!"
        + struct.pack(">i", 12)
        + b"x" * 12
    )
    assert list(readable_in_records(message)) == [b"key!"]


def test_texts_are_counted_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 2)
    texts = Texts()
    for frame, text in ((9, b"one"), (7, b"one"), (8, b"two"), (8, b"three"), (8, b""), (8, b"xx"), (8, b"\0\0")):
        texts.add(What.NAME, text, frame)
    assert texts.found == {(What.NAME, b"one"): Found(7, 2), (What.NAME, b"two"): Found(8, 1)}
    assert texts.further == 1


@pytest.mark.parametrize(
    ("word", "is_one"),
    [
        (b"consumer", True), (b"cooperative-sticky", True), (b"Stable", True), (b"SCRAM-SHA-256", True),
        (b"3.9.1", True), (b"v1.22.2", True), (b"2.16.1-rdkafka-2.16.0", True), (b"apache-kafka-java", True),
        (b"metadata.version", True),
        (b"my-assignor", False), (b"acme-client", False), (b"1.2.3-acme", False), (b"", False), (b"3.9.1\n", False),
    ],
)  # fmt: skip
def test_words_of_the_protocol(word: bytes, is_one: bool) -> None:
    assert is_protocol_word(word) == is_one

"""Readable text: which stretches of bytes a person could read, and a tally of the texts that a capture holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kdissect.rewriting.verification.stretch_kernels import SHORTEST, copy_stretches, find_stretches

ROOM = 1 << 14
"""Stretches that are found at a time."""
_BATCH_PREFIX, _MAGIC_AT, _BATCH_HEADER, _MESSAGE_HEADER = 12, 16, 61, 18
"""Offset and length in front of a batch; its magic; what stands before the records of a batch of magic 2, and before
the key of a message of magic 0 (8 more of magic 1): KIP-98, KIP-32."""
MOST = 100_000
"""Distinct texts that are remembered; further ones are counted together."""


class What(StrEnum):
    """The kind of a text in the message that holds it."""

    NAME = "name"
    WORD = "word of the protocol"
    VALUE = "value of a configuration"
    """A boolean, a number, or a word that is valid for that configuration."""
    TEXT = "text"
    """Any other field: what may not stay."""
    UNREAD = "bytes outside of messages"


@dataclass(slots=True)
class Found:
    """Where a text is first, and how often it is there."""

    frame: int
    count: int


def readable(data: bytes) -> Iterator[bytes]:
    """Stretches of readable characters, without filler of `redact`."""
    for found in _stretches(np.frombuffer(data, np.uint8), np.zeros(1, np.int64), np.full(1, len(data), np.int64)):
        for begin, end in found[:, 1:].tolist():
            yield data[begin:end]


def distinct_stretches(
    data: npt.NDArray[np.uint8], begins: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]
) -> Iterator[tuple[bytes, int, int]]:
    """The readable stretches of the ranges of `data` from `begins` to `ends`: a text, the first range that has it, how
    often it is there. A text may come again after ROOM stretches."""
    for found in _stretches(data, begins, ends):
        offsets = np.empty(len(found) + 1, np.int32)
        texts = np.empty(int((found[:, 2] - found[:, 1]).sum()), np.uint8)
        copy_stretches(data, found, offsets, texts)
        column = pa.BinaryArray.from_buffers(
            pa.binary(), len(found), [None, pa.py_buffer(offsets), pa.py_buffer(texts)]
        ).dictionary_encode()
        codes = column.indices.to_numpy()
        counts, firsts = np.bincount(codes), np.unique(codes, return_index=True)[1]
        yield from zip(column.dictionary.to_pylist(), found[firsts, 0].tolist(), counts.tolist(), strict=True)


def _stretches(
    data: npt.NDArray[np.uint8], begins: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]
) -> Iterator[npt.NDArray[np.int64]]:
    """Rows of `find_stretches`, up to ROOM at a time."""
    reached = np.array([0, -1, -1], np.int64)
    while reached[0] < len(begins):
        found = np.empty((min(ROOM, len(data) // SHORTEST + 1), 3), np.int64)
        yield found[: find_stretches(data, begins, ends, found, reached)]


def readable_in_records(data: bytes) -> Iterator[bytes]:
    """Stretches of readable characters in the records of a record set; headers of batches are numbers."""
    p = 0
    while len(data) - p > _MAGIC_AT:
        length = int.from_bytes(data[p + 8 : p + 12], "big")
        magic = data[p + _MAGIC_AT]
        end = min(p + _BATCH_PREFIX + length, len(data))  # the last one may be cut off
        if magic > 2 or end <= p + _MAGIC_AT:
            break
        yield from readable(data[p + (_BATCH_HEADER if magic == 2 else _MESSAGE_HEADER + 8 * magic) : end])
        p = end
    yield from readable(data[p:])


class Texts:
    """Distinct texts, by what they are, with their first frame and their count."""

    def __init__(self) -> None:
        self.found: dict[tuple[What, bytes], Found] = {}
        self.further = 0
        """Texts that were met when `MOST` others were known."""

    def add(self, kind: What, text: bytes, frame: int, count: int = 1) -> None:
        """Count a text that is there so often, unless it is empty, or filler or zeros of `redact`."""
        if not text.strip(b"x") or not text.strip(b"\0"):
            return
        known = self.found.get((kind, text))
        if known is not None:
            known.frame = min(known.frame, frame)
            known.count += count
        elif len(self.found) < MOST:
            self.found[kind, text] = Found(frame, count)
        else:
            self.further += count

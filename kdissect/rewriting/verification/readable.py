"""Readable text: which stretches of bytes a person could read, and a tally of the texts that a capture holds."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

SHORTEST = 4
"""Characters from which on a stretch of unknown bytes counts as text: shorter ones occur by chance everywhere."""
_LETTER = rb"[\x20-\x7e]|[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3}"
_RUN = re.compile(rb"(?:%b){%d,}" % (_LETTER, SHORTEST))
_FILLER = re.compile(rb"x{%d,}" % SHORTEST)
_BATCH_PREFIX, _MAGIC_AT, _BATCH_HEADER, _MESSAGE_HEADER = 12, 16, 61, 18
"""Offset and length in front of a batch; its magic; what stands before the records of a batch of magic 2, and before
the key of a message of magic 0 (8 more of magic 1): KIP-98, KIP-32."""
MOST = 100_000
"""Distinct texts that are remembered; further ones are counted together."""


class What(StrEnum):
    """What a text is in the message that holds it."""

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
    for run in _RUN.finditer(data):
        for piece in _FILLER.split(run[0]):
            text = piece.strip(b"x")  # shorter filler with a readable length beside it
            if len(text) >= SHORTEST:
                yield text


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

    def add(self, what: What, text: bytes, frame: int) -> None:
        """Count a text, unless it is empty, or filler or zeros of `redact`."""
        if not text.strip(b"x") or not text.strip(b"\0"):
            return
        known = self.found.get((what, text))
        if known is not None:
            known.frame = min(known.frame, frame)
            known.count += 1
        elif len(self.found) < MOST:
            self.found[what, text] = Found(frame, 1)
        else:
            self.further += 1

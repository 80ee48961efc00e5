"""Anything that can be pickled as compressed bytes, which say how long they are without compression."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa

CODEC = "zstd"
LENGTH = 8
"""Bytes of the length in front."""


def packed(value: object) -> bytes:
    """The value as bytes, for `unpacked`."""
    whole = pickle.dumps(value, protocol=5)
    small: bytes = pa.compress(whole, codec=CODEC, asbytes=True)
    return len(whole).to_bytes(LENGTH, "little") + small


def unpacked(data: bytes) -> Any:
    """The value that was packed. Only for bytes of our own."""
    whole = pa.decompress(data[LENGTH:], int.from_bytes(data[:LENGTH], "little"), codec=CODEC)
    return pickle.loads(whole)

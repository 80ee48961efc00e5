"""Assignments inside SyncGroup answers: the embedded consumer protocol (ConsumerProtocolAssignment v0-v3).

Version (int16), then AssignedPartitions [topic string, [partition int32]] and UserData; all versions so far are laid
out alike. Other protocols (Connect, Schema Registry) put their own bytes there, which this reading refuses.
"""

from __future__ import annotations

import struct
from typing import Any

MAX_VERSION = 3


class _Misfit(Exception):
    """The bytes are no consumer protocol assignment."""


def read_assignment(data: bytes) -> list[dict[str, Any]] | None:
    """Topics with their partitions, `[{topic, topic_id: None, partitions}]`; None when the bytes are anything else.

    Empty bytes (a member without assignment, or an error answer) give None too.
    """
    try:
        return _read(data)
    except (_Misfit, struct.error, UnicodeDecodeError):
        return None


def _read(data: bytes) -> list[dict[str, Any]]:
    version, topics = struct.unpack_from(">hi", data, 0)
    if not 0 <= version <= MAX_VERSION or not 0 <= topics <= len(data):
        raise _Misfit
    at = 6
    out = []
    for _ in range(topics):
        (length,) = struct.unpack_from(">h", data, at)
        at += 2
        if length < 0 or at + length > len(data):
            raise _Misfit
        topic = data[at : at + length].decode()
        at += length
        (count,) = struct.unpack_from(">i", data, at)
        at += 4
        if not 0 <= count <= (len(data) - at) // 4:
            raise _Misfit
        out.append({"topic": topic, "topic_id": None, "partitions": list(struct.unpack_from(f">{count}i", data, at))})
        at += 4 * count
    (user_data,) = struct.unpack_from(">i", data, at)
    if at + 4 + max(user_data, 0) != len(data):
        raise _Misfit
    return out

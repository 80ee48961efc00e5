"""Packets that wait, as structs: in chunks, which are packed when they are full and the window has moved on."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kdissect.kernels.structs import Records, Words
from kdissect.net.segment import ACK_FLAG, RST, SEGMENT, SYN
from kdissect.tcp.layout import End

CHUNK_BITS = 16
CHUNK = 1 << CHUNK_BITS
"""Packets that are kept together: 4.5 MB, and a quarter of that once there are so many and they are packed."""
CODEC = "zstd"
SPOKE = 0x80
"""Of `count`: the payload is among these packets."""

PACKET_KIND = np.dtype(
    [("time", "i8"), ("packet", "i8"), ("flags", "i8"), ("at", "i8"), ("stamp", "i8"), ("flow", "u4"), ("seq", "u4"),
     ("ack", "u4"), ("len", "u4"), ("wire", "u4"), ("view", "u4"), ("before", "i4"), ("count", "u1")]
)  # fmt: skip
"""A packet. `at`: where its payload is, in the window or the store; `view`: code of its viewpoint; `before`: the packet
before it in its flow, -1 none; `count`: how many the flow has up to it, and SPOKE; 0: it is not here any more."""
PACKET_BYTES = np.dtype((np.void, PACKET_KIND.itemsize))
"""A packet as bytes, which numpy copies at once."""
_NAMES = tuple(name for name in PACKET_KIND.names or () if name != "count")
SHARED = ("time", "packet", "flags", "at", "stamp", "flow", "seq", "ack", "len", "wire")
"""Fields that a packet has from its segment row."""


class Packed(NamedTuple):
    """A full chunk."""

    columns: bytes
    counts: npt.NDArray[np.uint8]
    """`count` of each, which is asked for most."""

    @staticmethod
    def of(chunk: npt.NDArray[Any]) -> Packed:
        """Column by column: neighbours are alike."""
        columns = [np.ascontiguousarray(chunk[name]) for name in _NAMES]
        steps = [np.diff(column, prepend=column.dtype.type(0)).tobytes() for column in columns]
        return Packed(pa.compress(b"".join(steps), codec=CODEC, asbytes=True), chunk["count"].copy())

    def chunk(self) -> npt.NDArray[Any]:
        """The packets of the chunk, decompressed."""
        out = np.empty(CHUNK, PACKET_KIND)
        raw = pa.decompress(self.columns, CHUNK * (PACKET_KIND.itemsize - 1), codec=CODEC, asbytes=True)
        done = 0
        for name in _NAMES:
            kind = PACKET_KIND[name]
            out[name] = np.cumsum(np.frombuffer(raw, kind, CHUNK, done), dtype=kind)
            done += CHUNK * kind.itemsize
        out["count"] = self.counts
        return out


SILENT = np.dtype(
    [("number", "i8"), ("flow", "i8"), ("first", "i8"), ("sequence", "i8"), ("bytes", "i8"), ("client", "i1"),
     ("start_seen", "i1"), ("end", "i1")]
)  # fmt: skip
"""A connection of one packet that says nothing: fields of `Connection`, and the bytes of its payload."""


def silent_rows(segments: Words) -> Records:
    """`SILENT` of connections that consist of one packet each, these."""
    rows = np.zeros(len(segments), SILENT)
    side, flags = segments[:, SEGMENT.flow] & 1, segments[:, SEGMENT.flags]
    rows["flow"] = segments[:, SEGMENT.flow] >> 1
    rows["first"] = segments[:, SEGMENT.time]
    rows["sequence"] = segments[:, SEGMENT.seq] | side << 32
    rows["bytes"] = segments[:, SEGMENT.wire]
    reset = flags & RST != 0
    syn, answers = (flags & SYN != 0) & ~reset, flags & ACK_FLAG != 0
    rows["client"] = np.where(syn, side ^ answers, -1)
    rows["start_seen"] = syn & ~answers
    rows["end"] = np.where(reset, End.RST, End.OPEN)
    return rows

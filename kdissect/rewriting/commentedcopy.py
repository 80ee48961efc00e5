"""A pcapng file copied block by block, with comments on some of its packets."""

from __future__ import annotations

from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from kdissect.capture.pcap import PACKET
from kdissect.rewriting.comment_kernels import END_OF_OPTIONS, LONGEST, OPTION
from kdissect.rewriting.commentedfile import Comments
from kdissect.rewriting.insertion_kernels import GROWTH, STATE_SIZE, copying_at, insert_comments


class CommentedCopy:
    """Writes blocks to `stream` as they are: interfaces, names, statistics and their own comments come along. Only a
    simple packet block that gets a comment becomes an enhanced one.
    `packets`, `bytes` (captured) and `comments` count what was written."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._state = np.zeros(STATE_SIZE, np.int64)
        self.packets = self.bytes = 0

    @property
    def comments(self) -> int:
        """Comments written."""
        return int(copying_at(self._state, 0).written)

    def write(
        self, data: NDArray[np.uint8], start: int, end: int, packets: NDArray[np.int64], comments: Comments
    ) -> None:
        """Write the whole blocks of data[start:end], in which these packet rows (`kdissect.capture.pcap`) lie; what is
        no block ends it."""
        first = np.searchsorted(comments.frames, packets[:, PACKET.number], "left")
        behind = np.searchsorted(comments.frames, packets[:, PACKET.number], "right")
        sizes = np.minimum(np.diff(comments.ends), LONGEST) + OPTION
        before = np.concatenate([[0], np.cumsum(sizes)])
        more = int((before[behind] - before[first]).sum()) + len(packets) * (END_OF_OPTIONS + GROWTH)
        out = np.empty(end - start + more, np.uint8)
        written = insert_comments(
            data, start, end, self._state, packets, comments.text, comments.ends, first, behind, out
        )
        self._stream.write(memoryview(out)[:written])
        self.packets += len(packets)
        self.bytes += int(packets[:, PACKET.captured].sum())

    def finish(self) -> None:
        """Nothing more follows."""
        self._stream.flush()

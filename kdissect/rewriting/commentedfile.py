"""A pcapng file being written whose packets carry comments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from kdissect.capture.pcap import PACKET
from kdissect.rewriting.comment_kernels import END_OF_OPTIONS, LONGEST, OPTION, write_commented
from kdissect.rewriting.packet_kernels import BLOCK, PADDING
from kdissect.rewriting.packetfile import PacketFile


@dataclass(frozen=True, slots=True)
class Comments:
    """Comments of one file's frames: `frames` ascending; comment i is text[ends[i]:ends[i + 1]], UTF-8."""

    frames: NDArray[np.int64]
    ends: NDArray[np.int64]
    text: NDArray[np.uint8]


NO_COMMENTS = Comments(np.empty(0, np.int64), np.zeros(1, np.int64), np.empty(0, np.uint8))


class CommentedFile(PacketFile):
    """Writes packet rows with their comments to `stream`, which can be sought and read back. `comments` counts those
    written. `secrets`: TLS key logs that come along."""

    def __init__(self, stream: BinaryIO, secrets: Sequence[bytes] = ()) -> None:
        super().__init__(stream, secrets, pcapng=True)
        self.comments = 0

    def write_with(self, data: NDArray[np.uint8], packets: NDArray[np.int64], comments: Comments) -> None:
        """Write packet rows (`kdissect.capture.pcap`) of one file, whose bytes are in `data`."""
        if not len(packets):
            return
        links, interface = np.unique(packets[:, PACKET.link], return_inverse=True)
        self._describe(links.tolist())
        interface = np.array([self._interfaces[link] for link in links.tolist()], np.int64)[interface]
        first = np.searchsorted(comments.frames, packets[:, PACKET.number], "left")
        behind = np.searchsorted(comments.frames, packets[:, PACKET.number], "right")
        sizes = np.minimum(np.diff(comments.ends), LONGEST) + OPTION
        before = np.concatenate([[0], np.cumsum(sizes)])
        captured = int(packets[:, PACKET.captured].sum())
        room = (
            captured + len(packets) * (BLOCK + PADDING + END_OF_OPTIONS) + int((before[behind] - before[first]).sum())
        )
        out = np.empty(room, np.uint8)
        written = write_commented(data, packets, interface, comments.text, comments.ends, first, behind, out)
        self._write(memoryview(out)[:written])
        self.packets += len(packets)
        self.bytes += captured
        self.comments += int((behind - first).sum())

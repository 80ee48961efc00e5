"""A kernel that writes packet rows as pcapng records with comments.

Rules: draft-ietf-opsawg-pcapng, enhanced packet blocks with options; opt_comment (1) may come several times.
"""

from __future__ import annotations

import numpy as np

from kdissect.capture.pcap import Bytes, Int, Ints, packet_at
from kdissect.kernels.kernel import kernel
from kdissect.rewriting.packet_kernels import BLOCK, put32

OPTION = 8
"""Bytes of an option beside its text, at most: code, length, padding."""
END_OF_OPTIONS = 4
LONGEST = 0xFFFF
"""An option's length has 16 bits."""


@kernel("const u1[:] i8[:,:] i8[:] const u1[:] const i8[:] i8[:] i8[:] u1[:] -> i8")
def write_commented(
    data: Bytes, packets: Ints, interface: Ints, text: Bytes, ends: Ints, first: Ints, behind: Ints, out: Bytes
) -> Int:
    """Write packet rows as enhanced packet blocks into `out`; bytes written.

    Comment c is text[ends[c]:ends[c + 1]], UTF-8, cut at LONGEST bytes; row i has those from first[i] to behind[i].
    `out` must have room for BLOCK + 3 + END_OF_OPTIONS bytes a packet in addition to its captured bytes, and OPTION a
    comment in addition to its text. Rows and comments that lie outside of what they point into are left out.
    """
    w = np.int64(0)
    for i in range(packets.shape[0]):
        packet = packet_at(packets, i)
        size = packet.captured
        at = packet.at
        if at < 0 or size < 0 or at + size > data.size:
            continue
        padded = (size + 3) & ~3
        options: Int = np.int64(0)
        if first[i] < 0 or behind[i] > ends.size - 1:
            continue
        for c in range(first[i], behind[i]):
            if ends[c] < 0 or ends[c + 1] < ends[c] or ends[c + 1] > text.size:
                continue
            options += 4 + ((min(ends[c + 1] - ends[c], LONGEST) + 3) & ~3)
        if options:
            options += END_OF_OPTIONS
        total = BLOCK + padded + options
        if w + total > out.size:
            break
        time = max(packet.time, 0)
        put32(out, w, 6)
        put32(out, w + 4, total)
        put32(out, w + 8, interface[i])
        put32(out, w + 12, time >> 32)
        put32(out, w + 16, time & 0xFFFFFFFF)
        put32(out, w + 20, size)
        put32(out, w + 24, min(packet.original, 0xFFFFFFFF))
        for k in range(28, total):
            out[w + k] = 0
        for k in range(size):
            out[w + 28 + k] = data[at + k]
        o = w + 28 + padded
        for c in range(first[i], behind[i]):
            if ends[c] < 0 or ends[c + 1] < ends[c] or ends[c + 1] > text.size:
                continue
            length = min(ends[c + 1] - ends[c], LONGEST)
            put32(out, o, 1 | length << 16)
            for k in range(length):
                out[o + 4 + k] = text[ends[c] + k]
            o += 4 + ((length + 3) & ~3)
        put32(out, w + total - 4, total)
        w += total
    return w

"""A kernel that puts comments into blocks of a pcapng file and leaves everything else as it is.

Rules: draft-ietf-opsawg-pcapng. Comments (opt_comment, 1) go in front of the options that a packet block has, whose
length grows with them. The length of a section is not known any more (-1), as for one that is still being written.
"""

from __future__ import annotations

import numpy as np

from kdissect.capture.pcap import Bytes, Int, Ints, u32
from kdissect.kernels.kernel import kernel, part
from kdissect.rewriting.comment_kernels import END_OF_OPTIONS, LONGEST

SECTION, ENHANCED, PACKET = 0x0A0D0D0A, 6, 2
BODY = 28
"""Where the packet's bytes stand in both kinds of packet block that have options."""
LITTLE, BIG = 0x1A2B3C4D, 0x4D3C2B1A
STATE_BIG, WRITTEN = 0, 1
"""Of the state: byte order of the section that is read, and comments written so far."""


@part
def _put(out: Bytes, w: Int, value: Int, size: Int, big: bool) -> None:
    """An integer of `size` bytes; the caller has checked that they are there."""
    for k in range(size):
        out[w + (size - 1 - k if big else k)] = (value >> (8 * k)) & 0xFF


@kernel("const u1[:] i8 i8 i8[:] const i8[:] const u1[:] const i8[:] const i8[:] const i8[:] u1[:] -> i8")
def insert_comments(
    data: Bytes, start: Int, end: Int, state: Ints, at: Ints, text: Bytes, ends: Ints, first: Ints, behind: Ints,
    out: Bytes,
) -> Int:  # fmt: skip
    """Copy whole blocks of data[start:end] into `out`, up to the first that is none; bytes written.

    `at`: where packets begin in `data`, ascending; packet i gets the comments from first[i] to behind[i], comment c
    being text[ends[c]:ends[c + 1]], UTF-8, cut at LONGEST bytes. `out` must have room for the blocks, 8 bytes a comment
    beside its text, and END_OF_OPTIONS a packet.
    """
    p, w, row = start, np.int64(0), np.int64(0)
    while end - p >= 12:
        big = state[STATE_BIG] == 1
        kind = u32(data, p, big)
        if kind == SECTION:
            magic = u32(data, p + 8, False)
            if magic != LITTLE and magic != BIG:
                break
            big = magic == BIG
            state[STATE_BIG] = 1 if big else 0
        total = u32(data, p + 4, big)
        if total < 12 or total & 3 or total > end - p or w + total > out.size:
            break
        added: Int = np.int64(0)
        options: Int = np.int64(0)
        if kind in (ENHANCED, PACKET) and total >= BODY + 4:
            while row < at.size and at[row] < p + BODY:
                row += 1
            options = BODY + ((u32(data, p + 20, big) + 3) & ~3)
            if row < at.size and at[row] == p + BODY and options <= total - 4 and behind[row] < ends.size:
                for c in range(max(first[row], 0), behind[row]):
                    added += 4 + ((min(max(ends[c + 1] - ends[c], 0), LONGEST) + 3) & ~3)
                if added and options == total - 4:
                    added += END_OF_OPTIONS
        if added == 0 or w + total + added > out.size:
            for k in range(total):
                out[w + k] = data[p + k]
            if kind == SECTION and total >= 28:
                for k in range(16, 24):
                    out[w + k] = 0xFF
            p, w = p + total, w + total
            continue
        for k in range(options):
            out[w + k] = data[p + k]
        o = w + options
        for k in range(added):
            out[o + k] = 0
        for c in range(max(first[row], 0), behind[row]):
            length = min(max(ends[c + 1] - ends[c], 0), LONGEST)
            if ends[c] < 0 or ends[c] + length > text.size:
                length = 0
            _put(out, o, np.int64(1), np.int64(2), big)
            _put(out, o + 2, length, np.int64(2), big)
            for k in range(length):
                out[o + 4 + k] = text[ends[c] + k]
            o += 4 + ((length + 3) & ~3)
            state[WRITTEN] += 1
        for k in range(options, total):
            out[w + added + k] = data[p + k]
        _put(out, w + 4, total + added, np.int64(4), big)
        _put(out, w + total + added - 4, total + added, np.int64(4), big)
        p, w = p + total, w + total + added
    return w

"""A kernel that puts comments into blocks of a pcapng file and leaves everything else as it is.

Rules: draft-ietf-opsawg-pcapng. Comments (opt_comment, 1) go in front of the options that a packet block has, whose
length grows with them. A simple packet block has no place for options. With a comment it becomes an enhanced one on the
section's first interface, to which it belongs, at the time that its row has. The length of a section is not known any
more (-1), as for one that is still being written.
"""

from __future__ import annotations

import numpy as np

from kdissect.capture.pcap import Bytes, Int, Interface, Ints, packet_at, u32
from kdissect.capture.pcapng import DIVIDE, MULTIPLY, describe
from kdissect.kernels.kernel import kernel, part
from kdissect.kernels.structs import struct, view, width
from kdissect.rewriting.comment_kernels import END_OF_OPTIONS, LONGEST

SECTION, INTERFACE, ENHANCED, SIMPLE, PACKET = 0x0A0D0D0A, 1, 6, 3, 2
BODY, SIMPLE_BODY = 28, 12
"""Where the packet's bytes stand in both kinds of packet block that have options, and in a simple one."""
GROWTH = BODY - SIMPLE_BODY
"""Bytes by which a simple block grows beside its comments."""
LITTLE, BIG = 0x1A2B3C4D, 0x4D3C2B1A
SECOND = 1_000_000_000
MOST = 0x7FFFFFFFFFFFFFFF


@struct
class Copying:
    """How far a file was copied."""

    big: int
    """1: the section is big-endian."""
    written: int
    """Comments written so far."""
    described: int
    """1: the section's first interface is known."""
    interface: Interface
    """That one."""


copying_at = view(Copying)
STATE_SIZE = width(Copying)


@part
def _write_int(out: Bytes, w: Int, value: Int, size: Int, big: bool) -> None:
    """An integer of `size` bytes; the caller has checked that they are there."""
    for k in range(size):
        out[w + (size - 1 - k if big else k)] = (value >> (8 * k)) & 0xFF


@part
def _ticks(time: Int, interface: Interface) -> Int:
    """`nanoseconds` of `kdissect.capture.pcapng` the other way round; 0 where int64 holds no such ticks."""
    factor = interface.factor
    if abs(interface.offset) > MOST // SECOND // 2:
        return 0
    time = time - interface.offset * SECOND
    if time < 0 or factor < 0:
        return 0
    if interface.rule == MULTIPLY:
        return time // max(factor, 1)
    if interface.rule == DIVIDE:
        return time * factor if factor > 0 and time <= MOST // factor else 0
    if factor > 62 or time // SECOND >= MOST >> factor:
        return 0
    exact = min(factor, 32)  # of which `nanoseconds` makes use
    part_of_second = ((time % SECOND << exact) + SECOND - 1) // SECOND
    return (time // SECOND << factor) + (part_of_second << factor - exact)


@kernel("const u1[:] i8 i8 i8[:] i8[:,:] const u1[:] const i8[:] const i8[:] const i8[:] u1[:] -> i8")
def insert_comments(
    data: Bytes, start: Int, end: Int, state: Ints, packets: Ints, text: Bytes, ends: Ints, first: Ints, behind: Ints,
    out: Bytes,
) -> Int:  # fmt: skip
    """Copy whole blocks of data[start:end] into `out`, up to the first that is none; bytes written.

    `packets`: rows in the order of `data`; packet i gets the comments from first[i] to behind[i], comment c being
    text[ends[c]:ends[c + 1]], UTF-8, cut at LONGEST bytes. `out` must have room for the blocks, 8 bytes a comment in
    addition to its text, and END_OF_OPTIONS + GROWTH a packet.
    """
    p, w, row, rows = start, np.int64(0), np.int64(0), packets.shape[0]
    copying = copying_at(state, 0)
    while end - p >= 12:
        big = copying.big == 1
        kind = u32(data, p, big)
        if kind == SECTION:
            magic = u32(data, p + 8, False)
            if magic != LITTLE and magic != BIG:
                break
            big = magic == BIG
            copying.big = 1 if big else 0
            copying.described = copying.interface.factor = copying.interface.offset = 0
            copying.interface.rule = MULTIPLY
        total = u32(data, p + 4, big)
        if total < 12 or total & 3 or total > end - p or w + total > out.size:
            break
        added: Int = np.int64(0)
        options: Int = np.int64(0)
        if kind == INTERFACE and copying.described == 0 and total >= 20:
            copying.described = 1
            describe(data, p, total, big, copying.interface)
        body = SIMPLE_BODY if kind == SIMPLE else BODY
        if kind in (ENHANCED, SIMPLE, PACKET) and total >= body + 4:
            while row < rows and packet_at(packets, row).at < p + body:
                row += 1
            if row < rows and packet_at(packets, row).at == p + body and behind[row] < ends.size:
                size = packet_at(packets, row).captured if kind == SIMPLE else u32(data, p + 20, big)
                options = body + ((max(size, 0) + 3) & ~3)
                if options <= total - 4:
                    for c in range(max(first[row], 0), behind[row]):
                        added += 4 + ((min(max(ends[c + 1] - ends[c], 0), LONGEST) + 3) & ~3)
                if added and (kind == SIMPLE or options == total - 4):
                    added += END_OF_OPTIONS
        grown = added + GROWTH if kind == SIMPLE else added
        if added == 0 or w + total + grown > out.size:
            for k in range(total):
                out[w + k] = data[p + k]
            if kind == SECTION and total >= 28:
                for k in range(16, 24):
                    out[w + k] = 0xFF
            p, w = p + total, w + total
            continue
        rest = options
        if kind == SIMPLE:
            _write_int(out, w, np.int64(ENHANCED), np.int64(4), big)
            _write_int(out, w + 8, np.int64(0), np.int64(4), big)
            ticks = _ticks(max(packet_at(packets, row).time, 0), copying.interface)
            _write_int(out, w + 12, ticks >> 32, np.int64(4), big)
            _write_int(out, w + 16, ticks, np.int64(4), big)
            _write_int(out, w + 20, packet_at(packets, row).captured, np.int64(4), big)
            _write_int(out, w + 24, u32(data, p + 8, big), np.int64(4), big)
            for k in range(SIMPLE_BODY, options):
                out[w + GROWTH + k] = data[p + k]
            options += GROWTH
            rest = total - 4
        else:
            for k in range(options):
                out[w + k] = data[p + k]
        o = w + options
        for k in range(added):
            out[o + k] = 0
        for c in range(max(first[row], 0), behind[row]):
            length = min(max(ends[c + 1] - ends[c], 0), LONGEST)
            if ends[c] < 0 or ends[c] + length > text.size:
                length = 0
            _write_int(out, o, np.int64(1), np.int64(2), big)
            _write_int(out, o + 2, length, np.int64(2), big)
            for k in range(length):
                out[o + 4 + k] = text[ends[c] + k]
            o += 4 + ((length + 3) & ~3)
            copying.written += 1
        written = options + added + total - rest
        for k in range(rest, total):
            out[w + written - total + k] = data[p + k]
        _write_int(out, w + 4, written, np.int64(4), big)
        _write_int(out, w + written - 4, written, np.int64(4), big)
        p, w = p + total, w + written
    return w

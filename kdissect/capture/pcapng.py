"""Kernels that walk pcapng blocks into packet rows, as `kdissect.capture.pcap` does for pcap.

Rules: draft-ietf-opsawg-pcapng. A block is believed when its two lengths agree and are at most `limit` bytes.
Packets come from enhanced, simple and old packet blocks; interface descriptions, statistics and decryption secrets
and name resolution are read; custom and unknown blocks are skipped.
"""

from __future__ import annotations

import numpy as np

from kdissect.capture import pcap as pc
from kdissect.capture.pcap import (
    Bytes,
    File,
    Int,
    Interface,
    Ints,
    file_at,
    interface_at,
    note_at,
    note_time,
    packet_at,
    u16,
    u32,
)
from kdissect.kernels.kernel import kernel, part

MULTIPLY, DIVIDE, BINARY = 0, 1, 2
"""`rule` of an interface: how its ticks become nanoseconds."""


@part
def nanoseconds(high: Int, low: Int, interface: Interface) -> Int:
    """64-bit ticks of a pcapng interface as ns since the epoch; -1 when they are outside what int64 ns can hold."""
    ticks = high << 32 | low
    factor = interface.factor
    offset = interface.offset
    if high > 0x7FFFFFFF:  # beyond int64, which only ticks far below a nanosecond can be: half of it, and ticks twice
        if interface.rule == MULTIPLY or factor < 2:
            return -1
        ticks = high << 31 | low >> 1
        factor = factor // 2 if interface.rule == DIVIDE else factor - 1
    if interface.rule == MULTIPLY:
        if ticks > 9_000_000_000_000_000_000 // factor:
            return -1
        time = ticks * factor
    elif interface.rule == DIVIDE:
        time = ticks // factor
    else:
        seconds = ticks >> factor if factor < 63 else 0
        if seconds > 9_000_000_000:
            return -1
        part = ticks & ((1 << factor) - 1) if factor < 63 else ticks
        shift = factor
        if shift > 32:  # keep the product below 2**63
            part >>= min(shift - 32, 63)
            shift = 32
        time = seconds * 1_000_000_000 + ((part * 1_000_000_000) >> shift)
    if offset > 4_000_000_000 or offset < -9_000_000_000:
        return -1
    time += offset * 1_000_000_000
    return time if time >= 0 else -1


@part
def describe(data: Bytes, at: Int, size: Int, big: bool, interface: Interface) -> None:
    """An Interface Description Block into an interface row."""
    interface.link_type, interface.snap = u16(data, at + 8, big), u32(data, at + 12, big)
    interface.rule, interface.factor = MULTIPLY, 1000  # microseconds unless if_tsresol says otherwise
    interface.offset, interface.packets = 0, 0
    interface.received, interface.dropped, interface.os_dropped = -1, -1, -1
    o = at + 16
    end = at + size - 4
    while end - o >= 4:
        code = u16(data, o, big)
        length = u16(data, o + 2, big)
        if code == 0 or length > end - o - 4:
            break
        if code == 9 and length >= 1:
            value: Int = np.int64(data[o + 4])
            if value & 0x80:
                interface.rule = BINARY
                interface.factor = value & 0x7F
            else:
                interface.rule = MULTIPLY if value <= 9 else DIVIDE
                factor = 1
                steps: Int = min(abs(9 - value), 18)
                for _ in range(steps):
                    factor *= 10
                interface.factor = factor if abs(9 - value) <= 18 else 0x7FFFFFFFFFFFFFFF
        elif code == 14 and length >= 8:
            first = u32(data, o + 4, big)
            second = u32(data, o + 8, big)
            interface.offset = first << 32 | second if big else second << 32 | first
        o += 4 + ((length + 3) & ~3)


@part
def count_drops(data: Bytes, at: Int, size: Int, big: bool, interface: Interface) -> None:
    """An Interface Statistics Block into an interface row: packets received and dropped so far."""
    o = at + 20
    end = at + size - 4
    while end - o >= 4:
        code = u16(data, o, big)
        length = u16(data, o + 2, big)
        if code == 0 or length > end - o - 4:
            break
        if (code == 4 or code == 5 or code == 7) and length >= 8:
            first = u32(data, o + 4, big)
            second = u32(data, o + 8, big)
            value = (first & 0x7FFFFFFF) << 32 | second if big else (second & 0x7FFFFFFF) << 32 | first
            if code == 4:
                interface.received = max(interface.received, value)
            elif code == 5:
                interface.dropped = max(interface.dropped, value)
            else:
                interface.os_dropped = max(interface.os_dropped, value)
        o += 4 + ((length + 3) & ~3)


@part
def leave_note(file: File, notes: Ints, kind: Int, at: Int, size: Int, value: Int) -> None:
    """Fill the next row of `notes`, which has room, for a block of the present section."""
    note = note_at(notes, file.notes)
    note.kind, note.at, note.size, note.value = kind | file.big << 40, at, size, value
    file.notes += 1


@kernel("const u1[:] i8 i8 i8 i8[:,:] i8[:] i8[:,:] i8[:,:] -> i8 i8 i8")
def walk_pcapng(
    data: Bytes, at: Int, end: Int, limit: Int, interfaces: Ints, state: Ints, notes: Ints, rows: Ints
) -> tuple[Int, Int, Int]:
    """Blocks from data[at:end] into rows, as `walk_pcap`. Interface descriptions, secrets and names also leave a row
    of `notes` (`Note`) for the caller."""
    n = 0
    capacity = rows.shape[0]
    file = file_at(state, 0)
    why = pc.MORE
    while end - at >= 12:
        if n == capacity:
            why = pc.FULL
            break
        big = file.big == 1
        kind = u32(data, at, big)
        if kind == 0x0A0D0D0A:
            magic = u32(data, at + 8, True)
            if magic != 0x1A2B3C4D and magic != 0x4D3C2B1A:
                why = pc.DAMAGED
                break
            big = magic == 0x1A2B3C4D
        size = u32(data, at + 4, big)
        if size < 12 or size & 3 or size > limit:
            why = pc.DAMAGED
            break
        if size > end - at:
            break
        if u32(data, at + size - 4, big) != size:
            why = pc.DAMAGED
            break
        interface: Int = np.int64(-1)
        captured: Int = np.int64(-1)
        original: Int = np.int64(0)
        body = at
        time: Int = np.int64(-1)
        if kind == 6 and size >= 32:
            interface = u32(data, at + 8, big)
            captured = u32(data, at + 20, big)
            original = u32(data, at + 24, big)
            body = at + 28
        elif kind == 3 and size >= 16:
            interface = np.int64(0)
            original = u32(data, at + 8, big)
            captured = min(original, size - 16)
            body = at + 12
        elif kind == 2 and size >= 32:
            interface = u16(data, at + 8, big)
            captured = u32(data, at + 20, big)
            original = u32(data, at + 24, big)
            body = at + 28
        elif kind == 0x0A0D0D0A:
            file.big = 1 if big else 0
            file.section = file.interfaces
        elif kind == 1 and size >= 20:
            if file.interfaces < interfaces.shape[0]:
                describe(data, at, size, big, interface_at(interfaces, file.interfaces))
                if file.notes < notes.shape[0]:
                    leave_note(file, notes, kind, at, size, file.interfaces)
                file.interfaces += 1
            else:
                file.lost_notes += 1
        elif kind == 5 and size >= 24:
            row = u32(data, at + 8, big) + file.section
            if row < file.interfaces:
                count_drops(data, at, size, big, interface_at(interfaces, row))
        elif (kind == 10 or kind == 4) and size >= 20:
            if file.notes < notes.shape[0]:
                leave_note(file, notes, kind, at, size, u32(data, at + 8, big) << 32 | u32(data, at + 12, big))
            else:
                file.lost_notes += 1
        else:
            file.skipped += 1
            if kind == 9 or kind & 0xBFFFFFFF == 0xBAD:  # journal entries and custom blocks: Wireshark numbers them
                file.numbered += 1
        if captured >= 0:
            file.count += 1
            file.numbered += 1
            row = interface + file.section
            link: Int = np.int64(pc.UNKNOWN_LINK)
            if row < file.interfaces:
                seen_at = interface_at(interfaces, row)
                link = seen_at.link_type
                seen_at.packets += 1
                if kind != 3:
                    time = nanoseconds(u32(data, at + 12, big), u32(data, at + 16, big), seen_at)
                elif 0 < seen_at.snap < captured:
                    captured = seen_at.snap
                if kind == 2 and u16(data, at + 10, big) != 0xFFFF:
                    seen_at.dropped = max(seen_at.dropped, 0) + u16(data, at + 10, big)
            else:
                file.unknown_interface += 1
            if captured > at + size - 4 - body:
                captured = at + size - 4 - body
                file.over += 1
            elif captured > original:
                file.over += 1
            elif captured < original:
                file.snapped += 1
            original = max(original, captured)
            if time >= 0:
                note_time(file, time)
            else:
                file.untimed += 1
                time = file.last
            file.original_bytes += original
            file.captured_bytes += captured
            packet = packet_at(rows, n)
            packet.time, packet.at, packet.captured, packet.original = time, body, captured, original
            packet.link, packet.number = link | interface << 16, file.numbered
            n += 1
        at += size
    return n, at, why


@kernel("const u1[:] i8 i8 i8 b1 b1 -> i8 i8")
def seek_pcapng(data: Bytes, at: Int, end: Int, limit: Int, big: bool, final: bool) -> tuple[Int, Int]:
    """The next place in data[at:end] where a known block stands whose two lengths agree, as `seek_pcap`."""
    while end - at >= 12:
        kind = u32(data, at, big)
        order = big
        good = kind == 6 or kind == 3 or kind == 2 or kind == 1 or kind == 5
        if kind == 0x0A0D0D0A:
            magic = u32(data, at + 8, True)
            good = magic == 0x1A2B3C4D or magic == 0x4D3C2B1A
            order = magic == 0x1A2B3C4D
        if good:
            size = u32(data, at + 4, order)
            if size >= 16 and size & 3 == 0 and size <= limit:
                if size > end - at:
                    if not final:
                        return at, pc.UNDECIDED
                elif u32(data, at + size - 4, order) == size:
                    return at, pc.FOUND
        at += 1
    return at, pc.NOTHING

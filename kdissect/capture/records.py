"""Kernels that walk capture file records, pcap and pcapng, into packet rows, and find the next record after damage.

A packet row is int64[6]: time (ns since the epoch), position of the packet's first byte in the window's data, captured
bytes, original bytes (never less than captured), link type | interface within the section << 16, number in the file
(1-based, as Wireshark counts).

Rules. pcap: draft-ietf-opsawg-pcap; pcapng: draft-ietf-opsawg-pcapng. A record is believed when its length is at most
`limit` bytes (pcapng: and its two lengths agree). Anything else is damage: the walk stops there and says so, and the
seek kernels look for the next place where records follow one another. Kernels never raise on data; every read is
checked against `end` first.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kdissect._kernel import kernel

TIME, AT, CAPTURED, ORIGINAL, LINK, NUMBER = range(6)
PACKET_COLUMNS = 6

# The state of a file, int64[STATE_SIZE], updated by the walk.
(
    COUNT,  # packets so far
    LAST,  # time of the last packet that had one
    FIRST,  # earliest time
    LATEST,  # latest time
    ORIGINAL_BYTES,
    CAPTURED_BYTES,
    SNAPPED,  # packets with captured < original
    OVER,  # packets with captured > original, or a length beyond its block
    BACKWARDS,  # packets earlier than the one before
    STEPS,  # packets earlier than the one before by more than CLOCK_STEP
    UNTIMED,  # packets that carry no time
    SKIPPED,  # pcapng blocks of no interest
    BIG,  # the section is big-endian
    SECTION,  # row of the section's first interface
    INTERFACES,  # interface rows in use
    NOTES,  # note rows in use (since the caller emptied them)
    TIMED,  # packets that carried a time
    UNKNOWN_INTERFACE,  # packets that name an interface that was not described
    LOST_NOTES,  # interfaces or notes that found no room in their tables
    NUMBERED,  # packets and other blocks that Wireshark gives a frame number
) = range(20)
STATE_SIZE = 20

# An interface, int64[INTERFACE_SIZE].
LINK_TYPE, SNAP, RULE, FACTOR, OFFSET, PACKETS, RECEIVED, DROPPED, OS_DROPPED, MASK = range(10)
INTERFACE_SIZE = 10
MULTIPLY, DIVIDE, BINARY = 0, 1, 2  # RULE: how ticks become nanoseconds

# Why a walk stopped.
MORE, FULL, DAMAGED = 0, 1, 2
# What a seek found: nothing, a record that others follow, one that needs more bytes to tell.
NOTHING, FOUND, UNDECIDED = 0, 1, 2

CLOCK_STEP = 100_000_000
"""A step of the clock, in ns: ntpd steps a clock that is off by more than 128 ms and slews below; packets which several
receive queues deliver out of order differ by a few ms."""
DAY = 86_400
CHAIN = 4
"""Records which must follow one another before a place is believed after damage: four headers of 12 checked bytes."""
SEEK_CAPTURED = 262_144
"""Largest record accepted while seeking: tcpdump's and Wireshark's own bound (MAXIMUM_SNAPLEN,
WTAP_MAX_PACKET_SIZE)."""
UNKNOWN_LINK = 0xFFFF

Int = Any
"""An integer: Python's where Python calls, int64 inside kernels."""
Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]


@kernel
def u16(b: Bytes, o: Int, big: bool) -> Int:
    """Two bytes in the given order; the caller has checked that they are there."""
    i = np.uint64(o)
    if big:
        return (np.int64(b[i]) << 8) | np.int64(b[i + np.uint64(1)])
    return (np.int64(b[i + np.uint64(1)]) << 8) | np.int64(b[i])


@kernel
def u32(b: Bytes, o: Int, big: bool) -> Int:
    """Four bytes in the given order; the caller has checked that they are there."""
    i = np.uint64(o)
    w = (
        np.int64(b[i])
        | np.int64(b[i + np.uint64(1)]) << 8
        | np.int64(b[i + np.uint64(2)]) << 16
        | np.int64(b[i + np.uint64(3)]) << 24
    )
    if big:
        return ((w & 0xFF) << 24) | ((w & 0xFF00) << 8) | ((w >> 8) & 0xFF00) | (w >> 24)
    return w


@kernel
def note_time(state: Ints, time: Int) -> None:
    """Count a packet's time into the file's state."""
    if state[TIMED] == 0:
        state[FIRST] = time
        state[LATEST] = time
    else:
        if time < state[LAST]:
            state[BACKWARDS] += 1
            if state[LAST] - time > CLOCK_STEP:
                state[STEPS] += 1
        if time < state[FIRST]:
            state[FIRST] = time
        if time > state[LATEST]:
            state[LATEST] = time
    state[LAST] = time
    state[TIMED] += 1


@kernel
def walk_pcap(
    data: Bytes,
    at: Int,
    end: Int,
    big: bool,
    header: Int,
    tick: Int,
    limit: Int,
    interfaces: Ints,
    state: Ints,
    rows: Ints,
) -> tuple[Int, Int, Int]:
    """Records from data[at:end] into rows. Returns rows written, where it stopped, and why (MORE, FULL, DAMAGED)."""
    n = 0
    capacity = rows.shape[0]
    link = interfaces[0, LINK_TYPE]
    why = MORE
    while end - at >= header:
        if n == capacity:
            why = FULL
            break
        seconds = u32(data, at, big)
        captured = u32(data, at + 8, big)
        original = u32(data, at + 12, big)
        if captured > limit or (captured == 0 and original == 0 and seconds == 0):
            why = DAMAGED
            break
        if captured > end - at - header:
            break
        time = seconds * 1_000_000_000 + u32(data, at + 4, big) * tick
        note_time(state, time)
        state[COUNT] += 1
        state[NUMBERED] += 1
        if captured < original:
            state[SNAPPED] += 1
        elif captured > original:
            state[OVER] += 1
            original = captured
        state[ORIGINAL_BYTES] += original
        state[CAPTURED_BYTES] += captured
        rows[n, TIME] = time
        rows[n, AT] = at + header
        rows[n, CAPTURED] = captured
        rows[n, ORIGINAL] = original
        rows[n, LINK] = link
        rows[n, NUMBER] = state[NUMBERED]
        n += 1
        at += header + captured
    interfaces[0, PACKETS] = state[COUNT]
    return n, at, why


@kernel
def nanoseconds(high: Int, low: Int, interface: Ints) -> Int:
    """64-bit ticks of a pcapng interface as ns since the epoch; -1 when they are outside what int64 ns can hold."""
    if high > 0x7FFFFFFF:
        return -1
    ticks = high << 32 | low
    factor = interface[FACTOR]
    offset = interface[OFFSET]
    if interface[RULE] == MULTIPLY:
        if ticks > 9_000_000_000_000_000_000 // factor:
            return -1
        time = ticks * factor
    elif interface[RULE] == DIVIDE:
        time = ticks // factor
    else:
        seconds = ticks >> factor if factor < 63 else 0
        if seconds > 9_000_000_000:
            return -1
        part = ticks & interface[MASK]
        shift = factor
        if shift > 32:  # keep the product below 2**63
            part >>= shift - 32
            shift = 32
        time = seconds * 1_000_000_000 + ((part * 1_000_000_000) >> shift)
    if offset > 4_000_000_000 or offset < -9_000_000_000:
        return -1
    time += offset * 1_000_000_000
    return time if time >= 0 else -1


@kernel
def describe(data: Bytes, at: Int, size: Int, big: bool, interface: Ints) -> None:
    """An Interface Description Block into an interface row."""
    interface[:] = 0
    interface[LINK_TYPE] = u16(data, at + 8, big)
    interface[SNAP] = u32(data, at + 12, big)
    interface[RULE] = MULTIPLY
    interface[FACTOR] = 1000  # microseconds unless if_tsresol says otherwise
    interface[RECEIVED] = -1
    interface[DROPPED] = -1
    interface[OS_DROPPED] = -1
    o = at + 16
    end = at + size - 4
    while end - o >= 4:
        code = u16(data, o, big)
        length = u16(data, o + 2, big)
        if code == 0 or length > end - o - 4:
            break
        if code == 9 and length >= 1:
            value = np.int64(data[o + 4])
            if value & 0x80:
                power: Int = min(value & 0x7F, 63)
                interface[RULE] = BINARY
                interface[FACTOR] = power
                interface[MASK] = (1 << power) - 1 if power < 63 else 0x7FFFFFFFFFFFFFFF
            else:
                interface[RULE] = MULTIPLY if value <= 9 else DIVIDE
                factor = 1
                steps: Int = min(abs(9 - value), 18)
                for _ in range(steps):
                    factor *= 10
                interface[FACTOR] = factor
        elif code == 14 and length >= 8:
            first = u32(data, o + 4, big)
            second = u32(data, o + 8, big)
            interface[OFFSET] = first << 32 | second if big else second << 32 | first
        o += 4 + ((length + 3) & ~3)


@kernel
def count_drops(data: Bytes, at: Int, size: Int, big: bool, interface: Ints) -> None:
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
            column = RECEIVED if code == 4 else DROPPED if code == 5 else OS_DROPPED
            interface[column] = max(interface[column], value)
        o += 4 + ((length + 3) & ~3)


@kernel
def walk_pcapng(
    data: Bytes, at: Int, end: Int, limit: Int, interfaces: Ints, state: Ints, notes: Ints, rows: Ints
) -> tuple[Int, Int, Int]:
    """Blocks from data[at:end] into rows, as `walk_pcap`. Interface descriptions and secrets also leave a note row
    (block type | big-endian << 40, position, size, interface row) for the caller."""
    n = 0
    capacity = rows.shape[0]
    why = MORE
    while end - at >= 12:
        if n == capacity:
            why = FULL
            break
        big = state[BIG] == 1
        kind = u32(data, at, big)
        if kind == 0x0A0D0D0A:
            magic = u32(data, at + 8, True)
            if magic != 0x1A2B3C4D and magic != 0x4D3C2B1A:
                why = DAMAGED
                break
            big = magic == 0x1A2B3C4D
        size = u32(data, at + 4, big)
        if size < 12 or size & 3 or size > limit:
            why = DAMAGED
            break
        if size > end - at:
            break
        if u32(data, at + size - 4, big) != size:
            why = DAMAGED
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
            state[BIG] = 1 if big else 0
            state[SECTION] = state[INTERFACES]
        elif kind == 1 and size >= 20:
            if state[INTERFACES] < interfaces.shape[0]:
                describe(data, at, size, big, interfaces[state[INTERFACES]])
                if state[NOTES] < notes.shape[0]:
                    notes[state[NOTES], 0] = kind | (np.int64(1) << 40 if big else 0)
                    notes[state[NOTES], 1] = at
                    notes[state[NOTES], 2] = size
                    notes[state[NOTES], 3] = state[INTERFACES]
                    state[NOTES] += 1
                state[INTERFACES] += 1
            else:
                state[LOST_NOTES] += 1
        elif kind == 5 and size >= 24:
            row = u32(data, at + 8, big) + state[SECTION]
            if row < state[INTERFACES]:
                count_drops(data, at, size, big, interfaces[row])
        elif kind == 10 and size >= 20:
            if state[NOTES] < notes.shape[0]:
                notes[state[NOTES], 0] = kind | (np.int64(1) << 40 if big else 0)
                notes[state[NOTES], 1] = at
                notes[state[NOTES], 2] = size
                notes[state[NOTES], 3] = u32(data, at + 8, big) << 32 | u32(data, at + 12, big)
                state[NOTES] += 1
            else:
                state[LOST_NOTES] += 1
        else:
            state[SKIPPED] += 1
            if kind == 9 or kind & 0xBFFFFFFF == 0xBAD:  # journal entries and custom blocks: Wireshark numbers them
                state[NUMBERED] += 1
        if captured >= 0:
            state[COUNT] += 1
            state[NUMBERED] += 1
            row = interface + state[SECTION]
            link: Int = np.int64(UNKNOWN_LINK)
            if row < state[INTERFACES]:
                link = interfaces[row, LINK_TYPE]
                interfaces[row, PACKETS] += 1
                if kind != 3:
                    time = nanoseconds(u32(data, at + 12, big), u32(data, at + 16, big), interfaces[row])
                elif 0 < interfaces[row, SNAP] < captured:
                    captured = interfaces[row, SNAP]
                if kind == 2 and u16(data, at + 10, big) != 0xFFFF:
                    interfaces[row, DROPPED] = max(interfaces[row, DROPPED], 0) + u16(data, at + 10, big)
            else:
                state[UNKNOWN_INTERFACE] += 1
            if captured > at + size - 4 - body:
                captured = at + size - 4 - body
                state[OVER] += 1
            elif captured > original:
                state[OVER] += 1
            elif captured < original:
                state[SNAPPED] += 1
            original = max(original, captured)
            if time >= 0:
                note_time(state, time)
            else:
                state[UNTIMED] += 1
                time = state[LAST]
            state[ORIGINAL_BYTES] += original
            state[CAPTURED_BYTES] += captured
            rows[n, TIME] = time
            rows[n, AT] = body
            rows[n, CAPTURED] = captured
            rows[n, ORIGINAL] = original
            rows[n, LINK] = link | interface << 16
            rows[n, NUMBER] = state[NUMBERED]
            n += 1
        at += size
    return n, at, why


@kernel
def seek_pcap(
    data: Bytes, at: Int, end: Int, big: bool, header: Int, fractions: Int, last: Int, final: bool
) -> tuple[Int, Int]:
    """The next place in data[at:end] where CHAIN plausible records follow one another.

    Plausible: at most SEEK_CAPTURED bytes, not more than the original length, a fraction of a second below
    `fractions`, and within a day of `last` (seconds; 0: any). Each byte is looked at a bounded number of times.
    `final`: no bytes follow `end`, where a chain that ends exactly, or has two whole records, is enough.
    """
    while end - at >= header:
        o = at
        links = 0
        while end - o >= header and links < CHAIN:
            captured = u32(data, o + 8, big)
            original = u32(data, o + 12, big)
            seconds = u32(data, o, big)
            if captured == 0 or captured > SEEK_CAPTURED or original < captured or original > 2 * SEEK_CAPTURED:
                break
            if u32(data, o + 4, big) >= fractions or (last > 0 and abs(seconds - last) > DAY):
                break
            o += header + captured
            links += 1
        if links == CHAIN:
            return at, FOUND
        if links > 0 and end - o < header:  # ran out of bytes, not of plausibility
            if not final:
                return at, UNDECIDED
            if o == end or links > 2:
                return at, FOUND
        at += 1
    return at, NOTHING


@kernel
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
                        return at, UNDECIDED
                elif u32(data, at + size - 4, order) == size:
                    return at, FOUND
        at += 1
    return at, NOTHING


@kernel
def scatter(source: Bytes, at: Ints, length: Ints, out: Bytes, place: Ints) -> None:
    """Copy source[at[i]:at[i]+length[i]] to out[place[i]:]; rows that do not fit either array are left out."""
    for i in range(at.size):
        if at[i] < 0 or place[i] < 0 or length[i] > source.size - at[i] or length[i] > out.size - place[i]:
            continue
        o = np.uint64(at[i])
        w = np.uint64(place[i])
        for q in range(np.uint64(max(length[i], 0))):
            out[w + q] = source[o + q]

"""Packet rows and file state, the kernels that walk pcap records into them, and finding the next record after damage.

A packet row is int64[6]: time (ns since the epoch), position of the packet's first byte in the window's data, captured
bytes, original bytes (never less than captured). Then link type | interface within the section << 16, and the number in
the file (1-based, as Wireshark counts).

Rules. pcap: draft-ietf-opsawg-pcap; pcapng: draft-ietf-opsawg-pcapng. A record is believed when its length is at most
`limit` bytes (pcapng: and its two lengths agree). Anything else is damage: the walk stops there and says so, and the
seek kernels look for the next place where records follow one another. Kernels never raise on data; every read is
checked against `end` first.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kdissect.kernels.kernel import kernel, part
from kdissect.kernels.memory import be32

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
LINK_TYPE, SNAP, RULE, FACTOR, OFFSET, PACKETS, RECEIVED, DROPPED, OS_DROPPED = range(9)
INTERFACE_SIZE = 10

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


@part
def u16(b: Bytes, o: Int, big: bool) -> Int:
    """Two bytes in the given order; the caller has checked that they are there."""
    i = np.uint64(o)
    if big:
        return (np.int64(b[i]) << 8) | np.int64(b[i + np.uint64(1)])
    return (np.int64(b[i + np.uint64(1)]) << 8) | np.int64(b[i])


@kernel("const u1[:] i8 b1 -> i8")
def u32(b: Bytes, o: Int, big: bool) -> Int:
    """Four bytes in the given order; the caller has checked that they are there."""
    w = be32(b, o)
    return w if big else ((w & 0xFF) << 24) | ((w & 0xFF00) << 8) | ((w >> 8) & 0xFF00) | (w >> 24)


@part
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


@kernel("const u1[:] i8 i8 b1 i8 i8 i8 i8[:,:] i8[:] i8[:,:] -> i8 i8 i8")
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


@kernel("const u1[:] i8 i8 b1 i8 i8 i8 b1 -> i8 i8")
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


@kernel("const u1[:] i8[:] i8[:] u1[:] i8[:]")
def scatter(source: Bytes, at: Ints, length: Ints, out: Bytes, place: Ints) -> None:
    """Copy source[at[i]:at[i]+length[i]] to out[place[i]:]; rows that do not fit either array are left out."""
    for i in range(at.size):
        if at[i] < 0 or place[i] < 0 or length[i] > source.size - at[i] or length[i] > out.size - place[i]:
            continue
        o = np.uint64(at[i])
        w = np.uint64(place[i])
        for q in range(np.uint64(max(length[i], 0))):
            out[w + q] = source[o + q]

"""Packet rows and file state, the kernels that walk pcap records into them, and finding the next record after damage.

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
from kdissect.kernels.structs import offsets, struct, view, width


@struct
class Packet:
    """A packet row."""

    time: int
    """ns since the epoch."""
    at: int
    """Position of its first byte in the window's data."""
    captured: int
    """Bytes captured."""
    original: int
    """Bytes on the wire, never less than captured."""
    link: int
    """Link type | interface within the section << 16."""
    number: int
    """Its number in the file, as Wireshark counts, from 1 on."""


@struct
class File:
    """The state of a file, which the walk keeps up."""

    count: int
    """Packets so far."""
    last: int
    """Time of the last packet that had one."""
    first: int
    """Earliest time."""
    latest: int
    """Latest time."""
    original_bytes: int
    """Bytes on the wire of all packets."""
    captured_bytes: int
    """Bytes captured of them."""
    snapped: int
    """Packets of which fewer bytes were captured than were on the wire."""
    over: int
    """Packets of which more were, or with a length beyond their block."""
    backwards: int
    """Packets earlier than the one before."""
    steps: int
    """Those that are earlier by more than CLOCK_STEP."""
    untimed: int
    """Packets that carry no time."""
    skipped: int
    """pcapng blocks of no interest."""
    big: int
    """1: the section is big-endian."""
    section: int
    """Row of the section's first interface."""
    interfaces: int
    """Rows of interfaces in use."""
    notes: int
    """Rows of notes in use, since the caller emptied them."""
    timed: int
    """Packets that carried a time."""
    unknown_interface: int
    """Packets that name an interface that was not described."""
    lost_notes: int
    """Interfaces and notes that found no room."""
    numbered: int
    """Packets and other blocks that Wireshark gives a frame number."""


@struct
class Interface:
    """An interface that packets were captured at."""

    link_type: int
    """Its link type."""
    snap: int
    """Bytes captured of a packet at most, 0 no limit."""
    rule: int
    """How its ticks become nanoseconds (`kdissect.capture.pcapng`)."""
    factor: int
    """By how much, or by which power of two."""
    offset: int
    """Seconds to add."""
    packets: int
    """Packets so far."""
    received: int
    """Packets that it received as it says itself, -1 unknown."""
    dropped: int
    """Packets that it dropped, likewise."""
    os_dropped: int
    """Packets that its system dropped, likewise."""


@struct
class Note:
    """A pcapng block that the caller reads: an interface's description, secrets, names."""

    kind: int
    """Its type, in 32 bits; 1 in bit 40: it is big-endian."""
    at: int
    """Position of the block."""
    size: int
    """Its bytes."""
    value: int
    """The interface's row; of secrets their type << 32 | their size."""


packet_at, file_at, interface_at, note_at = view(Packet), view(File), view(Interface), view(Note)
PACKET, FILE, INTERFACE = offsets(Packet), offsets(File), offsets(Interface)
"""The columns of such rows."""
PACKET_COLUMNS, STATE_SIZE = width(Packet), width(File)
INTERFACE_SIZE, NOTE_SIZE = width(Interface), width(Note)

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
def note_time(file: File, time: Int) -> None:
    """Count a packet's time into the file's state."""
    if file.timed == 0:
        file.first = time
        file.latest = time
    else:
        if time < file.last:
            file.backwards += 1
            if file.last - time > CLOCK_STEP:
                file.steps += 1
        if time < file.first:
            file.first = time
        if time > file.latest:
            file.latest = time
    file.last = time
    file.timed += 1


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
    file = file_at(state, 0)
    link = interface_at(interfaces, 0).link_type
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
        note_time(file, time)
        file.count += 1
        file.numbered += 1
        if captured < original:
            file.snapped += 1
        elif captured > original:
            file.over += 1
            original = captured
        file.original_bytes += original
        file.captured_bytes += captured
        packet = packet_at(rows, n)
        packet.time, packet.at, packet.captured, packet.original = time, at + header, captured, original
        packet.link, packet.number = link, file.numbered
        n += 1
        at += header + captured
    interface_at(interfaces, 0).packets = file.count
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

"""Kernels that hide the content of packets below and outside of TCP: addresses, payloads, everything that is not TCP.

Addresses (IPv4, IPv6, MAC) become stand-ins by order of appearance, the same one for the same address everywhere:
198.18.0.0/15 (RFC 2544) and then 240.0.0.0/4, 2001:db8::/32 (RFC 3849), 02:00:00:00:00:00. Addresses that are to be
kept are in the table from the start.

Checksums: IPv4 headers are summed again (RFC 791); UDP around a tunnel gets 0, none (RFC 768, RFC 6935); TCP is summed
when its bytes are final.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kdissect.capture.pcap import Bytes, Int, Ints, packet_at
from kdissect.kernels.kernel import kernel, part
from kdissect.kernels.keyed_hash import SECRET, scramble, slot
from kdissect.kernels.memory import be16, be32
from kdissect.kernels.structs import struct, view, width
from kdissect.net import headers as hd
from kdissect.net.headers import ip_header, is_tunnel, link_layer, under_ethertype
from kdissect.net.tunnels import MAX_LAYERS, under_gre, under_mpls, under_ppp, under_udp

IPV4, IPV6, MAC = range(3)
"""Kinds of addresses."""
KIND_BITS = 2
ONE = 1 << KIND_BITS
USED = 3
KEY = 4
STATE = KEY + SECRET
"""state[USED]: how many rows of `addresses` are used; state[kind]: how many addresses of a kind have a stand-in;
state[KEY:]: the secret of the slots' hash. So many words are the state."""
EXPERIMENT = 0x88B5
"""IEEE 802's local experimental ethertype: what blanked packets say they carry."""
NO_OPERATION = 1
"""A TCP option of one byte that says nothing (RFC 9293, 3.2)."""
BENCHMARK = 198 << 24 | 18 << 16
BENCHMARK_SIZE = (1 << 17) - 2
RESERVED = 240 << 24
DOCUMENTATION = 0x20010DB8 << 32
PACKET_ADDRESSES = 4 * (MAX_LAYERS + 1)
"""Addresses that a packet has at most: two MAC and two IP addresses a layer."""
Slots = NDArray[np.int32]


@struct
class Address:
    """A known address."""

    code: int
    """Its kind, and above KIND_BITS the number of its stand-in, from 1 on; 0: the address stays."""
    high: int
    """The address in two words."""
    low: int
    """See there."""


address_at = view(Address)
ADDRESS_COLUMNS = width(Address)


@part
def first_slot(kind: Int, high: Int, low: Int, slots: Slots, state: Ints) -> Int:
    """Where the search for an address begins among the slots, a power of two of them."""
    total = scramble(high, state[KEY]) + scramble(low, state[KEY + 1]) + scramble(kind, state[KEY + 2])
    return slot(total, state[KEY + 5], slots.size - 1)


@kernel("i8 i8 i8 i4[:] i8[:,:] i8[:] -> i8")
def row_of(kind: Int, high: Int, low: Int, slots: Slots, addresses: Ints, state: Ints) -> Int:
    """The row of `addresses` of an address, a new one when it is not known; -1 when there is no room for a new one.

    `slots` (open addressing) has rows of `addresses`, -1 for none.
    """
    mask = slots.size - 1
    h = first_slot(kind, high, low, slots, state)
    while slots[h] != -1:
        row = np.int64(slots[h])
        known = address_at(addresses, row)
        if known.low == low and known.high == high and known.code & (ONE - 1) == kind:
            return row
        h = (h + 1) & mask
    row = state[USED]
    if row >= addresses.shape[0]:
        return np.int64(-1)
    state[USED] += 1
    state[kind] += 1
    slots[h] = row
    new = address_at(addresses, row)
    new.code, new.high, new.low = state[kind] << KIND_BITS | kind, high, low
    return row


@part
def stand_in(kind: Int, high: Int, low: Int, slots: Slots, addresses: Ints, state: Ints) -> Any:
    """The stand-in for an address, as two words; zeros where there is no room for it."""
    row = row_of(kind, high, low, slots, addresses, state)
    if row < 0:
        return np.int64(0), np.int64(0)
    n = address_at(addresses, row).code >> KIND_BITS
    if n == 0:
        return high, low
    if kind == IPV4:
        return np.int64(0), BENCHMARK + n if n <= BENCHMARK_SIZE else RESERVED + n
    if kind == MAC:
        return np.int64(0), (2 << 40) | n
    return np.int64(DOCUMENTATION), n


@part
def put_be(b: Bytes, o: Int, value: Int, size: Int) -> None:
    """`size` bytes, big-endian; the caller has checked that they are there."""
    for k in range(size):
        b[o + k] = (value >> (8 * (size - 1 - k))) & 0xFF


@part
def rename_mac(b: Bytes, o: Int, slots: Slots, addresses: Ints, state: Ints) -> None:
    """Replace the MAC address at `o`; group addresses say nothing of anybody."""
    low = be16(b, o) << 32 | be32(b, o + 2)
    if low == 0 or b[o] & 1:
        return
    _, new = stand_in(MAC, np.int64(0), low, slots, addresses, state)
    put_be(b, o, new, 6)


@part
def rename_ip(b: Bytes, o: Int, version: Int, slots: Slots, addresses: Ints, state: Ints) -> None:
    """Replace the IP address at `o`."""
    if version == 4:
        _, low = stand_in(IPV4, np.int64(0), be32(b, o), slots, addresses, state)
        put_be(b, o, low, 4)
        return
    high, low = be32(b, o) << 32 | be32(b, o + 4), be32(b, o + 8) << 32 | be32(b, o + 12)
    high, low = stand_in(IPV6, high, low, slots, addresses, state)
    put_be(b, o, high, 8)
    put_be(b, o + 8, low, 8)


@part
def folded(b: Bytes, o: Int, e: Int, total: Int) -> Int:
    """The Internet checksum's sum (RFC 1071) of b[o:e] on top of `total`, folded to 16 bits."""
    while o + 1 < e:
        total += be16(b, o)
        o += 2
    if o < e:
        total += np.int64(b[o]) << 8
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


@part
def rename_header(b: Bytes, p: Int, e: Int, slots: Slots, addresses: Ints, state: Ints) -> None:
    """Replace the addresses of the IP header at `p`, and fix its checksum. Options are wiped: routes are addresses."""
    if b[p] >> 4 == 4:
        length = (np.int64(b[p]) & 15) * 4
        rename_ip(b, p + 12, 4, slots, addresses, state)
        rename_ip(b, p + 16, 4, slots, addresses, state)
        for k in range(p + 20, min(p + length, e)):
            b[k] = 0
        put_be(b, p + 10, np.int64(0), 2)
        if p + length <= e:
            put_be(b, p + 10, folded(b, p, p + length, np.int64(0)) ^ 0xFFFF, 2)
    else:
        rename_ip(b, p + 8, 6, slots, addresses, state)
        rename_ip(b, p + 24, 6, slots, addresses, state)


@part
def blank_options(b: Bytes, p: Int, e: Int) -> None:
    """No-operations for the options of the TCP header at `p` but those that say how a connection works (RFC 9293, 7323,
    2018): others are cookies, signatures, experiments, anything."""
    if e - p < 20:
        return
    end = min(p + (np.int64(b[p + 12]) >> 4) * 4, e)
    o = p + 20
    while o < end:
        kind = np.int64(b[o])
        size = np.int64(1)
        if kind > 1:
            size = np.int64(b[o + 1]) if o + 1 < end else np.int64(0)
            if size < 2 or size > end - o:
                break
            kept = (kind == 2 and size == 4) or (kind == 3 and size == 3) or (kind == 4 and size == 2)
            if not (kept or (kind == 5 and size % 8 == 2 and size <= 34) or (kind == 8 and size == 10)):
                for k in range(o, o + size):
                    b[k] = NO_OPERATION
        elif kind == 0:
            break
        o += size
    for k in range(o, end):  # behind the end of the options, or what is none
        b[k] = NO_OPERATION


@part
def rename(b: Bytes, start: Int, e: Int, link: Int, slots: Slots, addresses: Ints, state: Ints) -> Any:
    """Replace every address of a packet, through tunnels as `kdissect.net.tunnels.unwrap` goes; whether that led to
    TCP."""
    if link == 1 and e - start >= 14:
        rename_mac(b, start, slots, addresses, state)
        rename_mac(b, start + 6, slots, addresses, state)
    elif link == 113 and e - start >= 16:
        rename_mac(b, start + 6, slots, addresses, state)
        put_be(b, start + 12, np.int64(0), 2)
    elif link == 276 and e - start >= 20:
        rename_mac(b, start + 12, slots, addresses, state)
        put_be(b, start + 18, np.int64(0), 2)
    w = e
    tcp = False
    layer, p, kind, view = link_layer(b, start, e, link, np.int64(0))
    for _ in range(MAX_LAYERS):
        if layer == hd.ETHERNET:
            if e - p >= 14:
                rename_mac(b, p, slots, addresses, state)
                rename_mac(b, p + 6, slots, addresses, state)
            layer, p, kind, view = link_layer(b, p, e, 1, view)
        if layer == hd.ETHERTYPE:
            layer, p, kind, view = under_ethertype(b, p, e, kind, view)
        if layer == hd.TUNNEL:
            if kind == 0x6558:
                layer = hd.ETHERNET
            elif kind != 0x8864:
                layer = hd.MPLS
            elif e - p < 6:
                layer = hd.SHORT
            else:
                p += 6
                layer = hd.PPP
        elif layer == hd.MPLS:
            layer, p, kind, view = under_mpls(b, p, e, view)
        elif layer == hd.PPP:
            layer, p, kind, view = under_ppp(b, p, e, view)
        elif layer == hd.IP:
            header = p
            protocol, p, e, w = ip_header(b, p, e, w)
            if protocol < 0 and protocol != hd.PIECE:
                break
            tcp = protocol == 6
            if tcp:
                blank_options(b, p, e)
            rename_header(b, header, e, slots, addresses, state)
            layer = hd.NO_IP
            if protocol == 17:
                udp = p
                layer, p, kind, view = under_udp(b, p, e, view)
                if layer >= 0 and layer != hd.NOTHING:
                    put_be(b, udp + 6, np.int64(0), 2)
            elif protocol == 47:
                layer, p, kind, view = under_gre(b, p, e, view)
            elif is_tunnel(protocol):
                layer = hd.IP
                if protocol == 137:
                    layer = hd.MPLS
                elif protocol == 97:
                    p += 2
                    layer = hd.ETHERNET
        if layer < 0 or layer == hd.NOTHING:
            break
    return tcp


@part
def blank(b: Bytes, start: Int, e: Int, link: Int) -> None:
    """Nothing of a packet stays but its size and time."""
    for k in range(start, e):
        b[k] = 0
    if link == 1 and e - start >= 14:
        put_be(b, start + 12, np.int64(EXPERIMENT), 2)
    elif link == 113 and e - start >= 16:
        put_be(b, start + 14, np.int64(EXPERIMENT), 2)
    elif link == 276 and e - start >= 20:
        put_be(b, start, np.int64(EXPERIMENT), 2)


@kernel("u1[:] i8[:,:] i8[:] i8[:] i8 i4[:] i8[:,:] i8[:] -> i8")
def hide(
    out: Bytes, packets: Ints, place: Ints, payload: Ints, first: Int, slots: Slots, addresses: Ints, state: Ints
) -> Int:
    """Hide packets that were copied to `out` at `place`, from row `first` on; the row it stopped at, before a packet
    for whose addresses `addresses` may lack room.

    `packets` are rows of `kdissect.capture.pcap`; `payload[i]`: bytes of the packet before its TCP payload, -1 where
    it is not TCP, or becomes so where no way leads to its addresses.
    """
    for i in range(first, packets.shape[0]):
        if addresses.shape[0] - state[USED] < PACKET_ADDRESSES:
            return i
        start = place[i]
        packet = packet_at(packets, i)
        e = start + packet.captured
        link = packet.link & 0xFFFF
        if payload[i] < 0:
            blank(out, start, e, link)
            continue
        for k in range(start + payload[i], e):
            out[k] = 0
        if not rename(out, start, e, link, slots, addresses, state):
            blank(out, start, e, link)
            payload[i] = -1
    return packets.shape[0]


@kernel("u1[:] i8[:,:] i8")
def sum_segments(b: Bytes, packets: Ints, delta: Int) -> None:
    """TCP checksums of packet rows (taken out of their tunnels), whose bytes are in b[AT + delta:].

    A packet that was cut gets 0: what is not there cannot be summed, and the old sum would tell of what was replaced.
    """
    for i in range(packets.shape[0]):
        packet = packet_at(packets, i)
        p = packet.at + delta
        e = p + packet.captured
        w = p + packet.original
        layer, p, kind, view = link_layer(b, p, e, packet.link & 0xFFFF, np.int64(0))
        if layer == hd.ETHERTYPE:
            layer, p, kind, view = under_ethertype(b, p, e, kind, view)
        if layer != hd.IP:
            continue
        h = p
        protocol, p, e, w = ip_header(b, p, e, w)
        if protocol != 6 or e - p < 18:
            continue
        put_be(b, p + 16, np.int64(0), 2)
        if e != w:
            continue
        total = np.int64(6) + (e - p)
        first, last = (h + 12, h + 20) if b[h] >> 4 == 4 else (h + 8, h + 40)
        total = folded(b, first, last, total)
        put_be(b, p + 16, folded(b, p, e, total) ^ 0xFFFF, 2)


@kernel("i8[:,:] i8 i4[:] i8[:]")
def find_slots(addresses: Ints, count: Int, slots: Slots, state: Ints) -> None:
    """Enter the first `count` rows of `addresses` into empty (-1) slots."""
    mask = slots.size - 1
    for row in range(count):
        known = address_at(addresses, row)
        h = first_slot(known.code & (ONE - 1), known.high, known.low, slots, state)
        while slots[h] != -1:
            h = (h + 1) & mask
        slots[h] = row

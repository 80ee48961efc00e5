"""Headers below TCP that every kernel of this layer reads: link layers, VLAN tags, IPv4 and IPv6.

All functions take a cursor `p` and the end `e` of what was captured, and check before they read. They answer with a
layer (it stands at the new cursor) or one of the negative verdicts. A *view* is the fingerprint of where a packet was
seen (`kdissect.net.segment.VIEW`).

Rules: libpcap's link types (www.tcpdump.org/linktypes.html), IEEE 802.1Q and 802.1ad, RFC 791, RFC 8200.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kdissect.kernels.kernel import kernel, part
from kdissect.kernels.memory import be16, be32

Int = Any
"""An integer: Python's where Python calls, int64 inside kernels."""
Bytes = NDArray[np.uint8]

# What stands at the cursor.
ETHERNET, ETHERTYPE, IP, MPLS, PPP, TUNNEL, NOTHING = range(7)
# What went wrong instead.
UNKNOWN, SHORT, BROKEN, NO_IP, PIECE = -1, -2, -3, -4, -5
"""A layer we do not know; cut off; contradicts itself; not IP; an IP fragment."""

MAX_TAGS = 8
"""VLAN tags of one packet; two are usual in provider networks."""
MAX_EXTENSIONS = 16
"""IPv6 extension headers of one packet; real ones have three at most."""
MAX_ATTRIBUTES = 32
"""Attributes of an NFLOG header; the kernel knows twenty."""
NFLOG_PAYLOAD = 9
"""The attribute with the packet (NFULA_PAYLOAD)."""
VIEW_MASK = (1 << 46) - 1


@kernel("i8 i8 i8 -> i8")
def seen_through(view: Int, layer: Int, name: Int) -> Int:
    """The view of a packet after one more VLAN or tunnel; never 0."""
    return (((view * 31 + layer) * 0x9E3779B1 + name * 0x85EBCA77 + 1) & VIEW_MASK) | (1 << 46)


@part
def under_nflog(b: Bytes, p: Int, e: Int, view: Int) -> tuple[Int, Int, Int, Int]:
    """The IP packet that Linux's netfilter logged, as `link_layer`: attributes in the byte order of the machine that
    captured, all with small numbers; one holds the packet (linux/netfilter/nfnetlink_log.h)."""
    if e - p < 4:
        return SHORT, p, 0, view
    if b[p + 1] != 0:
        return UNKNOWN, p, 0, view
    p += 4
    for _ in range(MAX_ATTRIBUTES):
        if e - p < 4:
            return SHORT, p, 0, view
        size = np.int64(b[p]) | np.int64(b[p + 1]) << 8
        kind = (np.int64(b[p + 2]) | np.int64(b[p + 3]) << 8) & 0x3FFF  # without netlink's two flags
        if kind > 0xFF:
            size = be16(b, p)
            kind = be16(b, p + 2) & 0x3FFF
        if size < 4:
            return BROKEN, p, 0, view
        if kind == NFLOG_PAYLOAD:
            return IP, p + 4, 0, view
        p += (size + 3) & ~3
    return NO_IP, p, 0, view


@part
def link_layer(b: Bytes, p: Int, e: Int, link: Int, view: Int) -> tuple[Int, Int, Int, Int]:
    """The layer under a link-layer header: (layer, cursor, ethertype, view)."""
    if link == 1:
        if e - p < 14:
            return SHORT, p, 0, view
        return ETHERTYPE, p + 14, be16(b, p + 12), view
    if link == 101 or link == 12 or link == 14 or link == 228 or link == 229:
        return IP, p, 0, view
    if link == 0 or link == 108:
        if e - p < 4:
            return SHORT, p, 0, view
        family = be32(b, p)
        if family > 0xFFFF:  # written in the other byte order; no family is that large
            family = (family >> 24) | ((family >> 8) & 0xFF00)
        # AF_INET is 2 everywhere, AF_INET6 is 24, 28, 30 or 10 depending on the system
        if family == 2 or family == 24 or family == 28 or family == 30 or family == 10:
            return IP, p + 4, 0, view
        return NO_IP, p, 0, view
    if link == 113:
        if e - p < 16:
            return SHORT, p, 0, view
        if be16(b, p) == 4:
            view = seen_through(view, 1, 4)  # sent by this host
        return ETHERTYPE, p + 16, be16(b, p + 14), view
    if link == 276:
        if e - p < 20:
            return SHORT, p, 0, view
        # interface index and packet type
        return ETHERTYPE, p + 20, be16(b, p), seen_through(view, 2, be32(b, p + 4) << 8 | np.int64(b[p + 10]))
    if link == 9:
        return PPP, p, 0, view
    if link == 239:
        return under_nflog(b, p, e, view)
    return UNKNOWN, p, 0, view


@part
def under_ethertype(b: Bytes, p: Int, e: Int, kind: Int, view: Int) -> tuple[Int, Int, Int, Int]:
    """The layer that an ethertype names, after any VLAN tags and SNAP headers, as `link_layer`; TUNNEL for more than
    that."""
    for _ in range(MAX_TAGS):
        if kind == 0x0800 or kind == 0x86DD:
            return IP, p, kind, view
        if kind == 0x8100 or kind == 0x88A8 or kind == 0x9100:
            if e - p < 4:
                return SHORT, p, kind, view
            view = seen_through(view, 8, be16(b, p) & 0xFFF)
            kind = be16(b, p + 2)
            p += 4
        elif kind == 0x8847 or kind == 0x8848 or kind == 0x8864 or kind == 0x6558 or kind == 0x894F:
            return TUNNEL, p, kind, view
        elif kind == 0x893F:  # 802.1BR: scapy may know
            return UNKNOWN, p, kind, view
        elif kind < 0x0600 and e - p >= 8 and be16(b, p) == 0xAAAA and b[p + 2] == 3 and be16(b, p + 6) >= 0x0600:
            kind = be16(b, p + 6)  # a length, and LLC with SNAP
            p += 8
        else:
            break
    return NO_IP, p, kind, view


@part
def ip_header(b: Bytes, p: Int, e: Int, w: Int) -> tuple[Int, Int, Int, Int]:
    """An IP header and its extensions: (protocol or a negative verdict, cursor behind it, captured end, end on the
    wire).

    The total length says where the packet ends, so padding and frame check sequences fall off. A total length of 0
    (segmentation offload, BIG TCP) leaves the ends as they are. PIECE leaves the cursor behind an IPv4 header, at an
    IPv6 fragment header.
    """
    if e - p < 20:
        return SHORT, p, e, w
    version = b[p] >> 4
    if version == 4:
        length = (np.int64(b[p]) & 15) * 4
        total = be16(b, p + 2)
        if length < 20 or (total != 0 and total < length):
            return BROKEN, p, e, w
        if total != 0:
            w = p + total
            e = min(e, w)
        if be16(b, p + 6) & 0x3FFF:
            return PIECE, p + length, e, w
        return np.int64(b[p + 9]), p + length, e, w
    if version != 6:
        return NO_IP, p, e, w
    if e - p < 40:
        return SHORT, p, e, w
    total = be16(b, p + 4)
    if total != 0:
        w = p + 40 + total
        e = min(e, w)
    protocol = np.int64(b[p + 6])
    p += 40
    for _ in range(MAX_EXTENSIONS):
        # hop-by-hop, routing, destination, mobility, HIP, shim6; fragment, authentication
        plain = (
            protocol == 0 or protocol == 43 or protocol == 60 or protocol == 135 or protocol == 139 or protocol == 140
        )
        if not plain and protocol != 44 and protocol != 51:
            return protocol, p, e, w
        if e - p < 8:
            return SHORT, p, e, w
        size = np.int64(8)
        if plain:
            size = (np.int64(b[p + 1]) + 1) * 8
        elif protocol == 51:
            size = (np.int64(b[p + 1]) + 2) * 4
        elif be16(b, p + 2) & 0xFFF9:
            return PIECE, p, e, w
        protocol = np.int64(b[p])
        p += size
    return BROKEN, p, e, w


@part
def tunnel_port(b: Bytes, p: Int, e: Int) -> Any:
    """Whether a UDP header's destination port is a tunnel's: VXLAN, VXLAN-GPE, Geneve, MPLS in UDP."""
    if e - p < 8:
        return False
    port = be16(b, p + 2)
    return port == 4789 or port == 8472 or port == 6081 or port == 4790 or port == 6635


@part
def is_tunnel(protocol: Int) -> Any:
    """Whether an IP protocol carries packets: GRE, IP in IP, MPLS in IP, EtherIP."""
    return protocol == 47 or protocol == 4 or protocol == 41 or protocol == 94 or protocol == 137 or protocol == 97

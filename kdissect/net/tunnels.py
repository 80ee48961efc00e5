"""The kernel that takes packets out of tunnels. It is compiled when the first tunnel is met.

A packet row that leads through a tunnel to IP is rewritten to the innermost IP packet (link type RAW). Its view
identifies the tunnels that it came through; every other row stays as it is.

Rules: RFC 2784, 2890 (GRE), 2637 (PPTP), 2003, 4213 (IP in IP), 7348 (VXLAN), 8926 (Geneve), 3032, 4385, 7510 (MPLS),
2516 (PPPoE), 1661 (PPP), 3378 (EtherIP), 8300 (NSH), draft-foschiano-erspan, draft-ietf-nvo3-vxlan-gpe.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kdissect.capture.pcap import packet_at
from kdissect.kernels.kernel import kernel, part
from kdissect.kernels.memory import be16, be32
from kdissect.net import headers as h
from kdissect.net.headers import Bytes, Int, ip_header, is_tunnel, link_layer, seen_through, under_ethertype

IP_LINK = 101
"""LINKTYPE_RAW: the packet starts with its IP header."""
MAX_LAYERS = 24
"""Layers of one packet: TCP in two nested tunnels with VLAN tags and MPLS takes 14; loops end here."""


@part
def under_gre(b: Bytes, p: Int, e: Int, view: Int) -> tuple[Int, Int, Int, Int]:
    """The layer under a GRE header, as `link_layer`."""
    if e - p < 4:
        return h.SHORT, p, 0, view
    flags = be16(b, p)
    kind = be16(b, p + 2)
    o = p + 4
    key = np.int64(0)
    if flags & 0x4000 or flags & 7 > 1:  # source routes (RFC 1701) are history
        return h.NOTHING, p, 0, view
    if flags & 0x8000:
        o += 4
    if flags & 0x2000:
        if e - o < 4:
            return h.SHORT, p, 0, view
        key = be32(b, o)
        o += 4
    if flags & 0x1000:
        o += 4
    if flags & 7 == 1:
        if flags & 0x80:
            o += 4
        return h.PPP, o, 0, seen_through(view, 3, key)
    if kind == 0x88BE:  # ERSPAN: type I has no sequence number and no header, type II eight bytes
        if flags & 0x1000 == 0:
            return h.ETHERNET, o, 0, seen_through(view, 4, 0)
        if e - o < 8:
            return h.SHORT, p, 0, view
        return h.ETHERNET, o + 8, 0, seen_through(view, 4, be16(b, o + 2) & 0x3FF)
    if kind == 0x22EB:  # ERSPAN type III: twelve bytes, eight more with the O bit
        if e - o < 12:
            return h.SHORT, p, 0, view
        more = 8 if b[o + 11] & 1 else 0
        return h.ETHERNET, o + 12 + more, 0, seen_through(view, 4, be16(b, o + 2) & 0x3FF)
    return h.ETHERTYPE, o, kind, seen_through(view, 3, key)


@part
def under_udp(b: Bytes, p: Int, e: Int, view: Int) -> tuple[Int, Int, Int, Int]:
    """The layer under a UDP header to a tunnel's port, as `link_layer`; NOTHING where it is none."""
    if e - p < 16:
        return h.SHORT, p, 0, view
    port = be16(b, p + 2)
    o = p + 8
    name = be32(b, o + 4) >> 8
    if port == 4789 or port == 8472 or port == 4790:
        if b[o] & 0x08 == 0:  # no VXLAN network identifier: something else on this port
            return h.NOTHING, p, 0, view
        view = seen_through(view, 5, name)
        if port == 4790 and b[o + 3] == 4:  # VXLAN-GPE names what it carries
            return h.TUNNEL, o + 8, 0x894F, view
        if port == 4790 and b[o + 3] != 3:
            return (h.IP if b[o + 3] == 1 or b[o + 3] == 2 else h.NOTHING), o + 8, 0, view
        return h.ETHERNET, o + 8, 0, view
    if port == 6081:
        if b[o] >> 6 != 0:
            return h.NOTHING, p, 0, view
        return h.ETHERTYPE, o + 8 + (np.int64(b[o]) & 0x3F) * 4, be16(b, o + 2), seen_through(view, 6, name)
    if port == 6635:
        return h.MPLS, o, 0, seen_through(view, 7, 0)
    return h.NOTHING, p, 0, view


@part
def under_ppp(b: Bytes, p: Int, e: Int, view: Int) -> tuple[Int, Int, Int, Int]:
    """The layer under a PPP header, with or without address and control, its protocol in one byte or two."""
    if e - p >= 2 and be16(b, p) == 0xFF03:
        p += 2
    if e - p < 2:
        return h.SHORT, p, 0, view
    kind = np.int64(b[p])
    size = 1
    if kind & 1 == 0:
        kind = be16(b, p)
        size = 2
    if kind == 0x21 or kind == 0x57:
        return h.IP, p + size, 0, view
    if kind == 0x281:
        return h.MPLS, p + size, 0, view
    return h.NOTHING, p, 0, view


@part
def under_mpls(b: Bytes, p: Int, e: Int, view: Int) -> tuple[Int, Int, Int, Int]:
    """The layer under one MPLS label."""
    if e - p < 5:
        return h.SHORT, p, 0, view
    entry = be32(b, p)
    view = seen_through(view, 10, entry >> 12)
    p += 4
    if entry & 0x100 == 0:
        return h.MPLS, p, 0, view
    if b[p] >> 4 == 0:  # a pseudowire's control word: Ethernet follows
        return h.ETHERNET, p + 4, 0, view
    return h.IP, p, 0, view


@part
def under_nsh(b: Bytes, p: Int, e: Int, view: Int) -> tuple[Int, Int, Int, Int]:
    """The layer under a network service header, of metadata type 1 or 2, as `link_layer`."""
    if e - p < 8:
        return h.SHORT, p, 0, view
    first = be16(b, p)
    size = (first & 0x3F) * 4
    metadata = b[p + 2] & 15
    if first >> 14 != 0 or size < 8 or (metadata == 1 and size != 24) or metadata < 1 or metadata > 2:
        return h.NOTHING, p, 0, view
    below = b[p + 3]
    view = seen_through(view, 13, be32(b, p + 4))
    p += size
    if below == 1 or below == 2:
        return h.IP, p, 0, view
    if below == 3:
        return h.ETHERNET, p, 0, view
    if below == 4:
        return h.TUNNEL, p, 0x894F, view
    return (h.MPLS if below == 5 else h.NOTHING), p, 0, view


@kernel("const u1[:] i8[:,:] i8")
def unwrap(b: Bytes, packets: NDArray[np.int64], first: Int) -> None:
    """Rewrite the rows from `first` on which lead through tunnels."""
    for i in range(first, packets.shape[0]):
        packet = packet_at(packets, i)
        start = packet.at
        e = start + packet.captured
        w = start + packet.original
        view = packet.link >> 16
        layer, p, kind, view = link_layer(b, start, e, packet.link & 0xFFFF, view)
        best: Any = np.int64(-1)  # where the innermost IP packet starts, and its ends and view
        best_e = e
        best_w = w
        best_view = view
        through = layer == h.PPP
        for _ in range(MAX_LAYERS):
            if layer == h.ETHERNET:
                layer, p, kind, view = link_layer(b, p, e, 1, view)
            if layer == h.ETHERTYPE:
                layer, p, kind, view = under_ethertype(b, p, e, kind, view)
            if layer == h.TUNNEL:
                through = True
                if kind == 0x6558:
                    view = seen_through(view, 12, 1)
                    layer = h.ETHERNET
                elif kind == 0x894F:
                    layer, p, kind, view = under_nsh(b, p, e, view)
                elif kind != 0x8864:
                    layer = h.MPLS
                elif e - p < 6:
                    layer = h.SHORT
                else:
                    view = seen_through(view, 9, be16(b, p + 2))
                    p += 6
                    layer = h.PPP
            elif layer == h.MPLS:
                layer, p, kind, view = under_mpls(b, p, e, view)
            elif layer == h.PPP:
                layer, p, kind, view = under_ppp(b, p, e, view)
            elif layer == h.IP:
                best = p
                best_e = e
                best_w = w
                best_view = view
                protocol, p, e, w = ip_header(b, p, e, w)
                layer = h.NO_IP
                if protocol == 17:
                    layer, p, kind, view = under_udp(b, p, e, view)
                elif protocol == 47:
                    layer, p, kind, view = under_gre(b, p, e, view)
                elif is_tunnel(protocol):
                    view = seen_through(view, 11, protocol)
                    layer = h.IP
                    if protocol == 137:
                        layer = h.MPLS
                    elif protocol == 97:  # EtherIP: two bytes, then Ethernet
                        p += 2
                        layer = h.ETHERNET
                through = through or (layer >= 0 and layer != h.NOTHING)
            if layer < 0 or layer == h.NOTHING:
                break
        if through and best >= 0 and best <= best_e:
            packet.at, packet.captured, packet.original = best, best_e - best, best_w - best
            packet.link = IP_LINK | best_view << 16

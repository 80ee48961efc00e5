"""The kernel that takes packets apart: link layer, tunnels, IP, down to a TCP segment row.

Each packet is walked layer by layer (the constants below name the layers) until it is a TCP segment, something else that is
counted, or something for Python: an IP fragment, or a layer that only scapy knows. Lengths: the IP header's total length says
where the payload ends on the wire, so Ethernet padding and frame check sequences fall off; a total length of 0 (segmentation
offload) leaves the record's own. Every read is checked against the captured end; a packet cut inside its headers is CUT.

Rules: RFC 791, 8200 (extension headers), 9293; 2784 and 2890 (GRE), 2637 (PPTP), 7348 (VXLAN), 8926 (Geneve), 3032 (MPLS), 2516 (PPPoE),
draft-foschiano-erspan; libpcap's link types.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kdissect._kernel import kernel
from kdissect.capture.records import AT, CAPTURED, LINK, NUMBER, ORIGINAL, TIME

# Kinds of packets counted.
TCP, UDP, ICMP, OTHER_IP, NOT_IP, FRAGMENT, CUT, MALFORMED, UNDECODED, BY_SCAPY, FILTERED, REJOINED = range(12)
KINDS = (
    "tcp", "udp", "icmp", "other_ip", "not_ip", "fragment", "cut", "malformed", "undecoded", "by_scapy", "filtered", "rejoined",
)  # fmt: skip
"""`tcp` counts rows, those that scapy or rejoining led to included; `fragment`, `by_scapy`, `rejoined` count on the way there."""

# Scanner state, int64[SCAN_SIZE].
FLOWS, FREE, TOMBS, TUNNELLED = range(4)
"""Flow rows in use; free flow ids waiting; dead table entries; whether a fragmented tunnel packet was seen."""
SCAN_SIZE = 4

# Layers: what stands at the cursor.
ETHERNET, ETHERTYPE, IP, IP4, IP6, MPLS, PPP, TRANSPORT, STOP = range(9)
MAX_LAYERS = 24
"""Layers of one packet: a TCP segment in two nested tunnels with VLANs and MPLS takes 14; loops end here."""
MAX_EXTENSIONS = 16
"""IPv6 extension headers of one packet; real ones have three at most."""

# Verdict rows for Python: packet row, kind (FRAGMENT, UNDECODED), position of the IP header (FRAGMENT), view.
ODD_COLUMNS = 4

DONE, ROWS_FULL, FLOWS_FULL = 0, 1, 2

MIN64 = -(1 << 63)
MAPPED = 0xFFFF << 32
VIEW_MASK = (1 << 46) - 1


@kernel
def be16(b: NDArray[np.uint8], o: int) -> int:
    i = np.uint64(o)
    return (np.int64(b[i]) << 8) | np.int64(b[i + np.uint64(1)])


@kernel
def be32(b: NDArray[np.uint8], o: int) -> int:
    i = np.uint64(o)
    return (
        (np.int64(b[i]) << 24)
        | (np.int64(b[i + np.uint64(1)]) << 16)
        | (np.int64(b[i + np.uint64(2)]) << 8)
        | np.int64(b[i + np.uint64(3)])
    )


@kernel
def seen_through(view: int, layer: int, name: int) -> int:
    """The view of a packet after one more VLAN or tunnel; never 0."""
    return (((view * 31 + layer) * 0x9E3779B1 + name * 0x85EBCA77 + 1) & VIEW_MASK) | (1 << 46)


@kernel
def mixed(a: int, b: int, c: int, d: int, ports: int) -> int:
    """A hash of a flow's key; wraps modulo 2**64."""
    h = (a ^ (c * 31)) * 0x1E3779B97F4A7C15
    h ^= (b ^ (d << 1)) * 0x2545F4914F6CDD1D
    h ^= h >> 29
    h = (h + ports) * 0x1B873593CC9E2D51
    return h ^ (h >> 32)


@kernel
def rehash(flows: NDArray[np.int64], count: int, table: NDArray[np.int32]) -> None:
    """Fill an empty (-1) table with the flows in use."""
    mask = table.size - 1
    for f in range(count):
        if flows[f, 4] >= 0:
            h = mixed(flows[f, 0], flows[f, 1], flows[f, 2], flows[f, 3], flows[f, 4]) & mask
            while table[h] >= 0:
                h = (h + 1) & mask
            table[h] = f


@kernel
def flow_of(
    a: int, b: int, c: int, d: int, ports: int, flows: NDArray[np.int64], table: NDArray[np.int32], free: NDArray[np.int64],
    state: NDArray[np.int64],
) -> int:  # fmt: skip
    """The flow of a key in canonical order, a new one when it is not known; -1 when the tables are too full for a new one."""
    mask = table.size - 1
    h = mixed(a, b, c, d, ports) & mask
    while table[h] != -1:
        f = table[h]
        if flows[f, 4] == ports and flows[f, 3] == d and flows[f, 1] == b and flows[f, 0] == a and flows[f, 2] == c:
            return np.int64(f)
        h = (h + 1) & mask
    if (state[FLOWS] - state[FREE] + state[TOMBS]) * 2 >= table.size:
        return np.int64(-1)
    if state[FREE] > 0:
        state[FREE] -= 1
        new = free[state[FREE]]
    elif state[FLOWS] < flows.shape[0]:
        new = state[FLOWS]
        state[FLOWS] += 1
    else:
        return np.int64(-1)
    table[h] = new
    flows[new, 0] = a
    flows[new, 1] = b
    flows[new, 2] = c
    flows[new, 3] = d
    flows[new, 4] = ports
    return new


@kernel
def link_layer(b: NDArray[np.uint8], p: int, e: int, link: int, view: int) -> tuple[int, int, int, int]:
    """The layer under a link-layer header other than Ethernet: (layer or -1 when unknown, -2 when cut; cursor, ethertype, view)."""
    if link == 1:
        return ETHERNET, p, 0, view
    if link == 101 or link == 12 or link == 14 or link == 228 or link == 229:
        return IP, p, 0, view
    if link == 0 or link == 108:
        if e - p < 4:
            return -2, p, 0, view
        family = be32(b, p)
        if family > 0xFFFF:  # written in the other byte order
            family = ((family & 0xFF) << 24) | ((family & 0xFF00) << 8) | ((family >> 8) & 0xFF00) | (family >> 24)
        if family == 2 or family == 24 or family == 28 or family == 30 or family == 10:
            return IP, p + 4, 0, view
        return STOP, p, 0, view
    if link == 113:
        if e - p < 16:
            return -2, p, 0, view
        if be16(b, p) == 4:
            view = seen_through(view, 1, 4)  # sent by this host
        return ETHERTYPE, p + 16, be16(b, p + 14), view
    if link == 276:
        if e - p < 20:
            return -2, p, 0, view
        return ETHERTYPE, p + 20, be16(b, p), seen_through(view, 2, be32(b, p + 4) << 8 | np.int64(b[p + 10]))
    if link == 9:
        return PPP, p, 0, view
    return -1, p, 0, view


@kernel
def under_gre(b: NDArray[np.uint8], p: int, e: int, view: int) -> tuple[int, int, int, int]:
    """The layer under a GRE header, as `link_layer`."""
    if e - p < 4:
        return -2, p, 0, view
    flags = be16(b, p)
    kind = be16(b, p + 2)
    o = p + 4
    key = np.int64(0)
    if flags & 0x4000 or flags & 7 > 1:  # source routes (RFC 1701) are history
        return -1, p, 0, view
    if flags & 0x8000:
        o += 4
    if flags & 0x2000:
        if e - o < 4:
            return -2, p, 0, view
        key = be32(b, o)
        o += 4
    if flags & 0x1000:
        o += 4
    if flags & 7 == 1:
        if flags & 0x80:
            o += 4
        return PPP, o, 0, seen_through(view, 3, key)
    if kind == 0x88BE:  # ERSPAN: type I has no sequence number and no header, type II eight bytes
        if flags & 0x1000:
            if e - o < 8:
                return -2, p, 0, view
            view = seen_through(view, 4, be16(b, o + 2) & 0x3FF)
            o += 8
        return ETHERNET, o, 0, seen_through(view, 4, 0)
    if kind == 0x22EB:  # ERSPAN type III: twelve bytes, eight more with the O bit
        if e - o < 12:
            return -2, p, 0, view
        view = seen_through(view, 4, be16(b, o + 2) & 0x3FF)
        return ETHERNET, o + 12 + (8 if b[o + 11] & 1 else 0), 0, view
    view = seen_through(view, 3, key)
    if kind == 0x6558:
        return ETHERNET, o, 0, view
    return ETHERTYPE, o, kind, view


@kernel
def under_udp(b: NDArray[np.uint8], p: int, e: int, view: int) -> tuple[int, int, int, int]:
    """The layer under a UDP header, as `link_layer`; STOP for what is no tunnel."""
    if e - p < 8:
        return -2, p, 0, view
    port = be16(b, p + 2)
    o = p + 8
    if port == 4789 or port == 8472 or port == 4790:
        if e - o < 8:
            return -2, p, 0, view
        if b[o] & 0x08 == 0:  # no VXLAN network identifier: something else on this port
            return STOP, p, 0, view
        view = seen_through(view, 5, be32(b, o + 4) >> 8)
        if port == 4790 and b[o + 3] != 3:  # VXLAN-GPE names what it carries
            return (IP if b[o + 3] == 1 or b[o + 3] == 2 else STOP), o + 8, 0, view
        return ETHERNET, o + 8, 0, view
    if port == 6081:
        if e - o < 8:
            return -2, p, 0, view
        if b[o] >> 6 != 0:
            return STOP, p, 0, view
        kind = be16(b, o + 2)
        view = seen_through(view, 6, be32(b, o + 4) >> 8)
        o += 8 + (np.int64(b[o]) & 0x3F) * 4
        return (ETHERNET if kind == 0x6558 else ETHERTYPE), o, kind, view
    if port == 6635:
        return MPLS, o, 0, seen_through(view, 7, 0)
    return STOP, p, 0, view


@kernel
def worth_joining(b: NDArray[np.uint8], p: int, e: int, protocol: int, offset: int, state: NDArray[np.int64]) -> bool:
    """Whether a fragment can hold TCP: TCP itself and tunnels, UDP only once a first fragment went to a tunnel's port."""
    if protocol == 17:
        if offset == 0 and e - p >= 8:
            port = be16(b, p + 2)
            if port == 4789 or port == 8472 or port == 4790 or port == 6081 or port == 6635:
                state[TUNNELLED] = 1
        return state[TUNNELLED] == 1
    return protocol == 6 or protocol == 47 or protocol == 4 or protocol == 41 or protocol == 94 or protocol == 137


@kernel
def syn_options(b: NDArray[np.uint8], p: int, e: int) -> int:
    """Window scale + 1 and maximum segment size of a SYN's options, in their bits of FLAGS."""
    out = np.int64(0)
    while p < e:
        kind = b[p]
        if kind == 0:
            break
        if kind == 1:
            p += 1
            continue
        if e - p < 2 or b[p + 1] < 2 or np.int64(b[p + 1]) > e - p:
            break
        if kind == 2 and b[p + 1] == 4:
            out |= (be16(b, p + 2) & 0x7FFF) << 48
        elif kind == 3 and b[p + 1] == 3:
            out |= (np.int64(b[p + 2]) + 1) << 40
        p += np.int64(b[p + 1])
    return out


@kernel
def take_apart(
    b: NDArray[np.uint8], packets: NDArray[np.int64], first: int, delta: int, file: int, after: int, before: int,
    flows: NDArray[np.int64], table: NDArray[np.int32], free: NDArray[np.int64], state: NDArray[np.int64],
    kinds: NDArray[np.int64], rows: NDArray[np.int64], n: int, odd: NDArray[np.int64],
) -> tuple[int, int, int, int]:  # fmt: skip
    """Packets from row `first` on into segment rows from row `n` on; `after` <= time <= `before` (ns) or they are FILTERED.

    Returns the next packet row, segment rows, rows of `odd`, and why it stopped (DONE, ROWS_FULL: odd is full, FLOWS_FULL).
    `rows` must have room for every packet.
    """
    no = 0
    i = first
    while i < packets.shape[0]:
        if no == odd.shape[0]:
            return i, n, no, ROWS_FULL
        time = packets[i, TIME]
        if time < after or time > before:
            kinds[FILTERED] += 1
            i += 1
            continue
        p = packets[i, AT]
        e = p + packets[i, CAPTURED]  # end of what was captured
        w = p + packets[i, ORIGINAL]  # end of what was on the wire
        view = packets[i, LINK] >> 16
        layer, p, kind, view = link_layer(b, p, e, packets[i, LINK] & 0xFFFF, view)
        verdict = NOT_IP
        protocol = np.int64(0)
        layers = 0
        ah = np.int64(0)
        al = np.int64(0)
        bh = np.int64(0)
        bl = np.int64(0)
        ident = np.int64(0)
        header = p
        keep = False
        while True:
            layers += 1
            if layers > MAX_LAYERS:
                verdict = MALFORMED
                break
            if layer == -2:
                verdict = CUT
                break
            if layer == -1:
                verdict = UNDECODED
                break
            if layer == STOP:
                break
            if layer == ETHERNET:
                if e - p < 14:
                    verdict = CUT
                    break
                kind = be16(b, p + 12)
                p += 14
                layer = ETHERTYPE
            if layer == ETHERTYPE:
                if kind == 0x0800 or kind == 0x86DD:
                    layer = IP
                elif kind == 0x8100 or kind == 0x88A8 or kind == 0x9100:
                    if e - p < 4:
                        verdict = CUT
                        break
                    view = seen_through(view, 8, be16(b, p) & 0xFFF)
                    kind = be16(b, p + 2)
                    p += 4
                elif kind == 0x8847 or kind == 0x8848:
                    layer = MPLS
                elif kind == 0x8864:
                    if e - p < 6:
                        verdict = CUT
                        break
                    view = seen_through(view, 9, be16(b, p + 2))
                    p += 6
                    layer = PPP
                elif kind == 0x6558:
                    layer = ETHERNET
                elif kind < 0x0600:  # a length: LLC, and SNAP where it says AA AA 03
                    if e - p >= 8 and be16(b, p) == 0xAAAA and b[p + 2] == 3:
                        kind = be16(b, p + 6)
                        p += 8
                        if kind < 0x0600:
                            verdict = NOT_IP
                            break
                    else:
                        verdict = NOT_IP
                        break
                elif kind == 0x894F or kind == 0x893F:  # NSH, 802.1BR: scapy may know
                    verdict = UNDECODED
                    break
                else:
                    verdict = NOT_IP
                    break
                continue
            if layer == MPLS:
                if e - p < 4:
                    verdict = CUT
                    break
                entry = be32(b, p)
                view = seen_through(view, 10, entry >> 12)
                p += 4
                if entry & 0x100:  # bottom of the stack
                    if e - p < 1:
                        verdict = CUT
                        break
                    layer = IP
                    if b[p] >> 4 == 0 and e - p >= 18:  # a pseudowire control word: Ethernet follows
                        p += 4
                        layer = ETHERNET
                continue
            if layer == PPP:
                if e - p >= 2 and be16(b, p) == 0xFF03:
                    p += 2
                if e - p < 2:
                    verdict = CUT
                    break
                kind = np.int64(b[p])
                if kind & 1:  # one byte, compressed
                    p += 1
                else:
                    kind = be16(b, p)
                    p += 2
                if kind == 0x21 or kind == 0x57:
                    layer = IP
                    continue
                if kind == 0x281:
                    layer = MPLS
                    continue
                verdict = NOT_IP
                break
            if layer == IP:
                if e - p < 1:
                    verdict = CUT
                    break
                version = b[p] >> 4
                header = p
                if version == 4:
                    if e - p < 20:
                        verdict = CUT
                        break
                    length = (np.int64(b[p]) & 15) * 4
                    total = be16(b, p + 2)
                    if length < 20 or (total != 0 and total < length):
                        verdict = MALFORMED
                        break
                    if total != 0:
                        w = p + total
                        e = min(e, w)
                    ident = be16(b, p + 4)
                    protocol = np.int64(b[p + 9])
                    ah = np.int64(0)
                    bh = np.int64(0)
                    al = MAPPED | be32(b, p + 12)
                    bl = MAPPED | be32(b, p + 16)
                    fragment = be16(b, p + 6) & 0x3FFF
                    p += length
                    if fragment:
                        verdict = FRAGMENT
                        keep = worth_joining(b, p, e, protocol, fragment & 0x1FFF, state)
                        break
                elif version == 6:
                    if e - p < 40:
                        verdict = CUT
                        break
                    total = be16(b, p + 4)
                    if total != 0:  # 0: a jumbogram, as Linux' BIG TCP makes them
                        w = p + 40 + total
                        e = min(e, w)
                    ident = np.int64(0)
                    protocol = np.int64(b[p + 6])
                    ah = be32(b, p + 8) << 32 | be32(b, p + 12)
                    al = be32(b, p + 16) << 32 | be32(b, p + 20)
                    bh = be32(b, p + 24) << 32 | be32(b, p + 28)
                    bl = be32(b, p + 32) << 32 | be32(b, p + 36)
                    p += 40
                    for _ in range(MAX_EXTENSIONS):
                        step = np.int64(0)
                        if (
                            protocol == 0
                            or protocol == 43
                            or protocol == 60
                            or protocol == 135
                            or protocol == 139
                            or protocol == 140
                        ) or protocol == 44 or protocol == 51:
                            step = np.int64(8)
                        else:
                            break
                        if e - p < step:
                            protocol = np.int64(-2)
                            break
                        if protocol == 44:
                            if be16(b, p + 2) & 0xFFF9:
                                protocol = np.int64(-44)
                                break
                        elif protocol == 51:
                            step = (np.int64(b[p + 1]) + 2) * 4
                        else:
                            step = (np.int64(b[p + 1]) + 1) * 8
                        protocol = np.int64(b[p])
                        p += step
                    if protocol == -44:
                        verdict = FRAGMENT
                        keep = worth_joining(b, p + 8, e, np.int64(b[p]), be16(b, p + 2) >> 3, state)
                        break
                    if protocol == -2:
                        verdict = CUT
                        break
                else:
                    verdict = NOT_IP
                    break
                layer = TRANSPORT
            # TRANSPORT: `protocol` stands at the cursor
            if protocol == 6:
                verdict = TCP
                break
            if protocol == 17:
                layer, p, kind, view = under_udp(b, p, e, view)
                verdict = UDP
            elif protocol == 47:
                layer, p, kind, view = under_gre(b, p, e, view)
            elif protocol == 4 or protocol == 41 or protocol == 94:
                view = seen_through(view, 11, protocol)
                layer = IP
            elif protocol == 137:
                layer = MPLS
            elif protocol == 97:  # EtherIP: two bytes, then Ethernet
                view = seen_through(view, 12, 0)
                p += 2
                layer = ETHERNET
            else:
                verdict = ICMP if protocol == 1 or protocol == 58 else OTHER_IP
                break
        if verdict == TCP:
            captured = e - p
            if captured < 16:  # up to the window; the rest of the header may be cut off
                verdict = CUT if w - p >= 20 else MALFORMED
            else:
                length = (np.int64(b[p + 12]) >> 4) * 4
                if length < 20 or p + length > w:
                    verdict = MALFORMED
        if verdict != TCP:
            kinds[verdict] += 1
            if (verdict == FRAGMENT and keep) or verdict == UNDECODED:
                odd[no, 0] = i
                odd[no, 1] = verdict
                odd[no, 2] = header
                odd[no, 3] = view
                no += 1
            i += 1
            continue
        ports = be32(b, p)
        source = ports >> 16
        target = ports & 0xFFFF
        direction = np.int64(0)
        swap = False
        if ah != bh:
            swap = (ah ^ MIN64) > (bh ^ MIN64)
        elif al != bl:
            swap = (al ^ MIN64) > (bl ^ MIN64)
        else:
            swap = source > target
        if swap:
            direction = np.int64(1)
            ah, bh = bh, ah
            al, bl = bl, al
            ports = target << 16 | source
        flow = flow_of(ah, al, bh, bl, ports, flows, table, free, state)
        if flow < 0:
            return i, n, no, FLOWS_FULL
        kinds[TCP] += 1
        flags = np.int64(b[p + 13])
        data = min(p + length, e)
        packed = flags | be16(b, p + 14) << 8 | ident << 24
        if flags & 2:
            packed |= syn_options(b, p + 20, data)
        rows[n, 0] = time
        rows[n, 1] = flow * 2 + direction
        rows[n, 2] = be32(b, p + 4)
        rows[n, 3] = be32(b, p + 8) if flags & 16 else 0
        rows[n, 4] = packed
        rows[n, 5] = data + delta
        rows[n, 6] = e - data
        rows[n, 7] = w - p - length
        rows[n, 8] = packets[i, NUMBER] | file << 40
        rows[n, 9] = view
        n += 1
        i += 1
    return i, n, no, DONE

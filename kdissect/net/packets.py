"""The kernel that makes TCP segment rows of packets: link layer, VLAN tags, IP, TCP.

A packet is a segment, something else that is counted, or something to be handed back: an IP fragment, a layer that only
scapy may know, or a tunnel (`kdissect.net.tunnels`). A tunnel stops the kernel once so that tunnels can be taken off
first. Every read is checked against the captured end; a packet cut inside its headers is CUT.

Rules: RFC 9293 (TCP), RFC 7323 (window scale).
"""

from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kdissect.capture.pcap import packet_at
from kdissect.kernels.kernel import kernel, part
from kdissect.kernels.keyed_hash import SECRET, scramble, slot
from kdissect.kernels.memory import be16, be32, fetch
from kdissect.kernels.signature import fields
from kdissect.kernels.structs import struct, view, width
from kdissect.net import headers as hd
from kdissect.net.headers import Bytes, Int, ip_header, is_tunnel, link_layer, tunnel_port, under_ethertype
from kdissect.net.segment import DSACK, ECHO_BITS, SAME_HOST, STAMP_BITS, flow_at, segment_at

# Kinds of packets counted.
TCP, UDP, ICMP, OTHER_IP, NOT_IP, FRAGMENT, CUT, MALFORMED, UNDECODED, BY_SCAPY, FILTERED, REJOINED = range(12)
KINDS = (
    "tcp",
    "udp",
    "icmp",
    "other_ip",
    "not_ip",
    "fragment",
    "cut",
    "malformed",
    "undecoded",
    "by_scapy",
    "filtered",
    "rejoined",
)
"""`tcp` counts rows, those that scapy or rejoining led to included; `fragment`, `by_scapy`, `rejoined` count on the
way there."""

# Why the kernel stopped.
DONE, ODD_FULL, FLOWS_FULL, TUNNELS = range(4)

AHEAD = 8
"""Packets between asking for memory and using it."""
SLOT_AHEAD, FLOW_AHEAD = 4, 2
"""Packets between asking for a slot of the table and using it, and for the row of the flow that the slot names."""
FAR = 1 << 15
"""Slots of a table that a processor's second cache holds. For those nothing is asked for ahead."""
LOWEST = -(1 << 63)
STAMPED = 0x0101080A
"""Two no-operations, then the option of timestamps and its length: how nearly all stacks lay them out."""
ECHO = (1 << ECHO_BITS) - 1
MAPPED = 0xFFFF << 32
"""The high half of an IPv4-mapped address's low word (::ffff:0:0/96)."""


@struct
class Scanning:
    """The state of a scanner."""

    flows: int
    """Rows of flows in use."""
    free: int
    """Numbers of flows that may be given again."""
    tombs: int
    """Entries of the hash table whose flow ended."""
    fragmented_tunnel: int
    """1: the first fragment of a UDP tunnel's packet was seen."""
    key: Annotated[list[int], SECRET]
    """The secret of the table's hash."""
    coming: Annotated[list[int], AHEAD]
    """Slots of the flows of the next packets, see `_ask_for_slot`, -1 not known."""


@struct
class Odd:
    """A packet that is handed back."""

    packet: int
    """Its row."""
    kind: int
    """FRAGMENT or UNDECODED."""
    header: int
    """Of a FRAGMENT, where its IP header is."""
    viewpoint: int
    """As of a segment."""


scanning_at, odd_at = view(Scanning), view(Odd)
ODD_COLUMNS = width(Odd)


class FlowTable(NamedTuple):
    """The flows that a scanner knows, and what finds them."""

    flows: NDArray[np.int64]
    """Rows of `segment.Flow`; ports below 0: the flow ended."""
    table: NDArray[np.int32]
    """Hash table of 2**n rows of `flows`, -1 free; open addressing."""
    free: NDArray[np.int64]
    """Numbers of flows that ended and may be given again, `Scanning.free` of them."""
    state: NDArray[np.int64]
    """A `Scanning`."""


class PacketSource(NamedTuple):
    """Where a block's packets come from, and which of them count."""

    file: Int
    """Index of the file in its set."""
    delta: Int
    """Logical offset of the window's first byte."""
    after: Int
    """Instant of the earliest packet that counts, in ns."""
    before: Int
    """Instant of the latest, in ns."""


class PacketRows(NamedTuple):
    """What becomes of packets."""

    kinds: NDArray[np.int64]
    """Packets so far by kind, TCP to REJOINED."""
    segments: NDArray[np.int64]
    """Rows of `segment.Segment`, with room for every packet."""
    odd: NDArray[np.int64]
    """Rows of `Odd`."""


FLOW_TABLE = fields(FlowTable, "i8[:,:] i4[:] i8[:] i8[:]")
PACKET_SOURCE = fields(PacketSource, "i8 i8 i8 i8")
PACKET_ROWS = fields(PacketRows, "i8[:] i8[:,:] i8[:,:]")
"""What kernels that take them declare."""


@part
def slot_of(a: Int, b: Int, c: Int, d: Int, ports: Int, table: NDArray[np.int32], scanning: Scanning) -> Int:
    """Where the search for a flow begins in the table."""
    total = scramble(a, scanning.key[0]) + scramble(b, scanning.key[1]) + scramble(c, scanning.key[2])
    total += scramble(d, scanning.key[3]) + scramble(ports, scanning.key[4])
    return slot(total, scanning.key[5], table.size - 1)


@kernel("i8[:,:] i8 i4[:] i8[:]")
def rehash(flows: NDArray[np.int64], count: Int, table: NDArray[np.int32], state: NDArray[np.int64]) -> None:
    """Fill an empty (-1) table with the flows in use."""
    mask = table.size - 1
    scanning = scanning_at(state, 0)
    for f in range(count):
        flow = flow_at(flows, f)
        if flow.ports >= 0:
            h = slot_of(flow.a_high, flow.a_low, flow.b_high, flow.b_low, flow.ports, table, scanning)
            while table[h] != -1:
                h = (h + 1) & mask
            table[h] = f


@part
def _ask_for_slot(b: Bytes, packets: NDArray[np.int64], i: Int, flow_table: FlowTable) -> None:
    """Ask for the slot of packet i + SLOT_AHEAD, and for the row of the flow in the slot of packet i + FLOW_AHEAD. With
    millions of flows either wait takes longer than all else. Only TCP over IPv4 over Ethernet."""
    flows, table, scanning = flow_table.flows, flow_table.table, scanning_at(flow_table.state, 0)
    known = scanning.coming[(i + FLOW_AHEAD) % AHEAD]
    if known >= 0 and table[known] >= 0:
        fetch(flows, np.int64(table[known]) * flows.shape[1])
    coming: Int = np.int64(-1)
    i += SLOT_AHEAD
    if i < packets.shape[0]:
        packet = packet_at(packets, i)
        p, plain = packet.at, packet.captured >= 38 and packet.link & 0xFFFF == 1
        if plain and be32(b, p + 12) >> 8 == 0x080045 and b[p + 23] == 6:
            one, other, ports = be32(b, p + 26), be32(b, p + 30), be32(b, p + 34)
            if one > other or (one == other and ports >> 16 > ports & 0xFFFF):
                one, other = other, one
                ports = (ports & 0xFFFF) << 16 | ports >> 16
            coming = slot_of(np.int64(0), MAPPED | one, np.int64(0), MAPPED | other, ports, table, scanning)
            fetch(table, coming)
    scanning.coming[i % AHEAD] = coming


@part
def flow_of(a: Int, b: Int, c: Int, d: Int, ports: Int, flow_table: FlowTable) -> Int:
    """The flow of a key in canonical order, a new one when it is not known; -1 when the tables are too full for a new
    one."""
    flows, table, scanning = flow_table.flows, flow_table.table, scanning_at(flow_table.state, 0)
    mask = table.size - 1
    h = slot_of(a, b, c, d, ports, table, scanning)
    while table[h] != -1:
        f = np.int64(table[h])
        known = flow_at(flows, f)
        if known.ports == ports and known.b_low == d and known.a_low == b and known.a_high == a and known.b_high == c:
            return f
        h = (h + 1) & mask
    if (scanning.flows - scanning.free + scanning.tombs) * 2 >= table.size:
        return np.int64(-1)
    new: Int = np.int64(scanning.flows)
    if scanning.free > 0:
        scanning.free -= 1
        new = flow_table.free[scanning.free]
    elif scanning.flows < flows.shape[0]:
        scanning.flows += 1
    else:
        return np.int64(-1)
    table[h] = new
    fresh = flow_at(flows, new)
    fresh.a_high, fresh.a_low, fresh.b_high, fresh.b_low, fresh.ports = a, b, c, d, ports
    return new


@part
def syn_options(b: Bytes, p: Int, e: Int) -> Int:
    """Window scale + 1 and maximum segment size of a SYN's options, in their bits of FLAGS."""
    out = np.int64(0)
    while p < e:
        kind = b[p]
        if kind == 0:
            break
        if kind == 1:
            p += 1
            continue
        if e - p < 2:
            break
        size = np.int64(b[p + 1])
        if size < 2 or size > e - p:
            break
        if kind == 2 and size == 4:
            out |= min(be16(b, p + 2), 0x7FFF) << 48
        elif kind == 3 and size == 3:
            out |= (np.int64(b[p + 2]) + 1) << 40
        p += size
    return out


@part
def twice(b: Bytes, p: Int, e: Int, ack: Int) -> Any:
    """Whether a segment's options hold a SACK whose first block is below the acknowledgement, or within the second
    (RFC 2883, section 4)."""
    while p < e:
        kind = b[p]
        if kind == 0:
            break
        if kind == 1:
            p += 1
            continue
        if e - p < 2:
            break
        size = np.int64(b[p + 1])
        if size < 2 or size > e - p:
            break
        if kind == 5 and size >= 10:
            left, right = be32(b, p + 2), be32(b, p + 6)
            if (ack - right) & 0xFFFFFFFF < 0x80000000:
                return True
            if size < 18:
                return False
            outer = (left - be32(b, p + 10)) & 0xFFFFFFFF < 0x80000000
            return outer and (be32(b, p + 14) - right) & 0xFFFFFFFF < 0x80000000
        p += size
    return False


@part
def worth_joining(b: Bytes, header: Int, p: Int, e: Int, scanning: Scanning) -> Any:
    """Whether a fragment can hold TCP: TCP itself and tunnels, UDP only once a first fragment went to a tunnel's
    port."""
    if b[header] >> 4 == 4:
        protocol = np.int64(b[header + 9])
        offset = be16(b, header + 6) & 0x1FFF
    else:
        protocol = np.int64(b[p])
        offset = be16(b, p + 2) >> 3
        p += 8
    if protocol == 17:
        if offset == 0 and tunnel_port(b, p, e):
            scanning.fragmented_tunnel = 1
        return scanning.fragmented_tunnel == 1
    return protocol == 6 or is_tunnel(protocol)


@kernel("const u1[:] i8[:,:] i8 b1 PACKET_SOURCE FLOW_TABLE PACKET_ROWS i8 -> i8 i8 i8 i8")
def take_apart(
    b: Bytes, packets: NDArray[np.int64], first: Int, unwrapped: bool, source: PacketSource, flow_table: FlowTable,
    out: PacketRows, n: Int,
) -> tuple[Int, Int, Int, Int]:  # fmt: skip
    """Packets from row `first` on into segment rows from row `n` on; `after` <= time <= `before` or they are FILTERED.

    Returns the next packet row, segment rows, rows of `odd`, and why it stopped: DONE, ODD_FULL, FLOWS_FULL, or
    TUNNELS when the next packet is in a tunnel and packets were not `unwrapped` yet.
    """
    delta, file, after, before = source.delta, source.file, source.after, source.before
    kinds, rows, odd = out.kinds, out.segments, out.odd
    scanning = scanning_at(flow_table.state, 0)
    no = 0
    far = flow_table.table.size > FAR
    for k in range(AHEAD):
        scanning.coming[k] = -1
    for i in range(first, packets.shape[0]):
        if no == odd.shape[0]:
            return i, n, no, ODD_FULL
        if i + AHEAD < packets.shape[0]:
            fetch(b, packet_at(packets, i + AHEAD).at)
            fetch(b, packet_at(packets, i + AHEAD).at + 64)
        if far:
            _ask_for_slot(b, packets, i, flow_table)
        packet = packet_at(packets, i)
        time = packet.time
        if time < after or time > before:
            kinds[FILTERED] += 1
            continue
        p = packet.at
        e = p + packet.captured  # end of what was captured
        w = p + packet.original  # end of what was on the wire
        layer, p, kind, view = link_layer(b, p, e, packet.link & 0xFFFF, packet.link >> 16)
        if layer == hd.ETHERTYPE:
            layer, p, kind, view = under_ethertype(b, p, e, kind, view)
        verdict = NOT_IP
        header = p
        keep = False
        tunnel = False
        if layer == hd.IP:
            protocol, p, e, w = ip_header(b, p, e, w)
            if protocol == 6:
                verdict = TCP
            elif protocol == 17:
                verdict = UDP
                tunnel = tunnel_port(b, p, e)
            elif protocol == hd.PIECE:
                verdict = FRAGMENT
                keep = worth_joining(b, header, p, e, scanning)
            elif protocol == hd.SHORT:
                verdict = CUT
            elif protocol == hd.BROKEN:
                verdict = MALFORMED
            elif protocol >= 0:
                verdict = ICMP if protocol == 1 or protocol == 58 else OTHER_IP
                tunnel = is_tunnel(protocol)
        elif layer == hd.TUNNEL or layer == hd.PPP:
            tunnel = True
        elif layer == hd.SHORT:
            verdict = CUT
        elif layer == hd.UNKNOWN:
            verdict = UNDECODED
            keep = True
        if tunnel and not unwrapped:
            return i, n, no, TUNNELS
        length = np.int64(0)
        if verdict == TCP:
            if e - p < 16:  # up to the window; the rest of the header may be cut off
                verdict = CUT if w - p >= 20 else MALFORMED
            else:
                length = (np.int64(b[p + 12]) >> 4) * 4
                if length < 20 or length > w - p:
                    verdict = MALFORMED
        if verdict != TCP:
            kinds[verdict] += 1
            if keep:
                back = odd_at(odd, no)
                back.packet, back.kind, back.header, back.viewpoint = i, verdict, header, view
                no += 1
            continue
        ports = be32(b, p)
        if b[header] >> 4 == 4:
            ah = np.int64(0)
            bh = np.int64(0)
            al = MAPPED | be32(b, header + 12)
            bl = MAPPED | be32(b, header + 16)
            ident = be16(b, header + 4)
        else:
            ah = be32(b, header + 8) << 32 | be32(b, header + 12)
            al = be32(b, header + 16) << 32 | be32(b, header + 20)
            bh = be32(b, header + 24) << 32 | be32(b, header + 28)
            bl = be32(b, header + 32) << 32 | be32(b, header + 36)
            ident = np.int64(0)
        # the smaller address and port comes first; exclusive or with the lowest number compares as unsigned
        if ah != bh:
            swap = (ah ^ LOWEST) > (bh ^ LOWEST)
        elif al != bl:
            swap = (al ^ LOWEST) > (bl ^ LOWEST)
        else:
            swap = ports >> 16 > ports & 0xFFFF
        direction = np.int64(0)
        if swap:
            direction = np.int64(1)
            ah, bh = bh, ah
            al, bl = bl, al
            ports = (ports & 0xFFFF) << 16 | ports >> 16
        flow = flow_of(ah, al, bh, bl, ports, flow_table)
        if flow < 0:
            return i, n, no, FLOWS_FULL
        kinds[TCP] += 1
        flags = np.int64(b[p + 13])
        data = min(p + length, e)
        packed = flags | be16(b, p + 14) << 8 | ident << 24
        if flags & 2:
            packed |= syn_options(b, p + 20, data)
        elif (length > 32 or (length == 32 and data - p == 32 and b[p + 22] != 8)) and twice(
            b, p + 20, data, be32(b, p + 8)
        ):  # 32: two no-operations and a timestamp, nearly always
            packed |= DSACK
        if ah == bh and al == bl and flags & 2 == 0:
            packed |= SAME_HOST
        segment = segment_at(rows, n)
        segment.time = time
        segment.flow = flow * 2 + direction
        segment.seq = be32(b, p + 4)
        segment.ack = 0
        if flags & 16:
            segment.ack = be32(b, p + 8)
        segment.flags = packed
        segment.at = data + delta
        segment.len = e - data
        segment.wire = w - p - length
        segment.packet = packet.number | file << 40
        segment.viewpoint = view
        segment.stamp = 0
        if length >= 32 and data - p >= 32 and be32(b, p + 20) == STAMPED:
            segment.stamp = be32(b, p + 24) + 1 | (be32(b, p + 28) & ECHO) << STAMP_BITS
        n += 1
    return packets.shape[0], n, no, DONE

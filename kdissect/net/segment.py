"""Rows of segments, one TCP packet each, pure acknowledgements too, and of the flows that they belong to."""

from __future__ import annotations

from kdissect.kernels.structs import offsets, struct, view, width


@struct
class Segment:
    """One TCP packet; `segment_at(rows, i)` is row `i`."""

    time: int
    """ns since the epoch."""
    flow: int
    """Flow * 2 + direction; direction 0 is from the flow's first endpoint (the smaller address and port) to its
    second."""
    seq: int
    """Sequence number, unsigned 32 bits, as on the wire (SYN takes one)."""
    ack: int
    """Acknowledgement number, unsigned 32 bits; 0 without the ACK flag."""
    flags: int
    """TCP flags, bits 0-7; window (unscaled) bits 8-23; IP identification bits 24-39 (0 for IPv6); SYN only: window
    scale + 1 bits 40-47 and maximum segment size bits 48-62 (at most 32767), 0 where the option is absent.
    Others: DSACK, SAME_HOST."""
    at: int
    """Logical offset of the payload's first byte."""
    len: int
    """Captured payload bytes."""
    wire: int
    """Payload bytes on the wire, from the IP length; never less than `len`."""
    packet: int
    """Number in its file (Wireshark's) | file << 40."""
    viewpoint: int
    """Where and how the packet was seen: a fingerprint of interface, VLANs and tunnels; 0 for the first interface and
    plain IP. Copies of one packet with different ones were captured at different places."""
    stamp: int
    """1 more than the TCP timestamp (TSval, RFC 7323) where options are laid out as nearly all are, else 0; above its
    33 bits the low 30 of the timestamp that it echoes (TSecr)."""


@struct
class Flow:
    """Both ends of a flow: addresses as 16 bytes (IPv4 mapped, RFC 4291), big-endian, in two words."""

    a_high: int
    """The first endpoint's address."""
    a_low: int
    """See there."""
    b_high: int
    """The second endpoint's address."""
    b_low: int
    """See there."""
    ports: int
    """First endpoint's port << 16 | second's; -1: the row is free."""


segment_at, flow_at = view(Segment), view(Flow)
SEGMENT_COLUMNS, FLOW_COLUMNS = width(Segment), width(Flow)
SEGMENT, FLOW = offsets(Segment), offsets(Flow)
"""The columns of such rows."""

DSACK = 1 << 40
"""Of `flags`: the acknowledgement says that bytes came twice (D-SACK, RFC 2883)."""
SAME_HOST = 1 << 41
"""Of `flags`: both ends have the same address."""
STAMP_BITS, ECHO_BITS = 33, 30
"""Of `stamp`: widths of the timestamp and of what is kept of the echo."""
FIN, SYN, RST, PSH, ACK_FLAG = 1, 2, 4, 8, 16
WINDOW_SHIFT, IPID_SHIFT, SCALE_SHIFT, MSS_SHIFT = 8, 24, 40, 48
FILE_SHIFT = 40
"""Shift of the file index in `packet`: files of up to 10**12 packets, up to 8 million files."""

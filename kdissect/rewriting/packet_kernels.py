"""Kernels that write packet rows as records of a capture file.

Rules. pcap with nanoseconds: draft-ietf-opsawg-pcap, magic a1b23c4d. pcapng: draft-ietf-opsawg-pcapng, enhanced packet
blocks of interfaces with if_tsresol 9. Both little-endian.
"""

from __future__ import annotations

import numpy as np

from kdissect.capture.pcap import Bytes, Int, Ints, packet_at
from kdissect.kernels.kernel import kernel, part

PCAP_RECORD = 16
BLOCK = 32
"""Bytes of an enhanced packet block around its packet."""
PADDING = 3
SECOND = 1_000_000_000


@part
def put32(out: Bytes, w: Int, value: Int) -> None:
    """Four bytes, little-endian; the caller has checked that they are there."""
    for k in range(4):
        out[w + k] = (value >> (8 * k)) & 0xFF


@kernel("const u1[:] i8[:,:] i8[:] b1 u1[:] -> i8")
def write_records(data: Bytes, packets: Ints, interface: Ints, pcapng: bool, out: Bytes) -> Int:
    """Write packet rows as records into `out`; bytes written. `interface[i]`: interface of row i (pcapng only).

    `out` must have room for BLOCK + PADDING bytes a packet in addition to its captured bytes.
    """
    w = np.int64(0)
    for i in range(packets.shape[0]):
        packet = packet_at(packets, i)
        size = packet.captured
        at = packet.at
        if at < 0 or size < 0 or at + size > data.size or w + size + BLOCK + PADDING > out.size:
            continue
        time = max(packet.time, 0)
        original = min(packet.original, 0xFFFFFFFF)
        total = BLOCK + ((size + 3) & ~3)
        if pcapng:
            put32(out, w, 6)
            put32(out, w + 4, total)
            put32(out, w + 8, interface[i])
            put32(out, w + 12, time >> 32)
            put32(out, w + 16, time & 0xFFFFFFFF)
            put32(out, w + 20, size)
            put32(out, w + 24, original)
            w += 28
        else:
            put32(out, w, time // SECOND)
            put32(out, w + 4, time % SECOND)
            put32(out, w + 8, size)
            put32(out, w + 12, original)
            w += PCAP_RECORD
        source = np.uint64(at)
        target = np.uint64(w)
        for q in range(np.uint64(size)):
            out[target + q] = data[source + q]
        w += size
        if pcapng:
            for _ in range(total - BLOCK - size):
                out[w] = 0
                w += 1
            put32(out, w, total)
            w += 4
    return w

"""Judges the only payload of a connection: whether the connection has to be followed, or may wait.

A request that fits its layout is followed at once, for somebody waits for its answer. When the capture ends, bytes in
which no request begins say nothing, and such a connection needs no search.
"""

from __future__ import annotations

from kdissect.kafka.streams.framing import LEAST_REQUEST, MAX_REQUEST
from kdissect.kafka.streams.pairing.message_headers import clean_client, known_header, request_body
from kdissect.kafka.streams.resync import ENOUGH
from kdissect.kafka.streams.state import SCRATCH, WINDOW, copy_out, place, program_of
from kdissect.kernels.kernel import kernel, part
from kdissect.kernels.memory import be16, be32
from kdissect.kernels.structs import Bytes, Flags, Int, Words
from kdissect.net.segment import FIN, RST, SYN, Segment, segment_at
from kdissect.schema.fit import FITS, fits
from kdissect.schema.vm import SKIM, Skim  # noqa: F401  (SKIM is named in a signature)

HEADER = 14
"""Bytes of a request up to its client id: fewer are no request."""
FEW = 64
"""Places at which a request may begin by its first numbers; bytes with more of them are searched in full."""


@part
def _begins_with_request(M: Words, A: Bytes, sk: Skim, o: Int, n: Int) -> bool:
    """Whether `A[o:n]` begins with a whole request that fits its layout."""
    if n - o < HEADER:
        return False
    size = be32(A, o)
    if size < LEAST_REQUEST or size > n - o - 4:
        return False
    end = o + 4 + size
    if not known_header(M, A, o + 4, size, size) or not clean_client(A, o + 4, size):
        return False
    api, version = be16(A, o + 4), be16(A, o + 6)
    body = request_body(M, A, o + 4, end, api, version)
    return body >= 0 and fits(A, body, end, program_of(M, api, version, 0), sk) == FITS


@kernel("i8[:] const u1[:] u1[:] SKIM i8[:,:] i8[:] b1[:]")
def find_requests(M: Words, b: Bytes, A: Bytes, sk: Skim, segments: Words, rows: Words, flags: Flags) -> None:
    """Whether the payloads of these rows of `segments` begin with a whole request, into `flags`."""
    for i in range(rows.size):
        packet = segment_at(segments, rows[i])
        there = copy_out(M, b, A, packet.at, packet.len, A, SCRATCH)
        flags[i] = there and _begins_with_request(M, A, sk, SCRATCH, SCRATCH + packet.len)


@part
def _holds_no_request(M: Words, b: Bytes, o: Int, n: Int) -> bool:
    """Whether `resync` would accept a request nowhere in `b[o:n]`, on a connection that was met in its middle and has
    no further bytes. A request that is not whole must be large, and its beginning there."""
    places = 0
    for p in range(o, n - HEADER + 1):
        if b[p] >= 0x40:
            continue
        size, have = be32(b, p), n - p - 4
        if size < LEAST_REQUEST or size > MAX_REQUEST or (size > have and (size < WINDOW - 4 or have < ENOUGH)):
            continue
        places += 1
        if places > FEW or known_header(M, b, p + 4, min(have, size), size):
            return False
    return True


@part
def _seems_sealed(b: Bytes, o: Int, n: Int) -> bool:
    """Whether bytes may be TLS, which gives the connection a name (`sealing`)."""
    return n - o < 2 or bool(0x14 <= b[o] <= 0x17 and b[o + 1] == 3)


@part
def _says_nothing(M: Words, b: Bytes, packet: Segment) -> bool:
    """Whether a connection that consists of this packet is known to be nothing but its row."""
    n = packet.len
    if packet.flags & (SYN | FIN | RST) or n <= 0 or n != packet.wire:
        return False
    o = place(M, packet.at)
    if o < 0 or n > b.size - o:
        return False
    return not _seems_sealed(b, o, o + n) and _holds_no_request(M, b, o, o + n)


@kernel("i8[:] const u1[:] i8[:,:] b1[:]")
def find_meaningless(M: Words, b: Bytes, segments: Words, flags: Flags) -> None:
    """Whether connections that consist of one packet each, these, are known to be nothing but their rows: the search
    for frames (`resync`) would find none. Into `flags`."""
    for i in range(flags.size):
        flags[i] = _says_nothing(M, b, segment_at(segments, i))

"""State that the stream kernels share above TCP: the layout of requests and finished exchanges, and how bytes are
found.

Three arrays make up the state. The heap `M` has int64 words (see `kdissect.tcp.layout`), and the window `b` recent
input. `A` has bytes of our own: the beginning of a frame that lies in several pieces, a search window in one piece, the
client ids seen, and bytes kept from before the window. Requests wait in the order in which they were sent; rows of
exchanges are read by the engine after each call.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np

from kdissect.kernels.kernel import part
from kdissect.kernels.memory import copy_bytes
from kdissect.kernels.structs import Bytes, Int, Words, struct, view, width
from kdissect.tcp import layout as tl
from kdissect.tcp.layout import Connection, Direction, Way, control_at, problem_at

KEPT = 1 << 58
"""Logical offsets from here on lie in `kept`: bytes moved out of the window before it forgot them."""


@struct
class Frame:
    """A complete frame: its times, and where its bytes lie."""

    first: int
    """When its first byte arrived, ns."""
    last: int
    """When its last byte arrived, NULL where that one was never captured."""
    bytes: int
    """Its size, the length prefix included; -1: there is no such frame."""
    packet: int
    """The packet that completed it."""
    at: int
    """Where the body (all after the length prefix) lies when it is in one piece, else -1."""
    length: int
    """Captured bytes there."""
    head: int
    """First node of its pieces, -1 none."""
    body: int
    """Offset of the message behind its header, -1 unknown, -2 not looked for."""
    missing: int
    """Bytes in holes."""
    cut: int
    """Bytes that a snap length cut off."""


@struct
class Request:
    """A request that waits for its response, or a response that waits for its request: a held one."""

    next: int
    """The one that was sent after it, -1 none."""
    api: int
    """API key."""
    version: int
    """API version."""
    correlation: int
    """Correlation id."""
    client: int
    """Code of the client id, -1 null."""
    frame: Frame
    """Its frame."""
    n: int
    """Ordinal of a request; stream position behind a held response."""
    in_flight: int
    """How many requests waited with it, itself included."""
    packets: int
    """Value of `packets` of the connection when it was put here."""
    end: int
    """Stream position behind a request, where it is not sealed."""
    acked: int
    """When its last byte was acknowledged, NULL not seen."""
    bare: int
    """1 when that acknowledgement carried no bytes, 2 when it told of a copy that was not needed (RFC 2883)."""
    proof: int
    """Whether a late acknowledgement proved anything: a `Proof`."""
    resent: int
    """What it lost because bytes up to its end were sent again, ns."""
    think: int
    """What the client took until it, ns, -1 unknown."""
    way_back: int
    """How long an answer is on its way to the client from here and the client's next packet back, as known when the
    request came, ns, -1 unknown."""
    answered_to: int
    """Stream position up to where its packet acknowledges answers, NULL not known."""
    doubted_at: int
    """That of its connection when it was taken."""
    missing: int
    """Value of `missing_total` of its direction when it was taken."""
    unseen_until: int
    """That of its direction when it came."""
    way: Way
    """Of a held response, or of a request's response once that is there."""


@struct
class Exchange:
    """A finished exchange, for the host."""

    connection: int
    """Number of the connection."""
    n: int
    """Ordinal of the request, or of an orphan among the orphans."""
    orphan: int
    """1: a response without a request."""
    api: int
    """API key, -1 unknown."""
    version: int
    """API version, -1 unknown."""
    correlation: int
    """Correlation id."""
    client: int
    """Code of the client id, -1 null."""
    status: int
    """A `Status`, or TOKEN."""
    queued_from: int
    """When the last byte of the response before it arrived."""
    in_flight: int
    """How many requests waited with it, itself included."""
    direction: int
    """Which direction of the connection carried the request (for problems)."""
    network: int
    """What the network took of the time between request and response, ns, -1 unknown."""
    network_kind: int
    """A `Found`, -1 unknown."""
    network_down: int
    """How much longer than the fastest the response was on its way here, ns, NULL unless `network_kind` says so."""
    request_resent: int
    """What was lost because bytes were sent again, ns, -1 unknown."""
    response_resent: int
    """The same of the response."""
    think: int
    """What the client took until the request, ns, -1 unknown."""
    unseen_until: int
    """Up to when requests before this one may not have been captured, ns, NULL: all of them were."""
    abandoned: int
    """1 when the client had closed before the answer, -1 without an answer."""
    end: int
    """Stream position behind the request, whose low 32 bits are its sequence number; -1 without one."""
    request: Frame
    """The request's frame."""
    response: Frame
    """The response's frame."""


@struct
class Sealed:
    """Sealed bytes, for the host."""

    connection: int
    """Place of the connection."""
    number: int
    """Its number."""
    direction: int
    """0 or 1: the direction of the connection."""
    at: int
    """Where they lie, or HOLE."""
    length: int
    """Bytes captured."""
    wire: int
    """Bytes sent."""
    time: int
    """When they came, ns."""
    packet: int
    """The packet that brought them."""
    packets: int
    """Value of `packets` of the connection then."""
    floors: Annotated[list[int], 2]
    """Round trips of both directions then."""
    floor_kinds: Annotated[list[int], 2]
    """How they were found."""


SIDES = ("request", "response")
"""Fields of an exchange's frames, by side."""

request_at = view(Request)
exchange_at = view(Exchange)
sealed_at = view(Sealed)
REQUEST_WIDTH = width(Request)
EXCHANGE_WIDTH = width(Exchange)
SEALED_WIDTH = width(Sealed)

TOKEN = 20
"""Status of a bare SASL token, which is no exchange; the engine reads mechanism and user from it and drops it."""


# ---- the heap above TCP
KEYS = 128
VERSIONS = 32
"""Keys and versions that programs are looked up for; Kafka has 95 keys and 19 versions of the busiest."""
FLEXIBLE = tl.HEAP
"""First version with a flexible header: [KEYS, 2]."""
TABLE = FLEXIBLE + 2 * KEYS
"""Program of each message: [KEYS, VERSIONS, 2], -1 unknown."""
MAX_NAMES = 1 << 16
"""Distinct client ids that are told apart; later ones are shown as null. Fleets have thousands."""
NAME_SLOTS = 1 << 17
NAME_TABLE = TABLE + 2 * KEYS * VERSIONS
"""Open addressing: code of a client id, or -1."""
NAME_ENDS = NAME_TABLE + NAME_SLOTS
"""Where each client id ends in `A`."""
MARGIN = 48 << 10
"""Rows of output that one step can produce at most: a full search window of the smallest frames, and all that wait."""
X_ROWS = 3 * MARGIN
X_BASE = NAME_ENDS + MAX_NAMES + 2
P_ROWS = 2 * MARGIN
P_BASE = X_BASE + X_ROWS * EXCHANGE_WIDTH
E_ROWS = 4096
"""Finished connections per call of a kernel."""
E_BASE = P_BASE + P_ROWS * tl.PROBLEM_WIDTH
S_ROWS = 2 * MARGIN
S_BASE = E_BASE + E_ROWS * tl.CONNECTION_WIDTH
STRUCTS = S_BASE + S_ROWS * SEALED_WIDTH
"""Where the heap's structs begin."""

# ---- bytes of our own
HEAD = 0
HEAD_BYTES = 1280
"""Bytes of a frame that are looked at to read its header: an id of 1,024 bytes and its tags fit (Kafka's own clients
send far shorter ones; a longer id is shown as null and the body is not decoded)."""
SCRATCH = HEAD + HEAD_BYTES
WINDOW = 256 << 10
"""Bytes searched at a time: larger frames are taken on their header and the part of the body that is there."""
SCRATCH_BYTES = WINDOW + (128 << 10)
"""A window may overshoot by one segment (64 KiB, more with segmentation offload)."""
NAMES = SCRATCH + SCRATCH_BYTES
NAME_BYTES = 4 << 20
"""Room for client ids: 64 bytes for each that is told apart."""
KEPT_BASE = NAMES + NAME_BYTES
"""Bytes from before the window begin here; `KEPT` is the logical offset of the first."""


@part
def frame_of(exchange: Exchange, side: Int) -> Frame:
    """The request (0) or the response (1) of an exchange."""
    return exchange.request if side == 0 else exchange.response


@part
def program_of(M: Words, api: Int, version: Int, side: Int) -> Int:
    """The skim program of a message, -1 when the API or version is not known."""
    if api < 0 or api >= KEYS or version < 0 or version >= VERSIONS:
        return np.int64(-1)
    return M[TABLE + (api * VERSIONS + version) * 2 + side]


@part
def uvarint(b: Bytes, o: Int, e: Int) -> tuple[Int, Int]:
    """Unsigned varint at `o`: value and next offset, which is -1 when it runs past `e` or past five bytes."""
    value = np.int64(0)
    shift = np.int64(0)
    while o < e and shift < 35:
        c = np.int64(b[o])
        o += 1
        value |= (c & 127) << shift
        if c < 128:
            return value, o
        shift += 7
    return value, np.int64(-1)


@part
def place(M: Words, at: Int) -> Int:
    """Where a logical offset lies in the window, -1 when the window no longer holds it.

    Of two slots that hold it, the one that ends later: the other one ends inside the record.
    """
    q = control_at(M, tl.CONTROL).slot
    if M[q] <= at < M[q + 1]:
        return M[q + 2] + at - M[q]
    o = np.int64(-1)
    end = at
    for q in range(tl.SLOTS, tl.SLOTS + 3 * tl.MAX_SLOTS, 3):
        if M[q] <= at and end < M[q + 1]:
            end = M[q + 1]
            o = M[q + 2] + at - M[q]
    return o


@part
def copy_out(M: Words, b: Bytes, A: Bytes, at: Int, n: Int, to: Bytes, w: Int) -> bool:
    """Copy `n` bytes at a logical offset to `to[w:]`; False when they are gone or do not fit."""
    if n > to.size - w:
        return False
    if at >= KEPT:
        o = at - KEPT + KEPT_BASE
        if n > A.size - o:
            return False
        copy_bytes(to, w, A, o, n)
        return True
    o = place(M, at)
    if o < 0 or n > b.size - o:
        return False
    copy_bytes(to, w, b, o, n)
    return True


@part
def problem(
    M: Words, kind: Int, connection: Connection, side: Int, time: Int, packet: Int, position: Int, size: Int,
    detail: Int,
) -> None:  # fmt: skip
    """A row of problems about a connection; the engine keeps room for them."""
    control = control_at(M, tl.CONTROL)
    if control.problems >= P_ROWS:
        return
    row = problem_at(M, P_BASE + control.problems * tl.PROBLEM_WIDTH)
    row.kind = kind
    row.connection = connection.number
    row.time = time
    row.packet = packet
    row.direction = side
    row.position = position
    row.bytes = size
    row.detail = detail
    control.problems += 1
    connection.problems += 1


@part
def mark_news(M: Words, connection: Connection) -> None:
    """The host does not know yet which endpoint of a connection is the client."""
    connection.news = 1
    control_at(M, tl.CONTROL).news = 1


@part
def damage(M: Words, kind: Int, connection: Connection, direction: Direction, size: Int, detail: Int) -> None:
    """A problem of the frame that a direction receives now."""
    problem(M, kind, connection, direction.side, direction.first, direction.packet, direction.next, size, detail)

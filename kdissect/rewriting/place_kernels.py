"""Kernels that know where the payload of every recent segment went: from input offsets and stream positions to places
in the output.

The index has a row for each segment with payload, in the order of the file. Rows are named by their number since the
beginning; `base` is the number of the first one still there.
"""

from __future__ import annotations

import numpy as np

from kdissect.capture.pcap import Bytes, Int, Ints
from kdissect.capture.window import EXTRA
from kdissect.kafka.streams.pairing.message_headers import request_body, response_body
from kdissect.kafka.streams.state import (
    EXCHANGE_WIDTH,
    TOKEN,
    X_BASE,
    Exchange,
    Frame,
    copy_out,
    exchange_at,
    frame_of,
    program_of,
    uvarint,
)
from kdissect.kernels.kernel import kernel, part
from kdissect.kernels.memory import be16
from kdissect.kernels.structs import Flags, struct, view, width
from kdissect.net.segment import SYN, segment_at
from kdissect.rewriting.field_kernels import blank_bytes, blank_header
from kdissect.schema.apikeys import ApiKey
from kdissect.tcp.layout import node_at

LOOK_BACK = 2048
"""Segments of a direction looked back at: more than a window of 2 MB in packets of 1,500 bytes, twice over."""
HEAD = 1100
"""Bytes of a frame in which its header is looked for, as the stream kernels do."""


@struct
class Placed:
    """A segment with payload."""

    at: int
    """Offset of its payload in the input."""
    length: int
    """Captured bytes."""
    sequence: int
    """Sequence number of the first one."""
    place: int
    """Where it stands in the output."""
    before: int
    """The row before it of the same direction, -1 none."""
    flow: int
    """Its direction: that of a segment row."""
    highest: int
    """The highest sequence number that the direction reached with it."""


placed_at = view(Placed)
INDEX_COLUMNS = width(Placed)


@part
def ahead(number: Int, reference: Int) -> Int:
    """How far one sequence number is ahead of another (RFC 9293, 3.4), negative when it is behind."""
    return ((number - reference + (1 << 31)) & 0xFFFFFFFF) - (1 << 31)


@kernel("i8[:,:] i8[:] i8[:,:] i8 i8 i8[:] -> i8")
def enter(segments: Ints, place: Ints, index: Ints, count: Int, base: Int, last: Ints) -> Int:
    """Add segment rows whose payload went to `place` (-1: nowhere). `last[flow]` is the newest row of a direction.
    Returns the new count of rows; `index` has room for all."""
    for i in range(segments.shape[0]):
        packet = segment_at(segments, i)
        flow = packet.flow
        if packet.flags & SYN:
            last[flow] = -1
        if packet.len <= 0 or place[i] < 0:
            continue
        new = placed_at(index, count)
        new.at, new.length, new.sequence, new.place = packet.at, packet.len, packet.seq, place[i]
        new.before, new.flow = last[flow], flow
        new.highest = (packet.seq + packet.len) & 0xFFFFFFFF
        before = last[flow] - base
        if before >= 0 and ahead(placed_at(index, before).highest, new.highest) > 0:
            new.highest = placed_at(index, before).highest
        last[flow] = base + count
        count += 1
    return count


@part
def find_placed(index: Ints, count: Int, at: Int) -> Int:
    """The row whose payload holds input offset `at`, -1 none."""
    low = np.int64(0)
    high = np.int64(count)
    while low < high:
        middle = (low + high) // 2
        if placed_at(index, middle).at <= at:
            low = middle + 1
        else:
            high = middle
    row = low - 1
    if row < 0 or at >= placed_at(index, row).at + placed_at(index, row).length:
        return np.int64(-1)
    return row


@part
def place_of(index: Ints, base: Int, row: Int, sequence: Int, hops: Int) -> Int:
    """Place of the byte with a sequence number, in `row` or those before it of its direction; -1 not found."""
    for _ in range(hops):
        if row < 0:
            break
        placed = placed_at(index, row)
        distance = (sequence - placed.sequence) & 0xFFFFFFFF
        if distance < placed.length:
            return placed.place + distance
        row = placed.before - base
    return np.int64(-1)


@part
def write_prefix(out: Bytes, index: Ints, base: Int, row: Int, at: Int, size: Int, last: Ints) -> None:
    """Write the length prefix of a frame whose first byte behind it stands at input offset `at`, in `row`."""
    placed = placed_at(index, row)
    body = placed.sequence + at - placed.at
    newest = last[placed.flow] - base
    for k in range(4):
        sequence = (body - 4 + k) & 0xFFFFFFFF
        place = place_of(index, base, row, sequence, 64)
        if place < 0:
            place = place_of(index, base, newest, sequence, LOOK_BACK)
        if place >= 0 and place < out.size:
            out[place] = (size >> (8 * (3 - k))) & 0xFF


@part
def _first_piece(M: Ints, frame: Frame) -> tuple[Int, Int, Int]:
    """Where the first piece of a frame lies, its length, and the node of the next one."""
    if frame.at < 0 and frame.head >= 0:
        node = node_at(M, frame.head)
        return node.at, node.length, node.next
    return frame.at, frame.length, frame.head


@kernel("i8[:] i8 i8 const u1[:] i8[:,:] i8[:,:] i8[:,:] i8 i8 i8[:] u1[:] -> i8")
def spread(
    M: Ints, first: Int, n: Int, source: Bytes, start: Ints, keep: Ints, index: Ints, count: Int, base: Int, last: Ints,
    out: Bytes,
) -> Int:  # fmt: skip
    """Write the frames of exchanges first..n-1 to where their bytes stand in the output.

    `keep[i, side]` bytes of the frame behind its prefix come from source[start[i, side]:]; the rest stays as it is; -1:
    no such frame. Returns the number of frames that have a kept byte without a place.
    """
    lost = np.int64(0)
    for i in range(first, n):
        for side in range(2):
            if keep[i, side] < 0:
                continue
            frame = frame_of(exchange_at(M, X_BASE + i * EXCHANGE_WIDTH), side)
            wanted = keep[i, side]
            done = np.int64(0)
            at, length, following = _first_piece(M, frame)
            good = True
            while True:
                if at >= 0:
                    row = find_placed(index, count, at) if at < EXTRA else np.int64(-1)
                    if row < 0 or at + length > placed_at(index, row).at + placed_at(index, row).length:
                        good = False
                    else:
                        if done == 0:
                            write_prefix(out, index, base, row, at, frame.bytes - 4, last)
                        place = placed_at(index, row).place + at - placed_at(index, row).at
                        size = min(length, wanted - done)
                        if size > 0 and place >= 0 and place + size <= out.size:
                            p = start[i, side] + done
                            for k in range(size):
                                out[place + k] = source[p + k]
                elif done < wanted:
                    good = False
                done += length
                if following < 0 or done >= wanted:
                    break
                node = node_at(M, following)
                at, length, following = node.at, node.length, node.next
            if not good:
                lost += 1
    return lost


@part
def behind_acks(s: Bytes, p: Int, end: Int, version: Int) -> Int:
    """The position behind the acks of a Produce request whose message begins at `p`; `p` where they are not there.

    They say whether an answer follows. The transactional id in front of them becomes filler.
    """
    o = p
    size: Int = np.int64(0)
    if version >= 9:
        size, o = uvarint(s, o, end)
        if o < 0:
            return p
        size -= 1
    elif version >= 3:
        if o + 2 > end:
            return p
        size = be16(s, o)
        o += 2
        if size >= 0x8000:
            size = np.int64(0)
    size = max(size, 0)
    if size > end - o - 2:
        return p
    blank_bytes(s, o, size)
    return o + size + 2


@part
def is_text(s: Bytes, p: Int, end: Int) -> bool:
    """Whether s[p:end] are printable characters of ASCII, all of them."""
    text = True
    for k in range(p, end):
        text = text and 32 <= s[k] <= 126
    return text


@part
def has_no_header(M: Ints, exchange: Exchange, side: Int, heads: Bytes, begin: Int, end: Int) -> bool:
    """Whether the beginning of a frame, in heads[begin:end], is no header that may stay. That is one of a bare SASL
    token, of a request without an answer whose key or version no release has, or of a response that answers no request
    and whose id is four characters."""
    if exchange.status == TOKEN:
        return True
    if side == 1:
        return exchange.request.bytes < 4 and end - begin >= 4 and is_text(heads, begin, begin + 4)
    return exchange.response.bytes < 4 and program_of(M, exchange.api, exchange.version, 0) < 0


@kernel("i8[:] const u1[:] const u1[:] i8 i8 b1[:,:] u1[:] i8[:,:]")
def gather_heads(M: Ints, b: Bytes, A: Bytes, first: Int, n: Int, chosen: Flags, heads: Bytes, keep: Ints) -> None:
    """The part that may stay of frames that cannot be read. The beginning of the frame of exchange `i` and side `s`
    goes into heads[((i - first) * 2 + s) * HEAD:], and the number of bytes of it that stay into keep[i, s].

    That is the header, which names API, version, correlation id and client, and of a Produce request its acks. Where
    there is none, all becomes filler (zeros would look like a request).
    """
    for i in range(first, n):
        for side in range(2):
            if not chosen[i, side]:
                continue
            exchange = exchange_at(M, X_BASE + i * EXCHANGE_WIDTH)
            api, version = exchange.api, exchange.version
            begin = ((i - first) * 2 + side) * HEAD
            got: Int = np.int64(0)
            at, length, following = _first_piece(M, frame_of(exchange, side))
            while at >= 0 and got < HEAD:
                size = min(length, HEAD - got)
                if not copy_out(M, b, A, at, size, heads, begin + got):
                    break
                got += size
                if following < 0:
                    break
                node = node_at(M, following)
                at, length, following = node.at, node.length, node.next
            end = begin + got
            if has_no_header(M, exchange, side, heads, begin, end):
                if exchange.status != TOKEN and side == 0 and exchange.n == 0:
                    continue  # filler would not be a connection's first request: zeros, as of what is not Kafka
                blank_bytes(heads, begin, got)
                keep[i, side] = got
            elif side == 1:
                body = response_body(M, heads, begin, end, max(api, 0), version)
                blank_header(heads, begin, body, side)
                keep[i, side] = body - begin if body >= 0 else min(got, 4)
            else:
                body = request_body(M, heads, begin, end, api, version)
                blank_header(heads, begin, body, side)
                if body < 0:  # no client id can be read: none
                    for k in range(begin + 8, min(begin + 10, end)):
                        heads[k] = 0xFF
                    keep[i, side] = min(got, 10)
                elif api == ApiKey.PRODUCE:
                    keep[i, side] = behind_acks(heads, body, end, version) - begin
                else:
                    keep[i, side] = body - begin


@kernel("u1[:] i8[:,:] i8 i8 i8")
def repeat(out: Bytes, index: Ints, first: Int, count: Int, base: Int) -> None:
    """Give retransmitted bytes what their first copy has: rows first..count-1 of the index, in order.

    Bytes of a row that stand in earlier rows of its direction are copied from there.
    """
    for i in range(first, count):
        mine = placed_at(index, i)
        row = mine.before - base
        if row < 0 or ahead(mine.sequence, placed_at(index, row).highest) >= 0:
            continue
        for _ in range(LOOK_BACK):
            if row < 0:
                break
            placed = placed_at(index, row)
            distance = ahead(mine.sequence, placed.sequence)
            low = max(-distance, 0)
            high = min(placed.length - distance, mine.length)
            for k in range(low, high):
                out[mine.place + k] = out[placed.place + distance + k]
            if low == 0 and high == mine.length:
                break
            row = placed.before - base

"""Kernels that replace texts inside of messages, in place: a text that may not be shown to others keeps its length
only.

They follow the count programs of the layouts (`kdissect.schema.opcodes`), whose TEXT rows say what becomes of each
string, bytes and record set. Values of unknown tags, which no layout knows, are replaced too. Bodies are those that
`schema.vm.count` found to fit; every read is checked against the body's end all the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kdissect.kernels.kernel import kernel, part
from kdissect.kernels.memory import int16_at, int32_at
from kdissect.kernels.structs import struct, view, width
from kdissect.schema.opcodes import (
    BLANK,
    COMPACT,
    CONFIG_NAME,
    CONFIG_VALUE,
    KEEP,
    KIND_AT,
    LAST_FIXED,
    LAST_SIZED,
    LIST,
    MAYBE,
    MULT,
    NEXT,
    OK,
    SHORT_FORM,
    STRIDE,
    TAG_STRIDE,
    TAGEND,
    TEXT,
)
from kdissect.schema.vm import (  # noqa: F401  (BODIES and LAYOUTS are named in a signature)
    BODIES,
    LAYOUTS,
    Bodies,
    Layouts,
    find_tag,
    uvarint,
)

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]
Int = Any

FILLER = ord("x")
"""What stands for what must not be shown, where zeros would mean something."""
KINDS = 6
"""Kinds of text, for counting."""


@struct
class Span:
    """A text that the caller judges."""

    kind: int
    """What it is: KEEP, KEEP_NAME, CONFIG_NAME, CONFIG_VALUE or RECORDS."""
    at: int
    """Where it is."""
    size: int
    """Its bytes."""
    name_at: int
    """Of a configuration's value, where its name is."""
    name_size: int
    """Bytes of that, -1 none."""


span_at = view(Span)
SPAN_COLUMNS = width(Span)


@part
def blank_bytes(s: Bytes, at: Int, size: Int) -> None:
    """`size` bytes of filler; the caller has checked that they are there."""
    for k in range(at, at + size):
        s[k] = FILLER


@part
def blank_tags(s: Bytes, o: Int, end: Int) -> None:
    """The values of all tags of the tag buffer at `o`, which ends at `end` or before."""
    left, o = uvarint(s, o, end)
    while o > 0 and left > 0:
        left -= 1
        _, o = uvarint(s, o, end)
        if o > 0:
            size, o = uvarint(s, o, end)
            if o > 0:
                size = min(size, end - o)
                blank_bytes(s, o, size)
                o += size


@part
def blank_header(s: Bytes, start: Int, body: Int, side: Int) -> None:
    """The tags of a header in s[start:body] (behind the length prefix): Kafka has none there so far."""
    o = start + 4
    if side == 0:
        o = start + 10
        if o > body:
            return
        o += max(int16_at(s, start + 8), 0)
    if o < body:
        blank_tags(s, o, body)


@kernel("u1[:] i8[:] i8[:]")
def blank_headers(s: Bytes, start: Ints, body: Ints) -> None:
    """`blank_header` of requests and responses in turn; `body` -1: none."""
    for f in range(start.size):
        if body[f] >= 0 and start[f] >= 0 and body[f] <= s.size:
            blank_header(s, start[f], body[f], f & 1)


@kernel("u1[:] BODIES LAYOUTS i8[:] i8[:,:] i8[:] b1 i8 -> i8")
def blank_fields(
    s: Bytes, bodies: Bodies, layouts: Layouts, stack: Ints, spans: Ints, counts: Ints, judge_names: bool, first: Int
) -> Int:
    """Replace texts of the bodies in `s` from frame `first` on; the frame it stopped at (`spans` is full).

    spans[:counts[KINDS]] are for the caller to judge: record sets, configurations' values, and where `judge_names`, all
    other texts that may stay. counts[kind] is the number of texts that are not empty, by kind.
    """
    begin, end, program, status = bodies.begin, bodies.end, bodies.program, bodies.status
    programs, rows, tags = layouts.programs, layouts.rows, layouts.tags
    for f in range(first, begin.size):
        which = program[f]
        if which < 0 or status[f] != OK:
            continue
        o = begin[f]
        limit = end[f]
        if o < 0 or limit > s.size or o > limit:
            continue
        before = counts[KINDS]
        q = programs[which, 0] * STRIDE
        top = 0
        name_at: Int = np.int64(0)
        name_size: Int = np.int64(-1)
        good = False
        while o <= limit:
            op = rows[q]
            a = rows[q + 1]
            b = rows[q + 2]
            d = rows[q + 4]
            e = rows[q + 5]
            kind = rows[q + KIND_AT]
            here = q
            q += STRIDE
            if op <= LAST_FIXED:
                if a > limit - o:
                    break
                if op == MAYBE and s[o] == 255:
                    q = b * STRIDE
                o += a
                continue
            if op == NEXT:
                stack[top + 1] -= 1
                if stack[top + 1] > 0:
                    q = stack[top]
                else:
                    top -= 4
                continue
            if op <= LAST_SIZED:
                if a == COMPACT:
                    n, o = uvarint(s, o, limit)
                    if o < 0:
                        break
                    n -= 1
                else:
                    if a > limit - o:
                        break
                    n = int16_at(s, o) if a == SHORT_FORM else int32_at(s, o)
                    o += a
                if op == TEXT:
                    if n > limit - o:
                        break
                    if n > 0:
                        counts[kind] += 1
                    if kind == CONFIG_NAME:
                        name_at = o
                        name_size = n
                    if kind == BLANK:
                        blank_bytes(s, o, max(n, 0))
                    elif n > 0 and (kind >= CONFIG_VALUE or (judge_names and kind >= KEEP)):
                        row = counts[KINDS]
                        if row >= spans.shape[0]:
                            counts[KINDS] = before
                            return f
                        span = span_at(spans, row)
                        span.kind, span.at, span.size = kind, o, n
                        span.name_at, span.name_size = name_at, name_size
                        counts[KINDS] = row + 1
                    o += max(n, 0)
                    continue
                if op == MULT:
                    if n > 0:
                        o += n * d
                    continue
                if op == LIST:
                    if n > 0 and top + 8 <= stack.size:
                        top += 4
                        stack[top] = q
                        stack[top + 1] = n
                    else:
                        q = e * STRIDE
                    continue
                if n < 0 or top + 8 > stack.size:
                    q = rows[here + 3] * STRIDE
                    continue
                top += 4
                stack[top] = here
                stack[top + 1] = n + 1
                stack[top + 2] = limit
            elif op == TAGEND:
                if o != limit:
                    break
                limit = stack[top + 2]
                here = stack[top]
            else:
                good = o == limit
                break
            # inside a tag buffer: on to the next tag whose value the schema knows, or behind the last one
            left = stack[top + 1]
            found = False
            while left > 0 and not found:
                left -= 1
                tag, o = uvarint(s, o, limit)
                if o < 0:
                    break
                n, o = uvarint(s, o, limit)
                if o < 0 or n > limit - o:
                    o = np.int64(-1)
                    break
                known = find_tag(tags, rows[here + 4], rows[here + 5], tag)
                if known >= 0:
                    q = tags[(rows[here + 4] + known) * TAG_STRIDE + 1] * STRIDE
                    limit = o + n
                    found = True
                else:
                    blank_bytes(s, o, n)
                    o += n
            if o < 0:
                break
            stack[top + 1] = left
            if not found:
                q = rows[here + 3] * STRIDE
                top -= 4
        if not good:
            blank_bytes(s, begin[f], end[f] - begin[f])
    return begin.size

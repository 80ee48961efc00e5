"""The kernel which runs count programs over bodies: it checks them and counts what their columns will hold.

`opcodes` says what the rows mean. Bytes come from the network, so every read is checked against the frame's limit here,
even where numba's own check would do. A body that does not fit gets a status and leaves the counters as it found them.
Nothing raises on data. Work is bounded by the size of the body. An array count is checked against what the rest of the
body can hold at its element's least size before anything else, and elements of no size count as one byte.

All offsets are int64 and positions are turned into uint64 to index, which spares the test for negative indices.
"""

from typing import Any, NamedTuple

import numpy as np

from kdissect.kernels.kernel import kernel, part
from kdissect.kernels.memory import copy_bytes, fetch, int16_at, int32_at
from kdissect.kernels.signature import fields
from kdissect.kernels.structs import struct, view, width
from kdissect.schema import opcodes as k

Array = Any
"""numba types its arguments; mypy need not."""

U1, U2, U3, U4, U5, U6, U7 = (np.uint64(i) for i in range(1, 8))
"""Positions are unsigned: a signed one next to them would make a float."""
ROW = np.int64(k.STRIDE)
NULL = -1
NEAR, BROUGHT = 64, 256
"""Bytes that a step looks at at most, by far; bytes brought at once."""
ALL = 1 << 62
AHEAD = 8
"""Bodies between asking for memory and using it."""


@struct
class CountRow:
    """A row of a count program; `kind` is what `redact` does with a text."""

    op: int
    """What to do, as all fields here: `opcodes` says what they mean for it."""
    a: int
    """Bytes of fixed fields, or the form of a length."""
    b: int
    """Whether null is allowed, or the error is the answer's own; the counter of unknown tags; where to go on."""
    c: int
    """The counter, or where to go on."""
    d: int
    """Least size of an element, or the first known tag."""
    e: int
    """Where to go on behind the list, or how many tags are known."""
    unused: int
    """Nothing."""
    kind: int
    """What `redact` does with a text."""


@struct
class Apart:
    """A piece of a body that does not lie where it belongs."""

    place: int
    """Where it belongs."""
    length: int
    """Its bytes."""
    at: int
    """Where it lies."""


count_row_at, apart_at = view(CountRow), view(Apart)
APART_WIDTH = width(Apart)


class Bodies(NamedTuple):
    """Bodies of messages among the bytes that kernels are given, and the layout of each."""

    begin: Array
    """int64: where each begins."""
    end: Array
    """int64: where each ends, behind its last byte."""
    program: Array
    """int32: the id of its layout, a row of `Layouts.programs`; -1 none."""
    status: Array
    """int8: whether it fits, OK to NO_PROGRAM of `opcodes`."""


class Layouts(NamedTuple):
    """The programs of layouts (`opcodes`)."""

    programs: Array
    """int64 [n, 4]: count address, fill address (-1: nothing was asked for), first counter, end of counters."""
    rows: Array
    """int64: the rows of all programs, STRIDE each; an address counts rows."""
    tags: Array
    """int64: known tags, TAG_STRIDE each."""


BODIES = fields(Bodies, "i8[:] i8[:] i4[:] i1[:]")
LAYOUTS = fields(Layouts, "i8[:,:] i8[:] i8[:]")
"""What kernels that take them declare."""


class Skim(NamedTuple):
    """The arguments of `consumes`: the programs of every layout without columns, and room to work in (one per
    thread)."""

    programs: Array
    """int64 [n, 4]: count address, fill address, first counter, end of counters."""
    rows: Array
    tags: Array
    alternative: Array
    """int32 [n]: the next layout that the same version once had, -1 none."""
    counters: Array
    saved: Array
    stack: Array
    begin: Array
    end: Array
    program: Array
    status: Array
    seen: Array
    room: Array
    apart: Array
    spare: Array


SKIM = fields(Skim, "i8[:,:] i8[:] i8[:] i4[:] i8[:] i8[:] i8[:] i8[:] i8[:] i4[:] i1[:] i4[:] u1[:] i8[:,:] i8[:]")
"""What kernels that take it declare."""


@part
def row_at(address: Any) -> Any:
    """Where a row starts in the flat table."""
    return np.int64(address * k.STRIDE)


@part
def more(s: Array, o: Any, limit: Any, c: Any) -> Any:
    """(value, next offset) of an unsigned varint whose first byte c, just before o, is not its last. It has five bytes
    at most; else the offset is -SHORT or -BAD_VARINT."""
    value = c & 127
    shift = np.int64(7)
    while o < limit:
        c = np.int64(s[np.uint64(o)])
        o += 1
        value |= (c & 127) << shift
        if c < 128:
            return value, o
        shift += 7
        if shift == 35:
            return value, np.int64(-k.BAD_VARINT)
    return value, np.int64(-k.SHORT)


@part
def uvarint(s: Array, o: Any, limit: Any) -> Any:
    """(value, next offset) of an unsigned varint; the offset is a negative status where it is none."""
    if o >= limit:
        return np.int64(0), np.int64(-k.SHORT)
    c = np.int64(s[np.uint64(o)])
    if c < 128:
        return c, o + 1
    return more(s, o + 1, limit, c)


@part
def find_tag(tags: Array, first: Any, tag_count: Any, tag: Any) -> Any:
    """The row, among the `tag_count` tags from row `first` of the tag table, of a tag, -1 none."""
    for t in range(tag_count):
        if tags[(first + t) * k.TAG_STRIDE] == tag:
            return t
    return np.int64(-1)


@part
def _behind(apart: Array, o: Any) -> Any:
    """The first of the pieces that lie apart which ends behind `o`."""
    low, high = np.int64(0), np.int64(apart.shape[0])
    while low < high:
        middle = (low + high) >> 1
        if apart_at(apart, middle).place + apart_at(apart, middle).length > o:
            high = middle
        else:
            low = middle + 1
    return low


@part
def _bring(s: Array, room: Array, apart: Array, o: Any, size: Any, stop: Any) -> Any:
    """Bring the next `size` bytes from `o` on, or BROUGHT where these are more, up to `stop`, to their place; up to
    where they are there then."""
    until = min(o + max(size, np.int64(BROUGHT)), stop)
    row = _behind(apart, o)
    while row < apart.shape[0] and apart_at(apart, row).place < until:
        piece = apart_at(apart, row)
        begin = max(o, piece.place)
        size = min(until, piece.place + piece.length) - begin
        copy_bytes(room, begin, s, piece.at + begin - piece.place, size)
        row += 1
    return until if until < stop else np.int64(ALL)


@kernel("const u1[:] BODIES LAYOUTS i8[:] i8[:] i8[:] i4[:] u1[:] i8[:,:] i8[:]")
def count(
    s: Array, bodies: Bodies, layouts: Layouts, counters: Array, saved: Array, stack: Array, seen: Array, room: Array,
    apart: Array, leftover: Array,
) -> None:  # fmt: skip
    """Check each of the `Bodies` in `s` against its program of the `Layouts`, which settles its status; count rows and
    bytes of columns into `counters`. `saved` is room for as many.

    `apart`: rows of `Apart`, in rising order, pieces that lie somewhere else in `s`. Bytes that are looked at, here or
    for a column, are brought to their place, through `room`, which is `s` then. `seen`
    int32 [4 n]: error_code, error_first, error_count, throttle_ms of each frame that fits; NO_CODE, 0, 0, -1 of one
    that does not, which does not change the counters either. `leftover`: of so many first frames, the bytes that stand
    behind the last field. Where it is 0 before, the bytes that are left over there are counted into it, and the body
    fits. Below 0 the body must end with its last field, as others must.
    """
    begin, end, program, status = bodies.begin, bodies.end, bodies.program, bodies.status
    programs, rows, tags = layouts.programs, layouts.rows, layouts.tags
    for f in range(begin.size):
        if f + AHEAD < begin.size:
            fetch(s, begin[f + AHEAD])
            fetch(s, begin[f + AHEAD] + 64)
        seen[4 * f] = k.NO_CODE
        seen[4 * f + 1] = 0
        seen[4 * f + 2] = 0
        seen[4 * f + 3] = -1
        which = program[f]
        if which < 0:
            status[f] = k.NO_PROGRAM
            continue
        o = begin[f]
        stop = end[f]
        if o < 0 or stop > s.size or o > stop:
            status[f] = k.SHORT
            continue
        limit = stop
        q = row_at(programs[which, 0])
        first = programs[which, 2]
        last = programs[which, 3]
        for i in range(first, last):
            saved[i] = counters[i]
        top = np.uint64(0)  # the stack's last entry: address, left, outer limit, tags seen
        bad = k.OK
        code = k.NO_CODE
        error = np.int64(0)
        errors = np.int64(0)
        throttle = np.int64(-1)
        there = np.int64(ALL)  # up to where bytes are in their place
        if apart.shape[0] > 0:
            row = _behind(apart, o)
            if row < apart.shape[0] and apart_at(apart, row).place < stop:
                there = o
        while True:
            if o + NEAR > there:
                there = _bring(s, room, apart, o, np.int64(NEAR), stop)
            step = count_row_at(rows, q)
            op, a, b, c, d, e = step.op, step.a, step.b, step.c, step.d, step.e
            q += ROW
            if op <= k.LAST_FIXED:
                if a > limit - o:
                    bad = k.SHORT
                    break
                if o + a > there:
                    there = _bring(s, room, apart, o, a, stop)
                if op == k.ERROR:
                    n = int16_at(s, o)
                    if n != 0:
                        errors += 1
                        if error == 0:
                            error = n
                    if b != 0:
                        code = n
                elif op == k.THROTTLE:
                    throttle = int32_at(s, o)
                elif op == k.MAYBE:
                    marker = s[np.uint64(o)]
                    if marker == 255:
                        q = row_at(b)
                    elif marker != 1:
                        bad = k.BAD_LENGTH
                        break
                o += a
                continue
            if op <= k.LAST_SIZED:
                if a > limit - o:
                    bad = k.SHORT
                    break
                if a == k.COMPACT:
                    n = np.int64(s[np.uint64(o)])
                    o += 1
                    if n >= 128:
                        n, o = more(s, o, limit, n)
                        if o < 0:
                            bad = -o
                            break
                    n -= 1
                else:
                    n = int16_at(s, o) if a == k.SHORT_FORM else int32_at(s, o)
                    o += a
                    if n < NULL:
                        bad = k.BAD_LENGTH
                        break
                if op != k.TAGS:
                    if n < 0:
                        if b == 0:
                            bad = k.BAD_NULL
                            break
                        if op == k.LIST:
                            q = row_at(e)
                        continue
                    if op == k.TEXT:
                        if n > limit - o:
                            bad = k.SHORT
                            break
                        if c != 0 and o + n > there:
                            there = _bring(s, room, apart, o, n, stop)
                        o += n
                    else:
                        if n * d > limit - o:
                            bad = k.BAD_COUNT
                            break
                        if op == k.MULT:
                            if c != 0 and o + n * d > there:
                                there = _bring(s, room, apart, o, n * d, stop)
                            o += n * d
                        elif n == 0:
                            q = row_at(e)
                        else:
                            top += U4
                            stack[top] = q
                            stack[top + U1] = n
                    counters[np.uint64(c)] += n
                    continue
                if n < 0:  # no tags at all, nearly always
                    q = row_at(c)
                    continue
                if n + 1 > (limit - o) >> 1:  # a tag takes two bytes at least
                    bad = k.BAD_COUNT
                    break
                top += U4
                stack[top] = q - ROW
                stack[top + U1] = n + 1
                stack[top + U2] = limit
                stack[top + U3] = 0
            elif op == k.NEXT:
                stack[top + U1] -= 1
                if stack[top + U1] > 0:
                    q = stack[top]
                else:
                    top -= U4
                continue
            elif op == k.TAGEND:
                if o != limit:
                    bad = k.BAD_TAG
                    break
                limit = stack[top + U2]
                q = stack[top]
                step = count_row_at(rows, q)
                b, c, d, e = step.b, step.c, step.d, step.e
            else:
                if o != stop:
                    if f < leftover.size and leftover[f] == 0:
                        leftover[f] = stop - o
                    else:
                        bad = k.TRAILING
                break
            # inside a tag buffer: on to the next tag whose value the schema knows, or behind the last one
            q = row_at(c)
            left = stack[top + U1]
            while left > 0:
                left -= 1
                if o + NEAR > there:
                    there = _bring(s, room, apart, o, np.int64(NEAR), stop)
                tag, o = uvarint(s, o, limit)
                if o > 0:
                    n, o = uvarint(s, o, limit)
                if o < 0:
                    bad = -o
                    break
                if n > limit - o:
                    bad = k.SHORT
                    break
                known = find_tag(tags, d, e, tag)
                if known >= 0:
                    bit = np.int64(1) << known
                    if stack[top + U3] & bit != 0:
                        bad = k.BAD_TAG
                        break
                    stack[top + U1] = left
                    stack[top + U3] |= bit
                    q = row_at(tags[(d + known) * k.TAG_STRIDE + 1])
                    limit = o + n
                    left = np.int64(-1)
                    break
                if b != 0:
                    if o + n > there:
                        there = _bring(s, room, apart, o, n, stop)
                    counters[b] += 1
                    counters[b + 1] += n
                o += n
            if bad != k.OK:
                break
            if left == 0:
                top -= U4
        status[f] = bad
        if bad != k.OK:
            for i in range(first, last):
                counters[i] = saved[i]
        else:
            counters[first] += 1
            seen[4 * f] = code
            seen[4 * f + 1] = error
            seen[4 * f + 2] = errors
            seen[4 * f + 3] = throttle


@kernel("i4[:] i1[:] i8[:]")
def tally(program: Array, status: Array, counts: Array) -> None:
    """Count the frames of each program into `counts`: all of them, or, where there is a `status`, those that fit."""
    for f in range(program.size):
        which = program[f]
        if which >= 0 and (status.size == 0 or status[f] == k.OK):
            counts[which] += 1


@kernel("const i4[:] const i1[:] const i2[:] i8[:] i8[:]")
def sort(program: Array, status: Array, number: Array, places: Array, frames: Array) -> None:
    """The frames that fit, by the `number` of their program (below 0: left out), in order. `places`: where the frames
    of each number begin in `frames`; where they end, afterwards."""
    for f in range(program.size):
        if program[f] >= 0 and status[f] == k.OK:
            which = number[program[f]]
            if which >= 0:
                frames[places[which]] = f
                places[which] += 1


@part
def consumes(s: Array, begin: Any, end: Any, program: Any, skim: Any) -> Any:
    """The status of one body against one program (OK 0: it fits exactly), or any other layout its version once had.

    Callable from kernels; `skim` is a `Skim` which no other thread uses at the same time. `skim.seen` then holds the
    error codes and throttle time where it fits.
    """
    skim.begin[0] = begin
    skim.end[0] = end
    skim.program[0] = program
    bodies = Bodies(skim.begin, skim.end, skim.program, skim.status)
    layouts = Layouts(skim.programs, skim.rows, skim.tags)
    count(s, bodies, layouts, skim.counters, skim.saved, skim.stack, skim.seen, skim.room, skim.apart, skim.spare)
    first = skim.status[0]
    while skim.status[0] != k.OK and skim.program[0] >= 0 and skim.alternative[skim.program[0]] >= 0:
        skim.program[0] = skim.alternative[skim.program[0]]
        count(s, bodies, layouts, skim.counters, skim.saved, skim.stack, skim.seen, skim.room, skim.apart, skim.spare)
    return k.OK if skim.status[0] == k.OK else first

"""The kernels which run programs over bodies: one pass counts and checks, one fills columns.

`opcodes` says what the rows mean. Bytes come from the network, so every read is checked against the frame's limit here,
whatever numba's own check would do; a body that does not fit gets a status and leaves the counters as it found them.
Nothing raises on data. Work is bounded by the size of the body: an array count is checked against what the rest of the
body can hold at its element's least size before anything else, and elements of no size count as one byte.

All offsets are int64 and positions are turned into uint64 to index, which spares the test for negative indices.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kdissect._kernel import kernel
from kdissect.schema.opcodes import (
    BAD_COUNT, BAD_LENGTH, BAD_NULL, BAD_TAG, BAD_VARINT, BOOL_WIDTH, COMPACT, ERROR, F_CONST, F_EMPTY, F_INT32, F_INT32S,
    F_INT64, F_INTEGER, F_JUMP, F_LIST, F_MAYBE, F_NEXT, F_PASS, F_SIZE, F_SKIP, F_STOP, F_TAGEND, F_TAGS, F_TEXT, F_UUID,
    LAST_FIXED, LAST_SIZED, LIST, MAYBE, MULT, NEXT, NO_CODE, NO_PROGRAM, OK, SHORT, SHORT_FORM, STRIDE, TAG_STRIDE,
    TAGS, TEXT, THROTTLE, TAGEND, TRAILING,
)  # fmt: skip

Array = Any
"""numba types its arguments; mypy need not."""

_U1, _U2, _U3, _U4, _U5, _U6, _U7 = (np.uint64(i) for i in range(1, 8))
_ROW = np.uint64(STRIDE)
_ALPHABET = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_", np.uint8).copy()
NULL = -1


class Skim(NamedTuple):
    """What `consumes` needs: the programs of every layout without columns, and room to work in (one per thread)."""

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


@kernel
def be16(s: Array, o: Any) -> Any:
    """Signed 16-bit big endian."""
    p = np.uint64(o)
    x = (np.int64(s[p]) << 8) | np.int64(s[p + _U1])
    return x - 65536 if x >= 32768 else x


@kernel
def be32(s: Array, o: Any) -> Any:
    """Signed 32-bit big endian."""
    p = np.uint64(o)
    x = (
        (np.int64(s[p]) << 24)
        | (np.int64(s[p + _U1]) << 16)
        | (np.int64(s[p + _U2]) << 8)
        | np.int64(s[p + _U3])
    )
    return x - 4294967296 if x >= 2147483648 else x


@kernel
def row_at(address: Any) -> Any:
    """Where a row starts in the flat table."""
    return np.uint64(address * STRIDE)


@kernel
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
            return value, np.int64(-BAD_VARINT)
    return value, np.int64(-SHORT)


@kernel
def uvarint(s: Array, o: Any, limit: Any) -> Any:
    """(value, next offset) of an unsigned varint; the offset is a negative status where it is none."""
    if o >= limit:
        return np.int64(0), np.int64(-SHORT)
    c = np.int64(s[np.uint64(o)])
    if c < 128:
        return c, o + 1
    return more(s, o + 1, limit, c)


@kernel
def find_tag(tags: Array, first: Any, known: Any, tag: Any) -> Any:
    """Which of the `known` tags from row `first` of the tag table it is, -1 none."""
    for t in range(known):
        if tags[(first + t) * TAG_STRIDE] == tag:
            return t
    return np.int64(-1)


@kernel
def count(
    s: Array, begin: Array, end: Array, program: Array, programs: Array, rows: Array, tags: Array, counters: Array,
    saved: Array, stack: Array, status: Array, seen: Array,
) -> None:  # fmt: skip
    """Check each frame's body s[begin:end] against its program; count rows and bytes of columns into `counters`.

    `seen` int32 [4 n]: error_code, error_first, error_count, throttle_ms of each frame that fits. One that does not
    changes neither counters nor `seen`.
    """
    for f in range(begin.size):
        which = program[f]
        if which < 0:
            status[f] = NO_PROGRAM
            continue
        o = begin[f]
        stop = end[f]
        if o < 0 or stop > s.size or o > stop:
            status[f] = SHORT
            continue
        limit = stop
        q = row_at(programs[which, 0])
        first = programs[which, 2]
        last = programs[which, 3]
        for i in range(first, last):
            saved[i] = counters[i]
        top = np.uint64(0)  # the stack's last entry: address, left, outer limit, tags seen
        bad = OK
        code = NO_CODE
        error = np.int64(0)
        errors = np.int64(0)
        throttle = np.int64(-1)
        while True:
            op = rows[q]
            a = rows[q + _U1]
            b = rows[q + _U2]
            c = rows[q + _U3]
            d = rows[q + _U4]
            e = rows[q + _U5]
            q += _ROW
            if op <= LAST_FIXED:
                if a > limit - o:
                    bad = SHORT
                    break
                if op == ERROR:
                    n = be16(s, o)
                    if n != 0:
                        errors += 1
                        if error == 0:
                            error = n
                    if b != 0:
                        code = n
                elif op == THROTTLE:
                    throttle = be32(s, o)
                elif op == MAYBE:
                    marker = s[np.uint64(o)]
                    if marker == 255:
                        q = row_at(b)
                    elif marker != 1:
                        bad = BAD_LENGTH
                        break
                o += a
                continue
            if op <= LAST_SIZED:
                if a > limit - o:
                    bad = SHORT
                    break
                if a == COMPACT:
                    n = np.int64(s[np.uint64(o)])
                    o += 1
                    if n >= 128:
                        n, o = more(s, o, limit, n)
                        if o < 0:
                            bad = -o
                            break
                    n -= 1
                else:
                    n = be16(s, o) if a == SHORT_FORM else be32(s, o)
                    o += a
                    if n < NULL:
                        bad = BAD_LENGTH
                        break
                if op != TAGS:
                    if n < 0:
                        if b == 0:
                            bad = BAD_NULL
                            break
                        if op == LIST:
                            q = row_at(e)
                        continue
                    if op == TEXT:
                        if n > limit - o:
                            bad = SHORT
                            break
                        o += n
                    else:
                        if n * d > limit - o:
                            bad = BAD_COUNT
                            break
                        if op == MULT:
                            o += n * d
                        elif n == 0:
                            q = row_at(e)
                        else:
                            top += _U4
                            stack[top] = np.int64(q)
                            stack[top + _U1] = n
                    counters[np.uint64(c)] += n
                    continue
                if n < 0:  # no tags at all, nearly always
                    q = row_at(c)
                    continue
                if n + 1 > (limit - o) >> 1:  # a tag takes two bytes at least
                    bad = BAD_COUNT
                    break
                top += _U4
                stack[top] = np.int64(q - _ROW)
                stack[top + _U1] = n + 1
                stack[top + _U2] = limit
                stack[top + _U3] = 0
            elif op == NEXT:
                stack[top + _U1] -= 1
                if stack[top + _U1] > 0:
                    q = np.uint64(stack[top])
                else:
                    top -= _U4
                continue
            elif op == TAGEND:
                if o != limit:
                    bad = BAD_TAG
                    break
                limit = stack[top + _U2]
                q = np.uint64(stack[top])
                b = rows[q + _U2]
                c = rows[q + _U3]
                d = rows[q + _U4]
                e = rows[q + _U5]
            else:
                if o != stop:
                    bad = TRAILING
                break
            # inside a tag buffer (TAGS, TAGEND): on to the next tag whose value the schema knows, or behind the last one
            q = row_at(c)
            left = stack[top + _U1]
            while left > 0:
                left -= 1
                tag, o = uvarint(s, o, limit)
                if o > 0:
                    n, o = uvarint(s, o, limit)
                if o < 0:
                    bad = -o
                    break
                if n > limit - o:
                    bad = SHORT
                    break
                known = find_tag(tags, d, e, tag)
                if known >= 0:
                    bit = np.int64(1) << known
                    if stack[top + _U3] & bit != 0:
                        bad = BAD_TAG
                        break
                    stack[top + _U1] = left
                    stack[top + _U3] |= bit
                    q = row_at(tags[(d + known) * TAG_STRIDE + 1])
                    limit = o + n
                    left = np.int64(-1)
                    break
                o += n
                if b != 0:
                    counters[b] += 1
                    counters[b + 1] += n
            if bad != OK:
                break
            if left == 0:
                top -= _U4
        status[f] = bad
        if bad != OK:
            for i in range(first, last):
                counters[i] = saved[i]
        else:
            counters[first] += 1
            seen[4 * f] = code
            seen[4 * f + 1] = error
            seen[4 * f + 2] = errors
            seen[4 * f + 3] = throttle


@kernel
def consumes(s: Array, begin: Any, end: Any, program: Any, skim: Any) -> Any:
    """The status of one body against one program (OK 0: it fits exactly), or any other layout its version once had.

    Callable from kernels; `skim` is a `Skim` which nobody else uses at the same time. `skim.seen` then holds the
    error codes and throttle time where it fits.
    """
    skim.begin[0] = begin
    skim.end[0] = end
    skim.program[0] = program
    count(
        s, skim.begin, skim.end, skim.program, skim.programs, skim.rows, skim.tags, skim.counters, skim.saved, skim.stack,
        skim.status, skim.seen,
    )  # fmt: skip
    first = skim.status[0]
    while skim.status[0] != OK and skim.program[0] >= 0 and skim.alternative[skim.program[0]] >= 0:
        skim.program[0] = skim.alternative[skim.program[0]]
        count(
            s, skim.begin, skim.end, skim.program, skim.programs, skim.rows, skim.tags, skim.counters, skim.saved,
            skim.stack, skim.status, skim.seen,
        )  # fmt: skip
    return OK if skim.status[0] == OK else first


@kernel
def set_bit(out: Array, base: Any, row: Any) -> None:
    """Set bit `row` of the bitmap which starts at byte `base`."""
    out[np.uint64(base + (row >> 3))] |= np.uint8(1 << (row & 7))


@kernel
def uuid_text(s: Array, o: Any, out: Array, at: Any) -> None:
    """16 bytes as the 22 characters of Kafka's own form (base64url without padding, Uuid.toString)."""
    p = np.uint64(o)
    w = np.uint64(at)
    for group in range(6):  # three bytes are four characters; the last byte is two
        x = np.int64(s[p]) << 16
        characters = 2
        if group < 5:
            x |= (np.int64(s[p + _U1]) << 8) | np.int64(s[p + _U2])
            characters = 4
        for i in range(characters):
            out[w + np.uint64(i)] = _ALPHABET[np.uint64((x >> (18 - 6 * i)) & 63)]
        p += _U3
        w += np.uint64(4)


@kernel
def copy(s: Array, o: Any, out: Array, at: Any, n: Any) -> Any:
    """Copy n bytes; all their bits together (more than 127: not ASCII)."""
    p = np.uint64(o)
    w = np.uint64(at)
    bits = np.uint8(0)
    for i in range(np.uint64(n)):
        x = s[p + i]
        out[w + i] = x
        bits |= x
    return bits


@kernel
def fill(
    s: Array, begin: Array, end: Array, program: Array, programs: Array, rows: Array, tags: Array, constants: Array,
    columns: Array, counters: Array, stack: Array, status: Array, high: Array, out8: Array, out16: Array, out32: Array,
    out64: Array,
) -> Any:  # fmt: skip
    """Write the columns of every frame which `count` found to fit, in the same order, with counters from zero.

    `columns` int64 [3 n]: where column i starts (in elements of its width; offsets for lists and text; -1: no version in
    this batch has it), its validity bitmap (bytes, -1: none is null), its text (bytes). `high[counter]` is set where text
    holds a byte above 127. Lengths are not checked again one by one: `count` did, for the same bytes and the same
    layout. Returns how many frames were left at another place than their end (0 but for a bug of the compiler).
    """
    failed = 0
    for f in range(begin.size):
        which = program[f]
        if which < 0 or status[f] != OK or programs[which, 1] < 0:
            continue
        o = begin[f]
        limit = end[f]
        q = row_at(programs[which, 1])
        top = np.uint64(0)  # the stack's last entry: address, left, counter or outer limit, tags seen
        while o <= limit:
            op = rows[q]
            level = rows[q + _U1]
            column = rows[q + _U2]
            a = rows[q + _U3]
            b = rows[q + _U4]
            c = rows[q + _U5]
            row = counters[np.uint64(level)]
            base = np.int64(-1)
            valid = np.int64(-1)
            if column >= 0:
                base = columns[np.uint64(3 * column)]
                valid = columns[np.uint64(3 * column + 1)]
            q += _ROW
            if op == F_INT32:
                out32[np.uint64(base + row)] = be32(s, o)
                o += 4
            elif op == F_INT64:
                out64[np.uint64(base + row)] = (be32(s, o) << 32) | (be32(s, o + 4) & 0xFFFFFFFF)
                o += 8
            elif op == F_SKIP:
                o += a
            elif op == F_INTEGER or op == F_CONST:
                value = np.int64(0)
                if op == F_CONST:
                    value = constants[a]
                else:
                    for _ in range(a):
                        value = (value << 8) | np.int64(s[np.uint64(o)])
                        o += 1
                    if c != 0:
                        value = (value << (64 - 8 * a)) >> (64 - 8 * a)
                if b == BOOL_WIDTH:
                    if value != 0:
                        set_bit(out8, base, row)
                elif b == 0:
                    out8[np.uint64(base + row)] = np.uint8(value & 255)
                elif b == 1:
                    out16[np.uint64(base + row)] = value
                elif b == 2:
                    out32[np.uint64(base + row)] = value
                else:
                    out64[np.uint64(base + row)] = value
            elif op >= F_TEXT and op <= F_TAGS:
                if a == COMPACT:
                    n = np.int64(s[np.uint64(o)])
                    o += 1
                    if n >= 128:
                        n, o = more(s, o, limit, n)
                    n -= 1
                else:
                    n = be16(s, o) if a == SHORT_FORM else be32(s, o)
                    o += a
                if o < 0 or n > limit - o:
                    break
                if op == F_TEXT:
                    to = counters[b]
                    if n >= 0:
                        if copy(s, o, out8, columns[3 * column + 2] + to, n) >= 128:
                            high[b] = 1
                        o += n
                        to += n
                        counters[b] = to
                    else:
                        valid = np.int64(-1)
                    out32[np.uint64(base + row + 1)] = to
                elif op == F_PASS:
                    if n > 0:
                        o += n * b
                elif op == F_SIZE:
                    if n >= 0:
                        out32[np.uint64(base + row)] = n
                        if b >= 0:
                            out64[np.uint64(columns[3 * b] + row)] = o
                        o += n
                    else:
                        valid = np.int64(-1)
                elif op == F_TAGS:
                    valid = np.int64(-1)
                    if n < 0:  # none at all, nearly always: the rows that follow write every tag's default
                        if base >= 0:
                            out32[np.uint64(base + row + 1)] = counters[b]
                        continue
                    top += _U4
                    stack[top] = np.int64(q - _ROW)
                    stack[top + _U1] = n + 1
                    stack[top + _U2] = limit
                    stack[top + _U3] = 0
                else:
                    to = counters[b]
                    if base >= 0:
                        out32[np.uint64(base + row + 1)] = to + max(n, 0)
                    if n < 0:
                        valid = np.int64(-1)
                    if op == F_INT32S:
                        w = np.uint64(columns[3 * c] + to)
                        for i in range(np.uint64(max(n, 0))):
                            out32[w + i] = be32(s, o)
                            o += 4
                        counters[b] = to + max(n, 0)
                    elif n > 0:
                        top += _U4
                        stack[top] = np.int64(q)
                        stack[top + _U1] = n
                        stack[top + _U2] = b
                    else:
                        q = row_at(c)
            elif op == F_NEXT:
                counters[stack[top + _U2]] += 1
                stack[top + _U1] -= 1
                if stack[top + _U1] > 0:
                    q = np.uint64(stack[top])
                else:
                    top -= _U4
            elif op == F_UUID:
                if a == 0:
                    uuid_text(s, o, out8, base + row * 22)
                    o += 16
                else:
                    for i in range(22):
                        out8[np.uint64(base + row * 22 + i)] = np.uint8(65)
            elif op == F_EMPTY:
                if base >= 0:
                    out32[np.uint64(base + row + 1)] = counters[a]
                if b == 0:
                    valid = np.int64(-1)
            elif op == F_JUMP:
                q = row_at(a)
            elif op == F_MAYBE:
                valid = np.int64(-1)
                if s[np.uint64(o)] != 1:
                    q = row_at(a)
                o += 1
            elif op == F_TAGEND:
                if a != 0:
                    limit = stack[top + _U2]
            elif op == F_STOP:
                counters[level] += 1
                break
            if valid >= 0:
                set_bit(out8, valid, row)
            if op != F_TAGS and op != F_TAGEND:
                continue
            # inside a tag buffer: the next tag that is asked for, then the defaults of those that did not come, one by one
            q = np.uint64(stack[top])
            row = counters[np.uint64(rows[q + _U1])]
            column = rows[q + _U2]
            sub = rows[q + _U4]
            first = rows[q + _U6]
            known = rows[q + _U7]
            base = columns[3 * column] if column >= 0 else np.int64(-1)
            place = np.int64(-1)
            address = 1
            while stack[top + _U1] > 0 and place < 0:
                stack[top + _U1] -= 1
                tag, o = uvarint(s, o, limit)
                n, o = uvarint(s, o, limit)
                place = find_tag(tags, first, known, tag)
                if place >= 0:
                    limit = o + n
                else:
                    if base >= 0:
                        to = counters[sub + 1]
                        copy(s, o, out8, columns[3 * column + 8] + to, n)
                        out32[np.uint64(columns[3 * column + 3] + counters[sub])] = tag
                        counters[sub] += 1
                        counters[sub + 1] = to + n
                        out32[np.uint64(columns[3 * column + 6] + counters[sub])] = to + n
                        set_bit(out8, columns[3 * column + 1], row)
                    o += n
            if place < 0:
                address = 2
                for i in range(known):
                    if place < 0 and stack[top + _U3] & (np.int64(1) << i) == 0:
                        place = np.int64(i)
            if place >= 0:
                stack[top + _U3] |= np.int64(1) << place
                q = row_at(tags[(first + place) * TAG_STRIDE + address])
            else:
                if base >= 0:
                    out32[np.uint64(base + row + 1)] = counters[sub]
                top -= _U4
                q = row_at(rows[q + _U5])
        if op != F_STOP:
            failed += 1
    return failed

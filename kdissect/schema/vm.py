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

_U1, _U2, _U3 = np.uint64(1), np.uint64(2), np.uint64(3)
_ALPHABET = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_", np.uint8).copy()
NULL = -1
_TOO_NEGATIVE = -2


class Skim(NamedTuple):
    """What `consumes` needs: the programs of every layout without columns, and room to work in (one per thread)."""

    programs: Array
    """int32 [n, 4]: count address, fill address, first counter, end of counters."""
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
def uvarint(s: Array, o: Any, limit: Any) -> Any:
    """(value, next offset) of an unsigned varint of at most five bytes; the offset is -SHORT or -BAD_VARINT where it is
    none."""
    value = np.int64(0)
    shift = np.int64(0)
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
def length(s: Array, o: Any, limit: Any, form: Any) -> Any:
    """(n, next offset) of a length or count in front of something: n is -1 for null. A negative offset is a status."""
    if form == COMPACT:
        n, o = uvarint(s, o, limit)
        return n - 1, o
    if form == SHORT_FORM:
        if limit - o < 2:
            return np.int64(0), np.int64(-SHORT)
        n = be16(s, o)
        o += 2
    else:
        if limit - o < 4:
            return np.int64(0), np.int64(-SHORT)
        n = be32(s, o)
        o += 4
    if n < NULL:
        return n, np.int64(-BAD_LENGTH)
    return n, o


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
        o = np.int64(begin[f])
        stop = np.int64(end[f])
        if o < 0 or stop > s.size or o > stop:
            status[f] = SHORT
            continue
        limit = stop
        q = np.int64(programs[which, 0]) * STRIDE
        first = np.int64(programs[which, 2])
        last = np.int64(programs[which, 3])
        for i in range(first, last):
            saved[i] = counters[i]
        top = np.int64(-4)  # the stack's last entry: address, left, outer limit, tags seen
        bad = np.int64(OK)
        code = np.int64(NO_CODE)
        error = np.int64(0)
        errors = np.int64(0)
        throttle = np.int64(-1)
        while True:
            op = rows[q]
            a = np.int64(rows[q + 1])
            b = np.int64(rows[q + 2])
            c = np.int64(rows[q + 3])
            d = np.int64(rows[q + 4])
            e = np.int64(rows[q + 5])
            q += STRIDE
            if op <= LAST_FIXED:
                if a > limit - o:
                    bad = np.int64(SHORT)
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
                        q = b * STRIDE
                    elif marker != 1:
                        bad = np.int64(BAD_LENGTH)
                        break
                o += a
                continue
            if op <= LAST_SIZED:
                n, o = length(s, o, limit, a)
                if o < 0:
                    bad = -o
                    break
                if op != TAGS:
                    if n < 0:
                        if b == 0:
                            bad = np.int64(BAD_NULL)
                            break
                        if op == LIST:
                            q = e * STRIDE
                        continue
                    if op == TEXT:
                        if n > limit - o:
                            bad = np.int64(SHORT)
                            break
                        o += n
                    else:
                        if n > (limit - o) // d:
                            bad = np.int64(BAD_COUNT)
                            break
                        if op == MULT:
                            o += n * d
                        elif n == 0:
                            q = e * STRIDE
                        else:
                            top += 4
                            stack[top] = q
                            stack[top + 1] = n
                    counters[c] += n
                    continue
                if n + 1 > (limit - o) >> 1:  # a tag takes two bytes at least
                    bad = np.int64(BAD_COUNT)
                    break
                top += 4
                stack[top] = q - STRIDE
                stack[top + 1] = n + 1
                stack[top + 2] = limit
                stack[top + 3] = 0
            elif op == NEXT:
                stack[top + 1] -= 1
                if stack[top + 1] > 0:
                    q = stack[top]
                else:
                    top -= 4
                continue
            elif op == TAGEND:
                if o != limit:
                    bad = np.int64(BAD_TAG)
                    break
                limit = stack[top + 2]
                q = stack[top]
                b = np.int64(rows[q + 2])
                c = np.int64(rows[q + 3])
                d = np.int64(rows[q + 4])
                e = np.int64(rows[q + 5])
            else:
                if o != stop:
                    bad = np.int64(TRAILING)
                break
            # inside a tag buffer (TAGS, TAGEND): on to the next tag whose value the schema knows, or behind the last one
            q = c * STRIDE
            left = stack[top + 1]
            while left > 0:
                left -= 1
                tag, o = uvarint(s, o, limit)
                if o > 0:
                    n, o = uvarint(s, o, limit)
                if o < 0:
                    bad = -o
                    break
                if n > limit - o:
                    bad = np.int64(SHORT)
                    break
                known = find_tag(tags, d, e, tag)
                if known >= 0:
                    bit = np.int64(1) << known
                    if stack[top + 3] & bit != 0:
                        bad = np.int64(BAD_TAG)
                        break
                    stack[top + 1] = left
                    stack[top + 3] |= bit
                    q = np.int64(tags[(d + known) * TAG_STRIDE + 1]) * STRIDE
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
                top -= 4
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
        o = np.int64(begin[f])
        limit = np.int64(end[f])
        q = np.int64(programs[which, 1]) * STRIDE
        top = np.int64(-4)  # the stack's last entry: address, left, counter or outer limit, tags seen
        while o <= limit:
            op = rows[q]
            level = np.int64(rows[q + 1])
            column = np.int64(rows[q + 2])
            a = np.int64(rows[q + 3])
            b = np.int64(rows[q + 4])
            c = np.int64(rows[q + 5])
            row = counters[level]
            base = np.int64(-1)
            valid = np.int64(-1)
            if column >= 0:
                base = columns[3 * column]
                valid = columns[3 * column + 1]
            q += STRIDE
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
                n, o = length(s, o, limit, a)
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
                    top += 4
                    stack[top] = q - STRIDE
                    stack[top + 1] = n + 1
                    stack[top + 2] = limit
                    stack[top + 3] = 0
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
                        top += 4
                        stack[top] = q
                        stack[top + 1] = n
                        stack[top + 2] = b
                    else:
                        q = c * STRIDE
            elif op == F_NEXT:
                counters[stack[top + 2]] += 1
                stack[top + 1] -= 1
                if stack[top + 1] > 0:
                    q = stack[top]
                else:
                    top -= 4
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
                q = a * STRIDE
            elif op == F_MAYBE:
                valid = np.int64(-1)
                if s[np.uint64(o)] != 1:
                    q = a * STRIDE
                o += 1
            elif op == F_TAGEND:
                if a != 0:
                    limit = stack[top + 2]
            elif op == F_STOP:
                counters[level] += 1
                break
            if valid >= 0:
                set_bit(out8, valid, row)
            if op != F_TAGS and op != F_TAGEND:
                continue
            # inside a tag buffer: the next tag that is asked for, then the defaults of those that did not come, one by one
            q = stack[top]
            row = counters[rows[q + 1]]
            column = np.int64(rows[q + 2])
            sub = np.int64(rows[q + 4])
            first = np.int64(rows[q + 6])
            known = np.int64(rows[q + 7])
            base = columns[3 * column] if column >= 0 else np.int64(-1)
            place = np.int64(-1)
            address = 1
            while stack[top + 1] > 0 and place < 0:
                stack[top + 1] -= 1
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
                    if place < 0 and stack[top + 3] & (np.int64(1) << i) == 0:
                        place = np.int64(i)
            if place >= 0:
                stack[top + 3] |= np.int64(1) << place
                q = np.int64(tags[(first + place) * TAG_STRIDE + address]) * STRIDE
            else:
                if base >= 0:
                    out32[np.uint64(base + row + 1)] = counters[sub]
                top -= 4
                q = np.int64(rows[q + 5]) * STRIDE
        if op != F_STOP:
            failed += 1
    return failed

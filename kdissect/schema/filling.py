"""The kernel which runs fill programs: it writes the columns of bodies that `vm.count` found to fit.

It walks the same bytes by the same layout, counters start from zero again, and each value goes to where its column
starts plus its row. Fields that the caller did not ask for are skipped. Lengths need no second check; that every body
is left exactly at its end is checked all the same, as a net below the compiler.
"""

from typing import Any, NamedTuple

import numpy as np

from kdissect.kernels.kernel import kernel, part
from kdissect.kernels.memory import copy_text, fetch, int16_at, int32_at, int64_at
from kdissect.kernels.signature import fields
from kdissect.kernels.structs import struct, view
from kdissect.schema import opcodes as k
from kdissect.schema.vm import (  # noqa: F401  (BODIES and LAYOUTS are named in a signature)
    AHEAD,
    BODIES,
    LAYOUTS,
    ROW,
    U1,
    U2,
    U3,
    U4,
    Array,
    Bodies,
    Layouts,
    find_tag,
    more,
    row_at,
    uvarint,
)


@struct
class FillRow:
    """A row of a fill program; `first` is what is passed over behind a number (`opcodes.BEHIND_AT`), too."""

    op: int
    """What to do, as all fields here: `opcodes` says what they mean for it."""
    level: int
    """The counter of the rows of its column."""
    column: int
    """The column, -1: not asked for."""
    a: int
    """Bytes of fixed fields, or the form of a length."""
    b: int
    """The counter, or the width of the column."""
    c: int
    """Where to go on, or whether the number is signed."""
    first: int
    """What is passed over behind a number (`opcodes.BEHIND_AT`), or the first known tag."""
    known: int
    """How many tags are known."""


@struct
class Place:
    """Where a column starts, its validity bitmap, its text."""

    base: int
    """Where it starts."""
    valid: int
    """Where its validity bitmap starts."""
    text: int
    """Where its text starts."""


fill_row_at, column_at = view(FillRow), view(Place)


class ColumnMemory(NamedTuple):
    """The piece of memory that columns are written to. Places of columns count elements of their width from its
    start."""

    out8: Array
    """The piece as uint8: bitmaps, text, numbers of one byte."""
    out16: Array
    """The piece as int16."""
    out32: Array
    """The piece as int32: offsets, too."""
    out64: Array
    """The piece as int64."""
    high: Array
    """uint8 [counters]: 1 where the text that a counter counts holds a byte above 127."""


COLUMN_MEMORY = fields(ColumnMemory, "u1[:] i2[:] i4[:] i8[:] u1[:]")
"""What kernels that take it declare."""
_ALPHABET = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_", np.uint8).copy()


@part
def set_bit(out: Array, base: Any, row: Any) -> None:
    """Set bit `row` of the bitmap which starts at byte `base`."""
    out[np.uint64(base + (row >> 3))] |= np.uint8(1 << (row & 7))


@part
def uuid_text(s: Array, o: Any, out: Array, at: Any) -> None:
    """16 bytes as the 22 characters of Kafka's own form (base64url without padding, Uuid.toString)."""
    p = np.uint64(o)
    w = np.uint64(at)
    for group in range(6):  # three bytes are four characters; the last byte is two
        x = np.int64(s[p]) << 16
        characters = 2
        if group < 5:
            x |= (np.int64(s[p + U1]) << 8) | np.int64(s[p + U2])
            characters = 4
        for i in range(characters):
            out[w + np.uint64(i)] = _ALPHABET[np.uint64((x >> (18 - 6 * i)) & 63)]
        p += U3
        w += np.uint64(4)


@kernel("const u1[:] BODIES LAYOUTS i8[:] i8[:] i8[:] i8[:] COLUMN_MEMORY -> i8")
def fill(
    s: Array, bodies: Bodies, layouts: Layouts, constants: Array, columns: Array, counters: Array, stack: Array,
    memory: ColumnMemory,
) -> Any:  # fmt: skip
    """Write the columns of every frame which `count` found to fit, in the same order, with counters from zero.

    `columns` int64 [3 n]: where column i starts, its validity bitmap (bytes, -1: none is null), its text (bytes). The
    start is in elements of its width; offsets for lists and text; -1: no version in this batch has it. Lengths are not
    checked again one by one: `count` did, for the same bytes and the same layout. Returns how many frames were left at
    another place than their end (0 but for a bug of the compiler).
    """
    begin, end, program, status = bodies.begin, bodies.end, bodies.program, bodies.status
    programs, rows, tags = layouts.programs, layouts.rows, layouts.tags
    out8, out16, out32, out64, high = memory.out8, memory.out16, memory.out32, memory.out64, memory.high
    failed = 0
    for f in range(begin.size):
        if f + AHEAD < begin.size:
            fetch(s, begin[f + AHEAD])
            fetch(s, begin[f + AHEAD] + 64)
        which = program[f]
        if which < 0 or status[f] != k.OK or programs[which, 1] < 0:
            continue
        o = begin[f]
        limit = end[f]
        q = row_at(programs[which, 1])
        top = np.uint64(0)  # the stack's last entry: address, left, counter or outer limit, tags seen
        while o <= limit:
            step = fill_row_at(rows, q)
            op, level, column, a, b, c = step.op, step.level, step.column, step.a, step.b, step.c
            row = counters[np.uint64(level)]
            base: Any = np.int64(-1)
            valid: Any = np.int64(-1)
            if column >= 0:
                place = column_at(columns, 3 * column)
                base, valid = place.base, place.valid
            q += ROW
            if op == k.F_INT32:
                out32[np.uint64(base + row)] = int32_at(s, o)
                o += 4 + step.first
            elif op == k.F_INT64:
                out64[np.uint64(base + row)] = int64_at(s, o)
                o += 8 + step.first
            elif op == k.F_SKIP:
                o += a
            elif op == k.F_INTEGER or op == k.F_CONST:
                value = np.int64(0)
                if op == k.F_CONST:
                    value = constants[a]
                else:
                    for _ in range(a):
                        value = (value << 8) | np.int64(s[np.uint64(o)])
                        o += 1
                    o += step.first
                    if c != 0:
                        value = (value << (64 - 8 * a)) >> (64 - 8 * a)
                if b == k.BOOL_WIDTH:
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
            elif op >= k.F_TEXT and op <= k.F_TAGS:
                if a == k.COMPACT:
                    n = np.int64(s[np.uint64(o)])
                    o += 1
                    if n >= 128:
                        n, o = more(s, o, limit, n)
                    n -= 1
                else:
                    n = int16_at(s, o) if a == k.SHORT_FORM else int32_at(s, o)
                    o += a
                if o < 0 or n > limit - o:
                    break
                if op == k.F_TEXT:
                    to = counters[b]
                    if n >= 0:
                        if copy_text(s, o, out8, place.text + to, n):
                            high[b] = 1
                        o += n
                        to += n
                        counters[b] = to
                    else:
                        valid = np.int64(-1)
                    out32[np.uint64(base + row + 1)] = to
                elif op == k.F_PASS:
                    if n > 0:
                        o += n * b
                elif op == k.F_SIZE:
                    if n >= 0:
                        out32[np.uint64(base + row)] = n
                        if b >= 0:
                            out64[np.uint64(columns[3 * b] + row)] = o
                        o += n
                    else:
                        valid = np.int64(-1)
                elif op == k.F_TAGS:
                    valid = np.int64(-1)
                    if n < 0:  # none at all, nearly always: the rows that follow write every tag's default
                        if base >= 0:
                            out32[np.uint64(base + row + 1)] = counters[b]
                        continue
                    top += U4
                    stack[top] = q - ROW
                    stack[top + U1] = n + 1
                    stack[top + U2] = limit
                    stack[top + U3] = 0
                else:
                    to = counters[b]
                    if base >= 0:
                        out32[np.uint64(base + row + 1)] = to + max(n, 0)
                    if n < 0:
                        valid = np.int64(-1)
                    if op == k.F_INT32S:
                        if n > 0:
                            w = np.uint64(columns[3 * c] + to)
                            for _ in range(n):
                                out32[w] = int32_at(s, o)
                                w += U1
                                o += 4
                            counters[b] = to + n
                    elif n > 0:
                        top += U4
                        stack[top] = q
                        stack[top + U1] = n
                        stack[top + U2] = b
                    else:
                        q = row_at(c)
            elif op == k.F_NEXT:
                counters[stack[top + U2]] += 1
                stack[top + U1] -= 1
                if stack[top + U1] > 0:
                    q = stack[top]
                else:
                    top -= U4
            elif op == k.F_UUID:
                if a == 0:
                    uuid_text(s, o, out8, base + row * 22)
                    o += 16
                else:
                    for i in range(22):
                        out8[np.uint64(base + row * 22 + i)] = np.uint8(65)
            elif op == k.F_EMPTY:
                if base >= 0:
                    out32[np.uint64(base + row + 1)] = counters[a]
                if b == 0:
                    valid = np.int64(-1)
            elif op == k.F_JUMP:
                q = row_at(a)
            elif op == k.F_MAYBE:
                valid = np.int64(-1)
                if s[np.uint64(o)] != 1:
                    q = row_at(a)
                o += 1
            elif op == k.F_TAGEND:
                if a != 0:
                    limit = stack[top + U2]
            elif op == k.F_STOP:
                counters[level] += 1
                break
            if valid >= 0:
                set_bit(out8, valid, row)
            if op != k.F_TAGS and op != k.F_TAGEND:
                continue
            # inside a tag buffer: the next tag that is asked for, then the defaults of those that did not come
            q = stack[top]
            step = fill_row_at(rows, q)
            row = counters[np.uint64(step.level)]
            column, sub, first, known = step.column, step.b, step.first, step.known
            base = columns[3 * column] if column >= 0 else np.int64(-1)
            found = np.int64(-1)
            address = 1
            while stack[top + U1] > 0 and found < 0:
                stack[top + U1] -= 1
                tag, o = uvarint(s, o, limit)
                n, o = uvarint(s, o, limit)
                found = find_tag(tags, first, known, tag)
                if found >= 0:
                    limit = o + n
                else:
                    if base >= 0:
                        to = counters[sub + 1]
                        copy_text(s, o, out8, columns[3 * column + 8] + to, n)
                        out32[np.uint64(columns[3 * column + 3] + counters[sub])] = tag
                        counters[sub] += 1
                        counters[sub + 1] = to + n
                        out32[np.uint64(columns[3 * column + 6] + counters[sub])] = to + n
                        set_bit(out8, columns[3 * column + 1], row)
                    o += n
            if found < 0:
                address = 2
                for i in range(known):
                    if found < 0 and stack[top + U3] & (np.int64(1) << i) == 0:
                        found = np.int64(i)
            if found >= 0:
                stack[top + U3] |= np.int64(1) << found
                q = row_at(tags[(first + found) * k.TAG_STRIDE + address])
            else:
                if base >= 0:
                    out32[np.uint64(base + row + 1)] = counters[sub]
                top -= U4
                q = row_at(step.c)
        if op != k.F_STOP:
            failed += 1
    return failed

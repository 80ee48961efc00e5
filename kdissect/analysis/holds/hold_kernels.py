"""Watermarks and throttle windows in order of time: what was known to be there when a fetch asked."""

from __future__ import annotations

from kdissect.analysis.sessions.session_pools import hashed
from kdissect.arrays.arrow import Int64s, Scalar
from kdissect.kernels.kernel import kernel, part

# A partition's row: broker, topic, partition, high watermark, last stable offset.
H_WIDTH = 5


@part
def place_of(table: Int64s, key: Scalar, a: Scalar, b: Scalar, d: Scalar) -> Scalar:
    """Row of the key (its first `key` columns), or the free one where it would stand."""
    at = hashed(a, b, d) % len(table)
    while table[at, 0] != -1:
        if table[at, 0] == a and (key < 2 or (table[at, 1] == b and table[at, 2] == d)):
            break
        at = (at + 1) % len(table)
    return at


@kernel("i8[:,:] i8[:,:] i8")
def refill(old: Int64s, new: Int64s, key: Scalar) -> None:
    """Move rows to a larger table."""
    for i in range(len(old)):
        if old[i, 0] != -1:
            b = old[i, 1] if key > 1 else 0
            d = old[i, 2] if key > 1 else 0
            at = place_of(new, key, old[i, 0], b, d)
            for q in range(old.shape[1]):
                new[at, q] = old[i, q]


@part
def tell(
    known: Int64s, counts: Int64s, most: Scalar, broker: Scalar, topic: Scalar, partition: Scalar, high: Scalar,
    stable: Scalar,
) -> None:  # fmt: skip
    """A broker tells a partition's high watermark and last stable offset (-1: not told)."""
    if broker < 0 or topic < 0:
        return
    at = place_of(known, 3, broker, topic, partition)
    if known[at, 0] == -1:
        if counts[0] >= most:
            known[:, 0] = -1
            counts[0] = 0
            at = place_of(known, 3, broker, topic, partition)
        counts[0] += 1
        known[at, 0], known[at, 1], known[at, 2], known[at, 3], known[at, 4] = broker, topic, partition, -1, -1
    if high >= 0:
        known[at, 3] = high
    if stable >= 0:
        known[at, 4] = stable


@kernel(
    "i8[:] i8[:] const i8[:] const i8[:] i8[:] i8[:] i8[:,:] i8[:,:] i8[:,:] i8[:] i8[:] i8[:,:] i8[:,:] "
    "i8[:] i8 i8 i8 -> i8"
)
def run(
    order: Int64s, broker: Int64s, connection: Int64s, used: Int64s, isolation: Int64s, firsts: Int64s, rows: Int64s,
    sighted: Int64s, windows: Int64s, sure: Int64s, until: Int64s, known: Int64s, muted: Int64s, counts: Int64s,
    most_known: Scalar, most_muted: Scalar, begin: Scalar,
) -> Scalar:  # fmt: skip
    """Events as `holds._ordered` makes them, from place `begin` on. Out: per fetch the bytes that were there for sure,
    and the end of the throttle window that it came into. Returns where it stopped for want of room in a table."""
    for at_event in range(begin, len(order)):
        kind, i = order[at_event] & 7, order[at_event] >> 3
        new = 0
        if kind == 1:
            new = 1
        elif kind == 2:
            new = firsts[i + 1] - firsts[i]
        if 2 * (min(counts[0] + new, most_known) + 1) > len(known) or 2 * (counts[1] + 2) > len(muted):
            return at_event
        if kind == 0:
            at = place_of(muted, 1, windows[i, 1], 0, 0)
            if muted[at, 0] == -1:
                if counts[1] >= most_muted:
                    muted[:, 0] = -1
                    counts[1] = 0
                    at = place_of(muted, 1, windows[i, 1], 0, 0)
                counts[1] += 1
                muted[at, 0] = windows[i, 1]
            muted[at, 1] = windows[i, 2]
        elif kind == 1:
            tell(known, counts, most_known, sighted[i, 1], sighted[i, 2], sighted[i, 3], sighted[i, 4], sighted[i, 5])
        elif kind == 2:
            for q in range(firsts[i], firsts[i + 1]):
                if rows[q, 6] > 0:
                    tell(known, counts, most_known, broker[i], rows[q, 0], rows[q, 1], rows[q, 3], rows[q, 4])
        elif kind == 4:
            if counts[1] > 0:
                at = place_of(muted, 1, connection[i], 0, 0)
                if muted[at, 0] != -1:
                    until[i] = muted[at, 1]
        else:
            total = 0
            for q in range(firsts[i], firsts[i + 1]):
                if rows[q, 5] <= 0 or rows[q, 2] < 0 or broker[i] < 0 or rows[q, 0] < 0:
                    continue
                at = place_of(known, 3, broker[i], rows[q, 0], rows[q, 1])
                if known[at, 0] == -1:
                    continue
                column = 4 if isolation[i] == 1 else 3
                limit = known[at, column]
                if rows[q, 2] < limit:
                    now = rows[q, 4] if isolation[i] == 1 else rows[q, 3]
                    total += rows[q, 5] if now == limit else 1
            sure[i] = total
    return len(order)

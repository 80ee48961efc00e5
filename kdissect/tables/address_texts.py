"""Texts of addresses and brokers, a column at a time: after a scan of a network each connection has others.

Addresses are in the form of RFC 5952, IPv4-mapped ones as IPv4, as `identity.address` writes one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kdissect.arrays.arrow import Int64s, Scalar
from kdissect.arrays.from_numpy import arrow_array
from kdissect.kernels.kernel import kernel, part
from kdissect.kernels.keyed_hash import SECRET, new_secret, scramble, slot
from kdissect.kernels.memory import copy_bytes

Words = npt.NDArray[np.uint64]
Bytes = npt.NDArray[np.uint8]
Codes = npt.NDArray[np.int32]

ROOM = 47
"""Bytes of the longest `[ip]:port`: eight groups of four digits, seven colons, two brackets, a colon, five digits."""
SEPARATOR = "\t"
"""Between capture and `ip:port` in a broker that has not been resolved yet, and before the address of a host that has
not. No address holds it."""
COLON, DOT, OPEN, CLOSE = 58, 46, 91, 93


@part
def _put_decimal(out: Any, at: Scalar, value: Scalar) -> Scalar:
    """A number from 0 to 65535 in decimal; where it ends."""
    power = np.int64(1)
    while power * 10 <= value:
        power *= 10
    while power > 0:
        out[at] = 48 + value // power % 10
        at += 1
        power //= 10
    return at


@part
def _put_hex(out: Any, at: Scalar, value: Scalar) -> Scalar:
    """A number from 0 to 65535 in hexadecimal; where it ends."""
    shift = np.int64(12)
    while shift > 0 and value >> shift == 0:
        shift -= 4
    while shift >= 0:
        digit = value >> shift & 15
        out[at] = 48 + digit if digit < 10 else 87 + digit
        at += 1
        shift -= 4
    return at


@part
def _put_ipv4(out: Any, at: Scalar, low: Scalar) -> Scalar:
    """The four bytes of a number with dots between them; where they end."""
    for byte in range(4):
        if byte > 0:
            out[at] = DOT
            at += 1
        at = _put_decimal(out, at, low >> (24 - 8 * byte) & 255)
    return at


@part
def _group(high: Scalar, low: Scalar, n: Scalar) -> Scalar:
    """The n-th of the eight groups of an address, whose halves may have a sign."""
    return (high >> (48 - 16 * n) if n < 4 else low >> (112 - 16 * n)) & 0xFFFF


@part
def _put_ipv6(out: Any, at: Scalar, high: Scalar, low: Scalar) -> Scalar:
    """An IPv6 address, its longest run of two or more zeros (the first of equal ones) as two colons; where it ends."""
    begin, size = np.int64(8), np.int64(1)
    n = np.int64(0)
    while n < 8:
        end = n
        while end < 8 and _group(high, low, end) == 0:
            end += 1
        if end - n > size:
            begin, size = n, end - n
        n = max(end, n + 1)
    n = np.int64(0)
    while n < 8:
        if n == begin:
            out[at] = COLON
            at += 1
            n += size
            if n == 8:
                out[at] = COLON
                at += 1
        else:
            if n > 0:
                out[at] = COLON
                at += 1
            at = _put_hex(out, at, _group(high, low, n))
            n += 1
    return at


@kernel("const u8[:] const u8[:] const i8[:] const i8[:] const u1[:] const i8[:] i4[:] u1[:] -> i8")
def _write_texts(
    high: Words, low: Words, port: Int64s, owner: Int64s, prefixes: Bytes, begins: Int64s, offsets: Codes, out: Bytes
) -> Scalar:
    """Of each row the prefix of its owner, its address and, if it is not negative, its port. `begins`: where prefixes
    begin in `prefixes`, and where the last one ends. `out` has room for the prefix and ROOM bytes more of each. Returns
    how many bytes the texts have."""
    at = np.int64(0)
    offsets[0] = 0
    for i in range(high.size):
        size = begins[owner[i] + 1] - begins[owner[i]]
        copy_bytes(out, at, prefixes, begins[owner[i]], size)
        at += size
        first, last = np.int64(high[i]), np.int64(low[i])
        if first == 0 and last >> 32 == 0xFFFF:
            at = _put_ipv4(out, at, last)
        else:
            if port[i] >= 0:
                out[at] = OPEN
                at += 1
            at = _put_ipv6(out, at, first, last)
            if port[i] >= 0:
                out[at] = CLOSE
                at += 1
        if port[i] >= 0:
            out[at] = COLON
            at = _put_decimal(out, at + 1, port[i])
        offsets[i + 1] = at
    return at


@kernel("const i4[:] const u1[:] i4[:] u1[:] -> i8")
def _cut_prefixes(begins: Codes, texts: Bytes, offsets: Codes, out: Bytes) -> Scalar:
    """What stands behind the last SEPARATOR of each text, all of it where there is none. `out` is as large as `texts`.
    Returns how many bytes these are."""
    at = np.int64(0)
    offsets[0] = 0
    for i in range(begins.size - 1):
        begin = np.int64(begins[i + 1])
        while begin > begins[i] and texts[begin - 1] != 9:
            begin -= 1
        size = begins[i + 1] - begin
        copy_bytes(out, at, texts, begin, size)
        at += size
        offsets[i + 1] = at
    return at


def write_texts(high: Words, low: Words, port: Int64s, owner: Int64s, prefixes: Sequence[str]) -> pa.Array:
    """Addresses (their halves) as texts, `ip:port` (IPv6 in brackets) where a port is not negative, behind the prefix
    that `owner` names."""
    encoded = [text.encode() for text in prefixes]
    begins = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
    sizes = np.diff(begins)
    offsets, out = np.empty(len(high) + 1, np.int32), np.empty(int(sizes[owner].sum()) + ROOM * len(high), np.uint8)
    high, low = (np.require(half, np.uint64, ["C", "A"]) for half in (high, low))
    port, owner = (np.require(column, np.int64, ["C", "A"]) for column in (port, owner))
    size = _write_texts(high, low, port, owner, np.frombuffer(b"".join(encoded), np.uint8), begins, offsets, out)
    return pa.StringArray.from_buffers(len(high), pa.py_buffer(offsets), pa.py_buffer(out[:size].copy()))


def behind_separator(texts: pa.Array) -> pa.Array:
    """What stands behind the last SEPARATOR of each text, all of it where there is none; nulls stay."""
    if not len(texts) or texts.null_count == len(texts):
        return texts
    _, begins, data = texts.buffers()
    begin = np.frombuffer(begins, np.int32, len(texts) + 1, 4 * texts.offset)
    source = np.frombuffer(data or b"", np.uint8)
    offsets, out = np.empty(len(texts) + 1, np.int32), np.empty(int(begin[-1] - begin[0]), np.uint8)
    size = _cut_prefixes(begin, source, offsets, out)
    made = pa.StringArray.from_buffers(len(texts), pa.py_buffer(offsets), pa.py_buffer(out[:size]))
    return made if not texts.null_count else pa.array(made.to_pylist(), pa.string(), mask=np.asarray(texts.is_null()))


@kernel("const i8[:] i4[:] i4[:] i8[:] i8[:] -> i8")
def _number(values: Int64s, table: Codes, codes: Codes, distinct: Int64s, secret: Int64s) -> Scalar:
    """See `numbered`; returns how many distinct ones there are. `table`: hash table of codes, all -1; its size is a
    power of two above twice as many as there are values. `secret`: of its hash."""
    mask = table.size - 1
    count = np.int64(0)
    for i in range(values.size):
        value = values[i]
        place = slot(scramble(value, secret[0]), secret[SECRET - 1], mask)
        while table[place] >= 0 and distinct[table[place]] != value:
            place = (place + 1) & mask
        if table[place] < 0:
            table[place] = count
            distinct[count] = value
            count += 1
        codes[i] = table[place]
    return count


class Addresses:
    """Addresses of rows, each distinct one once, in order of first appearance."""

    def __init__(self, high: npt.NDArray[Any], low: npt.NDArray[Any]) -> None:
        codes, ends = numbered(np.require(low, np.uint64, ["C", "A"]))
        if len(high) and (high == high[0]).all():
            self.high, self.low = np.full(len(ends), high[0], np.uint64), ends
        else:
            top, tops = numbered(np.require(high, np.uint64, ["C", "A"]))
            codes, pairs = numbered(top.astype(np.int64) * len(ends) + codes)
            self.high, self.low = tops[pairs // max(len(ends), 1)], ends[pairs % max(len(ends), 1)]
        self.codes: Codes = codes
        """Of each row its address among `high` and `low`."""

    def __len__(self) -> int:
        return len(self.high)

    @cached_property
    def texts(self) -> pa.Array:
        """The text of each distinct address."""
        return self._prefixed("")

    @cached_property
    def column(self) -> pa.Array:
        """The address of each row, as a dictionary column."""
        return pa.DictionaryArray.from_arrays(arrow_array(self.codes), self.texts)

    @cached_property
    def unresolved_hosts(self) -> pa.Array:
        """As `identity.unresolved_host` makes them of `column`."""
        return pa.DictionaryArray.from_arrays(arrow_array(self.codes), self._prefixed(SEPARATOR))

    def _prefixed(self, prefix: str) -> pa.Array:
        none = np.zeros(len(self), np.int64)
        return write_texts(self.high, self.low, none - 1, none, [prefix])

    def unresolved_brokers(
        self, port: npt.NDArray[Any], capture: npt.NDArray[Any], captures: Sequence[str]
    ) -> pa.Array:
        """The addresses with these ports as brokers of captures (codes of `captures`), not resolved yet, as a
        dictionary column."""
        ports = len(self) << 16
        codes, keys = numbered(capture.astype(np.int64) * ports + (self.codes.astype(np.int64) << 16) + port)
        place = keys % max(ports, 1)
        at = place >> 16
        owner = keys // max(ports, 1)
        prefixes = [f"{name}{SEPARATOR}" for name in captures]
        texts = write_texts(self.high[at], self.low[at], place & 0xFFFF, owner, prefixes)
        return pa.DictionaryArray.from_arrays(arrow_array(codes), texts)


def numbered(values: npt.NDArray[Any]) -> tuple[Codes, npt.NDArray[Any]]:
    """Codes of 64-bit values into the distinct ones, which come in order of first appearance."""
    words = np.require(values, requirements=["C", "A"]).view(np.int64)
    codes, distinct = np.empty(len(words), np.int32), np.empty(len(words), np.int64)
    table = np.full(2 << len(words).bit_length(), -1, np.int32)
    count = _number(words, table, codes, distinct, new_secret())
    return codes, distinct[:count].view(values.dtype)

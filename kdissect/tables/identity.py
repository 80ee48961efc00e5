"""Names of things: connection ids, exchange ids, addresses, files, brokers, and dictionary columns made of them.

Connections, addresses and brokers are few and their rows many, so their columns are dictionaries whose values are made
once per distinct thing. Exchange ids are all different; a kernel writes their text.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kdissect.arrays.growing import grown, write
from kdissect.kafka.exchanges.completed import Connections
from kdissect.kernels.kernel import kernel

Int64s = npt.NDArray[np.int64]

HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
ID_BYTES = 16
"""Hex digits of a connection id."""


@kernel("const i8[:] const b1[:] i4[:]")
def _measure(n: Int64s, orphan: npt.NDArray[np.bool_], offsets: npt.NDArray[np.int32]) -> None:
    """Offsets of `<16 digits>:<n>` and `<16 digits>:r<n>`."""
    at = np.int64(0)
    for i in range(len(n)):
        offsets[i] = at
        at += ID_BYTES + 2 + np.int64(orphan[i])
        rest = n[i]
        while rest >= 10:
            rest //= 10
            at += 1
    offsets[len(n)] = at


@kernel("const u8[:] const i8[:] const b1[:] const i4[:] u1[:]")
def _write(
    ids: npt.NDArray[np.uint64],
    n: Int64s,
    orphan: npt.NDArray[np.bool_],
    offsets: npt.NDArray[np.int32],
    out: npt.NDArray[np.uint8],
) -> None:
    """The text; offsets as `_measure` made them."""
    for i in range(len(n)):
        at = np.int64(offsets[i])
        rest = ids[i]
        for j in range(ID_BYTES):
            digit = (rest >> np.uint64(60 - 4 * j)) & np.uint64(15)
            out[at + j] = HEX[np.int64(digit)]
        out[at + ID_BYTES] = 58
        if orphan[i]:
            out[at + ID_BYTES + 1] = 114
        end = np.int64(offsets[i + 1]) - 1
        number = n[i]
        while True:
            out[end] = np.uint8(48 + number % 10)
            number //= 10
            end -= 1
            if number <= 0:
                break


def exchange_ids(ids: npt.NDArray[np.uint64], n: Int64s, orphan: npt.NDArray[np.bool_]) -> pa.Array:
    """`<connection id>:<n>` (orphans `:r<n>`) as a string column; `ids` are the connections' ids, `n` >= 0."""
    count = np.ascontiguousarray(n, np.int64)
    if not len(count):
        return pa.array([], pa.string())
    offsets = np.empty(len(count) + 1, np.int32)
    flags = np.ascontiguousarray(orphan, np.bool_)
    _measure(count, flags, offsets)
    out = np.empty(int(offsets[-1]), np.uint8)
    _write(np.ascontiguousarray(ids, np.uint64), count, flags, offsets, out)
    return pa.StringArray.from_buffers(len(count), pa.py_buffer(offsets), pa.py_buffer(out))


def connection_ids(ids: npt.NDArray[np.uint64]) -> pa.Array:
    """Connection ids as 16 hex digits."""
    shifts = np.arange(60, -1, -4, dtype=np.uint64)
    digits = HEX[((np.asarray(ids, np.uint64)[:, None] >> shifts) & np.uint64(15)).astype(np.int64)]
    offsets = np.arange(len(ids) + 1, dtype=np.int32) * ID_BYTES
    return pa.StringArray.from_buffers(len(ids), pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(digits)))


def address(high: int, low: int) -> str:
    """An address from its two halves; IPv4-mapped ones as IPv4."""
    if high == 0 and low >> 32 == 0xFFFF:
        return str(ipaddress.IPv4Address(low & 0xFFFFFFFF))
    return str(ipaddress.IPv6Address(high << 64 | low))


def endpoint(ip: str, port: int) -> str:
    """`ip:port`, IPv6 in brackets."""
    return f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"


@kernel("const i4[:] i4[:] i4[:] i4[:] -> i8 i8")
def _recode(
    codes: npt.NDArray[np.int32], place: npt.NDArray[np.int32], kept: npt.NDArray[np.int32], out: npt.NDArray[np.int32]
) -> tuple[Any, Any]:
    """Codes among those that occur into `out`, 0 for negative ones. `place`: as many zeros as there are values; `kept`
    gets the values that occur. Returns how many these are, and how many codes were negative."""
    negative = np.int64(0)
    for i in range(codes.size):
        if codes[i] >= 0:
            place[codes[i]] = 1
        else:
            negative += 1
    count = np.int64(0)
    for value in range(place.size):
        if place[value] != 0:
            place[value] = count
            kept[count] = value
            count += 1
    for i in range(codes.size):
        out[i] = place[codes[i]] if codes[i] >= 0 else 0
    return count, negative


def recoded(codes: npt.NDArray[Any], values: int) -> tuple[pa.Array, npt.NDArray[np.int32]]:
    """The indices of a dictionary column, null for negative codes, and which of so many values it has: those that
    occur, in their order."""
    codes = np.require(codes, np.int32, ["C", "A"])  # columns of structs are not aligned
    place, kept, out = np.zeros(values, np.int32), np.empty(values, np.int32), np.empty(len(codes), np.int32)
    count, negative = _recode(codes, place, kept, out)
    return pa.array(out, mask=codes < 0 if negative else None), kept[:count]


def dictionary(codes: npt.NDArray[Any], values: Sequence[str] | pa.Array) -> pa.Array:
    """A dictionary column: code -> value, null for negative codes. Only values that occur go into the dictionary.

    `values` must be distinct; a list may be long (all client ids of a run), so nothing here is linear in it but one
    mask.
    """
    indices, kept = recoded(codes, len(values))
    if isinstance(values, pa.Array):
        texts = values.take(pa.array(kept))
    else:
        texts = pa.array([values[i] for i in kept.tolist()], pa.string())
    return pa.DictionaryArray.from_arrays(indices, texts)


def constant(text: str, rows: int) -> pa.Array:
    """A dictionary column of `rows` (at least one) equal texts."""
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array([text], pa.string()))


class Interned:
    """Distinct texts with their codes, in order of first appearance."""

    __slots__ = ("codes", "texts")

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.codes: dict[str, int] = {}

    def code(self, text: str) -> int:
        """The code of a text, a new one for a new text."""
        found = self.codes.get(text)
        if found is None:
            found = self.codes[text] = len(self.texts)
            self.texts.append(text)
        return found


SEPARATOR = "\t"
"""Between capture and `ip:port` in a broker that has not been resolved yet. No address holds it."""


class Directory:
    """Codes of addresses, brokers and files per connection, made when a connection is first used."""

    def __init__(self, connections: Connections) -> None:
        self.connections = connections
        self.ips = Interned()
        self.brokers = Interned()
        """`capture<TAB>ip:port`: what `Brokers.resolve` turns into node ids."""
        self.files = Interned()
        self._clients = np.zeros(0, np.int32)
        """By connection, 1 + the code of the client's address; 0 not made yet."""
        self._brokers = np.zeros(0, np.int32)
        """By connection, the code of the broker."""
        self._ensured: npt.NDArray[Any] | None = None
        """The rows of connections that were asked for last."""
        self._broker_ips: list[int] = []
        """By broker, the code of its address."""

    def _ensure(self, rows: npt.NDArray[Any]) -> None:
        if rows is self._ensured:
            return
        self._ensured = rows
        size = len(self.connections)
        self._clients, self._brokers = grown(self._clients, size), grown(self._brokers, size)
        new = np.sort(rows[self._clients[rows] == 0])
        if len(new):
            new = new[np.diff(new, prepend=-1) > 0]
            table = self.connections
            self._clients[new] = self._addresses(table.client_hi[new], table.client_lo[new]) + 1
            broker = self._addresses(table.broker_hi[new], table.broker_lo[new])
            key = table.capture[new].astype(np.int64) << 48 | broker.astype(np.int64) << 16 | table.broker_port[new]
            distinct, inverse = np.unique(key, return_inverse=True)
            codes = [self._broker(row >> 48, row >> 16 & 0xFFFFFFFF, row & 0xFFFF) for row in distinct.tolist()]
            write(self._brokers, new, np.array(codes, np.int32)[inverse])

    def _broker(self, capture: int, ip: int, port: int) -> int:
        place = f"{self.connections.captures[capture]}{SEPARATOR}{endpoint(self.ips.texts[ip], port)}"
        code = self.brokers.code(place)
        if code == len(self._broker_ips):
            self._broker_ips.append(ip)
        return code

    def _addresses(self, high: npt.NDArray[Any], low: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
        tops, top = np.unique(high, return_inverse=True)
        ends, end = np.unique(low, return_inverse=True)
        pairs, inverse = np.unique(top * len(ends) + end, return_inverse=True)
        codes = [self.ips.code(address(int(tops[pair // len(ends)]), int(ends[pair % len(ends)]))) for pair in pairs]
        return np.array(codes, np.int32)[inverse]

    def client_ip(self, conn: npt.NDArray[Any]) -> pa.Array:
        """Client address of each row's connection."""
        return dictionary(self.client_codes(conn), self.ips.texts)

    def broker_ip(self, conn: npt.NDArray[Any]) -> pa.Array:
        """Broker address of each row's connection."""
        codes = self.broker_codes(conn)  # fills in what they stand for
        return dictionary(np.array(self._broker_ips, np.int32)[codes], self.ips.texts)

    def broker(self, conn: npt.NDArray[Any]) -> pa.Array:
        """The broker, not resolved yet: `capture<TAB>ip:port`."""
        return dictionary(self.broker_codes(conn), self.brokers.texts)

    def broker_codes(self, conn: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
        """Codes into `brokers`."""
        self._ensure(conn)
        codes: npt.NDArray[np.int32] = self._brokers[conn]
        return codes

    def client_codes(self, conn: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
        """Codes of client addresses into `ips`."""
        self._ensure(conn)
        codes: npt.NDArray[np.int32] = self._clients[conn] - 1
        return codes

    def capture(self, conn: npt.NDArray[Any]) -> pa.Array:
        """Name of the capture of each row's connection."""
        if len(self.connections.captures) == 1 and len(conn) and int(conn.min()) >= 0:
            return constant(self.connections.captures[0], len(conn))
        return dictionary(self.connections.capture[conn], self.connections.captures)

    def connection_id(self, conn: npt.NDArray[Any]) -> pa.Array:
        """Connection id of each row, as a dictionary column."""
        indices, kept = recoded(conn, len(self.connections))
        return pa.DictionaryArray.from_arrays(indices, connection_ids(self.connections.id[kept]))

    def file(self, capture: npt.NDArray[Any], file: npt.NDArray[Any]) -> pa.Array:
        """File names from capture and file index (negative: null)."""
        known = (file >= 0) & (capture >= 0)
        pair = np.where(known, capture.astype(np.int64) << 24 | file, -1)
        distinct, inverse = (pair[:1], np.zeros(len(pair), np.int64))
        if len(pair) and not (pair == pair[0]).all():
            distinct, inverse = np.unique(pair, return_inverse=True)
        codes = [self._file_code(value) for value in distinct.tolist()]
        return dictionary(np.array(codes, np.int64)[inverse], self.files.texts)

    def _file_code(self, pair: int) -> int:
        if pair < 0:
            return -1
        files = self.connections.files[pair >> 24]
        place = pair & 0xFFFFFF
        return self.files.code(files[place]) if place < len(files) else -1

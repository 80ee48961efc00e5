"""Names of things: connection ids, exchange ids, addresses, files, brokers, and dictionary columns made of them.

Connections, addresses and brokers are few and their rows many, so their columns are dictionaries whose values are made
once per distinct thing. Exchange ids are all different; a kernel writes their text.
"""

from __future__ import annotations

import ipaddress
import weakref
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kdissect.arrays.arrow import distinct
from kdissect.arrays.dictionaries import first_codes, no_values
from kdissect.arrays.from_numpy import arrow_array
from kdissect.arrays.growing import grown, write
from kdissect.kafka.completed import Connections
from kdissect.kernels.kernel import kernel, part
from kdissect.kernels.memory import put_word
from kdissect.tables.address_texts import SEPARATOR as SEPARATOR
from kdissect.tables.address_texts import Addresses
from kdissect.tables.community import ID_TYPE, community_ids

Int64s = npt.NDArray[np.int64]

ID_BYTES = 16
"""Hex digits of a connection id."""
SHORT = 16
"""Bytes of a text up to which it is written out as words: connection ids, names of most APIs, holds."""
FEW = 8
"""A row for so many connections: fewer rows are put in order, instead of looking through all connections. Rows for each
text of a dictionary: with fewer Arrow is faster than to make words of its texts."""


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


@part
def _hex(value: Any) -> Any:
    """Eight hex digits of a uint64 below 2**32 as bytes, the first in the least byte: halves, quarters and nibbles are
    moved apart, and those of ten and more get a letter."""
    x = (value >> np.uint64(16)) | ((value & np.uint64(0xFFFF)) << np.uint64(32))
    x = ((x >> np.uint64(8)) & np.uint64(0x000000FF000000FF)) | ((x & np.uint64(0x000000FF000000FF)) << np.uint64(16))
    x = ((x >> np.uint64(4)) & np.uint64(0x000F000F000F000F)) | ((x & np.uint64(0x000F000F000F000F)) << np.uint64(8))
    letters = ((x + np.uint64(0x0606060606060606)) >> np.uint64(4)) & np.uint64(0x0101010101010101)
    return x + np.uint64(0x3030303030303030) + letters * np.uint64(39)


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
        put_word(out, at, _hex(ids[i] >> np.uint64(32)))
        put_word(out, at + 8, _hex(ids[i] & np.uint64(0xFFFFFFFF)))
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


def exchange_id(high: int, n: int) -> str:
    """The same of one exchange, from its keys as `Block.keys` has them: the id as int64, -1 - n of an orphan."""
    return f"{high % 2**64:016x}:{n}" if n >= 0 else f"{high % 2**64:016x}:r{-1 - n}"


@kernel("const u8[:] u1[:]")
def _write_ids(ids: npt.NDArray[np.uint64], out: npt.NDArray[np.uint8]) -> None:
    """Ids as 16 hex digits each."""
    for i in range(len(ids)):
        put_word(out, ID_BYTES * i, _hex(ids[i] >> np.uint64(32)))
        put_word(out, ID_BYTES * i + 8, _hex(ids[i] & np.uint64(0xFFFFFFFF)))


def connection_ids(ids: npt.NDArray[np.uint64]) -> pa.Array:
    """Connection ids as 16 hex digits."""
    offsets = np.arange(len(ids) + 1, dtype=np.int32) * ID_BYTES
    out = np.empty(len(ids) * ID_BYTES, np.uint8)
    _write_ids(np.require(ids, np.uint64, ["C", "A"]), out)
    return pa.StringArray.from_buffers(len(ids), pa.py_buffer(offsets), pa.py_buffer(out))


def address(high: int, low: int) -> str:
    """An address from its two halves; IPv4-mapped ones as IPv4."""
    if high == 0 and low >> 32 == 0xFFFF:  # by hand: somebody may have scanned a network, and ipaddress takes 3 us
        return f"{low >> 24 & 255}.{low >> 16 & 255}.{low >> 8 & 255}.{low & 255}"
    return str(ipaddress.IPv6Address(high << 64 | low))


def endpoint(ip: str, port: int) -> str:
    """`ip:port`, IPv6 in brackets."""
    return f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"


@kernel("const i4[:] i4[:] i4[:] i4[:] -> i8 i8")
def _recode(
    codes: npt.NDArray[np.int32],
    place: npt.NDArray[np.int32],
    occurring: npt.NDArray[np.int32],
    out: npt.NDArray[np.int32],
) -> tuple[Any, Any]:
    """Codes among those that occur into `out`, 0 for negative ones. `place`: as many zeros as there are values;
    `occurring` gets the values that occur. Returns how many these are, and how many codes were negative."""
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
            occurring[count] = value
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
    return arrow_array(out, mask=codes < 0 if negative else None), kept[:count]


def dictionary(codes: npt.NDArray[Any], values: Sequence[str] | pa.Array) -> pa.Array:
    """A dictionary column: code -> value, null for negative codes. Only values that occur go into the dictionary.

    `values` must be distinct; a list may be long (all client ids of a run), so nothing here is linear in it but one
    mask.
    """
    return _worded(*recoded(codes, len(values)), values)


def _worded(indices: pa.Array, occurring: npt.NDArray[np.int32], values: Sequence[str] | pa.Array) -> pa.Array:
    """A dictionary column of the values that were kept."""
    if isinstance(values, pa.Array):
        texts = values.take(arrow_array(occurring))
    else:
        texts = pa.array([values[i] for i in occurring.tolist()], pa.string())
    return pa.DictionaryArray.from_arrays(indices, texts)


def constant(text: str, rows: int) -> pa.Array:
    """A dictionary column of `rows` (at least one) equal texts."""
    return pa.DictionaryArray.from_arrays(first_codes(rows), pa.array([text], pa.string()))


@kernel("const i4[:] const u1[:] const i4[:] const u1[:] u8[:,:] i4[:] u1[:] -> i8")
def _write_out(
    codes: npt.NDArray[np.int32], validity: npt.NDArray[np.uint8], begins: npt.NDArray[np.int32],
    texts: npt.NDArray[np.uint8], words: npt.NDArray[np.uint64], offsets: npt.NDArray[np.int32],
    out: npt.NDArray[np.uint8],
) -> Any:  # fmt: skip
    """See `written_out`. `validity`: a bit a code, 0 where it is null; empty: none is. `words`: room for each text,
    three words. `out` has room for SHORT bytes behind the last text. Returns how many bytes the texts have."""
    for value in range(len(words)):
        words[value, 0] = words[value, 1] = 0
        size = np.int64(begins[value + 1]) - begins[value]
        for q in range(size):
            words[value, q >> 3] |= np.uint64(texts[begins[value] + q]) << np.uint64(8 * (q & 7))
        words[value, 2] = size
    at = np.int64(0)
    offsets[0] = 0
    for i in range(len(codes)):
        if not len(validity) or (validity[i >> 3] >> (i & 7)) & 1:
            value = codes[i]
            size = np.int64(words[value, 2])
            put_word(out, at, words[value, 0])
            if size > 8:
                put_word(out, at + 8, words[value, 1])
            at += size
        offsets[i + 1] = at
    return at


def written_out(column: pa.DictionaryArray) -> pa.Array:
    """A dictionary column of texts as a plain one."""
    rows, texts, codes = len(column), column.dictionary, column.indices
    if column.null_count == rows:
        return no_values(rows, pa.string())
    whole = codes.type == pa.int32() and texts.type == pa.string() and not texts.null_count
    if not whole or codes.offset % 8 or len(texts) * FEW > rows:
        return column.cast(pa.string())
    _, begins, data = texts.buffers()
    begin = np.frombuffer(begins, np.int32, len(texts) + 1, 4 * texts.offset)
    longest = int((begin[1:] - begin[:-1]).max())
    if longest > SHORT or data is None:
        return column.cast(pa.string())
    known = codes.buffers()[0].slice(codes.offset // 8) if codes.null_count else None
    bits = np.zeros(0, np.uint8) if known is None else np.frombuffer(known, np.uint8)
    offsets, out = np.empty(rows + 1, np.int32), np.empty(rows * longest + SHORT, np.uint8)
    size = _write_out(
        np.frombuffer(codes.buffers()[1], np.int32, rows, 4 * codes.offset), bits, begin,
        np.frombuffer(data, np.uint8), np.empty((len(texts), 3), np.uint64), offsets, out,
    )  # fmt: skip
    buffers = [known, pa.py_buffer(offsets), pa.py_buffer(out[:size])]
    return pa.Array.from_buffers(pa.string(), rows, buffers, column.null_count)


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


ZERO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
"""Uuid.ZERO_UUID: "no id" wherever a topic id may be left out."""


def unresolved_host(addresses: pa.DictionaryArray) -> pa.Array:
    """A dictionary column of addresses as a column that `HostNames.resolve` makes names of."""
    marked = pa.array([f"{SEPARATOR}{address}" for address in addresses.dictionary.to_pylist()], pa.string())
    return pa.DictionaryArray.from_arrays(addresses.indices, marked)


class _Rows:
    """Rows that belong to connections: what there is to say of a connection is said once, and spread over its rows.
    Rows without a connection (negative) are null in a dictionary, and have no number."""

    def __init__(self, conn: npt.NDArray[Any], connections: int) -> None:
        self.of = weakref.ref(conn)
        """The rows of connections, while there are any: their memory may be wanted again."""
        if len(conn) * FEW < connections:
            distinct, place = np.unique(conn, return_inverse=True)
            nowhere = int((distinct < 0).sum())
            codes = np.maximum(place - nowhere, 0).astype(np.int32)
            indices, kept = arrow_array(codes, mask=conn < 0 if nowhere else None), distinct[nowhere:]
        else:
            indices, kept = recoded(conn, connections)
        self.named = False
        """Whether the directory has codes of these connections' addresses and brokers."""
        self.indices, self.kept = indices, kept
        """Which of `kept` each row belongs to, and the connections that have rows, in their order."""
        self._local = np.frombuffer(self.indices.buffers()[1], np.int32, len(conn))

    def each(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """A value for each of `kept` as one for each row."""
        found: npt.NDArray[Any] = values[self._local] if len(values) else np.zeros(len(self._local), values.dtype)
        return found

    def dictionary(self, codes: npt.NDArray[Any], values: Sequence[str]) -> pa.Array:
        """Codes of values for each of `kept` as a dictionary column of the rows."""
        indices, chosen = recoded(codes, len(values))
        if len(chosen) == 1 and not self.indices.null_count and not indices.null_count:
            return constant(values[chosen[0]], len(self.indices))
        if self.indices.null_count or indices.null_count:
            return _worded(indices.take(self.indices), chosen, values)
        return _worded(arrow_array(self.each(indices.to_numpy())), chosen, values)


def _community_column(ids: npt.NDArray[np.bytes_], indices: pa.Array) -> pa.Array:
    """A dictionary column of the community ids that `indices` name; a 4-tuple that was used again has one id."""
    offsets = np.arange(len(ids) + 1, dtype=np.int32) * ID_TYPE.itemsize
    texts = pa.StringArray.from_buffers(len(ids), pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(ids)))
    distinct = texts.dictionary_encode()
    if len(distinct.dictionary) == len(texts):
        return pa.DictionaryArray.from_arrays(indices, texts)
    return pa.DictionaryArray.from_arrays(distinct.indices.take(indices), distinct.dictionary)


class ConnectionEnds:
    """Addresses, brokers and community ids of connections, each a row: made for these rows and not kept, for after a
    scan of a network each connection has others."""

    def __init__(self, connections: Connections, rows: Int64s) -> None:
        self._table, self._rows = connections, rows

    @cached_property
    def clients(self) -> Addresses:
        """The clients' addresses."""
        return Addresses(self._table.client_hi[self._rows], self._table.client_lo[self._rows])

    @cached_property
    def brokers(self) -> Addresses:
        """The brokers' addresses."""
        return Addresses(self._table.broker_hi[self._rows], self._table.broker_lo[self._rows])

    @cached_property
    def unresolved_brokers(self) -> pa.Array:
        """`capture<TAB>ip:port` of each row, as a dictionary column."""
        table, rows = self._table, self._rows
        return self.brokers.unresolved_brokers(table.broker_port[rows], table.capture[rows], table.captures)

    @property
    def community_ids(self) -> pa.Array:
        """Community id of each row, as a dictionary column."""
        rows = arrow_array(np.arange(len(self._rows), dtype=np.int32))
        return _community_column(community_ids(self._table, self._rows), rows)


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
        self._asked: _Rows | None = None
        """The rows of connections that were asked for last."""
        self._broker_ips: list[int] = []
        """By broker, the code of its address."""
        self._communities = np.zeros(0, ID_TYPE)
        """By connection, its community id; empty where nobody asked for it yet."""

    def _ensure(self, rows: npt.NDArray[Any]) -> None:
        size = len(self.connections)
        self._clients, self._brokers = grown(self._clients, size), grown(self._brokers, size)
        new = np.sort(rows[self._clients[rows] == 0])
        if len(new):
            new = new[np.diff(new, prepend=-1) > 0]
            table = self.connections
            self._clients[new] = self._coded(Addresses(table.client_hi[new], table.client_lo[new])) + 1
            broker = self._coded(Addresses(table.broker_hi[new], table.broker_lo[new]))
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

    def _coded(self, addresses: Addresses) -> npt.NDArray[np.int32]:
        """Codes of addresses into `ips`."""
        codes = [self.ips.code(text) for text in addresses.texts.to_pylist()]
        return np.array(codes, np.int32)[addresses.codes]

    def _seen(self, conn: npt.NDArray[Any]) -> _Rows:
        """What these rows have in common, made once for several columns of the same rows."""
        if self._asked is None or self._asked.of() is not conn:
            self._asked = _Rows(conn, len(self.connections))
        return self._asked

    def _locate_named(self, conn: npt.NDArray[Any]) -> _Rows:
        """As `_seen`; the addresses and brokers of these connections have codes then."""
        rows = self._seen(conn)
        if not rows.named:
            self._ensure(rows.kept)
            rows.named = True
        return rows

    def client_ip(self, conn: npt.NDArray[Any]) -> pa.Array:
        """Client address of each row's connection."""
        rows = self._locate_named(conn)
        return rows.dictionary(self._clients[rows.kept] - 1, self.ips.texts)

    def broker_ip(self, conn: npt.NDArray[Any]) -> pa.Array:
        """Broker address of each row's connection."""
        rows = self._locate_named(conn)  # fills in `_broker_ips`
        return rows.dictionary(np.array(self._broker_ips, np.int32)[self._brokers[rows.kept]], self.ips.texts)

    def broker(self, conn: npt.NDArray[Any]) -> pa.Array:
        """The broker, not resolved yet: `capture<TAB>ip:port`."""
        rows = self._locate_named(conn)
        return rows.dictionary(self._brokers[rows.kept], self.brokers.texts)

    def client_port(self, conn: npt.NDArray[Any]) -> npt.NDArray[np.uint16]:
        """Client port of each row's connection."""
        rows = self._seen(conn)
        return rows.each(self.connections.client_port[rows.kept])

    def broker_port(self, conn: npt.NDArray[Any]) -> npt.NDArray[np.uint16]:
        """Broker port of each row's connection."""
        rows = self._seen(conn)
        return rows.each(self.connections.broker_port[rows.kept])

    def ids(self, conn: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
        """Connection id of each row, as a number."""
        rows = self._seen(conn)
        return rows.each(self.connections.id[rows.kept])

    def broker_codes(self, conn: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
        """Codes into `brokers`."""
        rows = self._locate_named(conn)
        return rows.each(self._brokers[rows.kept])

    def distinct_brokers(self, conn: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
        """The codes into `brokers` that occur, in order."""
        rows = self._locate_named(conn)
        return distinct(self._brokers[rows.kept])

    def flag_brokers(self, conn: npt.NDArray[Any], holds: Callable[[str], bool]) -> npt.NDArray[np.bool_]:
        """Flags of the rows for whose broker (`capture<TAB>ip:port`) this holds."""
        rows = self._locate_named(conn)
        codes, place = np.unique(self._brokers[rows.kept], return_inverse=True)
        flags = np.array([holds(self.brokers.texts[code]) for code in codes.tolist()], np.bool_)
        found: npt.NDArray[np.bool_] = rows.each(flags[place])
        return found

    def client_codes(self, conn: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
        """Codes of client addresses into `ips`."""
        rows = self._locate_named(conn)
        return rows.each(self._clients[rows.kept] - 1)

    def capture(self, conn: npt.NDArray[Any]) -> pa.Array:
        """Name of the capture of each row's connection."""
        if len(self.connections.captures) == 1 and len(conn) and int(conn.min()) >= 0:
            return constant(self.connections.captures[0], len(conn))
        return dictionary(self.connections.capture[conn], self.connections.captures)

    def connection_id(self, conn: npt.NDArray[Any]) -> pa.Array:
        """Connection id of each row, as a dictionary column."""
        rows = self._seen(conn)
        return pa.DictionaryArray.from_arrays(rows.indices, connection_ids(self.connections.id[rows.kept]))

    def community_id(self, conn: npt.NDArray[Any]) -> pa.Array:
        """Community id of each row's connection, as a dictionary column."""
        rows = self._seen(conn)
        self._communities = grown(self._communities, len(self.connections))
        new = rows.kept[self._communities[rows.kept] == b""]
        if len(new):
            self._communities[new] = community_ids(self.connections, new)
        return _community_column(self._communities[rows.kept], rows.indices)

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

"""Selects clients, brokers and topics: everything else is left out, as early as can be said.

- A client is a client id, or an address `ip` or `ip:port`; a broker is a node id or an address. Names of addresses that
  the user gave stand for the addresses.
- Packets between other addresses are dropped before streams are put together (`packets`). The client's end is known
  only later: connections where it is the other one are left out then.
- A client id is known when a request is whole. Exchanges of other client ids are left out, and so are responses
  without a request.
- An exchange concerns a topic when its request or its response names it, by name or by an id whose name is known. Bytes
  that a group's members send one another are not looked into. A fetch also concerns the topics that an earlier fetch of
  its connection named, since a fetch of a session names only what changes (KIP-227).

Several values of one kind mean any of them; several kinds must all hold. Names of brokers and topics, and the software
of clients, are still learned from every message that is read.
"""

import ipaddress
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from kdissect.arrays.from_numpy import arrow_array
from kdissect.kafka.completed import Completed, Connections
from kdissect.kafka.exchanges.messages import Message
from kdissect.net.segment import FLOW, SEGMENT
from kdissect.problems import UsageError
from kdissect.schema import index
from kdissect.schema.apikeys import ApiKey
from kdissect.schema.model import Field
from kdissect.tables.declaration.model import TEXT
from kdissect.tables.table_block import Block

Int64s = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

FETCHES = (ApiKey.FETCH, ApiKey.SHARE_FETCH, ApiKey.SHARE_ACKNOWLEDGE)
"""Fetch, ShareFetch and ShareAcknowledge: those of a session name only what changes."""
NEVER = 2**62
_DOTTED = r"\d+(\.\d+){3}(:.*)?"


class Address(NamedTuple):
    """An end of connections: both halves of its IPv6 address (IPv4 mapped) as int64 words, and its port, -1 any."""

    high: int
    low: int
    port: int


def read_address(text: str) -> Address | None:
    """`ip`, `ip:port`, `[ipv6]:port`; None for what is no address. Raises UsageError for what is only nearly one."""
    ip, port = text, ""
    if text.startswith("["):
        ip, _, port = text[1:].partition("]")
        port = port.removeprefix(":")
    elif text.count(":") == 1:
        ip, _, port = text.partition(":")
    try:
        found = ipaddress.ip_address(ip)
    except ValueError:
        if re.fullmatch(_DOTTED, text) or text.startswith("["):
            raise UsageError(f"{text!r} is no address; say it like 10.0.0.5, 10.0.0.5:9092 or [fd00::5]:9092") from None
        return None
    if port and not (port.isascii() and port.isdigit() and int(port) <= 0xFFFF):
        raise UsageError(f"{text!r} has no port between 0 and 65535")
    number = int(found) if found.version == 6 else 0xFFFF << 32 | int(found)
    high, low = np.array([number >> 64, number & 0xFFFFFFFFFFFFFFFF], np.uint64).view(np.int64).tolist()
    return Address(high, low, int(port) if port else -1)


class Selection(NamedTuple):
    """The clients, brokers and topics that are wanted; none of a kind means all of it. Made by `selection`."""

    clients: tuple[str, ...] = ()
    """Client ids."""
    client_addresses: tuple[Address, ...] = ()
    nodes: tuple[str, ...] = ()
    """Node ids of brokers."""
    broker_addresses: tuple[Address, ...] = ()
    topics: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return any((self.clients, self.client_addresses, self.nodes, self.broker_addresses, self.topics))

    def without_topics(self) -> "Selection":
        """This selection for all topics."""
        return self._replace(topics=())


def selection(
    client: str | Sequence[str] | None,
    broker: str | int | Sequence[str | int] | None,
    topic: str | Sequence[str] | None,
    hosts: Mapping[str, str] | None = None,
) -> Selection:
    """The selection that a user asked for: one value of a kind, or several. `hosts`: address -> name; a client or
    broker may be asked for by this name. Raises UsageError."""
    clients, brokers, topics = (
        [] if given is None else [str(given)] if isinstance(given, str | int) else [str(one) for one in given]
        for given in (client, broker, topic)
    )
    ids, addresses, nodes, places = [], [], [], []
    called: dict[str, list[Address]] = {}
    for ip, name in (hosts or {}).items():
        found = read_address(ip)
        called.setdefault(name, []).extend([] if found is None else [found])
    for text in clients:
        address = None if text in called else read_address(text)
        if text in called:
            addresses += called[text]
        elif address is None:
            ids.append(text)
        else:
            addresses.append(address)
    for text in brokers:
        address = None if text.isdigit() or text in called else read_address(text)
        if text in called:
            places += called[text]
        elif address is not None:
            places.append(address)
        elif text.isascii() and text.isdigit():
            nodes.append(str(int(text)))
        else:
            raise UsageError(
                f"{text!r} is no broker; say its node id, its address like 10.0.0.5 or 10.0.0.5:9092, or a name that a "
                "file of hosts gives it"
            )
    if any(not text for text in topics):
        raise UsageError("a topic has a name; say it like orders")
    return Selection(tuple(ids), tuple(addresses), tuple(nodes), tuple(places), tuple(topics))


class Place(NamedTuple):
    """Where a message names topics: steps through lists, the column below the last one, and what stands there."""

    key: int
    side: int
    lists: tuple[str, ...]
    column: str
    """Empty: the elements of the last list themselves."""
    is_id: bool


@cache
def places() -> tuple[Place, ...]:
    """Every place of every message that names a topic, read off the layouts. These are fields called Topic, TopicName
    or TopicId, and a Name or an element of a list that is called after topics."""
    found: list[Place] = []
    for key, api in index.load().apis.items():
        for side in range(2):
            _places(key, side, (), (), False, api.message(side).fields, found)
    return tuple(found)


def _places(
    key: int, side: int, lists: tuple[str, ...], structs: tuple[str, ...], topics: bool, fields: tuple[Field, ...],
    places: list[Place],
) -> None:  # fmt: skip
    """`topics`: these fields belong to something that is called after topics."""
    with_id = any(one.name == "TopicId" for one in fields)
    for one in fields:
        path = (*structs, one.snake)
        called = "topic" in one.name.lower()
        if one.fields:
            below = ((*lists, ".".join(path)), ()) if one.kind == "array" else (lists, path)
            _places(key, side, *below, called, one.fields, places)
        elif one.kind == "array":
            if called and one.element in ("string", "uuid"):
                places.append(Place(key, side, (*lists, ".".join(path)), "", one.element == "uuid"))
        elif one.kind == "uuid" and one.name == "TopicId":
            places.append(Place(key, side, lists, ".".join(path), True))
        elif one.kind == "string" and (
            one.name in ("Topic", "TopicName") or (one.name == "Name" and (topics or with_id))
        ):
            places.append(Place(key, side, lists, ".".join(path), False))


def topic_paths() -> dict[tuple[int, int], set[str]]:
    """The message paths that topics are named in."""
    paths: dict[tuple[int, int], set[str]] = {}
    for place in places():
        path = ".".join([*place.lists, *([place.column] if place.column else [])])
        paths.setdefault((place.key, place.side), set()).add(path)
    return paths


class Selected:
    """A selection at work on one run.

    `brokers`: by number of the capture, the addresses of the brokers wanted (of node ids too); None for all.
    `ids`: topic id -> name, all that are known beforehand.
    """

    def __init__(
        self, wish: Selection, brokers: list[tuple[Address, ...]] | None = None, ids: Mapping[str, str] | None = None
    ) -> None:
        self.wish = wish
        self.brokers = brokers
        self.ids: Mapping[str, str] = {} if ids is None else ids
        self._kept: Flags = np.zeros(0, np.bool_)
        """Connections of which an exchange was kept."""
        self._since: Int64s = np.zeros(0, np.int64)
        """By connection, the ordinal of the first fetch that named a wanted topic."""

    def packets(self, rows: Int64s, flows: Int64s, capture: int) -> Int64s:
        """The segment rows that addresses do not rule out."""
        ends = self._both_ends(capture)
        if not ends or not len(rows):
            return rows
        flow = flows[rows[:, SEGMENT.flow] >> 1]
        keep = np.ones(len(rows), np.bool_)
        for wanted in ends:
            a = _matches(wanted, flow[:, FLOW.a_high], flow[:, FLOW.a_low], flow[:, FLOW.ports] >> 16)
            keep &= a | _matches(wanted, flow[:, FLOW.b_high], flow[:, FLOW.b_low], flow[:, FLOW.ports] & 0xFFFF)
        return rows if keep.all() else rows[keep]

    def _both_ends(self, capture: int) -> list[tuple[Address, ...]]:
        ends = [self.brokers[capture]] if self.brokers is not None else []
        if self.wish.client_addresses and not self.wish.clients:
            ends.append(self.wish.client_addresses)
        return ends

    def of(self, done: Completed, block: Block, names: Mapping[str, str]) -> Completed:
        """The exchanges that are wanted. `block` is made of `done`; `names`: topic id -> name, as far as known."""
        table = block.connections
        conn = done.conn
        if len(self._kept) < len(table):
            size = max(len(table), 2 * len(self._kept))
            self._kept = np.append(self._kept, np.zeros(size - len(self._kept), np.bool_))
            self._since = np.append(self._since, np.full(size - len(self._since), NEVER))
        keep = self._places(table, conn)
        if self.wish.clients:
            codes = [code for code, name in enumerate(done.client_ids) if name in self.wish.clients]
            mine = np.isin(done.client, codes)
            if self.wish.client_addresses:
                mine |= self._clients(table, conn)
            keep &= mine
        if self.wish.topics:
            keep &= self._topics(done, block, names)
        self._kept[conn[keep]] = True
        return done if keep.all() else only(done, np.flatnonzero(keep))

    def connections(self, table: Connections) -> Flags:
        """Whether each connection is wanted: it has the right ends and, where client ids or topics decide, a kept
        exchange."""
        rows = np.arange(len(table))
        keep = self._places(table, rows)
        if self.wish.clients or self.wish.topics:
            kept = np.zeros(len(table), np.bool_)
            kept[: len(self._kept)] = self._kept[: len(table)]
            keep &= kept
        return keep

    def _places(self, table: Connections, conn: npt.NDArray[np.int64]) -> Flags:
        """Connections whose ends have the right roles."""
        keep = np.ones(len(conn), np.bool_)
        if self.brokers is not None:
            keep &= self._brokers(table, conn)
        if self.wish.client_addresses and not self.wish.clients:
            keep &= self._clients(table, conn)
        return keep

    def _clients(self, table: Connections, conn: npt.NDArray[np.int64]) -> Flags:
        ends = table.client_hi[conn].view(np.int64), table.client_lo[conn].view(np.int64), table.client_port[conn]
        return _matches(self.wish.client_addresses, *ends)

    def _brokers(self, table: Connections, conn: npt.NDArray[np.int64]) -> Flags:
        ends = table.broker_hi[conn].view(np.int64), table.broker_lo[conn].view(np.int64), table.broker_port[conn]
        keep = np.zeros(len(conn), np.bool_)
        for capture, wanted in enumerate(self.brokers or ()):
            keep |= (table.capture[conn] == capture) & _matches(wanted, *ends)
        return keep

    def _topics(self, done: Completed, block: Block, names: Mapping[str, str]) -> Flags:
        keep = np.zeros(len(done), np.bool_)
        wanted = pa.array(self.wish.topics, TEXT)
        ids = {key for known in (self.ids, names) for key, name in known.items() if name in self.wish.topics}
        wanted_ids = pa.array(sorted(ids), TEXT)
        for place in places():
            if (place.key, place.side) not in done.messages:
                continue
            level = block.nest(place.key, place.side)
            for step in place.lists:
                level = level.each(step)
            values = level.column(place.column, TEXT) if place.column else level.values
            if values is None or not len(values):
                continue
            named = pc.is_in(values, value_set=wanted_ids if place.is_id else wanted).to_numpy(zero_copy_only=False)
            keep[block.bodies(place.key, place.side)[level.body[named]]] = True
        fetches = np.isin(done.api_key, FETCHES) & ~done.is_orphan
        naming = fetches & keep
        np.minimum.at(self._since, done.conn[naming], done.n[naming])
        return keep | (fetches & (done.n >= self._since[done.conn]))


def _matches(addresses: Sequence[Address], high: Int64s, low: Int64s, port: npt.NDArray[np.int64]) -> Flags:
    keep = np.zeros(len(high), np.bool_)
    for one in addresses:
        keep |= (high == one.high) & (low == one.low) & ((port == one.port) | (one.port < 0))
    return keep


def only(done: Completed, rows: Int64s) -> Completed:
    """Some rows of a `Completed`."""
    place = np.full(len(done), -1, np.int64)
    place[rows] = np.arange(len(rows))
    columns = {
        name: getattr(done, name)[rows]
        for name in Completed.__dataclass_fields__
        if name not in ("client_ids", "messages", "data") and getattr(done, name) is not None
    }
    messages = {}
    for kind, message in done.messages.items():
        at = place[message.rows]
        if (at < 0).any():
            kept = np.flatnonzero(at >= 0)
            messages[kind] = Message(at[kept], [message.batch.take(arrow_array(kept))])
        else:
            messages[kind] = Message(at, message.batches)
    return Completed(**columns, client_ids=done.client_ids, messages=messages, data=done.data)

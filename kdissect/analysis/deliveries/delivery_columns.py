"""The input that deliveries are made of, as columns of integers.

Instants are microseconds since the epoch, NULL_TIME where unknown. Texts are codes of `Names`, -1 for null.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np
import pyarrow as pa

from kdissect.arrays.arrow import Coder, Flags, Int64s, begins, distinct, ints
from kdissect.tables.order import by_request

UNKNOWN = -1
NO_PRODUCE = -2
"""The `acks` of an exchange that is no Produce."""


class _Columns:
    """Rows as integer columns of one length: those that the class annotates, in their order."""

    def __init__(self, *columns: Int64s) -> None:
        for name, column in zip(self.names(), columns, strict=True):
            setattr(self, name, column)

    def __len__(self) -> int:
        return len(self.columns()[0])

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The columns' names."""
        return tuple(cls.__annotations__)

    @classmethod
    def none(cls) -> Self:
        """No rows."""
        return cls(*(np.zeros(0, np.int64) for _ in cls.names()))

    @classmethod
    def behind(cls, parts: Sequence[Self]) -> Self:
        """Rows behind one another."""
        if len(parts) == 1:
            return parts[0]
        none = np.zeros(0, np.int64)
        return cls(*(np.concatenate([none, *(getattr(part, name) for part in parts)]) for name in cls.names()))

    def columns(self) -> list[Int64s]:
        """The columns, in order."""
        return [getattr(self, name) for name in self.names()]

    def replaced(self, **columns: Int64s) -> Self:
        """These rows with other values in the columns that are named."""
        return type(self)(*(columns.get(name, getattr(self, name)) for name in self.names()))

    def rows(self, rows: Int64s | Flags | slice) -> Self:
        """These rows."""
        return type(self)(*(column[rows] for column in self.columns()))


class Exchanges(_Columns):
    """Produce, Fetch and ShareFetch exchanges."""

    connection: Int64s
    ordinal: Int64s
    """With `connection` the exchange's id (`exchange_keys`)."""
    requested: Int64s
    """By which rows are ordered; LAST for none."""
    api: Int64s
    first: Int64s
    """First byte of the request."""
    arrived: Int64s
    left: Int64s
    last: Int64s
    """Last byte of the answer."""
    client_id: Int64s
    client: Int64s
    """Of client id and address."""
    broker: Int64s
    cluster: Int64s
    error: Int64s
    mute: Int64s
    """Microseconds that the answer makes the client wait before its next request is read; 0 for none."""
    held: Int64s
    """Microseconds that a broker of old kept the throttled answer itself back."""
    acks: Int64s
    """NO_PRODUCE where it is none."""
    replica: Int64s
    """Node id of a follower; UNKNOWN for a consumer. Like the columns that follow it comes from `fetches`."""
    isolation: Int64s
    min_bytes: Int64s
    max_wait: Int64s
    """Milliseconds."""


class Batches(_Columns):
    """Record batches of Produce requests, or of answers: `exchange` is the row of `Exchanges`, `row` the number of its
    row of `record_batches`. Offsets are UNKNOWN where no answer told them; `producer`, `records` and the columns behind
    `stamp` are NULL_TIME where null."""

    row: Int64s
    exchange: Int64s
    place: Int64s
    """Code of topic and partition."""
    first: Int64s
    last: Int64s
    records: Int64s
    crc: Int64s
    producer: Int64s
    epoch: Int64s
    sequence: Int64s
    stamp: Int64s
    """First timestamp, where it is the producer's."""
    transactional: Int64s
    size: Int64s
    codec: Int64s
    topic: Int64s
    topic_id: Int64s
    partition: Int64s
    replicas: Int64s
    """Of the partition, as its Produce answer's topic was told to have; UNKNOWN for none, and in answers."""


class Positions(_Columns):
    """Partitions of Fetch exchanges: what the reader asked for, and what the answer says of the log."""

    exchange: Int64s
    place: Int64s
    asked: Int64s
    high: Int64s
    stable: Int64s


Rows = TypeVar("Rows", Batches, Positions)
KINDS: tuple[Any, ...] = (Exchanges, Batches, Batches, Positions)
"""Of the parts of an input."""


class Names:
    """Texts and their codes."""

    def __init__(self) -> None:
        self.clients, self.addresses, self.brokers, self.clusters = Coder(), Coder(), Coder(), Coder()
        self.codecs, self.groups, self.members = Coder(), Coder(), Coder()
        self.topics = Coder()
        """Names and ids of topics."""
        self._keys = self._codes = np.zeros(0, np.int64)
        """Topics with partitions, in order, and their codes."""

    @property
    def places(self) -> int:
        """How many topics' partitions have a code."""
        return len(self._keys)

    def name_place(self, code: int) -> str:
        """A place as `topic:partition`; topics without a name have their id."""
        key = int(self._keys[self._codes == code][0])
        return f"{self.topics.texts[key >> 32]}:{key & 0xFFFFFFFF}"

    def topics_of(self, table: pa.Table) -> tuple[Int64s, Int64s]:
        """Codes of `topic` and `topic_id`."""
        return self.topics.column(table, "topic"), self.topics.column(table, "topic_id")

    def places_of(self, table: pa.Table) -> Int64s:
        """Codes of rows with `topic`, `topic_id` and `partition`; -1 where there is neither name nor id. A topic id
        stands for a topic whose name no message told."""
        return self.places_at(*self.topics_of(table), ints(table, "partition"))

    def places_at(self, topic: Int64s, topic_id: Int64s, partition: Int64s) -> Int64s:
        """`places_of` by codes of topics."""
        topic = np.where(topic >= 0, topic, topic_id)
        key = (topic << 32) + partition  # partitions are int32
        at = np.minimum(np.searchsorted(self._keys, key), max(len(self._keys) - 1, 0))
        new = self._keys[at] != key if len(self._keys) else np.ones(len(key), np.bool_)
        new &= topic >= 0
        if new.any():
            fresh = distinct(key[new])
            codes = np.concatenate([self._codes, np.arange(len(fresh)) + len(self._codes)])
            keys = np.concatenate([self._keys, fresh])
            order = np.argsort(keys)
            self._keys, self._codes = keys[order], codes[order]
            at = np.minimum(np.searchsorted(self._keys, key), len(self._keys) - 1)
        return np.where(topic >= 0, self._codes[at], -1) if len(self._keys) else np.full(len(key), -1, np.int64)


class Input(NamedTuple):
    """The columns that deliveries are made of."""

    exchanges: Exchanges
    sent: Batches
    given: Batches
    positions: Positions
    names: Names

    @property
    def size(self) -> int:
        """Bytes of all columns."""
        return sum(8 * len(part) * len(part.names()) for part in self.parts)

    def words(self) -> Int64s:
        """All columns in one, behind the numbers of rows, for `of_words`."""
        columns = [column for part in self.parts for column in part.columns()]
        return np.concatenate([np.array([len(part) for part in self.parts], np.int64), *columns])

    @staticmethod
    def of_words(words: Int64s, names: Names) -> Input:
        """The input that `words` wrote as one column."""
        made: list[Any] = []
        at = len(KINDS)
        for kind, size in zip(KINDS, words[: len(KINDS)].tolist(), strict=True):
            width = len(kind.names())
            made.append(kind(*words[at : at + width * size].reshape(width, size)))
            at += width * size
        exchanges, sent, given, positions = made
        return Input(exchanges, sent, given, positions, names)

    @property
    def parts(self) -> tuple[Exchanges, Batches, Batches, Positions]:
        """The columns."""
        return self.exchanges, self.sent, self.given, self.positions

    def replicas(self) -> Int64s:
        """By place, the most replicas that a message told; UNKNOWN for none."""
        found = np.full(self.names.places, UNKNOWN, np.int64)
        np.maximum.at(found, self.sent.place, self.sent.replicas)
        return found

    @property
    def batches(self) -> int:
        """Record batches, sent and given."""
        return len(self.sent) + len(self.given)

    def split(self, share: Int64s, count: int) -> Iterator[Input]:
        """The rows of each of `count` shares; `share`: by place."""
        cut: list[list[Any]] = []
        for part in (self.sent, self.given, self.positions):
            mine = share[part.place]
            order = np.argsort(mine, kind="stable")
            rows, ends = part.rows(order), np.searchsorted(mine[order], np.arange(count + 1))
            cut.append([rows.rows(slice(ends[at], ends[at + 1])) for at in range(count)])
        for sent, given, positions in zip(*cut, strict=True):
            yield with_their_exchanges(self.exchanges, sent, given, positions, self.names)

    def of_cluster(self, code: int) -> Input:
        """The rows of one cluster."""
        mine = self.exchanges.cluster == code
        return self._those(lambda part: mine[part.exchange])

    def of_first(self, count: int) -> Input:
        """The rows about the first `count` exchanges."""
        return self._those(lambda part: part.exchange < count)

    def _those(self, condition: Callable[[Batches | Positions], Flags]) -> Input:
        sent, given = self.sent.rows(condition(self.sent)), self.given.rows(condition(self.given))
        return with_their_exchanges(
            self.exchanges, sent, given, self.positions.rows(condition(self.positions)), self.names
        )

    @staticmethod
    def join_pieces(pieces: Sequence[Input], names: Names) -> Input:
        """All pieces as one, exchanges in the order of their requests. Rows of an exchange must be in one piece."""
        if not pieces:
            return Input(Exchanges.none(), Batches.none(), Batches.none(), Positions.none(), names)
        exchanges = Exchanges.behind([piece.exchanges for piece in pieces])
        order = by_request(exchanges.requested, exchanges.connection, exchanges.ordinal)
        rank = np.arange(len(exchanges))
        if order is not None:
            rank[order] = np.arange(len(exchanges))
            exchanges = exchanges.rows(order)
        begin = begins(np.array([len(piece.exchanges) for piece in pieces]))
        ranks = [rank[begin[at] : begin[at + 1]] for at in range(len(pieces))]
        return Input(
            exchanges,
            _behind([piece.sent for piece in pieces], ranks),
            _behind([piece.given for piece in pieces], ranks),
            _behind([piece.positions for piece in pieces], ranks),
            names,
        )


def _behind(parts: Sequence[Rows], ranks: Sequence[Int64s]) -> Rows:
    """Rows of pieces in the order of their exchanges; `ranks`: of each piece's exchanges among all."""
    moved = [part.replaced(exchange=rank[part.exchange]) for part, rank in zip(parts, ranks, strict=True)]
    rows = type(parts[0]).behind(moved)
    return rows if (np.diff(rows.exchange) >= 0).all() else rows.rows(np.argsort(rows.exchange, kind="stable"))


def with_their_exchanges(
    exchanges: Exchanges, sent: Batches, delivered: Batches, positions: Positions, names: Names
) -> Input:
    """These rows with the exchanges that they are of, and no others."""
    used = np.zeros(len(exchanges), np.bool_)
    for part in (sent, delivered, positions):
        used[part.exchange] = True
    if not used.all():
        place = np.cumsum(used) - 1
        exchanges = exchanges.rows(np.flatnonzero(used))
        for part in (sent, delivered, positions):
            part.exchange = place[part.exchange]
    return Input(exchanges, sent, delivered, positions, names)


def dense(*columns: Int64s) -> Int64s:
    """Equal rows have equal numbers, in the order of the columns."""
    size = len(columns[0])
    order = np.lexsort(columns[::-1])
    new = np.zeros(size, np.bool_)
    for column in columns:
        ordered = column[order]
        new[1:] |= ordered[1:] != ordered[:-1]
    found = np.empty(size, np.int64)
    found[order] = np.cumsum(new)
    return found

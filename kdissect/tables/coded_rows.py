"""Rows of fetches and produces for the analysis alone: the columns that it reads, as integers.

Where nobody shows `fetches`, `fetch_partitions`, `produces` and `produce_partitions`, their rows are made
straight from the decoded messages, as integers: the same rows in the same order as the tables', with the columns that
what follows sessions, holds and replication reads of them (`kdissect.tables.declaration.readers`), and without names:
brokers and topics are codes of texts which `resolved` finds out.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kdissect.arrays.arrow import Coder, Int64s, begins, numbers, valid
from kdissect.arrays.rows import NULL, Column, Rows, Texts
from kdissect.kafka.completed import NULL_TIME
from kdissect.schema.apikeys import ApiKey
from kdissect.tables.declaration.model import ACKS_KEY, EXCHANGE_KEYS, TIME_KEY, UNSEEN_KEY
from kdissect.tables.fetch_kernels import (
    ExchangeColumns,
    FetchColumns,
    NamedPartitions,
    PartitionColumns,
    RequestLists,
    ResponseLists,
    distinct_topics,
    fill_fetches,
    fill_partitions,
    spread,
)
from kdissect.tables.fetch_rows import NamedFetches, complete_read, fetches_of, plain
from kdissect.tables.fetches import METADATA_TOPIC, METADATA_TOPIC_ID
from kdissect.tables.identity import SEPARATOR
from kdissect.tables.nest import Level, lengths
from kdissect.tables.partitions import coded_keys, paired
from kdissect.tables.produces import matched
from kdissect.tables.sent_rows import codes_of
from kdissect.tables.table_block import READ_ASIDE, Block
from kdissect.tables.topics import Replicas

FORGOTTEN_TOPICS = "forgotten_topics_data"
SEED = int.from_bytes(os.urandom(7), "little")
"""Names are put into tables by it, so that nobody can choose names that all fall into one place."""
_NO_TEXT = np.zeros(1, np.int32)
_WIDTHS = {pa.int8(): np.int8, pa.int16(): np.int16, pa.int32(): np.int32, pa.int64(): np.int64}


class Topics:
    """The topics that a block's messages name, each as it stands on the wire: (name, id), one of them None."""

    def __init__(self) -> None:
        self.codes: dict[tuple[str | None, str | None], int] = {}
        self._fetched: _Fetched | None = None
        self._produced: tuple[_Named, _Named] | None = None

    def of(self, level: Level, name: str, topic_id: str) -> Int64s:
        """The code of the topic that each element of a level names. Levels are those of one block."""
        size, names, ids = len(level), level.get(name), level.get(topic_id)
        if not size:
            return np.zeros(0, np.int64)
        table = np.full(2 << size.bit_length(), -1, np.int64)
        firsts, codes = np.empty(size, np.int64), np.empty(size, np.int64)
        count = distinct_topics(*_texts(names), *_texts(ids), table, firsts, codes, SEED)
        pairs = [
            (None if names is None else names[at].as_py(), None if ids is None else ids[at].as_py())
            for at in firsts[:count].tolist()
        ]
        lasting = self.lookup_codes(pairs)[:-1]
        return codes if (lasting == np.arange(count)).all() else lasting[codes]

    def lookup_codes(self, pairs: Sequence[tuple[str | None, str | None]]) -> Int64s:
        """The code of each of these topics, and -1 behind them."""
        return np.array([*(self.codes.setdefault(pair, len(self.codes)) for pair in pairs), -1], np.int64)

    def fetched(self, block: Block) -> _Fetched:
        """What the Fetch messages of the block say."""
        if self._fetched is None:
            self._fetched = _Fetched(block, self)
        return self._fetched

    def produced(self, request: Level, response: Level) -> tuple[_Named, _Named]:
        """The partitions that the Produce messages of the block name: its requests, and answers."""
        if self._produced is None:
            asked = _Named(request, self, "topic_data", "partition_data", ("name", "topic_id"))
            given = _Named(response, self, "responses", "partition_responses", ("name", "topic_id"))
            self._produced = asked, given
        return self._produced

    def stands_for(self, name: str, topic_id: str) -> npt.NDArray[np.bool_]:
        """For each code whether it is that of this name or id."""
        return np.array([topic[0] == name or topic[1] == topic_id for topic in self.codes], np.bool_)

    def columns(self, codes: Int64s) -> dict[str, Column]:
        """`topic` and `topic_id` of rows with these codes."""
        return {
            "topic": Texts(codes, [name for name, _ in self.codes]),
            "topic_id": Texts(codes, [topic_id for _, topic_id in self.codes]),
        }


def _texts(column: pa.Array | None) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8], npt.NDArray[np.bool_]]:
    """Where the texts of a column begin, their bytes, and where they are not null (empty: everywhere)."""
    if column is None or column.null_count == len(column):
        return np.zeros(1, np.int32), np.zeros(0, np.uint8), np.zeros(0, np.bool_)
    _, begins, data = column.buffers()
    offsets = np.frombuffer(begins, np.int32, len(column) + 1, 4 * column.offset) if len(column) else _NO_TEXT
    text = np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    return offsets, text, valid(column) if column.null_count else np.zeros(0, np.bool_)


class _Named:
    """Partitions that messages name by topic, as flat lists: topics of message i are [topic_begin[i], ...[i + 1]),
    partitions of topic j [begin[j], ...[j + 1])."""

    def __init__(self, messages: Level, topics: Topics, outer: str, inner: str, names: tuple[str, str]) -> None:
        self.topic_begin, self.topics = _list_elements(messages, outer)
        self.begin, self.partitions = _list_elements(self.topics, inner)
        self.code = topics.of(self.topics, *names)

    def placed(self, rows: Int64s) -> tuple[Int64s, Int64s]:
        """Of each partition the row of its message, of which these are all, and the code of its topic."""
        row, topic = np.empty((2, len(self.partitions)), np.int64)
        spread(np.ascontiguousarray(rows), self.topic_begin, self.begin, self.code, row, topic)
        return row, topic


def _list_elements(level: Level, path: str) -> tuple[Int64s, Level]:
    """Where the elements of the lists at a path begin, and they themselves, which know nothing of what is above."""
    found = level.get(path)
    if found is None:
        return np.zeros(len(level) + 1, np.int64), Level.bare(None)
    if found.null_count:
        begin = begins(lengths(found))
    else:
        begin = np.frombuffer(found.buffers()[1], np.int32, len(found) + 1, 4 * found.offset).astype(np.int64)
        begin -= begin[0]
    return begin, Level.bare(found.flatten())


def fields(level: Level, paths: Sequence[str]) -> Int64s:
    """[paths, elements] of integers, NULL where null."""
    out = np.empty((len(paths), len(level)), np.int64)
    for row, path in zip(out, paths, strict=True):
        found = level.get(path)
        if found is None or found.null_count == len(found):
            row[:] = NULL
        elif found.null_count or (kind := _WIDTHS.get(found.type)) is None:
            row[:] = numbers(found, NULL)
        else:
            row[:] = np.frombuffer(found.buffers()[1], kind, len(found) + found.offset)[found.offset :]
    return out


class _Fetched:
    """What a block's Fetch messages say."""

    def __init__(self, block: Block, topics: Topics) -> None:
        self.request, self.response = block.nest(ApiKey.FETCH, 0), block.nest(ApiKey.FETCH, 1)
        named = "topic", "topic_id"
        self.asked = _Named(self.request, topics, "topics", "partitions", named)
        self.gone = _Named(self.request, topics, FORGOTTEN_TOPICS, "partitions", named)
        self.given = _Named(self.response, topics, "responses", "partitions", named)
        self.row = np.zeros(0, np.int64)
        """Of each row of `fetched_rows` its exchange, once they are made."""


ASKED_OF_ALL = (
    "session_id", "session_epoch", "max_wait_ms", "min_bytes", "isolation_level", "replica_id",
    "replica_state.replica_id",
)  # fmt: skip
ASKED = ("partition", "fetch_offset")
GIVEN = (
    "partition_index", "error_code", "high_watermark", "last_stable_offset", "log_start_offset", "records_bytes",
    "preferred_read_replica", "diverging_epoch.epoch",
)  # fmt: skip
"""Message fields, in the order of `fetch_kernels.RequestLists` and `NamedPartitions`."""
FETCH_COLUMNS = (
    *EXCHANGE_KEYS, TIME_KEY, "broker", "request_last_at", "response_first_at", "queued_ms", "broker_ms", "api_version",
    "request_session_id", "session_epoch", "response_session_id", "replica_id", "is_raft", "max_wait_ms", "min_bytes",
    "isolation_level", "partitions_sent", "partitions_returned", "partitions_with_error", "record_bytes",
    "throttle_ms", "error_code", "client_id", "request_bytes", UNSEEN_KEY,
)  # fmt: skip
REALS = frozenset({"queued_ms", "broker_ms", "throttle_ms", "throttled_ms"})
PRODUCE_COLUMNS = (*FETCH_COLUMNS[:8], "acks", "error_code")
PARTITION_COLUMNS = (
    *EXCHANGE_KEYS, TIME_KEY, "topic", "topic_id", "partition", "in_request", "in_response", "forgotten",
    "fetch_offset", "error_code", "high_watermark", "last_stable_offset", "broker_log_start_offset", "record_bytes",
    "preferred_read_replica", "diverging_epoch",
)  # fmt: skip
"""What rows have, in the order of `fetch_kernels.FetchColumns` and `PartitionColumns`."""
COLUMNS = {
    "fetches": FETCH_COLUMNS,
    "fetch_partitions": PARTITION_COLUMNS,
    "produces": PRODUCE_COLUMNS,
    "produce_partitions": (*PARTITION_COLUMNS[:6], "base_offset", "error_code", "replicas"),
}
"""The same by table, of partitions of produces once they are made and resolved."""
TEXTS = frozenset({"broker", "client_id", "topic", "topic_id"})


def fetch_rows(block: Block, topics: Topics) -> Rows:
    """One row for each Fetch exchange, but for those that were read aside."""
    rows, done, parts = block.rows(ApiKey.FETCH), block.done, block.parts
    if done.aside is not None:
        rows = np.setdiff1d(rows, fetches_of(done.aside.rows.fetches)["exchange"], assume_unique=True)
    said = topics.fetched(block)
    out = np.empty((len(FETCH_COLUMNS), len(rows)), np.int64)
    metadata = topics.stands_for(METADATA_TOPIC, METADATA_TOPIC_ID)[said.asked.code]
    exchanges = ExchangeColumns(
        *block.keys,
        first=plain(done.request_first, np.int64),
        last=plain(done.request_last, np.int64),
        answer=plain(done.response_first, np.int64),
        queued=parts.queued,
        spent=parts.broker,
        split=parts.split,
        version=plain(done.api_version, np.int16),
        throttle=plain(done.throttle_ms, np.int32),
        error=plain(done.error_code, np.int32),
        errors=plain(done.error_count, np.int32),
        broker=plain(block.directory.broker_codes(done.conn), np.int32),
        client=plain(done.client, np.int32),
        size=plain(done.request_bytes, np.int64),
        unseen=plain(done.unseen_until, np.int64),
    )
    session, epoch, wait, least, isolation, replica, follower = fields(said.request, ASKED_OF_ALL)
    asked = RequestLists(
        block.body_of(ApiKey.FETCH, 0), session, epoch, wait, least, isolation, replica, follower,
        topic_begin=said.asked.topic_begin, begin=said.asked.begin, metadata=metadata,
    )  # fmt: skip
    error, records = fields(said.given.partitions, ("error_code", "records_bytes"))
    given = ResponseLists(
        body=block.body_of(ApiKey.FETCH, 1),
        session=fields(said.response, ["session_id"])[0],
        topic_begin=said.given.topic_begin,
        begin=said.given.begin,
        error=error,
        records=records,
    )
    columns: list[Any] = [
        column.view(np.float64) if name in REALS else column for name, column in zip(FETCH_COLUMNS, out, strict=True)
    ]
    fill_fetches(rows, exchanges, asked, given, FetchColumns(*columns))
    texts: dict[str, Sequence[str]] = {"broker": block.directory.brokers.texts, "client_id": done.client_ids}
    return Rows.in_one(out, {name: texts.get(name, float if name in REALS else int) for name in FETCH_COLUMNS})


def fetched_rows(block: Block, topics: Topics) -> Rows:
    """One row for each partition of a Fetch exchange."""
    said, done = topics.fetched(block), block.done
    gone = said.gone.partitions.values
    asked, given = fields(said.asked.partitions, ASKED), fields(said.given.partitions, GIVEN)
    forgotten = np.zeros(0, np.int64) if gone is None else numbers(gone)
    sides = (said.asked, 0), (said.gone, 0), (said.given, 1)
    placed = [side.placed(block.bodies(ApiKey.FETCH, number)) for side, number in sides]
    pairs = paired([row for row, _ in placed], [topic for _, topic in placed], [asked[0], forgotten, given[0]])
    said.row = pairs.row
    out = np.empty((len(PARTITION_COLUMNS), len(pairs.row)), np.int64)
    asked_topic, gone_topic, given_topic = (topic for _, topic in placed)
    named = NamedPartitions(
        asked_topic, gone_topic, given_topic, asked[0], forgotten, given[0], asked[1], *given[1:]
    )  # fmt: skip
    fill_partitions(
        pairs, *block.keys, plain(done.request_first, np.int64), plain(done.error_code, np.int32),
        named, PartitionColumns(*out),
    )  # fmt: skip
    names, ids = zip(*topics.codes, strict=True) if topics.codes else ((), ())
    texts = {"topic": list(names), "topic_id": list(ids)}
    return Rows.in_one(out, {name: texts.get(name, int) for name in PARTITION_COLUMNS})


def produce_rows(exchanges: Rows, lasting: Coder) -> Rows:
    """One row for each Produce exchange, of resolved exchanges with ACKS_KEY."""
    sent = exchanges.select([*PRODUCE_COLUMNS, ACKS_KEY]).filter(exchanges.ints("api_key") == ApiKey.PRODUCE)
    if not sent.num_rows:
        return Rows({}, 0)
    return as_codes("produces", sent.with_columns({"acks": sent.ints(ACKS_KEY, NULL)}), lasting)


@dataclass(frozen=True, slots=True)
class Later:
    """Rows that are made when they are asked for, if they are, in parts with texts of their own: about `num_rows`."""

    made: Callable[[], list[Rows]]
    num_rows: int


def produced_rows(block: Block, topics: Topics) -> Later:
    """One row for each partition of a Produce exchange. What was waited for can be told of a partition only once
    something has said how many replicas it has."""
    request, response = block.nest(ApiKey.PRODUCE, 0), block.nest(ApiKey.PRODUCE, 1)
    bodies = block.bodies(ApiKey.PRODUCE, 0), block.bodies(ApiKey.PRODUCE, 1)
    aside = [] if block.done.aside is None else [codes_of(block)]
    most, read = max(map(len, bodies)), sum(rows.num_rows for rows in aside)
    if not most:
        return Later(lambda: aside, read)
    (high, n), first = block.keys, block.done.request_first.copy()  # the block itself is gone by then

    def decoded() -> Rows:
        asked, given = topics.produced(request, response)
        (asked_row, asked_topic), (given_row, given_topic) = asked.placed(bodies[0]), given.placed(bodies[1])
        numbered = asked.partitions.ints("index"), given.partitions.ints("index")
        rows, named = (asked_row, given_row), (asked_topic, given_topic)
        row, *found = matched(rows, coded_keys(rows, named, numbered))
        source, given_at = np.where(found[0] >= 0, found[0], found[1] + len(asked_row)), Places(found[1])
        return Rows(
            {
                EXCHANGE_KEYS[0]: high[row],
                EXCHANGE_KEYS[1]: n[row],
                TIME_KEY: _micros(first[row]),
                **topics.columns(np.concatenate(named)[source]),
                "partition": np.concatenate(numbered)[source],
                "base_offset": given_at.field(given.partitions, "base_offset"),
                "error_code": given_at.field(given.partitions, "error_code"),
            },
            len(row),
        )

    return Later(lambda: [*aside, decoded()], read + most)


CODED: Mapping[str, Callable[[Block, Topics], Rows | Later]] = {
    "fetches": fetch_rows,
    "fetch_partitions": fetched_rows,
    "produce_partitions": produced_rows,
}
"""Tables whose rows may be made as codes, block by block, and what makes them: those of `produces` are made of
exchanges (`produce_rows`), once anything tells how many replicas partitions have."""
FETCHES = ("fetches", "fetch_partitions")


def rows_as_codes(block: Block, names: Iterable[str], topics: Topics) -> dict[str, Rows | Later | NamedFetches]:
    """Rows of a block of these tables, unresolved, and fetches that were read aside. `topics`: what is known of the
    block, nothing yet."""
    names = list(names)
    found: dict[str, Rows | Later | NamedFetches] = {}
    if "fetches" in names and block.done.aside is not None:
        found[READ_ASIDE] = read = complete_read(block, block.done.aside.rows)
        if len(read.rows.fetches) == len(block.rows(ApiKey.FETCH)):
            found |= dict.fromkeys(FETCHES, Rows({}, 0))
    return found | {name: CODED[name](block, topics) for name in names if name not in found}


def resolved(
    rows: Rows, brokers: Mapping[str, str], topics: Mapping[str, str], lasting: Coder,
    replicas: Replicas | None = None,
) -> Rows:  # fmt: skip
    """Rows with what is known now: the names of `brokers` and `topics` by what they stand for, and `replicas` by id and
    by name of a topic, where these are asked for. Texts have the codes of `lasting`, so that these rows can stand
    behind others. What was given is not to be used any more."""
    broker, topic, topic_id = (rows.columns.get(name) for name in ("broker", "topic", "topic_id"))
    if isinstance(broker, Texts):
        named = [text and brokers.get(text, text.rpartition(SEPARATOR)[2]) for text in broker.values]
        rows = rows.recoded("broker", named, lasting)
    if isinstance(client := rows.columns.get("client_id"), Texts):
        rows = rows.recoded("client_id", client.values, lasting)
    if isinstance(topic, Texts) and isinstance(topic_id, Texts):
        pairs = list(zip(topic.values, topic_id.values, strict=True))
        named = [topics.get(known or "") if name is None else name for name, known in pairs]
        if replicas is not None:
            copies = [
                replicas[0].get(known or "", replicas[1].get(name or "", NULL))
                for name, (_, known) in zip(named, pairs, strict=True)
            ]
            rows = rows.with_columns({"replicas": np.array([*copies, NULL], np.int64)[topic.codes]})
        rows = rows.recoded("topic", named, lasting).recoded("topic_id", topic_id.values, lasting)
    return rows


def as_codes(name: str, rows: Rows, lasting: Coder, besides: Sequence[str] = ()) -> Rows:
    """Resolved rows of a table as `resolved` gives those that are made as codes, and columns `besides`."""
    made: dict[str, Column] = {}
    for column in (*COLUMNS[name], *besides):
        if column in TEXTS:
            made[column] = Texts(rows.codes(column, lasting), lasting.texts)
        else:
            made[column] = rows.reals(column) if column in REALS else rows.ints(column, NULL)
    return Rows(made, rows.num_rows)


def _micros(ns: npt.NDArray[np.int64]) -> Int64s:
    """Nanoseconds since the epoch as microseconds, rounded down."""
    found: Int64s = np.where(ns == NULL_TIME, NULL, ns // 1000)
    return found


class Places:
    """Where rows find their values among those of messages; what lies below 0 is null."""

    __slots__ = ("_all", "index", "partly")

    def __init__(self, index: Int64s) -> None:
        self.index = index
        self.partly = bool(len(index)) and int(index.min()) < 0
        """Some values are null for want of a place."""
        self._all = not self.partly and bool((index == np.arange(len(index))).all())

    def __len__(self) -> int:
        return len(self.index)

    def of(self, values: Int64s) -> Int64s:
        """The value of each row."""
        if self._all and len(values) == len(self.index):
            return values
        found: Int64s = (np.append(values, NULL) if self.partly else values).take(self.index)
        return found

    def field(self, level: Level, path: str) -> Int64s:
        """A field of messages as integers."""
        found = level.get(path)
        return np.full(len(self.index), NULL, np.int64) if found is None else self.of(numbers(found, NULL))

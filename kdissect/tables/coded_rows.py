"""Rows of fetches and produces for the analysis alone: the columns that it reads, as integers.

Where nobody shows `fetches`, `fetch_partitions`, `produces` and `produce_partitions`, their rows are made as `Codes`
straight from the decoded messages: the same rows in the same order as the tables', with the columns that what follows
sessions, holds and replication reads of them (`kdissect.tables.declaration.readers`), and without names: brokers and
topics are codes of texts which `resolved` finds out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kdissect.arrays.arrow import Coder, numbers, valid
from kdissect.arrays.codes import NULL, Codes, Column, Int64s, Texts
from kdissect.kafka.exchanges.completed import NO_CODE, NULL_TIME
from kdissect.tables.declaration.model import EXCHANGE_KEYS, TEXT, TIME_KEY
from kdissect.tables.exchanges import error_codes
from kdissect.tables.fetches import FETCH, METADATA_TOPIC, METADATA_TOPIC_ID
from kdissect.tables.identity import SEPARATOR
from kdissect.tables.nest import Level
from kdissect.tables.partitions import coded_keys, paired
from kdissect.tables.produces import PRODUCE, matched
from kdissect.tables.table_block import Block

FORGOTTEN_TOPICS = "forgotten_topics_data"


class Topics:
    """The topics that a block's messages name, each as it stands on the wire: (name, id), one of them None."""

    def __init__(self) -> None:
        self.codes: dict[tuple[str | None, str | None], int] = {}
        self._found: dict[int, Int64s] = {}

    def of(self, level: Level, name: str, topic_id: str) -> Int64s:
        """The code of the topic that each element of a level names. Levels are those of one block."""
        found = self._found.get(id(level))
        if found is None:
            found = self._found[id(level)] = self._coded(level, name, topic_id)
        return found

    def _coded(self, level: Level, name: str, topic_id: str) -> Int64s:
        (names, given), (ids, told) = _texts(level, name), _texts(level, topic_id)
        pairs = names * len(told) + ids
        if len(given) > 1 and len(told) > 1:
            distinct, pairs = np.unique(pairs, return_inverse=True)
        else:
            distinct = np.arange(len(given) * len(told))
        lasting = [
            self.codes.setdefault((given[pair // len(told)], told[pair % len(told)]), len(self.codes))
            for pair in distinct.tolist()
        ]
        coded: Int64s = np.array(lasting, np.int64)[pairs]
        return coded

    def stands_for(self, name: str, topic_id: str) -> npt.NDArray[np.bool_]:
        """For each code whether it is that of this name or id."""
        return np.array([topic[0] == name or topic[1] == topic_id for topic in self.codes], np.bool_)

    def columns(self, codes: Int64s) -> dict[str, Column]:
        """`topic` and `topic_id` of rows with these codes."""
        return {
            "topic": Texts(codes, [name for name, _ in self.codes]),
            "topic_id": Texts(codes, [topic_id for _, topic_id in self.codes]),
        }


def _texts(level: Level, path: str) -> tuple[Int64s, list[str | None]]:
    """Codes into the distinct texts of a column, None behind them, which null has the code of."""
    found = level.get(path)
    if found is None:
        return np.zeros(len(level), np.int64), [None]
    encoded = found.cast(TEXT).dictionary_encode()
    texts = encoded.dictionary.to_pylist()
    return numbers(encoded.indices, len(texts)), [*texts, None]


def fetch_rows(block: Block, topics: Topics) -> Codes:
    """One row for each Fetch exchange."""
    rows, done = block.rows(FETCH), block.done
    request, response = block.nest(FETCH, 0), block.nest(FETCH, 1)
    asked, given = (Places(block.body_of(FETCH, side)[rows]) for side in range(2))
    returned = response.each("responses").each("partitions")
    sizes = np.maximum(returned.ints("records_bytes", 0), 0)
    errors, decoded = done.error_code[rows].astype(np.int64), done.error_count[rows] >= 0
    failed = returned.body[returned.ints("error_code", 0) != 0]
    raft = np.zeros(len(request), np.int64)
    named = request.each("topics")
    codes = topics.of(named, "topic", "topic_id")
    raft[named.body[topics.stands_for(METADATA_TOPIC, METADATA_TOPIC_ID)[codes]]] = 1
    return Codes(
        {
            **_of_exchanges(block, rows),
            "api_version": _null(done.api_version[rows].astype(np.int64), -1),
            "request_session_id": asked.field(request, "session_id"),
            "session_epoch": asked.field(request, "session_epoch"),
            "response_session_id": given.field(response, "session_id"),
            "replica_id": asked.of(_replica(request)),
            "is_raft": asked.of(raft),
            "max_wait_ms": asked.field(request, "max_wait_ms"),
            "min_bytes": asked.field(request, "min_bytes"),
            "isolation_level": asked.field(request, "isolation_level"),
            "partitions_sent": asked.of(_counts(named.each("partitions").body, len(request))),
            "partitions_returned": given.of(_counts(returned.body, len(response))),
            "partitions_with_error": given.of(_counts(failed, len(response))),
            "record_bytes": given.of(_counts(returned.body, len(response), sizes)),
            "throttle_ms": np.where(done.throttle_ms[rows] >= 0, done.throttle_ms[rows], np.nan),
            "error_code": np.where(decoded, np.where(errors == NO_CODE, 0, errors), NULL),
        },
        len(rows),
    )


def fetched_rows(block: Block, topics: Topics) -> Codes:
    """One row for each partition of a Fetch exchange."""
    request, response = block.nest(FETCH, 0), block.nest(FETCH, 1)
    above = request.each("topics"), request.each(FORGOTTEN_TOPICS), response.each("responses")
    asked, gone, given = (level.each("partitions") for level in above)
    numbered = (
        asked.ints("partition"),
        np.zeros(0, np.int64) if gone.values is None else numbers(gone.values),
        given.ints("partition_index"),
    )
    bodies = block.bodies(FETCH, 0), block.bodies(FETCH, 0), block.bodies(FETCH, 1)
    rows = [body[level.body] for body, level in zip(bodies, (asked, gone, given), strict=True)]
    named = [
        topics.of(level, "topic", "topic_id")[below.parent]
        for level, below in zip(above, (asked, gone, given), strict=True)
    ]
    row, *found = paired(rows, named, numbered)
    asked_at, given_at = Places(found[0]), Places(found[2])
    if asked_at.partly:
        source = np.where(found[2] >= 0, found[2] + len(asked) + len(gone), found[1] + len(asked))
        at, topic, number = np.where(found[0] >= 0, found[0], source), np.concatenate(named), np.concatenate(numbered)
        topic, number = topic.take(at), number.take(at)
    else:
        topic, number = asked_at.of(named[0]), asked_at.of(numbered[0])
    top = block.done.error_code.take(row).astype(np.int64)
    return Codes(
        {
            **_of_rows(block, row),
            **topics.columns(topic),
            "partition": number,
            # What was not read is nowhere, which is all that matters to whoever looks at these.
            "in_request": (found[0] >= 0).astype(np.int64),
            "in_response": (found[2] >= 0).astype(np.int64),
            "forgotten": (found[1] >= 0).astype(np.int64),
            "fetch_offset": asked_at.field(asked, "fetch_offset"),
            "error_code": np.where((top != NO_CODE) & (top != 0), top, given_at.field(given, "error_code")),
            "high_watermark": given_at.field(given, "high_watermark"),
            "last_stable_offset": given_at.field(given, "last_stable_offset"),
            "broker_log_start_offset": given_at.field(given, "log_start_offset"),
            "record_bytes": given_at.of(np.maximum(given.ints("records_bytes", 0), 0)),
            "preferred_read_replica": given_at.field(given, "preferred_read_replica"),
            "diverging_epoch": given_at.field(given, "diverging_epoch.epoch"),
        },
        len(row),
    )


def produce_rows(block: Block, _: Topics) -> Codes:
    """One row for each Produce exchange."""
    rows = block.rows(PRODUCE)
    codes, known = error_codes(block)
    return Codes(
        {
            **_of_exchanges(block, rows),
            "acks": Places(block.body_of(PRODUCE, 0)[rows]).field(block.nest(PRODUCE, 0), "acks"),
            "error_code": np.where(known[rows], codes[rows], NULL),
        },
        len(rows),
    )


@dataclass(frozen=True, slots=True)
class Later:
    """Rows that are made when they are asked for, if they are: about `num_rows`."""

    made: Callable[[], Codes]
    num_rows: int


def produced_rows(block: Block, topics: Topics) -> Later:
    """One row for each partition of a Produce exchange. What was waited for can be told of a partition only once
    something has said how many replicas it has."""
    request, response = block.nest(PRODUCE, 0), block.nest(PRODUCE, 1)
    above = request.each("topic_data"), response.each("responses")
    asked, given = above[0].each("partition_data"), above[1].each("partition_responses")
    rows = [block.bodies(PRODUCE, side)[level.body] for side, level in enumerate((asked, given))]
    identified = _of_rows(block, slice(None))  # the block itself is gone by then

    def made() -> Codes:
        numbered = asked.ints("index"), given.ints("index")
        named = [
            topics.of(level, "name", "topic_id")[below.parent]
            for level, below in zip(above, (asked, given), strict=True)
        ]
        row, *found = matched(rows, coded_keys(rows, named, numbered))
        source, given_at = np.where(found[0] >= 0, found[0], found[1] + len(asked)), Places(found[1])
        return Codes(
            {
                **{name: column[row] for name, column in identified.items()},
                **topics.columns(np.concatenate(named)[source]),
                "partition": np.concatenate(numbered)[source],
                "base_offset": given_at.field(given, "base_offset"),
                "error_code": given_at.field(given, "error_code"),
            },
            len(row),
        )

    return Later(made, max(len(asked), len(given)))


CODED: Mapping[str, Callable[[Block, Topics], Codes | Later]] = {
    "fetches": fetch_rows,
    "fetch_partitions": fetched_rows,
    "produces": produce_rows,
    "produce_partitions": produced_rows,
}
"""The tables whose rows may be made as codes, and what makes them."""


def rows_as_codes(block: Block, names: Iterable[str]) -> dict[str, Codes | Later]:
    """Rows of a block of these tables, unresolved."""
    topics = Topics()
    return {name: CODED[name](block, topics) for name in names}


def resolved(
    rows: Codes, brokers: Mapping[str, str], topics: Mapping[str, str],
    replicas: tuple[Mapping[str, int], Mapping[str, int]], lasting: Coder,
) -> Codes:  # fmt: skip
    """Rows with what is known now: the names of `brokers` and `topics` by what they stand for, and `replicas` by id and
    by name of a topic. Texts have the codes of `lasting`, so that these rows can stand behind others."""
    columns: dict[str, Column] = {}
    broker, topic, topic_id = (rows.columns.get(name) for name in ("broker", "topic", "topic_id"))
    if isinstance(broker, Texts):
        names = [text and brokers.get(text, text.rpartition(SEPARATOR)[2]) for text in broker.values]
        columns["broker"] = lasting.interned(Texts(broker.codes, names))
    if isinstance(topic, Texts) and isinstance(topic_id, Texts):
        pairs = list(zip(topic.values, topic_id.values, strict=True))
        named = [topics.get(known or "") if name is None else name for name, known in pairs]
        copies = [
            replicas[0].get(known or "", replicas[1].get(name or "", NULL))
            for name, (_, known) in zip(named, pairs, strict=True)
        ]
        columns["topic"] = lasting.interned(Texts(topic.codes, named))
        columns["topic_id"] = lasting.interned(topic_id)
        columns["replicas"] = np.array([*copies, NULL], np.int64)[topic.codes]
    return rows.with_columns(columns)


def _of_exchanges(block: Block, rows: Int64s) -> dict[str, Column]:
    """What rows of exchanges have in common."""
    done, parts, directory = block.done, block.parts, block.directory
    split = parts.split[rows]
    return {
        **_of_rows(block, rows),
        "broker": Texts(directory.broker_codes(done.conn[rows]).astype(np.int64), directory.brokers.texts),
        "request_last_at": _micros(done.request_last[rows]),
        "response_first_at": _micros(done.response_first[rows]),
        "queued_ms": np.where(split, parts.queued[rows] / 1e6, np.nan),
        "broker_ms": np.where(split, parts.broker[rows] / 1e6, np.nan),
    }


def _of_rows(block: Block, rows: Int64s | slice) -> dict[str, Int64s]:
    """What identifies rows, and what they are ordered by."""
    high, n = block.keys
    return {
        EXCHANGE_KEYS[0]: high[rows],
        EXCHANGE_KEYS[1]: n[rows],
        TIME_KEY: _micros(block.done.request_first[rows]),
    }


def _micros(ns: npt.NDArray[np.int64]) -> Int64s:
    """Nanoseconds since the epoch as microseconds, rounded down."""
    found: Int64s = np.where(ns == NULL_TIME, NULL, ns // 1000)
    return found


def _null(values: Int64s, null: int) -> Int64s:
    return np.where(values == null, NULL, values)


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


def _counts(bodies: Int64s, size: int, weights: Int64s | None = None) -> Int64s:
    """How many elements each of so many bodies has, or the sums of their weights."""
    return np.bincount(bodies, weights, size).astype(np.int64)


def _replica(request: Level) -> Int64s:
    """Node id of the follower that each body comes from, -1 for a consumer (see `fetches.replica_id`)."""
    own, state = request.get("replica_id"), request.get("replica_state.replica_id")
    found = np.full(len(request), -1, np.int64) if state is None else numbers(state, -1)
    return found if own is None else np.where(valid(own), numbers(own, -1), found)

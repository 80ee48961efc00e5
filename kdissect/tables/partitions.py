"""The `fetch_partitions` table: request and response sides of a Fetch joined per (exchange, topic, partition).

Rows of an exchange come in the response's order (`position`), then the partitions only in the request in its order,
then the forgotten ones that are in neither list. A partition that stands twice in a list (no honest client does
that) pairs its first with the first of the other side, its second with the second. The topic is compared by id where
the version uses ids, else by name; a response always uses what its request used.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from kdissect.arrays.from_numpy import arrow_array
from kdissect.kafka.completed import NO_CODE
from kdissect.schema.apikeys import ApiKey
from kdissect.tables.declaration.model import CODE, COUNT, TEXT
from kdissect.tables.makers import makes
from kdissect.tables.nest import Int64s, Level, lengths, numbers, optional, pick
from kdissect.tables.partition_pairs import NamedSide, Pairs, pair
from kdissect.tables.table_block import Block, Column, Rows, flag


class Side(NamedTuple):
    """Partitions named on one side: for each its row of the block, topic as on the wire and number, in wire order."""

    row: Int64s
    topic: pa.Array
    topic_id: pa.Array
    partition: Int64s


def side(
    level: Level, topics: Level, row_of_body: Int64s, partition: Int64s, name: str = "topic", topic_id: str = "topic_id"
) -> Side:
    """The partitions below a level of topics. `name`, `topic_id`: the fields that name a topic, "" for none."""
    return Side(
        row_of_body[level.body],
        level.up(topics.column(name, TEXT)),
        level.up(topics.column(topic_id, TEXT) if topic_id else pa.nulls(len(topics), TEXT)),
        partition,
    )


def keys(*sides: Side) -> list[Int64s]:
    """An integer for each partition of each side: equal when exchange, topic, partition and turn among equals are."""
    texts = pa.concat_arrays([pc.coalesce(item.topic_id, item.topic) for item in sides])
    topic = numbers(texts.dictionary_encode().indices)
    ends = np.cumsum([len(item.row) for item in sides])[:-1]
    return coded_keys([item.row for item in sides], np.split(topic, ends), [item.partition for item in sides])


def coded_keys(rows: Sequence[Int64s], topics: Sequence[Int64s], partitions: Sequence[Int64s]) -> list[Int64s]:
    """`keys` of sides given as columns, topics as codes."""
    packed = pack(pack(np.concatenate(rows), np.concatenate(topics)), np.concatenate(partitions))
    out = np.split(packed, np.cumsum([len(row) for row in rows])[:-1])
    turns = [turn(part) for part in out]
    if any(part is not None for part in turns):
        both = pack(
            packed,
            np.concatenate([np.zeros(len(p), np.int64) if t is None else t for p, t in zip(out, turns, strict=True)]),
        )
        out = np.split(both, np.cumsum([len(part) for part in out])[:-1])
    return out


def pack(high: Int64s, low: Int64s) -> Int64s:
    """One integer for each pair, equal when both are; the values themselves when they fit, else their ranks."""
    if not len(high):
        return high
    if low.min() < -1 or low.max() >= 2**20 or high.max() >= 2**41:
        low = np.unique(low, return_inverse=True)[1]
        high = np.unique(high, return_inverse=True)[1]
        return high * (int(low.max()) + 1) + low
    return high << 21 | (low + 1)


def turn(key: Int64s) -> Int64s | None:
    """How many equal keys stand before each; None when all differ."""
    order = np.argsort(key, kind="stable")
    ordered = key[order]
    same = ordered[1:] == ordered[:-1]
    if not same.any():
        return None
    place = np.arange(len(key))
    starts = np.maximum.accumulate(np.where(np.concatenate([[True], ~same]), place, 0))
    out = np.empty(len(key), np.int64)
    out[order] = place - starts
    return out


def locate(keys: Int64s, among: Int64s) -> Int64s:
    """For each wanted key its place among distinct keys, -1 where it is not there."""
    if not len(among) or not len(keys):
        return np.full(len(keys), -1, np.int64)
    if len(among) == len(keys) and np.array_equal(among, keys):
        return np.arange(len(keys))
    order = np.argsort(among, kind="stable")
    place = np.minimum(np.searchsorted(among, keys, sorter=order), len(among) - 1)
    found = order[place]
    return np.where(among[found] == keys, found, -1)


@makes("fetch_partitions")
def fetch_partitions(block: Block) -> Rows:
    """The columns of `fetch_partitions`, exchanges in the block's order. Topics are not resolved yet."""
    request, response = block.nest(ApiKey.FETCH, 0), block.nest(ApiKey.FETCH, 1)
    asked_topics, gone_topics = request.each("topics"), request.each("forgotten_topics_data")
    given_topics = response.each("responses")
    asked, gone, given = (
        asked_topics.each("partitions"),
        gone_topics.each("partitions"),
        given_topics.each("partitions"),
    )
    gone_numbers = np.zeros(0, np.int64) if gone.values is None else numbers(gone.values)
    request_rows, response_rows = block.bodies(ApiKey.FETCH, 0), block.bodies(ApiKey.FETCH, 1)
    sides = (
        side(asked, asked_topics, request_rows, asked.ints("partition")),
        side(gone, gone_topics, request_rows, gone_numbers),
        side(given, given_topics, response_rows, given.ints("partition_index")),
    )
    keyed = keys(*sides)
    row, asked_at, gone_at, given_at = matched([item.row for item in sides], keyed)
    return Joined(block, row, asked_at, gone_at, given_at, sides, asked, given).columns(), len(row)


def matched(rows: Sequence[Int64s], keys: Sequence[Int64s]) -> tuple[Int64s, Int64s, Int64s, Int64s]:
    """Match partitions that are asked for, forgotten and given, by their rows of the block and their keys. Returns the
    row of each, and its places in the three lists (-1: not there), in the order of the table."""
    asked_row, gone_row, given_row = rows
    asked_key, gone_key, given_key = keys
    given_in_asked, given_in_gone = locate(given_key, asked_key), locate(given_key, gone_key)
    asked_left = np.ones(len(asked_key), np.bool_)
    asked_left[given_in_asked[given_in_asked >= 0]] = False
    only_asked = np.flatnonzero(asked_left)
    asked_in_gone = locate(asked_key[only_asked], gone_key)
    gone_left = np.ones(len(gone_key), np.bool_)
    gone_left[given_in_gone[given_in_gone >= 0]] = False
    gone_left[asked_in_gone[asked_in_gone >= 0]] = False
    only_gone = np.flatnonzero(gone_left)

    none = np.full
    in_given = np.concatenate([np.arange(len(given_key)), none(len(only_asked), -1), none(len(only_gone), -1)])
    in_asked = np.concatenate([given_in_asked, only_asked, none(len(only_gone), -1)])
    in_gone = np.concatenate([given_in_gone, asked_in_gone, only_gone])
    row = np.concatenate([given_row, asked_row[only_asked], gone_row[only_gone]])
    group = np.repeat([0, 1, 2], [len(given_key), len(only_asked), len(only_gone)])
    order = np.argsort(row * 3 + group, kind="stable")
    return row[order], in_asked[order], in_gone[order], in_given[order]


def paired(rows: Sequence[Int64s], topics: Sequence[Int64s], partitions: Sequence[Int64s]) -> Pairs:
    """`matched` of sides given as columns, topics as codes."""
    asked, gone, given = (
        NamedSide(*(np.ascontiguousarray(column, np.int64) for column in side))
        for side in zip(rows, topics, partitions, strict=True)
    )
    taken = np.zeros(len(asked.row) + len(gone.row), np.bool_)
    found = np.empty((4, len(taken) + len(given.row)), np.int64)
    count = pair(asked, gone, given, taken, Pairs(*found))
    if count < 0:
        places = matched(rows, coded_keys(rows, topics, partitions))
        return Pairs(*(np.ascontiguousarray(column, np.int64) for column in places))
    return Pairs(*found[:, :count])


class Joined:
    """Joined rows: for each its row of the block and its places on the three sides (-1: not there)."""

    def __init__(
        self, block: Block, row: Int64s, asked_at: Int64s, gone_at: Int64s, given_at: Int64s,
        sides: tuple[Side, Side, Side], asked: Level, given: Level,
    ) -> None:  # fmt: skip
        self.block = block
        self.row = row
        self.asked_at = asked_at
        self.gone_at = gone_at
        self.given_at = given_at
        self.sides = sides
        self.asked = asked
        self.given = given

    def columns(self) -> dict[str, Column]:
        """A maker for each column."""
        block, row = self.block, self.row

        def ask(path: str, kind: pa.DataType) -> Column:
            return lambda: pick(self.asked.column(path, kind), self.asked_at)

        def give(path: str, kind: pa.DataType) -> Column:
            return lambda: pick(self.given.column(path, kind), self.given_at)

        request_read = block.body_of(ApiKey.FETCH, 0)[row] >= 0
        response_read = block.body_of(ApiKey.FETCH, 1)[row] >= 0
        asked, given = self.asked_at >= 0, self.given_at >= 0
        return {
            "exchange_id": lambda: block.exchange_id.take(arrow_array(row)),
            "topic": lambda: self.topic_column("topic"),
            "topic_id": lambda: self.topic_column("topic_id"),
            "partition": lambda: arrow_array(self.partition(), CODE),
            "position": lambda: optional(self.position(), given, CODE),
            "in_request": lambda: flag(asked, request_read),
            "in_response": lambda: flag(given, response_read),
            "forgotten": lambda: flag(self.gone_at >= 0, request_read),
            "implied": lambda: flag(given & ~asked, request_read & response_read),
            "fetch_offset": ask("fetch_offset", COUNT),
            "current_leader_epoch": ask("current_leader_epoch", CODE),
            "last_fetched_epoch": ask("last_fetched_epoch", CODE),
            "log_start_offset": ask("log_start_offset", COUNT),
            "partition_max_bytes": ask("partition_max_bytes", CODE),
            "error_code": self.error_code,
            "high_watermark": give("high_watermark", COUNT),
            "last_stable_offset": give("last_stable_offset", COUNT),
            "broker_log_start_offset": give("log_start_offset", COUNT),
            "lag": self.lag,
            "record_bytes": lambda: pick(
                pc.max_element_wise(self.given.column("records_bytes", COUNT).fill_null(0), 0), self.given_at
            ),
            "batches": self.batches,
            "aborted_transactions": self.aborted,
            "preferred_read_replica": give("preferred_read_replica", CODE),
            "diverging_epoch": give("diverging_epoch.epoch", CODE),
            "diverging_end_offset": give("diverging_epoch.end_offset", COUNT),
            "leader_id": give("current_leader.leader_id", CODE),
            "leader_epoch": give("current_leader.leader_epoch", CODE),
            **block.time_columns(row),
            "cluster": lambda: block.cluster(row),
            **block.key_columns(row),
        }

    def batches(self) -> pa.Array:
        """Number of record batches, null where they were not counted."""
        counted = self.block.batches
        return pa.nulls(len(self.row), COUNT) if counted is None else pick(arrow_array(counted, COUNT), self.given_at)

    def topic_column(self, attribute: str) -> pa.Array:
        """Topic name or id as on the wire, from whichever side has the row."""
        texts = pa.concat_arrays([getattr(item, attribute) for item in self.sides])
        return texts.take(arrow_array(self._source()))

    def partition(self) -> Int64s:
        """Partition number, from whichever side has the row."""
        return np.concatenate([item.partition for item in self.sides])[self._source()]

    def _source(self) -> Int64s:
        """Place in the three sides laid end to end."""
        first, second = len(self.sides[0].row), len(self.sides[1].row)
        source = np.where(self.given_at >= 0, self.given_at + first + second, self.gone_at + first)
        return np.where(self.asked_at >= 0, self.asked_at, source)

    def position(self) -> Int64s:
        """Place in its own response."""
        body = self.given.body
        if not len(body):
            return np.full(len(self.row), -1, np.int64)
        starts = np.searchsorted(body, body, side="left")  # bodies stand in order
        return (np.arange(len(body)) - starts)[self.given_at]

    def error_code(self) -> pa.Array:
        """The partition's error code; the top-level one where that is set."""
        done = self.block.done
        top = np.asarray(done.error_code, np.int64)[self.row]
        is_set = (top != NO_CODE) & (top != 0)
        own = pick(self.given.column("error_code", CODE), self.given_at)
        return pc.if_else(arrow_array(is_set), arrow_array(top).cast(CODE, safe=False), own)

    def lag(self) -> pa.Array:
        """High watermark - fetch offset, not below 0; null unless both are known and without an error."""
        high = pick(self.given.column("high_watermark", COUNT), self.given_at)
        offset = pick(self.asked.column("fetch_offset", COUNT), self.asked_at)
        good: npt.NDArray[np.bool_] = numbers(self.error_code(), -1) == 0
        good &= (numbers(high, -1) >= 0) & (numbers(offset, -1) >= 0)
        return pc.if_else(arrow_array(good), pc.max_element_wise(pc.subtract(high, offset), 0), pa.scalar(None, COUNT))

    def aborted(self) -> pa.Array:
        """Number of aborted transactions listed, null for a null list."""
        found = self.given.get("aborted_transactions")
        if found is None:
            return pa.nulls(len(self.row), COUNT)
        present = np.asarray(found.is_valid())
        return pick(optional(lengths(found), present, COUNT), self.given_at)

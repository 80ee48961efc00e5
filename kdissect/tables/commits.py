"""The `offset_commits` table: OffsetCommit and TxnOffsetCommit, request and response joined per partition, in the
request's order. The analysis fills in what was seen of the partition's log then."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kdissect.arrays.from_numpy import arrow_array
from kdissect.schema.apikeys import ApiKey
from kdissect.tables.declaration.model import CODE, COUNT, TEXT
from kdissect.tables.identity import dictionary
from kdissect.tables.makers import makes
from kdissect.tables.nest import Int64s, numbers, pick
from kdissect.tables.partitions import keys, locate, side
from kdissect.tables.table_block import Block, Column, Rows, instant


class _Commits(NamedTuple):
    """The commits of one API in a block: `row[i]` is the exchange of commit i, the columns one value each."""

    row: Int64s
    columns: dict[str, Column]


@makes("offset_commits")
def offset_commits(block: Block) -> Rows:
    """The columns of `offset_commits`, exchanges in the block's order. Topics are not resolved yet."""
    parts = [_commits(block, key) for key in (ApiKey.OFFSET_COMMIT, ApiKey.TXN_OFFSET_COMMIT)]
    row = np.concatenate([part.row for part in parts])
    order = np.argsort(row, kind="stable")
    row = row[order]
    done = block.done

    def gather(name: str) -> Column:
        return lambda: pa.concat_arrays([part.columns[name]() for part in parts]).take(arrow_array(order))

    columns: dict[str, Column] = {
        "exchange_id": lambda: block.exchange_id.take(arrow_array(row)),
        "at": lambda: instant(block.on_wire[row]),
        "client_id": lambda: dictionary(done.client[row], done.client_ids),
        **{name: gather(name) for name in parts[0].columns},
        **block.time_columns(row),
        "cluster": lambda: block.cluster(row),
        **block.key_columns(row),
    }
    return columns, len(row)


def _commits(block: Block, key: int) -> _Commits:
    request, response = block.nest(key, 0), block.nest(key, 1)
    asked_topics, given_topics = request.each("topics"), response.each("topics")
    asked, given = asked_topics.each("partitions"), given_topics.each("partitions")
    ours = side(asked, asked_topics, block.bodies(key, 0), asked.ints("partition_index"), "name")
    theirs = side(given, given_topics, block.bodies(key, 1), given.ints("partition_index"), "name")
    place = locate(*keys(ours, theirs))

    def offset() -> pa.Array:
        found = asked.column("committed_offset", COUNT)
        return pc.if_else(arrow_array(numbers(found, -1) >= 0), found, pa.scalar(None, COUNT))

    def member() -> pa.Array:
        found = pick(request.column("member_id", TEXT), asked.body)
        return pc.if_else(pc.equal(found, "").fill_null(True), pa.scalar(None, TEXT), found)

    return _Commits(
        ours.row,
        {
            "group_id": lambda: pick(request.column("group_id", TEXT), asked.body),
            "member_id": member,
            "topic": lambda: ours.topic,
            "topic_id": lambda: ours.topic_id,
            "partition": lambda: arrow_array(ours.partition, CODE),
            "offset": offset,
            "leader_epoch": lambda: asked.column("committed_leader_epoch", CODE),
            "error_code": lambda: pick(given.column("error_code", CODE), place),
        },
    )

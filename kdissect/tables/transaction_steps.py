"""The `transaction_steps` table: what producers, brokers and coordinators say about transactions, a row per message and
partition that it names (KIP-98, KIP-890)."""

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kdissect.arrays.from_numpy import arrow_array
from kdissect.schema.apikeys import ApiKey
from kdissect.tables.declaration.model import CODE, COUNT, FLAG, TEXT
from kdissect.tables.exchanges import error_codes
from kdissect.tables.identity import dictionary
from kdissect.tables.makers import makes
from kdissect.tables.nest import Int64s, Level, optional, pick
from kdissect.tables.table_block import Block, Column, Rows, instant

FIELDS = {
    "transactional_id": TEXT, "producer_id": COUNT, "producer_epoch": CODE, "committed": FLAG, "group_id": TEXT,
    "topic": TEXT, "partition": CODE,
}  # fmt: skip


class _Steps(NamedTuple):
    """Steps of one kind: row of the block, name of the step, and the columns of FIELDS that it has."""

    row: Int64s
    step: pa.Array
    columns: dict[str, pa.Array]


@makes("transaction_steps")
def transaction_steps(block: Block) -> Rows:
    """The columns of `transaction_steps`, exchanges in the block's order."""
    parts = [_added_now(block), _added(block), _offsets(block), _ended(block), _marked(block), _committed(block)]
    row = np.concatenate([part.row for part in parts])
    order = np.argsort(row, kind="stable")
    row, done = row[order], block.done
    answer = block.body_of(ApiKey.END_TXN, 1)[row] if len(row) else np.zeros(0, np.int64)
    errors, known = error_codes(block)

    def gather(name: str) -> pa.Array:
        kind = FIELDS[name]
        pieces = [part.columns.get(name, pa.nulls(len(part.row), kind)) for part in parts]
        return pa.concat_arrays(pieces).take(arrow_array(order))

    def field(name: str) -> Column:
        return lambda: gather(name)

    def moved(name: str, kind: pa.DataType) -> Column:
        def make() -> pa.Array:
            found = pick(block.nest(ApiKey.END_TXN, 1).column(name, kind), answer)
            return pc.if_else(pc.greater_equal(found, pa.scalar(0, kind)), found, pa.scalar(None, kind))

        return make

    columns: dict[str, Column] = {
        "exchange_id": lambda: block.exchange_id.take(arrow_array(row)),
        "requested_at": lambda: instant(done.request_first[row]),
        "answered_at": lambda: instant(done.response_last[row]),
        "client_id": lambda: dictionary(done.client[row], done.client_ids),
        "broker": lambda: block.directory.broker(done.conn[row]),
        "step": lambda: pa.concat_arrays([part.step for part in parts]).take(arrow_array(order)),
        **{name: field(name) for name in FIELDS},
        "error_code": lambda: optional(errors[row], known[row], CODE),
        "next_producer_id": moved("producer_id", COUNT),
        "next_producer_epoch": moved("producer_epoch", CODE),
        "cluster": lambda: block.cluster(row),
        **block.time_columns(row),
    }
    return columns, len(row)


def _producer_columns(level: Level, prefix: str = "") -> dict[str, pa.Array]:
    return {
        name: level.column(prefix + name, FIELDS[name])
        for name in ("transactional_id", "producer_id", "producer_epoch")
    }


def _below(columns: dict[str, pa.Array], at: Int64s) -> dict[str, pa.Array]:
    return {name: pick(column, at) for name, column in columns.items()}


def _words(text: str, size: int) -> pa.Array:
    return pa.array([text], TEXT).take(arrow_array(np.zeros(size, np.int64)))


def _partitions(topics: Level, partitions: Level) -> dict[str, pa.Array]:
    numbers = partitions.values
    return {
        "topic": partitions.up(topics.column("name", TEXT)),
        "partition": pa.nulls(len(partitions), CODE) if numbers is None else numbers.cast(CODE),
    }


def _added_now(block: Block) -> _Steps:
    """AddPartitionsToTxn v4 and later: several transactions in one request, also of brokers that only ask."""
    each = block.nest(ApiKey.ADD_PARTITIONS_TO_TXN, 0).each("transactions")
    topics = each.each("topics")
    partitions = topics.each("partitions")
    asks = each.column("verify_only", FLAG).fill_null(False)
    step = pc.if_else(asks, pa.scalar("verify", TEXT), pa.scalar("add_partitions", TEXT))
    at = topics.parent[partitions.parent]
    return _Steps(
        block.bodies(ApiKey.ADD_PARTITIONS_TO_TXN, 0)[partitions.body], pick(step, at),
        {**_below(_producer_columns(each), at), **_partitions(topics, partitions)},
    )  # fmt: skip


def _added(block: Block) -> _Steps:
    """AddPartitionsToTxn up to v3."""
    request = block.nest(ApiKey.ADD_PARTITIONS_TO_TXN, 0)
    topics = request.each("v3_and_below_topics")
    partitions = topics.each("partitions")
    columns = {
        **_below(_producer_columns(request, "v3_and_below_"), partitions.body),
        **_partitions(topics, partitions),
    }
    return _Steps(
        block.bodies(ApiKey.ADD_PARTITIONS_TO_TXN, 0)[partitions.body],
        _words("add_partitions", len(partitions)),
        columns,
    )


def _offsets(block: Block) -> _Steps:
    request = block.nest(ApiKey.ADD_OFFSETS_TO_TXN, 0)
    columns = {**_producer_columns(request), "group_id": request.column("group_id", TEXT)}
    return _Steps(
        block.bodies(ApiKey.ADD_OFFSETS_TO_TXN, 0)[request.body], _words("add_offsets", len(request)), columns
    )


def _ended(block: Block) -> _Steps:
    request = block.nest(ApiKey.END_TXN, 0)
    columns = {**_producer_columns(request), "committed": request.column("committed", FLAG)}
    return _Steps(block.bodies(ApiKey.END_TXN, 0)[request.body], _words("end", len(request)), columns)


def _committed(block: Block) -> _Steps:
    request = block.nest(ApiKey.TXN_OFFSET_COMMIT, 0)
    columns = {**_producer_columns(request), "group_id": request.column("group_id", TEXT)}
    return _Steps(
        block.bodies(ApiKey.TXN_OFFSET_COMMIT, 0)[request.body], _words("commit_offsets", len(request)), columns
    )


def _marked(block: Block) -> _Steps:
    each = block.nest(ApiKey.WRITE_TXN_MARKERS, 0).each("markers")
    topics = each.each("topics")
    partitions = topics.each("partition_indexes")
    at = topics.parent[partitions.parent]
    columns = {name: each.column(name, FIELDS[name]) for name in ("producer_id", "producer_epoch")}
    columns["committed"] = each.column("transaction_result", FLAG)
    return _Steps(
        block.bodies(ApiKey.WRITE_TXN_MARKERS, 0)[partitions.body], _words("markers", len(partitions)),
        {**_below(columns, at), **_partitions(topics, partitions)},
    )  # fmt: skip

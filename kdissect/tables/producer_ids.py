"""The `producer_ids` table."""

from __future__ import annotations

import pyarrow as pa

from kdissect.arrays.from_numpy import arrow_array
from kdissect.schema.apikeys import ApiKey
from kdissect.tables.declaration.model import CODE, COUNT, TEXT
from kdissect.tables.identity import dictionary
from kdissect.tables.makers import makes
from kdissect.tables.nest import pick
from kdissect.tables.table_block import Block, Column, Rows


@makes("producer_ids")
def producer_ids(block: Block) -> Rows:
    """The columns of `producer_ids`, one row per InitProducerId exchange of the block."""
    rows = block.rows(ApiKey.INIT_PRODUCER_ID)
    asked, given = block.body_of(ApiKey.INIT_PRODUCER_ID, 0)[rows], block.body_of(ApiKey.INIT_PRODUCER_ID, 1)[rows]
    request, response = block.nest(ApiKey.INIT_PRODUCER_ID, 0), block.nest(ApiKey.INIT_PRODUCER_ID, 1)

    def ask(path: str, kind: pa.DataType) -> Column:
        return lambda: pick(request.column(path, kind), asked)

    def give(path: str, kind: pa.DataType) -> Column:
        return lambda: pick(response.column(path, kind), given)

    columns: dict[str, Column] = {
        "exchange_id": lambda: block.exchange_id.take(arrow_array(rows)),
        "connection_id": lambda: block.directory.connection_id(block.done.conn[rows]),
        "client_id": lambda: dictionary(block.done.client[rows], block.done.client_ids),
        "transactional_id": ask("transactional_id", TEXT),
        "transaction_timeout_ms": ask("transaction_timeout_ms", CODE),
        "producer_id_asked": ask("producer_id", COUNT),
        "producer_epoch_asked": ask("producer_epoch", CODE),
        "producer_id": give("producer_id", COUNT),
        "producer_epoch": give("producer_epoch", CODE),
        "error_code": give("error_code", CODE),
        "latency_ms": lambda: block.latency_ms().take(arrow_array(rows)),
        "cluster": lambda: block.cluster(rows),
        **block.time_columns(rows),
    }
    return columns, len(rows)

"""The `fetches` table: what is on the wire; sessions and holds come from the analysis."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from kdissect.arrays.from_numpy import arrow_array
from kdissect.kafka.completed import NO_CODE
from kdissect.schema.apikeys import ApiKey
from kdissect.tables.declaration.model import CODE, COUNT, FLAG, MS, TEXT, UNSEEN_KEY
from kdissect.tables.identity import dictionary
from kdissect.tables.makers import makes
from kdissect.tables.nest import Int64s, Level, optional, pick
from kdissect.tables.table_block import Block, Column, Rows, code, count, elapsed, instant, milliseconds
from kdissect.tables.topic_lists import topic_lists

METADATA_TOPIC = "__cluster_metadata"
METADATA_TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAQ"
"""Id of `__cluster_metadata` in every cluster (Uuid.METADATA_TOPIC_ID)."""

REQUEST_KINDS = ("sessionless", "create", "replace", "close", "incremental")
FIRST_SESSION_VERSION = 7


@makes("fetches")
def fetches(block: Block) -> Rows:
    """The columns of `fetches`, one row per Fetch exchange of the block. `broker` is not resolved yet."""
    rows = block.rows(ApiKey.FETCH)
    done, directory = block.done, block.directory
    conn = done.conn[rows]
    request, response = block.nest(ApiKey.FETCH, 0), block.nest(ApiKey.FETCH, 1)
    asked, given = block.body_of(ApiKey.FETCH, 0)[rows], block.body_of(ApiKey.FETCH, 1)[rows]

    def ask(path: str, kind: pa.DataType) -> Column:
        return lambda: pick(request.column(path, kind), asked)

    def per(level: Level, index: Int64s, counted: npt.NDArray[np.bool_] | None = None) -> Column:
        def make() -> pa.Array:
            bodies = level.body if counted is None else level.body[counted]
            total = np.bincount(bodies, minlength=int(index.max(initial=-1)) + 1)
            return optional(total[index], index >= 0, COUNT) if len(total) else pa.nulls(len(index), COUNT)

        return make

    returned = response.each("responses").each("partitions")

    def record_bytes() -> pa.Array:
        sizes = np.maximum(returned.ints("records_bytes", 0), 0).astype(np.float64)
        total = np.bincount(returned.body, weights=sizes, minlength=len(response)).astype(np.int64)
        return pick(arrow_array(total, COUNT), given)

    columns: dict[str, Column] = {
        "exchange_id": lambda: block.exchange_id.take(arrow_array(rows)),
        "connection_id": lambda: directory.connection_id(conn),
        "capture": lambda: directory.capture(conn),
        "broker": lambda: directory.broker(conn),
        "client_ip": lambda: directory.client_ip(conn),
        "client_id": lambda: dictionary(done.client[rows], done.client_ids),
        "api_version": lambda: code(done.api_version[rows]),
        "status": lambda: block.status.take(arrow_array(rows)),
        "replica_id": lambda: pick(replica_id(request), asked),
        "is_follower": lambda: pc.greater_equal(pick(replica_id(request), asked), 0),
        "is_raft": lambda: pick(reads_metadata(request), asked),
        "requested_at": lambda: instant(done.request_first[rows]),
        "request_last_at": lambda: instant(done.request_last[rows]),
        "response_first_at": lambda: instant(done.response_first[rows]),
        "response_last_at": lambda: instant(done.response_last[rows]),
        "max_wait_ms": ask("max_wait_ms", CODE),
        "min_bytes": ask("min_bytes", CODE),
        "max_bytes": ask("max_bytes", CODE),
        "isolation_level": ask("isolation_level", CODE),
        "rack_id": ask("rack_id", TEXT),
        "request_session_id": ask("session_id", CODE),
        "session_epoch": ask("session_epoch", CODE),
        "response_session_id": lambda: pick(response.column("session_id", CODE), given),
        "request_kind": lambda: request_kinds(request, asked, np.asarray(done.api_version[rows])),
        "topics": lambda: topic_lists(
            [request.each("topics"), request.each("forgotten_topics_data"), response.each("responses")],
            [asked, asked, given],
            "topic",
        ),
        "partitions_sent": per(request.each("topics").each("partitions"), asked),
        "partitions_forgotten": per(request.each("forgotten_topics_data").each("partitions"), asked),
        "partitions_returned": per(returned, given),
        "partitions_with_records": lambda: per(returned, given, returned.ints("records_bytes", 0) > 0)(),
        "partitions_with_error": lambda: per(returned, given, returned.ints("error_code", 0) != 0)(),
        "record_bytes": record_bytes,
        "latency_ms": lambda: elapsed(done.request_first[rows], done.response_last[rows]),
        "queued_ms": lambda: milliseconds(block.parts.queued[rows], block.parts.split[rows]),
        "broker_ms": lambda: milliseconds(block.parts.broker[rows], block.parts.split[rows]),
        "throttle_ms": lambda: optional(done.throttle_ms[rows], done.throttle_ms[rows] >= 0, MS),
        "error_code": lambda: top_error(block, rows),
        "request_bytes": lambda: count(done.request_bytes[rows]),
        "response_bytes": lambda: count(done.response_bytes[rows]),
        **block.time_columns(rows),
        UNSEEN_KEY: lambda: instant(done.unseen_until[rows]).cast(COUNT),
        "cluster": lambda: block.cluster(rows),
        **block.key_columns(rows),
    }
    return columns, len(rows)


def top_error(block: Block, rows: Int64s) -> pa.Array:
    """Top-level error code: 0 where the version has none, null where no response was decoded."""
    codes = np.asarray(block.done.error_code, np.int64)[rows]
    return optional(np.where(codes == NO_CODE, 0, codes), np.asarray(block.done.error_count)[rows] >= 0, CODE)


def replica_id(request: Level) -> pa.Array:
    """Node id of a follower per body: ReplicaId up to v14, ReplicaState.ReplicaId (KIP-903) after; -1: consumer."""
    return pc.coalesce(request.column("replica_id", CODE), request.column("replica_state.replica_id", CODE)).fill_null(
        -1
    )


def reads_metadata(request: Level) -> pa.Array:
    """Per body: the request names `__cluster_metadata`, so it replicates the KRaft log."""
    topics = request.each("topics")
    found = np.zeros(len(request), np.bool_)
    for path, name in (("topic", METADATA_TOPIC), ("topic_id", METADATA_TOPIC_ID)):
        match = pc.equal(topics.column(path, TEXT), name).fill_null(False)
        found[topics.body[np.asarray(match)]] = True
    return arrow_array(found, FLAG)


def request_kinds(request: Level, request_rows: Int64s, version: Int64s) -> pa.Array:
    """What session id and epoch ask for (KIP-227), of REQUEST_KINDS; v0-6 are sessionless. Null when not decoded."""
    session = pick(request.column("session_id", CODE), request_rows).fill_null(0).to_numpy(zero_copy_only=False)
    epoch = pick(request.column("session_epoch", CODE), request_rows).fill_null(-1).to_numpy(zero_copy_only=False)
    kind = np.select(
        [
            version < FIRST_SESSION_VERSION,
            (session == 0) & (epoch == -1),
            epoch == 0,
            epoch == -1,
        ],
        [0, 0, np.where(session == 0, 1, 2), 3],
        4,
    )
    return dictionary(np.where(request_rows >= 0, kind, -1), REQUEST_KINDS)

"""The `problems` and `capture_quality` tables."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kdissect.arrays.from_numpy import arrow_array
from kdissect.kafka.completed import FILE_SHIFT, Problems, Quality
from kdissect.problems import Kind
from kdissect.tables.declaration import SCHEMAS
from kdissect.tables.declaration.model import COUNT, TEXT
from kdissect.tables.identity import SEPARATOR, Directory, dictionary, exchange_ids
from kdissect.tables.nest import Int64s, optional
from kdissect.tables.table_block import PACKET_MASK, Block, count, instant
from kdissect.tables.timestamps import OddTimes

KINDS = [""] + [kind.name.lower() for kind in sorted(Kind)]
"""Names of problems by number."""


def problems(rows: Problems, directory: Directory) -> pa.RecordBatch:
    """Rows of `problems`, in the order given."""
    columns = problem_columns(rows, directory)
    return pa.RecordBatch.from_arrays([columns[name] for name in SCHEMAS["problems"].names], SCHEMAS["problems"].names)


def problem_columns(rows: Problems, directory: Directory) -> dict[str, pa.Array]:
    """The columns of `problems`."""
    table = directory.connections
    conn = np.asarray(rows.conn, np.int64)
    capture = np.asarray(rows.capture, np.int64)
    if len(table):
        capture = np.where((capture < 0) & (conn >= 0), table.capture[conn], capture)
    named = (conn >= 0) & (np.asarray(rows.n) >= 0)
    texts = exchange_ids(table.id[conn[named]], np.asarray(rows.n)[named], np.asarray(rows.is_orphan)[named])
    place = np.cumsum(named) - 1
    packet = np.asarray(rows.packet, np.int64)
    return {
        "capture": dictionary(capture, table.captures),
        "connection_id": directory.connection_id(conn),
        "exchange_id": texts.take(arrow_array(np.where(named, place, 0), mask=~named)),
        "at": instant(rows.at),
        "file": directory.file(capture, np.where(packet >= 0, packet >> FILE_SHIFT, -1)),
        "frame": optional(packet & PACKET_MASK, (packet >= 0) & (packet & PACKET_MASK > 0), COUNT),
        "kind": dictionary(rows.kind, KINDS),
        "where": dictionary(rows.where, rows.texts),
        "detail": dictionary(rows.detail, rows.texts),
        "bytes": count(rows.bytes),
        "cluster": _unresolved_clusters(conn, capture, directory),
    }


def _unresolved_clusters(conn: Int64s, capture: Int64s, directory: Directory) -> pa.Array:
    """The unresolved broker of each row's connection; of rows about a capture as a whole `capture<TAB>`."""
    brokers = directory.broker(conn).cast(TEXT)
    captures = [f"{name}{SEPARATOR}" for name in directory.connections.captures]
    return pc.coalesce(brokers, dictionary(capture, captures).cast(TEXT))


def odd_times(odd: OddTimes, block: Block, table: str) -> Problems:
    """Timestamps outside years 1-9999 in the rows of a table, as problems of their exchanges."""
    rows = np.array([row for row, _, _ in odd.rows], np.int64)
    texts = [f"{table}.{column}" for _, column, _ in odd.rows]
    texts += [f"{value} ms is outside years 1-9999" for _, _, value in odd.rows]
    done = block.done
    answer = np.array([column != "timestamp_asked" for _, column, _ in odd.rows], np.bool_)
    return Problems(
        kind=np.full(len(rows), Kind.TIMESTAMP, np.int8),
        capture=np.full(len(rows), -1, np.int32),
        conn=done.conn[rows],
        n=done.n[rows],
        is_orphan=done.is_orphan[rows],
        at=np.where(answer, done.response_last[rows], done.request_last[rows]),
        packet=np.where(answer, done.response_packet[rows], done.request_packet[rows]),
        where=np.arange(len(rows), dtype=np.int32),
        detail=np.arange(len(rows), 2 * len(rows), dtype=np.int32),
        bytes=np.full(len(rows), -1, np.int64),
        texts=texts,
    )


def capture_quality(rows: Iterable[Quality]) -> pa.Table:
    """The `capture_quality` table, in the order given."""
    schema = SCHEMAS["capture_quality"]
    listed = [(*row, f"{row.capture}{SEPARATOR}") for row in rows]
    columns = zip(*listed, strict=True) if listed else [[] for _ in schema]
    return pa.table(
        [pa.array(list(column), field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
    )

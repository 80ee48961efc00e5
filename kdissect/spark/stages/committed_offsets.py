"""`offset_commits`: commits are compared with high watermarks in fetch answers, whichever broker gave them.

First every lot's fetches and their partitions become sightings of high watermarks, dealt out with the commits by
partition. Then each task has all sightings of its partitions, and the commits to them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

import numpy as np
import pyarrow as pa

from kdissect.analysis.committed_lag import settle
from kdissect.analysis.exchange_keys import keys_of, locate
from kdissect.arrays.arrow import Coder, ints, with_columns
from kdissect.arrays.dictionaries import join_tables
from kdissect.spark.cells.dealt_rows import Dealt, share_of_partition
from kdissect.spark.cells.table_cells import Cell, by_table, cell, cells_of, cut, read_cell, rows
from kdissect.spark.stages.plan import Plan
from kdissect.spark.stages.resolving import Names
from kdissect.tables.declaration.model import EXCHANGE_KEYS
from kdissect.tables.identity import SEPARATOR
from kdissect.tables.order import order

COMMITS = "offset_commits"
READ = (COMMITS, "fetches", "fetch_partitions")
"""Staged tables that are read."""
SEEN = "seen watermarks"
"""Staged rows of sightings."""
CAPTURE = "_capture"
"""Helper column of commits: the capture and the cluster that their connection is of."""
SIGHTED = pa.schema(
    [
        *(pa.field(name, pa.int64()) for name in EXCHANGE_KEYS),
        pa.field("capture", pa.dictionary(pa.int32(), pa.string())),
        pa.field("topic", pa.dictionary(pa.int32(), pa.string())),
        pa.field("partition", pa.int64()),
        pa.field("high_watermark", pa.int64()),
        pa.field("response_first_at", pa.timestamp("us", "UTC")),
    ]
)


def deal(batches: Iterable[pa.RecordBatch], plan: Plan, names: Names) -> Iterator[pa.RecordBatch]:
    """Staged rows of READ, those of a lot together, to staged rows of SEEN and COMMITS, whose `lot` is the label of the
    task that has their partition."""
    builder, dealt, count = names.builder(plan), Dealt(plan.labels), len(plan.labels)
    for (_, broker, _), lot in groupby(cells_of(batches), lambda cell: (cell.origin, cell.broker, cell.lot)):
        capture = f"{broker.partition(SEPARATOR)[0]}{SEPARATOR}{names.brokers.cluster_named(broker) or ''}"
        parts: dict[str, list[pa.Table]] = {name: [] for name in READ}
        for piece in lot:
            parts[piece.table].append(names.resolved(builder, piece.table, read_cell(piece.data)))
        if parts["fetches"] and parts["fetch_partitions"]:
            seen = sightings(join_tables(parts["fetches"]), join_tables(parts["fetch_partitions"]), capture)
            yield from dealt.add_rows(SEEN, seen, share_of_partition(seen, count))
        for commits in parts[COMMITS]:
            named = pa.array([capture] * commits.num_rows, pa.string()).dictionary_encode()
            owned = with_columns(commits, {CAPTURE: named})
            yield from dealt.add_rows(COMMITS, owned, share_of_partition(owned, count))
    yield from dealt.drain()


def sightings(fetches: pa.Table, partitions: pa.Table, capture: str) -> pa.Table:
    """The high watermarks in answers, and when they left: rows of SIGHTED."""
    high, n = keys_of(partitions)
    at = locate((high, n), keys_of(fetches))
    when = fetches["response_first_at"].take(pa.array(at, mask=at < 0)).combine_chunks()
    told, topics = ints(partitions, "high_watermark", -1), Coder()
    topic = topics.column(partitions, "topic")
    good = (told >= 0) & (topic >= 0) & (ints(partitions, "error_code", 0) == 0) & np.asarray(when.is_valid())
    mine = np.flatnonzero(good)
    columns = [
        pa.array(high[mine]),
        pa.array(n[mine]),
        pa.DictionaryArray.from_arrays(pa.array(np.zeros(len(mine), np.int32)), pa.array([capture], pa.string())),
        pa.DictionaryArray.from_arrays(pa.array(topic[mine].astype(np.int32)), pa.array(topics.texts, pa.string())),
        pa.array(ints(partitions, "partition")[mine]),
        pa.array(told[mine]),
        when.take(pa.array(mine)).cast(SIGHTED.field("response_first_at").type),
    ]
    return pa.table(columns, schema=SIGHTED)


def fill(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Staged rows of SEEN and COMMITS, all of some partitions, to staged rows of `offset_commits`."""
    parts = by_table(cells_of(batches))
    if COMMITS not in parts:
        return
    seen, commits = (
        join_tables([SIGHTED.empty_table(), *parts.get(SEEN, ())]),
        order(COMMITS, join_tables(parts[COMMITS])),
    )
    captured = commits.select([CAPTURE]).rename_columns(["capture"])
    high, n = keys_of(commits)
    captured = with_columns(captured, dict(zip(EXCHANGE_KEYS, (pa.array(high), pa.array(n)), strict=True)))
    owners = [table.select([*EXCHANGE_KEYS, "capture"]) for table in (seen, captured)]
    given = {
        "exchanges": join_tables(owners),
        "fetches": seen.select([*EXCHANGE_KEYS, "response_first_at"]),
        "fetch_partitions": seen.select([*EXCHANGE_KEYS, "topic", "partition", "high_watermark"]),
        COMMITS: commits.drop_columns([CAPTURE]),
    }
    made = settle(given)
    for begin, end in cut(made):
        yield rows([Cell(COMMITS, "", cell(made.slice(begin, end - begin)))])

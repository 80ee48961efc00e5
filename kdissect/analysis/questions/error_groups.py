"""Errors by code, API, client, broker and topic, with the first and the last of each."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from kdissect.analysis.cluster_split import each_cluster
from kdissect.tables.topics import topics_or_ids

EXCHANGES = ("exchange_id", "request_first_at", "api", "client_id", "broker", "error", "error_code")
OF_TOPICS = ("fetch_partitions", "produce_partitions", "list_offsets")
"""Tables that have the errors of partitions, with their topics."""
KEYS = ["error", "api", "client_id", "broker", "topic"]


def group_errors(tables: Mapping[str, pa.Table]) -> pa.Table:
    """A row for each error, API, client, broker and topic of a cluster: count of exchanges, first_at, last_at, the id
    of the first exchange and the cluster; the most frequent first.

    `tables`: exchanges with EXCHANGES; those OF_TOPICS with exchange_id, topic, error_code and, where they have it,
    topic_id. An error of a request as a whole has no topic. An answer with the same error for two topics counts once
    for each. A topic without a name is called by its id.
    """
    keys = ((key, "ascending") for key in (*KEYS, "cluster"))
    return each_cluster(tables, _group_errors).sort_by([("count", "descending"), ("first_at", "ascending"), *keys])


def _group_errors(tables: Mapping[str, pa.Table]) -> pa.Table:
    """The errors of one cluster, in no order."""
    exchanges = tables["exchanges"]
    failed = exchanges.filter(pc.fill_null(pc.not_equal(exchanges["error_code"], 0), False)).select(list(EXCHANGES))
    named = [_topics(tables[name], failed) for name in OF_TOPICS]
    topics = pa.concat_tables(named).group_by(["exchange_id", "topic"]).aggregate([])
    rows = _plain(failed).join(topics, "exchange_id", join_type="left outer") if topics.num_rows else _plain(failed)
    if "topic" not in rows.column_names:
        rows = rows.append_column("topic", pa.nulls(rows.num_rows, pa.string()))
    rows = rows.sort_by([("request_first_at", "ascending"), ("exchange_id", "ascending")])
    groups = rows.group_by(KEYS, use_threads=False).aggregate(
        [("exchange_id", "count_distinct"), ("request_first_at", "min"), ("request_first_at", "max"),
         ("exchange_id", "first")]
    )  # fmt: skip
    names = {"exchange_id_count_distinct": "count", "request_first_at_min": "first_at",
             "request_first_at_max": "last_at", "exchange_id_first": "first_exchange_id"}  # fmt: skip
    table = groups.rename_columns([names.get(name, name) for name in groups.column_names])
    return table.select([*KEYS, "count", "first_at", "last_at", "first_exchange_id"])


def _topics(partitions: pa.Table, failed: pa.Table) -> pa.Table:
    """The topics of partitions that have the error of their exchange; [exchange_id, topic]."""
    wrong = partitions.filter(pc.fill_null(pc.not_equal(partitions["error_code"], 0), False))
    columns = {"exchange_id": wrong["exchange_id"], "topic": topics_or_ids(wrong), "error_code": wrong["error_code"]}
    wrong = _plain(pa.table(columns))
    theirs = _plain(failed.select(["exchange_id", "error_code"]))
    return wrong.join(theirs, ["exchange_id", "error_code"], join_type="inner").select(["exchange_id", "topic"])


def _plain(table: pa.Table) -> pa.Table:
    """Dictionaries as strings, codes as int64, for joins."""
    kinds = [pa.string() if pa.types.is_dictionary(f.type) else pa.int64() if pa.types.is_integer(f.type) else f.type
             for f in table.schema]  # fmt: skip
    return pa.table([column.cast(kind) for column, kind in zip(table.columns, kinds, strict=True)], table.column_names)

"""The longest silences: of clients, of brokers, and between the records of a partition."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kdissect.analysis.cluster_split import each_cluster
from kdissect.arrays.arrow import MILLI, NULL_TIME, Int64s, encoded, ints, times
from kdissect.tables.topics import topics_or_ids

EXCHANGES = ("exchange_id", "client_id", "broker", "request_first_at", "response_first_at", "response_last_at")
PARTITIONS = ("exchange_id", "topic", "topic_id", "partition", "record_bytes")
EACH = 3
"""Silences of one subject that are listed; the longest of all would often be those of one client."""
SCHEMA = pa.schema(
    [("by", pa.string()), ("subject", pa.string()), ("begin_at", pa.timestamp("us", "UTC")),
     ("end_at", pa.timestamp("us", "UTC")), ("silent_ms", pa.float64()), ("waiting", pa.int64()),
     ("next_exchange_id", pa.string())]
)  # fmt: skip


def find_silences(tables: Mapping[str, pa.Table]) -> pa.Table:
    """Silences, the longest first: rows of SCHEMA with the cluster of the subject, whose messages in other clusters
    are those of another subject. by: client, broker or partition (`topic-partition`).

    A client is silent between two of its messages (a request of it, an answer to it), a broker between two of its
    answers. A partition is silent between two exchanges that carried records of it. waiting: requests of the subject
    that were open for the whole silence; 0 means that nothing was due. Null for partitions. next_exchange_id: the
    exchange that ended the silence. `tables`: exchanges with EXCHANGES; fetch_partitions and produce_partitions with
    PARTITIONS. Before the first and after the last message of a subject nothing is known, so nothing is listed.
    """
    keys = ((key, "ascending") for key in ("begin_at", "subject", "cluster"))
    return each_cluster(tables, _find_silences).sort_by([("silent_ms", "descending"), *keys])


def _find_silences(tables: Mapping[str, pa.Table]) -> pa.Table:
    """The silences in one cluster, in no order."""
    exchanges = tables["exchanges"]
    asked, answered = times(exchanges, "request_first_at"), times(exchanges, "response_last_at")
    begun = times(exchanges, "response_first_at")
    ids = exchanges["exchange_id"].cast(pa.string()).combine_chunks()
    found = []
    for by, column, instants in (("client", "client_id", (asked, answered)), ("broker", "broker", (begun,))):
        codes, names = encoded(exchanges[column].cast(pa.string()).combine_chunks())
        rows = np.tile(np.arange(len(ids)), len(instants))
        found.append(_silences(by, codes[rows], names, np.concatenate(instants), rows, ids, (codes, asked, answered)))
    codes, names, rows = _carried(tables, ids)
    found.append(_silences("partition", codes, names, asked[rows], rows, ids, None))
    return pa.concat_tables(found)


def _carried(tables: Mapping[str, pa.Table], ids: pa.Array) -> tuple[Int64s, list[str], Int64s]:
    """(code, names of codes, row of its exchange) of each partition that an exchange carried records of."""
    places: list[pa.Array] = []
    rows: list[Int64s] = []
    for name in ("fetch_partitions", "produce_partitions"):
        table = tables[name].filter(pa.array(ints(tables[name], "record_bytes", 0) > 0))
        at = pc.index_in(table["exchange_id"].cast(pa.string()), ids)
        table = table.filter(pc.is_valid(at))
        rows.append(np.asarray(pc.drop_null(at), dtype=np.int64))
        topic = pc.fill_null(topics_or_ids(table).cast(pa.string()), "(unknown)")
        number = pc.fill_null(table["partition"].cast(pa.string()), "?")
        places.append(pc.binary_join_element_wise(topic, number, "-"))
    joined = pa.chunked_array([chunk for one in places for chunk in pa.chunked_array(one).chunks], pa.string())
    codes, names = encoded(joined.combine_chunks())
    return codes, names, np.concatenate(rows)


def _silences(
    by: str, codes: Int64s, names: list[str], at: Int64s, rows: Int64s, ids: pa.Array,
    waits: tuple[Int64s, Int64s, Int64s] | None,
) -> pa.Table:  # fmt: skip
    """The EACH longest silences of each subject. `waits`: of all exchanges: subject, request, end of the answer; None
    where no subject waits."""
    known = (codes >= 0) & (at != NULL_TIME)
    codes, at, rows = codes[known], at[known], rows[known]
    order = np.lexsort((at, codes))
    codes, at, rows = codes[order], at[order], rows[order]
    length = np.diff(at)
    inside = np.flatnonzero((codes[1:] == codes[:-1]) & (length > 0))
    by_length = inside[np.lexsort((-length[inside], codes[inside]))]
    place = np.arange(len(by_length))
    first = np.maximum.accumulate(np.where(np.diff(codes[by_length], prepend=-1) != 0, place, 0))
    kept = by_length[place - first < EACH]
    open_for = pa.nulls(len(kept), pa.int64())
    if waits is not None:
        open_for = pa.array(_open_requests(codes[kept], at[kept], at[kept + 1], *waits))
    return pa.table(
        [pa.array([by] * len(kept), pa.string()), pa.array([names[codes[i]] for i in kept], pa.string()),
         pa.array(at[kept]).cast(SCHEMA.field("begin_at").type),
         pa.array(at[kept + 1]).cast(SCHEMA.field("end_at").type),
         pa.array(length[kept] / MILLI), open_for, ids.take(pa.array(rows[kept + 1]))],
        schema=SCHEMA,
    )  # fmt: skip


def _open_requests(codes: Int64s, begin: Int64s, end: Int64s, whose: Int64s, sent: Int64s, ended: Int64s) -> Int64s:
    """How many requests of each subject were sent at `begin` or before and not answered before `end`."""
    asked = (whose >= 0) & (sent != NULL_TIME)
    whose, sent, ended = whose[asked], sent[asked], ended[asked]
    if not len(codes) or not len(whose):
        return np.zeros(len(codes), np.int64)
    answered = ended != NULL_TIME
    first = min(int(sent.min()), int(begin.min()))
    width = max(int(end.max()), int(sent.max()), int(ended[answered].max()) if answered.any() else first) - first + 2

    def keys(subjects: Int64s, instants: Int64s) -> Int64s:
        found: Int64s = subjects * width + (instants - first)
        return found

    starts, ends = np.sort(keys(whose, sent)), np.sort(keys(whose[answered], ended[answered]))
    lowest = codes * width
    sent_before = np.searchsorted(starts, keys(codes, begin), "right") - np.searchsorted(starts, lowest, "left")
    answered_before = np.searchsorted(ends, keys(codes, end), "left") - np.searchsorted(ends, lowest, "left")
    return np.maximum(sent_before - answered_before, 0).astype(np.int64)

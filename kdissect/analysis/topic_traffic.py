"""Who writes and reads what: traffic by client, topic and partition, and the topics that an exchange is about.

Rules.
1. A Produce request writes the partitions of its batches.
2. A Fetch is about the partitions that it or its answer names. One that names none (an incremental fetch whose answer
   is empty, KIP-227) is about all that its session holds then (`session_partitions`).
3. Lag is that of the fetch position, high watermark - fetch offset. An answer changes it for the listed partitions
   only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kdissect.analysis.cluster_split import each_cluster, with_cluster
from kdissect.analysis.exchange_keys import keys_of, locate
from kdissect.analysis.sessions.membership import within
from kdissect.arrays.arrow import Int64s, ints, whole
from kdissect.schema.apikeys import ApiKey
from kdissect.tables.declaration import SCHEMAS
from kdissect.tables.declaration.model import CODE, COUNT, TEXT, TIME, By
from kdissect.tables.makers import fills
from kdissect.tables.topics import topics_or_ids

SCHEMA = SCHEMAS["topic_traffic"]
SUBJECT = ("client_id", "client_ip", "group_id", "topic", "topic_id", "partition")
SUMS = ("produced_records", "produced_bytes", "fetched_records", "fetched_bytes")


def topic_traffic(tables: Mapping[str, pa.Table]) -> pa.Table:
    """One row for each client x topic x partition, in this order; columns as SCHEMA says.

    `tables`: `exchanges` (exchange_id connection_id client_id client_ip api_key request_first_at), `connections`
    (connection_id group_id), `fetch_partitions` (exchange_id topic topic_id partition lag record_bytes) and
    `record_batches` (exchange_id topic topic_id partition records compressed_bytes). `topic_id` stands where no name is
    known. Sizes are those of record batches on the wire; records of batches whose headers could not be read are not
    counted. Sums are null where nothing was written (or read), lags where no answer told a high watermark.
    """
    return each_cluster(tables, _traffic)


def _traffic(tables: Mapping[str, pa.Table]) -> pa.Table:
    """The traffic of one cluster."""
    exchanges = whole(tables["exchanges"])
    batches, positions = whole(tables["record_batches"]), whole(tables["fetch_partitions"])
    found = pa.concat_tables([_batches(exchanges, batches), _positions(exchanges, positions)])
    if not found.num_rows:
        return SCHEMA.empty_table()
    found = _with_groups(found, whole(tables["connections"])).sort_by("at")
    keys = list(SUBJECT)
    lags = [("lag", what) for what in ("first", "last", "max")]  # of what is known: nulls are passed over
    made = found.group_by(keys, use_threads=False).aggregate(
        [*((name, "sum") for name in SUMS), ("at", "min"), ("at", "max"), *lags]
    )
    told = {f"{name}_sum": name for name in SUMS} | {"at_min": "first_at", "at_max": "last_at"}
    told |= {f"lag_{what}": f"{what}_lag" for _, what in lags}
    made = made.rename_columns([told.get(name, name) for name in made.column_names])
    order = pc.sort_indices(made, [(key, "ascending") for key in keys])  # nulls last
    made = with_cluster(made.take(order), None)
    return made.select(SCHEMA.names).cast(SCHEMA)


def topics_of(
    exchanges: pa.Table, fetches: pa.Table, fetch_partitions: pa.Table, session_partitions: pa.Table,
    record_batches: pa.Table,
) -> tuple[list[str], Int64s, Int64s]:  # fmt: skip
    """The topics that exchanges are about: their names, ids of those without one, and pairs (row of `exchanges`, place
    in names), each once.

    `fetches`: exchange_id, session_key, session_epoch; `session_partitions`: session_key, topic, topic_id, from_epoch,
    to_epoch; the others: exchange_id, topic, topic_id. Without `topic_id` topics without a name are left out.
    """
    names: dict[str, int] = {}
    pairs: set[tuple[int, int]] = set()
    keys = keys_of(exchanges)
    for table in (fetch_partitions, record_batches):
        if not table.num_rows:
            continue
        named = pa.table({"exchange_id": table["exchange_id"], "topic": topics_or_ids(table)})
        some = named.group_by(["exchange_id", "topic"], use_threads=False).aggregate([])
        at = locate(keys_of(some), keys).tolist()
        for row, topic in zip(at, some["topic"].to_pylist(), strict=True):
            if row >= 0 and topic is not None:
                pairs.add((row, names.setdefault(topic, len(names))))
    told = {row for row, _ in pairs}
    stays = _stays(session_partitions)
    at = locate(keys_of(fetches), keys).tolist()
    known: dict[tuple[str, int], frozenset[str]] = {}
    uses = zip(at, fetches["session_key"].to_pylist(), fetches["session_epoch"].to_pylist(), strict=True)
    for row, key, epoch in uses:
        if row < 0 or row in told or key is None or epoch is None:
            continue
        held = stays.get(key, ())
        if len({one for one, _, _ in held}) == 1:
            about: frozenset[str] = frozenset(one for one, _, _ in held)
        else:
            if (key, epoch) not in known:
                known[key, epoch] = frozenset(one for one, begin, end in held if within(epoch, begin, end))
            about = known[key, epoch]
        pairs |= {(row, names.setdefault(topic, len(names))) for topic in about}
    made = np.array(sorted(pairs), np.int64).reshape(-1, 2)
    return list(names), made[:, 0], made[:, 1]


def _stays(table: pa.Table) -> dict[str, tuple[tuple[str, int, int], ...]]:
    """By session: topic and stretch of epochs (-1: to the end), each once."""
    found: defaultdict[str, set[tuple[str, int, int]]] = defaultdict(set)
    rows = table.select(["session_key", "from_epoch", "to_epoch"]).to_pylist()
    for row, topic in zip(rows, topics_or_ids(table).to_pylist(), strict=True):
        if topic is not None:
            end = -1 if row["to_epoch"] is None else row["to_epoch"]
            found[row["session_key"]].add((topic, row["from_epoch"] or 0, end))
    return {key: tuple(stays) for key, stays in found.items()}


def _of(exchanges: pa.Table, rows: pa.Table, key: int) -> tuple[pa.Table, pa.Table]:
    """Rows about exchanges of an API, and the exchange of each."""
    keys = ints(exchanges, "api_key")
    at = locate(keys_of(rows), keys_of(exchanges))
    good = (at >= 0) & (np.append(keys, -1)[at] == key)
    mine = exchanges.take(pa.array(at[good])).select(["client_id", "client_ip", "connection_id", "request_first_at"])
    return rows.filter(pa.array(good)), mine.rename_columns(["client_id", "client_ip", "connection_id", "at"])


def _events(rows: pa.Table, mine: pa.Table, **figures: pa.Array) -> pa.Table:
    none = pa.nulls(rows.num_rows, pa.int64())
    made = {name: figures.get(name, none) for name in (*SUMS, "lag")}
    topic = rows["topic"].cast(TEXT)
    unnamed = pc.if_else(pc.is_valid(topic), pa.scalar(None, TEXT), rows["topic_id"].cast(TEXT))
    columns = {"topic": topic, "topic_id": unnamed, "partition": rows["partition"].cast(CODE)} | made
    texts = {name: mine[name].cast(TEXT) for name in ("client_id", "client_ip", "connection_id")}
    return pa.table(texts | {"at": mine["at"].cast(TIME)} | columns)


def _batches(exchanges: pa.Table, batches: pa.Table) -> pa.Table:
    sent, by = _of(exchanges, batches, ApiKey.PRODUCE)
    got, to = _of(exchanges, batches, ApiKey.FETCH)
    return pa.concat_tables(
        [
            _events(sent, by, produced_records=sent["records"].cast(COUNT),
                    produced_bytes=sent["compressed_bytes"].cast(COUNT)),
            _events(got, to, fetched_records=got["records"].cast(COUNT)),
        ]
    )  # fmt: skip


def _positions(exchanges: pa.Table, partitions: pa.Table) -> pa.Table:
    answered, by = _of(exchanges, partitions, ApiKey.FETCH)
    return _events(answered, by, fetched_bytes=answered["record_bytes"].cast(COUNT), lag=answered["lag"].cast(COUNT))


def _with_groups(events: pa.Table, connections: pa.Table) -> pa.Table:
    of = dict(zip(connections["connection_id"].to_pylist(), connections["group_id"].to_pylist(), strict=True))
    ids = events["connection_id"].combine_chunks().dictionary_encode()
    groups = pa.array([of.get(one) for one in ids.dictionary.to_pylist()], TEXT)
    return events.append_column("group_id", groups.take(ids.indices))


fills(By.TRAFFIC, lambda: {"topic_traffic": SCHEMA.names})

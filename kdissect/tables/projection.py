"""Which fields of which messages each table needs, so that nothing else is decoded.

`COLUMNS[table][column]` names, for a column read from a message, the message and its paths; `ROWS[table]` what makes
the rows themselves. Columns that are not listed come from the exchange alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kdissect.tables import brokers, clients, groups, recordsets, topics, versions
from kdissect.tables.declaration import SCHEMAS

Paths = dict[tuple[int, int], set[str]]

_ASK, _GIVE = (1, 0), (1, 1)
_PART = "topics.partitions."
_BACK = "responses.partitions."
_REPLICA = {_ASK: {"replica_id", "replica_state.replica_id"}}
_OFFSETS_ASK, _OFFSETS_GIVE = (2, 0), (2, 1)
_INIT_ASK, _INIT_GIVE = (22, 0), (22, 1)

ROWS: Mapping[str, Paths] = {
    "fetch_partitions": {
        _ASK: {
            "topics.topic",
            "topics.topic_id",
            "topics.partitions.partition",
            "forgotten_topics_data.topic",
            "forgotten_topics_data.topic_id",
            "forgotten_topics_data.partitions",
        },
        _GIVE: {"responses.topic", "responses.topic_id", "responses.partitions.partition_index"},
    },
    "list_offsets": {
        _OFFSETS_ASK: {"topics.name", "topics.partitions.partition_index"},
        _OFFSETS_GIVE: {"topics.name", "topics.partitions.partition_index"},
    },
    "groups": groups.wanted(),
    "api_versions": versions.wanted(),
    "topics": topics.wanted(mentions=True),
    "connections": clients.wanted(),
    "record_batches": recordsets.wanted(),
    "records": recordsets.wanted(),
    "producers": recordsets.wanted(recordsets.PRODUCE),
    "problems": recordsets.wanted(),
}

COLUMNS: Mapping[str, Mapping[str, Paths]] = {
    "connections": {"problems": recordsets.wanted()},
    "fetches": {
        "replica_id": _REPLICA,
        "is_follower": _REPLICA,
        "is_raft": {_ASK: {"topics.topic", "topics.topic_id"}},
        "max_wait_ms": {_ASK: {"max_wait_ms"}},
        "min_bytes": {_ASK: {"min_bytes"}},
        "max_bytes": {_ASK: {"max_bytes"}},
        "isolation_level": {_ASK: {"isolation_level"}},
        "rack_id": {_ASK: {"rack_id"}},
        "request_session_id": {_ASK: {"session_id"}},
        "session_epoch": {_ASK: {"session_epoch"}},
        "request_kind": {_ASK: {"session_id", "session_epoch"}},
        "response_session_id": {_GIVE: {"session_id"}},
        "partitions_sent": {_ASK: {_PART + "partition"}},
        "partitions_forgotten": {_ASK: {"forgotten_topics_data.partitions"}},
        "partitions_returned": {_GIVE: {_BACK + "partition_index"}},
        "partitions_with_records": {_GIVE: {_BACK + "records"}},
        "partitions_with_error": {_GIVE: {_BACK + "error_code"}},
        "record_bytes": {_GIVE: {_BACK + "records"}},
    },
    "fetch_partitions": {
        "fetch_offset": {_ASK: {_PART + "fetch_offset"}},
        "current_leader_epoch": {_ASK: {_PART + "current_leader_epoch"}},
        "last_fetched_epoch": {_ASK: {_PART + "last_fetched_epoch"}},
        "log_start_offset": {_ASK: {_PART + "log_start_offset"}},
        "partition_max_bytes": {_ASK: {_PART + "partition_max_bytes"}},
        "error_code": {_GIVE: {_BACK + "error_code"}},
        "high_watermark": {_GIVE: {_BACK + "high_watermark"}},
        "last_stable_offset": {_GIVE: {_BACK + "last_stable_offset"}},
        "broker_log_start_offset": {_GIVE: {_BACK + "log_start_offset"}},
        "lag": {_ASK: {_PART + "fetch_offset"}, _GIVE: {_BACK + "high_watermark", _BACK + "error_code"}},
        "record_bytes": {_GIVE: {_BACK + "records"}},
        "batches": recordsets.wanted(recordsets.FETCH),
        "aborted_transactions": {_GIVE: {_BACK + "aborted_transactions.producer_id"}},
        "preferred_read_replica": {_GIVE: {_BACK + "preferred_read_replica"}},
        "diverging_epoch": {_GIVE: {_BACK + "diverging_epoch.epoch"}},
        "diverging_end_offset": {_GIVE: {_BACK + "diverging_epoch.end_offset"}},
        "leader_id": {_GIVE: {_BACK + "current_leader.leader_id"}},
        "leader_epoch": {_GIVE: {_BACK + "current_leader.leader_epoch"}},
    },
    "list_offsets": {
        "timestamp_asked": {_OFFSETS_ASK: {_PART + "timestamp"}},
        "asked": {_OFFSETS_ASK: {_PART + "timestamp"}},
        "current_leader_epoch": {_OFFSETS_ASK: {_PART + "current_leader_epoch"}},
        "isolation_level": {_OFFSETS_ASK: {"isolation_level"}},
        "replica_id": {_OFFSETS_ASK: {"replica_id"}},
        "offset": {_OFFSETS_GIVE: {_PART + "offset"}},
        "offsets": {_OFFSETS_GIVE: {_PART + "old_style_offsets"}},
        "timestamp": {_OFFSETS_GIVE: {_PART + "timestamp"}},
        "leader_epoch": {_OFFSETS_GIVE: {_PART + "leader_epoch"}},
        "error_code": {_OFFSETS_GIVE: {_PART + "error_code"}},
    },
    "producer_ids": {
        "transactional_id": {_INIT_ASK: {"transactional_id"}},
        "transaction_timeout_ms": {_INIT_ASK: {"transaction_timeout_ms"}},
        "producer_id_asked": {_INIT_ASK: {"producer_id"}},
        "producer_epoch_asked": {_INIT_ASK: {"producer_epoch"}},
        "producer_id": {_INIT_GIVE: {"producer_id"}},
        "producer_epoch": {_INIT_GIVE: {"producer_epoch"}},
        "error_code": {_INIT_GIVE: {"error_code"}},
    },
}


def wanted(
    tables: Iterable[str], columns: Mapping[str, Iterable[str]] | None = None
) -> dict[tuple[int, int], frozenset[str]]:
    """The message paths needed for these tables: (API key, side) -> dotted snake_case paths.

    `columns[table]` are the columns that will be read of it, filters included; all where it is not named. The maps of
    brokers and topics are included where a column needs them.
    """
    paths: Paths = {}
    for table in tables:
        asked = set((columns or {}).get(table, SCHEMAS[table].names))
        _add(paths, ROWS.get(table, {}))
        for column, needed in COLUMNS.get(table, {}).items():
            if column in asked:
                _add(paths, needed)
        if needs_brokers(table, asked):
            _add(paths, brokers.wanted())
        if needs_topics(table, asked):
            _add(paths, topics.wanted())
    return {message: frozenset(names) for message, names in paths.items()}


def needs_brokers(table: str, columns: Iterable[str]) -> bool:
    """The table's rows name brokers: node ids are wanted from whatever tells them."""
    return table == "api_versions" or "broker" in columns


def needs_topics(table: str, columns: Iterable[str]) -> bool:
    """The table's rows name topics: names of topic ids are wanted from whatever tells them."""
    return table == "topics" or not {"topic", "assigned_partitions"}.isdisjoint(columns)


def _add(paths: Paths, more: Mapping[tuple[int, int], set[str]]) -> None:
    for message, names in more.items():
        paths.setdefault(message, set()).update(names)

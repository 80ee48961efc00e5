"""Findings: what stands out in a capture, each a sentence with the query that shows its evidence.

`findings(tables)` runs every finder over the tables of the contract and returns the table `findings`, worst first.
A finder is a plain function over tables; `FINDERS` lists them. Thresholds are constants beside the finders that use
them. `count` and `first_exchange_id` come from running `filter` over `table`.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from kdissect.analysis.findings import (
    access_findings,
    broker_findings,
    codec_findings,
    connection_findings,
    consumer_findings,
    error_findings,
    group_findings,
    leader_findings,
    producer_findings,
    session_findings,
    transaction_findings,
)
from kdissect.analysis.findings.evidence import SEVERITIES, Finder, Finding, Tables, Whole, get
from kdissect.analysis.findings.incidents import numbered
from kdissect.analysis.findings.limits import LIMITS, Limits, limits
from kdissect.tables.declaration import SCHEMAS
from kdissect.tables.declaration.model import By
from kdissect.tables.makers import fills

FINDERS: tuple[Finder, ...] = (
    *access_findings.FINDERS,
    *transaction_findings.FINDERS,
    *group_findings.FINDERS,
    *consumer_findings.FINDERS,
    *leader_findings.FINDERS,
    *error_findings.FINDERS,
    *session_findings.FINDERS,
    *producer_findings.FINDERS,
    *codec_findings.FINDERS,
    *connection_findings.FINDERS,
)
MOST_OF_A_KIND = 20
"""Findings of one kind that are listed; the worst stand first and the others say the same of smaller cases."""
UNCOUNTED = frozenset({"request_failed", "request_refused", "passing_error", "unsupported_version"})
"""Of these there are as many as there are error codes."""
INIT_PRODUCER_ID = 22
LOOKED_AT = (*group_findings.LOOKED_AT, INIT_PRODUCER_ID)
"""Keys of the APIs of which findings look at every exchange."""


def of_topics(table: pa.Table, topics: Sequence[str]) -> pa.Table:
    """Of a table that names topics, the rows of these topics; all, if none are named."""
    if not topics or "topic" not in table.column_names:
        return table
    return table.filter(pc.is_in(table["topic"].cast(pa.string()), value_set=pa.array(topics)))


def told_of(name: str, table: pa.Table, given: Limits = LIMITS) -> pa.Table:
    """The rows of a table, that findings can depend on, with the columns that they read: the same come out of them."""
    if name == "exchanges":
        stalled = pa.scalar(connection_findings.STALL_MS)
        kept = [
            pc.not_equal(table["error_code"], 0),
            pc.greater(table["throttle_ms"], 0),
            table["abandoned"],
            pc.is_in(table["status"].cast(pa.string()), pa.array(("unanswered", *leader_findings.ONE_WAY))),
            pc.greater_equal(table["request_transfer_ms"], stalled),
            pc.greater_equal(table["response_transfer_ms"], stalled),
            pc.greater_equal(table["latency_ms"], min(given.slow_ms, broker_findings.STALL_MS)),
            pc.is_in(table["api_key"], pa.array(LOOKED_AT, table["api_key"].type)),
            pa.array(broker_findings.first_and_last(table)),
            producer_findings.may_repeat(table),
            pc.greater(table["request_resent_ms"], 0),
            pc.greater(table["response_resent_ms"], 0),
            connection_findings.far(table),
        ]
    elif name == "produces":
        kept = [pc.greater_equal(table["replication_ms"], given.slow_ms)]
    elif name == "groups":
        kept = [
            pc.is_in(table["event"].cast(pa.string()), pa.array(("join", "sync", "leave", "share_heartbeat"))),
            pc.is_valid(table["assigned_partitions"]),
        ]
    elif name == "fetch_partitions":
        kept = [
            pc.is_valid(table["lag"]),
            pc.not_equal(table["error_code"], 0),
            pc.greater_equal(table["last_stable_offset"], 0),
            pc.greater_equal(table["record_bytes"], table["partition_max_bytes"]),
        ]
    elif name == "record_batches":
        known = pc.greater_equal(table["leader_epoch"], 0)
        kept = [pc.and_(table["is_transactional"], known), producer_findings.without_id(table)]
        kept.append(codec_findings.looked_at(table))
    else:
        return table
    flags = pc.fill_null(kept[0], False)
    for more in kept[1:]:
        flags = pc.or_(flags, pc.fill_null(more, False))
    return table.filter(flags)


def findings(tables: Tables, given: Limits = LIMITS) -> pa.Table:
    """The table `findings` for these tables (missing ones count as empty), worst first, then in order of `FINDERS`.

    `given`: thresholds that people set.
    """
    tables = Whole({name: get(tables, name) for name in tables if name in SCHEMAS})  # once, not once for each finder
    found: list[Finding] = []
    for measured in broker_findings.FINDERS:
        found += measured(tables, given)
    for finder in FINDERS:
        found += finder(tables)
    found.sort(key=lambda one: SEVERITIES.index(one.severity))  # stable: rankings keep their order
    kept: list[Finding] = []
    seen: dict[str, int] = {}
    for one in found:
        seen[one.id] = seen.get(one.id, 0) + 1
        if one.id in UNCOUNTED or seen[one.id] <= MOST_OF_A_KIND:
            kept.append(one)
    kept = numbered(kept)
    schema = SCHEMAS["findings"]
    return pa.Table.from_arrays(
        [pa.array([_cell(one, name) for one in kept], schema.field(name).type) for name in schema.names],
        schema=schema,
    )


def _cell(one: Finding, name: str) -> object:
    value = getattr(one, name)
    return value[:1].upper() + value[1:] if name == "text" else value


fills(By.FINDINGS, lambda: {"findings": Finding.__slots__})

__all__ = ["FINDERS", "LIMITS", "Finding", "Limits", "findings", "limits", "told_of"]

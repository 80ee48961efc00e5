"""What a finding is, and how its evidence is counted: by the very filter that shows it."""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from kdissect.analysis.exchange_keys import exchange_keys, locate
from kdissect.analysis.findings.catalogue import KINDS, choose
from kdissect.analysis.findings.phrases import time_text
from kdissect.analysis.findings.template import fill
from kdissect.analysis.grouping import merge_spans
from kdissect.arrays.arrow import MILLI, NULL_TIME, Flags, Int64s, earliest, ints, latest, reals, times
from kdissect.arrays.arrow import equal as equal
from kdissect.arrays.from_numpy import arrow_array
from kdissect.tables.declaration import SCHEMAS, TABLES
from kdissect.tables.declaration.model import TIME_KEY
from kdissect.tables.declaration.readers import FINDINGS
from kdissect.tables.fetch_rows import READ_COMMITTED
from kdissect.tables.order import order
from kdissect.tables.where import parse

RESENT = "resent"
"""The `network_kind` of exchanges that waited until something was sent again."""
Tables = Mapping[str, pa.Table]
"""Tables by name; those that are not there count as empty."""

HIGH, MEDIUM, LOW, INFO = SEVERITIES = ("high", "medium", "low", "info")
"""high: clients fail or lose seconds. medium: they lose time or work again and again. low: worth knowing, little lost.
info: nothing is wrong."""


class Finding(NamedTuple):
    """One row of `findings`; times in microseconds since the epoch."""

    id: str
    severity: str
    text: str
    table: str
    filter: str
    count: int  # type: ignore[assignment]  # instead of a tuple's method of that name
    first_exchange_id: str | None
    cause: str = "unknown"
    advice: str | None = None
    first_at: int | None = None
    last_at: int | None = None
    broker: str | None = None
    client_id: str | None = None
    group_id: str | None = None
    topic: str | None = None
    partition: int | None = None
    transactional_id: str | None = None
    incident: int | None = None
    headline: str = ""
    certainty: str | None = None
    next_capture: str | None = None
    cluster: str | None = None


MOST_OF_A_KIND = 20
"""Findings of one kind that are listed; the worst stand first and the others say the same of smaller cases."""
TOPIC = ("topic", "topic_id")
"""What a topic is known by: its name, or its id where no name is known (`of_topics_apart`)."""
PLACE = (*TOPIC, "partition")
"""What a topic's partition is known by."""
NULLS = 4096
"""Nulls that stand in memory for all of a column."""


class CompleteTables(Mapping[str, pa.Table]):
    """Tables that `get` need not complete: each has every column that findings read of it, and none is absent."""


def get(tables: Tables, name: str) -> pa.Table:
    """A table with every column that findings read of it, absent ones null."""
    if isinstance(tables, CompleteTables):
        return tables[name]
    table = tables.get(name)
    if table is None:
        return _empty(name)
    names = table.schema.names
    absent = _read(name).difference(names)
    if not absent:
        return table
    fields = [field for field in SCHEMAS[name] if field.name in absent]
    columns = [*table.columns, *(_nulls(table.num_rows, field.type) for field in fields)]
    return pa.table(columns, [*names, *(field.name for field in fields)])


@cache
def _read(name: str) -> frozenset[str]:
    return frozenset(FINDINGS.tables[name])


@cache
def _empty(name: str) -> pa.Table:
    return SCHEMAS[name].empty_table()


def _nulls(count: int, kind: pa.DataType) -> pa.ChunkedArray:
    """So many nulls in little memory."""
    some = pa.nulls(min(count, NULLS), kind)
    return pa.chunked_array([some] * (count // NULLS) + [some.slice(0, count % NULLS)], kind)


def literal(value: object) -> str:
    """A value as `--where` writes it."""
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return str(value)


def equals(column: str, value: object) -> str:
    """`column = value`, or `column is null`."""
    return f"{column} is null" if value is None else f"{column} = {literal(value)}"


def among(column: str, values: Iterable[object]) -> str:
    """`column in (...)`, or `column = value` for one."""
    listed = list(values)
    return equals(column, listed[0]) if len(listed) == 1 else f"{column} in ({', '.join(map(literal, listed))})"


def of_topic(topic: str | None, topic_id: str | None) -> str:
    """The condition for rows of a topic: by its name, or by its id where no name is known."""
    return equals("topic", topic) if topic is not None or topic_id is None else equals("topic_id", topic_id)


def of_topics_apart(table: pa.Table) -> pa.Table:
    """The table with the ids of those topics alone whose name is not known. Rows of a topic are alike in TOPIC then,
    whether or not the version of their message has ids."""
    named = pc.is_valid(table["topic"])
    ids = pc.if_else(named, pa.scalar(None, pa.string()), table["topic_id"].cast(pa.string()))
    return table.set_column(table.schema.get_field_index("topic_id"), "topic_id", ids)


def places(rows: pa.Table) -> list[tuple[Any, ...]]:
    """PLACE of each row."""
    return list(zip(*(rows[name].to_pylist() for name in PLACE), strict=True))


def both(*conditions: str) -> str:
    """All of the conditions."""
    return " and ".join(condition for condition in conditions if condition)


def finding(
    tables: Tables, kind: str, severity: str, table: str, condition: str, values: Mapping[str, Any] | None = None, *,
    case: str | None = None, **about: Any,
) -> list[Finding]:  # fmt: skip
    """A finding with its evidence counted, in a list; none when the filter selects no row.

    `values`: values that the catalogue's texts name and that are no fields of `Finding`. `case`: which of the texts,
    where a kind has several. `about`: fields of `Finding` that say what it is about; the cause is that of the catalogue
    unless given, times those of the evidence. Raises KeyError where the texts name a value that is not there.
    """
    whole = get(tables, table)
    found = parse(condition, SCHEMAS[table])
    columns = {name: whole[name].cast(SCHEMAS[table].field(name).type) for name in found.columns}
    present = whole.schema.names
    begins = [name for name in (TIME_KEY, "request_first_at", "requested_at") if name in present]
    spans = TABLES[table].when
    names_of_rows = [name for name in ("exchange_id", "fetch_exchange_id") if name in present][:1]
    extra = [*names_of_rows, *(name for name in (*begins, *spans) if name in present)]
    if "topic" in about and about["topic"] is None and "topic_id" in present:
        extra.append("topic_id")
    for name in extra:
        columns[name] = whole[name].cast(pa.int64() if name == TIME_KEY else SCHEMAS[table].field(name).type)
    rows = pa.table(columns).filter(found.expression)
    if not rows.num_rows:
        return []
    if spans:
        about.setdefault("first_at", _extreme(rows, spans, earliest))
        about.setdefault("last_at", _extreme(rows, spans, latest))
    first = None
    for name in names_of_rows:
        by = next((time for time in (*begins, *spans) if time in extra), None)
        if by is not None:
            rows = rows.sort_by([(by, "ascending"), (name, "ascending")])
        first = rows[name][0].as_py()
    about.setdefault("cause", KINDS[kind].cause)
    ids = names(rows["topic_id"]) if "topic_id" in extra else []
    made = Finding(kind, severity, "", table, condition, rows.num_rows, first, **about)
    return [_write(made, values or {}, case, ids[0] if len(ids) == 1 else None)]


def _write(finding: Finding, values: Mapping[str, Any], case: str | None, topic_id: str | None) -> Finding:
    """The finding with its texts. `topic_id`: of its topic, if that has no name."""
    topic = finding.topic if finding.topic is not None else topic_id
    kind = KINDS[finding.id]
    lasted = (
        None if finding.first_at is None or finding.last_at is None else (finding.last_at - finding.first_at) / MILLI
    )
    own = {
        "client": finding.client_id, "broker": finding.broker, "group": finding.group_id, "topic": topic,
        "partition": finding.partition, "transaction": finding.transactional_id,
        "first": finding.first_at, "last": finding.last_at, "lasted": lasted, "count": finding.count,
        "place": topic if finding.partition is None else f"{topic or '(unknown)'}-{finding.partition}",
    }  # fmt: skip
    told = {**own, **values}
    return finding._replace(
        text=fill(choose(kind.sentence, case), told, kind.parts),
        headline=fill(choose(kind.headline, case), told, kind.parts),
        advice=None if kind.advice is None else choose(kind.advice, case),
    )


def _extreme(rows: pa.Table, names: tuple[str, ...], pick: Callable[[Int64s], int | None]) -> int | None:
    """The earliest or latest instant of some columns, None where all are null."""
    return pick(np.concatenate([times(rows, name) for name in names]))


def error_names(exchanges: pa.Table, rows: Int64s) -> list[str]:
    """Names of the errors of these rows."""
    return names(exchanges["error"].take(arrow_array(rows)))


def names(texts: pa.ChunkedArray) -> list[str]:
    """Each text of a column once, in order, without those that are null or empty."""
    return sorted(str(name) for name in pc.unique(texts.cast(pa.string())).to_pylist() if name)


def client_ids(rows: pa.Table) -> list[str | None]:
    """The client ids of rows, each once, in order; None last, for rows without one."""
    return sorted({name or None for name in pc.unique(rows["client_id"]).to_pylist()}, key=lambda one: (not one, one))


def owners(rows: pa.Table, connections: pa.Table) -> Int64s:
    """Row of `connections` that each row's connection_id names, -1 where there is none; [rows]."""
    ids = connections["connection_id"].cast(pa.string()).combine_chunks()
    found: Int64s = pc.index_in(rows["connection_id"].cast(pa.string()), ids).fill_null(-1).to_numpy().astype(np.int64)
    return found


def fetched_at(tables: Tables, partitions: pa.Table) -> tuple[Int64s, Int64s]:
    """Row of `fetches` of each row of `fetch_partitions`, -1 for none, and the response's first instant."""
    fetches = get(tables, "fetches")
    if not partitions.num_rows or not fetches.num_rows:
        return np.full(partitions.num_rows, -1, np.int64), np.full(partitions.num_rows, NULL_TIME, np.int64)
    at = locate(exchange_keys(partitions["exchange_id"]), exchange_keys(fetches["exchange_id"]))
    answered = np.append(times(fetches, "response_first_at"), NULL_TIME)
    return at, answered[at]


def reads_committed(tables: Tables, at: Int64s) -> Flags:
    """Whether these rows of `fetches` (-1: none) read committed records only."""
    found: Flags = np.append(ints(get(tables, "fetches"), "isolation_level", 0) == READ_COMMITTED, False)[at]
    return found


def resent_ms(exchanges: pa.Table) -> npt.NDArray[np.float64]:
    """For how long messages of exchanges waited until segments were sent again, milliseconds; 0 where none did.

    Where nothing tells whether a request's copy was needed, `request_resent_ms` is null. It or its acknowledgement was
    lost then if `network_kind` is RESENT, and the exchange waited for as long as the network took.
    """
    request = reals(exchanges, "request_resent_ms")
    unknown = np.isnan(request) & equal(exchanges, "network_kind", RESENT)
    waited = np.where(unknown, reals(exchanges, "network_ms"), request)
    return np.nan_to_num(waited) + np.nan_to_num(reals(exchanges, "response_resent_ms"))


def union_ms(begin: Int64s, end: Int64s) -> float:
    """Milliseconds that spans (microseconds) cover together: time in which several overlap counts once."""
    known = (begin != NULL_TIME) & (end > begin)
    if not known.any():
        return 0.0
    first, last = merge_spans(begin[known], end[known])
    return float((last - first).sum()) / MILLI


def wall_ms(tables: Tables, column: str, value: object) -> float:
    """Milliseconds from the first packet to the last one of the connections with this value in a column."""
    connections = get(tables, "connections")
    if value is None or not connections.num_rows:
        return 0.0
    mine = connections.filter(pc.equal(connections[column].cast(pa.string()), str(value)))
    first, last = earliest(times(mine, "started_at")), latest(times(mine, "ended_at"))
    return 0.0 if first is None or last is None else (last - first) / MILLI


def micro(at: datetime) -> int:
    """A row's instant in microseconds since the epoch."""
    return round(at.timestamp() * 1_000_000)


def instant(at: int) -> str:
    """An instant as filters write it."""
    return literal(time_text(at, "%Y-%m-%dT%H:%M:%S") + f".{at % 1_000_000:06d}Z")


__all__ = ["Finding", "Tables", "order"]

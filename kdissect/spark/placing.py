"""The columns that every table has behind its own when it is written.

`capture`, `broker`, `at` and `date` are what a table can be cut and pruned by. The ids of its exchange and connection
stand there as numbers, so that joins and sorts need not compare texts.

A table that has such a column keeps its own. Else

- `capture` and `broker` of a row are those of its connection, which an exchange id begins with. A session has those of
  the first connection that used it, a delivery its reader's. A row of a broker or a cluster without a connection has
  their capture if one capture alone saw them; a row that comes out of several captures has none.
- `at` is the capture's own time, never one that stands in a message. Rows about exchanges have the request's first
  time, and the response's where the request was not captured; sessions, connections and findings their begin,
  `capture_quality` the first packet. It is null for what has no
  time (`api_versions`).
- `date` is the day of `at`, in UTC.
- `connection_number` and `exchange_number` stand in tables that have `connection_id` or `exchange_id`, and are null
  where these are. Two rows have the same numbers if and only if they have the same ids.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from kdissect.analysis.exchange_keys import NOT_AN_ID, exchange_keys
from kdissect.analysis.grouping import group
from kdissect.arrays.arrow import ints
from kdissect.arrays.dictionaries import coded as encoded
from kdissect.arrays.from_numpy import arrow_array
from kdissect.spark.schemas import arrow_schema
from kdissect.spark.stages.owners import Owned
from kdissect.tables.brokers import Brokers
from kdissect.tables.declaration import TABLES
from kdissect.tables.declaration.model import ANSWERED_KEY, CLUSTER, COUNT, EXCHANGE_KEYS, TIME, TIME_KEY
from kdissect.tables.identity import ID_BYTES, SEPARATOR

Words = npt.NDArray[np.int64]

ADDED = pa.schema(
    [
        pa.field("capture", pa.string(), metadata={"doc": "The capture that the row comes from; null for several."}),
        pa.field("broker", pa.string(), metadata={"doc": "The broker; null for none."}),
        pa.field("at", TIME, metadata={"doc": "When, by the capture's clock."}),
        pa.field("date", pa.date32(), metadata={"doc": "The day of the row's time by the capture's clock, UTC."}),
    ]
)
"""What each table has when it is written, its own columns among them."""
CONNECTION_NUMBER = pa.field(
    "connection_number",
    COUNT,
    metadata={"doc": "The 64 bits that `connection_id` has as hex digits, as a signed number: for joins and sorts."},
)
EXCHANGE_NUMBER = pa.field(
    "exchange_number",
    COUNT,
    metadata={
        "doc": "The ordinal behind the colon of `exchange_id`; -1 - n of `:r<n>`. With `connection_number` it names "
        "the exchange."
    },
)
"""int64, as the engine counts: a connection that is open for days has no bound that fits 32 bits."""
TIMES = {
    "connections": ("started_at",),
    "fetch_sessions": ("opened_at",),
    "share_sessions": ("opened_at",),
    "producers": ("sent_at",),
    "topics": ("first_seen_at",),
    "topic_traffic": ("first_at",),
    "deliveries": ("delivered_at",),
    "traced": ("produced_at", "delivered_at"),
    "transactions": ("began_at", "ended_at"),
    "findings": ("first_at",),
}
"""Columns whose first known value is a row's time. Tables that are not named here have `at`, or the helper columns
of rows about exchanges: the request's first byte, and the response's where the request was not captured."""


ANY_EXCHANGE = ("fetch_exchange_id", "produce_exchange_id", "first_exchange_id", "end_exchange_id")
"""Columns of tables without an exchange of their own: the first that is known tells a row's connection."""


def has_times(name: str) -> bool:
    """Whether rows of a table have a time by themselves."""
    declared = TABLES[name]
    return name in TIMES or name == "capture_quality" or "at" in declared.by_name or TIME_KEY in declared.key


def names_exchanges(columns: Collection[str]) -> bool:
    """Whether rows with these columns name a connection or an exchange."""
    return not {"connection_id", "exchange_id", *ANY_EXCHANGE}.isdisjoint(columns)


def schema_of(name: str, columns: Sequence[str]) -> pa.Schema:
    """Columns of a table as it is written: those asked for, then what it lacks of ADDED, then its ids as numbers."""
    own = arrow_schema(name, columns)
    return pa.schema([*own, *(field for field in ADDED if field.name not in columns), *_number_fields(name, columns)])


def _number_fields(name: str, columns: Collection[str]) -> list[pa.Field]:
    """The numbers that rows of a table with these columns have next to their ids."""
    filled = TABLES[name].never_null
    if "exchange_id" in columns:
        return [one.with_nullable("exchange_id" not in filled) for one in (CONNECTION_NUMBER, EXCHANGE_NUMBER)]
    return [CONNECTION_NUMBER.with_nullable("connection_id" not in filled)] if "connection_id" in columns else []


Seen = tuple[str | None, str | None]
"""A cluster and a broker of it. Without a cluster: whichever broker has that name; without a broker: any of it."""


def find_sole_captures(brokers: Iterable[tuple[str, str | None, str]]) -> dict[Seen, str]:
    """By cluster and broker the capture, where one capture alone can have seen them. `brokers`: capture, cluster and
    name of each address; one whose cluster no message tells may be of any."""
    addresses = list(brokers)
    known = {cluster for _, cluster, _ in addresses if cluster is not None}
    seen: dict[Seen, set[str]] = {}
    for capture, cluster, broker in addresses:
        seen.setdefault((None, broker), set()).add(capture)
        for one in known if cluster is None else {cluster}:
            seen.setdefault((one, broker), set()).add(capture)
            seen.setdefault((one, None), set()).add(capture)
    return {key: next(iter(captures)) for key, captures in seen.items() if len(captures) == 1}


@dataclass(frozen=True, slots=True)
class Places:
    """The capture and the broker of each connection, for its rows: small, and sent to every task."""

    ids: npt.NDArray[np.uint64]
    """Connections, in order."""
    codes: npt.NDArray[np.int32]
    """For each of them the number of its broker's address in its capture."""
    captures: list[str]
    """By such a number."""
    brokers: list[str]
    """By such a number: the broker's name."""
    alone: Mapping[Seen, str]
    """A broker, or a cluster -> its capture, where it was seen in one only."""
    only: str | None
    """The capture, where there is one only."""
    begins: Mapping[tuple[str, str | None], int]
    """(capture, file) -> time of the first packet, µs; file None: of the capture as a whole."""

    @classmethod
    def of(
        cls,
        owned: Iterable[Owned],
        named_brokers: Brokers,
        sources: Sequence[str],
        begins: Mapping[tuple[str, str], int],
    ) -> Places:
        """Out of what the partitions told, with brokers by name."""
        texts: dict[str, int] = {}
        ids, codes = [np.zeros(0, np.uint64)], [np.zeros(0, np.int32)]
        for one in owned:
            again = np.array([texts.setdefault(text, len(texts)) for text in one.places], np.int32)
            ids.append(one.ids)
            codes.append(again[one.codes] if len(again) else one.codes)
        every, first = np.unique(np.concatenate(ids), return_index=True)
        captures = [text.partition(SEPARATOR)[0] for text in texts]
        brokers = list(named_brokers.names_of(texts).values())
        clusters = named_brokers.cluster_of()
        alone = find_sole_captures(zip(captures, (clusters.get(text) for text in texts), brokers, strict=True))
        only = sources[0] if len(sources) == 1 else None
        begun: dict[tuple[str, str | None], int] = dict(begins.items())
        for (capture, _), at in begins.items():
            begun[capture, None] = min(at, begun.get((capture, None), at))
        return cls(every, np.concatenate(codes)[first], captures, brokers, alone, only, begun)

    def placed(self, name: str, table: pa.Table, columns: Sequence[str], coded: bool = False) -> pa.Table:
        """Rows of a table, with helper columns where they still have them, as they are written: `schema_of`. `coded`:
        texts that have a dictionary keep it."""
        schema = schema_of(name, columns)
        made = {column: table[column] for column in columns}
        owner = self._owner(table) if self.asks(columns) else None
        if "broker" not in made:
            made["broker"] = self._brokers(table, owner)
        if "capture" not in made:
            made["capture"] = self._captures(table, made["broker"], owner)
        if "at" not in made:
            made["at"] = self._times(name, table)
        if "date" not in made:
            made["date"] = made["at"].cast(pa.date32())
        made |= id_numbers(table, columns)
        if coded:
            return pa.table({field.name: _coded(made[field.name], field.type) for field in schema})
        plain = pa.schema([field.remove_metadata() for field in schema])
        return pa.table([made[field.name].cast(field.type) for field in plain], schema=plain)

    def asks(self, columns: Collection[str]) -> bool:
        """Whether rows with these columns need their connections known."""
        return "broker" not in columns or ("capture" not in columns and self.only is None)

    def know(self, table: pa.Table) -> bool:
        """Whether the connections of all rows are known."""
        owner = self._owner(table)
        return owner is None or bool((owner >= 0).all())

    def _owner(self, table: pa.Table) -> Words | None:
        """For each row the number of its connection's broker, -1 unknown; None for rows that name no connection."""
        names = table.column_names
        if "connection_id" in names:
            ids = table["connection_id"]
        elif EXCHANGE_KEYS[0] in names:
            return self._number_brokers(ints(table, EXCHANGE_KEYS[0]).view(np.uint64))
        elif "exchange_id" in names:
            ids = table["exchange_id"]
        elif told := [name for name in ANY_EXCHANGE if name in names]:
            ids = pc.coalesce(*(table[name].cast(pa.string()) for name in told))
        elif "connections" in names and pa.types.is_list(table.schema.field("connections").type):
            ids = _first(table["connections"])
        else:
            return None
        return np.where(np.asarray(ids.is_valid()), self._number_brokers(_connections(ids)), -1)

    def _number_brokers(self, connection_ids: npt.NDArray[np.uint64]) -> Words:
        """For each connection the number of its broker, -1 unknown."""
        if not len(self.ids):
            return np.full(len(connection_ids), -1, np.int64)
        at = np.searchsorted(self.ids, connection_ids)
        at[at == len(self.ids)] = 0
        return np.where(self.ids[at] == connection_ids, self.codes[at], -1)

    def _brokers(self, table: pa.Table, owner: Words | None) -> pa.Array:
        if owner is not None:
            return _texts(owner, self.brokers)
        if "session_key" in table.column_names:  # <cluster>/<broker>/<session id>/<incarnation>
            keys = table["session_key"].cast(pa.string())
            return pc.replace_substring_regex(keys, "^(?:.*/)?([^/]*)/[^/]*/[^/]*$", "\\1")
        return pa.nulls(len(table), pa.string())

    def _captures(self, table: pa.Table, brokers: pa.Array, owner: Words | None) -> pa.Array:
        if self.only is not None:
            return _texts(np.zeros(len(brokers), np.int64), [self.only])
        if owner is not None and (owner >= 0).all():
            return _texts(owner, self.captures)
        sole = self._sole_captures(table, brokers)
        if owner is None:
            return sole
        return pc.coalesce(_texts(owner, self.captures).cast(pa.string()), sole).dictionary_encode()  # as those above

    def _sole_captures(self, table: pa.Table, brokers: pa.Array) -> pa.Array:
        """The capture of each row's cluster and broker, null where they were seen in several."""
        pairs = pa.table({"broker": brokers})
        if CLUSTER.name in table.column_names:
            pairs = pairs.append_column(CLUSTER.name, table[CLUSTER.name])
        seen = group(pairs, [CLUSTER.name, "broker"])
        keys = (seen.keys[name].to_pylist() for name in (CLUSTER.name, "broker"))
        found = [self.alone.get(pair, self.alone.get((pair[0], None))) for pair in zip(*keys, strict=True)]
        return pa.array(found, pa.string()).take(arrow_array(seen.code))

    def _times(self, name: str, table: pa.Table) -> pa.Array:
        if name == "capture_quality":
            keys = zip(table["capture"].to_pylist(), table["file"].to_pylist(), strict=True)
            return pa.array([self.begins.get(key) for key in keys], pa.int64()).cast(TIME)
        columns = TIMES.get(name, ("at", TIME_KEY, ANSWERED_KEY))
        known = [table[column].cast(pa.int64()) for column in columns if column in table.column_names]
        return pc.coalesce(*known, pa.scalar(None, pa.int64())).cast(TIME) if known else pa.nulls(len(table), TIME)


def id_numbers(table: pa.Table, columns: Collection[str]) -> dict[str, pa.Array]:
    """CONNECTION_NUMBER and EXCHANGE_NUMBER of rows, as far as these columns have ids; null where an id is."""
    made: dict[str, pa.Array] = {}
    if "exchange_id" in columns:
        ids = table["exchange_id"]
        if EXCHANGE_KEYS[0] in table.column_names:
            high, ordinals = (ints(table, key) for key in EXCHANGE_KEYS)
        else:
            high, ordinals = exchange_keys(ids)
        unknown = ordinals == NOT_AN_ID if ids.null_count == 0 else np.asarray(ids.is_null())
        mask = unknown if unknown.any() else None
        made[CONNECTION_NUMBER.name] = arrow_array(high, mask=mask)
        made[EXCHANGE_NUMBER.name] = arrow_array(ordinals, mask=mask)
    if "connection_id" in columns and ("exchange_id" not in columns or table["exchange_id"].null_count):
        ids = table["connection_id"]
        mask = np.asarray(ids.is_null()) if ids.null_count else None
        made[CONNECTION_NUMBER.name] = arrow_array(_connections(ids).view(np.int64), mask=mask)
    return made


def _texts(codes: Words, values: Sequence[str]) -> pa.Array:
    """Texts by their numbers, null below 0."""
    return encoded(codes.astype(np.int32), pa.array(values, pa.string()))


def _coded(column: pa.Array | pa.ChunkedArray, kind: pa.DataType) -> pa.Array | pa.ChunkedArray:
    """A column of this type, texts maybe with a dictionary."""
    if pa.types.is_dictionary(column.type) and column.type.value_type == kind:
        return column
    return column.cast(kind)


def first_connections(sessions: pa.Table) -> list[int | None]:
    """The first connection of each session, as CONNECTION_NUMBER has it; None for none."""
    ids = _first(sessions["connections"])
    numbers = arrow_array(_connections(ids).view(np.int64), mask=np.asarray(ids.is_null()))
    return list(numbers.to_pylist())


def _first(lists: pa.ChunkedArray) -> pa.Array:
    """The first of each list, null for none."""
    whole = lists.combine_chunks()
    counts = pc.fill_null(pc.list_value_length(whole), 0)
    return pc.if_else(pc.greater(counts, 0), pc.list_element(_padded(whole, counts), 0), None)


def _padded(lists: pa.Array, counts: pa.Array) -> pa.Array:
    """The lists, with a text in those that are empty."""
    return pc.if_else(pc.greater(counts, 0), lists, pa.scalar([""], lists.type))


def _connections(ids: pa.Array | pa.ChunkedArray) -> npt.NDArray[np.uint64]:
    """The connections that ids of exchanges or connections begin with; anything for nulls."""
    texts = pc.fill_null(ids.cast(pa.string()), "")
    width = pc.max(pc.binary_length(texts)).as_py()
    if width == ID_BYTES:
        texts = pc.binary_join_element_wise(texts, "0", ":")
    return exchange_keys(texts)[0].view(np.uint64)

"""The tracker's results as columns of the contract's tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from kdissect.analysis.sessions import session_layout as c
from kdissect.analysis.sessions import session_rules as r
from kdissect.analysis.sessions.session_pools import list_ended
from kdissect.arrays.arrow import MILLI, Coder, Int64s, instants, optional, words
from kdissect.arrays.from_numpy import arrow_array
from kdissect.kernels.structs import Records, rows_of
from kdissect.schema.apikeys import ApiKey
from kdissect.tables.declaration import SCHEMAS
from kdissect.tables.declaration.model import EXCHANGE_KEYS
from kdissect.tables.fetch_rows import fetches_of, partitions_of

if TYPE_CHECKING:
    from kdissect.analysis.sessions.topic_codes import Names, Topics

SESSIONS = SCHEMAS["fetch_sessions"]
STAYS = SCHEMAS["session_partitions"].append(pa.field(EXCHANGE_KEYS[0], pa.int64()))
"""With a helper column that names a connection of the session."""
NO_SESSIONS, NO_STAYS = SESSIONS.empty_table(), STAYS.empty_table()
CODE, COUNT, MS = pa.int32(), pa.int64(), pa.float64()


def fetch_columns(rows: Int64s, uses: Int64s, keys: pa.Array) -> dict[str, pa.Array]:
    """The session columns of fetches."""
    fetch, use = fetches_of(rows), c.uses_of(uses)
    kind, outcome = fetch["kind"], fetch["outcome"]
    incremental = kind == r.INCREMENTAL
    return {
        "request_kind": words(kind, r.KINDS),
        "expected_epoch": optional(use["expected"], CODE),
        "epoch_status": words(np.where(incremental, use["status"], -1), r.EPOCH_STATUS),
        "session_outcome": words(np.where(outcome == r.NO_OUTCOME, -1, outcome), r.OUTCOMES),
        "session_key": keys,
        "partitions_added": optional(use["added"], COUNT),
        "partitions_altered": optional(use["altered"], COUNT),
        "partitions_replaced": optional(use["replaced"], COUNT),
        "implied_partitions": optional(fetch["implied"].copy(), COUNT),  # the rows' memory is used again
        "hidden_partitions": optional(use["hidden"], COUNT),
    }


def partition_columns(partitions: Int64s, order: Int64s | None, rows: int) -> dict[str, pa.Array]:
    """Why each partition was returned, and the offset that its session had for it (helper `_session_offset`), in the
    order in which they came: `order` is the row of each among so many (None: where it stands)."""
    found = partitions_of(partitions)
    reasons, offsets = found["reason"].astype(np.int8), found["session_offset"].copy()
    if order is not None:
        told = reasons, offsets
        reasons, offsets = np.full(rows, -1, np.int8), np.full(rows, -1, np.int64)
        reasons[order], offsets[order] = told
    return {"reason": words(reasons, r.REASONS), "_session_offset": optional(offsets, COUNT)}


class Ended:
    """Rows of sessions and stays that are over, until they are asked for."""

    def __init__(
        self, brokers: Coder, clients: Coder, topics: Topics, sharded: dict[str, bool], with_stays: bool
    ) -> None:
        self.brokers, self.clients, self.topics, self.sharded = brokers, clients, topics, sharded
        self._with_stays = with_stays
        self._sessions: list[pa.Table] = []
        self._stays: list[pa.Table] = []

    def take_over(self, names: Names, sharded: dict[str, bool]) -> None:
        """Codes and brokers are these from here on."""
        self.brokers, self.clients, self.topics, self.sharded = names.brokers, names.clients, names.topics, sharded

    def drain_ended(self, state: c.State) -> None:
        """Take down what has ended since the last time."""
        ended, gone = (np.empty(n, np.int64) for n in (state.count.ended_sessions, state.count.ended_stays))
        list_ended(state.pools, ended, gone)
        if self._with_stays and len(gone):
            self._stays.append(self._stay_rows(state, gone))
        if len(ended):
            self._sessions.append(self._session_rows(state, ended))

    def tables(self) -> tuple[pa.Table, pa.Table]:
        """Sessions and stays taken down since the last call."""
        sessions = pa.concat_tables([NO_SESSIONS, *self._sessions]) if self._sessions else NO_SESSIONS
        stays = pa.concat_tables([NO_STAYS, *self._stays]) if self._stays else NO_STAYS
        self._sessions, self._stays = [], []
        return sessions, stays

    def key(self, broker: int, number: int, incarnation: int) -> str:
        """The contract's session key."""
        return f"{self.brokers.texts[broker] if broker >= 0 else ''}/{number}/{incarnation}"

    def keys(self, rows: Int64s, uses: Int64s) -> pa.Array:
        """Session key of each fetch, a dictionary column."""
        use = c.uses_of(uses)
        serials = optional(use["serial"], COUNT).dictionary_encode()
        codes = serials.indices
        first = np.full(len(serials.dictionary), -1, np.int64)
        known = np.flatnonzero(use["serial"] >= 0)
        places = np.asarray(codes.fill_null(-1))[known]
        first[places[::-1]] = known[::-1]
        named = (
            fetches_of(rows)["broker"][first].tolist(),
            use["id"][first].tolist(),
            use["incarnation"][first].tolist(),
        )
        texts = [self.key(broker, number, incarnation) for broker, number, incarnation in zip(*named, strict=True)]
        return pa.DictionaryArray.from_arrays(codes, pa.array(texts, pa.string()))

    def _keys(self, sessions: Records) -> pa.Array:
        return pa.array([self.key(*one) for one in sessions[["broker", "id", "incarnation"]].tolist()], pa.string())

    def _session_rows(self, state: c.State, places: Int64s) -> pa.Table:
        columns = self.session_columns(state, places)
        return pa.table({name: columns[name] for name in SESSIONS.names}, SESSIONS)

    def session_columns(self, state: c.State, places: Int64s) -> dict[str, pa.Array]:
        """The columns of `fetch_sessions` for these rows of the pool of sessions."""
        s = rows_of(c.Session, state.sessions[places])
        brokers = [self.brokers.texts[code] if code >= 0 else None for code in s["broker"].tolist()]
        predecessors = [
            self.key(broker, number, incarnation) if number >= 0 else None
            for broker, number, incarnation in s[["broker", "old_id", "old_incarnation"]].tolist()
        ]
        held, censored = s["held"], s["censored"] > 0
        fill = np.divide(s["returned"], held, out=np.zeros(len(s)), where=held > 0)
        shards = [
            self._shard(broker, number, version)
            for broker, number, version in zip(brokers, s["id"].tolist(), s["version"].tolist(), strict=True)
        ]
        return {
            "session_key": self._keys(s),
            "broker": pa.array(brokers, pa.string()),
            "session_id": arrow_array(s["id"], CODE),
            "shard": pa.array(shards, CODE),
            "client_ids": self._members(state, s["clients"], lambda code: self.clients.texts[code]),
            "connections": self._members(state, s["connections"], lambda code: f"{code & (2**64 - 1):016x}"),
            "opened_at": instants(s["opened"]),
            "closed_at": instants(s["closed"]),
            "first_epoch": arrow_array(s["first_epoch"], CODE),
            "last_epoch": arrow_array(s["last_epoch"], CODE),
            "left_censored": arrow_array(censored),
            "requests": arrow_array(s["requests"]),
            "epoch_gaps": arrow_array(s["gaps"]),
            "epochs_not_captured": arrow_array(s["not_captured"]),
            "epoch_repeats": arrow_array(s["repeats"]),
            "wraps": arrow_array(s["wraps"]),
            "max_partitions": arrow_array(s["most"], mask=censored),
            "churn": arrow_array(s["churn"]),
            "max_idle_ms": arrow_array(s["longest_idle"] / MILLI, MS, mask=s["longest_idle"] < 0),
            "fill_ratio": arrow_array(fill, MS, mask=held <= 0),
            "end_reason": words(s["end"], r.END_REASONS).cast(pa.string()),
            "predecessor": pa.array(predecessors, pa.string()),
            "request_bytes": arrow_array(s["bytes"]),
            "full_request_bytes_avoided": arrow_array(s["avoided"]),
            "cluster": pa.nulls(len(s), pa.string()),
        }

    def _shard(self, broker: str | None, number: int, version: int) -> int | None:
        """Shard by id range, where the broker is known to have shards."""
        known = self.sharded.get(broker or "")
        if known is None and version >= r.FIRST_SHARDED_FETCH_VERSION:
            known = True
        if not known or number < 0:
            return None
        return min(number // r.SHARD_RANGE, r.SHARDS - 1)

    def _members(self, state: c.State, firsts: Int64s, text: Callable[[int], str]) -> pa.Array:
        lists = []
        for first in firsts.tolist():
            found = []
            at = first
            while at >= 0:
                value, at = state.listed[at].tolist()
                found.append(text(value))
            lists.append(found)
        return pa.array(lists, SESSIONS.field("client_ids").type)

    def _stay_rows(self, state: c.State, places: Int64s) -> pa.Table:
        columns = self.stay_columns(state, places)
        sessions = rows_of(c.Stay, state.stays)["session"][places]
        first = rows_of(c.Session, state.sessions)["connections"][sessions]
        columns[EXCHANGE_KEYS[0]] = arrow_array(rows_of(c.Listed, state.listed)["value"][first], mask=first < 0)
        return pa.table({name: columns[name] for name in STAYS.names}, STAYS)

    def stay_columns(self, state: c.State, places: Int64s) -> dict[str, pa.Array]:
        """The columns of `session_partitions` for these rows of the pool of partitions."""
        p = rows_of(c.Stay, state.stays[places])
        sessions, which = np.unique(p["session"], return_inverse=True)
        topics, topic = np.unique(p["topic"], return_inverse=True)
        named = [self.topics.text(code) for code in topics.tolist()]
        return {
            "session_key": self._keys(rows_of(c.Session, state.sessions[sessions])).take(arrow_array(which)),
            "topic": pa.array([name for name, _ in named], pa.string()).take(arrow_array(topic)),
            "topic_id": pa.array([number for _, number in named], pa.string()).take(arrow_array(topic)),
            "partition": arrow_array(p["partition"], CODE),
            "from_epoch": optional(p["from_epoch"], CODE),
            "to_epoch": optional(p["to_epoch"], CODE),
            "last_fetch_offset": optional(p["offset"], COUNT),
            "cluster": pa.nulls(len(places), pa.string()),
        }


def sharded_brokers(api_versions: pa.Table) -> dict[str, bool]:
    """Whether brokers cut their session cache into shards (Kafka 3.8 and later), from the table `api_versions`.

    They do when they advertise DescribeTopicPartitions (an API that came with 3.8) or Fetch v17; they do not when they
    advertise Fetch and neither. Brokers that advertised nothing are left out.
    """
    found: dict[str, bool] = {}
    for row in api_versions.select(["broker", "api_key", "max_version"]).to_pylist():
        broker, key, most = row["broker"], row["api_key"], row["max_version"]
        if broker is None or most is None:
            continue
        if key == ApiKey.DESCRIBE_TOPIC_PARTITIONS or (key == ApiKey.FETCH and most >= r.FIRST_SHARDED_FETCH_VERSION):
            found[broker] = True
        elif key == ApiKey.FETCH:
            found.setdefault(broker, False)
    return found

"""The tracker's results as columns of the contract's tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from kdissect.analysis.sessions import session_layout as c
from kdissect.analysis.sessions import session_rules as r
from kdissect.analysis.sessions.session_pools import Int32s, chain
from kdissect.arrays.arrow import MILLI, Coder, Int64s, instants, optional, words
from kdissect.arrays.from_numpy import arrow_array
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
        "implied_partitions": optional(fetch["implied"], COUNT),
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


def _rows_of_list(pool: Int32s | Int64s, first: int, column: int) -> Int64s:
    """The rows of a linked list of a pool, int64[n]."""
    rows: Int64s = np.empty(64, np.int64)
    while (count := chain(pool, first, column, rows)) > len(rows):
        rows = np.empty(count, np.int64)
    return rows[:count]


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
        if self._with_stays:
            gone = _rows_of_list(state.P, int(state.M[c.M_ENDED_P]), c.P_NEXT)
            if len(gone):
                self._stays.append(self._stay_rows(state, gone))
        ended = _rows_of_list(state.S, int(state.M[c.M_ENDED_S]), c.S_NEXT)
        if len(ended):
            self._sessions.append(self._session_rows(state, state.S[ended]))

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

    def _keys(self, sessions: Int64s) -> pa.Array:
        columns = (sessions[:, c.S_BROKER], sessions[:, c.S_ID], sessions[:, c.S_INCARNATION])
        return pa.array([self.key(*one) for one in np.stack(columns, 1).tolist()], pa.string())

    def _session_rows(self, state: c.State, s: Int64s) -> pa.Table:
        columns = self.session_columns(state, s)
        return pa.table({name: columns[name] for name in SESSIONS.names}, SESSIONS)

    def session_columns(self, state: c.State, s: Int64s) -> dict[str, pa.Array]:
        """The columns of `fetch_sessions` for these rows of the pool of sessions."""
        brokers = [self.brokers.texts[code] if code >= 0 else None for code in s[:, c.S_BROKER].tolist()]
        predecessors = [
            self.key(broker, number, incarnation) if number >= 0 else None
            for broker, number, incarnation in s[:, [c.S_BROKER, c.S_OLD_ID, c.S_OLD_INCARNATION]].tolist()
        ]
        held = s[:, c.S_HELD]
        fill = np.divide(s[:, c.S_RETURNED], held, out=np.zeros(len(s)), where=held > 0)
        return {
            "session_key": self._keys(s),
            "broker": pa.array(brokers, pa.string()),
            "session_id": arrow_array(s[:, c.S_ID], CODE),
            "shard": pa.array([self._shard(*pair) for pair in zip(brokers, s.tolist(), strict=True)], CODE),
            "client_ids": self._members(state, s[:, c.S_CLIENTS], lambda code: self.clients.texts[code]),
            "connections": self._members(state, s[:, c.S_CONNECTIONS], lambda code: f"{code & (2**64 - 1):016x}"),
            "opened_at": instants(s[:, c.S_OPENED]),
            "closed_at": instants(s[:, c.S_CLOSED]),
            "first_epoch": arrow_array(s[:, c.S_FIRST], CODE),
            "last_epoch": arrow_array(s[:, c.S_LAST], CODE),
            "left_censored": arrow_array(s[:, c.S_CENSORED] > 0),
            "requests": arrow_array(s[:, c.S_REQUESTS]),
            "epoch_gaps": arrow_array(s[:, c.S_GAPS]),
            "epochs_not_captured": arrow_array(s[:, c.S_UNSEEN]),
            "epoch_repeats": arrow_array(s[:, c.S_REPEATS]),
            "wraps": arrow_array(s[:, c.S_WRAPS]),
            "max_partitions": arrow_array(s[:, c.S_MOST], mask=s[:, c.S_CENSORED] > 0),
            "churn": arrow_array(s[:, c.S_CHURN]),
            "max_idle_ms": arrow_array(s[:, c.S_IDLE] / MILLI, MS, mask=s[:, c.S_IDLE] < 0),
            "fill_ratio": arrow_array(fill, MS, mask=held <= 0),
            "end_reason": words(s[:, c.S_END], r.END_REASONS).cast(pa.string()),
            "predecessor": pa.array(predecessors, pa.string()),
            "request_bytes": arrow_array(s[:, c.S_BYTES]),
            "full_request_bytes_avoided": arrow_array(s[:, c.S_AVOIDED]),
            "cluster": pa.nulls(len(s), pa.string()),
        }

    def _shard(self, broker: str | None, session: list[int]) -> int | None:
        """Shard by id range, where the broker is known to have shards."""
        known = self.sharded.get(broker or "")
        if known is None and session[c.S_VERSION] >= r.FIRST_SHARDED_FETCH_VERSION:
            known = True
        if not known or session[c.S_ID] < 0:
            return None
        return min(session[c.S_ID] // r.SHARD_RANGE, r.SHARDS - 1)

    def _members(self, state: c.State, firsts: Int64s, text: object) -> pa.Array:
        lists = []
        for first in firsts.tolist():
            found = []
            at = first
            while at >= 0:
                found.append(text(int(state.N[at, c.N_VALUE])))  # type: ignore[operator]
                at = int(state.N[at, c.N_NEXT])
            lists.append(found)
        return pa.array(lists, SESSIONS.field("client_ids").type)

    def _stay_rows(self, state: c.State, places: Int64s) -> pa.Table:
        columns = self.stay_columns(state, places)
        first = state.S[state.P[places, c.P_SESSION], c.S_CONNECTIONS]
        columns[EXCHANGE_KEYS[0]] = arrow_array(state.N[first, c.N_VALUE], mask=first < 0)
        return pa.table({name: columns[name] for name in STAYS.names}, STAYS)

    def stay_columns(self, state: c.State, places: Int64s) -> dict[str, pa.Array]:
        """The columns of `session_partitions` for these rows of the pool of partitions."""
        p = state.P[places].astype(np.int64)
        sessions, which = np.unique(p[:, c.P_SESSION], return_inverse=True)
        topics, topic = np.unique(p[:, c.P_TOPIC], return_inverse=True)
        named = [self.topics.text(code) for code in topics.tolist()]
        epochs = p[:, c.P_FROM]
        return {
            "session_key": self._keys(state.S[sessions]).take(arrow_array(which)),
            "topic": pa.array([name for name, _ in named], pa.string()).take(arrow_array(topic)),
            "topic_id": pa.array([number for _, number in named], pa.string()).take(arrow_array(topic)),
            "partition": arrow_array(p[:, c.P_PARTITION], CODE),
            "from_epoch": optional(epochs, CODE),
            "to_epoch": optional(p[:, c.P_TO], CODE),
            "last_fetch_offset": optional(state.V[places, c.V_OFFSET], COUNT),
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

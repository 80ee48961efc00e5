"""The rows of the page's panels of fetch sessions, and of what they are made: fetches that tell something, kept as
many as there is room for.

Most fetches only go on with their session. Fetches that began, ended, lost or did not get a session are kept, and of
each session the last one, which shows when it was still alive. Of the sessions with most fetches, some points to draw
are kept too.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from kdissect.analysis.cluster_split import clusters_of, known_clusters, with_cluster
from kdissect.analysis.exchange_keys import keys_of, locate
from kdissect.analysis.grouping import group
from kdissect.analysis.sessions import session_figures
from kdissect.analysis.sessions.slots import evictors, last_fetch, slot_demand
from kdissect.arrays.arrow import NULL_TIME, Coder, times, with_columns
from kdissect.report.counted import Counted, summed
from kdissect.report.figure_rows import NONE, is_word
from kdissect.tables.declaration import SCHEMAS

SESSIONS = 150
"""Fetch sessions that are drawn: more lines than these cannot be told apart."""
CHOSEN = 25
"""Sessions whose epochs can be looked at."""
POINTS = 200
"""Fetches of one session that are drawn."""
MOST_SESSIONS = 30_000
"""Fetch sessions that are looked at, the first ones, and fetches that began or lost one: some 20 MB each."""
ENOUGH = 20_000
"""Fetches that are gathered before those that tell nothing more are let go."""
CANDIDATES = 4 * CHOSEN
"""Sessions of which points are kept: those with most fetches so far."""
READS = ("exchange_id", "broker", "client_id", "requested_at", "request_last_at", "response_first_at", "request_kind",
         "session_outcome", "session_key", "session_epoch", "epoch_status", "cluster")  # fmt: skip
"""Columns of `fetches` that are kept."""
EVENTS = ("created", "refused", "reused", "ended", "lost", "epoch_errors")
"""What clients' fetches did with sessions, columns of `session_figures.events`."""


class SessionRows:
    """The content of the panels of fetch sessions, part by part, of at most `most` sessions (MOST_SESSIONS)."""

    def __init__(self, most: int | None = None) -> None:
        self.most = MOST_SESSIONS if most is None else most
        self.whole = True
        """Nothing but fetches that only went on was let go."""
        self.events = Counted(["cluster", "broker", "client_id"], EVENTS)
        self._first: dict[tuple[Any, ...], str] = {}
        """The first exchange that made a session, by cluster, broker and client, in order of time."""
        self._sessions: list[pa.Table] = []
        self._session_count = 0
        self._telling: list[pa.Table] = []
        self._points: list[pa.Table] = []
        self._waiting = 0
        self._odd = 0
        self._uses: Counter[str | None] = Counter()
        self._until: int | None = None
        self._clusters: set[str | None] = set()

    def add_rows(self, exchanges: pa.Table, fetches: pa.Table, sessions: pa.Table | None) -> None:
        """Rows of fetches with those of their exchanges (exchange_id, request_frame), and of sessions that ended."""
        if sessions is not None and sessions.num_rows:
            self._add_sessions(sessions)
            self._clusters |= clusters_of({"fetch_sessions": sessions})
        if not fetches.num_rows:
            return
        until = last_fetch(fetches)
        if until is not None:
            self._until = max(self._until or until, until)
        kinds = fetches["request_kind"].cast(pa.string())
        rows = fetches.filter(pc.fill_null(pc.not_equal(kinds, "sessionless"), False))
        if not rows.num_rows:
            return
        self._clusters |= clusters_of({"fetches": rows})
        found = with_columns(session_figures.events(rows), {"cluster": rows["cluster"]})
        self.events.add(found, times(rows, "requested_at"))
        made = found.filter(pc.greater(found["created"], 0))
        names = (made[name].to_pylist() for name in ("cluster", "broker", "client_id", "exchange_id"))
        for *key, exchange in zip(*names, strict=True):
            if len(self._first) < self.most:
                self._first.setdefault(tuple(key), exchange)
        at = locate(keys_of(rows), keys_of(exchanges)) if exchanges.num_rows else np.full(rows.num_rows, -1)
        frames = exchanges["request_frame"].take(pa.array(at, mask=at < 0)).combine_chunks()
        plain = {name: rows[name].cast(SCHEMAS["fetches"].field(name).type).combine_chunks() for name in READS}
        rows = pa.table({**plain, "request_frame": frames})
        for entry in pc.value_counts(rows["session_key"]).to_pylist():
            self._uses[entry["values"]] += entry["counts"]
        self._telling.append(rows)
        self._points.append(rows)
        self._waiting += rows.num_rows
        if self._waiting > ENOUGH:
            self._let_go()

    def _add_sessions(self, sessions: pa.Table) -> None:
        if self._session_count < self.most:
            self._sessions.append(sessions.slice(0, self.most - self._session_count))
        self._session_count += sessions.num_rows
        self.whole = self.whole and self._session_count <= self.most

    def _let_go(self) -> None:
        """Of what was gathered, keep what tells something."""
        rows = pa.concat_tables(self._telling)
        owners = Coder()
        owner = owners.column(rows, "session_key")
        odd = ~np.asarray(is_word(rows, "session_outcome", "continued"))
        places = np.flatnonzero(odd)
        self.whole = self.whole and len(places) <= self.most
        odd[places[self.most :]] = False
        last = np.full(len(owners.texts) + 1, -1, np.int64)
        last[owner] = np.arange(len(owner))
        odd[last[:-1]] = True
        self._telling = [rows.filter(pa.array(odd))]
        self._points = [self._drawn(pa.concat_tables(self._points))]
        self._uses = Counter(dict(self._uses.most_common(self.most)))
        self._waiting = 0

    def _drawn(self, rows: pa.Table) -> pa.Table:
        """Points of the sessions with most fetches: what is not ordinary, and some of the others at even distances."""
        names = [name for name, _ in self._uses.most_common() if name is not None][:CANDIDATES]
        return thinned(rows.filter(pc.is_in(rows["session_key"], pa.array(names, pa.string()))))

    @property
    def sessions(self) -> pa.Table:
        """Rows of `fetch_sessions`."""
        return pa.concat_tables(self._sessions) if self._sessions else SCHEMAS["fetch_sessions"].empty_table()

    @property
    def count(self) -> int:
        """Sessions in all."""
        return self._session_count

    @property
    def fetches(self) -> pa.Table:
        """Of fetches those that began, ended, lost or did not get a session, and the last of each: what figures of
        sessions count, and when each was still alive."""
        empty = pa.schema([SCHEMAS["fetches"].field(name) for name in READS]).empty_table()
        return pa.concat_tables(self._telling) if self._telling else empty

    @property
    def until(self) -> int | None:
        """The last instant of any fetch, us: open sessions are alive until then."""
        return self._until

    def name_brokers(self, table: pa.Table) -> pa.Table:
        """The table, in whose column `broker` the cluster stands too, where sessions were of several."""
        if len(known_clusters(self._clusters)) < 2:
            return table
        named = pc.binary_join_element_wise(table["broker"], pc.fill_null(table["cluster"], "-"), " of cluster ")
        return with_columns(table, {"broker": named})

    def alive(self, every: float) -> pa.Table:
        """See `alive`; brokers are named by `name_brokers`."""
        sessions, fetches = self.name_brokers(self.sessions), self.name_brokers(self.fetches)
        return alive(slot_demand(sessions, every, self._until, by_shard=False), sessions, fetches)

    def evictors(self) -> pa.Table:
        """See `slots.evictors`."""
        return evictors(self.fetches)

    def creators(self) -> pa.Table:
        """See `session_figures.creators`."""
        totals, known = self.events.totals(), known_clusters(self._clusters)
        if len(known) == 1:  # rows without a cluster are of the only one
            totals = summed(with_cluster(totals, known[0]), self.events.keys, EVENTS)
        first: dict[tuple[Any, ...], str] = {}
        for (cluster, *of), exchange in self._first.items():
            first.setdefault((known[0] if len(known) == 1 else cluster, *of), exchange)
        keys = zip(*(totals[name].to_pylist() for name in self.events.keys), strict=True)
        exchanges = pa.array([first.get(key) for key in keys], pa.string())
        return session_figures.creators_of(with_columns(totals, {"first_exchange_id": exchanges}))

    def epochs(self, lines: pa.Table) -> pa.Table:
        """See `epochs`."""
        return epochs(pa.concat_tables(self._points), lines) if self._points else EPOCHS.empty_table()


def alive(demand: pa.Table, fetch_sessions: pa.Table, fetches: pa.Table) -> pa.Table:
    """Fetch sessions per broker and bucket of `demand`: broker, at, live, created, evicted, refused, epoch_errors.

    Evicted sessions stand where a client got the error about their loss, as the wire shows it."""
    codes = {name: i for i, name in enumerate(dict.fromkeys(demand["broker"].to_pylist()))}
    at = times(demand, "at")
    if not demand.num_rows:
        return with_columns(
            demand.select(["broker", "at", "live", "created"]),
            dict.fromkeys(("evicted", "refused", "epoch_errors"), pa.array([], pa.int64())),
        )
    place = {name: np.flatnonzero(np.array([b == name for b in demand["broker"].to_pylist()])) for name in codes}
    columns = {}
    for column, table, when, flags in (
        ("evicted", fetch_sessions, "closed_at", is_word(fetch_sessions, "end_reason", "evicted")),
        ("refused", fetches, "requested_at", is_word(fetches, "session_outcome", "refused")),
        ("epoch_errors", fetches, "requested_at", is_word(fetches, "session_outcome", "epoch_error")),
    ):
        counts = np.zeros(demand.num_rows, np.int64)
        picked = table.filter(flags)
        instant, brokers = times(picked, when), np.array(picked["broker"].to_pylist(), object)
        for name, rows in place.items():
            mine = instant[(brokers == name) & (instant != NULL_TIME)]
            found = np.clip(np.searchsorted(at[rows], mine, side="right") - 1, 0, len(rows) - 1)
            np.add.at(counts, rows[found], 1)
        columns[column] = pa.array(counts)
    return with_columns(demand.select(["broker", "at", "live", "created"]), columns)


def session_lines(fetch_sessions: pa.Table) -> pa.Table:
    """The sessions to draw: those that ended badly or had most requests, in order of their beginning.

    Columns: session_key, broker, session_id, clients, opened_at, closed_at, left_censored, end_reason, requests,
    first_epoch, last_epoch, epoch_gaps, epoch_repeats, max_partitions, churn, request_bytes,
    full_request_bytes_avoided.
    """
    bad = np.asarray(is_word(fetch_sessions, "end_reason", "evicted")) * 2
    bad += np.asarray(pc.greater(pc.add(fetch_sessions["epoch_gaps"], fetch_sessions["epoch_repeats"]), 0)) * 1
    requests = np.asarray(fetch_sessions["requests"])
    rows = np.lexsort((np.arange(len(requests)), -requests, -bad))[:SESSIONS]
    table = fetch_sessions.take(pa.array(rows))
    named = [", ".join(NONE if one is None else one for one in ids or ()) for ids in table["client_ids"].to_pylist()]
    clients = pa.array(named, pa.string())
    table = with_columns(table, {"clients": clients}).select([
        "session_key", "broker", "session_id", "clients", "opened_at", "closed_at", "left_censored", "end_reason",
        "requests", "first_epoch", "last_epoch", "epoch_gaps", "epoch_repeats", "max_partitions", "churn",
        "request_bytes", "full_request_bytes_avoided",
    ])  # fmt: skip
    return table.sort_by([("broker", "ascending"), ("opened_at", "ascending"), ("session_key", "ascending")])


EPOCHS = pa.schema(
    [("session_key", pa.string()), ("at", pa.timestamp("us", "UTC")), ("session_epoch", pa.int32()),
     ("request_kind", pa.string()), ("epoch_status", pa.string()), ("session_outcome", pa.string()),
     ("exchange_id", pa.string()), ("request_frame", pa.int64())]
)  # fmt: skip


def epochs(points: pa.Table, lines: pa.Table) -> pa.Table:
    """Fetches of the CHOSEN sessions with most of them: columns of EPOCHS. Long sessions are thinned to POINTS; what is
    not ordinary stays."""
    keys = lines.sort_by([("requests", "descending")])["session_key"].slice(0, CHOSEN)
    mine = thinned(points.filter(pc.is_in(points["session_key"], keys.combine_chunks())))
    mine = mine.sort_by([("session_key", "ascending"), ("requested_at", "ascending")])
    mine = mine.rename_columns(["at" if name == "requested_at" else name for name in mine.column_names])
    return mine.select(EPOCHS.names)


def thinned(rows: pa.Table) -> pa.Table:
    """Fetches of sessions, of each at most POINTS at even distances and as many that are not ordinary, in order."""
    groups = group(rows, ["session_key"])
    ordinary = np.asarray(is_word(rows, "session_outcome", "continued"))
    order = np.lexsort((times(rows, "requested_at"), groups.code))
    kept: list[npt.NDArray[np.int64]] = []
    edges = np.searchsorted(groups.code[order], np.arange(len(groups) + 1))
    for low, high in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        mine = order[low:high]
        odd = mine[~ordinary[mine]][:POINTS]
        even = mine[np.unique(np.linspace(0, len(mine) - 1, min(len(mine), POINTS)).astype(np.int64))]
        kept.append(np.unique(np.concatenate([odd, even])))
    return rows.take(pa.array(np.sort(np.concatenate(kept)) if kept else np.zeros(0, np.int64)))

"""Who reads: the consumer group, else client id and address, or the follower; and which member of the group it is."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from kdissect.analysis.deliveries.delivery_columns import UNKNOWN, Exchanges, Names, dense
from kdissect.analysis.exchange_keys import exchange_keys
from kdissect.arrays.arrow import NULL_TIME, Int64s, times, words
from kdissect.arrays.from_numpy import arrow_array
from kdissect.tables.declaration.model import CLUSTER


class Readers(NamedTuple):
    """By row of `Exchanges`: the code of who reads, and of its group (UNKNOWN for none)."""

    reader: Int64s
    group: Int64s


class Groups:
    """The group of each connection, and when each of the group's members was there: gathered part by part."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._connections = np.zeros((2, 0), np.int64)
        """Connections with a group, in order, and its code."""
        self._stays = np.zeros((6, 0), np.int64)
        """Cluster, group, client id, member; the first and the last instant at which a message named it."""
        self._found: dict[tuple[int, int, int], list[tuple[int, int, int]]] | None = None

    def take_connections(self, connections: pa.Table) -> None:
        """Keep the groups of some connections: connection_id, group_id."""
        self._names.clusters.column(connections, CLUSTER.name)  # some are named by connections alone
        group = self._names.groups.column(connections, "group_id")
        ids = [f"{one}:0" for one in connections["connection_id"].filter(arrow_array(group >= 0)).to_pylist()]
        found = np.stack([exchange_keys(pa.array(ids, pa.string()))[0], group[group >= 0]])
        found = np.concatenate([self._connections, found], axis=1)
        self._connections = found[:, np.argsort(found[0], kind="stable")]

    def take_events(self, events: pa.Table) -> None:
        """Keep what rows of `groups` say of members: at group_id member_id client_id."""
        names = self._names
        columns = [
            names.clusters.column(events, CLUSTER.name), names.groups.column(events, "group_id"),
            names.clients.column(events, "client_id"), names.members.column(events, "member_id"),
        ]  # fmt: skip
        at = times(events, "at")
        good = (columns[1] >= 0) & (columns[2] >= 0) & (columns[3] >= 0) & (at != NULL_TIME)
        if not good.any():
            return
        new = np.stack([*columns, at, at])[:, good]
        rows = np.concatenate([self._stays, new], axis=1)
        rows = rows[:, np.lexsort([rows[4], rows[3], rows[2], rows[1], rows[0]])]
        heads = np.flatnonzero(np.append(True, (rows[:4, 1:] != rows[:4, :-1]).any(axis=0)))
        self._stays = np.concatenate([rows[:5, heads], [np.maximum.reduceat(rows[5], heads)]])
        self._found = None

    def readers(self, exchanges: Exchanges) -> Readers:
        """Who reads these."""
        known, codes = self._connections
        at = np.minimum(np.searchsorted(known, exchanges.connection), max(len(known) - 1, 0))
        group = np.full(len(exchanges), UNKNOWN, np.int64)
        if len(known):
            group = np.where((known[at] == exchanges.connection) & (exchanges.replica < 0), codes[at], UNKNOWN)
        alone = (group < 0) & (exchanges.replica < 0)
        return Readers(dense(exchanges.replica, group, np.where(alone, exchanges.client, UNKNOWN)), group)

    def member_column(self, exchanges: Exchanges, readers: Readers, rows: Int64s, several: bool) -> pa.Array:
        """The group member that each of these exchanges is of; null where its client id names several at a time.
        `several`: members of another cluster are not meant."""
        stays = self._members(several)
        cluster = exchanges.cluster[rows] if several else np.zeros(len(rows), np.int64)
        codes = (cluster, readers.group[rows], exchanges.client_id[rows])
        which = dense(*codes) if len(rows) else np.zeros(0, np.int64)
        order, found = np.argsort(which, kind="stable"), np.full(len(rows), UNKNOWN, np.int64)
        begin = np.flatnonzero(np.diff(which[order], prepend=-1)) if len(rows) else which
        heads = zip(*(code[order[begin]].tolist() for code in codes), strict=True)
        for key, mine in zip(heads, np.split(order, begin[1:]), strict=False):
            spans = stays.get(key, [])
            if not spans or any(a[1] > b[0] for a, b in pairwise(spans)):
                continue
            begins = np.array([first for first, _, _ in spans])
            at = np.maximum(np.searchsorted(begins, exchanges.left[rows[mine]], "right") - 1, 0)
            found[mine] = np.array([member for _, _, member in spans])[at]
        return words(found, self._names.members.texts)

    def _members(self, several: bool) -> dict[tuple[int, int, int], list[tuple[int, int, int]]]:
        """By cluster (0 unless there are several), group and client id: first and last instant of each member."""
        if self._found is None:
            spans: dict[tuple[int, int, int], dict[int, tuple[int, int]]] = {}
            for cluster, group, client, member, first, last in self._stays.T.tolist():
                if self._names.members.texts[member]:
                    mine = spans.setdefault((cluster if several else 0, group, client), {})
                    known = mine.get(member, (first, last))
                    mine[member] = min(first, known[0]), max(last, known[1])
            self._found = {
                key: sorted((first, last, member) for member, (first, last) in mine.items())
                for key, mine in spans.items()
            }
        return self._found

"""Who reads: the consumer group, else client id and address, or the follower; and which member of the group it is."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa

from kdissect.analysis.deliveries.delivery_input import UNKNOWN, Exchanges, Reads, dense
from kdissect.arrays.arrow import NULL_TIME, Coder, Int64s, ints, times, words


@dataclass(slots=True, eq=False, repr=False)
class Readers:
    """By row of `Exchanges`: the code of who reads, and of its group (UNKNOWN for none)."""

    reader: Int64s
    group: Int64s
    groups: list[str]

    def group_column(self, rows: Int64s) -> pa.Array:
        """The groups of these exchanges."""
        return words(self.group[rows], self.groups)


def find_readers(exchanges: Exchanges, reads: Reads, connections: pa.Table) -> Readers:
    """`connections`: connection_id, group_id."""
    coder = Coder()
    named = coder.column(connections, "group_id")
    of = dict(zip(connections["connection_id"].to_pylist(), named.tolist(), strict=True))
    ids = exchanges.table["connection_id"].combine_chunks()
    ids = ids if pa.types.is_dictionary(ids.type) else ids.dictionary_encode()
    codes = np.array([*(of.get(one, UNKNOWN) for one in ids.dictionary.to_pylist()), UNKNOWN], np.int64)
    group = codes[ints(pa.table({"indices": ids.indices}), "indices")]
    group = np.where(reads.replica >= 0, UNKNOWN, group)
    alone = (group < 0) & (reads.replica < 0)
    return Readers(dense(reads.replica, group, np.where(alone, exchanges.client, UNKNOWN)), group, coder.texts)


def member_column(exchanges: Exchanges, readers: Readers, rows: Int64s, events: pa.Table) -> pa.Array:
    """The group member that each of these exchanges is of; null where its client id names several at a time.

    `events`: rows of `groups`, exchange_id at group_id member_id client_id."""
    groups, clients, members = Coder(), Coder(), Coder()
    for text in readers.groups:
        groups.code(text)
    known = clients.column(exchanges.table, "client_id")
    told = (groups.column(events, "group_id"), clients.column(events, "client_id"))
    member, at = members.column(events, "member_id"), times(events, "at")
    good = np.flatnonzero((told[0] >= 0) & (told[1] >= 0) & (member >= 0) & (at != NULL_TIME))
    good = good[np.lexsort([at[good], member[good], told[1][good], told[0][good]])]
    stays: dict[tuple[int, int], dict[int, tuple[int, int]]] = {}
    if len(good):
        alike = dense(told[0][good], told[1][good], member[good])
        heads = np.flatnonzero(np.diff(alike, prepend=-1))
        tails = np.append(heads[1:], len(good)) - 1
        columns = (told[0][good[heads]], told[1][good[heads]], member[good[heads]], at[good[heads]], at[good[tails]])
        for group, client, one, first, last in zip(*(column.tolist() for column in columns), strict=True):
            if members.texts[one]:
                stays.setdefault((group, client), {})[one] = first, last
    keys = np.stack([readers.group[rows], known[rows]], axis=1)
    distinct, which = np.unique(keys, axis=0, return_inverse=True)
    which, found = which.reshape(-1), np.full(len(rows), UNKNOWN, np.int64)
    for place, (group, client) in enumerate(distinct.tolist()):
        spans = sorted(stays.get((group, client), {}).items(), key=lambda one: one[1])
        if not spans or any(a[1][1] > b[1][0] for a, b in pairwise(spans)):
            continue
        mine_rows = np.flatnonzero(which == place)
        begins = np.array([first for _, (first, _) in spans])
        at_row = np.maximum(np.searchsorted(begins, exchanges.left[rows[mine_rows]], "right") - 1, 0)
        found[mine_rows] = np.array([one for one, _ in spans])[at_row]
    return words(found, members.texts)

"""Rows of tables by cluster: what is keyed by broker, topic or group is worked on for each cluster by itself.

Rows without a cluster are one part more. Where all rows are of one cluster nothing is copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kdissect.analysis.exchange_keys import keys_of
from kdissect.arrays.arrow import Int64s, distinct, encoded, one
from kdissect.arrays.dictionaries import join_tables
from kdissect.arrays.from_numpy import arrow_array
from kdissect.arrays.rows import Rows
from kdissect.tables.declaration.model import CLUSTER

if TYPE_CHECKING:
    from kdissect.tables.fetch_rows import NamedFetches

WHOLE = frozenset({"capture_quality"})
"""Tables about captures, not clusters: every part has all of their rows."""
Part = tuple[str | None, dict[str, pa.Table]]
"""A cluster (None: not known) and its rows by table."""


def split_by_cluster(tables: Mapping[str, pa.Table]) -> list[Part]:
    """The tables of each cluster, in order of ClusterId, those without one last. Tables without the column `cluster`,
    and those in WHOLE, are in every part; one part with all tables where there is no more than one cluster."""
    found = _codes_of(tables)
    clusters = _clusters_of(found)
    if len(clusters) <= 1:
        return [(next(iter(clusters), None), dict(tables))]
    return [(cluster, _part(tables, found, cluster)) for cluster in in_order(clusters)]


def split_known_clusters(tables: Mapping[str, pa.Table]) -> list[Part]:
    """`split_by_cluster` of whole tables. Where a single cluster is known, rows without one are part of it. A port that
    refused, or a connection that ended early, belongs to the same story though no message joins it to the cluster."""
    parts = split_by_cluster(tables)
    clusters = known_clusters(cluster for cluster, _ in parts)
    return [(clusters[0], dict(tables))] if len(clusters) == 1 else parts


def fill_only_cluster(tables: Mapping[str, pa.Table]) -> dict[str, pa.Table]:
    """The tables; where their rows are of a single cluster that is known, those without one get it."""
    parts = split_known_clusters(tables)
    if len(parts) > 1:
        return dict(tables)
    cluster, whole = parts[0]
    return {name: with_cluster(table, cluster) for name, table in whole.items()}


def known_clusters(clusters: Iterable[str | None]) -> list[str | None]:
    """Of these clusters those whose rows are worked on by themselves, in order: the only one that is known, None for
    none, or all."""
    found = set(clusters)
    known = [cluster for cluster in found if cluster is not None]
    return in_order(found) if len(known) > 1 else [known[0] if known else None]


def clusters_of(tables: Mapping[str, pa.Table]) -> set[str | None]:
    """The clusters that rows of tables have."""
    return _clusters_of(_codes_of(tables))


def rows_of_cluster(tables: Mapping[str, pa.Table], cluster: str | None) -> dict[str, pa.Table]:
    """The rows of one cluster, of None those without; tables without the column `cluster`, and those in WHOLE, are as
    they were."""
    return _part(tables, _codes_of(tables), cluster)


def each_cluster(tables: Mapping[str, pa.Table], work: Callable[[Mapping[str, pa.Table]], pa.Table]) -> pa.Table:
    """The table that `work` makes of each cluster's tables, one behind the other, with the column `cluster` filled
    in."""
    made = [with_cluster(work(part), cluster) for cluster, part in split_known_clusters(tables)]
    return made[0] if len(made) == 1 else join_tables(made)


def with_cluster(table: pa.Table, cluster: str | None) -> pa.Table:
    """The table with this cluster in every row, in its place or behind the other columns."""
    values = pa.array([cluster], CLUSTER.type).take(arrow_array(np.zeros(table.num_rows, np.int64)))
    at = table.schema.get_field_index(CLUSTER.name)
    if at < 0:
        return table.append_column(CLUSTER.name, values)
    return table.set_column(at, table.schema.field(at), values)


def cluster_codes(table: pa.Table) -> tuple[Int64s, list[str]]:
    """The column `cluster` as codes into its distinct values; -1 where null."""
    column = one(table, CLUSTER.name)
    if column is None:
        return np.full(table.num_rows, -1, np.int64), []
    return encoded(column)


def _codes_of(tables: Mapping[str, pa.Table]) -> dict[str, tuple[Int64s, list[str]]]:
    """By table what `cluster_codes` gives, where rows are of clusters."""
    return {
        name: cluster_codes(table)
        for name, table in tables.items()
        if name not in WHOLE and table.num_rows and CLUSTER.name in table.schema.names
    }


def _clusters_of(coded: Mapping[str, tuple[Int64s, list[str]]]) -> set[str | None]:
    return {text for codes, texts in coded.values() for text in _used(codes, texts)}


def _part(
    tables: Mapping[str, pa.Table], coded: Mapping[str, tuple[Int64s, list[str]]], cluster: str | None
) -> dict[str, pa.Table]:
    """The tables, those that were coded with the rows of one cluster."""
    part = dict(tables)
    for name, (codes, texts) in coded.items():
        part[name] = tables[name].filter(arrow_array(codes == _code(texts, cluster)))
    return part


def in_order(clusters: set[str | None]) -> list[str | None]:
    """Clusters in the order in which their parts come."""
    return sorted(clusters, key=lambda text: (text is None, text or ""))


def _used(codes: Int64s, texts: Sequence[str]) -> set[str | None]:
    """The values that rows have."""
    if len(texts) == 1 and codes.min() == codes.max():
        return {texts[0] if codes[0] == 0 else None}
    return {(*texts, None)[code] for code in distinct(codes).tolist()}


def _code(texts: Sequence[str], cluster: str | None) -> int:
    if cluster is None:
        return -1
    return texts.index(cluster) if cluster in texts else -2


class ConnectionClusters:
    """The cluster of each connection that rows of `exchanges` have, for rows that do not say it themselves."""

    def __init__(self, exchanges: pa.Table) -> None:
        codes, self._texts = cluster_codes(exchanges)
        self._connections, first = np.unique(keys_of(exchanges)[0], return_index=True)
        self._codes = codes[first]

    def of(self, cluster: str | None, connections: Int64s) -> npt.NDArray[np.bool_]:
        """Whether each of these connections (ids as int64) is of the cluster; bool."""
        at = np.minimum(np.searchsorted(self._connections, connections), max(len(self._connections) - 1, 0))
        known = self._connections[at] == connections if len(self._connections) else np.zeros(len(at), np.bool_)
        codes = np.where(known, self._codes[at] if len(self._codes) else -1, -1)
        found: npt.NDArray[np.bool_] = codes == _code(self._texts, cluster)
        return found

    def fetches(self, cluster: str | None, direct: NamedFetches) -> NamedFetches:
        """The fetches that are of the cluster, with their partitions."""
        from kdissect.tables.fetch_rows import FetchRows, fetches_of

        columns = fetches_of(direct.rows.fetches)
        kept = self.of(cluster, np.ascontiguousarray(columns["connection"]))
        partitions = direct.rows.partitions[np.repeat(kept, columns["partitions"])]
        return direct._replace(rows=FetchRows(direct.rows.fetches[kept], partitions))

    def rows(self, cluster: str | None, rows: Rows) -> Rows:
        """The rows that are of the cluster, of rows about exchanges."""
        return rows.filter(self.of(cluster, keys_of(rows)[0])) if rows.num_rows else rows

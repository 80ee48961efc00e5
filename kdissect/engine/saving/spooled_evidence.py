"""All rows that findings are looked for in, in a temporary file until they are looked at span by span."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import pyarrow as pa

from kdissect.analysis.cluster_split import clusters_of, known_clusters, rows_of_cluster
from kdissect.analysis.deliveries.first_deliveries import FirstRows
from kdissect.analysis.findings import (
    Found,
    FoundInCluster,
    find_in_spans,
    gather_at_once,
    limits,
    of_topics,
    put_together,
    select_evidence,
)
from kdissect.analysis.findings.evidence import get
from kdissect.analysis.findings.spans import (
    MOST_ROWS,
    SecondCounts,
    instants_of,
    leave_out,
    rows_in_span,
    spans_between,
)
from kdissect.arrays.dictionaries import unified
from kdissect.engine.bounds.spare_memory import Spare
from kdissect.engine.bounds.spool import Place, Spool
from kdissect.engine.saving.evidence_rows import READ, join_in_order, read_columns
from kdissect.engine.settings import Settings
from kdissect.tables.declaration import TABLES
from kdissect.tables.order import order

MOST_SENT = 150_000
"""Batches of producers with an id that findings about producers look at, the first ones: they lie in memory."""


class _Piece(NamedTuple):
    """Rows of a table that lie in the file."""

    name: str
    first: int
    last: int
    """Their earliest and latest instant, µs."""
    place: Place


class SpooledEvidence:
    """All rows of what findings read, in a file of temporary tables, until they are looked at span by span."""

    def __init__(self, spool: Spool, slow: float | None = None) -> None:
        self._limits = limits(slow)
        self._spool = spool
        self._first = FirstRows()
        self._pieces: list[_Piece] = []
        self._kept: dict[str, list[pa.Table]] = {}
        self._counts = SecondCounts()
        self._failed: list[dict[str, str]] = []

    def add_rows(self, part: Mapping[str, pa.Table]) -> None:
        """The next rows. Raises OSError where the disk is full."""
        self._first.add_rows(part)
        for name in [name for name in READ if name in part and part[name].num_rows]:
            if TABLES[name].made.analysis:
                self._kept.setdefault(name, []).append(part[name])
                continue
            read = read_columns(name, part[name])
            self._counts.add_rows(name, read)
            table = select_evidence(name, read, self._limits)
            if table.num_rows:
                at = instants_of(name, table)
                place = self._spool.put(unified(table))
                self._pieces.append(_Piece(name, int(at.min()), int(at.max()), place))

    def add(self, name: str, table: pa.Table) -> None:
        """A piece of a table that is made at the end."""
        self._first.add(name, table)
        if name in READ and table.num_rows:
            self._kept.setdefault(name, []).append(
                table.select([one for one in table.schema.names if one in READ[name]])
            )

    def search(self, topics: Sequence[str] = ()) -> Found:
        """The findings; of tables that name topics in rows of these topics. To be called once."""
        kept = {name: join_in_order(name, parts, topics) for name, parts in self._kept.items()}
        kept["deliveries"] = of_topics(self._first.deliveries(), topics)
        clusters = known_clusters(clusters_of(kept).union(self._counts.clusters))
        alone = len(clusters) == 1
        cuts = {cluster: self._counts.cuts(cluster, alone) for cluster in clusters}
        whole = kept | self._rows_at_once(topics) if any(cuts.values()) else kept
        made, connections = [], {}
        spans: Iterable[dict[str, pa.Table]]
        for cluster in clusters:
            mine, every = (some if alone else rows_of_cluster(some, cluster) for some in (kept, whole))
            spans = self._spans(mine, cuts[cluster], topics)
            if not alone:
                spans = map(partial(rows_of_cluster, cluster=cluster), spans)
            made.append(find_in_spans(spans, len(cuts[cluster]) + 1, every, cluster, alone, self._limits))
            connections[cluster] = get(mine, "connections")
        made.append(FoundInCluster([], [], self._failed))
        return put_together(made, connections, get(kept, "connections"))

    def _rows_at_once(self, topics: Sequence[str]) -> dict[str, pa.Table]:
        """Of the rows in the file those that are looked at all at once."""
        found = {}
        for name in {piece.name for piece in self._pieces}:
            parts = (self._spool.get(piece.place) for piece in self._pieces if piece.name == name)
            table = gather_at_once(name, parts, self._limits)
            if table is not None:
                found[name] = of_topics(order(name, table), topics)
        return found

    def _spans(
        self, lifetimes: Mapping[str, pa.Table], cuts: Sequence[int], topics: Sequence[str]
    ) -> Iterator[dict[str, pa.Table]]:
        """The tables of each span: of the rows in the file, and of `lifetimes`."""
        pieces: list[list[_Piece]] = [[] for _ in range(len(cuts) + 1)]
        for piece in self._pieces:
            for number in spans_between(cuts, piece.first, piece.last):
                pieces[number].append(piece)
        spare = Spare(0)
        for number, mine in enumerate(pieces):
            spare.give_back()  # what the search of a span took
            open_then = {name: rows_in_span(name, table, cuts, number) for name, table in lifetimes.items()}
            yield self._read_span(mine, cuts, number, topics) | open_then

    def _read_span(
        self, pieces: Sequence[_Piece], cuts: Sequence[int], number: int, topics: Sequence[str]
    ) -> dict[str, pa.Table]:
        """The rows of a span, which lie in these pieces of the file."""
        parts: dict[str, list[pa.Table]] = {}
        count = 0
        for piece in pieces:
            rows = self._spool.get(piece.place)
            if len(spans_between(cuts, piece.first, piece.last)) > 1:
                rows = rows_in_span(piece.name, rows, cuts, number)
            count += rows.num_rows
            if count <= MOST_ROWS:
                parts.setdefault(piece.name, []).append(rows)
        if count > MOST_ROWS:
            self._failed.append(leave_out(count))
        return {name: join_in_order(name, parts.pop(name), topics) for name in list(parts)}


def with_evidence(settings: Settings) -> Settings:
    """The settings of a run whose rows come here: of the batches that producers sent it keeps MOST_SENT."""
    return replace(settings, reading=settings.reading._replace(most_sent=MOST_SENT))


def searched_batches() -> str:
    """The sentence about findings where producers have sent more than MOST_SENT batches."""
    return f"findings about producers are those of the first {MOST_SENT:,} batches, about"

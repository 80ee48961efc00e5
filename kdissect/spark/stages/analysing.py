"""Third stage: the analysis, broker by broker, and the findings.

Fetch sessions, holds and share sessions belong to a broker, over all of its connections. So all rows of a broker come
to one partition, in lots in order of time. They go through the engine's own analysis bit by bit: memory holds what the
analysis waits with, not a broker's rows. Findings are looked for in what is left when every partition has taken out the
rows that no finding can depend on.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from heapq import heappop, heappush
from itertools import chain, groupby
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kdissect.analysis.budget import SUBJECTS, time_budget
from kdissect.analysis.cluster_split import known_clusters, rows_of_cluster, split_by_cluster
from kdissect.analysis.cluster_stages import Stages
from kdissect.analysis.deliveries.delivery_rows import deliveries
from kdissect.analysis.deliveries.first_deliveries import READ, FirstRows
from kdissect.analysis.deliveries.traced_rows import traced
from kdissect.analysis.deliveries.transaction_rows import transactions
from kdissect.analysis.findings import (
    AT_ONCE,
    BY_SPAN,
    GATHERED,
    FoundInCluster,
    find_in_cluster,
    gather_at_once,
    join_spans,
    limits,
    put_together,
    select_evidence,
)
from kdissect.analysis.findings.evidence import get
from kdissect.analysis.findings.next_captures import COLUMNS
from kdissect.analysis.findings.spans import MOST_ROWS, SecondCounts, deal_rows, leave_out, rows_in_span
from kdissect.analysis.holds.carried_state import CarriedStages
from kdissect.analysis.ledger.time_ledger import time_ledger
from kdissect.analysis.stage import NO_WATERMARK, Stage
from kdissect.analysis.topic_traffic import topic_traffic
from kdissect.arrays.arrow import NULL_TIME, Coder
from kdissect.arrays.dictionaries import join_tables
from kdissect.arrays.rows import Rows
from kdissect.arrays.typed_values import dumped, loaded
from kdissect.engine.analysed_run import resolve_coded
from kdissect.spark.cells.aligned_rows import narrow_rows
from kdissect.spark.cells.coded_cells import unpack_fetches, unpack_rows
from kdissect.spark.cells.table_cells import Cell, cell, cells_of, cut, join_cells, note, read_cell, rows
from kdissect.spark.stages.committed_offsets import COMMITS
from kdissect.spark.stages.decoding import GROUPED, SENT, coded_tables, message_kind
from kdissect.spark.stages.found_holds import TELLING, Telling
from kdissect.spark.stages.lots import FEW
from kdissect.spark.stages.plan import Plan
from kdissect.spark.stages.resolving import Names, resolved_rows, split_broker
from kdissect.tables.builder import TableBuilder, conform_to_schema
from kdissect.tables.coded_rows import Later
from kdissect.tables.declaration import SCHEMAS, TABLES
from kdissect.tables.declaration.model import CLUSTER, TIME_KEY, By
from kdissect.tables.declaration.readers import (
    BUDGET,
    BUDGET_TOPICS,
    DELIVERIES,
    FINDINGS,
    FIRST_BATCHES,
    TOPIC_TRAFFIC,
    TRACED,
    TRANSACTIONS,
)
from kdissect.tables.fetch_rows import ORIGIN, NamedFetches
from kdissect.tables.order import order, order_parts, order_rows, sort_columns
from kdissect.tables.recording import producers_table
from kdissect.tables.table_block import MADE_LATER, READ_ASIDE

MADE = tuple(name for name, one in TABLES.items() if one.progressive and name != COMMITS)
"""Tables that come out of this stage, where the analysis takes part in them."""
FOUND_IN = tuple(name for name in FINDINGS.tables if name in MADE)
"""Tables that findings read as they come out of this stage."""
EVIDENCE = "evidence of "
"""Before the name of a table: those of its rows that findings can depend on."""
DECODED = tuple(
    name
    for name in FINDINGS.tables
    if name not in MADE and name != COMMITS and TABLES[name].made not in (By.LEARNED, By.DELIVERIES, By.SENT)
)
"""Staged tables that findings read as they were decoded."""
log = logging.getLogger("kdissect.spark")

COUNTED = EVIDENCE + "seconds"
"""Staged rows without data. They tell how many rows of a cluster (`broker`) are of the second `at`: `lot`."""
ALL_AT_ONCE = -1
"""The number of the span, a staged row's `lot`, that is no span: rows that are looked at all at once where there are
several."""
STATE = "state of the analysis"
"""Staged rows with what the next span of a broker's time begins with: its `Stages`, before all other rows."""
Ends = Mapping[str, int]
"""Broker -> the instant before which the rows of a span lie."""
ALWAYS = -(1 << 62)
"""`at` of evidence without instants: sessions, connections and the like."""
FOUND_THERE = "found there"
"""Staged rows with what is found in a cluster, and its connections."""
ROWS_A_TIME = 1 << 16
"""Rows that are worth working on: what is done once for each part of a broker's rows costs as much as ten thousand."""
WAITING = 1 << 19
"""Rows of fetches, or of their partitions, that may wait for the watermark: lots of many tasks overlap."""
SUMMED: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "time_budget": {**BUDGET.tables, **BUDGET_TOPICS.tables},
    "time_ledger": BUDGET.tables,
    "topic_traffic": TOPIC_TRAFFIC.tables,
    "deliveries": DELIVERIES.tables,
    "traced": TRACED.tables,
    "transactions": TRANSACTIONS.tables,
}
"""Tables that sum up all rows, and what they read."""
MAKERS: Mapping[str, Callable[[Mapping[str, pa.Table]], pa.Table]] = {
    "time_budget": partial(time_budget, by=SUBJECTS),
    "time_ledger": time_ledger,
    "topic_traffic": topic_traffic,
    "deliveries": deliveries,
    "traced": traced,
    "transactions": transactions,
}
"""What makes them of whole tables."""


def summed_in(name: str) -> tuple[str, ...]:
    """The staged tables of the analysis that such a table reads: none where it reads nothing that the analysis made."""
    read = SUMMED[name]
    if not any(TABLES[one].analysed.intersection(columns) for one, columns in read.items()):
        return ()
    return tuple(one for one in read if one in MADE)


def summed_decoded(name: str) -> tuple[str, ...]:
    """The tables that a summed table reads as they were decoded."""
    return tuple(one for one in SUMMED[name] if one not in summed_in(name))


def columns_to_ask(tables: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """The columns to ask of a broker's analysis so that these tables, and the findings if they are among them, can be
    made."""
    found = {
        name: list(columns)
        for name, columns in tables.items()
        if not TABLES[name].made.needs_everything and name != COMMITS
    }
    for summed in SUMMED.keys() & tables.keys():
        for name in summed_in(summed):
            found[name] = list(dict.fromkeys([*found.get(name, ()), *SUMMED[summed][name]]))
    if "findings" in tables:
        for name in FOUND_IN:
            more = set(FINDINGS.tables[name])
            if name == "exchanges":
                more.add("hold")
            found[name] = list(dict.fromkeys([*found.get(name, ()), *sorted(more)]))
    return found


def resolved_weights(brokers: Mapping[str, str], weights: Mapping[str, int]) -> dict[str, int]:
    """Rows that resolved brokers have. `brokers`: unresolved -> resolved; `weights`: of unresolved ones."""
    found: dict[str, int] = {}
    for address, name in brokers.items():
        found[name] = found.get(name, 0) + weights.get(address, 0)
    return found


def dealt(brokers: Mapping[str, str], weights: Mapping[str, int], places: int) -> list[tuple[str, str, int]]:
    """Brokers dealt out to at most so many places, the heaviest first, each to the place that has least: (unresolved,
    resolved, place). `brokers`: unresolved -> resolved; `weights`: of unresolved ones."""
    heavy = resolved_weights(brokers, weights)
    free = [(0, 0, place) for place in range(min(places, len(heavy)))]
    found: dict[str, int] = {}
    for name, weight in sorted(heavy.items(), key=lambda one: (-one[1], one[0])):
        load, count, place = heappop(free)
        found[name] = place
        heappush(free, (load + weight, count + 1, place))
    return [(address, name, found[name]) for address, name in brokers.items()]


def analyse(
    batches: Iterable[pa.RecordBatch], plan: Plan, names: Names, ends: Ends | None = None
) -> Iterator[pa.RecordBatch]:
    """Staged rows in order of (broker (resolved), at, lot) to staged rows of the tables in MADE, and evidence. `ends`:
    by broker, the instant before which these rows lie, where others follow: then there are rows of STATE, too, which
    those are to be given with. None: nothing follows."""
    feeding = Feeding(names.builder(plan), coded_tables(plan.tables))
    wanted, telling = columns_to_ask(plan.tables), Telling()
    tells = holds_exchanges(plan)
    for broker, cells in groupby(cells_of(batches), lambda one: one.broker):
        stage, mine = _begin_analysis(wanted, cells, feeding)
        cluster, name = split_broker(broker)
        for settled in feeding.analyse(stage, cluster, mine, None if ends is None else ends[broker]):
            yield from _staged(stage.show_rows(settled), plan, name)
            if tells:
                yield from telling.take(settled)
        if ends is not None:
            yield rows([Cell(STATE, broker, dumped(stage.carried(), CarriedStages), NULL_TIME, -1)])
    yield from telling.rest()


def holds_exchanges(plan: Plan) -> bool:
    """Whether rows of `exchanges` get their holds."""
    return Stage(columns_to_ask(plan.tables)).holds_exchanges


def _begin_analysis(
    columns: Mapping[str, Sequence[str]], cells: Iterator[Cell], feeding: Feeding
) -> tuple[Stages, Iterator[Cell]]:
    """The analysis of a broker as its rows find it, and these."""
    stage, first = Stages(columns, waiting=WAITING), next(cells)
    if first.table == STATE:
        stage.go_on(loaded(first.data, CarriedStages))
    else:
        cells = chain([first], cells)
    if feeding.coded:
        stage.hide(feeding.vocabulary)
    return stage, cells


class Feeding:
    """Feeds the analysis of one broker after the other with its lots. `coded`: the tables whose rows are codes. No
    caller sees them."""

    def __init__(self, builder: TableBuilder, coded: frozenset[str]) -> None:
        self.coded = coded
        self.vocabulary = Coder()
        """Texts of rows that are codes."""
        self._builder = builder

    def analyse(
        self, stage: Stages, cluster: str | None, cells: Iterator[Cell], end: int | None
    ) -> Iterator[Mapping[str, Rows]]:
        """Rows out of one broker's lots, as far as they are settled. Later rows are not before the `end`; None: there
        are none."""
        none = self._no_rows(stage, cluster)
        parts: dict[str, list[Any]] = {}
        count = 0
        for (at, _), lot in groupby(cells, lambda one: (one.at, one.lot)):
            if count >= ROWS_A_TIME:
                tables, messages, fetches = self._resolved(none, parts)
                yield stage.feed_cluster(cluster, tables, messages, fetches, at)
                parts, count = {}, 0
            for one in lot:
                name, piece = self._read_piece(one)
                parts.setdefault(name, []).append(piece)
                count += piece.num_rows
        watermark = NO_WATERMARK if end is None else end
        tables, messages, fetches = self._resolved(none, parts)
        yield stage.feed_cluster(cluster, tables, messages, fetches, watermark, last=end is None)
        if end is not None:
            yield stage.release()

    def _no_rows(self, stage: Stages, cluster: str | None) -> dict[str, Rows]:
        """The rows that are fed of tables without any in a lot."""
        builder = self._builder
        none = {name: builder.finished(name, []) for name in stage.tables if name in builder.columns}
        if "api_versions" in none:
            offered = {"api_versions": builder.offered.table(builder.brokers)}
            none |= rows_of_cluster(offered, cluster)
        return {name: Rows.of(None if name in self.coded else table) for name, table in none.items()}

    def _read_piece(self, staged: Cell) -> tuple[str, Any]:
        """Rows of a lot, and which these are."""
        if staged.table == READ_ASIDE:
            return staged.table, unpack_fetches(staged.data, staged.origin)
        if staged.table in self.coded:
            known = unpack_rows(staged.data)
            if staged.table in TELLING:
                known = known.with_columns({ORIGIN: np.full(known.num_rows, staged.origin, np.int64)})
            if staged.table == MADE_LATER:
                return staged.table, Later(lambda: [known], known.num_rows)
            return staged.table, known
        piece, name = read_cell(staged.data), "exchanges" if staged.table == FEW else staged.table
        if name in TELLING:
            piece = piece.append_column(ORIGIN, pa.array(np.full(piece.num_rows, staged.origin, np.int32)))
        return name, piece

    def _resolved(
        self, none: Mapping[str, Rows], parts: Mapping[str, Sequence[Any]]
    ) -> tuple[dict[str, Rows], dict[tuple[int, int], pa.Table], list[NamedFetches]]:
        """Rows, messages and fetches that were read aside, with all names."""
        tables = dict(none)
        messages: dict[tuple[int, int], pa.Table] = {}
        builder, coded = self._builder, {name: parts[name] for name in self.coded & parts.keys()}
        codes, fetches = resolve_coded(builder, coded, self.vocabulary)
        tables |= {name: order_rows(name, known) for name, known in codes.items()}
        for name, pieces in parts.items():
            if name in coded:
                continue
            whole = builder.resolve(name, join_tables(pieces))
            if name in SCHEMAS:
                tables[name] = order_rows(name, Rows.of(whole))
            else:
                messages[message_kind(name)] = whole
        return tables, messages, fetches


def _staged(tables: Mapping[str, pa.Table], plan: Plan, broker: str) -> Iterator[pa.RecordBatch]:
    """Pieces of the tables asked for, and what findings read of them. Rows of `exchanges` were never here."""
    for name, table in tables.items():
        if name not in MADE or name == "exchanges" or not table.num_rows:
            continue
        if ORIGIN in table.column_names:
            table = table.drop_columns([ORIGIN])
        if name in plan.tables or any(name in summed_in(one) for one in SUMMED.keys() & plan.tables.keys()):
            yield from _pieces(name, table, broker)
        if "findings" in plan.tables and name in FOUND_IN:
            yield from evidence_of(name, table, plan)


def evidence_of(name: str, table: pa.Table, plan: Plan) -> Iterator[pa.RecordBatch]:
    """Those rows of a table that findings can depend on, resolved, as staged rows, one in each batch."""
    read = {*FINDINGS.tables[name], *sort_columns(name)}
    part = table.select([column for column in table.column_names if column in read])
    counts = SecondCounts()
    counts.add_rows(name, part)
    if counts.clusters:
        yield rows([Cell(COUNTED, cluster or "", b"", at, count) for cluster, at, count in counts.counted()])
    yield from _by_cluster(name, select_evidence(name, part, limits(plan.settings.slow)))


def _by_cluster(name: str, table: pa.Table) -> Iterator[pa.RecordBatch]:
    """Staged rows of evidence, each of one cluster (`broker`), one in each batch."""
    for cluster, part in _clusters(table):
        for begin, end in cut(part):
            yield rows([Cell(EVIDENCE + name, cluster or "", cell(part.slice(begin, end - begin)))])


def _clusters(table: pa.Table) -> list[tuple[str | None, pa.Table]]:
    """The rows of each cluster that some rows have."""
    return [(cluster, part["_"]) for cluster, part in split_by_cluster({"_": table}) if part["_"].num_rows]


Searched = Mapping[str | None, tuple[int, ...]]
"""Cluster -> where it is cut into spans (`findings.spans`)."""


def searched(counted: Iterable[tuple[str, int, int]], names: Names) -> Searched:
    """The clusters in which findings are looked for by themselves. Rows without a cluster are of the only one that is
    known. `counted`: cluster, second, and how many rows are of it; with 0 the cluster has evidence, and no more."""
    counts = SecondCounts()
    found: set[str | None] = set()
    by_cluster: dict[str | None, list[tuple[int, int]]] = {}
    for cluster, second, count in counted:
        found.add(cluster or None)
        if count:
            by_cluster.setdefault(cluster or None, []).append((second, count))
    for name, seconds in by_cluster.items():
        counts.add(name, *np.array(seconds, np.int64).T)
    for table in (names.leaders.table(names.topics), names.topics.table()):
        found.update(table[CLUSTER.name].unique().to_pylist())
    every = known_clusters(found)
    return {cluster: counts.cuts(cluster, len(every) == 1) for cluster in every}


def deal_evidence(batches: Iterable[pa.RecordBatch], clusters: Searched) -> Iterator[pa.RecordBatch]:
    """Staged rows of evidence with their span's number as `lot`. Where one cluster is searched alone, `broker` is
    empty."""
    alone = len(clusters) == 1
    for one in cells_of(batches):
        if one.table == COUNTED:
            continue
        cuts = next(iter(clusters.values())) if alone else clusters[one.broker or None]
        cluster = "" if alone else one.broker
        name, table = one.table.removeprefix(EVIDENCE), read_cell(one.data)
        if not cuts or any(name in finder.rows for finder in BY_SPAN):
            for number, piece in deal_rows(name, table, cuts):
                yield rows([one._replace(broker=cluster, data=cell(piece), lot=number)])
        every = gather_at_once(name, [table]) if cuts else None
        if every is not None and every.num_rows:
            yield rows([one._replace(broker=cluster, data=cell(every), lot=ALL_AT_ONCE)])


def evidence(batches: Iterable[pa.RecordBatch], name: str, plan: Plan, names: Names) -> Iterator[pa.RecordBatch]:
    """Staged rows of a table (`resolved_rows`) to those of its evidence."""
    for table in resolved_rows(batches, name, plan, names):
        yield from evidence_of(name, table, plan)


def sift(batches: Iterable[pa.RecordBatch], plan: Plan, names: Names) -> Iterator[pa.RecordBatch]:
    """Staged rows of `offset_commits` and of the tables in DECODED to staged rows of their evidence."""
    builder = names.builder(plan)
    for name, table in join_cells(cells_of(batches)):
        yield from evidence_of(name, names.resolved(builder, name, table), plan)


def sift_sent(batches: Iterable[pa.RecordBatch], plan: Plan, names: Names) -> Iterator[pa.RecordBatch]:
    """Staged rows of SENT, all of some partitions, to staged rows of the evidence of `producers`."""
    yield from evidence_of("producers", _producers(_resolved(batches, plan, names), names), plan)


def filled(
    batches: Iterable[pa.RecordBatch], columns: Sequence[str], plan: Plan, names: Names
) -> Iterator[pa.RecordBatch]:
    """Staged rows of `exchanges`, and of what was found out about them, to staged rows of `exchanges` with these
    columns, and those that rows are ordered by."""
    read = {*columns, *sort_columns("exchanges")}
    for table in resolved_rows(batches, "exchanges", plan, names):
        yield from _pieces("exchanges", table.select([one for one in table.column_names if one in read]))


def _pieces(name: str, table: pa.Table, broker: str = "") -> Iterator[pa.RecordBatch]:
    for begin, end in cut(table):
        yield rows([Cell(name, broker, cell(table.slice(begin, end - begin)))])


def find_findings(
    batches: Iterable[pa.RecordBatch], plan: Plan, names: Names, quality: pa.Table | None, clusters: Searched
) -> Iterator[pa.RecordBatch]:
    """Rows of `deal_evidence`, in order of `broker` and `lot`, those of a span together, to staged rows with the
    findings of each span of each cluster. `quality`: the table `capture_quality`."""
    alone = len(clusters) == 1
    learned = {"leaders": names.leaders.table(names.topics), "topics": names.topics.table()}
    apart = {name: dict(_clusters(table)) for name, table in learned.items()}
    for (text, span), cells in groupby(cells_of(batches), lambda one: (one.broker, one.lot)):
        cluster = next(iter(clusters)) if alone else text or None
        cuts = clusters[cluster]
        parts: dict[str, list[pa.Table]] = {}
        count = 0
        for one in cells:
            piece = read_cell(one.data)
            count += piece.num_rows
            if span == ALL_AT_ONCE or count <= MOST_ROWS:
                parts.setdefault(one.table.removeprefix(EVIDENCE), []).append(piece)
            if span == ALL_AT_ONCE and count > GATHERED:
                parts = {name: [every] for name, some in parts.items() if (every := gather_at_once(name, some))}
                count = 0
        tables = {} if quality is None else {"capture_quality": quality}
        for name in list(parts):  # one copy at a time
            tables[name] = order(name, join_tables(parts.pop(name)))
        for name, table in learned.items():
            mine = table if alone else apart[name].get(cluster, table.slice(0, 0))
            tables[name] = mine if span == ALL_AT_ONCE else rows_in_span(name, mine, cuts, span)
        by = AT_ONCE if span == ALL_AT_ONCE else BY_SPAN if cuts else None
        made = find_in_cluster(tables, cluster, alone, limits(plan.settings.slow), by)
        if count > MOST_ROWS:
            made.failed.append(leave_out(count))
        yield rows([note(FOUND_THERE, (cluster, span, made, get(tables, "connections").select(list(COLUMNS))))])


def conclude(batches: Iterable[pa.RecordBatch], plan: Plan, clusters: Searched) -> Iterator[pa.RecordBatch]:
    """Staged rows that `find_findings` made of all clusters to rows of `findings`."""
    told = [pickle.loads(one.data) for one in cells_of(batches)]
    told.sort(key=lambda one: (one[0] is None, one[0] or "", one[1]))
    spans: dict[str | None, dict[int, FoundInCluster]] = {}
    connections: dict[str | None, pa.Table] = {}
    for cluster, span, made, table in told:
        spans.setdefault(cluster, {})[span] = made
        connections.setdefault(cluster, table)  # ALL_AT_ONCE comes first
    every = pa.concat_tables(connections.values()) if told else SCHEMAS["connections"].empty_table()
    joined = [_join_found(some, len(clusters[cluster]) + 1) for cluster, some in spans.items()]
    found = put_together(joined, connections, every)
    for detail in found.problems["detail"].to_pylist():
        log.error("%s", detail)  # `problems` was written from the decoded rows by now
    schema = SCHEMAS["findings"].remove_metadata()
    yield from conform_to_schema(found.findings, schema).select(plan.tables["findings"]).to_batches()


def _join_found(spans: dict[int, FoundInCluster], count: int) -> FoundInCluster:
    """The findings of a cluster that was searched in so many spans."""
    if count == 1:
        return spans[0]
    at_once = spans.pop(ALL_AT_ONCE, FoundInCluster([], [], []))
    return join_spans(list(spans.values()), count, at_once)


def sum_up(batches: Iterable[pa.RecordBatch], name: str, plan: Plan, names: Names) -> Iterator[pa.RecordBatch]:
    """Staged rows of all tables that a table in SUMMED reads to its rows."""
    parts = _resolved(batches, plan, names)
    tables = order_parts(parts, SUMMED[name])
    yield from (
        conform_to_schema(MAKERS[name](tables), SCHEMAS[name].remove_metadata()).select(plan.tables[name]).to_batches()
    )


def count_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Staged rows of `record_batches` to such rows without data: their first instant as `at`, their number as `lot`."""
    for one in cells_of(batches):
        table = read_cell(one.data)
        at = pc.min(table[TIME_KEY]).as_py()
        yield rows([one._replace(data=b"", at=ALWAYS if at is None else at, lot=table.num_rows)])


def end_of_first(cells: Iterable[tuple[int, int]]) -> int | None:
    """The instant up to which deliveries are made for findings; None for all. `cells`: `at` and `lot` of what
    `count_batches` gives."""
    count = 0
    for at, size in sorted(cells):
        if count >= FIRST_BATCHES:
            return at
        count += size
    return None


def keep_until(batches: Iterable[pa.RecordBatch], until: int | None) -> Iterator[pa.RecordBatch]:
    """What deliveries read of those staged rows whose request began until this instant (microseconds, None: all). One
    task has all of them."""
    for name, table in join_cells(cells_of(batches)):
        if until is not None and TIME_KEY in table.column_names:
            table = table.filter(pc.less_equal(table[TIME_KEY], until))
        columns = READ[name].union(GROUPED if name == "connections" else ())
        yield from _pieces(name, narrow_rows(name, table, columns, carrying=True))


def deliver(batches: Iterable[pa.RecordBatch], plan: Plan, names: Names) -> Iterator[pa.RecordBatch]:
    """Staged rows, as they were decoded, of tables that deliveries are made of to staged rows of the evidence of
    `deliveries`."""
    first = FirstRows()
    tables = {name: join_tables(pieces) for name, pieces in _resolved(batches, plan, names).items()}
    first.add_rows(tables)
    for name, table in tables.items():
        first.add(name, table)
    yield from delivered(first)


def delivered(first: FirstRows) -> Iterator[pa.RecordBatch]:
    """Staged rows of the evidence of `deliveries`."""
    return _by_cluster("deliveries", first.deliveries())


def follow(batches: Iterable[pa.RecordBatch], plan: Plan, names: Names) -> Iterator[pa.RecordBatch]:
    """Staged rows of SENT, all of some partitions, to rows of `producers`."""
    made = _producers(_resolved(batches, plan, names), names)
    yield from (
        conform_to_schema(made, SCHEMAS["producers"].remove_metadata()).select(plan.tables["producers"]).to_batches()
    )


def _producers(parts: Mapping[str, list[pa.Table]], names: Names) -> pa.Table:
    if not parts.get(SENT):
        return SCHEMAS["producers"].empty_table()
    return producers_table(join_tables(parts[SENT]), names.topics)


def _resolved(batches: Iterable[pa.RecordBatch], plan: Plan, names: Names) -> dict[str, list[pa.Table]]:
    """Staged rows by table, with names resolved."""
    builder = names.builder(plan)
    parts: dict[str, list[pa.Table]] = {}
    for one in cells_of(batches):
        table = read_cell(one.data)
        if not one.table.startswith(EVIDENCE):
            table = names.resolved(builder, one.table, table)
        parts.setdefault(one.table, []).append(table)
    return parts

"""Findings: what stands out in a capture, each a sentence with the query that shows its evidence.

`findings(tables)` runs every finder over the tables of the contract. A finder is a function over tables that states
which of their rows it looks at (`finders.py`); `FINDERS` lists them. Thresholds are constants next to the finders that
use them. `count` and `first_exchange_id` come from running `filter` over `table`. A finder that raises is a row of
`problems` and takes nothing else with it.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from kdissect.analysis.cluster_split import WHOLE, split_known_clusters
from kdissect.analysis.findings import finders
from kdissect.analysis.findings.evidence import MOST_OF_A_KIND, SEVERITIES, Finding, Tables, both, equals, get
from kdissect.analysis.findings.finders import LIFETIMES, Finder, Seen
from kdissect.analysis.findings.incidents import numbered
from kdissect.analysis.findings.limits import LIMITS, Limits, limits
from kdissect.analysis.findings.next_captures import state_certainty
from kdissect.analysis.findings.row_filters import FEW
from kdissect.analysis.findings.rules import (
    absence_findings,
    access_findings,
    broker_findings,
    codec_findings,
    connection_findings,
    consumer_findings,
    error_findings,
    group_findings,
    leader_findings,
    producer_findings,
    reset_findings,
    session_findings,
    silence_findings,
    transaction_findings,
    window_findings,
)
from kdissect.analysis.findings.rules.journeys import delivery_findings
from kdissect.analysis.findings.spans import cuts_of, rows_in_span
from kdissect.arrays.dictionaries import join_tables
from kdissect.problems import KdissectError, Kind
from kdissect.tables.declaration import SCHEMAS
from kdissect.tables.declaration.model import CLUSTER, By
from kdissect.tables.makers import fills

FINDERS: tuple[Finder, ...] = (
    *silence_findings.FINDERS,
    *absence_findings.FINDERS,
    *broker_findings.FINDERS,
    *access_findings.FINDERS,
    *transaction_findings.FINDERS,
    *group_findings.FINDERS,
    *consumer_findings.FINDERS,
    *delivery_findings.FINDERS,
    *leader_findings.FINDERS,
    *error_findings.FINDERS,
    *session_findings.FINDERS,
    *producer_findings.FINDERS,
    *codec_findings.FINDERS,
    *connection_findings.FINDERS,
    *reset_findings.FINDERS,
    *window_findings.FINDERS,
)
AT_ONCE: tuple[Finder, ...] = tuple(
    one
    for one in FINDERS
    if all(name in LIFETIMES or (filters and FEW.issuperset(filters)) for name, filters in one.rows.items())
)
"""Those that see all rows at once in a large capture, too: rows of no instant, or few ones."""
BY_SPAN: tuple[Finder, ...] = tuple(one for one in FINDERS if one not in AT_ONCE)
"""Those that see span after span of it."""
GATHERED = 1 << 18
"""Rows that are gathered before those are let go that no finder looks at."""
INSTANT = re.compile(r"'\d{4,}-\d\d-\d\dT[^']*'")
"""An instant in a filter."""
UNCOUNTED = frozenset({"request_failed", "request_refused", "passing_error", "unsupported_version"})
"""Of these there are as many as there are error codes."""


def of_topics(table: pa.Table, topics: Sequence[str]) -> pa.Table:
    """Of a table that names topics, the rows of these topics; all, if none are named."""
    if not topics or "topic" not in table.schema.names:
        return table
    return table.filter(pc.is_in(table["topic"].cast(pa.string()), value_set=pa.array(topics)))


def select_evidence(
    name: str, table: pa.Table, thresholds: Limits = LIMITS, by: tuple[Finder, ...] = FINDERS
) -> pa.Table:
    """The rows of a table, or of a part of one, that any of these finders looks at: the same findings come out of
    them."""
    return finders.select_evidence(by, name, table, thresholds)


def gather_at_once(name: str, parts: Iterable[pa.Table], thresholds: Limits = LIMITS) -> pa.Table | None:
    """Of parts of a table the rows that are looked at all at once; None for no parts, or where none are."""
    if all(name not in one.rows for one in AT_ONCE):
        return None
    kept: list[pa.Table] = []
    count = 0
    for part in parts:
        kept.append(select_evidence(name, part, thresholds, AT_ONCE))
        count += kept[-1].num_rows
        if count > GATHERED:
            kept = [select_evidence(name, join_tables(kept), thresholds, AT_ONCE)]
            count = 0
    return join_tables(kept) if kept else None


class Found(NamedTuple):
    """Findings, and finders that failed."""

    findings: pa.Table
    """The table `findings`, worst first, then in order of `FINDERS`."""
    problems: pa.Table
    """Rows of `problems` of kind `finder_failed`, one for each finder that raised; the others' findings are there."""


def findings(tables: Tables, thresholds: Limits = LIMITS) -> Found:
    """The findings in these tables; missing ones count as empty. Large ones are looked at in spans (`spans.py`), where
    `exchanges` have the time that they are ordered by. `thresholds`: those that people set."""
    parts = split_known_clusters(tables)
    made = [_find_in_part(part, cluster, len(parts) == 1, thresholds) for cluster, part in parts]
    return put_together(
        made, {cluster: get(part, "connections") for cluster, part in parts}, get(tables, "connections")
    )


class FoundInCluster(NamedTuple):
    """What the finders give of one cluster, or of a span of its time."""

    findings: list[Finding]
    """In order of `FINDERS`, without incidents."""
    finders: list[int]
    """Which of `FINDERS` has found each."""
    failed: list[dict[str, str]]
    """Rows of `problems`."""


def find_in_cluster(
    tables: Tables,
    cluster: str | None,
    only_cluster: bool,
    thresholds: Limits = LIMITS,
    by: Sequence[Finder] | None = None,
) -> FoundInCluster:
    """The findings in the tables of one cluster. `only_cluster`: no others have rows. `by`: these finders look; all, if
    none are given."""
    found: list[Finding] = []
    finders: list[int] = []
    failed: list[dict[str, str]] = []
    seen = Seen(tables, thresholds, FINDERS if by is None else by)
    for number, finder in enumerate(FINDERS):
        if by is not None and finder not in by:
            continue
        try:
            found += [_of_cluster(one, cluster, only_cluster) for one in seen.find(finder)]
        except (KdissectError, MemoryError):
            raise
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            detail = f"finder {finder.name} failed ({why}); the others' findings are there"
            failed.append({"kind": Kind.FINDER_FAILED.name.lower(), "where": finder.name, "detail": detail})
        finders += [number] * (len(found) - len(finders))
    return FoundInCluster(found, finders, failed)


def _find_in_part(tables: Tables, cluster: str | None, only_cluster: bool, thresholds: Limits) -> FoundInCluster:
    """The same, large tables span by span."""
    cuts = cuts_of(tables, cluster)
    spans = (
        {name: rows_in_span(name, table, cuts, number) for name, table in tables.items()}
        for number in range(len(cuts) + 1)
    )
    return find_in_spans(spans, len(cuts) + 1, tables, cluster, only_cluster, thresholds)


def find_in_spans(
    spans: Iterable[Tables],
    count: int,
    all_at_once: Tables,
    cluster: str | None,
    only_cluster: bool,
    thresholds: Limits = LIMITS,
) -> FoundInCluster:
    """The findings of a cluster in so many spans of its time, one after the other. `all_at_once`: the
    tables that are looked at so."""
    if count == 1:
        (tables,) = spans
        return find_in_cluster(tables, cluster, only_cluster, thresholds)

    def find_by(finders: Sequence[Finder], tables: Tables) -> FoundInCluster:
        return find_in_cluster(tables, cluster, only_cluster, thresholds, finders)

    made = list(map(partial(find_by, BY_SPAN), spans))  # each is let go of before the next one is made
    return join_spans(made, count, find_by(AT_ONCE, all_at_once))


def join_spans(spans: Sequence[FoundInCluster], count: int, at_once: FoundInCluster) -> FoundInCluster:
    """The findings of one cluster, out of those of its `count` spans, and of what was looked at all at once. Spans
    without findings may be left out.

    Where several spans have findings about one subject those of the worst span stand, by severity, then by evidence.
    They have the first and the last instant of all of them, and their evidence together, but where filters name
    instants: these select the evidence of the worst span.
    """
    every: dict[tuple[object, ...], list[list[tuple[Finding, int]]]] = {}
    for span in spans:
        said: dict[tuple[object, ...], list[tuple[Finding, int]]] = {}
        for one, finder in zip(span.findings, span.finders, strict=True):
            about = one.broker, one.client_id, one.group_id, one.topic, one.partition, one.transactional_id
            shown = INSTANT.sub("", one.filter)  # those of a span may begin and end with it
            said.setdefault((one.id, one.table, shown, *about), []).append((one, finder))
        for subject, some in said.items():
            every.setdefault(subject, []).append(some)
    told = list(zip(at_once.findings, at_once.finders, strict=True))
    for several in every.values():
        told += [(_combined(one, several, count), finder) for one, finder in min(several, key=_rank)]
    told.sort(key=lambda some: (some[1], _rank([some])))
    failed = {row["where"]: row for span in (*spans, at_once) for row in span.failed}
    return FoundInCluster([one for one, _ in told], [finder for _, finder in told], list(failed.values()))


def _combined(worst: Finding, several: Sequence[Sequence[tuple[Finding, int]]], spans: int) -> Finding:
    """The worst finding about a subject, with what other spans say of it."""
    if len(several) == 1:
        return worst
    text = f"{worst.text} This was so in {len(several)} of {spans} spans of time; the figures are of the worst one."
    every = [one for some in several for one, _ in some]
    if any(one.filter != worst.filter for one in every):
        return worst._replace(text=text)
    first = [one.first_at for one in every if one.first_at is not None]
    last = [one.last_at for one in every if one.last_at is not None]
    again = max if worst.table in LIFETIMES else sum  # the same rows stand in several spans
    earliest = min(every, key=lambda one: (one.first_at is None, one.first_at or 0))
    return worst._replace(
        text=text,
        count=again(one.count for one in every),
        first_exchange_id=earliest.first_exchange_id or worst.first_exchange_id,
        first_at=min(first, default=None),
        last_at=max(last, default=None),
    )


def _rank(some: Sequence[tuple[Finding, int]]) -> tuple[int, int]:
    return min((SEVERITIES.index(one.severity), -one.count) for one, _ in some)


def put_together(parts: Sequence[FoundInCluster], connections: Mapping[str | None, pa.Table], every: pa.Table) -> Found:
    """The findings of all clusters, with their incidents. `connections`: of each cluster; `every`: of all."""
    # What is about captures is found in every part.
    found = list(dict.fromkeys(one for part in parts for one in part.findings))
    found.sort(key=lambda one: SEVERITIES.index(one.severity))  # stable: rankings keep their order
    kept: list[Finding] = []
    count_of: dict[tuple[str | None, str], int] = {}
    for one in found:
        kind = one.cluster, one.id
        count_of[kind] = count_of.get(kind, 0) + 1
        if one.id in UNCOUNTED or count_of[kind] <= MOST_OF_A_KIND:
            kept.append(one)
    kept = [state_certainty(one, connections.get(one.cluster, every)) for one in numbered(kept)]
    schema = SCHEMAS["findings"]
    table = pa.Table.from_arrays(
        [pa.array([_cell(one, name) for one in kept], schema.field(name).type) for name in schema.names],
        schema=schema,
    )
    failed = [row for part in parts for row in part.failed]
    return Found(table, pa.Table.from_pylist(failed, SCHEMAS["problems"]))


def _of_cluster(finding: Finding, cluster: str | None, only_cluster: bool) -> Finding:
    """A finding with the cluster that its evidence is of. Where other parts of the tables have rows, too, its filter
    names their cluster."""
    if finding.table in WHOLE:
        return finding
    if only_cluster:
        return finding._replace(cluster=cluster)
    own = f"({finding.filter})" if " or " in finding.filter.lower() else finding.filter
    return finding._replace(cluster=cluster, filter=both(own, equals(CLUSTER.name, cluster)))


def _cell(finding: Finding, name: str) -> object:
    value = getattr(finding, name)
    return value[:1].upper() + value[1:] if name == "text" else value


fills(By.FINDINGS, lambda: {"findings": Finding._fields})

__all__ = [
    "AT_ONCE",
    "BY_SPAN",
    "FINDERS",
    "LIMITS",
    "Finding",
    "Found",
    "FoundInCluster",
    "Limits",
    "find_in_cluster",
    "find_in_spans",
    "findings",
    "gather_at_once",
    "join_spans",
    "limits",
    "put_together",
    "select_evidence",
]  # fmt: skip

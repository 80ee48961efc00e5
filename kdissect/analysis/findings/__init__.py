"""Findings: what stands out in a capture, each a sentence with the query that shows its evidence.

`findings(tables)` runs every finder over the tables of the contract. A finder is a function over tables that states
which of their rows it looks at (`finders.py`); `FINDERS` lists them. Thresholds are constants next to the finders that
use them. `count` and `first_exchange_id` come from running `filter` over `table`. A finder that raises is a row of
`problems` and takes nothing else with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from kdissect.analysis.cluster_split import WHOLE, split_known_clusters
from kdissect.analysis.findings import finders
from kdissect.analysis.findings.evidence import SEVERITIES, Finding, Tables, both, equals, get
from kdissect.analysis.findings.finders import Finder, Seen
from kdissect.analysis.findings.incidents import numbered
from kdissect.analysis.findings.limits import LIMITS, Limits, limits
from kdissect.analysis.findings.next_captures import state_certainty
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
from kdissect.problems import KdissectError, Kind
from kdissect.tables.declaration import SCHEMAS
from kdissect.tables.declaration.model import CLUSTER, TIME_KEY, By
from kdissect.tables.makers import fills
from kdissect.tables.order import sort_columns

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
OF_REQUESTS: tuple[Finder, ...] = tuple(
    one for one in FINDERS if all(name == "topics" or TIME_KEY in sort_columns(name) for name in one.rows)
)
"""Those that look at nothing but rows of requests, and names: true of any span of time by itself."""
MOST_OF_A_KIND = 20
"""Findings of one kind that are listed; the worst stand first and the others say the same of smaller cases."""
UNCOUNTED = frozenset({"request_failed", "request_refused", "passing_error", "unsupported_version"})
"""Of these there are as many as there are error codes."""


def of_topics(table: pa.Table, topics: Sequence[str]) -> pa.Table:
    """Of a table that names topics, the rows of these topics; all, if none are named."""
    if not topics or "topic" not in table.schema.names:
        return table
    return table.filter(pc.is_in(table["topic"].cast(pa.string()), value_set=pa.array(topics)))


def select_evidence(name: str, table: pa.Table, thresholds: Limits = LIMITS) -> pa.Table:
    """The rows of a table, or of a part of one, that any finder looks at: the same findings come out of them."""
    return finders.select_evidence(FINDERS, name, table, thresholds)


class Found(NamedTuple):
    """Findings, and finders that failed."""

    findings: pa.Table
    """The table `findings`, worst first, then in order of `FINDERS`."""
    problems: pa.Table
    """Rows of `problems` of kind `finder_failed`, one for each finder that raised; the others' findings are there."""


def findings(tables: Tables, thresholds: Limits = LIMITS) -> Found:
    """The findings in these tables; missing ones count as empty. `thresholds`: those that people set."""
    parts = split_known_clusters(tables)
    made = [find_in_cluster(part, cluster, len(parts) == 1, thresholds) for cluster, part in parts]
    return put_together(
        made, {cluster: get(part, "connections") for cluster, part in parts}, get(tables, "connections")
    )


class FoundInCluster(NamedTuple):
    """What the finders give of one cluster."""

    findings: list[Finding]
    """In order of `FINDERS`, without incidents."""
    failed: list[dict[str, str]]
    """Rows of `problems`."""


def find_in_cluster(
    tables: Tables,
    cluster: str | None,
    only_cluster: bool,
    thresholds: Limits = LIMITS,
    by: Sequence[Finder] | None = None,
) -> FoundInCluster:
    """The findings in the tables of one cluster. `only_cluster`: no others have rows. `by`: these finders look;
    all, if none are given."""
    found: list[Finding] = []
    failed: list[dict[str, str]] = []
    seen = Seen(tables, thresholds)
    for finder in FINDERS if by is None else by:
        try:
            found += [_of_cluster(one, cluster, only_cluster) for one in seen.find(finder)]
        except (KdissectError, MemoryError):
            raise
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            detail = f"finder {finder.name} failed ({why}); the others' findings are there"
            failed.append({"kind": Kind.FINDER_FAILED.name.lower(), "where": finder.name, "detail": detail})
    return FoundInCluster(found, failed)


def join_spans(spans: Sequence[FoundInCluster]) -> FoundInCluster:
    """The findings of one cluster, out of those of spans of time that follow each other. If several spans have findings
    about one subject, those of the worst span stand: by severity, then by evidence."""
    worst: dict[tuple[object, ...], list[Finding]] = {}
    for span in spans:
        said: dict[tuple[object, ...], list[Finding]] = {}
        for one in span.findings:
            about = one.broker, one.client_id, one.group_id, one.topic, one.partition, one.transactional_id
            said.setdefault((one.id, one.table, one.filter, *about), []).append(one)
        for subject, some in said.items():
            worst[subject] = min(worst.get(subject, some), some, key=_rank)
    told = [one for some in worst.values() for one in some]
    return FoundInCluster(told, [row for span in spans for row in span.failed])


def _rank(some: Sequence[Finding]) -> tuple[int, int]:
    return min((SEVERITIES.index(one.severity), -one.count) for one in some)


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
    "FINDERS", "LIMITS", "Finding", "Found", "FoundInCluster", "Limits", "find_in_cluster", "findings", "limits",
    "put_together", "select_evidence",
]  # fmt: skip

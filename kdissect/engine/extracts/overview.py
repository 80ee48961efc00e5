"""The first screen's data in one pass: `Capture.summary`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

import pyarrow as pa

from kdissect.analysis.deliveries.delivery_summary import summarise
from kdissect.analysis.findings import findings, limits
from kdissect.arrays.dictionaries import unified
from kdissect.capture import CaptureSet
from kdissect.engine.analysed_run import AnalysedRun, LateNames
from kdissect.engine.bounds.spare_memory import Spare
from kdissect.engine.saving.evidence_rows import Evidence
from kdissect.engine.settings import Settings
from kdissect.summary import Summarizer, Summary
from kdissect.summary.model import DeliveryLine
from kdissect.summary.spending import Spending
from kdissect.summary.topic_traffic_lines import READS, TopicTraffic
from kdissect.tables.declaration import TABLES
from kdissect.tables.declaration.model import EXCHANGE_KEYS
from kdissect.tables.declaration.readers import BUDGET, FIRST_SCREEN, FIRST_SCREEN_COUNTS

HELD_BACK = 120_000
"""Rows held back until names are known, those of the first record batches among them: some tens of MB. Of a smaller
capture every name is known."""
EVIDENCE = 150_000
"""Rows that findings are looked for in (exchanges in which something stands out, fetches and partitions), and
connections: some 30 MB. What comes after them in a larger capture is counted everywhere else on the screen; the table
`findings` looks at everything."""

Made = TypeVar("Made")


class Names:
    """Names of brokers and topics for a run over captures, whose rows are counted by them as they come.

    Where a later message has another name, counting starts again with those that are known by then, because mostly one
    message has all of them. Where that happens again, the captures are read for names alone before. A pipe is read
    once: its rows have the names that were known by then.
    """

    def __init__(self, captures: Sequence[CaptureSet], settings: Settings) -> None:
        self._captures, self._settings = captures, settings
        self._again = all(capture.regular for capture in captures)
        self._known: AnalysedRun | None = None

    def read_named(self, work: Callable[[Names], Made]) -> Made:
        """The result of `work`, which reads by `parts`, with the right names."""
        with suppress(LateNames):
            return work(self)
        with suppress(LateNames):
            return work(self)
        run = AnalysedRun(self._captures, {"connections": ["broker"], "topics": ["topic_id", "topic"]}, self._settings)
        for _ in run.run.rows():
            pass
        self._known, self._again = run, False
        return work(self)

    def parts(self, run: AnalysedRun, replicas: bool = False) -> Iterator[dict[str, pa.Table]]:
        """`AnalysedRun.parts` of a run that `work` has started; HELD_BACK rows are read before the first one comes.
        `replicas`: how many topics have matters too."""
        if self._known is not None:
            run.builder.brokers.merge(self._known.builder.brokers)
            run.builder.topics.merge(self._known.builder.topics)
        if self._again:
            run.builder.note_names(replicas)
            self._known = run
        yield from run.parts(HELD_BACK)


def overview(captures: Sequence[CaptureSet], settings: Settings, by: str) -> Summary:
    """The summary of captures; `by` groups its latencies. Memory is bounded by the constants above."""
    return Names(captures, settings).read_named(lambda names: _overview(captures, settings, by, names))


def _overview(captures: Sequence[CaptureSet], settings: Settings, by: str, names: Names) -> Summary:
    gathered = Summarizer(by)
    wanted = {name: list(columns) for name, columns in FIRST_SCREEN.tables.items()}
    settings = replace(settings, reading=settings.reading._replace(most_sent=EVIDENCE))
    counted = {**wanted, "exchanges": list(FIRST_SCREEN_COUNTS.tables["exchanges"])}
    run = AnalysedRun(captures, _together(wanted, READS, BUDGET.tables, counted), settings)
    run.run.together = True
    evidence, spare = Evidence(EVIDENCE, settings.slow), Spare(0.2)
    spending = Spending()
    traffic = TopicTraffic()
    still_read: dict[str, list[str]] = {}
    for part in names.parts(run):
        for name in wanted:
            if name in part and TABLES[name].progressive and part[name].num_rows:
                by_keys = name in run.builder.unnamed
                columns = [*counted[name], *EXCHANGE_KEYS] if by_keys else wanted[name]
                rows = run.builder.resolve(name, part[name].select(columns))
                for batch in unified(rows).combine_chunks().to_batches():
                    if by_keys:
                        gathered.count(batch)
                    else:
                        gathered.feed(name, batch)
        spending.add_rows(part)
        traffic.add_rows({name: run.builder.resolve(name, part[name]) for name in READS.keys() & part.keys()})
        for sums in run.sums:
            traffic.add(sums)
        evidence.take(part)
        spare.give_back()
        still = counted if spending.full else _together(wanted, BUDGET.tables)
        if evidence.full and still_read != still:
            still_read = still
            evidence.first.end()
            run.narrow(still, READS)
    for name, piece in run.books.pieces_at_the_end():
        table = run.builder.finished(name, [piece])
        for batch in table.to_batches():
            gathered.feed(name, batch)
        evidence.add(name, table)
        spending.add_rows({name: table})
    tables = evidence.tables(settings.topics)
    gathered.feed_found(findings(tables, limits(settings.slow)))
    summary = gathered.finish(None if evidence.whole else evidence.exchanges)
    summary = summary._replace(
        topics=traffic.lines(), deliveries=_delivery_lines(tables["deliveries"]),
        deliveries_of=None if evidence.first.whole else evidence.first.batches,
    )  # fmt: skip
    # Of clients, brokers or topics that were asked for, others' exchanges are missing: who stood still would not show.
    return summary if settings.selection else summary._replace(budget=spending.of(summary))


def _together(*readers: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Tables and columns that any of these read."""
    read: dict[str, list[str]] = {}
    for tables in readers:
        for name, columns in tables.items():
            read[name] = list(dict.fromkeys([*read.get(name, ()), *columns]))
    return read


def _delivery_lines(deliveries: pa.Table) -> list[DeliveryLine]:
    """A line for each topic and consumer group (else client), the slowest first. `deliveries`: rows of the table."""
    rows = [row for row in summarise(deliveries).to_pylist() if not row["is_follower"] and row["p50_ms"] is not None]
    return [DeliveryLine(**{name: row[name] for name in DeliveryLine._fields}) for row in rows]

"""Findings and latencies of a capture of any size in one pass: rows are looked at part by part and let go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from kdissect.analysis.findings import findings, limits
from kdissect.analysis.latency_counts import LatencyCounts
from kdissect.capture import CaptureSet
from kdissect.engine.analysed_run import AnalysedRun
from kdissect.engine.extracts.overview import EVIDENCE, HELD_BACK
from kdissect.engine.run import Settings
from kdissect.engine.saving.evidence_rows import Evidence
from kdissect.tables.declaration import SCHEMAS
from kdissect.tables.where import Filter


def found(captures: Sequence[CaptureSet], settings: Settings) -> tuple[AnalysedRun, pa.Table]:
    """The table `findings`, looked for in as many rows as the first screen looks at; what was not looked at is noted.
    The run is that which read."""
    settings = replace(settings, reading=replace(settings.reading, most_sent=EVIDENCE))
    run = AnalysedRun(captures, {"findings": SCHEMAS["findings"].names}, settings)
    evidence = Evidence(EVIDENCE, settings.slow)
    for part in run.parts(HELD_BACK):
        evidence.take(part)
    for name, piece in run.books.pieces_at_the_end():
        evidence.add(name, run.builder.finished(name, [piece]))
    if not evidence.whole:
        settings.limited.note(f"findings are those of the first {evidence.exchanges:,} exchanges")
    return run, findings(evidence.tables(settings.topics), limits(settings.slow))


def latencies(
    captures: Sequence[CaptureSet], settings: Settings, columns: Sequence[str], read: Mapping[str, Sequence[str]],
    every: float | None, where: Filter | None,
) -> pa.Table:  # fmt: skip
    """Latencies by these columns of `exchanges`; `read`: table -> columns that they are made of."""
    run = AnalysedRun(captures, read, settings)
    counts = LatencyCounts(columns, every)
    for part in run.parts(HELD_BACK):
        if "exchanges" not in part:
            continue
        exchanges = run.builder.finished("exchanges", [part["exchanges"]], where)
        counts.feed(exchanges, part["fetches"])
    return counts.table()

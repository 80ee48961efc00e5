"""Findings and latencies of a capture of any size in one pass: rows are looked at part by part and let go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa

from kdissect.analysis.latency_counts import LatencyCounts
from kdissect.capture import CaptureSet
from kdissect.engine.analysed_run import AnalysedRun
from kdissect.engine.bounds.spare_memory import Spare
from kdissect.engine.bounds.spool import Spool
from kdissect.engine.extracts.overview import Names
from kdissect.engine.saving.spooled_evidence import SpooledEvidence, searched_batches, with_evidence
from kdissect.engine.settings import Settings
from kdissect.output import scratch
from kdissect.report.session_rows import MOST_SESSIONS, READS, SessionRows
from kdissect.tables.declaration import SCHEMAS
from kdissect.tables.where import Filter

USUAL = 512_000_000
"""Bytes of memory that the bounds of what is gathered are made for; where more is allowed, more is kept."""


def find_findings(captures: Sequence[CaptureSet], settings: Settings) -> tuple[AnalysedRun, pa.Table]:
    """The table `findings`, looked for in all rows, which lie in a temporary file until then. Finders that failed are
    noted. The run is that which read."""
    with scratch() as folder, Spool(Path(folder)) as spool:
        return Names(captures, settings).read_named(lambda names: _find_findings(captures, settings, names, spool))


def _find_findings(
    captures: Sequence[CaptureSet], settings: Settings, names: Names, spool: Spool
) -> tuple[AnalysedRun, pa.Table]:
    run = AnalysedRun(captures, {"findings": SCHEMAS["findings"].names}, with_evidence(settings))
    evidence = SpooledEvidence(spool, settings.slow)
    for part in names.parts(run):
        evidence.add_rows(part)
    for name, piece in run.books.pieces_at_the_end():
        evidence.add(name, run.builder.finished(name, [piece]))
    looked = evidence.search(settings.topics)
    if run.builder.sent_in_part:
        settings.limited.note(searched_batches())
    for detail in looked.problems["detail"].to_pylist():
        settings.limited.note(detail)
    return run, looked.findings


def sessions(
    captures: Sequence[CaptureSet], settings: Settings, read: Mapping[str, Sequence[str]]
) -> tuple[SessionRows, pa.Table]:
    """The rows for figures of fetch sessions, and `share_sessions`; rows that were not kept are noted. `read`: tables
    and columns that they read."""
    return Names(captures, settings).read_named(lambda names: _sessions(captures, settings, read, names))


def _sessions(
    captures: Sequence[CaptureSet], settings: Settings, read: Mapping[str, Sequence[str]], names: Names
) -> tuple[SessionRows, pa.Table]:
    tables = {name: list(columns) for name, columns in read.items()}
    tables["fetches"] = list(dict.fromkeys([*tables["fetches"], *READS]))
    run = AnalysedRun(captures, tables, settings)
    most = MOST_SESSIONS * max(1, (settings.memory or 0) // USUAL)
    found, shares = SessionRows(most), SCHEMAS["share_sessions"].empty_table()
    exchanges, spare = (
        pa.table({"exchange_id": pa.array([], pa.string()), "request_frame": pa.array([], pa.int64())}),
        Spare(0.2),
    )
    for part in names.parts(run):
        named = {name: run.builder.resolve(name, part[name], plain=True) for name in tables if name in part}
        if "fetches" in named:
            found.add_rows(exchanges, named["fetches"], named.get("fetch_sessions"))
        elif "fetch_sessions" in named:
            found.add_rows(exchanges, SCHEMAS["fetches"].empty_table(), named["fetch_sessions"])
        if "share_sessions" in named and named["share_sessions"].num_rows:
            shares = run.builder.finished("share_sessions", [named["share_sessions"]])
        spare.give_back()
    if not found.whole:
        settings.limited.note(f"of {found.count:,} fetch sessions the first {most:,} were looked at")
    return found, shares


def latencies(
    captures: Sequence[CaptureSet], settings: Settings, columns: Sequence[str], read: Mapping[str, Sequence[str]],
    every: float | None, where: Filter | None,
) -> pa.Table:  # fmt: skip
    """Latencies by these columns of `exchanges`; `read`: table -> columns that they are made of."""
    return Names(captures, settings).read_named(
        lambda names: _latencies(captures, settings, columns, read, every, where, names)
    )


def _latencies(
    captures: Sequence[CaptureSet], settings: Settings, columns: Sequence[str], read: Mapping[str, Sequence[str]],
    every: float | None, where: Filter | None, names: Names,
) -> pa.Table:  # fmt: skip
    run = AnalysedRun(captures, read, settings)
    counts = LatencyCounts(columns, every)
    for part in names.parts(run):
        if "exchanges" not in part:
            continue
        exchanges = run.builder.finished("exchanges", [part["exchanges"]], where)
        counts.feed(exchanges, part["fetches"])
    return counts.table()

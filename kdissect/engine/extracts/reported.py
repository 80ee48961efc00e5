"""The report in one pass and flat memory, and one more pass for the bytes of exchanges where the input can be read
again: `Capture.report`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kdissect.capture import CaptureSet
from kdissect.engine.analysed_run import AnalysedRun
from kdissect.engine.bounds.room import Limited
from kdissect.engine.bounds.spare_memory import Spare
from kdissect.engine.bounds.spool import Spool
from kdissect.engine.extracts.overview import Names
from kdissect.engine.extracts.showing import show_several
from kdissect.engine.saving.spooled_evidence import SpooledEvidence, with_evidence
from kdissect.engine.settings import FEW_PACKETS, Settings
from kdissect.output import scratch
from kdissect.report import READ, Gathering
from kdissect.report.exchange_bytes import bytes_of
from kdissect.summary import WANTED, Summarizer, Summary
from kdissect.tables.declaration import TABLES
from kdissect.tables.declaration.readers import BUDGET

MEMORY = 512_000_000
"""Bytes for deliveries and transactions, which are made of all rows at once: what a report takes without them."""


def gathered(captures: Sequence[CaptureSet], settings: Settings) -> tuple[Gathering, Summary]:
    """The rows of the page, and the summary of the same rows. It is that of the first screen, but for topics and
    budgets, which the page has by itself. Findings are those of all rows."""
    with scratch() as folder, Spool(Path(folder)) as spool:
        return Names(captures, settings).read_named(lambda names: _gathered(captures, settings, names, spool))


def _gathered(
    captures: Sequence[CaptureSet], settings: Settings, names: Names, spool: Spool
) -> tuple[Gathering, Summary]:
    summarizer, found = Summarizer(), Gathering()
    read = {name: list(columns) for name, columns in READ.items()}
    for name, columns in BUDGET.tables.items():
        read[name] = list(dict.fromkeys([*read.get(name, ()), *columns]))
    settings = replace(with_evidence(settings), block_packets=FEW_PACKETS)
    run = AnalysedRun(captures, read, settings)
    evidence, spare = SpooledEvidence(spool, settings.slow), Spare(0.2)
    for part in names.parts(run):
        evidence.add_rows(part)
        named = {name: run.builder.resolve(name, part[name], plain=True) for name in read if name in part}
        for name in WANTED.keys() & named.keys():
            if TABLES[name].progressive and named[name].num_rows:
                summarizer.feed(name, run.builder.resolved(name, named[name], None, list(WANTED[name])))
        found.add_rows(named)
        del named, part
        spare.give_back()
    for name, piece in run.books.pieces_at_the_end():
        table = run.builder.finished(name, [piece])
        if name in WANTED:
            for batch in table.to_batches():
                summarizer.feed(name, batch)
        evidence.add(name, table)
        found.add(name, table)
    summarizer.feed_found(evidence.search(settings.topics))
    return found, summarizer.finish()


def bytes_by_id(captures: Sequence[CaptureSet], settings: Settings, ids: Sequence[str]) -> dict[str, dict[str, Any]]:
    """By exchange id, its bytes as `report.exchange_bytes.bytes_of` makes them. Empty where an input is a pipe. Keys,
    values and headers of records and credentials are hidden."""
    if not ids or not can_read_again(captures):
        return {}
    made = {}
    for name, one in show_several(captures, settings, ids).items():
        sides = (("Request", one.request, one.request_data), ("Response", one.response, one.response_data))
        made[name] = bytes_of(one.exchange, sides, one.notes, name)
    return made


def settings_of_journeys(settings: Settings, gathering: Gathering) -> Settings:
    """Settings for deliveries and transactions: up to the last exchange that budgets are made of, in MEMORY at most."""
    last = gathering.budget.last_us
    memory = min(settings.memory or MEMORY, MEMORY)
    before = settings.before if last is None else last * 1000
    return replace(settings, progress=None, before=before, memory=memory, limited=Limited())


def can_read_again(captures: Sequence[CaptureSet]) -> bool:
    """Whether the input is all files: a pipe cannot be read again."""
    return all(capture.regular for capture in captures)

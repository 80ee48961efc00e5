"""The first screen's data in one pass: `Capture.summary`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from kdissect._dictionaries import unified
from kdissect.analysis.findings import READ, findings
from kdissect.capture import CaptureSet
from kdissect.engine.analysed import AnalysedRun
from kdissect.engine.run import Settings
from kdissect.summary import WANTED, Summarizer, Summary
from kdissect.tables.order import order, sort_columns

HELD_BACK = 100_000
"""Rows held back until names of brokers are known: some tens of MB. Of a smaller capture every name is known."""
EVIDENCE = 250_000
"""Rows of exchanges, fetches and partitions that findings are looked for in, and of connections: some 50 MB each. What
comes after them in a larger capture is counted everywhere else on the screen; the table `findings` looks at
everything."""


def overview(captures: Sequence[CaptureSet], settings: Settings, by: str) -> Summary:
    """The summary of captures; `by` groups its latencies. Memory is bounded by the constants above."""
    gathered = Summarizer(by)
    wanted = {name: list(columns) for name, columns in WANTED.items()}
    settings = replace(settings, reading=replace(settings.reading, most_sent=EVIDENCE))
    run = AnalysedRun(captures, wanted, settings)
    evidence = _Evidence()
    for part in run.parts(HELD_BACK):
        for name in ("exchanges", "fetch_sessions"):
            if part[name].num_rows:
                gathered.feed(name, run.builder.resolved(name, part[name], None, wanted[name]))
        evidence.take(part)
    for name, piece in run.run.pieces_at_the_end():
        table = run.builder.finished(name, [piece])
        for batch in table.to_batches():
            gathered.feed(name, batch)
        evidence.add(name, table)
    topics = settings.selection.topics if settings.selection is not None else ()
    for batch in findings(evidence.tables(topics)).to_batches():
        gathered.feed("findings", batch)
    return gathered.finish(None if evidence.whole else evidence.exchanges)


class _Evidence:
    """The rows that findings are looked for in."""

    def __init__(self) -> None:
        self.whole = True
        self.exchanges = 0
        self._rows = 0
        self._parts: dict[str, list[pa.Table]] = {}

    def take(self, part: dict[str, pa.Table]) -> None:
        """Keep the columns that findings read, as long as there is room."""
        names = [name for name in READ if name in part and part[name].num_rows]
        if self._rows < EVIDENCE:
            for name in names:
                wanted = READ[name].union(sort_columns(name))
                columns = [column for column in part[name].column_names if column in wanted]
                self._parts.setdefault(name, []).append(part[name].select(columns))
                self._rows += part[name].num_rows
            self.exchanges += part["exchanges"].num_rows
        elif names:
            self.whole = False
        if part["fetch_sessions"].num_rows:
            self._parts.setdefault("fetch_sessions", []).append(part["fetch_sessions"])

    def add(self, name: str, table: pa.Table) -> None:
        """Keep what findings read of a piece of a table that is made at the end; of connections as many, too."""
        if name in READ and table.num_rows:
            parts = self._parts.setdefault(name, [])
            if name != "connections" or sum(part.num_rows for part in parts) < EVIDENCE:
                parts.append(table.select([column for column in table.column_names if column in READ[name]]))
            else:
                self.whole = False

    def tables(self, topics: Sequence[str] = ()) -> dict[str, pa.Table]:
        """What was kept, by table, in order; of tables that name topics, rows of these topics."""
        out = {}
        for name, parts in self._parts.items():
            table = order(name, unified(pa.concat_tables(parts, promote_options="permissive")))
            out[name] = _of(topics, table)
        return out


def _of(topics: Sequence[str], table: pa.Table) -> pa.Table:
    """Of a table that names topics, the rows of these topics; all, if none are named."""
    if not topics or "topic" not in table.column_names:
        return table
    return table.filter(pc.is_in(table["topic"].cast(pa.string()), value_set=pa.array(topics)))

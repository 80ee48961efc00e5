"""A capture with kdissect's verdicts as comments on its packets, for any Wireshark.

Rules. Packets are byte for byte what they were. The evidence of a finding is what its filter selects in its table: each
exchange there gets the finding's id.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from kdissect.engine.extracts.annotating import Commented
from kdissect.output import whole_file
from kdissect.tables.declaration import SCHEMAS
from kdissect.tables.where import parse
from kdissect.wireshark import verdicts


class Capture(Protocol):
    """The part of `kdissect.open`'s result that is needed here."""

    def not_input(self, target: object) -> None:
        """Raises UsageError where `target` is a path of a file that is read."""

    def tables(self, names: Mapping[str, Sequence[str] | None]) -> dict[str, pa.Table]:
        """Several tables in one pass, with their columns."""

    def commented(self, target: str | Path | BinaryIO, comments: pa.Table) -> Commented:
        """Writes the same packets with comments."""


@dataclass(frozen=True, slots=True)
class Annotated:
    """The comments that were written, and the ids of the findings that they name."""

    written: Commented
    findings: list[str]


def annotate(capture: Capture, target: str | Path | BinaryIO, macros: str | Path | None = None) -> Annotated:
    """Write a copy of one capture, as pcapng, whose packets carry a comment for each message that they complete. It has
    the exchange's id, its latency by whose time, its hold, its error, findings. `macros`: a file of display filter
    macros for them.

    Raises UsageError for several captures and for pipes, CaptureError, OutputError.
    """
    capture.not_input(target)
    if macros is not None:
        capture.not_input(macros)
    columns = verdicts.columns(SCHEMAS["exchanges"].names)
    tables = capture.tables({"exchanges": columns, "findings": None})
    found = _evidence(capture, tables["findings"].to_pylist())
    written = capture.commented(target, verdicts.comments(tables["exchanges"], found))
    named = sorted({one for ids in found.values() for one in ids})
    if macros is not None:
        with whole_file(str(macros)) as stream:
            stream.write(verdicts.macros(named).encode())
    return Annotated(written, named)


def _evidence(capture: Capture, findings: list[dict[str, str | None]]) -> dict[str, list[str]]:
    """Ids of findings by exchange id, in the findings' order."""
    asked: dict[str, set[str]] = defaultdict(set)
    filters = []
    for finding in findings:
        table, text = finding["table"], finding["filter"]
        if table and text and "exchange_id" in SCHEMAS[table].names:
            condition = parse(text, SCHEMAS[table])
            filters.append((str(finding["id"]), table, condition))
            asked[table] |= {"exchange_id", *condition.columns}
    out: defaultdict[str, dict[str, None]] = defaultdict(dict)
    rows = capture.tables({name: sorted(columns) for name, columns in asked.items()}) if asked else {}
    for identity, table, condition in filters:
        for one in pc.unique(rows[table].filter(condition.expression)["exchange_id"]).to_pylist():
            if one is not None:
                out[one][identity] = None
    return {one: list(ids) for one, ids in out.items()}

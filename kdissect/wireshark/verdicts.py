"""The verdicts of kdissect on each exchange, as comments on the packets that complete its messages.

A comment holds words of kdissect's and Kafka's alone, nothing that a peer could have written: ids, API names, figures,
error names, the ids of findings. Each part ends with a semicolon, so that display filters find it whole:
`frame.comment contains "<exchange id>;"`, `frame.comment contains "; hold timeout;"`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

PARTS = (
    "request_transfer_ms", "network_ms", "queued_ms", "broker_ms", "response_transfer_ms", "replication_ms",
    "throttle_ms",
)  # fmt: skip
"""Columns of `exchanges` that say whose the time was, as far as the declaration has them, in order."""
WORDS = ("status", "error", "hold")
NEEDED = ("exchange_id", "api", "api_version", "latency_ms")
DIGITS = 3
"""Of milliseconds: captures have microseconds."""
SIDES = ("request", "response")
QUOTE = "\\x22"
"""A quotation mark inside a text of Wireshark's tables of settings."""


def columns(available: Sequence[str]) -> list[str]:
    """The columns of `exchanges` that comments are made of."""
    frames = [f"{side}_{what}" for side in SIDES for what in ("file", "frame")]
    wanted = [*NEEDED, *WORDS, *PARTS, *frames]
    return [name for name in wanted if name in available]


def comments(exchanges: pa.Table, finding_ids: Mapping[str, Sequence[str]]) -> pa.Table:
    """(file, frame, comment), strings but for the frame (int64), for each message of `exchanges` (columns of `columns`)
    that a frame completed; times in ms. `finding_ids`: ids of findings by exchange id.
    """
    ids = exchanges["exchange_id"]
    findings = pa.array(["; finding ".join(finding_ids.get(one, ())) or None for one in ids.to_pylist()], pa.string())
    version = pc.binary_join_element_wise(" v", exchanges["api_version"].cast(pa.string()), "")
    name = _concatenate(exchanges["api"], version)
    verdict = _concatenate(
        name,
        _labelled("; latency ", _ms(exchanges["latency_ms"])),
        *(
            _labelled(f", {part[:-3].replace('_', ' ')} ", _ms(exchanges[part]))
            for part in PARTS
            if part in exchanges.column_names
        ),
        *(_labelled(f"; {word} ", exchanges[word]) for word in WORDS if word in exchanges.column_names),
        _labelled("; finding ", findings),
    )
    tables = []
    for side in SIDES:
        has = pc.is_valid(exchanges[f"{side}_frame"])
        head = pc.binary_join_element_wise(f"kdissect {side} ", ids, "; ", "")
        tables.append(
            pa.table(
                {
                    "file": exchanges[f"{side}_file"].cast(pa.string()),
                    "frame": exchanges[f"{side}_frame"],
                    "comment": pc.binary_join_element_wise(head, verdict, ";", ""),
                }
            ).filter(has)
        )
    return pa.concat_tables(tables)


def _concatenate(*parts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Texts one behind the other; null ones are left out. (Arrow's "skip" loses rows in which all of them are null.)"""
    return pc.binary_join_element_wise(*parts, "", null_handling="replace", null_replacement="")


def _labelled(label: str, values: pa.ChunkedArray) -> pa.ChunkedArray:
    """A label in front of each value; null stays null."""
    return pc.binary_join_element_wise(label, values.cast(pa.string()), "")


def _ms(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Milliseconds as text; nothing where they are null or, of a part, zero."""
    rounded = pc.round(values.cast(pa.float64()), DIGITS)
    text = pc.binary_join_element_wise(rounded.cast(pa.string()), " ms", "")
    return pc.if_else(pc.equal(rounded, 0.0), pa.scalar(None, pa.string()), text)


def macros(findings: Sequence[str]) -> str:
    """Display filter macros, a line each, as Wireshark's `dfilter_macros` has them ("name","text"): exchanges by id,
    comments, holds, errors, and one for each finding."""
    rows = [
        ("kdissect_exchange", "$1;"),
        ("kdissect_comments", "kdissect "),
        ("kdissect_hold", "; hold $1;"),
        ("kdissect_error", "; error $1;"),
        ("kdissect_findings", "; finding "),
        *((f"kdissect_{one}", f"; finding {one};") for one in sorted(set(findings))),
    ]
    return "".join(f'"{name}","frame.comment contains {QUOTE}{text}{QUOTE}"\n' for name, text in rows)

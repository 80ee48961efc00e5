"""A copy of a capture held against the capture: what is said of the exchanges that the copy has whole.

A part of an exchange's time is right (within TOLERANCE_MS or a tenth), unknown (null, or named a bound: where
`network_kind` is null, `broker_ms` is at most what it says, and `queued_ms` is what is known of it; where it is
`bound`, `network_ms` is at most what it says, and the broker's time at least), or wrong.
"""

from __future__ import annotations

import tempfile
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import kdissect
from tests.oracle.forms import Copy, Recording

PARTS = (
    "network_ms", "queued_ms", "broker_ms", "think_ms", "request_transfer_ms", "response_transfer_ms",
    "request_resent_ms", "response_resent_ms",
)  # fmt: skip
SPLIT = ("network_ms", "queued_ms", "broker_ms")
"""Parts that are unknown together."""
TOLERANCE_MS = 1.0
INSTANTS = ("request_first_at", "request_last_at", "response_first_at", "response_last_at")
NAMED = ("client_ip", "client_port", "broker_port", "correlation_id", *INSTANTS)
"""What an exchange is known by in both. It survived when all of its instants did."""
COLUMNS = (*NAMED, "network_kind", "api", "request_frame", *PARTS)

Row = dict[str, Any]
SAME = {"transaction_timed_out": "producer_fenced"}
"""Kinds of findings that say more of what another one says, where the capture shows why."""


@dataclass(slots=True)
class Told:
    """What kdissect says of a capture."""

    exchanges: list[Row]
    findings: set[str]
    """Kinds of findings above info."""


@dataclass(slots=True)
class Judged:
    """What became of the exchanges of a copy."""

    survivors: int = 0
    unknown: int = 0
    """Of how many the network's and the broker's parts are unknown that the whole capture tells."""
    unknown_other: int = 0
    """Of how many another part is."""
    wrong: list[str] = field(default_factory=list)
    above: int = 0
    """Of how many `network_ms` is more than TOLERANCE_MS larger."""
    findings: list[str] = field(default_factory=list)
    """Findings above info that the whole capture has not."""
    parts: Counter[str] = field(default_factory=Counter)
    """How often each part is wrong."""


def told(files: list[bytes]) -> Told:
    """Exchanges and findings of the files of one capture."""
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for number, data in enumerate(files):
            kind = "pcapng" if data[:4] == b"\x0a\x0d\x0d\x0a" else "pcap"
            paths.append(Path(folder) / f"c_{number:05}_20260101000000.{kind}")
            paths[-1].write_bytes(data)
        capture = kdissect.open(paths[0] if len(paths) == 1 else [str(path) for path in paths])
        exchanges = capture.table("exchanges").select(COLUMNS).to_pylist()
        findings = capture.table("findings").to_pylist()
    return Told(exchanges, {SAME.get(row["id"], row["id"]) for row in findings if row["severity"] != "info"})


def brokers(whole: Told) -> frozenset[int]:
    """Ports that brokers of a capture answer at."""
    return frozenset(row["broker_port"] for row in whole.exchanges)


def judge(name: str, recording: Recording, whole: Told, copy: Copy, into: Judged) -> None:
    """Adds what is said of a copy of a capture to what was said of others'."""
    found = told(copy(recording, brokers(whole)))
    known: defaultdict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in whole.exchanges:
        known[tuple(row[column] for column in NAMED)].append(row)
    for row in found.exchanges:
        real = known.get(tuple(row[column] for column in NAMED), [])
        if len(real) == 1 and all(row[instant] is not None for instant in INSTANTS):
            _compare(name, row, real[0], into)
    into.findings += [f"{name}: {kind}" for kind in sorted(found.findings - whole.findings)]


def _compare(name: str, row: Row, real: Row, into: Judged) -> None:
    into.survivors += 1
    unknown, other = False, False
    for part in PARTS:
        said, true = row[part], real[part]
        if true is None or said is None:
            unknown |= part in SPLIT and true is not None
            other |= part not in SPLIT and true is not None
        elif abs(said - true) > TOLERANCE_MS and abs(said - true) > true / 10:
            if row["network_kind"] is None and (part == "queued_ms" or (part == "broker_ms" and said >= true)):
                continue
            if row["network_kind"] == "bound" and part in SPLIT and (said >= true) == (part == "network_ms"):
                continue
            into.parts[part] += 1
            kinds = f"{real['network_kind']} -> {row['network_kind']}"
            into.wrong.append(f"{name}: {row['api']} {row['request_frame']} {part} {true:.3f} -> {said:.3f} ({kinds})")
    into.unknown += unknown
    into.unknown_other += other
    if None not in (row["network_ms"], real["network_ms"]) and row["network_kind"] != "bound":
        into.above += row["network_ms"] > real["network_ms"] + TOLERANCE_MS

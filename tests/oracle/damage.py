"""Base and its damaged copies: which packets carry which exchange, and what a reader of a copy may say.

An exchange whose packets all survived must come out as in base. A row of any other may leave things unknown (null), but
what it says must be so; and no row may be of something that never was.
"""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from tests.oracle import wire
from tests.oracle.material import CAPTURES, material

SAME = (
    "client_ip", "client_port", "broker_ip", "broker_port", "api_key", "api", "api_version", "correlation_id",
    "client_id", "status", "error_code", "error", "error_count", "request_first_at", "request_last_at",
    "response_first_at", "response_last_at", "latency_ms", "request_transfer_ms", "response_transfer_ms", "throttle_ms",
    "request_bytes", "response_bytes", "decoded", "api_inferred",
)  # fmt: skip
"""Columns that the loss of other packets must not change (queueing and in-flight counts depend on the neighbours)."""


@dataclass(frozen=True, slots=True)
class Span:
    """The packets of `base` that carry one exchange."""

    request: frozenset[int]
    response: frozenset[int]
    again: bool
    """Some bytes were sent again: where the first copy is lost, they came later."""


@dataclass(slots=True)
class Outcome:
    """What became of base's exchanges in a damaged copy."""

    whole: int = 0
    same: int = 0
    touched: int = 0
    rows: int = 0
    invented: int = 0


Key = tuple[int, int]
"""Client port and correlation id: what names an exchange in captures where no id is used twice on a connection."""


@cache
def spans(name: str = "base") -> dict[Key, Span]:
    """The packets of each exchange of a clean capture, from a plain reading: first arrivals only."""
    out: dict[Key, Span] = {}
    for request in wire.requests(CAPTURES / f"{name}.pcap", material(name).ports):
        key = request.client[1], request.correlation_id
        assert key not in out, f"{name}: {key} names two exchanges"
        answer = request.response
        again = request.frame.again or (answer is not None and answer.again)
        out[key] = Span(request.frame.packets, answer.packets if answer else frozenset(), again)
    return out


@cache
def truth(name: str) -> tuple[dict[Key, dict[str, Any]], frozenset[Key]]:
    """Rows of the clean capture by key, and the keys of responses whose request came before it began."""
    rows = material(name).exchanges
    known = {(r["client_port"], r["correlation_id"]): r for r in rows if r["status"] != "orphan"}
    return known, frozenset((r["client_port"], r["correlation_id"]) for r in rows if r["status"] == "orphan")


def removed(name: str) -> frozenset[int]:
    """Frame numbers of base that the copy lacks."""
    total = material("base").toml["packets"]
    if name == "field_midstream":
        return frozenset(range(1, 389))
    if name == "field_endmid":
        return frozenset(range(775, total + 1))
    return frozenset(json.loads((CAPTURES / f"{name}.removed.json").read_text())["removed_frames"])


def outcome(
    rows_of_copy: list[dict[str, Any]], gone: frozenset[int], name: str = "base", cut: frozenset[int] = frozenset()
) -> tuple[Outcome, list[str]]:
    """How the exchanges of a copy that lacks the frames `gone`, and the ends of the frames `cut`, compare with the
    whole's, and every untruth found."""
    want, strays = truth(name)
    have: dict[Key, list[dict[str, Any]]] = {}
    for row in rows_of_copy:
        have.setdefault((row["client_port"], row["correlation_id"]), []).append(row)
    result, wrong = Outcome(rows=len(rows_of_copy)), []
    for key, span in spans(name).items():
        rows = have.pop(key, [])
        if not (gone | cut) & (span.request | span.response):
            result.whole += 1
            if len(rows) == 1 and all(rows[0][c] == want[key][c] for c in SAME):
                result.same += 1
            elif not (span.response or len(rows) > 1 or (rows and unlike(rows[0], want[key], SAME[:9]))):
                result.same += 1  # never answered: whether it still waits depends on the neighbours
            else:
                wrong.append(f"{key}: whole, but {len(rows)} rows, unlike {unlike(rows[0], want[key]) if rows else []}")
            continue
        result.touched += 1
        wrong += [f"{key}: {text}" for row in rows for text in untrue(row, want[key], span, gone, cut)]
        if len(rows) > 2:
            wrong.append(f"{key}: {len(rows)} rows of one exchange")
    for key in strays & have.keys():
        have[key] = [r for r in have[key] if r["status"] not in ("orphan", "partial")]
    for key, rows in have.items():
        if not rows:
            continue
        result.invented += len(rows)
        wrong.append(f"{key}: invented {rows[0]}")
    return result, wrong


def unlike(row: dict[str, Any], want: dict[str, Any], columns: tuple[str, ...] = SAME) -> list[tuple[str, Any, Any]]:
    """Columns that differ, with what is said and what is so."""
    return [(c, row[c], want[c]) for c in columns if row[c] != want[c]]


def untrue(
    row: dict[str, Any], want: dict[str, Any], span: Span, gone: frozenset[int], cut: frozenset[int] = frozenset()
) -> list[str]:
    """What a row says of a damaged exchange that is not so: an unknown value is null, a given one is true."""
    said = []
    columns = ("api_key", "api_version", "client_id", "request_bytes", "response_bytes")
    columns += tuple(f"{side}_{when}_at" for side in ("request", "response") for when in ("first", "last"))
    for column in columns:
        later = span.again and column.endswith("_at") and row[column] is not None and row[column] > want[column]
        if row[column] is not None and row[column] != want[column] and not later:
            said.append(f"{column} {row[column]!r}, really {want[column]!r}")
    if not (gone | cut) & span.request and row["status"] != "orphan" and row["api_key"] is None:
        said.append("its request survived whole, its API is not told")
    if gone & (span.request | span.response) and row["status"] == want["status"] and span_needed(row, span, gone):
        said.append(f"status {row['status']} although bytes are missing")
    return said


def span_needed(row: dict[str, Any], span: Span, gone: frozenset[int]) -> bool:
    return bool(gone & span.request and gone & span.response) and row["status"] == "ok"


@cache
def records(name: str = "base") -> tuple[bytes, list[bytes]]:
    """The file header of a pcap and its packet records (header and bytes)."""
    data = (CAPTURES / f"{name}.pcap").read_bytes()
    at, out = 24, []
    while at < len(data):
        (size,) = struct.unpack_from("<I", data, at + 8)
        out.append(data[at : at + 16 + size])
        at += 16 + size
    return data[:24], out


def without(gone: frozenset[int], name: str = "base") -> bytes:
    """A capture without those frames."""
    header, packets = records(name)
    return header + b"".join(p for n, p in enumerate(packets, 1) if n not in gone)


def drawn(seed: int, name: str = "base") -> tuple[str, frozenset[int]]:
    """A kind of loss and the frames it takes, by seed: scattered, in bursts, a late start, an early end, or several."""
    draw = random.Random(seed)
    total = len(records(name)[1])
    kinds: dict[str, Callable[[], set[int]]] = {
        "scattered": lambda: _scattered(draw, total),
        "bursts": lambda: _bursts(draw, total),
        "late start": lambda: set(range(1, draw.randrange(1, total))),
        "early end": lambda: set(range(draw.randrange(1, total), total + 1)),
    }
    names = draw.sample(sorted(kinds), draw.choice((1, 1, 2, 3)))
    return " and ".join(names), frozenset(set().union(*(kinds[name]() for name in names)))


def _scattered(draw: random.Random, total: int) -> set[int]:
    share = draw.choice((0.001, 0.003, 0.01, 0.03, 0.1))
    return {n for n in range(1, total + 1) if draw.random() < share}


def _bursts(draw: random.Random, total: int) -> set[int]:
    return {
        n
        for start in (draw.randrange(1, total) for _ in range(draw.choice((1, 2, 5))))
        for n in range(start, min(total, start + draw.choice((2, 5, 20, 60))))
    }

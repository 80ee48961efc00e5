"""Recorded captures through the engine and the analysis, once each."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import zstandard

import kdissect
from kdissect.engine.capture_tables import MADE

CAPTURES = Path(__file__).resolve().parents[2] / "captures"
READ = (
    "exchanges", "fetches", "fetch_partitions", "produces", "produce_partitions", "list_offsets", "connections",
    "api_versions",
)  # fmt: skip
TYPES = (("ShareFetch", 78), ("ShareAcknowledge", 79))
ASKED = dict.fromkeys(("exchanges", "fetches", "fetch_sessions", "session_partitions", "share_sessions", "findings"))


@cache
def raw(name: str) -> dict[str, pa.Table]:
    """The tables as the engine makes them."""
    return dict(kdissect.open(CAPTURES / f"{name}.pcap").tables(list(READ)))


@cache
def messages(name: str) -> dict[tuple[int, int], pa.Table]:
    capture = kdissect.open(CAPTURES / f"{name}.pcap")
    sides = ("request", "response")
    return {(key, side): capture.messages(api, sides[side]) for api, key in TYPES for side in (0, 1)}


@cache
def analysed(name: str) -> dict[str, pa.Table]:
    """Every table that findings are made of and that is made unless others are asked for, as the engine makes them with
    the analysis behind it."""
    place = next(iter(sorted(CAPTURES.glob(f"{name}.pcap*"))))
    return dict(kdissect.open(place).tables((*MADE, "producers", "deliveries")))


def rows(name: str, table: str, **where: object) -> list[dict[str, object]]:
    """Rows of an analysed table with these values."""
    found = analysed(name)[table].to_pylist()
    return [row for row in found if all(row[key] == value for key, value in where.items())]


def read_lines(name: str, kind: str) -> list[Any]:
    """What clients and brokers said while `captures/deliveries/NAME` was recorded: the lines of NAME.KIND.jsonl.zst,
    none where there is no such file."""
    path = CAPTURES / "deliveries" / f"{name}.{kind}.jsonl.zst"
    if not path.exists():
        return []
    data = zstandard.ZstdDecompressor().stream_reader(path.read_bytes()).read()
    return [json.loads(line) for line in data.splitlines()]

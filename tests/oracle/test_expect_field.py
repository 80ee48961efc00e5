"""What the TOMLs of the field shapes say, as the tables say it; and the captures that are none."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

import kdissect
from tests.oracle.material import CAPTURES, material

pytestmark = pytest.mark.oracle

SHAPES = sorted(p.stem for p in CAPTURES.glob("field_*.toml"))
NOT_CAPTURES = {"field_empty", "field_half_header", "field_wrong_magic"}
SETS = {"field_rotated_C", "field_rotated_G"}
BEYOND = {"field_absurd_length"}
"""Damaged in the middle: reading goes on behind the damage, and finds more than the packets before it."""


def quality(name: str) -> dict[str, float | None]:
    """Measures of a capture, added up over its files."""
    path = CAPTURES / name if name in SETS else material(name).path
    out: dict[str, float | None] = {}
    for row in kdissect.open(path).table("capture_quality").to_pylist():
        before = out.get(row["measure"])
        out[row["measure"]] = row["value"] if before is None else before + (row["value"] or 0)
    return out


def problems(name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = material(name).capture.table("problems").to_pylist()
    return rows


@pytest.mark.parametrize("name", sorted(NOT_CAPTURES))
def test_not_a_capture(name: str) -> None:
    with pytest.raises(kdissect.NotACapture) as error:
        kdissect.open(CAPTURES / f"{name}.pcap").table("exchanges")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", [n for n in SHAPES if n not in NOT_CAPTURES | BEYOND])
def test_packets_are_those_of_the_toml(name: str) -> None:
    import tomllib

    toml = tomllib.loads((CAPTURES / f"{name}.toml").read_text())
    assert quality(name)["packets"] == toml["packets"]


def test_header_only() -> None:
    assert quality("field_header_only")["packets"] == 0
    assert material("field_header_only").exchanges == []


@pytest.mark.parametrize("name", ["field_truncated", "field_cut", "field_gz_cut"])
def test_cut_files_say_so(name: str) -> None:
    assert quality(name)["cut_short"] == 1
    assert any(p["kind"] == "capture" for p in problems(name))
    assert material(name).exchanges


def test_absurd_length() -> None:
    found = [p for p in problems("field_absurd_length") if p["kind"] == "capture"]
    assert found
    packets = quality("field_absurd_length")["packets"]
    assert packets is not None
    assert packets >= 83


def test_measures() -> None:
    assert quality("field_snap96")["snapped_packets"] == 820
    assert quality("field_snap200")["snapped_packets"] == 488
    assert quality("field_snap96")["snap_length"] == 96
    assert quality("field_incl_over_orig")["longer_than_original"] == 23
    assert quality("field_ip_fragments")["rejoined_packets"] == 30
    assert quality("field_two_interfaces")["dropped_packets"] == 3
    assert quality("field_simple_packets")["packets_without_time"] == 167
    assert (quality("field_jittered")["packets_back_in_time"] or 0) > 0
    assert (quality("field_reordered")["packets_back_in_time"] or 0) > 0
    assert quality("field_loss1")["missing_bytes"] != 0
    assert quality("field_burst20")["missing_bytes"] == 23732


def test_duplicates_are_counted_and_disturb_nothing() -> None:
    assert quality("field_duplicates")["duplicated_packets"] == 254
    assert quality("field_duplicates")["retransmitted_bytes"] == quality("base_short")["retransmitted_bytes"]


def test_no_times() -> None:
    rows = material("field_simple_packets").exchanges
    assert len(rows) == len(material("base_tiny").exchanges)
    assert {(r["request_first_at"], r["latency_ms"]) for r in rows} == {(None, None)}


@pytest.mark.parametrize("name", sorted(SETS))
@pytest.mark.parametrize("backwards", [False, True])
def test_rotated_sets_are_one_capture(name: str, *, backwards: bool) -> None:
    files = sorted((CAPTURES / name).iterdir(), reverse=backwards)
    rows = kdissect.open(files).table("exchanges").to_pylist()
    base = material("base").exchanges
    key = (
        "client_port",
        "correlation_id",
        "api",
        "api_version",
        "client_id",
        "status",
        "request_bytes",
        "response_bytes",
    )
    assert Counter(tuple(r[k] for k in key) for r in rows) == Counter(tuple(r[k] for k in key) for r in base)
    assert len({r["capture"] for r in rows}) == 1
    if name == "field_rotated_C":
        assert [r["latency_ms"] for r in rows] == [r["latency_ms"] for r in base]


def test_the_last_response_is_incomplete() -> None:
    """11653 of its 32879 bytes were captured."""
    (row,) = [r for r in material("field_endmid").exchanges if r["status"] == "partial"]
    assert (row["client_port"], row["response_bytes"]) == (40402, 32879)
    (problem,) = [p for p in problems("field_endmid") if p["kind"] == "unfinished_frame"]
    assert problem["bytes"] == 32879 - 11653


def test_midstream_orphans() -> None:
    orphans = [r for r in material("field_midstream").exchanges if r["status"] == "orphan"]
    assert orphans
    base = {(r["client_port"], r["correlation_id"]): r for r in material("base").exchanges}
    for row in orphans:
        assert row["request_first_at"] is None
        assert row["response_frame"] + 388 == base[row["client_port"], row["correlation_id"]]["response_frame"]

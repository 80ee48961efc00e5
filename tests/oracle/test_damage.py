"""Damaged copies of a capture against the whole: what survived is read unchanged, nothing is invented, loss is said.

`base` is loss-free and its exchanges are known frame by frame. Each `field_*` copy of it lacks packets, an end, a
beginning or a direction. An exchange whose packets all survived must come out as in `base`; every other row must be
explained by a frame that really was there; what was lost must show in `problems` or in a status.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest

from tests.oracle import wire
from tests.oracle.material import CAPTURES, Material, material

pytestmark = pytest.mark.oracle

BROKER_PORT = 39098
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


@dataclass(slots=True)
class Outcome:
    """What became of base's exchanges in a damaged copy."""

    whole: int = 0
    same: int = 0
    touched: int = 0
    rows: int = 0
    invented: int = 0


@cache
def spans() -> dict[tuple[int, int], Span]:
    """(client port, correlation id) -> packets, from a plain reading of base: first arrivals only."""
    out: dict[tuple[int, int], Span] = {}
    for request in wire.requests(CAPTURES / "base.pcap", frozenset({BROKER_PORT})):
        assert request.response is not None
        out[request.client[1], request.correlation_id] = Span(request.frame.packets, request.response.packets)
    return out


def removed(name: str) -> frozenset[int]:
    """Frame numbers of base that the copy lacks."""
    total = material("base").toml["packets"]
    if name == "field_midstream":
        return frozenset(range(1, 389))
    if name == "field_endmid":
        return frozenset(range(775, total + 1))
    return frozenset(json.loads((CAPTURES / f"{name}.removed.json").read_text())["removed_frames"])


def outcome(name: str) -> tuple[Outcome, list[str]]:
    gone, it, base = removed(name), material(name), material("base")
    want = {(r["client_port"], r["correlation_id"]): r for r in base.exchanges}
    have: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for row in it.exchanges:
        have.setdefault((row["client_port"], row["correlation_id"]), []).append(row)
    result, wrong = Outcome(rows=len(it.exchanges)), []
    for key, span in spans().items():
        rows = have.pop(key, [])
        if not gone & (span.request | span.response):
            result.whole += 1
            if len(rows) == 1 and all(rows[0][c] == want[key][c] for c in SAME):
                result.same += 1
            else:
                unlike = [(c, rows[0][c], want[key][c]) for c in SAME if rows and rows[0][c] != want[key][c]]
                wrong.append(f"{key}: whole, but {len(rows)} rows, unlike {unlike}")
            continue
        result.touched += 1
        wrong += [f"{key}: {text}" for row in rows for text in untrue(row, want[key], span, gone)]
        if len(rows) > 2:
            wrong.append(f"{key}: {len(rows)} rows of one exchange")
    for key, rows in have.items():
        result.invented += len(rows)
        wrong.append(f"{key}: invented {rows[0]}")
    return result, wrong


def untrue(row: dict[str, Any], want: dict[str, Any], span: Span, gone: frozenset[int]) -> list[str]:
    """What a row says of a damaged exchange that is not so: an unknown value is null, a given one is true."""
    said = []
    columns = ("api_key", "api_version", "client_id", "request_bytes", "response_bytes")
    columns += tuple(f"{side}_{when}_at" for side in ("request", "response") for when in ("first", "last"))
    for column in columns:
        if row[column] is not None and row[column] != want[column]:
            said.append(f"{column} {row[column]!r}, really {want[column]!r}")
    if not gone & span.request and row["status"] != "orphan" and row["api_key"] is None:
        said.append("its request survived whole, its API is not told")
    if gone & (span.request | span.response) and row["status"] == want["status"] and span_needed(row, span, gone):
        said.append(f"status {row['status']} although bytes are missing")
    return said


def span_needed(row: dict[str, Any], span: Span, gone: frozenset[int]) -> bool:
    return bool(gone & span.request and gone & span.response) and row["status"] == "ok"


DAMAGED = ["field_loss1", "field_loss5", "field_burst20", "field_burst20_many", "field_midstream", "field_endmid"]


@pytest.mark.parametrize("name", DAMAGED)
def test_what_survived_is_read_and_nothing_is_invented(name: str) -> None:
    result, wrong = outcome(name)
    print(f"{name}: {result}")
    assert not wrong, f"{result}: {len(wrong)} wrong\n" + "\n".join(wrong[:8])
    assert result.same == result.whole


@pytest.mark.parametrize("name", DAMAGED)
def test_the_toml_counts_of_whole_exchanges(name: str) -> None:
    gone = removed(name)
    request = sum(bool(gone & s.request) for s in spans().values())
    response = sum(bool(gone & s.response) for s in spans().values())
    whole = sum(not gone & (s.request | s.response) for s in spans().values())
    said = f"{request} lost bytes of their request, {response} lost bytes of their response, {whole} are whole"
    assert any(said in text for text in material(name).toml["expect"]), said


@pytest.mark.parametrize("name", DAMAGED)
def test_every_lost_exchange_is_accounted_for(name: str) -> None:
    """Each damaged exchange shows: as a row that says so, or as a problem of its connection."""
    gone, it = removed(name), material(name)
    problems = it.capture.table("problems").to_pylist()
    troubled = {p["connection_id"] for p in problems}
    ports = {r["client_port"]: r["connection_id"] for r in it.capture.table("connections").to_pylist()}
    base_ports = {key[0] for key, span in spans().items()}
    rows = {(r["client_port"], r["correlation_id"]) for r in it.exchanges}
    for key, span in spans().items():
        if gone & (span.request | span.response) and key not in rows:
            silent = key[0] in ports and ports[key[0]] not in troubled
            ended = name == "field_endmid" and min(span.request) > 774  # after the end there is nothing to tell
            begun = name == "field_midstream" and max(span.response) <= 388  # nor before the beginning
            assert not silent or ended or begun, f"{key} is lost without a word"
    assert set(ports) <= base_ports


@pytest.mark.parametrize(("name", "snap"), [("field_snap96", 96), ("field_snap200", 200)])
def test_snap_length(name: str, snap: int) -> None:
    """Sizes, pairing and times are those of base; bodies beyond the cut are partial."""
    it, base = material(name), material("base")
    want = {(r["client_port"], r["correlation_id"]): r for r in base.exchanges}
    have = {(r["client_port"], r["correlation_id"]): r for r in it.exchanges}
    assert have.keys() == want.keys()
    same = [c for c in SAME if c not in ("status", "error_code", "error", "error_count", "decoded", "throttle_ms")]
    for key, row in have.items():
        assert {c: row[c] for c in same} == {c: want[key][c] for c in same}
        assert row["status"] in ("partial", want[key]["status"])
    assert any(r["status"] == "partial" for r in have.values())


@pytest.mark.parametrize(("name", "status"), [("field_to_broker", "one_way"), ("field_to_client", "orphan")])
def test_one_direction(name: str, status: str) -> None:
    it: Material = material(name)
    assert len(it.exchanges) == 176
    assert {r["status"] for r in it.exchanges} == {status}
    want = {(r["client_port"], r["correlation_id"]): r for r in material("base").exchanges}
    side = "request" if status == "one_way" else "response"
    for row in it.exchanges:
        true = want[row["client_port"], row["correlation_id"]]
        for column in (f"{side}_bytes", f"{side}_first_at", f"{side}_last_at"):
            assert row[column] == true[column]
        if status == "one_way" or row["api_inferred"]:
            assert row["api"] == true["api"]


TINY = [
    "field_4in6", "field_any_sll", "field_any_sll2", "field_erspan", "field_geneve", "field_gre", "field_gretap",
    "field_incl_over_orig", "field_ip_fragments", "field_ipip", "field_ipv4", "field_ipv6_options", "field_loop",
    "field_modified", "field_mpls", "field_null", "field_padded", "field_pppoe", "field_qinq", "field_raw",
    "field_raw12", "field_simple_packets", "field_two_sections", "field_vlan", "field_vxlan",
]  # fmt: skip
SHORT = [
    "field_be_ns", "field_be_us", "field_duplicates", "field_gz", "field_jittered", "field_le_ns", "field_lz4",
    "field_reordered", "field_two_interfaces", "field_zst",
]  # fmt: skip
OTHER_TIMES = {"field_any_sll", "field_any_sll2", "field_simple_packets", "field_two_sections", "field_jittered"}
"""Shapes whose clocks differ: other taps, no times, coarser times, jitter."""
OTHER_FRAMES = {"field_any_sll", "field_any_sll2", "field_duplicates", "field_ip_fragments", "field_reordered"}


@pytest.mark.parametrize("name", TINY + SHORT)
def test_the_same_answer_in_another_wrapping(name: str) -> None:
    it = material(name)
    base = material("base_tiny" if name in TINY else "base_short")
    drop = {"exchange_id", "connection_id", "capture", "request_file", "response_file"}
    if name in OTHER_TIMES:
        drop |= {c for c in base.exchanges[0] if c.endswith(("_at", "_ms"))}
    if name in OTHER_FRAMES | {"field_two_interfaces"}:
        drop |= {"request_frame", "response_frame"}
    columns = [c for c in base.exchanges[0] if c not in drop]
    want = {(r["client_port"], r["correlation_id"]): r for r in base.exchanges}
    have = {(r["client_port"], r["correlation_id"]): r for r in it.exchanges}
    assert len(it.exchanges) == len(base.exchanges)
    wrong = [
        f"{key} {c}: {have[key][c]!r}, in base {want[key][c]!r}"
        for key in want
        for c in columns
        if (have[key][c] != want[key][c] if not c.endswith("_ms") else differ(have[key][c], want[key][c]))
    ]
    assert not wrong, f"{len(wrong)}: " + "\n".join(wrong[:10])


def differ(one: float | None, other: float | None) -> bool:
    """Nanoseconds below the microsecond are the only difference that a rewritten file may make."""
    return (one is None) != (other is None) or (one is not None and other is not None and abs(one - other) > 0.0021)

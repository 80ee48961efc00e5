"""Damaged copies of a capture against the whole: what survived is read unchanged, nothing is invented, loss is said.

`base` is loss-free and its exchanges are known frame by frame. Each `field_*` copy of it lacks packets, an end, a
beginning or a direction, or stands in another wrapping.
"""

from __future__ import annotations

import io
import random
import struct
from typing import Any

import pytest

import kdissect
from tests.oracle import wire
from tests.oracle.damage import SAME, drawn, outcome, records, removed, spans, without
from tests.oracle.material import CAPTURES, Material, material

pytestmark = pytest.mark.oracle

DAMAGED = ["field_loss1", "field_loss5", "field_burst20", "field_burst20_many", "field_midstream", "field_endmid"]


@pytest.mark.parametrize("name", DAMAGED)
def test_what_survived_is_read_and_nothing_is_invented(name: str) -> None:
    result, wrong = outcome(material(name).exchanges, removed(name))
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
        drop |= {c for c in base.exchanges[0] if c.endswith(("_at", "_ms"))} | {"network_kind"}
    if name == "field_reordered":  # a network is measured by what acknowledged what when
        drop |= {"network_kind", "network_ms", "broker_ms", "agreed_ms", "excess_ms", "think_ms", "request_resent_ms"}
    if name in OTHER_FRAMES | {"field_two_interfaces"}:
        drop |= {"request_frame", "response_frame"}
    if name == "field_two_interfaces":  # it has a block that names addresses
        drop |= {"client_name", "broker_name"}
    if name == "field_simple_packets":
        drop.add("hold")  # it is told by times
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


def read(data: bytes) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = kdissect.open(io.BytesIO(data)).table("exchanges").to_pylist()
    return rows


RECORDED = ["base", "zoo_kafkajs", "zoo_franz_go", "zoo_librdkafka", "zoo_sarama_010", "k4_mtu1500", "k4_python_kafka"]
"""Captures in which no correlation id is used twice on a connection."""


def lose(seeds: range, name: str) -> None:
    lines, wrong = [], []
    for seed in seeds:
        kind, gone = drawn(seed, name)
        result, untruths = outcome(read(without(gone, name)), gone, name)
        lines.append(f"{name} {seed:5} {kind:45} {len(gone):5} packets lost, {result.same} of {result.whole} untouched "
                     f"exchanges the same, {result.touched} touched, {result.invented} invented")  # fmt: skip
        wrong += [f"seed {seed} ({kind}): {text}" for text in untruths]
    print("\n".join(lines))
    assert not wrong, f"{len(wrong)}: " + "\n".join(wrong[:8])


@pytest.mark.parametrize("name", RECORDED)
def test_drawn_losses(name: str) -> None:
    """Losses drawn by seed: what they left whole is read whole, nothing is invented."""
    lose(range(24 if name == "base" else 8), name)


@pytest.mark.parametrize(
    ("name", "seed"), [("k4_mtu1500", 1222), ("k4_mtu1500", 1255), ("k4_mtu1500", 1403), ("zoo_franz_go", 1000)]
)
def test_requests_behind_a_gap_tell_the_sides(name: str, seed: int) -> None:
    """Nothing told who the client is before the capture ended: responses wait for the requests behind a hole. In the
    last one these are the second stretch of a window, of which the first tells the sides."""
    lose(range(seed, seed + 1), name)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", RECORDED)
def test_many_drawn_losses(name: str) -> None:
    lose(range(1000, 1500), name)


@pytest.mark.parametrize("seed", range(4))
def test_reordering_changes_nothing(seed: int) -> None:
    """Records out of order in the file, each with its own time."""
    draw = random.Random(seed)
    header, packets = records()
    order = sorted(range(len(packets)), key=lambda n: n + draw.uniform(0, (1, 3, 8, 20)[seed]))
    check_same(read(header + b"".join(packets[n] for n in order)))


@pytest.mark.parametrize("seed", [1, 11, 18, 25, 37])
def test_two_clocks(seed: int) -> None:
    """Requests are stamped by another clock, which is ahead: what losses left whole is still paired."""
    _, gone = drawn(seed)
    header, packets = records()
    ports = material("base").ports
    asking = {p.number for p in wire.packets(CAPTURES / "base.pcap") if p.target[1] in ports}
    kept = b"".join(ahead(p) if n in asking else p for n, p in enumerate(packets, 1) if n not in gone)
    whole = {key for key, span in spans().items() if span.response and not gone & (span.request | span.response)}
    paired = {(r["client_port"], r["correlation_id"]) for r in read(header + kept) if r["status"] in ("ok", "error")}
    assert paired >= whole


def ahead(packet: bytes) -> bytes:
    """The packet a second later."""
    return struct.pack("<I", struct.unpack_from("<I", packet)[0] + 1) + packet[4:]


@pytest.mark.parametrize("share", [0.05, 0.5, 1.0])
def test_duplicates_change_nothing(share: float) -> None:
    """Packets captured twice, the copy 20 microseconds later."""
    draw = random.Random(1)
    header, packets = records()
    timed = [(struct.unpack_from("<II", p), p) for p in packets]
    copies = [((s, u + 20), struct.pack("<II", s + (u + 20) // 10**6, (u + 20) % 10**6) + p[8:])
              for (s, u), p in timed if draw.random() < share]  # fmt: skip
    merged = sorted(timed + copies, key=lambda item: item[0])
    check_same(read(header + b"".join(p for _, p in merged)))


@pytest.mark.parametrize("snap", [60, 70, 80, 120, 500, 1400])
def test_any_snap_length(snap: int) -> None:
    """From the first payload bytes on, sizes, pairing and times hold; below, nothing is invented."""
    header, packets = records()
    cut = b"".join(p[:8] + struct.pack("<I", min(snap, len(p) - 16)) + p[12 : 16 + snap] for p in packets)
    rows = read(header[:16] + struct.pack("<I", snap) + header[20:] + cut)
    want = {(r["client_port"], r["correlation_id"]): r for r in material("base").exchanges}
    for row in rows:
        true = want[row["client_port"], row["correlation_id"]]
        for column in ("request_bytes", "response_bytes", "request_first_at", "response_last_at", "latency_ms"):
            assert row[column] is None or row[column] == true[column]
    if snap >= 80:
        assert len(rows) == len(want)
        assert all(r["latency_ms"] is not None for r in rows)


def check_same(rows: list[dict[str, Any]]) -> None:
    want = {(r["client_port"], r["correlation_id"]): r for r in material("base").exchanges}
    have = {(r["client_port"], r["correlation_id"]): r for r in rows}
    assert len(rows) == len(want)
    wrong = [f"{key} {c}: {have[key][c]!r}, in base {want[key][c]!r}" for key in want for c in SAME
             if have[key][c] != want[key][c]]  # fmt: skip
    assert not wrong, f"{len(wrong)}: " + "\n".join(wrong[:8])

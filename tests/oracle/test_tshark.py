"""tshark, the field's dissector, against `exchanges`: every request's header, and every pair of the versions it knows.

tshark 4.0 decodes keys 0 to 47 at the versions of `kdissect.crosscheck.KNOWS`. Where it and we differ, the difference
must be one of those listed here or there, each with its reason; the request logs (`test_request_logs`) say who is
right.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import kdissect
from kdissect.crosscheck import KNOWS, MALFORMED, each_packet
from kdissect.schema import index
from tests.oracle.damage import drawn, removed, spans, without
from tests.oracle.dissector import Shown, decrypt, hinted, shown, tshark
from tests.oracle.material import CAPTURES, ENCRYPTED, LOGGED, Material, material
from tests.oracle.test_damage import DAMAGED

pytestmark = pytest.mark.oracle

BEHIND_MALFORMED = frozenset({"raw_ids"})
"""Captures with many requests in one packet, where tshark gives up on all that follow the one it cannot pair."""

TOKENS = {"sasl_old": "bare SASL tokens after SaslHandshake v0 are read as requests of unknown APIs"}

CLEAR = [name for name in LOGGED if name not in ENCRYPTED]


@pytest.mark.parametrize("name", CLEAR)
def test_headers_of_every_request(name: str) -> None:
    """Key, version, correlation id and client id, in the frame where tshark shows the message; all versions."""
    it = material(name)
    messages, _ = shown(it.path, it.ports)
    theirs = Counter((*_header(m), m.client_id) for m in messages if m.is_request and not _token(name, m))
    ours = Counter(
        (r["request_frame"], r["api_key"], r["api_version"], r["correlation_id"], r["request_bytes"] - 4, _as_shown(r))
        for r in it.exchanges
        if r["status"] != "orphan" and r["request_last_at"] is not None
    )  # fmt: skip
    if name == "raw_ids":  # a client id with NUL ends there for tshark; one that is no text has other marks for that
        theirs, ours = _without_clients(theirs), _without_clients(ours)
    assert not theirs - ours, f"tshark alone: {list((theirs - ours).items())[:5]}"
    assert not ours - theirs, f"we alone: {list((ours - theirs).items())[:5]}"


@pytest.mark.parametrize("name", sorted(ENCRYPTED))
def test_headers_through_tls(name: str) -> None:
    """tshark with the same key log."""
    it = material(name)
    messages, _ = shown(it.path, it.ports, *decrypt(CAPTURES / f"{name}.keys.log", it.ports))
    theirs = Counter((*_header(m), m.client_id) for m in messages if m.is_request)
    ours = Counter(
        (r["request_frame"], r["api_key"], r["api_version"], r["correlation_id"], r["request_bytes"] - 4, _as_shown(r))
        for r in it.exchanges
    )
    assert theirs == ours


@pytest.mark.parametrize("name", ["zoo_sarama_010", "zoo_kafkajs", "zoo_librdkafka"])
def test_recovered_beside_tshark(name: str, tmp_path: Path) -> None:
    """Captures with losses drawn by seed: the pairs that either finds, of those whose packets all survived."""
    it = material(name)
    for seed in range(4):
        kind, gone = drawn(seed, name)
        path = tmp_path / f"{seed}.pcap"
        path.write_bytes(without(gone, name))
        whole = {
            key for key, span in spans(name).items() if span.response and not gone & (span.request | span.response)
        }
        messages, _ = shown(path, it.ports)
        theirs = {(m.ports[1], m.correlation_id) for m in messages if not m.is_request} & whole
        rows = kdissect.open(path).table("exchanges").to_pylist()
        ours = {(r["client_port"], r["correlation_id"]) for r in rows if r["status"] in ("ok", "error")} & whole
        print(f"{name} {kind}: {len(gone)} packets lost, {len(whole)} exchanges whole; tshark pairs {len(theirs)}, "
              f"kdissect {len(ours)}")  # fmt: skip
        assert ours >= theirs


def test_the_damaged_set_beside_tshark() -> None:
    """Of the exchanges whose packets all survived, the share that each pairs; a line for each damaged copy of base, and
    one for base itself, of whose versions tshark knows few."""
    print("\n| capture | packets lost | exchanges whole | kdissect | tshark |\n|---|---|---|---|---|")
    for name in ["base", *DAMAGED]:
        gone, it = frozenset() if name == "base" else removed(name), material(name)
        whole = {key for key, span in spans().items() if span.response and not gone & (span.request | span.response)}
        messages, _ = shown(it.path, material("base").ports)
        theirs = {(m.ports[1], m.correlation_id) for m in messages if not m.is_request} & whole
        ours = {
            (r["client_port"], r["correlation_id"])
            for r in it.exchanges
            if r["response_last_at"] is not None and r["status"] != "orphan"
        } & whole
        shares = " | ".join(f"{len(found) / len(whole):.1%}" for found in (ours, theirs))
        print(f"| {name} | {len(gone)} | {len(whole)} | {shares} |")
        assert ours == whole


CUT_SHORT = {"field_snap96": (True, False), "field_snap200": (True, False), "field_to_broker": (True,),
             "field_to_client": (False,)}  # fmt: skip
"""Copies of base of whose packets a part was cut off, or of whose directions one was not captured: the sides that are
there (True: requests)."""


def test_cut_packets_and_single_directions_beside_tshark() -> None:
    """Of the messages that were captured at least in part, those that each shows, those whose API it tells, and what
    it shows besides: no message at all, or one shown before."""
    print(
        "\n| capture | messages | kdissect | its API | besides | tshark | its API | besides |\n|---" + "|---" * 7 + "|"
    )
    base = material("base")
    for name, sides in CUT_SHORT.items():
        there = {
            (r["client_port"], side, r["correlation_id"])
            for r in base.exchanges
            for side in sides
            if side or r["response_last_at"] is not None
        }
        ours = [
            (r["client_port"], side, r["correlation_id"], r["api"] is not None)
            for r in material(name).exchanges
            for side, when in ((True, "request_first_at"), (False, "response_first_at"))
            if r[when] is not None
        ]
        cells = []
        for found in (ours, hinted(material(name).path, base.ports)):
            shows = {message[:3] for message in found} & there
            told = {message[:3] for message in found if message[3]} & there
            cells += [f"{len(one) / len(there):.1%}" for one in (shows, told)] + [str(len(found) - len(shows))]
        print(f"| {name} | {len(there)} | {' | '.join(cells)} |")
        assert cells[0] == "100.0%"
        assert cells[2] == "0"
        assert len(sides) == 1 or cells[1] == "100.0%"


def _header(message: Shown) -> tuple[Any, ...]:
    key = message.key if message.key is not None and message.key >= 0 else None  # a negative key is no API: unknown
    return message.frame, key, message.version, message.correlation_id, message.size


def _as_shown(row: dict[str, Any]) -> str | None:
    """tshark prints a null client id in brackets, an empty one as nothing; ControlledShutdown v0 has none."""
    if row["client_id"] is None:
        return None if (row["api_key"], row["api_version"]) == (7, 0) else "[ Null ]"
    return row["client_id"] or None


def _without_clients(counts: Counter[tuple[Any, ...]]) -> Counter[tuple[Any, ...]]:
    out: Counter[tuple[Any, ...]] = Counter()
    for key, n in counts.items():
        out[key[:-1]] += n
    return out


def _token(name: str, message: Shown) -> bool:
    return name in TOKENS and message.key is not None and message.key not in index.load().apis


@pytest.mark.parametrize("name", CLEAR)
def test_pairs_of_known_versions(name: str) -> None:
    it = material(name)
    messages, trouble = shown(it.path, it.ports)
    theirs = Counter(
        (m.frame, m.correlation_id, m.request_frame, m.key, m.version) for m in messages if not m.is_request
    )
    rows = [r for r in it.exchanges if r["status"] != "orphan" and r["response_last_at"] is not None]
    ours = Counter(_pair(r) for r in rows)
    repeated = _repeated(it)
    ids_twice = {
        r["correlation_id"] for r in rows if repeated[r["connection_id"], r["correlation_id"]] > 1
    }  # fmt: skip
    alone = [
        pair
        for pair in ours - theirs
        if KNOWS.get(pair[3], -1) >= pair[4]
        and pair[1] not in ids_twice  # it takes the latest request with that id, even one that is answered already
        and not (trouble & {pair[0], pair[2]} and (pair[3] in MALFORMED or name in BEHIND_MALFORMED))
    ]
    assert not alone, f"we alone: {alone[:5]}"
    invented = [pair for pair in theirs - ours if pair[1] not in ids_twice]
    assert not invented, f"tshark alone: {invented[:5]}"


def _pair(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["response_frame"], row["correlation_id"], row["request_frame"], row["api_key"], row["api_version"]


def _repeated(it: Material) -> Counter[tuple[str, int]]:
    return Counter((r["connection_id"], r["correlation_id"]) for r in it.exchanges)


@pytest.mark.parametrize("name", ["raw_ids", "raw_reuse", "raw_cuts", "zoo_kafkajs", "zoo_sarama_010"])
def test_pyshark_shows_the_same_requests(name: str) -> None:
    """pyshark reads tshark's full decoding: its layers, message by message."""
    tshark()
    it = material(name)
    theirs = Counter((m.frame, m.key, m.version, m.correlation_id) for m in layers(it))
    ours = Counter(
        (r["request_frame"], r["api_key"], r["api_version"], r["correlation_id"])
        for r in it.exchanges
        if r["status"] != "orphan" and r["request_last_at"] is not None
    )
    assert theirs == ours


def layers(it: Material) -> list[Shown]:
    """Requests of a capture as pyshark has them."""
    pytest.importorskip("pyshark")
    found = []

    def look(packet: Any) -> None:
        for layer in packet.layers:
            if layer.layer_name == "kafka" and layer.get_field("request_key") is not None:
                ports_of = int(packet.tcp.srcport), int(packet.tcp.dstport)
                key, version = int(layer.request_key), int(layer.request_version)
                number, size = int(layer.correlation_id), int(layer.len)
                found.append(Shown(int(packet.number), ports_of, size, True, key, version, number, None, None))

    assert not each_packet(it.path, it.ports, look)
    return found

"""Kafka's own account of what it handled, against ours: every request, every field, every capture that has a log."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from typing import Any

import pytest

from kdissect.schema import index
from tests.oracle.agreement import Matched, differences, match
from tests.oracle.envelopes import Inner, inner
from tests.oracle.material import API_ALIASES, DIRECTIONS, LOGGED, SAMPLED, Material, material
from tests.oracle.silence import SLACK, why_body_differs, why_not_logged, why_not_on_wire

pytestmark = pytest.mark.oracle

CAPTURE_SAMPLE = SAMPLED
NOT_CONTROLLER = 41
SERVER_TIME_TOLERANCE_MS = 40.0
"""A broker's clock runs on after the packet is out: until its thread writes the log line."""


@pytest.fixture(params=LOGGED)
def logged(request: pytest.FixtureRequest) -> Material:
    return material(request.param)


def matched(it: Material) -> Matched:
    rows = sorted(it.exchanges, key=lambda r: (r["request_first_at"] or r["response_first_at"], _ordinal(r)))
    return match(it.entries, (r for r in rows if r["status"] != "orphan"))


def _ordinal(row: dict[str, Any]) -> int:
    return int(row["exchange_id"].rpartition(":")[2].lstrip("r"))


def test_every_logged_request_is_an_exchange(logged: Material) -> None:
    rows = logged.exchanges
    times = [t for r in rows for t in (r["request_first_at"], r["response_last_at"]) if t]
    began, ended = min(times), max(times)
    endpoints = frozenset((r["client_ip"], r["client_port"]) for r in rows)
    missing = [e for e in matched(logged).logged_only if why_not_on_wire(e, began, ended, endpoints) is None]
    assert not missing, f"{len(missing)} of {len(logged.entries)}, first: {missing[0].line[:300]}"


def test_every_answered_exchange_is_logged(logged: Material) -> None:
    rows = logged.exchanges
    logins = frozenset(r["connection_id"] for r in rows if r["api_key"] == 17)
    lines: dict[tuple[str, int], list[datetime]] = {(r["broker_ip"], r["broker_port"]): [] for r in rows}
    for entry in logged.entries:  # the Scala text does not say which broker
        for broker in [entry.broker] if entry.broker else lines:
            lines.setdefault(broker, []).append(entry.at)
    extra = [r for r in matched(logged).wire_only if why_not_logged(r, logins, lines) is None]
    assert not extra, f"{len(extra)} of {len(rows)}, first: {extra[0]}"


def test_headers_and_times_agree(logged: Material) -> None:
    wrong = []
    for entry, row in matched(logged).pairs:
        if (row["client_id"] or "") != entry.client_id:
            wrong.append(f"client id logged {entry.client_id!r}, ours {row['client_id']!r}: {row['exchange_id']}")
        if row["response_last_at"] is None or row["response_first_at"] is None:
            continue
        late = (row["response_last_at"] - entry.at) / SLACK
        if abs(late) > 10:
            wrong.append(f"answered at {row['response_last_at']}, logged at {entry.at}: {row['exchange_id']}")
        if row["latency_ms"] < entry.total_ms - SERVER_TIME_TOLERANCE_MS:
            wrong.append(f"latency {row['latency_ms']} ms, the broker says {entry.total_ms} ms: {row['exchange_id']}")
    assert not wrong, f"{len(wrong)}: " + "\n".join(wrong[:10])


def test_every_message_equals_the_log_field_by_field(logged: Material) -> None:
    pairs = [(entry, row) for entry, row in matched(logged).pairs if entry.has_json]
    if not pairs:
        pytest.skip("its log has no JSON: the release wrote text")
    wrong: Counter[str] = Counter()
    first: dict[str, str] = {}
    compared = 0
    for entry, row in pairs:
        for side in DIRECTIONS:
            said = entry.request if side == "request" else entry.response
            if said is None or why_body_differs(logged.name, entry, row, side):
                continue
            compared += 1
            ours = logged.messages(row["api"], side).get(row["exchange_id"])
            found = ["no such message"] if ours is None else list(differences(said, ours, entry.key, side))
            for text in found[:1]:
                place = f"{row['api']} v{entry.version} {side}: {text.partition(':')[0]}"
                wrong[place] += 1
                first.setdefault(place, f"{row['exchange_id']} {text[:300]}")
    assert not wrong, f"{sum(wrong.values())} of {compared} messages differ\n" + "\n".join(
        f"{n} x {place}; {first[place]}" for place, n in wrong.most_common(25)
    )


def test_forwarded_requests_are_inside_envelopes(logged: Material) -> None:
    forwarded = [e for e in logged.entries if e.forwarded]
    if not forwarded:
        pytest.skip("nothing is forwarded here")
    names = {key: api.name for key, api in index.load().apis.items()}
    inside: dict[tuple[Any, ...], list[Inner]] = {}
    for one in inner(logged, names):
        inside.setdefault((one.client, one.key, one.version, one.correlation_id, one.client_id), []).append(one)
    wrong = []
    for entry in forwarded:
        queue = inside.get((entry.client, entry.key, entry.version, entry.correlation_id, entry.client_id))
        if not queue:
            wrong.append(f"not in an Envelope: {entry.line[:200]}")
            continue
        one = queue.pop(0)
        wrong += differences(entry.request, one.request, entry.key, "request")
        if one.error == NOT_CONTROLLER and one.response is None:
            continue  # said by the Envelope, for the broker to ask another controller
        if entry.response is not None:
            wrong += differences(entry.response, one.response, entry.key, "response")
    assert not wrong, f"{len(wrong)}: " + "\n".join(wrong[:10])
    assert not any(inside.values()), f"never logged: {inside}"


def test_the_message_tables_hold_nothing_else(logged: Material) -> None:
    """A table of messages has a row for each exchange of its API whose body was captured and fits, and no other."""
    apis = {r["api"] for r in logged.exchanges if r["api"] and not r["api"].startswith("key ")}
    for api in sorted(apis):
        for side in DIRECTIONS:
            rows = [r for r in logged.exchanges if r["api"] == api]
            there = {r["exchange_id"] for r in rows if r["decoded"] and r[f"{side}_last_at"] is not None}
            have = set(logged.messages(api, side))
            assert there <= have, f"{api} {side}: {sorted(there - have)[:5]}"
            mine = {r["connection_id"] for r in logged.exchanges}
            invented = {e for e in have if e.partition(":")[0] in mine} - {r["exchange_id"] for r in rows}
            assert not invented, f"{api} {side}: {sorted(invented)[:5]}"


def test_counts_are_those_of_the_toml(logged: Material) -> None:
    assert shown(logged) == expected(logged)


def shown(it: Material) -> Counter[str]:
    counts: Counter[str] = Counter()
    for row in it.exchanges:
        named = (
            row["status"] != "orphan"
            and row["api_key"] is not None
            and 0 <= row["api_key"] < 100
            and row["api_version"] < 100
        )
        if named and row["request_last_at"] is not None:
            counts[f"{row['api']} v{row['api_version']}"] += 1
    return counts


def expected(it: Material) -> Counter[str]:
    counts: Counter[str] = Counter()
    for text, n in it.toml["shows"].items():
        name, _, rest = text.partition(" ")
        version, _, kind = rest.partition(" ")
        if kind == "request":
            name = kdissect_name(int(name)) if name.isdigit() else API_ALIASES.get(name, name)
            counts[f"{name} {version}"] += n
    return counts


def kdissect_name(key: int) -> str:
    return {4: "LeaderAndIsr", 52: "Vote", 17: "SaslHandshake", 36: "SaslAuthenticate", 58: "Envelope"}[key]

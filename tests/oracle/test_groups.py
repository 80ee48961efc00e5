"""The `groups` table and `connections.group_id` against what the brokers logged, over all captures with a JSON log."""

from __future__ import annotations

import base64
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.oracle import kio_payloads
from tests.oracle.material import ENCRYPTED, LOGGED, Material, material
from tests.oracle.request_log import Entry
from tests.oracle.test_request_logs import matched

pytestmark = pytest.mark.oracle

JOIN, SYNC, HEARTBEAT, LEAVE, COMMIT, TXN_COMMIT, FETCH = 11, 14, 12, 13, 8, 28, 9
MODERN = {68: "consumer", 76: "share", 88: "streams"}
MEMBERS = {COMMIT, FETCH, JOIN, HEARTBEAT, LEAVE, SYNC, 68, 76, 78, 79, 88}
"""APIs by which members of a group name it."""
Event = dict[str, Any]


def events(entry: Entry) -> Iterator[Event]:
    """What one logged request says of groups."""
    assert entry.request is not None
    asked: Any = entry.request
    answer: Any = entry.response or {}
    error = first_error(answer)
    one: Event = {
        "group_id": asked.get("group_id"), "member_id": asked.get("member_id") or None, "error_code": error,
        "generation": asked.get("generation_id"), "protocol": "classic",
    }  # fmt: skip
    if entry.key == JOIN:
        told = answer.get("generation_id") if not error else None
        yield one | {
            "event": "join",
            "member_id": one["member_id"] or answer.get("member_id") or None,
            "generation": told,
        }
    elif entry.key == SYNC:
        yield one | {"event": "sync", "assigned": assigned(answer.get("assignment"))}
    elif entry.key == HEARTBEAT and error:
        yield one | {"event": "heartbeat"}
    elif entry.key == LEAVE:
        yield from leaving(one | {"event": "leave", "generation": None}, asked, answer)
    elif entry.key in (COMMIT, TXN_COMMIT):
        name = "offset_commit" if entry.key == COMMIT else "txn_offset_commit"
        told = asked.get("generation_id_or_member_epoch")
        yield one | {"event": name, "generation": told, "protocol": None}
    elif entry.key == FETCH:
        own = one | {"event": "offset_fetch", "protocol": None, "generation": None}
        for group in asked.get("groups", [None]):
            if group is None:
                yield own
                continue
            (its,) = [item for item in answer["groups"] if item["group_id"] == group["group_id"]]
            yield own | {
                "group_id": group["group_id"], "member_id": group.get("member_id") or None,
                "generation": group.get("member_epoch"), "error_code": its["error_code"],
            }  # fmt: skip
    elif entry.key in MODERN:
        protocol = MODERN[entry.key]
        told = answer.get("member_epoch") if not error else asked["member_epoch"]
        member = one["member_id"] or answer.get("member_id") or None
        yield one | {
            "event": f"{protocol}_heartbeat", "protocol": protocol, "generation": told, "member_id": member,
        }  # fmt: skip


def leaving(one: Event, asked: Any, answer: Any) -> Iterator[Event]:
    if "members" not in asked or not asked["members"]:
        yield one
        return
    for at, member in enumerate(asked["members"]):
        error = answer["error_code"] or answer["members"][at]["error_code"]
        yield one | {"member_id": member["member_id"] or None, "error_code": error}


def first_error(answer: Any) -> int | None:
    """The answer's error code, else the first in it that is not zero."""
    if not answer:
        return None
    if answer.get("error_code"):
        return int(answer["error_code"])
    return next((code for code in codes(answer) if code), 0)


def codes(value: Any) -> Iterator[int]:
    if isinstance(value, dict):
        for name, item in value.items():
            if name.endswith("error_code"):
                yield item
            else:
                yield from codes(item)
    elif isinstance(value, list):
        for item in value:
            yield from codes(item)


def assigned(text: str | None) -> list[tuple[str, list[int]]] | None:
    """The partitions in a SyncGroup answer, as kio reads them."""
    entity = kio_payloads.read("ConsumerProtocolAssignment", base64.b64decode(text)) if text else None
    return None if entity is None else [(item.topic, list(item.partitions)) for item in entity.assigned_partitions]


@pytest.fixture(params=[name for name in LOGGED if name not in ENCRYPTED])
def logged(request: pytest.FixtureRequest) -> Material:
    it = material(request.param)
    if not any(entry.has_json for entry in it.entries):
        pytest.skip("its log has no JSON: the release wrote text")
    return it


def test_every_logged_event_is_a_row(logged: Material) -> None:
    rows = defaultdict(list)
    for row in logged.capture.table("groups").to_pylist():
        rows[row["exchange_id"]].append(row)
    wrong = []
    for entry, exchange in matched(logged).pairs:
        if not entry.has_json or entry.request is None or exchange["response_last_at"] is None:
            continue
        expected = list(events(entry))
        ours = rows.pop(exchange["exchange_id"], [])
        if len(ours) != len(expected):
            wrong.append(f"{exchange['exchange_id']} {exchange['api']}: {len(expected)} events, ours {ours}")
            continue
        for event, row in zip(expected, ours, strict=True):
            said = event | {"client_id": entry.client_id, "at": exchange["request_first_at"]}
            if "assigned" in event:
                found = row["assigned_partitions"]
                told = None if found is None else [(item["topic"], item["partitions"]) for item in found]
                if said.pop("assigned") != told:
                    wrong.append(f"{exchange['exchange_id']}: assigned {event['assigned']}, ours {told}")
            name = ErrorCode(event["error_code"]).name.upper() if event["error_code"] else None
            said["error"] = name
            wrong += [f"{row['exchange_id']} {k}: {v!r}, ours {row[k]!r}" for k, v in said.items() if row[k] != v]
    assert not wrong, f"{len(wrong)}: " + "\n".join(wrong[:10])


def test_the_group_of_every_connection(logged: Material) -> None:
    own: dict[Any, set[str]] = defaultdict(set)
    shared: dict[Any, set[str]] = defaultdict(set)
    partly = set()
    for entry, exchange in matched(logged).pairs:
        if entry.key in MEMBERS and entry.request is not None:
            named = {entry.request.get("group_id")} | {group["group_id"] for group in entry.request.get("groups", [])}
            for group in named - {None, ""}:
                own[exchange["connection_id"]].add(group)
                shared[entry.client[0], entry.client_id].add(group)
    for row in matched(logged).wire_only:
        if row["api_key"] in MEMBERS:  # said, and not logged
            partly |= {row["connection_id"], (row["client_ip"], row["client_id"])}
    seen = 0
    for row in logged.capture.table("connections").to_pylist():
        place = row["client_ip"], row["client_id"]
        if row["connection_id"] in partly or place in partly:
            continue
        groups = own.get(row["connection_id"]) or (shared.get(place) if row["client_id"] else None) or set()
        assert row["group_id"] == (next(iter(groups)) if len(groups) == 1 else None), (row, groups)
        seen += 1
    assert seen

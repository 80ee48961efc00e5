"""A few words for what an exchange was about: topic-partition@offset and records, a group's event, an offset asked for;
and whose time it took."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

NAMED = 2
"""Partitions that are named; of more only the number is told."""
WORTH_MS = 5.0
"""An exchange that took less has no owner worth naming."""
OWNERS = {
    "broker_ms": "broker", "queued_ms": "behind the request before", "network_ms": "network",
    "replication_ms": "followers", "request_transfer_ms": "sending the request",
    "response_transfer_ms": "sending the answer",
}  # fmt: skip
"""Parts of a latency, and whose time each is."""
HOLDS = {
    "timeout": "long poll", "data": "until data came", "throttled": "throttled", "rebalance": "rebalance",
    "replication": "followers",
}  # fmt: skip
"""What `hold` says of a wait that somebody asked for or another caused."""


def gists(tables: Mapping[str, pa.Table]) -> dict[str, str]:
    """By exchange id, what it was about; an exchange that no table has rows for has none."""
    parts: dict[str, list[str]] = defaultdict(list)
    records: dict[tuple[str, str | None, int], list[int]] = defaultdict(lambda: [0, 0, 0])
    for row in tables["record_batches"].to_pylist():
        entry = records[row["exchange_id"], row["topic"], row["partition"]]
        entry[0] += row["records"] or 0
        entry[1] += row["compressed_bytes"] or 0
    fetched: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in tables["fetch_partitions"].to_pylist():
        fetched[row["exchange_id"]].append(row)
    for name, rows in fetched.items():
        parts[name] += _fetch(rows, records)
    sent: dict[str, list[str]] = defaultdict(list)
    for (name, topic, partition), (count, size, _) in records.items():
        if name not in fetched:
            sent[name].append(f"{_place(topic, partition)} {_many(count, 'record')}, {size:,} B")
    for name, texts in sent.items():
        parts[name] += _few(texts)
    for row in tables["groups"].to_pylist():
        generation = "" if row["generation"] in (None, -1) else f" generation {row['generation']}"
        parts[row["exchange_id"]].append(f"{row['group_id']} {row['event']}{generation}")
    asked: dict[str, list[str]] = defaultdict(list)
    for row in tables["list_offsets"].to_pylist():
        asked[row["exchange_id"]].append(f"{_place(row['topic'], row['partition'])} {row['asked']} = {row['offset']}")
    for name, texts in asked.items():
        parts[name] += _few(texts)
    for row in tables["producer_ids"].to_pylist():
        given = row["producer_id"] is not None and row["producer_id"] >= 0
        producer = f" = producer {row['producer_id']} epoch {row['producer_epoch']}" if given else ""
        parts[row["exchange_id"]].append(f"{row['transactional_id'] or 'idempotent'}{producer}")
    for name, texts in _steps(tables["transaction_steps"].to_pylist()).items():
        parts[name] += texts
    return {name: "; ".join(dict.fromkeys(texts)) for name, texts in parts.items()}


def _steps(rows: list[dict[str, Any]]) -> dict[str, list[str]]:
    """By exchange id, what it did to transactions: whose, what, and which partitions or group it named."""
    named: dict[tuple[str, str], list[str]] = defaultdict(list)
    for row in rows:
        if row["step"] == "commit_offsets":
            continue  # `groups` tells
        whose = row["transactional_id"] or f"producer {row['producer_id']}"
        decided = "" if row["committed"] is None else " commit" if row["committed"] else " abort"
        place = _place(row["topic"], row["partition"]) if row["partition"] is not None else row["group_id"]
        texts = named[row["exchange_id"], f"{whose}{decided}"]
        texts += [place] if place is not None else []
    found: dict[str, list[str]] = defaultdict(list)
    for (name, what), texts in named.items():
        places = ", ".join(_few(texts))
        found[name].append(f"{what}: {places}" if places else what)
    return found


def _fetch(rows: list[dict[str, Any]], records: Mapping[tuple[str, str | None, int], list[int]]) -> list[str]:
    brought = [row for row in rows if row["record_bytes"]]
    if brought:
        texts = []
        for row in brought:
            count = records.get((row["exchange_id"], row["topic"], row["partition"]), [0])[0]
            offset = "" if row["fetch_offset"] is None else f"@{row['fetch_offset']}"
            many = f" {_many(count, 'record')}," if count else ""
            texts.append(f"{_place(row['topic'], row['partition'])}{offset}{many} {row['record_bytes']:,} B")
        return _few(texts)
    asked = sum(bool(row["in_request"]) for row in rows)
    return [f"asks for {_many(asked, 'partition')}, nothing new" if asked else "nothing new"]


def _few(texts: list[str]) -> list[str]:
    return texts[:NAMED] + ([f"{len(texts) - NAMED} partitions more"] if len(texts) > NAMED else [])


def _place(topic: str | None, partition: int | None) -> str:
    return f"{'(unknown)' if topic is None else topic}-{'?' if partition is None else partition}"


def _many(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def whose(row: Mapping[str, Any]) -> str:
    """Whose time most of an exchange's latency was; nothing for a short one, and where it is not known."""
    if (row.get("latency_ms") or 0.0) < WORTH_MS:
        return ""
    parts = {name: row.get(name) or 0.0 for name in OWNERS}
    parts["broker_ms"] -= parts["replication_ms"]
    most = max(parts, key=lambda name: parts[name])
    if most == "broker_ms" and row.get("hold") in HOLDS:
        return HOLDS[row["hold"]]
    return OWNERS[most] if parts[most] > 0 else ""

"""A literal, slow broker with a fetch session cache, and an observer who writes down what the contract says.

The broker follows FetchManager.newContext, FetchSession.update, FullFetchContext and IncrementalFetchContext line by
line. The observer sees requests and responses only, with plain dicts and no cleverness; it shares no code with the
product. `Broker.ask` runs one exchange through both.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.analysis.wire import START, WireRows

MAX = 2**31 - 1
Key = tuple[str, str | None, int]
"""(topic, topic id or None, partition)."""


@dataclass
class Log:
    high: int = 0
    start: int = 0
    error: int = 0
    preferred: int = -1
    diverging: int = -1


@dataclass
class Cached:
    offset: int
    high: int = -1
    start: int = -1


@dataclass
class Session:
    """The broker's."""

    number: int
    uses_ids: bool
    epoch: int
    parts: dict[Key, Cached] = field(default_factory=dict)


@dataclass
class Seen:
    """The observer's."""

    key: str
    number: int
    row: dict[str, Any]
    expected: int
    known: bool
    last_use: int
    members: dict[Key, dict[str, Any]] = field(default_factory=dict)
    held: int = 0
    returned: int = 0


def following(epoch: int) -> int:
    return 1 if epoch == MAX else epoch + 1


def topics_bytes(version: int, parts: list[Key]) -> int:
    """Length of the Topics field, written out byte by byte."""
    by_topic: dict[tuple[str, str | None], list[int]] = {}
    for topic, number, partition in parts:
        by_topic.setdefault((topic, number), []).append(partition)

    def uvarint(n: int) -> bytes:
        out = b""
        while n > 127:
            out += bytes([n & 127 | 128])
            n >>= 7
        return out + bytes([n])

    out = uvarint(len(by_topic) + 1) if version >= 12 else b"\0" * 4
    for (topic, _), partitions in by_topic.items():
        name = topic.encode()
        if version >= 13:
            out += b"\0" * 16
        elif version == 12:
            out += uvarint(len(name) + 1) + name
        else:
            out += b"\0\0" + name
        out += uvarint(len(partitions) + 1) if version >= 12 else b"\0" * 4
        for _ in partitions:
            out += b"\0" * 4  # Partition
            out += b"\0" * 4 if version >= 9 else b""  # CurrentLeaderEpoch
            out += b"\0" * 8  # FetchOffset
            out += b"\0" * 4 if version >= 12 else b""  # LastFetchedEpoch
            out += b"\0" * 8 if version >= 5 else b""  # LogStartOffset
            out += b"\0" * 4  # PartitionMaxBytes
            out += b"\0" if version >= 12 else b""  # tags
        out += b"\0" if version >= 12 else b""
    return len(out)


class Broker:
    def __init__(self, name: str = "1") -> None:
        self.name = name
        self.cache: dict[int, Session] = {}
        self.logs: dict[tuple[str, int], Log] = {}
        self.now = START
        self.rows = WireRows()
        self.expected: list[dict[str, Any]] = []
        self.reasons: list[str | None] = []
        self.live: dict[int, Seen] = {}
        self.incarnation: dict[int, int] = {}
        self.sessions: list[dict[str, Any]] = []
        self.stays: list[dict[str, Any]] = []
        self.ordinals: dict[str, int] = {}

    # The broker.

    def log(self, key: Key) -> Log:
        return self.logs.setdefault((key[0], key[2]), Log())

    def answer(self, key: Key, cached: Cached) -> dict[str, Any]:
        log = self.log(key)
        good = log.error == 0
        reads = good and log.preferred < 0 and log.diverging < 0 and cached.offset < log.high
        return {
            "topic": key[0],
            "topic_id": key[1],
            "partition": key[2],
            "in_response": True,
            "error_code": log.error,
            "high_watermark": log.high if good else -1,
            "broker_log_start_offset": log.start if good else -1,
            "record_bytes": 70 * (log.high - cached.offset) if reads else 0,
            "preferred_read_replica": log.preferred if good else -1,
            "diverging_epoch": log.diverging if good else -1,
        }

    def due(self, cached: Cached, got: dict[str, Any]) -> str | None:
        """CachedPartition.maybeUpdateResponseData: why the partition has to be in an incremental response."""
        why = []
        if got["record_bytes"] > 0:
            why.append("records")
        if cached.high != got["high_watermark"]:
            why.append("high_watermark")
            cached.high = got["high_watermark"]
        if cached.start != got["broker_log_start_offset"]:
            why.append("log_start_offset")
            cached.start = got["broker_log_start_offset"]
        if got["preferred_read_replica"] >= 0:
            why.append("preferred_replica")
        if got["error_code"] != 0:
            cached.high = -1
            why.append("error")
        if got["diverging_epoch"] >= 0:
            why.append("diverging_epoch")
        order = ["error", "records", "diverging_epoch", "preferred_replica", "high_watermark", "log_start_offset"]
        return next((word for word in order if word in why), None)

    def request_size(self, q: dict[str, Any], client: str, n: int) -> int:
        """Bytes of the n-th request of its connection."""
        return 60 + topics_bytes(q["version"], list(q["named"]))

    def handle(self, q: dict[str, Any]) -> tuple[int, int, list[dict[str, Any]], dict[Key, str]]:
        """(error, session id, partitions, reasons)."""
        number, epoch = q["id"], q["epoch"]
        throttled: bool = q["throttle"] > 0
        if epoch in (0, -1):
            if number != 0:
                self.cache.pop(number, None)
            fresh = {key: Cached(offset) for key, offset in q["named"].items()}
            given = [self.answer(key, cached) for key, cached in fresh.items()]
            if throttled:
                return 0, 0, [], {}
            if epoch == 0 and q["slot"]:
                session = Session(q["new_id"], q["version"] >= 13, 1)
                for (key, cached), got in zip(fresh.items(), given, strict=True):
                    cached.high, cached.start = got["high_watermark"], got["broker_log_start_offset"]
                    session.parts[key] = cached
                self.cache[session.number] = session
                return 0, session.number, given, {}
            return 0, 0, given, {}
        found = self.cache.get(number)
        if found is None:
            return 70, 0, [], {}
        if found.epoch != epoch:
            return 71, 0, [], {}
        if found.uses_ids != (q["version"] >= 13):
            return 106, 0, [], {}
        for key, offset in q["named"].items():
            if key in found.parts:
                found.parts[key].offset = offset
            else:
                found.parts[key] = Cached(offset)
        for key in q["forgotten"]:
            found.parts.pop(key, None)
        if not found.parts:
            del self.cache[number]
            return 0, 0, [], {}
        found.epoch = following(epoch)
        if throttled:
            return 0, number, [], {}
        given, reasons = [], {}
        for key, cached in found.parts.items():
            got = self.answer(key, cached)
            why = self.due(cached, got)
            if why:
                given.append(got)
                reasons[key] = why
        return 0, number, given, reasons

    # The observer.

    def ask(
        self,
        number: int,
        epoch: int,
        named: dict[Key, int] | None = None,
        forgotten: list[Key] | None = None,
        *,
        version: int = 13,
        client: str = "c",
        connection: str = "00000000000000aa",
        throttle: int = 0,
        slot: bool = True,
        new_id: int = 0,
        answered: bool = True,
    ) -> int:
        """One exchange; the session id of the answer."""
        named, forgotten = named or {}, forgotten or []
        at, back = self.now, self.now + 100
        self.now += 1000
        q = {
            "id": number, "epoch": epoch, "named": named, "forgotten": forgotten, "version": version,
            "throttle": throttle, "slot": slot, "new_id": new_id,
        }  # fmt: skip
        error, told, given, reasons = self.handle(q)
        n = self.ordinals.get(connection, 0)
        self.ordinals[connection] = n + 1
        exchange = f"{connection}:{n}"
        size = self.request_size(q, client, n)
        self.rows.fetches.append(
            {
                "exchange_id": exchange, "connection_id": connection, "broker": self.name, "client_id": client,
                "api_version": version, "request_last_at": at, "requested_at": at, "request_session_id": number,
                "session_epoch": epoch, "request_bytes": size, "partitions_sent": len(named),
                "partitions_forgotten": len(forgotten),
            }
            | (
                {
                    "response_first_at": back, "response_session_id": told, "error_code": error,
                    "throttle_ms": float(throttle), "partitions_returned": len(given),
                }
                if answered
                else {}
            )
        )  # fmt: skip
        keyed = {(got["topic"], got["topic_id"], got["partition"]): got for got in given} if answered else {}
        kind = (
            "sessionless"
            if (number, epoch) == (0, -1)
            else "create" if (number, epoch) == (0, 0) else "replace" if epoch == 0
            else "close" if epoch == -1 else "incremental"
        )  # fmt: skip
        for key in dict.fromkeys([*keyed, *named, *forgotten]):
            row = {
                "exchange_id": exchange, "topic": key[0], "topic_id": key[1], "partition": key[2],
                "in_request": key in named, "in_response": key in keyed, "forgotten": key in forgotten,
                "fetch_offset": named.get(key),
            }  # fmt: skip
            self.rows.partitions.append(row | keyed.get(key, {}))
            why = None if key not in keyed else reasons[key] if kind == "incremental" else "full"
            self.reasons.append(why)
        self.expected.append(self.observe(q, kind, at, back, error, told, keyed, answered, client, connection, size))
        return told

    def open(self, number: int, at: int, epoch: int, known: bool) -> Seen:
        if number in self.live:
            self.end(self.live[number], "evicted", at)
        self.incarnation[number] = self.incarnation.get(number, 0) + 1
        key = f"{self.name}/{number}/{self.incarnation[number]}"
        row = {
            "session_key": key, "broker": self.name, "session_id": number, "client_ids": [], "connections": [],
            "opened_at": at, "closed_at": None, "first_epoch": epoch, "last_epoch": epoch, "left_censored": not known,
            "requests": 0, "epoch_gaps": 0, "epochs_not_captured": 0, "epoch_repeats": 0, "wraps": 0, "churn": 0,
            "max_idle_ms": None, "fill_ratio": None, "end_reason": "open", "predecessor": None, "request_bytes": 0,
            "full_request_bytes_avoided": 0, "shard": None, "max_partitions": 0 if known else None,
        }  # fmt: skip
        seen = Seen(key, number, row, following(epoch), known, at)
        self.live[number] = seen
        self.sessions.append(row)
        return seen

    def held(self, seen: Seen) -> None:
        if not seen.row["left_censored"]:
            seen.row["max_partitions"] = max(seen.row["max_partitions"], len(seen.members))

    def leave(self, seen: Seen, key: Key, epoch: int | None) -> None:
        member = seen.members.pop(key)
        self.stays.append(
            {
                "session_key": seen.key, "topic": key[0], "topic_id": key[1], "partition": key[2],
                "from_epoch": member["from"], "to_epoch": epoch, "last_fetch_offset": member["offset"],
            }
        )  # fmt: skip

    def end(self, seen: Seen, why: str, at: int | None) -> None:
        for key in list(seen.members):
            self.leave(seen, key, None)
        seen.row["end_reason"], seen.row["closed_at"] = why, at
        if seen.held:
            seen.row["fill_ratio"] = seen.returned / seen.held
        del self.live[seen.number]

    def finish(self) -> None:
        for seen in list(self.live.values()):
            self.end(seen, "open", None)

    def count(self, seen: Seen, client: str, connection: str, size: int) -> None:
        seen.row["requests"] += 1
        seen.row["request_bytes"] += size
        for name, value in (("client_ids", client), ("connections", connection)):
            if value not in seen.row[name]:
                seen.row[name].append(value)

    def update(self, seen: Seen, q: dict[str, Any], epoch: int) -> dict[str, Any]:
        """What the request changes."""
        added = altered = replaced = removed = 0
        gone = {(key[0], key[2]): key for key in q["forgotten"] if key in seen.members}
        for key, offset in q["named"].items():
            if key in seen.members:
                altered += 1
                seen.members[key]["offset"] = offset
            else:
                seen.members[key] = {"from": epoch if seen.known else None, "offset": offset}
                if gone.get((key[0], key[2]), key) != key:
                    replaced += 1
                else:
                    added += 1
        for key in q["forgotten"]:
            if key in seen.members:
                self.leave(seen, key, epoch)
                removed += 1
            elif not seen.known:
                removed += 1
        row = seen.row
        if epoch:
            row["churn"] += removed + (added + replaced if seen.known else 0)
            named = [key for key in q["named"] if key in seen.members or key in q["forgotten"]]
            saved = topics_bytes(q["version"], list(seen.members)) - topics_bytes(q["version"], named)
            row["full_request_bytes_avoided"] += max(0, saved)
        self.held(seen)
        if not seen.known:
            return {}
        return {
            "partitions_added": added, "partitions_altered": altered, "partitions_replaced": replaced,
            "implied_partitions": len([key for key in seen.members if key not in q["named"]]),
        }  # fmt: skip

    def observe(
        self, q: dict[str, Any], kind: str, at: int, back: int, error: int, told: int, given: dict[Key, Any],
        answered: bool, client: str, connection: str, size: int,
    ) -> dict[str, Any]:  # fmt: skip
        out: dict[str, Any] = dict.fromkeys(
            ["expected_epoch", "epoch_status", "session_outcome", "session_key", "implied_partitions",
             "partitions_added", "partitions_altered", "partitions_replaced", "hidden_partitions"]
        )  # fmt: skip
        out["request_kind"] = kind
        nothing = {"partitions_added": 0, "partitions_altered": 0, "partitions_replaced": 0}
        if kind != "incremental":
            out["implied_partitions"] = 0
        if kind == "sessionless":
            return out | nothing
        outcome = None
        if answered:
            outcome = {70: "evicted_or_unknown", 71: "epoch_error", 106: "topic_id_error"}.get(error)
            if outcome is None and kind in ("create", "replace"):
                outcome = "created" if told else "throttled" if q["throttle"] and not given else "refused"
            elif outcome is None:
                outcome = "continued" if told else "closed"
        out["session_outcome"] = outcome
        seen = self.live.get(q["id"])
        if kind != "incremental":
            if seen:
                out["session_key"] = seen.key
                self.count(seen, client, connection, size)
                self.end(seen, "replaced" if kind == "replace" else "closed", at)
            if outcome == "created":
                old = out["session_key"]
                new = self.open(told, back, 0, True)
                new.row["predecessor"] = old
                self.count(new, client, connection, size)
                out |= self.update(new, q, 0) | {"implied_partitions": 0, "session_key": new.key}
            elif outcome is not None:
                out |= nothing
            return out
        epoch: int = q["epoch"]
        accepted = outcome in ("continued", "closed")
        if seen is None:
            out["epoch_status"] = "unknown_start"
            if not accepted:
                return out | (nothing if answered else {})
            seen = self.open(q["id"], at, epoch, False)
            seen.members = {}
        else:
            out["expected_epoch"] = seen.expected
            if epoch == seen.expected:
                wrapped = epoch == 1 and seen.row["last_epoch"] > 0
                out["epoch_status"] = "wrapped" if wrapped else "ok"
            elif seen.row["wraps"] or (seen.expected == 1 and seen.row["last_epoch"] > 0):
                behind = (seen.expected - epoch) % MAX
                out["epoch_status"] = "repeat" if behind <= MAX // 2 + 1 else "gap"
            else:
                out["epoch_status"] = "gap" if epoch > seen.expected else "repeat"
            seen.row["epoch_gaps"] += out["epoch_status"] == "gap"
            seen.row["epoch_repeats"] += out["epoch_status"] == "repeat"
            idle = (at - seen.last_use) / 1000
        self.count(seen, client, connection, size)
        out["session_key"] = seen.key
        due = out["epoch_status"] in ("ok", "wrapped")
        if accepted or (not answered and due):
            seen.row["wraps"] += out["epoch_status"] == "wrapped"
            if out["epoch_status"] != "unknown_start":
                seen.row["max_idle_ms"] = max(seen.row["max_idle_ms"] or 0.0, idle)
                seen.last_use = at
            if out["epoch_status"] in ("gap", "repeat"):
                seen.known = False
            seen.expected = following(epoch)
            changes = self.update(seen, q, epoch)
            if answered:
                out |= changes
        if accepted:
            seen.row["last_epoch"] = epoch
            for key in given:
                if key not in seen.members:
                    assert not seen.known
                    seen.members[key] = {"from": None, "offset": None}
            self.held(seen)
            if outcome == "continued" and seen.known:
                seen.held += len(seen.members)
                seen.returned += len(given)
                out["hidden_partitions"] = len(seen.members) - len(given)
            if outcome == "closed":
                out["implied_partitions"] = 0
                self.end(seen, "empty", at)
        elif answered:
            out |= nothing
            if outcome == "evicted_or_unknown":
                self.end(seen, "evicted", at)
            elif due and outcome == "epoch_error":
                seen.known = False
        return out

"""Reads Kafka's request logs (`captures/NAME.requests.log.zst`): the brokers' own account of what they handled.

Three shapes, by release:

* JSON (2.8 and later): header, request, response, connection and times, in full. Records are sizes only.
* `toString` text (1.0 to 2.7; 0.10 and 0.11 without responses): header, connection and times are read, bodies are not.
* the Scala text of 0.8: the same, but the connection is only the client's end.

Bodies of the JSON form come back in the form of `Capture.messages`: snake_case names, `<name>_bytes` for records,
old field names (2.8) under their present ones. What a log cannot say stands in `tests.oracle.silence` and nowhere else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import zstandard

Endpoint = tuple[str, int]

_LINE = re.compile(
    r"\[(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d),(\d{3})\] (?:(\S*\d) )?(?:(?:INFO|DEBUG|TRACE) )?Completed request:(.*)"
)
_CONNECTION = re.compile(r"(\[[^\]]+\]|[\da-fA-F.:]+):(\d+)-(\[[^\]]+\]|[\da-fA-F.:]+):(\d+)(?:-\d+)*$")
_JAVA = re.compile(
    r"RequestHeader\(apiKey=(?P<name>\w+), apiVersion=(?P<version>-?\d+), clientId=(?P<client>.*?), "
    r"correlationId=(?P<correlation>-?\d+)\) -- "
)
_STRUCT = re.compile(
    r"\{api_key=(?P<key>-?\d+),api_version=(?P<version>-?\d+),correlation_id=(?P<correlation>-?\d+),"
    r"client_id=(?P<client>.*?)\} -- "
)
_SCALA = re.compile(
    r"Name: ?(?P<name>\w+)Request; ?Version: ?(?P<version>\d+);.*?CorrelationId: ?(?P<correlation>-?\d+); ?"
    r"(?:ClientId: ?(?P<client>.*?);)?"
)
_FROM = re.compile(r" from (?:connection (?P<connection>\S+?)|client /(?P<client>\S+?));totalTime:(?P<total>[\d.]+)")

NAMES = [
    "PRODUCE", "FETCH", "LIST_OFFSETS", "METADATA", "LEADER_AND_ISR", "STOP_REPLICA", "UPDATE_METADATA",
    "CONTROLLED_SHUTDOWN", "OFFSET_COMMIT", "OFFSET_FETCH", "FIND_COORDINATOR", "JOIN_GROUP", "HEARTBEAT",
    "LEAVE_GROUP", "SYNC_GROUP", "DESCRIBE_GROUPS", "LIST_GROUPS", "SASL_HANDSHAKE", "API_VERSIONS",
    "CREATE_TOPICS", "DELETE_TOPICS", "DELETE_RECORDS", "INIT_PRODUCER_ID", "OFFSET_FOR_LEADER_EPOCH",
    "ADD_PARTITIONS_TO_TXN", "ADD_OFFSETS_TO_TXN", "END_TXN", "WRITE_TXN_MARKERS", "TXN_OFFSET_COMMIT",
    "DESCRIBE_ACLS", "CREATE_ACLS", "DELETE_ACLS", "DESCRIBE_CONFIGS", "ALTER_CONFIGS", "ALTER_REPLICA_LOG_DIRS",
    "DESCRIBE_LOG_DIRS", "SASL_AUTHENTICATE", "CREATE_PARTITIONS", "CREATE_DELEGATION_TOKEN",
    "RENEW_DELEGATION_TOKEN", "EXPIRE_DELEGATION_TOKEN", "DESCRIBE_DELEGATION_TOKEN", "DELETE_GROUPS",
    "ELECT_LEADERS", "INCREMENTAL_ALTER_CONFIGS", "ALTER_PARTITION_REASSIGNMENTS", "LIST_PARTITION_REASSIGNMENTS",
    "OFFSET_DELETE", "DESCRIBE_CLIENT_QUOTAS", "ALTER_CLIENT_QUOTAS", "DESCRIBE_USER_SCRAM_CREDENTIALS",
    "ALTER_USER_SCRAM_CREDENTIALS",
]  # fmt: skip
"""API names of the text logs, in order of their keys."""

OTHER_NAMES = {
    "PRODUCER": 0, "OFFSET": 2, "TOPIC_METADATA": 3, "CONSUMER_METADATA": 10, "GROUP_COORDINATOR": 10,
    "ELECT_PREFERRED_LEADERS": 43, "ELECT_PREFERRED_LEADER": 43, "CREATE_DELEGATION": 38,
}  # fmt: skip
"""What older releases called them."""

RENAMED: dict[tuple[int, str], dict[str, str]] = {
    (1, "response"): {
        "responses.partition_responses": "partitions",
        "responses.partition_responses.partition": "partition_index",
        "responses.partition_responses.record_set_bytes": "records_bytes",
    },
    (4, "request"): {"topic_states.partition_states.zk_version": "partition_epoch"},
    (8, "request"): {"generation_id": "generation_id_or_member_epoch"},
    (24, "request"): {
        "transactional_id": "v3_and_below_transactional_id",
        "producer_id": "v3_and_below_producer_id",
        "producer_epoch": "v3_and_below_producer_epoch",
        "topics": "v3_and_below_topics",
    },
    (24, "response"): {
        "results": "results_by_topic_v3_and_below",
        "results.results": "results_by_partition",
        "results.results.error_code": "partition_error_code",
        "errors": "results_by_topic_v3_and_below",
    },
    (28, "request"): {"generation_id": "generation_id_or_member_epoch"},
    (35, "request"): {"topics.partition_index": "partitions"},
    (43, "request"): {"topic_partitions.partition_id": "partitions"},
    (52, "request"): {
        "topics.partitions.candidate_epoch": "replica_epoch",
        "topics.partitions.candidate_id": "replica_id",
        "topics.partitions.candidate_directory_id": "replica_directory_id",
    },
    (56, "request"): {"topics.name": "topic_name", "topics.partitions.current_isr_version": "partition_epoch"},
    (56, "response"): {"topics.name": "topic_name", "topics.partitions.current_isr_version": "partition_epoch"},
    (74, "response"): {
        "client_metrics_resources": "config_resources",
        "client_metrics_resources.name": "resource_name",
    },
}
"""Fields that older releases logged under another name: (API key, side) -> path -> present name of its last part."""


@dataclass(slots=True)
class Entry:
    """One request as its broker logged it when the answer was out (`at`)."""

    at: datetime
    key: int
    version: int
    correlation_id: int
    client_id: str
    broker: Endpoint | None
    client: Endpoint
    total_ms: float
    node: str = ""
    forwarded: bool = False
    throttle_ms: float = 0.0
    request: dict[str, Any] | None = None
    response: dict[str, Any] | None = None
    has_json: bool = False
    line: str = field(default="", repr=False)


def read(path: Path) -> list[Entry]:
    """All entries of a log (plain or .zst), in its order (by time). Raises ValueError where it is not understood."""
    data = path.read_bytes()
    if path.suffix == ".zst":
        data = zstandard.ZstdDecompressor().stream_reader(data).read()
    return list(_entries(data.decode("utf-8", "replace")))


def _entries(text: str) -> Iterator[Entry]:
    for line in text.split("\n"):
        if not line:
            continue
        found = _LINE.match(line)
        if not found:
            raise ValueError(f"not a line of a request log: {line[:200]!r}")
        day, clock, ms, node, rest = found.groups()
        at = datetime.fromisoformat(f"{day}T{clock}.{ms}").replace(tzinfo=UTC)
        entry = _json(at, rest) if rest.startswith('{"') else _text(at, rest)
        entry.node, entry.line = node or "", line
        yield entry


def _json(at: datetime, rest: str) -> Entry:
    data, _ = json.JSONDecoder().raw_decode(rest)
    header = data["requestHeader"]
    broker, client = connection(data["connection"])
    key = header["requestApiKey"]
    request, response = data["request"], data["response"]
    return Entry(
        at, key, header["requestApiVersion"], header["correlationId"], header.get("clientId") or "", broker, client,
        data["totalTimeMs"], forwarded=data["isForwarded"], throttle_ms=data.get("throttleTimeMs", 0.0),
        request=normal(request, key, "request"),
        response=normal(response, key, "response") if isinstance(response, dict) else None,
        has_json=True,
    )  # fmt: skip


def _text(at: datetime, rest: str) -> Entry:
    found = _JAVA.match(rest) or _STRUCT.match(rest) or _SCALA.match(rest)
    origin = _FROM.search(rest)
    if not found or not origin:
        raise ValueError(f"not a request: {rest[:200]!r}")
    part = found.groupdict()
    key = int(part["key"]) if "key" in part else _key(part["name"])
    client_id = part["client"] or ""
    if optional := re.fullmatch(r"Some\((.*)\)", client_id):
        client_id = optional[1]
    broker: Endpoint | None = None
    if origin["connection"]:
        broker, client = connection(origin["connection"])
    else:
        host, _, port = origin["client"].rpartition(":")
        client = (host, int(port))
    return Entry(
        at, key, int(part["version"]), int(part["correlation"]), client_id, broker, client, float(origin["total"])
    )


def _key(name: str) -> int:
    upper = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).upper()
    return OTHER_NAMES[upper] if upper in OTHER_NAMES else NAMES.index(upper)


def connection(text: str) -> tuple[Endpoint, Endpoint]:
    """`"127.0.0.1:19092-127.0.0.1:38278-1-31"` -> broker's end, client's end."""
    found = _CONNECTION.match(text)
    if not found:
        raise ValueError(f"not a connection: {text!r}")
    return (_address(found[1]), int(found[2])), (_address(found[3]), int(found[4]))


def _address(text: str) -> str:
    """As in our tables: Java writes IPv6 in full (`0:0:0:0:0:0:0:1`), with or without brackets."""
    return str(ip_address(text.strip("[]")))


def snake(name: str) -> str:
    """`partitionMaxBytes` -> `partition_max_bytes`, `v3AndBelowTopics` -> `v3_and_below_topics`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z0-9])(?=[A-Z][a-z])", "_", name).lower()


def normal(value: Any, key: int, side: str, path: str = "") -> Any:
    """A logged JSON value with the contract's names."""
    if isinstance(value, list):
        return [normal(item, key, side, path) for item in value]
    if not isinstance(value, dict):
        return value
    renamed = RENAMED.get((key, side), {})
    out: dict[str, Any] = {}
    for name, item in value.items():
        short = snake(name.removesuffix("SizeInBytes")) + "_bytes" if name.endswith("SizeInBytes") else snake(name)
        here = f"{path}.{short}" if path else short
        out[renamed.get(here, short)] = normal(item, key, side, here)
    return out

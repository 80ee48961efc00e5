"""Requests that a live broker takes seriously and that do it no harm: values by Kafka's field names, encoded by kio.

A body is a tree of Kafka's names (from the facts, not from our schema). kio encodes it where it knows the version; for
the versions newer than kio a small encoder of our own writes the bytes. Neither proves anything here: the broker reads
them and logs what it understood.
"""

from __future__ import annotations

import datetime
import io
import struct
import types
import typing
import uuid
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

from tests.oracle.kio_messages import EPOCH, classes, hints
from tests.schema.facts import Layout, facts

REQUEST = 0
TOPIC = "live"
WRONG = "kdissect-another-cluster"
"""A cluster id that is not the broker's: it refuses what would change the quorum."""
NOBODY = 77
"""A node that does not exist."""

METADATA = 3
IDS_IN_METADATA = 12
"""Before, the field is there and must be zero (KAFKA-13369)."""

INTEGERS = {"int8": ">b", "int16": ">h", "int32": ">i", "int64": ">q", "uint16": ">H", "uint32": ">I", "float64": ">d"}


@dataclass(frozen=True, slots=True)
class Known:
    """What the client has learnt of the broker."""

    topic_id: uuid.UUID
    records: bytes


def make(key: int, version: int, full: bool, known: Known) -> dict[str, Any]:
    """The tree of a request. `full`: everything there, tags too; else as empty as can be."""
    layout = facts()[str(key), "request", version, ""]
    return _struct(_below(layout.fields), "", key, version, full, known)


Described = tuple[str, str, bool, int | None, str | None]
"""(name, type, nullable, tag, default of a tagged one)."""


def _below(described: tuple[str, ...]) -> dict[str, list[Described]]:
    below: dict[str, list[Described]] = {}
    for text in described:
        path, _, kind = text.partition(":")
        kind, _, default = kind.partition("=")
        kind, _, tag = kind.partition("@")
        above, _, name = path.rpartition(".")
        item = (name, kind.rstrip("?"), kind.endswith("?"), int(tag) if tag else None, default or None)
        below.setdefault(above, []).append(item)
    return below


def _struct(below: Any, path: str, key: int, version: int, full: bool, known: Known) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, kind, nullable, tag, _ in below.get(path, ()):
        here = f"{path}.{name}" if path else name
        if tag is not None and not full:
            continue
        given = _chosen(key, here, name, kind, version, full, known)
        if given is not ...:
            out[name] = given
        elif kind.startswith("[]"):
            inner = kind[2:]
            element = (
                _struct(below, here, key, version, full, known)
                if inner == "{}"
                else _chosen(key, here + "[]", name, inner, version, full, known)
            )
            out[name] = [_plain(inner, name) if element is ... else element] if full else []
        elif kind == "{}":
            out[name] = None if nullable and not full else _struct(below, here, key, version, full, known)
        else:
            out[name] = None if nullable and not full else _plain(kind, name)
    return out


def _plain(kind: str, name: str) -> Any:
    """A value that says little, by what fields of such names hold."""
    if kind == "string":
        return TOPIC
    if kind in ("bytes", "records"):
        return b"live-bytes"
    if kind == "uuid":
        return uuid.UUID(int=7)
    if kind == "bool":
        return False
    if kind == "float64":
        return 1e9
    if name.endswith("Ms"):
        return 1000
    return -1 if name.endswith("Epoch") else 0


def _chosen(key: int, path: str, name: str, kind: str, version: int, full: bool, known: Known) -> Any:
    """The value of a field that matters; ... where any will do."""
    if (key, path) in BY_PATH:
        value = BY_PATH[key, path]
    elif name in BY_NAME and (kind == "string") == isinstance(BY_NAME[name], str):
        value = BY_NAME[name]
    elif name == "TopicId" and kind == "uuid":
        value = uuid.UUID(int=0) if key == METADATA and version < IDS_IN_METADATA else known.topic_id
    elif name == "Records":
        value = known.records
    else:
        return ...
    if not full and kind.startswith("[]"):
        return ...
    return value.format(key=key, version=version) if isinstance(value, str) else value


BY_NAME: dict[str, Any] = {
    "GroupId": "live-{key}-{version}",
    "MemberId": "",
    "TransactionalId": "live-txn",
    "V3AndBelowTransactionalId": "live-txn",
    "ClusterId": WRONG,
    "MaxWaitMs": 50,
    "MaxWaitTimeMs": 50,
    "MinBytes": 1,
    "MaxBytes": 100_000,
    "PartitionMaxBytes": 50_000,
    "SessionTimeoutMs": 500,
    "RebalanceTimeoutMs": 500,
    "ProtocolType": "consumer",
    "Acks": 1,
    "ReplicaId": -1,
    "BrokerId": NOBODY,
    "LeaderId": NOBODY,
    "NodeId": NOBODY,
    "ControllerId": NOBODY,
    "VoterId": NOBODY,
    "CandidateId": NOBODY,
    "ResourceType": 2,
    "PrincipalType": "User",
    "Iterations": 4096,
    "Mechanism": 1,
    "ProducerId": 5,
    "ProducerEpoch": 0,
    "Port": 9092,
    "ClientSoftwareVersion": "1.0",
}
BY_PATH: dict[tuple[int, str], Any] = {
    (1, "SessionEpoch"): -1,
    (1, "ReplicaState.ReplicaEpoch"): -1,
    (2, "Topics.Partitions.Timestamp"): -1,
    (8, "GenerationIdOrMemberEpoch"): -1,
    (11, "Protocols.Name"): "range",
    (11, "Protocols.Metadata"): bytes.fromhex("000000000001") + b"\0\4live" + bytes.fromhex("ffffffff"),
    (14, "Assignments.Assignment"): bytes.fromhex("000000000001")
    + b"\0\4live"
    + bytes.fromhex("0000000100000000ffffffff"),
    (17, "Mechanism"): "PLAIN",
    (19, "Topics.Name"): "live-{key}-{version}",
    (19, "Topics.NumPartitions"): -1,
    (19, "Topics.ReplicationFactor"): -1,
    (19, "Topics.Assignments.BrokerIds"): [1],
    (19, "Topics.Configs.Name"): "retention.ms",
    (19, "Topics.Configs.Value"): "86400000",
    (20, "TopicNames"): ["live-gone"],
    (20, "Topics.Name"): "live-gone",
    (20, "Topics.TopicId"): uuid.UUID(int=0),
    (22, "TransactionTimeoutMs"): 10_000,
    (22, "ProducerId"): -1,
    (30, "Creations.ResourcePatternType"): 3,
    (30, "Creations.Principal"): "User:alice",
    (30, "Creations.Host"): "*",
    (30, "Creations.Operation"): 3,
    (30, "Creations.PermissionType"): 3,
    (29, "ResourceTypeFilter"): 2,
    (29, "PatternTypeFilter"): 3,
    (29, "Operation"): 1,
    (29, "PermissionType"): 1,
    (31, "Filters.ResourceTypeFilter"): 2,
    (31, "Filters.PatternTypeFilter"): 3,
    (31, "Filters.Operation"): 3,
    (31, "Filters.PermissionType"): 3,
    (33, "Resources.Configs.Name"): "retention.ms",
    (33, "Resources.Configs.Value"): "86400000",
    (37, "Topics.Count"): 1,
    (44, "Resources.Configs.Name"): "retention.ms",
    (44, "Resources.Configs.Value"): "86400000",
    (45, "Topics.Partitions.Replicas"): [1],
    (48, "Components.EntityType"): "user",
    (49, "Entries.Entity.EntityType"): "user",
    (49, "Entries.Entity.EntityName"): "live-user",
    (49, "Entries.Ops.Key"): "producer_byte_rate",
    (51, "Upsertions.Salt"): b"live-test-salt",
    (51, "Upsertions.SaltedPassword"): b"live-test-salted-password",
    (55, "Topics.TopicName"): "__cluster_metadata",
    (58, "RequestData"): bytes.fromhex("002e0000000f4240") + b"\0\4live\0" + bytes.fromhex("000003e8 01 00"),
    (58, "RequestPrincipal"): b"\0\0\5User\12ANONYMOUS\0\0",
    (58, "ClientHostAddress"): bytes([127, 0, 0, 1]),
    (57, "FeatureUpdates.Feature"): "live.feature",
    (57, "FeatureUpdates.UpgradeType"): 1,
    (68, "MemberId"): "AAAAAAAAAAAAAAAAAAAALQ",
    (68, "MemberEpoch"): 0,
    (68, "TopicPartitions"): [],
    (68, "ServerAssignor"): "uniform",
    (76, "MemberId"): "AAAAAAAAAAAAAAAAAAAALQ",
    (76, "MemberEpoch"): 0,
    (78, "MemberId"): "AAAAAAAAAAAAAAAAAAAALQ",
    (78, "ShareSessionEpoch"): 0,
    (79, "MemberId"): "AAAAAAAAAAAAAAAAAAAALQ",
    (79, "ShareSessionEpoch"): 1,
    (88, "MemberId"): "AAAAAAAAAAAAAAAAAAAALQ",
    (88, "MemberEpoch"): 0,
}

# encoding -------------------------------------------------------------------------------------------------------------


def encode(key: int, version: int, tree: dict[str, Any]) -> tuple[bytes, bool]:
    """(body, whether kio wrote it)."""
    layout = facts()[str(key), "request", version, ""]
    below = _below(layout.fields)
    cls = classes().get((key, REQUEST, version))
    if cls is None:
        return _written(below, "", tree, layout.flexible), False
    from kio.serial import entity_writer

    out = io.BytesIO()
    entity_writer(cls)(out, _entity(cls, below, "", tree))
    return out.getvalue(), True


def _entity(cls: type, below: Any, path: str, tree: dict[str, Any]) -> Any:
    """The tree as kio's dataclass: its fields stand in the order of Kafka's, tagged ones have their tag."""
    ours = below.get(path, [])
    untagged = iter(item for item in ours if item[3] is None)
    tagged = {item[3]: item for item in ours if item[3] is not None}
    given = {}
    for field in fields(cls):
        tag = field.metadata.get("tag")
        name = (next(untagged) if tag is None else tagged[tag])[0]
        if name in tree:
            here = f"{path}.{name}" if path else name
            given[field.name] = _rich(hints(cls)[field.name], field.metadata.get("kafka_type"), below, here, tree[name])
    return cls(**given)


def _rich(hint: Any, kind: str | None, below: Any, path: str, value: Any) -> Any:
    """A value as kio wants it."""
    union = isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union
    inner = next(item for item in (typing.get_args(hint) if union else (hint,)) if item is not type(None))
    if typing.get_origin(inner) is tuple and value is not None:
        element = typing.get_args(inner)[0]
        return tuple(_rich(element, kind, below, path, item) for item in value)
    if value is None:
        return None
    if kind is None:
        return _entity(inner, below, path, value)
    if kind == "uuid":
        return value if value.int else None
    if kind.startswith("timedelta"):
        return datetime.timedelta(milliseconds=value)
    if kind.startswith("datetime"):
        return None if value == -1 else EPOCH + datetime.timedelta(milliseconds=value)
    if kind == "error_code":
        from kio.schema.errors import ErrorCode

        return ErrorCode(value)
    return value


def _written(below: Any, path: str, tree: dict[str, Any], flexible: bool) -> bytes:
    out = b""
    tags = []
    for name, kind, nullable, tag, _ in below.get(path, ()):
        if name not in tree:
            continue
        here = f"{path}.{name}" if path else name
        data = _value(below, here, kind, tree[name], flexible)
        if nullable and kind == "{}":
            data = b"\x01" + data if tree[name] is not None else b"\xff"
        if tag is None:
            out += data
        else:
            tags.append((tag, data))
    if flexible:
        out += unsigned(len(tags)) + b"".join(unsigned(tag) + unsigned(len(data)) + data for tag, data in sorted(tags))
    return out


def _value(below: Any, path: str, kind: str, value: Any, flexible: bool) -> bytes:
    if kind.startswith("[]"):
        if value is None:
            return unsigned(0) if flexible else b"\xff" * 4
        count = unsigned(len(value) + 1) if flexible else struct.pack(">i", len(value))
        return count + b"".join(_value(below, path, kind[2:], item, flexible) for item in value)
    if kind == "{}":
        return b"" if value is None else _written(below, path, value, flexible)
    if kind in INTEGERS:
        return struct.pack(INTEGERS[kind], value)
    if kind == "bool":
        return bytes([value])
    if kind == "uuid":
        return bytes(value.bytes)
    data = value.encode() if isinstance(value, str) else value
    if flexible:
        return unsigned(0) if data is None else unsigned(len(data) + 1) + data
    wide = kind != "string"
    if data is None:
        return b"\xff" * (4 if wide else 2)
    return struct.pack(">i" if wide else ">h", len(data)) + bytes(data)


def unsigned(number: int) -> bytes:
    """An unsigned varint."""
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


@cache
def layout_of(key: int, version: int) -> Layout | None:
    """The facts of a request, None where there are none."""
    return facts().get((str(key), "request", version, ""))

"""`decode` and `explain`: the right layout, every byte, constants in words, credentials never."""

from __future__ import annotations

import os
import struct
from typing import Any

import pytest

import kdissect
from kdissect.problems import KdissectError, UsageError
from kdissect.schema import index
from kdissect.schema.explain import decode, explain, explain_body, explain_frame
from kdissect.schema.masking import masked_request, masked_response
from kdissect.schema.meanings import instant, operations
from kdissect.schema.model import REQUEST, RESPONSE
from kdissect.schema.walker import WalkError
from tests.oracle import kio_messages
from tests.schema import meanings
from tests.schema.made import pack

NEWEST = index.load().apis[1].request.versions.last
"""The newest version of Fetch."""

FETCH = (
    struct.pack(">iiiibii", -1, 500, 1, 1 << 20, 1, 7, 0)
    + pack("i", 1) + pack("h", 1) + b"t" + pack("i", 1) + pack("iiqqi", 3, -1, 42, -1, 99)
    + pack("i", 0) + pack("h", 0)
)  # fmt: skip


def rows(body: bytes, api: str | int, version: int, direction: str) -> dict[str, dict[str, Any]]:
    """Explained pieces by path."""
    return {row["path"]: row for row in explain(body, api, version, direction).to_pylist()}


def test_decode() -> None:
    values = kdissect.decode(FETCH, api="Fetch", version=11, direction="request")
    assert values["topics"] == [
        {"topic": "t", "topic_id": None, "_tags": None, "partitions": [
            {"partition": 3, "current_leader_epoch": -1, "fetch_offset": 42, "last_fetched_epoch": None,
             "log_start_offset": -1, "partition_max_bytes": 99, "replica_directory_id": None, "high_watermark": None,
             "_tags": None},
        ]},
    ]  # fmt: skip
    assert (values["rack_id"], values["cluster_id"], values["replica_state"], values["_tags"]) == ("", None, None, None)
    assert decode(bytearray(FETCH), 1, 11, "REQUEST") == values


def test_all_versions_have_the_same_keys() -> None:
    for key, side, versions in ((1, REQUEST, (4, 9, 18)), (3, RESPONSE, (0, 9, 13)), (68, RESPONSE, (0, 1))):
        found = []
        for version in versions:
            body, _ = kio_messages.generate(key, side, version, kio_messages.EVERYTHING)
            found.append(all_keys(decode(body, key, version, ("request", "response")[side])))
        assert all(item <= found[-1] or found[-1] <= item for item in found[:-1])
        assert len({frozenset(k for k in item if "." not in k) for item in found}) == 1


def all_keys(value: Any, path: str = "") -> set[str]:
    """Dotted keys of everything that is there."""
    if isinstance(value, list):
        return {key for item in value for key in all_keys(item, path)}
    if not isinstance(value, dict):
        return set()
    here = {f"{path}{name}" for name in value}
    return here | {key for name, item in value.items() for key in all_keys(item, f"{path}{name}.")}


def test_bad_arguments() -> None:
    for arguments, text in [
        (("Fech", 1, "request"), "did you mean Fetch"),
        (("Fetch", 1, "question"), "a direction is request or response"),
        (("Fetch", -1, "request"), f"Fetch has versions 0 to {NEWEST}, not -1"),
        (("Fetch", NEWEST + 1, "request"), f"known up to version {NEWEST}"),
    ]:
        with pytest.raises(UsageError, match=text):
            decode(b"\0", *arguments)
        with pytest.raises(UsageError, match=text):
            explain(b"\0", *arguments)


def test_a_newer_version_that_looks_like_the_newest() -> None:
    body, says = kio_messages.generate(12, REQUEST, 4, 3)
    assert not list(kio_messages.differences(says, decode(body, "Heartbeat", 5, "request")))


def test_damage() -> None:
    with pytest.raises(WalkError) as caught:
        decode(FETCH[:-14], "Fetch", 11, "request")
    assert isinstance(caught.value, KdissectError)
    assert isinstance(caught.value, ValueError)
    assert str(caught.value).startswith("topics[0].partitions[0].log_start_offset (001_fetch.kmsg:")
    assert caught.value.values["max_wait_ms"] == 500
    found = explain(FETCH[:-14], "Fetch", 11, "request").to_pylist()
    assert sum(row["length"] for row in found) == len(FETCH) - 14
    assert (found[-1]["path"], found[-1]["type"], found[-1]["meaning"]) == (
        "topics[0].partitions[0].log_start_offset", None, "int64 needs 8 bytes, 4 left",
    )  # fmt: skip
    found = explain(FETCH + b"\1\2", "Fetch", 11, "request").to_pylist()
    assert (found[-1]["length"], found[-1]["meaning"]) == (2, "2 bytes left over behind the last field")


def test_of_very_many_fields_the_first_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is behind them may hold records or credentials: it is hidden."""
    whole = explain(FETCH, "Fetch", 11, "request").to_pylist()
    monkeypatch.setattr("kdissect.schema.walker.MOST_PIECES", 9)
    *listed, rest = explain(FETCH, "Fetch", 11, "request").to_pylist()
    assert listed == whole[:9]
    assert (rest["offset"], rest["offset"] + rest["length"], rest["hidden"]) == (whole[9]["offset"], len(FETCH), True)
    assert rest["meaning"] == "behind the first 9 fields nothing is listed"
    assert decode(FETCH, "Fetch", 11, "request")["topics"][0]["partitions"][0]["partition_max_bytes"] == 99


def test_explained_in_words() -> None:
    found = rows(FETCH, "Fetch", 11, "request")
    assert {path: found[path]["meaning"] for path in ("replica_id", "isolation_level", "session_epoch")} == {
        "replica_id": "a consumer", "isolation_level": "read_committed",
        "session_epoch": "full fetch that opens a session",
    }  # fmt: skip
    assert found["max_wait_ms"]["meaning"].startswith("how long the broker may hold the answer")
    assert found["topics[0].partitions[0].fetch_offset"] == {
        "offset": 44, "length": 8, "path": "topics[0].partitions[0].fetch_offset", "type": "int64", "value": "42",
        "meaning": "", "schema": found["topics[0].partitions[0].fetch_offset"]["schema"], "hidden": False,
    }  # fmt: skip
    assert (found["topics"]["value"], found["topics[0]"]["value"], found["topics[0]"]["length"]) == ("1", None, 0)


def list_offsets(timestamp: int) -> bytes:
    return pack("ibi", -1, 0, 1) + pack("h", 1) + b"t" + pack("i", 1) + pack("iiq", 0, -1, timestamp)


@pytest.mark.parametrize(
    ("timestamp", "words"),
    [(-1, "latest"), (-2, "earliest"), (-3, "with the largest timestamp"), (-4, "earliest on local disk"),
     (-5, "latest in tiered storage"), (-6, "earliest not yet in tiered storage"), (0, "1970-01-01T00:00:00.000Z"),
     (1_700_000_000_123, "2023-11-14T22:13:20.123Z"), (-99, "the first offset at or after this time is asked for")],
)  # fmt: skip
def test_sentinel_timestamps(timestamp: int, words: str) -> None:
    found = rows(list_offsets(timestamp), "ListOffsets", 5, "request")
    assert found["topics[0].partitions[0].timestamp"]["meaning"] == words


def test_times_and_operations() -> None:
    assert instant(253402300799999) == "9999-12-31T23:59:59.999Z"
    assert [instant(value) for value in (-1, 253402300800000, 2**63 - 1, -(2**63))] == [""] * 4
    assert operations(-(2**31)) == "not asked for"
    assert operations(0b11000) == "read, write"
    assert operations(1 << 20) == "operation 20"
    assert operations(0) == "none"


def test_errors_acks_nulls_and_ids() -> None:
    body = pack("i", 0) + b"\1\0" + pack("i", -1) + b"\2" + pack("h", 3) + b"\0" + bytes(16) + b"\0\1"
    metadata = rows(body + pack("i", -(2**31)) + b"\0\0", "Metadata", 12, "response")
    assert metadata["topics[0].error_code"]["meaning"] == "UNKNOWN_TOPIC_OR_PARTITION"
    assert metadata["topics[0].topic_id"]["meaning"] == "none"
    assert metadata["topics[0].name"]["meaning"] == "the topic id is unknown"
    assert metadata["topics[0].topic_authorized_operations"]["meaning"] == "not asked for"
    assert metadata["controller_id"]["meaning"] == "unknown"
    everything = rows(b"\xff\xff\xff\xff\1", "Metadata", 4, "request")
    assert everything["topics"]["meaning"] == "all topics"
    assert everything["allow_auto_topic_creation"]["value"] == "true"
    produce = rows(pack("h", -1) + pack("hi", -1, 30000) + pack("i", 0), "Produce", 3, "request")
    assert produce["acks"]["meaning"] == "all in-sync replicas"
    share = b"\2g\2m" + pack("iiii", 0, 1, 1, 1) + b"\2" + bytes(16) + b"\2" + pack("ii", 0, 9)
    share += b"\2" + pack("qq", 1, 2) + b"\3\1\2" + b"\0\0\0" + b"\1\0"
    found = rows(share, "ShareFetch", 0, "request")
    assert found["topics[0].partitions[0].acknowledgement_batches[0].acknowledge_types[1]"]["meaning"] == "release"
    assert found["topics[0].partitions[0].acknowledgement_batches[0].acknowledge_types"]["meaning"].startswith(
        "one for"
    )


def test_the_other_layout_of_a_version() -> None:
    early = b"\2g\2m" + pack("i", 5) + b"\0\0" + pack("i", -1) + b"\0\2r" + b"\0" + b"\0" + b"\0" + b"\0"
    values = decode(early, "ConsumerGroupHeartbeat", 0, "request")
    assert values["subscribed_topic_regex"] == "r"
    assert values["client_assignors"] is None
    summary = b"\2" + bytes(16) + b"\2" + pack("ih", 3, 0) + b"\0" + pack("iq", 5, 7) + b"\0\0\0"
    values = decode(summary, "ReadShareGroupStateSummary", 0, "response")
    assert values["results"][0]["partitions"][0] == {
        "partition": 3, "error_code": 0, "error_message": None, "state_epoch": 5, "leader_epoch": None,
        "start_offset": 7, "delivery_complete_count": None, "_tags": None,
    }  # fmt: skip


def test_api_versions_answer_to_a_version_that_the_broker_does_not_know() -> None:
    body = pack("h", 35) + pack("i", 1) + pack("hhh", 18, 0, 3)
    values = decode(body, "ApiVersions", 4, "response")
    assert (values["error_code"], values["api_keys"][0]["max_version"], values["throttle_time_ms"]) == (35, 3, None)
    assert rows(body, "ApiVersions", 99, "response")["error_code"]["meaning"] == "UNSUPPORTED_VERSION"


def test_credentials_never_show() -> None:
    token = b"\0alice\0wonderland"
    body = pack("i", len(token)) + token
    assert decode(body, "SaslAuthenticate", 1, "request") == {
        "auth_bytes": None, "auth_bytes_bytes": len(token), "_tags": None,
    }  # fmt: skip
    (row,) = explain(body, "SaslAuthenticate", 1, "request").to_pylist()
    assert (row["value"], row["hidden"], row["meaning"]) == (None, True, "a credential, not shown")
    cut = explain(body[:-3], "SaslAuthenticate", 1, "request").to_pylist()
    assert [(row["value"], row["hidden"]) for row in cut] == [(None, True)], "nor where the body does not fit"
    with pytest.raises(WalkError) as caught:
        decode(body[:-3], "SaslAuthenticate", 1, "request")
    assert "alice" not in f"{caught.value} {caught.value.values} {caught.value.pieces}"
    configs = pack("i", 1) + b"\4" + pack("h", 1) + b"1" + pack("i", 1) + pack("h", 16) + b"ssl.key.password"
    configs += b"\0" + pack("h", 2) + b"pw" + b"\0"
    found = decode(configs, "IncrementalAlterConfigs", 0, "request")["resources"][0]["configs"][0]
    assert (found["value"], found["value_bytes"]) == (None, 2)
    assert rows(configs, 44, 0, "request")["resources[0].configs[0].value"]["hidden"] is True


SUBSCRIPTION = pack("h", 1) + pack("i", 1) + pack("h", 1) + b"t" + pack("i", -1) + pack("i", 0)


def test_a_message_inside_of_bytes() -> None:
    def join(metadata: bytes) -> bytes:
        body = pack("h", 1) + b"g" + pack("i", 1000) + pack("h", 0) + pack("h", 8) + b"consumer"
        return body + pack("i", 1) + pack("h", 5) + b"range" + pack("i", len(metadata)) + metadata

    found = explain(join(SUBSCRIPTION), "JoinGroup", 0, "request").to_pylist()
    assert sum(row["length"] for row in found) == len(join(SUBSCRIPTION))
    by_path = {row["path"]: row for row in found}
    assert by_path["protocols[0].metadata"]["value"] == str(len(SUBSCRIPTION))
    assert by_path["protocols[0].metadata.version"]["value"] == "1"
    assert by_path["protocols[0].metadata.topics[0]"]["value"] == "t"
    assert by_path["protocols[0].metadata.user_data"]["meaning"] == "none"
    for other in (b"\0", SUBSCRIPTION + b"x", b"custom protocol"):
        plain = rows(join(other), "JoinGroup", 0, "request")
        assert plain["protocols[0].metadata"]["value"] == other.hex(), "raw when it is something else"
    newer = pack("h", 9) + SUBSCRIPTION[2:] + pack("i", 7) + pack("h", -1)
    found_newer = rows(join(newer), "JoinGroup", 0, "request")
    assert found_newer["protocols[0].metadata.generation_id"]["value"] == "7", "newer than we know, but it fits"
    values = decode(join(SUBSCRIPTION), "JoinGroup", 0, "request")
    assert values["protocols"][0]["metadata"] == SUBSCRIPTION


def test_a_request_inside_of_an_envelope() -> None:
    inner, _ = kio_messages.generate(20, REQUEST, 1, 0)
    request = pack("hhih", 20, 1, 77, 2) + b"me" + inner
    principal = pack("h", 0) + b"\5User\6alice\0\0"
    body = bytes([len(request) + 1]) + request + bytes([len(principal) + 1]) + principal + b"\5\x7f\0\0\1" + b"\0"
    found = explain(body, "Envelope", 0, "request").to_pylist()
    assert sum(row["length"] for row in found) == len(body)
    by_path = {row["path"]: row for row in found}
    assert by_path["request_data.header.client_id"]["value"] == "me"
    assert by_path["request_data.timeout_ms"]["type"] == "int32"
    assert by_path["request_principal.name"]["value"] == "alice"


def test_credentials_in_what_a_broker_forwards() -> None:
    inner, says = kio_messages.generate(51, REQUEST, 0, 0)
    request = pack("hhih", 51, 0, 77, 2) + b"me" + b"\0" + inner
    masked = masked_request(request)
    assert len(masked) == len(request) != 0
    assert masked != request
    found = decode(masked[13:], 51, 0, "request")
    assert not list(kio_messages.differences(says, found)), "all else is as it was"
    (row,) = {bytes(len(row["value"]) // 2).hex() == row["value"] for row in _raw(masked[13:]) if row["value"]}
    assert row, "and the credentials are zeros"
    size = (
        bytes([128 | len(request) + 1 & 127, len(request) + 1 >> 7])
        if len(request) > 126
        else bytes([len(request) + 1])
    )
    envelope = size + request + b"\0" + b"\1" + b"\0"
    assert decode(envelope, "Envelope", 0, "request")["request_data"] == masked
    assert masked_request(request[:-1])[13:] == bytes(len(inner) - 1), "nor where it does not fit"
    harmless = pack("hhih", 20, 1, 77, 2) + b"me" + b"anything"
    assert masked_request(harmless) == harmless
    assert masked_request(b"\0") == b"\0"
    token, _ = kio_messages.generate(38, RESPONSE, 1, 0)
    response = masked_response(pack("i", 5) + token, pack("hhih", 38, 1, 5, -1))
    assert len(response) == len(token) + 4
    assert response != pack("i", 5) + token


def _raw(body: bytes) -> list[dict[str, Any]]:
    """Credentials of AlterUserScramCredentials, in hexadecimal."""
    found = explain(body, 51, 0, "request").to_pylist()
    ends = [(row["offset"] + row["length"], row["length"]) for row in found if row["hidden"]]
    return [{"value": body[end - size + (1 if size < 128 else 2) : end].hex()} for end, size in ends]


@pytest.mark.parametrize("seed", [0, 1, 3])
def test_pieces_cover_every_body(seed: int) -> None:
    for key, side, version in sorted(kio_messages.classes()):
        body, _ = kio_messages.generate(key, side, version, seed)
        at = 0
        for row in explain_body(index.load().apis[key], side, version, body):
            assert row["offset"] == at, (key, side, version, row)
            at += row["length"]
        assert at == len(body)


def test_frames() -> None:
    header = pack("hhih", 1, 11, 9, 2) + b"me"
    frame = pack("i", len(header) + len(FETCH)) + header + FETCH
    found = explain_frame(frame, REQUEST)
    assert [row["path"] for row in found[:6]] == [
        "size", "header.request_api_key", "header.request_api_version", "header.correlation_id", "header.client_id",
        "replica_id",
    ]  # fmt: skip
    assert found[1]["meaning"] == "Fetch"
    assert found[5]["offset"] == 4 + len(header)
    assert sum(row["length"] for row in found) == len(frame)
    for end in range(len(frame)):
        assert sum(row["length"] for row in explain_frame(frame[:end], REQUEST)) == end
    unknown = explain_frame(pack("i", 20) + pack("hhih", 999, 1, 9, 0) + b"0123456789", REQUEST)
    assert (unknown[-1]["path"], unknown[-1]["length"]) == ("body", 10)
    assert "there is no API 999" in unknown[-1]["meaning"]
    orphan = explain_frame(pack("i", 8) + pack("i", 5) + b"abcd", RESPONSE)
    assert (orphan[-1]["length"], orphan[-1]["meaning"]) == (8, "whose API is unknown")


def test_what_the_schema_says_beside_the_layouts() -> None:
    """Meanings, credentials, former names, listeners: whatever `facts.txt` does not hold, line by line."""
    now = "\n".join(meanings.said(index.load())) + "\n"
    if os.environ.get("UPDATE_GOLDEN"):
        meanings.FILE.write_text(now)
    assert now == meanings.FILE.read_text(), "meant? UPDATE_GOLDEN=1 pytest tests/schema/test_explain.py"

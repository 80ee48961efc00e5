"""What bytes inside of messages hold: by the kernels for columns, by the walker for one message, against kio."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from kdissect.kafka.exchanges.messages import Decoder, schema_for
from kdissect.kafka.exchanges.payloads import decoded, unfolded, unfolded_schema
from kdissect.schema import index
from kdissect.schema.explain import decode
from tests.oracle import kio_messages, kio_payloads

REQUEST, RESPONSE = 0, 1
SIDES = ("request", "response")
ENVELOPE = 58


def payload(name: str, version: int, seed: int) -> Any:
    made, _ = kio_messages.Maker(seed, (0, 0, version)).struct(kio_payloads.class_of(name, version))
    return made


EVERY = [(name, version) for name, versions in kio_payloads.PAYLOADS.items() for version in versions]


@pytest.mark.parametrize(("name", "version"), EVERY)
def test_kernels_read_what_kio_writes(name: str, version: int) -> None:
    entities = [payload(name, version, seed) for seed in range(20)]
    bodies = [kio_payloads.write(entity) for entity in entities]
    found = decoded(pa.array([None, *bodies]).slice(1), name).to_pylist()
    for entity, ours in zip(entities, found, strict=True):
        assert ours["version"] == version
        assert not list(kio_payloads.differences(entity, ours, name))


@pytest.mark.parametrize(("name", "version"), EVERY)
def test_what_does_not_fit_is_null(name: str, version: int) -> None:
    body = kio_payloads.write(payload(name, version, 0))
    cut = [body[:end] for end in range(len(body))]
    wrong = [*cut, body + b"\0", b"", None, b"\x80\0" + body[2:], b"\xff\xff" + body[2:]]
    assert decoded(pa.array(wrong, pa.binary()), name).to_pylist() == [None] * len(wrong)
    assert decoded(pa.array([body]), name, np.array([False])).to_pylist() == [None]
    assert decoded(pa.array([], pa.binary()), name).to_pylist() == []


def test_a_version_newer_than_known_is_read_as_the_newest() -> None:
    body = struct.pack(">h", 9) + kio_payloads.write(payload("ConsumerProtocolSubscription", 3, 0))[2:]
    (found,) = decoded(pa.array([body]), "ConsumerProtocolSubscription").to_pylist()
    assert found["version"] == 9
    assert found["topics"]


def message(key: int, side: int, version: int, body: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    """One body as kernels and walker show it."""
    decoder = Decoder({(key, side): None})
    stream = np.frombuffer(body, np.uint8)
    program = np.array([decoder.table[key, version, side]], np.int32)
    found = decoder.decode(stream, np.zeros(1, np.int64), np.array([len(body)], np.int64), program)
    batch = unfolded(found.messages[key, side].batch, (key, side))
    batch.validate(full=True)
    assert batch.schema.equals(unfolded_schema(schema_for(key, side), (key, side)))
    return batch.to_pylist()[0], decode(body, key, version, SIDES[side])


def string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def sized(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


@pytest.mark.parametrize("protocol", ["consumer", "connect"])
def test_in_a_join(protocol: str) -> None:
    entity = payload("ConsumerProtocolSubscription", 2, 0)
    raw = kio_payloads.write(entity)
    own = b"\0\1anything"
    head = string("group") + struct.pack(">i", 6000) + string("") + string(protocol)
    body = head + struct.pack(">i", 2) + string("range") + sized(raw) + string("own") + sized(own)
    for shown in message(11, REQUEST, 0, body):
        first, second = shown["protocols"]
        assert (first["metadata"], second["metadata"]) == (raw, own), "the bytes stay"
        assert second["metadata_decoded"] is None
        if protocol == "consumer":
            assert not list(kio_payloads.differences(entity, first["metadata_decoded"], ""))
        else:
            assert first["metadata_decoded"] is None


def test_in_a_sync() -> None:
    entity = payload("ConsumerProtocolAssignment", 1, 0)
    body = b"\0\0" + sized(kio_payloads.write(entity))
    for shown in message(14, RESPONSE, 0, body):
        assert not list(kio_payloads.differences(entity, shown["assignment_decoded"], ""))
    for shown in message(14, RESPONSE, 0, b"\0\x1b" + sized(b"")):
        assert shown["assignment_decoded"] is None
        assert shown["assignment"] == b""


def compact(data: bytes | None) -> bytes:
    size = 0 if data is None else len(data) + 1
    head = bytes([size]) if size < 128 else bytes([size & 127 | 128, size >> 7])
    return head + (data or b"")


SCRAM = struct.pack(">hhih", 51, 0, 77, 2) + b"me\0"
TOKENS = struct.pack(">hhih", 41, 1, 78, 2) + b"me"


def test_credentials_inside_of_an_envelope() -> None:
    secret = b"the-salted-password"
    upsertion = compact(b"alice") + b"\1" + struct.pack(">i", 4096) + compact(b"the-salt") + compact(secret) + b"\0"
    request = SCRAM + b"\1" + b"\2" + upsertion + b"\0"
    principal = kio_payloads.write(payload("DefaultPrincipalData", 0, 0))
    for data in (request, request + b"behind", request[:-1]):
        body = compact(data) + compact(principal) + compact(b"\x7f\0\0\1") + b"\0"
        for shown in message(ENVELOPE, REQUEST, 0, body):
            assert len(shown["request_data"]) == len(data)
            assert secret not in shown["request_data"]
            assert b"the-salt" not in shown["request_data"]
            assert (b"alice" in shown["request_data"]) == (data == request)
            assert shown["request_principal_decoded"]["name"]


def test_credentials_in_the_answer_to_an_envelope() -> None:
    token, says = kio_messages.generate(41, RESPONSE, 1, 0)
    assert says["tokens"]
    hmac = [token[at : at + 8] for at in hidden(41, 1, token)]
    data = struct.pack(">i", 78) + token
    body = compact(data) + b"\0\0\0"
    for shown in message(ENVELOPE, RESPONSE, 0, body):  # whatever it answers
        assert len(shown["response_data"]) == len(data)
        assert not any(part in shown["response_data"] for part in hmac)
    decoder = Decoder({(ENVELOPE, RESPONSE): None})
    ends = np.array([len(body)], np.int64)
    found = decoder.decode(np.frombuffer(body, np.uint8), ends * 0, ends, decoder.table[[ENVELOPE], 0, RESPONSE])
    batch = found.messages[ENVELOPE, RESPONSE].batch
    for asked in (TOKENS, None, struct.pack(">hhih", 41, 99, 78, -1)):
        (shown,) = unfolded(batch, (ENVELOPE, RESPONSE), pa.array([asked], pa.binary())).to_pylist()
        assert not any(part in shown["response_data"] for part in hmac)


def hidden(key: int, version: int, body: bytes) -> list[int]:
    """Where the credentials of a response begin, behind their length."""
    from kdissect.schema.explain import explain_body

    rows = explain_body(index.load().apis[key], RESPONSE, version, body)
    starts = [row["offset"] + 4 for row in rows if row["hidden"]]
    assert starts
    return starts

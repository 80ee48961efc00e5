"""After `redact` only allow-listed fields say what they said: markers planted in every text of every message."""

from __future__ import annotations

import io
import itertools
import re
import struct
from typing import Any

import pytest

import kdissect
from kdissect.problems import KdissectError
from kdissect.schema import index
from kdissect.schema.configurations import is_harmless_value, load_configurations
from kdissect.schema.model import POLICIES, Field
from tests import planted
from tests.oracle.pcap import ACK, Talk, api_versions_response, framed, pcap

KEPT = frozenset(
    re.findall(
        r"\w+",
        "client_id cluster_id configuration_keys coordinator_keys group_id group_ids group_instance_id groups "
        "groups_names host host_name instance_id key leader member_id name owner_principal_name principal "
        "principal_filter principal_name process_id rack rack_id repartition_sink_topics resource_name "
        "resource_name_filter sink_topic source_topic_regex source_topics stores subscribed_topic_names "
        "subscribed_topic_regex subtopology_id successors token_requester_principal_name topic topic_name topic_names "
        "topics transactional_id transactional_id_pattern transactional_ids user v0_host "
        "v3_and_below_transactional_id entity_type client_software_name client_software_version feature group_state "
        "group_type mechanism mechanisms listener principal_type owner_principal_type token_requester_principal_type "
        "protocol_type protocol_name protocol_data assignor_name server_assignor state_filters states_filter "
        "transaction_state types_filter unknown_state_filters requested_metrics ",
    )
)
"""The allow list as a person read it: fields of other names keep nothing, whatever their lines in the schema say."""
MARKER = re.compile(rb"mk\d{6}z")


def markers() -> Any:
    return (f"mk{n:06}z" for n in itertools.count())


def redacted(data: bytes) -> bytes:
    """What `redact` makes of a capture in memory."""
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "in.pcap"
        path.write_bytes(data)
        out = io.BytesIO()
        kdissect.open(path).redact(out)
    return out.getvalue()


def allowed(values: Any, fields: tuple[Field, ...]) -> set[bytes]:
    """Markers in fields that the schema lets stay and whose names are in KEPT."""
    found: set[bytes] = set()
    for item in fields:
        value = values.get(item.snake)
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, dict):
                found |= allowed(one, item.fields)
            elif isinstance(one, str) and item.policy in ("public", "name"):
                assert item.snake in KEPT, f"nobody has judged {item.name}"
                found.add(one.encode())
    return found


@pytest.mark.parametrize(
    "part",
    [pytest.param(range(0, 2000, 9), id="some"), pytest.param(range(2000), id="all", marks=pytest.mark.exhaustive)],
)
def test_a_marker_in_every_field_of_every_message(part: range) -> None:
    kinds = [kind for n, kind in enumerate(planted.kinds()) if n in part]
    texts, again = markers(), markers()
    data = planted.capture(kinds, lambda: next(texts), lambda: next(texts).encode())
    may: set[bytes] = set()

    def text() -> str:
        return next(again)

    def blob() -> bytes:
        return next(again).encode()

    for n, (key, version) in enumerate(kinds):
        api = index.load().apis[key]
        for side in (0, 1):
            frame = planted.message(key, side, version, n, text, blob)
            body, client = _body(frame, key, version, side)
            may.add(client)
            try:
                values = kdissect.decode(body, key, version, ("request", "response")[side])
            except KdissectError:
                continue
            may |= allowed(values, api.message(side).fields)
            for variant in api.message(side).variants:
                may |= allowed(values, variant.fields)
    safe = redacted(data)
    left = set(MARKER.findall(safe))
    assert len(left) > 100, "names stay"
    assert left <= may, sorted(left - may)[:5]
    assert len(set(MARKER.findall(data)) - left) > 50
    assert len(safe) == len(data)
    assert exchanges(safe) == exchanges(data)


def _body(frame: bytes, key: int, version: int, side: int) -> tuple[bytes, bytes]:
    """(body, client id) of a framed message."""
    from tests.oracle.kio_messages import classes

    tags = classes()[key, side, version].__flexible__
    if side:
        return frame[8 + (tags and key != 18) :], b""
    if (key, version) == (7, 0):
        return frame[12:], b""
    size = struct.unpack_from(">h", frame, 12)[0]
    return frame[14 + size + tags :], frame[14 : 14 + size]


def exchanges(data: bytes) -> list[dict[str, Any]]:
    columns = ["api", "api_version", "correlation_id", "client_id", "status", "error_code", "latency_ms", "broker_ms",
               "request_bytes", "response_bytes", "request_frame", "response_frame", "decoded"]  # fmt: skip
    rows = kdissect.open(io.BytesIO(data)).table("exchanges", columns).to_pylist()
    return sorted(rows, key=lambda row: (row["request_frame"] or 0, row["correlation_id"]))


def test_every_text_has_a_policy() -> None:
    def check(where: str, fields: tuple[Field, ...]) -> None:
        for item in fields:
            if {item.kind, item.element} & {"string", "bytes"}:
                said = [item.policy in POLICIES, item.secret, item.secret_by is not None]
                assert sum(said) == 1, f"{where}.{item.name} says {said}"
                assert item.policy not in ("public", "name") or item.snake in KEPT, f"{where}.{item.name}"
            check(f"{where}.{item.name}", item.fields)

    for api in index.load().apis.values():
        for side in (0, 1):
            message = api.message(side)
            check(message.name, message.fields)
            for variant in message.variants:
                check(message.name, variant.fields)
    for name, message in index.load().payloads.items():
        check(name, message.fields)


def exchange(request: bytes, response: bytes, options: bytes = b"") -> bytes:
    talk = Talk()
    talk.handshake()
    talk.put(1, 0, 0, request)
    talk.put(5, 1, 0, response)
    talk.put(6, 0, len(request), b"", ACK)
    packets = talk.packets
    if options:
        options += b"\1" * (-len(options) % 4)
        time, frame = packets[0]
        total = struct.pack(">H", 40 + len(options))
        tcp = frame[34:46] + bytes([(5 + len(options) // 4) << 4]) + frame[47:54]
        packets[0] = time, frame[:16] + total + frame[18:34] + tcp + options
    return pcap(packets)


def test_unknown_tags_of_headers_and_bodies() -> None:
    tags = b"\2" + b"\x40\x08mk000001" + b"\x41\x08mk000002"
    request = framed(struct.pack(">hhih", 18, 3, 7, 1) + b"c" + tags + b"\3ab" + b"\3cd" + tags)
    safe = redacted(exchange(request, api_versions_response(7)))
    assert b"mk0000" not in safe
    assert safe.count(b"\x40\x08xxxxxxxx\x41\x08xxxxxxxx") == 2
    assert b"\3ab\3cd" in safe
    assert exchanges(safe)[0]["client_id"] == "c"


def test_trailing_bytes() -> None:
    request = framed(struct.pack(">hhih", 18, 0, 7, 1) + b"c" + b"mk000001")
    assert b"mk0000" not in redacted(exchange(request, api_versions_response(7)))


def test_tcp_options() -> None:
    kept = b"\x02\x04\x05\xb4" + b"\x03\x03\x07" + b"\x04\x02" + b"\x08\x0a" + bytes(range(8))
    for secret in (
        b"\x22\x0amk000001",
        b"\xfd\x0amk000001",
        b"\x13\x12" + b"mk000001" * 2,
        b"\0mk000001",
        b"\x22\x50mk000001",
    ):
        request = framed(struct.pack(">hhih", 18, 0, 7, 1) + b"c")
        safe = redacted(exchange(request, api_versions_response(7), kept + secret))
        assert b"mk0000" not in safe
        assert kept in safe


@pytest.mark.parametrize(
    ("name", "value", "stays"),
    [
        ("retention.ms", "604800000", True), ("retention.ms", "-1", True), ("cleanup.policy", "compact,delete", True),
        ("log.cleaner.min.cleanable.ratio", "0.5", True), ("unclean.leader.election.enable", "false", True),
        ("listener.name.internal.ssl.client.auth", "required", True), ("compression.type", "zstd", True),
        ("retention.ms", "mk000001", False), ("unclean.leader.election.enable", "mk000001", False),
        ("cleanup.policy", "compact,mk000001", False), ("compression.type", "mk000001", False),
        ("advertised.listeners", "PLAINTEXT://mk000001:9092", False), ("log.dirs", "/mk000001", False),
        ("super.users", "User:mk000001", False), ("zookeeper.connect", "mk000001:2181", False),
        ("sasl.oauthbearer.token.endpoint.url", "https://svc:mk000001@host", False), ("broker.rack", "mk000001", False),
        ("sasl.jaas.config", "mk000001", False), ("ssl.keystore.password", "true", False),
        ("listener.name.internal.plain.sasl.jaas.config", "1", False), ("listener.name.x.ssl.key.password", "1", False),
        ("my.plugin.token", "1", False), ("", "1", False), ("retention.ms\n", "1", False),
    ],
)  # fmt: skip
def test_values_of_configurations(name: str, value: str, stays: bool) -> None:
    def text(word: str) -> bytes:
        return struct.pack(">h", len(word)) + word.encode()

    config = struct.pack(">i", 1) + text(name) + text(value)
    body = struct.pack(">i", 1) + b"\2" + text("orders") + config + b"\0"
    request = framed(struct.pack(">hhih", 33, 0, 7, 1) + b"c" + body)
    response = framed(struct.pack(">iii", 7, 0, 1) + struct.pack(">hh", 0, -1) + b"\2" + text("orders"))
    safe = redacted(exchange(request, response))
    assert (text(value) in safe) == stays
    assert is_harmless_value(name, value) == stays
    assert b"orders" in safe


def test_the_table_of_configurations() -> None:
    found = load_configurations()
    assert len(found) > 400
    assert {found[name].type for name in ("sasl.jaas.config", "ssl.key.password", "ssl.keystore.key")} == {"password"}
    assert found["retention.ms"] == ("long", frozenset())
    assert found["cleanup.policy"] == ("list", {"compact", "delete"})
    words = {name for name, one in found.items() if one.values}
    assert len(words) > 10
    assert all(found[name].type in ("string", "list") for name in words)


def test_control_batches_that_are_none() -> None:
    kafka_record = pytest.importorskip("kafka.record")
    from kafka.record.util import calc_crc32c

    for key, value, stays in (
        (b"\0\0\0\1", b"\0\0\0\0\0\7", True), (b"\0\0\0\1", b"mk000001", False), (b"mk000002", b"mk000001", False),
        (b"\0\0\0\1", b"mk0000", True),
    ):  # fmt: skip
        builder = kafka_record.MemoryRecordsBuilder(2, 0, 1 << 20)
        builder.append(1_700_000_000_000, key, value, [("h", b"mk000003")])
        builder.close()
        batch = bytearray(builder.buffer())
        batch[22] |= 0x20
        batch[17:21] = struct.pack(">I", calc_crc32c(bytes(batch[21:])))
        topic = struct.pack(">i", 1) + b"\0\6orders" + struct.pack(">iii", 1, 0, len(batch)) + bytes(batch)
        request = framed(struct.pack(">hhih", 0, 3, 7, 1) + b"c" + struct.pack(">hhi", -1, 1, 1000) + topic)
        response = struct.pack(">i", 1) + b"\0\6orders" + struct.pack(">iihqq", 1, 0, 0, 5, -1) + bytes(4)
        safe = redacted(exchange(request, framed(struct.pack(">i", 7) + response)))
        assert b"mk000003" not in safe
        assert (value in safe) == stays
        assert b"orders" in safe


CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


def unpacked(codec: str, data: bytes) -> bytes:
    """What a library makes of the compressed records; nothing where it cannot."""
    import gzip

    import cramjam
    import lz4.frame
    import zstandard

    readers = {
        "none": bytes, "gzip": gzip.decompress, "lz4": lz4.frame.decompress,
        "snappy": lambda given: bytes(cramjam.snappy.decompress_raw(given)),
        "zstd": lambda given: zstandard.ZstdDecompressor().decompressobj().decompress(given),
    }  # fmt: skip
    try:
        return bytes(readers[codec](data))
    except Exception:  # blanked: it is compressed no longer, which each library says in its own way
        return b""


@pytest.mark.parametrize("codec", CODECS)
def test_keys_values_and_headers_of_records_of_every_codec(codec: str) -> None:
    import gzip

    import cramjam
    import lz4.frame
    import zstandard
    from crc32c import crc32c

    from tests.bench.frames import BATCH_HEADER, batch

    key, value, header = b"mk000001z", b"mk000002z" * 9, b"mk000003z"
    body = b"\0\0\0" + bytes([2 * len(key)]) + key + b"\xa2\x01" + value
    body += b"\2" + bytes([2 * len(header)]) + header + bytes([2 * len(header)]) + header
    record = bytes([(2 * len(body)) & 0x7F | 0x80, 2 * len(body) >> 7]) + body
    packers = {
        "none": bytes, "gzip": gzip.compress, "lz4": lz4.frame.compress, "zstd": zstandard.compress,
        "snappy": lambda given: bytes(cramjam.snappy.compress_raw(given)),
    }  # fmt: skip
    packed = bytes(packers[codec](record))
    made = bytearray(batch([b"x"])[:BATCH_HEADER] + packed)
    struct.pack_into(">i", made, 8, len(made) - 12)
    struct.pack_into(">h", made, 21, CODECS[codec])
    struct.pack_into(">I", made, 17, crc32c(bytes(made[21:])))
    data = bytes(made)
    request = framed(
        struct.pack(">hhih", 0, 3, 5, 1) + b"c" + struct.pack(">hhii", -1, 1, 1000, 1) + struct.pack(">h", 1) + b"t"
        + struct.pack(">iii", 1, 0, len(data)) + data
    )  # fmt: skip
    response = framed(
        struct.pack(">ii", 5, 1) + struct.pack(">h", 1) + b"t" + struct.pack(">iihqqi", 1, 0, 0, 0, -1, 0)
    )
    talk = Talk()
    talk.handshake()
    talk.put(1, 0, 0, request)
    talk.put(2, 1, 0, response)
    before = pcap(talk.packets)
    capture = kdissect.open(io.BytesIO(before))
    (row,) = capture.table("records", reveal=True).to_pylist()
    assert (row["key"], row["value"]) == (key, value)
    after = redacted(before)
    at = before.index(packed)
    assert len(after) == len(before)
    assert not MARKER.search(after)
    assert not MARKER.search(unpacked(codec, after[at : at + len(packed)]))
    columns = ["exchange_id", "latency_ms", "api", "client_id"]
    was, now = (kdissect.open(io.BytesIO(one)).table("exchanges", columns[1:]) for one in (before, after))
    assert was == now


def test_comments_and_names_of_a_pcapng() -> None:
    """Of sections, interfaces, packets, names and blocks of others."""
    texts = markers()

    def block(kind: int, body: bytes, *options: int) -> bytes:
        for code in options:
            text = next(texts).encode()
            body += struct.pack("<HH", code, len(text)) + text + bytes(-len(text) % 4)
        body += bytes(4 if options else 0) + bytes(-len(body) % 4)
        return struct.pack("<II", kind, len(body) + 12) + body + struct.pack("<I", len(body) + 12)

    talk = Talk()
    talk.handshake()
    talk.put(1, 0, 0, framed(struct.pack(">hhih", 18, 0, 1, 1) + b"c"))
    talk.put(2, 1, 0, api_versions_response(1))
    data = block(0x0A0D0D0A, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1), 1, 2, 3, 4)
    data += block(1, struct.pack("<HHI", 1, 0, 0), 1, 2, 3, 11, 12)
    name = next(texts).encode()
    data += block(4, struct.pack("<HH4s", 1, 4 + len(name) + 1, bytes([10, 0, 0, 1])) + name + b"\0\0\0\0\0\0\0", 1)
    data += block(0xBAD, struct.pack("<I", 32473) + next(texts).encode() * 4)
    for when, packet in talk.packets:
        micros = when // 1000
        head = struct.pack("<IIIII", 0, micros >> 32, micros & 0xFFFFFFFF, len(packet), len(packet))
        data += block(6, head + packet + bytes(-len(packet) % 4), 1)
    data += block(5, struct.pack("<III", 0, 0, 0), 1)
    assert len(MARKER.findall(data)) > 20
    after = redacted(data)
    assert not MARKER.search(after)
    was, now = (kdissect.open(io.BytesIO(one)).table("exchanges", ["api", "latency_ms"]) for one in (data, after))
    assert was == now
    assert was.num_rows == 1

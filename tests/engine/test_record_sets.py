"""Every format of record sets through the engine, and every message that carries them (encoded by kio)."""

from __future__ import annotations

import base64
import datetime
import io
import struct
import uuid
from pathlib import Path
from typing import Any

import lz4.frame
import pyarrow as pa
import pytest
from kio.schema.errors import ErrorCode
from kio.schema.fetch_snapshot.v1 import request as snapshot_request
from kio.schema.fetch_snapshot.v1 import response as snapshot_response
from kio.schema.share_fetch.v1 import request as share_request
from kio.schema.share_fetch.v1 import response as share_response
from kio.schema.types import BrokerId, GroupId, TopicName
from kio.serial import entity_writer
from kio.static.primitive import i16, i32, i32Timedelta, i64

import kdissect
from kdissect.kafka.recordsets.batch_layout import CONTROL_TYPES
from tests.bench.frames import framed, text
from tests.engine.record_captures import capture
from tests.kafka.records.building import START, batch, kafka_python, record, rows_of
from tests.kafka.records.test_formats import message, zlib_gzip
from tests.kafka.records.test_large import PACK
from tests.oracle.pcap import Talk, pcap

RELATIVE = message(1, 0, b"a") + message(1, 1, b"b") + message(1, 4, b"c")
ABSOLUTE = b"".join(message(0, offset, b"v" * 50) for offset in (7, 9, 12))
BROKEN_LZ4 = bytearray(lz4.frame.compress(ABSOLUTE, block_linked=False, store_size=False))
BROKEN_LZ4[6] ^= 0x5A
TWO = record(0, b"k", b"v") + record(1, None, None, 7)
SETS: dict[str, tuple[bytes, list[int]]] = {
    "relative offsets of magic 1": (message(1, 24, zlib_gzip(RELATIVE), 1), [20, 21, 24]),
    "offsets from 0 of old producers": (message(1, 0, zlib_gzip(RELATIVE), 1), [0, 1, 4]),
    "absolute offsets of magic 0": (message(0, 12, zlib_gzip(ABSOLUTE), 1), [7, 9, 12]),
    "wrong header checksum of lz4 in magic 0": (message(0, 12, bytes(BROKEN_LZ4), 3), [7, 9, 12]),
    "log append time": (batch(TWO, 2, attributes=8), [0, 1]),
    "delete horizon": (batch(record(0, b"k", b"v", -500), 1, attributes=64), [0]),
    "empty batch, then gaps of compaction": (
        batch(b"", 0, last_delta=9) + batch(record(2, b"k", b"v") + record(5, b"k", b"w"), 2, base=10, last_delta=7),
        [12, 15],
    ),
    "transactional, idempotent": (batch(TWO, 2, attributes=16, producer=(7, 1, 40)), [0, 1]),
    "all magics": (
        b"".join(kafka_python(magic, codec, rows_of(magic, 4)) for magic, codec in ((0, 0), (1, 1), (2, 4), (0, 1))),
        [0, 1, 2, 3] * 4,
    ),
    "cut by the broker": (batch(TWO, 2) + batch(TWO, 2, base=2)[:-3], [0, 1]),
    "padding of a down-conversion": (message(1, 5, b"v") + struct.pack(">qi", -1, 900) + bytes(200), [5]),
}  # fmt: skip


def read(data: bytes, *tables: str) -> dict[str, list[dict[str, Any]]]:
    """Rows of tables, and the problems of records."""
    made = kdissect.open(io.BytesIO(data), verify=True).tables(["problems", *tables], reveal=True)
    rows = {name: table.to_pylist() for name, table in made.items()}
    rows["problems"] = [row for row in rows["problems"] if row["kind"] in ("records", "timestamp", "undecodable")]
    return rows


@pytest.mark.parametrize("name", SETS)
def test_formats(name: str) -> None:
    data, offsets = SETS[name]
    found = read(capture(data), "records", "record_batches")
    assert [row["offset"] for row in found["records"]] == offsets
    said = [(row["kind"], row["detail"]) for row in found["problems"]]
    padding = [("records", "padding of a down-converted response")] * name.startswith("padding")
    assert said == padding
    assert {row["crc_ok"] for row in found["record_batches"]} <= {True, None}
    assert [row["truncated"] for row in found["record_batches"]].count(True) == name.startswith("cut")


def test_what_the_header_says() -> None:
    parts = [SETS[name][0] for name in ("log append time", "delete horizon", "transactional, idempotent")]
    first, second, third = read(capture(b"".join(parts)), "record_batches")["record_batches"]
    assert (first["timestamp_type"], second["timestamp_type"]) == ("log_append_time", "create_time")
    assert (third["producer_id"], third["producer_epoch"], third["base_sequence"]) == (7, 1, 40)
    assert (first["is_transactional"], third["is_transactional"], third["is_control"]) == (False, True, False)
    rows = read(capture(b"".join(parts)), "records")["records"]
    times = pa.array([row["timestamp"] for row in rows], pa.timestamp("ms", "UTC")).cast(pa.int64()).to_pylist()
    assert times == [START + 100, START + 100, START - 500, START, START + 7]


def test_control_records() -> None:
    """Abort, commit, leader change, snapshot header and footer, KRaft version and voters: by name."""
    sets = [
        batch(record(0, struct.pack(">hh", 0, kind), bytes(6)), 1, base=kind, attributes=32)
        for kind in range(len(CONTROL_TYPES))
    ]
    found = read(capture(b"".join(sets)), "records", "record_batches")
    assert [row["control_type"] for row in found["records"]] == list(CONTROL_TYPES)
    assert [row["is_control"] for row in found["record_batches"]] == [True] * len(CONTROL_TYPES)
    assert not found["problems"]


def talk(key: int, version: int, asked: Any, answered: Any) -> bytes:
    """A capture of one exchange whose bodies kio writes."""
    body, answer = io.BytesIO(), io.BytesIO()
    entity_writer(type(asked))(body, asked)
    entity_writer(type(answered))(answer, answered)
    request = framed(struct.pack(">hhi", key, version, 5) + text("client") + b"\0" + body.getvalue()).data
    response = framed(struct.pack(">i", 5) + b"\0" + answer.getvalue()).data
    made = Talk()
    made.handshake()
    made.put(10, 0, 0, request)
    made.put(11, 1, 0, response)
    return pcap(made.packets)


def test_share_fetch() -> None:
    topic = uuid.UUID("01234567-89ab-cdef-0123-456789abcdef")
    asked = share_request.ShareFetchRequest(
        group_id=GroupId("g"), member_id="m", share_session_epoch=i32(0),
        max_wait=i32Timedelta.parse(datetime.timedelta(milliseconds=5)), min_bytes=i32(1), max_records=i32(10),
        batch_size=i32(10),
        topics=(
            share_request.FetchTopic(
                topic_id=topic,
                partitions=(share_request.FetchPartition(partition_index=i32(3), acknowledgement_batches=()),),
            ),
        ),
        forgotten_topics_data=(),
    )  # fmt: skip
    partition = share_response.PartitionData(
        partition_index=i32(3), error_code=ErrorCode.none, acknowledge_error_code=i16(0),
        current_leader=share_response.LeaderIdAndEpoch(leader_id=i32(1), leader_epoch=i32(2)),
        records=kafka_python(2, 3, rows_of(2, 9)) + kafka_python(2, 0, rows_of(2, 9))[:-9],
        acquired_records=(
            share_response.AcquiredRecords(first_offset=i64(0), last_offset=i64(8), delivery_count=i16(1)),
        ),
    )  # fmt: skip
    answered = share_response.ShareFetchResponse(
        throttle_time=i32Timedelta.parse(datetime.timedelta(0)), error_code=ErrorCode.none,
        acquisition_lock_timeout=i32Timedelta.parse(datetime.timedelta(seconds=30)),
        responses=(share_response.ShareFetchableTopicResponse(topic_id=topic, partitions=(partition,)),),
        node_endpoints=(),
    )  # fmt: skip
    found = read(talk(78, 1, asked, answered), "records", "record_batches")
    assert [(row["offset"], row["value"]) for row in found["records"]] == [(row[0], row[3]) for row in rows_of(2, 9)]
    named = base64.urlsafe_b64encode(topic.bytes).decode().rstrip("=")
    assert {(row["topic_id"], row["partition"]) for row in found["records"]} == {(named, 3)}
    said = [(row["codec"], row["crc_ok"], row["truncated"]) for row in found["record_batches"]]
    assert said == [("lz4", True, False), ("none", None, True)]
    assert not found["problems"]


@pytest.mark.parametrize("position", [0, 77])
def test_fetch_snapshot(position: int) -> None:
    """The beginning of a snapshot is read, until where it is cut; of what follows nothing tells where batches begin."""
    snapshot = snapshot_request.SnapshotId(end_offset=i64(10), epoch=i32(1))
    asked = snapshot_request.FetchSnapshotRequest(
        topics=(
            snapshot_request.TopicSnapshot(
                name=TopicName("__cluster_metadata"),
                partitions=(
                    snapshot_request.PartitionSnapshot(
                        partition=i32(0), current_leader_epoch=i32(1), snapshot_id=snapshot, position=i64(position)
                    ),
                ),
            ),
        ),
    )
    head = batch(record(0, struct.pack(">hh", 0, 3), b"\0\0"), 1, attributes=32)
    rest = batch(TWO, 2, base=1) + batch(TWO, 2, base=3)
    partition = snapshot_response.PartitionSnapshot(
        index=i32(0), error_code=ErrorCode.none,
        snapshot_id=snapshot_response.SnapshotId(end_offset=i64(10), epoch=i32(1)),
        current_leader=snapshot_response.LeaderIdAndEpoch(leader_id=BrokerId(1), leader_epoch=i32(1)),
        size=i64(9999), position=i64(position), unaligned_records=(head + rest)[position:-5],
    )  # fmt: skip
    answered = snapshot_response.FetchSnapshotResponse(
        throttle_time=i32Timedelta.parse(datetime.timedelta(0)), error_code=ErrorCode.none,
        topics=(snapshot_response.TopicSnapshot(name=TopicName("__cluster_metadata"), partitions=(partition,)),),
    )  # fmt: skip
    found = read(talk(59, 1, asked, answered), "records", "record_batches")
    kinds = [(row["offset"], row["control_type"]) for row in found["records"]]
    assert kinds == ([] if position else [(0, "snapshot_header"), (1, None), (2, None)])
    assert {row["topic"] for row in found["records"]} == (set() if position else {"__cluster_metadata"})
    assert not found["problems"]


def _large(megabytes: int, codec: str, path: Path) -> None:
    number, pack = PACK[codec]
    value = bytes(range(256)) * 256
    one = [record(i, b"%d" % i, value[: 60_000 + i % 5000]) for i in range((megabytes << 20) // 60_000 + 1)]
    payload = b"".join(one)
    assert len(payload) >= megabytes << 20
    path.write_bytes(capture(batch(pack(payload), len(one), attributes=number)))
    opened = kdissect.open(path, verify=True)
    (row,) = opened.table("record_batches").to_pylist()
    assert (row["crc_ok"], row["uncompressed_bytes"], row["truncated"]) == (True, len(payload), False)
    count = 0
    for part in opened.batches("records", reveal=True):
        for offset, key, shown in zip(part["offset"], part["key"], part["value"], strict=True):
            assert offset.as_py() == count
            assert key.as_py() == b"%d" % count
            assert shown.as_buffer().equals(pa.py_buffer(value[: 60_000 + count % 5000]))
            count += 1
    assert count == len(one)
    assert not opened.table("problems", where="kind = 'records'").num_rows


@pytest.mark.parametrize("codec", PACK)
def test_batches_of_8_mib(codec: str, tmp_path: Path) -> None:
    _large(8, codec, tmp_path / "large.pcap")


@pytest.mark.exhaustive
@pytest.mark.parametrize("codec", PACK)
def test_batches_of_64_mib(codec: str, tmp_path: Path) -> None:
    _large(64, codec, tmp_path / "large.pcap")


def test_every_flipped_byte_is_noticed(tmp_path: Path) -> None:
    """Each byte of a batch flipped in one of the Produce requests of a capture: all but those outside the checksum and
    before the magic byte are noticed, and a length that lies is a problem."""
    sound = kafka_python(2, 0, rows_of(2, 3))
    places = [*range(8, 12), *range(16, len(sound))]
    flipped = [sound[:place] + bytes([sound[place] ^ 1 << place % 8]) + sound[place + 1 :] for place in places]
    path = tmp_path / "flipped.pcap"
    path.write_bytes(capture(produced=[*flipped, sound]))
    opened = kdissect.open(path, verify=True)
    rows = opened.table("problems", where="kind = 'records'").to_pylist()
    noticed = {int(row["exchange_id"].partition(":")[2]) for row in rows}
    assert noticed == set(range(len(places)))
    wrong = opened.table("record_batches", ["exchange_id"], "crc_ok = false")["exchange_id"].to_pylist()
    summed = {int(name.partition(":")[2]) for name in wrong}
    assert summed >= {n for n, place in enumerate(places) if place > 16}

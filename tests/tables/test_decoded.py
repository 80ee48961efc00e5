"""Tables over what the decoder really hands over, from bodies that kafka-python encodes."""

import uuid

import numpy as np
import pytest
from kafka.protocol.consumer.fetch import FetchRequest, FetchResponse
from kafka.protocol.metadata.metadata import MetadataResponse

from kdissect.kafka.exchanges.messages import Decoder
from kdissect.tables.builder import TableBuilder
from kdissect.tables.declaration import SCHEMAS
from kdissect.tables.projection import message_paths
from tests.tables.made import START, completed, connections

TOPIC = uuid.UUID(int=0x0123456789ABCDEF0123456789ABCDEF)
KAFKA_ID = "ASNFZ4mrze8BI0VniavN7w"


def test_every_path_is_a_field_of_its_message():
    Decoder(message_paths(SCHEMAS))
    for table, schema in SCHEMAS.items():
        for column in schema.names:
            Decoder(message_paths([table], {table: [column]}))


def fetch_request(version):
    topic, part = FetchRequest.FetchTopic, FetchRequest.FetchTopic.FetchPartition
    forgotten = FetchRequest.ForgottenTopic
    name = {"topic_id": TOPIC} if version >= 13 else {"topic": "orders"}
    return FetchRequest(
        version=version,
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=1 << 20,
        isolation_level=0,
        session_id=123,
        session_epoch=5,
        topics=[
            topic(
                version=version,
                partitions=[
                    part(
                        version=version,
                        partition=p,
                        fetch_offset=40 + p,
                        partition_max_bytes=1 << 16,
                        current_leader_epoch=7,
                    )
                    for p in (0, 1)
                ],
                **name,
            )
        ],
        forgotten_topics_data=[forgotten(version=version, partitions=[9], **name)],
        rack_id="r1",
        **({} if version >= 15 else {"replica_id": 2}),
    )


def fetch_response(version):
    topic = FetchResponse.FetchableTopicResponse
    name = {"topic_id": TOPIC} if version >= 13 else {"topic": "orders"}
    part = topic.PartitionData(
        version=version,
        partition_index=1,
        error_code=0,
        high_watermark=50,
        last_stable_offset=49,
        log_start_offset=3,
        aborted_transactions=None,
        preferred_read_replica=-1,
        records=b"x" * 77,
    )
    return FetchResponse(
        version=version,
        throttle_time_ms=0,
        error_code=0,
        session_id=123,
        responses=[topic(version=version, partitions=[part], **name)],
    )


def metadata_response():
    broker, topic = MetadataResponse.MetadataResponseBroker, MetadataResponse.MetadataResponseTopic
    return MetadataResponse(
        version=12,
        throttle_time_ms=0,
        brokers=[broker(version=12, node_id=4, host="10.0.0.9", port=9092, rack=None)],
        cluster_id="c",
        controller_id=4,
        topics=[
            topic(
                version=12,
                error_code=0,
                name="orders",
                topic_id=TOPIC,
                is_internal=False,
                partitions=[],
            )
        ],
    )


@pytest.mark.parametrize("version", [11, 12, 13, 15])
def test_fetch_and_metadata_as_decoded(version):
    builder = TableBuilder(connections(), dict.fromkeys(SCHEMAS))
    decoder = Decoder(builder.message_paths)
    bodies = [
        (1, version, 0, fetch_request(version)),
        (1, version, 1, fetch_response(version)),
        (3, 12, 1, metadata_response()),
    ]
    encoded = [message.encode(header=False, framed=False) for *_, message in bodies]
    ends = np.cumsum([len(data) for data in encoded])
    begins = ends - [len(data) for data in encoded]
    programs = np.array([decoder.table[key, v, side] for key, v, side, _ in bodies], np.int32)
    found = decoder.decode(np.frombuffer(b"".join(encoded), np.uint8), begins, ends, programs)
    assert found.status.tolist() == [0, 0, 0]
    for message in found.messages.values():
        message.rows = np.where(message.rows == 2, 1, 0)
    done = completed(
        {"api_version": version, "request_first": START, "response_last": START, "error_code": 0},
        {"api_key": 3, "api_version": 12, "n": 1, "response_last": START},
    )
    done.messages = found.messages
    raw = builder.feed(done)
    (fetch,) = builder.finished("fetches", [raw["fetches"]]).to_pylist()
    expected = {
        "replica_id": -1 if version >= 15 else 2,
        "is_follower": version < 15,
        "request_session_id": 123,
        "session_epoch": 5,
        "request_kind": "incremental",
        "response_session_id": 123,
        "partitions_sent": 2,
        "partitions_forgotten": 1,
        "partitions_returned": 1,
        "partitions_with_records": 1,
        "record_bytes": 77,
        "rack_id": "r1",
        "broker": "4",
        "is_raft": False,
    }
    assert {name: fetch[name] for name in expected} == expected
    rows = builder.finished("fetch_partitions", [raw["fetch_partitions"]]).to_pylist()
    assert [(r["topic"], r["topic_id"], r["partition"], r["fetch_offset"], r["lag"], r["forgotten"]) for r in rows] == [
        ("orders", KAFKA_ID if version >= 13 else None, 1, 41, 9, False),
        ("orders", KAFKA_ID if version >= 13 else None, 0, 40, None, False),
        ("orders", KAFKA_ID if version >= 13 else None, 9, None, None, True),
    ]
    assert rows[0]["current_leader_epoch"] == 7
    topics = builder.finish()["topics"].to_pylist()
    assert [(row["topic_id"], row["topic"], row["source"]) for row in topics] == [(KAFKA_ID, "orders", "Metadata")]

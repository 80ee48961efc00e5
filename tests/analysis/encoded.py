"""The model broker's exchanges as a capture: every message by kio's encoder, every packet by hand."""

from __future__ import annotations

import base64
import datetime
import importlib
import io
import itertools
import uuid
from typing import Any

from tests.analysis.model import Broker, Key
from tests.analysis.wire import START
from tests.oracle.pcap import START as TALK_START
from tests.oracle.pcap import Talk, framed, pcap

ADDRESS = "10.0.0.2:9092"
CLIENT_PORT = 20000
MICROSECOND = 1000


def encode(message: Any, header: Any) -> bytes:
    """A frame by kio."""
    from kio.serial import entity_writer

    out = io.BytesIO()
    entity_writer(type(header))(out, header)
    entity_writer(type(message))(out, message)
    return framed(out.getvalue())


def topic_of(key: Key) -> dict[str, Any]:
    """The field that names a topic in this version."""
    if key[1] is None:
        return {"topic": key[0]}
    return {"topic_id": uuid.UUID(bytes=base64.urlsafe_b64decode(key[1] + "=="))}


def fetch_request(q: dict[str, Any], client: str, n: int) -> bytes:
    from kio.static.primitive import i16, i32, i32Timedelta, i64

    module = importlib.import_module(f"kio.schema.fetch.v{q['version']}.request")
    topics = tuple(
        module.FetchTopic(
            partitions=tuple(
                module.FetchPartition(partition=i32(key[2]), fetch_offset=i64(offset), partition_max_bytes=i32(1 << 20))
                for key, offset in part
            ),
            **topic_of((*name, 0)),
        )
        for name, part in itertools.groupby(q["named"].items(), key=lambda item: item[0][:2])
    )
    forgotten = tuple(
        module.ForgottenTopic(partitions=tuple(i32(key[2]) for key in part), **topic_of((*name, 0)))
        for name, part in itertools.groupby(q["forgotten"], key=lambda key: key[:2])
    )
    message = module.FetchRequest(
        max_wait=i32Timedelta.parse(datetime.timedelta(milliseconds=500)), min_bytes=i32(1), session_id=i32(q["id"]),
        session_epoch=i32(q["epoch"]), topics=topics, forgotten_topics_data=forgotten,
        **({"replica_id": i32(-1)} if q["version"] < 15 else {}),
    )  # fmt: skip
    header = message.__header_schema__(
        request_api_key=i16(1), request_api_version=i16(q["version"]), correlation_id=i32(n), client_id=client
    )
    return encode(message, header)


def fetch_response(row: dict[str, Any], given: list[dict[str, Any]], n: int) -> bytes:
    from kio.schema.errors import ErrorCode
    from kio.static.primitive import Records, i32, i32Timedelta, i64

    version = row["api_version"]
    module = importlib.import_module(f"kio.schema.fetch.v{version}.response")

    def part(got: dict[str, Any]) -> Any:
        more: dict[str, Any] = {}
        if version >= 11:
            more["preferred_read_replica"] = i32(got["preferred_read_replica"])
        if version >= 12 and got["diverging_epoch"] >= 0:
            more["diverging_epoch"] = module.EpochEndOffset(epoch=i32(got["diverging_epoch"]), end_offset=i64(0))
        return module.PartitionData(
            partition_index=i32(got["partition"]), error_code=ErrorCode(got["error_code"]),
            high_watermark=i64(got["high_watermark"]), log_start_offset=i64(got["broker_log_start_offset"]),
            aborted_transactions=None, records=Records(b"\0" * got["record_bytes"]), **more,
        )  # fmt: skip

    topics = tuple(
        module.FetchableTopicResponse(partitions=tuple(part(got) for got in parts), **topic_of((*name, 0)))
        for name, parts in itertools.groupby(given, key=lambda got: (got["topic"], got["topic_id"]))
    )
    message = module.FetchResponse(
        throttle_time=i32Timedelta.parse(datetime.timedelta(milliseconds=row["throttle_ms"])),
        error_code=ErrorCode(row["error_code"]), session_id=i32(row["response_session_id"]), responses=topics,
    )  # fmt: skip
    return encode(message, message.__header_schema__(correlation_id=i32(n)))


def metadata(names: dict[str, str]) -> tuple[bytes, bytes]:
    """A Metadata request and its answer, which tells the names of topic ids (id -> name) and of no broker."""
    from kio.schema.errors import ErrorCode
    from kio.static.primitive import i16, i32, i32Timedelta

    asking = importlib.import_module("kio.schema.metadata.v12.request").MetadataRequest(
        topics=(), include_topic_authorized_operations=False
    )
    module = importlib.import_module("kio.schema.metadata.v12.response")
    topics = tuple(
        module.MetadataResponseTopic(error_code=ErrorCode(0), name=name, partitions=(), **topic_of(("", number, 0)))
        for number, name in names.items()
    )
    answer = module.MetadataResponse(
        throttle_time=i32Timedelta.parse(datetime.timedelta(0)), brokers=(), topics=topics, controller_id=i32(-1)
    )
    header = asking.__header_schema__(
        request_api_key=i16(3), request_api_version=i16(12), correlation_id=i32(0), client_id="names"
    )
    return encode(asking, header), encode(answer, answer.__header_schema__(correlation_id=i32(0)))


class EncodedBroker(Broker):
    """The model, with its messages kept as kio encodes them."""

    def __init__(self) -> None:
        super().__init__(ADDRESS)
        self.requests: list[bytes] = []

    def request_size(self, q: dict[str, Any], client: str, n: int) -> int:
        self.requests.append(fetch_request(q, client, n))
        return len(self.requests[-1])

    def capture(self) -> tuple[bytes, dict[int, str]]:
        """A pcap, and by client port which of the model's connections it is."""
        talks: dict[str, Talk] = {}
        sent: dict[tuple[str, int], int] = {}
        begin = (START * MICROSECOND - TALK_START) / 1e6 - 10

        def say(connection: str, ms: float, side: int, data: bytes) -> None:
            if connection not in talks:
                talks[connection] = Talk(client=("10.0.0.1", CLIENT_PORT + len(talks)), broker=("10.0.0.2", 9092))
                talks[connection].handshake(begin)
            at = sent.get((connection, side), 0)
            sent[connection, side] = at + len(data)
            talks[connection].put(ms, side, at, data)

        names = {part["topic_id"]: part["topic"] for part in self.rows.partitions if part["topic_id"] is not None}
        for side, data in enumerate(metadata(names)):
            say("names", begin + 1 + side, side, data)
        given: dict[str, list[dict[str, Any]]] = {}
        for part in self.rows.partitions:
            if part["in_response"]:
                given.setdefault(part["exchange_id"], []).append(part)
        for row, request in zip(self.rows.fetches, self.requests, strict=True):
            connection, n = row["connection_id"], int(row["exchange_id"].partition(":")[2])
            say(connection, _ms(row["request_last_at"]), 0, request)
            if "response_first_at" in row:
                answer = fetch_response(row, given.get(row["exchange_id"], []), n)
                say(connection, _ms(row["response_first_at"]), 1, answer)
        packets = sorted((packet for talk in talks.values() for packet in talk.packets), key=lambda packet: packet[0])
        return pcap(packets), {talk.client[1]: name for name, talk in talks.items()}


def _ms(microseconds: int) -> float:
    """Milliseconds since the time zero of built captures."""
    return (microseconds * MICROSECOND - TALK_START) / 1e6

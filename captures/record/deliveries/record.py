"""Records captures/deliveries/*: producers put the time of send() into the record, consumers log the time of poll().

From the root, as root: python -m captures.record.deliveries.record NAME. Needs what tests/live needs, and confluent-kafka.
One broker and its clients run on one host; each client is a process of its own. A line of the truth is a record that a
consumer's poll() returned: reader, topic, partition, offset, when it was sent, when that poll began and returned (ns).
"""

import json
import multiprocessing
import os
import struct
import sys
import tempfile
import time
from pathlib import Path

import zstandard

from tests.live import broker

CAPTURES = Path(__file__).resolve().parents[2] / "deliveries"
SECONDS = 8
"""How long producers send."""


def value():
    return struct.pack(">q", time.time_ns()) + b"x" * 60


def end_of(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield


def librdkafka_producer(port, topic, every, **settings):
    from confluent_kafka import Producer

    made = Producer({"bootstrap.servers": f"127.0.0.1:{port}", "client.id": f"p-{topic}", **settings})
    for _ in end_of(SECONDS):
        made.produce(topic, value(), on_delivery=lambda *told: None)
        made.poll(0)
        time.sleep(every)
    made.flush(10)


def transactional_producer(port, topic, open_for):
    from confluent_kafka import Producer

    made = Producer({"bootstrap.servers": f"127.0.0.1:{port}", "client.id": f"p-{topic}", "transactional.id": f"tx-{topic}"})
    made.init_transactions(20)
    for _ in range(4):
        made.begin_transaction()
        for _ in range(5):
            made.produce(topic, value())
        made.flush(10)
        time.sleep(open_for)
        made.commit_transaction(20)


def kafka_python_producer(port, topic, every, **settings):
    from kafka import KafkaProducer

    made = KafkaProducer(bootstrap_servers=f"127.0.0.1:{port}", client_id=f"p-{topic}", **settings)
    for _ in end_of(SECONDS):
        made.send(topic, value())
        time.sleep(every)
    made.flush(10)
    made.close()


def librdkafka_consumer(port, topic, told, seconds, **settings):
    from confluent_kafka import Consumer

    made = Consumer({
        "bootstrap.servers": f"127.0.0.1:{port}", "client.id": f"c-{topic}", "group.id": f"g-{topic}",
        "auto.offset.reset": "earliest", "topic.metadata.refresh.interval.ms": 500, **settings,
    })
    made.subscribe([topic])
    with open(told, "a") as out:
        for _ in end_of(seconds):
            began = time.time_ns()
            message = made.poll(0.5)
            ended = time.time_ns()
            if message is not None and not message.error():
                row(out, f"g-{topic}", topic, message.partition(), message.offset(), message.value(), began, ended)
    made.close()


def kafka_python_consumer(port, topic, told, seconds, works=0.0, rewinds=False):
    from kafka import KafkaConsumer, TopicPartition

    made = KafkaConsumer(
        topic, bootstrap_servers=f"127.0.0.1:{port}", client_id=f"c-{topic}", group_id=f"g-{topic}",
        auto_offset_reset="earliest", metadata_max_age_ms=500,
    )
    half = time.monotonic() + seconds / 2
    with open(told, "a") as out:
        for _ in end_of(seconds):
            began = time.time_ns()
            found = made.poll(500)
            ended = time.time_ns()
            for place, records in found.items():
                for one in records:
                    row(out, f"g-{topic}", place.topic, place.partition, one.offset, one.value, began, ended)
            if found and works:
                time.sleep(works)
            if rewinds and time.monotonic() > half:
                made.seek(TopicPartition(topic, 0), 0)
                rewinds = False
    made.close()


def row(out, reader, topic, partition, offset, data, began, ended):
    sent = struct.unpack(">q", data[:8])[0]
    out.write(json.dumps([reader, topic, partition, offset, sent, began, ended]) + "\n")


def waiting(port, told):
    """Readers that wait for records: acks 0, 1 and all, linger of 5 and 50 ms, compression, a rewind."""
    return [
        (librdkafka_consumer, (port, "one", told, SECONDS + 6), {}),
        (librdkafka_consumer, (port, "zero", told, SECONDS + 6), {}),
        (kafka_python_consumer, (port, "linger", told, SECONDS + 6), {"rewinds": True}),
    ], [
        (librdkafka_producer, (port, "one", 0.02), {"acks": 1, "linger.ms": 5, "compression.type": "lz4"}),
        (librdkafka_producer, (port, "zero", 0.02), {"acks": 0, "linger.ms": 0}),
        (kafka_python_producer, (port, "linger", 0.02), {"acks": "all", "linger_ms": 50, "compression_type": "gzip"}),
    ]


def held_up(port, told):
    """A reader that works for 1.5 s after each poll, and readers of committed records behind transactions of 2 s."""
    return [
        (kafka_python_consumer, (port, "slow", told, SECONDS + 8), {"works": 1.5}),
        (librdkafka_consumer, (port, "held", told, SECONDS + 8), {"isolation.level": "read_committed"}),
    ], [
        (kafka_python_producer, (port, "slow", 0.02), {"acks": 1}),
        (transactional_producer, (port, "held", 2.0), {}),
    ]


STORIES = {"waiting": waiting, "held_up": held_up}


def main(name):
    os.nice(-15)
    CAPTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder) / "told.jsonl"
        with broker.running(Path(folder)) as live:
            readers, writers = STORIES[name](live.port, told)
            from confluent_kafka.admin import AdminClient, NewTopic

            admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{live.port}"})
            for made in admin.create_topics([NewTopic(arguments[1], 1, 1) for _, arguments, _ in readers]).values():
                made.result(20)
            at_work = [multiprocessing.Process(target=what, args=arguments, kwargs=more) for what, arguments, more in readers]
            for one in at_work:
                one.start()
            time.sleep(4)  # groups are joined, and fetches wait
            more = [multiprocessing.Process(target=what, args=arguments, kwargs=options) for what, arguments, options in writers]
            for one in more:
                one.start()
            for one in at_work + more:
                one.join(60)
        live.finished()
        (CAPTURES / f"{name}.pcap.zst").write_bytes(zstandard.ZstdCompressor(19).compress(live.capture.read_bytes()))
        (CAPTURES / f"{name}.polls.jsonl.zst").write_bytes(zstandard.ZstdCompressor(19).compress(told.read_bytes()))


if __name__ == "__main__":
    main(sys.argv[1])

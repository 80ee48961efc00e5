"""clients.py LIBRARY BOOTSTRAP OUT SPEC [+ SPEC]...: clients of kafka-python or librdkafka, a process each.

SPEC is ROLE TOPIC [NAME=VALUE]... [STEP]... and begins `after` ms. Roles: `produce` (for `for` ms a record every `every` ms, with
`acks`, `linger` ms and `codec`), `consume` (for `for` ms; `group`; `latest`, `committed`, `rewinds`, or `skips` to the
end (kafka-python), where they are given; `works`
ms after each poll that returned records; `rack`), `transact` (`client`, `id`, `timeout` ms; steps are `begin`, `send:N`, `sleep:MS`, `commit`,
`abort`, each of which is tried whatever became of those before it; `unknown` leaves out AddPartitionsToTxn).

A line of OUT is a record that a poll returned ([group, topic, partition, offset, when it was sent, when that poll began and
returned], in ns), or what became of a step.
"""

import json
import multiprocessing
import random
import struct
import sys
import time

LIBRARY, SERVERS, OUT = sys.argv[1:4]
METADATA_MS = 2000


def value():
    return struct.pack(">q", time.time_ns()) + b"x" * 60


def write(lines):
    if lines:
        with open(OUT, "a") as out:
            out.write("".join(json.dumps(line) + "\n" for line in lines))


class KafkaPython:
    def producer(self, topic, settings):
        from kafka import KafkaProducer

        acks = settings.get("acks", "all")
        made = KafkaProducer(
            bootstrap_servers=SERVERS, client_id=f"p-{topic}", acks=acks if acks == "all" else int(acks), metadata_max_age_ms=METADATA_MS,
            linger_ms=int(settings.get("linger", 0)), compression_type=settings.get("codec"),
            enable_idempotence=acks == "all",
        )

        def send():
            dated = (time.time_ns() // 1_000_000 + random.randrange(3_600_000)) if "dated" in settings else None
            made.send(topic, value(), timestamp_ms=dated)

        return send, lambda: made.close(10)

    def consumer(self, topic, settings):
        from kafka import KafkaConsumer, TopicPartition

        group = settings["group"]
        made = KafkaConsumer(
            topic, bootstrap_servers=SERVERS, client_id="c" + group[1:], group_id=group, metadata_max_age_ms=METADATA_MS,
            auto_offset_reset="latest" if "latest" in settings else "earliest", client_rack=settings.get("rack", ""),
            isolation_level="read_committed" if "committed" in settings else "read_uncommitted",
        )

        def poll():
            found = made.poll(500)
            return [(place.partition, one.offset, one.value) for place, records in found.items() for one in records]

        return poll, {"rewinds": lambda: made.seek(TopicPartition(topic, 0), 0), "skips": made.seek_to_end}, made.close

    def transactional(self, topic, settings):
        from kafka import KafkaProducer

        made = KafkaProducer(
            bootstrap_servers=SERVERS, client_id=settings["client"], transactional_id=settings["id"],
            transaction_timeout_ms=int(settings["timeout"]), acks="all",
        )
        made.init_transactions()
        if "unknown" in settings:
            manager = made._transaction_manager
            manager.maybe_add_partition_to_transaction = manager._partitions_in_transaction.add

        def send(count):
            sent = [made.send(topic, value()) for _ in range(count)]
            made.flush(20)
            for one in sent:
                one.get(1)

        return {
            "begin": made.begin_transaction, "send": send, "commit": made.commit_transaction, "abort": made.abort_transaction,
        }, lambda: made.close(2)


class Librdkafka:
    def settings(self, client):
        return {"bootstrap.servers": SERVERS, "client.id": client, "topic.metadata.refresh.interval.ms": METADATA_MS}

    def producer(self, topic, settings):
        from confluent_kafka import Producer

        made = Producer(self.settings(f"p-{topic}") | {
            "acks": settings.get("acks", "all"), "linger.ms": settings.get("linger", "0"),
            "compression.type": settings.get("codec", "none"), "enable.idempotence": settings.get("acks", "all") == "all",
        })

        def send():
            made.produce(topic, value())
            made.poll(0)

        return send, lambda: made.flush(10)

    def consumer(self, topic, settings):
        from confluent_kafka import Consumer, TopicPartition

        group = settings["group"]
        made = Consumer(self.settings("c" + group[1:]) | {
            "group.id": group, "auto.offset.reset": "latest" if "latest" in settings else "earliest",
            "isolation.level": "read_committed" if "committed" in settings else "read_uncommitted",
            "client.rack": settings.get("rack", ""), "queued.min.messages": 1 if "works" in settings else 100000,
        })
        made.subscribe([topic])

        def poll():
            found = made.consume(1, 0.5)
            found += made.consume(500, 0) if found else []
            return [(one.partition(), one.offset(), one.value()) for one in found if not one.error()]

        return poll, {"rewinds": lambda: made.seek(TopicPartition(topic, 0, 0))}, made.close

    def transactional(self, topic, settings):
        from confluent_kafka import KafkaException, Producer

        made = Producer(self.settings(settings["client"]) | {
            "transactional.id": settings["id"], "transaction.timeout.ms": settings["timeout"], "linger.ms": 0,
        })
        while True:
            try:
                made.init_transactions(20)
                break
            except KafkaException as problem:
                if not problem.args[0].retriable():
                    raise

        def send(count):
            errors = []
            for _ in range(count):
                made.produce(topic, value(), on_delivery=lambda error, _: errors.append(error) if error else None)
            made.flush(20)
            if errors:
                raise RuntimeError(errors[0])

        return {
            "begin": made.begin_transaction, "send": send, "commit": lambda: made.commit_transaction(20),
            "abort": lambda: made.abort_transaction(20),
        }, lambda: None


MADE = {"kafka-python": KafkaPython, "librdkafka": Librdkafka}


def produce(library, topic, settings, end):
    send, close = library.producer(topic, settings)
    while time.monotonic() < end:
        send()
        time.sleep(int(settings["every"]) / 1000)
    close()


def consume(library, topic, settings, end):
    poll, moves, close = library.consumer(topic, settings)
    half = (time.monotonic() + end) / 2
    asked = [moves[name] for name in ("rewinds", "skips") if name in settings]
    while time.monotonic() < end:
        began = time.time_ns()
        found = poll()
        ended = time.time_ns()
        write([[settings["group"], topic, partition, offset, struct.unpack(">q", data[:8])[0], began, ended] for partition, offset, data in found])
        if found and "works" in settings:
            time.sleep(int(settings["works"]) / 1000)
        if asked and time.monotonic() > half:
            asked.pop()()
    close()


def transact(library, topic, settings, steps):
    known, close = library.transactional(topic, settings)
    known["sleep"] = lambda ms: time.sleep(ms / 1000)
    for step in steps:
        word, _, count = step.partition(":")
        error, began = None, time.time_ns()
        try:
            known[word](*([int(count)] if count else []))
        except Exception as problem:
            error = repr(problem)
        write([{"client": settings["client"], "id": settings["id"], "topic": topic, "step": word, "count": int(count or 0),
                "began": began, "ended": time.time_ns(), "error": error}])
    close()


def run(spec):
    role, topic, *rest = spec
    settings = dict(word.split("=") for word in rest if "=" in word)
    time.sleep(int(settings.get("after", 0)) / 1000)
    library, end = MADE[LIBRARY](), time.monotonic() + int(settings.get("for", 0)) / 1000
    if role == "transact":
        transact(library, topic, settings, [word for word in rest if "=" not in word])
    else:
        {"produce": produce, "consume": consume}[role](library, topic, settings, end)


if __name__ == "__main__":
    specs = [text.split("\n") for text in "\n".join(sys.argv[4:]).split("\n+\n")]
    if len(specs) == 1:
        run(specs[0])
    else:
        clients = [multiprocessing.Process(target=run, args=[spec]) for spec in specs]
        for one in clients:
            one.start()
        for one in clients:
            one.join()
        assert not any(one.exitcode for one in clients)

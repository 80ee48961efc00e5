"""clients.py LIBRARY produce|consume|stuck|slow|nopoll ID BOOTSTRAP SECONDS [TOPIC [RATE [BYTES]]]: one client, one process.

`stuck` consumes, and from the sixth second on its process does something else than to run the library (aiokafka: the
event loop is blocked, so nothing reads the sockets). `slow` takes half a second a record from the eighth second on,
`nopoll` does not come back from its first record after it. A producer counts what was acknowledged, a consumer what it read;
both go on whatever error they meet. LAB_USER and LAB_PASSWORD make it log in, LAB_TLS speak TLS, LAB_INSTANCE is a group.instance.id.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import sys
import time

LIBRARY, ROLE, NAME, BOOTSTRAP, SECONDS = sys.argv[1:6]
TOPIC = sys.argv[6] if len(sys.argv) > 6 else "orders"
RATE = float(sys.argv[7]) if len(sys.argv) > 7 else 4.0
BYTES = int(sys.argv[8]) if len(sys.argv) > 8 else 100
UNTIL = time.time() + float(SECONDS)
STUCK_AT = 6.0
SLOW_AFTER = 8.0
POLL_MS = 6000
"""max.poll.interval.ms, in the roles that are late with their polls."""
START = time.time()
GROUP = os.environ["LAB_GROUP"]
count, errors = 0, set()
USER, TLS, INSTANCE = os.environ.get("LAB_USER"), "LAB_TLS" in os.environ, os.environ.get("LAB_INSTANCE")
PROTOCOL = "SASL_PLAINTEXT" if USER else "SSL" if TLS else "PLAINTEXT"
SECURITY = {"security_protocol": PROTOCOL} | ({
    "sasl_mechanism": "PLAIN", "sasl_plain_username": USER, "sasl_plain_password": os.environ.get("LAB_PASSWORD"),
} if USER else {})  # fmt: skip
STATIC = {"group_instance_id": INSTANCE} if INSTANCE else {}


def handle(records: int) -> float:
    """How long the application works on the records of a poll, in seconds."""
    global count
    count += records
    if not records or time.time() < START + SLOW_AFTER:
        return 0.0
    return {"slow": 0.5 * records, "nopoll": max(0.0, UNTIL - time.time())}.get(ROLE, 0.0)


def failed(error: object) -> None:
    errors.add(str(error)[:120])


def kafka_python() -> None:
    global count
    from kafka import KafkaConsumer, KafkaProducer

    servers = BOOTSTRAP.split(",")
    if ROLE == "produce":
        producer = KafkaProducer(
            bootstrap_servers=servers, client_id=NAME, acks="all", linger_ms=5, max_block_ms=20000, **SECURITY
        )
        while time.time() < UNTIL:
            try:
                producer.send(TOPIC, bytes(BYTES)).add_callback(acknowledged).add_errback(failed)
            except Exception as error:
                failed(error)
            time.sleep(1 / RATE)
        producer.close(timeout=5)
    else:
        consumer = KafkaConsumer(
            TOPIC,
            bootstrap_servers=servers,
            client_id=NAME,
            group_id=GROUP,
            auto_offset_reset="latest",
            **SECURITY,
            **STATIC,
            **({"max_poll_interval_ms": POLL_MS} if ROLE == "nopoll" else {}),
        )
        while time.time() < UNTIL:
            time.sleep(handle(sum(len(rows) for rows in consumer.poll(timeout_ms=300).values())))
        consumer.close()


def acknowledged(_: object) -> None:
    global count
    count += 1


async def started(client: object) -> None:
    """Its constructor's first connection may fail; a service would be started again."""
    while True:
        try:
            return await client.start()
        except Exception as error:
            failed(error)
            if time.time() > UNTIL:
                raise
            await asyncio.sleep(1)


async def aio() -> None:
    global count
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

    security = SECURITY | ({"ssl_context": ssl.create_default_context()} if TLS else {})
    if ROLE == "produce":
        producer = AIOKafkaProducer(bootstrap_servers=BOOTSTRAP, client_id=NAME, acks="all", **security)
        await started(producer)
        pending = set()
        while time.time() < UNTIL:
            try:
                sent = await asyncio.wait_for(producer.send(TOPIC, bytes(BYTES)), 2)
                sent.add_done_callback(lambda one: failed(one.exception()) if one.exception() else acknowledged(one))
                pending.add(sent)
            except Exception as error:
                failed(error)
            await asyncio.sleep(1 / RATE)
        await asyncio.wait_for(producer.stop(), 5)
    else:
        consumer = AIOKafkaConsumer(
            TOPIC,
            bootstrap_servers=BOOTSTRAP,
            client_id=NAME,
            group_id=GROUP,
            **security,
            **STATIC,
            **({"max_poll_interval_ms": POLL_MS} if ROLE == "nopoll" else {}),
        )
        await started(consumer)
        while time.time() < UNTIL:
            if ROLE == "stuck" and time.time() > START + STUCK_AT:
                time.sleep(UNTIL - time.time())  # the loop is blocked on purpose
                break
            try:
                await asyncio.sleep(handle(sum(map(len, (await consumer.getmany(timeout_ms=300)).values()))))
            except Exception as error:
                failed(error)
        await asyncio.wait_for(consumer.stop(), 5)


def librdkafka() -> None:
    global count
    from confluent_kafka import Consumer, Producer

    settings = {"bootstrap.servers": BOOTSTRAP, "client.id": NAME, "error_cb": failed, "log_level": 0,
                "security.protocol": PROTOCOL}  # fmt: skip
    if USER:
        settings |= {"sasl.mechanism": "PLAIN", "sasl.username": USER, "sasl.password": os.environ["LAB_PASSWORD"]}
    if ROLE == "produce":
        producer = Producer(settings | {"linger.ms": 5})
        while time.time() < UNTIL:
            try:
                producer.produce(TOPIC, bytes(BYTES), on_delivery=lambda e, m: failed(e) if e else acknowledged(m))
            except BufferError as error:
                failed(error)
            producer.poll(1 / RATE)
            time.sleep(1 / RATE)
        producer.flush(5)
    else:
        more = {"max.poll.interval.ms": POLL_MS, "session.timeout.ms": POLL_MS} if ROLE == "nopoll" else {}
        more |= {"group.instance.id": INSTANCE} if INSTANCE else {}
        consumer = Consumer(settings | {"group.id": GROUP, "auto.offset.reset": "latest"} | more)
        consumer.subscribe([TOPIC])
        while time.time() < UNTIL:
            record = consumer.poll(0.3)
            if record is not None and not record.error():
                time.sleep(handle(1))
        consumer.close()


def main() -> None:
    try:
        if LIBRARY == "aiokafka":
            asyncio.run(aio())
        else:
            {"kafka-python": kafka_python, "librdkafka": librdkafka}[LIBRARY]()
    except Exception as error:
        failed(repr(error))
    print(NAME, count, sorted(errors), flush=True)


if __name__ == "__main__":
    main()

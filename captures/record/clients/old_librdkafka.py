"""Records zoo_librdkafka_0_11 and zoo_librdkafka_1_3 with the broker of tests/live. From the root:
python -m captures.record.clients.old_librdkafka 0_11 LIBRARY VERSION [FOLDER]

LIBRARY is the librdkafka.so.1 inside of a wheel of confluent-kafka of that age (0.11.6, 1.3.0; manylinux, CPython 3.7),
called by ctypes: these wheels do not import into today's Python. Needs Java, Maven, tcpdump and root. What the capture shows is
counted by the plain reader of tests/oracle, not by kdissect.
"""

import ctypes
import datetime
import hashlib
import re
import sys
import tempfile
import time
from collections import Counter
from ctypes import c_char_p, c_int32, c_size_t, c_void_p
from pathlib import Path

import zstandard

from kdissect.schema import index
from tests.live import broker
from tests.oracle import wire

CAPTURES = Path(__file__).resolve().parents[2]
KAFKA = re.search(r"kafka_2.13</artifactId><version>([\d.]+)", (broker.HERE / "pom.xml").read_text())[1]
PRODUCER = 0
COPY = 2
RECORDS = 40
TOPIC = b"old-topic"


class Library:
    def __init__(self, path):
        self._c = c = ctypes.CDLL(str(path))
        for name in ("conf_new", "new", "topic_new"):
            getattr(c, f"rd_kafka_{name}").restype = c_void_p
        c.rd_kafka_version_str.restype = c_char_p
        self.version = c.rd_kafka_version_str().decode()

    def producer(self, port):
        settings = {"bootstrap.servers": f"127.0.0.1:{port}", "client.id": "old-client", "queue.buffering.max.ms": 20}
        conf, told = c_void_p(self._c.rd_kafka_conf_new()), ctypes.create_string_buffer(512)
        for key, value in settings.items():
            if self._c.rd_kafka_conf_set(conf, key.encode(), str(value).encode(), told, c_size_t(512)):
                raise SystemExit(told.value.decode())
        made = self._c.rd_kafka_new(PRODUCER, conf, told, c_size_t(512))
        if not made:
            raise SystemExit(told.value.decode())
        return c_void_p(made)

    def write(self, port):
        """RECORDS records, the last of them without a key."""
        client = self.producer(port)
        topic = c_void_p(self._c.rd_kafka_topic_new(client, TOPIC, None))
        for n in range(RECORDS):
            key = None if n == RECORDS - 1 else b"key-%d" % n
            text = b"value number %d" % n
            self._c.rd_kafka_produce(topic, c_int32(0), COPY, text, c_size_t(len(text)), key, c_size_t(len(key or b"")), None)
        self._c.rd_kafka_flush(client, 15_000)
        self._c.rd_kafka_topic_destroy(topic)
        self._c.rd_kafka_destroy(client)


def main():
    name, library, package = f"zoo_librdkafka_{sys.argv[1]}", Library(sys.argv[2]), sys.argv[3]
    target = Path(sys.argv[4]) if len(sys.argv) > 4 else CAPTURES
    with tempfile.TemporaryDirectory() as folder:
        with broker.running(Path(folder)) as live:
            library.write(live.port)  # fails: the topic is made by its first Metadata request
            time.sleep(2)
            library.write(live.port)
        live.finished()
        pcap, log = live.capture.read_bytes(), live.log.read_bytes()
        asked = wire.requests(live.capture, frozenset({live.port}))
        packets = sum(1 for _ in wire.packets(live.capture))
    (target / f"{name}.pcap").write_bytes(pcap)
    (target / f"{name}.requests.log.zst").write_bytes(zstandard.ZstdCompressor(19).compress(log))
    shows = Counter((r.key, r.version) for r in asked)
    lines = [
        f'title = "confluent-kafka {package} (librdkafka {library.version}) against Apache Kafka {KAFKA}: produce"',
        f'made = "captures/record/clients/old_librdkafka.py: the library of confluent-kafka {package}, by ctypes; broker and '
        'controller in one process; tcpdump from before the broker starts until it has stopped"',
        f'brokers = ["Apache Kafka {KAFKA} (KRaft), broker 1 on port {live.port}"]',
        f'clients = ["confluent-kafka {package} (librdkafka {library.version})"]',
        'link_type = "EN10MB"',
        f"packets = {packets}",
        f'sha256 = "{hashlib.sha256(pcap).hexdigest()}"',
        f"captured_at = {datetime.date.today()}",
        "expect = [",
        f'  "{RECORDS} records are produced; a producer before that finds no topic",',
        '  "ApiVersions v0 has four bytes behind its header: a null array",',
        "]",
        "[shows]",
        *(f'"{index.api_name(k)} v{v} request" = {n}' for (k, v), n in sorted(shows.items())),
    ]
    (target / f"{name}.toml").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()

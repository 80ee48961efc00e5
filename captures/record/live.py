"""Records sweep_440_kraft with the broker and the client of tests/live. From the root: python -m captures.record.live

Needs Java, Maven, tcpdump, root and the packages of the tests. What the capture shows is counted by the plain reader of
tests/oracle, not by kdissect.
"""

import datetime
import hashlib
import re
import tempfile
from collections import Counter
from pathlib import Path

import zstandard

from kdissect.schema import index
from tests.live import broker
from tests.live.client import sweep
from tests.oracle import wire

CAPTURES = Path(__file__).resolve().parents[1]
NAME = "sweep_440_kraft"
VERSION = re.search(r"kafka_2.13</artifactId><version>([\d.]+)", (broker.HERE / "pom.xml").read_text())[1]


def main():
    with tempfile.TemporaryDirectory() as folder:
        with broker.running(Path(folder)) as live:
            sent = sweep(live.port, live.controller_port)
        live.finished()
        pcap, log = live.capture.read_bytes(), live.log.read_bytes()
        asked = wire.requests(live.capture, frozenset({live.port, live.controller_port}))
        packets = sum(1 for _ in wire.packets(live.capture))
    (CAPTURES / f"{NAME}.pcap").write_bytes(pcap)
    (CAPTURES / f"{NAME}.requests.log.zst").write_bytes(zstandard.ZstdCompressor(19).compress(log))
    shows = Counter((r.key, r.version, side) for r in asked for side in ("request", "response")[: 1 + (r.response is not None)])
    lines = [
        f'title = "Every API at every version that Apache Kafka {VERSION} (KRaft) advertises, from a raw client"',
        f'made = "captures/record/live.py: Apache Kafka {VERSION}, broker and controller in one process; bodies by kio 0.6.5, '
        'those of versions newer than it by tests/live/bodies.py; tcpdump from before the broker starts until it has stopped"',
        f'brokers = ["Apache Kafka {VERSION} (KRaft), broker 1 on port {live.port}", '
        f'"Apache Kafka {VERSION} (KRaft), controller 1 on port {live.controller_port}"]',
        'clients = ["tests/live/client.py"]',
        'link_type = "EN10MB"',
        f"packets = {packets}",
        f'sha256 = "{hashlib.sha256(pcap).hexdigest()}"',
        f"captured_at = {datetime.date.today()}",
        "expect = [",
        f'  "{len(sent.answered)} (API, version) pairs got a response",',
        *(f'  "no response (connection closed) to: {index.api_name(k)} v{v}",' for k, v in sorted(sent.advertised - sent.answered)),
        *(f'  "{index.api_name(k)} v{v} was not encoded by kio",' for k, v in sorted(sent.by_hand)),
        "]",
        "[shows]",
        *(f'"{index.api_name(k)} v{v} {side}" = {n}' for (k, v, side), n in sorted(shows.items())),
        f'"requests" = {len(asked)}',
        f'"responses" = {sum(r.response is not None for r in asked)}',
    ]
    (CAPTURES / f"{NAME}.toml").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()

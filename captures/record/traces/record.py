"""Records captures/traces/franz_go: clients of franz-go whose records carry trace contexts, and what they saw of them.

From the root, as root: python -m captures.record.traces.record. Needs what tests/live needs, and Go with the module proxy.
One broker on loopback; `client.go` says what each client does. A line of the truth is a record that a client sent or was given.
"""

import subprocess
import tempfile
import time
from pathlib import Path

import zstandard

from tests.live import broker

HERE = Path(__file__).resolve().parent
CAPTURES = HERE.parents[1] / "traces"
PRODUCERS = ("orders", "batches", "b3", "b3multi", "plain")
TOPICS = (*PRODUCERS, "shipments")


def create_topics(port):
    from kafka.admin import KafkaAdminClient, NewTopic

    admin = KafkaAdminClient(bootstrap_servers=f"127.0.0.1:{port}", client_id="admin")
    admin.create_topics([NewTopic(name, num_partitions=2 if name == "batches" else 1, replication_factor=1) for name in TOPICS])
    admin.close()


def main():
    CAPTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        program, told = Path(folder) / "traces", Path(folder) / "told.jsonl"
        subprocess.run(["go", "build", "-mod=mod", "-o", str(program), "."], cwd=HERE, check=True)
        with broker.running(Path(folder)) as live:
            create_topics(live.port)

            def start(role):
                return subprocess.Popen(["timeout", "90", str(program), f"127.0.0.1:{live.port}", role, str(told)])

            at_work = [start(role) for role in ("relay", "reader")]
            time.sleep(3)  # groups are joined, and fetches wait
            at_work += [start(role) for role in PRODUCERS]
            for one in at_work:
                assert one.wait(120) == 0, one.args
        live.finished()
        for source, target in ((live.capture, "franz_go.pcap.zst"), (told, "franz_go.records.jsonl.zst")):
            (CAPTURES / target).write_bytes(zstandard.ZstdCompressor(19).compress(source.read_bytes()))


if __name__ == "__main__":
    main()

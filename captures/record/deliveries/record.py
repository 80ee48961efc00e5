"""Records captures/deliveries/*: producers put the time of send() into the record, consumers log the time of poll().

From the root, as root: python -m captures.record.deliveries.record NAME... (RECORDINGS has the names). Needs what tests/live
needs, zstandard, kafka-python 3 and confluent-kafka, a C compiler, and Go with the module proxy for franz-go. Brokers and clients run on one
host, on loopback: one clock. A line of NAME.polls.jsonl.zst is a record that a poll returned; of NAME.events.jsonl.zst what this
recorder did, what became of a step of a transaction, or what a broker said of one, in its log or when it was asked.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import zstandard

from captures.record.java import build_java_client
from tests.live import broker

HERE = Path(__file__).resolve().parent
CAPTURES = HERE.parents[1] / "deliveries"
LIBRARIES = ("java", "franz_go", "librdkafka", "kafka_python")
JOINED_S = 7
"""From the start of the readers until writers begin: groups are joined, and fetches wait."""
WRITES_MS = 8000
SUSPENDED_S = 0.3


class Brokers:
    """Nodes of one cluster: node 1 is the controller, too, and has all internal topics."""

    def __init__(self, folder, count, **more):
        self.folder, self.count, self.processes = folder, count, {}
        *self.ports, self.control = broker._free_ports(count + 1)
        self.servers = ",".join(f"127.0.0.1:{port}" for port in self.ports)
        self.more = more

    def start(self, node):
        folder = self.folder / f"node{node}"
        folder.mkdir()
        live = broker.Live(self.ports[node - 1], self.control, folder, folder)
        settings = broker._settings(live, folder / "log") | {
            "node.id": node, "controller.quorum.voters": f"1@127.0.0.1:{self.control}", "broker.rack": f"r{node}",
            "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": 500,
            "listeners": f"PLAINTEXT://127.0.0.1:{self.ports[node - 1]},CONTROLLER://127.0.0.1:{self.control}",
        }
        if node > 1:
            settings |= {"process.roles": "broker", "listeners": f"PLAINTEXT://127.0.0.1:{self.ports[node - 1]}"}
        (folder / "server.properties").write_text("".join(f"{name}={text}\n" for name, text in (settings | self.more).items()))
        java = broker._java(f"{broker.jars()}/*", folder)
        format_ = [*java, "kafka.tools.StorageTool", "format", "-t", broker.CLUSTER, "-c", str(folder / "server.properties")]
        subprocess.run(format_, check=True, capture_output=True, timeout=60)
        self.processes[node] = broker._start([*java, "kafka.Kafka", str(folder / "server.properties")], folder / "out.txt")
        broker._wait(folder / "server.log", "Kafka Server started", self.processes[node])

    def signal(self, node, number):
        # the child of `timeout`: a group that is suspended as a whole would suspend its watch
        child = Path(f"/proc/{self.processes[node].pid}/task/{self.processes[node].pid}/children").read_text().split()[0]
        os.kill(int(child), number)

    def stop(self):
        for node in sorted(self.processes, reverse=True):
            broker._stop(self.processes[node], signal.SIGTERM)

    def words(self):
        """What brokers logged of transactions."""
        for node in self.processes:
            for line in (self.folder / f"node{node}" / "server.log").read_text().splitlines():
                if re.search("transactionalId|TransactionalId", line) and "TransactionCoordinator" in line:
                    yield {"step": "log", "broker": f"127.0.0.1:{self.ports[node - 1]}", "text": line}


class Recording:
    def __init__(self, folder, brokers):
        self.folder, self.brokers, self.told = folder, brokers, folder / "told.jsonl"
        self.running, self.events = [], []
        shutil.copytree(HERE / "go", folder / "go")
        subprocess.run(["go", "build", "-mod=mod", "-o", str(folder / "deliveries"), "."], cwd=folder / "go", check=True)
        java = build_java_client(HERE / "java/Worker.java", folder)
        python = [sys.executable, str(HERE / "clients.py")]
        self.commands = {
            "java": java, "franz_go": [str(folder / "deliveries")],
            "librdkafka": [*python, "librdkafka"], "kafka_python": [*python, "kafka-python"],
        }

    def start(self, library, *specs, **more):
        words = " + ".join(specs).split()
        command = ["timeout", "100", *self.commands[library], self.brokers.servers, str(self.told), *words]
        self.running.append(subprocess.Popen(command, text=True, **more))
        return self.running[-1]

    def spread(self, libraries, specs):
        """Each client by the library of its topic, those of one library in one process."""
        by_library = {}
        for spec in specs:
            library = libraries if isinstance(libraries, str) else libraries[spec.split()[1]]
            by_library.setdefault(library, []).append(spec)
        for library, some in by_library.items():
            self.start(library, *some)

    def administer(self):
        self.admin = self.start("java", "admin", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.admin.stdout.readline() == "ready\n"

    def order(self, words):
        self.admin.stdin.write(words + "\n")
        self.admin.stdin.flush()
        said = self.admin.stdout.readline().strip()
        assert said, words
        return said

    def note(self, step, **more):
        self.events.append({"step": step, "at": time.time_ns(), **more})

    def lines(self):
        """Whole lines that clients wrote."""
        text = self.told.read_text() if self.told.exists() else ""
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    def steps(self):
        return [one for one in self.lines() if isinstance(one, dict)]

    def finish(self):
        """Waits for the clients; the administrator ends with its input."""
        self.admin.stdin.close()
        for one in self.running:
            assert one.wait(100) in (0, 137, -signal.SIGKILL), one.args


def waiting(made, libraries):
    """Readers that wait for records: acks 0, 1 and all, linger of 5 and 50 ms, compression, a rewind."""
    reads = (JOINED_S + 11) * 1000
    made.spread(libraries, [
        f"consume one group=g-one for={reads}", f"consume zero group=g-zero for={reads}",
        f"consume linger group=g-linger rewinds=1 for={reads}",
        *(f"produce {words} every=20 after={JOINED_S * 1000} for={WRITES_MS}" for words in
          ("one acks=1 linger=5 codec=lz4", "zero acks=0", "linger acks=all linger=50 codec=gzip")),
    ])


def held_up(made, libraries):
    """A reader that works for 1.5 s after each poll, and readers of committed records behind transactions of 2 s."""
    reads = (JOINED_S + 11) * 1000
    one = "begin send:1 send:1 send:1 send:1 send:1 sleep:2000 commit"
    made.spread(libraries, [
        f"consume slow group=g-slow works=1500 for={reads}", f"consume held group=g-held committed=1 for={reads}",
        f"produce slow acks=1 every=20 after={JOINED_S * 1000} for={WRITES_MS}",
        f"transact held client=p-held id=tx-held timeout=60000 after={JOINED_S * 1000} {' '.join([one] * 4)}",
    ])


def passed_over(made, library):
    """A reader that works for 3 s after each poll, and goes to the end of the log once; another reads all."""
    reads = (JOINED_S + 11) * 1000
    made.spread(library, [
        f"consume all group=g-all for={reads}", f"consume all group=g-skips skips=1 works=3000 for={reads}",
        f"produce all acks=all every=20 after={JOINED_S * 1000} for={WRITES_MS}",
    ])


def clocks(made, libraries):
    """Producers whose clocks are ahead or behind (clock.c), one with the right time, one whose application stamps
    its records."""
    reads = (JOINED_S + 11) * 1000
    after = f"every=20 after={JOINED_S * 1000} for={WRITES_MS}"
    wrong = made.folder / "clock.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(wrong), str(HERE / "clock.c")], check=True)
    made.start("librdkafka", *(f"consume {topic} group=g-{topic} for={reads}" for topic in ("ahead", "little", "behind", "right", "dated")))
    for topic, library, ahead_ms, more in (
        ("ahead", "java", 2500, "acks=all"), ("little", "librdkafka", 40, "acks=1 linger=5"), ("behind", "kafka_python", -1500, "acks=all"),
        ("right", "librdkafka", 0, "acks=all linger=5"), ("dated", "kafka_python", 0, "acks=all dated=1"),
    ):
        made.note("clock", client=f"p-{topic}", ahead_ms=ahead_ms)
        clock = {"LD_PRELOAD": str(wrong), "AHEAD_MS": str(ahead_ms)} if ahead_ms else {}
        made.start(library, f"produce {topic} {more} {after}", env={**os.environ, **clock})


def cluster(made, libraries):
    """Three brokers: a follower that is suspended again and again, a reader of the nearest replica, a leader that moves."""
    reads = (JOINED_S + 15) * 1000
    every = f"acks=all every=100 after={JOINED_S * 1000} for=12000"
    made.spread(libraries, [
        f"consume followed group=g-followed for={reads}", f"consume followed group=g-late latest=1 after={(JOINED_S + 6) * 1000} for=9000",
        f"consume nearest group=g-nearest rack=r2 for={reads}", f"consume moved group=g-moved for={reads}",
        *(f"produce {topic} {every}" for topic in ("followed", "nearest", "moved")),
    ])
    time.sleep(JOINED_S + 2)
    for second in range(9):
        if second in (3, 6):
            made.note("move", topic="moved", leader=2 if second == 3 else 1)
            made.order("move moved 2 1" if second == 3 else "move moved 1 2")
        made.note("suspended", node=3)
        made.brokers.signal(3, signal.SIGSTOP)
        time.sleep(SUSPENDED_S)
        made.note("resumed", node=3)
        made.brokers.signal(3, signal.SIGCONT)
        time.sleep(1 - SUSPENDED_S)


def transactions(made, libraries):
    """Committed and aborted ones, one that times out, one that another producer fences, one whose producer is killed."""
    reads = (JOINED_S + 11) * 1000
    after = f"after={JOINED_S * 1000}"
    made.spread(libraries, [
        *(f"consume {topic} group=g-{topic} committed=1 for={reads}" for topic in ("done", "expired", "fenced", "killed")),
        f"transact done client=p-done id=tx-done timeout=60000 {after} {'begin send:3 sleep:300 commit begin send:2 sleep:200 abort ' * 3}",
        f"transact expired client=p-expired id=tx-expired timeout=2000 {after} begin send:3 sleep:6000 commit",
        f"transact fenced client=p-first id=tx-fenced timeout=60000 {after} begin send:2 sleep:4000 send:2 commit",
        f"transact fenced client=p-second id=tx-fenced timeout=60000 after={JOINED_S * 1000 + 2000} begin send:4 sleep:200 commit",
        f"produce killed acks=all every=200 {after} for={WRITES_MS}",
    ])
    kill(made, libraries, "killed client=p-open id=tx-killed timeout=600000", "killed")


def hanging(made, libraries):
    """A transaction that its coordinator does not know (KIP-664): its producer names no partition to it and is killed.
    Readers stand before it for longer than its timeout and half a minute."""
    reads = (JOINED_S + 40) * 1000
    made.spread(libraries, [
        f"consume stuck group=g-stuck committed=1 for={reads}", f"consume stuck group=g-any for={reads}",
        f"produce stuck acks=all every=500 after={JOINED_S * 1000} for=38000",
    ])
    kill(made, libraries, "stuck client=p-open id=tx-stuck timeout=2000 unknown=1", "stuck")


def kill(made, library, spec, topic):
    """Kills a producer in its transaction, and asks brokers of it 5 s later."""
    process = made.start(library, f"transact {spec} after={(JOINED_S - 1) * 1000} sleep:2000 begin send:3 sleep:60000")
    while not any(one["client"] == "p-open" and one["step"] == "send" for one in made.steps()):
        assert process.poll() is None
        time.sleep(0.05)
    time.sleep(0.5)
    made.note("killed", topic=topic, client="p-open")
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(children[0]), signal.SIGKILL)
    time.sleep(5)
    made.events.append(json.loads(made.order(f"describe {topic} tx-{topic}")))


MIXED = {"one": "librdkafka", "zero": "librdkafka", "linger": "kafka_python", "slow": "kafka_python", "held": "librdkafka"}
STORIES = {"waiting": waiting, "held_up": held_up, "cluster": cluster, "transactions": transactions}
TOPICS = {
    waiting: ("one", "zero", "linger"), held_up: ("slow", "held"), cluster: ("followed 2 3", "nearest 2", "moved 2"),
    transactions: ("done", "expired", "fenced", "killed"), hanging: ("stuck",), passed_over: ("all",),
    clocks: ("ahead", "little", "behind", "right", "dated"),
}
"""Replicas besides node 1, which leads."""
RECORDINGS = {f"{name}_{library}": (act, library) for name, act in STORIES.items() for library in LIBRARIES}
RECORDINGS |= {"waiting": (waiting, MIXED), "held_up": (held_up, MIXED), "hanging": (hanging, "kafka_python"), "passed_over": (passed_over, "kafka_python")}
RECORDINGS |= {"clocks": (clocks, None)}


@contextlib.contextmanager
def dumped(path, brokers):
    ports = " or ".join(f"port {port}" for port in (*brokers.ports, brokers.control))
    said = path.with_suffix(".err")
    dump = broker._start(["tcpdump", "-i", "lo", "-s", "0", "-B", "65536", "-U", "-Z", "root", "-w", str(path), f"tcp and ({ports})"], said)
    broker._wait(said, "listening on", dump)
    yield
    time.sleep(0.5)
    broker._stop(dump, signal.SIGINT)
    assert "\n0 packets dropped by kernel" in said.read_text(), said.read_text()


def pack(name, kind, data):
    (CAPTURES / f"{name}.{kind}.zst").write_bytes(zstandard.ZstdCompressor(19).compress(data))


def record(name):
    act, libraries = RECORDINGS[name]
    with tempfile.TemporaryDirectory() as made_in:
        folder = Path(made_in)
        more = {"transaction.partition.verification.enable": "false"} if act is hanging else {}
        brokers = Brokers(folder, 3 if act is cluster else 1, **more)
        made = Recording(folder, brokers)
        try:
            with dumped(folder / "all.pcap", brokers):
                brokers.start(1)
                made.administer()
                # __consumer_offsets comes to be while node 1 is alone
                made.order("create first 1")
                made.start("java", "consume first group=g-first for=3000").wait(60)
                for node in range(2, brokers.count + 1):
                    brokers.start(node)
                for topic in TOPICS[act]:
                    first, *rest = topic.split()
                    made.order(f"create {first} 1 {' '.join(rest)}".strip())
                act(made, libraries)
                made.finish()
        finally:
            for one in made.running:
                one.kill()
            brokers.stop()
        lines = made.lines()
        events = made.events + made.steps()
        if act in (transactions, hanging):
            events += brokers.words()
        events.sort(key=lambda one: one.get("at") or one.get("began") or 0)
        pack(name, "pcap", (folder / "all.pcap").read_bytes())
        pack(name, "polls.jsonl", "".join(json.dumps(one) + "\n" for one in lines if isinstance(one, list)).encode())
        if events:
            pack(name, "events.jsonl", "".join(json.dumps(one) + "\n" for one in events).encode())


if __name__ == "__main__":
    os.nice(-15)
    CAPTURES.mkdir(exist_ok=True)
    for each in sys.argv[1:]:
        record(each)

"""record.py OUT [CAUSE | CAUSE/LIBRARY]...: recordings of what is absent, a matrix of cause x client library.

Two Apache Kafka nodes (the release of tests/live, KRaft) in a network namespace of this command's own; clients of pip
(`clients.py`) go through a firewall of ours (`firewall.py`) whose addresses the brokers advertise. A cell is recorded at
the points that its cause names: `client` is the way from the clients to the firewall, `broker` that from the firewall
to the brokers, without either word the brokers themselves are asked. A new cause is a function with a row in CAUSES, a
new library a name in LIBRARIES and a function in clients.py.

    PYTHONPATH=$PWD python captures/record/lab/record.py captures/lab            the whole matrix, half an hour
    PYTHONPATH=$PWD python captures/record/lab/record.py captures/lab reset healthy/aiokafka

Needs root, Java, Maven, tcpdump, zstd, kafka-python 3, aiokafka and confluent-kafka. What was done when stands in
OUT/truth.txt.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

HERE = Path(__file__).resolve().parent
LIBRARIES = ("kafka-python", "aiokafka", "librdkafka")
NODES = (1, 2)
DIRECT = "127.0.0.1:9092,127.0.0.1:9093"
"""Where the two nodes are without a firewall."""
FRONT = {1: "127.0.0.2:9092", 2: "127.0.0.3:9092"}
"""What the firewall stands for."""
BEHIND = {1: "127.0.0.1:9192", 2: "127.0.0.1:9193"}
POINTS = {
    "": "tcp and (port 9090 or port 9092 or port 9093) and not host 127.0.0.8",
    "client": "tcp port 9092 and (host 127.0.0.2 or host 127.0.0.3)",
    "broker": "tcp and (port 9192 or port 9193)",
}
END_S = 3.0
"""Clients end so long before the recording does; one that cannot goes on to its end."""


def say(out: Path, text: str) -> None:
    now = datetime.now(UTC).strftime("%H:%M:%S.%f")[:12]
    with (out / "truth.txt").open("a") as file:
        file.write(f"{now} {text}\n")
    print(now, text, flush=True)


# ---- brokers


class Nodes:
    """Node 1 is a broker and the controller, node 2 a broker."""

    def __init__(self, folder: Path) -> None:
        from tests.live.broker import CLUSTER, Live, _java, _settings, jars

        self.running: dict[int, subprocess.Popen[bytes]] = {}
        self.java, self.folder = {}, folder
        for node in NODES:
            data = folder / f"node{node}"
            data.mkdir()
            self.java[node] = _java(f"{jars()}/*", data)
            own, behind = f"127.0.0.1:{9091 + node}", BEHIND[node]
            roles = {"process.roles": "broker,controller"} if node == 1 else {"process.roles": "broker"}
            control = ",CONTROLLER://127.0.0.1:9099" if node == 1 else ""
            settings = _settings(Live(9092, 9099, data, data), data / "log") | roles | {
                "node.id": node, "controller.quorum.voters": "1@127.0.0.1:9099",
                "listeners": f"PLAINTEXT://{own},FRONT://{behind},INNER://127.0.0.8:{9291 + node}{control}",
                "advertised.listeners": f"PLAINTEXT://{own},FRONT://{FRONT[node]},INNER://127.0.0.8:{9291 + node}",
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,FRONT:PLAINTEXT,INNER:PLAINTEXT,CONTROLLER:PLAINTEXT",
                "inter.broker.listener.name": "INNER", "offsets.topic.replication.factor": 2,
                "log.segment.bytes": 1 << 26, "super.users": "User:ANONYMOUS",
            }  # fmt: skip
            if node == 2:
                settings.pop("unstable.api.versions.enable")
            (data / "server.properties").write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
            form = [*self.java[node], "kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", str(data / "server.properties")]
            subprocess.run(form, check=True, capture_output=True)

    def start(self, node: int) -> None:
        from tests.live.broker import _wait

        data = self.folder / f"node{node}"
        (data / "server.log").unlink(missing_ok=True)
        with (data / "out").open("ab") as said:
            self.running[node] = subprocess.Popen(
                [*self.java[node], "kafka.Kafka", str(data / "server.properties")], stdout=said, stderr=said
            )
        _wait(data / "server.log", "Kafka Server started", self.running[node])

    def stop(self, node: int, number: signal.Signals = signal.SIGTERM) -> None:
        self.running[node].send_signal(number)
        self.running[node].wait(40)


def quota(client: str, name: str, rate: float) -> None:
    """AlterClientQuotas v0, by hand: no client of pip has it."""

    def text(value: str) -> bytes:
        return struct.pack(">h", len(value)) + value.encode()

    body = struct.pack(">hhi", 49, 0, 1) + text("lab") + struct.pack(">ii", 1, 1) + text("client-id") + text(client)
    body += struct.pack(">i", 1) + text(name) + struct.pack(">d??", rate, False, False)
    host, port = INNER.split(":")
    with socket.create_connection((host, int(port))) as one:
        one.sendall(struct.pack(">i", len(body)) + body)
        answer = one.recv(1000)
    assert struct.unpack(">h", answer[16:18]) == (0,), answer


def topics() -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": "127.0.0.8:9292"})
    wanted = [NewTopic("orders", 4, 2), NewTopic("bulk", 2, 1)]
    for made in admin.create_topics(wanted).values():
        made.result()
    time.sleep(2)


# ---- a cell


@dataclass
class Cell:
    out: Path
    cause: str
    library: str
    nodes: Nodes
    seconds: float
    front: bool
    clients: dict[str, subprocess.Popen[str]] = field(default_factory=dict)
    ended: list[subprocess.Popen[str]] = field(default_factory=list)
    firewall: subprocess.Popen[str] | None = None
    began: float = 0.0

    @property
    def servers(self) -> str:
        return ",".join(FRONT.values()) if self.front else DIRECT

    def say(self, text: str) -> None:
        say(self.out, f"{self.cause}/{self.library} {text}")

    def start(self, role: str, name: str, *more: object, servers: str | None = None, library: str | None = None) -> None:
        left = self.began + self.seconds - time.time()
        command = [sys.executable, str(HERE / "clients.py"), library or self.library, role, name,
                   servers or self.servers, str(left), *map(str, more)]  # fmt: skip
        self.clients[name] = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            env=os.environ | {"LAB_GROUP": f"{self.cause}-{self.library}-{name}"},
        )  # fmt: skip

    def usual(self, **more: str) -> None:
        """Two producers and two consumers, a process each."""
        for role, name in (("produce", "p1"), ("produce", "p2"), ("consume", "c1"), ("consume", "c2")):
            self.start(role, name, **more)

    def until(self, second: float) -> None:
        time.sleep(max(0.0, self.began + second - time.time()))

    def signal(self, name: str, number: signal.Signals) -> None:
        self.clients[name].send_signal(number)
        self.say(f"{number.name} {name}")

    def order(self, command: str) -> None:
        assert self.firewall is not None
        assert self.firewall.stdin is not None
        assert self.firewall.stdout is not None
        self.firewall.stdin.write(command + "\n")
        self.firewall.stdin.flush()
        word, at = self.firewall.stdout.readline().split()
        self.say(f"firewall: {word} at {datetime.fromtimestamp(float(at), UTC).strftime('%H:%M:%S.%f')[:12]}")


# ---- causes


def healthy(cell: Cell) -> None:
    """Nothing."""
    cell.usual()


def reset(cell: Cell) -> None:
    """The firewall resets every connection at once, and goes on accepting."""
    cell.usual()
    cell.until(10)
    cell.order("reset")


def reset_all_libraries(cell: Cell) -> None:
    """The same with a producer and a consumer of each library; twice, 6 s apart."""
    for number, library in enumerate(LIBRARIES):
        cell.start("produce", f"p-{number}", library=library)
        cell.start("consume", f"c-{number}", library=library)
    cell.until(9)
    cell.order("reset")
    cell.until(15)
    cell.order("reset")


def killed(cell: Cell) -> None:
    """Producer p1 and consumer c1 are killed, and started again 2 s later."""
    cell.usual()
    cell.until(9)
    for name in ("p1", "c1"):
        cell.signal(name, signal.SIGKILL)
    cell.until(11)
    cell.start("produce", "p1")
    cell.start("consume", "c1")


def closed(cell: Cell) -> None:
    """Every client closes in the middle, and is started again."""
    whole, cell.seconds = cell.seconds, 9
    cell.usual()
    for one in cell.clients.values():
        one.wait(20)
    cell.ended += cell.clients.values()
    cell.seconds = whole
    cell.say("all have closed")
    cell.usual()


def broker_restarted(cell: Cell) -> None:
    """Node 2 is stopped and started again."""
    cell.usual()
    cell.until(8)
    cell.say("SIGTERM node 2")
    cell.nodes.stop(2)
    cell.say("node 2 has ended")
    cell.nodes.start(2)
    cell.say("node 2 serves")


def broker_killed(cell: Cell) -> None:
    """Node 2 is killed and started again."""
    cell.usual()
    cell.until(8)
    cell.nodes.stop(2, signal.SIGKILL)
    cell.say("SIGKILL node 2")
    cell.nodes.start(2)
    cell.say("node 2 serves")


def unread(cell: Cell) -> None:
    """From the 10th second on the firewall reads nothing of the brokers: answers stand still, to the end."""
    cell.start("produce", "p1", "bulk", 5, 60000, servers=INNER, library="librdkafka")
    for name in ("c1", "c2"):
        cell.start("consume", name, "bulk")
    cell.until(10)
    cell.order("unread")


def unread_for_a_while(cell: Cell) -> None:
    """The same, for 6 s."""
    unread(cell)
    cell.until(16)
    cell.order("forward")


def stuck(cell: Cell) -> None:
    """A consumer whose process lives and runs nothing of the library from its 6th second on; another one reads."""
    cell.start("produce", "p1", "bulk", 5, 60000, servers=INNER, library="librdkafka")
    cell.start("stuck", "c1", "bulk")
    cell.start("consume", "c2", "bulk")


def throttled(cell: Cell) -> None:
    """Producer p1 has a quota of 50 kB/s and has 600 kB/s to write; consumer c1 one of 50 kB/s; c2 has none."""
    cell.start("produce", "p1", "bulk", 10, 60000)
    for name in ("c1", "c2"):
        cell.start("consume", name, "bulk")


def first_refused(cell: Cell) -> None:
    """Nothing listens at the first address of the clients' list, the second serves."""
    cell.usual(servers=f"127.0.0.1:9090,{DIRECT}")


def wrong_port(cell: Cell) -> None:
    """Nothing listens at the only address of p1's and c1's lists; those of p2 and c2 are right."""
    for role, name in (("produce", "p2"), ("consume", "c2")):
        cell.start(role, name)
    for role, name in (("produce", "p1"), ("consume", "c1")):
        cell.start(role, name, servers="127.0.0.1:9090")


def broker_refused(cell: Cell) -> None:
    """Nobody is let through to node 2 (the firewall rejects its address), which serves all the same."""
    cell.usual(servers=FRONT[1])


def consumer_stopped(cell: Cell) -> None:
    """Consumer c1 is suspended for 4 s."""
    _suspend(cell, "c1")


def producer_stopped(cell: Cell) -> None:
    """Producer p1 is suspended for 4 s."""
    _suspend(cell, "p1")


def _suspend(cell: Cell, client: str) -> None:
    cell.usual()
    cell.until(10)
    cell.signal(client, signal.SIGSTOP)
    cell.until(14)
    cell.signal(client, signal.SIGCONT)


INNER = "127.0.0.8:9292"


@dataclass(frozen=True)
class Cause:
    act: Callable[[Cell], None]
    points: tuple[str, ...] = ("",)
    libraries: tuple[str, ...] = LIBRARIES
    seconds: float = 20.0
    closed_nodes: tuple[int, ...] = ()
    """Nodes whose address the firewall does not open."""


THROUGH = ("client", "broker")
CAUSES = {
    "healthy": Cause(healthy), "reset": Cause(reset, THROUGH),
    "reset_all": Cause(reset_all_libraries, THROUGH, ("every",)), "killed": Cause(killed),
    "closed": Cause(closed), "broker_restarted": Cause(broker_restarted, seconds=30.0),
    "broker_killed": Cause(broker_killed, seconds=30.0), "unread": Cause(unread, ("broker",)),
    "unread_6s": Cause(unread_for_a_while, THROUGH, seconds=24.0), "stuck": Cause(stuck, libraries=("aiokafka",)),
    "throttled": Cause(throttled, seconds=24.0), "first_refused": Cause(first_refused),
    "wrong_port": Cause(wrong_port), "broker_refused": Cause(broker_refused, ("client",), closed_nodes=(2,)),
    "consumer_stopped": Cause(consumer_stopped), "producer_stopped": Cause(producer_stopped),
}  # fmt: skip


@contextlib.contextmanager
def dumped(path: Path, what: str) -> Iterator[None]:
    command = ["tcpdump", "-i", "lo", "-s", "0", "-B", "65536", "-U", "-Z", "root", "-w", str(path), what]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as dump:
        assert dump.stderr is not None
        while "listening on" not in dump.stderr.readline():
            pass
        time.sleep(0.3)
        try:
            yield
        finally:
            time.sleep(0.7)
            dump.send_signal(signal.SIGINT)
            said = dump.stderr.read()
            assert "0 packets dropped by kernel" in said, said
    subprocess.run(["zstd", "-q", "-19", "--rm", "-f", str(path)], check=True)


def record(out: Path, name: str, library: str, nodes: Nodes) -> None:
    cause = CAUSES[name]
    front = cause.points != ("",)
    cell = Cell(out, name, library, nodes, cause.seconds, front)
    with contextlib.ExitStack() as stack:
        if front:
            pairs = [f"{FRONT[node]}={BEHIND[node]}" for node in NODES if node not in cause.closed_nodes]
            cell.firewall = stack.enter_context(subprocess.Popen(
                [sys.executable, str(HERE / "firewall.py"), *pairs], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            ))  # fmt: skip
            stack.callback(cell.firewall.terminate)
            time.sleep(0.7)
        for point in cause.points:
            file = "_".join(part for part in (name, library.replace("-", "_"), point) if part)
            stack.enter_context(dumped(out / f"{file}.pcap", POINTS[point]))
        cell.say((cause.act.__doc__ or "").replace("\n", " "))
        cell.began = time.time()
        cause.act(cell)
        cell.until(cause.seconds + END_S)
    # the recording is over: what still runs has no part in it
    for name, one in cell.clients.items():
        if one.poll() is None:
            cell.say(f"still running: {name}")
            one.kill()
    for one in (*cell.ended, *cell.clients.values()):
        assert one.stdout is not None
        cell.say("client " + one.stdout.read().strip()[:300])


def main() -> None:
    if os.environ.get("LAB_INSIDE") is None:
        from tests.live.broker import jars

        jars()  # Maven needs the network that the namespace does not have
        os.environ["LAB_INSIDE"] = "1"
        os.execvp("unshare", ["unshare", "-n", sys.executable, *sys.argv])
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    out = Path(sys.argv[1])
    out.mkdir(exist_ok=True, parents=True)
    cells = []
    for word in sys.argv[2:] or list(CAUSES):
        name, _, library = word.partition("/")
        cells += [(name, one) for one in ((library,) if library else CAUSES[name].libraries)]
    with tempfile.TemporaryDirectory() as folder:
        nodes = Nodes(Path(folder))
        try:
            for node in NODES:
                nodes.start(node)
            topics()
            for name, library in cells:
                if name == "throttled":
                    quota("p1", "producer_byte_rate", 5e4)
                    quota("c1", "consumer_byte_rate", 5e4)
                record(out, name, library, nodes)
                if name == "throttled":
                    quota("p1", "producer_byte_rate", 1e9)
                    quota("c1", "consumer_byte_rate", 1e9)
        finally:
            for one in nodes.running.values():
                one.terminate()
            for one in nodes.running.values():
                one.wait(40)


if __name__ == "__main__":
    main()

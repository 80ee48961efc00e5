"""record.py OUT [CAUSE | CAUSE/LIBRARY]...: recordings with a known cause, a matrix of cause x client library x broker.

Two Apache Kafka nodes (KRaft; LAB_KAFKA names the release, else that of tests/live) in a network namespace of this
command's own. Clients (`clients.py`, `go/`, `java/`, `kafkajs.js`) reach them directly, through a firewall of ours (`firewall.py`)
whose addresses the brokers advertise, or from a namespace of their own through a cable of ours (`wire.py`). A cell is
recorded at the points that its cause names: `client` and `broker` are the two sides of the firewall or of the cable;
without either word the brokers themselves are asked. A new cause is a function with a row in CAUSES, a new library a
name in LIBRARIES and a line in Cell.command.

    PYTHONPATH=$PWD python captures/record/lab/record.py captures/lab            the whole matrix, two hours
    PYTHONPATH=$PWD python captures/record/lab/record.py captures/lab reset healthy/aiokafka

LAB_KAFKA=2.8.2 and older ones have a ZooKeeper beside them. LAB_KAFKA=kfake takes franz-go's broker of the program that
LAB_GO names (one process, no replicas): what needs a listener or a node of its own cannot be recorded with it.

Needs root, Java, Maven, tcpdump, zstd, cc, kafka-python 3, aiokafka and confluent-kafka; LAB_GO names what `go build`
makes of go/, NODE_PATH a folder with KafkaJS. What was done when stands in OUT/truth.txt.
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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType

from captures.record.java import build_java_client
from tests.live.broker import CACHE, CLUSTER, Live, _java, _settings, _wait, jars

HERE = Path(__file__).resolve().parent
LIBRARIES = ("kafka-python", "aiokafka", "librdkafka", "franz-go", "sarama", "kafkajs", "java")
NODES = (1, 2)
DIRECT = "127.0.0.1:9092,127.0.0.1:9093"
"""Where the two nodes are without a firewall."""
FRONT = {1: "127.0.0.2:9092", 2: "127.0.0.3:9092"}
"""What the firewall stands for."""
BEHIND = {1: "127.0.0.1:9192", 2: "127.0.0.1:9193"}
WIRED = {1: "10.66.1.1:9392", 2: "10.66.1.3:9392"}
"""The brokers' end of the cable."""
CLIENT_END = "10.66.1.2"
LOGIN = {1: "127.0.0.1:9492", 2: "127.0.0.1:9493"}
"""Asks for a login."""
USER, PASSWORD = "lab", "lab-right"
NAMED = {1: 9592, 2: 9593}
"""Ports at 127.0.0.1 whose brokers advertise a name that no resolver knows."""
NO_NAME = "kafka-{node}.lab.invalid"
POINTS = {
    "": "tcp and (port 9090 or port 9092 or port 9093 or portrange 9492-9493 or portrange 9592-9593) and not host 127.0.0.8",
    "client": "tcp port 9092 and (host 127.0.0.2 or host 127.0.0.3)",
    "broker": "tcp and (port 9192 or port 9193)",
}
LEAD_S = {"java": 10.0}
"""A library's clients start so long before a cell's first second: on a busy machine four virtual machines need it."""
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

    java_client: list[str]
    """The command of a client of Kafka's own library, without arguments."""

    def __init__(self, folder: Path) -> None:
        self.running: dict[int, subprocess.Popen[bytes]] = {}
        self.java, self.folder = {}, folder
        self.keeper: subprocess.Popen[bytes] | None = None
        self.slow_sync = folder / "slow_sync"
        """While this file exists, every flush of node 2 to its disk takes 0.4 s more."""
        self.preload = folder / "slow_sync.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-o", str(self.preload), str(HERE / "slow_sync.c")], check=True)
        for node in NODES:
            data = folder / f"node{node}"
            data.mkdir()
            self.java[node] = _java(f"{libraries()}/*", data)
            self.java[node].insert(1, f"-Dlog4j.configuration=file:{HERE / 'log4j.properties'}")
            own, behind = f"127.0.0.1:{9091 + node}", BEHIND[node]
            roles = {"process.roles": "broker,controller"} if node == 1 else {"process.roles": "broker"}
            control = ",CONTROLLER://127.0.0.1:9099" if node == 1 else ""
            named, login = NO_NAME.format(node=node), f"LOGIN://{LOGIN[node]}"
            settings = _settings(Live(9092, 9099, data, data), data / "log") | roles | {
                "node.id": node, "controller.quorum.voters": "1@127.0.0.1:9099",
                "listeners": f"PLAINTEXT://{own},FRONT://{behind},INNER://127.0.0.8:{9291 + node},WIRED://{WIRED[node]},"
                    f"{login},NAMED://127.0.0.1:{NAMED[node]}{control}",
                "advertised.listeners": f"PLAINTEXT://{own},FRONT://{FRONT[node]},INNER://127.0.0.8:{9291 + node},"
                    f"WIRED://{WIRED[node]},{login},NAMED://{named}:{NAMED[node]}",
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,FRONT:PLAINTEXT,INNER:PLAINTEXT,WIRED:PLAINTEXT,"
                    "LOGIN:SASL_PLAINTEXT,NAMED:PLAINTEXT,CONTROLLER:PLAINTEXT",
                "sasl.enabled.mechanisms": "PLAIN",
                "listener.name.login.plain.sasl.jaas.config":
                    f'org.apache.kafka.common.security.plain.PlainLoginModule required user_{USER}="{PASSWORD}";',
                "inter.broker.listener.name": "INNER", "offsets.topic.replication.factor": 2,
                "log.segment.bytes": 1 << 26, "auto.create.topics.enable": "false", "super.users": "User:ANONYMOUS",
            }  # fmt: skip
            if node == 2:
                settings.pop("unstable.api.versions.enable")
            if before_kraft():
                settings["listeners"] = str(settings["listeners"]).removesuffix(control)
                settings["authorizer.class.name"] = "kafka.security.authorizer.AclAuthorizer"
                settings |= {"broker.id": node, "zookeeper.connect": "127.0.0.1:2181"}
                for name in ("process.roles", "node.id", "controller.quorum.voters", "controller.listener.names"):
                    settings.pop(name)
            (data / "server.properties").write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
            if not before_kraft():
                form = [
                    *self.java[node],
                    "kafka.tools.StorageTool",
                    "format",
                    "-t",
                    CLUSTER,
                    "-c",
                    str(data / "server.properties"),
                ]
                subprocess.run(form, check=True, capture_output=True)
        if before_kraft():
            self.keep()

    def keep(self) -> None:
        """Start ZooKeeper, where brokers need one."""
        (self.folder / "zoo.cfg").write_text(
            f"dataDir={self.folder / 'zoo'}\nclientPort=2181\nadmin.enableServer=false\n"
        )
        self.keeper = subprocess.Popen(
            [*self.java[1], "org.apache.zookeeper.server.quorum.QuorumPeerMain", str(self.folder / "zoo.cfg")],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        for _ in range(300):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", 2181)):
                return
            time.sleep(0.1)
        raise AssertionError("ZooKeeper does not listen")

    def start(self, node: int) -> None:
        data = self.folder / f"node{node}"
        (data / "server.log").unlink(missing_ok=True)
        slow = {"LD_PRELOAD": str(self.preload), "LAB_SLOW_SYNC": str(self.slow_sync)} if node == 2 else {}
        with (data / "out").open("ab") as said:
            self.running[node] = subprocess.Popen(
                [*self.java[node], "kafka.Kafka", str(data / "server.properties")], stdout=said, stderr=said,
                env=os.environ | slow,
            )  # fmt: skip
        text = f"[KafkaServer id={node}] started" if before_kraft() else "Kafka Server started"
        _wait(data / "server.log", text, self.running[node])

    def join(self) -> None:
        """Lay the cable: two TAP devices, one in a namespace of the clients."""
        self.outside = subprocess.Popen(["unshare", "-n", "sleep", "100000"])
        time.sleep(0.5)
        there = ["nsenter", f"--net=/proc/{self.outside.pid}/ns/net"]
        for enter, device, addresses in ((list[str](), "lab0", WIRED.values()), (there, "lab1", [f"{CLIENT_END}:"])):
            subprocess.run([*enter, "ip", "tuntap", "add", device, "mode", "tap"], check=True)
            for one in addresses:
                subprocess.run([*enter, "ip", "address", "add", f"{one.split(':')[0]}/24", "dev", device], check=True)
            subprocess.run([*enter, "ip", "link", "set", device, "up"], check=True)
        subprocess.run([*there, "ip", "link", "set", "lo", "up"], check=True)

    def stop(self, node: int, number: signal.Signals = signal.SIGTERM) -> None:
        self.running[node].send_signal(number)
        self.running[node].wait(40)

    def end(self) -> None:
        for one in self.running.values():
            one.terminate()
        for one in self.running.values():
            one.wait(40)
        if self.keeper is not None:
            self.keeper.terminate()
            self.keeper.wait(10)


class Fake(Nodes):
    """franz-go's kfake: two brokers in one process."""

    def __init__(self) -> None:
        self.running, self.keeper = {}, None

    def start(self, node: int) -> None:
        if node == 1:
            command = [os.environ["LAB_GO"], "kfake", "9092", "9093", "orders:4", "bulk:2"]
            self.running[1] = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            assert self.running[1].stdout is not None
            assert self.running[1].stdout.readline() == b"serves\n"


def before_kraft() -> bool:
    """Whether brokers of LAB_KAFKA keep their metadata in ZooKeeper."""
    return os.environ.get("LAB_KAFKA", "4").split(".")[0] in ("1", "2")


def libraries() -> Path:
    """The folder with the jars of LAB_KAFKA, from Maven."""
    release = os.environ.get("LAB_KAFKA")
    if not release:
        return jars()
    folder = CACHE / f"lab-{release}"
    if not folder.exists():
        pom = CACHE / f"lab-{release}.xml"
        pom.write_text((HERE / "pom.xml").read_text().replace("RELEASE", release))
        part = Path(tempfile.mkdtemp(dir=CACHE))
        subprocess.run(["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", "-DincludeScope=runtime",
                        f"-DoutputDirectory={part}"], check=True)  # fmt: skip
        part.rename(folder)
    return folder


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


def reassign(topic: str, partition: int, *nodes: int) -> None:
    """AlterPartitionReassignments v0, by hand: no client of pip has it."""

    def compact(value: bytes) -> bytes:
        return bytes([len(value) + 1]) + value

    one = struct.pack(">i", partition) + struct.pack(f">B{len(nodes)}i", len(nodes) + 1, *nodes) + b"\0"
    body = struct.pack(">hhih", 45, 0, 1, 3) + b"lab\0" + struct.pack(">i", 10000)
    body += b"\x02" + compact(topic.encode()) + b"\x02" + one + b"\0" + b"\0"
    host, port = INNER.split(":")
    with socket.create_connection((host, int(port))) as way:
        way.sendall(struct.pack(">i", len(body)) + body)
        answer = way.recv(1000)
    assert struct.unpack(">h", answer[13:15]) == (0,), answer


def elect() -> None:
    """ElectLeaders v0 for all partitions: the first replica of each leads again."""
    body = struct.pack(">hhih", 43, 0, 1, 3) + b"lab" + struct.pack(">ii", -1, 10000)
    host, port = INNER.split(":")
    with socket.create_connection((host, int(port))) as way:
        way.sendall(struct.pack(">i", len(body)) + body)
        assert way.recv(1000)
    time.sleep(1)


def topics() -> None:
    from confluent_kafka.admin import (
        AclBinding, AclOperation, AclPermissionType, AdminClient, NewTopic, ResourcePatternType, ResourceType,
    )  # fmt: skip

    admin = AdminClient({"bootstrap.servers": "127.0.0.8:9292"})
    wanted = [
        NewTopic("orders", 4, 2), NewTopic("bulk", 2, 1), NewTopic("secret", 1, 2),
        NewTopic("small", 2, 2, config={"max.message.bytes": "10000"}),
        NewTopic("safe", 2, 2, config={"min.insync.replicas": "2"}),
        NewTopic("flushed", 2, 1, config={"flush.messages": "1"}),
    ]  # fmt: skip
    for made in admin.create_topics(wanted).values():
        made.result()
    other = AclBinding(ResourceType.TOPIC, "secret", ResourcePatternType.LITERAL, "User:other", "*",
                       AclOperation.ALL, AclPermissionType.ALLOW)  # fmt: skip
    for made in admin.create_acls([other]).values():
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
    outside: int = 0
    """A process in the clients' own namespace; 0 where they share the brokers'."""
    clients: dict[str, subprocess.Popen[str]] = field(default_factory=dict)
    ended: list[subprocess.Popen[str]] = field(default_factory=list)
    between: subprocess.Popen[str] | None = None
    """The firewall or the cable."""
    began: float = 0.0

    @property
    def servers(self) -> str:
        if self.outside:
            return ",".join(WIRED.values())
        return ",".join(FRONT.values()) if self.front else DIRECT

    def say(self, text: str) -> None:
        say(self.out, f"{self.cause}/{self.library} {text}")

    def start(self, role: str, name: str, *more: object, servers: str | None = None, library: str | None = None,
              group: str | None = None, inside: bool = False, environment: Mapping[str, str] = MappingProxyType({})) -> None:  # fmt: skip
        """`inside`: in the brokers' namespace, not behind the cable."""
        left = self.began + self.seconds - time.time()
        command = self.command(library or self.library, role, name, servers or self.servers, str(left), *map(str, more))
        enter = ["nsenter", f"--net=/proc/{self.outside}/ns/net"] if self.outside and not inside else []
        self.clients[name] = subprocess.Popen(
            [*enter, *command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            env=os.environ | {"LAB_GROUP": f"{self.cause}-{self.library}-{group or name}"} | environment,
        )  # fmt: skip

    def command(self, library: str, *words: str) -> list[str]:
        if library in ("franz-go", "sarama"):
            return [os.environ["LAB_GO"], library, *words]
        if library == "kafkajs":
            return ["node", str(HERE / "kafkajs.js"), *words]
        if library == "java":
            return [*self.nodes.java_client, *words]
        return [sys.executable, str(HERE / "clients.py"), library, *words]

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
        assert self.between is not None
        assert self.between.stdin is not None
        assert self.between.stdout is not None
        self.between.stdin.write(command + "\n")
        self.between.stdin.flush()
        _, at = self.between.stdout.readline().split()
        self.say(f"between: {command} at {datetime.fromtimestamp(float(at), UTC).strftime('%H:%M:%S.%f')[:12]}")


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
        one.wait(20 + LEAD_S.get(cell.library, 0.0))
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


def cut_both(cell: Cell) -> None:
    """Nothing passes the cable for 5 s."""
    _cut(cell, "both", 5)


def cut_down(cell: Cell) -> None:
    """Nothing passes the cable towards the clients for 4 s."""
    _cut(cell, "down", 4)


def cut_up(cell: Cell) -> None:
    """Nothing passes the cable towards the brokers for 4 s."""
    _cut(cell, "up", 4)


def _cut(cell: Cell, which: str, seconds: float) -> None:
    cell.usual()
    cell.until(9)
    cell.order(f"cut {which}")
    cell.until(9 + seconds)
    cell.order("join")


def slower_way(cell: Cell) -> None:
    """From the 9th second on the cable takes 45 ms more towards the clients."""
    cell.usual()
    cell.until(9)
    cell.order("delay 0 45")


def loss(cell: Cell) -> None:
    """From the 5th second on 6 of 100 packets are lost, each way."""
    cell.usual()
    cell.until(5)
    cell.order("loss 0.06 0.06")


def wired(cell: Cell) -> None:
    """Nothing, through the cable."""
    cell.usual()


def far(cell: Cell) -> None:
    """Nothing, through a cable of 15 ms each way."""
    cell.order("delay 15 15")
    cell.usual()


def broker_suspended(cell: Cell) -> None:
    """Node 2 is suspended for 3 s."""
    cell.usual()
    cell.until(9)
    cell.nodes.running[2].send_signal(signal.SIGSTOP)
    cell.say("SIGSTOP node 2")
    cell.until(12)
    cell.nodes.running[2].send_signal(signal.SIGCONT)
    cell.say("SIGCONT node 2")


def unknown_topic(cell: Cell) -> None:
    """Producer p1 writes to a topic that does not exist, consumer c1 reads one; p2 and c2 are right."""
    cell.start("produce", "p1", "nope")
    cell.start("consume", "c1", "nope")
    cell.start("produce", "p2")
    cell.start("consume", "c2")


def no_poll(cell: Cell) -> None:
    """Consumer c1 does not come back from a record of its 8th second; its max.poll.interval.ms, where it has one, is 6 s."""
    cell.usual()
    cell.clients.pop("c1").kill()
    cell.start("nopoll", "c1")


def slow_consumer(cell: Cell) -> None:
    """Consumer c1 takes half a second a record from its 8th second on, of 16 a second; c2 keeps up."""
    cell.start("produce", "p1", "orders", 16)
    cell.start("slow", "c1")
    cell.start("consume", "c2")


def leader_moved(cell: Cell) -> None:
    """Partition orders-0 gets node 2, then node 1, then node 2 as its only replica."""
    cell.usual()
    for second, node in ((8, 2), (12, 1), (16, 2)):
        cell.until(second)
        reassign("orders", 0, node)
        cell.say(f"orders-0 is asked to be at node {node}")


def members_come(cell: Cell) -> None:
    """Consumer c1 goes on in a group that another member, c9, joins and leaves every 3 s."""
    cell.start("produce", "p1")
    cell.start("consume", "c1")
    whole = cell.seconds
    for second in (6, 10, 14):
        cell.until(second)
        cell.seconds = second + 2
        cell.start("consume", "c9", group="c1")
    cell.seconds = whole


def too_large(cell: Cell) -> None:
    """Producer p1 writes records of 60 kB to a topic that takes 10 kB; p2 and c2 are right."""
    cell.start("produce", "p1", "small", 4, 60000)
    cell.start("consume", "c1", "small")
    cell.start("produce", "p2")
    cell.start("consume", "c2")


def unresolved(cell: Cell) -> None:
    """The brokers that p1 and c1 ask advertise a name that no resolver knows; p2 and c2 are right."""
    for role, name in (("produce", "p2"), ("consume", "c2")):
        cell.start(role, name)
    for role, name in (("produce", "p1"), ("consume", "c1")):
        cell.start(role, name, servers=f"127.0.0.1:{NAMED[1]}")


def wrong_password(cell: Cell) -> None:
    """Producer p1 and consumer c1 have a wrong password; p2 and c2 have the right one."""
    _log_in(cell, {"p1": "lab-wrong", "c1": "lab-wrong"})


def denied(cell: Cell) -> None:
    """Producer p1 writes to a topic whose ACLs leave its user out, consumer c1 reads it; p2 and c2 are right."""
    _log_in(cell, {}, "secret")


def _log_in(cell: Cell, passwords: Mapping[str, str], *topic: str) -> None:
    for role, name in (("produce", "p1"), ("consume", "c1"), ("produce", "p2"), ("consume", "c2")):
        login = {"LAB_USER": USER, "LAB_PASSWORD": passwords.get(name, PASSWORD)}
        cell.start(
            role, name, *(topic if name in ("p1", "c1") else ()), servers=",".join(LOGIN.values()), environment=login
        )


def tls_to_plain(cell: Cell) -> None:
    """Producer p1 and consumer c1 speak TLS to a listener that does not; p2 and c2 are right."""
    for role, name in (("produce", "p2"), ("consume", "c2")):
        cell.start(role, name)
    for role, name in (("produce", "p1"), ("consume", "c1")):
        cell.start(role, name, environment={"LAB_TLS": "1"})


def same_instance(cell: Cell) -> None:
    """Consumer c2 comes 5 s after c1 with the same group.instance.id."""
    cell.start("produce", "p1")
    cell.start("consume", "c1", environment={"LAB_INSTANCE": "i1"})
    cell.until(5)
    cell.start("consume", "c2", group="c1", environment={"LAB_INSTANCE": "i1"})
    cell.say("c2 starts")


def two_subscriptions(cell: Cell) -> None:
    """Nothing: the members c1 and c2 of one group subscribe to a topic each."""
    cell.start("produce", "p1")
    cell.start("produce", "p2", "bulk", 4, 1000)
    cell.start("consume", "c1", "orders", group="c1")
    cell.start("consume", "c2", "bulk", group="c1")


def too_few_replicas(cell: Cell) -> None:
    """Node 2 is away for 10 s, and topic safe wants two replicas in sync."""
    cell.start("produce", "p1", "safe")
    cell.start("produce", "p2", "safe")
    cell.start("consume", "c1", "safe")
    cell.until(8)
    cell.say("SIGTERM node 2")
    cell.nodes.stop(2)
    cell.say("node 2 has ended")
    cell.until(18)
    cell.nodes.start(2)
    cell.say("node 2 serves")


def slow_disk(cell: Cell) -> None:
    """From the 9th second on each flush to the disk of node 2 takes 0.4 s more; the topic is flushed with each record."""
    for role, name in (("produce", "p1"), ("produce", "p2"), ("consume", "c1"), ("consume", "c2")):
        cell.start(role, name, "flushed")
    cell.until(9)
    cell.nodes.slow_sync.touch()
    cell.say("flushes of node 2 are slow")
    cell.until(cell.seconds)
    cell.nodes.slow_sync.unlink()


def starved(cell: Cell) -> None:
    """From the 9th to the 17th second node 2 runs for 20 ms in each 200 ms."""
    cell.usual()
    cell.until(9)
    cell.say("node 2 starves")
    for _ in range(40):
        cell.nodes.running[2].send_signal(signal.SIGSTOP)
        time.sleep(0.18)
        cell.nodes.running[2].send_signal(signal.SIGCONT)
        time.sleep(0.02)
    cell.say("node 2 runs")


def big_lost(cell: Cell) -> None:
    """From the 9th second on the cable carries no frame above 1200 bytes, each way."""
    _read_bulk(cell)
    cell.until(9)
    cell.order("big 1200")


def narrow(cell: Cell) -> None:
    """From the 9th second on the cable carries 150 kB/s towards the clients, who read 600 kB/s."""
    _read_bulk(cell)
    cell.until(9)
    cell.order("rate 150000")


def _read_bulk(cell: Cell) -> None:
    cell.start("produce", "p1", "bulk", 5, 60000, servers=INNER, library="librdkafka", inside=True)
    cell.start("produce", "p2")
    for name in ("c1", "c2"):
        cell.start("consume", name, "bulk")


INNER = "127.0.0.8:9292"


@dataclass(frozen=True)
class Cause:
    act: Callable[[Cell], None]
    points: tuple[str, ...] = ("",)
    libraries: tuple[str, ...] = LIBRARIES
    seconds: float = 20.0
    wire: bool = False
    """Its points are the ends of the cable, not of the firewall."""
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
    "broker_suspended": Cause(broker_suspended), "unknown_topic": Cause(unknown_topic), "no_poll": Cause(no_poll, seconds=28.0),
    "slow_consumer": Cause(slow_consumer, seconds=24.0), "leader_moved": Cause(leader_moved),
    "members_come": Cause(members_come), "too_large": Cause(too_large), "unresolved": Cause(unresolved),
    "wrong_password": Cause(wrong_password), "denied": Cause(denied), "tls_to_plain": Cause(tls_to_plain),
    "same_instance": Cause(same_instance, libraries=tuple(one for one in LIBRARIES if one != "kafkajs")), "two_subscriptions": Cause(two_subscriptions),
    "too_few_replicas": Cause(too_few_replicas, seconds=26.0), "slow_disk": Cause(slow_disk), "starved": Cause(starved),
} | {
    act.__name__: Cause(act, THROUGH, wire=True)
    for act in (wired, far, cut_both, cut_up, cut_down, slower_way, loss, big_lost, narrow)
}  # fmt: skip


@contextlib.contextmanager
def dumped(path: Path, what: str, outside: int, point: str) -> Iterator[None]:
    """tcpdump on loopback, or on one end of the cable."""
    enter, device = list[str](), "lo"
    if outside:
        enter = ["nsenter", f"--net=/proc/{outside}/ns/net"] if point == "client" else []
        device, what = ("lab1" if point == "client" else "lab0"), "tcp port 9392"
    command = [*enter, "tcpdump", "-i", device, "-s", "0", "-B", "65536", "-U", "-Z", "root", "-w", str(path), what]
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
    front = cause.points != ("",) and not cause.wire
    cell = Cell(out, name, library, nodes, cause.seconds, front)
    with contextlib.ExitStack() as stack:
        if front:
            pairs = [f"{FRONT[node]}={BEHIND[node]}" for node in NODES if node not in cause.closed_nodes]
            cell.between = stack.enter_context(subprocess.Popen(
                [sys.executable, str(HERE / "firewall.py"), *pairs], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            ))  # fmt: skip
            stack.callback(cell.between.terminate)
            time.sleep(0.7)
        if cause.wire:
            cell.outside = nodes.outside.pid
            cell.between = stack.enter_context(subprocess.Popen(
                [sys.executable, str(HERE / "wire.py"), str(cell.outside)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            ))  # fmt: skip
            stack.callback(cell.between.terminate)
            assert cell.between.stdout is not None
            cell.between.stdout.readline()
        for point in cause.points:
            file = "_".join(part for part in (name, library.replace("-", "_"), point) if part)
            stack.enter_context(dumped(out / f"{file}.pcap", POINTS[point], cell.outside, point))
        cell.say((cause.act.__doc__ or "").replace("\n", " "))
        cell.began = time.time() + LEAD_S.get(library, 0.0)
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
        # Maven needs the network that the namespace does not have
        jars()
        if os.environ.get("LAB_KAFKA") != "kfake":
            libraries()
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
        fake = os.environ.get("LAB_KAFKA") == "kfake"
        nodes = Fake() if fake else Nodes(Path(folder))
        nodes.java_client = build_java_client(HERE / "java/Lab.java", Path(folder))
        nodes.join()
        try:
            for node in NODES:
                nodes.start(node)
            if not fake:
                topics()
            for name, library in cells:
                if name == "throttled":
                    quota("p1", "producer_byte_rate", 5e4)
                    quota("c1", "consumer_byte_rate", 5e4)
                record(out, name, library, nodes)
                if name == "leader_moved":
                    reassign("orders", 0, 1, 2)
                    time.sleep(2)
                if not fake:
                    elect()
                if name == "throttled":
                    quota("p1", "producer_byte_rate", 1e9)
                    quota("c1", "consumer_byte_rate", 1e9)
        finally:
            nodes.outside.kill()
            nodes.end()


if __name__ == "__main__":
    main()

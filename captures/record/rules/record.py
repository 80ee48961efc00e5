"""record.py OUT [NAME]...: recordings for rules of findings that no other recording has, each of a second or some.

One broker (the one of tests/live: Kafka 4.4.0, KRaft) in a network namespace of its own, kafka-python and requests by
hand. In each recording one client has the trouble and another nearly has it. Needs root, Java, tcpdump, openssl,
keytool and kafka-python 3; run with PYTHONPATH at the top of the repository.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
HOST, FAR, CLIENT = "127.0.0.1", "192.0.2.1", "192.0.2.2"
PLAIN, TLS, SASL = 9092, 9093, 9094
PASSWORD = "test-password"


def text(value: str | None) -> bytes:
    return struct.pack(">h", -1) if value is None else struct.pack(">h", len(value)) + value.encode()


class Raw:
    """A connection that sends requests by hand."""

    def __init__(self, client: str, port: int = PLAIN, host: str = HOST, source: str | None = None) -> None:
        self.socket = socket.create_connection((host, port), source_address=(source, 0) if source else None)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.client, self.count = client, 0

    def send(self, key: int, version: int, body: bytes) -> None:
        self.count += 1
        frame = struct.pack(">hhi", key, version, self.count) + text(self.client) + body
        self.socket.sendall(struct.pack(">i", len(frame)) + frame)

    def read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self.socket.recv(size - len(data))
            if not more:
                raise EOFError
            data += more
        return data

    def ask(self, key: int, version: int, body: bytes) -> bytes:
        self.send(key, version, body)
        return self.read(struct.unpack(">i", self.read(4))[0])

    def fetch(
        self, topic: str | None, offset: int = 0, session: int = 0, epoch: int = -1, wait: int = 500, least: int = 1
    ) -> int:
        """Fetch v11 of partition 0; gives the session id."""
        body = struct.pack(">iiiibii", -1, wait, least, 1 << 20, 0, session, epoch)
        if topic is None:
            body += struct.pack(">i", 0)
        else:
            body += struct.pack(">i", 1) + text(topic) + struct.pack(">iiiqqi", 1, 0, -1, offset, -1, 1 << 16)
        answer = self.ask(1, 11, body + struct.pack(">i", 0) + text(""))
        return int(struct.unpack(">i", answer[10:14])[0])


def producer(client: str, **more: object):  # noqa: ANN201
    from kafka import KafkaProducer

    return KafkaProducer(**{"bootstrap_servers": f"{HOST}:{PLAIN}", "client_id": client} | more)


def consumer(client: str, *topics: str, **more: object):  # noqa: ANN201
    from kafka import KafkaConsumer

    settings = {"auto_offset_reset": "earliest"} | more
    return KafkaConsumer(*topics, bootstrap_servers=f"{HOST}:{PLAIN}", client_id=client, **settings)


def topic(name: str, records: int = 0, parts: int = 1) -> None:
    from kafka.admin import KafkaAdminClient, NewTopic

    admin = KafkaAdminClient(bootstrap_servers=f"{HOST}:{PLAIN}")
    admin.create_topics([NewTopic(name, parts, 1)])
    admin.close()
    if records:
        sent = producer("before")
        for _ in range(records):
            sent.send(name, b"x" * 50)
        sent.close()


# ---- what is recorded: (before the capture, during it)


def polling() -> None:
    """`poller` asks without any wait, 60 times a second; `patient` lets the broker wait."""
    poller, patient = Raw("poller"), Raw("patient")
    until = time.time() + 3.2
    session = patient.fetch("empty", epoch=0, wait=10)
    epoch = 1
    while time.time() < until:
        for _ in range(20):
            poller.fetch("empty", wait=0)
            time.sleep(0.004)
        patient.fetch(None, session=session, epoch=epoch, wait=150)
        epoch += 1


def lagging() -> None:
    """`behind` takes three records a poll and commits them; `ahead` takes what is there. 2,000 records come in 4 s."""
    import threading

    def produce() -> None:
        sent = producer("source", linger_ms=20)
        for n in range(2000):
            sent.send("flow", b"x" * 20)
            if n % 50 == 49:
                time.sleep(0.1)
        sent.close()

    def read(client: str, most: int | None, pause: float) -> None:
        from kafka import TopicPartition

        limit = {} if most is None else {"max_partition_fetch_bytes": most, "fetch_max_bytes": most}
        reader = consumer(client, group_id=f"g-{client}", enable_auto_commit=False, **limit)
        reader.assign([TopicPartition("flow", 0)])
        until = time.time() + 4.2
        while time.time() < until:
            reader.poll(timeout_ms=200)
            reader.commit()
            time.sleep(pause)
        reader.close()

    threads = [threading.Thread(target=produce), threading.Thread(target=read, args=("behind", 200, 0.35)),
               threading.Thread(target=read, args=("ahead", None, 0.35))]  # fmt: skip
    for one in threads:
        one.start()
    for one in threads:
        one.join()


def heartbeats() -> None:
    """`hasty` has a heartbeat interval of 20 ms, `calm` one of 500 ms."""
    readers = [
        consumer(f"{name}", "beats", group_id=f"g-{name}", heartbeat_interval_ms=interval)
        for name, interval in (("hasty", 20), ("calm", 500))
    ]
    until = time.time() + 3.0
    while time.time() < until:
        for one in readers:
            one.poll(timeout_ms=20)
    for one in readers:
        one.close()


def login() -> None:
    """`hasty-login` ends its connection as its answer is held back (the broker delays refusals); `wrong-login` waits."""
    for client, waits in (("wrong-login", True), ("hasty-login", False)):
        one = Raw(client, SASL)
        one.ask(18, 0, b"")
        one.ask(17, 1, text("PLAIN"))
        token = b"\0nobody\0wrong"
        body = struct.pack(">i", len(token)) + token
        if waits:
            one.ask(36, 0, body)
        else:
            one.send(36, 0, body)
            time.sleep(0.3)
            one.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        one.socket.close()
    time.sleep(1.5)


def permission() -> None:
    """`reader` may read topic `open`, and not topic `secret`; `other` reads `open` alone."""
    for client, topics in (("reader", ("open", "secret")), ("other", ("open",))):
        one = Raw(client)
        for name in topics:
            for _ in range(3):
                one.fetch(name, wait=0)


def twins() -> None:
    """Two instances with one transactional id: the first goes on writing after the second has begun. `single` is alone."""
    first = producer("first", transactional_id="tx", enable_idempotence=True)
    first.init_transactions()
    first.begin_transaction()
    first.send("txn", b"a").get(5)
    second = producer("second", transactional_id="tx", enable_idempotence=True)
    second.init_transactions()
    second.begin_transaction()
    second.send("txn", b"b").get(5)
    second.commit_transaction()
    with contextlib.suppress(Exception):
        first.send("txn", b"c").get(5)
    single = producer("single", transactional_id="tx-single", enable_idempotence=True)
    single.init_transactions()
    for value in (b"d", b"e"):
        single.begin_transaction()
        single.send("txn", value).get(5)
        single.commit_transaction()
    for one in (second, single):
        one.close()
    with contextlib.suppress(Exception):
        first.close(timeout=1)


def tls() -> None:
    """From 127.0.0.2 plaintext to the port for TLS, from 127.0.0.3 TLS to the port for plaintext, from 127.0.0.4 and
    127.0.0.5 as it should be."""
    with contextlib.suppress(EOFError, OSError):
        Raw("plain-to-tls", TLS, source="127.0.0.2").ask(18, 0, b"")
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    for source, port in (("127.0.0.3", PLAIN), ("127.0.0.4", TLS)):
        one = socket.create_connection((HOST, port), source_address=(source, 0))
        one.settimeout(2)
        with contextlib.suppress(OSError):
            with context.wrap_socket(one) as sealed:
                body = struct.pack(">hhi", 18, 0, 1) + text("sealed")
                sealed.sendall(struct.pack(">i", len(body)) + body)
                sealed.recv(1000)
        one.close()
    plain = Raw("plain", source="127.0.0.5")
    plain.ask(18, 0, b"")
    plain.fetch("empty", wait=0)


def sessions() -> None:
    """`never` opens twelve sessions and uses none again; `often` opens nine so; `left` uses a session and leaves 25
    open; `tidy` opens 25 and closes each."""
    never, often, left, tidy = (Raw(name) for name in ("never", "often", "left", "tidy"))
    for _ in range(12):
        never.fetch("empty", epoch=0, wait=0)
    for _ in range(9):
        often.fetch("empty", epoch=0, wait=0)
    for _ in range(25):
        left.fetch(None, session=left.fetch("empty", epoch=0, wait=0), epoch=1, wait=0)
        tidy.fetch("empty", session=tidy.fetch("empty", epoch=0, wait=0), epoch=-1, wait=0)


def slots() -> None:
    """810 sessions at once: the broker has 1,000 slots."""
    one = Raw("many")
    for _ in range(810):
        one.fetch("empty", epoch=0, wait=0)


def addresses() -> None:
    """`roaming` connects from 127.0.0.2 and 127.0.0.3, `home` twice from 127.0.0.4."""
    for client, source in (("roaming", "127.0.0.2"), ("roaming", "127.0.0.3"), ("home", "127.0.0.4"),
                           ("home", "127.0.0.4")):  # fmt: skip
        one = Raw(client, source=source)
        one.ask(18, 0, b"")
        one.fetch("empty", wait=0)


def member(client: str, seconds: float) -> None:
    """A consumer of its own process."""
    one = consumer(client, "beats", group_id=f"g-{client}", session_timeout_ms=6000, heartbeat_interval_ms=1000)
    until = time.time() + seconds
    while time.time() < until:
        one.poll(timeout_ms=200)
    one.close()


def suspended() -> None:
    """`frozen` is suspended for 8 s, its session.timeout.ms is 6 s; `dozing` for 4 s."""
    commands = [[sys.executable, __file__, "--member", name, "14"] for name in ("frozen", "dozing")]
    frozen, dozing = (subprocess.Popen(one) for one in commands)
    time.sleep(3.5)
    for one in (frozen, dozing):
        one.send_signal(signal.SIGSTOP)
    time.sleep(4)
    dozing.send_signal(signal.SIGCONT)
    time.sleep(4.2)
    frozen.send_signal(signal.SIGCONT)
    frozen.wait(20)
    dozing.wait(20)


def traffic(client: str, count: int) -> None:
    """A producer that waits for each answer."""
    one = producer(client, bootstrap_servers=f"{FAR}:{PLAIN}", linger_ms=0)
    for _ in range(count):
        one.send("flow", b"x" * 100).get(20)
    one.close()


def loss() -> None:
    """`lossy` waits for each of 250 answers on a way that loses 3 % of the packets."""
    bridge = [sys.executable, str(HERE.parent / "clients" / "lossy_bridge.py"), "kfm1", "kfm2", "7", "30"]
    with subprocess.Popen(["ip", "netns", "exec", "kfm", *bridge]) as passing:
        time.sleep(1)
        away = ["ip", "netns", "exec", "kfc", sys.executable, __file__, "--traffic", "lossy", "250"]
        subprocess.run(away, check=True, timeout=60)
        passing.terminate()


def wired() -> None:
    """kfb (broker, this one) and kfc (clients), whose packets go through kfm, without offloads."""
    for space in ("kfc", "kfm"):
        subprocess.run(["ip", "netns", "add", space], check=True)
    for near, other, space, address in (("kfb0", "kfm1", "kfb", FAR), ("kfc0", "kfm2", "kfc", CLIENT)):
        for command in (
            f"ip link add {near} netns {space} type veth peer name {other} netns kfm",
            f"ip -n {space} addr add {address}/24 dev {near}", f"ip -n {space} link set lo up",
            f"ip -n {space} link set {near} up", f"ip -n kfm link set {other} up",
            f"ip netns exec {space} {sys.executable} {__file__} --plain {near}",
            f"ip netns exec kfm {sys.executable} {__file__} --plain {other}",
        ):  # fmt: skip
            subprocess.run(command.split(), check=True)


def no_offloads(interface: str) -> None:
    """What ethtool -K does: checksums and segments are made before a packet leaves (SIOCETHTOOL)."""
    import array
    import fcntl

    with socket.socket() as any_one:
        for command in (0x17, 0x1F, 0x24, 0x2C):  # STXCSUM, STSO, SGSO, SGRO
            value = array.array("B", struct.pack("II", command, 0))
            place, _ = value.buffer_info()
            with contextlib.suppress(OSError):
                fcntl.ioctl(any_one, 0x8946, struct.pack("16sP", interface.encode(), place))


SETS: dict[str, Callable[[], None]] = {
    "polling": polling, "lagging": lagging, "heartbeats": heartbeats, "login": login, "permission": permission,
    "twins": twins, "tls": tls, "sessions": sessions, "slots": slots, "addresses": addresses, "suspended": suspended,
    "loss": loss,
}  # fmt: skip


def dumped(out: Path, name: str, what: Callable[[], None], interface: str = "lo", space: str | None = None) -> None:
    path = out / f"{name}.pcap"
    ports = " or ".join(f"port {port}" for port in (PLAIN, TLS, SASL))
    inside = ["ip", "netns", "exec", space] if space else []
    dump = subprocess.Popen(
        [*inside, "tcpdump", "-i", interface, "-s", "0", "-B", "65536", "-U", "-Z", "root", "-w", str(path), f"tcp and ({ports})"],
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert dump.stderr is not None
    while "listening on" not in dump.stderr.readline():
        pass
    time.sleep(0.3)
    try:
        what()
    finally:
        time.sleep(0.7)
        dump.send_signal(signal.SIGINT)
        dump.wait(10)
    subprocess.run(["zstd", "-q", "-19", "--rm", "-f", str(path)], check=True)
    print(name, (out / f"{name}.pcap.zst").stat().st_size, flush=True)


def settings(data: Path) -> str:
    from tests.live.broker import Live, _settings

    chosen = _settings(Live(PLAIN, 9095, data, data), data / "log") | {
        "listeners": f"PLAINTEXT://0.0.0.0:{PLAIN},SSL://{HOST}:{TLS},SASL_PLAINTEXT://{HOST}:{SASL},CONTROLLER://{HOST}:9095",
        "advertised.listeners": f"PLAINTEXT://{os.environ.get('ADVERTISED', HOST)}:{PLAIN},SSL://{HOST}:{TLS},SASL_PLAINTEXT://{HOST}:{SASL}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT",
        "ssl.keystore.location": data / "keys.p12", "ssl.keystore.password": PASSWORD, "ssl.keystore.type": "PKCS12",
        "sasl.enabled.mechanisms": "PLAIN", "connection.failed.authentication.delay.ms": 1000,
        "listener.name.sasl_plaintext.plain.sasl.jaas.config":
            f'org.apache.kafka.common.security.plain.PlainLoginModule required user_test="{PASSWORD}";',
        "super.users": "User:nobody", "group.min.session.timeout.ms": 6000,
    }  # fmt: skip
    return "".join(f"{key}={value}\n" for key, value in chosen.items())


def main() -> None:
    if sys.argv[1] == "--member":
        member(sys.argv[2], float(sys.argv[3]))
        return
    if sys.argv[1] == "--traffic":
        traffic(sys.argv[2], int(sys.argv[3]))
        return
    if sys.argv[1] == "--plain":
        no_offloads(sys.argv[2])
        return
    from tests.live.broker import CLUSTER, _java, _wait, jars

    out, names = Path(sys.argv[1]), sys.argv[2:] or [name for name in SETS if name != "loss"]
    out.mkdir(exist_ok=True, parents=True)
    if "loss" in names:
        wired()
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder)
        subprocess.run(
            ["keytool", "-genkeypair", "-alias", "broker", "-keyalg", "EC", "-dname", "CN=broker", "-keystore",
             str(data / "keys.p12"), "-storetype", "PKCS12", "-storepass", PASSWORD], check=True, capture_output=True,
        )  # fmt: skip
        (data / "server.properties").write_text(settings(data))
        java = _java(f"{jars()}/*", data)
        form = [*java, "kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", str(data / "server.properties")]
        subprocess.run(form, check=True, capture_output=True)
        with (data / "out").open("wb") as said:
            broker = subprocess.Popen([*java, "kafka.Kafka", str(data / "server.properties")], stdout=said, stderr=said)
        try:
            _wait(data / "server.log", "Kafka Server started", broker)
            for name in ("empty", "flow", "beats", "txn", "open", "secret"):
                topic(name)
            deny()
            for name in names:
                if name == "loss":
                    dumped(out, name, SETS[name], "kfc0", "kfc")
                else:
                    dumped(out, name, SETS[name])
        finally:
            broker.terminate()
            broker.wait(30)


def deny() -> None:
    """Nobody may read topic `secret`."""
    from kafka.admin import ACL, ACLOperation, ACLPermissionType, KafkaAdminClient, ResourcePattern, ResourceType

    admin = KafkaAdminClient(bootstrap_servers=f"{HOST}:{PLAIN}")
    admin.create_acls([
        ACL("User:ANONYMOUS", "*", ACLOperation.READ, ACLPermissionType.DENY, ResourcePattern(ResourceType.TOPIC, "secret"))
    ])  # fmt: skip
    admin.close()


if __name__ == "__main__":
    main()

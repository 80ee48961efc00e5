"""One Apache Kafka broker (KRaft, broker and controller in one process) on loopback, with tcpdump beside it.

The jars come from Maven by `pom.xml`, once into the user's cache. Everything that is started runs in a process group
of its own under `timeout`, so that it ends even where this process is killed, and everything is written below one
temporary folder.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "kdissect-tests"
HOST = "127.0.0.1"
LIFE_S = 240
"""Seconds after which a process of ours is killed, whatever happens."""
START_S = 60
DOWNLOAD_S = 240
CLUSTER = "kdissectLiveBroker0004"


def needs() -> None:
    """Skip the test where something is missing; in CI it fails instead, for CI installs it."""
    missing = [name for name in ("java", "mvn", "tcpdump", "timeout") if shutil.which(name) is None]
    reason = f"a live broker needs {', '.join(missing)}"
    if not missing and not _may_capture():
        missing, reason = ["privileges"], "tcpdump may not capture here (it needs root or CAP_NET_RAW)"
    if missing:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)


def _may_capture() -> bool:
    found = subprocess.run(
        ["tcpdump", "-i", "lo", "-c", "1", "-w", "/dev/null", "-d"], capture_output=True, check=False
    )
    return found.returncode == 0


def jars() -> Path:
    """The folder with the broker's jars, from the cache or from Maven."""
    pom = HERE / "pom.xml"
    folder = CACHE / f"kafka-{hashlib.sha256(pom.read_bytes()).hexdigest()[:12]}"
    if folder.exists():
        return folder
    CACHE.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(dir=CACHE))
    command = ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", "-DincludeScope=runtime"]
    try:
        found = subprocess.run(
            [*command, f"-DoutputDirectory={part}"], capture_output=True, text=True, timeout=DOWNLOAD_S, check=False
        )
        if found.returncode:
            (pytest.fail if os.environ.get("CI") else pytest.skip)(
                f"Maven could not get the broker: {found.stdout[:500]}"
            )
        with contextlib.suppress(OSError):  # another run was faster
            part.rename(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return folder


@dataclass(frozen=True, slots=True)
class Live:
    """A running broker and what it leaves behind when it has stopped."""

    port: int
    controller_port: int
    capture: Path
    log: Path
    group: int = 0
    """The process group of the broker."""

    def finished(self) -> None:
        """Raise when tcpdump lost packets."""
        said = self.capture.with_suffix(".err").read_text()
        assert "\n0 packets dropped by kernel" in said, said


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Live]:
    """A broker that is up, recorded from its first packet to its last; stopped, and its data gone, on leaving.

    `folder` keeps the capture and the request log.
    """
    libraries = f"{jars()}/*"
    ports = _free_ports(2)
    live = Live(*ports, folder / "live.pcap", folder / "requests.log")
    data = Path(tempfile.mkdtemp(prefix="kdissect-live-"))
    with contextlib.ExitStack() as clean:
        clean.callback(shutil.rmtree, data, ignore_errors=True)
        java = _java(libraries, folder)
        settings = folder / "server.properties"
        settings.write_text("".join(f"{key}={value}\n" for key, value in _settings(live, data).items()))
        format_ = [*java, "kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", str(settings)]
        found = subprocess.run(format_, capture_output=True, text=True, timeout=START_S, check=False)
        assert not found.returncode, found.stderr
        said = live.capture.with_suffix(".err")
        wires = f"tcp and (port {live.port} or port {live.controller_port})"
        own = ["-Z", "root"] if os.geteuid() == 0 else []
        # Without the immediate mode, what the kernel has gathered for up to a second is lost at the end.
        recorder = ["tcpdump", "-i", "lo", "-s", "0", "-B", "65536", "-U", "--immediate-mode", *own]
        dump = _start([*recorder, "-w", str(live.capture), wires], said)
        clean.callback(_stop, dump, signal.SIGINT)
        _wait(said, "listening on", dump)
        out = folder / "broker.out"
        broker = _start([*java, "kafka.Kafka", str(settings)], out)
        clean.callback(_stop, broker, signal.SIGTERM)
        _wait(folder / "server.log", "Kafka Server started", broker)
        yield dataclasses.replace(live, group=broker.pid)
        _stop(broker, signal.SIGTERM)
        time.sleep(0.5)  # what is in the kernel's buffer
        _stop(dump, signal.SIGINT)


def _java(libraries: str, folder: Path) -> list[str]:
    return [
        "java", "-Xmx400m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.net.preferIPv4Stack=true",
        f"-Dlog4j2.configurationFile={HERE / 'log4j2.xml'}", f"-Dnode.dir={folder}", "-Dnode.id=1", "-cp", libraries,
    ]  # fmt: skip


def _settings(live: Live, data: Path) -> dict[str, object]:
    return {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@{HOST}:{live.controller_port}",
        "listeners": f"PLAINTEXT://{HOST}:{live.port},CONTROLLER://{HOST}:{live.controller_port}",
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "allow.everyone.if.no.acl.found": "true",
        "unstable.api.versions.enable": "true",
        "delegation.token.secret.key": "test-secret",
        "log.dirs": data,
        "num.partitions": 1,
        "offsets.topic.replication.factor": 1,
        "offsets.topic.num.partitions": 1,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "transaction.state.log.num.partitions": 1,
        "share.coordinator.state.topic.replication.factor": 1,
        "share.coordinator.state.topic.min.isr": 1,
        "share.coordinator.state.topic.num.partitions": 1,
        "group.initial.rebalance.delay.ms": 0,
        "group.min.session.timeout.ms": 100,
        "log.cleaner.dedupe.buffer.size": 4 << 20,
        "log.segment.bytes": 1 << 20,
        "num.network.threads": 2,
        "num.io.threads": 2,
    }


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind((HOST, 0))
        return [one.getsockname()[1] for one in sockets]


def _start(command: list[str], said: Path) -> subprocess.Popen[bytes]:
    with said.open("wb") as out:
        return subprocess.Popen(
            ["timeout", "--kill-after=5", str(LIFE_S), *command],
            stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip


def _stop(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """End a process and all that it started; does nothing to one that has ended."""
    if process.poll() is not None:
        return
    os.killpg(process.pid, number)
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(5)


def _wait(path: Path, text: str, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        if path.exists() and text in path.read_text(errors="replace"):
            return
        assert process.poll() is None, f"{process.args} ended with {process.returncode}: see {path}"
        time.sleep(0.1)
    raise AssertionError(f"{text!r} never came in {path}")

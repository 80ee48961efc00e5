"""A recorded conversation, sent through OpenSSL anew, gives the tables that it gave in plaintext."""

from __future__ import annotations

import io
import ssl
import struct
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import kdissect
from kdissect.cli.commands import main
from kdissect.problems import UsageError
from tests.bench import frames
from tests.oracle import wire
from tests.oracle.material import CAPTURES
from tests.oracle.pcap import FIN, RST, START, SYN, Talk, api_versions_request, api_versions_response, pcap
from tests.tls.openssl import TLS12, TLS13, Connection, Ends

SAME = (
    "client_port", "broker_port", "api", "api_version", "correlation_id", "client_id", "status", "error_code",
    "error_count", "request_first_at", "request_last_at", "response_first_at", "response_last_at",
    "request_bytes", "response_bytes", "in_flight", "throttle_ms", "decoded",
)  # fmt: skip


@dataclass
class _Sealed:
    """A connection of the new capture, and the one through OpenSSL that gives its bytes."""

    talk: Talk
    connection: Connection
    at: list[int] = field(default_factory=lambda: [0, 0])
    seen: set[tuple[int, int]] = field(default_factory=set)

    def put(self, ms: float, side: int, data: bytes, pieces: int = 1) -> None:
        """Bytes of TLS as that many packets, 1 µs apart, the last one at `ms`."""
        size = -(-len(data) // pieces)
        for n, begin in enumerate(range(0, len(data), size)):
            part = data[begin : begin + size]
            early = (-(-len(data) // size) - 1 - n) * 0.001
            self.talk.put(ms - early, side, self.at[side], part)
            self.at[side] += len(part)


def sealed(name: str, ends: Ends, pieces: int = 1) -> list[tuple[int, bytes]]:
    """The packets of a capture, each one's payload sent through TLS at its time."""
    out: list[tuple[int, bytes]] = []
    known: dict[frozenset[wire.Endpoint], _Sealed] = {}
    for packet in wire.packets(CAPTURES / f"{name}.pcap"):
        ms = (packet.time - START) / 1e6
        ends_of = frozenset((packet.source, packet.target))
        if packet.flags & SYN and not packet.flags & 16:
            talk = Talk(packet.source, packet.target, packets=out)
            known[ends_of] = it = _Sealed(talk, ends.connect())
            talk.handshake(ms - 1)
            for side, data in it.connection.wire:
                it.put(ms - 0.5, side, data)
        it = known[ends_of]
        side = 0 if packet.source == it.talk.client else 1
        if packet.payload and (side, packet.seq) not in it.seen:  # not retransmissions
            it.seen.add((side, packet.seq))
            it.put(ms, side, it.connection.say(side, packet.payload), pieces)
        if packet.flags & (FIN | RST):
            it.talk.put(ms, side, it.at[side], b"", packet.flags)
    return out


def rows(table: Any) -> list[tuple[Any, ...]]:
    return sorted(
        (tuple(row[name] for name in SAME) for row in table.to_pylist()),
        key=repr,
    )


@pytest.mark.parametrize("name", ["zoo_kafka_python", "zoo_librdkafka", "sasl_logins"])
@pytest.mark.parametrize("version", [TLS12, TLS13])
@pytest.mark.parametrize("pieces", [1, 3])
def test_the_same_exchanges(name: str, version: ssl.TLSVersion, pieces: int, tmp_path: Path) -> None:
    ends = Ends(tmp_path, version)
    path = tmp_path / "sealed.pcap"
    path.write_bytes(pcap(sealed(name, ends, pieces)))
    opened = kdissect.open(path, keylog=ends.keys).tables(["exchanges", "connections", "problems"])
    plain = kdissect.open(CAPTURES / f"{name}.pcap").tables(["exchanges", "connections"])
    assert rows(opened["exchanges"]) == rows(plain["exchanges"])
    kafka = [row for row in opened["connections"].to_pylist() if row["is_kafka"]]
    label = "TLS 1.2" if version == TLS12 else "TLS 1.3"
    assert {(row["tls"], row["sni"], row["protocol"]) for row in kafka} == {(label, "broker.test", "kafka")}
    assert len(kafka) == sum(row["is_kafka"] for row in plain["connections"].to_pylist())
    assert opened["problems"].num_rows == 0


def test_one_message_of_each_kind_decodes_to_the_same(tmp_path: Path) -> None:
    ends = Ends(tmp_path, TLS13)
    path = tmp_path / "sealed.pcap"
    path.write_bytes(pcap(sealed("zoo_kafka_python", ends, 2)))
    opened, plain = kdissect.open(path, keylog=ends.keys), kdissect.open(CAPTURES / "zoo_kafka_python.pcap")
    for api in ("Fetch", "Metadata", "Produce", "JoinGroup"):
        for side in ("request", "response"):
            ours, theirs = (one.messages(api, side).drop_columns(["exchange_id"]) for one in (opened, plain))
            assert sorted(map(repr, ours.to_pylist())) == sorted(map(repr, theirs.to_pylist())), (api, side)


@pytest.fixture
def lossy(tmp_path: Path) -> tuple[Ends, list[tuple[int, bytes]]]:
    ends = Ends(tmp_path, TLS13)
    return ends, sealed("zoo_kafka_python", ends, 3)


@pytest.mark.whole
def test_every_packet_lost_once(lossy: tuple[Ends, list[tuple[int, bytes]]], tmp_path: Path) -> None:
    """Nothing is invented, and a hole inside a record costs the frames in that record alone."""
    ends, packets = lossy
    full = tmp_path / "full.pcap"
    full.write_bytes(pcap(packets))
    truth = {row[:6] for row in rows(kdissect.open(full, keylog=ends.keys).table("exchanges"))}
    path = tmp_path / "lost.pcap"
    kept = []
    for gone in range(0, len(packets), 11):
        path.write_bytes(pcap(packets[:gone] + packets[gone + 1 :]))
        tables = kdissect.open(path, keylog=ends.keys).tables(["exchanges", "problems", "connections"])
        found = [row for row in tables["exchanges"].to_pylist() if row["status"] in ("ok", "error")]
        assert {tuple(row[name] for name in SAME[:6]) for row in found} <= truth
        kept.append(len(found))
        connections = tables["connections"].to_pylist()
        if sum(row["missing_bytes"] for row in connections):
            kinds = set(tables["problems"]["kind"].to_pylist())
            assert kinds & {"missing_bytes", "tls"}
    assert max(kept) == len(truth)
    assert sum(kept) > 0.5 * len(kept) * len(truth)


def test_late_captures_and_wrong_keys_say_so(lossy: tuple[Ends, list[tuple[int, bytes]]], tmp_path: Path) -> None:
    ends, packets = lossy
    path = tmp_path / "sealed.pcap"
    path.write_bytes(pcap(packets[len(packets) // 2 :]))
    problems = kdissect.open(path, keylog=ends.keys).table("problems").to_pylist()
    late = [row for row in problems if row["kind"] == "tls"]
    assert late
    assert {row["detail"] for row in late} == {"TLS is not decrypted: the handshake was not captured"}
    path.write_bytes(pcap(packets))
    wrong = tmp_path / "wrong.log"
    wrong.write_text(f"CLIENT_RANDOM {'00' * 32} {'11' * 48}\n")
    tables = kdissect.open(path, keylog=wrong).tables(["exchanges", "problems", "connections"])
    assert tables["exchanges"].num_rows == 0
    details = tables["problems"]["detail"].to_pylist()
    assert details
    assert all(text.startswith("TLS is not decrypted: the key log has no secret for") for text in details)
    without = kdissect.open(path).tables(["problems", "connections"])
    assert without["problems"].num_rows == 0
    assert {(r["protocol"], r["tls"], r["sni"]) for r in without["connections"].to_pylist()} == {
        ("tls", "TLS 1.3", "broker.test")
    }


def test_secrets_of_a_pcapng(lossy: tuple[Ends, list[tuple[int, bytes]]], tmp_path: Path) -> None:
    ends, packets = lossy
    keys = ends.keys.read_bytes()
    keys += b"\n" * (-len(keys) % 4)

    def block(kind: int, body: bytes) -> bytes:
        body += b"\0" * (-len(body) % 4)
        size = struct.pack("<I", 12 + len(body))
        return struct.pack("<I", kind) + size + body + size

    out = block(0x0A0D0D0A, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1))
    out += block(1, struct.pack("<HHI", 1, 0, 0) + struct.pack("<HHB3x", 9, 1, 9))
    out += block(10, struct.pack("<II", 0x544C534B, len(keys)) + keys)
    for time, data in packets:
        out += block(6, struct.pack("<IIIII", 0, time >> 32, time & 0xFFFFFFFF, len(data), len(data)) + data)
    path = tmp_path / "sealed.pcapng"
    path.write_bytes(out)
    plain = kdissect.open(CAPTURES / "zoo_kafka_python.pcap").table("exchanges")
    assert [row[:10] for row in rows(kdissect.open(path).table("exchanges"))] == [row[:10] for row in rows(plain)]


def test_show_and_bad_arguments(tmp_path: Path) -> None:
    keys, path = str(CAPTURES / "tls13.keys.log"), str(CAPTURES / "tls13.pcap")
    first = kdissect.open(path, keylog=keys).table("exchanges")["exchange_id"][0].as_py()
    shown = CliRunner().invoke(main, ["show", path, first, "--keylog", keys])
    assert shown.exit_code == 0, shown.output
    assert "ApiVersions" in shown.output
    screen = CliRunner().invoke(main, [path, "--keylog", keys])
    assert "tls-1.3" in screen.output
    empty = tmp_path / "empty.log"
    empty.write_text("nothing\n")
    empty.chmod(0o600)  # a file that others can read gives a warning, too
    for bad in (empty, tmp_path / "missing.log"):
        with pytest.raises(UsageError, match="key"):
            kdissect.open(path, keylog=bad)
        words = [sys.executable, "-m", "kdissect", path, "--keylog", str(bad)]
        refused = subprocess.run(words, capture_output=True, text=True, check=False)
        assert refused.returncode == 2
        assert len(refused.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("closes", [True, False])
def test_plaintext_to_a_port_for_tls(closes: bool, tmp_path: Path) -> None:
    """The answer is what OpenSSL says to a Kafka request."""
    ends = Ends(tmp_path, TLS13)
    arrived, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = ends.server.wrap_bio(arrived, sent, server_side=True)
    request = api_versions_request(1)
    arrived.write(request)
    with pytest.raises(ssl.SSLError):
        server.do_handshake()
    alert = sent.read() or bytes.fromhex("15030300020246")
    talk = Talk()
    talk.handshake()
    talk.put(1, 0, 0, request)
    talk.put(2, 1, 0, alert)
    if closes:
        talk.put(3, 1, len(alert), b"", FIN | 16)
        talk.put(4, 0, len(request), b"", FIN | 16)
    path = tmp_path / "wrong.pcap"
    path.write_bytes(pcap(talk.packets))
    tables = kdissect.open(path).tables(["problems", "exchanges", "connections", "findings"])
    assert [row["detail"] for row in tables["problems"].to_pylist() if row["kind"] == "tls"] == [
        "the broker answers with a TLS alert: the client speaks plaintext to a port for TLS"
    ]
    assert tables["exchanges"]["response_bytes"].to_pylist() == [None]
    assert tables["connections"]["tls"].to_pylist() == ["expected"]
    (found,) = tables["findings"].to_pylist()
    assert (found["id"], found["severity"], found["count"]) == ("plaintext_to_tls", "high", 1)
    assert "plaintext to a port of broker" in found["text"]
    assert kdissect.open(path).table("connections", where=found["filter"]).num_rows == 1
    assert found["text"] in [one["text"] for one in kdissect.open(path).summary().findings]


def test_the_first_screen_says_what_would_read_them() -> None:
    words = [sys.executable, "-m", "kdissect", str(CAPTURES / "tls13.pcap")]
    sealed, read, wrong = (
        " ".join(subprocess.run([*words, *more], capture_output=True, text=True, check=True).stdout.split())
        for more in ([], *(["--keylog", str(CAPTURES / f"{name}.keys.log")] for name in ("tls13", "tls12")))
    )
    assert "TLS connections not decrypted: --keylog FILE reads" in sealed
    assert "--keylog" not in read
    assert "5 TLS connections not decrypted with the keys given: --table problems says why." in wrong


def test_large_frames_of_several_connections_at_once(tmp_path: Path) -> None:
    """Plaintext rotates in a little memory: what a frame needs of it is kept until its last byte."""
    ends = Ends(tmp_path, TLS13)
    packets: list[tuple[int, bytes]] = []
    talks = []
    for number in range(3):
        talk = Talk(("10.0.0.1", 40000 + number), packets=packets)
        talk.handshake(number)
        it = _Sealed(talk, ends.connect())
        for side, data in it.connection.wire:
            it.put(10 + number, side, data)
        it.put(20 + number, 0, it.connection.say(0, api_versions_request(1)))
        it.put(30 + number, 1, it.connection.say(1, api_versions_response(1)))
        it.put(40 + number, 0, it.connection.say(0, frames.fetch_request(1).data))
        talks.append(it)
    random = np.random.default_rng(7)
    bodies = [frames.fetch_response([frames.batch([random.bytes(6 << 20)])]).data for _ in talks]
    step = 200_000
    for n, begin in enumerate(range(0, max(map(len, bodies)), step)):
        for number, (it, body) in enumerate(zip(talks, bodies, strict=True)):
            if body[begin : begin + step]:
                it.put(60 + 5 * n + number, 1, it.connection.say(1, body[begin : begin + step]), 150)
    path = tmp_path / "large.pcap"
    path.write_bytes(pcap(packets))
    for source in (path, io.BytesIO(path.read_bytes())):
        found = kdissect.open(source, keylog=ends.keys).tables({"record_batches": ["crc_ok"], "exchanges": ["status"]})
        assert found["record_batches"]["crc_ok"].to_pylist() == [True] * 3
        assert found["exchanges"]["status"].to_pylist() == ["ok"] * 6

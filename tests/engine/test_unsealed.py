"""`redact --plain`: the exchanges of a decrypted TLS capture in a redacted one without TLS, which tshark reads."""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest

import kdissect
from kdissect.cli.main import main
from kdissect.engine.extracts import unsealed
from kdissect.problems import UsageError
from tests.conftest import ROOT
from tests.engine.test_tls import sealed
from tests.oracle import wire
from tests.oracle.pcap import pcap
from tests.tls.openssl import TLS12, TLS13, Ends

CAPTURES = ROOT / "captures"
OF_ADDRESSES = {"connection_id", "exchange_id", "client_ip", "capture", "request_file", "response_file"}
OF_PACKETS = {"network_kind", "network_ms", "queued_ms", "broker_ms", "agreed_ms", "think_ms"}
"""Measured by acknowledgements, of which the handshake of TLS has more; see below how near they are."""
OF_TLS = {"request_resent_ms", "response_resent_ms"}
"""Unknown inside TLS."""


def rows(path: Path, keys: Path | None = None) -> list[dict[str, Any]]:
    found = kdissect.open(path, keylog=keys).table("exchanges").to_pylist()
    return sorted(found, key=lambda row: (row["request_frame"] or 0, row["response_frame"] or 0, row["client_port"]))


def alike(sealed_rows: list[dict[str, Any]], plain_rows: list[dict[str, Any]], left_out: set[str]) -> None:
    assert len(sealed_rows) == len(plain_rows) > 0
    for one, other in zip(sealed_rows, plain_rows, strict=True):
        differing = {name for name in one if one[name] != other[name]} - left_out
        assert not differing, {name: (one[name], other[name]) for name in differing}


@pytest.mark.parametrize("name", ["tls12", "tls13"])
def test_exchanges_are_the_same(name: str, tmp_path: Path) -> None:
    path, keys, out = CAPTURES / f"{name}.pcap", CAPTURES / f"{name}.keys.log", tmp_path / "plain.pcap"
    made = kdissect.open(path, keylog=keys).redact(out, plain=True)
    assert made.decrypted == 5
    assert made.packets == kdissect.open(path).summary().packets
    before, after = rows(path, keys), rows(out)
    alike(before, after, OF_ADDRESSES | OF_PACKETS | OF_TLS)
    for one, other in zip(before, after, strict=True):
        for column in OF_PACKETS - {"network_kind"}:
            if one[column] is not None and other[column] is not None:
                assert abs(one[column] - other[column]) < 0.1
    connections = kdissect.open(out).table("connections").to_pylist()
    assert {row["tls"] for row in connections} == {None}
    assert sum(row["missing_bytes"] or 0 for row in connections) == 0
    for table in ("fetch_partitions", "produce_partitions", "groups", "offset_commits"):
        counts = [kdissect.open(*one).table(table).num_rows for one in ((path,), (out,))]
        assert counts[1] == kdissect.open(path, keylog=keys).table(table).num_rows, counts
    assert not kdissect.open(out).check().found


@pytest.mark.parametrize(("version", "pieces"), [(TLS12, 1), (TLS13, 3)])
def test_records_in_several_packets(version: Any, pieces: int, tmp_path: Path) -> None:
    ends = Ends(tmp_path, version)
    path, out = tmp_path / "sealed.pcap", tmp_path / "plain.pcap"
    path.write_bytes(pcap(sealed("zoo_kafka_python", ends, pieces)))
    kdissect.open(path, keylog=ends.keys).redact(out, plain=True)
    alike(rows(path, ends.keys), rows(out), OF_ADDRESSES | OF_PACKETS | OF_TLS)


def test_nothing_secret_is_left(tmp_path: Path) -> None:
    """What the plaintext holds and redaction takes out: values of records."""
    ends = Ends(tmp_path, TLS13)
    path, out = tmp_path / "sealed.pcap", tmp_path / "plain.pcap"
    path.write_bytes(pcap(sealed("zoo_kafka_python", ends)))
    kdissect.open(path, keylog=ends.keys).redact(out, plain=True)
    records = kdissect.open(path, keylog=ends.keys).table("records", reveal=True).to_pylist()
    values = {row["value"] for row in records if row["value"] and len(row["value"]) > 5}
    assert values
    data = out.read_bytes()
    assert not [value for value in values if value in data]


def test_without_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "x.pcap"
    with pytest.raises(UsageError, match="--keylog"):
        kdissect.open(CAPTURES / "tls13.pcap").redact(out, plain=True)
    assert main(["redact", str(CAPTURES / "tls13.pcap"), "--plain", "-o", str(out)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not out.exists()


@pytest.mark.parametrize("vlan", [b"", b"\x81\x00\x00\x07"])
def test_headers_of_ipv6(vlan: bytes) -> None:
    """Lengths and places in both families, behind VLAN tags too; a tunnel's headers are left alone."""
    tcp = struct.pack(">HHIIBBHHH", 40000, 9092, 77, 5, 8 << 4, 0x18, 9, 0xBEEF, 0) + bytes([1, 1, 5, 10, *range(8)])
    six = struct.pack(">IHBB", 6 << 28, len(tcp) + 3, 6, 64) + bytes(32)
    four = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(tcp) + 3, 1, 0, 64, 6, 0xBEEF) + bytes(8)
    for kind, ip in ((b"\x86\xdd", six), (b"\x08\x00", four)):
        packet = bytearray(bytes(12) + vlan + kind + ip + tcp + b"abc")
        at = 14 + len(vlan)
        places = unsealed._headers(packet, len(packet) - 3, 77)
        assert places == (at, at + len(ip))
        unsealed._without_sacks(packet, places[1] + 20, len(packet) - 3)
        made = unsealed._packet(packet, *places, len(packet) - 3, 99, b"plaintext")
        assert made.endswith(bytes([1]) * 12 + b"plaintext")
        length = int.from_bytes(made[at + 4 : at + 6] if ip is six else made[at + 2 : at + 4], "big")
        assert length == len(tcp) + 9 + (20 if ip is four else 0)
        assert made[places[1] + 4 : places[1] + 8] == bytes([0, 0, 0, 99])
        assert unsealed._headers(bytearray(40) + packet, 40 + len(packet) - 3, 77) is None


@pytest.mark.oracle
@pytest.mark.parametrize("name", ["tls12", "tls13"])
def test_tshark_reads_it(name: str, tmp_path: Path) -> None:
    """Checksums and sequence numbers are right, and every message is Kafka in its frame."""
    if shutil.which("tshark") is None:
        pytest.skip("tshark is not installed (apt install tshark)")
    out = tmp_path / "plain.pcap"
    kdissect.open(CAPTURES / f"{name}.pcap", keylog=CAPTURES / f"{name}.keys.log").redact(out, plain=True)
    port = kdissect.open(out).table("connections")["broker_port"][0].as_py()
    done = subprocess.run(
        ["tshark", "-r", out, "-o", "ip.check_checksum:TRUE", "-o", "tcp.check_checksum:TRUE", "-d",
         f"tcp.port=={port},kafka", "-T", "fields", "-e", "frame.number", "-e", "ip.checksum.status",
         "-e", "tcp.checksum.status", "-e", "kafka.correlation_id", "-e", "tcp.analysis.lost_segment",
         "-e", "tcp.analysis.ack_lost_segment", "-e", "tcp.analysis.retransmission", "-e", "tcp.len"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    lines = [line.split("\t") for line in done.stdout.splitlines()]
    assert {tuple(line[1:3]) for line in lines} == {("1", "1")}
    assert {tuple(line[4:7]) for line in lines} == {("", "", "")}
    frames = {int(line[0]) for line in lines if line[7] != "0"}
    exchanges = rows(out)
    told = {row[f"{side}_frame"] for row in exchanges for side in ("request", "response")} - {None}
    assert told <= frames
    sent = sum(len(packet.payload) for packet in wire.packets(out))
    assert sent == sum((row["request_bytes"] or 0) + (row["response_bytes"] or 0) for row in exchanges)

"""`cut` on recorded captures: the exchange cut out is the same, Wireshark's own tools open the file."""

from __future__ import annotations

import io
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import kdissect
from kdissect.problems import UsageError
from tests.conftest import ROOT

CAPTURES = ROOT / "captures"
SAME = (
    "api", "api_version", "correlation_id", "client_id", "status", "error_code", "error_count", "request_first_at",
    "request_last_at", "response_first_at", "response_last_at", "latency_ms", "request_transfer_ms",
    "response_transfer_ms", "queued_ms", "broker_ms", "request_bytes", "response_bytes", "client_ip", "client_port",
    "broker_ip", "broker_port", "in_flight", "decoded",
)  # fmt: skip
ALONE = [column for column in SAME if column not in ("queued_ms", "broker_ms", "in_flight")]
"""What an exchange without its connection's past still tells: the response before it is not there."""


def rows(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = kdissect.open(path).table("exchanges").to_pylist()
    return found


def pick(row: dict[str, Any], columns: Any = SAME) -> tuple[Any, ...]:
    return tuple(row[column] for column in columns)


@pytest.mark.parametrize(
    "name", ["base.pcap", "raw_reuse.pcap", "field_vxlan.pcap", "field_ip_fragments.pcap", "field_any_sll2.pcap",
             "field_be_us.pcap", "field_reordered.pcap", "field_two_interfaces.pcapng"],
)  # fmt: skip
def test_the_exchange_is_the_same(name: str, tmp_path: Path) -> None:
    """Under the same file name even its id is."""
    source = CAPTURES / name
    capture = kdissect.open(source)
    before = rows(source)
    for row in [before[0], before[len(before) // 2], before[-1]]:
        path = tmp_path / name
        capture.cut(path, exchange=row["exchange_id"])
        found = {r["exchange_id"]: r for r in rows(path)}
        assert pick(found[row["exchange_id"]]) == pick(row)
        assert len(found) <= len(before)
        capture.cut(path, exchange=row["exchange_id"], alone=True)
        assert pick(row, ALONE) in [pick(r, ALONE) for r in rows(path)]


def test_a_connection_is_whole(tmp_path: Path) -> None:
    source = CAPTURES / "base.pcap"
    capture = kdissect.open(source)
    connections = capture.table("connections").to_pylist()
    exchanges = rows(source)
    for connection in connections[:5]:
        path = tmp_path / "base.pcap"
        written = capture.cut(path, connection=connection["connection_id"][:12])
        assert written.packets == connection["packets"]
        (again,) = kdissect.open(path).table("connections").to_pylist()
        elsewhere = {"group_id": None}  # told by the client's other connections
        assert again | elsewhere == connection | elsewhere
        mine = [pick(r) for r in exchanges if r["connection_id"] == connection["connection_id"]]
        assert [pick(r) for r in rows(path)] == mine


def test_connections_with_the_same_endpoints_are_told_apart(tmp_path: Path) -> None:
    capture = kdissect.open(CAPTURES / "raw_reuse.pcap")
    connections = capture.table("connections").to_pylist()
    assert len({(c["client_ip"], c["client_port"], c["broker_port"]) for c in connections}) < len(connections)
    for connection in connections:
        written = capture.cut(tmp_path / "raw_reuse.pcap", connection=connection["connection_id"])
        assert written.packets == connection["packets"]
        (again,) = kdissect.open(tmp_path / "raw_reuse.pcap").table("connections").to_pylist()
        assert again["connection_id"] == connection["connection_id"]


def test_times(tmp_path: Path) -> None:
    """Every packet of that time, whatever it is."""
    capture = kdissect.open(CAPTURES / "base.pcap")
    exchanges = rows(CAPTURES / "base.pcap")
    middle = exchanges[len(exchanges) // 2]["request_first_at"]
    first = capture.cut(tmp_path / "a.pcap", end=middle)
    second = capture.cut(tmp_path / "b.pcap", start=middle)
    (packets,) = (row["value"] for row in capture.table("capture_quality").to_pylist() if row["measure"] == "packets")
    both = capture.cut(tmp_path / "c.pcap", start=middle, end=middle)
    assert first.packets + second.packets - both.packets == packets
    assert 0 < both.packets < first.packets


def test_rotated_sets_and_open_files(tmp_path: Path) -> None:
    source = CAPTURES / "field_rotated_C"
    capture = kdissect.open(source)
    row = capture.table("exchanges").to_pylist()[-1]
    buffer = io.BytesIO()
    written = capture.cut(buffer, exchange=row["exchange_id"])
    (tmp_path / "x.pcap").write_bytes(buffer.getvalue())
    assert written.packets > 0
    assert pick(row) in [pick(r) for r in rows(tmp_path / "x.pcap")]


def test_several_link_types_become_pcapng(tmp_path: Path) -> None:
    """Two captures of different link types in one directory: neither loses its packets."""
    sources = [CAPTURES / "field_any_sll.pcap", CAPTURES / "field_vlan.pcap"]
    capture = kdissect.open(sources)
    written = capture.cut(tmp_path / "both.pcapng", start="2000-01-01")
    assert written.format == "pcapng"
    apart = [kdissect.open(source).cut(io.BytesIO(), start="2000-01-01") for source in sources]
    assert [part.format for part in apart] == ["pcap", "pcap"]
    assert written.packets == sum(part.packets for part in apart)
    quality = kdissect.open(tmp_path / "both.pcapng").table("capture_quality").to_pylist()
    told = {row["measure"]: (row["value"], row["text"]) for row in quality if row["file"]}
    assert told["link_types"] == (2.0, "LINUX_SLL, EN10MB")
    assert told["tcp_packets"][0] == written.packets


def test_tls_keys_come_along(tmp_path: Path) -> None:
    """Wireshark decrypts the cut as it does the capture: the keys in a decryption secrets block are kept."""
    pcap, secret = (CAPTURES / "tls13.pcap").read_bytes(), b"CLIENT_RANDOM 00 11\n"
    source = tmp_path / "in.pcapng"
    source.write_bytes(_pcapng(pcap, secret))
    capture = kdissect.open(source)
    connection = capture.table("connections").to_pylist()[0]
    written = capture.cut(tmp_path / "out.pcapng", connection=connection["connection_id"])
    assert written.format == "pcapng"
    assert secret in (tmp_path / "out.pcapng").read_bytes()


def _pcapng(pcap: bytes, secret: bytes) -> bytes:
    import struct

    def block(kind: int, body: bytes) -> bytes:
        body += bytes(-len(body) % 4)
        return struct.pack("<II", kind, len(body) + 12) + body + struct.pack("<I", len(body) + 12)

    link = struct.unpack_from("<I", pcap, 20)[0]
    out = block(0x0A0D0D0A, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1))
    out += block(10, struct.pack("<II", 0x544C534B, len(secret)) + secret) + block(1, struct.pack("<HHI", link, 0, 0))
    at = 24
    while at < len(pcap):
        seconds, fraction, size, original = struct.unpack_from("<IIII", pcap, at)
        time = seconds * 1_000_000 + fraction
        out += block(
            6, struct.pack("<IIIII", 0, time >> 32, time & 0xFFFFFFFF, size, original) + pcap[at + 16 :][:size]
        )
        at += 16 + size
    return out


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        ({}, "say what to cut"),
        ({"exchange": "00:1", "connection": "00"}, "one thing"),
        ({"exchange": "0123456789abcdef:1"}, "no exchange of this capture"),
        ({"exchange": "rubbish"}, "no exchange id"),
        ({"connection": "0123456789abcdef"}, "no connection of this capture"),
        ({"connection": "xyz"}, "no connection id"),
        ({"frame": 1}, "completes no Kafka"),
        ({"frame": -1}, "frames are numbered from 1"),
        ({"start": "soon"}, "not a time"),
        ({"connection": "00", "alone": True}, "exchange or a frame"),
    ],
)
def test_bad_wishes(wish: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=words):
        kdissect.open(CAPTURES / "base_tiny.pcap").cut(tmp_path / "x.pcap", **wish)
    assert not list(tmp_path.iterdir())


@pytest.mark.oracle
@pytest.mark.parametrize("name", ["base.pcap", "field_two_interfaces.pcapng", "field_snap96.pcap"])
def test_tshark_opens_it(name: str, tmp_path: Path) -> None:
    """Without a complaint, and it counts the same packets with the same times."""
    if shutil.which("tshark") is None:
        pytest.skip("tshark is not installed (apt install tshark)")
    written = kdissect.open(CAPTURES / name).cut(tmp_path / "x", start="2000-01-01")
    fields = ["-T", "fields", "-e", "frame.time_epoch", "-e", "frame.len", "-e", "frame.cap_len", "-e", "tcp.seq_raw"]
    theirs = [
        subprocess.run(["tshark", "-r", path, "-Y", "ip", *fields], capture_output=True, text=True, check=True)
        for path in (CAPTURES / name, tmp_path / "x")
    ]
    assert theirs[0].stdout == theirs[1].stdout
    assert theirs[1].stdout.count("\n") == written.packets
    complaints = [line for line in theirs[1].stderr.splitlines() if "Running as user" not in line]
    assert complaints == []


@pytest.mark.parametrize(
    ("wish", "where"),
    [
        ({"client": "kp-consumer"}, "client_id = 'kp-consumer'"),
        ({"where": "api = 'Produce' and response_bytes > 0"}, "api = 'Produce' and response_bytes > 0"),
        ({"group": "kp-group", "where": "api = 'JoinGroup'"}, "api = 'JoinGroup'"),
    ],
)
def test_whole_connections_of_what_is_wanted(wish: dict[str, str], where: str, captures: Path, tmp_path: Path) -> None:
    opened = kdissect.open(captures / "k4_python_kafka.pcap")
    target = tmp_path / "k4_python_kafka.pcap"  # its name is part of connections' ids
    assert opened.cut(target, **wish).packets > 0
    wanted = set(opened.table("exchanges", ["connection_id"], where)["connection_id"].to_pylist())
    columns = ["exchange_id", "api", "latency_ms", "status"]
    kept = [row for row in opened.table("exchanges", columns).to_pylist() if row["exchange_id"][:16] in wanted]
    assert kdissect.open(target).table("exchanges", columns).to_pylist() == kept


def test_topics_and_what_is_not_there(captures: Path, tmp_path: Path) -> None:
    opened = kdissect.open(captures / "k4_python_kafka.pcap")
    topic = opened.table("fetch_partitions", ["topic"], "record_bytes > 0")["topic"][0].as_py()
    opened.cut(tmp_path / "topic.pcap", topic=topic)
    left = kdissect.open(tmp_path / "topic.pcap").table("fetch_partitions", ["topic"])["topic"].to_pylist()
    assert topic in left
    with pytest.raises(UsageError, match="no connection of this capture"):
        opened.cut(tmp_path / "none.pcap", client="nobody")
    with pytest.raises(UsageError, match="cut one thing"):
        opened.cut(tmp_path / "none.pcap", client="kp-consumer", frame=40)

"""Names of addresses: hosts files, lists of Kubernetes, name blocks of pcapng; what is unknown stays an address."""

from __future__ import annotations

import ipaddress
import json
import struct
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import kdissect
from kdissect.capture.name_blocks import NAME_LENGTH, names_in_block
from kdissect.cli.commands import main
from kdissect.problems import UsageError
from kdissect.tables.host_names import read_names
from tests.conftest import CAPTURES

BASE = CAPTURES / "base_tiny.pcap"
CLIENT, BROKER = "192.0.2.2", "192.0.2.1"


def item(kind: str, name: str, **parts: Any) -> dict[str, Any]:
    return {"kind": kind, "metadata": {"namespace": "shop", "name": name}, **parts}


def pod(name: str, ip: str, phase: str = "Running", **spec: Any) -> dict[str, Any]:
    return item("Pod", name, spec=spec, status={"phase": phase, "podIP": ip, "podIPs": [{"ip": ip}]})


def endpoints(service: str, *pods: tuple[str, str]) -> dict[str, Any]:
    found = [{"ip": ip, "targetRef": {"kind": "Pod", "name": name, "namespace": "shop"}} for name, ip in pods]
    return item("Endpoints", service, subsets=[{"addresses": found}])


def written(folder: Path, *items: Any) -> Path:
    path = folder / "cluster.json"
    path.write_text(json.dumps({"kind": "List", "apiVersion": "v1", "items": list(items)}))
    return path


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    return written(
        tmp_path,
        pod("kafka-0", BROKER, subdomain="brokers", hostname="kafka-0"),
        pod("orders-7d9", CLIENT),
        pod("done", CLIENT, "Succeeded"),
        item("Service", "orders", spec={"clusterIP": "10.96.0.7", "clusterIPs": ["10.96.0.7", "fd00::7"]}),
        item("Service", "brokers", spec={"clusterIP": "None"}),
        endpoints("orders", ("orders-7d9", CLIENT)),
    )


def test_pods_services_and_endpoints_have_the_names_of_their_dns(cluster: Path) -> None:
    assert read_names([cluster]) == {
        BROKER: "kafka-0.brokers.shop.svc",
        CLIENT: "orders-7d9.orders.shop.svc",
        "10.96.0.7": "orders.shop.svc",
        "fd00::7": "orders.shop.svc",
    }


def test_an_address_of_a_node_is_the_nodes(tmp_path: Path) -> None:
    pods = [pod(name, "10.1.1.1", hostNetwork=True, nodeName="node-3") for name in ("proxy", "agent")]
    assert read_names([written(tmp_path, *pods, pod("alone", "10.1.1.2"))]) == {
        "10.1.1.1": "node-3", "10.1.1.2": "alone.shop.pod",
    }  # fmt: skip


def test_lists_with_anything_in_them_are_read(tmp_path: Path) -> None:
    odd = [None, 7, {}, {"kind": "Pod"}, item("Pod", "x", status={"podIP": 5}), item("Endpoints", "e", subsets=[3, {}])]
    assert read_names([written(tmp_path, *odd)]) == {}


def test_hosts_are_read_as_the_system_reads_them(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text(
        "# none\n\n10.0.0.1 one one.example # first\n10.0.0.1 late\nfe80::1%lo0 link\n::ffff:10.0.0.2 two\n"
    )
    assert read_names([path]) == {"10.0.0.1": "one", "fe80::1": "link", "10.0.0.2": "two"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("broker one\n", "line 1: a line has an address and a name"),
        ("10.0.0.1\n", "line 1: a line has an address and a name"),
        ('{"kind": "List", "items": []}', "has no pods, services or endpoints"),
        ("{nothing", "begins like JSON and is none"),
        ("{" * 100_000, "begins like JSON and is none"),
    ],
)
def test_other_files_are_one_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "hosts"
    path.write_text(text)
    with pytest.raises(UsageError, match=message):
        read_names([path])
    with pytest.raises(UsageError, match="No such file"):
        read_names([tmp_path / "absent"])


def test_tables_filters_and_screens_have_them(cluster: Path, tmp_path: Path) -> None:
    capture = kdissect.open(BASE, hosts=cluster)
    for table in ("exchanges", "connections"):
        rows = capture.table(table, ["client_ip", "client_name", "broker_ip", "broker_name"]).to_pylist()
        names = {CLIENT: "orders-7d9.orders.shop.svc", BROKER: "kafka-0.brokers.shop.svc"}
        assert rows
        for row in rows:
            assert row["client_name"] == names[row["client_ip"]]
            assert row["broker_name"] == names[row["broker_ip"]]
    some = capture.table("exchanges", ["api"], where="broker_name like 'kafka-%.svc'")
    assert some.num_rows == capture.table("exchanges", ["api"]).num_rows
    assert kdissect.open(BASE, hosts=cluster, client="orders-7d9.orders.shop.svc").table("exchanges").num_rows
    assert not kdissect.open(BASE, hosts=cluster, broker="orders-7d9.orders.shop.svc").table("exchanges").num_rows
    shown = CliRunner().invoke(main, [str(BASE), "--hosts", str(cluster)], env={"COLUMNS": "160"}).output
    assert "orders-7d9.orders.shop.svc" in shown
    assert "kafka-0.brokers.shop.svc:39098" in shown
    folder = tmp_path / "tables"
    capture.save(folder)
    import pyarrow.parquet as pq

    assert set(pq.read_table(folder / "exchanges.parquet")["client_name"].to_pylist()) == {names[CLIENT]}


def test_unknown_addresses_stay(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text(f"{BROKER} broker-one\n")
    capture = kdissect.open(BASE, hosts=tmp_path / "hosts")
    rows = capture.table("connections", ["client_ip", "client_name", "broker_name"]).to_pylist()
    assert {(row["client_ip"], row["client_name"], row["broker_name"]) for row in rows} == {
        (CLIENT, None, "broker-one")
    }
    assert (
        CLIENT
        in CliRunner().invoke(main, [str(BASE), "--hosts", str(tmp_path / "hosts")], env={"COLUMNS": "160"}).output
    )


def test_hostile_names_are_escaped(tmp_path: Path) -> None:
    path = written(tmp_path, pod("\x1b[2J\u202eevil", CLIENT))
    for more in ([], ["--table", "connections", "--columns", "client_name"]):
        shown = CliRunner().invoke(main, [str(BASE), "--hosts", str(path), *more], env={"COLUMNS": "160"}).output
        assert "evil" in shown
        assert "\x1b" not in shown
        assert "\u202e" not in shown


def block(records: list[tuple[int, bytes]], order: str = "<") -> bytes:
    """A name resolution block."""
    body = b"".join(
        struct.pack(order + "HH", kind, len(value)) + value + bytes(-len(value) % 4) for kind, value in records
    )
    size = len(body) + 16
    return struct.pack(order + "II", 4, size) + body + struct.pack(order + "HHI", 0, 0, size)


def names_of(address: str, *names: bytes) -> tuple[int, bytes]:
    packed = ipaddress.ip_address(address).packed
    return (1 if len(packed) == 4 else 2), packed + b"".join(name + b"\0" for name in names)


@pytest.mark.parametrize("where", ["first", "last"])
def test_names_that_a_capture_carries(tmp_path: Path, where: str) -> None:
    """Before the packets and behind them: rows of packets before it have the names, too."""
    data = pcapng_of(BASE)
    names = block([names_of(CLIENT, b"client.example", b"alias"), names_of("2001:db8::1", b"other")])
    head = struct.unpack_from("<I", data, 4)[0]
    path = tmp_path / "named.pcapng"
    path.write_bytes(data[:head] + names + data[head:] if where == "first" else data + names)
    for table in ("exchanges", "connections"):
        rows = kdissect.open(path).table(table, ["client_name", "broker_name"]).to_pylist()
        assert {tuple(row.values()) for row in rows} == {("client.example", None)}
    kdissect.open(path).save(tmp_path / "tables")
    import pyarrow.parquet as pq

    assert set(pq.read_table(tmp_path / "tables" / "exchanges.parquet")["client_name"].to_pylist()) == {
        "client.example"
    }
    (tmp_path / "hosts").write_text(f"{CLIENT} mine\n")
    given = kdissect.open(path, hosts=tmp_path / "hosts").table("exchanges", ["client_name"])
    assert set(given["client_name"].to_pylist()) == {"mine"}


def pcapng_of(path: Path) -> bytes:
    """A pcap of microseconds as pcapng with one interface."""
    data = path.read_bytes()
    (link,) = struct.unpack_from("<I", data, 20)
    made = struct.pack("<IIIHHqI", 0x0A0D0D0A, 28, 0x1A2B3C4D, 1, 0, -1, 28)
    made += struct.pack("<IIHHII", 1, 20, link & 0xFFFF, 0, 0, 20)
    at = 24
    while at < len(data):
        seconds, part, captured, original = struct.unpack_from("<IIII", data, at)
        time, packet = seconds * 1_000_000 + part, data[at + 16 : at + 16 + captured]
        packet += bytes(-captured % 4)
        size = 32 + len(packet)
        made += struct.pack("<IIIIIII", 6, size, 0, time >> 32, time & 0xFFFFFFFF, captured, original)
        made += packet + struct.pack("<I", size)
        at += 16 + captured
    return made


@pytest.mark.parametrize("order", ["<", ">"])
def test_a_block_of_either_order(order: str) -> None:
    found = block([names_of("10.0.0.1", b"one"), (3, b"anything"), names_of("::ffff:10.0.0.2", b"two")], order)
    assert list(names_in_block(found, order == ">")) == [("10.0.0.1", "one"), ("10.0.0.2", "two")]


def test_every_cut_of_a_block_is_read_to_where_it_is_whole() -> None:
    whole = block([names_of("10.0.0.1", b"x" * 1000), names_of("10.0.0.2", b"two")])
    for size in range(len(whole)):
        assert len(list(names_in_block(whole[:size], False))) <= 2
    lying = bytearray(whole)
    lying[10:12] = b"\xff\xff"
    assert list(names_in_block(bytes(lying), False)) == []
    assert NAME_LENGTH < 1000

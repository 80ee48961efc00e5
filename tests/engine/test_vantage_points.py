"""Several captures of the same traffic at once: each exchange is told once, whatever the order of arguments; the
interfaces of one file share theirs, each packet counts once."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import kdissect
from kdissect.tables.declaration import SCHEMAS
from tests.capture.build import Packet, enhanced, ethernet, interface, ip4, option, read_pcap, section, udp
from tests.oracle.material import CAPTURES

TINY = CAPTURES / "base_tiny.pcap"
MS = 1_000_000
Seen = tuple[int, int, bytes]  # time in ns, interface, bytes
EXCHANGE = [
    "client_port", "api", "api_version", "correlation_id", "status", "error_code", "request_first_at",
    "request_last_at", "response_first_at", "response_last_at", "latency_ms", "queued_ms", "broker_ms", "request_bytes",
    "response_bytes", "in_flight", "decoded", "hold",
]  # fmt: skip
CONNECTION = [
    "client_port", "started_at", "ended_at", "start_seen", "end_reason", "bytes", "retransmitted_bytes",
    "out_of_order_packets", "missing_bytes", "zero_window_ms", "rtt_ms", "exchanges", "problems",
]  # fmt: skip


def test_two_files_of_one_traffic_are_one(tmp_path: Path) -> None:
    """Recorded at the client and at the broker: the files have one name in two folders. Each exchange is told once,
    whatever the order of arguments."""
    paths = []
    for place in ("client", "broker"):
        (tmp_path / place).mkdir()
        paths.append(tmp_path / place / "cap.pcap")
        paths[-1].write_bytes(TINY.read_bytes())
    alone = kdissect.open(TINY).table("exchanges")
    both = [kdissect.open(given).table("exchanges") for given in (paths, paths[::-1])]
    assert both[0].equals(both[1])
    told = [name for name in EXCHANGE if name in alone.column_names]
    assert sorted(map(str, both[0].select(told).to_pylist())) == sorted(map(str, alone.select(told).to_pylist()))
    assert len(set(both[0]["capture"].to_pylist())) == 1


def test_copies_in_one_capture_count_once() -> None:
    """Both ends of a veth in one file: every packet twice, every exchange once."""
    short = kdissect.open(CAPTURES / "base_short.pcap").table("exchanges", ["api", "correlation_id", "latency_ms"])
    twice = kdissect.open(CAPTURES / "field_duplicates.pcap").tables(["exchanges", "connections"])
    assert twice["exchanges"].select(short.column_names).equals(short)
    counts = [twice["connections"][name].to_pylist() for name in ("packets", "duplicated_packets")]
    assert counts[0] == counts[1]
    assert sum(counts[0]) == 254
    assert "each once" in SCHEMAS["connections"].field("packets").metadata[b"doc"].decode()


def written(seen: list[Seen], links: tuple[int, ...] = (1, 1), names: tuple[str, ...] = ()) -> bytes:
    """A pcapng file with these interfaces; the first ones have names."""
    options = [option(2, name.encode()) for name in names] + [b""] * (len(links) - len(names))
    blocks = [section()]
    for link, named in zip(links, options, strict=True):
        blocks.append(interface(link=link, options=named + option(9, b"\x09")))
    return b"".join([*blocks, *(enhanced(time, data, number=number) for time, number, data in seen)])


def told(file: bytes) -> dict[str, pa.Table]:
    columns = {"exchanges": EXCHANGE, "connections": [*CONNECTION, "duplicated_packets"]}
    return kdissect.open(io.BytesIO(file)).tables(columns)


def rows(tables: dict[str, pa.Table], table: str, columns: list[str]) -> list[str]:
    return sorted(map(str, tables[table].select(columns).to_pylist()))


def duplicates(tables: dict[str, pa.Table]) -> int:
    return sum(tables["connections"]["duplicated_packets"].to_pylist())


def assert_same(found: dict[str, pa.Table], alone: dict[str, pa.Table]) -> None:
    assert rows(found, "exchanges", EXCHANGE) == rows(alone, "exchanges", EXCHANGE)
    assert rows(found, "connections", CONNECTION) == rows(alone, "connections", CONNECTION)


def in_time(seen: list[Seen]) -> list[Seen]:
    return sorted(seen, key=lambda row: row[0])


def lagging(packets: list[Packet], lag: int, second: int = 1) -> list[Seen]:
    """Every packet again on the second interface, so much later."""
    both = [(time + late, number, data) for time, data in packets for number, late in ((0, 0), (second, lag))]
    return in_time(both)


def in_bursts(packets: list[Packet], size: int, second: int = 1) -> list[Seen]:
    """So many packets of the first interface, then their copies."""
    out: list[Seen] = []
    for at in range(0, len(packets), size):
        part = packets[at : at + size]
        out += [(time, 0, data) for time, data in part]
        out += [(part[-1][0] + 50_000, second, data) for _, data in part]
    return out


def packets_of(name: str) -> list[Packet]:
    return read_pcap(CAPTURES / name)


NAMES = ["base_tiny.pcap", "base.pcap", "k4_mtu1500.pcap"]
LAGS = [0, 20_000, MS, 50 * MS, 500 * MS, 5_000 * MS]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("lag", LAGS)
def test_a_second_interface_changes_nothing(name: str, lag: int) -> None:
    """Copies are no retransmissions however late: rows and TCP figures are those of the first interface."""
    packets = packets_of(name)
    alone = told(written([(time, 0, data) for time, data in packets]))
    both = told(written(lagging(packets, lag)))
    assert_same(both, alone)
    assert duplicates(both) == duplicates(alone) + len(packets)


@pytest.mark.parametrize("size", [10, 200, 1000])
def test_bursts_between_the_copies(size: int) -> None:
    packets = packets_of("base.pcap")
    alone = told(written([(time, 0, data) for time, data in packets]))
    both = told(written(in_bursts(packets, size)))
    assert_same(both, alone)
    assert duplicates(both) == duplicates(alone) + len(packets)


@pytest.mark.parametrize("lag", LAGS)
def test_copies_of_one_interface(lag: int) -> None:
    """mergecap gives two files of one kind a single interface: IP ids that count up tell copies from retransmissions.
    Of each connection only its last packets may be taken for new ones: resets have no id."""
    packets = packets_of("base.pcap")
    alone = told(written([(time, 0, data) for time, data in packets]))
    both = told(written(lagging(packets, lag, 0)))
    columns = [name for name in CONNECTION if name != "ended_at"]
    assert rows(both, "exchanges", EXCHANGE) == rows(alone, "exchanges", EXCHANGE)
    assert rows(both, "connections", columns) == rows(alone, "connections", columns)
    assert duplicates(both) >= duplicates(alone) + len(packets) - both["connections"].num_rows


@pytest.mark.parametrize("numbered", [True, False])
@pytest.mark.parametrize("late", [30 * MS, 300 * MS])
def test_retransmissions_stay_what_they_are(numbered: bool, late: int) -> None:
    """A segment sent again has an IP id of its own, or none."""
    packets = packets_of("base.pcap")
    again = [(time + late, 0, data) for time, data in packets if len(data) - 34 - (data[46] >> 4) * 4 > 1]
    bytes_again = sum(len(data) - 34 - (data[46] >> 4) * 4 for _, _, data in again)
    ids: dict[bytes, int] = {}
    seen: list[Seen] = []
    for time, number, data in in_time([*((time, 0, data) for time, data in packets), *again]):
        ends = data[26:38]
        ids[ends] = ids.get(ends, 65_000) + 1
        seen.append((time, number, data[:18] + struct.pack(">H", ids[ends] & 0xFFFF if numbered else 0) + data[20:]))
    alone = told(written([(time, 0, data) for time, data in packets]))
    both = told(written(seen))
    columns = [
        name for name in EXCHANGE if name not in ("queued_ms", "broker_ms", "hold")
    ]  # net of what was sent again
    assert rows(both, "exchanges", columns) == rows(alone, "exchanges", columns)
    assert duplicates(both) == 0
    sums = [sum(table["connections"]["retransmitted_bytes"].to_pylist()) for table in (alone, both)]
    assert sums[1] - sums[0] == bytes_again > 0


@pytest.mark.parametrize("lag", [0, MS])
@pytest.mark.parametrize("every", [7, 20])
def test_what_one_interface_lost_the_other_has(lag: int, every: int) -> None:
    packets = packets_of("base.pcap")
    alone = told(written([(time, 0, data) for time, data in packets]))
    seen = lagging(packets, lag)
    lost = {data for i, (_, data) in enumerate(packets) if i % every == 3}
    lost_there = {data for i, (_, data) in enumerate(packets) if i % every == 5}
    kept = [row for row in seen if row[2] not in (lost_there if row[1] else lost)]
    both = told(written(kept))
    columns = ["client_port", "api", "correlation_id", "status", "request_bytes", "response_bytes", "decoded"]
    assert rows(both, "exchanges", columns) == rows(alone, "exchanges", columns)
    for name in ("missing_bytes", "retransmitted_bytes"):
        assert both["connections"][name].to_pylist() == alone["connections"][name].to_pylist()


def test_each_direction_on_an_interface_of_its_own() -> None:
    """Asymmetric routes: requests on one interface, responses on the other, nothing twice."""
    packets = packets_of("base.pcap")
    alone = told(written([(time, 0, data) for time, data in packets]))
    both = told(written([(time, int(data[34:36] < data[36:38]), data) for time, data in packets]))
    assert_same(both, alone)
    assert duplicates(both) == duplicates(alone)


def vxlan(data: bytes) -> bytes:
    return ethernet(ip4(udp(struct.pack(">BBHI", 8, 0, 0, 77 << 8) + data, 4789), 17))


def cooked(data: bytes, index: int, kind: int) -> bytes:
    """The packet as LINUX_SLL2 has it."""
    return struct.pack(">HHIHBB8s", 0x0800, 0, index, 1, kind, 6, bytes(8)) + data[14:]


@pytest.mark.parametrize("lag", [30_000, 300 * MS])
@pytest.mark.parametrize(
    ("wrapped", "links"),
    [
        pytest.param(lambda data: (data, vxlan(data)), (1,), id="inner first"),
        pytest.param(lambda data: (vxlan(data), data), (1,), id="outer first"),
        pytest.param(lambda data: (cooked(data, 3, 0), cooked(data, 7, 4)), (276,), id="any"),
    ],
)
def test_one_packet_in_two_wrappings(
    lag: int, wrapped: Callable[[bytes], tuple[bytes, bytes]], links: tuple[int, ...]
) -> None:
    packets = packets_of("base.pcap")
    alone = told(written([(time, 0, data) for time, data in packets]))
    seen = [(time + i * lag, 0, data) for time, packet in packets for i, data in enumerate(wrapped(packet))]
    both = told(written(in_time(seen), links))
    assert_same(both, alone)
    assert duplicates(both) == duplicates(alone) + len(packets)


def test_segments_cut_differently() -> None:
    """The sender's interface shows segments before offload cuts them, the receiver's what the network carried."""
    packets = packets_of("base.pcap")
    alone = told(written([(time, 0, data) for time, data in packets]))
    seen: list[Seen] = []
    for time, data in packets:
        seen.append((time, 0, data))
        header = 34 + (data[46] >> 4) * 4
        size = struct.unpack_from(">H", data, 16)[0] + 14 - header
        sequence = struct.unpack_from(">I", data, 38)[0]
        for at in range(0, max(size, 1), 500):
            part = data[header + at : header + min(at + 500, size)]
            total = struct.pack(">H", header - 14 + len(part))
            number = struct.pack(">I", (sequence + at) & 0xFFFFFFFF)
            cut = data[:16] + total + data[18:38] + number + data[42:header] + part
            seen.append((time + 2 * MS, 1, cut))
    assert_same(told(written(in_time(seen))), alone)


def test_capture_quality_counts_copies() -> None:
    packets = packets_of("base_tiny.pcap")
    table: Any = kdissect.open(io.BytesIO(written(lagging(packets, 500 * MS)))).table("capture_quality")
    measures = {row["measure"]: row["value"] for row in table.to_pylist()}
    assert measures["duplicated_packets"] == len(packets)
    before = kdissect.open(TINY).table("connections", ["retransmitted_bytes"])
    assert measures["retransmitted_bytes"] == sum(before["retransmitted_bytes"].to_pylist())

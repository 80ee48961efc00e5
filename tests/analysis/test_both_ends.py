"""Captures that saw the same connections are one: each exchange once, what each way took, how the clocks stand, on a
recording of both ends."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import zstandard

import kdissect
from kdissect.analysis.sights import both_ends
from kdissect.analysis.sights.clocks import Place
from kdissect.tables.declaration import TABLES
from tests.analysis.read import CAPTURES
from tests.engine.test_vantage_points import written

CLIENT, BROKER = (CAPTURES / "stories" / f"net_delay_{end}.pcap.zst" for end in ("client", "broker"))
DELAYED_AT = datetime(2026, 11, 22, 1, 10, 20, 205_000, tzinfo=UTC)
"""When the way to the broker took 80 ms more, and a moment for what was under way."""
PARTS = ["request_transfer_ms", "network_ms", "queued_ms", "broker_ms", "response_transfer_ms"]


def plain(source: Path) -> bytearray:
    data = source.read_bytes()
    return bytearray(zstandard.ZstdDecompressor().stream_reader(data).read() if source.suffix == ".zst" else data)


def changed(source: Path, target: Path, change: Callable[[int, bytearray, int, int], int]) -> Path:
    """The same capture with other packets: `change` gets a packet's time (ns), the file, and where the packet lies, and
    gives its time."""
    data = plain(source)
    tick = 1 if data[:4] == b"\x4d\x3c\xb2\xa1" else 1000
    at = 24
    while at < len(data):
        seconds, part, size = struct.unpack_from("<III", data, at)
        now = change(seconds * 10**9 + part * tick, data, at + 16, size)
        struct.pack_into("<II", data, at, now // 10**9, now % 10**9 // tick)
        at += 16 + size
    target.write_bytes(data)
    return target


def with_clock(source: Path, target: Path, ms: float, ppm: float) -> Path:
    """The same capture by a clock that shows so much more, and runs so much faster."""
    first: list[int] = []

    def change(now: int, data: bytearray, at: int, size: int) -> int:
        first.append(now) if not first else None
        return now + int(ms * 1e6 + (now - first[0]) * ppm / 1e6)

    return changed(source, target, change)


def translated(source: Path, target: Path) -> Path:
    """The same capture behind NAT: the client's address and ports are others (checksums are not looked at)."""

    def change(now: int, data: bytearray, at: int, size: int) -> int:
        ip = at + 14
        for address, port in ((ip + 12, ip + 20), (ip + 16, ip + 22)):
            if data[address : address + 4] == bytes([10, 55, 1, 2]):
                data[address : address + 4] = bytes([192, 168, 7, 9])
                struct.pack_into(">H", data, port, struct.unpack_from(">H", data, port)[0] ^ 0x1234)
        return now

    return changed(source, target, change)


def other_places(connections: pa.Table) -> dict[str, list[tuple[str, str | None, str]]]:
    """By connection id, the column `sights`."""
    return {row["connection_id"]: [tuple(place.values()) for place in row["sights"]] for row in connections.to_pylist()}


def connection_ids(path: Path, *columns: str) -> dict[tuple[Any, ...], str]:
    """The ids of a capture's connections when it is read alone, by these columns."""
    rows = kdissect.open(path).table("connections", ["connection_id", *columns]).to_pylist()
    return {tuple(row[name] for name in columns): row["connection_id"] for row in rows}


def column(table: pa.Table, name: str) -> Any:
    return table[name].to_numpy(zero_copy_only=False)


@pytest.fixture(scope="module")
def alone() -> dict[str, pa.Table]:
    return kdissect.open(CLIENT).tables(["exchanges", "connections", "fetches", "produces"])


@pytest.mark.parametrize(("ms", "ppm"), [(0.0, 0.0), (37.0, 50.0)])
def test_both_ends_of_a_wire_whose_way_up_became_slow(
    tmp_path: Path, alone: dict[str, pa.Table], ms: float, ppm: float
) -> None:
    broker = with_clock(BROKER, tmp_path / "broker.pcap", ms, ppm)
    capture = kdissect.open([broker, CLIENT])
    found = capture.tables(["exchanges", "connections", "fetches", "produces", "clock_offsets"])
    (row,) = found["clock_offsets"].to_pylist()
    assert (row["first"], row["second"]) == ("net_delay_client.pcap.zst", "broker.pcap")
    assert row["offset_ms"] == pytest.approx(-ms, abs=0.2)
    assert row["drift_ppm"] == pytest.approx(-ppm, abs=10)
    assert 0 <= row["uncertainty_ms"] < 0.3
    for name, table in alone.items():  # no row twice, and each as the client's file has it
        ids = next(one for one in ("exchange_id", "connection_id") if one in table.column_names)
        assert sorted(found[name][ids].to_pylist()) == sorted(table[ids].to_pylist()), name
    there = connection_ids(broker, "client_ip", "client_port")
    here = connection_ids(CLIENT, "client_ip", "client_port")
    assert other_places(found["connections"]) == {
        here[client]: [("broker.pcap", None, there[client])] for client in here
    }
    exchanges = found["exchanges"]
    assert exchanges["latency_ms"].equals(alone["exchanges"]["latency_ms"])
    assert set(exchanges["network_kind"].to_pylist()) == {"both_ends"}
    late = np.array([at > DELAYED_AT for at in exchanges["request_first_at"].to_pylist()])
    up, down = column(exchanges, "network_up_ms"), column(exchanges, "network_down_ms")
    assert np.median(up[late]) == pytest.approx(80.2, abs=0.5)
    assert 0.3 <= np.median(down[late]) <= 0.5
    assert np.median(up[~late]) < 0.5
    parts = np.sum([np.nan_to_num(column(exchanges, name)) for name in PARTS], axis=0)
    assert np.abs(parts - column(exchanges, "latency_ms")).max() < 0.002
    assert min(np.nanmin(column(exchanges, name)) for name in PARTS) >= 0
    at_the_broker = kdissect.open(broker).table("exchanges", ["client_port", "correlation_id", "broker_ms"])
    key = [column(exchanges, "client_port").astype(np.int64) * 2**32 + column(exchanges, "correlation_id")]
    key.append(column(at_the_broker, "client_port").astype(np.int64) * 2**32 + column(at_the_broker, "correlation_id"))
    _, mine, theirs = np.intersect1d(*key, return_indices=True)
    off = np.abs(column(exchanges, "broker_ms")[mine] - column(at_the_broker, "broker_ms")[theirs])
    assert len(mine) > 1200
    assert np.quantile(off, 0.95) < 0.2
    ways = capture.analysis.both_ends()
    assert ways.num_rows == len(set(ways["first_exchange_id"].to_pylist())) == exchanges.num_rows


def test_behind_nat(tmp_path: Path, alone: dict[str, pa.Table]) -> None:
    """Other addresses and ports, the same sequence numbers."""
    outside = translated(CLIENT, tmp_path / "inside.pcap")
    found = kdissect.open([outside, BROKER]).tables(["exchanges", "connections", "clock_offsets"])
    places = other_places(found["connections"])
    assert places.keys() == set(connection_ids(outside, "client_port").values())
    assert {place for places in places.values() for place in places} == {
        (BROKER.name, None, one) for one in connection_ids(BROKER, "client_port").values()
    }
    assert found["exchanges"].num_rows == alone["exchanges"].num_rows
    assert set(found["exchanges"]["capture"].to_pylist()) == {"inside.pcap"}
    assert found["clock_offsets"]["connections"].to_pylist() == [alone["connections"].num_rows]


def test_one_capture_began_later_and_ended_earlier(tmp_path: Path, alone: dict[str, pa.Table]) -> None:
    """What one has not is told by the other: each exchange once, whole where any capture has it whole."""
    times = sorted(at for at in alone["exchanges"]["request_first_at"].to_pylist())
    begin, end = times[300], times[900]
    part = tmp_path / "part.pcap"
    kdissect.open(CLIENT).cut(part, start=begin, end=end)
    for other, least in ((BROKER, 1), (CLIENT, 0)):
        both = kdissect.open([part, other])
        found = both.table("exchanges", ["capture", "status", "client_port", "correlation_id"])
        keys = list(zip(*(found[name].to_pylist() for name in ("client_port", "correlation_id")), strict=True))
        assert len(keys) == len(set(keys)) == alone["exchanges"].num_rows
        assert set(found["status"].to_pylist()) == set(alone["exchanges"]["status"].to_pylist())
        assert len(set(found["capture"].to_pylist())) >= 1 + least
        connections = both.table("connections")
        places = other_places(connections)
        both_told = {one for named in places.values() for _, _, one in named} & places.keys()
        assert len(both_told) >= 2 * least
        assert all(one in {told for _, _, told in places[places[one][0][2]]} for one in both_told)


def test_three_places_that_hold_a_connection(tmp_path: Path) -> None:
    """Each of the two that are not told is named, in the order of the captures."""
    middle = translated(BROKER, tmp_path / "middle.pcap")
    connections = kdissect.open([middle, BROKER, CLIENT]).table("connections")
    assert connections.num_rows == len(connection_ids(CLIENT, "client_port"))
    assert set(connections["capture"].to_pylist()) == {CLIENT.name}
    for places in other_places(connections).values():
        assert [capture for capture, _, _ in places] == ["middle.pcap", BROKER.name]


@pytest.mark.parametrize("captures", [2, 3])
def test_a_response_without_its_request_comes_once(captures: int, tmp_path: Path) -> None:
    """Captures that began in the middle of a connection."""
    part = tmp_path / "part0.pcap"
    times = sorted(kdissect.open(CLIENT).table("exchanges")["response_first_at"].drop_null().to_pylist())
    kdissect.open(CLIENT).cut(part, start=times[300], end=times[900])
    paths = [part, *(part.with_name(f"part{number}.pcap") for number in range(1, captures))]
    for path in paths[1:]:
        shutil.copy(part, path)
    expected = kdissect.open(part).table("exchanges", ["status", "correlation_id"])
    assert "orphan" in expected["status"].to_pylist()
    found = kdissect.open(paths).table("exchanges", ["status", "correlation_id"])
    assert sorted(map(str, found.to_pylist())) == sorted(map(str, expected.to_pylist()))


def test_a_copy_is_the_same_capture(tmp_path: Path) -> None:
    """Every table has what one of the two has by itself."""
    source = CAPTURES / "base_short.pcap"
    (tmp_path / "copy.pcap").write_bytes(source.read_bytes())
    # The network of a copy is measured, so the ledger of time has other owners.
    other = ("capture_quality", "clock_offsets", "records", "findings", "time_ledger")
    names = [name for name in TABLES if name not in other]
    one = kdissect.open(source).tables(names)
    both = kdissect.open([source, tmp_path / "copy.pcap"]).tables(names)
    for name in names:
        if name not in ("api_versions", "topics", "leaders", "problems"):
            assert both[name].num_rows == one[name].num_rows, name
    assert (
        both["exchanges"]
        .drop_columns(["network_kind", "network_up_ms", "network_down_ms"])
        .equals(one["exchanges"].drop_columns(["network_kind", "network_up_ms", "network_down_ms"]))
    )


def test_captures_that_share_nothing_and_one_capture() -> None:
    apart = kdissect.open([CAPTURES / "base_tiny.pcap", CAPTURES / "raw_reuse.pcap"])
    for capture in (apart, kdissect.open(CAPTURES / "base_tiny.pcap")):
        assert capture.table("clock_offsets").num_rows == capture.analysis.both_ends().num_rows == 0
    rows = [kdissect.open(CAPTURES / f"{name}.pcap").table("exchanges").num_rows for name in ("base_tiny", "raw_reuse")]
    found = apart.table("exchanges")
    assert found.num_rows == sum(rows)
    assert pc.all(pc.is_null(found["network_up_ms"])).as_py()


@pytest.mark.parametrize("percent", [2, *(pytest.param(one, marks=pytest.mark.whole) for one in (1, 3, 5))])
def test_a_wire_that_loses_packets_is_not_the_broker(percent: int) -> None:
    """So many each way, 20 ms each way: what the client's file alone says of the broker, against both ends."""
    ends = [CAPTURES / "stories" / f"lossy_{percent}_{end}.pcap.zst" for end in ("client", "broker")]
    names = {"exchanges": ["exchange_id", "broker_ms", "network_kind"], "findings": ["severity", "cause", "text"]}
    both, client, broker = (kdissect.open(given).tables(names) for given in (ends, ends[0], ends[1]))
    for found in (both, client, broker):
        blamed = [row for row in found["findings"].to_pylist() if row["cause"] == "broker"]
        assert not [row for row in blamed if row["severity"] in ("high", "medium")]
    measured = both["exchanges"].filter(pc.equal(both["exchanges"]["network_kind"], "both_ends"))
    _, mine, theirs = np.intersect1d(
        column(client["exchanges"], "exchange_id"), column(measured, "exchange_id"), return_indices=True
    )
    off = np.abs(column(client["exchanges"], "broker_ms")[mine] - column(measured, "broker_ms")[theirs])
    near, late = float((off <= 2).mean()), float(np.quantile(off, 0.95))
    print(f"{percent} %: {len(off)} rows, {near:.1%} within 2 ms, p50 {np.median(off):.2f} ms, p95 {late:.1f} ms")
    assert len(off) > 500
    if percent <= 2:
        assert near >= 0.78
        assert late <= 15


def packets_of(source: Path, later_ns: int = 0) -> list[tuple[int, bytes]]:
    """Times (ns) and bytes of a capture's packets."""
    found: list[tuple[int, bytes]] = []

    def take(now: int, data: bytearray, at: int, size: int) -> int:
        found.append((now + later_ns, bytes(data[at : at + size])))
        return now

    changed(source, Path("/dev/null"), take)
    return found


@pytest.mark.parametrize("later_ms", [0, 37])
def test_both_ends_in_one_file(tmp_path: Path, alone: dict[str, pa.Table], later_ms: int) -> None:
    """As mergecap puts two captures together: interfaces of one pcapng."""
    seen = [(time, 0, data) for time, data in packets_of(CLIENT)]
    seen += [(time, 1, data) for time, data in packets_of(BROKER, later_ms * 1_000_000)]
    merged = tmp_path / "merged.pcapng"
    merged.write_bytes(written(sorted(seen, key=lambda row: row[0]), names=("eth0",)))
    capture = kdissect.open(merged)
    found = capture.tables(["exchanges", "connections", "clock_offsets"])
    exchanges = found["exchanges"]
    assert exchanges.num_rows == alone["exchanges"].num_rows
    assert found["connections"].num_rows == alone["connections"].num_rows
    told = ["client_port", "correlation_id", "request_first_at", "latency_ms"]
    assert sorted(map(str, exchanges.select(told).to_pylist())) == sorted(
        map(str, alone["exchanges"].select(told).to_pylist())
    )
    late = np.array([at > DELAYED_AT for at in exchanges["request_first_at"].to_pylist()])
    assert np.median(column(exchanges, "network_up_ms")[late]) == pytest.approx(80.2, abs=0.5)
    assert 0.3 <= np.median(column(exchanges, "network_down_ms")[late]) <= 0.5
    (row,) = found["clock_offsets"].to_pylist()
    assert row["offset_ms"] == pytest.approx(-later_ms, abs=0.2)
    assert (row["first"], row["second"]) == ("merged.pcapng, interface eth0", "merged.pcapng, interface 1")
    places = [place for places in other_places(found["connections"]).values() for place in places]
    assert len({one for _, _, one in places} - set(found["connections"]["connection_id"].to_pylist())) == len(places)
    assert [place[:2] for place in places] == [("merged.pcapng", "1")] * found["connections"].num_rows
    shown = capture.show(exchanges["exchange_id"][-1].as_py())
    assert len(shown) == 1


@pytest.mark.parametrize("name", ["base.pcap", "raw_ids.pcap"])
def test_segments_that_are_cut_differently(tmp_path: Path, name: str) -> None:
    """Offloads show large segments at one end; some clients use an id again and again."""
    small: list[tuple[int, int, bytes]] = []
    for time, data in packets_of(CAPTURES / name):
        header = 34 + (data[46] >> 4) * 4
        size = struct.unpack_from(">H", data, 16)[0] + 14 - header
        sequence = struct.unpack_from(">I", data, 38)[0]
        for at in range(0, max(size, 1), 40):
            part = data[header + at : header + min(at + 40, size)]
            total, number = struct.pack(">H", header - 14 + len(part)), struct.pack(">I", (sequence + at) & 0xFFFFFFFF)
            small.append((time, 0, data[:16] + total + data[18:38] + number + data[42:header] + part))
    (tmp_path / "small.pcapng").write_bytes(written(small))
    columns = ["client_port", "api", "correlation_id", "request_bytes", "status"]
    both = kdissect.open([CAPTURES / name, tmp_path / "small.pcapng"]).table("exchanges", columns)
    one = kdissect.open(CAPTURES / name).table("exchanges", columns)
    assert sorted(map(str, both.to_pylist())) == sorted(map(str, one.to_pylist()))


def test_a_chain_of_shared_requests_is_one_connection() -> None:
    """However long it is, and in whatever order its links come."""
    size = 1000
    rng = np.random.default_rng(1)
    row = rng.permutation(size)  # by place in the chain; the last one is by itself
    pairs = rng.permutation(np.stack([row[:-2], row[1:-1]], axis=1))
    places = [Place("a"), Place("b")]
    ids, place = np.arange(size).astype(np.uint64), np.arange(size) % 2
    alike = np.zeros((size, 6), np.int64), np.full((size, 2), -1)
    connections = both_ends.Ends(places, ids, place, *alike)
    found = both_ends.link(*pairs.T, np.ones(len(pairs), np.int64), connections, lambda: place)
    assert found[row[-1]] == -1
    assert set(found[row[:-1]].tolist()) == {row[:-1].min()}

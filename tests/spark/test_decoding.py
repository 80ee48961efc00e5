"""The stages of a Spark job one after the other, without Spark: tables as the local engine makes them."""

from __future__ import annotations

import random
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest

import kdissect
from kdissect.engine.capture_tables import MADE
from kdissect.spark.stages import analysing, lots
from tests.analysis.test_both_ends import packets_of
from tests.capture.build import read_pcap
from tests.engine.record_captures import packets
from tests.engine.test_vantage_points import lagging, written
from tests.kafka.records.building import batch, record
from tests.oracle.pcap import pcap

SOME = (
    "base.pcap", "raw_reuse.pcap", "k4_share_group.pcap", "field_two_sections.pcapng", "field_ip_fragments.pcap",
    "field_gz.pcap.gz", "field_duplicates.pcap", "field_burst20.pcap", "field_snap96.pcap", "not_kafka.pcap",
)  # fmt: skip


@pytest.mark.parametrize(
    "partitions",
    [pytest.param(3, marks=pytest.mark.whole), *(pytest.param(n, marks=pytest.mark.exhaustive) for n in (1, 16))],
)
@pytest.mark.parametrize("transport", ["ranges", "payload"])
def test_tables_equal_the_local_engine(
    captures: Path, simulate: Any, equal: Any, partitions: int, transport: str
) -> None:
    paths = [captures / name for name in SOME]
    expected = kdissect.open(paths).tables()
    equal(simulate(paths[::-1], partitions, list(MADE), transport), expected)


@pytest.mark.parametrize("files", [1, 2, 7, pytest.param(50, marks=pytest.mark.whole)])
@pytest.mark.parametrize("name", ["base.pcap", "k4_session_eviction.pcap"])
def test_connections_cut_across_files(
    captures: Path, simulate: Any, equal: Any, rotate: Any, name: str, files: int
) -> None:
    folder = rotate(captures / name, files)
    expected = kdissect.open(folder).tables()
    assert expected["capture_quality"]["file"].combine_chunks().unique().drop_null().__len__() == files
    equal(simulate(folder, 3, list(MADE)), expected)


@pytest.mark.parametrize("spans", [pytest.param(2, marks=pytest.mark.exhaustive), 7])
@pytest.mark.parametrize(
    "names",
    [
        ("base.pcap", "k4_share_group.pcap", "k4_slow_and_throttled.pcap"),
        pytest.param(("k4_session_eviction.pcap",), marks=pytest.mark.exhaustive),  # it is cut anywhere below
        ("k4_transactions.pcap", "k4_java_classic.pcap"), ("sweep_391_kraft.pcap", "base_tiny.pcap"),
    ],
)  # fmt: skip
def test_the_analysis_of_a_broker_goes_on_in_another_task(
    captures: Path, simulate: Any, equal: Any, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...], spans: int
) -> None:
    """Sessions, watermarks, throttle windows and rows that wait are handed on where its time is cut."""
    monkeypatch.setattr(lots, "MOST", 32)
    monkeypatch.setattr(analysing, "ROWS_A_TIME", 100)
    paths = [captures / name for name in names]
    expected = kdissect.open(paths).tables()
    equal(simulate(paths, 3, list(MADE), spans=spans), expected)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in range(1, 4))])
@pytest.mark.parametrize("spans", [7, 1, 2, 50])
def test_brokers_are_analysed_in_spans_cut_anywhere(
    captures: Path, simulate: Any, equal: Any, monkeypatch: pytest.MonkeyPatch, spans: int, seed: int
) -> None:
    """Spans of a few rows and of none are among them."""
    monkeypatch.setattr(lots, "MOST", 32)
    paths = [captures / name for name in ("k4_session_eviction.pcap", "k4_slow_and_throttled.pcap")]
    expected = kdissect.open(paths).tables()
    assert expected["fetch_sessions"].num_rows > 40
    equal(simulate(paths, 3, list(MADE), spans=spans, cuts=random.Random(seed)), expected)


def test_transactions_and_replicas_in_spans_cut_anywhere(
    captures: Path, simulate: Any, equal: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And whatever is made of the rows that the analysis has settled."""
    monkeypatch.setattr(lots, "MOST", 32)
    paths = [captures / name for name in ("k4_transactions.pcap", "sweep_391_kraft.pcap")]
    names = [*MADE, "time_budget", "time_ledger", "topic_traffic", "deliveries", "transactions", "transaction_steps"]
    expected = kdissect.open(paths).tables(names)
    assert True in expected["fetches"]["is_follower"].to_pylist()
    equal(simulate(paths, 3, names, spans=20, cuts=random.Random(4)), expected)


def test_rows_in_files(captures: Path, simulate: Any, equal: Any, tmp_path: Path) -> None:
    """Where all tasks run on one machine, rows that the analysis does not read are not handed on themselves."""
    paths = [captures / name for name in ("base.pcap", "k4_transactions.pcap", "tls13.pcap")]
    names = [*MADE, "deliveries", "time_budget"]
    found = simulate(paths, 3, names, giant=4000, unit=20_000, pieces=str(tmp_path / "rows"))
    assert any((tmp_path / "rows").iterdir())
    equal(found, kdissect.open(paths).tables(names))


def test_giant_connections_are_decoded_in_units(captures: Path, simulate: Any, equal: Any) -> None:
    paths = [captures / name for name in ("base.pcap", "raw_reuse.pcap", "k4_share_group.pcap", "field_burst20.pcap")]
    expected = kdissect.open(paths).tables()
    equal(simulate(paths, 3, list(MADE), giant=4000, unit=20_000), expected)


def test_a_giant_connection_across_files(captures: Path, simulate: Any, equal: Any, rotate: Any) -> None:
    folder = rotate(captures / "k4_transactions.pcap", 7)
    names = [*MADE, "records", "producers"]
    expected = kdissect.open(folder).tables(names, reveal=True)
    equal(simulate(folder, 2, names, reveal=True, giant=0, unit=5000), expected)


@pytest.mark.parametrize("partitions", [1, 5])
def test_records_producers_and_their_findings(captures: Path, simulate: Any, equal: Any, partitions: int) -> None:
    """A producer's sequence goes on over connections, which are in several partitions."""
    paths = [captures / f"{name}.pcap" for name in ("k4_transactions", "k4_java_classic", "k4_share_group")]
    names = ["records", "producers", "findings"]
    expected = kdissect.open(paths).tables(names, reveal=True)
    assert expected["producers"].num_rows > 10
    assert expected["records"]["value"].null_count < expected["records"].num_rows
    equal(simulate(paths, partitions, names, reveal=True), expected)


def test_findings_of_rules(captures: Path, simulate: Any, equal: Any) -> None:
    """What findings read of every table is in the rows that the stages hand on."""
    paths = sorted((captures / "rules").glob("*.pcap.zst"))
    expected = kdissect.open(paths).tables(["findings"])
    assert {"segments_lost", "member_thrown_out", "growing_lag", "session_slots"} <= set(
        expected["findings"]["id"].to_pylist()
    )
    equal(simulate(paths, 3, ["findings"]), expected)


def test_what_is_sent_again_over_another_connection(simulate: Any, equal: Any, tmp_path: Path) -> None:
    sent = [batch(record(0, b"", b""), 1, producer=(7, 0, sequence)) for sequence in range(9)]
    talks = [packets(produced=sent[n : n + 2], begin=100 * n, port=50000 + n) for n in range(8)]
    path = tmp_path / "sent.pcap"
    path.write_bytes(pcap([packet for talk in talks for packet in talk]))
    expected = kdissect.open(path).tables(["producers", "findings"])
    assert expected["producers"]["sequence"].to_pylist().count("repeat") == 7
    assert "batches_sent_again" in expected["findings"]["id"].to_pylist()
    equal(simulate(path, 5, ["producers", "findings"]), expected)


def test_few_tables_ask_for_little(captures: Path, simulate: Any, equal: Any) -> None:
    path = captures / "base.pcap"
    equal(simulate(path, 2, ["groups", "topics"]), kdissect.open(path).tables(["groups", "topics"]))


def test_a_file_that_is_none_costs_itself_alone(captures: Path, simulate: Any, tmp_path: Path) -> None:
    for i in range(2):
        shutil.copy(captures / "base_tiny.pcap", tmp_path / f"good{i}.pcap")
    (tmp_path / "good0.pcap1").write_bytes(b"no capture at all, but long enough to be looked at")
    found = simulate([tmp_path / f"good{n}" for n in ("0.pcap", "0.pcap1", "1.pcap")], 2, ["problems", "exchanges"])
    local = kdissect.open([tmp_path / f"good{n}" for n in ("0.pcap", "0.pcap1", "1.pcap")])
    assert found["exchanges"].num_rows == local.table("exchanges").num_rows > 0
    assert any("good0.pcap1" in row["detail"] for row in found["problems"].to_pylist())


@pytest.mark.parametrize("name", ["tls12", "tls13"])
def test_encrypted_connections(captures: Path, simulate: Any, equal: Any, rotate: Any, name: str) -> None:
    folder, keys = rotate(captures / f"{name}.pcap", 3), captures / f"{name}.keys.log"
    expected = kdissect.open(folder, keylog=keys).tables()
    assert expected["exchanges"].num_rows > 10
    equal(simulate(folder, 3, list(MADE), keylog=keys), expected)


def test_keys_that_stand_in_a_capture(captures: Path, simulate: Any, equal: Any, tmp_path: Path) -> None:
    path = tmp_path / "with_keys.pcapng"
    path.write_bytes(with_keys((captures / "tls13.pcap").read_bytes(), (captures / "tls13.keys.log").read_bytes()))
    expected = kdissect.open(path).tables()
    assert expected["exchanges"].num_rows > 0
    equal(simulate(path, 3, list(MADE)), expected)


def with_keys(pcap: bytes, keys: bytes) -> bytes:
    """A classic little-endian pcap as pcapng, with TLS keys in a Decryption Secrets Block in front."""

    def block(kind: int, body: bytes) -> bytes:
        body += bytes(-len(body) % 4)
        return struct.pack("<II", kind, len(body) + 12) + body + struct.pack("<I", len(body) + 12)

    assert pcap[:4] == bytes.fromhex("d4c3b2a1")
    out = [block(0x0A0D0D0A, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1))]
    out.append(block(1, struct.pack("<HHI", struct.unpack("<I", pcap[20:24])[0], 0, 0)))
    out.append(block(10, struct.pack("<II", 0x544C534B, len(keys)) + keys))
    at = 24
    while at < len(pcap):
        seconds, rest, captured, original = struct.unpack("<IIII", pcap[at : at + 16])
        time = seconds * 1_000_000 + rest
        data = pcap[at + 16 : at + 16 + captured]
        out.append(block(6, struct.pack("<IIIII", 0, time >> 32, time & 0xFFFFFFFF, captured, original) + data))
        at += 16 + captured
    return b"".join(out)


@pytest.mark.parametrize("lag", [30_000, 500_000_000])
def test_interfaces_of_one_file(captures: Path, tmp_path: Path, simulate: Any, equal: Any, lag: int) -> None:
    path = tmp_path / "both.pcapng"
    path.write_bytes(written(lagging(read_pcap(captures / "base.pcap"), lag)))
    equal(simulate(path, 3, list(MADE)), kdissect.open(path).tables())


def test_both_ends_in_one_file(captures: Path, simulate: Any, equal: Any, tmp_path: Path) -> None:
    """Two interfaces that saw the same connections at different places, as on one machine."""
    ends = [captures / "stories" / f"net_delay_{end}.pcap.zst" for end in ("client", "broker")]
    seen = [(time, number, data) for number, end in enumerate(ends) for time, data in packets_of(end)]
    path = tmp_path / "both.pcapng"
    path.write_bytes(written(sorted(seen), names=("eth0", "eth1")))
    names = ["exchanges", "connections", "clock_offsets"]
    expected = kdissect.open(path).tables(names)
    assert expected["clock_offsets"].num_rows == 1
    equal(simulate(path, 3, names), expected)


def test_connections_that_two_captures_saw(captures: Path, simulate: Any, equal: Any, tmp_path: Path) -> None:
    """Given together they are one, as on one machine; what one of the two has alone stays."""
    ends = [captures / "stories" / f"net_delay_{end}.pcap.zst" for end in ("client", "broker")]
    begun = kdissect.open(ends[0]).table("exchanges", ["request_first_at"])["request_first_at"].to_pylist()
    kdissect.open(ends[0]).cut(tmp_path / "client.pcap", start=begun[400])
    given = [tmp_path / "client.pcap", ends[1]]
    names = ["exchanges", "connections", "fetches", "produces", "clock_offsets", "problems", "findings"]
    expected = kdissect.open(given).tables(names)
    assert len(set(expected["exchanges"]["capture"].to_pylist())) == 2
    assert expected["clock_offsets"].num_rows == 1
    equal(simulate(given, 3, names), expected)
    equal(simulate(given, 2, ["exchanges"], giant=4000, unit=20_000), {"exchanges": expected["exchanges"]})

"""Record batches and records through the engine: what is computed when, what is wrong, what a filter leaves alone."""

from __future__ import annotations

import io
import random
import struct
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import kdissect
from kdissect.kafka.recordsets import codecs
from tests.engine.record_captures import capture, packets
from tests.kafka.records.building import Row, batch, kafka_python, record, rows_of
from tests.kafka.records.test_damage import LIES
from tests.kafka.records.test_formats import BUILDS
from tests.oracle.pcap import pcap


def opened(data: bytes, **how: Any) -> kdissect.Capture:
    return kdissect.open(io.BytesIO(data), **how)


def plain(table: pa.Table) -> list[Row]:
    times = table["timestamp"].cast(pa.int64()).to_pylist()
    return [
        (
            row["offset"], None if time is None else time // 1000, row["key"], row["value"],
            [(pair["key"], pair["value"]) for pair in row["headers"] or []],
        )
        for row, time in zip(table.to_pylist(), times, strict=True)
    ]  # fmt: skip


@pytest.fixture
def decompressed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The codec of each batch that is decompressed from now on."""
    seen: list[int] = []
    kept = dict(codecs._PIECES)

    def counted(codec: int) -> Any:
        def pieces(data: memoryview) -> Iterator[bytes | memoryview]:
            seen.append(codec)
            return kept[codec](data)

        return pieces

    monkeypatch.setattr(codecs, "_PIECES", {codec: counted(codec) for codec in kept})
    return seen


@pytest.mark.oracle
@pytest.mark.parametrize(("magic", "codec"), BUILDS)
def test_batches_of_kafka_python(magic: int, codec: int) -> None:
    """Every magic and codec: offsets, times, keys, values and headers as given to the encoder."""
    rows = rows_of(magic)
    data = capture(kafka_python(magic, codec, rows), produced=[kafka_python(magic, codec, rows)])
    tables = opened(data).tables(["records", "record_batches", "problems"], reveal=True)
    for place in (0, 4):
        mask = pa.compute.equal(tables["records"]["partition"], place)
        assert plain(tables["records"].filter(mask)) == rows
    assert set(tables["record_batches"]["crc_ok"].to_pylist()) == {True}
    assert set(tables["record_batches"]["codec"].to_pylist()) == {("none", "gzip", "snappy", "lz4", "zstd")[codec]}
    assert tables["problems"].num_rows == 0


def test_nothing_beyond_headers_unless_asked(decompressed: list[int]) -> None:
    sent = capture(kafka_python(2, 1, rows_of(2, 9)))
    (row,) = opened(sent).table("record_batches").to_pylist()
    assert (row["records"], row["crc_ok"], row["uncompressed_bytes"]) == (9, None, None)
    opened(sent).tables()
    (row,) = opened(sent).table("record_batches", ["crc_ok"]).to_pylist()
    assert row == {"crc_ok": True}
    assert not decompressed
    (row,) = opened(sent).table("record_batches", ["records"], "uncompressed_bytes > 0").to_pylist()
    assert row == {"records": 9}
    assert decompressed == [1]
    (row,) = opened(sent, verify=True).table("record_batches").to_pylist()
    assert row["crc_ok"]
    assert row["uncompressed_bytes"] > 100


def test_hidden_unless_revealed() -> None:
    sent = capture(kafka_python(2, 0, rows_of(2, 9)))
    hidden = opened(sent).table("records").to_pylist()
    shown = opened(sent).table("records", reveal=True).to_pylist()
    assert [(r["key"], r["value"], r["headers"]) for r in hidden] == [(None, None, None)] * 9
    assert [row["value_bytes"] for row in hidden] == [
        None if row["value"] is None else len(row["value"]) for row in shown
    ]
    assert b"value" in (shown[1]["value"] or b"")


def test_a_filter_keeps_the_rest_from_being_decompressed(decompressed: list[int]) -> None:
    one, two = kafka_python(2, 1, rows_of(2, 9)), kafka_python(2, 3, rows_of(2, 9))
    later = bytearray(two)
    later[:8] = struct.pack(">q", 1000)
    sent = capture(one, two + later)
    rows = opened(sent).table(
        "records", ["partition", "offset"], "topic = 'orders' and partition = 1 and offset >= 1003"
    )
    assert rows.to_pylist() == [{"partition": 1, "offset": offset} for offset in range(1003, 1009)]
    assert decompressed == [3]
    for where, count in (
        ("topic = 'other'", 0), ("partition in (0, 7)", 9), ("not partition = 0", 18), ("offset between 4 and 5", 4),
        ("partition = 0 or offset = 1000", 10), ("offset < 2.5 and partition > 0", 3), ("1005 <= offset", 4),
        ("offset in (3, 1001)", 3), ("topic is null", 0), ("offset > 1e300", 0), ("partition != 1", 9),
    ):  # fmt: skip
        assert opened(sent).table("records", ["offset"], where).num_rows == count, where


@pytest.mark.parametrize("codec", [0, 1, 4])
def test_a_flipped_byte_is_noticed(codec: int) -> None:
    """From the magic byte on; base offset and leader epoch lie outside the checksum. So is a flipped length."""
    sound = kafka_python(2, codec, rows_of(2, 4))
    chance = random.Random(codec)
    places = [*range(8, 12), *range(16, 21), *sorted(chance.sample(range(21, len(sound)), 12))]
    for place in places:
        flipped = bytearray(sound)
        flipped[place] ^= 1 << chance.randrange(8)
        tables = opened(capture(produced=[bytes(flipped)]), verify=True).tables(["record_batches", "problems"])
        found = [row for row in tables["problems"].to_pylist() if row["kind"] == "records"]
        assert found, place
        assert all(row["where"].startswith("orders-4, byte ") and row["exchange_id"] for row in found)
        if place > 16:
            assert tables["record_batches"]["crc_ok"].to_pylist() == [False]
    assert not opened(capture(produced=[sound]), verify=True).table("problems", where="kind = 'records'").num_rows


@pytest.mark.parametrize("name", LIES)
def test_lying_data(name: str) -> None:
    """Each kind of lie is a row of `problems` once records are looked at, whatever asks for it."""
    data, said = LIES[name]
    sent = capture(data)
    for tables in (
        opened(sent, verify=True).tables(["problems", "connections"]),
        opened(sent).tables(["records", "problems", "connections"], reveal=True),
    ):
        details = [row["detail"] for row in tables["problems"].to_pylist() if row["kind"] in ("records", "timestamp")]
        assert any(said in detail for detail in details), details
        assert tables["connections"]["problems"].to_pylist() == [tables["problems"].num_rows]


def test_problems_of_headers_are_told_without_being_asked() -> None:
    data = capture(batch(record(0, b"", b""), 1, attributes=0x4080))
    (row,) = opened(data).table("problems", where="kind = 'records'").to_pylist()
    assert row["detail"] == "unknown attribute bits"
    assert row["where"] == "orders-0, byte 0, offset 0"
    (connection,) = opened(data).table("connections", ["problems"]).to_pylist()
    assert connection["problems"] == opened(data).table("problems").num_rows


def test_a_flood_of_problems_is_counted() -> None:
    one = batch(record(0, b"", b""), 1, attributes=0x4080)
    details = opened(capture(one * 3000)).table("problems", where="kind = 'records'")["detail"].to_pylist()
    assert len(details) == 1000
    assert details.count("2001 further problems of record batches are not listed") == 1


def test_producers() -> None:
    def sent(sequence: int, count: int, epoch: int = 0) -> bytes:
        return batch(record(0, b"", b"") * count, count, producer=(7, epoch, sequence))

    data = capture(sent(0, 3), produced=[sent(0, 3), sent(3, 2), sent(3, 2), sent(9, 1), sent(0, 1, 1)])
    rows = opened(data).table("producers", ["sequence", "missing", "expected_sequence", "partition"]).to_pylist()
    assert [(row["sequence"], row["missing"], row["expected_sequence"]) for row in rows] == [
        ("first", 0, None), ("ok", 0, 3), ("repeat", 0, 5), ("gap", 4, 5), ("reset", 0, None),
    ]  # fmt: skip
    assert {row["partition"] for row in rows} == {4}
    assert opened(data).table("producers", where="sequence = 'gap'").num_rows == 1
    assert sum(part.num_rows for part in opened(data).batches("producers")) == 5


def test_findings_about_producers(tmp_path: Path) -> None:
    """Batches sent again, over another connection too, and batches of an epoch that has passed, by producer."""

    def sent(producer: int, epoch: int, sequence: int) -> bytes:
        return batch(record(0, b"", b""), 1, producer=(producer, epoch, sequence))

    first = packets(produced=[sent(7, 0, 0), sent(7, 0, 1), sent(8, 0, 0), sent(8, 1, 0), sent(8, 0, 1)])
    later = packets(produced=[sent(7, 0, 1), sent(7, 0, 1), sent(7, 0, 2), sent(9, 0, 5)], begin=500, port=50001)
    path = tmp_path / "sent.pcap"
    path.write_bytes(pcap([*first, *later]))
    found = kdissect.open(path).table("findings").to_pylist()
    ours = [(row["id"], row["severity"], row["table"], row["filter"], row["count"]) for row in found]
    assert ours == [
        ("outdated_producer_epoch", "high", "producers", "producer_id = 8 and sequence = 'fenced'", 1),
        ("batches_sent_again", "low", "producers", "producer_id = 7 and sequence = 'repeat'", 2),
    ]
    assert "Producer 7 sent 2 batches to 1 partition again" in found[1]["text"]
    for row in found:
        shown = kdissect.open(path).table("producers", where=row["filter"])
        assert (shown.num_rows, shown["exchange_id"][0].as_py()) == (row["count"], row["first_exchange_id"])
    assert [one["text"] for one in kdissect.open(path).summary().findings] == [row["text"] for row in found]
    assert kdissect.open(path).tables()["findings"].to_pylist() == found


def test_the_producer_of_an_open_transaction(captures: Path) -> None:
    """Who holds read_committed consumers back is told from what others fetched, whatever else is asked for."""
    capture = kdissect.open(captures / "k4_transactions.pcap")
    (row,) = capture.table("findings", where="id = 'held_back_by_transaction'").to_pylist()
    written = capture.table(
        "record_batches",
        where="topic = 'tx-out' and partition = 1 and base_offset = 5 and leader_epoch >= 0 and not is_control",
    )
    (producer,) = set(written["producer_id"].to_pylist())
    assert f", producer {producer}) " in row["text"]
    assert row["filter"].startswith("topic = 'tx-out' and partition = 1 and last_stable_offset = 5")
    assert capture.tables(["findings", "record_batches", "records"])["findings"].to_pylist().count(row) == 1


def test_memory_is_flat() -> None:
    """Records of a block come in chunks: revealing 400 MB takes what 40 MB take."""
    packed = kafka_python(2, 3, [(i, i, None, b"x" * 40_000, []) for i in range(500)])

    def used(times: int) -> int:
        sent = capture(packed * times)
        tracemalloc.start()
        before = pa.total_allocated_bytes()
        largest = count = 0
        for part in opened(sent).batches("records", reveal=True):
            count += part.num_rows
            largest = max(largest, pa.total_allocated_bytes() - before + tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert count == 500 * times
        return largest

    assert used(20) < used(2) + (20 << 20)

"""A batch byte by byte: every byte once, values as built, nothing shown that is hidden."""

from __future__ import annotations

import random

import pytest

from kdissect.kafka.recordsets.batch_explanation import EXPLAINED_RECORDS, Row, expand, explain
from tests.kafka.records.building import batch, kafka_python, record, rows_of
from tests.kafka.records.test_damage import LIES, MIXED
from tests.kafka.records.test_formats import BUILDS, message, zlib_gzip


def covers(rows: list[Row], start: int, end: int) -> None:
    """The rows with a place cover every byte once, in order."""
    at = start
    for row in rows:
        if row["offset"] is not None:
            assert row["offset"] == at, row
            at += row["length"]
    assert at == end


@pytest.mark.parametrize(("magic", "codec"), BUILDS)
def test_every_byte_once(magic: int, codec: int) -> None:
    data = kafka_python(magic, codec, rows_of(magic, 9))
    rows = explain(data, offset=100)
    covers(rows, 100, 100 + len(data))
    assert {row["meaning"] for row in rows if row["path"].endswith(".crc") and row["offset"] is not None} == {"right"}
    text = repr(rows)
    assert "value 1" not in text
    assert "key-" not in text
    shown = explain(data, reveal=True)
    values = [row["value"] for row in shown if row["path"].endswith("].value") and row["type"] == "bytes"]
    assert [value for value in values if value.startswith("value")] == [
        row[3].decode() for row in rows_of(magic, 9) if row[3] is not None
    ]


def test_paths_and_meanings() -> None:
    rows = {row["path"]: row for row in explain(batch(record(0, b"k", b"vv", 5), 1, base=40), reveal=True)}
    here = "records.batches[0]"
    assert rows[f"{here}.last_offset_delta"]["meaning"] == "offset 40"
    assert rows[f"{here}.attributes"]["meaning"] == "none, create time"
    assert rows[f"{here}.records[0].timestamp_delta"]["meaning"] == "2023-11-14T22:13:20.005Z"
    assert rows[f"{here}.records[0].value"]["value"] == "vv"
    assert rows[f"{here}.records[0].value_length"] | {"offset": 0} == {
        "offset": 0, "length": 1, "path": f"{here}.records[0].value_length", "type": "varint", "value": "2",
        "meaning": "2 bytes", "schema": "", "hidden": False,
    }  # fmt: skip


def test_control_and_wrapped() -> None:
    rows = explain(batch(record(0, b"\0\0\0\1", b"\0\0\0\0\0\1"), 1, attributes=48))
    told = {row["path"].partition("records[0].")[2]: (row["value"], row["meaning"]) for row in rows}
    assert told["key.type"] == ("1", "commit")
    assert told["value.coordinator_epoch"] == ("1", "")
    inner = message(1, 0, b"secret") + message(1, 1, b"secret")
    rows = explain(message(1, 7, zlib_gzip(inner), 1))
    assert [row["path"] for row in rows if row["path"].endswith("messages[1].value")]
    assert "secret" not in repr(rows)


def test_a_long_batch_is_not_taken_apart_for_ever() -> None:
    data = batch(record(0, b"", b"") * 5000, 5000)
    rows = explain(data)
    covers(rows, 0, len(data))
    assert rows[-1]["meaning"] == f"{5000 - EXPLAINED_RECORDS} further records"


@pytest.mark.parametrize("name", LIES)
def test_lies(name: str) -> None:
    data = LIES[name][0]
    covers(explain(data), 0, len(data))


def test_damage_and_cuts() -> None:
    chance = random.Random(3)
    for _ in range(300):
        data = bytearray(MIXED[: chance.randrange(len(MIXED))])
        for _ in range(chance.randrange(9)):
            if data:
                data[chance.randrange(len(data))] = chance.randrange(256)
        covers(explain(bytes(data), reveal=True), 0, len(data))


def test_expands_the_records_of_a_frame() -> None:
    data = kafka_python(2, 0, rows_of(2, 2))
    frame = b"head" + len(data).to_bytes(4, "big") + data + b"tail"
    rows = [
        {"offset": 4, "length": 4 + len(data), "path": "a.records", "type": "records", "value": f"{len(data)} bytes"},
        {"offset": 8 + len(data), "length": 4, "path": "b", "type": "int32", "value": "1"},
    ]
    found = expand([row | {"meaning": "", "schema": "x", "hidden": False} for row in rows], frame)
    covers(found, 4, len(frame))
    assert [row["path"] for row in found[1:3]] == ["a.records.batches[0]", "a.records.batches[0].base_offset"]

import base64
import csv
import io
import json
import os
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

from kdissect.tables.formats import MANY, ParquetFile, json_texts, write_arrow, write_csv, write_jsonl, write_parquet

MOMENT = datetime(2026, 1, 2, 3, 4, 5, 60, tzinfo=UTC)
TABLE = pa.table(
    {
        "text": pa.array(['a"b\\c\n', "é", None, "x\ty"]),
        "word": pa.array(["plain", None, "plain", ""]).dictionary_encode(),
        "n": pa.array([1, None, -3, 2**31 - 1], pa.int32()),
        "big": pa.array([2**63 - 1, None, 0, -(2**63)], pa.int64()),
        "ms": pa.array([0.1, None, float("nan"), 1e300]),
        "ok": pa.array([True, None, False, True]),
        "at": pa.array(
            [MOMENT, None, datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)], pa.timestamp("us", "UTC")
        ),
        "raw": pa.array([b"\x00\xff", None, b"", b"k"]),
        "offsets": pa.array([[1, 2], None, [], [3]], pa.list_(pa.int64())),
        "pairs": pa.array([[{"key": "k", "value": b"v"}], None, [], [{"key": None, "value": None}]]),
    }
)
PLAIN = TABLE.cast(pa.schema([pa.field(f.name, pa.string() if f.name == "word" else f.type) for f in TABLE.schema]))
SCHEMA = PLAIN.schema


def test_json_lines():
    sink = io.BytesIO()
    assert write_jsonl(SCHEMA, TABLE.to_batches(max_chunksize=3), sink) == 4
    rows = [json.loads(line) for line in sink.getvalue().decode().splitlines()]
    expected = PLAIN.to_pylist()
    assert [list(row) for row in rows] == [SCHEMA.names] * 4
    for row, want in zip(rows, expected, strict=True):
        for name in ("text", "word", "n", "big", "ok", "offsets"):
            assert row[name] == want[name]
    assert [row["ms"] for row in rows] == [0.1, None, None, 1e300]
    assert [row["at"] for row in rows] == [
        "2026-01-02T03:04:05.000060Z",
        None,
        "0001-01-01T00:00:00.000000Z",
        "9999-12-31T00:00:00.000000Z",
    ]
    assert [row["raw"] for row in rows] == [base64.b64encode(b"\x00\xff").decode(), None, "", "aw=="]
    assert [row["pairs"] for row in rows] == [[{"key": "k", "value": "dg=="}], None, [], [{"key": None, "value": None}]]


NESTED = [
    (pa.list_(pa.string()), [["a", 'b"\u00e9', None], [], None, ["c"]]),
    (pa.list_(pa.int64()), [[1, None], None, [], [3]]),
    (pa.list_(pa.list_(pa.int32())), [[[1], []], None, [None], []]),
    (pa.list_(pa.struct([("key", pa.string()), ("n", pa.int32())])), [[{"key": "k", "n": 1}, None], None, []]),
    (
        pa.struct([("a", pa.bool_()), ("b", pa.list_(pa.string()))]),
        [{"a": True, "b": ["x"]}, None, {"a": None, "b": None}],
    ),
]


@pytest.mark.parametrize(("kind", "values"), NESTED)
@pytest.mark.parametrize("first", [0, 1])
def test_nested_values_are_what_json_writes(kind, values, first):
    column = pa.array(values, kind).slice(first)
    assert json_texts(column).to_pylist() == [json.dumps(value, ensure_ascii=False) for value in values[first:]]


def test_csv():
    sink = io.BytesIO()
    assert write_csv(SCHEMA, TABLE.to_batches(max_chunksize=3), sink) == 4
    rows = list(csv.DictReader(io.StringIO(sink.getvalue().decode(), newline="")))
    assert [row["text"] for row in rows] == ['a"b\\c\n', "é", "", "x\ty"]
    assert [row["n"] for row in rows] == ["1", "", "-3", str(2**31 - 1)]
    assert [row["ok"] for row in rows] == ["true", "", "false", "true"]
    assert rows[0]["at"] == "2026-01-02T03:04:05.000060Z"
    assert [row["offsets"] for row in rows] == ["[1, 2]", "", "[]", "[3]"]
    assert json.loads(rows[0]["pairs"]) == [{"key": "k", "value": "dg=="}]
    assert [row["raw"] for row in rows] == ["AP8=", "", "", "aw=="]


def test_arrow_stream():
    sink = io.BytesIO()
    assert write_arrow(SCHEMA, TABLE.to_batches(max_chunksize=3), sink) == 4
    found = pa.ipc.open_stream(sink.getvalue()).read_all()
    assert found.schema == SCHEMA
    assert found.drop(["ms"]).equals(PLAIN.drop(["ms"]))


def test_parquet_appears_when_it_is_whole(tmp_path):
    path = tmp_path / "fetches.parquet"
    assert write_parquet(SCHEMA, TABLE.to_batches(max_chunksize=3), path) == 4
    found = pa.parquet.read_table(path)
    assert found.schema.names == SCHEMA.names
    assert found.drop(["ms", "pairs"]).equals(PLAIN.drop(["ms", "pairs"]))
    half = ParquetFile(tmp_path / "half.parquet", SCHEMA)
    half.write(TABLE.to_batches()[0])
    assert not (tmp_path / "half.parquet").exists()
    half.__exit__(RuntimeError, RuntimeError(), None)
    assert [item.name for item in tmp_path.iterdir()] == ["fetches.parquet"]


def test_a_file_that_cannot_be_begun_is_closed_and_goes(tmp_path, monkeypatch):
    opened = []
    real = pa.OSFile

    def noted(*given):
        opened.append(real(*given))
        return opened[-1]

    def broken(*_, **__):
        raise MemoryError

    monkeypatch.setattr(pa, "OSFile", noted)
    monkeypatch.setattr(pa.parquet, "ParquetWriter", broken)
    with pytest.raises(MemoryError), ParquetFile(tmp_path / "a.parquet", SCHEMA) as file:
        file.write(TABLE.to_batches()[0])
    with pytest.raises(MemoryError):
        write_parquet(SCHEMA, [], tmp_path / "none.parquet")
    assert [file.closed for file in opened] == [True, True]
    assert not list(tmp_path.iterdir())


def test_texts_that_differ_in_most_rows_have_no_dictionary(tmp_path):
    many = pa.table({"same": ["a", "b"] * MANY, "other": [f"{n}" for n in range(2 * MANY)]})
    for rows, coded in ((2 * MANY, [True, False]), (MANY - 1, [True, True])):
        table = many.slice(0, rows)
        write_parquet(table.schema, table.to_batches(), tmp_path / "texts.parquet")
        found = pa.parquet.ParquetFile(tmp_path / "texts.parquet")
        group = found.metadata.row_group(0)
        assert ["RLE_DICTIONARY" in group.column(i).encodings for i in range(2)] == coded
        assert found.read().equals(table)


def test_parquet_holds_plain_texts_whatever_dictionaries_they_come_with(tmp_path):
    codes = pa.array([2, 0, None, 1], pa.int8())
    for values in (["a", "b", "c"], ["a", "a", "b"], ["a", None, "b"], ["a", "b", "c", "d", "e", "f"]):
        column = pa.DictionaryArray.from_arrays(codes, pa.array(values))
        schema = pa.schema([pa.field("text", pa.string())], metadata={"kdissect": "1"})
        path = tmp_path / f"{len(values)}.parquet"
        write_parquet(schema, [pa.record_batch([column], names=["text"])], path)
        found = pa.parquet.read_table(path)
        assert found.schema.equals(schema)
        assert found.schema.metadata == schema.metadata
        assert found["text"].to_pylist() == column.to_pylist()


def test_parquet_of_times_and_large_numbers_holds_their_differences(tmp_path):
    times = pa.array(range(10**15, 10**15 + 10**7, 1000), pa.timestamp("us", "UTC"))
    batch = pa.record_batch({"at": times, "n": times.cast(pa.int64())})
    path = tmp_path / "t.parquet"
    write_parquet(batch.schema, [batch], path)
    assert path.stat().st_size < 16 * len(times) / 20
    assert pa.parquet.read_table(path).to_batches() == [batch]


def test_empty_tables(tmp_path):
    empty = TABLE.slice(0, 0)
    sink = io.BytesIO()
    assert write_jsonl(SCHEMA, empty.to_batches(), sink) == 0
    assert sink.getvalue() == b""
    assert write_csv(SCHEMA, [], sink) == 0
    assert sink.getvalue().decode().strip() == ",".join(f'"{name}"' for name in SCHEMA.names)
    assert write_parquet(SCHEMA, [], tmp_path / "e.parquet") == 0
    assert pa.parquet.read_table(tmp_path / "e.parquet").num_rows == 0


def test_parquet_under_a_name_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"caf\xe9") / "a.parquet"
    path.parent.mkdir()
    assert write_parquet(SCHEMA, PLAIN.to_batches(), path) == 4
    with path.open("rb") as file:
        assert pyarrow.parquet.read_table(file).num_rows == 4

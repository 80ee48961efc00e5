"""kafka.log, read by somebody else's reader of Zeek's logs."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from parsezeeklogs import ZeekLog

import kdissect
from kdissect.cli.commands import main
from kdissect.tables.declaration import SCHEMAS
from kdissect.tables.zeek_log import REQUIRED, write_zeek, write_zeek_json
from tests.conftest import CAPTURES

CAPTURE = str(CAPTURES / "raw_errors.pcap")


def written(path: Path, form: str, *more: str) -> list[dict[str, Any]]:
    done = CliRunner().invoke(main, [CAPTURE, "--format", form, "-o", str(path), *more])
    assert done.exit_code == 0, done.output
    with ZeekLog(str(path)) as log:
        records = list(log)
        assert log.skipped == 0
    return records


def seconds(value: datetime | None) -> float | None:
    return None if value is None else value.timestamp()


def test_every_exchange_is_a_line_with_its_values(tmp_path: Path) -> None:
    records = written(tmp_path / "kafka.log", "zeek")
    rows = kdissect.open(CAPTURE).table("exchanges").to_pylist()
    assert len(records) == len(rows) > 10
    for record, row in zip(records, rows, strict=True):
        assert float(record["ts"]) == pytest.approx(
            seconds(row["request_first_at"] or row["response_first_at"]), abs=1e-6
        )
        assert record["uid"] == "C" + row["connection_id"]
        assert [record[f"id.{name}"] for name in ("orig_h", "orig_p", "resp_h", "resp_p")] == [
            row[name] for name in ("client_ip", "client_port", "broker_ip", "broker_port")
        ]
        for name in (
            "api",
            "client_id",
            "status",
            "error",
            "community_id",
            "broker",
            "hold",
            "request_bytes",
            "decoded",
        ):
            assert record[name] == row[name]
        for name in ("latency", "broker"):
            taken = row[f"{name}_ms"]
            assert record[f"{name}_seconds"] == (None if taken is None else pytest.approx(taken / 1e3, abs=1e-9))


def test_json_has_the_values_of_the_lines(tmp_path: Path) -> None:
    lines = written(tmp_path / "kafka.log", "zeek")
    objects = [json.loads(line) for line in _json(tmp_path).splitlines()]
    for line, found in zip(lines, objects, strict=True):
        assert {name for name, value in line.items() if value is not None} == set(found)
        for name, value in found.items():
            assert line[name] in (value, pytest.approx(value) if isinstance(value, float) else None)


def _json(folder: Path) -> str:
    path = folder / "kafka.json"
    done = CliRunner().invoke(main, [CAPTURE, "--format", "zeek-json", "-o", str(path)])
    assert done.exit_code == 0, done.output
    return path.read_text()


def test_columns_are_chosen_and_rows_filtered(tmp_path: Path) -> None:
    records = written(tmp_path / "kafka.log", "zeek", "--columns", "api,client_id", "--where", "api = 'Fetch'")
    assert {record["api"] for record in records} == {"Fetch"}
    assert list(records[0])[-2:] == ["api", "client_id"]
    assert "latency_seconds" not in records[0]


@pytest.mark.parametrize("text", ["a\tb\nc", "-", "", "(empty)", "back\\slash\\x41", "\x1b[2J", "naïve ✓", None])
def test_hostile_texts_come_back(text: str | None) -> None:
    schema = pa.schema([SCHEMAS["exchanges"].field(name) for name in (*REQUIRED, "client_id")])
    row = dict.fromkeys(schema.names) | {
        "connection_id": "00", "client_id": text, "request_first_at": datetime(2026, 1, 1, tzinfo=UTC),
    }  # fmt: skip
    batch = pa.RecordBatch.from_pylist([row], schema)
    sink = io.BytesIO()
    assert write_zeek(schema, [batch], sink) == 1
    (record,) = ZeekLog(io.StringIO(sink.getvalue().decode()))
    assert record["client_id"] == text
    sink = io.BytesIO()
    write_zeek_json(schema, [batch], sink)
    assert json.loads(sink.getvalue()).get("client_id") == text


def test_an_unset_time_leaves_json_whole() -> None:
    schema = pa.schema([SCHEMAS["exchanges"].field(name) for name in REQUIRED])
    batch = pa.RecordBatch.from_pylist([dict.fromkeys(REQUIRED) | {"connection_id": "00"}], schema)
    sink = io.BytesIO()
    write_zeek_json(schema, [batch], sink)
    assert json.loads(sink.getvalue()) == {"uid": "C00"}


def test_no_other_table_has_this_format() -> None:
    done = CliRunner().invoke(main, [CAPTURE, "--table", "fetches", "--format", "zeek"])
    assert done.exit_code == 2
    assert "writes exchanges" in done.output

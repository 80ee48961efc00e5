"""Chrome trace events against the format's rules and the table."""

from __future__ import annotations

import io
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

import kdissect
from kdissect.cli.commands import main
from kdissect.tables.declaration import SCHEMAS
from kdissect.tables.trace_events import PARTS, REQUIRED, write_trace_events
from tests.conftest import CAPTURES


def events(name: str, folder: Path) -> list[dict[str, Any]]:
    path = folder / "trace.json"
    done = CliRunner().invoke(main, [str(CAPTURES / name), "--format", "perfetto", "-o", str(path)])
    assert done.exit_code == 0, done.output
    made: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    return made


def check(made: list[dict[str, Any]]) -> dict[str, list[tuple[str, float, float, int]]]:
    """Hold events against the Trace Event Format. Returns by id its slices: name, begin, end, depth."""
    named = {one["pid"] for one in made if one["ph"] == "M"}
    slices: dict[str, list[tuple[str, float, float, int]]] = defaultdict(list)
    by_id: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for one in made:
        if one["ph"] == "M":
            assert one["name"] == "process_name"
            assert isinstance(one["args"]["name"], str)
            continue
        assert {"ph", "ts", "pid", "tid", "cat", "id", "name"} <= one.keys()
        assert one["ph"] in "ben"
        assert one["pid"] in named
        by_id[one["id"]].append(one)
    for key, found in by_id.items():
        open_slices: list[tuple[str, float]] = []
        for one in sorted(found, key=lambda event: event["ts"]):  # stable: the order in the file decides
            if one["ph"] == "b":
                open_slices.append((one["name"], one["ts"]))
            elif one["ph"] == "e":
                name, begin = open_slices.pop()
                assert name == one["name"]
                slices[key].append((name, begin, one["ts"], len(open_slices)))
        assert open_slices == []
    return slices


@pytest.mark.parametrize("name", ["base.pcap", "k4_slow_and_throttled.pcap", "field_midstream.pcap"])
def test_the_file_has_the_counts_and_times_of_the_table(name: str, tmp_path: Path) -> None:
    made = events(name, tmp_path)
    slices = check(made)
    rows = {row["exchange_id"]: row for row in kdissect.open(CAPTURES / name).table("exchanges").to_pylist()}
    outer = {key: one for key, found in slices.items() for one in found if one[3] == 0}
    answered = {key for key, row in rows.items() if row["latency_ms"] is not None}
    assert outer.keys() == answered
    assert {one["id"] for one in made if one["ph"] == "n"} == rows.keys() - answered
    assert len({one["pid"] for one in made}) == len({row["connection_id"] for row in rows.values()})
    for key, (api, begin, end, _) in outer.items():
        assert api == rows[key]["api"]
        assert end - begin == pytest.approx(rows[key]["latency_ms"] * 1000, abs=0.5)  # doubles of µs since 1970
        parts = {found[0]: found[2] - found[1] for found in slices[key] if found[3] == 1}
        for part in PARTS:
            took = rows[key][part] or 0
            assert parts.get(part.removesuffix("_ms"), 0) == pytest.approx(took * 1000, abs=0.5)


def test_hostile_names_are_json() -> None:
    schema = pa.schema([SCHEMAS["exchanges"].field(name) for name in REQUIRED])
    row = dict.fromkeys(REQUIRED) | {
        "exchange_id": "00:0",
        "connection_id": "00",
        "client_id": '"}],\x1b\n',
        "broker": "1",
    }
    sink = io.BytesIO()
    assert write_trace_events(schema, [pa.RecordBatch.from_pylist([row], schema)], sink) == 1
    (named,) = json.loads(sink.getvalue())["traceEvents"]
    assert named["args"]["name"].startswith('"}],\x1b\n')


def test_no_rows_are_a_whole_file() -> None:
    schema = pa.schema([SCHEMAS["exchanges"].field(name) for name in REQUIRED])
    sink = io.BytesIO()
    assert write_trace_events(schema, [], sink) == 0
    assert json.loads(sink.getvalue())["traceEvents"] == []

"""`--sort` and `--limit` against pandas, on every table."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

import kdissect
from kdissect.cli.main import main
from kdissect.problems import UsageError
from kdissect.tables import sorting as ordering
from kdissect.tables.declaration import SCHEMAS
from kdissect.tables.sorting import ordered, sort_keys
from tests.conftest import ROOT

CAPTURE = ROOT / "captures" / "k4_python_kafka.pcap"


@pytest.fixture(scope="module")
def tables() -> dict[str, pa.Table]:
    return kdissect.open(CAPTURE).tables(sorted(SCHEMAS))


def same(rows: list[dict[str, Any]], frame: pd.DataFrame) -> bool:
    """Whether rows are those of a frame, null and NaN alike."""
    other = frame.to_dict("records")
    return len(rows) == len(other) and all(_plain(a) == _plain(b) for a, b in zip(rows, other, strict=True))


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    return {
        name: None if value is None or value is pd.NA or value is pd.NaT or value != value else value
        for name, value in ((n, v.tolist() if hasattr(v, "tolist") else v) for n, v in row.items())
    }


@pytest.mark.parametrize("name", sorted(SCHEMAS))
def test_sorted_as_pandas_sorts(name: str, tables: dict[str, pa.Table]) -> None:
    flat = [item.name for item in SCHEMAS[name] if not pa.types.is_nested(item.type)]
    table = tables[name].select(flat).slice(0, 80)
    frame = table.to_pandas(types_mapper=pd.ArrowDtype)
    for column in flat:
        for wanted, ascending in (([column], True), ([f"-{column}"], False)):
            for limit in (None, 3):
                found = pa.Table.from_batches(
                    ordered(table.schema, table.to_batches(7), sort_keys(wanted, table.schema), limit), table.schema
                )
                expected = frame.sort_values(column, ascending=ascending, kind="stable", na_position="last")
                expected = expected if limit is None else expected.head(limit)
                assert same(found.to_pylist(), expected.astype(object)), (column, limit)


def test_several_keys_and_few_rows_held(monkeypatch: pytest.MonkeyPatch, tables: dict[str, pa.Table]) -> None:
    monkeypatch.setattr(ordering, "HELD", 5)
    table = tables["exchanges"].select(["api", "latency_ms", "exchange_id"])
    frame = table.to_pandas().sort_values(["api", "exchange_id"], ascending=[False, True], kind="stable").head(9)

    def pieces() -> Iterator[pa.RecordBatch]:
        yield from table.to_batches(4)

    keys = sort_keys(["-api", "exchange_id"], table.schema)
    found = pa.Table.from_batches(ordered(table.schema, pieces(), keys, 9), table.schema)
    assert found["exchange_id"].to_pylist() == frame["exchange_id"].tolist()


def test_bad_keys() -> None:
    with pytest.raises(UsageError, match="did you mean 'latency_ms'"):
        sort_keys(["latency"], SCHEMAS["exchanges"])
    with pytest.raises(UsageError, match="no order"):
        sort_keys(["client_ids"], SCHEMAS["fetch_sessions"])


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--table", "exchanges", "--columns", "api,latency_ms", "--sort", "-response_bytes", "--limit", "2"]
    assert main([str(CAPTURE), *asked, "--format", "csv"]) == 0
    lines = capsys.readouterr().out.splitlines()
    exchanges = kdissect.open(CAPTURE).pandas("exchanges").sort_values("response_bytes", ascending=False).head(2)
    assert lines[0] == '"api","latency_ms"'
    assert [line.split(",")[0].strip('"') for line in lines[1:]] == exchanges["api"].tolist()
    assert main([str(CAPTURE), "--limit", "2"]) == 2
    assert main([str(CAPTURE), "--table", "exchanges", "--sort", "nothing"]) == 2


def test_parquet_to_a_pipe(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    assert main([str(CAPTURE), "--table", "fetches", "--format", "parquet"]) == 0
    read = pd.read_parquet(io.BytesIO(capsysbinary.readouterr().out))
    assert len(read) == kdissect.open(CAPTURE).table("fetches").num_rows
    assert math.isclose(read["latency_ms"].sum(), kdissect.open(CAPTURE).pandas("fetches")["latency_ms"].sum())


def test_in_python(tables: dict[str, pa.Table]) -> None:
    opened = kdissect.open(CAPTURE)
    found = opened.table("exchanges", ["api"], sort=["-response_bytes", "exchange_id"], limit=5)
    frame = tables["exchanges"].to_pandas().sort_values(["response_bytes", "exchange_id"], ascending=[False, True])
    assert found.column_names == ["api"]
    assert found["api"].to_pylist() == frame["api"].head(5).tolist()
    assert opened.pandas("fetches", limit=3)["exchange_id"].tolist() == tables["fetches"]["exchange_id"].to_pylist()[:3]
    with pytest.raises(UsageError, match="did you mean 'latency_ms'"):
        opened.table("exchanges", sort=["latency"])
    with pytest.raises(UsageError, match="no table"):
        opened.table("exchange", sort=["latency_ms"])


def test_sessions_and_diff(capsys: pytest.CaptureFixture[str]) -> None:
    evicted, other = (str(ROOT / "captures" / name) for name in ("k4_session_eviction.pcap", "base_tiny.pcap"))
    assert main(["sessions", evicted, "--sort", "-lost,client_id", "--limit", "2"]) == 0
    blocks = capsys.readouterr().out.split("Broker ")
    first = blocks[1].splitlines()
    at = next(n for n, line in enumerate(first) if line.startswith("  Client"))
    assert first[at + 1].split()[0] == "raw-evict-more"
    assert "7 more clients" in first[at + 3]
    assert main(["diff", other, other, "--sort", "-counted_a", "--limit", "1"]) == 0
    assert "more rows: --top N" in capsys.readouterr().out
    assert main(["diff", other, other, "--sort", "counted"]) == 2
    assert main(["sessions", other, "--sort", "nothing"]) == 2

"""`kdissect sql` against pandas, on every table; small captures in memory, others by way of files."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

import kdissect
from kdissect.cli.main import main
from kdissect.cli.subcommands import asking
from kdissect.tables.declaration import SCHEMAS
from tests.conftest import ROOT

CAPTURE = str(ROOT / "captures" / "k4_python_kafka.pcap")


def asked(capsys: pytest.CaptureFixture[str], query: str) -> list[dict[str, object]]:
    assert main(["sql", CAPTURE, query, "--format", "jsonl"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize("held", [True, False])
def test_every_table_has_its_rows(
    held: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "small", lambda capture: held)
    opened = kdissect.open(CAPTURE)
    counts = {name: opened.table(name).num_rows for name in SCHEMAS}
    query = " union all ".join(f"select '{name}' as name, count(*) as n from {name}" for name in SCHEMAS)
    assert {row["name"]: row["n"] for row in asked(capsys, query)} == counts
    exchanges = opened.pandas("exchanges")
    found = asked(capsys, "select api, max(latency_ms) as worst from exchanges group by api order by api")
    expected = exchanges.dropna(subset=["api"]).groupby("api")["latency_ms"].max()
    assert {row["api"]: row["worst"] for row in found if row["api"] is not None} == expected.to_dict()


def test_every_row_is_as_in_pandas() -> None:
    opened = kdissect.open(CAPTURE)
    tables = opened.tables()
    for name in SCHEMAS:
        table = tables[name] if name in tables else opened.table(name)
        with asking.answer(opened, f"select * from {name}") as (schema, batches):
            rows = pa.Table.from_batches(batches, schema)
        assert rows.column_names == table.column_names
        assert sorted(map(repr, rows.to_pylist())) == sorted(map(repr, table.to_pylist())), name


def test_columns_that_cost_more_are_there_when_named(capsys: pytest.CaptureFixture[str]) -> None:
    found = asked(capsys, "select count(*) as n from record_batches where crc_ok")
    assert found[0]["n"] == kdissect.open(CAPTURE).table("record_batches", ["crc_ok"], "crc_ok").num_rows > 0


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("select * from exchange", "no table 'exchange' (did you mean 'exchanges'?)"),
        ("select nothing from exchanges", "SQL: Binder Error"),
        ("selec", "SQL: Parser Error"),
        ("select cast(api as int) from exchanges", "SQL: Conversion Error"),
    ],
)
def test_what_is_wrong_is_one_line(query: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sql", CAPTURE, query]) == 2
    said_all = capsys.readouterr().err
    assert said in said_all
    assert said_all.count("\n") == 1

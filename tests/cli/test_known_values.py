"""Texts in filters that no row can have are told, and those that rows have are not."""

from __future__ import annotations

import pyarrow as pa
import pytest

import kdissect
from kdissect.cli.known_values import KNOWN, NUMBERED
from kdissect.cli.main import main
from kdissect.tables.declaration import TABLES
from tests.conftest import ROOT

CAPTURE = str(ROOT / "captures" / "base_tiny.pcap")
COLUMNS = {
    name: columns
    for name, table in TABLES.items()
    if (columns := [one.name for one in table.columns if one.name in KNOWN and one.type == pa.string()])
}


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("api = 'fetch'", "no row can have api 'fetch' (did you mean 'Fetch'?)"),
        ("latency_ms > 1 and api in ('Fetch', 'Prodcue')", "no row can have api 'Prodcue' (did you mean 'Produce'?)"),
        ("error = 'NOT_LEADER'", "no row can have error 'NOT_LEADER' (did you mean 'NOT_LEADER_OR_FOLLOWER'?)"),
        (
            "hold = 'xyz'",
            "no row can have hold 'xyz'; it is one of data, timeout, throttled, error, immediate, unknown, "
            "replication, rebalance",
        ),
    ],
)
@pytest.mark.parametrize("asked", [[CAPTURE, "--table", "exchanges"], ["latency", CAPTURE]], ids=["table", "latency"])
def test_what_no_row_can_have_is_told(
    asked: list[str], where: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*asked, "--where", where]) == 0
    assert capsys.readouterr().err == f"{said}\n"


@pytest.mark.parametrize(
    "where",
    [
        "api = 'Fetch'", "api = 'key 99'", "error = 'error 999'", "client_id = 'nobody'", "api != 'fetch'",
        "api = 'fetch' or latency_ms > 0", "not api = 'fetch'", "status = 'unanswered'",
    ],
)  # fmt: skip
def test_nothing_is_said_of_what_rows_may_have(where: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([CAPTURE, "--table", "exchanges", "--where", where]) == 0
    assert capsys.readouterr().err == ""


def test_a_filter_that_is_none_is_refused_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([CAPTURE, "--table", "exchanges", "--where", "api = 'fetch' and"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("name", ["sweep_440_kraft", "k4_share_group", "field_loss5", "k4_slow_and_throttled"])
def test_these_are_the_values_that_rows_have(name: str) -> None:
    tables = kdissect.open(ROOT / "captures" / f"{name}.pcap").tables(COLUMNS)
    for table, columns in COLUMNS.items():
        for column in columns:
            known = set(KNOWN[column]())
            found = tables[table][column].drop_null().unique().to_pylist()
            assert [one for one in found if one not in known and not NUMBERED.fullmatch(one)] == [], (table, column)

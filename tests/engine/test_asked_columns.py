"""The columns that callers ask for: rows and their order do not depend on them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import kdissect
from kdissect.cli.main import main
from kdissect.problems import UsageError
from tests.oracle.material import CAPTURES

TRANSACTIONS = CAPTURES / "k4_transactions.pcap"
TINY = CAPTURES / "base_tiny.pcap"


@pytest.mark.parametrize(
    ("table", "columns"),
    [
        ("connections", ["connection_id", "packets"]),
        ("problems", ["bytes", "kind"]),
        ("problems", ["connection_id", "exchange_id"]),
        ("exchanges", ["exchange_id"]),
        ("groups", ["exchange_id"]),
    ],
)
@pytest.mark.parametrize("memory", [None, 512_000_000])
def test_rows_keep_their_order_without_the_columns_that_they_are_ordered_by(
    table: str, columns: list[str], memory: int | None
) -> None:
    capture = kdissect.open(TRANSACTIONS, memory=memory)
    assert capture.table(table, columns).equals(capture.table(table).select(columns))


def read_in_pieces(capture: kdissect.Capture, columns: list[str]) -> object:
    return list(capture.batches("exchanges", columns))


@pytest.mark.parametrize(
    "read",
    [
        lambda capture, columns: capture.table("exchanges", columns),
        lambda capture, columns: capture.tables({"exchanges": columns}),
        lambda capture, columns: capture.stream("exchanges", columns),
        read_in_pieces,
    ],
)
def test_a_column_twice_and_none_at_all_are_refused(read: Callable[[kdissect.Capture, list[str]], object]) -> None:
    with pytest.raises(UsageError, match="column 'api' of table 'exchanges' is named twice"):
        read(kdissect.open(TINY), ["api", "latency_ms", "api"])
    with pytest.raises(UsageError, match="no column of table 'exchanges' is named"):
        read(kdissect.open(TINY), [])


@pytest.mark.parametrize("form", ["table", "csv", "zeek"])
def test_the_command_refuses_it_in_one_line(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(TINY), "--table", "exchanges", "--columns", "api,api", "--format", form]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == "kdissect: column 'api' of table 'exchanges' is named twice\n"


@pytest.mark.parametrize(
    ("name", "table", "where"),
    [
        ("raw_cuts.pcap", "time_budget", None),
        ("raw_cuts.pcap", "problems", None),
        ("k4_java_classic.pcap", "exchanges", "latency_ms > 500"),
    ],
)
def test_no_piece_of_a_table_with_rows_is_empty(name: str, table: str, where: str | None) -> None:
    rows = kdissect.open(CAPTURES / name).table(table, where=where)
    assert min(len(chunk) for column in rows.columns for chunk in column.chunks) > 0

"""The columns that callers ask for: rows and their order do not depend on them."""

from __future__ import annotations

import pytest

import kdissect
from tests.oracle.material import CAPTURES

TRANSACTIONS = CAPTURES / "k4_transactions.pcap"


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

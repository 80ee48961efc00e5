"""Ids as text, and what connections say spread over their rows, against plain Python."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from kdissect.tables.apinames import api_column, error_column
from kdissect.tables.identity import FEW, SHORT, Directory, exchange_ids, written_out
from tests.tables.made import connections


def test_ids_have_sixteen_digits_and_the_ordinal() -> None:
    rng = np.random.default_rng(1)
    ids = np.concatenate(
        [np.array([0, 1, 2**64 - 1, 0x0123456789ABCDEF], np.uint64), rng.integers(0, 2**63, 500, np.uint64)]
    )
    n = rng.integers(0, 10 ** rng.integers(1, 18, len(ids)), len(ids))
    orphan = rng.random(len(ids)) < 0.5
    expected = [f"{i:016x}:{'r' * bool(o)}{k}" for i, k, o in zip(ids.tolist(), n.tolist(), orphan, strict=True)]
    assert exchange_ids(ids, n, orphan).to_pylist() == expected


@pytest.mark.parametrize(
    "texts",
    [
        ["a"],
        ["", "seven b", "eight by", "nine byte", "x" * (SHORT - 1), "y" * SHORT, "größer"],
        ["", "z" * (SHORT + 1)],
        ["", ""],
        [f"{i:016x}" for i in range(11)],
        [f"{i:016x}" for i in range(70)],
    ],
)
@pytest.mark.parametrize("nulls", [False, True])
@pytest.mark.parametrize("begin", [0, 8, 3])
def test_dictionary_columns_are_written_out(texts: list[str], nulls: bool, begin: int) -> None:
    """As Arrow does it: whole, and slices of them."""
    chance = np.random.default_rng(len(texts))
    codes = chance.integers(0, len(texts), 100, np.int32)
    indices = pa.array(codes, mask=chance.random(100) < 0.3 if nulls else None)
    column = pa.DictionaryArray.from_arrays(indices, pa.array(["before", *texts], pa.string())[1:])
    for rows in (0, 1, 7, 90):
        part = column.slice(begin, rows)
        made = written_out(part)
        made.validate(full=True)
        assert made.equals(part.cast(pa.string()))
        assert made.null_count == part.null_count


def test_dictionary_columns_of_other_kinds_are_written_out_too() -> None:
    """Small codes, no text at all, a text that is null."""
    for indices, texts in (
        (pa.array([1, 0, None], pa.int8()), pa.array(["a", "b"])),
        (pa.array([None, None], pa.int32()), pa.array([], pa.string())),
        (pa.array([1, 0], pa.int32()), pa.array(["a", None])),
        (pa.array([1, 0], pa.int32()), pa.array(["a", "b"], pa.large_string())),
    ):
        column = pa.DictionaryArray.from_arrays(indices, texts)
        assert written_out(column).to_pylist() == column.to_pylist()


@pytest.mark.parametrize("rows", [1, 2 * FEW])
def test_rows_have_what_their_connections_say(rows: int) -> None:
    made = connections(
        *[{"id": 7 * i, "client": ("10.0.0.1", 1000 + i), "broker": ("10.0.0.9", 9092 + i % 3)} for i in range(2 * FEW)]
    )
    directory = Directory(made)
    conn = np.arange(2 * FEW, dtype=np.int32)[::-1][:rows].copy()
    assert directory.connection_id(conn).to_pylist() == [f"{7 * i:016x}" for i in conn.tolist()]
    assert directory.ids(conn).tolist() == [7 * i for i in conn.tolist()]
    assert directory.client_port(conn).tolist() == [1000 + i for i in conn.tolist()]
    brokers = directory.broker(conn).to_pylist()
    assert [broker.rpartition(":")[2] for broker in brokers] == [str(9092 + i % 3) for i in conn.tolist()]
    assert [directory.brokers.texts[i] for i in directory.broker_codes(conn)] == brokers


def test_rows_without_a_connection_have_no_id() -> None:
    directory = Directory(connections(*[{"id": i} for i in range(2 * FEW)]))
    for conn in ([-1, 3], [-1, 3] * FEW, [-1]):
        expected = [None if i < 0 else f"{i:016x}" for i in conn]
        assert directory.connection_id(np.array(conn, np.int32)).to_pylist() == expected


def test_names_of_codes_that_no_message_can_hold_are_those_of_the_nearest() -> None:
    keys = np.array([0, -1, 18, 40_000], np.int32)
    assert api_column(keys).to_pylist() == ["Produce", None, "ApiVersions", "key 32767"]
    assert api_column(keys[:0]).type == pa.dictionary(pa.int32(), pa.string())
    known = np.array([True, True, False])
    assert error_column(np.array([0, 6, 6]), known).to_pylist() == [None, "NOT_LEADER_OR_FOLLOWER", None]

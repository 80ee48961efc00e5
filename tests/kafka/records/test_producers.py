"""Sequence continuity of idempotent producers."""

from __future__ import annotations

import pyarrow as pa
import pytest

from kdissect.kafka.recordsets.producers import COLUMNS, producers
from kdissect.kafka.recordsets.verification import verify
from tests.kafka.records.building import batch, opened, record

LARGEST = 2**31 - 1


def table(*sent: tuple[int, int, int, int]) -> pa.Table:
    """`record_batches` of batches of (producer id, epoch, first sequence, records), one exchange each."""
    data = [batch(record(0, b"", b"") * n, n, producer=(pid, epoch, first)) for pid, epoch, first, n in sent]
    batches = opened(*data)
    verify(batches)
    found = pa.Table.from_batches([batches.table()])
    size = len(found)
    more = {
        "exchange_id": [f"a:{i}" for i in range(size)], "sent_at": pa.nulls(size, pa.timestamp("us", tz="UTC")),
        "topic": ["t"] * size, "topic_id": pa.nulls(size, pa.string()), "cluster": pa.nulls(size, pa.string()),
        "partition": pa.array([0] * size, pa.int32()),
    }  # fmt: skip
    for name, values in more.items():
        found = found.append_column(name, [pa.array(values) if isinstance(values, list) else values])
    return found.select(COLUMNS)


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        ([(1, 0, 0, 5), (1, 0, 5, 1), (1, 0, 6, 2)], ["first", "ok", "ok"]),
        ([(1, 0, 0, 5), (1, 0, 0, 5), (1, 0, 5, 5)], ["first", "repeat", "ok"]),
        ([(1, 0, 0, 5), (1, 0, 9, 1), (1, 0, 10, 1)], ["first", "gap", "ok"]),
        ([(1, 0, 0, 5), (1, 0, 5, 5), (1, 0, 10, 5), (1, 0, 5, 5), (1, 0, 15, 1)],
         ["first", "ok", "ok", "repeat", "ok"]),
        ([(1, 0, 70, 5), (1, 1, 0, 5), (1, 1, 5, 1), (1, 0, 75, 1), (1, 1, 6, 1)],
         ["first", "reset", "ok", "fenced", "ok"]),
        ([(1, 0, LARGEST - 1, 3), (1, 0, 1, 2), (1, 0, 3, 1)], ["first", "ok", "ok"]),
        ([(1, 0, LARGEST, 1), (1, 0, 0, 2), (1, 0, LARGEST, 1)], ["first", "ok", "repeat"]),
    ],
)  # fmt: skip
def test_sequences(sent: list[tuple[int, int, int, int]], expected: list[str]) -> None:
    found = producers(table(*sent))
    assert found["sequence"].to_pylist() == expected


@pytest.mark.parametrize(("connections", "last"), [("aaa", "ok"), ("aba", "repeat")])
def test_a_request_that_is_captured_before_an_earlier_one_of_its_connection(connections: str, last: str) -> None:
    """A segment was lost before the capture: the request in it is sent again, behind the next one."""
    rows = table((1, 0, 0, 5), (1, 0, 6, 1), (1, 0, 5, 1))
    ids = [f"{name}:{n}" for name, n in zip(connections, (0, 2, 1), strict=True)]
    at = pa.array([1000, 2000, 2010], pa.timestamp("us", tz="UTC"))
    for name, values in (("exchange_id", pa.array(ids)), ("sent_at", at)):
        rows = rows.set_column(rows.column_names.index(name), name, values)
    found = producers(rows)
    assert found["sequence"].to_pylist()[-1] == last
    assert found["missing"].to_pylist() == ([0, 0, 0] if last == "ok" else [0, 1, 0])


def test_streams_are_apart() -> None:
    sent = [(1, 0, 0, 5), (2, 0, 0, 5), (1, 0, 8, 1), (2, 0, 5, 1), (-1, -1, -1, 4)]
    found = producers(table(*sent))
    assert found.select(["producer_id", "sequence", "missing", "expected_sequence", "last_sequence"]).to_pylist() == [
        {"producer_id": 1, "sequence": "first", "missing": 0, "expected_sequence": None, "last_sequence": 4},
        {"producer_id": 1, "sequence": "gap", "missing": 3, "expected_sequence": 5, "last_sequence": 8},
        {"producer_id": 2, "sequence": "first", "missing": 0, "expected_sequence": None, "last_sequence": 4},
        {"producer_id": 2, "sequence": "ok", "missing": 0, "expected_sequence": 5, "last_sequence": 5},
    ]


def test_nothing() -> None:
    assert len(producers(table((-1, -1, -1, 1)))) == 0

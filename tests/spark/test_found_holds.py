"""What the analysis tells of exchanges reaches the rows of the task that decoded them, and no others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from kdissect.analysis.holds.hold_kernels import DATA, HOLDS, REPLICATION, TIMEOUT
from kdissect.arrays.arrow import words
from kdissect.arrays.rows import as_rows
from kdissect.spark.cells.table_cells import Cell, read_cell
from kdissect.spark.stages import found_holds
from kdissect.spark.stages.found_holds import FOUND, Found, Telling
from kdissect.tables.declaration.model import EXCHANGE_KEYS
from kdissect.tables.fetch_rows import ORIGIN


def rows(keys: list[tuple[int, int]], **columns: Any) -> pa.Table:
    high, n = ([key[side] for key in keys] for side in (0, 1))
    return pa.table({EXCHANGE_KEYS[0]: high, EXCHANGE_KEYS[1]: n, **columns})


def hold(*codes: int) -> pa.Array:
    return words(np.array(codes), HOLDS)


def told(cells: list[pa.RecordBatch]) -> dict[int, pa.Table]:
    found = [Cell(**row) for batch in cells for row in batch.to_pylist()]
    assert {one.table for one in found} == {FOUND}
    return {one.origin: read_cell(one.data) for one in found}


def test_each_task_is_told_of_its_exchanges() -> None:
    fetches = rows([(7, 0), (9, 1), (7, 2)], hold=hold(DATA, TIMEOUT, -1), **{ORIGIN: pa.array([3, 5, 3], pa.int32())})
    produces = rows([(7, 1)], hold=hold(REPLICATION), replication_ms=[2.5], **{ORIGIN: pa.array([3], pa.int32())})
    few = rows([(7, 0), (7, 4)], api_key=[1, 11], hold=hold(DATA, -1), **{ORIGIN: pa.array([3, 3], pa.int32())})
    telling = Telling()
    assert not list(telling.take(as_rows({"fetches": fetches, "produces": produces, "exchanges": few, "groups": few})))
    parts = told(list(telling.rest()))
    assert {origin: part.num_rows for origin, part in parts.items()} == {3: 2, 5: 1}
    found = Found()
    found.add_rows(parts[3])
    made = found.filled(rows([(7, 2), (7, 1), (9, 1), (7, 0), (8, -1)], api=list("abcde")))
    assert made["hold"].to_pylist() == [None, "replication", None, "data", None]
    assert made["replication_ms"].to_pylist() == [None, 2.5, None, None, None]
    found.add_rows(parts[5])
    assert found.filled(rows([(9, 1)]))["hold"].to_pylist() == ["timeout"]


def test_waits_reach_their_rows_and_what_no_quota_held_back_needs_no_telling() -> None:
    origin = {ORIGIN: pa.array([3, 3, 3], pa.int32())}
    few = rows([(7, 0), (7, 1), (7, 2)], api_key=[3, 3, 78], hold=hold(-1, -1, TIMEOUT), throttled_ms=[0.0, 40.0, 0.0],
               agreed_ms=[None, None, 500.0], **origin)  # fmt: skip
    telling = Telling()
    assert not list(telling.take(as_rows({"exchanges": few})))
    (part,) = told(list(telling.rest())).values()
    assert part.num_rows == 2
    found = Found()
    found.add_rows(part)
    made = found.filled(rows([(7, 0), (7, 1), (7, 2), (7, 3)], broker_ms=[1.0, 50.0, 510.0, None]))
    assert made["throttled_ms"].to_pylist() == [0.0, 40.0, 0.0, None]
    assert made["agreed_ms"].to_pylist() == [None, None, 500.0, None]


def test_nothing_told_is_null() -> None:
    made = Found().filled(rows([(1, 1)]))
    assert made["hold"].to_pylist() == made["replication_ms"].to_pylist() == [None]


def test_keys_that_mix_alike_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(found_holds, "mixed", lambda high, n: np.zeros(len(high), np.uint64))
    found = Found()
    told_rows = [[1, 2, 3], [0, 0, 0], [DATA, TIMEOUT, DATA], [None, None, 1.0], [None] * 3, [None] * 3]
    found.add_rows(pa.table(told_rows, schema=found_holds.SCHEMA))
    made = found.filled(rows([(2, 0), (4, 0), (3, 0), (1, 0)]))
    assert made["hold"].to_pylist() == ["timeout", None, "data", "data"]


def test_much_is_passed_on_before_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(found_holds, "CELL_ROWS", 2)
    telling = Telling()
    one = rows([(1, 0), (1, 1)], hold=hold(DATA, DATA), **{ORIGIN: pa.array([0, 0], pa.int32())})
    assert told(list(telling.take(as_rows({"fetches": one}))))[0].num_rows == 2
    assert not list(telling.rest())

"""Commits dealt out by partition are filled in as all at once, however the rows were cut into lots."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from kdissect.analysis.committed_lag import settle
from kdissect.spark.cells import dealt_rows
from kdissect.spark.cells.table_cells import Cell, cell, cells_of, read_cell, rows
from kdissect.spark.stages.committed_offsets import COMMITS, deal, fill
from kdissect.tables.brokers import Brokers

CONNECTION = "00000000000000%02x"
TIMES = pa.timestamp("us", "UTC")


def captured(lots: int, seed: int) -> tuple[dict[str, pa.Table], list[Cell]]:
    """Fetches of two captures and commits to what they read: whole tables, and cells in lots of one connection each."""
    random = np.random.default_rng(seed)
    whole: dict[str, list[pa.Table]] = {"fetches": [], "fetch_partitions": [], COMMITS: [], "exchanges": []}
    cells = []
    for lot in range(lots):
        capture = f"set{lot % 2}"
        ids = [f"{CONNECTION % lot}:{n}" for n in range(40)]
        at = pa.array(random.integers(0, 1000, 20), TIMES)
        parts = {
            "fetches": pa.table({"exchange_id": ids[:20], "response_first_at": at}),
            "fetch_partitions": pa.table(
                {
                    "exchange_id": [one for one in ids[:20] for _ in range(3)],
                    "topic": [f"t{n % 2}" for n in range(60)],
                    "partition": pa.array(random.integers(0, 4, 60), pa.int32()),
                    "high_watermark": pa.array(random.integers(0, 500, 60)),
                    "error_code": pa.array((random.random(60) < 0.1).astype(np.int16)),
                }
            ),
            COMMITS: pa.table(
                {
                    "exchange_id": ids[20:],
                    "at": pa.array(random.integers(0, 1000, 20), TIMES),
                    "topic": [None if n == 7 else f"t{n % 2}" for n in range(20)],
                    "partition": pa.array(random.integers(0, 5, 20), pa.int32()),
                    "offset": pa.array(random.integers(0, 500, 20)),
                }
            ),
        }
        owned = pa.table({"exchange_id": ids, "capture": [capture] * 40})
        for name, table in {**parts, "exchanges": owned}.items():
            whole[name].append(table)
        broker = f"{capture}\t10.0.0.1:9092"
        cells += [Cell(name, broker, cell(table), 5, lot, lot % 3) for name, table in parts.items()]
    return {name: pa.concat_tables(tables) for name, tables in whole.items()}, cells


def sorted_rows(table: pa.Table) -> list[dict[str, Any]]:
    return sorted(table.to_pylist(), key=lambda row: row["exchange_id"])


@pytest.mark.parametrize("tasks", [1, 2, 7])
def test_commits_are_filled_in_as_all_at_once(tasks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dealt_rows, "KEPT_ROWS", 100)
    whole, cells = captured(6, tasks)
    plan: Any = SimpleNamespace(labels=list(range(10, 10 + tasks)))
    names: Any = SimpleNamespace(
        builder=lambda plan: None, resolved=lambda builder, name, table: table, brokers=Brokers()
    )
    cells.sort(key=lambda one: (one.origin, one.broker, one.lot))
    dealt = list(cells_of(deal([rows([one]) for one in cells], plan, names)))
    assert {one.lot for one in dealt} <= set(plan.labels)
    made = []
    for label in plan.labels:
        mine = [rows([one]) for one in dealt if one.lot == label]
        made += [read_cell(one.data) for one in cells_of(fill(mine))]
    found, expected = sorted_rows(pa.concat_tables(made)), sorted_rows(settle(whole))
    assert found == expected
    assert sum(row["high_watermark"] is not None for row in found) > 50


def test_rows_of_a_partition_come_to_one_task() -> None:
    dealt = dealt_rows.Dealt([3, 4, 5])
    table = pa.table({"topic": ["a", "b", "a", None] * 4, "partition": pa.array([0, 1, 0, 2] * 4, pa.int32())})
    for _ in range(2):
        assert not list(dealt.add_rows(COMMITS, table, dealt_rows.share_of_partition(table, 3)))
    places: dict[tuple[Any, Any], set[int]] = {}
    for one in cells_of(dealt.drain()):
        for row in read_cell(one.data).to_pylist():
            places.setdefault((row["topic"], row["partition"]), set()).add(one.lot)
    assert len(places) == 3
    assert all(len(found) == 1 for found in places.values())

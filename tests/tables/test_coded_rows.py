"""Rows made for the analysis alone say what the tables' rows say, and lead to the same holds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import kdissect
from kdissect.analysis.exchange_keys import keys_of
from kdissect.analysis.stage import HIDDEN, Stage
from kdissect.arrays.arrow import Coder
from kdissect.arrays.rows import Rows, Texts
from kdissect.capture.captureset import CaptureSet
from kdissect.capture.window import Window
from kdissect.engine import analysed_run
from kdissect.engine.analysed_run import Lot
from kdissect.tables import fetch_bodies
from kdissect.tables.declaration import readers
from kdissect.tables.order import order, order_rows
from kdissect.tables.partitions import coded_keys, matched, paired
from tests.conftest import ROOT

CAPTURES = [
    "era_0_8_2.pcap", "era_2_4_1.pcap", "k4_fetch_sessions_raw.pcap", "k4_follower_sessions.pcap",
    "k4_java_classic.pcap", "stories/quotas.pcap.zst", "stories/leader_move.pcap.zst",
]  # fmt: skip
READ = {
    name: sorted({column for one in PARTS for column in one.tables.get(name, ())} - {"exchange_id"})
    for PARTS in [(readers.SESSIONS, readers.FETCH_HOLDS, readers.PRODUCE_HOLDS)]
    for name in HIDDEN
}
NOT_FOR_HOLDS = {"client_id", "request_bytes", "cluster"}
"""Who used a session, and how much was written for it, matters to nobody who asks why answers were held back. Rows of
several clusters are split by their connections."""


@pytest.mark.parametrize("aside", [False, True])
@pytest.mark.parametrize("name", CAPTURES)
def test_they_are_the_rows_of_the_tables(name: str, aside: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every column that the analysis reads, row by row in the same order. `aside`: as far as bodies are read aside,
    those of Produce; of Fetch tests/tables/test_fetch_rows.py holds it."""
    taken: list[dict[str, Any]] = []

    def noted(_: Any, __: Any, lot: Lot, **___: Any) -> dict[str, Any]:
        taken.append({name: order_rows(name, rows) for name, rows in lot.rows.items()})
        return {}

    monkeypatch.setattr(analysed_run, "worked", noted)
    if not aside:
        monkeypatch.setattr(fetch_bodies, "READS", {(1, 0): frozenset()})
    for hidden in (True, False):
        monkeypatch.setattr(Stage, "only_holds", hidden)
        list(kdissect.open(str(ROOT / "captures" / name)).batches("exchanges"))
    codes, tables = taken
    for table in HIDDEN if not aside else HIDDEN - {"fetches", "fetch_partitions"}:
        rows, plain = codes[table], tables[table]
        if table == "produce_partitions" and not rows.num_rows:
            assert not (plain.ints("replicas", 0) > 0).any()
            continue
        assert rows.columns
        assert not plain.columns
        assert rows.num_rows == plain.num_rows
        for mine, theirs in zip(keys_of(rows), keys_of(plain), strict=True):
            np.testing.assert_array_equal(mine, theirs)
        for column in READ[table]:
            if column in NOT_FOR_HOLDS:
                continue
            if isinstance(rows.columns.get(column), Texts):
                lists = [_texts(one, column) for one in (rows, plain)]
                assert lists[0] == lists[1], (table, column)
            elif pa.types.is_floating(plain.array(column).type):
                np.testing.assert_array_equal(rows.reals(column), plain.reals(column), f"{table}.{column}")
            elif pa.types.is_boolean(plain.array(column).type):  # null is as good as no
                mine, theirs = rows.ints(column) > 0, plain.ints(column) > 0
                np.testing.assert_array_equal(mine, theirs, f"{table}.{column}")
            else:
                np.testing.assert_array_equal(rows.ints(column), plain.ints(column), f"{table}.{column}")


def _texts(rows: Rows, column: str) -> list[str | None]:
    coder = Coder()
    codes = rows.codes(column, coder).tolist()
    return [coder.texts[code] if code >= 0 else None for code in codes]


@pytest.mark.parametrize("name", CAPTURES)
@pytest.mark.parametrize("jobs", [1, 2])
def test_they_lead_to_the_same_holds(name: str, jobs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Block by block, at once and after everything was read, against the same analysis of tables."""
    monkeypatch.setattr(CaptureSet, "window", lambda self: Window(1 << 17))
    monkeypatch.setattr(analysed_run, "ROWS_A_TIME", 100)
    monkeypatch.setattr(analysed_run, "LOT", 100)
    columns = ["exchange_id", "api", "hold", "replication_ms", "broker_ms"]
    found, worked = [], analysed_run.worked
    for hidden in (True, False):

        def noted(stage: Any, clock: Any, lot: Lot, is_hidden: bool = hidden, **options: Any) -> Any:
            fetches = lot.rows["fetches"]
            assert (fetches.column_names == list(fetches.columns)) == is_hidden
            return worked(stage, clock, lot, **options)

        monkeypatch.setattr(analysed_run, "worked", noted)
        monkeypatch.setattr(Stage, "only_holds", hidden)
        opened = kdissect.open(str(ROOT / "captures" / name), jobs=jobs)
        found.append(sorted(_rows(opened.batches("exchanges", columns)), key=repr))
        later = (part["exchanges"] for part in opened.parts({"exchanges": columns}) if "exchanges" in part)
        found.append(sorted(_rows(later), key=repr))
    assert len(found[0]) > 50
    assert all(one == found[0] for one in found)
    assert {row["hold"] for row in found[0]} - {None}


def _rows(batches: Iterator[pa.RecordBatch]) -> list[dict[str, Any]]:
    return [row for batch in batches for row in batch.to_pylist()]


def test_rows_of_other_tables_are_made_as_tables() -> None:
    """Whoever is shown fetches gets rows."""
    assert Stage({"exchanges": None}).only_holds
    assert not Stage({"exchanges": ["exchange_id", "api"]}).only_holds
    assert not Stage({"exchanges": None, "fetches": ["hold"]}).only_holds
    assert not Stage({"exchanges": None, "findings": None}).only_holds
    assert not Stage({"fetches": None}).only_holds


def test_rows_of_one_instant_are_in_the_order_of_their_ids() -> None:
    """As text, where `:10` stands before `:9`, and orphans behind all others of a connection."""
    high = np.array([5, 5, 5, 5, -1, 2, 5], np.int64)
    n = np.array([9, 10, -1, 1, 3, 4, 9], np.int64)
    rows = Rows({"_connection": high, "_ordinal": n, "_time": np.full(7, 8), "row": np.arange(7)}, 7)
    ids = [f"{int(h) & (2**64 - 1):016x}:" + (str(k) if k >= 0 else f"r{-1 - k}") for h, k in zip(high, n, strict=True)]
    table = pa.table({"exchange_id": ids, "_time": [8] * 7, "row": range(7)})
    assert order_rows("fetches", rows).ints("row").tolist() == order("fetches", table)["row"].to_pylist()


@pytest.mark.parametrize("most", [4, 40, 90])
def test_partitions_are_put_together_alike(most: int) -> None:
    """By a kernel, and as columns: named once or more, on any side; few, and too many to compare each with each."""
    chance = np.random.default_rng(7)
    for _ in range(30):
        sides = []
        for size in chance.integers(0, most, 3):
            rows = np.sort(chance.integers(0, max(1, most // 12), size))
            sides.append((rows, chance.integers(0, 3, size), chance.integers(0, 4, size)))
        rows, topics, numbers = (list(columns) for columns in zip(*sides, strict=True))
        expected = matched(rows, coded_keys(rows, topics, numbers))
        for mine, theirs in zip(paired(rows, topics, numbers), expected, strict=True):
            np.testing.assert_array_equal(mine, theirs)
    backwards = [np.array([3, 1]), np.zeros(0, np.int64), np.array([1, 3])]
    others = [np.zeros(2, np.int64), np.zeros(0, np.int64), np.zeros(2, np.int64)]
    expected = matched(backwards, coded_keys(backwards, others, others))
    for mine, theirs in zip(paired(backwards, others, others), expected, strict=True):
        np.testing.assert_array_equal(mine, theirs)

"""What the analysis works on: cut into lots, and fed in order of time without a broker's rows in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import kdissect
from kdissect.analysis import stage
from kdissect.analysis.exchange_keys import keys_of
from kdissect.arrays.arrow import NULL_TIME, times
from kdissect.arrays.dictionaries import shrunk
from kdissect.capture import open_captures
from kdissect.capture.captureset import Member
from kdissect.engine.settings import Settings
from kdissect.net.scanner import Scanner
from kdissect.spark.cells.table_cells import Cell, cell, read_cell
from kdissect.spark.stages import analysing, indexing, lots
from kdissect.spark.stages.decoding import decode
from kdissect.spark.stages.plan import Plan, source_of
from kdissect.tables.declaration import columns_of
from kdissect.tables.declaration.model import EXCHANGE_KEYS

NAMES = ("exchanges", "fetches", "fetch_partitions")


def cells(batches: Iterator[pa.RecordBatch]) -> list[Cell]:
    return [Cell(**row) for batch in batches for row in batch.to_pylist()]


def test_what_follows_on_a_throttled_connection_is_read_in_later_batches_too() -> None:
    """Of APIs that wait for nothing: their waits are a quota's where their turn came in a window."""
    keys = {EXCHANGE_KEYS[0]: [7, 8, 7, 9], EXCHANGE_KEYS[1]: [0, 0, 1, 0]}
    first = pa.table(keys | {"api_key": [3, 3, 3, 2], "throttle_ms": [5.0, 0.0, 0.0, None]})
    read, throttled = lots.few(first, np.zeros(0, np.int64))
    assert (read.tolist(), throttled.tolist()) == ([0, 2, 3], [7])
    read, throttled = lots.few(first.set_column(3, "throttle_ms", pa.array([0.0, 9.0, 0.0, 0.0])), throttled)
    assert (read.tolist(), throttled.tolist()) == ([0, 1, 2, 3], [7, 8])


@pytest.mark.parametrize("most", [1, 40, 1 << 20])
def test_a_lot_has_all_rows_of_its_exchanges(captures: Path, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(lots, "LEAST", most)
    monkeypatch.setattr(lots, "MOST", most)
    capture = kdissect.open(captures / "base.pcap")
    tables = {name: capture.table(name).combine_chunks() for name in NAMES}

    def brokers(table: pa.Table) -> tuple[np.ndarray, list[str]]:
        column = table["broker"].combine_chunks().dictionary_encode()
        return column.indices.to_numpy().astype(np.int64), column.dictionary.to_pylist()

    made = lots.Lots(brokers, 4)
    found = [*made.take({name: table.to_batches()[0] for name, table in tables.items()})]
    staged = [*cells(iter(found)), *cells(made.rest())]
    by_lot: dict[int, dict[str, pa.Table]] = {}
    for one in staged:
        by_lot.setdefault(one.lot, {})[one.table] = read_cell(one.data)
        assert set(read_cell(one.data)["broker"].to_pylist() if one.table != "fetch_partitions" else [one.broker]) == {
            one.broker
        }
    owner: dict[tuple[int, int], int] = {}
    for lot, parts in by_lot.items():
        for part in parts.values():
            for key in zip(*(column.tolist() for column in keys_of(part)), strict=True):
                assert owner.setdefault(key, lot) == lot
    for lot, parts in by_lot.items():
        at = {one.at for one in staged if one.lot == lot}
        read = [parts[name] for name in (lots.FEW, "fetches") if name in parts]
        seen = np.concatenate([times(part, name) for part in read for name in lots.INSTANTS])
        assert len(at) == 1
        assert at.pop() <= seen[seen != NULL_TIME].min(initial=2**63 - 1)
    exchanges = tables.pop("exchanges")
    tables[lots.FEW] = exchanges.take(pa.array(lots.few(exchanges, np.zeros(0, np.int64))[0]))
    assert 0 < tables[lots.FEW].num_rows < exchanges.num_rows
    for name, table in tables.items():
        back = pa.concat_tables([parts[name] for parts in by_lot.values() if name in parts])
        assert Counter(map(repr, back.to_pylist())) == Counter(map(repr, table.to_pylist()))
    assert set(tables[lots.FEW]["api"].to_pylist()) >= {"ListOffsets", "JoinGroup", "SyncGroup"}
    assert sum(made.weights.values()) == sum(table.num_rows for table in tables.values())


@pytest.mark.parametrize("held", [2, 1 << 16])
def test_small_lots_of_many_tasks_give_the_same(
    captures: Path, simulate: Any, equal: Any, monkeypatch: pytest.MonkeyPatch, held: int
) -> None:
    """Fed in many pieces, with watermarks between them, the analysis says what it says of everything at once."""
    monkeypatch.setattr(lots, "GATHERED_ROWS", 1)
    monkeypatch.setattr(lots, "LEAST", 1)
    monkeypatch.setattr(lots, "MOST", 8)
    monkeypatch.setattr(analysing, "ROWS_A_TIME", 1)
    monkeypatch.setattr(stage, "HELD_ROWS", held)
    path = captures / "k4_fetch_sessions_raw.pcap"
    tables = [*NAMES, "produces", "fetch_sessions", "session_partitions", "findings"]
    equal(simulate(path, 5, tables), kdissect.open(path).tables(tables))


def test_a_task_opens_no_file_that_it_has_no_rows_of(captures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = [
        source_of(capture, False) for capture in open_captures([captures / "base.pcap", captures / "tls13.pcap"])
    ]
    plan = Plan(sources, {"exchanges": columns_of("exchanges")}, Settings(), [0])

    def refused(self: object) -> object:
        raise AssertionError("opened")

    monkeypatch.setattr(Member, "open", refused)
    assert any(batch.num_rows for batch in decode([], plan))


@pytest.mark.parametrize(("partitions", "full"), [(1, True), (64, False)])
def test_where_there_are_many_partitions_more_is_collected_before_it_is_cut(
    captures: Path, monkeypatch: pytest.MonkeyPatch, partitions: int, full: bool
) -> None:
    monkeypatch.setattr(indexing, "ROWS", 100)
    monkeypatch.setattr(indexing, "ROWS_A_BUCKET", 100)
    (capture,) = open_captures(captures / "k4_fetch_sessions_raw.pcap")
    source = source_of(capture, False)
    plan = Plan([source], {"exchanges": ["api"]}, Settings(), list(range(partitions)))
    chunks = indexing.Chunks(plan, 0, 0, source)
    scanner = Scanner(capture)
    block = next(capture.blocks(capture.window()))
    chunks.add_block(block, scanner.scan(block))
    assert 100 < len(block.packets) < 6400
    assert chunks.full == full
    capture.close()


def test_brokers_are_dealt_out_evenly() -> None:
    brokers = {f"a\t10.0.0.{n}:9092": str(n) for n in range(40)} | {"b\t10.0.1.1:9092": "1"}
    places = [place for _, _, place in analysing.dealt(brokers, {}, 40)]
    assert sorted(set(places)) == list(range(40))
    weights = {address: 1000 if name == "7" else 1 for address, name in brokers.items()}
    found = analysing.dealt(brokers, weights, 4)
    assert len({place for _, name, place in found if name == "1"}) == 1
    (heavy,) = {place for _, name, place in found if name == "7"}
    assert [name for _, name, place in found if place == heavy] == ["7"]


def test_a_part_of_a_table_has_no_longer_dictionary_than_it_needs() -> None:
    words = pa.array([f"word {n}" for n in range(10_000)]).dictionary_encode()
    part = pa.table({"word": words}).slice(5_000, 100).append_column("none", pa.array([None] * 100, words.type))
    small = shrunk(part)
    assert len(small["word"].chunk(0).dictionary) == 100
    assert small.to_pylist() == part.to_pylist()
    assert len(cell(part)) < 4_000

"""Where the analysis alone reads fetches and produces, their rows are codes between stages too."""

from __future__ import annotations

import random
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kdissect
from kdissect.analysis.exchange_keys import keys_of
from kdissect.arrays.rows import NULL, Rows, Texts
from kdissect.spark.cells.coded_cells import pack_fetches, pack_rows, split_rows, unpack_fetches, unpack_rows
from kdissect.spark.stages import analysing, decoding, lots
from kdissect.spark.stages.decoding import coded_tables
from kdissect.tables.declaration import columns_of
from kdissect.tables.declaration.model import EXCHANGE_KEYS
from kdissect.tables.fetch_rows import (
    FETCH_WIDTH,
    OF_SESSIONS,
    PARTITION_WIDTH,
    FetchRows,
    NamedFetches,
    fetches_of,
    partitions_of,
)
from tests.conftest import CAPTURES
from tests.other_cluster import write_other_cluster
from tests.spark.conftest import NO_CAPTURES

ASKED = ["exchanges"]
NAMED = "field_two_interfaces.pcapng"
"""Names hosts, which `simulate` does not collect."""
EVERY = [one for one in sorted(CAPTURES.rglob("*.pcap*")) if one.is_file() and one.name not in {*NO_CAPTURES, NAMED}]


def some_fetches(sizes: list[int], topics: int) -> NamedFetches:
    """Fetches with so many partitions each, of so many topics."""
    random_numbers = np.random.default_rng(len(sizes))
    rows = FetchRows(
        random_numbers.integers(-5, 1 << 40, (len(sizes), FETCH_WIDTH)),
        random_numbers.integers(-5, 300, (sum(sizes), PARTITION_WIDTH)),
    )
    fetches, partitions = fetches_of(rows.fetches), partitions_of(rows.partitions)
    fetches["partitions"], fetches["spent"] = sizes, random_numbers.random(len(sizes))
    fetches["connection"] = np.arange(len(sizes))
    fetches["throttle"], fetches["error"] = np.nan, NULL
    fetches["broker"], fetches["client"] = 0, random_numbers.integers(-1, 2, len(sizes))
    partitions["topic"] = random_numbers.integers(0, topics, sum(sizes))
    named = [(f"topic {code}", None) if code % 2 else (None, f"id {code}") for code in range(topics)]
    return NamedFetches(rows, ["a\t10.0.0.1:9092"], ["one", "two"], named)


def written_out(rows: NamedFetches) -> list[Any]:
    """Each fetch with its names in place of codes, and its partitions; without what the analysis fills in."""
    filled, filled_inner = {"exchange", *OF_SESSIONS[0]}, {*OF_SESSIONS[1]}
    found, at = [], 0
    partitions = partitions_of(rows.rows.partitions)
    for row in fetches_of(rows.rows.fetches):
        told = {name: row[name] for name in row.dtype.names if name not in filled}
        told["client"] = None if row["client"] < 0 else rows.clients[row["client"]]
        told["broker"] = rows.brokers[row["broker"]]
        mine = partitions[at : at + row["partitions"]]
        at += len(mine)
        kept = [{name: p[name] for name in p.dtype.names if name not in filled_inner} for p in mine]
        inner = [str({**one, "topic": rows.topics[one["topic"]]}) for one in kept]
        found.append((str(told), inner))
    return found


@pytest.mark.parametrize("topics", [3, 200])
def test_fetches_come_back_as_they_were(topics: int) -> None:
    before = some_fetches([2, 0, 70, 1], topics)
    after = unpack_fetches(pack_fetches(before), 7)
    assert written_out(after) == written_out(before)
    assert fetches_of(after.rows.fetches)["exchange"].tolist() == [7] * 4
    assert len(after.topics) <= max(64, 73)


def test_what_the_analysis_fills_in_is_left_out() -> None:
    """It has not been written yet: whatever lay in memory would go along."""
    before, other = some_fetches([2, 0, 70, 1], 3), some_fetches([2, 0, 70, 1], 3)
    both = fetches_of(other.rows.fetches), partitions_of(other.rows.partitions)
    for records, names in zip(both, OF_SESSIONS, strict=True):
        for name in names:
            records[name] -= 1 << 20
    assert pack_fetches(other) == pack_fetches(before)


def test_codes_come_back_as_they_were() -> None:
    values = [None if code == 2 else f"text {code}" for code in range(100)]
    columns = {
        EXCHANGE_KEYS[0]: np.array([1 << 60, -(1 << 60), 5]),
        "small": np.array([1, 0, -128]),
        "spent": np.array([1.5, np.nan, 0.0]),
        "error": np.array([NULL, 3, NULL]),
        "name": Texts(np.array([99, 2, -1]), values),
        "few": Texts(np.array([0, 1, -1]), ["a", "b"]),
    }
    after = unpack_rows(pack_rows(Rows(columns, 3)))
    assert after.num_rows == 3
    for name, column in columns.items():
        found = after.columns[name]
        if isinstance(column, Texts):
            assert isinstance(found, Texts)
            texts = [None if code < 0 else found.values[code] for code in found.codes.tolist()]
            assert texts == [None if code < 0 else column.values[code] for code in column.codes.tolist()]
        else:
            assert not isinstance(found, Texts)
            assert found.dtype == column.dtype
            np.testing.assert_array_equal(found, column)


@pytest.mark.parametrize("of", [[0, 0, 1, 1, 4], [1, 4, 0, 1, 0]])
def test_rows_are_cut_by_lots(of: list[int]) -> None:
    whole = some_fetches([2, 0, 3, 1, 5], 9)
    rows = written_out(whole)
    codes = Rows({EXCHANGE_KEYS[0]: np.arange(5), EXCHANGE_KEYS[1]: np.zeros(5, np.int64)}, 5)
    of_lot = {lot: [at for at, number in enumerate(of) if number == lot] for lot in (0, 1, 4)}
    fetches = split_rows(whole, np.array(of))
    assert {lot: part.keys[0].tolist() for lot, part in fetches} == of_lot
    assert {lot: written_out(part) for lot, part in fetches} == {
        lot: [rows[at] for at in mine] for lot, mine in of_lot.items()
    }
    assert {lot: keys_of(part)[0].tolist() for lot, part in split_rows(codes, np.array(of))} == of_lot


def test_some_fetches_with_their_partitions() -> None:
    whole = some_fetches([2, 0, 3, 1, 5], 9)
    part = whole.take(np.array([4, 1, 0]))
    assert written_out(part) == [written_out(whole)[at] for at in (4, 1, 0)]


def test_what_is_shown_is_not_coded() -> None:
    assert coded_tables({"exchanges": columns_of("exchanges")}) == {
        "fetches read aside", "fetches", "fetch_partitions", "produces", "produce_partitions"
    }  # fmt: skip
    for more in ("fetches", "findings", "fetch_sessions", "time_budget", "deliveries", "transactions", "producers"):
        assert not coded_tables({name: columns_of(name) for name in ("exchanges", more)})
    assert not coded_tables({"exchanges": ["api", "latency_ms"]})


def _marks(recording: Path) -> list[pytest.MarkDecorator]:
    """Of recordings in folders one in eight is read before a change lands; of others tests/conftest.py chooses."""
    in_folder, turn = recording.parent != CAPTURES, zlib.crc32(recording.name.encode()) % 8
    return [pytest.mark.exhaustive] if in_folder and turn else []


@pytest.mark.parametrize("recording", [pytest.param(one, id=one.name, marks=_marks(one)) for one in EVERY])
def test_every_capture(recording: Path, simulate: Any, equal: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lots, "MOST", 64)
    monkeypatch.setattr(analysing, "ROWS_A_TIME", 1000)
    equal(simulate(recording, 3, ASKED), kdissect.open(recording).tables(ASKED))


SEVERAL = ("base.pcap", "k4_slow_and_throttled.pcap", "sweep_391_kraft.pcap", "k4_session_eviction.pcap")


def test_bodies_are_read_aside(captures: Path, simulate: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[str] = set()
    note = decoding._note_tables
    monkeypatch.setattr(decoding, "_note_tables", lambda made: note(noted(made)))

    def noted(made: Any) -> Any:
        for batch in made:
            seen.update(batch.column("table").to_pylist())
            yield batch

    simulate([captures / name for name in SEVERAL], 3, ASKED)
    assert {"fetches read aside", "produces", "produce_partitions"} <= seen


@pytest.mark.parametrize("held", [2, 1 << 16])
def test_small_lots_and_units_of_many_tasks(
    captures: Path, simulate: Any, equal: Any, monkeypatch: pytest.MonkeyPatch, held: int
) -> None:
    """What is found out about a connection's exchanges reaches each task that decoded some of them."""
    monkeypatch.setattr(lots, "GATHERED_ROWS", 1)
    monkeypatch.setattr(lots, "LEAST", 1)
    monkeypatch.setattr(lots, "MOST", 8)
    monkeypatch.setattr(analysing, "ROWS_A_TIME", 1)
    monkeypatch.setattr("kdissect.analysis.stage.HELD_ROWS", held)
    paths = [captures / name for name in SEVERAL]
    equal(simulate(paths, 3, ASKED, giant=4000, unit=20_000), kdissect.open(paths).tables(ASKED))


@pytest.mark.parametrize("spans", [7, 2, 50])
def test_spans_cut_anywhere(
    captures: Path, simulate: Any, equal: Any, monkeypatch: pytest.MonkeyPatch, spans: int
) -> None:
    monkeypatch.setattr(lots, "MOST", 32)
    monkeypatch.setattr(analysing, "ROWS_A_TIME", 100)
    paths = [captures / name for name in (*SEVERAL, "k4_transactions.pcap")]
    expected = kdissect.open(paths).tables(ASKED)
    assert {"replication", "throttled", "timeout", "data"} <= set(expected["exchanges"]["hold"].to_pylist())
    equal(simulate(paths, 3, ASKED, spans=spans, cuts=random.Random(spans)), expected)


def test_brokers_of_one_name_in_two_clusters(captures: Path, tmp_path: Path, simulate: Any, equal: Any) -> None:
    """Sessions of one have nothing to do with those of the other."""
    path = captures / "k4_session_eviction.pcap"
    write_other_cluster(path, tmp_path / "other.pcap")
    paths = [path, tmp_path / "other.pcap"]
    expected = kdissect.open(paths).tables([*ASKED, "topics"])
    known = expected["exchanges"].group_by(["broker", "cluster"]).aggregate([]).to_pylist()
    assert len({row["cluster"] for row in known if row["cluster"]}) == 2
    assert len({row["broker"] for row in known}) < len(known)
    equal(simulate(paths, 3, ASKED, spans=3), {"exchanges": expected["exchanges"]})

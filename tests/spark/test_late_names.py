"""Names that a stream's messages tell after rows without them were written."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import kdissect
from kdissect.engine.resumption import columns
from kdissect.engine.settings import Settings

pytest.importorskip("pyspark")

from kdissect.spark.source.late_names import LATE_NAMES, Unnamed
from kdissect.spark.source.streaming import Work
from tests.engine.test_continued import cut

LATE = {
    "k4_session_eviction.pcap": {
        ("broker", "127.0.0.1:19092", "2"),
        ("cluster", "127.0.0.1:19092", "k4RecorderClusterId00w"),
    },
    "k4_follower_sessions.pcap": {("broker", "127.0.0.1:19091", "1"), ("broker", "127.0.0.1:19092", "2")},
    "k4_java_classic.pcap": {("topic", "dXqtbQkaQ2-ur1pVr3XKgQ", "__consumer_offsets")},
    "sweep_391_kraft.pcap": {("cluster", "100", "MkU3OEVBNTcwNTJENDM2Qg")},
}
"""By recording, what some of its rows lack when it comes in five files."""
TABLES = ["exchanges", "fetches", "fetch_partitions", "record_batches", "fetch_sessions", "session_partitions"]
NAMED = ("broker", "cluster", "topic", "topics", "session_key")
BEGINS = {"k4_session_eviction.pcap": 0.3}
"""The share of a recording before which nothing is captured."""
KEYS = {
    "fetch_sessions": ("session_key",),
    "session_partitions": ("session_key", "topic_id", "partition", "from_epoch"),
}


def pieces_of(name: str, captures: Path, folder: Path) -> list[Path]:
    """A recording in five files."""
    data, at, places = (captures / name).read_bytes(), 24, []
    while at + 16 <= len(data):
        places.append(at)
        at += 16 + int.from_bytes(data[at + 8 : at + 12], "little")
    begun = folder / "begun"
    begun.write_bytes(data[:24] + data[places[int(len(places) * BEGINS.get(name, 0))] :])
    return cut(begun, 5, folder)


def batches(name: str, captures: Path, folder: Path) -> Iterator[dict[str, list[Mapping[str, Any]]]]:
    """Rows of each of five files, by table, and what is left at the end."""
    wanted = {table: columns(table) for table in TABLES}
    state, work = None, Work(wanted, Settings(dated=True))
    for piece in pieces_of(name, captures, folder):
        *made, state = work.do("cut.pcap", [(piece.name, str(piece))], state)
        yield by_table(made)
    assert isinstance(state, bytes)
    yield by_table(work.end("cut.pcap", state))


def by_table(made: Any) -> dict[str, list[Mapping[str, Any]]]:
    found: dict[str, list[Mapping[str, Any]]] = {}
    for name, table in made:
        found.setdefault(name, []).extend(table.to_pylist())
    return found


@pytest.mark.parametrize("name", LATE)
def test_they_are_told_when_messages_tell_them(name: str, captures: Path, tmp_path: Path) -> None:
    told = [rows.get(LATE_NAMES, []) for rows in batches(name, captures, tmp_path)]
    assert told[0] == []  # what the first file tells its rows have
    assert {row["capture"] for rows in told for row in rows} == {"cut.pcap"}
    assert LATE[name] <= {(row["kind"], row["written"], row["name"]) for rows in told for row in rows}


@pytest.mark.parametrize("name", ["base.pcap", "zoo_franz_go.pcap"])
def test_nothing_is_told_where_rows_have_their_names(name: str, captures: Path, tmp_path: Path) -> None:
    assert not any(rows.get(LATE_NAMES) for rows in batches(name, captures, tmp_path))


def test_what_rows_lack_is_carried() -> None:
    lacks = Unnamed("cut.pcap", {"10.0.0.1:9092"}, {("1", "10.0.0.2:9092")}, {"dXqtbQkaQ2-ur1pVr3XKgQ"})
    assert Unnamed.of("cut.pcap", lacks.carried()) == lacks
    assert Unnamed.of("cut.pcap", {}) == Unnamed("cut.pcap")


@pytest.mark.spark
@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")
def test_views_name_rows_that_were_written_before(spark: Any, captures: Path, tmp_path: Path) -> None:
    """A batch of the first files of four sets, and one of all others."""
    watched, out = tmp_path / "in", tmp_path / "out"
    watched.mkdir()
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    sets = {}
    for name in LATE:
        folder = tmp_path / name
        folder.mkdir()
        pieces = pieces_of(name, captures, folder)
        sets[name] = [piece.rename(folder / piece.name.replace("cut.pcap", name)) for piece in pieces]
    for batch in (slice(1), slice(1, None)):
        for files in sets.values():
            for file in files[batch]:
                shutil.copy(file, watched)
        query = kdissect.spark.follow(spark, watched, str(out), TABLES, quiet=0.0)
        query.trigger(availableNow=True).start().awaitTermination()
    kdissect.spark.views(spark, str(out))
    mended = dict.fromkeys(NAMED, 0)
    for table in TABLES:
        key = KEYS.get(table, ("exchange_id", "topic_id", "partition", "base_offset"))
        written = spark.read.parquet(str(out / table)).toArrow().to_pylist()
        settled = spark.table(table).toArrow().to_pylist()
        assert len(settled) == len(written)
        whole = {}
        for name, files in sets.items():
            whole |= {(name, *of_row(row, key)): row for row in kdissect.open(files).table(table).to_pylist()}
        matched = sum((row["capture"], *of_row(row, key)) in whole for row in settled)
        assert matched > 0.9 * len(settled)
        for column in {*NAMED}.intersection(settled[0], next(iter(whole.values()))):
            lacking = []
            for rows in (written, settled):
                pairs = ((row, whole.get((row["capture"], *of_row(row, key)))) for row in rows)
                other = [
                    (row["capture"], row[column], one[column])
                    for row, one in pairs
                    if one and row[column] != one[column]
                ]
                lacking.append([pair for pair in other if pair[0] != "sweep_391_kraft.pcap" or column == "cluster"])
            assert lacking[1] == [], (table, column)
            mended[column] += len(lacking[0])
    assert all(mended.values()), mended


def of_row(row: Mapping[str, Any], key: tuple[str, ...]) -> tuple[Any, ...]:
    """These columns; of a session's key what follows the broker."""
    return tuple(row[one] if one != "session_key" else (*row[one].split("/")[-2:],) for one in key if one in row)

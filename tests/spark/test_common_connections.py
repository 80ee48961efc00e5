"""What several captures of a Spark job saw: each exchange has one row, as on one machine."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import kdissect
import kdissect.spark
from kdissect.analysis.sights import clocks
from kdissect.engine.capture_tables import MADE
from kdissect.spark.common_connections import BySpark
from kdissect.spark.source import remote_captures
from kdissect.spark.stages.matching import matching_steps as matching
from tests.other_cluster import write_other_cluster

WARNED = "ignore:PySpark does not yet fully support pandas:FutureWarning"


def both_ends(captures: Path, folder: Path) -> list[Path]:
    """Captures of the two hosts of a conversation, whose bytes can be read by range."""
    made = [folder / f"{end}.pcap" for end in ("client", "broker")]
    for path in made:
        with pa.input_stream(captures / "stories" / f"net_delay_{path.stem}.pcap.zst") as stream:
            path.write_bytes(stream.read())
    return made


def two_clusters(captures: Path, folder: Path) -> list[Path]:
    """One recording beside itself: other addresses, ClusterId and ids, the same sequence numbers and node ids."""
    recording, other = captures / "k4_session_eviction.pcap", folder / "other.pcap"
    write_other_cluster(recording, other)
    return [recording, other]


def sets(captures: Path, folder: Path, rotate: Any) -> list[Path]:
    """Captures of the two hosts, each cut into files."""
    made = []
    for path in both_ends(captures, folder):
        pieces = rotate(path, 4)
        (folder / path.stem).mkdir()
        for piece in pieces.iterdir():
            shutil.copy(piece, folder / path.stem / piece.name.replace("cut", path.stem))
        made.append(folder / path.stem)
    return made


@pytest.mark.parametrize("bucket_bytes", [1 << 15, 1 << 30])
def test_small_captures_in_few_buckets(
    captures: Path, tmp_path: Path, simulate: Any, equal: Any, bucket_bytes: int
) -> None:
    """The rows of a capture go where its connections are, in some of the buckets."""
    paths = both_ends(captures, tmp_path)
    names = ["exchanges", "connections", "clock_offsets", "capture_quality", "findings"]
    expected = kdissect.open(paths).tables(names)
    assert expected["clock_offsets"].num_rows
    equal(simulate(paths, 5, names, bucket_bytes=bucket_bytes), expected)


def test_two_clusters(captures: Path, tmp_path: Path, simulate: Any, equal: Any) -> None:
    """Connections of two clusters are two, where all that packets' headers say is the same but for addresses."""
    paths = two_clusters(captures, tmp_path)
    names = ["exchanges", "connections", "fetch_sessions", "clock_offsets"]
    expected = kdissect.open(paths).tables(names)
    assert len(set(expected["exchanges"]["cluster"].to_pylist())) == 2
    assert expected["clock_offsets"].num_rows == 0
    equal(simulate(paths, 3, names), expected)


def test_the_order_of_captures_changes_no_row(captures: Path, tmp_path: Path, equal: Any) -> None:
    paths = both_ends(captures, tmp_path)
    names = ["exchanges", "connections", "clock_offsets"]
    expected = kdissect.open(paths).tables(names)
    assert expected["clock_offsets"].num_rows == 1
    equal(kdissect.open(paths[::-1]).tables(names), expected)


@pytest.mark.parametrize("transport", ["ranges", "payload"])
@pytest.mark.parametrize("partitions", [1, 5])
def test_sets_of_files(
    captures: Path, tmp_path: Path, simulate: Any, equal: Any, rotate: Any, partitions: int, transport: str
) -> None:
    paths = sets(captures, tmp_path, rotate)
    names = ["exchanges", "connections", "clock_offsets", "problems", "fetch_sessions"]
    expected = kdissect.open(paths).tables(names)
    assert expected["clock_offsets"].num_rows == 1
    equal(simulate(paths, partitions, names, transport), expected)


def test_giant_connections(captures: Path, tmp_path: Path, simulate: Any, equal: Any) -> None:
    """Units are told what other captures have of their exchanges."""
    paths = both_ends(captures, tmp_path)
    names = ["exchanges", "fetches", "fetch_partitions", "connections", "problems"]
    equal(simulate(paths, 2, names, giant=2000, unit=20_000), kdissect.open(paths).tables(names))


@pytest.mark.parametrize("measured", [50, 1 << 16])
@pytest.mark.parametrize("partitions", [1, 4])
def test_connections_matched_in_parts(
    captures: Path, tmp_path: Path, simulate: Any, equal: Any, monkeypatch: pytest.MonkeyPatch, partitions: int,
    measured: int,
) -> None:  # fmt: skip
    """Their exchanges are in several tasks, and some captures have only some of them. Clocks are measured by the same
    ones, wherever these are."""
    monkeypatch.setattr(clocks, "MOST_MEASURED", measured)
    monkeypatch.setattr(clocks, "GATHERED", 10)
    paths = both_ends(captures, tmp_path)
    begun = sorted(kdissect.open(paths[1]).table("exchanges", ["request_first_at"])["request_first_at"].to_pylist())
    kdissect.open(paths[1]).cut(tmp_path / "begin.pcap", end=begun[len(begun) // 2])
    kdissect.open(paths[1]).cut(tmp_path / "end.pcap", start=begun[len(begun) // 2])
    given = [paths[0], tmp_path / "begin.pcap", tmp_path / "end.pcap"]
    names = ["exchanges", "connections", "clock_offsets", "problems"]
    expected = kdissect.open(given).tables(names)
    assert {len(places) for places in expected["connections"]["sights"].to_pylist()} >= {1, 2}
    assert expected["clock_offsets"].num_rows == 2
    monkeypatch.setattr(matching, "PART_REQUESTS", 20)
    monkeypatch.setattr(matching, "PART_BITS", 2)
    monkeypatch.setattr(matching, "MATCHED_ROWS", 100)
    parts = []
    add_answers = matching.add_answers

    def noted(batches: Any, plan: Any) -> Any:
        for batch in add_answers(batches, plan):
            parts.append(batch)
            yield batch

    monkeypatch.setattr(matching, "add_answers", noted)
    equal(simulate(given, partitions, names), expected)
    assert len(parts) > partitions**2


@pytest.mark.spark
@pytest.mark.filterwarnings(WARNED)
def test_captures_that_only_spark_reads(
    spark: Any, captures: Path, tmp_path: Path, equal: Any, rotate: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No table differs from those of one machine."""
    monkeypatch.setattr(remote_captures, "_LOCAL", remote_captures.re.compile("never:"))  # as if it were far away
    paths = sets(captures, tmp_path, rotate)
    expected = kdissect.open(paths).tables([*MADE, "clock_offsets"])
    assert len(set(expected["exchanges"]["capture"].to_pylist())) == 1
    made = kdissect.spark.dissect(spark, [path.as_uri() for path in paths], list(expected), partitions=2)
    equal({name: frame.toArrow() for name, frame in made.items()}, expected)
    made.unpersist()


@pytest.mark.spark
@pytest.mark.filterwarnings(WARNED)
def test_the_driver_learns_nothing_of_exchanges(
    spark: Any, captures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While captures are matched it is told as many bytes for some exchanges as for all of them."""
    told: list[int] = []
    rows: Callable[..., list[tuple[int, bytes]]] = BySpark.rows

    def counted(*given: Any) -> list[tuple[int, bytes]]:
        found = rows(*given)
        told.append(sum(len(packed) for _, packed in found))
        return found

    monkeypatch.setattr(BySpark, "rows", counted)
    paths = both_ends(captures, tmp_path)
    at = sorted(kdissect.open(paths).table("exchanges", ["request_first_at"])["request_first_at"].to_pylist())
    sizes, counts = [], []
    for end in (None, at[len(at) // 4]):
        told.clear()
        made = kdissect.spark.dissect(spark, paths, {"exchanges": ["network_kind"]}, partitions=2, end=end)
        counts.append(made["exchanges"].where("network_kind = 'both_ends'").count())
        sizes.append(sum(told))
    assert counts[0] > 3 * counts[1] > 100
    assert 0 < sizes[0] < sizes[1] + 100

"""The stages of a Spark job one after the other, without Spark: tables as the local engine makes them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import kdissect
from kdissect.engine.opened import MADE

SOME = (
    "base.pcap", "raw_reuse.pcap", "k4_share_group.pcap", "field_two_sections.pcapng", "field_ip_fragments.pcap",
    "field_gz.pcap.gz", "field_duplicates.pcap", "field_burst20.pcap", "field_snap96.pcap", "not_kafka.pcap",
)  # fmt: skip


@pytest.mark.parametrize("partitions", [1, 3, 16])
@pytest.mark.parametrize("transport", ["ranges", "payload"])
def test_tables_equal_the_local_engine(
    captures: Path, simulate: Any, equal: Any, partitions: int, transport: str
) -> None:
    paths = [captures / name for name in SOME]
    expected = kdissect.open(paths).tables()
    equal(simulate(paths[::-1], partitions, list(MADE), transport), expected)


@pytest.mark.parametrize("files", [1, 2, 7, 50])
@pytest.mark.parametrize("name", ["base.pcap", "k4_session_eviction.pcap"])
def test_connections_cut_across_files(
    captures: Path, simulate: Any, equal: Any, rotate: Any, name: str, files: int
) -> None:
    folder = rotate(captures / name, files)
    expected = kdissect.open(folder).tables()
    assert expected["capture_quality"]["file"].combine_chunks().unique().drop_null().__len__() == files
    equal(simulate(folder, 3, list(MADE)), expected)


def test_few_tables_ask_for_little(captures: Path, simulate: Any, equal: Any) -> None:
    path = captures / "base.pcap"
    equal(simulate(path, 2, ["groups", "topics"]), kdissect.open(path).tables(["groups", "topics"]))


def test_a_file_that_is_none_costs_itself_alone(captures: Path, simulate: Any, tmp_path: Path) -> None:
    for i in range(2):
        shutil.copy(captures / "base_tiny.pcap", tmp_path / f"good{i}.pcap")
    (tmp_path / "good0.pcap1").write_bytes(b"no capture at all, but long enough to be looked at")
    found = simulate([tmp_path / f"good{n}" for n in ("0.pcap", "0.pcap1", "1.pcap")], 2, ["problems", "exchanges"])
    local = kdissect.open([tmp_path / f"good{n}" for n in ("0.pcap", "0.pcap1", "1.pcap")])
    assert found["exchanges"].num_rows == local.table("exchanges").num_rows > 0
    assert any("good0.pcap1" in row["detail"] for row in found["problems"].to_pylist())

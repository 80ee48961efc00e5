"""What is said while tables are written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kdissect.spark.dataset import prepare
from kdissect.spark.writing.saving import write

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]


def test_each_job_and_each_capture_set_is_told(
    spark: Any, captures: Path, rotate: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = rotate(captures / "base_tiny.pcap", 2)
    (folder / "short.pcap").write_bytes((captures / "raw_ids.pcap").read_bytes()[:-5])
    said: list[tuple[str, str]] = []
    with caplog.at_level("INFO", "kdissect.spark"):
        write(
            prepare(folder, ["groups", "problems"]).on(spark, 2, placed=True),
            str(tmp_path / "out"),
            begun=lambda name: said.append((name, spark.sparkContext.getLocalProperty("spark.job.description"))),
        )
    whole, short = sorted(caplog.messages)
    assert whole.startswith("cut.pcap: 2 files, ")
    assert short.startswith("short.pcap: 1 file, ")
    assert "short.pcap" in short.partition("packets, ")[2]
    assert [name for name, _ in said] == ["decoding", "2 tables"]
    assert said[0][1] == "kdissect: decoding 2 captures of 3 files"
    assert said[1][1].startswith("kdissect: 2 tables of 2 captures, ")
    assert spark.sparkContext.getLocalProperty("spark.job.description") is None

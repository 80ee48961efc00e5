"""`crosscheck` on recorded captures: every difference has a known reason, and what is wrong is found."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import kdissect
from kdissect import crosscheck
from kdissect.problems import UsageError
from tests.conftest import ROOT

pytest.importorskip("pyshark")
pytestmark = [
    pytest.mark.oracle,
    pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark is not installed (apt install tshark)"),
]


def compared(name: str, change: Any = lambda table: table) -> tuple[crosscheck.Crosscheck, pa.Table]:
    path = ROOT / "captures" / name
    tables = kdissect.open(path).tables(["connections", "exchanges"])
    connections = tables["connections"].to_pylist()
    ports = {row["broker_port"] for row in connections if row["is_kafka"]}
    return crosscheck.crosscheck(path, change(tables["exchanges"]), ports), tables["exchanges"]


@pytest.mark.parametrize(
    "name",
    [
        "base.pcap",
        *(
            pytest.param(name, marks=pytest.mark.whole)
            for name in ("raw_ids.pcap", "era_0_8_2.pcap", "sasl_old.pcap", "field_truncated.pcap")
        ),
    ],
)
def test_every_difference_has_its_reason(name: str) -> None:
    result, exchanges = compared(name)
    assert result.unexplained == []
    rows = exchanges.to_pylist()
    asked = [r for r in rows if r["status"] != "orphan" and r["request_last_at"] is not None]
    alone = [d for d in result.differences if d.what == "request" and d.shown_by == "kdissect"]
    assert result.requests + len(alone) == len(asked)
    answered = [r for r in asked if r["response_last_at"] is not None]
    missed = [d for d in result.differences if d.what == "pair" and d.shown_by == "kdissect"]
    assert result.pairs + len(missed) + result.beyond.total() == len(answered)
    assert result.requests > 0.9 * len(asked)


def test_a_wrong_row_is_found() -> None:
    """Were a request's frame or a pair's version not what tshark sees, it would be said."""

    def shifted(table: pa.Table) -> pa.Table:
        frames = table.column("request_frame").to_pylist()
        frames[3] += 1
        return table.set_column(table.schema.get_field_index("request_frame"), "request_frame", pa.array(frames))

    result, _ = compared("zoo_kafkajs.pcap", shifted)
    kinds = {(d.what, d.shown_by) for d in result.unexplained}
    assert {("request", "kdissect"), ("request", "tshark")} <= kinds


def test_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "kdissect", "crosscheck", str(ROOT / "captures" / "base_tiny.pcap")],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "agree on" in done.stdout
    assert "no layout for" in done.stdout
    assert done.stderr.count("\n") <= 1  # only that kernels are compiled


def test_without_tshark(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="tshark on the PATH"):
        crosscheck.crosscheck(ROOT / "captures" / "base_tiny.pcap", pa.table({}), [9092])


def test_without_pyshark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyshark", None)
    with pytest.raises(UsageError, match="needs pyshark"):
        crosscheck.crosscheck(ROOT / "captures" / "base_tiny.pcap", pa.table({}), [9092])


def test_a_file_that_tshark_cannot_read(tmp_path: Path) -> None:
    path = tmp_path / "x.pcap"
    path.write_bytes(b"no capture at all, whatever its name says")
    with pytest.raises(UsageError, match="tshark cannot read"):
        crosscheck.crosscheck(path, pa.table({}), [9092])

"""Tables in other libraries: the Arrow PyCapsule interface, and what a notebook shows."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import kdissect
from tests.conftest import ROOT

BASE = ROOT / "captures" / "base.pcap"


def test_a_stream_is_the_table() -> None:
    capture = kdissect.open(BASE)
    stream = capture.stream("exchanges", columns=["exchange_id", "api", "latency_ms"], where="api = 'Fetch'")
    assert hasattr(stream, "__arrow_c_stream__")
    streamed = pa.table(stream)
    table = capture.table("exchanges", columns=["exchange_id", "api", "latency_ms"], where="api = 'Fetch'")
    assert streamed.num_rows
    assert streamed.sort_by("exchange_id").equals(table.sort_by("exchange_id"))


def test_polars_and_duckdb_see_the_same_rows() -> None:
    polars, duckdb = pytest.importorskip("polars"), pytest.importorskip("duckdb")
    exchanges = kdissect.open(BASE).table("exchanges")
    apis = {row["values"]: row["counts"] for row in exchanges.column("api").value_counts().to_pylist()}
    assert dict(polars.DataFrame(exchanges).group_by("api").len().iter_rows()) == apis
    assert dict(duckdb.sql("select api, count(*) from exchanges group by api").fetchall()) == apis


def test_what_a_notebook_shows(tmp_path: Path) -> None:
    """Names are escaped, and nothing is read."""
    path = tmp_path / "<b>.pcap"
    path.write_bytes(BASE.read_bytes())
    shown = kdissect.open(path)._repr_html_()
    assert "&lt;b&gt;.pcap" in shown
    assert f"{path.stat().st_size:,} bytes" in shown
    assert ">exchanges</code>" in shown

"""What notebooks show of tables: little, and nothing of a capture as HTML."""

from __future__ import annotations

import pyarrow as pa
import pytest

import kdissect
from kdissect.engine.display import COLUMNS, ROWS, table_html
from tests.conftest import ROOT


def test_what_a_capture_says_is_escaped() -> None:
    evil = "<script>alert('x')</script>"
    shown = table_html(pa.table({"client_id": [evil, None], "topics": [[evil], ["a"]]}))
    assert "<script>" not in shown
    assert shown.count("&lt;script&gt;") == 2
    assert "null" in shown
    assert "2 rows x 2 columns" in shown


def test_long_and_wide_tables_are_small() -> None:
    table = pa.table({f"column_{n}": ["x" * 500] * 100_000 for n in range(COLUMNS + 4)})
    shown = table_html(table)
    assert shown.count("<tr>") == ROWS + 1
    assert f"not shown: column_{COLUMNS}" in shown
    assert len(shown) < 30_000


def test_ipython_shows_arrow_tables_as_tables() -> None:
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell.instance()
    try:
        table = kdissect.open(ROOT / "captures" / "base_tiny.pcap").table("exchanges")
        data, _ = shell.display_formatter.format(table)
        assert data["text/html"] == table_html(table)
        shell.display_formatter.formatters["text/html"].for_type(pa.Table, lambda table: "mine")
        kdissect.open(ROOT / "captures" / "base_tiny.pcap")
        assert shell.display_formatter.format(table)[0]["text/html"] == "mine", "what the user has set stays"
    finally:
        InteractiveShell.clear_instance()


def test_without_ipython_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    assert kdissect.open(ROOT / "captures" / "base_tiny.pcap").table("topics") is not None

"""What kdissect says of every committed capture, kept as text: the first screen and a digest of each table.

A change that is meant is written with `UPDATE_GOLDEN=1 pytest tests/golden`; the difference then shows in review. Files
of captures that are no more fail.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

import kdissect
from kdissect.cli.main import main

HERE = Path(__file__).resolve().parent
CAPTURES = HERE.parents[1] / "captures"
CAPTURE_SAMPLE = {"base_tiny", "era_0_8_2", "field_loss1", "k4_session_eviction", "raw_errors", "sasl_logins", "tls13"}
NAMES = sorted(path.stem for path in CAPTURES.glob("*.toml"))
UPDATE = bool(os.environ.get("UPDATE_GOLDEN"))
WIDTH = "118"


def source(name: str) -> Path:
    """The capture file, or the folder of a rotated set."""
    folder = CAPTURES / name
    return folder if folder.is_dir() else next(iter(sorted(CAPTURES.glob(f"{name}.pcap*"))))


def account(name: str, capsys: pytest.CaptureFixture[str]) -> str:
    """The first screen and the tables' digests, as kept. The current folder is that of the captures."""
    code = main([source(name).relative_to(CAPTURES).as_posix()])
    shown = capsys.readouterr()
    lines = [f"$ kdissect {source(name).name}", *(line.rstrip() for line in shown.out.splitlines())]
    if code:
        lines += [f"exit code {code}", *shown.err.splitlines()[-1:]]
    else:
        lines.append("")
        tables = kdissect.open(source(name)).tables()
        lines += [f"{table:18} {len(rows):6} rows {digest(rows)}" for table, rows in sorted(plain(tables).items())]
    return "\n".join(lines) + "\n"


def plain(tables: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    return {name: table.to_pylist() for name, table in tables.items()}


def digest(rows: list[dict[str, Any]]) -> str:
    """Of all values, in order; doubles to the nanosecond."""
    text = "\n".join(json.dumps(row, default=str, sort_keys=True) for row in map(rounded, rows))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def rounded(row: dict[str, Any]) -> dict[str, Any]:
    return {k: round(v, 6) if isinstance(v, float) else v for k, v in row.items()}


@pytest.mark.every_capture
@pytest.mark.parametrize("name", NAMES)
def test_what_is_said_of(name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(CAPTURES)
    monkeypatch.setenv("COLUMNS", WIDTH)
    monkeypatch.setenv("NO_COLOR", "1")
    kept = HERE / f"{name}.txt"
    now = account(name, capsys)
    if UPDATE:
        kept.write_text(now)
    if not any(HERE.glob("*.txt")):
        pytest.skip("nothing is kept yet: UPDATE_GOLDEN=1 pytest tests/golden")
    assert kept.exists(), f"no golden file for {name}: UPDATE_GOLDEN=1 pytest tests/golden"
    assert now == kept.read_text(), "meant? UPDATE_GOLDEN=1 pytest tests/golden"


def test_no_strays() -> None:
    assert {path.stem for path in HERE.glob("*.txt")} <= set(NAMES)

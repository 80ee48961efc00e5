"""The charts' library: what a wheel brings is what V8 makes, and needs no V8."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from kdissect.problems import UsageError
from kdissect.report import charts_library
from tests.conftest import CAPTURES, ROOT

ADDRESSES = 2 * 10**9
INSTALLED = """
import os, sys; os.environ["MIMALLOC_ARENA_RESERVE"] = "32768"  # as `kdissect.cli.entry` does
from pathlib import Path; from kdissect.report import charts_library; from kdissect.cli.main import main
charts_library.PATH = Path(sys.argv[1]); sys.exit(main(sys.argv[2:]))
"""
"""kdissect with the charts' library in a file."""


@pytest.fixture(scope="module")
def brought(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a wheel, as `hatch_build.py` has it made."""
    path = tmp_path_factory.mktemp("assets") / "charts.js.z"
    subprocess.run([sys.executable, "-m", "kdissect.report.charts_library", str(path)], check=True, cwd=ROOT)
    return path


def report(path: Path, page: Path) -> subprocess.CompletedProcess[bytes]:
    """A report within 2 GB of addresses, of a kdissect whose library lies at `path`."""
    return subprocess.run(
        [sys.executable, "-c", INSTALLED, str(path), str(CAPTURES / "base_tiny.pcap"), "--html", str(page)],
        capture_output=True, check=False, cwd=ROOT,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES, ADDRESSES)),
    )  # fmt: skip


def test_a_report_within_little_address_space(brought: Path, tmp_path: Path) -> None:
    done = report(brought, tmp_path / "report.html")
    assert done.returncode == 0, done.stderr[-2000:]
    assert (tmp_path / "report.html").stat().st_size > 300_000


def test_where_it_cannot_be_made_nothing_is_read(tmp_path: Path) -> None:
    done = report(tmp_path / "none", tmp_path / "report.html")
    assert done.returncode == 2
    assert done.stderr.count(b"\n") == 1
    assert b"64 GB of addresses" in done.stderr
    assert not (tmp_path / "report.html").exists()


def test_what_is_brought_is_what_is_made(brought: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(charts_library, "PATH", brought)
    charts_library.charts_library.cache_clear()
    text = charts_library.charts_library()
    charts_library.charts_library.cache_clear()
    assert "vegaEmbed" in text
    assert "\r\n" not in text
    monkeypatch.setattr(charts_library, "PATH", brought / "none")
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (ADDRESSES, ADDRESSES))
    with pytest.raises(UsageError):
        charts_library.is_available()

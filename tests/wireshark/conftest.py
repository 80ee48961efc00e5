"""The plugin in a folder that any user can read."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.oracle.dissector import tshark
from tests.wireshark.plugged import written


@pytest.fixture(scope="session")
def lua() -> Iterator[Path]:
    """The plugin's path. pytest's own folders are their owner's alone, and tshark runs as somebody else."""
    tshark()
    with tempfile.TemporaryDirectory(prefix="kdissect-wireshark-") as folder:
        Path(folder).chmod(0o755)
        yield written(Path(folder))

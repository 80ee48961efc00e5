"""The notebooks run, and what is committed with them is what running gives.

Compared are texts and tables; a chart must be there on both sides (letters of a picture are measured by fonts and
differ from one release of the renderer to the next). What a kernel says on standard error is not kept. After a wanted
change:

    KDISSECT_UPDATE_DOCS=1 pytest tests/test_notebooks.py
    KDISSECT_UPDATE_DOCS=1 pytest tests/test_notebooks.py -m spark
"""

from __future__ import annotations

import asyncio
import base64
import os
import re
import zlib
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from tests.conftest import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
UPDATE = os.environ.get("KDISSECT_UPDATE_DOCS") == "1"
LARGEST = 300_000
"""Bytes of a notebook: people clone them."""
CHART = "image/png"


def test_they_are_all_there() -> None:
    assert [path.name[:2] for path in NOTEBOOKS] == ["01", "02", "03", "04", "05", "06"]


def test_pages_count_them_right() -> None:
    words = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
    places = {"README.md": r"(\w+) \[notebooks\]", "docs/index.md": r"(\w+) notebooks show",
              "docs/interoperation.md": r"`notebooks/` holds (\w+) "}  # fmt: skip
    for page, pattern in places.items():
        (found,) = re.findall(pattern, (ROOT / page).read_text())
        assert found.lower() == words[len(NOTEBOOKS)], page


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.stem, marks=pytest.mark.spark if "spark" in path.stem else pytest.mark.whole)
        for path in NOTEBOOKS
    ],
)
def test_committed_outputs_are_what_running_gives(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    monkeypatch.setenv("PATH", os.pathsep.join(("/usr/bin", "/bin")))  # as a kernel outside an activated environment
    monkeypatch.setenv("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    committed = nbformat.read(path, as_version=4)
    running = nbformat.read(path, as_version=4)
    for cell in running.cells:
        if cell.cell_type == "code":
            cell["outputs"] = []
    client = NotebookClient(running, timeout=240, resources={"metadata": {"path": str(path.parent)}})
    asyncio.run(client.async_execute())  # execute() would leave its event loop open
    for cell in running.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell["outputs"] = [output for output in cell.outputs if output.get("name") != "stderr"]
    running.metadata = committed.metadata
    if UPDATE:
        for cell in running.cells:
            for output in cell.get("outputs", []):
                if CHART in output.get("data", {}):
                    output["data"][CHART] = _packed(output["data"][CHART])
        nbformat.write(running, path)
        committed = running
    for before, after in zip(committed.cells, running.cells, strict=True):
        if before.cell_type == "code":
            assert [_essence(output) for output in before.outputs] == [_essence(output) for output in after.outputs], (
                before.source
            )


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_small_whole_and_of_no_machine(path: Path) -> None:
    text = path.read_text()
    assert len(text) < LARGEST
    assert not re.search(r"/(home|root|tmp|work|opt|usr|Users)/", text)
    cells = nbformat.read(path, as_version=4).cells
    outputs = [output for cell in cells if cell.cell_type == "code" for output in cell.outputs]
    assert not [output for output in outputs if output.output_type == "error"]
    assert sum(CHART in output.get("data", {}) for output in outputs) >= 2
    counts = [cell.execution_count for cell in cells if cell.cell_type == "code"]
    assert counts == list(range(1, len(counts) + 1)), "run from top to bottom"


def _packed(image: str) -> str:
    """The same PNG with its pixels compressed as far as they go: the renderer is quick about it, at five times the
    size."""
    png = base64.b64decode(image)
    chunks, pixels, at = [], b"", 8
    while at < len(png):
        length = int.from_bytes(png[at : at + 4], "big")
        kind, body = png[at + 4 : at + 8], png[at + 8 : at + 8 + length]
        at += 12 + length
        if kind == b"IDAT":
            pixels += body
        else:
            chunks.append((kind, body))
    chunks.insert(-1, (b"IDAT", zlib.compress(zlib.decompress(pixels), 9)))
    written = [len(body).to_bytes(4, "big") + kind + body + zlib.crc32(kind + body).to_bytes(4, "big")
               for kind, body in chunks]  # fmt: skip
    return base64.b64encode(png[:8] + b"".join(written)).decode()


def _essence(output: Any) -> Any:
    """What of an output must be equal."""
    if "data" not in output:
        return output.get("name"), output.get("text")
    if CHART in output["data"]:
        return CHART
    return {kind: text for kind, text in output["data"].items() if kind.startswith("text/")}

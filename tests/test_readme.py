"""README and docs do what they say: every command and example runs, every shown output is the real one.

Blocks in `sh` and `python` are run, `text` blocks are not; those of the pages about Spark need Java, and `spark` is a
session there. Two commands of the README install into a new environment;
CI runs those as they stand (`.ci/run`). After a wanted change of output:

    KDISSECT_UPDATE_DOCS=1 pytest tests/test_readme.py
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kdissect.tables.declaration import TABLES, column_type
from tests.analysis import findings_page
from tests.conftest import ROOT

README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").glob("*.md"))]
README_LINES = 150
"""The rest is in docs."""
UPDATE = os.environ.get("KDISSECT_UPDATE_DOCS") == "1"


def blocks(language: str) -> list[tuple[str, str]]:
    """Blocks of a language in all pages, as (place, text); those marked as CI's commands left out."""
    found = []
    for page in PAGES:
        text = re.sub(r"<!-- command: .*? -->\n```sh\n.*?```", "", page.read_text(), flags=re.DOTALL)
        for i, block in enumerate(re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)):
            found.append((f"{page.name}-{language}-{i}", block))
    return found


SPARK = """from pyspark.sql import SparkSession
built = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
spark = built.config("spark.sql.shuffle.partitions", "2").getOrCreate()
for place, block in {blocks!r}:
    exec(compile(block, place, "exec"), {{"__name__": "__main__", "spark": spark}})
"""
"""The examples of pages about Spark find a session, the same one: beginning it takes longer than most of them. A
streaming query has a state store for each partition of its shuffle, 200 where nobody says how many."""


def examples(language: str) -> list[Any]:
    """Parameters (block,) for the blocks of a language; those of the docs beside README are `whole`. Blocks of Python
    that find a session are one."""
    rest = {"spark.": [pytest.mark.spark], "README": []}
    found = blocks(language)
    if language == "python":
        on_spark = [one for one in found if one[0].startswith("spark.")]
        found = [one for one in found if one not in on_spark] + [("spark.md-python", SPARK.format(blocks=on_spark))]
    return [pytest.param(block, id=place, marks=rest.get(place[:6], [pytest.mark.whole])) for place, block in found]


@pytest.fixture
def workplace(tmp_path: Path) -> Path:
    """A folder to run examples in: the captures under their path, `kdissect` on the PATH."""
    (tmp_path / "captures").symlink_to(ROOT / "captures")
    program = tmp_path / "bin" / "kdissect"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m kdissect "$@"\n')
    program.chmod(0o755)
    return tmp_path


def run(command: list[str], workplace: Path) -> str:
    environment = {
        **os.environ,
        "PATH": f"{workplace / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "COLUMNS": "100",
    }
    done = subprocess.run(command, cwd=workplace, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done.stdout


@pytest.mark.parametrize("block", examples("sh"))
def test_commands(block: str, workplace: Path) -> None:
    """A block's lines one after the other: a later one may read what an earlier one wrote."""
    for line in block.splitlines():
        if line.strip() and not line.startswith("#"):
            run(["bash", "-euo", "pipefail", "-c", line], workplace)


@pytest.mark.parametrize("block", examples("python"))
def test_python_examples(block: str, workplace: Path) -> None:
    run([sys.executable, "-W", "error::UserWarning", "-c", block], workplace)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_shown_outputs(page: Path, workplace: Path) -> None:
    pattern = re.compile(r"(<!-- output: (?P<command>.*?) -->\n```text\n)(?P<output>.*?)(```)", re.DOTALL)

    def real(match: re.Match[str]) -> str:
        return match.group(1) + run(shlex.split(match.group("command")), workplace) + match.group(4)

    text = page.read_text()
    _compare(page, text, pattern.sub(real, text))


def test_the_table_reference() -> None:
    parts = [
        "# The tables\n\n",
        "Generated from the declaration that every surface uses; `kdissect tables NAME` prints the same. Times are "
        "UTC\nwith microseconds, durations milliseconds, sizes bytes; null means unknown, never zero.\n\n",
        "| table | one row per | `-o DIR` writes it |\n| --- | --- | --- |\n",
        *(
            f"| [`{t.name}`](#{t.name}) | {t.row} | {'if asked for' if t.on_request else 'yes'} |\n"
            for t in TABLES.values()
        ),
    ]
    for table in TABLES.values():
        parts.append(
            f"\n## {table.name}\n\nOne row per {table.row}.\n\n| column | type | meaning |\n| --- | --- | --- |\n"
        )
        parts += [f"| `{c.name}` | {column_type(c)} | {_cell(c.doc)} |\n" for c in table.columns]
    page = ROOT / "docs" / "tables.md"
    _compare(page, page.read_text() if page.exists() else "", "".join(parts))


def test_the_findings_page() -> None:
    _compare(findings_page.PAGE, findings_page.PAGE.read_text(), findings_page.make_page())


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_readme_is_read_in_one_sitting() -> None:
    assert len(README.read_text().splitlines()) <= README_LINES


def test_ci_runs_both_commands_of_the_readme() -> None:
    marked = re.findall(r"<!-- command: (.*?) -->\n```sh\n(.*?)\n```", README.read_text())
    assert [name for name, _ in marked] == ["install and read", "install and test"]
    script = (ROOT / ".ci" / "run").read_text()
    for name, _ in marked:
        assert f'readme "{name}"' in script


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _compare(page: Path, written: str, made: str) -> None:
    if UPDATE and written != made:
        page.write_text(made)
    else:
        assert written == made, f"{page.name} shows something else than what comes out"

"""What a release is made of: links from one address, versions that agree, notes, a workflow that names what exists."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import kdissect
from kdissect.wireshark.plugin import plugin
from tests.conftest import ROOT

pytestmark = pytest.mark.skipif(not (ROOT / "kdissect").exists(), reason="only a checkout is released")
ADDRESS = "https://example.org/someone/kdissect"


@pytest.fixture
def hook() -> Any:
    pytest.importorskip("hatchling")
    import runpy

    return runpy.run_path(str(ROOT / "hatch_build.py"))


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_links_follow_from_the_address(hook: Any) -> None:
    assert hook["links"]("") == {}
    links = hook["links"](ADDRESS)
    assert set(links) == {"Source", "Issues", "Changes", "Documentation"}
    assert all(link.startswith(ADDRESS) for link in links.values())


def test_a_readme_on_the_index_names_files_of_the_project(hook: Any) -> None:
    text = (ROOT / "README.md").read_text()
    assert hook["with_address"](text, "") == text
    changed = hook["with_address"](text, ADDRESS)
    targets = re.findall(r"\]\(([^)#]+)", changed)
    assert targets
    assert all(re.match("https?:", target) for target in targets)
    for target in targets:
        if target.startswith(ADDRESS):
            kind, _, place = target.removeprefix(ADDRESS).lstrip("/").partition("/main/")
            assert (ROOT / place).exists(), target
            assert (kind == "raw") == place.startswith("docs/images/"), target


def test_citation_says_version_and_address() -> None:
    text = (ROOT / "CITATION.cff").read_text()
    address = project()["tool"]["kdissect"]["address"]
    assert f"version: {kdissect.__version__}\n" in text
    assert re.findall(r"^repository-code: (.*)$", text, re.M) == ([address] if address else [])


def test_release_notes_are_a_section_of_the_changes() -> None:
    sections = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.M)
    for version, code in ((sections[0], 0), ("99.0.0", 1)):
        done = subprocess.run([ROOT / ".ci" / "release-notes", version], capture_output=True, text=True, timeout=30)
        assert done.returncode == code
        assert bool(done.stdout.strip()) == (code == 0)


def test_the_workflow_runs_programs_that_are_there() -> None:
    text = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    for program in re.findall(r"\.ci/[\w-]+", text):
        assert os.access(ROOT / program, os.X_OK), program
    pythons = re.findall(r"python: \[(.*)\]", text)[0].replace('"', "").split(", ")
    known = [one.rsplit(" ", 1)[1] for one in project()["project"]["classifiers"] if re.search(r":: 3\.\d+$", one)]
    assert pythons == known


def test_downloads_are_made_by_one_command(tmp_path: Path) -> None:
    """Each is one file that stands alone: the dissector, the dashboard, the rules for alerts."""
    done = subprocess.run(
        [ROOT / ".ci" / "downloads", tmp_path], env={**os.environ, "PYTHON": sys.executable, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {
        "kdissect.lua",
        "kdissect-grafana.json",
        "kdissect-alerts.yml",
    }
    assert (tmp_path / "kdissect.lua").read_text() == plugin()
    assert not re.search(r"\b(require|dofile|loadfile|package)\b\s*[(.\"']", plugin()), "it loads no other file"
    assert json.loads((tmp_path / "kdissect-grafana.json").read_text())["panels"]


@pytest.mark.exhaustive
def test_the_workflow_is_one_that_github_runs() -> None:
    """By actionlint: an installed one, or the newest that Go fetches."""
    if shutil.which("actionlint"):
        command = ["actionlint"]
    elif shutil.which("go"):
        command = ["go", "run", "github.com/rhysd/actionlint/cmd/actionlint@latest"]
    else:
        pytest.skip("needs actionlint, or Go to fetch it")
    files = sorted(map(str, (ROOT / ".github" / "workflows").glob("*.yml")))
    done = subprocess.run([*command, "-no-color", *files], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_source_distribution_has_what_a_user_needs() -> None:
    included = project()["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    assert {"/SECURITY.md", "/Dockerfile", "/CHANGELOG.md", "/LICENSE", "/captures", "/tests"} <= set(included)
    assert all((ROOT / name.lstrip("/")).exists() for name in included)


def test_issue_forms_show_commands_that_work(tmp_path: Any) -> None:
    """The three commands of the form, on a capture of ours."""
    text = (ROOT / ".github" / "ISSUE_TEMPLATE" / "wrong.yml").read_text()
    commands = re.findall(r"^\s*(kdissect (?:cut|redact) .*)$", text, re.M)
    assert len(commands) == 3
    script = "\n".join(commands).replace("YOURS.pcap", str(ROOT / "captures" / "base_tiny.pcap"))
    script = script.replace("kdissect ", f"{shlex.quote(sys.executable)} -P -m kdissect ")
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode in (0, 1), done.stderr  # 1: readable text is left, which it lists
    assert (tmp_path / "safe.pcap").exists()

"""Other Python processes are started in one place, which hands over the module path and nothing else of Python's."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import kdissect
from kdissect.python_process import can_start_python, start_python
from tests.conftest import PACKAGE

STARTERS = {
    "kdissect/python_process.py": "Python",
    "kdissect/kernels/shared_object.py": "ld",
    "kdissect/cli/subcommands/bulk.py": "java -version, and the JVM that PySpark starts",
    "kdissect/cli/printing/terminal.py": "the pager",
    "kdissect/wireshark/installation.py": "wireshark and tshark",
    "kdissect/live/source.py": "tcpdump or dumpcap",
}
"""Modules that start processes, and which."""
OF_SUBPROCESS = {"Popen", "check_call", "check_output", "getoutput", "getstatusoutput"}
OF_OS = ("exec", "spawn", "posix_spawn", "system", "popen")
NAMES_OF_PYTHON = {"kdissect/python_process.py", "kdissect/spark/workers.py"}
"""Modules that name this interpreter: the second one to Spark."""
SHOW = (
    "import json, os, sys\njson.dump([sys.argv[1:], sys.path, dict(os.environ), os.nice(0), os.getsid(0)], sys.stdout)"
)


@pytest.fixture(scope="module")
def sources() -> list[tuple[str, ast.Module]]:
    return [
        (path.relative_to(PACKAGE.parent).as_posix(), ast.parse(path.read_text()))
        for path in sorted(PACKAGE.rglob("*.py"))
    ]


def calls(tree: ast.Module) -> Iterator[ast.Call]:
    yield from (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def starts_processes(called: str) -> bool:
    module, _, name = called.rpartition(".")
    return (module == "os" and name.startswith(OF_OS)) or name in OF_SUBPROCESS or module == "subprocess"


def test_no_other_module_starts_processes(sources: list[tuple[str, ast.Module]]) -> None:
    starting = {path for path, tree in sources for call in calls(tree) if starts_processes(ast.unparse(call.func))}
    assert starting == set(STARTERS)


def test_nothing_hides_a_start(sources: list[tuple[str, ast.Module]]) -> None:
    """No name is taken out of these modules, and none that forks a Python of its own is used."""
    for path, tree in sources:
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                assert node.module not in ("subprocess", "os", "pty"), path
                assert not (node.module or "").startswith("multiprocessing"), path
                assert "ProcessPoolExecutor" not in {name.name for name in node.names}, path
            elif isinstance(node, ast.Import):
                assert not {name.name.partition(".")[0] for name in node.names} & {"multiprocessing", "pty"}, path


def test_no_other_module_names_the_interpreter(sources: list[tuple[str, ast.Module]]) -> None:
    named = {
        path
        for path, tree in sources
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and ast.unparse(node) == "sys.executable"
    }
    assert named == NAMES_OF_PYTHON


def test_no_code_runs_between_fork_and_exec(sources: list[tuple[str, ast.Module]]) -> None:
    """`preexec_fn` may hang where other threads hold locks (the subprocess module's own warning)."""
    given = {
        path for path, tree in sources for call in calls(tree) for word in call.keywords if word.arg == "preexec_fn"
    }
    assert not given


def shown(**named: int) -> tuple[list[str], list[str], dict[str, str], int, int]:
    process = start_python(SHOW, ["a", "--b"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, **named)  # type: ignore[arg-type]
    said, complained = process.communicate(timeout=60)
    assert (process.returncode, complained) == (0, b"")
    arguments, path, environment, nice, session = json.loads(said)
    assert session == process.pid
    return arguments, path, environment, nice, session


def test_what_it_gets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit(77)")
    (tmp_path / "sitecustomize.py").write_text("raise SystemExit(78)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["", str(tmp_path)]))
    monkeypatch.setenv("PYTHONSTARTUP", str(tmp_path / "json.py"))
    monkeypatch.setenv("PYTHONINSPECT", "1")
    monkeypatch.setenv("PYTHONNOUSERSITE", "1")
    monkeypatch.setenv("KDISSECT_PAGER", "cat")
    monkeypatch.setattr(sys, "path", ["", ".", "../else", *sys.path])
    arguments, path, environment, nice, _ = shown()
    assert arguments == ["a", "--b"]
    assert all(map(os.path.isabs, path))
    assert os.path.dirname(os.path.dirname(kdissect.__file__)) in path
    assert {name for name in environment if name.startswith("PYTHON")} == {"PYTHONNOUSERSITE"}
    assert environment["KDISSECT_PAGER"] == "cat"
    assert nice == os.nice(0)


def test_niceness() -> None:
    assert shown(nice=3)[3] == os.nice(0) + 3


def test_a_folder_whose_name_is_no_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = os.fsdecode(os.fsencode(tmp_path) + b"/\xff' \"\n")
    monkeypatch.setattr(sys, "path", [*sys.path, odd])
    assert odd in shown()[1]


@pytest.mark.parametrize("program", ["/usr/bin/uwsgi", "/bin/true", "", None])
def test_a_program_that_python_runs_within_is_not_started(program: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert can_start_python()
    monkeypatch.setattr(sys, "executable", program)
    assert not can_start_python()


def test_a_frozen_program_is_not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    assert not can_start_python()

"""The process behind the command line starts and leaves quickly, in the Python that everybody has."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SMALL = Path(__file__).parents[2] / "captures" / "base_tiny.pcap"


def test_leaving_keeps_what_was_printed_and_what_was_registered() -> None:
    program = (
        "import atexit, sys; from kdissect.cli.entry import leave; atexit.register(lambda: print('registered'));"
        "print('printed'); leave(3); print('never')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (3, "printed\nregistered\n")


LOADED = """
import sys
from kdissect.cli import entry
def left(code):
    print(*sys.modules, file=sys.stderr)
entry.leave = left
entry.run()
"""
BARE = "import sys, numpy, pyarrow.compute; print(*sys.modules)"
OURS, OTHERS = 310, 88
"""Modules of kdissect and of other packages that a first screen loads at most, beyond those of BARE: what Python itself
loads when it starts differs by environment. A module takes about half a millisecond of some 300."""
AS_TEXT = 62
"""Fields of our NamedTuples that a first screen loads with annotations as text at most, of some 570. Python compiles
each such text when the class is made: modules with NamedTuples do without `from __future__ import annotations`."""
JITS = {"llvmlite", "numba", "logging", "ssl", "subprocess", "numpy.random"}
NOT_LOADED = (
    "colorama", "cramjam", "crc32c", "cryptography", "duckdb", "jinja2", "llvmlite", "logging", "lz4", "numba",
    "numpy.ma", "numpy.random", "pandas", "pyarrow.dataset", "pyarrow.fs", "pyarrow.pandas_compat", "pyarrow.parquet",
    "rich.console", "rich.table", "scapy", "ssl", "subprocess", "zstandard",
    "kdissect.cli.subcommands.bulk", "kdissect.cli.live", "kdissect.cli.subcommands.traffic",
    "kdissect.engine.saving.parquet", "kdissect.report", "kdissect.schema.explain", "kdissect.schema.walker",
    "kdissect.spark", "kdissect.tls.session",
)  # fmt: skip


def test_a_small_capture_loads_what_it_needs() -> None:
    """Seconds say nothing on a busy machine; what is loaded is most of what a small capture costs."""
    bare = set(subprocess.run([sys.executable, "-c", BARE], capture_output=True, text=True, check=True).stdout.split())
    for arguments in ((), ("--table", "exchanges")):
        done = subprocess.run(
            [sys.executable, "-c", LOADED, SMALL, *arguments], capture_output=True, text=True, check=True
        )
        loaded = set(done.stderr.split())
        # Where the kernels' sources changed numba compiles them, and brings half of the standard library.
        allowed = JITS if "numba" in loaded else set()
        assert not loaded.intersection(NOT_LOADED) - allowed
        assert arguments or "zoneinfo" not in loaded
        ours = sum(name.partition(".")[0] == "kdissect" for name in loaded)
        assert ours <= OURS
        assert len(loaded - bare) - ours <= OTHERS or allowed


def test_annotations_of_named_tuples_are_seldom_text() -> None:
    counted = (
        "import typing; found = {one for module in list(sys.modules.values()) for one in vars(module).values()"
        " if isinstance(one, type) and hasattr(one, '_fields') and one.__module__.startswith('kdissect')};"
        "kinds = [kind for one in found for kind in one.__annotations__.values()];"
        "print(len(kinds), sum(isinstance(kind, typing.ForwardRef) for kind in kinds)"
    )
    program = LOADED.replace("print(*sys.modules", counted)
    done = subprocess.run([sys.executable, "-c", program, SMALL], capture_output=True, text=True, check=True)
    fields, as_text = map(int, done.stderr.split())
    assert fields > 500
    assert as_text <= AS_TEXT


def test_a_first_screen_parses_the_apis_that_it_saw() -> None:
    """A checkout parses their files, an installed package makes them of what it brings."""
    program = LOADED.replace(
        "print(*sys.modules",
        "from kdissect.schema import index; found = vars(index.load().apis);"
        "print(len(found['_made'] if '_made' in found else found['_parsed'])",
    )
    done = subprocess.run([sys.executable, "-c", program, SMALL], capture_output=True, text=True, check=True)
    assert int(done.stderr) < 20


PYTHON_AS_IT_WAS = """
import builtins, dataclasses, inspect, json, os, random, socket, sys, urllib.parse
if "numpy" in sys.argv[1]:
    import numpy, pyarrow, pyarrow.compute
from kdissect.cli import entry

def state():
    return list(sys.meta_path), list(sys.path_hooks), dict(vars(builtins)), dict(sys.modules)

def contents(modules):
    return {name: dict(vars(module)) for name, module in modules.items() if name in WATCHED and module is not None}

WATCHED = {"builtins", "dataclasses", "enum", "functools", "importlib", "inspect", "json", "os", "random", "re",
           "socket", "types", "typing", "urllib.parse"}
before = state()
attributes = contents(before[3])

def left(code):
    after = state()
    found = []
    if after[:2] != before[:2]:
        found.append("a finder or hook of imports")
    if {name: one for name, one in after[2].items() if name != "_"} != before[2]:
        found.append("a builtin")
    found += [name for name, module in before[3].items() if after[3].get(name) is not module]
    for name, module in after[3].items():
        loader = getattr(getattr(module, "__spec__", None), "loader", None)
        if module is None or type(loader).__module__.partition(".")[0] == "kdissect":
            found.append(name)
    for name, here in attributes.items():
        now = vars(after[3][name])
        found += [f"{name}.{one}" for one in here if one != "__warningregistry__" and now.get(one) is not here[one]]
    print(json.dumps(found), file=sys.stderr)
    os._exit(code)

entry.leave = left
sys.argv[1:] = sys.argv[2:]
entry.run()
"""


@pytest.mark.parametrize("before", ["nothing", "numpy"])
@pytest.mark.parametrize(
    "arguments", [[], ["--table", "fetches"], ["--messages", "Fetch.request"]], ids=["screen", "table", "messages"]
)
def test_the_command_runs_in_an_unchanged_python(arguments: list[str], before: str) -> None:
    """No finder, builtin or module of Python or of a library is replaced, and no function of the modules that earlier
    versions replaced; no module is loaded by a loader of our own."""
    command = [sys.executable, "-c", PYTHON_AS_IT_WAS, before, str(SMALL), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stderr) == []


PROGRAM = """
import sys
from kdissect.arrays.lean_arrow import load_arrow_alone
finders = list(sys.meta_path)
load_arrow_alone()
assert sys.meta_path == finders
import numpy as np, pyarrow as pa, pyarrow.compute as pc
table = pa.table({"a": [1, 2, 1], "b": np.arange(3.0), "c": ["x", None, "y"]})
assert table.group_by("a").aggregate([("b", "sum")]).num_rows == 2
assert table.filter(pc.field("a") == 1).sort_by([("b", "descending")])["b"].to_pylist() == [2, 0]
assert pa.scalar(1).as_py() == 1
assert not {"pandas", "pyarrow.dataset", "ssl"} & set(sys.modules)
"""
LATER = """
assert table.to_pandas().shape == (3, 3)
import pandas, pyarrow.dataset
assert pa.array(pandas.Series([1, 2])).to_pylist() == [1, 2]
assert pa.table(pandas.DataFrame({"a": [1]})).num_rows == 1
assert pyarrow.dataset.dataset(table).count_rows() == 3
"""


def run(program: str) -> Any:
    return subprocess.run([sys.executable, "-c", program], check=True)


def test_arrow_alone_groups_filters_and_sorts() -> None:
    run(PROGRAM)


def test_pandas_and_datasets_are_there_for_who_needs_them_later() -> None:
    run(PROGRAM + LATER)


def test_what_is_loaded_already_stays() -> None:
    run("import pandas, pyarrow.dataset, sys\n" + PROGRAM.partition("assert not")[0] + LATER)

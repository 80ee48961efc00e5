"""The process behind the command line starts and leaves quickly, and nothing is lost by it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SMALL = Path(__file__).parents[2] / "captures" / "base_tiny.pcap"

PROGRAM = """
import sys
from kdissect.cli.entry import LeanCompute
sys.meta_path.insert(0, LeanCompute)
import pyarrow as pa
import pyarrow.compute as pc
made = sum(hasattr(vars(pc).get(name), "__arrow_compute_function__") for name in vars(pc))
assert made < 20, made
missing = [name for name in {names!r} if not hasattr(pc, name)]
assert not missing, missing
array = pa.array([3, None, 1])
assert pc.and_(pa.array([True]), pa.array([True])).to_pylist() == [True]
assert pc.sum(array).as_py() == 4
assert array.filter(pc.is_valid(array)).to_pylist() == [3, 1]
assert not hasattr(pc, "no_such_function")
"""
MASKS = """
import sys
from kdissect.cli.entry import LeanMasks
sys.meta_path.insert(0, LeanMasks)
import numpy as np
import pyarrow as pa
assert pa.array(np.unique(np.array([3, 1, 3]))).to_pylist() == [1, 3]
assert "numpy.ma.core" not in sys.modules
assert np.ma.masked_array([1, 2], [True, False]).sum() == 2
assert np.ma.isMaskedArray(np.ma.masked_array([1, 2]))
"""
TYPES = """
import sys
from types import ModuleType
from kdissect.cli.entry import _HELP, LeanMasks, LeanTypes
sys.meta_path[:0] = [LeanMasks, LeanTypes]
sys.modules.update({name: ModuleType(name) for name in _HELP})
import numpy as np
import numpy.typing as npt
assert npt.NDArray[np.int64] | None
assert np.linalg.eigvals(np.eye(2)).tolist() == [1, 1]
assert "numpy._typing._array_like" not in sys.modules
from numpy._typing import _ArrayLikeInt_co
assert "numpy._typing._array_like" in sys.modules
import numpy.typing
assert numpy.typing.NDArray is not npt.NDArray
assert np.ma.masked_array([1, 2], [True, False]).sum() == 2
import pandas
assert pandas.Series([1, 2]).sum() == 3
"""


def test_types_for_annotations_are_loaded_for_who_asks_for_more() -> None:
    subprocess.run([sys.executable, "-c", TYPES], check=True)


def test_arrow_functions_are_made_when_they_are_asked_for() -> None:
    import pyarrow.compute as pc

    names = sorted(name for name, one in vars(pc).items() if hasattr(one, "__arrow_compute_function__"))
    assert len(names) > 200
    subprocess.run([sys.executable, "-c", PROGRAM.format(names=names)], check=True)


def test_leaving_keeps_what_was_printed_and_what_was_registered() -> None:
    program = (
        "import atexit, sys; from kdissect.cli.entry import leave; atexit.register(lambda: print('registered'));"
        "print('printed'); leave(3); print('never')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (3, "printed\nregistered\n")


def test_masked_arrays_are_loaded_for_who_makes_one() -> None:
    subprocess.run([sys.executable, "-c", MASKS], check=True)


LOADED = """
import sys
from kdissect.cli import entry
def left(code):
    print(*sys.modules, file=sys.stderr)
entry.leave = left
entry.run()
"""
OURS, OTHERS = 237, 262
"""Modules of kdissect and of everybody else that a first screen loads at most: a module costs about half a millisecond
of its 230."""
JITS = {"llvmlite", "numba", "logging", "selectors", "ssl", "subprocess", "tokenize", "numpy.random"}
NOT_LOADED = (
    "colorama", "cramjam", "crc32c", "cryptography", "dateutil.relativedelta", "duckdb", "jinja2", "llvmlite",
    "logging", "lz4", "numba", "numpy.ma.core", "numpy.random", "numpy._typing._array_like", "pandas",
    "pyarrow.dataset", "pyarrow.fs", "pyarrow.parquet", "rich.console", "rich.table", "scapy",
    "selectors", "ssl", "subprocess", "tokenize", "zstandard",
    "kdissect.cli.subcommands.bulk", "kdissect.cli.live", "kdissect.cli.subcommands.traffic",
    "kdissect.engine.saving.parquet", "kdissect.report", "kdissect.schema.explain", "kdissect.schema.walker",
    "kdissect.spark", "kdissect.tls.session",
)  # fmt: skip


def test_a_small_capture_loads_what_it_needs() -> None:
    """Seconds say nothing on a busy machine; what is loaded is most of what a small capture costs."""
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
        assert len(loaded) - ours <= OTHERS or allowed


def test_a_first_screen_parses_the_apis_that_it_saw() -> None:
    program = LOADED.replace(
        "print(*sys.modules", "from kdissect.schema import index; print(len(index.load().apis._parsed)"
    )
    done = subprocess.run([sys.executable, "-c", program, SMALL], capture_output=True, text=True, check=True)
    assert int(done.stderr) < 20

"""The process behind the command line starts and leaves quickly, and nothing is lost by it."""

from __future__ import annotations

import subprocess
import sys

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

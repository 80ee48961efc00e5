"""How kernels are compiled: parts, one specialisation each, checks that stay on."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from kdissect.kernels.kernel import kernel, part
from kdissect.kernels.memory import copy_bytes
from kdissect.kernels.signature import fields, parse
from tests.conftest import PACKAGE, ROOT

pytest.importorskip("numba")
from kdissect.kernels.jit import compile_form, dispatcher_of

pytestmark = pytest.mark.jit
LIMIT = 7


@part
def _at(a: Any, i: Any) -> Any:
    return a[i]


@part
def _sum(a: Any, i: Any) -> Any:
    return _at(a, i) + _at(a, 0) + _at(a, LIMIT)


@kernel("i8[:] i8 -> i8")
def _total(a: Any, i: Any) -> Any:
    return _sum(a, i) + _at(a, 1)


@kernel("u1[:] i8 const u1[:] i8 i8")
def _copied(to: Any, w: Any, source: Any, o: Any, n: Any) -> None:
    copy_bytes(to, w, source, o, n)


class _Given(NamedTuple):
    source: Any
    to: Any


_GIVEN = fields(_Given, "const i8[:] i8[:]")


@kernel("_GIVEN i8 -> i8")
def _moved(given: Any, n: Any) -> Any:
    for i in range(n):
        given.to[i] = given.source[i]
    return given.to[0]


def test_a_record_may_have_arrays_that_are_only_read() -> None:
    """Whether or not they may be written: numba itself takes no such array for a constant one within a tuple."""
    source, to = np.arange(5, 10), np.zeros(5, np.int64)
    assert _moved(_Given(source, to), 3) == 5
    assert to.tolist() == [5, 6, 7, 0, 0]
    assert source.flags.writeable
    source.flags.writeable = False
    assert _moved(_Given(source, to), 5) == 5
    with pytest.raises(TypeError):
        _moved(_Given(to, source), 5)


def test_parts_are_linked_into_kernels() -> None:
    a = np.arange(10)
    assert _total(a, 3) == 3 + 0 + 7 + 1


def test_constants_make_no_further_specialisations() -> None:
    whole: Any = _total
    compile_form(dispatcher_of(whole.py_func, cache=False), whole.signatures[0])
    kind: Any = _at
    assert len(kind.dispatcher.overloads) == 1


def test_what_declares_nothing_is_refused_where_it_stands() -> None:
    def bare(a: Any) -> Any:
        return a

    declared: Any = kernel
    for wrong in (lambda: declared(bare), lambda: declared()(bare)):
        with pytest.raises(TypeError, match="declares nothing: write what it takes and gives"):
            wrong()


def test_what_is_not_as_declared_is_refused() -> None:
    for wrong in (np.arange(10, dtype=np.int32), np.arange(20)[::2], np.arange(10).reshape(2, 5), 3):
        with pytest.raises(TypeError):
            _total(wrong, 1)
    with pytest.raises(TypeError):
        _total(np.arange(10))
    sealed = np.arange(10, dtype=np.uint8)
    sealed.flags.writeable = False
    with pytest.raises(TypeError):
        _copied(sealed, 0, sealed, 0, 1)
    _copied(np.zeros(9, np.uint8), 0, sealed, 0, 1)


def test_a_kernel_gives_what_it_declares() -> None:
    whole: Any = _total
    wrong = parse("i8[:] i8 -> i4", {})
    with pytest.raises(TypeError, match="gives int64, which is not what it declares: i8\\[:\\] i8 -> i4"):
        compile_form(dispatcher_of(whole.py_func, cache=False), wrong)


def test_kernels_run_as_python_for_debuggers() -> None:
    program = (
        "import numpy as np; from kdissect.kernels.kernel import kernel, part; from kdissect.kernels.memory import *;"
        "to = np.zeros(4, np.uint8); copy_bytes(to, 1, np.arange(4, dtype=np.uint8), 2, 2);"
        "print(kernel('i8 -> i8')(lambda x: x + 1)(2), to.tolist())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "NUMBA_DISABLE_JIT": "1"}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.stdout == "3 [0, 2, 3, 0]\n", done.stderr


def test_bounds_checks_are_on() -> None:
    """The net below the checks which kernels make themselves is there in parts too; nothing counts from the end."""
    with pytest.raises(IndexError):
        _total(np.arange(10), 10)
    with pytest.raises(IndexError):
        _total(np.arange(10), -1)
    with pytest.raises(IndexError):
        _total(np.arange(5), 1)


def test_a_part_is_not_called_from_python() -> None:
    with pytest.raises(TypeError, match="_at is a part of kernels"):
        _at(np.arange(3), 1)


@pytest.mark.parametrize(
    ("w", "o", "n"), [(0, 0, 9), (1, 0, 8), (-1, 0, 2), (0, -1, 2), (0, 5, 4), (0, 0, -1), (0, 1 << 62, 1)]
)
def test_bytes_out_of_range_are_not_copied(w: int, o: int, n: int) -> None:
    source, to = np.arange(8, dtype=np.uint8), np.zeros(8, np.uint8)
    with pytest.raises(IndexError):
        _copied(to, w, source, o, n)
    assert not to.any()
    _copied(to, 2, source, 3, 5)
    assert to.tolist() == [0, 0, 3, 4, 5, 6, 7, 0]


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """A folder with the package as a checkout has it before its kernels are compiled."""
    shutil.copytree(PACKAGE, tmp_path / "kdissect", ignore=shutil.ignore_patterns("compiled.so", "__pycache__"))
    return tmp_path


def test_nothing_runs_without_bounds_checks(sources: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import kdissect.kernels.kernel"], cwd=sources,
        env={**os.environ, "PYTHONPATH": str(sources), "NUMBA_BOUNDSCHECK": "0"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    assert "does not run with NUMBA_BOUNDSCHECK=0" in done.stderr


@pytest.mark.exhaustive
def test_the_first_run_says_so_in_one_line(sources: Path, tmp_path: Path) -> None:
    """An empty cache: one line tells why it takes longer, and the next run is silent."""
    command = [sys.executable, "-m", "kdissect", str(ROOT / "captures/base_tiny.pcap"), "--table", "exchanges"]
    own = {**os.environ, "PYTHONPATH": str(sources), "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    seen = [subprocess.run(command, env=own, cwd=sources, capture_output=True, text=True, check=True) for _ in range(2)]
    assert seen[0].stderr == "compiling kernels (once; takes some seconds)\n"
    assert seen[1].stderr == ""
    assert seen[0].stdout == seen[1].stdout


def _set(a: Any, b: Any, i: Any, j: Any, x: Any) -> Any:
    a[i, j] = x
    b[i] += 1
    return a[i, j] + (x << 3) - (x >> 1) * 2 + (x & 6) + (i < j) + (i >= j)


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int32, np.int64, np.uint64, np.float64, np.bool_])
@pytest.mark.parametrize("order", ["C", "F"])
def test_elements_and_integers_as_numpy_has_them(kind: Any, order: Any) -> None:
    given = dispatcher_of(_set, cache=False)
    a, b = np.zeros((3, 5), kind, order), np.zeros(3, kind)
    for i, j, x in [(0, 4, 7), (2, 0, 100), (1, 3, 0)]:
        found = given(a, b, i, j, x)
        assert found == int(kind(x)) + (x << 3) - (x >> 1) * 2 + (x & 6) + 1
    assert a.ravel("C").tolist() == [kind(x) for x in (0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 100, 0, 0, 0, 0)]
    assert b.tolist() == [1, 1, 1]
    for i, j in [(3, 0), (0, 5)] + ([(-1, 0), (0, -1), (-(2**62), 0)] if order == "C" else []):
        with pytest.raises(IndexError):
            given(a, b, i, j, 1)

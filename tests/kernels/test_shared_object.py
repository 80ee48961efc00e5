"""Kernels ahead of time give what numba gives; a checkout trusts only what was made of its own sources."""

from __future__ import annotations

import inspect
import shutil
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from kdissect.kernels import cache, native, shared_object
from kdissect.kernels.cache import compiled_sources, digest
from kdissect.kernels.kernel import LIBRARY, Kernel, kernel, part
from kdissect.kernels.native import Library
from kdissect.kernels.shared_object import all_kernels, build, main
from kdissect.kernels.signature import fields
from kdissect.kernels.targets import own_target


class Pair(NamedTuple):
    table: Any
    weights: Any


PAIR = fields(Pair, "i8[:,:] const f8[:]")


@part
def _weighed(pair: Any, i: Any) -> Any:
    return pair.table[i, 1] * pair.weights[i]


@kernel("PAIR u1[:] i4 b1 f8 -> f8 i4 b1 u8 i8")
def _mixed(pair: Any, flags: Any, shift: Any, negative: Any, scale: Any) -> Any:
    total = 0.0
    for i in range(pair.table.shape[0]):
        total += _weighed(pair, i) * scale
        flags[i] = i + shift
    sign = -1 if negative else 1
    return total, np.int32(shift * sign), not negative, np.uint64(0) - np.uint64(1), np.int64(sign)


@kernel("const i8[:] i8 -> i8", "const i4[:] i8 -> i4")
def _at(a: Any, i: Any) -> Any:
    if i == 99:
        raise ValueError("ninety-nine")
    return a[i]


@kernel("i8[:] i8")
def _fill(a: Any, x: Any) -> None:
    a[:] = x


def called(one: Any) -> Any:
    return one


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    pytest.importorskip("numba")
    path = tmp_path_factory.mktemp("kernels") / "some.so"
    kernels: dict[str, Any] = {one.name: one for one in map(called, (_mixed, _at, _fill))}
    assert build({own_target(): path}, kernels) == 4
    return Library(path)


def native_of(library: Library, one: Any) -> Any:
    return library.function(one.name, one.signatures)


@pytest.mark.jit
def test_numbers_arrays_and_tuples_go_through(library: Library) -> None:
    pair = Pair(np.arange(8).reshape(4, 2), np.array([1, 0.5, 0.25, 2]))
    pair.weights.flags.writeable = False
    flags = [np.zeros(4, np.uint8) for _ in range(2)]
    codes = native_of(library, _mixed), called(_mixed)
    given = [code(pair, out, 3, True, -0.5) for code, out in zip(codes, flags, strict=True)]
    assert given[0] == given[1] == (-0.5 * (1 + 1.5 + 1.25 + 14), -3, False, 2**64 - 1, -1)
    assert flags[0].tolist() == flags[1].tolist() == [3, 4, 5, 6]
    a = np.zeros(3, np.int64)
    assert native_of(library, _fill)(a, -7) is None
    assert a.tolist() == [-7, -7, -7]


@pytest.mark.jit
def test_the_first_form_that_fits_is_called(library: Library) -> None:
    at = native_of(library, _at)
    for kind in (np.int64, np.int32):
        assert at(np.arange(-5, 5, dtype=kind), 2) == -3
    with pytest.raises(TypeError) as refused:
        at(np.arange(5, dtype=np.int8), 2)
    assert str(refused.value) == f"{_name(_at)} takes (const i8[:] i8 -> i8 or const i4[:] i8 -> i4), not (i1[:] int)"


def _name(one: Any) -> str:
    return str(one.name)


@pytest.mark.jit
@pytest.mark.parametrize("i", [5, -1, 99])
def test_errors_keep_their_text(library: Library, i: int) -> None:
    told = []
    for code in (native_of(library, _at), called(_at)):
        with pytest.raises((IndexError, ValueError)) as raised:
            code(np.arange(5), i)
        told.append((raised.type, str(raised.value)))
    assert told[0] == told[1]


@pytest.mark.jit
def test_a_checkout_uses_what_was_made_of_its_sources(
    library: Library, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made_of, names = library.sources
    assert names == compiled_sources()
    assert made_of == digest(names)
    monkeypatch.setattr(native, "PATH", Path(library.path))
    assert native.find_library() is not None
    copy = tmp_path / "kdissect"
    for name in names:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(cache.PACKAGE / name, copy / name)
    monkeypatch.setattr(cache, "PACKAGE", copy)
    assert native.find_library() is not None
    changed = copy / "kafka" / "completed.py"
    changed.write_text(changed.read_text() + "\n")
    assert native.find_library() is None
    changed.unlink()
    assert native.find_library() is None
    monkeypatch.setattr(native, "PACKAGE", Path("/nowhere/kdissect"))
    assert native.find_library() is not None, "an installed package is as it was built"


def test_every_kernel_declares_what_it_takes() -> None:
    known = all_kernels()
    assert len(known) > 50
    for name, one in known.items():
        assert isinstance(one, Kernel)
        for signature in one.signatures:
            assert len(signature.taken) == len(inspect.signature(one.py_func).parameters), name


def test_names_of_functions_are_told_apart() -> None:
    known = all_kernels()
    assert len({native.symbol(name, 0) for name in known}) == len(known)


def test_zig_is_that_of_the_module_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the system's linker ziglang's runs, and none that lies in the current folder."""
    packages, current = tmp_path / "packages", tmp_path / "current"
    for folder, text in (
        (packages, "import sys\nopen(sys.argv[7], 'w').write(' '.join(sys.argv[1:]))"),
        (current, "1/0"),
    ):
        (folder / "ziglang").mkdir(parents=True)
        (folder / "ziglang" / "__init__.py").touch()
        (folder / "ziglang" / "__main__.py").write_text(text)
    monkeypatch.setattr(sys, "path", ["", str(packages), *sys.path])
    monkeypatch.setattr(shared_object, "linker", lambda: None)
    monkeypatch.chdir(current)
    made = tmp_path / "made.so"
    shared_object._link([Path("a.o"), Path("b.o")], made, own_target())
    options = "cc -nostdlib -s -Wl,--allow-shlib-undefined"
    assert made.read_text() == f"{options} -shared -o {made} a.o b.o"
    with pytest.raises(RuntimeError, match=r"(?s)linking the kernels for \S+ failed: .*IsADirectoryError"):
        shared_object._link([], tmp_path, own_target())


@pytest.mark.skipif(LIBRARY is None, reason="nothing is compiled beside the sources")
def test_what_is_compiled_already_is_taken(tmp_path: Path) -> None:
    assert LIBRARY is not None
    main(tmp_path / "compiled.so")
    assert (tmp_path / "compiled.so").read_bytes() == LIBRARY.path.read_bytes()

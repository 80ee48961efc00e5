"""Kernels for other systems: each library is of its system, exports its functions, and needs nothing but the C library.

Nothing of another system runs here. A library for this one, made by the same way, does.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from elftools.elf.elffile import ELFFile
from macholib.mach_o import LC_CODE_SIGNATURE, LC_ID_DYLIB, LC_LOAD_DYLIB, LC_SEGMENT_64
from macholib.MachO import MachO
from macholib.SymbolTable import SymbolTable

from kdissect.kernels import shared_object
from kdissect.kernels.cache import compiled_sources, digest
from kdissect.kernels.kernel import kernel
from kdissect.kernels.native import SOURCES, Library, symbol
from kdissect.kernels.object_symbols import undefined_symbols
from kdissect.kernels.shared_object import FROM_C, build
from kdissect.kernels.targets import TARGETS, own_target, target_named

pytestmark = [pytest.mark.jit, pytest.mark.whole]
MACHINES = {"linux-x86_64": "EM_X86_64", "linux-aarch64": "EM_AARCH64"}
PROCESSORS = {"macos-arm64": 0x0100000C, "macos-x86_64": 0x01000007}


@kernel("i8[:] i8 -> i8")
def _filled(a: Any, x: Any) -> Any:
    a[:] = 0  # a call of memset, or of what macOS has instead
    for i in range(a.size):
        a[i] += x
    return a[a.size - 1]


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    pytest.importorskip("numba")
    pytest.importorskip("ziglang")
    folder = tmp_path_factory.mktemp("targets")
    paths = {target: folder / target.name / "compiled.so" for target in TARGETS.values()}
    kernels: dict[str, Any] = {_named().name: _named()}
    assert build(paths, kernels) == 1
    return {target.name: path for target, path in paths.items()}


def _named() -> Any:
    return _filled


@pytest.mark.parametrize("name", MACHINES)
def test_elf(libraries: dict[str, Path], name: str) -> None:
    elf = ELFFile(io.BytesIO(libraries[name].read_bytes()))
    assert (elf["e_machine"], elf["e_type"]) == (MACHINES[name], "ET_DYN")
    symbols = [one for one in elf.get_section_by_name(".dynsym").iter_symbols() if one.name]
    exported = {one.name for one in symbols if one["st_shndx"] != "SHN_UNDEF"}
    assert {one for one in exported if one.endswith("_0") or one == SOURCES} == {_symbol(), SOURCES}
    assert {one.name for one in symbols if one["st_shndx"] == "SHN_UNDEF"} <= FROM_C
    dynamic = elf.get_section_by_name(".dynamic")
    assert not [tag for tag in dynamic.iter_tags() if tag.entry.d_tag == "DT_NEEDED"], "no C library is linked"
    (stack,) = [one for one in elf.iter_segments() if one["p_type"] == "PT_GNU_STACK"]
    assert not stack["p_flags"] & 1, "the stack is not executable"


def _symbol() -> str:
    return symbol(_named().name, 0)


@pytest.mark.parametrize("name", PROCESSORS)
def test_macho(libraries: dict[str, Path], name: str) -> None:
    (header,) = MachO(str(libraries[name])).headers
    assert header.header.cputype & 0xFFFFFFFF == PROCESSORS[name]
    commands = {command.cmd: data for command, _, data in header.commands}
    assert {LC_SEGMENT_64, LC_ID_DYLIB} <= commands.keys()
    assert commands[LC_ID_DYLIB].rstrip(b"\0") == b"@rpath/compiled.so", "no folder of the build machine"
    loaded = [data.rstrip(b"\0") for command, _, data in header.commands if command.cmd == LC_LOAD_DYLIB]
    assert set(loaded) <= {b"/usr/lib/libSystem.B.dylib"}
    assert (LC_CODE_SIGNATURE in commands) == (name == "macos-arm64"), "a Mac with its own processor asks for one"
    table = SymbolTable(MachO(str(libraries[name])), header)
    undefined = {text.decode().removeprefix("_") for _, text in table.undefsyms}
    assert undefined - {"dyld_stub_binder"} <= FROM_C
    exported = {text.decode().removeprefix("_") for _, text in table.extdefsyms}
    assert {one for one in exported if one.endswith("_0") or one == SOURCES} == {_symbol(), SOURCES}


@pytest.mark.parametrize("name", TARGETS)
def test_each_has_the_digest_of_the_sources(libraries: dict[str, Path], name: str) -> None:
    assert digest(compiled_sources()).encode() in libraries[name].read_bytes()


@pytest.mark.skipif(own_target().name not in TARGETS, reason="no wheel is made for this system")
def test_the_one_of_this_system_runs(libraries: dict[str, Path]) -> None:
    a = np.arange(5)
    assert Library(libraries[own_target().name]).function(_named().name, _named().signatures)(a, 7) == 7
    assert a.tolist() == [7] * 5


def test_two_builds_give_the_same_bytes(libraries: dict[str, Path], tmp_path: Path) -> None:
    target = TARGETS["macos-arm64"]
    build({target: tmp_path / "compiled.so"}, {_named().name: _named()})
    assert (tmp_path / "compiled.so").read_bytes() == libraries["macos-arm64"].read_bytes()


def test_what_no_c_library_has_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_object, "FROM_C", frozenset())
    with pytest.raises(RuntimeError, match="which no C library has"):
        build({TARGETS["macos-x86_64"]: tmp_path / "compiled.so"}, {_named().name: _named()})


def test_neither_kind_of_object_is_refused() -> None:
    with pytest.raises(ValueError, match="neither"):
        undefined_symbols(b"MZ" + bytes(100))


def test_an_unknown_target_is_refused() -> None:
    with pytest.raises(ValueError, match="there are linux-x86_64"):
        target_named("windows-arm64")

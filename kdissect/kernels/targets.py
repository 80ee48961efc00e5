"""The systems that the kernels are compiled for: from one run of numba on any of them for all.

Numba's lowered code has no instructions of one processor yet, so LLVM emits objects for another one from the same
module. The code needs at least glibc 2.17 (none of it is linked) or macOS 11.
"""

from __future__ import annotations

import platform
import sys
import sysconfig
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

ELF_FLAGS = ("-nostdlib", "-s", "-Wl,--allow-shlib-undefined")
MACHO_FLAGS = (
    "-nostdlib", "-s", "-Wl,-undefined,dynamic_lookup",
    "-Wl,-x", "-Wl,-dead_strip",  # without these, 1,700 local names of numba stay: a third of the file
    "-Wl,-install_name,@rpath/compiled.so",  # else the build folder's path is in the file
)  # fmt: skip


class Target(NamedTuple):
    """A system: its name here, LLVM's triple, the processor that its code needs, zig's name of it, its options for the
    linker, the platform tag of its wheel."""

    name: str
    triple: str
    processor: str
    zig: str
    flags: tuple[str, ...]
    tag: str


TARGETS: Mapping[str, Target] = MappingProxyType(
    {
        one.name: one
        for one in (
            Target("linux-x86_64", "x86_64-unknown-linux-gnu", "x86-64-v2", "x86_64-linux-gnu.2.17", ELF_FLAGS,
                   "manylinux_2_17_x86_64"),
            Target("linux-aarch64", "aarch64-unknown-linux-gnu", "generic", "aarch64-linux-gnu.2.17", ELF_FLAGS,
                   "manylinux_2_17_aarch64"),
            Target("macos-arm64", "arm64-apple-macosx11.0.0", "apple-m1", "aarch64-macos.11.0", MACHO_FLAGS,
                   "macosx_11_0_arm64"),
            Target("macos-x86_64", "x86_64-apple-macosx11.0.0", "x86-64-v2", "x86_64-macos.11.0", MACHO_FLAGS,
                   "macosx_11_0_x86_64"),
        )
    }
)  # fmt: skip
"""The systems that there are wheels for, by name. x86-64-v2 is as fast as what newer processors can, measured."""


def own_target() -> Target:
    """The system that runs now. Of systems without a wheel, one whose objects are for the machine as LLVM names it."""
    system = {"darwin": "macos"}.get(sys.platform, sys.platform)
    machine = {"AMD64": "x86_64"}.get(platform.machine(), platform.machine())
    known = TARGETS.get(f"{system}-{machine}")
    if known is not None:
        return known
    tag = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    if system == "linux":
        tag = f"manylinux_2_17_{machine}"
    return Target(f"{system}-{machine}", "", "x86-64-v2" if machine == "x86_64" else "generic", "", ELF_FLAGS, tag)


def target_named(name: str) -> Target:
    """The target of this name; of an empty one, the system that runs now. Raises ValueError for an unknown name."""
    if not name:
        return own_target()
    if name not in TARGETS:
        raise ValueError(f"no target {name!r}; there are {', '.join(TARGETS)}")
    return TARGETS[name]

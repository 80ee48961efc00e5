"""Starts other Python processes. No other module of the package does.

`python -m MODULE` and `python -c PROGRAM` look for modules in the current folder first, which may be anybody's: a
`json.py` there would run with the rights of the user. Here Python gets `-P` (or `-I`, if this process has it), an
environment without the variables by which Python loads code, and the module path of this process without its relative
places. Modules are therefore found where this process finds them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    import subprocess

KEPT_VARIABLES = frozenset(
    {"PYTHONHOME", "PYTHONPLATLIBDIR", "PYTHONNOUSERSITE", "PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX"}
)
"""Variables of Python that the other process gets: where its library is, and where compiled modules are kept."""
INTERPRETERS = ("python", "pypy")
"""What names of interpreters begin with."""
PACKAGES = ("kdissect", "pyarrow", "numpy")
"""Packages that the other process has to find. This one may have found them in a relative place."""


def can_start_python() -> bool:
    """Whether `sys.executable` is a Python interpreter. A program that embeds Python, or a frozen one, would read our
    arguments as its own."""
    name = os.path.basename(sys.executable or "")
    return name.startswith(INTERPRETERS) and not getattr(sys, "frozen", False)


def interpreter_paths() -> list[str]:
    """Paths of this interpreter: by which it was started, and of a virtual environment that on which it rests."""
    return [path for path in (sys.executable, getattr(sys, "_base_executable", None)) if path]


def start_python(
    program: str,
    arguments: Sequence[str] = (),
    *,
    nice: int = 0,
    environment: Mapping[str, str] | None = None,
    pass_fds: Sequence[int] = (),
    stdout: int | IO[bytes] | None = None,
    stderr: int | IO[bytes] | None = None,
) -> subprocess.Popen[bytes]:
    """Starts a Python process that runs `program`, a source text, and returns it.

    `arguments` are its `sys.argv[1:]`; `nice` is added to its niceness (nice(2)); `environment` has further variables.
    Its standard input is empty. It has a session of its own: Ctrl-C reaches this process only, which ends the other
    one. Raises OSError where no process can be started.
    """
    import subprocess  # a command that starts none does not load it

    lower = f"import os\nos.nice({nice})\n" if nice else ""
    text = f"import sys\nsys.path[:] = {_module_path()!a}\n{lower}{program}"
    return subprocess.Popen(
        [sys.executable, *_options(), "-c", text, *arguments],
        env={**_clean_environment(), **(environment or {})},
        stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, pass_fds=pass_fds, start_new_session=True,
    )  # fmt: skip


def _options() -> list[str]:
    """Options of the interpreter: as this process has them, and always without the current folder."""
    alone = ["-I"] if sys.flags.isolated else ["-P", *(["-s"] if sys.flags.no_user_site else [])]
    return [*alone, "-X", f"utf8={sys.flags.utf8_mode}"]


def _module_path() -> list[str]:
    """Absolute places of this process's module path, then the folders in which it found PACKAGES."""
    packages = [getattr(sys.modules.get(name), "__file__", None) for name in PACKAGES]
    folders = [os.path.dirname(os.path.dirname(file)) for file in packages if file]
    return [place for place in dict.fromkeys([*sys.path, *folders]) if os.path.isabs(place)]


def _clean_environment() -> dict[str, str]:
    """The environment without Python's variables other than KEPT_VARIABLES."""
    return {
        name: value for name, value in os.environ.items() if name in KEPT_VARIABLES or not name.startswith("PYTHON")
    }

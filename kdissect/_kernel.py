"""How every numba kernel of the project is compiled.

`kernel` is numba's `njit` with one set of options: the result is cached on disk, the GIL is released, integer division by
zero gives numpy's answer instead of raising, and numba's own bounds check stays on as a second net below the checks which
every kernel makes itself (numba's check lets negative indices through). `NUMBA_BOUNDSCHECK=0` would switch that net off
behind our back, so importing this module under it is refused.

Only kernel modules import this one: numba takes longer to load than everything else together.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

if os.environ.get("NUMBA_BOUNDSCHECK") == "0":
    raise RuntimeError("kdissect does not run with NUMBA_BOUNDSCHECK=0: its kernels read untrusted bytes. Unset it.")


def _writable(path: Path) -> bool:
    try:
        path.mkdir(parents=True, exist_ok=True)
        return os.access(path, os.W_OK)
    except OSError:
        return False


def _cache_directory() -> str | None:
    """Where compiled kernels go when neither the package's own folder nor the user's cache folder can be written.

    numba raises at import when it finds no place at all, so a last resort under the system's temporary folder is named
    here, private to the user.
    """
    if "NUMBA_CACHE_DIR" in os.environ or _writable(Path(__file__).parent / "__pycache__"):
        return None
    user = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "numba"
    if _writable(user):
        return str(user)
    return str(Path(tempfile.gettempdir()) / f"kdissect-kernels-{os.getuid() if hasattr(os, 'getuid') else 'user'}")


import numba  # noqa: E402  (after the environment was looked at)

_place = _cache_directory()
if _place is not None:
    numba.config.CACHE_DIR = _place


def kernel(function: F) -> F:
    """Compile `function` with the project's options on first call; later processes load it from the cache."""
    compiled: F = numba.njit(cache=True, nogil=True, boundscheck=True, error_model="numpy")(function)
    return compiled

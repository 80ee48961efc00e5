"""The folder of compiled kernels on a development machine: one that no other user can write to.

Its files are loaded as code. So a folder is used only where no user but this one (and root) can put files into it or
exchange it. The folder itself belongs to this user, is no link and has mode 0700. Each folder above it belongs to this
user or to root and is closed to others, or sticky as the system's temporary folder is. Where no such place is found, a
new folder of a random name serves this process alone and goes with it.

There is a folder for each state of the sources, side by side. Numba looks at the file that a kernel stands in only,
while kernels share layouts and call each other across files. A process that runs old sources keeps its folder; a folder
that no process started from for a week is removed.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

PACKAGE = Path(__file__).parent.parent
PREFIX = "kernels-"
UNUSED_AFTER = 7 * 24 * 3600
"""Seconds after which a folder that no process started from is removed: no process should use it any more."""

_KERNEL = re.compile(rb"^@(?:kernel|part|intrinsic)\b", re.MULTILINE)
_IMPORT = re.compile(rb"^from kdissect\.([\w.]+) import (?:(\w+)(?: as \w+)?$)?", re.MULTILINE)
"""A module whose names are imported, and the name where there is one: perhaps a module too, named by its package."""


def kernel_modules() -> list[str]:
    """The files of the package that hold kernels or parts of them, as paths within it."""
    return sorted(name for name, text in _sources().items() if _KERNEL.search(text))


def compiled_sources() -> list[str]:
    """The files whose text decides what compiled kernels do, as paths within the package: the kernels' own, the modules
    whose constants they use, and how they are compiled."""
    sources = _sources()
    kernels = {name for name, text in sources.items() if name.startswith("kernels/") or _KERNEL.search(text)}
    used = {one for name in kernels for found in _IMPORT.findall(sources[name]) for one in (found[0], b".".join(found))}
    kernels |= {module.decode().replace(".", "/") + ".py" for module in used}
    return sorted(kernels & sources.keys())


def digest(names: Iterable[str]) -> str:
    """A digest of these files of the package. Raises OSError where one is missing."""
    found = hashlib.blake2b(digest_size=8)
    for name in names:
        found.update(name.encode() + b"\0" + (PACKAGE / name).read_bytes() + b"\0")
    return found.hexdigest()


def _sources() -> dict[str, bytes]:
    return {path.relative_to(PACKAGE).as_posix(): path.read_bytes() for path in PACKAGE.rglob("*.py")}


def cache_folder(name: str) -> tuple[Path, bool]:
    """The folder for the compiled kernels called `name`, and whether kernels were kept there before.

    `NUMBA_CACHE_DIR`, the package's own folder, the user's cache (the XDG base directory specification): the first that
    is safe and can be written to.
    """
    asked = os.environ.get("NUMBA_CACHE_DIR")
    places = [Path(asked)] if asked else []
    places.append(PACKAGE / "__pycache__")
    with contextlib.suppress(RuntimeError):  # no home
        places.append(Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kdissect")
    for place in places:
        mine = place / f"{PREFIX}{name}"
        before = mine.is_dir()
        if private(mine):
            with contextlib.suppress(PermissionError):  # a confined process may write files, not set times
                os.utime(mine)
            _remove_unused(place, mine)
            return mine, before
    alone = Path(tempfile.mkdtemp(prefix="kdissect-"))
    atexit.register(shutil.rmtree, alone, ignore_errors=True)
    return alone, False


def private(folder: Path) -> bool:
    """Whether `folder`, made where it is missing, can be written to by this user and root only."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        if not hasattr(os, "geteuid"):  # no POSIX: the user's own folders are closed to others
            return os.access(folder, os.W_OK)
        status = folder.lstat()
        mine = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077
        return mine and os.access(folder, os.W_OK) and all(map(_closed, folder.resolve().parents))
    except OSError:
        return False


def _closed(folder: Path) -> bool:
    """Whether no other user can exchange what lies in this folder. A group of one's own counts as oneself."""
    status = folder.stat()
    if status.st_uid not in (0, os.geteuid()):
        return False
    open_to = status.st_mode & (0o002 if status.st_gid in (0, os.getegid()) else 0o022)
    return not open_to or bool(status.st_mode & stat.S_ISVTX)


def _remove_unused(place: Path, mine: Path) -> None:
    """Remove this user's folders which no process started from for a long time."""
    for old in place.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            status = old.lstat()
            gone = time.time() - status.st_mtime > UNUSED_AFTER and status.st_uid == mine.lstat().st_uid
            if old != mine and gone and stat.S_ISDIR(status.st_mode):
                shutil.rmtree(old, ignore_errors=True)

"""Where the plugin goes: the personal folder of Lua plugins, as `tshark -G folders` names it.

Wireshark reads every `.lua` file of that folder when it starts. Since 4.4 it loads no scripts of a user when it runs as
root, without a message.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from kdissect.output import OutputError, whole_file
from kdissect.problems import UsageError
from kdissect.wireshark.plugin import FILE_NAME, MARK, plugin

FOLDER = "Personal Lua Plugins"
PROGRAMS = ("tshark", "wireshark")
WAIT = 60.0
"""Seconds for tshark to name its folders: it starts in one, on a machine under load in ten."""
NO_ROOT = (4, 4)
"""The first Wireshark that loads no user's scripts as root."""

_VERSION = re.compile(r"\b(\d+)\.(\d+)\.\d+")


@dataclass(frozen=True, slots=True)
class Wireshark:
    """An installed Wireshark: its version and the folder in which it looks for a user's scripts."""

    version: tuple[int, int] | None
    folder: Path


def find_wireshark() -> Wireshark:
    """The Wireshark of this machine and user. Raises UsageError where tshark and wireshark are missing or silent."""
    program = next((path for name in PROGRAMS if (path := shutil.which(name))), None)
    if program is None:
        raise UsageError("there is no tshark to ask for Wireshark's plugin folder; say it with --folder DIR")
    folder = re.search(rf"^{FOLDER}:\s*(\S.*)$", _said(program, "-G", "folders"), re.MULTILINE)
    if folder is None:
        raise UsageError(f"{program} names no folder for Lua plugins (built without Lua?); say it with --folder DIR")
    version = _VERSION.search(_said(program, "--version"))
    return Wireshark((int(version[1]), int(version[2])) if version else None, Path(folder[1].strip()))


def install(folder: Path) -> Path:
    """Write the plugin into a folder, which is made if need be, over one that kdissect wrote before; its path.

    Raises UsageError where a file of that name is somebody else's, OutputError.
    """
    path = folder / FILE_NAME
    if path.exists() and not _ours(path):
        raise UsageError(f"{path} is not kdissect's: move it away first")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(folder, error) from None
    with whole_file(str(path)) as stream:
        stream.write(plugin().encode())
    return path


def uninstall(folder: Path) -> Path | None:
    """Take the plugin out of a folder; its path, None where there was none.

    Raises UsageError where a file of that name is somebody else's, OutputError.
    """
    path = folder / FILE_NAME
    if not path.exists():
        return None
    if not _ours(path):
        raise UsageError(f"{path} is not kdissect's")
    try:
        path.unlink()
    except OSError as error:
        raise OutputError(path, error) from None
    return path


def runs_as_root() -> bool:
    """Whether this process, and a Wireshark started like it, runs as root."""
    return hasattr(os, "geteuid") and os.geteuid() == 0


def _ours(path: Path) -> bool:
    with contextlib.suppress(OSError), path.open("rb") as stream:
        return stream.read(len(MARK)) == MARK.encode()
    return False


def _said(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, timeout=WAIT)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"{command[0]} does not answer: {error}") from None
    return done.stdout.decode("utf-8", "replace")

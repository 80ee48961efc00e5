"""The user that a process of root becomes when tcpdump captures for it."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable
from typing import NamedTuple

from kdissect.python_process import interpreter_paths


class User(NamedTuple):
    """Of the system's."""

    name: str
    uid: int
    gid: int


def user_behind_root() -> User | None:
    """Who called sudo, or `nobody`; None if this process is not root's."""
    import pwd

    if os.geteuid() != 0:
        return None
    with contextlib.suppress(KeyError, ValueError, OverflowError):
        uid = int(os.environ.get("SUDO_UID", ""))
        if uid:
            return User(pwd.getpwuid(uid).pw_name, uid, int(os.environ.get("SUDO_GID") or pwd.getpwuid(uid).pw_gid))
    with contextlib.suppress(KeyError):
        found = pwd.getpwnam("nobody")
        return User(found.pw_name, found.pw_uid, found.pw_gid)
    return None


def become_user(user: User, say: Callable[[str], None]) -> bool:
    """Gives up root for good, in all threads. Returns False, and says why, if this user cannot read Python or kdissect,
    or cannot write temporary files: then nothing changes."""
    groups = os.getgroups()
    os.setgroups([user.gid])
    os.setegid(user.gid)
    os.seteuid(user.uid)
    closed = _closed_to_us()
    os.seteuid(0)
    if closed is not None:
        os.setegid(0)
        os.setgroups(groups)
        say(f"kdissect: this stays root, for {closed} is closed to {user.name}")
        return False
    os.setresgid(user.gid, user.gid, user.gid)
    os.setresuid(user.uid, user.uid, user.uid)
    return True


def _closed_to_us() -> str | None:
    """A place that the effective user needs and may not use."""
    for place in (os.__file__, *interpreter_paths(), __file__, *_packages()):
        if not os.access(place, os.R_OK, effective_ids=True):
            return place
    folder = tempfile.gettempdir()
    return None if os.access(folder, os.W_OK | os.X_OK, effective_ids=True) else folder


def _packages() -> list[str]:
    from importlib.util import find_spec

    found = [find_spec(name) for name in ("numpy", "pyarrow")]
    return [spec.origin for spec in found if spec is not None and spec.origin is not None]

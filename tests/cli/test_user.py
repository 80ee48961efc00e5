"""Root is given up when tcpdump captures."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys

import pytest

from kdissect.cli.confinement import user
from tests.conftest import ROOT

NOBODY = pwd.getpwnam("nobody")


@pytest.fixture
def root() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")


def in_a_process(program: str) -> str:
    """What a program says; it changes its own user."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=ROOT,
                          timeout=60)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.usefixtures("root")
def test_who_called_sudo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUDO_UID", str(NOBODY.pw_uid))
    monkeypatch.setenv("SUDO_GID", "12")
    assert user.user_behind_root() == user.User("nobody", NOBODY.pw_uid, 12)
    for absurd in ("0", "x", "", "4294967290"):
        monkeypatch.setenv("SUDO_UID", absurd)
        assert user.user_behind_root() == user.User("nobody", NOBODY.pw_uid, NOBODY.pw_gid)


def test_others_stay_who_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert user.user_behind_root() is None


@pytest.mark.usefixtures("root")
def test_root_is_given_up_for_good() -> None:
    """In all threads."""
    told = in_a_process("""
import os, threading
from kdissect.cli.confinement import user
user._closed_to_us = lambda: None
wait, ids = threading.Event(), []
other = threading.Thread(target=lambda: (wait.wait(), ids.append(open("/proc/thread-self/status").read())))
other.start()
assert user.become_user(user.user_behind_root(), print)
wait.set()
other.join()
print(os.getresuid(), os.getresgid(), os.getgroups())
print([line for line in ids[0].splitlines() if line.startswith("Uid")])
try:
    os.setuid(0)
except PermissionError:
    print("for good")
""")
    uid, gid = NOBODY.pw_uid, NOBODY.pw_gid
    assert told.splitlines() == [
        f"({uid}, {uid}, {uid}) ({gid}, {gid}, {gid}) [{gid}]", f"['Uid:\\t{uid}\\t{uid}\\t{uid}\\t{uid}']", "for good",
    ]  # fmt: skip


@pytest.mark.usefixtures("root")
def test_a_user_who_cannot_read_python_changes_nothing() -> None:
    told = in_a_process("""
import os
from kdissect.cli.confinement import user
user._closed_to_us = lambda: "/root/python" if os.geteuid() else None
before = os.getresuid(), os.getresgid(), os.getgroups()
print(user.become_user(user.user_behind_root(), print))
assert (os.getresuid(), os.getresgid(), os.getgroups()) == before
""")
    assert told.splitlines() == ["kdissect: this stays root, for /root/python is closed to nobody", "False"]

"""Where compiled kernels are kept: never where another user could put code."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kdissect.kernels import cache
from kdissect.kernels.cache import PREFIX, UNUSED_AFTER, cache_folder, private


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package folder that cannot serve and a home that can."""
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setattr(cache, "PACKAGE", tmp_path / "a file" / "package")
    (tmp_path / "a file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    return tmp_path / "home" / "kdissect"


def test_the_folder_is_the_users_alone(home: Path) -> None:
    folder, before = cache_folder("one")
    assert (folder, before) == (home / f"{PREFIX}one", False)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert cache_folder("one") == (folder, True)


def test_a_planted_link_is_not_followed(home: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    home.mkdir(parents=True)
    (home / f"{PREFIX}one").symlink_to(elsewhere)
    folder, _ = cache_folder("one")
    assert folder.parent != home
    assert not any(elsewhere.iterdir())


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o701])
def test_a_folder_open_to_others_is_not_used(home: Path, mode: int) -> None:
    planted = home / f"{PREFIX}one"
    planted.mkdir(parents=True)
    planted.chmod(mode)
    assert not private(planted)
    assert cache_folder("one")[0] != planted


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives folders away")
def test_a_folder_of_another_user_is_not_used(home: Path) -> None:
    planted = home / f"{PREFIX}one"
    planted.mkdir(parents=True, mode=0o700)
    os.chown(planted, 12345, -1)
    assert cache_folder("one")[0] != planted
    os.chown(planted, 0, -1)
    os.chown(home, 12345, -1)
    assert cache_folder("one")[0] != planted, "its owner could exchange what lies in the folder above"


@pytest.mark.parametrize(("mode", "safe"), [(0o777, False), (0o1777, True), (0o755, True)])
def test_nobody_can_exchange_the_folder(tmp_path: Path, mode: int, safe: bool) -> None:
    above = tmp_path / "above"
    above.mkdir()
    above.chmod(mode)
    assert private(above / "below" / "mine") is safe


def test_without_a_safe_place_the_folder_has_a_random_name_and_goes_with_the_process(tmp_path: Path) -> None:
    """What lies under a predictable name in the system's temporary folder is left alone."""
    planted = tmp_path / f"kdissect-{os.getuid()}"
    planted.mkdir(mode=0o777)
    program = (
        "from kdissect.kernels import cache; from pathlib import Path; cache.PACKAGE = Path('/dev/null/package');"
        "print(cache.cache_folder('one')[0]); print(cache.cache_folder('one')[0].stat().st_mode & 0o777)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True,
        env={**os.environ, "TMPDIR": str(tmp_path), "XDG_CACHE_HOME": "/dev/null/a", "NUMBA_CACHE_DIR": "/dev/null/b"},
    )  # fmt: skip
    folder, mode = done.stdout.split()
    assert Path(folder).parent == tmp_path
    assert Path(folder) != planted
    assert int(mode) == 0o700
    assert not Path(folder).exists()
    assert not any(planted.iterdir())


def test_versions_lie_side_by_side_until_nobody_used_them_for_long(home: Path) -> None:
    old, _ = cache_folder("old")
    older, _ = cache_folder("older")
    long_ago = time.time() - UNUSED_AFTER - 60
    os.utime(older, (long_ago, long_ago))
    new, _ = cache_folder("new")
    assert new != old
    assert old.is_dir()
    assert not older.exists()

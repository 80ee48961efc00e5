"""Ten thousand files: what the driver does before there is a job grows with them and no faster."""

from __future__ import annotations

import builtins
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kdissect.spark.dataset import Dataset, _tasks
from kdissect.spark.job import prepare
from kdissect.spark.stages.plan import Plan


def calls(folder: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """How often the system is asked something about files while they are planned."""
    count = 0

    def counted(asked: Any) -> Any:
        def ask(*args: Any, **more: Any) -> Any:
            nonlocal count
            count += 1
            return asked(*args, **more)

        return ask

    with monkeypatch.context() as patched:
        for module, name in ((os, "stat"), (os, "lstat"), (os, "open"), (os.path, "realpath"), (builtins, "open")):
            patched.setattr(module, name, counted(getattr(module, name)))
        job = prepare(str(folder), ["exchanges"])
    plan = Plan(job.sources, job.columns, job.settings, [0])
    files = [(n, file) for n, source in enumerate(job.sources) for file in range(len(source.files))]
    assert sorted(one for task in _tasks(plan, files) for one in task) == files
    return count


@pytest.mark.parametrize("name", ["c{n:05d}x.pcap", "set.pcap{n}"])
def test_planning_is_linear(captures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Captures of their own, and files of one rotated set."""
    asked = {}
    for count in (50, 200):
        folder = tmp_path / str(count)
        folder.mkdir()
        for n in range(count):
            shutil.copy(captures / "base_tiny.pcap", folder / name.format(n=n))
        asked[count] = calls(folder, monkeypatch)
    assert asked[50] >= 50
    assert asked[200] <= 4.2 * asked[50]
    assert asked[200] - asked[50] <= 40 * 150


def test_files_are_asked_for_their_size_once(captures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where storage is far away each answer takes its time."""
    shutil.copy(captures / "base_tiny.pcap", tmp_path / "a.pcap")
    job, size = prepare(str(tmp_path), ["exchanges"]), (tmp_path / "a.pcap").stat().st_size
    plan = Plan(job.sources, job.columns, job.settings, [0])
    with monkeypatch.context() as patched:
        patched.setattr(Path, "stat", None)
        assert job.fits_one_task(None)  # type: ignore[arg-type]
        assert job.by_one_task(2)
        assert Dataset(None, plan, False).bytes == [size]  # type: ignore[arg-type]


def test_small_files_share_tasks(captures: Path, tmp_path: Path) -> None:
    for n in range(300):
        shutil.copy(captures / "base_tiny.pcap", tmp_path / f"c{n:03d}x.pcap")
    job = prepare(str(tmp_path), ["exchanges"])
    plan = Plan(job.sources, job.columns, job.settings, [0])
    assert len(_tasks(plan, [(n, 0) for n in range(300)])) == 1
    assert not job.fits_one_task(None)  # type: ignore[arg-type]
    few = prepare([str(tmp_path / f"c{n:03d}x.pcap") for n in range(50)], ["exchanges"])
    assert few.fits_one_task(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("master", ["local", "local[2]", "local[*]", "local-cluster[2,1,1024]", "spark://host:7077"])
def test_cores_of_this_machine_alone_count(captures: Path, monkeypatch: pytest.MonkeyPatch, master: str) -> None:
    monkeypatch.setattr("kdissect.spark.job.FEW_BYTES", 0)
    session = SimpleNamespace(sparkContext=SimpleNamespace(master=master, defaultParallelism=2))
    job = prepare(str(captures / "base_tiny.pcap"), ["exchanges"])
    assert job.fits_one_task(session) == (master in ("local", "local[2]", "local[*]"))  # type: ignore[arg-type]


def test_few_cores_read_larger_captures_by_one_task(captures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kdissect.spark.job.FEW_BYTES", 0)
    job = prepare(str(captures / "base_tiny.pcap"), ["exchanges"])
    assert [cores for cores in (1, 2, 4, 5, 64, None) if job.by_one_task(cores)] == [1, 2, 4]
    for name in ("time_budget", "deliveries", "transactions"):  # made by groups, by many tasks
        assert not prepare(str(captures / "base_tiny.pcap"), ["exchanges", name]).by_one_task(1)
    monkeypatch.setattr("kdissect.spark.job.ALONE_BYTES", 0)
    assert not job.by_one_task(1)

"""A run's tables take the place of the last run's at once: who reads them meanwhile has the old ones or the new.

    DIR/exchanges            on local disks a link to _snapshots/newest/exchanges; elsewhere the table itself
    DIR/_snapshots/000007/   tables of the seventh run, while it writes them and, on local disks, afterwards
    DIR/_snapshots/newest    the snapshot that counts: a link to its folder, which is renamed over the one before

Rules.

- A run writes all its tables into a snapshot of its own. Until `commit` nothing that counts is touched. What a run that
  failed has left goes away when the next one begins, which may need the room, or on other file systems with its commit.
- On local disks `commit` is one rename of a link, for all tables together. Tables of earlier runs that this one did not
  make stay, as links to where they are. The snapshot before stays too, for those who read it (`os.path.realpath` of a
  table gives its folder), until the commit after the next.
- Other file systems (hdfs:, s3a:) have neither links nor an exchange of two folders: `commit` writes down that all
  tables are complete, then moves the old one away and the new one in, table by table. Between the two a table is not
  there; a commit that was broken off is finished by the next run. Who needs more than that writes Delta or Iceberg.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

from kdissect.output import naming_output
from kdissect.spark.file_system import HadoopFiles, is_hidden

SNAPSHOTS = "_snapshots"
NEWEST = "newest"
COMMITTED = ".committed"
"""What a snapshot's name ends with once it is complete, where tables are moved one by one."""
BEFORE = "before-"
"""What the folder's name begins with that a snapshot's tables have driven those of before into."""
_NUMBER = re.compile(r"\d{6,}")


class Snapshots(Protocol):
    """Where a run writes its tables."""

    def place(self, table: str) -> str:
        """Where to write a table."""

    def commit(self, tables: Sequence[str]) -> None:
        """Make these tables, which were written, the ones that are read."""


def snapshots(files: HadoopFiles, output: str) -> Snapshots:
    """A run's snapshot below a folder."""
    local = files.local(output)
    return MovedTables(files, output) if local is None else LinkedTables(local)


class LinkedTables:
    """On local disks. Raises OutputError where these cannot be written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.resolve()
        self._below = self._folder / SNAPSHOTS
        newest = self._below / NEWEST
        before = int(newest.resolve().name) if newest.is_symlink() else 0
        with naming_output(self._below):
            there = _numbered(os.listdir(self._below) if self._below.is_dir() else [])
            for name in there:
                if int(name) > before:
                    shutil.rmtree(self._below / name)
        # Not the number of one that was left, whose run may be suspended and write there when it wakes up.
        self._mine = f"{max(map(int, there), default=0) + 1:06}"

    def place(self, table: str) -> str:
        """See Snapshots."""
        return str(self._below / self._mine / table)

    def commit(self, tables: Sequence[str]) -> None:
        """See Snapshots."""
        with naming_output(self._below):
            mine, newest = self._below / self._mine, self._below / NEWEST
            before = newest.resolve() if newest.is_symlink() else None
            for table in () if before is None else sorted(path.name for path in before.iterdir()):
                if table not in tables and not is_hidden(table):
                    target = (before / table).resolve() if before is not None else mine
                    (mine / table).symlink_to(os.path.relpath(target, mine))
            aside = self._below / f"{NEWEST}-{self._mine}"
            aside.unlink(missing_ok=True)
            aside.symlink_to(self._mine)
            aside.rename(newest)
            for table in tables:
                self._link(table)
            self._clear({mine, before})

    def _link(self, table: str) -> None:
        """The table's name in the folder, where it is no link yet."""
        place = self._folder / table
        if place.is_symlink():
            return
        if place.is_dir():  # written by a version that knew no snapshots
            place.rename(self._below / f"{table}-before-{self._mine}")
        place.symlink_to(os.path.join(SNAPSHOTS, NEWEST, table))

    def _clear(self, counting: set[Path | None]) -> None:
        """Remove snapshots that neither count nor have counted last, nor are linked to from those."""
        whole = {one for one in counting if one is not None}
        linked = {path.resolve() for one in whole if one.is_dir() for path in one.iterdir() if path.is_symlink()}
        for old in self._below.iterdir():
            if old.is_symlink() or old in whole:
                continue
            if not any(target.is_relative_to(old) for target in linked):
                shutil.rmtree(old)
                continue
            for table in old.iterdir():
                if table.resolve() not in linked:
                    table.unlink() if table.is_symlink() else shutil.rmtree(table)


class MovedTables:
    """On any other file system of Hadoop's."""

    def __init__(self, files: HadoopFiles, folder: str) -> None:
        self._files, self._folder = files, folder.rstrip("/")
        self._below = f"{self._folder}/{SNAPSHOTS}"
        names = files.names(self._below)
        for name in names:
            if name.endswith(COMMITTED):
                self._move(name.removesuffix(COMMITTED))
        plain = (name.removesuffix(COMMITTED).removeprefix(BEFORE) for name in names)
        numbers = [int(name) for name in _numbered(plain)]
        self._mine = f"{max(numbers, default=0) + 1:06}"

    def place(self, table: str) -> str:
        """See Snapshots."""
        return f"{self._below}/{self._mine}/{table}"

    def commit(self, tables: Sequence[str]) -> None:
        """See Snapshots."""
        self._files.write(f"{self._below}/{self._mine}{COMMITTED}", "\n".join(tables).encode())
        self._move(self._mine)
        for name in self._files.names(self._below):
            if name != f"{BEFORE}{self._mine}":
                self._files.delete(f"{self._below}/{name}")

    def _move(self, mine: str) -> None:
        """Put a complete snapshot's tables in place, those that are not there yet."""
        note = f"{self._below}/{mine}{COMMITTED}"
        for table in self._files.read(note).decode().split():
            fresh, place = f"{self._below}/{mine}/{table}", f"{self._folder}/{table}"
            if self._files.exists(fresh):
                if self._files.exists(place):
                    self._files.rename(place, f"{self._below}/{BEFORE}{mine}/{table}")
                self._files.rename(fresh, place)
        self._files.delete(note)


def _numbered(names: Iterable[str]) -> list[str]:
    return [name for name in names if _NUMBER.fullmatch(name)]

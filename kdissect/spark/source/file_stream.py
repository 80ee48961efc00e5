"""A directory that captures are rotated into, as a stream of files: `table` = files of the data source.

A file is complete when a later one of its set is there (later by its first packet's time), or when it was not written
to for `quiet` seconds. Files of a set come in this order, each once. A file that turns up before one that has come
already, or was changed since, comes with its path behind LATE; so does each file behind a step of the clock back. The
one that changed last of a set's files may be that which is being written, then, and is left alone. Left alone are files
without packets and files that are no captures, too. Of a file that is there plain and compressed the plain one is read;
a compressed one of its name that begins at another time is another file of a ring.
Folders in the directory (hidden ones and links left alone) hold sets of their own, whose names begin with the folder's.

An offset has, for each set, the first packet's time and the name of the last file that came, and the files that came
with it. So a batch has the files that it was planned with, when it is read, and when it is planned again after a
restart. A file that has gone meanwhile becomes a problem row when it is read. No batch has more than `most` files,
where that is given.

A set that had no new file for `forget` seconds is over: a row without a file says so to who keeps its state. Its place
in the offset stays, so that nothing is read again; another file begins it again.
"""

from __future__ import annotations

import json
import math
import os
import posixpath
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from kdissect.arrays.typed_values import UnreadableValue, dumped, loaded
from kdissect.capture.sources import COMPRESSED, is_utf8, plain_name, spell_name, stem_of
from kdissect.spark.remote_storage import Storage
from kdissect.spark.source.watched_folders import File, folder_of

try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxFiles, SupportsTriggerAvailableNow
except ImportError:  # PySpark 4.0 and 4.1: one batch of all that is complete

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Nothing."""

    ReadAllAvailable = ReadMaxFiles = None  # type: ignore[assignment,misc]


FILES = pa.schema(
    [
        pa.field("capture", pa.string()),
        pa.field("file", pa.string()),
        pa.field("path", pa.string()),
        pa.field("first", pa.int64()),
    ]
)
"""A complete file: its set's name, its own, where it lies, and its first packet's time (ns since the epoch)."""
LATE = "late:"
"""Before the path of a file that is not behind all that have come. Who keeps the set's state knows whether it was read,
and up to where."""
BYTES = "bytes:"
"""Before the bytes of a path that are no UTF-8, and are written as hex digits."""
Row = tuple[str, str, str, int]
Seen = dict[str, tuple[int, int]]
"""By path, when a file with packets was put there, and its first packet's time, both ns since the epoch."""


class Watched:
    """Files of a directory by set, in order."""

    def __init__(
        self, directory: str, quiet: float | None = None, storage: Storage | None = None, looks: str | None = None
    ) -> None:
        """`looks`: a file of what another process has seen."""
        self._folder = folder_of(directory, storage)
        self._quiet = quiet
        self._looks = None if looks is None else Path(looks)
        self._seen: dict[str, tuple[int, float]] = {}
        """By path, when each file was put there, or renamed or written to last, ns since the epoch, and its first
        packet's time then: names come round (`tcpdump -W`)."""
        self._changing: set[str] = set()
        """The path of each set that changed last, if it is not quiet."""
        self.sizes: dict[str, int] = {}
        """The bytes of each file, by its path, as these were seen last."""

    def present(self) -> list[Row]:
        """All files with packets, in order of their set and of their first packets. Raises UsageError when there is no
        such directory."""
        return [row for rows, _ in self._sets() for row in rows]

    def complete(self) -> list[Row]:
        """The complete ones among them."""
        return [row for rows, quiet in self._sets() for row in (rows if quiet else rows[:-1])]

    def count_unfinished(self) -> int:
        """How many files with packets may still be written to."""
        return sum(not quiet for _, quiet in self._sets())

    def _sets(self) -> Iterator[tuple[list[Row], bool]]:
        """The files of each set, and whether the last one is complete too."""
        sets: dict[str, dict[tuple[str, int], Row]] = {}
        there = sorted(self._folder.files(), key=lambda file: (file.name.endswith(COMPRESSED), file.name))
        self._look_into(there)
        self._changing.clear()
        self.sizes = {file.path: file.size for file in there}
        changed = {file.path: file.changed for file in there}
        for file in there:
            first = self._seen[file.path][1]
            if math.isinf(first):
                continue
            known = stem_of(file.name)
            capture = spell_name(posixpath.join(file.folder, file.name if known is None else known[1]))
            row = (capture, spell_name(file.name), file.path, int(first))
            sets.setdefault(capture, {}).setdefault((plain_name(file.name), row[3]), row)
        for files in sets.values():
            rows = sorted(files.values(), key=lambda row: place(row[3], row[1]))
            newest = max(rows, key=lambda row: self._seen[row[2]][0])[2]
            if not self._is_quiet(changed[newest]):
                self._changing.add(newest)
            yield rows, self._is_quiet(changed[rows[-1][2]])

    def _is_quiet(self, changed: float) -> bool:
        """Whether a file that was written to then is complete."""
        return self._quiet is not None and time.time() - changed >= self._quiet

    def _look_into(self, files: Sequence[File]) -> None:
        """Learn the first packet's time of files that are new or were written to."""
        before: Mapping[str, tuple[int, float]] = self._seen or self._seen_before()
        self._seen = {}
        for file in files:
            known = before.get(file.path)
            if known is not None and known[0] == file.arrived and not math.isinf(known[1]):
                self._seen[file.path] = known
        fresh = [file for file in files if file.path not in self._seen]
        for file, first in zip(fresh, self._folder.first_packets([file.path for file in fresh]), strict=True):
            self._seen[file.path] = file.arrived, first

    def keep_seen(self) -> None:
        """Keep what was seen for the next process."""
        if self._looks is not None:
            aside = self._looks.with_suffix(".new")
            aside.write_bytes(
                dumped({path: seen for path, seen in self._seen.items() if not math.isinf(seen[1])}, Seen)
            )
            aside.replace(self._looks)

    def _seen_before(self) -> Seen:
        """The looks that another process kept, none where they cannot be read."""
        try:
            found: Seen = {} if self._looks is None else loaded(self._looks.read_bytes(), Seen)
        except (OSError, UnreadableValue):
            return {}
        return found

    def is_changing(self, path: str) -> bool:
        """Whether a file is the one of its set that changed last, as these were seen last, and not quiet."""
        return path in self._changing

    def arrived(self, path: str) -> float:
        """When a file was put there, or renamed or written to last, as it was seen last: seconds since the epoch."""
        return self._seen[path][0] / 1e9


def place(first: int, name: str) -> tuple[int, list[tuple[int, int, str]]]:
    """The key that files of a set are ordered by: first packet's time, then the name with its numbers read as
    numbers."""
    parts = [part for part in re.split(r"(\d+)", plain_name(name)) if part]
    return first, [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in parts]


def after(row: Row, offset: Mapping[str, Any]) -> bool:
    """Whether a file comes after an offset."""
    known = offset.get(row[0])
    return known is None or place(row[3], row[1]) > place(known["first"], known["file"])


def offset_of(
    rows: Sequence[Row], before: Mapping[str, Any], now: float = 0.0, forget: float | None = None,
    late: Sequence[Row] = (), waiting_since: Mapping[str, float] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """The offset once these files, in order, have come after `before`. `now`: when they were looked for, seconds since
    the epoch; `late`: files that stand before one that has come already; `waiting_since`: of sets in which
    such a file was left alone, when it arrived. Offsets hold texts and numbers only."""
    looked = {capture: min(now, at) for capture, at in (waiting_since or {}).items()}
    planned: dict[str, list[Row]] = {}
    for row in rows:
        planned.setdefault(row[0], []).append(row)
    new = {}
    for capture, some in planned.items():
        files = json.dumps([row[1:] for row in some])
        new[capture] = {"first": some[-1][3], "file": some[-1][1], "files": files, "at": looked.get(capture, now)}
    told: dict[str, list[tuple[str, str, int]]] = {}
    for capture, name, path, first in late:
        told.setdefault(capture, []).append((name, path, first))
    for capture, files_of_set in told.items():
        last = {"first": before[capture]["first"], "file": before[capture]["file"], "files": "[]"}
        known = new.get(capture, {**last, "at": looked.get(capture, now)})
        new[capture] = {**known, "late": json.dumps(files_of_set)}
    over = {
        capture: {"first": known["first"], "file": known["file"], "files": "[]", "at": known["at"], "over": True}
        for capture, known in before.items()
        if forget is not None and "over" not in known and now - known.get("at", math.inf) >= forget
    }
    return {**before, **over, **new}


def planned(start: Mapping[str, Any], end: Mapping[str, Any]) -> list[Row] | None:
    """The files that an offset was planned with and that `start` is before; None for an offset that does not say."""
    rows: list[Row] = []
    for capture, known in end.items():
        if known == start.get(capture):
            continue
        if "files" not in known:
            return None
        if known.get("over"):
            rows.append((capture, "", "", int(known["first"])))
        found: list[Row] = [
            (capture, str(name), str(path), int(first)) for name, path, first in json.loads(known["files"])
        ]
        rows += [row for row in found if after(row, start)]
        rows += [
            (capture, str(name), f"{LATE}{path}", int(first))
            for name, path, first in json.loads(known.get("late", "[]"))
        ]
    return rows


def _encoded(path: str) -> str:
    """A path as text, which Spark takes, where its bytes are none."""
    return path if is_utf8(path) else f"{BYTES}{os.fsencode(path).hex()}"


def decoded(path: str) -> str:
    """The path that was encoded."""
    return os.fsdecode(bytes.fromhex(path.removeprefix(BYTES))) if path.startswith(BYTES) else path


class Files(InputPartition):
    """Files of one batch."""

    def __init__(self, rows: list[Row]) -> None:
        super().__init__(rows)
        self.rows = rows


class FileStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Complete files of a directory as they come."""

    def __init__(
        self, directory: str, quiet: float | None, most: int | None = None, forget: float | None = None,
        storage: Storage | None = None, looks: str | None = None,
    ) -> None:  # fmt: skip
        self._files = Watched(directory, quiet, storage, looks)
        self._most, self._forget = most, forget
        self._last: tuple[float, list[Row]] | None = None

    def _look(self) -> tuple[float, list[Row]]:
        """When the complete files were looked for, and these."""
        return time.time(), self._files.complete()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Limit the stream to the files that are complete now."""
        self._last = self._look()

    def getDefaultReadLimit(self) -> Any:  # noqa: N802
        """So many files a batch, or all. (PySpark 4.0 and 4.1 do not ask.)"""
        return ReadAllAvailable() if self._most is None else ReadMaxFiles(self._most)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Before any file."""
        return {}

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, Any]:  # noqa: N802
        """After the files that are complete now, the oldest of them where they are too many for a batch. (PySpark 4.0
        and 4.1 do not say `start`.)"""
        begun = start or {}
        now, complete = self._last or self._look()
        rows: list[Row] = []
        late: list[Row] = []
        left: dict[str, float] = {}
        for row in complete:
            if after(row, begun):
                rows.append(row)
            elif self._arrived_since(row, begun[row[0]]):
                if self._files.is_changing(row[2]):
                    left[row[0]] = self._files.arrived(row[2])
                else:
                    late.append(row)
        if rows or late:
            self._files.keep_seen()
        if limit is not None and not isinstance(limit, ReadAllAvailable):
            rows = sorted(rows, key=lambda row: place(row[3], row[1]))[: self._most]
        return offset_of(rows, begun, now, self._forget, late, left)

    def _arrived_since(self, row: Row, of_set: Mapping[str, Any]) -> bool:
        """Whether a file may have been put there since files of its set were looked for."""
        return self._files.arrived(row[2]) >= float(of_set.get("at", math.inf))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[Files]:
        """The files between two offsets."""
        rows = planned(start, end)
        if rows is None:
            rows = [row for row in self._files.present() if after(row, start) and row[0] in end and not after(row, end)]
        return [Files(rows)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The files as rows."""
        assert isinstance(partition, Files)
        rows = [(capture, name, _encoded(path), first) for capture, name, path, first in partition.rows]
        columns = zip(*rows, strict=True) if rows else [[] for _ in FILES]
        arrays = [pa.array(list(column), field.type) for column, field in zip(columns, FILES, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=FILES)

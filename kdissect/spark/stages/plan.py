"""The plan that every task of a job knows: the captures and their files, the tables asked for, and how to read."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kdissect.analysis.sights.clocks import Clock
from kdissect.capture import CaptureSet, open_captures
from kdissect.capture.captureset import Member
from kdissect.capture.sources import Source as Named
from kdissect.capture.sources import check
from kdissect.engine.settings import Settings
from kdissect.engine.sights.interfaces import interfaces
from kdissect.problems import CaptureError, CaptureNotFound, CaptureUnreadable, NotACapture
from kdissect.spark.remote_storage import RemoteMember, Storage

INDEX = pa.schema(
    [
        pa.field("bucket", pa.int32()),
        pa.field("capture", pa.int32()),
        pa.field("file", pa.int32()),
        pa.field("chunk", pa.int32()),
        pa.field("kind", pa.int32()),
        pa.field("packed", pa.binary()),
        pa.field("payload", pa.binary()),
    ]
)
"""Rows of the first shuffle, in order of (capture, file, chunk): packed segment rows of one bucket of connections, with
payloads that cannot be read by range; or something else, as `kind` says."""


class RowKind(IntEnum):
    """Kinds of rows of INDEX. Rows of a bucket that are no part of a file come first, in this order."""

    PACKETS = 0
    """Segment rows."""
    FACTS = 1
    """What was found out about a file as a whole."""
    KEYS = 2
    """TLS keys that stand in a file."""
    LOOKS = 3
    """What tells a file's flows to other captures. All that follows: `spark.stages.matching.matching_steps`."""
    SHARED = 4
    MET = 5
    ENDS = 6
    PAIRS = 7
    DOUBTED = 8
    JOINED = 9
    CUT = 10
    ANSWERED = 11
    SEEN = 12
    CROSSED = 13
    CLOCKS = 14
    SIGHTS = 15
    FLOWS = 16


MOST_READERS = 4
"""Tasks that a capture elsewhere is decoded by, at most. Each reads all of it, for connections are mixed in a capture:
a gigabyte of small frames takes about as long to come as a fourth of them takes to decode."""
MATCHED_BYTES = 512 << 20
"""Bytes of a capture that others may have exchanges of, for each such task, at most: it keeps some 160 bytes of each
exchange that they have, 220 MB where all frames are small."""
EXPANDED = 4
"""How many bytes of packets one of a compressed file stands for, about."""
TASK_BYTES = 64 << 20
"""Small files are read together by one task up to so many bytes: a Python task costs 50 ms before it begins."""


@dataclass(frozen=True, slots=True)
class Source:
    """One capture: its name, and its files in order as (name in tables, path)."""

    name: str
    files: Sequence[tuple[str, str]]
    sizes: Sequence[int]
    """Bytes of each file, uncompressed; 0 where unknown."""
    ranged: bool
    """Whether payloads are read again by range; else they travel with the index."""
    left_out: Sequence[tuple[str, str]]
    """What was named together with it and is no capture: (path, why)."""
    stored: Sequence[int] = ()
    """Bytes of each file as it is stored, compressed or not, when the job was made."""
    remote: bool = False
    """Whether its files are in a file system elsewhere."""
    described: Sequence[str] = ()
    """The interfaces that a remote file describes at its begin."""
    storage: Storage | None = None
    """What tasks read such files with; None where only Spark can."""

    @property
    def spark_only(self) -> bool:
        """Whether only Spark can read its files, each as a whole."""
        return self.remote and self.storage is None

    @property
    def packet_bytes(self) -> int:
        """Bytes of its files, uncompressed; of compressed ones about so many."""
        return sum(size or EXPANDED * stored for size, stored in zip(self.sizes, self.stored, strict=True))

    @property
    def reread_elsewhere(self) -> bool:
        """Whether tasks read ranges of its files through a network."""
        return self.ranged and self.storage is not None

    @property
    def interfaces(self) -> Sequence[str]:
        """The interfaces of a pcapng, by name; read from the first file where that is here."""
        return self.described if self.remote else interfaces(self.capture())

    def capture(self) -> CaptureSet:
        """The capture set."""
        return CaptureSet(self.name, [self.member(file) for file in range(len(self.files))])

    def capture_alone(self) -> CaptureSet:
        """The capture set with what was left out of it, for a task that reads all."""
        capture = self.capture()
        capture.left_out = list(self.left_out)
        return capture

    def member(self, file: int) -> Member:
        """A file of the capture set, by its number."""
        name, path = self.files[file]
        if self.storage is not None:
            return RemoteMember(name, self.storage, path, self.ranged)
        return Member(name, Path(path))

    def without_files(self) -> CaptureSet:
        """The capture set by its names alone, which is what most tasks need of most captures: it cannot be read."""
        return CaptureSet(self.name, [Member(name, None) for name, _ in self.files])


@dataclass(frozen=True, slots=True)
class Plan:
    """A job."""

    sources: Sequence[Source]
    tables: dict[str, list[str]]
    """Table -> columns asked for."""
    settings: Settings
    labels: Sequence[int]
    """One value of `bucket` for each partition: Spark sends the i-th to a partition of its own."""
    bucket_bytes: int = 0
    """Bytes of a capture for each bucket that its connections go to; 0: to all buckets."""
    reread_bytes: int = 0
    """The same of a capture elsewhere whose payloads are read again: each bucket reads all of its files. MOST_READERS
    at most, or as many as MATCHED_BYTES want."""
    giant: int = 512 << 20
    """Bytes of frames after which a connection's bulk is decoded by tasks of its own: some seconds of work."""
    unit: int = 32 << 20
    """Bytes of frames that such a task is given at once."""
    refused: Sequence[tuple[str, str]] = ()
    """Files that were named and cannot be read as captures: (name, why)."""
    whole: bool = False
    """Whether one task does it all (`whole_run`): staged rows are complete."""
    cores: int = 0
    """Cores that such a task has to itself: what it writes is made by a thread of its own; 0: others want them too."""
    looks: bool = False
    """Whether files are indexed with what tells their flows to other captures."""
    interfaces: Sequence[str] = ()
    """The interfaces of a capture by itself that has several: these are matched as captures are."""
    views: Sequence[tuple[int, int]] = ()
    """Of two of these that are at different places: viewpoint, number of the interface."""
    clocks: Sequence[Clock] = ()
    """How the clocks of captures stand that have connections in common."""
    pieces: str = ""
    """A folder for the rows that tasks stage, on a disk that all of them share; else they travel."""

    def buckets_of(self, number: int) -> npt.NDArray[np.int64]:
        """The buckets of a capture's connections, out of `labels`. The tasks of each start the capture once, which
        costs as much as some MB."""
        labels, source = np.array(self.labels, np.int64), self.sources[number]
        count, size = len(labels), sum(source.stored)
        if self.bucket_bytes:
            count = min(count, max(-(-size // self.bucket_bytes), 1))
        if self.reread_bytes and source.reread_elsewhere:
            least = -(-size // MATCHED_BYTES) if may_share(self.sources) else 1
            count = min(count, max(min(size // self.reread_bytes, MOST_READERS), least, 1))
        return np.roll(labels, -(number * count % len(labels)))[:count]

    @property
    def placed(self) -> bool:
        """Whether rows are to be written, with their capture, broker and time: connections are told to the driver."""
        return self.settings.dated

    @property
    def decoded(self) -> dict[str, list[str]]:
        """Table -> columns that are decoded: names of brokers come with `connections`."""
        if not self.placed and self.tables.keys().isdisjoint(("time_budget", "time_ledger")):
            return self.tables
        more = ["connection_id", "broker"]
        return {**self.tables, "connections": list(dict.fromkeys([*self.tables.get("connections", more), *more]))}


def may_share(sources: Sequence[Source]) -> bool:
    """Whether exchanges may have been seen twice: by several captures, or by several interfaces of one elsewhere."""
    return len(sources) > 1 or any(len(source.described) > 1 for source in sources)


def carry_large(sources: Sequence[Source]) -> list[Source]:
    """The sources; payloads of large ones elsewhere travel where exchanges may have been seen twice. More than
    MOST_READERS tasks would read these else, each of them twice."""
    if not may_share(sources):
        return list(sources)
    most = MOST_READERS * MATCHED_BYTES
    return [replace(one, ranged=False) if one.reread_elsewhere and sum(one.stored) > most else one for one in sources]


def open_readable(paths: Named | Sequence[Named], strict: bool) -> tuple[list[CaptureSet], list[tuple[str, str]]]:
    """Capture sets, and files that were named by themselves, among others, and cannot be read as captures: (name, why).

    Where `strict`, and where nothing else was named, these are errors; so is a path that is not there.
    """
    try:
        return open_captures(paths), []
    except CaptureNotFound:
        raise
    except CaptureError:
        if strict or isinstance(paths, str | os.PathLike) or hasattr(paths, "read"):
            raise
        good: list[Named] = []
        refused: list[tuple[str, str]] = []
        for path in paths:
            if not isinstance(path, str | os.PathLike) or not Path(path).is_file():
                good.append(path)
                continue
            try:
                check(Path(path))
                good.append(path)
            except (NotACapture, CaptureUnreadable) as error:
                refused.append((Path(path).name, str(error)))
        if not good or not refused:
            raise
        return open_captures(good), refused


def source_of(capture: CaptureSet, payload: bool) -> Source:
    """A capture as tasks know it. `payload`: carry payloads even if files can be read by range."""
    files = [(member.name, str(member.path.resolve() if member.path else "")) for member in capture.members]
    known, stored = capture.rereadable, [Path(path).stat().st_size for _, path in files]
    capture.close()
    sizes, ranged = stored if known else [0] * len(files), known and not payload
    return Source(capture.name, files, sizes, ranged, capture.left_out, stored)


def together(sizes: Sequence[int]) -> list[list[int]]:
    """Numbers of files or captures of so many bytes (0: unknown) by task, small ones together."""
    tasks: list[list[int]] = []
    room = 0
    for number, known in enumerate(sizes):
        size = known or TASK_BYTES  # unknown: alone
        if size > room or not tasks:
            tasks.append([])
            room = TASK_BYTES
        tasks[-1].append(number)
        room -= size
    return tasks

"""Captures in file systems elsewhere: hdfs:, s3a:, abfss: and what else there is a client for.

The driver lists them, folders with the folders in them, and looks at the first bytes of many at a time. Files with only
these bytes stand for them here. So the rules for local files (`kdissect.capture.sources`) decide what is a capture,
which files are one set and in which order. Tasks read them as they read local files (`remote_storage`): an index of the
packets by streaming, payloads by ranges.

For a scheme that nothing in Python opens, the session's JVM lists, and tasks get whole files by Spark's own reader
(`binaryFile`); all of that is `whole_files` and `HadoopFiles`. So a file must fit a worker's memory and may have WHOLE
bytes at most. Payloads travel with the index, as those of compressed captures do.
"""

from __future__ import annotations

import fnmatch
import os
import posixpath
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from kdissect.capture import open_captures
from kdissect.capture.sources import Source as Named
from kdissect.engine.sights.interfaces import interfaces
from kdissect.problems import CaptureError, CaptureNotFound, CaptureUnreadable, UsageError
from kdissect.spark.file_system import HadoopFiles, Listed, hadoop_setting, storage_settings
from kdissect.spark.remote_storage import UNOPENED, Storage, open_storage
from kdissect.spark.schemas import spark_schema
from kdissect.spark.stages.indexing import index_bytes
from kdissect.spark.stages.plan import INDEX, Plan, Source
from kdissect.spark.workers import settled

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Lister = Storage | HadoopFiles
"""What lists files and gives their first bytes."""
WHOLE = 512 << 20
"""Bytes of one file: it is in the JVM, in Arrow and in Python at the same time."""
HEAD = 16 << 10
"""First bytes of a file that are looked at: enough for the headers of a capture and its first packets."""
WHOLE_BLOCKS = {".zst": 132 << 10, ".zstd": 132 << 10, ".lz4": (4 << 20) + (4 << 10)}
"""The same of files in formats that give nothing before a block is whole: blocks of 128 KB at most (RFC 8878, section
3.1.1.2.4) and of 4 MB (LZ4 frame format 1.6.3, "Block Maximum Size"), and their headers."""
READERS = 16
"""Files looked at side by side: each waits for the storage most of the time."""
_SIGNS = re.compile(r"[*?\[]")
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*):/", re.IGNORECASE)
_LOCAL = re.compile(r"file:/+", re.IGNORECASE)


def split_local(paths: Named | Sequence[Named]) -> tuple[Named | list[Named] | None, list[str]]:
    """The paths on this machine (None: nothing), `file:` URLs as plain paths, and the paths in file systems
    elsewhere."""
    if isinstance(paths, str | os.PathLike):
        return (None, [paths]) if isinstance(paths, str) and is_elsewhere(paths) else (_plain(paths), [])
    if not isinstance(paths, Sequence):
        return paths, []
    far = [path for path in paths if isinstance(path, str) and is_elsewhere(path)]
    near = [_plain(path) for path in paths if not (isinstance(path, str) and is_elsewhere(path))]
    return (near if near or not far else None), far


def _plain(path: Named) -> Named:
    """A path without the scheme of local files."""
    return _LOCAL.sub("/", path) if isinstance(path, str) else path


def is_elsewhere(path: str) -> bool:
    """Whether a path names a file system that is not of this machine."""
    return _SCHEME.match(path) is not None and _LOCAL.match(path) is None


def remote_sources(spark: SparkSession | None, paths: Sequence[str], payload: bool) -> list[Source]:
    """Capture sets elsewhere; see `open_remote`. Raises UsageError without a session, or for a scheme that it does not
    know."""
    from py4j.protocol import Py4JJavaError

    if spark is None:
        raise UsageError(f"{paths[0]}: of other file systems only tables are made. Mount the storage, name the mount.")
    try:
        return open_remote([(path, _files_of(spark, path)) for path in paths], payload)
    except Py4JJavaError as error:
        raise CaptureUnreadable(f"{', '.join(paths)}: {error.java_exception.toString()!s}") from None
    except OSError as error:  # the region of a bucket
        raise CaptureUnreadable(f"{', '.join(paths)}: {error}") from None


def storage_of(path: str, settings: Mapping[str, str]) -> Storage:
    """The storage of a path, for who has no session. Raises UsageError for a scheme that nothing in Python opens."""
    try:
        storage = Storage.of(path, settings.get)
        open_storage(storage)
    except UNOPENED as error:
        told = f"{path}: nothing in Python opens this file system ({next(iter(str(error).splitlines()), '')})"
        raise UsageError(f"{told}. Install a package of fsspec's that does, or mount the storage.") from None
    return storage


def find_storage(spark: SparkSession, path: str) -> Storage | None:
    """The storage of a path elsewhere, None for one of this machine. Raises UsageError as `storage_of` does."""
    return storage_of(path, storage_settings(spark)) if is_elsewhere(path) else None


def _files_of(spark: SparkSession, path: str) -> Lister:
    """The lister of a path: its storage, or the session's JVM for a scheme that nothing in Python opens."""
    storage = Storage.of(path, partial(hadoop_setting, spark))
    try:
        open_storage(storage)
    except UNOPENED:
        return HadoopFiles(spark)
    return storage


def whole_files(spark: SparkSession, plan: Plan, files: Sequence[tuple[int, int]]) -> DataFrame:
    """Index rows of files elsewhere, given as (number of the capture, number of the file in it)."""
    numbers = {plan.sources[number].files[file][1]: (number, file) for number, file in files}
    read = spark.read.format("binaryFile").load([escape_pattern(path) for path in numbers]).select("path", "content")

    def indexed(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for path, content in zip(batch.column("path"), batch.column("content"), strict=True):
                number, file = numbers[path.as_py()]
                yield from settled("index", index_bytes(plan, number, file, content.as_buffer()))

    return read.mapInArrow(indexed, spark_schema(INDEX))


def escape_pattern(path: str) -> str:
    """A path that Spark does not take for a pattern."""
    return re.sub(r"([\\*?\[\]{}])", r"\\\1", path)


def open_remote(places: Sequence[tuple[str, Lister]], payload: bool) -> list[Source]:
    """Capture sets of what is named: paths, globs, folders, each with what reads it. `payload`: payloads
    are carried, of any files. Raises CaptureNotFound, NotACapture, CaptureUnreadable."""
    listed: dict[str, tuple[Listed, Lister]] = {}
    with tempfile.TemporaryDirectory(prefix="kdissect-") as folder, ThreadPoolExecutor(READERS) as pool:
        root = Path(folder, "root")
        for path, files in places:
            with _explained(path, files):
                for one in _list_matches(files, path):
                    listed.setdefault(one.path, (one, files))
        for one, files in listed.values():
            if isinstance(files, HadoopFiles) and one.size > WHOLE:
                raise CaptureUnreadable(
                    f"{one.path}: {one.size >> 20} MB in one file, where Spark reads whole files of {WHOLE >> 20} MB "
                    "at most, for nothing in Python opens this file system. Install a package of fsspec's that does, "
                    "rotate smaller files, or mount the storage and name the mount."
                )
        stands = {_stand(root, path): one for path, (one, _) in listed.items()}
        for above in {stand.parent for stand in stands}:
            above.mkdir(parents=True, exist_ok=True)
        heads = pool.map(lambda one: head_of(one[0].path, one[1]), listed.values())
        for stand, head in zip(stands, heads, strict=True):
            stand.write_bytes(head)
        try:
            captures = open_captures(root if len(stands) > 1 else list(stands))
        except CaptureError as error:
            told = str(error)
            for stand, one in stands.items():
                told = told.replace(str(stand), one.path)
            raise type(error)(told.replace(str(root), ", ".join(path for path, _ in places))) from None
        sources = []
        for capture in captures:
            members = [stands[member.path] for member in capture.members if member.path is not None]
            names = [(member.name, one.path) for member, one in zip(capture.members, members, strict=True)]
            left = []
            for path, why in capture.left_out:
                true = stands[Path(path)].path
                left.append((true, why.replace(path, true)))
            stored = [one.size for one in members]
            described = interfaces(capture) if len(captures) == 1 else ()
            files = listed[members[0].path][1]
            storage = files if isinstance(files, Storage) else None
            ranged = storage is not None and not payload and capture.rereadable
            sizes = stored if capture.rereadable else [0] * len(names)
            sources.append(Source(capture.name, names, sizes, ranged, left, stored, True, described, storage))
            capture.close()
        return sources


def head_of(path: str, files: Lister) -> bytes:
    """A file's first bytes, as many as are looked at. Raises CaptureUnreadable, CaptureNotFound."""
    with _explained(path, files):
        return files.head(path, WHOLE_BLOCKS.get(posixpath.splitext(path)[1], HEAD))


@contextmanager
def _explained(path: str, files: Lister) -> Iterator[None]:
    """Raises CaptureUnreadable for what a file system raises, CaptureNotFound for a file that is gone."""
    try:
        yield
    except OSError as error:
        told = files.explain(error) if isinstance(files, Storage) else str(error)
        kind = CaptureNotFound if isinstance(error, FileNotFoundError) else CaptureUnreadable
        raise kind(f"{path}: cannot be read ({told}).") from None


def _list_matches(files: Lister, path: str) -> list[Listed]:
    """The files that a path names, or a pattern, or those in a folder, in order. Raises CaptureNotFound."""
    parts = path.rstrip("/").split("/")
    first = next((i for i, part in enumerate(parts) if _SIGNS.search(part)), None)
    if first is None:
        found = files.list_files(path, deep=True)
        complaint = f"{path}: no such file, or a folder without files."
    else:
        found = _match_below(files, "/".join(parts[:first]), parts[first:])
        complaint = f"{path}: no file matches. Check the pattern."
    found = [one for one in found if not one.folder]
    if not found:
        raise CaptureNotFound(complaint)
    return sorted(found, key=lambda one: one.path)


def _match_below(files: Lister, folder: str, parts: Sequence[str]) -> list[Listed]:
    """The files and folders that match the parts of a pattern below a folder; `**` stands for any number of folders, as
    on local disks."""
    part, rest = parts[0], parts[1:]
    if not _SIGNS.search(part):
        place = f"{folder}/{part}"
        if rest:
            return _match_below(files, place, rest)
        return [one for one in files.list_files(place, deep=False) if one.path == place]
    there = files.list_files(folder, deep=False)
    if part == "**":
        found = _match_below(files, folder, rest or ["*"])
        return found + [below for one in there if one.folder for below in _match_below(files, one.path, parts)]
    matching = [one for one in there if fnmatch.fnmatchcase(posixpath.basename(one.path), part)]
    if not rest:
        return matching
    return [below for one in matching if one.folder for below in _match_below(files, one.path, rest)]


def _stand(root: Path, path: str) -> Path:
    """The local file that stands for one elsewhere."""
    scheme, _, rest = path.partition(":")
    return root / scheme / Path(*[part for part in rest.split("/") if part])

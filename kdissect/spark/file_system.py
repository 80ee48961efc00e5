"""File systems as Spark's JVM knows them: local, hdfs:, s3a:, abfss: and what else has a jar."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kdissect.output import OutputError
from kdissect.problems import UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


CLASS_NAME = re.compile(r"^[\w.$]+: ")
"""The beginning of what Java's exceptions say, if the name of their class is said."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A file: its whole path with the scheme, its bytes, its time of change in ms; or a folder."""

    path: str
    size: int
    changed: int
    folder: bool = False


def is_hidden(below: str) -> bool:
    """Whether a path, or a folder that it lies in, has a name that readers of tables pass over."""
    return any(part.startswith((".", "_")) for part in below.split("/"))


def hadoop_setting(spark: SparkSession, name: str) -> str | None:
    """A setting of Hadoop's: the session's, else that of the files which its JVM reads (`core-site.xml`), else None.
    Spark Connect does not show these files."""
    told = spark.conf.get(f"spark.hadoop.{name}", None) or spark.conf.get(name, None)
    java = getattr(spark, "_jsc", None)
    if told or java is None:
        return told
    found: str | None = java.hadoopConfiguration().get(name)
    return found


STORAGE = ("fs.s3a.", "fs.azure.")
"""What the names of settings begin with that clients of storage go by."""


def storage_settings(spark: SparkSession) -> dict[str, str]:
    """Those settings of Hadoop's, as `hadoop_setting` finds them one by one: for processes that have no session."""
    found: dict[str, str] = {}
    java: Any = getattr(spark, "_jsc", None)
    if java is not None:
        files = java.hadoopConfiguration()
        found = {begin + name: value for begin in STORAGE for name, value in files.getPropsWithPrefix(begin).items()}
    told = {name.removeprefix("spark.hadoop."): value for name, value in spark.conf.getAll.items()}
    return found | {name: value for name, value in told.items() if name.startswith(STORAGE)}


class HadoopFiles:
    """Hadoop's FileSystem for the paths that it is given. Raises UsageError with Spark Connect, which has no JVM."""

    def __init__(self, spark: SparkSession) -> None:
        jvm: Any = getattr(spark, "_jvm", None)
        if jvm is None:
            raise UsageError("files are reached through the session's own JVM, not through Spark Connect")
        self._path = jvm.org.apache.hadoop.fs.Path
        self._bytes = jvm.org.apache.commons.io.IOUtils
        self._conf = spark._jsc.hadoopConfiguration()

    def local(self, path: str) -> Path | None:
        """The path on this machine's disks; None for one elsewhere."""
        made, files = self._of(path)
        if files.getUri().getScheme() != "file":
            return None
        return Path(files.makeQualified(made).toUri().getPath())

    def try_out(self, folder: str) -> None:
        """Raise OutputError when nothing can be written there."""
        try:
            probe, files = self._of(f"{folder.rstrip('/')}/.kdissect-writable")
            files.setWriteChecksum(False)
            files.create(probe, True).close()
            files.delete(probe, False)
        except Exception as error:  # of Java, or what PySpark makes of it
            thrown = getattr(error, "java_exception", error)
            raise OutputError(folder, OSError(CLASS_NAME.sub("", str(thrown).splitlines()[0]))) from None

    def exists(self, path: str) -> bool:
        """Whether there is something."""
        made, files = self._of(path)
        return bool(files.exists(made))

    def names(self, folder: str) -> list[str]:
        """Names in a folder; none where it is not there."""
        made, files = self._of(folder)
        if not files.exists(made):
            return []
        return [str(status.getPath().getName()) for status in files.listStatus(made)]

    def list_files(self, path: str, deep: bool) -> list[Listed]:
        """The file of this name, or the files and folders in a folder, with `deep` those in folders below it too.
        Hidden ones are left out; none for a path that is not there. The time is linear in files.
        """
        made, files = self._of(path)
        if not files.exists(made):
            return []
        top = str(files.makeQualified(made))
        found, names = [], files.listFiles(made, True) if deep else files.listStatusIterator(made)
        while names.hasNext():
            one = names.next()
            place = str(one.getPath())
            if not is_hidden(place.removeprefix(top)):
                folder = bool(one.isDirectory())
                found.append(Listed(place, int(one.getLen()), int(one.getModificationTime()), folder))
        return found

    def head(self, path: str, most: int) -> bytes:
        """So many bytes of a file's begin, or all of it."""
        made, files = self._of(path)
        stream = files.open(made)
        try:
            return bytes(stream.readNBytes(most))
        finally:
            stream.close()

    def read(self, path: str) -> bytes:
        """A small file."""
        made, files = self._of(path)
        stream = files.open(made)
        try:
            return bytes(self._bytes.toByteArray(stream))
        finally:
            stream.close()

    def write(self, path: str, data: bytes) -> None:
        """A small file, whole or not at all."""
        target, files = self._of(path)
        aside = self._path(target.getParent(), f"_{target.getName()}")
        self.overwrite(str(aside), data)
        if not files.rename(aside, target):
            raise OutputError(path, OSError("it cannot be renamed to"))

    def overwrite(self, path: str, data: bytes) -> None:
        """A small file, in place of the one that is there; a reader may find it empty meanwhile."""
        target, files = self._of(path)
        files.setWriteChecksum(False)
        stream = files.create(target, True)
        stream.write(bytearray(data))
        stream.close()

    def rename(self, source: str, target: str) -> None:
        """Move a file or folder to a name that is free; folders above it are made."""
        old, files = self._of(source)
        new = self._path(target)
        files.mkdirs(new.getParent())
        if not files.rename(old, new):
            raise OutputError(target, OSError(f"{source} cannot be renamed to it"))

    def delete(self, path: str) -> None:
        """Remove a file or a folder with all in it."""
        made, files = self._of(path)
        files.delete(made, True)

    def _of(self, path: str) -> tuple[Any, Any]:
        made = self._path(path)
        return made, made.getFileSystem(self._conf)

"""The directory where a job leaves what the next one can use, in whatever file system Spark writes to.

    DIR/manifest-000003.json      what is there; a new one is written aside and renamed, and the newest one counts
    DIR/rows-000003/              staged rows of the third run

Whatever no manifest names is left from a run that did not end well, and goes away after the next that does.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from kdissect.output import OutputError
from kdissect.problems import UsageError
from kdissect.spark.keep.inventory import Manifest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MANIFEST = re.compile(r"manifest-(\d{6,})\.json")
_ROWS = re.compile(r"rows-\d{6,}")


class Store:
    """Manifests and staged rows below `folder`, by Hadoop's file systems: local, hdfs:, s3a:. Not for Spark Connect."""

    def __init__(self, spark: SparkSession, folder: str) -> None:
        jvm: Any = getattr(spark, "_jvm", None)
        if jvm is None:
            raise UsageError("what was decoded is kept with a session of its own JVM, not through Spark Connect")
        self._paths = jvm.org.apache.hadoop.fs.Path
        self._bytes = jvm.org.apache.commons.io.IOUtils
        self._folder = folder.rstrip("/")
        root = self._paths(self._folder)
        self._files = root.getFileSystem(spark._jsc.hadoopConfiguration())
        self._files.setWriteChecksum(False)

    def try_out(self) -> None:
        """Raise OutputError when nothing can be written there."""
        probe = self._path(".kdissect-writable")
        try:
            self._files.create(probe, True).close()
            self._files.delete(probe, False)
        except Exception as error:  # of Java, or what PySpark makes of it
            thrown = getattr(error, "java_exception", error)
            reason = str(thrown).splitlines()[0].partition(": ")[2] or str(thrown)
            raise OutputError(self._folder, OSError(reason)) from None

    def rows(self, generation: str) -> str:
        """Where a run's staged rows are."""
        return f"{self._folder}/{generation}"

    def generation(self, number: int) -> str:
        """Name of the n-th run's staged rows."""
        return f"rows-{number:06}"

    def newest(self) -> Manifest:
        """The manifest of the last run that ended well; an empty one if there is none, or rows that it names are
        gone."""
        numbers = sorted(int(match[1]) for name in self._names() if (match := _MANIFEST.fullmatch(name)))
        if not numbers:
            return Manifest()
        stream = self._files.open(self._path(f"manifest-{numbers[-1]:06}.json"))
        try:
            found = Manifest.read(bytes(self._bytes.toByteArray(stream)).decode("utf-8", "replace"))
        finally:
            stream.close()
        there = set(self._names())
        if not all(name in there for name in found.generations()):
            return Manifest(number=numbers[-1])
        return found if found.number else Manifest(number=numbers[-1])

    def put(self, manifest: Manifest) -> None:
        """Make this the newest manifest, and remove what it does not name."""
        name = f"manifest-{manifest.number:06}.json"
        aside, target = self._path(f"_{name}"), self._path(name)
        stream = self._files.create(aside, True)
        stream.write(bytearray(manifest.text().encode()))
        stream.close()
        if not self._files.rename(aside, target):
            raise UsageError(f"{self._folder}/{name} cannot be written")
        used = manifest.generations()
        for old in self._names():
            if (_MANIFEST.fullmatch(old) and old != name) or (_ROWS.fullmatch(old) and old not in used):
                self._files.delete(self._path(old), True)

    def _path(self, name: str) -> Any:
        return self._paths(f"{self._folder}/{name}")

    def _names(self) -> list[str]:
        root = self._paths(self._folder)
        if not self._files.exists(root):
            return []
        return [str(status.getPath().getName()) for status in self._files.listStatus(root)]

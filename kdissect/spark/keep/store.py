"""The directory where a job leaves what the next one can use, in whatever file system Spark writes to.

    DIR/manifest-000003.json      what is there; a new one is written aside and renamed, and the newest one counts
    DIR/rows-000003/              staged rows of the third run

Whatever no manifest names is left from a run that did not end well, and goes away after the next that does.
"""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING

from kdissect.spark.file_system import HadoopFiles
from kdissect.spark.keep.inventory import Manifest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("kdissect.spark")
UNREADABLE = "%s: what earlier runs left is damaged, or of another version of kdissect: everything is decoded again"
_MANIFEST = re.compile(r"manifest-(\d{6,})\.json")
_ROWS = re.compile(r"rows-\d{6,}")


class Store:
    """Manifests and staged rows below `folder`, by Hadoop's file systems: local, hdfs:, s3a:. Not for Spark Connect."""

    def __init__(self, spark: SparkSession, folder: str) -> None:
        self._files = HadoopFiles(spark)
        self.folder = folder.rstrip("/")

    def rows(self, generation: str) -> str:
        """Where a run's staged rows are."""
        return f"{self.folder}/{generation}"

    def generation(self, number: int) -> str:
        """Name of the n-th run's staged rows."""
        return f"rows-{number:06}"

    def newest(self) -> Manifest:
        """The manifest of the last run that ended well; an empty one if there is none, if rows that it names are gone,
        and, with a line in the log, if it cannot be read or these rows are more or fewer bytes than they were."""
        numbers = sorted(int(match[1]) for name in self._names() if (match := _MANIFEST.fullmatch(name)))
        if not numbers:
            return Manifest()
        text = self._files.read(self._path(f"manifest-{numbers[-1]:06}.json")).decode("utf-8", "replace")
        try:
            found = Manifest.read(text)
        except ValueError:
            log.warning(UNREADABLE, self.folder)
            return Manifest(number=numbers[-1])
        there = set(self._names())
        if not all(name in there for name in found.generations()):
            return Manifest(number=numbers[-1])
        if any(self.size(name) != found.sizes.get(name) for name in found.generations()):
            log.warning(UNREADABLE, self.folder)
            return Manifest(number=numbers[-1])
        return found

    def size(self, generation: str) -> int:
        """Bytes of a run's staged rows."""
        return sum(one.size for one in self._files.list_files(self.rows(generation), deep=True))

    def put(self, manifest: Manifest) -> None:
        """Make this the newest manifest, and remove what it does not name."""
        name = f"manifest-{manifest.number:06}.json"
        self._files.write(self._path(name), manifest.text().encode())
        used = manifest.generations()
        for old in self._names():
            if (_MANIFEST.fullmatch(old) and old != name) or (_ROWS.fullmatch(old) and old not in used):
                self._files.delete(self._path(old))

    def _path(self, name: str) -> str:
        return f"{self.folder}/{name}"

    def _names(self) -> list[str]:
        return self._files.names(self.folder)

"""The looks of a stream into the files that it watches, below its output: a run that goes on looks into new ones only.

A stream puts files in the order of their first packets. To know that of each takes a look into it, which is a request
of storage elsewhere. The process that looks keeps what it saw in a file on the driver's machine (`Watched`), and each
batch copies that to the output. Files are known by path and arrival, so what is kept may be old, or lost.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from kdissect.spark.file_system import HadoopFiles
from kdissect.spark.writing.destination import target

LOOKS = "_first_packets"
"""Below the output."""


class KeptLooks:
    """The first packets' times of watched files: in `path` for who looks into them, and below `output`."""

    def __init__(self, files: HadoopFiles, output: str) -> None:
        """Brings what an earlier run kept."""
        from pyspark import SparkFiles

        self._files, self._place = files, target(output, LOOKS)
        self.path = Path(tempfile.mkdtemp(prefix="kdissect-", dir=SparkFiles.getRootDirectory()), LOOKS)
        self._known = files.read(self._place) if files.exists(self._place) else b""
        self.path.write_bytes(self._known)

    def keep(self) -> None:
        """Copy what was seen since to the output."""
        seen = self.path.read_bytes()
        if seen != self._known:
            self._files.overwrite(self._place, seen)
            self._known = seen

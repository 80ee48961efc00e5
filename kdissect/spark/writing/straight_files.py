"""Tables as Parquet files of the one task that reads a whole job: rows go from the analysis into files."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from kdissect.spark.placing import Places
from kdissect.spark.stages.owners import owned
from kdissect.spark.writing.hive_folders import WrittenFile
from kdissect.spark.writing.task_files import TableFiles
from kdissect.tables.builder import TableBuilder
from kdissect.tables.declaration import TABLES
from kdissect.tables.declaration.model import By

ROWS = (By.BLOCK, By.RECORD_SETS, By.END, By.NOTED)
"""Tables whose rows know their connection: what others lack is known when all was read."""


def straight_tables(names: Collection[str]) -> list[str]:
    """The tables among these that can be written as they are made."""
    return [name for name in names if TABLES[name].made in ROWS]


class StraightFiles:
    """Writes files below `folder`. `schemas`: of the tables to be written; `by`: the columns that each is cut by;
    `sources`: names of all captures."""

    def __init__(
        self,
        folder: str,
        schemas: Mapping[str, pa.Schema],
        by: Mapping[str, Sequence[str]],
        sources: Sequence[str],
    ) -> None:
        self._folder, self._schemas, self._by, self._sources = folder, dict(schemas), dict(by), list(sources)
        self._files: TableFiles | None = None
        self._builder: TableBuilder | None = None
        self._places: Places | None = None

    @property
    def tables(self) -> Collection[str]:
        """See Straight."""
        return self._schemas.keys()

    @contextmanager
    def writing(self, builder: TableBuilder, apart: bool) -> Iterator[None]:
        """See Straight."""
        self._builder, self._places = builder, None
        with TableFiles(Path(self._folder), self._schemas, self._by, apart) as self._files:
            yield

    def add(self, name: str, table: pa.Table, columns: Sequence[str]) -> None:
        """See Straight."""
        assert self._files is not None
        places = self._places
        if places is None or (places.asks(columns) and not places.know(table)):
            places = self._places = self._known()
        self._files.add(name, places.placed(name, table, columns, coded=True))

    def list_files(self) -> list[tuple[str, str, int, str]]:
        """See Straight."""
        assert self._files is not None
        return [WrittenFile(**row) for row in self._files.told().to_pylist()]

    def _known(self) -> Places:
        """Connections and names of brokers by now. A broker that is named here must not get another name later."""
        assert self._builder is not None
        brokers, found = self._builder.brokers, owned(self._builder.directory)
        if brokers.given is not None:
            brokers.given |= brokers.names_of(found.places)
        return Places.of([found], brokers, self._sources, {})

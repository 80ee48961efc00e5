"""`kdissect.spark.stream`: rows of exchanges while captures are being rotated into a directory.

Complete files of the directory (`file_stream`) are grouped by their set. A stateful operator goes on with each set
where it stopped (`kdissect.engine.resumption`). Connections, unfinished frames, waiting requests and what the analysis
knows are its state, in Spark's RocksDB state store. The query's checkpoint has the files that were read and where each
set stands. So with a sink that takes part in it (Spark's files, Delta, Iceberg) every row comes exactly once, whenever
the query is stopped or killed. A set's files are read one after the other by one task; different sets by different
tasks.
"""

from __future__ import annotations

import importlib.util
import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from kdissect.capture.captureset import Member
from kdissect.engine import resumption
from kdissect.engine.settings import Settings
from kdissect.installed_copy import install_command
from kdissect.problems import CaptureError, UsageError
from kdissect.spark.cells.table_cells import cell, read_cell
from kdissect.spark.remote_storage import RemoteMember, Storage
from kdissect.spark.schemas import arrow_schema, spark_schema
from kdissect.spark.source.registration import register
from kdissect.spark.source.remote_captures import find_storage, split_local
from kdissect.spark.workers import note_place

if TYPE_CHECKING:
    import pandas
    from pyspark.sql import DataFrame, SparkSession

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"

MOST = 1000
"""Files of a batch: a day of one host's rotation, planned and done in minutes."""
CELLS = "capture string, table string, rows long, data binary"
"""What the stateful operator makes: some rows of a table, out of a capture set."""
FORGET = 7 * 86400.0
"""Seconds after which a set without a new file is over: longer than a weekend's outage of whoever writes it."""


def stream(
    spark: SparkSession,
    directory: str | Path,
    table: str = "exchanges",
    columns: Sequence[str] | None = None,
    *,
    quiet: float | None = None,
    most: int = MOST,
    forget: float | None = FORGET,
) -> DataFrame:
    """A streaming DataFrame of a table's rows, from files that are rotated into `directory` and folders in it, on this
    machine or in storage elsewhere (`s3a://bucket/captures`).

    `table`: one of `kdissect.engine.resumption.STREAMED`, such as exchanges, fetches, fetch_sessions or findings; a
    query for each table (`follow` writes several by one). `columns`: names (None: all). A file is read once a later
    one of its set is there; with `quiet` also once it was not written to for so many seconds. Rows wait for what
    decides their columns of the analysis. With PySpark 4.2 and later a batch has `most` files at most, and a set that
    had no new file for `forget` seconds (None: never) is over: the rows that waited come. Write the rows with a
    checkpoint, by appending:

        stream(spark, "/captures").writeStream.option("checkpointLocation", "/state").start("/tables/exchanges")

    Sets the session's state store to RocksDB, which the stateful operator needs, next to the package protobuf. Raises
    UsageError.
    """
    wanted = resumption.columns(table, columns)
    cells = cells_of(spark, directory, {table: wanted}, quiet=quiet, most=most, forget=forget)
    return rows_of(cells, arrow_schema(table, wanted))


def cells_of(
    spark: SparkSession,
    directory: str | Path,
    tables: Mapping[str, list[str]],
    *,
    quiet: float | None,
    most: int,
    forget: float | None,
    placed: bool = False,
    looks: Path | None = None,
) -> DataFrame:
    """A streaming DataFrame of CELLS: rows of these columns of several tables, each file read once for all of them; the
    rest as for `stream`. `placed`: rows are to be written. `looks`: a file on this machine of what is known of those in
    the directory."""
    place = followed_folder(directory)
    storage = find_storage(spark, place)
    if importlib.util.find_spec("google") is None or importlib.util.find_spec("google.protobuf") is None:
        raise UsageError(f"streaming needs protobuf: {install_command('spark')}")
    spark.conf.set(PROVIDER, ROCKSDB)
    register(spark)
    read = spark.readStream.format("kdissect").option("table", "files")
    if most < 1:
        raise UsageError(f"most is 1 or more, not {most}")
    read = read.option("most", str(most))
    if forget is not None:
        read = read.option("forget", str(forget))
    if quiet is not None:
        read = read.option("quiet", str(quiet))
    if looks is not None:
        read = read.option("looks", str(looks))
    return (
        read.load(place)
        .groupBy("capture")
        .transformWithStateInPandas(
            statefulProcessor=_processor(
                Work({name: list(columns) for name, columns in tables.items()}, Settings(dated=placed), storage)
            ),
            outputStructType=CELLS,
            outputMode="Append",
            timeMode="None",
        )
    )


def followed_folder(directory: str | Path) -> str:
    """The whole path of the directory that files are rotated into, or its address in storage elsewhere. Raises
    UsageError for anything else."""
    near, far = split_local(str(directory))
    if far:
        return far[0]
    folder = Path(str(near))
    if not folder.is_dir():
        raise UsageError(f"{folder}: not a directory that captures are rotated into")
    return str(folder.absolute())


def rows_of(cells: DataFrame, schema: pa.Schema) -> DataFrame:
    """The rows of one table, all of whose cells these are."""
    plain = pa.schema([one.remove_metadata() for one in schema])
    return cells.select("data").mapInArrow(partial(_rows, schema=plain), spark_schema(schema))


@dataclass(frozen=True, slots=True)
class Work:
    """The tables and columns that are made of each file."""

    tables: dict[str, list[str]]
    """Columns by the table's name."""
    settings: Settings = field(default_factory=Settings)
    """`dated`: rows are to be written, with the columns that every table has there."""
    storage: Storage | None = None
    """Where the files lie, None for this machine."""

    def do(
        self,
        capture: str,
        files: Sequence[tuple[str, str]],
        state: bytes | None,
        begins: Mapping[str, int] | None = None,
    ) -> Iterator[tuple[str, pa.Table] | bytes]:
        """Rows of the next files, (name, path) in order, as tables with their names; at the end the state, as bytes.
        `begins`: first packets' times (ns) of those that are not late, by name, as they were when the files were found.
        A path behind LATE is of a file that comes before others that have been read, or is one of them."""
        work = self._begin(capture, state)
        try:
            yield from self._rows(work, capture, files, begins)
        except (CaptureError, OSError):
            raise  # it names the file
        except Exception as error:
            note_place(error, posixpath.join(posixpath.dirname(capture), work.last_file))
            raise
        yield work.state()

    def _rows(
        self,
        work: resumption.Continued,
        capture: str,
        files: Sequence[tuple[str, str]],
        begins: Mapping[str, int] | None,
    ) -> Iterator[tuple[str, pa.Table]]:
        """Rows of the next files."""
        from kdissect.spark.source.file_stream import LATE, decoded

        files = [(name, decoded(path)) for name, path in files]
        late = (self._member(name, path.removeprefix(LATE)) for name, path in files if path.startswith(LATE))
        apart = work.note_late(late)
        if apart:
            yield from self._read_apart(work, capture, apart)
        fresh = [self._member(name, path) for name, path in files if not path.startswith(LATE)]
        yield from _as_tables(work, work.rows_of(fresh, begins) if fresh else work.problems())

    def _member(self, name: str, path: str) -> Member:
        """A file of the capture set."""
        if self.storage is None:
            return Member(name, Path(_current_path(path)))
        return RemoteMember(name, self.storage, path, plain=False, must_read=True)

    def _read_apart(
        self, work: resumption.Continued, capture: str, files: Sequence[Member]
    ) -> Iterator[tuple[str, pa.Table]]:
        """Rows of files that are not behind those that were read."""
        alone = work.apart()
        yield from _as_tables(alone, alone.rows_of(files))
        work.learn_from(alone)
        yield from self.end(capture, alone.state())

    def end(self, capture: str, state: bytes) -> Iterator[tuple[str, pa.Table]]:
        """The rows that are made when there are no more files."""
        work = self._begin(capture, state)
        yield from _as_tables(work, work.read_rest())

    def _begin(self, capture: str, state: bytes | None) -> resumption.Continued:
        from kdissect.spark.source.placed_rows import PlacedRows

        kind = PlacedRows if self.settings.dated else resumption.Continued
        return kind(capture, self.tables, self.settings, state)


def _as_tables(
    work: resumption.Continued, rows: Iterator[tuple[str, pa.RecordBatch]]
) -> Iterator[tuple[str, pa.Table]]:
    """Rows of tables with their names, then what is told beside them."""
    for name, batch in rows:
        yield name, pa.Table.from_batches([batch])
    yield from work.told_beside()


def _current_path(path: str) -> str:
    """The file, or what compressing it meanwhile (`tcpdump -z`) has made of it."""
    from kdissect.capture.sources import COMPRESSED

    return next((path + end for end in ("", *COMPRESSED) if Path(path + end).exists()), path)


def _processor(work: Work) -> Any:
    """The stateful operator; made here, for its class needs pyspark."""
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

    from kdissect.spark.source.file_stream import LATE, place

    class Follower(StatefulProcessor):
        """Goes on with one set of files."""

        def init(self, handle: StatefulProcessorHandle) -> None:
            """The state is one value."""
            self._state = handle.getValueState("capture", "state binary")

        def handleInputRows(  # noqa: N802
            self, key: Any, rows: Iterator[Any], timerValues: Any
        ) -> Iterator[pandas.DataFrame]:
            """The set's next files to cells of rows."""
            import pandas

            capture = str(key[0])

            def as_cell(name: str, part: pa.Table) -> pandas.DataFrame:
                values = {"capture": capture, "table": name, "rows": part.num_rows, "data": cell(part)}
                return pandas.DataFrame({column: [value] for column, value in values.items()})

            found = [(str(r["file"]), str(r["path"]), int(r["first"])) for f in rows for r in f.to_dict("records")]
            known = self._state.get()
            before = None if known is None else bytes(known[0])
            if before is not None and any(not name for name, _, _ in found):  # the set is over
                for name, rest in work.end(capture, before):
                    yield as_cell(name, rest)
                before = resumption.end_state(before)
                self._state.update((before,))
            found = sorted((row for row in found if row[0]), key=lambda row: place(row[2], row[0]))
            begins = {name: first for name, path, first in found if not path.startswith(LATE)}
            files = [(name, path) for name, path, _ in found]
            for made in work.do(capture, files, before, begins) if files else ():
                if isinstance(made, bytes):
                    self._state.update((made,))
                else:
                    yield as_cell(*made)

        def close(self) -> None:
            """Nothing is held."""

    return Follower()


def _rows(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Cells to rows."""
    for batch in batches:
        for data in batch.column(0):
            yield from read_cell(data.as_py()).cast(schema).to_batches()

"""`kdissect.spark.dissect`: what to read and to make, checked, and who does it: one task, or all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from kdissect.capture.clock import find_span
from kdissect.capture.keys import read_key_log
from kdissect.capture.sources import Source as Named
from kdissect.engine.capture_tables import MADE
from kdissect.engine.settings import Settings
from kdissect.problems import UsageError
from kdissect.spark.dataset import Dataset
from kdissect.spark.partition_numbers import labels
from kdissect.spark.source.remote_captures import remote_sources, split_local
from kdissect.spark.stages.analysing import SUMMED
from kdissect.spark.stages.plan import Plan, Source, carry_large, open_readable, source_of
from kdissect.spark.whole_dataset import WholeDataset
from kdissect.spark.workers import runs_on_this_machine
from kdissect.tables.declaration import columns_of
from kdissect.tables.host_names import read_names
from kdissect.tables.projection import choose_columns_of_each
from kdissect.tables.recording import Reading

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TRANSPORTS = ("ranges", "payload")
ENGINES = ("local", "spark")
BYTES_PER_PARTITION = 512 << 20
"""Capture bytes behind one partition of the decoding stage: some seconds of work."""
BUCKET_BYTES = 4 << 20
"""Bytes of a capture for each partition that its connections are spread over, if the caller does not say how many."""

FEW_BYTES = 64 << 20
"""Captures of so many bytes are read and analysed by one task: spreading them takes longer."""
FEW_FILES, SMALL_FILE = 100, 1 << 20
"""More files, smaller than this on the average, are not: the engine takes 10 ms for each before it comes to its bytes,
an index of their packets 1 ms."""
ALONE_CORES, ALONE_BYTES = 4, 32 << 30
"""On a machine with so many cores larger ones are, too, up to so many bytes: spread over all cores a job takes two to
five times the work (docs/performance.md). It takes memory for each connection, and begins again when the task fails."""


def dissect(
    spark: SparkSession,
    paths: Named | Sequence[Named],
    tables: Sequence[str] | Mapping[str, Sequence[str] | None] | None = None,
    *,
    start: str | datetime | None = None,
    end: str | datetime | None = None,
    keylog: str | Path | None = None,
    hosts: str | Path | Sequence[str | Path] | None = None,
    verify: bool = False,
    reveal: bool = False,
    transport: str | None = None,
    partitions: int | None = None,
    engine: str | None = None,
    strict: bool = False,
) -> Dataset:
    """Captures as DataFrames, one for each table: a mapping that reads nothing before a table is asked for.

    `paths`: a path, a glob, a directory, or a list of these, which driver and executors see alike. Files of a rotated
    set are one capture, wherever they are cut. `tables`: names (None: all but `records` and `producers`), or a mapping
    from names to columns. `start`, `end`, `keylog`, `hosts`, `verify`: as in `kdissect.open`, but for names of hosts
    that a capture carries, which one task alone reads; `reveal`: keys, values and headers of `records` too.
    `transport`: "ranges" reads payloads again where they are needed, "payload" shuffles them (None: ranges where these
    are read, but for large captures elsewhere that may share exchanges with others). `partitions` of the decoding stage
    (None: by size and cores). `engine`: "local" has one task do it all as one machine does, "spark" spreads it over
    tasks (None: local where that is sooner, and no `partitions` are given). `strict`: a file that cannot be read to its
    end is an error, not a problem row.

    Rows equal those of `kdissect.open`, in no order. Raises UsageError, CaptureError.
    """
    job = prepare(
        paths,
        tables,
        spark,
        start=start,
        end=end,
        keylog=keylog,
        hosts=hosts,
        verify=verify,
        reveal=reveal,
        transport=transport,
        strict=strict,
    )
    return job.on(spark, partitions, engine)


@dataclass(frozen=True, slots=True)
class Job:
    """The captures to read and the tables to make, checked, before there is a session."""

    sources: list[Source]
    columns: dict[str, list[str]]
    settings: Settings
    strict: bool
    refused: list[tuple[str, str]]

    def on(self, spark: SparkSession, partitions: int | None = None, engine: str | None = None) -> Dataset:
        """The job's tables; see `dissect`."""
        if partitions is not None and partitions < 1:
            raise UsageError(f"partitions must be 1 or more, not {partitions}")
        if engine not in (None, *ENGINES):
            raise UsageError(f"engine is {' or '.join(ENGINES)}, not {engine!r}")
        if engine == "local" and partitions is not None:
            raise UsageError("partitions are of engine 'spark': the local engine is one task")
        count = partitions or _partitions(spark, sum(source.packet_bytes for source in self.sources))
        each = BUCKET_BYTES if partitions is None else 0
        share = max(self._bytes // count, 1)
        plan = Plan(self.sources, self.columns, self.settings, labels(count), each, share, refused=self.refused)
        if engine == "local" or (engine is None and partitions is None and self.fits_one_task(spark)):
            return WholeDataset(spark, plan, self.strict, self._cores_to_use(spark) or 0)
        return Dataset(spark, plan, self.strict)

    def fits_one_task(self, spark: SparkSession) -> bool:
        """Whether the job is done sooner by one task than spread over all cores, which takes more work."""
        return self.by_one_task(self._cores_to_use(spark))

    def _cores_to_use(self, spark: SparkSession) -> int | None:
        """The cores of this machine, if the session runs here and the job has rows for all of them."""
        return _cores(spark) if self._bytes > FEW_BYTES and runs_on_this_machine(spark) else None

    def by_one_task(self, cores: int | None) -> bool:
        """Whether one task does the job sooner in a session that runs so many tasks at a time on this machine; None: on
        others."""
        if any(source.spark_only for source in self.sources):
            return False
        files = sum(len(source.files) for source in self.sources)
        if files > FEW_FILES and self._bytes < SMALL_FILE * files:
            return False
        if self._bytes <= FEW_BYTES:
            return True
        summed = not SUMMED.keys().isdisjoint(self.columns)  # one task would make these of all rows, in memory
        far = any(source.remote for source in self.sources)  # several tasks read sooner than one
        return cores is not None and cores <= ALONE_CORES and self._bytes <= ALONE_BYTES and not summed and not far

    @property
    def _bytes(self) -> int:
        return sum(sum(source.stored) for source in self.sources)


def prepare(
    paths: Named | Sequence[Named],
    tables: Sequence[str] | Mapping[str, Sequence[str] | None] | None = None,
    spark: SparkSession | None = None,
    *,
    start: str | datetime | None = None,
    end: str | datetime | None = None,
    keylog: str | Path | None = None,
    hosts: str | Path | Sequence[str | Path] | None = None,
    verify: bool = False,
    reveal: bool = False,
    transport: str | None = None,
    strict: bool = False,
) -> Job:
    """Everything about `dissect` that comes before jobs; Spark is needed for paths elsewhere only. Raises UsageError,
    CaptureError."""
    if transport not in (None, *TRANSPORTS):
        raise UsageError(f"transport is {' or '.join(TRANSPORTS)}, not {transport!r}")
    asked = choose_columns_of_each(MADE if tables is None else tables)
    columns = {name: columns_of(name, some) for name, some in asked.items()}
    keys = None if keylog is None else read_key_log(keylog)
    named = read_names([] if hosts is None else [hosts] if isinstance(hosts, str | Path) else hosts)
    near, far = split_local(paths)
    captures, refused = ([], []) if near is None else open_readable(near, strict)
    for capture in captures:
        if not capture.regular:
            raise UsageError(f"{capture.name}: Spark reads files, not pipes or open files")
    settings = Settings(
        *find_span(start, end, captures),
        keylog=keys,
        reading=Reading(verify=verify).with_columns(asked, {}, reveal),
        hosts=named,
    )
    sources = [source_of(capture, transport == "payload") for capture in captures]
    if far:
        sources += remote_sources(spark, far, transport == "payload")
    return Job(sources if transport else carry_large(sources), columns, settings, strict, refused)


def _partitions(spark: SparkSession, size: int) -> int:
    """Partitions of the decoding stage: two for each core, more for many bytes."""
    return max(2 * _cores(spark), -(-size // BYTES_PER_PARTITION))


def _cores(spark: SparkSession) -> int:
    """Tasks that run at the same time: asked for in a small job where the session cannot say, by Spark Connect."""
    context = getattr(spark, "sparkContext", None)
    if context is not None:
        return int(context.defaultParallelism)
    numbers = spark.range(1 << 16).selectExpr("spark_partition_id() as id").agg({"id": "max"})
    return int(numbers.collect()[0][0]) + 1

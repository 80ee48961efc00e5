"""`kdissect.spark.messages`: every message of one API, nested as on the wire."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from kdissect.capture.sources import Source as Named
from kdissect.engine.capture import Capture
from kdissect.engine.settings import Settings
from kdissect.problems import UsageError
from kdissect.spark.job import prepare
from kdissect.spark.schemas import spark_schema
from kdissect.spark.stages.plan import Source
from kdissect.spark.workers import settled

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def messages(
    spark: SparkSession,
    paths: Named | Sequence[Named],
    api: str,
    direction: str,
    *,
    keylog: str | Path | None = None,
) -> DataFrame:
    """Every message of an API ("Metadata") and direction ("request" or "response"): the rows of `Capture.messages`.

    Each capture, with all files of its rotated set, is read by one task, which takes as long as on one machine.
    Raises UsageError for an API or direction that there is not, CaptureError.
    """
    job = prepare(paths, [], spark, keylog=keylog)
    schema = Capture([], job.settings).messages(api, direction).schema
    sources = job.sources
    for source in sources:
        if source.spark_only:
            raise UsageError(f"{source.name}: nothing in Python opens this file system. Mount the storage.")
    read = partial(_read, sources=sources, settings=job.settings, api=api, direction=direction)
    return spark.range(0, len(sources), 1, len(sources)).mapInArrow(read, spark_schema(schema))


def _read(
    batches: Iterable[pa.RecordBatch], sources: Sequence[Source], settings: Settings, api: str, direction: str
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for number in batch.column(0).to_pylist():
            capture = Capture([sources[number].capture()], settings)
            for made in settled("messages", capture.message_batches(api, direction)):
                yield made.cast(pa.schema([field.remove_metadata() for field in made.schema]))

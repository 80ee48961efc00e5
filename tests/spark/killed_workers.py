"""Tables of captures whose job loses a Python worker, by kill -9, in each of its stages; run by test_killed_workers.py.

    python killed_workers.py CAPTURES OUTPUT

A process of its own: its tasks may fail (local[2,4]), and functions of this file go to the workers by value, so that
those which stand in for the stages' own are met there.
"""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from kdissect.spark import dataset, job, time_spans
from kdissect.spark.stages import analysing
from kdissect.spark.writing import placed_tables

STAGES: dict[str, list[tuple[Any, str]]] = {
    "index": [(dataset, "index")],
    "decode": [(dataset, "_decode")],
    "analyse": [(dataset, "_analyse")],
    "find": [(analysing, "find_findings")],
    "write": [(placed_tables, "write_staged")],
}
"""Functions from batches to batches that run in workers."""


def dying(stage: Callable[..., Iterator[Any]], note: Path, *args: Any, **named: Any) -> Iterator[Any]:
    """What the stage makes; the first worker to have made some of it is killed, and leaves a note."""
    for made in stage(*args, **named):
        yield made
        try:
            note.touch(exist_ok=False)
        except FileExistsError:
            continue
        os.kill(os.getpid(), signal.SIGKILL)


def main(captures: str, output: str) -> None:
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    from pyspark.sql import SparkSession

    notes = Path(output, "notes")
    notes.mkdir(parents=True)
    for name, places in STAGES.items():
        for module, function in places:
            setattr(module, function, partial(dying, getattr(module, function), notes / name))
    built = SparkSession.builder.master("local[2,4]").config("spark.ui.enabled", "false")
    built = built.config("spark.sql.session.timeZone", "UTC").config("spark.ui.showConsoleProgress", "false")
    built = built.config("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    session = built.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    time_spans.SPAN_ROWS = 200  # of the analysis the first span's worker is killed
    made = job.prepare(captures).on(session, 3)
    print(sorted(placed_tables_of(made, f"{output}/tables").items()))
    session.stop()


def placed_tables_of(made: Any, output: str) -> dict[str, int]:
    from kdissect.spark.writing.saving import write

    return write(made, output)


if __name__ == "__main__":
    main(*sys.argv[1:])

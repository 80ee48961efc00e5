"""What Spark's Python workers need: they serve one task after the other."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pyarrow as pa

_SETTLED: set[str] = set()


def settled(stage: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches of a stage. A worker collects garbage after every task, which takes half a second where modules and
    kernels are hundreds of thousands of objects: after a stage's first task these are left out of it for good."""
    yield from batches
    if stage not in _SETTLED:
        _SETTLED.add(stage)
        gc.collect()
        gc.freeze()

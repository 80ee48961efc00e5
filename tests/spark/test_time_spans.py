"""A broker's rows that are analysed in spans of time, cut at any instants, on Spark itself.

`test_decoding.py` has the same without Spark.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import kdissect
import kdissect.spark
from kdissect.spark import time_spans
from kdissect.spark.stages import analysing, lots
from kdissect.spark.stages.analysing import Ends
from kdissect.tables.declaration import TABLES

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]
RECORDINGS = ("k4_slow_and_throttled", "k4_transactions", "sweep_391_kraft")
"""Quotas that mute connections, transactions, and followers that fetch; all of them with fetch sessions."""


class RandomEnds:
    """Stands for `time_spans.span_ends`: ends of spans anywhere between a broker's first row and its last one."""

    def __init__(self, spans: int, seed: int) -> None:
        self.spans, self._random = spans, random.Random(seed)
        self.chosen: list[Ends] = []

    def __call__(self, rows: Any, weights: Mapping[str, int]) -> list[Ends]:
        from pyspark.sql.functions import max as greatest
        from pyspark.sql.functions import min as least

        made = [dict[str, int]() for _ in range(self.spans - 1)]
        for broker, first, last in sorted(rows.groupBy("broker").agg(least("at"), greatest("at")).collect()):
            instants = sorted(self._random.randint(first, last + 1) for _ in made)
            for end, instant in zip(made, instants, strict=True):
                end[broker] = instant
        self.chosen = list(made)
        return self.chosen


@pytest.mark.parametrize(
    ("spans", "seed"),
    [
        pytest.param(1, 0, marks=pytest.mark.exhaustive),
        (2, 1),
        pytest.param(7, 2, marks=pytest.mark.exhaustive),
        pytest.param(50, 3, marks=pytest.mark.exhaustive),
    ],
)
def test_every_table_is_that_of_the_uncut_analysis(
    spark: Any, captures: Path, equal: Any, monkeypatch: pytest.MonkeyPatch, spans: int, seed: int
) -> None:
    monkeypatch.setattr(lots, "MOST", 32)  # lots of a few rows: spans begin and end within what one task has decoded
    ends = RandomEnds(spans, seed)
    monkeypatch.setattr("kdissect.spark.dataset.span_ends", ends)
    paths = [captures / f"{name}.pcap" for name in RECORDINGS]
    found = kdissect.spark.dissect(spark, paths, list(TABLES), partitions=2)
    equal({name: frame.toArrow() for name, frame in found.items()}, kdissect.open(paths).tables(list(TABLES)))
    assert len(found._spans) == spans
    assert all(one[broker] <= other[broker] for one, other in pairwise(ends.chosen) for broker in one)
    if spans > 1:
        states = [part.where(f"table = '{analysing.STATE}'").count() for part in found._spans]
        assert states[-1] == 0 < states[-2]
    found.unpersist()


def test_a_span_has_so_many_rows(spark: Any, captures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_spans, "SPAN_ROWS", 4)
    path = captures / "base_tiny.pcap"
    found = kdissect.spark.dissect(spark, path, ["fetches"], partitions=2)
    assert found["fetches"].count() == kdissect.open(path).table("fetches").num_rows
    rows = max(found._outcome.weights.values())
    assert len(found._spans) == -(-rows // time_spans.SPAN_ROWS) > 2
    found.unpersist()

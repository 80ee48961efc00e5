from __future__ import annotations

from typing import Any

import pytest

from kdissect.spark.partition_numbers import labels, spark_hash


def test_a_hash_is_what_spark_makes() -> None:
    assert [spark_hash(number) for number in (0, 1, 2)] == [933211791, -559580957, 1765031574]


@pytest.mark.parametrize("count", [1, 2, 3, 64])
def test_each_partition_has_a_number(count: int) -> None:
    assert [spark_hash(label) % count for label in labels(count)] == list(range(count))


@pytest.mark.spark
def test_spark_agrees(spark: Any) -> None:
    rows = spark.range(-50, 1000).selectExpr("cast(id as int) as n", "hash(cast(id as int)) as h").collect()
    assert all(spark_hash(row.n) == row.h for row in rows)
    assert len({row.h for row in rows}) > 1000

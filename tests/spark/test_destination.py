from __future__ import annotations

import pytest

from kdissect.engine.capture_tables import MADE
from kdissect.problems import UsageError
from kdissect.spark.writing.destination import partitioned, target


def test_folders_by_the_columns_that_a_table_has() -> None:
    found = partitioned(["exchanges", "fetch_partitions", "topics"], ["broker", "date", "api"])
    assert found == {
        "exchanges": ["broker", "date", "api"], "fetch_partitions": ["broker", "date"], "topics": ["broker", "date"]
    }  # fmt: skip
    assert set(partitioned(None, [])) == set(MADE)


def test_a_column_that_no_table_has() -> None:
    with pytest.raises(UsageError, match="'brokr'"):
        partitioned(["exchanges"], ["brokr"])
    with pytest.raises(UsageError, match="did you mean 'exchanges'"):
        partitioned(["exchangs"], [])


def test_where_tables_go() -> None:
    assert target("out/", "groups") == target("out", "groups") == "out/groups"
    assert target("s3a://bucket/out", "groups") == "s3a://bucket/out/groups"

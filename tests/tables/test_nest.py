"""Nested columns as flat arrays."""

from __future__ import annotations

import pyarrow as pa

from kdissect.tables.nest import Level


def test_what_is_missing_or_null_throughout_tells_nothing() -> None:
    """Below lists, in structs, and where lists themselves are null."""
    known = {"leader": {"id": 3, "epoch": None}, "number": 1}
    rows = [{"topics": [{"partitions": [known], "name": None}]}, {"topics": None}, {"topics": [{"partitions": []}]}]
    level = Level.root(pa.RecordBatch.from_pylist(rows))
    assert level.may_have_values("topics")
    assert level.may_have_values("topics", "partitions", "leader.id")
    assert not level.may_have_values("topics", "partitions", "leader.epoch")
    assert not level.may_have_values("topics", "partitions", "leader.name")
    assert not level.may_have_values("topics", "name")
    assert not level.may_have_values("brokers", "id")
    assert not Level.root(pa.record_batch({})).may_have_values("topics")

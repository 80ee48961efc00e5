"""Topics of messages by code, against Python's own dictionaries."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from kdissect.tables.coded_rows import Topics
from kdissect.tables.nest import Level

NAMES = ["a", "", "ab", "b", None, "ä", "a" * 300]
IDS = [None, "AAAAAAAAAAAAAAAAAAAAAQ", "a", "AAAAAAAAAAAAAAAAAAAAAA"]


@pytest.mark.parametrize("size", [0, 1, 3, 500])
@pytest.mark.parametrize("fields", [("name",), ("topic_id",), ("name", "topic_id"), ()])
def test_topics_have_one_code_each(size: int, fields: tuple[str, ...]) -> None:
    """In the order in which they come; null is another one than an empty name."""
    chance = np.random.default_rng(size)
    said = {"name": [NAMES[i] for i in chance.integers(0, len(NAMES), size + 2)],
            "topic_id": [IDS[i] for i in chance.integers(0, len(IDS), size + 2)]}  # fmt: skip
    columns = {field: pa.array(said[field], pa.string()).slice(2) for field in fields} or {"x": pa.nulls(size)}
    topics = Topics()
    codes = topics.of(Level.root(pa.record_batch(columns)), "name", "topic_id")
    pairs = [
        (said["name"][2 + i] if "name" in fields else None, said["topic_id"][2 + i] if "topic_id" in fields else None)
        for i in range(size)
    ]
    expected = {pair: code for code, pair in enumerate(dict.fromkeys(pairs))}
    assert codes.tolist() == [expected[pair] for pair in pairs]
    assert list(topics.codes) == list(expected)

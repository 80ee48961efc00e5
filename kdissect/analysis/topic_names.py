"""What topics are called where no message tells their names: by their ids."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc


def topics_or_ids(table: pa.Table) -> pa.ChunkedArray:
    """The name of each row's topic, its id where no name is known; null where the row has neither."""
    topics = table["topic"]
    if not topics.null_count or "topic_id" not in table.schema.names:
        return topics
    return pc.coalesce(topics.cast(pa.string()), table["topic_id"].cast(pa.string()))

"""Finds the partitions that an incremental fetch covers without naming them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from kdissect.analysis.sessions.session_rules import LAST_EPOCH
from kdissect.arrays.arrow import ints, one
from kdissect.problems import UsageError
from kdissect.tables.declaration import SCHEMAS


def implied(exchange_id: str, fetches: pa.Table, fetch_partitions: pa.Table, session_partitions: pa.Table) -> pa.Table:
    """The partitions of its session that a Fetch request did not name: session_key, topic, topic_id, partition,
    from_epoch, to_epoch, last_fetch_offset, as in `session_partitions`, ordered by topic and partition.

    Empty for requests that are not incremental. For a session whose beginning was not captured these are the members
    that are known; there may be more (`implied_partitions` is null then). Raises UsageError for an exchange id that is
    not among the fetches.
    """
    ids = fetches["exchange_id"].to_pylist()
    if exchange_id not in ids:
        raise UsageError(f"no Fetch {exchange_id!r} in this capture")
    row = fetches.slice(ids.index(exchange_id), 1).to_pylist()[0]
    stays = SCHEMAS["session_partitions"].empty_table()
    if row["request_kind"] != "incremental" or row["session_key"] is None:
        return stays
    keys = one(session_partitions, "session_key")
    mine = np.array([key == row["session_key"] for key in (keys.to_pylist() if keys is not None else [])], np.bool_)
    stays = session_partitions.filter(pa.array(mine, pa.bool_()))
    begin, end = ints(stays, "from_epoch", 0), ints(stays, "to_epoch")
    epoch = int(row["session_epoch"])
    inside = np.array(
        [within(epoch, a, b) for a, b in zip(begin.tolist(), end.tolist(), strict=True)],
        np.bool_,
    )
    named = {
        (part["topic_id"] or part["topic"], part["partition"])
        for part in fetch_partitions.filter(
            pa.array([name == exchange_id for name in fetch_partitions["exchange_id"].to_pylist()], pa.bool_())
        ).to_pylist()
        if part["in_request"]
    }
    rest = np.array(
        [(part["topic_id"] or part["topic"], part["partition"]) not in named for part in stays.to_pylist()], np.bool_
    )
    found = stays.filter(pa.array(inside & rest, pa.bool_()))
    return found.sort_by([("topic", "ascending"), ("topic_id", "ascending"), ("partition", "ascending")])


def within(epoch: int, begin: int, end: int) -> bool:
    """Whether a stay from `begin` (in) to `end` (out, -1 never) covers this epoch (KIP-227). Epochs wrap: a stay
    is a stretch of them."""
    if end < 0:
        return epoch >= begin or begin - epoch > LAST_EPOCH // 2
    if begin <= end:
        return begin <= epoch < end
    return epoch >= begin or epoch < end

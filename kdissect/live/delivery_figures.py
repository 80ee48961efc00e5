"""Deliveries of live traffic by topic and group: how long record batches took from their producers to their readers.

Rules.

- The join is that of the table `deliveries`. It needs both ends of a batch's way, so rows of the last KEPT_US are kept,
  KEPT_BYTES at most. Every JOIN_US they are joined, and what was delivered since the last time is counted.
- A delivery is counted once, and only once everything before it is there (PATIENCE_US later). A batch whose Produce
  request is not among the rows that are kept counts as a delivery without a time.
- Followers are no readers. A reader whose group no message named counts as `(unknown)`.
- Topics and groups have places together, as other names have (`labels`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kdissect.analysis.deliveries.delivery_rows import CAUSES
from kdissect.analysis.deliveries.delivery_summary import first_known, without_followers
from kdissect.analysis.deliveries.first_deliveries import READ, join_parts
from kdissect.analysis.deliveries.visibility import NEVER
from kdissect.arrays.arrow import encoded, ints, reals
from kdissect.live.labels import BUCKET_MS, CELLS, OTHER, UNKNOWN, Dimension, quantile
from kdissect.live.moment import Moment
from kdissect.schema.apikeys import ApiKey
from kdissect.tables.declaration.readers import DELIVERIES

KEPT_US = 120_000_000
"""Microseconds of the capture: a reader that is later than this has another trouble, its lag."""
KEPT_BYTES = 24_000_000
"""Of rows that stay after a join; as many again may wait for one. Joining 32 MB, 60,000 batches, takes 0.2 s of CPU."""
JOIN_US = 5_000_000
PATIENCE_US = 3_000_000
"""For a Produce request that is answered after its batch was delivered: followers may take as long before the leader
answers acks=all."""
PLACES = 50
"""Pairs of a topic and a group that have a place."""
SEPARATOR = "\t"
"""Between a topic and a group: neither may have one."""
GATHERED = tuple(name for name in READ if name not in ("connections", "groups"))
"""Tables whose rows are kept. Members of groups (`groups`) are not counted by."""


class _Part(NamedTuple):
    """Rows of some exchanges."""

    at_us: int
    """When they came, by the capture's clock."""
    tables: Mapping[str, pa.Table]
    size: int


class DeliveryFigures:
    """Counts deliveries. `window_s`: seconds that rates and quantiles are over, by when deliveries were counted."""

    read: Mapping[str, Sequence[str]] = {name: DELIVERIES.tables[name] for name in (*GATHERED, "connections")}
    """Tables and columns that the moments given to `take` must have."""

    def __init__(self, window_s: float) -> None:
        self._join_us = min(JOIN_US, int(window_s * 1e6 / 2))
        self.of = Dimension("delivery", PLACES, max(1, int(window_s * 1e6 / CELLS)), CAUSES)
        """By topic and group, joined by SEPARATOR: deliveries, those without a time (as errors), bytes, and durations
        by what they waited for."""
        self._parts: deque[_Part] = deque()
        self._size = 0
        self._counted = 0
        """Parts, the first ones, whose deliveries were counted."""
        self._joined_us = 0
        self._groups: dict[str, tuple[str, int]] = {}
        """By connection, its group, and when it was last known."""

    def keep_rows(self, moment: Moment) -> pa.Table | None:
        """Keep the rows of a moment. Returns the deliveries to `count`, None for none."""
        now_us = moment.now_ns // 1000
        tables = {
            name: table.select([one for one in table.column_names if one in READ[name]])
            for name, table in moment.answered.items()
            if name in GATHERED and table.num_rows
        }
        if tables:
            self._parts.append(_Part(now_us, tables, sum(table.nbytes for table in tables.values())))
            self._size += self._parts[-1].size
        due = now_us - self._joined_us >= self._join_us or self._size > 2 * KEPT_BYTES
        if due or moment.shed is not None:
            self._learn_groups(moment.read_connections(), now_us)
        if not due:
            return None
        self._joined_us = now_us
        old_enough = now_us if self._size > 2 * KEPT_BYTES else now_us - PATIENCE_US
        made = self._join(old_enough)
        while self._counted and (self._parts[0].at_us < now_us - KEPT_US or self._size > KEPT_BYTES):
            self._size -= self._parts.popleft().size
            self._counted -= 1
        return made

    def finish(self) -> pa.Table | None:
        """No moment comes any more. Returns the deliveries to `count`, None for none."""
        return self._join(NEVER)

    def _learn_groups(self, connections: pa.Table, now_us: int) -> None:
        for row in connections.filter(pc.is_valid(connections["group_id"])).to_pylist():
            self._groups[row["connection_id"]] = (row["group_id"], now_us)
        oldest = self._parts[0].at_us if self._parts else now_us
        self._groups = {name: one for name, one in self._groups.items() if one[1] >= oldest - KEPT_US}

    def _join(self, until_us: int) -> pa.Table | None:
        """Deliveries of the parts that came until then and were not counted before; None for none."""
        before = self._counted
        while self._counted < len(self._parts) and self._parts[self._counted].at_us <= until_us:
            self._counted += 1
        fresh = [part.tables["exchanges"] for part in list(self._parts)[before : self._counted]
                 if "exchanges" in part.tables]  # fmt: skip
        ids = [table["exchange_id"].cast(pa.string()) for table in map(_fetches, fresh) if table.num_rows]
        if not ids:
            return None
        parts: dict[str, list[pa.Table]] = {
            name: [part.tables[name] for part in self._parts if name in part.tables] for name in GATHERED
        }
        groups = {"connection_id": list(self._groups), "group_id": [group for group, _ in self._groups.values()]}
        parts["connections"] = [pa.table({name: pa.array(one, pa.string()) for name, one in groups.items()})]
        made = join_parts({name: tables for name, tables in parts.items() if tables})
        mine = pc.is_in(made["fetch_exchange_id"], value_set=pa.chunked_array(ids).combine_chunks())
        return without_followers(made.filter(mine))

    def count(self, deliveries: pa.Table) -> None:
        """Count deliveries, which `take` or `finish` returned."""
        topic = pc.fill_null(first_known(deliveries, "topic"), UNKNOWN)
        group = pc.fill_null(deliveries["group_id"].cast(pa.string()), UNKNOWN)
        names = pc.binary_join_element_wise(topic, group, SEPARATOR).combine_chunks()
        place = self.of.places(names)
        took = reals(deliveries, "delivery_ms")
        now = np.full(len(took), self.of.cell * self.of.cell_us)
        self.of.add(place, now, np.isnan(took), np.maximum(ints(deliveries, "record_bytes", 0), 0))
        code, texts = encoded(deliveries["waited_for"].combine_chunks())
        cause = np.array([*(CAUSES.index(text) for text in texts), 0], np.int64)[code]
        self.of.time_each(cause, place, now, took)

    def lines(self) -> list[dict[str, Any]]:
        """A line for each topic and group with deliveries, the busiest first."""
        seconds = CELLS * self.of.cell_us / 1e6
        rate, untimed = self.of.rate.sum(axis=0), self.of.failed.sum(axis=0)
        volume = self.of.volume.sum(axis=0)
        found = []
        for place, text in enumerate(self.of.texts):
            if text is None or not self.of.exchanges[place]:
                continue
            topic, group = topic_and_group(text)
            counts = self.of.recent[:, place].sum(axis=0)
            spent = (counts * BUCKET_MS).sum(axis=1)
            found.append({
                "name": f"{topic} {group}", "topic": topic, "group": group, "rate": rate[place] / seconds,
                "bytes_s": volume[place] / seconds, "deliveries": int(self.of.exchanges[place]),
                "untimed": int(untimed[place]), "untimed_total": int(self.of.errors[place]),
                "delivery_p50_ms": quantile(counts.sum(axis=0), 0.5),
                "delivery_p99_ms": quantile(counts.sum(axis=0), 0.99),
                "waited_for": CAUSES[int(spent.argmax())] if spent.any() else None,
                "waited_share": float(spent.max() / spent.sum()) if spent.any() else None,
            })  # fmt: skip
        return sorted(found, key=lambda one: (-one["rate"], -one["deliveries"], one["name"]))


def _fetches(exchanges: pa.Table) -> pa.Table:
    """Exchanges that may give records to readers."""
    keys = pa.array([ApiKey.FETCH, ApiKey.SHARE_FETCH], exchanges["api_key"].type)
    return exchanges.filter(pc.is_in(exchanges["api_key"], value_set=keys))


def topic_and_group(text: str) -> tuple[str, str]:
    """The topic and the group of a name in `DeliveryFigures.of`."""
    topic, _, group = text.partition(SEPARATOR)
    return topic, group or OTHER

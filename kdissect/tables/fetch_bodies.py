"""Bodies of Fetch and of Produce read in one pass as far as `hold` asks: no columns in between.

A `BodyReader` stands next to the decoder where only the analysis, and sums of topics, read fetches. It takes produces
and the fetches of consumers, within a session or without one. They have to be plain (no tags, few partitions named),
and their bodies were found to fit their layouts. The decoder writes out the others. Where fields lie follows from the
schema: a struct for each version (`fetch_plans`).

Where record sets are asked for it takes only answers whose record sets need no further look: then these rows tell what
topics carry, too.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kdissect.arrays.lending import Lender
from kdissect.arrays.rows import NULL
from kdissect.kafka.exchanges.bodies import Type
from kdissect.kernels.structs import width
from kdissect.schema.apikeys import ApiKey
from kdissect.schema.library import Library
from kdissect.tables.fetch_body_kernels import MOST_COMPARED, Named, Reading, Topic, read_bodies, reading_at
from kdissect.tables.fetch_plans import SENDING, plan_at, plans
from kdissect.tables.fetch_rows import FETCH_WIDTH, PARTITION_WIDTH, FetchRows
from kdissect.tables.sent_rows import SENT_WIDTH

Int64s = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
Int8s = npt.NDArray[np.int8]
Bytes = npt.NDArray[np.uint8]

READS: Mapping[Type, frozenset[str]] = {
    (ApiKey.FETCH, 0): frozenset({
        "forgotten_topics_data.partitions", "forgotten_topics_data.topic", "forgotten_topics_data.topic_id",
        "isolation_level", "max_wait_ms", "min_bytes", "replica_id", "replica_state.replica_id", "session_epoch",
        "session_id", "topics.partitions.fetch_offset", "topics.partitions.partition", "topics.topic",
        "topics.topic_id",
    }),
    (ApiKey.FETCH, 1): frozenset({
        "node_endpoints.host", "node_endpoints.node_id", "node_endpoints.port",
        "responses.partitions.current_leader.leader_epoch", "responses.partitions.current_leader.leader_id",
        "responses.partitions.diverging_epoch.epoch", "responses.partitions.error_code",
        "responses.partitions.high_watermark", "responses.partitions.last_stable_offset",
        "responses.partitions.log_start_offset", "responses.partitions.partition_index",
        "responses.partitions.preferred_read_replica", "responses.partitions.records", "responses.topic",
        "responses.topic_id", "session_id", "responses.partitions.records@",
    }),
}  # fmt: skip
"""The paths that may be wanted of messages that are read here: what is not taken over is not there in those taken."""
ACKS = frozenset({"acks"})
SENDS: Mapping[Type, frozenset[str]] = {
    (ApiKey.PRODUCE, 0): ACKS | {"topic_data.name", "topic_data.partition_data.index", "topic_data.topic_id"},
    (ApiKey.PRODUCE, 1): frozenset({
        "node_endpoints.host", "node_endpoints.node_id", "node_endpoints.port", "responses.name",
        "responses.partition_responses.base_offset", "responses.partition_responses.error_code",
        "responses.partition_responses.index", "responses.topic_id",
    }),
}  # fmt: skip
"""The same of Produce, next to ACKS alone."""
PLACES = "responses.partitions.records@"
"""The path by which record sets are asked for."""

MOST_TOPICS = 1 << 13
"""Different topics that are known at a time, and half the places of their hash table."""
MOST_TEXT = 1 << 20
"""Bytes of their names and ids. A reader that has used half of either forgets all of them before the next block."""


@dataclass(slots=True, eq=False)
class Bodies:
    """Rows that were read from a block's messages."""

    rows: FetchRows
    """In the order of exchanges, as far as bodies tell: `fetch_rows.complete_read` adds what exchanges tell."""
    topics: list[tuple[str | None, str | None]]
    """(name, id), of which `PartitionRow.topic` and `SentRow.topic` are codes. Topics of earlier blocks may be among
    them."""
    acks: Int64s | None
    """[exchanges]: of requests to produce, NULL where they were not read; None: none was."""
    sent: Int64s
    """[n, SENT_WIDTH] partitions of Produce."""


class BodyReader:
    """Reads bodies before they are written out as columns. Of one thread; what it gives may be kept."""

    def __init__(self) -> None:
        self._memory, self._rows = Lender(), Lender()
        self._topics = np.empty((2 * MOST_TOPICS, width(Topic)), np.int64)
        self._text = np.empty(MOST_TEXT, np.uint8)
        self._named = np.empty((2 * MOST_COMPARED, width(Named)), np.int64)
        self._state = np.empty((1, width(Reading)), np.int64)
        self._names: list[tuple[str | None, str | None]] = []
        """(name, id) of each of `_topics`."""
        self._forget()
        self._plans: Int64s | None = None
        self._bodies: Bodies | None = None

    def _forget(self) -> None:
        """Begin with no topics."""
        self._topics[:], self._state[:], self._names = -1, 0, []
        reading_at(self._state, 0).seed = int.from_bytes(os.urandom(7), "little")

    def read(
        self, fields: Mapping[Type, Collection[str] | None], library: Library, s: Bytes, begin: Int64s, end: Int64s,
        program: Int32s, status: Int8s,
    ) -> Int8s:  # fmt: skip
        """Read those of these bodies that can be read. They are requests and behind them as many responses; `status`
        says whether they fit. Returns `status` with READ_ASIDE for bodies that need not be written out."""
        if any((paths := fields.get(kind)) is None or not known.issuperset(paths) for kind, known in READS.items()):
            return status
        if self._plans is None:
            self._plans = plans(library)
        n, kind = len(begin) // 2, np.int64
        sent = [frozenset(fields.get((ApiKey.PRODUCE, side)) or ()) for side in (0, 1)]
        sends = sent[0] > ACKS and all(SENDS[ApiKey.PRODUCE, side] >= paths for side, paths in enumerate(sent))
        (fetches,) = self._memory.arrays([((n, FETCH_WIDTH), kind)])
        acks = np.full(n if sends or sent[0] == ACKS else 0, NULL, kind)  # which rows of exchanges keep, alone
        partitions, rows = self._rows.arrays(
            [((n + 1024, PARTITION_WIDTH), kind), ((n // 4 + 1024 if sends else 0, SENT_WIDTH), kind)]
        )
        reading = reading_at(self._state, 0)
        if 2 * reading.topics > MOST_TOPICS or 2 * reading.text > MOST_TEXT:
            self._forget()
        reading.exchanges = reading.fetches = reading.partitions = reading.produces = reading.sent = 0
        reading.sends, reading.walked = sends, PLACES in (fields[ApiKey.FETCH, 1] or ())
        left, bodies = status.copy(), np.stack([begin, end, program])
        while not read_bodies(
            s, bodies, left, self._plans, self._topics, self._text, self._named, fetches, partitions, rows, acks,
            self._state,
        ):  # fmt: skip
            if plan_at(self._plans, int(program[reading.exchanges])).kind == SENDING:
                rows = _doubled(rows)
            else:
                partitions = _doubled(partitions)
        if not reading.fetches and not reading.produces:
            return status
        self._bodies = Bodies(
            FetchRows(fetches[: reading.fetches], partitions[: reading.partitions]), self._named_topics(reading.topics),
            acks if reading.produces else None, rows[: reading.sent],
        )  # fmt: skip
        return left

    def _named_topics(self, count: int) -> list[tuple[str | None, str | None]]:
        """(name, id) of the first topics."""
        for at, size, by_id, *_ in self._topics[len(self._names) : count].tolist():
            self._names.append(_topic(self._text[at : at + size].tobytes(), by_id))
        return self._names[:count]

    def drain(self) -> Bodies | None:
        """The rows that were read since the last call, None for none."""
        bodies, self._bodies = self._bodies, None
        return bodies


def _doubled(rows: Int64s) -> Int64s:
    made = np.empty((2 * len(rows), rows.shape[1]), np.int64)
    made[: len(rows)] = rows
    return made


def _topic(text: bytes, by_id: int) -> tuple[str | None, str | None]:
    if by_id:
        from base64 import urlsafe_b64encode

        return None, urlsafe_b64encode(text).decode()[:22]  # as Kafka writes ids
    return text.decode("utf-8", "replace"), None

"""Bodies of Fetch, and of requests to produce, read in one pass as far as `hold` asks: no columns in between.

A `BodyReader` stands beside the decoder where only the analysis reads fetches, and sums of topics. It takes the
exchanges of consumers, within a session or without one, which are plain (no tags, few partitions asked for) and whose
two bodies were found to fit their layouts; the decoder writes out the others. Where fields lie follows from the schema:
a struct for each version (`fetch_plans`).

Where record sets are asked for it takes only answers whose record sets need no further look: then these rows tell what
topics carry, too.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kdissect.arrays.codes import NULL
from kdissect.arrays.lending import Lender
from kdissect.kafka.exchanges.bodies import Type
from kdissect.kernels.structs import width
from kdissect.schema.library import Library
from kdissect.tables.fetch_body_kernels import MOST_COMPARED, Named, Reading, Topic, read_bodies, reading_at
from kdissect.tables.fetch_plans import plans
from kdissect.tables.fetch_rows import FETCH_WIDTH, PARTITION_WIDTH, FetchRows
from kdissect.tables.fetches import FETCH
from kdissect.tables.produces import PRODUCE

Int64s = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
Int8s = npt.NDArray[np.int8]
Bytes = npt.NDArray[np.uint8]

READS: Mapping[Type, frozenset[str]] = {
    (FETCH, 0): frozenset({
        "forgotten_topics_data.partitions", "forgotten_topics_data.topic", "forgotten_topics_data.topic_id",
        "isolation_level", "max_wait_ms", "min_bytes", "replica_id", "replica_state.replica_id", "session_epoch",
        "session_id", "topics.partitions.fetch_offset", "topics.partitions.partition", "topics.topic",
        "topics.topic_id",
    }),
    (FETCH, 1): frozenset({
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
PLACES = "responses.partitions.records@"
"""The path by which record sets are asked for."""

MOST_TOPICS = 1 << 12
"""Different topics of a block that are read here."""


@dataclass(slots=True, eq=False)
class Bodies:
    """What was read of a block's messages."""

    rows: FetchRows
    """In the order of exchanges, as far as bodies tell: `fetch_rows.complete_read` adds what exchanges tell."""
    topics: list[tuple[str | None, str | None]]
    """(name, id), of which `PartitionRow.topic` are codes."""
    acks: Int64s | None
    """[exchanges]: of requests to produce, NULL where they were not read; None: none was."""


class BodyReader:
    """Reads bodies before they are written out as columns. Of one thread; what it gives may be kept."""

    def __init__(self) -> None:
        self._memory = Lender()
        self._rows, self._work = Lender(), Lender()
        self._seed = int.from_bytes(os.urandom(7), "little")
        self._plans: Int64s | None = None
        self._bodies: Bodies | None = None

    def read(
        self, wanted: Mapping[Type, Collection[str] | None], library: Library, s: Bytes, begin: Int64s, end: Int64s,
        program: Int32s, status: Int8s,
    ) -> Int8s:  # fmt: skip
        """Read what can be read of these bodies, requests and behind them as many responses, of which `status` says
        whether they fit. Returns `status` with READ_ASIDE for bodies that need not be written out."""
        if any((paths := wanted.get(kind)) is None or not known.issuperset(paths) for kind, known in READS.items()):
            return status
        if self._plans is None:
            self._plans = plans(library)
        n = len(begin) // 2
        sends = frozenset(wanted.get((PRODUCE, 0)) or ()) == ACKS
        kind = np.int64
        fetches, acks = self._memory.arrays([((n, FETCH_WIDTH), kind), ((n if sends else 0,), kind)])
        (partitions,) = self._rows.arrays([((n + 1024, PARTITION_WIDTH), kind)])
        table, topics, named, state = self._work.arrays(
            [((4 * MOST_TOPICS,), kind), ((MOST_TOPICS, width(Topic)), kind),
             ((2 * MOST_COMPARED, width(Named)), kind), ((1, width(Reading)), kind)]
        )  # fmt: skip
        table[:], acks[:], topics[0], state[:] = -1, NULL, -1, 0
        reading = reading_at(state, 0)
        reading.seed, reading.walked = self._seed, PLACES in (wanted[FETCH, 1] or ())
        left, bounds = status.copy(), np.stack([begin, end])
        while not read_bodies(
            s, bounds, program, left, self._plans, table, topics, named, fetches, partitions, acks, state
        ):
            partitions = _doubled(partitions)
        if not reading.fetches and not reading.produces:
            return status
        names = [_topic(s[at : at + size].tobytes(), by_id) for at, size, by_id, _ in topics[: reading.topics].tolist()]
        rows = FetchRows(fetches[: reading.fetches], partitions[: reading.partitions])
        self._bodies = Bodies(rows, names, acks if reading.produces else None)
        return left

    def taken(self) -> Bodies | None:
        """What was read since this was asked last."""
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

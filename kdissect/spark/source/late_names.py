"""Names that a stream's messages tell when rows without them have been written: the table `late_names`.

A broker is `ip:port`, a cluster and a topic are null, until a message of the capture set tells more. Rows that were
written before stay as they are. A name that they lack is a row here as soon as a message gives it. So the table is
small, and `kdissect.spark.views` joins it to others when these are read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from kdissect.tables.brokers import Brokers
from kdissect.tables.builder import TableBuilder
from kdissect.tables.identity import SEPARATOR
from kdissect.tables.topic_lists import ID

LATE_NAMES = "late_names"
BROKER, CLUSTER, TOPIC = "broker", "cluster", "topic"
NAMES = pa.schema(
    [
        pa.field("capture", pa.string(), False, {"doc": "The capture set whose rows it is about."}),
        pa.field("kind", pa.string(), False, {"doc": "What is named: broker, cluster or topic."}),
        pa.field(
            "written",
            pa.string(),
            False,
            {"doc": "What rows have: `ip:port` of a broker, the broker of a cluster, the id of a topic."},
        ),
        pa.field("name", pa.string(), False, {"doc": "The name that was told later."}),
    ],
    metadata={"table": LATE_NAMES, "row": "a name that was told when rows without it had been written"},
)
"""The table's columns."""


@dataclass(slots=True)
class Unnamed:
    """Brokers, clusters and topics that rows of a capture set were written without the names of."""

    capture: str
    brokers: set[str] = field(default_factory=set)
    """`ip:port`."""
    without_cluster: set[tuple[str, str]] = field(default_factory=set)
    """Brokers as rows have them, each with an address that had this name then."""
    topic_ids: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, capture: str, carried: Mapping[str, Sequence[str]]) -> Unnamed:
        """The object again, out of `carried`."""
        clusters = [text.split(SEPARATOR) for text in carried.get(CLUSTER, ())]
        brokers, topic_ids = (set(carried.get(kind, ())) for kind in (BROKER, TOPIC))
        return cls(capture, brokers, {(written, address) for written, address in clusters}, topic_ids)

    def carried(self) -> dict[str, list[str]]:
        """The same, to be kept."""
        clusters = {SEPARATOR.join(pair) for pair in self.without_cluster}
        return {BROKER: sorted(self.brokers), CLUSTER: sorted(clusters), TOPIC: sorted(self.topic_ids)}

    def note(self, rows: pa.Table, brokers: Brokers) -> None:
        """Note what rows lack that are being written, by the names of now."""
        self.brokers.update(text for text in _distinct(rows, "broker") if ":" in text)
        if CLUSTER in rows.column_names and rows[CLUSTER].null_count:
            written = set(_distinct(rows.filter(rows[CLUSTER].is_null()), "broker"))
            for unresolved, name in brokers.names().items():
                address = unresolved.rpartition(SEPARATOR)[2]
                self.without_cluster.update((text, address) for text in written.intersection({name, address}))
        if "topic_id" in rows.column_names and TOPIC in rows.column_names and rows[TOPIC].null_count:
            self.topic_ids.update(_distinct(rows.filter(rows[TOPIC].is_null()), "topic_id"))
        if "topics" in rows.column_names:
            listed = rows["topics"].combine_chunks().flatten().unique()
            self.topic_ids.update(listed.filter(pc.match_substring_regex(listed, f"^{ID}$")).to_pylist())

    def take_names(self, builder: TableBuilder) -> pa.Table:
        """NAMES of what has a name by now, and is no longer unnamed."""
        brokers, clusters = self._named_brokers(builder.brokers), self._known_clusters(builder.brokers)
        names = builder.topics.names()
        topics = {text: names[text] for text in self.topic_ids if text in names}
        self.brokers -= brokers.keys()
        self.without_cluster = {pair for pair in self.without_cluster if pair[0] not in clusters}
        self.topic_ids -= topics.keys()
        kinds = {BROKER: brokers, CLUSTER: clusters, TOPIC: topics}
        rows = [(self.capture, kind, *pair) for kind, told in kinds.items() for pair in told.items()]
        return pa.Table.from_pylist([dict(zip(NAMES.names, row, strict=True)) for row in rows], NAMES)

    def _named_brokers(self, brokers: Brokers) -> dict[str, str]:
        """By `ip:port` the name, where there is one."""
        names = brokers.names_of(f"{self.capture}{SEPARATOR}{address}" for address in self.brokers)
        told = {unresolved.rpartition(SEPARATOR)[2]: name for unresolved, name in names.items()}
        return {address: name for address, name in told.items() if address != name}

    def _known_clusters(self, brokers: Brokers) -> dict[str, str]:
        """By broker, as rows have it, the one cluster of all addresses that had this name."""
        of = brokers.cluster_of()
        found: dict[str, set[str]] = {}
        for written, address in self.without_cluster:
            found.setdefault(written, set()).add(of.get(f"{self.capture}{SEPARATOR}{address}", ""))
        single = {written: next(iter(clusters)) for written, clusters in found.items() if len(clusters) == 1}
        return {written: cluster for written, cluster in single.items() if cluster}


def _distinct(rows: pa.Table, column: str) -> list[str]:
    """The texts of a column that rows have, but for null."""
    if column not in rows.column_names:
        return []
    return [text for text in rows[column].unique().to_pylist() if text is not None]

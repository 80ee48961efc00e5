"""Second stage: the rows of a partition's connections, in capture order, become unresolved rows of tables.

It is the engine's own run, over what came to the partition instead of files. What names things for the whole job
(brokers, topics, groups of clients) is collected as far as this partition's messages tell and sent to the driver.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from kdissect.analysis.exchange_keys import exchange_keys
from kdissect.analysis.stage import Stage
from kdissect.capture import CaptureSet
from kdissect.engine.analysed import AnalysedRun
from kdissect.engine.run import Run
from kdissect.kafka.completed import Quality
from kdissect.net.scanner import Scanner
from kdissect.spark.flows import Flows
from kdissect.spark.gathered import Gathered, GatheredScanner, Piece, piece
from kdissect.spark.plan import FACTS, KEYS, Plan
from kdissect.spark.staging import Stash, cell, cuts, note, rows
from kdissect.tables.brokers import Brokers
from kdissect.tables.builder import AT_THE_END
from kdissect.tables.declaration import SCHEMAS
from kdissect.tables.identity import connection_ids
from kdissect.tables.topics import Topics
from kdissect.tables.versions import Offered

Words = npt.NDArray[np.int64]

OWN_GROUP = "_own_group"
"""Helper column of `connections`: whether the connection's own requests named groups."""
CONNECTION_ROWS = 1 << 16
NOT_STAGED = ("api_versions", "topics", "capture_quality", "producers")
"""Tables that the driver makes out of what partitions have learned, and `producers`, which is made of SENT."""
SENT = "sent"
"""Staged rows of what producers with an id sent: a producer's connections may be in several partitions."""


@dataclass(slots=True)
class Learned:
    """What one partition's messages tell about the whole job."""

    brokers: Brokers
    topics: Topics
    offered: Offered
    groups: dict[tuple[str, str, str], set[str]]
    """(capture, client address, client id) -> groups named from there."""
    quality: list[Quality]
    """Measures of connections, by capture: to be added up."""

    def merge(self, other: Learned) -> None:
        """Add what another partition has learned."""
        self.brokers.merge(other.brokers)
        self.topics.merge(other.topics)
        self.offered.merge(other.offered)
        for key, groups in other.groups.items():
            self.groups.setdefault(key, set()).update(groups)
        self.quality += other.quality


class PartitionRun(Run):
    """A run over the captures that index rows in order of (capture, file, chunk) belong to."""

    index: Iterator[tuple[int, int, bytes, bytes | None]]
    """(number of the capture, kind, packed rows, payload)."""
    plan: Plan

    def readings(self) -> Iterator[tuple[int, CaptureSet, Scanner]]:
        """The captures that have rows here, one after the other."""
        ahead = next(self.index, None)
        while ahead is not None:
            number = ahead[0]
            flows = Flows()
            secrets: list[bytes] = []

            def pieces(number: int = number, flows: Flows = flows, secrets: list[bytes] = secrets) -> Iterator[Piece]:
                nonlocal ahead
                while ahead is not None and ahead[0] == number:
                    _, kind, packed, payload = ahead
                    if kind == KEYS:
                        secrets += pickle.loads(packed)
                    else:
                        yield piece(packed, payload, flows)
                    ahead = next(self.index, None)

            capture = Gathered(self.plan.sources[number], pieces())
            capture.secrets = secrets
            yield number, capture, GatheredScanner(capture, flows)
            capture.close()


def decode(batches: Iterable[pa.RecordBatch], plan: Plan) -> Iterator[pa.RecordBatch]:
    """Index rows of one partition, in order, to staged rows."""
    return _Decoding(plan).run(batches)


class _Decoding:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        captures = [source.capture() for source in plan.sources]
        analysed = AnalysedRun(captures, plan.tables, plan.settings, PartitionRun)
        assert isinstance(analysed.run, PartitionRun)
        self.work = analysed.run
        self.by_broker = split_tables(analysed.stage)
        self.facts: list[bytes] = []

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        work = self.work
        work.plan, work.index = self.plan, self._index(batches)
        stash = Stash(self._split)
        for part in work.rows():
            for name, batch in part.tables.items():
                yield from stash.put(name, batch)
            for (key, side), batch in part.beside.items():
                yield from stash.put(message_name(key, side), batch)
        yield from stash.rest()
        yield from self._end()

    def _index(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, int, bytes, bytes | None]]:
        for batch in batches:
            for i in range(batch.num_rows):
                capture, kind, packed, payload = (
                    batch.column(name)[i].as_py() for name in ("capture", "kind", "packed", "payload")
                )
                if kind == FACTS:
                    self.facts.append(packed)
                else:
                    yield capture, kind, packed, payload

    def _split(self, name: str, table: pa.Table) -> Iterator[tuple[str, pa.Table]]:
        if name not in self.by_broker:
            yield "", table
            return
        connections = self.work.ledger.connections
        ids = connections.id.astype(np.int64)
        order = np.argsort(ids)
        keys = exchange_keys(table["exchange_id"])[0]
        owner = order[np.searchsorted(ids, keys, sorter=order)]
        directory = self.work.builder.directory
        yield from cuts(table, directory.broker_codes(owner).astype(np.int64), directory.brokers.texts)

    def _end(self) -> Iterator[pa.RecordBatch]:
        work, builder = self.work, self.work.builder
        for name, table in builder.at_the_end(work.ledger.problems(), work.quality).items():
            if name in NOT_STAGED:
                continue
            if name == "connections":
                table = self._with_own_groups(table)
            for begin in range(0, table.num_rows, CONNECTION_ROWS):
                yield rows([(name, "", cell(table.slice(begin, CONNECTION_ROWS)))])
        sent = builder.sent()
        if sent is not None:
            for begin in range(0, sent.num_rows, CONNECTION_ROWS):
                yield rows([(SENT, "", cell(sent.slice(begin, CONNECTION_ROWS)))])
        connections, directory = work.ledger.connections, builder.directory
        groups = {
            (connections.captures[capture], directory.ips.texts[address], client): found
            for (capture, address, client), found in builder.clients.shared.items()
        }
        learned = Learned(builder.brokers, builder.topics, builder.offered, groups, work.quality)
        yield rows([note("learned", learned), *(("_file", "", facts) for facts in self.facts)])

    def _with_own_groups(self, table: pa.Table) -> pa.Table:
        own = np.array(sorted(self.work.builder.clients.own), np.int64)
        ids = connection_ids(self.work.ledger.connections.id[own])
        return table.append_column(OWN_GROUP, pc.is_in(table["connection_id"], ids))


def message_name(key: int, side: int) -> str:
    """How staged rows name the messages of an API's side."""
    return f"message {key} {side}"


def message_kind(name: str) -> tuple[int, int]:
    """API key and side of staged messages."""
    key, side = name.split()[1:]
    return int(key), int(side)


def split_tables(stage: Stage) -> frozenset[str]:
    """The staged tables that the analysis works on, broker by broker."""
    if stage.idle:
        return frozenset()
    tables = {name for name in stage.tables if name not in (*AT_THE_END, "record_batches")}
    return frozenset(tables | {message_name(*kind) for kind in stage.messages})


def with_groups(table: pa.Table, groups: dict[tuple[str, str, str], set[str]]) -> pa.Table:
    """`connections` with the groups that other connections of the same client named, where its own named none."""
    if OWN_GROUP not in table.column_names:
        return table
    own, names = table[OWN_GROUP].to_pylist(), ("group_id", "capture", "client_ip", "client_id")
    found: list[str | None] = []
    for mine, group, *client in zip(own, *(table[name].to_pylist() for name in names), strict=True):
        others: Sequence[str] = () if mine or not client[2] else tuple(groups.get(tuple(client), ()))
        found.append(group if mine else others[0] if len(others) == 1 else None)
    at = table.schema.get_field_index("group_id")
    return table.set_column(at, "group_id", pa.array(found, SCHEMAS["connections"].field("group_id").type))

"""What the declaration of a table is made of.

A declaration knows names, not code: which makers fill a column (`By`), which fields of which messages it is read from
(`Path`), what the rows are ordered by. Makers are registered under these names where they stand, and what they fill and
read is held against the declaration when they are (`kdissect.tables.makers`).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import NamedTuple

import pyarrow as pa

TEXT = pa.string()
FLAG = pa.bool_()
CODE = pa.int32()
"""API keys and versions, error codes, epochs, ports, partitions, session ids: whatever fits 32 bits on the wire."""
COUNT = pa.int64()
"""Counts, sizes in bytes, offsets, producer ids."""
MS = pa.float64()
"""A duration in milliseconds."""
REAL = pa.float64()
"""A ratio, or a figure of any kind."""
TIME = pa.timestamp("us", tz="UTC")
BINARY = pa.binary()
TEXTS = pa.list_(pa.field("item", TEXT))
OFFSETS = pa.list_(pa.field("item", COUNT))
CODES = pa.list_(pa.field("item", CODE))
HEADERS = pa.list_(pa.field("item", pa.struct([pa.field("key", TEXT), pa.field("value", BINARY)])))
PLACES = pa.list_(
    pa.field(
        "item", pa.struct([pa.field("capture", TEXT), pa.field("interface", TEXT), pa.field("connection_id", TEXT)])
    )
)
ASSIGNMENT = pa.list_(
    pa.field(
        "item",
        pa.struct(
            [
                pa.field("topic", TEXT),
                pa.field("topic_id", TEXT),
                pa.field("partitions", pa.list_(pa.field("item", CODE))),
            ]
        ),
    )
)

TIME_KEY = "_time"
"""Helper column of unresolved rows: request's first time in µs (int64), by which rows are ordered; never shown."""
ANSWERED_KEY = "_answered"
"""Helper column of unresolved rows that have TIME_KEY: the response's first time in µs (int64) where the request's is
not known, else null; only where rows are dated (`Settings.dated`)."""
ACKS_KEY = "_acks"
"""Helper column of unresolved exchanges: acks of requests to produce (int64, -2**63 for all others and where they were
not read), where nobody is shown `produces`."""
UNSEEN_KEY = "_unseen_until"
"""Helper column of fetches: up to when requests before this one on its connection may not have been captured, in µs
(int64, null: all of them were)."""
EXCHANGE_KEYS = ("_connection", "_ordinal")
"""Helper columns that name an exchange as its id does, by numbers: for joining tables."""
BY_REQUEST = (TIME_KEY, "exchange_id")
"""The order of most tables: the request's first time, then the exchange."""


class DeclarationError(Exception):
    """The declaration of a table contradicts itself, or its makers contradict it. The text says what is missing."""


class By(StrEnum):
    """Who makes the rows of a table, or fills a column: makers are registered under these names."""

    BLOCK = "block maker"
    """A row maker of `kdissect.tables`, from each block of finished exchanges."""
    RECORD_SETS = "record sets"
    """`kdissect.tables.recordsets`, from what a block's record sets hold, piece by piece."""
    END = "end of run"
    """At the end, in order, of what each part of a run has kept of its connections."""
    NOTED = "notes"
    """At the end, in no order, of what was noted on the way."""
    LEARNED = "learned"
    """At the end, of what a whole run has learned: few rows."""
    SENT = "batches sent"
    """At the end, of the batches that producers sent."""
    SESSIONS = "fetch sessions"
    """The analysis: fetch sessions."""
    FETCH_HOLDS = "fetch holds"
    """The analysis: why fetches were answered when they were."""
    PRODUCE_HOLDS = "produce holds"
    """The analysis: what Produce requests waited for."""
    EXCHANGE_HOLDS = "exchange holds"
    """The analysis: the same of every exchange that may wait."""
    SHARES = "share sessions"
    """The analysis: share sessions."""
    BUDGET = "time budget"
    """The analysis: where the time of each subject went, which needs every row."""
    LEDGER = "time ledger"
    """The analysis: who owned each instant of each subject, which needs every row."""
    TRAFFIC = "topic traffic"
    """The analysis: who writes and reads what, which needs every row."""
    DELIVERIES = "deliveries"
    """The analysis: the way of record batches to their readers, which needs every row."""
    TRANSACTIONS = "transactions"
    """The analysis: transactions, which needs every row."""
    TRACED = "traced"
    """The analysis: records with a trace context, joined with their exchanges and deliveries, which needs every row."""
    COMMITS = "committed lag"
    """The analysis: what was seen of a partition's log when a group committed."""
    FINDINGS = "findings"
    """The analysis: findings, which need every row."""
    FILE = "file rows"
    """Spark's data source, from one file by itself."""

    @property
    def at_the_end(self) -> bool:
        """Made when everything was read."""
        return self in (By.END, By.NOTED, By.LEARNED, By.SENT)

    @property
    def analysis(self) -> bool:
        """Part of the analysis."""
        parts = (By.SESSIONS, By.FETCH_HOLDS, By.PRODUCE_HOLDS, By.EXCHANGE_HOLDS, By.SHARES, By.COMMITS)
        return self in parts or self.needs_everything

    @property
    def needs_everything(self) -> bool:
        """The part of the analysis that looks at all rows together."""
        parts = (By.BUDGET, By.LEDGER, By.TRAFFIC, By.DELIVERIES, By.TRANSACTIONS, By.TRACED)
        return self in parts or self is By.FINDINGS


class Gathering(StrEnum):
    """What is gathered from many messages at once: the module that gathers it knows the fields."""

    BROKERS = "brokers"
    """Node ids of brokers."""
    HOSTS = "host names"
    """Names of addresses, which no message tells."""
    CLUSTERS = "clusters"
    """ClusterIds, and what joins brokers' addresses to them."""
    TOPICS = "topics"
    """Names of topic ids."""
    MENTIONS = "mentions"
    """Every message that names a topic."""
    CLIENTS = "clients"
    """What clients say of themselves."""
    OFFERS = "offers"
    """Versions that brokers offer."""
    GROUPS = "groups"
    """Events of groups."""
    LEADERS = "leaders"
    """Leaders of partitions."""
    RECORDS = "records"
    """Record sets, of every message that has them."""
    FETCHED_RECORDS = "fetched records"
    """Record sets of Fetch responses."""
    SENT_RECORDS = "sent records"
    """Record sets of Produce requests."""


class Path(NamedTuple):
    """A field of a message: API key, side (0 request, 1 response), snake_case names with dots between."""

    key: int
    side: int
    path: str


Reads = frozenset[Path | Gathering]
NOTHING: Reads = frozenset()


class Api(NamedTuple):
    """An API, to name fields of its messages."""

    key: int

    def request(self, *paths: str) -> Reads:
        """Fields of the request."""
        return frozenset(Path(self.key, 0, path) for path in paths)

    def response(self, *paths: str) -> Reads:
        """Fields of the response."""
        return frozenset(Path(self.key, 1, path) for path in paths)


class Column(NamedTuple):
    """One column: its name, its Arrow type, its meaning, unit and source in one line, and where it comes from.

    `reads`: the message fields that it is made of; none where the exchange alone tells. `by`: who fills it; None: who
    makes the table's rows. `costly`: null unless somebody names it, for making it takes much longer than the others.
    """

    name: str
    type: pa.DataType
    doc: str
    reads: Reads = NOTHING
    by: By | None = None
    costly: bool = False
    never_null: bool = False

    @property
    def resolver(self) -> Gathering | None:
        """What its values are resolved with at the end, when every name is known; None where they are final."""
        gathered = (Gathering.CLUSTERS, Gathering.BROKERS, Gathering.TOPICS, Gathering.HOSTS)
        return next((one for one in gathered if one in self.reads), None)


@dataclass(frozen=True, eq=False, repr=False)
class Table:
    """One table: what a row of it is, its columns in order, and how its rows come about."""

    name: str
    row: str
    """"one row per ..."."""
    columns: tuple[Column, ...]
    made: By
    """Who makes the rows."""
    key: tuple[str, ...] = BY_REQUEST
    """The columns that rows are ordered by; none where they are made in order."""
    reads: Reads = NOTHING
    """The message fields that tell which rows there are."""
    shown: tuple[str, ...] = ()
    """Columns of the text form on a terminal, the most telling first; none: all, in their order."""
    on_request: bool = False
    """Made only where somebody names it."""
    when: tuple[str, ...] = ()
    """Columns that say when a row happened: its beginning, then what tells its end."""

    def __post_init__(self) -> None:
        names = {TIME_KEY}
        for column in self.columns:
            if column.name in names:
                raise DeclarationError(f"table {self.name!r}, column {column.name!r}: it is declared twice")
            if not column.doc.endswith("."):
                what = f"what it means is no sentence: {column.doc!r}"
                raise DeclarationError(f"table {self.name!r}, column {column.name!r}: {what}")
            names.add(column.name)
        for what, listed in (("key", self.key), ("shown", self.shown), ("when", self.when)):
            for name in listed:
                if name not in names:
                    raise DeclarationError(f"table {self.name!r}: there is no column {name!r}, which `{what}` names")

    @cached_property
    def schema(self) -> pa.Schema:
        """The Arrow schema; field metadata `doc` is the column's meaning, schema metadata `row` the table's."""
        fields = [pa.field(column.name, column.type, metadata={"doc": column.doc}) for column in self.columns]
        return pa.schema(fields, metadata={"table": self.name, "row": self.row})

    @cached_property
    def by_name(self) -> dict[str, Column]:
        """The columns by name."""
        return {column.name: column for column in self.columns}

    def filled(self, by: By) -> frozenset[str]:
        """The columns that a maker fills."""
        return frozenset(column.name for column in self.columns if (column.by or self.made) == by)

    @cached_property
    def late(self) -> frozenset[str]:
        """Columns whose values are not final in the rows of a block: resolved at the end, or filled by the analysis."""
        return self.analysed | {column.name for column in self.columns if column.resolver}

    @cached_property
    def analysed(self) -> frozenset[str]:
        """The columns that the analysis fills."""
        return frozenset(column.name for column in self.columns if (column.by or self.made).analysis)

    @property
    def costly(self) -> frozenset[str]:
        """The columns that are null unless somebody names them."""
        return frozenset(column.name for column in self.columns if column.costly)

    @cached_property
    def never_null(self) -> frozenset[str]:
        """The columns that have a value in every row."""
        return frozenset(column.name for column in self.columns if column.never_null)

    @cached_property
    def is_analysed(self) -> bool:
        """Rows of its blocks go through the analysis, which fills columns of them."""
        return self.made is By.BLOCK and bool(self.analysed)

    @cached_property
    def progressive(self) -> bool:
        """The analysis takes part in it and settles its rows while a capture is read, not at the end alone."""
        return self.is_analysed or (self.made.analysis and not self.made.needs_everything)

    def needs(self, columns: Iterable[str]) -> Reads:
        """What has to be read for these columns of it."""
        found: frozenset[Path | Gathering] = self.reads
        for name in columns:
            found |= self.by_name[name].reads
        return found


def table(
    name: str,
    row: str,
    *columns: Column,
    made: By,
    key: tuple[str, ...] = BY_REQUEST,
    reads: Reads = NOTHING,
    shown: str = "",
    on_request: bool = False,
    when: str = "",
) -> Table:
    """A `Table`, with the column `cluster` behind those given, unless its rows come from one file by itself; `shown`
    and `when` with blanks between the names. Raises DeclarationError where it contradicts itself."""
    if made is not By.FILE:
        columns = (*columns, plain(CLUSTER) if made.analysis else CLUSTER)
    return Table(name, row, columns, made, key, reads, tuple(shown.split()), on_request, tuple(when.split()))


def maybe_null(column: Column) -> Column:
    """The column in a table of which not every row has a value."""
    return column._replace(never_null=False)


def plain(column: Column) -> Column:
    """The column where no message has to be read for it: its values are final."""
    return column._replace(reads=NOTHING)


EXCHANGE_ID = Column(
    "exchange_id",
    TEXT,
    "The exchange: `<connection_id>:<n>`, n the request's ordinal in its connection from 0; `:r<n>` for a "
    "response without request.",
    never_null=True,
)
CONNECTION_ID = Column(
    "connection_id",
    TEXT,
    "The connection: 16 hex digits, a hash of capture, 4-tuple and first packet.",
    never_null=True,
)
CAPTURE = Column(
    "capture",
    TEXT,
    "Name of the capture file, or the common stem of a rotated set; `-` for standard input.",
    never_null=True,
)
BROKER = Column(
    "broker",
    TEXT,
    "Broker's node id as text where any message of the capture tells it, else `ip:port`.",
    reads=frozenset([Gathering.BROKERS]),
    never_null=True,
)
CLIENT_NAME = Column(
    "client_name",
    TEXT,
    "Name of the client's address, from files of names (hosts, kubectl) or the capture; null where none is known.",
    reads=frozenset([Gathering.HOSTS]),
)
BROKER_NAME = Column(
    "broker_name", TEXT, "Name of the broker's address, from the same places.", reads=frozenset([Gathering.HOSTS])
)
COMMUNITY_ID = Column(
    "community_id",
    TEXT,
    "Community ID of the connection (version 1, seed 0): Zeek, Suricata and Arkime have the same for its flow.",
)
CLUSTER = Column(
    "cluster",
    TEXT,
    "ClusterId, where a message on a connection to the broker's address carries it, or one that lists this address, "
    "or the ids of its topics tell; else null.",
    reads=frozenset([Gathering.CLUSTERS]),
)
TOPIC = Column(
    "topic",
    TEXT,
    "Topic name; from the topic id where only that is on the wire and a message tells its name.",
    reads=frozenset([Gathering.TOPICS]),
)
TOPICS = Column(
    "topics",
    TEXTS,
    "Topics that the request or the answer names, each once, in the order of the wire: names, or topic ids where no "
    "message tells their name; null where neither was read.",
    reads=frozenset([Gathering.TOPICS]),
)
TOPIC_ID = Column(
    "topic_id",
    TEXT,
    "Topic id in Kafka's form (base64url, 22 characters); null where the version has names only.",
)

"""What a table declaration is made of: columns with a type and a line that says what they mean."""

from __future__ import annotations

from dataclasses import dataclass

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
HEADERS = pa.list_(pa.field("item", pa.struct([pa.field("key", TEXT), pa.field("value", BINARY)])))
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


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its name, its Arrow type, and its meaning, unit and source in one line."""

    name: str
    type: pa.DataType
    doc: str


@dataclass(frozen=True, slots=True)
class Table:
    """One table: what a row of it is, and its columns in order."""

    name: str
    row: str
    """"one row per ..."."""
    columns: tuple[Column, ...]

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema; field metadata `doc` is the column's meaning, schema metadata `row` the table's."""
        fields = [pa.field(column.name, column.type, metadata={"doc": column.doc}) for column in self.columns]
        return pa.schema(fields, metadata={"table": self.name, "row": self.row})


def table(name: str, row: str, *columns: tuple[str, pa.DataType, str]) -> Table:
    """A `Table` from (name, type, doc) triples."""
    return Table(name, row, tuple(Column(*column) for column in columns))


EXCHANGE_ID = (
    "exchange_id",
    TEXT,
    "The exchange: `<connection_id>:<n>`, n the request's ordinal in its connection from 0; `:r<n>` for a "
    "response without request.",
)
CONNECTION_ID = ("connection_id", TEXT, "The connection: 16 hex digits, a hash of capture, 4-tuple and first packet.")
CAPTURE = ("capture", TEXT, "Name of the capture file, or the common stem of a rotated set; `-` for standard input.")
BROKER = ("broker", TEXT, "Broker's node id as text where any message of the capture tells it, else `ip:port`.")
TOPIC = ("topic", TEXT, "Topic name; from the topic id where only that is on the wire and a message tells its name.")
TOPIC_ID = (
    "topic_id",
    TEXT,
    "Topic id in Kafka's form (base64url, 22 characters); null where the version has names only.",
)

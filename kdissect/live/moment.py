"""The report of `Watch` to its listener: everything of one instant together, so that figures agree with each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from kdissect.capture.block import Block
from kdissect.tables.declaration import SCHEMAS


@dataclass(frozen=True, slots=True)
class Waiting:
    """Requests that wait on one connection. `since_us`: when the oldest was captured, microseconds."""

    broker: str | None
    client_id: str | None
    api: str
    since_us: int
    count: int


@dataclass(frozen=True, slots=True)
class Listing:
    """A Metadata answer, which lists the brokers that its sender takes for alive. Times in microseconds."""

    sender: str | None
    """The broker that answered."""
    asked_us: int
    answered_us: int
    listed: frozenset[str]
    """Node ids."""


@dataclass(frozen=True, slots=True)
class Links:
    """How the connections to one broker stand."""

    open: int
    """Connections that nobody closed."""
    cut_off: int
    """Connections that the broker closed (FIN or RST) before their client did, within `CLOSING_NS` of the last one, if
    requests were open on any of them; else 0."""
    closed_us: int
    """When it closed the last of them, microseconds; 0: none."""
    refused_us: int
    """When it last refused a connection; 0: never."""
    closed: int = 0
    """Connections that it closed before their clients did, within `STROKE_NS` of the last one."""
    left: frozenset[str] = frozenset()
    """Client ids of these connections, if one of them was used within `IDLE_NS` before; else empty."""


@dataclass(frozen=True, slots=True)
class Shed:
    """Problems and their bytes by kind, which the books no longer keep."""

    problems: Mapping[str, int]
    problem_bytes: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Moment:
    """The state at one instant, and the rows that came since the moment before."""

    now_ns: int
    """The capture's time (`CaptureClock`); 0 before any packet."""
    answered: Mapping[str, pa.Table]
    """Rows of finished exchanges, all of an exchange together. Columns of the analysis are missing or null."""
    settled: Sequence[Mapping[str, pa.Table]]
    """Rows whose analysis is finished: each exchange once, in this moment or a later one than `answered` had it."""
    waits: Sequence[Waiting]
    sessions: Mapping[str, int]
    """Fetch sessions that are alive, by broker."""
    connections: int
    """TCP connections met since the beginning."""
    links: Mapping[str, Links] = field(default_factory=dict)
    """By broker."""
    broker_names: Mapping[str, str] = field(default_factory=dict)
    """By address (`ip:port`), what a broker is called in the rows of this moment: its node id, or the address."""
    renamed: Sequence[tuple[str, str]] = ()
    """Old and new name of brokers that were called otherwise in the moment before."""
    listings: Sequence[Listing] = ()
    """Those that came since the moment before, in no order."""
    shed: Shed | None = None
    quiet: bool = True
    """No packet came just now."""
    read_connections: Callable[[], pa.Table] = SCHEMAS["connections"].empty_table
    """Returns the rows of `connections` that are known, within `tick` alone; those that ended are not among the rows of
    the moment after one with `shed`. Without rows unless `connections` are read."""


class Sender(Protocol):
    """Sends rows of exchanges elsewhere."""

    @property
    def read(self) -> Mapping[str, Sequence[str]]:
        """Tables and columns that it needs, besides those of a live view."""

    def add_rows(self, settled: Sequence[Mapping[str, pa.Table]], waits: bool) -> None:
        """Rows whose analysis is finished. `waits`: the source waits for its reader."""


class Listener(Protocol):
    """Whom `Watch` reports to, in the thread that reads."""

    def packets(self, block: Block, analysed: int, seen: int) -> None:
        """Packets were read; of `seen` TCP segments `analysed` are worked on. They count at the next moment."""

    def tick(self, moment: Moment) -> None:
        """Some time went by."""

"""The plain arrays that the engine hands to the tables: finished exchanges, connections, problems.

One `Completed` per block of input holds the exchanges that were finished in it, a row each, in order of completion. All
times are int64 nanoseconds since the epoch and `NULL_TIME` where unknown. Packets are numbered as Wireshark does (from
1 within their file), with the file's index in the bits above `FILE_SHIFT`. `Connections` grows during the run (a row
may be used as soon as an exchange of it is finished) and its times and counters are final at the end.

Nothing here computes: the engine fills these arrays, `kdissect.tables` turns them into Arrow.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[Any]
"""An integer array; the field says its type."""
Flags = npt.NDArray[np.bool_]

NULL_TIME = -(2**63)
"""No such instant (int64)."""
NO_CODE = -(2**31)
"""No error code: the layout has no top-level one, or the response was not decoded (int32)."""
FILE_SHIFT = 40
"""`packet >> FILE_SHIFT` is the file's index within its capture, the bits below are the packet's number in it."""


class Status(enum.IntEnum):
    """How an exchange ended, in the order in which they apply (the first that does)."""

    ORPHAN = 0
    PARTIAL = 1
    UNDECODABLE = 2
    ERROR = 3
    OK = 4
    NO_RESPONSE = 5
    ONE_WAY = 6
    UNANSWERED = 7
    PENDING = 8


STATUS = tuple(status.name.lower() for status in Status)
"""Names of `Completed.status`."""

END_REASONS = ("open", "fin", "rst", "reused", "idle")
"""Names of `Connections.end_reason`: still open when the capture ended, closed by FIN, aborted by RST, its 4-tuple used
again without either, given up after a long silence."""
OPEN, FIN, RST, REUSED, IDLE = range(5)

CLOSERS = ("client", "broker")
"""Names of `Connections.closed_by`."""

NETWORK_KINDS = ("handshake", "ack", "bound", "proven", "resent", "silence", "both_ends", "timestamps")
"""Names of `Completed.network_kind` and `Connections.rtt_kind`: BY_* of `kdissect.tcp.roundtrip`."""


class Message(Protocol):
    """Decoded bodies of one API and side, one row each."""

    @property
    def rows(self) -> Ints:
        """For each body the row of `Completed` that it belongs to."""

    @property
    def batch(self) -> Any:
        """A `pyarrow.RecordBatch`, nested as on the wire."""

    @property
    def batches(self) -> list[Any]:
        """The same rows in as many record batches as were decoded."""


@dataclass(slots=True, eq=False, repr=False)
class Completed:
    """Exchanges finished in one block: arrays of equal length n, one row an exchange, in order of completion.

    An orphan (a response without a request) has `is_orphan` set, null request values and `n` counting orphans of its
    connection. `status` is final.
    """

    conn: Ints
    """int32: row of `Connections`."""
    n: Ints
    """int64: the request's ordinal in its connection from 0; of an orphan, the ordinal among its orphans."""
    is_orphan: Flags
    api_key: Ints
    """int16, -1 unknown."""
    api_version: Ints
    """int16, -1 unknown. What the request says, also where the answer came in another version's layout."""
    correlation_id: Ints
    """int32."""
    client: Ints
    """int32: index into `client_ids`, -1 null."""
    request_first: Ints
    request_last: Ints
    response_first: Ints
    response_last: Ints
    """int64 ns: the four instants (first arrivals), NULL_TIME unknown."""
    request_bytes: Ints
    response_bytes: Ints
    """int64: with the 4-byte length prefix, -1 null."""
    request_packet: Ints
    response_packet: Ints
    """int64: the packet which completed the message | file << FILE_SHIFT, -1 null."""
    status: Ints
    """int8: index into STATUS."""
    queued_from: Ints
    """int64 ns: last byte of the response before this one on the connection, NULL_TIME where there was none."""
    network: Ints
    """int64 ns: what the network took of the time from the request's last byte to the response's first, -1 unknown."""
    network_kind: Ints
    """int8: index into NETWORK_KINDS, -1 where `network` is."""
    request_resent: Ints
    """int64 ns: part of `network` that was lost because bytes of the request were sent again, -1 unknown."""
    response_resent: Ints
    """int64 ns: part of the response's transfer that was lost because bytes of it were sent again, -1 unknown."""
    think: Ints
    """int64 ns: what the client took from the response before this request to it, -1 unknown."""
    unseen_until: Ints
    """int64 ns: up to when earlier requests of its connection may not have been captured, NULL_TIME: all were."""
    abandoned: Ints
    """int8: 1 when the client had closed before the answer's first byte, 0 when not, -1 without an answer."""
    in_flight: Ints
    """int32: requests of the connection without an answer yet when this one was complete, itself included; -1 null."""
    throttle_ms: Ints
    """int32: ThrottleTimeMs of the response, -1 null."""
    error_code: Ints
    """int32: the response's top-level error code, NO_CODE when its layout has none or it was not decoded."""
    error_first: Ints
    """int32: first non-zero ...ErrorCode of the response in wire order, 0 none."""
    error_count: Ints
    """int32: how many non-zero ...ErrorCode fields the response has; -1 when it was not decoded or there is none."""
    decoded: Flags
    """Every body that was captured fits the layout of its version."""
    api_inferred: Flags
    """API and version were inferred from the response's body."""
    missing_request: Ints
    missing_response: Ints
    """int64: bytes of the frame that were never captured."""
    client_ids: list[str] = field(default_factory=list)
    """Client ids by code; may be one growing list shared by all blocks of a run."""
    messages: Mapping[tuple[int, int], Message] = field(default_factory=dict)
    """(API key, side: 0 request, 1 response) -> decoded bodies; only for the types that were asked for."""
    data: npt.NDArray[np.uint8] | None = None
    """The buffer that positions in `messages` (`records_at`) point into, until the next block is asked for."""
    aside: Any = None
    """What was read of bodies that are in no message (`kdissect.tables.fetch_bodies`), where that was asked for."""
    network_up: Ints | None = None
    network_down: Ints | None = None
    """int64 ns: what the request and the response took between two capture points; from timestamps alone, what the
    response took beyond the least. NULL_TIME unknown; None: of no exchange here."""

    def __len__(self) -> int:
        return len(self.conn)


@dataclass(slots=True, eq=False, repr=False)
class Connections:
    """TCP connections of a run: arrays of equal length, one row each, in order of first packet.

    Addresses are two unsigned 64-bit halves of an IPv6 address (IPv4 as ::ffff:a.b.c.d).
    """

    captures: list[str]
    """Names of the captures, by index."""
    files: list[list[str]]
    """Per capture, the names of its files by index."""
    id: Ints
    """uint64: the connection id, shown as 16 hex digits."""
    capture: Ints
    """int32: index into `captures`."""
    client_hi: Ints
    client_lo: Ints
    broker_hi: Ints
    broker_lo: Ints
    """uint64."""
    client_port: Ints
    broker_port: Ints
    """uint16."""
    started: Ints
    """int64 ns: first packet."""
    lasted: Ints
    """int64 ns from the first packet to the last, -1 when that one has no time."""
    start_seen: Flags
    end_reason: Ints
    """int8: index into END_REASONS."""
    closed_by: Ints
    """int8: 1 more than the index into CLOSERS, 0 null."""
    is_kafka: Flags
    protocol: Ints
    """int32: index into `protocols`, -1 unknown."""
    tls: Ints
    """int32: index into `protocols` (a TLS version, such as "TLS 1.3"), -1 not encrypted."""
    packets: Ints
    bytes: Ints
    """int64: TCP payload bytes, retransmissions included."""
    retransmitted_bytes: Ints
    duplicated_packets: Ints
    out_of_order_packets: Ints
    missing_bytes: Ints
    """int64."""
    zero_window_ns: Ints
    rtt_ns: Ints
    rtt_min_ns: Ints
    rtt_max_ns: Ints
    client_rtt_ns: Ints
    """int64 ns; of round trips one more, 0 null: to the broker (median, extremes) and to the client."""
    rtt_kind: Ints
    """int8: index into NETWORK_KINDS, -1 null."""
    lost_segments: Ints
    """int64: segments sent again."""
    acks_removed: Flags
    """Whether acknowledgements without bytes were removed from the capture: answers came late, and none was seen."""
    no_bare_acks: Flags
    """Whether no acknowledgement without bytes was captured."""
    exchanges: Ints
    problems: Ints
    """int64: rows of `exchanges` and `problems` that name this connection."""
    protocols: list[str] = field(default_factory=list)
    """Names that `protocol` and `tls` point into."""
    sasl_mechanism: dict[int, str] = field(default_factory=dict)
    """Connection row -> mechanism, where the engine itself saw it (bare tokens); else taken from SaslHandshake."""
    principal: dict[int, str] = field(default_factory=dict)
    """Connection row -> user name, where the mechanism tells it openly (PLAIN, SCRAM). Never a credential."""
    sni: dict[int, str] = field(default_factory=dict)
    """Connection row -> server name asked for in the TLS handshake."""

    def __len__(self) -> int:
        return len(self.id)


@dataclass(slots=True, eq=False, repr=False)
class Problems:
    """Rows of `problems`: arrays of equal length."""

    kind: Ints
    """int8: `kdissect.problems.Kind`."""
    capture: Ints
    """int32: index into `Connections.captures`, -1 null."""
    conn: Ints
    """int32: row of `Connections`, -1 null."""
    n: Ints
    """int64: the exchange's ordinal (of an orphan: ordinal of the orphan), -1 null."""
    is_orphan: Flags
    at: Ints
    """int64 ns, NULL_TIME null."""
    packet: Ints
    """int64: packet | file << FILE_SHIFT, -1 null; packet number 0: the file alone."""
    where: Ints
    detail: Ints
    """int32: index into `texts`, -1 null."""
    bytes: Ints
    """int64, -1 null."""
    texts: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.kind)

    def moved(self, first: int) -> Problems:
        """The same where connections are counted from `first` on."""
        return replace(self, conn=np.where(self.conn < 0, self.conn, self.conn + first).astype(self.conn.dtype))

    def only(self, rows: Flags) -> Problems:
        """Some of the rows."""
        columns = {name: getattr(self, name)[rows] for name in Problems.__dataclass_fields__ if name != "texts"}
        return Problems(**columns, texts=self.texts)


class Quality(NamedTuple):
    """One row of `capture_quality`: a measure of a capture, or of one of its files."""

    capture: str
    file: str | None
    measure: str
    value: float | None
    text: str | None = None

"""How connections to brokers end: closed by the broker, or refused.

Rules.

- A host refuses a connection with RST and ACK, and sequence number 0, because the SYN had no acknowledgement to take a
  number from (RFC 9293, section 3.10.7.1). Only addresses that connections with Kafka go to are looked at.
- A broker closed a connection when it sent the first FIN or RST (`closed_by` of `connections`). Ended connections are
  known for as long as the stream kernels keep them: a minute.
- With more connections than the kernels keep at hand, those that rest are not looked at, and nothing is said of what
  is open: see `Dissector.resting`.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from kdissect.kafka.streams.dissector import Dissector
from kdissect.kernels.structs import offsets
from kdissect.live.moment import Links
from kdissect.net.segment import ACK_FLAG, FIN, FLOW, RST, SEGMENT, SYN
from kdissect.tcp.layout import Connection

Words = npt.NDArray[np.int64]
NUMBER, OPEN, CLOSED_AT, REQUESTS, CLIENT, ANSWERED_AT = range(6)
"""Columns: the connection's row in the ledger; 1 while nobody closed it; when the broker closed it before its client
did (ns, 0: it did not); 1 if a request is open on it; the code of its client id (-1: none); when its latest answer
ended (ns, 0: none came)."""
CLOSING_NS = 1_000_000_000
"""Connections that a broker closes within this time are closed together."""
STROKE_NS = 200_000_000
"""A process that stops closes all of its connections within this time."""
IDLE_NS = 60_000_000_000
"""A connection without an answer for so long may be closed because it is idle (connections.max.idle.ms)."""
REFUSED = 4096
"""Addresses whose last refusal is remembered."""
_C = offsets(Connection)


def read_links(dissector: Dissector) -> Words:
    """int64[connections, 6] of those that are known to carry Kafka. To be called between blocks."""
    M, rows = dissector.M, dissector.connections
    rows = rows[(M[rows + _C.number] >= 0) & (M[rows + _C.kafka] == 1) & (M[rows + _C.client] >= 0)]
    client = M[rows + _C.client]
    first, second = (M[rows + side.closed_at] for side in _C.directions)
    by_broker = np.where(client == 0, second, first)
    broker_first = M[rows + _C.closer] == 2 - client
    return np.stack(
        [
            M[rows + _C.number],
            M[rows + _C.closer] == 0,
            np.where(broker_first, by_broker, 0),
            M[rows + _C.request_head] >= 0,
            M[rows + _C.client_id],
            np.maximum(M[rows + _C.answered_last], 0),
        ],
        axis=1,
    ).astype(np.int64)


def links_of(rows: Words, refused_ns: int, client_ids: Sequence[str | None] = ()) -> Links:
    """Rows of `read_links` of one broker summed up. `refused_ns`: when it last refused a connection, 0 never.
    `client_ids`: by code."""
    closed = rows[rows[:, CLOSED_AT] > 0]
    last = int(closed[:, CLOSED_AT].max(initial=0))
    together = closed[closed[:, CLOSED_AT] >= last - CLOSING_NS]
    cut_off = len(together) if together[:, REQUESTS].any() else 0
    stroke = closed[closed[:, CLOSED_AT] >= last - STROKE_NS]
    codes = stroke[:, CLIENT].tolist() if (stroke[:, ANSWERED_AT] >= last - IDLE_NS).any() else []
    names = (client_ids[code] for code in codes if code >= 0)
    return Links(
        int(rows[:, OPEN].sum()), cut_off, last // 1000, refused_ns // 1000, len(stroke),
        frozenset(name for name in names if name is not None),
    )  # fmt: skip


class Refusals:
    """When connections were refused last, by the address that refused."""

    def __init__(self) -> None:
        self.latest_ns: dict[str, int] = {}
        """By address (`ip:port`)."""
        self._addresses: dict[tuple[int, int, int], str] = {}

    def learn(self, addresses: Iterable[tuple[str, str, int]]) -> None:
        """Addresses (text, ip, port) that connections with Kafka go to."""
        self._addresses = {(*_halves(ip), port): text for text, ip, port in addresses}

    def read_segments(self, segments: Words, flows: Words) -> None:
        """Note the refusals among segment rows."""
        flags = segments[:, SEGMENT.flags] & (FIN | SYN | RST | ACK_FLAG)
        rows = segments[(flags == RST | ACK_FLAG) & (segments[:, SEGMENT.seq] == 0)]
        if not len(rows) or not self._addresses:
            return
        flow, from_first = flows[rows[:, SEGMENT.flow] >> 1], (rows[:, SEGMENT.flow] & 1) == 0
        ports = flow[:, FLOW.ports]
        senders = np.where(
            from_first[:, None],
            np.stack([flow[:, FLOW.a_high], flow[:, FLOW.a_low], ports >> 16], axis=1),
            np.stack([flow[:, FLOW.b_high], flow[:, FLOW.b_low], ports & 0xFFFF], axis=1),
        )
        found, place = np.unique(senders, axis=0, return_inverse=True)
        latest = np.zeros(len(found), np.int64)
        np.maximum.at(latest, place.reshape(-1), rows[:, SEGMENT.time])
        for sender, when in zip(found.tolist(), latest.tolist(), strict=True):
            text = self._addresses.get(tuple(sender))
            if text is not None and (text in self.latest_ns or len(self.latest_ns) < REFUSED):
                self.latest_ns[text] = max(self.latest_ns.get(text, 0), when)


def _halves(ip: str) -> tuple[int, int]:
    """An address as the two signed words of a flow row."""
    parsed = ipaddress.ip_address(ip)
    number = 0xFFFF << 32 | int(parsed) if parsed.version == 4 else int(parsed)
    high, low = np.array([number >> 64, number & (1 << 64) - 1], np.uint64).astype(np.int64).tolist()
    return high, low

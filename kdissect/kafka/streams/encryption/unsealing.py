"""Sealed bytes of a capture's TLS connections in, plaintext out: the host's side of `sealing`.

Each connection's rows come in the order in which TCP delivered them, both directions mixed, and so does plaintext. A
plaintext byte arrives when the last byte of its record does. A connection that cannot be decrypted is ruled out, so
that the kernels bring no more of it. Its hellos (version, server name) are reported all the same. Where keys were given
at all, each connection that was not decrypted is a problem row that says why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from kdissect.capture.window import Window
from kdissect.kafka.protocols import TLS
from kdissect.kafka.streams.ledger import Ledger
from kdissect.kernels.structs import Records, Words
from kdissect.net import segment as sg
from kdissect.net.segment import SEGMENT
from kdissect.problems import Kind
from kdissect.tcp.layout import HOLE, Connection, Mode, connection_at
from kdissect.tls.keylog import KeyLog

if TYPE_CHECKING:  # most captures have no TLS: what opens it is loaded with the first sealed bytes
    from kdissect.tls.record_layer import Arrival
    from kdissect.tls.session import Masters, Plain, Session

CHUNK = 4 << 20
"""Bytes of plaintext per step: a quarter of what the window's extra slots hold."""
NEVER = 1 << 60
"""As `lost` of a direction: whatever was asked before may have been answered in bytes that could not be read."""


class Unsealer:
    """Decrypts the connections of one capture. `secrets` is a list of key logs that may grow while it is read. `told`
    is called with each piece of plaintext, behind the number of its connection and that of its flow."""

    def __init__(
        self, ledger: Ledger, keylog: bytes | None, secrets: Sequence[bytes],
        told: Callable[[int, int, Plain], None] | None = None,
    ) -> None:  # fmt: skip
        self.ledger = ledger
        self.keys = KeyLog(keylog or b"")
        self.asked = keylog is not None
        self._secrets = secrets
        self._tell = told
        self._taken = 0
        self._masters: Masters | None = None
        self._sessions: dict[int, Session] = {}

    def open(self, rows: Records, pieces: Sequence[bytes], M: Words, window: Window) -> Iterator[Words]:
        """Segment rows of plaintext (their stream is the connection's address) for `Sealed` rows and their bytes.

        Plaintext lies in the window's extra slots, so a step must be used up before the next is asked for.
        """
        from kdissect.tls.record_layer import Arrival
        from kdissect.tls.session import Masters, Session

        if self._masters is None:
            self._masters = Masters()
        while self._taken < len(self._secrets):
            self.keys.add(self._secrets[self._taken])
            self._taken += 1
        out: list[tuple[int, ...]] = []
        size = 0
        for row, data in zip(rows, pieces, strict=True):
            c, number, direction = int(row.connection), int(row.number), int(row.direction)
            connection = connection_at(M, c)
            if connection.kafka < 0:
                self._sessions.pop(number, None)
                continue
            session = self._sessions.get(number)
            if session is None:
                session = self._sessions[number] = Session(self.keys, self._masters)
            first, second, kind, other = (int(word) for word in (*row.floors, *row.floor_kinds))
            arrival = Arrival(int(row.time), int(row.packet), int(row.packets), (first, second, kind, other))
            for plain in self._plain(session, direction, data, int(row.wire), arrival):
                at = HOLE if plain.data is None else window.extra(plain.data)
                out.append(_segment(c, plain, at))
                if self._tell is not None:
                    self._tell(number, int(connection.flow), plain)
                size += plain.size
            self._note_session(connection, number, session)
            if size >= CHUNK:
                yield np.array(out, np.int64)
                out, size = [], 0
        if out:
            yield np.array(out, np.int64)

    def _plain(self, session: Session, direction: int, data: bytes, wire: int, arrival: Arrival) -> Iterator[Plain]:
        yield from session.feed(direction, data, arrival)
        yield from session.lose(direction, wire - len(data), arrival)

    def _note_session(self, connection: Connection, number: int, session: Session) -> None:
        """Writes the session's results into the ledger and the heap."""
        conn = number + self.ledger.base
        for direction, why, arrival in session.ended:
            connection.directions[direction].lost = NEVER
            if self._with_keys and session.reason is None:
                stream = "request stream" if direction == session.client else "response stream"
                detail = f"TLS is not decrypted from here on: {why}"
                self.ledger.note(Kind.TLS, stream, detail, conn=conn, at=arrival.time, packet=arrival.packet)
        session.ended.clear()
        if session.client is not None and connection.client != session.client and connection.kafka == 0:
            connection.client = session.client
            connection.news = 1
        self.ledger.encrypted(conn, session.version, session.sni)
        if session.reason is not None:
            self._refuse(conn, session)
            self._sessions.pop(number, None)
            connection.kafka = -1
            for direction in range(2):
                connection.directions[direction].mode = Mode.IGNORED

    @property
    def _with_keys(self) -> bool:
        return self.asked or len(self.keys) > 0

    def _refuse(self, conn: int, session: Session) -> None:
        if self._with_keys:
            self.ledger.note(Kind.TLS, "TLS handshake", f"TLS is not decrypted: {session.unread()}", conn=conn)

    def ended(self, rows: Records) -> None:
        """Connections that are finished, and entered in the ledger: say of each that is still sealed why."""
        if not len(rows):
            return
        for number in rows["number"][rows["sealed"] == 1].tolist():
            session = self._sessions.pop(number, None)
            if session is not None and not session.opened:
                self._refuse(number + self.ledger.base, session)
        if self._with_keys:
            plain = (rows["sealed"] == 0) & (rows["kafka"] != 1)
            for number in rows["number"][plain].tolist():
                conn = number + self.ledger.base
                if self.ledger.connections.protocol[conn] == TLS:
                    detail = "TLS is not decrypted: the handshake was not captured"
                    self.ledger.note(Kind.TLS, "TLS handshake", detail, conn=conn)


def _segment(c: int, plain: Plain, at: int) -> tuple[int, ...]:
    row = [0] * sg.SEGMENT_COLUMNS
    row[SEGMENT.time], row[SEGMENT.seq] = plain.arrival.time, plain.arrival.count
    row[SEGMENT.flow] = c << 1 | plain.direction
    row[SEGMENT.at], row[SEGMENT.len], row[SEGMENT.wire] = at, 0 if at < 0 else plain.size, plain.size
    row[SEGMENT.packet] = plain.arrival.packet
    row[SEGMENT.ack], row[SEGMENT.viewpoint], kind, other = plain.arrival.rounds
    row[SEGMENT.flags] = kind + 1 | (other + 1) << 8
    return tuple(row)

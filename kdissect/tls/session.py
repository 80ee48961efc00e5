"""One TLS connection, from its hellos on: sealed bytes in, plaintext out.

Rules:

- Keys come from the key log, by the client's random. A TLS 1.2 session that is resumed and has no line of its own uses
  the master secret of the session that it names, by session id or ticket.
- A direction is readable from its ChangeCipherSpec on (TLS 1.2) or from ServerHello on (TLS 1.3). The keys of TLS 1.3
  are first the handshake's, behind Finished the application's, after each KeyUpdate the next ones. Records that were
  captured before the hello which they need wait for it, up to WAITING bytes.
- A record that its key does not open is tried with the direction's next key, as the message that changed it may have
  been lost. When that fails too, or records cannot be told apart any more, the direction ends.
- A record with bytes missing costs its plaintext alone: its length is reported, as bytes that were lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kdissect.tls import handshake as hs
from kdissect.tls.keylog import MASTER, KeyLog
from kdissect.tls.record_layer import APPLICATION_DATA, CHANGE_CIPHER_SPEC, HANDSHAKE, Arrival, Record, Records
from kdissect.tls.schedule import SUITES, Opener, Suite, from_master

WAITING = 64 << 10
"""Bytes of records that wait for a hello: packets change places over short distances only."""
REMEMBERED = 4096
"""Sessions of TLS 1.2 whose master secrets are kept to be resumed."""


@dataclass(frozen=True, slots=True)
class Plain:
    """Plaintext of one record of a direction; `data` is None where `size` bytes were lost."""

    direction: int
    data: bytes | None
    size: int
    arrival: Arrival


class Masters:
    """Master secrets of TLS 1.2 by session id and by ticket."""

    def __init__(self) -> None:
        self._by_name: dict[bytes, bytes] = {}

    def keep(self, name: bytes, master: bytes | None) -> None:
        """Remember a session under its id or ticket."""
        if name and master is not None:
            while len(self._by_name) >= REMEMBERED:
                del self._by_name[next(iter(self._by_name))]
            self._by_name[name] = master

    def find_secret(self, *names: bytes) -> bytes | None:
        """The master secret of the first name known."""
        return next((self._by_name[name] for name in names if name in self._by_name), None)


class _Direction:
    def __init__(self) -> None:
        self.records = Records()
        self.messages = hs.Messages()
        self.opener: Opener | None = None
        self.next: Opener | None = None
        """The key that takes over next: TLS 1.2 at ChangeCipherSpec, TLS 1.3 behind Finished."""
        self.unproven = False
        """Whether records that the key does not open may belong to a handshake whose key the log does not have."""
        self.waiting: list[Record] = []
        self.waiting_bytes = 0
        self.lost = False


class Session:
    """A connection's two directions (0 and 1, whichever is the client's).

    `version` and `sni` are known once their hello was read. `reason` says why nothing more can be read; `problem` is
    set when plaintext was lost on the way (and reading may go on).
    """

    def __init__(self, keys: KeyLog, masters: Masters) -> None:
        self.keys = keys
        self.masters = masters
        self.client: int | None = None
        self.sni: str | None = None
        self.version: str | None = None
        self.reason: str | None = None
        self.ended: list[tuple[int, str, Arrival]] = []
        """Directions that ended early since this list was last emptied: direction, why, when."""
        self.opened = False
        """Whether any application data was read."""
        self._hello: hs.ClientHello | None = None
        self._choice: hs.ServerHello | None = None
        self._master: bytes | None = None
        self._suite: Suite | None = None
        self._sides = (_Direction(), _Direction())

    # ---- what the caller does

    def feed(self, direction: int, data: bytes, arrival: Arrival) -> Iterator[Plain]:
        """Plaintext that `data` completes."""
        side = self._sides[direction]
        yield from self._decrypt(direction, side, side.records.feed(data, arrival), arrival)

    def lose(self, direction: int, size: int, arrival: Arrival) -> Iterator[Plain]:
        """`size` bytes of the direction were never captured."""
        side = self._sides[direction]
        yield from self._decrypt(direction, side, side.records.lose(size, arrival), arrival)

    def unread(self) -> str:
        """Why nothing was read, at the end of the connection."""
        if self.reason is not None:
            return self.reason
        if self._hello is None or self._choice is None:
            return f"the {'ClientHello' if self._hello is None else 'ServerHello'} was not captured"
        return "no application data was captured"

    # ---- records

    def _decrypt(
        self, direction: int, side: _Direction, records: Iterator[Record], arrival: Arrival
    ) -> Iterator[Plain]:
        if side.lost or self.reason is not None:
            return
        for record in records:
            if self._must_wait(side, record):
                side.waiting.append(record)
                side.waiting_bytes += len(record.body)
                if side.waiting_bytes > WAITING:
                    self.reason = self.unread()
                continue
            yield from self._record(direction, side, record)
            if side.lost or self.reason is not None:
                return
        if side.records.broken is not None:
            self._end(direction, side, side.records.broken, arrival)

    def _must_wait(self, side: _Direction, record: Record) -> bool:
        if self._suite is not None:
            return False
        return bool(side.waiting) or record.type in (CHANGE_CIPHER_SPEC, APPLICATION_DATA)

    def _record(self, direction: int, side: _Direction, record: Record) -> Iterator[Plain]:
        if record.type == CHANGE_CIPHER_SPEC:
            if self.version != hs.VERSIONS[hs.TLS13]:
                side.opener, side.next = side.next or side.opener, None
            return
        if side.opener is None or (side.opener.tls13 and record.type != APPLICATION_DATA):
            if record.type == HANDSHAKE and (side.opener is None or not side.opener.number):
                yield from self._handshake(direction, side, record.body if record.whole else None)
            elif record.type == APPLICATION_DATA:
                self._end(direction, side, "application data comes before its keys", record.arrival)
            return
        if not record.whole:
            lost = max(len(record.body) - side.opener.overhead, 0)
            side.opener.number += 1
            side.messages.forget()
            if record.type == APPLICATION_DATA and lost:
                yield Plain(direction, None, lost, record.arrival)
            return
        found = self._open(side, record)
        if found is None and side.unproven and side.opener.number == 0:
            return
        if found is None:
            self._end(direction, side, "a record does not decrypt with the keys of the log", record.arrival)
            return
        kind, plain = found
        if kind == APPLICATION_DATA:
            self.opened = True
            if plain:
                yield Plain(direction, plain, len(plain), record.arrival)
        elif kind == HANDSHAKE:
            yield from self._handshake(direction, side, plain)

    def _open(self, side: _Direction, record: Record) -> tuple[int, bytes] | None:
        assert side.opener is not None
        found = side.opener.open(record.header, record.body)
        if found is None and side.opener.tls13:
            later = side.next or side.opener.updated()
            found = later.open(record.header, record.body)
            if found is not None:
                side.opener, side.next = later, None
                side.messages.forget()
        return found

    def _end(self, direction: int, side: _Direction, why: str, arrival: Arrival) -> None:
        side.lost = True
        side.records = Records()
        side.waiting.clear()
        self.ended.append((direction, why, arrival))

    # ---- handshake

    def _handshake(self, direction: int, side: _Direction, data: bytes | None) -> Iterator[Plain]:
        if data is None:
            side.messages.forget()
            return
        for kind, body in side.messages.feed(data):
            if kind == hs.CLIENT_HELLO:
                hello = hs.client_hello(body)
                if hello is not None:
                    self.client, self._hello, self.sni = direction, hello, hello.sni or self.sni
                    self._choice = None if self._suite is not None else self._choice
            elif kind == hs.SERVER_HELLO:
                choice = hs.server_hello(body)
                if choice is not None and not choice.retry:
                    self._choice = choice
                    self.client = 1 - direction if self.client is None else self.client
                    self.version = hs.VERSIONS.get(choice.version)
            elif kind == hs.NEW_SESSION_TICKET and self._master is not None:
                self.masters.keep(hs.ticket(body), self._master)
            elif kind == hs.FINISHED and side.opener is not None and side.opener.tls13 and side.next is not None:
                side.opener, side.next = side.next, None
            elif kind == hs.KEY_UPDATE and side.opener is not None and side.opener.tls13:
                side.opener = side.opener.updated()
            if kind in (hs.CLIENT_HELLO, hs.SERVER_HELLO):
                yield from self._negotiated()

    def _negotiated(self) -> Iterator[Plain]:
        """Both hellos are there: make the keys, and read what waited for them."""
        hello, choice = self._hello, self._choice
        if hello is None or choice is None or self.client is None:
            return
        suite = SUITES.get(choice.suite)
        if suite is None or choice.version < 0x0303:
            name = hs.UNREAD_SUITES.get(choice.suite)
            suite_said = f"{name} (0x{choice.suite:04x})" if name else f"0x{choice.suite:04x}"
            self.reason = (
                f"cipher suite {suite_said} of {self.version or 'an unknown version'} is not read, "
                "AES-GCM and ChaCha20-Poly1305 are"
            )
            return
        keyed = self._keys13(suite, hello) if choice.version == hs.TLS13 else self._keys12(suite, hello, choice)
        if not keyed:
            self.reason = f"the key log has no secret for client random {hello.random.hex()}"
            return
        self._suite = suite
        for direction, side in enumerate(self._sides):
            waiting, side.waiting, side.waiting_bytes = side.waiting, [], 0
            for record in waiting:
                if not side.lost:
                    yield from self._record(direction, side, record)

    def _keys12(self, suite: Suite, hello: hs.ClientHello, choice: hs.ServerHello) -> bool:
        master = self.keys.secret(MASTER, hello.random)
        if master is None:
            resumed = choice.session_id if choice.session_id == hello.session_id else b""
            master = self.masters.find_secret(resumed, hello.ticket)
        if master is None:
            return False
        self._master = master
        self.masters.keep(choice.session_id, master)
        openers = from_master(suite, choice.version, master, hello.random, choice.random)
        for direction, side in enumerate(self._sides):
            side.next = openers[0] if direction == self.client else openers[1]
        return True

    def _keys13(self, suite: Suite, hello: hs.ClientHello) -> bool:
        any_found = False
        for direction, side in enumerate(self._sides):
            who = "CLIENT" if direction == self.client else "SERVER"
            names = f"{who}_HANDSHAKE_TRAFFIC_SECRET", f"{who}_TRAFFIC_SECRET_0"
            early, late = (self.keys.secret(name, hello.random) for name in names)
            if late is not None:
                any_found = True
                later = Opener.from_secret(suite, late)
                side.unproven = early is None
                side.opener, side.next = (later, None) if early is None else (Opener.from_secret(suite, early), later)
        return any_found

"""Who logs in: mechanism and user name of each connection's first login, from SASL's own messages.

SaslHandshake names the mechanism. The client's first token names the user where the mechanism sends that openly (see
`principal`): in SaslAuthenticate (KIP-152), or bare behind SaslHandshake v0. Nothing else of a token is
looked at or kept. A login that fails names its user all the same; later ones (KIP-368, re-authentication) must name the
same user, or the broker ends the connection.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kdissect.kafka.streams.dissector import Dissector
from kdissect.kafka.streams.ledger import Ledger
from kdissect.kafka.streams.state import TOKEN, Frame
from kdissect.kernels.structs import Records, Words
from kdissect.schema.apikeys import ApiKey

MAX_TOKEN = 1 << 16
"""Bytes of a token that is looked at: longer ones are tickets, which name nobody openly."""
MAX_MECHANISM = 64
"""RFC 4422 allows 20 characters."""


class Logins:
    """Collects logins of one capture into the ledger."""

    def __init__(self, dissector: Dissector, ledger: Ledger) -> None:
        self.dissector = dissector
        self.ledger = ledger

    def note(self, rows: Records, exchanges: Words, s: npt.NDArray[np.uint8], begin: Words, end: Words) -> None:
        """Look at some of the `Exchange` rows, SASL's messages and bare tokens; the request bodies of these lie at
        s[begin:end]."""
        connections = self.ledger.connections
        for i, first, last in zip(exchanges.tolist(), begin.tolist(), end.tolist(), strict=True):
            row = rows[i]
            conn = int(row.connection) + self.ledger.base
            if conn in connections.principal:
                continue
            api, token = int(row.api), row.status == TOKEN
            if token:
                found: bytes | None = self._bare(row.request)
            else:
                body = s[first : min(last, first + MAX_TOKEN)].tobytes()
                found = _field(body, api, int(row.version))
            if found is None:
                continue
            if not token and api == ApiKey.SASL_HANDSHAKE:
                mechanism = found.decode("ascii", "replace")
                if len(mechanism) <= MAX_MECHANISM and mechanism.isprintable():
                    connections.sasl_mechanism.setdefault(conn, mechanism)
                continue
            from kdissect.kafka.exchanges.principal import principal

            user = principal(connections.sasl_mechanism.get(conn), found)
            if user is not None:
                connections.principal[conn] = user

    def _bare(self, frame: Frame) -> bytes | None:
        if frame.missing or frame.cut or frame.bytes > MAX_TOKEN:
            return None
        return self.dissector.frame(frame)


def _field(body: bytes, api: int, version: int) -> bytes | None:
    """The first field of the request, which is all that SaslHandshake and SaslAuthenticate have."""
    if api == ApiKey.SASL_HANDSHAKE:
        size, at = int.from_bytes(body[:2], "big", signed=True), 2
    elif version >= 2:
        size, at = 0, next((n for n, byte in enumerate(body[:5], 1) if byte < 128), 0)
        for byte in reversed(body[:at]):
            size = size << 7 | byte & 127
        size -= 1
    else:
        size, at = int.from_bytes(body[:4], "big", signed=True), 4
    return body[at : at + size] if 0 <= size <= len(body) - at else None

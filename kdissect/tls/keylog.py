"""Key logs in the SSLKEYLOGFILE format (RFC 9850): lines of a label, a client random and a secret, in hexadecimal."""

from __future__ import annotations

import re

MASTER = "CLIENT_RANDOM"
"""The master secret of TLS 1.2 and earlier."""
LABELS = frozenset(
    {
        MASTER, "CLIENT_HANDSHAKE_TRAFFIC_SECRET", "SERVER_HANDSHAKE_TRAFFIC_SECRET", "CLIENT_TRAFFIC_SECRET_0",
        "SERVER_TRAFFIC_SECRET_0",
    }
)  # fmt: skip
"""What records of application data need; other labels (EXPORTER_SECRET...) are passed over."""
MAX_SECRETS = 1 << 20
"""Secrets kept: four for each of 262,144 connections, some 150 MB. Later lines are passed over."""
_LINE = rb"^[ \t]*([A-Z0-9_]{1,64})[ \t]+([0-9A-Fa-f]{64})[ \t]+((?:[0-9A-Fa-f]{2}){16,64})[ \t]*\r?$"


class KeyLog:
    """Secrets by client random. `add` may be called again and again: pcapng brings secrets as it is read."""

    def __init__(self, text: bytes = b"") -> None:
        self._secrets: dict[tuple[str, bytes], bytes] = {}
        self.add(text)

    def __len__(self) -> int:
        return len(self._secrets)

    def add(self, text: bytes) -> None:
        """Take every line of `text` that is a secret; anything else in it is passed over."""
        for line in re.finditer(_LINE, text, re.MULTILINE) if text else ():
            label = line[1].decode()
            if label in LABELS and len(self._secrets) < MAX_SECRETS:
                self._secrets[label, bytes.fromhex(line[2].decode())] = bytes.fromhex(line[3].decode())

    def secret(self, label: str, client_random: bytes) -> bytes | None:
        """The secret of that label, None where the log has none."""
        return self._secrets.get((label, client_random))

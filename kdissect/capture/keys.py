"""Files with TLS keys."""

from __future__ import annotations

from pathlib import Path

from kdissect.problems import UsageError

MAX_BYTES = 256 << 20
"""A key log has some 900 bytes for each connection of TLS 1.3: a million lines and more fit."""


def read_key_log(path: str | Path) -> bytes:
    """The text of a key log (SSLKEYLOGFILE format, RFC 9850). Raises UsageError when it cannot be read or is none."""
    try:
        with Path(path).open("rb") as file:
            text = file.read(MAX_BYTES)
    except OSError as error:
        raise UsageError(f"{path}: no key log can be read there: {error.strerror or error}.") from None
    if not any(word in text for word in (b"CLIENT_RANDOM ", b"_TRAFFIC_SECRET")):
        raise UsageError(f"{path}: no TLS keys in it. Give a file that SSLKEYLOGFILE names.")
    return text

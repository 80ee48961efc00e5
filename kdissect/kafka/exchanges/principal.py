"""The user name in a SASL token, where the mechanism sends it openly. Never anything else of the token.

PLAIN (RFC 4616): authzid NUL authcid NUL password. SCRAM (RFC 5802, Kafka's SCRAM-SHA-256 and -512): the client's
first message `n,a=authzid,n=user,r=nonce`, where `=2C` stands for a comma and `=3D` for an equals sign. OAUTHBEARER
(RFC 7628) names the user inside the bearer token, which is the credential, and GSSAPI inside a ticket: null.
"""

from __future__ import annotations

MAX_NAME = 255
"""Bytes: RFC 4616 allows a name no more, and a token is hostile input."""


def principal(mechanism: str | None, token: bytes) -> str | None:
    """The user name of a client's first token; None where the mechanism does not tell it or the token is not one of
    its."""
    if mechanism == "PLAIN":
        parts = token.split(b"\0")
        return _name(parts[1]) if len(parts) == 3 else None
    if mechanism is not None and mechanism.startswith("SCRAM-"):
        flags, _, rest = token.partition(b",")
        _, _, bare = rest.partition(b",")
        first, comma, _ = bare.partition(b",")
        if comma and first.startswith(b"n=") and flags[:1] in (b"n", b"y", b"p"):
            return _name(first[2:].replace(b"=2C", b",").replace(b"=3D", b"="))
    return None


def _name(data: bytes) -> str | None:
    if not 0 < len(data) <= MAX_NAME:
        return None
    try:
        name = data.decode()
    except UnicodeDecodeError:
        return None
    return name if name.isprintable() else None

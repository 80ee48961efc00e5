"""API keys that code names; all others are known by the file of their messages in `api/` alone."""

from __future__ import annotations

import enum


class ApiKey(enum.IntEnum):
    """Keys of Kafka's protocol, as in every request's header."""

    PRODUCE = 0
    FETCH = 1
    CONTROLLED_SHUTDOWN = 7
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    SASL_AUTHENTICATE = 36
    SHARE_FETCH = 78
    SHARE_ACKNOWLEDGE = 79

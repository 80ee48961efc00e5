"""Configurations whose values are credentials.

Kafka never returns the values of configurations of type PASSWORD; on their way in they are readable on the wire.
Brokers and plugins add names of their own, and a listener's name may stand in front, so names are judged by the words
in them.
"""

from __future__ import annotations

import re

_SECRET = (
    r"password|passphrase|passwd|secret|jaas|credential|private[._]?key|api[._]?key"
    r"|keystore\.key$|certificate\.chain$|truststore\.certificates$|master\.key$"
)
_HARMLESS = r"password\.encoder\.(cipher|iterations|key|keyfactory)|\.(type|location|algorithm|provider)$"


def is_secret_config(name: str | None) -> bool:
    """Whether the value of a configuration of this name is shown as its length only."""
    if name is None or re.search(_SECRET, name, re.IGNORECASE) is None:
        return False
    return re.search(_HARMLESS, name) is None

"""Configurations that Kafka's own ConfigDefs know: which values may be said to others.

`configurations.csv` has name and type by release, printed by those definitions (captures/record/configurations). Kafka
treats a configuration that no definition knows as sensitive (KIP-226), and so do `redact` and all that shows messages.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from kdissect.schema.secrets import is_secret_config

_LISTENER = r"listener\.name\.[^.]+\."
"""What stands in front of a configuration of one listener (KIP-103)."""


@cache
def types() -> dict[str, str]:
    """The type of every known configuration, in lower case; "password" where any release says so."""
    import csv

    with Path(__file__).with_name("configurations.csv").open(encoding="utf-8") as stream:
        return {row["name"]: row["type"] for row in csv.DictReader(stream)}


def is_open_config(name: str) -> bool:
    """Whether the value of a configuration of this name may be shown to others: some release defines it, none of them
    as a password, and its name does not say that it is a secret."""
    kind = types().get(re.sub(_LISTENER, "", name, count=1))
    return kind is not None and kind != "password" and not is_secret_config(name)

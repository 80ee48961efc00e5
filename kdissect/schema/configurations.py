"""Configurations that Kafka's own ConfigDefs know: which values may be said to others.

`configurations.csv` has name, type and valid values by release, printed by those definitions
(captures/record/configurations). Kafka treats a configuration that no definition knows as sensitive (KIP-226), and so
do `redact` and all that shows messages. `redact` keeps fewer values: a folder, a URL or a list of hosts is no password,
and may hold one.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

from kdissect.schema.secrets import is_secret_config

_LISTENER = r"listener\.name\.[^.]+\."
"""What stands in front of a configuration of one listener (KIP-103)."""


_NUMBER = r"[+-]?[0-9]{1,20}(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,3})?"
_FORMS = {"boolean": "true|false", "short": _NUMBER, "int": _NUMBER, "long": _NUMBER, "double": _NUMBER}
"""What a value of these types looks like, in any case of letters."""


class Configuration(NamedTuple):
    """The declarations of one configuration in the ConfigDefs of all releases."""

    type: str
    """In lower case; "password" where any release says so."""
    values: frozenset[str]
    """The only valid values, or elements of a list, in lower case; empty where anything is valid."""


@cache
def load_configurations() -> dict[str, Configuration]:
    """Every configuration that some release defines, by name."""
    import csv

    with Path(__file__).with_name("configurations.csv").open(encoding="utf-8") as stream:
        return {
            row["name"]: Configuration(row["type"], frozenset(filter(None, row["values"].lower().split("|"))))
            for row in csv.DictReader(stream)
        }


def _of(name: str) -> Configuration | None:
    return load_configurations().get(re.sub(_LISTENER, "", name, count=1))


def is_open_config(name: str) -> bool:
    """Whether the value of a configuration of this name may be shown to others. Some release must define it, none of
    them as a password, and its name must not say that it is a secret."""
    found = _of(name)
    return found is not None and found.type != "password" and not is_secret_config(name)


def is_harmless_value(name: str, value: str) -> bool:
    """Whether a value of the configuration `name` identifies no one. The configuration may be shown, and the value is a
    boolean or a number as its type asks for, or one of the words that Kafka's validator of it accepts."""
    found = _of(name)
    if found is None or not is_open_config(name):
        return False
    if found.type in _FORMS:
        return re.fullmatch(_FORMS[found.type], value.strip(), re.IGNORECASE) is not None
    words = value.split(",") if found.type == "list" else [value]
    return bool(found.values) and all(word.strip().lower() in found.values for word in words)

"""Texts in filters that no row can have: a misspelt name would give an empty answer, which reads as none at all."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

from kdissect.analysis.findings.evidence import SEVERITIES
from kdissect.analysis.holds.hold_kernels import HOLDS
from kdissect.cli.printing import terminal
from kdissect.kafka.completed import STATUS
from kdissect.schema import index
from kdissect.tables.candidates import EQUAL
from kdissect.tables.declaration import SCHEMAS
from kdissect.tables.fetches import REQUEST_KINDS
from kdissect.tables.suggestion import near
from kdissect.tables.where import parse

KNOWN: Mapping[str, Callable[[], Iterable[str]]] = {
    "api": lambda: map(index.api_name, index.load().apis),
    "error": lambda: index.error_names().values(),
    "hold": lambda: HOLDS,
    "status": lambda: STATUS,
    "request_kind": lambda: REQUEST_KINDS,
    "severity": lambda: SEVERITIES,
}
"""Columns of texts that are all known beforehand."""
FEW = 10
"""Values that are listed where none is like the one asked for."""
NUMBERED = re.compile(r"(?:key|error) -?\d+")
"""What stands for an API or an error without a name."""


def say_impossible_values(table: str, where: str) -> None:
    """Say on standard error which texts that a filter asks for no row of the table can have. The reader of the rows
    refuses a filter that is no expression."""
    try:
        limits = parse(where, SCHEMAS[table]).limits
    except ValueError:
        return
    for limit in limits:
        known = KNOWN.get(limit.column)
        if known is None or limit.operator not in EQUAL:
            continue
        names = list(known())
        for value in limit.values:
            if isinstance(value, str) and value not in names and not NUMBERED.fullmatch(value):
                meant = near(value, names) or (f"; it is one of {', '.join(names)}" if len(names) <= FEW else "")
                terminal.say(f"no row can have {limit.column} {value!r}{meant}")

"""Kafka's CamelCase names as column names."""

from __future__ import annotations

import re
from functools import cache

_BOUNDARY = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z0-9])(?=[A-Z][a-z])")


@cache
def snake_case(name: str) -> str:
    """`ThrottleTimeMs` is throttle_time_ms, `Enable2Pc` enable2_pc, `V3AndBelowCount` v3_and_below_count."""
    return _BOUNDARY.sub("_", name).lower()

"""How texts name counts, times and lists."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from kdissect.arrays.arrow import EPOCH, MILLI

EMPTY = '""'
"""How an empty name is shown."""


def who(client: object) -> str:
    """A client as sentences name it."""
    return "a client without an id" if client is None else f"client {str(client) or EMPTY}"


def list_names(names: Iterable[object], most: int = 4) -> str:
    """`a, b and c`; `a, b, c, d and 3 more`."""
    every = ["a client without an id" if name is None else str(name) or EMPTY for name in names]
    if len(every) > most:
        every = [*every[:most], f"{len(every) - most:,} more"]
    return every[0] if len(every) == 1 else ", ".join(every[:-1]) + f" and {every[-1]}" if every else ""


def many(count: int, noun: str, more: str | None = None) -> str:
    """`1 session`, `1,234 sessions`."""
    return f"{count:,} {noun if count == 1 else more or noun + 's'}"


def times_over(count: int) -> str:
    """`once`, `twice`, `12 times`."""
    return {1: "once", 2: "twice"}.get(count, f"{count:,} times")


def duration(ms: float) -> str:
    """A time as people say it."""
    if ms < 10:
        return f"{ms:.1f} ms"
    if ms < 1000:
        return f"{ms:.0f} ms"
    return f"{ms / 1000:.1f} s" if ms < 120_000 else f"{ms / 60_000:.1f} min"


def clock(at: int) -> str:
    """An instant (microseconds since the epoch) as sentences name it, UTC: `01:02:51.704`."""
    return time_text(at, "%H:%M:%S") + f".{at // MILLI % 1000:03d}"


def time_text(at: int, form: str) -> str:
    """An instant (microseconds since the epoch) in UTC, as `strftime` writes it."""
    return (EPOCH + timedelta(seconds=at // 1_000_000)).strftime(form)

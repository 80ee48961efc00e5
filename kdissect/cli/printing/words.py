"""Figures and times as people read them: three significant digits, the unit that fits, null as a dash."""

from __future__ import annotations

import re
import textwrap
from datetime import UTC, datetime

from kdissect.escaping import visible

UNKNOWN = "-"


def count(number: int | None) -> str:
    """A whole number with separators: 12,345."""
    return UNKNOWN if number is None else f"{number:,}"


def number_of(number: int | None, noun: str, plural: str | None = None) -> str:
    """A number with its noun: `1 packet`, `12,345 packets`."""
    return f"{count(number)} {noun if number == 1 else plural or noun + 's'}"


def milliseconds(value: float | None) -> str:
    """A duration given in milliseconds, in the unit that fits: 85 us, 1.42 ms, 512 ms, 3.2 s, 5 min 3 s."""
    if value is None:
        return UNKNOWN
    if abs(value) < 0.9995:
        return f"{value * 1000:.0f} us"
    if abs(value) < 999.5:
        return f"{_three(value)} ms"
    seconds = value / 1000
    if abs(seconds) < 99.95:
        return f"{_three(seconds)} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 100:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,} h {minutes} min" if minutes else f"{hours:,} h"


def size(number: float | None) -> str:
    """A number of bytes: 512 B, 12.3 kB, 4.56 MB (powers of ten)."""
    if number is None:
        return UNKNOWN
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(number) < 999.5 or unit == "TB":
            return f"{number:.0f} {unit}" if unit == "B" else f"{_three(number)} {unit}"
        number /= 1000
    raise AssertionError("unreachable")


def moment(time: datetime | None, *, local: bool = False) -> str:
    """A time with its day: 2026-11-21 04:20:01.123 UTC, or in local time with its offset."""
    if time is None:
        return UNKNOWN
    shown = _zoned(time, local)
    zone = "UTC" if not local else shown.strftime("%z")
    return f"{shown:%Y-%m-%d %H:%M:%S}.{shown.microsecond // 1000:03d} {zone}"


def time_of_day(time: datetime | int, *, local: bool = False) -> str:
    """A time without its day, to the millisecond: 04:20:01.123. A number is microseconds since the epoch."""
    if isinstance(time, int):
        time = datetime.fromtimestamp(time // 1_000_000, UTC).replace(microsecond=time % 1_000_000)
    shown = _zoned(time, local)
    return f"{shown:%H:%M:%S}.{shown.microsecond // 1000:03d}"


def span(start: datetime | None, end: datetime | None, *, local: bool = False) -> str:
    """A stretch of time: the day once where both ends share it."""
    if start is None or end is None:
        return UNKNOWN
    first, last = _zoned(start, local), _zoned(end, local)
    zone = "UTC" if not local else first.strftime("%z")
    tail = f"{last:%H:%M:%S}" if first.date() == last.date() else f"{last:%Y-%m-%d %H:%M:%S}"
    return f"{first:%Y-%m-%d %H:%M:%S} to {tail} {zone}"


def versions(numbers: list[int]) -> str:
    """Version numbers in short: v0-4,7."""
    return f"v{ranges(numbers, ',')}" if numbers else UNKNOWN


def ranges(numbers: list[int], between: str = ", ") -> str:
    """Ordered numbers in short: 0-4, 7."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return between.join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def wrapped(text: str, cells: int) -> list[str]:
    """The text in lines of at most so many characters, at least 20; control characters are shown."""
    return textwrap.wrap(visible(text), max(20, cells), break_on_hyphens=False) or [""]


def _zoned(time: datetime, local: bool) -> datetime:
    return time.astimezone(None if local else UTC)


def _three(value: float) -> str:
    """Three significant digits for 1 <= value < 999.5: 1.42, 14.2, 142."""
    return f"{value:.2f}" if abs(value) < 9.995 else f"{value:.1f}" if abs(value) < 99.95 else f"{value:.0f}"


WORDS = re.compile(r"(?:'[^']*'|\"(?:\\.|[^\"\\])*\"|\\.|[^\s'\"\\])+")
"""A word of a command as a shell reads it, quotes and all."""


def command_lines(command: str, cells: int, indent: int = 0) -> list[str]:
    """A command in lines of at most so many characters, which a shell reads as one when they are pasted.

    Lines break between words behind a backslash. A longer word breaks inside, outside of single quotes: there a
    backslash at the end of a line is no part of it. The rest of such a word begins the next line.
    """
    lines, line = [], " " * indent
    for word in WORDS.findall(visible(command)):
        gap = " " if line.strip() else ""
        if len(line) + len(gap) + len(word) + 2 > cells and line.strip():
            lines.append(f"{line} \\")
            line, gap = " " * (indent + 2), ""
        line += gap + word
        while len(line) > cells - 2 and "'" not in word:
            at = cells - 1
            while line[at - 1] == "\\":
                at -= 1
            lines.append(line[:at] + "\\")
            line = line[at:]
    return [*lines, line]

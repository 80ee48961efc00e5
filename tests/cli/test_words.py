"""Figures as people read them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from kdissect.cli.printing import words


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "-"),
        (0.085, "85 us"),
        (0.9996, "1.00 ms"),
        (1.42, "1.42 ms"),
        (14.25, "14.2 ms"),
        (999.4, "999 ms"),
        (999.6, "1.00 s"),
        (99_940, "99.9 s"),
        (303_000, "5 min 3 s"),
        (86_400_000, "24 h"),
    ],
)
def test_milliseconds(value: float | None, shown: str) -> None:
    assert words.milliseconds(value) == shown


def test_size() -> None:
    assert [words.size(n) for n in (None, 0, 999, 1000, 123_456, 5e12, 5e15)] == [
        "-", "0 B", "999 B", "1.00 kB", "123 kB", "5.00 TB", "5000 TB",
    ]  # fmt: skip


def test_versions() -> None:
    assert words.versions([]) == "-"
    assert words.versions([4]) == "v4"
    assert words.versions([0, 1, 2, 7, 9, 10]) == "v0-2,7,9-10"


def test_span_says_the_day_once() -> None:
    start = datetime(2026, 11, 21, 23, 59, 58, tzinfo=UTC)
    assert words.span(start, start.replace(second=59)) == "2026-11-21 23:59:58 to 23:59:59 UTC"
    assert words.span(start, start.replace(day=22)) == "2026-11-21 23:59:58 to 2026-11-22 23:59:58 UTC"

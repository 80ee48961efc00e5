"""Points in time as people give them."""

from __future__ import annotations

import gzip
import io
from pathlib import Path

import pytest

import kdissect
from kdissect.capture.clock import find_span, nanoseconds
from kdissect.problems import UsageError

DEMO = "k4_python_kafka.pcap"  # 2026-11-21 02:36:05 to 02:36:09


def test_a_time_of_day_is_of_the_captures_day(captures: Path) -> None:
    said = {"start": "02:36:06", "end": "2:36:07.5"}
    whole = {"start": "2026-11-21T02:36:06", "end": "2026-11-21T02:36:07.500"}
    one = kdissect.open(captures / DEMO, **said).table("exchanges")
    assert one.num_rows > 0
    assert one.equals(kdissect.open(captures / DEMO, **whole).table("exchanges"))
    assert one.equals(kdissect.open(captures / DEMO, start="03:36:06+01:00", end="02:36:07.5Z").table("exchanges"))


def test_near_midnight_it_is_the_nearest(captures: Path) -> None:
    opened = kdissect.open(captures / DEMO)
    assert nanoseconds("20:00", opened._captures) == nanoseconds("2026-11-20T20:00:00")
    assert nanoseconds("13:00", opened._captures) == nanoseconds("2026-11-21T13:00:00")


def test_moments_that_no_packet_has_limit_nothing_or_all(captures: Path) -> None:
    first, last = "0001-01-01T00:00:00", "9999-12-31T23:59:59-05:00"
    whole = kdissect.open(captures / DEMO).table("exchanges")
    assert kdissect.open(captures / DEMO, start=first, end=last).table("exchanges").equals(whole)
    for nothing in ({"start": last}, {"end": first}):
        assert kdissect.open(captures / DEMO, **nothing).table("exchanges").num_rows == 0


def test_what_is_no_time(captures: Path) -> None:
    for text, said in (("27:00", "no time of day"), ("soon", "is not a time")):
        with pytest.raises(UsageError, match=said):
            kdissect.open(captures / DEMO, start=text)
    with pytest.raises(UsageError, match="the day is not known here"):
        kdissect.open(io.BytesIO(gzip.compress((captures / DEMO).read_bytes())), start="02:36")


def test_a_span_that_ends_before_it_begins_is_refused(captures: Path) -> None:
    with pytest.raises(UsageError, match=r"nothing lies between 10:00 and 09:00.*nearest to the first packet"):
        kdissect.open(captures / DEMO, start="10:00", end="09:00")
    with pytest.raises(UsageError, match="the end comes before the start"):
        find_span("2026-11-21T10:30:01", "2026-11-21T10:30:00")
    first, last = find_span("2026-11-21T10:30:00", "2026-11-21T10:30:00")
    assert first == last
    assert find_span(None, "2026-11-21T10:30:00") == (None, last)

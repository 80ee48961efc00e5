"""Points in time as people give them: a moment with its day, or a time of day of the capture's."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, time, timedelta

from kdissect.capture import CaptureSet, open_captures
from kdissect.capture.pcap import PACKET
from kdissect.problems import UsageError

_TIME_OF_DAY = r"\d{1,2}:\d{2}(:\d{2}([.,]\d{1,9})?)?(Z|[+-]\d{2}:?\d{2})?"
HALF_A_DAY = timedelta(hours=12)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FIRST, LAST = -(1 << 63), (1 << 63) - 1
"""The range of packets' times in ns since the epoch, the years 1677 to 2262."""


def nanoseconds(moment: str | datetime | None, captures: Sequence[CaptureSet] = ()) -> int | None:
    """A point in time as ns since the epoch, FIRST or LAST for one before or after all that packets can have. A time of
    day is the one nearest to the first packet of the first capture.

    Raises UsageError for a text that is none, and for a time of day of what can be read only once.
    """
    if moment is None:
        return None
    if isinstance(moment, str):
        moment = _of_day(moment, captures) if re.fullmatch(_TIME_OF_DAY, moment.strip()) else _moment(moment)
    if not isinstance(moment, datetime):
        raise UsageError(_no_time(moment))
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    since = moment - EPOCH
    return max(FIRST, min(LAST, (since.days * 86_400 + since.seconds) * 1_000_000_000 + since.microseconds * 1000))


def find_span(
    start: str | datetime | None, end: str | datetime | None, captures: Sequence[CaptureSet] = ()
) -> tuple[int | None, int | None]:
    """Both of a span's ends as `nanoseconds` has them. Raises UsageError, also where it ends before it begins."""
    first, last = nanoseconds(start, captures), nanoseconds(end, captures)
    if first is not None and last is not None and last < first:
        of_day = any(isinstance(one, str) and re.fullmatch(_TIME_OF_DAY, one.strip()) for one in (start, end))
        days = " (a time of day is the one nearest to the first packet)" if of_day else ""
        raise UsageError(f"nothing lies between {start} and {end}: the end comes before the start{days}")
    return first, last


def _moment(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(_no_time(text)) from None


def _no_time(moment: object) -> str:
    return f"{moment!r} is not a time; say it like 10:30:00 or 2026-11-21T10:30:00"


def _of_day(text: str, captures: Sequence[CaptureSet]) -> datetime:
    hour, _, rest = text.strip().partition(":")
    try:
        wanted = time.fromisoformat(f"{int(hour):02d}:{rest}")
    except ValueError:
        raise UsageError(f"{text!r} is no time of day, such as 10:30 or 10:30:00.250") from None
    first = _first_packet(captures)
    if first is None:
        raise UsageError(f"{text!r} is a time of day, and the day is not known here; say it like 2026-11-21T10:30:00")
    zone = wanted.tzinfo or UTC
    near = datetime.combine(first.astimezone(zone).date(), wanted.replace(tzinfo=None), zone)
    if near - first > HALF_A_DAY:
        return near - timedelta(days=1)
    return near + timedelta(days=1) if first - near > HALF_A_DAY else near


def _first_packet(captures: Sequence[CaptureSet]) -> datetime | None:
    """When the first packet of the first capture was captured; None for a pipe, and for one without packets. The file
    is opened apart, so that what is said of it is said once."""
    member = captures[0].members[0] if captures else None
    if member is None or not member.regular or member.path is None:
        return None
    for capture in open_captures([member.path]):
        for block in capture.blocks(capture.window()):
            if len(block.packets):
                return EPOCH + timedelta(microseconds=int(block.packets[:, PACKET.time].min()) // 1000)
    return None

"""Thresholds of findings that people set, with the reasons for their defaults.

Other thresholds are constants next to the finders that use them.
"""

from typing import NamedTuple


class Limits(NamedTuple):
    """From when on something is worth a sentence; milliseconds."""

    slow_ms: float = 1000.0
    """A request that took longer is slow. People feel a second, healthy brokers answer in milliseconds, and busy but
    healthy ones reach some hundred; clients give up after 30 s (request.timeout.ms). `--slow` sets it."""
    lost_ms: float = 10_000.0
    """Time that slow requests of one API took at a broker before it is more than information: single ones of a second
    or two happen on every busy host."""
    lost_share: float = 0.2
    """Or this share of the time that the client, or the broker, is in the capture, and `felt_ms` at least."""
    felt_ms: float = 2000.0

    def is_felt(self, lost_ms: float, wall_ms: float) -> bool:
        """Whether so much time of a subject that was there for `wall_ms` is more than information."""
        return lost_ms >= self.lost_ms or (lost_ms >= self.felt_ms and lost_ms >= self.lost_share * wall_ms > 0)


LIMITS = Limits()


def limits(slow: float | None) -> Limits:
    """Thresholds with that for slow requests, in seconds; None: the default."""
    return LIMITS if slow is None else Limits(slow_ms=slow * 1000)

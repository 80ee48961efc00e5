"""The time in a capture that is being read.

Rules.

- The clock shows the time of the latest packet that was read, never less.
- Where packets come as they are captured, the clock goes on between them as the host's does: silence takes time too.
  It waits for packets that may still be on their way, because they come as late as that.
- A replay says itself how far it is, in the capture's own time; a finished capture that is read at once stands still
  between packets.
"""

from __future__ import annotations

import time
from collections.abc import Callable


class CaptureClock:
    """The time of a capture, ns since the epoch.

    `follows`: packets come as they are captured, `late_s` seconds later at most. `replayed_ns`: how far a replay is, 0
    without one. `host_clock` stands in for the system's steady clock (seconds) in tests.
    """

    def __init__(
        self, follows: bool, replayed_ns: Callable[[], int] = lambda: 0,
        host_clock: Callable[[], float] = time.monotonic, late_s: float = 0.0,
    ) -> None:  # fmt: skip
        self.host_clock = host_clock
        self.late_s = late_s
        self.latest_ns = 0
        """Time of the latest packet that was read; 0 before any."""
        self._follows = follows
        self._replayed_ns = replayed_ns
        self._read_at = 0.0

    def read_packet(self, time_ns: int) -> None:
        """A packet of this time was read."""
        if time_ns > self.latest_ns:
            self.latest_ns, self._read_at = time_ns, self.host_clock()

    @property
    def now_ns(self) -> int:
        """The capture's time; 0 before any packet."""
        if not self.latest_ns:
            return 0
        passed = max(0, int((self.host_clock() - self._read_at - self.late_s) * 1e9)) if self._follows else 0
        return max(self.latest_ns + passed, self._replayed_ns())

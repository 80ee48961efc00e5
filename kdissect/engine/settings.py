"""The settings of all passes over captures that are opened together: how to read them, and what to leave out."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from kdissect.engine.bounds.room import Limited
from kdissect.engine.common import Common
from kdissect.engine.timings import Timings
from kdissect.tables import recording
from kdissect.tables.selection import Selection

Progress = Callable[[int, int | None], None]
"""Called with bytes read and bytes in all (None where unknown)."""
FEW_PACKETS = 60_000
"""Packets that are worked on together where memory matters more than time: of small ones two thirds of what a block of
input has. Much fewer take more time: 40,000 a tenth."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Settings:
    """The limits of a pass (times in ns since the epoch, both inclusive), and how to read."""

    after: int | None = None
    before: int | None = None
    progress: Progress | None = None
    keylog: bytes | None = None
    """TLS keys, as an SSLKEYLOGFILE has them."""
    reading: recording.Reading = field(default_factory=recording.Reading)
    """What is computed of record batches."""
    selection: Selection | None = None
    """Which clients, brokers and topics are wanted; None: all."""
    follow: Callable[[], bool] | None = None
    """Go on reading where the input ends until this says so; None: the end is the end."""
    timings: Timings = field(default_factory=Timings)
    """Where time goes, of all runs with these settings."""
    jobs: int = 1
    """Threads to work with; 0: as many as there are cores, where a capture is large enough to gain by them."""
    slow: float | None = None
    """Seconds from which on findings call a request slow; None: their own default."""
    memory: int | None = None
    """Bytes of memory that a run for whole tables may take; None: as much as they need."""
    block_packets: int | None = None
    """Most packets that are worked on together; None: as many as a block of input has."""
    limited: Limited = field(default_factory=Limited)
    """What was left out for want of it, by all runs with these settings."""
    hosts: Mapping[str, str] = field(default_factory=dict)
    """Names of addresses that the user gave."""
    common: Common = field(default_factory=Common)
    """What several captures have in common."""
    dated: bool = False
    """Whether rows have ANSWERED_KEY besides TIME_KEY: rows of a response without its request, too, have a time."""

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that are wanted; none named: all."""
        return () if self.selection is None else self.selection.topics

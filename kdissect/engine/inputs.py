"""The input of a run: packets of captures in blocks, and their TCP segments.

A run asks for nothing else of its input than what stands here: so it reads files, and what was gathered from several
machines, alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import numpy as np
import numpy.typing as npt

from kdissect.capture import Block, CaptureProblem, CaptureSet, FileReport, Member
from kdissect.capture.window import Window
from kdissect.kafka.exchanges.completion import Completion
from kdissect.kafka.exchanges.frame_bytes import Reader
from kdissect.kafka.streams.dissector import Harvest
from kdissect.net.scanner import Scanner

Words = npt.NDArray[np.int64]


class Packets(Reader, Protocol):
    """The packets of one capture; see `CaptureSet`, which reads them from files."""

    @property
    def name(self) -> str:
        """The text of the `capture` column."""

    @property
    def members(self) -> list[Member]:
        """Its files."""

    @property
    def files(self) -> list[str]:
        """Their names."""

    @property
    def reports(self) -> list[FileReport]:
        """Facts about the files; none where somebody else has them."""

    @property
    def problems(self) -> list[CaptureProblem]:
        """The problems of the files."""

    @property
    def secrets(self) -> list[bytes]:
        """TLS key logs that were met."""

    @property
    def steps(self) -> list[int]:
        """Packets that follow a step back of the clock."""

    @property
    def size(self) -> int | None:
        """Bytes in all, None where that is not known."""

    def window(self) -> Window:
        """A ring that suits it."""

    def blocks(self, window: Window, follow: bool = ..., stopped: Callable[[], bool] = ...) -> Iterator[Block]:
        """The packets through a window, once."""

    def read_apart(self) -> None:
        """Another thread fills the window from now on."""

    def end_reading(self) -> None:
        """Nothing more is read through the window."""


class Segments(Protocol):
    """The TCP segments of blocks; see `Scanner`, which finds them in packets."""

    @property
    def flows(self) -> Words:
        """Flows by number, int64[n, 5]; valid until the next scan."""

    @property
    def kinds(self) -> Words:
        """Packets by kind, int64[files, kinds]."""

    def scan(self, block: Block) -> Words:
        """The segment rows of a block, valid until the next scan."""

    def alternate(self) -> None:
        """From here on rows are valid until the scan after the next."""

    def forget(self, flows: Words) -> None:
        """The numbers of these flows may be given to others."""

    def end_input(self) -> None:
        """No more packets come."""

    def finish(self) -> None:
        """Moves the counts into the capture's problems."""


class Inputs(Protocol):
    """The captures of a run, and who else looks at what it finds."""

    def readings(self) -> Iterator[tuple[int, Packets, Segments]]:
        """The captures to read, with their numbers, one after the other."""

    def completing(self, harvest: Harvest, completion: Completion) -> AbstractContextManager[None]:
        """Entered when the connections of a harvest are in the books; left when its exchanges are complete. Exchanges
        that are taken out of the harvest on entering are left alone."""


class CaptureFiles:
    """Captures that are read from their files; `after`, `before`: only packets from then to then, in ns."""

    def __init__(self, captures: Sequence[CaptureSet], after: int | None = None, before: int | None = None) -> None:
        self.captures = captures
        self._between = after, before

    def readings(self) -> Iterator[tuple[int, Packets, Segments]]:
        """See Inputs."""
        for number, capture in enumerate(self.captures):
            yield number, capture, Scanner(capture, *self._between)

    def completing(self, harvest: Harvest, completion: Completion) -> AbstractContextManager[None]:
        """No other thread looks."""
        return nullcontext()

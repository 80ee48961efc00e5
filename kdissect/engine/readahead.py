"""Blocks of a capture, read and scanned: one after the other, or each while the one before it is worked on."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from queue import SimpleQueue
from threading import Semaphore, Thread
from types import TracebackType
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from kdissect.capture.pcap import u32
from kdissect.capture.window import Window
from kdissect.engine.inputs import Packets, Segments
from kdissect.engine.timings import CAPTURE, NET, REST, WAITING, Timings

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

    from kdissect.engine.run import Settings

Words = npt.NDArray[np.int64]
T = TypeVar("T")

LARGE = 32 << 20
"""Bytes of a capture that several threads are worth their trouble for: four blocks."""
MOST = 8
"""Threads at most unless more are asked for: each works on some 30 MB, and only one at a time runs Python between the
kernels."""


def jobs(settings: Settings, capture: Packets) -> int:
    """Threads that a capture is worked on with."""
    if settings.follow is not None or not all(member.regular for member in capture.members):
        return 1  # what comes is shown at once, and nobody waits for a thread that waits for a pipe
    if settings.jobs:
        return settings.jobs
    size = capture.size
    return min(cores(), MOST) if size is None or size >= LARGE else 1


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _thread() -> ThreadPoolExecutor:
    from concurrent.futures import ThreadPoolExecutor

    return ThreadPoolExecutor(1, "kdissect-reading")


class Reading:
    """The segment rows of each block of a capture. `ahead`: with a thread that reads one block further, from when
    `go_on` is called; then the scanner may be used only before that. `clock`: of whoever asks for the blocks."""

    def __init__(
        self, capture: Packets, window: Window, scanner: Segments, settings: Settings, ahead: bool = False,
        clock: Timings | None = None,
    ) -> None:  # fmt: skip
        u32(np.zeros(4, np.uint8), 0, False)  # the first kernel of a process starts numba up: not the reading's time
        self._capture = capture
        self._scanner = scanner
        self._whole = clock or settings.timings
        self._clock = Timings() if ahead else self._whole
        follow = settings.follow
        window.packets = settings.block_packets
        self._blocks = capture.blocks(window) if follow is None else capture.blocks(window, True, follow)
        self._thread = _thread() if ahead else None
        if ahead:
            scanner.alternate()
        self._next: Future[Words | None] | None = None
        self.last = False
        """Nothing comes behind the block that was given last. To be asked before `go_on`."""

    def __enter__(self) -> Reading:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._thread is not None:
            self._thread.shutdown(wait=True, cancel_futures=True)
            self._whole.merge(self._clock)

    def __iter__(self) -> Iterator[Words]:
        segments = self._read()
        if self._thread is not None:
            self._capture.read_apart()
        while segments is not None:
            yield segments
            if self._next is None:
                segments = self._read()
            else:
                self._whole.at(WAITING)
                segments = self._next.result()
                self._whole.at(REST)

    def go_on(self) -> None:
        """The next block may be read into the window."""
        if self._thread is not None:
            self._next = self._thread.submit(self._read)

    def _read(self) -> Words | None:
        clock = self._clock
        clock.at(CAPTURE)
        block = next(self._blocks, None)
        if block is None:
            clock.at(REST)
            return None
        clock.at(NET)
        segments = self._scanner.scan(block)
        self.last = block.last
        clock.packets += len(block.packets)
        clock.at(REST)
        return segments


class Ahead(Generic[T]):
    """What an iterator gives, made by a thread of its own: of so many things the first ones are begun before whoever
    takes them is done with any, each further one when another was done with. Raises what the iterator raised."""

    def __init__(self, made: Generator[T, None, None], begun: int, name: str) -> None:
        self._made = made
        self._turns = Semaphore(begun)
        self._ready: SimpleQueue[T | BaseException | None] = SimpleQueue()
        self._stopped = False
        self._thread = Thread(target=self._work, name=name)

    def __enter__(self) -> Ahead[T]:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped = True
        self._turns.release()
        self._thread.join()

    def __iter__(self) -> Iterator[T]:
        while (found := self._ready.get()) is not None:
            if isinstance(found, BaseException):
                raise found
            yield found
            found = None  # while nothing is held, the next thing is waited for
            self._turns.release()

    def _work(self) -> None:
        try:
            while self._turns.acquire() and not self._stopped:
                self._ready.put(next(self._made, None))
        except BaseException as error:
            self._ready.put(error)
        finally:
            self._made.close()

"""Blocks of a capture, read and scanned: one after the other, or each while the one before it is worked on."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from threading import Lock, Semaphore, Thread
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from kdissect.capture.pcap import u32
from kdissect.capture.window import Window
from kdissect.engine.inputs import Packets, Segments
from kdissect.engine.timings import CAPTURE, NET, REST, TCP, WAITING, Timings

if TYPE_CHECKING:
    from concurrent.futures import Future

    from kdissect.engine.settings import Settings

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


class Once(Generic[T]):
    """A task that the first of several threads does, and no other thread after that."""

    def __init__(self, work: Callable[[], T]) -> None:
        from concurrent.futures import Future

        self._work = work
        self._begun = Lock()
        self._done: Future[T] = Future()

    def do(self) -> None:
        """Do it, unless it was started. Raises no error of it but what is meant for this thread: an interrupt."""
        if not self._begun.acquire(blocking=False):
            return
        work = self._let_go()
        try:
            self._done.set_result(work())
        except BaseException as error:
            self._done.set_exception(error)
            if not isinstance(error, Exception):
                raise

    def result(self) -> T:
        """The result of it. Raises what it raised."""
        self.do()
        return self._done.result()

    def give_up(self) -> None:
        """No thread is to start it any more. Returns when no thread is at it."""
        if self._begun.acquire(blocking=False):
            self._let_go()
        else:
            self._done.exception()

    def _let_go(self) -> Callable[[], T]:
        """The work, which is kept no longer: the thread that does it may keep this, and their memory would wait for a
        collection."""
        work = self._work
        del self._work
        return work


Offer = Callable[[Once[Any]], object]
"""Told of something that may be done by another thread, at once or never."""


class Reading:
    """The segment rows of each block of a capture. `offer`: to whom each block is offered, one block ahead, from when
    `go_on` is called; then the scanner may be used only before that. No thread has to take it: a caller that asks for a
    block that is not being read yet reads it. `clock`: of the caller that asks for the blocks. `order`: puts the rows
    of a block in the orders in which they are used, as part of reading it."""

    def __init__(
        self, capture: Packets, window: Window, scanner: Segments, settings: Settings, offer: Offer | None = None,
        clock: Timings | None = None, order: Callable[[Words], list[Words]] | None = None,
    ) -> None:  # fmt: skip
        u32(np.zeros(4, np.uint8), 0, False)  # the first kernel of a process starts numba up: not the reading's time
        self._capture = capture
        self._scanner = scanner
        self._whole = clock or settings.timings
        self._clock = self._whole if offer is None else Timings()
        follow = settings.follow
        window.packets = settings.block_packets
        self._blocks = capture.blocks(window) if follow is None else capture.blocks(window, True, follow)
        self._offer = offer
        if offer is not None:
            scanner.alternate()
        self._next: Once[Words | None] | None = None
        self.last = False
        """Nothing comes behind the block that was given last. To be asked before `go_on`."""
        self._order = order
        self.orders: list[Words] = []
        """What `order` made of the block that was given last. To be asked before `go_on`."""

    def __enter__(self) -> Reading:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._next is not None:
            self._next.give_up()
        self._capture.end_reading()
        if self._offer is not None:
            self._whole.merge(self._clock)

    def __iter__(self) -> Iterator[Words]:
        segments = self._read()
        if self._offer is not None:
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
        if self._offer is not None:
            self._next = Once(self._read)
            self._offer(self._next)

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
        if self._order is not None:
            clock.at(TCP)
            self.orders = self._order(segments)
        clock.at(REST)
        return segments


@contextmanager
def read(capture: Packets, window: Window, scanner: Segments, settings: Settings) -> Iterator[Reading]:
    """A reading that the caller does alone, or, with more than one thread, next to one of its own."""
    if jobs(settings, capture) == 1:
        with Reading(capture, window, scanner, settings) as reading:
            yield reading
        return
    from concurrent.futures import ThreadPoolExecutor

    with (
        ThreadPoolExecutor(1, "kdissect-reading") as thread,
        Reading(capture, window, scanner, settings, lambda once: thread.submit(once.do)) as reading,
    ):
        yield reading


class Ahead(Generic[T]):
    """The results of an iterator, made by a thread of its own. Of so many things the first ones are started before the
    caller is done with any, each further one when another was done with. Raises what the iterator raised. A thread that
    waits for the other one does the thing that the iterator offered last."""

    def __init__(self, made: Callable[[Offer], Generator[T, None, None]], begun: int, name: str) -> None:
        self._turns = Semaphore(begun)
        self._ready: SimpleQueue[T | Once[Any] | BaseException | None] = SimpleQueue()
        self._offered: Once[Any] | None = None
        self._made = made(self._offer)
        self._stopped = False
        self._thread = Thread(target=self._work, name=name, daemon=True)  # an end of Python without a word is no error

    def __enter__(self) -> Ahead[T]:
        self._thread.start()
        atexit.register(self._stop)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        atexit.unregister(self._stop)
        self._stop()

    def __iter__(self) -> Iterator[T]:
        while (found := self._ready.get()) is not None:
            if isinstance(found, Once):
                found.do()
                continue
            if isinstance(found, BaseException):
                raise found
            yield found
            found = None  # while nothing is held, the next thing is waited for
            self._turns.release()

    def _stop(self) -> None:
        self._stopped = True
        self._turns.release()
        self._thread.join()

    def _offer(self, once: Once[Any]) -> None:
        self._offered = once
        self._ready.put(once)

    def _turn(self) -> bool:
        """Whether to go on, when the next thing may be started."""
        if not self._turns.acquire(blocking=False):
            if self._offered is not None:
                self._offered.do()
            self._turns.acquire()
        return not self._stopped

    def _work(self) -> None:
        try:
            while self._turn():
                self._ready.put(next(self._made, None))
        except BaseException as error:
            self._ready.put(error)
        finally:
            self._made.close()

"""Captures worked on by several threads: one or more follow connections, the calling thread makes rows of them.

Connections know nothing of each other below the tables, so each strand follows its share with its own books, which are
put together at the end. The first strand's thread hands out the blocks and goes on as soon as one is done. The calling
thread makes rows of the blocks before, one after the other, and works on these. The next block is read by the first of
these two threads that has time. Rows that need the bytes of messages, as record sets do, are made by the strands, for
the bytes are gone by then. A block's rows are the same for any number of strands, only their order differs; the caller
puts them in order to show them.
"""

from collections import deque
from collections.abc import Generator, Iterator, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kdissect.capture.window import View
from kdissect.engine.inputs import Packets, Segments
from kdissect.engine.passes.one_pass import Pass
from kdissect.engine.passes.watermark import NOTHING_YET
from kdissect.engine.pipeline import RunPart, Strand
from kdissect.engine.readahead import Ahead, Offer, Reading, jobs
from kdissect.engine.timings import REST, WAITING, Timings
from kdissect.kafka.streams.dissector import by_flow
from kdissect.kafka.streams.ledger import Ledger
from kdissect.net.segment import SEGMENT
from kdissect.tables.builder import Walked

Words = npt.NDArray[np.int64]

BEGUN = 3
"""Blocks that strands begin before rows of the first one were worked on. With two, a strand that is ahead reads the
next block for want of a turn, its turn comes meanwhile, and whoever asks soon waits for both of these: holds of small
frames take 7 % longer by the clock. A third one takes no memory to speak of."""


class SharedPass(Pass):
    """A pass whose large captures several threads work on, where the settings have them."""

    def rows(self) -> Iterator[RunPart]:
        """See Pass."""
        if self._settings.jobs == 1:
            yield from super().rows()
            return
        self.begin()
        for number, capture, scanner in self.readings():
            count = strands(self, capture)
            if count:
                yield from _Shared(self, number, capture, scanner, count).rows()
            else:
                yield from self.block_by_block(self.completed_of(number, capture, scanner))


def strands(run: Pass, capture: Packets) -> int:
    """Strands that a capture is shared out among: one for each thread but the one that asks for rows.

    There are 0 where rows are handed on as they are made, where some connections decide what is wanted of others, and
    where TLS is decrypted (resumed sessions go by what others agreed on). There are also 0 where the capture cannot be
    read again, since such bytes share one memory. All of that is done by the thread that asks.
    """
    settings = run.books.settings
    if run.books.flowing or settings.selection or settings.keylog is not None or not capture.rereadable:
        return 0
    return jobs(settings, capture) - 1


class _Followed(NamedTuple):
    """A block whose connections were followed."""

    parts: list[list[Walked]]
    """What each strand found."""
    mark: int
    """The watermark behind it."""
    end: int | None
    """How far the input was read; None: behind the last block, what was unfinished there."""


class _Shared:
    """One capture, shared out."""

    def __init__(self, run: Pass, number: int, capture: Packets, scanner: Segments, count: int) -> None:
        self.run = run
        self.number = number
        self.capture = capture
        self.scanner = scanner
        self.window = capture.window()
        self.window.widens = run.widens
        self.count = count
        self.shared = False
        """Whether any block was."""
        self.strands = [self._strand(view) for view in self.window.views(count)]
        self.columns: deque[Mapping[str, list[str]]] = deque([run.books.builder.columns] * BEGUN)
        """For each block that may be begun, the tables and columns that whoever asks still reads."""

    def _strand(self, view: View) -> Strand:
        books = self.run.books
        ledger = Ledger(books.ledger.connections.captures, books.ledger.connections.files)
        ledger.begin(self.number)
        builder, walker = (books.builder.apart(ledger.connections) for _ in range(2))
        return Strand(self.capture, view, books.wishes, ledger, builder, None, Timings(), walker)

    def rows(self) -> Iterator[RunPart]:
        """Unresolved rows, block by block."""
        run, builder = self.run, self.run.books.builder
        run.books.ledger.begin(self.number)
        with Ahead(self._followed, BEGUN, "kdissect-strand") as ahead:
            followed = iter(ahead)
            while (block := self._next(followed)) is not None:
                if block.end is not None:
                    run.passed(block.mark)
                yield from run.handed_on(self._rows(block))
                if block.end is not None:
                    run.progress(block.end)
                for strand in self.strands:
                    strand.builder.agree(builder)
                self.columns.append(builder.columns)
        while self.strands:
            strand = self.strands.pop(0)
            ledger, made, walker, clock = strand.completion.ledger, strand.builder, strand.walker, strand.clock
            del strand  # its heap goes before its books are copied
            run.books.absorb(ledger, made, walker)
            run.books.settings.timings.merge(clock)
        run.capture_ended(self.number, self.capture, self.scanner, self.window.end)

    def _next(self, followed: Iterator[_Followed]) -> _Followed | None:
        clock = self.run.books.settings.timings
        clock.at(WAITING)
        block = next(followed, None)
        clock.at(REST)
        return block

    def _rows(self, block: _Followed) -> list[RunPart]:
        clock = self.run.books.settings.timings
        number = self.run.block - (block.end is not None)
        found = [
            part
            for strand, parts in zip(self.strands, block.parts, strict=True)
            for part in strand.make_rows(parts, clock)
        ]
        block.parts.clear()  # what rows were made of goes
        for part in found:
            part.block = number
        for strand in self.strands:
            self.run.books.builder.learn_names(strand.builder)
        return found

    # ---- what the first strand's thread does

    def _followed(self, offer: Offer) -> Generator[_Followed, None, None]:
        """Every block, when its connections were followed."""
        from concurrent.futures import ThreadPoolExecutor

        run, scanner, strands = self.run, self.scanner, self.strands
        clock = strands[0].clock
        with (
            Reading(self.capture, self.window, scanner, run.books.settings, offer, clock, self._orders) as reading,
            ThreadPoolExecutor(max(1, self.count - 1), "kdissect-strand") as threads,
        ):
            segments: Words | None
            block: _Followed | None = None
            for segments in reading:
                for strand in strands:
                    strand.make_way()
                scanner.forget(np.concatenate([strand.dissector.free_flows(segments) for strand in strands]))
                flows, orders = scanner.flows, reading.orders
                reading.go_on()
                if block is not None:
                    yield block  # what was offered to be read is needed sooner than rows
                    block = None
                self._narrow()
                others = [
                    threads.submit(strand.feed, segments, flows, order)
                    for strand, order in zip(strands[1:], orders[1:], strict=True)
                ]
                parts = [strands[0].feed(segments, flows, orders[0]), *(other.result() for other in others)]
                self._learn()
                mark = run.mark(self.number, segments, [strand.dissector for strand in strands])
                block = _Followed(parts, mark, self.window.end)
                del parts
            if block is not None:
                yield block
            block = segments = None
            scanner.end_input()
            self._narrow()
            others = [threads.submit(strand.finish, scanner.flows) for strand in strands[1:]]
            parts = [strands[0].finish(scanner.flows), *(other.result() for other in others)]
            self._learn()
        yield _Followed(parts, NOTHING_YET, None)

    def _orders(self, segments: Words) -> list[Words]:
        """For each strand the places of its segments, flow by flow."""
        if self.capture.secrets and not self.shared:
            self.count = 1
        self.shared = True
        order = by_flow(segments, len(self.scanner.flows))
        if len(self.strands) == 1:
            return [order]
        of = (segments[order, SEGMENT.flow] >> 1) % self.count
        return [order[of == number] for number in range(len(self.strands))]

    def _narrow(self) -> None:
        """Find of record sets what was wanted when rows of the block before the last were worked on."""
        columns = self.columns.popleft()
        for strand in self.strands:
            strand.walker.keep(columns, self.run.books.builder)

    def _learn(self) -> None:
        """The results about record sets are made known to all strands."""
        for strand in self.strands:
            self.run.books.builder.learn_sent(strand.walker)

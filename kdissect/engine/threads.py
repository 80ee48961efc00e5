"""The connections of a capture shared out among strands, each worked on by a thread of its own.

Connections know nothing of each other below the tables, so each strand follows its share with its own books and makes
their rows; what it learned of the whole capture (brokers, topics, offers) is put together after every block, its books
at the end. While the strands work on a block, the next one is read, and whoever asked for the rows works on those of
the block before; who has little to do with them makes them too, where that takes no bytes of the messages. A block's
rows are the same whatever the number of strands, only their order differs; whoever shows rows puts them in order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from kdissect.capture.window import View
from kdissect.engine.inputs import Packets, Segments
from kdissect.engine.pipeline import Rows, Strand
from kdissect.engine.readahead import Reading, jobs
from kdissect.engine.timings import REST, WAITING, Timings
from kdissect.kafka.exchanges.completed import Completed
from kdissect.kafka.streams.dissector import by_flow
from kdissect.kafka.streams.ledger import Ledger
from kdissect.net.segment import FLOW

if TYPE_CHECKING:
    from concurrent.futures import Future

    from kdissect.engine.run import Run

Words = npt.NDArray[np.int64]


def rows(run: Run) -> Iterator[Rows]:
    """As `Run.rows`."""
    run.begin()
    for number, capture, scanner in run.readings():
        count = strands(run, capture)
        if count:
            yield from _Shared(run, number, capture, scanner, count).rows()
        else:
            yield from run.block_by_block(run.completed_of(number, capture, scanner))


def strands(run: Run, capture: Packets) -> int:
    """Strands that a capture is shared out among: one for each thread but the one that reads ahead. One strand gains
    too, for whoever asked for the rows works beside it.

    None where rows are handed on as they are made, where what some connections tell decides what is wanted of others,
    where TLS is decrypted (resumed sessions go by what others agreed on), and where memory for bytes that cannot be
    read again is shared: all of that is done by the thread that asks.
    """
    settings = run.books.settings
    if run.books.flowing or settings.selection or settings.keylog is not None or not capture.rereadable:
        return 0
    return jobs(settings, capture) - 1


class _Shared:
    """One capture, shared out."""

    def __init__(self, run: Run, number: int, capture: Packets, scanner: Segments, count: int) -> None:
        self.run = run
        self.number = number
        self.capture = capture
        self.scanner = scanner
        self.window = capture.window()
        self.count = count
        self.shared = False
        """Whether any block was."""
        self.asker_makes_rows = not run.busy and not run.books.builder.needs_bytes
        """Whether rows are made by whoever asks for them, who has time for it, beside the strands."""
        self.strands = [self._strand(view) for view in self.window.views(count)]

    def _strand(self, view: View) -> Strand:
        books = self.run.books
        ledger = Ledger(books.ledger.connections.captures, books.ledger.connections.files)
        ledger.begin(self.number)
        builder = books.builder.apart(ledger.connections)
        strand = Strand(self.capture, view, books.wishes, ledger, builder, None, Timings())
        strand.makes_rows = not self.asker_makes_rows
        return strand

    def rows(self) -> Iterator[Rows]:
        """Unresolved rows, block by block."""
        from concurrent.futures import ThreadPoolExecutor

        run, scanner, strands = self.run, self.scanner, self.strands
        run.books.ledger.begin(self.number)
        made: list[list[Completed] | list[Rows]] = [[] for _ in strands]
        with (
            Reading(self.capture, self.window, scanner, run.books.settings, ahead=True) as reading,
            ThreadPoolExecutor(self.count, "kdissect-strand") as threads,
        ):
            segments: Words | None
            for segments in reading:
                if self.capture.secrets and not self.shared:
                    self.count = 1
                self.shared = True
                for strand in strands:
                    strand.make_way()
                scanner.forget(np.concatenate([strand.dissector.free_flows(segments) for strand in strands]))
                flows = scanner.flows
                reading.go_on()
                work = [
                    threads.submit(strand.feed, segments, flows, order)
                    for strand, order in zip(strands, self._orders(segments, len(flows)), strict=True)
                ]
                yield from run.handed_on(self._rows(made, run.block - 1))
                made = self._awaited(work)
                self._block_ended(segments)
            segments = None
            scanner.rest()
            work = [threads.submit(strand.finish, scanner.flows) for strand in strands]
            yield from run.handed_on(self._rows(made, run.block - 1))
            yield from run.handed_on(self._rows(self._awaited(work), run.block))
        while self.strands:
            strand = self.strands.pop(0)
            ledger, builder, clock = strand.completion.ledger, strand.builder, strand.clock
            del strand  # its heap goes before its books are copied
            run.books.absorb(ledger, builder)
            run.books.settings.timings.merge(clock)
        run.capture_ended(self.number, self.capture, scanner, self.window.end)

    def _orders(self, segments: Words, flows: int) -> list[Words]:
        """For each strand the places of its segments, flow by flow."""
        order = by_flow(segments, flows)
        of = (segments[order, FLOW] >> 1) % self.count
        return [order[of == number] for number in range(len(self.strands))]

    def _awaited(self, work: Sequence[Future[list[Completed] | list[Rows]]]) -> list[list[Completed] | list[Rows]]:
        """What each strand gave of a block."""
        clock = self.run.books.settings.timings
        clock.at(WAITING)
        made = [future.result() for future in work]
        clock.at(REST)
        if self.asker_makes_rows:
            return made
        self._learn()
        return made

    def _rows(self, made: list[list[Completed] | list[Rows]], block: int) -> list[Rows]:
        """The rows of a block of this number."""
        clock = self.run.books.settings.timings
        found = [part for strand, parts in zip(self.strands, made, strict=True) for part in strand.made(parts, clock)]
        made.clear()  # what rows were made of goes
        for part in found:
            part.block = block
        if self.asker_makes_rows:
            self._learn()
        return found

    def _learn(self) -> None:
        for strand in self.strands:
            self.run.books.builder.learn(strand.builder)

    def _block_ended(self, segments: Words) -> None:
        self.run.block_ended(self.number, segments, [strand.dissector for strand in self.strands])
        for strand in self.strands:
            strand.builder.agree(self.run.books.builder)
        self.run.progress(self.window.end)

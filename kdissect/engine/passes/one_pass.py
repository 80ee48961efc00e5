"""One pass over captures: blocks through the layers, rows of tables out.

A `Pass` reads its captures one after the other. `rows()` yields, block by block, unresolved rows of the tables asked
for and the messages asked for. Then the books' `finish()` gives the tables that are made at the end, and their
`builder` resolves the others. All state that is carried from block to block lives in the layers' own objects
(`Scanner`, `Dissector`, `Ledger`, `TableBuilder`). Their memory is bounded by the unfinished part, not by the part that
was read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from kdissect.capture.window import Window
from kdissect.engine.books import Books
from kdissect.engine.inputs import CaptureFiles, Inputs, Packets, Segments
from kdissect.engine.passes.measures import measures
from kdissect.engine.passes.watermark import NOTHING_YET, watermark
from kdissect.engine.pipeline import RunPart, Strand, completed, enter
from kdissect.engine.readahead import read
from kdissect.engine.timings import KAFKA, REST, TCP
from kdissect.kafka.completed import Completed
from kdissect.kafka.exchanges.completion import Completion
from kdissect.kafka.streams.dissector import Dissector, Harvest


class Pass:
    """One pass over what `inputs` have, into `books`; by default over the files of the books' captures."""

    def __init__(self, books: Books, inputs: Inputs | None = None) -> None:
        self.books = books
        settings = self._settings = books.settings
        self.inputs = inputs or CaptureFiles(books.captures, settings.after, settings.before)
        self.marks = False
        """Whether somebody asks for the watermark."""
        self.together = False
        """Whether rows of a capture's last block may come with those that its end finishes: few rows cost as much as
        many."""
        self.watermark = NOTHING_YET
        """Microseconds since the epoch: no row of a part that has not been yielded yet has its request's first or last
        byte, or its response's first one, before it."""
        self.block = 0
        """Number of the block that is worked on."""
        self._latest = self._mark = self._next_mark = NOTHING_YET
        self._done = 0
        self._total: int | None = None
        if settings.progress is not None:  # which opens every file
            sizes = [c.size for c in books.captures]
            self._total = None if None in sizes else sum(s for s in sizes if s is not None)

    @property
    def widens(self) -> bool:
        """Whether blocks of large packets may be larger: not where rows of records are made, because these blocks hold
        as many records as any other."""
        return self._settings.block_packets is None and "records" not in self.books.builder.columns

    def completed(self) -> Iterator[Completed]:
        """Finished exchanges, part by part."""
        yield from (done for done in self.exchanges() if done is not None)

    def exchanges(self) -> Iterator[Completed | None]:
        """Finished exchanges, part by part; None where a block ends."""
        self.begin()
        for number, capture, scanner in self.readings():
            yield from self.completed_of(number, capture, scanner)

    def readings(self) -> Iterator[tuple[int, Packets, Segments]]:
        """The readings of the inputs."""
        yield from self.inputs.readings()

    def begin(self) -> None:
        """Prepares the pass before the first block."""

    def completed_of(self, number: int, capture: Packets, scanner: Segments) -> Iterator[Completed | None]:
        """Finished exchanges of one capture; None where a block ends."""
        books, settings, clock = self.books, self._settings, self._settings.timings
        books.ledger.begin(number)
        window = capture.window() if settings.follow is None else Window()
        window.widens = self.widens
        (view,) = window.views(1)
        strand = Strand(capture, view, books.wishes, books.ledger, books.builder, settings.keylog, clock)
        dissector, completion = strand.dissector, strand.completion
        with read(capture, window, scanner, settings) as reading:
            for segments in reading:
                if books.builder.selected is not None:
                    segments = books.builder.selected.packets(segments, scanner.flows, number)
                if len(capture.members) > len(books.ledger.connections.files[number]):  # it is followed
                    books.ledger.connections.files[number] = capture.files
                strand.make_way()
                scanner.forget(dissector.free_flows(segments))
                flows, last = scanner.flows, self.together and reading.last
                reading.go_on()
                yield from self.complete_harvests(dissector.feed(segments, len(flows), last=last), flows, completion)
                if last:
                    self.progress(window.end)
                    continue
                self.block_ended(number, segments, [dissector])
                self.progress(window.end)
                yield None
            clock.at(TCP)
            scanner.end_input()
            yield from self.complete_harvests(dissector.finish(), scanner.flows, completion)
        clock.at(REST)
        self.capture_ended(number, capture, scanner, window.end)

    def complete_harvests(
        self, harvests: Iterator[Harvest], flows: npt.NDArray[np.int64], completion: Completion
    ) -> Iterator[Completed]:
        """The exchanges of harvests; each harvest is made when the one before it was used."""
        clock = self._settings.timings
        clock.at(TCP)
        for harvest in harvests:
            clock.at(KAFKA)
            enter(harvest, flows, completion)
            with self.inputs.completing(harvest, completion):
                yield from completed(harvest, completion, clock)
            clock.at(TCP)

    def block_ended(self, number: int, segments: npt.NDArray[np.int64], dissectors: Sequence[Dissector]) -> None:
        """All rows of a block were taken from the strands that these dissectors belong to."""
        self.passed(self.mark(number, segments, dissectors))

    def mark(self, number: int, segments: npt.NDArray[np.int64], dissectors: Sequence[Dissector]) -> int:
        """The watermark behind a block that was fed to these dissectors, before they are fed the next one."""
        # Another capture may begin earlier.
        if self.marks and len(segments) and number == len(self.books.captures) - 1:
            self._latest = max(self._latest, *(dissector.now for dissector in dissectors))
            self._next_mark = min(watermark(dissector, self._latest) for dissector in dissectors)
        return self._next_mark

    def passed(self, mark: int) -> None:
        """All exchanges of a block were taken; the watermark behind its rows."""
        self.block += 1
        self.books.builder.block_ended()
        self._mark = mark

    def capture_ended(self, number: int, capture: Packets, scanner: Segments, end: int) -> None:
        """Everything of a capture, of `end` bytes, is in the books."""
        self.block += 1
        books = self.books
        books.builder.fed = None  # it refers to the window
        self._settings.timings.bytes += end
        self._done += end
        scanner.finish()
        books.capture_problems(number, capture)
        books.quality += measures(number, capture, scanner, books.ledger, books.builder.selected)

    def rows(self) -> Iterator[RunPart]:
        """Unresolved rows, part by part; those of a block together, once it is done."""
        yield from self.block_by_block(self.exchanges())

    def block_by_block(self, exchanges: Iterator[Completed | None]) -> Iterator[RunPart]:
        """Unresolved rows of finished exchanges (None: a block ends), and a part without any before the next block is
        read. So the caller can let go of rows before there are others."""
        held: list[RunPart] = []
        for done in exchanges:
            if done is None:
                yield from self.handed_on(held)
                held = []
                yield RunPart({}, block=self.block)
                continue
            for part in self.books.rows_of(done):
                part.block = self.block
                if self.books.flowing:
                    yield part
                else:
                    held.append(part)
        yield from self.handed_on(held)

    def handed_on(self, rows: Iterable[RunPart]) -> Iterator[RunPart]:
        """The rows of a block; then the watermark goes up to what holds behind it."""
        yield from rows
        self.watermark = self._mark

    def progress(self, end: int) -> None:
        """Report to the caller how far the capture was read."""
        if self._settings.progress is not None:
            self._settings.progress(self._done + end, self._total)

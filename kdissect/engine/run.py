"""One pass over captures: blocks through the layers, rows of tables out.

A `Run` reads its captures one after the other. `rows()` yields, block by block, unresolved rows of the tables asked
for and the messages asked for; then the books' `finish()` gives the tables that are made at the end, and their
`builder` resolves the others. All state that is carried from block to block lives in the layers' own objects
(`Scanner`, `Dissector`, `Ledger`, `TableBuilder`), whose memory is bounded by what is unfinished, not by what was read.

With more than one thread (`Settings.jobs`) the next block is read and scanned while one is worked on, and the
connections of a large capture are shared out among several strands (`kdissect.engine.threads`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from kdissect.capture import CaptureSet
from kdissect.capture.window import Window
from kdissect.engine import threads
from kdissect.engine.books import Books
from kdissect.engine.bounds.room import Limited
from kdissect.engine.inputs import CaptureFiles, Inputs, Packets, Segments
from kdissect.engine.measures import measures
from kdissect.engine.pipeline import Rows, Strand, completed, enter
from kdissect.engine.readahead import read
from kdissect.engine.sights.common import Common
from kdissect.engine.timings import KAFKA, REST, TCP, Timings
from kdissect.engine.watermark import NOTHING_YET, watermark
from kdissect.kafka.exchanges.completed import Completed
from kdissect.kafka.exchanges.completion import Completion
from kdissect.kafka.streams.dissector import Dissector, Harvest
from kdissect.problems import UsageError
from kdissect.tables import recording
from kdissect.tables.identity import SEPARATOR
from kdissect.tables.selection import Address, Selected, Selection, read_address

Progress = Callable[[int, int | None], None]
"""Called with bytes read and bytes in all (None where unknown)."""
FEW_PACKETS = 60_000
"""Packets that are worked on together where memory matters more than time: of small ones two thirds of what a block of
input has. Much fewer take more time: 40,000 a tenth."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What to leave out (times in ns since the epoch, both inclusive), and what to read with."""

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

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that are wanted; none named: all."""
        return () if self.selection is None else self.selection.topics


class Run:
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
        """Whether blocks of large packets may be larger: not where rows of records are made, of which they hold as many
        as any other."""
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
        """What the inputs have, each packet that two interfaces told once."""
        for number, capture, segments in self.inputs.readings():
            yield number, capture, self._settings.common.told(segments)

    def begin(self) -> None:
        """What comes before the first block."""
        self.books.builder.sights = self._settings.common.sights(self.books.captures, self._settings)
        if self._settings.selection:
            self.books.builder.selected = selected(self.books.captures, self._settings)

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
                yield from self.taken(dissector.feed(segments, len(flows), last=last), flows, completion)
                if last:
                    self.progress(window.end)
                    continue
                self.block_ended(number, segments, [dissector])
                self.progress(window.end)
                yield None
            clock.at(TCP)
            self.inputs.ending(dissector, scanner)
            scanner.rest()
            yield from self.taken(dissector.finish(), scanner.flows, completion)
        clock.at(REST)
        self.capture_ended(number, capture, scanner, window.end)

    def taken(
        self, harvests: Iterator[Harvest], flows: npt.NDArray[np.int64], completion: Completion
    ) -> Iterator[Completed]:
        """The exchanges of harvests, each of which is made when the one before it was used."""
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

    def rows(self) -> Iterator[Rows]:
        """Unresolved rows, part by part; those of a block together, once it is done."""
        if self._settings.jobs != 1:
            yield from threads.rows(self)
        else:
            yield from self.block_by_block(self.exchanges())

    def block_by_block(self, exchanges: Iterator[Completed | None]) -> Iterator[Rows]:
        """Unresolved rows of finished exchanges (None: a block ends), and a part without any before the next block is
        read: whoever works on rows can let go of them before there are others."""
        held: list[Rows] = []
        for done in exchanges:
            if done is None:
                yield from self.handed_on(held)
                held = []
                yield Rows({}, block=self.block)
                continue
            for part in self.books.rows_of(done):
                part.block = self.block
                if self.books.flowing:
                    yield part
                else:
                    held.append(part)
        yield from self.handed_on(held)

    def handed_on(self, held: Iterable[Rows]) -> Iterator[Rows]:
        """The rows of a block; then the watermark goes up to what holds behind it."""
        yield from held
        self.watermark = self._mark

    def progress(self, end: int) -> None:
        """Tell whoever asked how far the capture was read."""
        if self._settings.progress is not None:
            self._settings.progress(self._done + end, self._total)


def selected(captures: Sequence[CaptureSet], settings: Settings) -> Selected:
    """The selection of `settings` ready to work on these captures.

    Node ids become addresses, and ids of topics names, in a pass of their own, for messages tell them at any time. A
    pipe is read only once: there ids of topics are known when a message has told them. Raises UsageError for a node id
    that no message tells, and for node ids in a pipe.
    """
    wish = settings.selection or Selection()
    ends = [wish.broker_addresses] * len(captures) if wish.broker_addresses or wish.nodes else None
    if not wish.nodes and not wish.topics:
        return Selected(wish, ends)
    if not all(member.regular for capture in captures for member in capture.members):
        if wish.nodes:
            raise UsageError("a pipe is read once, and where a node is stands anywhere in it: say --broker as ip:port")
        return Selected(wish, ends)
    columns = {"exchanges": ["broker"]} if wish.nodes else {}
    survey = Books(captures, {**columns, **({"topics": ["topic"]} if wish.topics else {})}, _all(settings))
    for _ in Run(survey).rows():
        pass
    if wish.nodes:
        ends = _nodes(captures, survey.builder.brokers.names(), wish)
    return Selected(wish, ends, survey.builder.topics.names() if wish.topics else {})


def _all(settings: Settings) -> Settings:
    return replace(settings, selection=None, follow=None, reading=recording.Reading())


def _nodes(captures: Sequence[CaptureSet], names: Mapping[str, str], wish: Selection) -> list[tuple[Address, ...]]:
    """By capture, the addresses of the brokers wanted, those known by node id among them."""
    ends = [list(wish.broker_addresses) for _ in captures]
    number = {capture.name: i for i, capture in enumerate(captures)}
    for unresolved, name in names.items():
        capture, place = unresolved.split(SEPARATOR)
        address = read_address(place)
        if name in wish.nodes and address is not None:
            ends[number[capture]].append(address)
    missing = sorted(set(wish.nodes) - set(names.values()))
    if missing:
        known = sorted((name for name in set(names.values()) if name.isdigit()), key=int)
        told = f"those known are {', '.join(known)}" if known else "none is known; say it as ip:port"
        raise UsageError(f"no connection of this capture goes to a broker known as node {missing[0]}: {told}")
    return [tuple(addresses) for addresses in ends]

"""One pass over captures: blocks through the layers, rows of tables out.

A `Run` reads its captures one after the other. `rows()` yields, block by block, unresolved rows of the tables asked
for and the messages asked for; then `finish()` gives the tables that are made at the end, and `builder` resolves the
others. All state that is carried from block to block lives in the layers' own objects (`Scanner`, `Dissector`,
`Ledger`, `TableBuilder`), whose memory is bounded by what is unfinished, not by what was read.

With more than one thread (`Settings.jobs`) the next block is read and scanned while one is worked on, and the
connections of a large capture are shared out among several strands (`kdissect.engine.threads`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kdissect.capture import CaptureSet
from kdissect.capture.window import Window
from kdissect.engine import threads
from kdissect.engine.measures import measures
from kdissect.engine.pipeline import Rows, Strand, Wishes, completed, rows
from kdissect.engine.readahead import Reading, jobs
from kdissect.engine.timings import REST, TABLES, TCP, Timings
from kdissect.engine.watermark import NOTHING_YET, watermark
from kdissect.kafka.exchanges import payloads
from kdissect.kafka.exchanges.completed import Completed, Quality
from kdissect.kafka.exchanges.completion import Completion
from kdissect.kafka.exchanges.messages import Decoder
from kdissect.kafka.streams.dissector import Dissector, Harvest
from kdissect.kafka.streams.ledger import Ledger
from kdissect.net.scanner import Scanner
from kdissect.net.segment import TIME
from kdissect.problems import UsageError
from kdissect.tables import recording
from kdissect.tables.builder import TableBuilder
from kdissect.tables.identity import SEPARATOR
from kdissect.tables.selection import Address, Selected, Selection, read_address, topic_paths
from kdissect.tcp import layout as t

Progress = Callable[[int, int | None], None]
"""Called with bytes read and bytes in all (None where unknown)."""


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


class Run:
    """One pass over `captures` for `tables` (name -> columns, None: all) and maybe one type of `messages`.

    `beside`: paths of further messages that are wanted, for whoever works on the rows.
    """

    def __init__(
        self,
        captures: Sequence[CaptureSet],
        tables: Mapping[str, Sequence[str] | None],
        settings: Settings,
        messages: tuple[int, int] | None = None,
        beside: Mapping[tuple[int, int], frozenset[str]] | None = None,
    ) -> None:
        self.captures = captures
        self.settings = settings
        self.ledger = Ledger([c.name for c in captures], [c.files for c in captures])
        self.builder = TableBuilder(self.ledger.connections, tables, settings.reading)
        wanted: dict[tuple[int, int], frozenset[str] | None] = dict(self.builder.wanted)
        for message, paths in (beside or {}).items():
            wanted[message] = (wanted.get(message) or frozenset()) | paths
        if settings.selection is not None and settings.selection.topics:
            for message, named in topic_paths().items():
                wanted[message] = (wanted.get(message) or frozenset()) | named
        if messages is not None:
            for kind in (messages, *payloads.asked_too(messages)):
                wanted[kind] = None
        self.decoder = Decoder(wanted, checked=True)  # the paths are the tables' own
        self.quality: list[Quality] = []
        self.marks = False
        """Whether somebody asks for the watermark."""
        self.watermark = NOTHING_YET
        """Microseconds since the epoch: no row of a part that has not been yielded yet has its request's last byte, or
        its response's first one, before it."""
        self.wishes = Wishes(self.decoder, messages, beside or {})
        self.block = 0
        """Number of the block that is worked on."""
        self._latest = self._mark = NOTHING_YET
        self._done = 0
        self._total: int | None = None
        if settings.progress is not None:  # which opens every file
            sizes = [c.size for c in captures]
            self._total = None if None in sizes else sum(s for s in sizes if s is not None)

    def readings(self) -> Iterator[tuple[int, CaptureSet, Scanner]]:
        """The captures to read, with their numbers, each with a scanner of its own."""
        for number, capture in enumerate(self.captures):
            yield number, capture, Scanner(capture, self.settings.after, self.settings.before)

    def completed(self) -> Iterator[Completed]:
        """Finished exchanges, part by part."""
        self.begin()
        for number, capture, scanner in self.readings():
            yield from self.completed_of(number, capture, scanner)

    def begin(self) -> None:
        """What comes before the first block."""
        if self.settings.selection:
            self.builder.selected = selected(self.captures, self.settings)

    def completed_of(self, number: int, capture: CaptureSet, scanner: Scanner) -> Iterator[Completed]:
        """Finished exchanges of one capture."""
        clock = self.settings.timings
        self.ledger.begin(number)
        window = capture.window() if self.settings.follow is None else Window()
        (view,) = window.views(1)
        strand = Strand(capture, view, self.wishes, self.ledger, self.builder, self.settings.keylog, clock)
        dissector, completion = strand.dissector, strand.completion
        with Reading(capture, window, scanner, self.settings, jobs(self.settings, capture) > 1) as reading:
            for segments in reading:
                if self.builder.selected is not None:
                    segments = self.builder.selected.packets(segments, scanner.flows, number)
                if len(capture.members) > len(self.ledger.connections.files[number]):  # it is followed
                    self.ledger.connections.files[number] = capture.files
                strand.make_way()
                scanner.forget(dissector.free_flows(segments))
                flows = scanner.flows
                reading.go_on()
                yield from self.taken(dissector.feed(segments, len(flows)), flows, completion)
                self.block_ended(number, segments, [dissector])
                self.progress(window.end)
            clock.at(TCP)
            self.about_to_finish(dissector, scanner)
            scanner.rest()
            yield from self.taken(dissector.finish(), scanner.flows, completion)
        clock.at(REST)
        self.capture_ended(number, capture, scanner, window.end)

    def taken(
        self, harvests: Iterator[Harvest], flows: npt.NDArray[np.int64], completion: Completion
    ) -> Iterator[Completed]:
        """The exchanges of harvests, each of which is made when the one before it was used."""
        clock = self.settings.timings
        clock.at(TCP)
        for harvest in harvests:
            yield from self._complete(harvest, flows, completion)
            clock.at(TCP)

    def _complete(self, harvest: Harvest, flows: npt.NDArray[np.int64], completion: Completion) -> Iterator[Completed]:
        yield from completed(harvest, flows, completion, self.settings.timings)

    def about_to_finish(self, dissector: Dissector, scanner: Scanner) -> None:
        """All packets of a capture were fed and what they completed was taken; what is unfinished is finished next."""

    def block_ended(self, number: int, segments: npt.NDArray[np.int64], dissectors: Sequence[Dissector]) -> None:
        """All rows of a block were taken from the strands that these dissectors belong to."""
        self.block += 1
        self.builder.block_ended()
        # Another capture may begin earlier.
        if self.marks and len(segments) and number == len(self.captures) - 1:
            self._latest = max(self._latest, int(segments[:, TIME].max()))
            self._mark = min(watermark(dissector, self._latest) for dissector in dissectors)

    def absorb(self, ledger: Ledger, builder: TableBuilder) -> None:
        """Take over the books of a strand that has followed connections of the capture read now to their ends."""
        self.builder.absorb(builder, self.ledger.absorb(ledger))

    def capture_ended(self, number: int, capture: CaptureSet, scanner: Scanner, end: int) -> None:
        """Everything of a capture, of `end` bytes, is in the books."""
        self.block += 1
        self.builder.fed = None  # it refers to the window
        self.settings.timings.bytes += end
        self._done += end
        scanner.finish()
        self.capture_problems(number, capture)
        self.quality += measures(number, capture, scanner, self.ledger, self.builder.selected)

    def rows(self) -> Iterator[Rows]:
        """Unresolved rows, part by part; those of a block together, once it is done."""
        if self.settings.jobs != 1:
            yield from threads.rows(self)
        else:
            yield from self.block_by_block(self.completed())

    def block_by_block(self, exchanges: Iterator[Completed]) -> Iterator[Rows]:
        """Unresolved rows of finished exchanges."""
        held: list[Rows] = []
        block = self.block
        for done in exchanges:
            if self.block != block:
                yield from self.handed_on(held)
                held, block = [], self.block
            for part in rows(done, self.wishes, self.ledger, self.builder, self.settings.timings):
                part.block = block
                if self.flowing:
                    yield part
                else:
                    held.append(part)
        yield from self.handed_on(held)

    def handed_on(self, held: Iterable[Rows]) -> Iterator[Rows]:
        """The rows of a block; then the watermark goes up to what holds behind it."""
        yield from held
        self.watermark = self._mark

    @property
    def flowing(self) -> bool:
        """Whether rows are handed on at once: those of one block alone may be more than memory takes, or somebody
        watches."""
        return self.wishes.type is not None or "records" in self.builder.columns or self.settings.follow is not None

    def finish(self) -> dict[str, pa.Table]:
        """The tables made at the end, whole and resolved."""
        self.settings.timings.at(TABLES)
        made = self.builder.finish(self.ledger.problems(), self.quality)
        self.settings.timings.at(REST)
        return made

    def pieces_at_the_end(self) -> Iterator[tuple[str, pa.Table]]:
        """What `finish` gives, not resolved yet, in pieces: for whoever does not need a table whole."""
        self.settings.timings.at(TABLES)
        for name, table in self.builder.pieces_at_the_end(self.ledger.problems(), self.quality):
            self.settings.timings.at(REST)
            yield name, table
            self.settings.timings.at(TABLES)
        self.settings.timings.at(REST)

    def progress(self, end: int) -> None:
        """Tell whoever asked how far the capture was read."""
        if self.settings.progress is not None:
            self.settings.progress(self._done + end, self._total)

    def capture_problems(self, number: int, capture: CaptureSet) -> None:
        """Problem rows of the capture itself into the books."""
        self.ledger.begin(number)
        for problem in capture.problems:
            packet = (problem.file << 40) | problem.packet
            self.ledger.note(
                problem.kind, problem.where, problem.detail, at=problem.at or t.NULL, packet=packet,
                size=problem.bytes or -1,
            )  # fmt: skip


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
    survey = Run(captures, {**columns, **({"topics": ["topic"]} if wish.topics else {})}, _all(settings))
    for _ in survey.rows():
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

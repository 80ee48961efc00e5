"""One pass over captures: blocks through the layers, rows of tables out.

A `Run` reads its captures one after the other. `rows()` yields, block by block, unresolved rows of the tables asked
for and the messages asked for; then `finish()` gives the tables that are made at the end, and `builder` resolves the
others. All state that is carried from block to block lives in the layers' own objects (`Scanner`, `Dissector`,
`Ledger`, `TableBuilder`), whose memory is bounded by what is unfinished, not by what was read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kdissect import _ahead
from kdissect.capture import CaptureSet
from kdissect.capture.window import Window
from kdissect.engine.quality import measures
from kdissect.engine.timings import CAPTURE, KAFKA, NET, REST, TABLES, TCP, Timings
from kdissect.engine.watermark import NOTHING_YET, watermark
from kdissect.kafka import payloads
from kdissect.kafka.completed import Completed, Quality
from kdissect.kafka.completion import Completion
from kdissect.kafka.dissector import Dissector, Harvest
from kdissect.kafka.fit import Programs
from kdissect.kafka.ledger import Ledger
from kdissect.kafka.messages import Decoder
from kdissect.kafka.unsealing import Unsealer
from kdissect.net.scanner import Scanner
from kdissect.net.segment import TIME
from kdissect.problems import UsageError
from kdissect.tables.builder import TableBuilder
from kdissect.tables.identity import SEPARATOR, exchange_ids
from kdissect.tables.recording import Reading
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
    reading: Reading = field(default_factory=Reading)
    """What is computed of record batches."""
    selection: Selection | None = None
    """Which clients, brokers and topics are wanted; None: all."""
    follow: Callable[[], bool] | None = None
    """Go on reading where the input ends until this says so; None: the end is the end."""
    timings: Timings = field(default_factory=Timings)
    """Where time goes, of all runs with these settings."""


@dataclass(slots=True)
class Rows:
    """What one part of a run made: unresolved table rows by name, and messages of the type asked for."""

    tables: dict[str, pa.RecordBatch]
    messages: pa.RecordBatch | None = None
    beside: dict[tuple[int, int], pa.RecordBatch] = field(default_factory=dict)


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
        self.type = messages
        wanted: dict[tuple[int, int], frozenset[str] | None] = dict(self.builder.wanted)
        self.beside = dict(beside or {})
        for message, paths in self.beside.items():
            wanted[message] = (wanted.get(message) or frozenset()) | paths
        if settings.selection is not None and settings.selection.topics:
            for message, named in topic_paths().items():
                wanted[message] = (wanted.get(message) or frozenset()) | named
        if messages is not None:
            for kind in (messages, *payloads.asked_too(messages)):
                wanted[kind] = None
        self.decoder = Decoder(wanted)
        self.quality: list[Quality] = []
        self.marks = False
        """Whether somebody asks for the watermark."""
        self.watermark = NOTHING_YET
        """Microseconds since the epoch: no row of a part that has not been yielded yet has its request's last byte, or
        its response's first one, before it."""
        self._done = 0
        sizes = [c.size for c in captures]
        self._total = None if None in sizes else sum(s for s in sizes if s is not None)

    def readings(self) -> Iterator[tuple[int, CaptureSet, Scanner]]:
        """The captures to read, with their numbers, each with a scanner of its own."""
        for number, capture in enumerate(self.captures):
            yield number, capture, Scanner(capture, self.settings.after, self.settings.before)

    def completed(self) -> Iterator[Completed]:
        """Finished exchanges, part by part."""
        _ahead.begin()
        clock = self.settings.timings
        if self.settings.selection:
            self.builder.selected = selected(self.captures, self.settings)
        programs = Programs(self.decoder.table, self.decoder.flexible, self.decoder.skim())
        for number, capture, scanner in self.readings():
            self.ledger.begin(number)
            follow = self.settings.follow
            window = capture.window() if follow is None else Window()
            unsealer = Unsealer(self.ledger, self.settings.keylog, capture.secrets)
            dissector = Dissector(window, programs, unsealer)
            completion = Completion(dissector, self.decoder, self.ledger, capture)
            rereadable = capture.rereadable
            latest = NOTHING_YET
            clock.at(CAPTURE)
            for block in capture.blocks(window) if follow is None else capture.blocks(window, True, follow):
                clock.at(NET)
                segments = scanner.scan(block)
                clock.at(TCP)
                clock.packets += len(block.packets)
                if self.builder.selected is not None:
                    segments = self.builder.selected.packets(segments, scanner.flows, number)
                for harvest in dissector.feed(segments, len(scanner.flows)):
                    yield from self._complete(harvest, dissector, scanner, completion)
                    clock.at(TCP)
                # Another capture may begin earlier.
                if self.marks and len(segments) and number == len(self.captures) - 1:
                    latest = max(latest, int(segments[:, TIME].max()))
                    self.watermark = watermark(dissector, latest)
                scanner.forget(dissector.free_flows())
                dissector.before_next_block(rereadable)
                self._progress(window.end)
                clock.at(CAPTURE)
            clock.at(TCP)
            for harvest in dissector.finish():
                yield from self._complete(harvest, dissector, scanner, completion)
                clock.at(TCP)
            clock.at(REST)
            clock.bytes += window.end
            self._done += window.end
            scanner.finish()
            self.capture_problems(number, capture)
            self.quality += measures(number, capture, scanner, self.ledger, self.builder.selected)

    def _complete(
        self, harvest: Harvest, dissector: Dissector, scanner: Scanner, completion: Completion
    ) -> Iterator[Completed]:
        clock = self.settings.timings
        clock.at(KAFKA)
        self._enter(harvest, dissector, scanner)
        for done in completion.complete(harvest):
            clock.frames += int((done.request_bytes >= 0).sum() + (done.response_bytes >= 0).sum())
            yield done
            clock.at(KAFKA)

    def _enter(self, harvest: Harvest, dissector: Dissector, scanner: Scanner) -> None:
        """Connections and problems into the books."""
        self.ledger.enter(np.concatenate([dissector.news(), harvest.ended]), scanner.flows)
        self.ledger.close(harvest.ended)
        self.ledger.stream_problems(harvest.problems)
        if dissector.unsealer is not None:
            dissector.unsealer.ended(harvest.ended)

    def rows(self) -> Iterator[Rows]:
        """Unresolved rows, part by part."""
        clock = self.settings.timings
        for done in self.completed():
            if len(done):
                clock.at(TABLES)
                rows = self.builder.feed(done)
                wanted = done if self.builder.fed is None else self.builder.fed
                part = Rows(rows, self._messages(wanted), self._beside(wanted))
                clock.at(REST)
                yield part
                clock.at(TABLES)
                for name, batch in self.builder.recorded():
                    clock.at(REST)
                    yield Rows({name: batch})
                    clock.at(TABLES)

    def _messages(self, done: Completed) -> pa.RecordBatch | None:
        """The messages asked for, with what identifies them."""
        if self.type is None:
            return None
        message = done.messages.get(self.type)
        if message is None or not len(message.rows):
            return None
        requests = payloads.forwarded(done.messages, message.rows) if payloads.asked_too(self.type) else None
        return identified(done, message.rows, payloads.unfolded(message.batch, self.type, requests), self.ledger)

    def _beside(self, done: Completed) -> dict[tuple[int, int], pa.RecordBatch]:
        """The further messages that are wanted."""
        found = {kind: done.messages[kind] for kind in self.beside if kind in done.messages}
        return {
            kind: identified(done, message.rows, message.batch, self.ledger)
            for kind, message in found.items()
            if len(message.rows)
        }

    def finish(self) -> dict[str, pa.Table]:
        """The tables made at the end, whole and resolved."""
        self.settings.timings.at(TABLES)
        made = self.builder.finish(self.ledger.problems(), self.quality)
        self.settings.timings.at(REST)
        return made

    def _progress(self, end: int) -> None:
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
    return replace(settings, selection=None, follow=None, reading=Reading())


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


def identified(done: Completed, rows: npt.NDArray[np.int64], batch: pa.RecordBatch, ledger: Ledger) -> pa.RecordBatch:
    """Messages of some exchanges with exchange id, API version and correlation id in front of their fields."""
    ids = exchange_ids(ledger.connections.id[done.conn[rows]], done.n[rows], done.is_orphan[rows])
    head = {
        "exchange_id": ids,
        "api_version": pa.array(done.api_version[rows], pa.int16()),
        "correlation_id": pa.array(done.correlation_id[rows], pa.int32()),
    }
    names = batch.schema.names
    return pa.RecordBatch.from_arrays([*head.values(), *(batch.column(name) for name in names)], names=[*head, *names])

"""One capture read without an end: blocks through the layers as they come, rows to a listener that keeps figures.

Rules.

- Rows are handed on several times a second (`Source.tick_s`), and when many have come. Rows that the analysis holds
  back for requests that wait are released after `PATIENCE_NS` of the capture's time. A broker that does not answer must
  not hold back the rows of all others. Only a finished capture that is read at once waits as its tables do.
- State that grows with the input is dropped every `SHED_NS`: the books keep only connections that are open, and
  problems are counted and forgotten (`Books`). Ids, ordinals and sessions go on as if nothing had happened.
- A connection without any packet for `IDLE_NS` of the capture's time is let go, but of a finished capture that is read
  at once. Brokers close such ones after ten minutes, clients after nine (connections.max.idle.ms), and ends are not
  always captured. Its later packets count as a connection met in its middle.
- TLS is left alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kdissect.analysis.stage import NO_WATERMARK
from kdissect.capture import CaptureSet
from kdissect.capture.block import Block
from kdissect.capture.pcap import PACKET
from kdissect.capture.window import Window
from kdissect.engine.analysed_run import AnalysedRun, Pieces
from kdissect.engine.passes.watermark import watermark
from kdissect.engine.settings import Settings
from kdissect.kafka.exchanges.completion import Completion
from kdissect.kafka.streams.dissector import Dissector, Harvest
from kdissect.kafka.streams.ledger import Ledger
from kdissect.live.brokers.broker_links import NUMBER, Refusals, links_of, read_links
from kdissect.live.brokers.listings import read_listings
from kdissect.live.capture_clock import CaptureClock
from kdissect.live.moment import Links, Listener, Listing, Moment, Shed, Waiting
from kdissect.live.waiting import waiting
from kdissect.net.scanner import Scanner
from kdissect.schema import index
from kdissect.tables.builder import TableBuilder
from kdissect.tables.declaration import SCHEMAS
from kdissect.tables.declaration.readers import LIVE
from kdissect.tables.identity import SEPARATOR, endpoint

PATIENCE_NS = 1_000_000_000
MANY_ROWS = 1 << 14
"""Rows after which they are handed on at once."""
SHED_NS = 10_000_000_000
IDLE_NS = 900_000_000_000
SHED_ROWS = 1 << 16
"""Connections or problems after which the books are shed at once: some ten MB."""
SLOT_BYTES = 4 << 20
"""Of the window: half of what finished captures are read with, for nothing comes in blocks that large."""
Words = npt.NDArray[np.int64]


class Source(Protocol):
    """The input of `Watch`."""

    capture: CaptureSet
    clock: CaptureClock
    patient: bool
    """Wait for requests without an answer as the tables do: the capture is finished, and read at once."""
    tick_s: float
    """How often rows are handed on, seconds of the host's clock."""

    def blocks(self, window: Window) -> Iterable[Block]:
        """Its blocks through the window; idle ones while nothing comes."""


class Sampling(Protocol):
    """The choice of connections to analyse."""

    left: Words
    """Flows among the rows of the last call of `packets` that are not."""

    def packets(self, rows: Words, flows: Words) -> Words:
        """The segment rows of connections that are."""

    def forgotten(self, before: int) -> Words:
        """Flows that are not, and that had no packet since that time (ns); their numbers may be given to others."""

    def drop_broken(self, exchanges: pa.RecordBatch) -> pa.RecordBatch:
        """Exchanges of connections that are no longer, without those that only ended because of that."""


class Watch:
    """Reads a source and reports to `listener`. `read`: tables and columns that are read besides those of LIVE."""

    def __init__(
        self, source: Source, listener: Listener, sampling: Sampling | None = None,
        read: Mapping[str, Sequence[str]] | None = None,
    ) -> None:  # fmt: skip
        self._source = source
        self._capture = source.capture
        self._clock = source.clock
        self._listener = listener
        self._patient = source.patient
        self._sampling = sampling
        tables = {name: list(columns) for name, columns in LIVE.tables.items()}
        for name, columns in (read or {}).items():
            tables[name] = list(dict.fromkeys([*tables.get(name, ()), *columns]))
        self._analysed = AnalysedRun([source.capture], tables, Settings())
        self._analysed.stage.be_prompt()
        self._books = self._analysed.books
        self._window = Window(slot_bytes=SLOT_BYTES)
        (self._view,) = self._window.views(1)
        decoder = self._books.decoder
        self._dissector = Dissector(self._view, decoder.programs())
        self._scanner = Scanner(source.capture)
        self._completion = self._completes()
        self._pieces = Pieces(self._books)
        self._refusals = Refusals()
        self._listings: list[Listing] = []
        """Metadata answers that came since the last tick."""
        self._latest = self._shed_at = 0
        self._connections = 0
        """Connections met, but for those that the books have."""

    def run(self) -> None:
        """Read to the end; to be called once."""
        listener, capture, scanner, dissector = self._listener, self._capture, self._scanner, self._dissector
        clock, tick_s = self._clock, self._source.tick_s
        slot = -1
        due = clock.host_clock() + tick_s
        self._books.ledger.begin(0)
        for block in self._source.blocks(self._window):
            if not block.idle:
                files = self._books.ledger.connections.files
                if len(capture.members) > len(files[0]):
                    files[0] = capture.files
                segments = scanner.scan(block)
                seen = len(segments)
                if self._sampling is not None:
                    segments = self._sampling.packets(segments, scanner.flows)
                self._refusals.read_segments(segments, scanner.flows)
                self._view.refresh()
                if self._window.current != slot:
                    slot = self._window.current
                    dissector.before_next_block(capture.rereadable)
                self._view.make_way()
                scanner.forget(dissector.free_flows(segments))
                flows = scanner.flows
                if self._sampling is not None and len(self._sampling.left):
                    self._add_harvests(dissector.let_go(self._sampling.left), flows, given_up=True)
                self._add_harvests(dissector.feed(segments, len(flows)), flows)
                self._books.builder.block_ended()
                if len(block.packets):
                    clock.read_packet(int(block.packets[:, PACKET.time].max()))
                    self._latest = clock.latest_ns
                listener.packets(block, len(segments), seen)
            if clock.host_clock() >= due or self._pieces.count >= MANY_ROWS:
                due = clock.host_clock() + tick_s
                self._tick(block.idle)
        waits, links = self._waiting(), self._links(self._broker_names())
        self._add_harvests(dissector.finish(), scanner.flows)
        self._analysed.run.capture_ended(0, capture, scanner, self._window.end)
        self._end(waits, links)

    def _marks(self) -> tuple[int, int]:
        """Up to which instants (microseconds) rows are released, and are complete."""
        complete = watermark(self._dissector, self._latest)
        released = complete if self._patient else max(complete, (self._clock.now_ns - PATIENCE_NS) // 1000)
        return released, complete

    def _add_harvests(self, harvests: Iterator[Harvest], flows: Words, given_up: bool = False) -> None:
        """Rows of harvests; `given_up`: of connections that went on without us, whose open ends are our doing."""
        taken = self._analysed.run.complete_harvests(
            _quiet(harvests) if given_up else harvests, flows, self._completion
        )
        for done in taken:
            self._listings += read_listings(done, self._books.builder)
            for part in self._books.rows_of(done):
                if given_up and self._sampling is not None and "exchanges" in part.tables:
                    part.tables["exchanges"] = self._sampling.drop_broken(part.tables["exchanges"])
                self._pieces.keep_part(part)

    def _let_go(self) -> None:
        """Connections that are idle for too long."""
        before = self._latest - IDLE_NS
        self._add_harvests(self._dissector.forget(before), self._scanner.flows)
        if self._sampling is not None:
            self._scanner.forget(self._sampling.forgotten(before))

    def _tick(self, quiet: bool) -> None:
        """Report everything that came since the last tick; shed the books now and then."""
        now_ns, (mark, complete) = self._clock.now_ns, self._marks()
        if not self._patient and self._latest - self._shed_at > SHED_NS:
            self._let_go()
        names = self._broker_names()
        renamed = self._analysed.rename_brokers(names)
        answered, messages = self._finished_rows()
        settled = self._analysed.worked(answered, messages, mark, complete=complete)
        waits, links, sessions = self._waiting(), self._links(names), self._analysed.stage.sessions_alive()
        ledger = self._books.ledger
        connections = self._connections + len(ledger.connections) - self._kept
        many = ledger.problem_rows > SHED_ROWS or len(ledger.connections) > SHED_ROWS + 2 * self._kept
        shed = connection_rows = None
        if many or self._latest - self._shed_at > SHED_NS:
            self._shed_at = self._latest
            shed = self._shed()
            connection_rows = self._connection_rows()
            self._renew_books()
        self._listener.tick(
            Moment(
                now_ns,
                answered,
                [settled],
                waits,
                sessions,
                connections,
                links,
                names,
                renamed,
                self._new_listings(),
                shed,
                quiet,
                self._connection_rows if connection_rows is None else lambda: connection_rows,
            )
        )

    def _end(self, waits: Sequence[Waiting], links: Mapping[str, Links]) -> None:
        """Report what is left when everything was read. `waits`, `links`: as they were before all was finished."""
        names = self._broker_names()
        renamed = self._analysed.rename_brokers(names)
        answered, messages = self._finished_rows()
        stage = self._analysed.stage
        settled = [self._analysed.worked(answered, messages, NO_WATERMARK), stage.show_rows(stage.finish())]
        connections = self._connections + len(self._books.ledger.connections) - self._kept
        self._listener.tick(
            Moment(
                self._latest,
                answered,
                settled,
                waits,
                {},
                connections,
                links,
                names,
                renamed,
                self._new_listings(),
                self._shed(),
                read_connections=self._connection_rows,
            )
        )

    def _finished_rows(self) -> tuple[dict[str, pa.Table], dict[tuple[int, int], pa.Table]]:
        """Tables and messages of the exchanges that finished since the last call."""
        pieces, self._pieces = self._pieces, Pieces(self._books)
        return pieces.tables(), pieces.messages()

    def _new_listings(self) -> list[Listing]:
        """Metadata answers that came since the last call."""
        listings, self._listings = self._listings, []
        return listings

    _kept = 0
    """Connections that the books began with."""

    def _waiting(self) -> list[Waiting]:
        rows = waiting(self._dissector)
        if not len(rows):
            return []
        builder = self._books.builder
        brokers = builder.directory.broker(rows["connection"])
        table = builder.resolve("exchanges", pa.table({"broker": brokers}))
        names = self._dissector.client_ids
        apis = index.load().apis
        return [
            Waiting(
                broker, names[client] if client >= 0 else None, apis[api].name if api in apis else f"key {api}",
                since // 1000, count,
            )
            for broker, client, api, since, count in zip(
                table["broker"].to_pylist(), *(rows[name].tolist() for name in ("client", "api", "since", "count")),
                strict=True,
            )
        ]  # fmt: skip

    def _broker_names(self) -> dict[str, str]:
        """By address (`ip:port`) of a broker, its node id where that is known now, else the address."""
        brokers = self._books.builder.brokers
        known = [(endpoint(ip, port), ip, port) for (_, port), ips in brokers.addresses.items() for ip in ips]
        self._refusals.learn(known)
        names = brokers.names()
        return {text: names[f"{self._capture.name}{SEPARATOR}{text}"] for text, _, _ in known}

    def _links(self, names: Mapping[str, str]) -> dict[str, Links]:
        """How the connections to each broker stand; empty where many rest, for then not all are known."""
        if self._dissector.resting:
            return {}
        rows = read_links(self._dissector)
        brokers = self._books.builder.directory.broker(rows[:, NUMBER]).cast(pa.string()).to_pylist()
        of: dict[str, list[int]] = {name: [] for name in names.values()}
        for row, unresolved in enumerate(brokers):
            if unresolved is not None:
                of.setdefault(names.get(unresolved.partition(SEPARATOR)[2], ""), []).append(row)
        refused: Counter[str] = Counter()
        for address, when in self._refusals.latest_ns.items():
            name = names.get(address, address)
            refused[name] = max(refused[name], when)
        clients = self._dissector.client_ids
        return {name: links_of(rows[mine], refused[name], clients) for name, mine in of.items()}

    def _completes(self) -> Completion:
        return Completion(self._dissector, self._books.decoder, self._books.ledger, self._capture)

    def _shed(self) -> Shed:
        """Problems by kind that the books hold."""
        books = self._books
        problems: Counter[str] = Counter()
        size: Counter[str] = Counter()
        for name, table in books.builder.pieces_at_the_end(books.ledger.problems()):
            if name == "problems":
                _count(table, problems, size)
        return Shed(problems, size)

    def _connection_rows(self) -> pa.Table:
        """The connections that the books have; none unless they are read."""
        builder = self._books.builder
        if "connections" not in builder.columns:
            return SCHEMAS["connections"].empty_table()
        return builder.finished("connections", list(builder.connection_pieces()))

    def _renew_books(self) -> None:
        """Go on with new books that know what is still open."""
        books = self._books
        self._connections += len(books.ledger.connections) - self._kept
        self._dissector.settle()
        rows = self._dissector.renumber()
        before, books.ledger = books.ledger, Ledger([self._capture.name], [self._capture.files])
        books.ledger.go_on(before.carried(rows))
        books.ledger.begin(0)
        books.ledger.base = 0
        self._kept = len(rows)
        old = books.builder
        books.builder = TableBuilder(books.ledger.connections, old.columns, books.settings.reading)
        books.builder.keyed, books.builder.hosts = old.keyed, old.hosts
        books.builder.learn(old)
        self._pieces = Pieces(books)
        self._completion = self._completes()


def _quiet(harvests: Iterator[Harvest]) -> Iterator[Harvest]:
    """Harvests without problems."""
    for harvest in harvests:
        harvest.problems = harvest.problems[:0]
        yield harvest


def _count(table: pa.Table, problems: Counter[str], size: Counter[str]) -> None:
    """Problems and their bytes by kind."""
    rows = table.select(["kind", "bytes"]).group_by("kind", use_threads=False)
    for row in rows.aggregate([("kind", "count"), ("bytes", "sum")]).to_pylist():
        problems[row["kind"]] += row["kind_count"]
        size[row["kind"]] += row["bytes_sum"] or 0

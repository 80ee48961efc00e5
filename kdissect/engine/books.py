"""The state that a pass over captures fills: connections, problems and measures, and the rows of tables that are under
way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from kdissect.capture import CaptureSet
from kdissect.engine.inputs import Packets
from kdissect.engine.pipeline import Kind, RunPart, Wishes, rows
from kdissect.engine.timings import REST, TABLES
from kdissect.kafka.completed import Completed, Quality
from kdissect.kafka.exchanges import payloads
from kdissect.kafka.exchanges.completion import Sparing
from kdissect.kafka.exchanges.messages import Decoder
from kdissect.kafka.streams.ledger import Ledger
from kdissect.problems import Kind as ProblemKind
from kdissect.tables.builder import TableBuilder
from kdissect.tables.host_names import HostNames
from kdissect.tables.projection import gathered, message_paths, only_gathered
from kdissect.tables.selection import topic_paths
from kdissect.tables.topics import REPLICATED
from kdissect.tcp.layout import NULL

if TYPE_CHECKING:
    from kdissect.engine.settings import Settings
    from kdissect.tables.candidates import Candidates


class Books:
    """The books for `tables` (name -> columns, None: all) and maybe one type of `messages`.

    `beside`: paths of further messages that are wanted, for the reader of the rows. `builder` makes rows and resolves
    them; `ledger` has connections and problems; `quality` the measures of captures that were read.
    """

    def __init__(
        self,
        captures: Sequence[CaptureSet],
        tables: Mapping[str, Sequence[str] | None],
        settings: Settings,
        messages: Kind | None = None,
        beside: Mapping[Kind, frozenset[str]] | None = None,
    ) -> None:
        self.captures = captures
        self.settings = settings
        self.ledger = Ledger([c.name for c in captures], [c.files for c in captures])
        self.builder = TableBuilder(self.ledger.connections, tables, settings.reading)
        self.builder.dated = settings.dated
        self.builder.sights = settings.common.found
        self.builder.hosts = HostNames(settings.hosts, [capture.host_names for capture in captures])
        self._asked = dict(self.builder.columns)
        self.wishes = Wishes(self._decoder(self.builder.columns, messages, beside or {}), messages, beside or {})
        self.quality: list[Quality] = []

    def _decoder(
        self, columns: Mapping[str, Sequence[str]], messages: Kind | None, beside: Mapping[Kind, frozenset[str]],
        gathering: Mapping[str, Sequence[str]] | None = None,
    ) -> Decoder:  # fmt: skip
        """The decoder for these columns of tables, the columns `gathering` and the other messages that are wanted."""
        found: dict[Kind, frozenset[str] | None] = dict(gathered(gathering or {}))
        for message, paths in message_paths(columns, columns).items():
            found[message] = (found.get(message) or frozenset()) | paths
        others: set[Kind] = set()
        for message, paths in beside.items():
            found[message] = (found.get(message) or frozenset()) | paths
            others.add(message)
        if self.settings.topics:
            for message, named in topic_paths().items():
                found[message] = (found.get(message) or frozenset()) | named
                others.add(message)
        if messages is not None:
            for kind in (messages, *payloads.asked_too(messages)):
                found[kind] = None
                others.add(kind)
        # The paths are the tables' own.
        return Decoder(found, checked=True, sparse=only_gathered(gathering or columns) - others)

    @property
    def decoder(self) -> Decoder:
        """Decodes messages."""
        return self.wishes.decoder

    def read_sparingly(self) -> None:
        """Leave partitions of Produce alone for as long as no message has their number of replicas: no row of them is
        made until then. Messages that need not be decoded are read aside. For rows as codes."""
        columns = {name: read for name, read in self.builder.columns.items() if name != "produce_partitions"}
        self.wishes.aside = True
        self.wishes.sparing = Sparing(self._decoder(columns, self.wishes.type, self.wishes.beside), REPLICATED)

    def pass_over(self, candidates: Candidates) -> None:
        """Make rows of these exchanges alone. Of the messages of others decode no more than what tells names."""
        self.builder.candidates = candidates
        wanted = self._decoder({}, None, {}, self.builder.columns).wanted
        self.wishes.skimming = Decoder(wanted, checked=True, sparse=wanted.keys()), candidates.needed

    def narrow(self) -> None:
        """From the next block that is read on decode no more than what the columns of the builder need by now."""
        wishes = self.wishes
        wishes.sparing = Sparing(
            self._decoder(self.builder.columns, wishes.type, wishes.beside, self._asked), frozenset()
        )

    @property
    def flowing(self) -> bool:
        """Whether rows are handed on at once: those of one block alone may be more than memory takes, or somebody
        watches."""
        return self.wishes.type is not None or "records" in self.builder.columns or self.settings.follow is not None

    def rows_of(self, done: Completed) -> Iterator[RunPart]:
        """Unresolved rows of finished exchanges."""
        yield from rows(done, self.wishes, self.ledger, self.builder, self.settings.timings)

    def absorb(self, ledger: Ledger, builder: TableBuilder, walker: TableBuilder) -> None:
        """Take over the books of a strand that has followed connections of the capture read now to their ends."""
        first = self.ledger.absorb(ledger)
        self.builder.absorb(builder, first)
        self.builder.absorb_problems(walker, first)

    def capture_problems(self, number: int, capture: Packets) -> None:
        """Problem rows of the capture itself."""
        self.ledger.begin(number)
        for problem in capture.problems:
            packet = (problem.file << 40) | problem.packet
            self.ledger.note(
                problem.kind, problem.where, problem.detail, at=problem.at or NULL, packet=packet,
                size=problem.bytes or -1,
            )  # fmt: skip

    def finish(self) -> dict[str, pa.Table]:
        """The tables made at the end, whole and resolved."""
        self._note_limits()
        self.settings.timings.at(TABLES)
        made = self.builder.finish(self.ledger.problems(), self.quality)
        self.settings.timings.at(REST)
        return made

    def pieces_at_the_end(self) -> Iterator[tuple[str, pa.Table]]:
        """The tables of `finish`, not resolved yet, in pieces: for a caller that does not need a table whole."""
        self._note_limits()
        self.settings.timings.at(TABLES)
        for name, table in self.builder.pieces_at_the_end(self.ledger.problems(), self.quality):
            self.settings.timings.at(REST)
            yield name, table
            self.settings.timings.at(TABLES)
        self.settings.timings.at(REST)

    def _note_limits(self) -> None:
        """Note as problems what earlier passes with the same settings left out."""
        for where, detail in self.settings.limited.problems:
            self.ledger.note_of_run(ProblemKind.BUFFER_LIMIT, where, detail)

"""One capture whose files come one after the other, in one process or in several.

    work = Continued("broker.pcap", {"exchanges": columns}, settings, state)  # state None: it begins
    for name, batch in work.rows_of(files): ...                               # rows, resolved, as exchanges complete
    state = work.state()                                                      # bytes, to go on with later

The rows are those of one run over all files. The unfinished part at the end of a file (frames, requests that wait,
segments ahead of a hole, IP fragments) is carried in the state, with its bytes. So earlier files need not be there any
more. Rows that a run makes only when the capture has ended (requests that were never answered on connections that stay
open, tables of whole connections) do not come. TLS is left alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
import pyarrow as pa

from kdissect import __version__
from kdissect.analysis.stage import Stage
from kdissect.arrays.typed_values import UnreadableValue, dumped, loaded
from kdissect.capture import CaptureSet
from kdissect.capture.captureset import Member
from kdissect.capture.window import Window
from kdissect.engine.books import Books
from kdissect.engine.run import Run
from kdissect.engine.settings import Settings
from kdissect.kafka.completed import Completed
from kdissect.kafka.exchanges.completion import Completion
from kdissect.kafka.streams.dissector import Dissector
from kdissect.kafka.streams.ledger import CarriedConnections
from kdissect.net.scanner import CarriedScan, Scanner
from kdissect.net.segment import FILE_SHIFT, PACKET
from kdissect.problems import CaptureError, UsageError
from kdissect.tables.brokers import Brokers
from kdissect.tables.declaration import TABLES, columns_of
from kdissect.tables.declaration.model import By
from kdissect.tables.topics import Topics

STREAMED = tuple(
    name for name, one in TABLES.items() if one.made in (By.BLOCK, By.RECORD_SETS, By.NOTED) and not one.on_request
)
"""Tables whose rows are made as exchanges complete."""


def columns(table: str, names: Sequence[str] | None = None) -> list[str]:
    """The columns of a table that can be made without the analysis, which needs more than one capture's past.

    Raises UsageError for other tables, for columns that are not there, and for columns of the analysis.
    """
    if table not in STREAMED:
        columns_of(table)
        raise UsageError(f"rows of {table!r} are complete at the end only; a stream makes: {', '.join(STREAMED)}")
    asked = columns_of(table, names)
    plain = [column for column in asked if Stage({table: [column]}).idle]
    if names is not None and plain != asked:
        late = next(column for column in asked if column not in plain)
        raise UsageError(f"column {late!r} of {table!r} is made by the analysis, which a stream does not run")
    return plain


@dataclass(slots=True)
class _Carried:
    """The state that one run leaves to the next."""

    version: str
    tables: dict[str, list[str]]
    files: list[str]
    dissector: dict[str, npt.NDArray[Any]]
    ledger: CarriedConnections
    scanner: CarriedScan
    brokers: Brokers
    topics: Topics


class Continued(Run):
    """Rows of `tables` (name -> columns) from the next files of a capture."""

    def __init__(
        self, capture: str, tables: Mapping[str, Sequence[str]], settings: Settings, state: bytes | None = None
    ) -> None:
        self.tables = {name: list(columns) for name, columns in tables.items()}
        self._before = _unpacked(state, self.tables) if state is not None else None
        self._names = [] if self._before is None else list(self._before.files)
        books = Books([CaptureSet(capture, [])], self.tables, settings)
        super().__init__(books)
        books.ledger.connections.files[0] = self._names
        self._capture = capture
        self._files: list[Member] = []
        self._window = Window()
        programs = books.decoder.programs()
        self._dissector = Dissector(self._window, programs)
        self._scanner = Scanner(CaptureSet(capture, [Member(capture)]), settings.after, settings.before)
        if self._before is not None:
            self._dissector.go_on(self._before.dissector)
            self.books.ledger.go_on(self._before.ledger)
            self._scanner.go_on(self._before.scanner)
            self.books.builder.brokers.merge(self._before.brokers)
            self.books.builder.topics.merge(self._before.topics)

    def rows_of(self, files: Iterable[Member]) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Rows of these files with their table's name, each table's in order, named by what is known by then. To be
        called once."""
        self._files = list(files)
        for part in self.rows():
            for name in self.tables:
                batch = part.tables.get(name)
                if batch is not None and batch.num_rows:
                    yield name, self.resolve_rows(name, batch)
        if "problems" in self.tables:
            made = self.books.builder.at_the_end(self.books.ledger.problems())["problems"]
            found = self.books.builder.finished("problems", [made])
            if found.num_rows:
                yield "problems", self.resolve_rows("problems", found)

    def resolve_rows(self, name: str, rows: pa.RecordBatch | pa.Table) -> pa.RecordBatch:
        """Unresolved rows as they are handed out: named by what is known now, plain."""
        return self.books.builder.resolved(name, rows)

    def exchanges(self) -> Iterator[Completed]:
        """Exchanges that finish in these files."""
        for member in self._files:
            self._names.append(member.name)
            yield from self._completed(member, len(self._names) - 1)

    def _completed(self, member: Member, number: int) -> Iterator[Completed]:
        dissector, scanner = self._dissector, self._scanner
        capture = CaptureSet(self._capture, [member])
        scanner.capture = capture
        completion = Completion(dissector, self.books.decoder, self.books.ledger, capture)
        try:
            for block in capture.blocks(self._window):
                segments = scanner.scan(block)
                segments[:, PACKET] += number << FILE_SHIFT
                flows = scanner.flows
                yield from self.complete_harvests(dissector.feed(segments, len(flows)), flows, completion)
                scanner.forget(dissector.free_flows())
                dissector.before_next_block(rereadable=False)  # what earlier files left can be read nowhere again
        except CaptureError as error:
            capture.add_problem(0, 0, 0, member.name, str(error))
        dissector.settle()
        for problem in capture.problems:
            problem.file = number
        base = self.books.ledger.base
        self.books.capture_problems(0, capture)
        self.books.ledger.base = base
        capture.close()

    def state(self) -> bytes:
        """The state needed to go on, some kilobytes and the unfinished part. Nothing else may be called after it."""
        self._dissector.settle()
        rows = self._dissector.renumber()
        carried = _Carried(
            __version__,
            self.tables,
            self._names,
            self._dissector.carried(),
            self.books.ledger.carried(rows),
            self._scanner.carried(),
            self.books.builder.brokers,
            self.books.builder.topics,
        )
        return dumped(carried, _Carried)


def _unpacked(state: bytes, tables: Mapping[str, list[str]]) -> _Carried:
    """Raises UsageError where the state is damaged, another version's, or other tables'."""
    try:
        carried: _Carried = loaded(state, _Carried)
    except UnreadableValue:
        raise UsageError(f"this state is damaged, or not of kdissect {__version__}: begin with a new one") from None
    if carried.version != __version__:
        raise UsageError(f"this state was left by another version of kdissect than {__version__}: begin anew")
    if carried.tables != tables:
        raise UsageError(f"this state is for other columns, of {', '.join(carried.tables)}: begin anew")
    return carried

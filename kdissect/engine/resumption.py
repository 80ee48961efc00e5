"""One capture whose files come one after the other, in one process or in several.

    work = Continued("broker.pcap", {"exchanges": columns}, settings, state)  # state None: it begins
    for name, batch in work.rows_of(files): ...                               # resolved, as they are settled
    state = work.state()                                                      # bytes, to go on with later

The rows are those of one run over all files. The unfinished part at the end of a file (frames, requests that wait,
segments ahead of a hole, IP fragments) is carried in the state, with its bytes. So earlier files need not be there any
more. Rows that a run makes only when the capture has ended (requests that were never answered on connections that stay
open, these connections, fetch sessions that stay open) come when nothing more does (`read_rest`). TLS is left alone.

The analysis goes on, too: of fetch sessions, of why each request was held back, of what groups have not read. A row of
a broker, a topic or a session has the name that is known when the row is settled. What the first files tell is known
from the first row on, and they are read twice for that: where a capture begins, most clients have asked for metadata
before, and ask again within minutes.

A state that another version of kdissect left says which files were read, and no more: the next file begins the capture
anew, and a problem says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from kdissect import __version__
from kdissect.analysis.holds.carried_state import CarriedStages
from kdissect.arrays.typed_values import UnreadableValue, dumped, loaded
from kdissect.capture import CaptureSet
from kdissect.capture.captureset import Member
from kdissect.capture.sources import COMPRESSED, first_packet
from kdissect.capture.window import Window
from kdissect.engine.analysed_run import ROWS_A_TIME, AnalysedRun, Pieces
from kdissect.engine.books import Books
from kdissect.engine.bounds.spool import Spool
from kdissect.engine.passes.measures import connection_measures, file_measures
from kdissect.engine.passes.watermark import watermark
from kdissect.engine.run import Run
from kdissect.engine.saving.spooled_evidence import SpooledEvidence, with_evidence
from kdissect.engine.settings import Settings
from kdissect.kafka.exchanges.completion import Completion
from kdissect.kafka.streams.dissector import Dissector, Harvest
from kdissect.kafka.streams.ledger import CarriedConnections
from kdissect.net.scanner import CarriedScan, Scanner
from kdissect.net.segment import FILE_SHIFT, SEGMENT
from kdissect.problems import CaptureError, CaptureUnreadable, UsageError
from kdissect.tables.brokers import Brokers
from kdissect.tables.carried_clients import CarriedClients, carry_clients, go_on_with_clients
from kdissect.tables.declaration import TABLES, columns_of
from kdissect.tables.declaration.model import TEXT, By
from kdissect.tables.identity import SEPARATOR, connection_ids
from kdissect.tables.topics import Topics
from kdissect.tables.versions import Offered

STREAMED = tuple(
    name
    for name, one in TABLES.items()
    if one.made in (By.BLOCK, By.RECORD_SETS, By.NOTED, By.END, By.SESSIONS, By.FINDINGS) and not one.on_request
)
"""Tables whose rows are made as exchanges complete, as connections and fetch sessions end, and when files have been
read."""

LATE = "came after later files of its capture, so it was read apart from them: what crosses its ends is in parts"
"""What is said of such a file."""
GREW = "grew by {more:,} bytes after it had been read, so these were not"
"""What is said of a file that was thought to be complete."""
REPLACED = "another file has this name by now, so the one that was there is missing"
"""What is said of a file that was written over between planning and reading."""
UPDATED = (
    "was read by kdissect {before}, and what comes behind it by {after}: what crosses its end is in parts, and rows "
    "that waited for the next file are missing"
)
"""What is said of the last file before an update."""
INCIDENTS = "incidents"
"""Key of the texts that one run leaves to the next: how many incidents the findings so far have."""
BEGAN_LATE = "capture_began_late"
"""The finding about connections that are older than a capture."""
SURVEY = {"exchanges": ["broker", "cluster"], "topics": ["topic"]}
"""What tells the names of a capture."""
PATIENCE_NS = 10_000_000_000
"""Rows behind a request that waits for longer are not held back: it may never be answered. If it is, less is known of
why so late."""


def columns(table: str, names: Sequence[str] | None = None) -> list[str]:
    """The columns of a table that a stream makes, all of them or those of these names.

    Raises UsageError for other tables, and for columns that are not there.
    """
    asked = columns_of(table, names)
    if table not in STREAMED:
        raise UsageError(f"rows of {table!r} are complete at the end only; a stream makes: {', '.join(STREAMED)}")
    return asked


@dataclass(slots=True)
class _Carried:
    """The state that one run leaves to the next. All versions of kdissect have these fields, and read them."""

    version: str
    tables: dict[str, list[str]]
    files: list[str]
    begins: list[int]
    sizes: list[int]
    beside: dict[str, list[str]]
    unfinished: bytes
    """`_Unfinished`, for this version alone, empty where the capture is over."""


@dataclass(slots=True)
class _Unfinished:
    """The unfinished part behind the last file, and the names and rows that are known by then."""

    dissector: dict[str, npt.NDArray[Any]]
    ledger: CarriedConnections
    scanner: CarriedScan
    brokers: Brokers
    topics: Topics
    offered: Offered
    clients: CarriedClients
    analysis: CarriedStages


class Continued:
    """Rows of `tables` (name -> columns) from the next files of a capture."""

    def __init__(
        self, capture: str, tables: Mapping[str, Sequence[str]], settings: Settings, state: bytes | None = None
    ) -> None:
        self.tables = {name: list(columns) for name, columns in tables.items()}
        carried, before = (None, None) if state is None else _unpacked(state, self.tables)
        self._names = [] if carried is None else carried.files
        self._begins = [] if carried is None else carried.begins
        """Of each file that was read, the first packet's time (ns), -1 for none."""
        self._sizes = [] if carried is None else carried.sizes
        """Of each, its bytes then."""
        self._analysed = AnalysedRun([CaptureSet(capture, [])], self.tables, with_evidence(settings))
        self._stage, self.books = self._analysed.stage, self._analysed.books
        self._stage.be_prompt()
        self.books.ledger.connections.files[0] = self._names
        self._capture = capture
        self._window = Window()
        self._dissector = Dissector(self._window, self.books.decoder.programs())
        self._scanner = Scanner(CaptureSet(capture, [Member(capture)]), settings.after, settings.before)
        self._pieces = Pieces(self.books)
        self._latest = 0
        """Time of the last packet, ns."""
        self._unfinished: bytes | None = None
        """`_Unfinished`, once it is packed."""
        self._begins_here = before is None
        """Whether nothing is known of what came before the next file."""
        self._is_apart = carried is not None and carried.version != __version__
        """Whether the capture began before the next file all the same."""
        self.carried_beside: dict[str, list[str]] = {} if carried is None else carried.beside
        """Texts that subclasses leave to the next run, and INCIDENTS."""
        self.notes: list[tuple[str, str]] = []
        """Files, and what is said of each besides its rows."""
        if before is not None:
            self._dissector.go_on(before.dissector)
            self.books.ledger.go_on(before.ledger)
            self._scanner.go_on(before.scanner)
            self.books.builder.brokers.merge(before.brokers)
            self.books.builder.topics.merge(before.topics)
            self.books.builder.offered.merge(before.offered)
            go_on_with_clients(self.books.builder.clients, before.clients, self.books.builder.directory)
            self._rename_brokers()
            self._stage.go_on(before.analysis)
        elif self._is_apart and carried is not None and self._names:
            read = CaptureSet(capture, [])
            self._note(read, len(self._names) - 1, UPDATED.format(before=carried.version, after=__version__))
            self._note_problems(read)

    @property
    def last_file(self) -> str:
        """The name of the file that is being read, or was read last."""
        return self._names[-1] if self._names else ""

    def rows_of(
        self, files: Iterable[Member], begins: Mapping[str, int] | None = None
    ) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Rows of these files with their table's name, in no order, named by what is known by then. To be called
        once. `begins`: by its name the first packet's time (ns) of a file, where that was looked at before: a file that
        begins at another time is not read."""
        if self._begins_here:
            files = list(files)
            self._learn_names(files)
        with ExitStack() as stack:
            evidence = None
            if "findings" in self.tables:
                spool = stack.enter_context(Spool(Path(gettempdir())))
                evidence = SpooledEvidence(spool, self.books.settings.slow)
            for part in self._parts_of(files, begins or {}):
                if evidence is not None:
                    evidence.add_rows(part)
                yield from self._batches(part)
            table = self.books.ledger.connections
            self.books.quality += connection_measures(self._capture, table, np.ones(len(table), np.bool_))
            learned: dict[str, list[pa.Table]] = {}
            for name, rows in self._made_at_the_end():
                yield from self._batches({name: self._ended(rows) if name == "connections" else rows})
                learned.setdefault(name, []).append(rows)
            if evidence is not None:
                yield from self._batches(self._search(evidence, learned))

    def note_late(self, files: Iterable[Member]) -> list[Member]:
        """Note as problems what is to be said of these files, which do not come behind all that were read. To be called
        before other rows are asked for. Returns those that were never read (for `apart`). A file that begins at the
        same instant as one that was read is that one, under another name or its own. It may have grown since."""
        read = {first: number for number, first in enumerate(self._begins) if first >= 0}
        apart: list[Member] = []
        capture = CaptureSet(self._capture, [])
        for member in files:
            first = _first_packet(member)
            number = read.get(first)
            if number is None and first >= 0:
                read[first] = number = len(self._names)
                self._note_file(member, first)
                why = LATE
                apart.append(member)
            elif number is not None and (more := self._grown(member, number)) > 0:
                why = GREW.format(more=more)
                self._sizes[number] += more
            else:
                continue
            self._note(capture, number, why, member.name)
        self._note_problems(capture)
        return apart

    def _note(self, capture: CaptureSet, number: int, why: str, name: str | None = None) -> None:
        """Note a problem of a file, by its number. `name`: what it is called now, if not as it was then."""
        name = self._names[number] if name is None else name
        capture.add_problem(number, 0, 0, name, why)
        self.notes.append((name, why))

    def _grown(self, member: Member, number: int) -> int:
        """By how many bytes a file that was read is larger than it was then; 0 where it was compressed since, or was
        compressed then."""
        endings = {Path(name).suffix for name in (member.name, self._names[number])}
        is_comparable = len(endings) == 1 or endings.isdisjoint(COMPRESSED)
        return _size(member) - self._sizes[number] if is_comparable else 0

    def apart(self) -> Continued:
        """The same work on files that lie before others whose rows are made: as a capture of their own, with the names
        that are known here."""
        other = type(self)(self._capture, self.tables, self.books.settings)
        other._is_apart = True
        other.learn_from(self)
        return other

    def learn_from(self, work: Continued) -> None:
        """Learn the names that other work on this capture knows, and how many incidents it has."""
        self.learn_names_of(work.books)
        if INCIDENTS in work.carried_beside:
            self.carried_beside[INCIDENTS] = work.carried_beside[INCIDENTS]

    def problems(self) -> Iterator[tuple[str, pa.RecordBatch]]:
        """The problems that were noted, where no file is read."""
        for name, rows in self._made_at_the_end():
            if name == "problems":
                yield from self._batches({name: rows})

    def read_rest(self) -> Iterator[tuple[str, pa.RecordBatch]]:
        """The rows that are made when the capture has ended: the last step, of one that went on from a state and has
        read nothing."""
        for part in self._finish():
            yield from self._batches(part)
        for name, rows in self._made_at_the_end():
            yield from self._batches({name: rows})

    def _made_at_the_end(self) -> Iterator[tuple[str, pa.Table]]:
        """Rows of the tables that are made of all that was read, piece by piece."""
        for name, piece in self.books.pieces_at_the_end():
            yield name, self.books.builder.finished(name, [piece])

    def _learn_names(self, files: list[Member]) -> None:
        """Learn the names that these files tell."""
        survey = Books([CaptureSet(self._capture, files)], SURVEY, self.books.settings)
        with suppress(CaptureError):  # which reading the file again tells
            for _ in Run(survey).rows():
                pass
        self.learn_names_of(survey)

    def learn_names_of(self, books: Books) -> None:
        """Learn the names of brokers and topics that other books have."""
        self.books.builder.brokers.merge(books.builder.brokers)
        self.books.builder.topics.merge(books.builder.topics)

    def _ended(self, connections: pa.Table) -> pa.Table:
        """The connections that no packet comes for any more."""
        remaining = connection_ids(self.books.ledger.connections.id[self._dissector.remaining()])
        return connections.filter(pc.invert(pc.is_in(connections["connection_id"].cast(TEXT), remaining.cast(TEXT))))

    def _parts_of(self, files: Iterable[Member], begins: Mapping[str, int]) -> Iterator[Mapping[str, pa.Table]]:
        """The rows of files, resolved, as they are settled."""
        for member in files:
            self._note_file(member, begins.get(member.name, -1))
            for _ in self._blocks(member, len(self._names) - 1):
                if self._pieces.count >= ROWS_A_TIME:
                    yield self._settled()
        yield self._settled()
        yield self._stage.show_rows(self._stage.release())

    def _search(self, evidence: SpooledEvidence, learned: Mapping[str, Sequence[pa.Table]]) -> Mapping[str, pa.Table]:
        """The findings in the rows of these files, and in those that the capture would have if it ended here.
        `learned`: tables that are made at the end, as they are by now."""
        ended = Continued(self._capture, self.tables, self.books.settings, self.state())
        for part in ended._finish():
            evidence.add_rows(part)
        for name, pieces in learned.items():
            known = pa.concat_tables(pieces)
            if name == "connections":
                builder = ended.books.builder
                known = _as_ended(known, builder.finished(name, builder.connection_pieces()))
            evidence.add(name, known)
        found = evidence.search()
        findings = self._number_on(found.findings)
        if self._is_apart:  # the capture began before these files
            findings = findings.filter(pc.not_equal(findings["id"], BEGAN_LATE))
        return {"findings": findings, "problems": found.problems}

    def _number_on(self, findings: pa.Table) -> pa.Table:
        """These findings, whose incidents have numbers behind those of earlier ones."""
        (before,) = self.carried_beside.get(INCIDENTS, ["0"])
        numbers = pc.add(findings["incident"], int(before))
        if numbers.null_count < len(numbers):
            self.carried_beside[INCIDENTS] = [str(pc.max(numbers))]
        at = findings.schema.get_field_index("incident")
        return findings.set_column(at, findings.schema.field(at), numbers)

    def _finish(self) -> Iterator[Mapping[str, pa.Table]]:
        harvests = self._dissector.finish()
        completion = Completion(
            self._dissector, self.books.decoder, self.books.ledger, CaptureSet(self._capture, [Member(self._capture)])
        )
        self._keep_rows(harvests, completion)
        yield self._settled()
        if not self._stage.idle:
            yield self._stage.show_rows(self._stage.finish())

    def place_rows(self, name: str, rows: pa.Table) -> Iterator[pa.RecordBatch]:
        """Rows as they are handed out: plain, in order."""
        yield from self.books.builder.pieces(name, [rows], columns=self.tables[name], resolved=True)

    def _batches(self, tables: Mapping[str, pa.Table]) -> Iterator[tuple[str, pa.RecordBatch]]:
        for name in self.tables:
            table = tables.get(name)
            if table is not None and table.num_rows:
                yield from ((name, batch) for batch in self.place_rows(name, table))

    def _settled(self) -> Mapping[str, pa.Table]:
        """The rows that are settled by those that came since the last call."""
        pieces, self._pieces = self._pieces, Pieces(self.books)
        self._rename_brokers()
        tables, messages = pieces.tables(), pieces.messages()
        if self._stage.idle:
            return tables
        complete = watermark(self._dissector, self._latest)
        mark = max(complete, (self._latest - PATIENCE_NS) // 1000)
        return self._analysed.worked(tables, messages, mark, complete=complete)

    def _rename_brokers(self) -> None:
        names = self.books.builder.brokers.names()
        self._analysed.rename_brokers({text.rpartition(SEPARATOR)[2]: name for text, name in names.items()})

    def _blocks(self, member: Member, number: int) -> Iterator[None]:
        """Keeps the rows of exchanges that finish in a file, block by block."""
        dissector, scanner = self._dissector, self._scanner
        capture = CaptureSet(self._capture, [member])
        scanner.capture = capture
        scanner.kinds = np.zeros_like(scanner.kinds)
        completion = Completion(dissector, self.books.decoder, self.books.ledger, capture)
        begun = False
        try:
            for block in capture.blocks(self._window):
                if not begun and len(block.packets):
                    begun = True
                    self._check_begin(number, int(block.packets[0, 0]))
                segments = scanner.scan(block)
                segments[:, SEGMENT.packet] += number << FILE_SHIFT
                self._keep_rows(dissector.feed(segments, len(scanner.flows)), completion)
                self.books.builder.block_ended()
                self._latest = max(self._latest, dissector.now)
                scanner.forget(dissector.free_flows())
                dissector.before_next_block(rereadable=False)  # what earlier files left can be read nowhere again
                yield
        except CaptureError as error:
            capture.add_problem(0, 0, 0, member.name, str(error))
        dissector.settle()
        for problem in capture.problems:
            problem.file = number
        self._note_problems(capture)
        self.books.quality += file_measures(capture, scanner)
        capture.close()
        self._sizes[number] = _size(member)

    def _check_begin(self, number: int, first: int) -> None:
        """Learn a file's first packet's time. Raises CaptureUnreadable where another was expected."""
        if self._begins[number] < 0:
            self._begins[number] = first
        elif self._begins[number] != first:
            self.notes.append((self._names[number], REPLACED))
            raise CaptureUnreadable(REPLACED)

    def _note_file(self, member: Member, first: int = -1) -> None:
        """A file that is being read, by its number from now on. `first`: its first packet's time, where that is known
        already."""
        self._names.append(member.name)
        self._begins.append(first)
        self._sizes.append(_size(member))

    def _note_problems(self, capture: CaptureSet) -> None:
        base = self.books.ledger.base
        self.books.capture_problems(0, capture)
        self.books.ledger.base = base

    def _keep_rows(self, harvests: Iterator[Harvest], completion: Completion) -> None:
        for done in self._analysed.run.complete_harvests(self.watch(harvests), self._scanner.flows, completion):
            for part in self.books.rows_of(done):
                self._pieces.keep_part(part)

    def awaited_connections(self) -> npt.NDArray[np.int64]:
        """Connections (ids as int64) that more packets, or rows of their sessions, may come for."""
        remaining = self.books.ledger.connections.id[self._dissector.remaining()].view(np.int64)
        return np.union1d(remaining, self._stage.session_connections())

    def watch(self, harvests: Iterator[Harvest]) -> Iterator[Harvest]:
        """Finished exchanges on their way to the tables, for subclasses that look at them."""
        return harvests

    def told_beside(self) -> Iterator[tuple[str, pa.Table]]:
        """Tables that subclasses tell of the rows, once these are handed out."""
        yield from ()

    def state(self) -> bytes:
        """The state needed to go on, some kilobytes and the unfinished part. Nothing else may be called after it."""
        if self._unfinished is None:
            self._unfinished = dumped(self._carried(), _Unfinished)
        carried = _Carried(
            __version__, self.tables, self._names, self._begins, self._sizes, self.carried_beside, self._unfinished
        )
        return dumped(carried, _Carried)

    def _carried(self) -> _Unfinished:
        self._dissector.settle()
        rows = self._dissector.renumber()
        return _Unfinished(
            self._dissector.carried(),
            self.books.ledger.carried(rows),
            self._scanner.carried(),
            self.books.builder.brokers,
            self.books.builder.topics,
            self.books.builder.offered,
            carry_clients(self.books.builder.clients, rows, self.books.builder.directory),
            _without_share_sessions(self._stage.carried()),
        )


def _first_packet(member: Member) -> int:
    """The time of a file's first packet (ns), -1 where it has none or has gone."""
    first = first_packet(member)
    return -1 if math.isinf(first) else int(first)


def _size(member: Member) -> int:
    """The bytes of a file, 0 where it has gone."""
    try:
        return 0 if member.path is None else member.path.stat().st_size
    except OSError:
        return 0


def _without_share_sessions(carried: CarriedStages) -> CarriedStages:
    """The same without uses of share sessions, which are known at the end alone: findings see those of their files."""
    return CarriedStages({cluster: stage._replace(uses=[]) for cluster, stage in carried.stages.items()})


def _as_ended(connections: pa.Table, ended: pa.Table) -> pa.Table:
    """Rows of `connections`, those that were open as they would be if the capture ended here: the rows `ended`, with
    what only earlier messages told."""
    names = connections["connection_id"].combine_chunks(), ended["connection_id"].combine_chunks()
    before = connections.take(pc.index_in(names[1], names[0]))
    still = pa.table(
        [pc.coalesce(ended[name], before[name]) for name in connections.column_names], schema=connections.schema
    )
    return pa.concat_tables([connections.filter(pc.invert(pc.is_in(names[0], names[1]))), still])


def end_state(state: bytes) -> bytes:
    """The state of a capture that is over, out of its last one: it knows which files were read, if others begin it
    again. Raises UsageError where it is damaged."""
    return dumped(replace(_load(state, _Carried), version=__version__, unfinished=b""), _Carried)


def _unpacked(state: bytes, tables: Mapping[str, list[str]]) -> tuple[_Carried, _Unfinished | None]:
    """A state, and what was unfinished, if that is something and this version of kdissect left it. Raises UsageError
    where it is damaged, or other tables'."""
    carried: _Carried = _load(state, _Carried)
    if carried.version != __version__ or not carried.unfinished:
        return carried, None
    if carried.tables != tables:
        read = ", ".join(carried.tables)
        raise UsageError(f"earlier files were read for other tables or columns ({read}): ask for these, or begin anew")
    return carried, _load(carried.unfinished, _Unfinished)


def _load(data: bytes, kind: type) -> Any:
    """A part of a state. Raises UsageError where it is damaged."""
    try:
        return loaded(data, kind)
    except UnreadableValue:
        raise UsageError("this state is damaged: begin with a new one") from None

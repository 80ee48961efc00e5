"""A run whose rows go through the analysis: sessions, holds, share sessions and findings join what was on the wire.

The columns that the caller asks for decide: where none of them needs the analysis, nothing more is read or computed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import pyarrow as pa

from kdissect.analysis.cluster_split import split_by_cluster
from kdissect.analysis.cluster_stages import Stages
from kdissect.analysis.sessions.session_output import sharded_brokers
from kdissect.analysis.stage import HIDDEN, NO_WATERMARK
from kdissect.arrays.arrow import Coder
from kdissect.arrays.dictionaries import unified
from kdissect.arrays.rows import Rows, as_rows, as_tables
from kdissect.capture import CaptureSet
from kdissect.engine import timings
from kdissect.engine.books import Books
from kdissect.engine.bounds.room import Room, memory_text, size
from kdissect.engine.inputs import Inputs
from kdissect.engine.pipeline import RunPart
from kdissect.engine.run import Run
from kdissect.engine.settings import Settings
from kdissect.engine.timings import Timings
from kdissect.problems import Kind
from kdissect.tables.builder import TRAFFIC, TableBuilder, filtered
from kdissect.tables.declaration import TABLES
from kdissect.tables.declaration.model import TEXT
from kdissect.tables.order import order_rows
from kdissect.tables.table_block import MADE_LATER, READ_ASIDE
from kdissect.tables.where import Filter

if TYPE_CHECKING:
    from kdissect.engine.bounds.spool import Place, Spool
    from kdissect.tables.candidates import Candidates
    from kdissect.tables.fetch_rows import NamedFetches
    from kdissect.tables.traffic_sums import Sums

T = TypeVar("T")

PROGRESSIVE = tuple(name for name, table in TABLES.items() if table.progressive)
"""Tables that `AnalysedRun.parts` makes part by part; the others that the analysis adds need everything at once."""
ROWS_A_TIME = 8192
"""Rows that are worth working on: what is done once for each lot costs as much as some thousand rows."""
MOST_ROWS = 1 << 15
"""Rows that are worked on even when nothing new is settled, for the analysis bounds what waits, and rows that come here
do not: some 15 MB with all their columns."""
LOT = 1 << 15
"""Rows that are set aside together, and analysed together later: at least those of a block."""


def analysed(
    captures: Sequence[CaptureSet], tables: Mapping[str, Sequence[str]], settings: Settings
) -> tuple[Stages, Books]:
    """The analysis that the tables asked for (name -> columns) need, and books for what it reads besides them."""
    stage = Stages(tables, settings.slow, topics=settings.topics)
    read: dict[str, Sequence[str]] = dict(tables)
    for name, columns in ({} if stage.idle else stage.tables).items():
        read[name] = list(dict.fromkeys([*read.get(name, ()), *sorted(columns)]))
    if "record_batches" in read and "record_batches" not in tables and not stage.any.reads_every_batch:
        settings = replace(settings, reading=settings.reading._replace(evidence=True))
    if stage.any.traces:
        reading = settings.reading._replace(traced=True, only_traced="records" not in tables)
        settings = replace(settings, reading=reading)
    books = Books(captures, read, settings, beside=stage.messages)
    books.builder.keyed = not stage.idle
    return stage, books


class AnalysedRun:
    """One pass over captures for the tables asked for (name -> columns), analysed where they have to be.

    `all_tables`, `parts` or `settled` may be called, once. `inputs`: what is read instead of the captures' files.
    `where`: of a table only rows for which this holds are wanted. Others are dropped as early as the condition can be
    evaluated, and the caller filters the remaining rows.
    """

    def __init__(
        self,
        captures: Sequence[CaptureSet],
        tables: Mapping[str, Sequence[str]],
        settings: Settings,
        inputs: Inputs | None = None,
        where: Mapping[str, Filter] | None = None,
    ) -> None:
        self.asked = tables
        self.where = where or {}
        self.clock = settings.timings
        self._captures, self._settings, self._inputs = captures, settings, inputs
        self._steps_back = False
        """The clock of a capture steps back so far that an exchange came when enough was thought to be read."""
        self._open()
        self._named: Mapping[str, str] = {}
        """What `rename_brokers` was given last."""
        self.vocabulary = Coder()
        """Texts of rows that come as codes."""
        self.sums: list[Sums] = []
        """What the rows of the part that `parts` gave last say of topics, where they come as codes; its texts of topics
        have the names that are known."""

    def _open(self) -> None:
        """Begin, or begin again."""
        self.stage, self.books = analysed(self._captures, self.asked, self._settings)
        self.run = Run(self.books, self._inputs)
        self.run.marks = not self.stage.idle
        self._candidates: Candidates | None = None

    @property
    def _regular(self) -> bool:
        """Whether what is read are files that lie there whole, and can be read again."""
        lying = all(capture.regular for capture in self._captures)
        return lying and self._inputs is None and self._settings.follow is None

    @property
    def ends_early(self) -> bool:
        """Whether the filters say up to when rows are wanted, so that the analysis need not go on behind it."""
        if self.stage.idle or not self._regular:
            return False
        from kdissect.tables.candidates import candidates

        found = candidates(self.asked, self.where, analysed=True)
        return found is not None and found.ends

    def _read(self, make: Callable[[], T]) -> T:
        """Returns what `make` makes of all that is read. Rows of exchanges that the filters rule out are not made, if
        that does not change the others. Where a clock stepped back behind what was enough, everything is read again."""
        if not self.where or not (self._regular or self.stage.idle):
            return make()
        from kdissect.tables.candidates import EarlierRows, candidates

        if not self._steps_back:
            self._candidates = candidates(self.asked, self.where, not self.stage.idle)
        if self._candidates is not None:
            self.books.pass_over(self._candidates)
        try:
            return make()
        except EarlierRows:
            self._steps_back = True
            self._open()
            return make()

    def _block_ended(self) -> None:
        """Of the exchanges of a block all rows were taken."""
        if self._candidates is not None:
            self._candidates.end_behind(self.run.watermark)
            self._candidates.rule_out(self.builder.brokers)

    @property
    def builder(self) -> TableBuilder:
        """Makes and resolves the rows."""
        return self.books.builder

    def again(self) -> AnalysedRun:
        """Another run for the same, over the captures' files."""
        return AnalysedRun(self.books.captures, self.asked, self.books.settings, where=self.where)

    def narrow(
        self, tables: Mapping[str, Collection[str]], summed: Mapping[str, Collection[str]] | None = None
    ) -> None:
        """From here on only these of the columns asked for are read, and findings are looked for in the rows so far:
        columns without a reader are not made. For `parts`. `summed`: what else is read for sums of topics. If the
        caller needs no other columns of fetches, produces and their partitions, their rows are hidden, and per-topic
        totals as `sums`. One part more has the rows that were still buffered as tables. If `tables` reads no
        ids of exchanges, these have only the keys by which rows are joined."""
        self.stage.findings_end()
        read: dict[str, set[str]] = {}
        for name, columns in (*tables.items(), *(summed or {}).items(), *self.stage.tables.items()):
            read.setdefault(name, set()).update(columns)
        if self.builder.keyed and "exchange_id" not in tables.get("exchanges", ("exchange_id",)):
            read["exchanges"] -= {"exchange_id", "connection_id"}
            self.builder.unnamed = frozenset({"exchanges"})
        self.builder.narrow(read)
        self.books.narrow()
        if summed is not None and self.stage.may_hide(tables.keys()):
            self.builder.coded, self.builder.sums_traffic = HIDDEN, True
            self.books.wishes.aside = True

    def all_tables(self) -> dict[str, list[pa.RecordBatch | pa.Table]]:
        """Every table asked for, in pieces, unfiltered and in no order: what `TableBuilder.finished` takes. Of rows
        that are more than the memory allowed, the first ones (`Settings.memory`)."""
        pieces, room = self._read(self._all_pieces)
        at_the_end = self._finished(room)
        if self.stage.idle:
            return {name: [*pieces.rows.get(name, ()), *_pieces_of(at_the_end, name)] for name in self.asked}
        self.clock.at(timings.TABLES)
        made = pieces.tables()
        self.clock.at(timings.ANALYSIS)
        tables = self.stage.analyse_tables({**made, **at_the_end}, pieces.messages())
        self.clock.at(timings.REST)
        return {name: _pieces_of(tables, name) for name in self.asked}

    def _all_pieces(self) -> tuple[Pieces, Room]:
        """All rows, and what they left of the room."""
        pieces = Pieces(self.books, self.where if self.stage.idle else {})
        room = Room(self.books.settings.memory)
        block = 0
        for part in self.run.rows():
            if part.block != block:
                self._block_ended()
            block = part.block
            if room.admit(part.tables, sum(size(batch) for batch in part.beside.values())):
                pieces.keep_part(part)
        return pieces, room

    def _finished(self, room: Room) -> dict[str, pa.Table]:
        """The tables made at the end, as far as there is room."""
        settings = self.books.settings
        if settings.memory is None:
            return self.books.finish()
        allowed = memory_text(settings.memory)
        if room.full:
            # Other tables have rows of these exchanges; alone they are counted themselves.
            name = (
                "exchanges"
                if "exchanges" in room.left_out
                else max(room.left_out, key=room.left_out.__getitem__, default="exchanges")
            )
            of = "rows of the first" if name == "exchanges" else "the first"
            told = f"{of} {room.kept[name]:,} {name} fit in {allowed}; {room.left_out[name]:,} more are left out"
            self.books.ledger.note_of_run(Kind.BUFFER_LIMIT, "tables", told)
            settings.limited.note(told)
        room.at_the_end()
        made: dict[str, list[pa.Table]] = {}
        left_out: Counter[str] = Counter()
        for name, piece in self.books.pieces_at_the_end():
            if room.admit({name: piece}) or name not in made:
                made.setdefault(name, []).append(piece)
            else:
                left_out[name] += piece.num_rows
        for name, count in left_out.items():
            kept = sum(piece.num_rows for piece in made[name])
            settings.limited.note(f"the first {kept:,} {name} fit in {allowed}; {count:,} more are left out")
        return {name: self.builder.finished(name, made.pop(name)) for name in list(made)}

    def parts(self, held_back: int = 0) -> Iterator[dict[str, pa.Table]]:
        """Rows of the tables in PROGRESSIVE and of those read for them, as they are settled: memory stays flat. Tables
        that were not asked for may be hidden (`Stage.hide`), and are not among them.

        Brokers and topics have the names that are known by then; nothing is worked on before `held_back` rows were
        read. Raises LateNames as soon as messages tell other names than were given since `TableBuilder.note_names`, if
        that was called.
        """
        self._hide_rows()
        coded = self.builder.coded
        pieces = Pieces(self.books, coded=coded)
        mark = self.run.watermark
        block = 0
        for part in self.run.rows():
            # As many new rows as wait already: so rows that wait long are moved a few times, not at every block.
            moved = self.run.watermark != mark
            if coded != self.builder.coded and TRAFFIC in part.tables:
                coded = self.builder.coded
                yield self._feed(pieces, mark)
                yield as_tables(self.stage.hide(self.vocabulary))
                pieces = Pieces(self.books, coded=coded)
            enough = (
                max(held_back, ROWS_A_TIME, min(self.stage.waiting, MOST_ROWS)) if moved else max(held_back, MOST_ROWS)
            )
            if part.block != block and pieces.count >= enough:
                held_back = 0
                mark = self.run.watermark
                yield self._feed(pieces, mark)
                pieces = Pieces(self.books, coded=coded)
            block = part.block
            pieces.keep_part(part)
        yield self._feed(pieces, NO_WATERMARK, last=True)

    def settled(self, spool: Spool) -> Iterator[dict[str, pa.Table]]:
        """Rows of all tables that are not made at the end, as `parts` gives them, with the names that any message
        tells: they lie in `spool` until everything was read. Where the tables asked for have filters, rows for which
        these do not hold may be left out."""
        if not self.stage.idle and self._regular:
            try:
                parts = self._read(lambda: self._spool_as_read(spool))
            except LateNames:
                self._open()
            else:
                yield from ({name: spool.get(place) for name, place in part.items()} for part in parts)
                return
        yield from self.settled_later(spool)

    def settled_later(self, spool: Spool) -> Iterator[dict[str, pa.Table]]:
        """As `settled`, where `as_read` is known to raise LateNames: unresolved rows lie in the spool."""
        for lot in self.settled_lots(spool):
            yield worked(self.stage, self.clock, lot)
        yield finished(self.stage, self.clock)

    def _spool_as_read(self, spool: Spool) -> list[dict[str, Place]]:
        """Rows into the spool, worked on as they are read, of tables with filters those for which these hold. Raises
        LateNames."""
        from kdissect.engine.bounds.spool import together

        parts: list[dict[str, Place]] = []
        for part in self.as_read():
            parts.append({})
            for name in self.asked:
                rows = part.pop(name, None)
                if rows is not None and name in self.where:
                    rows = filtered(name, rows, self.where[name])
                if rows is not None and (whole := together([rows])) is not None:
                    parts[-1][name] = spool.put(whole)
                rows = whole = None  # nothing of it is held while more is read
            part.clear()
        return parts

    def settled_lots(self, spool: Spool) -> Iterator[Lot]:
        """The lots that `settled` works on."""
        for aside in self._read(lambda: [pieces.spool_all(spool, mark) for pieces, mark in self._lots()]):
            self.clock.at(timings.TABLES)
            unresolved = {name: [spool.get(place)] for name, place in aside.tables.items()}
            messages = {kind: spool.get(place) for kind, place in aside.messages.items()}
            yield self._lot(as_rows(_resolved(self.builder, unresolved)), messages, aside.mark)

    def as_read(self) -> Iterator[dict[str, pa.Table]]:
        """The parts of `settled`, at once, with the names that are known by now. Tables that were not asked for may be
        hidden.

        Raises LateNames as soon as messages say something else of what was given: then `settled_later` of another run
        tells.
        """
        self._hide_rows()
        working = Working(self.stage, self.clock)
        for lot in self.lots_as_read():
            yield working.feed(lot)
        yield working.finish()

    def lots_as_read(self) -> Iterator[Lot]:
        """The lots that `as_read` works on; rows that it did not hide are tables. Raises LateNames as soon as messages
        say something else of what was given."""
        self.builder.note_names()
        for pieces, mark in self._lots():
            lot = self._named_lot(pieces, mark)
            del pieces  # nothing of it is held while more is read
            yield lot

    def _hide_rows(self) -> None:
        """From here on rows that only the analysis reads are hidden, where there are any."""
        if self.stage.only_holds:
            self.stage.hide(self.vocabulary)
            self.builder.coded = HIDDEN
            self.books.read_sparingly()

    def _lots(self) -> Iterator[tuple[Pieces, int]]:
        """Rows that are set aside, or worked on, together, and up to when the rows before those of the next lot are
        complete."""
        coded = self.builder.coded
        pieces = Pieces(self.books, coded=coded)
        block = 0
        for part in self.run.rows():
            flows = self.stage.idle and self.books.flowing  # those of one block may be more than memory takes
            if (part.block != block or flows) and pieces.count >= LOT:
                yield pieces, self.run.watermark
                pieces = Pieces(self.books, coded=coded)
            if part.block != block:
                self._block_ended()
            block = part.block
            pieces.keep_part(part)
            del part  # its rows go as soon as they were worked on
        yield pieces, NO_WATERMARK

    def _feed(self, pieces: Pieces, mark: int, last: bool = False) -> dict[str, pa.Table]:
        lot = self._named_lot(pieces, mark)
        return worked(self.stage, self.clock, lot, last=last)

    def _named_lot(self, pieces: Pieces, mark: int) -> Lot:
        """Rows with the names that are known by now. Raises LateNames."""
        if not self.builder.names_kept:
            raise LateNames
        self.clock.at(timings.TABLES)
        codes, named = pieces.codes(self.vocabulary)
        self.sums = pieces.sums()
        rows = codes | as_rows(pieces.tables())
        if "produces" in codes and self.stage.awaits_rows(codes["produce_partitions"]):
            from kdissect.tables.coded_rows import produce_rows

            rows["produces"] = produce_rows(rows["exchanges"], self.vocabulary)
        return self._lot(rows, pieces.messages(), mark, named)

    def worked(
        self,
        new_rows: Mapping[str, pa.Table],
        messages: Mapping[tuple[int, int], pa.Table],
        mark: int,
        complete: int | None = None,
    ) -> dict[str, pa.Table]:
        """The rows, resolved, that are settled by further rows; none that comes later is earlier than `mark`
        (microseconds). `complete`: see `Stage.feed`."""
        return worked(self.stage, self.clock, self._lot(as_rows(new_rows), messages, mark), complete=complete)

    def rename_brokers(self, names: Mapping[str, str]) -> list[tuple[str, str]]:
        """The brokers (old name, new name) with another name than at the last call, unless another address still has
        the old name. The analysis goes on with the new one. `names`: by address (`ip:port`) of each broker, where rows
        are given before all names are known."""
        before, self._named = self._named, names
        renamed = []
        for address, new in names.items():
            old = before.get(address, address)
            if old != new and (old == address or old not in names.values()):
                self.stage.rename_broker(old, new)
                renamed.append((old, new))
        return renamed

    def _lot(
        self,
        rows: dict[str, Rows],
        messages: Mapping[tuple[int, int], pa.Table],
        mark: int,
        fetches: Sequence[NamedFetches] = (),
    ) -> Lot:
        if "api_versions" in self.builder.columns:
            rows["api_versions"] = Rows.of(self.builder.offered.table(self.builder.brokers))
        return Lot(rows, messages, mark, fetches)


class Lot(NamedTuple):
    """Rows that are worked on together, resolved."""

    rows: dict[str, Rows]
    """By table. Whoever works on them takes them out."""
    messages: Mapping[tuple[int, int], pa.Table]
    """The further messages that are wanted, by API key and side."""
    mark: int
    """Microseconds: the rows before it are complete."""
    fetches: Sequence[NamedFetches] = ()
    """Those that were read aside (`direct_fetches` of `Stage.feed`)."""


def worked(
    stage: Stages, clock: Timings, lot: Lot, last: bool = False, complete: int | None = None
) -> dict[str, pa.Table]:
    """The rows of a lot in order, and what is settled by them, but for those that are hidden. `last`, `complete`: see
    `Stage.feed`."""
    # What is settled when depends on the order of rows; strands give them in another one than a single thread does.
    clock.at(timings.TABLES)
    rows = {name: order_rows(name, lot.rows.pop(name)) for name in list(lot.rows)}
    clock.at(timings.ANALYSIS)
    fed = stage.feed(rows, lot.messages, lot.mark, lot.fetches, last, complete)
    clock.at(timings.REST)
    return stage.show_rows({**rows, **fed})


def finished(stage: Stages, clock: Timings) -> dict[str, pa.Table]:
    """The rows that are settled once there are no more lots."""
    clock.at(timings.ANALYSIS)
    last = stage.finish()
    clock.at(timings.REST)
    return stage.show_rows(last)


class Working:
    """Lots worked on as they are read, one after the other."""

    def __init__(self, stage: Stages, clock: Timings) -> None:
        self._stage = stage
        self._clock = clock
        self._shards: dict[tuple[str | None, str], bool | None] = {}
        """Whether brokers (cluster, broker) that sessions were told of have their cache in shards, as far as it was
        known then."""

    def feed(self, lot: Lot) -> dict[str, pa.Table]:
        """The rows that are settled by a lot. Raises LateNames where it has other names for rows that were returned
        before."""
        offered = lot.rows.get("api_versions")
        told: dict[tuple[str | None, str], bool] = {}
        for cluster, part in [] if offered is None else split_by_cluster({"api_versions": offered.table()}):
            told |= {(cluster, broker): sharded for broker, sharded in sharded_brokers(part["api_versions"]).items()}
        if any(told.get(broker) != given for broker, given in self._shards.items()):
            raise LateNames
        out = worked(self._stage, self._clock, lot)
        if (ended := out.get("fetch_sessions")) is not None:
            for cluster, part in split_by_cluster({"fetch_sessions": ended}):
                brokers = part["fetch_sessions"]["broker"].unique().to_pylist()
                self._shards |= {(cluster, broker or ""): told.get((cluster, broker or "")) for broker in brokers}
        return out

    def finish(self) -> dict[str, pa.Table]:
        """The rows that are settled once there are no more lots."""
        return finished(self._stage, self._clock)


class LateNames(Exception):
    """A message has told another name of what was named already, or rows came that belong before those given."""


class _Aside(NamedTuple):
    """Rows and messages in a spool, and up to when the rows before those of the next lot are complete."""

    tables: Mapping[str, Place]
    messages: Mapping[tuple[int, int], Place]
    mark: int


class Pieces:
    """Rows taken from a run, until they are worked on; of tables in `where`, those for which it holds. `coded`: tables
    whose rows come as codes."""

    def __init__(
        self, books: Books, where: Mapping[str, Filter] | None = None, coded: frozenset[str] = frozenset()
    ) -> None:
        self.books = books
        self.coded = coded
        self.where = where or {}
        self.rows: dict[str, list[pa.RecordBatch | pa.Table]] = {}
        self.count = 0
        self._messages: dict[tuple[int, int], list[pa.RecordBatch]] = {}

    def keep_part(self, part: RunPart) -> None:
        """Keep the rows of a part."""
        for name, batch in part.tables.items():
            if name in self.where:
                batch = self.books.builder.prefilter_rows(name, batch, self.where[name])
            if batch.num_rows:
                self.rows.setdefault(name, []).append(batch)
                self.count += batch.num_rows
        for kind, batch in part.beside.items():
            self._messages.setdefault(kind, []).append(batch)

    def tables(self) -> dict[str, pa.Table]:
        """Resolved tables. The rows are not kept."""
        return _resolved(self.books.builder, self.rows, self.coded)

    def codes(self, vocabulary: Coder) -> tuple[dict[str, Rows], list[NamedFetches]]:
        """Of the tables whose rows come as codes, these, resolved, and fetches that were read aside. The rows are
        not kept."""
        builder = self.books.builder
        rows = {name: self.rows.pop(name, []) for name in (READ_ASIDE, *(self.coded & builder.columns.keys()))}
        return resolve_coded(builder, rows, vocabulary)

    def sums(self) -> list[Sums]:
        """The per-topic totals of the rows, with the names that are known. The rows are not kept."""
        topics = self.books.builder.topics
        names = topics.names() if TRAFFIC in self.rows else {}
        pieces = self.rows.pop(TRAFFIC, ())
        if topics.given is not None:
            told = {known for piece in pieces for _, known in piece.topics if known}
            topics.given.names |= {(None, known): names.get(known) for known in told}
        clusters = [topics.brokers.resolve_clusters(pa.array(piece.clusters, TEXT)).to_pylist() for piece in pieces]
        return [piece.with_names(names, own) for piece, own in zip(pieces, clusters, strict=True)]

    def spool_all(self, spool: Spool, mark: int) -> _Aside:
        """Everything into the spool, unresolved. The rows are not kept."""
        from kdissect.engine.bounds.spool import together

        tables = {}
        for name in list(self.rows):
            table = together(self.rows.pop(name))
            if table is not None:
                tables[name] = spool.put(table)
        messages = {kind: spool.put(table) for kind, table in self.messages().items()}
        return _Aside(tables, messages, mark)

    def messages(self) -> dict[tuple[int, int], pa.Table]:
        """The further messages that were wanted, by API key and side."""
        return {kind: pa.Table.from_batches(batches) for kind, batches in self._messages.items()}


def resolve_coded(
    builder: TableBuilder, rows: Mapping[str, Sequence[Any]], vocabulary: Coder
) -> tuple[dict[str, Rows], list[NamedFetches]]:
    """The rows as `TableBuilder.resolve_codes` resolves them, by table, and fetches that were read aside (READ_ASIDE
    among `rows`)."""
    found = {}
    for name, pieces in rows.items():
        if name != READ_ASIDE:
            resolve = builder.resolve_later if name == MADE_LATER else builder.resolve_codes
            found[name] = Rows.together([resolve(piece, vocabulary) for piece in pieces] or [Rows({}, 0)])
    return found, [builder.resolve_fetches(piece) for piece in rows.get(READ_ASIDE, ())]


def _resolved(
    builder: TableBuilder, rows: dict[str, list[pa.RecordBatch | pa.Table]], coded: frozenset[str] = frozenset()
) -> dict[str, pa.Table]:
    """Resolved tables of these rows: all that a run makes part by part, but those that are coded. The rows are taken
    out."""
    found = {}
    for name in builder.columns:
        if TABLES[name].made.at_the_end or TABLES[name].made.analysis or name in coded:
            continue
        names = builder.working_columns(name, coded)  # pieces made before `narrow` have more
        made = [builder.resolve(name, piece.select(names)) for piece in rows.pop(name, ())]
        found[name] = unified(pa.concat_tables(made, promote_options="none")) if made else builder.finished(name, [])
    return found


def _pieces_of(tables: Mapping[str, pa.Table], name: str) -> list[pa.RecordBatch | pa.Table]:
    return [tables[name]] if name in tables else []

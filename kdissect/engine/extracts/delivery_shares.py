"""The table `deliveries` of a capture of any size: in one pass, in memory that does not grow with the capture.

The rows that deliveries are made of are gathered as columns of integers (`delivery_columns`). Once these are more than
GATHERED, they go into a temporary file, split by topic and partition into SHARES. When everything was read, one share
after the other is joined, and the rows are put in order on disk (`sorted_parts`). A share that is larger than the room
is split again. Of a single partition that is, the first exchanges are joined, and the others are left out, which is
reported.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from kdissect.analysis.deliveries.delivery_columns import Input, Names
from kdissect.analysis.deliveries.delivery_rows import DeliveryMaker
from kdissect.analysis.findings.phrases import many
from kdissect.capture import CaptureSet
from kdissect.engine.analysed_run import AnalysedRun
from kdissect.engine.bounds.room import READING, memory_text
from kdissect.engine.bounds.spool import Place, Spool
from kdissect.engine.extracts.overview import Names as Called
from kdissect.engine.saving.folder import select_rows
from kdissect.engine.saving.sorted_parts import Merge
from kdissect.engine.settings import Settings
from kdissect.output import scratch
from kdissect.tables.declaration import SCHEMAS
from kdissect.tables.where import Filter

NAME, WORDS = "deliveries", "words"
GATHERED = 24_000_000
"""Bytes of columns that are gathered before they go to the disk."""
SHARES = 64
"""Into which partitions of topics are dealt out: of a capture of 10 GB of small frames a share takes some 100 MB."""
COPIES = 5
"""How many times over a share lies in memory while it is joined."""


def deliveries(
    captures: Sequence[CaptureSet], settings: Settings, columns: Sequence[str], where: Filter | None
) -> Iterator[pa.Table]:
    """Rows for which the filter holds, in the contract's order, some at a time, with these columns and those that rows
    are ordered by. Raises ScratchFull (a KdissectError) where there is no room for temporary files."""
    with ExitStack() as open_files:
        maker, shares = Called(captures, settings).read_named(
            lambda names: _gathered(captures, settings, names, open_files)
        )
        made = (select_rows(NAME, maker.deliveries(share), columns, where) for share in shares.join_shares())
        if not shares.spilled:
            yield from made
        else:
            merge = Merge(NAME, _spool(open_files))
            for table in made:
                merge.add(table)
            yield from merge.ordered()
        _report_left_out(shares, settings)


def _gathered(
    captures: Sequence[CaptureSet], settings: Settings, names: Called, open_files: ExitStack
) -> tuple[DeliveryMaker, Shares]:
    run = AnalysedRun(captures, {NAME: SCHEMAS[NAME].names}, settings)
    maker = DeliveryMaker()
    room = None if settings.memory is None else (settings.memory - READING) // COPIES
    shares = Shares(maker.reader.names, open_files, room)
    for part in names.parts(run, replicas=True):
        if "exchanges" in part:
            shares.add(maker.read_tables(part))
    for name, piece in run.books.pieces_at_the_end():
        if name == "connections":
            maker.groups.take_connections(run.builder.finished(name, [piece]))
    return maker, shares


def _report_left_out(shares: Shares, settings: Settings) -> None:
    """Note the record batches for which there was no room: a line for people, and a problem for each partition."""
    if not shares.left_out:
        return
    allowed = memory_text(settings.memory)
    for partition, one in shares.left_out.items():
        fit = f"the first {one.kept:,} record batches fit in {allowed}"
        settings.limited.note_problem(partition, f"{fit}; {one.left_out:,} more are left out of deliveries")
    first, *others = shares.left_out
    of = first if not others else f"{first} and {many(len(others), 'more partition')}"
    count = sum(one.left_out for one in shares.left_out.values())
    fit = f"the first record batches of each partition fit in {allowed}"
    settings.limited.note(f"{fit}; {count:,} more are left out, of {of}")


def _spool(open_files: ExitStack) -> Spool:
    """A temporary file, made when rows are more than memory should hold. Raises ScratchFull."""
    return open_files.enter_context(Spool(Path(open_files.enter_context(scratch()))))


class _Piece(NamedTuple):
    """A piece of a share in the temporary file."""

    place: Place
    size: int
    batches: int


class _Cut(NamedTuple):
    """Record batches of a partition that is joined in part."""

    kept: int
    left_out: int


class Shares:
    """The rows that deliveries are made of, on their way to be joined. `open_files` closes the temporary file. `room`:
    bytes of a share that are joined at a time (None: any number)."""

    def __init__(self, names: Names, open_files: ExitStack, room: int | None) -> None:
        self._names, self._open_files, self._room = names, open_files, room
        self._gathered: list[Input] = []
        self._size = 0
        self._spool: Spool | None = None
        self._pieces: dict[int, list[_Piece]] = {}
        self.left_out: dict[str, _Cut] = {}
        """Partitions (`topic:partition`) that had no room for all of their record batches."""

    @property
    def spilled(self) -> bool:
        """Whether there is a temporary file, and more than one share."""
        return self._spool is not None

    def add(self, data: Input) -> None:
        """Gather some more."""
        self._gathered.append(data)
        self._size += data.size
        if self._size >= GATHERED:
            self._spill()

    def join_shares(self) -> Iterator[Input]:
        """Each share, with everything about its topics' partitions."""
        if self._spool is None:
            yield Input.join_pieces(self._gathered, self._names)
            return
        self._spill()
        for remainder in sorted(self._pieces):
            yield from self._share(self._pieces.pop(remainder), SHARES, remainder)

    def _share(self, pieces: Sequence[_Piece], divisor: int, remainder: int) -> Iterator[Input]:
        """The share of the places whose codes have this remainder."""
        if self._room is None or sum(piece.size for piece in pieces) <= self._room:
            yield Input.join_pieces([self._read(piece) for piece in pieces], self._names)
        elif remainder + divisor >= self._names.places:
            yield self._first_of(pieces, self._room, self._names.name_place(remainder))
        else:
            parts: dict[int, list[_Piece]] = {}
            for piece in pieces:
                self._write(self._read(piece), divisor, parts)
            for digit in sorted(parts):
                yield from self._share(parts[digit], divisor * SHARES, remainder + divisor * digit)

    def _first_of(self, pieces: Sequence[_Piece], room: int, partition: str) -> Input:
        """The first exchanges of a share for which there is room. Its rows are all of this partition."""
        first: list[Input] = []
        for piece in pieces:
            data = self._read(piece)
            if piece.size > room:
                data = data.of_first(len(data.exchanges) * room // piece.size)
                first.append(data)
                kept = sum(part.batches for part in first)
                if others := sum(one.batches for one in pieces) - kept:
                    self.left_out[partition] = _Cut(kept, others)
                break
            first.append(data)
            room -= piece.size
        return Input.join_pieces(first, self._names)

    def _spill(self) -> None:
        """Everything that was gathered into the temporary file, by share."""
        if self._gathered:
            self._write(Input.join_pieces(self._gathered, self._names), 1, self._pieces)
            self._gathered, self._size = [], 0

    def _write(self, data: Input, divisor: int, pieces: dict[int, list[_Piece]]) -> None:
        """Write the rows of each share, which the codes of places tell when divided by `divisor`."""
        if self._spool is None:
            self._spool = _spool(self._open_files)
        share = np.arange(self._names.places) // divisor % SHARES
        for number, part in enumerate(data.split(share, SHARES)):
            if part.size:
                place = self._spool.put(pa.table({WORDS: part.words()}))
                pieces.setdefault(number, []).append(_Piece(place, part.size, part.batches))

    def _read(self, piece: _Piece) -> Input:
        assert self._spool is not None
        return Input.of_words(self._spool.get(piece.place)[WORDS].combine_chunks().to_numpy(), self._names)

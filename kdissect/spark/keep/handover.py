"""Decoding for a job after which another one goes on: what that one needs is staged beside the rows.

Each capture that came to a partition is a run of its own, so that rows and what was learned can be taken over capture
by capture. Where the capture ends, its connections are settled (nothing that comes later can change a row of theirs)
or open, which the engine still has a state of, and which a 4-tuple shares with such a one. Of open ones the index rows
are staged too: a later job decodes those connections again, from their first packet on, with what follows them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import groupby
from operator import itemgetter

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from kdissect.arrays.growing import runs
from kdissect.arrays.typed_values import dumped, loaded
from kdissect.engine.inputs import Segments
from kdissect.engine.passes.measures import connection_measures
from kdissect.kafka.streams.dissector import Dissector
from kdissect.net.segment import FLOW, FLOW_COLUMNS
from kdissect.spark.cells.coded_cells import keys_of_rows, pack_rows, take_rows, unpack_rows
from kdissect.spark.cells.segment_cells import pack, unpack
from kdissect.spark.cells.table_cells import STAGED, Cell, cell, kept_note, read_cell, rows
from kdissect.spark.stages import decoding
from kdissect.spark.stages.decoding import LEARNED, Following, Learned
from kdissect.spark.stages.indexing import Chunks
from kdissect.spark.stages.matching.dealt_arrays import deal_rows, targets_of
from kdissect.spark.stages.matching.matching_steps import Looked, with_sights
from kdissect.spark.stages.partition_capture import rows_of_index, select_rows
from kdissect.spark.stages.plan import INDEX, Plan, RowKind
from kdissect.tables.identity import ID_BYTES, connection_ids

Words = npt.NDArray[np.int64]

KEPT = pa.schema([*STAGED, pa.field("source", pa.int32())])
"""Staged rows with the number of their capture."""
SETTLED, OPEN, PACKED, WHOLE = "_settled", "_open", "_packets", "_whole"
"""Staged rows that are no tables: what messages of settled connections told (`Learned`), ids of open connections, the
index rows of these, and that the capture cannot go on."""
CARRIED = pa.schema([field for field in INDEX if field.name in ("file", "chunk", "packed", "payload")])
"""Columns of index rows that are carried on."""
FLOW_LOOKS = "_looks"
"""Staged rows with what tells flows to captures that come later."""
OF_UNITS = "_of_units"
"""What the messages in units told."""
LOTS, LAST_LOT = 1 << 11, (1 << 30) - 1
"""Numbers of lots for each capture of a partition: who reads lots holds one at a time. Of more captures than half a
million some share theirs."""
SPOOL = 64 << 20
"""Bytes of packed index rows held in memory until the end; what is more waits in a temporary file."""


def decode(batches: Iterable[pa.RecordBatch], plan: Plan, origin: int = 0) -> Iterator[pa.RecordBatch]:
    """Index rows of one partition, in order, to rows of KEPT."""
    plan, batches = with_sights(batches, plan)
    for number, slices in groupby(_slices(batches), itemgetter(0)):
        yield from _of(number, Carrying(plan, number, origin).follow(batch for _, batch in slices))


def decode_units(batches: Iterable[pa.RecordBatch], plan: Plan, origin: int = 0) -> Iterator[pa.RecordBatch]:
    """Rows of KEPT that are units, in order of their capture, to rows of KEPT."""
    for number, slices in groupby(_slices(batches, "source"), itemgetter(0)):
        alone = replace(plan, sources=[plan.sources[number]])
        made = decoding.decode_units((batch for _, batch in slices), alone, origin)
        yield from _of(number, (_renamed(batch) for batch in made))


def _renamed(batch: pa.RecordBatch) -> pa.RecordBatch:
    """What units told has a name of its own: all of it is settled, but for problems of connections."""
    names = [OF_UNITS if name == LEARNED else name for name in batch.column("table").to_pylist()]
    return batch.set_column(0, STAGED.field(0), pa.array(names, pa.string()))


def _of(number: int, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Staged rows as rows of KEPT."""
    for batch in batches:
        source = pa.array(np.full(batch.num_rows, number, np.int32))
        yield pa.RecordBatch.from_arrays([*batch.columns, source], schema=KEPT)


def _slices(batches: Iterable[pa.RecordBatch], column: str = "capture") -> Iterator[tuple[int, pa.RecordBatch]]:
    """Rows cut by their capture."""
    for batch in batches:
        numbers = np.asarray(batch.column(column))
        for begin, end in runs(numbers):
            yield int(numbers[begin]), batch.slice(begin, end - begin)


class Carrying(Following):
    """The run over one capture's rows in one partition."""

    def __init__(self, plan: Plan, number: int, origin: int = 0) -> None:
        source = plan.sources[number]
        super().__init__(replace(plan, sources=[source]), origin, number * LOTS & LAST_LOT)
        self.inputs.ended = self._ended
        self._whole = not source.ranged
        self._live: Words = np.zeros((0, FLOW_COLUMNS), np.int64)
        self._told: bytes | None = None

    def follow(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Staged rows, then what a later job goes on from."""
        with tempfile.SpooledTemporaryFile(SPOOL) as spool:
            with pa.ipc.new_stream(spool, CARRIED) as writer:
                yield from super().follow(self._spooled(batches, writer))
            spool.seek(0)
            if self._whole:
                yield rows([Cell(WHOLE, "", b"")])
            elif self._told is not None:
                with pa.ipc.open_stream(spool) as reader:
                    yield from self._drop_names(reader)

    def _spooled(
        self, batches: Iterable[pa.RecordBatch], spool: pa.RecordBatchStreamWriter
    ) -> Iterator[pa.RecordBatch]:
        """The index rows as those of the only capture, once they are written down."""
        for batch in batches:
            kinds = np.asarray(batch.column("kind"))
            self._whole = self._whole or bool((kinds == RowKind.KEYS).any())
            if not self._whole:
                spool.write_batch(batch.select(CARRIED.names).filter(pa.array(kinds == RowKind.PACKETS)))
            at = batch.schema.get_field_index("capture")
            yield batch.set_column(at, batch.schema.field(at), pa.array(np.zeros(batch.num_rows, np.int32)))

    def _ended(self, dissector: Dissector, segments: Segments) -> None:
        self._live = segments.flows[dissector.known_flows(len(segments.flows))]
        self._told = dumped(self.learned([]), Learned)

    def _drop_names(self, spooled: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        table = self.books.ledger.connections
        client, broker = ((table.client_hi, table.client_lo), (table.broker_hi, table.broker_lo))
        ports = table.client_port.astype(np.int64), table.broker_port.astype(np.int64)
        asks = np.stack([*client, *broker, (ports[0] << 16 | ports[1]).view(np.uint64)], axis=1)
        answers = np.stack([*broker, *client, (ports[1] << 16 | ports[0]).view(np.uint64)], axis=1)
        live = _keys(self._live)
        still = np.isin(_keys(asks.view(np.int64)), live) | np.isin(_keys(answers.view(np.int64)), live)
        told: Learned = loaded(self._told or b"", Learned)
        told.quality = list(connection_measures(self.plan.sources[0].name, table, ~still))
        yield rows([Cell(OPEN, "", table.id[still].tobytes()), kept_note(SETTLED, told, Learned)])
        for batch in spooled if len(live) else ():
            for file, chunk, packed, payload in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                kept = _only(packed, payload, live)
                if kept is not None:
                    carried = dict(zip(CARRIED.names, (file, chunk, *kept), strict=True))
                    yield rows([Cell(PACKED, "", cell(pa.Table.from_pylist([carried], CARRIED)))])


def _keys(flows: Words) -> npt.NDArray[np.void]:
    """Each row of flows as one value."""
    whole = np.ascontiguousarray(flows)
    return whole.view(np.dtype((np.void, whole.dtype.itemsize * FLOW_COLUMNS))).reshape(-1)


def _only(packed: bytes, payload: bytes | None, live: npt.NDArray[np.void]) -> tuple[bytes, bytes | None] | None:
    """Packed rows of these flows; None for none."""
    made, flows = unpack(packed)
    wanted = np.isin(_keys(flows), live)[made[:, FLOW] >> 1]
    part, mine, payload = select_rows(made, flows, payload, wanted)
    return (pack(np.ascontiguousarray(part.T), mine), payload) if len(part) else None


def indexed(batches: Iterable[pa.RecordBatch], plan: Plan, numbers: Mapping[int, int]) -> Iterator[pa.RecordBatch]:
    """Rows of KEPT with index rows of open connections to index rows of this job. `numbers`: a capture's number in the
    job that left them -> in this one."""
    for batch in batches:
        for data, number in zip(batch.column("data"), batch.column("source").to_pylist(), strict=True):
            file, chunk, packed, payload = read_cell(data.as_py()).to_pylist()[0].values()
            source = numbers[number]
            made, flows = unpack(packed)
            yield from Chunks(plan, source, file, plan.sources[source]).again(chunk, made, flows, payload)


def kept_looks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """LOOKS rows to rows of KEPT."""
    for number, _, packed, _ in rows_of_index(batches):
        yield from _of(number, [rows([Cell(FLOW_LOOKS, "", packed)])])


def looks_again(batches: Iterable[pa.RecordBatch], plan: Plan, numbers: Mapping[int, int]) -> Iterator[pa.RecordBatch]:
    """Rows of KEPT with looks to LOOKS of this job. `numbers`: as of `indexed`."""
    for batch in batches:
        for data, number in zip(batch.column("data"), batch.column("source").to_pylist(), strict=True):
            look = loaded(data.as_py(), Looked)
            yield from deal_rows(RowKind.LOOKS, look, targets_of(look.mark, plan.labels), numbers[number])


def settled_rows(
    batches: Iterable[pa.RecordBatch], ids: Mapping[int, npt.NDArray[np.uint64]], coded: Collection[str]
) -> Iterator[pa.RecordBatch]:
    """Rows of KEPT to staged rows without those of these connections, by the number of their capture. `coded`: tables
    whose rows are codes (`decoding.coded_tables`)."""
    texts = {number: connection_ids(some) for number, some in ids.items()}
    for batch in batches:
        for i in range(batch.num_rows):
            name, broker, data, at, lot, origin, number = (column[i].as_py() for column in batch.columns)
            if name in coded:
                known = unpack_rows(data, origin)
                others = np.flatnonzero(~np.isin(keys_of_rows(known)[0].view(np.uint64), ids[number]))
                if len(others):
                    yield rows([Cell(name, broker, pack_rows(take_rows(known, others)), at, lot, origin)])
                continue
            table = read_cell(data)
            owner = "connection_id" if "connection_id" in table.column_names else "exchange_id"
            owners = pc.utf8_slice_codeunits(table[owner].cast(pa.string()), 0, ID_BYTES)
            kept = table.filter(pc.invert(pc.is_in(owners, value_set=texts[number])))
            if kept.num_rows:
                yield rows([Cell(name, broker, cell(kept), at, lot, origin)])

"""`exchanges` as Chrome trace events, which Perfetto and Chrome's own viewer show: a process for each connection.

Rules: the Trace Event Format (JSON object format). An exchange is a nestable asynchronous slice (`b` and `e`, id its
exchange id), because a connection may have several in flight at once. The parts of its latency are slices inside it,
one behind the other in the order of `PARTS`; the network's way up and down stands as one part. An exchange without a
response or a request is an instant (`n`). Times are microseconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from kdissect.arrays.arrow import numbers
from kdissect.tables.declaration.model import TEXT
from kdissect.tables.formats import conforming, json_texts

PARTS = ("request_transfer_ms", "network_ms", "queued_ms", "broker_ms", "response_transfer_ms")
"""What adds up to latency_ms."""
REQUIRED = (
    "exchange_id", "connection_id", "api", "client_ip", "client_port", "client_id", "broker", "request_first_at",
    "response_first_at", "latency_ms", *PARTS,
)  # fmt: skip
SHOWN = ("client_id", "api_version", "status", "error", "hold", "request_bytes", "response_bytes", "request_frame",
         "response_frame")  # fmt: skip
"""Columns that stand with a slice unless others are asked for."""
CATEGORY = "kafka"

Change = Callable[[pa.Array], pa.Array]
Int64s = npt.NDArray[np.int64]


def write_trace_events(
    schema: pa.Schema, batches: Iterable[pa.RecordBatch], sink: BinaryIO, changes: Sequence[Change] = ()
) -> int:
    """The file. Batches have at least the columns REQUIRED; all others become arguments of the slices. Returns the
    number of rows."""
    rows = 0
    processes: dict[str, int] = {}
    sink.write(b'{"displayTimeUnit":"ms","traceEvents":[')
    separator = "\n"
    for batch in conforming(schema, batches):
        if batch.num_rows:
            events = [*_names(batch, processes, changes), *_slices(batch, processes, changes)]
            sink.write((separator + ",\n".join(events)).encode())
            separator = ",\n"
            rows += batch.num_rows
    sink.write(b"\n]}\n")
    return rows


def _texts(column: pa.Array, changes: Sequence[Change]) -> pa.Array:
    made = json_texts(column)
    for change in changes:
        made = change(made)
    return made


def _names(batch: pa.RecordBatch, processes: dict[str, int], changes: Sequence[Change]) -> list[str]:
    """Events that name the processes of new connections; gives each process a number."""
    coded = batch.column("connection_id").cast(TEXT).dictionary_encode()
    first = np.unique(numbers(coded.indices), return_index=True)[1]
    ids = coded.dictionary.to_pylist()
    new = [place for place in first.tolist() if ids[coded.indices[place].as_py()] not in processes]
    for place in new:
        processes[ids[coded.indices[place].as_py()]] = len(processes) + 1
    some = batch.take(pa.array(new, pa.int64()))
    client_id, ip, port, broker = (
        some.column(name).cast(TEXT).fill_null("?") for name in ("client_id", "client_ip", "client_port", "broker")
    )
    called = pc.binary_join_element_wise(client_id, " ", ip, ":", port, " to broker ", broker, "")
    texts = _texts(called, changes).to_pylist()
    numbered = [processes[name] for name in some.column("connection_id").to_pylist()]
    return [
        f'{{"ph":"M","pid":{number},"name":"process_name","args":{{"name":{text}}}}}'
        for number, text in zip(numbered, texts, strict=True)
    ]


def _slices(batch: pa.RecordBatch, processes: dict[str, int], changes: Sequence[Change]) -> list[str]:
    """The events of a batch's exchanges. Of events at one instant, the order in the file decides what encloses what."""
    coded = batch.column("connection_id").cast(TEXT).dictionary_encode()
    pids = pa.array([processes[name] for name in coded.dictionary.to_pylist()], pa.int64()).cast(TEXT)
    ids = _texts(batch.column("exchange_id"), changes)
    head = f'"cat":"{CATEGORY}","tid":0,"pid":'
    common = pc.binary_join_element_wise(head, pids.take(coded.indices), ',"id":', ids, ',"name":', "")
    name = _texts(batch.column("api").cast(TEXT).fill_null("unknown"), changes)
    begin, begun = _nanoseconds(batch.column("request_first_at"))
    answered, known = _nanoseconds(batch.column("response_first_at"))
    latency = np.asarray(batch.column("latency_ms").is_valid())
    whole = begun & latency
    end = begin + _milliseconds(batch.column("latency_ms"))
    arguments = _arguments(batch, changes)
    alone = ~whole & (begun | known)
    events = _events("n", common, name, np.where(begun, begin, answered), alone, arguments)
    events += _events("b", common, name, begin, whole, arguments)
    at = begin
    for part in PARTS:
        after = np.minimum(at + _milliseconds(batch.column(part)), end)
        called = pa.array([f'"{part.removesuffix("_ms")}"'] * len(batch.column(part)), TEXT)
        events += _events("b", common, called, at, whole & (after > at))
        events += _events("e", common, called, after, whole & (after > at))
        at = after
    return events + _events("e", common, name, end, whole)


def _arguments(batch: pa.RecordBatch, changes: Sequence[Change]) -> pa.Array:
    """The columns that no event shows by itself as a JSON object a row."""
    names = [name for name in batch.schema.names if name not in REQUIRED or name == "client_id"]
    parts = [
        pc.binary_join_element_wise(f'{"," if i else ""}"{name}":', _texts(batch.column(name), changes), "")
        for i, name in enumerate(names)
    ]
    return pc.binary_join_element_wise("{", *parts, "}", "")


def _events(
    phase: str,
    common: pa.Array,
    name: pa.Array,
    at: Int64s,
    has_event: npt.NDArray[np.bool_],
    arguments: pa.Array = None,
) -> list[str]:
    """One event for each row that is `has_event`, at these nanoseconds."""
    rows = pa.array(np.flatnonzero(has_event))
    when = pa.array([f"{ns // 1000}.{ns % 1000:03d}" for ns in at[has_event].tolist()], TEXT)
    rest = [',"args":', arguments.take(rows)] if arguments is not None else []
    parts = [f'{{"ph":"{phase}",', common.take(rows), name.take(rows), ',"ts":', when, *rest]
    made: list[str] = pc.binary_join_element_wise(*parts, "}", "").to_pylist()
    return made


def _nanoseconds(column: pa.Array) -> tuple[Int64s, npt.NDArray[np.bool_]]:
    """Times as nanoseconds since the epoch, and which are known."""
    return numbers(column.cast(pa.int64()), 0).astype(np.int64) * 1000, np.asarray(column.is_valid())


def _milliseconds(column: pa.Array) -> Int64s:
    """Milliseconds as nanoseconds, 0 where unknown."""
    rounded: Int64s = np.rint(column.fill_null(0.0).to_numpy(zero_copy_only=False) * 1e6).astype(np.int64)
    return rounded

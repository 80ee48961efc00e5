"""Packets and TCP segments of a capture file as rows: what a data source can read without a shuffle.

Declared as the tables of the contract are, and made of the same reader and scanner, block by block.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kdissect.capture import CaptureSet, link_name
from kdissect.capture.block import Block
from kdissect.capture.captureset import Member
from kdissect.capture.pcap import PACKET, scatter
from kdissect.capture.window import EXTRA
from kdissect.net import segment as s
from kdissect.net.scanner import BEGIN, END, Scanner
from kdissect.net.segment import FLOW, SEGMENT
from kdissect.problems import UsageError
from kdissect.tables.declaration.model import BINARY, CAPTURE, CODE, COUNT, TEXT, TIME, By, Column, Table, table
from kdissect.tables.identity import address
from kdissect.tables.suggestion import near

Words = npt.NDArray[np.int64]

_FILE = Column("file", TEXT, "File of the capture.")
_FRAME = Column("frame", COUNT, "Number of the packet in its file, as Wireshark counts.")

PACKETS = table(
    "packets",
    "packet",
    CAPTURE,
    _FILE,
    _FRAME,
    Column("at", TIME, "When it was captured."),
    Column("link", TEXT, "Link type of its interface, such as Ethernet."),
    Column("captured_bytes", COUNT, "Bytes captured."),
    Column("bytes", COUNT, "Bytes on the wire."),
    Column("data", BINARY, "The captured bytes."),
    made=By.FILE,
    key=(),
)
SEGMENTS = table(
    "segments",
    "TCP packet, also those that carry nothing",
    CAPTURE,
    _FILE,
    _FRAME,
    Column("at", TIME, "When it was captured."),
    Column("source_ip", TEXT, "Address of the sender, innermost where there are tunnels."),
    Column("source_port", CODE, "Port of the sender."),
    Column("destination_ip", TEXT, "Address of the receiver."),
    Column("destination_port", CODE, "Port of the receiver."),
    Column("sequence", COUNT, "Sequence number as on the wire, 32 bits unsigned."),
    Column("acknowledgement", COUNT, "Acknowledgement number, 32 bits unsigned; null without the ACK flag."),
    Column("flags", CODE, "TCP flags: 1 FIN, 2 SYN, 4 RST, 8 PSH, 16 ACK, 32 URG."),
    Column("window", CODE, "Window as on the wire, not scaled."),
    Column("payload_bytes", COUNT, "Payload bytes on the wire."),
    Column("captured_bytes", COUNT, "Payload bytes captured; fewer where the snap length cut."),
    Column("payload", BINARY, "The captured payload."),
    made=By.FILE,
    key=(),
)
TABLES: dict[str, Table] = {one.name: one for one in (PACKETS, SEGMENTS)}


def schema_of(name: str, columns: Sequence[str] | None = None) -> pa.Schema:
    """The schema of one of TABLES, or of some of its columns. Raises UsageError for a column that it has not, and for
    one that is there twice."""
    whole = TABLES[name].schema
    named = columns or ()
    for at, column in enumerate(named):
        if column in named[:at]:
            raise UsageError(f"column {column!r} of table {name!r} is named twice")
        if column not in whole.names:
            raise UsageError(f"table {name!r} has no column {column!r}{near(column, whole.names)}")
    return whole if columns is None else pa.schema([whole.field(column) for column in columns])


def read(
    name: str, capture: str, member: Member, columns: Sequence[str], after: int | None = None, before: int | None = None
) -> Iterator[pa.RecordBatch]:
    """Rows of one file for one of TABLES: these columns, times (ns) between `after` and `before`.

    Raises CaptureError when the file cannot be read.
    """
    files = CaptureSet(capture, [member])
    scanner = Scanner(files, after, before)
    make = _packets if name == PACKETS.name else _segments
    schema = pa.schema([field.remove_metadata() for field in schema_of(name, columns)])
    window = files.window()
    try:
        for block in files.blocks(window):
            made = make(block, scanner, columns)
            size = len(next(iter(made.values()))) if made else 0
            if size:
                made |= {"capture": pa.repeat(capture, size), "file": pa.repeat(member.name, size)}
                yield pa.RecordBatch.from_arrays([made[field.name].cast(field.type) for field in schema], schema=schema)
    finally:
        files.close()


def _packets(block: Block, scanner: Scanner, columns: Sequence[str]) -> dict[str, pa.Array]:
    rows = block.packets
    time = rows[:, PACKET.time]
    if scanner.after != BEGIN or scanner.before != END:
        rows = rows[(time >= scanner.after) & (time <= scanner.before)]
    kinds, place = np.unique(rows[:, PACKET.link] & 0xFFFF, return_inverse=True)
    names = pa.array([link_name(kind) for kind in kinds.tolist()], pa.string())
    made = {
        "frame": pa.array(rows[:, PACKET.number]),
        "at": _times(rows[:, PACKET.time]),
        "link": names.take(pa.array(place)),
        "captured_bytes": pa.array(rows[:, PACKET.captured]),
        "bytes": pa.array(rows[:, PACKET.original]),
    }
    if "data" in columns:
        made["data"] = _binary(block.window.data, rows[:, PACKET.at], rows[:, PACKET.captured])
    return made


def _segments(block: Block, scanner: Scanner, columns: Sequence[str]) -> dict[str, pa.Array]:
    rows = scanner.scan(block)
    used, place = np.unique(rows[:, SEGMENT.flow] >> 1, return_inverse=True)
    flows = scanner.flows[used]
    ends = [
        pa.array([address(int(a), int(b)) for a, b in flows[:, halves].astype(np.uint64).tolist()], pa.string())
        for halves in ([FLOW.a_high, FLOW.a_low], [FLOW.b_high, FLOW.b_low])
    ]
    both = pa.concat_arrays(ends)
    ports = np.concatenate([flows[:, FLOW.ports] >> 16, flows[:, FLOW.ports] & 0xFFFF])
    back = rows[:, SEGMENT.flow] & 1
    source, target = place + back * len(used), place + (1 - back) * len(used)
    flags = rows[:, SEGMENT.flags]
    made = {
        "frame": pa.array(rows[:, SEGMENT.packet] & ((1 << s.FILE_SHIFT) - 1)),
        "at": _times(rows[:, SEGMENT.time]),
        "source_ip": both.take(pa.array(source)),
        "source_port": pa.array(ports[source]),
        "destination_ip": both.take(pa.array(target)),
        "destination_port": pa.array(ports[target]),
        "sequence": pa.array(rows[:, SEGMENT.seq]),
        "acknowledgement": pa.array(rows[:, SEGMENT.ack], mask=flags & s.ACK_FLAG == 0),
        "flags": pa.array(flags & 0xFF),
        "window": pa.array(flags >> s.WINDOW_SHIFT & 0xFFFF),
        "payload_bytes": pa.array(rows[:, SEGMENT.wire]),
        "captured_bytes": pa.array(rows[:, SEGMENT.len]),
    }
    if "payload" in columns:
        at = rows[:, SEGMENT.at] - block.delta
        for i in np.flatnonzero(rows[:, SEGMENT.at] >= EXTRA).tolist():  # packets put together from fragments: few
            at[i] = block.window.locate(int(rows[i, SEGMENT.at]), int(rows[i, SEGMENT.len]))
        made["payload"] = _binary(block.window.data, at, rows[:, SEGMENT.len])
    return made


def _times(ns: Words) -> pa.Array:
    """Times as the tables have them; null for packets without one."""
    return pa.array(ns // 1000, mask=ns == 0).cast(TIME)


def _binary(data: npt.NDArray[np.uint8], at: Words, size: Words) -> pa.Array:
    """Ranges of the window as a binary column: at most a block's bytes, so 32-bit offsets do."""
    at, size = np.ascontiguousarray(at), np.ascontiguousarray(size)
    offsets = np.zeros(len(at) + 1, np.int64)
    np.cumsum(size, out=offsets[1:])
    out = np.empty(int(offsets[-1]), np.uint8)
    scatter(data, at, size, out, offsets[:-1].copy())
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(out)]
    return pa.Array.from_buffers(pa.binary(), len(at), buffers)

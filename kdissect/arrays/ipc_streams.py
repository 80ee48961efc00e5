"""Tables as Arrow IPC streams."""

from __future__ import annotations

import pyarrow as pa


def write_stream(table: pa.Table, sink: pa.NativeFile, options: pa.ipc.IpcWriteOptions | None = None) -> None:
    """Write a table to a sink, which stays open."""
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)


def pack_stream(table: pa.Table, options: pa.ipc.IpcWriteOptions | None = None) -> pa.Buffer:
    """The bytes that `write_stream` writes."""
    with pa.BufferOutputStream() as sink:
        write_stream(table, sink, options)
        return sink.getvalue()

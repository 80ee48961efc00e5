"""Reads tables below a folder as somebody else's readers do, without Spark: Delta by delta-rs, Iceberg by pyiceberg,
Parquet by its path. Run by test_lake_tables.py.

    python lake_reader.py FORMAT FOLDER poll     counts rows of `exchanges` until its input ends, a line each time
    python lake_reader.py FORMAT FOLDER rows     writes them once, as an Arrow stream
"""

from __future__ import annotations

import os
import select
import sys
from pathlib import Path
from typing import Any


def delta(folder: Path) -> Any:
    """The rows as they are now."""
    from deltalake import DeltaTable

    return DeltaTable(str(folder)).to_pyarrow_table()


def iceberg(folder: Path) -> Any:
    """The rows as they are now: of the newest metadata, as a Hadoop catalog without its hint finds them."""
    from pyiceberg.table import StaticTable

    newest = max((folder / "metadata").glob("v*.metadata.json"), key=lambda path: int(path.name.split(".")[0][1:]))
    return StaticTable.from_metadata(str(newest)).scan().to_arrow()


def parquet(folder: Path) -> Any:
    """The rows of the snapshot that the table is now."""
    import pyarrow.dataset

    return pyarrow.dataset.dataset(os.path.realpath(folder), format="parquet", partitioning="hive").to_table()


READERS = {"delta": delta, "iceberg": iceberg, "parquet": parquet}


def main(form: str, output: str, what: str) -> None:
    read, folder = READERS[form], Path(output) / "exchanges"
    if what == "rows":
        import pyarrow

        table = read(folder)
        with pyarrow.ipc.new_stream(sys.stdout.buffer, table.schema) as stream:
            stream.write_table(table)
        sys.stdout.flush()
        os._exit(0)  # delta-rs's threads may end the process with an abort, once all is written
    while not select.select([sys.stdin], [], [], 0.25)[0]:
        try:
            print(read(folder).num_rows, flush=True)
        except Exception as error:  # whatever it is, a reader met it
            print(f"{type(error).__name__}: {error}".splitlines()[0], flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

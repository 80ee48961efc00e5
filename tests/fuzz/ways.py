"""Every table is the same in whatever way a capture is read: `python -m tests.fuzz.ways CAPTURES [SEED]`.

Captures are those of `metamorphic`, many in a file. Each file is read once as it always is, in blocks of some
kilobytes, and then in each of `WAYS`; rows must be equal in all columns and in their order.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa

import kdissect
from kdissect.capture.window import Window
from kdissect.kafka.exchanges.completion import Completion
from kdissect.kafka.streams.dissector import Dissector
from tests.fuzz import metamorphic
from tests.fuzz.campaign import keep
from tests.fuzz.metamorphic import TOGETHER, inputs, side_by_side, small_blocks, written


def without_lane() -> AbstractContextManager[Any]:
    """No packet takes the fast lane."""
    return mock.patch.object(Dissector, "LANE", False)


def wide_blocks() -> AbstractContextManager[Any]:
    """All packets are large ones."""
    return mock.patch.object(metamorphic, "Window", partial(Window, wide=3))


def in_pieces() -> AbstractContextManager[Any]:
    """Frames of any size stay in their pieces, where that may be."""
    return mock.patch.object(Completion, "LARGE", 0)


WAYS: dict[str, tuple[Callable[[], AbstractContextManager[Any]], dict[str, Any]]] = {
    "no fast lane": (without_lane, {"jobs": 1}),
    "two threads": (nullcontext, {"jobs": 2}),
    "wide blocks": (wide_blocks, {"jobs": 1}),
    "frames in pieces": (in_pieces, {"jobs": 1}),
    "three threads": (nullcontext, {"jobs": 3}),
}
"""By name, what is switched while a capture is read, and options of `kdissect.open`."""


def read(path: Path, **options: Any) -> dict[str, pa.Table]:
    """All tables of a file, in small blocks."""
    with small_blocks():
        return kdissect.open(path, **options).tables()


def differing(path: Path) -> list[str]:
    """The ways and tables that differ from what one thread reads."""
    want = read(path, jobs=1)
    found = []
    for way, (switched, options) in WAYS.items():
        with switched():
            got = read(path, **options)
        found += [f"{way}: {name}" for name, table in want.items() if not got[name].equals(table)]
    return found


def compare(most: int, seed: int = 1) -> int:
    """Compare so many captures, and say how many exchanges they had. Raises AssertionError for a difference."""
    every, exchanges = itertools.islice(inputs(seed), most), 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "capture.pcap"
        while lot := list(itertools.islice(every, TOGETHER)):
            data = written(side_by_side([packets for *_, packets in lot]))
            path.write_bytes(data)
            found = differing(path)
            if found:
                keep(lot[0][0], lot[0][1], data)
            assert not found, f"seeds {[number for number, *_ in lot]}: {found}"
            exchanges += kdissect.open(path).table("exchanges", ["api"]).num_rows
    return exchanges


def main() -> None:
    most, seed = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1
    print(f"{most:,} captures with {compare(most, seed):,} exchanges: no difference in any table")


if __name__ == "__main__":
    main()

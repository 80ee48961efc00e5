"""Every table is the same in whatever way a capture is read: `python -m tests.fuzz.ways CAPTURES [SEED]`.

Captures are those of `metamorphic`, many in a file. Each file is read once as it always is, in blocks of some
kilobytes, and then in each of `WAYS`; rows must be equal in all columns and in their order. The first screen of these
captures, after some healthy traffic, is made once with every row that findings read, and then in each of `SCREENS`;
all that it says must be equal.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa

import kdissect
from kdissect.capture.window import Window
from kdissect.engine import analysed_run
from kdissect.engine.extracts import overview
from kdissect.engine.saving import evidence_rows
from kdissect.kafka.exchanges.completion import Completion
from kdissect.kafka.streams.dissector import Dissector
from kdissect.summary import Summary
from kdissect.summary.spending import Spending
from tests.bench.packets import write
from tests.bench.workloads import plain
from tests.fuzz import metamorphic
from tests.fuzz.campaign import keep
from tests.fuzz.metamorphic import BEGIN, TOGETHER, Packet, inputs, packets_of, side_by_side, small_blocks, written


def without_lane() -> AbstractContextManager[Any]:
    """No packet takes the fast lane."""
    return mock.patch.object(Dissector, "LANE", False)


def wide_blocks() -> AbstractContextManager[Any]:
    """All packets are large ones."""
    return mock.patch.object(metamorphic, "Window", partial(Window, wide=3))


def in_pieces() -> AbstractContextManager[Any]:
    """Frames of any size stay in their pieces, where that may be."""
    return mock.patch.object(Completion, "LARGE", 0)


HEALTHY_BYTES = 600_000
"""Some blocks of `small_blocks`."""
Switch = Callable[[], AbstractContextManager[Any]]
Tables = dict[str, pa.Table]


def read_all(path: Path, **options: Any) -> Tables:
    """All tables of a file, in small blocks."""
    with small_blocks():
        return kdissect.open(path, **options).tables()


def read_exchanges(path: Path, **options: Any) -> Tables:
    """The table `exchanges` and no other, in small blocks."""
    with small_blocks():
        return {"exchanges": kdissect.open(path, **options).table("exchanges")}


def sort_exchanges(path: Path, **options: Any) -> Tables:
    """The table `exchanges` in batches, which temporary files put in order, from small blocks."""
    with small_blocks():
        return {"exchanges": pa.Table.from_batches(kdissect.open(path, **options).ordered("exchanges"))}


WAYS: dict[str, tuple[Switch, Callable[..., Tables], dict[str, Any]]] = {
    "no fast lane": (without_lane, read_all, {"jobs": 1}),
    "two threads": (nullcontext, read_all, {"jobs": 2}),
    "wide blocks": (wide_blocks, read_all, {"jobs": 1}),
    "frames in pieces": (in_pieces, read_all, {"jobs": 1}),
    "three threads": (nullcontext, read_all, {"jobs": 3}),
    "exchanges alone": (nullcontext, read_exchanges, {"jobs": 1}),
    "exchanges alone, two threads": (nullcontext, read_exchanges, {"jobs": 2}),
    "exchanges alone, in batches": (nullcontext, sort_exchanges, {"jobs": 1}),
}
"""By name, what is switched while a capture is read, what is read, and options of `kdissect.open`."""


def all_evidence() -> AbstractContextManager[Any]:
    """The first screen keeps every row of the tables that findings read."""
    return mock.patch.object(evidence_rows, "FEW", 1.0)


def chosen_evidence() -> AbstractContextManager[Any]:
    """The first screen keeps only rows that findings can depend on, from the first row on."""
    return mock.patch.object(evidence_rows, "FEW", -1)


def no_room() -> AbstractContextManager[Any]:
    """The first screen has room for hardly any evidence, and counts what comes after it by codes."""
    stack = ExitStack()
    for changed in (
        mock.patch.object(overview, "EVIDENCE", 20),
        mock.patch.object(overview, "HELD_BACK", 0),
        mock.patch.object(Spending.__init__, "__defaults__", (10,)),
        mock.patch.object(analysed_run, "ROWS_A_TIME", 0),
    ):
        stack.enter_context(changed)
    return stack


BOUNDED = frozenset({"findings", "findings_of", "budget", "deliveries", "deliveries_of"})
"""What a first screen says of the first rows only, where it has no room for more."""
SCREENS: dict[str, tuple[Switch, frozenset[str], dict[str, Any]]] = {
    "first screen of chosen evidence": (chosen_evidence, frozenset(), {"jobs": 1}),
    "first screen beyond its evidence": (no_room, BOUNDED, {"jobs": 1}),
    "first screen beyond its evidence, two threads": (no_room, BOUNDED, {"jobs": 2}),
}
"""By name, what is switched while a first screen is made, what it may leave out, and options of `kdissect.open`."""


def first_screen(path: Path, **options: Any) -> Summary:
    """The first screen of a file, in small blocks, without the names of the slowest exchanges: of several that took
    equally long any may be named."""
    with small_blocks():
        summary = kdissect.open(path, **options).summary()
    return summary._replace(latencies=[line._replace(slowest=None) for line in summary.latencies])


def healthy(folder: Path) -> list[Packet]:
    """Traffic that ends before all captures begin. Each of its requests is answered, so its rows are settled at once
    and fill what room there is for evidence. The first unanswered request of a damaged capture holds later rows
    back."""
    path = folder / "healthy.pcap"
    write(path, plain(), HEALTHY_BYTES, 16, step_us=100)
    packets = packets_of(path.read_bytes())
    earlier = packets[-1][0] - BEGIN + 10**9
    return [(when - earlier, data, original) for when, data, original in packets]


def differing(path: Path) -> list[str]:
    """The ways and tables that differ from what one thread reads."""
    want = read_all(path, jobs=1)
    found = []
    for way, (switched, reads, options) in WAYS.items():
        with switched():
            got = reads(path, **options)
        found += [f"{way}: {name}" for name, table in got.items() if not table.equals(want[name])]
    return found


def differing_screens(path: Path) -> list[str]:
    """The parts of first screens that differ from the one that keeps all rows."""
    with all_evidence():
        whole = first_screen(path, jobs=1)
    found = []
    for way, (switched, bounded, options) in SCREENS.items():
        with switched():
            other = first_screen(path, **options)
        names = [name for name in whole._fields if name not in bounded]
        found += [f"{way}: {name}" for name in names if getattr(other, name) != getattr(whole, name)]
    return found


def compare(most: int, seed: int = 1) -> int:
    """Compare so many captures, and say how many exchanges they had. Raises AssertionError for a difference."""
    every, exchanges = itertools.islice(inputs(seed), most), 0
    with tempfile.TemporaryDirectory() as folder:
        path, after = Path(folder) / "capture.pcap", Path(folder) / "after.pcap"
        first = healthy(Path(folder))
        while lot := list(itertools.islice(every, TOGETHER)):
            damaged = side_by_side([packets for *_, packets in lot])
            data = written(damaged)
            path.write_bytes(data)
            after.write_bytes(written(first + damaged))
            found = differing(path) + differing_screens(after)
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

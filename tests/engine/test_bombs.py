"""Small captures that stand for very much: records, values and names. No command takes more than its budget."""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
import zstandard

import kdissect
from kdissect.cli.printing.table_rows import SHOWN, UNKNOWN, _cells
from tests.bench.measure import run
from tests.kafka.records.building import batch, record, varint
from tests.oracle.pcap import Talk, framed, pcap

BUDGET = 512 * 10**6
ADDRESSES = 2 * 10**9
PIECE = 60_000
"""Bytes of a segment."""
COMMANDS = (
    [], ["--table", "records"], ["--table", "records", "--reveal"], ["--table", "record_batches"],
    ["--table", "fetch_partitions"], ["--messages", "Fetch.response"], ["-o", "@OUT/"], ["--html", "@OUT"],
    ["sessions"], ["traffic"], ["latency", "--by", "client,topic"], ["timeline"], ["budget"],
    ["stream", "--client", "c"], ["sql", "select topic, count(*) from fetch_partitions group by topic"],
    ["redact", "-o", "@OUT"], ["show", "--frame", "@LAST"],
)  # fmt: skip
"""A command's words; its capture comes behind the first one, if that is a command's name."""


def fetched(topics: list[tuple[bytes, list[bytes]]]) -> tuple[bytes, bytes]:
    """A Fetch request and response (version 4) for the record sets of partitions, by topic."""
    asked = struct.pack(">hhih", 1, 4, 7, 1) + b"c" + struct.pack(">iiiibi", -1, 500, 1, 50 << 20, 0, len(topics))
    told = struct.pack(">iii", 7, 0, len(topics))
    for name, sets in topics:
        head = struct.pack(">h", len(name)) + name + struct.pack(">i", len(sets))
        asked += head + b"".join(struct.pack(">iqi", n, 0, 1 << 20) for n in range(len(sets)))
        told += head + b"".join(
            struct.pack(">ihqqii", n, 0, 100, 100, -1, len(records)) + records for n, records in enumerate(sets)
        )
    return framed(asked), framed(told)


def capture(topics: list[tuple[bytes, list[bytes]]]) -> tuple[bytes, int]:
    """A capture of one fetch, and its last packet's number."""
    talk, ms = Talk(), 10.0
    talk.handshake()
    for side, data in enumerate(fetched(topics)):
        for at in range(0, len(data), PIECE):
            ms += 0.1
            talk.put(ms, side, at, data[at : at + PIECE])
    return pcap(talk.packets), len(talk.packets)


def records() -> tuple[bytes, int]:
    """Two batches of 200,000 empty records each."""
    empty = record(0, None, None)
    one = batch(zstandard.compress(empty * 200_000, 19), 200_000, attributes=4)
    return capture([(b"t", [one] * 2)])


def values() -> tuple[bytes, int]:
    """20 batches with a value of 1 GB each, and one with 200 of 10 MB."""
    size = 10**9
    head = varint(size + 20) + b"\0" + varint(0) + varint(0) + varint(-1) + varint(size)
    giant = batch(zstandard.compress(head) + zstandard.compress(bytes(10**7)) * 100, 1, attributes=4)
    many = batch(zstandard.compress(record(0, None, bytes(10**7))) * 200, 200, attributes=4)
    return capture([(b"t", [giant] * 20 + [many])])


def names() -> tuple[bytes, int]:
    """A topic name of 32 KB, of 100,000 partitions: 3.2 GB where each row has it."""
    return capture([(b"n" * 32_000, [b""] * 100_000)])


def test_long_names_are_repeated_in_short(tmp_path: Path) -> None:
    path = tmp_path / "names.pcap"
    path.write_bytes(capture([(b"n" * 32_000, [b""] * 50), (b"m" * 1000, [b""] * 50)])[0])
    found = kdissect.open(path).table("fetch_partitions", ["topic"])["topic"].to_pylist()
    assert found == ["n" * 60 + "… (32000 bytes)"] * 50 + ["m" * 1000] * 50


def test_a_cell_shows_the_beginning_of_a_large_value() -> None:
    made = pa.record_batch([pa.array([b"x" * SHOWN, b"y" * (SHOWN + 1), None])], ["value"])
    cells = [cell for (cell,) in _cells(made)]
    assert cells == ["x" * SHOWN, "y" * SHOWN + "… (65537 bytes)", UNKNOWN]


@pytest.mark.bench
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("made", [records, values, names])
def test_no_command_explodes(made: Callable[[], tuple[bytes, int]], tmp_path: Path) -> None:
    data, last = made()
    path = tmp_path / "bomb.pcap"
    path.write_bytes(data)
    print(f"{made.__name__}: {len(data):,} bytes")
    for n, command in enumerate(COMMANDS):
        out = str(tmp_path / f"out{n}")
        given = [word.replace("@OUT", out).replace("@LAST", str(last)) for word in command]
        named = 1 if given and not given[0].startswith("-") else 0
        line = [sys.executable, "-m", "kdissect", *given[:named], str(path), *given[named:]]
        if "--html" not in command:  # of a checkout, which makes the charts' library
            line = ["prlimit", f"--as={ADDRESSES}", *line]
        cost = run(line, limit=300)
        print(f"  {' '.join(command) or 'first screen'}: {cost.peak / 1e6:.0f} MB, {cost.cpu:.1f} s of CPU")
        assert cost.code == 0, command
        assert cost.peak <= BUDGET, command

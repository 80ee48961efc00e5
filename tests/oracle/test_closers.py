"""tshark's flags against `connections`: which end sent the first FIN or RST of each one, and that both FINs end it.

A connection is matched by its 4-tuple and its first packet's time. `closed_by` may be null where tshark shows a FIN:
another one may have come before it, of a side of which nothing was captured before, or out of the order of sending.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import kdissect
from kdissect.kafka.completed import CLOSERS
from tests.conftest import CAPTURES
from tests.oracle.dissector import tshark

pytestmark = pytest.mark.oracle

FIELDS = ("tcp.stream", "frame.time_epoch", "ip.src", "ipv6.src", "tcp.srcport", "ip.dst", "ipv6.dst", "tcp.dstport",
          "tcp.flags.fin", "tcp.flags.reset")  # fmt: skip
CAPTURE_SAMPLE = {"raw_cuts", "raw_reuse", "zoo_kafkajs"}
LAB = ("closed_librdkafka", "reset_aiokafka_broker")
"""Recordings of the laboratory: clients that close, a device that resets."""
Endpoint = tuple[str, int]


class Ending(NamedTuple):
    """A connection as tshark shows it."""

    first: Endpoint | None
    """Who sent the first FIN or RST."""
    speakers: set[Endpoint]
    """Who sent anything at all, up to then."""
    closers: set[Endpoint]
    """Who sent a FIN or RST."""


def endings(path: Path) -> dict[tuple[frozenset[Endpoint], int], Ending]:
    """Connections by their ends and the time of their first packet, microseconds."""
    command = [tshark(), "-n", "-r", str(path), "-Y", "tcp", "-T", "fields", "-E", "occurrence=l",
               *(word for field in FIELDS for word in ("-e", field))]  # fmt: skip
    began: dict[str, tuple[frozenset[Endpoint], int]] = {}
    found: dict[str, Ending] = {}
    for stream, at, sender, receiver, closes in _packets(subprocess.run(command, capture_output=True).stdout):
        began.setdefault(stream, (frozenset([sender, receiver]), at))
        one = found.setdefault(stream, Ending(None, set(), set()))
        if closes:
            one.closers.add(sender)
        if one.first is None:
            one.speakers.add(sender)
            if closes:
                found[stream] = one._replace(first=sender)
    return {began[stream]: one for stream, one in found.items()}


def _packets(output: bytes) -> Iterator[tuple[str, int, Endpoint, Endpoint, bool]]:
    for line in output.decode().splitlines():
        stream, at, ip4, ip6, port, to4, to6, to, fin, reset = line.split("\t")
        seconds, _, fraction = at.partition(".")
        closes = {"1", "True"} & {fin, reset}
        yield (
            stream, int(seconds or 0) * 10**6 + int(f"{fraction:0<6}"[:6]), (ip4 or ip6, int(port)),
            (to4 or to6, int(to)), bool(closes),
        )  # fmt: skip


PATHS = {path.name.split(".")[0]: path for path in sorted(CAPTURES.glob("*.pcap*"))
         if path.stat().st_size > 1000 and path.stem != "field_wrong_magic"}  # fmt: skip
PATHS |= {name: CAPTURES / "lab" / f"{name}.pcap.zst" for name in LAB}


@pytest.mark.parametrize("name", PATHS)
def test_who_closed_first(name: str) -> None:
    theirs = endings(PATHS[name])
    columns = ["client_ip", "client_port", "broker_ip", "broker_port", "started_at", "closed_by",
               "end_reason"]  # fmt: skip
    rows = kdissect.open(PATHS[name]).table("connections", columns).to_pylist()
    assert rows
    for row in rows:
        ends = {end: (row[f"{end}_ip"], row[f"{end}_port"]) for end in CLOSERS}
        if row["started_at"] is None:
            continue
        one = theirs[frozenset(ends.values()), round(row["started_at"].timestamp() * 1e6)]
        shown = next((end for end, address in ends.items() if address == one.first), None)
        assert row["closed_by"] in (shown, None), row
        assert row["end_reason"] != "open" or len(one.closers) < len(ends), row
        if row["closed_by"] is None and shown is not None:
            assert name == "field_reordered" or len(one.speakers) < len(ends), row

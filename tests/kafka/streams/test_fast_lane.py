"""The fast lane: which packets take it. That it changes nothing is tried wherever something is played
(`playbook.play`), on captures here, and on damaged ones by `tests.fuzz.ways`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

import kdissect
from kdissect.kafka.streams.dissector import Dissector
from kdissect.net.segment import ACK_FLAG, PSH
from tests.kafka.streams.playbook import (
    BROKER,
    CLIENT,
    Packet,
    Step,
    acknowledges,
    closing,
    cut_up,
    in_lane,
    quiet,
    request,
    request_bytes,
    reset,
    response,
)

SOME = ("base_tiny.pcap", "field_burst20.pcap", "field_be_us.pcap")
CAPTURES = sorted(
    path for path in Path("captures").glob("*.pcap*") if path.stat().st_size > 1000 and path.stem != "field_wrong_magic"
)


@pytest.mark.parametrize(
    ("steps", "taken"),
    [
        ([request(1), response(1)], 2),
        ([request(1), request(2), response(1), response(2)], 4),
        ([replace(request(1), flags=ACK_FLAG | PSH)], 1),
        ([Packet(CLIENT, request_bytes(1) + request_bytes(2)), response(1), response(2)], 3),
        ([request(1), acknowledges(BROKER), response(1), acknowledges(CLIENT)], 4),
        (quiet(3), 0),
        ([request(1), response(1), request(3), response(3)], 4),
        (cut_up(request(1), 10), 0),
        ([*cut_up(request(1), 10), response(1)], 1),
        ([request(1), replace(request(1), again=len(request_bytes(1)))], 1),
        ([replace(request(1), late=1), request(2)], 0),
        ([replace(request(1), captured=12)], 0),
        ([replace(request(1), window=0), response(1)], 1),
        ([replace(request(1), viewpoint=7)], 0),
        ([replace(request(1), ident=9), replace(request(2), ident=10)], 2),
        ([closing(CLIENT), response(1)], 1),
        ([reset(CLIENT), response(1)], 0),
        ([response(7), request(1)], 1),
    ],
)  # fmt: skip
def test_packets_that_take_it(steps: list[Step], taken: int) -> None:
    assert in_lane(*steps) == taken


def _same(path: Path) -> None:
    want = kdissect.open(path, jobs=1).tables()
    with mock.patch.object(Dissector, "LANE", False):
        for name, table in kdissect.open(path, jobs=1).tables().items():
            assert table.equals(want[name]), name


@pytest.mark.parametrize("name", SOME)
def test_tables_are_the_same_without_it(name: str) -> None:
    _same(Path("captures") / name)


@pytest.mark.exhaustive
@pytest.mark.parametrize("path", CAPTURES, ids=lambda path: path.name)
def test_tables_of_all_captures_are_the_same_without_it(path: Path) -> None:
    _same(path)

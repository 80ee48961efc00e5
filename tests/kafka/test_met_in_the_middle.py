"""Connections that began before the capture, with responses much larger than what is searched at a time."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

import kdissect
from tests.oracle.pcap import Talk, api_versions_request, api_versions_response, pcap

EXCHANGES = 12
PIECE = 60_000
"""Bytes of a segment, as offloads hand them to tcpdump."""


@pytest.mark.parametrize("broker", ["10.0.0.9", "10.0.0.0"])
def test_no_response_is_lost_for_coming_before_its_side_is_known(broker: str, tmp_path: Path) -> None:
    """The packets that settle where the streams begin hold a megabyte of responses, and five requests."""
    talk = Talk(broker=(broker, 9092))
    sent, back, ms = 0, 0, 0.0
    for n in range(EXCHANGES):
        request, response = api_versions_request(n), api_versions_response(n, 32_000)
        talk.put(ms, 0, sent, request)
        for begin in range(0, len(response), PIECE):
            ms += 1
            talk.put(ms, 1, back + begin, response[begin : begin + PIECE])
        sent, back, ms = sent + len(request), back + len(response), ms + 1
    path = tmp_path / "middle.pcap"
    path.write_bytes(pcap(talk.packets))
    tables = kdissect.open(path).tables(["exchanges", "problems"])
    assert tables["exchanges"]["status"].to_pylist() == ["ok"] * EXCHANGES
    assert tables["problems"].num_rows == 0


@pytest.mark.parametrize("broker", ["10.0.0.9", "10.0.0.0"])
@pytest.mark.parametrize("side", [0, 1])
def test_a_connection_is_not_given_up_while_one_side_reads(broker: str, side: int, tmp_path: Path) -> None:
    """The capture begins 3 MB before the end of a large frame of that side (0: a request), then all goes on."""
    talk, data = Talk(broker=(broker, 9092)), Random(1).randbytes(3_000_000)
    at = [0, 0]
    for n, begin in enumerate(range(0, len(data), PIECE)):
        talk.put(n, side, begin, data[begin : begin + PIECE])
    at[side] = len(data)
    for n in range(EXCHANGES):
        for who, message in ((0, api_versions_request(n)), (1, api_versions_response(n))):
            talk.put(100 + 10 * n + who, who, at[who], message)
            at[who] += len(message)
    path = tmp_path / "reading.pcap"
    path.write_bytes(pcap(talk.packets))
    tables = kdissect.open(path).tables(["exchanges", "problems"])
    assert tables["exchanges"]["status"].to_pylist() == ["ok"] * EXCHANGES
    assert tables["problems"].select(["kind", "bytes"]).to_pylist() == [{"kind": "resynchronised", "bytes": 3_000_000}]

"""Connections that began before the capture, with responses much larger than what is searched at a time."""

from __future__ import annotations

from pathlib import Path

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

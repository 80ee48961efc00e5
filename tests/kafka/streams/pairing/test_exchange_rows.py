"""What rows of exchanges say of their frames."""

from __future__ import annotations

import numpy as np

from kdissect.tcp.layout import NULL
from tests.kafka.streams.playbook import (
    hole,
    opening,
    play,
    quiet,
    request,
    response,
    response_bytes,
    snapped,
)


def test_the_last_byte_of_a_torn_frame_has_no_time() -> None:
    played = play(opening(), request(1), hole(3), request(2), response(1), response(2), quiet(70))
    assert played.statuses == ["partial", "ok"]
    assert played.exchanges[0]["request"]["last"] == NULL
    played = play(opening(), request(1), snapped(20), response(1))
    assert played.exchanges[0]["request"]["last"] != NULL


def test_in_flight_and_queueing() -> None:
    played = play(opening(), request(1), request(2), response(1), response(2), request(3), response(3))
    assert [int(row["in_flight"]) for row in played.exchanges] == [1, 2, 1]
    rows = played.exchanges
    assert [int(row["queued_from"]) for row in rows] == [NULL, rows[0]["response"]["last"], rows[1]["response"]["last"]]


def test_rows_of_an_orphan_have_no_request() -> None:
    row = play(opening(), request(1), response(1), response(5)).exchanges[1]
    assert (int(row["request"]["first"]), int(row["request"]["bytes"])) == (NULL, -1)
    assert int(row["response"]["bytes"]) == len(response_bytes(5))
    assert np.int64(row["queued_from"]) == NULL

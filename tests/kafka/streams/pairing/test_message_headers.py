"""Headers of requests and responses, and the client ids in them."""

from __future__ import annotations

import struct

from tests.kafka.streams.playbook import (
    CLIENT,
    CONTROLLED_SHUTDOWN,
    framed,
    opening,
    play,
    request,
    response,
    sends,
    talk,
)


def test_client_ids_are_told_apart() -> None:
    names = ["a", "b", "a", None, "long" * 40]
    played = play(
        opening(), [[request(n, client=name), response(n)][k] for n, name in enumerate(names) for k in (0, 1)]
    )
    ids = played.dissector.client_ids if played.dissector else []
    assert [ids[int(row["client"])] if row["client"] >= 0 else None for row in played.exchanges] == names


def test_controlled_shutdown_zero_has_no_client_id() -> None:
    old = framed(struct.pack(">hhi", CONTROLLED_SHUTDOWN, 0, 2) + struct.pack(">i", 1))
    assert talk(request(1), response(1), sends(CLIENT, old), response(2, b"\0\0\0\0\0\0")) == ["ok", "ok"]


def test_flexible_headers_have_tags() -> None:
    """Heartbeat 4: a tag in the header, then compact strings; torn tags leave the body unknown."""
    body = b"\x01\x05\x02xy" + b"\x06group" + struct.pack(">i", 5) + b"\x07member" + b"\0" + b"\0"
    answer = b"\0" + b"\0\0\0\0\0\0" + b"\0"
    played = play(opening(), request(1), response(1), request(2, version=4, body=body), response(2, answer))
    assert played.statuses == ["ok", "ok"]
    assert int(played.exchanges[1]["request"]["body"]) == 8 + 5 + 5
    for torn in (b"\x01", b"\x01\x05", b"\x01\x05\x09xy", b"\xff\xff\xff\xff\xff\xff"):
        played = play(opening(), request(1), response(1), request(2, version=4, body=torn), response(2, answer))
        assert int(played.exchanges[1]["request"]["body"]) == -1

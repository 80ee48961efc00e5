"""Sessions of OpenSSL are read with its key log: every suite, resumed ones, key updates; what is lost is told."""

from __future__ import annotations

import random
import ssl
from collections.abc import Iterable
from pathlib import Path

import pytest

from kdissect.tls.keylog import KeyLog
from kdissect.tls.record_layer import Arrival
from kdissect.tls.session import Masters, Plain, Session
from tests.tls.openssl import TLS12, TLS13, Connection, Ends

NOW = Arrival(0, 0, 0)
SUITES12 = ("ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-ECDSA-AES256-GCM-SHA384", "ECDHE-ECDSA-CHACHA20-POLY1305")
SAID = [(0, b"request" * 3), (1, b"answer"), (0, bytes(40_000)), (1, b""), (1, b"x" * 16384), (0, b"bye")]


def converse(connection: Connection, said: Iterable[tuple[int, bytes]] = SAID) -> None:
    for side, data in said:
        if data:
            connection.say(side, data)


def read(wire: Iterable[tuple[int, bytes]], session: Session, piece: int = 1 << 20) -> list[Plain]:
    """What a session makes of the bytes, brought in pieces of that size."""
    out: list[Plain] = []
    time = 0
    for side, data in wire:
        for at in range(0, len(data), piece):
            time += 1
            out += session.feed(side, data[at : at + piece], Arrival(time, time, time))
    return out


def texts(plains: Iterable[Plain]) -> tuple[bytes, bytes]:
    both: tuple[list[bytes], list[bytes]] = [], []
    for plain in plains:
        both[plain.direction].append(plain.data if plain.data is not None else b"?" * plain.size)
    return b"".join(both[0]), b"".join(both[1])


def whole(said: Iterable[tuple[int, bytes]] = SAID) -> tuple[bytes, bytes]:
    said = list(said)
    return b"".join(data for side, data in said if side == 0), b"".join(data for side, data in said if side == 1)


def session(ends: Ends, masters: Masters | None = None) -> Session:
    return Session(KeyLog(ends.keys.read_bytes()), masters or Masters())


@pytest.mark.parametrize("piece", [1 << 20, 1000, 7])
@pytest.mark.parametrize("suite", SUITES12)
def test_tls12(suite: str, piece: int, tmp_path: Path) -> None:
    ends = Ends(tmp_path, TLS12, suite)
    connection = ends.connect()
    converse(connection)
    read_by = session(ends)
    assert texts(read(connection.wire, read_by, piece)) == whole()
    assert (read_by.version, read_by.sni, read_by.client, read_by.ended) == ("TLS 1.2", "broker.test", 0, [])


@pytest.mark.parametrize("suite", ["TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"])
def test_tls13(suite: str, tmp_path: Path) -> None:
    ends = Ends(tmp_path, TLS13, suite=suite.encode())
    connection = ends.connect()
    converse(connection)
    chosen = connection.client.cipher()
    assert chosen is not None
    assert chosen[0] == suite
    read_by = session(ends)
    assert texts(read(connection.wire, read_by, 999)) == whole()
    assert (read_by.version, read_by.sni, read_by.ended) == ("TLS 1.3", "broker.test", [])


@pytest.mark.parametrize("version", [TLS12, TLS13])
@pytest.mark.parametrize("tickets", [True, False])
def test_resumed(version: ssl.TLSVersion, tickets: bool, tmp_path: Path) -> None:
    """By session id and by ticket, with a line in the log for each connection, and (TLS 1.2) with one for both."""
    ends = Ends(tmp_path, version, tickets=tickets)
    first = ends.connect()
    converse(first)
    second = ends.connect(first.client.session)
    converse(second)
    assert second.client.session_reused
    assert texts(read(second.wire, session(ends))) == whole()
    if version == TLS12:
        only_first = ends.keys.read_bytes().splitlines()[:2]
        masters, keys = Masters(), KeyLog(b"\n".join(only_first))
        read(first.wire, Session(keys, masters))
        assert texts(read(second.wire, Session(keys, masters))) == whole()
        assert Session(keys, Masters()).unread()


def test_key_updates(tmp_path: Path) -> None:
    ends = Ends(tmp_path, TLS13)
    connection = ends.connect()
    converse(connection)
    for side in (0, 1, 0):
        connection.update_keys(side)
        converse(connection, [(side, b"first"), (1 - side, b"second"), *SAID])
    expected = whole([*SAID, *(one for s in (0, 1, 0) for one in [(s, b"first"), (1 - s, b"second"), *SAID])])
    assert texts(read(connection.wire, session(ends))) == expected


def test_a_byte_arrives_with_its_records_last_byte(tmp_path: Path) -> None:
    ends = Ends(tmp_path, TLS13)
    connection = ends.connect()
    wire = list(connection.wire)
    sent = connection.say(0, b"one")
    after = session(ends)
    read(wire, after)
    assert not list(after.feed(0, sent[:-1], Arrival(50, 5, 1)))
    (plain,) = after.feed(0, sent[-1:], Arrival(40, 6, 2))
    assert (plain.data, plain.arrival) == (b"one", Arrival(50, 6, 2))


@pytest.mark.parametrize("version", [TLS12, TLS13])
def test_a_hole_inside_a_record_costs_that_record(version: ssl.TLSVersion, tmp_path: Path) -> None:
    ends = Ends(tmp_path, version)
    connection = ends.connect()
    wire = list(connection.wire)
    sent = [connection.say(0, word * 100) for word in (b"a", b"b", b"c")]
    after = session(ends)
    read(wire, after)
    out = [*after.feed(0, sent[0] + sent[1][:20], NOW), *after.lose(0, 60, NOW), *after.feed(0, sent[1][80:], NOW)]
    out += after.feed(0, sent[2], NOW)
    assert [(plain.size, plain.data and plain.data[:1]) for plain in out] == [(100, b"a"), (100, None), (100, b"c")]
    assert after.ended == []


def test_a_hole_over_a_records_beginning_ends_the_direction(tmp_path: Path) -> None:
    ends = Ends(tmp_path, TLS13)
    connection = ends.connect()
    wire = list(connection.wire)
    sent = connection.say(0, b"lost")
    answer = connection.say(1, b"kept")
    after = session(ends)
    read(wire, after)
    assert not [*after.lose(0, len(sent), NOW), *after.feed(0, connection.say(0, b"later"), NOW)]
    ((direction, why, _),) = after.ended
    assert direction == 0
    assert "beginning of a record" in why
    assert texts(after.feed(1, answer, NOW)) == (b"", b"kept")


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    ends = Ends(tmp_path, TLS12)
    connection = ends.connect()
    converse(connection)
    none = Session(KeyLog(), Masters())
    assert not read(connection.wire, none)
    assert "no secret for client random" in none.unread()
    assert (none.version, none.sni) == ("TLS 1.2", "broker.test")
    one_sided = session(ends)
    assert not read([one for one in connection.wire if one[0] == 0], one_sided)
    assert one_sided.unread() == "the ServerHello was not captured"
    old = Ends(tmp_path, TLS12, "ECDHE-ECDSA-AES128-SHA")
    connection = old.connect()
    converse(connection)
    cbc = session(old)
    assert not read(connection.wire, cbc)
    assert "cipher suite TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA (0xc009) of TLS 1.2 is not read" in cbc.unread()


def test_hello_of_the_server_before_the_clients(tmp_path: Path) -> None:
    """A capture out of order."""
    ends = Ends(tmp_path, TLS13)
    connection = ends.connect()
    converse(connection)
    wire = [connection.wire[1], connection.wire[0], *connection.wire[2:]]
    assert texts(read(wire, session(ends))) == whole()


def test_a_log_without_the_handshakes_secrets(tmp_path: Path) -> None:
    ends = Ends(tmp_path, TLS13)
    connection = ends.connect()
    converse(connection)
    lines = [line for line in ends.keys.read_bytes().splitlines() if b"HANDSHAKE" not in line]
    assert texts(read(connection.wire, Session(KeyLog(b"\n".join(lines)), Masters()))) == whole()


@pytest.mark.parametrize("version", [TLS12, TLS13])
def test_hostile_bytes(version: ssl.TLSVersion, tmp_path: Path) -> None:
    """Damaged anywhere: nothing is raised, and nothing comes out that was not said."""
    ends = Ends(tmp_path, version)
    connection = ends.connect()
    converse(connection)
    chance = random.Random(7)
    truth = whole()
    for _ in range(300):
        wire = [(side, bytearray(data)) for side, data in connection.wire]
        for _ in range(chance.randrange(1, 4)):
            data = chance.choice(wire)[1]
            data[chance.randrange(len(data))] = chance.randrange(256)
        damaged = session(ends)
        found = texts(read(((side, bytes(data)) for side, data in wire), damaged, chance.choice([5000, 1 << 20])))
        assert truth[0].startswith(found[0])
        assert truth[1].startswith(found[1])


def test_key_logs_take_what_is_right() -> None:
    random_hex, secret = "ab" * 32, "cd" * 48
    log = KeyLog(
        f"# comment\r\nCLIENT_RANDOM {random_hex} {secret}\r\nCLIENT_RANDOM short {secret}\nRSA {random_hex} {secret}\n"
        f"CLIENT_TRAFFIC_SECRET_0 {random_hex.upper()} {secret[:64]}\nCLIENT_RANDOM {random_hex} {secret}f\n".encode()
        + b"\xff\0"
    )
    assert len(log) == 2
    assert log.secret("CLIENT_RANDOM", bytes.fromhex(random_hex)) == bytes.fromhex(secret)
    assert log.secret("CLIENT_TRAFFIC_SECRET_0", bytes.fromhex(random_hex)) == bytes.fromhex(secret[:64])
    assert log.secret("CLIENT_RANDOM", bytes(32)) is None

"""What is not proved to be Kafka gives no exchanges, and what is Kafka by one message alone is seen."""

from __future__ import annotations

import io
import random
import struct
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import kdissect
from tests.fuzz.metamorphic import Packet, packets_of, written
from tests.oracle.material import CAPTURES
from tests.oracle.pcap import (
    Talk,
    api_versions_request,
    api_versions_response,
    framed,
    metadata_request,
    metadata_response,
    pcap,
)

Rows = dict[str, list[dict[str, Any]]]
CLIENT, BROKER = 0, 1
SUFFIX = b"\0\0\0\0"
"""What librdkafka 0.9 to 1.3 writes behind ApiVersions version 0: a null array, for "all APIs"."""


def tables(packets: list[tuple[int, bytes]], snap: int = 262144) -> Rows:
    file = io.BytesIO(pcap(packets, snap))
    file.name = "made.pcap"
    found = kdissect.open(file, jobs=1).tables(["connections", "exchanges", "problems"])
    return {name: table.to_pylist() for name, table in found.items()}


def conversation(*turns: tuple[int, bytes], opened: bool = True, client: int = 50000) -> Talk:
    """Messages of either side in turn, a packet each, behind a handshake if `opened`; nothing is acknowledged."""
    talk, at = Talk(client=("10.0.0.1", client), broker=("10.0.0.2", 9092), broker_isn=0), [0, 0]
    if opened:
        talk.handshake()
    for n, (side, data) in enumerate(turns, 1):
        talk.put(n, side, at[side], data)
        at[side] += len(data)
    return talk


def statuses(*turns: tuple[int, bytes], opened: bool = True, snap: int = 262144) -> list[str]:
    rows = tables(conversation(*turns, opened=opened).packets, snap)
    return [row["status"] for row in rows["exchanges"]]


# ---- servers that speak first


def text_greetings(chance: random.Random) -> Iterator[bytes]:
    host = f"mx{chance.randrange(100)}.example.org".encode()
    yield b"220 " + host + b" ESMTP Postfix\r\n"
    yield b"+OK POP3 ready <" + host + b">\r\n"
    yield b"* OK [CAPABILITY IMAP4rev1] " + host + b"\r\n"
    yield b"220 (vsFTPd 3.0.5)\r\n"
    yield b"220-" + host + b"\r\n220 ready\r\n"
    yield b"SSH-2.0-OpenSSH_9." + str(chance.randrange(9)).encode() + b"\r\n"
    yield b":" + host + b" NOTICE AUTH :*** Looking up your hostname\r\n"
    yield b"-ERR max number of clients reached\r\n"
    yield b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n"
    yield b"$" + str(chance.randrange(10, 99)).encode() + b"\r\n"
    yield b'INFO {"server_id":"' + host + b'"}\r\n'
    yield b"!" + bytes(chance.choice(b"0123456789abcdef\r\n ") for _ in range(chance.randint(8, 90)))


def binary_greetings(chance: random.Random) -> Iterator[bytes]:
    noise = chance.randbytes(chance.randint(8, 400))
    body = b"\n8.0." + str(chance.randrange(40)).encode() + b"\0" + noise[:30]
    yield struct.pack("<I", len(body))[:3] + b"\0" + body  # MySQL
    yield b"\x16\x03\x03" + struct.pack(">H", len(noise)) + noise  # a record of TLS
    yield b"\x15\x03\x03\x00\x02\x02\x28"  # an alert of it
    yield bytes([chance.randrange(0x40)]) + noise
    yield noise
    yield b"\0\0\0" + noise
    yield bytes(chance.randint(8, 300))
    yield framed(noise)
    yield framed(struct.pack(">i", chance.randrange(1000)) + noise)
    yield framed(struct.pack(">iq", chance.randrange(99), chance.randrange(10**6)) + bytes(chance.randrange(90)))
    yield b"".join(framed(struct.pack(">iih", n, 0, 0) + bytes(10)) for n in range(chance.randint(1, 20)))
    yield b"".join(framed(struct.pack(">iqi", n, 70 + n, 0)) for n in range(chance.randint(1, 20)))  # Zookeeper
    yield framed(struct.pack(">iiqi", 0, 30000, chance.getrandbits(62), 16) + chance.randbytes(16) + b"\0")
    yield struct.pack(">ii", chance.randrange(8, 1 << 29), 0) + noise
    yield struct.pack(">Bi", 1, len(noise)) + noise


def greetings(count: int) -> list[bytes]:
    out: list[bytes] = []
    seed = 0
    while len(out) < count:
        chance = random.Random(seed)
        out += [*text_greetings(chance), *binary_greetings(chance)]
        seed += 1
    return out[:count]


@pytest.mark.parametrize(
    "then", [(), ((CLIENT, b"QUIT\r\n"),), ((BROKER, b"bye\r\n"),)], ids=["alone", "asked", "more"]
)
def test_a_server_that_speaks_first_gives_no_exchange(then: tuple[tuple[int, bytes], ...]) -> None:
    """200 of them, each on a connection of its own; every connection keeps its row."""
    made = [conversation((BROKER, one), *then, client=10_000 + n) for n, one in enumerate(greetings(200))]
    rows = tables([packet for talk in made for packet in talk.packets])
    assert rows["exchanges"] == []
    assert len(rows["connections"]) == 200
    assert not any(row["is_kafka"] or row["exchanges"] for row in rows["connections"])


def test_what_may_be_responses_is_one_problem() -> None:
    rows = tables(conversation((BROKER, b"+OK POP3 ready\r\n")).packets)
    assert rows["exchanges"] == []
    (connection,) = rows["connections"]
    (problem,) = rows["problems"]
    assert (connection["is_kafka"], connection["protocol"], connection["problems"]) == (False, "unknown", 1)
    assert (problem["kind"], problem["bytes"]) == ("unproved", 16)
    assert problem["connection_id"] == connection["connection_id"]


def test_a_hole_or_a_cut_behind_it_changes_nothing() -> None:
    talk = conversation((BROKER, b"+OK POP3 ready\r\n"))
    talk.put(5, BROKER, 60, b"+OK and more\r\n")
    for snap in (262144, 60, 62):
        assert tables(talk.packets, snap)["exchanges"] == []


# ---- responses alone


def test_an_answer_to_api_versions_proves_kafka_by_itself() -> None:
    alone = conversation((BROKER, api_versions_response(1)), (BROKER, metadata_response(2)))
    rows = tables([packet for packet in alone.packets if packet[1][34:36] == struct.pack(">H", 9092)])
    (connection,) = rows["connections"]
    assert (connection["is_kafka"], connection["start_seen"], connection["exchanges"]) == (True, True, 2)
    assert [row["status"] for row in rows["exchanges"]] == ["orphan", "orphan"]
    assert rows["exchanges"][0]["api"] == "ApiVersions"


def group_response(correlation: int, member: str) -> bytes:
    """JoinGroup v0 to a member that does not lead."""
    texts = b"".join(struct.pack(">h", len(text)) + text.encode() for text in ("range", "leader-1", member))
    return framed(struct.pack(">ihi", correlation, 0, 7) + texts + struct.pack(">i", 0))


def test_two_answers_that_can_be_nothing_else_prove_it_too() -> None:
    assert statuses((BROKER, group_response(1, "member-1")), (BROKER, group_response(2, "member-1"))) == ["orphan"] * 2
    assert statuses((BROKER, group_response(1, "member-1"))) == []
    assert statuses((BROKER, group_response(1, "member-1")), (BROKER, group_response(9000, "member-1"))) == []


def test_requests_that_come_late_prove_what_was_answered_before() -> None:
    """The first request was lost: its answer waits for the one behind it."""
    talk = conversation((BROKER, metadata_response(1)))
    asked = metadata_request(1, ["t"])
    talk.put(2, CLIENT, len(asked), metadata_request(2, ["t"]))
    talk.put(3, BROKER, len(metadata_response(1)), metadata_response(2))
    rows = tables(talk.packets)
    assert sorted(row["status"] for row in rows["exchanges"]) == ["ok", "orphan"]


# ---- one request behind a handshake


def list_offsets_request(client: bytes = b"", topic: bytes = b"integration.test.topic") -> bytes:
    """ListOffsets v0 with an empty client id: one partition of one topic."""
    body = struct.pack(">iih", -1, 1, len(topic)) + topic + struct.pack(">iiqi", 1, 0, -1, 1)
    return framed(struct.pack(">hhih", 2, 0, 0, len(client)) + client + body)


NULL_CLIENT = framed(struct.pack(">hhih", 3, 0, 1, -1) + struct.pack(">ih", 1, 5) + b"topic")
EMPTY_CLIENT = framed(struct.pack(">hhih", 18, 0, 5, 0))
EXACT = [list_offsets_request(), list_offsets_request(b"c"), NULL_CLIENT, EMPTY_CLIENT, api_versions_request(1)]


@pytest.mark.parametrize("request_bytes", EXACT)
def test_one_exact_request_behind_a_handshake_is_enough(request_bytes: bytes) -> None:
    rows = tables(conversation((CLIENT, request_bytes)).packets)
    assert [row["is_kafka"] for row in rows["connections"]] == [True]
    assert [row["decoded"] for row in rows["exchanges"]] == [True]


def test_its_answer_may_be_lost() -> None:
    talk = conversation((CLIENT, list_offsets_request()))
    talk.put(3, CLIENT, len(list_offsets_request()), b"", 17)
    packets = talk.packets
    time, last = packets[-1]
    packets[-1] = time, last[:42] + struct.pack(">I", (talk.broker_isn + 1 + 71) & 0xFFFFFFFF) + last[46:]
    assert [row["status"] for row in tables(packets)["exchanges"]] == ["partial"]


@pytest.mark.parametrize(
    "begin",
    [
        framed(struct.pack(">hhih", 3, 0, 1, 0) + bytes(4)),  # zeros
        framed(struct.pack(">hhih", 2, 0, 0, 0) + struct.pack(">ii", 0, 0)),
        list_offsets_request() + b"more",
        list_offsets_request()[:-1],
        struct.pack(">BBHHBB", 1, 1, 1, 8, 0, 0) + struct.pack(">HB5x", 1, 1) + b"\1\4\0\1" + bytes(600),  # FastCGI
    ],
)
def test_what_is_less_than_that_is_not(begin: bytes) -> None:
    assert statuses((CLIENT, begin)) == []


def test_an_answer_that_is_none_speaks_against_it() -> None:
    assert statuses((CLIENT, list_offsets_request()), (BROKER, b"\0\0\0\x09\0\0\0\x11hello")) == []


# ---- bytes behind the last field of a request


def test_librdkafkas_api_versions_is_read() -> None:
    turns = [(CLIENT, trailing(api_versions_request(1, "rdkafka"))), (BROKER, api_versions_response(1))]
    for opened in (True, False):
        rows = tables(conversation(*turns, opened=opened).packets)
        (exchange,) = rows["exchanges"]
        assert (exchange["api"], exchange["status"], exchange["decoded"]) == ("ApiVersions", "ok", True)
        (problem,) = rows["problems"]
        assert (problem["kind"], problem["bytes"], problem["where"]) == ("trailing_bytes", 4, "request body")
        assert problem["exchange_id"] == exchange["exchange_id"]


def trailing(request: bytes, more: bytes = SUFFIX) -> bytes:
    """The request with bytes behind its last field."""
    return framed(request[4:] + more)


def test_a_request_with_bytes_behind_it_has_the_status_of_its_answer() -> None:
    first = [(CLIENT, api_versions_request(1)), (BROKER, api_versions_response(1))]
    asked = (CLIENT, trailing(metadata_request(2, ["t", "u"]), b"beyond"))
    talk = conversation(*first, asked, (BROKER, metadata_response(2)))
    assert [row["status"] for row in tables(talk.packets)["exchanges"]] == ["ok", "ok"]
    failed = framed(struct.pack(">iiii", 2, 0, 7, 1) + struct.pack(">hh", 3, 1) + b"t" + struct.pack(">bi", 0, 0))
    rows = tables(conversation(*first, asked, (BROKER, failed)).packets)
    assert [(row["status"], row["error"]) for row in rows["exchanges"]][1] == ("error", "UNKNOWN_TOPIC_OR_PARTITION")
    file = io.BytesIO(pcap(talk.packets))
    (body,) = kdissect.open(file).messages("Metadata", "request").to_pylist()
    assert [topic["name"] for topic in body["topics"]] == ["t", "u"]


def test_bytes_behind_a_response_or_in_a_newer_version_are_a_misfit() -> None:
    first = [
        (CLIENT, api_versions_request(1)),
        (BROKER, api_versions_response(1)),
        (CLIENT, metadata_request(2, ["t"])),
    ]
    rows = tables(conversation(*first, (BROKER, framed(metadata_response(2)[4:] + b"x"))).packets)
    assert [row["status"] for row in rows["exchanges"]] == ["ok", "undecodable"]
    newer = framed(struct.pack(">hhih", 18, 30, 2, 1) + b"c" + b"\0" + b"\2a\2b\0\0\0\0\0\0more")
    rows = tables(conversation(*first[:2], (CLIENT, newer)).packets)
    assert [row["decoded"] for row in rows["exchanges"]] == [True, False]
    assert [row["kind"] for row in rows["problems"]] == ["unknown_version"]


# ---- neither side is known


def test_a_response_that_reads_as_a_request_tells_no_sides() -> None:
    response = framed(struct.pack(">iih", 0, 1, 6) + b"codecs" + struct.pack(">ihi", 1, 0, 0))
    assert statuses((BROKER, response), opened=False) == []


def test_a_pair_that_reads_both_ways_tells_no_sides() -> None:
    """Cut so that headers alone are there: Produce v1 with id 1, and its answer about one topic."""
    asked = framed(struct.pack(">hhih", 0, 1, 1, 8) + b"producer" + bytes(600))
    answer = framed(struct.pack(">iih", 1, 1, 3) + b"m09" + bytes(22))
    assert statuses((CLIENT, asked), (BROKER, answer), opened=False, snap=78) == []


def test_bytes_inside_a_response_tell_no_sides() -> None:
    """A broker writes a Fetch response in pieces: from its correlation id on it reads as a request of Produce."""
    inner = struct.pack(">iihh", 17, 0, 0, 1)[:12]
    inside = struct.pack(">hhih", 0, 0, 1, 5) + b"plain" + struct.pack(">hii", 0, 1, 0)
    response = struct.pack(">i", len(inner) + 60) + framed(inside) + bytes(40)
    assert statuses((BROKER, response), opened=False) == []


def recorded(name: str) -> list[Packet]:
    return packets_of((CAPTURES / f"{name}.pcap").read_bytes())


def late(skipped: int, snap: int) -> Callable[[list[Packet]], list[Packet]]:
    """Without openings and so many first packets, cut."""
    return lambda packets: [
        (when, data[:snap], size) for when, data, size in [p for p in packets if not p[1][47] & 2][skipped:]
    ]


@pytest.mark.parametrize(
    ("name", "damage", "least"),
    [
        ("era_0_11_0", late(10, 78), 0),
        ("era_0_8_2", late(1223, 1 << 16), 100),
        ("downconv_282", late(739, 90), 500),
        ("downconv_282", late(960, 82), 500),
        ("era_2_4_1", late(2019, 160), 100),
    ],
)
def test_no_recording_is_read_the_wrong_way_round(
    name: str, damage: Callable[[list[Packet]], list[Packet]], least: int
) -> None:
    brokers = {
        row["broker_port"] for row in kdissect.open(CAPTURES / f"{name}.pcap").table("connections").to_pylist()
        if row["is_kafka"]
    }  # fmt: skip
    file = io.BytesIO(written(damage(recorded(name))))
    file.name = "late.pcap"
    rows = kdissect.open(file, jobs=1).table("exchanges", columns=["broker_port"]).to_pylist()
    assert len(rows) >= least
    assert {row["broker_port"] for row in rows} <= brokers

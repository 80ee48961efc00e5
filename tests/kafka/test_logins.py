"""Mechanism and user of each connection, as the recordings' own descriptions say; of a token nothing else."""

from __future__ import annotations

import io
import re
import struct
from collections import Counter
from pathlib import Path

import pytest

import kdissect
from kdissect.kafka.exchanges.logins import _field
from tests.fuzz.metamorphic import packets_of, written
from tests.oracle.material import CAPTURES
from tests.oracle.pcap import Talk, framed, metadata_request, metadata_response, pcap


def logins(path: Path) -> Counter[tuple[str | None, str | None]]:
    rows = kdissect.open(path).table("connections", ["is_kafka", "sasl_mechanism", "principal"]).to_pylist()
    return Counter((row["sasl_mechanism"], row["principal"]) for row in rows if row["is_kafka"])


def test_sasl_authenticate() -> None:
    found = logins(CAPTURES / "sasl_logins.pcap")
    assert set(found) == {("PLAIN", "alice"), ("SCRAM-SHA-256", "bob"), ("OAUTHBEARER", None)}
    assert found.total() == 23


def test_bare_tokens() -> None:
    found = logins(CAPTURES / "sasl_old.pcap")
    assert {mechanism for mechanism, _ in found} == {"PLAIN", "SCRAM-SHA-256"}
    assert all(user is not None for _, user in found)
    assert found.total() == 10


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize(
    "token", [b"\0eve\0pw-eve", b"\0eve", b"", b"\0\xff\xfe\0pw-eve", b"\0" + b"e" * 300 + b"\0pw-eve"]
)
def test_tokens_right_and_wrong(version: int, token: bytes, tmp_path: Path) -> None:
    """A login that fails names its user; what is no token names nobody; the password is nowhere."""
    talk = Talk()
    talk.handshake()
    client = b"\0\1c"
    sent = [
        (0, framed(struct.pack(">hhi", 17, 1, 1) + client + b"\0\5PLAIN")),
        (1, framed(struct.pack(">ihi", 1, 0, 1) + b"\0\5PLAIN")),
    ]
    if version < 2:
        body = struct.pack(">i", len(token)) + token
        answer = struct.pack(">ihh", 2, 58, -1) + struct.pack(">i", 0) + (b"\0" * 8 if version else b"")
    else:
        size = len(token) + 1
        prefix = bytes([size]) if size < 128 else bytes([size & 127 | 128, size >> 7])
        body = b"\0" + prefix + token + b"\0"
        answer = struct.pack(">i", 2) + b"\0" + struct.pack(">h", 58) + b"\0" + b"\1" + b"\0" * 8 + b"\0"
    sent += [(0, framed(struct.pack(">hhi", 36, version, 2) + client + body)), (1, framed(answer))]
    at = [0, 0]
    for n, (side, data) in enumerate(sent):
        talk.put(n + 1, side, at[side], data)
        at[side] += len(data)
    path = tmp_path / "login.pcap"
    path.write_bytes(pcap(talk.packets))
    named = token == b"\0eve\0pw-eve"
    assert logins(path) == {("PLAIN", "eve" if named else None): 1}
    tables = kdissect.open(path).tables()
    assert tables["exchanges"]["error_code"].to_pylist() == [0, 58]
    assert not any("pw-eve" in str(table.to_pylist()) for table in tables.values())


TOKENS = {
    "PLAIN": ((b"\0eve\0pw-eve", b""),),
    "PLAIN, short": ((b"\0e\0p", b""),),
    "SCRAM": (
        (b"n,,n=eve,r=fyko+d2l", b"r=fyko+d2lbbFgON,s=QSXC,i=4096"), (b"c=biws,r=fyko+d2l,p=v0X8", b"v=6rriTRBi"),
    ),
}  # fmt: skip
"""Tokens of a client, each with the broker's answer."""


def old_login(tokens: tuple[tuple[bytes, bytes], ...], answer: str) -> bytes:
    """A login with bare tokens, then a Metadata exchange. `answer`: "there", "lost" (of SaslHandshake v0), "late" (it
    was captured behind the first token), or "refused" (error 33; a request of an API that nobody knows follows)."""
    talk = Talk(client_isn=0, broker_isn=0)
    talk.handshake()
    at, ms = [0, 0], 1.0

    def say(side: int, data: bytes, when: float | None = None) -> None:
        talk.put(ms if when is None else when, side, at[side], data)
        at[side] += len(data)

    say(0, framed(struct.pack(">hhi", 17, 0, 1) + b"\0\1c" + b"\0\5PLAIN"))
    say(1, framed(struct.pack(">ihi", 1, 33 if answer == "refused" else 0, 1) + b"\0\5PLAIN"), ms + 0.5)
    if answer == "refused":
        say(0, framed(struct.pack(">hhi", 120, 0, 2) + b"\0\1c"), 2)
        say(1, framed(struct.pack(">i", 2)), 3)
        return pcap(talk.packets)
    answered = talk.packets[-1]
    for token, reply in tokens:
        ms += 1
        say(0, framed(token))
        say(1, framed(reply), ms + 0.5)
    say(0, metadata_request(2, []), 10)
    say(1, metadata_response(2), 11)
    if answer != "there":
        talk.packets.remove(answered)
    if answer == "late":
        talk.packets.insert(5, answered)
    return pcap(talk.packets)


@pytest.mark.parametrize("answer", ["there", "lost", "late"])
@pytest.mark.parametrize("tokens", TOKENS)
def test_bare_tokens_where_the_answer_to_the_handshake_is_not_there(tokens: str, answer: str, tmp_path: Path) -> None:
    """After a SaslHandshake v0 request tokens follow until a frame reads as a request that Kafka knows."""
    path = tmp_path / "old.pcap"
    path.write_bytes(old_login(TOKENS[tokens], answer))
    tables = kdissect.open(path).tables()
    rows = [(row["api"], row["correlation_id"], row["status"]) for row in tables["exchanges"].to_pylist()]
    assert rows == [("SaslHandshake", 1, "partial" if answer == "lost" else "ok"), ("Metadata", 2, "ok")]
    kinds = set(tables["problems"].column("kind").to_pylist())
    assert kinds == ({"missing_bytes", "resynchronised"} if answer == "lost" else set())


def test_a_handshake_that_was_refused_brings_no_tokens(tmp_path: Path) -> None:
    path = tmp_path / "refused.pcap"
    path.write_bytes(old_login((), "refused"))
    rows = kdissect.open(path).table("exchanges").to_pylist()
    assert [(row["api_key"], row["status"]) for row in rows] == [(17, "error"), (120, "ok")]


def test_fields_that_lie() -> None:
    for body in (b"", b"\0", b"\0\0\0\xff", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xffabc", b"\xff" * 9):
        for api, version in ((17, 0), (36, 0), (36, 2)):
            assert not _field(body, api, version)


def test_authenticated_again(tmp_path: Path) -> None:
    """Re-authentication (KIP-368): a second login in the middle of a connection, with requests around it."""
    talk = Talk()
    talk.handshake()
    client, at = b"\0\1c", [0, 0]

    def say(ms: float, side: int, data: bytes) -> None:
        talk.put(ms, side, at[side], framed(data))
        at[side] += len(data) + 4

    number = 0
    for turn, password in enumerate((b"pw-first", b"pw-second")):
        token = b"\0eve\0" + password
        steps = [
            (17, 1, b"\0\5PLAIN", struct.pack(">hi", 0, 1) + b"\0\5PLAIN"),
            (36, 1, struct.pack(">i", len(token)) + token, struct.pack(">hhiq", 0, -1, 0, 60_000)),
            (12, 0, b"\0\1g" + struct.pack(">i", 3) + b"\0\1m", struct.pack(">h", 0)),
        ]
        for key, version, body, answer in steps:
            number += 1
            say(100 * turn + 2 * number, 0, struct.pack(">hhi", key, version, number) + client + body)
            say(100 * turn + 2 * number + 1, 1, struct.pack(">i", number) + answer)
    path = tmp_path / "again.pcap"
    path.write_bytes(pcap(talk.packets))
    assert logins(path) == {("PLAIN", "eve"): 1}
    tables = kdissect.open(path).tables()
    rows = [(row["api"], row["status"], row["decoded"]) for row in tables["exchanges"].to_pylist()]
    assert rows == [(api, "ok", True) for api in ("SaslHandshake", "SaslAuthenticate", "Heartbeat")] * 2
    assert not any("pw-" in str(table.to_pylist()) for table in tables.values())


def test_tokens_of_a_scram_server_are_no_responses() -> None:
    """Of a copy with what the broker sent alone, first bytes of tokens (`r=`, `v=`) were shown as correlation ids."""
    packets = packets_of((CAPTURES / "sasl_old.pcap").read_bytes())
    answers = [packet for packet in packets if packet[1][34:36] == (39094).to_bytes(2)]
    assert any(b"r=" in data and b",s=" in data for _, data, _ in answers)
    found = kdissect.open(io.BytesIO(written(answers))).tables(["exchanges", "problems"])
    numbers = found["exchanges"]["correlation_id"].to_pylist()
    assert numbers
    assert max(numbers) < 1000
    said = "; ".join(row["detail"] or "" for row in found["problems"].to_pylist())
    assert all(int(number) < 1000 for number in re.findall(r"correlation id (\d+)", said))


def test_tokens_of_a_scram_client_are_no_requests() -> None:
    """Where a snap length cut requests for a handshake, first bytes of tokens (`c=`) were shown as API and version."""
    packets = packets_of((CAPTURES / "sasl_old.pcap").read_bytes())
    cut = [
        (when, data[:70] if data[70:74] == b"\0\x11\0\0" or b"n,,n=" in data else data, size)
        for when, data, size in packets
    ]
    assert any(b"c=biws,r=" in data for _, data, _ in cut)
    found = kdissect.open(io.BytesIO(written(cut))).table("exchanges").to_pylist()
    assert "ok" in {row["status"] for row in found}
    assert not [row for row in found if row["api_key"] is not None and row["api_key"] > 1000]

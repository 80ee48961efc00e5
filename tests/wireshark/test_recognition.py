"""Which connections the plugin takes for Kafka, beside Wireshark's own dissector, and what it keeps of them."""

from __future__ import annotations

import struct
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

import kdissect
from kdissect.schema import index
from tests.oracle import pcap
from tests.oracle.material import CAPTURES
from tests.oracle.pcap import Talk, api_versions_request, api_versions_response, metadata_request, metadata_response
from tests.wireshark.plugged import Message, command, lua_errors, messages, run

pytestmark = pytest.mark.oracle

Capture = Callable[..., Path]
ACKNOWLEDGED = 14 + 20 + 8
"""Where a packet's acknowledgement number stands."""


class Acknowledging(Talk):
    """A talk whose packets acknowledge what came before them; Wireshark takes others for retransmissions."""

    def put(self, ms: float, side: int, at: int, payload: bytes, flags: int = pcap.ACK) -> None:
        super().put(ms, side, at, payload, flags)
        seen = self.__dict__.setdefault("seen", {})
        seen[side] = (self.broker_isn if side else self.client_isn) + 1 + at + len(payload) + (flags == pcap.SYN)
        time, packet = self.packets[-1]
        number = struct.pack(">I", seen.get(1 - side, 0) & 0xFFFFFFFF)
        self.packets[-1] = time, packet[:ACKNOWLEDGED] + number + packet[ACKNOWLEDGED + 4 :]


@pytest.fixture
def capture(tmp_path: Path) -> Capture:
    def make(*talks: Talk) -> Path:
        packets = sorted(packet for talk in talks for packet in talk.packets)
        path = tmp_path / f"{tmp_path.name}-{len(list(tmp_path.iterdir()))}.pcap"
        path.write_bytes(pcap.pcap(packets))
        return path

    return make


def talk(port: int = 9092, client: int = 50000) -> Talk:
    """ApiVersions, then Metadata, answered."""
    made = Acknowledging(client=("10.0.0.1", client), broker=("10.0.0.2", port))
    made.handshake()
    exchange(made, 1.0, api_versions_request(1), api_versions_response(1))
    return made


def exchange(made: Talk, ms: float, request: bytes, response: bytes, at: tuple[int, int] = (0, 0)) -> None:
    made.put(ms, 0, at[0], request)
    made.put(ms + 1, 1, at[1], response)


def frames(lua: Path, path: Path, what: str, *options: str) -> list[int]:
    """Frames that a display filter lets through, in one pass."""
    done = run(command(lua, path, *options, "-Y", what, "-T", "fields", "-e", "frame.number"))
    assert done.returncode == 0, done.stderr
    assert not lua_errors(done)
    return [int(line) for line in done.stdout.split()]


def pairs(found: list[Message]) -> set[tuple[int | None, int]]:
    return {(one.number("request_in"), one.frame) for one in found if one.response}


def test_the_port_is_taken_over_and_given_back(lua: Path, capture: Capture) -> None:
    path = capture(talk())
    assert frames(lua, path, "kdissect") == [4, 5]
    assert frames(lua, path, "kafka") == []
    for way_back in (["-d", "tcp.port==9092,kafka"], ["-o", "kdissect.ports:", "-o", "kdissect.content:FALSE"]):
        assert frames(lua, path, "kdissect", *way_back) == []
        assert frames(lua, path, "kafka", *way_back) == [4, 5]
    assert frames(lua, path, "kdissect", "-o", "kdissect.ports:19092", "-o", "kdissect.content:FALSE") == []


def test_other_ports_by_name_and_by_content(lua: Path, capture: Capture) -> None:
    path = capture(talk(port=19094))
    assert frames(lua, path, "kdissect") == [4, 5]
    assert frames(lua, path, "kdissect", "-o", "kdissect.content:FALSE") == []
    ports = ["-o", "kdissect.ports:9092,19093-19095", "-o", "kdissect.content:FALSE"]
    assert frames(lua, path, "kdissect", *ports) == [4, 5]


def test_a_plausible_header_is_not_enough(lua: Path, capture: Capture) -> None:
    """Zeros and small numbers read as Produce of version 0; a body that does not fit is no Kafka."""
    made = Acknowledging(broker=("10.0.0.2", 7777))
    made.handshake()
    zeros = struct.pack(">i", 60) + bytes(60)
    made.put(1, 0, 0, zeros)
    made.put(2, 1, 0, zeros)
    one = metadata_request(7, ["t"])
    made.put(3, 0, len(zeros), one[:-7] + struct.pack(">i", 2) + one[-3:])
    assert frames(lua, capture(made), "kdissect") == []


@pytest.mark.parametrize("port", [9092, 29094])
def test_nobody_named(lua: Path, capture: Capture, port: int) -> None:
    """An empty client id and a topic of two letters: small numbers, until an answer fits."""
    made = Acknowledging(broker=("10.0.0.2", port))
    made.handshake()
    request, response = metadata_request(0, ["m2"], ""), metadata_response(0)
    exchange(made, 1, request, response)
    exchange(made, 3, metadata_request(1, [], ""), metadata_response(1), (len(request), len(response)))
    found = messages(lua, capture(made))
    assert pairs(found) == {(4, 5), (6, 7)}
    assert [one.frame for one in found] == [4, 5, 6, 7]


@pytest.mark.parametrize("answer", [metadata_response(1), metadata_response(0)[:-4] + b"\0\0\0\1", b"\0" * 20, b""])
def test_nobody_named_and_no_answer(lua: Path, capture: Capture, answer: bytes) -> None:
    """Another correlation id, a body that does not fit, zeros, the other side's silence: no Kafka."""
    made = Acknowledging(broker=("10.0.0.2", 7777))
    made.handshake()
    request = metadata_request(0, ["m2"], "")
    for i in range(3):
        made.put(2 * i + 1, 0, i * len(request), request)
        made.put(2 * i + 2, 1, i * len(answer), answer)
    assert frames(lua, capture(made), "kdissect", "-2") == []


def test_not_kafka_stays_what_it_is(lua: Path) -> None:
    path = CAPTURES / "not_kafka.pcap"
    rows = kdissect.open(path).table("exchanges").num_rows
    assert (len(frames(lua, path, "kdissect")) > 0) == (rows > 0)


def test_met_in_the_middle(lua: Path, capture: Capture) -> None:
    """The rest of a response, then whole messages: they pair, and nothing is made up."""
    made = Acknowledging()
    made.put(1, 1, 0, metadata_response(1)[9:])
    request, response = metadata_request(2, ["t"]), metadata_response(2)
    exchange(made, 2, request, response, (0, len(metadata_response(1)) - 9))
    exchange(made, 5, metadata_request(3, ["t"]), metadata_response(3), (len(request), 2 * len(response) - 9))
    found = messages(lua, capture(made))
    assert pairs(found) == {(2, 3), (4, 5)}


@pytest.mark.parametrize(
    "name", ["field_midstream", "field_snap96", "field_loss5", "field_to_broker", "field_reordered"]
)
def test_damaged_captures_invent_nothing(name: str, lua: Path) -> None:
    """What is shown is a message of kdissect's, and what is paired is a pair of kdissect's."""
    path = CAPTURES / f"{name}.pcap"
    rows = kdissect.open(path).table("exchanges").to_pylist()
    found = messages(lua, path)
    assert found
    theirs = {(row["request_frame"], row["response_frame"]) for row in rows}
    assert pairs(found) <= theirs
    places = {(row[f"{side}_frame"], row["correlation_id"]) for row in rows for side in ("request", "response")}
    assert {(one.frame, one.number("correlation_id")) for one in found} <= places


def test_ports_used_again(lua: Path, capture: Capture) -> None:
    """A second connection with the ports and the correlation ids of one that was left without its last answers."""
    first, second = Acknowledging(), Acknowledging(client_isn=900_000, broker_isn=70_000)
    first.handshake()
    asked = api_versions_request(1)
    exchange(first, 1, asked, api_versions_response(1))
    first.put(3, 0, len(asked), metadata_request(2, ["t"]) + metadata_request(3, ["t"]))
    first.put(4, 0, len(asked) + 2 * len(metadata_request(2, ["t"])), b"", pcap.RST)
    second.handshake(10)
    exchange(second, 11, asked, api_versions_response(1))
    at = len(asked), len(api_versions_response(1))
    exchange(second, 13, metadata_request(2, ["t"]), metadata_response(2), at)
    found = messages(lua, capture(first, second))
    assert pairs(found) == {(4, 5), (11, 12), (13, 14)}


def test_what_waits_is_bounded(lua: Path, capture: Capture) -> None:
    """One direction alone: ten thousand requests that nobody answers, then one that is."""
    made = Acknowledging()
    made.handshake()
    at = 0
    for i in range(200):
        several = b"".join(metadata_request(50 * i + k, []) for k in range(50))
        made.put(1 + i, 0, at, several)
        at += len(several)
    made.put(300, 1, 0, metadata_response(0))
    made.put(301, 1, len(metadata_response(0)), metadata_response(9_999))
    path = capture(made)
    done = run(command(lua, path, "-2", "-Y", "kdissect.response == 1", "-T", "fields", "-e", "frame.number", "-e",
                       "kdissect.request_in"))  # fmt: skip
    assert done.stdout.split() == [b"205", b"203"]  # what waited too long is forgotten, the oldest first


@pytest.mark.parametrize(("client_id", "cuts"), [("c", (0, 4, 20)), ("", (0, 4))], ids=["named", "nobody"])
def test_a_body_in_pieces(client_id: str, cuts: tuple[int, ...], lua: Path, capture: Capture) -> None:
    """A length, a header and a body in segments of their own, on Kafka's port: latency counts from the first."""
    made = Acknowledging()
    made.handshake()
    request = metadata_request(1, ["m2"], client_id)
    for ms, (start, stop) in enumerate(pairwise((*cuts, len(request)))):
        made.put(ms + 1, 0, start, request[start:stop])
    made.put(10, 1, 0, metadata_response(1))
    (response,) = [one for one in messages(lua, capture(made)) if one.response]
    assert response.number("request_in") == 3 + len(cuts)
    assert float(response.fields["kdissect.latency"][0]) == pytest.approx(0.009, abs=1e-6)


def test_a_cut_packet_shows_what_is_there(lua: Path, tmp_path: Path) -> None:
    made = talk()
    path = tmp_path / f"{tmp_path.name}-cut.pcap"
    path.write_bytes(pcap.pcap(made.packets, snap=54 + 24))
    found = messages(lua, path)
    assert pairs(found) == {(4, 5)}
    assert any("kdissect.cut" in one.fields for one in found if one.response)


def test_a_version_of_one_api_stands_for_none_of_another(lua: Path, capture: Capture) -> None:
    """Each API's newest version comes behind one of the API before it that is 64 higher, which no release has."""
    made, at = talk(), len(api_versions_request(1))
    newest = {key: api.request.versions.last for key, api in index.load().apis.items()}
    is_known = {}
    for n, (key, version) in enumerate(newest.items(), 1):
        for correlation, one, other in ((2 * n, key - 1, version + 64), (2 * n + 1, key, version)):
            request = pcap.framed(struct.pack(">hhih", one, other, correlation, 1) + b"c" + bytes(9))
            made.put(correlation, 0, at, request)
            at += len(request)
            is_known[correlation] = other == version
    found = messages(lua, capture(made))
    shown = {m.number("correlation_id"): "kdissect.unknown" not in m.fields for m in found if not m.response}
    assert {n for n, known in is_known.items() if known} <= shown.keys()
    assert all(shown[n] == known for n, known in is_known.items() if n in shown)

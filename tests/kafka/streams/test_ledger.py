"""The books of connections and problems: ids, words, and books that take over others."""

from __future__ import annotations

import numpy as np
import pytest

from kdissect.kafka.streams import ledger
from kdissect.kafka.streams.ledger import Ledger, connection_id, timed
from kdissect.kernels.structs import record
from kdissect.problems import Kind
from kdissect.tcp.layout import NULL, Connection, Problem
from tests.kafka.streams.playbook import BROKER, CLIENT, hole, lost, opening, play, request, response

FLOWS = np.array([[0, 0x0A000001, 0, 0x0A000002, 40_000 << 16 | 9092]], np.int64)


def entered(numbers: list[int], at: int = 5_000) -> Ledger:
    """A ledger with connections of these numbers, all of one flow, whose packets of the lower address are requests."""
    books = Ledger(["a"], [["a.pcap"]])
    rows = np.zeros(len(numbers), record(Connection))
    rows["number"], rows["first"], rows["sequence"] = numbers, at, numbers
    books.enter(rows, FLOWS)
    return books


@pytest.mark.parametrize("what", ["capture", "endpoint", "time", "sequence"])
def test_an_id_depends_on_all_that_tells_connections_apart(what: str) -> None:
    flows, first, sequence = np.repeat(FLOWS, 2, axis=0), np.array([7, 7]), np.array([1, 1])
    before = connection_id("a", flows, first, sequence)
    assert before[0] == before[1] == connection_id("a", flows, first, sequence)[0]
    if what == "endpoint":
        flows[1, -1] += 1
    elif what == "time":
        first[1] += 1
    elif what == "sequence":
        sequence[1] += 1
    after = connection_id("b" if what == "capture" else "a", flows, first, sequence)
    assert after[1] != before[1]
    assert (after[0] == before[0]) == (what != "capture")


def test_a_packet_without_a_time_has_none() -> None:
    assert timed(np.array([0, 5])).tolist() == [NULL, 5]
    some = np.array([4, 5])
    assert timed(some) is some


def test_problems_come_as_they_were_noted_and_count_for_their_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "PACKED", 3)
    books = entered([0, 1])
    for n in range(7):
        books.note(Kind.BODY_MISFIT, "request", f"detail {n}", conn=n % 2, n=n)
    told = [
        (int(row.conn[i]), int(row.n[i]), row.texts[row.where[i]], row.texts[row.detail[i]])
        for row in books.problems()
        for i in range(len(row.conn))
    ]
    assert told == [(n % 2, n, "request", f"detail {n}") for n in range(7)]
    assert books.connections.problems.tolist() == [4, 3]
    assert books.problem_rows == 7


@pytest.mark.parametrize(("side", "said"), [(CLIENT, "request stream"), (BROKER, "response stream")])
def test_problems_of_streams_are_put_into_words(side: int, said: str) -> None:
    steps = (request(1), hole(3)) if side == CLIENT else (request(1), response(1), lost())
    played = play(*opening(), *steps, request(2), response(2))
    assert played.kinds[:1] == ["missing_bytes"]
    books = entered([0])
    books.connections.problems[:] = 0
    rows = np.zeros(1, record(Problem))
    rows["kind"], rows["direction"], rows["bytes"], rows["position"] = Kind.MISSING_BYTES, side, 3, 1 << 32 | 77
    books._client[0] = CLIENT
    books.stream_problems(rows)
    (found,) = books.problems()
    assert found.texts[found.where[0]] == f"{said}, sequence number 77"
    assert found.texts[found.detail[0]] == "3 bytes were sent but not captured"


def test_one_that_takes_over_another_has_its_connections_and_problems_behind_its_own() -> None:
    first, second = entered([0, 1]), entered([0], at=9_000)
    first.note(Kind.TLS, "here", "one", conn=1)
    second.note(Kind.TLS, "here", "two", conn=0)
    second.encrypted(0, "TLS 1.3", "broker-1")
    expected = [*first.connections.id.tolist(), *second.connections.id.tolist()]
    assert first.absorb(second) == 2
    assert first.connections.id.tolist() == expected
    assert first.connections.sni == {2: "broker-1"}
    assert first.connections.protocols[first.connections.tls[2]] == "TLS 1.3"
    told = [(int(row.conn[i]), row.texts[row.detail[i]]) for row in first.problems() for i in range(len(row.conn))]
    assert told == [(1, "one"), (2, "two")]


def test_what_is_carried_goes_on_in_another() -> None:
    books = entered([0, 1, 2])
    books.encrypted(2, "TLS 1.2", None)
    other = Ledger(["a"], [["a.pcap"]])
    other.go_on(books.carried(np.array([2, 0])))
    assert other.connections.id.tolist() == books.connections.id[[2, 0]].tolist()
    assert other.connections.started.tolist() == [5_000, 5_000]

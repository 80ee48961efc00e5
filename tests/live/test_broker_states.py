"""Brokers that stand still, are gone, and are back: each rule by itself."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from kdissect.live.brokers.broker_states import BrokerStates
from kdissect.live.moment import Links, Listing, Waiting
from kdissect.tables.declaration import SCHEMAS

NOW = 1_800_000_000_000_000
SECOND = 1_000_000


def answer(states: BrokerStates, at_us: int, broker: str = "3", client: str = "shop", asked_us: int = NOW) -> None:
    row: dict[str, Any] = {"broker": broker, "client_id": client, "request_first_at": asked_us}
    states.note_answers(pa.Table.from_pylist([{**row, "response_first_at": at_us}], SCHEMAS["exchanges"]))


def judge(states: BrokerStates, at_us: int, links: Links, *waits: Waiting) -> list[tuple[str, str]]:
    return [(one.id, one.text) for one in states.judge(at_us, waits, {"3": links}, 1.0)]


@pytest.fixture
def states() -> BrokerStates:
    """Broker 3 has just answered."""
    states = BrokerStates()
    answer(states, NOW)
    return states


REFUSED = Links(open=0, cut_off=0, closed_us=0, refused_us=NOW + 10)
CUT_OFF = Links(open=0, cut_off=2, closed_us=NOW + 10, refused_us=0)


def test_a_broker_that_refuses_connections_is_gone_until_it_answers(states: BrokerStates) -> None:
    assert judge(states, NOW + 20, REFUSED) == [("gone", "broker 3 is gone: it refuses connections")]
    assert states.gone == {"3": NOW + 10}
    assert judge(states, NOW + 5 * SECOND, REFUSED) == []
    answer(states, NOW + 6 * SECOND)
    assert judge(states, NOW + 6 * SECOND, Links(1, 0, 0, NOW + 10)) == [
        ("back", "broker 3 is back after 6.0 s: it answers")
    ]
    assert not states.gone
    assert judge(states, NOW + 7 * SECOND, Links(1, 0, 0, NOW + 10)) == []


def test_a_broker_that_closes_all_its_connections_is_gone(states: BrokerStates) -> None:
    (change,) = judge(states, NOW + 20, CUT_OFF)
    assert change == ("gone", "broker 3 is gone: it closed all of its 2 connections, with requests open")


STROKE = Links(0, 0, NOW + 10, 0, closed=3, left=frozenset({"shop", "till"}))


def test_a_broker_that_ended_in_order_is_gone_once_its_clients_went_on(states: BrokerStates) -> None:
    later = NOW + 10 + SECOND
    assert judge(states, later, STROKE) == []
    answer(states, later, "1", "shop", asked_us=NOW + 20)
    assert judge(states, later, STROKE) == [], "the other client has not been heard of"
    answer(states, later, "1", "till", asked_us=NOW + 20)
    assert judge(states, later - 1, STROKE) == [], "clients may connect again"
    (change,) = judge(states, later, STROKE)
    assert change == (
        "gone", "broker 3 is gone: it closed all of its 3 connections, and its clients went on with others"
    )  # fmt: skip


@pytest.mark.parametrize(
    "links",
    [
        pytest.param(Links(1, 0, NOW + 10, 0, 3, STROKE.left), id="another connection is open"),
        pytest.param(Links(0, 0, NOW + 10, 0, 3, frozenset({"shop"})), id="one client may have its own reason"),
        pytest.param(Links(0, 0, NOW + 10, 0, 3), id="its connections were idle"),
        pytest.param(Links(0, 0, NOW - 10, 0, 3, STROKE.left), id="it answered after that"),
    ],
)
def test_connections_that_end_in_order(links: Links, states: BrokerStates) -> None:
    for client in STROKE.left:
        answer(states, NOW + SECOND, "1", client, asked_us=NOW + SECOND)
    assert judge(states, NOW + 3 * SECOND, links) == []


@pytest.mark.parametrize(
    "links",
    [
        pytest.param(Links(0, 1, NOW + 10, 0), id="one connection"),
        pytest.param(Links(0, 0, NOW + 10, 0), id="no request was open"),
        pytest.param(Links(1, 3, NOW + 10, 0), id="another one is open"),
        pytest.param(Links(0, 3, NOW - 10, 0), id="it answered after that"),
        pytest.param(Links(2, 0, 0, NOW + 10), id="it refused one, and answered just before"),
        pytest.param(Links(0, 0, 0, NOW - 10), id="it answered after it refused"),
    ],
)
def test_a_broker_that_is_there(links: Links, states: BrokerStates) -> None:
    assert judge(states, NOW + 20, links) == []


def test_a_broker_is_gone_though_its_connections_seem_open(states: BrokerStates) -> None:
    """Their ends were not captured."""
    links = Links(2, 0, 0, NOW + SECOND)
    assert [id for id, _ in judge(states, NOW + SECOND, links)] == ["gone"]


def test_who_never_answered_is_not_known(states: BrokerStates) -> None:
    assert BrokerStates().judge(NOW, [], {"3": REFUSED}, 1.0) == []


def listing(sender: str, asked: float, *listed: str) -> Listing:
    """An answer after 10 ms; `asked`: seconds after NOW."""
    at = NOW + int(asked * SECOND)
    return Listing(sender, at, at + 10_000, frozenset(listed))


def test_a_broker_that_another_one_lists_again_is_back(states: BrokerStates) -> None:
    """And stays, for its links are those of before."""
    assert [id for id, _ in judge(states, NOW + 20, CUT_OFF)] == ["gone"]
    states.note_listings([listing("1", 5, "1", "2", "3"), listing("1", 3, "1", "2")])
    (change,) = judge(states, NOW + 6 * SECOND, CUT_OFF)
    assert change == ("back", "broker 3 is back after 5.0 s: others list it again")
    states.note_listings([listing("1", 7, "1", "2", "3")])
    assert judge(states, NOW + 8 * SECOND, CUT_OFF) == []


@pytest.mark.parametrize(
    "listings",
    [
        pytest.param([listing("1", 3, "1", "3"), listing("1", 5, "1", "3")], id="nobody left it out yet"),
        pytest.param([listing("1", 3, "1"), listing("2", 5, "1", "3")], id="another one may not have learned of it"),
        pytest.param([listing("1", 3, "1"), listing("1", 3.005, "1", "3")], id="answers that passed each other"),
        pytest.param([listing("1", -9, "1"), listing("1", 0.1, "1", "3")], id="it was left out before it went"),
        pytest.param([listing("1", 3, "1"), listing("1", 5, "1")], id="it is left out"),
    ],
)
def test_listings_that_prove_nothing(listings: list[Listing], states: BrokerStates) -> None:
    assert [id for id, _ in judge(states, NOW + 20, CUT_OFF)] == ["gone"]
    states.note_listings(listings)
    assert judge(states, NOW + 6 * SECOND, CUT_OFF) == []


def test_a_follower_that_fetches_is_back(states: BrokerStates) -> None:
    """And stays, though its port is not open yet."""
    assert [id for id, _ in judge(states, NOW + 20, CUT_OFF)] == ["gone"]
    answer(states, NOW + 9 * SECOND, "1", "broker-3-fetcher-0", asked_us=NOW + 8 * SECOND)
    (change,) = judge(states, NOW + 9 * SECOND, CUT_OFF)
    assert change == ("back", "broker 3 is back after 8.0 s: it fetches from other brokers")
    assert judge(states, NOW + 9 * SECOND, Links(0, 2, NOW + 10, NOW + 8_500_000)) == []


def test_a_broker_that_is_gone_does_not_stand_still(states: BrokerStates) -> None:
    wait = Waiting("3", "shop", "Metadata", NOW + 5, 1)
    links = Links(1, 0, 0, 0)
    assert [id for id, _ in judge(states, NOW + 2 * SECOND, links, wait)] == ["standstill"]
    refused = Links(1, 0, 0, NOW + 3 * SECOND)
    assert [id for id, _ in judge(states, NOW + 3 * SECOND, refused, wait)] == ["gone"]
    assert not states.still
    assert judge(states, NOW + 4 * SECOND, refused, wait) == []


def test_requests_before_the_latest_answer_do_not_hide_those_behind_it(states: BrokerStates) -> None:
    answer(states, NOW + 10)
    waits = [Waiting("3", "early", "Produce", NOW + 5, 5), Waiting("3", "late", "Produce", NOW + 11, 5)]
    assert [id for id, _ in judge(states, NOW + SECOND, Links(2, 0, 0, 0), *waits)] == []
    assert [id for id, _ in judge(states, NOW + 11 + SECOND, Links(2, 0, 0, 0), *waits)] == ["standstill"]


def test_a_state_goes_with_the_brokers_name(states: BrokerStates) -> None:
    address = BrokerStates()
    answer(address, NOW, "10.0.0.3:9092")
    address.judge(NOW + 20, [], {"10.0.0.3:9092": REFUSED}, 1.0)
    address.rename("10.0.0.3:9092", "3")
    assert address.gone == {"3": NOW + 10}
    answer(address, NOW + SECOND)
    assert [one.id for one in address.judge(NOW + SECOND, [], {"3": REFUSED}, 1.0)] == ["back"]

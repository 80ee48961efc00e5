"""A real broker of the newest Kafka, asked all that it advertises: what it logged is in our tables, field by field."""

from __future__ import annotations

from pathlib import Path

import pytest

import kdissect
from tests.live import broker
from tests.live.client import Sent, sweep
from tests.oracle.material import Material
from tests.oracle.test_request_logs import (  # noqa: F401 - the same statements as for the recorded captures
    test_every_answered_exchange_is_logged,
    test_every_logged_request_is_an_exchange,
    test_every_message_equals_the_log_field_by_field,
    test_forwarded_requests_are_inside_envelopes,
    test_the_message_tables_hold_nothing_else,
)

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]

REFUSED = {(0, 0), (0, 1), (0, 2)}
"""Produce v0 to v2 are advertised only because a client of old would give up otherwise (KAFKA-18659)."""
AMBIGUOUS = ["EndQuorumEpoch version 0 had two layouts, and both fit"]
"""One partition with one preferred successor is, byte for byte, also one with a replica id and no successor (2.7)."""
ENVELOPE = 58
"""Never logged; what is inside is."""


@pytest.fixture(scope="module")
def sent_and_logged(tmp_path_factory: pytest.TempPathFactory) -> tuple[Sent, Material]:
    broker.needs()
    folder: Path = tmp_path_factory.mktemp("live")
    with broker.running(folder) as live:
        sent = sweep(live.port, live.controller_port)
    live.finished()
    return sent, Material("live", live.capture, {}, kdissect.open(live.capture), live.log)


@pytest.fixture
def logged(sent_and_logged: tuple[Sent, Material]) -> Material:
    return sent_and_logged[1]


def test_the_broker_answered_everything_that_it_advertises(sent_and_logged: tuple[Sent, Material]) -> None:
    sent, it = sent_and_logged
    assert not sent.unknown, "versions newer than ours"
    assert sent.advertised - sent.answered == REFUSED
    assert len(sent.answered) > 300
    ours = {(e.key, e.version) for e in it.entries if e.client_id.startswith("live-")}
    assert {which for which in sent.answered if which[0] != ENVELOPE} <= ours, "answered and not logged"
    assert {(88, 1), (93, 0), (94, 0)} <= sent.by_hand & ours, "the newest ones, which kio does not know yet"


def test_every_answer_was_read(logged: Material) -> None:
    answered = [r for r in logged.exchanges if r["response_last_at"] is not None]
    assert all(r["decoded"] and r["status"] in ("ok", "error") for r in answered)
    assert [problem["detail"] for problem in logged.capture.table("problems").to_pylist()] == AMBIGUOUS

"""A live view's spans: those of the whole capture, without links; a receiver that is away costs no watching."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

import kdissect
from kdissect.live.running_figures import Figures
from kdissect.live.source import open_source
from kdissect.live.watched_source import Session
from kdissect.otlp import live_sender
from kdissect.otlp.live_sender import LiveSender
from kdissect.otlp.receivers import HttpReceiver
from kdissect.otlp.sending import READ
from kdissect.problems import JobFailed
from tests.conftest import CAPTURES
from tests.otlp.receiver import receiving

CAPTURE = CAPTURES / "base.pcap"


class Away:
    """A receiver that fails for as long as it is told to, or blocks."""

    rejected_spans = 0
    rejections = ""

    def __init__(self) -> None:
        self.away = True
        self.blocks = threading.Event()
        self.blocks.set()
        self.spans: list[Any] = []
        self.closed = False
        self.tries = 0

    def take_spans(self, spans: Sequence[Any]) -> None:
        self.blocks.wait(60)
        self.tries += 1
        if self.away:
            raise JobFailed("it is away")
        self.spans += spans

    def take_metrics(self, metrics: Any) -> None:
        self.take_spans([])

    def interrupt(self) -> None:
        self.blocks.set()

    def close(self) -> None:
        self.closed = True


def parts(count: int) -> list[Mapping[str, Any]]:
    tables = kdissect.open(CAPTURE).tables(READ)
    return [tables] * count


def wait(holds: Any) -> None:
    end = time.monotonic() + 60
    while not holds() and time.monotonic() < end:
        time.sleep(0.01)
    assert holds()


def test_a_replay_sends_the_spans_of_the_capture() -> None:
    with receiving() as taken:
        sender = LiveSender(HttpReceiver(taken.url), lambda text: pytest.fail(text))
        with Session(open_source([str(CAPTURE)], None, [], None, True), Figures(), sender=sender) as session:
            session.run()
        sender.close()
        live, metrics = list(taken.spans), len(taken.metrics)
        taken.spans.clear()
        kdissect.otlp.send(kdissect.open(CAPTURE), taken.url, links=False)
    assert (sender.spans, sender.lost, metrics) == (len(live), 0, 1)

    def texts(spans: Sequence[Any]) -> list[Any]:
        return sorted((span.span_id, span.start_time_unix_nano, span.end_time_unix_nano, span.name) for span in spans)

    assert texts(live) == texts(taken.spans)


def test_a_failure_is_told_once_and_it_goes_on() -> None:
    told: list[str] = []
    receiver = Away()
    sender = LiveSender(receiver, told.append)
    sender.add_rows(parts(2), waits=False)
    wait(lambda: receiver.tries == 4)  # of 512 spans at most
    receiver.away = False
    sender.add_rows(parts(1), waits=False)
    sender.close()
    assert told == ["it is away; exchanges are not sent until it works"]
    assert receiver.spans
    assert sender.lost == 2 * parts(1)[0]["exchanges"].num_rows
    assert receiver.closed


def test_what_a_receiver_rejects_is_told_once_and_it_goes_on() -> None:
    told: list[str] = []
    with receiving() as taken:
        taken.rejected, taken.reason = {"/v1/traces": 1}, "too old"
        sender = LiveSender(HttpReceiver(taken.url), told.append)
        sender.add_rows(parts(2), waits=True)
        sender.close()
    requests, sent = len(taken.sizes), len(taken.spans)
    assert told == [f"the OTLP receiver rejected 1 of {taken.sizes[0]} spans: too old"]
    assert sender.rejections == f"rejected {requests} of {sent:,} spans: too old"
    assert (sender.spans, sender.lost) == (sent - requests, 0)


def test_watching_does_not_wait_for_a_receiver_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_sender, "CLOSE_S", 0.1)
    receiver = Away()
    receiver.blocks.clear()
    sender = LiveSender(receiver, lambda text: None)
    many = parts(live_sender.MOST_WAITING + 20)
    taking = threading.Thread(target=sender.add_rows, args=(many, False))
    taking.start()
    taking.join(60)
    assert not taking.is_alive(), "what does not fit is dropped"
    sender.close()
    assert sender.lost == len(many) * many[0]["exchanges"].num_rows
    assert (sender.spans, receiver.closed) == (0, True)
    assert not sender._thread.is_alive()


def test_a_replay_gives_up_where_nothing_listens() -> None:
    """It would try each request for ten seconds."""
    receiver = Away()
    told: list[str] = []
    sender = LiveSender(receiver, told.append)
    for part in parts(100):
        sender.add_rows([part], waits=True)
        if told:
            break
    wait(lambda: sender._failing)
    sender.add_rows([], waits=True)
    assert sender._gave_up
    sender.close()
    assert sender.spans == 0

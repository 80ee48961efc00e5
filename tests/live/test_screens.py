"""The live view on real terminals: a replayed story and a broker that is stopped. The story's screens are the docs'.

After a wanted change: KDISSECT_UPDATE_DOCS=1 pytest -m live tests/live/test_screens.py
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.live import broker, tmux
from tests.live.client import API_VERSIONS, Client, Sent

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]

PAGE = ROOT / "docs" / "live.md"
STORY = ["top", "captures/k4_session_eviction.pcap", "--speed", "60"]
SHOWS_WITHIN_MS = 2000
TRIES = 3
"""Another program may take the machine for a moment; once in so many it does not."""


def shown(name: str) -> list[str]:
    """The screen of this name in the docs, without blanks at the ends of lines."""
    found = re.search(rf"<!-- screen: {name} -->\n```text\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found, name
    return found[1].split("\n")[:-1]


def keep(name: str, lines: list[str]) -> None:
    """Put a screen into the docs."""
    text = "".join(line.rstrip() + "\n" for line in lines)
    pattern = rf"(<!-- screen: {name} -->\n```text\n).*?```"
    page = re.sub(pattern, lambda match: match[1] + text + "```", PAGE.read_text(), flags=re.DOTALL)
    PAGE.write_text(page)


def table(lines: list[str]) -> list[str]:
    """The lines that do not depend on when findings were looked for: exchanges and connections, then the table."""
    return [lines[0].rstrip(), *(line.rstrip() for line in lines[2 : lines.index("") if "" in lines else None])]


@pytest.mark.parametrize(("width", "height"), [(80, 24), (200, 60)])
def test_a_replayed_story(width: int, height: int) -> None:
    tmux.needed()
    with tmux.running(STORY, width, height) as terminal:
        terminal.until(lambda text: "Broker" in text)
        terminal.press("c")
        terminal.until(lambda text: "Client" in text)
        lines = terminal.until(lambda text: "ended" in text)
        name = f"{width}x{height}"
        if os.environ.get("KDISSECT_UPDATE_DOCS") == "1":
            keep(name, lines)
        assert table(lines)[:6] == table(shown(name))[:6]
        assert all(len(line) <= width for line in lines)
        for key, title in (("t", "Topic"), ("a", "API"), ("b", "Broker"), ("?", "choose a line")):
            terminal.press(key)
            terminal.until(lambda text, title=title: title in text)  # type: ignore[misc]
        terminal.press("Escape")
        terminal.press("q")


class Traffic:
    """Asks a broker ten times a second, on a connection anew whenever it does not answer."""

    def __init__(self, port: int) -> None:
        self._over = threading.Event()
        self._port = port
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        client = Client(self._port, Sent())
        while not self._over.wait(0.1):
            client.ask(API_VERSIONS, 0, b"")
        client.close()

    def stop(self) -> None:
        self._over.set()
        self._thread.join(30)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[broker.Live]:
    broker.needs()
    folder: Path = tmp_path_factory.mktemp("stalled")
    with broker.running(folder) as running:
        traffic = Traffic(running.port)
        yield running
        os.killpg(running.group, signal.SIGCONT)
        traffic.stop()


def test_a_stopped_broker_shows_within_two_seconds(live: broker.Live) -> None:
    """Real traffic on loopback. How long it took is what the view itself says: since when the request waits."""
    watched = ["top", "-i", "lo", "--port", str(live.port), "--every", "0.2s", "--format", "jsonl", "--no-findings"]
    took = []
    with subprocess.Popen([sys.executable, "-m", "kdissect", *watched], stdout=subprocess.PIPE, cwd=ROOT) as top:
        assert top.stdout is not None
        for _ in range(TRIES):
            began = time.time()
            while json.loads(top.stdout.readline())["exchanges"] < 5:
                assert time.time() - began < 60
            os.killpg(live.group, signal.SIGSTOP)
            stopped = time.time()
            while not (line := json.loads(top.stdout.readline()))["standing_still"]:
                assert time.time() - stopped < 60
            (at,) = (one for one in line["brokers"] if one["standing_still"])
            took.append(at["waiting_ms"])
            os.killpg(live.group, signal.SIGCONT)
            going_on = time.time()
            while json.loads(top.stdout.readline())["standing_still"]:
                assert time.time() - going_on < 60
            if took[-1] <= SHOWS_WITHIN_MS:
                break
        top.send_signal(signal.SIGINT)
        last = json.loads(top.stdout.read().splitlines()[-1])
    print(f"a stopped broker showed after {took} ms")
    assert min(took) <= SHOWS_WITHIN_MS
    assert {"standstill", "answers_again"} <= {one["id"] for one in last["findings"]}
    assert last["dropped_packets"] == 0


def test_a_stopped_broker_on_a_terminal(live: broker.Live) -> None:
    tmux.needed()
    with tmux.running(["top", "-i", "lo", "--port", str(live.port), "--no-findings"], 80, 24) as terminal:
        terminal.until(lambda text: re.search(r"[1-9]\d* exchanges", text))
        os.killpg(live.group, signal.SIGSTOP)
        terminal.until(lambda text: "STANDS STILL: broker" in text and "has answered nobody" in text)
        os.killpg(live.group, signal.SIGCONT)
        terminal.until(lambda text: "STANDS STILL" not in text and "answers again" in text)
        terminal.press("q")

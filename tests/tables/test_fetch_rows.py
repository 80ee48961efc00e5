"""Rows of fetches from each source lead to the same holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kdissect
from kdissect.analysis.stage import Stage
from kdissect.capture.captureset import CaptureSet
from kdissect.capture.window import Window
from kdissect.engine import analysed_run
from kdissect.kafka.exchanges import completion
from kdissect.kafka.exchanges.completion import Sparing
from kdissect.tables import fetch_bodies
from tests.bench.workloads import WORKLOADS
from tests.conftest import ROOT

NOTHING: dict[tuple[int, int], frozenset[str]] = {(1, 0): frozenset()}
"""As `fetch_bodies.READS`: no message is read aside."""
NAMES = ("plain", "bulk", "sessions", "chatter-v11-16", "chatter-v16-16")


@pytest.fixture(scope="module")
def captures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Clients that ask for everything with each fetch, of one partition and of several, and clients with sessions of
    one partition and of thousands, by name and by id."""
    folder = tmp_path_factory.mktemp("fetches")
    found = {name: folder / f"{name}.pcap" for name in NAMES}
    for name, path in found.items():
        WORKLOADS[name][1](path, 600_000 if name == "plain" else 1_500_000)
    return found


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize("small", [True, False])
def test_fetches_have_one_hold_however_their_rows_were_made(
    name: str, jobs: int, small: bool, captures: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Block by block, and all at once: read aside, from columns of integers, and by way of tables."""
    if small:
        monkeypatch.setattr(CaptureSet, "window", lambda self: Window(1 << 17))
        monkeypatch.setattr(analysed_run, "ROWS_A_TIME", 100)
    found, aside = [], []
    reads, taken = fetch_bodies.READS, fetch_bodies.BodyReader.drain

    def noted(self: fetch_bodies.BodyReader) -> Any:
        bodies = taken(self)
        aside.append(0 if bodies is None else len(bodies.rows.fetches))
        return bodies

    monkeypatch.setattr(fetch_bodies.BodyReader, "drain", noted)
    for wanted, hidden in ((reads, True), (NOTHING, True), (NOTHING, False)):
        monkeypatch.setattr(fetch_bodies, "READS", wanted)
        monkeypatch.setattr(Stage, "only_holds", hidden)
        opened = kdissect.open(str(captures[name]), jobs=jobs)
        columns = ["exchange_id", "api", "hold", "broker_ms"]
        rows: list[dict[str, Any]] = [row for one in opened.batches("exchanges", columns) for row in one.to_pylist()]
        found.append(sorted(rows, key=repr))
    assert found[0] == found[1] == found[2]
    fetches = [row for row in found[0] if row["api"] == "Fetch"]
    assert sum(aside) > 0.9 * len(fetches)
    assert {row["hold"] for row in fetches} - {None}


@pytest.mark.parametrize("name", ["k4_fetch_sessions_raw", "k4_follower_sessions", "k4_session_eviction"])
def test_recorded_sessions_have_one_hold_however_their_rows_were_made(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With sessions that are evicted, partitions that are forgotten, followers and epochs that are refused."""
    found = []
    for wanted, hidden in ((fetch_bodies.READS, True), (NOTHING, True), (NOTHING, False)):
        monkeypatch.setattr(fetch_bodies, "READS", wanted)
        monkeypatch.setattr(Stage, "only_holds", hidden)
        opened = kdissect.open(str(ROOT / "captures" / f"{name}.pcap"))
        columns = ["exchange_id", "api", "hold", "broker_ms"]
        found.append(sorted((r for one in opened.batches("exchanges", columns) for r in one.to_pylist()), key=repr))
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize(("name", "spared"), [("plain", True), (ROOT / "captures/k4_java_classic.pcap", False)])
def test_partitions_of_produce_are_left_alone_until_replicas_are_told_and_nothing_is_lost(
    name: str | Path, spared: bool, captures: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a capture without answers that tell replicas, and in one that begins with them."""
    enough, told = Sparing.enough, []
    monkeypatch.setattr(Sparing, "enough", lambda *given: told.append(enough(*given)) or told[-1])
    found = []
    for least in (1 << 40, 1):
        monkeypatch.setattr(completion, "WORTH_SPARING", least)
        opened = kdissect.open(str(captures.get(name, name)))  # type: ignore[call-overload]
        found.append([row for one in opened.batches("exchanges") for row in one.to_pylist()])
    assert found[0] == found[1]
    assert any(told) == spared


def test_nothing_is_spared_any_more_once_replicas_were_told() -> None:
    sparing = Sparing(None, frozenset({3, 75}))  # type: ignore[arg-type]
    many = np.zeros(completion.WORTH_SPARING, np.int16)
    assert sparing.enough(many)
    assert not sparing.enough(many[:-1])
    assert not sparing.enough(np.array([0, 75], np.int16))
    assert not sparing.enough(many)


def test_what_is_enough_whatever_comes_is_enough_for_little_too() -> None:
    sparing = Sparing(None, frozenset())  # type: ignore[arg-type]
    assert sparing.enough(np.array([3], np.int16))

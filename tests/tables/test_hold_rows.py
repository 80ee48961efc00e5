"""Fetches that depend on no other one have the holds that their rows in the tables have."""

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
from kdissect.tables import coded_rows, fetch_bodies
from tests.bench.workloads import WORKLOADS
from tests.conftest import ROOT

NOTHING: dict[tuple[int, int], frozenset[str]] = {(1, 0): frozenset()}
"""As `fetch_bodies.READS`: no message is read aside."""


@pytest.fixture(scope="module")
def captures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Clients that ask for everything with each fetch: of a topic with records, of several partitions, and mixed."""
    folder = tmp_path_factory.mktemp("alone")
    found = {name: folder / f"{name}.pcap" for name in ("plain", "bulk", "sessions")}
    for name, path in found.items():
        WORKLOADS[name][1](path, 600_000 if name == "plain" else 3_000_000)
    return found


@pytest.mark.parametrize("name", ["plain", "bulk"])
@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize("small", [True, False])
def test_fetches_that_stand_alone_have_the_holds_that_their_rows_have(
    name: str, jobs: int, small: bool, captures: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Block by block, and all at once: read aside, from columns, by way of rows, and by way of tables."""
    if small:
        monkeypatch.setattr(CaptureSet, "window", lambda self: Window(1 << 17))
        monkeypatch.setattr(analysed_run, "ROWS_A_TIME", 100)
    alone = coded_rows.alone
    told: list[int] = []

    def noted(*given: Any) -> int:
        told.append(alone(*given))
        return told[-1]

    found = []
    reads = fetch_bodies.READS
    ways = (reads, noted, True), ({}, noted, True), ({}, lambda *_: 0, True), ({}, lambda *_: 0, False)
    for aside, looked, hidden in ways:
        monkeypatch.setattr(fetch_bodies, "READS", aside or NOTHING)
        monkeypatch.setattr(coded_rows, "alone", looked)
        monkeypatch.setattr(Stage, "hidden", hidden)
        opened = kdissect.open(str(captures[name]), jobs=jobs)
        columns = ["exchange_id", "api", "hold", "broker_ms"]
        rows: list[dict[str, Any]] = [row for one in opened.batches("exchanges", columns) for row in one.to_pylist()]
        found.append(sorted(rows, key=repr))
    assert told
    assert all(told)
    assert found[0] == found[1] == found[2] == found[3]
    assert {row["hold"] for row in found[0] if row["api"] == "Fetch"} - {None}


def test_fetches_of_sessions_do_not_stand_alone(captures: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """What a session implies is not in the request."""
    told: list[int] = []
    monkeypatch.setattr(fetch_bodies, "READS", NOTHING)
    alone = coded_rows.alone
    monkeypatch.setattr(coded_rows, "alone", lambda *given: told.append(alone(*given)) or told[-1])
    list(kdissect.open(str(captures["sessions"])).batches("exchanges"))
    assert told
    assert not any(told)


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

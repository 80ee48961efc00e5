"""The first screen of a large capture, which counts by codes what it has no room for, says what rows would say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import kdissect
from kdissect.analysis.stage import Stage
from kdissect.capture.captureset import CaptureSet
from kdissect.capture.window import Window
from kdissect.engine import analysed_run
from kdissect.engine.extracts import overview
from kdissect.engine.saving import evidence_rows
from kdissect.summary.spending import Spending
from kdissect.tables import fetch_bodies
from kdissect.tables.fetch_bodies import Bodies, BodyReader
from kdissect.tables.fetch_rows import ASKED, partitions_of
from tests.bench.workloads import WORKLOADS
from tests.conftest import ROOT

CAPTURES = [
    "era_1_1_1.pcap", "era_3_9_1_kraft.pcap", "sweep_231.pcap", "rules/slots.pcap.zst", "stories/quotas.pcap.zst",
    "stories/lossy_5_client.pcap.zst",
]  # fmt: skip


@pytest.fixture
def crowded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Room for hardly any evidence, and small blocks; what is made as codes is noted."""
    noted: list[str] = []
    hide = Stage.hide

    def hiding(self: Stage, *given: Any) -> Any:
        noted.append("hidden")
        return hide(self, *given)

    monkeypatch.setattr(Stage, "hide", hiding)
    monkeypatch.setattr(overview, "HELD_BACK", 0)
    monkeypatch.setattr(overview, "EVIDENCE", 20)
    monkeypatch.setattr(Spending.__init__, "__defaults__", (10,))
    monkeypatch.setattr(analysed_run, "ROWS_A_TIME", 0)
    monkeypatch.setattr(CaptureSet, "window", lambda self: Window(1 << 17))
    return noted


@pytest.mark.parametrize("name", CAPTURES)
@pytest.mark.parametrize("jobs", [1, 2])
def test_what_is_counted_by_codes_is_what_rows_say(
    name: str, jobs: int, crowded: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With rows that wait for the watermark, or for followers, at the turn from the one to the other."""
    path = str(ROOT / "captures" / name)
    by_codes = kdissect.open(path, jobs=jobs).summary()
    assert crowded == ["hidden"]
    monkeypatch.setattr(Stage, "may_hide", lambda self, read: False)
    by_rows = kdissect.open(path, jobs=jobs).summary()
    assert crowded == ["hidden"]
    assert by_codes == by_rows
    assert by_codes.findings_of is not None


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize("name", ["sweep_440_kraft.pcap", "sweep_391_kraft.pcap"])
def test_names_that_come_late_are_right(name: str, jobs: int, crowded: list[str]) -> None:
    """Brokers are called otherwise by a later message when their first rows were counted, once and twice."""
    capture = kdissect.open(ROOT / "captures" / name, jobs=jobs)
    exchanges, sessions = (capture.pandas(table) for table in ("exchanges", "fetch_sessions"))
    summary = capture.summary(by="broker")
    counts = exchanges["broker"].value_counts().to_dict()
    assert {one.name: one.exchanges for one in summary.latencies} == counts
    assert {one.broker: one.exchanges for one in summary.brokers} == {
        one.broker: counts[one.broker] for one in summary.brokers
    }
    assert sum(one.sessions for one in summary.sessions) == len(sessions)


def test_names_of_a_pipe_are_those_that_were_known_by_then(crowded: list[str]) -> None:
    """It is read once."""
    path = ROOT / "captures" / "sweep_440_kraft.pcap"
    with path.open("rb") as file:
        summary = kdissect.open(file).summary(by="broker")
    assert {one.name: one.exchanges for one in summary.latencies} == {"1": 177, "77": 740}


@pytest.mark.parametrize("jobs", [1, 2])
def test_bodies_are_read_aside_where_only_counts_are_left(
    jobs: int, crowded: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of fetches whose answers leave out what was asked for, too."""
    path, taken = tmp_path / "plain.pcap", []
    WORKLOADS["plain"][1](path, 3_000_000)
    real = BodyReader.drain

    def noted(self: BodyReader) -> Bodies | None:
        taken.append(real(self))
        return taken[-1]

    monkeypatch.setattr(BodyReader, "drain", noted)
    summary = kdissect.open(str(path), jobs=jobs).summary()
    assert any(_left_out(bodies) for bodies in taken)
    monkeypatch.setattr(fetch_bodies, "READS", {(1, 0): frozenset()})  # nothing is read aside
    assert kdissect.open(str(path), jobs=jobs).summary() == summary
    monkeypatch.setattr(Stage, "may_hide", lambda self, read: False)
    assert kdissect.open(str(path), jobs=jobs).summary() == summary
    assert summary.topics


def _left_out(bodies: Bodies | None) -> bool:
    """Whether any answer leaves out what was asked for."""
    return bodies is not None and bool((partitions_of(bodies.rows.partitions)["flags"] == ASKED).any())


@pytest.mark.parametrize("name", CAPTURES)
def test_what_says_nothing_may_be_kept_as_well(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of a small part are not looked through for those that findings can depend on."""
    path = str(ROOT / "captures" / name)
    as_they_are = kdissect.open(path).summary()
    monkeypatch.setattr(evidence_rows, "FEW", -1)
    assert kdissect.open(path).summary() == as_they_are


def test_who_is_shown_rows_gets_them() -> None:
    """Findings, and tables of fetches and produces, need rows."""
    stage = Stage({"exchanges": None, "findings": None})
    assert not stage.may_hide({"exchanges"})
    stage.findings_end()
    assert stage.may_hide({"exchanges", "fetch_sessions"})
    assert not stage.may_hide({"exchanges", "fetches"})
    assert not Stage({"exchanges": ["exchange_id"]}).may_hide({"exchanges"})

"""The judge of the laboratory's recordings: its halves, and what it calls named, half, unsaid and wrong."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from kdissect.analysis.findings.catalogue import KINDS
from tests import laboratory_counts
from tests.conftest import ROOT
from tests.laboratory import (
    EXPECTED,
    LIBRARIES,
    Cell,
    Judged,
    cells,
    certainties,
    half_of,
    judge,
    judged,
    line_of,
    mischief,
    roles_of,
)  # fmt: skip

LAB = ROOT / "captures" / "lab"
AT = datetime(2026, 11, 24, 12, tzinfo=UTC)
RELEASES = ("Fetch v17", "Fetch v18")


def row(cause: str, severity: str = "medium", client_id: str | None = None, incident: int = 1) -> dict[str, Any]:
    return {
        "cause": cause, "severity": severity, "client_id": client_id, "incident": incident, "broker": None,
        "topic": None, "partition": None, "text": "", "first_at": AT, "last_at": AT,
    }  # fmt: skip


@pytest.mark.parametrize("cause", sorted(EXPECTED))
@pytest.mark.parametrize("release", RELEASES)
def test_each_cause_is_in_both_halves(cause: str, release: str) -> None:
    halves = [[half_of(cause, name, release) for name in group] for group in LIBRARIES]
    assert all(set(group) == {"A", "B"} for group in halves)
    assert [half for group in halves for half in group].count("A") == 3


def test_the_split_does_not_change() -> None:
    """Rules were chosen by these cells."""
    split = "".join(half_of("loss", name, "Fetch v18") for group in LIBRARIES for name in group)
    assert split == "ABBABA"


def test_all_that_is_wanted_is_named() -> None:
    first, second = row("settings", client_id="p1"), row("settings", client_id="c1")
    assert judge("throttled", [first, second], None) == ("named", False)
    assert judge("throttled", [first], None) == ("half", False)
    assert judge("throttled", [row("settings", client_id="p11")], None) == ("unsaid", False)
    assert judge("throttled", [first, row("settings", "info", "c1")], None) == ("half", False)


def test_another_cause_is_wrong_outside_of_the_right_incident() -> None:
    right = row("client", client_id="c1")
    assert judge("stuck", [right, row("broker", incident=2)], None) == ("named", True)
    assert judge("stuck", [right, row("broker", incident=1)], None) == ("named", False)
    assert judge("stuck", [row("broker", "low")], None) == ("unsaid", False)


def test_a_sure_finding_is_right_if_its_recording_has_that_cause() -> None:
    rows = [
        row("network", "low", incident=1) | {"certainty": "sure"}, row("client", incident=1) | {"certainty": "likely"},
        row("client", incident=2) | {"certainty": "likely"}, row("client", "info", incident=3) | {"certainty": "sure"},
    ]  # fmt: skip
    one = Judged(Cell(Path("x"), "loss", "java", "broker", ()), "A", "named", False, rows, ["names"] * 4)
    assert certainties(one) == {("sure", True): 1, ("likely", True): 1, ("likely", False): 1}


@pytest.mark.parametrize(
    ("library", "severity", "right"), [("kafkajs", "low", 1), ("kafkajs", "medium", 0), ("java", "low", 0)]
)
def test_what_a_client_always_does_is_right_whatever_was_done(library: str, severity: str, right: int) -> None:
    habit = row("client", severity) | {"certainty": "sure", "id": "commit_per_record"}
    one = Judged(Cell(Path("x"), "loss", library, "", ()), "A", "unsaid", False, [habit], ["apart"])
    assert certainties(one)["sure", True] == right


def test_what_lies_before_the_mischief_does_not_name_it() -> None:
    span = AT.replace(minute=1), AT.replace(minute=2)
    assert judge("loss", [row("network")], span) == ("unsaid", False)
    assert judge("loss", [row("network")], (AT, AT)) == ("named", False)


def test_a_mischief_that_nothing_ends_lasts() -> None:
    def span_of(*done: str) -> tuple[datetime, datetime] | None:
        return mischief(Cell(Path("x"), "far", "java", "broker", ("12:00:00.000 What it is.", *done)), AT)

    delayed = span_of("12:00:01.000 between: delay 15 15 at 12:00:01.000")
    assert judge("far", [row("network") | {"first_at": AT.replace(minute=1)}], delayed) == ("named", False)
    joined = span_of("12:00:01.000 between: cut up at 12:00:01.000", "12:00:05.000 between: join at 12:00:05.000")
    assert joined == (AT.replace(second=1), AT.replace(second=5))
    assert span_of("12:00:20.000 client p1 80 []") is None


def test_silence_is_kept_where_nothing_is_wrong() -> None:
    assert judge("healthy", [row("client", "info")], None) == ("silent", False)
    assert judge("healthy", [row("client", "low")], None) == ("loud", True)
    assert judge("first_refused", [row("client", "low")], None) == ("silent", False)


def test_a_recording_is_judged_by_its_name_and_truth() -> None:
    (one,) = judged(LAB, None, ["stuck"])
    assert (one.cell.library, one.cell.point, one.verdict, one.wrong) == ("aiokafka", "", "named", False)
    ends = {(cell.library, cell.point) for cell in cells(LAB) if cell.cause == "reset"}
    assert ends >= {("kafka_python", "client"), ("kafka_python", "broker")}


def test_a_recording_that_does_not_show_what_was_done_is_void(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EXPECTED, "stuck", {**EXPECTED["stuck"], "seen": "api = 'Fetch'"})
    assert len(list(judged(LAB, None, ["stuck"]))) == 1
    monkeypatch.setitem(EXPECTED, "stuck", {**EXPECTED["stuck"], "seen": "api = 'Fetch' and broker = '7'"})
    assert not list(judged(LAB, None, ["stuck"]))


def test_a_recording_at_an_end_that_does_not_show_its_cause_is_void() -> None:
    """A firewall that reads nothing of the broker acknowledges in its place towards the client."""
    assert list(LAB.glob("unread_6s_*_client.pcap*"))
    assert {cell.point for cell in cells(LAB) if cell.cause == "unread_6s"} == {"broker"}


def test_each_finding_has_its_role() -> None:
    right, beside = row("network"), row("broker", incident=1)
    others = [row("broker", "low", incident=2), row("client", incident=3), row("network", "info", incident=4)]
    assert roles_of("loss", [right, beside, *others], None) == ["names", "beside", "apart", "wrong", "info"]
    assert roles_of("first_refused", [row("client", "low"), row("client")], None) == ["beside", "loud"]


def test_counts_of_a_kind_are_of_the_recordings_that_have_its_causes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(laboratory_counts, "FILE", tmp_path / "counts.toml")
    line = laboratory_counts.said_of
    lines = {
        "x/a": line(
            "loss", "A", "named", [("segments_lost", "names"), ("segments_lost", "apart"), ("no_poll", "info")]
        ),
        "x/b": line("loss", "B", "unsaid", []),
        "x/c": line("far", "B", "named", [("segments_lost", "beside"), ("other", "names")]),
        "y/d": line("healthy", "A", "silent", []),
    }
    laboratory_counts.store(lines)
    assert laboratory_counts.load() == lines
    told = [laboratory_counts.counts(kind, lines.values()) for kind in ("segments_lost", "no_poll", "nothing")]
    assert told == [
        "It names `loss` in 1 of 2 (1 of 1 in half A and 0 of 1 in half B). It adds to a right cause in 1 more. "
        "It has another cause at low in 1 of 3. It stands above info in 0 of 1 where nothing is wrong.",
        "It stands at info in 1 of 4 recordings, never above it.",
        None,
    ]
    laboratory_counts.store({"x/a": lines["x/b"]})
    assert laboratory_counts.load() == {"x/a": lines["x/b"], "y/d": lines["y/d"]}


def test_what_is_kept_of_the_sample_is_what_is_said_of_it() -> None:
    """Of the recordings in the repository; two causes of them."""
    kept = laboratory_counts.load()
    assert {name.removeprefix("lab/") for name in kept if name.startswith("lab/")} == {
        cell.path.name.partition(".")[0] for cell in cells(LAB)
    }
    for one in judged(LAB, None, ["denied", "stuck"]):
        assert kept[f"lab/{one.cell.path.name.partition('.')[0]}"] == line_of(one)
    assert {
        kind for line in kept.values() for role in laboratory_counts.ROLES for kind in line.get(role, ())
    } <= KINDS.keys()

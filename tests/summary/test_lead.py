"""The first sentence: when, who, what harm, whose cause."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import kdissect
from kdissect.summary.lead import lead_sentence
from tests.conftest import ROOT

BEGIN = datetime(2026, 11, 22, 1, 12, 23, tzinfo=UTC)


def finding(
    id: str, severity: str, headline: str, incident: int | None = 1, second: float = 0, **more: Any
) -> dict[str, Any]:
    at = BEGIN + timedelta(seconds=second)
    return {
        "id": id, "severity": severity, "headline": headline, "incident": incident, "first_at": at,
        "last_at": at + timedelta(seconds=5), "cause": "broker", "broker": None, "client_id": None, "cluster": None,
        **more,
    }  # fmt: skip


GONE = finding("broker_stopped", "high", "broker 3 went away", broker="3")
WRITES = finding("no_leader", "medium", "client p could not write for 8.8 s", second=1, client_id="p", cause="unknown")
READS = finding("no_leader", "medium", "client c could not read for 8.7 s", second=2, client_id="c", cause="unknown")
MOVED = finding("leader_moved", "info", "t-0 moved from broker 3 to broker 1", second=9, cause="unknown")


def test_it_has_time_subject_harm_and_owner() -> None:
    said = lead_sentence([GONE, WRITES, MOVED])
    assert said == (
        "01:12:23 broker 3 went away; client p could not write for 8.8 s; t-0 moved from broker 3 to broker 1. "
        "Cause: broker 3."
    )


@pytest.mark.parametrize(("most", "named"), [(None, 3), (170, 3), (140, 2), (100, 1), (10, 0)])
def test_what_does_not_fit_is_left_out_from_the_end(most: int | None, named: int) -> None:
    said = lead_sentence([GONE, WRITES, READS, MOVED], most)
    assert said is not None
    assert [text in said for text in ("could not write", "could not read", "moved")] == [n < named for n in range(3)]
    assert "broker 3 went away" in said


def test_incidents_as_bad_as_the_worst_are_named() -> None:
    low = {"severity": "low", "cause": "settings"}
    worst = finding("tiny_batches", headline="client p sends tiny batches", client_id="p", **low)
    same = finding("limited_by_max_bytes", headline="client c got little", incident=2, client_id="c", **low)
    later = finding("limited_by_max_bytes", headline="client d got little", incident=3, second=60, client_id="d", **low)
    info = finding("passing_error", "info", "an error passed", incident=4, client_id="e")
    assert lead_sentence([worst, same, later, info]) == (
        "01:12:23 client p sends tiny batches; client c got little. Cause: settings."
    )


@pytest.mark.parametrize(
    ("cause", "client", "cluster", "named"),
    [
        ("client", "c", "x", False),
        ("client", "p", "x", True),
        ("unknown", "c", "x", True),
        ("unknown", "c", "y", False),
    ],
)
def test_what_another_client_did_itself_and_other_clusters_are_no_harm(
    cause: str, client: str, cluster: str, named: bool
) -> None:
    worst = finding("data_lost", "high", "client p sent too much", cause="client", client_id="p", cluster="x")
    other = finding("slow", "high", "it was slow", incident=2, cause=cause, client_id=client, cluster=cluster)
    said = lead_sentence([worst, other])
    assert said == f"01:12:23 client p sent too much{'; it was slow' if named else ''}. Cause: client p."


def test_nothing_is_said_without_an_incident() -> None:
    assert lead_sentence([]) is None
    assert lead_sentence([finding("passing_error", "info", "an error passed", incident=None)]) is None


def test_a_recording_of_a_broker_that_refused_names_clients_that_could_not_write() -> None:
    capture = kdissect.open(ROOT / "captures" / "lab" / "broker_refused_aiokafka_client.pcap.zst")
    said = lead_sentence(capture.table("findings").to_pylist())
    assert said is not None
    assert "could not write for 3.3 s" in said

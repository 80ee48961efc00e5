"""Findings in a few words: every kind has them, and they name what they can."""

from __future__ import annotations

import pytest

from kdissect.analysis.findings.catalogue import KINDS
from kdissect.analysis.findings.evidence import Finding
from kdissect.analysis.findings.headlines import HEADLINES, headline_of

SECOND = 1_000_000


def test_every_kind_has_a_headline() -> None:
    assert set(HEADLINES) == set(KINDS)


@pytest.mark.parametrize("kind", sorted(HEADLINES))
def test_a_headline_is_short_and_no_sentence(kind: str) -> None:
    one = Finding(kind, "low", "x", "exchanges", "", 12, None, first_at=0, last_at=3 * SECOND, broker="1",
                  client_id="c", group_id="g", topic="t", partition=0, transactional_id="tx")  # fmt: skip
    said = headline_of(one)
    assert len(said) <= 90
    assert "{" not in said
    assert not said.endswith(".")


def test_it_names_subject_and_length() -> None:
    one = Finding("broker_stalled", "high", "x", "exchanges", "", 1, None, first_at=0, last_at=3 * SECOND, broker="3")
    assert headline_of(one) == "broker 3 answered nothing for 3.0 s"


def test_a_finder_may_know_better() -> None:
    assert headline_of(Finding("broker_stalled", "high", "x", "t", "", 1, None, headline="mine")) == "mine"

"""What kio encodes, read by the walker: all values, every byte consumed, for 722 of 736 combinations."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from kdissect.schema.explain import decode
from tests.oracle import kio_messages
from tests.oracle.kio_messages import Sample, differences

pytestmark = pytest.mark.oracle

SIDES = ("request", "response")
FEW = 4
"""Messages per combination in the default run: everything, nothing, long, and a mixed one."""


def read_all(samples: Iterable[Sample]) -> set[tuple[int, int, int]]:
    """Read every sample; returns the combinations that were covered."""
    wrong: dict[tuple[int, int, int], str] = {}
    seen = set()
    for sample in samples:
        which = (sample.key, sample.side, sample.version)
        seen.add(which)
        values = decode(sample.body, sample.key, sample.version, SIDES[sample.side])
        found = next(differences(sample.says, values), None)
        if found:
            wrong.setdefault(which, f"seed {sample.seed}: {found[:300]}")
    assert not wrong, f"{len(wrong)}: {list(wrong.items())[:5]}"
    return seen


def test_kio_of_kafka_4() -> None:
    assert len(read_all(kio_messages.samples(range(FEW)))) == 604


def test_kio_of_kafka_3() -> None:
    assert len(read_all(kio_messages.old_samples(FEW))) == 646


def test_together_they_cover_722() -> None:
    new = set(kio_messages.classes())
    old = {(sample.key, sample.side, sample.version) for sample in kio_messages.old_samples(FEW)}
    assert len(new | old) == 722


@pytest.mark.exhaustive
@pytest.mark.timeout(1200)
def test_twenty_messages_of_each() -> None:
    assert len(read_all(kio_messages.samples(range(kio_messages.SEEDS)))) == 604
    assert len(read_all(kio_messages.old_samples(kio_messages.SEEDS))) == 646

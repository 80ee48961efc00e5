"""What kio encodes, read by the walker and by the kernels: all values, every byte, for all but a few combinations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from itertools import islice
from typing import Any

import numpy as np
import pytest

from kdissect.kafka.exchanges.messages import Decoder
from kdissect.kafka.exchanges.payloads import unfolded
from kdissect.schema import index
from kdissect.schema.explain import decode
from tests.oracle import kio_messages
from tests.oracle.kio_messages import Sample, differences

pytestmark = pytest.mark.oracle

SIDES = ("request", "response")
FEW = 4
"""Messages per combination in the default run: everything, nothing, long, and a mixed one."""
TOGETHER = 3000
"""Messages that the kernels decode in one call."""


@cache
def decoder() -> Decoder:
    return Decoder({(key, side): None for key in index.load().apis for side in (0, 1)})


def by_kernel(samples: list[Sample]) -> list[dict[str, Any] | None]:
    """Each body as the kernels decode it, all in one call; None where they refuse it."""
    stream = np.frombuffer(b"".join(sample.body for sample in samples), np.uint8)
    sizes = np.array([len(sample.body) for sample in samples], np.int64)
    end = np.cumsum(sizes)
    it = decoder()
    programs = np.array([it.table[sample.key, sample.version, sample.side] for sample in samples], np.int32)
    rows: list[dict[str, Any] | None] = [None] * len(samples)
    for kind, message in it.decode(stream, end - sizes, end, programs).messages.items():
        for row, value in zip(message.rows.tolist(), unfolded(message.batch, kind).to_pylist(), strict=True):
            rows[row] = value
    return rows


def in_parts(samples: Iterable[Sample]) -> Iterator[list[Sample]]:
    left = iter(samples)
    while part := list(islice(left, TOGETHER)):
        yield part


def read_all(samples: Iterable[Sample]) -> set[tuple[int, int, int]]:
    """Read every sample twice; returns the combinations that were covered."""
    wrong: dict[tuple[int, int, int], str] = {}
    seen = set()
    for part in in_parts(samples):
        for sample, kernel in zip(part, by_kernel(part), strict=True):
            which = (sample.key, sample.side, sample.version)
            seen.add(which)
            walker = decode(sample.body, sample.key, sample.version, SIDES[sample.side])
            found = next(differences(sample.says, walker), None)
            if found:
                wrong.setdefault(which, f"seed {sample.seed}, walker: {found[:300]}")
            if kernel != walker:
                found = next(differences(sample.says, kernel), "another key")
                wrong.setdefault(which, f"seed {sample.seed}, kernel: {found[:300]}")
    assert not wrong, f"{len(wrong)}: {list(wrong.items())[:5]}"
    return seen


def test_kio_of_kafka_4() -> None:
    assert len(read_all(kio_messages.samples(range(FEW)))) == 604


def test_kio_of_kafka_3() -> None:
    assert len(read_all(kio_messages.old_samples(FEW))) == 646


def test_together_they_cover_722() -> None:
    old = {(sample.key, sample.side, sample.version) for sample in kio_messages.old_samples(FEW)}
    assert len(kio_messages.classes().keys() | old) == 722


@pytest.mark.whole
@pytest.mark.timeout(1800)
def test_twenty_messages_of_each() -> None:
    assert len(read_all(kio_messages.samples(range(kio_messages.SEEDS)))) == 604
    assert len(read_all(kio_messages.old_samples(kio_messages.SEEDS))) == 646

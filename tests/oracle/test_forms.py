"""Copies of captures, filtered, cut and damaged: a part of an exchange's time is right or unknown, never wrong."""

from __future__ import annotations

from functools import cache

import pytest
import zstandard

from tests.bench.forms import recordings
from tests.oracle.forms import DAMAGE, FORMS, Recording, read, written
from tests.oracle.material import CAPTURES
from tests.oracle.survivors import Judged, Told, brokers, judge, told

pytestmark = pytest.mark.oracle

SAMPLE = ("base.pcap", "stories/slow_broker.pcap.zst")
"""One host's clients and brokers, long polls among them; a broker that stood still."""
WRONG = 0.003
"""Share of the survivors of damage that may have a wrong part: whether copies were needed, and the client's round
trip in `think_ms`, rest on acknowledgements of which one more or less is missing."""
KEPT = 0.98
"""Share of the survivors that keep every part when 1 % of the packets are lost."""


@cache
def whole(name: str) -> tuple[Recording, Told]:
    """A recording, and what is said of it."""
    data = (CAPTURES / name).read_bytes()
    if name.endswith(".zst"):
        data = zstandard.ZstdDecompressor().stream_reader(data).read()
    recording = read(data)
    return recording, told([written(recording.packets, recording.link)])


def judged(name: str, copy: str) -> Judged:
    """What is said of the survivors of a copy."""
    recording, full = whole(name)
    out = Judged()
    if brokers(full):
        judge(f"{name}, {copy}", recording, full, (FORMS | DAMAGE)[copy], out)
    return out


def check(name: str, copy: str) -> None:
    found = judged(name, copy)
    most = WRONG * found.survivors if copy in DAMAGE else 0
    assert len(found.wrong) <= most, f"{len(found.wrong)} of {found.survivors}: " + "\n".join(found.wrong[:8])
    assert found.above == 0
    if copy in FORMS:
        assert not found.findings
    if copy == "1 % lost":
        assert found.unknown <= (1 - KEPT) * found.survivors


@pytest.mark.parametrize("copy", [*FORMS, *DAMAGE])
@pytest.mark.parametrize("name", SAMPLE)
def test_a_copy_says_what_the_capture_says_or_less(name: str, copy: str) -> None:
    check(name, copy)


SURE = [path for path in recordings() if not any(word in path.name for word in ("lossy", "blackout"))]
"""All recordings but those of wires that lose packets themselves, which cannot be told from what the copy lacks."""


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", [str(path.relative_to(CAPTURES)) for path in SURE])
def test_all_copies_of_all_captures(name: str) -> None:
    for copy in (*FORMS, *DAMAGE):
        check(name, copy)

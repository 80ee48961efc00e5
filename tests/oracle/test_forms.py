"""Copies of captures, filtered, cut and damaged: a part of an exchange's time is right or unknown, never wrong."""

from __future__ import annotations

from functools import cache

import pytest
import zstandard

from tests.bench.forms import measured, recordings
from tests.oracle.forms import DAMAGE, FORMS, Recording, read, written
from tests.oracle.material import CAPTURES
from tests.oracle.survivors import Judged, Told, brokers, judge, told

pytestmark = pytest.mark.oracle

SAMPLE = ("base.pcap", "stories/slow_broker.pcap.zst")
"""One host's clients and brokers, long polls among them; a broker that stood still."""
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
    assert not found.wrong, f"{len(found.wrong)} of {found.survivors}: " + "\n".join(found.wrong[:8])
    assert found.above == 0
    if copy in FORMS:
        assert not found.findings
    if copy == "1 % lost":
        assert found.unknown <= (1 - KEPT) * found.survivors


@pytest.mark.parametrize("copy", [*FORMS, *DAMAGE])
@pytest.mark.parametrize("name", SAMPLE)
def test_a_copy_says_what_the_capture_says_or_less(name: str, copy: str) -> None:
    check(name, copy)


def test_think_time_is_unknown_where_the_way_to_the_client_is_only_bounded() -> None:
    """Without acknowledgements of answers a broker's capture has the client's next requests alone, which are late."""
    found = judged("stories/lossy_1_broker.pcap.zst", "data and SYN")
    assert found.survivors > 400
    assert found.parts["think_ms"] == 0


WRONG = {"started late": 1, "1 % lost": 3, "1 % lost in bursts": 16, "begun late": 1, "5 % change places": 3}
"""Over all recordings, how many parts of exchanges of a copy are wrong; none of the other copies. It can only become
less. But for two they are think times of one recording, at the broker's end of a narrow link. There the round trip to
the client rises by up to 1.3 s, and the copies do not show all of that."""


@pytest.mark.exhaustive
def test_copies_of_all_captures_say_nothing_that_is_wrong_and_have_no_findings_of_their_own() -> None:
    found = measured(recordings())
    assert found.keys() == (FORMS | DAMAGE).keys()
    assert {name: one.wrong for name, one in found.items() if len(one.wrong) > WRONG.get(name, 0)} == {}
    assert {name: one.above for name, one in found.items() if one.above} == {}
    assert {name: one.findings for name, one in found.items() if one.findings} == {}

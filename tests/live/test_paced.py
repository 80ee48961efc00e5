"""A replay counts while it runs: at each print what a pipe has counted that gets the same packets in their time, and
what the tables have up to that time."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import kdissect
from kdissect.live.labels import PARTS
from kdissect.live.metrics import Collector
from kdissect.live.running_figures import Figures
from kdissect.live.watch import Watch
from tests.conftest import ROOT
from tests.live.paced import HostClock, looks, prints, replayed

STORIES = ROOT / "captures" / "stories"
FEW = ("leader_move",)
"""Recordings that stand for all ten outside the exhaustive run."""
NAMES = ("healthy", "kip848", "leader_move", "quotas", "share_slow", "slow_broker", "slow_consumer", "slow_follower",
         "tiny", "txn_timeout")  # fmt: skip
SPEEDS = (1.0, 4.0, 60.0)
TABLES = ("clients", "topics", "apis")
FINE_S = 0.25
"""How often the pipe is looked at: so that it was seen at about every instant."""


@cache
def piped(path: Path) -> list[dict[str, Any]]:
    return prints(path, None, FINE_S)


@cache
def answers(path: Path) -> list[str]:
    """When each answered exchange was, in order, as snapshots say it."""
    rows = kdissect.open(path).table("exchanges", ["response_last_at"])["response_last_at"].drop_null().to_pylist()
    return sorted(instant(at) for at in rows)


def instant(at: datetime) -> str:
    return at.isoformat(timespec="microseconds").replace("+00:00", "Z")


def counts(snapshot: Mapping[str, Any], view: str) -> dict[str, int]:
    return {line["name"]: line["exchanges"] for line in snapshot[view]}


def replays() -> Iterator[Any]:
    """Recordings and speeds. All but one recording, and the slowest replays, are of the exhaustive run."""
    for name in NAMES:
        for speed in SPEEDS:
            marks = [pytest.mark.exhaustive] if speed == SPEEDS[0] or name not in FEW else []
            yield pytest.param(STORIES / f"{name}.pcap.zst", speed, id=f"{name}-{speed}", marks=marks)


@pytest.mark.parametrize(("path", "speed"), list(replays()))
def test_a_replay_counts_as_a_paced_pipe(path: Path, speed: float) -> None:
    pipe = piped(path)
    whens = [one["at"] or "" for one in pipe]
    seen = prints(path, speed, max(2.0 / speed, 0.05))
    compared = 0
    for one in seen[:-1]:
        if one["at"] is None:
            continue
        before = pipe[max(0, bisect_right(whens, one["at"]) - 1)]
        after = pipe[min(len(pipe) - 1, bisect_right(whens, one["at"]))]
        for view in TABLES:
            least, most, ours = counts(before, view), counts(after, view), counts(one, view)
            for name in most:
                assert 0.95 * least.get(name, 0) <= ours.get(name, 0) <= 1.05 * most[name], (one["at"], view, name)
        assert 0.95 * before["errors"] <= one["errors"] <= 1.05 * after["errors"]
        compared += 1
    assert compared >= 3
    for view in TABLES:
        assert counts(seen[-1], view) == counts(pipe[-1], view)


@pytest.mark.parametrize("speed", [pytest.param(1.0, marks=pytest.mark.exhaustive), 4.0, 60.0])
def test_every_print_is_what_the_tables_have_by_then(speed: float) -> None:
    """But for the first seconds: what a connection that was met in its middle carries is sure after some frames."""
    path = STORIES / "leader_move.pcap.zst"
    begin = answers(path)[100]
    late = [one for one in prints(path, speed, max(0.5 / speed, 0.05)) if (one["at"] or "") > begin]
    assert len(late) > 3
    for one in late:
        answered = bisect_right(answers(path), one["at"])
        assert abs(one["exchanges"] - answered) <= max(5, 0.01 * answered), one["at"]


def test_whose_time_it_was_is_known_a_second_later() -> None:
    """At each print of a replay, of the exchanges that were counted a second and a half before."""

    def look(figures: Figures) -> tuple[datetime | None, int, int]:
        counted = figures.of["api"].histogram[1:].sum(axis=(0, 2))
        at = figures.snapshot()["at"]
        own = int(counted[PARTS.index("broker")] + counted[PARTS.index("agreed")])
        return (datetime.fromisoformat(at) if at else None), int(counted[0]), own

    seen = looks(STORIES / "leader_move.pcap.zst", 4.0, 0.1, look)
    compared = 0
    for at, _, own in seen:
        earlier = [counted for then, counted, _ in seen if at and then and at - then >= timedelta(seconds=1.5)]
        if earlier and earlier[-1]:
            assert own >= 0.95 * earlier[-1], at
            compared += 1
    assert compared > 10


def test_metrics_are_of_one_instant() -> None:
    """Whenever a scrape comes, all families count the same exchanges."""
    figures = Figures()
    sums: list[tuple[float, ...]] = []

    def scrape() -> None:
        families = {family.name: family for family in Collector(figures).collect()}

        def total(name: str, part: str = "") -> float:
            samples = families[name].samples
            return sum(one.value for one in samples if one.name.endswith("_total" + part))

        sums.append(tuple(total(f"kdissect_{name}exchanges") for name in ("", "broker_", "client_", "api_")))

    clock = HostClock(scrape)
    source = replayed(STORIES / "txn_timeout.pcap.zst", 4.0, clock)
    Watch(source, figures).run()
    source.close()
    assert len(set(sums)) > 10
    assert all(len(set(one)) == 1 for one in sums)

"""Overload: whole connections are left out, what is counted is right for those that are kept, and it is said."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import kdissect
from kdissect.live.moment import Moment
from kdissect.live.running_figures import Figures
from kdissect.live.sampling import CALM_S, LATE_S, LEAST, PATIENCE_S, Load, Sampler
from kdissect.live.source import open_source
from kdissect.live.watch import Watch
from kdissect.net.segment import FLOW_COLUMNS, SEGMENT, SEGMENT_COLUMNS


def test_the_share_follows_the_load() -> None:
    load = Load()
    assert load.share(LATE_S, 0.0) == 1.0
    assert load.share(LATE_S + 1, 1.0) == 0.5
    assert load.share(LATE_S + 1, 1.5) == 0.5, "not twice for one delay"
    assert load.share(LATE_S + 1, 1.0 + PATIENCE_S) == 0.25
    calm = 1.0 + PATIENCE_S + CALM_S
    assert load.share(0.0, calm - 1) == 0.25
    assert load.share(0.0, calm) == 0.375
    assert load.share(0.0, calm + 1) == 0.375
    now = calm
    for _ in range(20):
        now += CALM_S
        share = load.share(0.0, now)
    assert share == 1.0
    for _ in range(40):
        now += PATIENCE_S
        share = load.share(60.0, now)
    assert share == LEAST


@pytest.mark.parametrize("share", [0.5, 0.1])
def test_counts_are_those_of_the_connections_kept(share: float, captures: Path) -> None:
    path = captures / "zoo_kafkajs.pcap"
    source = open_source([str(path)], None, (), None, once=True)
    figures, sampler = Figures(), Sampler(share)
    kept: set[str] = set()
    tick = figures.tick

    def listen(moment: Moment) -> None:
        kept.update(moment.answered["exchanges"]["connection_id"].to_pylist())
        tick(moment)

    figures.tick = listen  # type: ignore[method-assign]
    Watch(source, figures, sampler).run()
    whole = kdissect.open(path).table("exchanges").to_pylist()
    mine = [row for row in whole if row["connection_id"] in kept]
    assert 0 < len(kept) < len({row["connection_id"] for row in whole})
    assert figures.statuses == Counter((row["api"], row["status"]) for row in mine)
    packets = kdissect.open(path).table("connections", ["connection_id", "packets"], "is_kafka").to_pylist()
    assert 0 < figures.left_out < figures.segments == 0 or figures.left_out / figures.segments == pytest.approx(
        1 - sum(row["packets"] for row in packets if row["connection_id"] in kept) / figures.segments, abs=0.2
    )


class Falling(Sampler):
    """Keeps everything at first, then a third."""

    def packets(self, rows, flows):  # type: ignore[no-untyped-def]
        if self.share == 1.0:
            self.share = 0.99
            return super().packets(rows, flows)
        self.share = 0.3
        return super().packets(rows, flows)


@pytest.mark.parametrize(("name", "slot"), [("k4_session_eviction.pcap", 1 << 17), ("base.pcap", 1 << 16)])
def test_connections_given_up_in_their_middle(
    name: str, slot: int, captures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is counted is in the tables, with the same outcome; nothing is invented."""
    from kdissect.live import watch

    monkeypatch.setattr(watch, "SLOT_BYTES", slot)
    path = captures / name
    source = open_source([str(path)], None, (), None, once=True)
    figures = Figures()
    Watch(source, figures, Falling()).run()
    whole = Counter((row["api"], row["status"]) for row in kdissect.open(path).table("exchanges").to_pylist())
    assert 0 < figures.left_out < figures.segments
    assert 30 < figures.statuses.total() < whole.total()
    assert not figures.statuses - whole
    told = Counter(row["kind"] for row in kdissect.open(path).table("problems").to_pylist())
    assert not figures.problems - told, "what was cut short by us is no problem of the traffic"


def test_flows_that_are_left_out_are_forgotten() -> None:
    """Their numbers come back when nothing came for a while; a connection that comes after that is a new one."""
    flows = np.arange(500 * FLOW_COLUMNS, dtype=np.int64).reshape(500, FLOW_COLUMNS)
    rows = np.zeros((500, SEGMENT_COLUMNS), np.int64)
    rows[:, SEGMENT.flow] = 2 * np.arange(500)
    rows[:, SEGMENT.time] = 1000
    sampler = Sampler(0.5)
    kept = sampler.packets(rows, flows)[:, SEGMENT.flow] >> 1
    left = sampler.left.copy()
    assert sorted([*kept.tolist(), *left.tolist()]) == list(range(500))
    assert min(len(kept), len(left)) > 200
    rows[:, SEGMENT.time] = 2000
    again = rows[left[:10]]
    assert not len(sampler.packets(again, flows))
    assert not len(sampler.forgotten(1000))
    assert sampler.forgotten(1001).tolist() == left[10:].tolist()
    assert not len(sampler.forgotten(2000))
    sampler.share = 1.0
    assert not len(sampler.packets(again, flows)), "left out stays left out"
    assert len(sampler.packets(rows[left[10:]], flows)) == len(left) - 10

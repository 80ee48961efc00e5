"""Deliveries against what clients logged: producers put the time of send() into the record, consumers the time at which
each poll() began and returned (captures/record/deliveries/record.py)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest

import kdissect
from tests.analysis.read import read_lines
from tests.conftest import CAPTURES

FOLDER = CAPTURES / "deliveries"
COLUMNS = ["group", "topic", "partition", "offset", "sent_ns", "began_ns", "returned_ns"]
PARTS = ["produce_ms", "commit_ms", "transaction_ms", "absent_ms", "served_ms", "transfer_ms"]
LIBRARIES = ("java", "franz_go", "librdkafka", "kafka_python")
STORIES = ("waiting", "held_up", "cluster")
JUDGED = {"waiting": 300, "held_up": 4, "cluster": 300}
"""First records of batches that a poll waited for, at least: some libraries let their slow reader poll late."""
NAMES = ["waiting", "held_up", *(f"{story}_{library}" for story in STORIES for library in LIBRARIES)]
EDGE_NS = 50_000_000
"""A batch that is written so shortly before the injected wait is over hardly waits."""

pytestmark = pytest.mark.oracle


class Story(NamedTuple):
    name: str
    """One of STORIES."""
    found: pd.DataFrame
    """Deliveries."""
    polled: pd.DataFrame
    """Records that polls returned."""
    events: list[dict[str, Any]]
    """What was done when."""

    @property
    def consumers(self) -> pd.DataFrame:
        """Deliveries to others than followers."""
        return self.found[~self.found.is_follower]


@pytest.fixture(scope="module", params=NAMES)
def story(request: pytest.FixtureRequest) -> Story:
    name = request.param
    found = kdissect.open(FOLDER / f"{name}.pcap.zst").table("deliveries").to_pandas()
    polled = pd.DataFrame(read_lines(name, "polls"), columns=COLUMNS)
    return Story(next(one for one in STORIES if name.startswith(one)), found, polled, read_lines(name, "events"))


def nanoseconds(column: pd.Series) -> pd.Series:
    return column.astype("datetime64[ns, UTC]").astype(np.int64)


def delivery_of(found: pd.DataFrame, polled: pd.DataFrame) -> npt.NDArray[np.int64]:
    """For each record the row of the delivery of its reader that covers it, -1 for none."""
    rows = np.full(len(polled), -1, np.int64)
    for place, mine in polled.groupby(["group", "topic", "partition"]):
        group, topic, partition = place
        some = found[(found.group_id == group) & (found.topic == topic) & (found.partition == partition)]
        some = some.sort_values("base_offset")
        at = np.searchsorted(some.base_offset.to_numpy(np.int64), mine.offset.to_numpy(), "right") - 1
        covers = (at >= 0) & (some.last_offset.to_numpy(np.int64)[np.maximum(at, 0)] >= mine.offset.to_numpy())
        rows[mine.index] = np.where(covers, some.index.to_numpy()[np.maximum(at, 0)], -1)
    return rows


def test_every_record_that_a_consumer_logged_is_in_a_delivery_of_it(story: Story) -> None:
    """And no reader has a delivery that it did not get, but for what came after its last poll. The late reader of
    `cluster` began in the middle of its topic."""
    found, polled = story.consumers, story.polled
    rows = delivery_of(found, polled)
    assert (rows >= 0).all()
    assert set(zip(found.topic, found.group_id, strict=True)) == set(zip(polled.topic, polled.group, strict=True))
    last = polled.groupby(["group", "topic"]).offset.max()
    until = pd.Series([last[place] for place in zip(found.group_id, found.topic, strict=True)], found.index)
    assert set(rows) >= set(found.index[found.last_offset < until])
    if story.name == "cluster":
        first = polled.groupby("group").offset.min()
        assert first["g-late"] >= 40 > 0 == first["g-followed"]


def test_parts_add_up_in_every_row(story: Story) -> None:
    found = story.found
    assert found.delivery_ms.notna().mean() > 0.99
    assert (found[PARTS].fillna(0).sum(axis=1) - found.delivery_ms).abs().max() < 1e-6
    assert not (found[[*PARTS, "buffered_ms"]] < 0).any(axis=None)


def test_the_way_takes_as_long_as_the_clients_say(story: Story) -> None:
    """First records of batches whose poll was waiting when the answer came: send() to poll() is buffered_ms and
    delivery_ms, to 2 ms (median) and 10 ms (95 %)."""
    first = story.polled.drop_duplicates(["group", "topic", "partition", "offset"]).reset_index(drop=True)
    mine = story.found.loc[delivery_of(story.consumers, first)].reset_index(drop=True)
    judged = (mine.base_offset == first.offset) & (first.began_ns <= nanoseconds(mine.delivered_at))
    assert judged.sum() >= JUDGED[story.name]
    said = mine.delivery_ms + mine.buffered_ms
    apart = (said - (first.returned_ns - first.sent_ns) / 1e6)[judged].abs()
    assert apart.notna().all()
    assert apart.quantile(0.5) <= 2
    assert apart.quantile(0.95) <= 10


def test_what_was_injected_is_what_records_waited_for(story: Story) -> None:
    """A reader that works for 1.5 s after each poll, transactions of 2 s, a linger of 50 ms, a follower that is
    suspended for 0.3 s."""
    found = story.consumers
    injected = {"waiting": {"linger": ("producer", 20.0)}, "held_up": {"slow": ("reader", 100.0),
                "held": ("transaction", 1000.0)}, "cluster": {}}[story.name]  # fmt: skip
    for topic, (cause, least) in injected.items():
        hit = found[(found.topic == topic) & (found.delivery_ms + found.buffered_ms > least)]
        assert len(hit) >= 4, topic
        assert (hit.waited_for == cause).mean() >= 0.95, topic
    if story.name == "cluster":
        began, ended = (
            np.array([one["at"] for one in story.events if one["step"] == step]) for step in ("suspended", "resumed")
        )
        sent = nanoseconds(found.produced_at).to_numpy()
        window = np.searchsorted(began, sent) - 1
        hit = found[(found.topic == "followed") & (window >= 0) & (sent < ended[np.maximum(window, 0)] - EDGE_NS)]
        assert len(hit) >= 10
        assert (hit.waited_for == "replication").mean() >= 0.95


def test_a_rewind_is_counted_and_acks_0_is_found(story: Story) -> None:
    found, polled = story.consumers, story.polled
    if story.name != "waiting":
        assert found.times.eq(1).mean() > 0.98, "fetches under way while a leader moves come again"
        return
    assert set(found[found.topic == "zero"].matched_by) == {"crc"}
    assert set(found[found.topic != "zero"].matched_by) == {"offset"}
    again = polled[polled.topic == "linger"].groupby("offset").size()
    read_twice = set(again[again > 1].index)
    twice = found[(found.topic == "linger") & (found.times == 2)]
    offsets = {n for a, b in zip(twice.base_offset, twice.last_offset, strict=True) for n in range(a, b + 1)}
    assert read_twice
    # An answer that was under way when the consumer sought the beginning came twice, and was returned once.
    thrown_away = offsets - read_twice
    assert offsets >= read_twice
    assert thrown_away == set(range(max(read_twice) + 1, max(read_twice) + 1 + len(thrown_away)))
    assert len(thrown_away) <= 6


def test_who_served_whom(story: Story) -> None:
    """KIP-392: the reader in the rack of broker 2 is served by it, a follower, once the leader has named it. It waits
    until the follower learns that records are committed, with its next fetch. Readers of the topic whose leader moves
    are served by the leader of the time. Followers were given the topics that they have replicas of."""
    if story.name != "cluster":
        assert not story.found.is_follower.any()
        assert story.found.broker.eq("1").all()
        return
    found = story.consumers
    nearest = found[found.topic == "nearest"]
    assert len(nearest) > 100
    assert nearest.broker.eq("2").mean() > 0.95
    assert nearest.waited_for.eq("broker").mean() < 0.2
    assert nearest.served_ms.median() < 10
    moves = [one for one in story.events if one["step"] == "move"]
    moved = found[found.topic == "moved"]
    at = nanoseconds(moved.delivered_at)
    before, between = at < moves[0]["at"], (at > moves[0]["at"] + 10**9) & (at < moves[1]["at"])
    assert moved.broker[before].eq("1").all()
    assert moved.broker[between].eq("2").all()
    assert before.sum() > 15 < between.sum()
    copies = story.found[story.found.is_follower].groupby("topic").client_id.nunique()
    assert copies.to_dict() == {"followed": 2, "nearest": 1, "moved": 2}  # of `moved`: each while the other leads

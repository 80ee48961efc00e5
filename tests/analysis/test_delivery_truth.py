"""Deliveries against what clients logged: producers put the time of send() into the record, consumers the time at which
each poll() began and returned (captures/record/deliveries/record.py)."""

from __future__ import annotations

import json

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
import zstandard

import kdissect
from tests.conftest import CAPTURES

FOLDER = CAPTURES / "deliveries"
COLUMNS = ["group", "topic", "partition", "offset", "sent_ns", "began_ns", "returned_ns"]

pytestmark = pytest.mark.oracle


@pytest.fixture(scope="module", params=["waiting", "held_up"])
def story(request: pytest.FixtureRequest) -> tuple[str, pd.DataFrame, pd.DataFrame]:
    """The name, deliveries, and the records that polls returned."""
    name = request.param
    packed = (FOLDER / f"{name}.polls.jsonl.zst").read_bytes()
    lines = zstandard.ZstdDecompressor().stream_reader(packed).read().decode().splitlines()
    found = kdissect.open(FOLDER / f"{name}.pcap.zst").table("deliveries").to_pandas()
    return name, found, pd.DataFrame([json.loads(line) for line in lines], columns=COLUMNS)


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


def test_every_record_that_a_consumer_logged_is_in_a_delivery_of_it(
    story: tuple[str, pd.DataFrame, pd.DataFrame],
) -> None:
    _, found, polled = story
    rows = delivery_of(found, polled)
    assert (rows >= 0).all()
    # Nobody else was given anything: the capture has one reader a topic, and no followers.
    assert set(zip(found.topic, found.group_id, strict=True)) == set(zip(polled.topic, polled.group, strict=True))
    assert set(rows) >= set(found.index[found.last_offset < found.topic.map(polled.groupby("topic").offset.max())])


def test_the_way_takes_as_long_as_the_clients_say(story: tuple[str, pd.DataFrame, pd.DataFrame]) -> None:
    """First records of batches whose poll was waiting when the answer came: send() to poll() is buffered_ms and
    delivery_ms, to 2 ms (median) and 10 ms (95 %)."""
    _, found, polled = story
    first = polled.drop_duplicates(["group", "topic", "partition", "offset"]).reset_index(drop=True)
    mine = found.loc[delivery_of(found, first)].reset_index(drop=True)
    arrived = mine.delivered_at.astype("datetime64[ns, UTC]").astype(np.int64)
    judged = (mine.base_offset == first.offset) & (first.began_ns <= arrived)
    assert judged.sum() > 300
    said = mine.delivery_ms + mine.buffered_ms
    apart = (said - (first.returned_ns - first.sent_ns) / 1e6)[judged].abs()
    assert apart.notna().all()
    assert apart.quantile(0.5) <= 2
    assert apart.quantile(0.95) <= 10


def test_what_was_injected_is_what_records_waited_for(story: tuple[str, pd.DataFrame, pd.DataFrame]) -> None:
    """A reader that works for 1.5 s after each poll, transactions of 2 s, a linger of 50 ms."""
    name, found, _ = story
    injected = {"waiting": {"linger": ("producer", 20.0)}, "held_up": {"slow": ("reader", 100.0),
                "held": ("transaction", 1000.0)}}[name]  # fmt: skip
    for topic, (cause, least) in injected.items():
        hit = found[(found.topic == topic) & (found.delivery_ms + found.buffered_ms > least)]
        assert len(hit) >= 4, topic
        assert (hit.waited_for == cause).mean() >= 0.95, topic


def test_a_rewind_is_counted_and_acks_0_is_found(story: tuple[str, pd.DataFrame, pd.DataFrame]) -> None:
    name, found, polled = story
    if name == "held_up":
        assert found.times.eq(1).all()
        return
    assert set(found[found.topic == "zero"].matched_by) == {"crc"}
    assert set(found[found.topic != "zero"].matched_by) == {"offset"}
    again = polled[polled.topic == "linger"].groupby("offset").size()
    read_twice = set(again[again > 1].index)
    twice = found[(found.topic == "linger") & (found.times == 2)]
    offsets = {n for a, b in zip(twice.base_offset, twice.last_offset, strict=True) for n in range(a, b + 1)}
    assert read_twice
    assert read_twice == offsets

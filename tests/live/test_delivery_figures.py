"""Deliveries of traffic that is watched: those of the table, in memory that is bounded."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import kdissect
from kdissect.live import delivery_figures, watch
from kdissect.live.labels import EDGES_MS
from kdissect.live.running_figures import Figures
from kdissect.live.source import TICK_S, open_source
from kdissect.live.watched_source import Session
from kdissect.tables.builder import TableBuilder
from tests.live.test_watch import named, scraped

CASES = (
    ("k4_java_classic.pcap", False), ("k4_share_group.pcap", False), ("deliveries/waiting.pcap.zst", False),
    ("k4_transactions.pcap", True), ("stories/slow_consumer.pcap.zst", True),
)  # fmt: skip


def counted(path: Path, tick_s: float = TICK_S, deliveries: bool = True, patient: bool = True) -> Figures:
    """`patient`: rows wait for requests without an answer, as those of the tables do."""
    source = open_source([str(path)], None, (), None, once=True)
    source.tick_s, source.patient = tick_s, patient
    figures = Figures(deliveries=deliveries)
    with Session(source, figures) as session:
        session.run()
    return figures


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [row for row in kdissect.open(path).table("deliveries").to_pylist() if not row["is_follower"]]


@pytest.mark.parametrize(("name", "often"), CASES)
def test_deliveries_are_those_of_the_table(
    name: str, often: bool, captures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`often`: joined at each tick, connections that ended are forgotten at once, and rows come in many pieces."""
    if often:
        monkeypatch.setattr(delivery_figures, "JOIN_US", 0)
        monkeypatch.setattr(watch, "SHED_NS", -1)
        monkeypatch.setattr(watch, "SLOT_BYTES", 1 << 17)
    rows = rows_of(captures / name)
    samples = scraped(counted(captures / name, 0.0 if often else TICK_S))

    def labels(row: dict[str, Any]) -> tuple[str, str]:
        return row["topic"] or row["topic_id"] or "(unknown)", row["group_id"] or "(unknown)"

    assert rows
    assert named(samples, "kdissect_deliveries_total", "topic", "group") == Counter(map(labels, rows))
    untimed = Counter(labels(row) for row in rows if row["delivery_ms"] is None)
    found = named(samples, "kdissect_untimed_deliveries_total", "topic", "group")
    assert {key: count for key, count in found.items() if count} == untimed
    timed = [row for row in rows if row["delivery_ms"] is not None]
    by = ("topic", "group", "waited_for")
    counts = named(samples, "kdissect_delivery_seconds_count", *by)
    assert counts == Counter((*labels(row), row["waited_for"]) for row in timed)
    sums = named(samples, "kdissect_delivery_seconds_sum", *by)
    for key, seconds in sums.items():
        of = [row["delivery_ms"] for row in timed if (*labels(row), row["waited_for"]) == key]
        assert seconds == pytest.approx(sum(of) / 1000)
    buckets = named(samples, "kdissect_delivery_seconds_bucket", *by, "le")
    for edge in EDGES_MS:
        below = Counter((*labels(row), row["waited_for"]) for row in timed if row["delivery_ms"] <= edge)
        assert {key: buckets[(*key, f"{edge / 1000:g}")] for key in counts} == {key: below[key] for key in counts}


@pytest.mark.parametrize(("bound", "value"), [("KEPT_US", 1_000_000), ("KEPT_BYTES", 100_000)])
def test_rows_that_are_kept_are_bounded_and_what_they_no_longer_have_is_counted(
    bound: str, value: int, captures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches of a reader that is seconds late are still deliveries, without a time."""
    path = captures / "stories/slow_consumer.pcap.zst"
    rows = rows_of(path)
    late = [row for row in rows if (row["delivery_ms"] or 0) > 3000]
    assert len(late) > 50
    monkeypatch.setattr(delivery_figures, "JOIN_US", 1_000_000)
    monkeypatch.setattr(delivery_figures, "PATIENCE_US", 0)
    monkeypatch.setattr(watch, "SLOT_BYTES", 1 << 18)
    monkeypatch.setattr(delivery_figures, bound, value)
    sizes = []
    note = Figures.note_deliveries

    def noted(figures: Figures, moment: Any) -> None:
        assert figures.deliveries is not None
        note(figures, moment)
        sizes.append(figures.deliveries._size)

    monkeypatch.setattr(Figures, "note_deliveries", noted)
    [line] = counted(path, 0.0, patient=False).snapshot()["deliveries"]
    assert len(late) <= line["untimed_total"] < line["deliveries"]
    assert line["deliveries"] >= len(rows)  # a batch that is given again counts again once the first time is forgotten
    assert max(sizes) < 300_000  # all rows take 1.8 MB


def test_what_was_not_asked_for_is_not_read(captures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finished = TableBuilder.finished

    def read(builder: TableBuilder, name: str, *more: Any) -> pa.Table:
        assert name != "connections"
        return finished(builder, name, *more)

    monkeypatch.setattr(TableBuilder, "finished", read)
    figures = counted(captures / "k4_java_classic.pcap", deliveries=False)
    assert figures.snapshot()["deliveries"] == []
    assert not [one for one in scraped(figures) if "deliver" in one.name]

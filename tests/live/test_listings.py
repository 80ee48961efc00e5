"""Metadata answers that a live view reads are those of `messages`."""

from __future__ import annotations

from pathlib import Path

import pytest

import kdissect
from kdissect.live.moment import Listing, Moment
from kdissect.live.running_figures import Figures
from kdissect.live.source import open_source
from kdissect.live.watch import Watch


class Noting(Figures):
    """Figures that keep the listings of all moments."""

    def __init__(self) -> None:
        super().__init__()
        self.listings: list[Listing] = []

    def tick(self, moment: Moment) -> None:
        self.listings += moment.listings
        super().tick(moment)


@pytest.mark.parametrize("name", ["k4_java_classic.pcap", "sweep_231.pcap", "raw_cuts.pcap"])
def test_listings_are_the_metadata_answers(name: str, captures: Path) -> None:
    source = open_source([str(captures / name)], None, (), None, once=True)
    figures = Noting()
    Watch(source, figures).run()
    source.close()
    capture = kdissect.open(captures / name)
    columns = ["exchange_id", "broker", "request_first_at", "response_last_at"]
    answers = {row["exchange_id"]: row for row in capture.table("exchanges", columns).to_pylist()}
    expected = []
    for body in capture.messages("Metadata", "response").to_pylist():
        row = answers[body["exchange_id"]]
        if body["brokers"] and row["request_first_at"] and row["response_last_at"]:
            times = (round(row[name].timestamp() * 1e6) for name in columns[2:])
            expected.append((*times, sorted(str(one["node_id"]) for one in body["brokers"])))
    assert expected
    assert sorted(expected) == sorted((one.asked_us, one.answered_us, sorted(one.listed)) for one in figures.listings)
    assert {one.sender.rpartition(":")[2] for one in figures.listings if one.sender}

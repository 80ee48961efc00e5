"""Topics of the first screen: what `topic_traffic` says, by topic, without what brokers read from each other."""

from __future__ import annotations

import pandas as pd
import pytest

import kdissect
from kdissect.capture.captureset import CaptureSet
from kdissect.capture.window import Window
from kdissect.cli.printing import screen
from kdissect.engine import analysed_run
from kdissect.engine.extracts import overview
from kdissect.summary import topic_traffic_lines
from kdissect.summary.client_summaries import broker_itself
from tests.conftest import ROOT

NAMES = ("k4_java_classic.pcap", "stories/slow_consumer.pcap.zst", "era_0_8_2.pcap", "raw_cuts.pcap")


@pytest.mark.parametrize("name", NAMES)
def test_it_says_what_the_table_says(name: str) -> None:
    capture = kdissect.open(ROOT / "captures" / name)
    lines = capture.summary().topics
    rows = capture.analysis.topic_traffic().to_pandas()
    rows = rows[[not broker_itself(client) for client in rows["client_id"]]]
    rows["name"] = rows["topic"].fillna(rows["topic_id"])
    assert lines
    assert {line.topic for line in lines} == set(rows["name"])
    sizes = [(line.written_bytes or 0) + (line.read_bytes or 0) for line in lines]
    assert sizes == sorted(sizes, reverse=True)
    for line in lines:
        mine = rows[rows["name"] == line.topic]
        assert line.partitions == mine["partition"].nunique()
        read = mine[mine["fetched_bytes"].notna()]
        assert line.read_bytes == (None if read.empty else read["fetched_bytes"].sum())
        assert set(line.readers) == {client if pd.notna(client) else None for client in read["client_id"]}
        behind = read.dropna(subset=["last_lag"]).groupby("client_id")["last_lag"].sum()
        assert line.behind == (None if behind.empty else behind.max())
        wrote = mine[mine["produced_bytes"].notna()]
        assert (line.written_bytes is None) == wrote.empty
        assert set(line.writers) == set(wrote["client_id"])


def test_blocks_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    path = ROOT / "captures" / "k4_java_classic.pcap"
    whole = kdissect.open(path).summary().topics
    monkeypatch.setattr(overview, "HELD_BACK", 100)
    monkeypatch.setattr(topic_traffic_lines, "COMPACT", 3)
    monkeypatch.setattr(analysed_run, "ROWS_A_TIME", 0)
    monkeypatch.setattr(CaptureSet, "window", lambda self: Window(1 << 17))
    assert kdissect.open(path).summary().topics == whole


def test_of_too_many_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_traffic_lines, "COMPACT", 3)
    monkeypatch.setattr(topic_traffic_lines.TopicTraffic.__init__, "__defaults__", (5,))
    assert kdissect.open(ROOT / "captures" / "k4_java_classic.pcap").summary().topics is None


def test_the_screen_has_them_where_there_is_room() -> None:
    summary = kdissect.open(ROOT / "captures" / "base_tiny.pcap").summary()
    lines = [line.plain for line in screen.render(summary, ["x.pcap"], 100)]
    titles = lines.index(next(line for line in lines if line.startswith("Topic ")))
    assert lines[titles].split() == ["Topic", "partitions", "written", "by", "read", "by", "behind"]
    assert " ".join(lines[titles + 2].split()) == "base-live 2 528 B base-producer 528 B base-live 10"


@pytest.mark.parametrize("width", [80, 200])
def test_they_take_nothing_from_what_happened(width: int) -> None:
    crowded = kdissect.open(ROOT / "captures" / "stories" / "slow_consumer.pcap.zst").summary()
    assert crowded.topics
    told = [screen.render(one, ["x.pcap"], width) for one in (crowded, crowded._replace(topics=[]))]
    ends = [next(n for n, line in enumerate(lines) if line.plain.startswith("API ")) for lines in told]
    assert told[0][: ends[0]] == told[1][: ends[1]]

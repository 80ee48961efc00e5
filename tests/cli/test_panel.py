"""What the live view shows of a snapshot, as texts."""

from __future__ import annotations

from typing import Any

import pytest
from rich.cells import cell_len

from kdissect.cli.live.panel import busy, causes, head, wrapped


def snapshot(**more: Any) -> dict[str, Any]:
    known = {
        "at": "2026-11-22T01:12:48.797661Z", "exchanges": 1332, "errors": 0, "connections": 55, "packets": 5668,
        "dropped_packets": None, "missing_bytes": 0, "left_out_segments": 0, "segments": 5000, "share": 1.0,
        "behind_s": 0.0, "standing_still": [], "gone": [], "ended": False,
    }  # fmt: skip
    return known | more


def finding(id: str, severity: str, at: str, text: str = "x", broker: str | None = None, **more: Any) -> dict[str, Any]:
    return {"id": id, "severity": severity, "at": f"2026-11-22T{at}Z", "text": text, "broker": broker, **more}


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize(
    "name", ["eth0", "captures/of/yesterday/k4_session_eviction.pcap", "\u6f22" * 60, "\x1b[2J" * 9]
)
def test_the_clock_is_not_cut(name: str, width: int) -> None:
    first, _ = head(snapshot(), name, width)
    assert cell_len(first) <= width
    assert "2026-11-22 01:12:48" in first
    assert "1,332 exchanges" in first
    assert name == "eth0" or name[-3:].replace("\x1b", "1b") in first


def test_a_pipe_gets_the_whole_name() -> None:
    assert head(snapshot(), "n" * 300)[0].startswith("n" * 300)


def test_states_of_brokers_come_first() -> None:
    _, second = head(snapshot(gone=["3"], standing_still=["1", "2"]), "eth0", 80)
    assert second.startswith("GONE: broker 3  STANDS STILL: broker 1, 2  5,668 packets")


def test_one_finding_a_cause_worst_first() -> None:
    gone = finding("gone", "high", "01:12:23", broker="3")
    back = finding("back", "info", "01:12:43", broker="3")
    refused = finding("port_refused", "high", "01:12:24", broker="3", cause="broker")
    elsewhere = finding("overloaded", "low", "01:12:24", broker="2", cause="broker")
    other = finding("standstill", "high", "01:12:30", broker="1")
    explained = finding("late", "high", "01:12:31", explained_by="lost")
    head_of_it = finding("lost", "medium", "01:12:31", explained_by=None)
    assert causes([gone, refused, explained, head_of_it, other]) == [other, gone, head_of_it]
    assert causes([refused, elsewhere]) == [refused, elsewhere]
    assert causes([gone, explained, head_of_it, other, back]) == [other, head_of_it, back]


def test_findings_fill_the_lines_that_are_free() -> None:
    words = "word " * 40
    three = [finding(str(n), "high", "01:12:23", words.strip()) for n in range(3)]
    lines = [line.text for line in wrapped(three, 80, 20)]
    assert " ".join(" ".join(lines).split()).count("word") == 120, "nothing is cut"
    assert all(len(text) <= 80 for text in lines)
    few = [line.text for line in wrapped(three, 80, 5)]
    assert len(few) == 5
    assert sum(text.startswith("01:12:23") for text in few) == 3
    assert few[1].startswith(" " * 18), "the first has the lines that are free"
    assert [line.text for line in wrapped(three, 80, 2)][1] == "2 more findings: f"
    assert wrapped(three, 80, 0) == wrapped([], 80, 5) == []


def test_which_lines_are_busy() -> None:
    nothing = {"name": "a", "rate": 0.0, "exchanges": 5, "errors": 0, "waiting": 0, "lag": None}
    assert not busy("clients", nothing)
    assert busy("clients", {**nothing, "lag": 3})
    assert busy("clients", {**nothing, "waiting": 1})
    assert busy("brokers", nothing)
    assert not busy("brokers", {**nothing, "name": "(unknown)"})

"""More packets than can be worked on, from tcpdump to the screen: it is said, whole connections are left out, and what
is counted is what their tables have."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from pathlib import Path

import pyarrow as pa
import pytest

import kdissect
from kdissect.cli.live.panel import coverage
from kdissect.live import source
from kdissect.live.moment import Moment
from kdissect.live.ring import Ring
from kdissect.live.running_figures import Figures
from kdissect.live.source import Interface
from kdissect.live.watched_source import Session
from kdissect.problems import CaptureUnreadable
from tests.bench.test_day import Days

COPIES = 12
LATE_S = 5
"""How late the last packet is at least."""
COLUMNS = ["client_ip", "client_port", "api", "status", "request_first_at", "response_first_at"]
Rows = Counter[tuple[object, ...]]


def counted(table: pa.Table) -> Rows:
    return Counter(zip(*(table[name].cast(pa.string()).to_pylist() for name in COLUMNS), strict=True))


@pytest.fixture
def flood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Twenty-five minutes of packets that a `tcpdump` hands out as fast as they are taken, the last ones late."""
    days = Days()
    begin = int(time.time()) - LATE_S - COPIES * days.span_s
    path = tmp_path / "flood.pcap"
    path.write_bytes(b"".join([days.header, *(days.copy(n, begin) for n in range(COPIES))]))
    program = tmp_path / "tcpdump"
    program.write_text(f"#!/bin/sh\ntrap \"echo '7 packets dropped by kernel' >&2\" USR1\ncat {path}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return path


class Recorded(Figures):
    """Keeps what was said at every tick, and the exchanges that were counted."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []
        self.rows_of: Rows = Counter()

    def tick(self, moment: Moment) -> None:
        super().tick(moment)
        self.said.append("  ".join(coverage(self.snapshot())))
        self.rows_of += counted(moment.answered["exchanges"])


def test_more_than_can_be_worked_on(flood: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "TICK_S", 0.05)  # it looks at how late it is before most of the packets were read
    figures = Recorded()
    ended = pytest.raises(CaptureUnreadable, match="ended by itself")  # one that captures an interface does not
    with Session(Interface("eth0"), figures, Ring(10.0)) as session, ended:
        session.run()
    whole = kdissect.open(flood)
    exchanges = counted(whole.table("exchanges", COLUMNS))

    # It says so, and by how much.
    assert figures.share < 1
    alerts = [one["text"] for one in figures.findings if one["id"] == "sampling"]
    assert alerts
    assert all("behind by " in text and "of connections are worked on from now on" in text for text in alerts)
    assert any("BEHIND by " in line and "SAMPLED: 50% of connections; " in line for line in figures.said)
    last = figures.snapshot()
    assert 0 < last["left_out_segments"] < last["segments"]
    left = last["left_out_segments"] / last["segments"]
    assert f"SAMPLED: {last['share']:.0%} of connections; {left:.1%} of segments left out" in figures.said[-1]

    # All packets are counted, and of exchanges and problems only such as the tables have, with the same outcome.
    measured = whole.table("capture_quality").to_pylist()
    assert figures.packets_read == sum(row["value"] for row in measured if row["measure"] == "packets")
    assert figures.rows_of.total() == figures.statuses.total() == last["exchanges"]
    assert 0 < last["exchanges"] < exchanges.total()
    assert not figures.rows_of - exchanges
    assert not figures.problems - Counter(whole.table("problems", ["kind"])["kind"].to_pylist())

    # Connections are there whole, or not at all: but for those that were open when the share fell.
    ours, theirs = by_connection(figures.rows_of), by_connection(exchanges)
    cut = {connection for connection, count in ours.items() if count < theirs[connection]}
    assert len(ours) < len(theirs)
    assert len(cut) <= len(alerts) * 2 * len(theirs) / COPIES


def by_connection(rows: Rows) -> dict[tuple[object, ...], int]:
    found: dict[tuple[object, ...], int] = defaultdict(int)
    for row, count in rows.items():
        found[row[:2]] += count
    return found

"""Waits that a gap of the network may explain, and answers that were sent again: found without looking at every row for
every gap or connection, and as if by that."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from kdissect.analysis.findings import network_gaps as gaps_of
from kdissect.analysis.findings.network_gaps import NetworkGap, may_share_a_gap
from kdissect.analysis.findings.rules import silence_findings
from kdissect.arrays.arrow import NULL_TIME

NO_ROWS = pa.table({})


def connections(hosts: list[str | None], **columns: Any) -> pa.Table:
    ids = [f"c{number}" for number in range(len(hosts))]
    return pa.table({"connection_id": ids, "client_ip": pa.array(hosts, pa.string()), **columns})


def slow_way(gaps: list[NetworkGap], rows: pa.Table, ends: pa.Table, begin: Any, end: Any) -> Any:
    """For each row and gap all other rows."""
    host_of = dict(zip(*(ends[name].to_pylist() for name in ("connection_id", "client_ip")), strict=True))
    host = np.array([host_of.get(one, "-") for one in rows["connection_id"].to_pylist()], object)
    broker = np.array([str(one) for one in rows["broker"].to_pylist()], object)
    flags = np.zeros(rows.num_rows, np.bool_)
    for gap in gaps:
        mine, covered = host == gap.client_ip, gaps_of._covers(gap, begin, end)
        for row in np.flatnonzero(mine & covered).tolist():
            low, high = max(begin[row], gap.begin), min(end[row], gap.end)
            others = mine & ~covered & (broker == broker[row])
            flags[row] |= not (others & (end > low) & (end < high)).any()
    return flags


def waits(chance: np.random.Generator, count: int) -> tuple[list[NetworkGap], pa.Table, pa.Table, Any, Any]:
    ends = connections([*chance.choice(["10.0.0.1", "10.0.0.2", "10.0.0.3"], 8).tolist(), None])
    rows = pa.table({
        "connection_id": [f"c{number}" for number in chance.integers(0, 11, count)],
        "broker": pa.array(chance.choice(["1", "2", None], count).tolist(), pa.string()),
    })  # fmt: skip
    begin = chance.integers(0, 400, count)
    end = begin + chance.integers(-3, 90, count) * chance.integers(0, 2, count)
    end[chance.random(count) < 0.05] = NULL_TIME
    begin = np.where(end == NULL_TIME, end, begin)
    gaps = []
    for _ in range(int(chance.integers(0, 9))):
        first = int(chance.integers(0, 400))
        host = str(chance.choice([name for name in ends["client_ip"].to_pylist() if name]))
        gaps.append(NetworkGap(host, "10.0.0.9", first, first + int(chance.integers(1, 120)), NO_ROWS))
    return gaps, rows, ends, begin, end


def test_waits_near_a_gap() -> None:
    chance = np.random.default_rng(7)
    shared = 0
    for _ in range(400):
        case = waits(chance, int(chance.integers(0, 60)))
        found = may_share_a_gap(*case)
        answered = case[-1] != NULL_TIME
        assert (found == slow_way(*case) & answered).all()
        shared += int(found.sum())
    assert shared > 500


@pytest.mark.parametrize("apart", [True, False])
def test_many_gaps_and_waits(apart: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """2,000 of both: those that lie apart are paired with their own, of those at the same time few are paired."""
    count, looked_at = 2000, []
    covers = gaps_of._covers
    monkeypatch.setattr(gaps_of, "PAIRS", 20_000)
    monkeypatch.setattr(
        gaps_of, "_covers", lambda gap, begin, end: (looked_at.append(len(begin)), covers(gap, begin, end))[1]
    )
    first = np.arange(count) * (10_000 if apart else 1)
    gaps = [NetworkGap("10.0.0.1", f"10.1.0.{n}", at, at + 5_000, NO_ROWS) for n, at in enumerate(first.tolist())]
    rows = pa.table({"connection_id": ["c0"] * count, "broker": ["1"] * count})
    found = may_share_a_gap(gaps, rows, connections(["10.0.0.1"]), first + 100, first + 4_000)
    assert found.all()
    assert sum(looked_at) <= (2 * count if apart else 20_000)


def exchanges(chance: np.random.Generator, count: int, owners: int) -> pa.Table:
    asked = chance.integers(0, 4_000_000, count)
    answered = asked + chance.integers(0, 900_000, count)
    asked[chance.random(count) < 0.1] = NULL_TIME
    answered[chance.random(count) < 0.1] = NULL_TIME
    columns = {
        name: pa.array(values, pa.timestamp("us", "UTC"), mask=values == NULL_TIME)
        for name, values in (("request_first_at", asked), ("response_first_at", answered))
    }
    return pa.table({"connection_id": [f"c{n}" for n in chance.integers(0, owners + 1, count)], **columns})


def slow_count(table: pa.Table, ends: pa.Table, of_host: Any, begin: int, end: int) -> int:
    """For each connection all exchanges."""
    owner = silence_findings.ev.owners(table, ends)
    asked, answered = (silence_findings.times(table, name) for name in ("request_first_at", "response_first_at"))
    lost, found = ends["lost_segments"].to_pylist(), 0
    for row in np.flatnonzero(of_host & silence_findings.with_copies(ends, 1)).tolist():
        own = owner == row
        answers = answered[own & (answered > begin) & (answered < end)]
        if not len(answers):
            return 0
        requests = np.append(np.sort(asked[own]), np.iinfo(np.int64).max)
        longest = (np.minimum(requests[np.searchsorted(requests, answers, side="right")], end) - answers).max()
        found += silence_findings.RESENT <= silence_findings.copies_in(int(longest) / 1000) <= lost[row]
    return found


def test_answers_that_were_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each connection's exchanges are looked at once, not all exchanges for each connection."""
    chance = np.random.default_rng(11)
    looked_at: list[int] = []
    of = silence_findings._Answers.of
    monkeypatch.setattr(silence_findings._Answers, "of", lambda self, row: (looked_at.append(row), of(self, row))[1])
    counted = 0
    for _ in range(300):
        owners = int(chance.integers(1, 6))
        ends = connections(
            ["10.0.0.1"] * owners, lost_segments=chance.integers(0, 6, owners), retransmitted_bytes=[10_000] * owners
        )
        table = exchanges(chance, int(chance.integers(0, 60)), owners)
        of_host = chance.random(owners) < 0.7
        begin, end = sorted(chance.integers(0, 4_000_000, 2).tolist())
        answers = silence_findings._Answers(table, ends)
        looked_at.clear()
        found = answers.sent_again(of_host, begin, end)
        assert found == slow_count(table, ends, of_host, begin, end)
        assert len(looked_at) == len(set(looked_at))
        assert sum(len(of(answers, row)[0]) for row in range(owners)) <= table.num_rows
        counted += found
    assert counted > 50

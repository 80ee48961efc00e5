"""Another number of session slots: the eviction rules on sessions that are written down, and recordings."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner

import kdissect
from kdissect.analysis.sessions.fewer_slots import with_slots
from kdissect.cli.commands import main
from kdissect.tables.declaration import SCHEMAS
from tests.conftest import ROOT

CAPTURES = ROOT / "captures"
SECOND = 1_000_000
START = 1_790_000_000 * SECOND


def demand(*sessions: tuple[str, bool, int, list[int], int | None]) -> tuple[pa.Table, pa.Table]:
    """`fetches` and `fetch_sessions` of (client, follower, partitions, seconds of use, second of its end)."""
    rows, uses = [], []
    for n, (client, follower, size, at, end) in enumerate(sessions):
        key = f"1/{n}/1"
        rows.append({
            "session_key": key, "broker": "1", "client_ids": [client], "opened_at": START + at[0] * SECOND,
            "closed_at": None if end is None else START + end * SECOND,
            "end_reason": "open" if end is None else "closed",
            "max_partitions": size, "requests": len(at), "full_request_bytes_avoided": 100 * (len(at) - 1),
        })  # fmt: skip
        uses += [{"session_key": key, "request_last_at": START + t * SECOND, "is_follower": follower} for t in at]
    tables = []
    for name, found in (("fetches", uses), ("fetch_sessions", rows)):
        schema = SCHEMAS[name]
        columns = [pa.array([row.get(field.name) for row in found], field.type) for field in schema]
        tables.append(pa.table(columns, schema=schema))
    return tables[0], tables[1]


def figures(slots: int, *sessions: tuple[str, bool, int, list[int], int | None]) -> dict[str, tuple[int, ...]]:
    """client -> (asked for, evicted, refused, full fetches, bytes more)."""
    names = ("sessions", "evicted", "refused", "full_fetches", "request_bytes_more")
    table = with_slots(*demand(*sessions), slots)
    return {row["client_id"]: tuple(row[name] for name in names) for row in table.to_pylist()}


def test_enough_slots_change_nothing() -> None:
    assert figures(2, ("a", False, 5, [0, 1, 2], None), ("b", False, 1, [0, 1], None)) == {
        "a": (1, 0, 0, 0, 0), "b": (1, 0, 0, 0, 0),
    }  # fmt: skip


def test_a_young_session_keeps_its_slot_and_the_other_asks_in_vain() -> None:
    found = figures(1, ("a", False, 1, [0, 10], None), ("b", False, 9, [1, 2, 3], None))
    assert found == {"a": (1, 0, 0, 0, 0), "b": (3, 0, 3, 2, 200)}


def test_a_session_that_is_old_enough_goes_for_a_larger_one_and_not_for_a_smaller_one() -> None:
    old = ("a", False, 4, [0, 60, 121, 130], None)
    assert figures(1, old, ("b", False, 5, [122, 123], None)) == {"a": (2, 1, 1, 1, 100), "b": (1, 0, 0, 0, 0)}
    assert figures(1, old, ("b", False, 3, [122, 123], None)) == {"a": (1, 0, 0, 0, 0), "b": (2, 0, 2, 1, 100)}


def test_who_does_not_use_a_session_loses_it_to_anybody() -> None:
    found = figures(1, ("a", False, 9, [0], None), ("b", False, 1, [121], None))
    assert found == {"a": (1, 1, 0, 0, 0), "b": (1, 0, 0, 0, 0)}


def test_a_follower_pushes_out_a_young_consumer_and_no_consumer_a_follower() -> None:
    found = figures(1, ("a", False, 9, [0, 3], None), ("broker-2-fetcher-0", True, 1, [1, 4], None))
    assert found == {"a": (2, 1, 1, 1, 100), "broker-2-fetcher-0": (1, 0, 0, 0, 0)}


def test_an_end_makes_room() -> None:
    found = figures(1, ("a", False, 1, [0, 1], 2), ("b", False, 1, [2, 3], None))
    assert found == {"a": (1, 0, 0, 0, 0), "b": (1, 0, 0, 0, 0)}


@cache
def recorded(name: str) -> tuple[pa.Table, pa.Table]:
    tables = kdissect.open(CAPTURES / f"{name}.pcap").tables(["fetches", "fetch_sessions"])
    return tables["fetches"], tables["fetch_sessions"]


@pytest.mark.parametrize("name", ["k4_session_eviction", "k4_follower_sessions", "base"])
def test_no_slots_mean_no_sessions_and_plenty_lose_nobody_anything(name: str) -> None:
    fetches, sessions = recorded(name)
    plenty = with_slots(fetches, sessions, sessions.num_rows)
    assert sum(plenty["sessions"].to_pylist()) == sessions.num_rows
    assert set(plenty["evicted"].to_pylist()) | set(plenty["refused"].to_pylist()) == {0}
    none = with_slots(fetches, sessions, 0)
    assert none["refused"].to_pylist() == none["sessions"].to_pylist()
    assert sum(none["refused"].to_pylist()) >= sessions.num_rows


def test_the_command(tmp_path: Path) -> None:
    path = str(CAPTURES / "base.pcap")
    said = CliRunner().invoke(main, ["sessions", path, "--slots", "1"]).output
    assert said.startswith("With 1 session slot on each broker: ")
    said = CliRunner().invoke(main, ["sessions", path, "--slots", "1000"]).output
    assert said == "With 1,000 session slots on each broker no client would have lost a session, or got none.\n"
    assert CliRunner().invoke(main, ["sessions", path, "--slots", "-1"]).exit_code == 2

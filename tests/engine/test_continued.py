"""Files of a capture one after the other, each by a run of its own that begins where the last one ended."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

import kdissect
from kdissect.capture.captureset import Member
from kdissect.engine.resumption import STREAMED, Continued, columns
from kdissect.engine.settings import Settings
from kdissect.problems import UsageError


def cut(path: Path, files: int, folder: Path) -> list[Path]:
    """A classic little-endian pcap in so many files of a rotated set."""
    data = path.read_bytes()
    records, at = [], 24
    while at + 16 <= len(data):
        size = struct.unpack("<I", data[at + 8 : at + 12])[0]
        records.append(data[at : at + 16 + size])
        at += 16 + size
    edges = [len(records) * i // files for i in range(files + 1)]
    made = []
    for i in range(files):
        made.append(folder / ("cut.pcap" + (str(i) if i else "")))
        made[-1].write_bytes(data[:24] + b"".join(records[edges[i] : edges[i + 1]]))
    return made


def continued(
    paths: list[Path], tables: Sequence[str], each: int = 1, rest: bool = True
) -> tuple[dict[str, list[dict[str, object]]], int]:
    """Rows from runs over `each` files, with those of the end where `rest`, and the largest state in bytes."""
    wanted = {name: columns(name) for name in tables}
    state, rows, largest = None, {name: list[dict[str, object]]() for name in tables}, 0
    for i in range(0, len(paths), each):
        work = Continued("cut.pcap", wanted, Settings(), state)
        for name, batch in work.rows_of(Member(path.name, path) for path in paths[i : i + each]):
            rows[name] += batch.to_pylist()
        state = work.state()
        largest = max(largest, len(state))
    for name, batch in Continued("cut.pcap", wanted, Settings(), state).read_rest() if rest else ():
        rows[name] += batch.to_pylist()
    return rows, largest


def told_late(row: dict[str, object], other: dict[str, object]) -> bool:
    """Whether two rows differ by names that a later message tells and no more."""
    rest = [name for name in row if row[name] != other[name] and name not in NAMES]
    return not rest and str(row.get("broker", "")).count(":") != 0


MADE = tuple(name for name in STREAMED if name not in ("problems", "record_batches", "findings"))
KEYS = {"fetch_sessions": "session_key", "session_partitions": "session_key", "connections": "connection_id"}
NAMES = ("broker", "cluster", "topic", "topics", "session_key")


@pytest.mark.parametrize(
    ("files", "each"), [(1, 1), (5, 5), (7, 1), pytest.param(50, 1, marks=pytest.mark.exhaustive), (9, 4)]
)
@pytest.mark.parametrize("name", ["base.pcap", "k4_session_eviction.pcap", "raw_reuse.pcap", "field_burst20.pcap"])
def test_every_row_is_that_of_one_run(captures: Path, tmp_path: Path, name: str, files: int, each: int) -> None:
    paths = cut(captures / name, files, tmp_path)
    local = kdissect.open(paths).tables(MADE)
    found, largest = continued(paths, MADE, each)
    assert found["exchanges"]
    assert largest < 4 << 20
    for table, rows in found.items():
        expected = local[table].to_pylist()
        for row in expected if files == 1 and table == "exchanges" else ():
            row["capture"] = "cut.pcap"
        both = sorted(rows, key=repr), sorted(expected, key=repr)
        if both[0] != both[1]:
            key = KEYS.get(table, "exchange_id")
            pairs = zip(*(sorted(some, key=lambda row: str(row[key])) for some in both), strict=True)
            late = each < files  # names that the first files tell are known from their first row on
            assert all(row == other or (late and told_late(row, other)) for row, other in pairs), table


def test_how_files_come_says_nothing_of_which_rows_wait(captures: Path, tmp_path: Path) -> None:
    """A run that is broken off and made again reads more files than it would have."""
    paths = cut(captures / "k4_session_eviction.pcap", 12, tmp_path)[:9]
    named = [sorted(name for name in columns(table) if name not in NAMES) for table in MADE]
    some = []
    for each in (1, 9):
        rows = continued(paths, MADE, each, rest=False)[0]
        some.append(
            [
                sorted(repr([row[name] for name in kept]) for row in rows[table])
                for table, kept in zip(MADE, named, strict=True)
            ]
        )
    assert some[0] == some[1]


@pytest.mark.whole
@pytest.mark.parametrize("name", ["era_2_4_1.pcap", "era_3_9_1_kraft.pcap", "k4_follower_sessions.pcap"])
def test_what_nobody_waits_for_makes_less_known_and_nothing_else(captures: Path, tmp_path: Path, name: str) -> None:
    """Brokers that are killed leave requests without an answer, and followers that come back."""
    paths = cut(captures / name, 7, tmp_path)
    known = {row["exchange_id"]: row for row in kdissect.open(paths).table("produces").to_pylist()}
    left = 0
    for row in continued(paths, ["produces"])[0]["produces"]:
        other = known.pop(row["exchange_id"])
        for column in [column for column in row if row[column] != other[column] and column not in NAMES]:
            assert row[column] in (None, "unknown"), column
            left += 1
    assert not known
    assert left  # some are behind a request that nobody waits for


def test_sessions_stay_whole_where_a_second_address_of_their_broker_gets_its_name(
    captures: Path, tmp_path: Path
) -> None:
    paths = cut(captures / "k4_follower_sessions.pcap", 7, tmp_path)
    columns = ("session_id", "opened_at", "closed_at", "requests", "epoch_gaps", "end_reason")
    found = continued(paths, ["fetch_sessions"])[0]["fetch_sessions"]
    expected = kdissect.open(paths).table("fetch_sessions").to_pylist()
    rows = [sorted(repr([row[name] for name in columns]) for row in some) for some in (found, expected)]
    assert rows[0] == rows[1]


def headlines(rows: Sequence[Mapping[str, object]]) -> set[tuple[object, ...]]:
    return {(row["severity"], row["headline"], row["count"]) for row in rows}


def test_findings_of_a_file_are_those_of_a_capture(captures: Path) -> None:
    """Of sessions that are open, requests that wait, and connections that were refused, too."""
    path = captures / "k4_session_eviction.pcap"
    found = continued([path], ["findings"], rest=False)[0]["findings"]
    expected = kdissect.open(path).table("findings").to_pylist()
    assert headlines(found) == headlines(expected)
    assert "broker 2 went away" in {row["headline"] for row in found}


def test_findings_come_with_the_files_that_they_are_in(captures: Path, tmp_path: Path) -> None:
    paths = cut(captures / "k4_session_eviction.pcap", 3, tmp_path)
    state, found = None, []
    for path in paths:
        work = Continued("cut.pcap", {"findings": columns("findings")}, Settings(), state)
        found.append([row for _, batch in work.rows_of([Member(path.name, path)]) for row in batch.to_pylist()])
        state = work.state()
    refused = [sum(row["count"] for row in rows if "refused" in row["headline"]) for rows in found]
    assert refused == [6, 0, 97]
    (lost,) = [row for rows in found for row in rows if row["headline"].startswith("broker 1 did not know")]
    assert lost in found[2]


AT_THE_END = ("connections", "problems", "fetch_sessions", "session_partitions", "findings")
"""Tables of which many rows may come when the capture has ended."""


@pytest.mark.whole
def test_every_table_comes(captures: Path, tmp_path: Path) -> None:
    paths = cut(captures / "base.pcap", 5, tmp_path)
    local = kdissect.open(paths)
    for table, rows in continued(paths, STREAMED, rest=False)[0].items():
        expected = local.table(table).num_rows
        assert len(rows) <= expected or table == "findings", table
        assert len(rows) > 0.8 * expected or table in AT_THE_END, table


def test_tables_of_one_run_are_those_of_runs_of_their_own(captures: Path, tmp_path: Path) -> None:
    paths = cut(captures / "base.pcap", 3, tmp_path)
    wanted = {name: columns(name) for name in ("exchanges", "fetch_partitions", "groups", "problems")}
    state, together = None, {name: list[object]() for name in wanted}
    for path in paths:
        work = Continued("cut.pcap", wanted, Settings(), state)
        for name, batch in work.rows_of([Member(path.name, path)]):
            together[name] += batch.to_pylist()
        state = work.state()
    apart = {name: continued(paths, [name], rest=False)[0][name] for name in wanted}
    for name, rows in together.items():
        assert sorted(rows, key=repr) == sorted(apart[name], key=repr), name


def test_a_large_response_goes_on_when_its_first_files_are_gone(captures: Path, tmp_path: Path) -> None:
    paths = cut(captures / "base.pcap", 20, tmp_path)
    expected = kdissect.open(paths).table("fetch_partitions", columns("fetch_partitions")).to_pylist()
    state, rows = None, []
    for path in paths:
        work = Continued("cut.pcap", {"fetch_partitions": columns("fetch_partitions")}, Settings(), state)
        rows += [row for _, batch in work.rows_of([Member(path.name, path)]) for row in batch.to_pylist()]
        state = work.state()
        path.unlink()
    known = {(row["exchange_id"], row["position"], row["partition"]): row for row in expected}
    assert len(rows) > 10
    for row in rows:
        other = known[row["exchange_id"], row["position"], row["partition"]]
        assert {**row, "topic": 0, "broker": 0} == {**other, "topic": 0, "broker": 0}


def test_a_file_that_is_none_is_a_problem(captures: Path, tmp_path: Path) -> None:
    paths = cut(captures / "base.pcap", 3, tmp_path)
    paths[1].write_bytes(b"no capture at all, but long enough to be looked at")
    rows = continued([*paths[:2], tmp_path / "gone.pcap", paths[2]], ["problems"], rest=False)[0]["problems"]
    assert {"cut.pcap1", "gone.pcap"} <= {row["file"] for row in rows}


def test_states_of_others_are_refused(captures: Path, tmp_path: Path) -> None:
    path = captures / "base_tiny.pcap"
    work = Continued("a", {"exchanges": columns("exchanges")}, Settings())
    assert sum(batch.num_rows for _, batch in work.rows_of([Member(path.name, path)])) > 0
    with pytest.raises(UsageError, match="begin anew"):
        Continued("a", {"fetches": columns("fetches")}, Settings(), work.state())


def test_what_a_stream_cannot_make_is_said() -> None:
    assert columns("exchanges", ["exchange_id", "hold"]) == ["exchange_id", "hold"]
    with pytest.raises(UsageError, match="complete at the end only"):
        columns("topics")
    with pytest.raises(UsageError, match="did you mean 'exchanges'"):
        columns("exchangs")

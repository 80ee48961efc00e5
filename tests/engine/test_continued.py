"""Files of a capture one after the other, each by a run of its own that begins where the last one ended."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

import kdissect
from kdissect.capture.captureset import Member
from kdissect.engine.resumption import STREAMED, Continued, columns
from kdissect.engine.settings import Settings
from kdissect.problems import UsageError

AT_THE_END = ("pending", "unanswered", "no_response", "one_way", "partial", "orphan")
"""States of exchanges that may wait for the end of the capture."""


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


def continued(paths: list[Path], table: str, each: int = 1) -> tuple[list[dict[str, object]], int]:
    """Rows from runs over `each` files, and the largest state in bytes."""
    state, rows, largest = None, [], 0
    for i in range(0, len(paths), each):
        work = Continued("cut.pcap", {table: columns(table)}, Settings(), state)
        for _, batch in work.rows_of(Member(path.name, path) for path in paths[i : i + each]):
            rows += batch.to_pylist()
        state = work.state()
        largest = max(largest, len(state))
    return rows, largest


@pytest.mark.parametrize(("files", "each"), [(1, 1), (7, 1), pytest.param(50, 1, marks=pytest.mark.exhaustive), (9, 4)])
@pytest.mark.parametrize("name", ["base.pcap", "k4_session_eviction.pcap", "raw_reuse.pcap", "field_burst20.pcap"])
def test_exchanges_are_those_of_one_run(captures: Path, tmp_path: Path, name: str, files: int, each: int) -> None:
    paths = cut(captures / name, files, tmp_path)
    expected = {
        row["exchange_id"]: row for row in kdissect.open(paths).table("exchanges", columns("exchanges")).to_pylist()
    }
    if files == 1:
        for row in expected.values():
            row["capture"] = "cut.pcap"
    found, largest = continued(paths, "exchanges", each)
    assert len({row["exchange_id"] for row in found}) == len(found) > 0
    for row in found:
        other = expected.pop(row["exchange_id"])
        if row["broker"] != other["broker"]:  # a later message tells the node id
            assert row.pop("broker") == f"{row['broker_ip']}:{row['broker_port']}"
            other.pop("broker")
        assert row == other
    assert {row["status"] for row in expected.values()} <= set(AT_THE_END)
    assert largest < 4 << 20


@pytest.mark.whole
def test_every_table_comes(captures: Path, tmp_path: Path) -> None:
    paths = cut(captures / "base.pcap", 5, tmp_path)
    local = kdissect.open(paths)
    for table in STREAMED:
        rows = continued(paths, table)[0]
        expected = local.table(table, columns(table)).num_rows
        assert len(rows) <= expected, table
        assert len(rows) > 0.8 * expected or table == "problems", table


def test_tables_of_one_run_are_those_of_runs_of_their_own(captures: Path, tmp_path: Path) -> None:
    paths = cut(captures / "base.pcap", 3, tmp_path)
    wanted = {name: columns(name) for name in ("exchanges", "fetch_partitions", "groups", "problems")}
    state, together = None, {name: list[object]() for name in wanted}
    for path in paths:
        work = Continued("cut.pcap", wanted, Settings(), state)
        for name, batch in work.rows_of([Member(path.name, path)]):
            together[name] += batch.to_pylist()
        state = work.state()
    assert together == {name: continued(paths, name)[0] for name in wanted}


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
    rows = continued([*paths[:2], tmp_path / "gone.pcap", paths[2]], "problems")[0]
    assert {"cut.pcap1", "gone.pcap"} <= {row["file"] for row in rows}


def test_states_of_others_are_refused(captures: Path, tmp_path: Path) -> None:
    path = captures / "base_tiny.pcap"
    work = Continued("a", {"exchanges": columns("exchanges")}, Settings())
    assert sum(batch.num_rows for _, batch in work.rows_of([Member(path.name, path)])) > 0
    with pytest.raises(UsageError, match="begin anew"):
        Continued("a", {"fetches": columns("fetches")}, Settings(), work.state())


def test_what_a_stream_cannot_make_is_said() -> None:
    assert "hold" not in columns("exchanges")
    with pytest.raises(UsageError, match="'hold' of 'exchanges' is made by the analysis"):
        columns("exchanges", ["exchange_id", "hold"])
    with pytest.raises(UsageError, match="complete at the end only"):
        columns("connections")
    with pytest.raises(UsageError, match="did you mean 'exchanges'"):
        columns("exchangs")

"""Conversations that two hosts captured, each in rotated files that come in any order: rows of exchanges come once."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import zstandard

import kdissect
from kdissect.analysis.sights.correlation_ranges import ALL, RANGES, join_ranges
from kdissect.arrays.typed_values import dumped
from kdissect.engine.resumption import columns
from kdissect.engine.settings import Settings
from kdissect.engine.sights import range_collector
from kdissect.problems import UsageError
from kdissect.spark.source.placed_rows import OPEN, OPEN_CELL, RANGES_CELL, SESSIONS, SESSIONS_CELL
from kdissect.spark.source.streaming import Work
from kdissect.spark.writing import stream_copies
from kdissect.spark.writing.stream_copies import FOUND, NOTHING, Known, KnownCopies, RowsOnce, learn_ranges, prune_known
from tests.conftest import CAPTURES
from tests.engine.test_continued import cut
from tests.spark.conftest import later

WIRES = ("stories/lossy_1", "stories/net_delay", "lab/reset_librdkafka")
"""Recordings with both ends of a wire."""
TABLES = (
    "connections","exchanges", "fetches", "fetch_partitions", "produces", "record_batches", "fetch_sessions",
          "session_partitions", "list_offsets", "findings")  # fmt: skip
ENDED = ("pending", "unanswered", "no_response")
"""States of exchanges that may wait for the end of the capture."""
SAME = ("api_key", "correlation_id", "client_id", "request_bytes", "response_bytes", "status")
"""What both ends see alike."""
Files = dict[str, list[Path]]


def both_ends(wire: str, folder: Path, files: list[int]) -> Files:
    """By capture set its files."""
    made = {}
    for end, count in zip(("client", "broker"), files, strict=True):
        source, place = CAPTURES / f"{wire}_{end}.pcap.zst", folder / end
        place.mkdir()
        with source.open("rb") as packed:
            (place / "whole.pcap").write_bytes(zstandard.ZstdDecompressor().stream_reader(packed).read())
        made[end] = cut(place / "whole.pcap", count, place)
    return made


def by_host(capture: Path, folder: Path, files: list[int]) -> Files:
    """What each broker's host would have captured: all that goes to its broker, and what its broker fetches."""
    of = kdissect.open(capture).tables({"connections": None, "exchanges": ["connection_id", "broker"]})
    names = dict(zip(*(of["exchanges"][name].to_pylist() for name in ("connection_id", "broker")), strict=True))
    ends = [(one["client_port"], one["broker_port"], one) for one in of["connections"].to_pylist()]
    nodes = {port: names[one["connection_id"]] for _, port, one in ends if one["connection_id"] in names}
    fetchers = {
        (client, port): (one["client_id"] or "").split("-")[1]
        for client, port, one in ends if (one["client_id"] or "").startswith("broker-")
    }  # fmt: skip
    data = capture.read_bytes()
    packets: dict[str, list[bytes]] = {node: [data[:24]] for node in nodes.values()}
    at = 24
    while at + 16 <= len(data):
        size = 16 + int.from_bytes(data[at + 8 : at + 12], "little")
        ip = at + 16 + 14
        tcp = ip + 4 * (data[ip] & 15)
        ports = [int.from_bytes(data[tcp + 2 * end : tcp + 2 * end + 2], "big") for end in range(2)]
        client, port = ports if ports[1] in nodes else ports[::-1]
        for node in {nodes.get(port), fetchers.get((client, port))} & packets.keys():
            packets[node].append(data[at : at + size])
        at += size
    made = {}
    for (node, records), count in zip(packets.items(), files, strict=False):
        place = folder / f"host{node}"
        place.mkdir()
        (place / "whole.pcap").write_bytes(b"".join(records))
        made[place.name] = cut(place / "whole.pcap", count, place)
    return made


def followed(files: Files, batches: list[dict[str, int]]) -> dict[str, list[dict[str, Any]]]:
    """Rows that are written of batches with so many files of each set, and of a last one in which the sets are over."""
    work = Work({name: columns(name) for name in TABLES}, Settings(dated=True))
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in TABLES}
    known, states = NOTHING, dict[str, bytes]()
    left = {name: list(some) for name, some in files.items()}
    for batch in [*batches, {}]:
        cells = []
        for name, state in [] if batch else states.items():
            cells += [(name, *made) for made in work.end(name, state)]
        for name, count in batch.items():
            some, left[name] = left[name][:count], left[name][count:]
            for made in work.do(name, [(path.name, str(path)) for path in some], states.get(name)):
                if isinstance(made, bytes):
                    states[name] = made
                else:
                    cells.append((name, *made))
        known = learn_ranges(known, cells_of(cells, RANGES_CELL, RANGES))
        findings = cells_of(cells, "findings", FOUND)
        once = RowsOnce(known, cells_of(cells, SESSIONS_CELL, SESSIONS), findings)
        known = prune_known(known, cells_of(cells, OPEN_CELL, OPEN))
        for name, table, made in cells:
            if table in TABLES:
                rows[table] += once.of(table, name, made).to_pylist()
    assert not any(left.values())
    return rows


def cells_of(cells: list[tuple[str, str, pa.Table]], name: str, schema: pa.Schema) -> pa.Table:
    return pa.concat_tables(
        [schema.empty_table(), *(table.select(schema.names).cast(schema) for _, found, table in cells if found == name)]
    )


def seen(rows: list[dict[str, Any]]) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row[name] for name in SAME) for row in rows)


@pytest.mark.parametrize("wire", [WIRES[0], *(pytest.param(wire, marks=pytest.mark.whole) for wire in WIRES[1:])])
@pytest.mark.parametrize(
    ("files", "batches"),
    [
        ([2, 3], [{"client": 1, "broker": 2}, {"client": 1, "broker": 1}]),
        ([1, 4], [{"client": 1}, {"broker": 3}, {"broker": 1}]),
        ([3, 1], [{"client": 1}, {"broker": 1}, {"client": 2}]),
    ],
    ids=["together", "client first", "between"],
)
def test_rows_are_as_many_as_of_one_run(wire: str, files: list[int], batches: Any, tmp_path: Path) -> None:
    local = kdissect.open([CAPTURES / f"{wire}_{end}.pcap.zst" for end in ("client", "broker")]).tables(TABLES)
    found = followed(both_ends(wire, tmp_path, files), batches)
    assert seen(found["exchanges"]) == seen(local["exchanges"].to_pylist())
    for name in set(TABLES) - {"findings"}:
        assert len(found[name]) == local[name].num_rows, name
    kept = {row["exchange_id"] for row in found["exchanges"]}
    assert {row["exchange_id"] for row in found["fetches"]} <= kept


def any_order(files: Files, random_: random.Random) -> list[dict[str, int]]:
    """Batches with so many files of each set."""
    left, batches = {name: len(some) for name, some in files.items()}, []
    while any(left.values()):
        batch = {name: random_.randint(0, count) for name, count in left.items()}
        left = {name: count - batch[name] for name, count in left.items()}
        batches += [{name: count for name, count in batch.items() if count}] if any(batch.values()) else []
    return batches


@pytest.mark.whole
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ["k4_follower_sessions.pcap", "era_2_4_1.pcap"])
def test_each_brokers_host_captures(name: str, seed: int, tmp_path: Path) -> None:
    """Fetches of replicas, and their sessions, are on two hosts, whose files come in any order."""
    random_ = random.Random(seed)
    files = by_host(CAPTURES / name, tmp_path, random_.choices([1, 3, 6], k=3))
    paths = [path.parent / "whole.pcap" for path, *_ in files.values()]
    local = kdissect.open([path.rename(path.parent.with_suffix(".pcap")) for path in paths]).tables(TABLES)
    found = followed(files, any_order(files, random_))
    assert {row["capture"] for row in found["exchanges"]} == files.keys()
    assert seen(found["exchanges"]) == seen(local["exchanges"].to_pylist())
    for table in set(TABLES) - {"findings"}:
        assert len(found[table]) == local[table].num_rows, table


@pytest.mark.whole
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in range(2, 8))])
@pytest.mark.parametrize("wire", WIRES)
def test_any_order_of_files_gives_each_exchange_once(wire: str, seed: int, tmp_path: Path) -> None:
    random_ = random.Random(seed)
    files = both_ends(wire, tmp_path, [random_.choice([1, 2, 5, 9]) for _ in range(2)])
    local = kdissect.open([CAPTURES / f"{wire}_{end}.pcap.zst" for end in ("client", "broker")])
    found = followed(files, any_order(files, random_))
    assert seen(found["exchanges"]) == seen(local.table("exchanges").to_pylist())


def test_the_end_nearest_the_broker_tells_sessions_and_findings(tmp_path: Path) -> None:
    found = followed(both_ends(WIRES[1], tmp_path, [1, 1]), [{"client": 1, "broker": 1}])
    for name in set(TABLES) - {"findings"}:
        assert {row["capture"] for row in found[name]} <= {"broker"}, name
    assert found["fetch_sessions"]
    causes = [(row["capture"], row["cause"]) for row in found["findings"] if row["broker"] is not None]
    assert {cause for capture, cause in causes if capture == "client"} <= {"network", "capture"}
    subjects = [(row["id"], row["broker"], row["client_id"]) for row in found["findings"] if row["cause"] == "network"]
    assert subjects
    assert len(subjects) == len(set(subjects))


@pytest.mark.parametrize("most", [10, 1 << 17])
def test_ranges_are_joined_while_a_capture_is_read(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_collector, "MOST_PARTS", most)
    path = CAPTURES / "k4_java_classic.pcap"
    made = Work({"exchanges": columns("exchanges")}, Settings(dated=True)).do("a", [(path.name, str(path))], None)
    (told,) = [one[1] for one in made if isinstance(one, tuple) and one[0] == RANGES_CELL]
    local = kdissect.open(path).tables({"exchanges": ["status", "connection_id"]})["exchanges"]
    finished = [status not in ENDED for status in local["status"].to_pylist()]
    assert sum(finished) <= sum(told["count"].to_pylist()) <= local.num_rows
    assert told.num_rows < local.num_rows / 2
    assert join_ranges(told).num_rows == told.num_rows


def test_packets_without_times_are_as_old_as_the_epoch() -> None:
    path = CAPTURES / "field_simple_packets.pcapng"
    made = Work({"exchanges": columns("exchanges")}, Settings(dated=True)).do("a", [(path.name, str(path))], None)
    (told,) = [one[1] for one in made if isinstance(one, tuple) and one[0] == RANGES_CELL]
    known = learn_ranges(NOTHING, told)
    assert {(row["until"], row["known"]) for row in known.ranges.to_pylist()} == {(0, ALL)}


def a_range(capture: str, until: float, connection: int = 1) -> dict[str, Any]:
    return {
        "capture": capture, "broker": "1", "flow": 7, "connection": connection, "n": 0, "count": 10,
        "correlation": 100 * int(until), "sequence": 100, "bytes": 900, "known": ALL, "took": 1,
        "until": int(until * 1e9),
    }  # fmt: skip


NOTHING_OPEN = pa.table([["a", "b"], [None, None]], schema=OPEN)


def learned(known: Known, *ranges: dict[str, Any], still_open: pa.Table = NOTHING_OPEN) -> Known:
    return prune_known(learn_ranges(known, pa.Table.from_pylist(list(ranges), RANGES)), still_open)


def test_ranges_are_kept_for_an_hour_behind_the_last_set(monkeypatch: pytest.MonkeyPatch) -> None:
    known = NOTHING
    for capture, until in (("a", 0.0), ("b", 1800.0), ("a", 7200.0), ("b", 5500.0)):
        known = learned(known, a_range(capture, until, int(until)))
    assert sorted(known.ranges["until"].to_pylist()) == [5500 * 10**9, 7200 * 10**9]
    known = learned(known, a_range("a", 100_000.0))
    assert known.ranges["until"].to_pylist() == [100_000 * 10**9], "b is a day behind: nobody waits for it"
    monkeypatch.setattr(stream_copies, "MOST_RANGES", 3)
    assert learned(known, *(a_range("a", 100_000.0 + at, at) for at in range(5))).ranges.num_rows == 3


def test_whose_a_connection_is_stays_known_while_it_is_open() -> None:
    still_open = pa.table([["a", "a", "b", "b"], [None, 1, None, 2]], schema=OPEN)
    known = learned(NOTHING, a_range("a", 10.0), a_range("b", 10.0, 2), still_open=still_open)
    known = learned(known, a_range("a", 300_000.0, 3), still_open=still_open.slice(0, 2))
    assert known.connections["connection"].to_pylist() == [2, 3], "that of b, of which nothing was heard for days"
    over = learn_ranges(known, RANGES.empty_table())
    rows = pa.table({"connection_number": [2, 4]})
    assert RowsOnce(over, SESSIONS.empty_table(), FOUND.empty_table()).of("connections", "b", rows)[0].to_pylist() == [
        4
    ]
    assert prune_known(over, NOTHING_OPEN.slice(1)).connections["connection"].to_pylist() == [3]


def test_connections_of_sessions_that_outlive_them_are_awaited(tmp_path: Path) -> None:
    path, last = CAPTURES / "k4_session_eviction.pcap", tmp_path / "last.pcap"
    last.write_bytes(later(path, 600))
    wanted = {name: columns(name) for name in ("connections", "fetch_sessions")}
    work = Work(wanted, Settings(dated=True))
    *made, state = work.do("a", [(one.name, str(one)) for one in (path, last)], None)
    assert isinstance(state, bytes)
    (told,) = [one[1] for one in made if isinstance(one, tuple) and one[0] == OPEN_CELL]
    awaited = {None if one is None else f"{one & (1 << 64) - 1:016x}" for one in told["connection"].to_pylist()}
    rest = dict(work.end("a", state))
    used = {ids[0] for ids in rest["fetch_sessions"]["connections"].to_pylist()}
    assert used <= awaited
    assert set(rest["connections"]["connection_id"].to_pylist()) <= awaited
    assert used - set(rest["connections"]["connection_id"].to_pylist())


def test_copies_are_known_until_their_rows_were_written() -> None:
    first = learned(NOTHING, a_range("a", 10.0), a_range("b", 10.0, 2))
    assert first.copies["capture"].to_pylist() == ["b"]
    other = learned(first, a_range("a", 500.0, 3))
    assert other.copies["capture"].to_pylist() == ["b"], "rows of b may still come"
    later = learned(other, a_range("b", 500.0, 4))
    assert [row["connection"] for row in later.copies.to_pylist() if row["until"] < 100 * 10**9] == [2]
    last = learned(later, a_range("b", 900.0, 5))
    assert [row["connection"] for row in last.copies.to_pylist() if row["until"] < 100 * 10**9] == []


class FilesInMemory:
    """Files in memory, as `HadoopFiles` has them."""

    def __init__(self) -> None:
        self.there: dict[str, bytes] = {}

    def names(self, folder: str) -> list[str]:
        return [path.rpartition("/")[2] for path in self.there if path.rpartition("/")[0] == folder]

    def exists(self, path: str) -> bool:
        return path in self.there

    def read(self, path: str) -> bytes:
        return self.there[path]

    def write(self, path: str, data: bytes) -> None:
        self.there[path] = data

    def delete(self, path: str) -> None:
        del self.there[path]


def test_a_batch_that_runs_again_knows_what_it_knew(caplog: pytest.LogCaptureFixture) -> None:
    files: Any = FilesInMemory()
    of_query = KnownCopies(files, "/out", "query")
    known: Known = NOTHING
    for number in range(5):
        assert of_query.before(number).latest == known.latest
        known = learned(of_query.before(number), a_range("a", float(number)))
        of_query.keep(number, known)
        assert of_query.before(number).latest == ({"a": (number - 1) * 10**9} if number else {})
        of_query.forget(number)
    files.there["/out/_copies/other-000000001"] = b"damaged"
    with pytest.raises(UsageError, match="begin with a new checkpoint"):
        KnownCopies(files, "/out", "other").before(2)
    files.there["/out/_copies/older-000000001"] = dumped({"a": 1}, dict[str, int])
    assert KnownCopies(files, "/out", "older").before(2) is NOTHING
    assert [record.getMessage() for record in caplog.records] == [stream_copies.FORGOTTEN]
    assert sorted(files.names("/out/_copies")) == [
        "older-000000001", "other-000000001", "query-000000003", "query-000000004",
    ]  # fmt: skip
    assert KnownCopies(files, "/out", "third").before(9) is NOTHING

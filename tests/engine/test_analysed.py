"""The analysis behind the tables: the same rows however the input is cut, and nothing done that nobody asked for."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import kdissect
from kdissect.analysis import stage
from kdissect.analysis.cluster_stages import Stages
from kdissect.analysis.findings import findings
from kdissect.analysis.latency import latency
from kdissect.analysis.sessions import session_figures
from kdissect.analysis.sessions.membership import implied
from kdissect.analysis.stage import Stage
from kdissect.capture.captureset import CaptureSet
from kdissect.capture.window import Window
from kdissect.engine import analysed_run
from kdissect.engine.analysed_run import PROGRESSIVE
from kdissect.engine.extracts import overview
from kdissect.engine.saving import parquet
from kdissect.problems import UsageError
from kdissect.summary import spending
from kdissect.tables.declaration import SCHEMAS
from tests.conftest import ROOT

CAPTURES = ROOT / "captures"


def opened(name: str) -> Any:
    return kdissect.open(str(CAPTURES / f"{name}.pcap"))


@pytest.mark.parametrize("name", ["k4_slow_and_throttled", "k4_follower_sessions", "k4_share_group", "field_loss5"])
def test_small_blocks_give_the_same_rows(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Block by block under the engine's watermark, against everything at once."""
    whole = opened(name).tables(list(PROGRESSIVE))
    monkeypatch.setattr(CaptureSet, "window", lambda self: Window(1 << 17))
    monkeypatch.setattr(analysed_run, "ROWS_A_TIME", 0)
    fed, feed = [], Stage.feed
    monkeypatch.setattr(Stage, "feed", lambda *given: fed.append(given) or feed(*given))
    for table in PROGRESSIVE:
        parts = list(opened(name).batches(table))
        got = pa.Table.from_batches(parts, SCHEMAS[table])
        assert sorted(map(str, got.to_pylist())) == sorted(map(str, whole[table].to_pylist())), table
    assert len(fed) > len(PROGRESSIVE)


def test_two_captures_are_one_work(tmp_path: Path) -> None:
    """A session that goes on in another capture: rows wait until the last one is read."""
    names = ["k4_follower_sessions", "k4_slow_and_throttled"]
    both = kdissect.open([str(CAPTURES / f"{name}.pcap") for name in names])
    whole = both.table("fetch_sessions")
    parts = pa.Table.from_batches(list(both.batches("fetch_sessions")), whole.schema)
    assert sorted(map(str, parts.to_pylist())) == sorted(map(str, whole.to_pylist()))
    times = whole["opened_at"].to_pylist()
    assert times == sorted(times)


def test_what_nobody_asked_for_is_not_done(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(self: Stage, *_: Any, **__: Any) -> None:
        raise AssertionError("the analysis ran")

    monkeypatch.setattr(Stage, "_work", never)
    capture = opened("base")
    analysed = ("hold", "replication_ms", "agreed_ms", "throttled_ms")
    columns = [name for name in SCHEMAS["exchanges"].names if name not in analysed]
    assert capture.table("exchanges", columns).num_rows
    assert capture.table("fetches", ["exchange_id", "request_kind", "latency_ms"]).num_rows
    assert capture.table("fetch_partitions", ["exchange_id", "topic", "lag"]).num_rows
    assert capture.table("connections").num_rows
    with pytest.raises(AssertionError, match="the analysis ran"):
        capture.table("exchanges", ["hold"])
    with pytest.raises(AssertionError, match="the analysis ran"):
        capture.table("exchanges", ["exchange_id"], where="hold = 'timeout'")


def test_filters_and_columns_go_by_the_analysed_values() -> None:
    capture = opened("k4_slow_and_throttled")
    rows = capture.table("fetches", ["exchange_id", "hold"], where="hold = 'throttled'").to_pylist()
    everything = capture.table("fetches").to_pylist()
    assert rows == [
        {"exchange_id": row["exchange_id"], "hold": "throttled"} for row in everything if row["hold"] == "throttled"
    ]
    assert rows
    held = {row["exchange_id"]: row["hold"] for row in capture.table("exchanges").to_pylist()}
    assert all(held[row["exchange_id"]] == row["hold"] for row in everything)
    kinds = {row["api"]: set() for row in capture.table("exchanges").to_pylist()}
    for row in capture.table("exchanges").to_pylist():
        kinds[row["api"]].add(row["hold"])
    assert "rebalance" in kinds["JoinGroup"]
    assert "unknown" in kinds["Produce"]
    assert kinds["ApiVersions"] == {None}


def test_the_same_from_parquet(tmp_path: Path) -> None:
    """The analysis in a notebook, on tables read back."""
    capture = opened("k4_session_eviction")
    capture.save(tmp_path)
    tables = {path.stem: pq.read_table(path) for path in tmp_path.glob("*.parquet")}
    live = capture.analysis.sessions()
    assert session_figures.brokers(tables["fetches"], tables["fetch_sessions"]).equals(live["brokers"])
    assert session_figures.creators(tables["fetches"]).equals(live["creators"])
    assert findings(tables).findings.to_pylist() == capture.analysis.findings().to_pylist()
    named = ("exchanges", "fetch_partitions")
    told = ("fetches", "session_partitions", "record_batches")
    figures = latency(*(tables[name] for name in named), ["api", "topic"], 1.0, **{name: tables[name] for name in told})
    assert figures.to_pylist() == capture.analysis.latency(["api", "topic"], 1.0).to_pylist()
    again = Stages({"fetch_sessions": None, "fetches": None}).analyse_tables(tables)
    for name in ("fetch_sessions", "fetches"):
        got, want = again[name].select(SCHEMAS[name].names).to_pylist(), tables[name].to_pylist()
        assert sorted(map(str, got)) == sorted(map(str, want))


def test_parquet_is_what_tables_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Written in row groups, one table after the other."""
    monkeypatch.setattr(parquet, "ROW_GROUP", 7)
    capture = opened("k4_session_eviction")
    rows = capture.save(tmp_path)
    tables = capture.tables()
    assert rows == {name: table.num_rows for name, table in tables.items()}
    for name, table in tables.items():
        assert pq.read_table(tmp_path / f"{name}.parquet").cast(table.schema).equals(table), name


def test_session_figures() -> None:
    """k4_session_eviction: eight slots; refusals and evictions are those of the clients' own logs."""
    found = opened("k4_session_eviction").analysis.sessions(every=10)
    broker = next(row for row in found["brokers"].to_pylist() if row["broker"] == "1")
    assert (broker["created"], broker["evicted"], broker["open"], broker["lost"]) == (18, 8, 10, 8)
    clients = {(row["broker"], row["client_id"]): row for row in found["creators"].to_pylist()}
    more = clients["1", "raw-evict-more"]
    assert (more["created"], more["refused"], more["reused"], more["lost"]) == (8, 6, 0, 8)
    assert found["evictors"].to_pylist()[0]["client_id"] == "raw-evict-more"
    levels = [row["live"] for row in found["demand"].to_pylist() if row["broker"] == "1"]
    assert max(levels) == broker["peak_live"] == 16


def test_open_sessions_are_alive_until_the_last_fetch() -> None:
    """base: two sessions, opened at its beginning and used until its end."""
    capture = opened("base")
    demand = capture.analysis.sessions(every=0.5)["demand"].to_pylist()
    last = max(at for at in capture.table("fetches")["response_first_at"].to_pylist() if at)
    assert last - demand[-1]["at"] < timedelta(seconds=0.5)
    assert [row["live"] for row in demand[-4:]] == [2] * 4


def test_implied_partitions_of_one_request() -> None:
    capture = opened("raw_sessions")
    rows = capture.table("fetches", ["exchange_id", "session_epoch", "implied_partitions"]).to_pylist()
    (request,) = [row for row in rows if row["session_epoch"] == 5]
    found = capture.analysis.implied(request["exchange_id"])
    assert found.num_rows == request["implied_partitions"] == 2989
    assert [n for n in range(3000) if n not in set(found["partition"].to_pylist())] == [3, *range(500, 510)]
    (shown,) = capture.show(request["exchange_id"])
    assert shown.implied.to_pylist() == found.to_pylist()
    tables = capture.tables(["fetches", "fetch_partitions", "session_partitions"])
    plain = implied(request["exchange_id"], *tables.values())
    assert plain.to_pylist() == found.to_pylist()
    assert capture.analysis.implied(rows[0]["exchange_id"]).num_rows == 0
    with pytest.raises(UsageError, match="no Fetch"):
        capture.analysis.implied("0000:1")


def test_the_first_screen_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """With room for less than the capture, findings come from its beginning and say so; sessions are all counted."""
    whole = opened("k4_session_eviction").summary()
    assert whole.findings_of is None
    assert whole.findings == opened("k4_session_eviction").table("findings").to_pylist()
    monkeypatch.setattr(overview, "HELD_BACK", 0)
    monkeypatch.setattr(overview, "EVIDENCE", 5)
    monkeypatch.setattr(stage, "HELD_ROWS", 0)
    monkeypatch.setattr(analysed_run, "ROWS_A_TIME", 0)
    monkeypatch.setattr(CaptureSet, "window", lambda self: Window(1 << 17))
    cut = opened("k4_session_eviction").summary()
    assert cut.findings_of is not None
    assert 0 < cut.findings_of < cut.exchanges == whole.exchanges
    assert sum(line.sessions for line in cut.sessions) == sum(line.sessions for line in whole.sessions)


@pytest.mark.parametrize("name", ["k4_session_eviction", "k4_share_group"])
def test_what_is_read_for_findings_alone_is_not_made_any_more(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once there is no room for evidence; the first screen is the one that everything was made for."""
    monkeypatch.setattr(overview, "HELD_BACK", 0)
    monkeypatch.setattr(overview, "EVIDENCE", 5)
    monkeypatch.setattr(spending.Spending.__init__, "__defaults__", (50,))
    monkeypatch.setattr(analysed_run, "ROWS_A_TIME", 0)
    monkeypatch.setattr(CaptureSet, "window", lambda self: Window(1 << 17))
    narrow, made = analysed_run.AnalysedRun.narrow, []

    def noted(self: analysed_run.AnalysedRun, *read: Any) -> None:
        narrow(self, *read)
        made.append({table: len(columns) for table, columns in self.builder.columns.items()})

    monkeypatch.setattr(analysed_run.AnalysedRun, "narrow", lambda self, *read: None)
    wide = opened(name).summary()
    monkeypatch.setattr(analysed_run.AnalysedRun, "narrow", noted)
    found = opened(name).summary()
    assert found == wide
    assert found.findings_of is not None
    assert found.findings_of < found.exchanges
    assert "record_batches" not in made[0]
    assert made[-1]["exchanges"] < made[0]["exchanges"] < 30
    assert kdissect.open(str(CAPTURES / f"{name}.pcap"), jobs=2).summary() == wide


def test_bad_arguments() -> None:
    capture = opened("base")
    with pytest.raises(UsageError, match="cannot group latencies by 'colour'"):
        capture.analysis.latency(["colour"])
    with pytest.raises(UsageError, match="time buckets"):
        capture.analysis.latency(every=0)


def test_rows_that_a_filter_drops_are_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """As far as a column's value is known at once; the rows are the same as filtered afterwards."""
    held: list[int] = []
    take = analysed_run.Pieces.keep_part

    def counting(self: analysed_run.Pieces, part: Any) -> None:
        take(self, part)
        held.append(self.count)

    monkeypatch.setattr(analysed_run.Pieces, "keep_part", counting)
    columns = ["exchange_id", "api", "broker"]
    everything = opened("k4_slow_and_throttled").table("exchanges", columns)
    metadata, broker = pc.equal(everything["api"], "Metadata"), pc.equal(everything["broker"], "1")
    for where, wanted in (
        ("api = 'Metadata'", metadata),
        ("broker = '1'", broker),
        ("api = 'Metadata' and broker = '1'", pc.and_(metadata, broker)),
    ):
        held.clear()
        found = opened("k4_slow_and_throttled").table("exchanges", columns, where)
        early = max(held)
        if where.startswith("broker"):
            assert early == everything.num_rows  # which node a broker is may be told later
        else:
            assert early == everything.filter(metadata).num_rows
        assert found.equals(everything.filter(wanted))
        assert 0 < found.num_rows < everything.num_rows

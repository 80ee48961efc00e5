"""Figures against the tables that they are made of, counted again by pandas; and their bounds."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import kdissect
from kdissect.analysis.budget import BOXES
from kdissect.report import READ, Gathering, budget_chart, figure_rows, flows, report, session_rows, time_axis
from kdissect.report.counted import BUCKETS, OTHERS, Counted, bucket_seconds, stretched
from kdissect.report.observations import gathered
from kdissect.tables.declaration import SCHEMAS
from tests.conftest import CAPTURES

CAPTURE = "k4_slow_and_throttled.pcap"


@pytest.fixture(scope="module")
def tables() -> dict[str, pa.Table]:
    return kdissect.open(CAPTURES / CAPTURE).tables(READ)


@pytest.fixture(scope="module")
def found(tables: dict[str, pa.Table]) -> Gathering:
    return gathered(tables)


@pytest.fixture(scope="module")
def exchanges(tables: dict[str, pa.Table]) -> pd.DataFrame:
    frame = tables["exchanges"].to_pandas()
    fetches = tables["fetches"].select(["exchange_id", "excess_ms"]).to_pandas()
    return frame.merge(fetches, on="exchange_id", how="left")


def heat(found: Gathering) -> pa.Table:
    return figure_rows.heat(found.heat_of_all, found.heat_of_apis, found.heat_of_clients, found.every)


def test_heat_counts_every_answered_exchange_once(found: Gathering, exchanges: pd.DataFrame) -> None:
    every = found.every
    cells = heat(found).to_pandas()
    answered = exchanges[exchanges.latency_ms.notna()]
    assert cells[cells.series == ""].exchanges.sum() == len(answered)
    counts = answered.groupby(answered.client_id.fillna(figure_rows.NONE)).size()
    of_clients = cells[cells.series == "client_id"].groupby("name").exchanges.sum()
    assert len(of_clients) == figure_rows.SERIES
    assert of_clients.to_dict() == counts[of_clients.index].to_dict()
    polls = cells[(cells.series == "") & cells.long_poll].exchanges.sum()
    assert polls == (answered.hold == "timeout").sum() > 0
    one = cells[(cells.series == "")].iloc[0]
    begun = answered.request_first_at.fillna(answered.response_first_at)
    near = (
        (begun >= one["at"])
        & (begun < one["at"] + pd.Timedelta(seconds=every))
        & (answered.latency_ms >= one.from_ms)
        & (answered.latency_ms < one.to_ms)
        & ((answered.hold == "timeout") == one.long_poll)
    )
    assert near.sum() == one.exchanges


def test_parts_of_the_time_add_up(found: Gathering, exchanges: pd.DataFrame) -> None:
    parts = figure_rows.time_parts(found.spent, 1.0).to_pandas()
    totals = parts.groupby("part").total_ms.sum()
    assert totals["queued"] == pytest.approx(exchanges.queued_ms.sum())
    transfer = exchanges.request_transfer_ms.sum() + exchanges.response_transfer_ms.sum()
    assert totals["transfer"] == pytest.approx(transfer)
    of_brokers = totals.drop(["queued", "transfer", "network"]).sum()
    assert of_brokers == pytest.approx(exchanges.broker_ms.clip(lower=0).sum(), rel=1e-3)
    assert totals["beyond what was asked"] == pytest.approx(exchanges.excess_ms.clip(lower=0).sum())
    polls = exchanges[exchanges.hold == "timeout"]
    assert totals["waited as asked"] >= (polls.broker_ms - polls.excess_ms).sum() > 0
    assert {"throttled", "network", "rebalance", "until data came"} <= set(totals.index)


def test_outliers_are_no_long_polls(tables: dict[str, pa.Table], exchanges: pd.DataFrame) -> None:
    found = figure_rows.outliers(figure_rows.slowest(tables["exchanges"], tables["fetches"])).to_pandas()
    assert len(found) == figure_rows.OUTLIERS
    assert found.slow_ms.is_monotonic_decreasing
    waits = exchanges.hold.isin(["timeout", "data", "rebalance"]) | (exchanges.api == "Fetch")
    slow = exchanges.excess_ms.where(
        exchanges.excess_ms.notna(), (exchanges.latency_ms - exchanges.queued_ms.fillna(0)).mask(waits)
    )
    expected = slow.dropna().sort_values(ascending=False).head(figure_rows.OUTLIERS)
    assert found.slow_ms.to_numpy() == pytest.approx(expected.to_numpy())
    longest = exchanges.dropna(subset=["latency_ms"]).sort_values("latency_ms").iloc[-1]
    assert longest.hold == "timeout"
    assert longest.exchange_id not in set(found[found.slow_ms > 100].exchange_id)


def test_throughput_has_all_bytes(found: Gathering, exchanges: pd.DataFrame) -> None:
    made = figure_rows.throughput(found.throughput, found.every).to_pandas()
    for column in ("request_bytes", "response_bytes"):
        assert made[column].sum() == exchanges[column].fillna(0).sum()
    assert made.exchanges.sum() == len(exchanges)
    assert set(made.api) <= set(exchanges.api) | {OTHERS}
    assert OTHERS in set(made.api)


def test_versions_and_holds(found: Gathering, exchanges: pd.DataFrame) -> None:
    used = figure_rows.versions(found.versions).to_pandas()
    known = exchanges[exchanges.api_version.notna()]
    expected = known.groupby(["client_id", "api", "api_version"], dropna=False).size()
    assert used.set_index(["client_id", "api", "api_version"]).exchanges.to_dict() == expected.to_dict()
    held = figure_rows.holds(found.holds, 1.0).to_pandas()
    known = exchanges[exchanges.hold.notna() & exchanges.broker_ms.notna()]
    assert held.groupby(["api", "hold"]).exchanges.sum().to_dict() == known.groupby(["api", "hold"]).size().to_dict()


def test_sessions_over_time() -> None:
    tables = kdissect.open(CAPTURES / "k4_session_eviction.pcap").tables(READ)
    figures = report(tables, "a.pcap").figures
    alive = figures["sessions-alive"].table.to_pandas()
    sessions = tables["fetch_sessions"].to_pandas()
    created = sessions[~sessions.left_censored.astype(bool)].groupby("broker").size()
    found = alive.groupby("broker")[["created", "evicted", "refused"]].sum()
    assert found.created[found.created > 0].to_dict() == created.to_dict()
    assert found.evicted.sum() == (sessions.end_reason == "evicted").sum() > 0
    assert found.refused.sum() == tables["fetches"]["session_outcome"].to_pylist().count("refused") > 0
    epochs = figures["epochs"].table.to_pandas()
    per_session = epochs.groupby("session_key").size()
    assert per_session.max() <= 2 * session_rows.POINTS
    assert len(per_session) <= session_rows.CHOSEN
    requests = sessions.set_index("session_key").requests
    short = per_session[requests[per_session.index] <= session_rows.POINTS]
    assert short.to_dict() == tables["fetches"].to_pandas().groupby("session_key").size()[short.index].to_dict()
    frames = tables["exchanges"].to_pandas().set_index("exchange_id").request_frame
    assert (epochs.request_frame.to_numpy() == frames[epochs.exchange_id].to_numpy()).all()


@pytest.mark.parametrize("span", [0.0, 0.0004, 0.9, 3.0, 59.0, 86_000.0, 4e6])
def test_buckets_are_round_and_few(span: float) -> None:
    every = bucket_seconds(1_700_000_000_000_000, 1_700_000_000_000_000 + round(span * 1e6))
    assert span / every < BUCKETS
    assert span / every > BUCKETS / 5 or every == 0.001


def test_a_large_capture_makes_no_larger_rows() -> None:
    """Half a million exchanges of 5,000 clients: what goes into the page stays within its bounds."""
    n, random = 500_000, np.random.default_rng(7)
    at = 1_700_000_000_000_000 + np.sort(random.integers(0, 3_600_000_000, n))
    empty = {name: schema.empty_table() for name, schema in SCHEMAS.items()}
    words = pa.array([f"client-{i}" for i in range(5000)])
    columns = {
        "exchange_id": pa.array(np.arange(n).astype(str)).cast(pa.string()),
        "api": pa.array(["Fetch", "Produce"] * (n // 2)),
        "api_version": pa.array(random.integers(0, 17, n), pa.int32()),
        "client_id": words.take(pa.array(random.integers(0, 5000, n))),
        "latency_ms": pa.array(random.lognormal(1, 3, n)),
        "broker_ms": pa.array(random.lognormal(1, 3, n)),
        "request_first_at": pa.array(at, pa.timestamp("us", tz="UTC")),
        "status": pa.array(["ok"] * n),
    }
    columns["client_ip"] = columns["broker_ip"] = pa.array(["10.0.0.1"] * n)
    exchanges = pa.table(
        {
            field.name: columns.get(
                field.name, pa.array([1] * n if field.type == pa.int64() else [None] * n, field.type)
            )
            for field in SCHEMAS["exchanges"]
        }
    )
    found = Gathering()
    for begin in range(0, n, 50_000):
        found.add_rows({**empty, "exchanges": exchanges.slice(begin, 50_000)})
    every = found.every
    pairs = found.by_pair.table()
    sizes = {
        "heat": heat(found).num_rows,
        "latency": figure_rows.by_api_and_client(pairs).num_rows,
        "parts": figure_rows.time_parts(found.spent, every).num_rows,
        "throughput": figure_rows.throughput(found.throughput, every).num_rows,
        "outliers": found.slowest.num_rows if found.slowest is not None else 0,
        "versions": figure_rows.versions(found.versions).num_rows,
        "budget": found.budget.rows(every).num_rows,
    }
    assert sizes["heat"] <= figure_rows.CELLS
    assert sizes["latency"] == figure_rows.LINES
    assert sizes["parts"] <= figure_rows.CELLS
    assert sizes["throughput"] <= BUCKETS * (figure_rows.SERIES + 1)
    assert sizes["outliers"] == figure_rows.OUTLIERS
    assert sizes["versions"] <= figure_rows.LINES * 20
    assert 0 < sizes["budget"] <= budget_chart.CLIENTS * budget_chart.STRETCHES
    # Everything was counted, though too many clients are told apart by no more than the first of them.
    assert sum(pairs["exchanges"].to_pylist()) == n
    for counted in (found.heat_of_all, found.heat_of_clients, found.versions, found.clients, found.axis):
        assert sum(counted.totals()["exchanges"].to_pylist()) == n
    assert OTHERS in pairs["client_id"].to_pylist()
    assert not found.budget.whole


def test_the_time_axis_counts_everything_once(found: Gathering, exchanges: pd.DataFrame) -> None:
    axis = time_axis.time_axis(found.axis, found.every)
    begun = exchanges[exchanges["request_first_at"].notna()]
    assert sum(axis["exchanges"].to_pylist()) == len(begun)
    assert sum(axis["errors"].to_pylist()) == (begun["status"] == "error").sum()
    parts = sum(sum(axis[owner].to_pylist()) for owner in time_axis.OWNERS)
    known = begun[["broker_ms", "queued_ms", "request_transfer_ms", "response_transfer_ms"]].astype(float).fillna(0)
    assert parts == pytest.approx(known.clip(lower=0).to_numpy().sum(), rel=1e-6)


def test_failures_and_connections_in_trouble_first(tables: dict[str, pa.Table], exchanges: pd.DataFrame) -> None:
    failed = time_axis.failures(tables["exchanges"])
    assert failed.num_rows == min((exchanges["status"] == "error").sum(), time_axis.ERRORS)
    panel = time_axis.network(time_axis.troubled(tables["connections"])).to_pylist()
    resets = [row["end_reason"] == "rst" for row in panel]
    assert resets == sorted(resets, reverse=True)
    assert len(panel) <= time_axis.TROUBLED


def test_budgets_of_clients_are_those_of_the_analysis(tables: dict[str, pa.Table]) -> None:
    """By stretches of one grid they add up to what `budget` says of the same span; outside nobody was connected."""
    every = gathered(tables).every
    found = budget_chart.client_budgets(tables, every).to_pandas()
    assert found.client_id.nunique() == budget_chart.CLIENTS
    assert (found.groupby("client_id")["at"].nunique() == found["at"].nunique()).all()
    stretch = (found["until"] - found["at"]).dt.total_seconds() * 1000
    assert found[list(budget_chart.BOXES)].sum(axis=1).to_numpy() == pytest.approx(stretch.to_numpy())
    whole = kdissect.open(CAPTURES / CAPTURE).analysis.budget().to_pandas().set_index("subject")
    summed = found.groupby("client_id")[list(budget_chart.BOXES)].sum()
    for box in sorted({*BOXES} - {"gone_ms"}):
        mine = summed[box.removesuffix("_ms")]
        assert mine.to_numpy() == pytest.approx(whole.loc[mine.index, box].to_numpy(), abs=0.1), box


def test_nobodys_time_and_a_late_answer() -> None:
    empty = {name: schema.empty_table() for name, schema in SCHEMAS.items()}
    assert budget_chart.client_budgets(empty, 0.001).num_rows == 0
    at = pd.Timestamp("2026-11-21T04:20:00Z")
    late = pa.Table.from_pylist(
        [{"exchange_id": "3f2a0123456789ab:0", "connection_id": "3f2a0123456789ab", "client_id": "a", "api_key": 0,
          "broker": "1", "network_kind": "handshake", "request_first_at": at,
          "response_last_at": at + pd.Timedelta(hours=1), "broker_ms": 3.6e6}],
        schema=SCHEMAS["exchanges"],
    )  # fmt: skip
    found = budget_chart.client_budgets({**empty, "exchanges": late}, 0.001)
    assert found.num_rows == budget_chart.STRETCHES
    assert sum(found["broker"].to_pylist()) == pytest.approx(budget_chart.STRETCHES)


def test_flows_hold_all_bytes(tables: dict[str, pa.Table], found: Gathering) -> None:
    made = found.flows.rows(found.every).to_pandas()
    for way, name in (("writes", "produce_partitions"), ("reads", "fetch_partitions")):
        assert made[made.way == way].bytes.sum() == tables[name]["record_bytes"].to_pandas().fillna(0).sum() > 0
        assert len(made[made.way == way].groupby(["client_id", "topic"])) <= (flows.MOST + 1) ** 2
    assert len(made) <= flows.STEPS_OF_FLOWS
    assert (made.bytes > 0).all()


def traffic(*moved: tuple[str, str | None, str | None, int]) -> dict[str, pa.Table]:
    """Requests that moved bytes: way, client, topic, bytes; all at one time."""
    at = pd.Timestamp("2026-11-21T04:20:00Z")
    part = {name: SCHEMAS[name].empty_table() for pair in flows.OWNERS.items() for name in (pair[0], pair[1][0])}
    for partitions, (owner, way) in flows.OWNERS.items():
        mine = [(f"3f2a0123456789ab:{n}", *row[1:]) for n, row in enumerate(moved) if row[0] == way]
        part[owner] = pa.Table.from_pylist(
            [{"exchange_id": name, "client_id": client, "requested_at": at} for name, client, _, _ in mine],
            schema=SCHEMAS[owner],
        )
        part[partitions] = pa.Table.from_pylist(
            [{"exchange_id": name, "topic": topic, "record_bytes": size} for name, _, topic, size in mine],
            schema=SCHEMAS[partitions],
        )
    return part


def test_small_flows_are_drawn_together() -> None:
    writers = [("writes", f"client-{n:02}", f"topic-{n % 10}", 100 + n) for n in range(30)]
    brokers = [("reads", "broker-2-fetcher-0", "topic-9", 7), ("reads", "broker-3-fetcher-1", "topic-9", 5)]
    others = [("reads", None, "topic-9", 10_000), ("reads", "idle", "topic-9", 0), ("reads", "new", None, 3)]
    counted = flows.Flows()
    part = traffic(*writers, *brokers, *others)
    late = part.pop("produces")
    counted.add_rows(part)  # a request whose answer waits for followers is told later than its partitions
    counted.add_rows({"produces": late})
    found = counted.rows(1.0).to_pandas()
    writes, reads = (found[found.way == way] for way in ("writes", "reads"))
    assert set(writes.client_id) == {OTHERS, *(f"client-{n}" for n in range(22, 30))}
    assert writes.topic.nunique() == flows.MOST + 1
    assert writes.bytes.sum() == sum(size for _, _, _, size in writers)
    assert reads.set_index("client_id").bytes.to_dict() == {figure_rows.NONE: 10_000, flows.BROKERS: 12, "new": 3}
    assert reads.set_index("client_id").topic["new"] == OTHERS
    assert flows.Flows().rows(1.0).num_rows == 0


def test_counts_do_not_depend_on_parts_and_stay_few() -> None:
    """However rows are cut into parts, and however often buckets had to grow, sums stay; keys beyond what there is room
    for are put together, those with least."""
    random = np.random.default_rng(5)
    n = 20_000
    at = 1_700_000_000_000_000 + np.sort(random.integers(0, 7_200_000_000, n))
    table = pa.table({"name": pa.array(random.choice(["a", "b", None], n)), "n": pa.array(np.ones(n, np.int64))})
    made = []
    for room, size in ((100_000, n), (1200, 700), (1200, 7000)):
        counted = Counted(["name"], ["n"], room)
        for begin in range(0, n, size):
            counted.add(table.slice(begin, size), at[begin : begin + size])
        made.append(counted.rows(300.0).to_pandas())
        assert counted.totals().to_pandas().set_index("name")["n"].sum() == n
    assert made[0].equals(made[1])
    assert made[0].equals(made[2])
    crowd = Counted(["name"], ["n"], 300)
    names = [f"client-{i}" for i in range(1000)]
    crowd.add(pa.table({"name": names, "n": pa.array(np.arange(1000))}), np.full(1000, at[0]))
    kept = crowd.totals().to_pandas().set_index("name")["n"]
    assert len(kept) < 300
    assert kept.sum() == sum(range(1000))
    assert kept["client-999"] == 999


def test_fetches_told_before_their_exchanges_are_theirs(tables: dict[str, pa.Table]) -> None:
    """The analysis tells why fetches waited before it tells of their exchanges, which may come parts later."""
    whole, bit_by_bit = gathered(tables), Gathering()
    first = {name: table for name, table in tables.items() if name not in ("exchanges", "connections")}
    bit_by_bit.add_rows(first)
    for begin in range(0, tables["exchanges"].num_rows, 100):
        bit_by_bit.add_rows({"exchanges": tables["exchanges"].slice(begin, 100)})
    for of in (lambda one: figure_rows.outliers(one.slowest), lambda one: figure_rows.time_parts(one.spent, 1.0),
               lambda one: one.by_pair.table(), lambda one: one.sessions.alive(1.0),
               lambda one: one.sessions.creators()):  # fmt: skip
        assert of(bit_by_bit).to_pydict() == of(whole).to_pydict()


def test_stretches_hold_everything_and_are_few() -> None:
    """Sums do not depend on how many buckets lie in a stretch, nor does any row lie outside of its stretch."""
    random = np.random.default_rng(3)
    bucket = random.integers(1_700_000, 1_700_090, 5000)
    bucket[:10] = -1
    table = pa.table({"name": random.choice(["a", "b", "c"], 5000), "step": random.integers(0, 40, 5000),
                      "ms": random.random(5000), "count": np.ones(5000, np.int64)})  # fmt: skip
    for most in (10, 150, 1000, 100_000):
        made = stretched(table, bucket, 250_000, ["name", "step"], ["ms", "count"], most).to_pandas()
        assert len(made) <= max(most, 3 * 40 * 2)
        assert made["count"].sum() == 5000
        assert made["ms"].sum() == pytest.approx(sum(table["ms"].to_pylist()))
        assert made[made["at"].isna()]["count"].sum() == 10
        known = made.dropna()
        length = (known["until"] - known["at"]).unique()
        assert len(length) == 1
        assert known["at"].min() == pd.Timestamp(1_700_000 * 250_000, unit="us", tz="UTC")
    fine = stretched(table, bucket, 250_000, [], ["count"]).to_pandas().dropna()
    assert fine["count"].tolist() == np.bincount(bucket[10:] - 1_700_000).tolist()


def test_quantiles_of_a_stretch(tables: dict[str, pa.Table], exchanges: pd.DataFrame) -> None:
    found = gathered(tables)
    listed = figure_rows.by_api_and_client(found.by_pair.table())
    steps, lines = time_axis.latency_steps(found.steps, listed, 1.0).to_pandas(), listed.to_pandas()
    known = exchanges[exchanges["latency_ms"].notna()]
    for line, mine in steps.groupby("line"):
        api, client = lines.loc[line, ["api", "client_id"]]
        pair = known[(known["api"] == api) & (known["client_id"].fillna("") == (client or ""))]
        assert mine["exchanges"].sum() == len(pair)
        assert (
            mine["to_ms"].max()
            >= pair["latency_ms"].max()
            > mine["to_ms"].max() / 10 ** (1 / figure_rows.STEPS) * 0.999
        )
    assert set(steps["line"]) == set(lines.index[lines["p50_ms"].notna()])

"""A capture that is watched: when it has ended, figures and metrics are those of its tables, to the unit."""

from __future__ import annotations

import itertools
import math
import urllib.request
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

import kdissect
from kdissect.live import watch
from kdissect.live.labels import EDGES_MS
from kdissect.live.metrics import Server
from kdissect.live.metrics_server import open_port
from kdissect.live.running_figures import Figures
from kdissect.live.source import TICK_S, open_source
from kdissect.live.watch import Watch
from tests.bench.test_day import Days

NAMES = ("k4_session_eviction.pcap", "era_2_8_2.pcap", "field_loss1.pcap", "field_snap96.pcap", "raw_errors.pcap")


def watched(path: Path, tick_s: float = TICK_S) -> Figures:
    source = open_source([str(path)], None, (), None, once=True)
    source.tick_s = tick_s
    figures = Figures()
    Watch(source, figures).run()
    source.close()
    return figures


def scraped(figures: Figures) -> list[Sample]:
    """What a Prometheus gets."""
    server = Server(open_port("127.0.0.1:0"), figures)
    try:
        asked = urllib.request.Request(server.url, headers={"Accept": "application/openmetrics-text"})
        with urllib.request.urlopen(asked) as answer:
            assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
            text = answer.read().decode()
    finally:
        server.close()
    return [sample for family in text_string_to_metric_families(text) for sample in family.samples]


def named(samples: list[Sample], name: str, *labels: str) -> dict[tuple[str, ...], float]:
    return {tuple(one.labels[label] for label in labels): one.value for one in samples if one.name == name}


@pytest.mark.parametrize("often", [False, True], ids=["", "shed-often"])
@pytest.mark.parametrize("name", NAMES)
def test_metrics_are_the_tables_counts(name: str, often: bool, captures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`often`: books are shed and rows handed on as often as can be, so that all that is carried is carried."""
    if often:
        monkeypatch.setattr(watch, "SHED_NS", -1)
        monkeypatch.setattr(watch, "SLOT_BYTES", 1 << 17)
    samples = scraped(watched(captures / name, tick_s=0.0 if often else TICK_S))
    tables = kdissect.open(captures / name).tables(["exchanges", "fetch_sessions", "problems", "capture_quality"])
    exchanges = tables["exchanges"].to_pylist()

    def text(value: str | None) -> str:
        return value or "unknown"

    assert named(samples, "kdissect_exchanges_total", "api", "status") == Counter(
        (text(row["api"]), row["status"]) for row in exchanges
    )
    assert named(samples, "kdissect_errors_total", "api", "error") == Counter(
        (text(row["api"]), row["error"]) for row in exchanges if row["status"] == "error"
    )
    for label, column in (("client", "client_id"), ("api", "api"), ("broker", "broker")):
        counts = Counter(row[column] or "(unknown)" for row in exchanges)
        found = named(samples, f"kdissect_{label}_exchanges_total", label)
        if label == "broker":  # a name that a later message tells is known from then on
            assert sum(found.values()) == counts.total()
        else:
            assert found == {(key,): count for key, count in counts.items()}
    sessions = Counter((row["broker"], row["end_reason"]) for row in tables["fetch_sessions"].to_pylist())
    assert named(samples, "kdissect_fetch_sessions_ended_total", "broker", "reason") == sessions
    problems = Counter(tables["problems"]["kind"].to_pylist())
    assert named(samples, "kdissect_problems_total", "kind") == {(kind,): n for kind, n in problems.items()}
    missing = pc.sum(tables["problems"].filter(pc.field("kind") == "missing_bytes")["bytes"]).as_py() or 0
    assert named(samples, "kdissect_missing_bytes_total") == {(): missing}
    packets = [q["value"] for q in tables["capture_quality"].to_pylist() if q["measure"] == "packets"]
    assert named(samples, "kdissect_packets_total") == {(): sum(packets)}


def test_histograms_are_those_of_the_table(captures: Path) -> None:
    path = captures / NAMES[0]
    samples = scraped(watched(path))
    table = kdissect.open(path).pandas("exchanges")
    bounds = [*(EDGES_MS / 1000).tolist(), math.inf]
    found = {
        (one.labels["api"], one.labels["part"], float(one.labels["le"])): one.value
        for one in samples
        if one.name == "kdissect_api_seconds_bucket"
    }
    compared = 0
    for (api, rows), (part, column) in itertools.product(
        table.groupby("api"), (("latency", "latency_ms"), ("network", "network_ms"), ("queued", "queued_ms"))
    ):
        values = rows[column].dropna().to_numpy(dtype=np.float64)
        if len(values):
            expected = [float((values <= bound * 1000).sum()) for bound in bounds]
            assert [found[api, part, bound] for bound in bounds] == expected
            compared += 1
    assert compared > 10
    fetches = kdissect.open(path).pandas("fetches")
    own = fetches["excess_ms"].fillna(fetches["broker_ms"].where(~fetches["hold"].isin(["timeout", "data"]))).dropna()
    assert found["Fetch", "broker", math.inf] == len(own)


def test_a_label_is_text(captures: Path) -> None:
    """Control characters of a client id stand there escaped, and the page is still one."""
    figures = Figures()
    with figures.lock:
        figures.statuses["Fetch", "ok"] += 1
        figures.of["client"].places(pa.array(['a"\n\x1b[2J\\'] * 3))
    assert ('a"\\u000a\\u001b[2J\\',) in named(scraped(figures), "kdissect_client_exchanges_total", "client")


def test_connections_without_packets_are_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of live traffic only: connections whose end nobody captured do not stay for ever, and are counted even so."""
    days = Days()
    path = tmp_path / "long.pcap"
    copies = 14
    path.write_bytes(b"".join([days.header, *(days.copy(n) for n in range(copies))]))
    monkeypatch.setattr(watch, "IDLE_NS", (days.span_s + 1) * 1_000_000_000)
    monkeypatch.setattr(watch, "SLOT_BYTES", 1 << 20)
    source = open_source([str(path)], None, (), None, once=True)
    figures = Figures()
    source.patient, source.tick_s = False, 0.0
    watching = Watch(source, figures)
    known, tick = [0], figures.tick

    def told(*args, **kwargs):  # type: ignore[no-untyped-def]
        known.append(len(watching._books.ledger.connections))
        tick(*args, **kwargs)

    figures.tick = told  # type: ignore[method-assign]
    watching.run()
    tables = kdissect.open(path).tables(["exchanges", "connections"])
    statuses = zip(*(tables["exchanges"][name].to_pylist() for name in ("api", "status")), strict=True)
    assert figures.statuses == Counter(statuses)
    assert figures.connections == tables["connections"].num_rows
    opened = Counter(tables["connections"]["end_reason"].to_pylist())["open"]
    assert opened == 4 * copies
    early, late = known[: len(known) // 2], known[len(known) // 2 :]
    assert max(late) < max(early) + copies, "half of those that stayed open would be twice as many"

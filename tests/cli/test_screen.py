"""The first screen: what it says, how wide, how long."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import kdissect
from kdissect.cli.printing import screen
from kdissect.summary import summarize
from tests.cli.standin import CONNECTION, connection, exchange, rows, small
from tests.conftest import ROOT

UNREADABLE = ("field_empty.pcap", "field_half_header.pcap", "field_wrong_magic.pcap")
RECORDED = [
    path
    for path in sorted((ROOT / "captures").iterdir())
    if (path.with_name(path.name.split(".")[0] + ".toml").exists() and path.suffix != ".toml")
    and path.name not in UNREADABLE
    and not path.name.endswith((".log", ".log.zst", ".json", ".jsonl.zst"))
]


def text(width: int = 100, **options: object) -> str:
    lines = screen.render(summarize(small()), ["stand.pcap"], width, **options)  # type: ignore[arg-type]
    return "\n".join(line.plain for line in lines)


def test_says_who_what_how_slow_and_what_next() -> None:
    seen = text()
    assert "2026-11-21 04:20:01 to 04:20:06 UTC (5.00 s)" in seen
    assert "42 packets, 2 connections (1 Kafka), 1 broker, 1 client, 5 exchanges" in seen
    assert seen.index("never reuses a fetch session") < seen.index("Something small")
    fetch = next(line for line in seen.splitlines() if line.startswith("Fetch  "))
    assert fetch.split()[:3] == ["Fetch", "3", "v12"]
    assert "500 ms" in fetch
    assert "33%" in fetch
    assert "NOT_LEADER_OR_FOLLOWER" in seen
    assert "apache-kafka-java 4.3.1" in seen
    assert "missing_bytes              1  1.45 kB  bytes that were sent and never captured" in seen
    assert "4 of 5 exchanges read whole (1 pending)" in seen
    assert "Connections of other protocols: 1 TLS." in seen
    assert "kdissect show stand.pcap 3f2a:2" in seen, "the slowest that is no long poll"
    assert "kdissect stand.pcap --table exchanges --where \"status = 'error'\"" in seen


def test_connections_without_a_byte_are_no_other_protocol() -> None:
    """Refused or opened for nothing: they say nothing of what the other end speaks."""
    tables = small()
    bare = {"is_kafka": False, "protocol": None, "client_id": None}
    more = [connection("4" * 16, bytes=0, **bare), connection("5" * 16, bytes=0, **bare), connection("6" * 16, **bare)]
    tables["connections"] = pa.concat_tables([tables["connections"], rows("connections", more)])
    seen = "\n".join(line.plain for line in screen.render(summarize(tables), ["stand.pcap"], 200))
    assert "Connections of other protocols: 1 TLS, 1 unknown. 2 connections carried no data." in seen


def test_one_of_a_measure_is_not_many() -> None:
    tables = small()
    for number, said in ((1, "1 Kafka connection began"), (2, "2 Kafka connections began")):
        quality = {"capture": "stand.pcap", "measure": "connections_without_start", "value": float(number)}
        lines = screen.render(summarize(tables | {"capture_quality": rows("capture_quality", [quality])}), ["a"], 200)
        assert any(f"{said} before the capture." in line.plain for line in lines)


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_fits_the_width(width: int) -> None:
    seen = text(width)
    tables = [line for line in seen.splitlines() if not line.startswith("  kdissect ")]
    assert max(map(len, tables)) <= width
    assert any(line.startswith("Fetch") and "3" in line for line in seen.splitlines())


@pytest.mark.parametrize("width", [40, 80, 120])
def test_at_most_fifty_lines(width: int) -> None:
    many = small()
    many["exchanges"] = rows("exchanges", [exchange(n, f"Api{n}", 1.0, client_id=f"client-{n}") for n in range(90)])
    many["connections"] = rows(
        "connections", [connection(f"{n:016x}", broker=str(n), client_id=f"client-{n}") for n in range(90)]
    )
    many["findings"] = rows(
        "findings", [{"id": "x", "severity": "low", "text": "A long sentence. " * 12, "count": n} for n in range(30)]
    )
    many["problems"] = rows("problems", [{"capture": "a", "kind": f"kind_{n}", "detail": ""} for n in range(30)])
    lines = screen.render(summarize(many), ["stand.pcap"], width)
    taken = sum(max(1, -(-line.cell_len // width)) for line in lines)
    assert taken <= screen.LINES
    assert any("more" in line.plain for line in lines)
    assert len(screen.render(summarize(many), ["stand.pcap"], width, top=80)) > 200


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.name)
def test_at_most_fifty_lines_on_every_recorded_capture(path: Path) -> None:
    summary = kdissect.open(path).summary()
    for width in (40, 80, 100):
        lines = screen.render(summary, [f"captures/{path.name}"], width)
        assert sum(max(1, -(-line.cell_len // width)) for line in lines) <= screen.LINES
        assert max(line.cell_len for line in lines if not line.plain.startswith("  kdissect ")) <= width


def test_a_capture_without_kafka() -> None:
    lines = screen.render(summarize({}), ["a.pcap"], 80)
    assert any("No Kafka exchange" in line.plain for line in lines)


def test_ids_are_as_long_as_needed() -> None:
    summary = summarize(small())
    assert summary.id_digits == 4
    assert summary.short_id(f"{CONNECTION}:12") == "3f2a:12"

"""The first screen: what it says, how wide, how long."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

import kdissect
from kdissect.cli.printing import blocks, screen
from kdissect.summary import Summary, summarize
from tests.cli.standin import CONNECTION, START, connection, exchange, rows, small
from tests.conftest import ROOT

UNREADABLE = ("field_empty.pcap", "field_half_header.pcap", "field_wrong_magic.pcap")
RECORDED = [
    path
    for path in sorted((ROOT / "captures").iterdir())
    if (path.with_name(path.name.split(".")[0] + ".toml").exists() and path.suffix != ".toml")
    and path.name not in UNREADABLE
    and not path.name.endswith((".log", ".log.zst", ".json", ".jsonl.zst"))
]


def command(line: str) -> bool:
    """Commands to paste are not broken into lines; a terminal does that."""
    return line.strip().startswith("kdissect ")


def text(width: int = 100, **options: object) -> str:
    lines = screen.render(summarize(small()), ["stand.pcap"], width, **options)  # type: ignore[arg-type]
    return "\n".join(line.plain for line in lines)


def test_says_who_what_how_slow_and_what_next() -> None:
    seen = text()
    assert "2026-11-21 04:20:01 to 04:20:06 UTC (5.00 s)" in seen
    assert "42 packets, 2 connections (1 Kafka), 1 broker, 1 client, 5 exchanges" in seen
    assert seen.index("never reuses a fetch session") < seen.index("something small")
    fetch = next(line for line in seen.splitlines() if line.startswith("Fetch  "))
    assert fetch.split()[:3] == ["Fetch", "3", "v12"]
    assert "500 ms" in fetch
    assert "33%" in fetch
    assert "NOT_LEADER_OR_FOLLOWER" in seen
    assert "apache-kafka-java 4.3.1" in seen
    assert "missing_bytes              1  1.45 kB  bytes that were sent and never captured" in seen
    assert "4 of 5 exchanges read whole (1 pending)" in seen
    assert "Connections of other protocols: 1 TLS." in seen
    assert "kdissect why stand.pcap 1" in seen
    assert "kdissect slowest stand.pcap" in seen
    assert "kdissect errors stand.pcap" in seen


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
    assert max(len(line) for line in seen.splitlines() if not command(line)) <= width
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
        assert max(line.cell_len for line in lines if not command(line.plain)) <= width


def test_a_capture_without_kafka() -> None:
    lines = screen.render(summarize({}), ["a.pcap"], 80)
    assert any("No Kafka exchange" in line.plain for line in lines)


def test_ids_are_as_long_as_needed() -> None:
    summary = summarize(small())
    assert summary.id_digits == 4
    assert summary.short_id(f"{CONNECTION}:12") == "3f2a:12"


def test_long_polls_stay_where_versions_leave() -> None:
    head = next(line for line in text(80).splitlines() if line.startswith("API"))
    assert "long poll" in head
    narrow = next(line for line in text(44).splitlines() if line.startswith("API"))
    assert "versions" not in narrow
    assert "long poll" in narrow


def test_a_line_never_takes_the_place_of_the_row_that_it_hides() -> None:
    tables = small()
    for count in range(3, 40):
        many = [exchange(n, "Produce", 1.0, client_id=f"client-{n:02}") for n in range(count)]
        tables["exchanges"] = rows("exchanges", many)
        tables["connections"] = rows("connections", [connection(f"{n:016x}", broker=str(n)) for n in range(count)])
        shown = [line.plain for line in screen.render(summarize(tables), ["stand.pcap"], 100)]
        assert not [line for line in shown if line.startswith("  1 more")]


def test_clients_in_trouble_stand_before_followers() -> None:
    tables = small()
    busy = [exchange(n, client_id="broker-2-fetcher-0", error_code=0) for n in range(50)]
    followers = [exchange(90, "Fetch", client_id="broker-3-fetcher-0", status="error", error="X", error_code=5)]
    fine = [exchange(100 + n, "Produce", client_id="fine") for n in range(5)]
    lost = [exchange(200, "Produce", 3000.0, client_id="slow")]
    failing = [exchange(300, "Produce", 2.0, client_id="failing", status="error", error="X", error_code=5)]
    tables["exchanges"] = rows("exchanges", [*busy, *followers, *fine, *lost, *failing])
    order = [client.client_id for client in summarize(tables).clients]
    assert order == ["failing", "slow", "broker-3-fetcher-0", "fine", "shop", "broker-2-fetcher-0"] or order == [
        "failing", "slow", "broker-3-fetcher-0", "fine", "broker-2-fetcher-0",
    ]  # fmt: skip
    client = summarize(tables).clients[1]
    assert (client.slowest_ms, client.slowest_at) == (3000.0, START + timedelta(milliseconds=200))
    line = next(line for line in _shown(tables) if line.startswith("slow "))
    assert "3.00 s  04:20:01.450" in line


def _shown(tables: dict[str, pa.Table], target: str = "stand.pcap", width: int = 100) -> list[str]:
    return [line.plain for line in screen.render(summarize(tables), [target], width)]


@pytest.mark.parametrize("name", ["field_snap96.pcap", "field_to_client.pcap", "field_to_broker.pcap", "tls13.pcap"])
def test_unknown_is_not_none(name: str) -> None:
    lines = screen.render(kdissect.open(ROOT / "captures" / name).summary(), [name], 100)
    seen = "\n".join(line.plain for line in lines)
    assert "  ?  " in seen
    assert ("snap length" in seen) == (name == "field_snap96.pcap")
    rows_of_apis = [line for line in seen.splitlines() if line.startswith(("Fetch ", "Produce "))]
    assert all(line.endswith("?") for line in rows_of_apis)
    assert rows_of_apis or "TLS, not decrypted" in seen


@pytest.mark.parametrize(("unknown", "says"), [(0, "1"), (1, "1"), (2, "1+"), (30, "1+")])
def test_errors_that_were_counted_do_not_vouch_for_those_that_were_not(unknown: int, says: str) -> None:
    """Of 30 exchanges with one error, so many more were not answered."""
    many = [exchange(n, "Produce", 7.0) for n in range(29)]
    many += [exchange(29, "Produce", 7.0, status="error", error="CORRUPT_MESSAGE", error_code=2)]
    many += [exchange(30 + n, "Produce", None, status="unanswered", error_code=None) for n in range(unknown)]
    (line,) = [line for line in _shown({"exchanges": rows("exchanges", many)}) if line.startswith("Produce ")]
    assert line.split()[-1] == says


def test_what_is_sealed_is_unknown() -> None:
    summary = kdissect.open(ROOT / "captures" / "tls13.pcap").summary()
    lines = [line.plain for line in screen.render(summary, ["x.pcap"], 100)]
    assert lines[0] == "Nothing is known of what 5 connections carried: TLS, not decrypted."
    assert lines[2] == "174 packets (37.4 kB), 5 connections, ? brokers, ? clients, ? exchanges"
    assert any("Nothing is known of what 5 connections carried" in line for line in lines)
    assert not any("other protocols" in line for line in lines)


def test_next_begins_with_the_worst_finding() -> None:
    tables = small()
    finding = {
        "id": "x", "severity": "medium", "text": "Bad.", "headline": "bad", "count": 1, "table": "exchanges",
        "filter": "client_id = 'shop'", "first_exchange_id": f"{CONNECTION}:3", "cause": "client",
    }  # fmt: skip
    tables["findings"] = rows("findings", [finding])
    seen = _shown(tables)
    assert seen[0] == "Bad. Cause: clients."
    assert seen[seen.index("Next") + 1] == "  kdissect why stand.pcap 1"
    assert not [line for line in seen[: seen.index("Next")] if "--where" in line], "commands have left the findings"


def test_a_pipe_cannot_be_read_again() -> None:
    tables = small()
    finding = {"id": "x", "severity": "high", "text": "Bad.", "count": 1, "table": "exchanges"}
    tables["findings"] = rows("findings", [finding])
    seen = _shown(tables, "-")
    assert not [line for line in seen if "show -" in line or "kdissect - -" in line]
    assert "tee capture.pcap" in seen[-1]


def test_a_file_behind_standard_input_is_named() -> None:
    path = ROOT / "captures" / "base_tiny.pcap"
    with path.open("rb") as stream:
        done = subprocess.run(
            [sys.executable, "-m", "kdissect", "-"], stdin=stream, capture_output=True, text=True, check=True, cwd=ROOT
        )
    assert f"kdissect slowest {path}" in done.stdout


def test_headlines_are_shown_whole() -> None:
    tables = small()
    long = "words of a long headline " * 5
    tables["findings"] = rows(
        "findings",
        [{"id": "x", "severity": "high", "text": "X.", "headline": f"{long}{n}", "cause": "client", "count": n,
          "table": "exchanges", "incident": n} for n in range(5)],
    )  # fmt: skip
    for width in (80, 100, 200):
        lines = _shown(tables, width=width)
        assert max(map(len, lines)) <= width
        seen = " ".join(" ".join(lines).split())
        assert all(f"{long}{n}" in seen for n in range(5))


def test_of_a_capture_and_its_copy_neither_is_nearer_the_client(tmp_path: Path) -> None:
    tiny, copy = ROOT / "captures" / "base_tiny.pcap", tmp_path / "copy.pcap"
    copy.write_bytes(tiny.read_bytes())
    story = [ROOT / "captures" / "stories" / f"net_delay_{end}.pcap.zst" for end in ("broker", "client")]
    copies, ends = (
        " ".join(line.plain for line in blocks.both_ends(kdissect.open([str(one) for one in given]).summary(), 100))
        for given in ([tiny, copy], story)
    )
    assert copies.startswith("Twice: 31 exchanges seen by base_tiny.pcap and copy.pcap, counted once: 0 us up, 0 us ")
    assert "seen by net_delay_client.pcap.zst (nearer the client) and net_delay_broker.pcap.zst, " in ends


def test_what_happened_when() -> None:
    tables = small()
    tables["exchanges"] = rows("exchanges", [exchange(n * 100, "Produce", 1.0 + n % 7) for n in range(60)])
    seen = "\n".join(_shown(tables))
    assert "rate " in seen
    assert "up to 7.00 ms, at 04:20:0" in seen
    assert "rate " not in "\n".join(_shown(tables, width=60))


def _budget(summary: Summary, width: int = 80) -> list[str]:
    return [line.plain for line in blocks.budget(summary, width).head]


def test_where_the_time_of_a_client_in_trouble_went() -> None:
    """A line below the clients at 80 columns, the largest parts of them first; none on narrow screens."""
    path = ROOT / "captures" / "stories" / "slow_consumer.pcap.zst"
    summary = kdissect.open(path).summary()
    assert _budget(summary) == ["Time of client c3a, 19.6 s: its own 15.0 s, waits as asked 4.42 s."]
    seen = [line.plain for line in screen.render(summary, ["a.pcap"], 80)]
    assert seen.index(next(s for s in seen if s.startswith("Client "))) < seen.index(_budget(summary)[0])
    assert _budget(summary, 79) == []
    assert not [line for line in _shown(small()) if line.startswith("Time of")]


def test_a_budget_stays_within_its_lines() -> None:
    spent = {name: 1000.0 + n for n, name in enumerate(blocks.SPENT)}
    row = {"subject": "x\x1b" * 5000, "wall_ms": sum(spent.values()), **spent}
    lines = _budget(summarize(small())._replace(budget=row))
    assert len(lines) == 1
    assert len(lines[0]) <= 80
    assert "x\\u001bx" in lines[0]
    idle = dict.fromkeys(spent, 0.0) | {"idle_ms": 500.0, "wall_ms": 500.0, "subject": "x"}
    short = dict.fromkeys(spent, 0.0) | {"broker_ms": 99.0, "wall_ms": 99.0, "subject": "x"}
    for row in (idle, short):
        assert _budget(summarize(small())._replace(budget=row)) == []

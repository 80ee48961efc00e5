"""The report as a file: whole or not at all, without secrets, one clear line where it cannot be made."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import io
import json
import re
import subprocess
import sys
import zlib
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

import kdissect
from kdissect.installed_copy import install_command
from kdissect.problems import UsageError
from kdissect.report import document
from kdissect.tables.declaration import SCHEMAS
from tests.conftest import CAPTURES
from tests.report.hostile import SHOWN, hostile_tables


def run(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([sys.executable, "-m", "kdissect", *arguments], capture_output=True, timeout=120)


def test_the_command_writes_one_small_file(tmp_path: Path) -> None:
    done = run("--demo", "--html", str(tmp_path / "report.html"))
    assert (done.returncode, done.stdout) == (0, b"")
    assert re.fullmatch(r"the report \(\d+ kB\) written to .*report\.html\n", done.stderr.decode())
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]
    text = (tmp_path / "report.html").read_text()
    assert len(text) <= 1_500_000
    assert "--demo" in text
    assert not re.search(r"(?:src|href)=[\"']?(?:https?:)?//", text)


def test_standard_output_and_open_files(tmp_path: Path) -> None:
    stream = io.BytesIO()
    written = kdissect.open(CAPTURES / "base_tiny.pcap").report(stream)
    assert written == len(stream.getvalue())
    assert b"base_tiny.pcap" in stream.getvalue()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--demo", "--html", "/nonexistent/report.html"), "cannot write /nonexistent/report.html"),
        (("--demo", "--html", "r.html", "--table", "exchanges"), "--html writes the report alone"),
        (("--demo", "--html", "r.html", "-o", "tables/"), "--html writes the report alone"),
    ],
)
def test_bad_arguments(arguments: tuple[str, ...], said: str) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (2, b"")
    assert said in done.stderr.decode()
    assert done.stderr.count(b"\n") == 1


def test_without_its_packages_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        "kdissect.report.charts_library.find_spec", lambda name: None if name == "vl_convert" else find(name)
    )
    with pytest.raises(UsageError, match=re.escape(install_command("report"))):
        kdissect.open(CAPTURES / "base_tiny.pcap").report(tmp_path / "report.html")
    assert not list(tmp_path.iterdir())


def test_a_capture_that_cannot_be_read_leaves_no_file(tmp_path: Path) -> None:
    done = run(str(CAPTURES / "field_wrong_magic.pcap"), "--html", str(tmp_path / "report.html"))
    assert done.returncode == 1
    assert not list(tmp_path.iterdir())


def unpacked(text: str) -> dict[str, Any]:
    """What the page's script unpacks: its rows, charts and bytes."""
    data = re.search(r'<script type="application/octet-stream" id="data">(.*?)</script>', text, re.DOTALL)
    assert data is not None
    found: dict[str, Any] = json.loads(zlib.decompress(base64.b64decode(data[1])))
    return found


def test_no_credentials_and_no_records(tmp_path: Path) -> None:
    """Of captures whose records and passwords are known: none of them is in the page."""
    capture = kdissect.open(CAPTURES / "sasl_logins.pcap")
    capture.report(tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    raw = (CAPTURES / "sasl_logins.pcap").read_bytes()
    secrets = {match.decode() for match in re.findall(rb"\x00[a-z]+\x00([!-~]{4,40}?)\x00", raw)}
    secrets |= {match.decode() for match in re.findall(rb"[a-z],r=[!-~]{8,60}|p=[A-Za-z0-9+/]{20,90}={0,2}", raw)}
    assert secrets
    inside = text + json.dumps(unpacked(text))
    assert not [secret for secret in secrets if secret in inside]

    path = CAPTURES / "k4_java_classic.pcap"
    kdissect.open(path).report(tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    records = kdissect.open(path).table("records", ["key", "value"], reveal=True).to_pylist()
    values = {v for row in records for v in row.values() if v is not None and len(v) > 7}
    assert values
    inside = text + json.dumps(unpacked(text))
    assert not [v for v in values if v.decode("latin-1") in inside]
    assert not [v for v in values if v[:8].hex(" ") in inside]


def test_what_a_capture_says_stays_text() -> None:
    text = document(hostile_tables(), "a.pcap").decode()
    assert "<script>window" not in text
    assert "<img src=x" not in text
    assert text.count("<!--") == 0
    scripts = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    assert len(scripts) == 1
    library = re.search(r'<script type="application/octet-stream" id="library">(.*?)</script>', text, re.DOTALL)
    assert library is not None
    scripts.insert(0, zlib.decompress(base64.b64decode(library[1])).decode())
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None
    allowed = re.findall(r"&#39;sha256-([^&]*)&#39;", policy[1])
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    assert [one.replace("&#43;", "+") for one in allowed] == hashes
    assert "unsafe-eval" not in policy[1]
    latency = unpacked(text)["figures"]["latency"]
    assert SHOWN in latency["values"][latency["names"].index("client_id")]


@pytest.mark.parametrize("name", ["sweep_391_kraft", "k4_slow_and_throttled", "stories/slow_broker"])
def test_no_capture_makes_a_large_page(name: str) -> None:
    """The recordings with the most to list: exchanges of 60 APIs, hundreds of errors, thousands of exchanges."""
    path = next(CAPTURES.glob(f"{name}.pcap*"))
    stream = io.BytesIO()
    assert kdissect.open(path).report(stream) <= 1_500_000


def test_names_of_any_length_make_no_large_page() -> None:
    """Hundreds of clients, topics and files with names of thousands of letters, which no compression takes away."""
    random = Random(4)
    names = ["".join(random.choices("abcdefghijklmnopqrstuvwxyz0123456789", k=4000)) for _ in range(500)]
    tables = hostile_tables()
    exchange, connection = (tables[name].to_pylist()[0] for name in ("exchanges", "connections"))
    many = [{**exchange, "exchange_id": f"3f2a0123456789ab:{n}", "client_id": name, "broker": name, "status": "error",
             "error": name, "request_file": name} for n, name in enumerate(names)]  # fmt: skip
    tables["exchanges"] = pa.Table.from_pylist(many, schema=SCHEMAS["exchanges"])
    many = [{**connection, "client_id": name, "group_id": name, "broker": name} for name in names]
    tables["connections"] = pa.Table.from_pylist(many, schema=SCHEMAS["connections"])
    page = document(tables, "a.pcap")
    assert 500_000 < len(page) <= 1_500_000
    assert "to keep this file small" in page.decode()
    listed = unpacked(page.decode())["figures"]["clients"]
    assert max(len(one) for one in listed["values"][listed["names"].index("client_id")]) < 300


def test_it_counts_everything_in_any_memory_as_the_first_screen_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of a few hundred rows, and room for fewer sums: nothing is left out, and counts are those of the screen."""
    monkeypatch.setattr("kdissect.engine.extracts.overview.HELD_BACK", 0)
    monkeypatch.setattr("kdissect.engine.extracts.reported.FEW_PACKETS", 100)
    monkeypatch.setattr("kdissect.engine.analysed_run.ROWS_A_TIME", 200)
    monkeypatch.setattr("kdissect.report.observations.PIECE", 100)
    stream = io.BytesIO()
    opened = kdissect.open(CAPTURES / "k4_slow_and_throttled.pcap", memory=256_000_000)
    opened.report(stream)
    assert opened.left_out == []
    figures = unpacked(stream.getvalue().decode())["figures"]
    summary = opened.summary()

    def counts(name: str, key: str, count: str) -> dict[str, int]:
        figure = figures[name]
        columns = [
            one if isinstance(one, list) else [one["of"][at] for at in one["at"]]
            for one in (figure["values"][figure["names"].index(column)] for column in (key, count))
        ]
        return dict(zip(*columns, strict=True))

    answered = {line.name: line.exchanges for line in summary.latencies if line.answered}
    assert counts("latency-by-api", "api", "exchanges") == answered
    assert counts("clients", "client_id", "errors") == {line.client_id: line.errors for line in summary.clients}
    assert counts("errors", "error", "count") == {line.error: line.count for line in summary.errors}
    assert sum(counts("time-axis", "at", "exchanges").values()) == summary.exchanges - summary.statuses["orphan"]


def test_bytes_of_what_findings_and_lists_lead_to() -> None:
    path = CAPTURES / "raw_errors.pcap"
    stream = io.BytesIO()
    opened = kdissect.open(path)
    opened.report(stream)
    text = stream.getvalue().decode()
    found = unpacked(text)["bytes"]
    first = [one["first_exchange_id"] for one in opened.table("findings").to_pylist() if one["first_exchange_id"]]
    assert set(first) <= set(found)
    assert all(f'data-bytes="{one}"' in text for one in found)
    (shown,) = opened.show(first[0])
    assert shown.request is not None
    rows = found[first[0]]["sides"][0]["rows"]
    fields = shown.request.to_pylist()
    assert [row[1] for row in rows] == [field["offset"] for field in fields][: len(rows)]
    assert [row[3] for row in rows] == [field["path"].rsplit(".", 1)[-1] for field in fields][: len(rows)]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("tls13.pcap", "Nothing is known of what 5 connections carried: TLS, not decrypted."),
        ("field_header_only.pcap", "No Kafka exchange in this capture."),
    ],
)
def test_what_could_not_be_read_is_not_called_quiet(name: str, said: str) -> None:
    stream = io.BytesIO()
    kdissect.open(CAPTURES / name).report(stream)
    page = stream.getvalue().decode()
    assert "Nothing stands out." not in page
    assert said in page
    assert '<dd data-tile="time"> s' not in page

"""`kdissect sql` against pandas, on every table; what a query may not do, and those without an end; tables that do not
fit in memory."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import kdissect
from kdissect.cli.main import main
from kdissect.cli.subcommands import asking
from kdissect.cli.subcommands.sealed_database import SealedDatabase
from kdissect.engine.bounds import room
from kdissect.engine.capture import Capture
from kdissect.engine.extracts import delivery_shares
from kdissect.problems import UsageError
from kdissect.tables.declaration import SCHEMAS
from tests.conftest import ROOT

CAPTURE = str(ROOT / "captures" / "k4_python_kafka.pcap")


def asked(capsys: pytest.CaptureFixture[str], query: str) -> list[dict[str, object]]:
    assert main(["sql", CAPTURE, query, "--format", "jsonl"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_every_table_has_its_rows(capsys: pytest.CaptureFixture[str]) -> None:
    opened = kdissect.open(CAPTURE)
    counts = {name: opened.table(name).num_rows for name in SCHEMAS}
    query = " union all ".join(f"select '{name}' as name, count(*) as n from {name}" for name in SCHEMAS)
    assert {row["name"]: row["n"] for row in asked(capsys, query)} == counts
    exchanges = opened.pandas("exchanges")
    found = asked(capsys, "select api, max(latency_ms) as worst from exchanges group by api order by api")
    expected = exchanges.dropna(subset=["api"]).groupby("api")["latency_ms"].max()
    assert {row["api"]: row["worst"] for row in found if row["api"] is not None} == expected.to_dict()


def test_every_row_is_as_in_pandas() -> None:
    opened = kdissect.open(CAPTURE)
    tables = opened.tables()
    for name in SCHEMAS:
        table = tables[name] if name in tables else opened.table(name)
        with asking.answer(opened, f"select * from {name}", memory=None, seconds=60) as (schema, batches):
            rows = pa.Table.from_batches(batches, schema)
        assert rows.column_names == table.column_names
        assert sorted(map(repr, rows.to_pylist())) == sorted(map(repr, table.to_pylist())), name


QUERIES = {
    "select api, count(*) from exchanges group by all": {"exchanges": ["api"]},
    "select count(*) from exchanges where latency_ms > 1 and api = 'Fetch'": {"exchanges": ["api", "latency_ms"]},
    "select e.api, c.bytes from exchanges e join connections c using (connection_id) where c.packets > 3": {
        "exchanges": ["connection_id", "api"], "connections": ["connection_id", "packets", "bytes"],
    },
    "select columns('.*bytes') from connections": {
        "connections": ["bytes", "retransmitted_bytes", "missing_bytes"],
    },
    "select * exclude (bytes) from connections": None,
    "select c from connections c": None,
    "with a as (select * from exchanges) select max(latency_ms) from a where broker = '1'": {
        "exchanges": ["broker", "latency_ms"],
    },
    "select bytes from connections union all select request_bytes from exchanges": {
        "connections": ["bytes"], "exchanges": ["request_bytes"],
    },
    "select api from exchanges where exists (select 1 from connections c where c.client_id = exchanges.client_id)": {
        "exchanges": ["client_id", "api"], "connections": ["client_id"],
    },
    "select api, rank() over (partition by broker order by latency_ms, exchange_id) from exchanges": {
        "exchanges": ["exchange_id", "api", "broker", "latency_ms"],
    },
    "select count(x) from (select distinct api as x, latency_ms from exchanges)": {"exchanges": ["api", "latency_ms"]},
    "select * from exchanges where false": None,
    "select 1 from exchanges where request_first_at > '1990-01-01'": {"exchanges": ["request_first_at"]},
    "select api from exchanges order by latency_ms desc, exchange_id limit 3": {
        "exchanges": ["exchange_id", "api", "latency_ms"],
    },
    "select max(bytes), min(started_at) from connections": {"connections": ["started_at", "bytes"]},
    "from connections select bytes where is_kafka": {"connections": ["is_kafka", "bytes"]},
    "select unnest(fields) from (select ['a'] as fields, api from exchanges)": {"exchanges": []},
}  # fmt: skip
"""Queries, and what they read of tables; None: all columns."""


def test_a_query_gets_the_columns_that_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """And its rows are those of the whole tables."""
    opened = kdissect.open(ROOT / "captures" / "base_tiny.pcap")
    saved: dict[str, list[str]] = {}
    save = Capture.save
    monkeypatch.setattr(
        Capture, "save", lambda self, folder, tables: (saved.update(tables), save(self, folder, tables))
    )
    database = duckdb.connect()
    database.execute("set timezone = 'UTC'")
    for name in ("connections", "exchanges"):
        database.register(name, opened.table(name))
    for query, expected in QUERIES.items():
        saved.clear()
        with asking.answer(opened, query, memory=None, seconds=60) as (schema, batches):
            rows = pa.Table.from_batches(batches, schema)
        whole = database.sql(query)
        assert rows.column_names == whole.columns
        assert sorted(map(repr, zip(*rows.to_pydict().values(), strict=True))) == sorted(map(repr, whole.fetchall()))
        if expected is None:
            assert all(len(columns) >= len(SCHEMAS[name].names) - 1 for name, columns in saved.items()), query
        else:
            read = {name: set(columns) for name, columns in saved.items()}
            assert read == {name: set(columns or SCHEMAS[name].names[:1]) for name, columns in expected.items()}, query


def test_a_column_that_was_not_read_is_no_null() -> None:
    """Should DuckDB ever look at more columns than its plan said, there is no answer."""
    with tempfile.TemporaryDirectory() as folder, SealedDatabase(Path(folder), None, 60) as database:
        read = database.plan("select api from exchanges", {"exchanges": SCHEMAS["exchanges"]}, {"exchanges": ()})
        kdissect.open(CAPTURE).save(folder, read)
        database.show()
        for query in ("select broker from exchanges", "select count(*) from exchanges where latency_ms > 1"):
            with pytest.raises(UsageError, match=r"column (broker|latency_ms) was not read"):
                list(database.answer(query)[1])


def test_columns_that_cost_more_are_there_when_named(capsys: pytest.CaptureFixture[str]) -> None:
    found = asked(capsys, "select count(*) as n from record_batches where crc_ok")
    right = kdissect.open(CAPTURE).table("record_batches", ["crc_ok"], "crc_ok").num_rows
    assert found[0]["n"] == right > 0
    for more, count in ([], 0), (["--verify"], right):
        assert main(["sql", CAPTURE, "select columns('crc_.*') from record_batches", "--format", "jsonl", *more]) == 0
        assert capsys.readouterr().out.count("true") == count


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("select * from exchange", "no table 'exchange' (did you mean 'exchanges'?)"),
        ("select nothing from exchanges", "SQL: Binder Error"),
        ("selec", "SQL: Parser Error"),
        ("select cast(api as int) from exchanges", "SQL: Conversion Error"),
        ("select * from exchange join fetches using (exchange_id)", "exchange"),
        (
            "select [max(request_last_at - request_first_at)] as waits from exchanges",
            "column 'waits' has intervals inside",
        ),
        ("", "SQL: "),
    ],
)
def test_what_is_wrong_is_one_line(query: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sql", CAPTURE, query]) == 2
    said_all = capsys.readouterr().err
    assert said in said_all
    assert said_all.count("\n") == 1


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A capture of its own in the current folder."""
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copy(CAPTURE, tmp_path / "a.pcap"))


FORBIDDEN = [
    "copy (select 1) to 'a.pcap'",
    "copy exchanges to 'a.pcap'",
    "select * from read_text('/etc/passwd')",
    "select * from read_text('a.pcap')",
    "select * from exchanges, read_text('/etc/passwd')",
    "select * from read_csv('/etc/passwd')",
    "select * from '/etc/passwd'",
    "select * from glob('/etc/*')",
    "attach 'new.db'",
    "attach 'new.db' as n; create table n.t as select 1",
    "export database 'exported'",
    "import database 'exported'",
    "install httpfs",
    "load httpfs",
    "load '/tmp/some.duckdb_extension'",
    "select * from 'https://localhost/a.parquet'",
    "set enable_external_access = true",
    "set enable_external_access = true; copy (select 1) to 'a.pcap'",
    "set lock_configuration = false",
    "reset lock_configuration",
    "set memory_limit = '100GB'",
    "pragma threads = 64",
    "set temp_directory = '/tmp'",
    "set allowed_directories = ['/']",
]


@pytest.mark.parametrize("query", FORBIDDEN)
def test_a_query_reaches_nothing_but_the_tables(query: str, copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = copied.read_bytes()
    assert main(["sql", str(copied), query]) == 2
    told = capsys.readouterr()
    assert (told.out, told.err.count("\n")) == ("", 1)
    assert "SQL: " in told.err or "no table" in told.err
    assert [one.name for one in copied.parent.iterdir()] == ["a.pcap"]
    assert copied.read_bytes() == before


def test_no_variable_of_python_is_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sql", CAPTURE, "select * from SCHEMAS"]) == 2
    assert "no table 'SCHEMAS'" in capsys.readouterr().err


def test_files_for_who_allows_them(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written = "copy (select api from exchanges) to 'apis.csv'"
    assert main(["sql", str(copied), written]) == 2
    assert "--allow-files" in capsys.readouterr().err
    assert main(["sql", str(copied), "--allow-files", written]) == 0
    capsys.readouterr()
    query = "select count(*) as n from 'apis.csv' join exchanges using (api)"
    assert main(["sql", str(copied), "--allow-files", query, "--format", "jsonl"]) == 0
    assert json.loads(capsys.readouterr().out)["n"] > 0
    assert main(["sql", str(copied), "--allow-files", "install httpfs"]) == 2
    assert capsys.readouterr().err == "kdissect: SQL: a query installs and loads no extensions\n"
    assert main(["sql", str(copied), "--allow-files", "select * from exchange"]) == 2
    assert "did you mean 'exchanges'?" in capsys.readouterr().err


ENDLESS = [
    "with recursive t(n) as (select 1 union all select n + 1 from t) select count(*) from t",
    "with recursive t(n) as (select 1 union all select n + 1 from t) select n from t where n < 0",
    "select count(*) from range(10000000) a, range(10000000) b, exchanges where a.range + b.range < 0",
]


@pytest.mark.parametrize("query", ENDLESS)
def test_a_query_without_an_end_is_stopped(query: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sql", CAPTURE, "--time-limit", "200ms", query]) == 1
    told = capsys.readouterr()
    assert told.err == "kdissect: SQL: the query was stopped after 0.2 s; --time-limit 30m allows more\n"


@pytest.mark.parametrize("query", ENDLESS[:2])
def test_a_query_is_interrupted(query: str, capsys: pytest.CaptureFixture[str]) -> None:
    timer = threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    assert main(["sql", CAPTURE, query]) == 130
    timer.join()
    assert capsys.readouterr().err == "kdissect: interrupted; no output file was left half-written\n"


@pytest.mark.parametrize("limit", ["0s", "soon"])
def test_time_limits_that_are_none(limit: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sql", CAPTURE, "--time-limit", limit, "select 1"]) == 2
    assert "is no length of time" in capsys.readouterr().err


def test_a_query_that_needs_more_memory_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    query = "select list(range) as all_of_them from range(100000000)"
    assert main(["sql", CAPTURE, "--max-memory", "256MB", query]) == 1
    told = capsys.readouterr()
    assert told.err == "kdissect: SQL: the query needs more memory than there is; --max-memory 4GB allows more\n"


@pytest.fixture
def little(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Options with which next to no rows fit in memory."""
    monkeypatch.setattr(room, "READING", 256_999_000)
    return ["--max-memory", "257MB", "--format", "jsonl"]


def test_rows_that_do_not_fit_are_counted_all(little: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    opened = kdissect.open(CAPTURE)
    at_once = ("findings", "time_budget", "time_ledger", "topic_traffic", "traced", "transactions")
    whole = [name for name in SCHEMAS if name not in at_once]
    query = " union all ".join(f"select '{name}' as name, count(*) as n from {name}" for name in whole)
    assert main(["sql", CAPTURE, query, *little]) == 0
    told = capsys.readouterr()
    counts = {name: opened.table(name).num_rows for name in whole}
    assert {row["name"]: row["n"] for row in map(json.loads, told.out.splitlines())} == counts
    assert told.err == ""


@pytest.mark.parametrize("name", ["findings", "time_budget", "time_ledger", "topic_traffic", "traced", "transactions"])
def test_no_answer_comes_from_a_part_of_a_table(
    name: str, little: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sql", CAPTURE, f"select count(*) from {name}", *little]) == 1
    told = capsys.readouterr()
    assert (told.out, told.err.count("\n")) == ("", 1)
    assert told.err.startswith("kdissect: no answer from a part of a table: rows of the first ")


def test_no_answer_comes_from_a_part_of_deliveries(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are left out where a single partition has more than there is room for."""
    monkeypatch.setattr(delivery_shares, "GATHERED", 1)
    monkeypatch.setattr(delivery_shares, "READING", 256_999_000)
    assert main(["sql", CAPTURE, "select count(*) from deliveries", "--max-memory", "257MB"]) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("kdissect: no answer from a part of a table: the first record batches of each partition")


def test_rows_that_were_left_out_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table without exchanges beside it."""
    monkeypatch.setattr(room, "READING", 256_999_000)
    whole = kdissect.open(CAPTURE).table("records").num_rows
    capture = kdissect.open(CAPTURE, memory=257_000_000, jobs=1)
    kept = capture.table("records").num_rows
    assert capture.left_out[0] == (
        f"the first {kept:,} records fit in 257 MB of memory; {whole - kept:,} more are left out"
    )


def test_queries_whose_tables_are_known_late(capsys: pytest.CaptureFixture[str]) -> None:
    opened = kdissect.open(CAPTURE)
    fetches = opened.table("fetches").num_rows
    joined = "select count(*) as n from exchanges join FETCHES using (exchange_id)"
    assert asked(capsys, joined) == [{"n": fetches}]
    assert asked(capsys, "select * from (pivot Fetches on broker using count(*))")
    assert asked(capsys, "create temp table f as from fetches; select count(*) as n from f") == [{"n": fetches}]
    described = asked(capsys, "describe fetches")
    assert [row["column_name"] for row in described] == SCHEMAS["fetches"].names


@pytest.mark.parametrize("beside", ["", ", (select count(*) from time_budget)", ", (select count(*) from findings)"])
def test_a_pipe_is_read_once(beside: str) -> None:
    query = f"select count(*) as n from exchanges join fetches using (exchange_id){beside}"
    command = [sys.executable, "-m", "kdissect", "sql", "-", query, "--format", "jsonl"]
    done = subprocess.run(command, input=Path(CAPTURE).read_bytes(), capture_output=True, check=True)
    assert json.loads(done.stdout)["n"] == kdissect.open(CAPTURE).table("fetches").num_rows


VALUES = """select interval '1 hour 1.5 seconds' as span, interval '-0.25 seconds' as back, sum(request_bytes) as bytes,
1.5 as half, date '2026-01-02' as day, 'infinity'::timestamptz as never,
timestamp_ns '2026-01-02 03:04:05.123456789' as ns,
'a'::enum('a', 'b') as letter, {'n': 1.5::decimal(4, 2)} as nested, null::interval as unknown from exchanges"""


@pytest.mark.parametrize("form", ["table", "csv", "jsonl", "arrow", "parquet"])
def test_columns_of_one_name_are_told_apart(form: str, tmp_path: Path) -> None:
    """`select *` of a join has the columns of both tables."""
    out = tmp_path / f"rows.{form}"
    assert main(["sql", CAPTURE, "select 1 a, 2 a, 3 a_1, 4 a", "--format", form, "-o", str(out)]) == 0
    named = {"a": 1, "a_2": 2, "a_1": 3, "a_3": 4}
    if form == "table":
        assert out.read_text().split() == [*named, *map(str, named.values())]
    elif form == "csv":
        assert [dict(row) for row in csv.DictReader(io.StringIO(out.read_text()))] == [
            {name: str(n) for name, n in named.items()}
        ]
    elif form == "jsonl":
        assert json.loads(out.read_text()) == named
    elif form == "arrow":
        assert pa.ipc.open_stream(out).read_all().to_pylist() == [named]
    else:
        assert pq.read_table(out).to_pylist() == [named]


def test_values_of_all_types(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    expected = {
        "span": "PT3601.5S", "back": "-PT0.25S", "half": 1.5, "day": "2026-01-02", "never": None,
        "ns": "2026-01-02T03:04:05.123456Z", "letter": "a", "nested": {"n": 1.5}, "unknown": None,
    }  # fmt: skip
    (row,) = asked(capsys, VALUES)
    total = sum(kdissect.open(CAPTURE).table("exchanges")["request_bytes"].drop_null().to_pylist())
    assert row == {**expected, "bytes": total}
    assert main(["sql", CAPTURE, VALUES, "--format", "csv"]) == 0
    (cells,) = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert (cells["span"], cells["bytes"], cells["never"], cells["day"]) == ("PT3601.5S", str(total), "", "2026-01-02")
    assert main(["sql", CAPTURE, VALUES]) == 0
    assert "60 min 2 s" in capsys.readouterr().out
    for form in ("arrow", "parquet"):
        assert main(["sql", CAPTURE, VALUES, "-o", str(tmp_path / f"rows.{form}")]) == 0

"""The data source: packets and segments against scapy, tables against the local engine."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import kdissect
from kdissect.capture import Member, open_captures
from kdissect.problems import UsageError
from kdissect.spark.source import packet_rows
from kdissect.spark.source.registration import PUSHDOWN
from kdissect.spark.stages.plan import source_of
from kdissect.tables.declaration import SCHEMAS
from kdissect.tables.where import parse

spark_only = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]


def table(name: str, path: Path, **times: int) -> pa.Table:
    schema = packet_rows.schema_of(name)
    batches = list(packet_rows.read(name, path.name, Member(path.name, path), schema.names, **times))
    return pa.Table.from_batches(batches)


@pytest.mark.oracle
def test_packets_and_segments_are_those_that_scapy_reads(captures: Path) -> None:
    from scapy.layers.inet import IP, TCP
    from scapy.utils import rdpcap

    path = captures / "base_tiny.pcap"
    theirs = rdpcap(str(path))
    mine = table("packets", path).to_pylist()
    assert [(row["frame"], row["data"]) for row in mine] == [(i, bytes(one)) for i, one in enumerate(theirs, 1)]
    assert [int(row["at"].timestamp() * 1e6) for row in mine] == [int(one.time * 1_000_000) for one in theirs]
    expected = [
        (
            i, one[IP].src, one[TCP].sport, one[IP].dst, one[TCP].dport, one[TCP].seq,
            one[TCP].ack if one[TCP].flags.A else None, int(one[TCP].flags), one[TCP].window, bytes(one[TCP].payload),
        )
        for i, one in enumerate(theirs, 1)
        if TCP in one
    ]  # fmt: skip
    names = (
        "frame", "source_ip", "source_port", "destination_ip", "destination_port", "sequence", "acknowledgement",
        "flags", "window", "payload",
    )  # fmt: skip
    found = [tuple(row[name] for name in names) for row in table("segments", path).to_pylist()]
    assert len(found) > 10
    assert [row[:-1] for row in found] == [row[:-1] for row in expected]
    for row, other in zip(found, expected, strict=True):
        assert other[-1].startswith(row[-1])  # scapy takes an Ethernet frame's padding for payload


def test_fragments_are_put_together(captures: Path) -> None:
    path = captures / "field_ip_fragments.pcap"
    rows = table("segments", path).to_pylist()
    frames = {row["frame"]: row["data"] for row in table("packets", path).to_pylist()}
    assert all(len(row["payload"]) == row["captured_bytes"] for row in rows)
    assert any(row["payload"] not in frames[row["frame"]] for row in rows)


def test_times_leave_packets_out(captures: Path) -> None:
    path = captures / "base.pcap"
    for name in packet_rows.TABLES:
        times = table(name, path)["at"].to_pylist()
        middle = times[len(times) // 2]
        ns = round((middle - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1_000_000) * 1000
        assert table(name, path, after=ns)["at"].to_pylist() == [time for time in times if time >= middle]


class TestOnSpark:
    pytestmark = spark_only

    @pytest.fixture(autouse=True)
    def registered(self, spark: Any) -> None:
        from kdissect.spark import register

        register(spark)

    def test_packets_and_segments(self, spark: Any, captures: Path, equal: Any) -> None:
        paths = [captures / "base.pcap", captures / "field_gz.pcap.gz", captures / "field_two_sections.pcapng"]
        for name, declared in packet_rows.TABLES.items():
            frame = spark.read.format("kdissect").option("table", name).load([str(path) for path in paths])
            expected = pa.concat_tables([table(name, path) for path in paths])
            equal({name: frame.toArrow()}, {name: expected})
            assert frame.schema["at"].metadata["comment"] == declared.schema.field("at").metadata[b"doc"].decode()

    def test_some_columns(self, spark: Any, captures: Path) -> None:
        read = spark.read.format("kdissect").option("table", "segments").option("columns", "payload_bytes,file")
        frame = read.load(str(captures / "base_tiny.pcap"))
        assert frame.columns == ["payload_bytes", "file"]
        expected = sum(table("segments", captures / "base_tiny.pcap")["payload_bytes"].to_pylist())
        assert frame.selectExpr("sum(payload_bytes)").first()[0] == expected

    def test_tables_of_small_captures(self, spark: Any, captures: Path, rotate: Any, equal: Any) -> None:
        folder = rotate(captures / "base.pcap", 3)
        shutil.copy(captures / "k4_session_eviction.pcap", folder)
        for name in ("exchanges", "fetch_sessions"):
            frame = spark.read.format("kdissect").option("table", name).option("per_capture", True).load(str(folder))
            assert frame.rdd.getNumPartitions() == 2
            local = [kdissect.open(sorted(folder.glob("cut*"))), kdissect.open(folder / "k4_session_eviction.pcap")]
            equal({name: frame.toArrow()}, {name: pa.concat_tables([one.table(name) for one in local])})
            assert frame.columns == SCHEMAS[name].names

    def test_tables_of_connections_need_dissect(self, spark: Any, captures: Path) -> None:
        read = spark.read.format("kdissect").option("table", "exchanges")
        with pytest.raises(Exception, match=r"kdissect\.spark\.dissect"):
            read.load(str(captures / "base_tiny.pcap"))

    @pytest.fixture
    def pushing(self, spark: Any) -> Iterator[None]:
        """A session that pushes filters down."""
        spark.conf.set(PUSHDOWN, "true")
        kdissect.spark.register(spark)
        yield
        spark.conf.unset(PUSHDOWN)
        kdissect.spark.register(spark)

    def test_one_load_is_read_by_the_filters_of_each_use(self, spark: Any, captures: Path) -> None:
        """Spark reads by the last ones wherever it is used, if they are pushed down."""
        rows = spark.read.format("kdissect").option("table", "exchanges").option("per_capture", True)
        rows.load(str(captures / "base_tiny.pcap")).createOrReplaceTempView("loaded")
        made = kdissect.open(captures / "base_tiny.pcap").table("exchanges")["api"].to_pylist()
        counted = "select '{0}', count(*) from loaded where api = '{0}'"
        found = spark.sql(f"{counted.format('Fetch')} union all {counted.format('Metadata')}")
        assert sorted(map(tuple, found.collect())) == [(api, made.count(api)) for api in ("Fetch", "Metadata")]
        assert spark.table("loaded").count() == len(made)

    def test_rows_by_a_condition(self, spark: Any, captures: Path, equal: Any) -> None:
        path, where, columns = captures / "base.pcap", "broker = '1' and api like 'F%'", ["exchange_id", "hold"]
        read = spark.read.format("kdissect").option("table", "exchanges").option("per_capture", True)
        found = read.option("columns", ",".join(columns)).option("where", where).load(str(path)).toArrow()
        equal({"exchanges": found}, {"exchanges": kdissect.open(path).table("exchanges", columns, where)})
        packets = table("packets", path)
        middle = sorted(packets["at"].to_pylist())[7]
        for operator in ("<", "<=", "=", ">", ">="):
            for where in (
                f"at {operator} '{middle.isoformat()}'",
                f"bytes > 70 and at {operator} '{middle.isoformat()}'",
            ):
                some = spark.read.format("kdissect").option("columns", "frame").option("where", where).load(str(path))
                assert some.count() == packets.filter(parse(where, packets.schema).expression).num_rows > 0
        with pytest.raises(Exception, match="no column 'nope'"):
            spark.read.format("kdissect").option("where", "nope = 1").load(str(path)).count()

    @pytest.mark.usefixtures("pushing")
    def test_filters_are_pushed_down(self, spark: Any, captures: Path) -> None:
        paths = [str(captures / "base.pcap"), str(captures / "base_tiny.pcap")]
        frame = spark.read.format("kdissect").option("columns", "capture,file,at,frame").load(paths)
        times = sorted(table("packets", captures / "base.pcap")["at"].to_pylist())
        middle = times[len(times) // 2]
        base = frame.where(frame["capture"] == "base.pcap")
        some = base.where(frame["at"] >= middle)
        assert some.rdd.getNumPartitions() == 1
        counts = {
            sign: base.where(f"at {sign} timestamp '{middle.isoformat()}'").count()
            for sign in ("<", "<=", "=", ">", ">=")
        }
        assert counts == {
            "<": sum(time < middle for time in times), "<=": sum(time <= middle for time in times),
            "=": times.count(middle), ">": sum(time > middle for time in times),
            ">=": sum(time >= middle for time in times),
        }  # fmt: skip
        assert base.where("frame % 2 = 0 and frame <= 7").count() == 3

    @pytest.mark.usefixtures("pushing")
    def test_filters_of_tables_are_pushed_down(self, spark: Any, captures: Path, equal: Any) -> None:
        path = str(captures / "k4_session_eviction.pcap")
        read = spark.read.format("kdissect").option("table", "fetches").option("per_capture", True)
        local = kdissect.open(path).table("fetches")
        begins = sorted(one for one in local["requested_at"].to_pylist() if one is not None)
        middle = begins[len(begins) // 2].isoformat(sep=" ").replace("+00:00", "")
        condition = f"requested_at >= '{middle}' and broker = '1' and client_id in ('ev-consumer-2', 'it''s nobody')"
        texts = condition.replace(f"'{middle}'", f"timestamp '{middle}'")
        wanted = kdissect.open(path).table("fetches", where=condition)
        assert 0 < wanted.num_rows < local.num_rows / 4
        found = read.load(path).where(texts + " and length(exchange_id) > 3")
        equal({"fetches": found.toArrow()}, {"fetches": wanted})
        plan = found._jdf.queryExecution().explainString(
            spark._jvm.org.apache.spark.sql.execution.ExplainMode.fromString("formatted")
        )
        pushed = next(line for line in plan.splitlines() if "PushedFilters" in line)
        assert "EqualTo(broker,1)" in pushed
        assert "GreaterThanOrEqual(requested_at," in pushed
        early = begins[len(begins) // 4].isoformat(sep=" ").replace("+00:00", "")
        until = f"requested_at < '{early}' and broker = '1'"
        chosen = (
            read.load(path).where(until.replace(f"'{early}'", f"timestamp '{early}'")).select("exchange_id", "hold")
        )
        equal({"fetches": chosen.toArrow()}, {"fetches": kdissect.open(path).table("fetches", chosen.columns, until)})
        assert read.load([path, str(captures / "base.pcap")]).where("capture = 'base.pcap'").rdd.getNumPartitions() == 1
        assert read.load(path).where("requested_at is null").count() == len(local) - len(begins)


@pytest.mark.parametrize(
    "name", ["exchanges", "offset_commits", "fetch_sessions", "connections", "topics", "deliveries", "findings"]
)
def test_rows_of_a_capture_are_those_of_the_local_table(captures: Path, equal: Any, name: str) -> None:
    """Whether they come part by part, at the end or out of everything; names that come late are there."""
    pytest.importorskip("pyspark")
    from kdissect.spark.source.datasource import parse_options, rows

    path = captures / "k4_java_classic.pcap"
    wanted = parse_options({"table": name, "per_capture": "true", "path": str(path)})
    (capture,) = open_captures(path)
    local = kdissect.open(path).table(name)
    assert local.num_rows
    found = list(rows(wanted, source_of(capture, payload=False), None))
    equal({name: pa.Table.from_batches(found)}, {name: local})
    if name == "exchanges":
        where = "api = 'Fetch' and latency_ms > 100"
        some = replace(wanted, columns=["api", "broker"], named=True, where=where)
        found = list(rows(some, source_of(capture, payload=False), None))
        equal({name: pa.Table.from_batches(found)}, {name: kdissect.open(path).table(name, ["api", "broker"], where)})


def test_files_that_are_no_captures_cost_themselves(captures: Path, tmp_path: Path, equal: Any) -> None:
    """In a folder, and named by themselves among others."""
    pytest.importorskip("pyspark")
    from kdissect.spark.source.datasource import Reader, parse_options

    folder = tmp_path / "in"
    folder.mkdir()
    for name in ("base_short", "field_wrong_magic", "field_empty"):
        shutil.copy(captures / f"{name}.pcap", folder)
    listed = json.dumps([str(folder / "base_short.pcap"), str(folder / "field_wrong_magic.pcap")])
    whole = kdissect.open(folder).table("problems")
    for place, lost in ({"path": str(folder)}, 2), ({"paths": listed}, 1):
        asked = {"table": "problems", "per_capture": "true", **place}
        assert len(Reader(parse_options(asked | {"where": "capture = 'base_short.pcap'"}), {}).partitions()) == 1
        (nothing,) = Reader(parse_options(asked | {"where": "capture in ('x') and kind = 'y'"}), {}).partitions()
        assert nothing.source.name == ""
        reader = Reader(parse_options(asked), {})
        made = pa.Table.from_batches([batch for part in reader.partitions() for batch in reader.read(part)])
        assert sum(kind == "capture" for kind in made["kind"].to_pylist()) == lost
        if "path" in place:
            equal({"problems": made}, {"problems": whole})


@pytest.mark.parametrize("moment", ["0001-01-01", "1600-01-01", "2300-01-01", "9999-12-31"])
def test_segments_by_times_that_no_packet_has(captures: Path, moment: str) -> None:
    pytest.importorskip("pyspark")
    from kdissect.spark.source.datasource import Reader, parse_options

    path = captures / "base_tiny.pcap"
    whole = table("segments", path).num_rows
    for operator in ("<", "<=", "=", ">", ">="):
        where = f"at {operator} '{moment}'"
        reader = Reader(parse_options({"table": "segments", "where": where, "path": str(path)}), {})
        (part,) = reader.partitions()
        expected = whole if operator[0] == ("<" if moment > "2026" else ">") else 0
        assert sum(batch.num_rows for batch in reader.read(part)) == expected, operator


def test_what_an_older_pyspark_lacks_is_said_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    from kdissect.spark.source.registration import register

    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    session: Any = SimpleNamespace(version="3.5.9")
    with pytest.raises(UsageError, match=r"need PySpark 4\.0 or newer, and this is 3\.5\.9: \S+"):
        register(session)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"table": "exchanges", "path": "x"}, "kdissect.spark.dissect"),
        ({"table": "exchangs", "path": "x"}, "did you mean 'exchanges'"),
        ({"table": "packets"}, "no capture given"),
        ({"tabel": "packets", "path": "x"}, "did you mean 'table'"),
        ({"quiet": "60", "path": "x"}, "no option 'quiet'; options: path, "),
        ({"columns": "frame,siz", "path": "x"}, "no column 'siz'"),
        ({"columns": "at,frame,at", "path": "x"}, "column 'at' of table 'packets' is named twice"),
        ({"columns": "", "path": "x"}, "no column of table 'packets' is named"),
        ({"table": "exchanges", "per_capture": "true", "columns": ",", "path": "x"}, "no column of table 'exchanges'"),
        ({"table": "exchanges", "per_capture": "yes", "path": "x"}, "true or false"),
    ],
)
def test_what_is_wrong_is_said(options: dict[str, str], words: str) -> None:
    pytest.importorskip("pyspark")
    from kdissect.spark.source.datasource import parse_options

    with pytest.raises(UsageError, match=words.replace(".", r"\.")):
        parse_options(options)

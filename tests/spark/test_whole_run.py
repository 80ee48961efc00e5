"""A job by one task, without Spark and with it: tables as the local engine makes them."""

from __future__ import annotations

import pickle
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import kdissect
import kdissect.spark
from kdissect.capture import open_captures
from kdissect.engine.analysed_run import AnalysedRun, LateNames
from kdissect.engine.capture_tables import MADE
from kdissect.engine.settings import Settings
from kdissect.problems import CaptureUnreadable
from kdissect.spark import dataset, whole_dataset
from kdissect.spark.cells.table_cells import Cell, Pieces, cells_of, read_cell
from kdissect.spark.cells.table_cells import rows as staged
from kdissect.spark.placing import schema_of
from kdissect.spark.schemas import spark_schema, with_single, without
from kdissect.spark.stages import analysing, whole_run
from kdissect.spark.stages.committed_offsets import COMMITS
from kdissect.spark.stages.decoding import SENT
from kdissect.spark.stages.plan import Plan, source_of
from kdissect.spark.stages.whole_run import ELSEWHERE, FILES, FULL, OUTCOME, SINGLE, read_whole
from kdissect.spark.writing.straight_files import StraightFiles, straight_tables
from kdissect.tables.declaration import SCHEMAS, TABLES, columns_of
from kdissect.tables.declaration.model import By
from kdissect.tables.recording import Reading
from tests.spark.conftest import found_in

SOME = (
    "base.pcap", "raw_reuse.pcap", "k4_share_group.pcap", "field_two_sections.pcapng", "field_ip_fragments.pcap",
    "field_gz.pcap.gz", "field_snap96.pcap", "not_kafka.pcap", "traces/franz_go.pcap.zst",
)  # fmt: skip
SUMS = ["time_budget", "time_ledger", "topic_traffic", "deliveries", "traced", "transactions"]
LATER = [*MADE, "records", "producers", "transaction_steps", *SUMS]


def read(
    paths: Any, tables: list[str], reveal: bool = False, pieces: str = "", cores: int = 0
) -> tuple[dict[str, pa.Table], int]:
    """The tables, and which reading counts."""
    sources = [source_of(capture, False) for capture in open_captures(paths)]
    columns = {name: columns_of(name) for name in tables}
    settings = Settings(reading=Reading(reveal=reveal).with_columns(columns, {}, reveal))
    plan = Plan(sources, columns, settings, [0], whole=True, pieces=pieces, cores=cores)
    made = list(cells_of(read_whole(plan)))
    outcome, number = next(pickle.loads(one.data) for one in made if one.table == OUTCOME)
    made = [one for one in made if one.origin == number]
    out = {}
    for name in tables:
        kind, schema = TABLES[name].made, SCHEMAS[name].remove_metadata()
        if name in analysing.SUMMED:
            found = analysing.sum_up(batches(made, *analysing.SUMMED[name]), name, plan, outcome.names)
        elif kind is By.FINDINGS:
            evidence = [one for one in made if one.table.startswith(analysing.EVIDENCE)]
            evidence += cells_of(analysing.sift(batches(made, COMMITS), plan, outcome.names))
            evidence += cells_of(analysing.sift_sent(batches(made, SENT), plan, outcome.names))
            found = found_in(evidence, plan, outcome.names, outcome.tables["capture_quality"])
        elif kind is By.SENT:
            found = analysing.follow(batches(made, SENT), plan, outcome.names)
        elif kind is By.LEARNED:
            found = outcome.tables[name].select(columns[name]).cast(schema).to_batches()
        else:
            parts = [read_cell(one.data) for one in made if one.table == name]
            found = [batch for part in parts for batch in plain(part, schema).to_batches()]
        out[name] = pa.Table.from_batches(found, schema)
    return out, number


def plain(part: pa.Table, schema: pa.Schema) -> pa.Table:
    return pa.table([part[field.name].cast(field.type) for field in schema], schema=schema)


def batches(made: list[Cell], *names: str) -> list[pa.RecordBatch]:
    return [staged([one]) for one in made if one.table in names]


def test_tables_equal_the_local_engine(captures: Path, equal: Any) -> None:
    paths = [captures / name for name in SOME]
    equal(read(paths, LATER, True)[0], kdissect.open(paths).tables(LATER, reveal=True))


def test_rows_that_are_handed_on_in_files(captures: Path, tmp_path: Path, equal: Any) -> None:
    tables = ["exchanges", "connections", "findings"]
    found, _ = read(captures / "base.pcap", tables, pieces=str(tmp_path))
    assert list(tmp_path.iterdir())
    equal(found, kdissect.open(captures / "base.pcap").tables(tables))


def test_columns_without_nulls_are_told(captures: Path, tmp_path: Path) -> None:
    (source,) = (source_of(capture, False) for capture in open_captures(captures / "base.pcap"))
    columns = {"exchanges": columns_of("exchanges")}
    plan = Plan([source], columns, Settings(), [0], whole=True, cores=1, pieces=str(tmp_path))
    made = list(cells_of(read_whole(plan)))
    full = next(pickle.loads(one.data) for one in made if one.table == FULL)["exchanges"]
    expected = kdissect.open(captures / "base.pcap").tables(["exchanges"])["exchanges"]
    assert full == {name for name in expected.column_names if not expected[name].null_count}
    outcome, _ = next(pickle.loads(one.data) for one in made if one.table == OUTCOME)
    read_now = partial(dataset._plain, batches(made, "exchanges"), "exchanges", plan, outcome.names)
    assert sum(batch.num_rows for batch in read_now(frozenset(full), {})) == expected.num_rows
    with pytest.raises(CaptureUnreadable, match="have changed"):
        list(read_now(frozenset(["error"]), {}))


def test_columns_of_one_value_are_told(
    captures: Path, tmp_path: Path, equal: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kdissect.spark.cells.table_cells.FILE_BYTES", 1 << 14)  # several files
    (source,) = (source_of(capture, False) for capture in open_captures(captures / "base.pcap"))
    columns = {"exchanges": columns_of("exchanges")}
    plan = Plan([source], columns, Settings(), [0], whole=True, cores=1, pieces=str(tmp_path))
    made = list(cells_of(read_whole(plan)))
    assert sum(one.table == "exchanges" for one in made) > 3
    single = next(pickle.loads(one.data) for one in made if one.table == SINGLE)["exchanges"]
    expected = kdissect.open(captures / "base.pcap").tables(["exchanges"])["exchanges"]
    distinct = {name: expected[name].unique().to_pylist() for name in expected.column_names}
    assert single == {name: found[0] for name, found in distinct.items() if len(found) == 1}
    assert {"capture", "network_up_ms", "request_file"} <= single.keys()
    outcome, _ = next(pickle.loads(one.data) for one in made if one.table == OUTCOME)
    read_now = partial(dataset._plain, batches(made, "exchanges"), "exchanges", plan, outcome.names, frozenset())
    found = pa.Table.from_batches(read_now(single))
    assert found.column_names == [name for name in expected.column_names if name not in single]
    equal({"exchanges": found}, {"exchanges": expected.select(found.column_names)})
    with pytest.raises(CaptureUnreadable, match="have changed"):
        list(read_now({**single, "capture": "another"}))
    with pytest.raises(CaptureUnreadable, match="have changed"):
        list(read_now({**single, "exchange_id": expected["exchange_id"][0].as_py()}))


def test_rows_of_one_value_and_of_many(captures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lots that are shorter than what was staged, whose columns of one value are written out once."""
    monkeypatch.setattr(dataset, "ROWS", 50)
    (source,) = (source_of(capture, False) for capture in open_captures(captures / "base.pcap"))
    columns = {"exchanges": columns_of("exchanges")}
    plan = Plan([source], columns, Settings(), [0], whole=True, pieces=str(tmp_path))
    made = list(cells_of(read_whole(plan)))
    outcome, _ = next(pickle.loads(one.data) for one in made if one.table == OUTCOME)
    found = list(dataset._plain(batches(made, "exchanges"), "exchanges", plan, outcome.names, frozenset(), {}))
    assert max(batch.num_rows for batch in found) == 50
    whole = pa.Table.from_batches(found).sort_by("exchange_id")
    expected = kdissect.open(captures / "base.pcap").tables(["exchanges"])["exchanges"].sort_by("exchange_id")
    assert whole.equals(plain(expected, whole.schema))


@pytest.mark.parametrize(
    ("cores", "tables"), [(2, ["exchanges"]), (2, ["exchanges", "fetches", "connections"]), (4, ["exchanges"])]
)
def test_rows_by_several_threads(
    captures: Path, tmp_path: Path, equal: Any, monkeypatch: pytest.MonkeyPatch, cores: int, tables: list[str]
) -> None:
    began: list[int] = []
    made = whole_run.AnalysedRun

    def noted(captures: Any, asked: Any, settings: Settings) -> Any:
        began.append(settings.jobs)
        return made(captures, asked, settings)

    monkeypatch.setattr(whole_run, "AnalysedRun", noted)
    found, _ = read(captures / "base.pcap", tables, pieces=str(tmp_path), cores=cores)
    equal(found, kdissect.open(captures / "base.pcap").tables(tables))
    assert began == [cores]


def test_rows_that_cannot_be_put_into_files(tmp_path: Path) -> None:
    pieces = Pieces(str(tmp_path / "folder"))
    with pieces:
        (tmp_path / "folder").rmdir()
        pieces.cell("a", pa.table({"a": [1]}))
        with pytest.raises(FileNotFoundError):
            pieces.wait()


@pytest.mark.parametrize("apart", [False, True])
def test_files_that_are_written_straight(captures: Path, tmp_path: Path, equal: Any, apart: bool) -> None:
    paths = [captures / name for name in ("field_loss5.pcap", "k4_share_group.pcap")]
    sources = [source_of(capture, False) for capture in open_captures(paths)]
    tables = [name for name in straight_tables(MADE) if name != "problems"]
    columns = {name: columns_of(name) for name in tables}
    plan = Plan(sources, columns, Settings(dated=True), [0], whole=True, cores=int(apart))
    schemas = {name: schema_of(name, columns[name]) for name in tables}
    files = StraightFiles(str(tmp_path), schemas, {}, [source.name for source in sources])
    made = list(cells_of(read_whole(plan, files)))
    told = next(pickle.loads(one.data) for one in made if one.table == FILES)
    assert {path.name for path in tmp_path.iterdir()} == {file for _, file, *_ in told}
    expected = kdissect.open(paths).tables(tables)
    found = {}
    for name, table in expected.items():
        parts = [pq.read_table(tmp_path / file) for one, file, *_ in told if one == name]
        assert sum(rows for one, _, rows, _ in told if one == name) == table.num_rows
        whole = pa.concat_tables(parts) if parts else schemas[name].empty_table()
        assert whole.num_rows == 0 or (whole["capture"].null_count, whole["at"].null_count) == (0, 0), name
        found[name] = whole.select(table.column_names)
    equal(found, expected)
    assert any(":r" in exchange for exchange in found["fetch_partitions"]["exchange_id"].to_pylist())


@pytest.mark.exhaustive
def test_every_capture(all_captures: list[Path], equal: Any) -> None:
    for path in all_captures:
        equal(read(path, LATER, True)[0], kdissect.open(path).tables(LATER, reveal=True))
        equal(read(path, ["exchanges"])[0], kdissect.open(path).tables(["exchanges"]))


@pytest.mark.parametrize("tables", [["exchanges"], ["exchanges", "fetch_sessions", "problems"]])
def test_names_that_come_late_are_right(
    captures: Path, equal: Any, monkeypatch: pytest.MonkeyPatch, tables: list[str]
) -> None:
    def late(run: Any) -> Any:
        yield from [next(iter(as_read(run)))]
        raise LateNames

    as_read = AnalysedRun.as_read
    monkeypatch.setattr(AnalysedRun, "as_read", late)
    found, number = read(captures / "base.pcap", tables)
    assert number == 1
    equal(found, kdissect.open(captures / "base.pcap").tables(tables))


def test_rows_as_codes_are_given_up_where_names_come_late(captures: Path, equal: Any, monkeypatch: Any) -> None:
    """A few packets a lot: some brokers have no name yet when their first rows are worked on."""
    monkeypatch.setattr("kdissect.engine.analysed_run.LOT", 1)
    monkeypatch.setattr("kdissect.capture.reader.MAX_PACKETS", 20)
    for name in ("k4_java_classic.pcap", "sweep_440_kraft.pcap"):
        found, number = read(captures / name, ["exchanges"])
        assert number == 1
        equal(found, kdissect.open(captures / name).tables(["exchanges"]))


def test_what_is_no_capture_is_left_to_other_tasks(tmp_path: Path) -> None:
    (tmp_path / "a.pcap").write_bytes(b"\xd4\xc3\xb2\xa1" + bytes(30))
    (source,) = (source_of(capture, False) for capture in open_captures(tmp_path / "a.pcap"))
    (tmp_path / "a.pcap").write_bytes(b"something else by now, and long enough")
    plan = Plan([source], {"exchanges": columns_of("exchanges")}, Settings(), [0], whole=True)
    assert [one.table for one in cells_of(read_whole(plan))] == [ELSEWHERE]


@pytest.mark.spark
@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")
def test_on_spark(spark: Any, captures: Path, rotate: Any, equal: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = rotate(captures / "base.pcap", 7)
    expected = kdissect.open(folder).tables(LATER)
    found = kdissect.spark.dissect(spark, folder, LATER)
    equal({name: frame.toArrow() for name, frame in found.items()}, expected)
    assert found.plan.whole
    found.unpersist()
    monkeypatch.setattr("kdissect.spark.job.FEW_BYTES", 0)
    monkeypatch.setattr(whole_dataset, "ONE_IN", 46)
    same = {"exchanges": ["capture", "api_inferred"]}
    equal({"exchanges": kdissect.spark.dissect(spark, folder, same)["exchanges"].toArrow()},
          {"exchanges": expected["exchanges"].select(same["exchanges"])})  # fmt: skip
    large = kdissect.spark.dissect(spark, folder, ["exchanges"])  # its rows are handed on in files
    frame = large["exchanges"]
    equal({"exchanges": frame.toArrow()}, {"exchanges": expected["exchanges"]})
    assert {"exchange_id", "status"} < large._full("exchanges")
    assert {field.name for field in frame.schema if not field.nullable} == TABLES["exchanges"].never_null
    planned = frame._jdf.queryExecution().optimizedPlan()
    assert [planned.nodeName(), planned.children().head().nodeName()] == ["Project", "MapInArrow"]
    assert "capture" in large._single("exchanges")
    monkeypatch.setattr(whole_dataset, "ONE_IN", 1)
    assert not large._single("exchanges")
    assert "capture" not in list(planned.children().head().schema().fieldNames())
    assert not planned.schema().apply("exchange_id").nullable()
    pieces = Path(large._folder)
    assert list(pieces.iterdir())
    large.unpersist()
    assert not pieces.exists()
    assert frame.count() == expected["exchanges"].num_rows  # read again
    assert spark._jvm.java.lang.System.getProperty("arrow.enable_unsafe_memory_access") is None  # the caller's to set
    monkeypatch.setattr("kdissect.spark.job.ALONE_CORES", 1)
    assert not kdissect.spark.dissect(spark, folder, LATER).plan.whole


@pytest.mark.spark
@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")
def test_columns_of_one_value_on_spark(spark: Any) -> None:
    single = {
        "text": 'a "b" \\ \n\r\t ${c} \N{SNOWMAN} \N{COLLISION SYMBOL}', "count": 7, "bytes": 3,
        "ms": -2.5e-300, "flag": False, "none": None, "at": None,
    }  # fmt: skip
    kinds = [pa.string(), pa.int32(), pa.int64(), pa.float64(), pa.bool_(), pa.string(), pa.timestamp("us", "UTC")]
    schema = pa.schema([
        pa.field("id", pa.int64()),
        *(pa.field(name, kind, metadata={"doc": f"{name}s"}) for name, kind in zip(single, kinds, strict=True)),
    ])  # fmt: skip
    made = spark.range(2).select(*with_single(spark_schema(schema), single))
    assert made.toArrow().to_pylist() == [{"id": row, **single} for row in range(2)]
    assert [(one.name, one.dataType) for one in made.schema] == [
        (one.name, one.dataType) for one in spark_schema(schema)
    ]
    assert made.schema["ms"].metadata == {"comment": "mss"}
    assert [one.name for one in without(spark_schema(schema), single)] == ["id"]


@pytest.mark.spark
@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")
def test_spread_where_one_task_cannot_read(spark: Any, captures: Path, tmp_path: Path, equal: Any) -> None:
    for name in ("base_tiny.pcap", "k4_mtu1500.pcap"):
        (tmp_path / name).write_bytes((captures / name).read_bytes())
    found = kdissect.spark.dissect(spark, tmp_path, ["exchanges", "findings", "problems"])
    (tmp_path / "base_tiny.pcap").write_bytes(b"something else by now, and long enough")
    tables = {name: frame.toArrow() for name, frame in found.items()}
    assert not found.plan.whole
    equal({"exchanges": tables["exchanges"]}, kdissect.open(tmp_path / "k4_mtu1500.pcap").tables(["exchanges"]))
    assert "base_tiny.pcap" in tables["problems"]["file"].to_pylist()
    found.unpersist()

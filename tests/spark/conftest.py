"""A Spark session for the tests, the stages of a job without Spark, and captures cut into rotated sets."""

from __future__ import annotations

import os
import random
import struct
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from kdissect.capture import open_captures
from kdissect.engine.settings import Settings
from kdissect.spark.cells.aligned_rows import ALIGNED, BY_TOPIC
from kdissect.spark.cells.table_cells import Cell, read_cell
from kdissect.spark.common_connections import DECODED, Work, decoding_plan, match_captures, with_looks
from kdissect.spark.shares import topic_shares, transaction_shares
from kdissect.spark.shares.spent_time import BY, divide, gather
from kdissect.spark.shares.spent_time import deal as deal_spent
from kdissect.spark.stages import analysing, committed_offsets, decoding
from kdissect.spark.stages.committed_offsets import COMMITS
from kdissect.spark.stages.found_holds import FOUND
from kdissect.spark.stages.giant_connections import UNIT
from kdissect.spark.stages.indexing import index
from kdissect.spark.stages.plan import INDEX, Plan, source_of
from kdissect.spark.stages.resolving import Names, put_together, read_notes, resolved_rows
from kdissect.tables.declaration import columns_of
from kdissect.tables.declaration.readers import DELIVERIES
from kdissect.tables.recording import Reading

NO_CAPTURES = ("field_empty.pcap", "field_half_header.pcap", "field_wrong_magic.pcap")
SUFFIXES = (".pcap", ".pcapng", ".pcap.gz", ".pcap.zst", ".pcap.lz4")


def rows_of(table: pa.Table) -> Counter[str]:
    """The rows of a table, whatever their order."""
    return Counter(map(repr, table.to_pylist()))


def read_cut(place: Path) -> pa.Table:
    """A table that was written, with the columns of its folders (date and cluster)."""
    folders = ds.partitioning(pa.schema([("date", pa.date32()), ("cluster", pa.string())]), flavor="hive")
    return ds.dataset(place, format="parquet", partitioning=folders).to_table()


def later(path: Path, by: int = 1) -> bytes:
    """A capture of the last packet of another one, so many seconds later."""
    data = path.read_bytes()
    at = last = 24
    while at + 16 <= len(data):
        last = at
        at += 16 + int.from_bytes(data[at + 8 : at + 12], "little")
    seconds = int.from_bytes(data[last : last + 4], "little") + by
    return data[:24] + seconds.to_bytes(4, "little") + data[last + 4 : at]


def moved(data: bytes, seconds: int) -> bytes:
    """The same capture by a clock that is so many seconds ahead."""
    made, at = [data[:24]], 24
    while at + 16 <= len(data):
        then = int.from_bytes(data[at : at + 4], "little") + seconds
        end = at + 16 + int.from_bytes(data[at + 8 : at + 12], "little")
        made += [then.to_bytes(4, "little"), data[at + 4 : end]]
        at = end
    return b"".join(made)


def numbers_of(row: dict[str, Any]) -> tuple[int | None, int | None]:
    """A row's ids as numbers: (connection_number, exchange_number)."""
    exchange = row.get("exchange_id")
    connection = row.get("connection_id") or (exchange and exchange.partition(":")[0])
    high = None if connection is None else int.from_bytes(bytes.fromhex(connection), "big", signed=True)
    if exchange is None:
        return high, None
    ordinal = exchange.partition(":")[2]
    return high, -1 - int(ordinal[1:]) if ordinal.startswith("r") else int(ordinal)


def assert_equal(found: Mapping[str, pa.Table], expected: Mapping[str, pa.Table]) -> None:
    assert found.keys() == expected.keys()
    for name, table in expected.items():
        assert found[name].schema.names == table.schema.names, name
        mine, theirs = rows_of(found[name]), rows_of(table)
        assert mine == theirs, (name, list((mine - theirs).items())[:2], list((theirs - mine).items())[:2])


@pytest.fixture(scope="session")
def equal() -> Callable[[Mapping[str, pa.Table], Mapping[str, pa.Table]], None]:
    return assert_equal


@pytest.fixture(scope="session")
def all_captures(captures: Path) -> list[Path]:
    """Every committed capture that is one, rotated sets by their folder."""
    found = [path for path in sorted(captures.iterdir()) if path.name.endswith(SUFFIXES)]
    folders = [path for path in sorted(captures.iterdir()) if path.is_dir() and path.name.startswith("field_")]
    return [path for path in [*found, *folders] if path.name not in NO_CAPTURES]


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    built = SparkSession.builder.master("local[2]").appName("kdissect tests").config("spark.ui.enabled", "false")
    built = built.config("spark.sql.session.timeZone", "UTC").config("spark.ui.showConsoleProgress", "false")
    built = built.config("spark.sql.shuffle.partitions", "2")  # not 200, of a few rows each
    session = built.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


class Lists:
    """A shuffle whose frames are lists of rows: `kdissect.spark.common_connections.Shuffle`."""

    def __init__(self, partitions: int) -> None:
        self.partitions = partitions

    def buckets(self, frames: Sequence[list[pa.RecordBatch]], kinds: Sequence[int]) -> list[list[pa.RecordBatch]]:
        found: list[list[pa.RecordBatch]] = [[] for _ in range(self.partitions)]
        for batch in (batch for frame in frames for batch in frame):
            for i in range(batch.num_rows):
                if batch.column("kind")[i].as_py() in kinds:
                    found[batch.column("bucket")[i].as_py()].append(batch.slice(i, 1))
        return [_sorted(one) for one in found]

    def through(self, work: Work, frames: Sequence[list[pa.RecordBatch]], kinds: Sequence[int]) -> list[pa.RecordBatch]:
        return [batch for bucket in self.buckets(frames, kinds) for batch in work(bucket)]

    def rows(self, frame: list[pa.RecordBatch], kind: int) -> list[tuple[int, bytes]]:
        rows = [row for batch in frame for row in batch.to_pylist()]
        return [(row["capture"], row["packed"]) for row in rows if row["kind"] == kind]

    def captures(self, frame: list[pa.RecordBatch]) -> set[int]:
        return {capture for batch in frame for capture in batch.column("capture").to_pylist()}


def simulated(
    paths: Any,
    partitions: int,
    tables: list[str],
    transport: str = "ranges",
    keylog: Path | None = None,
    reveal: bool = False,
    giant: int | None = None,
    unit: int = 1 << 20,
    spans: int = 1,
    cuts: random.Random | None = None,
    pieces: str = "",
    bucket_bytes: int = 0,
) -> dict[str, pa.Table]:
    """The tables as the stages make them, each partition of which is a list here. `spans`: of each broker's time, with
    as many rows each, or cut at instants that `cuts` chooses. `pieces`, `bucket_bytes`: see `Plan`."""
    sources = [source_of(capture, transport == "payload") for capture in open_captures(paths)]
    columns = {name: columns_of(name) for name in tables}
    keys = None if keylog is None else keylog.read_bytes()
    settings = Settings(keylog=keys, reading=Reading(reveal=reveal))
    plan = Plan(sources, columns, settings, list(range(partitions)), bucket_bytes)
    if giant is not None:
        plan = replace(plan, giant=giant, unit=unit)
    plan = with_looks(plan)
    indexed = list(index([(n, f) for n, source in enumerate(sources) for f in range(len(source.files))], plan))
    common = match_captures(plan, indexed, lambda captures: indexed, Lists(partitions)) if plan.looks else None
    plan = replace(decoding_plan(plan, common), pieces=pieces)
    frames = [indexed, *([] if common is None else common.frames)]
    buckets = Lists(partitions).buckets(frames, DECODED)
    staged = [row for n, one in enumerate(buckets) for row in _listed(decoding.decode(one, plan, n))]
    units = [row for row in staged if row.table == UNIT]
    assert giant is None or len(units) > partitions
    for start in range(min(3, len(units))):
        staged += _listed(decoding.decode_units([_batch(units[start::3])], plan, start))
    return tables_of(plan, staged, [(row.table, row.data) for row in staged if row.table.startswith("_")], spans, cuts)


def analysed_in_spans(rows: list[Cell], plan: Plan, names: Names, spans: int, cuts: random.Random | None) -> list[Cell]:
    """What the analysis makes of its rows in order, each span of a broker's time after the one before."""
    ends: list[dict[str, int]] = [{} for _ in range(spans - 1)]
    for broker, cells in groupby(rows, lambda row: row.broker):
        times = [row.at for row in cells]
        evenly = [times[len(times) * number // spans] for number in range(1, spans)]
        chosen = evenly if cuts is None else sorted(cuts.choices(times, k=spans - 1))
        for end, at in zip(ends, chosen, strict=True):
            end[broker] = at
    made: list[Cell] = []
    state: list[Cell] = []
    for number, end in enumerate([*ends, None]):
        mine = [row for row in rows if sum(one[row.broker] <= row.at for one in ends) == number]
        given = sorted([*state, *mine], key=lambda row: (row.broker, row.at, row.lot))
        found = _listed(analysing.analyse([_batch([row]) for row in given], plan, names, end))
        state = [row for row in found if row.table == analysing.STATE]
        assert end is None or {row.broker for row in state} == {row.broker for row in given}
        made += [row for row in found if row.table != analysing.STATE]
    return made


def tables_of(
    plan: Plan,
    staged: list[Cell],
    notes: list[tuple[str, bytes]],
    spans: int = 1,
    cuts: random.Random | None = None,
) -> dict[str, pa.Table]:
    """The tables of a plan out of what was decoded and the notes for the driver."""
    outcome = put_together(plan, read_notes(notes))
    names = outcome.names
    brokers = names.analysed_brokers()
    stage = decoding.stage_by_broker(plan.tables)
    split = decoding.split_tables(stage)
    made = staged
    if not stage.idle:
        rows = [row._replace(broker=brokers.get(row.broker, row.broker)) for row in staged if row.table in split]
        rows.sort(key=lambda row: (row.broker, row.at, row.lot))
        analysed = analysed_in_spans(rows, plan, names, spans, cuts)
        left = {*analysing.MADE, COMMITS} - {"exchanges"}
        made = [row for row in staged if row.table not in left] + analysed
        if "findings" in plan.tables:
            for rows in by_origin(made):
                made = made + _listed(analysing.evidence(rows, "exchanges", plan, names))
        commits = any(row.table == COMMITS for row in staged)
        read = [row for row in staged if commits and row.table in committed_offsets.READ]
        lots = sorted(read, key=lambda row: (row.origin, row.broker, row.lot))
        dealt = _listed(committed_offsets.deal([_batch([row]) for row in lots], plan, names))
        for label in plan.labels:
            made += _listed(committed_offsets.fill([_batch([row]) for row in dealt if row.lot == label]))
    builder = names.builder(plan)
    out = {}
    for name in plan.tables:
        schema = pa.schema([field.remove_metadata() for field in builder.finished(name, []).schema])
        if name == "exchanges":
            parts = [part for rows in by_origin(made) for part in resolved_rows(rows, name, plan, names)]
        else:
            parts = [names.resolved(builder, name, read_cell(row.data)) for row in made if row.table == name]
        if name == "findings":
            decoded = [_batch([row]) for row in made if row.table in (*analysing.DECODED, COMMITS)]
            found = [row for row in made if row.table.startswith(analysing.EVIDENCE)]
            found += _listed(analysing.sift(decoded, plan, names)) + _listed(
                follow_sent(made, plan, names, analysing.sift_sent)
            )
            first = [_batch([row]) for row in staged if row.table in DELIVERIES.tables]
            found += _listed(analysing.deliver(analysing.keep_until(first, None), plan, names))
            quality = outcome.tables.get("capture_quality")
            out[name] = pa.Table.from_batches(found_in(found, plan, names, quality), schema)
            continue
        if name in BY:
            out[name] = pa.Table.from_batches(spent(made, staged, name, plan, names), schema)
            continue
        if name == "transactions":
            out[name] = pa.Table.from_batches(dealt_by_producer(staged, plan, names), schema)
            continue
        if name in BY_TOPIC:
            out[name] = pa.Table.from_batches(dealt_by_topic(staged, name, plan, names), schema)
            continue
        if name == "producers":
            out[name] = pa.Table.from_batches(follow_sent(made, plan, names, analysing.follow), schema)
            continue
        plain = [pa.table([part[field.name].cast(field.type) for field in schema], schema=schema) for part in parts]
        small = [outcome.tables[name].cast(schema)] if name in outcome.tables and name != "connections" else []
        out[name] = pa.concat_tables([schema.empty_table(), *plain, *small])
    return out


def follow_sent(
    made: list[Cell], plan: Plan, names: Names, follow: Callable[..., Iterator[pa.RecordBatch]]
) -> Iterator[pa.RecordBatch]:
    """What `follow` makes of what producers sent, each task of which has its partitions in a list."""
    sent = [_batch([row]) for row in made if row.table == decoding.SENT]
    dealt = _listed(topic_shares.deal_sent(sent, plan, names))
    for label in plan.labels:
        yield from follow([_batch([row]) for row in dealt if row.lot == label], plan, names)


def found_in(
    evidence: list[Cell], plan: Plan, names: Names, quality: pa.Table | None = None
) -> Iterator[pa.RecordBatch]:
    """`findings`, two tasks of which have the evidence of some clusters in lists."""
    counted = [(row.broker, row.at, row.lot if row.table == analysing.COUNTED else 0) for row in evidence]
    clusters = analysing.searched(counted, names)
    evidence = _listed(analysing.deal_evidence([_batch([row]) for row in evidence], clusters))
    evidence.sort(key=lambda row: (row.broker, row.lot))
    own = list(dict.fromkeys((row.broker, row.lot) for row in evidence))
    tasks = [[row for row in evidence if (row.broker, row.lot) in own[task::2]] for task in range(2)]
    found = [
        row for task in tasks
        for row in _listed(analysing.find_findings([_batch([one]) for one in task], plan, names, quality, clusters))
    ]  # fmt: skip
    return analysing.conclude([_batch([row]) for row in found], plan, clusters)


def dealt_by_producer(staged: list[Cell], plan: Plan, names: Names) -> Iterator[pa.RecordBatch]:
    """`transactions`, each task of which has its rows in a list."""
    given = sorted((row for row in staged if row.table.startswith(ALIGNED)), key=lambda row: (row.origin, row.lot))
    by_lot = [list(lot) for _, lot in groupby(given, key=lambda row: (row.origin, row.lot))]
    tasks = [[_batch([row]) for lot in by_lot[task::2] for row in lot] for task in range(2)]
    told = [row.data for task in tasks for row in _listed(transaction_shares.pairs(task))]
    roots = transaction_shares.join_producers(told)
    dealt = [row for task in tasks for row in _listed(transaction_shares.deal(task, plan, names, roots))]
    for label in plan.labels:
        yield from transaction_shares.make([_batch([row]) for row in dealt if row.lot == label], plan)


def spent(made: list[Cell], staged: list[Cell], name: str, plan: Plan, names: Names) -> Iterator[pa.RecordBatch]:
    """A table about whose time was spent on what, each task of which has its rows in a list."""
    columns = analysing.SUMMED[name]["exchanges"]
    told = [row for rows in by_origin(made) for row in _listed(analysing.filled(rows, columns, plan, names))]
    analysed = set(analysing.summed_in(name)) - {"exchanges"}
    read = [*told, *(row for row in made if row.table in analysed)]
    read += [row for row in staged if row.table in analysing.summed_decoded(name)]
    dealt = [row for task in range(2) for row in _listed(deal_spent([_batch(read[task::2])], name, plan, names))]
    tasks = [[row for row in dealt if row.lot == label] for label in plan.labels]
    divided = [row for task in tasks for row in _listed(divide([_batch([one]) for one in task], name, plan))]
    for label in plan.labels:
        yield from gather([_batch([row]) for row in divided if row.lot == label], name, plan)


def dealt_by_topic(staged: list[Cell], name: str, plan: Plan, names: Names) -> Iterator[pa.RecordBatch]:
    """A table that is made by topic and partition, each task of which has its rows in a list."""
    given = [row for row in staged if row.table == "connections" or row.table.startswith(ALIGNED)]
    given.sort(key=lambda row: (row.origin, row.lot))
    by_lot = [list(lot) for _, lot in groupby(given, key=lambda row: (row.origin, row.lot))]
    dealt = []
    for task in range(2):
        mine = [_batch([row]) for lot in by_lot[task::2] for row in lot]
        dealt += _listed(topic_shares.deal(mine, name, plan, names))
    for label in plan.labels:
        mine = [row for row in dealt if row.lot == label]
        yield from topic_shares.make([_batch([row]) for row in sorted(mine, key=lambda row: row.broker)], name, plan)


def by_origin(made: list[Cell]) -> list[list[pa.RecordBatch]]:
    """Exchanges behind what was found out about them, for each task that decoded some."""
    mine = sorted((row for row in made if row.table in (FOUND, "exchanges")), key=lambda row: row.table)
    return [[_batch([row]) for row in mine if row.origin == origin] for origin in sorted({row.origin for row in mine})]


@pytest.fixture(scope="session")
def simulate() -> Callable[..., dict[str, pa.Table]]:
    return simulated


@pytest.fixture(scope="session")
def tabled() -> Callable[..., dict[str, pa.Table]]:
    return tables_of


def _sorted(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    if not batches:
        return []
    keys = [(name, "ascending") for name in ("capture", "file", "chunk")]
    whole: list[pa.RecordBatch] = pa.Table.from_batches(batches, INDEX).sort_by(keys).to_batches()
    return whole


def _listed(batches: Iterator[pa.RecordBatch]) -> list[Cell]:
    return [Cell(**row) for batch in batches for row in batch.to_pylist()]


def _batch(rows: list[Cell]) -> pa.RecordBatch:
    from kdissect.spark.cells.table_cells import rows as staged

    return staged(rows)


def slowed(data: bytes, times: int) -> bytes:
    """A classic pcap in microseconds whose packets are so many times as far apart in time."""
    if times == 1:
        return data
    order = {0xD4: "<", 0xA1: ">"}[data[0]]
    out, at, begin = bytearray(data), 24, None
    while at < len(data):
        seconds, rest, size = struct.unpack(order + "III", data[at : at + 12])
        begin = seconds * 1_000_000 + rest if begin is None else begin
        time = begin + (seconds * 1_000_000 + rest - begin) * times
        out[at : at + 8] = struct.pack(order + "II", *divmod(time, 1_000_000))
        at += 16 + size
    return bytes(out)


@pytest.fixture(scope="session")
def rotate(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A classic pcap cut into so many files of a rotated set, in a folder of its own; maybe `slowed`."""

    def cut(path: Path, files: int, slower: int = 1) -> Path:
        folder = tmp_path_factory.mktemp(f"{path.stem}_{files}")
        data = slowed(path.read_bytes(), slower)
        order = "<" if data[0] in (0xD4, 0x4D) else ">"
        records, at = [], 24
        while at + 16 <= len(data):
            size = struct.unpack(order + "I", data[at + 8 : at + 12])[0]
            records.append(data[at : at + 16 + size])
            at += 16 + size
        edges = [len(records) * i // files for i in range(files + 1)]
        for i in range(files):
            name = "cut.pcap" + (str(i) if i else "")
            (folder / name).write_bytes(data[:24] + b"".join(records[edges[i] : edges[i + 1]]))
        return folder

    return cut

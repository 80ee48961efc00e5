"""Rows that a filter drops are not made, and their messages not decoded: the rows are those of filtering afterwards."""

from __future__ import annotations

import io
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import kdissect
from kdissect.capture.captureset import CaptureSet
from kdissect.capture.window import Window
from kdissect.engine import analysed_run
from kdissect.engine.analysed_run import AnalysedRun
from kdissect.kafka.exchanges.messages import Decoder
from kdissect.problems import CaptureError
from kdissect.tables.brokers import Brokers
from kdissect.tables.candidates import Candidates
from kdissect.tables.declaration import SCHEMAS
from kdissect.tables.where import parse
from tests.capture.build import pcap, read_pcap
from tests.conftest import ROOT

CAPTURES = ROOT / "captures"
TABLES = {
    "exchanges": ("request_first_at", "request_last_at", "response_first_at", "response_last_at"),
    "fetches": ("requested_at", "response_first_at"),
    "produces": ("requested_at", "request_last_at"),
    "offset_commits": ("at",),
    "groups": ("at",),
}
"""Tables with columns that say when their exchange was on the wire."""
CAPTURE_SAMPLE = frozenset(
    {
        "base_short",
        "base_tiny",
        "era_0_8_2",
        "field_snap96",
        "k4_session_eviction",
        "raw_errors",
        "raw_reuse",
        "zoo_kafkajs",
    }
)
PLAIN = {"exchanges": ["exchange_id", "latency_ms", "api"], "fetches": ["exchange_id", "broker_ms", "topics"]}
"""Columns that take no analysis."""
HOUR = 3600 * 10**9


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Captures of many blocks, so that reading ends before the capture does, and lots of few rows."""
    monkeypatch.setattr(CaptureSet, "window", lambda self: Window(1 << 17))
    monkeypatch.setattr(analysed_run, "LOT", 50)


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[Candidates]:
    """The candidates of every part after which enough was read."""
    found: list[Candidates] = []
    end_behind = Candidates.end_behind

    def noting(self: Candidates, watermark: int) -> None:
        before = self.over
        end_behind(self, watermark)
        if self.over and not before:
            found.append(self)

    monkeypatch.setattr(Candidates, "end_behind", noting)
    return found


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[AnalysedRun]:
    """Every beginning of a run, those after an end that was too early among them."""
    found: list[AnalysedRun] = []
    begin = AnalysedRun._open
    monkeypatch.setattr(AnalysedRun, "_open", lambda self: (found.append(self), begin(self))[1])
    return found


def filtered(table: pa.Table, name: str, where: str) -> pa.Table:
    return table.filter(parse(where, SCHEMAS[name]).expression)


def conditions(name: str, table: pa.Table, chance: random.Random) -> Iterator[str]:
    """Filters by time, by broker or client, and by both, of which each keeps a part of the rows."""
    equal = {}
    for named in ("broker", "client_id"):
        if named in table.column_names:
            values = table[named].drop_null().unique().to_pylist()
            one = "{} = '{}'".format(named, chance.choice(values).replace("'", "''")) if values else f"{named} is null"
            equal[named] = one
    other = chance.choice(list(equal.values()))
    if "broker" in equal:
        yield equal["broker"]
    column = chance.choice(TABLES[name])
    times = sorted(table[column].drop_null().to_pylist())
    if times:
        low, high = (times[len(times) * share // 100].isoformat() for share in sorted(chance.sample(range(5, 95), 2)))
        yield f"{column} < '{low}'"
        yield from (f"{column} > '{low}' and '{high}' >= {column} and {one}" for one in equal.values())
        yield chance.choice([f"{column} between '{low}' and '{high}'", f"{column} = '{high}' or {other}", other])


def pieces(opened: Any, name: str, where: str | None = None) -> pa.Table | None:
    """The rows that `parts` gives."""
    found = [part[name] for part in opened.parts({name: None}, {} if where is None else {name: where}) if name in part]
    return pa.concat_tables(found) if found else None


def ids(rows: pa.Table | None) -> list[str]:
    return sorted([] if rows is None else rows["exchange_id"].to_pylist())


def check(opened: Any, name: str, whole: pa.Table, where: str, in_parts: pa.Table | None = None) -> None:
    """All ways to rows of a table give what filtering afterwards gives. `in_parts`: the rows that are analysed part by
    part, where these may differ, for a clock steps back."""
    wanted = filtered(whole, name, where)
    assert opened.table(name, where=where).equals(wanted), where
    chosen = PLAIN.get(name, ["exchange_id"])
    assert opened.table(name, chosen, where).equals(wanted.select(chosen)), where
    found, expected = pieces(opened, name, where), filtered(whole if in_parts is None else in_parts, name, where)
    assert sorted(map(str, found.to_pylist() if found else [])) == sorted(map(str, expected.to_pylist())), where
    if "broker" not in where:  # its name may come later than a row
        ids = [one for batch in opened.batches(name, chosen, where) for one in batch["exchange_id"].to_pylist()]
        assert sorted(ids) == sorted(wanted["exchange_id"].to_pylist()), where


@pytest.mark.parametrize("path", sorted(CAPTURES.glob("*.pcap*")), ids=lambda path: path.name)
def test_rows_are_those_of_filtering_afterwards(path: Path) -> None:
    chance = random.Random(path.name)
    try:
        opened = kdissect.open(path)
    except CaptureError:
        pytest.skip("no capture")
    for name in ("exchanges", "fetches", chance.choice(["produces", "offset_commits", "groups"])):
        whole = opened.table(name)
        for where in conditions(name, whole, chance) if whole.num_rows else ():
            check(opened, name, whole, where)


def share_of_time(path: Path, name: str, column: str, share: float) -> str:
    """The instant up to which this share of a table's rows came."""
    times = sorted(kdissect.open(path).table(name, [column])[column].drop_null().to_pylist())
    return str(times[int(len(times) * share)].isoformat())


@pytest.mark.parametrize("name", ["k4_slow_and_throttled", "era_2_8_2", "base"])
def test_the_analysis_ends_where_no_rows_follow(name: str, ended: list[Candidates], begun: list[Any]) -> None:
    path = CAPTURES / f"{name}.pcap"
    until = share_of_time(path, "fetches", "requested_at", 0.3)
    whole = kdissect.open(path).table("fetches")
    begun.clear()
    where = f"requested_at < '{until}'"
    assert kdissect.open(path).table("fetches", where=where).equals(filtered(whole, "fetches", where))
    assert len(ended) == len(begun) == 1
    parts = list(kdissect.open(path).parts({"fetches": None}, {"fetches": where}))
    assert sum(part["fetches"].num_rows for part in parts if "fetches" in part) > 0
    assert len(ended) > 1


def test_fewer_messages_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of exchanges that a filter rules out, before and behind the time asked for."""
    path = CAPTURES / "era_2_8_2.pcap"
    begin, end = (share_of_time(path, "fetches", "requested_at", share) for share in (0.2, 0.22))
    decoded: list[int] = []
    decode = Decoder.decode
    monkeypatch.setattr(
        Decoder, "decode", lambda self, s, begin, *more: (decoded.append(len(begin)), decode(self, s, begin, *more))[1]
    )
    for columns in (["exchange_id", "topics"], None):
        decoded.clear()
        kdissect.open(path).table("fetches", columns)
        everything = sum(decoded)
        decoded.clear()
        found = kdissect.open(path).table("fetches", columns, f"requested_at between '{begin}' and '{end}'")
        assert found.num_rows > 0
        assert sum(decoded) < everything * (0.4 if columns else 0.8)


@pytest.mark.parametrize(("name", "table"), [("k4_session_eviction", "fetches"), ("k4_list_offsets_raw", "exchanges")])
@pytest.mark.parametrize("jobs", [1, 2])
def test_other_brokers_are_left_out(name: str, table: str, jobs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of rows of a broker by its address, and by its node id once messages have told whose the other addresses are."""
    picked: list[int] = []
    pick_rows = Candidates.pick_rows

    def noting(self: Candidates, block: Any) -> Any:
        rows = pick_rows(self, block)
        picked.append(len(block) if rows is None else len(rows))
        return rows

    monkeypatch.setattr(Candidates, "pick_rows", noting)
    opened = kdissect.open(CAPTURES / f"{name}.pcap", jobs=jobs)
    whole, brokers = opened.table(table), opened.table("exchanges", ["broker"])["broker"].to_pylist()
    for broker in set(brokers):
        picked.clear()
        where = f"broker = '{broker}'"
        assert ids(pieces(opened, table, where)) == ids(filtered(whole, table, where))
        own = brokers.count(broker)
        assert own <= sum(picked) <= len(brokers)
        if own < len(brokers) / 2:
            assert sum(picked) < 0.8 * len(brokers), broker


def test_an_address_that_gets_another_name(monkeypatch: pytest.MonkeyPatch, begun: list[AnalysedRun]) -> None:
    """It was left out as another broker's: everything is read again."""
    opened = kdissect.open(CAPTURES / "k4_session_eviction.pcap")
    whole = opened.table("fetches")
    names = Brokers.names
    monkeypatch.setattr(Brokers, "names", lambda self: {**names(self), **dict.fromkeys(names(self), "100")})
    begun.clear()
    assert ids(pieces(opened, "fetches", "broker = '3'")) == ids(filtered(whole, "fetches", "broker = '3'"))
    assert len(begun) == 2


@pytest.mark.parametrize(
    ("back", "jobs"),
    [(HOUR, 1), (10**9, 1), (150_000_000, 1), (HOUR, 2)]
    + [pytest.param(back, 2, marks=pytest.mark.exhaustive) for back in (10**9, 150_000_000)],
)
def test_clocks_that_step_back(back: int, jobs: int, tmp_path: Path, ended: list[Any], begun: list[Any]) -> None:
    """Packets behind a step back may be earlier than what was asked for, when enough was thought to be read."""
    packets = read_pcap(CAPTURES / "k4_slow_and_throttled.pcap")
    path = tmp_path / "stepped.pcap"
    again = 0
    for step in (len(packets) // 3, len(packets) * 3 // 4):
        path.write_bytes(pcap((time - back * (i >= step), packet) for i, (time, packet) in enumerate(packets)))
        opened = kdissect.open(path, jobs=jobs)
        whole, in_parts = opened.table("fetches"), pieces(opened, "fetches")
        for share in (0.1, 0.4, 0.8):
            where = f"requested_at < '{share_of_time(path, 'fetches', 'requested_at', share)}'"
            begun.clear()
            assert opened.table("fetches", where=where).equals(filtered(whole, "fetches", where))
            again += len(begun) == 2
            check(opened, "fetches", whole, where, in_parts)
    assert ended
    assert again > 0 or back < HOUR


def test_several_captures_threads_and_a_selection(ended: list[Any]) -> None:
    names = ["k4_follower_sessions", "k4_slow_and_throttled"]
    both = [CAPTURES / f"{name}.pcap" for name in names]
    for settings in ({"jobs": 3}, {"jobs": 1}, {"topic": "slow"}, {"client": "nobody"}):
        opened = kdissect.open(both, **settings)
        for name, column, path in zip(
            ("fetches", "exchanges"), ("requested_at", "request_first_at"), both, strict=True
        ):
            check(opened, name, opened.table(name), f"{column} < '{share_of_time(path, name, column, 0.4)}'")
    assert ended


def test_several_tables_of_which_one_has_no_filter() -> None:
    path = CAPTURES / "k4_slow_and_throttled.pcap"
    where = {"fetches": f"requested_at < '{share_of_time(path, 'fetches', 'requested_at', 0.3)}'"}
    opened = kdissect.open(path)
    whole = opened.tables(["fetches", "exchanges", "problems"])
    for tables in (["fetches", "exchanges"], ["fetches", "problems"]):
        found = opened.tables(tables, where)
        assert found["fetches"].equals(filtered(whole["fetches"], "fetches", where["fetches"]))
        assert found[tables[1]].equals(whole[tables[1]])
    parts = list(opened.parts(dict.fromkeys(["fetches", "exchanges"]), where))
    assert sum(part["exchanges"].num_rows for part in parts if "exchanges" in part) == whole["exchanges"].num_rows


def test_apis_and_clients() -> None:
    opened = kdissect.open(CAPTURES / "base.pcap")
    whole = opened.table("exchanges")
    client = next(one for one in whole["client_id"].to_pylist() if one)
    for where in (
        "api = 'Fetch'", "api in ('Metadata', 'ApiVersions', 'no such')", "api_key = 18", "api_key in (1, 3.0, 3.5)",
        f"client_id = '{client}'", f"'{client}' = client_id and api = 'Produce'", "client_id = null",
        "broker = '127.0.0.1:9092'", "broker in ('1', '127.0.0.1:9092')", "not api = 'Fetch'",
        "request_first_at is null", "request_first_at < null", "request_first_at != '2020-01-01'",
    ):  # fmt: skip
        check(opened, "exchanges", whole, where)


def test_what_is_read_once() -> None:
    """A pipe is not read again: the analysis goes on, other columns leave exchanges out all the same."""
    path = CAPTURES / "base.pcap"
    where = f"requested_at < '{share_of_time(path, 'fetches', 'requested_at', 0.3)}'"
    for columns in (None, ["exchange_id", "topics"]):
        whole = filtered(kdissect.open(path).table("fetches"), "fetches", where)
        found = kdissect.open(io.BytesIO(path.read_bytes())).table("fetches", columns, where)
        compared = [one for one in found.column_names if one not in ("capture", "connection_id", "exchange_id")]
        assert found.select(compared).equals(whole.select(compared))

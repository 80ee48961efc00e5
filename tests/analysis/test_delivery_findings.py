"""Findings about deliveries at their edges, and the first rows that they, and the first screen, are made of."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import kdissect
from kdissect.analysis.deliveries.delivery_rows import deliveries
from kdissect.analysis.deliveries.delivery_summary import summarise
from kdissect.analysis.deliveries.first_deliveries import FirstRows
from kdissect.analysis.findings import findings
from kdissect.tables.declaration.model import TIME_KEY
from kdissect.tables.declaration.readers import DELIVERIES
from tests.analysis.read import read_lines
from tests.analysis.wire import made
from tests.conftest import CAPTURES

START, SECOND = 1_700_000_000_000_000, 1_000_000
SLOW = CAPTURES / "stories" / "slow_consumer.pcap.zst"


def delivery(n: int, took_ms: float, **more: Any) -> dict[str, Any]:
    """The n-th delivery: sent n tenths of a second after the first."""
    sent = START + n * SECOND // 10
    row = {
        "fetch_exchange_id": f"{1:016x}:{n}", "topic": "t", "partition": 0, "records": 2, "group_id": "g",
        "client_id": "c", "is_follower": False, "isolation_level": 0, "produced_at": sent,
        "delivered_at": sent + round(took_ms * 1000), "delivery_ms": took_ms, "transfer_ms": 0.1,
        "served_ms": 60.0 if took_ms < 100 else 0.5,
        "waited_for": "reader", "times": 1, "broker": "1",
    }  # fmt: skip
    return row | more


def found(
    rows: Sequence[dict[str, Any]], joined: Sequence[int] = (), members: Sequence[dict[str, Any]] = (), missing: int = 0
) -> list[dict[str, Any]]:
    """Findings in deliveries; `joined`: when members joined group g, `members`: its other messages, `missing`: bytes
    that the first connection lacks."""
    messages = [{"event": "join", "at": at} for at in joined] + list(members)
    messages = [{"group_id": "g", "exchange_id": f"{2:016x}:{n}"} | one for n, one in enumerate(messages)]
    ways = [{"connection_id": f"{n:016x}", "missing_bytes": missing if n == 1 else 0} for n in (1, 2, 3)]
    tables = {"deliveries": list(rows), "groups": messages, "connections": ways}
    rows_of: list[dict[str, Any]] = findings(
        {name: made(name, some) for name, some in tables.items()}
    ).findings.to_pylist()
    return rows_of


def steady(late: int, on_time: int, **more: Any) -> list[dict[str, Any]]:
    """A delivery on time, so many late ones, then others on time."""
    took = [5.0, *[2000.0] * late, *[5.0] * (on_time - 1)]
    return [delivery(n, ms, **more) for n, ms in enumerate(took)]


def test_ten_late_batches_are_told_and_nine_are_not() -> None:
    assert found(steady(9, 10)) == []
    [one] = found(steady(10, 10))
    assert (one["id"], one["severity"], one["cause"]) == ("late_records", "info", "client")
    assert (one["group_id"], one["client_id"], one["topic"], one["count"]) == ("g", "c", "t", 10)
    assert "Group g got 10 batches of topic t 1.0 s or more" in one["text"]
    assert "waited most for the reader" in one["text"]


@pytest.mark.parametrize(
    ("absent", "cause", "said"), [(1000.1, "client", "no fetch of it"), (999.9, "settings", "more (fetch.min.bytes)")]
)
def test_a_fetch_that_had_asked_to_wait_was_at_the_broker(absent: float, cause: str, said: str) -> None:
    rows = [one | {"absent_ms": absent, "served_ms": 2000 - absent} for one in steady(10, 10)]
    [one] = found(rows)
    assert one["cause"] == cause
    assert said in one["text"]


def test_records_from_before_the_reader_came_are_not_late() -> None:
    """It reads what was sent in two seconds, all at once, 5 s later."""
    assert found([delivery(n, 5000.0 - n * 100) for n in range(20)]) == []


def test_what_waits_for_a_follower_is_told_once_for_all_readers_and_blames_none() -> None:
    late = [
        row for group in ("g", "h") for row in steady(10, 10, group_id=group, client_id=group, waited_for="replication")
    ]
    [one] = found(late)
    assert one["cause"] == "unknown"
    assert one["count"] == 20
    assert (one["group_id"], one["client_id"]) == (None, None)
    assert "group g and group h got 20 batches" in one["text"].replace("Group", "group")


def test_readers_that_waited_for_themselves_are_told_one_by_one() -> None:
    late = [row for group in ("g", "h") for row in steady(10, 10, group_id=group, client_id=group)]
    assert sorted(one["group_id"] for one in found(late)) == ["g", "h"]


def test_a_cause_stands_behind_nearly_all_of_the_time() -> None:
    rows = steady(10, 10)
    [one] = found([*rows[:9], *(row | {"waited_for": "throttle"} for row in rows[9:])])
    assert one["cause"] == "unknown"


def test_a_late_partition_is_named_where_its_siblings_are_not_late() -> None:
    rows = [*steady(10, 1, partition=3), *steady(0, 20, partition=1)]
    [one] = found(rows)
    assert "All are of partition 3; the topic's others were not late." in one["text"]
    slower = [row | {"delivery_ms": 800.0} if row["partition"] == 1 else row for row in rows]
    [one] = found(slower)
    assert "All are of" not in one["text"]


def test_followers_are_no_readers() -> None:
    assert found(steady(10, 10, is_follower=True)) == []


@pytest.mark.parametrize(("joined", "moved"), [((), False), ((START - SECOND,), False), ((START + SECOND,), True)])
def test_batches_that_are_given_again(joined: tuple[int, ...], moved: bool) -> None:
    rows = [delivery(n, 5.0, times=2 if n % 2 else 1) for n in range(20)]
    [one] = found(rows, joined)
    assert (one["id"], one["severity"], one["count"]) == ("records_given_again", "info", 10)
    assert "10 batches (20 records)" in one["text"]
    assert ("Members joined it meanwhile" in one["text"]) == moved


def test_share_groups_are_given_records_again_by_design() -> None:
    assert found([delivery(n, 5.0, times=2, isolation_level=None) for n in range(20)]) == []


def read_all(first: int, count: int, reader: str, way: int, **more: Any) -> list[dict[str, Any]]:
    """So many batches of two records that a reader is given over a connection, on time."""
    offsets = [{"base_offset": 2 * n, "last_offset": 2 * n + 1} for n in range(first, first + count)]
    named = {"group_id": reader, "client_id": reader, "fetch_exchange_id": f"{way:016x}:{first}"}
    return [delivery(n, 5.0, **named, **offset, **more) for n, offset in enumerate(offsets, first)]


BEFORE, BEHIND = read_all(0, 5, "g", 1), read_all(15, 5, "g", 1)
OTHER = read_all(0, 20, "h", 3)
MEANWHILE = START + SECOND


def test_ten_batches_that_a_group_goes_past_are_told_and_nine_are_not() -> None:
    [one] = found([*BEFORE, *BEHIND, *OTHER])
    assert (one["id"], one["severity"], one["cause"]) == ("records_passed_over", "info", "unknown")
    assert (one["group_id"], one["client_id"], one["topic"], one["count"]) == ("g", "g", "t", 10)
    assert "Group g went past 10 batches (20 records) of topic t, partition 0, which group h was given" in one["text"]
    assert found([*BEFORE, *read_all(14, 6, "g", 1), *OTHER]) == []


@pytest.mark.parametrize(
    "rows",
    [
        [*BEFORE, *BEHIND],
        [*BEFORE, *OTHER],
        [*BEFORE, *BEHIND, *read_all(5, 10, "g", 2), *OTHER],
        [*BEFORE, *read_all(15, 5, "g", 2), *OTHER],
        [*BEHIND, *(row | {"delivered_at": row["delivered_at"] + 60 * SECOND} for row in BEFORE), *OTHER],
        [*(row | {"isolation_level": None} for row in (*BEFORE, *BEHIND)), *OTHER],
        [*(row | {"group_id": None} for row in (*BEFORE, *BEHIND)), *OTHER],
        [*BEFORE, *BEHIND, *(row | {"partition": 1} for row in OTHER)],
    ],
    ids=[
        "nobody was given them", "the capture ends", "another connection reads them", "another connection goes on",
        "it goes back", "a share group", "no group", "another partition",
    ],
)  # fmt: skip
def test_what_a_group_may_have_read_it_did_not_go_past(rows: list[dict[str, Any]]) -> None:
    assert found(rows) == []


def test_no_group_goes_past_records_where_partitions_may_have_moved_or_bytes_are_missing() -> None:
    rows = [*BEFORE, *BEHIND, *OTHER]
    beat = {"event": "consumer_heartbeat", "generation": 3}
    assert found(rows, joined=[MEANWHILE]) == []
    assert found(rows, members=[beat | {"at": START}, beat | {"at": MEANWHILE, "generation": 4}]) == []
    assert found(rows, missing=1) == []
    assert [one["count"] for one in found(rows, joined=[START - SECOND])] == [10]
    assert [one["count"] for one in found(rows, members=[beat | {"at": START}, beat | {"at": MEANWHILE}])] == [10]


def test_a_follower_shows_what_a_group_went_past() -> None:
    replica = [row | {"group_id": None, "client_id": "broker-2-fetcher-0", "is_follower": True} for row in OTHER]
    [one] = found([*BEFORE, *BEHIND, *replica])
    assert "which client broker-2-fetcher-0 was given" in one["text"]


def test_what_a_recorded_reader_went_past_is_what_its_polls_lack() -> None:
    name = "passed_over"
    polled = {group: {row[3] for row in read_lines(name, "polls") if row[0] == group} for group in ("g-all", "g-skips")}
    mine = polled["g-skips"]
    expected = [offset for offset in polled["g-all"] if min(mine) < offset < max(mine) and offset not in mine]
    found = kdissect.open(CAPTURES / "deliveries" / f"{name}.pcap.zst").table("findings").to_pylist()
    [one] = [row for row in found if row["id"] == "records_passed_over"]
    assert (one["group_id"], one["topic"], one["count"]) == ("g-skips", "all", len(expected))


def stamped(client: str | None, *ahead_ms: float, known: bool = False) -> list[dict[str, Any]]:
    """Deliveries of a producer whose records are stamped so much later than their requests left."""
    return [
        delivery(n, 5.0, producer_client_id=client, created_at=START + n * SECOND // 10 + round(ms * 1000),
                 buffered_ms=max(-ms, 0.0) if known else None)
        for n, ms in enumerate(ahead_ms)
    ]  # fmt: skip


def test_producers_whose_clocks_are_ahead_have_one_finding() -> None:
    [one] = found([*stamped("p", 40.0, -3.0, 38.0), *stamped(None, 2500.0), *stamped("q", -5.0, known=True)])
    assert (one["id"], one["severity"], one["cause"]) == ("clocks_disagree", "info", "unknown")
    assert (one["count"], one["client_id"]) == (3, None)
    assert (
        "a client without an id (up to 2.5 s) and client p (up to 40 ms). Those of 1 other producer are not"
        in one["text"]
    )
    assert one["headline"] == "records of 2 producers are stamped up to 2.5 s ahead"
    [one] = found(stamped("p", 40.0))
    assert one["client_id"] == "p"
    assert "other producer" not in one["text"]


def test_a_clock_that_agrees_to_a_millisecond_or_is_behind_is_not_ahead() -> None:
    assert (
        found([*stamped("p", 0.9, -5.0, known=True), *stamped("q", -200_000.0), *stamped("r", -1500.0, known=True)])
        == []
    )


def test_recorded_clocks_are_as_far_ahead_as_they_were_set() -> None:
    """Those of two producers, and what the application of a third one stamps; a clock that is behind shows nowhere."""
    name = "clocks"
    capture = kdissect.open(CAPTURES / "deliveries" / f"{name}.pcap.zst")
    [one] = [row for row in capture.table("findings").to_pylist() if row["id"] == "clocks_disagree"]
    ahead = {row["client"]: row["ahead_ms"] for row in read_lines(name, "events")}
    assert ahead == {"p-ahead": 2500, "p-little": 40, "p-behind": -1500, "p-right": 0, "p-dated": 0}
    named = dict(re.findall(r"client (p-\w+) \(up to ([\d.]+ \w+)\)", one["text"]))
    assert (named["p-ahead"], set(named)) == ("2.5 s", {"p-ahead", "p-little", "p-dated"})
    assert 30 <= float(named["p-little"].removesuffix(" ms")) <= 40
    rows = capture.table("deliveries").to_pandas()
    unknown = rows.groupby("producer_client_id").buffered_ms.apply(lambda column: column.isna().mean())
    assert unknown.to_dict() == {client: float(client in named) for client in ahead}


def with_times(tables: dict[str, pa.Table]) -> dict[str, pa.Table]:
    """The tables with the helper column that rows of exchanges have in a run."""
    exchanges = tables["exchanges"]
    at = dict(
        zip(exchanges["exchange_id"].to_pylist(), exchanges["request_first_at"].cast("int64").to_pylist(), strict=True)
    )
    return {
        name: table.append_column(TIME_KEY, pa.array([at[one] for one in table["exchange_id"].to_pylist()], pa.int64()))
        if "exchange_id" in table.column_names else table
        for name, table in tables.items()
    }  # fmt: skip


def test_the_first_batches_alone_are_kept() -> None:
    tables = kdissect.open(SLOW).tables({name: list(columns) for name, columns in DELIVERIES.tables.items()})
    some, every = FirstRows(200), FirstRows()
    for rows in (some, every):
        rows.add_rows(with_times(tables))
        rows.add("connections", tables["connections"])
    assert every.whole
    assert not every.full
    table = deliveries(tables)
    assert every.deliveries().equals(table)
    assert some.full
    assert not some.whole
    assert 200 <= some.batches < 210
    first = some.deliveries()
    assert 50 < first.num_rows < 200
    known = set(zip(*(table[name].to_pylist() for name in ("topic", "partition", "base_offset")), strict=True))
    assert known >= set(zip(*(first[name].to_pylist() for name in ("topic", "partition", "base_offset")), strict=True))


def test_the_first_screen_says_what_the_table_says() -> None:
    for path in (SLOW, CAPTURES / "deliveries" / "held_up.pcap.zst"):
        summary = kdissect.open(path).summary()
        table = kdissect.open(path).table("deliveries")
        rows = summarise(table.filter(pc.invert(table["is_follower"])))
        shown = [line._asdict() for line in summary.deliveries]
        assert pa.Table.from_pylist(shown).equals(rows.select(list(shown[0])))
        assert summary.deliveries_of is None

"""Holds and excess, one rule at a time, and however rows are cut."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kdissect
from kdissect.analysis.cluster_stages import Stages
from kdissect.analysis.holds import hold_kernels
from kdissect.analysis.holds.exchange_holds import AGREED, THROTTLED, exchange_holds, name_apart
from kdissect.analysis.holds.fetch_holds import HoldTracker, with_instants
from kdissect.analysis.holds.hold_kernels import HOLDS, LATEST, events, keep, take_over
from kdissect.analysis.sessions.session_input import Reading
from kdissect.analysis.sessions.topic_codes import Names
from kdissect.arrays.arrow import NULL_TIME
from kdissect.arrays.rows import Rows, as_rows, as_tables
from kdissect.tables.declaration.model import ACKS_KEY
from kdissect.tables.fetch_rows import FETCH_WIDTH, PARTITION_WIDTH, fetches_of, partitions_of
from tests.analysis.read import ASKED, CAPTURES, analysed, messages, raw
from tests.analysis.wire import START, made
from tests.oracle.agreement import match
from tests.oracle.request_log import read

A = "00000000000000aa"


def fetch(n: int, at: float, broker_ms: float | None, connection: str = A, **more: Any) -> dict[str, Any]:
    """A Fetch exchange whose request is complete `at` ms after the start."""
    used = START + int(at * 1000)
    row = {
        "exchange_id": f"{connection}:{n}", "broker": "1", "client_id": "c", "api_version": 13,
        "request_last_at": used, "max_wait_ms": 500, "min_bytes": 1, "isolation_level": 0, "queued_ms": 0.0,
        "is_raft": False, "partitions_sent": 1, "implied_partitions": 0, "request_session_id": 0, "session_epoch": -1,
    }  # fmt: skip
    if broker_ms is not None:
        row |= {
            "broker_ms": broker_ms, "response_first_at": used + int(broker_ms * 1000), "record_bytes": 0,
            "error_code": 0, "partitions_with_error": 0, "throttle_ms": 0.0, "response_session_id": 0,
        }  # fmt: skip
    return row | more


def part(n: int, connection: str = A, **more: Any) -> dict[str, Any]:
    return {
        "exchange_id": f"{connection}:{n}", "topic": "t", "partition": 0, "in_request": True, "in_response": True,
        "fetch_offset": 0, "error_code": 0, "high_watermark": 10, "last_stable_offset": 10, "record_bytes": 0,
        "preferred_read_replica": -1, "diverging_epoch": -1,
    } | more  # fmt: skip


class Holding:
    """A hold tracker that is fed rows of the two tables, as the session tracker hands them on."""

    def __init__(self) -> None:
        names = Names()
        self._reading, self._tracker = Reading(names), HoldTracker(names)

    def feed(
        self, rows: list[dict[str, Any]], parts: list[dict[str, Any]] = [], *more: Any  # noqa: B006
    ) -> pa.Table:  # fmt: skip
        fetches = made("fetches", rows)
        given = Rows.of(fetches), Rows.of(made("fetch_partitions", parts))
        found = self._reading.read(*given, settled_rows=self._tracker.held_back)
        others = [one if isinstance(one, int) else Rows.of(one) for one in more]
        return self._tracker.feed(found.settled(), given[0], *others).table()

    def finish(self) -> pa.Table:
        return self._tracker.finish().table()


def held(rows: list[dict[str, Any]], parts: list[dict[str, Any]] = []) -> list[tuple[str | None, float | None]]:  # noqa: B006
    table = Holding().feed(rows, parts)
    return list(zip(table["hold"].to_pylist(), table["excess_ms"].to_pylist(), strict=True))


@pytest.mark.parametrize(
    ("row", "hold", "excess"),
    [
        (fetch(0, 0, None), None, None),
        (fetch(0, 0, 501.5), "timeout", 1.5),
        (fetch(0, 0, 499.0), "timeout", 0.0),
        (fetch(0, 0, 120.0), "unknown", None),
        (fetch(0, 0, 120.0, record_bytes=70), "data", None),
        (fetch(0, 0, 2.0, record_bytes=70), "immediate", 2.0),
        (fetch(0, 0, 2.0, record_bytes=70, min_bytes=100), "data", None),
        (fetch(0, 0, 3004.0, record_bytes=70), "data", 2504.0),
        (fetch(0, 0, 120.0, record_bytes=70, min_bytes=100), "data", None),
        (fetch(0, 0, 3.0, error_code=70), "error", 3.0),
        (fetch(0, 0, 3.0, partitions_with_error=1), "error", None),
        (fetch(0, 0, 3.0, max_wait_ms=0), "immediate", 3.0),
        (fetch(0, 0, 3.0, min_bytes=0), "immediate", 3.0),
        (fetch(0, 0, 500.0, min_bytes=0, is_raft=True), "timeout", 0.0),
        (fetch(0, 0, 3.0, partitions_sent=0), "immediate", 3.0),
        (fetch(0, 0, 3.0, throttle_ms=200.0), "throttled", None),
        (fetch(0, 0, 230.0, throttle_ms=200.0, record_bytes=70), "throttled", None),
        (fetch(0, 0, 3.0, error_code=None), "unknown", None),
    ],
)
def test_one_fetch(row: dict[str, Any], hold: str | None, excess: float | None) -> None:
    assert held([row]) == [(hold, excess)]


def test_the_request_after_a_throttled_response_waits() -> None:
    """KIP-219: the response leaves at once, the channel is muted; another connection is not."""
    other = "00000000000000bb"
    rows = [
        fetch(0, 0, 3.0, throttle_ms=1000.0),
        fetch(1, 10, 993.0, record_bytes=9),
        fetch(0, 10, 40.0, connection=other, record_bytes=9),
        fetch(2, 2000, 40.0, record_bytes=9),
    ]
    assert [hold for hold, _ in held(rows)] == ["throttled", "throttled", "data", "data"]


def test_a_pipelined_request_behind_a_throttled_response_waits_too() -> None:
    rows = [fetch(0, 0, 10.0, throttle_ms=1000.0), fetch(1, 2, 1000.0, queued_ms=8.0, record_bytes=9)]
    assert held(rows)[1][0] == "throttled"


@pytest.mark.parametrize("api", ["Fetch", "Produce"])
def test_a_window_that_an_earlier_block_told_of_mutes_too(api: str) -> None:
    """Of a fetch, or of any other exchange of the connection; what comes behind its end does not wait."""
    tracker = Holding()
    throttled = fetch(0, 0, 3.0, throttle_ms=1000.0)
    told = {name: throttled[name] for name in ("exchange_id", "response_first_at", "throttle_ms")}
    rows = [throttled] if api == "Fetch" else []
    tracker.feed(rows, [], made("exchanges", [] if rows else [told]))
    later = [fetch(1, 10, 993.0, record_bytes=9), fetch(2, 2000, 40.0, record_bytes=9)]
    for row, hold in zip(later, ("throttled", "data"), strict=True):
        assert tracker.feed([row])["hold"].to_pylist() == [hold]


def test_a_fetch_has_agreed_to_its_wait_behind_what_a_quota_took() -> None:
    """From its turn to the end of the window the broker read nothing; then it waits max_wait_ms at most."""
    rows = [
        fetch(0, 0, 3.0, throttle_ms=1000.0),
        fetch(1, 13, 1600.0),
        fetch(2, 2000, 40.0, record_bytes=9),
        fetch(3, 2100, 700.0, max_wait_ms=0),
        fetch(4, 3000, 10.0, error_code=70),
        fetch(5, 3100, None),
    ]
    found = Holding().feed(rows, [])
    assert found["throttled_ms"].to_pylist() == [0, 990, 0, 0, 0, None]
    assert found["agreed_ms"].to_pylist() == [3, 500, 40, 0, 0, None]


def test_a_broker_that_answers_inside_the_window_did_not_mute_the_connection() -> None:
    rows = [fetch(0, 0, 3.0, throttle_ms=1000.0), fetch(1, 10, 40.0, record_bytes=9)]
    found = Holding().feed(rows, [])
    assert found["hold"].to_pylist() == ["throttled", "data"]
    assert found["throttled_ms"].to_pylist() == [0, 0]


def test_a_share_fetch_is_judged_as_a_fetch_is_and_any_request_in_a_window_is_throttled() -> None:
    """KIP-932: it may wait for min_bytes, max_wait_ms at most; not while it closes its session or renews locks."""
    cases = [  # broker_ms, bytes of records, what it asks otherwise; hold, agreed_ms
        (520.0, 0, {}, "timeout", 500),
        (40.0, 70, {}, "data", 40),
        (1.0, 70, {}, "immediate", 0),
        (700.0, 70, {"max_wait_ms": 0}, "immediate", 0),
        (700.0, 70, {"min_bytes": 0}, "immediate", 0),
        (40.0, 70, {"share_session_epoch": -1}, "immediate", 0),
        (40.0, 0, {"is_renew_ack": True}, "immediate", 0),
        (40.0, 70, {"min_bytes": 100}, "data", 40),
        (501.0, 70, {"min_bytes": 100}, "timeout", 500),
        (40.0, 0, {}, "unknown", 40),
        (None, 0, {}, None, None),
    ]
    rows = [fetch(n, n * 1000, ms) | {"api_key": 78} for n, (ms, *_) in enumerate(cases)]
    last = len(cases) * 1000
    rows += [
        fetch(11, last, 3.0, throttle_ms=300.0) | {"api_key": 8},
        fetch(12, last + 13, 400.0) | {"api_key": 3},
        fetch(13, last + 1000, 3.0, throttle_ms=300.0) | {"api_key": 11},
        fetch(14, last + 1013, 300.0) | {"api_key": 11},
    ]
    exchanges = made("exchanges", rows)
    plain = {"max_wait_ms": 500, "min_bytes": 1, "share_session_epoch": 1, "is_renew_ack": False}
    asked = [{"exchange_id": f"{A}:{n}"} | plain | more for n, (_, _, more, *_) in enumerate(cases)]
    answered = [
        {"exchange_id": f"{A}:{n}", "responses": [{"partitions": [{"records_bytes": size}]}]}
        for n, (_, size, *_) in enumerate(cases)
    ]
    messages = {
        ("ShareFetch", "request"): pa.Table.from_pylist(asked),
        ("ShareFetch", "response"): pa.Table.from_pylist(answered),
    }
    throttled = exchanges.filter(pa.array([row.get("throttle_ms", 0) > 0 for row in rows]))
    hold, waits = exchange_holds(Rows.of(exchanges), messages, Rows.of(throttled))
    names = [HOLDS[code] if code >= 0 else None for code in hold.tolist()]
    agreed = [None if np.isnan(ms) else ms for ms in waits[AGREED].tolist()]
    assert names[: len(cases)] == [one[3] for one in cases]
    assert agreed[: len(cases)] == [one[4] for one in cases]
    assert names[len(cases) :] == [None, None, "rebalance", "throttled"]
    assert waits[THROTTLED, len(cases) :].tolist() == [0, 290, 0, 290]
    assert agreed[len(cases) :] == [None, None, 3, 10]


def test_a_produce_is_named_straight_from_its_exchange_where_nobody_knows_replicas() -> None:
    """acks -1 alone waits; by what it was muted, by its error, else unknown. What is not asked about stays."""

    def row(n: int, at: float, acks: int, **more: Any) -> dict[str, Any]:
        sent = fetch(n, at, 3.0) | {"api_key": 0, "error_code": 0, ACKS_KEY: acks} | more
        return sent | {"response_last_at": None, "request_first_at": sent["request_last_at"]}

    rows = [
        row(0, 0, -1),
        row(1, 10, 1),
        row(2, 20, 0, broker_ms=None, response_first_at=None, error_code=None),
        row(3, 30, -1, broker_ms=None, response_first_at=None, error_code=None),
        row(4, 40, -1, error_code=7),
        row(5, 50, -1, error_code=None),
        row(6, 1000, -1, throttle_ms=100.0),
        row(7, 1010, -1, error_code=7, broker_ms=93.0, response_first_at=START + 1_103_000),
        row(8, 1010, -1, exchange_id="00000000000000bb:8"),
        row(9, 2000, -1),
        row(10, 2000, -(2**63), api_key=3),
    ]
    exchanges = made("exchanges", rows).append_column(ACKS_KEY, pa.array([one[ACKS_KEY] for one in rows]))
    throttled = exchanges.filter(pa.array([one["throttle_ms"] > 0 if "throttle_ms" in one else False for one in rows]))
    codes = np.full(len(rows), -1, np.int8)
    codes[9] = 1
    name_apart(Rows.of(exchanges), np.array([0, 1, 2, 3, 4, 5, 6, 7, 8]), Rows.of(throttled), codes)
    named = [HOLDS[code] if code >= 0 else None for code in codes.tolist()]
    expected = ["unknown", None, None, None, "error", "unknown", "unknown", "throttled", "unknown", "timeout", None]
    assert named == expected


def test_turns_matter_only_where_a_connection_is_throttled() -> None:
    """Kinds of events: 2 answer, 3 request, 4 turn; a fetch that has no answer throttles nobody."""
    fetches = np.zeros((3, FETCH_WIDTH), np.int64)
    rows = fetches_of(fetches)
    rows["used"] = rows["turn"] = [10, 20, 30]
    rows["answered"] = [15, NULL_TIME, 35]
    rows["throttle"] = [np.nan, 5.0, 0.0]

    def told(watermark: int, muted: bool, marks: Sequence[int] = (0, 0, 0)) -> tuple[int, int, list[int]]:
        due, firsts, (when, codes) = np.empty(3, np.int64), np.empty(4, np.int64), np.empty((2, 9), np.int64)
        count, throttled, happened = events(fetches, watermark, muted, np.array(marks), firsts, due, when, codes)
        assert due[:count].tolist() == list(range(count))
        assert firsts.tolist() == [0, 0, 0, 0]
        instants = {2: rows["answered"], 3: rows["used"], 4: rows["turn"]}
        for place, code in zip(when[:happened].tolist(), codes[:happened].tolist(), strict=True):
            assert place == int(instants[code & 7][code >> 3]) * 8 + (code & 7)
        return count, throttled, sorted((codes[:happened] & 7).tolist())

    assert told(LATEST, False) == (3, 0, [2, 2, 3, 3, 3])
    assert told(LATEST, True) == (3, 0, [2, 2, 3, 3, 3, 4, 4, 4])
    rows["throttle"][2] = 5.0
    assert told(LATEST, False) == (3, 1, [2, 2, 3, 3, 3, 4, 4, 4])
    assert told(35, False) == (2, 0, [2, 3, 3, 3])  # the third has asked, and waits for its answer
    assert told(LATEST, False, [0, hold_kernels.ASKED, hold_kernels.ASKED | hold_kernels.BEGUN]) == (
        3,
        1,
        [2, 2, 3, 4, 4],
    )


def test_what_is_kept_moves_to_the_end_with_its_partitions() -> None:
    sizes, due = [2, 0, 1, 3, 1], [0, 2]
    fetches, partitions = np.zeros((5, FETCH_WIDTH), np.int64), np.zeros((7, PARTITION_WIDTH), np.int64)
    rows, inner, begun = fetches_of(fetches), partitions_of(partitions), np.arange(15).reshape(3, 5)
    rows["ordinal"], rows["partitions"] = range(5), sizes
    inner["partition"] = [0, 0, 2, 3, 4, 5, 6]
    assert keep(fetches, partitions, begun, np.arange(5)) == (0, 0)
    assert keep(fetches, partitions, begun, np.zeros(0, np.int64)) == (5, 7)
    assert keep(fetches, partitions, begun, np.array(due)) == (3, 4)
    assert rows["ordinal"][2:].tolist() == [1, 3, 4]
    assert inner["partition"][3:].tolist() == [3, 4, 5, 6]
    assert begun[:, 2:].tolist() == [[1, 3, 4], [6, 8, 9], [11, 13, 14]]


def test_data_that_was_there_is_all_excess() -> None:
    """A watermark told before: the fetch below it had nothing to wait for."""
    rows = [fetch(0, 0, 500.0), fetch(1, 600, 80.0, record_bytes=700)]
    assert held(rows, [part(0, fetch_offset=10), part(1, record_bytes=700)])[1] == ("immediate", 80.0)
    # It moved meanwhile: at least a record was there, but 100 bytes?
    moved = [part(0, fetch_offset=10), part(1, record_bytes=700, high_watermark=11)]
    assert held(rows, moved)[1] == ("immediate", 80.0)
    rows[1]["min_bytes"] = 100
    assert held(rows, moved)[1] == ("data", None)
    assert held(rows, [part(0, fetch_offset=10), part(1, record_bytes=700)])[1] == ("immediate", 80.0)


def test_read_committed_goes_by_the_last_stable_offset() -> None:
    rows = [fetch(0, 0, 500.0, isolation_level=1), fetch(1, 600, 80.0, record_bytes=70, isolation_level=1)]
    parts = [part(0, last_stable_offset=5), part(1, record_bytes=70, fetch_offset=5)]
    assert held(rows, parts)[1] == ("data", None)
    parts[1]["fetch_offset"] = 4
    assert held(rows, parts)[1] == ("immediate", 80.0)


def test_list_offsets_tells_watermarks_too() -> None:
    exchanges = made("exchanges", [{"exchange_id": f"{A}:0", "broker": "1", "response_last_at": START}])
    asked = {"exchange_id": f"{A}:0", "topic": "t", "partition": 0, "asked": "latest", "offset": 10, "error_code": 0}
    offsets = made("list_offsets", [asked | {"isolation_level": 0}])
    at = pa.array([START], pa.int64()).cast(pa.timestamp("us", "UTC"))
    place = exchanges.schema.get_field_index("response_first_at")
    told = with_instants(Rows.of(offsets), Rows.of(exchanges.set_column(place, "response_first_at", at))).table()
    rows = [fetch(1, 600, 80.0, record_bytes=70)]
    assert Holding().feed(rows, [part(1, record_bytes=70)], None, told)["hold"].to_pylist() == ["immediate"]


@pytest.mark.parametrize("cut", [1, 150, 550, 650, 2000])
def test_what_was_there_when_a_fetch_asked_is_what_was_told_by_then(cut: float) -> None:
    """Not what is told until it is answered, wherever rows are cut: of watermarks as of throttle windows."""
    other, third = "00000000000000bb", "00000000000000cc"
    rows = [
        fetch(0, 0, 500.0),
        fetch(0, 100, 600.0, connection=other, record_bytes=70),
        fetch(1, 510, 80.0, record_bytes=70),
        fetch(0, 120, 40.0, connection=third, throttle_ms=300.0),
        fetch(1, 170, 450.0, connection=third, record_bytes=9, throttle_ms=200.0),
        fetch(2, 630, 190.0, connection=third, record_bytes=9),
    ]
    parts = [part(0, fetch_offset=10), part(0, connection=other, record_bytes=70), part(1, record_bytes=70)]
    tracker = Holding()
    first = tracker.feed(rows, parts, None, None, START + int(cut * 1000))
    found = pa.concat_tables([table for table in (first, tracker.finish()) if table.num_rows])
    holds = dict(zip(found["exchange_id"].to_pylist(), found["hold"].to_pylist(), strict=True))
    assert holds == {
        f"{A}:0": "timeout", f"{other}:0": "data", f"{A}:1": "immediate", f"{third}:0": "throttled",
        f"{third}:1": "throttled", f"{third}:2": "throttled",
    }  # fmt: skip


@settings(max_examples=12)
@given(st.lists(st.integers(0, 60_000_000), max_size=6))
def test_any_cut_gives_the_same_holds(cuts: list[int]) -> None:
    """A recorded capture, block by block under a watermark."""
    name = "k4_slow_and_throttled"
    tables, types = raw(name), messages(name)
    stage = Stages({key: ASKED[key] for key in ("exchanges", "fetches", "fetch_sessions")})
    exchanges = tables["exchanges"]
    used = exchanges["request_last_at"].cast(pa.int64()).to_pylist()
    back = exchanges["response_first_at"].cast(pa.int64()).to_pylist()
    done = [back[i] if back[i] is not None else used[i] for i in range(len(used))]
    begin = min(at for at in done if at is not None)
    edges = [*sorted(begin + cut for cut in cuts), None]
    parts: dict[str, list[pa.Table]] = {}
    earlier = None
    for edge in edges:
        mine = {
            name
            for name, at in zip(exchanges["exchange_id"].to_pylist(), done, strict=True)
            if (earlier is None or at >= earlier) and (edge is None or at < edge)
        }
        rest = [
            at
            for at, end in zip(used, done, strict=True)
            if edge is not None and end is not None and end >= edge and at is not None
        ]
        mark = min([*rest, edge]) if edge is not None else 2**63 - 1
        block = {
            key: table.filter(pa.array([name in mine for name in table["exchange_id"].to_pylist()], pa.bool_()))
            for key, table in tables.items()
            if key not in ("connections", "api_versions")
        }
        some = {
            key: table.filter(pa.array([name in mine for name in table["exchange_id"].to_pylist()], pa.bool_()))
            for key, table in types.items()
        }
        for key, found in as_tables(stage.feed(as_rows(block), some, mark)).items():
            parts.setdefault(key, []).append(found)
        earlier = edge
    for key, found in as_tables(stage.finish()).items():
        parts.setdefault(key, []).append(found)
    whole = analysed(name)
    for key, order in (("exchanges", "exchange_id"), ("fetches", "exchange_id"), ("fetch_sessions", "session_key")):
        got = pa.concat_tables([part for part in parts[key] if part.num_rows], promote_options="permissive")
        columns = [column for column in whole[key].column_names if column != "shard"]
        rows = [
            sorted(table.select(columns).to_pylist(), key=lambda row: str(row[order])) for table in (got, whole[key])
        ]
        assert rows[0] == rows[1], key


REMOTE = re.compile(r'remoteTime(?:Ms"?)?:([\d.]+)')


@pytest.mark.whole
@pytest.mark.oracle
def test_data_that_was_waited_for_and_data_that_was_there() -> None:
    """remoteTimeMs is how long a fetch lay in purgatory: below 1 ms nothing was waited for."""
    right = rows = 0
    for log in [
        *sorted(CAPTURES.glob("*.requests.log.zst")),
        *sorted((CAPTURES / "stories").glob("*.requests.log.zst")),
    ]:
        capture = log.with_name(log.name.replace(".requests.log.zst", ".pcap"))
        opened = kdissect.open(capture if capture.exists() else f"{capture}.zst")
        held = opened.table("exchanges", where="api = 'Fetch'").to_pylist()
        for entry, row in match([one for one in read(log) if one.key == 1], held).pairs:
            found = REMOTE.search(entry.line)
            if found is not None and row["hold"] in ("data", "immediate"):
                rows += 1
                right += (float(found[1]) >= 1) == (row["hold"] == "data")
    print(f"{rows} fetches, {right / rows:.1%} as the log has them")
    assert rows > 8000
    assert right >= 0.95 * rows


def test_what_is_told_in_order_is_taken_over_and_the_rest_is_left() -> None:
    high, n = np.array([5, 5, 6, 7, 7, 8]), np.array([0, 1, 0, 0, 1, 0])
    told = np.array([1, 3, 5])
    holds, waits, left = np.full(6, -1, np.int8), np.full((2, 6), np.nan), np.empty(6, np.int64)
    rows = np.array([0, 1, 3, 5])
    found = take_over(
        high, n, rows, high[told], n[told], np.array([2, 3, 4], np.int8), np.array([[1.0] * 3, [2.0] * 3]), holds,
        waits, left, 0,
    )  # fmt: skip
    assert found == (1, 3)
    assert left[:1].tolist() == [0]
    assert holds.tolist() == [-1, 2, -1, 3, -1, 4]
    assert [np.flatnonzero(row == ms).tolist() for row, ms in zip(waits, (1, 2), strict=True)] == [[1, 3, 5]] * 2

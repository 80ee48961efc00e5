"""The session tracker against the literal model, whatever the clients do and however the rows are cut."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kdissect.analysis.sessions import session_layout
from kdissect.analysis.sessions.session_output import fetch_columns
from kdissect.analysis.sessions.tracker import NO_WATERMARK, SessionTracker
from kdissect.arrays.rows import Rows
from kdissect.tables.fetch_rows import FETCH_WIDTH
from tests.analysis.model import MAX, Broker, Cached, Key, Session
from tests.analysis.wire import WireRows

TOPICS = ("a", "topic-b", "c" * 140)
FETCH_COLUMNS = (
    "request_kind", "expected_epoch", "epoch_status", "session_outcome", "session_key", "partitions_added",
    "partitions_altered", "partitions_replaced", "implied_partitions", "hidden_partitions",
)  # fmt: skip

partitions = st.sets(st.tuples(st.integers(0, 2), st.integers(0, 3)), max_size=6)
slots = st.integers(0, 3)
operation = st.one_of(
    st.tuples(st.just("create"), slots, partitions, st.sampled_from([7, 9, 11, 12, 13, 17]), st.integers(0, 9)),
    st.tuples(
        st.just("fetch"), slots, partitions, partitions, st.sampled_from([0, 0, 0, 0, 0, -1, 1, 5, -3]),
        st.integers(0, 19),
    ),
    st.tuples(st.just("fetch"), slots, st.just(set()), st.just(set()), st.just(0), st.just(9)),
    st.tuples(st.just("end"), slots, st.sampled_from(["replace", "close", "evict", "other version", "unknown"])),
    st.tuples(st.just("log"), st.integers(0, 2), st.integers(0, 3), st.integers(0, 6)),
    st.tuples(st.just("topic"), st.integers(0, 2)),
    st.tuples(st.just("old"), slots, partitions, st.sampled_from([1, 7, MAX - 1, MAX])),
    st.tuples(st.just("connect"), st.integers(0, 3)),
)  # fmt: skip


class Clients:
    """Runs operations against the model broker: eight session slots, used by four clients."""

    def __init__(self, broker: Broker | None = None) -> None:
        self.broker = broker or Broker()
        self.ids = [0] * 8
        """Session id per slot as its client believes."""
        self.epochs = [0] * 8
        self.versions = [13] * 8
        self.topic_ids = [0, 0, 0]
        self.connections = [0, 0, 0, 0]
        self.next_id = 100

    def keys(self, chosen: set[tuple[int, int]], version: int, old: bool = False) -> list[Key]:
        found = []
        for topic, partition in sorted(chosen):
            number = max(0, self.topic_ids[topic] - old)
            name = f"{topic}{number}".ljust(22, "A") if version >= 13 else None
            found.append((TOPICS[topic], name, partition))
        return found

    def ask(self, at: int, number: int, epoch: int, **more: Any) -> int:
        who = at % 4
        connection = f"{who:08x}{self.connections[who]:08x}"
        return self.broker.ask(number, epoch, client=f"client-{who}", connection=connection, **more)

    def run(self, steps: list[tuple[Any, ...]]) -> Broker:
        for step in steps:
            getattr(self, step[0])(*step[1:])
        return self.broker

    def create(self, slot: int, chosen: set[tuple[int, int]], version: int, luck: int) -> None:
        self.next_id += 1
        new = 100 if luck == 1 else self.next_id  # sometimes an id comes again
        named = dict.fromkeys(self.keys(chosen, version), 3)
        replaced = self.ids[slot] if luck in (2, 3) else 0
        told = self.ask(
            slot, replaced, 0, named=named, version=version, new_id=new, slot=luck != 4,
            throttle=500 if luck == 5 else 0, answered=luck != 6,
        )  # fmt: skip
        self.ids[slot], self.epochs[slot], self.versions[slot] = told, 1, version

    def fetch(
        self, slot: int, chosen: set[tuple[int, int]], dropped: set[tuple[int, int]], off: int, luck: int
    ) -> None:
        version = self.versions[slot]
        if not self.ids[slot]:
            named = dict.fromkeys(self.keys(chosen, version), 0)
            self.ask(slot, 0, -1, named=named, version=version)
            return
        epoch = (self.epochs[slot] + off - 1) % MAX + 1
        named = dict.fromkeys(self.keys(chosen, version), luck)
        forgotten = self.keys(dropped, version, old=luck % 2 == 0)
        answered = luck != 1
        self.ask(
            slot, self.ids[slot], epoch, named=named, forgotten=forgotten, version=version, answered=answered,
            throttle=300 if luck == 2 else 0,
        )  # fmt: skip
        session = self.broker.cache.get(self.ids[slot])
        if session:
            self.epochs[slot] = session.epoch

    def end(self, slot: int, how: str) -> None:
        number, version = self.ids[slot], self.versions[slot]
        if how == "evict":
            self.broker.cache.pop(number, None)
        elif how == "close":
            self.ask(slot, number, -1, version=version)
        elif how == "replace":
            self.next_id += 1
            named = dict.fromkeys(self.keys({(0, 0), (1, 1)}, version), 0)
            self.ids[slot] = self.ask(slot, number, 0, named=named, version=version, new_id=self.next_id)
            self.epochs[slot] = 1
        elif how == "other version" and number:
            self.ask(slot, number, self.epochs[slot], version=12 if version >= 13 else 13)
        else:
            self.ask(slot, 999_999, 4, version=version)

    def log(self, topic: int, partition: int, what: int) -> None:
        log = self.broker.log((TOPICS[topic], None, partition))
        if what < 3:
            log.high += what
        log.start += what == 3
        log.error = 6 if what == 4 else 0
        log.preferred = 2 if what == 5 else -1
        log.diverging = 1 if what == 6 else -1

    def topic(self, topic: int) -> None:
        self.topic_ids[topic] += 1

    def old(self, slot: int, chosen: set[tuple[int, int]], epoch: int) -> None:
        """A session from before the capture."""
        self.next_id += 1
        session = Session(self.next_id, True, epoch)
        session.parts = {key: Cached(0) for key in self.keys(chosen | {(0, 0)}, 13)}
        self.broker.cache[session.number] = session
        self.ids[slot], self.epochs[slot], self.versions[slot] = session.number, epoch, 13

    def connect(self, who: int) -> None:
        self.connections[who] += 1


def tracked(parts: list[tuple[pa.Table, pa.Table, int | None]]) -> dict[str, pa.Table]:
    tracker = SessionTracker()
    found = [
        tracker.feed(Rows.of(fetches), Rows.of(named), NO_WATERMARK if mark is None else mark)
        for fetches, named, mark in parts
    ]
    found.append(tracker.finish())
    return {
        name: Rows.together([getattr(part, name) for part in found]).table()
        for name in ("fetches", "partitions", "sessions", "stays")
    }


def test_columns_of_a_fetch_stay_when_the_memory_of_its_rows_is_used_again() -> None:
    """One row is a column that lies in one piece as it is."""
    rows, uses = np.zeros((1, FETCH_WIDTH), np.int64), np.zeros((1, session_layout.USE_WIDTH), np.int64)
    columns = fetch_columns(rows, uses, pa.array(["key"]))
    before = {name: column.to_pylist() for name, column in columns.items()}
    rows[:] = 7
    assert {name: column.to_pylist() for name, column in columns.items()} == before


def plain(table: pa.Table, columns: list[str]) -> list[dict[str, Any]]:
    rows = table.select(columns).to_pylist()
    for row in rows:
        for name, value in row.items():
            if hasattr(value, "timestamp"):
                row[name] = round(value.timestamp() * 1_000_000)
    return rows


def check(broker: Broker, found: dict[str, pa.Table]) -> None:
    broker.finish()
    expected = {row["exchange_id"]: want for row, want in zip(broker.rows.fetches, broker.expected, strict=True)}
    rows = found["fetches"].select(["exchange_id", *FETCH_COLUMNS]).to_pylist()
    assert len(rows) == len(expected)
    for row in rows:
        exchange = row.pop("exchange_id")
        assert row == expected[exchange], exchange
    keys = ["exchange_id", "topic", "topic_id", "partition"]
    reasons = {
        tuple(row[key] for key in keys): why for row, why in zip(broker.rows.partitions, broker.reasons, strict=True)
    }
    censored = {row["session_key"] for row in broker.sessions if row["left_censored"]}
    owner = {row["exchange_id"]: row["session_key"] for row in found["fetches"].to_pylist()}
    for row in found["partitions"].to_pylist():
        want = reasons[tuple(row[key] for key in keys)]
        if row["reason"] == "unknown":  # only where what was sent before was not captured
            assert owner[row["exchange_id"]] in censored
            assert want in ("high_watermark", "log_start_offset")
        else:
            assert row["reason"] == want or owner[row["exchange_id"]] in censored
    columns = found["sessions"].column_names
    got = {row["session_key"]: row for row in plain(found["sessions"], columns)}
    for want in broker.sessions:
        row = got.pop(want["session_key"])
        assert {name: value for name, value in row.items() if name not in ("shard", "cluster")} == {
            name: value for name, value in want.items() if name != "shard"
        }
        assert row["shard"] in (None, 0)
    assert not got
    shown = [name for name in found["stays"].column_names if name not in ("cluster", "_connection")]
    stays = plain(found["stays"], shown)
    key = lambda row: tuple(str(value) for value in row.values())  # noqa: E731
    assert sorted(stays, key=key) == sorted(broker.stays, key=key)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(operation, min_size=25, max_size=60))
def test_every_column_as_the_model_says(steps: list[tuple[Any, ...]]) -> None:
    broker = Clients().run(steps)
    fetches, named = broker.rows.tables()
    check(broker, tracked([(fetches, named, None)]))


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(operation, min_size=20, max_size=40), st.data())
def test_any_cut_gives_the_same_rows(steps: list[tuple[Any, ...]], data: st.DataObject) -> None:
    broker = Clients().run(steps)
    rows = broker.rows
    order = data.draw(st.permutations(range(len(rows.fetches))))
    shuffled = WireRows([rows.fetches[i] for i in order], rows.partitions)
    cuts = data.draw(st.lists(st.integers(0, len(order)), max_size=5))
    parts: list[tuple[pa.Table, pa.Table, int | None]] = []
    tables = shuffled.parts(cuts)
    edges = [*sorted(cuts), len(order)]
    for end, (fetches, named) in zip(edges, tables, strict=True):
        later = [row["request_last_at"] for row in shuffled.fetches[end:]]
        mark = min(later, default=2**62)
        parts.append((fetches, named, mark))
    check(broker, tracked(parts))

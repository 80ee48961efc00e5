"""Figures of live traffic: what `Watch` reports, counted by broker, client, topic and API, in bounded memory.

Rules.

- All figures are of one instant, that of the latest `Moment`: a caller between two moments sees the first of them.
- An exchange is counted when it finished, with its latency. Whose time it was within the broker (its own, the agreed
  wait, the followers') is known, and counted, when the analysis settled the row: at most a second later.
- Fetch: the broker's time beyond the agreed wait (`excess_ms`) is its own. Where that is not known of an answer that
  came by the agreed wait, nothing is counted as its own. JoinGroup and SyncGroup wait for others as agreed, and what a
  Produce waited for followers is theirs.
- A broker has one line from the moment its node id is known: what was counted under its address goes there. Whether it
  stands still or is gone, `kdissect.live.brokers.broker_states` says.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kdissect.analysis.exchange_keys import keys_of, locate
from kdissect.arrays.arrow import Flags, ints, one, reals
from kdissect.capture.block import Block
from kdissect.live.brokers.broker_states import BrokerStates, instant
from kdissect.live.labels import CELLS, PARTS, Dimension, Floats, Ints
from kdissect.live.moment import Moment, Waiting
from kdissect.schema.apikeys import ApiKey

if TYPE_CHECKING:
    from kdissect.live.delivery_figures import DeliveryFigures

WINDOW_S = 10.0
PARTITIONS = 4096
"""Partitions of a client and topic whose lag is remembered."""
RECENT = 2000
"""Exchanges that are remembered for a look at one client."""
ALERTS = 200
COLUMN_OF = {"broker": "broker", "client": "client_id", "api": "api"}
"""By dimension, the column of `exchanges` that it goes by."""
LIMITS = {"broker": 50, "client": 50, "topic": 50, "api": 100}
LATENCY, BROKER, AGREED, REPLICATION, NETWORK, QUEUED, TRANSFER = range(len(PARTS))
WAITED = ("timeout", "data")
PAIRS = 512
"""Combinations of client and topic whose lag is shown, and of API and error, the first ones; the rest as `other`."""


def texts(table: pa.Table, name: str) -> pa.Array:
    """A column as plain strings."""
    column = one(table, name)
    return pa.nulls(table.num_rows, pa.string()) if column is None else column.cast(pa.string())


class Figures:
    """The figures of the traffic; a `Listener` of `Watch`. `lock` guards everything against other threads.

    `window_s`: seconds that rates and quantiles are over. `deliveries`: those are counted, too; `Watch` has to read
    `DeliveryFigures.read` then.
    """

    def __init__(self, window_s: float = WINDOW_S, deliveries: bool = False) -> None:
        self.lock = threading.RLock()
        self.window_s = window_s
        self.now_us = 0
        """The instant that all figures are of, by the capture's clock; 0 before any packet."""
        cell_us = max(1, int(window_s * 1e6 / CELLS))
        self.of = {name: Dimension(name, limit, cell_us) for name, limit in LIMITS.items()}
        self.deliveries: DeliveryFigures | None = None
        if deliveries:
            from kdissect.live.delivery_figures import DeliveryFigures

            self.deliveries = DeliveryFigures(window_s)
        self.statuses: Counter[tuple[str, str]] = Counter()
        """By API and status, since the beginning; APIs are those of the protocol."""
        self.error_codes: Counter[tuple[str, str]] = Counter()
        self.lags: dict[tuple[str, str], dict[int, int]] = {}
        """By client and topic, the latest lag of each partition."""
        self.sessions: Counter[str] = Counter()
        self.sessions_ended: Counter[tuple[str, str]] = Counter()
        self.problems: Counter[str] = Counter()
        self.problem_bytes: Counter[str] = Counter()
        self.connections = 0
        self.packets_read = self.bytes_read = self.segments = self.left_out = 0
        self.dropped: int | None = None
        """Packets that the kernel dropped before they were captured; None: not known."""
        self._unpublished: list[tuple[int, int, int, int]] = []
        """Of the blocks since the latest moment: packets, bytes, segments, segments left out."""
        self.waits: list[Waiting] = []
        self.findings: deque[dict[str, Any]] = deque(maxlen=ALERTS)
        self.share = 1.0
        """Share of connections that is worked on."""
        self.behind_s = 0.0
        self.ended = False
        """Nothing more will come, findings neither."""
        self.error = ""
        """Why reading ended before its time."""
        self.states = BrokerStates()
        self._recent: deque[dict[str, Any]] = deque(maxlen=RECENT)

    # ---- reported by Watch

    def packets(self, block: Block, analysed: int, seen: int) -> None:
        """As `Listener.packets`."""
        from kdissect.capture.pcap import PACKET

        if not block.idle:
            size = int(block.packets[:, PACKET.original].sum())
            self._unpublished.append((len(block.packets), size, seen, seen - analysed))

    def tick(self, moment: Moment) -> None:
        """As `Listener.tick`."""
        with self.lock:
            self.now_us = max(self.now_us, moment.now_ns // 1000)
            for dimension in self.of.values():
                dimension.advance(self.now_us)
            for packets, size, segments, left_out in self._unpublished:
                self.packets_read += packets
                self.bytes_read += size
                self.segments += segments
                self.left_out += left_out
            self._unpublished.clear()
            self._rename_brokers(moment.renamed)
            self._count_answered(moment.answered)
            self.states.note_listings(moment.listings)
            for tables in moment.settled:
                self._count_settled(tables)
            self.connections = moment.connections
            if moment.shed is not None:
                self.problems.update(moment.shed.problems)
                self.problem_bytes.update(moment.shed.problem_bytes)
            self.waits = sorted(moment.waits, key=lambda wait: wait.since_us)
            self.sessions = Counter[str]()
            for broker, alive in moment.sessions.items():
                self.sessions[moment.broker_names.get(broker, broker)] += alive
            self._judge(moment)

    def note_deliveries(self, moment: Moment | None) -> None:
        """Count the deliveries of a moment after its `tick`; None: after the last one. `lock` is taken for the counting
        alone, which takes no time, next to joining."""
        figures = self.deliveries
        if figures is None:
            return
        made = figures.finish() if moment is None else figures.keep_rows(moment)
        with self.lock:
            figures.of.advance(self.now_us)
            if made is not None:
                figures.count(made)

    # ---- counting

    def _count_answered(self, tables: Mapping[str, pa.Table]) -> None:
        """Exchanges that finished, with what is known of them before the analysis."""
        exchanges = tables["exchanges"]
        if exchanges.num_rows:
            self.states.note_answers(exchanges)
            self._count_exchanges(exchanges)
        self._topics(tables)

    def _count_settled(self, tables: Mapping[str, pa.Table]) -> None:
        """Counts the values that the analysis adds to rows that were counted before."""
        exchanges, fetches, ended = (tables.get(name) for name in ("exchanges", "fetches", "fetch_sessions"))
        if exchanges is not None and exchanges.num_rows:
            self._share_out(exchanges)
            self._remember(exchanges)
        if fetches is not None and fetches.num_rows:
            self._fetches(fetches)
        if ended is not None:
            for row in ended.select(["broker", "end_reason"]).to_pylist():
                self.sessions_ended[row["broker"] or "", row["end_reason"]] += 1

    def _basics(self, table: pa.Table) -> tuple[Ints, Flags, Ints]:
        """When each exchange was done (or started, without an answer), whether it failed, and its bytes."""
        begun, done = ints(table, "request_first_at", 0), ints(table, "response_last_at", 0)
        at = np.where(done > 0, done, np.where(begun > 0, begun, self.now_us))
        failed = np.asarray(pc.fill_null(pc.equal(texts(table, "status"), "error"), False))
        size = np.maximum(ints(table, "request_bytes", 0), 0) + np.maximum(ints(table, "response_bytes", 0), 0)
        return at, failed, size

    @staticmethod
    def _parts(table: pa.Table) -> list[tuple[int, Floats]]:
        """Whose time, but for what only the analysis knows."""
        transfer = np.stack([reals(table, "request_transfer_ms"), reals(table, "response_transfer_ms")])
        nothing = np.isnan(transfer).all(axis=0)
        return [
            (LATENCY, reals(table, "latency_ms")),
            (NETWORK, reals(table, "network_ms")),
            (QUEUED, reals(table, "queued_ms")),
            (TRANSFER, np.where(nothing, np.nan, np.nan_to_num(transfer).sum(axis=0))),
        ]

    def _count_exchanges(self, table: pa.Table) -> None:
        at, failed, size = self._basics(table)
        parts = self._parts(table)
        for name, column in COLUMN_OF.items():
            dimension = self.of[name]
            place = dimension.places(one(table, column))
            dimension.add(place, at, failed, size)
            for part, took in parts:
                dimension.time(part, place, at, took)
        pairs = pa.table({"api": texts(table, "api"), "status": texts(table, "status")}).group_by(["api", "status"])
        for row in pairs.aggregate([([], "count_all")]).to_pylist():
            self.statuses[self._bounded(self.statuses, (row["api"] or "", row["status"]))] += row["count_all"]
        errors = pa.table({"api": texts(table, "api"), "error": texts(table, "error")})
        for row in (
            errors.filter(pa.array(failed)).group_by(["api", "error"]).aggregate([([], "count_all")]).to_pylist()
        ):
            key_of = self._bounded(self.error_codes, (row["api"] or "", row["error"] or ""))
            self.error_codes[key_of] += row["count_all"]

    def _share_out(self, table: pa.Table) -> None:
        """Whose time it was within the broker: its own, the agreed wait, the followers'. Fetches: see `_fetches`."""
        at, _, _ = self._basics(table)
        fetch = ints(table, "api_key", -1) == ApiKey.FETCH
        followers, held = reals(table, "replication_ms"), np.nan_to_num(reals(table, "throttled_ms"))
        waited = np.nan_to_num(reals(table, "agreed_ms")) + held
        own = reals(table, "broker_ms") - np.nan_to_num(followers) - waited
        parts = [
            (BROKER, np.where(fetch | ((waited > 0) & (own <= 0)), np.nan, np.maximum(own, 0.0))),
            (REPLICATION, followers),
            (AGREED, np.where(fetch | (waited == 0), np.nan, waited)),
        ]
        for name, column in COLUMN_OF.items():
            place = self.of[name].places_known(one(table, column))
            for part, took in parts:
                self.of[name].time(part, place, at, took)

    @staticmethod
    def _bounded(counted: Counter[tuple[str, str]], key: tuple[str, str]) -> tuple[str, str]:
        """The key, or that of all others where there are too many."""
        return key if key in counted or len(counted) < PAIRS else ("other", key[1] if key[1].islower() else "other")

    def _fetches(self, table: pa.Table) -> None:
        """The agreed part of a Fetch's time, and the rest."""
        broker_ms, excess = reals(table, "broker_ms"), reals(table, "excess_ms")
        waited = np.asarray(pc.fill_null(pc.is_in(texts(table, "hold"), pa.array(WAITED)), False))
        unknown = np.isnan(excess)
        own = np.where(unknown, np.where(waited, np.nan, broker_ms), np.minimum(excess, broker_ms))
        agreed = np.where(waited, broker_ms - np.nan_to_num(own), np.nan)
        came = ints(table, "response_first_at", 0)
        at = np.where(came > 0, came, self.now_us)
        api = pa.array(["Fetch"] * table.num_rows)
        for name, column in (("broker", one(table, "broker")), ("client", one(table, "client_id")), ("api", api)):
            place = self.of[name].places_known(column)
            self.of[name].time(BROKER, place, at, own)
            self.of[name].time(AGREED, place, at, agreed)
        self.states.note_waits(table)

    def _topics(self, tables: Mapping[str, pa.Table]) -> None:
        """Exchanges, records and lag by topic."""
        exchanges, batches = tables["exchanges"], tables["record_batches"]
        partitions, fetches = tables["fetch_partitions"], tables["fetches"]
        topics = self.of["topic"]
        named = []
        for table, rows in ((batches, batches.num_rows), (partitions, partitions.num_rows)):
            if rows:
                at = locate(keys_of(table), keys_of(exchanges))
                named.append((at, topics.places(one(table, "topic"))))
        if batches.num_rows:
            place = named[0][1]
            cell = np.full(len(place), topics.cell % CELLS)
            np.add.at(topics.records, (cell, place), np.maximum(ints(batches, "records", 0), 0))
        if named:
            pairs = np.unique(np.concatenate([np.stack(one_of, axis=1) for one_of in named]), axis=0)
            pairs = pairs[pairs[:, 0] >= 0]
            self._of_topics(exchanges.take(pa.array(pairs[:, 0])), pairs[:, 1])
        if partitions.num_rows and fetches.num_rows:
            self._lags(partitions, fetches)

    def _of_topics(self, exchanges: pa.Table, place: Ints) -> None:
        """Exchanges, each with a topic that it names."""
        at, failed, size = self._basics(exchanges)
        self.of["topic"].add(place, at, failed, size)
        for part, took in self._parts(exchanges):
            self.of["topic"].time(part, place, at, took)

    def _lags(self, partitions: pa.Table, fetches: pa.Table) -> None:
        at = locate(keys_of(partitions), keys_of(fetches))
        lag = ints(partitions, "lag", -1)
        known = np.flatnonzero((lag >= 0) & (at >= 0))
        clients = texts(fetches, "client_id").take(pa.array(at[known])).to_pylist()
        names = texts(partitions, "topic").take(pa.array(known)).to_pylist()
        numbers = ints(partitions, "partition", -1)[known].tolist()
        for client, topic, number, value in zip(clients, names, numbers, lag[known].tolist(), strict=True):
            pair = (client or "", topic or "")
            if pair in self.lags or len(self.lags) < PAIRS:
                of = self.lags.setdefault(pair, {})
                if number in of or len(of) < PARTITIONS:
                    of[number] = value

    def _remember(self, table: pa.Table) -> None:
        columns = [
            "exchange_id", "request_first_at", "client_id", "broker", "api", "api_version", "status", "error",
            "latency_ms", "broker_ms", "network_ms", "queued_ms", "hold", "request_bytes", "response_bytes",
        ]  # fmt: skip
        self._recent.extend(table.slice(max(0, table.num_rows - RECENT)).select(columns).to_pylist())

    # ---- judging

    def _judge(self, moment: Moment) -> None:
        self.states.note_drops(self.dropped, self.now_us)
        for change in self.states.judge(self.now_us, self.waits, moment.links, self.share):
            self.alert(change.id, change.severity, change.at_us, change.text, change.broker)

    def _rename_brokers(self, renamed: Sequence[tuple[str, str]]) -> None:
        """Give what was counted under a broker's old name to its new one."""
        for old, new in renamed:
            self.of["broker"].rename(old, new)
            self.states.rename(old, new)
            for broker, reason in [pair for pair in self.sessions_ended if pair[0] == old]:
                self.sessions_ended[new, reason] += self.sessions_ended.pop((broker, reason))
            for number, one_finding in enumerate(self.findings):
                if one_finding["broker"] == old:
                    text = one_finding["text"].replace(f"broker {old} ", f"broker {new} ")
                    self.findings[number] = {**one_finding, "broker": new, "text": text}

    def alert(self, kind: str, severity: str, at_us: int, text: str, broker: str | None = None) -> None:
        """A finding of ours, or of the tables'."""
        with self.lock:
            found = {"at": instant(at_us), "id": kind, "severity": severity, "text": text, "broker": broker}
            self.findings.append(found)

    def add_finding(self, row: Mapping[str, Any]) -> None:
        """A row of `findings`, new, with what explains it (`explained_by`: the id of another one, or None)."""
        with self.lock:
            self.findings.append({"at": row["first_at"], **row})

    # ---- asked

    def recent(self, client: str | None) -> list[dict[str, Any]]:
        """The latest exchanges of a client that are remembered, oldest first."""
        with self.lock:
            return [row for row in self._recent if (row["client_id"] or "(unknown)") == client]

    def snapshot(self) -> dict[str, Any]:
        """Everything that is shown, as JSON has it: durations in ms, rates per second over the window, times in UTC."""
        with self.lock:
            now = self.now_us
            tables = {name: dimension.lines() for name, dimension in self.of.items()}
            self._join(tables, now)
            return {
                "at": instant(now) if now else None,
                "window_s": self.window_s,
                "packets": self.packets_read,
                "bytes": self.bytes_read,
                "connections": self.connections,
                "exchanges": sum(self.statuses.values()),
                "errors": sum(self.error_codes.values()),
                "share": self.share,
                "left_out_segments": self.left_out,
                "segments": self.segments,
                "behind_s": round(self.behind_s, 3),
                "dropped_packets": self.dropped,
                "missing_bytes": self.problem_bytes["missing_bytes"],
                "problems": dict(self.problems),
                "waiting": len(self.waits),
                "standing_still": sorted(self.states.still),
                "gone": sorted(self.states.gone),
                "brokers": tables["broker"],
                "clients": tables["client"],
                "topics": tables["topic"],
                "apis": tables["api"],
                "deliveries": [] if self.deliveries is None else self.deliveries.lines(),
                "findings": list(self.findings),
                "ended": self.ended,
            }

    def _join(self, tables: Mapping[str, list[dict[str, Any]]], now: int) -> None:
        """Adds the figures that do not come from exchanges: waiting members, sessions, lag."""
        by: dict[str, dict[str, list[Waiting]]] = {"broker": {}, "client": {}, "api": {}}
        for wait in self.waits:
            for name, value in (("broker", wait.broker), ("client", wait.client_id), ("api", wait.api)):
                by[name].setdefault(value or "(unknown)", []).append(wait)
        lag: dict[str, Counter[str]] = {"client": Counter(), "topic": Counter()}
        for (client, topic), partitions in self.lags.items():
            lag["client"][client] += sum(partitions.values())
            lag["topic"][topic] = max(lag["topic"][topic], sum(partitions.values()))
        for name, lines in tables.items():
            for line in lines:
                mine = by.get(name, {}).get(line["name"], [])
                line["waiting"] = sum(wait.count for wait in mine)
                line["waiting_ms"] = max((now - wait.since_us) / 1000 for wait in mine) if mine else None
                if name == "broker":
                    line["sessions"] = self.sessions.get(line["name"], 0)
                    line["standing_still"] = line["name"] in self.states.still
                    gone = self.states.gone.get(line["name"])
                    line["gone"] = gone is not None
                    line["gone_ms"] = None if gone is None else (now - gone) / 1000
                if name in lag:
                    line["lag"] = lag[name].get(line["name"])

"""Exchanges on the time axis: each of their parts is a span of somebody's time (contract, section 4)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from kdissect.analysis.exchange_keys import keys_of, locate
from kdissect.analysis.grouping import group, merge_spans
from kdissect.analysis.holds.throttle_windows import throttle_windows
from kdissect.analysis.ledger import time_owners as o
from kdissect.analysis.ledger.interval_sweep import Spans
from kdissect.analysis.ledger.stalls import stalls
from kdissect.arrays.arrow import MILLI, NULL_TIME, Flags, Int64s, encoded, ints, one, reals, times
from kdissect.schema.apikeys import ApiKey

DATA_LANE = (ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.SHARE_FETCH)
"""Produce, Fetch, ShareFetch."""
GROUP_APIS = (ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP)
"""JoinGroup and SyncGroup."""
TRANSACTION_APIS = (ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.END_TXN, ApiKey.TXN_OFFSET_COMMIT)
"""AddPartitionsToTxn, AddOffsetsToTxn, EndTxn, TxnOffsetCommit."""
OWED = ("unanswered", "pending", "one_way", "partial")
"""Statuses of requests to which an answer, or the rest of one, never came."""
UNREAD_MS = 200.0
"""A message that took so long to get through, on a connection whose window was closed for longer than CLOSED_MS, waited
for the receiver: the first probe of a closed window comes after 200 ms."""
CLOSED_MS = 1000.0
CLOSED_SHARE = 0.5
"""Of the message's time, the least that the window was closed."""
LATEST = np.iinfo(np.int64).max
"""Later than any instant."""


class TimedExchanges:
    """Columns of `exchanges` as arrays, and each one's row in `connections`; instants in µs."""

    def __init__(self, tables: Mapping[str, pa.Table]) -> None:
        exchanges, connections = tables["exchanges"], tables["connections"]
        self.exchanges, self.connections, self.fetches = exchanges, connections, tables["fetches"]
        self.count = exchanges.num_rows
        self.key = ints(exchanges, "api_key")
        self.background = ~np.isin(self.key, DATA_LANE)
        self.hold, self.kind = words(exchanges, "hold"), words(exchanges, "network_kind")
        self.status = words(exchanges, "status")
        ids = connections["connection_id"].cast(pa.string()).combine_chunks()
        names = exchanges["connection_id"].cast(pa.string()) if self.count else pa.chunked_array([[]], pa.string())
        found = pc.index_in(names, ids).fill_null(-1)
        self.on: Int64s = found.to_numpy().astype(np.int64)
        """Row of `connections`, -1 where the table has none."""
        self.connection = np.where(self.on >= 0, self.on, connections.num_rows)
        """The code of the connection; one code for all that the table has not."""
        self.ended = np.append(times(connections, "ended_at"), NULL_TIME)[self.on]
        self.asked, self.answered = times(exchanges, "request_first_at"), times(exchanges, "response_first_at")
        self.known: Flags = (self.asked != NULL_TIME) & ~np.isnan(reals(exchanges, "broker_ms"))
        """The exchanges whose parts are known."""
        network, broker = self.micros("network_ms"), self.micros("broker_ms")
        way_up = reals(exchanges, "network_up_ms")
        up = np.where(np.isin(self.kind, o.UNACKNOWLEDGED), network, network // 2)
        up = np.where(np.isnan(way_up), up, np.minimum(np.nan_to_num(way_up) * MILLI, network)).astype(np.int64)
        self.sent = self.asked + self.micros("request_transfer_ms")
        self.there = self.sent + up
        self.begun = self.there + self.micros("queued_ms")
        self.done = self.begun + broker
        self.turn = np.minimum(self.begun + self.micros("throttled_ms"), self.done)
        """When a quota let the broker read it."""
        self.agreed = np.minimum(self.micros("agreed_ms"), self.done - self.turn)
        self.reached = self.done + network - up
        self.last = self.reached + self.micros("response_transfer_ms")

    def micros(self, name: str) -> Int64s:
        """A column of milliseconds in µs, 0 where null."""
        found: Int64s = np.round(np.nan_to_num(reals(self.exchanges, name)) * MILLI).astype(np.int64)
        return found


def words(table: pa.Table, name: str) -> npt.NDArray[np.str_]:
    """A text column as an array, "" where null or missing."""
    column = one(table, name)
    if column is None:
        return np.full(table.num_rows, "", "U1")
    codes, used = encoded(column)
    found: npt.NDArray[np.str_] = np.array([*used, ""], np.str_)[codes]
    return found


def exchange_spans(rows: TimedExchanges) -> Spans:
    """Every exchange as spans; what is empty is left out."""
    windows, window_before = throttle_windows(rows.exchanges, rows.connection)
    opening = np.append(windows.begin, LATEST)[window_before]
    closing = np.append(windows.end, LATEST)[window_before]
    parts = _Parts(opening, closing)
    known = np.flatnonzero(rows.known)
    first, sent, there, begun, turn, until, served, done, reached, last = exchange_borders(rows)
    throttle = _ranks(rows, o.THROTTLE)
    end = np.minimum(windows.end, _or_latest(rows.ended)[windows.row])
    parts.add(windows.row, windows.begin, end, throttle[windows.row])
    muted = known[window_before[known] >= 0]
    parts.add(
        muted, np.maximum(first, opening)[muted], np.minimum(last, closing)[muted], throttle[muted],
    )  # fmt: skip
    way = _ways(rows)
    broker_reads, client_reads = _unread(rows)
    transfer = _ranks(rows, o.TRANSFER)
    measured = rows.kind != ""
    waited = np.where(np.isin(rows.key, GROUP_APIS), _ranks(rows, o.GROUP), _ranks(rows, o.LONG_POLL))
    work = np.where(np.isin(rows.key, TRANSACTION_APIS), _ranks(rows, o.COORDINATED), _ranks(rows, o.SERVED))
    work = np.where(measured, work, _ranks(rows, o.UNMEASURED))
    none = np.full(rows.count, NULL_TIME)
    quota = np.isin(rows.connection, rows.connection[windows.row])
    unread = np.where(quota, throttle, _ranks(rows, o.UNREAD_REQUEST))
    parts.add_apart(known, first, sent, np.where(broker_reads, transfer, unread))
    parts.add_apart(known, sent, there, way)
    parts.add_apart(known, there, begun, np.full(rows.count, o.rank_of(o.QUEUED)))
    parts.add_apart(known, begun, turn, throttle)
    parts.add_apart(known, turn, until, waited)
    sure = served_until(rows, until, served)
    parts.add_apart(known, until, sure, work)
    parts.add_apart(known, sure, served, _ranks(rows, o.UNMEASURED))
    parts.add_apart(known, served, done, _ranks(rows, o.FOLLOWERS))
    parts.add_apart(known, done, reached, way, there)
    parts.add_apart(known, reached, last, np.where(client_reads, transfer, _ranks(rows, o.UNREAD_ANSWER)),
              np.where(broker_reads, sent, none))  # fmt: skip
    _add_stalled(parts, rows)
    _add_held(parts, rows)
    _add_unanswered(parts, rows)
    return parts.spans()


class _Parts:
    """Spans as they are found. `opening`, `closing`: the throttle window before each exchange, LATEST where there is
    none; [rows]."""

    def __init__(self, opening: Int64s, closing: Int64s) -> None:
        self._opening, self._closing = opening, closing
        self._found: list[tuple[Int64s, ...]] = []

    def add(self, row: Int64s, begin: Int64s, end: Int64s, rank: Int64s, before: Int64s | None = None) -> None:
        """Adds a span for each of these rows; the other columns are of the same length."""
        before = np.full(len(row), NULL_TIME) if before is None else before
        kept = np.flatnonzero(end > begin)
        self._found.append((row[kept], begin[kept], end[kept], rank[kept], before[kept]))

    def add_apart(self, row: Int64s, begin: Int64s, end: Int64s, rank: Int64s, before: Int64s | None = None) -> None:
        """Adds what lies outside of its connection's throttle window of a span of each of these rows; the other
        columns are of all exchanges."""
        before = None if before is None else before[row]
        begin, end, rank, opening, closing = (one[row] for one in (begin, end, rank, self._opening, self._closing))
        self.add(row, begin, np.minimum(end, opening), rank, before)
        self.add(row, np.maximum(begin, closing), end, rank, before)

    def spans(self) -> Spans:
        """All of them."""
        return Spans(*(np.concatenate([one[column] for one in self._found]) for column in range(5)))


def _ranks(rows: TimedExchanges, label: o.Label) -> Int64s:
    """The rank of a label in the lane of each exchange; [rows]."""
    found: Int64s = np.where(rows.background, o.rank_of(label, True), o.rank_of(label)).astype(np.int64)
    return found


def exchange_borders(rows: TimedExchanges) -> list[Int64s]:
    """The ten instants between the parts of each exchange by itself, [rows] each; other exchanges of its connection do
    not matter.

    In order: the request's first byte, its last byte, its arrival, its turn, end of the throttled wait. Then end of the
    agreed wait, end of the broker's work, end of replication, arrival of the response, the response's last byte."""
    until = rows.turn + rows.agreed
    replicated = np.minimum(rows.micros("replication_ms"), rows.done - until)
    return [
        rows.asked,
        rows.sent,
        rows.there,
        rows.begun,
        rows.turn,
        until,
        rows.done - replicated,
        rows.done,
        rows.reached,
        rows.last,
    ]


def served_until(rows: TimedExchanges, begin: Int64s, end: Int64s) -> Int64s:
    """Up to when each exchange, which was at its broker from `begin` to `end`, was surely there; µs, [rows].

    Its answer may have been lost once nothing gets through between its two hosts for GONE_MS, as other requests show.
    The broker's host sends it again some time after that (RFC 6298)."""
    on = rows.known & (rows.on >= 0)
    lost = on & np.isin(rows.kind, o.UNACKNOWLEDGED) & (rows.there - rows.sent >= o.GONE_MS * MILLI)
    sure = end.copy()
    if not lost.any():
        return sure
    hosts = np.append(group(rows.connections, ["client_ip", "broker_ip"]).code, -1)[rows.connection]
    mine = np.flatnonzero(on & np.isin(hosts, hosts[lost]))
    mine = mine[np.argsort(hosts[mine], kind="stable")]
    for some in np.split(mine, np.flatnonzero(np.diff(hosts[mine])) + 1):
        lows, highs = merge_spans(rows.sent[some][lost[some]], rows.there[some][lost[some]])
        gap = np.minimum(np.searchsorted(highs, begin[some], side="right"), len(lows) - 1)
        over = (highs[gap] > begin[some]) & (lows[gap] < end[some])
        sure[some[over]] = np.maximum(begin[some], lows[gap])[over]
    return sure


def _ways(rows: TimedExchanges) -> Int64s:
    """The rank of the network's time of each exchange."""
    found = _ranks(rows, o.UNMEASURED)
    for kind in o.NETWORK_KINDS:
        found = np.where(rows.kind == kind, _ranks(rows, o.Label("network", kind)), found)
    return found


def _unread(rows: TimedExchanges) -> tuple[Flags, Flags]:
    """Whether the receiver of each request, and that of each response, read: its window was not closed; bool [rows]."""
    closed = np.append(np.nan_to_num(reals(rows.connections, "zero_window_ms")), 0.0)[rows.on]

    def reads(side: str) -> Flags:
        took = np.nan_to_num(reals(rows.exchanges, f"{side}_transfer_ms"))
        flags: Flags = (took < UNREAD_MS) | (closed < CLOSED_MS) | (closed < CLOSED_SHARE * took)
        return flags

    return reads("request"), reads("response")


def _add_stalled(parts: _Parts, rows: TimedExchanges) -> None:
    """Adds the time of exchanges in flight while their broker answered no client: all of it is the broker's."""
    counted = rows.known & ~np.isin(rows.key, GROUP_APIS) & (rows.hold != "throttled")
    broker, found = stalls(rows.exchanges, rows.there, rows.done, rows.agreed, counted)
    rank = _ranks(rows, o.STALL)
    for code, low, high in found:
        held = np.flatnonzero((broker == code) & counted & (rows.there < high) & (rows.done > low))
        parts.add(held, np.maximum(rows.there[held], low), np.minimum(rows.done[held], high), rank[held])


def _add_held(parts: _Parts, rows: TimedExchanges) -> None:
    """Adds the time from an answer with records to a Fetch or ShareFetch to the next one of its connection; after the
    last ShareFetch, to the ShareAcknowledge that follows."""
    if not rows.count:
        return
    shared = rows.key == ApiKey.SHARE_FETCH
    latest = np.full(rows.connections.num_rows + 1, LATEST)
    latest[rows.connection[shared]] = NULL_TIME
    np.maximum.at(latest, rows.connection[shared], rows.asked[shared])
    share = np.flatnonzero(shared | ((rows.key == ApiKey.SHARE_ACKNOWLEDGE) & (rows.asked > latest[rows.connection])))
    at, full = share, _share_records(rows)[share]
    if rows.fetches.num_rows:
        found = locate(keys_of(rows.fetches), keys_of(rows.exchanges))
        kept = np.flatnonzero(found >= 0)
        at = np.append(at, found[kept])
        full = np.append(full, ints(rows.fetches, "record_bytes", 0)[kept] > 0)
    order = np.lexsort((rows.asked[at], rows.connection[at]))
    row, full = at[order], full[order]
    same = (rows.connection[row][1:] == rows.connection[row][:-1]) & (rows.on[row][1:] >= 0)
    follows = np.flatnonzero(same & full[:-1] & rows.known[row[:-1]] & rows.known[row[1:]])
    here, there = row[follows], row[follows + 1]
    parts.add(here, rows.last[here], rows.asked[there], np.full(len(here), o.rank_of(o.HELD)))


def _share_records(rows: TimedExchanges) -> Flags:
    """The ShareFetches that were surely answered with records; bool [rows]. Their `hold` says so: `data` is an answer
    with records, and so is `immediate` on a connection whose ShareFetches ask to wait, which `data` and `timeout` show.
    """
    share = rows.key == ApiKey.SHARE_FETCH
    data = share & (rows.hold == "data")
    asks = np.isin(rows.connection, rows.connection[data | (share & (rows.hold == "timeout"))])
    found: Flags = data | (share & asks & (rows.hold == "immediate"))
    return found


def _add_unanswered(parts: _Parts, rows: TimedExchanges) -> None:
    """Adds the time of requests whose parts are unknown, or whose answer never ended: until their answer, until a later
    request of their connection was answered, or until that ended."""
    owed = np.isin(rows.status, OWED)
    end = times(rows.exchanges, "response_last_at")
    end = np.where((end == NULL_TIME) & ~owed, rows.answered, end)
    end = np.where(owed & (end == NULL_TIME), np.minimum(_next_answers(rows), _or_latest(rows.ended)), end)
    begin = np.where(rows.known, rows.last, rows.asked)
    mine = np.flatnonzero((rows.asked != NULL_TIME) & (end != NULL_TIME) & (~rows.known | (owed & (end > rows.last))))
    parts.add(mine, begin[mine], end[mine], np.full(len(mine), o.rank_of(o.UNANSWERED)))


def _or_latest(instants: Int64s) -> Int64s:
    """Instants, the latest of all where one is unknown."""
    found: Int64s = np.where(instants == NULL_TIME, LATEST, instants)
    return found


def _next_answers(rows: TimedExchanges) -> Int64s:
    """When the first answer to a later request of the connection of each exchange came, the latest instant where none
    did; [rows]."""
    order = np.lexsort((rows.asked, rows.connection))
    answered, connection = _or_latest(rows.answered)[order], rows.connection[order]
    ranked = np.sort(answered)
    # From the back, ranks of each connection lie below those of the one before: one running minimum serves all.
    rank = np.searchsorted(ranked, answered) + connection * (len(order) + 1)
    least = np.minimum.accumulate(rank[::-1])[::-1] - connection * (len(order) + 1)
    follows = np.flatnonzero(connection[1:] == connection[:-1])
    found = np.full(rows.count, LATEST)
    found[order[follows]] = ranked[least[follows + 1]]
    return found

"""When the network between two hosts was gone: nothing that was sent was acknowledged, not even by TCP.

Several findings ask for it. `network_silent` tells it; others leave to it what it explains.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from kdissect.analysis.findings import evidence as ev
from kdissect.analysis.findings.limits import Limits
from kdissect.analysis.grouping import group, overlapping_spans
from kdissect.analysis.ledger.time_owners import GONE_MS, UNACKNOWLEDGED
from kdissect.arrays.arrow import MILLI, Flags, Int64s, distinct, encoded, reals, times
from kdissect.arrays.from_numpy import arrow_array

BOUND = "bound"
"""The `network_kind` of time of which the network had that much at most."""
EXPLAINED = 0.5
"""Share of a wait for which the network was gone, to be its reason."""


PAIRS = 4_000_000
"""Pairs of a gap and a wait near it that are looked at: half a second. Gaps of a pair of hosts lie apart, so there are
as many as that only if a host has gaps to hundreds of brokers at a time."""


class NetworkGap(NamedTuple):
    """A stretch in which requests between two hosts were not acknowledged; microseconds."""

    client_ip: str
    broker_ip: str
    begin: int
    end: int
    rows: pa.Table
    """The exchanges that were not acknowledged."""


def long_on_the_way(exchanges: pa.Table, limits: Limits) -> Any:
    """Exchanges of which the network had GONE_MS and more: the rows that `network_gaps` reads."""
    return pc.greater_equal(exchanges["network_ms"], GONE_MS)


def maybe_long_on_the_way(exchanges: pa.Table, limits: Limits) -> Any:
    """Exchanges whose network took GONE_MS and more, or may have: the rows that `possible_gaps` reads."""
    unknown = pc.and_(pc.is_null(exchanges["network_ms"]), pc.greater_equal(exchanges["broker_ms"], GONE_MS))
    return pc.or_kleene(long_on_the_way(exchanges, limits), unknown)


def network_gaps(exchanges: pa.Table, connections: pa.Table) -> list[NetworkGap]:
    """The gaps of each pair of hosts, by time."""
    lost = np.nan_to_num(reals(exchanges, "network_ms"))
    return _gaps(exchanges, connections, _of_kinds(exchanges, *UNACKNOWLEDGED) & (lost >= GONE_MS), lost)


def possible_gaps(exchanges: pa.Table, connections: pa.Table) -> list[NetworkGap]:
    """The gaps of each pair of hosts, and what may be some, by time.

    Where no acknowledgement separates the network from the broker (`network_kind` null), the network may have had all
    of a wait but for what the request had agreed to, a quota and followers took. Where it is a bound, it may have had
    that much.
    """
    network = reals(exchanges, "network_ms")
    unknown = np.isnan(network)
    waited = np.where(unknown, np.nan_to_num(reals(exchanges, "broker_ms")), network)
    lost = waited.copy()
    for part in ("agreed_ms", "throttled_ms", "replication_ms"):
        lost -= np.where(unknown, np.nan_to_num(reals(exchanges, part)), 0.0)
    flags = (unknown | _of_kinds(exchanges, *UNACKNOWLEDGED, BOUND)) & (lost >= GONE_MS)
    return _gaps(exchanges, connections, flags, waited)


def _of_kinds(exchanges: pa.Table, *kinds: str) -> Flags:
    flags: Flags = pc.is_in(exchanges["network_kind"].cast(pa.string()), pa.array(kinds)).to_numpy()
    return flags


def _gaps(
    exchanges: pa.Table, connections: pa.Table, flags: Flags, waited: npt.NDArray[np.float64]
) -> list[NetworkGap]:
    """The gaps that exchanges show which are so flagged, and waited for so many milliseconds; [exchanges]."""
    chosen = np.flatnonzero(flags)
    if not len(chosen):
        return []
    owner = ev.owners(exchanges.take(arrow_array(chosen)), connections)
    chosen, owner = chosen[owner >= 0], owner[owner >= 0]
    rows = exchanges.take(arrow_array(chosen))
    ends = connections.select(["client_ip", "broker_ip"]).take(arrow_array(owner))
    begun = times(rows, "request_first_at")
    until = begun + (waited[chosen] * MILLI).astype(np.int64)
    groups = group(ends, ["client_ip", "broker_ip"])
    found = []
    for code in range(len(groups)):
        client_ip, broker_ip = (groups.keys[name][code].as_py() for name in ("client_ip", "broker_ip"))
        rows_between = np.flatnonzero(groups.code == code)
        order, first = overlapping_spans(begun[rows_between], until[rows_between])
        for mine in np.split(rows_between[order], first[1:]):
            some = rows.take(arrow_array(mine))
            found.append(NetworkGap(client_ip, broker_ip, int(begun[mine].min()), int(until[mine].max()), some))
    return found


def explained_by_gaps(
    gaps: list[NetworkGap], rows: pa.Table, connections: pa.Table, begin: Int64s, end: Int64s
) -> Flags:
    """Which rows waited mostly while the network between their hosts was gone; bool [rows]. `rows` have exchange_id;
    they waited from `begin` to `end`, microseconds [rows]."""
    flags: Flags = np.zeros(rows.num_rows, np.bool_)
    if not gaps:
        return flags
    owner = np.where((at := ev.owners(rows, connections)) < 0, connections.num_rows, at)
    clients, brokers = (np.array([*connections[name].to_pylist(), None], object) for name in ("client_ip", "broker_ip"))
    for gap in gaps:
        of = (clients[owner] == gap.client_ip) & (brokers[owner] == gap.broker_ip)
        flags |= of & _covers(gap, begin, end)
    return flags


def may_share_a_gap(gaps: list[NetworkGap], rows: pa.Table, connections: pa.Table, begin: Int64s, end: Int64s) -> Flags:
    """Which rows waited mostly while the network from their client's host to any broker was gone; bool [rows]. An
    answer that was due then may have been lost. Not where their own broker answered that host meanwhile, unless that
    answer had waited so, too. Arguments as of `explained_by_gaps`; `end` is when each row was answered.

    Rows and gaps are paired PAIRS times at most, which only hostile captures reach. Rows that were not paired with all
    of their gaps may share one, too.
    """
    flags: Flags = np.zeros(rows.num_rows, np.bool_)
    if not gaps:
        return flags
    local, texts = encoded(connections["client_ip"].combine_chunks())
    number: dict[str | None, int] = {}
    codes = np.array([*(number.setdefault(text, len(number)) for text in texts), -1], np.int64)
    host = np.append(codes[local], -1)[ev.owners(rows, connections)]
    answers = _Answers(host, group(rows, ["broker"]).code, begin, end)
    pairs = 0
    for gap in gaps:
        mine = answers.near(number[gap.client_ip], gap)
        if (pairs := pairs + len(mine)) > PAIRS:
            flags[mine] = True
            continue
        mine = mine[_covers(gap, begin[mine], end[mine])]
        flags[mine] |= ~answers.came_meanwhile(mine, gap)
    return flags


class _Answers:
    """Waits of hosts by when they were answered, in order. `host` and `broker`: codes; `begin`, `end` of each wait in
    microseconds; int64[rows]."""

    def __init__(self, host: Int64s, broker: Int64s, begin: Int64s, end: Int64s) -> None:
        self._begin, self._end = begin, end
        self._instants, rank = np.unique(end, return_inverse=True)
        self._size = len(self._instants) + 1
        self._of_hosts = np.argsort(host * self._size + rank, kind="stable")
        self._host_keys = (host * self._size + rank)[self._of_hosts]
        _, self._pair = np.unique(host * (int(broker.max(initial=0)) + 1) + broker, return_inverse=True)
        keys = self._pair * self._size + rank
        order = np.argsort(keys, kind="stable")
        self._pair_keys = keys[order]
        first, last = begin[order], end[order]
        # a gap that began before an answer covers its wait from this instant on
        covered_from = np.where(last > first, last - EXPLAINED * (last - first), -np.inf)
        self._least = [covered_from]
        while 1 << len(self._least) <= len(order):
            half, step = self._least[-1], 1 << (len(self._least) - 1)
            self._least.append(np.minimum(half[:-step], half[step:]))

    def near(self, host: int, gap: NetworkGap) -> Int64s:
        """Rows of a host that a gap may cover: at most as long as it lasted lies outside of it."""
        begin = host * self._size + np.searchsorted(self._instants, gap.begin, "right")
        end = host * self._size + np.searchsorted(self._instants, gap.end + 2 * (gap.end - gap.begin), "right")
        first, last = np.searchsorted(self._host_keys, [begin, end])
        return self._of_hosts[first:last]

    def came_meanwhile(self, rows: Int64s, gap: NetworkGap) -> Flags:
        """Whether the broker of each row answered its host while the row waited in the gap, and that answer's wait is
        not covered by the gap; bool [rows]."""
        low, high = np.maximum(self._begin[rows], gap.begin), np.minimum(self._end[rows], gap.end)
        keys = self._pair[rows] * self._size
        first = np.searchsorted(self._pair_keys, keys + np.searchsorted(self._instants, low, "right"))
        last = np.searchsorted(self._pair_keys, keys + np.searchsorted(self._instants, high, "left"))
        flags: Flags = np.zeros(len(rows), np.bool_)
        some = np.flatnonzero(last > first)
        level = np.frexp((last - first)[some])[1] - 1
        for one in distinct(level).tolist():
            mine, least = some[level == one], self._least[one]
            flags[mine] = np.minimum(least[first[mine]], least[last[mine] - (1 << one)]) < gap.begin
        return flags


def _covers(gap: NetworkGap, begin: Int64s, end: Int64s) -> Flags:
    """Whether a gap takes EXPLAINED of each span or more; bool [rows]."""
    shared = np.minimum(end, gap.end) - np.maximum(begin, gap.begin)
    flags: Flags = (shared >= EXPLAINED * (end - begin)) & (shared > 0)
    return flags

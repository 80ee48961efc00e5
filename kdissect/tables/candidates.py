"""The exchanges that rows of a filter's result may be of, found before rows are made, and most of them before their
messages are decoded.

A filter of a table says between which instants exchanges were on the wire, who sent them and to whom
(`kdissect.tables.where.Limit`). Rows of other exchanges are not made, and of their messages only those are decoded that
tell names. Where the analysis fills columns it needs all exchanges of the rows' brokers up to the last row: there
`Candidates` says when enough was read (`end_behind`).

Nothing rests on the order of packets. A file whose clock steps back may have exchanges of the time asked for anywhere.
So each exchange is looked at, and one that comes when enough was thought to be read raises EarlierRows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kdissect.kafka.completed import NULL_TIME, Completed
from kdissect.tables.apinames import api_name
from kdissect.tables.brokers import Brokers
from kdissect.tables.declaration import TABLES
from kdissect.tables.declaration.model import By
from kdissect.tables.identity import SEPARATOR, Directory
from kdissect.tables.table_block import Block
from kdissect.tables.where import Filter, Limit

Int64s = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Instants = Sequence[Int64s] | Int64s
"""Of each exchange, ns: the request's first and last byte, the response's first and last one; NULL_TIME unknown."""

EQUAL = ("=", "==", "in")
INSTANTS: Mapping[str, tuple[int, ...]] = {
    "requested_at": (0,),
    "request_first_at": (0,),
    "request_last_at": (1,),
    "response_first_at": (2,),
    "response_last_at": (3,),
    "at": (0, 2),
}
"""Columns of tables that are made block by block, by which of `Instants` they show: the first one that is known."""
LEAST, MOST = np.iinfo(np.int64).min, np.iinfo(np.int64).max
ACROSS = frozenset(name for name, one in TABLES.items() if any(column.by is By.COMMITS for column in one.columns))
"""Tables of whose rows the analysis fills a column by what other brokers say."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class EarlierRows(Exception):
    """An exchange came that is earlier than what was complete: the clock of the capture stepped back."""


class Span(NamedTuple):
    """Nanoseconds from `low` up to, not including, `high`, between which a column of a row lies."""

    which: tuple[int, ...]
    low: int
    high: int

    def flags(self, instants: Instants) -> Flags:
        """The exchanges inside."""
        shown = instants[self.which[0]]
        for other in self.which[1:]:
            shown = np.where(shown == NULL_TIME, instants[other], shown)
        found: Flags = (shown >= self.low) & (shown < self.high) & (shown != NULL_TIME)
        return found


class Candidates:
    """The exchanges that rows of several tables may be of, by the filter of each. `analysed`: the analysis needs the
    exchanges before them, too."""

    def __init__(self, filters: Mapping[str, Filter], analysed: bool) -> None:
        self._tables = [(_spans(one.limits), one.limits) for one in filters.values()]
        self._brokers = _named_brokers(filters)
        """The brokers of all rows; None: any."""
        self._by_address = self._brokers is not None and all(map(_is_address, self._brokers))
        """These are addresses, so each connection tells whether it is to one of them."""
        self._others: frozenset[str] = frozenset()
        """Addresses (`capture<TAB>ip:port`) that messages have given to other brokers."""
        self.analysed = analysed
        self.over = False
        """Enough was read: exchanges that come now have no rows."""
        ends = [min((span.high for span in spans), default=MOST) for spans, _ in self._tables]
        self._end = max(ends)
        self._latest = LEAST
        """The last instant of the exchanges so far that may have rows, ns."""

    @property
    def excludes(self) -> bool:
        """Whether there are exchanges that it rules out, or after which it is over."""
        if self.analysed:
            return self.ends or self._brokers is not None
        return all(spans or any(map(_restricts, limits)) for spans, limits in self._tables)

    @property
    def ends(self) -> bool:
        """Whether enough is read at some instant."""
        return self._end != MOST

    def needed(
        self, directory: Directory, instants: Callable[[], Instants], connections: npt.NDArray[Any]
    ) -> Flags:  # fmt: skip
        """Flags of the exchanges that have to be looked at. They may have rows, are needed for rows, or come too late.
        Any thread may ask, with a directory of its own."""
        if self.analysed and self.over:
            return self._late(instants())
        flags = self._of_brokers(directory, connections)
        if not self.analysed:
            known = instants()
            flags &= _any([_inside(spans, known, len(connections)) for spans, _ in self._tables])
        return flags

    def pick_rows(self, block: Block) -> Int64s | None:
        """The exchanges of a block that have rows, or are needed for rows; None: all, or so many that leaving out
        others does not pay. Raises EarlierRows."""
        if self.analysed:
            self._note(block.done)
            if self.over:
                return np.zeros(0, np.int64)
            if self._brokers is None:
                return None
            kept = self._of_brokers(block.directory, block.done.conn)
        else:
            kept = self._rows_by_filter(block)
        found = np.flatnonzero(kept)
        return found if 2 * len(found) <= len(block) else None

    def _rows_by_filter(self, block: Block) -> Flags:
        instants = instants_of(block.done)
        kept = np.zeros(len(block), np.bool_)
        for spans, limits in self._tables:
            flags = _inside(spans, instants, len(block))
            for limit in limits if flags.any() else ():
                _restrict(flags, limit, block)
            kept |= flags
        return kept

    def _of_brokers(self, directory: Directory, connections: npt.NDArray[Any]) -> Flags:
        """Flags of the connections that may be to the brokers of the rows."""
        if self._brokers is None:
            return np.ones(len(connections), np.bool_)
        return directory.flag_brokers(connections, self._may_be)

    def _may_be(self, address: str) -> bool:
        """Whether an address (`capture<TAB>ip:port`) may be that of a broker of the rows."""
        if self._by_address:
            return self._brokers is not None and address.rpartition(SEPARATOR)[2] in self._brokers
        return address not in self._others

    def end_behind(self, watermark: int) -> None:
        """All rows of exchanges with an instant before `watermark` (µs) were made. Enough was read once the analysis
        has every exchange up to the last one that may have rows, for nothing in a row depends on a later instant."""
        if self.ends and watermark > max(self._end, self._latest) // 1000:
            self.over = True

    def rule_out(self, brokers: Brokers) -> None:
        """Of brokers that are asked for by node id leave out the addresses that messages have given to others by now.
        Each of these names counts as given: should it change, rows have to be made again (`Brokers.given`)."""
        if self._brokers is None or self._by_address or brokers.given is None:
            return
        others = {
            address: name
            for address, name in brokers.names().items()
            if name not in self._brokers and not _is_address(name)
        }
        if len(others) > len(self._others):
            brokers.given |= others
            self._others = frozenset(others)

    def _late(self, instants: Instants) -> Flags:
        """The exchanges that are not behind all that may have rows."""
        return _any([(one <= max(self._end, self._latest)) & (one != NULL_TIME) for one in instants])

    def _note(self, done: Completed) -> None:
        """Exchanges that may have rows, or came too late."""
        instants = instants_of(done)
        if self.over:
            if self._late(instants).any():
                raise EarlierRows
            return
        if not self.ends:
            return
        early = _any([(one < self._end) & (one != NULL_TIME) for one in instants])
        for one in instants[:3]:
            self._latest = max(self._latest, int(one[early].max(initial=LEAST)))


def candidates(names: Iterable[str], filters: Mapping[str, Filter], analysed: bool) -> Candidates | None:
    """The candidates for rows of these tables; None where rows of one of them may be of any exchange, or of none."""
    names = list(names)
    if not names or any(TABLES[name].made is not By.BLOCK or name not in filters for name in names):
        return None
    found = Candidates({name: filters[name] for name in names}, analysed)
    return found if found.excludes else None


def instants_of(done: Completed) -> Instants:
    """The four instants of exchanges."""
    return done.request_first, done.request_last, done.response_first, done.response_last


def _any(flags: Sequence[Flags]) -> Flags:
    found: Flags = np.logical_or.reduce(flags)
    return found


def _inside(spans: Sequence[Span], instants: Instants, count: int) -> Flags:
    flags = np.ones(count, np.bool_)
    for span in spans:
        flags &= span.flags(instants)
    return flags


def _spans(limits: Iterable[Limit]) -> list[Span]:
    """Where instants lie by comparisons with times."""
    found = []
    for limit in limits:
        times = [_microseconds(value) for value in limit.values if isinstance(value, datetime)]
        which = INSTANTS.get(limit.column)
        if which is None or not times or limit.operator in ("!=", "<>"):
            continue
        low = min(times) if limit.operator in (*EQUAL, ">=") else times[0] + 1 if limit.operator == ">" else None
        high = max(times) + 1 if limit.operator in (*EQUAL, "<=") else times[0] if limit.operator == "<" else None
        found.append(Span(which, LEAST if low is None else _ns(low), MOST if high is None else _ns(high)))
    return found


def _ns(microseconds: int) -> int:
    return max(LEAST, min(MOST, microseconds * 1000))


def _microseconds(value: datetime) -> int:
    past = value - _EPOCH
    return (past.days * 86_400 + past.seconds) * 1_000_000 + past.microseconds


def _restrict(flags: Flags, limit: Limit, block: Block) -> None:
    """Clear the flags of exchanges that a comparison with texts or numbers rules out."""
    if not _restricts(limit):
        return
    values, done = set(limit.values), block.done
    if limit.column == "client_id":
        flags &= np.isin(done.client, [code for code, name in enumerate(done.client_ids) if name in values])
    elif limit.column == "api_key":
        flags &= np.isin(done.api_key, [value for value in values if isinstance(value, int | float)])
    elif limit.column == "api":
        flags &= np.isin(done.api_key, [key for key in np.unique(done.api_key).tolist() if api_name(key) in values])
    else:
        flags &= block.directory.flag_brokers(done.conn, lambda text: text.rpartition(SEPARATOR)[2] in values)


def _named_brokers(filters: Mapping[str, Filter]) -> frozenset[str] | None:
    """The brokers that rows of all these tables have by their filters; None where one may have others, or has values
    that come from others."""
    found: frozenset[str] = frozenset()
    for name, one in filters.items():
        stated = [
            frozenset(limit.values) for limit in one.limits if limit.column == "broker" and limit.operator in EQUAL
        ]
        if not stated or name in ACROSS:
            return None
        found |= frozenset.intersection(*stated)
    return found


def _is_address(name: object) -> bool:
    """Whether a broker of this name has it for its address; a node id may be that of any."""
    return isinstance(name, str) and ":" in name


def _restricts(limit: Limit) -> bool:
    """Whether an exchange alone tells that its rows do not satisfy a comparison."""
    if limit.operator not in EQUAL:
        return False
    if limit.column == "broker":
        return all(map(_is_address, limit.values))
    return limit.column in ("client_id", "api_key", "api")

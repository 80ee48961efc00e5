"""The exchanges that rows of a filter's result may be of, found before rows are made, and most of them before their
messages are decoded.

A filter of a table says between which instants exchanges were on the wire, who sent them and to whom
(`kdissect.tables.where.Limit`). Rows of other exchanges are not made, and of their messages only those are decoded that
tell names. Where the analysis fills columns it needs all exchanges up to the last row: there `Candidates` says when
enough was read (`end_behind`).

Nothing rests on the order of packets. A file whose clock steps back may have exchanges of the time asked for anywhere.
So each exchange is looked at, and one that comes when enough was thought to be read raises EarlierRows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kdissect.kafka.completed import NULL_TIME, Completed
from kdissect.tables.apinames import api_name
from kdissect.tables.declaration import TABLES
from kdissect.tables.declaration.model import By
from kdissect.tables.identity import SEPARATOR
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
            return self._end != MOST
        return all(spans or any(map(_restricts, limits)) for spans, limits in self._tables)

    def needed(self, instants: Instants) -> Flags:
        """Flags of the exchanges that have to be looked at. They may have rows, are needed for rows, or come too late.
        Any thread may ask."""
        if not self.analysed:
            return _any([_inside(spans, instants, len(instants[0])) for spans, _ in self._tables])
        return self._late(instants) if self.over else np.ones(len(instants[0]), np.bool_)

    def pick_rows(self, block: Block) -> Int64s | None:
        """The exchanges of a block that have rows; None: all, or so many that leaving out others does not pay. Raises
        EarlierRows."""
        if self.analysed:
            self._note(block.done)
            return np.zeros(0, np.int64) if self.over else None
        instants = instants_of(block.done)
        kept = np.zeros(len(block), np.bool_)
        for spans, limits in self._tables:
            flags = _inside(spans, instants, len(block))
            for limit in limits if flags.any() else ():
                _restrict(flags, limit, block)
            kept |= flags
        found = np.flatnonzero(kept)
        return found if 2 * len(found) <= len(block) else None

    def end_behind(self, watermark: int) -> None:
        """All rows of exchanges with an instant before `watermark` (µs) were made. Enough was read once the analysis
        has every exchange up to the last one that may have rows, for nothing in a row depends on a later instant."""
        if self._end != MOST and watermark > max(self._end, self._latest) // 1000:
            self.over = True

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
        if self._end == MOST:
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
        texts = block.directory.brokers.texts
        own = [code for code, text in enumerate(texts) if text.rpartition(SEPARATOR)[2] in values]
        flags &= np.isin(block.directory.broker_codes(done.conn), own)


def _restricts(limit: Limit) -> bool:
    """Whether an exchange alone tells that its rows do not satisfy a comparison. A broker that is named by an address
    has that address; a node id may be that of any."""
    if limit.operator not in EQUAL:
        return False
    if limit.column == "broker":
        return all(isinstance(value, str) and ":" in value for value in limit.values)
    return limit.column in ("client_id", "api_key", "api")

"""Collects ranges of correlation ids (`kdissect.analysis.sights.correlation_ranges`) while exchanges are finished."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kdissect.analysis.sights.correlation_ranges import ALL, RANGES, REQUEST_ONLY, RESPONSE_ONLY, join_ranges
from kdissect.arrays.arrow import ints
from kdissect.arrays.from_numpy import arrow_array
from kdissect.engine.sights.one_file import flow_hashes
from kdissect.engine.sights.shared_flows import endpoints
from kdissect.kafka.completed import NULL_TIME, Status
from kdissect.kafka.streams.dissector import Harvest
from kdissect.kafka.streams.ledger import timed
from kdissect.kafka.streams.state import TOKEN
from kdissect.tables.builder import TableBuilder

Int64s = npt.NDArray[np.int64]


NUMBERS = tuple(name for name in RANGES.names if name not in ("capture", "broker", "flow"))
MOST_PARTS = 1 << 17
"""New ranges after which those that follow each other are joined: 10 MB."""
WITHOUT_ANSWER = (Status.NO_RESPONSE, Status.UNANSWERED, Status.PENDING)


class RangeCollector:
    """Ranges of one capture."""

    def __init__(self) -> None:
        self._parts: list[Int64s] = []
        """[NUMBERS, ranges] each."""
        self._count = 0

    def note(self, harvest: Harvest, base: int) -> None:
        """Note the exchanges of a harvest; `base`: what its numbers of connections are counted from."""
        rows = harvest.exchanges[harvest.exchanges["status"] != TOKEN]
        if not len(rows):
            return
        ordinal = np.where(rows["orphan"] == 1, -1 - rows["n"], rows["n"])
        order = np.lexsort((ordinal, rows["connection"]))
        rows, n = rows[order], ordinal[order]
        connection, correlation, end = (rows[name] for name in ("connection", "correlation", "end"))
        asked, answered = timed(rows["request"]["last"]), timed(rows["response"]["first"])
        missing = np.isin(rows["status"], WITHOUT_ANSWER)
        missing |= (rows["status"] == Status.PARTIAL) & (answered == NULL_TIME)
        known = np.where(missing, REQUEST_ONLY, ALL)
        known[rows["orphan"] == 1] = RESPONSE_ONLY
        took = np.where((answered != NULL_TIME) & (asked != NULL_TIME), np.maximum(answered - asked, 0), 0)
        follows = (np.diff(connection) == 0) & (np.diff(n) == 1) & (np.diff(correlation) == 1)
        first = np.flatnonzero(np.append(True, ~follows | (known[1:] != known[:-1])))
        count = np.diff(np.append(first, len(rows)))
        last = first + count - 1
        until = np.maximum(np.maximum(asked, timed(rows["response"]["last"])), 0)  # 0: packets without times
        self._parts.append(
            np.stack(
                [
                    connection[first] + base, n[first], count, correlation[first], end[first] & 0xFFFFFFFF,
                    end[last] - end[first], known[first], np.add.reduceat(took, first),
                    np.maximum.reduceat(until, first),
                ]
            )
        )  # fmt: skip
        self._count += len(first)
        if self._count > MOST_PARTS:
            joined = self._join_parts()
            self._parts = [np.stack([ints(joined, name) for name in NUMBERS])]
            self._count = 0

    def table(self, capture: str, builder: TableBuilder) -> pa.Table:
        """The ranges so far, with the brokers' names that are known now. None of them is kept."""
        made = self._join_parts()
        self._parts.clear()
        directory = builder.directory
        used, of = np.unique(ints(made, "connection"), return_inverse=True)
        connections, codes = directory.connections, directory.broker_codes(used)
        names = list(builder.brokers.names_of(directory.brokers.texts).values())
        known = {
            "capture": pa.repeat(pa.scalar(capture, pa.string()), len(of)),
            "broker": pa.array(names, pa.string()).take(arrow_array(codes[of])),
            "flow": arrow_array(flow_hashes(endpoints(connections, used)).view(np.int64)[of]),
            "connection": arrow_array(connections.id[used].view(np.int64)[of]),
        }
        return pa.table([known.get(name, made[name]) for name in RANGES.names], schema=RANGES)

    def _join_parts(self) -> pa.Table:
        """The ranges so far, with the numbers that connections have in the run, and without names."""
        every = np.concatenate([np.zeros((len(NUMBERS), 0), np.int64), *self._parts], axis=1)
        columns = dict(zip(NUMBERS, every, strict=True))
        nothing = pa.nulls(every.shape[1], pa.string())
        columns["flow"] = np.zeros(every.shape[1], np.int64)
        made = [arrow_array(columns[name]) if name in columns else nothing for name in RANGES.names]
        return join_ranges(pa.table(made, schema=RANGES))

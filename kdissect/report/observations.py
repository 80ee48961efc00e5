"""The content of the page, gathered part by part: counts by time, best-of lists, small tables. Memory stays flat."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kdissect.analysis.exchange_keys import key_names, keys_of, locate
from kdissect.arrays.arrow import NULL_TIME, Int64s, ints, with_columns
from kdissect.arrays.dictionaries import join_tables
from kdissect.report import figure_rows, time_axis
from kdissect.report.budget_chart import BudgetRows
from kdissect.report.counted import Counted, bucket_seconds, count_flags
from kdissect.report.flows import Flows
from kdissect.report.quantile_lines import QuantileLines
from kdissect.report.session_rows import READS, SessionRows
from kdissect.tables.declaration import SCHEMAS

PLACES = 5000
"""Kinds of problem with their words of which it is known where the first one stands."""
WAITING = 1 << 17
"""Fetches whose exchange is not settled yet that are kept: more than the analysis lets wait."""
PIECE = 1 << 14
"""Exchanges that are counted at a time: what is made of them is some MB."""
LISTED_WHOLE = ("api_versions", "capture_quality", "share_sessions")
"""Tables that are listed as they are, and the rows of each that are kept."""
MOST_LISTED = 4 * figure_rows.LINES


class Gathering:
    """Takes rows of the tables of `readers.REPORT`: those of exchanges with all that is about them."""

    def __init__(self) -> None:
        self.axis = Counted([], ["exchanges", "errors", "resent", *time_axis.OWNERS])
        self.heat_of_all = Counted(["long_poll", "step"], ["exchanges"])
        self.heat_of_apis = Counted(["long_poll", "step", "api"], ["exchanges"])
        self.heat_of_clients = Counted(["long_poll", "step", "client_id"], ["exchanges"])
        self.steps = Counted(["up", "api", "client_id"], ["exchanges", "errors"])
        self.spent = Counted(["api", "client_id"], ["exchanges", *figure_rows.PARTS])
        self.holds = Counted(["step", "api", "hold"], ["exchanges"])
        self.throughput = Counted(["api"], ["exchanges", "request_bytes", "response_bytes"])
        self.versions = Counted(["api_version", "api", "client_id"], ["exchanges", "errors"])
        self.clients = Counted(["client_id"], ["exchanges", "errors"])
        self.brokers = Counted(["broker"], ["exchanges"])
        self.errors = Counted(["api", "error"], ["count"])
        self.by_api = QuantileLines(["api"])
        self.by_pair = QuantileLines(["api", "client"])
        self.flows = Flows()
        self.budget = BudgetRows()
        self.sessions = SessionRows()
        self.slowest: pa.Table | None = None
        self.failures: pa.Table | None = None
        self.troubled: pa.Table | None = None
        self.places: dict[tuple[str, str], tuple[str | None, int | None]] = {}
        self._listed: dict[str, pa.Table] = {}
        self._fetches: pa.Table | None = None
        self._first, self._last = 2**63 - 1, NULL_TIME

    @property
    def last_us(self) -> int:
        """When the last request was sent."""
        return self._last

    @property
    def every(self) -> float:
        """Length of a bucket of time, in seconds."""
        return bucket_seconds(self._first, self._last) if self._last != NULL_TIME else bucket_seconds(0, 0)

    def listed_rows(self, name: str) -> pa.Table:
        """Rows of one of LISTED_WHOLE."""
        return self._listed.get(name, SCHEMAS[name].empty_table())

    def add_rows(self, part: Mapping[str, pa.Table]) -> None:
        """Rows of exchanges, and of fetches, partitions and sessions that go with them."""
        exchanges = part.get("exchanges", SCHEMAS["exchanges"].empty_table())
        fetches = self._about(exchanges, part.get("fetches"))
        for begin in range(0, exchanges.num_rows, PIECE):
            self._exchanges(exchanges.slice(begin, PIECE), fetches)
        self.flows.add_rows(part)
        self.budget.add_rows({name: table for name, table in part.items() if name != "connections"})
        self.sessions.add_rows(exchanges, fetches, part.get("fetch_sessions"))
        if "share_sessions" in part:
            self._list("share_sessions", part["share_sessions"])

    def _about(self, exchanges: pa.Table, fetches: pa.Table | None) -> pa.Table:
        """The fetches of these exchanges: they arrive before, never after, and wait here."""
        if fetches is not None and fetches.num_rows:
            wanted = ["excess_ms", *READS, *key_names(fetches)]
            self._fetches = _append_rows(self._fetches, fetches.select(list(dict.fromkeys(wanted))))
        if self._fetches is None or not exchanges.num_rows:
            return SCHEMAS["fetches"].empty_table() if self._fetches is None else self._fetches.slice(0, 0)
        at = locate(keys_of(exchanges), keys_of(self._fetches))
        there = np.zeros(self._fetches.num_rows, np.bool_)
        there[at[at >= 0]] = True
        found, rest = self._fetches.filter(pa.array(there)), self._fetches.filter(pa.array(~there))
        self._fetches = rest.slice(max(0, rest.num_rows - WAITING))
        return found

    def add(self, name: str, table: pa.Table) -> None:
        """A piece of a table that is made at the end."""
        if not table.num_rows:
            return
        if name == "connections":
            self.troubled = time_axis.troubled(_append_rows(self.troubled, table))
            self.budget.add_rows({name: table})
        elif name == "problems":
            self._problems(table)
        elif name in LISTED_WHOLE:
            self._list(name, table)

    def _list(self, name: str, table: pa.Table) -> None:
        plain = table.select([one for one in SCHEMAS[name].names if one in table.column_names]).cast(SCHEMAS[name])
        self._listed[name] = _append_rows(self._listed.get(name), plain).slice(0, MOST_LISTED)

    def _exchanges(self, exchanges: pa.Table, fetches: pa.Table) -> None:
        start = figure_rows.begin_times(exchanges)
        known = start[start != NULL_TIME]
        if len(known):
            self._first, self._last = min(self._first, int(known.min())), max(self._last, int(known.max()))
        self.axis.add(*time_axis.moments(exchanges))
        cells, when = figure_rows.latency_cells(exchanges)
        for counted in (self.heat_of_all, self.heat_of_apis, self.heat_of_clients, self.steps):
            counted.add(cells, when)
        self.spent.add(figure_rows.spent(exchanges, fetches), start)
        self.holds.add(*figure_rows.hold_rows(exchanges))
        self._who(exchanges, start)
        self.by_api.add_rows(exchanges, fetches)
        self.by_pair.add_rows(exchanges, fetches)
        slowest = _append_rows(self.slowest, _plain(figure_rows.slowest(exchanges, fetches)))
        order = np.argsort(-np.asarray(slowest["slow_ms"]), kind="stable")[: figure_rows.OUTLIERS]
        self.slowest = slowest.take(pa.array(order))
        failed = _append_rows(self.failures, _plain(time_axis.failures(exchanges)))
        self.failures = failed.sort_by([("request_first_at", "ascending")]).slice(0, time_axis.ERRORS)

    def _who(self, exchanges: pa.Table, start: Int64s) -> None:
        """Counts by API, client, broker, version and error."""
        failed = np.asarray(figure_rows.is_word(exchanges, "status", "error"))
        sums = {
            "exchanges": count_flags(np.ones(len(start), np.bool_)),
            "errors": count_flags(failed),
            "request_bytes": pa.array(np.maximum(ints(exchanges, "request_bytes", 0), 0)),
            "response_bytes": pa.array(np.maximum(ints(exchanges, "response_bytes", 0), 0)),
            "count": count_flags(failed),
        }
        names = ["api", "api_version", "client_id", "broker", "error"]
        table = with_columns(exchanges.select(names), sums)
        self.throughput.add(table, start)
        self.brokers.add(table, start)
        asked = ~np.asarray(figure_rows.is_word(exchanges, "status", "orphan"))
        self.clients.add(table.filter(pa.array(asked)), start[asked])
        told = np.asarray(pc.is_valid(table["api_version"]))
        self.versions.add(table.filter(pa.array(told)), start[told])
        wrong = table.filter(pa.array(failed))
        words = pc.fill_null(wrong["error"].cast(pa.string()), "error").combine_chunks()
        api = pc.fill_null(wrong["api"].cast(pa.string()), "(unknown)").combine_chunks()
        self.errors.add(with_columns(wrong, {"error": words, "api": api}), start[failed])

    def _problems(self, table: pa.Table) -> None:
        """Where the first of each kind and words stands."""
        kinds, details = (table[name].cast(pa.string()) for name in ("kind", "detail"))
        named = pa.table({"kind": kinds, "detail": pc.fill_null(details, ""), "row": pa.array(np.arange(len(kinds)))})
        first = named.group_by(["kind", "detail"], use_threads=False).aggregate([("row", "min")])
        for one in first.to_pylist():
            if len(self.places) < PLACES and (one["kind"], one["detail"]) not in self.places:
                file, frame = (table[name][one["row_min"]].as_py() for name in ("file", "frame"))
                self.places[one["kind"], one["detail"]] = file, frame


def gathered(tables: Mapping[str, pa.Table]) -> Gathering:
    """The observations of whole tables, such as those read back from Parquet."""
    found = Gathering()
    at_the_end = ("connections", "problems", "api_versions", "capture_quality")
    found.add_rows({name: table for name, table in tables.items() if name not in at_the_end})
    for name in at_the_end:
        found.add(name, tables[name])
    return found


def _plain(table: pa.Table) -> pa.Table:
    """Without dictionaries: a few rows do not keep a part's words."""
    kinds = [(f.name, f.type.value_type if pa.types.is_dictionary(f.type) else f.type) for f in table.schema]
    return table.cast(pa.schema(kinds))


def _append_rows(before: pa.Table | None, table: pa.Table) -> pa.Table:
    if before is None:
        return table
    return join_tables([before, table]).combine_chunks()

"""The analysis of several clusters at once: a `Stage` for each, so that nothing of one meets anything of another.

Sessions, holds, commits and throttle windows are keyed by broker, topic or group within their stage. A stage has rows
of one cluster alone, and rows without a cluster have a stage of their own. The tables that the analysis adds get their
`cluster` here, and the keys of sessions begin with it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from kdissect.analysis.cluster_split import ConnectionClusters, split_by_cluster, with_cluster
from kdissect.analysis.sessions.session_rules import MAX_WAITING
from kdissect.analysis.stage import HIDDEN, NO_WATERMARK, Messages, RowsByTable, Stage
from kdissect.arrays.arrow import Coder, joined
from kdissect.arrays.rows import Rows, as_rows, as_tables
from kdissect.tables.declaration import TABLES

if TYPE_CHECKING:
    from kdissect.analysis.holds.carried_state import CarriedStages
    from kdissect.tables.fetch_rows import NamedFetches

KEYS = ("session_key", "predecessor")
"""Columns that name sessions."""


class Stages:
    """A `Stage` for each cluster, which takes and gives what one would. Arguments as for `Stage`."""

    def __init__(
        self,
        asked: Mapping[str, Sequence[str] | None],
        slow: float | None = None,
        waiting: int = MAX_WAITING,
        topics: Sequence[str] = (),
    ) -> None:
        self.slow = slow
        self._asked, self._waiting, self._topics = asked, waiting, topics
        self.any = self._new_stage()
        """What was asked for, and what is read for it: the same for every cluster."""
        self._stages: dict[str | None, Stage] = {}
        self._ended = False
        self._prompt = False
        self._vocabulary: Coder | None = None

    def _new_stage(self) -> Stage:
        return Stage(self._asked, self.slow, self._waiting, self._topics)

    @property
    def idle(self) -> bool:
        """Nothing that was asked for concerns the analysis."""
        return self.any.idle

    @property
    def only_holds(self) -> bool:
        """See `Stage.only_holds`."""
        return self.any.only_holds

    @property
    def tables(self) -> dict[str, frozenset[str]]:
        """Tables and columns to read for it, besides what was asked for."""
        return self.any.tables

    @property
    def messages(self) -> dict[tuple[int, int], frozenset[str]]:
        """Messages and paths to decode for it."""
        return self.any.messages

    @property
    def waiting(self) -> int:
        """Rows held back for the watermark."""
        return sum(stage.waiting for stage in self._stages.values())

    def be_prompt(self) -> None:
        """Declares that each row is wanted as soon as it is settled, as in a live view, perhaps before its cluster is
        known. The first cluster that becomes known takes over the state of rows without one, and gets those that still
        come, until there is another one."""
        self._prompt = True

    def findings_end(self) -> None:
        """See `Stage.findings_end`."""
        self._ended = True
        for stage in (self.any, *self._stages.values()):
            stage.findings_end()

    def may_hide(self, read: Set[str]) -> bool:
        """See `Stage.may_hide`."""
        return self.any.may_hide(read)

    def hide(self, vocabulary: Coder) -> dict[str, Rows]:
        """See `Stage.hide`."""
        self._vocabulary = vocabulary
        return _together([dict(stage.hide(vocabulary)) for stage in self._stages.values()])

    def show_rows(self, rows: RowsByTable) -> dict[str, pa.Table]:
        """Rows as tables, but for those of HIDDEN once these are hidden: no caller sees them."""
        return as_tables({name: one for name, one in rows.items() if self._vocabulary is None or name not in HIDDEN})

    def awaits_rows(self, partitions: Rows) -> bool:
        """See `Stage.awaits_rows`."""
        return any(stage.awaits_rows(partitions) for stage in (self.any, *self._stages.values()))

    def rename_broker(self, old: str, new: str) -> None:
        """See `Stage.rename_broker`."""
        for stage in self._stages.values():
            stage.rename_broker(old, new)

    def sessions_alive(self) -> dict[str, int]:
        """Fetch sessions that are alive, by broker."""
        alive: dict[str, int] = {}
        for stage in self._stages.values():
            for broker, count in stage.sessions_alive().items():
                alive[broker] = alive.get(broker, 0) + count
        return alive

    def session_connections(self) -> npt.NDArray[np.int64]:
        """See `Stage.session_connections`."""
        return np.concatenate([np.zeros(0, np.int64), *(one.session_connections() for one in self._stages.values())])

    def carried(self) -> CarriedStages:
        """See `Stage.carried`."""
        from kdissect.analysis.holds.carried_state import CarriedStages

        return CarriedStages({cluster: stage.carried() for cluster, stage in self._stages.items()})

    def go_on(self, before: CarriedStages) -> None:
        """See `Stage.go_on`."""
        for cluster, stage in before.stages.items():
            self._stage(cluster).go_on(stage)

    def release(self) -> RowsByTable:
        """See `Stage.release`."""
        return _together([self._of(cluster, stage.release()) for cluster, stage in self._stages.items()])

    def feed(
        self, rows: RowsByTable, messages: Messages | None = None, watermark: int = NO_WATERMARK,
        direct_fetches: Sequence[NamedFetches] = (), last: bool = False, complete: int | None = None,
    ) -> RowsByTable:  # fmt: skip
        """Rows of a block, and what is settled by them, as `Stage.feed`."""
        messages = messages or {}
        tables = self.show_rows(rows)
        parts = dict(split_by_cluster(tables))
        if self._prompt and (cluster := self._only_cluster(parts)) is not None:
            self._take_over(cluster)
            parts = {cluster: tables}
        if self._stages and not any(table.num_rows for table in tables.values()):
            parts = {}
        several = len(parts.keys() | self._stages.keys()) > 1
        of = ConnectionClusters(tables["exchanges"]) if several and len(parts) > 1 and "exchanges" in tables else None
        only = next(iter(parts)) if len(parts) == 1 else None
        made: list[dict[str, Rows]] = []
        for cluster in dict.fromkeys((*parts, *self._stages)):
            own = parts.get(cluster)
            mine: dict[str, Rows] = {}
            given: dict[tuple[int, int], pa.Table] = {}
            fetches: list[NamedFetches] = []
            if own is None:
                mine = {name: one.slice(0, 0) for name, one in rows.items()}
            elif of is None:
                mine, given, fetches = (
                    {**rows, **as_rows(own)},
                    dict(messages),
                    list(direct_fetches) if cluster == only else [],
                )
            else:
                mine = {**as_rows(own), **{name: of.rows(cluster, rows[name]) for name in rows if name not in own}}
                given = {kind: of.rows(cluster, Rows.of(table)).table() for kind, table in messages.items()}
                fetches = [of.fetches(cluster, named) for named in direct_fetches]
            made.append(self._of(cluster, self._stage(cluster).feed(mine, given, watermark, fetches, last, complete)))
        return _together(made)

    def feed_cluster(
        self, cluster: str | None, rows: RowsByTable, messages: Messages, direct_fetches: Sequence[NamedFetches],
        watermark: int, last: bool = False,
    ) -> RowsByTable:  # fmt: skip
        """As `feed`, of rows that are all of one cluster: None for one that is not known."""
        done = self._stage(cluster).feed(rows, messages, watermark, direct_fetches, last)
        return self._of(cluster, done)

    def finish(self) -> RowsByTable:
        """The rows that were held back, and the sessions that are open."""
        return _together([self._of(cluster, stage.finish()) for cluster, stage in self._stages.items()]) or dict(
            self._new_stage().finish()
        )

    def analyse_tables(self, tables: Mapping[str, pa.Table], messages: Messages | None = None) -> dict[str, pa.Table]:
        """All at once: the tables given, with the analysis' columns filled in, and those which it adds.

        `tables`: whole and resolved, those that `tables` names (and any others, given back as they are).
        """
        out = dict(tables)
        needs = self.any
        if needs.follows or needs.replicates or needs.shares or needs.commits:
            found, rest = dict(self.feed(as_rows(out), messages)), self.finish()
            out |= as_tables(_together([found, dict(rest)]))
        if "time_budget" in needs.asked:
            from kdissect.analysis.budget import SUBJECTS, time_budget

            out["time_budget"] = time_budget(out, SUBJECTS)
        if "time_ledger" in needs.asked:
            from kdissect.analysis.ledger.time_ledger import time_ledger

            out["time_ledger"] = time_ledger(out)
        if needs.traffic:
            from kdissect.analysis.topic_traffic import topic_traffic

            out["topic_traffic"] = topic_traffic(out)
        if needs.delivers:
            from kdissect.analysis.deliveries.delivery_rows import deliveries

            out["deliveries"] = deliveries(out)
        if needs.traces:
            from kdissect.analysis.deliveries.traced_rows import traced

            out["traced"] = traced(out)
        if needs.transacts:
            from kdissect.analysis.deliveries.transaction_rows import transactions

            out["transactions"] = transactions(out)
        if needs.finds:
            from kdissect.analysis.deliveries.first_deliveries import FirstRows
            from kdissect.analysis.findings import findings, limits, of_topics

            if not needs.delivers:
                first = FirstRows()
                first.add_rows(out)
                first.add("connections", out["connections"])
                out["deliveries"] = first.deliveries()
            evidence = {name: of_topics(table, self._topics) for name, table in out.items()}
            looked = findings(evidence, limits(self.slow))
            out["findings"] = looked.findings
            if "problems" in out and looked.problems.num_rows:
                out["problems"] = joined(out["problems"], looked.problems)
        return out

    def _only_cluster(self, parts: Collection[str | None]) -> str | None:
        """The cluster of these and earlier rows, where they have no more than one: it has those without one, too."""
        known = {*parts, *self._stages} - {None}
        return known.pop() if len(known) == 1 else None

    def _take_over(self, cluster: str) -> None:
        """Makes the stage of rows without a cluster that of the first cluster that is known."""
        if self._stages.keys() == {None}:
            self._stages = {cluster: self._stages[None]}

    def _stage(self, cluster: str | None) -> Stage:
        if cluster not in self._stages:
            stage = self._new_stage()
            stage.prompt = self._prompt
            if self._ended:
                stage.findings_end()
            if self._vocabulary is not None:
                stage.hide(self._vocabulary)
            self._stages[cluster] = stage
        return self._stages[cluster]

    def _of(self, cluster: str | None, rows: RowsByTable) -> dict[str, Rows]:
        """The rows of a cluster's stage, with the cluster in those that the analysis makes, and in keys."""
        out = dict(rows)
        for name, one in rows.items():
            if not one.num_rows:
                continue
            if TABLES[name].made.analysis:
                one = Rows.of(with_cluster(one.table(), cluster))
            keys = {} if cluster is None else {key: one.array(key) for key in KEYS if one.has(key)}
            out[name] = one.with_arrays({key: _prefixed(texts, f"{cluster}/") for key, texts in keys.items()})
        return out


def _prefixed(keys: pa.Array, prefix: str) -> pa.Array:
    """Keys with a text before them; null ones stay null."""
    plain = not pa.types.is_dictionary(keys.type)
    texts = pc.binary_join_element_wise(prefix, keys if plain else keys.dictionary, "")
    return texts if plain else pa.DictionaryArray.from_arrays(keys.indices, texts)


def _together(parts: Sequence[dict[str, Rows]]) -> dict[str, Rows]:
    """Rows of several stages, one behind the other."""
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: Rows.together([part[name] for part in parts if name in part]) for name in names}

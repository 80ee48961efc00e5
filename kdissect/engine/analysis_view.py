"""`Capture.analysis`: the analysis of an open capture, as Arrow tables.

Each method reads the capture for the columns it needs and hands them to a plain function of `kdissect.analysis`, which
works as well on tables read back from Parquet.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from kdissect.capture.clock import find_span
from kdissect.problems import UsageError
from kdissect.tables.declaration import TABLES, readers
from kdissect.tables.projection import list_names

if TYPE_CHECKING:
    from kdissect.analysis.questions.explanation import Explanation
    from kdissect.analysis.questions.topic_gap import TopicGap
    from kdissect.engine.capture_tables import CaptureTables
    from kdissect.summary.account import Handle


class Analysis:
    """Sessions, latency and findings of one capture."""

    def __init__(self, capture: CaptureTables) -> None:
        self._capture = capture

    def sessions(self, every: float | None = 1.0) -> dict[str, pa.Table]:
        """Fetch sessions by broker and client of each cluster, and share sessions.

        `brokers`: what each session cache went through (`session_figures.brokers`); `creators`: who asked for sessions
        (`session_figures.creators`); `evictors`: whose new sessions others lost theirs to (`slots.evictors`); `demand`:
        sessions alive by broker and bucket of `every` seconds (None: 600 buckets) until the last fetch, `shards`: by
        shard of its cache too (`slots.slot_demand`); `share_sessions`.
        The sessions themselves are the table `fetch_sessions`.
        """
        from kdissect.analysis.cluster_split import fill_only_cluster
        from kdissect.analysis.sessions import session_figures
        from kdissect.analysis.sessions.slots import evictors, last_fetch, slot_demand

        read = readers.SESSION_FIGURES.tables
        if self._capture.frugal:
            rows, shares = self._capture.session_rows(read)
            fetches, sessions, until, creators = rows.fetches, rows.sessions, rows.until, rows.creators()
        else:
            tables = self._capture.tables(read)
            fetches, sessions, shares = (tables[name] for name in ("fetches", "fetch_sessions", "share_sessions"))
            until, creators = last_fetch(fetches), session_figures.creators(fetches)
        known = fill_only_cluster({"fetches": fetches, "fetch_sessions": sessions})
        fetches, sessions = known["fetches"], known["fetch_sessions"]
        return {
            "brokers": session_figures.brokers(fetches, sessions),
            "creators": creators,
            "evictors": evictors(fetches),
            "demand": slot_demand(sessions, every, until, by_shard=False),
            "shards": slot_demand(sessions, every, until),
            "share_sessions": shares,
        }

    def with_slots(self, slots: int) -> pa.Table:
        """Who would have lost fetch sessions, or got none, with `slots` slots on each broker, and what full fetches
        would have cost: a row for each broker and client (`fewer_slots.with_slots`). Raises UsageError below 0."""
        from kdissect.analysis.sessions.fewer_slots import with_slots

        if slots < 0:
            raise UsageError(f"slots must be 0 or more, not {slots}")
        tables = self._capture.tables(readers.SESSION_FIGURES.tables)
        return with_slots(tables["fetches"], tables["fetch_sessions"], slots)

    def with_fetching(self, max_wait_ms: int | None = None, min_bytes: int | None = None) -> pa.Table:
        """The fetches and empty answers with another fetch.max.wait.ms and fetch.min.bytes, and how much later records
        would have come. A row for each consumer and broker (`other_settings.with_fetching`). Raises UsageError below
        0."""
        from kdissect.analysis.other_settings import with_fetching

        if min(max_wait_ms or 0, min_bytes or 0) < 0:
            raise UsageError("max_wait_ms and min_bytes must be 0 or more")
        return with_fetching(self._capture.tables(readers.FETCHING.tables)["fetches"], max_wait_ms, min_bytes)

    def with_batching(self, linger_ms: float, batch_size: int = 16384) -> pa.Table:
        """Batches that would have been one with another linger.ms and batch.size (bytes), and how much later they would
        have been sent: a row for each producer and broker (`other_settings.with_batching`). Raises UsageError below 0.
        """
        from kdissect.analysis.other_settings import with_batching

        if min(linger_ms, batch_size) < 0:
            raise UsageError("linger_ms and batch_size must be 0 or more")
        tables = self._capture.tables(readers.BATCHING.tables)
        return with_batching(tables["produces"], tables["produce_partitions"], linger_ms, batch_size)

    def latency(self, by: Sequence[str] = ("api",), every: float | None = None, where: str | None = None) -> pa.Table:
        """Counts, exact quantiles and rates, one row per group (and bucket of `every` seconds).

        Where memory is limited (`kdissect.open(memory=...)`) quantiles of large captures are right to half a percent.
        `by`: any of api, version, client, broker, topic, status, hold, capture, cluster; a broker or topic is one of
        its cluster. `where`: a filter on `exchanges`.
        Columns as `kdissect.analysis.latency.latency` says. Raises UsageError for an unknown grouping or a bad filter.
        """
        from kdissect.analysis.latency import checked, latency

        by = list_names(by)
        columns = checked(by, every)
        asked = _latency_tables(columns)
        if self._capture.frugal and not {"topic", "hold"} & set(columns):
            return self._capture.latencies(columns, asked, every, where)
        tables = self._capture.tables(asked, {} if where is None else {"exchanges": where})
        return latency(
            tables["exchanges"], tables.get("fetch_partitions"), by, every, tables["fetches"],
            tables.get("session_partitions"), tables.get("record_batches"),
        )  # fmt: skip

    def topic_traffic(self) -> pa.Table:
        """Who writes and reads what: one row for each client x topic x partition, with records, bytes, times and lag,
        the table `topic_traffic`."""
        return self._capture.table("topic_traffic")

    def deliveries(self) -> pa.Table:
        """How long records took from their producer to each reader, and what took most of that time: one row for each
        topic and reader, columns as `kdissect.analysis.deliveries.delivery_summary.SUMMARY` says. The deliveries
        themselves are the table `deliveries`."""
        from kdissect.analysis.deliveries.delivery_summary import READ, summarise

        return summarise(self._capture.table("deliveries", READ))

    def delivery_latency(
        self, by: Sequence[str] = ("topic", "group"), every: float | None = None, where: str | None = None
    ) -> pa.Table:
        """Counts and exact quantiles of deliveries, one row per group (and bucket of `every` seconds).

        `by`: any of topic, partition, group, client, producer, broker, follower, waited_for. `where`: a filter on
        `deliveries`. Columns as `kdissect.analysis.deliveries.delivery_latency.delivery_latency` says. Raises
        UsageError for an unknown grouping or a bad filter.
        """
        from kdissect.analysis.deliveries.delivery_latency import checked, columns_read, delivery_latency

        by = list_names(by)
        checked(by, every)
        return delivery_latency(self._capture.table("deliveries", columns_read(by), where), by, every)

    def budget(
        self, by: Sequence[str] = ("client",), every: float | None = None, start: str | datetime | None = None,
        end: str | datetime | None = None,
    ) -> pa.Table:  # fmt: skip
        """Where the time of each subject went, one row each (and bucket of `every` seconds).

        `by`: any of client, broker, group, topic. `start`, `end`: the span, as for `kdissect.open`; what came before
        and after it is read all the same, for requests lie across its borders. Columns as
        `kdissect.analysis.budget.time_budget` says. Raises UsageError for an unknown subject or time.
        """
        from kdissect.analysis.budget import time_budget

        by = list_names(by)
        tables, first, last = self._of_ledger(by, start, end)
        return time_budget(tables, by, every, first, last)

    def time_ledger(
        self, by: Sequence[str] = ("client",), start: str | datetime | None = None, end: str | datetime | None = None,
        subjects: Sequence[str] | None = None,
    ) -> pa.Table:  # fmt: skip
        """Who owned each instant of each subject, as intervals without gaps: rows of the table `time_ledger`.

        `by`: any of client, broker, connection, group, topic. `start`, `end`: the span, as for `budget`. `subjects`:
        names of the subjects to look at, all of them for None. Raises UsageError for an unknown kind or time.
        """
        from kdissect.analysis.ledger.time_ledger import time_ledger

        by = list_names(by)
        tables, first, last = self._of_ledger(by, start, end)
        return time_ledger(tables, by, first, last, None if subjects is None else list_names(subjects))

    def _of_ledger(
        self, by: Sequence[str], start: str | datetime | None, end: str | datetime | None
    ) -> tuple[dict[str, pa.Table], int | None, int | None]:
        """The tables that a ledger by these subjects reads, and its span in µs since the epoch."""
        asked = dict(readers.BUDGET.tables)
        if "topic" in by:
            asked |= readers.BUDGET_TOPICS.tables
        span = find_span(start, end, self._capture._captures)
        first, last = (None if one is None else one // 1000 for one in span)
        return dict(self._capture.tables(asked)), first, last

    def both_ends(self) -> pa.Table:
        """Of captures that were given together, the exchanges that two of them saw, and what each way took between
        them, clocks aligned: rows of `kdissect.analysis.sights.both_ends.WAYS`. How the clocks stand to each other
        is the table `clock_offsets`."""
        from kdissect.analysis.sights.both_ends import WAYS
        from kdissect.engine.run import find_sights

        with self._capture.turns.one_read():
            found = find_sights(self._capture._captures, self._capture._settings)
        return WAYS.empty_table() if found is None else found.ways

    def slowest(self) -> pa.Table:
        """Exchanges by the time beyond their agreed waits, the longest first (`slowest_exchanges.find_slowest`)."""
        from kdissect.analysis.questions.slowest_exchanges import find_slowest

        return find_slowest(self._capture.tables(readers.SLOWEST.tables))

    def errors(self) -> pa.Table:
        """Errors by code, API, client, broker and topic, with first and last (`error_groups.group_errors`)."""
        from kdissect.analysis.questions.error_groups import group_errors

        return group_errors(self._capture.tables(readers.ERRORS.tables))

    def silences(self) -> pa.Table:
        """The longest silences of each client, broker and partition (`silences.find_silences`)."""
        from kdissect.analysis.questions.silences import find_silences

        return find_silences(self._capture.tables(readers.SILENCES.tables))

    def topic_gap(self) -> TopicGap | None:
        """The two topics that are furthest apart in how long writing to them takes (`topic_gap.find_topic_gap`)."""
        from kdissect.analysis.questions.topic_gap import find_topic_gap

        return find_topic_gap(self.latency(["api", "topic"], where="api = 'Produce'"))

    def numbered_findings(self) -> list[Handle]:
        """Findings with the numbers that the first screen gives them."""
        from kdissect.summary.account import number_findings

        return number_findings(self._capture.summary().findings)

    def explain(self, finding: Mapping[str, Any]) -> Explanation:
        """Why a finding is there. `finding`: a row of `findings`, such as `numbered_findings()[0].row`."""
        from kdissect.analysis.ledger.time_ledger import SCHEMA, time_ledger
        from kdissect.analysis.questions import explanation as why

        table = str(finding["table"])
        evidence = self._capture.table(table, where=finding["filter"] or None)
        span = why.stretch(finding)
        within = {} if span is None else {"exchanges": why.near(span), "fetches": why.near(span, "requested_at")}
        tables = self._capture.tables(readers.EXPLANATIONS.tables, within)
        exchanges, connections = tables["exchanges"], why.select_subject(tables["connections"], finding, evidence)
        ledger = SCHEMA.empty_table()
        if span is not None:
            low, high = (round(at.timestamp() * 1_000_000) for at in span)
            kind, names = why.choose_subjects(finding, evidence)
            ledger = time_ledger(tables, (kind,), low, high, names)
            exchanges = why.under_way(exchanges, span)
        subject = why.select_subject(exchanges, finding, evidence)
        begin, end = span or (None, None)
        return why.Explanation(
            dict(finding), begin, end, why.choose_proof(evidence, finding["filter"], TABLES[table].when), subject,
            connections, ledger,
            why.rule_out(finding, why.during(exchanges, finding), why.during(subject, finding), connections),
        )  # fmt: skip

    def findings(self) -> pa.Table:
        """The table `findings`: sentences with their evidence, worst first."""
        return self._capture.table("findings")

    def implied(self, exchange_id: str) -> pa.Table:
        """The partitions that an incremental Fetch covers without naming them, as rows of `session_partitions`.

        `exchange_id` may name its connection by the beginning of its id. Empty for other requests; the known ones where
        the session began before the capture. Raises UsageError when there is no such Fetch.
        """
        from kdissect.analysis.sessions.membership import implied

        tables = self._capture.tables(readers.MEMBERSHIP.tables)
        connection, _, ordinal = exchange_id.partition(":")
        ids = [
            name
            for name in tables["fetches"]["exchange_id"].to_pylist()
            if name.startswith(connection.lower()) and name.partition(":")[2] == ordinal
        ]
        if len(ids) > 1:
            raise UsageError(f"{exchange_id} fits {len(ids)} connections: {', '.join(ids[:4])}")
        return implied(
            ids[0] if ids else exchange_id, tables["fetches"], tables["fetch_partitions"], tables["session_partitions"]
        )

    def diff(self, other: CaptureTables, by: Sequence[str] = ("api",)) -> dict[str, pa.Table]:
        """This capture against another one: before and after a change, or the same traffic at two places.

        `latency` (what got slower), `versions` (which clients use others), `errors`, `network` (time between the two
        places, for exchanges found in both by addresses and correlation id); see `kdissect.analysis.diff`.
        """
        from kdissect.analysis.diff import diff

        by = list_names(by)
        return diff(self._compared(by), Analysis(other)._compared(by), by)

    def _compared(self, by: Sequence[str]) -> Mapping[str, pa.Table]:
        from kdissect.analysis.latency import checked

        asked = _latency_tables(checked(by))
        wanted = (*asked["exchanges"], *readers.MATCHING.tables["exchanges"])
        asked["exchanges"] = tuple(dict.fromkeys(wanted))  # `hold` may be among both
        return self._capture.tables(asked)


def _latency_tables(columns: Collection[str]) -> dict[str, tuple[str, ...]]:
    """The tables that `latency` reads for groups by these columns: holds and topics only where they make a group."""
    tables = dict(readers.LATENCY.tables)
    if "hold" not in columns:
        tables["exchanges"] = tuple(name for name in tables["exchanges"] if name != "hold")
    if "topic" not in columns:
        for name in ("fetch_partitions", "session_partitions", "record_batches"):
            del tables[name]
        tables["fetches"] = ("exchange_id", "excess_ms")
    return tables

"""The report's figures: which there are, what they say, and the rows behind each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from kdissect.analysis.findings.evidence import SEVERITIES
from kdissect.arrays.arrow import with_columns
from kdissect.report import budget_chart, figure_rows, session_rows, time_axis
from kdissect.report.lanes import delivery_lanes
from kdissect.report.lanes.absences import absences
from kdissect.report.observations import Gathering, gathered
from kdissect.summary import WANTED, Summarizer, Summary
from kdissect.summary.account import number_findings
from kdissect.tables.declaration import SCHEMAS
from kdissect.tables.declaration.readers import REPORT

FINDINGS_LED_TO, EACH_LED_TO = 20, 50
"""Findings, and rows of a list, whose bytes are in the page: the first ones, some 10 kB each before compression."""
Explain = Callable[[Sequence[str]], Mapping[str, Any]]
READ = REPORT.tables
"""Tables and columns that a report is made of. None of them holds keys or values of records, or credentials."""


@dataclass(frozen=True, slots=True)
class Figure:
    """Something to look at, and the rows behind it, which the page offers as `<name>.csv`."""

    name: str
    title: str
    caption: str
    table: pa.Table
    left_out: str = ""
    """What the rows leave out, in words, where they do."""


@dataclass(frozen=True, slots=True)
class Report:
    """All that the page shows."""

    summary: Summary
    figures: Mapping[str, Figure]
    target: str
    """How commands name the captures."""
    bucket_s: float
    """Length of a bucket of time, in seconds."""
    bytes: Mapping[str, Any]
    """By exchange id, the bytes of exchanges that findings and lists lead to (`messages.bytes_of`)."""


def report(tables: Mapping[str, pa.Table], target: str, explain: Explain | None = None) -> Report:
    """Everything that the page shows, out of whole tables of `READ` and, if they are there, of `delivery_lanes.READ`.
    `target`: how its commands name the captures. `explain`: gives the bytes of exchanges, those that findings and lists
    lead to."""
    return make_report(gathered(tables), _summary(tables), target, explain, tables)


def make_report(
    gathering: Gathering, summary: Summary, target: str, explain: Explain | None = None,
    travelled: Mapping[str, pa.Table] | None = None, left_out: Sequence[str] = (),
) -> Report:  # fmt: skip
    """Everything that the page shows, out of what was gathered and the summary of the same rows, which has findings.
    `travelled`: the tables of `delivery_lanes.READ`, up to the last exchange of the budgets; None: not known.
    `left_out`: what these tables leave out, in words."""
    every = gathering.every
    sessions = gathering.sessions
    lines = session_rows.session_lines(sessions.name_brokers(sessions.sessions))
    pairs = gathering.by_pair.table()
    latency = figure_rows.by_api_and_client(pairs)
    versions = figure_rows.versions(gathering.versions)
    creators = sessions.creators().slice(0, figure_rows.LINES)
    clients, brokers, errors = _clients(summary), _brokers(summary), _errors(summary)
    first = "" if sessions.whole else f" Of the first {session_rows.MOST_SESSIONS:,} sessions."
    budgeted = [] if gathering.budget.whole else [f"Of the first {gathering.budget.exchanges:,} exchanges."]
    ways = {name: SCHEMAS[name].empty_table() for name in delivery_lanes.READ} | dict(travelled or {})
    first_ones = " ".join(budgeted)
    first_travelled = " ".join([*budgeted, *left_out])
    figures = [
        Figure("presence", "Who was there",
               "Brokers, and the clients that were away longest: idle, silent (it sent nothing for three times as long "
               "as usual), stalled (it answered no request) or gone (no connection was open).",
               absences(gathering.budget.tables(), gathering.budget.last_us), left_out=first_ones),
        Figure("deliveries", "Deliveries of records",
               "From the first byte of the Produce request to the last byte of the answer that gave the records to a "
               "reader: by the time when they were produced.",
               delivery_lanes.slow_deliveries(ways["deliveries"], every), left_out=first_travelled),
        Figure("delivery-heat", "Deliveries over time",
               "How many record batches took how long from their producer to a reader, by the time when they were "
               f"produced: the {figure_rows.SERIES} topics and groups with the most.",
               delivery_lanes.delivery_heat(ways["deliveries"], every), left_out=first_travelled),
        Figure("transactions", "Transactions",
               "From its first request to its end, the longest ones.",
               delivery_lanes.long_transactions(ways["transactions"], gathering.last_us), left_out=first_travelled),
        Figure("time-axis", "What happened when",
               "All lanes share one axis of time. Dots are the slowest exchanges, by what they took beyond their "
               "agreed waits, and those with an error: choose one to see it and its bytes. Draw a stretch of time with "
               "the pointer, or set its ends: what lies below shows that time alone, but where it says whole capture.",
               time_axis.time_axis(gathering.axis, every)),
        Figure("failures", "Exchanges with an error",
               "In order of time. Frame numbers are Wireshark's.", _failures(gathering),
               left_out=_cut(sum(line.count for line in summary.errors), time_axis.ERRORS, "exchanges")),
        Figure("network", "Connections, as TCP fared",
               "Those reset, stalled by a full receiver or with bytes sent again or missing come first. In a stretch "
               "of time: those that were there, with all that befell them.",
               _network(gathering),
               left_out=_cut(summary.kafka_connections, time_axis.TROUBLED, "connections")),
        Figure("findings", "Findings",
               "The findings, worst first, each with the command that shows its evidence. Info: worth knowing, no "
               "trouble.",
               _findings(summary, target)),
        Figure("latency-by-api", "Latency by API",
               "From a request's first byte to its response's last. A fetch that waited because it was asked to counts "
               "here like any other: see below where the time went.", figure_rows.by_api(gathering.by_api.table())),
        Figure("latency", "Latency by API and client",
               "Quantiles in milliseconds: exact for up to 65,536 exchanges, else to half a percent (of a stretch of "
               "time right to a step, each half as long again, without what brokers took). Broker: without transfer "
               "and without waiting behind the connection's previous request. Excess: what a fetch took beyond the "
               "wait that it had agreed to.",
               latency,
               left_out=_cut(pairs.num_rows, figure_rows.LINES, "pairs of API and client")),
        Figure("latency-steps", "Latency by API and client over time", "Counts behind the quantiles of a stretch.",
               time_axis.latency_steps(gathering.steps, latency, every)),
        Figure("heat", "Latency over time", "How many exchanges took how long, and when.",
               figure_rows.heat(gathering.heat_of_all, gathering.heat_of_apis, gathering.heat_of_clients, every)),
        Figure("time-parts", "Where the time went",
               "A long poll is not a slow broker: what a fetch agreed to wait for is separate from what came on top.",
               figure_rows.time_parts(gathering.spent, every)),
        Figure("budget", "Where the time of clients went",
               "Each moment of a client once, even with several requests in flight: what a broker, followers, quotas "
               "or the network took of it; agreed: a long poll waited as asked; own: it had records and had not asked "
               "for more; idle: it asked for nothing. From the capture's first request to its last answer.",
               gathering.budget.rows(every),
               left_out=" ".join([*budgeted, _cut(len(summary.clients), budget_chart.CLIENTS, "clients")]).strip()),
        Figure("holds", "Why brokers answered when they did",
               "Broker time of exchanges that may wait, by what ended the wait: timeout is a long poll that ran out, "
               "data one that was fed, immediate had nothing to wait for.", figure_rows.holds(gathering.holds, every)),
        Figure("outliers", "Slowest exchanges",
               f"The {figure_rows.OUTLIERS} slowest: a fetch by what it took beyond the wait that it had agreed to, "
               "others without the time behind their connection's previous request; waits in group joins are left out. "
               "Frame numbers are Wireshark's.", _outliers(gathering)),
        Figure("sessions-alive", "Fetch sessions of a broker",
               "Sessions alive at once, as far as this capture shows (a broker has 1,000 slots unless configured "
               "otherwise), with those created and those that clients learned were evicted.",
               sessions.alive(every)),
        Figure("sessions", "Sessions one by one",
               "Of the broker chosen above, from creation to end. A click on one shows its epochs below.", lines,
               left_out=_cut(sessions.count, session_rows.SESSIONS, "sessions") + first),
        Figure("epochs", "Epochs of a session", "Each fetch in the session, by the epoch that it named.",
               sessions.epochs(lines),
               left_out=_cut(sessions.count, session_rows.CHOSEN, "sessions; long ones are thinned")),
        Figure("session-clients", "Who creates sessions",
               "By client and broker: sessions created, reused, left open for the broker to evict, and lost.",
               sessions.name_brokers(creators).drop_columns("cluster")),
        Figure("evictors", "Who pushes out others' sessions",
               "Each lost session is shared among the other clients' creations since its last use. Whole capture.",
               sessions.name_brokers(sessions.evictors()).drop_columns("cluster").slice(0, figure_rows.LINES)),
        Figure("share-sessions", "Share sessions",
               "Of share groups (KIP-932), with their acknowledgements. Whole capture.",
               gathering.listed_rows("share_sessions").slice(0, figure_rows.LINES)),
        Figure("versions", "Versions by client and API",
               "The version of each API that a client used. More than one is worth a look.",
               versions),
        Figure("offered", "Versions that brokers offer",
               "Versions that brokers offer in ApiVersions, and the versions in use. Whole capture.",
               gathering.listed_rows("api_versions")),
        Figure("throughput", "Throughput", "By API, over time.", figure_rows.throughput(gathering.throughput, every)),
        Figure("flow", "Who writes and reads what",
               "Clients that write, topics, clients that read; a band is as wide as its bytes are many, those of "
               "record batches.", gathering.flows.rows(every)),
        Figure("clients", "Clients", "By client id.", clients),
        Figure("brokers", "Brokers", "Where they listen.", brokers),
        Figure("errors", "Errors", "Answers with an error, by API.", errors),
        Figure("problems", "Not read, or not right", "Each kind with one example.",
               figure_rows.problems(summary.problems, gathering.places)),
        Figure("quality", "Measures of the capture", "The whole capture, then file by file.",
               gathering.listed_rows("capture_quality")),
        *(
            Figure(f"{name}-steps", f"{name} over time", "Rows of a list in a stretch of time.",
                   figure_rows.lines_over_time(counted, listed, every))
            for name, counted, listed in (
                ("versions", gathering.versions, versions), ("clients", gathering.clients, clients),
                ("brokers", gathering.brokers, brokers), ("errors", gathering.errors, errors),
                ("session-clients", sessions.events, creators),
            )
        ),
    ]  # fmt: skip
    named = {figure.name: figure for figure in figures}
    return Report(summary, named, target, every, {} if explain is None else explain(_led_to(summary, named)))


def _led_to(summary: Summary, figures: Mapping[str, Figure]) -> list[str]:
    """Ids of the exchanges whose bytes are in the page: those of findings, then errors and the slowest by turns."""
    found = [one["first_exchange_id"] for one in summary.findings[:FINDINGS_LED_TO]]
    for name in ("failures", "outliers"):
        found += figures[name].table["exchange_id"].to_pylist()[:EACH_LED_TO]
    return list(dict.fromkeys(one for one in found if one is not None))


def _cut(count: int, most: int, noun: str) -> str:
    return f"{most:,} of {count:,} {noun} are listed." if count > most else ""


def _summary(tables: Mapping[str, pa.Table]) -> Summary:
    gathered = Summarizer("api")
    for name, columns in WANTED.items():
        table = tables[name].select(list(columns))
        for batch in table.combine_chunks().to_batches():
            gathered.feed(name, batch)
    return gathered.finish()


def _findings(summary: Summary, target: str) -> pa.Table:
    """Findings in order of their numbers, with the command that shows the evidence. `severity_of_all`: of a card: the
    worst of an incident, for the finding that leads it."""
    handles = number_findings(summary.findings)
    findings = pa.Table.from_pylist([one.row for one in handles], schema=SCHEMAS["findings"])
    of_cards = [str(one.row["severity"]) for one in handles]
    head = 0
    for n, one in enumerate(handles):
        head = head if one.follows else n
        of_cards[head] = min(of_cards[head], str(one.row["severity"]), key=SEVERITIES.index)
    return with_columns(
        findings,
        {
            "command": pa.array([f"kdissect why {target} {one.number}" for one in handles], pa.string()),
            "number": pa.array([one.number for one in handles], pa.int64()),
            "follows": pa.array([one.follows for one in handles], pa.bool_()),
            "severity_of_all": pa.array(of_cards, pa.string()),
        },
    )  # fmt: skip


def _failures(gathering: Gathering) -> pa.Table:
    some = (
        gathering.failures if gathering.failures is not None else time_axis.failures(SCHEMAS["exchanges"].empty_table())
    )
    return some.rename_columns(["at" if name == "request_first_at" else name for name in some.column_names])


def _network(gathering: Gathering) -> pa.Table:
    some = gathering.troubled if gathering.troubled is not None else SCHEMAS["connections"].empty_table()
    return time_axis.network(some)


def _outliers(gathering: Gathering) -> pa.Table:
    none = [SCHEMAS[name].empty_table() for name in ("exchanges", "fetches")]
    return figure_rows.outliers(gathering.slowest if gathering.slowest is not None else figure_rows.slowest(*none))


def _clients(summary: Summary) -> pa.Table:
    lines = summary.clients[: figure_rows.LINES]
    return pa.table(
        {
            "client_id": pa.array([line.client_id for line in lines], pa.string()),
            "software": pa.array(
                [" ".join(filter(None, (line.software, line.version))) or None for line in lines], pa.string()
            ),
            "groups": pa.array([", ".join(line.groups[:20]) or None for line in lines], pa.string()),
            "addresses": pa.array([", ".join(line.addresses[:20]) or None for line in lines], pa.string()),
            **{name: pa.array([getattr(line, name) for line in lines], pa.int64())
               for name in ("connections", "exchanges", "errors")},
        }
    )  # fmt: skip


def _brokers(summary: Summary) -> pa.Table:
    lines = summary.brokers[: figure_rows.LINES]
    return pa.table(
        {
            "broker": pa.array([line.broker for line in lines], pa.string()),
            "addresses": pa.array([", ".join(line.addresses[:20]) for line in lines], pa.string()),
            **{name: pa.array([getattr(line, name) for line in lines], pa.int64())
               for name in ("connections", "exchanges")},
        }
    )  # fmt: skip


def _errors(summary: Summary) -> pa.Table:
    lines = summary.errors[: figure_rows.LINES]
    return pa.table(
        {
            "api": pa.array([line.name for line in lines], pa.string()),
            "error": pa.array([line.error for line in lines], pa.string()),
            "count": pa.array([line.count for line in lines], pa.int64()),
        }
    )

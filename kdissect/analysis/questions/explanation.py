"""Why a finding is there: the stretch of time it is about, the rows that prove it, and what can be ruled out."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kdissect.analysis.findings.evidence import resent_ms
from kdissect.arrays.arrow import NULL_TIME, ints, reals, times

CONTEXT = 0.25
"""Part of the finding's own length that is looked at before it and after it."""
LEAST_CONTEXT = timedelta(seconds=1)
"""And at least so much: a finding of one instant needs a stretch to be seen in."""
LEDGER_CONTEXT = timedelta(minutes=1)
"""What is read before and after the stretch for the ledger: whether a client is silent goes by its habits."""
SUBJECTS = 50
"""Clients, brokers or connections whose time is added up: more are no easier to read."""
PROOF = 5
"""Rows that an explanation shows."""
PROMPT_MS = 100.0
"""Others whose answers took no longer beyond their agreed waits were served as usual."""
AS_AGREED = ("timeout", "data", "rebalance")
"""Holds that the client asked for."""


class Explanation(NamedTuple):
    """A finding with its evidence."""

    finding: dict[str, Any]
    """A row of `findings`."""
    begin: datetime | None
    """Where the stretch begins that is looked at; None where the finding has no time."""
    end: datetime | None
    proof: pa.Table
    """At most PROOF rows of the evidence, those with the largest measured value first, else the earliest."""
    exchanges: pa.Table
    """Exchanges of the stretch that the finding is about; columns of `readers.EXPLANATIONS`."""
    connections: pa.Table
    """Their connections, and attempts to connect to the same broker."""
    ledger: pa.Table
    """Rows of `time_ledger` within the stretch: whose the time of the finding's subjects was. All of one kind."""
    ruled_out: list[str]
    """What was not the cause, and by what that is known; a sentence each."""


def stretch(finding: Mapping[str, Any]) -> tuple[datetime, datetime] | None:
    """The time around a finding that an explanation looks at; None where the finding has no time."""
    first, last = finding["first_at"], finding["last_at"] or finding["first_at"]
    if first is None:
        return None
    around = max(LEAST_CONTEXT, (last - first) * CONTEXT)
    return first - around, last + around


def near(span: tuple[datetime, datetime], request_at: str = "request_first_at") -> str:
    """A filter of exchanges for those that were under way at some moment of a stretch, or LEDGER_CONTEXT before or
    after it. `request_at`: the column with the request's time."""
    begin, end = span[0] - LEDGER_CONTEXT, span[1] + LEDGER_CONTEXT
    low, high = (repr(f"{at.astimezone(UTC):%Y-%m-%dT%H:%M:%S.%f}Z") for at in (begin, end))
    return (
        f"({request_at} is null or {request_at} <= {high}) and "
        f"(response_first_at is null or response_first_at >= {low}) and "
        f"(response_first_at is not null or {request_at} >= {low})"
    )


def during(exchanges: pa.Table, finding: Mapping[str, Any]) -> pa.Table:
    """The exchanges that were under way between the first and the last moment of a finding."""
    first, last = finding["first_at"], finding["last_at"] or finding["first_at"]
    return exchanges if first is None else under_way(exchanges, (first, last))


def under_way(exchanges: pa.Table, span: tuple[datetime, datetime]) -> pa.Table:
    """The exchanges that were under way at some moment of a stretch."""
    low, high = (round(at.timestamp() * 1_000_000) for at in span)
    asked, answered = times(exchanges, "request_first_at"), times(exchanges, "response_first_at")
    begun, ended = np.where(asked == NULL_TIME, answered, asked), np.where(answered == NULL_TIME, asked, answered)
    return exchanges.filter(pa.array((begun <= high) & (ended >= low)))


def choose_proof(evidence: pa.Table, condition: str | None, instants: tuple[str, ...]) -> pa.Table:
    """At most PROOF rows: the largest by the duration that the filter bounds, else the earliest by `instants`."""
    measure = re.search(r"\b(\w+_ms) >=? ", condition or "")
    if measure and measure[1] in evidence.column_names:
        return evidence.sort_by([(measure[1], "descending")]).slice(0, PROOF)
    by = next((name for name in instants if name in evidence.column_names), None)
    return (evidence if by is None else evidence.sort_by([(by, "ascending")])).slice(0, PROOF)


def select_subject(table: pa.Table, finding: Mapping[str, Any], evidence: pa.Table) -> pa.Table:
    """The rows of exchanges or connections that a finding is about: its broker and client, else those of its evidence;
    all, where neither names any."""
    named = False
    for column in ("broker", "client_id"):
        values = [finding[column]] if finding[column] is not None else _named_by(evidence, column)
        if values:
            named = True
            table = table.filter(pc.is_in(table[column].cast(pa.string()), value_set=pa.array(values, pa.string())))
    if not named and "connection_id" in evidence.column_names:
        ids = pc.unique(evidence["connection_id"].cast(pa.string()))
        table = table.filter(pc.is_in(table["connection_id"].cast(pa.string()), value_set=ids))
    return table


def choose_subjects(finding: Mapping[str, Any], evidence: pa.Table) -> tuple[str, list[str]]:
    """Whose time a finding is about: a kind of subjects of the ledger and their names, at most SUBJECTS. Its client,
    else its broker, else the clients, brokers or connections of its evidence; no names where there are none."""
    for kind, column in (("client", "client_id"), ("broker", "broker")):
        if finding[column] is not None:
            return kind, [str(finding[column])]
    for kind, column in (("client", "client_id"), ("broker", "broker"), ("connection", "connection_id")):
        if column in evidence.column_names:
            names = pc.unique(evidence[column].cast(pa.string())).drop_null().to_pylist()
            if names:
                return kind, [str(name) for name in names[:SUBJECTS]]
    return "client", []


def _named_by(evidence: pa.Table, column: str) -> list[str]:
    """Clients of the evidence; its brokers follow from these."""
    if column != "client_id" or column not in evidence.column_names:
        return []
    return [str(name) for name in pc.unique(evidence[column].cast(pa.string())).to_pylist() if name is not None]


def rule_out(finding: Mapping[str, Any], everything: pa.Table, subject: pa.Table, connections: pa.Table) -> list[str]:
    """Sentences on what was not the cause of a finding, each with the figure that shows it; none where nothing is sure.

    everything: exchanges of the stretch; subject: those that the finding is about; connections: theirs.
    """
    cause = finding["cause"]
    found = []
    if subject.num_rows and connections.num_rows:
        found += _network(connections, subject) if cause != "network" else []
        found += _quotas(subject) if cause != "settings" else []
    if cause != "capture" and connections.num_rows and not ints(connections, "missing_bytes", 0).any():
        found.append(f"the capture: no byte of {_many(connections.num_rows, 'connection')} is missing")
    for column, noun in (("broker", "broker"), ("client_id", "client")):
        own = finding[column]
        if own is not None:
            found += _name_served_others(
                everything.filter(pc.not_equal(everything[column].cast(pa.string()), own)), column, noun
            )
    return found


def _network(connections: pa.Table, subject: pa.Table) -> list[str]:
    """The network, where no segment was sent again and the round trip is known."""
    again = resent_ms(subject)
    trips = reals(connections, "rtt_ms")
    if again.any() or ints(connections, "lost_segments", 0).any() or np.isnan(trips).all():
        return []
    longest = float(np.nanmax(trips))
    if longest > PROMPT_MS:
        return []
    return [f"the network: no segment was sent again, the longest round trip is {_duration(longest)}"]


def _quotas(subject: pa.Table) -> list[str]:
    """Quotas, where every answer says that it was not throttled."""
    throttled = ints(subject, "throttle_ms")
    answered = int((throttled >= 0).sum())
    if not answered or (throttled > 0).any():
        return []
    return [f"quotas: none of {_many(answered, 'answer')} was throttled"]


def _name_served_others(rows: pa.Table, column: str, noun: str) -> list[str]:
    """All other brokers (or clients), where they were served as usual in that stretch."""
    names = pc.unique(rows[column].cast(pa.string())).drop_null()
    held = pc.fill_null(pc.is_in(rows["hold"].cast(pa.string()), value_set=pa.array(AS_AGREED)), False)
    took = reals(rows, "latency_ms")[~np.asarray(held)]
    took = took[~np.isnan(took)]
    if not len(names) or not len(took) or float(took.max()) > PROMPT_MS:
        return []
    return [f"{_many(len(names), f'other {noun}')}: {_many(len(took), 'answer')} in this time, the longest "
            f"{_duration(float(took.max()))}"]  # fmt: skip


def _many(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _duration(ms: float) -> str:
    return (
        f"{ms * 1000:.0f} us"
        if ms < 1
        else f"{ms:.1f} ms"
        if ms < 10
        else f"{ms:.0f} ms"
        if ms < 1000
        else f"{ms / 1000:.1f} s"
    )

"""Findings about leaders that moved, of partitions and of the metadata quorum, and about what a capture cannot show."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kdissect.analysis.findings import evidence as ev
from kdissect.analysis.findings import row_filters
from kdissect.analysis.findings.finders import EVERY_ROW, finder
from kdissect.analysis.findings.limits import Limits
from kdissect.analysis.findings.rules.error_findings import MOVED
from kdissect.analysis.grouping import group
from kdissect.arrays.arrow import MILLI, Int64s, ints, reals, span, times
from kdissect.arrays.from_numpy import arrow_array
from kdissect.tables.leaders import QUORUM

IN_HEADLINE = 2
"""Partitions that a headline names."""
TOGETHER_MS = 5000.0
"""Partitions that move from one broker to another within so long move for one reason: a broker that stops hands them
over one after the other, and clients are told by and by."""
BEFORE_MS = 5000.0
"""Clients meet the old leader's refusal before the first message that names the new one, by a metadata refresh."""
LATE_MS = 1000.0
"""A client that asks the old leader for longer loses time that is felt: clients refresh their metadata at once."""
MOST_NAMED = 20
"""Connections that a filter names one by one."""
ONE_WAY = ("one_way", "orphan")
"""Status of exchanges of which the other direction is missing."""


@finder(leaders=EVERY_ROW, exchanges=row_filters.failed)
def moved(tables: ev.Tables, limits: Limits) -> list[ev.Finding]:
    """Leaders that moved from one broker to another, and for how long clients went on asking the old one."""
    leaders = ev.get(tables, "leaders")
    before, after, at = ints(leaders, "previous", -2), ints(leaders, "leader", -2), times(leaders, "at")
    rows = np.flatnonzero((before >= 0) & (after >= 0) & (before != after))
    rows = rows[np.lexsort((at[rows], after[rows], before[rows]))]
    if not len(rows):
        return []
    quorum = ev.equal(leaders, "topic", QUORUM)
    same = (before[rows][1:] == before[rows][:-1]) & (after[rows][1:] == after[rows][:-1])
    same &= (quorum[rows][1:] == quorum[rows][:-1]) & (np.diff(at[rows]) <= TOGETHER_MS * MILLI)
    found = []
    for part in sorted(np.split(rows, np.flatnonzero(~same) + 1), key=lambda part: int(at[part[0]])):
        old, new, first, last = int(before[part[0]]), int(after[part[0]]), int(at[part[0]]), int(at[part[-1]])
        condition = ev.both(
            f"previous = {old} and leader = {new}", f"at >= {ev.instant(first)} and at <= {ev.instant(last)}"
        )
        values = {"old": old, "new": new, "at": first, "source": leaders["source"][int(part[0])].as_py()}
        if quorum[part[0]]:
            condition = ev.both(condition, ev.equals("topic", QUORUM))
            found += ev.finding(
                tables, "leader_moved", ev.INFO, "leaders", condition, values, case="controller", topic=QUORUM,
                partition=0,
            )  # fmt: skip
            continue
        condition = ev.both(condition, f"(topic is null or topic != '{QUORUM}')")
        names = leaders.take(arrow_array(part)).select(["topic", "topic_id", "partition"]).to_pylist()
        places = [{"topic": row["topic"] or row["topic_id"], "partition": row["partition"]} for row in names]
        asked = _asked_the_old(tables, str(old), first, last)
        values |= {
            "places": places, "few": places if len(part) <= IN_HEADLINE else None,
            "asked": [{"client": name, "took": length or None} for name, length, _ in asked],
        }  # fmt: skip
        longest = max((length for _, length, _ in asked), default=0.0)
        begun = min([first, *(begin for _, _, begin in asked)])
        severity = ev.MEDIUM if longest >= LATE_MS else ev.LOW if asked else ev.INFO
        about = {"topic": names[0]["topic"]} if len({row["topic"] for row in names}) == 1 else {}
        found += ev.finding(
            tables, "leader_moved", severity, "leaders", condition, values, case="partitions", broker=str(old),
            first_at=begun, **about,
        )  # fmt: skip
    return found


def _asked_the_old(tables: ev.Tables, old: str, first: int, last: int) -> list[tuple[str | None, float, int]]:
    """(client, ms from its first refusal to its last, first one) of those that a former leader refused, by time."""
    exchanges = ev.get(tables, "exchanges")
    at = times(exchanges, "request_first_at")
    refused = np.isin(ints(exchanges, "error_code", 0), list(MOVED.values())) & ev.equal(exchanges, "broker", old)
    refused &= (at >= first - BEFORE_MS * MILLI) & (at <= last + TOGETHER_MS * MILLI)
    rows = np.flatnonzero(refused)
    some = exchanges.take(arrow_array(rows))
    groups = group(some, ["client_id"])
    found: list[tuple[str | None, float, int]] = []
    for code in range(len(groups)):
        client = groups.keys["client_id"][code].as_py()
        if client is not None and client.startswith(row_filters.BROKERS):
            continue
        when = at[rows[groups.code == code]]
        found.append((client, span(when) / MILLI, int(when.min())))
    return sorted(found, key=lambda one: one[2])


@finder(capture_quality=EVERY_ROW)
def hidden(tables: ev.Tables, limits: Limits) -> list[ev.Finding]:
    """Traffic that the capture itself cannot show."""
    found = []
    quality = ev.get(tables, "capture_quality")
    snapped = np.flatnonzero(ev.equal(quality, "measure", "snapped_packets") & (_values(quality) > 0))
    if len(snapped):
        count = int(_values(quality)[snapped].sum())
        condition = "measure = 'snapped_packets' and value > 0"
        found += ev.finding(tables, "capture_cut_short", ev.INFO, "capture_quality", condition, {"packets": count})
    removed = np.flatnonzero(ev.equal(quality, "measure", "connections_without_acks") & (_values(quality) > 0))
    if len(removed):
        count = int(_values(quality)[removed].sum())
        condition = "measure = 'connections_without_acks' and value > 0"
        found += ev.finding(
            tables, "capture_without_acks", ev.INFO, "capture_quality", condition, {"connections": count}
        )
    return found


@finder(exchanges=row_filters.of_status(*ONE_WAY), connections=EVERY_ROW)
def seen_one_way(tables: ev.Tables, limits: Limits) -> list[ev.Finding]:
    """Connections that were captured in one direction only."""
    exchanges, connections = ev.get(tables, "exchanges"), ev.get(tables, "connections")
    alone = exchanges.take(arrow_array(_of_status(exchanges, ONE_WAY)))
    owners = group(alone, ["connection_id"])
    size = dict(zip(connections["connection_id"].to_pylist(), ints(connections, "exchanges", 0).tolist(),
                    strict=True)) if len(owners) else {}  # fmt: skip
    names = owners.keys["connection_id"].to_pylist()
    counts = owners.count()
    lonely = [name for name, count in zip(names, counts.tolist(), strict=True) if count >= max(2, size.get(name, 0))]
    if not lonely:
        return []
    count = int(counts[[names.index(name) for name in lonely]].sum())
    values = {"messages": count, "connections": lonely}
    which = ev.among("connection_id", lonely) if len(lonely) <= MOST_NAMED else ""
    condition = ev.both(ev.among("status", sorted(ONE_WAY)), which)
    return ev.finding(tables, "capture_one_way", ev.INFO, "exchanges", condition, values)


@finder(connections=EVERY_ROW)
def met_late(tables: ev.Tables, limits: Limits) -> list[ev.Finding]:
    """Connections that began before the capture did."""
    connections = ev.get(tables, "connections")
    late = np.flatnonzero((ints(connections, "start_seen", 1) == 0) & (ints(connections, "is_kafka", 0) > 0))
    if not len(late):
        return []
    return ev.finding(
        tables, "capture_began_late", ev.INFO, "connections", "is_kafka and not start_seen", {"connections": len(late)}
    )


def _values(quality: pa.Table) -> npt.NDArray[np.float64]:
    return np.nan_to_num(reals(quality, "value"))


def _of_status(exchanges: pa.Table, names: Sequence[str]) -> Int64s:
    flags = np.zeros(exchanges.num_rows, np.bool_)
    for name in names:
        flags |= ev.equal(exchanges, "status", name)
    return np.flatnonzero(flags)


FINDERS = (moved, hidden, seen_one_way, met_late)

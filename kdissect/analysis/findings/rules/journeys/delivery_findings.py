"""Findings about deliveries: groups that get records late, are given them again, or are never given them;
producers whose clocks are ahead."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from kdissect.analysis.deliveries.delivery_summary import without_followers
from kdissect.analysis.exchange_keys import DIGITS
from kdissect.analysis.findings import evidence as ev
from kdissect.analysis.findings.finders import EVERY_ROW, finder
from kdissect.analysis.findings.limits import Limits
from kdissect.analysis.findings.phrases import time_text
from kdissect.analysis.grouping import Groups, group
from kdissect.arrays.arrow import MILLI, NULL_TIME, Flags, Int64s, distinct, encoded, ints, reals, times
from kdissect.arrays.from_numpy import arrow_array

LEAST = 10
"""Batches that were late, or given again: a few are a start, a pause or a move that other findings name."""
SHARE = 0.1
"""Of a reader's batches: fewer that are given again are a retry or two."""
ON_TIME = 0.25
"""Of what is called late: partitions whose 95th percentile is below are not late."""
MOST = 10
"""Readers and topics that get a line of their own; the worst first."""
POLL = "poll"
"""What a batch waits for while a fetch of its reader is at the broker and has asked to wait for more (`min_bytes`)."""
CAUSES = {"reader": "client", POLL: "settings", "throttle": "settings", "network": "network"}
"""What records waited for -> whose fault that is, where it says so: a broker may wait for a disk or for another one,
and whose the transaction was is not known here."""
MOSTLY = 0.9
"""Of the time of late batches, from which on what these waited for is the cause."""
JUMPS = 100
"""Of a reader that are looked at."""
HEARTBEATS = ("consumer_heartbeat", "streams_heartbeat")
MEMBERSHIP = ("join", "sync", "leave", *HEARTBEATS)
"""Messages by which partitions of a group change hands: heartbeats where the member's epoch changes (KIP-848)."""
OF_THE_READER = ("reader", POLL, "throttle")
"""What holds up one reader and not the others of its topic."""
WAITED = ("network", "replication", "transaction", "reader", POLL, "broker", "throttle")


class Reader(NamedTuple):
    """A topic and who reads it; the group is None where it is not known."""

    topic: str | None
    topic_id: str | None
    group_id: str | None
    client_id: str | None

    def name_values(self) -> dict[str, str | None]:
        """What a text names it by."""
        return {"group": self.group_id, "client": self.client_id}

    def find_topic(self, rows: pa.Table) -> Flags:
        """Where rows are about its topic."""
        name, value = ("topic", self.topic) if self.topic is not None else ("topic_id", self.topic_id)
        flags: Flags = ev.equal(rows, name, str(value))
        return flags

    def of_topic(self) -> str:
        """The filter of its topic."""
        return ev.equals("topic", self.topic) if self.topic is not None else ev.equals("topic_id", self.topic_id)

    def itself(self) -> str:
        """The filter of the reader; followers have neither its group nor its client id."""
        if self.group_id is not None:
            return ev.equals("group_id", self.group_id)
        return ev.both("group_id is null", ev.equals("client_id", self.client_id))


class _Deliveries:
    """Deliveries to consumers and groups, by topic and reader."""

    def __init__(self, rows: pa.Table) -> None:
        self.rows = without_followers(rows)
        alone = pc.is_null(self.rows["group_id"])
        client = self.rows["client_id"].cast(pa.string())
        named = pc.if_else(alone, client, pa.scalar(None, pa.string()))
        self.rows = self.rows.append_column("reader", named)
        self.groups: Groups = group(self.rows, ["topic", "topic_id", "group_id", "reader"])

    def reader(self, code: int) -> Reader:
        return Reader(*(self.groups.keys[name][code].as_py() for name in self.groups.keys.column_names))

    def only(self, column: str, rows: Int64s) -> str | None:
        """The value of a column in these rows, None where there are several."""
        values = pc.unique(self.rows[column].cast(pa.string()).take(arrow_array(rows)))
        return values[0].as_py() if len(values) == 1 else None


@finder(deliveries=EVERY_ROW)
def late(tables: ev.Tables, limits: Limits) -> list[ev.Finding]:
    """Records that readers got late although they had started to read the topic before these were sent. They are
    information: other findings know what is at fault. Readers of a topic that waited for the same have one finding,
    unless they waited for themselves or their quotas."""
    found = _Deliveries(ev.get(tables, "deliveries"))
    rows = found.rows
    took, sent, code = reals(rows, "delivery_ms"), times(rows, "produced_at"), found.groups.code
    started = _find_first_fetches(found, took)
    fair = ~np.isnan(took) & (sent >= started[code]) & (sent != NULL_TIME)
    slow = fair & (took >= limits.slow_ms)
    counts = found.groups.count(slow)
    together: dict[tuple[str | None, Reader, int | None], list[int]] = {}
    for one in np.argsort(-found.groups.total(np.where(slow, took, 0)), kind="stable").tolist():
        if counts[one] >= LEAST:
            waited = _largest(rows, np.flatnonzero(slow & (code == one)), took)[0]
            own = one if waited in OF_THE_READER else None
            place = found.reader(one)._replace(group_id=None, client_id=None)
            together.setdefault((waited, place, own), []).append(one)
    made: list[ev.Finding] = []
    for (waited, place, _), codes in list(together.items())[:MOST]:
        if waited is None:
            continue
        readers = [found.reader(one) for one in codes]
        of = np.isin(code, codes)
        mine, all_of_it = np.flatnonzero(slow & of), np.flatnonzero(fair & of)
        share = _largest(rows, mine, took)[1]
        values: dict[str, Any] = {
            "who": [one.name_values() for one in readers], "batches": len(mine),
            "late": limits.slow_ms, "half": float(np.median(took[mine])), "longest": float(took[mine].max()),
            "share": f"{share:.0%}", "since": int(sent[mine].min()), "name": place.topic or place.topic_id,
            "alone": _late_partitions(rows, mine, all_of_it, took, limits.slow_ms), f"for_{waited}": True,
        }  # fmt: skip
        condition = ev.both(
            place.of_topic(), _any(sorted({one.itself() for one in readers})),
            f"delivery_ms >= {limits.slow_ms:g}", f"produced_at >= '{_moment(int(started[codes].min()))}'",
        )  # fmt: skip
        made += ev.finding(
            tables, "late_records", ev.INFO, "deliveries", condition, values,
            cause=CAUSES.get(waited, "unknown") if share >= MOSTLY else "unknown",
            client_id=found.only("client_id", mine) if waited in OF_THE_READER else None,
            group_id=found.only("group_id", mine), topic=place.topic, broker=found.only("broker", mine),
        )  # fmt: skip
    return made


def _find_first_fetches(deliveries: _Deliveries, took: npt.NDArray[np.float64]) -> Int64s:
    """By reader and topic when its first fetch arrived that took records; microseconds."""
    rows = deliveries.rows
    way = (reals(rows, "served_ms") + reals(rows, "transfer_ms")) * MILLI
    known = ~np.isnan(took)
    asked = times(rows, "delivered_at")[known] - way[known].astype(np.int64)
    started = np.full(len(deliveries.groups), np.iinfo(np.int64).max, np.int64)
    np.minimum.at(started, deliveries.groups.code[known], asked)
    return started


def _largest(rows: pa.Table, mine: Int64s, took: npt.NDArray[np.float64]) -> tuple[str | None, float]:
    """What deliveries waited for most, by their time, and its share of it. What passed before the request does not
    count; None where that is all."""
    rows = rows.take(arrow_array(mine))
    polls = pc.and_(pc.equal(rows["waited_for"], "reader"), pc.greater(rows["served_ms"], rows["absent_ms"]))
    waited = pc.if_else(pc.fill_null(polls, False), POLL, rows["waited_for"].cast(pa.string()))
    codes, values = encoded(waited.combine_chunks())
    spent = np.bincount(codes + 1, weights=took[mine], minlength=len(values) + 1)[1:]
    ranked = [(spent[at], name) for at, name in enumerate(values) if name in WAITED and spent[at] > 0]
    if not ranked:
        return None, 0.0
    most, name = max(ranked)
    return str(name), float(most / took[mine].sum())


def _late_partitions(
    rows: pa.Table, mine: Int64s, all_of_it: Int64s, took: npt.NDArray[np.float64], late_ms: float
) -> list[str]:
    """The partitions that were late, where others of the topic have as many deliveries and were not; else none."""
    partition = ints(rows, "partition")
    slow = distinct(partition[mine])
    others = np.setdiff1d(partition[all_of_it], slow)
    calm = [
        one for one in others.tolist()
        if (of := all_of_it[partition[all_of_it] == one]).size >= LEAST
        and np.quantile(took[of], 0.95) < ON_TIME * late_ms
    ]  # fmt: skip
    return [str(one) for one in slow.tolist()] if len(calm) and len(calm) == len(others) else []


def _joins(groups: pa.Table, limits: Limits) -> Any:
    """Members that join a group."""
    return pc.equal(groups["event"].cast(pa.string()), "join")


@finder(deliveries=EVERY_ROW, groups=_joins)
def given_again(tables: ev.Tables, limits: Limits) -> list[ev.Finding]:
    """Batches that more than one answer gave to a consumer group. Share groups are given records again by design. Only
    where members joined meanwhile somebody else may have worked on them before."""
    found = _Deliveries(ev.get(tables, "deliveries"))
    rows, code, joins = found.rows, found.groups.code, ev.get(tables, "groups")
    fetched: Flags = np.asarray(pc.is_valid(rows["isolation_level"]))
    again = fetched & (ints(rows, "times") > 1) & np.asarray(pc.is_valid(rows["group_id"]))
    counts, every = found.groups.count(again), found.groups.count(fetched)
    made: list[ev.Finding] = []
    for one in np.argsort(-counts, kind="stable").tolist()[:MOST]:
        if counts[one] < max(LEAST, SHARE * every[one]):
            continue
        mine = np.flatnonzero(again & (code == one))
        reader = found.reader(one)
        joined = times(joins, "at")[ev.equal(joins, "group_id", str(reader.group_id))]
        moved = bool((joined > times(rows, "delivered_at")[mine].min()).any())
        values = {
            "who": [reader.name_values()], "batches": int(counts[one]),
            "records": int(ints(rows, "records", 0)[mine].sum()), "most": int(ints(rows, "times")[mine].max()),
            "name": reader.topic or reader.topic_id, "moved": moved, "alone": not moved,
        }  # fmt: skip
        made += ev.finding(
            tables, "records_given_again", ev.INFO, "deliveries",
            ev.both(reader.of_topic(), reader.itself(), "times > 1"), values,
            client_id=found.only("client_id", mine), group_id=reader.group_id, topic=reader.topic,
        )  # fmt: skip
    return made


def _memberships(groups: pa.Table, limits: Limits) -> Any:
    """Messages by which partitions of a group change hands."""
    return pc.is_in(groups["event"].cast(pa.string()), pa.array(MEMBERSHIP))


class _Jump(NamedTuple):
    """Offsets of a partition that a connection of a group went past; instants in microseconds."""

    partition: int
    behind: int
    """The last offset that it was given before."""
    ahead: int
    """The first offset that it was given next."""
    since: int
    until: int

    def of_batches(self) -> str:
        """The filter of the batches in between."""
        return ev.both(
            ev.equals("partition", self.partition), f"base_offset > {self.behind}", f"last_offset < {self.ahead}"
        )

    def among(self, rows: pa.Table) -> Flags:
        """Batches of the partition that have one of these offsets."""
        found: Flags = ints(rows, "partition") == self.partition
        return found & (ints(rows, "last_offset") > self.behind) & (ints(rows, "base_offset") < self.ahead)


@finder(deliveries=EVERY_ROW, groups=_memberships, connections=EVERY_ROW)
def passed_over(tables: ev.Tables, limits: Limits) -> list[ev.Finding]:
    """Batches that another reader was given and a consumer group never was, because a connection of it went on behind
    them. Nothing is said of connections with holes, or if partitions may have changed hands meanwhile."""
    found = _Deliveries(ev.get(tables, "deliveries"))
    groups, every = ev.get(tables, "groups"), ev.get(tables, "deliveries")
    jumps = _find_jumps(found, ev.get(tables, "connections"))
    made: list[ev.Finding] = []
    for one, places in list(jumps.items())[:MOST]:
        reader, mine = found.reader(one), found.rows.filter(arrow_array(found.groups.code == one))
        moves, topic = _find_moves(groups, reader), reader.find_topic(every)
        never = [
            jump for jump in places
            if not jump.among(mine).any() and not ((moves > jump.since) & (moves <= jump.until)).any()
        ]  # fmt: skip
        passed = np.zeros(len(topic), np.bool_)
        for jump in never:
            passed |= topic & jump.among(every)
        others = every.filter(arrow_array(passed))
        of = group(others, ["group_id", "client_id"])
        if not len(of) or of.count().max() < LEAST:
            continue
        most = int(of.count().argmax())
        witness = others.filter(arrow_array(of.code == most))
        other = reader._replace(**{name: of.keys[name][most].as_py() for name in of.keys.column_names})
        never = [jump for jump in never if jump.among(witness).any()]
        values = {
            "who": [reader.name_values()], "batches": witness.num_rows,
            "records": int(ints(witness, "records", 0).sum()),
            "name": reader.topic or reader.topic_id, "other": [other.name_values()],
            "places": sorted({str(jump.partition) for jump in never}),
        }  # fmt: skip
        condition = ev.both(reader.of_topic(), other.itself(), _any([jump.of_batches() for jump in never]))
        made += ev.finding(
            tables, "records_passed_over", ev.INFO, "deliveries", condition, values,
            client_id=found.only("client_id", np.flatnonzero(found.groups.code == one)), group_id=reader.group_id,
            topic=reader.topic,
        )  # fmt: skip
    return made


def _find_jumps(deliveries: _Deliveries, connections: pa.Table) -> dict[int, list[_Jump]]:
    """By reader the longest jumps of its connections, at most JUMPS: readers with the most jumps first."""
    rows, partition = deliveries.rows, ints(deliveries.rows, "partition")
    base, last, at = ints(rows, "base_offset"), ints(rows, "last_offset"), times(rows, "delivered_at")
    holed = ints(connections, "missing_bytes", 0) > 0
    of = pc.utf8_slice_codeunits(rows["fetch_exchange_id"].cast(pa.string()), 0, DIGITS)
    safe = pc.invert(
        pc.is_in(of, connections["connection_id"].cast(pa.string()).combine_chunks().filter(arrow_array(holed)))
    )
    judged = np.asarray(pc.and_(safe, pc.and_(pc.is_valid(rows["group_id"]), pc.is_valid(rows["isolation_level"]))))
    lane = encoded(of.combine_chunks())[0]
    order = np.lexsort((base, at, lane, partition, deliveries.groups.code))
    before, after = order[:-1], order[1:]
    same = judged[after] & (base[before] >= 0) & (base[after] - last[before] > LEAST)
    for key in (deliveries.groups.code, partition, lane):
        same &= key[before] == key[after]
    before, after = before[same], after[same]
    jumps: dict[int, list[_Jump]] = {}
    for one in np.argsort(-np.bincount(deliveries.groups.code[after]), kind="stable").tolist():
        mine = np.flatnonzero(deliveries.groups.code[after] == one)
        mine = mine[np.argsort(last[before[mine]] - base[after[mine]], kind="stable")][:JUMPS]
        pairs = zip(before[mine].tolist(), after[mine].tolist(), strict=True)
        if len(mine):
            jumps[one] = [
                _Jump(int(partition[y]), int(last[x]), int(base[y]), int(at[x]), int(at[y])) for x, y in pairs
            ]
    return jumps


def _find_moves(groups: pa.Table, reader: Reader) -> Int64s:
    """When members of the reader's group may have got other partitions; microseconds."""
    mine = groups.filter(arrow_array(ev.equal(groups, "group_id", str(reader.group_id))))
    at, generation = times(mine, "at"), ints(mine, "generation")
    order = np.argsort(at, kind="stable")
    joins = np.asarray(pc.invert(pc.is_in(mine["event"].cast(pa.string()), pa.array(HEARTBEATS))))[order]
    changes = joins | (np.diff(generation[order], prepend=generation[order][:1]) != 0)
    moves: Int64s = at[order][changes]
    return moves


@finder(deliveries=EVERY_ROW)
def clocks(tables: ev.Tables, limits: Limits) -> list[ev.Finding]:
    """Producers that stamp records later than the requests left that carried them: `buffered_ms` is null there. The
    largest difference is the nearest to what the clocks differ by: that batch waited least."""
    rows = ev.get(tables, "deliveries")
    of = group(rows, ["producer_client_id"])
    created, produced = times(rows, "created_at"), times(rows, "produced_at")
    stamped = (created != NULL_TIME) & (produced != NULL_TIME)
    ahead = np.where(stamped, created - np.where(stamped, produced, 0), NULL_TIME)
    wrong = stamped & (ahead > 0) & np.asarray(pc.is_null(rows["buffered_ms"]))
    most = np.full(len(of), NULL_TIME)
    np.maximum.at(most, of.code[wrong], ahead[wrong])
    order = [one for one in np.argsort(-most, kind="stable").tolist() if most[one] != NULL_TIME]
    if not order:
        return []
    named = of.keys["producer_client_id"].to_pylist()
    values = {
        "producers": [{"client": named[one], "ahead": most[one] / MILLI} for one in order],
        "most": most[order[0]] / MILLI,
        "others": len(np.setdiff1d(of.code[stamped], order)) or None,
    }
    condition = "buffered_ms is null and created_at > produced_at"
    about = {"client_id": named[order[0]]} if len(order) == 1 else {}
    return ev.finding(tables, "clocks_disagree", ev.INFO, "deliveries", condition, values, **about)


def _any(conditions: list[str]) -> str:
    """Any of the conditions."""
    return conditions[0] if len(conditions) == 1 else "(" + " or ".join(f"({one})" for one in conditions) + ")"


def _moment(at: int) -> str:
    """An instant as a filter writes it."""
    return time_text(int(at), "%Y-%m-%d %H:%M:%S") + f".{int(at) % 1_000_000:06d}"


FINDERS = (late, given_again, passed_over, clocks)

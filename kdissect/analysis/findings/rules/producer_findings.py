"""Findings about producers: what was written again, and how."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kdissect.analysis.findings import evidence as ev
from kdissect.analysis.findings import row_filters
from kdissect.analysis.findings.finders import EVERY_ROW, finder
from kdissect.analysis.findings.limits import Limits
from kdissect.analysis.findings.rules.transaction_findings import STARTED, started
from kdissect.analysis.grouping import group, most_first
from kdissect.arrays.arrow import Flags, ints, span, times
from kdissect.arrays.from_numpy import arrow_array
from kdissect.schema.apikeys import ApiKey

MOST_AGAIN = 50
"""Batches that a filter names one by one, the first ones."""
TINY_RECORDS = 1
"""Records of a batch: linger.ms makes more of them as soon as records come close together."""
TINY_BATCHES = 500
"""Batches of a producer before it is a habit."""
TINY_PER_SECOND = 100.0
"""Batches a second that records this close together would not need: 10 ms of linger.ms halve them."""
TINY_SECONDS = 1.0
"""For at least so long."""


@finder(producers=EVERY_ROW)
def sent_again(tables: ev.Tables, limits: Limits) -> list[ev.Finding]:
    """Batches of idempotent producers that were sent more than once: a sequence number seen before (KIP-98)."""
    producers = ev.get(tables, "producers")
    again = ev.equal(producers, "sequence", "repeat")
    groups = group(producers, ["producer_id"])
    counts = groups.count(again)
    found = []
    for code in most_first(counts):
        producer = groups.keys["producer_id"][code].as_py()
        rows = np.flatnonzero(again & (groups.code == code))
        partitions = len(group(producers.take(arrow_array(rows)), ["topic", "topic_id", "partition"]))
        values = {"producer": producer, "batches": int(counts[code]), "partitions": partitions}
        condition = ev.both(f"producer_id = {producer}", "sequence = 'repeat'")
        found += ev.finding(tables, "batches_sent_again", ev.LOW, "producers", condition, values)
    return found


@finder(producers=EVERY_ROW, producer_ids=EVERY_ROW, exchanges=STARTED)
def tiny_batches(tables: ev.Tables, limits: Limits) -> list[ev.Finding]:
    """Producers that send each record alone, again and again: a request, an append and a fetch for each."""
    producers, known = ev.get(tables, "producers"), {one.producer: one for one in started(tables)}
    groups, sizes = (
        group(producers, ["producer_id"]),
        ints(producers, "last_sequence") - ints(producers, "base_sequence") + 1,
    )
    at = times(producers, "sent_at")
    found = []
    for code in np.flatnonzero(groups.count() >= TINY_BATCHES).tolist():
        mine = np.flatnonzero(groups.code == code)
        seconds = span(at[mine]) / 1e6
        records = float(np.median(sizes[mine]))
        if seconds < TINY_SECONDS or len(mine) / seconds < TINY_PER_SECOND or records > TINY_RECORDS:
            continue
        producer = groups.keys["producer_id"][code].as_py()
        one = known.get(producer)
        values = {
            "producer": producer, "batches": len(mine), "records": records, "took": seconds * 1000,
            "rate": len(mine) / seconds,
        }  # fmt: skip
        found += ev.finding(
            tables, "tiny_batches", ev.LOW, "producers", f"producer_id = {producer}", values,
            client_id=one.client if one is not None else None,
        )  # fmt: skip
    return found


@finder(
    exchanges=(row_filters.first_produces, row_filters.abandoned, row_filters.of_status("unanswered")),
    record_batches=row_filters.without_producer_id,
)
def written_twice(tables: ev.Tables, limits: Limits) -> list[ev.Finding]:
    """Batches that a client sent again after it had given them up, and that the broker cannot know for the same."""
    exchanges = ev.get(tables, "exchanges")
    produced = ints(exchanges, "api_key", -1) == ApiKey.PRODUCE
    written = produced & ev.equal(exchanges, "status", "ok")
    late = written & (ints(exchanges, "abandoned", 0) > 0)  # an error that came late says that it was not written
    given_up = late | (produced & ev.equal(exchanges, "status", "unanswered"))
    if not given_up.any():
        return []
    batches = ev.get(tables, "record_batches")
    batches = batches.filter(pc.is_valid(batches["first_timestamp"]))
    again = written & row_filters.first_produces(exchanges, limits).fill_null(False).to_numpy()
    after = _sent(exchanges, again, batches)
    ones = _before(after, _sent(exchanges, given_up, batches))
    if not ones.num_rows:
        return []
    rows = _before(ones, _sent(exchanges, late, batches))["row"]
    ones = ones.append_column("twice", pc.is_in(ones["row"], rows.combine_chunks()))
    ones = ones.sort_by([("end", "ascending"), ("row", "ascending")])
    groups = group(ones, ["client", "broker"])
    found = []
    for code in most_first(groups.count()):
        client, broker = (groups.keys[name][code].as_py() or None for name in ("client", "broker"))
        mine = np.flatnonzero(groups.code == code)
        rows = ones.take(arrow_array(mine[:MOST_AGAIN]))
        count, twice = rows.num_rows, int(pc.sum(rows["twice"]).as_py())
        records, topics = rows["records"], sorted(set(rows["topic"].to_pylist()))
        one = topics[0] if len(topics) == 1 and pc.all(rows["is_named"]).as_py() else None
        values = {
            "more": len(mine) > MOST_AGAIN, "batches": count, "topics": topics, "twice": twice or None,
            "records": pc.sum(records).as_py() if pc.min(records).as_py() >= 0 else None,
            "unknown": count - twice if 0 < twice < count else None,
        }  # fmt: skip
        condition = ev.both(ev.among("exchange_id", sorted(set(rows["exchange"].to_pylist()))),
                         ev.among("crc", sorted(set(rows["crc"].to_pylist()))))  # fmt: skip
        found += ev.finding(
            tables, "batches_written_twice", ev.MEDIUM if twice else ev.LOW, "record_batches", condition, values,
            client_id=client, broker=broker, topic=one,
            first_at=pc.min(rows["first_sent"]).as_py(), last_at=pc.max(rows["end"]).as_py(),
        )  # fmt: skip
    return found


SAME = ["client", "topic", "partition", "crc", "bytes", "records", "first", "last"]
"""What a batch that is sent again has like the first."""


def _before(after: pa.Table, given_up: pa.Table) -> pa.Table:
    """Rows of `after` that were given up before on another connection, with when they were sent first. Both are what
    `_sent` makes; however many of them are alike, there are no more rows than `after` has."""
    known = given_up.group_by(SAME).aggregate([("at", "min"), ("connection", "min"), ("connection", "max")])
    after = after.select([name for name in after.schema.names if name != "first_sent"])
    found = after.join(known.rename_columns([*SAME, "first_sent", "one", "other"]), SAME, join_type="inner")
    elsewhere = pc.or_(
        pc.not_equal(found["one"], found["connection"]), pc.not_equal(found["other"], found["connection"])
    )
    return found.filter(pc.and_(pc.greater(found["at"], found["first_sent"]), elsewhere)).drop_columns(["one", "other"])


def _sent(exchanges: pa.Table, some: Flags, batches: pa.Table) -> pa.Table:
    """Batches of some exchanges: what makes them the same, when and where they were sent."""
    ids = exchanges["exchange_id"].cast(pa.string()).combine_chunks()
    rows = np.flatnonzero(some)
    at = pc.index_in(batches["exchange_id"].cast(pa.string()), ids.take(arrow_array(rows))).combine_chunks()
    mine = np.flatnonzero(at.is_valid().to_numpy(zero_copy_only=False))
    owner = rows[at.take(arrow_array(mine)).to_numpy()]
    batches, of = batches.take(arrow_array(mine)), exchanges.take(arrow_array(owner))

    def text(*columns: pa.ChunkedArray) -> pa.ChunkedArray:
        return pc.coalesce(*(one.cast(pa.string()) for one in columns), "")

    return pa.table({
        "client": text(of["client_id"]), "topic": text(batches["topic"], batches["topic_id"]),
        "is_named": pc.is_valid(batches["topic"]),
        "partition": batches["partition"], "crc": batches["crc"], "bytes": batches["compressed_bytes"],
        "records": pc.fill_null(batches["records"], -1), "first": batches["first_timestamp"].cast(pa.int64()),
        "last": batches["max_timestamp"].cast(pa.int64()), "row": arrow_array(mine),
        "exchange": ids.take(arrow_array(owner)),
        "connection": text(of["connection_id"]), "broker": text(of["broker"]),
        "at": of["request_first_at"].cast(pa.int64()), "end": of["response_first_at"].cast(pa.int64()),
    })  # fmt: skip


FINDERS = (sent_again, written_twice, tiny_batches)

"""Findings about records that brokers rewrite: compressed again, or converted for readers of an older format."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kdissect.analysis.exchange_keys import exchange_keys, locate
from kdissect.analysis.findings import evidence as ev
from kdissect.analysis.findings.finders import EVERY_ROW, finder
from kdissect.analysis.findings.limits import Limits
from kdissect.analysis.findings.rules.transaction_findings import STARTED, started
from kdissect.analysis.grouping import group
from kdissect.arrays.arrow import Int64s, earliest, ints, latest, times
from kdissect.arrays.from_numpy import arrow_array
from kdissect.tables.declaration.readers import ONE_BATCH_IN

PRESENT_FORMAT = 2
"""Of record batches (KIP-98, Kafka 0.11)."""
COMPARED = 3
"""Batches of a topic that came back compressed otherwise: one may have met a setting that was being changed."""
SPAN = 1 << 40
"""Offsets of a partition, so that one number stands for both."""
UNCOMPRESSED = "none"
"""Of `codec`."""
MOST_NAMED = 20
"""Producers, sequence numbers, exchanges that a filter names one by one."""


def _sampled(batches: pa.Table, limits: Limits) -> Any:
    """Batches of older formats, and of the present one a sample by sequence number, which a batch keeps on its way from
    the producer to consumers, and by offset."""
    magic = pc.fill_null(batches["magic"], PRESENT_FORMAT)
    sequence, offset = pc.fill_null(batches["base_sequence"], -1), pc.fill_null(batches["base_offset"], -1)
    sent = pc.and_(pc.greater_equal(sequence, 0), _divisible(sequence))
    stored = pc.and_(pc.greater(offset, 0), _divisible(offset))  # in Produce requests they begin at 0
    return pc.or_(pc.less(magic, PRESENT_FORMAT), pc.or_(sent, stored))


def _divisible(numbers: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.equal(pc.bit_wise_and(numbers, pa.scalar(ONE_BATCH_IN - 1, numbers.type)), 0)


def _where(tables: ev.Tables, name: str, batches: pa.Table) -> Int64s:
    """Row of a table about exchanges for each batch, -1 where its exchange is not there."""
    return locate(exchange_keys(batches["exchange_id"]), exchange_keys(ev.get(tables, name)["exchange_id"]))


SAME = ("topic", "topic_id", "partition", "producer_id", "producer_epoch", "base_sequence", "records")
"""What a batch has like before wherever it is read (KIP-98)."""


@finder(record_batches=_sampled, producers=EVERY_ROW, fetches=EVERY_ROW, exchanges=STARTED, producer_ids=EVERY_ROW)
def recompressed(tables: ev.Tables, limits: Limits) -> list[ev.Finding]:
    """Topics whose batches reach readers in another codec than that in which their producers sent them."""
    batches = ev.of_topics_apart(ev.get(tables, "record_batches"))
    sequence = ints(batches, "base_sequence")
    rows = np.flatnonzero((ints(batches, "producer_id") >= 0) & (sequence >= 0) & (sequence % ONE_BATCH_IN == 0))
    if not len(rows):
        return []
    batches = batches.take(arrow_array(rows))
    written, fetched = _where(tables, "producers", batches), _where(tables, "fetches", batches)
    sent: dict[tuple[Any, ...], tuple[str, int]] = {}
    got: dict[tuple[Any, ...], tuple[str, int]] = {}
    known = np.flatnonzero((written >= 0) | (fetched >= 0))
    described = batches.select([*SAME, "codec"]).take(arrow_array(known)).to_pylist()
    for at, row in zip(fetched[known].tolist(), described, strict=True):
        key = tuple(row[name] for name in SAME)
        if row["codec"] is not None:
            (sent if at < 0 else got)[key] = (row["codec"], at)
    found = []
    asked = times(ev.get(tables, "fetches"), "requested_at")
    clients = {one.producer: one.client for one in started(tables)}
    topics: dict[tuple[Any, ...], list[tuple[Any, ...]]] = {}
    for key in sorted(sent.keys() & got.keys(), key=str):
        topics.setdefault((*key[:2], sent[key][0]), []).append(key)
    for (topic, topic_id, codec), keys in topics.items():
        producers = sorted({key[3] for key in keys})[:MOST_NAMED]
        numbers = sorted({key[5] for key in keys})[:MOST_NAMED]
        keys = [key for key in keys if key[3] in producers and key[5] in numbers]
        other = [key for key in keys if got[key][0] != codec]
        codecs = sorted({got[key][0] for key in other})
        if len(other) < COMPARED or len(codecs) > 1:
            continue
        names = {clients[one] for one in producers if one in clients}
        values = {
            "clients": sorted(names, key=str), "changed": len(other), "compared": len(keys),
            "sent": None if codec == UNCOMPRESSED else codec, "read": None if codecs[0] == UNCOMPRESSED else codecs[0],
        }  # fmt: skip
        condition = ev.both(
            ev.of_topic(topic, topic_id), ev.among("producer_id", producers), ev.among("base_sequence", numbers),
            ev.among("codec", sorted({codec, *codecs})),
        )  # fmt: skip
        when = asked[[got[key][1] for key in other]]
        client = next(iter(names)) if len(names) == 1 else None
        found += ev.finding(
            tables, "recompressed", ev.LOW, "record_batches", condition, values, topic=topic, client_id=client,
            first_at=earliest(when), last_at=latest(when),
        )  # fmt: skip
    return found


@finder(record_batches=_sampled, fetches=EVERY_ROW)
def converted(tables: ev.Tables, limits: Limits) -> list[ev.Finding]:
    """Readers for which a broker converts records to an older format: others get the same ones in the present one."""
    batches = ev.of_topics_apart(ev.get(tables, "record_batches"))
    old = np.flatnonzero(ints(batches, "magic", PRESENT_FORMAT) < PRESENT_FORMAT)
    if not len(old):
        return []
    fetched = _where(tables, "fetches", batches)
    first, last = ints(batches, "base_offset"), ints(batches, "last_offset")
    first = np.where(first < 0, last, first)  # a compressed wrapper tells its last offset alone
    places = group(batches, ev.PLACE)
    present = np.flatnonzero(
        (fetched >= 0) & (ints(batches, "magic") == PRESENT_FORMAT) & (first > 0) & (first % ONE_BATCH_IN == 0)
    )
    present = present[np.lexsort((first[present], places.code[present]))]
    if not len(present):
        return []
    stored = places.code[present] * SPAN + np.minimum(first[present], SPAN - 1)
    old = old[(fetched[old] >= 0) & (last[old] >= 0)]
    at = np.searchsorted(stored, places.code[old] * SPAN + np.minimum(last[old], SPAN - 1), side="right") - 1
    hit = (at >= 0) & (places.code[present[at]] == places.code[old]) & (last[present[at]] >= first[old])
    old, at = old[hit], at[hit]
    if not len(old):
        return []
    fetches = ev.get(tables, "fetches").select(["client_id", "requested_at", "exchange_id"])
    rows, read = fetches.take(arrow_array(fetched[old])), batches.take(arrow_array(old))
    for name in ev.TOPIC:
        rows = rows.append_column(name, read[name])
    others = fetches["client_id"].take(arrow_array(fetched[present[at]])).to_pylist()
    asked = times(rows, "requested_at")
    found = []
    by = group(rows, ["client_id", *ev.TOPIC])
    for code in range(len(by)):
        client, topic, topic_id = by.keys.slice(code, 1).to_pylist()[0].values()
        mine = np.flatnonzero(by.code == code)
        mine = mine[np.argsort(asked[mine], kind="stable")]
        names = sorted({str(others[i]) for i in mine.tolist() if others[i] is not None})
        exchanges = list(dict.fromkeys(rows["exchange_id"].take(arrow_array(mine)).to_pylist()))[:MOST_NAMED]
        condition = ev.both(
            ev.among("exchange_id", sorted(exchanges)), f"magic < {PRESENT_FORMAT}", ev.of_topic(topic, topic_id)
        )
        found += ev.finding(
            tables, "converted_down", ev.INFO, "record_batches", condition, {"others": names}, client_id=client,
            topic=topic, first_at=earliest(asked[mine]), last_at=latest(asked[mine]),
        )  # fmt: skip
    return found


FINDERS = (recompressed, converted)

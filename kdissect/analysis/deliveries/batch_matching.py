"""Matches batches that producers sent with batches of the log.

1. By topic, partition and offset, where the Produce answer told the offset. A batch of the log may hold several that
   were sent (brokers of old join message sets), and an answer may begin in the middle of one.
2. Else by producer id, epoch and sequence, which brokers keep as they are. Batches of producers without an id are
   matched by checksum, records and first timestamp. These survive unless the broker writes the batch again
   (recompression, LogAppendTime). Where several were sent that are alike, each is matched with one only if as many
   stand in the log.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kdissect.analysis.deliveries.delivery_columns import UNKNOWN, Batches, Exchanges, dense
from kdissect.arrays.arrow import Int64s, begins, distinct

BY_OFFSET, BY_CRC = 0, 1
MOST_TOGETHER = 256
"""Batches that were sent and stand in one batch of the log: brokers of old joined what one request had. A header that
claims all offsets would be paired with every batch that there is."""


class Writes(NamedTuple):
    """Batches as producers meant them: `first_try` is the row of `sent` that is a batch's first request, by row of
    `sent`; `times` how many requests carried it."""

    first_try: Int64s
    times: Int64s


def group_writes(sent: Batches, exchanges: Exchanges) -> Writes:
    """Requests that carry the same batch. Of producers with an id: the same sequence. Of others: the same bytes, sent
    again after a request that failed or got no answer."""
    size = len(sent.row)
    began = exchanges.first[sent.exchange]
    named = sent.producer >= 0
    alike = dense(
        sent.place, named.astype(np.int64), np.where(named, sent.producer, sent.crc),
        np.where(named, sent.epoch, sent.stamp), np.where(named, sent.sequence, exchanges.client[sent.exchange]),
        sent.records,
    )  # fmt: skip
    order = np.lexsort([began, alike])
    new = np.ones(size, np.bool_)
    new[1:] = alike[order][1:] != alike[order][:-1]
    kept = sent.first[order] >= 0  # the answer told where it was stored
    new[1:] |= ~named[order][1:] & kept[:-1]
    new[1:] |= ~named[order][1:] & (sent.crc[order][1:] < 0)
    heads = np.flatnonzero(new)
    group = np.cumsum(new) - 1
    found = Writes(np.empty(size, np.int64), np.empty(size, np.int64))
    found.first_try[order] = order[heads[group]]
    counts = np.diff(np.append(heads, size))
    found.times[order] = counts[group]
    return found


def match_batches(sent: Batches, delivered: Batches, exchanges: Exchanges) -> tuple[Int64s, Int64s, Int64s]:
    """Pairs (row of `delivered`, row of `sent` or -1, BY_OFFSET or BY_CRC or -1): at least one of each row of
    `delivered`."""
    rows, found = _by_offset(sent, delivered, exchanges)
    rest = np.flatnonzero(np.bincount(rows, minlength=len(delivered.row)) == 0)
    other = _by_bytes(sent, delivered, exchanges, rest)
    how = np.where(other >= 0, BY_CRC, -1)
    return (
        np.concatenate([rows, rest]),
        np.concatenate([found, other]),
        np.concatenate([np.full(len(rows), BY_OFFSET, np.int64), how]),
    )


def _by_offset(sent: Batches, delivered: Batches, exchanges: Exchanges) -> tuple[Int64s, Int64s]:
    known = np.flatnonzero(sent.first >= 0)
    known = known[np.lexsort([exchanges.first[sent.exchange[known]], sent.first[known], sent.place[known]])]
    if not len(known) or not len(delivered.row):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    values = distinct(np.concatenate([sent.first[known], delivered.first, delivered.last]))
    wide = len(values) + 1
    key = sent.place[known] * wide + np.searchsorted(values, sent.first[known])
    low = np.searchsorted(key, delivered.place * wide + np.searchsorted(values, delivered.first), "left")
    high = np.searchsorted(key, delivered.place * wide + np.searchsorted(values, delivered.last), "right")
    before = known[np.maximum(low - 1, 0)]
    within = (low > 0) & (sent.place[before] == delivered.place) & (sent.last[before] >= delivered.first)
    low = low - within
    count = np.clip(high - low, 0, MOST_TOGETHER)
    rows = np.repeat(np.arange(len(count)), count)
    at = np.arange(len(rows)) - np.repeat(begins(count)[:-1], count) + np.repeat(low, count)
    found = known[at]
    # Nothing is delivered before it is sent: an offset that was written twice, or a topic that was made anew.
    late = exchanges.last[delivered.exchange[rows]] < exchanges.first[sent.exchange[found]]
    rows, found = rows[~late], found[~late]
    # Of several writes at one offset the last one before the answer.
    again = np.zeros(len(rows), np.bool_)
    again[:-1] = (rows[1:] == rows[:-1]) & (sent.first[found][1:] == sent.first[found][:-1])
    return rows[~again], found[~again]


def _by_bytes(sent: Batches, delivered: Batches, exchanges: Exchanges, candidates: Int64s) -> Int64s:
    """For each of these rows of `delivered` a row of `sent` whose offset no answer told, -1 for none."""
    found = np.full(len(candidates), -1, np.int64)
    lost = np.flatnonzero((sent.first < 0) & ((sent.sequence >= 0) | (sent.crc >= 0)))
    if not len(lost) or not len(candidates):
        return found
    both = [(sent, lost), (delivered, candidates)]
    named = np.concatenate([part.producer[rows] >= 0 for part, rows in both])

    def column(name: str, alternative: str) -> Int64s:
        of_named = np.concatenate([getattr(part, name)[rows] for part, rows in both])
        of_others = np.concatenate([getattr(part, alternative)[rows] for part, rows in both])
        return np.where(named, of_named, of_others)

    place = np.concatenate([part.place[rows] for part, rows in both])
    key = dense(
        place, named.astype(np.int64), column("producer", "crc"), column("epoch", "stamp"),
        column("sequence", "records"), column("records", "records"),
    )  # fmt: skip
    mine, theirs = key[: len(lost)], key[len(lost) :]
    logged, entry = np.unique(np.stack([theirs, delivered.first[candidates]], axis=1), axis=0, return_inverse=True)
    entry = entry.reshape(-1)
    # The n-th that was sent is the n-th in the log, where there are as many.
    order = np.lexsort([exchanges.first[sent.exchange[lost]], mine])
    sizes = int(key.max()) + 1
    many, stand = np.bincount(mine, minlength=sizes), np.bincount(logged[:, 0], minlength=sizes)
    first_of = begins(many)[:-1]
    rank = np.arange(len(logged)) - begins(stand)[:-1][logged[:, 0]]
    named_key = np.zeros(sizes, np.bool_)
    named_key[key] = named
    fits = (many[logged[:, 0]] > 0) & ((many == stand)[logged[:, 0]] | named_key[logged[:, 0]])
    rank = np.where(named_key[logged[:, 0]], 0, rank)
    choice = np.where(fits, first_of[logged[:, 0]] + rank, -1)
    picked = np.where(choice >= 0, lost[order[np.minimum(choice, len(lost) - 1)]], -1)
    found = picked[entry]
    early = exchanges.last[delivered.exchange[candidates]] < exchanges.first[sent.exchange[np.maximum(found, 0)]]
    return np.where((found >= 0) & ~early, found, UNKNOWN)


def first_writes(sent: Batches, writes: Writes, matched: Int64s) -> Int64s:
    """The rows of `sent` that wrote these batches, -1 for none. A producer with an id writes a batch once, however
    often it sends it; without an id each request that gets through writes it again, at another offset."""
    if not len(sent.row):
        return matched
    row = np.maximum(matched, 0)
    return np.where(matched < 0, -1, np.where(sent.producer[row] >= 0, writes.first_try[row], matched))


def unit_numbers(delivered: Batches, rows: Int64s, written: Int64s) -> Int64s:
    """Numbers of the batches that pairs are about: one that was written, else the one of the log."""
    own = written >= 0
    return dense(
        own.astype(np.int64), np.where(own, written, delivered.place[rows]), np.where(own, 0, delivered.first[rows]),
        np.where(own, 0, delivered.last[rows]),
    )  # fmt: skip

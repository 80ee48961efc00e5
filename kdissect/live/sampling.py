"""Sampling when there is more traffic than can be analysed: it leaves out whole connections, and reports how many.

Rules.

- A connection is kept or left out by a hash of its two endpoints, the same on every host and in every run. So a share
  of connections is kept, independent of their content.
- A connection that was left out stays so until its endpoints open a new one (SYN): half a conversation would look like
  loss.
- Of a connection that is given up in its middle, exchanges that were open are not counted. The frame that was cut short
  is no problem of the traffic either (`Watch` ends it without a word).
- The share falls by half when packets are looked at too late, at most once in `PATIENCE_S`. It grows by half when they
  have been looked at in time for `CALM_S`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from kdissect.kafka.streams.ledger import connection_id
from kdissect.net.segment import ACK_FLAG, SEGMENT, SYN

LATE_S = 2.0
PATIENCE_S = 3.0
CALM_S = 30.0
LEAST = 1 / 1024
Words = npt.NDArray[np.int64]
WHOLE = 1 << 32
BROKEN = ("unanswered", "pending", "partial", "one_way")
"""What exchanges become whose connection is not worked on any longer."""


class Load:
    """The share of connections that can be worked on, by how late packets are."""

    def __init__(self) -> None:
        self._share = 1.0
        self._changed = -PATIENCE_S
        self._late = -CALM_S

    def share(self, behind_s: float, now_s: float) -> float:
        """The share from now on; `behind_s`: how late the latest packet was looked at, `now_s`: any steady clock."""
        if behind_s > LATE_S:
            self._late = now_s
            if now_s - self._changed >= PATIENCE_S:
                self._changed = now_s
                self._share = max(LEAST, self._share / 2)
        elif self._share < 1 and now_s - self._late >= CALM_S and now_s - self._changed >= CALM_S:
            self._changed = now_s
            self._share = min(1.0, self._share * 1.5)
        return self._share


class Sampler:
    """Keeps a share of connections. A `Sampling` of `Watch`."""

    def __init__(self, share: float = 1.0) -> None:
        self.share = share
        self._hash: npt.NDArray[np.uint64] = np.zeros(0, np.uint64)
        """By flow number, the hash of its endpoints; 0 not decided yet."""
        self._kept: npt.NDArray[np.bool_] = np.zeros(0, np.bool_)
        self._seen: Words = np.zeros(0, np.int64)
        """When its last packets came, ns."""
        self.left: Words = np.zeros(0, np.int64)
        """Flows among the rows seen last that are left out."""

    @property
    def idle(self) -> bool:
        """Whether everything is kept, and always was."""
        return self.share >= 1 and not len(self._hash)

    def packets(self, rows: Words, flows: Words) -> Words:
        """The segment rows of the connections that are kept."""
        self.left = self.left[:0]
        if self.idle or not len(rows):
            return rows
        flow = rows[:, SEGMENT.flow] >> 1
        numbers = np.unique(flow)
        self._look_at(numbers, flows)
        self._seen[numbers] = rows[:, SEGMENT.time].max()
        syn = (rows[:, SEGMENT.flags] & (SYN | ACK_FLAG)) == SYN
        if syn.any():
            again = np.unique(flow[syn])
            self._kept[again] = self._chosen(self._hash[again])
        falls = np.flatnonzero(self._kept & ~self._chosen(self._hash) & (self._hash != 0))
        self._kept[falls] = False
        self.left = numbers[~self._kept[numbers]]
        return rows[self._kept[flow]] if len(self.left) else rows

    def forgotten(self, before: int) -> Words:
        """Flows that are left out and had no packet since that time (ns): no flow of ours any more."""
        idle = np.flatnonzero(~self._kept & (self._hash != 0) & (self._seen < before))
        self._hash[idle] = 0
        return idle

    def _look_at(self, numbers: Words, flows: Words) -> None:
        """Decide on flows that are new; a number may have been given to another flow."""
        if len(flows) > len(self._hash):
            more = max(len(flows), 2 * len(self._hash)) - len(self._hash)
            self._hash = np.concatenate([self._hash, np.zeros(more, np.uint64)])
            self._kept = np.concatenate([self._kept, np.zeros(more, np.bool_)])
            self._seen = np.concatenate([self._seen, np.zeros(more, np.int64)])
        zeros = np.zeros(len(numbers), np.int64)
        found = connection_id("", flows[numbers], zeros, zeros) | np.uint64(1)
        new = found != self._hash[numbers]
        self._hash[numbers] = found
        self._kept[numbers[new]] = self._chosen(found[new])

    def _chosen(self, hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        chosen: npt.NDArray[np.bool_] = (hashes >> np.uint64(32)) < np.uint64(int(self.share * WHOLE))
        return chosen

    def drop_broken(self, exchanges: pa.RecordBatch) -> pa.RecordBatch:
        """Exchanges of connections that were given up, without those that only broke because of that."""
        kept = pc.invert(pc.fill_null(pc.is_in(exchanges.column("status").cast(pa.string()), pa.array(BROKEN)), False))
        return exchanges.filter(kept)

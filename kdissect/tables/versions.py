"""The `api_versions` table: what each broker offers and what its clients use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kdissect.arrays.arrow import Flags, Int64s, Scalar, distinct
from kdissect.kafka.completed import NULL_TIME, Completed
from kdissect.kernels.kernel import kernel
from kdissect.schema.apikeys import ApiKey
from kdissect.tables.apinames import api_name
from kdissect.tables.brokers import Brokers
from kdissect.tables.declaration import SCHEMAS
from kdissect.tables.table_block import Block

TOGETHER = 1 << 15
"""Offers looked at together: a block of short connections has half a million, of which the last ones count."""
KEYS, VERSIONS = 128, 64
"""API keys and versions counted in one table per block; stranger ones (an unknown API, a hostile header) one by one."""


MARKED = 16
"""Brokers whose APIs and versions are marked in a list (128 KB); of more they are counted."""


@kernel("const i4[:] const i2[:] const i2[:] const b1[:] b1[:,:,:] -> b1")
def _mark(
    brokers: npt.NDArray[np.int32], keys: npt.NDArray[np.int16], versions: npt.NDArray[np.int16], orphans: Flags,
    seen: Flags,
) -> Scalar:  # fmt: skip
    """Mark the APIs and versions of requests by broker; whether there is room for all of them."""
    for i in range(brokers.size):
        if keys[i] >= 0 and versions[i] >= 0 and not orphans[i]:
            if keys[i] >= KEYS or versions[i] >= VERSIONS:
                return False
            seen[brokers[i], keys[i], versions[i]] = True
    return True


def offer_paths() -> dict[tuple[int, int], set[str]]:
    """The message paths that offers are read from."""
    return {
        (ApiKey.API_VERSIONS, 1): {"error_code", "api_keys.api_key", "api_keys.min_version", "api_keys.max_version"},
    }


COLUMNS = ("broker", "api_key", "api", "min_version", "max_version", "used_min", "used_max", "cluster")
"""What `Offered.table` makes."""


@dataclass(slots=True, eq=False, repr=False)
class Offered:
    """Offers and uses of a run, by unresolved broker (`capture<TAB>ip:port`) and API key."""

    offers: dict[tuple[str, int], tuple[int, int, int]] = field(default_factory=dict)
    """(time ns, lowest, highest version) of the latest answer."""
    uses: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)

    def feed(self, block: Block) -> None:
        """Count a block's requests and read its ApiVersions answers."""
        done = block.done
        broker = block.directory.broker_codes(done.conn)
        texts = block.directory.brokers.texts
        seen = np.zeros((len(texts), KEYS, VERSIONS) if len(texts) <= MARKED else (0, KEYS, VERSIONS), np.bool_)
        keys, versions = (np.require(one, np.int16, ["C", "A"]) for one in (done.api_key, done.api_version))
        if len(seen) and _mark(broker, keys, versions, np.require(done.is_orphan, np.bool_, ["C", "A"]), seen):
            rows = np.argwhere(seen)
        else:
            rows = self._distinct(done, broker)
        for place, api, used in rows.tolist():
            self.use(texts[place], api, used, used)
        self._offers(block, broker.astype(np.int64))

    @staticmethod
    def _distinct(done: Completed, brokers: npt.NDArray[np.int32]) -> Int64s:
        """[n, 3]: brokers, API keys and versions of requests, the different ones in order."""
        broker = brokers.astype(np.int64)
        known = (done.api_key >= 0) & (done.api_version >= 0) & ~done.is_orphan
        key, version, where = (a[known].astype(np.int64) for a in (done.api_key, done.api_version, broker))
        small = (key < KEYS) & (version < VERSIONS)
        if small.all() and len(key):
            low = int(where.min())
            counts = np.bincount(((where - low) * KEYS + key) * VERSIONS + version)
            packed = np.flatnonzero(counts)
            return np.stack([packed // VERSIONS // KEYS + low, packed // VERSIONS % KEYS, packed % VERSIONS], axis=1)
        found: Int64s = distinct(np.stack([where, key, version], axis=1))
        return found

    def _offers(self, block: Block, broker: np.ndarray) -> None:
        rows = block.bodies(ApiKey.API_VERSIONS, 1)
        if not len(rows):
            return
        answers = block.nest(ApiKey.API_VERSIONS, 1)
        done, texts = block.done, block.directory.brokers.texts
        level = answers.each("api_keys")
        moment = np.where(done.response_last != NULL_TIME, done.response_last, done.response_first)[rows]
        good = answers.ints("error_code", 0) == 0
        said = [level.ints(name) for name in ("api_key", "min_version", "max_version")]
        for first in range(0, len(level.body), TOGETHER):
            some = slice(first, first + TOGETHER)
            body = level.body[some]
            api, lowest, highest = (column[some] for column in said)
            columns = np.stack([broker[rows][body], api, moment[body], lowest, highest], axis=1)
            self._latest(columns[good[body]], texts)

    def _latest(self, columns: np.ndarray, texts: Sequence[str]) -> None:
        """Take the latest of offers: broker, API key, time, lowest and highest version."""
        order = np.lexsort((columns[:, 2], columns[:, 1], columns[:, 0]))
        columns = columns[order]
        last = np.ones(len(columns), np.bool_)
        last[:-1] = (columns[1:, :2] != columns[:-1, :2]).any(axis=1)
        for place, api, at, lowest, highest in columns[last].tolist():
            self.offer(texts[place], api, at, lowest, highest)

    def use(self, broker: str, api: int, lowest: int, highest: int) -> None:
        """Requests of these versions went to a broker."""
        known = self.uses.get((broker, api), (lowest, highest))
        self.uses[broker, api] = (min(known[0], lowest), max(known[1], highest))

    def offer(self, broker: str, api: int, at: int, lowest: int, highest: int) -> None:
        """A broker said at this time what it offers."""
        known = self.offers.get((broker, api))
        if known is None or known < (at, lowest, highest):
            self.offers[broker, api] = (at, lowest, highest)

    def clear(self) -> None:
        """Forget everything."""
        self.offers.clear()
        self.uses.clear()

    def merge(self, other: Offered) -> None:
        """Add what another part of the same work has collected."""
        for (broker, api), (lowest, highest) in other.uses.items():
            self.use(broker, api, lowest, highest)
        for (broker, api), offered in other.offers.items():
            self.offer(broker, api, *offered)

    def table(self, brokers: Brokers) -> pa.Table:
        """The `api_versions` table, brokers resolved, in order of (broker, API key, cluster)."""
        names = brokers.names()
        clusters: dict[str | None, Offered] = {}
        for (broker, api), used in self.uses.items():
            merged = clusters.setdefault(brokers.cluster_named(broker), Offered())
            merged.use(names.get(broker, broker), api, *used)
        for (broker, api), offered in self.offers.items():
            merged = clusters.setdefault(brokers.cluster_named(broker), Offered())
            merged.offer(names.get(broker, broker), api, *offered)
        rows = []
        for cluster, merged in clusters.items():
            for broker, api in merged.uses.keys() | merged.offers.keys():
                _, lowest, highest = merged.offers.get((broker, api), (None, None, None))
                used_min, used_max = merged.uses.get((broker, api), (None, None))
                rows.append((broker, api, api_name(api), lowest, highest, used_min, used_max, cluster))
        rows.sort(key=lambda row: (_natural(row[0]), row[1], row[7] or ""))
        schema = SCHEMAS["api_versions"]
        columns = dict(zip(COLUMNS, zip(*rows, strict=True) if rows else [[] for _ in COLUMNS], strict=True))
        return pa.table([pa.array(list(columns[field.name]), field.type) for field in schema], schema=schema)


def _natural(broker: str) -> tuple[bool, int, str]:
    """Node ids by number, then addresses."""
    return (False, int(broker), "") if broker.isdigit() else (True, 0, broker)

"""Figures by name, for a bounded number of names: those that are busiest, and all others together as `other`.

Rules.

- A name that has a place is counted there from then on; what came of it before counts for `other`.
- Where all places are taken, a name moves in when it was lately twice as busy as the quietest one; what that one had
  counted goes to `other`. So counters never lose anything, and each only rises while it has its place.
- A name may turn out to be another one's (a broker's address, once its node id is known): then both are one line.
- "Lately" is a count that halves every `HALF_LIFE_US`; of names without a place only the busiest are remembered.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

OTHER = "other"
UNKNOWN = "(unknown)"
"""What a null name is called."""
HALF_LIFE_US = 60_000_000
REMEMBERED = 4
"""Names without a place that are remembered, for each place."""
EDGES_MS = np.array([1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000, 30_000], np.float64)
"""Upper bounds of the histograms that go to metrics; the last bucket has no bound."""
SMALLEST_MS, RATIO, BUCKETS = 0.01, 1.09, 192
"""The histograms of the last seconds: from 10 us to three minutes, right to five percent."""
BUCKET_MS = np.array([SMALLEST_MS * RATIO ** (bucket + 0.5) for bucket in range(BUCKETS)])
"""The duration that each bucket stands for."""
CELLS = 10
"""Cells of the window; it moves by one of them."""
PARTS = ("latency", "broker", "agreed", "replication", "network", "queued", "transfer")
"""Whose time: the whole, the broker's own, what the request had agreed to wait, the followers', the network's, behind
others, bytes on their way."""

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def quantile(counts: Ints, share: float) -> float | None:
    """The duration (ms) below which `share` of those in a histogram lie; None without any."""
    total = int(counts.sum())
    if not total:
        return None
    rank = max(1, int(np.ceil(share * total)))
    bucket = int(np.searchsorted(np.cumsum(counts), rank))
    return float(BUCKET_MS[bucket])


def _encoded(column: pa.Array) -> tuple[list[str], Ints]:
    """The names in a column, and the code of each row's."""
    encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode("encode")
    texts = [UNKNOWN if text is None else str(text) for text in encoded.dictionary.to_pylist()]
    codes = encoded.indices.fill_null(len(texts)).to_numpy(zero_copy_only=False).astype(np.int64)
    return [*texts, UNKNOWN], codes


class Dimension:
    """Counters by name. `limit`: names that have a place. `cell_us`: microseconds of a cell of the window. `parts`:
    what durations are counted by, next to the name."""

    def __init__(self, name: str, limit: int, cell_us: int, parts: Sequence[str] = PARTS) -> None:
        self.name = name
        self.parts = parts
        self.limit = limit
        self.cell_us = cell_us
        places = limit + 1
        self.texts: list[str | None] = [OTHER] + [None] * limit
        """Names by place; None: free."""
        self._place: dict[str, int] = {}
        self._recent = np.zeros(places)
        self._others: dict[str, float] = {}
        self._halved = 0
        self.cell = 0
        """Number of the cell that is filled now."""
        # Since the beginning.
        self.exchanges: Ints = np.zeros(places, np.int64)
        self.errors: Ints = np.zeros(places, np.int64)
        self.bytes: Ints = np.zeros(places, np.int64)
        self.histogram: Ints = np.zeros((places, len(parts), len(EDGES_MS) + 1), np.int64)
        self.sum_ms = np.zeros((places, len(parts)))
        # Of the last seconds, by cell.
        self.rate: Ints = np.zeros((CELLS, places), np.int64)
        self.failed: Ints = np.zeros((CELLS, places), np.int64)
        self.volume: Ints = np.zeros((CELLS, places), np.int64)
        self.records: Ints = np.zeros((CELLS, places), np.int64)
        self.recent = np.zeros((CELLS, places, len(parts), BUCKETS), np.int32)

    # ---- names

    def places(self, column: pa.Array) -> Ints:
        """The place of each row's name, which may get one by this."""
        texts, codes = _encoded(column)
        counts = np.bincount(codes, minlength=len(texts))
        found = np.zeros(len(texts), np.int64)
        for code in np.argsort(-counts, kind="stable").tolist():  # the busiest first: they get the places
            if not counts[code]:
                break
            found[code] = self._admitted(texts[code], int(counts[code]))
        places: Ints = found[codes]
        return places

    def places_known(self, column: pa.Array) -> Ints:
        """The place of each row's name, 0 where it has none: for further figures of rows that were counted before."""
        texts, codes = _encoded(column)
        places: Ints = np.array([self.place(text) for text in texts], np.int64)[codes]
        return places

    def place(self, text: str | None) -> int:
        """The place of a name that may have one; `other`'s, 0, where it has none."""
        return self._place.get(UNKNOWN if text is None else text, 0)

    def _admitted(self, text: str, count: int) -> int:
        place = self._place.get(text)
        if place is not None:
            self._recent[place] += count
            return place
        if text == OTHER:  # somebody's own name: told from ours by nothing, so it joins it
            return 0
        if len(self._place) < self.limit:
            place = self.texts.index(None)
        else:
            seen = self._others.get(text, 0.0) + count
            place = 1 + int(np.argmin(self._recent[1:]))
            if seen <= 2 * self._recent[place]:
                self._remember(text, seen)
                return 0
            self._fold(place)
            count = int(seen)
            self._others.pop(text, None)
        self.texts[place] = text
        self._place[text] = place
        self._recent[place] = count
        return place

    def _remember(self, text: str, seen: float) -> None:
        others = self._others
        if text not in others and len(others) >= REMEMBERED * self.limit:
            least = min(others, key=others.__getitem__)
            if others[least] > seen:
                return
            del others[least]
        others[text] = seen

    def rename(self, old: str, new: str) -> None:
        """Count what was counted under one name under another, which may have a place already."""
        if old in self._others:
            self._remember(new, self._others.pop(old) + self._others.get(new, 0.0))
        place, taken = self._place.get(old), self._place.get(new)
        if place is None:
            return
        if taken is None:
            del self._place[old]
            self.texts[place] = new
            self._place[new] = place
        else:
            self._recent[taken] += self._recent[place]
            self._fold(place, taken)

    def _fold(self, place: int, into: int = 0) -> None:
        """The counts of a place go to another one, that of `other` if none is named; the place is free."""
        for total in (self.exchanges, self.errors, self.bytes, self.histogram, self.sum_ms):
            total[into] += total[place]
            total[place] = 0
        for cells in (self.rate, self.failed, self.volume, self.records, self.recent):
            cells[:, into] += cells[:, place]
            cells[:, place] = 0
        text = self.texts[place]
        assert text is not None
        del self._place[text]
        self.texts[place] = None

    # ---- figures

    def advance(self, now_us: int) -> None:
        """It is `now_us` by the capture's clock: cells that are older than the window are emptied."""
        cell = now_us // self.cell_us
        if cell <= self.cell:
            return
        for n in range(max(self.cell + 1, cell - CELLS + 1), cell + 1):
            for cells in (self.rate, self.failed, self.volume, self.records, self.recent):
                cells[n % CELLS] = 0
        self.cell = cell
        if now_us - self._halved > HALF_LIFE_US:
            halvings = min(30, (now_us - self._halved) // HALF_LIFE_US) if self._halved else 1
            self._halved = now_us
            self._recent /= 2**halvings
            self._others = {text: count / 2**halvings for text, count in self._others.items() if count >= 1}

    def inside(self, at_us: Ints) -> tuple[npt.NDArray[np.bool_], Ints]:
        """The instants that lie in the window, and their cells; later ones count as now."""
        cell = np.minimum(at_us // self.cell_us, self.cell)
        return cell > self.cell - CELLS, cell % CELLS

    def add(self, place: Ints, at_us: Ints, failed: npt.NDArray[np.bool_], size: Ints) -> None:
        """Count exchanges: the place, instant (us), whether it failed, and bytes of each."""
        np.add.at(self.exchanges, place, 1)
        np.add.at(self.errors, place[failed], 1)
        np.add.at(self.bytes, place, size)
        now, cell = self.inside(at_us)
        np.add.at(self.rate, (cell[now], place[now]), 1)
        np.add.at(self.failed, (cell[now & failed], place[now & failed]), 1)
        np.add.at(self.volume, (cell[now], place[now]), size[now])

    def time(self, part: int, place: Ints, at_us: Ints, took_ms: Floats) -> None:
        """Count durations (ms; NaN: unknown, not counted) of one of the parts."""
        self.time_each(np.full(len(place), part), place, at_us, took_ms)

    def time_each(self, parts: Ints, place: Ints, at_us: Ints, took_ms: Floats) -> None:
        """Count durations (ms; NaN: unknown, not counted), each of its own part."""
        known = ~np.isnan(took_ms)
        parts, place, at_us, took_ms = parts[known], place[known], at_us[known], took_ms[known]
        np.add.at(self.histogram, (place, parts, np.searchsorted(EDGES_MS, took_ms, side="left")), 1)
        np.add.at(self.sum_ms, (place, parts), took_ms)
        now, cell = self.inside(at_us)
        log = np.log(np.maximum(took_ms[now], SMALLEST_MS) / SMALLEST_MS) / np.log(RATIO)
        bucket = np.minimum(log, BUCKETS - 1).astype(np.int64)
        np.add.at(self.recent, (cell[now], place[now], parts[now], bucket), 1)

    def lines(self) -> list[dict[str, Any]]:
        """A line for each name that was busy in the window, or has counted anything, the busiest first."""
        seconds = CELLS * self.cell_us / 1e6
        rate, failed = self.rate.sum(axis=0), self.failed.sum(axis=0)
        volume, records = self.volume.sum(axis=0), self.records.sum(axis=0)
        found = []
        for place, text in enumerate(self.texts):
            if text is None or not (self.exchanges[place] or records[place] or place):
                continue
            line: dict[str, Any] = {
                "name": text, "rate": rate[place] / seconds, "errors": int(failed[place]),
                "bytes_s": volume[place] / seconds, "records_s": records[place] / seconds,
                "exchanges": int(self.exchanges[place]), "errors_total": int(self.errors[place]),
            }  # fmt: skip
            of = self.recent[:, place].sum(axis=0)
            for n, part in enumerate(self.parts):
                line[f"{part}_p50_ms"] = quantile(of[n], 0.5)
                line[f"{part}_p99_ms"] = quantile(of[n], 0.99)
            found.append(line)
        return sorted(found, key=lambda one: (-one["rate"], -one["exchanges"], one["name"]))

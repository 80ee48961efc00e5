"""A pass over captures for the exchanges that several of them have, before the one that makes tables.

Only flows that more than one capture has are followed, and nothing is decoded. Of a single capture, of pipes, which can
be read once, and of captures that share no flow nothing is looked at twice, or beyond packets' headers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace

import numpy as np
import numpy.typing as npt

from kdissect.analysis.both_ends import Seen, sights
from kdissect.capture import CaptureSet
from kdissect.engine.books import Books
from kdissect.engine.inputs import CaptureFiles
from kdissect.engine.run import Run, Settings
from kdissect.engine.sights.common import Common
from kdissect.engine.sights.shared_flows import Hashes, hashes, shared_flows
from kdissect.engine.timings import Timings
from kdissect.kafka.exchanges.completed import NULL_TIME, Connections
from kdissect.kafka.exchanges.completion import Completion
from kdissect.kafka.streams.dissector import Harvest
from kdissect.kafka.streams.state import TOKEN
from kdissect.net.segment import FLOW
from kdissect.tables.recording import Reading
from kdissect.tables.selection import Selected, Selection
from kdissect.tables.sights import Sights

Words = npt.NDArray[np.int64]


def surveyed(captures: Sequence[CaptureSet], settings: Settings) -> Sights | None:
    """What several captures have in common; None where that is nothing."""
    if len(captures) < 2 or not all(member.regular for capture in captures for member in capture.members):
        return None
    shared = shared_flows(captures, settings)
    if not any(map(len, shared)):
        return None
    alone = replace(
        settings, selection=None, follow=None, progress=None, timings=Timings(), jobs=1, reading=Reading(),
        common=Common(given=True),
    )  # fmt: skip
    books = Books(captures, {}, alone)
    books.builder.selected = _Shared(Selection(), shared=shared)
    seen = _Onlooker(captures, settings)
    for _ in Run(books, seen).completed():
        pass
    return seen.sights(books.ledger.connections)


@dataclass(slots=True)
class _Shared(Selected):
    """Packets of flows that several captures have."""

    shared: Sequence[Hashes] = ()

    def packets(self, rows: Words, flows: Words, capture: int) -> Words:
        """The segment rows of such flows."""
        if not len(rows):
            return rows
        used, place = np.unique(rows[:, FLOW] >> 1, return_inverse=True)
        keep = np.isin(hashes(flows[used]), self.shared[capture])[place.reshape(-1)]
        return rows if keep.all() else rows[keep]


class _Onlooker(CaptureFiles):
    """Takes finished exchanges for itself: what tells them, and when they were seen."""

    def __init__(self, captures: Sequence[CaptureSet], settings: Settings) -> None:
        super().__init__(captures, settings.after, settings.before)
        self._parts: list[Seen] = []
        self._isn: list[tuple[Words, Words]] = []

    @contextmanager
    def completing(self, harvest: Harvest, completion: Completion) -> Iterator[None]:
        """See Inputs."""
        base = completion.ledger.base
        rows = harvest.exchanges[harvest.exchanges["status"] != TOKEN]
        if len(rows):
            request, response = rows["request"], rows["response"]
            self._parts.append(
                Seen(
                    rows["connection"] + base, rows["n"].copy(), rows["orphan"] == 1, rows["api"].copy(),
                    rows["correlation"].copy(), rows["end"].copy(), request["bytes"].copy(), _known(request["last"]),
                    _known(response["first"]), rows["network"].copy(), _known(rows["queued_from"]),
                )
            )  # fmt: skip
        ended = harvest.ended[harvest.ended["client"] >= 0]
        if len(ended):
            asks, isn = ended["client"], ended["directions"]["isn"]
            at = np.arange(len(ended))
            self._isn.append((ended["number"] + base, np.stack([isn[at, asks], isn[at, 1 - asks]], axis=1)))
        harvest.exchanges = harvest.exchanges[:0]
        yield

    def sights(self, connections: Connections) -> Sights | None:
        """What captures have in common."""
        if not self._parts:
            return None
        columns = [np.concatenate([getattr(part, one.name) for part in self._parts]) for one in fields(Seen)]
        self._parts.clear()
        isn = np.full((len(connections), 2), NULL_TIME, np.int64)
        for conn, numbers in self._isn:
            isn[conn] = numbers
        return sights(Seen(*columns), connections, isn)


def _known(times: Words) -> Words:
    """The times, NULL_TIME where a packet carried none."""
    found: Words = np.where(times == 0, NULL_TIME, times)
    return found

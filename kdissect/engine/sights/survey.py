"""A pass over captures for the exchanges that several of them have, before the one that makes tables.

Only flows that more than one capture has are followed, and nothing is decoded. Of a single capture, of pipes, which can
be read once, and of captures that share no flow nothing is looked at twice, or beyond packets' headers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from kdissect.analysis.sights.both_ends import Ends, Seen, sights
from kdissect.analysis.sights.clocks import Place
from kdissect.arrays.arrow import encoded
from kdissect.capture import CaptureSet
from kdissect.engine.books import Books
from kdissect.engine.common import Common
from kdissect.engine.inputs import CaptureFiles
from kdissect.engine.passes.threads import SharedPass
from kdissect.engine.settings import Settings
from kdissect.engine.sights.shared_flows import Hashes, among, endpoints, in_common, looked_at
from kdissect.engine.timings import Timings
from kdissect.kafka.completed import NULL_TIME, Connections
from kdissect.kafka.exchanges.completion import Completion
from kdissect.kafka.streams.dissector import Harvest
from kdissect.kafka.streams.ledger import timed
from kdissect.kafka.streams.state import TOKEN
from kdissect.net.segment import SEGMENT
from kdissect.tables.recording import Reading
from kdissect.tables.selection import Selected, Selection
from kdissect.tables.sights import Sights

Words = npt.NDArray[np.int64]


def surveyed(captures: Sequence[CaptureSet], settings: Settings) -> Sights | None:
    """The common sights of several captures; None where that is nothing."""
    if len(captures) < 2 or not all(capture.regular for capture in captures):
        return None
    shared = in_common([looked_at(capture, settings) for capture in captures])
    several = [(capture, flows) for capture, flows in zip(captures, shared, strict=True) if len(flows)]
    if not several:
        return None
    parts = [seen_in(*one, settings) for one in several]
    return put_together(parts, lambda: [clusters_of(capture, settings) for capture, _ in several])


def seen_in(capture: CaptureSet, shared: Hashes, settings: Settings, view: int | None = None) -> tuple[Seen, Ends]:
    """The exchanges of a capture's flows that others may have too; `view`: as one viewpoint has them."""
    books = Books([capture], {}, undecoded(settings))
    books.builder.selected = _Shared(shared, view)
    inputs = _Watched([capture], settings.after, settings.before)
    for _ in SharedPass(books, inputs).completed():
        pass
    return inputs.onlooker.seen(books.ledger.connections)


def undecoded(settings: Settings) -> Settings:
    """The settings of a pass in which exchanges are found, and none is decoded."""
    return replace(
        settings, selection=None, follow=None, progress=None, timings=Timings(), jobs=1, reading=Reading(),
        common=Common(given=True),
    )  # fmt: skip


def clusters_of(capture: CaptureSet, settings: Settings) -> dict[int, int]:
    """Connection id -> a hash of the ClusterId that a capture tells of it, 0 for none."""
    alone = replace(settings, selection=None, progress=None, timings=Timings(), common=Common(given=True))
    books = Books([capture], {"exchanges": ["cluster"]}, alone)
    for _ in SharedPass(books).rows():
        pass
    connections, brokers = books.ledger.connections, books.builder.brokers
    of = brokers.resolve_clusters(books.builder.directory.broker(np.arange(len(connections))))
    codes, clusters = encoded(of)
    return dict(zip(connections.id.tolist(), text_hashes(clusters)[codes].tolist(), strict=False))


def put_together(
    parts: Sequence[tuple[Seen, Ends]], clusters: Callable[[], Sequence[dict[int, int]]] | None = None
) -> Sights | None:
    """The common sights of captures, each seen by itself; None where that is nothing. `clusters`: `clusters_of` each;
    asked where connections with other addresses may be the same; None: all are of one cluster."""

    def cluster_of() -> Words:
        found = [of.get(one, 0) for of, (_, ends) in zip(known(), parts, strict=True) for one in ends.id.tolist()]
        return np.array(found, np.int64)

    known = clusters or (lambda: [{}] * len(parts))
    first = np.cumsum([0, *(len(ends) for _, ends in parts)])
    seen = [replace(seen, conn=seen.conn + begin) for (seen, _), begin in zip(parts, first, strict=False)]
    columns = [np.concatenate([getattr(one, field.name) for one in seen]) for field in fields(Seen)]
    if not len(columns[0]):
        return None
    of = np.repeat(np.arange(len(parts)), np.diff(first))
    ends = [np.concatenate([getattr(one, name) for _, one in parts]) for name in ("id", "endpoints", "isn")]
    places = [place for _, one in parts for place in one.places]
    return sights(Seen(*columns), Ends(places, ends[0], of, *ends[1:]), cluster_of)


class _Shared(Selected):
    """Packets of flows that several captures have."""

    def __init__(self, shared: Hashes, view: int | None) -> None:
        super().__init__(Selection())
        self.shared = shared
        self.view = view

    def packets(self, rows: Words, flows: Words, capture: int) -> Words:
        """The segment rows of such flows."""
        if self.view is not None:
            rows = rows[rows[:, SEGMENT.viewpoint] == self.view]
        if not len(rows):
            return rows
        keep = among(rows, flows, self.shared)
        return rows if keep.all() else rows[keep]


def text_hashes(texts: Sequence[str]) -> Words:
    """A number for each text, the same in every capture, and 0 behind them for none."""
    digests = (blake2b(text.encode(), digest_size=8).digest() for text in texts)
    return np.array([*(int.from_bytes(digest, "little", signed=True) for digest in digests), 0], np.int64)


class Onlooker:
    """Takes finished exchanges for itself: what tells them, and when they were seen."""

    def __init__(self) -> None:
        self._parts: list[Words] = []
        self._isn: list[tuple[Words, Words]] = []

    def take_exchanges(self, harvest: Harvest, completion: Completion) -> None:
        """Take the exchanges out of a harvest."""
        rows, base = harvest.exchanges[harvest.exchanges["status"] != TOKEN], completion.ledger.base
        request, response = rows["request"], rows["response"]
        names = ("n", "orphan", "api", "correlation", "end")
        columns = [rows["connection"] + base, *(rows[name] for name in names), request["bytes"], timed(request["last"])]
        columns += [timed(response["first"]), rows["network"], timed(rows["queued_from"])]
        columns.append(text_hashes(completion.dissector.client_ids)[rows["client"]])
        self._parts.append(np.stack(columns, axis=1))
        ended = harvest.ended[harvest.ended["client"] >= 0]
        if len(ended):
            asks, isn = ended["client"], ended["directions"]["isn"]
            at = np.arange(len(ended))
            self._isn.append((ended["number"] + base, np.stack([isn[at, asks], isn[at, 1 - asks]], axis=1)))
        harvest.exchanges = harvest.exchanges[:0]

    def seen(self, connections: Connections) -> tuple[Seen, Ends]:
        """The exchanges, in the order in which they were finished, and their connections."""
        rows = np.concatenate([np.zeros((0, len(fields(Seen))), np.int64), *self._parts])
        self._parts.clear()
        conn, n, orphan, *rest = (np.ascontiguousarray(column) for column in rows.T)
        size = len(connections)
        isn = np.full((size, 2), NULL_TIME, np.int64)
        for number, begun in self._isn:
            isn[number] = begun
        places = [Place(name) for name in connections.captures]
        captures = connections.capture[:size].astype(np.int64)
        return Seen(conn, n, orphan == 1, *rest), Ends(
            places, connections.id[:size].copy(), captures, endpoints(connections, np.arange(size)), isn
        )


class _Watched(CaptureFiles):
    """Captures whose exchanges an onlooker takes."""

    def __init__(self, captures: Sequence[CaptureSet], after: int | None, before: int | None) -> None:
        super().__init__(captures, after, before)
        self.onlooker = Onlooker()

    @contextmanager
    def completing(self, harvest: Harvest, completion: Completion) -> Iterator[None]:
        """See Inputs."""
        self.onlooker.take_exchanges(harvest, completion)
        yield

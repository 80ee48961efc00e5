"""A strand of a run: connections followed from segments to finished exchanges and rows.

A run has one strand a capture, or several, each with a share of the connections, in threads of their own. Everything
that is carried from block to block lives in the strand's objects, so strands know nothing of each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kdissect.arrays.from_numpy import arrow_array
from kdissect.capture.window import View
from kdissect.engine.inputs import Packets
from kdissect.engine.timings import KAFKA, REST, TABLES, TCP, Timings
from kdissect.kafka.completed import Completed
from kdissect.kafka.exchanges import payloads
from kdissect.kafka.exchanges.completion import Completion, Joining, Skimming, Sparing
from kdissect.kafka.exchanges.messages import Decoder
from kdissect.kafka.streams.dissector import Dissector, Harvest
from kdissect.kafka.streams.encryption.unsealing import Unsealer
from kdissect.kafka.streams.ledger import Ledger
from kdissect.tables.builder import TableBuilder, Walked
from kdissect.tables.clusters import JOINING
from kdissect.tables.identity import Directory, exchange_ids

Words = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Kind = tuple[int, int]
"""API key, and 0 for requests or 1 for responses."""


class RunPart:
    """The rows of one part of a run: unresolved table rows by name, and messages of the type asked for."""

    def __init__(
        self, tables: dict[str, pa.RecordBatch], messages: pa.RecordBatch | None = None,
        beside: dict[Kind, pa.RecordBatch] | None = None, block: int = 0,
    ) -> None:  # fmt: skip
        self.tables = tables
        self.messages = messages
        self.beside: dict[Kind, pa.RecordBatch] = {} if beside is None else beside
        self.block = block
        """Number of the block that the rows were finished in."""


class Wishes:
    """The messages that are wanted: those of one type for their own sake, and others for the reader of the rows."""

    def __init__(self, decoder: Decoder, type: Kind | None, beside: Mapping[Kind, frozenset[str]]) -> None:
        self.decoder = decoder
        self.type = type
        self.beside = beside
        self.sparing: Sparing | None = None
        """What decodes less, for as long as that is enough."""
        self.unjoining = _without_topic_ids(decoder)
        """Decodes less, enough where brokers have told their ClusterIds; None: no less."""
        self.aside = False
        """Whether only the analysis reads fetches: then most are read aside (`kdissect.tables.fetch_bodies`)."""
        self.skimming: tuple[Decoder, Callable[[Directory, Callable[[], Words], npt.NDArray[Any]], Flags]] | None = None
        """What decodes less for exchanges that no rows are made of, and which these are not; None: all have rows."""


def _without_topic_ids(decoder: Decoder) -> Decoder | None:
    """The same without topic ids that only join brokers to clusters; None where it reads none."""
    joining = decoder.sparse & decoder.wanted.keys() & JOINING.keys()
    if not joining:
        return None
    wanted = dict(decoder.wanted)
    for kind in joining:
        wanted[kind] = frozenset(wanted[kind] or ()) - {JOINING[kind]}
    return Decoder(
        {kind: paths for kind, paths in wanted.items() if paths != frozenset()}, checked=True, sparse=decoder.sparse
    )


def _joining_decoder(
    decoder: Decoder | None, clusters_known: Callable[[npt.NDArray[np.int32]], bool]
) -> Joining | None:
    return None if decoder is None else Joining(decoder, sorted({key for key, _ in JOINING}), clusters_known)


class Strand:
    """The connections of one capture, or a share of them. Rows go through `builder`, whose connections are `ledger`'s.
    `walker`: a builder of the same for rows that need the bytes of messages, where another thread makes rows.
    """

    def __init__(
        self, capture: Packets, view: View, wishes: Wishes, ledger: Ledger, builder: TableBuilder,
        keylog: bytes | None, clock: Timings, walker: TableBuilder | None = None,
    ) -> None:  # fmt: skip
        decoder = wishes.decoder
        self.view = view
        self.wishes = wishes
        self.builder = builder
        self.walker = walker or builder
        self.clock = clock
        programs = decoder.programs()
        self.dissector = Dissector(view, programs, Unsealer(ledger, keylog, capture.secrets))
        self.completion = Completion(self.dissector, decoder, ledger, capture, capture.steps)
        clusters_known = partial(builder.told_clusters, self.walker.directory)
        self.completion.joining = _joining_decoder(wishes.unjoining, clusters_known)
        if wishes.skimming is not None:
            less, needed = wishes.skimming
            self.completion.skimming = Skimming(
                less, partial(needed, self.walker.directory), _joining_decoder(_without_topic_ids(less), clusters_known)
            )
            # A selection and several captures look at all exchanges.
            self.completion.sifts = builder.selected is None and builder.sights is None
        self._rereadable = capture.rereadable

    def make_way(self) -> None:
        """Let go of the part of the window that is filled next. To be called once for each block, before it is fed."""
        completion, builder = self.completion, self.builder
        completion.sparing = self.wishes.sparing
        # A selection and several captures leave exchanges out later.
        if completion.aside is None and self.wishes.aside and builder.selected is None and builder.sights is None:
            from kdissect.tables.fetch_bodies import BodyReader

            completion.aside = BodyReader()
        self.view.refresh()
        self.dissector.before_next_block(self._rereadable)
        self.view.make_way()

    def feed(self, segments: Words, flows: Words, order: Words) -> list[Walked]:
        """The harvests of a block; `order` as for `Dissector.feed`. Another thread makes rows of it, with
        `make_rows`."""
        return self._finished(self.dissector.feed(segments, len(flows), order), flows)

    def finish(self, flows: Words) -> list[Walked]:
        """The harvests at the end of the capture, as `feed`."""
        return self._finished(self.dissector.finish(), flows)

    def make_rows(self, parts: Sequence[Walked], clock: Timings) -> Iterator[RunPart]:
        """Unresolved rows of what `feed` gave."""
        for part in parts:
            yield from rows(part, self.wishes, self.completion.ledger, self.builder, clock)

    def _finished(self, harvests: Iterator[Harvest], flows: Words) -> list[Walked]:
        clock = self.clock
        found: list[Walked] = []
        clock.at(TCP)
        for harvest in harvests:
            clock.at(KAFKA)
            enter(harvest, flows, self.completion)
            for done in completed(harvest, self.completion, clock):
                clock.at(TABLES)
                found.append(self.walker.walked(done))
            clock.at(TCP)
        clock.at(REST)
        return found


def completed(harvest: Harvest, completion: Completion, clock: Timings) -> Iterator[Completed]:
    """The exchanges of a harvest whose connections are in the books."""
    for done in completion.complete(harvest):
        clock.frames += int((done.request_bytes >= 0).sum() + (done.response_bytes >= 0).sum())
        yield done
        clock.at(KAFKA)


def enter(harvest: Harvest, flows: Words, completion: Completion) -> None:
    """Connections and problems of a harvest into the books; `flows` is the scanner's table."""
    dissector, ledger = completion.dissector, completion.ledger
    news, ended = dissector.news(), harvest.ended
    if len(news) or len(ended):
        ledger.enter(np.concatenate([news, ended]) if len(ended) else news, flows)
    ledger.close(ended)
    ledger.enter(harvest.silent, flows)
    ledger.close_silent(harvest.silent)
    ledger.stream_problems(harvest.problems)
    if dissector.unsealer is not None:
        dissector.unsealer.ended(harvest.ended)


def rows(
    done: Completed | Walked, wishes: Wishes, ledger: Ledger, builder: TableBuilder, clock: Timings
) -> Iterator[RunPart]:
    """Unresolved rows of finished exchanges."""
    if not len(done):
        return
    clock.at(TABLES)
    tables = builder.feed(done)
    clock.count_exchanges(builder.selected_rows)
    part = RunPart(tables)
    if builder.fed is not None:
        part.messages = _messages(builder.fed, wishes.type, ledger)
        part.beside = _beside(builder.fed, wishes.beside, ledger)
    clock.at(REST)
    yield part
    clock.at(TABLES)
    for name, batch in builder.recorded():
        clock.at(REST)
        yield RunPart({name: batch})
        clock.at(TABLES)
    clock.at(REST)


def _messages(done: Completed, kind: Kind | None, ledger: Ledger) -> pa.RecordBatch | None:
    """The messages asked for, with what identifies them."""
    message = None if kind is None else done.messages.get(kind)
    if kind is None or message is None or not len(message.rows):
        return None
    requests = payloads.forwarded(done.messages, message.rows) if payloads.asked_too(kind) else None
    return identified(done, message.rows, payloads.unfolded(message.batch, kind, requests), ledger)


def _beside(done: Completed, wanted_paths: Mapping[Kind, frozenset[str]], ledger: Ledger) -> dict[Kind, pa.RecordBatch]:
    """The further messages that are wanted."""
    found = {kind: done.messages[kind] for kind in wanted_paths if kind in done.messages}
    return {
        kind: identified(done, message.rows, message.batch, ledger)
        for kind, message in found.items()
        if len(message.rows)
    }


def identified(done: Completed, rows: Words, batch: pa.RecordBatch, ledger: Ledger) -> pa.RecordBatch:
    """Messages of some exchanges with exchange id, API version and correlation id in front of their fields."""
    ids = exchange_ids(ledger.connections.id[done.conn[rows]], done.n[rows], done.is_orphan[rows])
    head = {
        "exchange_id": ids,
        "api_version": arrow_array(done.api_version[rows], pa.int16()),
        "correlation_id": arrow_array(done.correlation_id[rows], pa.int32()),
    }
    names = batch.schema.names
    return pa.RecordBatch.from_arrays([*head.values(), *(batch.column(name) for name in names)], names=[*head, *names])

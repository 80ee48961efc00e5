"""From what the stream kernels finished to decoded exchanges.

The frames of a harvest are brought together (`gathering`), their bodies decoded with the layout of the request's
version, and what the bodies say completes each exchange: its error codes, its throttle time, whether it could be
decoded, its final status. A version newer than any known layout is tried with the newest one, and believed if that
consumes the body exactly. An answer with error 35 to an ApiVersions request has the layout of version 0, whatever
version was asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kdissect.capture.pcap import CLOCK_STEP
from kdissect.capture.window import EXTRA
from kdissect.kafka.exchanges.completed import NULL_TIME, Completed, Status
from kdissect.kafka.exchanges.frame_bytes import Reader, bodies, collect
from kdissect.kafka.exchanges.inference import UNSUPPORTED_VERSION, Inference
from kdissect.kafka.exchanges.logins import Logins
from kdissect.kafka.exchanges.messages import Decoded, Decoder, Message
from kdissect.kafka.exchanges.outcome import BARE, LOGIN, VERSIONS, Flag, Long, Short, Word, arrange, outcomes, plan
from kdissect.kafka.streams.dissector import Dissector, Harvest
from kdissect.kafka.streams.ledger import Ledger
from kdissect.kafka.streams.state import SIDES, Exchange, Frame
from kdissect.kernels.structs import Records, Words, words
from kdissect.problems import Kind
from kdissect.schema import index
from kdissect.schema.apikeys import ApiKey
from kdissect.schema.opcodes import STATUS_TEXT

ABSENT = 1 << 16
"""Pieces read again per step."""


class Completion:
    """Turns harvests of one capture into `Completed`. `reader` reads input again that left the window; `steps`: packets
    that follow a step back of the clock, in order, which may become more."""

    def __init__(
        self, dissector: Dissector, decoder: Decoder, ledger: Ledger, reader: Reader, steps: Sequence[int] = ()
    ) -> None:
        self.dissector = dissector
        self.decoder = decoder
        self.ledger = ledger
        self.reader = reader
        self.steps = steps
        self.logins = Logins(dissector, ledger)
        self.inference = Inference(decoder)
        self._newest = np.array(
            [[decoder.newest(key, side) for side in range(2)] for key in range(decoder.table.shape[0])], np.int64
        )
        self._absent = np.zeros((ABSENT, 3), np.int64)

    def complete(self, harvest: Harvest) -> Iterator[Completed]:
        """The exchanges of a harvest, in one part or several (as frames have to be brought together)."""
        n = len(harvest.exchanges)
        if n:
            work = _Work(
                harvest.exchanges, np.empty((n, 2), np.bool_), np.empty((n, 2), np.int64), np.empty((n, 2), np.bool_),
                np.empty(n, np.uint8), np.empty(n, np.int64), np.zeros((n, 2), np.int64), np.zeros((n, 2), np.int64),
            )  # fmt: skip
            found = (work.need, work.program, work.unknown, work.marks, work.times)
            plan(words(work.rows), self.decoder.table, self._newest, *found)
            first = 0
            while first < n:
                first, part = self._part(work, first, n)
                yield part
        self.dissector.used()

    def _part(self, work: _Work, first: int, n: int) -> tuple[int, Completed]:
        dissector = self.dissector
        window = dissector.window
        target = window.data
        need, begin, end = work.need, work.begin, work.end
        places = (need, False, target, window.work, window.limit, begin, end, self._absent)
        upto, absent, _ = collect(dissector.M, window.data, dissector.A, first, n, *places)
        if upto == first:
            size = int(sum(work.rows[side]["bytes"][first] for side in np.array(SIDES)[need[first]]))
            target = np.empty(size, np.uint8)
            self._absent = np.zeros((max(ABSENT, size // 64), 3), np.int64)
            places = (need, True, target, 0, size, begin, end, self._absent)
            upto, absent, _ = collect(dissector.M, window.data, dissector.A, first, first + 1, *places)
        part = work.part(slice(first, upto))
        if absent:
            gone = self._fetch(target, self._absent[:absent])
            if len(gone):
                self._give_up(part, gone)
        frames_at = part.begin[:, 1].copy()
        bodies(dissector.M, first, upto, need, target, begin, end)
        part.program[part.need & (part.begin < 0)] = -1
        orphans = np.flatnonzero(part.need[:, 1] & (part.rows["orphan"] == 1))
        if len(orphans):
            self._infer(part, orphans, target, frames_at[orphans])
        return upto, self._completed(part, target)

    def _stepped(self, done: Completed) -> None:
        """Say while which exchanges times stepped back: between the packet that completed the
        request and the one that completed the response, or inside one of the two."""
        if not self.steps:
            return
        steps = np.array(self.steps, np.int64)
        first = np.searchsorted(steps, done.request_packet, side="right")
        between = np.searchsorted(steps, done.response_packet, side="right") > first
        between &= (done.request_packet >= 0) & (done.response_packet >= 0)
        packet = np.full(len(done), -1, np.int64)
        packet[between] = steps[first[between]]
        for begin, end, last in (
            (done.request_first, done.request_last, done.request_packet),
            (done.response_first, done.response_last, done.response_packet),
        ):
            known = np.flatnonzero((begin != NULL_TIME) & (end != NULL_TIME) & (packet < 0))
            inside = known[begin[known] - end[known] > CLOCK_STEP]
            packet[inside] = last[inside]
        detail = "times step back while this exchange went on: what they tell of it may be wrong"
        for i in np.flatnonzero(packet >= 0).tolist():
            self.ledger.note(
                Kind.CLOCK_STEP, "clock", detail,
                conn=int(done.conn[i]), n=int(done.n[i]), orphan=bool(done.is_orphan[i]), packet=int(packet[i]),
                at=int(done.request_first[i]),
            )  # fmt: skip

    def _infer(self, part: _Work, orphans: Words, s: npt.NDArray[np.uint8], frames: Words) -> None:
        """API, version and layout of responses whose requests were not captured."""
        found = self.inference.infer(s, frames, part.end[orphans, 1])
        for i, (key, version, layout, at, several) in zip(orphans.tolist(), found, strict=True):
            row = part.rows[i]
            row.api, row.version = key, version
            part.program[i, 1] = layout
            if layout >= 0:
                part.begin[i, 1] = at
            if several is not None:
                self.ledger.note(
                    Kind.AMBIGUOUS, "response body", f"its request was not captured; it fits {several}",
                    **self._place(row, row.response),
                )  # fmt: skip

    def _fetch(self, target: npt.NDArray[np.uint8], absent: Words) -> Words:
        """Read pieces again where that can be done; places of the others, which are gone."""
        there = (absent[:, 0] >= 0) & (absent[:, 0] < EXTRA) & self.reader.rereadable
        again = absent[there]
        self.reader.read_many(again[:, 0], again[:, 1], target, again[:, 2])
        gone: Words = absent[~there, 2]
        return gone

    def _give_up(self, part: _Work, gone: Words) -> None:
        """Do not decode the frames whose bytes were not kept, and say so."""
        for side, word in enumerate(SIDES):
            places = np.searchsorted(np.sort(gone), np.stack([part.begin[:, side], part.end[:, side]]))
            for i in np.flatnonzero(part.need[:, side] & (places[0] < places[1])).tolist():
                row = part.rows[i]
                part.need[i, side] = False
                part.program[i, side] = -1
                if row.status == Status.OK:
                    row.status = Status.PARTIAL
                self.ledger.note(
                    Kind.BUFFER_LIMIT, f"{word} body",
                    f"the {word} was not kept whole until its end, for the input cannot be read again",
                    **self._place(row, row[word]),
                )  # fmt: skip

    def _completed(self, part: _Work, s: npt.NDArray[np.uint8]) -> Completed:
        """The exchanges of a part, in the order of their requests; bare tokens are none."""
        rows, begin, end, program = part.rows, part.begin, part.end, part.program
        self._refused(part, s)
        logins = np.flatnonzero(part.marks & LOGIN)
        if len(logins):
            self.logins.note(rows, logins, s, begin[:, 0], end[:, 0])
        order = np.argsort(part.times, kind="stable")
        if (part.marks & BARE).any():
            order = order[part.marks[order] & BARE == 0]
        n = len(order)
        begins, ends, programs = np.empty(2 * n, np.int64), np.empty(2 * n, np.int64), np.empty(2 * n, np.int32)
        arrange(order, begin, end, program, begins, ends, programs)
        decoded = self.decoder.decode(s, begins, ends, programs)
        longs = np.empty((len(Long), n), np.int64)
        ints = np.empty((len(Word), n), np.int32)
        shorts = np.empty((len(Short), n), np.int16)
        flags = np.empty((len(Flag), n), np.int8)
        odd = np.empty(n, np.bool_)
        outcomes(
            words(rows), order, self.ledger.base, self._newest, program, part.unknown, decoded.status,
            decoded.ambiguous, decoded.seen, longs, ints, shorts, flags, odd,
        )  # fmt: skip
        self._problems(part, order, decoded, np.flatnonzero(odd))
        columns: dict[str, Any] = {}
        for names, block in ((Long, longs), (Word, ints), (Short, shorts), (Flag, flags)):
            columns |= {name.name.lower(): block[name] for name in names}
        columns |= {name: columns[name].view(np.bool_) for name in ("is_orphan", "decoded", "api_inferred")}
        messages = {
            (key, side): Message(message.rows - side * n, message.batches)
            for (key, side), message in decoded.messages.items()
        }
        done = Completed(**columns, client_ids=self.dissector.client_ids, messages=messages, data=s)
        self._stepped(done)
        return done

    def _refused(self, part: _Work, s: npt.NDArray[np.uint8]) -> None:
        """Answers to ApiVersions that refuse the version have the layout of version 0."""
        asked = np.flatnonzero(part.marks & VERSIONS)
        at = part.begin[asked, 1]
        there = (part.program[asked, 1] >= 0) & (part.end[asked, 1] - at >= 2)
        asked, at = asked[there], at[there]
        refused = asked[(s[at] == 0) & (s[at + 1] == UNSUPPORTED_VERSION)]
        part.program[refused, 1] = self.decoder.table[ApiKey.API_VERSIONS, 0, 1]
        part.unknown[refused, 1] = False

    def _place(self, row: Exchange, frame: Frame) -> dict[str, Any]:
        """Where a problem with a frame of an exchange is, as `Ledger.note` takes it."""
        return {
            "conn": int(row.connection) + self.ledger.base, "n": int(row.n), "orphan": bool(row.orphan),
            "at": int(frame.first), "packet": int(frame.packet), "size": int(frame.bytes),
        }  # fmt: skip

    def _problems(self, part: _Work, order: Words, decoded: Decoded, odd: Words) -> None:
        ledger = self.ledger
        n = len(order)
        for j in odd.tolist():
            i = order[j]
            row = part.rows[i]
            key, version = int(row.api), int(row.version)
            what = f"{index.api_name(key)} version {version}"
            strange = key >= 0 and self.decoder.newest(key, 0) < 0
            for side, name in enumerate(SIDES):
                place = self._place(row, row[name])
                where = f"{name} body"
                said = decoded.status[side * n + j]
                if part.unknown[i, side]:
                    how = "no known layout fits, header only" if said else "its newest known layout fits"
                    detail = f"{what} is newer than version {self._newest[key, side]}: {how}"
                    ledger.note(Kind.UNKNOWN_VERSION, where, detail, **place)
                elif part.program[i, side] >= 0 and said:
                    detail = f"{what}: {STATUS_TEXT[said]}"
                    ledger.note(Kind.BODY_MISFIT, where, detail, **place)
                elif strange and side == 0:
                    detail = f"API key {key} is not known: header only"
                    ledger.note(Kind.UNKNOWN_API, where, detail, **place)
                if decoded.ambiguous[side * n + j]:
                    detail = f"{what} had two layouts, and both fit"
                    ledger.note(Kind.AMBIGUOUS, where, detail, **place)


@dataclass(frozen=True, slots=True)
class _Work:
    """Finished exchanges on their way, a row each; two columns are the request's side and the response's."""

    rows: Records
    """`Exchange`, one an exchange: a view of the heap."""
    need: npt.NDArray[np.bool_]
    """[n, 2]: which frames to bring together."""
    program: Words
    """[n, 2]: the layout of each body, -1 none."""
    unknown: npt.NDArray[np.bool_]
    """[n, 2]: a version that is newer than any known layout."""
    marks: npt.NDArray[np.uint8]
    """LOGIN, VERSIONS and BARE."""
    times: Words
    """First microsecond of the request; the largest number for none."""
    begin: Words
    end: Words
    """[n, 2]: where the bodies lie."""

    def part(self, rows: slice) -> _Work:
        """Some of the rows (views)."""
        return _Work(*(getattr(self, name)[rows] for name in _Work.__dataclass_fields__))

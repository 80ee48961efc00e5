"""From what the stream kernels finished to decoded exchanges.

The exchanges of a harvest become columns in the order of their requests, and their frames are brought together
(`outcome.gather`). Bodies are decoded with the layout of the request's version. They complete each exchange: its error
codes, its throttle time, whether it could be decoded, its final status. A version newer than any known layout is tried
with the newest one, and believed if that consumes the body exactly. An answer with error 35 to an ApiVersions request
has the layout of version 0, for any version of the request. Bytes behind the last field of a request are a problem and
no more: brokers pass over them (librdkafka 0.9 to 1.3 ends ApiVersions version 0 with four).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from kdissect.arrays.lending import Lender
from kdissect.capture.pcap import CLOCK_STEP
from kdissect.capture.window import EXTRA
from kdissect.kafka.completed import NULL_TIME, Completed, Status
from kdissect.kafka.exchanges.bodies import Aside
from kdissect.kafka.exchanges.frame_bytes import Absent, Reader, Target, read_again, room_for_pieces
from kdissect.kafka.exchanges.inference import UNSUPPORTED_VERSION, Inference
from kdissect.kafka.exchanges.logins import Logins
from kdissect.kafka.exchanges.messages import Decoded, Decoder, Message
from kdissect.kafka.exchanges.outcome import (
    DIGITS,
    LOGIN,
    VERSIONS,
    Flag,
    Layouts,
    Long,
    Short,
    Word,
    Work,
    arrivals,
    by_time,
    gather,
    headers,
    outcomes,
)
from kdissect.kafka.streams.dissector import Dissector, Harvest
from kdissect.kafka.streams.ledger import Ledger
from kdissect.kafka.streams.state import SIDES, Exchange, Frame
from kdissect.kernels.structs import Flags, Records, Words, rows_of
from kdissect.problems import Kind
from kdissect.schema import index
from kdissect.schema.apikeys import ApiKey
from kdissect.schema.opcodes import STATUS_TEXT
from kdissect.schema.vm import APART_WIDTH

ABSENT = 1 << 16
"""Pieces read again per step."""
SIDE_COLUMNS = (np.bool_, np.int32, np.bool_, np.int64, np.int64)
"""Types of what `Work` has for either side of an exchange."""
COLUMNS = ((Long, np.int64), (Word, np.int32), (Short, np.int16), (Flag, np.int8))
"""Columns of `Completed` by their type."""
INSTANTS = (Long.REQUEST_FIRST, Long.REQUEST_LAST, Long.RESPONSE_FIRST, Long.RESPONSE_LAST)
NAMES = tuple(tuple(one.name.lower() for one in names) for names, _ in COLUMNS)

LOGINS = (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)
WORTH_SPARING = 1 << 15
"""Exchanges of a part from which on less is decoded where less is enough. Rows of fewer are worked on together with
those that follow, which may tell what is lacking."""


class Sparing:
    """A decoder that gives less, which is enough until exchanges of some APIs came; of none, always."""

    def __init__(self, decoder: Decoder, until: frozenset[int], over: bool = False) -> None:
        self.decoder = decoder
        self.until = until
        self.over = over

    def enough(self, keys: npt.NDArray[np.int16]) -> bool:
        """Whether it is for the messages of exchanges of these APIs."""
        if not self.until:
            return True
        self.over = self.over or any(bool((keys == key).any()) for key in self.until)
        return not self.over and len(keys) >= WORTH_SPARING


class Joining:
    """A decoder without fields that only join brokers to clusters. `told`: whether the brokers of all these connections
    have told their ClusterIds, so that nothing has to join them; `apis`: those that have such fields."""

    def __init__(self, decoder: Decoder, apis: Sequence[int], told: Callable[[npt.NDArray[np.int32]], bool]) -> None:
        self.decoder = decoder
        self.apis = apis
        self.told = told

    def over(self, keys: npt.NDArray[np.int16], connections: npt.NDArray[np.int32]) -> bool:
        """Whether no message of exchanges of these APIs on these connections joins anything."""
        return self.told(connections[np.isin(keys, self.apis)])


class Skimming:
    """A decoder that is enough for exchanges that no rows are made of: without the fields that only rows read.
    `needed`: which exchanges have rows, by their instants (made where it asks for them, int64[4, n]: request's first
    and last byte, response's first and last one) and connections. `joining`: what is enough where brokers have told
    their clusters."""

    def __init__(
        self, decoder: Decoder, needed: Callable[[Callable[[], Words], npt.NDArray[Any]], Flags],
        joining: Joining | None,
    ) -> None:  # fmt: skip
        self.decoder = decoder
        self.needed = needed
        self.joining = joining
        self._heard = np.zeros(0, np.bool_)
        """Connections of which an exchange was complete."""
        self._reads: dict[Decoder, npt.NDArray[np.int8]] = {}
        """Whether a decoder reads anything of messages, a row for each API and version; -1 not known."""

    def enough(self, part: Work) -> Decoder | None:
        """The decoder that is enough for these exchanges, None where some have rows."""
        connections = part.ints[Word.CONN]
        if self.needed(lambda: part.longs[list(INSTANTS)], connections).any():
            return None
        return self._choose_decoder(part.shorts[Short.API_KEY], connections)

    def pick_exchanges(self, exchanges: Words, rows: Records, base: int) -> Words:
        """Those of these exchanges of a harvest that have rows, or that tell anything. These are messages that are
        read, the first exchange of a connection, and responses without a request, which may be of any API. `base` is
        added to the numbers of connections."""
        api, connection = rows["api"][exchanges], rows["connection"][exchanges]
        entered = connection + base
        most = int(connection.max(initial=-1))
        if most >= len(self._heard):
            self._heard = np.append(self._heard, np.zeros(most + 1, np.bool_))
        keep = self.needed(partial(_instants, rows, exchanges), entered)
        if keep.all():
            self._heard[connection] = True
            return exchanges
        decoder = self._choose_decoder(api, entered)
        keep |= self._reads_messages(decoder, api, rows["version"][exchanges]) | (rows["orphan"][exchanges] == 1)
        fresh = np.flatnonzero(~self._heard[connection])
        if len(fresh):
            keep[fresh[np.unique(connection[fresh], return_index=True)[1]]] = True
            self._heard[connection] = True
        return exchanges[keep]

    def _choose_decoder(self, keys: npt.NDArray[Any], connections: npt.NDArray[Any]) -> Decoder:
        joining = self.joining
        return joining.decoder if joining is not None and joining.over(keys, connections) else self.decoder

    def _reads_messages(self, decoder: Decoder, api: Words, version: Words) -> Flags:
        """Flags of the messages of these APIs and versions that a decoder reads anything of; logins and unknown ones
        are among them."""
        keys, versions = decoder.table.shape[:2]
        known = (api >= 0) & (api < keys) & (version >= 0) & (version < versions)
        kinds = np.where(known, api * versions + version, keys * versions)
        reads = self._reads.setdefault(decoder, np.full(keys * versions + 1, -1, np.int8))
        reads[-1] = 1
        for kind in np.flatnonzero((np.bincount(kinds, minlength=len(reads)) > 0) & (reads < 0)).tolist():
            key = kind // versions
            reads[kind] = key in LOGINS or decoder.makes_rows(key, kind % versions)
        return reads[kinds] > 0


def _instants(rows: Records, exchanges: Words) -> Words:
    """[4, n]: of these exchanges of a harvest the request's first and last byte, and the response's."""
    places = [rows[side][word][exchanges] for side in SIDES for word in ("first", "last")]
    return np.stack([np.where(place == 0, NULL_TIME, place) for place in places])


class Completion:
    """Turns harvests of one capture into `Completed`. `reader` reads input again that left the window; `steps`: packets
    that follow a step back of the clock, in order, which may become more; `sparing`: decodes what it is enough for;
    `aside`: reads bodies that need not be decoded then."""

    LARGE = 64 << 10
    """Bytes of a frame from which on pieces stay where they are, but for what is looked at."""

    def __init__(
        self, dissector: Dissector, decoder: Decoder, ledger: Ledger, reader: Reader, steps: Sequence[int] = (),
        sparing: Sparing | None = None, aside: Aside | None = None,
    ) -> None:  # fmt: skip
        self.dissector = dissector
        self.decoder = decoder
        self.ledger = ledger
        self.reader = reader
        self.steps = steps
        self.sparing = sparing
        self.aside = aside
        self.joining: Joining | None = None
        """What decodes less once it is known which clusters brokers belong to."""
        self.skimming: Skimming | None = None
        """What is enough where no rows are made."""
        self.sifts = False
        """Whether exchanges without rows that tell nothing else may be left out."""
        self.logins = Logins(dissector, ledger)
        self._newest = decoder.library.newest.astype(np.int64)
        self._absent = room_for_pieces(ABSENT)
        self._apart = np.empty((ABSENT, APART_WIDTH), np.int64)
        self._left = self._apart[:0]
        """Where pieces lie of the frames that were brought together last, but for those in their place."""
        self._counts = np.zeros(DIGITS, np.int64)
        self._work, self._columns = Lender(), Lender()

    @cached_property
    def inference(self) -> Inference:
        """Tries layouts on responses without a request, which few captures have."""
        return Inference(self.decoder)

    def complete(self, harvest: Harvest) -> Iterator[Completed]:
        """The exchanges of a harvest, in one part or several (as frames have to be brought together)."""
        rows = harvest.exchanges
        self._pieces = False
        if len(rows):
            times, which, tokens, spare = self._work.arrays([((len(rows),), np.int64)] * 4)
            n, bare, pieces = arrivals(self.dissector.M, len(rows), times, which, tokens)
            self._pieces = pieces > 0
            times, which = times[:n], which[:n]
            if not by_time(times, which, spare[:n], self._counts):
                which = which[np.argsort(times, kind="stable")]
            if self.skimming is not None and self.sifts:
                which = self.skimming.pick_exchanges(which, rows, self.ledger.base)
                n = len(which)
            work = self._room(which)
            first = 0
            while first < n:
                first, part, data = self._part(work, first, rows)
                self._log_in(part, data, rows, tokens[:bare] if first == n else tokens[:0])
                yield self._completed(part, data, rows)
            if not n:
                self._log_in(work, self.dissector.window.data, rows, tokens[:bare])
        self.dissector.used(self._pieces)

    def _room(self, rows: Words) -> Work:
        """Room for these exchanges of a harvest: of the columns, which may be kept, in a piece of its own."""
        n = len(rows)
        sides = self._work.arrays([((2, n), kind) for kind in SIDE_COLUMNS] + [((n,), np.uint8)])
        columns = self._columns.arrays([((len(names), n), kind) for names, kind in COLUMNS])
        return Work(rows, *sides, *columns)

    def _part(self, work: Work, first: int, rows: Records) -> tuple[int, Work, npt.NDArray[np.uint8]]:
        """The exchanges of `work` from the first-th on whose frames can be brought together: which one comes next, they
        themselves, and where their bytes are."""
        dissector = self.dissector
        window = dissector.window
        target, n = Target(window.data, window.work, window.limit, False), len(work.rows)
        layouts = Layouts(self.decoder.table, self._newest, self.decoder.scattered)
        while True:
            upto, absent, unread, orphans, pieces, apart = gather(
                dissector.M, window.data, dissector.A, work, first, n, target, self.ledger.base, layouts,
                self._absent, self.LARGE, self._apart,
            )  # fmt: skip
            self._pieces |= pieces > 0
            if upto > first:
                break
            row = rows[work.rows[first]]
            size = int(sum(row[side]["bytes"] for side in np.array(SIDES)[work.need[:, first]]))
            target, n = Target(np.empty(size, np.uint8), 0, size, True), first + 1
            self._absent = room_for_pieces(ABSENT, size)
        part, data = work.part(first, upto), target.memory
        self._left = self._apart[:apart]
        if absent:
            gone = self._fetch(data, self._absent[:absent])
            if len(gone):
                self._give_up(part, gone, rows)
        frames = part.begin[1]
        if unread:
            frames = frames.copy()
            headers(dissector.M, part.rows, part.need, data, part.begin, part.end, part.program)
        if orphans:
            self._infer(part, frames, data, rows)
        self._refused(part, data)
        return upto, part, data

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

    def _infer(self, part: Work, begin: Words, s: npt.NDArray[np.uint8], rows: Records) -> None:
        """API, version and layout of responses whose requests were not captured; `begin`: where the frames of responses
        begin, those whose header was read before behind that."""
        orphans = np.flatnonzero(part.need[1] & (part.flags[Flag.IS_ORPHAN] == 1))
        orphans = orphans[np.argsort(part.rows[orphans])]
        frames = begin[orphans] - np.maximum(rows["response"]["body"][part.rows[orphans]], 0)
        found = self.inference.infer(s, frames, part.end[1, orphans])
        for j, (key, version, layout, at, several) in zip(orphans.tolist(), found, strict=True):
            row = rows[part.rows[j]]
            row.api, row.version = part.shorts[:, j] = key, version
            part.flags[Flag.API_INFERRED, j] = key >= 0
            part.program[1, j] = layout
            if layout >= 0:
                part.begin[1, j] = at
            if several is not None:
                self.ledger.note(
                    Kind.AMBIGUOUS, "response body", f"its request was not captured; it fits {several}",
                    **self._place(row, row.response),
                )  # fmt: skip

    def _fetch(self, target: npt.NDArray[np.uint8], absent: Words) -> Words:
        """Read pieces again where that can be done; places of the others, which are gone."""
        pieces = rows_of(Absent, absent)
        there = (pieces["at"] >= 0) & (pieces["at"] < EXTRA) & self.reader.rereadable
        read_again(self.reader, pieces[there], target)
        gone: Words = pieces["place"][~there]
        return gone

    def _give_up(self, part: Work, lost_places: Words, rows: Records) -> None:
        """Do not decode the frames whose bytes were not kept, and say so."""
        for side, word in enumerate(SIDES):
            places = np.searchsorted(np.sort(lost_places), np.stack([part.begin[side], part.end[side]]))
            for j in np.flatnonzero(part.need[side] & (places[0] < places[1])).tolist():
                part.need[side, j] = False
                part.program[side, j] = -1
                if part.flags[Flag.STATUS, j] == Status.OK:
                    part.flags[Flag.STATUS, j] = Status.PARTIAL
                row = rows[part.rows[j]]
                self.ledger.note(
                    Kind.BUFFER_LIMIT, f"{word} body",
                    f"the {word} was not kept whole until its end, for the input cannot be read again",
                    **self._place(row, row[word]),
                )  # fmt: skip

    def _refused(self, part: Work, s: npt.NDArray[np.uint8]) -> None:
        """Answers to ApiVersions that refuse the version have the layout of version 0."""
        asked = np.flatnonzero(part.marks == VERSIONS)
        at = part.begin[1, asked]
        there = (part.program[1, asked] >= 0) & (part.end[1, asked] - at >= 2)
        asked, at = asked[there], at[there]
        refused = asked[(s[at] == 0) & (s[at + 1] == UNSUPPORTED_VERSION)]
        part.program[1, refused] = self.decoder.table[ApiKey.API_VERSIONS, 0, 1]
        part.unknown[1, refused] = False

    def _log_in(self, part: Work, s: npt.NDArray[np.uint8], rows: Records, tokens: Words) -> None:
        """Who logs in with exchanges and bare tokens, in the order in which they were finished."""
        logins = np.flatnonzero(part.marks == LOGIN)
        if len(logins) or len(tokens):
            which = np.concatenate([part.rows[logins], tokens])
            order = np.argsort(which)
            nowhere = np.zeros(len(tokens), np.int64)
            begin, end = (np.concatenate([places[0, logins], nowhere])[order] for places in (part.begin, part.end))
            self.logins.note(rows, which[order], s, begin, end)

    def _completed(self, part: Work, s: npt.NDArray[np.uint8], rows: Records) -> Completed:
        """The exchanges of a part, their bodies decoded."""
        n = len(part.rows)
        decoder = self.decoder
        less = None if self.skimming is None else self.skimming.enough(part)
        if less is not None:
            decoder = less
        elif self.sparing is not None and self.sparing.enough(part.shorts[Short.API_KEY]):
            decoder = self.sparing.decoder
        elif self.joining is not None and self.joining.over(part.shorts[Short.API_KEY], part.ints[Word.CONN]):
            decoder = self.joining.decoder
        decoded = decoder.decode(
            s, part.begin.reshape(-1), part.end.reshape(-1), part.program.reshape(-1), self._left,
            self.aside, -part.unknown[0].astype(np.int64),
        )  # fmt: skip
        odd = np.empty(n, np.bool_)
        strange = outcomes(
            part.program, part.unknown, part.marks, decoded.status, decoded.ambiguous, decoded.seen, decoded.spare,
            part.longs, part.ints, part.flags, odd,
        )  # fmt: skip
        if strange:
            self._problems(part, rows, decoded, np.flatnonzero(odd))
        columns: dict[str, Any] = {}
        blocks: tuple[Any, ...] = (part.longs, part.ints, part.shorts, part.flags)
        for names, block in zip(NAMES, blocks, strict=True):
            columns |= zip(names, block, strict=True)
        columns |= {name: columns[name].view(np.bool_) for name in ("is_orphan", "decoded", "api_inferred")}
        messages = {
            (key, side): Message(message.rows - side * n, message.batches)
            for (key, side), message in decoded.messages.items()
        }
        done = Completed(**columns, client_ids=self.dissector.client_ids, messages=messages, data=s)
        if self.aside is not None:
            done.aside = self.aside.drain()
        self._stepped(done)
        return done

    def _place(self, row: Exchange, frame: Frame) -> dict[str, Any]:
        """Where a problem with a frame of an exchange is, as `Ledger.note` takes it."""
        return {
            "conn": int(row.connection) + self.ledger.base, "n": int(row.n), "orphan": bool(row.orphan),
            "at": int(frame.first), "packet": int(frame.packet), "size": int(frame.bytes),
        }  # fmt: skip

    def _problems(self, part: Work, rows: Records, decoded: Decoded, odd: Words) -> None:
        ledger = self.ledger
        n = len(part.rows)
        for j in odd.tolist():
            row = rows[part.rows[j]]
            key, version = int(row.api), int(row.version)
            what = f"{index.api_name(key)} version {version}"
            strange = key >= 0 and self.decoder.newest(key, 0) < 0
            for side, name in enumerate(SIDES):
                place = self._place(row, row[name])
                where = f"{name} body"
                said = decoded.status[side * n + j]
                if part.unknown[side, j]:
                    how = "no known layout fits, header only" if said else "its newest known layout fits"
                    detail = f"{what} is newer than version {self._newest[key, side]}: {how}"
                    ledger.note(Kind.UNKNOWN_VERSION, where, detail, **place)
                elif part.program[side, j] >= 0 and said:
                    detail = f"{what}: {STATUS_TEXT[said]}"
                    ledger.note(Kind.BODY_MISFIT, where, detail, **place)
                elif strange and side == 0:
                    detail = f"API key {key} is not known: header only"
                    ledger.note(Kind.UNKNOWN_API, where, detail, **place)
                elif side == 0 and decoded.spare[j] > 0:
                    spare = int(decoded.spare[j])
                    detail = f"{what}: {spare} bytes are left over behind the last field, which a broker passes over"
                    ledger.note(Kind.TRAILING_BYTES, where, detail, **{**place, "size": spare})
                if decoded.ambiguous[side * n + j]:
                    detail = f"{what} had two layouts, and both fit"
                    ledger.note(Kind.AMBIGUOUS, where, detail, **place)

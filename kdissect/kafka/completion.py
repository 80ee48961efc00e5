"""From what the stream kernels finished to decoded exchanges.

The frames of a harvest are brought together (`gathering`), their bodies decoded with the layout of the request's
version, and what the bodies say completes each exchange: its error codes, its throttle time, whether it could be
decoded, its final status. A version newer than any known layout is tried with the newest one, and believed if that
consumes the body exactly. An answer with error 35 to an ApiVersions request has the layout of version 0, whatever
version was asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from kdissect.capture.window import EXTRA
from kdissect.kafka import state as x
from kdissect.kafka.completed import ERROR, NO_CODE, OK, PARTIAL, UNDECODABLE, Completed
from kdissect.kafka.dissector import Dissector, Harvest
from kdissect.kafka.gathering import Reader, bodies, collect
from kdissect.kafka.inference import Inference
from kdissect.kafka.ledger import Ledger, timed
from kdissect.kafka.logins import Logins
from kdissect.kafka.messages import Decoded, Decoder, Message
from kdissect.problems import Kind
from kdissect.schema import index
from kdissect.schema.opcodes import STATUS_TEXT

Words = npt.NDArray[np.int64]

ABSENT = 1 << 16
"""Pieces read again per step."""
API_VERSIONS = 18
UNSUPPORTED_VERSION = 35
SASL_AUTHENTICATE = 36


class Completion:
    """Turns harvests of one capture into `Completed`. `reader` reads input again that left the window."""

    def __init__(self, dissector: Dissector, decoder: Decoder, ledger: Ledger, reader: Reader) -> None:
        self.dissector = dissector
        self.decoder = decoder
        self.ledger = ledger
        self.reader = reader
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
            rows = np.ascontiguousarray(harvest.exchanges.T)  # a column in one piece is several times as fast to read
            need, program, unknown = self._plan(rows)
            begin = np.zeros((n, 2), np.int64)
            end = np.zeros((n, 2), np.int64)
            first = 0
            while first < n:
                first, part = self._part(rows, first, n, need, program, unknown, begin, end)
                yield part
        self.dissector.used()

    def _plan(self, rows: Words) -> tuple[npt.NDArray[np.bool_], Words, npt.NDArray[np.bool_]]:
        """Which frames to look into, with which programs, and which of them have a version that is not known."""
        n = rows.shape[1]
        key, version = rows[x.X_API], rows[x.X_VERSION]
        program = np.full((n, 2), -1, np.int64)
        unknown = np.zeros((n, 2), np.bool_)
        table = self.decoder.table
        known = (key >= 0) & (key < table.shape[0])
        at = np.where(known, key, 0)
        within = known & (version >= 0) & (version < table.shape[1])
        for side, f in ((0, x.X_REQUEST), (1, x.X_RESPONSE)):
            whole = (rows[f + x.X_F_BYTES] >= 0) & (rows[f + x.X_F_MISSING] == 0) & (rows[f + x.X_F_CUT] == 0)
            found = np.where(within, table[at, np.where(within, version, 0), side], -1)
            newest = self._newest[at, side]
            newer = known & (found < 0) & (newest >= 0) & (version > newest)
            found = np.where(newer, table[at, np.maximum(newest, 0), side], found)
            program[:, side] = np.where(whole, found, -1)
            unknown[:, side] = newer & whole
        tokens = rows[x.X_STATUS] == x.TOKEN
        program[tokens] = -1
        need = program >= 0
        need[:, 1] |= (rows[x.X_ORPHAN] == 1) & ~tokens & whole
        return need, program, unknown

    def _part(
        self, rows: Words, first: int, n: int, need: npt.NDArray[np.bool_], program: Words,
        unknown: npt.NDArray[np.bool_], begin: Words, end: Words,
    ) -> tuple[int, Completed]:  # fmt: skip
        dissector = self.dissector
        window = dissector.window
        target = window.data
        places = (need, False, target, window.work, window.limit, begin, end, self._absent)
        upto, absent, _ = collect(dissector.M, window.data, dissector.A, first, n, *places)
        if upto == first:
            frames = (x.X_REQUEST, x.X_RESPONSE)
            size = int(sum(rows[f + x.X_F_BYTES, first] for side, f in enumerate(frames) if need[first, side]))
            target = np.empty(size, np.uint8)
            self._absent = np.zeros((max(ABSENT, size // 64), 3), np.int64)
            places = (need, True, target, 0, size, begin, end, self._absent)
            upto, absent, _ = collect(dissector.M, window.data, dissector.A, first, first + 1, *places)
        part = slice(first, upto)
        if absent:
            gone = self._fetch(target, self._absent[:absent])
            if len(gone):
                self._give_up(rows, part, gone, need, program, begin, end)
        frames_at = begin[part, 1].copy()
        bodies(dissector.M, first, upto, need, target, begin, end)
        headless = need[part] & (begin[part] < 0)
        program[part][headless] = -1
        orphans = np.flatnonzero(need[part, 1] & (rows[x.X_ORPHAN, part] == 1)) + first
        if len(orphans):
            self._infer(rows, orphans, program, target, frames_at[orphans - first], begin, end)
        return upto, self._completed(rows[:, part], program[part], unknown[part], target, begin[part], end[part])

    def _infer(
        self, rows: Words, orphans: Words, program: Words, s: npt.NDArray[np.uint8], frames: Words, begin: Words,
        end: Words,
    ) -> None:  # fmt: skip
        """API, version and layout of responses whose requests were not captured."""
        found = self.inference.infer(s, frames, end[orphans, 1])
        for i, (key, version, layout, at, several) in zip(orphans.tolist(), found, strict=True):
            rows[x.X_API, i], rows[x.X_VERSION, i] = key, version
            program[i, 1] = layout
            if layout >= 0:
                begin[i, 1] = at
            if several is not None:
                f = x.X_RESPONSE
                self.ledger.note(
                    Kind.AMBIGUOUS, "response body", f"its request was not captured; it fits {several}",
                    conn=int(rows[x.X_CONNECTION, i]) + self.ledger.base, n=int(rows[x.X_N, i]), orphan=True,
                    at=int(rows[f, i]), packet=int(rows[f + x.X_F_PACKET, i]), size=int(rows[f + x.X_F_BYTES, i]),
                )  # fmt: skip

    def _fetch(self, target: npt.NDArray[np.uint8], absent: Words) -> Words:
        """Read pieces again where that can be done; places of the others, which are gone."""
        there = (absent[:, 0] >= 0) & (absent[:, 0] < EXTRA) & self.reader.rereadable
        again = absent[there]
        self.reader.read_many(again[:, 0], again[:, 1], target, again[:, 2])
        gone: Words = absent[~there, 2]
        return gone

    def _give_up(
        self, rows: Words, part: slice, gone: Words, need: npt.NDArray[np.bool_], program: Words, begin: Words,
        end: Words,
    ) -> None:  # fmt: skip
        """Do not decode the frames whose bytes were not kept, and say so."""
        for side, f in ((0, x.X_REQUEST), (1, x.X_RESPONSE)):
            places = np.searchsorted(np.sort(gone), np.stack([begin[part, side], end[part, side]]))
            for i in (np.flatnonzero(need[part, side] & (places[0] < places[1])) + part.start).tolist():
                need[i, side] = False
                program[i, side] = -1
                if rows[x.X_STATUS, i] == OK:
                    rows[x.X_STATUS, i] = PARTIAL
                word = ("request", "response")[side]
                self.ledger.note(
                    Kind.BUFFER_LIMIT, f"{word} body",
                    f"the {word} was not kept whole until its end, for the input cannot be read again",
                    conn=int(rows[x.X_CONNECTION, i]) + self.ledger.base, n=int(rows[x.X_N, i]),
                    orphan=bool(rows[x.X_ORPHAN, i]), at=int(rows[f, i]), packet=int(rows[f + x.X_F_PACKET, i]),
                    size=int(rows[f + x.X_F_BYTES, i]),
                )  # fmt: skip

    def _completed(
        self,
        rows: Words,
        program: Words,
        unknown: npt.NDArray[np.bool_],
        s: npt.NDArray[np.uint8],
        begin: Words,
        end: Words,
    ) -> Completed:
        n = rows.shape[1]
        refused = (rows[x.X_API] == API_VERSIONS) & (rows[x.X_VERSION] > 0) & (program[:, 1] >= 0)
        refused &= end[:, 1] - begin[:, 1] >= 2
        for i in np.flatnonzero(refused):
            at = begin[i, 1]
            if s[at] == 0 and s[at + 1] == UNSUPPORTED_VERSION:
                program[i, 1] = self.decoder.table[API_VERSIONS, 0, 1]
                unknown[i, 1] = False
        flat = self.decoder.decode(s, begin.T.ravel(), end.T.ravel(), program.T.ravel().astype(np.int32))
        decoded = _Sides(flat, n)
        status = rows[x.X_STATUS].astype(np.int8)
        captured = np.stack([rows[x.X_REQUEST + x.X_F_BYTES] >= 0, rows[x.X_RESPONSE + x.X_F_BYTES] >= 0], axis=1)
        tried = program >= 0
        fits = tried & (decoded.status == 0)
        whole = fits.copy()
        for side, f in ((0, x.X_REQUEST), (1, x.X_RESPONSE)):
            whole[:, side] |= ~captured[:, side] | (rows[f + x.X_F_BYTES] < 0)
        misfit = tried & ~fits & ~unknown
        answered = status == OK
        status[answered & misfit.any(axis=1)] = UNDECODABLE
        status[(status == OK) & fits[:, 1] & (decoded.error_count > 0)] = ERROR
        keep = rows[x.X_STATUS] != x.TOKEN
        self.logins.note(rows, s, begin[:, 0], end[:, 0])
        self._problems(rows, decoded, misfit & keep[:, None], unknown & keep[:, None], fits)
        done = Completed(
            conn=(rows[x.X_CONNECTION] + self.ledger.base).astype(np.int32),
            n=rows[x.X_N],
            is_orphan=rows[x.X_ORPHAN] == 1,
            api_key=rows[x.X_API].astype(np.int16),
            api_version=rows[x.X_VERSION].astype(np.int16),
            correlation_id=rows[x.X_CORRELATION].astype(np.int32),
            client=rows[x.X_CLIENT].astype(np.int32),
            request_first=timed(rows[x.X_REQUEST]),
            request_last=timed(rows[x.X_REQUEST + x.X_F_LAST]),
            response_first=timed(rows[x.X_RESPONSE]),
            response_last=timed(rows[x.X_RESPONSE + x.X_F_LAST]),
            request_bytes=rows[x.X_REQUEST + x.X_F_BYTES],
            response_bytes=rows[x.X_RESPONSE + x.X_F_BYTES],
            request_packet=rows[x.X_REQUEST + x.X_F_PACKET],
            response_packet=rows[x.X_RESPONSE + x.X_F_PACKET],
            status=status,
            queued_from=timed(rows[x.X_QUEUED_FROM]),
            in_flight=rows[x.X_IN_FLIGHT].astype(np.int32),
            throttle_ms=np.where(fits[:, 1], decoded.throttle_ms, -1).astype(np.int32),
            error_code=np.where(fits[:, 1], decoded.error_code, NO_CODE).astype(np.int32),
            error_first=np.where(fits[:, 1], decoded.error_first, 0).astype(np.int32),
            error_count=np.where(fits[:, 1], decoded.error_count, -1).astype(np.int32),
            decoded=whole.all(axis=1) & fits.any(axis=1),
            api_inferred=(rows[x.X_ORPHAN] == 1) & (rows[x.X_API] >= 0),
            missing_request=rows[x.X_REQUEST + x.X_F_MISSING],
            missing_response=rows[x.X_RESPONSE + x.X_F_MISSING],
            client_ids=self.dissector.client_ids,
            messages=decoded.messages,
            data=s,
        )
        return done if keep.all() else only(done, np.flatnonzero(keep))

    def _problems(
        self, rows: Words, decoded: _Sides, misfit: npt.NDArray[np.bool_], unknown: npt.NDArray[np.bool_],
        fits: npt.NDArray[np.bool_],
    ) -> None:  # fmt: skip
        ledger = self.ledger
        limit = self.decoder.table.shape[0]
        keys = rows[x.X_API]
        strange = (keys >= limit) | ((keys >= 0) & (self._newest[np.clip(keys, 0, limit - 1), 0] < 0))
        there = misfit | unknown | decoded.ambiguous
        for i in np.flatnonzero(there.any(axis=1) | strange).tolist():
            row = rows[:, i]
            key, version = int(row[x.X_API]), int(row[x.X_VERSION])
            what = f"{index.api_name(key)} version {version}"
            place: dict[str, Any] = {
                "conn": int(row[x.X_CONNECTION]) + ledger.base,
                "n": int(row[x.X_N]),
                "orphan": bool(row[x.X_ORPHAN]),
            }
            for side, f in ((0, x.X_REQUEST), (1, x.X_RESPONSE)):
                name = "response" if side else "request"
                at, packet, size = int(row[f]), int(row[f + x.X_F_PACKET]), int(row[f + x.X_F_BYTES])
                where = f"{name} body"
                if misfit[i, side]:
                    text = STATUS_TEXT[decoded.status[i, side]]
                    detail = f"{what}: {text}"
                    ledger.note(Kind.BODY_MISFIT, where, detail, **place, at=at, packet=packet, size=size)
                elif unknown[i, side]:
                    how = "its newest known layout fits" if fits[i, side] else "no known layout fits, header only"
                    detail = f"{what} is newer than version {self._newest[key, side]}: {how}"
                    ledger.note(Kind.UNKNOWN_VERSION, where, detail, **place, at=at, packet=packet, size=size)
                elif strange[i] and side == 0:
                    detail = f"API key {key} is not known: header only"
                    ledger.note(Kind.UNKNOWN_API, where, detail, **place, at=at, packet=packet, size=size)
                if decoded.ambiguous[i, side]:
                    detail = f"{what} had two layouts, and both fit"
                    ledger.note(Kind.AMBIGUOUS, where, detail, **place, at=at, packet=packet, size=size)


class _Sides:
    """`Decoded` of requests followed by responses, as columns of two sides."""

    def __init__(self, flat: Decoded, n: int) -> None:
        def sides(a: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
            return a.reshape(2, n).T

        self.status = sides(flat.status)
        self.ambiguous: npt.NDArray[np.bool_] = flat.ambiguous.reshape(2, n).T
        self.error_code = flat.error_code[n:]
        self.error_first = flat.error_first[n:]
        self.error_count = flat.error_count[n:]
        self.throttle_ms = flat.throttle_ms[n:]
        self.messages = {
            (key, side): Message(message.rows - side * n, message.batches)
            for (key, side), message in flat.messages.items()
        }


def only(done: Completed, rows: npt.NDArray[np.intp]) -> Completed:
    """Some rows of a `Completed`."""
    place = np.full(len(done), -1, np.int64)
    place[rows] = np.arange(len(rows))
    columns = {
        name: getattr(done, name)[rows]
        for name in Completed.__dataclass_fields__
        if name not in ("client_ids", "messages", "data")
    }
    messages = {}
    for kind, message in done.messages.items():
        at = place[message.rows]
        if (at < 0).any():
            import pyarrow as pa

            kept = np.flatnonzero(at >= 0)
            messages[kind] = Message(at[kept], [message.batch.take(pa.array(kept))])
        else:
            messages[kind] = Message(at, message.batches)
    return Completed(**columns, client_ids=done.client_ids, messages=messages, data=done.data)

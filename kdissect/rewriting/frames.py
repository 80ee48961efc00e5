"""Kafka frames made fit to be shown: what each may keep, and its bytes with the rest replaced.

A frame whose body fits the layout of its API and version keeps its numbers and those texts that the schema allows.
These are words that Kafka or its clients define (`public`), names that somebody gave to a thing of theirs (`name`), and
harmless values of configurations (`is_harmless_value`). All else becomes filler: other texts and bytes, what records
hold, unknown tags. Where names are replaced, so is a `public` text that is no word of the protocol. Of any other frame
only the header stays: without a layout the meaning of its bytes is unknown. A request whose key or version no release
has, and that got no answer, has no header: its first bytes may be anything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from kdissect.kafka.exchanges.frame_bytes import Absent, Reader, Target, bodies, collect, read_again, room_for_pieces
from kdissect.kafka.exchanges.messages import Decoder
from kdissect.kafka.recordsets.verification import CRC32, CRC32C, crc32_table
from kdissect.kafka.streams.dissector import Dissector
from kdissect.kafka.streams.state import SIDES, TOKEN
from kdissect.kernels.structs import Records, rows_of
from kdissect.rewriting.blanking_kernels import blank_sets
from kdissect.rewriting.field_kernels import (
    FILLER,
    KINDS,
    SPAN_COLUMNS,
    Span,
    blank_fields,
    blank_headers,
)
from kdissect.rewriting.place_kernels import HEAD, gather_heads, spread
from kdissect.rewriting.places import Places
from kdissect.schema.apikeys import ApiKey
from kdissect.schema.configurations import is_harmless_value
from kdissect.schema.opcodes import CONFIG_VALUE, KEEP, MAX_DEPTH, RECORDS
from kdissect.schema.vm import Bodies, Layouts
from kdissect.schema.vocabulary import is_protocol_word

Words = NDArray[np.int64]
Flags = NDArray[np.bool_]
Bytes = NDArray[np.uint8]

ROOM = 16 << 20
"""Bytes of frames worked on at a time; a larger frame gets room of its own."""
PIECES = 1 << 16
SPANS = 1 << 14
"""Texts that wait to be judged, at first: what is too much for that doubles it."""
UNSUPPORTED_VERSION = b"\0\x23"
Judge = Callable[[bytes], bytes]
"""Takes what somebody called a thing of theirs, and gives what stands in its place: as many bytes."""


class Frames:
    """Takes finished exchanges of a dissector and writes their frames into the output. `reader` reads input again.

    `rename`: what stands in the place of each name (with as many bytes), None: names stay."""

    dissector: Dissector

    def __init__(self, reader: Reader, places: Places, out: Bytes, rename: Judge | None = None) -> None:
        self.decoder = Decoder()
        self.reader = reader
        self.places = places
        self.out = out
        self.lost = 0
        """Frames of which some bytes could not be put in their place, and are zero."""
        self.texts = np.zeros(KINDS + 1, np.int64)
        """How many texts there were, by what became of them (`schema.opcodes`); the last is no count."""
        self.configurations: Counter[str] = Counter()
        """Configurations whose values were kept."""
        self._rename = rename
        self._spans = np.zeros((SPANS, SPAN_COLUMNS), np.int64)
        self._newest = np.array(
            [[self.decoder.newest(key, side) for side in (0, 1)] for key in range(self.decoder.table.shape[0])],
            np.int64,
        )
        self._room: Bytes = np.zeros(ROOM, np.uint8)

    def write(self, rows: Records) -> None:
        """The frames of a harvest's exchanges."""
        n = len(rows)
        if not n:
            return
        there = np.stack([rows[side]["bytes"] >= 4 for side in SIDES], axis=1)
        whole = there & np.stack([(rows[side]["missing"] == 0) & (rows[side]["cut"] == 0) for side in SIDES], axis=1)
        whole[rows["status"] == TOKEN] = False
        whole[:, 0] &= self._has_header(rows) | there[:, 1]
        program = self._programs(rows)
        whole &= program >= 0
        self._redact_whole_frames(rows, whole, program)
        self._heads(rows, there & ~whole)

    def _has_header(self, rows: Records) -> Flags:
        """Whether a release has the key and version of a request."""
        key, version = rows["api"], rows["version"]
        table = self.decoder.table
        within = (key >= 0) & (key < table.shape[0]) & (version >= 0) & (version < table.shape[1])
        known: Flags = within & (table[np.where(within, key, 0), np.where(within, version, 0), 0] >= 0)
        return known

    def _programs(self, rows: Records) -> Words:
        """Programs of the bodies, as the engine chooses them; -1 unknown."""
        key, version = rows["api"], rows["version"]
        table = self.decoder.table
        known = (key >= 0) & (key < table.shape[0])
        at = np.where(known, key, 0)
        within = known & (version >= 0) & (version < table.shape[1])
        program = np.full((len(rows), 2), -1, np.int64)
        for side in (0, 1):
            found = np.where(within, table[at, np.where(within, version, 0), side], -1)
            newest = self._newest[at, side]
            newer = known & (found < 0) & (newest >= 0) & (version > newest)
            program[:, side] = np.where(newer, table[at, np.maximum(newest, 0), side], found)
        return program

    def _redact_whole_frames(self, rows: Records, need: Flags, program: Words) -> None:
        """Frames that are all there, and have a layout."""
        d = self.dissector
        n = len(rows)
        begin, end = np.zeros((n, 2), np.int64), np.zeros((n, 2), np.int64)
        first = 0
        while first < n:
            room = self._room
            absent = room_for_pieces(PIECES)
            upto, again, _ = collect(
                d.M, d.window.data, d.A, first, n, need, Target(room, 0, len(room), True), begin, end, absent
            )
            if upto == first:
                size = int(sum(rows[side]["bytes"][first] for side in np.array(SIDES)[need[first]]))
                room = np.zeros(size, np.uint8)
                absent = room_for_pieces(PIECES, size)
                upto, again, _ = collect(
                    d.M, d.window.data, d.A, first, first + 1, need, Target(room, 0, size, True), begin, end, absent
                )
            pieces = rows_of(Absent, absent[:again])
            read_again(self.reader, pieces, room)
            start = begin.copy()
            bodies(d.M, first, upto, need, room, begin, end)
            part = slice(first, upto)
            keep = np.full((n, 2), -1, np.int64)
            keep[part] = self._clean(rows[part], need[part], program[part], room, start[part], begin[part], end[part])
            self._spread(first, upto, room, start, keep)
            first = upto

    def _clean(
        self, rows: Records, need: Flags, program: Words, s: Bytes, start: Words, begin: Words, end: Words
    ) -> Words:
        """Replace in `s` what must not be shown; how many bytes of each frame stay."""
        n = len(rows)
        program = np.where(need & (begin >= 0), program, -1)
        answers = (rows["api"] == ApiKey.API_VERSIONS) & (program[:, 1] >= 0) & (end[:, 1] - begin[:, 1] >= 2)
        for i in np.flatnonzero(answers):
            if s[begin[i, 1] : begin[i, 1] + 2].tobytes() == UNSUPPORTED_VERSION:
                program[i, 1] = self.decoder.table[ApiKey.API_VERSIONS, 0, 1]
        begin, end, flat = begin.ravel(), end.ravel(), program.ravel().astype(np.int32)
        decoded = self.decoder.decode(s, begin, end, flat)
        fits = (decoded.status == 0) & (flat >= 0) & ~decoded.ambiguous
        chosen = np.where(fits, flat + decoded.variant, -1).astype(np.int32)
        header = np.where(begin >= 0, begin, start.ravel() + np.minimum(end - start.ravel(), [8, 4] * n))
        blank_headers(s, np.where(need.ravel(), start.ravel(), -1), np.where(need.ravel(), begin, -1))
        self._fields(s, begin, end, chosen)
        self._clients(s, start[:, 0], end.reshape(n, 2)[:, 0], need[:, 0])
        for k in np.flatnonzero(need.ravel() & ~fits).tolist():  # zeros might look like a body
            s[header[k] : end[k]] = FILLER
        return np.where(need, end.reshape(n, 2) - start, -1)

    def _fields(self, s: Bytes, begin: Words, end: Words, program: NDArray[np.int32]) -> None:
        """Replace what the bodies of these programs (-1: none) must not say."""
        library, stack = self.decoder.library, np.zeros(4 * MAX_DEPTH + 8, np.int64)
        fitting = Bodies(begin, end, program, np.zeros(len(begin), np.int8))
        layouts = Layouts(library.programs, library.rows, library.tags)
        first = 0
        while first < len(begin):
            self.texts[KINDS] = 0
            stopped = int(
                blank_fields(s, fitting, layouts, stack, self._spans, self.texts, self._rename is not None, first)
            )
            self._judge(s, self._spans[: int(self.texts[KINDS])])
            if stopped == first:
                self._spans = np.zeros((2 * len(self._spans), SPAN_COLUMNS), np.int64)
            first = stopped

    def _judge(self, s: Bytes, spans: Words) -> None:
        """Record sets, the values of configurations, names."""
        found = rows_of(Span, spans)
        sets = found[found["kind"] == RECORDS]
        tables = crc32_table(CRC32), crc32_table(CRC32C)
        blank_sets(s, np.ascontiguousarray(sets["at"]), np.ascontiguousarray(sets["size"]), *tables)
        for kind, at, size, name_at, name_size in found[found["kind"] != RECORDS].tolist():
            if kind != CONFIG_VALUE:
                text = s[at : at + size].tobytes()
                if self._rename is not None and not (kind == KEEP and is_protocol_word(text)):
                    said = self._rename(text)
                    s[at : at + size] = np.frombuffer(said.ljust(size, b"x")[:size], np.uint8)
                continue
            name = s[name_at : name_at + max(name_size, 0)].tobytes().decode("utf-8", "replace")
            if is_harmless_value(name, s[at : at + size].tobytes().decode("utf-8", "replace")):
                self.configurations[name] += 1
            else:
                s[at : at + size] = FILLER

    def _clients(self, s: Bytes, start: Words, end: Words, chosen: Flags) -> None:
        """Rename the clients in headers of requests, where names are replaced."""
        if self._rename is None:
            return
        for at, stop in zip(start[chosen].tolist(), end[chosen].tolist(), strict=True):
            size = int.from_bytes(s[at + 8 : at + 10].tobytes(), "big", signed=True)
            if 0 < size <= stop - at - 10:
                said = self._rename(s[at + 10 : at + 10 + size].tobytes())
                s[at + 10 : at + 10 + size] = np.frombuffer(said.ljust(size, b"x")[:size], np.uint8)

    def _heads(self, rows: Records, chosen: Flags) -> None:
        """Of the other frames, the length prefix and what their headers say; of those without one, the prefix."""
        some = np.flatnonzero(chosen.any(axis=1))
        if not len(some):
            return
        d = self.dissector
        for first in range(int(some[0]), int(some[-1]) + 1, 4096):
            upto = min(first + 4096, int(some[-1]) + 1)
            heads = np.zeros(2 * (upto - first) * HEAD, np.uint8)
            start = np.zeros((len(rows), 2), np.int64)
            start[first:upto] = (np.arange(2 * (upto - first)) * HEAD).reshape(-1, 2)
            keep = np.full((len(rows), 2), -1, np.int64)
            gather_heads(d.M, d.window.data, d.A, first, upto, chosen, heads, keep)
            self._judge_heads(rows, heads, start, keep)
            self._spread(first, upto, heads, start, keep)

    def _judge_heads(self, rows: Records, heads: Bytes, start: Words, keep: Words) -> None:
        """Judge what headers say: keep[i, side] bytes from heads[start[i, side]] on are that of row i, -1 none."""
        self._clients(heads, start[:, 0], start[:, 0] + keep[:, 0], keep[:, 0] > 10)

    def _spread(self, first: int, upto: int, source: Bytes, start: Words, keep: Words) -> None:
        p = self.places
        self.lost += int(
            spread(self.dissector.M, first, upto, source, start, keep, p.index, p.count, p.base, p.last, self.out)
        )

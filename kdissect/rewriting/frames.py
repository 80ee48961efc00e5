"""Kafka frames made fit to be shown: what each may keep, and its bytes with the rest replaced.

A frame whose body fits the layout of its API and version keeps all but what records hold, credentials, and addresses
of clients. Of any other only the header stays: without a layout nobody knows what its bytes are.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from kdissect.kafka.exchanges.frame_bytes import Reader, bodies, collect
from kdissect.kafka.exchanges.messages import Decoded, Decoder
from kdissect.kafka.recordsets.verification import CRC32, CRC32C, crc32_table
from kdissect.kafka.streams.dissector import Dissector
from kdissect.kafka.streams.state import SIDES, TOKEN, Exchange
from kdissect.kernels.records import Records
from kdissect.rewriting.blanking_kernels import blank_sets
from kdissect.rewriting.place_kernels import FILLER, HEAD, gather_heads, spread
from kdissect.rewriting.places import Places
from kdissect.schema import index
from kdissect.schema.apikeys import ApiKey
from kdissect.schema.explain import explain_frame
from kdissect.schema.model import Field
from kdissect.schema.names import snake_case

Words = NDArray[np.int64]
Flags = NDArray[np.bool_]
Bytes = NDArray[np.uint8]

RECORD_SETS = {
    (0, 0): "topic_data.partition_data.records",
    (1, 1): "responses.partitions.records",
    (78, 1): "responses.partitions.records",
}
"""Messages that carry records, and where."""
HIDDEN_PATHS = frozenset(
    {
        "client_host", "client_host_address", "request_data", "request_principal", "response_data", "metrics",
        "unaligned_records",
    }
)  # fmt: skip
"""Fields with a client's address, what a broker forwards of a client, what clients report of themselves, and records
that are no whole batches."""
ROOM = 16 << 20
"""Bytes of frames worked on at a time; a larger frame gets room of its own."""
PIECES = 1 << 16
UNSUPPORTED_VERSION = b"\0\x23"


@cache
def delicate() -> frozenset[tuple[int, int]]:
    """(API key, side) of the messages in which single fields have to be replaced. They are rare: logins, tokens,
    configurations, descriptions of groups."""
    return frozenset(
        (key, side)
        for key, api in index.load().apis.items()
        for side in (0, 1)
        if _is_delicate(api.message(side).fields)
    )


def _is_delicate(fields: tuple[Field, ...]) -> bool:
    return any(
        item.secret or item.secret_by or snake_case(item.name) in HIDDEN_PATHS or _is_delicate(item.fields)
        for item in fields
    )


def _prefix(data: bytes) -> int:
    """Bytes of the length in front of a string or of bytes: a varint of n + 1, two bytes or four; all of a null."""
    value = 0
    for k in range(min(5, len(data))):
        byte = data[k]
        value |= (byte & 127) << (7 * k)
        if byte < 128:
            if value - 1 == len(data) - k - 1:
                return k + 1
            break
    null = len(data) if len(data) <= 4 else 0
    return next((k for k in (2, 4) if int.from_bytes(data[:k], "big") == len(data) - k), null)


class Frames:
    """Takes finished exchanges of a dissector and writes their frames into the output. `reader` reads input again."""

    dissector: Dissector

    def __init__(self, reader: Reader, places: Places, out: Bytes) -> None:
        wanted = {kind: frozenset({path, path + "@"}) for kind, path in RECORD_SETS.items()}
        self.decoder = Decoder(wanted)
        self.reader = reader
        self.places = places
        self.out = out
        self.lost = 0
        """Frames of which some bytes could not be put in their place, and are zero."""
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
        tokens = rows["status"] == TOKEN
        whole[tokens] = False
        program = self._programs(rows)
        whole &= program >= 0
        self._whole(rows, whole, program)
        self._heads(rows, there & ~whole)

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

    def _whole(self, rows: Records, need: Flags, program: Words) -> None:
        """Frames that are all there, and have a layout."""
        d = self.dissector
        n = len(rows)
        begin, end = np.zeros((n, 2), np.int64), np.zeros((n, 2), np.int64)
        first = 0
        while first < n:
            room = self._room
            absent = np.zeros((PIECES, 3), np.int64)
            upto, again, _ = collect(
                d.M, d.window.data, d.A, first, n, need, True, room, 0, len(room), begin, end, absent
            )
            if upto == first:
                size = int(sum(rows[side]["bytes"][first] for side in np.array(SIDES)[need[first]]))
                room = np.zeros(size, np.uint8)
                absent = np.zeros((max(PIECES, size // 64), 3), np.int64)
                upto, again, _ = collect(
                    d.M, d.window.data, d.A, first, first + 1, need, True, room, 0, size, begin, end, absent
                )
            self.reader.read_many(absent[:again, 0], absent[:again, 1], room, absent[:again, 2])
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
        flat = np.arange(2 * n)
        decoded = self.decoder.decode(s, begin.ravel(), end.ravel(), program.ravel().astype(np.int32))
        fits = ((decoded.status == 0) & (program.ravel() >= 0)).reshape(n, 2)
        self._records(decoded, s)
        kinds = np.stack([rows["api"]] * 2, axis=1).ravel() * 2 + flat % 2
        single = np.isin(kinds, [key * 2 + side for key, side in delicate()]) & fits.ravel()
        for k in np.flatnonzero(single).tolist():
            self._fields(rows[k >> 1], k & 1, s, int(start.flat[k]), int(end.flat[k]))
        header = np.where(begin >= 0, begin, start + np.minimum(end - start, [8, 4]))
        for number, side in np.argwhere(need & ~fits).tolist():  # zeros might look like a body
            s[header[number, side] : end[number, side]] = FILLER
        return np.where(need, end - start, -1)

    @staticmethod
    def _records(decoded: Decoded, s: Bytes) -> None:
        for kind, path in RECORD_SETS.items():
            message = decoded.messages.get(kind)
            if message is not None:
                size = pc.fill_null(message.flat(path + "_bytes"), -1).to_numpy(zero_copy_only=False)
                at = pc.fill_null(message.flat(path + "_at"), -1).to_numpy(zero_copy_only=False)
                tables = crc32_table(CRC32), crc32_table(CRC32C)
                blank_sets(s, at.astype(np.int64), size.astype(np.int64), *tables)

    @staticmethod
    def _fields(row: Exchange, side: int, s: Bytes, start: int, end: int) -> None:
        """Replace the single fields of one frame."""
        frame = (end - start).to_bytes(4, "big") + s[start:end].tobytes()
        for item in explain_frame(frame, side, int(row.api), int(row.version)):
            if item["offset"] is None or not item["length"]:
                continue
            *above, name = (word.split("[")[0] for word in str(item["path"]).split("."))
            inside = not HIDDEN_PATHS.isdisjoint(above)
            if inside or ((item["hidden"] or name in HIDDEN_PATHS) and item["type"] != "size"):
                offset, length = int(item["offset"]), int(item["length"])
                skip = 0 if inside else _prefix(frame[offset : offset + length])
                s[start + offset - 4 + skip : start + offset - 4 + length] = FILLER

    def _heads(self, rows: Records, wanted: Flags) -> None:
        """Of the other frames, the length prefix and what their headers say; of bare tokens, the prefix."""
        some = np.flatnonzero(wanted.any(axis=1))
        if not len(some):
            return
        d = self.dissector
        for first in range(int(some[0]), int(some[-1]) + 1, 4096):
            upto = min(first + 4096, int(some[-1]) + 1)
            heads = np.zeros(2 * (upto - first) * HEAD, np.uint8)
            start = np.zeros((len(rows), 2), np.int64)
            start[first:upto] = (np.arange(2 * (upto - first)) * HEAD).reshape(-1, 2)
            keep = np.full((len(rows), 2), -1, np.int64)
            gather_heads(d.M, d.window.data, d.A, first, upto, wanted, heads, keep)
            self._spread(first, upto, heads, start, keep)

    def _spread(self, first: int, upto: int, source: Bytes, start: Words, keep: Words) -> None:
        p = self.places
        self.lost += int(
            spread(self.dissector.M, first, upto, source, start, keep, p.index, p.count, p.base, p.last, self.out)
        )

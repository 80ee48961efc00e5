"""Kafka frames read by the schema's walker, to check what a capture still says.

The walker explains each byte of a body and takes nothing from the kernels that blank texts, so it is another judge of
their work. A frame that it reads whole becomes zeros in the output; its texts are in the tally. The bytes of the output
that are not zeros afterwards are unexplained.
"""

from __future__ import annotations

import numpy as np

from kdissect.kafka.exchanges.frame_bytes import Reader
from kdissect.kafka.streams.state import SIDES
from kdissect.kernels.structs import Records
from kdissect.problems import UsageError
from kdissect.rewriting.frames import Bytes, Flags, Frames, Words
from kdissect.rewriting.places import Places
from kdissect.rewriting.verification.readable import Texts, What, readable, readable_in_records
from kdissect.schema import index
from kdissect.schema.configurations import is_harmless_value
from kdissect.schema.fitting import fit
from kdissect.schema.model import NAME, PUBLIC, REQUEST
from kdissect.schema.names import snake_case
from kdissect.schema.walker import Piece, WalkError

FRAME_MASK = (1 << 40) - 1
"""Of a frame's packet: its number in its file."""
CLIENT_AT = 10
"""Offset of a client id in a request's header, behind its int16 length."""

CORRELATION_BYTES = 4
"""A response's header, behind which only tags follow."""


class WalkedFrames(Frames):
    """Takes finished exchanges of a dissector, notes their texts in `texts`, and writes zeros for what was read."""

    def __init__(self, reader: Reader, places: Places, out: Bytes, texts: Texts) -> None:
        super().__init__(reader, places, out)
        self.tally = texts

    def _clean(
        self, rows: Records, need: Flags, program: Words, s: Bytes, start: Words, begin: Words, end: Words
    ) -> Words:
        """Note the texts of frames in `s` that can be walked; how many bytes of each become zeros, -1 none."""
        keep = np.full(need.shape, -1, np.int64)
        for i, side in np.argwhere(need).tolist():
            first, body, last = int(start[i, side]), int(begin[i, side]), int(end[i, side])
            frame = int(rows[SIDES[side]]["packet"][i]) & FRAME_MASK
            data = s[body:last].tobytes() if body >= 0 else b""
            pieces = _pieces(int(rows["api"][i]), side, int(rows["version"][i]), data) if body >= 0 else None
            if pieces is not None:
                self._note_header(s[first:body].tobytes(), side, frame)
                self._note(pieces, data, frame)
                s[first:last] = 0
                keep[i, side] = last - first
            elif side == REQUEST:
                keep[i, side] = self._take_header(s[first:last], rows["response"]["bytes"][i] >= 4, frame)
        return keep

    def _judge_heads(self, rows: Records, heads: Bytes, start: Words, keep: Words) -> None:
        """Note the clients that headers of requests name, and keep zeros for what was read of them."""
        for i in np.flatnonzero(keep[:, 0] >= 0).tolist():
            at, frame = int(start[i, 0]), int(rows["request"]["packet"][i]) & FRAME_MASK
            header = heads[at : at + int(keep[i, 0])]
            keep[i, 0] = self._take_header(header, rows["response"]["bytes"][i] >= 4, frame)
        keep[:, 1] = -1

    def _take_header(self, head: Bytes, answered: bool, frame: int) -> int:
        """Note the client that a request's header at the beginning of `head` names, and make zeros of all but the
        correlation id. Returns the bytes of that header, -1 where it is none: neither a release has its key and
        version, nor was it answered."""
        header = head[: CLIENT_AT + (1 << 15)].tobytes()
        api = index.load().apis.get(int.from_bytes(header[:2], "big"))
        known = api is not None and int.from_bytes(header[2:4], "big") <= api.request.versions.last
        size = max(int.from_bytes(header[CLIENT_AT - 2 : CLIENT_AT], "big", signed=True), 0)
        if not (known or answered) or size > len(header) - CLIENT_AT:
            return -1
        self._note_client(header, frame)
        head[:4] = 0
        head[8 : CLIENT_AT + size] = 0
        return CLIENT_AT + size

    def _note_header(self, header: bytes, side: int, frame: int) -> None:
        """The texts of a header: the client's id of a request, and unknown tags."""
        if side == REQUEST:
            self._note_client(header, frame)
            header = header[CLIENT_AT + max(int.from_bytes(header[CLIENT_AT - 2 : CLIENT_AT], "big", signed=True), 0) :]
        else:
            header = header[CORRELATION_BYTES:]
        for stretch in readable(header):
            self.tally.add(What.TEXT, stretch, frame)

    def _note_client(self, header: bytes, frame: int) -> None:
        size = int.from_bytes(header[CLIENT_AT - 2 : CLIENT_AT], "big", signed=True)
        if 0 < size <= len(header) - CLIENT_AT:
            self.tally.add(What.NAME, header[CLIENT_AT : CLIENT_AT + size], frame)

    def _note(self, pieces: list[Piece], data: bytes, frame: int) -> None:
        """The texts of one body."""
        texts: dict[str, str] = {}
        for piece in pieces:
            if piece.kind not in ("string", "bytes", "records"):
                continue
            end = piece.offset + piece.length
            text = data[end - (piece.size if piece.item is not None else piece.length) : end]
            if piece.kind == "records":
                for stretch in readable_in_records(text):
                    self.tally.add(What.TEXT, stretch, frame)
                continue
            texts[piece.path] = text.decode("utf-8", "replace")
            what = self._kind_of(piece, texts)
            if piece.kind == "bytes" and what == What.TEXT:
                for stretch in readable(text):
                    self.tally.add(what, stretch, frame)
            else:
                self.tally.add(what, text, frame)

    @staticmethod
    def _kind_of(piece: Piece, texts: dict[str, str]) -> What:
        """The kind of a text, by the schema's line of its field; `texts` are those read before, by path."""
        item = piece.item
        if item is None or item.secret:
            return What.TEXT
        if item.secret_by is not None:
            name = texts.get(f"{piece.path.rpartition('.')[0]}.{snake_case(item.secret_by)}", "")
            return What.VALUE if is_harmless_value(name, texts[piece.path]) else What.TEXT
        return {NAME: What.NAME, PUBLIC: What.WORD}.get(item.policy, What.TEXT)


def _pieces(key: int, side: int, version: int, body: bytes) -> list[Piece] | None:
    """The walker's pieces of a body, None where its layout is not known or does not fit."""
    api = index.load().apis.get(key)
    if api is None:
        return None
    try:
        return fit(api, side, version, body, pieces=True).pieces
    except (WalkError, UsageError):
        return None

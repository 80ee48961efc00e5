"""Who the client of a connection is: client id, software, SASL mechanism, consumer group.

The first message of a connection that tells counts (by its ordinal in the connection, so that the order in which
blocks arrive does not matter). The group of a connection is the one that its own requests name; a connection that
names none, such as the one that only fetches, takes the group which requests from the same address under the same
client id name, if that is one and the same in the whole capture.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kdissect.tables.block import Block
from kdissect.tables.declaration.model import TEXT
from kdissect.tables.identity import Interned
from kdissect.tables.nest import Int64s, Level, numbers

API_VERSIONS, SASL_HANDSHAKE = 18, 17

GROUP_PATHS: tuple[tuple[int, str], ...] = (
    (8, "group_id"),  # OffsetCommit
    (9, "group_id"),  # OffsetFetch v0-7
    (9, "groups.group_id"),  # OffsetFetch v8+
    (11, "group_id"),  # JoinGroup
    (12, "group_id"),  # Heartbeat
    (13, "group_id"),  # LeaveGroup
    (14, "group_id"),  # SyncGroup
    (68, "group_id"),  # ConsumerGroupHeartbeat
    (76, "group_id"),  # ShareGroupHeartbeat
    (78, "group_id"),  # ShareFetch
    (79, "group_id"),  # ShareAcknowledge
    (88, "group_id"),  # StreamsGroupHeartbeat
)
"""Requests that members of a group send, and where they name it. A producer's TxnOffsetCommit is none of them."""

NEVER = np.iinfo(np.int64).max


def wanted() -> dict[tuple[int, int], set[str]]:
    """The message paths that clients are known by."""
    paths: dict[tuple[int, int], set[str]] = {
        (API_VERSIONS, 0): {"client_software_name", "client_software_version"},
        (SASL_HANDSHAKE, 0): {"mechanism"},
    }
    for key, path in GROUP_PATHS:
        paths.setdefault((key, 0), set()).add(path)
    return paths


@dataclass(slots=True)
class Firsts:
    """Per connection, the text told by the message with the smallest ordinal."""

    texts: Interned = field(default_factory=Interned)
    ordinal: Int64s = field(default_factory=lambda: np.zeros(0, np.int64))
    code: Int64s = field(default_factory=lambda: np.zeros(0, np.int64))

    def note(self, conn: npt.NDArray[Any], ordinal: Int64s, texts: pa.Array, size: int) -> None:
        """Messages with these ordinals tell these texts (null: nothing) of `conn`. `size`: connections so far."""
        encoded = texts if pa.types.is_dictionary(texts.type) else texts.dictionary_encode()
        values = [-1 if text is None else self.texts.code(text) for text in encoded.dictionary.to_pylist()]
        present = np.asarray(encoded.is_valid())
        codes = np.array([*values, -1], np.int64)[numbers(encoded.indices, -1)]
        self.put(conn[present], ordinal[present], codes[present], size)

    def put(self, conn: npt.NDArray[Any], ordinal: Int64s, codes: Int64s, size: int) -> None:
        """As `note`, with codes."""
        if len(self.ordinal) < size:
            more = max(size, 2 * len(self.ordinal)) - len(self.ordinal)
            self.ordinal = np.concatenate([self.ordinal, np.full(more, NEVER)])
            self.code = np.concatenate([self.code, np.full(more, -1)])
        np.minimum.at(self.ordinal, conn, ordinal)
        first = self.ordinal[conn] == ordinal
        self.code[conn[first]] = codes[first]

    def absorb(self, other: Firsts, first: int) -> None:
        """Take over what others tell of connections that are counted from `first` on here."""
        told = np.flatnonzero(other.code >= 0)
        codes = np.array([self.texts.code(text) for text in other.texts.texts] or [-1], np.int64)
        self.put(told + first, other.ordinal[told], codes[other.code[told]], int(told.max(initial=-1)) + first + 1)

    def column(self, size: int, known: dict[int, str] | None = None) -> list[str | None]:
        """The text of each connection, else what `known` says, else None."""
        codes = np.full(size, -1)
        codes[: min(size, len(self.code))] = self.code[:size]
        out: list[str | None] = [None if code < 0 else self.texts.texts[code] for code in codes.tolist()]
        for row, text in (known or {}).items():
            if out[row] is None:
                out[row] = text
        return out


@dataclass(slots=True)
class Clients:
    """What a run has seen of its clients."""

    client_id: Firsts = field(default_factory=Firsts)
    software: Firsts = field(default_factory=Firsts)
    version: Firsts = field(default_factory=Firsts)
    mechanism: Firsts = field(default_factory=Firsts)
    own: dict[int, set[str]] = field(default_factory=dict)
    """Connection -> groups that its requests name."""
    shared: dict[tuple[int, int, str], set[str]] = field(default_factory=dict)
    """(capture, client address code, client id) -> groups named from there."""
    _names: Interned = field(default_factory=Interned)
    _last: Int64s = field(default_factory=lambda: np.zeros(0, np.int64))
    """By connection, the client id and group that were noted last: most requests say the same again."""

    def feed(self, block: Block) -> None:
        """Collect what a block's exchanges and messages tell."""
        done, size = block.done, len(block.connections)
        named = np.flatnonzero(done.client >= 0)
        self.client_id.note(done.conn[named], done.n[named], block.client_id.take(pa.array(named)), size)
        for key, path, firsts in (
            (API_VERSIONS, "client_software_name", self.software),
            (API_VERSIONS, "client_software_version", self.version),
            (SASL_HANDSHAKE, "mechanism", self.mechanism),
        ):
            rows = block.bodies(key, 0)
            if len(rows):
                firsts.note(done.conn[rows], done.n[rows], block.nest(key, 0).column(path, TEXT), size)
        for key, path in GROUP_PATHS:
            if (key, 0) in done.messages:
                level: Level = block.nest(key, 0)
                *lists, name = path.split(".")
                for step in lists:
                    level = level.each(step)
                self._groups(block, block.bodies(key, 0)[level.body], level.column(name, TEXT))

    def _groups(self, block: Block, rows: Int64s, groups: pa.Array) -> None:
        encoded = groups.dictionary_encode()
        named = np.array([self._names.code(text) if text else -1 for text in encoded.dictionary.to_pylist()] + [-1])
        group = named[numbers(encoded.indices, -1)]
        done = block.done
        conn = done.conn[rows].astype(np.int64)
        client = done.client[rows].astype(np.int64)
        said = (client + 1) << 32 | group + 1
        if len(self._last) < len(block.connections):
            more = max(len(block.connections), 2 * len(self._last)) - len(self._last)
            self._last = np.concatenate([self._last, np.zeros(more, np.int64)])
        fresh = (group >= 0) & (self._last[conn] != said)
        if not fresh.any():
            return
        self._last[conn[fresh]] = said[fresh]
        texts = self._names.texts
        distinct = np.unique(np.stack([conn, client, group], axis=1)[fresh], axis=0)
        address = block.directory.client_codes(distinct[:, 0])
        capture = block.connections.capture[distinct[:, 0]]
        for (row, said_by, code), ip, where in zip(distinct.tolist(), address.tolist(), capture.tolist(), strict=True):
            self.own.setdefault(row, set()).add(texts[code])
            if said_by >= 0 and done.client_ids[said_by]:
                self.shared.setdefault((where, ip, done.client_ids[said_by]), set()).add(texts[code])

    def absorb(self, other: Clients, first: int, addresses: Sequence[int]) -> None:
        """Take over what others know of connections that are counted from `first` on here. `addresses`: our codes of
        client addresses by theirs."""
        for name in ("client_id", "software", "version", "mechanism"):
            getattr(self, name).absorb(getattr(other, name), first)
        self.own.update({row + first: groups for row, groups in other.own.items()})
        for (capture, address, client_id), groups in other.shared.items():
            self.shared.setdefault((capture, addresses[address], client_id), set()).update(groups)

    def group(self, row: int, capture: int, address: int, client_id: str | None) -> str | None:
        """The group of a connection, None when unknown or ambiguous."""
        found = self.own.get(row) or (self.shared.get((capture, address, client_id)) if client_id else None)
        return next(iter(found)) if found and len(found) == 1 else None

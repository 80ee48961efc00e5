"""Who the client of a connection is: client id, software, SASL mechanism, consumer group.

The first message of a connection that tells counts (by its ordinal in the connection, so that the order in which
blocks arrive does not matter). The group of a connection is the one that its own requests name; a connection that
names none, such as the one that only fetches, takes the group which requests from the same address under the same
client id name, if that is one and the same in the whole capture.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kdissect.arrays.arrow import Scalar, distinct
from kdissect.arrays.from_numpy import arrow_array
from kdissect.arrays.growing import grown, read
from kdissect.kernels.kernel import kernel
from kdissect.schema.apikeys import ApiKey
from kdissect.tables.declaration.model import TEXT
from kdissect.tables.identity import Interned, dictionary
from kdissect.tables.nest import Int64s, Level, numbers
from kdissect.tables.table_block import Block

GROUP_PATHS: tuple[tuple[int, str], ...] = (
    (ApiKey.OFFSET_COMMIT, "group_id"),
    (ApiKey.OFFSET_FETCH, "group_id"),  # v0-7
    (ApiKey.OFFSET_FETCH, "groups.group_id"),  # v8+
    (ApiKey.JOIN_GROUP, "group_id"),
    (ApiKey.HEARTBEAT, "group_id"),
    (ApiKey.LEAVE_GROUP, "group_id"),
    (ApiKey.SYNC_GROUP, "group_id"),
    (ApiKey.CONSUMER_GROUP_HEARTBEAT, "group_id"),
    (ApiKey.SHARE_GROUP_HEARTBEAT, "group_id"),
    (ApiKey.SHARE_FETCH, "group_id"),
    (ApiKey.SHARE_ACKNOWLEDGE, "group_id"),
    (ApiKey.STREAMS_GROUP_HEARTBEAT, "group_id"),
)
"""Requests that members of a group send, and where they name it. A producer's TxnOffsetCommit is none of them."""

NEVER = np.iinfo(np.int64).max
LATEST = np.iinfo(np.int32).max - 1
"""What tells of a client comes early in a connection; ordinals beyond this count as equal."""
SEVERAL = -1


def client_paths() -> dict[tuple[int, int], set[str]]:
    """The message paths that clients are known by."""
    paths: dict[tuple[int, int], set[str]] = {
        (ApiKey.API_VERSIONS, 0): {"client_software_name", "client_software_version"},
        (ApiKey.SASL_HANDSHAKE, 0): {"mechanism"},
    }
    for key, path in GROUP_PATHS:
        paths.setdefault((key, 0), set()).add(path)
    return paths


def pick_texts(rows: Int64s, texts: Mapping[int, str]) -> pa.Array:
    """What few connections tell, by their row, for these rows."""
    return pa.array([texts.get(row) for row in rows.tolist()] if texts else [None] * len(rows), TEXT)


@kernel("const i4[:] const i8[:] const i4[:] const i4[:] i8[:] -> i8")
def _fresh(
    conn: npt.NDArray[np.int32], ordinals: Int64s, codes: npt.NDArray[np.int32], first_ordinals: npt.NDArray[np.int32],
    fresh: Int64s,
) -> Scalar:  # fmt: skip
    """Rows with a code and an earlier ordinal than the known one of their connection."""
    count = np.int64(0)
    for i in range(conn.size):
        if codes[i] >= 0:
            first = np.int64(first_ordinals[conn[i]])
            if first == 0 or min(ordinals[i], np.int64(LATEST)) + 1 < first:
                fresh[count] = i
                count += 1
    return count


class Firsts:
    """Per connection, the text told by the message with the smallest ordinal."""

    def __init__(self) -> None:
        self.texts = Interned()
        self.ordinal: npt.NDArray[np.int32] = np.zeros(0, np.int32)
        """As far as it was told of anything, 1 + the ordinal, at most LATEST; 0 never."""
        self.code: npt.NDArray[np.int32] = np.zeros(0, np.int32)

    def note(self, conn: npt.NDArray[Any], ordinal: Int64s, texts: pa.Array, size: int) -> None:
        """Messages with these ordinals tell these texts (null: nothing) of `conn`. `size`: connections so far."""
        encoded = texts if pa.types.is_dictionary(texts.type) else texts.dictionary_encode()
        values = [-1 if text is None else self.texts.code(text) for text in encoded.dictionary.to_pylist()]
        present = np.asarray(encoded.is_valid())
        if present.any():
            codes = np.array([*values, -1], np.int32)[numbers(encoded.indices, -1)]
            self.note_codes(conn[present], ordinal[present], codes[present], size)

    def fresh(self, conn: npt.NDArray[Any], ordinal: npt.NDArray[Any], codes: npt.NDArray[Any], size: int) -> Int64s:
        """The messages, with these codes of texts (negative: nothing), that may tell something else than is known.
        `size`: connections so far."""
        self.ordinal, self.code = (grown(column, size) for column in (self.ordinal, self.code))
        found = np.empty(len(conn), np.int64)
        where, told = (np.require(one, np.int32, ["C", "A"]) for one in (conn, codes))
        return found[: _fresh(where, np.require(ordinal, np.int64, ["C", "A"]), told, self.ordinal, found)]

    def note_codes(self, conn: npt.NDArray[Any], ordinal: Int64s, codes: npt.NDArray[np.int32], size: int) -> None:
        """As `note`, with codes."""
        if len(self.ordinal) < size:
            self.ordinal, self.code = (grown(column, size) for column in (self.ordinal, self.code))
        order = np.lexsort((ordinal, conn))
        conn, ordinal, codes = conn[order], ordinal[order], codes[order]
        first = np.ones(len(conn), np.bool_)
        first[1:] = conn[1:] != conn[:-1]
        conn, place, codes = conn[first], np.minimum(ordinal[first], LATEST) + 1, codes[first]
        known = self.ordinal[conn]
        earlier = (known == 0) | (place < known)
        self.ordinal[conn[earlier]] = place[earlier]
        self.code[conn[earlier]] = codes[earlier]

    def absorb(self, other: Firsts, first: int) -> None:
        """Take over what others tell of connections that are counted from `first` on here."""
        told = np.flatnonzero(other.ordinal).astype(np.int64)
        if len(told):
            codes = np.array([self.texts.code(text) for text in other.texts.texts], np.int32)[other.code[told]]
            self.note_codes(told + first, other.ordinal[told].astype(np.int64) - 1, codes, int(told[-1]) + first + 1)

    def codes(self, rows: Int64s) -> npt.NDArray[np.int32]:
        """The codes of these connections' texts, -1 where there is none."""
        codes: npt.NDArray[np.int32] = np.where(read(self.ordinal, rows) > 0, read(self.code, rows), -1)
        return codes

    def column(self, rows: Int64s, fallbacks: Mapping[int, str] | None = None) -> pa.Array:
        """The texts of these connections, else what `fallbacks` says, else null."""
        codes = self.codes(rows)
        if fallbacks:
            for place in np.flatnonzero(codes < 0).tolist():
                text = fallbacks.get(int(rows[place]))
                codes[place] = -1 if text is None else self.texts.code(text)
        return dictionary(codes, self.texts.texts)


FIRSTS = ("client_id", "software", "version", "mechanism")


class Clients:
    """What a run has seen of its clients."""

    def __init__(self) -> None:
        self.client_id = Firsts()
        self.software = Firsts()
        self.version = Firsts()
        self.mechanism = Firsts()
        self.group_ids = Interned()
        self.own: npt.NDArray[np.int32] = np.zeros(0, np.int32)
        """Per connection the group that its requests name: 1 + its code, SEVERAL, or 0 for none."""
        self.shared: dict[tuple[int, int, str], set[str]] = {}
        """(capture, client address code, client id) -> groups named from there."""
        self._last: Int64s = np.zeros(0, np.int64)
        """By connection, the client id and group that were noted last: most requests say the same again."""

    def feed(self, block: Block) -> None:
        """Collect what a block's exchanges and messages tell."""
        done, size = block.done, len(block.connections)
        named = self.client_id.fresh(done.conn, done.n, done.client, size)
        if len(named):
            self.client_id.note(done.conn[named], done.n[named], block.client_id.take(arrow_array(named)), size)
        for key, path, firsts in (
            (ApiKey.API_VERSIONS, "client_software_name", self.software),
            (ApiKey.API_VERSIONS, "client_software_version", self.version),
            (ApiKey.SASL_HANDSHAKE, "mechanism", self.mechanism),
        ):
            rows = block.bodies(key, 0)
            if len(rows):
                firsts.note(done.conn[rows], done.n[rows], block.nest(key, 0).column(path, TEXT), size)
        for api, path in GROUP_PATHS:
            if (api, 0) in done.messages:
                level: Level = block.nest(api, 0)
                *lists, name = path.split(".")
                for step in lists:
                    level = level.each(step)
                self._groups(block, block.bodies(api, 0)[level.body], level.column(name, TEXT))

    def _groups(self, block: Block, rows: Int64s, groups: pa.Array) -> None:
        encoded = groups.dictionary_encode()
        named = np.array([self.group_ids.code(text) if text else -1 for text in encoded.dictionary.to_pylist()] + [-1])
        group = named[numbers(encoded.indices, -1)]
        done = block.done
        conn = done.conn[rows].astype(np.int64)
        client = done.client[rows].astype(np.int64)
        said = (client + 1) << 32 | group + 1
        self._last = grown(self._last, len(block.connections))
        fresh = (group >= 0) & (self._last[conn] != said)
        if not fresh.any():
            return
        self._last[conn[fresh]] = said[fresh]
        spoken = distinct(np.stack([conn, client, group], axis=1)[fresh])
        self._own(distinct(spoken[:, [0, 2]]), len(block.connections))
        address = block.directory.client_codes(spoken[:, 0])
        capture = block.connections.capture[spoken[:, 0]]
        places = distinct(np.stack([capture, address, *spoken[:, 1:].T], axis=1))
        for where, ip, said_by, code in places.tolist():
            if said_by >= 0 and done.client_ids[said_by]:
                self.shared.setdefault((where, ip, done.client_ids[said_by]), set()).add(self.group_ids.texts[code])

    def _own(self, pairs: Int64s, size: int) -> None:
        """Connections name groups: distinct pairs, in order. `size`: connections so far."""
        self.own = grown(self.own, size)
        conn, code = pairs[:, 0], pairs[:, 1] + 1
        known = self.own[conn]
        self.own[conn] = np.where((known == 0) | (known == code), code, SEVERAL)
        self.own[conn[1:][conn[1:] == conn[:-1]]] = SEVERAL

    def absorb(self, other: Clients, first: int, addresses: Sequence[int]) -> None:
        """Take over what others know of connections that are counted from `first` on here. `addresses`: our codes of
        client addresses by theirs."""
        for name in FIRSTS:
            getattr(self, name).absorb(getattr(other, name), first)
        named = other.connections_with_groups()
        if len(named):
            codes = np.array([SEVERAL, 0, *(self.group_ids.code(text) + 1 for text in other.group_ids.texts)], np.int32)
            self.own = grown(self.own, int(named[-1]) + first + 1)
            self.own[named + first] = codes[other.own[named] + 1]
        for (capture, address, client_id), groups in other.shared.items():
            self.shared.setdefault((capture, addresses[address], client_id), set()).update(groups)

    def connections_with_groups(self) -> Int64s:
        """The connections whose own requests name groups."""
        return np.flatnonzero(self.own).astype(np.int64)

    def groups(
        self, rows: Int64s, capture: npt.NDArray[Any], address: npt.NDArray[Any], client: npt.NDArray[Any]
    ) -> pa.Array:
        """The groups of these connections, null where unknown or ambiguous. `client`: codes of their client ids."""
        own = read(self.own, rows)
        codes = np.maximum(own, 0) - 1
        others = np.flatnonzero((own == 0) & (client >= 0)) if self.shared else np.zeros(0, np.int64)
        if len(others):
            keys = np.stack([column[others].astype(np.int64) for column in (capture, address, client)], axis=1)
            distinct, inverse = np.unique(keys, axis=0, return_inverse=True)
            names = self.client_id.texts.texts
            found = [self.shared.get((where, ip, names[code]), ()) for where, ip, code in distinct.tolist()]
            alone = [self.group_ids.code(next(iter(one))) if len(one) == 1 else -1 for one in found]
            codes[others] = np.array(alone, np.int32)[inverse.reshape(-1)]
        return dictionary(codes, self.group_ids.texts)

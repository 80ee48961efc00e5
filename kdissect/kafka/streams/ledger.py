"""The books of a run: its connections and problems, as arrays.

A connection is entered when it is first seen, with what never changes (its id, its endpoints). It is closed when the
stream kernels have finished it, with its times and counters.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

try:
    from _blake2 import blake2b  # hashlib has it too, and loads OpenSSL: 3 ms
except ImportError:  # a Python that was built without
    from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from kdissect.arrays.growing import grown, lazy_zeros, write
from kdissect.arrays.mixing import mixed
from kdissect.kafka.completed import Connections, Problems
from kdissect.kafka.protocols import KAFKA, NAMES, TLS, name_of
from kdissect.kernels.structs import Records, Words
from kdissect.net.segment import FILE_SHIFT, FLOW
from kdissect.problems import Kind
from kdissect.tcp.layout import NULL
from kdissect.tcp.roundtrip import REMOVED

TLS_ALERT = 0x1503
"""The first two bytes of a TLS record that is an alert (RFC 8446, section 5.1)."""

EXPECTED = "expected"
"""In the place of a TLS version: the broker expects TLS, and the client speaks plaintext."""

_EMPTY: dict[str, type] = {
    "id": np.uint64, "capture": np.int32, "client_hi": np.uint64, "client_lo": np.uint64, "broker_hi": np.uint64,
    "broker_lo": np.uint64, "client_port": np.uint16, "broker_port": np.uint16, "started": np.int64, "lasted": np.int64,
    "start_seen": np.bool_, "end_reason": np.int8, "closed_by": np.int8, "is_kafka": np.bool_, "protocol": np.int16,
    "tls": np.int16,
    "packets": np.uint32, "bytes": np.int64, "retransmitted_bytes": np.int64, "duplicated_packets": np.int32,
    "out_of_order_packets": np.int32, "missing_bytes": np.int64, "zero_window_ns": np.int64, "rtt_ns": np.int64,
    "rtt_min_ns": np.int64, "rtt_max_ns": np.int64, "client_rtt_ns": np.int64, "rtt_kind": np.int8,
    "lost_segments": np.int32, "acks_removed": np.bool_, "no_bare_acks": np.bool_,
    "exchanges": np.int32, "problems": np.int32,
}  # fmt: skip
"""What stays of a finished connection: the only state that grows with what was read. Zeros are not written, so that a
column in which there is nothing else takes no memory: 165 bytes at most, 102 of an IPv4 connection without loss, 47 of
one that was never used."""

PROBLEMS = 1 << 16
"""Rows of problems put into words at a time: some ten MB."""

_TOLD = ("sasl_mechanism", "principal", "sni")
"""What few connections tell, by their row."""


class CarriedConnections(NamedTuple):
    """Connections of a ledger, a row each, for another one."""

    columns: dict[str, npt.NDArray[Any]]
    """All columns of `Connections`."""
    client: npt.NDArray[np.int8]
    """Direction of requests, -1 unknown."""
    told: dict[str, dict[int, str]]
    """What few connections tell, by their row."""


def connection_id(capture: str, flows: Words, first: Words, sequence: Words) -> npt.NDArray[np.uint64]:
    """Ids from what a connection is known by: capture, 4-tuple (rows of flows), time (ns) and sequence number of its
    first packet."""
    seed = int.from_bytes(blake2b(capture.encode(), digest_size=8).digest(), "big")
    return mixed(*flows.T, first, sequence, seed=seed)


def timed(times: Words) -> Words:
    """The times, NULL where a packet carried none (pcapng's simple packets): the reader leaves those at the epoch."""
    return np.where(times == 0, NULL, times) if (times == 0).any() else times


def _answered_only(rows: Records) -> npt.NDArray[np.bool_]:
    """Whether of a finished connection only what the broker sent was captured, from its SYN on."""
    at = np.arange(len(rows))
    asks = np.maximum(rows["client"], 0)
    both = rows["directions"]
    from_its_syn = (both["started"][at, 1 - asks] == 2) & (both["bytes"][at, 1 - asks] > 0)
    only: npt.NDArray[np.bool_] = (rows["client"] >= 0) & (both["packets"][at, asks] == 0) & from_its_syn
    return only


def _closed_by(rows: Records) -> Words:
    """`Connections.closed_by` of finished connections."""
    client, closer = rows["client"], rows["closer"]
    return np.where((client < 0) | (closer <= 0), 0, np.where(closer - 1 == client, 1, 2))


def _round_trips(rows: Records) -> dict[str, Words]:
    """Columns of `Connections` that tell round trips, of finished connections."""
    at = np.arange(len(rows))
    known = rows["client"] >= 0
    asks = np.maximum(rows["client"], 0)
    floors, kinds = rows["directions"]["floor"], rows["directions"]["floor_kind"]
    floor = np.where(known, floors[at, asks], floors.max(axis=1))
    order = np.argsort(rows["rounds"], axis=1, kind="stable")
    counts = np.cumsum(np.take_along_axis(rows["rounds_count"], order, 1), axis=1)
    middle = (2 * counts >= counts[:, -1:]).argmax(axis=1)
    median = rows["rounds"][at, order[at, middle]]
    answered = counts[:, -1] > 0
    return {
        "rtt_ns": np.where(answered, median, floor) + 1,
        "rtt_min_ns": np.where(answered, rows["round_min"], floor) + 1,
        "rtt_max_ns": np.where(answered, rows["round_max"], floor) + 1,
        "client_rtt_ns": np.where(known, floors[at, 1 - asks], -1) + 1,
        "rtt_kind": np.where(known & (floor >= 0), kinds[at, asks], -1),
    }


_FOUND = np.dtype(
    [("kind", "i1"), ("stream", "i1"), ("conn", "i4"), ("position", "u4"), ("at", "i8"), ("packet", "i8"),
     ("bytes", "i8"), ("detail", "i8")]
)  # fmt: skip
"""A problem that a stream kernel found, 42 bytes. Its words are made when it is shown: a lossy capture has millions."""
_STREAMS = ("stream", "request stream", "response stream")


_NOTED = np.dtype(
    [("kind", "i1"), ("capture", "i4"), ("conn", "i4"), ("n", "i8"), ("is_orphan", "?"), ("at", "i8"),
     ("packet", "i8"), ("where", "i4"), ("detail", "i4"), ("bytes", "i8")]
)  # fmt: skip
"""A problem noted in words, as columns of `Problems`."""
PACKED = 4096
"""Problems noted before they are packed."""


def _noted_problems(rows: npt.NDArray[Any], names: list[str]) -> Problems:
    """Rows of _NOTED; `names`: the texts of all problems."""
    columns: dict[str, Any] = {name: np.ascontiguousarray(rows[name]) for name in _NOTED.names or ()}
    return Problems(**columns, texts=names)


def _found_problems(rows: npt.NDArray[Any], capture: int) -> Problems:
    """Rows of _FOUND of a capture, with their words."""
    texts: dict[str, int] = {}
    where, detail = [], []
    columns_told = ["kind", "stream", "position", "bytes", "detail", "packet"]
    for kind, stream, position, size, told, packet in rows[columns_told].tolist():
        text = f"{_STREAMS[stream]}, sequence number {position}"
        where.append(texts.setdefault(text, len(texts)))
        if kind == Kind.CONFLICTING_RETRANSMISSION:
            told = _frame(told, packet)
        text = _DETAIL.get(Kind(kind), "").format(size=size, detail=told)
        detail.append(texts.setdefault(text, len(texts)))
    n = len(rows)
    columns: dict[str, Any] = {
        name: np.ascontiguousarray(rows[name]) for name in ("kind", "conn", "at", "packet", "bytes")
    }
    return Problems(
        **columns, capture=np.full(n, capture, np.int32), n=np.full(n, -1, np.int64), is_orphan=np.zeros(n, np.bool_),
        where=np.array(where, np.int32), detail=np.array(detail, np.int32), texts=list(texts),
    )  # fmt: skip


def _frame(before: int, packet: int) -> str:
    """How a packet is called next to another one: by its file too, where that is not the same."""
    number, file = before & ((1 << FILE_SHIFT) - 1), before >> FILE_SHIFT
    return str(number) if file == packet >> FILE_SHIFT else f"{number} of file {file + 1}"


class Ledger:
    """Connections and problems of a run over one or more captures."""

    def __init__(self, captures: list[str], files: list[list[str]]) -> None:
        columns: dict[str, Any] = {name: np.zeros(0, kind) for name, kind in _EMPTY.items()}
        self.connections = Connections(captures=captures, files=files, protocols=list(NAMES), **columns)
        self._room: dict[str, npt.NDArray[Any]] = {name: lazy_zeros(256, kind) for name, kind in _EMPTY.items()}
        self._client = np.full(256, -1, np.int8)
        """Direction of requests by connection, -1 unknown."""
        self.base = 0
        """Row of the first connection of the capture that is read now."""
        self.capture = 0
        self._noted: list[tuple[int, int, int, int, bool, int, int, int, int, int]] = []
        """The problems noted last, as rows of _NOTED."""
        self._texts: dict[str, int] = {}
        self._found_problems: list[tuple[int, npt.NDArray[Any]]] = []
        """All others, in the order in which they came: a capture and rows of _FOUND, or -1 and rows of _NOTED."""

    def begin(self, capture: int) -> None:
        """The next capture's connections follow."""
        self.capture = capture
        self.base = len(self.connections)

    # ---- connections

    def carried(self, rows: Words) -> CarriedConnections:
        """A copy of these connections for another ledger, which goes on with them as its first ones, in this order."""
        places = {row: place for place, row in enumerate(rows.tolist())}
        told = {
            name: {places[row]: text for row, text in getattr(self.connections, name).items() if row in places}
            for name in _TOLD
        }
        return CarriedConnections({name: a[rows] for name, a in self._room.items()}, self._client[rows], told)

    def go_on(self, carried: CarriedConnections) -> None:
        """Go on from what another ledger carried; this one knows no connections yet."""
        self._append(carried.columns.items(), carried.client, carried.told)

    def absorb(self, ledger: Ledger) -> int:
        """Take over all connections and problems of another ledger of the same captures, and empty it; returns the row
        here of its first connection."""
        count = len(ledger.connections)
        protocols = self.connections.protocols
        protocols += [name for name in ledger.connections.protocols if name not in protocols]
        places = np.array([*(protocols.index(name) for name in ledger.connections.protocols), -1], np.int16)

        empty = not len(self.connections)

        def columns() -> Iterator[tuple[str, npt.NDArray[Any]]]:
            for name in _EMPTY:
                column = ledger._room.pop(name)
                column = column if empty else column[:count]
                delattr(ledger.connections, name)
                yield name, places[column] if name in ("protocol", "tls") else column

        told = {name: getattr(ledger.connections, name) for name in _TOLD}
        first = self._append(columns(), ledger._client[:count], told)
        self._pack()
        ledger._pack()
        codes = np.array([self._texts.setdefault(text, len(self._texts)) for text in ledger._texts], np.int32)
        for problem_capture, problems in ledger._found_problems:
            problems["conn"] += np.where(problems["conn"] < 0, 0, first).astype(np.int32)
            for name in ("where", "detail") if problem_capture < 0 else ():
                problems[name] = codes[problems[name]]
            self._found_problems.append((problem_capture, problems))
        return first

    def add(self, carried: CarriedConnections) -> None:
        """Enter connections that another ledger carried, as the next ones of the capture that is read now; problems
        of theirs are counted from here on."""
        columns = {**carried.columns, "problems": np.zeros(len(carried.client), _EMPTY["problems"])}
        self._append(columns.items(), carried.client, carried.told)

    def _append(
        self,
        columns: Iterable[tuple[str, npt.NDArray[Any]]],
        client: npt.NDArray[np.int8],
        text_columns: Mapping[str, Mapping[int, str]],
    ) -> int:
        """Connections of another ledger behind those that are known: all columns of _EMPTY, one after the other, the
        direction of requests, and what few of them tell. The row of the first."""
        first = len(self.connections)
        size = first + len(client)
        rows = np.arange(first, size)
        for name, column in columns:
            if first == 0 and len(column) > size:  # nothing is here: take it as it is
                self._room[name] = column
            else:
                self._room[name] = grown(self._room[name], size)
                write(self._room[name], rows, column)
            setattr(self.connections, name, self._room[name][:size])
        self._client = grown(self._client, size)
        self._client[first:size] = client
        for name, texts in text_columns.items():
            getattr(self.connections, name).update({row + first: text for row, text in texts.items()})
        return first

    def enter(self, rows: Records, flows: Words) -> None:
        """Enter the connections among `rows` (structs), new ones and ones whose client was found since; `flows` is the
        table of flows."""
        if not len(rows):
            return
        number = rows["number"] + self.base
        size = int(number.max()) + 1
        known = len(self.connections)
        flow = flows[rows["flow"]]
        if size > known:
            for name, array in self._room.items():
                self._room[name] = array = grown(array, size)
                setattr(self.connections, name, array[:size])
            self._client = grown(self._client, size)
            fresh = number >= known
            first, sequence = rows["first"][fresh], rows["sequence"][fresh]
            capture = self.connections.captures[self.capture]
            room = self._room
            room["id"][number[fresh]] = connection_id(capture, flow[fresh], first, sequence)
            room["started"][number[fresh]] = timed(first)
            write(room["capture"], number[fresh], self.capture)
            room["tls"][number[fresh]] = -1
        self._sides(number, flow, rows)

    def _sides(self, number: Words, flow: Words, rows: Records) -> None:
        """The client's and the server's endpoint: as found, else (no request was ever seen) the client is the one with
        the larger port."""
        room = self._room
        port_a, port_b = flow[:, FLOW.ports] >> 16, flow[:, FLOW.ports] & 0xFFFF
        client = rows["client"]
        self._client[number] = client
        a_asks = np.where(client >= 0, client == 0, port_a >= port_b)
        for name, a, b in (("hi", FLOW.a_high, FLOW.b_high), ("lo", FLOW.a_low, FLOW.b_low)):
            left, right = flow[:, a].astype(np.uint64), flow[:, b].astype(np.uint64)
            write(room["client_" + name], number, np.where(a_asks, left, right))
            write(room["broker_" + name], number, np.where(a_asks, right, left))
        room["client_port"][number] = np.where(a_asks, port_a, port_b)
        room["broker_port"][number] = np.where(a_asks, port_b, port_a)

    def close(self, rows: Records) -> None:
        """Final times and counters of finished connections, which were entered."""
        if not len(rows):
            return
        number = rows["number"] + self.base
        room = self._room
        both = rows["directions"]

        def total(field: str) -> Words:
            summed: Words = both[field].sum(axis=1)
            return summed

        write(room["lasted"], number, np.where(rows["last"] == 0, -1, rows["last"] - rows["first"]))
        write(room["start_seen"], number, (rows["start_seen"] == 1) | _answered_only(rows))
        write(room["end_reason"], number, rows["end"])
        write(room["closed_by"], number, _closed_by(rows))
        write(room["is_kafka"], number, rows["kafka"] == 1)
        room["packets"][number] = total("packets")
        write(room["bytes"], number, total("bytes"))
        write(room["retransmitted_bytes"], number, total("retransmitted"))
        write(room["duplicated_packets"], number, rows["duplicates"])
        write(room["out_of_order_packets"], number, total("out_of_order"))
        write(room["missing_bytes"], number, total("missing_total"))
        write(room["exchanges"], number, rows["exchanges"])
        write(room["problems"], number, room["problems"][number] + rows["problems"])
        since = both["zero_since"]
        still = np.where(since != NULL, np.maximum(rows["last"][:, None] - since, 0), 0).sum(axis=1)
        write(room["zero_window_ns"], number, total("zero_total") + still)
        write(room["lost_segments"], number, total("lost_segments"))
        bareless = total("bares") == 0
        write(room["no_bare_acks"], number, bareless)
        write(room["acks_removed"], number, (both["late"].max(axis=1) >= REMOVED) & bareless)
        for name, figure in _round_trips(rows).items():
            write(room[name], number, figure)
        protocol = np.full(len(rows), -1, np.int32)
        protocol[rows["kafka"] == 1] = KAFKA
        other = np.flatnonzero(rows["kafka"] != 1)
        if len(other):
            begins = np.stack([both[word][other] for word in ("begin16a", "begin16b")], axis=2)
            distinct, inverse = np.unique(begins.reshape(len(other), 4), axis=0, return_inverse=True)
            names = np.array([name_of(*(int(x) for x in row)) for row in distinct], np.int32)
            protocol[other] = names[inverse.reshape(-1)]
        sealed = (rows["sealed"] == 1) & (protocol < 0)
        room["protocol"][number] = np.where(sealed, TLS, protocol)
        asked = (rows["kafka"] == 1) & (rows["client"] >= 0)
        answer = both["begin16a"][np.arange(len(rows)), 1 - np.maximum(rows["client"], 0)]
        for i in np.flatnonzero(asked & (answer >> 48 == TLS_ALERT)).tolist():
            detail = "the broker answers with a TLS alert: the client speaks plaintext to a port for TLS"
            self.note(Kind.TLS, "response stream", detail, conn=int(number[i]), at=int(rows["last"][i]))
            self.encrypted(int(number[i]), EXPECTED, None)

    def close_silent(self, rows: Records) -> None:
        """Final times and counters of connections of one packet that says nothing (`SILENT`), which were entered."""
        if not len(rows):
            return
        number = rows["number"] + self.base
        room = self._room
        write(room["lasted"], number, np.where(rows["first"] == 0, -1, 0))
        write(room["start_seen"], number, rows["start_seen"] == 1)
        write(room["end_reason"], number, rows["end"])
        room["packets"][number] = 1
        write(room["bytes"], number, rows["bytes"])
        for name in ("rtt_kind", "protocol"):
            write(room[name], number, -1)

    def encrypted(self, conn: int, version: str | None, sni: str | None) -> None:
        """The connection (a row of connections) is TLS of that version, where it is known, for that server name."""
        names = self.connections.protocols
        name = version or "TLS"
        if self._room["tls"][conn] < 0 or names[self._room["tls"][conn]] != name:
            if name not in names:
                names.append(name)
            self._room["tls"][conn] = names.index(name)
        if sni is not None:
            self.connections.sni[conn] = sni

    # ---- problems

    def note_of_run(self, kind: Kind, where: str, detail: str) -> None:
        """One row of problems about everything that was read; of several captures it names none."""
        capture, self.capture = self.capture, 0 if len(self.connections.captures) == 1 else -1
        self.note(kind, where, detail)
        self.capture = capture

    def note(
        self, kind: Kind, where: str, detail: str, *, conn: int = -1, n: int = -1, orphan: bool = False,
        at: int = NULL, packet: int = -1, size: int = -1,
    ) -> None:  # fmt: skip
        """One row of problems. `conn` is a row of connections."""
        texts = self._texts
        place, said = texts.setdefault(where, len(texts)), texts.setdefault(detail, len(texts))
        self._noted.append((int(kind), self.capture, conn, n, orphan, at, packet, place, said, size))
        if len(self._noted) >= PACKED:
            self._pack()
        if conn >= 0:
            self._room["problems"][conn] += 1

    def stream_problems(self, rows: Records) -> None:
        """Problem rows of the stream kernels, whose connections were entered."""
        if not len(rows):
            return
        self._pack()
        conn = rows["connection"] + self.base
        client = self._client[conn]
        found = np.empty(len(rows), _FOUND)
        found["stream"] = np.where(client < 0, 0, np.where(client == rows["direction"], 1, 2))
        found["conn"] = conn
        for name in ("kind", "packet", "bytes", "detail"):
            found[name] = rows[name]
        found["position"] = rows["position"] & 0xFFFFFFFF
        found["at"] = np.where(rows["time"] == 0, NULL, rows["time"])
        self._found_problems.append((self.capture, found))

    def problems(self) -> Iterator[Problems]:
        """All rows so far, in the order in which they came, some thousands at a time: their texts are long."""
        self._pack()
        names = list(self._texts)
        for capture, rows in self._found_problems:
            for first in range(0, len(rows), PROBLEMS):
                part = rows[first : first + PROBLEMS]
                yield _noted_problems(part, names) if capture < 0 else _found_problems(part, capture)

    @property
    def problem_rows(self) -> int:
        """How many rows of problems there are so far."""
        return len(self._noted) + sum(len(rows) for _, rows in self._found_problems)

    def _pack(self) -> None:
        """Problems noted so far, as an array."""
        if self._noted:
            self._found_problems.append((-1, np.array(self._noted, _NOTED)))
            self._noted = []


_DETAIL = {
    Kind.MISSING_BYTES: "{size} bytes were sent but not captured",
    Kind.RESYNCHRONISED: "the next frame was found {size} bytes later",
    Kind.NOT_RESYNCHRONISED: "no frame was found in the last {size} bytes",
    Kind.BAD_LENGTH: "no frame can have length {detail}",
    Kind.UNFINISHED_FRAME: "the stream ends {size} bytes before its last frame does",
    Kind.ORPHAN_RESPONSE: "a response of {size} bytes with correlation id {detail}, whose request was not captured",
    Kind.ANSWER_FIRST: "a response of {size} bytes with correlation id {detail} was captured before its request",
    Kind.CONFLICTING_RETRANSMISSION: "{size} bytes differ from those of frame {detail}, which are read",
    Kind.SNAPPED: "the snap length cut off {size} bytes, a length prefix among them",
    Kind.UNPROVED: "{size} bytes may be responses, and no message of this connection is sure to be Kafka's",
    Kind.BAD_HEADER: "a frame of {size} bytes whose header cannot be read",
}

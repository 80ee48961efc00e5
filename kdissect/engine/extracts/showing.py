"""Single exchanges with their bytes explained: what `show` prints.

One pass over the captures, as for a table. Where an exchange that is asked for is finished, its frames are copied as
they were on the wire. So that an exchange can be found by its frame number or by the beginning of its id, candidates
are taken along and sorted out at the end.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from kdissect.analysis.ledger.time_ledger import time_ledger
from kdissect.analysis.sessions.membership import implied
from kdissect.capture import CaptureSet
from kdissect.engine.analysed_run import AnalysedRun
from kdissect.engine.books import Books
from kdissect.engine.inputs import CaptureFiles
from kdissect.engine.run import Run
from kdissect.engine.settings import Settings
from kdissect.kafka.completed import FILE_SHIFT
from kdissect.kafka.exchanges.completion import Completion
from kdissect.kafka.exchanges.frame_bytes import Absent, Target, collect, read_again, room_for_pieces
from kdissect.kafka.recordsets.batch_explanation import expand
from kdissect.kafka.streams.dissector import Dissector, Harvest
from kdissect.kafka.streams.state import SIDES, TOKEN, Exchange
from kdissect.kernels.structs import Records, rows_of
from kdissect.problems import UsageError
from kdissect.schema.explain import explain_frame, table
from kdissect.tables.declaration import SCHEMAS
from kdissect.tables.declaration.readers import BUDGET, MEMBERSHIP
from kdissect.tables.identity import exchange_ids

MOST = 64
"""Exchanges shown at most: one frame rarely completes more, and a prefix that fits more tells nothing."""
PIECES = 1 << 16
"""Pieces of a frame that are read again at a time: a frame of 100 MB in packets of 1,500 bytes has as many."""

_ID = re.compile(r"(?P<connection>[0-9a-fA-F]{1,16}):(?P<orphan>r?)(?P<n>\d{1,18})")


@dataclass(slots=True)
class Shown:
    """One exchange, byte by byte."""

    exchange: dict[str, Any]
    """Its row of `exchanges`."""
    request: pa.Table | None = None
    """The request explained (see `kdissect.explain`; offsets count from the length prefix); None when not captured
    whole."""
    response: pa.Table | None = None
    request_data: bytes = b""
    """Bytes of the request with its length prefix, as on the wire, zeros for credentials and for what records
    hold that is not revealed."""
    response_data: bytes = b""
    notes: list[str] = field(default_factory=list)
    """What else is to be said of it, a sentence each."""
    session: dict[str, Any] | None = None
    """Of an incremental Fetch of a known session, its row of `fetches` (the columns in MEMBERSHIP)."""
    owners: dict[str, float] = field(default_factory=dict)
    """Whose its time was, in ms by owner as the ledger has them; they add up to its latency. Empty without one."""
    implied: pa.Table | None = None
    """The partitions that it covers without naming them, as `analysis.sessions.membership.implied` has them."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The exchange asked for: beginning and end of its id, or the number of the frame that completed its message."""

    connection: str = ""
    orphan: bool = False
    n: int = -1
    frame: int = -1

    def among(self, ids: npt.NDArray[np.uint64], rows: Records) -> npt.NDArray[np.intp]:
        """Places of finished exchanges (`Exchange`, with the ids of their connections) that may be meant."""
        if self.frame >= 0:
            mask = (1 << FILE_SHIFT) - 1
            packets = np.stack([rows[side]["packet"] for side in SIDES], axis=1)
            return np.flatnonzero((((packets & mask) == self.frame) & (packets >= 0)).any(axis=1))
        shift = np.uint64(64 - 4 * len(self.connection))
        begins = (ids >> shift) == np.uint64(int(self.connection, 16))
        return np.flatnonzero(begins & (rows["n"] == self.n) & ((rows["orphan"] == 1) == self.orphan))


@dataclass(frozen=True, slots=True)
class Several:
    """Several exchanges, by whole ids."""

    exchanges: frozenset[tuple[int, bool, int]]
    """Connection, whether it is an orphan, ordinal."""
    connections: npt.NDArray[np.uint64]

    @classmethod
    def of(cls, ids: Sequence[str]) -> Several:
        """By their ids; what is no id is left out."""
        found = [match for match in map(_ID.fullmatch, ids) if match is not None]
        keys = frozenset((int(one["connection"], 16), bool(one["orphan"]), int(one["n"])) for one in found)
        return cls(keys, np.array(sorted({key[0] for key in keys}), np.uint64))

    def among(self, ids: npt.NDArray[np.uint64], rows: Records) -> npt.NDArray[np.intp]:
        """Places of those that are meant."""
        near = np.flatnonzero(np.isin(ids, self.connections))
        orphan, n = rows["orphan"] == 1, rows["n"]
        meant = [(int(ids[i]), bool(orphan[i]), int(n[i])) in self.exchanges for i in near.tolist()]
        return near[np.array(meant, np.bool_)]


def show_several(captures: Sequence[CaptureSet], settings: Settings, ids: Sequence[str]) -> dict[str, Shown]:
    """The exchanges of these ids byte by byte, at most MOST, in one pass more; of their rows exchange_id, api,
    api_version and status, and without their sessions."""
    showing = _Showing(captures, settings, Several.of(ids))
    books = Books(captures, {"exchanges": ["exchange_id", "api", "api_version", "status"]}, settings)
    wanted_ids = pa.array(list(ids), pa.string())
    found = {}
    for part in Run(books, showing).rows():
        rows = books.builder.resolved("exchanges", part.tables["exchanges"]) if "exchanges" in part.tables else None
        if rows is not None and rows.num_rows:
            kept = rows.filter(pc.is_in(rows["exchange_id"], wanted_ids)).to_pylist()
            found.update({row["exchange_id"]: row for row in kept})
    for name, shown in showing.found.items():
        shown.exchange = found[name]
    return showing.found


def parse_target(exchange_id: str | None, frame: int | None) -> Wanted:
    """The exchange or frame that is asked for. Raises UsageError for a text that is no exchange id."""
    if (exchange_id is None) == (frame is None):
        raise UsageError("show one exchange: by its id, or by the number of a frame")
    if exchange_id is None:
        if int(frame or 0) < 1:
            raise UsageError(f"frames are numbered from 1: there is none with the number {frame}")
        return Wanted(frame=int(frame or 0))
    found = _ID.fullmatch(exchange_id)
    if found is None:
        raise UsageError(f"{exchange_id!r} is no exchange id, such as 3f2a:12")
    return Wanted(found["connection"].lower(), bool(found["orphan"]), int(found["n"]))


def show(captures: Sequence[CaptureSet], settings: Settings, target: Wanted, reveal: bool = False) -> list[Shown]:
    """The exchange asked for; by frame, all that this frame completed. `reveal`: with keys, values and headers of
    records.

    Raises UsageError when there is none, or when the beginning of an id fits several connections.
    """
    read = {
        "exchanges": SCHEMAS["exchanges"].names,
        **{name: list(columns) for name, columns in MEMBERSHIP.tables.items()},
    }
    read["fetches"] = list(dict.fromkeys([*read["fetches"], *BUDGET.tables["fetches"]]))
    showing = _Showing(captures, settings, target, reveal)
    analysed = AnalysedRun(captures, read, settings, showing)
    parts: dict[str, list[pa.Table]] = {}
    sessions: set[str | None] = set()
    for part in analysed.parts():
        for table_name, key, values in (
            ("exchanges", "exchange_id", showing.found),
            ("fetches", "exchange_id", showing.found),
            ("fetch_partitions", "exchange_id", showing.found),
            ("session_partitions", "session_key", sessions),
        ):
            wanted_rows = pc.is_in(part[table_name][key], pa.array(list(values), pa.string()))
            kept = part[table_name].filter(wanted_rows)
            if kept.num_rows:
                parts.setdefault(table_name, []).append(kept)
            if table_name == "fetches":
                sessions.update(kept["session_key"].to_pylist())
    tables = {key: analysed.builder.finished(key, parts.get(key, [])) for key in read}
    rows = tables["exchanges"].to_pylist()
    name = (
        f"frame {target.frame}"
        if target.frame >= 0
        else f"{target.connection}:{'r' if target.orphan else ''}{target.n}"
    )
    if not rows:
        what = "completes no Kafka request or response" if target.frame >= 0 else "is no exchange of this capture"
        raise UsageError(f"{name} {what}")
    if target.frame < 0 and len(rows) > 1:
        raise UsageError(f"{name} fits {len(rows)} connections: {', '.join(row['exchange_id'] for row in rows[:4])}")
    incremental = {row["exchange_id"]: row for row in tables["fetches"].to_pylist() if row["session_key"]}
    for row in rows:
        shown = showing.found[row["exchange_id"]]
        shown.exchange = row
        shown.owners = owners_of(row["exchange_id"], tables) if row["latency_ms"] is not None else {}
        fetch = incremental.get(row["exchange_id"])
        if fetch is not None and fetch["request_kind"] == "incremental":
            shown.session = fetch
            shown.implied = implied(
                row["exchange_id"], tables["fetches"], tables["fetch_partitions"], tables["session_partitions"]
            )
    return [showing.found[row["exchange_id"]] for row in rows]


def owners_of(exchange_id: str, tables: Mapping[str, pa.Table]) -> dict[str, float]:
    """Milliseconds of an exchange by owner, the largest first: its own interval of the ledger of its connection.

    `tables`: `exchanges` and `fetches` with what the ledger reads.
    """
    mine = {name: table.filter(pc.equal(table["exchange_id"], exchange_id)) for name, table in tables.items()
            if name in ("exchanges", "fetches")}  # fmt: skip
    intervals = time_ledger({**mine, "connections": SCHEMAS["connections"].empty_table()}, ("connection",))
    spent: dict[str, float] = {}
    for row in intervals.select(["owner", "at", "until"]).to_pylist():
        took = (row["until"] - row["at"]).total_seconds() * 1000
        spent[row["owner"]] = spent.get(row["owner"], 0.0) + took
    return dict(sorted(spent.items(), key=lambda one: -one[1]))


def _without_secrets(data: bytes, explained: Sequence[Mapping[str, Any]]) -> bytes:
    """The frame with zeros where credentials are."""
    out = bytearray(data)
    for row in explained:
        if row["hidden"] and row["offset"] is not None:
            out[row["offset"] : row["offset"] + row["length"]] = bytes(row["length"])
    return bytes(out)


class _Showing(CaptureFiles):
    """Copies the frames of the exchanges asked for as they are finished; `found`: those copied so far, by id."""

    def __init__(
        self, captures: Sequence[CaptureSet], settings: Settings, asked: Wanted | Several, reveal: bool = False
    ) -> None:
        super().__init__(captures, settings.after, settings.before)
        self.asked, self.reveal = asked, reveal
        self.found: dict[str, Shown] = {}

    @contextmanager
    def completing(self, harvest: Harvest, completion: Completion) -> Iterator[None]:
        """See Inputs."""
        if len(harvest.exchanges):
            self._copy(harvest.exchanges, completion.dissector, completion)
        yield

    def _copy(self, rows: Records, dissector: Dissector, completion: Completion) -> None:
        """Copy the frames of those rows that are asked for."""
        ledger = completion.ledger
        ids = ledger.connections.id[rows["connection"] + ledger.base]
        for i in self.asked.among(ids, rows)[: MOST - len(self.found)].tolist():
            row = rows[i]
            one = slice(i, i + 1)
            name = exchange_ids(ids[one], rows["n"][one], rows["orphan"][one] == 1)[0].as_py()
            shown = Shown({})
            key, version = (int(k) if k >= 0 else None for k in (row.api, row.version))
            asked: bytes | None = None
            for side, word in enumerate(SIDES):
                data = self._frame(row, i, side, word, shown, dissector, completion)
                if data is not None:
                    explained = expand(explain_frame(data, side, key, version, asked), data, reveal=self.reveal)
                    setattr(shown, word, table(explained))
                    setattr(shown, f"{word}_data", _without_secrets(data, explained))
                asked = data
            self.found[name] = shown

    def _frame(
        self, row: Exchange, i: int, side: int, word: str, exchange: Shown,
        dissector: Dissector, completion: Completion,
    ) -> bytes | None:  # fmt: skip
        """One frame with its length prefix; None, with a note, where its bytes are not all there."""
        frame = row.response if side else row.request
        size, missing, cut = int(frame.bytes), int(frame.missing), int(frame.cut)
        if row.status == TOKEN:
            exchange.notes.append(f"the {word} is a bare SASL token")
            return None
        if size < 4:
            return None
        if missing or cut:
            what = [f"{missing} bytes were never captured"] * bool(missing) + [f"{cut} bytes were cut off"] * bool(cut)
            exchange.notes.append(f"of the {word}'s {size} bytes, {' and '.join(what)}")
            return None
        need = np.zeros((i + 1, 2), np.bool_)
        need[i, side] = True
        begin, end = np.zeros((i + 1, 2), np.int64), np.zeros((i + 1, 2), np.int64)
        data = np.zeros(size, np.uint8)
        absent = room_for_pieces(PIECES, size)
        room = Target(data, 4, size, True)
        _, again, _ = collect(dissector.M, dissector.window.data, dissector.A, i, i + 1, need, room, begin, end, absent)
        pieces = rows_of(Absent, absent[:again])
        if again and not (completion.reader.rereadable and (pieces["at"] >= 0).all()):
            exchange.notes.append(f"the {word}'s bytes went by, and this input cannot be read again")
            return None
        read_again(completion.reader, pieces, data)
        data[:4] = np.frombuffer(struct.pack(">i", size - 4), np.uint8)
        return data.tobytes()

"""The `groups` table: what happens to consumer, share and streams groups, one row an event.

An event is an exchange of a group API. An OffsetFetch for several groups (v8 and later) and a LeaveGroup of several
members (v3 and later) give a row for each. Heartbeats of classic groups come every few seconds and say nothing unless
they carry an error, so only those with an error are events. The heartbeats of the newer protocols carry the group's
whole life and are all events.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from kdissect.arrays.from_numpy import arrow_array
from kdissect.kafka.exchanges.payloads import decoded
from kdissect.schema.apikeys import ApiKey
from kdissect.tables.apinames import error_column
from kdissect.tables.declaration.model import ASSIGNMENT, CODE, TEXT
from kdissect.tables.exchanges import error_codes
from kdissect.tables.identity import dictionary
from kdissect.tables.makers import makes
from kdissect.tables.nest import Int64s, Level, optional, pick
from kdissect.tables.partitions import Side, keys, locate
from kdissect.tables.table_block import Block, Column, Rows, instant


class Event(NamedTuple):
    """How the event of one API is read. Paths are of the request, those in `answer_*` of the response; "" none.

    With `each`, the request holds a list of such name whose elements are the events (in versions that have it). An
    element's own fields are read first, the request's where they are null. `match` is the element field that the
    response repeats.
    """

    key: int
    name: str
    protocol: str
    group: str = "group_id"
    member: str = "member_id"
    generation: str = ""
    protocol_type: str = ""
    assignor: str = ""
    reason: str = ""
    answer_member: str = ""
    answer_generation: str = ""
    answer_type: str = ""
    answer_assignor: str = ""
    answer_assignment: str = ""
    each: str = ""
    match: str = ""
    only_errors: bool = False


EVENTS: tuple[Event, ...] = (
    Event(
        ApiKey.JOIN_GROUP,
        "join",
        "classic",
        protocol_type="protocol_type",
        reason="reason",
        answer_member="member_id",
        answer_generation="generation_id",
        answer_type="protocol_type",
        answer_assignor="protocol_name",
    ),
    Event(
        ApiKey.SYNC_GROUP,
        "sync",
        "classic",
        generation="generation_id",
        protocol_type="protocol_type",
        assignor="protocol_name",
        answer_type="protocol_type",
        answer_assignor="protocol_name",
        answer_assignment="assignment",
    ),
    Event(ApiKey.HEARTBEAT, "heartbeat", "classic", generation="generation_id", only_errors=True),
    Event(ApiKey.LEAVE_GROUP, "leave", "classic", each="members", match="member_id", reason="reason"),
    Event(ApiKey.OFFSET_COMMIT, "offset_commit", "", generation="generation_id_or_member_epoch"),
    Event(ApiKey.TXN_OFFSET_COMMIT, "txn_offset_commit", "", generation="generation_id_or_member_epoch"),
    Event(ApiKey.OFFSET_FETCH, "offset_fetch", "", member="", generation="", each="groups", match="group_id"),
    Event(
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
        "consumer_heartbeat",
        "consumer",
        generation="member_epoch",
        assignor="server_assignor",
        answer_member="member_id",
        answer_generation="member_epoch",
        answer_assignment="assignment.topic_partitions",
    ),
    Event(
        ApiKey.SHARE_GROUP_HEARTBEAT,
        "share_heartbeat",
        "share",
        generation="member_epoch",
        answer_member="member_id",
        answer_generation="member_epoch",
        answer_assignment="assignment.topic_partitions",
    ),
    Event(
        ApiKey.STREAMS_GROUP_HEARTBEAT,
        "streams_heartbeat",
        "streams",
        generation="member_epoch",
        answer_member="member_id",
        answer_generation="member_epoch",
    ),
)

ELEMENT_FIELDS: dict[int, tuple[str, ...]] = {
    ApiKey.LEAVE_GROUP: ("member_id", "reason"),
    ApiKey.OFFSET_FETCH: ("group_id", "member_id", "member_epoch"),
}
"""Fields of the elements of `Event.each`."""


def group_paths() -> dict[tuple[int, int], set[str]]:
    """The message paths that group events are read from."""
    paths: dict[tuple[int, int], set[str]] = {}
    for event in EVENTS:
        asked = {event.group, event.member, event.generation, event.protocol_type, event.assignor} - {""}
        if not event.each:
            asked |= {event.reason} - {""}
        given = {event.answer_member, event.answer_generation, event.answer_type, event.answer_assignor} - {""}
        if event.each:
            asked |= {f"{event.each}.{name}" for name in ELEMENT_FIELDS[event.key]}
            given |= {f"{event.each}.{event.match}", f"{event.each}.error_code"}
        if event.answer_assignment.endswith("topic_partitions"):
            given |= {f"{event.answer_assignment}.{name}" for name in ("topic_id", "partitions")}
        elif event.answer_assignment:
            given.add(event.answer_assignment)
        paths[event.key, 0] = asked
        if given:
            paths[event.key, 1] = given
    return paths


@makes("groups")
def groups(block: Block) -> Rows:
    """The columns of `groups`, exchanges in the block's order. Topics of assignments are not resolved yet."""
    parts = [part for event in EVENTS if len((part := _Part(block, event)).row)]
    row = np.concatenate([part.row for part in parts]) if parts else np.zeros(0, np.int64)
    order = np.argsort(row, kind="stable")
    row = row[order]

    def gather(read: Any, kind: pa.DataType) -> Column:
        def make() -> pa.Array:
            arrays = [read(part) for part in parts]
            return pa.concat_arrays(arrays).take(arrow_array(order)) if arrays else pa.nulls(0, kind)

        return make

    def errors() -> tuple[Int64s, npt.NDArray[np.bool_]]:
        if not parts:
            return np.zeros(0, np.int64), np.zeros(0, np.bool_)
        codes, known = zip(*(part.errors() for part in parts), strict=True)
        return np.concatenate(codes)[order], np.concatenate(known)[order]

    done = block.done
    makers: dict[str, Column] = {
        "exchange_id": lambda: block.exchange_id.take(arrow_array(row)),
        "at": lambda: instant(block.on_wire[row]),
        "group_id": gather(lambda part: part.request_field(part.event.group), TEXT),
        "member_id": gather(lambda part: part.member(), TEXT),
        "client_id": lambda: dictionary(done.client[row], done.client_ids),
        "protocol": gather(lambda part: part.constant(part.event.protocol or None), TEXT),
        "protocol_type": gather(lambda part: part.either(part.event.answer_type, part.event.protocol_type), TEXT),
        "assignor": gather(lambda part: part.either(part.event.answer_assignor, part.event.assignor), TEXT),
        "generation": gather(lambda part: part.generation(), CODE),
        "event": gather(lambda part: part.constant(part.event.name), TEXT),
        "reason": gather(lambda part: part.request_field(part.event.reason), TEXT),
        "error_code": lambda: optional(*errors(), CODE),
        "error": lambda: error_column(*errors()),
        "assigned_partitions": gather(lambda part: part.assignment(), ASSIGNMENT),
        "cluster": lambda: block.cluster(row),
        **block.time_columns(row),
    }
    return makers, len(row)


class _Part:
    """Rows of one event: for each its row of the block and, where the event is an element of a list, which one."""

    def __init__(self, block: Block, event: Event) -> None:
        self.block = block
        self.event = event
        rows = block.rows(event.key)
        self.request: Level = block.nest(event.key, 0)
        self.response: Level = block.nest(event.key, 1)
        self.element = np.full(len(rows), -1, np.int64)
        self.level: Level | None = None
        if event.only_errors:
            codes, known = error_codes(block)
            rows = rows[(known & (codes != 0))[rows]]
            self.element = self.element[: len(rows)]
        elif event.each and len(rows):
            self.level = self.request.each(event.each)
            inner = block.bodies(event.key, 0)[self.level.body]
            bare = self._names_group(rows[~np.isin(rows, inner)])
            rows = np.concatenate([inner, bare])
            self.element = np.concatenate([np.arange(len(inner)), np.full(len(bare), -1)])
        self.row = rows

    def _names_group(self, rows: Int64s) -> Int64s:
        """Those whose request names a group itself, or was not captured; a list of no groups is about none."""
        body = self.block.body_of(self.event.key, 0)[rows]
        group = pick(self.request.column(self.event.group, TEXT), body)
        kept: Int64s = rows[(body < 0) | np.asarray(group.is_valid())]
        return kept

    def request_field(self, path: str, kind: pa.DataType = TEXT) -> pa.Array:
        """A field of the request, or of the list element."""
        if not path:
            return pa.nulls(len(self.row), kind)
        whole = pick(self.request.column(path, kind), self.block.body_of(self.event.key, 0)[self.row])
        if self.level is None:
            return whole
        return pc.coalesce(pick(self.level.column(path, kind), self.element), whole)

    def response_field(self, path: str, kind: pa.DataType = TEXT) -> pa.Array:
        """A field of the response."""
        if not path:
            return pa.nulls(len(self.row), kind)
        return pick(self.response.column(path, kind), self.block.body_of(self.event.key, 1)[self.row])

    def either(self, answer: str, request: str, kind: pa.DataType = TEXT) -> pa.Array:
        """The value that the response has, else the one of the request."""
        return pc.coalesce(self.response_field(answer, kind), self.request_field(request, kind))

    def member(self) -> pa.Array:
        """The member: the request's word, or the answer's where the request leaves it empty (a new member)."""
        own = self.request_field(self.event.member or ("member_id" if self.event.each else ""))
        own = pc.if_else(pc.equal(own, "").fill_null(True), pa.scalar(None, TEXT), own)
        told = self.response_field(self.event.answer_member)
        told = pc.if_else(pc.equal(told, "").fill_null(True), pa.scalar(None, TEXT), told)
        return pc.coalesce(own, told)

    def generation(self) -> pa.Array:
        """The answer's generation or member epoch, unless it is an error (-1 or nothing), else the request's."""
        if self.event.key == ApiKey.OFFSET_FETCH:
            return self.request_field("member_epoch", CODE)
        codes, known = self.errors()
        told = self.response_field(self.event.answer_generation, CODE)
        told = pc.if_else(arrow_array(known & (codes == 0)), told, pa.scalar(None, CODE))
        return pc.coalesce(told, self.request_field(self.event.generation, CODE))

    def constant(self, text: str | None) -> pa.Array:
        """One text for all rows."""
        return pa.array([text], TEXT).take(arrow_array(np.zeros(len(self.row), np.int64)))

    def errors(self) -> tuple[Int64s, npt.NDArray[np.bool_]]:
        """Error code of each row, and where it is known: the element's own, else the exchange's."""
        codes, known = error_codes(self.block)
        codes, known = codes[self.row].astype(np.int64), known[self.row]
        if self.level is None:
            return codes, known
        event = self.event
        answers = self.response.each(event.each)
        inner = self.element >= 0
        ours = Side(
            self.row[inner], self.request_field(event.match).filter(arrow_array(inner)), *_blank(int(inner.sum()))
        )
        theirs_rows = self.block.bodies(event.key, 1)[answers.body]
        theirs = Side(theirs_rows, answers.column(event.match, TEXT), *_blank(len(answers)))
        own_key, their_key = keys(ours, theirs)
        place = locate(own_key, their_key)
        own = (
            np.where(place >= 0, answers.ints("error_code", 0)[place], -1) if len(answers) else np.full(len(place), -1)
        )
        top = np.asarray(self.block.done.error_code, np.int64)[self.row[inner]]
        codes[inner] = np.where(place >= 0, np.where(top > 0, top, own), codes[inner])
        return codes, known

    def assignment(self) -> pa.Array:
        """Assigned partitions that the answer carries: as they are, or inside of bytes (consumer protocol)."""
        path = self.event.answer_assignment
        found = self.response.get(path) if path else None
        if found is not None and pa.types.is_binary(found.type):
            found = pc.struct_field(decoded(found, "ConsumerProtocolAssignment"), "assigned_partitions")
        if found is None:
            return pa.nulls(len(self.row), ASSIGNMENT)
        return pick(_assignments(found), self.block.body_of(self.event.key, 1)[self.row])


def _assignments(lists: pa.Array) -> pa.Array:
    """Lists of topics (by name or by id) with their partitions, as ASSIGNMENT."""
    values = lists.values
    there = {values.type.field(i).name for i in range(values.type.num_fields)}
    fields = list(ASSIGNMENT.value_type)
    parts = [
        pc.struct_field(values, f.name).cast(f.type) if f.name in there else pa.nulls(len(values), f.type)
        for f in fields
    ]
    items = pa.StructArray.from_arrays(parts, fields=fields)
    buffers = lists.buffers()[:2]
    return pa.Array.from_buffers(ASSIGNMENT, len(lists), buffers, offset=lists.offset, children=[items])


def _blank(size: int) -> tuple[pa.Array, Int64s]:
    return pa.nulls(size, TEXT), np.zeros(size, np.int64)

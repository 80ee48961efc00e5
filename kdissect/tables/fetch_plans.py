"""Where the fields of Fetch and of Produce lie that `fetch_bodies` reads: numbers out of the schema.

A plan is a struct for each version of a message, which says of its fields of fixed size where they lie, and
whether there are those of variable size that are known. Where a schema has others there is no plan, and bodies are
decoded as all others are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kdissect.kernels.structs import rows_of, struct, view, width
from kdissect.schema import index
from kdissect.schema.apikeys import ApiKey
from kdissect.schema.library import Library
from kdissect.schema.model import NONE, SCALARS, Field, Versions

Int64s = npt.NDArray[np.int64]

ASKING, GIVING, SENDING, SENT = 1, 2, 3, 4
"""What a plan is of: a request to fetch, its answer, a request to produce, its answer."""


@struct
class Plan:
    """Where the fields of a version lie, in bytes: those of the message from its body on, those of a partition from the
    partition on. -1: the version has no such field."""

    kind: int
    """ASKING, GIVING, SENDING or SENT; -1: bodies of this version are decoded as all others are."""
    flexible: int
    """1: lengths are varints, and structs end with tags (KIP-482)."""
    head: int
    """Bytes before the list of topics; of a request to produce, before its acks or the text in front of these."""
    by_id: int
    """1: topics are named by id."""
    size: int
    """Bytes of a partition before anything of variable size."""
    replica: int
    """Replica id of a follower."""
    wait: int
    """max_wait_ms."""
    least: int
    """min_bytes."""
    isolation: int
    """Isolation level."""
    session: int
    """Session id, of requests and of answers."""
    epoch: int
    """Session epoch."""
    partition: int
    """Number of a partition, of requests and of answers."""
    offset: int
    """Offset that is asked for; of an answer to Produce that of the first record."""
    gone: int
    """1: a list of forgotten partitions follows the topics."""
    rack: int
    """1: a text follows them."""
    error: int
    """Error code of a partition."""
    high: int
    """High watermark."""
    stable: int
    """Last stable offset."""
    start: int
    """First offset of the log."""
    aborted: int
    """Bytes of an element of the list of aborted transactions; -1: there is no such list."""
    preferred: int
    """Bytes of the preferred read replica, which follows that list; 0: there is none."""
    named: int
    """1: a text stands before the acks of a request to produce."""
    listed: int
    """Bytes from these acks to the list of topics; -1: no more than the acks is read."""
    explained: int
    """1: a list of refused records and a text follow a partition that was produced to."""
    tail: int
    """Bytes behind the topics of an answer to Produce."""


plan_at = view(Plan)
PLAN_WIDTH = width(Plan)


def plans(library: Library) -> Int64s:
    """[programs, PLAN_WIDTH]: the plan of each layout, of kind -1 for those that are not read here: others than Fetch
    and Produce, those of which a version has several, and those with fields that are not known here."""
    found = np.full((len(library.identity), PLAN_WIDTH), -1, np.int64)
    rows = rows_of(Plan, found)
    others = set(library.alternative[library.alternative >= 0].tolist())
    makers = (
        (ApiKey.FETCH, 0, _asking),
        (ApiKey.FETCH, 1, _giving),
        (ApiKey.PRODUCE, 0, _sending),
        (ApiKey.PRODUCE, 1, _sent),
    )
    for key, side, make in makers:
        message = index.load().apis[key].message(side)
        mine = (library.identity[:, 0] == key) & (library.identity[:, 2] == side)
        for program in np.flatnonzero(mine & (library.alternative < 0)).tolist():
            version = int(library.identity[program, 1])
            made = None if program in others else make(message.fields, version, version in message.flexible)
            for name, value in (made or {}).items():
                rows[name][program] = value
    return found


@dataclass(frozen=True, slots=True)
class _Fixed:
    """The fields of a struct up to the first one of variable size: where they lie, how long they are, what follows."""

    at: Mapping[str, int]
    size: int
    rest: list[tuple[str, Field]]

    @classmethod
    def of(cls, fields: tuple[Field, ...], version: int) -> _Fixed:
        """Of those that are on the wire in a version, but for tagged ones."""
        there = [field for field in fields if version in field.versions and version not in _tagged(field)]
        at, size = {}, 0
        while there and there[0].kind in SCALARS:
            at[there[0].snake] = size
            size += SCALARS[there.pop(0).kind]
        return cls(at, size, [(field.snake, field) for field in there])

    def places(self, **names: str) -> dict[str, int]:
        """Where fields lie, by what a plan calls them: -1 where there is none."""
        return {own: self.at.get(name, -1) for own, name in names.items()}


def _tagged(field: Field) -> Versions:
    return NONE if field.tag is None else field.tagged


def _find_partitions(
    fields: tuple[Field, ...], version: int, name: str = "topic", partitions: str = "partitions"
) -> tuple[bool, _Fixed] | None:
    """Whether topics are named by id, and their partitions; None where they are other than what is known. `name`,
    `partitions`: what these fields are called."""
    topic = _Fixed.of(fields, version)
    names = [field for field, _ in topic.rest]
    if names == [name, partitions] and not topic.size and topic.rest[0][1].kind == "string":
        by_id = False
    elif names == [partitions] and topic.at == {"topic_id": 0}:
        by_id = True
    else:
        return None
    return by_id, _Fixed.of(topic.rest[-1][1].fields, version)


def _asking(fields: tuple[Field, ...], version: int, flexible: bool) -> dict[str, int] | None:
    head = _Fixed.of(fields, version)
    rest = [name for name, _ in head.rest]
    gone, rack = "forgotten_topics_data" in rest, "rack_id" in rest
    if rest != ["topics", *["forgotten_topics_data"] * gone, *["rack_id"] * rack]:
        return None
    found = _find_partitions(head.rest[0][1].fields, version)
    if found is None or found[1].rest:
        return None
    by_id, partition = found
    if gone and not _numbers_of_topics(head.rest[1][1].fields, version, by_id):
        return None
    outer = head.places(
        replica="replica_id", wait="max_wait_ms", least="min_bytes", isolation="isolation_level", session="session_id",
        epoch="session_epoch",
    )  # fmt: skip
    inner = partition.places(partition="partition", offset="fetch_offset")
    if min(outer["wait"], outer["least"], *inner.values()) < 0 or (outer["session"] < 0) != (outer["epoch"] < 0):
        return None
    shape = {"kind": ASKING, "flexible": flexible, "head": head.size, "by_id": by_id, "size": partition.size}
    return {**shape, **outer, **inner, "gone": gone, "rack": rack}


def _numbers_of_topics(fields: tuple[Field, ...], version: int, by_id: bool) -> bool:
    """Whether these are the fields of a topic and the numbers of its partitions, and nothing else."""
    topic = _Fixed.of(fields, version)
    names = [name for name, _ in topic.rest]
    if not topic.rest or topic.rest[-1][1].element != "int32":
        return False
    return names == ["partitions"] and topic.at == {"topic_id": 0} if by_id else names == ["topic", "partitions"]


def _giving(fields: tuple[Field, ...], version: int, flexible: bool) -> dict[str, int] | None:
    head = _Fixed.of(fields, version)
    found = (
        _find_partitions(head.rest[0][1].fields, version) if [name for name, _ in head.rest] == ["responses"] else None
    )
    if found is None:
        return None
    by_id, partition = found
    rest = [name for name, _ in partition.rest]
    known = ["aborted_transactions", "preferred_read_replica", "records"]
    inner = partition.places(
        partition="partition_index", error="error_code", high="high_watermark", stable="last_stable_offset",
        start="log_start_offset",
    )  # fmt: skip
    least = min(inner["partition"], inner["error"], inner["high"])
    if rest != [name for name in known if name in rest] or rest[-1:] != known[-1:] or least < 0:
        return None
    aborted = -1
    if known[0] in rest:
        element = _Fixed.of(partition.rest[0][1].fields, version)
        if element.rest:
            return None
        aborted = element.size
    shape = {"kind": GIVING, "flexible": flexible, "head": head.size, "by_id": by_id, "size": partition.size}
    preferred = SCALARS["int32"] if known[1] in rest else 0
    return {**shape, **head.places(session="session_id"), **inner, "aborted": aborted, "preferred": preferred}


def _sending(fields: tuple[Field, ...], version: int, flexible: bool) -> dict[str, int] | None:
    head = _Fixed.of(fields, version)
    if "acks" in head.at:
        found = {"kind": SENDING, "flexible": flexible, "head": head.at["acks"], "named": 0}
        rest = head.rest
        listed = head.size - head.at["acks"]
    else:
        if head.size or not head.rest or head.rest[0][1].kind != "string":
            return None
        after = _Fixed.of(tuple(field for _, field in head.rest[1:]), version)
        if after.at.get("acks") != 0:
            return None
        found = {"kind": SENDING, "flexible": flexible, "head": 0, "named": 1}
        rest, listed = after.rest, after.size
    if [name for name, _ in rest] != ["topic_data"]:
        return found
    topics = _find_partitions(rest[0][1].fields, version, "name", "partition_data")
    if topics is None or [name for name, _ in topics[1].rest] != ["records"] or "index" not in topics[1].at:
        return found
    by_id, partition = topics
    return {**found, "listed": listed, "by_id": by_id, "size": partition.size, "partition": partition.at["index"]}


def _sent(fields: tuple[Field, ...], version: int, flexible: bool) -> dict[str, int] | None:
    head = _Fixed.of(fields, version)
    if head.rest[:1] == [] or head.rest[0][0] != "responses":
        return None
    tail = _Fixed.of(tuple(field for _, field in head.rest[1:]), version)
    found = _find_partitions(head.rest[0][1].fields, version, "name", "partition_responses")
    if found is None or tail.rest:
        return None
    by_id, partition = found
    explained = [name for name, _ in partition.rest] == ["record_errors", "error_message"]
    inner = partition.places(partition="index", error="error_code", offset="base_offset")
    if bool(partition.rest) != explained or min(inner.values()) < 0:
        return None
    shape = {"kind": SENT, "flexible": flexible, "head": head.size, "by_id": by_id, "size": partition.size}
    return {**shape, **inner, "explained": explained, "tail": tail.size}

"""Where the fields of Fetch, and of requests to produce, lie that `fetch_bodies` reads: numbers out of the schema.

A plan is a row of numbers for each version of a message, which says of its fields of fixed size where they lie, and
whether there are those of variable size that are known. Where a schema has others there is no plan, and bodies are
decoded as all others are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kdissect.schema import index
from kdissect.schema.library import Library
from kdissect.schema.model import NONE, SCALARS, Field, Versions
from kdissect.tables.fetches import FETCH
from kdissect.tables.produces import PRODUCE

Int64s = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]

# A plan: what it is of, whether the layout is flexible, bytes before the list of topics, whether these are named by id,
# bytes of a partition before anything of variable size; where fields lie, -1 for none; what follows.
KIND, FLEXIBLE, HEAD, BY_ID, SIZE = range(5)
ASKING, GIVING, SENDING = range(3)
REPLICA, WAIT, LEAST, ISOLATION, SESSION, EPOCH, PARTITION, OFFSET, GONE, RACK = range(5, 15)
ERROR, HIGH, STABLE, ABORTED, PREFERRED = range(9, 14)
"""Of answers, behind PARTITION - 2; ABORTED: bytes of an element, -1 for no such list."""
INDEX = 8
NAMED = 5
"""Of requests to produce: whether a text stands before the acks."""
PLAN_WIDTH = 15


def plans(library: Library) -> tuple[Int32s, Int64s]:
    """(int32 by program: its plan, -1 for none; int64 [n, PLAN_WIDTH]) of the layouts that are read here: those of
    which there is one for a version, and that are as they are known."""
    made: list[list[int]] = []
    plan_of = np.full(len(library.identity), -1, np.int32)
    others = set(library.alternative[library.alternative >= 0].tolist())
    for key, side, make in ((FETCH, 0, _asking), (FETCH, 1, _giving), (PRODUCE, 0, _sending)):
        message = index.load().apis[key].message(side)
        mine = (library.identity[:, 0] == key) & (library.identity[:, 2] == side)
        for program in np.flatnonzero(mine & (library.alternative < 0)).tolist():
            version = int(library.identity[program, 1])
            plan = None if program in others else make(message.fields, version, version in message.flexible)
            if plan is not None:
                plan_of[program] = len(made)
                made.append([*plan, *[-1] * (PLAN_WIDTH - len(plan))])
    return plan_of, np.array(made, np.int64).reshape(-1, PLAN_WIDTH)


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

    def places(self, *names: str) -> list[int]:
        """Where fields lie, -1 where there is none."""
        return [self.at.get(name, -1) for name in names]


def _tagged(field: Field) -> Versions:
    return NONE if field.tag is None else field.tagged


def _listed(fields: tuple[Field, ...], version: int) -> tuple[bool, _Fixed] | None:
    """Whether topics are named by id, and their partitions; None where they are other than what is known."""
    topic = _Fixed.of(fields, version)
    names = [name for name, _ in topic.rest]
    if names == ["topic", "partitions"] and not topic.size and topic.rest[0][1].kind == "string":
        by_id = False
    elif names == ["partitions"] and topic.at == {"topic_id": 0}:
        by_id = True
    else:
        return None
    return by_id, _Fixed.of(topic.rest[-1][1].fields, version)


def _asking(fields: tuple[Field, ...], version: int, flexible: bool) -> list[int] | None:
    head = _Fixed.of(fields, version)
    rest = [name for name, _ in head.rest]
    gone, rack = "forgotten_topics_data" in rest, "rack_id" in rest
    if rest != ["topics", *["forgotten_topics_data"] * gone, *["rack_id"] * rack]:
        return None
    found = _listed(head.rest[0][1].fields, version)
    if found is None or found[1].rest:
        return None
    by_id, partition = found
    places = head.places("replica_id", "max_wait_ms", "min_bytes", "isolation_level", "session_id", "session_epoch")
    inner = partition.places("partition", "fetch_offset")
    if min(places[1], places[2], *inner) < 0 or (places[4] < 0) != (places[5] < 0):
        return None
    return [ASKING, flexible, head.size, by_id, partition.size, *places, *inner, gone, rack]


def _giving(fields: tuple[Field, ...], version: int, flexible: bool) -> list[int] | None:
    head = _Fixed.of(fields, version)
    found = _listed(head.rest[0][1].fields, version) if [name for name, _ in head.rest] == ["responses"] else None
    if found is None:
        return None
    by_id, partition = found
    rest = [name for name, _ in partition.rest]
    known = ["aborted_transactions", "preferred_read_replica", "records"]
    inner = partition.places("partition_index", "error_code", "high_watermark", "last_stable_offset")
    if rest != [name for name in known if name in rest] or rest[-1:] != known[-1:] or min(inner[:3]) < 0:
        return None
    aborted = -1
    if known[0] in rest:
        element = _Fixed.of(partition.rest[0][1].fields, version)
        if element.rest:
            return None
        aborted = element.size
    plan = [GIVING, flexible, head.size, by_id, partition.size, -1, -1, -1, *inner, aborted]
    return [*plan, SCALARS["int32"] if known[1] in rest else 0]


def _sending(fields: tuple[Field, ...], version: int, flexible: bool) -> list[int] | None:
    head = _Fixed.of(fields, version)
    if "acks" in head.at:
        return [SENDING, flexible, head.at["acks"], 0, 0, 0]
    if head.size or not head.rest or head.rest[0][1].kind != "string":
        return None
    named = [field for _, field in head.rest[1:2]]
    return [SENDING, flexible, 0, 0, 0, 1] if named and named[0].snake == "acks" else None

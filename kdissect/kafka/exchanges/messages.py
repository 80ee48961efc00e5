"""Bodies of requests and responses to nested Arrow columns, many at a time.

A `Decoder` knows every layout and which fields are wanted. `decode` takes bodies (without their headers) as positions
in one byte array. It returns their status, the error codes and throttle times of responses, and for the wanted message
types one `Message` each. Layouts are compiled when the first frame of theirs comes. Where one version number once had
two layouts, the first that fits exactly wins, the newest release's before older ones.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kdissect.kafka.exchanges.bodies import Aside, Decoded, Message, Type
from kdissect.problems import UsageError
from kdissect.schema import index
from kdissect.schema import opcodes as k
from kdissect.schema.apikeys import ApiKey
from kdissect.schema.columns import Shape, Used, place, record_batch, schema_of
from kdissect.schema.filling import ColumnMemory, fill
from kdissect.schema.fit import Programs
from kdissect.schema.layout import Layout, Wanted
from kdissect.schema.library import Library, compile_library, fields_of, own_library
from kdissect.schema.model import Api
from kdissect.schema.program import ProgramRows, compile_layout
from kdissect.schema.vm import APART_WIDTH, Bodies, Layouts, Skim, count, sort, tally

Ints = npt.NDArray[Any]
Flags = npt.NDArray[np.bool_]

__all__ = ["Decoded", "Decoder", "Message", "Type", "schema_for"]

NO_STATUS: Ints = np.zeros(0, np.int8)
EXACT: Ints = np.zeros(0, np.int64)
"""`leftover` of bodies that end with their last field."""
WHOLE: tuple[Ints, Ints] = (np.zeros(0, np.uint8), np.zeros((0, APART_WIDTH), np.int64))
"""Room and pieces that lie apart, of bodies that lie in one piece."""
PLACES = ("@", "_at")
"""How paths end by which positions are asked for."""
MAX_BATCH_BYTES = 1 << 28
"""Columns of one record batch. Frames are split into several batches above it, so that int32 offsets hold and memory
stays flat; a block of 8 MB of real traffic needs a tenth of it."""
MAX_BODY_BYTES = 1 << 30
"""Columns of one body. A body that would need more (ten times Kafka's default limit of a request, 100 MiB, many times
over in empty elements) is hostile: TOO_LARGE."""
MAX_OFFSET = 2**31 - 2
"""Elements or bytes that int32 offsets can count, with the end offset."""


class _Compiled(NamedTuple):
    """One wanted layout: the columns that its values can reach, and those that can be null."""

    has: Flags
    null: Flags


class _State:
    """Everything compiled so far. Replaced as a whole, so that other threads go on with what they have."""

    def __init__(
        self, programs: Ints, rows: Ints, tags: Ints, constants: Ints, layouts: dict[Type, Layout],
        shapes: dict[Type, Shape], compiled: dict[int, _Compiled | None], counters: int, columns: int,
    ) -> None:  # fmt: skip
        self.programs = programs
        self.rows = rows
        self.tags = tags
        self.constants = constants
        self.layouts = layouts
        self.shapes = shapes
        self.compiled = compiled
        """By program; None: no rows are made of it."""
        self.counters = counters
        self.columns = columns


class Decoder:
    """Decodes bodies; see the module. Safe to share between threads.

    `wanted` maps (API key, side) to None (every field and unknown tags) or to dotted snake_case paths, each with all
    below it ("topics.partitions.fetch_offset"). The path "responses.partitions.records@" adds the position of records
    in the byte array as `records_at`; "*" is everything. Other message types are only checked. Raises UsageError for an
    unknown API or path; with `checked`, paths are known to be right and are not looked at before their first frame. Of
    `sparse` types only bodies whose version has some of the wanted fields make rows.
    """

    def __init__(
        self,
        wanted: Mapping[Type, Wanted] | None = None,
        apis: Mapping[int, Api] | None = None,
        *,
        checked: bool = False,
        sparse: Collection[Type] = (),
    ) -> None:
        self.sparse = frozenset(sparse)
        self.wanted: dict[Type, Wanted] = dict(wanted or {})
        self._given = apis
        if apis is None:
            library = own_library()
        else:
            library = compile_library(apis)
        self.library: Library = library
        for (key, side), paths in self.wanted.items():
            if not (0 <= key < library.newest.shape[0] and side in (0, 1)) or library.newest[key, side] < 0:
                raise UsageError(f"there is no API with key {key}")
            if paths and not checked:
                Layout(self._apis[key].message(side), paths)  # a wrong path is an error now, not at its first frame
        self.table: Ints = library.table
        """int32 [key, version, side]: program id, -1 unknown. Shape [128, 32, 2]."""
        self.flexible: Ints = library.flexible.astype(np.int16)
        """int16 [key, side]: first version with tags in its header, 32767 never."""
        self._lock = threading.Lock()
        self._state = _State(library.programs, library.rows, library.tags, np.zeros(1, np.int64), {}, {}, {}, 1, 0)

    @property
    def _apis(self) -> Mapping[int, Api]:
        return self._given if self._given is not None else index.load().apis

    def newest(self, key: int, side: int) -> int:
        """The newest version with a known layout, -1 for an unknown API: what to try for a version newer than that."""
        return int(self.library.newest[key, side]) if 0 <= key < self.library.newest.shape[0] else -1

    def makes_rows(self, key: int, version: int) -> bool:
        """Whether rows may be made of requests of an API's version, or of their responses; True where that cannot be
        said of the version alone."""
        if key == ApiKey.API_VERSIONS:  # an answer may have the layout of another version
            return True
        programs = self.table[key, version]
        if (programs < 0).any() or (self.library.alternative[programs] >= 0).any():
            return True
        state = self._ready(np.bincount(programs, minlength=len(self.library.identity)))
        return any(state.compiled.get(int(program)) is not None for program in programs)

    def identity(self, program: int) -> tuple[int, int, int, int]:
        """(API key, version, side, variant) of a program id."""
        key, version, side, variant = (int(x) for x in self.library.identity[program])
        return key, version, side, variant

    def skim(self) -> Skim:
        """The arguments of `vm.consumes`, with arrays of their own: one per thread."""
        lib = self.library
        return Skim(
            lib.programs, lib.rows, lib.tags, lib.alternative, np.zeros(2, np.int64), np.zeros(2, np.int64), _stack(),
            np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros(1, np.int32), np.zeros(1, np.int8),
            np.zeros(4, np.int32), *WHOLE, EXACT,
        )  # fmt: skip

    def programs(self) -> Programs:
        """The programs that bodies are tried against, with arrays of their own: one per thread."""
        return Programs(self.table, self.flexible, self.skim())

    @cached_property
    def scattered(self) -> Flags:
        """By program, whether pieces of its bodies may lie apart: neither does anybody ask where something stands in
        them, nor are there several layouts to choose from."""
        key, side = self.library.identity[:, 0], self.library.identity[:, 2]
        alternative = self.library.alternative
        scattered: Flags = alternative < 0
        scattered[alternative[alternative >= 0]] = False
        for kind, paths in self.wanted.items():
            if any(path.endswith(PLACES) for path in paths or ()):
                scattered &= (key != kind[0]) | (side != kind[1])
        return scattered

    def decode(
        self, s: Ints, begin: Ints, end: Ints, program: Ints, apart: Ints = WHOLE[1], body_reader: Aside | None = None,
        leftover: Ints = EXACT,
    ) -> Decoded:  # fmt: skip
        """Decode the bodies s[begin[i]:end[i]] (`s` uint8, positions int64) by program ids (int32, -1: none known).
        `apart`: pieces of bodies of `scattered` programs that lie elsewhere in `s`, which is written to then, see
        `vm.count`. Bodies that fit and that `body_reader` takes (requests and behind them as many responses) are in no
        message. `leftover`, int64, of the first frames: 0 where bytes may be left over behind the last field of a body,
        unless its version had several layouts, -1 where not. It is not changed."""
        begin = np.ascontiguousarray(begin, np.int64)
        end = np.ascontiguousarray(end, np.int64)
        program = np.ascontiguousarray(program, np.int32)
        counts = self._counted(program)
        ambiguous = np.zeros(program.size, bool)
        leftover = leftover.copy()
        if (counts[self.library.alternative >= 0] > 0).any():
            asked = program[: leftover.size]
            leftover[(asked >= 0) & (self.library.alternative[asked] >= 0)] = -1
            program, ambiguous = self._choose(s, begin, end, program)
            counts = self._counted(program)
        state = self._ready(counts)
        status = np.zeros(begin.size, np.int8)
        seen = np.empty(4 * begin.size, np.int32)
        parts: dict[Type, list[tuple[Ints, pa.RecordBatch]]] = {}
        self._run(state, s, begin, end, program, status, seen, 0, parts, apart, body_reader, leftover)
        messages = {
            kind: Message(np.concatenate([rows for rows, _ in found]), [batch for _, batch in found])
            for kind, found in parts.items()
        }
        return Decoded(status, seen, program, self.library.identity[:, 3], ambiguous, leftover, messages)

    def _ready(self, counts: Ints) -> _State:
        """The state with all wanted layouts compiled that have frames; `counts`: frames of each program."""
        state = self._state
        used = np.flatnonzero(counts)
        identity = self.library.identity
        missing = [
            int(p) for p in used
            if int(p) not in state.compiled and (int(identity[p, 0]), int(identity[p, 2])) in self.wanted
        ]  # fmt: skip
        if not missing:
            return state
        with self._lock:
            self._state = self._extended(self._state, missing)
            return self._state

    def _extended(self, old: _State, missing: list[int]) -> _State:
        state = _State(
            old.programs.copy(), old.rows, old.tags, old.constants, dict(old.layouts), dict(old.shapes),
            dict(old.compiled), old.counters, old.columns,
        )  # fmt: skip
        rows = ProgramRows(old.rows.size // k.STRIDE, old.tags.size // k.TAG_STRIDE, old.constants.size)
        for which in missing:
            if which in state.compiled:
                continue
            key, version, side, variant = self.identity(which)
            api = self._apis[key]
            message = api.message(side)
            kind = (key, side)
            layout = state.layouts.get(kind)
            if layout is None:
                layout = Layout(message, self.wanted[kind], state.counters, state.columns)
                state.layouts[kind] = layout
                state.shapes[kind] = Shape(layout)
                state.counters = layout.end_counter
                state.columns = layout.end_column
            program = compile_layout(message, side, version, fields_of(api, side, version, variant), layout, rows)
            shape = state.shapes[kind]
            program.null.discard(-1)
            program.has.discard(-1)
            if kind in self.sparse and program.has.isdisjoint(layout.values):
                state.compiled[which] = None
                continue
            state.programs[which] = program.count, program.fill, layout.first_counter, layout.end_counter
            state.compiled[which] = _Compiled(shape.mask(program.has), shape.mask(program.null))
        state.rows = np.concatenate([old.rows, np.array(rows.rows, np.int64)])
        state.tags = np.concatenate([old.tags, np.array(rows.tags, np.int64)])
        state.constants = np.concatenate([old.constants, np.array(rows.constants, np.int64)])
        return state

    def _run(
        self, state: _State, s: Ints, begin: Ints, end: Ints, program: Ints, status: Ints, seen: Ints, first: int,
        parts: dict[Type, list[tuple[Ints, pa.RecordBatch]]], apart: Ints = WHOLE[1], body_reader: Aside | None = None,
        leftover: Ints = EXACT,
    ) -> None:  # fmt: skip
        """Count, read aside, lay out, fill; in halves where the columns would be too large, and then nothing aside.
        `first` is the frames' first row."""
        counters = np.zeros(state.counters, np.int64)
        stack = _stack()
        layouts = Layouts(state.programs, state.rows, state.tags)
        room = s if len(apart) else WHOLE[0]
        bodies = Bodies(begin, end, program, status)
        count(s, bodies, layouts, counters, counters.copy(), stack, seen, room, apart, leftover)
        if (leftover > 0).any():
            end = end.copy()
            end[: leftover.size] -= np.maximum(leftover, 0)
        left = (
            status
            if body_reader is None
            else body_reader.read(self.wanted, self.library, s, begin, end, program, status)
        )
        counts = self._counted(program, left)
        used = self._used(state, counts)
        if not used:
            return
        columns, size = place(used, counters, state.columns)
        limit = MAX_BODY_BYTES if begin.size == 1 else MAX_BATCH_BYTES
        counters[0] = 0
        if size > limit or int(counters.max()) > MAX_OFFSET:
            if begin.size == 1:
                status[0] = k.TOO_LARGE
                seen[:] = k.NO_CODE, 0, 0, -1
                return
            if body_reader is not None:
                body_reader.drain()
            middle = begin.size // 2
            for start, stop in ((0, middle), (middle, begin.size)):
                part = slice(start, stop)
                part_seen = seen[4 * start : 4 * stop]
                self._run(
                    state, s, begin[part], end[part], program[part], status[part], part_seen, first + start, parts,
                    apart,
                )  # fmt: skip
            return
        buffer = np.zeros((size + 63) & ~63, np.uint8)
        done = np.zeros(state.counters, np.int64)
        high = np.zeros(state.counters, np.uint8)
        memory = ColumnMemory(buffer, buffer.view(np.int16), buffer.view(np.int32), buffer.view(np.int64), high)
        bodies = Bodies(begin, end, program, left)
        failed = fill(s, bodies, layouts, state.constants, columns.ravel(), done, stack, memory)
        done[0] = 0
        if failed or (not np.array_equal(done, counters) if left is status else bool((done > counters).any())):
            raise RuntimeError("count and fill disagree: a bug in kdissect's schema compiler, please report it")
        wrapped, sizes, places = pa.py_buffer(buffer), done.tolist(), columns.tolist()
        for kind, rows in self._rows(state, program, left, used, counts):
            layout = state.layouts[kind]
            batch = record_batch(layout, wrapped, sizes, places, high)
            parts.setdefault(kind, []).append((rows + first, batch))

    def _counted(self, program: Ints, status: Ints | None = None) -> Ints:
        """int64: how many of these frames have each program; with `status`, of those that fit."""
        counts = np.zeros(len(self.library.identity), np.int64)
        tally(program, NO_STATUS if status is None else status, counts)
        return counts

    def _used(self, state: _State, counts: Ints) -> list[Used]:
        """The layouts that programs with frames write, and the columns that they reach; `counts`: frames of each
        program."""
        out: dict[Type, Used] = {}
        for which in np.flatnonzero(counts):
            compiled = state.compiled.get(int(which))
            if compiled is None:
                continue
            kind = (int(self.library.identity[which, 0]), int(self.library.identity[which, 2]))
            if kind in out:
                out[kind].has |= compiled.has
                out[kind].null |= compiled.null
            else:
                out[kind] = Used(state.layouts[kind], state.shapes[kind], compiled.has.copy(), compiled.null.copy())
        return list(out.values())

    def _rows(
        self, state: _State, program: Ints, status: Ints, used: list[Used], counts: Ints
    ) -> list[tuple[Type, Ints]]:
        """For each used message type the frames that it has rows of, in order; `counts` as for `_used`."""
        kinds = [kind for kind, layout in state.layouts.items() if any(item.layout is layout for item in used)]
        number = np.full(len(counts), -1, np.int16)
        sizes = np.zeros(len(kinds), np.int64)
        for which in np.flatnonzero(counts).tolist():
            kind = (int(self.library.identity[which, 0]), int(self.library.identity[which, 2]))
            if state.compiled.get(which) is not None:
                number[which] = kinds.index(kind)
                sizes[number[which]] += counts[which]
        ends = np.cumsum(sizes)
        frames = np.empty(int(sizes.sum()), np.int64)
        sort(program, status, number, ends - sizes, frames)
        return [(kind, frames[end - size : end]) for kind, end, size in zip(kinds, ends, sizes, strict=True)]

    # versions that had more than one layout

    def _choose(self, s: Ints, begin: Ints, end: Ints, program: Ints) -> tuple[Ints, Flags]:
        """(programs with the layout that fits where a version had several, ambiguous)."""
        ambiguous = np.zeros(program.size, bool)
        several = np.flatnonzero((program >= 0) & (self.library.alternative[program] >= 0))
        program = program.copy()
        chosen = np.full(several.size, -1, np.int32)
        trial = program[several]
        while trial.size and (trial >= 0).any():
            fits = (self._check(s, begin[several], end[several], trial) == k.OK) & (trial >= 0)
            for at in np.flatnonzero(fits & (chosen >= 0)):
                f = several[at : at + 1]
                if not ambiguous[f[0]]:
                    ambiguous[f] = self._differ(s, begin[f], end[f], chosen[at : at + 1], trial[at : at + 1])
            chosen = np.where(fits & (chosen < 0), trial, chosen)
            trial = np.where(trial >= 0, self.library.alternative[trial], -1).astype(np.int32)
        program[several] = np.where(chosen >= 0, chosen, program[several])
        return program, ambiguous

    def _check(self, s: Ints, begin: Ints, end: Ints, program: Ints) -> Ints:
        lib = self.library
        status = np.zeros(begin.size, np.int8)
        seen = np.empty(4 * begin.size, np.int32)
        room = np.zeros(2, np.int64)
        bodies, layouts = Bodies(begin, end, program, status), Layouts(lib.programs, lib.rows, lib.tags)
        count(s, bodies, layouts, room, room.copy(), _stack(), seen, *WHOLE, EXACT)
        return status

    def _differ(self, s: Ints, begin: Ints, end: Ints, first: Ints, second: Ints) -> bool:
        """Whether two layouts that both fit say different things about the same body."""
        key, _, side, _ = self.identity(int(first[0]))
        full = Decoder({(key, side): None}, self._given)
        said = []
        for program in (first, second):
            parts: dict[Type, list[tuple[Ints, pa.RecordBatch]]] = {}
            status, seen = np.zeros(1, np.int8), np.empty(4, np.int32)
            full._run(full._ready(full._counted(program)), s, begin, end, program, status, seen, 0, parts)
            said.append([batch.to_pylist() for found in parts.values() for _, batch in found])
        return said[0] != said[1]


def schema_for(key: int, side: int, fields: Wanted = None) -> pa.Schema:
    """The Arrow schema of an API's messages: the union of all versions' fields, without decoding anything."""
    return schema_of(Layout(index.load().apis[key].message(side), fields))


def _stack() -> Ints:
    """A stack for the lists and tag buffers that are open while a program runs (address, left, limit or counter, tags
    seen)."""
    return np.zeros(4 * k.MAX_DEPTH + 4, np.int64)

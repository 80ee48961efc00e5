"""Decoded bodies: what a `Decoder` gives, and ways through their nesting without a loop."""

from collections.abc import Collection, Mapping
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Ints = npt.NDArray[Any]
Flags = npt.NDArray[np.bool_]
Type = tuple[int, int]
"""(API key, side: 0 request, 1 response)."""
READ_ASIDE = 127
"""Status of a body that fits and was read already: it is not written out."""


class Aside(Protocol):
    """Reads bodies before they are written out as columns."""

    def read(
        self, fields: Mapping[Type, Collection[str] | None], library: Any, s: Ints, begin: Ints, end: Ints,
        program: Ints, status: Ints,
    ) -> Ints:  # fmt: skip
        """The status of each body, READ_ASIDE for those that were read; `fields`, `library`: the decoder's."""

    def drain(self) -> Any:
        """The values read since the last call, None if there are none."""


class Message:
    """Decoded bodies of one API and side: `rows[i]` (int64) is the frame that row i came from, in rising order."""

    def __init__(self, rows: Ints, batches: list[pa.RecordBatch]) -> None:
        self.rows = rows
        self.batches = batches

    @cached_property
    def batch(self) -> pa.RecordBatch:
        """All rows as one batch: the union of the versions' fields, absent ones null."""
        return self.batches[0] if len(self.batches) == 1 else pa.concat_batches(self.batches)

    def table(self) -> pa.Table:
        """All rows, in as many chunks as were decoded."""
        return pa.Table.from_batches(self.batches)

    def flat(self, path: str) -> pa.Array:
        """The values at a dotted path through all lists on the way and at its end: `flat("topics.partitions")` has a
        row for each partition of each topic of each message, `flat("topics.partitions.fetch_offset")` their offsets.

        Raises KeyError for a path that was not decoded."""
        return self._levels(path)[0]

    def parents(self, path: str) -> Ints:
        """int64, for each element of the list at `path` the row of its parent: the element of the next list above, in
        the order of `flat`, or the message."""
        lists = self._levels(path)[1]
        if not lists:
            raise KeyError(f"{path} has no list on its way")
        return lists[-1]

    def owners(self, path: str) -> Ints:
        """int64, for each element of the list at `path` the row of its message in `batch`."""
        lists = self._levels(path)[1]
        owner: Ints = np.arange(len(self.rows), dtype=np.int64)
        for parents in lists:
            owner = owner[parents]
        return owner

    def _levels(self, path: str) -> tuple[pa.Array, list[Ints]]:
        """(flattened values, for each list on the way its elements' parents)."""
        names = path.split(".")
        array: pa.Array | None = None
        lists: list[Ints] = []
        for name in names:
            if array is None:
                array = self.batch.column(name)
            elif pa.types.is_struct(array.type) and array.type.get_field_index(name) >= 0:
                array = array.field(name)
            else:
                raise KeyError(f"{path}: no {name}")
            if pa.types.is_list(array.type):
                lists.append(pc.list_parent_indices(array).to_numpy().astype(np.int64, copy=False))
                array = array.flatten()
        return array, lists


class Decoded(NamedTuple):
    """The result of `Decoder.decode`: arrays of one row a frame. A frame whose `status` is not OK (0) has no row in any
    message, and null error codes and throttle time."""

    status: Ints
    """int8: OK or why not (`opcodes.STATUS_TEXT`)."""
    seen: Ints
    """int32, four in a row of each frame: error code, first of them, how many, throttle time."""
    program: Ints
    """int32: the program of the layout that fits, where a version had several; -1 none."""
    variants: Ints
    """int32: which layout of its version each program is of, 0 the newest release's."""
    ambiguous: Flags
    """More than one layout of the version fits exactly, and they say different things."""
    spare: Ints
    """int64, of the first frames: how many bytes are left over behind the last field of a body that fits."""
    messages: dict[Type, Message]
    """Bodies of the wanted message types that occurred."""

    @property
    def error_code(self) -> Ints:
        """int32: the response's own ErrorCode, NO_CODE where its layout has none."""
        return self.seen[0::4]

    @property
    def error_first(self) -> Ints:
        """int32: the first field named ...ErrorCode, in wire order, that is not zero; 0 none."""
        return self.seen[1::4]

    @property
    def error_count(self) -> Ints:
        """int32: how many fields named ...ErrorCode are not zero."""
        return self.seen[2::4]

    @property
    def throttle_ms(self) -> Ints:
        """int32: the response's ThrottleTimeMs, -1 where its layout has none."""
        return self.seen[3::4]

    @property
    def variant(self) -> Ints:
        """int8: which layout of the version fitted, 0 the newest release's."""
        found: Ints = np.where(self.program >= 0, self.variants[self.program], 0).astype(np.int8)
        return found

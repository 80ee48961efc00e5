"""The column `topics`: a list of the topics that an exchange's request and answer name.

A message names topics by name or by id (KIP-516). An id stands in the list as MARK and its text until names are known;
what no message names stays as its id.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kdissect.arrays.from_numpy import arrow_array
from kdissect.tables.declaration.model import TEXT, TEXTS
from kdissect.tables.identity import SEPARATOR
from kdissect.tables.nest import Int64s, Level, numbers

MARK = SEPARATOR
"""Before an id: no topic's name has it (`[a-zA-Z0-9._-]+`)."""
ID = "[A-Za-z0-9_-]{22}"
"""The text of an id; a topic's name may look like it."""
MARKED_ID = f"^{MARK}{ID}$"
"""What only an id looks like, whatever names hostile messages have."""


def topic_lists(levels: Sequence[Level], bodies: Sequence[Int64s], name: str) -> pa.Array:
    """For each row the topics of the messages at `bodies` (-1: none), each once, in the order of the wire; null where
    it has no message. `levels`: lists of topics, with `bodies` for each; `name`: the field with a topic's name."""
    count = len(bodies[0])
    rows, texts = [], []
    for level, body in zip(levels, bodies, strict=True):
        row_of = np.full(int(max(body.max(initial=-1), level.body.max(initial=-1))) + 1, -1, np.int64)
        there = body >= 0
        row_of[body[there]] = np.flatnonzero(there)
        rows.append(row_of[level.body])
        ids = pc.binary_join_element_wise(MARK, level.column("topic_id", TEXT), "")
        texts.append(pc.coalesce(level.column(name, TEXT), ids))
    row, codes = np.concatenate(rows), pa.concat_arrays(texts).dictionary_encode()
    code = numbers(codes.indices, -1)
    kept = np.flatnonzero((row >= 0) & (code >= 0))
    _, first = np.unique(row[kept] * (len(codes.dictionary) + 1) + code[kept], return_index=True)
    kept = kept[np.sort(first)]
    kept = kept[np.argsort(row[kept], kind="stable")]
    ends = np.cumsum(np.bincount(row[kept], minlength=count)[:count])
    offsets = arrow_array(np.concatenate([[0], ends]).astype(np.int32))
    known = np.any([body >= 0 for body in bodies], axis=0)
    values = codes.dictionary.take(arrow_array(code[kept]))
    return pa.ListArray.from_arrays(offsets, values, type=TEXTS, mask=arrow_array(~known))

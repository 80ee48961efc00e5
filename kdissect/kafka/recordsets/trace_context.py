"""Trace contexts in record headers: which trace and span an application wrote a record in.

Rules: W3C Trace Context, section 3.2 (`traceparent`), and B3 propagation (github.com/openzipkin/b3-propagation): the
single header `b3`, and `X-B3-TraceId` with `X-B3-SpanId`. A value that its specification forbids gives nothing. Trace
ids of 64 bits, which B3 allows, get zeros in front, as OpenTelemetry has them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Int64s = npt.NDArray[np.int64]

TRACE_DIGITS, SPAN_DIGITS = 32, 16
TRACEPARENT = rf"^[0-9a-f]{{2}}-[0-9a-f]{{{TRACE_DIGITS}}}-[0-9a-f]{{{SPAN_DIGITS}}}-[0-9a-f]{{2}}(-.*)?$"
"""Later versions may append fields; version 00 has none, and version ff is forbidden."""
FORBIDDEN = rf"^ff|^00-.{{{TRACE_DIGITS + SPAN_DIGITS + 4}}}-|^...0{{{TRACE_DIGITS}}}|-0{{{SPAN_DIGITS}}}-..(-|$)"
B3 = rf"^([0-9a-f]{{{TRACE_DIGITS}}}|[0-9a-f]{{16}})-[0-9a-f]{{{SPAN_DIGITS}}}(-[01d](-[0-9a-f]{{{SPAN_DIGITS}}})?)?$"
B3_TRACE = rf"^([0-9a-f]{{{TRACE_DIGITS}}}|[0-9a-f]{{16}})$"
B3_SPAN = rf"^[0-9a-f]{{{SPAN_DIGITS}}}$"
ZEROS = r"^0+$"


def trace_columns(headers: pa.ListArray) -> tuple[pa.Array, pa.Array]:
    """Trace id (32 hex digits) and span id (16) of each record, both null where no header has both. `headers` has
    (key, value) pairs; of several headers of a kind the first counts, `traceparent` before B3."""
    pairs = headers.flatten()
    owner = pc.list_parent_indices(headers).to_numpy()
    names, values = pc.utf8_lower(pairs.field("key")), pairs.field("value")
    rows = len(headers)

    def of(name: str, pattern: str, refused: str = ZEROS) -> tuple[Int64s, pa.Array]:
        """For each record the place of its first header of this name among all headers, -1 for none. Then the text of
        each header, null where it is not as specified."""
        mine = pc.equal(names, name).fill_null(False)
        good = pc.and_(mine, pc.match_substring_regex(values, pattern).fill_null(False))
        good = pc.and_(good, pc.invert(pc.match_substring_regex(values, refused).fill_null(False)))
        places = np.flatnonzero(np.asarray(mine))
        record, first = np.unique(owner[places], return_index=True)
        found = np.full(rows, -1, np.int64)
        found[record] = places[first]
        return found, pc.if_else(good, values, pa.scalar(None, pa.binary()))

    def pick_texts(places: Int64s, texts: pa.Array) -> pa.Array:
        return texts.take(pa.array(places, mask=places < 0)).cast(pa.string())

    if not rows or not len(pairs):
        return pa.nulls(rows, pa.string()), pa.nulls(rows, pa.string())
    parent = pick_texts(*of("traceparent", TRACEPARENT, FORBIDDEN))
    single = pc.extract_regex(pick_texts(*of("b3", B3)), r"^(?P<trace>[0-9a-f]+)-(?P<span>[0-9a-f]{16})")
    pair = pick_texts(*of("x-b3-traceid", B3_TRACE)), pick_texts(*of("x-b3-spanid", B3_SPAN))
    choices = [
        (pc.utf8_slice_codeunits(parent, 3, 3 + TRACE_DIGITS), pc.utf8_slice_codeunits(parent, 36, 36 + SPAN_DIGITS)),
        (pc.struct_field(single, "trace"), pc.struct_field(single, "span")),
        pair,
    ]
    traces, spans = [], []
    for trace, span in choices:
        null = pa.scalar(None, pa.string())
        known = pc.invert(pc.or_(_is_zero(trace), _is_zero(span))).fill_null(False)
        traces.append(pc.if_else(known, pc.utf8_lpad(trace, TRACE_DIGITS, "0"), null))
        spans.append(pc.if_else(known, span, null))
    return pc.coalesce(*traces), pc.coalesce(*spans)


def _is_zero(ids: pa.Array) -> pa.Array:
    return pc.match_substring_regex(ids, ZEROS)

"""Trace ids in record headers: OpenTelemetry's own propagators say which values are right."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest
from aiokafka.record.default_records import _DefaultRecordBatchBuilderPy
from opentelemetry import trace
from opentelemetry.propagators.b3 import B3MultiFormat, B3SingleFormat
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

import kdissect
from kdissect.kafka.recordsets.batches import walk
from kdissect.kafka.recordsets.record_columns import SCHEMA
from kdissect.kafka.recordsets.records import records
from kdissect.kafka.recordsets.trace_context import trace_columns
from tests.conftest import CAPTURES

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01"
Headers = list[tuple[str, bytes | None]] | None


def ids(*records: Headers) -> list[tuple[str | None, str | None]]:
    rows = [None if one is None else [{"key": key, "value": value} for key, value in one] for one in records]
    return list(
        zip(
            *(column.to_pylist() for column in trace_columns(pa.array(rows, SCHEMA.field("headers").type))), strict=True
        )
    )


def by_opentelemetry(headers: dict[str, str]) -> tuple[str | None, str | None]:
    for propagator in (TraceContextTextMapPropagator(), B3MultiFormat(), B3SingleFormat()):
        context = trace.get_current_span(propagator.extract(headers)).get_span_context()
        if context.is_valid:
            return f"{context.trace_id:032x}", f"{context.span_id:016x}"
    return None, None


@pytest.mark.parametrize(
    "value",
    [
        PARENT,
        PARENT.replace("00-", "01-", 1) + "-more",
        PARENT + "-more",
        PARENT.upper(),
        "ff" + PARENT[2:],
        PARENT.replace(TRACE, "0" * 32),
        PARENT.replace(SPAN, "0" * 16),
        PARENT[:-1],
        PARENT + "0",
        f"0-{TRACE}-{SPAN}-01",
        "",
    ],
)
def test_traceparent_is_read_as_opentelemetry_reads_it(value: str) -> None:
    assert ids([("traceparent", value.encode())]) == [by_opentelemetry({"traceparent": value})]


def test_random_changes_of_a_right_value() -> None:
    draw = random.Random(7)
    values = []
    for _ in range(500):
        text = list(PARENT)
        for _ in range(draw.randrange(3)):
            text[draw.randrange(len(text))] = draw.choice("0f-gF ")
        values.append("".join(text))
    assert ids(*([("traceparent", value.encode())] for value in values)) == [
        by_opentelemetry({"traceparent": value}) for value in values
    ]


@pytest.mark.parametrize("more", ["", "-1", "-0", "-d", f"-1-{SPAN}"])
@pytest.mark.parametrize("width", [32, 16])
def test_b3(more: str, width: int) -> None:
    expected = [(TRACE[:width].zfill(32), SPAN)]
    assert ids([("b3", f"{TRACE[:width]}-{SPAN}{more}".encode())]) == expected
    assert ids([("X-B3-TraceId", TRACE[:width].encode()), ("X-B3-SpanId", SPAN.encode())]) == expected
    assert by_opentelemetry({"x-b3-traceid": TRACE[:width], "x-b3-spanid": SPAN, "x-b3-sampled": "1"}) == expected[0]


@pytest.mark.parametrize("value", ["0", f"{TRACE}", f"{TRACE}-{SPAN}-x", f"{TRACE[:31]}-{SPAN}", f"{'0' * 32}-{SPAN}"])
def test_what_b3_forbids_gives_nothing(value: str) -> None:
    assert ids([("b3", value.encode())]) == [(None, None)]


def test_one_half_gives_nothing() -> None:
    assert ids([("X-B3-TraceId", TRACE.encode())], [("X-B3-SpanId", SPAN.encode())]) == [(None, None)] * 2


def test_the_first_header_counts_and_traceparent_before_b3() -> None:
    other = PARENT.replace("4bf9", "aaaa")
    b3 = ("b3", f"{'b' * 32}-{SPAN}".encode())
    assert ids(
        [("traceparent", PARENT.encode()), ("traceparent", other.encode())],
        [b3, ("traceparent", PARENT.encode())],
        [("traceparent", b"broken"), ("traceparent", PARENT.encode())],
        [("traceparent", b"\xff\x00"), b3],
        [("traceparent", None)],
        [("traceparenT ", PARENT.encode())],
        [],
        None,
    ) == [(TRACE, SPAN), (TRACE, SPAN), (None, None), ("b" * 32, SPAN), *[(None, None)] * 4]


def test_no_records() -> None:
    assert ids() == []


@pytest.mark.parametrize("codec", [0, 1, 4])
def test_records_of_another_encoder(codec: int) -> None:
    """Every second record of a batch by aiokafka has a context, with a value between them that is large."""
    builder = _DefaultRecordBatchBuilderPy(2, codec, 1, -1, -1, -1, 1 << 22)
    for i in range(200):
        headers = [("other", b"x" * i)] + [("traceparent", f"00-{i + 1:032x}-{i + 1:016x}-01".encode())] * (i % 2)
        builder.append(i, timestamp=1_700_000_000_000 + i, key=b"k", value=b"v" * (i % 7 * 1000), headers=headers)
    data = np.frombuffer(bytes(builder.build()), np.uint8)
    batches = walk(data, np.zeros(1, np.int64), np.array([len(data)]))
    found = pa.Table.from_batches(records(batches, traced=True)).to_pylist()
    assert [(row["trace_id"], row["span_id"]) for row in found] == [
        (f"{i + 1:032x}", f"{i + 1:016x}") if i % 2 else (None, None) for i in range(200)
    ]
    assert {(row["headers"], row["key"], row["value"]) for row in found} == {(None, None, None)}, "nothing is revealed"
    hidden = pa.Table.from_batches(records(walk(data, np.zeros(1, np.int64), np.array([len(data)]))))
    assert hidden["trace_id"].null_count == 200, "nobody asked"


def test_the_table_has_them_where_they_are_named() -> None:
    capture = kdissect.open(CAPTURES / "k4_java_classic.pcap")
    named = capture.table("records", ["offset", "trace_id", "span_id"])
    assert named.num_rows
    assert named["trace_id"].null_count == named.num_rows, "its clients send none"
    assert capture.table("records", ["offset"], "trace_id is not null").num_rows == 0

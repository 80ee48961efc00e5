"""Spans of captures, as a receiver that reads OpenTelemetry's own Protobuf messages gets them, against the tables."""

from __future__ import annotations

import io
import json
from collections import defaultdict
from datetime import datetime
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import zstandard

import kdissect
import kdissect.otlp
from kdissect.otlp.sending import BATCH
from kdissect.problems import JobFailed, UsageError
from tests.conftest import CAPTURES
from tests.otlp.receiver import Taken, receiving

TRACES = CAPTURES / "traces" / "franz_go.pcap.zst"
CLIENT, INTERNAL, ERROR = 3, 1, 2
MS = 1_000_000
PARTS = {
    "request_transfer_ms": ["request transfer"], "network_ms": ["network up", "network down"],
    "queued_ms": ["queued"], "broker_ms": ["agreed wait", "throttled", "broker", "replication"],
    "replication_ms": ["replication"], "response_transfer_ms": ["response transfer"],
}  # fmt: skip
"""Columns of `exchanges` and the spans that add up to each."""


def sent(*captures: Path, **options: Any) -> tuple[Taken, kdissect.otlp.Sent]:
    with receiving() as taken:
        return taken, kdissect.otlp.send(kdissect.open(list(captures)), taken.url, **options)


def attributes(one: Any) -> dict[str, Any]:
    """Attributes of a span or a link as Python values."""
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in one.attributes}


def by_exchange(taken: Taken) -> dict[str, Any]:
    """Spans of exchanges by the id of the exchange."""
    return {attributes(span)["kdissect.exchange_id"]: span for span in taken.spans if span.kind == CLIENT}


def nanoseconds(instant: datetime) -> int:
    return pd.Timestamp(instant).value


def check_times(taken: Taken, capture: Any) -> None:
    """Parents last as long as their rows, children as long as the columns, within their parents and one behind the
    other."""
    children = defaultdict(list)
    for span in taken.spans:
        if span.kind != CLIENT:
            children[span.trace_id, span.parent_span_id].append(span)
    found = by_exchange(taken)
    rows = capture.table("exchanges").to_pylist()
    assert len(rows) == len(found)
    for row in rows:
        span = found[row["exchange_id"]]
        mine = sorted(children.pop((span.trace_id, span.span_id), []), key=lambda one: one.start_time_unix_nano)
        begin, end = span.start_time_unix_nano, span.end_time_unix_nano
        assert begin == nanoseconds(row["request_first_at"] or row["response_first_at"])
        if row["latency_ms"] is None:
            continue
        assert end == nanoseconds(row["response_last_at"])
        assert end - begin == round(row["latency_ms"] * MS)
        spent = defaultdict(int)
        at = begin
        for one in mine:
            assert at <= one.start_time_unix_nano < one.end_time_unix_nano <= end
            at = one.end_time_unix_nano
            spent[one.name] += one.end_time_unix_nano - one.start_time_unix_nano
        for column, names in PARTS.items():
            took = sum(spent[name] for name in names)
            assert took == pytest.approx((row[column] or 0) * MS, abs=2000), (row["exchange_id"], column)
        assert set(spent) <= {name for names in PARTS.values() for name in names}
    assert not children, "every child has its parent"


@pytest.mark.parametrize(
    "name",
    ["k4_slow_and_throttled.pcap", "field_loss5.pcap", "k4_share_group.pcap",
     pytest.param("stories/slow_follower.pcap.zst", marks=pytest.mark.whole)],
)  # fmt: skip
def test_times_are_those_of_the_tables(name: str) -> None:
    taken, said = sent(CAPTURES / name, links=False)
    assert said.spans == len(taken.spans)
    assert max(taken.sizes) <= BATCH
    check_times(taken, kdissect.open(CAPTURES / name))


LARGE = CAPTURES / "stories" / "slow_consumer.pcap.zst"


@pytest.mark.whole
def test_twenty_thousand_spans() -> None:
    """With links; every id once, times of all of them."""
    taken, said = sent(LARGE)
    assert said.spans == len(taken.spans) >= 20_000
    assert len({(span.trace_id, span.span_id) for span in taken.spans}) == len(taken.spans)
    check_times(taken, kdissect.open(LARGE))


def test_waits_that_were_asked_for_are_no_broker_s_time() -> None:
    """Fetches that ended by their max_wait_ms."""
    taken, _ = sent(CAPTURES / "k4_slow_and_throttled.pcap", links=False)
    fetches = kdissect.open(CAPTURES / "k4_slow_and_throttled.pcap").table(
        "fetches", ["exchange_id", "max_wait_ms"], "hold = 'timeout' and latency_ms is not null"
    )
    waits = {(one.trace_id, one.parent_span_id): one for one in taken.spans if one.name == "agreed wait"}
    found = by_exchange(taken)
    assert fetches.num_rows > 100
    for row in fetches.to_pylist():
        span = found[row["exchange_id"]]
        wait = waits[span.trace_id, span.span_id]
        assert wait.end_time_unix_nano - wait.start_time_unix_nano <= row["max_wait_ms"] * MS


@pytest.fixture(scope="module")
def traced() -> Taken:
    return sent(TRACES)[0]


@pytest.fixture(scope="module")
def logged() -> list[dict[str, Any]]:
    packed = (CAPTURES / "traces" / "franz_go.records.jsonl.zst").read_bytes()
    return [json.loads(line) for line in zstandard.ZstdDecompressor().stream_reader(packed).read().splitlines()]


@pytest.mark.oracle
def test_a_request_of_one_context_is_a_span_of_its_trace(traced: Taken, logged: list[dict[str, Any]]) -> None:
    """By what the clients logged: the application's span is the parent of the request that carried its record."""
    alone = [one for one in logged if one["did"] == "sent" and one["role"] in ("orders", "b3", "b3multi")]
    assert len(alone) == 60
    parents = {(span.trace_id.hex(), span.parent_span_id.hex()): span for span in traced.spans if span.kind == CLIENT}
    for one in alone:
        span = parents[one["trace"], one["span"]]
        told = attributes(span)
        assert span.name == f"send {one['topic']}"
        assert told["messaging.client.id"] == f"app-{one['role']}"
        assert told["messaging.destination.name"] == one["topic"]
        assert told["messaging.destination.partition.id"] == str(one["partition"])
        assert told["messaging.batch.message_count"] == 1
        assert span.flags & 0x300 == 0x300, "the parent is somebody else's"


@pytest.mark.oracle
def test_a_request_of_several_contexts_links_to_them(traced: Taken, logged: list[dict[str, Any]]) -> None:
    mine = {(one["trace"], one["span"]) for one in logged if one["did"] == "sent" and one["role"] == "batches"}
    linked = set()
    for span in traced.spans:
        if span.name == "send batches":
            assert not span.parent_span_id
            linked |= {(link.trace_id.hex(), link.span_id.hex()) for link in span.links}
    assert linked == mine
    assert len(mine) == 20


@pytest.mark.oracle
def test_a_fetch_links_to_the_records_that_it_gave(traced: Taken, logged: list[dict[str, Any]]) -> None:
    """Producer, exchange, delivery and consumer: each record that a consumer logged is a link of a fetch of its own."""
    given = {
        (f"app-{one['role']}", one["topic"], str(one["partition"]), one["offset"], one["trace"], one["span"])
        for one in logged if one["did"] == "given" and one["trace"]
    }  # fmt: skip
    linked = set()
    for span in traced.spans:
        told = attributes(span)
        if told.get("messaging.operation.name") == "poll":
            assert told.get("messaging.consumer.group.name") == told["messaging.client.id"].replace("app-", "g-")
            for link in span.links:
                where = attributes(link)
                if "kdissect.waited_for" not in where and "messaging.batch.message_count" not in where:
                    linked.add((told["messaging.client.id"], where["messaging.destination.name"],
                                where["messaging.destination.partition.id"], where["messaging.kafka.offset"],
                                link.trace_id.hex(), link.span_id.hex()))  # fmt: skip
    assert linked == given
    assert len(given) == 100


def test_a_fetch_links_to_the_requests_whose_batches_it_gave(traced: Taken) -> None:
    found = by_exchange(traced)
    deliveries = kdissect.open(TRACES).table("deliveries", where="produce_exchange_id is not null").to_pylist()
    assert len(deliveries) > 100
    for row in deliveries:
        produce, fetch = found[row["produce_exchange_id"]], found[row["fetch_exchange_id"]]
        (told,) = [attributes(one) for one in fetch.links
                   if (one.trace_id, one.span_id) == (produce.trace_id, produce.span_id)
                   and attributes(one)["messaging.kafka.offset"] == row["base_offset"]
                   and attributes(one)["messaging.destination.partition.id"] == str(row["partition"])]  # fmt: skip
        assert told["kdissect.delivery_ms"] == row["delivery_ms"]
        assert told["messaging.batch.message_count"] == row["records"]


def test_errors_and_requests_without_an_answer_are_errors() -> None:
    taken, _ = sent(CAPTURES / "raw_errors.pcap", links=False)
    found = by_exchange(taken)
    wrong = 0
    for row in kdissect.open(CAPTURES / "raw_errors.pcap").table("exchanges").to_pylist():
        span = found[row["exchange_id"]]
        expected = row["error"] or (row["status"] if row["status"] in ("unanswered", "no_response") else None)
        assert attributes(span).get("error.type") == expected
        assert (span.status.code == ERROR) == (expected is not None)
        wrong += expected is not None
    assert wrong > 5


def test_sent_twice_the_spans_are_the_same(traced: Taken) -> None:
    again, _ = sent(TRACES)
    assert [span.SerializeToString() for span in again.spans] == [span.SerializeToString() for span in traced.spans]
    assert traced.services == {"kdissect"}


def test_the_service_comes_from_opentelemetry_s_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "orders-network")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
    taken, _ = sent(CAPTURES / "base_tiny.pcap")
    assert taken.services == {"orders-network"}
    assert taken.spans


def test_durations_are_those_of_the_spans(traced: Taken) -> None:
    (request,) = traced.metrics
    (metric,) = request.resource_metrics[0].scope_metrics[0].metrics
    assert (metric.name, metric.unit) == ("messaging.client.operation.duration", "s")
    points = metric.histogram.data_points
    answered = kdissect.open(TRACES).table("exchanges", where="latency_ms is not null").to_pandas()
    assert sum(point.count for point in points) == len(answered)
    assert sum(point.sum for point in points) == pytest.approx(answered.latency_ms.sum() / 1000)
    produces = [point for point in points if attributes(point)["messaging.operation.name"] == "send"]
    assert {attributes(point)["messaging.destination.name"] for point in produces} >= {"orders", "b3", "shipments"}
    assert sum(point.count for point in produces) == (answered.api == "Produce").sum()
    for point in points:
        assert sum(point.bucket_counts) == point.count
        assert len(point.bucket_counts) == len(point.explicit_bounds) + 1 == 15
        assert point.start_time_unix_nano == nanoseconds(answered.request_first_at.min())
        assert point.time_unix_nano == nanoseconds(answered.response_last_at.max())


def test_a_file_has_what_a_receiver_gets(traced: Taken, tmp_path: Path) -> None:
    """JSON as OTLP's specification has it: ids in hex digits, 64-bit integers as texts."""
    kdissect.otlp.write(kdissect.open(TRACES), tmp_path / "spans.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "spans.jsonl").read_text().splitlines()]
    spans = [
        span for line in lines for resource in line.get("resourceSpans", ()) for scope in resource["scopeSpans"]
        for span in scope["spans"]
    ]  # fmt: skip
    assert [(one["traceId"], one["spanId"], one["name"], one["startTimeUnixNano"]) for one in spans] == [
        (one.trace_id.hex(), one.span_id.hex(), one.name, str(one.start_time_unix_nano)) for one in traced.spans
    ]
    assert sum("resourceMetrics" in line for line in lines) == 1


def test_a_pipe_is_read_once(traced: Taken) -> None:
    data = zstandard.ZstdDecompressor().stream_reader(TRACES.read_bytes()).read()

    class Pipe(io.RawIOBase):
        def __init__(self) -> None:
            self.rest = io.BytesIO(data)

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: Any) -> int:
            return self.rest.readinto(buffer)

    target = io.BytesIO()
    said = kdissect.otlp.write(kdissect.open(Pipe()), target)  # type: ignore[arg-type]
    assert said.spans == len(traced.spans)


def test_filters_leave_others_out() -> None:
    taken, said = sent(TRACES, where="api = 'Produce' and client_id = 'app-b3'")
    assert said.exchanges == 20
    assert {attributes(span)["kdissect.api"] for span in taken.spans if span.kind == CLIENT} == {"Produce"}


@pytest.mark.parametrize("status", [401, 302, 308])
def test_a_receiver_that_refuses(status: int) -> None:
    with receiving() as taken:
        taken.refused = status
        with pytest.raises(JobFailed, match=rf"^the OTLP receiver at \S+ did not take the data: .*{status}"):
            kdissect.otlp.send(kdissect.open(CAPTURES / "base_tiny.pcap"), taken.url)


def test_a_receiver_that_rejects_some() -> None:
    """All are sent: it keeps the others of each request. A warning that rejects nothing is no failure."""
    capture = kdissect.open(CAPTURES / "k4_slow_and_throttled.pcap")
    with receiving() as taken:
        taken.reason = "older than\n a day"
        whole = kdissect.otlp.send(capture, taken.url, links=False)
        requests = len(taken.sizes)
        assert requests > 1
        points = taken.metrics[0].resource_metrics[0].scope_metrics[0].metrics[0].histogram.data_points
        taken.rejected = {"/v1/traces": 2, "/v1/metrics": 1}
        with pytest.raises(JobFailed) as raised:
            kdissect.otlp.send(capture, taken.url, links=False)
    assert len(taken.spans) == 2 * whole.spans
    assert str(raised.value) == (
        f"the OTLP receiver at {taken.url} rejected {2 * requests} of {whole.spans:,} spans "
        f"and 1 of {len(points)} data points: older than a day"
    )


@pytest.mark.parametrize("url", ["localhost:4318", "ftp://host", "http://", "http://host:nope", "http://h?x", ""])
def test_urls_that_are_none(url: str) -> None:
    with pytest.raises(UsageError, match="is no OTLP receiver"):
        kdissect.otlp.send(kdissect.open(CAPTURES / "base_tiny.pcap"), url)


def test_an_input_is_no_output(tmp_path: Path) -> None:
    copy = tmp_path / "a.pcap"
    copy.write_bytes((CAPTURES / "base_tiny.pcap").read_bytes())
    with pytest.raises(UsageError, match="is read by this command"):
        kdissect.otlp.write(kdissect.open(copy), copy)

"""Clients whose messages have the sizes and the shares of APIs that `tests/bench/shares.txt` says."""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.bench import java_frames as f
from tests.bench import shares
from tests.bench.applications import ACK_US, ANSWER_US, BEGIN, GROUP, IDLE_US, SESSION_STEP, TOPIC, WAIT_US
from tests.bench.frames import batch
from tests.bench.packets import Cycle
from tests.bench.templates import Template, digits, int32, int64

READER, COORDINATOR, PRODUCER = range(3)
"""The connections: of a consumer that fetches, of it to its group's coordinator, and of a producer."""
FETCH, PRODUCE, METADATA = 12, 9, 12
SEGMENT = 16384
READ, WRITTEN = 0, 1
"""The partition that the consumer fetches, and the one that the producer writes."""
PARTITIONS = 8
"""Of a fetch session; all but one are quiet."""
EMPTY = 32
"""Bytes of a Fetch response above which it has records."""


def fitted(make: Callable[[int], Template], size: int) -> Template:
    """The frame that `make` gives for the number whose frame is nearest to `size` bytes: it grows with the number."""
    low, high = 0, size
    while low < high:
        middle = (low + high) // 2
        if len(make(middle)) < size:
            low = middle + 1
        else:
            high = middle
    return min((make(number) for number in {max(low - 1, 0), low}), key=lambda frame: abs(len(frame) - size))


def mixture() -> Cycle:
    """A turn: every exchange of `shares.txt` once, in an order drawn with a fixed seed.

    Responses to Fetch, ApiVersions and Metadata and requests to Produce have the sizes that the file says, as near as
    records, APIs and partitions of some bytes come to them; those of other messages follow from their fields.
    """
    chosen = shares.read()
    random.Random(1).shuffle(chosen)
    fetches = sum(api == "Fetch" for api, *_ in chosen)
    with_records = sum(api == "Fetch" and size > EMPTY for api, _, size in chosen)
    produces = sum(api == "Produce" for api, *_ in chosen)
    reader, writer = f.Client(b"consumer-billing-" + digits()), f.Client(b"producer-billing-" + digits())
    member = reader.id + b"-3f0c1d3e-7a57-4b0a-9a5a-6f2c6c1f3b11"
    session, begun = int32(71, copy=SESSION_STEP), int64(BEGIN)
    cycle = Cycle()
    for connection, client in enumerate((reader, reader, writer)):
        cycle.open(f.api_versions_request(client), f.api_versions_response(), connection, ANSWER_US)
        described = f.metadata_request(METADATA, client, TOPIC), f.metadata_response(METADATA, TOPIC, PARTITIONS)
        cycle.open(*described, connection, ANSWER_US)
    full = f.fetch_request(FETCH, reader, int32(0), int32(0), TOPIC, [(p, begun) for p in range(PARTITIONS)])
    answer = f.fetch_response(FETCH, session, TOPIC, [(p, begun, b"") for p in range(PARTITIONS)])
    cycle.open(full, answer, READER, WAIT_US)
    fetched = got = written = 0
    named = -1  # records that the consumer had when a request named its partition

    def fetch(size: int) -> None:
        nonlocal fetched, got, named
        moved = [] if named == got else [(READ, int64(BEGIN + got, turn=with_records))]
        named = got
        epoch = int32(1 + fetched, turn=fetches)
        cycle.ask(f.fetch_request(FETCH, reader, session, epoch, TOPIC, moved), connection=READER)
        cycle.acknowledge(1, READER, ACK_US)
        fetched += 1
        if size <= EMPTY:
            cycle.answer(f.fetch_response(FETCH, session, TOPIC, []), connection=READER, after_us=WAIT_US)
            return
        before, after = (int64(BEGIN + got + n, turn=with_records) for n in (0, 1))

        def response(length: int) -> Template:
            records = f.records_at(before, batch([bytes(length)]))
            return f.fetch_response(FETCH, session, TOPIC, [(READ, after, records)])

        cycle.answer(fitted(response, size), SEGMENT, READER, IDLE_US)
        got += 1

    def produce(size: int) -> None:
        nonlocal written
        base = int64(BEGIN + written, turn=produces)

        def request(length: int) -> Template:
            return f.produce_request(PRODUCE, writer, TOPIC, [(WRITTEN, f.records_at(base, batch([bytes(length)])))])

        cycle.ask(fitted(request, size), SEGMENT, PRODUCER)
        cycle.answer(f.produce_response(PRODUCE, TOPIC, [(WRITTEN, base)]), connection=PRODUCER, after_us=ANSWER_US)
        written += 1

    committed = [(READ, int64(BEGIN, turn=with_records))]
    others: dict[str, Callable[[int], tuple[int, Template, Template]]] = {
        "ApiVersions": lambda size: (
            PRODUCER, f.api_versions_request(writer), fitted(f.api_versions_response, size),
        ),
        "Metadata": lambda size: (
            PRODUCER, f.metadata_request(METADATA, writer, TOPIC),
            fitted(lambda n: f.metadata_response(METADATA, TOPIC, 1 + n, 1), size),
        ),
        "ListOffsets": lambda _: (
            READER, f.list_offsets_request(reader, TOPIC, READ),
            f.list_offsets_response(TOPIC, READ, int64(BEGIN + got, turn=with_records)),
        ),
        "FindCoordinator": lambda _: (PRODUCER, f.coordinator_request(writer, GROUP), f.coordinator_response()),
        "Heartbeat": lambda _: (
            COORDINATOR, f.heartbeat_request(reader, GROUP, member), f.heartbeat_response(),
        ),
        "OffsetFetch": lambda _: (
            COORDINATOR, f.committed_request(reader, GROUP, TOPIC, [READ]), f.committed_response(TOPIC, committed),
        ),
        "OffsetCommit": lambda _: (
            COORDINATOR, f.commit_request(reader, GROUP, member, TOPIC, committed), f.commit_response(TOPIC, [READ]),
        ),
    }  # fmt: skip
    for api, request_bytes, response_bytes in chosen:
        if api == "Fetch":
            fetch(response_bytes)
        elif api == "Produce":
            produce(request_bytes)
        else:
            connection, request, response = others[api](response_bytes)
            cycle.ask(request, connection=connection)
            cycle.answer(response, connection=connection, after_us=ANSWER_US)
    return cycle

"""Bodies read aside, from those that kafka-python encodes, against the columns that the decoder writes of the same."""

from __future__ import annotations

import random
import uuid
from functools import cache
from typing import Any

import numpy as np
import pytest
from kafka.protocol.consumer.fetch import FetchRequest, FetchResponse
from kafka.protocol.producer.produce import ProduceRequest, ProduceResponse

from kdissect.arrays.rows import NULL
from kdissect.kafka.exchanges.bodies import READ_ASIDE
from kdissect.kafka.exchanges.messages import Decoder
from kdissect.tables import fetch_bodies
from kdissect.tables import fetch_rows as h
from kdissect.tables.fetch_bodies import Bodies, BodyReader
from kdissect.tables.fetches import METADATA_TOPIC
from kdissect.tables.sent_rows import sent_of
from tests.bench.frames import batch

NAMES = ["orders", "ö", METADATA_TOPIC, "x" * 249]
IDS = [uuid.UUID(int=0x0123456789ABCDEF0123456789ABCDEF), uuid.UUID(int=1), uuid.UUID(int=7)]
WALKED: dict[tuple[int, int], frozenset[str]] = {**fetch_bodies.READS, (0, 0): frozenset({"acks"})}
"""With where record sets lie."""
WANTED = WALKED | {(1, 1): fetch_bodies.READS[1, 1] - {fetch_bodies.PLACES}}
VERSIONS = range(FetchRequest.max_version + 1)


@cache
def shared(walked: bool = False) -> Decoder:
    """One for all tests."""
    return Decoder(WALKED if walked else WANTED)


def request(version: int, chance: random.Random, **other: Any) -> FetchRequest:
    """A fetch without a session, some partitions of some topics."""
    topic, part = FetchRequest.FetchTopic, FetchRequest.FetchTopic.FetchPartition
    topics = [
        topic(
            version=version,
            partitions=[
                part(version=version, partition=chance.randrange(4), fetch_offset=chance.choice([-1, 0, 5, 1 << 40]),
                     partition_max_bytes=1, current_leader_epoch=chance.choice([-1, 4]))
                for _ in range(chance.randrange(4))
            ],
            **name(version, chance),
        )
        for _ in range(chance.randrange(4))
    ]  # fmt: skip
    said: dict[str, Any] = {
        "max_wait_ms": chance.choice([0, 500]), "min_bytes": chance.choice([0, 1, 1 << 20]), "max_bytes": 1 << 20,
        "isolation_level": chance.choice([0, 1]), "session_id": 0, "session_epoch": -1, "topics": topics,
        "forgotten_topics_data": [], "rack_id": chance.choice(["", "rack", "r" * 200]),
    }  # fmt: skip
    return FetchRequest(version=version, **said | ({} if version >= 15 else {"replica_id": -1}) | other)


def response(version: int, chance: random.Random, session_id: int = 0) -> FetchResponse:
    """An answer, which has partitions and topics that were not asked for, too, and errors."""
    topic = FetchResponse.FetchableTopicResponse
    part = topic.PartitionData
    gone = part.AbortedTransaction
    aborted = [gone(version=version, producer_id=4, first_offset=9)] * 3 if version >= 4 else []
    return FetchResponse(
        version=version, throttle_time_ms=0, error_code=0, session_id=session_id,
        responses=[
            topic(
                version=version,
                partitions=[
                    part(
                        version=version, partition_index=chance.randrange(4), error_code=chance.choice([0, 0, 3]),
                        high_watermark=chance.choice([-1, 50, 1 << 41]), last_stable_offset=chance.choice([-1, 49]),
                        log_start_offset=3, aborted_transactions=chance.choice([None, [], aborted]),
                        preferred_read_replica=chance.choice([-1, -1, 2]),
                        records=chance.choice([None, b"", b"x" * 7, b"y" * 300]),
                    )
                    for _ in range(chance.randrange(5))
                ],
                **name(version, chance),
            )
            for _ in range(chance.randrange(4))
        ],
    )  # fmt: skip


def name(version: int, chance: random.Random) -> dict[str, Any]:
    """What a topic is called."""
    return {"topic_id": chance.choice(IDS)} if version >= 13 else {"topic": chance.choice(NAMES)}


def read(pairs: list[tuple[Any, Any]], key: int = 1, walked: bool = False) -> tuple[Bodies | None, list[int], Any, Any]:
    """(what was read aside, of which exchanges, the decoded requests and answers) of messages, or their bytes."""
    decoder, reader = shared(walked), BodyReader()
    sides = list(zip(*pairs, strict=True))
    bodies = [encoded(one) for side in sides for one in side]
    ends = np.cumsum([len(body) for body in bodies], dtype=np.int64)
    begins = ends - np.array([len(body) for body in bodies])
    versions = [[one.version for one in side] for side in [[request for request, _ in pairs]] * 2]
    programs = np.array([decoder.table[key, v, side] for side in (0, 1) for v in versions[side]], np.int32)
    data = np.frombuffer(b"".join(bodies), np.uint8)
    plain = decoder.decode(data, begins, ends, programs)
    rest = decoder.decode(data, begins, ends, programs, body_reader=reader)
    assert rest.status.tolist() == plain.status.tolist()
    taken = reader.drain()
    assert reader.drain() is None
    mine = [] if taken is None else h.fetches_of(taken.rows.fetches)["exchange"].tolist()
    n = len(pairs)
    for side in (0, 1):  # the others are written out, each as it was
        want = {int(row): said for row, said in rows(plain, key, side, n) if int(row) not in mine}
        assert dict(rows(rest, key, side, n)) == want
    return taken, mine, dict(rows(plain, key, 0, n)), dict(rows(plain, key, 1, n))


def encoded(message: Any) -> bytes:
    return message if isinstance(message, bytes) else bytes(message.encode(header=False, framed=False))


def rows(found: Any, key: int, side: int, n: int) -> list[tuple[int, dict[str, Any]]]:
    message = found.messages.get((key, side))
    return [] if message is None else [
        (int(row) - side * n, said) for row, said in zip(message.rows, message.batch.to_pylist(), strict=True)
    ]  # fmt: skip


def topic_of(said: dict[str, Any]) -> tuple[str | None, str | None]:
    return said.get("topic"), said.get("topic_id")


def by_fetch(bodies: Bodies) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Each fetch, and its partitions, by the names of their fields."""
    fetches, parts = h.fetches_of(bodies.rows.fetches), h.partitions_of(bodies.rows.partitions)
    named = [dict(zip(parts.dtype.names or (), row, strict=True)) for row in parts.tolist()]
    found, at = [], 0
    for row in fetches.tolist():
        fetch = dict(zip(fetches.dtype.names or (), row, strict=True))
        found.append((fetch, named[at : at + fetch["partitions"]]))
        at += fetch["partitions"]
    return found


@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_read_aside_is_what_columns_say(version: int) -> None:
    """Of fetches within a session and without one, with partitions that leave it."""
    chance = random.Random(version)
    pairs = []
    for n in range(60):
        session: dict[str, Any] = {}
        if version >= 7 and n % 3:
            topic = FetchRequest.ForgottenTopic
            gone = [
                topic(version=version, partitions=chance.sample(range(4), 2), **name(version, chance))
                for _ in range(chance.randrange(3))
            ]
            session = {"session_id": 5, "session_epoch": n % 7 - 1, "forgotten_topics_data": gone}
        pairs.append((request(version, chance, **session), response(version, chance, session_id=n % 2 * 5)))
    bodies, mine, asked, given = read(pairs)
    assert bodies is not None
    assert mine == list(range(60))
    for (fetch, parts), row in zip(by_fetch(bodies), mine, strict=True):
        wants = [(topic_of(t), p) for t in asked[row]["topics"] for p in t["partitions"]]
        gone = [(topic_of(t), p) for t in asked[row].get("forgotten_topics_data") or () for p in t["partitions"]]
        told = [(topic_of(t), p) for t in given[row]["responses"] for p in t["partitions"]]
        marks = sum((
            h.RAFT * any(METADATA_TOPIC in topic_of(t) or "A" * 21 + "Q" in topic_of(t) for t in asked[row]["topics"]),
            h.REDIRECTED * any((p["preferred_read_replica"] or -1) >= 0 for _, p in told),
            h.FAILED * any(p["error_code"] != 0 for _, p in told),
            h.COMMITTED * (asked[row]["isolation_level"] == 1),
        ))  # fmt: skip
        expected: dict[str, Any] = {
            "exchange": row, "wait": asked[row]["max_wait_ms"], "least": asked[row]["min_bytes"], "sent": len(wants),
            "returned": len(told), "records": sum(p["records_bytes"] or 0 for _, p in told), "marks": marks,
            "session": asked[row]["session_id"] if version >= 7 else NULL,
            "epoch": asked[row]["session_epoch"] if version >= 7 else NULL,
            "given_session": (given[row]["session_id"] or 0) if version >= 7 else 0,
        }  # fmt: skip
        assert {key: fetch[key] for key in expected} == expected
        rows = []
        for topic, p in told:
            number, good = p["partition_index"], p["error_code"] == 0
            entry = blank(topic, number) | {"flags": h.GIVEN, "error": p["error_code"]}
            if (ask := first(wants, topic, number)) is not None:
                entry |= {"flags": entry["flags"] | h.ASKED, "offset": ask["fetch_offset"]}
            if first(gone, topic, number) is not None:
                entry["flags"] |= h.FORGOTTEN
            entry["high"] = p["high_watermark"] if good else -1
            entry["stable"] = -1 if p["last_stable_offset"] is None or not good else p["last_stable_offset"]
            entry["start"] = -1 if p["log_start_offset"] is None else p["log_start_offset"]
            entry["records"] = p["records_bytes"] or 0
            entry["preferred"] = -1 if p["preferred_read_replica"] is None else p["preferred_read_replica"]
            rows.append(entry)
        for topic, p in wants:
            flags = h.ASKED | (h.FORGOTTEN if first(gone, topic, p["partition"]) is not None else 0)
            rows.append(blank(topic, p["partition"]) | {"flags": flags, "offset": p["fetch_offset"]})
        rows += [blank(topic, number) | {"flags": h.FORGOTTEN} for topic, number in gone]
        assert [{**one, "topic": bodies.topics[one["topic"]]} for one in parts] == rows


def first(named: list[tuple[Any, Any]], topic: Any, number: int) -> Any:
    """The first of these with this topic and number, which is taken out; None."""
    for at, (mine, one) in enumerate(named):
        if mine == topic and (one if isinstance(one, int) else one["partition"]) == number:
            return named.pop(at)[1]
    return None


def blank(topic: Any, number: int) -> dict[str, Any]:
    """A row of a partition that nothing is known of."""
    minus = dict.fromkeys(("log", "offset", "high", "stable", "start", "preferred", "diverging", "reason"), -1)
    return minus | {"topic": topic, "partition": number, "error": 0, "records": 0, "session_offset": -1}


@pytest.mark.parametrize("version", VERSIONS)
def test_what_has_more_to_say_is_left_to_the_decoder(version: int) -> None:
    """Followers, many partitions, tags, an answer that is not there or is damaged."""
    chance = random.Random(1)
    part = FetchRequest.FetchTopic.FetchPartition(
        version=version, partition=1, fetch_offset=0, partition_max_bytes=1, current_leader_epoch=-1
    )
    many = FetchRequest.FetchTopic(version=version, partitions=[part] * 65, **name(version, chance))
    others: list[dict[str, Any]] = [{"topics": [many]}]
    if version < 15:
        others.append({"replica_id": 3})
    if version >= 7:
        gone = FetchRequest.ForgottenTopic(version=version, partitions=list(range(65)), **name(version, chance))
        others += [{"session_id": 5, "session_epoch": 6, "forgotten_topics_data": [gone]}]
    if version >= 12:
        others.append({"cluster_id": "c"})
    good = response(version, chance)
    damaged = encoded(good) + b"\1"
    pairs = [(request(version, chance, **other), good) for other in others]
    pairs += [(request(version, chance), good), (request(version, chance), damaged)]
    _, mine, *_ = read(pairs)
    assert mine == [len(others)]


def test_topics_are_more_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """And partitions of an answer: then there is more room."""
    chance = random.Random(1)
    topic = FetchResponse.FetchableTopicResponse
    part = topic.PartitionData(
        version=11, partition_index=1, error_code=0, high_watermark=9, last_stable_offset=9, log_start_offset=3,
        aborted_transactions=None, preferred_read_replica=-1, records=None,
    )  # fmt: skip
    answer = FetchResponse(
        version=11, throttle_time_ms=0, error_code=0, session_id=0,
        responses=[topic(version=11, topic="t", partitions=[part] * 3000)],
    )  # fmt: skip
    bodies, mine, *_ = read([(request(11, chance, topics=[]), answer) for _ in range(5)])
    assert mine == list(range(5))
    assert bodies is not None
    assert [len(parts) for _, parts in by_fetch(bodies)] == [3000] * 5
    monkeypatch.setattr(fetch_bodies, "MOST_TOPICS", 2)
    ask = FetchRequest.FetchTopic
    named = [request(11, chance, topics=[ask(version=11, topic=f"t{i % 4}", partitions=[])]) for i in range(12)]
    none = FetchResponse(version=11, throttle_time_ms=0, error_code=0, session_id=0, responses=[])
    assert read([(one, none) for one in named])[1] == [0, 1, 4, 5, 8, 9]


@pytest.mark.parametrize("version", VERSIONS)
def test_record_sets_that_need_a_look_are_left_and_what_no_answer_names_is_told(version: int) -> None:
    """Where record sets are asked for; elsewhere neither."""
    chance = random.Random(version)
    one = batch([b"a value"])
    odd = {"cut": one[:-1], "of old": one[:16] + b"\1" + one[17:], "no batch": b"x" * 90}
    topic, named = FetchResponse.FetchableTopicResponse, name(version, chance)

    def answer(*sets: bytes | None) -> FetchResponse:
        parts = [
            topic.PartitionData(
                version=version, partition_index=number, error_code=0, high_watermark=9, last_stable_offset=9,
                log_start_offset=3, aborted_transactions=None, preferred_read_replica=-1, records=records,
            )
            for number, records in enumerate(sets)
        ]  # fmt: skip
        given = [topic(version=version, partitions=parts, **named)]
        return FetchResponse(version=version, throttle_time_ms=0, error_code=0, session_id=0, responses=given)

    def asking(*numbers: int) -> FetchRequest:
        part = FetchRequest.FetchTopic.FetchPartition
        parts = [
            part(version=version, partition=number, fetch_offset=4, partition_max_bytes=1, current_leader_epoch=-1)
            for number in numbers
        ]
        asked = FetchRequest.FetchTopic(version=version, partitions=parts, **named)
        return request(version, chance, topics=[asked])

    good = [(asking(1, 9, 1, 0, 8), answer(None, one + one)), (asking(*range(64)), answer(*[b""] * 63))]
    pairs = [good[0], *((asking(0, 1), answer(one, records)) for records in odd.values()), good[1]]
    bodies, mine, *_ = read(pairs, walked=True)
    assert bodies is not None
    assert mine == [0, len(pairs) - 1]
    assert left_out(bodies) == [[0, 9], [0, 1], [0, 8], [mine[1], 63]]
    bodies, mine, *_ = read(pairs)
    assert bodies is not None
    assert mine == list(range(len(pairs)))


def left_out(bodies: Bodies) -> list[list[int]]:
    """The exchange and number of each partition that was asked for and that the answer does not have."""
    return [
        [fetch["exchange"], part["partition"]]
        for fetch, parts in by_fetch(bodies)
        for part in parts
        if part["flags"] == h.ASKED
    ]


def test_what_no_answer_names_is_more_than_there_is_room_for() -> None:
    chance = random.Random(1)
    part = FetchRequest.FetchTopic.FetchPartition
    parts = [
        part(version=11, partition=number, fetch_offset=0, partition_max_bytes=1, current_leader_epoch=-1)
        for number in range(64)
    ]
    asked = request(11, chance, topics=[FetchRequest.FetchTopic(version=11, topic="t", partitions=parts)])
    none = FetchResponse(version=11, throttle_time_ms=0, error_code=0, session_id=0, responses=[])
    bodies, mine, *_ = read([(asked, none)] * 50, walked=True)
    assert mine == list(range(50))
    assert bodies is not None
    assert left_out(bodies) == [[row, number] for row in range(50) for number in range(64)]


@pytest.mark.parametrize("version", range(ProduceRequest.max_version + 1))
def test_acks(version: int) -> None:
    """Behind the transaction's id, where there may be one."""
    names = [None, "", "x" * 300] if version >= 3 else [None]
    made = [
        ProduceRequest(version=version, **({"transactional_id": text} if version >= 3 else {}), acks=acks,
                       timeout_ms=1, topic_data=[])
        for text in names for acks in (-1, 0, 1)
    ]  # fmt: skip
    decoder, reader = shared(), BodyReader()
    bodies = [encoded(one) for one in made]
    n = len(bodies)
    ends = np.array([*np.cumsum([len(body) for body in bodies]), *[0] * n], np.int64)
    begins = ends - np.array([*[len(body) for body in bodies], *[0] * n])
    programs = np.array([*[decoder.table[0, version, 0]] * n, *[-1] * n], np.int32)
    found = decoder.decode(np.frombuffer(b"".join(bodies), np.uint8), begins, ends, programs, body_reader=reader)
    taken = reader.drain()
    assert taken is not None
    assert taken.acks is not None
    assert taken.acks.tolist() == [-1, 0, 1] * len(names)
    assert not found.messages


@pytest.mark.parametrize("version", range(ProduceRequest.max_version + 1))
def test_partitions_of_produces(version: int) -> None:
    """Those of the request, then those that the answer names alone, as the decoder gives both messages."""
    chance = random.Random(version)
    made = [(produce(version, chance), produced(version, chance)) for _ in range(300)]
    decoder, reader = Decoder({**WANTED, **fetch_bodies.SENDS}), BodyReader()
    n, bodies = len(made), [encoded(one) for side in zip(*made, strict=True) for one in side]
    ends = np.cumsum([len(body) for body in bodies], dtype=np.int64)
    begins, data = ends - np.array([len(body) for body in bodies]), np.frombuffer(b"".join(bodies), np.uint8)
    programs = np.repeat([decoder.table[0, version, side] for side in (0, 1)], n).astype(np.int32)
    programs[n + 5] = programs[7] = -1  # not answered; not asked
    plain = decoder.decode(data, begins, ends, programs)
    rest = decoder.decode(data, begins, ends, programs, body_reader=reader)
    taken = reader.drain()
    assert taken is not None
    assert taken.acks is not None
    left, asked, given = dict(rows(rest, 0, 0, n)), dict(rows(plain, 0, 0, n)), dict(rows(plain, 0, 1, n))
    mine = np.flatnonzero(taken.acks != NULL).tolist()
    assert set(left) == set(asked) - set(mine)
    assert 50 < len(mine) < n
    assert 7 in dict(rows(rest, 0, 1, n))
    assert [int(taken.acks[row]) for row in mine] == [asked[row]["acks"] for row in mine]
    found: dict[int, list[Any]] = {row: [] for row in mine}
    for row in sent_of(taken.sent):
        found[row["exchange"]].append([taken.topics[row["topic"]], *row[["partition", "error", "base_offset"]].item()])
    for row in mine:
        expected: dict[Any, list[int]] = {}
        for topic in asked[row]["topic_data"] or ():
            for part in topic["partition_data"] or ():
                expected[topic.get("name"), topic.get("topic_id"), part["index"]] = [NULL, NULL]
        for topic in given.get(row, {}).get("responses") or ():
            for part in topic["partition_responses"] or ():
                key = topic.get("name"), topic.get("topic_id"), part["index"]
                expected[key] = [part["error_code"], part["base_offset"]]
        assert found[row] == [[key[:2], key[2], *said] for key, said in expected.items()]


def test_partitions_of_produces_are_more_than_there_is_room_for() -> None:
    """Then there is more room."""
    topic = ProduceRequest.TopicProduceData
    parts = [topic.PartitionProduceData(version=8, index=number, records=None) for number in range(64)]
    asked = ProduceRequest(
        version=8, transactional_id=None, acks=1, timeout_ms=3,
        topic_data=[topic(version=8, name="t", partition_data=parts)],
    )  # fmt: skip
    decoder, reader, n = Decoder({**WANTED, **fetch_bodies.SENDS}), BodyReader(), 50
    body = encoded(asked)
    ends = np.array([*range(len(body), (n + 1) * len(body), len(body)), *[0] * n], np.int64)
    begins = np.maximum(ends - len(body), 0)
    programs = np.array([*[decoder.table[0, 8, 0]] * n, *[-1] * n], np.int32)
    decoder.decode(np.frombuffer(body * n, np.uint8), begins, ends, programs, body_reader=reader)
    taken = reader.drain()
    assert taken is not None
    found = sent_of(taken.sent)
    assert found["exchange"].tolist() == [row for row in range(n) for _ in range(64)]
    assert found["partition"].tolist() == list(range(64)) * n


def produce(version: int, chance: random.Random) -> ProduceRequest:
    topic = ProduceRequest.TopicProduceData
    part = topic.PartitionProduceData
    named = {"transactional_id": chance.choice([None, "t" * 200])} if version >= 3 else {}
    return ProduceRequest(
        version=version, acks=chance.choice([-1, 0, 1]), timeout_ms=3, **named,
        topic_data=[
            topic(
                version=version,
                partition_data=[
                    part(version=version, index=chance.randrange(9), records=chance.choice([None, b"", b"x" * 300]))
                    for _ in range(chance.randrange(4))
                ],
                **sent_name(version, chance),
            )
            for _ in range(chance.randrange(3))
        ],
    )  # fmt: skip


def produced(version: int, chance: random.Random) -> ProduceResponse:
    topic = ProduceResponse.TopicProduceResponse
    part = topic.PartitionProduceResponse
    said = {"record_errors": [], "error_message": chance.choice([None, "no"])} if version >= 8 else {}
    return ProduceResponse(
        version=version, throttle_time_ms=0,
        responses=[
            topic(
                version=version,
                partition_responses=[
                    part(
                        version=version, index=chance.randrange(9), error_code=chance.choice([0, 6]),
                        base_offset=chance.choice([-1, 1 << 40]), log_append_time_ms=-1, log_start_offset=2, **said,
                    )
                    for _ in range(chance.randrange(4))
                ],
                **sent_name(version, chance),
            )
            for _ in range(chance.randrange(3))
        ],
    )  # fmt: skip


def sent_name(version: int, chance: random.Random) -> dict[str, Any]:
    return {"topic_id": chance.choice(IDS)} if version >= 13 else {"name": chance.choice(NAMES)}


def test_topics_keep_their_codes_until_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """From block to block; then all are forgotten, and those of the blocks before stay what they were."""
    monkeypatch.setattr(fetch_bodies, "MOST_TOPICS", 4)
    chance, decoder, reader = random.Random(1), shared(), BodyReader()
    ask = FetchRequest.FetchTopic
    none = encoded(FetchResponse(version=11, throttle_time_ms=0, error_code=0, session_id=0, responses=[]))

    def block(*topics: str) -> Bodies:
        part = ask.FetchPartition(
            version=11, partition=0, fetch_offset=4, partition_max_bytes=1, current_leader_epoch=-1
        )  # fmt: skip
        asked = [request(11, chance, topics=[ask(version=11, topic=text, partitions=[part])]) for text in topics]
        bodies = [*map(encoded, asked), *[none] * len(asked)]
        ends = np.cumsum([len(body) for body in bodies], dtype=np.int64)
        begins = ends - np.array([len(body) for body in bodies])
        programs = np.repeat([decoder.table[1, 11, side] for side in (0, 1)], len(asked)).astype(np.int32)
        decoder.decode(np.frombuffer(b"".join(bodies), np.uint8), begins, ends, programs, body_reader=reader)
        taken = reader.drain()
        assert taken is not None
        return taken

    def named(bodies: Bodies) -> list[str | None]:
        return [bodies.topics[code][0] for code in h.partitions_of(bodies.rows.partitions)["topic"].tolist()]

    first, second, third = block("a", "b"), block("b", "a", "c"), block("d", "c")
    assert (named(first), named(second), named(third)) == (["a", "b"], ["b", "a", "c"], ["d", "c"])
    assert [[name for name, _ in one.topics] for one in (first, second, third)] == [
        ["a", "b"], ["a", "b", "c"], ["d", "c"],
    ]  # fmt: skip


def test_nothing_is_taken_where_something_else_is_wanted() -> None:
    chance = random.Random(1)
    body = encoded(request(11, chance))
    data, reader = np.frombuffer(body, np.uint8), BodyReader()
    for wanted in (WANTED | {(1, 0): frozenset({"rack_id"})}, {(0, 0): frozenset({"acks"})}, WANTED | {(1, 1): None}):
        decoder = Decoder(wanted)
        begin, end = np.zeros(2, np.int64), np.array([len(body), 0])
        program = np.array([decoder.table[1, 11, 0], -1], np.int32)
        status = np.zeros(2, np.int8)
        left = reader.read(decoder.wanted, decoder.library, data, begin, end, program, status)
        assert left is status
        assert reader.drain() is None
    assert READ_ASIDE not in status

"""What the recordings of brokers and clients say was produced and consumed, found through the table `records`."""

from __future__ import annotations

import re
import tomllib
from collections import Counter, defaultdict
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import kdissect

CAPTURES = Path(__file__).resolve().parents[2] / "captures"
SENT = re.compile(
    r"producer( (?P<client>[\w.-]+))?( \(sync\))? sent (?P<count>\d+) records(, (?P<bytes>\d+) bytes of values,)?"
    r"( one by one)? to (?P<topic>[\w.-]+?)(-(?P<partition>\d+))?(?P<how> \(any partition\)| with .*| at .*|,.*|$)"
)
OFFSETS = re.compile(r"offsets (?P<first>\d+)\.\.(?P<last>\d+)")
READ = re.compile(
    r"consumer (?P<client>\S+)( \(.*\))? read (?P<count>\d+) records( of (?P<topic>[\w.-]+)-(?P<partition>\d+))?$"
)
NAMES = sorted(
    path.stem
    for path in CAPTURES.glob("*.toml")
    if any(SENT.search(line) for line in tomllib.loads(path.read_text()).get("expect", ()))
)


@cache
def stated(name: str) -> list[str]:
    return list(tomllib.loads((CAPTURES / f"{name}.toml").read_text())["expect"])


@cache
def records(name: str) -> list[dict[str, Any]]:
    """Records with `api` and `client_id` of their exchange."""
    tables = kdissect.open(CAPTURES / f"{name}.pcap").tables(
        {"records": None, "exchanges": ["exchange_id", "api", "client_id"]}, reveal=True
    )
    of = {row["exchange_id"]: row for row in tables["exchanges"].to_pylist()}
    return [row | of[row["exchange_id"]] for row in tables["records"].to_pylist()]


def fetched(name: str, topic: str, partition: int) -> dict[int, set[Any]]:
    """(key, value) of each offset, of all fetches."""
    found: dict[int, set[Any]] = defaultdict(set)
    for row in records(name):
        if row["api"] == "Fetch" and (row["topic"], row["partition"]) == (topic, partition):
            found[row["offset"]].add((row["key"], row["value"]))
    return found


@pytest.mark.oracle
@pytest.mark.parametrize("name", NAMES)
def test_what_producers_sent(name: str) -> None:
    """As many records as each says, with as many bytes, and each offset that it was given holds one of its values."""
    sent: Counter[Any] = Counter()
    sizes: Counter[Any] = Counter()
    said: Counter[Any] = Counter()
    values: dict[Any, set[Any]] = defaultdict(set)
    for row in records(name):
        if row["api"] == "Produce":
            for client, partition in product((row["client_id"], None), (row["partition"], None)):
                who = (client, row["topic"], partition)
                sent[who] += 1
                sizes[who] += row["value_bytes"] or 0
                values[who].add((row["key"], row["value"]))
    seen = 0
    for line in stated(name):
        found = SENT.search(line)
        if found is None:
            continue
        partition = None if found["partition"] is None else int(found["partition"])
        who = (found["client"], found["topic"], partition)
        said[who] += int(found["count"])
        if found["bytes"]:
            assert sizes[who] == int(found["bytes"]), line
        given = OFFSETS.search(line)
        if given is not None and partition is not None:
            there = fetched(name, found["topic"], partition)
            for offset in range(int(given["first"]), int(given["last"]) + 1):
                if there:
                    assert len(there[offset]) == 1, (line, offset)
                    assert there[offset] <= values[who], (line, offset)
                    seen += 1
    for who, count in said.items():  # some statements name no client
        assert sent[who] == count if who[0] else sent[who] >= count, who
    assert seen or name.startswith("sasl")


@pytest.mark.oracle
@pytest.mark.parametrize("name", NAMES)
def test_what_consumers_read(name: str) -> None:
    for line in stated(name):
        found = READ.search(line)
        if found is None:
            continue
        rows = [
            (row["topic"], row["partition"], row["offset"])
            for row in records(name)
            if row["api"] == "Fetch" and row["client_id"] == found["client"] and row["control_type"] is None
        ]
        if found["topic"]:
            rows = [row for row in rows if row[:2] == (found["topic"], int(found["partition"]))]
        assert len(set(rows)) >= int(found["count"]), line


@pytest.mark.oracle
@pytest.mark.parametrize(
    "name", ["zoo_franz_go", "zoo_kafka_python", "zoo_kafkajs", "zoo_librdkafka", "zoo_sarama_010"]
)
def test_the_hundred_records_of_each_client(name: str) -> None:
    """Each a value of its own, produced, fetched at an offset, and the same there."""
    assert any("100 records are produced" in line for line in stated(name))
    rows = records(name)
    sent = {row["value"] for row in rows if row["api"] == "Produce" and row["value"]}
    got = {(row["partition"], row["offset"]): row["value"] for row in rows if row["api"] == "Fetch"}
    assert len([value for value in sent if re.match(rb"value \d+", value)]) == 100
    assert sent >= {value for value in got.values() if value}
    assert sum(1 for value in set(got.values()) if value in sent) == 100
    assert all(value.startswith(b"value ") for value in got.values() if value)


@pytest.mark.oracle
def test_java_client() -> None:
    """Null keys, null values and headers of each batch of ten, in all five codecs."""
    assert any("record 4 and 9 have a null key, record 6 a null value" in line for line in stated("k4_java_classic"))
    rows = [row for row in records("k4_java_classic") if row["topic"] == "jc-data" and row["api"] == "Produce"]
    rows = [row for row in rows if not (row["value"] or b"").startswith(b"more")]
    assert len(rows) == 100
    for start in range(0, 100, 10):
        batch = rows[start : start + 10]
        codec = next(row["headers"] for row in batch if row["headers"])[0]["value"]
        for i, row in enumerate(batch):
            assert row["key"] == (None if i in (4, 9) else b"key-%d" % i)
            value = codec + b" value %d " % i + b"abcdef " * 10
            assert row["value"] == (None if i == 6 else value)
            named = [{"key": "codec", "value": codec}, {"key": "n", "value": bytes([i])}, {"key": "nil", "value": None}]
            assert row["headers"] == (named if i in (0, 3, 6, 9) else [])


@pytest.mark.oracle
def test_transaction_markers() -> None:
    assert any("3 is a commit marker, 4..7 aborted, 8 an abort marker" in line for line in stated("k4_transactions"))
    markers: dict[int, dict[int, set[str | None]]] = {0: defaultdict(set), 1: defaultdict(set)}
    for row in records("k4_transactions"):
        if row["topic"] == "tx-out" and row["api"] == "Fetch":
            markers[row["partition"]][row["offset"]].add(row["control_type"])
    first = {offset: found for offset, found in markers[0].items() if offset <= 15}
    controls = {3: "commit", 8: "abort", 10: "commit", 12: "abort", 14: "abort"}
    assert first == {offset: {controls.get(offset)} for offset in range(16)}
    second = {offset for offset, found in markers[1].items() if found == {None}}
    assert second == {0, 1, 3, 5, 6, 8, 9}
